"""Ranges of offsets of partitions, planned elsewhere as plain values, and their tables."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kbatch.batches.framing import scan_part
from kbatch.live.broker_errors import BrokerError
from kbatch.live.cluster import UNKNOWN_TOPIC, Cluster
from kbatch.live.counters import ReadCounters
from kbatch.live.data_loss import DataLoss
from kbatch.live.fetch_state import FetchedBatches, FetchLimits, PartitionFetch
from kbatch.live.fetched_tables import fetched_tables
from kbatch.live.gathering import BatchGathering
from kbatch.live.live_options import LiveOptions
from kbatch.live.live_read import LiveRead, ReadPolicy
from kbatch.log.missing import MissingOffsets
from kbatch.log.row_filter import RowFilter
from kbatch.read.decode_options import DecodeOptions
from kbatch.table import RecordTable

__all__ = ["LiveRange", "RangesInTurn", "range_tables", "tables_in_turn"]

# The size of the first response, which may contain all records of a small range; each later one is four times as
# large, up to the maximum.
_FIRST_RANGE_BYTES = 256 << 10
_LARGEST_RESPONSE = 8 << 20


@dataclass(frozen=True, slots=True)
class LiveRange:
    """The offsets of one partition that one task reads. It is pickled, so it holds only plain values.

    Attributes
    ----------
    topic, partition
    topic_id : UUID
        Zeros if the broker is older than Kafka 2.8.
    leader_epoch : int
        The epoch of the leader when the range was planned, or -1: no record before `stop` has a later epoch.
    start, stop : int
        `stop` is exclusive. A batch that crosses either is trimmed.
    may_begin_later : bool
        Whether `start` is the first offset of the log, so that retention may delete records after it.
    """

    topic: str
    partition: int
    topic_id: uuid.UUID
    leader_epoch: int
    start: int
    stop: int
    may_begin_later: bool = False

    @property
    def path(self) -> str:
        """The name for messages; a part of a log has a path instead."""
        return f"{self.topic}-{self.partition}"

    @property
    def records(self) -> int:
        """The number of offsets; some may have no record."""
        return max(self.stop - self.start, 0)

    def fetch(self) -> PartitionFetch:
        """Return the fetches of the range."""
        return PartitionFetch(
            self.topic,
            self.partition,
            self.topic_id,
            self.start,
            self.stop,
            leader_epoch=self.leader_epoch,
            planned_epoch=self.leader_epoch,
            may_begin_later=self.may_begin_later,
            soft_bytes=_FIRST_RANGE_BYTES,
        )


def range_tables(
    cluster: Cluster,
    ranges: Sequence[LiveRange],
    options: DecodeOptions,
    *,
    rows: RowFilter,
    max_bytes: int,
    fails: bool = True,
    missing: list[MissingOffsets] | None = None,
) -> Iterator[tuple[LiveRange, RecordTable]]:
    """Fetch and decode ranges of offsets; the tables of a range are in the order of their offsets.

    Parameters
    ----------
    cluster : Cluster
    ranges : sequence of LiveRange
        Of different partitions, or one range.
    options : DecodeOptions
        Without offsets.
    rows : RowFilter
        The records to select.
    max_bytes : int
        Limit on a table.
    fails : bool
        Whether it is an error if records of a range were deleted by retention or a truncation, or with their topic.
        Otherwise a warning is issued. Records that have replaced them are not returned.
    missing : list of MissingOffsets, optional
        The missing offsets are appended to it.

    Raises
    ------
    BrokerError, AuthenticationError
    KbatchError
        For damage, as the options state.
    """
    counters = ReadCounters()
    loss = DataLoss(fails, counters, lambda key, offset: None)
    policy = ReadPolicy(BatchGathering(LiveOptions(), 1), loss, counters)
    fetches = {id(fetch): (fetch, each) for each in ranges for fetch in [each.fetch()]}
    limits = FetchLimits.of(cluster.settings, _LARGEST_RESPONSE)
    read = LiveRead(cluster, [fetch for fetch, _ in fetches.values()], limits, options, policy)
    try:
        yield from _range_decoded(read, lambda fetch: fetches[id(fetch)][1], options, rows, max_bytes)
    except BrokerError as error:
        if fails or error.code not in UNKNOWN_TOPIC:
            raise
        # The topic was deleted.
        for fetch, _ in fetches.values():
            if fetch.position < fetch.stop and fetch.topic == error.topic:
                loss.end(fetch, f"the topic no longer exists: {error}", error.code, fetch.position)
    finally:
        read.close()
        if missing is not None:
            missing += loss.missing


class RangesInTurn:
    """Adds ranges to a read one after the other, so that their tables do not alternate.

    This is the `kbatch.live.live_read.PartitionChanges` of `tables_in_turn`.

    Parameters
    ----------
    ranges : iterable of LiveRange

    Attributes
    ----------
    current : LiveRange
        The range that is being read.
    """

    follows = False

    def __init__(self, ranges: Iterable[LiveRange]) -> None:
        self._rest = deque(ranges)
        self.current = self._rest[0]
        self._read: LiveRead | None = None
        self._is_stopped = False

    @property
    def is_complete(self) -> bool:
        """Whether all ranges have been added."""
        return not self._rest

    def stop(self) -> None:
        """Make the read end soon, with an error; another thread may call this."""
        self._is_stopped = True
        if self._read is not None:
            self._read.wake()

    def poll(self, read: LiveRead) -> None:
        """Add the next range if the previous one is read to its end."""
        self._read = read
        if self._is_stopped:
            raise ValueError("the read was stopped")
        if not read.unfinished and self._rest:
            self.current = self._rest.popleft()
            read.add([self.current.fetch()])


def tables_in_turn(
    cluster: Cluster, turns: RangesInTurn, options: DecodeOptions, loss: DataLoss, *, rows: RowFilter, max_bytes: int
) -> Iterator[tuple[LiveRange, RecordTable]]:
    """Fetch and decode ranges of offsets one after the other; arguments and errors are as for `range_tables`.

    `loss` decides whether missing records of a range are an error.
    """
    policy = ReadPolicy(BatchGathering(LiveOptions(), 1), loss, ReadCounters())
    read = LiveRead(cluster, [], FetchLimits.of(cluster.settings, _LARGEST_RESPONSE), options, policy, turns)
    try:
        yield from _range_decoded(read, lambda fetch: turns.current, options, rows, max_bytes)
    finally:
        read.close()


def _range_decoded(
    read: LiveRead,
    range_of: Callable[[PartitionFetch], LiveRange],
    options: DecodeOptions,
    rows: RowFilter,
    max_bytes: int,
) -> Iterator[tuple[LiveRange, RecordTable]]:
    """Yield the tables of a read, each with its range."""
    for batches in read.batches():
        if batches.fetch.is_stopped:
            continue
        each = range_of(batches.fetch)
        batches = _within(batches, each.stop)
        for table in fetched_tables(batches, options, max_bytes):
            is_last = options.on_error == "stop" and bool(table.losses)
            yield each, rows.chosen(table)
            del table
            if is_last:
                batches.fetch.is_stopped = True
                break
        del batches


def _within(batches: FetchedBatches, stop: int) -> FetchedBatches:
    """Omit batches that begin after the end of a range; another task reads them."""
    if batches.following <= stop:
        return batches
    found = scan_part(batches.data).batches
    beyond = np.flatnonzero(found["base_offset"] >= stop)
    return batches._replace(data=batches.data[: int(found["position"][beyond[0]])]) if len(beyond) else batches
