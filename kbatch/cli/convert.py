"""``kbatch convert PATH OUT``: convert logs to another magic."""

from __future__ import annotations

import argparse
from typing import Any

from kbatch.cli.arguments import add_command
from kbatch.cli.rewriting import PATHS, STATUSES, add_arguments, run_rewriter
from kbatch.cli.usage import codec_argument, usage

__all__ = ["add_parser", "run"]

_DESCRIPTION = f"""\
Convert a log to another version of the record format (magic).

{PATHS}
Magic 0 and 1 have no headers, producers, transactions or delete horizons, and magic 0 has no timestamps. If the log has
any of these, the command fails, unless --lossy drop is given: then it drops and lists them. Records of aborted
transactions are converted like all others.
"""


_EPILOG = """\
examples:
  kbatch convert old/orders-0 new/orders-0
  kbatch convert old/orders-0/00000000000000000000.log orders.log --magic 2
  kbatch convert /var/lib/kafka/data converted --magic 2 --codec lz4
  kbatch convert data/orders-0 legacy/orders-0 --magic 1 --lossy drop --codec gzip

"""


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "convert",
        run,
        help="convert logs to another magic",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=STATUSES,
    )
    parser.add_argument("--magic", type=int, choices=[0, 1, 2], default=2, help="magic to write (default: %(default)s)")
    parser.add_argument(
        "--codec",
        type=codec_argument,
        metavar="CODEC[:LEVEL]",
        help="codec of converted batches: none, gzip, snappy, lz4 or zstd (default: keep the codec of each batch)",
    )
    parser.add_argument(
        "--lossy",
        choices=["raise", "drop"],
        default="raise",
        help="at a field that the magic does not have: fail, or drop it (default: %(default)s)",
    )
    add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from kbatch.rewrite.conversion import Conversion

    with usage():
        rewriter = Conversion(
            arguments.magic,
            codec=arguments.codec,
            lossy=arguments.lossy,
            batch_size=arguments.batch_size,
            on_error=arguments.on_error,
        )
    return run_rewriter(arguments, rewriter)
