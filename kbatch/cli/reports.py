"""The reports of exports as text, and ``kbatch export --report OUT``, which prints all of them."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from kbatch.cli.flags import UsageError, given_storage
from kbatch.cli.terminal import counted, format_size, print_lines, print_summary

__all__ = ["Losses", "column_texts", "loss_lines", "lost_text", "print_record", "report_lines"]


class Losses(Protocol):
    """The losses in a summary or a report."""

    lost_bytes: int
    loss_count: int
    gap_offsets: int
    gap_count: int
    losses: list[dict[str, Any]]
    losses_table: str | None


def print_record(arguments: argparse.Namespace) -> int:
    """Print the reports of all exports to an output; return the exit status."""
    from kbatch.errors import LogDirectoryError
    from kbatch.sinks.outputs import open_place
    from kbatch.sinks.run_record import RunRecord

    if arguments.logdirs is not None:
        raise UsageError("--report takes the output of exports, and no LOGDIR: kbatch export --report OUT")
    place = open_place(arguments.report, given_storage(arguments))
    record = RunRecord(place)
    if not record.is_of_exports:
        raise LogDirectoryError(f"{place.url}: not the output of an export", source=place.url)
    found = record.read(record.names())
    unseen, unfinished = set(record.names(unseen=True)), record.unfinished_runs
    if arguments.json:
        reports = [
            {"report": name, "seen": name not in unseen, "finished": each.run not in unfinished, **each.to_dict()}
            for name, each in found.items()
        ]
        damaged = any(each.exit_status == 3 for each in found.values())
        print_summary("export", 0, [], damaged=damaged, out=place.url, reports=reports)
        return 0
    if not found:
        print_lines(f"{place.url}: no export has lost, withheld or found anything missing or changed")
    for name, each in found.items():
        notes = [
            *(["nobody has seen this report"] if name in unseen else []),
            *(["it has not ended, or was killed: the next export decides"] if each.run in unfinished else []),
        ]
        print_lines(*report_lines(each, place.url, notes))
    return 0


def report_lines(report: Any, out: str, notes: Sequence[str] = ()) -> list[str]:
    """Return a report as lines of text: the run, and what it has lost, found missing or changed, or withheld."""
    ended = report.ended.partition(".")[0].replace("T", " ")
    parts = [f"{ended} run {report.run}: {report.action}, {counted(report.records, 'record')}", *notes]
    lines = ["; ".join(parts)]
    if report.loss_count:
        lines.append(f"  lost       {lost_text(report, out)}")
        lines += [f"  {line}" for line in loss_lines(report, out)]
    lines += _titled_lines("missing", [each["reason"] for each in report.missing_offsets], report.missing_count)
    changes = [f"{each['reason']}; continued at offset {each['resumed_at']}" for each in report.changes]
    lines += _titled_lines("changed", changes, report.change_count)
    lines += _titled_lines("columns", column_texts(report.schema_changes), report.schema_change_count)
    if report.bad_crc_batches:
        lines.append(f"  checksums  {counted(report.bad_crc_batches, 'batch')} accepted despite a wrong checksum")
    lines += _titled_lines("withheld", [_withheld_text(each) for each in report.withheld], report.withheld_count)
    bad = report.bad_keys + report.bad_values + report.incomplete_keys + report.incomplete_values
    if report.too_many_bad:
        lines.append(f"  unparsed   {counted(bad, 'value')} unparsed or incomplete, more than --max-bad allows")
    return lines


def _titled_lines(title: str, texts: list[str], count: int, limit: int = 20) -> list[str]:
    """Return the first texts after a title, and the number of further ones."""
    lines = [f"  {title:<10} {text}" for text in texts[:limit]]
    more = count - len(lines)
    return [*lines, f"  {title:<10} and {more:,} more"] if more > 0 else lines


def column_texts(changes: Sequence[dict[str, Any]]) -> list[str]:
    """Return the columns and fields that data got with a run."""
    return [
        f"{each['column']} {each['change']}: "
        + (f"from {each['before']} to {each['type']}" if each.get("before") else each["type"])
        for each in changes
    ]


def _withheld_text(part: dict[str, Any]) -> str:
    """Return what read_committed has withheld of a topic-partition."""
    size = f"{format_size(part['undecided_bytes'])} in {counted(part['undecided_batches'], 'batch')}"
    transactions = []
    if part["open_count"]:
        transactions.append(counted(part["open_count"], "open transaction"))
    if part["undecided_count"]:
        transactions.append(f"{counted(part['undecided_count'], 'transaction')} with a damaged marker")
    return f"{part['topic']}-{part['partition']}: {', '.join([*transactions, size])}"


def loss_lines(summary: Losses, out: str, limit: int = 20) -> list[str]:
    """Format losses by file and reason, since an unreadable file has one loss per batch."""
    count: Counter[tuple[str, str]] = Counter()
    size: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], int] = {}
    for loss in summary.losses:
        place = (loss["file"], loss["reason"])
        count[place] += 1
        size[place] += loss["length"]
        first.setdefault(place, loss["position"])
    lines = []
    for (file, reason), n in list(count.items())[:limit]:
        places = f"byte {first[file, reason]}" if n == 1 else f"{n} places from byte {first[file, reason]} on"
        lost = f"{format_size(size[file, reason])}: " if size[file, reason] else ""
        lines.append(f"  {file}, {places}: {lost}{reason}")
    listed = sum(list(count.values())[:limit])
    if listed < summary.loss_count:
        lines.append(f"  and {summary.loss_count - listed:,} more places; {out}/{summary.losses_table} lists all")
    return lines


def lost_text(summary: Losses, out: str) -> str:
    """Return the amount of lost bytes and of missing offsets, and where all losses are listed."""
    if not summary.loss_count:
        return "nothing"
    damaged = summary.loss_count - summary.gap_count
    parts = []
    if damaged:
        parts.append(f"{format_size(summary.lost_bytes)} in {counted(damaged, 'place')}")
    if summary.gap_count:
        gaps = f"{counted(summary.gap_count, 'gap')} of unknown cause between segments"
        parts.append(f"{counted(summary.gap_offsets, 'offset')} in {gaps}")
    return f"{', and '.join(parts)}: {out}/{summary.losses_table}"
