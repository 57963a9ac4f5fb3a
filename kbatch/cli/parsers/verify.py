"""``kbatch verify PATH...``: check segments and their auxiliary files."""

from __future__ import annotations

from typing import Any

from kbatch.cli.arguments import add_command
from kbatch.cli.usage import (
    add_json,
    add_storage_option,
)

__all__ = ["add_parser"]

_DESCRIPTION = """\
Check segments and their auxiliary files: checksum, structure, offsets and timestamps of every batch; index files
against the segment; .txnindex files against the transaction markers; the checksums of producer snapshots.

PATH is a segment (.log, .checkpoint), an auxiliary file of one (.index, .timeindex, .txnindex, .snapshot), a
topic-partition directory, or a broker's log directory.

Each finding is printed on a line, "file: byte N: text". A finding that need not be damage is a note: missing offsets,
which compaction and transactions cause too; zeros or an incomplete batch at the end of the last segment.
"""


_EPILOG = """\
examples:
  kbatch verify /var/lib/kafka/data
  kbatch verify data/orders-0 || echo damaged
  kbatch verify data/orders-0/00000000000000000000.timeindex
  kbatch verify --sequences data/orders-0
  kbatch verify --json data/orders-0 | jq '.logs[].findings[]'

"""


_STATUSES = {
    0: "no damage; there may be notes",
    1: "error, such as a PATH that cannot be read",
    3: "damage, which the findings list",
}


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "verify",
        help="check checksums, structure, offsets and index files",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=_STATUSES,
    )
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", help="segment, auxiliary file of one, or directory; or a URL of one"
    )
    parser.add_argument(
        "--sequences",
        action="store_true",
        help="also check the sequence numbers of idempotent producers for missing and duplicate batches",
    )
    add_storage_option(parser)
    add_json(parser)
