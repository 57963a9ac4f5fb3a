"""Local files of a log, opened and read so that neither their kind nor another process can block or end this one.

Regular files are read, not mapped: if another process truncates a mapped file, an access to a page after its new end
ends this process (SIGBUS).
"""

from __future__ import annotations

import errno
import io
import os
import stat
import threading

import numpy as np
import numpy.typing as npt

from kbatch.batches.framing import Scan, byte_array
from kbatch.batches.pooled import PooledRows
from kbatch.errors import Fault, Finding
from kbatch.format import BATCH_DTYPE
from kbatch.kernels.buffers import allocate
from kbatch.kernels.scan import scan_file

__all__ = [
    "LocalFile",
    "bytes_read",
    "count_bytes",
    "open_descriptor",
    "open_directory",
    "open_regular",
    "regular_size",
]

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

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


def open_descriptor(path: str, flags: int = os.O_RDONLY, *, follow: bool = True, mode: int = 0o666) -> int:
    """Open a regular file; return its descriptor, which child processes do not inherit.

    Parameters
    ----------
    path : str
    flags : int
        As for `os.open`.
    follow : bool
        Whether `path` may be a symbolic link. Links among its directories are always followed.
    mode : int
        Permissions of a file that is created.

    Raises
    ------
    OSError
        If it can't be opened, is a symbolic link that is not followed, or is not a regular file.
    """
    # Without O_NONBLOCK, opening a FIFO waits for its other end.
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags if follow else flags | os.O_NOFOLLOW, mode)
    except OSError as error:
        if not follow and os.path.islink(path):
            raise _link_error(path) from None
        if error.errno == errno.ENXIO:
            # A socket, or a FIFO that is opened for writing.
            _check_kind(path, os.stat(path, follow_symlinks=follow).st_mode)
        raise
    try:
        _check_kind(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: str, *, follow: bool = True) -> io.FileIO:
    """Open a regular file for reading, unbuffered; parameters and errors as for `open_descriptor`."""
    return io.FileIO(path, "rb", opener=lambda name, _: open_descriptor(name, follow=follow))


def open_directory(path: str, *, follow: bool = True) -> int:
    """Open a directory; return its descriptor.

    Raises
    ------
    OSError
        If it can't be opened, is a symbolic link that is not followed, or is not a directory.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    except OSError:
        if not follow and os.path.islink(path):
            raise _link_error(path) from None
        raise


def regular_size(path: str, *, follow: bool = True) -> int:
    """Return the size of a regular file without opening it; errors as for `open_descriptor`."""
    found = os.stat(path, follow_symlinks=follow)
    if stat.S_ISLNK(found.st_mode):
        raise _link_error(path)
    _check_kind(path, found.st_mode)
    return found.st_size


def _check_kind(path: str, mode: int) -> None:
    """Raise unless the mode is of a regular file."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a special file")
        raise OSError(errno.EINVAL, f"it is {kind}; only regular files are read", path)


def _link_error(path: str) -> OSError:
    text = "it is a symbolic link in a log directory; the storage option follow_links=true follows it"
    return OSError(errno.ELOOP, text, path)


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

    def headers(self, position: int, end: int, max_batches: int) -> Scan:
        """Frame batches from `position` on by their headers, without reading their payloads.

        Parameters
        ----------
        position, end : int
            Bytes of the file. A batch that ends after `end` is incomplete.
        max_batches : int

        Returns
        -------
        Scan
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
        return Scan(rows.filled(), reached - position, finding)

    def window(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return a copy of the bytes from `start` up to `stop`; fewer where the file ends."""
        block = allocate(stop - start)
        view = memoryview(block)
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
