"""Where a table ends, which batches it decodes, and what its header rows may take."""

from __future__ import annotations

import gzip
from typing import Any

import numpy as np
import pytest
from oracle import build_batch, encode_record
from support import bombs

import kbatch
from kbatch import LimitExceededError, Limits
from kbatch.batches.arena import Arena
from kbatch.batches.codecs import decompress
from kbatch.format import BATCH_DTYPE, HEADER_DTYPE, RECORD_DTYPE, Codec, record_dtype
from kbatch.read import budget, building
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.reader import BatchReader
from kbatch.read.windows import BufferWindows
from kbatch.tuning import FIRST_FRAMED, HEADER_SAMPLE

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def batches(codec: str, counts: list[int], headers: int = 0) -> list[bytes]:
    made, offset = [], 0
    for count in counts:
        made.append(bombs.batch(bombs.record(b"v" * 20, headers) * count, count, codec, offset=offset))
        offset += count
    return made


def table_of(
    data: bytes, max_bytes: int | None, expected: tuple[int, int] | None = None, **options: Any
) -> kbatch.RecordTable:
    windows = BufferWindows(np.frombuffer(data, np.uint8))
    return BatchReader(DecodeOptions(**options)).read(windows, max_bytes=max_bytes, splits=False, expected=expected)


@pytest.mark.parametrize("columns", [None, ("offset",), ("offset", "value")])
@pytest.mark.parametrize("codec", CODECS)
def test_a_table_ends_with_the_batch_by_which_it_has_max_bytes(codec: str, columns: tuple[str, ...] | None) -> None:
    """Its records, batches, and the payloads or stored bytes that its positions point into count."""
    data = batches(codec, [3, 1, 5, 2, 4])
    whole = kbatch.decode(b"".join(data), columns=columns)
    if columns == ("offset",):
        payloads = [0] * len(data)
    elif codec == "none":
        payloads = [len(each) for each in data]
    else:
        payloads = [len(kbatch.decode(each).data) for each in data]
    counts = np.bincount(whole.records["batch"]) if columns is None else np.array([3, 1, 5, 2, 4])
    costs = np.cumsum(counts * whole.records.itemsize + BATCH_DTYPE.itemsize + payloads)
    for number, cost in enumerate(costs.tolist(), start=1):
        for max_bytes, expected in ((cost, number), (cost + 1, min(number + 1, len(data)))):
            table = table_of(b"".join(data), max_bytes, columns=columns)
            assert len(table.batches) == expected
            assert table.consumed == sum(map(len, data[:expected]))


@pytest.mark.parametrize("codec", CODECS)
def test_header_rows_fit_the_limit_to_its_last_byte(codec: str) -> None:
    """The bytes of the caller do not count, only decompressed ones."""
    data = b"".join(batches(codec, [3, 2], headers=50))
    whole = kbatch.decode(data)
    size = whole.records.nbytes + whole.batches.nbytes + (0 if codec == "none" else whole.data.nbytes)
    needed = 250 * HEADER_DTYPE.itemsize
    assert len(kbatch.decode(data, limits=Limits(max_table_bytes=size + needed)).headers) == 250
    table = kbatch.decode(data, limits=Limits(max_table_bytes=size + needed - 1))
    with pytest.raises(LimitExceededError, match=rf"header rows of 5 records take {needed} bytes"):
        _ = table.headers


def expected_end(data: list[bytes], counts: list[tuple[int, int]], limit: int) -> int:
    """Return the number of batches of a table by the rule of the next test."""
    target = limit - limit // 8
    rows = size = 0
    for number, ((count, headers), batch) in enumerate(zip(counts, data, strict=False), start=1):
        rows += count * RECORD_DTYPE.itemsize + BATCH_DTYPE.itemsize + count * headers * HEADER_DTYPE.itemsize
        size += len(batch)
        # The headers are the end of the last record: each takes two bytes.
        if rows + size - 2 * headers >= target - target // 64:
            return number if rows + size <= limit else number - 1
    return len(counts)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("limit", [33_333, 64_000, 100_001])
@pytest.mark.parametrize("most", [20, 60])
def test_a_table_ends_with_the_batch_by_which_its_header_rows_reach_seven_eighths_of_the_limit(
    most: int, limit: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to one part in 64, and before that batch if it exceeds the limit. Steps and threads do not matter."""
    monkeypatch.setattr(budget, "MIN_SPLIT_TABLE", 1)
    random = np.random.default_rng(most)
    counts = [(int(random.integers(1, 4)), int(random.integers(1, most + 1))) for _ in range(150)]
    data = [bombs.batch(bombs.record(b"v" * 7, headers) * count, count) for count, headers in counts]
    windows = BufferWindows(np.frombuffer(b"".join(data), np.uint8))
    reader = BatchReader(DecodeOptions(is_strict=True, threads=threads, thread_bytes=1))
    done = 0
    while done < len(data):
        table = reader.read(windows, max_bytes=limit)
        assert len(table.batches) == expected_end(data[done:], counts[done:], limit)
        assert table.records.nbytes + table.batches.nbytes + table.headers.nbytes <= limit
        done += len(table.batches)


def limit_with_end(size: int) -> int:
    """Return a limit with which a table ends at this size, header rows included, by the rule of the test before."""
    return next(limit for limit in range(size, 2 * size) if (rest := limit - limit // 8) - rest // 64 == size)


def strict_end(data: list[bytes], limit: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of batches of the first table of `limit` bytes."""
    monkeypatch.setattr(budget, "MIN_SPLIT_TABLE", 1)
    windows = BufferWindows(np.frombuffer(b"".join(data), np.uint8))
    return len(BatchReader(DecodeOptions(is_strict=True)).read(windows, max_bytes=limit).batches)


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_size_at_which_header_rows_end_a_table_is_exact(
    count: int, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of its records has no headers, so that all of their bytes count."""
    records = bombs.record(b"v" * 40, 3) * (count - 1) + bombs.record(b"v" * 40)
    data = [bombs.batch(bombs.record(b"v", 2), 1)] + [bombs.batch(records, count)] * 42
    headers = 2 + 3 * (count - 1) * 40
    size = sum(map(len, data[:41])) + (1 + 40 * count) * RECORD_DTYPE.itemsize + 41 * BATCH_DTYPE.itemsize
    limit = limit_with_end(size + headers * HEADER_DTYPE.itemsize + missing)
    assert strict_end(data, limit, monkeypatch) == 41 + missing


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("part", ["value", "header"])
def test_a_large_batch_and_its_header_rows_fit_the_limit_to_its_last_byte(
    part: str, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By it the table goes from below the size at which it ends to the limit."""
    value, headers = (bytes(5000), []) if part == "value" else (b"v", [(b"key", bytes(5000))])
    large = build_batch([encode_record(value=value, headers=headers)])
    data = [bombs.batch(bombs.record(b"v", 3), 1)] * 40 + [large] * 2
    size = sum(map(len, data[:41])) + 41 * (RECORD_DTYPE.itemsize + BATCH_DTYPE.itemsize)
    limit = size + (120 + len(headers)) * HEADER_DTYPE.itemsize - missing
    assert strict_end(data, limit, monkeypatch) == 41 - missing


def test_the_last_of_the_framed_batches_may_be_a_step_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step towards a limit on header rows is one part in 64 of the table."""
    data = [bombs.batch(bombs.record(b"v", 3), 1)] * FIRST_FRAMED
    first = (FIRST_FRAMED - 1) * len(data[0])
    # A table ends an eighth before its size.
    assert strict_end(data, first * HEADER_SAMPLE * 8 // 7, monkeypatch) == FIRST_FRAMED


@pytest.mark.parametrize("extra", [0, 1])
def test_a_batch_that_fills_a_table_to_its_last_byte_is_not_split(extra: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although a table usually ends an eighth before."""
    monkeypatch.setattr(budget, "MIN_SPLIT_TABLE", 1)
    data = bombs.batch(bombs.RECORD * (1000 + extra), 1000 + extra)
    size = 1000 * record_dtype(("offset",)).itemsize + BATCH_DTYPE.itemsize
    tables = list(kbatch.decode_stream([data], columns=("offset",), max_bytes=size))
    assert (len(tables) > 1, sum(map(len, tables))) == (extra == 1, 1000 + extra)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("start", "stop", "is_read"),
    [(None, None, True), (6, None, False), (5, None, True), (None, 3, False), (None, 4, True), (4, 5, True)],
)
def test_a_batch_outside_of_the_requested_offsets_is_not_decoded(
    codec: str, start: int | None, stop: int | None, is_read: bool
) -> None:
    """So its damage is no error. The second of three batches has offsets 3 to 5."""
    data = batches(codec, [3, 3, 3])
    data[1] = data[1][:-1] + bytes([data[1][-1] ^ 1])
    options: dict[str, Any] = {"start_offset": start, "stop_offset": stop}
    if is_read:
        with pytest.raises(kbatch.KbatchError, match="base offset 3"):
            kbatch.decode(b"".join(data), **options)
    else:
        assert len(kbatch.decode(b"".join(data), **options)) == 3


@pytest.mark.parametrize("offset", [0, (1 << 63) - 1])
@pytest.mark.parametrize(("start", "stop"), [(None, None), (0, None), (None, 1 << 63), (None, 1 << 70), (0, 1 << 70)])
def test_every_offset_may_be_requested(offset: int, start: int | None, stop: int | None) -> None:
    """Also beyond the range of an offset."""
    data = bombs.batch(bombs.record(b"v"), 1, offset=offset)
    table = kbatch.decode(data, start_offset=start, stop_offset=stop)
    assert table.records["offset"].tolist() == [offset]


@pytest.mark.parametrize("expected", [(0, 0), (1, 1), (9, 1000), (100_000, 1 << 24)])
@pytest.mark.parametrize("max_bytes", [None, 1500])
@pytest.mark.parametrize("codec", CODECS)
def test_a_table_does_not_depend_on_the_size_that_is_expected_of_it(
    codec: str, max_bytes: int | None, expected: tuple[int, int]
) -> None:
    """It only decides how much memory is reserved first."""
    data = b"".join(batches(codec, [3, 1, 5, 2, 4] * 20, headers=2))
    found, whole = table_of(data, max_bytes, expected), table_of(data, max_bytes)
    assert found.records.tolist() == whole.records.tolist()
    assert found.batches.tolist() == whole.batches.tolist()
    assert found.values() == whole.values()


# -- what a table has


@pytest.mark.parametrize(
    "columns", [("offset",), ("value",), ("offset", "value"), ("key", "timestamp"), ("timestamp",)]
)
@pytest.mark.parametrize("start", [None, 3])
@pytest.mark.parametrize("codec", CODECS)
def test_a_table_has_the_requested_columns_and_only_bytes_that_they_point_into(
    codec: str, start: int | None, columns: tuple[str, ...]
) -> None:
    """Also if offsets decide which records are read. Nothing in it can be changed."""
    data = b"".join(batches(codec, [3, 3, 3]))
    table = kbatch.decode(data, columns=columns, start_offset=start)
    assert table.records.dtype.names == record_dtype(columns).names
    assert len(table) == 9 - (start or 0)
    assert not table.records.flags.writeable
    assert not table.data.flags.writeable
    if {"key", "value"}.isdisjoint(columns):
        assert len(table.data) == 0
    elif "value" in columns:
        assert table.values() == [b"v" * 20] * len(table)


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("junk", [b"", b"\xff" * 30])
@pytest.mark.parametrize("codec", CODECS[1:])
def test_compressed_batches_may_follow_uncompressed_ones_of_a_table(codec: str, junk: bytes, before: int) -> None:
    """The values of both are in its data, wherever in the source the table begins."""
    made = [bombs.batch(bombs.record(b"%03d" % each) * 2, 2, offset=2 * each) for each in range(100)]
    packed = [bombs.batch(bombs.record(b"%03d" % each) * 2, 2, codec, offset=2 * each) for each in range(100, 110)]
    parts = [*made[before:], junk, *packed[:5], made[0], *packed[5:]]
    windows = BufferWindows(np.frombuffer(b"".join([*made[:before], *parts]), np.uint8))
    reader = BatchReader(DecodeOptions(on_error="skip"), position=sum(map(len, made[:before])))
    table = reader.read(windows)
    values = [b"%03d" % each for each in [*range(before, 105), 0, *range(105, 110)] for _ in range(2)]
    assert table.values() == values
    assert [(loss.position, loss.length) for loss in table.losses] == (
        [(sum(map(len, made)), len(junk))] if junk else []
    )


@pytest.mark.parametrize("max_bytes", [None, 3_000_000, 20_000_000])
@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_payload_of_any_ratio_is_decompressed(codec: str, splits: bool, max_bytes: int | None) -> None:
    """Also if it is larger than the memory reserved for the payloads, by the ratio that is usual or that of others."""
    values = [bytes([each]) * (10 if each % 10 else 300_000) for each in range(40)]
    data = b"".join(bombs.batch(bombs.record(value), 1, codec, offset=each) for each, value in enumerate(values))
    windows, found = BufferWindows(np.frombuffer(data, np.uint8)), []
    reader = BatchReader(DecodeOptions())
    while len(found) < len(values):
        found += reader.read(windows, max_bytes=max_bytes, splits=splits).values()
    assert found == values


# -- payloads of an unusual form, which Python decompresses


def two_members(records: bytes, count: int, offset: int = 0) -> bytes:
    """Return a batch of two gzip members."""
    half = len(records) // 2
    payload = gzip.compress(records[:half]) + gzip.compress(records[half:])
    return build_batch(codec="gzip", payload=payload, record_count=count, base_offset=offset)


@pytest.fixture
def granted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The limits on the payloads that are decompressed by Python."""
    limits = []

    def spy(codec: int, payload: memoryview, arena: Arena, limit: int, magic: int) -> int:
        limits.append(limit)
        return decompress(codec, payload, arena, limit, magic)

    monkeypatch.setattr(building, "decompress", spy)
    return limits


@pytest.mark.parametrize("spare", [0, 1, 5000])
def test_an_unusual_payload_gets_the_memory_that_the_rows_leave_it(granted: list[int], spare: int) -> None:
    """Those of the batches before it, and its own."""
    before = bombs.batch(bombs.RECORD * 10, 10)
    data = before + two_members(bombs.RECORD * 50, 50, 10)
    payloads = len(bombs.RECORD) * 60
    needed = 2 * BATCH_DTYPE.itemsize + 60 * RECORD_DTYPE.itemsize + payloads
    table = kbatch.decode(data, limits=Limits(max_table_bytes=needed + spare))
    assert table.records["offset"].tolist() == [0] * 10 + [10] * 50
    assert granted[-1] == len(bombs.RECORD) * 50 + spare
    with pytest.raises(LimitExceededError, match=r"base offset 10: .*max_table_bytes"):
        kbatch.decode(data, limits=Limits(max_table_bytes=needed - 1))


def test_an_unusual_payload_gets_the_memory_of_rows_that_cannot_fit(granted: list[int]) -> None:
    """Its record count is wrong then, which is the error."""
    data = two_members(bombs.RECORD * 50, 1000)
    with pytest.raises(kbatch.InvalidRecordError, match="record count"):
        kbatch.decode(data, limits=Limits(max_table_bytes=20_000))
    assert granted[-1] == 20_000 - BATCH_DTYPE.itemsize


def test_an_unusual_payload_of_a_message_set_gets_the_rest_of_the_table(granted: list[int]) -> None:
    inner = bombs.message(1, b"v") * 10
    half = len(inner) // 2
    data = bombs.message(1, gzip.compress(inner[:half]) + gzip.compress(inner[half:]), Codec.GZIP)
    assert len(kbatch.decode(data, limits=Limits(max_table_bytes=20_000))) == 10
    assert granted[-1] == 20_000 - BATCH_DTYPE.itemsize


@pytest.mark.parametrize("more", [0, 1])
def test_an_unusual_payload_above_the_limit_on_payloads_names_it(granted: list[int], more: int) -> None:
    """Also if the table has only that much memory left."""
    records = bombs.record(b"v" * 20) * 50
    most = len(records) - 1
    table = BATCH_DTYPE.itemsize + 50 * RECORD_DTYPE.itemsize + most + more
    with pytest.raises(LimitExceededError, match="max_decompressed_bytes"):
        kbatch.decode(two_members(records, 50), limits=Limits(max_table_bytes=table, max_decompressed_bytes=most))
    assert granted[-1] == most


def test_a_table_ends_before_an_unusual_payload_that_does_not_fit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MIN_SPLIT_TABLE", 1)
    data = bombs.batch(bombs.record(b"v"), 1) + two_members(bombs.record(bytes(20_000)), 1, 1)
    tables = list(kbatch.decode_stream([data], max_bytes=20_200))
    assert [table.values() for table in tables] == [[b"v"], [bytes(20_000)]]


@pytest.mark.parametrize("junk", [0, 40])
@pytest.mark.parametrize("limit", [50_000, 51_234])
def test_headers_without_records_and_losses_fit_the_limit(
    limit: int, junk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of headers, by which transactions are followed, is not small either."""
    monkeypatch.setattr(budget, "MIN_SPLIT_TABLE", 1)
    unit = bombs.batch(bombs.record(), 1)
    data = (unit * 4 + b"\xff" * junk) * 500
    windows = BufferWindows(np.frombuffer(data, np.uint8))
    reader = BatchReader(DecodeOptions(framing_only=True, on_error="skip"))
    sizes, good, lost = [], 0, 0
    while reader.position < len(data):
        table = reader.read(windows, max_bytes=limit)
        sizes.append(table.batches.nbytes + table.losses.nbytes)
        lost += sum(loss.length for loss in table.losses)
        good += int(np.count_nonzero(table.batches["base_offset"] == 0))
    assert (good, lost) == (2000, junk * 500)
    assert max(sizes) <= limit
    assert min(sizes[:-1]) > limit // 4
