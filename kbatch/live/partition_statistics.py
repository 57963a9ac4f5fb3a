"""The statistics of live partitions, from the batches that brokers send."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.live.cluster import Cluster, PartitionKey
from kbatch.live.fetch_state import FetchedBatches, FetchLimits, PartitionFetch
from kbatch.live.live_partitions import LivePartition, chosen_partitions
from kbatch.live.live_read import LiveRead, ReadPolicy
from kbatch.log.check.statistics import LogCounter, LogObserver, LogStatistics
from kbatch.log.reading import TABLE_BYTES
from kbatch.log.topics import TopicChoice
from kbatch.read.in_memory import decode_tables

__all__ = ["count_partitions", "partition_statistics"]

_RESPONSE_BYTES = 16 << 20


class _PartitionPlace(NamedTuple):
    """The `TablePlace` of a partition."""

    path: str
    base_offset: int


class _CountedPartition:
    """The statistics of a partition up to the end that it had when the read began."""

    def __init__(self, log: LivePartition, *, headers_only: bool, observer: LogObserver | None) -> None:
        self._place = _PartitionPlace(f"{log.topic}-{log.number}", log.start_offset)
        self._observer = observer
        self.counter = LogCounter(headers_only=headers_only, observer=observer)
        # Positions count from the first batch that was fetched.
        self._origin = 0
        self.fetch = PartitionFetch(
            log.metadata.name, log.number, log.metadata.id, log.start_offset, log.end_offset, may_begin_later=True
        )

    @property
    def left(self) -> int:
        """The number of offsets that are not counted yet."""
        return max(self.fetch.stop - self.fetch.position, 0)

    def add(self, batches: FetchedBatches) -> None:
        """Count the batches of a response."""
        fetch, origin = self.fetch, self._origin
        options = replace(self.counter.options, start_offset=batches.start, stop_offset=fetch.stop, threads=0)
        data: npt.NDArray[np.uint8] = batches.data
        source = f"broker {batches.broker}, {fetch.name}"
        for table in decode_tables(data, options, origin=origin, source=source, max_bytes=TABLE_BYTES):
            rows = table.batches
            if options.framing_only:
                # Batches outside of the range have rows too.
                rows = rows[(rows["base_offset"] < fetch.stop) & (rows["last_offset"] >= batches.start)]
            self.counter.statistics.bytes += int(rows["size"].sum()) + int(table.losses.lengths.sum())
            chosen = table._with(batches=rows) if len(rows) < len(table.batches) else table
            self.counter.add(chosen, lambda start, end: data[start - origin : end - origin])
            if self._observer is not None:
                self._observer.add_table(self._place, chosen)
            del table, chosen
        self._origin += len(data)


def partition_statistics(
    cluster: Cluster,
    topics: TopicChoice,
    partitions: Iterable[int] | None,
    *,
    headers_only: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[tuple[LivePartition, LogStatistics]]:
    """Fetch the batches of partitions, up to the ends that they have now, and compute their statistics.

    Parameters
    ----------
    cluster : Cluster
    topics, partitions
        As for `kbatch.consume`.
    headers_only : bool
        As for `kbatch.log.check.statistics.log_statistics`.
    progress : callable, optional
        Called with the number of bytes counted so far, and the number of remaining offsets.

    Raises
    ------
    BrokerError, AuthenticationError, ValueError
        As for `kbatch.consume`.
    """
    logs = chosen_partitions(cluster, topics, partitions, "read_uncommitted")
    return list(zip(logs, count_partitions(cluster, logs, headers_only=headers_only, progress=progress), strict=True))


def count_partitions(
    cluster: Cluster,
    logs: Sequence[LivePartition],
    *,
    headers_only: bool = False,
    progress: Callable[[int, int], None] | None = None,
    observers: Sequence[LogObserver] | None = None,
) -> list[LogStatistics]:
    """Compute the statistics of partitions as `partition_statistics` does; each has an observer, or none has one."""
    found: dict[PartitionKey, _CountedPartition] = {
        (log.metadata.name, log.number): _CountedPartition(
            log, headers_only=headers_only, observer=None if observers is None else observers[number]
        )
        for number, log in enumerate(logs)
    }
    if not found:
        return []
    limits = FetchLimits.of(cluster.settings, _RESPONSE_BYTES)
    counted = list(found.values())
    read = LiveRead(cluster, [each.fetch for each in counted], limits, counted[0].counter.options, ReadPolicy.strict())
    try:
        for batches in read.batches():
            found[batches.fetch.topic, batches.fetch.partition].add(batches)
            if progress is not None:
                size = sum(each.counter.statistics.bytes for each in counted)
                progress(size, sum(each.left for each in counted))
            del batches
    finally:
        read.close()
    return [each.counter.result() for each in counted]
