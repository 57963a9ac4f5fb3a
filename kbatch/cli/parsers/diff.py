"""``kbatch diff A B``: compare the records of two logs, or of two directories of logs."""

from __future__ import annotations

from typing import Any, get_args

from kbatch.cli.arguments import add_command
from kbatch.cli.ranges import RANGES, add_ranges
from kbatch.cli.usage import add_json, add_storage_option, size_argument
from kbatch.options import Isolation, Match, RaiseOrSkip

__all__ = ["add_parser"]

_DESCRIPTION = """\
Compare the records of two logs, or of two directories of logs, which are paired by topic and partition. Batches,
codecs, magic and segments may differ: records are equal if timestamp, key, value and headers are equal. Prints for each
topic-partition the number of records on each side and the first difference.

A and B are segments (.log), topic-partition directories, or brokers' log directories.
"""


_EPILOG = f"""\
examples:
  kbatch diff /var/lib/kafka/data /backup/kafka
  kbatch diff data/orders-0 backup/orders-0 && echo equal
  kbatch diff --match order data/orders-0 mirror/eu.orders-0
  kbatch diff --match key data/accounts-0 compacted/accounts-0
  kbatch diff --times -1h: --json data backup | jq '.logs[] | select(.equal | not)'

--match:
  offset  records with the same offset are compared
  order   the first records of both sides are compared, then the second ones, and so on: for mirrored topics, whose
          offsets differ. After a difference, the comparison resumes at the next record that both sides have, among the
          next 1,024 records of each side
  key     the last record of each key is compared: for compacted topics. A key whose last record is a tombstone (a null
          value) counts as absent. Records without a key are not compared

{RANGES}
"""


_STATUSES = {
    0: "the records are equal",
    1: "the records differ",
    2: "wrong usage, an error, or damage",
}


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "diff",
        help="compare the records of two logs or directories",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=_STATUSES,
    )
    parser.add_argument("a", metavar="A", help="segment, topic-partition directory or log directory, or a URL")
    parser.add_argument("b", metavar="B", help="another one of the same kind")
    parser.add_argument(
        "--match",
        choices=get_args(Match),
        default="offset",
        help="which records are compared with each other; see below (default: %(default)s)",
    )
    add_ranges(parser)
    parser.add_argument(
        "--isolation",
        choices=get_args(Isolation),
        default="read_uncommitted",
        help="which records are compared; read_committed excludes records of aborted and open transactions "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--on-error",
        choices=get_args(RaiseOrSkip),
        default="raise",
        help="at damage: fail, or skip and list it, with exit status 2 (default: %(default)s)",
    )
    parser.add_argument(
        "--max-bytes-shown",
        metavar="SIZE",
        type=size_argument(0),
        default=100,
        help="print at most the first SIZE bytes of a key, a value or a header's value (default: %(default)s)",
    )
    add_storage_option(parser)
    add_json(parser)
    parser.set_defaults(error_status=2)
