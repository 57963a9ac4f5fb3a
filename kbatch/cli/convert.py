"""``kbatch convert PATH OUT``: convert logs to another magic."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any, Literal

from kbatch.cli.command_parser import add_command
from kbatch.cli.flags import given_options, usage
from kbatch.cli.rewriting import PATHS, STATUSES, RewriteFlags, add_rewriting, run_rewriter
from kbatch.options import CODEC, choice, documented, option, whole_number

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


@documented
@dataclass(frozen=True)
class ConvertFlags:
    """The flags of ``kbatch convert`` alone.

    Attributes
    ----------
    {options}
    """

    magic: int = option(
        replace(whole_number(0, 2, "{0,1,2}"), choices=("0", "1", "2")), 2, flag="--magic", help="magic to write"
    )
    codec: str | None = option(
        CODEC, None, flag="--codec",
        help="codec of converted batches: none, gzip, snappy, lz4 or zstd (default: keep the codec of each batch)",
    )  # fmt: skip
    lossy: Literal["raise", "drop"] = option(
        choice("raise", "drop"), "raise", flag="--lossy",
        help="at a field that the magic does not have: fail, or drop it",
    )  # fmt: skip


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
    add_rewriting(parser, ConvertFlags)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from kbatch.rewrite.conversion import Conversion

    own, flags = given_options(ConvertFlags, arguments), given_options(RewriteFlags, arguments)
    with usage():
        rewriter = Conversion(
            own.magic, codec=own.codec, lossy=own.lossy, batch_size=flags.batch_size, on_error=flags.on_error
        )
    return run_rewriter(arguments, flags, rewriter)
