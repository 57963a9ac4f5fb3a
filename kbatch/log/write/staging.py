"""Output that appears only when it is complete.

Files are written to a directory on the same file system whose name readers and brokers ignore, and are renamed at the
end. If a rename fails, the earlier ones are undone. A write that is killed leaves that directory; the next write to the
same path removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from kbatch.errors import LogDirectoryError, cannot_write, exists_already
from kbatch.log.storage import is_url, locate
from kbatch.unfinished import (
    OwnedDirectory,
    forget_unfinished,
    register_unfinished,
    remove_abandoned,
    unbroken,
)

__all__ = [
    "JOURNAL",
    "Stage",
    "move_all",
    "name_output",
    "refuse_link",
    "remove_stage",
    "rename_all",
    "stage_prefix",
    "staged",
    "sync_directory",
    "sync_parents",
    "undo_moves",
]

# The moves of a `Stage` that are not finished.
JOURNAL = "journal.json"
_INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
# Attempts to remove a stage, and the pause between them: a task that is being cancelled may still write.
_REMOVALS = 50
_REMOVAL_SECONDS = 0.1
# The longest name that file systems allow, without ".kbatch-12345678.tmp".
_MAX_PREFIX = 255 - 20

Moves = Sequence[tuple[str, str]]


def move_all(moves: Moves, *, sync: bool = True) -> None:
    """Rename in order, all or nothing; with `sync`, the directories are synced to disk."""
    try:
        rename_all(moves, sync=sync)
    except BaseException:
        # Also after an interrupt: the caller reports that nothing was written.
        undo_moves(moves)
        raise


def rename_all(moves: Moves, *, sync: bool = True) -> None:
    """Rename in order; after an error the earlier renames remain."""
    for source, target in moves:
        os.rename(source, target)
    if sync:
        sync_parents(moves)


def undo_moves(moves: Moves) -> Moves:
    """Undo the renames that were made before an error or a crash, last first; return them."""
    undone = []
    for source, target in reversed(moves):
        if os.path.lexists(target) and not os.path.lexists(source):
            os.rename(target, source)
            undone.append((source, target))
    return undone


def sync_parents(moves: Moves) -> None:
    """Sync the directories on both sides of moves to disk."""
    for directory in {os.path.dirname(path) for move in moves for path in move}:
        if os.path.isdir(directory):
            sync_directory(directory)


def name_output(error: OSError, directory: str, out: str) -> None:
    """Let an error about a file in the temporary `directory`, or about no file, name the path of the output."""
    if error.filename is None or str(error.filename).startswith(directory):
        error.filename = out


def refuse_link(path: str) -> None:
    """Raise if a path in a log directory is a symbolic link: brokers create none, and it could lead anywhere."""
    if os.path.islink(path):
        raise LogDirectoryError(
            f"{path}: it is a symbolic link in a log directory, and writers follow none. Nothing was written; replace "
            "it by what it leads to, or write to another directory",
            source=path,
        )


def sync_directory(path: str) -> None:
    """Sync a directory to disk."""
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
    """A context manager for output that appears at its final path only when it is complete.

    In the block, files are written to ``directory``, which is in the parent of the final path. At the end of the block
    they get their final names; after an exception they are removed.

    Parameters
    ----------
    path : str or path
        The final path. It must not exist, or be an empty directory.
    directory : bool
        Whether the final path is a directory. Otherwise it is a segment: the files in ``directory`` are moved to the
        final path's directory, the one named like `path` last.
    sync : bool
        Whether to sync data to disk before the renames.

    Attributes
    ----------
    directory : str

    Raises
    ------
    LogDirectoryError
        If the path exists, or an index file of a segment's name does; if its parent is not a directory; or if the path
        is a URL.
    """

    def __init__(self, path: str | os.PathLike[str], *, directory: bool = True, sync: bool = True) -> None:
        if is_url(os.fspath(path)):
            raise LogDirectoryError(f"{path}: segments can be written to local paths only", source=os.fspath(path))
        self._path = os.path.abspath(locate(path)[1])
        self._is_directory = directory
        self._sync = sync
        self._check()
        parent, name = os.path.split(self._path)
        if not os.path.isdir(parent):
            raise LogDirectoryError(f"{self._path}: its parent {parent} is not a directory", source=self._path)
        # With its ending the name must not exceed 255 bytes.
        prefix = os.fsdecode(os.fsencode(f".{name}")[:_MAX_PREFIX]) + ".kbatch-"
        remove_abandoned(parent, re.compile(rf"{re.escape(prefix)}[0-9a-f]{{8}}\.tmp"))
        # An interrupt between the steps would leave the directory.
        with unbroken:
            try:
                self._own = OwnedDirectory(os.path.join(parent, f"{prefix}{uuid.uuid4().hex[:8]}.tmp"))
            except OSError as error:
                raise cannot_write(self._path, error) from error
            self.directory = self._own.path
            register_unfinished(self, self.discard)

    def _check(self) -> None:
        taken = [self._path]
        if not self._is_directory:
            # Readers would use existing index files of this name for the segment.
            taken += [self._path.removesuffix(".log") + suffix for suffix in _INDEX_SUFFIXES]
        elif os.path.isdir(self._path) and not os.path.islink(self._path) and not os.listdir(self._path):
            return
        for path in taken:
            if os.path.lexists(path):
                raise exists_already(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._publish()
        except OSError as failed:
            if failed.filename2 is not None:
                # A rename, whose source is a temporary file.
                raise cannot_write(self._path, failed) from failed
            self.name_error(failed)
            raise
        finally:
            self.discard()
        self.name_error(error)

    def name_error(self, error: BaseException | None) -> None:
        """Let an error of the file system name the output, not a file of this class, which no longer exists."""
        if isinstance(error, OSError) and error.errno is not None:
            name_output(error, self.directory, self._path)

    def write_file(self, name: str, data: bytes) -> None:
        """Write a small file."""
        with open(os.path.join(self.directory, name), "xb") as file:
            file.write(data)
            if self._sync:
                file.flush()
                os.fsync(file.fileno())

    def discard(self) -> None:
        """Remove the files; nothing appears at the final path."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self._own.release()
        forget_unfinished(self)

    def _publish(self) -> None:
        parent, name = os.path.split(self._path)
        self._check()
        moves = [(self.directory, self._path)]
        if not self._is_directory:
            # The segment comes last: index files without a segment are ignored.
            names = sorted(os.listdir(self.directory), key=lambda other: other == name)
            moves = [(os.path.join(self.directory, each), os.path.join(parent, each)) for each in names]
        elif self._sync:
            for found, _, _ in os.walk(self.directory):
                sync_directory(found)
        with unbroken:
            move_all(moves, sync=self._sync)
            forget_unfinished(self)


class Stage:
    """The directory of one write, for its files until they are moved into place.

    Picklable. Nothing is created on disk before `make`.

    Parameters
    ----------
    root : str or path
        A log directory, local or mounted. If it does not exist, its parent must.
    overwrite : str
        How the caller's user asks to replace all logs, for messages.

    Attributes
    ----------
    root : str
    path : str
        Directory of this write, on the same file system so that files can be renamed: in `root`, or next to it if
        `root` does not exist.
    is_new : bool
        Whether `root` does not exist yet.

    Raises
    ------
    LogDirectoryError
        If `root` is a URL or a file, or its parent is missing.
    """

    def __init__(self, root: str | os.PathLike[str], *, overwrite: str = "mode='overwrite'") -> None:
        self.overwrite = overwrite
        if is_url(os.fspath(root)):
            raise LogDirectoryError(
                f"{root}: logs can be written to local or mounted file systems only, because object stores have no "
                "rename and no lock",
                source=os.fspath(root),
            )
        self.root = os.path.realpath(locate(root)[1])
        self.is_new = not os.path.lexists(self.root)
        parent = os.path.dirname(self.root)
        if not os.path.isdir(parent if self.is_new else self.root):
            problem = f"its parent {parent} is not a directory" if self.is_new else "is not a directory"
            raise LogDirectoryError(f"{self.root}: {problem}", source=self.root)
        prefix = stage_prefix(self.root) if self.is_new else os.path.join(self.root, "")
        self.path = f"{prefix}.kbatch-write-{uuid.uuid4().hex}.tmp"

    def make(self) -> None:
        """Create the directory; tasks can then start attempts."""
        try:
            os.makedirs(os.path.join(self.path, "attempts"))
        except OSError as error:
            raise cannot_write(self.root, error) from error

    def name_error(self, error: OSError) -> None:
        """Let an error about a file in the stage name the output instead."""
        name_output(error, self.path, self.root)

    def attempt(self, name: str) -> str:
        """Create a directory for one attempt of a task.

        Raises
        ------
        LogDirectoryError
            If the stage does not exist. An attempt after `remove` must not create it again.
        """
        path = os.path.join(self.path, "attempts", f"{name}-{uuid.uuid4().hex[:8]}")
        try:
            os.mkdir(path)
        except FileNotFoundError as error:
            raise LogDirectoryError(
                f"{self.path}: the directory of this write does not exist. The write was aborted, or the log directory "
                "is not on a file system that the driver and all workers share",
                source=self.root,
            ) from error
        return path

    def remove(self) -> None:
        """Remove the files of this write, unless a journal shows that some are in place."""
        if not os.path.lexists(os.path.join(self.path, JOURNAL)):
            remove_stage(lambda: shutil.rmtree(self.path, ignore_errors=True), lambda: os.path.lexists(self.path))


def stage_prefix(root: str) -> str:
    """Return the prefix of the paths of stages for a directory that does not exist."""
    parent, name = os.path.split(root)
    return os.path.join(parent, f".{name}")
