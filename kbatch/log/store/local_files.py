"""Local files of a log, read so that another process cannot end this one.

Files are read, not mapped: if another process truncates a mapped file, an access to a page after its new end
ends this process (SIGBUS).
"""

from __future__ import annotations

import errno
import os
import threading

import numpy as np
import numpy.typing as npt

from kbatch.batches.framing import ScannedBatches, byte_array
from kbatch.batches.pooled import PooledRows
from kbatch.batches.regular_files import open_regular
from kbatch.errors import Fault, Finding
from kbatch.format import BATCH_DTYPE
from kbatch.kernels.buffers import allocate
from kbatch.kernels.scan import scan_file

__all__ = ["LocalFile", "bytes_read", "count_bytes"]

# The capacity of a window of a file from which memory matters more than the time that new pages take.
FRUGAL_WINDOW = 1 << 20

_lock = threading.Lock()
_bytes_read = 0


def bytes_read() -> int:
    """Return the number of bytes that this process has read from files through kbatch, including index files.

    Examples
    --------
    >>> import kbatch
    >>> before = bytes_read()
    >>> kbatch.Log("tests/golden/logs/codec-none-0").end_offset
    3160
    >>> bytes_read() > before
    True
    """
    return _bytes_read


def count_bytes(size: int) -> None:
    """Add to the number of bytes that `bytes_read` returns."""
    global _bytes_read
    with _lock:
        _bytes_read += size


class LocalFile:
    """An open file of this machine.

    Parameters
    ----------
    path : str
    follow : bool
        Whether `path` may be a symbolic link.

    Attributes
    ----------
    size : int
        Bytes of the file when it was opened.
    """

    def __init__(self, path: str, *, follow: bool = True) -> None:
        self._file = open_regular(path, follow=follow)
        self.size = os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file. Windows remain valid."""
        self._file.close()

    def is_shorter_than(self, size: int) -> bool:
        """Whether the file now has fewer than `size` bytes."""
        return os.fstat(self._file.fileno()).st_size < size

    def headers(self, position: int, end: int, max_batches: int) -> ScannedBatches:
        """Frame batches from `position` on by their headers, without reading their payloads.

        Parameters
        ----------
        position, end : int
            Bytes of the file. A batch that ends after `end` is incomplete.
        max_batches : int

        Returns
        -------
        ScannedBatches
            ``consumed`` counts from `position`.

        Raises
        ------
        OSError
            If the file can't be read.
        """
        rows = PooledRows(BATCH_DTYPE, max_batches)
        (count, reached, fault, expected, found), size, error = scan_file(
            self._file.fileno(), rows.array[:max_batches], position, end
        )
        count_bytes(size)
        if error > 0:
            raise self._read_error(error, reached)
        rows.used = count
        finding = Finding(Fault(fault), expected=expected, found=found) if fault else None
        return ScannedBatches(rows.filled(), reached - position, finding)

    def window(self, start: int, stop: int, capacity: int = 0) -> npt.NDArray[np.uint8]:
        """Return a copy of the bytes from `start` up to `stop`; fewer where the file ends.

        Windows of the same `capacity` in bytes, if it is larger, use the same memory one after another.
        """
        block = allocate(max(stop - start, capacity), capacity >= FRUGAL_WINDOW)
        view = memoryview(block)[: stop - start]
        done = 0
        while done < len(view):
            try:
                n = os.preadv(self._file.fileno(), [view[done:]], start + done)
            except OSError as error:
                raise self._read_error(error.errno or errno.EIO, start + done) from None
            if not n:
                break
            done += n
        count_bytes(done)
        return byte_array(view[:done])

    def _read_error(self, number: int, position: int) -> OSError:
        return OSError(number, f"{os.strerror(number)} at byte {position}", self._file.name)
