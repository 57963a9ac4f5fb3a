"""The tables of a live read: batches of responses are decoded like those of a log, and rows are selected."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from dataclasses import replace

from kbatch.format import BatchStatus
from kbatch.live.broker_errors import BrokerError
from kbatch.live.cluster import Cluster, PartitionKey
from kbatch.live.coordinator import CommittedOffset
from kbatch.live.counters import ConsumerMetrics, ReadCounters
from kbatch.live.data_loss import DataLoss
from kbatch.live.fetch_state import NO_END, RESPONSES, FetchedBatches, FetchLimits, PartitionFetch
from kbatch.live.fetched_tables import fetched_tables
from kbatch.live.gathering import BatchGathering
from kbatch.live.group_reading import GroupReading
from kbatch.live.group_state import MEMBERSHIP_ERRORS, GroupChange
from kbatch.live.live_options import LiveOptions
from kbatch.live.live_partitions import LivePartition, resolved_bounds
from kbatch.live.live_read import LiveRead, PartitionChanges, ReadPolicy
from kbatch.log.conversions import last_rows, warn_if_after_end
from kbatch.log.log_bounds import LogBound
from kbatch.log.read_arguments import ReadArguments
from kbatch.log.row_filter import RowFilter
from kbatch.table import RecordTable

__all__ = ["LiveTables"]

# The smallest response size to request, even with little memory.
_MIN_RESPONSE = 64 << 10
# Larger responses are not faster, and the first one arrives later.
_MAX_RESPONSE = 64 << 20
# The last records are first searched among this number of offsets, then among four times as many.
_SEARCHED_OFFSETS = 1024


class LiveTables:
    """The records of partitions between their bounds.

    Parameters
    ----------
    cluster : Cluster
        It is closed with this object.
    logs : list of LivePartition
    arguments : ReadArguments
        `max_bytes` is for everything: half of it for responses, and a quarter for a table.
    options : LiveOptions
    counters : ReadCounters
    follows : bool
        Whether the read has no end.
    watch : callable, optional
        Called with the partitions that are being read; returns new ones.
    group : GroupReading, optional
        It is closed with this object.

    Attributes
    ----------
    ranges : dict of (topic, partition) to (int, int)
    positions : dict of (topic, partition) to CommittedOffset
        The offset after the last batch whose records were all returned.
    counters : ReadCounters
    loss : DataLoss
    is_closed : bool
    holds_commits : bool
        Whether automatic commits are suspended, because the caller has not yet received the returned tables.
    """

    def __init__(
        self,
        cluster: Cluster,
        logs: list[LivePartition],
        arguments: ReadArguments,
        options: LiveOptions,
        counters: ReadCounters,
        *,
        follows: bool = False,
        watch: Callable[[Container[PartitionKey]], list[LivePartition]] | None = None,
        group: GroupReading | None = None,
    ) -> None:
        self._cluster = cluster
        self._arguments = arguments
        self._watch = watch
        self._watch_at = time.monotonic() + cluster.settings.metadata_max_age_ms / 1000
        self._group = group
        self._follows = follows
        self.holds_commits = False
        self.is_closed = False
        self._logs: list[LivePartition] = []
        self._by_key: dict[PartitionKey, LivePartition] = {}
        self._rows: dict[PartitionKey, RowFilter] = {}
        self._fetches: dict[PartitionKey, PartitionFetch] = {}
        self.ranges: dict[PartitionKey, tuple[int, int]] = {}
        self.positions: dict[PartitionKey, CommittedOffset] = {}
        self.counters = counters
        self.loss = DataLoss(options.fail_on_data_loss, counters, self._move)
        self._bounds = arguments.bounds(logs)
        self._add_logs(logs, self._bounds)
        if group is not None:
            group.begin(self._by_key)
        choices = self._rows.values() or [arguments.rows(LogBound(), LogBound())]
        needed = dict.fromkeys(name for rows in choices for name in rows.columns)
        self._selected = arguments.decode.table_columns
        self._options = arguments.decode
        if self._selected is not None and needed:
            # Rows are selected by these columns, so they are decoded even if the table does not have them.
            self._options = replace(self._options, columns=tuple(dict.fromkeys((*self._selected, *needed))))
        self._reads: list[LiveRead] = []
        gathering = BatchGathering(options, max(arguments.max_bytes // 4, 1))
        self._policy = ReadPolicy(gathering, self.loss, counters)

    def _add_logs(self, logs: Sequence[LivePartition], bounds: Sequence[tuple[LogBound, LogBound]]) -> None:
        """Add partitions, with the offsets at which their reads begin and end."""
        isolation = self._arguments.decode.isolation
        offsets = resolved_bounds(self._cluster, logs, bounds, isolation)
        group = self._group
        starts: Mapping[PartitionKey, CommittedOffset] = {}
        if group is not None and group.begins_committed:
            starts = group.commits.starts(logs, group.is_new, self.loss)
        for log, bound, (start, stop) in zip(logs, bounds, offsets, strict=True):
            key = (log.metadata.name, log.number)
            self._logs.append(log)
            self._by_key[key] = log
            self._rows[key] = self._arguments.rows(*bound)
            self.positions[key] = starts.get(key, CommittedOffset(start))
            self.ranges[key] = (self.positions[key].offset, max(stop, self.positions[key].offset))

    @property
    def follows(self) -> bool:
        """Whether the read has no end."""
        return self._follows

    @property
    def group(self) -> GroupReading | None:
        """The group of the read."""
        return self._group

    @property
    def lag(self) -> dict[PartitionKey, int]:
        """The number of offsets from the position of each partition to its end in the last response."""
        return {
            key: max(fetch.end_offset - self.positions[key].offset, 0)
            for key, fetch in self._fetches.items()
            if fetch.end_offset >= 0
        }

    @property
    def metrics(self) -> ConsumerMetrics:
        """A snapshot of the counters."""
        return self.counters.snapshot(self.lag)

    def _move(self, key: PartitionKey, offset: int) -> None:
        """Note that the read of a partition resumes at another offset."""
        if key in self.positions:
            self.positions[key] = CommittedOffset(offset)

    def close(self) -> None:
        """End the read, leave the group, and close all connections."""
        self.is_closed = True
        for read in list(self._reads):
            read.close()
        if self._group is not None:
            self._group.close()
        self._cluster.close()

    def commit(self, positions: Mapping[PartitionKey, CommittedOffset] | None = None) -> None:
        """Commit positions, by default those of all partitions; errors as for `GroupCommits.commit`."""
        assert self._group is not None
        self._group.commits.commit(self.positions if positions is None else positions)

    def commit_automatically(self, positions: Mapping[PartitionKey, CommittedOffset] | None = None) -> None:
        """Commit if commits are automatic; warn if the membership has ended, as Kafka's clients do."""
        if self._group is None or not self._group.auto_commit or self.holds_commits or self.is_closed:
            return
        try:
            self.commit(positions)
        except (BrokerError, ValueError) as error:
            if self.is_closed:
                # Another thread has closed the consumer.
                return
            if not isinstance(error, BrokerError) or error.code not in MEMBERSHIP_ERRORS:
                raise
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)

    def tables(self) -> Generator[RecordTable, None, None]:
        """Yield the tables with records or losses; without a group, close the connections at the end.

        Warns
        -----
        RuntimeWarning
            If there are no records because the start is relative to now.
        """
        last = self._arguments.last
        is_empty = True
        is_complete = False
        try:
            if last is not None:
                for table in self._last(last):
                    is_empty = is_empty and not len(table)
                    self.counters.records += len(table)
                    yield table
                    del table
            if last is None or self._follows:
                for table in self._within(self._rest(last is not None), self):
                    is_empty = is_empty and not len(table)
                    self.counters.records += len(table)
                    yield table
                    del table
            if is_empty and self._group is None:
                warn_if_after_end(self._logs, self._bounds)
            self.commit_automatically()
            self.counters.report_if_due(lambda: self.lag, is_last=True)
            is_complete = self._group is not None
        finally:
            # A caller may commit after the last table.
            if not is_complete:
                self.close()

    def _rest(self, is_after: bool) -> Mapping[PartitionKey, tuple[int, int]]:
        """Return the ranges from their start, or with `is_after` from their end on; without an end if it follows."""
        return {key: (stop if is_after else start, self._stop(stop)) for key, (start, stop) in self.ranges.items()}

    # -- changes of the partitions

    def poll(self, read: LiveRead) -> None:
        """Commit the processed offsets, and change the partitions; all tables so far were returned."""
        try:
            self._poll(read)
        except (BrokerError, ValueError):
            # Another thread has closed the consumer.
            if not self.is_closed:
                raise

    def _poll(self, read: LiveRead) -> None:
        self.commit_automatically()
        self.counters.report_if_due(lambda: self.lag)
        member = None if self._group is None else self._group.member
        if member is not None:
            member.state.wake_reader = read.wake
            change = member.state.request()
            if change is not None:
                self._reassign(change, read)
                member.state.acknowledge(change)
                # Otherwise auto.offset.reset=latest would skip the records that arrive before the next commit.
                self.commit_automatically()
        if self._watch is not None and time.monotonic() >= self._watch_at:
            read.add(self._new_fetches(self._watch(self._by_key)))
            self._watch_at = time.monotonic() + self._cluster.settings.metadata_max_age_ms / 1000

    @property
    def is_complete(self) -> bool:
        """Whether the read ends when all its partitions are read."""
        member = None if self._group is None else self._group.member
        return not self._follows and (member is None or member.state.is_settled)

    def _reassign(self, change: GroupChange, read: LiveRead) -> None:
        """Give up partitions that are no longer assigned, and begin with new ones."""
        assert self._group is not None
        self.counters.rebalances += 1
        revoked = self._by_key.keys() - change.assigned
        read.drop(self._fetches[key] for key in revoked)
        if not change.is_lost:
            self.commit_automatically({key: self.positions[key] for key in revoked})
        for key in revoked:
            for found in (self._by_key, self._rows, self._fetches, self.ranges, self.positions):
                del found[key]
        self._logs = list(self._by_key.values())
        added = change.assigned - self._by_key.keys()
        if added:
            read.add(self._new_fetches(self._group.located(added, self._arguments.decode.isolation)))

    def _new_fetches(self, logs: Sequence[LivePartition]) -> list[PartitionFetch]:
        """Return the fetches of assigned partitions, or of new ones, which begin with their first record."""
        has_bounds = self._group is not None and self._group.member is not None
        self._add_logs(logs, self._arguments.bounds(logs) if has_bounds else [(LogBound(), LogBound())] * len(logs))
        ranges = {key: self.ranges[key] for key in [(log.metadata.name, log.number) for log in logs]}
        return self._add_fetches({key: (start, self._stop(stop)) for key, (start, stop) in ranges.items()})

    def _stop(self, stop: int) -> int:
        return NO_END if self._follows else stop

    def _add_fetches(self, ranges: Mapping[PartitionKey, tuple[int, int]]) -> list[PartitionFetch]:
        """Create the fetches of ranges of offsets, replacing earlier fetches of these partitions."""
        for key, (start, stop) in ranges.items():
            log, position = self._by_key[key], self.positions[key]
            self._fetches[key] = PartitionFetch(
                *key,
                log.metadata.id,
                start,
                stop,
                # The batch before a committed offset must be in the log (KIP-320).
                last_epoch=position.leader_epoch if position.offset == start else -1,
                may_begin_later=start <= log.start_offset and position.leader_epoch < 0,
            )
        return [self._fetches[key] for key in ranges]

    # -- tables

    def _within(
        self, ranges: Mapping[PartitionKey, tuple[int, int]], changes: PartitionChanges | None = None
    ) -> Iterator[RecordTable]:
        """Yield the tables between offsets."""
        for key, (start, _) in ranges.items():
            if self.positions[key].offset != start:
                self.positions[key] = CommittedOffset(start)
        read = LiveRead(self._cluster, self._add_fetches(ranges), self._sizes, self._options, self._policy, changes)
        self._reads.append(read)
        for batches in read.batches():
            if batches.fetch.is_stopped:
                continue
            yield from self._decoded(batches, read, changes)
            del batches
        read.close()
        self._reads.remove(read)

    @property
    def _sizes(self) -> FetchLimits:
        topics = [log.metadata for log in self._logs]
        if self._group is not None and self._group.subscription is not None:
            topics = self._group.subscription.topics
        leaders = {leader.broker for topic in topics for leader in topic.partitions.values()}
        size = max(self._arguments.max_bytes // 2 // (RESPONSES * max(len(leaders), 1)), _MIN_RESPONSE)
        return FetchLimits.of(self._cluster.settings, min(size, _MAX_RESPONSE))

    def _decoded(
        self, batches: FetchedBatches, read: LiveRead, changes: PartitionChanges | None
    ) -> Iterator[RecordTable]:
        """Decode the batches of a response."""
        fetch = batches.fetch
        key = (fetch.topic, fetch.partition)
        rows: RowFilter = self._rows[key]
        consumed = 0
        for table in fetched_tables(batches, self._options, self._arguments.max_bytes // 4):
            has_losses = bool(table.losses)
            consumed += table.consumed
            is_last = has_losses and self._options.on_error == "stop"
            self.positions[key] = _position_after(table, batches, consumed, self.positions[key], is_last)
            if len(table) or has_losses:
                chosen = rows.chosen(table)
                del table
                if len(chosen) or has_losses:
                    yield chosen if self._selected is None or not rows.columns else chosen.select(self._selected)
                    del chosen
                    if changes is not None:
                        changes.poll(read)
                    if fetch.is_stopped:
                        return
            if is_last:
                fetch.is_stopped = True
                return
        self.positions[key] = _later(self.positions[key], batches.following, batches.epoch, fetch.stop)

    def _last(self, count: int) -> Iterator[RecordTable]:
        """Yield the last `count` records of each partition, searching its tables from the end."""
        if count == 0:
            return
        found: dict[PartitionKey, list[RecordTable]] = {key: [] for key in self.ranges}
        rest = dict.fromkeys(self.ranges, count)
        stops = {key: stop for key, (start, stop) in self.ranges.items() if start < stop}
        # Under "stop", damage decides which records are the last ones, so all of them are read.
        span = max(count, _SEARCHED_OFFSETS) if self._options.on_error != "stop" else NO_END
        while stops:
            searched = {key: (max(self.ranges[key][0], stop - span), stop) for key, stop in stops.items()}
            tables: dict[PartitionKey, list[RecordTable]] = {key: [] for key in searched}
            for table in self._within(searched):
                assert table.topic is not None
                assert table.partition is not None
                tables[table.topic, table.partition].append(table)
            for key, each in tables.items():
                kept = list(last_rows(each, rest[key]))
                rest[key] -= sum(map(len, kept))
                found[key][:0] = kept
            stops = {key: start for key, (start, _) in searched.items() if rest[key] and start > self.ranges[key][0]}
            span *= 4
        for key in self.ranges:
            yield from (table for table in found[key] if len(table) or table.losses)


def _position_after(
    table: RecordTable, batches: FetchedBatches, consumed: int, before: CommittedOffset, is_last: bool
) -> CommittedOffset:
    """Return the offset after the last whole batch of a table, or of the response if it is the last table."""
    if consumed >= batches.size and not is_last:
        return _later(before, batches.following, batches.epoch, batches.fetch.stop)
    rows = table.batches
    rows = rows[BatchStatus.sound(rows["status"]) & (rows["position"] + rows["size"] <= consumed)]
    if not len(rows):
        return before
    return _later(before, int(rows["last_offset"][-1]) + 1, int(rows["partition_leader_epoch"][-1]), batches.fetch.stop)


def _later(before: CommittedOffset, following: int, epoch: int, stop: int) -> CommittedOffset:
    """Return the offset after a batch, bounded by the earlier position and the end of the read."""
    offset = min(following, stop)
    return CommittedOffset(offset, epoch) if offset > before.offset else before
