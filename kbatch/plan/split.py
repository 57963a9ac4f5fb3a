"""Finds the byte ranges of files that a read needs, and divides them among tasks.

Planning uses names, sizes, index files and some batch headers. It decodes a batch only to convert a timestamp to an
offset. This package does not import pyspark.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from kbatch.batches.checksums import has_good_batch
from kbatch.batches.framing import first_offsets
from kbatch.escaping import printable
from kbatch.format import INT64_MAX
from kbatch.log import Log, Segment
from kbatch.log.indexes import OFFSET_INDEX_DTYPE
from kbatch.plan.bounds import resolve_bounds
from kbatch.plan.following import check_markers, log_transactions
from kbatch.plan.missing import MissingOffsets
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.select import map_logs
from kbatch.transactions import Transactions, Withheld
from kbatch.tuning import MAX_OPENED, OPEN_COST, SHARE_SLACK

__all__ = [
    "LogRange",
    "Split",
    "divide_logs",
    "divide_splits",
    "good_row",
    "log_splits",
    "plan",
    "plan_logs",
    "plan_ranges",
]


PartT = TypeVar("PartT")


@dataclass(frozen=True, slots=True)
class Split:
    """A byte range of one segment file, for one task to read. It is pickled, so it holds plain values only.

    Attributes
    ----------
    path : str
    start, end : int
        Bytes; a batch begins at `start`, and at `end` unless that is the file's end.
    size : int
        Bytes of the whole file when it was planned. Bytes that are appended later are not read.
    live : bool
        Whether the file is the last of its log, so that a broker may be writing to it.
    topic, partition
        From the directory's name, if it has this form.
    start_offset, stop_offset : int or None
        Records outside this range are not returned.
    below : int or None
        The base offset of the next segment. An offset at or above it means that segments overlap.
    withheld : Withheld or None
        Under read_committed, the batches of the segment that are not returned. The markers that decide this may be in
        other splits.
    stable_offset : int or None
        Under read_committed, the last stable offset of the log if a transaction is undecided or open.
    is_named : bool
        Whether the caller named the file itself, which then may be a symbolic link.
    """

    path: str
    start: int
    end: int
    size: int
    live: bool
    topic: str | None
    partition: int | None
    start_offset: int | None
    stop_offset: int | None
    below: int | None
    withheld: Withheld | None = None
    stable_offset: int | None = None
    is_named: bool = False

    @property
    def log(self) -> str:
        """The directory, which identifies the log."""
        return os.path.dirname(self.path)


@dataclass(frozen=True, slots=True)
class LogRange:
    """A whole log for one task to examine, and the range of offsets to report; None is the log's own end."""

    path: str
    start_offset: int | None
    stop_offset: int | None


def plan(logs: Sequence[Log], options: ReadOptions, *, withheld: bool = True) -> list[tuple[Split, ...]]:
    """Divide the bytes of `logs` among tasks.

    Parameters
    ----------
    logs : sequence of Log
        The logs to read (`kbatch.plan.select.choose_logs`).
    options : ReadOptions
    withheld : bool
        Under read_committed, whether tasks also read the batches from the last stable offset on, to count them. If
        they do not, and the read includes such batches, a warning is logged.

    Returns
    -------
    list of tuple of Split
        The splits of each task. Joined in order, they cover each byte of the logs that the read may need exactly
        once, in the order of the logs. Tasks have about equal sizes, since splits end at batches, of at most about
        ``split_bytes`` (an eighth more, or one batch). With ``on_error="stop"`` one task reads a whole log, because
        only the reader of all of it knows where it stops.

    Raises
    ------
    ValueError, LogDirectoryError
        As `kbatch.plan.bounds.resolve_bounds`.
    CorruptBatchError, TruncatedBatchError, CrcMismatchError
        As `kbatch.plan.following.check_markers`: with ``on_error="raise"``, damage anywhere in a log is an error if it
        leaves a transaction undecided whose records are in the range.
    """
    bounds = resolve_bounds(logs, options)
    transactions = log_transactions(logs, options, bounds)
    ranges = [(log, *ends, known) for log, ends, known in zip(logs, bounds, transactions, strict=True)]
    return plan_ranges(ranges, options, withheld=withheld)


def plan_ranges(
    ranges: Iterable[tuple[Log, int | None, int | None, Transactions | None]],
    options: ReadOptions,
    *,
    withheld: bool = True,
) -> list[tuple[Split, ...]]:
    """Divide ranges of offsets among tasks, as `plan` does after it has resolved them.

    Parameters
    ----------
    ranges : iterable of (Log, start offset or None, stop offset or None, Transactions or None)
        None is the log's own end on that side. Under read_committed, the transactions of the whole log.
    options : ReadOptions
        Its bounds are not used.
    withheld : bool
        As for `plan`.
    """
    ranges = list(ranges)
    logs = [log for log, *_ in ranges]
    found = map_logs(logs, lambda each: log_splits(*each, options, withheld=withheld), ranges)
    return divide_splits(list(zip(logs, found, strict=True)), options)


def log_splits(
    log: Log,
    start: int | None,
    stop: int | None,
    transactions: Transactions | None,
    options: ReadOptions,
    *,
    withheld: bool = True,
) -> list[Split]:
    """Return the byte range of each segment that holds offsets of a range, in order; the parameters are as for `plan`.

    Raises
    ------
    CorruptBatchError, TruncatedBatchError, CrcMismatchError
        As `plan`.
    """
    if transactions is not None:
        check_markers(log, transactions, options, stop)
    stable = None if transactions is None or withheld else transactions.last_stable_offset
    if transactions is not None and stable is not None and (stop is None or stable < stop):
        logging.getLogger(__name__).warning(
            "%s: read_committed returns no records from offset %d on, since %d transactions are open; "
            "option('table', 'transactions') lists them as a DataFrame",
            printable(log.path),
            stable,
            len(transactions.open),
        )
        stop = stable
    return list(_segment_splits(log, start, stop, transactions))


def divide_splits(found: Sequence[tuple[Log, Sequence[Split]]], options: ReadOptions) -> list[tuple[Split, ...]]:
    """Divide the splits of whole segments (`log_splits`) among tasks, as `plan` does."""
    units: list[_Unit[Split]] = []
    for log, splits in found:
        if options.on_error == "stop":
            # Damage before the start offset doesn't stop the read: seeking has passed it.
            if splits:
                units.append(_Unit(list(splits), sum(split.end - split.start for split in splits)))
            continue
        segments = {segment.path: segment for segment in log.segments}
        for split in splits:
            segment = segments[split.path]
            if options.max_records_per_partition is not None:
                end = log.end_offset if split.below is None else split.below
                units += _cut_by_offsets(segment, split, end, options.max_records_per_partition)
            else:
                units.append(_Unit([split], split.end - split.start, segment=segment))
    return _divide(units, options)


def divide_logs(logs: Sequence[Log], options: ReadOptions) -> list[tuple[Log, ...]]:
    """Divide whole logs among tasks."""
    return _divide([_Unit([log], log.size) for log in logs], options)


def plan_logs(
    logs: Sequence[Log], options: ReadOptions, missing: list[MissingOffsets] | None = None
) -> list[tuple[LogRange, ...]]:
    """Divide whole logs among tasks that need all headers of a log; `missing` is as for `resolve_bounds`.

    Raises
    ------
    ValueError, LogDirectoryError
        As `kbatch.plan.bounds.resolve_bounds`.
    """
    bounds = zip(logs, resolve_bounds(logs, options, missing), strict=True)
    return _divide([_Unit([LogRange(log.path, *ends)], log.size) for log, ends in bounds], options)


@dataclass(slots=True)
class _Unit(Generic[PartT]):
    """Parts that one task reads together. With a `segment`, its one split can be cut at a batch.

    `size` is in bytes; `offsets` is the number of offsets it spans, if they are limited.
    """

    parts: list[PartT]
    size: int
    offsets: int = 0
    segment: Segment | None = None


def _divide(units: Iterable[_Unit[PartT]], options: ReadOptions) -> list[tuple[PartT, ...]]:
    """Assign units, in their order, to tasks of equal size, which is at most about ``split_bytes``."""
    queue = deque(units)
    size = sum(unit.size for unit in queue)
    task_bytes = options.split_bytes
    if options.min_partitions is not None:
        task_bytes = min(task_bytes, size // options.min_partitions)
    open_cost = min(OPEN_COST, task_bytes // MAX_OPENED)
    remaining = size + open_cost * sum(len(unit.parts) for unit in queue)
    max_cost = options.split_bytes + open_cost
    max_offsets = options.max_records_per_partition or INT64_MAX
    cutter = _Cutter()
    tasks: list[tuple[PartT, ...]] = []
    parts: list[PartT] = []
    cost = offsets = 0
    while queue:
        unit = queue.popleft()
        # The remaining tasks share the remaining bytes evenly, which compensates for units that could not be cut.
        count = max(
            (options.min_partitions or 1) - len(tasks), math.ceil((remaining + cost) / max_cost - 1 / SHARE_SLACK), 1
        )
        share = (remaining + cost) / count
        slack = share / SHARE_SLACK
        capacity = share + slack - cost
        if unit.size + open_cost * len(unit.parts) > capacity and share - cost > slack:
            halves = cutter.cut(unit, max(1, int(share - cost) - open_cost), int(slack))
            if halves is not None:
                unit, rest = halves
                queue.appendleft(rest)
                remaining += open_cost
        weight = unit.size + open_cost * len(unit.parts)
        is_over = weight > capacity or offsets + unit.offsets > max_offsets
        if parts and is_over:
            queue.appendleft(unit)
        else:
            parts += unit.parts
            cost += weight
            remaining -= weight
            offsets += unit.offsets
        if is_over or cost >= share:
            tasks.append(tuple(parts))
            parts, cost, offsets = [], 0, 0
    if parts:
        tasks.append(tuple(parts))
    return tasks


def _segment_splits(
    log: Log, start: int | None, stop: int | None, transactions: Transactions | None
) -> Iterator[Split]:
    """Yield the byte range of each segment of a log that holds the offsets from `start` to `stop`, in order."""
    withheld = None if transactions is None else transactions._withheld_of_log()
    stable = None if transactions is None else transactions.last_stable_offset
    if start is not None and stop is not None and start >= stop:
        return
    for i, segment in enumerate(log.segments):
        below = log.segments[i + 1].base_offset if i + 1 < len(log.segments) else None
        if start is not None and below is not None and below <= start:
            continue
        if stop is not None and segment.base_offset is not None and segment.base_offset >= stop:
            break
        begin, end = 0, segment.size
        if start is not None and (segment.base_offset is None or segment.base_offset < start):
            begin = segment.seek_offset(start)
        if stop is not None and (below is None or below > stop):
            end = segment.end_for_offset(stop)
        # At the end of a segment, a task finds the offsets that are missing before the next one.
        if begin >= end and (below is None or end < segment.size):
            continue
        yield Split(
            segment.path,
            min(begin, end),
            end,
            segment.size,
            segment.live,
            log.topic,
            log.partition,
            start,
            stop,
            below,
            None if withheld is None else withheld.of_segment(segment.path),
            stable,
            segment.path == segment.storage.named,
        )


def _cut_by_offsets(segment: Segment, split: Split, end: int, limit: int) -> Iterator[_Unit[Split]]:
    """Cut a split at batches so that no unit spans more than `limit` offsets; `end` is excluded.

    A batch that spans more is a unit by itself. Nothing is cut after damage that hides where the next batch begins.
    """
    end = end if split.stop_offset is None else min(end, split.stop_offset)
    first = max(segment.base_offset or 0, split.start_offset or 0)
    while True:
        row = good_row(segment, split.start)
        if row is not None:
            first = max(first, int(first_offsets(row)[0]))
        cut = None
        if row is not None and end - first > limit:
            position = segment.seek_offset(first + limit)
            cut = good_row(segment, max(position, split.start + int(row["size"][0])))
        if cut is None or cut["position"][0] >= split.end:
            yield _Unit([split], split.end - split.start, max(0, end - first), segment)
            return
        reached, position = int(first_offsets(cut)[0]), int(cut["position"][0])
        yield _Unit([replace(split, end=position)], position - split.start, max(0, reached - first), segment)
        split, first = replace(split, start=position), reached


def good_row(segment: Segment, position: int) -> npt.NDArray[np.void] | None:
    """Return the header at `position`, as an array of one row, if a batch with a good checksum begins there."""
    for rows in segment.scan(position):
        return rows[:1] if has_good_batch(segment, rows[0]) else None
    return None


class _Cutter:
    """Cuts units in two at a batch.

    An index entry is used if a batch with its offset begins there; otherwise headers are followed. Nothing is cut after
    damage that hides where the next batch begins.
    """

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._index = np.empty(0, OFFSET_INDEX_DTYPE)

    def cut(self, unit: _Unit[Any], size: int, slack: int) -> tuple[_Unit[Any], _Unit[Any]] | None:
        """Cut so that the first half has about `size` bytes, or up to `slack` more to end at an index entry."""
        segment = unit.segment
        if segment is None:
            return None
        (split,) = unit.parts
        target = split.start + size
        index = self._index_of(segment)
        entry = int(np.searchsorted(index["position"], target))
        position: int | None = None
        near = entry < len(index) and split.start < index["position"][entry] < min(target + slack, split.end)
        if near and segment._begins_batch(int(index["position"][entry]), int(index["offset"][entry])):
            position = int(index["position"][entry])
        if position is None:
            position = _next_batch(segment, split.start, target)
        if position is None or position >= split.end:
            return None
        return (
            replace(unit, parts=[replace(split, end=position)], size=position - split.start),
            replace(unit, parts=[replace(split, start=position)], size=split.end - position),
        )

    def _index_of(self, segment: Segment) -> npt.NDArray[np.void]:
        if self._segment is not segment:
            self._segment = segment
            self._index = np.empty(0, OFFSET_INDEX_DTYPE)
            if segment.base_offset is not None:
                self._index = segment.offset_index()
        return self._index


def _next_batch(segment: Segment, start: int, target: int) -> int | None:
    """Follow headers from the batch at `start`; return the first position from `target` on if its checksum holds."""
    for rows in segment.scan(start):
        later = rows[rows["position"] >= target]
        if len(later):
            return int(later["position"][0]) if has_good_batch(segment, later[0]) else None
    return None
