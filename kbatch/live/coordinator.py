"""The coordinator of a group: the broker that keeps its members and committed offsets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kbatch.backoff import Backoff
from kbatch.error_codes import ErrorCode
from kbatch.live.broker_connection import BrokerConnection
from kbatch.live.broker_errors import BrokerConnectionError, BrokerError, refusal_error
from kbatch.live.cluster import Cluster, PartitionKey
from kbatch.live.settings import ServerAddress
from kbatch.protocol.api_keys import ApiKey
from kbatch.protocol.messages import message_class

__all__ = [
    "NO_MEMBERSHIP",
    "CommittedOffset",
    "CoordinatorAnswer",
    "GroupCoordinator",
    "Membership",
    "committed_answer",
]

# From these versions on, requests have lists of groups, or topic ids instead of names.
_COORDINATOR_LISTS, _OFFSET_FETCH_GROUPS = 4, 8
_MAX_OFFSET_FETCH = _MAX_OFFSET_COMMIT = 9
# Another broker has become the coordinator, or there is none now.
_MOVED = frozenset([ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT])
# The same coordinator will respond later.
_LATER = frozenset(
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ]
)


class CommittedOffset(NamedTuple):
    """A committed offset.

    Attributes
    ----------
    offset : int
        The offset of the next record.
    leader_epoch : int
        The leader epoch of the batch before it, or -1.
    metadata : str
        Text that was stored with the offset.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Membership(NamedTuple):
    """The identity of a member in requests.

    Attributes
    ----------
    member_id : str
    generation : int
        The generation of a classic group, or the epoch of the member (KIP-848); -1 outside of a group.
    instance_id : str or None
        The id of a static member.
    """

    member_id: str
    generation: int
    instance_id: str | None


NO_MEMBERSHIP = Membership("", -1, None)


class CoordinatorAnswer(NamedTuple):
    """A response of the coordinator: a result, and the error code and message."""

    result: Any
    code: int
    message: str | None = None


class GroupCoordinator:
    """The coordinator of a group, with its own connection. One thread at a time sends requests.

    Parameters
    ----------
    cluster : Cluster
    group : str

    Examples
    --------
    >>> from kbatch.live import ClientSettings, Cluster
    >>> from kbatch.live.coordinator import GroupCoordinator
    >>> cluster = Cluster(ClientSettings.of(bootstrap_servers="localhost:9092"))  # doctest: +SKIP
    >>> GroupCoordinator(cluster, "etl").committed()  # doctest: +SKIP
    {('orders', 0): CommittedOffset(offset=1200, leader_epoch=3, metadata='')}
    """

    def __init__(self, cluster: Cluster, group: str) -> None:
        self.group = group
        self._cluster = cluster
        self._lock = threading.RLock()
        self._connection: BrokerConnection | None = None
        self._closed = threading.Event()

    def close(self) -> None:
        """Close the connection for good, even while another thread waits for a response."""
        self._closed.set()
        self.interrupt()

    def interrupt(self) -> None:
        """Close the connection, so that a request that waits in another thread fails."""
        connection = self._connection
        if connection is not None:
            connection.close()

    def has(self, api_key: ApiKey) -> bool:
        """Whether the coordinator supports an API."""
        return bool(self.attempt(lambda connection: CoordinatorAnswer(connection.has(api_key, 0), 0), ""))

    def committed(self, partitions: Iterable[PartitionKey] | None = None) -> dict[PartitionKey, CommittedOffset]:
        """Return the committed offsets of the group (OffsetFetch).

        Parameters
        ----------
        partitions : iterable of (topic, partition), optional
            Default is all partitions that have a committed offset.

        Raises
        ------
        BrokerError
            If the client may not read the group, or no coordinator responds within ``default.api.timeout.ms``.
        """
        by_topic: dict[str, list[int]] | None = None
        if partitions is not None:
            by_topic = {}
            for topic, number in partitions:
                by_topic.setdefault(topic, []).append(number)
            if not by_topic:
                return {}

        found: dict[PartitionKey, CommittedOffset] = self.attempt(
            lambda connection: committed_answer(connection, self.group, by_topic), "OffsetFetch"
        )
        return found

    def commit(self, offsets: Mapping[PartitionKey, CommittedOffset], membership: Membership = NO_MEMBERSHIP) -> None:
        """Commit offsets (OffsetCommit).

        Raises
        ------
        BrokerError
            Its `code` states whether the membership is not valid.
        """
        cls: Any = message_class("OffsetCommitRequest")
        topics: dict[str, Any] = {}
        for (name, number), each in offsets.items():
            topic = topics.setdefault(name, cls.OffsetCommitRequestTopic(name=name, partitions=[]))
            topic.partitions.append(
                cls.OffsetCommitRequestPartition(
                    partition_index=number,
                    committed_offset=each.offset,
                    committed_leader_epoch=each.leader_epoch,
                    committed_metadata=each.metadata,
                )
            )
        message = cls(
            group_id=self.group,
            generation_id_or_member_epoch=membership.generation,
            member_id=membership.member_id,
            topics=list(topics.values()),
        )

        def ask(connection: BrokerConnection) -> CoordinatorAnswer:
            version = connection.version_of(ApiKey.OFFSET_COMMIT, _MAX_OFFSET_COMMIT)
            message.group_instance_id = membership.instance_id if version >= 7 else None
            response = connection.request(message, maximum=_MAX_OFFSET_COMMIT)
            codes = [part.error_code for topic in response.topics for part in topic.partitions]
            return CoordinatorAnswer(None, next(filter(None, codes), 0))

        if offsets:
            self.attempt(ask, "OffsetCommit")

    def attempt(
        self, ask: Callable[[BrokerConnection], CoordinatorAnswer], action: str, seconds: float | None = None
    ) -> Any:
        """Ask the coordinator until it responds without a retriable error.

        Parameters
        ----------
        ask : callable
            Sends a request and returns the result.
        action : str
            For messages.
        seconds : float, optional
            Default is ``default.api.timeout.ms``.

        Raises
        ------
        BrokerError
            For other errors, and for retriable errors that persist until the deadline.
        """
        settings = self._cluster.settings
        deadline = time.monotonic() + (settings.default_api_timeout_ms / 1000 if seconds is None else seconds)
        backoff = Backoff(settings.retry_backoff_ms, 1000)
        while True:
            try:
                with self._lock:
                    connection = self._connected(deadline)
                    result, code, message = ask(connection)
            except BrokerConnectionError as error:
                failed: BrokerError = error
            else:
                if not code:
                    return result
                failed = self._refusal(code, action, connection, message)
                if code in _MOVED:
                    connection.close()
                elif code not in _LATER:
                    raise failed
            if time.monotonic() > deadline or self._closed.wait(backoff.next_seconds()):
                raise failed

    def _refusal(self, code: int, action: str, connection: BrokerConnection, message: str | None = None) -> BrokerError:
        """Return the error for an error code in a response."""
        return refusal_error(code, f"{action} of group {self.group!r}", broker=str(connection.server), message=message)

    def _connected(self, deadline: float) -> BrokerConnection:
        """Return the connection to the coordinator; without one, find the coordinator and connect to it."""
        if self._connection is None or self._connection.is_closed:
            server = self._find(deadline)
            if self._closed.is_set():
                raise ValueError("the group is closed")
            self._connection = self._cluster._open_connection(server)
            if self._closed.is_set():
                self._connection.close()
        return self._connection

    def _find(self, deadline: float) -> ServerAddress:
        """Return the address of the coordinator (FindCoordinator)."""
        cls: Any = message_class("FindCoordinatorRequest")

        def ask(connection: BrokerConnection) -> Any:
            if connection.version_of(ApiKey.FIND_COORDINATOR) >= _COORDINATOR_LISTS:
                found = connection.request(cls(coordinator_keys=[self.group])).coordinators[0]
            else:
                found = connection.request(cls(key=self.group))
            return found, connection

        backoff = Backoff(self._cluster.settings.retry_backoff_ms, 1000)
        while True:
            found, connection = self._cluster._with_any(ask, min(deadline, self._cluster._deadline()))
            if not found.error_code:
                return ServerAddress(found.host, found.port)
            error = self._refusal(found.error_code, "FindCoordinator", connection)
            if not ErrorCode(found.error_code).retriable or time.monotonic() > deadline:
                raise error
            if self._closed.wait(backoff.next_seconds()):
                raise error


def committed_answer(
    connection: BrokerConnection, group: str, by_topic: Mapping[str, list[int]] | None = None
) -> CoordinatorAnswer:
    """Ask a coordinator for the committed offsets of a group; the result has a `CommittedOffset` by partition.

    Without topics, the result has all partitions with a committed offset.
    """
    version = connection.version_of(ApiKey.OFFSET_FETCH, _MAX_OFFSET_FETCH)
    response = connection.request(_offset_fetch(group, by_topic, version), maximum=_MAX_OFFSET_FETCH)
    found = response.groups[0] if version >= _OFFSET_FETCH_GROUPS else response
    codes = [found.error_code, *(part.error_code for topic in found.topics for part in topic.partitions)]
    offsets = {
        (topic.name, part.partition_index): CommittedOffset(
            part.committed_offset, part.committed_leader_epoch, part.metadata or ""
        )
        for topic in found.topics
        for part in topic.partitions
        if part.committed_offset >= 0
    }
    return CoordinatorAnswer(offsets, next(filter(None, codes), 0))


def _offset_fetch(group: str, by_topic: Mapping[str, list[int]] | None, version: int) -> Any:
    """Return an OffsetFetch request; without topics, it asks for all partitions."""
    cls: Any = message_class("OffsetFetchRequest")
    structure = cls.OffsetFetchRequestTopics if version >= _OFFSET_FETCH_GROUPS else cls.OffsetFetchRequestTopic
    topics: Any = None
    if by_topic is not None:
        topics = [structure(name=name, partition_indexes=numbers) for name, numbers in by_topic.items()]
    # Offsets of open transactions are not visible before their end (KIP-447).
    stable = {"require_stable": True} if version >= 7 else {}
    if version < _OFFSET_FETCH_GROUPS:
        return cls(group_id=group, topics=topics, **stable)
    return cls(groups=[cls.OffsetFetchRequestGroup(group_id=group, topics=topics)], **stable)
