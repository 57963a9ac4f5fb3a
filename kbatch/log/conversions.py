"""The records of logs as Arrow, pandas and Polars, table by table."""

from __future__ import annotations

import itertools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NoReturn, TypedDict

from typing_extensions import Unpack

from kbatch.arguments import check_types
from kbatch.errors import KbatchError
from kbatch.escaping import counted
from kbatch.extras import require
from kbatch.format import COLUMNS, VIEW_COLUMNS, Limits
from kbatch.log.ranges import LogSelection
from kbatch.log.segment import Segment
from kbatch.options import Binary
from kbatch.quantities import SizeLike, TimeLike, fixed_time
from kbatch.read.decode_options import Crc, DecodeOptions, Isolation, OnError
from kbatch.records.arrow import requested_binary, to_arrow, view_schema
from kbatch.records.data import checked_columns
from kbatch.records.display import html_of, table_rows
from kbatch.table import RecordTable

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

__all__ = ["Conversions", "TableOptions", "TablesOfLog", "fixed_times"]

# A notebook shows the first records of a log if these first batches have any.
_HEAD_BATCHES = 16


class TableOptions(TypedDict, total=False):
    """The arguments of `Log.tables` except `columns`."""

    start_offset: int | None
    stop_offset: int | None
    start_timestamp: TimeLike | None
    stop_timestamp: TimeLike | None
    last: int | None
    isolation: Isolation
    include_control: bool
    crc: Crc
    on_error: OnError
    limits: Limits | None
    threads: int
    max_bytes: SizeLike


class Conversions(ABC):
    """The conversions that one log and a list of logs have in common."""

    @abstractmethod
    def tables(self, *, columns: Sequence[str] | None = None, **options: Unpack[TableOptions]) -> Iterator[RecordTable]:
        """Decode the records, in tables of bounded size."""

    @abstractmethod
    def _has_topic(self) -> bool:
        """Return whether the topic and partition are known."""

    def to_arrow(
        self,
        *,
        columns: Sequence[str] | None = None,
        binary: Binary = "binary",
        **options: Unpack[TableOptions],
    ) -> pyarrow.Table:
        """Return all records as an Arrow table; ``pyarrow.RecordBatchReader.from_stream(log)`` streams them.

        Parameters
        ----------
        columns : sequence of str, optional
            As for `tables`: some of offset, timestamp, timestampType, key, value, headers, topic and partition, in
            the order of the result. Default is all of them; topic and partition only if they are known.
        binary : {"binary", "large_binary", "binary_view"}
            As for `RecordTable.to_arrow`. A view may keep the decompressed bytes of all batches in memory.
        **options
            As for `tables`, such as ``start_offset``, ``start_timestamp`` and ``isolation``.

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
            them in ``losses``.

        Examples
        --------
        >>> import kbatch
        >>> kbatch.Log("tests/golden/logs/codec-none-0").to_arrow(columns=["topic", "offset"]).schema
        topic: string
        offset: int64
        """
        check_types(Conversions.to_arrow, locals())
        pa = require("pyarrow", "arrow", "to_arrow()")
        schema = view_schema(self._columns(columns), binary=binary)
        return pa.Table.from_batches(self._arrow_batches(schema, binary, options), schema=schema)

    def to_pandas(
        self,
        *,
        columns: Sequence[str] | None = None,
        dtype_backend: Literal["numpy", "pyarrow"] = "numpy",
        **options: Unpack[TableOptions],
    ) -> pandas.DataFrame:
        """Return all records as a pandas DataFrame.

        Parameters
        ----------
        columns, **options
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
        names = self._columns(columns)
        frames = [table.to_pandas() for table in self._complete_tables(names, options) if len(table)]
        if not frames:
            return RecordTable._empty(names).to_pandas()
        frame = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
        return frame

    def to_polars(self, *, columns: Sequence[str] | None = None, **options: Unpack[TableOptions]) -> polars.DataFrame:
        """Return all records as a Polars DataFrame.

        Parameters
        ----------
        columns, **options
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

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Stream all records to any reader of the Arrow C stream interface (pyarrow, Polars, DuckDB, ...).

        Tables are decoded as the reader requests them, so a reader that processes batches one by one needs the memory
        of about two tables (`Log.tables`, ``max_bytes``). The schema is that of `to_arrow`, unless the reader requests
        another. Errors of the read reach the reader through Arrow, as its own exceptions with the same message.
        """
        pa = require("pyarrow", "arrow", "the Arrow C stream")
        if requested_schema is None:
            schema = view_schema(self._columns(None))
        else:
            schema = pa.Schema._import_from_c_capsule(requested_schema)
        batches = self._arrow_batches(schema, requested_binary(schema), {})
        return pa.RecordBatchReader.from_batches(schema, batches).__arrow_c_stream__()

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        # Libraries that do not read Arrow streams, such as pandas, would make an array of Python objects.
        raise TypeError(
            f"a {type(self).__name__} is not an array: to_pandas(), to_polars() and to_arrow() return its records"
        )

    def _columns(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        if columns is not None:
            return checked_columns(columns)
        return VIEW_COLUMNS if self._has_topic() else COLUMNS

    def _arrow_batches(
        self, schema: pyarrow.Schema, binary: Binary, options: TableOptions
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the records as batches of `schema`."""
        for table in self._complete_tables(checked_columns(schema.names), options):
            made = to_arrow(table, binary=binary)
            # Frees the table before the next one is decoded.
            del table
            yield from (made if made.schema.equals(schema) else made.cast(schema)).to_batches()
            del made

    def _complete_tables(self, columns: tuple[str, ...], options: TableOptions) -> Iterator[RecordTable]:
        """Yield the tables, and warn of losses at the end."""
        lengths: list[int] = []
        for table in self.tables(columns=columns, **options):
            lengths += table.losses.lengths.tolist()
            yield table
            del table
        ranges, gaps = sum(length > 0 for length in lengths), lengths.count(0)
        found = []
        if ranges:
            lost = counted(sum(lengths), "byte")
            found.append(f"{counted(ranges, 'loss')} of {lost}: damaged batches have no records here")
        if gaps:
            found.append(f"{counted(gaps, 'gap')} of unknown cause between segments, whose offsets are missing here")
        if found:
            warnings.warn(
                f"{'; '.join(found)}; the tables of tables() list them in table.losses", RuntimeWarning, stacklevel=4
            )


def fixed_times(options: TableOptions) -> TableOptions:
    """Return the options of a read of several logs with times that are the same for all of them."""
    fixed = options.copy()
    if (start := options.get("start_timestamp")) is not None:
        fixed["start_timestamp"] = fixed_time(start, "start_timestamp")
    if (stop := options.get("stop_timestamp")) is not None:
        fixed["stop_timestamp"] = fixed_time(stop, "stop_timestamp")
    return fixed


class TablesOfLog(Conversions):
    """A log as an iterable of its tables, without a length; its display in a notebook."""

    topic: str | None
    partition: int | None
    segments: list[Segment]
    use_indexes: bool

    @property
    @abstractmethod
    def start_checkpoint(self) -> int | None:
        """The broker's log start offset, if it is known."""

    def _has_topic(self) -> bool:
        return self.topic is not None

    @abstractmethod
    def _shown_facts(self) -> Iterator[tuple[str, str]]:
        """Yield the names and texts of what a notebook shows of a log; the first one is its path."""

    def _repr_html_(self) -> str:
        """Return offsets, times, columns and first rows for a notebook: reads the first and the last batches."""
        facts = [
            ("", f"{counted(len(self.segments), 'segment')}, {counted(sum(s.size for s in self.segments), 'byte')}")
        ]
        head = RecordTable._empty(self._columns(None))
        try:
            facts += self._shown_facts()
            # Each table has one batch. The first batches may have no records: transaction markers, or compacted away.
            options = DecodeOptions(columns=self._columns(None), start_offset=self.start_checkpoint)
            names = (self.topic, self.partition)
            tables = LogSelection(self.segments, options, 1, None, None, self.use_indexes, *names).tables()
            head = next((table for table in itertools.islice(tables, _HEAD_BATCHES) if len(table)), head)
        except (KbatchError, OSError) as error:
            facts.append(("error", str(error)))
        return html_of("Log", facts, *table_rows(head))

    def __iter__(self) -> Iterator[RecordTable]:
        return self.tables()

    def __len__(self) -> NoReturn:
        raise TypeError(
            "a Log has no length: sum(map(len, log)) counts its records by decoding all of them, len(log.segments) its "
            "segments, and log.size its bytes; log.end_offset - log.start_offset is an upper bound on the records"
        )

    def __bool__(self) -> bool:
        return True
