"""All or nothing: files of attempts become files of the output, or everything of this run is removed.

A new directory of a mounted file system appears with one rename, complete. Elsewhere there is no such thing: an object
store has no directories, and a table is more than the files of one run. There the attempts are below a name that
readers pass over, the driver puts the files in place one by one, and what makes them count comes last: ``_SUCCESS``, or
the table's own transaction.
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
from kbatch.sinks.outputs import Place

__all__ = ["SUCCESS", "Staging"]

SUCCESS = "_SUCCESS"
# What another run may have written into the same output meanwhile.
_NOT_OURS = re.compile(r"\.(parquet|arrow)$|/_temporary-")
# Copies that an object store does at a time for the driver.
_THREADS = 16


class Staging:
    """What one run writes, until it is published; a context manager that removes what isn't.

    Parameters
    ----------
    out : Place
    in_place : bool
        Whether files are put into `out` itself, as it may be there already or can't be renamed as a whole.

    Attributes
    ----------
    run : str
        Eight hexadecimal digits that no other run has.
    attempts : Place
        Where tasks write.
    published : bool
        Whether the output counts, so that nothing of it may be removed: by `publish`, or as a table's transaction says.
    data : Place
        The output as far as it is: `out`, or what will get its name.
    """

    def __init__(self, out: Place, *, in_place: bool) -> None:
        self.run = uuid.uuid4().hex[:8]
        self.published = False
        self._out = out
        self._in_place = in_place
        self._root = out.at(f"_temporary-{self.run}") if in_place else Place(f"{out.url}.tmp-{self.run}", out.storage)
        self.attempts = self._root.at("attempts")
        self.data = out if in_place else self._root.at("data")
        self._placed: list[str] = []
        self._made = False

    def __enter__(self) -> Staging:
        self._made = not self._out.exists()
        try:
            self.attempts.make()
            self.data.make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def place(self, files: Sequence[tuple[str, str]]) -> None:
        """Put files of attempts where they belong.

        Parameters
        ----------
        files : sequence of (str, str)
            Name in the directory of attempts, and in the output.

        Raises
        ------
        LogDirectoryError
            If a file isn't there for the driver.
        """
        for directory in {posixpath.dirname(name) for _, name in files}:
            self.data.make(directory)
        if self.data.local:
            for source, name in files:
                self._move(source, name)
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            moves = [pool.submit(self._move, source, name) for source, name in files]
            try:
                for move in moves:
                    move.result()
            except BaseException:
                # Whoever interrupts doesn't wait for thousands of copies that are removed again.
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _move(self, source: str, name: str) -> None:
        self._placed.append(name)
        try:
            # An object store copies by itself. The directory of attempts is removed as a whole.
            move = self.data.fs.move if self.data.local else self.data.fs.copy_file
            move(self.attempts.path(source), self.data.path(name))
        except OSError as error:
            if self.attempts.exists(source):
                raise
            raise LogDirectoryError(
                f"{self.attempts.path(source)}: a Spark worker wrote it, but it isn't there for the driver; the output "
                "must be on a file system that the driver and all workers share",
                source=self.attempts.url,
            ) from error

    def write(self, name: str, data: bytes) -> None:
        """Write a small file into the output."""
        self.data.make(posixpath.dirname(name))
        self._placed.append(name)
        self.data.write(name, data)

    def publish(self) -> None:
        """Make the output count: give it its name, or mark that it is complete."""
        if self._in_place:
            self.write(SUCCESS, b"")
        else:
            # Fails if another process has made `out` meanwhile, unless as an empty directory.
            move_all([(self.data.path(), self._out.path())], sync=False)
        self.published = True

    def _remove(self) -> None:
        remove_stage(self._root.remove_all, self._root.exists, attempts=50 if self._root.local else 3)
        if self.published or not self._in_place:
            return
        for name in reversed(self._placed):
            with contextlib.suppress(OSError):
                self._out.remove(name)
            self._remove_empty(posixpath.dirname(name))
        with contextlib.suppress(OSError):
            if self._made and not self._out.holds(_NOT_OURS):
                # What a table's library has begun, and the names of directories in object stores.
                self._out.remove_all()

    def _remove_empty(self, directory: str) -> None:
        while self._out.local and directory:
            try:
                os.rmdir(self._out.path(directory))
            except OSError:
                return
            directory = posixpath.dirname(directory)
