"""Columns of records -> planned batches -> bytes.

The kernel measures all records and cuts them into batches; the memory is allocated once, of exactly that size, and
filled. Each batch's checksum is computed while the batch is in cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kbatch.batches.codecs import level_of, own_codecs
from kbatch.format import (
    ATTRIBUTE_CODEC,
    BATCH_DTYPE,
    BATCH_HEADER_SIZE,
    INT32_MAX,
    INT64_MAX,
    MESSAGE_HEADER_SIZES,
    NO_TIMESTAMP,
    Codec,
)
from kbatch.kernels import encode as _kernel
from kbatch.kernels.buffers import allocate
from kbatch.kernels.growing import Growing
from kbatch.kernels.sizes import Plan, cut_batches
from kbatch.kernels.source import Column, RecordColumns
from kbatch.write.batch_layout import BatchLayout, BatchRows, check_range, now
from kbatch.write.record_columns import byte_column, check_length, header_column, milliseconds, offsets_array

__all__ = [
    "compose",
    "compose_view",
    "frame_payload",
    "new_memory",
    "overheads",
    "plan_batches",
    "raise_fault",
    "record_columns",
]

# Messages for the faults of the kernel (`WriteFault`).
_FAULTS = {
    1: "its key, value or headers reach outside of their buffer: the column is not valid",
    2: "a header has no key; only its value may be null",
    3: "timestamp is {found}; it must not be negative, except for -1, which means no timestamp",
    4: "offset is {found}; offsets must be strictly increasing",
    5: "offset is {found} above the first of its batch, more than an int32 holds; give batch_size= or max_records=",
    6: "the record takes at least {found} bytes; the maximum is 2147483647",
    7: "the batch would take {found} bytes; the maximum is 2147483647; give batch_size= or max_records=",
    8: "its columns were changed while they were encoded",
}


def raise_fault(fault: int, row: int, found: int = 0) -> None:
    """Raise ValueError for a fault of record `row` that the kernel returned, if any."""
    if fault:
        raise ValueError(f"record {row}: " + _FAULTS[fault].format(found=found))


def record_columns(
    values: Any,
    *,
    keys: Any,
    timestamps: Any,
    headers: Any,
    offsets: Any,
    next_offset: int,
    layout: BatchLayout,
    append_time: int | None,
) -> RecordColumns:
    """Return the columns of records; measuring completes the checks. See `encode` for the parameters.

    Without `offsets` they are consecutive from `next_offset` on; otherwise they must not be below it.
    """
    key_column: Column | None
    if values is None:
        if keys is None:
            raise TypeError("values=None needs keys, which determine the number of records")
        value_column = Column()
        value_column.add_nulls((key_column := byte_column(keys, "keys")).length)
    else:
        value_column = byte_column(values, "values")
        key_column = None if keys is None else byte_column(keys, "keys")
        if key_column is not None:
            check_length("keys", key_column.length, value_column.length)
    count = value_column.length
    if layout.magic < 2 and headers is not None:
        raise ValueError(f"headers need magic 2, got magic {layout.magic}")
    columns: dict[str, Any] = {}
    header_columns = header_column(headers, count)
    if header_columns is not None:
        columns = header_columns._asdict()
    if layout.magic == 0:
        if timestamps is not None:
            raise ValueError("magic 0 has no timestamps")
        times, timestamp = None, NO_TIMESTAMP
    elif layout.magic == 1 and append_time is not None:
        times, timestamp = None, append_time
    elif timestamps is None:
        times, timestamp = None, now() if append_time is None else append_time
    else:
        times, timestamp = milliseconds(timestamps, count)
        check_range("timestamps", timestamp, -1, INT64_MAX)
    check_range("base_offset", next_offset, 0, INT64_MAX)
    # The arithmetic of NumPy's integers overflows.
    next_offset = int(next_offset)
    if offsets is not None:
        columns["offsets"] = array = offsets_array(offsets, count)
        if count and array[0] < next_offset:
            raise ValueError(f"offset of the first record must be at least {next_offset}, got {array[0]}")
    elif count > INT64_MAX - next_offset + 1:
        raise ValueError(f"offsets must be below 2**63, got {count} from {next_offset} on")
    return RecordColumns(
        value_column, key_column, first_offset=next_offset, timestamps=times, timestamp=timestamp, **columns
    )


def plan_batches(records: RecordColumns, plan: Plan, open_batch: BatchRows | None = None) -> BatchRows:
    """Cut records into batches, continuing `open_batch` if given; sizes are before compression."""
    batches = np.zeros(1 if open_batch is None else 2, BATCH_DTYPE)
    row = used = 0
    if open_batch is not None:
        batches[0] = open_batch
        batches["first_record"] = 0
        used = 1
    while True:
        used, row, fault, found = cut_batches(records, plan, row, batches, used)
        raise_fault(fault, row, found)
        if row == records.count:
            return batches[:used]
        # The number extrapolated from the records so far, plus a margin, and at least twice the previous number.
        expected = used * records.count // max(row, 1)
        grown = np.zeros(min(max(2 * used, expected + expected // 16 + 8), used + records.count - row), BATCH_DTYPE)
        grown[:used] = batches[:used]
        batches = grown


def overheads(batches: BatchRows) -> npt.NDArray[np.int64]:
    """Return the bytes of each batch that precede its payload; 0 for uncompressed messages, framed one by one."""
    # A compressed set is the value of a message: its header, no key, and the value's length.
    legacy = np.take(np.array(MESSAGE_HEADER_SIZES) + 8, np.minimum(batches["magic"], 1))
    legacy[batches["attributes"] & ATTRIBUTE_CODEC == 0] = 0
    return np.where(batches["magic"] == 2, BATCH_HEADER_SIZE, legacy)


def compose(records: RecordColumns | None, batches: BatchRows, level: int | None) -> bytes:
    """Write planned batches, compressed if they have a codec; set their size and position."""
    made = Growing()
    size = _kernel.max_encoded_size(batches)
    made.reserve(size)
    room = made.spare(size)
    assert room is not None
    with room, room[: fill(records, batches, level, room)] as written:
        made.append(written, 0)
    return made.take()


def new_memory(size: int) -> memoryview:
    """Return memory from the pool of buffers."""
    return memoryview(allocate(size))


def compose_view(
    records: RecordColumns | None,
    batches: BatchRows,
    level: int | None,
    memory: Callable[[int], memoryview] = new_memory,
) -> memoryview:
    """Do the same as `compose` in memory from `memory`, which is called with the maximum size."""
    out = memory(_kernel.max_encoded_size(batches))
    return out[: fill(records, batches, level, out)]


def fill(records: RecordColumns | None, batches: BatchRows, level: int | None, out: memoryview) -> int:
    """Write complete batches to memory; return the bytes written (see `kbatch.kernels.encode.write`)."""
    levels = [level_of(codec, level) for codec in Codec]
    used, row, fault, found = _kernel.write(records, batches, own_codecs(), levels, out)
    raise_fault(fault, row, found)
    return used


def frame_payload(batch: BatchRows, payload: bytes | bytearray | memoryview) -> memoryview:
    """Return the batch that holds a payload; `batch`, of one row, gets its size, position and checksum."""
    before = int(overheads(batch)[0])
    with memoryview(payload) as stored:
        batch["size"] = size = before + len(stored)
        if size > INT32_MAX:
            raise_fault(7, 0, size)
        out = new_memory(size)[:size]
        out[before:] = stored
    _kernel.write_headers(batch, out)
    return out
