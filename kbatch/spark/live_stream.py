"""``spark.readStream.format("kbatch").option("kafka.bootstrap.servers", ...)``: a live cluster in micro-batches."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kbatch.backoff import Backoff
from kbatch.live.broker_errors import BrokerError
from kbatch.live.cluster import LATEST as LOG_END
from kbatch.live.cluster import UNKNOWN_TOPIC, Cluster, TopicMetadata, topic_exists
from kbatch.live.cluster_source import ClusterSource
from kbatch.live.live_partitions import LivePartition, located_partitions, selected_partitions
from kbatch.live.live_ranges import LiveRange
from kbatch.log.missing import report_data_loss
from kbatch.log.resolving import check_partitions
from kbatch.plan.arrow_batches import Transform, transformed_batches
from kbatch.plan.cluster_history import ClusterHistory
from kbatch.plan.live_tasks import LiveTask, live_task_tables, times_as_offsets
from kbatch.plan.positions import Position
from kbatch.plan.read_options import EARLIEST, LATEST
from kbatch.plan.tasks import task_options
from kbatch.plan.trigger_limits import shares
from kbatch.plan.watching import TopicPartition
from kbatch.spark.driver_log import log_origins
from kbatch.spark.micro_batches import MicroBatchReader, partition_name
from kbatch.spark.source_api import InputPartition
from kbatch.spark.stream_offsets import MISSING, Offsets, Places
from kbatch.spark.stream_options import StreamReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KbatchLiveStreamReader"]

# Seconds for which partitions may be absent: a broker that has just started may not have all metadata.
_ABSENT_SECONDS = 5.0


class KbatchLiveStreamReader(MicroBatchReader):
    """Follows the topics of a cluster. The driver looks up offsets; tasks fetch, or read files of the history.

    Parameters
    ----------
    source : ClusterSource
        Its settings and its history are not part of the offsets, and so not of a checkpoint.
    options : StreamReadOptions
    columns : tuple of str
    values : Transform, optional
        Applied to each Arrow batch.
    """

    def __init__(
        self,
        source: ClusterSource,
        options: StreamReadOptions,
        columns: tuple[str, ...],
        values: Transform | None = None,
    ) -> None:
        super().__init__(options, columns, values)
        self.settings = source._settings
        self._history = ClusterHistory(source.history, options.read.storage)
        self._cluster: Cluster | None = None
        self._states: dict[TopicPartition, LivePartition] = {}
        # The offset after the last record of each partition; its `end_offset` may be the last stable offset.
        self._record_ends: Offsets = {}

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a pickled reader, and all of them the same one: without the state.
        options = replace(self.options, read=task_options(self.options.read), starting=LATEST)
        return KbatchLiveStreamReader(ClusterSource(self.settings), options, self.columns, self.values).__dict__

    # -- methods that Spark calls

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the ranges of one partition."""
        tables = live_task_tables(self.settings, partition.value or (), self.options.read, self.columns)
        return transformed_batches(tables, self.columns, self.options.read, self.values)

    def stop(self) -> None:
        """Close the connections."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # -- where partitions begin and end

    @property
    def _live(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self.settings)
        return self._cluster

    def _poll(self, known: Sequence[TopicPartition], *, checks: bool = False) -> dict[TopicPartition, LivePartition]:
        """Look up the partitions and their offsets; those that are known may be absent for some seconds."""
        deadline = time.monotonic() + _ABSENT_SECONDS
        backoff = Backoff(self.settings.retry_backoff_ms, 1000)
        while True:
            is_over = time.monotonic() > deadline
            chosen = selected_partitions(self._live, self.options.read.selection, checks=checks)
            found = {(topic.name, number) for topic, number in chosen}
            if is_over or found.issuperset(known):
                self._check_deleted({topic for topic, _ in known} - {topic for topic, _ in found})
                try:
                    return self._located(chosen)
                except BrokerError as error:
                    # A topic was deleted meanwhile.
                    if is_over or error.code not in UNKNOWN_TOPIC:
                        raise
            time.sleep(backoff.next_seconds())

    def _check_deleted(self, topics: Iterable[str]) -> None:
        """Raise if topics are absent from metadata although they may exist, as those that ACLs hide do."""
        for topic in sorted(topics):
            topic_exists(self._live, topic)

    def _located(self, chosen: Sequence[tuple[TopicMetadata, int]]) -> dict[TopicPartition, LivePartition]:
        isolation = self.options.read.isolation
        logs = located_partitions(self._live, chosen, isolation)
        states = {(log.metadata.name, log.number): log for log in logs}
        self._record_ends = {key: log.end_offset for key, log in states.items()}
        if isolation == "read_committed":
            topics = [topic for topic, _ in chosen]
            listed = self._live._listed_offsets(dict.fromkeys(states, LOG_END), "read_uncommitted", topics)
            self._record_ends = {key: end.offset or 0 for key, end in listed.items()}
        return states

    def _starts(self) -> Offsets:
        options, read = self.options, self.options.read
        states = self._states = self._poll((), checks=read.topic_pattern is None)
        bound, starting = read.starting, options.starting
        if bound.timestamp is None:
            named = None if isinstance(starting, int) else starting
            check_partitions("starting", bound.timestamps or named, states.keys(), read.selection)
        if bound.timestamp is None and bound.timestamps is None:
            return {
                (topic, number): self._named_start(
                    (topic, number), state, starting if isinstance(starting, int) else starting[topic][number]
                )
                for (topic, number), state in states.items()
            }
        by_partition = bound.timestamps if bound.timestamp is None else None
        times = [bound.timestamp if by_partition is None else by_partition[topic][number] for topic, number in states]
        found = times_as_offsets(self._live, list(states.values()), times, read)
        return {
            key: self._timed_start(key, state, time, offset)
            for (key, state), time, offset in zip(states.items(), times, found, strict=True)
        }

    def _named_start(self, key: TopicPartition, state: LivePartition, offset: int) -> int:
        if offset in (EARLIEST, LATEST):
            return state.start_offset if offset == EARLIEST else state.end_offset
        nearest = min(max(offset, state.start_offset), self._record_ends[key])
        if nearest != offset:
            self._lose(
                f"{partition_name(key)}: startingOffsets names offset {offset}, but {self._available(key, state)}"
            )
        return nearest

    def _timed_start(self, key: TopicPartition, state: LivePartition, time: int | None, offset: int | None) -> int:
        if offset is None and not self.options.read.latest_if_no_timestamp:
            raise ValueError(
                f"{partition_name(key)}: no record at or after timestamp {time}; with "
                "startingOffsetsByTimestampStrategy=latest such a partition starts at its end"
            )
        return state.end_offset if offset is None else offset

    def _ends_now(self, before: Places) -> Offsets:
        states = self._states = self._poll(list(before))
        begin = self._begin(before)
        return {key: self._end(key, state, begin.get(key, state.start_offset)) for key, state in states.items()}

    def _end(self, key: TopicPartition, state: LivePartition, start: int) -> int:
        """Return where a partition ends; not before `start` if records after the last stable offset were read."""
        return start if state.end_offset < start <= self._record_ends[key] else state.end_offset

    def _begin(self, before: Places) -> Offsets:
        begin = {key: place.next_offset for key, place in before.items()}
        for key, state in self._states.items():
            if key in before and _recreated(before[key], state):
                begin[key] = state.start_offset
        return begin

    def _place(self, key: TopicPartition, offset: int, before: Position | None) -> Position:
        state = self._states.get(key)
        if state is None:
            return Position(offset)
        if before is not None and before.next_offset == offset and not _recreated(before, state):
            return before
        return Position(offset, None if state.end_epoch < 0 else state.end_epoch, _topic_id(state))

    def _limited(self, begin: Offsets, ends: Offsets) -> Offsets:
        # Offsets below the first one that exists are deleted; `_range` reports them.
        starts = {
            key: max(begin.get(key, 0), self._states[key].start_offset) if key in self._states else begin.get(key, 0)
            for key in ends
        }
        backlog = {key: end - starts[key] for key, end in ends.items() if end > starts[key]}
        if self._waits(backlog):
            return begin
        if self.options.max_offsets is None:
            return ends
        return {**ends, **{key: starts[key] + each for key, each in shares(backlog, self.options.max_offsets).items()}}

    def _measure(self, begin: Offsets, ends: Offsets) -> dict[str, Offsets]:
        missing = {}
        for key, stop in ends.items():
            state = self._states.get(key)
            # A partition that is new to a query that runs is read from offset 0 on.
            start = begin.get(key, 0)
            missing[key] = 0 if state is None else max(0, min(max(start, state.start_offset), stop) - start)
        return {MISSING: missing}

    # -- micro-batches

    def _tasks(self, begin: Places, until: Places) -> Sequence[LiveTask]:
        gone = sorted(begin.keys() - until.keys())
        if gone:
            self._lose(
                f"{', '.join(map(partition_name, gone))}: the topic-partition no longer exists, or the options no "
                f"longer choose it; read up to {[begin[key].next_offset for key in gone]}{_other_topics(begin, until)}"
            )
        changed = {key: place for key, place in until.items() if begin.get(key) != place}
        states = self._poll(list(changed)) if changed else {}
        found: list[tuple[LivePartition, LiveRange]] = []
        for key, stop in changed.items():
            state = states.get(key)
            planned = self._range(key, begin.get(key), stop, state)
            if state is not None and planned is not None:
                found.append((state, planned))
        tasks = self._history.tasks(found, self.options.read)
        if self._history.paths:
            log_origins(tasks)
        return tasks

    def _range(
        self, key: TopicPartition, before: Position | None, until: Position, state: LivePartition | None
    ) -> LiveRange | None:
        """Return the range of offsets of a partition that can be read; report the offsets that cannot."""
        name, stop = partition_name(key), until.next_offset
        first = 0 if before is None or _other_id(before, until.topic_id) else before.next_offset
        if state is None:
            if first < stop:
                self._lose(f"{name}: the topic-partition no longer exists; offsets {first} to {stop - 1} were not read")
            return None
        if changed := _recreated(until, state):
            if first < stop:
                self._lose(
                    f"{name}: offsets {first} to {stop - 1} were not read: after the read was planned, {changed}; "
                    f"{self._available(key, state)}"
                )
            return None
        start = self._start(key, before, state)
        if stop < start:
            self._lose(
                f"{name}: the end moved back from offset {start} to {stop} (truncated); {self._available(key, state)}"
            )
            return None
        if start < state.start_offset:
            if before is None:
                lost = f"a partition that is new to the query begins at offset {state.start_offset} instead of 0"
            else:
                lost = f"offsets {start} to {min(state.start_offset, stop) - 1} were deleted before they were read"
            self._lose(f"{name}: {lost}; {self._available(key, state)}")
            start = state.start_offset
        if stop > (end := self._record_ends[key]):
            self._lose(
                f"{name}: offsets {max(start, end)} to {stop - 1} no longer exist (truncated); "
                f"{self._available(key, state)}"
            )
            stop = end
        if start >= stop:
            return None
        epoch = -1 if until.leader_epoch is None else until.leader_epoch
        return LiveRange(*key, state.metadata.id, epoch, start, stop)

    def _start(self, key: TopicPartition, before: Position | None, state: LivePartition) -> int:
        """Return where the read of a partition goes on: at its position, unless what was before it is gone."""
        if before is None:
            return 0
        ended = f"{partition_name(key)}: the last micro-batch ended before offset {before.next_offset}, but "
        if changed := _recreated(before, state):
            self._lose(f"{ended}{changed}; {self._available(key, state)}")
            return state.start_offset
        if before.leader_epoch is None or before.leader_epoch == state.end_epoch:
            return before.next_offset
        found = state.epoch_end(before.leader_epoch)
        if found is None or found.offset >= before.next_offset:
            return before.next_offset
        self._lose(
            f"{ended}the records from offset {found.offset} on are no longer in the log: a leader without them was "
            f"elected (leader epoch {before.leader_epoch} ends there); {self._available(key, state)}"
        )
        return max(found.offset, state.start_offset)

    def _lose(self, message: str) -> None:
        report_data_loss(message, fails=self.options.read.fail_on_data_loss, kind=BrokerError)

    def _available(self, key: TopicPartition, state: LivePartition) -> str:
        end = self._record_ends[key]
        if state.start_offset >= end:
            return f"no offset is available now, and the next one will be {end}"
        return f"the first offset available is now {state.start_offset} and the last one {end - 1}"


def _topic_id(state: LivePartition) -> str | None:
    return None if state.metadata.id == uuid.UUID(int=0) else str(state.metadata.id)


def _other_id(place: Position, topic_id: str | None) -> bool:
    return bool(place.changed_id(topic_id))


def _other_topics(begin: Places, until: Places) -> str:
    """Return what shows that topics of partitions that are gone were recreated, with fewer partitions, or nothing."""
    changed: dict[str, str] = {}
    for (topic, partition), place in begin.items():
        if (topic, partition) not in until:
            ids = {each.topic_id for (name, _), each in until.items() if name == topic}
            changed[topic] = next(filter(None, map(place.changed_id, ids)), "")
    return "".join(f"; {topic}: {text}" for topic, text in sorted(changed.items()) if text)


def _recreated(place: Position, state: LivePartition) -> str:
    """Return what shows that the topic of a place was recreated, or nothing."""
    topic_id = _topic_id(state)
    if text := place.changed_id(topic_id):
        return text
    if None in (place.topic_id, topic_id) and 0 <= state.end_epoch < (place.leader_epoch or 0):
        # Leader epochs do not decrease.
        return f"the topic was recreated: its leader epoch was {place.leader_epoch}, and is now {state.end_epoch}"
    return ""
