"""The parts of a batch that is larger than a table: how many records each has."""

from __future__ import annotations

from typing import Any

import pytest
from oracle import encode_record
from support.bombs import batch

import kbatch
from kbatch.batches.pooled import PooledRows
from kbatch.format import HEADER_DTYPE, RECORD_DTYPE, record_dtype
from kbatch.read import budget, splitting

# So many headers that their rows exceed a part of the tests many times.
MANY = 500


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MIN_SPLIT_TABLE", 1)


def record(delta: int, headers: int, value: bytes = b"") -> bytes:
    return encode_record(delta, 0, None, value, [(b"", None)] * headers)


def parts(part: int, headers: list[int], after: bytes = b"", step: int = 0, **options: Any) -> list[kbatch.RecordTable]:
    """Return the tables of a batch whose records have these numbers of headers, each with `part` bytes for rows.

    The payload takes the rest of the table, due to the value of the last record. It is compressed to less than an
    eighth of the table, beyond which it would count too; `step` is the difference between offsets.
    """
    first = b"".join(record(i * step, count) for i, count in enumerate(headers[:-1]))
    size = 3 * part - len(first)
    while len(last := record(step * (len(headers) - 1), headers[-1], bytes(size))) > 3 * part - len(first):
        size -= 1
    data = batch(first + last, len(headers), "gzip") + after
    return list(kbatch.decode_stream([data], max_bytes=4 * part, **options))


def offsets(tables: list[kbatch.RecordTable]) -> list[list[int]]:
    return [table.records["offset"].tolist() for table in tables]


@pytest.mark.parametrize("columns", [None, ("offset",), ("offset", "value")])
@pytest.mark.parametrize(
    ("rows", "extra", "count", "expected"),
    [
        (40, 0, 120, [40, 40, 40]),
        (40, 0, 121, [40, 40, 40, 1]),
        (40, 7, 100, [40, 40, 20]),
        (40, 0, 1, [1]),
    ],
)
def test_records_without_headers_fill_each_part_with_their_rows(
    columns: tuple[str, ...] | None, rows: int, extra: int, count: int, expected: list[int]
) -> None:
    size = RECORD_DTYPE.itemsize if columns is None else record_dtype(columns).itemsize
    tables = parts(rows * size + extra, [0] * count, columns=columns)
    assert [len(table) for table in tables] == expected


@pytest.mark.parametrize(
    ("fits", "missing", "expected"),
    [(3, 0, 3), (3, 1, 2), (2, 0, 2), (2, 1, 1), (1, 0, 1), (1, 1, 1)],
)
def test_records_and_their_header_rows_fill_a_part_to_its_last_byte(fits: int, missing: int, expected: int) -> None:
    """Also a part of two records is halved if it is one byte larger; a single record may be larger than a part."""
    unit = RECORD_DTYPE.itemsize + 10 * HEADER_DTYPE.itemsize
    tables = parts(fits * unit - missing, [10] * 12)
    assert [len(table) for table in tables] == [expected] * (12 // expected)
    assert [len(table.headers) for table in tables] == [10 * len(table) for table in tables]


def test_parts_grow_twofold_after_records_with_many_headers() -> None:
    """Up to the rows that fit without headers, so there are not many small parts."""
    tables = parts(16 * RECORD_DTYPE.itemsize, [MANY] + [0] * 40)
    assert [len(table) for table in tables] == [1, 2, 4, 8, 16, 10]


def test_a_part_ends_before_a_record_with_many_headers() -> None:
    tables = parts(8 * RECORD_DTYPE.itemsize, [0] * 9 + [MANY] + [0] * 2)
    counts = [len(table) for table in tables]
    assert sum(counts) == 12
    assert all(
        len(table) == 1
        or table.records.nbytes + len(table.headers) * HEADER_DTYPE.itemsize <= 8 * RECORD_DTYPE.itemsize
        for table in tables
    )


def test_the_check_of_a_batch_takes_the_memory_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def reserved(dtype: Any, capacity: int) -> PooledRows:
        sizes.append(capacity * dtype.itemsize)
        return PooledRows(dtype, capacity)

    monkeypatch.setattr(splitting, "PooledRows", reserved)
    part = 40 * RECORD_DTYPE.itemsize
    parts(part, [0] * 100)
    assert len(sizes) > 1
    assert max(sizes) == part


def test_the_parts_of_a_batch_continue_each_other_and_the_next_batch_follows() -> None:
    after = batch(record(0, 0), 1, offset=100)
    tables = parts(40 * RECORD_DTYPE.itemsize, [0] * 100, after, step=1)
    assert [table.continued for table in tables] == [False, True, True, False]
    assert offsets(tables) == [list(range(40)), list(range(40, 80)), list(range(80, 100)), [100]]
    for table in tables:
        assert table.batches["first_record"].tolist() == [0]
        assert not table.batches.flags.writeable
    assert sum(table.consumed for table in tables) == tables[-1].batches["position"][0] + len(after)


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (80, None, [range(80, 100)]),
        (79, None, [range(79, 80), range(80, 100)]),
        (None, 41, [range(40), range(40, 41)]),
        (99, 100, [range(99, 100)]),
    ],
)
def test_records_outside_of_the_requested_offsets_are_in_no_part(
    start: int | None, stop: int | None, expected: list[range]
) -> None:
    tables = parts(40 * RECORD_DTYPE.itemsize, [0] * 100, step=1, start_offset=start, stop_offset=stop)
    assert [each for each in offsets(tables) if each] == [list(each) for each in expected]
