"""The records of a scan, in batches, tables and frames."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Literal, NoReturn, Self

from kbatch.arguments import check_types, suggests_names
from kbatch.extras import require
from kbatch.format import VIEW_COLUMNS
from kbatch.log.read_arguments import SCAN_HINTS, ViewOptions
from kbatch.log.record_view import BadValues, RecordView
from kbatch.options import Binary
from kbatch.records.arrow import requested_binary
from kbatch.records.data import checked_columns
from kbatch.scans.ahead import at_end, sliced_rows
from kbatch.scans.expression_filter import ExpressionFilter
from kbatch.scans.scan_reading import Reading
from kbatch.scans.typed_scans import TypedValues
from kbatch.table import RecordTable

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    import pyarrow.compute as pc

__all__ = ["ScannedRecords"]

# What a read of a log takes, a scan has from the beginning.
_METHOD_HINTS = {
    **SCAN_HINTS,
    **dict.fromkeys((*ViewOptions.__annotations__, "topics", "partitions"), "scan_logs takes it"),
    "columns": "use scan.select(...)",
}


class ScannedRecords:
    """Records that are read when they are requested: `kbatch.Scan` without the tables of other libraries.

    Parameters
    ----------
    reading : Reading
    columns : tuple of str
    values : TypedValues, optional
    """

    __slots__ = ("_names", "_reading", "_values")

    def __init__(self, reading: Reading, columns: tuple[str, ...], values: TypedValues | None = None) -> None:
        self._reading = reading
        self._names = columns
        self._values = values

    def _view(self, names: Iterable[str] | None = None, binary: Binary = "binary") -> RecordView:
        """Return the view of the given columns; the default is all columns of the scan."""
        chosen = self._names if names is None else tuple(names)
        return RecordView.of(chosen, VIEW_COLUMNS, binary, None if self._values is None else self._values.columns)

    def _conditions(self) -> RecordView:
        """Return the view of all columns that conditions may use: also fields that are columns of the scan."""
        names = VIEW_COLUMNS if self._values is None else self._values.names
        return self._view(dict.fromkeys((*names, *self._names)))

    def _narrowed(self, condition: pc.Expression) -> Self:
        """Return the records for which a condition is true."""
        found = ExpressionFilter(condition, self._conditions())
        return type(self)(self._reading.narrowed(found), self._names, self._values)

    def select(self, *columns: str | Iterable[str]) -> Self:
        """Return the records with some columns; only what these columns need is decoded.

        Parameters
        ----------
        *columns : str or iterable of str
            Some of the columns there are, in the order of the result.

        Raises
        ------
        TypeError, ValueError
            For a name that the scan does not have, a repeated name, or none.
        """
        names = [name for each in columns for name in ([each] if isinstance(each, str) else each)]
        chosen = checked_columns(names) if self._values is None else tuple(self._view(names).schema.names)
        if not chosen:
            raise ValueError("select() needs at least one column; count() returns the number of records")
        missing = [name for name in chosen if not self._has_column(name)]
        if missing:
            raise ValueError(f"no column {', '.join(map(repr, missing))}; the scan has {', '.join(self._names)}")
        return type(self)(self._reading, chosen, self._values)

    def _has_column(self, name: str) -> bool:
        """Whether a name is a column of the scan, or a field of one."""
        parts = name.split(".")
        return any(".".join(parts[:end]) in self._names for end in range(1, len(parts) + 1))

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._names)

    @property
    def schema(self) -> pyarrow.Schema:
        """The Arrow schema of `to_arrow`."""
        return self._view().schema

    # -- records

    @suggests_names(_METHOD_HINTS)
    def reader(self, *, binary: Binary = "binary") -> pyarrow.RecordBatchReader:
        """Return a reader of the records, batch by batch.

        Threads decode ahead of the reader; they stop when the reader is closed or garbage-collected.

        Parameters
        ----------
        binary : {"binary", "large_binary", "binary_view"}
            As for `kbatch.RecordTable.to_arrow`.

        Warns
        -----
        RuntimeWarning
            At the end, if damaged bytes were skipped.
        """
        check_types(ScannedRecords.reader, locals())
        pa = require("pyarrow", "arrow", "reader()")
        view = self._view(binary=binary)
        return pa.RecordBatchReader.from_batches(view.schema, self._batches(view))

    @suggests_names(_METHOD_HINTS)
    def to_arrow(self, *, binary: Binary = "binary") -> pyarrow.Table:
        """Return all records as an Arrow table; `binary` is as for `reader`."""
        check_types(ScannedRecords.to_arrow, locals())
        pa = require("pyarrow", "arrow", "to_arrow()")
        view = self._view(binary=binary)
        return pa.Table.from_batches(self._batches(view), schema=view.schema)

    @suggests_names(_METHOD_HINTS)
    def to_polars(self) -> polars.DataFrame:
        """Return all records as a Polars DataFrame; `lazy` returns a LazyFrame."""
        pl = require("polars", "polars", "to_polars()")
        frame: polars.DataFrame = pl.from_arrow(self.to_arrow(binary="binary_view"))
        return frame

    @suggests_names(_METHOD_HINTS)
    def to_pandas(self, *, dtype_backend: Literal["numpy", "pyarrow"] = "numpy") -> pandas.DataFrame:
        """Return all records as a pandas DataFrame; `dtype_backend` is as for `kbatch.RecordTable.to_pandas`."""
        check_types(ScannedRecords.to_pandas, locals())
        if dtype_backend not in ("numpy", "pyarrow"):
            raise ValueError(f"dtype_backend must be 'numpy' or 'pyarrow', got {dtype_backend!r}")
        pd = require("pandas", "pandas", "to_pandas()")
        require("pyarrow", "pandas", "to_pandas()")
        frame: pandas.DataFrame
        if dtype_backend == "pyarrow":
            frame = self.to_arrow().to_pandas(types_mapper=pd.ArrowDtype)
            return frame
        view = self._view()
        bad = BadValues(self._names)
        frames = list(self._reading.run(view.columns, lambda table: view.frame(table, bad)))
        bad.warn()
        if not frames:
            return view.frame(RecordTable._empty(view.columns))
        frame = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
        return frame

    @suggests_names(_METHOD_HINTS)
    def head(self, n: int = 5) -> pyarrow.Table:
        """Return the first records; the read ends with them.

        Parameters
        ----------
        n : int
            The maximum number of records.
        """
        check_types(ScannedRecords.head, locals())
        pa = require("pyarrow", "arrow", "head()")
        view = self._view()
        table = pa.Table.from_batches(sliced_rows(self._batches(view), 0, _count(n)), schema=view.schema)
        return table

    @suggests_names(_METHOD_HINTS)
    def tail(self, n: int = 5) -> pyarrow.Table:
        """Return the last records; logs are read from the end until there are `n`.

        Parameters
        ----------
        n : int
            The maximum number of records, of all logs together.
        """
        check_types(ScannedRecords.tail, locals())
        pa = require("pyarrow", "arrow", "tail()")
        view = self._view()
        return pa.Table.from_batches(self._last_batches(view, _count(n)), schema=view.schema)

    @suggests_names(_METHOD_HINTS)
    def count(self) -> int:
        """Return the number of records.

        With ``on_error="raise"`` batch headers are counted, as by `kbatch.Log.count`, for logs of which the filter
        selects all records, or all within a range of offsets. For others, only the columns of the filter are decoded.
        """
        return self._reading.count()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Stream the records to any reader of the Arrow C stream interface."""
        pa = require("pyarrow", "arrow", "the Arrow C stream")
        schema = self.schema if requested_schema is None else pa.Schema._import_from_c_capsule(requested_schema)
        if schema.names:
            self.select(schema.names)
        batches = self._batches(self._view(schema.names, requested_binary(schema)))
        made = (each if each.schema.equals(schema) else each.cast(schema) for each in batches)
        return pa.RecordBatchReader.from_batches(schema, made).__arrow_c_stream__()

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        raise TypeError("a Scan is not an array: to_pandas(), to_polars() and to_arrow() return its records")

    def __iter__(self) -> NoReturn:
        # pandas asks an iterable for its array, and its own error would not name the methods.
        raise TypeError("a Scan cannot be iterated: reader() returns its records in batches")

    def __len__(self) -> NoReturn:
        raise TypeError("a Scan has no length: count() returns the number of its records, by reading them")

    def __bool__(self) -> bool:
        return True

    # -- batches

    def _batches(self, view: RecordView) -> Generator[pyarrow.RecordBatch, None, None]:
        """Yield the records as batches, and warn of bad values at the end."""
        bad = BadValues(view.schema.names)

        def use(table: RecordTable) -> list[pyarrow.RecordBatch]:
            return view.batches(table, bad)

        with at_end(bad.warn), contextlib.closing(self._reading.run(view.columns, use)) as found:
            for batches in found:
                yield from batches
                del batches

    def _last_batches(self, view: RecordView, n: int) -> list[pyarrow.RecordBatch]:
        """Return the last `n` records as batches."""
        bad = BadValues(view.schema.names)

        def use(table: RecordTable) -> list[pyarrow.RecordBatch]:
            return view.batches(table[max(0, len(table) - n) :], bad)

        found: list[pyarrow.RecordBatch] = []
        parts = self._reading.run(view.columns, use, reverse=True)
        with contextlib.closing(parts):
            while n > 0 and (part := next(parts, None)) is not None:
                for batch in reversed(part):
                    found.append(batch.slice(max(0, batch.num_rows - n)))
                    n -= found[-1].num_rows
                    if n == 0:
                        break
        bad.warn()
        return found[::-1]


def _count(n: int) -> int:
    if n < 0:
        raise ValueError(f"n must be a number of records, 0 or more, got {n}")
    return n
