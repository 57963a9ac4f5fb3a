"""The records of a scan, in batches, tables and frames."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Literal, NoReturn, Self

from kbatch.arguments import check_types
from kbatch.extras import require
from kbatch.options import Binary
from kbatch.records.arrow import requested_binary, to_arrow, view_schema
from kbatch.records.data import checked_columns
from kbatch.scans.ahead import sliced_rows
from kbatch.scans.expression_filter import ExpressionFilter
from kbatch.scans.scan_reading import Reading
from kbatch.table import RecordTable

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    import pyarrow.compute as pc

__all__ = ["ScannedRecords"]


class ScannedRecords:
    """Records that are read when they are requested: `kbatch.Scan` without the tables of other libraries.

    Parameters
    ----------
    reading : Reading
    columns : tuple of str
    """

    __slots__ = ("_names", "_reading")

    def __init__(self, reading: Reading, columns: tuple[str, ...]) -> None:
        self._reading = reading
        self._names = columns

    def _narrowed(self, condition: pc.Expression) -> Self:
        """Return the records for which a condition is true."""
        return type(self)(self._reading.narrowed(ExpressionFilter(condition)), self._names)

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
        chosen = checked_columns(names)
        if not chosen:
            raise ValueError("select() needs at least one column; count() returns the number of records")
        missing = [name for name in chosen if name not in self._names]
        if missing:
            raise ValueError(f"no column {', '.join(map(repr, missing))}; the scan has {', '.join(self._names)}")
        return type(self)(self._reading, chosen)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._names)

    @property
    def schema(self) -> pyarrow.Schema:
        """The Arrow schema of `to_arrow`."""
        return view_schema(self._names)

    # -- records

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
        schema = view_schema(self._names, binary=binary)
        return pa.RecordBatchReader.from_batches(schema, self._batches(schema))

    def to_arrow(self, *, binary: Binary = "binary") -> pyarrow.Table:
        """Return all records as an Arrow table; `binary` is as for `reader`."""
        check_types(ScannedRecords.to_arrow, locals())
        pa = require("pyarrow", "arrow", "to_arrow()")
        schema = view_schema(self._names, binary=binary)
        return pa.Table.from_batches(self._batches(schema), schema=schema)

    def to_polars(self) -> polars.DataFrame:
        """Return all records as a Polars DataFrame; `lazy` returns a LazyFrame."""
        pl = require("polars", "polars", "to_polars()")
        frame: polars.DataFrame = pl.from_arrow(self.to_arrow(binary="binary_view"))
        return frame

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
        names = self._names
        frames = list(self._reading.run(names, lambda table: table.to_pandas(columns=names)))
        if not frames:
            return RecordTable._empty(names).to_pandas(columns=names)
        frame = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
        return frame

    def head(self, n: int = 5) -> pyarrow.Table:
        """Return the first records; the read ends with them.

        Parameters
        ----------
        n : int
            The maximum number of records.
        """
        check_types(ScannedRecords.head, locals())
        pa = require("pyarrow", "arrow", "head()")
        table = pa.Table.from_batches(sliced_rows(self._batches(self.schema), 0, _count(n)), schema=self.schema)
        return table

    def tail(self, n: int = 5) -> pyarrow.Table:
        """Return the last records; logs are read from the end until there are `n`.

        Parameters
        ----------
        n : int
            The maximum number of records, of all logs together.
        """
        check_types(ScannedRecords.tail, locals())
        pa = require("pyarrow", "arrow", "tail()")
        batches = self._last_batches(self.schema, _count(n))
        return pa.Table.from_batches(batches, schema=self.schema)

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
        reader = pa.RecordBatchReader.from_batches(schema, self._batches(schema))
        return reader.__arrow_c_stream__()

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        raise TypeError("a Scan is not an array: to_pandas(), to_polars() and to_arrow() return its records")

    def __len__(self) -> NoReturn:
        raise TypeError("a Scan has no length: count() returns the number of its records, by reading them")

    def __bool__(self) -> bool:
        return True

    # -- batches

    def _batches(self, schema: pyarrow.Schema) -> Generator[pyarrow.RecordBatch, None, None]:
        """Yield the records as batches of a schema."""
        binary = requested_binary(schema)

        def use(table: RecordTable) -> list[pyarrow.RecordBatch]:
            return _batches_of(table, schema, binary)

        for batches in self._reading.run(checked_columns(schema.names), use):
            yield from batches
            del batches

    def _last_batches(self, schema: pyarrow.Schema, n: int) -> list[pyarrow.RecordBatch]:
        """Return the last `n` records as batches of a schema."""
        binary = requested_binary(schema)

        def use(table: RecordTable) -> list[pyarrow.RecordBatch]:
            return _batches_of(table[max(0, len(table) - n) :], schema, binary)

        found: list[pyarrow.RecordBatch] = []
        parts = self._reading.run(checked_columns(schema.names), use, reverse=True)
        with contextlib.closing(parts):
            while n > 0 and (part := next(parts, None)) is not None:
                for batch in reversed(part):
                    found.append(batch.slice(max(0, batch.num_rows - n)))
                    n -= found[-1].num_rows
                    if n == 0:
                        break
        return found[::-1]


def _batches_of(table: RecordTable, schema: pyarrow.Schema, binary: Binary) -> list[pyarrow.RecordBatch]:
    made = to_arrow(table, columns=schema.names, binary=binary)
    batches: list[pyarrow.RecordBatch] = (made if made.schema.equals(schema) else made.cast(schema)).to_batches()
    return batches


def _count(n: int) -> int:
    if n < 0:
        raise ValueError(f"n must be a number of records, 0 or more, got {n}")
    return n
