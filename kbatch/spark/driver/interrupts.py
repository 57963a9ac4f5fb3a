"""Delays Ctrl-C and SIGTERM to a safe place.

A signal during a callback of py4j is lost, because Python only prints exceptions there, and leaves a broken connection
to the JVM. So the signal is held, and raised later.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["HeldInterrupts"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class HeldInterrupts:
    """Holds a first SIGINT or SIGTERM until `check` or the end of the ``with`` block; a second one is raised at once.

    The block restores the handlers, also if code inside has set others, as a SparkContext does for SIGINT. Outside of
    the main thread, where Python runs no handlers, it does nothing.

    Examples
    --------
    >>> from kbatch.spark.driver.interrupts import HeldInterrupts
    >>> with HeldInterrupts() as held:
    ...     held.check()
    """

    def __init__(self) -> None:
        self._held: int | None = None
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
            # A handler that raised KeyboardInterrupt may have changed the handlers on purpose.
            self._restore()
        if error is None:
            self.check()

    def finish(self) -> None:
        """Mark the work as done: a first signal, now or later in the block, has no effect."""
        self._finished = True

    def check(self) -> None:
        """Raise the signal that was held, if any."""
        if self._held is not None and not self._finished:
            held, self._held = self._held, None
            self._restore()
            signal.raise_signal(held)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._held = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
