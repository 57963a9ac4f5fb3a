"""``kbatch recompress PATH OUT``: compress logs with another codec."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from kbatch.cli.command_parser import add_command
from kbatch.cli.flags import given_options, usage
from kbatch.cli.rewriting import PATHS, STATUSES, RewriteFlags, add_rewriting, run_rewriter
from kbatch.options import CODEC, documented, option

__all__ = ["add_parser", "run"]

_DESCRIPTION = f"""\
Compress the batches of a log with another codec. Batch headers keep their fields, except size, codec and checksum.
Batches that already have the codec are copied, unless a level is given.

{PATHS}"""


_EPILOG = """\
examples:
  kbatch recompress data/orders-0 compressed/orders-0 --codec zstd
  kbatch recompress data/orders-0/00000000000000000000.log orders.log --codec none
  kbatch recompress /var/lib/kafka/data archive --codec zstd:19

"""


@documented
@dataclass(frozen=True)
class RecompressFlags:
    """The flags of ``kbatch recompress`` alone.

    Attributes
    ----------
    {options}
    """

    codec: str = option(CODEC, flag="--codec", help="none, gzip, snappy, lz4 or zstd, with a level such as zstd:12")


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "recompress",
        run,
        help="compress logs with another codec",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=STATUSES,
    )
    add_rewriting(parser, RecompressFlags)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from kbatch.rewrite.recompression import Recompression

    own, flags = given_options(RecompressFlags, arguments), given_options(RewriteFlags, arguments)
    with usage():
        rewriter = Recompression(own.codec, batch_size=flags.batch_size, on_error=flags.on_error)
    return run_rewriter(arguments, flags, rewriter)
