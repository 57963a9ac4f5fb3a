"""All or nothing: files of attempts become files of the output, or all files of the run are removed.

On a mounted file system, a new directory appears complete with one rename. This is impossible in an object store, which
has no directories, and in a table, which has files of other runs. There the attempts are below a name that readers
ignore, the driver moves the files into place one by one, and publishes them at the end with ``_SUCCESS`` or the table's
transaction.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from kbatch.errors import LogDirectoryError
from kbatch.log.write.staging import move_all, remove_stage
from kbatch.sinks.outputs import OutputPlace
from kbatch.tuning import COPY_THREADS
from kbatch.unfinished import (
    OwnedDirectory,
    forget_unfinished,
    register_unfinished,
    remove_abandoned,
    unbroken,
)

__all__ = ["SUCCESS", "Staging"]

SUCCESS = "_SUCCESS"
# Files that another run may have written to the same output meanwhile.
_FOREIGN = re.compile(r"\.(parquet|arrow)$|/_temporary-")


class Staging:
    """The files of one run until they are published; a context manager that removes unpublished files.

    On a mounted file system, it also removes the files of an earlier run to the same output that was killed.

    Parameters
    ----------
    out : OutputPlace
    in_place : bool
        Whether files are moved into `out` itself, which may exist already, or cannot be renamed as a whole.

    Attributes
    ----------
    run : str
        Eight hexadecimal digits, unique to the run.
    attempts : OutputPlace
        Where tasks write.
    published : bool
        Whether the output is published, by `publish` or by a table's transaction, so that it must not be removed.
    data : OutputPlace
        Where the output is built: `out`, or the directory that is renamed to it.
    """

    def __init__(self, out: OutputPlace, *, in_place: bool) -> None:
        self.run = uuid.uuid4().hex[:8]
        self.published = False
        self._out = out
        self._in_place = in_place
        self._root = (
            out.at(f"_temporary-{self.run}") if in_place else OutputPlace(f"{out.url}.tmp-{self.run}", out.storage)
        )
        self.attempts = self._root.at("attempts")
        self.data = out if in_place else self._root.at("data")
        self._placed: list[str] = []
        self._made = False
        self._own: OwnedDirectory | None = None

    def __enter__(self) -> Staging:
        self._made = not self._out.exists()
        register_unfinished(self, self._remove if self._in_place else self._root.remove_all)
        try:
            if not self._in_place:
                parent, name = posixpath.split(self._out.path())
                remove_abandoned(parent, re.compile(rf"{re.escape(name)}\.tmp-[0-9a-f]{{8}}"))
                self._own = OwnedDirectory(self._root.path())
            self.attempts.make()
            self.data.make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Files in place are removed one by one, which an interrupt must not cut short.
        with unbroken if self._in_place else contextlib.nullcontext():
            self._remove()

    def place(self, files: Sequence[tuple[str, str]]) -> None:
        """Move files of attempts to their final names.

        Parameters
        ----------
        files : sequence of (str, str)
            The name in the directory of attempts, and in the output.

        Raises
        ------
        LogDirectoryError
            If the driver does not see a file.
        """
        for directory in {posixpath.dirname(name) for _, name in files}:
            self.data.make(directory)
        if self.data.local:
            for source, name in files:
                self._move(source, name)
            return
        with ThreadPoolExecutor(COPY_THREADS) as pool:
            moves = [pool.submit(self._move, source, name) for source, name in files]
            try:
                for move in moves:
                    move.result()
            except BaseException:
                # After an interrupt, do not wait for thousands of copies that are removed again.
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _move(self, source: str, name: str) -> None:
        self._placed.append(name)
        try:
            # An object store copies on its side. The directory of attempts is removed as a whole.
            move = self.data.fs.move if self.data.local else self.data.fs.copy_file
            move(self.attempts.path(source), self.data.path(name))
        except OSError as error:
            if self.attempts.exists(source):
                raise
            raise LogDirectoryError(
                f"{self.attempts.path(source)}: written by a Spark worker, but not found by the driver; the output "
                "must be on a file system that the driver and all workers share",
                source=self.attempts.url,
            ) from error

    def write(self, name: str, data: bytes) -> None:
        """Write a small file to the output."""
        self.data.make(posixpath.dirname(name))
        self._placed.append(name)
        self.data.write(name, data)

    def publish(self) -> None:
        """Publish the output: rename it, or write the marker that it is complete."""
        if self._in_place:
            self.write(SUCCESS, b"")
        else:
            # Fails if another process has created `out` meanwhile, unless it is an empty directory.
            move_all([(self.data.path(), self._out.path())], sync=False)
        self.published = True

    def _remove(self) -> None:
        remove_stage(self._root.remove_all, self._root.exists, attempts=50 if self._root.local else 3)
        if self._own is not None:
            self._own.release()
        forget_unfinished(self, complete=self.published)
        if self.published or not self._in_place:
            return
        for name in reversed(self._placed):
            with contextlib.suppress(OSError):
                self._out.remove(name)
            self._remove_empty(posixpath.dirname(name))
        with contextlib.suppress(OSError):
            if self._made and not self._out.holds(_FOREIGN):
                # Files that a table's library has begun, and the names of directories in object stores.
                self._out.remove_all()

    def _remove_empty(self, directory: str) -> None:
        while self._out.local and directory:
            try:
                os.rmdir(self._out.path(directory))
            except OSError:
                return
            directory = posixpath.dirname(directory)
