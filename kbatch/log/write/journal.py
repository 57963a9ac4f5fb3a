"""The journal of moves into an existing log directory: writing it, and undoing its moves after an error or a crash.

A log directory may come from anywhere, and a journal in it could move any file of this user. So a journal is followed
only if all of it is what `move_into_place` writes: each move is between a path of the journal's own stage and the place
in the log directory that belongs to it, and no directory on these paths is a symbolic link. This is checked before the
first move.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
from typing import Any, NamedTuple

from kbatch.errors import LogDirectoryError
from kbatch.json_text import parse_json
from kbatch.log.names import parse_directory_name, parse_segment_name
from kbatch.log.state import LEADER_EPOCH_CHECKPOINT
from kbatch.log.storage import LOCAL
from kbatch.log.write.staging import JOURNAL, Stage, rename_all, sync_directory, sync_parents, undo_moves

__all__ = ["CHECKPOINTS", "STAGE_NAME", "move_into_place", "relative_path", "undo_crashed"]

STAGE_NAME = re.compile(r"\.kbatch-write-[0-9a-f]{32}\.tmp")
# Checkpoints of a log directory. They would be wrong for new logs of the same names.
CHECKPOINTS = (
    "cleaner-offset-checkpoint",
    "log-start-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
)
# The files that `LogWriter` creates for a write.
_FILE_NAME = re.compile(rf"\d{{20}}\.(?:log|index|timeindex|txnindex)|{LEADER_EPOCH_CHECKPOINT}", re.ASCII)
# 170 bytes for each file or removed segment, so enough for some 400,000 of them.
_MAX_JOURNAL_BYTES = 64 << 20
_MAX_SHOWN_PATH = 200


class _Journal(NamedTuple):
    """Moves in their order, and the segments that they move: paths relative to the log directory, and sizes."""

    moves: list[tuple[str, str]]
    logs: list[tuple[str, str, int]]


def relative_path(stage: Stage, *names: str) -> str:
    """Return a file's path relative to the log directory, as a journal stores it; `names` lead to it from the stage."""
    return os.path.relpath(os.path.join(stage.path, *names), stage.root)


def move_into_place(stage: Stage, moves: list[tuple[str, str]]) -> None:
    """Rename all files of the moves, or none.

    Parameters
    ----------
    stage : Stage
    moves : list of (str, str)
        Sources and targets, relative to the log directory.

    Raises
    ------
    LogDirectoryError
        If the list of moves exceeds the maximum size of a journal.
    OSError
        If a rename fails; the earlier ones are undone.
    """
    path = os.path.join(stage.path, JOURNAL)
    logs = []
    for source, target in moves:
        full = os.path.join(stage.root, source)
        if os.path.isdir(full):
            names = [each for each in sorted(os.listdir(full)) if parse_segment_name(each) is not None]
            found = [(os.path.join(source, each), os.path.join(target, each)) for each in names]
        else:
            found = [(source, target)] if source.endswith(".log") else []
        logs += [(*each, os.lstat(os.path.join(stage.root, each[0])).st_size) for each in found]
    journal = _Journal(moves, logs)
    text = json.dumps(journal._asdict())
    if len(text) > _MAX_JOURNAL_BYTES:
        raise LogDirectoryError(
            f"{stage.root}: {len(moves)} moves of {len(logs)} segments need a journal of {len(text)} bytes; at most "
            f"{_MAX_JOURNAL_BYTES} are possible. Nothing was written: write fewer topic-partitions at once, or remove "
            "old logs first",
            source=stage.root,
        )
    try:
        with open(f"{path}.tmp", "x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{path}.tmp", path)
        sync_directory(stage.path)
        sync_directory(stage.root)
        rename_all([(os.path.join(stage.root, source), os.path.join(stage.root, target)) for source, target in moves])
        os.unlink(path)
        sync_directory(stage.path)
    except BaseException:
        _undo(stage.root, stage.path, journal)
        raise


def undo_crashed(root: str) -> int:
    """Undo the moves of crashed writes; return the number of these writes. The caller must hold the directory's lock.

    Raises
    ------
    LogDirectoryError
        If a journal is not one of kbatch's, and then nothing is moved; or if a segment has changed since the crash.
    """
    names = [name for name in sorted(os.listdir(root)) if STAGE_NAME.fullmatch(name)]
    names = [name for name in names if os.path.lexists(os.path.join(root, name, JOURNAL))]
    for name, journal in [(name, _read_journal(root, name)) for name in names]:
        _undo(root, os.path.join(root, name), journal)
        shutil.rmtree(os.path.join(root, name), ignore_errors=True)
    return len(names)


def _undo(root: str, stage: str, journal: _Journal) -> None:
    """Undo the moves of a journal that were made, and remove the journal."""
    placed: dict[str, set[str]] = {}
    for source, target, size in journal.logs:
        source, target = os.path.join(root, source), os.path.join(root, target)
        if os.path.lexists(target) and not os.path.lexists(source):
            if os.lstat(target).st_size != size:
                raise _changed(target, stage)
            placed.setdefault(os.path.dirname(target), set()).add(os.path.basename(target))
    for directory, names in placed.items():
        last = max(names)
        for name in os.listdir(directory):
            if parse_segment_name(name) is not None and name > last:
                raise _changed(os.path.join(directory, name), stage)
    moves = [(os.path.join(root, source), os.path.join(root, target)) for source, target in journal.moves]
    sync_parents(undo_moves(moves))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(stage, JOURNAL))


def _changed(path: str, stage: str) -> LogDirectoryError:
    return LogDirectoryError(
        f"{path}: changed after a crashed write had moved segments here, so that write can't be undone. "
        f"{os.path.join(stage, JOURNAL)} lists its moves: undo them by hand, or keep them and remove {stage}",
        source=path,
    )


def _read_journal(root: str, name: str) -> _Journal:
    """Read and check the journal of the stage of this name."""
    path = os.path.join(root, name, JOURNAL)
    paths = _RealPaths(root)
    try:
        paths.mode(f"{name}/{JOURNAL}")
        text, size = LOCAL.read(path, _MAX_JOURNAL_BYTES)
        if size > _MAX_JOURNAL_BYTES:
            raise ValueError(f"it has {size} bytes, expected at most {_MAX_JOURNAL_BYTES}")
        journal = _parsed(name, parse_json(text))
        for number, (source, target) in enumerate(journal.moves, start=1):
            found = [paths.mode(source), paths.mode(target)]
            parent = paths.mode(os.path.dirname(source))
            if found[0] is None and found[1] is not None and not stat.S_ISDIR(parent or 0):
                raise ValueError(f"move {number} is from a directory that does not exist: {_shown_entry(source)}")
    except (OSError, ValueError) as error:
        problem = "can't be read" if isinstance(error, OSError) else "is not the journal of a write"
        raise LogDirectoryError(
            f"{path}: {problem}: {getattr(error, 'strerror', error)}. Nothing was moved. Check where this file comes "
            f"from and whether the logs are complete, then remove {os.path.dirname(path)}",
            source=path,
        ) from error
    return journal


def _parsed(name: str, found: Any) -> _Journal:
    """Return the journal in parsed JSON; ValueError unless a write with a stage of this name could have made it."""
    found = found if isinstance(found, dict) else {}
    journal = _Journal([], [])
    for field in journal._fields:
        if not isinstance(found.get(field), list):
            raise ValueError(f"it has no list of {field}")
    for number, each in enumerate(found["moves"], start=1):
        if not _has_types(each, str, str) or not _is_move(name, *each):
            raise ValueError(
                f"move {number} is {_shown_entry(each)}, expected a move between a topic-partition of this directory "
                f"and its place in {name}"
            )
        journal.moves.append((each[0], each[1]))
    moves = set(journal.moves)
    for number, each in enumerate(found["logs"], start=1):
        if not _has_types(each, str, str, int) or not _is_moved_segment(moves, *each[:2]):
            raise ValueError(
                f"log {number} is {_shown_entry(each)}, expected a segment of one of the moves, and its size"
            )
        journal.logs.append((each[0], each[1], each[2]))
    return journal


def _has_types(found: Any, *types: type) -> bool:
    return isinstance(found, list) and [type(each) for each in found] == list(types)


def _is_move(name: str, source: str, target: str) -> bool:
    """Whether a write moves this: a new log or file out of its stage, or what it replaces into the stage."""
    if source == f"{name}/new/{target}":
        return _is_placed(target)
    return target == f"{name}/old/{source.replace('/', ',')}" and (_is_placed(source) or source in CHECKPOINTS)


def _is_placed(path: str) -> bool:
    """Whether a path is a topic-partition directory, or a file that a write creates in one."""
    directory, slash, file = path.partition("/")
    try:
        is_log = parse_directory_name(directory).mark is None and "\0" not in directory
    except LogDirectoryError:
        return False
    return is_log and (not slash or _FILE_NAME.fullmatch(file) is not None)


def _is_moved_segment(moves: set[tuple[str, str]], source: str, target: str) -> bool:
    """Whether this is a segment that one of the moves moves, alone or with its directory."""
    if (source, target) in moves:
        return source.endswith(".log")
    (parent, name), (target_parent, target_name) = os.path.split(source), os.path.split(target)
    return (parent, target_parent) in moves and name == target_name and parse_segment_name(name) is not None


def _shown_entry(found: Any) -> str:
    """Return a path or an entry of a journal for a message of limited length."""
    if isinstance(found, str):
        return repr(found) if len(found) <= _MAX_SHOWN_PATH else f"{found[:_MAX_SHOWN_PATH]!r}..."
    if isinstance(found, list) and len(found) <= 3:
        return f"[{', '.join('a list' if isinstance(each, list) else _shown_entry(each) for each in found)}]"
    return f"a {type(found).__name__}" if isinstance(found, list | dict) else str(found)[:_MAX_SHOWN_PATH]


class _RealPaths:
    """Looks up files of a directory, each once, and refuses paths that contain a symbolic link."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._modes: dict[str, int | None] = {"": os.lstat(root).st_mode}

    def mode(self, path: str) -> int | None:
        """Return the mode of a relative path, None if it is missing; ValueError for a link at it or on the way."""
        if path not in self._modes:
            parent = self.mode(os.path.dirname(path))
            self._modes[path] = None if parent is None or not stat.S_ISDIR(parent) else self._look_up(path)
        return self._modes[path]

    def _look_up(self, path: str) -> int | None:
        try:
            mode = os.lstat(os.path.join(self._root, path)).st_mode
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(mode):
            raise ValueError(f"{_shown_entry(path)} is a symbolic link, and links are not followed")
        return mode
