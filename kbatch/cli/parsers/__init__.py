"""The parsers of the commands, one file per command.

Nothing here imports NumPy or the modules that do the work: help, completion and usage errors must not wait for them.
"""

from __future__ import annotations

from kbatch import __version__
from kbatch.cli.arguments import CommandParser
from kbatch.cli.parsers import compact, completion, convert, diff, dump, export, help, recompress, stats, verify

__all__ = ["make_parser"]

_EPILOG = """\
exit status:
  0    done
  1    error
  2    wrong usage
  3-5  done, but with damage, with records withheld, or with values that cannot be parsed; `kbatch help COMMAND`
       describes the statuses of a command
  130  interrupted
"""


def make_parser() -> tuple[CommandParser, dict[str, CommandParser]]:
    """Return the parser of the command line, and the parsers of its commands by name."""
    parser = CommandParser(
        prog="kbatch",
        description="List, check, compare and rewrite Kafka's log files, and convert them to Parquet.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"kbatch {__version__}")
    parser.set_defaults(error_status=1)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (export, dump, verify, stats, diff, convert, recompress, compact, completion):
        command.add_parser(commands)
    help.add_parser(commands)
    return parser, commands.choices
