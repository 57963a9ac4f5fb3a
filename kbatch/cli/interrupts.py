"""Ctrl-C and SIGTERM end a command within a second.

Python runs the handler of a signal in the main thread between two instructions, so not during a call of a kernel, of
Java or of the file system. Therefore another thread waits for the signal at the wakeup descriptor. It gives the main
thread time to clean up, and then removes unfinished output itself and ends the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import Any, NoReturn

from kbatch.cli.terminal import print_errors
from kbatch.unfinished import is_complete, remove_unfinished, unbroken

__all__ = ["INTERRUPTED", "InterruptWatch"]

INTERRUPTED = 130
# Seconds between a signal and the forced end. A command must end within one second in all.
_CLEANUP_SECONDS = 0.6
_HANDLED = (signal.SIGINT, signal.SIGTERM)


class InterruptWatch:
    """The handling of SIGINT and SIGTERM during a command.

    Parameters
    ----------
    command : str
        Its name for the message, or an empty text.
    whole_process : bool
        Whether to end the process. Otherwise a signal only raises `KeyboardInterrupt`, and `close` restores the
        handlers.
    """

    def __init__(self, command: str, *, whole_process: bool) -> None:
        self._command = command
        self._whole_process = whole_process
        self._closed = False
        self._running = False
        self._before: dict[signal.Signals, Any] = {}

    def start(self) -> None:
        """Begin to handle signals."""
        self._before = {number: signal.getsignal(number) for number in _HANDLED}
        for number in _HANDLED:
            signal.signal(number, self._interrupt)
        if self._whole_process:
            reader, writer = os.pipe()
            os.set_blocking(writer, False)
            signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(reader,), name="kbatch-interrupts", daemon=True).start()

    def command_starts(self) -> None:
        """Let a signal raise `KeyboardInterrupt` from now on, so that the command cleans up.

        Before, a signal ends the process at once: C code prints or replaces an exception during an import.
        """
        self._running = True

    def end(self) -> int:
        """Report that the command was interrupted, and end the process or else return the exit status."""
        with unbroken:
            if self._whole_process:
                remove_unfinished()
            with contextlib.suppress(OSError, ValueError):
                print_errors(f"{f'kbatch {self._command}'.rstrip()}: interrupted")
            if self._whole_process:
                # The interpreter would wait for threads, and for a reader of standard output that does not read.
                os._exit(INTERRUPTED)
        return INTERRUPTED

    def close(self) -> None:
        """Mark the command as ended: later signals have no effect on its exit status."""
        self._closed = True
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._whole_process else handler)

    def _watch(self, reader: int) -> None:
        while os.read(reader, 1)[0] not in _HANDLED:
            pass
        time.sleep(_CLEANUP_SECONDS)
        with unbroken:
            if not (self._closed or is_complete()):
                self.end()

    def _interrupt(self, number: int, frame: object) -> NoReturn:
        # A second signal must not interrupt the clean-up of the first.
        for each in _HANDLED:
            signal.signal(each, signal.SIG_IGN)
        if self._whole_process and not self._running:
            self.end()
        raise KeyboardInterrupt
