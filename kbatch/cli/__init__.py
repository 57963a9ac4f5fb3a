"""The command line: ``kbatch COMMAND``."""

from __future__ import annotations

import sys

from kbatch.interrupts import INTERRUPTED, CommandInterrupts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

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
    command = next((word for word in words if word.isalpha()), "")
    message = f"{f'kbatch {command}'.rstrip()}: interrupted"
    # A batch system ends jobs with SIGTERM, which must clean up as Ctrl-C does.
    interrupts = CommandInterrupts(message, whole_process=arguments is None)
    try:
        with interrupts:
            # Imports may take longer than the command. Signals during an import are handled too.
            from kbatch.cli.running import run_command

            return run_command(arguments)
    except KeyboardInterrupt:
        if arguments is None:
            interrupts.end()
        from kbatch.cli.terminal import print_errors

        print_errors(message)
        return INTERRUPTED
