"""The summary of an export as text, and as the document of ``--json``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kbatch.cli.broker_flags import KAFKA_URL
from kbatch.cli.open_transactions import open_transaction_lines
from kbatch.cli.reports import column_texts, loss_lines, lost_text, report_lines
from kbatch.cli.styles import styled
from kbatch.cli.tables import table_lines
from kbatch.cli.terminal import counted, format_lost, format_records, format_size, format_time, summary_dict

if TYPE_CHECKING:
    from kbatch.sinks.summary import ExportSummary, PartitionSummary
    from kbatch.transactions import OpenTransaction

__all__ = ["summary_document", "summary_lines"]


def summary_document(command: str, summary: ExportSummary, **more: Any) -> dict[str, Any]:
    """Return a summary as the document that a command prints."""
    totals = summary.to_dict()
    logs = [{"name": f"{each['topic']}-{each['partition']}", **each} for each in totals.pop("partitions")]
    status = summary.exit_status
    return summary_dict(command, status, logs, damaged=status == 3, **more, **totals)


def summary_lines(summary: ExportSummary, *, has_history: bool = False) -> list[str]:
    """Return the summary as lines of text for people; of the export of a cluster with a history, or without."""
    batches = ", ".join(f"{count:,} {codec}" for codec, count in summary.batches.items()) or "none"
    log_rate = summary.log_bytes / summary.seconds if summary.seconds else 0.0
    lines = [
        f"{_records_text(summary)} of {counted(len(summary.partitions), 'topic-partition')} in "
        f"{counted(len(summary.files), 'file')}: "
        f"{summary.out}",
        *_action_lines(summary),
        "",
        *_source_lines(summary),
        f"  read       {format_size(summary.log_bytes)} of batches ({batches})",
        *_history_lines(summary, has_history),
        *_control_lines(summary),
        f"  written    {format_size(summary.file_bytes)} of {'Arrow' if summary.format == 'arrow' else 'Parquet'}",
        *_omitted_lines(summary),
        _lost_line(summary),
        f"  time       {summary.seconds:.1f} s, {summary.records_per_second:,.0f} records/s, "
        f"{format_size(round(log_rate))}/s",
        f"             start {summary.start_seconds:.1f} s, planning {summary.plan_seconds:.1f} s, "
        f"tasks {summary.task_seconds:.1f} s, commit {summary.commit_seconds:.1f} s",
        f"  engine     {summary.engine}: {summary.engine_reason}",
    ]
    lines += [f"  missing    {each['reason']}" for each in summary.missing_offsets]
    removed = sum(part.removed_offsets for part in summary.partitions)
    if removed:
        lines.append(f"  compacted  {counted(removed, 'offset')} without a record, which compaction has removed")
    for part in summary.partitions:
        if part.unfinished_bytes:
            lines.append(
                f"  unfinished {part.topic}-{part.partition} ends with {format_size(part.unfinished_bytes)} of an "
                "incomplete batch: cut off, or still being written"
            )
    lines += _column_lines(summary)
    lines += _value_lines(summary)
    if summary.bad_crc_batches:
        lines.append(f"  checksums  {counted(summary.bad_crc_batches, 'batch')} accepted despite a wrong checksum")
    head = ("topic-partition", "records", "control", "open", "offsets", "first time (UTC)", "last time (UTC)", "lost")
    rows = [head]
    for part in summary.partitions:
        offsets = "-" if part.first_offset is None else f"{part.first_offset} - {part.last_offset}"
        rows.append(
            (
                f"{part.topic}-{part.partition}",
                f"{part.records - (part.control_records if summary.include_control else 0):,}",
                f"{part.control_records:,}",
                f"{part.open_count:,}",
                offsets,
                format_time(part.first_timestamp),
                format_time(part.last_timestamp),
                format_lost(part.lost_bytes, part.gap_offsets),
            )
        )
    lines.append("")
    # Names and times to the left, numbers to the right.
    lines += table_lines(rows, left=frozenset((0, 5, 6)), losses=frozenset([7]), optional=(5, 6, 4))
    still_open = open_transaction_lines(map(_open_of, summary.partitions))
    lines += ["", *still_open] if still_open else []
    if summary.losses:
        lines += ["", styled("Lost:", "error"), *loss_lines(summary, summary.out)]
    if summary.unseen_reports:
        lines += ["", "Earlier exports ended before anybody saw their reports:"]
    for each in summary.unseen_reports:
        lines += report_lines(SimpleNamespace(**each), summary.out)
    return lines


def _source_lines(summary: ExportSummary) -> list[str]:
    """Return the cluster and its topics."""
    if not summary.logdir.startswith(KAFKA_URL):
        return []
    from kbatch.log.topics import first_names

    topics = list(dict.fromkeys(part.topic for part in summary.partitions))
    return [f"  source     {summary.logdir}, {counted(len(topics), 'topic')}: {first_names(topics)}"]


def _history_lines(summary: ExportSummary, has_history: bool) -> list[str]:
    """Return what was read from files of the history."""
    if not has_history:
        return []
    if not summary.history_bytes:
        return ["  history    none of them from files, all from the cluster"]
    rest = format_size(summary.log_bytes - summary.history_bytes)
    return [
        f"  history    {format_size(summary.history_bytes)} of them with {counted(summary.history_records, 'record')} "
        f"from files, {rest} from the cluster"
    ]


def _open_of(part: PartitionSummary) -> tuple[str, list[OpenTransaction], int]:
    from kbatch.transactions import OpenTransaction

    return (
        f"{part.topic}-{part.partition}",
        [OpenTransaction(**each) for each in part.open_transactions],
        part.open_count,
    )


def _lost_line(summary: ExportSummary) -> str:
    line = f"  lost       {lost_text(summary, summary.out)}"
    return styled(line, "error", "lost") if summary.loss_count else line


def _control_lines(summary: ExportSummary) -> list[str]:
    """Return the number of control records, which are written only with --control."""
    if not summary.control_records:
        return []
    where = "written" if summary.include_control else "not written"
    return [f"  control    {counted(summary.control_records, 'control record')}, {where}"]


def _records_text(summary: ExportSummary) -> str:
    if not summary.include_control:
        return counted(summary.records, "record")
    return format_records(summary.records - summary.control_records, summary.control_records)


def _column_lines(summary: ExportSummary, limit: int = 20) -> list[str]:
    """Return the columns and fields that the data got with this run."""
    lines = [f"  columns    {text}" for text in column_texts(summary.schema_changes[:limit])]
    more = len(summary.schema_changes) - limit
    if more > 0:
        lines.append(f"             and {more} more; {summary.out}/{summary.manifest} lists them")
    return lines


def _value_lines(summary: ExportSummary, limit: int = 20) -> list[str]:
    """Return the numbers of keys and values that were not parsed completely, and the fields that are the reason."""
    lines = []
    for title, kind, result in (("unparsed", "bad", "null"), ("incomplete", "incomplete", "without some fields")):
        sides = [(n, on) for on in ("key", "value") if (n := getattr(summary, f"{kind}_{on}s"))]
        counts = " and ".join(counted(n, on) for n, on in sides)
        columns = " and ".join(f"{on}_bad" for _, on in sides)
        if sides:
            lines.append(f"  {title:<10} {counts}: {result} in the output, their bytes are in {columns}")
    if summary.too_many_bad:
        lines.append("             more than --max-bad allows: the exit status is not 0")
    for each in summary.deviations[:limit]:
        # A conflict of the whole value has the path "".
        whole = each["field"] is None or (each["field"] == "" and each["kind"] == "conflict")
        name = "" if whole else f" field {each['field']!r}"
        times, place = counted(each["occurrences"], "time"), f"{each['topic']}-{each['partition']}"
        kept = ", written as text" if each["kind"] == "text" else ""
        first = f"first in {place} at offset {each['offset']}"
        lines.append(f"  schema     {each['column']}{name}: {each['reason']}{kept}: {times}, {first}")
    if len(summary.deviations) > limit:
        more = len(summary.deviations) - limit
        lines.append(f"             and {more} more fields; {summary.out}/{summary.manifest} lists them")
    return lines


def _action_lines(summary: ExportSummary) -> list[str]:
    """Return what the run did to an output that existed, and how logs have changed since the last run."""
    texts = {
        "created": [],
        "continued": ["Continued where earlier exports ended; their records are kept."],
        "replaced": ["Replaced the data of earlier exports."],
        "unchanged": ["Nothing new: earlier exports have written all of these records."],
    }
    changes = [
        f"  changed    {change['reason']}; continued at offset {change['resumed_at']}" for change in summary.changes
    ]
    return [*texts[summary.action], *changes]


def _omitted_lines(summary: ExportSummary, limit: int = 20) -> list[str]:
    """Format the bytes and batches that read_committed omitted: aborted ones in total, withheld ones by partition."""
    if summary.isolation == "read_uncommitted":
        return []
    lines = [
        f"  aborted    {format_size(summary.aborted_bytes)} in {counted(summary.aborted_batches, 'batch')} omitted"
    ]
    withheld = [part for part in summary.partitions if part.undecided_batches]
    for part in withheld[:limit]:
        why = []
        if part.open_count:
            producers = _producers(part.open_transactions, part.open_count)
            count = counted(part.open_count, "open transaction")
            why.append(f"{count} from offset {part.last_stable_offset} on ({producers})")
        if part.undecided_count:
            producers = _producers(part.undecided_transactions, part.undecided_count)
            why.append(f"{counted(part.undecided_count, 'transaction')} with a damaged marker ({producers})")
        lines.append(
            f"  withheld   {part.topic}-{part.partition}: {', '.join(why)}: "
            f"{format_size(part.undecided_bytes)} in {counted(part.undecided_batches, 'batch')}"
        )
    if len(withheld) > limit:
        rest = withheld[limit:]
        size, batches = (sum(getattr(part, f"undecided_{name}") for part in rest) for name in ("bytes", "batches"))
        lines.append(
            f"  withheld   {format_size(size)} in {counted(batches, 'batch')} of {len(rest):,} more topic-partitions; "
            f"{summary.out}/{summary.manifest} lists all"
        )
    unstable = [part for part in summary.partitions if part.withheld_offsets]
    for part in unstable[:limit]:
        first = (part.end_offset or 0) - part.withheld_offsets
        lines.append(
            f"  withheld   {part.topic}-{part.partition}: {counted(part.withheld_offsets, 'offset')} from the last "
            f"stable offset {first} on, since transactions are open"
        )
    if len(unstable) > limit:
        lines.append(f"  withheld   of {len(unstable) - limit:,} more topic-partitions too")
    if summary.transactions_table is not None:
        count = counted(summary.withheld_transactions, "transaction")
        lines.append(f"  undecided  {count}: {summary.out}/{summary.transactions_table}")
    return lines


def _producers(transactions: list[dict[str, int]], count: int, limit: int = 5) -> str:
    ids = ", ".join(str(each["producer_id"]) for each in transactions[:limit])
    return f"producer {ids}{', ...' if count > limit else ''}"
