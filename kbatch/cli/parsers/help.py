"""``kbatch help [COMMAND]``: the help of the command line or of a command."""

from __future__ import annotations

from typing import Any

from kbatch.cli.arguments import add_command

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`, after all others."""
    names = (*commands.choices, "help")
    parser = add_command(
        commands, "help", help="print the help of a command", description="Print the help of kbatch or of a command."
    )
    parser.add_argument("topic", metavar="COMMAND", nargs="?", choices=names, help=f"one of {', '.join(names)}")
