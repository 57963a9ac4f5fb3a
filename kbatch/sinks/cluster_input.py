"""A cluster as the input of an export, with the same runs, tasks and commits as log directories."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kbatch.backoff import Backoff
from kbatch.error_codes import ErrorCode
from kbatch.errors import KbatchError, LogDirectoryError
from kbatch.live.broker_errors import BrokerError
from kbatch.live.cluster import UNKNOWN_TOPIC, topic_exists
from kbatch.live.cluster_source import ClusterSource
from kbatch.options import Crc, Isolation, On
from kbatch.plan.cluster_history import ClusterHistory
from kbatch.plan.cluster_logs import ClusterLog, ClusterLogs
from kbatch.plan.cluster_tasks import ClusterRange, ClusterReader
from kbatch.plan.planner import LogRead, Mapper
from kbatch.plan.positions import LogChange, Positions
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import Task
from kbatch.plan.watching import TopicPartition
from kbatch.sinks.offset_windows import VerifiedLog
from kbatch.table import RecordTable

__all__ = ["ClusterInput", "ClusterState", "opened_partitions"]

# Seconds for which topics may be unknown while an export follows them: a broker that has just started may not have all
# metadata, and a topic may be deleted to be recreated.
_DELETED_SECONDS = 5.0
_ABSENT_PAUSE_MS = 200
# A run that fails with one of these is repeated: the next run compares the positions with the current partitions.
_CHANGED = (*UNKNOWN_TOPIC, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.OFFSET_OUT_OF_RANGE)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A partition at the last poll; a `kbatch.plan.backlog.FollowedState`.

    Attributes
    ----------
    path : str
        The name of the partition.
    start_offset, end_offset : int
        Under read_committed, the end is the last stable offset.
    topic_id : str or None
    topic : str
    """

    path: str
    start_offset: int
    end_offset: int
    topic_id: str | None
    topic: str


class ClusterInput:
    """The topics of a cluster; a `kbatch.sinks.run_input.RunInput`.

    Connections are opened when they are needed, and stay open until `close`.

    Parameters
    ----------
    source : ClusterSource
        The cluster; offsets that its history has are read from there.
    options : ReadOptions
    """

    def __init__(self, source: ClusterSource, options: ReadOptions) -> None:
        self._source = source
        self._url = source.url
        self._cluster = source._connected()
        self._options = options
        history = ClusterHistory(source.history, source.storage_options) if source.history else None
        self._logs = ClusterLogs(self._cluster, self._url, options, history)
        self._states: dict[TopicPartition, ClusterState] = {}
        self._unknown_at: float | None = None

    @property
    def name(self) -> str:
        """The URL of the cluster, without settings."""
        return self._url

    @property
    def reader(self) -> ClusterReader:
        """The reader of the tasks of a run, which is stopped with it."""
        return ClusterReader(self._source._settings, self._source._transport, self._source.storage_options)

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def logs(self) -> list[ClusterLog]:
        """Return the partitions that the options select."""
        return self._chosen(None)

    def _chosen(self, keys: Sequence[TopicPartition] | None) -> list[ClusterLog]:
        logs = self._logs.listed(keys)
        if not logs and keys is None:
            raise LogDirectoryError(f"{self._url}: the options exclude all of the topic-partitions", source=self._url)
        return logs

    def continued(self, logs: Sequence[ClusterLog], positions: Positions) -> tuple[list[int | None], list[LogChange]]:
        """Compare the positions with the partitions."""
        return self._logs.continued(logs, positions)

    def sampled(self, logs: Sequence[ClusterLog], on: On, crc: Crc, starts: Sequence[int | None] | None) -> list[bytes]:
        """Return keys or values."""
        return self._logs.sampled(logs, on, crc, starts)

    def plans_fast(self, logs: Sequence[ClusterLog], options: ReadOptions, starts: Sequence[int | None]) -> bool:
        """Return True: planning takes a few requests to each broker."""
        return True

    def plan(
        self,
        logs: Sequence[ClusterLog],
        options: ReadOptions,
        starts: Sequence[int | None],
        stops: Sequence[int | None] | None,
        mapper: Mapper | None = None,
    ) -> list[LogRead]:
        """Plan the reads by offsets."""
        return [
            LogRead(
                each.range.start,
                each.range.stop,
                each.missing,
                None,
                [each.range] if each.range.records else [],
                each.withheld,
            )
            for each in self._logs.planned(logs, options, starts, stops)
        ]

    def samples(self, logs: Sequence[ClusterLog]) -> Iterator[tuple[Any, bool]]:
        """Yield batches of partitions."""
        return ((data, True) for data in self._logs.batches(logs))

    def divide(self, logs: Sequence[ClusterLog], reads: Sequence[LogRead], options: ReadOptions) -> Sequence[Task[Any]]:
        """Divide the ranges of offsets among tasks."""
        return self._logs.divided(logs, [each for read in reads for each in read.splits], options)

    # -- following

    def bytes_after(self, state: ClusterState, offset: int) -> int:
        """Return the estimated bytes from an offset on."""
        return round(max(state.end_offset - offset, 0) * self._logs.density(state.topic))

    def poll(self) -> Mapping[TopicPartition, ClusterState]:
        """Ask for the offsets of all partitions."""
        try:
            logs = self._logs.listed()
        except BrokerError as error:
            now = time.monotonic()
            self._unknown_at = now if self._unknown_at is None else self._unknown_at
            if error.code not in UNKNOWN_TOPIC or now - self._unknown_at > _DELETED_SECONDS:
                raise
            self._cluster._pause(Backoff(_ABSENT_PAUSE_MS, _ABSENT_PAUSE_MS))
            return self._states
        self._unknown_at = None
        self._states = {
            log.key: ClusterState(
                log.path,
                log.start_offset,
                log.end_offset,
                None if log.topic_id is None else str(log.topic_id),
                log.topic,
            )
            for log in logs
        }
        return self._states

    def reopened(self, states: Mapping[TopicPartition, Any]) -> list[ClusterLog]:
        """Ask for the offsets of some partitions, without topics that do not exist at the moment."""
        try:
            return self._chosen(list(states))
        except BrokerError as error:
            if error.code not in UNKNOWN_TOPIC:
                raise
            return []

    def begins(self, logs: Sequence[ClusterLog], options: ReadOptions, starts: Sequence[int | None]) -> list[int]:
        """Return the offset at which the read of each partition begins."""
        return [each.range.start for each in self._logs.planned(logs, options, starts)]

    def bytes_from(self, log: ClusterLog, begin: int, state: Any) -> int:
        """Return the estimated bytes of a partition from an offset on."""
        return max(1, log.bytes_between(begin, state.end_offset))

    def offset_after(self, log: ClusterLog, begin: int, size: int) -> int:
        """Return the offset after about `size` bytes."""
        return max(begin, log.start_offset) + max(1, int(size / max(log.density, 1e-9)))

    def has_log_changed(self, error: KbatchError) -> bool:
        """Whether the run failed because a topic was recreated, truncated or shortened meanwhile."""
        return isinstance(error, BrokerError) and error.code in _CHANGED

    def learn(self, topic: str, size: int, offsets: int) -> None:
        """Update the estimate of bytes with the result of a run."""
        self._logs.learn(topic, size, offsets)


class _PartitionOffsets:
    """A partition of a cluster; a `kbatch.sinks.offset_windows.VerifiedLog`."""

    def __init__(self, log: ClusterLog, source: ClusterSource) -> None:
        self._log = log
        self._reader = ClusterReader(source._settings, source._transport)

    @property
    def first_offset(self) -> int:
        return self._log.start_offset

    @property
    def end_offset(self) -> int:
        return self._log.high_watermark

    @property
    def size(self) -> int:
        return self._log.size

    def tables(self, start: int, stop: int, isolation: Isolation, *, include_control: bool) -> Iterator[RecordTable]:
        options = ReadOptions(
            isolation=isolation, include_control=include_control, on_error="skip", fail_on_data_loss=False
        )
        log = self._log.live
        planned = ClusterRange(
            log.metadata.name, log.number, log.metadata.id, log.end_epoch, start, stop, start <= log.start_offset
        )
        for _, table in self._reader.tables([planned], options, ("offset",)):
            yield table


def opened_partitions(
    source: ClusterSource, names: Sequence[TopicPartition], stack: contextlib.ExitStack
) -> dict[TopicPartition, VerifiedLog]:
    """Return the partitions that a cluster has; `stack` closes the connections."""
    cluster = stack.enter_context(source._connected())
    topics = tuple(topic for topic in sorted({topic for topic, _ in names}) if topic_exists(cluster, topic))
    if not topics:
        return {}
    logs = ClusterLogs(cluster, source.describe(), ReadOptions(topics=topics)).listed()
    wanted = set(names)
    return {log.key: _PartitionOffsets(log, source) for log in logs if log.key in wanted}
