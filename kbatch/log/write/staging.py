"""Output that appears whole or not at all.

Files are written in a directory whose name readers and brokers pass over, on the same file system, and are renamed at
the end. A rename that fails has those before it undone. What a write leaves that was killed is that directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from kbatch.errors import LogDirectoryError
from kbatch.log.storage import is_url, locate

__all__ = ["move_all", "remove_stage", "rename_all", "staged", "sync_directory", "sync_parents", "undo_moves"]

_INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
# How often, and how long between, the removal of a stage is tried: a task that is being cancelled may still write.
_REMOVALS = 50
_REMOVAL_SECONDS = 0.1

Moves = Sequence[tuple[str, str]]


def move_all(moves: Moves, *, sync: bool = True) -> None:
    """Rename all of it in order, or nothing; with `sync`, the names are forced to disk."""
    try:
        rename_all(moves, sync=sync)
    except BaseException:
        # Whoever interrupts this is told that nothing was written.
        undo_moves(moves)
        raise


def rename_all(moves: Moves, *, sync: bool = True) -> None:
    """Rename in order; an error leaves those before it renamed."""
    for source, target in moves:
        os.rename(source, target)
    if sync:
        sync_parents(moves)


def undo_moves(moves: Moves) -> Moves:
    """Rename back, last first, what an error or a crash has left renamed; return that."""
    undone = []
    for source, target in reversed(moves):
        if os.path.lexists(target) and not os.path.lexists(source):
            os.rename(target, source)
            undone.append((source, target))
    return undone


def sync_parents(moves: Moves) -> None:
    """Force the names on both sides of moves to disk."""
    for directory in {os.path.dirname(path) for move in moves for path in move}:
        if os.path.isdir(directory):
            sync_directory(directory)


def sync_directory(path: str) -> None:
    """Force the names in a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_stage(remove: Callable[[], None], exists: Callable[[], bool], *, attempts: int = _REMOVALS) -> None:
    """Remove a directory that a cancelled task may still write to for a moment."""
    for _ in range(attempts):
        with contextlib.suppress(OSError):
            remove()
            if not exists():
                return
        time.sleep(_REMOVAL_SECONDS)


class staged:
    """A path that comes into being whole, or not at all.

    In the block, files are written below ``directory``, which lies beside the final path. Without an exception what was
    made there takes its final name; after one it is gone.

    Parameters
    ----------
    path : str or path
        The final one. Nothing, or an empty directory, may be there.
    directory : bool
        Whether the final path is a directory. Else it is a segment: the block makes files in ``directory``, which take
        their names beside each other in the final path's directory, that of `path` last.
    sync : bool
        Whether data is forced to disk before names are given.

    Attributes
    ----------
    directory : str

    Raises
    ------
    LogDirectoryError
        If something is there already (beside a segment, an index file of its name too), if its parent is no directory,
        or if the path is a URL.
    """

    def __init__(self, path: str | os.PathLike[str], *, directory: bool = True, sync: bool = True) -> None:
        if is_url(os.fspath(path)):
            raise LogDirectoryError(f"{path}: segments are written to local paths only", source=os.fspath(path))
        self._path = os.path.abspath(locate(path)[1])
        self._is_directory = directory
        self._sync = sync
        self._check()
        parent, name = os.path.split(self._path)
        if not os.path.isdir(parent):
            raise LogDirectoryError(f"{self._path}: its parent {parent} is no directory", source=self._path)
        self.directory = tempfile.mkdtemp(prefix=f".{name}.", suffix=".tmp", dir=parent)
        if directory:
            # As a directory that is made the ordinary way; a temporary one is for its owner only.
            os.chmod(self.directory, 0o777 & ~_umask())

    def _check(self) -> None:
        taken = [self._path]
        if not self._is_directory:
            # Index files that are there already would be taken for those of the segment.
            taken += [self._path.removesuffix(".log") + suffix for suffix in _INDEX_SUFFIXES]
        elif os.path.isdir(self._path) and not os.path.islink(self._path) and not os.listdir(self._path):
            return
        for path in taken:
            if os.path.lexists(path):
                raise LogDirectoryError(f"{path}: there is something already", source=self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._publish()
        except OSError as failed:
            self.name_error(failed)
            raise
        finally:
            self.discard()
        self.name_error(error)

    def name_error(self, error: BaseException | None) -> None:
        """Say in an error of the file system what was being written."""
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = self._path

    def write_file(self, name: str, data: bytes) -> None:
        """Write a small file of this name."""
        with open(os.path.join(self.directory, name), "xb") as file:
            file.write(data)
            if self._sync:
                file.flush()
                os.fsync(file.fileno())

    def discard(self) -> None:
        """Remove what was written; nothing takes its final name."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _publish(self) -> None:
        parent, name = os.path.split(self._path)
        self._check()
        moves = [(self.directory, self._path)]
        if not self._is_directory:
            # Index files mean nothing without their segment.
            names = sorted(os.listdir(self.directory), key=lambda other: other == name)
            moves = [(os.path.join(self.directory, each), os.path.join(parent, each)) for each in names]
        elif self._sync:
            for found, _, _ in os.walk(self.directory):
                sync_directory(found)
        move_all(moves, sync=self._sync)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
