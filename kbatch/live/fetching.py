"""Fetches of one broker: a thread that keeps one request in flight while earlier responses are decoded."""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.batches.framing import byte_array, scan_part
from kbatch.error_codes import ErrorCode
from kbatch.errors import KbatchError
from kbatch.format import BatchStatus
from kbatch.live.broker_connection import BrokerConnection
from kbatch.live.broker_errors import BrokerConnectionError, BrokerError, refusal_error
from kbatch.live.cluster import Cluster
from kbatch.protocol.messages import message_class
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.in_memory import decode_part

__all__ = [
    "NO_END",
    "RESPONSES",
    "BrokerFetcher",
    "FetchEvent",
    "FetchLimits",
    "FetchedBatches",
    "PartitionFetch",
    "ResponseSlot",
]

# The stop of a partition that is read without an end.
NO_END = (1 << 63) - 1
# From this version on topics have ids instead of names.
_TOPIC_ID_VERSION = 13
_NO_ID = uuid.UUID(int=0)
# Responses of a broker that may be in memory: one is decoded, one waits for it, and one is received.
RESPONSES = 3
# The size of a response in addition to its records: fields of partitions, and lists of aborted transactions.
_RESPONSE_FIELDS = 16 << 20
# The smallest share of a partition in a response that is divided: the default of Kafka's clients.
_MIN_PARTITION_BYTES = 1 << 20
# How often a thread that waits for memory checks whether it was closed.
_CLOSED_SECONDS = 0.2


@dataclass(eq=False)
class PartitionFetch:
    """A partition that is read, and how far it is.

    Attributes
    ----------
    topic, partition, topic_id
    position : int
        The next offset to fetch.
    stop : int
        The offset at which the read ends, exclusive.
    leader_epoch : int
        The epoch of the leader that gets the request.
    last_epoch : int
        The leader epoch of the last batch that was received, or -1.
    may_begin_later : bool
        Whether the read begins at the earliest record and has received none: retention may move the beginning.
    is_stopped : bool
        Whether the reader needs no more records: damage ended the read, or the partition was revoked.
    needed_bytes : int
        The size to request at least, after damage that no valid batch followed; otherwise 0.
    waited : float
        Seconds of requests and pauses without records since the last record.
    lost : BrokerError or None
        Why the partition has no broker to fetch from.
    end_offset : int
        The end of the records that can be read, by the last response, or -1: the high watermark, or under
        read_committed the last stable offset.
    """

    topic: str
    partition: int
    topic_id: uuid.UUID
    position: int
    stop: int
    leader_epoch: int = -1
    last_epoch: int = -1
    may_begin_later: bool = False
    is_stopped: bool = False
    needed_bytes: int = 0
    waited: float = 0.0
    lost: BrokerError | None = None
    end_offset: int = -1

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
        The broker waits for so many bytes, and at most this time.
    timeout : float
        Seconds without records after which a read that has an end fails.
    """

    response_bytes: int
    partition_bytes: int | None
    min_bytes: int
    max_wait_ms: int
    timeout: float


class ResponseSlot:
    """The memory of one response, given back when its last records are no longer used."""

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
    slot : ResponseSlot
    size : int
        The bytes up to the end of the last valid batch.
    following, epoch : int
        The offset after that batch, and its leader epoch.
    """

    fetch: PartitionFetch
    broker: str
    data: npt.NDArray[np.uint8]
    start: int
    aborted: list[tuple[int, int]] | None
    slot: ResponseSlot
    size: int
    following: int
    epoch: int


@dataclass
class FetchEvent:
    """What a thread reports.

    Attributes
    ----------
    batches : list of FetchedBatches
    finished, lost : list of PartitionFetch
        Partitions that the thread no longer fetches: read to their end, and those that need new metadata.
    error : BaseException or None
        The thread has ended.
    """

    batches: list[FetchedBatches] = field(default_factory=list)
    finished: list[PartitionFetch] = field(default_factory=list)
    lost: list[PartitionFetch] = field(default_factory=list)
    error: BaseException | None = None


class BrokerFetcher(threading.Thread):
    """Fetches the partitions that one broker leads.

    Parameters
    ----------
    broker : int
    cluster : Cluster
    events : SimpleQueue
        Gets what the thread reports.
    sizes : FetchLimits
    options : DecodeOptions
        How the batches will be decoded.
    """

    def __init__(
        self,
        broker: int,
        cluster: Cluster,
        events: queue.SimpleQueue[FetchEvent],
        sizes: FetchLimits,
        options: DecodeOptions,
    ) -> None:
        super().__init__(name=f"kbatch-fetch-{broker}", daemon=True)
        self._broker = broker
        self._cluster = cluster
        self._events = events
        self._sizes = sizes
        self._options = options
        self._changed = threading.Condition()
        self._partitions: list[PartitionFetch] = []
        self._free = threading.Semaphore(RESPONSES)
        self._connection: BrokerConnection | None = None
        self._closed = threading.Event()

    def add(self, partitions: Iterable[PartitionFetch]) -> None:
        """Fetch more partitions."""
        with self._changed:
            self._partitions += partitions
            self._changed.notify()

    def close(self) -> None:
        """End the thread; a request in flight is given up."""
        self._closed.set()
        with self._changed:
            self._changed.notify()
            connection = self._connection
        if connection is not None:
            connection.close()

    def run(self) -> None:
        """Fetch until the thread is closed or fails."""
        try:
            while self._wait_for_partitions():
                if not self._free.acquire(timeout=_CLOSED_SECONDS):
                    continue
                slot = ResponseSlot(self._free)
                try:
                    self._fetch(slot)
                finally:
                    slot.release()
        except BaseException as error:
            if not self._closed.is_set():
                self._events.put(FetchEvent(error=error))
        finally:
            if self._connection is not None:
                self._connection.close()

    def _wait_for_partitions(self) -> bool:
        """Wait until there are partitions; return whether the thread goes on."""
        with self._changed:
            while not self._partitions and not self._closed.is_set():
                self._changed.wait(_CLOSED_SECONDS)
        return not self._closed.is_set()

    def _fetch(self, slot: ResponseSlot) -> None:
        """Send one request, and report what its response has."""
        begun = time.monotonic()
        with self._changed:
            stopped = [each for each in self._partitions if each.is_stopped]
            partitions = self._partitions = [each for each in self._partitions if not each.is_stopped]
        if stopped:
            self._events.put(FetchEvent(finished=stopped))
        if not partitions:
            return
        try:
            connection = self._connected()
            request, maximum = self._request(partitions)
            connection.send(request, maximum=maximum, seconds=self._sizes.max_wait_ms / 1000)
            response = connection.receive(max_size=self._max_size, limits=self._options.limits)
        except BrokerConnectionError as error:
            self._lose_all(error, time.monotonic() - begun)
            return
        if response.error_code:
            refused = refusal_error(response.error_code, "fetch", broker=str(connection.server))
            if not ErrorCode(response.error_code).retriable:
                raise refused
            self._lose_all(refused, time.monotonic() - begun)
            return
        self._report(response, partitions, connection, slot, time.monotonic() - begun)
        if response.throttle_time_ms > 0:
            # The broker does not read the next request earlier (KIP-219).
            self._closed.wait(response.throttle_time_ms / 1000)

    def _connected(self) -> BrokerConnection:
        if self._connection is None or self._connection.is_closed:
            connection = self._cluster._open_connection(self._broker)
            with self._changed:
                self._connection = connection
            if self._closed.is_set():
                connection.close()
        assert self._connection is not None
        return self._connection

    @property
    def _max_size(self) -> int:
        """The size of a response: its first batch may be larger than what is requested."""
        largest = self._options.limits.max_batch_bytes or max(self._options.limits.max_decompressed_bytes, 64 << 20)
        return min(self._sizes.response_bytes + largest + _RESPONSE_FIELDS, (1 << 31) - 1)

    def _lose_all(self, error: BrokerError, seconds: float) -> None:
        """Report that all partitions need new metadata; they are no longer fetched here."""
        if self._closed.is_set():
            return
        with self._changed:
            lost, self._partitions = self._partitions, []
        for each in lost:
            each.lost = error
            each.waited += seconds
        self._events.put(FetchEvent(lost=lost))

    def _request(self, partitions: Sequence[PartitionFetch]) -> tuple[Any, int | None]:
        """Return the request, and the highest version that can express it."""
        cls: Any = message_class("FetchRequest")
        topics: dict[str, Any] = {}
        size = self._sizes.partition_bytes
        if size is None:
            shared = self._sizes.response_bytes // len(partitions)
            size = max(shared, min(self._sizes.response_bytes, _MIN_PARTITION_BYTES))
        for each in partitions:
            topic = topics.setdefault(
                each.topic, cls.FetchTopic(topic=each.topic, topic_id=each.topic_id, partitions=[])
            )
            topic.partitions.append(
                cls.FetchPartition(
                    partition=each.partition,
                    current_leader_epoch=each.leader_epoch,
                    fetch_offset=each.position,
                    partition_max_bytes=max(size, each.needed_bytes),
                )
            )
        request = cls(
            max_wait_ms=self._sizes.max_wait_ms,
            min_bytes=self._sizes.min_bytes,
            max_bytes=max(self._sizes.response_bytes, *(each.needed_bytes for each in partitions)),
            isolation_level=int(self._options.isolation == "read_committed"),
            topics=list(topics.values()),
        )
        has_ids = all(each.topic_id != _NO_ID for each in partitions)
        return request, None if has_ids else _TOPIC_ID_VERSION - 1

    def _report(
        self,
        response: Any,
        partitions: Sequence[PartitionFetch],
        connection: BrokerConnection,
        slot: ResponseSlot,
        seconds: float,
    ) -> None:
        """Advance the partitions of a response, and report their batches."""
        by_id = {(each.topic_id, each.partition): each for each in partitions}
        by_name = {(each.topic, each.partition): each for each in partitions}
        event = FetchEvent()
        for topic in response.responses:
            for part in topic.partitions:
                index = part.partition_index
                fetch = by_name.get((topic.topic, index)) if topic.topic else by_id.get((topic.topic_id, index))
                if fetch is None:
                    raise BrokerError(
                        f"broker {connection.server}: the fetch response has {topic.topic or topic.topic_id}-{index}, "
                        "which was not requested",
                        broker=str(connection.server),
                    )
                self._advance(fetch, part, connection, slot, event, seconds)
        with self._changed:
            gone = {*map(id, event.finished), *map(id, event.lost)}
            fetched = {id(each.fetch) for each in event.batches}
            kept = [each for each in self._partitions if id(each) not in gone]
            # A broker fills a response in the order of the request, so partitions that were empty come first.
            self._partitions = sorted(kept, key=lambda each: (not each.needed_bytes, id(each) in fetched))
        if event.batches or event.finished or event.lost:
            self._events.put(event)

    def _advance(
        self,
        fetch: PartitionFetch,
        part: Any,
        connection: BrokerConnection,
        slot: ResponseSlot,
        event: FetchEvent,
        seconds: float,
    ) -> None:
        broker = str(connection.server)
        if fetch.is_stopped:
            # The next request leaves it out.
            return
        if part.error_code:
            if self._recovers(fetch, part, broker):
                event.lost.append(fetch)
            return
        is_committed = self._options.isolation == "read_committed"
        fetch.end_offset = part.last_stable_offset if is_committed else part.high_watermark
        data = byte_array(part.records if part.records is not None else b"")
        if not len(data):
            fetch.waited = fetch.waited + seconds if fetch.stop < NO_END else 0.0
            if fetch.position < fetch.stop < NO_END and fetch.waited > self._sizes.timeout:
                raise _no_progress(fetch, part, broker)
            return
        fetch.waited = 0.0
        fetch.lost = None
        framing = _framed(data, fetch.position, self._options)
        following = self._following(fetch, part, data, framing, broker)
        if following is None:
            return
        if framing.following is not None and self._options.on_error == "skip":
            # Damage after the last valid batch is fetched again, with the batches after it.
            data = data[: framing.end]
        slot.hold()
        aborted = part.aborted_transactions
        listed = None if aborted is None else [(each.producer_id, each.first_offset) for each in aborted]
        event.batches.append(
            FetchedBatches(fetch, broker, data, fetch.position, listed, slot, framing.end, following, framing.epoch)
        )
        fetch.position = following
        fetch.last_epoch = framing.epoch
        fetch.may_begin_later = False
        fetch.needed_bytes = 0
        if fetch.position >= fetch.stop:
            event.finished.append(fetch)

    def _following(
        self, fetch: PartitionFetch, part: Any, data: npt.NDArray[np.uint8], framing: _Framing, broker: str
    ) -> int | None:
        """Return the offset to fetch next; None if these batches have to be fetched again, with others after them."""
        following, is_damaged = framing.following, framing.is_damaged
        if is_damaged and self._options.on_error == "raise":
            return fetch.position if following is None else following
        if is_damaged and self._options.on_error == "stop":
            return fetch.stop
        if following is not None:
            return following
        if is_damaged and fetch.needed_bytes > len(data):
            # The broker has no more batches, so that nothing after the damage can be read.
            return int(max(part.high_watermark, fetch.position + 1))
        if fetch.needed_bytes >= self._max_size or (not is_damaged and fetch is self._partitions[0]):
            raise BrokerError(
                f"broker {broker}, {fetch.name}: the response to a fetch of offset {fetch.position} has "
                f"{len(data)} bytes and no valid batch from there on, so that the next offset is unknown; begin the "
                "read at a later offset",
                broker=broker,
                topic=fetch.topic,
                partition=fetch.partition,
            )
        if is_damaged:
            # The header of a damaged batch may have a wrong offset. The next valid batch shows how far the damage is.
            fetch.needed_bytes = min(max(4 * len(data), _MIN_PARTITION_BYTES), self._max_size)
        return None

    def _recovers(self, fetch: PartitionFetch, part: Any, broker: str) -> bool:
        """Return whether an error of a partition needs new metadata; raise it if it is final."""
        code = ErrorCode(part.error_code)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            fetch.lost = refusal_error(code, f"fetch of offset {fetch.position}", broker=broker, topic=fetch.topic)
            return True
        error = refusal_error(
            code, f"fetch of offset {fetch.position}", broker=broker, topic=fetch.topic, partition=fetch.partition
        )
        if not code.retriable:
            raise error
        fetch.lost = error
        return True


class _Framing(NamedTuple):
    """Where the valid batches of a response end, the offset after them, and whether there is damage.

    `epoch` is the leader epoch of the last valid batch, or -1.
    """

    end: int
    following: int | None
    is_damaged: bool
    epoch: int = -1


def _framed(data: npt.NDArray[np.uint8], position: int, options: DecodeOptions) -> _Framing:
    """Find the last valid batch that ends after the offset `position`.

    Under ``on_error="raise"`` decoding fails at damage, so that only lengths are verified here.
    """
    if options.on_error == "raise":
        scanned = scan_part(data)
        batches, is_damaged = scanned.batches, scanned.finding is not None
    else:
        framing = replace(options, framing_only=True, on_error="skip", start_offset=None, stop_offset=None, threads=1)
        table = decode_part(data, framing)
        batches, is_damaged = table.batches[BatchStatus.sound(table.batches["status"])], bool(table.losses)
    if not len(batches) or batches["last_offset"][-1] < position:
        return _Framing(0, None, is_damaged)
    last = batches[-1]
    end, following = int(last["position"] + last["size"]), int(last["last_offset"]) + 1
    return _Framing(end, following, is_damaged, int(last["partition_leader_epoch"]))


def _no_progress(fetch: PartitionFetch, part: Any, broker: str) -> KbatchError:
    return BrokerError(
        f"broker {broker}, {fetch.name}: no records from offset {fetch.position} on for {fetch.waited:.0f} s, although "
        f"the read ends at {fetch.stop}; the high watermark is {part.high_watermark}, so the log was truncated or its "
        "replicas are behind",
        broker=broker,
        topic=fetch.topic,
        partition=fetch.partition,
    )
