"""Where an export writes: a directory of a mounted file system, or a prefix of an object store.

No pyspark in here: the tasks share it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.fs

from kbatch.errors import LogDirectoryError

__all__ = ["Place", "open_place"]

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


@dataclass(frozen=True)
class Place:
    """A directory of some file system; picklable, as tasks open it for themselves.

    Attributes
    ----------
    url : str
        An absolute path, or a URL such as ``s3://bucket/directory``.
    storage : mapping of str to str
        Options of the file system.
    """

    url: str
    storage: Mapping[str, str] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "storage": dict(self.storage)}

    @property
    def local(self) -> bool:
        """Whether it is a path of a mounted file system."""
        return not _SCHEME.match(self.url)

    @cached_property
    def _opened(self) -> tuple[pyarrow.fs.FileSystem, str]:
        return _filesystem(self.url, self.storage)

    @property
    def fs(self) -> pyarrow.fs.FileSystem:
        """The file system."""
        return self._opened[0]

    def path(self, name: str = "") -> str:
        """Return the path of a file in here, as `fs` wants it."""
        root = self._opened[1].rstrip("/") or "/"
        return f"{root}/{name}" if name else root

    def at(self, name: str) -> Place:
        """Return the directory of this name in here."""
        return Place(f"{self.url}/{name}", self.storage)

    def exists(self, name: str = "") -> bool:
        """Whether there is such a file, or a directory with anything in it."""
        info = self.fs.get_file_info(self.path(name))
        if info.type != pyarrow.fs.FileType.NotFound or self.local:
            return bool(info.type != pyarrow.fs.FileType.NotFound)
        selector = pyarrow.fs.FileSelector(self.path(name), allow_not_found=True)
        return bool(self.fs.get_file_info(selector))

    def holds(self, pattern: re.Pattern[str]) -> bool:
        """Whether there is a file in here, at any depth, in whose path the pattern is found."""
        selector = pyarrow.fs.FileSelector(self.path(), allow_not_found=True, recursive=True)
        return any(pattern.search(info.path[len(self.path()) :]) for info in self.fs.get_file_info(selector))

    def make(self, name: str = "") -> None:
        """Make a directory where there is such a thing; object stores have names only."""
        if self.local:
            os.makedirs(self.path(name), exist_ok=True)

    def create(self, name: str) -> pa.NativeFile:
        """Open a new file for writing."""
        return self.fs.open_output_stream(self.path(name), compression=None)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""
        with self.create(name) as file:
            file.write(data)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.delete_file(self.path(name))

    def remove_all(self, name: str = "") -> None:
        """Remove a directory and what is in it, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.delete_dir(self.path(name))


def open_place(url: str, storage: Mapping[str, str]) -> Place:
    """Return the place of a path or a URL; a path is made absolute.

    Raises
    ------
    LogDirectoryError
        If there is no such file system, or it can't be reached.
    """
    url = re.sub(r"^file:(//(?=/))?", "", url)
    place = Place(url.rstrip("/") if _SCHEME.match(url) else os.path.abspath(url), dict(storage))
    try:
        place.path()
    except (pa.ArrowException, ValueError, OSError) as error:
        raise LogDirectoryError(f"{url}: not an output that can be opened: {error}", source=url) from error
    return place


def _filesystem(url: str, storage: Mapping[str, str]) -> tuple[pyarrow.fs.FileSystem, str]:
    if not _SCHEME.match(url):
        return pyarrow.fs.LocalFileSystem(), url
    if url.startswith("s3://") and storage:
        return pyarrow.fs.S3FileSystem(**storage), url.removeprefix("s3://")
    fs, path = pyarrow.fs.FileSystem.from_uri(url)
    return fs, path
