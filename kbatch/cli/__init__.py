"""The command line: ``kbatch COMMAND``."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default the arguments of the process.

    Returns
    -------
    int
        The exit status; ``kbatch help COMMAND`` describes the statuses of a command.

    Examples
    --------
    >>> from kbatch.cli import main
    >>> main(["export", "no-such-directory", "out"])  # prints an error on standard error
    1
    """
    words = sys.argv[1:] if arguments is None else arguments
    command = next((word for word in words if not word.startswith("-")), "")
    if arguments is None:
        _end_at_interrupts(command)
    from kbatch.cli.interrupts import InterruptWatch

    # A batch system ends jobs with SIGTERM, which must clean up as Ctrl-C does.
    watch = InterruptWatch(command, whole_process=arguments is None)
    try:
        watch.start()
        # Imports may take longer than the command. Signals during an import are handled too.
        from kbatch.cli.running import run_command

        return run_command(arguments, watch)
    except KeyboardInterrupt:
        return watch.end()
    finally:
        watch.close()


def _end_at_interrupts(command: str) -> None:
    """Let Ctrl-C and SIGTERM end the process with a message until `InterruptWatch` handles them."""
    # The module signal itself imports others, which takes longer than all before it.
    import _signal  # type: ignore[import-not-found]

    def end(number: int, frame: object) -> NoReturn:
        name = f"kbatch {command}" if command.isalpha() else "kbatch"
        os.write(2, f"{name}: interrupted\n".encode("ascii", "backslashreplace"))
        os._exit(130)

    for number in (_signal.SIGINT, _signal.SIGTERM):
        _signal.signal(number, end)
