"""The common part of ``kbatch convert`` and ``kbatch recompress``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from kbatch.cli.inputs import open_path
from kbatch.cli.summaries import damage_lines, log_dict, loss_dicts, print_summary
from kbatch.cli.terminal import ProgressLine, counted, format_size, print_lines
from kbatch.cli.usage import storage_options
from kbatch.log.logs import Log
from kbatch.log.write.rewriting import rewrite_log, rewrite_logs
from kbatch.rewrite.rewriter import LOST_TEXTS, Rewriter, RewriteReport

__all__ = ["run_rewriter"]


def run_rewriter(arguments: argparse.Namespace, rewriter: Rewriter) -> int:
    """Rewrite the logs that the arguments name, print the result, and return the exit status."""
    given = storage_options(arguments)
    options: dict[str, Any] = {
        "segment_bytes": arguments.segment_bytes,
        "index_interval_bytes": arguments.index_interval_bytes,
    }
    logs, is_directory = open_path(arguments.path, given)
    done: list[dict[str, Any]] = []

    def on_log(log: Log, report: RewriteReport) -> None:
        done.append(log_dict(log, log.path, **_rewrite_dict(report)))

    with _progress(sum(log.size for log in logs)) as options["progress"]:
        if is_directory:
            report = rewrite_logs(
                arguments.path, arguments.out, rewriter, storage_options=given, on_log=on_log, **options
            )
        else:
            report = rewrite_log(logs[0], arguments.out, rewriter, **options)
            on_log(logs[0], report)
    status = 3 if report.damage else 0
    if arguments.json:
        print_summary(arguments.command, status, done, damaged=bool(report.damage), out=arguments.out)
    else:
        _print(arguments.out, report)
    return status


def _rewrite_dict(report: RewriteReport) -> dict[str, Any]:
    """Return the counts of a log for JSON; what a conversion dropped is in ``dropped``."""
    counts = {each.name: getattr(report, each.name) for each in fields(report)}
    losses = loss_dicts(counts.pop("damage"))
    return {
        **{name: count for name, count in counts.items() if name not in LOST_TEXTS},
        "dropped": {name: counts[name] for name in LOST_TEXTS},
        "losses": losses,
    }


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    with ProgressLine() as line:
        yield lambda read: line.show_bytes(read, total)


def _print(out: str, report: RewriteReport) -> None:
    print_lines(*damage_lines("skipped", report.damage))
    for name, count in report.lost.items():
        print_lines("lost: " + LOST_TEXTS[name].format(count=f"{count:,}"))
    if report.tail_bytes:
        print_lines(f"not copied: {counted(report.tail_bytes, 'byte')} after the last complete batch")
    print_lines(
        f"{out}: {counted(report.batches, 'batch')} ({format_size(report.bytes)}) -> {report.batches_written:,} "
        f"({format_size(report.bytes_written)}); {report.rewritten:,} rewritten"
    )
