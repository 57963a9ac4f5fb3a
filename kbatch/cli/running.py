"""The command line as a whole: its parser, and the run of a command."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from kbatch import __version__
from kbatch.cli import (
    backup,
    compact,
    completion,
    consume,
    convert,
    diff,
    dump,
    export,
    follow,
    help,
    index,
    recompress,
    report,
    stats,
    topic_listing,
    verify,
)
from kbatch.cli.command_parser import CommandParser
from kbatch.cli.flags import UsageError
from kbatch.cli.styles import styled
from kbatch.cli.terminal import print_errors, print_lines
from kbatch.escaping import one_line
from kbatch.options import EVERY_TOPIC

__all__ = ["make_parser", "run_command"]

_EPILOG = """\
exit status:
  0    done
  1    error
  2    wrong usage
  3-5  done, but with damage, with records withheld, or with values that cannot be parsed; `kbatch help COMMAND`
       describes the statuses of a command
  130  interrupted
"""

# How an error about damage ends in commands that have the flag.
_SKIPPING = "; --on-error skip continues after it and lists what is lost (docs/how-to/salvage.md)"
# And in commands that do not have it.
_SALVAGE = (
    "; `kbatch verify` lists all damage, and `kbatch convert --on-error skip` writes a copy of the intact batches "
    "(docs/how-to/salvage.md)"
)


def make_parser() -> tuple[CommandParser, dict[str, CommandParser]]:
    """Return the parser of the command line, and the parsers of its commands by name."""
    parser = CommandParser(
        prog="kbatch",
        description="Read Kafka's log files and live topics: list, check, compare, rewrite, or convert to Parquet.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"kbatch {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parser.set_defaults(parsers=(parser, commands.choices))
    for command in (
        export,
        follow,
        consume,
        topic_listing,
        dump,
        verify,
        stats,
        report,
        diff,
        backup,
        convert,
        recompress,
        compact,
        index,
        completion,
    ):
        command.add_parser(commands)
    help.add_parser(commands)
    return parser, commands.choices


def run_command(arguments: Sequence[str] | None) -> int:
    """Run a command; return the exit status, or exit with the status of help, the version or wrong usage."""
    if sys.stdout is None:
        # The caller has closed it: discard the output.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    # py4j logs a traceback when a call to the JVM is interrupted; the message of `main` is enough for the user.
    logging.getLogger().addHandler(logging.NullHandler())
    parser, commands = make_parser()
    try:
        if not (sys.argv[1:] if arguments is None else arguments):
            print_lines(*_overview(commands))
            sys.stdout.flush()
            return 0
        options = parser.parse_args(arguments)
        return _run(options, commands[options.command])
    except BrokenPipeError:
        # The reader of the output has closed it, as `head` does. Python must not flush to it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        # The output of --help or --version; `_run` handles the errors of commands.
        print_errors(f"kbatch: {one_line(_message(error))}", style="error")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


def _overview(commands: Mapping[str, CommandParser]) -> list[str]:
    """Return what `kbatch` without arguments prints."""
    width = max(map(len, commands))
    return [
        styled("usage: kbatch COMMAND [OPTION ...]", "heading", "usage:"),
        "",
        "Read Kafka's log files and live topics: list, check, compare, rewrite, or convert to Parquet.",
        "",
        styled("commands:", "heading"),
        *(styled(f"  {name:<{width}}  {command.summary}", "name", name) for name, command in commands.items()),
        "",
        styled("examples:", "heading"),
        "  kbatch stats /var/lib/kafka/data",
        "  kbatch export /var/lib/kafka/data /lake/raw",
        "  kbatch consume orders --bootstrap-server localhost:9092",
        "",
        "`kbatch help COMMAND` describes a command with its options and examples.",
    ]


def _message(error: Exception) -> str:
    """Return the text of an error; an error of the system names its file first, like all other messages."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def _advice(options: argparse.Namespace) -> str:
    """Return how an error about damage ends."""
    if not hasattr(options, "on_error"):
        return _SALVAGE
    return _SKIPPING if _may_raise(options.on_error) else ""


def _may_raise(given: Any) -> bool:
    """Whether the flag ``--on-error`` lets damage be an error: its value, or for each time it is given, pairs."""
    if not isinstance(given, list):
        return given in (None, "raise")
    policies = {EVERY_TOPIC: "raise", **dict(chain(*given))}
    return "raise" in policies.values()


def _run_imported(options: argparse.Namespace) -> int:
    """Run a command, whose modules are imported now."""
    try:
        status: int = options.run(options)
    except ModuleNotFoundError as error:
        from kbatch.extras import without_arrow

        missing = without_arrow(error, "the command")
        if missing is None:
            raise
        raise missing from error
    return status


def _run(options: argparse.Namespace, parser: CommandParser) -> int:
    try:
        status: int = _run_imported(options)
        sys.stdout.flush()
    except UsageError as error:
        parser.error(str(error))
    except BrokenPipeError:
        raise
    except Exception as error:
        from kbatch.errors import KbatchError, is_damage

        if not isinstance(error, KbatchError | OSError | ValueError):
            raise
        advice = _advice(options) if is_damage(error) else ""
        print_errors(f"kbatch {options.command}: {one_line(_message(error))}{advice}", style="error")
        failed: int = options.error_status
        return failed
    return status
