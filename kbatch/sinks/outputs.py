"""The output of an export: a directory of a mounted file system, or a prefix of an object store."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.fs

from kbatch.batches.regular_files import open_regular
from kbatch.log.store.storage import filesystem, is_url
from kbatch.publishing import REMOVALS, remove_empty, rename_all, try_to_remove

__all__ = ["OutputPlace", "open_place"]


@dataclass(frozen=True)
class OutputPlace:
    """A directory of a file system. It is picklable; each task opens the file system itself.

    Attributes
    ----------
    url : str
        An absolute path, or a URL such as ``s3://bucket/directory``.
    storage : mapping of str to str
        Options of the file system, as for `kbatch.log.store.storage.filesystem`.
    """

    url: str
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "storage": dict(self.storage)}

    @property
    def local(self) -> bool:
        """Whether the place is a path of a mounted file system."""
        return not is_url(self.url)

    @cached_property
    def _opened(self) -> tuple[pyarrow.fs.FileSystem, str]:
        return filesystem(self.url, self.storage)

    @property
    def fs(self) -> pyarrow.fs.FileSystem:
        """The file system."""
        return self._opened[0]

    def path(self, name: str = "") -> str:
        """Return the path of a file in this directory, for `fs`."""
        root = self._opened[1].rstrip("/") or "/"
        return f"{root}/{name}" if name else root

    def at(self, name: str) -> OutputPlace:
        """Return the subdirectory of this name."""
        return OutputPlace(f"{self.url}/{name}", self.storage)

    def exists(self, name: str = "") -> bool:
        """Whether a file, or a directory that is not empty, exists."""
        info = self.fs.get_file_info(self.path(name))
        if info.type != pyarrow.fs.FileType.NotFound or self.local:
            return bool(info.type != pyarrow.fs.FileType.NotFound)
        selector = pyarrow.fs.FileSelector(self.path(name), allow_not_found=True)
        return bool(self.fs.get_file_info(selector))

    def entries(self) -> list[str]:
        """Return the names of files and subdirectories; none if the directory does not exist."""
        if self.local:
            # Unlike pyarrow, this also lists names that are not UTF-8.
            try:
                return os.listdir(self.path())
            except FileNotFoundError:
                return []
        selector = pyarrow.fs.FileSelector(self.path(), allow_not_found=True)
        return [info.base_name for info in self.fs.get_file_info(selector) if info.base_name]

    def files(self, name: str = "") -> list[str]:
        """Return the paths of all files below a subdirectory, relative to this directory."""
        selector = pyarrow.fs.FileSelector(self.path(name), allow_not_found=True, recursive=True)
        start = len(self.path()) + 1
        return [info.path[start:] for info in self.fs.get_file_info(selector) if info.is_file]

    def make(self, name: str = "") -> None:
        """Create a directory on a mounted file system; object stores need no directories."""
        if self.local:
            os.makedirs(self.path(name), exist_ok=True)

    def create(self, name: str) -> pa.NativeFile:
        """Open a new file for writing; on a mounted file system the directory itself must exist."""
        if self.local:
            os.stat(self.path())
            self.make(os.path.dirname(name))
        return self.fs.open_output_stream(self.path(name), compression=None)

    def open(self, name: str) -> io.FileIO | pa.NativeFile:
        """Open a file for reading; refuse a FIFO, which would not end."""
        path = self.path(name)
        return open_regular(path) if self.local else self.fs.open_input_file(path)

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a small file; None if it does not exist."""
        try:
            with self.open(name) as file:
                data: bytes = file.read()
        except FileNotFoundError:
            return None
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write a small file; readers see either the old contents or all of the new contents."""
        self.write_parts(name, [data])

    def write_parts(self, name: str, parts: Iterable[bytes]) -> None:
        """Write a file of any size in parts, like `write`."""
        unfinished = f"{name}.tmp" if self.local else name
        if not self.local:
            # Closing the stream replaces the object, even if an error has interrupted the parts.
            parts = list(parts)
        with self.create(unfinished) as file:
            for part in parts:
                file.write(part)
        if self.local:
            rename_all([(self.path(unfinished), self.path(name))], sync=False)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.delete_file(self.path(name))

    def remove_empty(self, directory: str) -> None:
        """Remove a directory of a mounted file system, and its parents below this one, if they are empty."""
        if self.local:
            remove_empty(self.path(), directory)

    def remove_all(self, name: str = "") -> None:
        """Remove a directory with its contents, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.delete_dir(self.path(name))

    def remove_stage(self) -> None:
        """Remove this directory, to which a task that is being cancelled may still write."""
        try_to_remove(self.remove_all, self.exists, REMOVALS if self.local else 3)


def open_place(url: str, storage: Mapping[str, str]) -> OutputPlace:
    """Return the place of a path or a URL; a path is made absolute.

    Raises
    ------
    LogDirectoryError
        If the file system is unknown or cannot be reached.
    ValueError
        For an unknown option of the file system.
    MissingDependencyError
        If a package for it is not installed.
    """
    place = OutputPlace(url.rstrip("/") if is_url(url) else filesystem(url)[1], dict(storage))
    place.path()
    return place
