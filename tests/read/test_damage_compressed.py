"""Intact batches after damage are returned however well they are compressed, and wherever the source ends."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_batches import write_segment
from tables import assert_accounted, lost

import kbatch
from kbatch.batches.codecs import compress
from kbatch.cli import main
from kbatch.format import Codec, Limits
from kbatch.kernels.search import EntryChecksums
from kbatch.read.damage import DamageEngine
from kbatch.read.decode_options import DecodeOptions

# The shortest record, without key and value.
RECORD = b"\x0c\0\0\0\1\1\0"
LENGTH_AT, MAGIC_AT = 8, 16
MOST_RECORDS = (256 << 20) // 7
FORMATS = [(2, codec) for codec in ("none", "gzip", "snappy", "lz4", "zstd")]
FORMATS += [(magic, codec) for magic in (0, 1) for codec in ("gzip", "snappy", "lz4")]


@functools.lru_cache(maxsize=64)
def well_compressed(magic: int, codec: str, count: int) -> bytes:
    """Build a batch of equal records whose size hardly depends on their number, or a message set."""
    if magic == 2:
        payload: bytes = compress(Codec[codec.upper()], RECORD * count) if codec != "none" else RECORD * count
        return oracle.build_batch(
            payload=payload, record_count=count, last_offset_delta=count - 1, attributes=Codec[codec.upper()]
        )
    return oracle.build_message_set([(None, b"")] * count, magic=magic, codec=codec)


def length_of(value: int) -> Any:
    return lambda batch: batch[:LENGTH_AT] + value.to_bytes(4, "big") + batch[LENGTH_AT + 4 :]


DAMAGES: dict[str, Any] = {
    "length above the limit": length_of(1 << 30),
    "length beyond the source": length_of(1 << 22),
    "length too small": length_of(3),
    "magic": lambda batch: batch[:MAGIC_AT] + b"\x7f" + batch[MAGIC_AT + 1 :],
    "all of it": lambda batch: b"\xff" * len(batch),
}


def routes(directory: Path, data: bytes) -> dict[str, list[kbatch.RecordTable]]:
    """Read by every route, with windows and flushes that end anywhere."""
    options: dict[str, Any] = {"on_error": "skip"}
    decoder = kbatch.StreamDecoder(**options)
    tables = []
    step = max(97, len(data) // 30)
    for begin in range(0, len(data), step):
        decoder.feed(data[begin : begin + step])
        tables.append(decoder.flush())
    found = {
        "buffer": [kbatch.decode(data, **options)],
        "one chunk": list(kbatch.decode_stream([data], **options)),
        "chunks": [*tables, decoder.finish()],
        "small max_batch_bytes": [kbatch.decode(data, **options, limits=Limits(max_batch_bytes=1 << 20))],
    }
    write_segment(directory / "t-0", 0, [], tail=data)
    found["log"] = list(kbatch.Log(directory / "t-0").tables(max_bytes=1, **options))
    return found


def good_batches(tables: list[kbatch.RecordTable]) -> list[tuple[int, int]]:
    """Return the position and the number of records of each batch that is not damaged."""
    rows = np.concatenate([table.batches for table in tables])
    rows = rows[rows["status"] == kbatch.BatchStatus.OK]
    assert sum(map(len, tables)) == rows["record_count"].sum()
    return list(zip(rows["position"].tolist(), rows["record_count"].tolist(), strict=True))


@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("count", [1, 50, 10_000])
@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_batches_at_the_end_of_a_source_are_returned_after_damage(
    magic: int, codec: str, count: int, after: int, tmp_path: Path
) -> None:
    """FRM-R13: exactly the damaged batch is lost, by every route; `after` good batches follow it."""
    count = min(count, 1000) if magic < 2 else count
    one = well_compressed(magic, codec, count)
    for name, damaged in DAMAGES.items():
        data = one + damaged(one) + one * after
        for route, tables in routes(tmp_path, data).items():
            expected = [(len(one) * i, count) for i in range(after + 2) if i != 1]
            assert good_batches(tables) == expected, (name, route)
            consumed = sum(table.consumed for table in tables)
            # The source seems to end within the last batch, which only a stream reports as a loss (FRM-R3). The fields
            # of a message show its end.
            is_cut = magic == 2 and not after and name in ("length above the limit", "length beyond the source")
            assert consumed == (len(one) if is_cut and "chunk" not in route else len(data)), (name, route)
            ranges = [each for table in tables for each in lost(table)]
            assert ranges == ([(len(one), 2 * len(one))] if consumed > len(one) else []), (name, route)


def test_a_damaged_length_before_compressed_batches_is_an_error_by_every_route(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batches = [kbatch.encode([b'{"status":"ok","n":1}'] * 500, codec="zstd", base_offset=500 * i) for i in range(5)]
    damaged = bytearray(batches[1])
    damaged[LENGTH_AT] ^= 0x40
    data = b"".join([batches[0], damaged, *batches[2:]])
    path = write_segment(tmp_path / "t-0", 0, [], tail=data)
    for read in (
        lambda: kbatch.decode(data),
        lambda: list(kbatch.decode_stream([data])),
        lambda: list(kbatch.Log(path.parent).tables()),
        lambda: kbatch.recompress(data, codec="lz4"),
    ):
        with pytest.raises(kbatch.LimitExceededError, match=f"byte {len(batches[0])}: header declares"):
            read()
    table = kbatch.decode(data, on_error="stop")
    assert (len(table), lost(table)) == (500, [(len(batches[0]), len(data))])
    assert main(["verify", str(path)]) == 3
    assert f"byte {len(batches[0])}: header declares" in capsys.readouterr().out
    assert main(["recompress", str(path), str(tmp_path / "out.log"), "--codec", "lz4"]) == 1


# -- bounds


def find(data: bytes, *, max_records: int, final: bool) -> tuple[int, bool]:
    status, position, _ = EntryChecksums().find(
        np.frombuffer(data, np.uint8),
        0,
        0,
        len(data),
        max_size=1 << 20,
        max_records=max_records,
        source_end=len(data) if final else None,
        reached=None,
    )
    return position, status == 1


@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 2**31 - 1])
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_only_max_records_bounds_the_record_count_of_a_compressed_batch(codec: str, count: int, final: bool) -> None:
    """CNT-R7: neither the size of the batch nor the end of the source does."""
    entry = oracle.build_batch(payload=b"x", record_count=count, attributes=Codec[codec.upper()])
    data = b"\xfe" * 5 + entry
    after = b"" if final else b"\xff" * 80
    for most in (count - 1, count, count + 1):
        position, is_entry = find(data + after, max_records=most, final=final)
        assert is_entry == (count <= most)
        if is_entry:
            assert position == 5


@pytest.mark.parametrize("count", [0, 1, 2, 63])
def test_the_bytes_bound_the_record_count_of_an_uncompressed_batch(count: int) -> None:
    """CNT-R7: each record takes 7 bytes."""
    for spare in (0, 6):
        payload = RECORD * count + bytes(spare)
        assert find(oracle.build_batch(payload=payload, record_count=count), max_records=0, final=True) == (0, True)
        assert not find(oracle.build_batch(payload=payload, record_count=count + 1), max_records=0, final=True)[1]
    assert not find(oracle.build_batch(payload=RECORD, record_count=-1), max_records=10, final=True)[1]
    assert not find(oracle.build_batch(payload=RECORD, record_count=-1, attributes=4), max_records=10, final=True)[1]


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (Limits(), MOST_RECORDS),
        # No limit of a source, and no lower limit on payloads, hides a batch from the search.
        (Limits(max_decompressed_bytes=10), MOST_RECORDS),
        (Limits(max_batch_bytes=200), MOST_RECORDS),
        (Limits(max_table_bytes=1000), MOST_RECORDS),
        (Limits(max_decompressed_bytes=512 << 20), (512 << 20) // 7),
    ],
)
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_batch_that_the_limits_allow_is_found_and_a_larger_one_is_lost_with_the_damage(
    codec: str, limits: Limits, most: int
) -> None:
    """Its record count is wrong, so that it is a loss in any case: alone, or with the damage before it."""
    good = oracle.build_batch([oracle.encode_record(value=b"v")])
    for count, is_found in ((most, True), (most + 1, False)):
        # The header only: the search verifies its checksum, and decoding its records.
        forged = oracle.build_batch(payload=b"xx", record_count=count, attributes=Codec[codec.upper()])
        data = good + b"\xff" * 30 + forged + good
        table = kbatch.decode(data, on_error="skip", limits=limits)
        assert len(table) == 2
        assert_accounted(table, len(data))
        begin = len(good)
        lengths = [30, len(forged)] if is_found else [30 + len(forged)]
        assert [loss[:2] for loss in table.losses] == [
            (begin + sum(lengths[:i]), length) for i, length in enumerate(lengths)
        ]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_above_a_low_limit_after_a_damaged_length_are_losses_that_name_the_limit(codec: str) -> None:
    """Although no batch after the damage can be decoded, the source does not seem to end within the damaged one."""
    one = well_compressed(2, codec, 1000)
    data = well_compressed(2, codec, 1) + length_of(1 << 22)(one) + one + one
    table = kbatch.decode(data, on_error="skip", limits=Limits(max_decompressed_bytes=6999))
    assert len(table) == 1
    assert_accounted(table, len(data))
    assert table.consumed == len(data)
    assert ["max_decompressed_bytes" in loss.reason for loss in table.losses] == [False, True, True]
    assert len(kbatch.decode(data, on_error="skip", limits=Limits(max_decompressed_bytes=7000))) == 2001


# -- properties


@st.composite
def sources(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int]], list[tuple[int, int]]]:
    """Build batches of which some are damaged beyond recognition: bytes, spans of good ones, merged damaged spans."""
    good, bad, parts, position = [], [], [], 0
    kinds = draw(st.lists(st.sampled_from(FORMATS), min_size=2, max_size=6))
    damaged = draw(st.lists(st.sampled_from([None, *DAMAGES]), min_size=len(kinds), max_size=len(kinds)))
    for (magic, codec), damage in zip(kinds, damaged, strict=True):
        most = 10_000 if magic == 2 and codec != "none" else 200
        count = draw(st.one_of(st.integers(1, most), st.sampled_from([1, 9, 10, most])))
        batch = well_compressed(magic, codec, count)
        if damage is None:
            good.append((position, count))
        else:
            batch = DAMAGES[damage](batch)
            if bad and bad[-1][1] == position:
                bad[-1] = (bad[-1][0], position + len(batch))
            else:
                bad.append((position, position + len(batch)))
        parts.append(batch)
        position += len(batch)
    return b"".join(parts), good, bad


@settings(max_examples=150)
@given(source=sources(), points=st.lists(st.integers(0, 3000), max_size=6))
def test_a_search_finds_every_batch_of_any_codec_and_record_count(
    source: tuple[bytes, list[tuple[int, int]], list[tuple[int, int]]], points: list[int]
) -> None:
    """A stream, chunked and flushed at any points, returns every good batch; a buffer does too."""
    data, good, bad = source
    decoder = kbatch.StreamDecoder(on_error="skip")
    tables = []
    for begin, end in itertools.pairwise([0, *sorted(min(point, len(data)) for point in points), len(data)]):
        decoder.feed(data[begin:end])
        tables.append(decoder.flush())
    tables.append(decoder.finish())
    whole = kbatch.decode(data, on_error="skip")
    assert good_batches([whole]) == good_batches(tables) == good
    ranges: list[tuple[int, int]] = []
    for begin, end in [each for table in tables for each in lost(table)]:
        if ranges and ranges[-1][1] == begin:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((begin, end))
    assert ranges == bad
    # A buffer may end within a batch.
    assert lost(whole) == [(begin, min(end, whole.consumed)) for begin, end in bad if begin < whole.consumed]
    assert whole.consumed == len(data) or bad[-1][0] <= whole.consumed < bad[-1][1] == len(data)


def test_the_search_after_damage_does_not_depend_on_limits_of_the_source() -> None:
    """The size limit of an entry changes with `max_bytes`; the limit on its records does not."""
    engine = DamageEngine(DecodeOptions(on_error="skip"))
    before = engine._max_records
    engine.max_size = 100
    assert engine._max_records == before == MOST_RECORDS
