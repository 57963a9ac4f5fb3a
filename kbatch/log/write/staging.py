"""Output that appears only when it is complete.

Files are written to a directory on the same file system whose name readers and brokers ignore, and are renamed at the
end. If a rename fails, the earlier ones are undone. A write that is killed leaves that directory; the next write to the
same path removes it.
"""

from __future__ import annotations

import os
import re
import uuid
from types import TracebackType
from typing import Self

from kbatch.errors import LogDirectoryError, cannot_write, exists_already
from kbatch.log.store.storage import is_url, locate
from kbatch.publishing import JOURNAL, REMOVALS, WorkDirectory, move_all, remove_abandoned, rename_all, sync_directory
from kbatch.unfinished import forget_unfinished, register_unfinished, unbroken

__all__ = ["NewOutput", "Stage", "refuse_link", "stage_prefix"]

_INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
# The longest name that file systems allow, without ".kbatch-12345678.tmp".
_MAX_PREFIX = 255 - 20


def _name_output(error: OSError, directory: str, out: str) -> None:
    """Replace the path of a file in the temporary `directory`, or a missing path, in an OSError by the output's."""
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


class NewOutput(WorkDirectory):
    """A context manager for output that appears at its final path only when it is complete.

    In the block, files are written to ``new``, in a work directory in the parent of the final path. At the end of the
    block they get their final names; after an exception they are removed.

    Parameters
    ----------
    path : str or path
        The final path. It must not exist, or be an empty directory.
    directory : bool
        Whether the final path is a directory. Otherwise it is a segment: the files in ``new`` are moved to the final
        path's directory, the one named like `path` last.
    sync : bool
        Whether to sync data to disk before the renames.
    replace : bool
        Whether the final path may be a file that is replaced. It is no segment then.

    Raises
    ------
    LogDirectoryError
        If the path exists, or an index file of a segment's name does; if its parent is not a directory; or if the path
        is a URL.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, directory: bool = True, sync: bool = True, replace: bool = False
    ) -> None:
        if is_url(os.fspath(path)):
            raise LogDirectoryError(f"{path}: it can be written to a local path only", source=os.fspath(path))
        self._path = os.path.abspath(locate(path)[1])
        self._is_directory = directory
        self._sync = sync
        self._replaces = replace
        self._check()
        parent, name = os.path.split(self._path)
        if not os.path.isdir(parent):
            raise LogDirectoryError(f"{self._path}: its parent {parent} is not a directory", source=self._path)
        # With its ending the name must not exceed 255 bytes.
        prefix = os.fsdecode(os.fsencode(f".{name}")[:_MAX_PREFIX]) + ".kbatch-"
        remove_abandoned(parent, re.compile(rf"{re.escape(prefix)}[0-9a-f]{{8}}\.tmp"))
        super().__init__(os.path.join(parent, f"{prefix}{uuid.uuid4().hex[:8]}.tmp"))
        # An interrupt between the steps would leave the directory.
        with unbroken:
            try:
                self.lock()
                os.mkdir(self.new)
            except OSError as error:
                self.remove()
                raise cannot_write(self._path, error) from error
            register_unfinished(self, self.remove)

    def _check(self) -> None:
        taken = [self._path]
        if self._replaces and os.path.isfile(self._path) and not os.path.islink(self._path):
            return
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
            self.remove()
        self.name_error(error)

    def name_error(self, error: BaseException | None) -> None:
        """Replace the path of a temporary file in an error of the file system by the output's."""
        if isinstance(error, OSError) and error.errno is not None:
            _name_output(error, self.path, self._path)

    def write_file(self, name: str, data: bytes) -> None:
        """Write a small file."""
        with open(os.path.join(self.new, name), "xb") as file:
            file.write(data)
            if self._sync:
                file.flush()
                os.fsync(file.fileno())

    def remove(self, attempts: int = 1) -> None:
        """Remove the files; nothing appears at the final path."""
        super().remove(attempts)
        forget_unfinished(self)

    def _publish(self) -> None:
        parent, name = os.path.split(self._path)
        self._check()
        moves = [(self.new, self._path)]
        if not self._is_directory:
            # The segment comes last: index files without a segment are ignored.
            names = sorted(os.listdir(self.new), key=lambda other: other == name)
            moves = [(os.path.join(self.new, each), os.path.join(parent, each)) for each in names]
        elif self._sync:
            for found, _, _ in os.walk(self.new):
                sync_directory(found)
        with unbroken:
            # A file that was replaced cannot be restored.
            (rename_all if self._replaces else move_all)(moves, sync=self._sync)
            self.remove()


class Stage(WorkDirectory):
    """The work directory of one write to a log directory, for the files of its tasks until they are moved into place.

    It is not locked, because in Spark no process lives as long as the write.

    Parameters
    ----------
    root : str or path
        A log directory, local or mounted. If it does not exist, its parent must.
    overwrite : str
        How the caller's user asks to replace all logs, for messages.
    kind : {"write", "backup"}
        What makes it, for the name of its directory.

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

    def __init__(
        self, root: str | os.PathLike[str], *, overwrite: str = "mode='overwrite'", kind: str = "write"
    ) -> None:
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
        super().__init__(f"{prefix}.kbatch-{kind}-{uuid.uuid4().hex}.tmp")

    def make(self) -> None:
        """Create the directory; tasks can then start attempts."""
        try:
            os.makedirs(os.path.join(self.path, "attempts"))
        except OSError as error:
            raise cannot_write(self.root, error) from error

    def name_error(self, error: OSError) -> None:
        """Replace the path of a file in the stage in an error by the output's."""
        _name_output(error, self.path, self.root)

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

    def remove(self, attempts: int = REMOVALS) -> None:
        """Remove the files of this write, unless a journal shows that some are in place."""
        if not os.path.lexists(os.path.join(self.path, JOURNAL)):
            super().remove(attempts)


def stage_prefix(root: str) -> str:
    """Return the prefix of the paths of stages for a directory that does not exist."""
    parent, name = os.path.split(root)
    return os.path.join(parent, f".{name}")
