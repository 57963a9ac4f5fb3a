"""Where a table ends, which batches it decodes, and what its header rows may take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import bombs

import kbatch
from kbatch import LimitExceededError, Limits
from kbatch.format import BATCH_DTYPE, HEADER_DTYPE, RECORD_DTYPE
from kbatch.read import budget
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.reader import BatchReader
from kbatch.read.windows import BufferWindows

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
