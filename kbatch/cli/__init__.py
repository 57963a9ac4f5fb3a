"""The command line: ``kbatch COMMAND``."""

from __future__ import annotations

import sys

from kbatch.interrupts import INTERRUPTED, CommandInterrupts
from kbatch.version import VERSION

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
    if arguments is None and list(words) == ["--version"]:
        # The parsers of all commands take longer to import than Python takes to start.
        return _print_version()
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


def _print_version() -> int:
    """Print the version of the program; return the exit status."""
    import os

    try:
        os.write(1, f"kbatch {VERSION}\n".encode())
    except BrokenPipeError:
        return 0
    except OSError as error:
        if sys.stdout is None:
            # The caller has closed it.
            return 0
        from kbatch.cli.terminal import print_errors

        print_errors(f"kbatch: {error.strerror}", style="error")
        return 1
    return 0
