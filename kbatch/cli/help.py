"""``kbatch help [COMMAND]``: the help of the command line or of a command, and the manual page."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from kbatch.cli.command_parser import add_command
from kbatch.cli.flags import UsageError, add_flags
from kbatch.cli.terminal import print_lines
from kbatch.options import BOOLEAN, documented, option, options_of

__all__ = ["add_parser", "run"]

_EPILOG = """\
examples:
  kbatch help stats
  kbatch help --man | man -l -

"""


@documented
@dataclass(frozen=True)
class HelpFlags:
    """The flags of ``kbatch help``.

    Attributes
    ----------
    {options}
    """

    man: bool = option(BOOLEAN, False, flag="--man", help="print the manual page, kbatch(1), in roff")


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`, after all others."""
    names = (*commands.choices, "help")
    parser = add_command(
        commands,
        "help",
        run,
        help="print the help of a command",
        description="Print the help of kbatch or of a command, or the manual page.",
        epilog=_EPILOG,
    )
    add_flags(parser, options_of(HelpFlags))
    parser.add_argument("topic", metavar="COMMAND", nargs="?", choices=names, help=f"one of {', '.join(names)}")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    parser, commands = arguments.parsers
    if arguments.man:
        from kbatch.cli.manual import manual_lines

        if arguments.topic is not None:
            raise UsageError("--man takes no COMMAND: the manual page describes all commands")
        print_lines(*manual_lines(parser, commands), wraps=False)
        return 0
    (parser if arguments.topic is None else commands[arguments.topic]).print_help()
    return 0
