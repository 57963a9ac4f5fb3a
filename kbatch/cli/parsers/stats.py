"""``kbatch stats PATH...``: statistics of topic-partitions."""

from __future__ import annotations

from typing import Any

from kbatch.cli.arguments import add_command
from kbatch.cli.usage import add_json, add_storage_option

__all__ = ["add_parser"]

_DESCRIPTION = """\
Summarize topic-partitions: segments, batches, records, sizes, offsets, times, codecs with their ratios, transactions.

PATH is a segment (.log, .checkpoint), a topic-partition directory, or a broker's log directory.
"""


_EPILOG = """\
examples:
  kbatch stats /var/lib/kafka/data                 one line per topic-partition
  kbatch stats --details data/orders-0             all statistics of one
  kbatch stats --headers-only /var/lib/kafka/data  fast: decodes nothing, computes no checksums
  kbatch stats --json data | jq '.logs[] | [.name, .records]'

A ratio divides the decompressed size of payloads by their stored size. Percentiles are exact below 4096, and within one
percent above. Times are the smallest and largest timestamp of a record, or with --headers-only of a batch header.

"""


_STATUSES = {
    1: "error, such as a PATH that cannot be read",
    3: "done, but with damage: the lost bytes are not part of the statistics",
}


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "stats",
        help="summarize topic-partitions",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=_STATUSES,
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="segment or directory, or a URL of one")
    add_storage_option(parser)
    parser.add_argument("--headers-only", action="store_true", help="read only batch headers, decode nothing")
    parser.add_argument("--details", action="store_true", help="print all statistics of each topic-partition")
    add_json(parser)
