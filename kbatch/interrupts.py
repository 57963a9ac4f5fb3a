"""Ctrl-C and SIGTERM: the only module that handles them, for commands and for calls of Spark.

Python runs the handler of a signal in the main thread between two instructions, so not during a call of a kernel, of
Java or of the file system. Therefore another thread waits for the signal at the wakeup descriptor. It gives the main
thread time to clean up, and then removes unfinished output itself and ends the process.
"""

from __future__ import annotations

# The handlers must be set before imports that take time, of which even `signal` has some.
import _signal  # type: ignore[import-not-found]
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType, ModuleType, TracebackType
    from typing import Any, NoReturn, Self

__all__ = ["INTERRUPTED", "CommandInterrupts", "HeldInterrupts"]

INTERRUPTED = 130
# Seconds between a signal and the forced end. A command must end within one second in all.
_CLEANUP_SECONDS = 0.6
_SIGNALS = (_signal.SIGINT, _signal.SIGTERM)


class _Interrupts:
    """A ``with`` block that handles SIGINT and SIGTERM; nothing outside of the main thread, where no handler runs."""

    _before: Mapping[int, Any]

    def __enter__(self) -> Self:
        try:
            self._before = {number: _signal.signal(number, self._on_signal) for number in _SIGNALS}
        except ValueError:
            self._before = {}
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        raise NotImplementedError

    def _restore(self) -> None:
        for number, handler in self._before.items():
            _signal.signal(number, handler)

    def _ignore(self) -> None:
        for number in self._before:
            _signal.signal(number, _signal.SIG_IGN)


class CommandInterrupts(_Interrupts):
    """The first signal during a command raises `KeyboardInterrupt`, so that the command cleans up; others are ignored.

    Parameters
    ----------
    message : str
        Printed if the process ends here.
    whole_process : bool
        Whether to end the process: at once if nothing has to be cleaned up, because C code prints or replaces an
        exception during an import, and else if the command takes too long. The block does not restore the handlers, so
        that a signal after the command does not change its exit status.

    Examples
    --------
    >>> from kbatch.interrupts import CommandInterrupts
    >>> with CommandInterrupts("interrupted", whole_process=False):
    ...     pass
    """

    def __init__(self, message: str, *, whole_process: bool) -> None:
        self._message = f"{message}\n".encode()
        self._whole_process = whole_process
        self._closed = False
        # The module `kbatch.unfinished`, as soon as it is imported.
        self._unfinished: ModuleType | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        if self._whole_process:
            import threading

            from kbatch import unfinished

            self._unfinished = unfinished
            reader, writer = os.pipe()
            os.set_blocking(writer, False)
            _signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            watch = threading.Thread(
                target=self._watch, args=(reader, unfinished), name="kbatch-interrupts", daemon=True
            )
            watch.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closed = True
        if self._whole_process:
            self._ignore()
        else:
            self._restore()

    def end(self) -> NoReturn:
        """End the process, after its unfinished output is removed."""
        if self._unfinished is None:
            self._exit()
        with self._unfinished.unbroken:
            self._unfinished.remove_unfinished()
            self._exit()

    def _exit(self) -> NoReturn:
        """End without the interpreter, which would wait for threads, and for a reader of standard output."""
        try:
            os.write(2, self._message)
        finally:
            os._exit(INTERRUPTED)

    def _watch(self, reader: int, unfinished: ModuleType) -> None:
        import time

        while os.read(reader, 1)[0] not in _SIGNALS:
            pass
        time.sleep(_CLEANUP_SECONDS)
        with unfinished.unbroken:
            if not (self._closed or unfinished.is_complete()):
                self.end()

    def _on_signal(self, number: int, frame: FrameType | None) -> NoReturn:
        # A second signal must not interrupt the clean-up of the first.
        self._ignore()
        if self._whole_process and (self._unfinished is None or not self._unfinished.has_unfinished()):
            self.end()
        raise KeyboardInterrupt


class HeldInterrupts(_Interrupts):
    """Holds a first SIGINT or SIGTERM until `check` or the end of the ``with`` block; a second one is raised at once.

    A signal during a callback of py4j is lost, because Python only prints exceptions there, and leaves a broken
    connection to the JVM. The block restores the handlers, also if code inside has set others, as a SparkContext does
    for SIGINT.

    Examples
    --------
    >>> from kbatch.interrupts import HeldInterrupts
    >>> with HeldInterrupts() as held:
    ...     held.check()
    """

    def __init__(self) -> None:
        self._held: int | None = None
        self._finished = False

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
            _signal.raise_signal(held)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._held = number
        self._restore()
