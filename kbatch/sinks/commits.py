"""The commits of runs, and the outputs that accept them: one interface for files and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from kbatch.errors import KbatchError
from kbatch.plan.positions import Position, Positions
from kbatch.sinks.file_names import FileNames
from kbatch.sinks.files import WrittenFile
from kbatch.sinks.outputs import OutputPlace
from kbatch.sinks.schema_changes import SchemaChange

__all__ = ["Commit", "CommittedFile", "DataFileName", "LogName", "OutputState", "RunTarget", "TableCommitError"]


class TableCommitError(KbatchError):
    """A table's library rejected the files, or it is unknown whether it accepted them."""

    def __init__(self, message: str, *, unknown: bool = False) -> None:
        super().__init__(message)
        self.unknown = unknown


class LogName(NamedTuple):
    """A topic-partition, and the topic's id if it is known."""

    topic: str
    partition: int
    topic_id: str | None


class DataFileName(NamedTuple):
    """A data file of an output: its topic-partition, and its name relative to the output."""

    topic: str
    partition: int
    name: str


class OutputState(NamedTuple):
    """What an output contains before a run.

    Attributes
    ----------
    exists : bool
    positions : dict of (topic, partition) to Position, or None
        The positions of the logs of this run that were exported before; None if the output has data of unknown origin.
    run : str or None
        The run that committed last, if known.
    """

    exists: bool
    positions: dict[tuple[str, int], Position] | None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A data file of a run.

    Attributes
    ----------
    topic : str
    partition : int
    written : WrittenFile
    """

    topic: str
    partition: int
    written: WrittenFile

    @property
    def name(self) -> str:
        """The file's name, relative to the output."""
        return self.written.name


@dataclass(frozen=True)
class Commit:
    """The files and positions of a run, which become visible at once.

    Attributes
    ----------
    replace : bool
        Whether all earlier data is replaced.
    files : sequence of CommittedFile
    side_files : sequence of str
        Names of side tables and their files.
    schema : pyarrow.Schema
        The schema of the data files.
    positions : mapping of (topic, partition) to Position
        The positions of its logs after the run.
    summary : dict
        The fields of the summary, for the manifest.
    report : str or None
        Name of the file with the report of the run, relative to the place of `FileNames`.
    offsets : str
        The text of `kbatch.sinks.offset_ranges.CommitOffsets`.
    """

    replace: bool
    files: Sequence[CommittedFile]
    side_files: Sequence[str]
    schema: pa.Schema
    positions: Positions
    summary: dict[str, Any] = field(default_factory=dict)
    report: str | None = None
    offsets: str = ""


class RunTarget(Protocol):
    """The output of one run. Its methods are called in this order; from `recover` to `commit`, the output is locked.

    Attributes
    ----------
    out : OutputPlace
    run : str
        The run's id, eight hexadecimal digits.
    manifest : str
        The file with the summary, relative to `out`.
    committed : bool
        Whether the commit has begun to take effect, or may have, so that the run must not be undone.
    """

    out: OutputPlace
    run: str
    manifest: str
    committed: bool

    def check_place(self) -> None:
        """Raise an error if the place has something other than an output of this kind."""

    def work_directory(self) -> tuple[OutputPlace, str]:
        """Return the parent of the work directories of runs, and the prefix of their names."""

    def recover(self, dead: Sequence[str]) -> None:
        """Finish or undo killed runs."""

    def load(self, logs: Sequence[LogName]) -> OutputState:
        """Return the state of the output, which `commit` expects to be unchanged."""

    def data_schema(self) -> pa.Schema | None:
        """Return the columns of the data of all earlier runs; None without data."""

    def check_columns(self, schema: pa.Schema, *, by_day: bool, replace: bool) -> list[SchemaChange]:
        """Return how files with this schema change the columns of the data; no changes if they replace the data.

        Raises
        ------
        LogDirectoryError
            If the data has columns, or partitions, with which the files cannot be combined.
        """

    def names(self) -> FileNames:
        """Return the place where tasks write."""

    def commit(self, commit: Commit) -> None:
        """Make the files and positions visible.

        Raises
        ------
        TableCommitError
            If another run has committed since `load`, or the library of a table does not accept the files.
        """

    def undo(self) -> None:
        """Remove the files of this run, which is not committed."""
