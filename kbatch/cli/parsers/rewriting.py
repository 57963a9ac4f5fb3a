"""The common part of ``kbatch convert`` and ``kbatch recompress``."""

from __future__ import annotations

import argparse
from typing import get_args

from kbatch.cli.usage import (
    add_json,
    add_storage_option,
    size_argument,
)
from kbatch.options import INT32_MAX, RaiseOrSkip

__all__ = ["PATHS", "STATUSES", "add_arguments"]

PATHS = """\
PATH is a segment (.log), a topic-partition directory, or a broker's log directory. OUT must not exist yet. It is a .log
file for a segment, else a directory, and appears only after the command has succeeded. Offsets do not change.
Index files are rebuilt. The other auxiliary files of segments are copied, except for unreadable producer snapshots and
leader epochs, which a broker rebuilds. A run that is killed leaves a directory .NAME.*.tmp next to OUT, which the next
run to the same OUT removes.
"""

STATUSES = {
    1: "error, such as damage without --on-error skip: nothing is written",
    3: "done, but --on-error skip has skipped damage, which the output lists",
    130: "interrupted: nothing is written",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of both commands."""
    parser.add_argument("path", metavar="PATH", help="segment, topic-partition directory or log directory, or a URL")
    parser.add_argument("out", metavar="OUT", help="the copy to write")
    parser.add_argument(
        "--batch-size",
        type=size_argument(0, INT32_MAX),
        default=16384,
        metavar="SIZE",
        help="combine uncompressed messages of magic 0 and 1 to batches of at most this size (default: %(default)s)",
    )
    parser.add_argument(
        "--on-error",
        choices=get_args(RaiseOrSkip),
        default="raise",
        help="at damage: fail and write nothing, or skip and list it (default: %(default)s)",
    )
    parser.add_argument(
        "--segment-bytes",
        type=size_argument(1, INT32_MAX),
        default=INT32_MAX,
        metavar="SIZE",
        help="split segments that become larger (default: %(default)s, the maximum)",
    )
    parser.add_argument(
        "--index-interval-bytes",
        type=size_argument(0, INT32_MAX),
        default=4096,
        metavar="SIZE",
        help="bytes of the log per index entry, as index.interval.bytes of a broker (default: %(default)s)",
    )
    add_storage_option(parser)
    add_json(parser)
