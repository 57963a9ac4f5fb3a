"""The sound part of a segment's ``.index`` and ``.timeindex`` files.

Both are hints. The entries returned here are consistent with each other; ``kbatch.log.segment`` verifies them against
the segment. A file that is missing or unreadable, or that has an incomplete entry, counts as empty (DSK-R5).
"""

from __future__ import annotations

import bisect
import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.errors import LogDirectoryError
from kbatch.format import SHORTEST_ENTRY
from kbatch.log.store.local_files import LocalFile
from kbatch.log.store.storage import RemoteFile, Storage, locate

__all__ = [
    "OFFSET_INDEX_DTYPE",
    "STORED_OFFSET_ENTRY",
    "STORED_TIME_ENTRY",
    "TIME_INDEX_DTYPE",
    "OffsetEntry",
    "OffsetIndex",
    "TimeEntry",
    "TimeIndex",
    "stored_entries",
]

# Entries per read: about a page of a local file, and enough of a remote one to be worth a request.
LOCAL_INDEX_BLOCK = 512
REMOTE_INDEX_BLOCK = 8192

OFFSET_INDEX_DTYPE = np.dtype([("offset", "<i8"), ("position", "<i8")])
TIME_INDEX_DTYPE = np.dtype([("timestamp", "<i8"), ("offset", "<i8")])

STORED_OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
STORED_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
# Far above what brokers allocate (segment.index.bytes, 10 MiB).
_MAX_INDEX_BYTES = 1 << 30


class OffsetEntry(NamedTuple):
    """An entry of an ``.index``: the absolute last offset of the batches appended at a position (DSK-R2)."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """An entry of a ``.timeindex``: the largest timestamp (ms) up to the batch that contains an offset (DSK-R3)."""

    timestamp: int
    offset: int


class _Entries:
    """The stored entries of an index file, read in blocks. Picklable.

    No block of a remote file is read twice.
    """

    def __init__(self, path: str, entry: np.dtype[np.void], storage: Storage) -> None:
        self._path = path
        self._entry = entry
        self._storage = storage
        self._size: int | None = None
        self._kept: dict[int, npt.NDArray[np.void]] = {}
        self._rows = REMOTE_INDEX_BLOCK if storage.remote else LOCAL_INDEX_BLOCK

    @contextlib.contextmanager
    def _opened(self, log_size: int) -> Iterator[tuple[int, Callable[[], LocalFile | RemoteFile]]]:
        """Yield the number of entries, limited by the log's size, and a function that opens the file once."""
        with contextlib.ExitStack() as stack:
            file = functools.cache(lambda: stack.enter_context(contextlib.closing(self._storage.open(self._path))))
            if self._size is None or not self._storage.remote:
                self._size = file().size
            count, rest = divmod(self._size, self._entry.itemsize)
            yield 0 if rest else min(count, log_size // SHORTEST_ENTRY + 1), file

    def _blocks(self, file: Callable[[], LocalFile | RemoteFile], first: int, count: int) -> npt.NDArray[np.void]:
        """Return the entries of some blocks, by one read if they are not kept."""
        numbers = range(first, first + count)
        if not self._kept.keys() >= set(numbers):
            size = self._rows * self._entry.itemsize
            data = file().window(first * size, (first + count) * size)
            rows = np.frombuffer(data, self._entry, len(data) // self._entry.itemsize)
            if not self._storage.remote:
                return rows
            parts = np.split(rows, range(self._rows, count * self._rows, self._rows))
            self._kept |= zip(numbers, parts, strict=True)
        return np.concatenate([self._kept[number] for number in numbers])

    def all(self, log_size: int) -> npt.NDArray[np.void]:
        """Return all entries with one read."""
        try:
            with self._opened(log_size) as (count, file):
                return self._blocks(file, 0, -(-count // self._rows))[:count] if count else np.empty(0, self._entry)
        except OSError:
            return np.empty(0, self._entry)

    def last(self, log_size: int, fits: Callable[[int, int, int], bool]) -> tuple[int, int] | None:
        """Return the last entry that fits; all entries before it must fit too.

        `fits` is called with the number of an entry and its two fields. The last block is searched first, since a seek
        by time skips most segments entirely.
        """
        try:
            with self._opened(log_size) as (count, file):
                block = functools.cache(lambda number: self._blocks(file, number, 1))

                def entry(number: int) -> tuple[int, int]:
                    first, second = block(number // self._rows)[number % self._rows].tolist()
                    return first, second

                def misfits(number: int) -> bool:
                    return not fits(number, *entry(number))

                # If the first entry of the last block fits, the result is in that block.
                low = max(count - 1, 0) // self._rows * self._rows
                low = 0 if count == 0 or misfits(low) else low
                found = bisect.bisect_left(range(count), True, lo=low, key=misfits) - 1
                return None if found < 0 else entry(found)
        except (OSError, IndexError):
            # The file was truncated.
            return None


class OffsetIndex:
    """A segment's ``.index`` file.

    Parameters
    ----------
    path : str
    base_offset : int
        The segment's base offset, from its name.
    storage : Storage, optional
        For a URL that needs options.
    """

    def __init__(self, path: str, *, base_offset: int, storage: Storage | None = None) -> None:
        self._base_offset = base_offset
        self._entries = _Entries(path, STORED_OFFSET_ENTRY, storage or locate(path)[0])

    def read(self, log_size: int) -> npt.NDArray[np.void]:
        """Read the sound part of the file, for the first `log_size` bytes of the segment.

        Returns
        -------
        ndarray of OFFSET_INDEX_DTYPE
            ``offset`` is the absolute last offset of the batches appended at ``position`` (DSK-R2). Both ascend
            strictly, and every position is within the log. The zero tail of a preallocated file is left out (DSK-R4).
        """
        stored = self._entries.all(log_size)
        offset = stored["offset"].astype(np.int64)
        position = stored["position"].astype(np.int64)
        sound = (offset >= 0) & (position >= 0) & (position < log_size)
        sound[1:] &= (offset[1:] > offset[:-1]) & (position[1:] > position[:-1])
        entries = np.empty(len(sound) if sound.all() else int(np.argmin(sound)), OFFSET_INDEX_DTYPE)
        entries["offset"] = offset[: len(entries)] + self._base_offset
        entries["position"] = position[: len(entries)]
        return entries

    def find(self, log_size: int, offset: int | None = None) -> OffsetEntry | None:
        """Return the last entry with an offset of at most `offset`; without `offset`, the last entry of the file.

        Only a few blocks of the file are read.
        """
        base, highest = self._base_offset, np.iinfo(np.int64).max if offset is None else offset

        def fits(number: int, last: int, position: int) -> bool:
            # Zeros are the tail of a preallocated file (DSK-R4).
            return last >= 0 and position >= min(number, 1) and position < log_size and base + last <= highest

        found = self._entries.last(log_size, fits)
        return None if found is None else OffsetEntry(base + found[0], found[1])


class TimeIndex:
    """A segment's ``.timeindex`` file. It takes the same parameters as `OffsetIndex`."""

    def __init__(self, path: str, *, base_offset: int, storage: Storage | None = None) -> None:
        self._base_offset = base_offset
        self._entries = _Entries(path, STORED_TIME_ENTRY, storage or locate(path)[0])

    def find(self, log_size: int, before: int) -> TimeEntry | None:
        """Return the last entry with a timestamp (ms) below `before`; only a few blocks are read."""

        def fits(_: int, timestamp: int, offset: int) -> bool:
            # Zeros are the tail of a preallocated file (DSK-R4).
            return timestamp >= 0 and offset >= 0 and (timestamp > 0 or offset > 0) and timestamp < before

        found = self._entries.last(log_size, fits)
        return None if found is None else TimeEntry(found[0], self._base_offset + found[1])


def stored_entries(
    path: str, kind: Literal["index", "timeindex"], storage: Storage | None = None
) -> tuple[npt.NDArray[np.void], int]:
    """Read all stored entries of an ``.index`` or ``.timeindex`` file, sound or not.

    Returns
    -------
    entries : ndarray of OFFSET_INDEX_DTYPE or TIME_INDEX_DTYPE
        ``offset`` is relative to the segment's base offset. The zero tail of a preallocated file is left out (DSK-R4).
    size : int
        Bytes of the file; a multiple of 8 or 12 in a sound file (DSK-R5).

    Raises
    ------
    LogDirectoryError
        If the file can't be read.
    """
    entry, dtype = STORED_TIME_ENTRY, TIME_INDEX_DTYPE
    if kind == "index":
        entry, dtype = STORED_OFFSET_ENTRY, OFFSET_INDEX_DTYPE
    try:
        data, size = (storage or locate(path)[0]).read(path, _MAX_INDEX_BYTES)
    except OSError as error:
        raise LogDirectoryError(f"{path}: can't be read: {error.strerror}", source=path) from error
    stored = np.frombuffer(data, entry, count=len(data) // entry.itemsize)
    used = np.flatnonzero(stored != np.zeros(1, entry)[0])
    # The first entry of an index may be all zeros.
    stored = stored[: max(int(used[-1]) + 1 if len(used) else 0, min(len(stored), 1))]
    entries = np.empty(len(stored), dtype)
    for name in dtype.names or ():
        entries[name] = stored[name]
    return entries, size
