"""The data files of one topic-partition in a task: Parquet or Arrow IPC, of bounded size, in sequence or by day."""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from kbatch.errors import KbatchError
from kbatch.quantities import largest, smallest
from kbatch.sinks.file_names import FileNames
from kbatch.sinks.outputs import OutputPlace
from kbatch.sinks.parquet import ParquetFile
from kbatch.sinks.write_options import WriteOptions, parse_compression

__all__ = [
    "DAY_MICROSECONDS",
    "HIVE_NULL",
    "DataFiles",
    "FileLimits",
    "WrittenFile",
    "day_name",
    "file_schema",
    "file_size",
]

# Fractions of the target size: a file that lacks at most FILE_SLACK is full, and the last rows of a task go into a file
# that exceeds it by up to FILE_REST. A row group may exceed its size by GROUP_SLACK.
FILE_SLACK = 1 / 16
FILE_REST = 1 / 8
GROUP_SLACK = 1 / 16

# The directory name of Spark and Hive for rows whose partition column is null.
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"

DAY_MICROSECONDS = 86_400_000_000


@dataclass(frozen=True)
class FileLimits:
    """Limits of writing by day, for one topic-partition in one task.

    Attributes
    ----------
    open_files : int
        Number of days whose files are open at the same time. To open another, the least recently used file is closed.
    held_bytes : int
        Memory for the rows of all days; above it, the largest row group is written. If timestamps move back and forth,
        this gives small row groups, but not a file for every few rows. Two row groups may be held in any case.
    days : int
        Maximum number of days, one directory each. Timestamps that span more than the default, 27 years, are not
        record times.

    Examples
    --------
    >>> from kbatch.sinks.files import FileLimits
    >>> FileLimits(open_files=2)
    FileLimits(open_files=2, held_bytes=134217728, days=10000)
    """

    open_files: int = 32
    held_bytes: int = 128 << 20
    days: int = 10_000


@dataclass(slots=True)
class WrittenFile:
    """A data file that a task has written.

    Attributes
    ----------
    name : str
        The name, relative to the place of `FileNames`.
    file_bytes, rows : int
    first_offset, last_offset : int
        The smallest and the largest offset.
    first_timestamp, last_timestamp : int or None
        The smallest and the largest timestamp, in microseconds since the epoch.
    null_timestamps : int
    date : str or None
        The day of all its timestamps, as in the name of the directory; None without `by_day`.
    """

    name: str
    file_bytes: int = 0
    rows: int = 0
    first_offset: int = 0
    last_offset: int = 0
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    null_timestamps: int = 0
    date: str | None = None

    def add(self, piece: _FileRows) -> None:
        """Count written rows."""
        self.first_offset = piece.first if not self.rows else min(self.first_offset, piece.first)
        self.last_offset = piece.last if not self.rows else max(self.last_offset, piece.last)
        self.rows += piece.batch.num_rows
        self.null_timestamps += piece.null_timestamps
        self.first_timestamp = smallest(self.first_timestamp, piece.earliest)
        self.last_timestamp = largest(self.last_timestamp, piece.latest)


class _FileRows(NamedTuple):
    """Rows for one file, with their ranges of offsets and timestamps."""

    batch: pa.RecordBatch
    first: int
    last: int
    ascending: bool
    earliest: int | None
    latest: int | None
    null_timestamps: int


@dataclass
class _Day:
    """Rows of a day that are waiting for their row group; without `by_day`, one object holds all rows."""

    pieces: list[_FileRows] = field(default_factory=list)
    rows: int = 0
    nbytes: int = 0

    def add(self, piece: _FileRows) -> None:
        self.pieces.append(piece)
        self.rows += piece.batch.num_rows
        self.nbytes += piece.batch.nbytes


class _FormatWriter(Protocol):
    def write(self, batches: list[pa.RecordBatch]) -> None: ...
    def close(self) -> None: ...


class DataFiles:
    """Writes the rows of one topic-partition: a context manager that removes the files after an error.

    Parameters
    ----------
    names : FileNames
    log : (str, int)
        The topic and partition.
    task : int
        The number of the task.
    schema : pyarrow.Schema
        The schema of the files.
    options : WriteOptions
    source : str
        The source to name in errors.
    limits : FileLimits, optional

    Attributes
    ----------
    written : list of WrittenFile
        In the order of opening; complete after the ``with`` block.
    """

    def __init__(
        self,
        names: FileNames,
        log: tuple[str, int],
        task: int,
        schema: pa.Schema,
        options: WriteOptions,
        source: str,
        limits: FileLimits = FileLimits(),
    ) -> None:
        self.written: list[WrittenFile] = []
        self._names = names
        self._log = log
        self._task = task
        self._schema = schema
        self._options = options
        self._source = source
        self._limits = limits
        self._days: dict[int | None, _Day] = {}
        self._held = 0
        # The size in memory of all rows that were added so far.
        self._given = 0
        # The bytes in the file per byte in memory, from the file that was written last.
        self._ratio: float | None = None
        # In order of their last use.
        self._open: OrderedDict[int | None, _OpenFile] = OrderedDict()

    def __enter__(self) -> DataFiles:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            try:
                for day in self._days:
                    self._flush(day, 0)
                    self._close(day)
                return
            except BaseException:
                self._abort()
                raise
        self._abort()

    def write(self, batch: pa.RecordBatch, offsets: pa.Array, timestamps: pa.Array, left: float = math.inf) -> None:
        """Add rows.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            With the schema.
        offsets, timestamps : pyarrow.Array
            The offset and timestamp of each row: int64, and timestamp[us], which may be null.
        left : float
            An estimate of the number of rows that follow, as a multiple of the rows so far. The last few rows do not
            get a separate file.
        """
        # Unlike `to_numpy`, this does not import pandas, which takes 0.3 s.
        numbers: npt.NDArray[np.int64] = np.from_dlpack(offsets)  # type: ignore[assignment]
        if not self._options.by_day:
            self._given += batch.nbytes
            self._hold(None, batch, numbers, timestamps, self._given * left)
            return
        days = _days(timestamps)
        if days.min() == days.max():
            self._hold(None if days[0] == _NO_DAY else int(days[0]), batch, numbers, timestamps)
            return
        # The rows of a day keep their order. They are copied, because a slice would keep the whole batch in memory.
        order = np.argsort(days, kind="stable")
        bounds = np.flatnonzero(np.diff(days[order], prepend=_NO_DAY - 1, append=-_NO_DAY)).tolist()
        for start, stop in pairwise(bounds):
            rows = order[start:stop]
            day = int(days[rows[0]])
            chosen = pa.array(rows)
            key = None if day == _NO_DAY else day
            self._hold(key, batch.take(chosen), numbers[rows], timestamps.take(chosen))

    def _hold(
        self,
        key: int | None,
        batch: pa.RecordBatch,
        offsets: npt.NDArray[np.int64],
        timestamps: pa.Array,
        rest: float = math.inf,
    ) -> None:
        """Add rows of a day to its row group, and write the row group whenever it is full.

        `rest` is an estimate of the bytes in memory of later rows.
        """
        day = self._days.get(key)
        if day is None:
            if len(self._days) >= self._limits.days:
                raise KbatchError(
                    f"{self._source}: timestamps of more than {self._limits.days} days; by_day would create a "
                    "directory for each: write it without by_day"
                )
            day = self._days[key] = _Day()
        while batch.num_rows:
            fit = self._fitting(key, day, batch, rest)
            if fit:
                piece = _piece(batch.slice(0, fit), offsets[:fit], timestamps.slice(0, fit))
                day.add(piece)
                self._held += piece.batch.nbytes
                batch, offsets, timestamps = batch.slice(fit), offsets[fit:], timestamps.slice(fit)
            if batch.num_rows:
                self._flush(key, rest + batch.nbytes)
        held = max(self._limits.held_bytes, 2 * self._options.row_group_bytes)
        while len(self._days) > 1 and self._held > held:
            self._flush(max(self._days, key=lambda each: self._days[each].nbytes), rest)

    def _fitting(self, key: int | None, day: _Day, batch: pa.RecordBatch, rest: float) -> int:
        """Return how many rows of a batch fit the row group of a day, which ends where its file is full."""
        rows, size = batch.num_rows, batch.nbytes
        most = min(rows, self._options.row_group_rows - day.rows)
        group = self._options.row_group_bytes - day.nbytes
        free = self._free_bytes(key, day.nbytes + size + rest) - day.nbytes
        if size > free or size > group + GROUP_SLACK * self._options.row_group_bytes:
            most = min(most, int(rows * max(0.0, min(free, group)) / size))
        return int(max(most, 0 if day.rows else 1))

    def _free_bytes(self, key: int | None, rest: float) -> float:
        """Return how many bytes in memory the file of a day takes before it is full, if `rest` bytes follow."""
        file = self._open.get(key)
        ratio = self._ratio if file is None else file.ratio
        target = self._options.file_bytes
        if ratio is None:
            # The first row group shows how well the rows compress.
            return target / 2
        written = 0 if file is None else file.size
        return math.inf if written + ratio * rest <= target * (1 + FILE_REST) else (target - written) / ratio

    def _flush(self, key: int | None, rest: float) -> None:
        """Write the rows of a day as one row group; close its file if it is full and more than a few rows follow."""
        day = self._days[key]
        if not day.pieces:
            return
        lasts = [piece.last for piece in day.pieces[:-1]]
        ascending = all(piece.ascending for piece in day.pieces) and all(
            last <= piece.first for last, piece in zip(lasts, day.pieces[1:], strict=True)
        )
        file = self._open.get(key)
        if file is not None and not file.continues(day, ascending):
            self._close(key)
            file = None
        if file is None:
            if len(self._open) >= self._limits.open_files:
                self._close(next(iter(self._open)))
            file = self._create(key, ascending)
        self._open.move_to_end(key)
        file.write(day)
        self._ratio = file.ratio
        self._held -= day.nbytes
        day.pieces, day.rows, day.nbytes = [], 0, 0
        target = self._options.file_bytes
        if file.size >= target * (1 - FILE_SLACK) and file.size + file.ratio * rest > target * (1 + FILE_REST):
            self._close(key)

    def _create(self, key: int | None, ascending: bool) -> _OpenFile:
        date = day_name(key) if self._options.by_day else None
        day = self._days[key]
        first_offset = min(piece.first for piece in day.pieces)
        name = self._names.data_file(self._log, date, first_offset, self._task, self._options.suffix)
        written = WrittenFile(name, date=date)
        self.written.append(written)
        file = _OpenFile(self._names.place, written, self._schema, self._options, ascending)
        self._open[key] = file
        return file

    def _close(self, key: int | None) -> None:
        file = self._open.get(key)
        if file is not None:
            file.close()
            del self._open[key]

    def _abort(self) -> None:
        for file in self._open.values():
            with contextlib.suppress(Exception):
                file.close()
        for written in self.written:
            with contextlib.suppress(Exception):
                self._names.place.remove(written.name)


class _OpenFile:
    """A data file that is being written, with the compression ratio of its rows."""

    def __init__(
        self,
        place: OutputPlace,
        written: WrittenFile,
        schema: pa.Schema,
        options: WriteOptions,
        ascending: bool,
    ) -> None:
        self._written = written
        self._ascending = ascending
        self._raw = 0
        self._stream = place.create(written.name)
        self._format = _format_writer(self._stream, schema, options, ascending)

    @property
    def size(self) -> int:
        """The bytes written so far."""
        size: int = self._stream.tell()
        return size

    @property
    def ratio(self) -> float:
        """The bytes in the file per byte in memory."""
        return self.size / max(1, self._raw)

    def continues(self, day: _Day, ascending: bool) -> bool:
        """Whether these rows keep the file in order."""
        return not self._ascending or (ascending and self._written.last_offset <= day.pieces[0].first)

    def write(self, day: _Day) -> None:
        self._format.write([piece.batch for piece in day.pieces])
        for piece in day.pieces:
            self._written.add(piece)
        self._raw += day.nbytes

    def close(self) -> None:
        try:
            self._format.close()
            self._written.file_bytes = self._stream.tell()
        finally:
            self._stream.close()


def file_size(batches: list[pa.RecordBatch], schema: pa.Schema, options: WriteOptions) -> int:
    """Return the size of batches in a file, without its footer."""
    stream = pa.MockOutputStream()
    file = _format_writer(stream, schema, options, True)
    file.write(batches)
    size: int = stream.size()
    file.close()
    return size


class _ArrowFile:
    def __init__(self, stream: pa.NativeFile, schema: pa.Schema, options: WriteOptions) -> None:
        codec, level = parse_compression(options.compression)
        compression = None if codec == "none" else pa.Codec("lz4_frame" if codec == "lz4" else codec, level)
        self._writer = pa.ipc.new_file(stream, schema, options=pa.ipc.IpcWriteOptions(compression=compression))

    def write(self, batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


def _format_writer(stream: pa.NativeFile, schema: pa.Schema, options: WriteOptions, ascending: bool) -> _FormatWriter:
    if options.format == "arrow":
        return _ArrowFile(stream, schema, options)
    return ParquetFile(stream, schema, options, ascending)


def _piece(batch: pa.RecordBatch, offsets: npt.NDArray[np.int64], timestamps: pa.Array) -> _FileRows:
    ascending = bool((offsets[1:] >= offsets[:-1]).all())
    first, last = (offsets[0], offsets[-1]) if ascending else (offsets.min(), offsets.max())
    extent = pc.min_max(timestamps.cast(pa.int64()))
    return _FileRows(
        batch,
        int(first),
        int(last),
        ascending,
        extent["min"].as_py(),
        extent["max"].as_py(),
        timestamps.null_count,
    )


# A day that no timestamp can have.
_NO_DAY = -(1 << 62)


def _days(timestamps: pa.Array) -> npt.NDArray[np.int64]:
    """Return days since the epoch, in UTC."""
    numbers = timestamps.cast(pa.int64()).fill_null(_NO_DAY).to_numpy(zero_copy_only=False)
    days: npt.NDArray[np.int64] = np.where(numbers == _NO_DAY, _NO_DAY, numbers // DAY_MICROSECONDS)
    return days


def day_name(day: int | None) -> str:
    """Return the name of a day since the epoch, as Spark writes it, or the name for rows without a timestamp.

    Examples
    --------
    >>> from kbatch.sinks.files import day_name
    >>> day_name(19_675), day_name(None)
    ('2023-11-14', '__HIVE_DEFAULT_PARTITION__')
    """
    if day is None:
        return HIVE_NULL
    text = str(np.datetime64(day, "D"))
    # java.time writes years of more than four digits in this way.
    return f"+{text}" if text.index("-", 1) > 4 and not text.startswith("-") else text


def file_schema(place: OutputPlace, name: str) -> pa.Schema:
    """Return the schema of a data file."""
    with place.fs.open_input_file(place.path(name)) as file:
        if name.endswith(".arrow"):
            return pa.ipc.open_file(file).schema
        return pyarrow.parquet.read_schema(file)
