"""Output that is not finished: its directories, and their removal if the run or the process ends early.

A run locks its directory as long as it lives. The system releases the lock of a process that is killed, so the next run
can distinguish an abandoned directory from one in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import threading
from collections.abc import Callable

__all__ = [
    "OwnedDirectory",
    "forget_unfinished",
    "has_unfinished",
    "is_complete",
    "register_unfinished",
    "remove_abandoned",
    "remove_unfinished",
    "unbroken",
]

# Held while output is published or undone: the process does not end in the middle of that.
unbroken = threading.RLock()
# How to remove the unfinished output of each writer in this process.
_registered: dict[object, Callable[[], None]] = {}
_complete = threading.Event()


def register_unfinished(writer: object, remove: Callable[[], None]) -> None:
    """Register the function that removes the output of a writer if the process has to end at once."""
    _registered[writer] = remove


def forget_unfinished(writer: object, *, complete: bool = False) -> None:
    """Forget a writer whose output is published or removed; `complete` if a later interrupt must not undo anything."""
    _registered.pop(writer, None)
    if complete:
        _complete.set()


def has_unfinished() -> bool:
    """Whether this process has unfinished output."""
    return bool(_registered)


def is_complete() -> bool:
    """Whether the output of the command is published, so that an interrupt comes too late."""
    return _complete.is_set()


def remove_unfinished() -> None:
    """Remove the unfinished output of all writers; the caller holds `unbroken` and ends the process afterwards."""
    for remove in list(_registered.values()):
        with contextlib.suppress(Exception):
            remove()


class OwnedDirectory:
    """A new directory that this process locks until `release`.

    Parameters
    ----------
    path : str
        Unique to this run.
    mode : int
        The permissions, before the umask.

    Attributes
    ----------
    path : str
    """

    def __init__(self, path: str, mode: int = 0o777) -> None:
        self.path = path
        self._descriptor = -1
        while self._descriptor < 0:
            os.makedirs(path, mode, exist_ok=True)
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            # Some network file systems have no locks for directories; then nobody removes abandoned ones.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_same(descriptor, path):
                self._descriptor = descriptor
            else:
                # Another run has taken it for abandoned, before the lock.
                os.close(descriptor)

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _is_same(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def remove_abandoned(parent: str, names: re.Pattern[str]) -> list[str]:
    """Remove the directories of runs that have ended without removing them.

    Parameters
    ----------
    parent : str
    names : Pattern
        Names of directories of `OwnedDirectory`. Other directories are not removed, nor locked ones, nor any on a
        file system without locks.

    Returns
    -------
    list of str
        The names removed.
    """
    removed = []
    found: list[str] = []
    with contextlib.suppress(OSError):
        found = sorted(filter(names.fullmatch, os.listdir(parent)))
    for name in found:
        path = os.path.join(parent, name)
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
                removed.append(name)
            finally:
                os.close(descriptor)
    return removed
