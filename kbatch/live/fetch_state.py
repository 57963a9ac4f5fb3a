"""The state of the partitions of a live read, and the events that its threads report."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.live.broker_errors import BrokerError
from kbatch.live.settings import ClientSettings

__all__ = [
    "MIN_PARTITION_BYTES",
    "NO_END",
    "RESPONSES",
    "FetchEvent",
    "FetchLimits",
    "FetchedBatches",
    "PartitionFetch",
    "ResponseSlot",
]

# The stop of a partition that is read without an end.
NO_END = (1 << 63) - 1
# Responses of a broker that may be in memory: one is decoded, one waits for it, and one is received.
RESPONSES = 3
# The smallest share of a partition in a response that is divided: the default of Kafka's clients.
MIN_PARTITION_BYTES = 1 << 20


@dataclass(eq=False)
class PartitionFetch:
    """A partition of a read, and the progress of its fetches.

    Attributes
    ----------
    topic, partition, topic_id
    position : int
        The next offset to fetch.
    stop : int
        The offset at which the read ends, exclusive.
    leader_epoch : int
        The epoch of the leader to which the request is sent.
    last_epoch : int
        The leader epoch of the last batch that was received, or -1.
    planned_epoch : int or None
        The epoch of the leader when the range of offsets was planned, or -1; None if it was not planned. Different
        records at these offsets, from a recreated topic or a leader that lacks planned records, are not read.
    lost_position : int
        The position when the partition last had no broker to fetch from, or -1.
    may_begin_later : bool
        Whether the read begins at the earliest record and has received no records: retention may move the beginning.
    is_stopped : bool
        Whether the reader needs no more records: damage ended the read, or the partition was revoked.
    needed_bytes : int
        The minimum size to request, before other partitions, after a response without a whole valid batch; otherwise
        0.
    soft_bytes : int
        The maximum size of the next response, which grows with each response: a reader may need few records.
    waited : float
        Seconds of requests and pauses since the last record.
    lost : BrokerError or None
        Why the partition has no broker to fetch from.
    is_out_of_range : bool
        Whether the leader has refused the position.
    leader, replica : int
        The ids of the leader, and of the broker that it prefers for this client, or -1 (KIP-392).
    replica_until : float
        When to ask the leader again, by the monotonic clock.
    end_offset : int
        The end of the readable records according to the last response, or -1: the high watermark, or under
        read_committed the last stable offset.
    high_watermark : int
        According to the last response, or -1.
    is_questioned : bool
        Whether the reader has checked if compaction has removed the records that do not arrive.
    """

    topic: str
    partition: int
    topic_id: uuid.UUID
    position: int
    stop: int
    leader_epoch: int = -1
    last_epoch: int = -1
    planned_epoch: int | None = None
    lost_position: int = -1
    may_begin_later: bool = False
    is_stopped: bool = False
    needed_bytes: int = 0
    soft_bytes: int = NO_END
    waited: float = 0.0
    lost: BrokerError | None = None
    is_out_of_range: bool = False
    leader: int = -1
    replica: int = -1
    replica_until: float = 0.0
    end_offset: int = -1
    high_watermark: int = -1
    is_questioned: bool = False

    @property
    def name(self) -> str:
        """The name for messages."""
        return f"{self.topic}-{self.partition}"


class FetchLimits(NamedTuple):
    """Sizes and times of fetches.

    Attributes
    ----------
    response_bytes : int
        The size of a response; a larger first batch is received nevertheless.
    partition_bytes : int or None
        The size of the records of a partition in a response; None divides the response among the partitions.
    min_bytes, max_wait_ms : int
        The broker waits for this number of bytes, for at most this time.
    timeout : float
        Seconds without records after which a read with an end fails.
    rack : str
        The rack of this client, for reads from the closest replica, or an empty string.
    replica_seconds : float
        How long a replica that is not the leader is read before the leader is asked again.
    """

    response_bytes: int
    partition_bytes: int | None
    min_bytes: int
    max_wait_ms: int
    timeout: float
    rack: str
    replica_seconds: float

    @classmethod
    def of(cls, settings: ClientSettings, response_bytes: int) -> FetchLimits:
        """Return the limits in the settings; `response_bytes` is the default."""
        return cls(
            response_bytes if settings.fetch_max_bytes is None else settings.fetch_max_bytes,
            settings.max_partition_fetch_bytes,
            settings.fetch_min_bytes,
            settings.fetch_max_wait_ms,
            settings.default_api_timeout_ms / 1000,
            settings.client_rack or "",
            settings.metadata_max_age_ms / 1000,
        )


class ResponseSlot:
    """The memory of one response, released when its last records are no longer used."""

    __slots__ = ("_count", "_free", "_lock")

    def __init__(self, free: threading.Semaphore) -> None:
        self._free = free
        self._count = 1
        self._lock = threading.Lock()

    def hold(self) -> None:
        """Add a user."""
        with self._lock:
            self._count += 1

    def release(self) -> None:
        """Remove a user."""
        with self._lock:
            self._count -= 1
            is_last = not self._count
        if is_last:
            self._free.release()


class FetchedBatches(NamedTuple):
    """The batches of a partition in a response.

    Attributes
    ----------
    fetch : PartitionFetch
    broker : str
    data : ndarray of uint8
        A part of the receive buffer.
    start : int
        The offset that was fetched. The first batch may begin before it.
    aborted : list of (producer id, first offset), or None
    slot : ResponseSlot or None
        None if the data is a copy.
    size : int
        The bytes up to the end of the last valid batch.
    following, epoch : int
        The offset after that batch, and its leader epoch.
    is_damaged : bool
        Whether there is damage among these batches or after them.
    """

    fetch: PartitionFetch
    broker: str
    data: npt.NDArray[np.uint8]
    start: int
    aborted: list[tuple[int, int]] | None
    slot: ResponseSlot | None
    size: int
    following: int
    epoch: int
    is_damaged: bool


@dataclass
class FetchEvent:
    """A report of a thread.

    Attributes
    ----------
    batches : list of FetchedBatches
    finished, lost, moved, stalled : list of PartitionFetch
        Partitions that the thread no longer fetches, because they were read to their end, need new metadata, must be
        fetched from another broker, or their remaining records have not arrived for some time.
    error : BaseException or None
        The thread has ended.
    """

    batches: list[FetchedBatches] = field(default_factory=list)
    finished: list[PartitionFetch] = field(default_factory=list)
    lost: list[PartitionFetch] = field(default_factory=list)
    moved: list[PartitionFetch] = field(default_factory=list)
    stalled: list[PartitionFetch] = field(default_factory=list)
    error: BaseException | None = None

    @property
    def gone(self) -> set[int]:
        """The identities of the partitions that the thread no longer fetches."""
        return {id(each) for found in (self.finished, self.lost, self.moved, self.stalled) for each in found}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return not (self.batches or self.finished or self.lost or self.moved or self.stalled or self.error)
