"""What the PATHs of a command line are: logs, single segments, and the files beside segments."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kbatch.errors import LogDirectoryError
from kbatch.log.logs import Log, find_logs
from kbatch.log.names import parse_segment_name
from kbatch.log.segment import Segment

__all__ = ["Input", "Kind", "base_offset_of", "find_inputs"]

Kind = Literal["log", "index", "timeindex", "txnindex", "snapshot"]

_SIDE_KINDS: dict[str, Kind] = {
    ".index": "index",
    ".timeindex": "timeindex",
    ".txnindex": "txnindex",
    ".snapshot": "snapshot",
}


@dataclass(frozen=True, slots=True)
class Input:
    """A log, or a file beside its segments.

    Attributes
    ----------
    path : str
    kind : {"log", "index", "timeindex", "txnindex", "snapshot"}
    segments : list of Segment
        Of a log; one for a single ``.log`` or ``.checkpoint`` file.
    log : Log or None
        The log, where the path is a directory or a ``.log`` file.
    """

    path: str
    kind: Kind
    segments: list[Segment]
    log: Log | None = None

    @property
    def name(self) -> str:
        """The topic-partition, as far as the name of the directory says it; else the path."""
        if self.log is None or self.log.topic is None or self.log.path.endswith(".log"):
            return self.path
        return f"{self.log.topic}-{self.log.partition}"


def find_inputs(paths: Iterable[str], *, logs_only: bool = False) -> list[Input]:
    """Find what the paths are.

    Parameters
    ----------
    paths : iterable of str
        Each a segment, a file beside one, a topic-partition directory, or a broker's log directory.
    logs_only : bool
        Whether files beside segments are refused.

    Raises
    ------
    LogDirectoryError
        If a path is none of these.
    """
    return [found for path in paths for found in _find(path, logs_only)]


def _find(path: str, logs_only: bool) -> list[Input]:
    if os.path.isdir(path):
        try:
            names = os.listdir(path)
        except OSError as error:
            raise LogDirectoryError(f"{path}: can't be listed: {error.strerror}", source=path) from error
        logs = [Log(path)] if any(parse_segment_name(name) is not None for name in names) else find_logs(path)
        return [Input(log.path, "log", log.segments, log) for log in logs]
    if not os.path.exists(path):
        raise LogDirectoryError(f"{path}: no such file or directory", source=path)
    suffix = os.path.splitext(path)[1]
    if suffix == ".log":
        log = Log(path)
        # What may stand at the end of a log's last segment is damage in any other (DSK-R14).
        log.segments[0].live = _is_last(path)
        return [Input(path, "log", log.segments, log)]
    if suffix == ".checkpoint":
        return [Input(path, "log", [Segment(path, live=False)])]
    kind = _SIDE_KINDS.get(suffix)
    if kind is None or logs_only:
        known = "'.log'" if logs_only else f"'.log', {', '.join(map(repr, _SIDE_KINDS))}"
        raise LogDirectoryError(
            f"{path}: a file of this name isn't read, known are {known} and '.checkpoint'", source=path
        )
    if kind in ("index", "timeindex"):
        # Their offsets are relative to that of the name.
        base_offset_of(path)
    return [Input(path, kind, [])]


def _is_last(path: str) -> bool:
    """Whether no segment of a later offset stands beside this one."""
    directory, name = os.path.split(os.path.abspath(path))
    base_offset = parse_segment_name(name)
    try:
        others = [parse_segment_name(other) for other in os.listdir(directory)]
    except OSError:
        return True
    return base_offset is None or all(other is None or other <= base_offset for other in others)


def base_offset_of(path: str) -> int:
    """Return the base offset that the name of a file beside a segment carries (DSK-R1).

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
