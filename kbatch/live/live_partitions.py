"""The partitions of a cluster as logs, from which the bounds of a read are resolved to offsets."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from kbatch.batches.framing import byte_array, scan_part
from kbatch.live.cluster import EARLIEST, LATEST, Cluster, PartitionKey, TopicMetadata
from kbatch.live.leader_requests import EpochEnd, end_of_epoch, fetch_alone
from kbatch.log.log_bounds import LogBound, start_of, stop_of
from kbatch.log.selection import LogChooser, Selection
from kbatch.log.source import Excludes
from kbatch.log.topics import TopicChoice, TopicFilter, partition_numbers
from kbatch.options import Isolation
from kbatch.protocol.messages import message_class

__all__ = ["LivePartition", "chosen_partitions", "located_partitions", "resolved_bounds", "selected_partitions"]

# The size to request for the header of the last batch; a broker returns the whole batch nevertheless.
_HEADER_BYTES = 1


@dataclass(eq=False)
class LivePartition:
    """A partition, with its offsets when the read began.

    Attributes
    ----------
    cluster : Cluster
    metadata : TopicMetadata
    number : int
    start_offset, end_offset : int
        The first offset, and the offset after the last record; under read_committed the last stable offset.
    end_epoch : int
        The epoch of the leader that listed the end, or -1 if unknown: no record before the end has a later epoch.
    """

    cluster: Cluster
    metadata: TopicMetadata
    number: int
    start_offset: int
    end_offset: int
    end_epoch: int = -1

    def __post_init__(self) -> None:
        self.topic: str | None = self.metadata.name
        self.partition: int | None = self.number

    @property
    def start_checkpoint(self) -> int | None:
        """The log start offset."""
        return self.start_offset

    @cached_property
    def last_timestamp(self) -> int | None:
        """The largest timestamp of the last batch, which is fetched."""
        if self.end_offset <= self.start_offset:
            return None
        batches = scan_part(self.fetched(self.end_offset - 1, _HEADER_BYTES, "fetch of the last batch")).batches
        return int(batches["max_timestamp"][-1]) if len(batches) else None

    def fetched(self, offset: int, size: int, action: str) -> npt.NDArray[np.uint8]:
        """Return about `size` bytes of batches from an offset on, at least one batch; `action` is for messages.

        Raises
        ------
        BrokerError, AuthenticationError
        """
        return byte_array(self._fetched(offset, size, action).records or b"")

    def _fetched(self, offset: int, size: int, action: str, *, isolation: int = 0) -> Any:
        cls: Any = message_class("FetchRequest")
        part = cls.FetchPartition(partition=self.number, fetch_offset=offset, partition_max_bytes=size)
        topic = cls.FetchTopic(topic=self.metadata.name, topic_id=self.metadata.id, partitions=[part])
        message = cls(max_bytes=size, min_bytes=0, isolation_level=isolation, topics=[topic])
        return fetch_alone(self.cluster, self.metadata, self.number, message, action)

    def has_no_records(self, start: int, stop: int) -> bool:
        """Whether the leader has no records from `start` on, although its high watermark is at least `stop`.

        Raises
        ------
        BrokerError, AuthenticationError
        """
        found = self._fetched(start, _HEADER_BYTES, "fetch of the end of the log")
        return not found.records and found.high_watermark >= stop

    def aborted_at(self, offset: int) -> list[tuple[int, int]]:
        """Return producer id and first offset of the aborted transactions that end at or after an offset.

        The offset must be below the last stable offset. All such transactions that begin before the end of the batch at
        this offset are listed; others may be listed too.

        Raises
        ------
        BrokerError, AuthenticationError
        """
        found = self._fetched(offset, _HEADER_BYTES, "fetch of the list of aborted transactions", isolation=1)
        return [(each.producer_id, each.first_offset) for each in found.aborted_transactions or ()]

    def epoch_end(self, epoch: int) -> EpochEnd | None:
        """Return the leader's last epoch up to `epoch`, and its end; None if it is unknown.

        Raises
        ------
        BrokerError, AuthenticationError
        """
        return end_of_epoch(self.cluster, self.metadata, self.number, epoch)


def chosen_partitions(
    cluster: Cluster,
    topics: TopicChoice | None,
    partitions: Iterable[int] | None,
    isolation: Isolation,
    known: Container[PartitionKey] = (),
    excludes: Excludes | None = None,
) -> list[LivePartition]:
    """Return the partitions that a read selects, by topic and number, except those that are `known` or excluded.

    Raises
    ------
    BrokerError, ValueError
        As `selected_partitions`.
    """
    selection = Selection(topics=topics, partitions=partition_numbers(partitions))
    chosen = selected_partitions(cluster, selection)
    if excludes is not None:
        chosen = [(topic, number) for topic, number in chosen if not excludes(topic.name, number)]
    return located_partitions(
        cluster, [(topic, number) for topic, number in chosen if (topic.name, number) not in known], isolation
    )


def selected_partitions(
    cluster: Cluster, selection: Selection, *, checks: bool = True
) -> list[tuple[TopicMetadata, int]]:
    """Return the partitions of a selection, by topic and number.

    Parameters
    ----------
    cluster : Cluster
    selection : Selection
    checks : bool
        Whether it is an error if a topic or partition that the selection names does not exist. Otherwise only existing
        ones are returned.

    Raises
    ------
    BrokerError
        If a topic does not exist.
    ValueError
        If a glob or pattern matches no topic, or no topic has one of the partitions.
    """
    choice = None if selection.topics is None else TopicFilter(selection.topics)
    # For names, no listing of all topics is needed; ACLs may hide topics from it.
    names: Iterable[str] | None = selection.assign
    if choice is not None and not choice.has_patterns:
        names = choice.names
    found = cluster.topics(names) if checks else cluster._present_topics(names)
    chooser = LogChooser(selection, roots=())
    chosen = [(topic, number) for topic in found for number in topic.partitions if chooser(topic.name, number)]
    if checks:
        chooser.check()
        numbers = selection.partitions
        if numbers is not None and (missing := sorted(numbers - {number for _, number in chosen})):
            raise ValueError(f"no chosen topic has partition {missing[0]}")
    return chosen


def located_partitions(
    cluster: Cluster, chosen: Sequence[tuple[TopicMetadata, int]], isolation: Isolation
) -> list[LivePartition]:
    """Return partitions with the offsets that they have now."""
    keys: list[PartitionKey] = [(topic.name, number) for topic, number in chosen]
    topics = [topic for topic, _ in chosen]
    starts = cluster._listed_offsets(dict.fromkeys(keys, EARLIEST), "read_uncommitted", topics)
    ends = cluster._listed_offsets(dict.fromkeys(keys, LATEST), isolation, topics)
    return [
        LivePartition(cluster, topic, number, starts[topic.name, number].offset or 0, end.offset or 0, end.epoch)
        for topic, number in chosen
        for end in [ends[topic.name, number]]
    ]


def resolved_bounds(
    cluster: Cluster, logs: Sequence[LivePartition], bounds: Sequence[tuple[LogBound, LogBound]], isolation: Isolation
) -> list[tuple[int, int]]:
    """Return the first offset to fetch of each partition, and the offset at which its read ends, exclusive."""
    found = []
    times: dict[PartitionKey, int] = {}
    for log, (start, stop) in zip(logs, bounds, strict=True):
        first, last = start_of(log, start), stop_of(log, stop)
        first = log.start_offset if first is None else first
        # A record without a timestamp has -1, which a broker does not look up.
        if start.timestamp is not None and start.timestamp >= 0:
            times[log.metadata.name, log.number] = start.timestamp
        found.append((max(first, log.start_offset), log.end_offset if last is None else min(last, log.end_offset)))
    if times:
        listed = cluster.offsets(times, isolation=isolation)
        for place, log in enumerate(logs):
            key = (log.metadata.name, log.number)
            if key in times:
                first, last = found[place]
                at = listed[key]
                found[place] = (last if at is None else max(first, at), last)
    return found
