"""A table's rows -> Arrow columns, for every view.

An Arrow buffer over ``table.data`` keeps that memory alive, so a view may outlive its table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.format import COLUMN_FIELDS, INT64_MAX, TimestampType
from kbatch.kernels.buffers import allocate
from kbatch.kernels.columns import (
    COPY_SLACK,
    BinarySink,
    CapacityError,
    fill_headers,
    fill_records,
)
from kbatch.kernels.extents import Extent, estimate_extent, measure_extent
from kbatch.kernels.slices import gather_by_batch
from kbatch.records.data import TableData, checked_names

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["INT32_REACH", "Reach", "checked_schema", "slot_bytes", "view_batches", "view_columns"]


class Reach(NamedTuple):
    """The maximum of the int32 offsets in a column, and of the int32 positions in a view.

    A buffer over the data starts every ``2**view_shift`` bytes.
    """

    offset: int = 2**31 - 1
    view_shift: int = 30


INT32_REACH = Reach()

# Memory that a column may need besides its slots and contents: padding, a last slot, and what a kernel may overwrite.
_COLUMN_SLACK = 256
_HUGE_PAGE = 2 << 20


def checked_schema(pa: Any, columns: Sequence[str], types: dict[str, Any]) -> pa.Schema:
    """Return the schema of some columns, given all types by name; raise for an unknown or repeated name."""
    return pa.schema([pa.field(name, types[name]) for name in checked_names(columns, types)])


def view_columns(table: TableData, columns: Sequence[str] | None, default: Sequence[str]) -> Sequence[str]:
    """Return the columns of a view: the requested ones, which the table must have, or its columns of `default`."""
    if columns is None:
        return [name for name in default if name not in COLUMN_FIELDS or name in table.columns]
    if isinstance(columns, Iterable) and not isinstance(columns, str):
        columns = list(columns)
        table.require(*columns)
    return columns


def view_batches(
    pa: Any,
    table: TableData,
    schema: pa.Schema,
    *,
    max_rows: int = INT64_MAX,
    max_bytes: int = INT64_MAX,
    null_headers: bool = False,
    raise_overflow: bool = True,
    reach: Reach = INT32_REACH,
    are_kept: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the table as batches of `schema`, each as large as offsets and bounds allow.

    With `are_kept`, the memory of all batches together is limited, otherwise that of each.
    """
    names = schema.names
    # Only the requested fields are measured and count towards the bounds.
    rows = _row_fields(table.records, names)
    topic = (table.topic or "").encode() if "topic" in names else b""
    max_rows = min(max_rows, reach.offset // max(1, len(topic)))
    views = any(pa.types.is_binary_view(schema.field(name).type) for name in ("key", "value") if name in names)
    max_column_bytes = INT64_MAX if views else reach.offset
    view = _View(pa, table, schema, null_headers, raise_overflow, reach.view_shift, are_kept)
    headers = None
    # Large batches are not measured first, because that would read all rows twice. Spark's batches of a few thousand
    # rows are measured: they are still in the cache when their columns are filled.
    if 0 < len(rows) <= max_rows and max_bytes == INT64_MAX:
        likely = estimate_extent(rows, len(table.data))
        if "headers" in names and likely.header_count:
            headers = table.headers
        elif max(likely.key_bytes, likely.value_bytes) <= max_column_bytes:
            try:
                yield view.batch(rows, likely, None)
            except CapacityError:
                pass
            else:
                return
    header_start = start = 0
    while start < len(rows):
        bounds = {"max_rows": max_rows, "max_bytes": max_bytes, "max_column_bytes": max_column_bytes}
        extent = measure_extent(rows, start, **bounds, headers=headers, header_start=header_start)
        if "headers" in names and headers is None and extent.header_count:
            headers = table.headers
            extent = measure_extent(rows, start, **bounds, headers=headers, header_start=header_start)
        yield view.batch(rows[start : extent.stop], extent, headers)
        start = extent.stop
        header_start = extent.header_stop


def _row_fields(records: npt.NDArray[np.void], columns: Sequence[str]) -> npt.NDArray[np.void]:
    """Return a view of the fields that some columns need."""
    needed = {"batch"}.union(*(COLUMN_FIELDS.get(name, ()) for name in columns))
    names = [name for name in records.dtype.names or () if name in needed]
    return records if len(names) == len(records.dtype.names or ()) else records[names]


def slot_bytes(kind: pa.DataType, name: str, topic: str | None = None) -> int:
    """Return the bytes that a row takes in an Arrow column, besides the contents of keys, values and headers."""
    if name == "topic":
        return 5 + len((topic or "").encode())
    if name in ("offset", "timestamp"):
        return 9
    # All sizes include a byte for the validity. Other columns have offsets or numbers of four bytes.
    return {"binary_view": 17, "large_binary": 9}.get(str(kind), 5)


def _raise_overflow(rows: npt.NDArray[np.void], limit: int, source: str | None) -> None:
    timestamps = rows["timestamp"]
    row = rows[np.flatnonzero((timestamps > limit) | (timestamps < -limit))[0]]
    where = f"{source}, " if source else ""
    if "offset" in (rows.dtype.names or ()):
        where += f"offset {int(row['offset'])}: "
    raise OverflowError(
        f"{where}timestamp {int(row['timestamp'])} ms doesn't fit timestamp[us], which ends in the year 294247; "
        "timestamp_overflow='null' (--timestamp-overflow null) makes it null, or leave out the column timestamp"
    )


class _View:
    """Makes the batches of one view of a table."""

    def __init__(
        self,
        pa: Any,
        table: TableData,
        schema: pa.Schema,
        null_headers: bool,
        raise_overflow: bool,
        view_shift: int,
        are_kept: bool,
    ) -> None:
        self._pa = pa
        self._table = table
        self._schema = schema
        self._types = dict(zip(schema.names, schema.types, strict=True))
        self._null_headers = null_headers
        self._raise_overflow = raise_overflow
        self._view_shift = view_shift
        self._scale = 1000 if "timestamp" in self._types and self._types["timestamp"].unit == "us" else 1
        self._constants = _Constants(pa, table, schema.names)
        self._are_kept = are_kept
        self._size = 0
        self._row_size = sum(slot_bytes(kind, name, table.topic) for name, kind in self._types.items())
        self._copies = not any(pa.types.is_binary_view(kind) for kind in schema.types)

    def _check_memory(self, extent: Extent, rows: int) -> None:
        """Check the memory of a batch before it is allocated."""
        size = rows * self._row_size
        if self._copies:
            size += extent.key_bytes + extent.value_bytes + extent.header_key_bytes + extent.header_value_bytes
        if "headers" in self._types:
            pair = self._types["headers"].value_type
            size += extent.header_count * sum(slot_bytes(field.type, field.name) for field in pair)
        self._table._check_memory_of(self._size + size, "Arrow columns")
        if self._are_kept:
            self._size += size

    def _space(self, extent: Extent, rows: int) -> _Space:
        """Return the memory for the columns of a batch, other than headers and constants."""
        size = 0
        for name in ("offset", "timestamp", "key", "value"):
            if name in self._types:
                size += rows * slot_bytes(self._types[name], name) + _COLUMN_SLACK
        if self._copies:
            size += extent.key_bytes * ("key" in self._types) + extent.value_bytes * ("value" in self._types)
        return _Space(size)

    def batch(self, rows: npt.NDArray[np.void], extent: Extent, headers: npt.NDArray[np.void] | None) -> pa.RecordBatch:
        """Return the `rows` of `extent` as a batch; CapacityError if they need more memory than its sizes."""
        pa, table, types, n = self._pa, self._table, self._types, len(rows)
        self._check_memory(extent, n)
        space = self._space(extent, n)
        filled: dict[str, Any] = {}
        columns: dict[str, _Column] = {}
        if "offset" in types:
            columns["offset"] = _Column(pa, space, types["offset"], n, bitmap=False)
            filled["offset"] = columns["offset"].slots.view(np.int64)
        if "timestamp" in types:
            columns["timestamp"] = _Column(pa, space, types["timestamp"], n)
            filled["timestamp"] = columns["timestamp"].slots.view(np.int64)
            filled["timestamp_valid"] = columns["timestamp"].valid
        binary = {
            name: _BinaryColumn(pa, space, types[name], n, nbytes, self._view_shift)
            for name, nbytes in (("key", extent.key_bytes), ("value", extent.value_bytes))
            if name in types
        }
        filled.update({name: column.sink for name, column in binary.items()})
        found = fill_records(rows, table.data, **filled, timestamp_scale=self._scale, first_row=extent.start)
        if found.timestamp_overflows and self._raise_overflow:
            _raise_overflow(table.records[extent.start : extent.stop], INT64_MAX // self._scale, table.source)
        if "headers" in types and headers is None and found.headers:
            raise CapacityError(f"rows {extent.start} to {extent.stop} have headers")
        made = {name: column.array(table.data) for name, column in binary.items()}
        if "offset" in types:
            made["offset"] = columns["offset"].array(0)
        if "timestamp" in types:
            made["timestamp"] = columns["timestamp"].array(found.timestamp_nulls + found.timestamp_overflows)
        if "timestampType" in types:
            made["timestampType"] = self._constants.timestamp_types(rows, extent.start)
        if "headers" in types:
            made["headers"] = _header_lists(
                pa, table, extent, headers, types["headers"], self._null_headers, self._view_shift
            )
        if "topic" in types:
            made["topic"] = self._constants.topic(n)
        if "partition" in types:
            made["partition"] = self._constants.partition(n)
        return pa.RecordBatch.from_arrays([made[name] for name in types], schema=self._schema)


class _Space:
    """Memory for several columns, which is one block if huge pages can serve it.

    An Arrow table of 10 million small records takes 500 page faults, and 83,000 with a block for each column.
    """

    def __init__(self, size: int) -> None:
        self._rest = _memory(size if size >= _HUGE_PAGE else 0, np.uint8)

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return uninitialized memory, from the block as long as it has enough."""
        # Arrow recommends buffers that begin at multiples of 64 bytes.
        end = -(-nbytes // 64) * 64
        if end > len(self._rest):
            return _memory(nbytes, np.uint8)
        taken, self._rest = self._rest[:nbytes], self._rest[end:]
        return taken


class _Column:
    """Memory for the slots of a column, followed by its validity bitmap in the same block."""

    def __init__(
        self,
        pa: Any,
        space: _Space,
        kind: Any,
        rows: int,
        *,
        width: int = 8,
        slots: int | None = None,
        bitmap: bool = True,
    ) -> None:
        self._pa = pa
        self._kind = kind
        self._rows = rows
        end = (rows if slots is None else slots) * width
        after = -(-end // 64) * 64
        memory = space.take(after + (rows + 7) // 8 if bitmap else end)
        self.slots = memory[:end]
        self.valid = memory[after:] if bitmap else None

    def array(self, nulls: int, *content: pa.Buffer) -> pa.Array:
        pa = self._pa
        valid = pa.py_buffer(self.valid) if nulls else None
        return pa.Array.from_buffers(self._kind, self._rows, [valid, pa.py_buffer(self.slots), *content], nulls)


class _BinaryColumn:
    """Memory for one binary column, and the Arrow array over it once a kernel has filled it."""

    def __init__(self, pa: Any, space: _Space, kind: Any, rows: int, nbytes: int, view_shift: int) -> None:
        self._pa = pa
        views = pa.types.is_binary_view(kind)
        width = 16 if views else 8 if pa.types.is_large_binary(kind) else 4
        self._column = _Column(pa, space, kind, rows, width=width, slots=rows if views else rows + 1)
        self._content = None if views else space.take(nbytes + COPY_SLACK)
        self.sink = BinarySink(rows, width, self._column.slots, self._content, self._column.valid, view_shift)
        self._view_shift = view_shift

    def array(self, data: npt.NDArray[np.uint8]) -> pa.Array:
        pa = self._pa
        if self._content is not None:
            content = [pa.py_buffer(self._content[: self.sink.nbytes])]
        else:
            # Each buffer reaches to the end of the data, so that a value may extend beyond the start of the next one.
            content = [pa.py_buffer(data[start:]) for start in range(0, max(1, len(data)), 1 << self._view_shift)]
        return self._column.array(self.sink.nulls, *content)


def _header_lists(
    pa: Any,
    table: TableData,
    extent: Extent,
    headers: npt.NDArray[np.void] | None,
    kind: Any,
    null_headers: bool,
    view_shift: int,
) -> pa.Array:
    n = extent.stop - extent.start
    if not extent.header_count or headers is None:
        if null_headers:
            return pa.nulls(n, kind)
        # Untouched pages of zeroed memory are never allocated.
        pairs = pa.nulls(0, kind.value_type)
        return pa.Array.from_buffers(kind, n, [None, pa.py_buffer(np.zeros(n + 1, np.int32))], 0, children=[pairs])
    rows = headers[extent.header_start : extent.header_stop]
    key_kind, value_kind = kind.value_type.field("key").type, kind.value_type.field("value").type
    text = pa.types.is_string(key_kind)
    space = _Space(0)
    key = _BinaryColumn(pa, space, pa.binary() if text else key_kind, len(rows), extent.header_key_bytes, view_shift)
    value = _BinaryColumn(pa, space, value_kind, len(rows), extent.header_value_bytes, view_shift)
    offsets = _memory(n + 1, np.int32)
    valid = _memory((n + 7) // 8, np.uint8) if null_headers else None
    fill_headers(
        rows,
        table.data,
        extent.start,
        offsets,
        valid=valid,
        key=key.sink,
        value=value.sink,
        first_row=extent.header_start,
    )
    key_array = key.array(table.data)
    pairs = pa.Array.from_buffers(
        kind.value_type,
        len(rows),
        [None],
        0,
        children=[_java_text(pa, key_array) if text else key_array, value.array(table.data)],
    )
    return pa.Array.from_buffers(
        kind, n, [None if valid is None else pa.py_buffer(valid), pa.py_buffer(offsets)], children=[pairs]
    )


# Java replaces an encoded surrogate, also a truncated one, as one bad sequence; Python replaces each of its bytes.
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def _java_text(pa: Any, keys: pa.Array) -> pa.Array:
    """Return bytes as strings, with U+FFFD where Java's decoder puts it (HDR-R4)."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [_SURROGATE.sub("\ufffd".encode(), key).decode("utf-8", "replace") for key in keys.to_pylist()]
        return pa.array(texts, pa.string())


class _Constants:
    """The columns with one value for the whole table: made once, with the number of rows of the largest batch."""

    def __init__(self, pa: Any, table: TableData, names: Sequence[str]) -> None:
        self._pa = pa
        self._topic = table.topic
        self._partition = table.partition
        self._made: dict[str, pa.Array] = {}
        self._type_of_batch = TimestampType.of(table._batches) if "timestampType" in names else np.empty(0, np.int32)
        of_batch = self._type_of_batch
        self._one_type = int(of_batch[0]) if len(of_batch) and (of_batch == of_batch[0]).all() else None

    def _slice(self, name: str, n: int, make: Callable[[int], pa.Array]) -> pa.Array:
        made = self._made.get(name)
        if made is None or len(made) < n:
            made = self._made[name] = make(n)
        return made if len(made) == n else made.slice(0, n)

    def topic(self, n: int) -> pa.Array:
        return self._slice("topic", n, self._text)

    def partition(self, n: int) -> pa.Array:
        return self._slice("partition", n, lambda n: self._number(self._partition, n))

    def timestamp_types(self, rows: npt.NDArray[np.void], first_row: int) -> pa.Array:
        n = len(rows)
        if self._one_type is not None:
            return self._slice("timestampType", n, lambda n: self._number(self._one_type, n))
        out = _memory(n, np.int32)
        gather_by_batch(rows, self._type_of_batch, out, first_row=first_row)
        return self._pa.Array.from_buffers(self._pa.int32(), n, [None, self._pa.py_buffer(out)], 0)

    def _number(self, number: int | None, n: int) -> pa.Array:
        pa = self._pa
        if number is None:
            return pa.nulls(n, pa.int32())
        out = _memory(n, np.int32)
        out.fill(number)
        return pa.Array.from_buffers(pa.int32(), n, [None, pa.py_buffer(out)], 0)

    def _text(self, n: int) -> pa.Array:
        pa = self._pa
        if self._topic is None:
            return pa.nulls(n, pa.string())
        encoded = np.frombuffer(self._topic.encode(), np.uint8)
        offsets = _memory(n + 1, np.int32)
        np.multiply(np.arange(n + 1, dtype=np.int32), len(encoded), out=offsets)
        content = _memory(n * len(encoded), np.uint8)
        content.reshape(n, len(encoded))[:] = encoded
        return pa.Array.from_buffers(pa.string(), n, [None, pa.py_buffer(offsets), pa.py_buffer(content)], 0)


def _memory(length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialized array from the free list: allocating a new page costs more than filling it."""
    nbytes = length * np.dtype(dtype).itemsize
    return np.frombuffer(memoryview(allocate(max(1, nbytes))), np.uint8)[:nbytes].view(dtype)
