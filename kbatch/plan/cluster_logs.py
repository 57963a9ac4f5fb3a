"""The partitions of a cluster as the logs of an export: the offsets to read, and changes since the last run.

This module looks up offsets. `kbatch.plan.cluster_tasks` has the ranges that tasks read.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kbatch.batches.framing import scan_part
from kbatch.live.cluster import LATEST, Cluster, PartitionKey
from kbatch.live.leader_requests import EpochEnd
from kbatch.live.live_partitions import LivePartition, located_partitions, selected_partitions
from kbatch.live.live_ranges import LiveRange
from kbatch.live.live_sampling import sample_partitions
from kbatch.log.log_bounds import LogBound
from kbatch.log.missing import MissingOffsets
from kbatch.log.resolving import log_bounds
from kbatch.log.store.segment_file import Tail
from kbatch.options import Crc, On
from kbatch.plan.cluster_history import ClusterHistory
from kbatch.plan.cluster_tasks import ClusterRange
from kbatch.plan.live_tasks import resolved_ranges
from kbatch.plan.positions import (
    ChangeKind,
    LogChange,
    Position,
    Positions,
    checksum_bits,
    record_checksum,
    report_unrecognized,
)
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import Task, divide_parts
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.in_memory import decode_part

__all__ = ["ClusterLog", "ClusterLogs", "ClusterRead"]

# The number of places of a topic where the size of records is estimated, and the bytes to fetch at each.
_SIZED_PLACES = 8
_SIZED_BYTES = 256 << 10
# A topic with fewer offsets has one such place.
_FEW_OFFSETS = 10_000
# The estimate for a topic without a whole batch at these places.
_UNKNOWN_BYTES = 100.0
_NO_TAIL = Tail("none", 0, 0, None)


@dataclass(eq=False)
class ClusterLog:
    """A partition of a cluster as the log of an export, with its offsets when it was listed.

    Attributes
    ----------
    live : LivePartition
    high_watermark : int
        The end of the log; under read_committed the last stable offset may be before it.
    density : float
        The estimated bytes per offset.
    url : str
        The URL of the cluster.
    """

    live: LivePartition
    high_watermark: int
    density: float
    url: str

    # A live log has no incomplete end.
    incomplete_tail = _NO_TAIL

    @property
    def topic(self) -> str:
        """The topic."""
        return self.live.metadata.name

    @property
    def partition(self) -> int:
        """The number of the partition."""
        return self.live.number

    @property
    def key(self) -> PartitionKey:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def path(self) -> str:
        """The name for messages."""
        return f"{self.url} {self.topic}-{self.partition}"

    @cached_property
    def topic_id(self) -> uuid.UUID | None:
        """The topic's id; None if the broker is older than Kafka 2.8."""
        return self.live.metadata.id if self.live.metadata.id.int else None

    @property
    def start_offset(self) -> int:
        """The first offset."""
        return self.live.start_offset

    @property
    def end_offset(self) -> int:
        """The offset at which a read ends: the high watermark, or under read_committed the last stable offset."""
        return self.live.end_offset

    @property
    def size(self) -> int:
        """The estimated bytes of the log."""
        return self.bytes_between(self.start_offset, self.end_offset)

    def bytes_between(self, start: int, stop: int) -> int:
        """Return the estimated bytes of a range of offsets."""
        return round(max(stop - max(start, self.start_offset), 0) * self.density)

    def batch_with(self, offset: int) -> tuple[np.void, npt.NDArray[np.uint8]] | None:
        """Return the row of the batch with an offset, and the bytes fetched from it on; None if no batch has it."""
        if not self.start_offset <= offset < self.high_watermark:
            return None
        data = self.live.fetched(offset, 1, "fetch of the batch before the position")
        rows = scan_part(data).batches
        rows = rows[(rows["base_offset"] <= offset) & (rows["last_offset"] >= offset)]
        return (rows[0], data) if len(rows) else None


@dataclass(frozen=True)
class ClusterRead:
    """The part of a partition that a run reads.

    Attributes
    ----------
    range : ClusterRange
        Its `records` are 0 if there is nothing to read.
    missing : list of MissingOffsets
        Offsets that the options name and the log does not have.
    withheld : int
        Under read_committed, the number of selected offsets from the last stable offset on.
    """

    range: ClusterRange
    missing: list[MissingOffsets]
    withheld: int


class ClusterLogs:
    """The partitions of a cluster that the options of an export select.

    Parameters
    ----------
    cluster : Cluster
    url : str
        The name of the cluster for messages.
    options : ReadOptions
    history : ClusterHistory, optional
        Files from which tasks read instead of fetching.
    """

    def __init__(self, cluster: Cluster, url: str, options: ReadOptions, history: ClusterHistory | None = None) -> None:
        self._cluster = cluster
        self._url = url
        self._options = options
        self._history = history
        # Bytes per offset, by topic.
        self._densities: dict[str, float] = {}

    def listed(self, keys: Sequence[PartitionKey] | None = None) -> list[ClusterLog]:
        """Return the current partitions; with `keys` only these.

        Raises
        ------
        BrokerError, AuthenticationError
            If a topic does not exist or may not be read, or no broker can be reached.
        ValueError
            If a pattern matches no topic, or a partition does not exist.
        """
        chosen = selected_partitions(self._cluster, self._options.selection)
        if keys is not None:
            known = set(keys)
            chosen = [(topic, number) for topic, number in chosen if (topic.name, number) in known]
        isolation = self._options.isolation
        logs = located_partitions(self._cluster, chosen, isolation)
        ends: Mapping[PartitionKey, int | None] = {}
        if isolation == "read_committed" and logs:
            ends = self._cluster.offsets({(log.metadata.name, log.number): LATEST for log in logs})
        self._estimate(logs)
        return [
            ClusterLog(
                log,
                max(ends.get((log.metadata.name, log.number)) or 0, log.end_offset),
                self._densities.get(log.metadata.name, _UNKNOWN_BYTES),
                self._url,
            )
            for log in logs
        ]

    # -- sizes and samples

    def _estimate(self, logs: Sequence[LivePartition]) -> None:
        """Estimate the bytes per offset of topics for which it is unknown."""
        topics: dict[str, list[LivePartition]] = {}
        for log in logs:
            if log.metadata.name not in self._densities and log.start_offset < log.end_offset:
                topics.setdefault(log.metadata.name, []).append(log)
        for topic, of_topic in topics.items():
            size = offsets = 0
            for data in _data_at_places(of_topic):
                rows = scan_part(data).batches
                size += int(rows["size"].sum())
                offsets += int(rows["last_offset"][-1] - rows["base_offset"][0]) + 1 if len(rows) else 0
            if offsets > 0:
                self._densities[topic] = size / offsets

    def learn(self, topic: str, size: int, offsets: int) -> None:
        """Set the bytes per offset of a topic from the result of a run."""
        if size > 0 and offsets > 0:
            self._densities[topic] = size / offsets

    def density(self, topic: str) -> float:
        """Return the estimated bytes per offset of a topic."""
        return self._densities.get(topic, _UNKNOWN_BYTES)

    def sampled(
        self, logs: Sequence[ClusterLog], on: On, crc: Crc = "verify", starts: Sequence[int | None] | None = None
    ) -> list[bytes]:
        """Return keys or values from places spread over the offsets of logs; `starts` limits them to later offsets."""
        starts = [None] * len(logs) if starts is None else starts
        rest = [
            log.live if start is None else replace(log.live, start_offset=max(start, log.start_offset))
            for log, start in zip(logs, starts, strict=True)
        ]
        return sample_partitions(rest, on, crc)

    def batches(self, logs: Sequence[ClusterLog]) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield batches from places spread over the offsets of logs."""
        yield from _data_at_places([log.live for log in logs])

    # -- changes since the last run

    def continued(self, logs: Sequence[ClusterLog], positions: Positions) -> tuple[list[int | None], list[LogChange]]:
        """Return the offset at which each log continues, and the changes since the last run.

        As `kbatch.plan.positions.continued_starts`. A position from another source is accepted only if the topic has
        the same id, or the record or batch before the position is the same.
        """
        starts: list[int | None] = []
        changes: list[LogChange] = []
        unrecognized: list[str] = []
        for log in logs:
            position = positions.get(log.key)
            change = None if position is None else self._change_of(log, position, unrecognized)
            if change is not None:
                changes.append(change)
            next_offset = None if position is None else position.next_offset
            starts.append(next_offset if change is None else change.resumed_at)
        report_unrecognized(unrecognized)
        return starts, changes

    def _change_of(self, log: ClusterLog, position: Position, unrecognized: list[str]) -> LogChange | None:
        first, end, next_offset = log.start_offset, log.high_watermark, position.next_offset
        kind: ChangeKind
        if text := position.changed_id(None if log.topic_id is None else str(log.topic_id)):
            kind, resumed = "recreated", first
            text += ", or this is another cluster"
        elif end < next_offset:
            epoch_end = self._end_of_epoch(log, position)
            kind, resumed = "truncated", max(first, end if epoch_end is None else min(epoch_end.offset, end))
            text = f"the log was truncated: its end is now offset {end}"
        elif first > next_offset:
            kind, resumed = "deleted", first
            text = f"offsets {next_offset} to {first - 1} were deleted: the first offset available is {first}"
        elif (epoch_end := self._end_of_epoch(log, position)) is not None and epoch_end.offset < next_offset:
            kind, resumed = "truncated", max(first, epoch_end.offset)
            text = "the log was truncated and written again: the records of leader epoch "
            text += f"{position.leader_epoch} end now at offset {epoch_end.offset}"
        else:
            changed = _changed_records(log, position)
            if not changed:
                if changed is None:
                    unrecognized.append(f"{log.topic}-{log.partition}")
                return None
            kind, resumed, text = "recreated", first, changed
        name = f"{log.topic}-{log.partition}"
        reason = f"{name}: the last run ended before offset {next_offset}, but {text} ({self._url})"
        return LogChange(log.topic, log.partition, kind, next_offset, resumed, reason)

    def _end_of_epoch(self, log: ClusterLog, position: Position) -> EpochEnd | None:
        """Return the end of the records with the leader epoch of a position or an earlier epoch (KIP-320)."""
        epoch = position.leader_epoch
        # Without a later election, the log was not truncated.
        if epoch is None or epoch == log.live.metadata.partitions[log.partition].epoch:
            return None
        return log.live.epoch_end(epoch)

    # -- plans

    def planned(
        self,
        logs: Sequence[ClusterLog],
        options: ReadOptions,
        starts: Sequence[int | None],
        stops: Sequence[int | None] | None = None,
    ) -> list[ClusterRead]:
        """Plan the read of each log; arguments and errors are as for `kbatch.plan.planner.plan_reads`."""
        if not logs:
            return []
        stops = [None] * len(logs) if stops is None else stops
        live = [log.live for log in logs]
        bounds = [
            (
                starting if start is None else LogBound(start),
                ending if stop is None else LogBound(stop),
            )
            for (starting, ending), start, stop in zip(log_bounds(live, options.selection), starts, stops, strict=True)
        ]
        found = resolved_ranges(self._cluster, live, bounds, options)
        reads = []
        for log, bound, begin, (each, missing) in zip(logs, [stop for _, stop in bounds], starts, found, strict=True):
            # Records after a position must not be skipped, even if they are the first records of the log.
            planned = each if begin is None else replace(each, may_begin_later=False)
            reads.append(ClusterRead(ClusterRange.of(planned, log.density), missing, _withheld(log, each, bound)))
        return reads

    def divided(
        self, logs: Sequence[ClusterLog], ranges: Sequence[ClusterRange], options: ReadOptions
    ) -> list[Task[ClusterRange]]:
        """Divide ranges among tasks of about ``split_bytes``, at the beginnings of batches.

        With ``on_error="stop"`` one task reads a range, because only the reader of all of it knows where it stops.
        """
        by_key = {log.key: log for log in logs}
        parts: list[ClusterRange] = []
        if self._history is not None:
            self._history.look_for([(each.topic, each.partition) for each in ranges if each.records])
        for each in ranges:
            if each.records:
                parts += self._parts(by_key[each.topic, each.partition], each, options)
        return [Task(ClusterRange.joined(task)) for task in divide_parts(parts, options)]

    def _parts(self, log: ClusterLog, whole: ClusterRange, options: ReadOptions) -> Iterator[ClusterRange]:
        """Yield the parts of a range of about ``split_bytes``."""
        found = [whole] if self._history is None else self._history.parts(log.live, whole, options)
        for each in found:
            count = -(-each.bytes // options.split_bytes)
            if each.is_history or count < 2 or options._for_topic(each.topic).on_error == "stop":
                yield each
            else:
                yield from each.cut(self._cuts(log, each, count))

    def _cuts(self, log: ClusterLog, each: ClusterRange, count: int) -> list[int]:
        """Return the base offsets of batches that divide a range into about equal parts."""
        cuts: list[int] = []
        for number in range(1, count):
            data = log.live.fetched(each.start + each.records * number // count, 1, "fetch of a batch")
            rows = scan_part(data).batches
            if len(rows) and max([each.start, *cuts[-1:]]) < rows["base_offset"][0] < each.stop:
                cuts.append(int(rows["base_offset"][0]))
        return cuts


def _withheld(log: ClusterLog, planned: LiveRange, ending: LogBound) -> int:
    """Return the number of offsets from the last stable offset on that a read requests."""
    if planned.stop < log.end_offset:
        return 0
    asked = log.high_watermark if ending.offset is None else min(ending.offset, log.high_watermark)
    return max(asked - max(log.end_offset, planned.start), 0)


def _data_at_places(logs: Sequence[LivePartition]) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the batches at places spread evenly over the offsets of partitions."""
    ends = np.cumsum([max(log.end_offset - log.start_offset, 0) for log in logs])
    total = int(ends[-1]) if len(ends) else 0
    places = min(total, 1 if total < _FEW_OFFSETS else _SIZED_PLACES)
    for place in range(places):
        target = total * (2 * place + 1) // (2 * places)
        number = int(np.searchsorted(ends, target, "right"))
        offset = logs[number].end_offset - (int(ends[number]) - target)
        yield logs[number].fetched(offset, _SIZED_BYTES, "fetch of a sample")


def _changed_records(log: ClusterLog, position: Position) -> str | None:
    """Return why a log is not the log of a position, or "" if it is the same log.

    None if the log cannot be recognized, so that it may be the log of the last run.
    """
    offset = position.next_offset - 1
    if (position.topic_id is not None and log.topic_id is not None) or offset < 0:
        return ""
    if position.batch_crc is not None and offset >= log.start_offset:
        found = log.batch_with(offset)
        if found is not None:
            row, data = found
            if checksum_bits(int(row["crc"])) == checksum_bits(position.batch_crc):
                return ""
            table = decode_part(data, DecodeOptions(on_error="skip", start_offset=offset, stop_offset=offset + 1))
            if len(table) and position.record_crc is not None:
                if record_checksum(table, 0) == position.record_crc:
                    return ""
                return f"the log is another one: the record with offset {offset} is not the one that was exported last"
    if position.topic_id is None and log.topic_id is None:
        # Both are from a cluster without topic ids, or nothing is known about the log that was exported first.
        return None
    return (
        f"nothing shows that this is the log that was exported: only one of both has a topic id, and the record with "
        f"offset {offset} is not there unchanged"
    )
