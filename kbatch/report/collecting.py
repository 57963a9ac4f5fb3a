"""Collects what a report shows, in one pass over the logs and in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kbatch.batches.framing import first_offsets
from kbatch.format import ATTRIBUTE_CONTROL, ATTRIBUTE_DELETE_HORIZON, BatchStatus, TimestampType
from kbatch.log.check.statistics import Distribution, LogStatistics, TablePlace, observed_statistics
from kbatch.log.gaps import SegmentGap, are_rewritten
from kbatch.log.logs import Log
from kbatch.log.segment import Segment
from kbatch.report.buckets import OFFSET_WIDTHS, TIME_WIDTHS, Buckets
from kbatch.report.damage_map import DamageMap
from kbatch.report.keys import KeyCounts, KeyFigures
from kbatch.report.producer_sums import ProducerSums
from kbatch.report.transaction_history import ShownTransaction, TransactionHistory
from kbatch.table import RecordTable
from kbatch.transactions.opened import Begun

__all__ = [
    "DAY",
    "DURATION_EDGES",
    "SIZE_EDGES",
    "LogCollector",
    "LogFigures",
    "SizeFigures",
    "TopicFigures",
    "TopicSums",
    "collect",
]

DAY = 86_400_000
# The limits of the bars of histograms: powers of two, and durations in milliseconds.
SIZE_EDGES: npt.NDArray[np.int64] = np.append(0, np.int64(1) << np.arange(32, dtype=np.int64))
DURATION_EDGES = np.array([0, 1000, 60_000, 600_000, 3_600_000, 21_600_000, DAY], np.int64)
# The buckets of a log that are kept.
_TIMES, _OFFSETS = 128, 64


@dataclass(frozen=True, slots=True)
class SizeFigures:
    """A distribution: its figures as `Distribution.to_dict` has them, and how many numbers are from each edge on."""

    figures: dict[str, Any]
    counts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, numbers: Distribution, edges: npt.NDArray[np.int64] = SIZE_EDGES) -> SizeFigures:
        """Return the figures of a distribution."""
        return cls(numbers.to_dict(), np.diff(np.append(numbers.below(edges), numbers.count)))


@dataclass(slots=True)
class LogFigures:
    """What is known about one log.

    Attributes
    ----------
    name, path : str
    topic : str
    statistics : dict
        As `LogStatistics.to_dict`.
    times : Buckets
        Records by their timestamps, with their stored bytes, and how many are tombstones.
    offsets : Buckets
        Records by their offsets, control records included.
    hanging, left_open : int
        Open transactions that a broker would have aborted before the end of the log, and since then.
    start_offset : int
        Of the first segment.
    first_time, last_time : int
        The smallest and the largest timestamp of records, without those in the future; -1 without any.
    timed, late, without_time, from_future, appended : int
        Records with a plausible timestamp of a producer; of these, those with an earlier one than a record before; the
        records without a timestamp, or with one that is more than a day after now; and those with the time of the
        append.
    max_late : int
        Milliseconds.
    rewritten, horizons : int
        Batches that the log cleaner has written, and with a delete horizon.
    removed_inside, removed_between, removed_segments, lost_offsets : int
        Missing offsets: within batches, between batches, between segments, and those that damage or a gap of unknown
        cause explains.
    """

    name: str
    path: str
    topic: str
    times: Buckets = field(default_factory=lambda: Buckets(TIME_WIDTHS, 2))
    offsets: Buckets = field(default_factory=lambda: Buckets(OFFSET_WIDTHS, 0, limit=4 * _OFFSETS))
    producers: ProducerSums = field(default_factory=ProducerSums)
    damage: DamageMap | None = None
    statistics: dict[str, Any] = field(default_factory=dict)
    transactions: list[ShownTransaction] = field(default_factory=list)
    ends: Buckets | None = None
    hanging: int = 0
    left_open: int = 0
    start_offset: int = 0
    first_time: int = -1
    last_time: int = -1
    timed: int = 0
    late: int = 0
    max_late: int = 0
    without_time: int = 0
    from_future: int = 0
    appended: int = 0
    rewritten: int = 0
    horizons: int = 0
    removed_inside: int = 0
    removed_between: int = 0
    removed_segments: int = 0
    lost_offsets: int = 0


@dataclass(slots=True)
class TopicFigures:
    """What is known about the logs of one topic together; `keys` is None if the sketches are not installed."""

    topic: str
    logs: list[LogFigures]
    batch_records: SizeFigures
    batch_bytes: SizeFigures
    record_bytes: SizeFigures
    lateness: SizeFigures
    durations: SizeFigures
    keys: KeyFigures | None


class TopicSums:
    """The distributions and keys of a topic while its logs are read."""

    def __init__(self) -> None:
        self.keys = KeyCounts.make()
        self.lateness, self.durations = Distribution(), Distribution()
        self.batch_records, self.batch_bytes, self.record_bytes = Distribution(), Distribution(), Distribution()

    def figures(self, topic: str, logs: list[LogFigures]) -> TopicFigures:
        """Return the figures of a topic whose logs are read."""
        return TopicFigures(
            topic,
            logs,
            batch_records=SizeFigures.of(self.batch_records),
            batch_bytes=SizeFigures.of(self.batch_bytes),
            record_bytes=SizeFigures.of(self.record_bytes),
            lateness=SizeFigures.of(self.lateness, DURATION_EDGES),
            durations=SizeFigures.of(self.durations, DURATION_EDGES),
            keys=None if self.keys is None else self.keys.figures(),
        )


class LogCollector:
    """Observes the pass over one log, whose figures are still empty.

    Parameters
    ----------
    figures : LogFigures
    segments : sequence of Segment
        Empty for a partition of a cluster.
    topic : TopicSums
    now : int
        Milliseconds since the epoch.
    """

    def __init__(self, figures: LogFigures, segments: Sequence[Segment], topic: TopicSums, now: int) -> None:
        self.figures = figures
        self.figures.damage = self._damage = DamageMap(segments)
        self._topic = topic
        self._history = TransactionHistory()
        self._now, self._last_plausible = now, now + DAY
        self._is_live = not segments
        # The largest timestamp so far.
        self._latest = -1
        self._place: TablePlace | None = None
        # The last offset of the batches so far in a segment, and whether bytes were lost after it.
        self._last_offset = -1
        self._is_lost = False

    def add_table(self, place: TablePlace, table: RecordTable) -> None:
        """Collect a table; see `LogObserver`."""
        self._damage.add(place, table)
        self._add_offsets(place, table)
        batches, records = table.batches, table.records
        if not len(records):
            return
        is_control = (batches["magic"] == 2) & (batches["attributes"] & ATTRIBUTE_CONTROL != 0)
        self.figures.offsets.add(np.ascontiguousarray(records["offset"]))
        of_batch = np.bincount(records["batch"], minlength=len(batches))
        data = np.flatnonzero((of_batch > 0) & ~is_control)
        self.figures.producers.add(batches[data], of_batch[data])
        if is_control.any():
            records = records[~is_control[records["batch"]]]
        if len(records):
            self._add_records(table, records, of_batch)

    def _add_records(self, table: RecordTable, records: npt.NDArray[np.void], of_batch: npt.NDArray[np.int64]) -> None:
        """Collect records that are not control records."""
        figures, batches = self.figures, table.batches
        timestamps, batch = np.ascontiguousarray(records["timestamp"]), records["batch"]
        key_lengths = records["key_len"]
        has_key = key_lengths >= 0
        tombstones = has_key & (records["value_len"] < 0)
        # The stored bytes of a batch in equal parts to its records.
        stored = (batches["size"] / np.maximum(of_batch, 1))[batch]
        is_timed = timestamps >= 0
        figures.without_time += int(np.count_nonzero(~is_timed))
        columns = (timestamps, stored, tombstones.astype(np.float64))
        figures.times.add(*(columns if is_timed.all() else (each[is_timed] for each in columns)))
        self._add_range(timestamps[is_timed & (timestamps <= self._last_plausible)])
        is_created = TimestampType.of(batches) == TimestampType.CREATE_TIME
        if not is_created.all():
            figures.appended += int(np.count_nonzero(is_timed & ~is_created[batch]))
            is_timed &= is_created[batch]
        is_future = is_timed & (timestamps > self._last_plausible)
        if is_future.any():
            figures.from_future += int(np.count_nonzero(is_future))
            is_timed &= ~is_future
        self._add_lateness(timestamps if is_timed.all() else timestamps[is_timed])
        if self._topic.keys is not None:
            positions = records["key_pos"]
            if not has_key.all():
                positions, key_lengths = positions[has_key], key_lengths[has_key]
            self._topic.keys.add(positions, key_lengths, table.data)

    def _add_range(self, timestamps: npt.NDArray[np.int64]) -> None:
        if len(timestamps):
            figures, first = self.figures, int(timestamps.min())
            figures.first_time = first if figures.first_time < 0 else min(figures.first_time, first)
            figures.last_time = max(figures.last_time, int(timestamps.max()))

    def _add_lateness(self, timestamps: npt.NDArray[np.int64]) -> None:
        if not len(timestamps):
            return
        figures = self.figures
        latest = np.maximum(np.maximum.accumulate(timestamps), self._latest)
        self._latest = int(latest[-1])
        late = latest - timestamps
        late = late[late > 0]
        figures.timed += len(timestamps)
        figures.late += len(late)
        if len(late):
            figures.max_late = max(figures.max_late, int(late.max()))
            self._topic.lateness.add(late)

    def _add_offsets(self, place: TablePlace, table: RecordTable) -> None:
        """Count the missing offsets within batches and between them."""
        if place is not self._place:
            self._place, self._is_lost = place, False
            self._last_offset = max(self._last_offset, (place.base_offset or 0) - 1)
        figures = self.figures
        batches = table.batches[BatchStatus.sound(table.batches["status"])]
        losses = table.losses
        if not len(batches):
            self._is_lost |= bool(losses)
            return
        is_new = batches["magic"] == 2
        figures.rewritten += int(np.count_nonzero(are_rewritten(batches)))
        figures.horizons += int(np.count_nonzero(is_new & (batches["attributes"] & ATTRIBUTE_DELETE_HORIZON != 0)))
        first, last = first_offsets(batches), batches["last_offset"]
        is_counted = (batches["record_count"] >= 0) & is_new
        inside = np.where(is_counted, last - batches["base_offset"] + 1 - batches["record_count"], 0)
        figures.removed_inside += int(np.maximum(inside, 0).sum())
        previous = np.append(np.int64(self._last_offset), last[:-1])
        between = np.maximum(first - previous - 1, 0)
        # The number of losses before each batch.
        before = np.searchsorted(losses.positions, batches["position"]) if losses else np.zeros(len(batches), np.intp)
        is_lost = np.diff(before, prepend=0) > 0
        is_lost[0] |= self._is_lost
        figures.lost_offsets += int(between[is_lost].sum())
        figures.removed_between += int(between[~is_lost].sum())
        self._last_offset = max(self._last_offset, int(last[-1]))
        self._is_lost = bool(before[-1] < len(losses))

    def add_gaps(self, gaps: Sequence[SegmentGap]) -> None:
        """Collect the gaps after a segment; see `LogObserver`."""
        self._damage.add_gaps(gaps)
        for gap in gaps:
            if gap.compacted:
                self.figures.removed_segments += gap.offset_count
            else:
                self.figures.lost_offsets += gap.offset_count

    def add_transaction(self, begun: Begun, kind: int, last_offset: int, last_timestamp: int) -> None:
        """Collect a transaction that ended; see `LogObserver`."""
        self._history.add(begun, kind, last_offset, last_timestamp)

    def finish(self, statistics: LogStatistics) -> LogFigures:
        """Return the figures, and add the distributions to those of the topic."""
        figures, topic, history = self.figures, self._topic, self._history
        figures.statistics = statistics.to_dict()
        # Open transactions are listed below; there may be many.
        figures.statistics["open_transactions"] = []
        last_time = self._latest if self._latest >= 0 else statistics.last_timestamp
        if self._is_live:
            last_time = self._now
        figures.transactions = history.longest(statistics.open_transactions, last_time, self._now)
        figures.ends, figures.hanging, figures.left_open = history.ends, history.hanging, history.left_open
        figures.times.limited(_TIMES)
        figures.offsets.limited(_OFFSETS)
        if not self._damage.count:
            figures.damage = None
        topic.durations.merge(history.durations)
        topic.batch_records.merge(statistics.records_per_batch)
        topic.batch_bytes.merge(statistics.batch_bytes)
        topic.record_bytes.merge(statistics.record_bytes)
        return figures


def _empty_figures(log: Log) -> LogFigures:
    mark = "" if log.mark is None else f" ({log.mark})"
    is_named = log.topic is not None and not log.path.endswith(".log")
    name = f"{log.topic}-{log.partition}{mark}" if is_named else log.path
    figures = LogFigures(name, log.path, log.topic if log.topic is not None else log.path)
    figures.start_offset = (log.segments[0].base_offset or 0) if log.segments else 0
    return figures


def collect(logs: Sequence[Log], now: int, progress: Callable[[int, int], None] | None = None) -> list[TopicFigures]:
    """Read logs once, and return the figures of their topics.

    Parameters
    ----------
    logs : sequence of Log
        The logs of a topic are adjacent.
    now : int
        Milliseconds since the epoch: later timestamps are wrong.
    progress : callable, optional
        Called with the bytes of segments that were read, and the bytes of all.
    """
    total, done = sum(log.size for log in logs), 0
    topics: list[TopicFigures] = []
    found: list[LogFigures] = []
    sums = TopicSums()
    for number, log in enumerate(logs):
        collector = LogCollector(_empty_figures(log), log.segments, sums, now)

        def show(read: int, before: int = done) -> None:
            if progress is not None:
                progress(before + read, total)

        found.append(collector.finish(observed_statistics(log.segments, collector, progress=show)))
        done += log.size
        if number + 1 == len(logs) or logs[number + 1].topic != log.topic or log.topic is None:
            topics.append(sums.figures(found[0].topic, found))
            found, sums = [], TopicSums()
    return topics
