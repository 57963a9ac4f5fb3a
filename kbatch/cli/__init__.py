"""The command line: ``kbatch COMMAND``."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import kbatch
from kbatch.cli import compact, convert, diff, dump, export, recompress, stats, verify
from kbatch.cli.interrupts import InterruptWatch
from kbatch.cli.terminal import print_errors
from kbatch.cli.usage import UsageError
from kbatch.errors import KbatchError
from kbatch.escaping import one_line, printable

__all__ = ["main"]

EXIT_STATUS = """\
exit status:
  0    done
  1    error (export, convert, recompress and compact have written nothing); diff: the records differ
  2    wrong usage; diff: an error or damage
  3    done, but with damage: the output lists the losses (for an export also OUT/_losses), or the batches accepted
       with a wrong checksum
  4    done without damage, but read_committed withheld records of open or undecided transactions: dump reports them on
       standard error, OUT/_transactions of an export lists them
  130  interrupted (export, convert, recompress and compact have written nothing)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default the arguments of the process.

    Returns
    -------
    int
        The exit status; ``kbatch --help`` lists them.

    Examples
    --------
    >>> from kbatch.cli import main
    >>> main(["export", "no-such-directory", "out"])  # prints an error on standard error
    1
    """
    parser = _Parser(
        prog="kbatch",
        description="List, check, summarize and rewrite Kafka's log files, and convert them to Parquet.",
        epilog=EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kbatch {kbatch.__version__}")
    parser.set_defaults(error_status=1)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (export, dump, verify, stats, diff, convert, recompress, compact):
        command.add_parser(commands, epilog=EXIT_STATUS)
    options = parser.parse_args(arguments)
    if sys.stdout is None:
        # The caller has closed it: discard the output.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    # py4j logs a traceback when a call to the JVM is interrupted; the message below is enough for the user.
    logging.getLogger().addHandler(logging.NullHandler())
    # A batch system ends jobs with SIGTERM, which must clean up as Ctrl-C does.
    watch = InterruptWatch(options.command, whole_process=arguments is None)
    try:
        watch.start()
        status: int = options.run(options)
        sys.stdout.flush()
    except UsageError as error:
        commands.choices[options.command].error(str(error))
    except KeyboardInterrupt:
        return watch.end()
    except BrokenPipeError:
        # The reader of the output has closed it, as `head` does. Python must not flush to it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except (KbatchError, OSError, ValueError) as error:
        print_errors(f"kbatch {options.command}: {one_line(error)}")
        failed: int = options.error_status
        return failed
    finally:
        watch.close()
    return status


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are escaped: the shell may have put the names of files in place of a pattern."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        # No option begins with a digit: -10: and -1h are values, as argparse treats -10.
        self._negative_number_matcher = re.compile(r"-\d")

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))
