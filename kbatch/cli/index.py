"""``kbatch index PATH...``: the key index of logs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbatch.cli.command_parser import add_command
from kbatch.cli.flags import JSON, STORAGE, add_flags, given_options, given_storage
from kbatch.cli.selection_flags import add_selection, given_selection
from kbatch.cli.terminal import (
    LISTED_DAMAGE,
    ProgressLine,
    counted,
    format_size,
    log_dict,
    print_errors,
    print_lines,
    print_summary,
)
from kbatch.options import ValueKind, documented, option, options_of, whole_number

if TYPE_CHECKING:
    from kbatch.log.write.indexing import IndexedLog

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Write an index of the keys of each closed segment, so that dump, export and reads in Python with a key read only the
blocks of batches that may have it.

PATH is a topic-partition directory, a broker's log directory, or a URL of one. Segments that have an
index are skipped, and index files of segments that no longer exist are removed, so the command can run every night. The
last segment of a log may still grow and gets no index. Nothing is written to the log directory.
"""


_EPILOG = """\
examples:
  kbatch index /var/lib/kafka/data
  kbatch index --topic orders /var/lib/kafka/data
  kbatch index --index /srv/kbatch /backup/kafka                 an index that others use, with the same --index

size:
  About 3 bytes for each key of a block of one MiB: 1 to 2 percent of a log without repeated keys and records of 200
  bytes. `kbatch help dump` and docs/how-to/records-of-a-key.md describe how reads use the index.

"""


_STATUSES = {
    1: "error, such as a PATH that cannot be read",
    3: "done, but without the segments that standard error lists: they are damaged, or have too many keys",
}


@documented
@dataclass(frozen=True)
class IndexFlags:
    """The flags of ``kbatch index``.

    Attributes
    ----------
    {options}
    """

    index: str | None = option(
        ValueKind(str, "/srv/kbatch", metavar="DIR"), None, flag="--index",
        help="directory of the index (default: kbatch/key-index in the user's cache directory)",
    )  # fmt: skip
    threads: int = option(
        whole_number(0), 0, flag="--threads", help="segments to read at the same time; 0 is the number of processors"
    )


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `kbatch`."""
    parser = add_command(
        commands,
        "index",
        run,
        help="write an index of keys, for reads with a key",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        statuses=_STATUSES,
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="topic-partition or log directory, or a URL of one")
    add_flags(parser, [*options_of(IndexFlags), *STORAGE, *JSON])
    add_selection(parser, "topics", "partitions", reason="all keys of a log are indexed")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from kbatch.cli.inputs import open_logs_once
    from kbatch.log.write.indexing import index_logs

    flags = given_options(IndexFlags, arguments)
    selection, given = given_selection(arguments), given_storage(arguments)
    with ProgressLine("listing ...") as line:
        logs = open_logs_once(arguments.paths, selection, given)
        done = index_logs(logs, flags.index, threads=flags.threads, progress=line.show_bytes)
    status = 3 if any(each.refused for each in done) else 0
    if arguments.json:
        print_summary("index", status, [_log_dict(each) for each in done], damaged=status == 3)
        return status
    refused = [f"kbatch index: no index: {reason}" for each in done for _, reason in each.refused]
    print_errors(*refused[:LISTED_DAMAGE])
    if len(refused) > LISTED_DAMAGE:
        print_errors(f"kbatch index: {len(refused) - LISTED_DAMAGE:,} more")
    print_lines(*_index_lines(done))
    return status


def _log_dict(each: IndexedLog) -> dict[str, Any]:
    names = ("segments", "written", "unchanged", "removed", "bytes", "segment_bytes", "keys")
    refused = [{"path": path, "reason": reason} for path, reason in each.refused]
    counts = {name: getattr(each, name) for name in names}
    return log_dict(each.log, each.log.path, index=each.path, **counts, refused=refused)


def _index_lines(done: list[IndexedLog]) -> list[str]:
    written, unchanged, removed = (sum(getattr(each, n) for each in done) for n in ("written", "unchanged", "removed"))
    segments = sum(each.segments for each in done)
    size, indexed = sum(each.bytes for each in done), sum(each.segment_bytes for each in done)
    lines = [
        f"{counted(len(done), 'log')}, {counted(segments, 'closed segment')}: {written:,} indexed, {unchanged:,} "
        f"unchanged, {removed:,} removed"
    ]
    if indexed:
        share = f"{size / indexed:.1%} of the {format_size(indexed)} of these segments"
        lines.append(f"the index has {format_size(size)}, {share}")
    return lines
