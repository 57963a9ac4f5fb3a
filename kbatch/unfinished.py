"""Output that is not finished: its removal if the process ends early."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

__all__ = [
    "forget_unfinished",
    "has_unfinished",
    "is_complete",
    "register_unfinished",
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
