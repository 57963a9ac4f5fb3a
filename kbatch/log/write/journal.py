"""The journals of writes to an existing log directory: making them, and undoing what crashed writes have moved."""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence

from kbatch.errors import LogDirectoryError
from kbatch.log.files.checkpoints import LEADER_EPOCH_CHECKPOINT
from kbatch.log.store.names import parse_directory_name, parse_segment_name
from kbatch.log.write.staging import Stage
from kbatch.publishing import Journal

__all__ = ["CHECKPOINTS", "STAGE_NAME", "move_into_place", "undo_crashed"]

STAGE_NAME = re.compile(r"\.kbatch-(?:write|backup)-[0-9a-f]{32}\.tmp")
# Checkpoints of a log directory. They would be wrong for new logs of the same names.
CHECKPOINTS = (
    "cleaner-offset-checkpoint",
    "log-start-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
)
# The files that `LogWriter` creates for a write.
_FILE_NAME = re.compile(rf"\d{{20}}\.(?:log|index|timeindex|txnindex)|{LEADER_EPOCH_CHECKPOINT}", re.ASCII)


def move_into_place(stage: Stage, placed: Sequence[str], removed: Sequence[str]) -> None:
    """Place logs and files of the stage in the log directory, and remove what they replace, or do nothing.

    Raises
    ------
    LogDirectoryError
        If the journal would be too large.
    OSError
        If a rename fails; the earlier ones are undone.
    """
    Journal(stage.path, placed, removed, list(_sizes(stage.new, placed))).publish()


def _sizes(new: str, placed: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the segments among the placed files and in the placed directories, with their sizes."""
    for name in placed:
        path = os.path.join(new, name)
        inner = [os.path.join(name, each) for each in sorted(os.listdir(path))] if os.path.isdir(path) else [name]
        for each in inner:
            if parse_segment_name(os.path.basename(each)) is not None:
                yield each, os.lstat(os.path.join(new, each)).st_size


def undo_crashed(root: str) -> int:
    """Undo the moves of crashed writes; return the number of these writes. The caller must hold the directory's lock.

    Raises
    ------
    LogDirectoryError
        If a journal is not one of kbatch's, and then nothing is moved; or if a segment has changed since the crash.
    """
    works = [os.path.join(root, name) for name in sorted(os.listdir(root)) if STAGE_NAME.fullmatch(name)]
    journals = [(work, Journal.read(work, _is_moved)) for work in works]
    crashed = [(work, journal) for work, journal in journals if journal is not None]
    for work, journal in crashed:
        _check_unchanged(root, journal)
        journal.undo()
        shutil.rmtree(work, ignore_errors=True)
    return len(crashed)


def _check_unchanged(root: str, journal: Journal) -> None:
    """Raise if the size of a placed segment has changed, or if its log has a later segment."""
    placed: dict[str, set[str]] = defaultdict(set)
    for name, size in journal.sizes:
        if journal.is_placed(name):
            path = os.path.join(root, name)
            if os.lstat(path).st_size != size:
                raise _changed(path, journal)
            directory, file = os.path.split(path)
            placed[directory].add(file)
    for directory, files in placed.items():
        last = max(files)
        for file in os.listdir(directory):
            if parse_segment_name(file) is not None and file > last:
                raise _changed(os.path.join(directory, file), journal)


def _changed(path: str, journal: Journal) -> LogDirectoryError:
    return LogDirectoryError(
        f"{path}: changed after a crashed write had moved segments here, so that write can't be undone. "
        f"{journal.path} lists its moves: undo them by hand, or keep them and remove {os.path.dirname(journal.path)}",
        source=path,
    )


def _is_moved(name: str) -> bool:
    """Whether a write can move this name: of a topic-partition directory, a file in one, or a checkpoint."""
    directory, slash, file = name.partition("/")
    try:
        is_log = parse_directory_name(directory).mark is None and "\0" not in directory
    except LogDirectoryError:
        return name in CHECKPOINTS
    return is_log and (not slash or _FILE_NAME.fullmatch(file) is not None)
