"""The PATHs of a command line: logs, single segments, and the auxiliary files of segments."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kbatch.errors import LogDirectoryError
from kbatch.log.discovery import find_logs
from kbatch.log.logs import Log
from kbatch.log.names import parse_segment_name
from kbatch.log.segment import Segment
from kbatch.log.storage import LOCAL, Storage, locate

__all__ = [
    "Input",
    "InputKind",
    "add_storage_option",
    "base_offset_of",
    "find_inputs",
    "is_last",
    "name_and_value",
    "open_path",
    "storage_options",
]

InputKind = Literal["log", "index", "timeindex", "txnindex", "snapshot"]

_SIDE_KINDS: dict[str, InputKind] = {
    ".index": "index",
    ".timeindex": "timeindex",
    ".txnindex": "txnindex",
    ".snapshot": "snapshot",
}


@dataclass(frozen=True, slots=True)
class Input:
    """A log, or an auxiliary file of a segment.

    Attributes
    ----------
    path : str
    kind : {"log", "index", "timeindex", "txnindex", "snapshot"}
    segments : list of Segment
        All segments of a log; one for a single ``.log`` or ``.checkpoint`` file.
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


def add_storage_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--storage-option``, for the filesystem of the paths."""
    parser.add_argument(
        "--storage-option",
        dest="storage_options",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=name_and_value,
        help="for a PATH that is a URL such as s3://bucket/logs: an option of its filesystem, such as "
        "endpoint_override=http://host:port; follow_links=true follows symbolic links in a local PATH; may be repeated",
    )


def name_and_value(text: str) -> tuple[str, str]:
    """Split ``NAME=VALUE``, as the type of an option."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    return name, value


def storage_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the values of the option that `add_storage_option` adds."""
    return dict(arguments.storage_options)


def find_inputs(
    paths: Iterable[str], *, logs_only: bool = False, storage_options: Mapping[str, str] | None = None
) -> list[Input]:
    """Return the logs and auxiliary files at the paths.

    Parameters
    ----------
    paths : iterable of str
        Each a segment, an auxiliary file of one, a topic-partition directory, or a broker's log directory; local, or a
        URL.
    logs_only : bool
        Whether auxiliary files are refused.
    storage_options : mapping of str to str, optional
        For URLs; see `kbatch.log.storage.filesystem`.

    Raises
    ------
    LogDirectoryError
        If a path is not one of these.
    """
    return [found for path in paths for found in _find(path, logs_only, storage_options)]


def open_path(path: str, options: Mapping[str, str] | None) -> tuple[list[Log], bool]:
    """Open the log at a path, or all logs of a broker's log directory; also return whether it is a log directory.

    Raises
    ------
    LogDirectoryError
        If there is nothing at the path, or it can't be listed.
    """
    storage, path = locate(path, options)
    entry = storage.find(path)
    if entry is None:
        raise LogDirectoryError(f"{path}: no such file or directory", source=path)
    try:
        names = storage.list(path) if entry.is_directory else []
    except OSError as error:
        raise LogDirectoryError(f"{path}: can't be listed: {error.strerror}", source=path) from error
    if entry.is_directory and not any(parse_segment_name(name) is not None for name in names):
        return find_logs(path, storage_options=options), True
    return [Log(path, storage_options=options)], False


def _find(path: str, logs_only: bool, options: Mapping[str, str] | None) -> list[Input]:
    storage, path = locate(path, options)
    entry = storage.find(path)
    if entry is None or entry.is_directory:
        return [Input(log.path, "log", log.segments, log, storage) for log in open_path(path, options)[0]]
    suffix = os.path.splitext(path)[1]
    if suffix == ".log":
        log = Log(path, storage_options=options)
        # An incomplete batch at the end is damage, except in the last segment of a log (DSK-R14).
        log.segments[0].live = log.segments[0].live and is_last(storage, path)
        return [Input(path, "log", log.segments, log, storage)]
    if suffix == ".checkpoint":
        return [Input(path, "log", [Segment(path, live=False, storage_options=options)], storage=storage)]
    kind = _SIDE_KINDS.get(suffix)
    if kind is None or logs_only:
        known = ".log" if logs_only else f".log, {', '.join(_SIDE_KINDS)}"
        raise LogDirectoryError(
            f"{path}: unknown file name; expected a name that ends with {known} or .checkpoint", source=path
        )
    if kind in ("index", "timeindex"):
        # Their offsets are relative to the base offset in the name.
        base_offset_of(path)
    return [Input(path, kind, [], storage=storage)]


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
