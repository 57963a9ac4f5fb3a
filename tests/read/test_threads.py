"""Decoding by several threads gives what one gives, whatever the input, and leaves no thread behind."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import cramjam
import lz4.frame
import numpy as np
import pytest
import zstandard
from decoding_outcomes import batches, outcome, seen
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import decode_by_threads, first_table

import kbatch
from kbatch import Codec
from kbatch.batches.codecs import compress
from kbatch.batches.framing import byte_array
from kbatch.batches.pooled import PooledRows
from kbatch.kernels import decode as kernel
from kbatch.kernels.checksum import write_crcs
from kbatch.log.reading import read_tables
from kbatch.read import workers
from kbatch.read.decode_options import DecodeOptions

GOLDEN = Path(__file__).parents[1] / "golden"
LOGS = sorted(GOLDEN.rglob("*.log"))
COUNTS = (2, 3, 5)


def same(data, **options):
    one = outcome(kbatch.decode, data, **options)
    for threads in COUNTS:
        assert outcome(decode_by_threads, data, threads=threads, **options) == one
    return one


@pytest.mark.parametrize("path", LOGS, ids=lambda path: str(path.relative_to(GOLDEN)))
def test_golden_logs(path):
    data = path.read_bytes()
    for options in (
        {"on_error": "skip"},
        {"on_error": "stop"},
        {"crc": "mark", "on_error": "skip", "include_control": True},
        {"crc": "skip"},
        {"isolation": "read_committed", "on_error": "skip"},
        {"columns": ["offset", "timestamp"], "on_error": "skip"},
    ):
        same(data, **options)


CODECS = ["none", "gzip", "snappy", "lz4"]


@pytest.mark.parametrize(("codec", "magic"), [*itertools.product(CODECS, [0, 1, 2]), ("zstd", 2)])
def test_every_codec(codec, magic):
    data = b"".join(batches(np.random.default_rng(1), 300, codecs=(codec,), magic=magic, size=2000))
    same(data)
    same(data, columns=["offset"])
    same(data, columns=["timestamp"], start_offset=100, stop_offset=700)
    for start in (0, 5, 100, 500):
        same(data, start_offset=start, stop_offset=start + 333)


def test_codecs_and_magics_mixed():
    rng = np.random.default_rng(2)
    parts = batches(rng, 400, codecs=("none", "lz4", "zstd", "none", "gzip", "snappy", "none"), size=3000)
    parts += batches(rng, 100, codecs=("none",)) + batches(rng, 100, codecs=("gzip", "none", "lz4"), magic=1)
    same(b"".join(parts))
    same(b"".join(parts[::-1]))


@pytest.mark.parametrize("codec", ["none", "lz4", "gzip"])
@pytest.mark.parametrize("on_error", ["raise", "stop", "skip"])
def test_damage(codec, on_error):
    rng = np.random.default_rng(3)
    good = b"".join(batches(rng, 400, codecs=(codec,), size=1500))
    for _ in range(12):
        data = bytearray(good)
        for _ in range(int(rng.integers(1, 6))):
            data[int(rng.integers(0, len(data)))] ^= 1 << int(rng.integers(0, 8))
        for crc in ("verify", "mark", "skip"):
            same(bytes(data), on_error=on_error, crc=crc)
        same(bytes(data[: int(rng.integers(0, len(data)))]), on_error=on_error)


def repacked(plain, codec, pack=None):
    """Compress the payload of an uncompressed batch, whatever it is, into a batch of its own."""
    packed = pack(plain[61:]) if pack is not None else compress(codec, memoryview(plain)[61:])
    data = np.frombuffer(plain[:61] + packed, np.uint8).copy()
    data[8:12] = np.frombuffer((len(data) - 12).to_bytes(4, "big"), np.uint8)
    data[22] |= codec
    write_crcs(data, kbatch.scan(data).copy())
    return data.tobytes()


def test_snappy_into_nothing():
    """A damaged block that claims to hold nothing, when there is no arena yet: cramjam crashed at a null pointer."""
    data = (GOLDEN / "snappy-into-nothing.bin").read_bytes()
    for crc in ("verify", "mark", "skip"):
        same(data, on_error="skip", crc=crc)


SHAPES = {"small": (9000, 60), "over the edges of blocks": (60, 20_000), "larger than a block": (8, 150_000)}


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.SNAPPY])
@pytest.mark.parametrize(("count", "size"), SHAPES.values(), ids=SHAPES)
def test_batches_of_several_blocks(codec, count, size):
    """One thread reads and sums behind each block; others when all are there. Also of what only seems to be a batch."""
    rng = np.random.default_rng(count)
    values = [rng.integers(0, 4, int(rng.integers(0, size)), np.uint8).tobytes() for _ in range(count)]
    keys = [None if len(value) % 3 == 0 else value[:9] for value in values]
    headers = [[("k", value[:5])] if i % 100 == 0 else [] for i, value in enumerate(values)]
    plain = kbatch.encode(values, keys=keys, headers=headers, base_offset=7, timestamps=np.arange(count))
    good = repacked(plain, codec)
    table = kbatch.decode(good)
    assert (list(table.values()), list(table.keys())) == (values, keys)
    assert table.records["offset"].tolist() == list(range(7, 7 + count))
    for options in ({}, {"columns": ["offset", "value"]}, {"start_offset": 9, "stop_offset": 7 + count - 2}):
        same(good + good, **options)
    for _ in range(8):
        # Of the payload, so that the checksum holds; and of what is stored, so that it doesn't.
        inner = bytearray(plain)
        inner[int(rng.integers(57 if rng.integers(2) else len(plain) // 2, len(plain)))] ^= 1 << int(rng.integers(8))
        outer = bytearray(good)
        outer[int(rng.integers(61, len(good)))] ^= 1 << int(rng.integers(8))
        for crc in ("verify", "mark", "skip"):
            same(good + repacked(bytes(inner), codec) + good, on_error="skip", crc=crc)
            one = same(good + bytes(outer) + good, on_error="skip", crc=crc)
            if crc == "verify":
                assert [len(one[1]), len(one[4])] == [2 * count, 1]
    # A count that is wrong, by which all records would be good but the last.
    for wrong in (count - 1, count + 1):
        inner = bytearray(plain)
        inner[57:61] = wrong.to_bytes(4, "big")
        one = same(good + repacked(bytes(inner), codec), on_error="skip")
        assert [len(one[1]), len(one[4])] == [count, 1]


def _lz4_in_parts(plain):
    """Blocks of 64 KiB, of which some in the middle are shorter."""
    with lz4.frame.LZ4FrameCompressor(block_linked=False, block_size=4, auto_flush=True) as frame:
        parts = [frame.begin(), *(frame.compress(plain[at : at + 50_000]) for at in range(0, len(plain), 50_000))]
        return b"".join([*parts, frame.flush()])


def _changed(pack, at, value):
    def changed(plain):
        packed = bytearray(pack(plain))
        packed[at] = (packed[at] + value) % 256
        return bytes(packed)

    return changed


def _zstd(**options):
    return zstandard.ZstdCompressor(**options).compress


TELLING = {
    "gzip of two members": (Codec.GZIP, lambda plain: gzip.compress(plain[:99]) + gzip.compress(plain[99:])),
    "gzip of another size": (Codec.GZIP, _changed(gzip.compress, -4, 1)),
    "gzip of 4 GiB": (Codec.GZIP, _changed(gzip.compress, -1, 255)),
    "zstd without size": (Codec.ZSTD, _zstd(write_content_size=False)),
    "zstd of another size": (Codec.ZSTD, _changed(_zstd(), 6, 1)),
    "zstd of two frames": (Codec.ZSTD, lambda plain: _zstd()(plain[:99]) + _zstd()(plain[99:])),
    "snappy, raw": (Codec.SNAPPY, cramjam.snappy.compress_raw),
    "snappy of another size": (Codec.SNAPPY, _changed(lambda plain: bytes(cramjam.snappy.compress_raw(plain)), 0, 1)),
    "lz4 in parts": (Codec.LZ4, _lz4_in_parts),
    "lz4 that tells its size": (Codec.LZ4, lambda plain: lz4.frame.compress(plain, store_size=True)),
    "lz4 of linked blocks": (Codec.LZ4, lambda plain: lz4.frame.compress(plain, store_size=False, block_linked=True)),
}


@pytest.mark.parametrize(("codec", "pack"), TELLING.values(), ids=TELLING)
@pytest.mark.parametrize("size", [300, 9000])
def test_what_payloads_say_of_their_size(codec, pack, size):
    """By that groups get their places: nothing, the truth, or not; in some batches between ordinary ones, or in all."""
    plain = batches(np.random.default_rng(size), 120, size=size)
    odd = [repacked(bytes(batch), codec, pack) for batch in plain]
    ordinary = [repacked(bytes(batch), codec) for batch in plain]
    for some in ({7}, {60, 61, 90}, {119}, range(120)):
        data = b"".join(odd[i] if i in some else ordinary[i] for i in range(120))
        one = same(data, on_error="skip")
        assert len(one[2]) + len(one[4]) >= 120 - len(some)
        same(data, columns=["offset"], on_error="skip", start_offset=100)
        assert one[4] or one[1] == outcome(kbatch.decode, b"".join(ordinary))[1]


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_what_looks_like_batches(magic):
    """Where batches begin is guessed: by values that are batches themselves wrongly."""
    rng = np.random.default_rng(magic)
    few = b"".join(batches(rng, 4000, magic=magic, most=1, size=9))
    whole = b"".join(
        kbatch.encode([few[:90_000] if i % 50 == 0 else b"v"], magic=magic, base_offset=i) for i in range(150)
    )
    data = few + whole + few + whole[:-1] + few
    same(few)
    same(few + whole)
    same(data, on_error="skip")
    array = byte_array(few + whole + few)
    for max_bytes in (10_000, 100_000, 300_000, 1_000_000):
        one = seen(first_table(array, DecodeOptions(), max_bytes))
        for threads in COUNTS:
            assert seen(first_table(array, DecodeOptions(threads=threads, thread_bytes=1), max_bytes)) == one
    damaged = bytearray(few)
    for at in rng.integers(0, len(few), 8).tolist():
        damaged[at] ^= 1 << int(rng.integers(8))
    for crc in ("verify", "mark", "skip"):
        same(bytes(damaged), on_error="skip", crc=crc)


def test_many_bad_batches():
    """What is done in vain stays in proportion: every batch is bad."""
    data = bytearray(b"".join(batches(np.random.default_rng(4), 3000)))
    for position in kbatch.scan(bytes(data))["position"].tolist():
        data[position + 30] ^= 1
    one = same(bytes(data), on_error="skip")
    # No batch follows the first one that is valid: all of it is one loss.
    assert [loss[:2] for loss in one[4]] == [(0, len(data))]


def test_payloads_of_great_ratio():
    """More than a thread's scratch takes, so that they are decompressed in order."""
    values = [bytes(3 << 20), bytes(9 << 20), b"x"]
    data = b"".join(kbatch.encode([value], codec="zstd", base_offset=i) for i, value in enumerate(values * 3))
    same(data)
    same(data, columns=["offset"])
    same(data, limits=kbatch.Limits(max_decompressed_bytes=5 << 20), on_error="skip")


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_cuts_of_tables(tmp_path, codec):
    data = b"".join(batches(np.random.default_rng(5), 800, codecs=(codec,), size=900))
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(data)
    for max_bytes in (1, 3000, 1 << 16, 1 << 20, 1 << 23):
        one = [seen(table) for table in kbatch.Log(path).tables(max_bytes=max_bytes)]
        for threads in COUNTS:
            assert [seen(table) for table in kbatch.Log(path).tables(max_bytes=max_bytes, threads=threads)] == one
            options = DecodeOptions(threads=threads, thread_bytes=1)
            assert [seen(table) for table in read_tables(kbatch.Segment(path), 0, len(data), options, max_bytes)] == one
    array = byte_array(data)
    for max_bytes in range(1, 60_000, 997):
        one = seen(first_table(array, DecodeOptions(), max_bytes))
        assert seen(first_table(array, DecodeOptions(threads=3, thread_bytes=1), max_bytes)) == one


def test_stream():
    """In chunks that are large enough for all threads: 128 KiB for each."""
    data = b"".join(batches(np.random.default_rng(6), 1500, codecs=("none", "gzip"), size=1000))
    chunk = 500_001
    assert len(data) > 3 * chunk
    told = []
    for threads in (1, 3):
        decoder = kbatch.StreamDecoder(threads=threads)
        tables = []
        for at in range(0, len(data), chunk):
            decoder.feed(data[at : at + chunk])
            tables.append(seen(decoder.flush()))
        tables.append(seen(decoder.finish()))
        told.append(tables)
    assert told[0] == told[1]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_anything(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    codecs = data.draw(st.lists(st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]), min_size=1, max_size=4))
    parts = batches(rng, data.draw(st.integers(0, 150)), codecs=codecs, size=data.draw(st.integers(1, 4000)))
    raw = bytearray(b"".join(parts))
    for _ in range(data.draw(st.integers(0, 3)) if raw else 0):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    same(
        bytes(raw),
        on_error=data.draw(st.sampled_from(["raise", "stop", "skip"])),
        crc=data.draw(st.sampled_from(["verify", "mark", "skip"])),
        start_offset=data.draw(st.none() | st.integers(0, 600)),
        stop_offset=data.draw(st.none() | st.integers(0, 600)),
        columns=data.draw(st.none() | st.just(["timestamp"]) | st.just(["offset", "value"])),
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_claims_of_records_get_no_memory(monkeypatch, threads):
    """No more rows than the bytes can hold, seven a record (CNT-R7): also of a batch behind many small ones."""
    parts = batches(np.random.default_rng(15), 900)
    large = bytearray(kbatch.encode([bytes(30_000)], base_offset=1 << 20))
    large[57:61] = (25_000).to_bytes(4, "big")
    asked = []
    reserve = PooledRows.reserve
    monkeypatch.setattr(PooledRows, "reserve", lambda self, count: asked.append(count) or reserve(self, count))
    table = decode_by_threads(b"".join([*parts, large]), crc="skip", on_error="skip", threads=threads)
    assert [loss.reason for loss in table.losses] == ["record count is 25000, the payload can hold at most 4287"]
    assert max(asked, default=0) < 25_000


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_payloads_of_nothing(codec):
    """Compressed payloads without a byte in them, of headers that claim records."""
    nothing = compress(Codec[codec.upper()], memoryview(b""))
    parts = []
    for i in range(50):
        batch = bytearray(kbatch.encode([b""], base_offset=i)[:61] + nothing)
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
        batch[21:23] = int(Codec[codec.upper()]).to_bytes(2, "big")
        parts += [batch, kbatch.encode([b"x"], base_offset=100 + i, codec=codec)]
    for columns in (None, ["offset"]):
        one = same(b"".join(parts), crc="skip", on_error="skip", columns=columns)
        assert len(one[1]) == len(one[4]) == 50


@pytest.mark.parametrize("magic", [0, 1])
def test_wrappers_that_change_after_framing(magic):
    """Another process may write to a mapped file at any time: no header leads beyond what was framed."""
    data = bytearray(kbatch.encode([b""], codec="gzip", magic=magic, timestamps=[0] if magic else None))
    size = 34 if magic else 26
    del data[size:]
    data[8:12] = (size - 12).to_bytes(4, "big")
    data[-4:] = bytes(4)
    rows = kbatch.scan(bytes(data))
    for other in range(256):
        data[16] = other
        positions, sizes = np.full(1, -9), np.full(1, -9)
        kernel.payloads(np.frombuffer(data, np.uint8), rows, 0, 1, 0, positions, sizes)
        assert (positions.tolist(), sizes.tolist()) == ([size], [0])


def test_input_can_change_after_the_call():
    data = bytearray(b"".join(batches(np.random.default_rng(12), 300, codecs=("lz4",))))
    for _ in range(20):
        table = decode_by_threads(data, threads=4)
        assert len(table.records)
        del table
        data.append(0)
        data.pop()


def test_number():
    assert workers.thread_count(0) >= 1
    assert workers.thread_count(np.int64(3)) == 3
    assert workers.thread_count(10**9) == 256
    with pytest.raises(ValueError, match=r"0 .* or more, got -1"):
        kbatch.decode(b"", threads=-1)
    with pytest.raises(TypeError, match=r"integer, got 1\.5"):
        kbatch.decode(b"", threads=1.5)
    assert len(kbatch.decode(b"", threads=0)) == 0
