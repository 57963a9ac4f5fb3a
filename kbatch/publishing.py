"""How files appear at their place: all of them or none, also if the process is killed.

Files are written to a work directory in or next to the output, whose name readers and brokers ignore. A run locks its
work directory as long as it lives. The system releases the lock of a process that is killed, so the next run can
distinguish an abandoned directory from one in use.

A new output appears with one rename. In an existing output, files are renamed and removed one by one, and a journal
lists them on disk before the first move. Writers of logs roll back: removing the journal is the commit, and the moves
of a journal that a crash leaves are undone. Exports roll forward: the journal is the commit, and the moves of one that
a crash leaves are finished.

An output may come from anywhere, and a journal in it could move any file of this user. So all of a journal is checked
before it is followed: no name leads out of the output, and no directory on the way is a symbolic link.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

from kbatch.batches.regular_files import open_regular
from kbatch.errors import LogDirectoryError
from kbatch.json_text import parse_json

__all__ = [
    "JOURNAL",
    "REMOVALS",
    "Journal",
    "WorkDirectory",
    "directory_lock",
    "inner_names",
    "is_abandoned",
    "move_all",
    "remove_abandoned",
    "remove_empty",
    "rename_all",
    "sync_directory",
    "try_to_remove",
]

# The list of moves in a work directory.
JOURNAL = "journal.json"
# About 100 bytes for each file, so enough for two million of them.
_MAX_JOURNAL_BYTES = 256 << 20
# The part of a name that an error shows.
_MAX_SHOWN_NAME = 200
# Attempts to remove a directory, and the pause between them: a task that is being cancelled may still write.
REMOVALS = 50
_REMOVAL_SECONDS = 0.1

Moves = Sequence[tuple[str, str]]


@contextlib.contextmanager
def directory_lock(path: str, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a directory (``flock``), which ends with the process at the latest.

    Parameters
    ----------
    path : str
        No symbolic link.
    wait : bool
        Whether to wait until another process or thread has released it.

    Yields
    ------
    bool
        Whether it is held: not if another holds it, or if the file system has no locks for directories, as some network
        file systems.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        held = False
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        yield held
    finally:
        os.close(descriptor)


class WorkDirectory:
    """A directory for the files of one write until they are published.

    It can be pickled unless it is locked. Nothing is created on disk before the first method is called.

    Parameters
    ----------
    path : str
        Unique to this write.

    Attributes
    ----------
    path : str
    new : str
        Where the files are that `Journal` places, or that one rename publishes.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.new = os.path.join(path, "new")
        self._lock = contextlib.ExitStack()

    def lock(self, mode: int = 0o777) -> None:
        """Create the directory, with the permissions `mode` before the umask, and lock it."""
        while True:
            os.makedirs(self.path, mode, exist_ok=True)
            with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
                stack.enter_context(directory_lock(self.path))
                # Before the lock, another run may have taken the directory for abandoned.
                if os.path.lexists(self.path):
                    self._lock = stack.pop_all()
                    return

    def release(self) -> None:
        """Release the lock, if it was locked."""
        self._lock.close()

    def remove(self, attempts: int = 1) -> None:
        """Remove the directory with all files, and release the lock."""
        try_to_remove(
            lambda: shutil.rmtree(self.path, ignore_errors=True), lambda: os.path.lexists(self.path), attempts
        )
        self.release()


def try_to_remove(remove: Callable[[], None], exists: Callable[[], bool], attempts: int = REMOVALS) -> None:
    """Remove a directory that a cancelled task may still write to for a moment."""
    for attempt in range(attempts):
        if attempt:
            time.sleep(_REMOVAL_SECONDS)
        with contextlib.suppress(OSError):
            remove()
            if not exists():
                return


def is_abandoned(path: str) -> bool:
    """Whether the process that locked a work directory has ended; False on a file system without locks."""
    try:
        with directory_lock(path, wait=False) as held:
            return held
    except OSError:
        return True


def remove_abandoned(parent: str, names: re.Pattern[str]) -> list[str]:
    """Remove the work directories of processes that have ended without removing them.

    Parameters
    ----------
    parent : str
    names : Pattern
        Names of work directories. Other directories are not removed, nor locked ones, nor any on a file system without
        locks.

    Returns
    -------
    list of str
        The names removed.
    """
    removed = []
    found: list[str] = []
    with contextlib.suppress(OSError):
        found = sorted(filter(names.fullmatch, os.listdir(parent)))
    for name in found:
        path = os.path.join(parent, name)
        with contextlib.suppress(OSError), directory_lock(path, wait=False) as held:
            if held:
                shutil.rmtree(path, ignore_errors=True)
                removed.append(name)
    return removed


def remove_empty(root: str, directory: str) -> None:
    """Remove a directory if it is empty, and then each parent below `root` that has become empty."""
    with contextlib.suppress(OSError):
        while directory:
            os.rmdir(os.path.join(root, directory))
            directory = os.path.dirname(directory)


def move_all(moves: Moves, *, sync: bool = True) -> None:
    """Rename in order, all or nothing; with `sync`, the directories are synced to disk."""
    try:
        rename_all(moves, sync=sync)
    except BaseException:
        # Also after an interrupt: the caller reports that nothing was written.
        _undo_moves(moves)
        raise


def rename_all(moves: Moves, *, sync: bool = True) -> None:
    """Rename in order; after an error the earlier renames remain."""
    for source, target in moves:
        os.rename(source, target)
    if sync:
        _sync_parents(moves)


def _undo_moves(moves: Moves) -> Moves:
    """Undo the renames that were made before an error or a crash, last first; return them."""
    undone = []
    for source, target in reversed(moves):
        if os.path.lexists(target) and not os.path.lexists(source):
            os.rename(target, source)
            undone.append((source, target))
    return undone


def _sync_parents(moves: Moves) -> None:
    for directory in {os.path.dirname(path) for move in moves for path in move}:
        if os.path.isdir(directory):
            sync_directory(directory)


def sync_directory(path: str) -> None:
    """Sync a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Journal:
    """The files that a work directory places in the output around it, and those that it removes from there.

    Parameters
    ----------
    work : str
        The path of the work directory, which is in the output.
    placed, removed : sequence of str
        Names of files and directories, relative to the output. ``NAME`` is placed from ``WORK/new/NAME``; rolling back
        needs a removed one in ``WORK/old/NAME``.
    sizes : sequence of (str, int)
        Placed files and their sizes, by which the caller sees after a crash whether they have changed.

    Attributes
    ----------
    path : str
        The file with the list.
    """

    def __init__(
        self, work: str, placed: Sequence[str], removed: Sequence[str] = (), sizes: Sequence[tuple[str, int]] = ()
    ) -> None:
        self.path = os.path.join(work, JOURNAL)
        self.sizes = sizes
        self._work = work
        self._root = os.path.dirname(work)
        self._placed = placed
        self._removed = removed

    @classmethod
    def read(cls, work: str, is_own: Callable[[str], bool] = bool) -> Self | None:
        """Return the journal in a work directory, or None without one; nothing is moved.

        Parameters
        ----------
        work : str
        is_own : callable
            Whether the caller could have placed or removed this name; by default any name in the output.

        Raises
        ------
        LogDirectoryError
            If kbatch cannot have written the journal here: a name leads out of the output, through a symbolic link, or
            is not the caller's.
        """
        path = os.path.join(work, JOURNAL)
        if not os.path.lexists(path):
            return None
        root = os.path.dirname(work)
        try:
            _refuse_links([path], root)
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                if size > _MAX_JOURNAL_BYTES:
                    raise ValueError(f"it has {size} bytes, expected at most {_MAX_JOURNAL_BYTES}")
                placed, removed, sizes = _parsed(file.read(), is_own)
            journal = cls(work, placed, removed, sizes)
            _refuse_links((path for move in journal._moves() for path in move), root)
        except (OSError, ValueError) as error:
            raise _journal_error(path, error) from error
        return journal

    def _moves(self) -> Iterator[tuple[str, str]]:
        """Yield the renames in the order of `publish`: what is placed may replace what was removed."""
        root, new, old = self._root, os.path.join(self._work, "new"), os.path.join(self._work, "old")
        yield from ((os.path.join(root, name), os.path.join(old, name)) for name in self._removed)
        yield from ((os.path.join(new, name), os.path.join(root, name)) for name in self._placed)

    def is_placed(self, name: str) -> bool:
        """Whether a file has been moved into its place."""
        is_waiting = os.path.lexists(os.path.join(self._work, "new", name))
        return not is_waiting and os.path.lexists(os.path.join(self._root, name))

    def write(self) -> None:
        """Write the journal to disk.

        Raises
        ------
        LogDirectoryError
            If it is larger than `read` accepts.
        """
        text = json.dumps({"placed": self._placed, "removed": self._removed, "sizes": self.sizes})
        if len(text) > _MAX_JOURNAL_BYTES:
            raise LogDirectoryError(
                f"{self._root}: {len(self._placed) + len(self._removed)} moves need a journal of {len(text)} bytes, "
                f"which may have at most {_MAX_JOURNAL_BYTES}. Nothing was written: write fewer files at once",
                source=self._root,
            )
        with open(f"{self.path}.tmp", "x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            rename_all([(f"{self.path}.tmp", self.path)])
            sync_directory(self._root)
        except BaseException:
            # The caller removes the files, and a journal of removed files must not be followed.
            self._remove()
            raise

    def finish(self) -> None:
        """Roll forward: place and remove what an earlier call has not, once the journal is written."""
        _make_directories(self._root, self._placed)
        for name in self._placed:
            with contextlib.suppress(FileNotFoundError):
                os.rename(os.path.join(self._work, "new", name), os.path.join(self._root, name))
        for name in self._removed:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._root, name))
            remove_empty(self._root, os.path.dirname(name))

    def publish(self) -> None:
        """Write the journal, place and remove all or nothing, and remove the journal."""
        try:
            self.write()
            _make_directories(os.path.join(self._work, "old"), self._removed)
            rename_all(list(self._moves()))
            os.unlink(self.path)
            sync_directory(self._work)
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Roll back the moves that were made, and remove the journal.

        Raises
        ------
        LogDirectoryError
            If a directory of a removed file no longer exists; then nothing is moved.
        """
        moves = list(self._moves())
        for source, target in moves:
            if os.path.lexists(target) and not os.path.isdir(os.path.dirname(source)):
                problem = f"{source[:_MAX_SHOWN_NAME]!r} can't be moved back, because its directory does not exist"
                raise _journal_error(self.path, ValueError(problem))
        _sync_parents(_undo_moves(moves))
        self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def _journal_error(path: str, error: OSError | ValueError) -> LogDirectoryError:
    """Return the error for a journal that is not followed."""
    problem = "can't be read" if isinstance(error, OSError) else "is not the journal of a write"
    return LogDirectoryError(
        f"{path}: {problem}: {getattr(error, 'strerror', error)}. Nothing was moved. Check where this file comes from "
        f"and whether the other files are complete, then remove {os.path.dirname(path)}",
        source=path,
    )


def _parsed(text: bytes, is_own: Callable[[str], bool]) -> tuple[list[str], list[str], list[tuple[str, int]]]:
    """Return the lists of a journal; ValueError if something else is in it."""
    found = parse_json(text)
    lists: list[Any] = (
        [found.get(name) for name in ("placed", "removed", "sizes")] if isinstance(found, dict) else [None]
    )
    if not all(isinstance(each, list) for each in lists):
        raise ValueError("it does not have the lists placed, removed and sizes")
    placed, removed, sizes = lists
    if not all(isinstance(each, list) and [type(field) for field in each] == [str, int] for each in sizes):
        raise ValueError("sizes has other entries than names with sizes")
    for name in inner_names([*placed, *removed, *(name for name, _ in sizes)]):
        if not is_own(name):
            raise ValueError(f"{name[:_MAX_SHOWN_NAME]!r} is not a name that a write places or removes here")
    return placed, removed, [(name, size) for name, size in sizes]


def inner_names(names: list[str]) -> list[str]:
    """Return the names of files below a directory, as a file of that directory lists them.

    Raises
    ------
    ValueError
        If one is not text, or leads out of the directory: an absolute path, or a part ``..``.
    """
    for name in names:
        if not isinstance(name, str) or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise ValueError(f"{str(name)[:_MAX_SHOWN_NAME]!r} is not the name of a file below this directory")
    return names


def _refuse_links(paths: Iterable[str], root: str) -> None:
    """Raise ValueError if one of the paths below `root`, or a directory on the way, is a symbolic link."""
    directories = {root}
    for path in paths:
        _refuse_link(path, root)
        path = os.path.dirname(path)
        while path not in directories:
            _refuse_link(path, root)
            directories.add(path)
            path = os.path.dirname(path)


def _refuse_link(path: str, root: str) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if stat.S_ISLNK(os.lstat(path).st_mode):
            shown = os.path.relpath(path, root)[:_MAX_SHOWN_NAME]
            raise ValueError(f"{shown!r} is a symbolic link, and links are not followed")


def _make_directories(root: str, names: Iterable[str]) -> None:
    """Create the directories of files below `root`."""
    for directory in {os.path.dirname(name) for name in names}:
        os.makedirs(os.path.join(root, directory), exist_ok=True)
