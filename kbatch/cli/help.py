"""``kbatch help [COMMAND]``: the help of the command line or of a command."""

from __future__ import annotations

import argparse

from kbatch.cli.parsers import make_parser

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    parser, commands = make_parser()
    (parser if arguments.topic is None else commands[arguments.topic]).print_help()
    return 0
