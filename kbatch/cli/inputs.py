"""The PATHs of a command line: logs, single segments, and the auxiliary files of segments."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from kbatch.batches.framing import foreign_reason
from kbatch.cli.selection_flags import SelectionFlags
from kbatch.errors import LogDirectoryError
from kbatch.format import LOG_OVERHEAD
from kbatch.log.discovery import open_logs
from kbatch.log.log_list import LogList
from kbatch.log.logs import Log
from kbatch.log.segment import Segment
from kbatch.log.store.names import name_of_log, parse_segment_name
from kbatch.log.store.storage import LOCAL, Storage, each_once, identity, locate
from kbatch.log.topics import TopicFilter, first_names

__all__ = [
    "Input",
    "InputKind",
    "base_offset_of",
    "check_first_bytes",
    "find_inputs",
    "is_last",
    "open_logs_once",
    "open_path",
    "open_paths",
    "standard_input",
]

InputKind = Literal["log", "index", "timeindex", "txnindex", "snapshot", "stream"]

_SIDE_KINDS: dict[str, InputKind] = {
    ".index": "index",
    ".timeindex": "timeindex",
    ".txnindex": "txnindex",
    ".snapshot": "snapshot",
}


@dataclass(frozen=True, slots=True)
class Input:
    """A log, an auxiliary file of a segment, or standard input.

    Attributes
    ----------
    path : str
    kind : {"log", "index", "timeindex", "txnindex", "snapshot", "stream"}
    segments : list of Segment
        All segments of a log; one for a single file.
    log : Log or None
        The log, where the path is a directory or a ``.log`` file.
    storage : Storage
        The filesystem of the path.
    """

    path: str
    kind: InputKind
    segments: list[Segment]
    log: Log | None = None
    storage: Storage = field(default=LOCAL)

    @property
    def name(self) -> str:
        """The topic-partition if the directory is named after it, else the path."""
        if self.log is None or self.log.topic is None or self.log.path.endswith(".log"):
            return self.path
        return f"{self.log.topic}-{self.log.partition}"

    @property
    def topic_partition(self) -> tuple[str | None, int | None]:
        """The topic and partition that the file's directory is named after."""
        if self.kind == "stream":
            return None, None
        if self.log is not None:
            return self.log.topic, self.log.partition
        directory, name = os.path.split(self.storage.absolute(self.path))
        try:
            found = name_of_log(directory, [name])
        except LogDirectoryError:
            return None, None
        return found.topic, found.partition


def find_inputs(
    paths: Sequence[str],
    selection: SelectionFlags,
    storage_options: Mapping[str, str],
    *,
    logs_only: bool = False,
    streams: bool = False,
) -> list[Input]:
    """Return the logs and auxiliary files at the paths.

    Parameters
    ----------
    paths : sequence of str
        Each a segment, an auxiliary file of one, a topic-partition directory, or a broker's log directory; local, or a
        URL. Any file with another name is read as a segment.
    selection : SelectionFlags
        Its topics and partitions choose logs and auxiliary files.
    storage_options : mapping of str to str
        For URLs; see `kbatch.log.store.storage.filesystem`.
    logs_only : bool
        Whether auxiliary files are refused.
    streams : bool
        Whether ``-`` is standard input.

    Raises
    ------
    LogDirectoryError
        If a path is not one of these, or nothing belongs to one of the topics, or to a partition.
    """
    found = [each for path in paths for each in _find(path, logs_only, streams, selection, storage_options)]
    # A PATH may be within another one.
    found = each_once(found, lambda each: each.path if each.kind == "stream" else identity(each.path))
    if (is_chosen := selection.predicate) is not None:
        found = [each for each in found if is_chosen(*each.topic_partition)]
    _check_found(paths, selection, storage_options, [each.topic_partition for each in found])
    return found


def open_path(path: str, selection: SelectionFlags, storage_options: Mapping[str, str]) -> tuple[list[Log], bool]:
    """Open the log at a path, or the chosen logs of a broker's log directory; also return whether it is a directory.

    Raises
    ------
    LogDirectoryError
        As `find_inputs`.
    """
    (found,) = open_paths([path], selection, storage_options)
    return ([found], False) if isinstance(found, Log) else (list(found), True)


def open_paths(
    paths: Sequence[str], selection: SelectionFlags, storage_options: Mapping[str, str]
) -> list[Log | Sequence[Log]]:
    """Open the log, or the chosen logs of a broker's log directory, at each path, as `open_path` does.

    A chosen topic or partition must exist at one of the paths at least.
    """
    found = [_open(path, selection, storage_options) for path in paths]
    logs = [log for each in found for log in ([each] if isinstance(each, Log) else each)]
    _check_found(paths, selection, storage_options, [(log.topic, log.partition) for log in logs])
    return found


def open_logs_once(paths: Sequence[str], selection: SelectionFlags, storage_options: Mapping[str, str]) -> LogList:
    """Open the logs at all paths, as `open_paths` does; a log that is at several of them only once."""
    found = open_paths(paths, selection, storage_options)
    logs = (log for each in found for log in ([each] if isinstance(each, Log) else each))
    return LogList(each_once(logs, lambda log: identity(log.path)))


def _open(path: str, selection: SelectionFlags, storage_options: Mapping[str, str]) -> Log | Sequence[Log]:
    is_chosen = selection.predicate
    found = open_logs(path, predicate=is_chosen, storage_options=storage_options)
    if not isinstance(found, Log):
        return list(found)
    return [] if is_chosen is not None and not is_chosen(found.topic, found.partition) else found


def _check_found(
    paths: Sequence[str],
    selection: SelectionFlags,
    storage_options: Mapping[str, str],
    found: Collection[tuple[str | None, int | None]],
) -> None:
    """Raise if a topic has no log at the paths, or if no log has one of the partitions."""
    topics = TopicFilter(selection.topics or ())
    if topics.unmatched(topic for topic, _ in found):
        every = replace(selection, topics=None, partitions=None)
        everything = [each for path in paths for each in _find(path, False, True, every, storage_options)]
        refusal = topics.refusal(each.topic_partition[0] for each in everything)
        if refusal is not None:
            raise LogDirectoryError(f"{', '.join(paths)}: {refusal}")
    if not found and selection.partitions is not None:
        numbers = first_names([str(each) for each in sorted(selection.partitions)])
        raise LogDirectoryError(f"{', '.join(paths)}: no log of partition {numbers}")


def _find(
    path: str, logs_only: bool, streams: bool, selection: SelectionFlags, options: Mapping[str, str]
) -> list[Input]:
    if path == "-":
        if not streams:
            raise LogDirectoryError("-: only `kbatch dump` reads standard input; ./- is a file", source=path)
        return [Input(path, "stream", [])]
    storage, path = locate(path, options)
    entry = storage.find(path)
    if entry is None or entry.is_directory:
        found = _open(path, selection, options)
        logs = [found] if isinstance(found, Log) else found
        return [Input(log.path, "log", log.segments, log, storage) for log in logs]
    suffix = os.path.splitext(path)[1]
    if suffix == ".log":
        log = Log(path, storage_options=options)
        # An incomplete batch at the end is damage, except in the last segment of a log (DSK-R14).
        log.segments[0].live = log.segments[0].live and is_last(storage, path)
        return [Input(path, "log", log.segments, log, storage)]
    kind = _SIDE_KINDS.get(suffix)
    if kind is None:
        # The last segment of a log may have been copied to a file of another name.
        segment = Segment(path, live=suffix != ".checkpoint", storage_options=options)
        check_first_bytes(path, segment.window(0, LOG_OVERHEAD).tobytes())
        return [Input(path, "log", [segment], storage=storage)]
    if logs_only:
        raise LogDirectoryError(
            f"{path}: an auxiliary file; expected a segment, a topic-partition directory or a log directory",
            source=path,
        )
    if kind in ("index", "timeindex"):
        # Their offsets are relative to the base offset in the name.
        base_offset_of(path)
    return [Input(path, kind, [], storage=storage)]


def check_first_bytes(path: str, first: bytes) -> None:
    """Raise if a file begins as another kind of file does."""
    reason = foreign_reason(first)
    if reason is not None:
        raise LogDirectoryError(f"{path}: {reason}", source=path)


def standard_input() -> io.BufferedReader:
    """Return standard input as a binary file.

    Raises
    ------
    LogDirectoryError
        If it is closed.
    """
    if sys.stdin is None:
        raise LogDirectoryError("-: standard input is closed", source="-")
    return cast("io.BufferedReader", sys.stdin.buffer)


def is_last(storage: Storage, path: str) -> bool:
    """Whether the directory has no segment with a higher base offset."""
    directory, name = os.path.split(storage.absolute(path))
    base_offset = parse_segment_name(name)
    try:
        others = [parse_segment_name(other) for other in storage.list(directory)]
    except OSError:
        return True
    return base_offset is None or all(other is None or other <= base_offset for other in others)


def base_offset_of(path: str) -> int:
    """Return the base offset in the name of an auxiliary file (DSK-R1).

    Raises
    ------
    LogDirectoryError
        If the name doesn't begin with one.
    """
    name = os.path.basename(path)
    base_offset = parse_segment_name(name[: name.find(".")] + ".log")
    if base_offset is None:
        raise LogDirectoryError(f"{path}: the name doesn't begin with the 20 digits of a base offset", source=path)
    return base_offset
