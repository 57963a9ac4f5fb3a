"""The common part of ``kbatch convert`` and ``kbatch recompress``."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, get_args

from kbatch.cli.flags import JSON, STORAGE, add_flags, given_storage
from kbatch.cli.open_transactions import open_transaction_lines
from kbatch.cli.selection_flags import add_selection, given_selection
from kbatch.cli.terminal import (
    ProgressLine,
    counted,
    damage_lines,
    format_records,
    format_size,
    log_dict,
    loss_dicts,
    print_lines,
    print_summary,
)
from kbatch.options import INT32_MAX, RaiseOrSkip, choice, documented, option, options_of, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbatch.log.logs import Log
    from kbatch.rewrite.rewriter import Rewriter, RewriteReport
    from kbatch.transactions import OpenTransaction

__all__ = ["PATHS", "STATUSES", "RewriteFlags", "add_rewriting", "run_rewriter"]

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


@documented
@dataclass(frozen=True)
class RewriteFlags:
    """The flags of both commands.

    Attributes
    ----------
    {options}
    """

    batch_size: int = option(
        size(0, INT32_MAX), 16384, flag="--batch-size",
        help="combine uncompressed messages of magic 0 and 1 to batches of at most this size",
    )  # fmt: skip
    on_error: RaiseOrSkip = option(
        choice(*get_args(RaiseOrSkip)), "raise", flag="--on-error",
        help="at damage: fail and write nothing, or skip and list it",
    )  # fmt: skip
    segment_bytes: int = option(
        size(1, INT32_MAX), INT32_MAX, flag="--segment-bytes",
        help="split segments that become larger than this; the default is the maximum",
    )  # fmt: skip
    index_interval_bytes: int = option(
        size(0, INT32_MAX), 4096, flag="--index-interval-bytes",
        help="bytes of the log per index entry, as index.interval.bytes of a broker",
    )  # fmt: skip


def add_rewriting(parser: argparse.ArgumentParser, own: type[Any]) -> None:
    """Add the paths and the flags of a command: its `own`, and those that both commands have."""
    add_flags(parser, options_of(own))
    parser.add_argument("path", metavar="PATH", help="segment, topic-partition directory or log directory, or a URL")
    parser.add_argument("out", metavar="OUT", help="the copy to write")
    add_flags(parser, [*options_of(RewriteFlags), *STORAGE, *JSON])
    add_selection(parser, "topics", "partitions", reason="whole logs are rewritten")


def run_rewriter(arguments: argparse.Namespace, flags: RewriteFlags, rewriter: Rewriter) -> int:
    """Rewrite the logs that the arguments name, print the result, and return the exit status."""
    from kbatch.cli.inputs import open_path
    from kbatch.log.write.rewriting import rewrite_log, rewrite_logs

    given, selection = given_storage(arguments), given_selection(arguments)
    options: dict[str, Any] = {
        "segment_bytes": flags.segment_bytes,
        "index_interval_bytes": flags.index_interval_bytes,
    }
    done: list[dict[str, Any]] = []
    still_open: list[tuple[str, Sequence[OpenTransaction], int]] = []

    def on_log(log: Log, report: RewriteReport) -> None:
        name = log.path if log.topic is None else f"{log.topic}-{log.partition}"
        still_open.append((name, report.open_transactions, len(report.open_transactions)))
        done.append(log_dict(log, log.path, **_rewrite_dict(report)))

    with ProgressLine("listing ...") as line:
        logs, is_directory = open_path(arguments.path, selection, given)
        total = sum(log.size for log in logs)
        options["progress"] = lambda read: line.show_bytes(read, total)
        if is_directory:
            report = rewrite_logs(
                arguments.path,
                arguments.out,
                rewriter,
                storage_options=given,
                predicate=selection.predicate,
                on_log=on_log,
                **options,
            )
        else:
            report = rewrite_log(logs[0], arguments.out, rewriter, **options)
            on_log(logs[0], report)
    status = 3 if report.damage else 0
    if arguments.json:
        print_summary(arguments.command, status, done, damaged=bool(report.damage), out=arguments.out)
    else:
        _print(arguments.out, report)
        lines = open_transaction_lines(still_open)
        print_lines(*([""] if lines else []), *lines)
    return status


def _rewrite_dict(report: RewriteReport) -> dict[str, Any]:
    """Return the counts of a log for JSON; what a conversion dropped is in ``dropped``."""
    from kbatch.rewrite.rewriter import LOST_TEXTS

    counts = {each.name: getattr(report, each.name) for each in fields(report)}
    losses = loss_dicts(counts.pop("damage"))
    counts["open_transactions"] = [each._asdict() for each in report.open_transactions]
    return {
        **{name: count for name, count in counts.items() if name not in LOST_TEXTS},
        "dropped": {name: counts[name] for name in LOST_TEXTS},
        "losses": losses,
    }


def _print(out: str, report: RewriteReport) -> None:
    from kbatch.rewrite.rewriter import LOST_TEXTS

    print_lines(*damage_lines("skipped", report.damage))
    for name, count in report.lost.items():
        print_lines("lost: " + LOST_TEXTS[name].format(count=f"{count:,}"))
    if report.tail_bytes:
        print_lines(f"not copied: {counted(report.tail_bytes, 'byte')} after the last complete batch")
    records = format_records(report.records, report.control_records, at_least=report.uncounted_batches > 0)
    print_lines(
        f"{out}: {records}; {counted(report.batches, 'batch')} ({format_size(report.bytes)}) -> "
        f"{report.batches_written:,} ({format_size(report.bytes_written)}); {report.rewritten:,} rewritten"
    )
