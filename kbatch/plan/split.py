"""The byte ranges of files that a read needs, and their division among tasks."""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from kbatch.batches.checksums import has_good_batch
from kbatch.batches.framing import first_offsets
from kbatch.escaping import printable
from kbatch.format import INT64_MAX
from kbatch.log import Log, Segment
from kbatch.log.files.indexes import OFFSET_INDEX_DTYPE
from kbatch.log.key_lookup import KeyIndex
from kbatch.log.ranges import seek, segments_within
from kbatch.log.row_filter import RowFilter
from kbatch.plan.following import check_markers
from kbatch.plan.read_options import ReadOptions
from kbatch.quantities import smallest
from kbatch.transactions import Transactions, Withheld

__all__ = [
    "Split",
    "Task",
    "divide_logs",
    "divide_parts",
    "divide_splits",
    "good_row",
    "growing_parts",
    "indexed_splits",
    "log_splits",
    "records_per_byte",
]

# Opening a file costs as much as reading this number of bytes, and a task opens at most this number of tiny files.
OPEN_COST = 1 << 20
MAX_OPENED = 128
# A task may exceed the even share by this fraction (one part in ...), which avoids a tiny remainder.
SHARE_SLACK = 16


class Part(Protocol):
    """A part of a task, with estimates of its size."""

    @property
    def bytes(self) -> int:
        """The number of bytes."""

    @property
    def records(self) -> int | None:
        """The estimated number of records; None if an estimate would need to read a file."""


WorkT = TypeVar("WorkT")
PartT = TypeVar("PartT", bound=Part)


class Task(tuple[PartT, ...]):
    """The parts that a task reads, in order; picklable, and independent of other tasks."""

    __slots__ = ()

    @property
    def bytes(self) -> int:
        """The number of bytes to read."""
        return sum(part.bytes for part in self)

    @property
    def records(self) -> int | None:
        """The estimated number of records, from the offsets of the segments; None if unknown for a part."""
        counts = [part.records for part in self]
        return None if None in counts else sum(count or 0 for count in counts)


@dataclass(frozen=True, slots=True)
class Split:
    """A byte range of one segment file, for one task to read. It is pickled, so it holds only plain values.

    Attributes
    ----------
    path : str
    start, end : int
        Byte positions; a batch begins at `start`, and at `end` unless that is the end of the file.
    size : int
        The size of the whole file when it was planned. Bytes that are appended later are not read.
    live : bool
        Whether the file is the last of its log, so that a broker may be writing to it.
    topic, partition
        From the name of the directory, if it has this form.
    start_offset, stop_offset : int or None
        Records outside this range are not returned.
    below : int or None
        The base offset of the next segment. An offset at or above it means that segments overlap.
    withheld : Withheld or None
        Under read_committed, the batches of the segment that are not returned. Other splits may contain the markers
        that decide this.
    stable_offset : int or None
        Under read_committed, the last stable offset of the log if a transaction is undecided or open.
    is_named : bool
        Whether the caller named this file, which may then be a symbolic link.
    density : float or None
        The estimated number of records per byte (`records_per_byte`).
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
    density: float | None = None

    # Only a `kbatch.plan.cluster_tasks.ClusterRange` may belong to the history of a cluster.
    is_history: ClassVar[bool] = False

    @property
    def log(self) -> str:
        """The directory, which identifies the log."""
        return os.path.dirname(self.path)

    @property
    def bytes(self) -> int:
        """The number of bytes to read."""
        return self.end - self.start

    @property
    def records(self) -> int | None:
        """The estimated number of records."""
        return None if self.density is None else round(self.density * self.bytes)

    @property
    def limit(self) -> int | None:
        """The offset from which the next run reads the batches again, or None."""
        return smallest(self.stop_offset, self.stable_offset)

    def bytes_after(self, before: Split | None) -> int:
        """Return the bytes of a file between two parts that the key index excludes."""
        return 0 if before is None or before.path != self.path else max(0, self.start - before.end)


def log_splits(
    log: Log,
    start: int | None,
    stop: int | None,
    transactions: Transactions | None,
    options: ReadOptions,
    *,
    withheld: bool = True,
) -> list[Split]:
    """Return the byte range of each segment with offsets of a range, in order.

    Parameters
    ----------
    log : Log
    start, stop : int or None
        The range of offsets; None is the log's own end on that side.
    transactions : Transactions or None
        Under read_committed, the transactions that reach into the range.
    options : ReadOptions
    withheld : bool
        Under read_committed, whether tasks also read the batches from the last stable offset on, to count them.
        Otherwise, a warning is logged if the range includes such batches.

    Raises
    ------
    CorruptBatchError, TruncatedBatchError, CrcMismatchError
        As `check_markers`.
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


def divide_splits(found: Iterable[tuple[Log, Sequence[Split]]], options: ReadOptions) -> list[Task[Split]]:
    """Divide the splits that `log_splits` returns among tasks.

    Returns
    -------
    list of Task
        Joined in order, they cover each byte of the splits exactly once. Tasks have about equal sizes, since splits are
        cut at batches, of at most about ``split_bytes`` (plus an eighth, or one batch). With ``on_error="stop"`` one
        task reads a whole log, because only the reader of all of it knows where it stops.
    """
    units: list[_Unit[Split]] = []
    for log, splits in found:
        if options._for_topic(log.topic).on_error == "stop":
            # Damage before the start offset does not stop the read, because seeking skips it.
            if splits:
                units.append(_Unit(list(splits), sum(split.bytes for split in splits)))
            continue
        segments = {segment.path: segment for segment in log.segments}
        for split in splits:
            segment = segments[split.path]
            if options.max_records_per_partition is not None:
                end = log.end_offset if split.below is None else split.below
                units += _cut_by_offsets(segment, split, end, options.max_records_per_partition)
            else:
                units.append(_Unit([split], split.bytes, segment=segment))
    return [Task(parts) for parts in _divide(units, options)]


def growing_parts(segment: Segment, split: Split, size: int, most: int, *, from_end: bool = False) -> Iterator[Split]:
    """Yield the parts of a split of a segment: about `size` bytes, then four times as many, and so on, up to `most`.

    Parts are cut at batches, and are larger where damage hides batches. They are in order, or with `from_end` in
    reverse order, which for a file without an index follows the headers for each part.
    """
    cutter = _Cutter(open_cost=0)
    unit = _Unit([split], split.bytes, segment=segment)
    while unit.size > size + size // 2:
        halves = cutter.cut(unit, unit.size - size if from_end else size, size // 2)
        if halves is None:
            break
        part, unit = halves[::-1] if from_end else halves
        yield from part.parts
        size = min(4 * size, most)
    yield from unit.parts


def indexed_splits(log: Log, splits: Iterable[Split], index: KeyIndex, rows: RowFilter) -> list[Split]:
    """Return the parts of the splits of a log that may have matching records according to the key index."""
    segments = {segment.path: segment for segment in log.segments}
    return [
        replace(split, start=start, end=end)
        for split in splits
        for start, end in index.ranges(segments[split.path], split.start, split.end, rows)
    ]


def divide_logs(items: Iterable[WorkT], logs: Iterable[Log], options: ReadOptions) -> list[list[WorkT]]:
    """Divide whole logs among tasks, with one item for each log."""
    return _divide([_Unit([item], log.size) for item, log in zip(items, logs, strict=True)], options)


def divide_parts(parts: Iterable[PartT], options: ReadOptions) -> list[list[PartT]]:
    """Divide parts among tasks without cutting them."""
    return _divide([_Unit([part], part.bytes) for part in parts], options)


@dataclass(slots=True)
class _Unit(Generic[WorkT]):
    """Parts that one task reads together. With a `segment`, the unit has one split, which can be cut at a batch.

    `size` is in bytes; `offsets` is the number of offsets that the unit spans, if they are limited.
    """

    parts: list[WorkT]
    size: int
    offsets: int = 0
    segment: Segment | None = None


class _Units(Generic[WorkT]):
    """Units without a task, in order. `cost` is the sum of their costs: bytes, and opening files."""

    def __init__(self, units: Iterable[_Unit[WorkT]], open_cost: int) -> None:
        self._queue = deque(units)
        self._open_cost = open_cost
        self.cost = sum(map(self.cost_of, self._queue))

    def __bool__(self) -> bool:
        return bool(self._queue)

    def cost_of(self, unit: _Unit[WorkT]) -> int:
        return unit.size + self._open_cost * len(unit.parts)

    def take(self) -> _Unit[WorkT]:
        unit = self._queue.popleft()
        self.cost -= self.cost_of(unit)
        return unit

    def put_back(self, unit: _Unit[WorkT]) -> None:
        self._queue.appendleft(unit)
        self.cost += self.cost_of(unit)


def _divide(units: Sequence[_Unit[WorkT]], options: ReadOptions) -> list[list[WorkT]]:
    """Assign units, in their order, to tasks of equal size, which is at most about ``split_bytes``."""
    task_bytes = options.split_bytes
    if options.min_partitions is not None:
        task_bytes = min(task_bytes, sum(unit.size for unit in units) // options.min_partitions)
    open_cost = min(OPEN_COST, task_bytes // MAX_OPENED)
    max_cost = options.split_bytes + open_cost
    max_offsets = options.max_records_per_partition or INT64_MAX
    cutter = _Cutter(open_cost)
    remaining = _Units(units, open_cost)
    tasks: list[list[WorkT]] = []
    while remaining:
        # Even shares of the remaining units compensate for units that could not be cut.
        missing = (options.min_partitions or 1) - len(tasks)
        share = remaining.cost / max(missing, math.ceil(remaining.cost / max_cost - 1 / SHARE_SLACK), 1)
        tasks.append(_take_share(remaining, share, max_offsets, cutter))
    return tasks


def _take_share(units: _Units[WorkT], share: float, max_offsets: int, cutter: _Cutter) -> list[WorkT]:
    """Take one or more units from the front, until their cost is `share`, within the slack.

    A unit that exceeds the share is cut. If it cannot be cut, it is left, unless it is the first.
    """
    slack = share / SHARE_SLACK
    parts: list[WorkT] = []
    cost = offsets = 0
    while units and (not parts or (cost < share and offsets < max_offsets)):
        unit = units.take()
        if cost + units.cost_of(unit) > share + slack and share - cost > slack:
            halves = cutter.cut(unit, share - cost, int(slack))
            if halves is not None:
                unit, rest = halves
                units.put_back(rest)
        if parts and (cost + units.cost_of(unit) > share + slack or offsets + unit.offsets > max_offsets):
            units.put_back(unit)
            break
        parts += unit.parts
        cost += units.cost_of(unit)
        offsets += unit.offsets
    return parts


def _segment_splits(
    log: Log, start: int | None, stop: int | None, transactions: Transactions | None
) -> Iterator[Split]:
    """Yield the byte range of each segment of a log that holds the offsets from `start` to `stop`, in order."""
    withheld = None if transactions is None else transactions._withheld_of_log()
    stable = None if transactions is None else transactions.last_stable_offset
    density = records_per_byte(log)
    if start is not None and stop is not None and start >= stop:
        return
    for i, segment in segments_within(log.segments, start, stop):
        below = log.segments[i + 1].base_offset if i + 1 < len(log.segments) else None
        begin, end = seek(segment, start, use_indexes=log.use_indexes), segment.size
        if stop is not None and (below is None or below > stop):
            end = segment.end_for_offset(stop, use_indexes=log.use_indexes)
        # At the end of a segment, a task finds the missing offsets before the next segment.
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
            density,
        )


def records_per_byte(log: Log) -> float | None:
    """Estimate the records per byte of a log from the names of its segments; None if it has one segment."""
    first, last = log.segments[0].base_offset, log.segments[-1].base_offset
    size = log.size - log.segments[-1].size
    return (last - first) / size if last is not None and first is not None and size else None


def _cut_by_offsets(segment: Segment, split: Split, end: int, limit: int) -> Iterator[_Unit[Split]]:
    """Cut a split at batches so that no unit spans more than `limit` offsets; `end` is excluded.

    A batch that spans more is a separate unit. There are no cuts after damage that hides the next batch.
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
    """Return the header at `position` as an array of one row, if a batch with a valid checksum begins there."""
    for rows in segment.scan(position):
        return rows[:1] if has_good_batch(segment, rows[0]) else None
    return None


class _Cutter:
    """Cuts units in two at a batch, which an index entry or the batch headers locate.

    There are no cuts after damage that hides the next batch.
    """

    def __init__(self, open_cost: int) -> None:
        self._open_cost = open_cost
        self._segment: Segment | None = None
        self._index = np.empty(0, OFFSET_INDEX_DTYPE)

    def cut(self, unit: _Unit[Any], cost: float, slack: int) -> tuple[_Unit[Any], _Unit[Any]] | None:
        """Cut so that the first half costs about `cost`, or up to `slack` more to end at an index entry."""
        segment = unit.segment
        if segment is None:
            return None
        (split,) = unit.parts
        target = split.start + max(1, int(cost) - self._open_cost)
        index = self._index_of(segment)
        entry = int(np.searchsorted(index["position"], target))
        position: int | None = None
        # An entry of a stale index may not point to the beginning of a batch.
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
    """Follow headers from the batch at `start`; return the first batch from `target` on if its checksum is valid."""
    for rows in segment.scan(start):
        later = rows[rows["position"] >= target]
        if len(later):
            return int(later["position"][0]) if has_good_batch(segment, later[0]) else None
    return None
