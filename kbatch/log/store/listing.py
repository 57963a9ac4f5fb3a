"""Listings of log directories."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from kbatch.errors import LogDirectoryError
from kbatch.log.store.names import name_of_log, parse_segment_name, segment_names
from kbatch.log.store.storage import Entry, Storage
from kbatch.options import did_you_mean

__all__ = [
    "ListedDirectory",
    "find_file",
    "is_log_name",
    "list_directories",
    "list_path",
    "missing_path",
    "no_segments",
    "not_listed",
]

# Concurrent listings of a remote filesystem: each is a round trip.
LISTED_AT_ONCE = 16


class ListedDirectory(NamedTuple):
    """A directory and its listing."""

    storage: Storage
    path: str
    listing: Mapping[str, Entry]

    @property
    def has_segments(self) -> bool:
        """Whether a file of the directory is a segment."""
        # A .swap file is a segment itself, so the segments that it replaces do not matter.
        if any(parse_segment_name(name) is not None for name in self.listing):
            return True
        return bool(segment_names(self.listing, lambda _, base_offset: base_offset))

    def is_log(self, marked: bool) -> bool:
        """Whether the directory has segments and names a topic-partition. `marked` allows a directory mark."""
        names = (name for name in self.listing if parse_segment_name(name) is not None)
        return self.has_segments and is_log_name(self.storage.absolute(self.path), marked, *names)


def is_log_name(path: str, marked: bool, *segments: str) -> bool:
    """Whether a path names a topic-partition's directory. `marked` allows a directory mark."""
    try:
        mark = name_of_log(path, segments).mark
    except LogDirectoryError:
        return False
    return marked or mark is None


def list_path(storage: Storage, path: str, kind: str = "file or directory") -> dict[str, Entry] | None:
    """List a directory; return None if the path is a file. The error for a missing path names the expected `kind`."""
    if storage.remote and path.endswith(".log"):
        entry = storage.find(path)
        if entry is not None and not entry.is_directory:
            return None
    try:
        return storage.list(path)
    except OSError as error:
        entry = storage.find(path)
        if entry is None:
            raise missing_path(storage, path, kind) from None
        if entry.is_directory:
            raise not_listed(path, error) from error
        return None


def not_listed(directory: str, error: OSError) -> LogDirectoryError:
    """Make the error for a directory that can't be listed."""
    return LogDirectoryError(f"{directory}: can't be listed: {error.strerror}", source=directory)


def missing_path(storage: Storage, path: str, kind: str = "file or directory") -> LogDirectoryError:
    """Make the error for a path at which there is nothing; of a local one, it names a similar name next to it."""
    names: Iterable[str] = ()
    if not storage.remote:
        with contextlib.suppress(OSError):
            names = os.listdir(os.path.dirname(storage.absolute(path)))
    hint = did_you_mean(os.path.basename(path), names)
    return LogDirectoryError(f"{path}: no such {kind}{hint}", source=path)


def no_segments(found: ListedDirectory, marked: bool) -> LogDirectoryError | None:
    """Make the error for topic-partition directories without segments: `found` or those in it; None for others."""
    below = sorted(name for name, entry in found.listing.items() if entry.is_directory and is_log_name(name, marked))
    if below:
        shown = ", ".join(below[:3]) + (", ..." if len(below) > 3 else "")
        text = f"its topic-partition directories ({shown}) contain no segment ('.log' file)"
    elif is_log_name(path := found.storage.absolute(found.path), marked):
        topic, partition, _ = name_of_log(path, ())
        text = f"the directory of topic {topic!r}, partition {partition}, contains no segment ('.log' file)"
    else:
        return None
    return LogDirectoryError(f"{found.path}: {text}", source=found.path)


def list_directories(parent: ListedDirectory, names: list[str]) -> list[ListedDirectory]:
    """List each subdirectory once; remote subdirectories are listed concurrently."""
    storage = parent.storage

    def listed(name: str) -> ListedDirectory:
        path = storage.join(parent.path, name)
        try:
            return ListedDirectory(storage, path, storage.list(path))
        except OSError as error:
            raise not_listed(path, error) from error

    if not storage.remote or len(names) < 2:
        return [listed(name) for name in names]
    with ThreadPoolExecutor(LISTED_AT_ONCE, "kbatch-list") as pool:
        return list(pool.map(listed, names))


def find_file(storage: Storage, directory: str, listing: Mapping[str, Entry] | None, name: str) -> str | None:
    """Return the path of a file of a log's directory, or None if it does not exist; without a listing, look it up."""
    path = storage.join(directory, name)
    found = name in listing if listing is not None else storage.find(path) is not None
    return path if found else None
