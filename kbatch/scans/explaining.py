"""What a scan reads, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kbatch.bounds import Bound
from kbatch.escaping import counted
from kbatch.log.read_arguments import ReadArguments
from kbatch.plan.split import records_per_byte
from kbatch.records.display import shown_time
from kbatch.scans.scan_reading import PlannedLog, Reading

__all__ = ["explained"]


def explained(reading: Reading, columns: Sequence[str]) -> str:
    """Plan a read, and return what `Scan.explain` returns."""
    left_out: set[tuple[str | None, int | None]] = set()
    planned = [reading.planned(each) for each in reading.chosen(left_out)]
    return "\n".join([f"SCAN {reading.source.describe()}", *_lines(reading, columns, len(left_out), planned)])


def _lines(reading: Reading, columns: Sequence[str], left_out: int, planned: list[PlannedLog]) -> Iterator[str]:
    condition, decode = reading.condition, reading.arguments.decode
    yield f"columns: {', '.join(columns)}"
    if given := list(_given(reading.arguments)):
        yield f"arguments: {', '.join(given)}"
    if condition is not None:
        exact = all(each.excluded is not None and each.excluded.is_always_true for each in planned)
        where = "true for all records that are read" if exact and planned else "evaluated for each record"
        yield f"filter: {condition}; {where}"
        if condition.keys:
            yield "key: only records with a key of the filter become columns"
    reason = f"; {left_out:,} have a topic or partition that the filter excludes" if left_out else ""
    yield f"logs: {len(planned):,} of {len(planned) + left_out:,}{reason}"
    yield _segment_counts(planned)
    size = sum(split.bytes for each in planned for split in each.splits)
    yield f"bytes: {size:,} of {sum(each.log.size for each in planned):,} of these logs"
    yield f"records: about {_estimated_records(planned):,} in these bytes"
    yield from _pruned_ranges(planned)
    if indexed := sum(each.indexed for each in planned):
        yield f"key index: of {counted(indexed, 'segment')}, only the blocks that may have the key are read"
    if decode.isolation == "read_committed":
        yield "isolation: read_committed, by the markers of the whole logs"
    if condition is not None and decode.on_error == "stop":
        yield "on_error: stop, so that each log is read from its start: earlier damage ends the read"


def _given(arguments: ReadArguments) -> Iterator[str]:
    """Yield the arguments that choose records of each log."""
    for name, bound in ("start", arguments.start), ("end", arguments.end):
        if bound.partitions is not None:
            yield f"{name} by partition"
        elif bound.before_end is not None:
            yield f"{name} {bound.before_end:,} ms before the end of the topic"
        elif bound != Bound():
            time = [] if bound.timestamp is None else [shown_time(bound.timestamp)]
            place = bound.log_end if bound.offset is None else f"offset {bound.offset}"
            yield f"{name} {' and '.join([*([] if place is None else [place]), *time])}"
    if arguments.last is not None:
        yield f"last {counted(arguments.last, 'record')} of each log"
    yield from (f"key {key!r}" for key in arguments.keys)


def _segment_counts(planned: list[PlannedLog]) -> str:
    total = sum(len(each.log.segments) for each in planned)
    read = sum(len({split.path for split in each.splits}) for each in planned)
    skipped = sum(each.skipped for each in planned)
    empty = sum(not segment.size for each in planned for segment in each.log.segments)
    text = f"segments: {read:,} of {total:,}"
    reasons = []
    if total - read - skipped - empty:
        reasons.append(f"{total - read - skipped - empty:,} outside of the range of offsets and times")
    if skipped:
        reasons.append(f"{skipped:,} within them have no offset of the filter")
    if empty:
        reasons.append(f"{empty:,} empty")
    return text + (f"; {', '.join(reasons)}" if reasons else "")


def _pruned_ranges(planned: list[PlannedLog]) -> Iterator[str]:
    """Yield the range of offsets that is read, of the logs with the same range."""
    found: dict[str, int] = {}
    for each in planned:
        if each.excluded is None:
            continue
        offset, since = each.excluded.pruning.offset, each.excluded.pruning.since
        parts = [] if offset.low is None else [f"offset >= {offset.low}"]
        parts += [] if offset.high is None else [f"offset <= {offset.high}"]
        parts += [] if since is None else [f"batches from the first timestamp >= {since} ms on"]
        if parts:
            text = ", ".join(parts)
            found[text] = found.get(text, 0) + 1
    for text, count in list(found.items())[:5]:
        yield f"pruned by: {text} ({counted(count, 'log')})"
    if len(found) > 5:
        yield f"pruned by: {len(found) - 5} more ranges"


def _estimated_records(planned: list[PlannedLog]) -> int:
    """Estimate the records of the bytes that are read, from the offsets of the segments."""
    total = 0
    for each in planned:
        size = sum(split.bytes for split in each.splits)
        density = records_per_byte(each.log)
        if density is None and size:
            # A log of one segment: its last offset is in the header of its last batch.
            density = (each.log.end_offset - (each.log.segments[0].base_offset or 0)) / max(1, each.log.size)
        total += round((density or 0) * size)
    return total
