"""Several threads return the same result as one, for every input, and release the input when the call ends."""

from __future__ import annotations

import gzip
import itertools
import os
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


def same_by_threads(data, **options):
    one = outcome(kbatch.decode, data, **options)
    for threads in COUNTS:
        assert outcome(decode_by_threads, data, threads=threads, **options) == one
    return one


@pytest.mark.parametrize("path", LOGS, ids=lambda path: str(path.relative_to(GOLDEN)))
def test_golden_logs_decode_the_same(path):
    data = path.read_bytes()
    for options in (
        {"on_error": "skip"},
        {"on_error": "stop"},
        {"crc": "mark", "on_error": "skip", "include_control": True},
        {"crc": "skip"},
        {"isolation": "read_committed", "on_error": "skip"},
        {"columns": ["offset", "timestamp"], "on_error": "skip"},
    ):
        same_by_threads(data, **options)


CODECS = ["none", "gzip", "snappy", "lz4"]


@pytest.mark.parametrize(("codec", "magic"), [*itertools.product(CODECS, [0, 1, 2]), ("zstd", 2)])
def test_every_codec_decodes_the_same(codec, magic):
    data = b"".join(batches(np.random.default_rng(1), 300, codecs=(codec,), magic=magic, size=2000))
    same_by_threads(data)
    same_by_threads(data, columns=["offset"])
    same_by_threads(data, columns=["timestamp"], start_offset=100, stop_offset=700)
    for start in (0, 5, 100, 500):
        same_by_threads(data, start_offset=start, stop_offset=start + 333)


def test_mixed_codecs_and_magics_decode_the_same():
    rng = np.random.default_rng(2)
    parts = batches(rng, 400, codecs=("none", "lz4", "zstd", "none", "gzip", "snappy", "none"), size=3000)
    parts += batches(rng, 100, codecs=("none",)) + batches(rng, 100, codecs=("gzip", "none", "lz4"), magic=1)
    same_by_threads(b"".join(parts))
    same_by_threads(b"".join(parts[::-1]))


@pytest.mark.parametrize("codec", ["none", "lz4", "gzip"])
@pytest.mark.parametrize("on_error", ["raise", "stop", "skip"])
def test_damaged_input_decodes_the_same(codec, on_error):
    rng = np.random.default_rng(3)
    good = b"".join(batches(rng, 400, codecs=(codec,), size=1500))
    for _ in range(12 if os.environ.get("KBATCH_TEST_ALL") else 5):
        data = bytearray(good)
        for _ in range(int(rng.integers(1, 6))):
            data[int(rng.integers(0, len(data)))] ^= 1 << int(rng.integers(0, 8))
        for crc in ("verify", "mark", "skip"):
            same_by_threads(bytes(data), on_error=on_error, crc=crc)
        same_by_threads(bytes(data[: int(rng.integers(0, len(data)))]), on_error=on_error)


def recompressed(uncompressed, codec, pack=None):
    """Return the uncompressed batch with its payload compressed; the payload need not be valid."""
    compressed = pack(uncompressed[61:]) if pack is not None else compress(codec, memoryview(uncompressed)[61:])
    data = np.frombuffer(uncompressed[:61] + compressed, np.uint8).copy()
    data[8:12] = np.frombuffer((len(data) - 12).to_bytes(4, "big"), np.uint8)
    data[22] |= codec
    write_crcs(data, kbatch.scan(data).copy())
    return data.tobytes()


def test_a_snappy_block_of_size_zero_does_not_crash():
    """A damaged block declares the size 0 before there is an arena: cramjam must not get a null pointer."""
    data = (GOLDEN / "snappy-into-nothing.bin").read_bytes()
    for crc in ("verify", "mark", "skip"):
        same_by_threads(data, on_error="skip", crc=crc)


SHAPES = {"small": (9000, 60), "across block edges": (60, 20_000), "larger than a block": (8, 150_000)}


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.SNAPPY])
@pytest.mark.parametrize(("count", "size"), SHAPES.values(), ids=SHAPES)
def test_batches_of_several_blocks_decode_the_same(codec, count, size):
    """One thread parses and sums after each block, several after the last; also in damaged batches."""
    rng = np.random.default_rng(count)
    values = [rng.integers(0, 4, int(rng.integers(0, size)), np.uint8).tobytes() for _ in range(count)]
    keys = [None if len(value) % 3 == 0 else value[:9] for value in values]
    headers = [[("k", value[:5])] if i % 100 == 0 else [] for i, value in enumerate(values)]
    uncompressed = kbatch.encode(values, keys=keys, headers=headers, base_offset=7, timestamps=np.arange(count))
    good = recompressed(uncompressed, codec)
    table = kbatch.decode(good)
    assert (list(table.values()), list(table.keys())) == (values, keys)
    assert table.records["offset"].tolist() == list(range(7, 7 + count))
    for options in ({}, {"columns": ["offset", "value"]}, {"start_offset": 9, "stop_offset": 7 + count - 2}):
        same_by_threads(good + good, **options)
    for _ in range(8 if os.environ.get("KBATCH_TEST_ALL") else 3):
        # Flip a bit of the payload, with a valid checksum, and a bit of the stored bytes, with an invalid one.
        inner = bytearray(uncompressed)
        inner[int(rng.integers(57 if rng.integers(2) else len(uncompressed) // 2, len(uncompressed)))] ^= 1 << int(
            rng.integers(8)
        )
        outer = bytearray(good)
        outer[int(rng.integers(61, len(good)))] ^= 1 << int(rng.integers(8))
        for crc in ("verify", "mark", "skip"):
            same_by_threads(good + recompressed(bytes(inner), codec) + good, on_error="skip", crc=crc)
            one = same_by_threads(good + bytes(outer) + good, on_error="skip", crc=crc)
            if crc == "verify":
                assert [len(one[1]), len(one[4])] == [2 * count, 1]
    # The record count is wrong: all records would be valid except the last.
    for wrong in (count - 1, count + 1):
        inner = bytearray(uncompressed)
        inner[57:61] = wrong.to_bytes(4, "big")
        one = same_by_threads(good + recompressed(bytes(inner), codec), on_error="skip")
        assert [len(one[1]), len(one[4])] == [count, 1]


def _lz4_in_parts(uncompressed):
    """Compress into blocks of 64 KiB; some blocks in the middle are shorter."""
    with lz4.frame.LZ4FrameCompressor(block_linked=False, block_size=4, auto_flush=True) as frame:
        parts = [
            frame.begin(),
            *(frame.compress(uncompressed[at : at + 50_000]) for at in range(0, len(uncompressed), 50_000)),
        ]
        return b"".join([*parts, frame.flush()])


def _changed(pack, at, value):
    def changed(uncompressed):
        compressed = bytearray(pack(uncompressed))
        compressed[at] = (compressed[at] + value) % 256
        return bytes(compressed)

    return changed


def _zstd(**options):
    return zstandard.ZstdCompressor(**options).compress


DECLARED_SIZES = {
    "gzip of two members": (
        Codec.GZIP,
        lambda uncompressed: gzip.compress(uncompressed[:99]) + gzip.compress(uncompressed[99:]),
    ),
    "gzip with a wrong size": (Codec.GZIP, _changed(gzip.compress, -4, 1)),
    "gzip with a size of 4 GiB": (Codec.GZIP, _changed(gzip.compress, -1, 255)),
    "zstd without size": (Codec.ZSTD, _zstd(write_content_size=False)),
    "zstd with a wrong size": (Codec.ZSTD, _changed(_zstd(), 6, 1)),
    "zstd of two frames": (Codec.ZSTD, lambda uncompressed: _zstd()(uncompressed[:99]) + _zstd()(uncompressed[99:])),
    "snappy, raw": (Codec.SNAPPY, cramjam.snappy.compress_raw),
    "snappy with a wrong size": (
        Codec.SNAPPY,
        _changed(lambda uncompressed: bytes(cramjam.snappy.compress_raw(uncompressed)), 0, 1),
    ),
    "lz4 in parts": (Codec.LZ4, _lz4_in_parts),
    "lz4 with size": (Codec.LZ4, lambda uncompressed: lz4.frame.compress(uncompressed, store_size=True)),
    "lz4 with linked blocks": (
        Codec.LZ4,
        lambda uncompressed: lz4.frame.compress(uncompressed, store_size=False, block_linked=True),
    ),
}


@pytest.mark.parametrize(("codec", "pack"), DECLARED_SIZES.values(), ids=DECLARED_SIZES)
@pytest.mark.parametrize("size", [300, 9000])
def test_missing_and_wrong_payload_sizes_decode_the_same(codec, pack, size):
    """The declared size places a payload in the arena; it may be missing, right or wrong, in some batches or all."""
    uncompressed = batches(np.random.default_rng(size), 120, size=size)
    odd = [recompressed(bytes(batch), codec, pack) for batch in uncompressed]
    ordinary = [recompressed(bytes(batch), codec) for batch in uncompressed]
    for some in ({7}, {60, 61, 90}, {119}, range(120)):
        data = b"".join(odd[i] if i in some else ordinary[i] for i in range(120))
        one = same_by_threads(data, on_error="skip")
        assert len(one[2]) + len(one[4]) >= 120 - len(some)
        same_by_threads(data, columns=["offset"], on_error="skip", start_offset=100)
        assert one[4] or one[1] == outcome(kbatch.decode, b"".join(ordinary))[1]


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_values_that_look_like_batches_decode_the_same(magic):
    """Threads guess where batches begin; values that contain batches mislead the guess."""
    rng = np.random.default_rng(magic)
    few = b"".join(batches(rng, 4000, magic=magic, max_records=1, size=9))
    whole = b"".join(
        kbatch.encode([few[:90_000] if i % 50 == 0 else b"v"], magic=magic, base_offset=i) for i in range(150)
    )
    data = few + whole + few + whole[:-1] + few
    same_by_threads(few)
    same_by_threads(few + whole)
    same_by_threads(data, on_error="skip")
    array = byte_array(few + whole + few)
    for max_bytes in (10_000, 100_000, 300_000, 1_000_000):
        one = seen(first_table(array, DecodeOptions(), max_bytes))
        for threads in COUNTS:
            assert seen(first_table(array, DecodeOptions(threads=threads, thread_bytes=1), max_bytes)) == one
    damaged = bytearray(few)
    for at in rng.integers(0, len(few), 8).tolist():
        damaged[at] ^= 1 << int(rng.integers(8))
    for crc in ("verify", "mark", "skip"):
        same_by_threads(bytes(damaged), on_error="skip", crc=crc)


def test_many_bad_batches_decode_the_same():
    """Every batch is bad: the discarded work stays proportional to the input."""
    data = bytearray(b"".join(batches(np.random.default_rng(4), 3000)))
    for position in kbatch.scan(bytes(data))["position"].tolist():
        data[position + 30] ^= 1
    one = same_by_threads(bytes(data), on_error="skip")
    # No valid batch follows the first one: the whole input is one loss.
    assert [loss[:2] for loss in one[4]] == [(0, len(data))]


def test_payloads_larger_than_the_scratch_decode_the_same():
    """Payloads above the size of a thread's scratch memory are decompressed in order."""
    values = [bytes(3 << 20), bytes(9 << 20), b"x"]
    data = b"".join(kbatch.encode([value], codec="zstd", base_offset=i) for i, value in enumerate(values * 3))
    same_by_threads(data)
    same_by_threads(data, columns=["offset"])
    same_by_threads(data, limits=kbatch.Limits(max_decompressed_bytes=5 << 20), on_error="skip")


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_tables_end_at_the_same_batches(tmp_path, codec):
    data = b"".join(batches(np.random.default_rng(5), 300, codecs=(codec,), size=900))
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(data)
    for max_bytes in (1, 3000, 1 << 16, 1 << 20, 1 << 23):
        one = [seen(table) for table in kbatch.Log(path).tables(max_bytes=max_bytes)]
        for threads in COUNTS:
            assert [seen(table) for table in kbatch.Log(path).tables(max_bytes=max_bytes, threads=threads)] == one
            options = DecodeOptions(threads=threads, thread_bytes=1, is_strict=True)
            read = read_tables(kbatch.Segment(path), 0, len(data), options, max_bytes, splits=True)
            assert [seen(table) for table in read] == one
    array = byte_array(data)
    for max_bytes in range(1, 60_000, 3989):
        one = seen(first_table(array, DecodeOptions(), max_bytes))
        assert seen(first_table(array, DecodeOptions(threads=3, thread_bytes=1), max_bytes)) == one


def test_a_stream_flushes_the_same_tables():
    """Each chunk has enough bytes for all threads: 128 KiB per thread."""
    data = b"".join(batches(np.random.default_rng(6), 1500, codecs=("none", "gzip"), size=1000))
    chunk = 500_001
    assert len(data) > 3 * chunk
    flushed = []
    for threads in (1, 3):
        decoder = kbatch.StreamDecoder(threads=threads)
        tables = []
        for at in range(0, len(data), chunk):
            decoder.feed(data[at : at + chunk])
            tables.append(seen(decoder.flush()))
        tables.append(seen(decoder.finish()))
        flushed.append(tables)
    assert flushed[0] == flushed[1]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_arbitrary_input_decodes_the_same(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    codecs = data.draw(st.lists(st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]), min_size=1, max_size=4))
    parts = batches(rng, data.draw(st.integers(0, 150)), codecs=codecs, size=data.draw(st.integers(1, 4000)))
    raw = bytearray(b"".join(parts))
    for _ in range(data.draw(st.integers(0, 3)) if raw else 0):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    same_by_threads(
        bytes(raw),
        on_error=data.draw(st.sampled_from(["raise", "stop", "skip"])),
        crc=data.draw(st.sampled_from(["verify", "mark", "skip"])),
        start_offset=data.draw(st.none() | st.integers(0, 600)),
        stop_offset=data.draw(st.none() | st.integers(0, 600)),
        columns=data.draw(st.none() | st.just(["timestamp"]) | st.just(["offset", "value"])),
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_declared_record_counts_are_not_allocated(monkeypatch, threads):
    """CNT-R7: rows are bounded by the payload, at seven bytes per record, also in a batch after many small ones."""
    parts = batches(np.random.default_rng(15), 900)
    large = bytearray(kbatch.encode([bytes(30_000)], base_offset=1 << 20))
    large[57:61] = (25_000).to_bytes(4, "big")
    requested = []
    reserve = PooledRows.reserve
    monkeypatch.setattr(PooledRows, "reserve", lambda self, count: requested.append(count) or reserve(self, count))
    table = decode_by_threads(b"".join([*parts, large]), crc="skip", on_error="skip", threads=threads)
    assert [loss.reason for loss in table.losses] == ["record count is 25000, the payload can hold at most 4287"]
    assert max(requested, default=0) < 25_000


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_empty_compressed_payloads_decode_the_same(codec):
    """The payloads decompress to no bytes, although the headers declare records."""
    nothing = compress(Codec[codec.upper()], memoryview(b""))
    parts = []
    for i in range(50):
        batch = bytearray(kbatch.encode([b""], base_offset=i)[:61] + nothing)
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
        batch[21:23] = int(Codec[codec.upper()]).to_bytes(2, "big")
        parts += [batch, kbatch.encode([b"x"], base_offset=100 + i, codec=codec)]
    for columns in (None, ["offset"]):
        one = same_by_threads(b"".join(parts), crc="skip", on_error="skip", columns=columns)
        assert len(one[1]) == len(one[4]) == 50


@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_that_changes_after_framing_stays_within_its_bounds(magic):
    """Another process may write to a mapped file at any time: no changed header may lead beyond the framed bytes."""
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


def test_the_input_may_be_resized_after_the_call():
    data = bytearray(b"".join(batches(np.random.default_rng(12), 300, codecs=("lz4",))))
    for _ in range(20):
        table = decode_by_threads(data, threads=4)
        assert len(table.records)
        del table
        data.append(0)
        data.pop()


def test_the_number_of_threads_is_validated():
    assert workers.thread_count(0) >= 1
    assert workers.thread_count(np.int64(3)) == 3
    assert workers.thread_count(10**9) == 256
    with pytest.raises(ValueError, match=r"0 .* or more, got -1"):
        kbatch.decode(b"", threads=-1)
    with pytest.raises(TypeError, match=r"integer, got 1\.5"):
        kbatch.decode(b"", threads=1.5)
    assert len(kbatch.decode(b"", threads=0)) == 0
