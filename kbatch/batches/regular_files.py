"""Opening files so that a FIFO, socket or device can't block this process, and links are followed only on request."""

from __future__ import annotations

import errno
import io
import os
import stat

__all__ = ["open_descriptor", "open_directory", "open_regular", "regular_size"]

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


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
