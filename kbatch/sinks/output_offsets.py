"""The offsets in an output: the column of its data files, and the ranges that its commits cover."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from kbatch.errors import LogDirectoryError
from kbatch.sinks.commits import DataFileName
from kbatch.sinks.file_names import EXPORT_PREFIX, log_of, run_of
from kbatch.sinks.manifest import MANIFEST, Manifest
from kbatch.sinks.offset_ranges import OFFSETS_KEY, CommitOffsets, offsets_file
from kbatch.sinks.outputs import OutputPlace
from kbatch.sinks.run_record import RunRecord
from kbatch.sinks.table_target import Table

__all__ = ["CoveredRange", "ExportOutput", "RowGroup", "open_output", "read_offsets", "row_groups"]

_DELTA_LOG = "_delta_log"
# How often to list the files of an output and to read a manifest while exports commit.
_LISTINGS = 5


@dataclass(slots=True)
class CoveredRange:
    """The offsets of a topic-partition that consecutive commits with the same options cover.

    Attributes
    ----------
    start, end, records, has_losses, restart
        As in `OffsetRange`; `records` is the sum.
    first_run : int
        The number of the first run in `ExportOutput.runs`.
    isolation, has_control, has_key
        As in `CommitOffsets`.
    """

    start: int
    end: int
    records: int
    has_losses: int
    restart: str
    first_run: int
    isolation: str
    has_control: bool
    has_key: bool

    def extend_back(self, before: CoveredRange) -> bool:
        """Add the range of the preceding commit if this range continues it; return whether it does."""
        options = (self.isolation, self.has_control, self.has_key)
        if (
            self.restart
            or before.end != self.start
            or options != (before.isolation, before.has_control, before.has_key)
        ):
            return False
        self.start, self.restart, self.first_run = before.start, before.restart, before.first_run
        self.records += before.records
        self.has_losses |= before.has_losses
        return True


@dataclass
class ExportOutput:
    """The contents of an output.

    Attributes
    ----------
    place : OutputPlace
    files : dict of (topic, partition) to list of str
        Names of data files, relative to the output.
    runs : dict of str to int
        The number of each run, counted back from the last commit, which is 0.
    covered : dict of (topic, partition) to list of CoveredRange
        Beginning with the last commit.
    unknown_run : str or None
        The run before the first of `runs`, if the offsets that it covers are unknown.
    """

    place: OutputPlace
    files: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    covered: dict[tuple[str, int], list[CoveredRange]] = field(default_factory=dict)
    unknown_run: str | None = None

    def add(self, file: DataFileName) -> None:
        """Add a data file."""
        self.files.setdefault((file.topic, file.partition), []).append(file.name)

    def add_before(self, run: str, text: str, source: str) -> str | None:
        """Add the offsets of a run that precedes all added runs; return the run before it.

        Raises
        ------
        LogDirectoryError
            If the text of `source` is something else, or the run was added already.
        """
        try:
            if run in self.runs:
                raise ValueError(f"the run {run} comes after itself")
            offsets = CommitOffsets.parse(text)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise LogDirectoryError(
                f"{source}: not the offsets of a commit ({type(error).__name__}: {error}); restore it from a copy",
                source=source,
            ) from error
        number = self.runs[run] = len(self.runs)
        for log, each in offsets.ranges.items():
            found = self.covered.setdefault(log, [])
            before = CoveredRange(*each, number, offsets.isolation, offsets.has_control, offsets.has_key)
            if not (found and found[-1].extend_back(before)):
                found.append(before)
        return offsets.after


def open_output(place: OutputPlace, table: str | None, catalog: str | None) -> ExportOutput:
    """Return the files and the commits of an output, which is a directory or a table.

    Raises
    ------
    LogDirectoryError
        If it is not the output of an export.
    """
    entries = place.entries()
    if table is not None:
        from kbatch.sinks.iceberg import IcebergTable

        return _table_output(place, IcebergTable(place, False, table, catalog))
    if _DELTA_LOG in entries:
        from kbatch.sinks.delta import DeltaTable

        return _table_output(place, DeltaTable(place, False))
    if MANIFEST not in entries:
        hint = (
            "; the files of an Iceberg table: name the table"
            if any(name.startswith(EXPORT_PREFIX) for name in entries)
            else ""
        )
        raise LogDirectoryError(f"{place.url}: not the output of an export{hint}", source=place.url)
    output = ExportOutput(place)
    manifest = _add_files(output)
    for entry in reversed(manifest.runs):
        text = entry.get(OFFSETS_KEY)
        if text is None:
            output.unknown_run = entry["run"]
            break
        output.add_before(entry["run"], text, f"{place.url}/{MANIFEST}")
    return output


def _add_files(output: ExportOutput) -> Manifest:
    """Add the data files of a directory and return its manifest, both from the same moment between two commits."""
    place = output.place
    for _ in range(_LISTINGS):
        manifest = _whole_manifest(place)
        # In an object store, files of killed runs do not count.
        names = place.files() if place.local and manifest is not None else []
        running = RunRecord(place).unfinished_runs
        later = _whole_manifest(place)
        if manifest is None or later is None:
            break
        own = [run["run"] for run in manifest.runs]
        if [run["run"] for run in later.runs[: len(own)]] == own:
            # Other runs have placed their files since, or are placing them.
            others = {*running, *(run["run"] for run in later.runs)} - {*own}
            for name in names if place.local else manifest.files:
                log = log_of(name) if name.endswith((".parquet", ".arrow")) else None
                if log is not None and run_of(name) not in others:
                    output.add(DataFileName(*log, name))
            return manifest
    raise LogDirectoryError(f"{place.url}: its data was replaced meanwhile; try it again", source=place.url)


def _whole_manifest(place: OutputPlace) -> Manifest | None:
    """Return the manifest; it is read again if it is incomplete, because an object store was replacing it."""
    for _ in range(0 if place.local else _LISTINGS):
        with contextlib.suppress(LogDirectoryError):
            return Manifest.read(place)
    return Manifest.read(place)


def _table_output(place: OutputPlace, table: Table) -> ExportOutput:
    if not table.exists():
        raise LogDirectoryError(f"{place.url}: there is no table: {table.title}", source=place.url)
    output = ExportOutput(place)
    run, files = table.contents()
    for file in files:
        output.add(file)
    while run is not None:
        data = place.read(offsets_file(run))
        text = table.commit_offsets(run) if data is None else data.decode("utf-8", "replace")
        if text is None:
            output.unknown_run = run
            break
        run = output.add_before(run, text, f"{place.url}/{offsets_file(run)}")
    return output


class RowGroup(NamedTuple):
    """A row group, or a record batch, of a data file.

    Attributes
    ----------
    name : str
    number : int
    rows : int
    low, high : int
        The first and the last offset.
    """

    name: str
    number: int
    rows: int
    low: int
    high: int


def row_groups(place: OutputPlace, names: Sequence[str]) -> Iterator[RowGroup]:
    """Yield the non-empty row groups of files; row groups without statistics are read for their offsets."""
    for name in names:
        with _opened_file(place, name) as file:
            for number in range(file.count):
                rows, bounds = file.bounds(number)
                if bounds is None and rows:
                    offsets = file.read(number)
                    bounds = int(offsets.min()), int(offsets.max())
                if bounds is not None:
                    yield RowGroup(name, number, rows, *bounds)


def read_offsets(place: OutputPlace, group: RowGroup) -> npt.NDArray[np.int64]:
    """Return the offsets of a row group; no other column is read."""
    with _opened_file(place, group.name) as file:
        return file.read(group.number)


@contextlib.contextmanager
def _opened_file(place: OutputPlace, name: str) -> Iterator[_ParquetOffsets | _ArrowOffsets]:
    try:
        with place.open(name) as file:
            yield _ArrowOffsets(file) if name.endswith(".arrow") else _ParquetOffsets(file)
    except (OSError, ValueError, KeyError) as error:
        raise LogDirectoryError(
            f"{place.url}/{name}: its offsets cannot be read ({type(error).__name__}: {error})", source=place.url
        ) from error


class _ParquetOffsets:
    """The column `offset` of a Parquet file."""

    def __init__(self, file: Any) -> None:
        self._file = pyarrow.parquet.ParquetFile(file)
        schema = self._file.schema
        found = [number for number in range(len(schema)) if schema.column(number).path == "offset"]
        if not found:
            raise ValueError("there is no column offset")
        self._column = found[0]
        self.count = self._file.metadata.num_row_groups

    def bounds(self, number: int) -> tuple[int, tuple[int, int] | None]:
        """Return the number of rows, and the first and the last offset if there are statistics."""
        group = self._file.metadata.row_group(number)
        found = group.column(self._column).statistics
        return group.num_rows, (found.min, found.max) if found is not None and found.has_min_max else None

    def read(self, number: int) -> npt.NDArray[np.int64]:
        return _as_numpy(self._file.read_row_group(number, columns=["offset"]).column("offset"))


class _ArrowOffsets:
    """The column `offset` of a file of Arrow's IPC format."""

    def __init__(self, file: Any) -> None:
        column = pyarrow.ipc.open_file(file).schema.get_field_index("offset")
        if column < 0:
            raise ValueError("there is no column offset")
        self._file = pyarrow.ipc.open_file(file, options=pyarrow.ipc.IpcReadOptions(included_fields=[column]))
        self.count = self._file.num_record_batches

    def bounds(self, number: int) -> tuple[int, tuple[int, int] | None]:
        return self._file.get_batch(number).num_rows, None

    def read(self, number: int) -> npt.NDArray[np.int64]:
        return _as_numpy(self._file.get_batch(number).column("offset"))


def _as_numpy(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    if column.null_count:
        raise ValueError("the column offset has nulls")
    return np.asarray(column, np.int64)
