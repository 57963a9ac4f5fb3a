"""``kbatch help [COMMAND]``: the help of the command line or of a command."""

from __future__ import annotations

import argparse
from typing import Any

from kbatch.cli.command_parser import add_command

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`, after all others."""
    names = (*commands.choices, "help")
    parser = add_command(
        commands,
        "help",
        run,
        help="print the help of a command",
        description="Print the help of kbatch or of a command.",
    )
    parser.add_argument("topic", metavar="COMMAND", nargs="?", choices=names, help=f"one of {', '.join(names)}")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    parser, commands = arguments.parsers
    (parser if arguments.topic is None else commands[arguments.topic]).print_help()
    return 0
