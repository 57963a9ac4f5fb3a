"""``kbatch recompress PATH OUT``: compress logs with another codec."""

from __future__ import annotations

import argparse
from typing import Any

from kbatch.cli.rewrite import PATHS, add_arguments, run_rewriter
from kbatch.cli.usage import argument, usage
from kbatch.log.write.rows import parse_codec_level
from kbatch.rewrite.recompression import Recompression

__all__ = ["add_parser"]

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


def add_parser(commands: Any, *, epilog: str) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = commands.add_parser(
        "recompress",
        help="compress logs with another codec",
        description=_DESCRIPTION,
        epilog=_EPILOG + epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--codec",
        type=argument(parse_codec_level),
        required=True,
        metavar="CODEC[:LEVEL]",
        help="none, gzip, snappy, lz4 or zstd, with a level such as zstd:12",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    codec, level = arguments.codec
    with usage():
        rewriter = Recompression(codec, level=level, batch_size=arguments.batch_size, on_error=arguments.on_error)
    return run_rewriter(arguments, rewriter)
