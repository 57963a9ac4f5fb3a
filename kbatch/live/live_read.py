"""A read of partitions from their leaders, which starts the threads and finds new leaders."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kbatch.backoff import Backoff
from kbatch.error_codes import ErrorCode
from kbatch.live.broker_errors import BrokerError
from kbatch.live.cluster import EARLIEST, LATEST, Cluster, PartitionLeader, TopicMetadata, is_retriable
from kbatch.live.compacted_ends import has_compacted_end
from kbatch.live.counters import ReadCounters
from kbatch.live.data_loss import DataLoss
from kbatch.live.fetch_state import NO_END, FetchedBatches, FetchEvent, FetchLimits, PartitionFetch
from kbatch.live.fetching import BrokerFetcher
from kbatch.live.gathering import BatchGathering
from kbatch.live.leader_requests import ask_epoch_end
from kbatch.live.live_options import LiveOptions
from kbatch.read.decode_options import DecodeOptions

__all__ = ["LiveRead", "PartitionChanges", "ReadPolicy"]

# How often a reader that waits for records checks for signals.
_SIGNAL_SECONDS = 0.5
# Seconds during which a topic may be unknown: a broker that has just started may not have all metadata.
_UNKNOWN_SECONDS = 5.0
# Seconds for which `close` waits for the threads.
_JOIN_SECONDS = 0.5
_MAX_PAUSE_MS = 1000
_OUT_OF_RANGE = ErrorCode.OFFSET_OUT_OF_RANGE
_NO_LEADER = PartitionLeader(-1, -1)


class PartitionChanges(Protocol):
    """Adds partitions to a read and removes them: for new topics, or the assignments of a group."""

    def poll(self, read: LiveRead) -> None:
        """Make the changes that are due; called before the reader waits for records."""

    @property
    def follows(self) -> bool:
        """Whether the read has no end, so that only `close` ends it."""

    @property
    def is_complete(self) -> bool:
        """Whether the read ends when all its partitions are read."""


@dataclass(frozen=True)
class ReadPolicy:
    """The policy of the reads of a consumer: when batches are complete, how losses are handled, and the counters."""

    gathering: BatchGathering
    loss: DataLoss
    counters: ReadCounters

    @classmethod
    def strict(cls) -> ReadPolicy:
        """Return the policy of a read whose responses are not gathered, and for which a loss is an error."""
        counters = ReadCounters()
        return cls(BatchGathering(LiveOptions(), 1), DataLoss(True, counters, lambda key, offset: None), counters)


class LiveRead:
    """The batches of partitions, from their positions to their stops.

    One thread uses it, which also looks for new leaders while it waits for batches.

    Parameters
    ----------
    cluster : Cluster
    fetches : sequence of PartitionFetch
    sizes : FetchLimits
    options : DecodeOptions
        How the batches will be decoded.
    policy : ReadPolicy
    changes : PartitionChanges, optional
    """

    def __init__(
        self,
        cluster: Cluster,
        fetches: Sequence[PartitionFetch],
        sizes: FetchLimits,
        options: DecodeOptions,
        policy: ReadPolicy,
        changes: PartitionChanges | None = None,
    ) -> None:
        self._cluster = cluster
        self._sizes = sizes
        self._options = options
        self._policy = policy
        self._events: queue.SimpleQueue[FetchEvent] = queue.SimpleQueue()
        self._fetchers: dict[int, BrokerFetcher] = {}
        self._lost = [each for each in fetches if each.position < each.stop]
        self._unfinished = len(self._lost)
        self._backoff = Backoff(cluster.settings.retry_backoff_ms, _MAX_PAUSE_MS)
        self._relocate_at = 0.0
        # The time when metadata first lacked a topic.
        self._unknown_at: float | None = None
        self._changes = changes
        self._is_closed = False

    def close(self) -> None:
        """End the threads; requests in flight are abandoned."""
        self._is_closed = True
        fetchers = list(self._fetchers.values())
        for fetcher in fetchers:
            fetcher.close()
        # A thread that is connecting ends later.
        deadline = time.monotonic() + _JOIN_SECONDS
        for fetcher in fetchers:
            fetcher.join(max(deadline - time.monotonic(), 0.0))

    @property
    def unfinished(self) -> int:
        """The number of partitions that are not read to their end."""
        return self._unfinished

    def add(self, fetches: Iterable[PartitionFetch], topic: TopicMetadata | None = None) -> None:
        """Read more partitions; `topic` has the leaders if they are already known."""
        found = [each for each in fetches if each.position < each.stop]
        self._unfinished += len(found)
        self._lost += [each for each in found if topic is None or not self._placed(each, topic)]

    def drop(self, fetches: Iterable[PartitionFetch]) -> None:
        """Stop reading some partitions; batches that were fetched for them are not returned."""
        for each in fetches:
            each.is_stopped = True
        kept = [each for each in self._lost if not each.is_stopped]
        self._unfinished -= len(self._lost) - len(kept)
        self._lost = kept

    def wake(self) -> None:
        """End a wait for records; another thread may call this."""
        self._events.put(FetchEvent())

    def batches(self) -> Iterator[FetchedBatches]:
        """Yield the batches of each response, by partition in the order of their offsets.

        The memory of a response is released when the consumer requests the next batches.

        Raises
        ------
        BrokerError, AuthenticationError
            If a partition can't be read, or has no leader within ``default.api.timeout.ms``.
        """
        changes = self._changes
        while self._unfinished or not (changes is None or changes.is_complete):
            if self._is_closed and changes is not None and changes.follows:
                return
            if self._is_closed:
                raise ValueError("the consumer was closed during a read")
            try:
                if changes is not None:
                    changes.poll(self)
                self._relocate_if_due()
            except ValueError:
                if self._is_closed:
                    # Another thread has closed the cluster too.
                    continue
                raise
            yield from self._one_by_one(self._policy.gathering.due())
            event = self._next_event()
            if event is None:
                continue
            if event.error is not None:
                yield from self._one_by_one(self._policy.gathering.rest())
                raise event.error
            # Gathered batches of a partition are returned before anything else happens to it.
            yield from self._one_by_one(self._policy.gathering.ready(event))
            for each in event.moved:
                self._move(each)
            self._add_lost(event.lost)
            self._unfinished -= len(event.finished)
            for each in event.stalled:
                self._end_or_resume(each)

    def _one_by_one(self, found: list[FetchedBatches]) -> Iterator[FetchedBatches]:
        """Yield batches so that their memory is released as soon as the consumer has dropped them."""
        found.reverse()
        while found and not self._is_closed:
            batches = found.pop()
            slot = batches.slot
            yield batches
            del batches
            if slot is not None:
                slot.release()

    def _next_event(self) -> FetchEvent | None:
        """Return the report of a thread, or None after some time without a report."""
        seconds = _SIGNAL_SECONDS
        if self._lost:
            seconds = min(max(self._relocate_at - time.monotonic(), 0.0), seconds)
        left = self._policy.gathering.seconds_left()
        if left is not None:
            seconds = min(seconds, left)
        with contextlib.suppress(queue.Empty):
            return self._events.get(timeout=seconds) if seconds else self._events.get_nowait()
        return None

    def _add_lost(self, given: Sequence[PartitionFetch]) -> None:
        lost = [each for each in given if not each.is_stopped]
        self._unfinished -= len(given) - len(lost)
        if not lost:
            return
        if any(each.position > each.lost_position for each in lost):
            # Records have arrived since the last failure.
            self._backoff = Backoff(self._cluster.settings.retry_backoff_ms, _MAX_PAUSE_MS)
        for each in lost:
            each.lost_position = each.position
        if not self._lost:
            self._pause(lost)
        self._lost += lost

    def _pause(self, lost: Sequence[PartitionFetch]) -> None:
        """Set when to look for leaders next, and fail for partitions that have waited too long."""
        for each in lost:
            if each.waited > self._sizes.timeout and each.lost is not None:
                raise type(each.lost)(
                    f"{each.name}, no records from offset {each.position} on for {each.waited:.0f} s "
                    f"(default.api.timeout.ms): {each.lost}",
                    broker=each.lost.broker,
                    topic=each.topic,
                    partition=each.partition,
                    code=each.lost.code,
                )
        seconds = self._backoff.next_seconds()
        for each in lost:
            each.waited += seconds
        self._relocate_at = time.monotonic() + seconds

    def _relocate_if_due(self) -> None:
        """Assign partitions without a broker to the threads of their leaders, with new metadata."""
        if not self._lost or time.monotonic() < self._relocate_at:
            return
        begun = time.monotonic()
        lost, self._lost = self._lost, []
        try:
            topics = {topic.name: topic for topic in self._cluster.topics({each.topic for each in lost})}
        except BrokerError as error:
            if self._unknown_at is None:
                self._unknown_at = time.monotonic()
            is_over = time.monotonic() - self._unknown_at > _UNKNOWN_SECONDS
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or is_over:
                raise
            topics = {}
        else:
            self._unknown_at = None
        rest = [each for each in lost if not self._placed(each, topics.get(each.topic))]
        if rest:
            seconds = time.monotonic() - begun
            for each in rest:
                each.waited += seconds
            self._pause(rest)
            self._lost = rest

    def _placed(self, fetch: PartitionFetch, topic: TopicMetadata | None) -> bool:
        """Assign a partition to its leader's thread; return False if it has no leader now."""
        if topic is None:
            return False
        if topic.id != fetch.topic_id and not self._restart_recreated(fetch, topic):
            return False
        if fetch.position >= fetch.stop:
            self._unfinished -= 1
            return True
        leader = topic.partitions.get(fetch.partition)
        if leader is None or leader.broker < 0:
            if fetch.lost is None:
                fetch.lost = BrokerError(
                    f"{fetch.name}: the partition has no leader; check that the brokers of its replicas run",
                    topic=fetch.topic,
                    partition=fetch.partition,
                    code=ErrorCode.LEADER_NOT_AVAILABLE,
                )
            return False
        if leader.epoch != fetch.leader_epoch and not self._check_leader(fetch, leader):
            return False
        if fetch.is_out_of_range:
            self._check_range(fetch)
            fetch.is_out_of_range = False
        if fetch.position >= fetch.stop:
            self._unfinished -= 1
            return True
        fetch.leader_epoch = leader.epoch
        fetch.leader = leader.broker
        self._give(fetch)
        return True

    def _move(self, fetch: PartitionFetch) -> None:
        """Assign a partition to another replica, or request new metadata if they do not list this replica."""
        if fetch.replica < 0 or fetch.replica in self._cluster._brokers:
            self._give(fetch)
            return
        fetch.lost = BrokerError(
            f"{fetch.name}: the leader names broker {fetch.replica} as the closest replica (client.rack), but the "
            "metadata does not list it; check that it runs",
            topic=fetch.topic,
            partition=fetch.partition,
            code=ErrorCode.REPLICA_NOT_AVAILABLE,
        )
        self._add_lost([fetch])

    def _give(self, fetch: PartitionFetch) -> None:
        """Assign a partition to the thread of its leader, or of the replica that the leader prefers (KIP-392)."""
        if fetch.is_stopped:
            self._unfinished -= 1
            return
        if fetch.replica not in self._cluster._brokers:
            # The replica is the leader, or has left the cluster.
            fetch.replica = -1
        broker = fetch.leader if fetch.replica < 0 else fetch.replica
        fetcher = self._fetchers.get(broker)
        if fetcher is None:
            counts = self._policy.counters.of_fetcher()
            fetcher = BrokerFetcher(broker, self._cluster, self._events, self._sizes, self._options, counts)
            fetcher.start()
            self._fetchers[broker] = fetcher
            if self._is_closed:
                # By another thread, which may not have seen this one.
                fetcher.close()
        fetcher.add([fetch])

    def _restart_recreated(self, fetch: PartitionFetch, topic: TopicMetadata) -> bool:
        """Report the loss of a topic that was recreated, and begin with its first record.

        Return False if the topic lacks the partition now.
        """
        reason = "the topic was deleted and recreated during the read"
        if fetch.planned_epoch is not None:
            reason = f"the topic was recreated: its id was {fetch.topic_id}, and is now {topic.id}"
            self._policy.loss.end(fetch, reason, ErrorCode.UNKNOWN_TOPIC_ID, fetch.position)
            return True
        first = end = 0
        if not self._policy.loss.fails:
            if topic.partitions.get(fetch.partition, _NO_LEADER).broker < 0:
                return False
            first, end = self._offsets(fetch)
        last = None if fetch.stop >= NO_END else fetch.stop - 1
        self._policy.loss.report(fetch, reason, ErrorCode.UNKNOWN_TOPIC_ID, position=first, last=last)
        fetch.topic_id = topic.id
        fetch.leader_epoch = fetch.last_epoch = fetch.replica = -1
        fetch.is_out_of_range = False
        fetch.may_begin_later = True
        if fetch.stop < NO_END:
            # The end of the read is an offset of the deleted topic.
            fetch.stop = min(fetch.stop, end)
        return True

    def _offsets(self, fetch: PartitionFetch) -> tuple[int, int]:
        """Return the first offset of a partition, and the offset after its last record."""
        key = (fetch.topic, fetch.partition)
        return self._cluster.offsets({key: EARLIEST})[key] or 0, self._cluster.offsets({key: LATEST})[key] or 0

    def _end_or_resume(self, fetch: PartitionFetch) -> None:
        """End the read of a partition whose records do not arrive, unless they may still arrive."""
        is_over = fetch.waited > self._sizes.timeout
        if fetch.end_offset >= fetch.stop and has_compacted_end(self._cluster, fetch):
            fetch.position = fetch.stop
        elif is_over:
            self._give_up(fetch)
        else:
            fetch.is_questioned = True
            self._give(fetch)
            return
        self._unfinished -= 1

    def _give_up(self, fetch: PartitionFetch) -> None:
        """Report the records up to the end of the read as missing, after a long time without records."""
        self._policy.loss.report(
            fetch,
            f"no records from offset {fetch.position} on for {fetch.waited:.0f} s, although the read ends at "
            f"{fetch.stop}; the high watermark is {fetch.high_watermark}, so "
            + (
                "the broker cannot read them now: check its log, and its tiered storage"
                if fetch.high_watermark >= fetch.stop
                else "the log was truncated or its replicas are behind"
            ),
            None,
            position=fetch.stop,
            broker=self._address(fetch.leader),
        )

    def _address(self, broker: int) -> str | None:
        server = self._cluster._brokers.get(broker)
        return None if server is None else str(server)

    def _check_leader(self, fetch: PartitionFetch, leader: PartitionLeader) -> bool:
        """Report records that a new leader lacks, before the position (KIP-320) or in the planned range.

        Return False if the leader does not respond now.
        """
        is_planned = fetch.planned_epoch is not None
        epoch, needed = (fetch.planned_epoch, fetch.stop) if is_planned else (fetch.last_epoch, fetch.position)
        if epoch is None or epoch < 0:
            return True
        key = (fetch.topic, fetch.partition)
        try:
            found = ask_epoch_end(self._cluster, key, leader, epoch)
        except BrokerError as error:
            if not is_retriable(error):
                raise
            fetch.lost = error
            return False
        if found is None or found.offset >= needed:
            return True
        if is_planned:
            self._policy.loss.end(
                fetch,
                f"the records from offset {found.offset} to {needed}, exclusive, were there when the read was planned "
                f"and are no longer in the log: a leader without them was elected (leader epoch {leader.epoch})",
                ErrorCode.FENCED_LEADER_EPOCH,
                found.offset,
                self._address(leader.broker),
            )
            return True
        self._policy.loss.report(
            fetch,
            f"the records from offset {found.offset} to {fetch.position}, exclusive, which were read, are no longer in "
            f"the log: a leader without them was elected (leader epoch {leader.epoch})",
            ErrorCode.FENCED_LEADER_EPOCH,
            position=found.offset,
            first=found.offset,
            last=fetch.position - 1,
            broker=self._address(leader.broker),
        )
        fetch.last_epoch = found.epoch
        return True

    def _check_range(self, fetch: PartitionFetch) -> None:
        """Compare a position that the leader has refused with the offsets of the partition, and report a loss."""
        first, end = self._offsets(fetch)
        gone = f"offset {fetch.position}, which follows the records read so far, is gone: "
        if fetch.position < first:
            if fetch.may_begin_later:
                fetch.position = first
                return
            reason = f"the records before offset {first} were deleted by retention during the read"
            self._policy.loss.report(fetch, gone + reason, _OUT_OF_RANGE, position=min(first, fetch.stop))
        elif fetch.position > end:
            reason = f"the log was truncated to offset {end} during the read"
            if fetch.planned_epoch is not None:
                self._policy.loss.end(fetch, gone + reason, _OUT_OF_RANGE, fetch.position)
                return
            last = fetch.position - 1
            self._policy.loss.report(fetch, gone + reason, _OUT_OF_RANGE, position=end, first=end, last=last)
            # The epoch of the batch before this offset is unknown.
            fetch.last_epoch = -1
