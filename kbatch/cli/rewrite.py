"""What ``kbatch convert`` and ``kbatch recompress`` have in common."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kbatch.cli.inputs import add_storage_option, open_logs, storage_options
from kbatch.cli.terminal import ProgressLine, counted, format_size
from kbatch.cli.usage import whole_number
from kbatch.format import INT32_MAX
from kbatch.log.write.rewriting import rewrite_log, rewrite_logs
from kbatch.rewrite.rewriter import LOST_TEXTS, Rewriter, RewriteReport

__all__ = ["add_arguments", "run_rewriter"]

PATHS = """\
PATH is a segment (.log), a topic-partition directory, or a broker's log directory; OUT is what it becomes, and must not
exist yet: a .log file of a segment, else a directory. OUT is there when all of it is done, and else not at all. Index
files are written anew, and the other files that a broker keeps beside segments are copied, but for producer snapshots
and leader epochs that can't be read, which can be made anew. Offsets stay. A run that is killed leaves a directory
.NAME.*.tmp beside OUT, which nobody needs.
"""
_MOST_DAMAGE = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what both commands take."""
    parser.add_argument("path", metavar="PATH", help="segment, topic-partition directory or log directory, or a URL")
    parser.add_argument("out", metavar="OUT", help="what is written")
    parser.add_argument(
        "--batch-size",
        type=whole_number(0, INT32_MAX),
        default=16384,
        metavar="BYTES",
        help="put messages of magic 0 and 1 that stand alone together up to so many bytes (default: %(default)s)",
    )
    parser.add_argument(
        "--on-error",
        choices=["raise", "skip"],
        default="raise",
        help="at damage: write nothing, or leave it out and tell (default: %(default)s)",
    )
    parser.add_argument(
        "--segment-bytes",
        type=whole_number(1, INT32_MAX),
        default=INT32_MAX,
        metavar="BYTES",
        help="part segments that become larger (default: %(default)s, as much as one can have)",
    )
    parser.add_argument(
        "--index-interval-bytes",
        type=whole_number(0, INT32_MAX),
        default=4096,
        metavar="BYTES",
        help="distance of index entries, as index.interval.bytes of a broker (default: %(default)s)",
    )
    add_storage_option(parser)


def run_rewriter(arguments: argparse.Namespace, rewriter: Rewriter) -> int:
    """Rewrite what the arguments name, and print what came of it; return the exit status."""
    given = storage_options(arguments)
    options: dict[str, Any] = {
        "segment_bytes": arguments.segment_bytes,
        "index_interval_bytes": arguments.index_interval_bytes,
    }
    logs, is_directory = open_logs(arguments.path, given)
    with _progress(sum(log.size for log in logs)) as options["progress"]:
        if is_directory:
            report = rewrite_logs(arguments.path, arguments.out, rewriter, storage_options=given, **options)
        else:
            report = rewrite_log(logs[0], arguments.out, rewriter, **options)
    _print(arguments.out, report)
    return 3 if report.damage else 0


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    with ProgressLine() as line:
        yield lambda read: line.show_bytes(read, total)


def _print(out: str, report: RewriteReport) -> None:
    for loss in report.damage[:_MOST_DAMAGE]:
        print(f"left out: byte {loss.position}, {loss.length} bytes: {loss.reason}")
    if len(report.damage) > _MOST_DAMAGE:
        print(f"left out: {len(report.damage) - _MOST_DAMAGE:,} more")
    for name, count in report.lost.items():
        print("lost: " + LOST_TEXTS[name].format(count=f"{count:,}"))
    if report.tail_bytes:
        print(f"not copied: {report.tail_bytes:,} bytes after the last whole batch")
    print(
        f"{out}: {counted(report.batches, 'batch')}, {format_size(report.bytes)}, to {report.batches_written:,}, "
        f"{format_size(report.bytes_written)}; {report.rewritten:,} rewritten"
    )
