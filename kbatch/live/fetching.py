"""Fetches from one broker: a thread that keeps one request in flight while earlier responses are decoded."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from kbatch.error_codes import ErrorCode
from kbatch.live.broker_connection import BrokerConnection
from kbatch.live.broker_errors import BrokerConnectionError, BrokerError, refusal_error
from kbatch.live.cluster import Cluster
from kbatch.live.counters import FetchCounts
from kbatch.live.fetch_progress import FetchProgress, ResponseContext
from kbatch.live.fetch_sessions import SESSION_ERRORS, FetchSession
from kbatch.live.fetch_state import RESPONSES, FetchEvent, FetchLimits, PartitionFetch, ResponseSlot
from kbatch.protocol.api_keys import ApiKey
from kbatch.read.decode_options import DecodeOptions

__all__ = ["BrokerFetcher"]

# How often a thread that waits for memory checks whether it was closed.
_CLOSED_SECONDS = 0.2


class BrokerFetcher(threading.Thread):
    """Fetches the partitions that are read from one broker.

    Parameters
    ----------
    broker : int
    cluster : Cluster
    events : SimpleQueue
        Receives the reports of the thread.
    sizes : FetchLimits
    options : DecodeOptions
        How the batches will be decoded.
    counts : FetchCounts
    """

    def __init__(
        self,
        broker: int,
        cluster: Cluster,
        events: queue.SimpleQueue[FetchEvent],
        sizes: FetchLimits,
        options: DecodeOptions,
        counts: FetchCounts,
    ) -> None:
        super().__init__(name=f"kbatch-fetch-{broker}", daemon=True)
        self._broker = broker
        self._cluster = cluster
        self._events = events
        self._sizes = sizes
        self._options = options
        self._counts = counts
        self._session = FetchSession(sizes, options.isolation)
        self._progress = FetchProgress(broker, sizes, options, counts)
        self._changed = threading.Condition()
        self._partitions: list[PartitionFetch] = []
        self._free = threading.Semaphore(RESPONSES)
        self._connection: BrokerConnection | None = None
        self._closed = threading.Event()
        self._kept: FetchEvent | None = None

    def add(self, partitions: Iterable[PartitionFetch]) -> None:
        """Fetch more partitions."""
        with self._changed:
            self._partitions += partitions
            self._changed.notify()

    def close(self) -> None:
        """End the thread; a request in flight is abandoned."""
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
                if not self._free.acquire(blocking=False):
                    self._give_event()
                    if not self._free.acquire(timeout=_CLOSED_SECONDS):
                        continue
                slot = ResponseSlot(self._free)
                try:
                    self._fetch(slot)
                finally:
                    slot.release()
        except BaseException as error:
            if not self._closed.is_set():
                self._give_event(FetchEvent(error=error))
        finally:
            if self._connection is not None:
                self._connection.close()

    def _wait_for_partitions(self) -> bool:
        """Wait until there are partitions; return False if the thread was closed."""
        with self._changed:
            if not self._partitions:
                self._give_event()
            while not self._partitions and not self._closed.is_set():
                self._changed.wait(_CLOSED_SECONDS)
        return not self._closed.is_set()

    def _fetch(self, slot: ResponseSlot) -> None:
        """Send one request, and keep the contents of its response until the next request is sent."""
        begun = time.monotonic()
        partitions = self._wanted(begun)
        if not partitions:
            return
        try:
            connection = self._connected()
            maximum = self._session.highest_version(partitions)
            request = self._session.request(partitions, connection.version_of(ApiKey.FETCH, maximum))
            connection.send(request, maximum=maximum, seconds=self._sizes.max_wait_ms / 1000)
            self._give_event()
            response = connection.receive(max_size=self._progress.max_size, limits=self._options.limits)
        except BrokerConnectionError as error:
            self._lose_all(error, time.monotonic() - begun)
            return
        self._counts.fetches += 1
        if response.error_code:
            self._refused(response.error_code, str(connection.server), time.monotonic() - begun)
        else:
            self._session.accept(response)
            event = FetchEvent()
            context = ResponseContext(str(connection.server), slot, event, time.monotonic() - begun)
            self._report(response, partitions, context)
        if response.throttle_time_ms > 0:
            # Until then, the broker does not read the next request (KIP-219).
            self._give_event()
            self._counts.throttled_seconds += response.throttle_time_ms / 1000
            self._closed.wait(response.throttle_time_ms / 1000)

    def _wanted(self, now: float) -> list[PartitionFetch]:
        """Drop partitions that were stopped or return to their leader, and return the others for fetching."""
        event = FetchEvent()
        with self._changed:
            for each in self._partitions:
                if each.is_stopped:
                    event.finished.append(each)
                elif each.replica == self._broker and now >= each.replica_until:
                    each.replica = -1
                    event.moved.append(each)
            if not event.is_empty:
                gone = event.gone
                self._partitions = [each for each in self._partitions if id(each) not in gone]
            wanted = list(self._partitions)
        if not event.is_empty:
            self._give_event(event)
        return wanted

    def _give_event(self, event: FetchEvent | None = None) -> None:
        """Give the reader the contents of the last response, and another event after it.

        This is called after the next request was sent, so that the broker works while the reader decodes.
        """
        kept, self._kept = self._kept, None
        for each in (kept, event):
            if each is not None:
                self._events.put(each)

    def _connected(self) -> BrokerConnection:
        if self._connection is None or self._connection.is_closed:
            # A session ends with its connection: a lost response may have changed it.
            self._session.reset()
            connection = self._cluster._open_connection(self._broker)
            self._counts.connections += 1
            with self._changed:
                self._connection = connection
            if self._closed.is_set():
                connection.close()
        assert self._connection is not None
        return self._connection

    def _refused(self, code: int, server: str, seconds: float) -> None:
        """Handle the error of a whole response."""
        if code in SESSION_ERRORS and self._session.is_incremental:
            self._counts.errors += 1
            self._session.reset()
            return
        error = refusal_error(code, "fetch", broker=server)
        if not ErrorCode(code).retriable:
            raise error
        self._session.reset()
        self._lose_all(error, seconds)

    def _lose_all(self, error: BrokerError, seconds: float) -> None:
        """Report that all partitions need new metadata; they are no longer fetched here."""
        if self._closed.is_set():
            return
        self._counts.errors += 1
        with self._changed:
            lost, self._partitions = self._partitions, []
        for each in lost:
            each.replica = -1
            each.lost = error
            each.waited += seconds
        self._give_event(FetchEvent(lost=lost))

    def _report(self, response: Any, partitions: Sequence[PartitionFetch], context: ResponseContext) -> None:
        """Advance the partitions of a request, and keep their batches for the reader."""
        event = context.event
        # A response has the names of all topics, or the ids of all of them.
        by_key: dict[Any, PartitionFetch] = {}
        if response.responses:
            has_names = bool(response.responses[0].topic)
            by_key = {(each.topic if has_names else each.topic_id, each.partition): each for each in partitions}
        seen: set[int] = set()
        for topic in response.responses:
            for part in topic.partitions:
                fetch = by_key.get((topic.topic or topic.topic_id, part.partition_index))
                if fetch is None:
                    raise BrokerError(
                        f"broker {context.server}: the fetch response has "
                        f"{topic.topic or topic.topic_id}-{part.partition_index}, which was not requested",
                        broker=context.server,
                    )
                seen.add(id(fetch))
                is_first = fetch is partitions[0] and not self._session.is_incremental
                self._progress.advance(fetch, part, context, is_first=is_first)
        if len(seen) < len(partitions):
            # In a session, unchanged partitions are omitted.
            for fetch in partitions:
                if id(fetch) not in seen:
                    self._progress.wait(fetch, context)
        if not event.batches:
            self._counts.empty_fetches += 1
        gone = event.gone
        fetched = {id(each.fetch) for each in event.batches}
        with self._changed:
            kept = [each for each in self._partitions if id(each) not in gone]
            # A broker fills a response in the order of the request, so partitions that were empty come first. In a
            # session, the broker itself moves partitions with records behind the others.
            self._partitions = sorted(kept, key=lambda each: (not each.needed_bytes, id(each) in fetched))
        if not event.is_empty:
            self._kept = event
