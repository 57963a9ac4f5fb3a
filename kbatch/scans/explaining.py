"""What a scan reads, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kbatch.bounds import Bound
from kbatch.escaping import counted
from kbatch.log.read_arguments import ReadArguments
from kbatch.log.source import PlannedRange
from kbatch.records.display import shown_time
from kbatch.scans.scan_reading import Explanation, Reading

__all__ = ["explained"]


def explained(reading: Reading, columns: Sequence[str]) -> str:
    """Plan a read, and return what `Scan.explain` returns."""
    return "\n".join([f"SCAN {reading.source.describe()}", *_lines(reading, columns, reading.explained())])


def _lines(reading: Reading, columns: Sequence[str], found: Explanation) -> Iterator[str]:
    condition, decode = reading.condition, reading.arguments.decode
    left_out, planned = found.left_out, found.planned
    yield f"columns: {', '.join(columns)}"
    if given := list(_given(reading.arguments)):
        yield f"arguments: {', '.join(given)}"
    if condition is not None:
        exact = all(each.request.is_exact for each in planned)
        where = "true for all records that are read" if exact and planned else "evaluated for each record"
        yield f"filter: {condition}; {where}"
        if condition.keys:
            yield "key: only records with a key of the filter become columns"
    reason = f"; {left_out:,} have a topic or partition that the filter excludes" if left_out else ""
    yield f"logs: {len(planned):,} of {len(planned) + left_out:,}{reason}"
    yield from found.lines
    if condition is not None:
        yield from _pruned_ranges(planned)
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


def _pruned_ranges(planned: Sequence[PlannedRange]) -> Iterator[str]:
    """Yield the range of offsets that is read, of the logs with the same range."""
    found: dict[str, int] = {}
    for each in planned:
        offset, since = each.request.pruning.offset, each.request.pruning.since
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
