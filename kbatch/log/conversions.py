"""The records of logs as Arrow, pandas and Polars, table by table."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol

from typing_extensions import Unpack

from kbatch.arguments import check_types, suggests_names
from kbatch.escaping import counted
from kbatch.extras import require
from kbatch.format import COLUMNS, VIEW_COLUMNS
from kbatch.log.counting import counted_options, records_counted
from kbatch.log.log_bounds import BoundedLog, LogBound
from kbatch.log.ranges import LogSelection
from kbatch.log.read_arguments import READ_HINTS, ReadArguments, TableOptions, ViewOptions
from kbatch.log.record_view import BadValues, RecordView, value_columns_of
from kbatch.log.sampling import sample_logs, topics_of
from kbatch.log.segment import Segment
from kbatch.options import Binary
from kbatch.quantities import callers_stacklevel
from kbatch.records.arrow import requested_binary, view_schema
from kbatch.records.display import shown_time
from kbatch.table import RecordTable
from kbatch.value_options import ValueOptions

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

__all__ = [
    "Conversions",
    "ReadableLog",
    "joined_frames",
    "last_rows",
    "losses_text",
    "record_batches",
    "warn_if_after_end",
]

# The tables in which the first records are searched: of this number of bytes for each record, and at least this size.
_HEAD_ROW_BYTES = 1 << 10
_MIN_HEAD_BYTES = 64 << 10


class ReadableLog(BoundedLog, Protocol):
    """A log whose records can be read."""

    segments: list[Segment]

    def _selection(self, arguments: ReadArguments, start: LogBound, stop: LogBound) -> LogSelection:
        """Return what is read of the log within its bounds."""


class Conversions(ABC):
    """The conversions that one log and a list of logs have in common."""

    @abstractmethod
    def tables(self, *, columns: Sequence[str] | None = None, **options: Unpack[TableOptions]) -> Iterator[RecordTable]:
        """Decode the records, in tables of bounded size."""

    @abstractmethod
    def _has_topic(self) -> bool:
        """Return whether the topic and partition are known."""

    @abstractmethod
    def _logs_to_read(self) -> Sequence[ReadableLog]:
        """Return the logs in the order of their records."""

    @property
    def schema(self) -> pyarrow.Schema:
        """The Arrow schema of `reader`, `to_arrow` and the Arrow C stream, with the default columns.

        Raises
        ------
        MissingDependencyError
            Without pyarrow.
        """
        return view_schema(self._default_columns())

    @suggests_names(READ_HINTS)
    def reader(
        self,
        *,
        columns: Sequence[str] | None = None,
        binary: Binary = "binary",
        **options: Unpack[ViewOptions],
    ) -> pyarrow.RecordBatchReader:
        """Return a reader of the records as Arrow record batches, in bounded memory.

        Each table is decoded when its batches are requested, and dropped before the next one is decoded: a caller that
        processes batches one by one needs the memory of about two tables (`max_bytes` of `Log.tables`).

        Parameters
        ----------
        columns, binary
            As for `to_arrow`.
        **options
            As for `to_arrow`.

        Returns
        -------
        pyarrow.RecordBatchReader
            It is consumed once. DuckDB, Polars and other readers of the Arrow C stream interface take it.

        Raises
        ------
        MissingDependencyError
            Without pyarrow.
        KbatchError, ValueError, TypeError
            As for `tables`; errors of the data are raised when their batches are requested.

        Warns
        -----
        RuntimeWarning
            As for `to_arrow`, at the end.

        Examples
        --------
        >>> import kbatch
        >>> log = kbatch.Log("tests/golden/logs/codec-none-0")
        >>> sum(batch.num_rows for batch in log.reader(columns=["value"], start=3000))
        160
        """
        check_types(Conversions.reader, locals())
        pa = require("pyarrow", "arrow", "reader()")
        view, arguments = self._view(columns, binary, options)
        return pa.RecordBatchReader.from_batches(view.schema, record_batches(self._tables(arguments), view))

    @suggests_names(READ_HINTS)
    def to_arrow(
        self,
        *,
        columns: Sequence[str] | None = None,
        binary: Binary = "binary",
        **options: Unpack[ViewOptions],
    ) -> pyarrow.Table:
        """Return the records as an Arrow table; `reader` streams them.

        Parameters
        ----------
        columns : sequence of str, optional
            As for `tables`: some of offset, timestamp, timestampType, key, value, headers, topic and partition, in
            the order of the result. Default is all of them; topic and partition only if they are known. With a format
            also fields, such as ``value.user.id``, and ``value_bad``, ``value_error`` and ``value_schema_id``: only
            what is named is parsed.
        binary : {"binary", "large_binary", "binary_view"}
            As for `RecordTable.to_arrow`. A view may keep the decompressed bytes of all batches in memory.
        **options
            As for `tables`, such as `start`, `end`, `key` and `isolation`; and the formats:

            - `values` is ``"json"``, ``"avro"``, ``"protobuf"``, ``"struct"`` or ``"string"``, or a parser of
              `kbatch.values`. The column ``value`` then has the type of the schema, and a value that does not fit is
              null: its bytes and the reason are in ``value_bad`` and ``value_error``.
            - `value_schema` is the schema: for JSON text in Spark's DDL, a dictionary of types by field, a type of
              Arrow, or a file. By default it is inferred once, from a sample of all records of the logs.
            - `value_framing`, `value_message`, `value_reader_schema` and `value_unknown` are as `framing`, `message`,
              `reader_schema` and `unknown` of `RecordTable.values_avro`, `values_protobuf` and `values_json`.
            - `keys`, `key_schema` and so on are the same for keys.
            - `schema_registry` is the URL of a schema registry that has the schemas of Avro, Protobuf and JSON with
              Confluent's framing, a file of settings, or a mapping of them (docs/registry.md). The schema of the column
              is `value_schema`, or the latest version of the subject `value_subject`, by default of ``TOPIC-value``.

        Returns
        -------
        pyarrow.Table
            One chunk per decoded table, or more.

        Raises
        ------
        MissingDependencyError
            Without pyarrow.
        KbatchError, ValueError, TypeError
            As for `tables`.

        Warns
        -----
        RuntimeWarning
            If damaged bytes were skipped, which requires ``on_error="skip"`` or ``"stop"``. The tables of `tables` list
            them in ``losses``. If values do not fit and the columns about them are not requested. Also as for `tables`.

        Examples
        --------
        >>> import kbatch
        >>> kbatch.Log("tests/golden/logs/codec-none-0").to_arrow(columns=["topic", "offset"]).schema
        topic: string
        offset: int64
        """
        check_types(Conversions.to_arrow, locals())
        pa = require("pyarrow", "arrow", "to_arrow()")
        view, arguments = self._view(columns, binary, options)
        return pa.Table.from_batches(record_batches(self._tables(arguments), view), schema=view.schema)

    @suggests_names(READ_HINTS)
    def head(
        self,
        n: int = 5,
        *,
        columns: Sequence[str] | None = None,
        binary: Binary = "binary",
        **options: Unpack[ViewOptions],
    ) -> pyarrow.Table:
        """Return the first `n` records, of all logs together; only the batches with them are decoded.

        Parameters
        ----------
        n : int
        columns, binary
            As for `to_arrow`.
        **options
            As for `to_arrow`.

        Examples
        --------
        >>> import kbatch
        >>> kbatch.Log("tests/golden/logs/codec-none-0").head(2, columns=["offset"])["offset"].to_pylist()
        [0, 1]
        """
        check_types(Conversions.head, locals())
        pa = require("pyarrow", "arrow", "head()")
        view, arguments = self._view(columns, binary, options)
        if not arguments.decode.is_strict:
            # The tables of a smaller limit would refuse batches.
            size = max(_record_count(n) * _HEAD_ROW_BYTES, _MIN_HEAD_BYTES)
            arguments = replace(arguments, max_bytes=min(size, arguments.max_bytes))
        tables = _first_rows(self._tables(arguments), _record_count(n))
        return pa.Table.from_batches(record_batches(tables, view), schema=view.schema)

    @suggests_names(READ_HINTS)
    def tail(
        self,
        n: int = 5,
        *,
        columns: Sequence[str] | None = None,
        binary: Binary = "binary",
        **options: Unpack[ViewOptions],
    ) -> pyarrow.Table:
        """Return the last `n` records, of all logs together; ``last=n`` of `to_arrow` returns the last `n` of each log.

        Parameters
        ----------
        n : int
        columns, binary
            As for `to_arrow`.
        **options
            As for `to_arrow`.

        Examples
        --------
        >>> import kbatch
        >>> kbatch.Log("tests/golden/logs/codec-none-0").tail(2, columns=["offset"])["offset"].to_pylist()
        [3158, 3159]
        """
        check_types(Conversions.tail, locals())
        pa = require("pyarrow", "arrow", "tail()")
        rest = _record_count(n)
        view, arguments = self._view(columns, binary, options)
        logs = self._logs_to_read()
        bounds = arguments.bounds(logs)
        found: list[RecordTable] = []
        for log, ends in zip(reversed(logs), reversed(bounds), strict=True):
            if rest <= 0:
                break
            last = rest if arguments.last is None else min(rest, arguments.last)
            tables = list(log._selection(replace(arguments, last=last), *ends).tables())
            found[:0] = tables
            rest -= sum(map(len, tables))
        made = record_batches(_explaining(last_rows(found, n), logs, bounds), view)
        return pa.Table.from_batches(made, schema=view.schema)

    @suggests_names(READ_HINTS)
    def to_pandas(
        self,
        *,
        columns: Sequence[str] | None = None,
        dtype_backend: Literal["numpy", "pyarrow"] = "numpy",
        **options: Unpack[ViewOptions],
    ) -> pandas.DataFrame:
        """Return the records as a pandas DataFrame.

        Parameters
        ----------
        columns
            As for `to_arrow`.
        **options
            As for `to_arrow`.
        dtype_backend : {"numpy", "pyarrow"}
            As for `RecordTable.to_pandas`.

        Returns
        -------
        pandas.DataFrame
            With a ``RangeIndex``.

        Raises
        ------
        MissingDependencyError
            Without pandas or pyarrow.
        KbatchError, ValueError, TypeError
            As for `tables`.
        """
        check_types(Conversions.to_pandas, locals())
        if dtype_backend not in ("numpy", "pyarrow"):
            raise ValueError(f"dtype_backend must be 'numpy' or 'pyarrow', got {dtype_backend!r}")
        pd = require("pandas", "pandas", "to_pandas()")
        require("pyarrow", "pandas", "to_pandas()")
        frame: pandas.DataFrame
        if dtype_backend == "pyarrow":
            frame = self.to_arrow(columns=columns, **options).to_pandas(types_mapper=pd.ArrowDtype)
            return frame
        view, arguments = self._view(columns, "binary", options)
        return joined_frames(self._tables(arguments), view)

    @suggests_names(READ_HINTS)
    def to_polars(self, *, columns: Sequence[str] | None = None, **options: Unpack[ViewOptions]) -> polars.DataFrame:
        """Return the records as a Polars DataFrame.

        Parameters
        ----------
        columns
            As for `to_arrow`.
        **options
            As for `to_arrow`.

        Returns
        -------
        polars.DataFrame
            Values longer than 12 bytes are not copied, unless they are a small part of the decompressed bytes: the
            frame keeps all these in memory.

        Raises
        ------
        MissingDependencyError
            Without polars or pyarrow.
        KbatchError, ValueError, TypeError
            As for `tables`.
        """
        check_types(Conversions.to_polars, locals())
        pl = require("polars", "polars", "to_polars()")
        frame: polars.DataFrame = pl.from_arrow(self.to_arrow(columns=columns, binary="binary_view", **options))
        return frame

    @suggests_names(READ_HINTS)
    def count(self, **options: Unpack[TableOptions]) -> int:
        """Return the number of records that a read with the same arguments returns.

        Parameters
        ----------
        **options
            As for `tables`.

        Raises
        ------
        KbatchError, ValueError, TypeError
            As for `tables`.

        Warns
        -----
        RuntimeWarning
            As for `to_arrow`.

        Notes
        -----
        With ``on_error="raise"`` batch headers are read, and no payloads, where the headers state the number: a batch
        of magic 2 or an uncompressed message, without `key` and `last`, whose offsets are all within the bounds. With a
        time as a bound, a batch counts by its header if its largest timestamp is before the bound, or if the broker
        has set the timestamps. All other batches are decoded. Damage in a batch that only its header counts is not
        detected, and the header's offsets and largest timestamp are relied on, as brokers validate them (TS-R4).

        With ``on_error="skip"`` or ``"stop"`` all batches are decoded, because that decides which ones are lost. With
        ``isolation="read_committed"`` the transactions are followed first, which reads the whole log.

        References
        ----------
        Rules such as TS-R4 are listed in ``docs/format-rules.md``.

        Examples
        --------
        >>> import kbatch
        >>> log = kbatch.Log("tests/golden/logs/txn-0")
        >>> log.count(), log.count(isolation="read_committed"), log.count(start=-10)
        (337, 228, 9)
        """
        arguments = ReadArguments.of(None, options)
        if arguments.decode.on_error != "raise":
            arguments = replace(arguments, decode=counted_options(arguments.decode))
            return sum(map(len, _reporting_losses(self._tables(arguments))))
        logs = self._logs_to_read()
        bounds = arguments.bounds(logs)
        count = sum(records_counted(log._selection(arguments, *ends)) for log, ends in zip(logs, bounds, strict=True))
        if not count:
            warn_if_after_end(logs, bounds)
        return count

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Stream all records to any reader of the Arrow C stream interface (pyarrow, Polars, DuckDB, ...).

        Tables are decoded as the reader requests them, so a reader that processes batches one by one needs the memory
        of about two tables (`Log.tables`, ``max_bytes``). The schema is that of `to_arrow`, unless the reader requests
        another. Errors of the read reach the reader through Arrow, as its own exceptions with the same message.
        """
        pa = require("pyarrow", "arrow", "the Arrow C stream")
        schema = self.schema if requested_schema is None else pa.Schema._import_from_c_capsule(requested_schema)
        view, arguments = self._view(schema.names, requested_binary(schema), {})
        batches = record_batches(self._tables(arguments), view)
        made = (each if each.schema.equals(schema) else each.cast(schema) for each in batches)
        return pa.RecordBatchReader.from_batches(schema, made).__arrow_c_stream__()

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        # Libraries that do not read Arrow streams, such as pandas, would make an array of Python objects.
        raise TypeError(
            f"a {type(self).__name__} is not an array: to_pandas(), to_polars() and to_arrow() return its records"
        )

    def _default_columns(self) -> tuple[str, ...]:
        return VIEW_COLUMNS if self._has_topic() else COLUMNS

    def _view(
        self, columns: Sequence[str] | None, binary: Binary, options: ViewOptions
    ) -> tuple[RecordView, ReadArguments]:
        """Return the columns and the arguments of a read; all are checked at once."""
        formats = ValueOptions.of(options)
        arguments = ReadArguments.of(None, options)
        values = value_columns_of(
            formats,
            lambda on: sample_logs(self._logs_to_read(), on, arguments.decode.crc),
            lambda: topics_of(self._logs_to_read()),
        )
        view = RecordView.of(columns, self._default_columns(), binary, values)
        return view, arguments.replaced(columns=view.columns)

    def _tables(self, arguments: ReadArguments) -> Iterator[RecordTable]:
        """Return the tables of all logs; the bounds are resolved at once, and bytes are read when they are needed."""
        logs = self._logs_to_read()
        bounds = arguments.bounds(logs)
        selections = (log._selection(arguments, *ends) for log, ends in zip(logs, bounds, strict=True))
        tables = _chained(selections)
        return _explaining(tables, logs, bounds) if any(start.is_before_now for start, _ in bounds) else tables


def _chained(selections: Iterable[LogSelection]) -> Iterator[RecordTable]:
    # A generator can be closed, which closes the file that is read.
    for each in selections:
        yield from each.tables()


def _record_count(n: int) -> int:
    if n < 0:
        raise ValueError(f"n must be a number of records, 0 or more, got {n}")
    return n


def record_batches(tables: Iterable[RecordTable], view: RecordView) -> Iterator[pyarrow.RecordBatch]:
    """Yield the records as batches, and warn of losses and of bad values at the end."""
    bad = BadValues(view.schema.names)
    for table in _reporting_losses(tables):
        made = view.batches(table, bad)
        # Frees the table before the next one is decoded.
        del table
        yield from made
        del made
    bad.warn()


def joined_frames(tables: Iterable[RecordTable], view: RecordView) -> pandas.DataFrame:
    """Return the records as one DataFrame; warnings as for `record_batches`."""
    pd = require("pandas", "pandas", "to_pandas()")
    bad = BadValues(view.schema.names)
    frames = [view.frame(table, bad) for table in _reporting_losses(tables) if len(table)]
    bad.warn()
    if not frames:
        return view.frame(RecordTable._empty(view.columns), bad)
    frame: pandas.DataFrame = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    return frame


def _first_rows(tables: Iterator[RecordTable], count: int) -> Iterator[RecordTable]:
    """Yield the first `count` records."""
    while count > 0 and (table := next(tables, None)) is not None:
        count -= len(table)
        yield table if count >= 0 else table[:count]
        del table


def last_rows(tables: Sequence[RecordTable], count: int) -> Iterator[RecordTable]:
    """Yield the last `count` records; tables keep their losses."""
    rest = max(0, sum(map(len, tables)) - count)
    for table in tables:
        yield table[min(rest, len(table)) :]
        rest = max(0, rest - len(table))


def _reporting_losses(tables: Iterable[RecordTable]) -> Iterator[RecordTable]:
    """Yield the tables, and warn of losses at the end."""
    lengths: list[int] = []
    for table in tables:
        lengths += table.losses.lengths.tolist()
        yield table
        del table
    if (text := losses_text(lengths)) is not None:
        warnings.warn(text, RuntimeWarning, stacklevel=callers_stacklevel())


def losses_text(lengths: Sequence[int]) -> str | None:
    """Return the warning about the losses of a read, given the number of bytes of each (0 for a gap)."""
    ranges, gaps = sum(length > 0 for length in lengths), list(lengths).count(0)
    found = []
    if ranges:
        lost = counted(sum(lengths), "byte")
        found.append(f"{counted(ranges, 'loss')} of {lost}: damaged batches have no records here")
    if gaps:
        found.append(f"{counted(gaps, 'gap')} of unknown cause between segments, whose offsets are missing here")
    return f"{'; '.join(found)}; the tables of Log.tables list them in losses" if found else None


def _explaining(
    tables: Iterable[RecordTable], logs: Sequence[ReadableLog], bounds: Sequence[tuple[LogBound, LogBound]]
) -> Iterator[RecordTable]:
    """Yield the tables, and warn if they have no record because their start is relative to now."""
    count = 0
    for table in tables:
        count += len(table)
        yield table
        del table
    if not count:
        warn_if_after_end(logs, bounds)


def warn_if_after_end(logs: Sequence[BoundedLog], bounds: Sequence[tuple[LogBound, LogBound]]) -> None:
    """Warn if the start of each log is a duration before now, and lies after its last timestamp."""
    starts = [start for start, _ in bounds]
    if not starts or not all(start.is_before_now for start in starts):
        return
    lasts = [log.last_timestamp for log in logs]
    if any(
        start.timestamp is None or (last or -1) >= start.timestamp for start, last in zip(starts, lasts, strict=True)
    ):
        return
    known = [last for last in lasts if last is not None and last >= 0]
    first = min(start.timestamp for start in starts if start.timestamp is not None)
    if known:
        warnings.warn(
            f"no records: the start is {shown_time(first)}, relative to now, and the last timestamp is "
            f'{shown_time(max(known))}; start="end-1h" is relative to the end of the topic',
            RuntimeWarning,
            stacklevel=callers_stacklevel(),
        )
