"""Kernels that fill columns: rows outside the data, outputs that are too short, and size estimates."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from view_records import BINARY, RECORDS, Record, encode, expected, make

import kbatch
from kbatch.format import HEADER_DTYPE, RECORD_DTYPE
from kbatch.kernels.columns import (
    COPY_SLACK,
    BinarySink,
    CapacityError,
    fill_headers,
    fill_records,
)
from kbatch.kernels.extents import estimate_extent, measure_extent
from kbatch.kernels.slices import gather_fixed, header_keys, header_values
from kbatch.records import arrow
from kbatch.records.kafka_columns import spark_batches


@pytest.mark.parametrize("column", ["key", "value"])
@pytest.mark.parametrize("binary", BINARY)
@pytest.mark.parametrize(
    ("position", "length"),
    [(-1, 1), (0, 101), (100, 1), (101, 0), (2**63 - 1, 1), (2**63 - 1, 2**31 - 1), (-(2**63), 5), (90, 11), (-5, 20)],
)
def test_rows_outside_the_data_raise(column: str, binary: arrow.Binary, position: int, length: int) -> None:
    """COL-R1, COL-R8: the kernel returns a status, which becomes an exception; it never crashes."""
    records = np.zeros(300, RECORD_DTYPE)
    records[f"{column}_pos"][260] = position
    records[f"{column}_len"][260] = length
    table = kbatch.RecordTable(records, kbatch.decode(encode(RECORDS)).batches, np.zeros(100, np.uint8))
    message = rf"record row 260 .offset 0.: its {column} is {length} bytes at position {position}, outside .* 100 bytes"
    with pytest.raises(IndexError, match=message):
        arrow.to_arrow(table, binary=binary)
    with pytest.raises(IndexError, match=message):
        list(spark_batches(table))
    with pytest.raises(IndexError, match=message):
        table.keys() if column == "key" else table.values()


def test_fixed_values_outside_the_data_raise() -> None:
    records = np.zeros(3, RECORD_DTYPE)
    records["value_len"] = 8
    records["value_pos"] = [0, 92, 93]
    table = kbatch.RecordTable(records, kbatch.decode(b"").batches, np.zeros(100, np.uint8))
    with pytest.raises(IndexError, match=r"record row 2 .offset 0.: its value is 8 bytes at position 93"):
        table.values_as("i8")
    assert table[:2].values_as("i8").tolist() == [0, 0]


def test_values_at_the_end_of_the_data_are_copied() -> None:
    """COL-R9: copies never read past the end, and views do not read 12 bytes if fewer remain."""
    data = (np.arange(1, 301) % 251).astype(np.uint8)
    for length in range(301):
        records = np.zeros(2, RECORD_DTYPE)
        records["value_pos"] = 300 - length
        records["key_pos"] = [0, 300 - length]
        records["value_len"] = length
        records["key_len"] = [-1, length]
        table = kbatch.RecordTable(records, kbatch.decode(encode(RECORDS)).batches, data)
        tail = data[300 - length :].tobytes()
        for binary in BINARY:
            made = arrow.to_arrow(table, binary=binary, columns=["key", "value"])
            assert made["value"].to_pylist() == [tail, tail]
            assert made["key"].to_pylist() == [None, tail]


@pytest.mark.parametrize("binary", BINARY)
def test_values_of_any_length_do_not_overwrite_their_neighbours(binary: arrow.Binary) -> None:
    """A copy may write past the end of its value, where the next value is written afterwards."""
    content = np.random.default_rng(1).integers(0, 256, 600, np.uint8).tobytes()
    lengths = [-1, *range(36), *range(60, 68), *range(124, 132), *range(252, 260), 511]
    order = np.random.default_rng(2).permutation(np.repeat(lengths, 7)).tolist()
    records = [
        Record(i, None if n < 0 else content[i % 80 :][:n], None if n % 5 == 3 else content[: 520 - n])
        for i, n in enumerate(order)
    ]
    made = arrow.to_arrow(make(records, size=len(records)), binary=binary, columns=["key", "value"])
    made.validate(full=True)
    assert made["key"].to_pylist() == [r.key for r in records]
    assert made["value"].to_pylist() == [r.value for r in records]


def test_a_row_of_a_missing_batch_raises() -> None:
    table = make(attributes=(0, 8))
    records = table.records.copy()
    records["batch"][3] = 99
    with pytest.raises(IndexError, match=r"record row 3 .offset 9.: its batch is 99, the table has 8 batches"):
        arrow.to_arrow(kbatch.RecordTable(records, table.batches, table.data))


def test_headers_out_of_order_or_outside_raise() -> None:
    data = np.zeros(10, np.uint8)
    records = np.zeros(4, RECORD_DTYPE)
    headers = np.zeros(2, HEADER_DTYPE)
    for numbers in ((2, 1), (-1, 0), (0, 4)):
        headers["record"] = numbers
        with pytest.raises(IndexError, match=r"header row . belongs to record"):
            measure_extent(records, headers=headers)
    headers["record"] = (1, 3)
    assert measure_extent(records, headers=headers).header_count == 2

    def sink() -> BinarySink:
        return BinarySink(2, 4, np.zeros(12, np.uint8), np.zeros(COPY_SLACK, np.uint8))

    offsets = np.zeros(5, np.int32)
    fill_headers(headers, data, 0, offsets, key=sink(), value=sink())
    assert offsets.tolist() == [0, 0, 1, 1, 2]
    headers["record"] = (3, 1)
    with pytest.raises(IndexError, match=r"header row 1 belongs to record 1"):
        fill_headers(headers, data, 0, offsets, key=sink(), value=sink())
    headers["record"] = (1, 3)
    headers["value_pos"][1] = 11
    with pytest.raises(IndexError, match=r"header row 1 .of record row 3.: its value is 0 bytes at position 11"):
        fill_headers(headers, data, 0, offsets, key=sink(), value=sink())


def test_rows_that_grow_after_measuring_raise() -> None:
    records = np.zeros(4, RECORD_DTYPE)
    records["value_len"] = 5
    sink = BinarySink(4, 4, np.zeros(20, np.uint8), np.zeros(20 + COPY_SLACK, np.uint8))
    records["value_len"][3] = 6
    with pytest.raises(CapacityError, match=r"record row 3 .offset 0.: its value was changed"):
        fill_records(records, np.zeros(10, np.uint8), value=sink)


def test_outputs_that_are_too_short_raise() -> None:
    records = np.zeros(9, RECORD_DTYPE)
    data = np.zeros(1, np.uint8)
    slack = np.zeros(COPY_SLACK, np.uint8)
    with pytest.raises(ValueError, match="too short for 9 rows"):
        fill_records(records, data, offset=np.zeros(8, np.int64))
    with pytest.raises(ValueError, match="too short for 9 rows"):
        fill_records(records, data, timestamp=np.zeros(9, np.int64), timestamp_valid=np.zeros(1, np.uint8))
    with pytest.raises(ValueError, match="too short for 9 rows"):
        fill_records(records, data, key=BinarySink(8, 4, np.zeros(36, np.uint8), slack))
    with pytest.raises(ValueError, match="slots has 39 bytes"):
        BinarySink(9, 4, np.zeros(39, np.uint8), slack)
    with pytest.raises(ValueError, match="content must have"):
        BinarySink(9, 8, np.zeros(80, np.uint8), slack[1:])
    with pytest.raises(ValueError, match="valid has 1 bytes"):
        BinarySink(9, 16, np.zeros(144, np.uint8), valid=np.zeros(1, np.uint8))
    with pytest.raises(ValueError, match="too short"):
        gather_fixed(records, data, 8, np.zeros(71, np.uint8))
    with pytest.raises(ValueError, match="fields of RECORD_DTYPE"):
        measure_extent(np.zeros(9, HEADER_DTYPE))


# --- one pass with an estimated size ---


def numbered(rows: int, lengths: np.ndarray) -> kbatch.RecordTable:
    """Return rows without keys; each value is a prefix, of the given length, of the same 5000 bytes."""
    records = np.zeros(rows, RECORD_DTYPE)
    records["offset"] = np.arange(rows)
    records["key_len"] = -1
    records["value_len"] = lengths
    return kbatch.RecordTable(records, kbatch.decode(encode(RECORDS)).batches, np.arange(5000).astype(np.uint8))


def check_numbered(table: kbatch.RecordTable) -> pa.Table:
    made = arrow.to_arrow(table, columns=["offset", "key", "value"])
    made.validate(full=True)
    content = table.data.tobytes()
    lengths = table.records["value_len"].tolist()
    assert made["value"].to_pylist() == [None if n < 0 else content[:n] for n in lengths]
    assert made["key"].null_count == len(table)
    assert made["offset"].to_numpy().tolist() == table.records["offset"].tolist()
    return made


def test_an_estimate_is_close() -> None:
    rng = np.random.default_rng(3)
    for rows in (0, 1, 65, 16_384, 16_385, 100_000):
        lengths = rng.integers(-1, 200, rows)
        found = estimate_extent(numbered(rows, lengths).records, 10**9)
        total = int(np.maximum(lengths, 0).sum())
        assert (found.start, found.stop, found.key_bytes) == (0, rows, 0 if rows <= 16_384 else 4096)
        assert total <= found.value_bytes <= 1.2 * total + 4096
        if rows <= 16_384:
            assert found.value_bytes == total


@pytest.mark.parametrize("place", [64, 5_000, 30_000, -1])
def test_a_low_estimate_is_corrected(place: int) -> None:
    """A long value in a row that the estimate did not sample needs more memory than was reserved."""
    lengths = np.full(30_100, 3)
    lengths[place - 20 if place < 0 else place :][:20] = 5000
    table = numbered(30_100, lengths)
    assert estimate_extent(table.records, 10**9).value_bytes < int(lengths.sum())
    assert check_numbered(table)["value"].num_chunks == 1


def test_an_estimate_is_bounded_by_the_size_of_the_data() -> None:
    """A hostile table may have long values exactly in the sampled rows."""
    lengths = np.zeros(30_100, np.int64)
    lengths[4096:4160] = 5000
    table = numbered(30_100, lengths)
    found = estimate_extent(table.records, len(table.data))
    assert (found.key_bytes, found.value_bytes) == (4096, 5000)
    assert check_numbered(table)["value"].num_chunks == 1


def test_headers_outside_the_sampled_rows_are_returned() -> None:
    records = [Record(i, b"k", b"v" * (i % 3)) for i in range(20_000)]
    records[5_000].headers = ((b"h", b"1"), (b"h", None))
    table = make(records, size=20_000)
    assert estimate_extent(table.records, 10**9).header_count == 0
    made = arrow.to_arrow(table)
    made.validate(full=True)
    assert made.slice(4_999, 3).to_pylist() == expected(records[4_999:5_002])
    assert made["value"].to_pylist() == [r.value for r in records]
    assert list(arrow.to_pandas(table)["headers"]) == [r.headers for r in records]


@pytest.mark.parametrize("rows", [1, 8, 9, 15, 16, 17, 33, 1000])
def test_only_columns_with_nulls_have_a_bitmap(rows: int) -> None:
    """The first null may be in any row; a column without nulls has no bitmap."""
    made = check_numbered(numbered(rows, np.full(rows, 2)))
    assert made["value"].chunk(0).buffers()[0] is None
    for row in {0, rows // 2, rows - 1}:
        lengths = np.full(rows, 2)
        lengths[row] = -1
        column = check_numbered(numbered(rows, lengths))["value"].chunk(0)
        assert column.null_count == 1
        assert column.buffers()[0] is not None
        table = numbered(rows, lengths)
        records = table.records.copy()
        records["timestamp"][row] = -1
        table = kbatch.RecordTable(records, table.batches, table.data)
        times = arrow.to_arrow(table, columns=["timestamp"])["timestamp"]
        assert times.is_null().to_pylist() == (np.arange(rows) == row).tolist()
        assert times.null_count == 1


def test_a_sink_counts_rows_and_bytes() -> None:
    records = np.zeros(40, RECORD_DTYPE)
    records["key_len"] = np.arange(40) % 4 - 1
    records["timestamp"] = [-1, 2**62] * 20
    records["header_count"][7] = 3
    for width in (4, 8, 16):
        content = None if width == 16 else np.zeros(30 + COPY_SLACK, np.uint8)
        sink = BinarySink(40, width, np.zeros(41 * 16, np.uint8), content, np.zeros(5, np.uint8))
        times = np.zeros(40, np.int64)
        found = fill_records(records, np.zeros(2, np.uint8), key=sink, timestamp=times, timestamp_scale=1000)
        assert (sink.nulls, sink.nbytes) == (10, 0 if width == 16 else 30)
        assert found == (20, 20, 3)
        assert not times.any()


def test_header_rows_outside_the_data_raise_in_lists_of_headers() -> None:
    data = np.frombuffer(b"abcab", np.uint8)
    headers = np.zeros(4, HEADER_DTYPE)
    headers["record"] = [1, 1, 4, 4]
    headers["key_pos"] = [0, 2, 3, 2]
    headers["key_len"] = [2, 1, 2, 1]
    headers["value_len"] = [-1, 0, 5, 1]
    headers["value_pos"] = [99, 5, 0, 4]
    assert header_keys(headers, data) == [b"ab", b"c", b"ab", b"c"]
    assert header_values(headers, data) == [None, b"", b"abcab", b"b"]
    assert header_keys(headers[:0], data) == header_values(headers[:0], data) == []
    for gather, field_name, value, what in (
        (header_keys, "key_pos", -1, "key"),
        (header_values, "value_pos", 6, "value"),
        (header_keys, "key_len", 4, "key"),
    ):
        bad = headers.copy()
        bad[field_name][3] = value
        with pytest.raises(IndexError, match=rf"header row 3 .of record row 4.: its {what} is . bytes at position"):
            gather(bad, data)
