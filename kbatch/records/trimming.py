"""Tables without the bytes and batches that their records do not refer to."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kbatch.format import HEADER_DTYPE, record_dtype
from kbatch.kernels.columns import COPY_SLACK, BinarySink, fill_records
from kbatch.kernels.extents import measure_extent
from kbatch.records.data import TableData

__all__ = ["TableDataT", "compacted", "pays", "trimmed_batches", "trimmed_bytes"]

# A table is copied without the bytes that its records do not refer to if the copy, with its rows, takes at most this
# part of the bytes that are released, and if these have a size that matters.
TRIM_RATIO = 4
TRIM_MIN_BYTES = 64 << 10

TableDataT = TypeVar("TableDataT", bound=TableData)


def pays(*tables: TableData) -> bool:
    """Whether it pays to trim tables of the same `data`: it copies little and releases much."""
    data = len(tables[0].data)
    if data < TRIM_MIN_BYTES:
        return False
    size = sum(len(table) * table.records.itemsize for table in tables)
    for table in tables:
        # The rows are read only if they are few for the bytes.
        if size * TRIM_RATIO <= data:
            extent = measure_extent(table.records)
            size += extent.key_bytes + extent.value_bytes + extent.header_count * HEADER_DTYPE.itemsize
    # The headers are parsed only if the rest, with their rows, is small.
    if size * TRIM_RATIO > data or any(table._header_memory() < size for table in tables):
        return False
    size += sum(int(_header_lengths(table).sum(dtype=np.int64)) for table in tables)
    return size * TRIM_RATIO <= data


def compacted(table: TableDataT) -> TableDataT:
    """Return a table with only the bytes and batches that its records refer to; see `kbatch.RecordTable.compact`."""
    return trimmed_bytes(trimmed_batches(table))


def trimmed_bytes(table: TableDataT) -> TableDataT:
    """Return a table with only the bytes that its records refer to, as a copy."""
    rows = table.records
    names = rows.dtype.names or ()
    lengths = {name: rows[f"{name}_len"] for name in ("key", "value") if f"{name}_len" in names}
    if "header_count" in names:
        lengths["headers"] = _header_lengths(table)
    sizes = {name: int(each.sum(dtype=np.int64, where=each > 0)) for name, each in lengths.items()}
    total = sum(sizes.values())
    table._check_memory_of(total + rows.nbytes, "copied records")
    records = rows.copy()
    data = np.empty(total + COPY_SLACK, np.uint8)
    start = 0
    for name, size in sizes.items():
        # The slack of a column is the beginning of the next one, which is written later.
        content = data[start : start + size + COPY_SLACK]
        records[f"{name}_pos"] = _copy_slices(rows[f"{name}_pos"], lengths[name], table.data, content)
        records[f"{name}_pos"] += start
        start += size
    data = data[:total]
    for array in (records, data):
        array.flags.writeable = False
    return table._with(records=records, data=data)


def trimmed_batches(table: TableDataT) -> TableDataT:
    """Return a table with only the batches that its records refer to; the bytes are shared."""
    table._check_memory_of(table.records.nbytes, "copied rows")
    records = table.records.copy()
    used, numbers = np.unique(records["batch"], return_inverse=True)
    records["batch"] = numbers
    batches = table._batches[used]
    batches["first_record"] = np.searchsorted(records["batch"], np.arange(len(used)))
    for array in (records, batches):
        array.flags.writeable = False
    return table._with(
        records=records,
        batches=batches,
        # The batch that began in an earlier table is the first one.
        continued=table.continued and len(used) > 0 and used[0] == 0,
        derived=False,
    )


def _header_lengths(table: TableData) -> npt.NDArray[np.int32]:
    """Return the number of bytes of each record's headers, as they are stored."""
    rows = table.records
    lengths = np.zeros(len(rows), np.int32)
    if "header_count" not in (rows.dtype.names or ()) or not measure_extent(rows).header_count:
        return lengths
    headers = table.headers
    some = np.flatnonzero(rows["header_count"] > 0)
    last = np.cumsum(rows["header_count"][some], dtype=np.int64) - 1
    # A null value has the position after its length.
    ends = headers["value_pos"][last] + np.maximum(headers["value_len"][last], 0)
    lengths[some] = ends - rows["headers_pos"][some]
    return lengths


def _copy_slices(
    positions: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    data: npt.NDArray[np.uint8],
    content: npt.NDArray[np.uint8],
) -> npt.NDArray[np.int64]:
    """Copy slices of `data` to `content`, one after the other, and return where each begins."""
    rows = np.empty(len(positions), record_dtype(("value",)))
    rows["value_pos"], rows["value_len"] = positions, lengths
    starts = np.empty(len(rows) + 1, np.int64)
    fill_records(rows, data, value=BinarySink(len(rows), 8, starts.view(np.uint8), content))
    return starts[:-1]
