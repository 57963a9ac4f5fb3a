"""Parses a command line and runs its command."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from kbatch.cli.arguments import CommandParser
from kbatch.cli.parsers import make_parser
from kbatch.cli.terminal import print_errors
from kbatch.cli.usage import UsageError
from kbatch.escaping import one_line

__all__ = ["run_command"]


def run_command(arguments: Sequence[str] | None) -> int:
    """Run a command; return the exit status, or exit with the status of help, the version or wrong usage."""
    if sys.stdout is None:
        # The caller has closed it: discard the output.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    # py4j logs a traceback when a call to the JVM is interrupted; the message of `main` is enough for the user.
    logging.getLogger().addHandler(logging.NullHandler())
    parser, commands = make_parser()
    try:
        options = parser.parse_args(arguments)
        # Imports NumPy, which help and usage errors do not wait for.
        command = import_module(f"kbatch.cli.{options.command}")
        return _run_module(command, options, commands[options.command])
    except BrokenPipeError:
        # The reader of the output has closed it, as `head` does. Python must not flush to it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        # The output of --help or --version; `_run_module` handles the errors of commands.
        print_errors(f"kbatch: {one_line(_message(error))}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


def _message(error: Exception) -> str:
    """Return the text of an error; an error of the system names its file first, like all other messages."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def _run_module(command: ModuleType, options: argparse.Namespace, parser: CommandParser) -> int:
    try:
        status: int = command.run(options)
        sys.stdout.flush()
    except UsageError as error:
        parser.error(str(error))
    except BrokenPipeError:
        raise
    except Exception as error:
        from kbatch.errors import KbatchError

        if not isinstance(error, KbatchError | OSError | ValueError):
            raise
        print_errors(f"kbatch {options.command}: {one_line(_message(error))}")
        failed: int = options.error_status
        return failed
    return status
