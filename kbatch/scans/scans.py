"""`scan_logs`: the records of logs as a lazy table."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NoReturn

from kbatch.arguments import check_types
from kbatch.bounds import Bound
from kbatch.extras import require
from kbatch.format import VIEW_COLUMNS, Limits
from kbatch.log.source import SourceLike, source_of
from kbatch.log.topics import TopicChoice
from kbatch.options import Binary, Crc, Isolation, OnError
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.tasks import TableSize
from kbatch.quantities import SizeLike, TimeLike, parse_time, size_between
from kbatch.read.workers import thread_count
from kbatch.records.arrow import requested_binary, to_arrow, view_schema
from kbatch.records.data import checked_columns
from kbatch.scans.explaining import explained
from kbatch.scans.reading import Reading
from kbatch.scans.row_filter import RowFilter
from kbatch.scans.running import sliced_rows
from kbatch.table import RecordTable

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    import pyarrow.compute as pc
    import pyarrow.dataset

__all__ = ["Scan", "scan_logs"]


class Scan:
    """The records of logs as a lazy table: nothing is read before records are requested. `scan_logs` makes it.

    A scan is immutable: `filter` and `select` return another one. Each request of records lists directories again, and
    reads them in its own threads, ahead of the consumer and in bounded memory. Records are in the order of topic,
    partition and offset.

    Any library that takes an Arrow stream takes a scan: ``pyarrow.table(scan)``, ``polars.DataFrame(scan)``. `lazy` and
    `dataset` are tables that Polars and DuckDB query with their own filters and columns pushed down.

    Examples
    --------
    >>> import kbatch
    >>> import pyarrow.compute as pc
    >>> scan = kbatch.scan_logs("tests/golden/logs", topics="codec-*")
    >>> late = scan.filter(pc.field("offset") >= 3150).select("topic", "offset")
    >>> late.count()
    81
    >>> late.head(2).to_pylist()
    [{'topic': 'codec-gzip', 'offset': 3150}, {'topic': 'codec-gzip', 'offset': 3151}]
    """

    __slots__ = ("_names", "_reading")

    def __init__(self, reading: Reading, columns: tuple[str, ...]) -> None:
        self._reading = reading
        self._names = columns

    # -- what is read

    def filter(self, condition: pc.Expression | polars.Expr) -> Scan:
        """Return a scan of the records for which a condition is true, in addition to earlier conditions.

        Conditions on topic, partition, offset and timestamp leave files, segments and batches unread; the condition is
        applied exactly to each record of the others. A timestamp excludes batches whose largest timestamp is smaller.
        It does not end the read, since later records may have smaller timestamps.

        Parameters
        ----------
        condition : pyarrow.compute.Expression or polars.Expr
            Over the columns of records, also those that are not selected. Null counts as false. Of Polars, an
            expression that has an exact counterpart in Arrow.

        Returns
        -------
        Scan

        Raises
        ------
        TypeError
            For something else, for a condition whose result is not a boolean, and for an expression of Polars that has
            no exact counterpart.
        ValueError
            For a column that records do not have, or types that cannot be compared.

        Notes
        -----
        Damage is treated as in a read of the same ranges of bytes without a filter. Bytes that the filter excludes are
        not read, so damage there is neither an error nor a loss, as with ``start_offset``. Where damage hides whether
        bytes are excluded, they are read. With ``on_error="stop"`` only the end of the read is pruned, since earlier
        damage decides where it stops. With ``crc="mark"`` and ``"skip"``, timestamps exclude no bytes.
        """
        from kbatch.scans.polars_expressions import is_polars_expression, to_arrow_expression

        if is_polars_expression(condition):
            condition = to_arrow_expression(condition)
        return Scan(self._reading.filtered(RowFilter(condition)), self._names)

    def select(self, *columns: str | Iterable[str]) -> Scan:
        """Return a scan of some columns; only what these columns need is decoded.

        Parameters
        ----------
        *columns : str or iterable of str
            Some of the columns of this scan, in the order of the result.

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
        return Scan(self._reading, chosen)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._names)

    @property
    def schema(self) -> pyarrow.Schema:
        """The Arrow schema of `to_arrow`."""
        return view_schema(self._names)

    def explain(self) -> str:
        """Plan the read, and return what is read, what is not, and why.

        Returns
        -------
        str

        Examples
        --------
        >>> import kbatch
        >>> import pyarrow.compute as pc
        >>> scan = kbatch.scan_logs("tests/golden/logs", topics="codec-*")
        >>> print(scan.filter((pc.field("topic") == "codec-lz4") & (pc.field("offset") < 100)).explain())
        SCAN tests/golden/logs
        columns: offset, timestamp, timestampType, key, value, headers, topic, partition
        filter: ((topic == "codec-lz4") and (offset < 100)); true for all records that are read
        logs: 1 of 5; 4 have another topic or partition
        segments: 1 of 2; 1 outside of the ranges of offsets and times
        bytes: 3,234 of 363,856
        records: about 166 before the filter
        pruned by: offset <= 99 (1 log)
        """
        return explained(self._reading, self._names)

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
        check_types(Scan.reader, locals())
        pa = require("pyarrow", "arrow", "reader()")
        schema = view_schema(self._names, binary=binary)
        return pa.RecordBatchReader.from_batches(schema, self._batches(schema))

    def to_arrow(self, *, binary: Binary = "binary") -> pyarrow.Table:
        """Return all records as an Arrow table; `binary` is as for `reader`."""
        check_types(Scan.to_arrow, locals())
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
        check_types(Scan.to_pandas, locals())
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
        check_types(Scan.head, locals())
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
        check_types(Scan.tail, locals())
        pa = require("pyarrow", "arrow", "tail()")
        batches = self._last_batches(self.schema, _count(n))
        return pa.Table.from_batches(batches, schema=self.schema)

    def count(self) -> int:
        """Return the number of records, decoding only what the filter needs."""
        return sum(self._reading.run((), len))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Stream the records to any reader of the Arrow C stream interface."""
        pa = require("pyarrow", "arrow", "the Arrow C stream")
        schema = self.schema if requested_schema is None else pa.Schema._import_from_c_capsule(requested_schema)
        if schema.names:
            Scan.select(self, schema.names)
        reader = pa.RecordBatchReader.from_batches(schema, self._batches(schema))
        return reader.__arrow_c_stream__()

    # -- tables of other libraries

    def lazy(self) -> polars.LazyFrame:
        """Return the scan as a LazyFrame of Polars.

        Columns, filters, slices from both ends, and counts are pushed down. A filter that Arrow does not have is left
        to Polars.

        Examples
        --------
        >>> import kbatch
        >>> import polars as pl
        >>> frame = kbatch.scan_logs("tests/golden/logs", topics="codec-*").lazy()
        >>> frame.filter(pl.col("offset") >= 3150).group_by("topic").len().collect().height
        3
        """
        from kbatch.scans.polars_frames import lazy_frame

        return lazy_frame(self)

    def dataset(self) -> pyarrow.dataset.Dataset:
        """Return the scan as an Arrow dataset, for DuckDB and `polars.scan_pyarrow_dataset`.

        Columns and filters are pushed down, and batches are read as they are needed.

        Examples
        --------
        >>> import duckdb
        >>> import kbatch
        >>> records = kbatch.scan_logs("tests/golden/logs", topics="codec-*").dataset()
        >>> duckdb.sql('from records select count(*) where "offset" >= 3150').fetchall()
        [(81,)]
        """
        from kbatch.scans.arrow_dataset import LogDataset

        return LogDataset(self)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        raise TypeError("a Scan is not an array: to_pandas(), to_polars() and to_arrow() return its records")

    def __len__(self) -> NoReturn:
        raise TypeError("a Scan has no length: count() returns the number of its records, by reading them")

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        chosen = self._reading.row_filter
        shown = "" if chosen is None else f", filter {chosen.expression}"
        return f"<Scan of {self._reading.source.describe()}: {', '.join(self._names)}{shown}>"

    # -- batches

    def _batches(self, schema: pyarrow.Schema) -> Generator[pyarrow.RecordBatch, None, None]:
        """Yield the records as batches of a schema."""
        binary = requested_binary(schema)

        def use(table: RecordTable) -> list[pyarrow.RecordBatch]:
            return _arrow_batches(table, schema, binary)

        for batches in self._reading.run(checked_columns(schema.names), use):
            yield from batches
            del batches

    def _last_batches(self, schema: pyarrow.Schema, n: int) -> list[pyarrow.RecordBatch]:
        """Return the last `n` records as batches of a schema."""
        binary = requested_binary(schema)

        def use(table: RecordTable) -> list[pyarrow.RecordBatch]:
            return _arrow_batches(table[max(0, len(table) - n) :], schema, binary)

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


def _time_filter(start: TimeLike | None, stop: TimeLike | None) -> RowFilter | None:
    """Return the filter of the records between two times, as `kbatch.Log.tables` selects them."""
    if start is None and stop is None:
        return None
    pa, pc = require("pyarrow", "arrow", "a time"), require("pyarrow.compute", "arrow", "a time")
    timestamp, kind = pc.field("timestamp"), pa.timestamp("ms", "UTC")
    found = []
    if start is not None:
        found.append(timestamp >= pa.scalar(parse_time(start, "start_timestamp"), kind))
    if stop is not None:
        # The time of a record without one is -1.
        found.append((timestamp < pa.scalar(parse_time(stop, "stop_timestamp"), kind)) | timestamp.is_null())
    return RowFilter(functools.reduce(operator.and_, found))


def _arrow_batches(table: RecordTable, schema: pyarrow.Schema, binary: Binary) -> list[pyarrow.RecordBatch]:
    made = to_arrow(table, columns=schema.names, binary=binary)
    batches: list[pyarrow.RecordBatch] = (made if made.schema.equals(schema) else made.cast(schema)).to_batches()
    return batches


def _count(n: int) -> int:
    if n < 0:
        raise ValueError(f"n must be a number of records, 0 or more, got {n}")
    return n


def scan_logs(
    source: SourceLike,
    *,
    topics: TopicChoice | None = None,
    partitions: Iterable[int] | None = None,
    start_offset: int | None = None,
    stop_offset: int | None = None,
    start_timestamp: TimeLike | None = None,
    stop_timestamp: TimeLike | None = None,
    key: bytes | str | None = None,
    columns: Sequence[str] | None = None,
    isolation: Isolation = "read_uncommitted",
    include_control: bool = False,
    crc: Crc = "verify",
    on_error: OnError = "raise",
    limits: Limits | None = None,
    threads: int = 0,
    max_bytes: SizeLike | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Scan:
    """Return the records of logs as a lazy table.

    Parameters
    ----------
    source : str or path, iterable of them, Log, LogList, or Source
        Log directories, topic-partition directories and ``.log`` files, by path or URL, which each read lists again; or
        logs that are open already.
    topics : str, re.Pattern, or iterable of them, optional
        As for `kbatch.find_logs`.
    partitions : iterable of int, optional
        Only these partitions of each topic.
    start_offset, stop_offset, start_timestamp, stop_timestamp, isolation, include_control, crc, on_error, limits
        As for `kbatch.Log.tables`, for each log. Times before now are taken when `scan_logs` is called.
    key : bytes or str, optional
        Only records with this key; a string is encoded as UTF-8.
    columns : sequence of str, optional
        As `Scan.select`. Default is all of them; topic and partition are null if the name of a directory has none.
    threads : int
        The number of threads that decode; 0 is the number of processors.
    max_bytes : int or str, optional
        Limit on the memory of a table, as for `kbatch.Log.tables`. A scan holds at most ``threads + 2`` tables. Default
        is 32 MiB, or more if a batch is larger.
    storage_options : mapping of str to str, optional
        For URLs; see `kbatch.log.store.storage.filesystem`.

    Returns
    -------
    Scan

    Raises
    ------
    LogDirectoryError
        If a local path does not exist. Other errors are raised when records are read.
    TypeError, ValueError
        For arguments that are not allowed.

    Examples
    --------
    >>> import kbatch
    >>> scan = kbatch.scan_logs("tests/golden/logs", topics="codec-lz4", columns=["topic", "offset"])
    >>> scan.head(2).to_pydict()
    {'topic': ['codec-lz4', 'codec-lz4'], 'offset': [0, 1]}
    """
    check_types(scan_logs, locals())
    options = ReadOptions(
        partitions=None if partitions is None else frozenset(partitions),
        starting=Bound(offset=start_offset),
        ending=Bound(offset=stop_offset),
        include_control=include_control,
        isolation=isolation,
        crc=crc,
        on_error=on_error,
        key=key.encode() if isinstance(key, str) else key,
    )
    size = TableSize(limits=limits)
    if max_bytes is not None:
        size = replace(size, max_bytes=size_between("max_bytes", max_bytes, 1), is_strict=True)
    reading = Reading(source_of(source, storage_options), options, topics, None, size, thread_count(threads))
    reading = reading.filtered(_time_filter(start_timestamp, stop_timestamp))
    return Scan(reading, VIEW_COLUMNS if columns is None else checked_columns(columns))
