"""Ctrl-C and SIGTERM where they do no harm.

A signal that comes while py4j talks to the JVM is lost if it comes in one of its callbacks, where Python prints and
forgets exceptions, and leaves a connection behind that nobody can use. So it is held back, and raised at a safe place.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["HeldInterrupts"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class HeldInterrupts:
    """Holds a first SIGINT or SIGTERM back until `check` or the end of the ``with`` block; a second one comes through.

    The handlers are afterwards what they were, whatever was set inside: a SparkContext sets one for SIGINT. Outside of
    the main thread, where Python runs no handlers, it does nothing.

    Examples
    --------
    >>> from kbatch.spark.driver.interrupts import HeldInterrupts
    >>> with HeldInterrupts() as held:
    ...     held.check()
    """

    def __init__(self) -> None:
        self._came: int | None = None
        self._finished = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> HeldInterrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._hold) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, KeyboardInterrupt):
            # A handler that has just run may have chosen what the next signal does.
            self._restore()
        if error is None:
            self.check()

    def finish(self) -> None:
        """Say that what a signal could stop is done: a first one, now or later in the block, changes nothing."""
        self._finished = True

    def check(self) -> None:
        """Let the signal come through if one came."""
        if self._came is not None and not self._finished:
            came, self._came = self._came, None
            self._restore()
            signal.raise_signal(came)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._came = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
