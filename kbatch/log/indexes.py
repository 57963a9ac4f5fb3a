"""A segment's ``.index`` and ``.timeindex`` files, as far as they are sound.

Both are hints. What is read here is consistent in itself; whether it fits the segment is for the one who seeks to find
out (``kbatch.log.segment``). A file that is missing, unreadable or of no whole number of entries has none (DSK-R5).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kbatch.errors import LogDirectoryError
from kbatch.format import SHORTEST_ENTRY
from kbatch.log.storage import Storage, locate

__all__ = [
    "OFFSET_INDEX_DTYPE",
    "TIME_INDEX_DTYPE",
    "read_offset_index",
    "read_time_index",
    "stored_offset_entries",
    "stored_time_entries",
]

OFFSET_INDEX_DTYPE = np.dtype([("offset", "<i8"), ("position", "<i8")])
TIME_INDEX_DTYPE = np.dtype([("timestamp", "<i8"), ("offset", "<i8")])

_STORED_OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
_STORED_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
# Far above what brokers allocate (segment.index.bytes, 10 MiB).
_MOST_STORED = 1 << 30


def read_offset_index(
    path: str, *, base_offset: int, log_size: int, storage: Storage | None = None
) -> npt.NDArray[np.void]:
    """Read the sound part of an ``.index`` file.

    Parameters
    ----------
    path : str
    base_offset : int
        The segment's, from its name.
    log_size : int
        Bytes of the segment's ``.log`` file.
    storage : Storage, optional
        Where `path` is a URL that needs options.

    Returns
    -------
    ndarray of OFFSET_INDEX_DTYPE
        ``offset`` is absolute: the last offset of what was appended at ``position`` (DSK-R2). Both ascend strictly, and
        every position lies within the log. The zero tail of a preallocated file is left out (DSK-R4).
    """
    stored = _read_entries(path, _STORED_OFFSET_ENTRY, log_size, storage)
    offset = stored["offset"].astype(np.int64)
    position = stored["position"].astype(np.int64)
    sound = (offset >= 0) & (position >= 0) & (position < log_size)
    sound[1:] &= (offset[1:] > offset[:-1]) & (position[1:] > position[:-1])
    entries = np.empty(_leading(sound), OFFSET_INDEX_DTYPE)
    entries["offset"] = offset[: len(entries)] + base_offset
    entries["position"] = position[: len(entries)]
    return entries


def read_time_index(
    path: str, *, base_offset: int, log_size: int, storage: Storage | None = None
) -> npt.NDArray[np.void]:
    """Read the sound part of a ``.timeindex`` file.

    Parameters
    ----------
    path : str
    base_offset : int
        The segment's, from its name.
    log_size : int
        Bytes of the segment's ``.log`` file.
    storage : Storage, optional
        Where `path` is a URL that needs options.

    Returns
    -------
    ndarray of TIME_INDEX_DTYPE
        ``timestamp`` (ms) is the largest of the segment up to the batch that holds ``offset``, which is absolute
        (DSK-R3). Neither descends. The zero tail of a preallocated file is left out (DSK-R4).
    """
    stored = _read_entries(path, _STORED_TIME_ENTRY, log_size, storage)
    timestamp = stored["timestamp"].astype(np.int64)
    offset = stored["offset"].astype(np.int64)
    sound = (timestamp >= 0) & (offset >= 0) & ~((timestamp == 0) & (offset == 0))
    sound[1:] &= (timestamp[1:] >= timestamp[:-1]) & (offset[1:] >= offset[:-1])
    entries = np.empty(_leading(sound), TIME_INDEX_DTYPE)
    entries["timestamp"] = timestamp[: len(entries)]
    entries["offset"] = offset[: len(entries)] + base_offset
    return entries


def stored_offset_entries(path: str, storage: Storage | None = None) -> tuple[npt.NDArray[np.void], int]:
    """Read all entries of an ``.index`` file as they are stored, sound or not.

    Returns
    -------
    entries : ndarray of OFFSET_INDEX_DTYPE
        ``offset`` is relative to the segment's. The zero tail of a preallocated file is left out (DSK-R4).
    size : int
        Bytes of the file; of a sound one, a multiple of 8 (DSK-R5).

    Raises
    ------
    LogDirectoryError
        If the file can't be read.
    """
    return _stored(path, _STORED_OFFSET_ENTRY, OFFSET_INDEX_DTYPE, storage)


def stored_time_entries(path: str, storage: Storage | None = None) -> tuple[npt.NDArray[np.void], int]:
    """Read all entries of a ``.timeindex`` file as they are stored, sound or not.

    Returns
    -------
    entries : ndarray of TIME_INDEX_DTYPE
        ``offset`` is relative to the segment's. The zero tail of a preallocated file is left out (DSK-R4).
    size : int
        Bytes of the file; of a sound one, a multiple of 12 (DSK-R5).

    Raises
    ------
    LogDirectoryError
        If the file can't be read.
    """
    return _stored(path, _STORED_TIME_ENTRY, TIME_INDEX_DTYPE, storage)


def _stored(
    path: str, entry: np.dtype[np.void], dtype: np.dtype[np.void], storage: Storage | None
) -> tuple[npt.NDArray[np.void], int]:
    try:
        data, size = (storage or locate(path)[0]).read(path, _MOST_STORED)
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


def _read_entries(path: str, entry: np.dtype[np.void], log_size: int, storage: Storage | None) -> npt.NDArray[np.void]:
    """Read a whole number of entries, no more than a log of this size can have."""
    most = (log_size // SHORTEST_ENTRY + 1) * entry.itemsize
    try:
        data, size = (storage or locate(path)[0]).read(path, most)
    except OSError:
        return np.empty(0, entry)
    if size % entry.itemsize:
        return np.empty(0, entry)
    return np.frombuffer(data, entry, count=len(data) // entry.itemsize)


def _leading(sound: npt.NDArray[np.bool_]) -> int:
    """Count the entries before the first that is not sound."""
    return len(sound) if sound.all() else int(np.argmin(sound))
