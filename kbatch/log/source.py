"""What a scan needs of a source of records, and the source that is made of files.

A source has topic-partitions. Of each it knows the first and the last offset, the last stable offset and the offset of
a time, and it opens ranges of batches. A directory tree is a source, in a local file system or in an object store.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from kbatch.errors import LogDirectoryError
from kbatch.log.discovery import root_list
from kbatch.log.log_list import LogList
from kbatch.log.logs import Log
from kbatch.log.segment import Segment
from kbatch.log.selection import LogChooser, Selection, choose_logs
from kbatch.log.store.storage import is_url, locate
from kbatch.quantities import TimeLike
from kbatch.read.decode_options import Crc, OnError
from kbatch.transactions import Transactions

__all__ = ["DirectoryTree", "LogSource", "OpenedLogs", "PartitionLog", "SourceLike", "source_of"]

# Whether no record of a topic-partition is needed, by its name.
Excludes: TypeAlias = Callable[[str | None, int | None], bool]


class PartitionLog(Protocol):
    """The log of a topic-partition, as a scan plans and reads it; `kbatch.Log` is one.

    Attributes
    ----------
    path : str
        The name of the log in messages.
    topic : str or None
    partition : int or None
    """

    path: str
    topic: str | None
    partition: int | None

    @property
    def segments(self) -> Sequence[Segment]:
        """Ranges of batches, in order of their offsets."""

    @property
    def size(self) -> int:
        """The number of bytes."""

    @property
    def start_offset(self) -> int:
        """The first offset."""

    @property
    def end_offset(self) -> int:
        """The offset after the last complete batch."""

    def transactions(self, *, crc: Crc = "verify", on_error: OnError = "raise") -> Transactions:
        """Return the transactions and the last stable offset."""

    def offset_for_timestamp(
        self,
        timestamp: TimeLike,
        *,
        start_offset: int | None = None,
        crc: Crc = "verify",
        on_error: OnError = "raise",
    ) -> int | None:
        """Return the offset of the first record with a timestamp or a later one."""


@runtime_checkable
class LogSource(Protocol):
    """Where the records of a scan are."""

    def logs(self, selection: Selection, excludes: Excludes | None = None) -> Sequence[Log]:
        """Return the logs that a selection chooses, in order of topic and partition, as they are now.

        Parameters
        ----------
        selection : Selection
        excludes : callable, optional
            Called with a topic and a partition: whether no record of it is needed, so that the log is not opened.
        """

    def describe(self) -> str:
        """Return what the source is, for people."""


SourceLike: TypeAlias = "str | os.PathLike[str] | Log | LogList | LogSource | Iterable[str | os.PathLike[str]]"


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
            if not is_url(path):
                storage, text = locate(path, self._options)
                if storage.find(text) is None:
                    raise LogDirectoryError(f"{text}: no such file or directory", source=text)

    def logs(self, selection: Selection, excludes: Excludes | None = None) -> Sequence[Log]:
        """Open the logs that a selection chooses; see `LogSource.logs`."""
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
        """Return the logs that a selection chooses; see `LogSource.logs`."""
        chooser = LogChooser(selection, excludes)
        chosen = [log for log in self._logs if chooser(log.topic, log.partition)]
        chooser.check()
        return _sorted(chosen)

    def describe(self) -> str:
        """Return the path of one log, or the number of several."""
        return self._logs[0].path if len(self._logs) == 1 else f"{len(self._logs)} logs"


def source_of(given: SourceLike, storage_options: Mapping[str, str] | None = None) -> LogSource:
    """Return the source that a caller means: paths and URLs, a log, a list of logs, or a source.

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
    if isinstance(given, LogSource):
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
