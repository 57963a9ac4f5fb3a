"""What a scan needs of a source of records, and the sources that are made of files.

A source has topic-partitions. Of each it knows the first and the last offset, the last stable offset and the offset of
a time, and it opens ranges of batches. A directory tree is a source, in a local file system or in an object store, and
so is a cluster of brokers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

from kbatch.bounds import Domain, Pruning
from kbatch.log.discovery import root_list
from kbatch.log.log_bounds import BoundedLog, LogBound
from kbatch.log.log_list import LogList
from kbatch.log.logs import Log
from kbatch.log.read_arguments import ReadArguments
from kbatch.log.row_filter import RowFilter
from kbatch.log.selection import LogChooser, Selection, choose_logs
from kbatch.log.store.listing import missing_path
from kbatch.log.store.storage import locate
from kbatch.options import On
from kbatch.table import RecordTable

__all__ = [
    "DirectoryTree",
    "Excludes",
    "LogSource",
    "OpenSource",
    "OpenedLogs",
    "PlannedRange",
    "RangeRequest",
    "ReadAhead",
    "SegmentSource",
    "SourceLike",
    "source_of",
]

# Whether no record of a topic-partition is needed, by its name.
Excludes: TypeAlias = Callable[[str | None, int | None], bool]


@dataclass(frozen=True)
class RangeRequest:
    """The records of one log that a scan needs.

    Attributes
    ----------
    log : BoundedLog
        Of the source.
    start, stop : LogBound
    rows : RowFilter
        The choice by time and key within the offsets.
    pruning : Pruning
        The offsets and times that a condition excludes.
    is_exact : bool
        Whether the condition is true for all records that are not excluded.
    is_empty : bool
        Whether no record is needed.
    may_have : callable, optional
        Whether the condition can be true for a record with an offset in a range.
    """

    log: Any
    start: LogBound
    stop: LogBound
    rows: RowFilter
    pruning: Pruning = field(default_factory=Pruning)
    is_exact: bool = False
    is_empty: bool = False
    may_have: Callable[[Domain], bool] | None = None


class PlannedRange(Protocol):
    """What a source reads for a request."""

    @property
    def request(self) -> RangeRequest:
        """The request."""


class ReadAhead(NamedTuple):
    """How far a read is ahead of its consumer.

    Attributes
    ----------
    threads : int
        Those that plan and decode.
    logs, tasks : int
        The number of logs that are planned, and of tasks that are decoded, at the same time.
    """

    threads: int
    logs: int
    tasks: int


class OpenSource(Protocol):
    """A source during one request of records; what it has opened is closed at the end of the context.

    Its tasks are independent of each other: each is decoded by one thread at a time, and several at the same time.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def logs(self, selection: Selection, excludes: Excludes | None = None) -> Sequence[BoundedLog]:
        """Return the logs that a selection chooses, in order of topic and partition, as they are now.

        Parameters
        ----------
        selection : Selection
        excludes : callable, optional
            Called with a topic and a partition: whether no record of it is needed, so that the log is not opened.
        """

    def plan(self, request: RangeRequest) -> Any:
        """Return the `PlannedRange` of a request; threads plan several at the same time."""

    def ahead(self, logs: Sequence[Any], *, reverse: bool) -> ReadAhead:
        """Return how far ahead of its consumer a read of logs is."""

    def tasks(self, planned: Iterable[Any], *, reverse: bool) -> Iterator[tuple[Any, Any]]:
        """Yield the range and the work of each task, in the order of the records or in the opposite one."""

    def tables(self, planned: Any, work: Any, columns: tuple[str, ...], *, reverse: bool) -> Iterator[RecordTable]:
        """Yield the tables of a task with some columns, in the order of the records or in the opposite one."""

    def counts(self, requests: Sequence[RangeRequest]) -> list[int | None]:
        """Return the number of records of each request whose condition is exact; None if they have to be decoded."""

    def sampled(self, logs: Sequence[Any], on: On) -> list[bytes]:
        """Return keys or values from places spread over the logs, to infer a schema."""

    def explained(self, planned: Sequence[Any]) -> Iterator[str]:
        """Yield the lines of `kbatch.Scan.explain` about the ranges."""


@runtime_checkable
class LogSource(Protocol):
    """Where the records of a scan are."""

    def open(self, arguments: ReadArguments) -> OpenSource:
        """Return the source as it is now, for one request of records."""

    def describe(self) -> str:
        """Return what the source is, for people."""


@runtime_checkable
class SegmentSource(Protocol):
    """Where the segments of logs are; scans plan and decode them (`kbatch.scans.file_source`)."""

    def logs(self, selection: Selection, excludes: Excludes | None = None) -> Sequence[Log]:
        """Return the logs that a selection chooses; see `OpenSource.logs`."""

    def describe(self) -> str:
        """Return what the source is, for people."""


SourceLike: TypeAlias = (
    "str | os.PathLike[str] | Log | LogList | SegmentSource | LogSource | Iterable[str | os.PathLike[str]]"
)


class DirectoryTree:
    """Log directories, topic-partition directories and ``.log`` files, by path or URL; each read lists them again.

    Parameters
    ----------
    paths : iterable of str or path
    storage_options : mapping of str to str, optional
        For URLs; see `kbatch.log.store.storage.filesystem`.

    Raises
    ------
    LogDirectoryError
        If a local path does not exist.
    """

    def __init__(
        self, paths: Iterable[str | os.PathLike[str]], storage_options: Mapping[str, str] | None = None
    ) -> None:
        self._paths = [os.fspath(path) for path in paths]
        self._options = dict(storage_options or {})
        for path in self._paths:
            storage, text = locate(path, self._options)
            if not storage.remote and storage.find(text) is None:
                raise missing_path(storage, text)

    def logs(self, selection: Selection, excludes: Excludes | None = None) -> Sequence[Log]:
        """Open the logs that a selection chooses; see `OpenSource.logs`."""
        return _sorted(choose_logs(self._paths, selection, self._options, excludes=excludes))

    def describe(self) -> str:
        """Return the paths."""
        return ", ".join(self._paths)


class OpenedLogs:
    """Logs that are open already, with the segments and sizes that they had then.

    Parameters
    ----------
    logs : iterable of Log
    """

    def __init__(self, logs: Iterable[Log]) -> None:
        self._logs = list(logs)

    def logs(self, selection: Selection, excludes: Excludes | None = None) -> Sequence[Log]:
        """Return the logs that a selection chooses; see `OpenSource.logs`."""
        chooser = LogChooser(selection, excludes)
        chosen = [log for log in self._logs if chooser(log.topic, log.partition)]
        chooser.check()
        return _sorted(chosen)

    def describe(self) -> str:
        """Return the path of one log, or the number of several."""
        return self._logs[0].path if len(self._logs) == 1 else f"{len(self._logs)} logs"


def source_of(given: SourceLike, storage_options: Mapping[str, str] | None = None) -> SegmentSource:
    """Return the segments that a caller means: paths and URLs, a log, a list of logs, or a source of segments.

    Raises
    ------
    TypeError
        For something else.
    LogDirectoryError
        If a local path does not exist.
    """
    if isinstance(given, Log):
        return OpenedLogs([given])
    if isinstance(given, LogList):
        return OpenedLogs(given)
    if isinstance(given, SegmentSource):
        return given
    if isinstance(given, list | tuple) and given and all(isinstance(each, Log) for each in given):
        return OpenedLogs(given)
    several = isinstance(given, Iterable) and not isinstance(given, str | bytes | os.PathLike)
    paths: list[Any] = [given]
    if several:
        # Scans and tables have an iterator that raises.
        with contextlib.suppress(TypeError):
            paths = list(given)  # type: ignore[arg-type]
    if not all(isinstance(path, str | os.PathLike) for path in paths):
        raise TypeError(
            f"source must be one or several paths, a kbatch.Log, a LogList or a source, got {type(given).__name__}"
        )
    return DirectoryTree(root_list(paths, "source"), storage_options)


def _sorted(logs: Iterable[Log]) -> list[Log]:
    return sorted(logs, key=lambda log: (log.topic or "", log.partition or 0, log.mark or "", log.path))
