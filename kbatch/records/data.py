"""The data of a table: three arrays of rows, and the bytes that their positions point into."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.batches.pooled import PooledRows
from kbatch.errors import InvalidRecordError, LimitExceededError, MissingColumnError
from kbatch.escaping import counted
from kbatch.format import (
    BATCH_DTYPE,
    COLUMN_FIELDS,
    COLUMNS,
    HEADER_DTYPE,
    INT64_MAX,
    RECORD_DTYPE,
    VIEW_COLUMNS,
    record_dtype,
)
from kbatch.kernels import decode as _kernel
from kbatch.kernels.extents import measure_extent
from kbatch.kernels.slices import record_keys, record_values
from kbatch.records.loss_list import Loss, LossList

__all__ = ["Rows", "TableData", "TableMemory", "checked_columns", "checked_names", "decoded_columns"]

T = TypeVar("T")


class SupportsArray(Protocol):
    """A mask or row numbers of another library: an array of Arrow, or a series of Polars or pandas."""

    def __array__(self) -> npt.NDArray[Any]: ...


# What selects the rows of a table.
Rows: TypeAlias = slice | Sequence[int] | SupportsArray

# The memory of a bytes object without its contents, rounded up, and of its places in a list and in an array.
_OBJECT_BYTES = 64
# The largest key or value that is copied without a check: `kbatch.Limits` allows as much beyond the limit.
_UNCHECKED_BYTES = 8 << 20
# What of it a null, or an object of at most one byte, does not take: the interpreter shares these objects.
_SHARED_BYTES = 48
# The memory of a header as a tuple of two objects, and of the tuple of a record's headers; a shared empty one for none.
_PAIR_BYTES = 2 * _OBJECT_BYTES + 64
_LIST_BYTES = 96
_EMPTY_LIST_BYTES = 16

# Arguments of TableData that `_with` keeps as they are.
_ARGUMENTS = (
    "data",
    "consumed",
    "remaining",
    "losses",
    "pending",
    "last_stable_offset",
    "source",
    "topic",
    "partition",
    "columns",
    "continued",
    "memory",
)


class TableMemory(NamedTuple):
    """The memory that a table may still take after it has been decoded, in bytes.

    Attributes
    ----------
    rest : int
        For header rows, or for one view.
    headers : int
        For header rows, if they are limited further.
    name : str
        The parameter that limits them, for messages.
    frugal_from : int
        The size of header rows from which memory matters more than time; see `kbatch.kernels.buffers.allocate`.
    """

    rest: int
    headers: int
    name: str
    frugal_from: int


def checked_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns of a table, some of `kbatch.format.VIEW_COLUMNS` in any order.

    Raises
    ------
    TypeError
        If `columns` is not a sequence of names.
    ValueError
        For an unknown or repeated name.
    """
    return checked_names(columns, VIEW_COLUMNS)


def checked_names(columns: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """Return the names of columns that are among the `known` ones; errors as for `checked_columns`."""
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise TypeError(f"columns must be a sequence of names, got {columns!r}")
    columns = tuple(columns)
    if not all(isinstance(name, str) for name in columns):
        raise TypeError(f"columns must be a sequence of names, got {list(columns)!r}")
    unknown = [name for name in columns if name not in known]
    if unknown:
        raise ValueError(f"no column {', '.join(map(repr, unknown))}; there are {', '.join(known)}")
    if len(set(columns)) != len(columns):
        raise ValueError(f"a column is named twice: {', '.join(columns)}")
    return columns


def decoded_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a view that must be decoded: all except topic and partition."""
    return tuple(name for name in COLUMN_FIELDS if name in columns)


def _object_bytes(records: npt.NDArray[np.void], headers: npt.NDArray[np.void] | None, columns: Sequence[str]) -> int:
    """Return the most memory that columns take as lists and arrays of Python objects."""
    extent = measure_extent(records, headers=headers)
    size = extent.key_bytes * ("key" in columns) + extent.value_bytes * ("value" in columns)
    size += len(records) * _OBJECT_BYTES * len({"key", "value"}.intersection(columns))
    if "headers" in columns:
        size += len(records) * _LIST_BYTES + extent.header_count * _PAIR_BYTES
        size += extent.header_key_bytes + extent.header_value_bytes
    return size


def _shared_bytes(records: npt.NDArray[np.void], headers: npt.NDArray[np.void] | None, columns: Sequence[str]) -> int:
    """Return the part of `_object_bytes` that shared objects do not take; slower than that estimate."""
    lengths = [records[f"{name}_len"] for name in ("key", "value") if name in columns]
    size = 0
    if "headers" in columns:
        size += int(np.count_nonzero(records["header_count"] == 0)) * (_LIST_BYTES - _EMPTY_LIST_BYTES)
        if headers is not None:
            lengths += [headers["key_len"], headers["value_len"]]
    return size + sum(int(np.count_nonzero(each <= 1)) for each in lengths) * _SHARED_BYTES


def _row_array(rows: Any) -> npt.NDArray[Any]:
    """Return a mask or row numbers as an array. Null in a mask of Arrow or Polars selects no row, as in a filter."""
    array = np.asarray(rows, None if len(rows) else np.intp)
    if array.dtype == np.object_ and hasattr(rows, "fill_null"):
        array = np.asarray(rows.fill_null(False))
    return array


class TableData:
    """The rows and bytes of a table; `kbatch.RecordTable` adds the views.

    It owns its buffers or holds the buffer that was decoded; every array taken from it keeps that memory alive. It is
    immutable: its attributes cannot be set.
    """

    __slots__ = (
        "_batches",
        "_columns",
        "_consumed",
        "_continued",
        "_data",
        "_derived",
        "_headers",
        "_last_stable_offset",
        "_losses",
        "_memory",
        "_numbered",
        "_partition",
        "_pending",
        "_records",
        "_remaining",
        "_source",
        "_topic",
    )

    def __init__(
        self,
        records: npt.NDArray[np.void],
        batches: npt.NDArray[np.void],
        data: npt.NDArray[np.uint8],
        *,
        consumed: int = 0,
        remaining: int = 0,
        losses: Sequence[Loss] = (),
        pending: Sequence[tuple[int, int]] | Callable[[], list[tuple[int, int]]] = (),
        last_stable_offset: int | None = None,
        source: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        columns: tuple[str, ...] | None = None,
        continued: bool = False,
        memory: TableMemory | None = None,
    ) -> None:
        if columns is None and records.dtype != RECORD_DTYPE:
            names = records.dtype.names or ()
            columns = tuple(column for column, fields in COLUMN_FIELDS.items() if all(name in names for name in fields))
        # None means all columns; then topic and partition are columns if they are known.
        self._columns = columns
        self._records = records
        self._batches = batches
        self._headers: npt.NDArray[np.void] | None = None
        # Whether this is a slice or a selection, whose batches get the `first_record` of its own rows on first use.
        self._derived = False
        self._numbered: npt.NDArray[np.void] | None = None
        self._data = data
        self._consumed = consumed
        self._remaining = remaining
        self._losses = (losses if isinstance(losses, LossList) else LossList(losses))._of(source)
        # A function is called at first use: with many open transactions, one list per table takes quadratic memory.
        self._pending = pending if callable(pending) else list(pending)
        self._last_stable_offset = last_stable_offset
        self._source = source
        self._topic = topic
        self._partition = partition
        self._continued = continued
        self._memory = memory

    @classmethod
    def _empty(cls, columns: tuple[str, ...] | None = None, **arguments: Any) -> Self:
        """Return a table without batches, such as one that only reports losses; `arguments` are the constructor's."""
        records = np.empty(0, RECORD_DTYPE if columns is None else record_dtype(columns))
        return cls(records, np.empty(0, BATCH_DTYPE), np.empty(0, np.uint8), columns=columns, **arguments)

    def _with(self, *, derived: bool | None = None, **arguments: Any) -> Self:
        """Return a table of the same buffers with other `arguments` of the constructor."""
        kept = {name: getattr(self, f"_{name}") for name in _ARGUMENTS}
        table = type(self)(**{"records": self._records, "batches": self._batches} | kept | arguments)
        table._derived = self._derived if derived is None else derived
        if table._records is self._records:
            table._headers = self._headers
        return table

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The read-only bytes that all positions of `records` and `headers` point into.

        It is the caller's own buffer if all of it is uncompressed, otherwise the decompressed payloads. It is empty if
        neither keys, values nor headers were decoded.
        """
        return self._data

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of every view, in their order.

        By default these are offset, timestamp, timestampType, key, value and headers, and for a table of a log also
        topic and partition. Requesting one that was not decoded raises `MissingColumnError`.
        """
        if self._columns is None:
            return COLUMNS if self._topic is None else VIEW_COLUMNS
        return self._columns

    @property
    def consumed(self) -> int:
        """The number of bytes of the input up to the end of the last complete batch."""
        return self._consumed

    @property
    def remaining(self) -> int:
        """The number of bytes that `kbatch.decode` found after the last complete batch: a part of a batch, or 0.

        Tables of logs and streams have 0: `Log.incomplete_tail` and `StreamDecoder.pending_bytes` report these bytes.
        """
        return self._remaining

    @property
    def continued(self) -> bool:
        """Whether the first batch began in an earlier table: it is larger than a table, and its records are split.

        All tables of such a batch have its row in `batches`, and the last one includes it in `consumed`.
        """
        return self._continued

    @property
    def losses(self) -> LossList:
        """Every range of the input that was lost to damage, by position.

        Each `Loss` is made when it is accessed: until then, one takes 54 bytes, which count for the memory of a table.
        """
        return self._losses

    @property
    def pending(self) -> list[tuple[int, int]]:
        """Under read_committed, the transactions without a marker, as (producer id, first offset), sorted by offset.

        Their records are withheld, and so is everything from `last_stable_offset` on, where the first open transaction
        begins (LSO-R1). A transaction that was open where bytes were lost that may have contained its marker withholds
        only its own records before them.

        References
        ----------
        Rules such as LSO-R1 are listed in ``docs/format-rules.md``.
        """
        if callable(self._pending):
            self._pending = self._pending()
        return self._pending

    @property
    def last_stable_offset(self) -> int | None:
        """The first offset that is withheld because of open transactions; None if there are none."""
        return self._last_stable_offset

    @property
    def source(self) -> str | None:
        """The file that the table was read from, if that is known."""
        return self._source

    @property
    def topic(self) -> str | None:
        """The topic of the log that the table was read from, if that is known."""
        return self._topic

    @property
    def partition(self) -> int | None:
        """The partition of the log that the table was read from, if that is known."""
        return self._partition

    @property
    def records(self) -> npt.NDArray[np.void]:
        """One row per record.

        Returns
        -------
        ndarray of RECORD_DTYPE, shape (records,)
            Timestamps in milliseconds since the epoch, -1 for none; lengths of -1 are null, 0 is empty (COL-R1). If
            not all columns were decoded, it has only the fields of the decoded columns, and ``batch``.

        References
        ----------
        Rules such as COL-R1 are listed in ``docs/format-rules.md``.
        """
        return self._records

    @property
    def batches(self) -> npt.NDArray[np.void]:
        """One row per batch of the input, including batches without records in the table (COL-R4).

        Returns
        -------
        ndarray of BATCH_DTYPE, shape (batches,)
            ``status`` is a `BatchStatus`; ``first_record`` is the row in `records` where the batch's records begin.
            A slice or selection has the batches of the whole table; `RecordTable.compact` drops those without a record.

        References
        ----------
        Rules such as COL-R4 are listed in ``docs/format-rules.md``.
        """
        if not self._derived:
            return self._batches
        if self._numbered is None:
            # The rows, and two arrays of row numbers.
            self._check_memory_of(self._batches.nbytes + 16 * len(self._batches), "batches")
            batches = self._batches.copy()
            batches["first_record"] = np.searchsorted(self._records["batch"], np.arange(len(batches)))
            batches.flags.writeable = False
            self._numbered = batches
        return self._numbered

    @property
    def headers(self) -> npt.NDArray[np.void]:
        """One row per record header, in stored order (HDR-R5); built on first use.

        Returns
        -------
        ndarray of HEADER_DTYPE, shape (headers,)
            ``record`` is a row of `records`; a value length of -1 is null.

        References
        ----------
        Rules such as HDR-R5 are listed in ``docs/format-rules.md``.
        """
        self.require("headers")
        if self._headers is None:
            records = self._records
            count = int(records["header_count"].sum(dtype=np.int64))
            self._check_memory_of(count * HEADER_DTYPE.itemsize, "header rows")
            frugal_from = INT64_MAX if self._memory is None else self._memory.frugal_from
            headers = PooledRows(HEADER_DTYPE, count, frugal_from).array[:count]
            n = _kernel.headers(self.data, records, headers)
            if n != len(headers):
                where = f"{self._where(-1 - n)}: " if n < 0 else ""
                raise InvalidRecordError(
                    f"{where}the headers have moved since the table was decoded; was the buffer modified?",
                    source=self.source,
                )
            headers.flags.writeable = False
            self._headers = headers
        return self._headers

    def __len__(self) -> int:
        return len(self._records)

    def _select_rows(self, rows: Rows) -> Self:
        if isinstance(rows, slice):
            if rows.step is not None and rows.step < 0:
                raise ValueError("the step of a slice must be positive: a table cannot be reversed")
        elif isinstance(rows, list) or hasattr(rows, "__array__"):
            rows = _row_array(rows)
            if rows.ndim != 1 or rows.dtype.kind not in "biu":
                hint = "; select() returns a table with some of the columns" if rows.dtype.kind == "U" else ""
                raise TypeError(f"a table is indexed by row numbers or a mask, got an array of {rows.dtype}{hint}")
            if rows.dtype == np.bool_ and len(rows) != len(self):
                raise IndexError(f"the mask has {counted(len(rows), 'row')}, the table has {len(self):,}")
            if rows.dtype != np.bool_:
                if rows.min(initial=0) < 0:
                    rows = np.where(rows < 0, rows + len(self), rows)
                if np.any(rows[1:] < rows[:-1]):
                    raise ValueError("row numbers must ascend")
        else:
            raise TypeError(
                f"a table takes a column's name, a slice, a mask or row numbers, got {type(rows).__name__}; for one "
                "record use table.records[i], table.key(i), table.value(i) and table.headers_of(i)"
            )
        if not isinstance(rows, slice):
            # A slice refers to the rows of the table, a selection is a copy.
            count = np.count_nonzero(rows) if rows.dtype == np.bool_ else len(rows)
            self._check_memory_of(int(count) * self._records.itemsize, "selected rows", int(count))
        records = self._records[rows]
        records.flags.writeable = False
        return self._with(records=records, derived=True)

    def select(self, columns: Sequence[str]) -> Self:
        """Return the table with some of its columns, in this order; rows, batches and bytes are shared.

        Parameters
        ----------
        columns : sequence of str
            Some of `columns`. Topic and partition are columns of every table: null if they are unknown.

        Raises
        ------
        MissingColumnError
            If the table was decoded without one of them.
        ValueError
            For an unknown or repeated column.

        Examples
        --------
        >>> import kbatch
        >>> kbatch.decode(b"").select(["timestamp", "offset"]).columns
        ('timestamp', 'offset')
        """
        check_types(TableData.select, locals())
        columns = checked_columns(columns)
        self.require(*columns)
        records = self._records
        names = record_dtype(columns).names or ()
        if names != records.dtype.names:
            records = records[list(names)]
            records.flags.writeable = False
        return self._with(records=records, columns=columns)

    def _by_record(self, items: list[T]) -> Iterator[list[T]]:
        """Yield the list of items of each record, given one item for each row of `headers`."""
        end = 0
        for count in self._records["header_count"].tolist():
            end += count
            yield items[end - count : end]

    def _check_memory_of(self, size: int, what: str, rows: int | None = None) -> None:
        """Raise `LimitExceededError` if `size` more bytes, of all or `rows` records, exceed the table's limit."""
        memory = self._memory
        if memory is None:
            return
        rest, name = self._view_memory(), "limits=kbatch.Limits(max_table_bytes=...)"
        if what == "header rows" and memory.headers < rest:
            rest, name = memory.headers, memory.name
        if size > rest:
            rows = len(self) if rows is None else rows
            where = f"{self.source}: " if self.source else ""
            raise LimitExceededError(
                f"{where}the {what} of {counted(rows, 'record')} take {size} bytes of memory, {max(rest, 0)} remain; "
                f"raise {name}{', or take a slice of the table' if rows > 1 else ''}",
                source=self.source,
            )

    def _view_memory(self) -> int:
        """Return the memory that a view may take next to the table and its header rows."""
        headers = 0 if self._headers is None else self._headers.nbytes
        return INT64_MAX if self._memory is None else self._memory.rest - headers

    def _header_memory(self) -> int:
        """Return the memory that header rows may take."""
        return min(self._view_memory(), INT64_MAX if self._memory is None else self._memory.headers)

    def _check_objects(self, *columns: str, size: int = 0) -> None:
        """Check the memory of the Python objects of some columns, together with `size` bytes of other columns."""
        if self._memory is None:
            return
        headers = self.headers if "headers" in columns and self._records["header_count"].any() else None
        size += _object_bytes(self._records, headers, columns)
        if size > self._view_memory():
            size -= _shared_bytes(self._records, headers, columns)
        self._check_memory_of(size, "Python objects")

    def require(self, *columns: str) -> None:
        """Raise `MissingColumnError` unless the table has these columns."""
        missing = [name for name in columns if name in COLUMN_FIELDS and name not in self.columns]
        if missing:
            raise MissingColumnError(
                f"the table was decoded without {', '.join(missing)}: its columns are "
                f"{', '.join(self.columns) or 'none'}; name {'it' if len(missing) == 1 else 'them'} in "
                "decode(columns=...) too, or leave columns= out",
                source=self.source,
            )

    def _where(self, row: int) -> str:
        """Name a record in an error."""
        if "offset" in (self._records.dtype.names or ()):
            return f"offset {int(self._records['offset'][row])}"
        return f"record row {row}"

    def _checked_row(self, row: int) -> int:
        """Return the number of a row; negative ones count back from the end."""
        if not isinstance(row, int | np.integer):
            raise TypeError(f"row must be an integer, got {row!r}")
        if not -len(self._records) <= row < len(self._records):
            raise IndexError(f"row {row:,} is not in a table of {len(self._records):,} records")
        return int(row) % len(self._records)

    def _bytes(self, column: str, row: int) -> bytes | None:
        self.require(column)
        record = self._records[self._checked_row(row)]
        size = int(record[f"{column}_len"])
        start = int(record[f"{column}_pos"])
        if size > _UNCHECKED_BYTES:
            self._check_memory_of(size, column, 1)
        return None if size < 0 else self.data[start : start + size].tobytes()

    def key(self, row: int) -> bytes | None:
        """Return the key of one record; None is null."""
        return self._bytes("key", row)

    def value(self, row: int) -> bytes | None:
        """Return the value of one record; None is null (a tombstone in a compacted topic)."""
        return self._bytes("value", row)

    def keys(self) -> list[bytes | None]:
        """Return all keys; None is null."""
        self.require("key")
        self._check_objects("key")
        return record_keys(self._records, self.data)

    def values(self) -> list[bytes | None]:
        """Return all values; None is null."""
        self.require("value")
        self._check_objects("value")
        return record_values(self._records, self.data)
