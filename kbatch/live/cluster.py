"""A cluster of brokers: its topics, the leaders of their partitions, and their offsets."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kbatch.arguments import check_types
from kbatch.backoff import Backoff
from kbatch.error_codes import ErrorCode
from kbatch.live.broker_connection import BrokerConnection
from kbatch.live.broker_errors import BrokerConnectionError, BrokerError, refusal_error
from kbatch.live.sasl import token_provider
from kbatch.live.settings import ClientSettings, ServerAddress
from kbatch.live.transport import TransportFactory, check_transport, connect_socket
from kbatch.options import ISOLATION, Isolation, did_you_mean
from kbatch.protocol.api_keys import ApiKey
from kbatch.protocol.messages import message_class
from kbatch.public_names import public_in

__all__ = ["Cluster", "ListedOffset", "PartitionKey", "PartitionLeader", "TopicMetadata"]

# Special timestamps of ListOffsets.
LATEST, EARLIEST = -1, -2
# The codes of a topic that does not exist, or that the broker has not heard of yet.
UNKNOWN_TOPIC = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

PartitionKey = tuple[str, int]
AnswerT = TypeVar("AnswerT")


@public_in("kbatch.live")
class PartitionLeader(NamedTuple):
    """The leader of a partition.

    Attributes
    ----------
    broker : int
        Its id, or -1 if there is none.
    epoch : int
        -1 if it is unknown.
    """

    broker: int
    epoch: int


class ListedOffset(NamedTuple):
    """An offset that a leader has listed, or None; `epoch` belongs to the offset after the last record, or is -1."""

    offset: int | None
    epoch: int


@public_in("kbatch.live")
class TopicMetadata(NamedTuple):
    """A topic.

    Attributes
    ----------
    name : str
    id : UUID
        Zeros if the broker is older than Kafka 2.8.
    is_internal : bool
    partitions : dict of int to PartitionLeader
        In ascending order.
    """

    name: str
    id: uuid.UUID
    is_internal: bool
    partitions: dict[int, PartitionLeader]


@public_in("kbatch.live")
class Cluster:
    """A cluster, as a client sees it. Connections are opened when they are needed.

    Several threads may use it. Fetches use separate connections (`_open_connection`), because a broker processes the
    requests of a connection one after the other, and a fetch may wait for records.

    Parameters
    ----------
    settings : ClientSettings
    transport : TransportFactory, optional
        Opens connections; by default, sockets.

    Examples
    --------
    >>> from kbatch.live import ClientSettings, Cluster
    >>> with Cluster(ClientSettings.of(bootstrap_servers="localhost:9092")) as cluster:  # doctest: +SKIP
    ...     [topic.name for topic in cluster.topics()]
    ['orders']
    """

    def __init__(self, settings: ClientSettings, *, transport: TransportFactory | None = None) -> None:
        check_types(Cluster.__init__, locals())
        check_transport(transport)
        self.settings = settings
        self._connect: TransportFactory = connect_socket if transport is None else transport
        self._tokens = token_provider(settings)
        self._lock = threading.RLock()
        self._brokers: dict[int, ServerAddress] = {}
        # By broker id; None is the bootstrap server that was reached last.
        self._connections: dict[int | None, BrokerConnection] = {}
        self._was_reached = False
        self._closed = threading.Event()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Cluster: {', '.join(map(str, self.settings.bootstrap_servers))}>"

    def close(self) -> None:
        """Close all connections of this object."""
        self._closed.set()
        for connection in list(self._connections.values()):
            connection.close()

    def _open_connection(self, broker: int | ServerAddress) -> BrokerConnection:
        """Open another connection to the broker with this address, or with this id at its address in the last metadata.

        Raises
        ------
        BrokerConnectionError
            If the broker cannot be reached, or does not exist now.
        AuthenticationError
        """
        server = broker if isinstance(broker, ServerAddress) else self._brokers.get(broker)
        if server is None:
            raise BrokerConnectionError(f"broker {broker}: the cluster does not list it now; check that it runs")
        return BrokerConnection(server, self.settings, self._connect, self._tokens)

    def _broker_ids(self) -> list[int]:
        """Return the ids of the brokers in the last metadata."""
        with self._lock:
            return sorted(self._brokers)

    def _ask_broker(self, broker: int, ask: Callable[[BrokerConnection], AnswerT]) -> AnswerT:
        """Send a request to the broker with this id, by the connection for requests other than fetches."""
        with self._lock:
            return ask(self._connection(broker))

    def topics(self, names: Iterable[str] | None = None) -> list[TopicMetadata]:
        """Return topics with their partitions and leaders, by name.

        Parameters
        ----------
        names : iterable of str, optional
            Default is all topics that the client may describe.

        Raises
        ------
        BrokerError
            If a named topic does not exist or may not be described, or no broker can be reached.
        """
        check_types(Cluster.topics, locals())
        wanted = None if names is None else sorted(set(names))
        if isinstance(names, bytes | str) or not all(isinstance(name, str) for name in wanted or ()):
            raise TypeError(f"names must be names of topics, got {names!r}")
        deadline = self._deadline()
        backoff = Backoff(self.settings.retry_backoff_ms, 1000)
        while True:
            response, broker = self._metadata(wanted, deadline)
            failed = next((topic for topic in response.topics if topic.error_code), None)
            if wanted is None or failed is None:
                return sorted(
                    map(_topic_metadata, (t for t in response.topics if not t.error_code)), key=lambda topic: topic.name
                )
            code = ErrorCode(failed.error_code)
            if code in UNKNOWN_TOPIC or not code.retriable or time.monotonic() > deadline:
                raise self._topic_error(failed, broker)
            self._pause(backoff)

    def _present_topics(self, names: Iterable[str] | None = None) -> list[TopicMetadata]:
        """Return the topics that exist and may be described."""
        response, _ = self._metadata(None if names is None else sorted(set(names)), self._deadline())
        return [_topic_metadata(topic) for topic in response.topics if not topic.error_code]

    def _topic_error(self, failed: Any, broker: str) -> BrokerError:
        """Return the error for a topic in a Metadata response; it suggests a similar name."""
        error = refusal_error(failed.error_code, "metadata", broker=broker, topic=failed.name)
        if failed.error_code not in UNKNOWN_TOPIC:
            return error
        response, _ = self._metadata(None, self._deadline())
        hint = did_you_mean(failed.name or "", [topic.name for topic in response.topics])
        hint = hint or "; check its name, and that it was not deleted"
        return BrokerError(
            f"broker {broker}: there is no topic {failed.name!r}{hint}",
            broker=broker,
            topic=failed.name,
            code=error.code,
        )

    def _metadata(self, names: Sequence[str] | None, deadline: float) -> tuple[Any, str]:
        """Return a Metadata response, and the broker that sent it."""
        request_class: Any = message_class("MetadataRequest")
        topics = None if names is None else [request_class.MetadataRequestTopic(name=name) for name in names]

        def ask(connection: BrokerConnection) -> tuple[Any, str]:
            version = connection.version_of(ApiKey.METADATA)
            given: Any = [] if topics is None and version == 0 else topics
            message = request_class(topics=given)
            if version >= 4:
                # Otherwise the broker may create a topic with a misspelt name.
                message.allow_auto_topic_creation = False
            return connection.request(message), str(connection.server)

        response, broker = self._with_any(ask, deadline)
        if response.error_code:
            raise refusal_error(response.error_code, "metadata", broker=broker)
        with self._lock:
            self._brokers = {each.node_id: ServerAddress(each.host, each.port) for each in response.brokers}
        return response, broker

    def offsets(
        self,
        wanted: Mapping[PartitionKey, int],
        *,
        isolation: Isolation = "read_uncommitted",
    ) -> dict[PartitionKey, int | None]:
        """Return an offset of each partition (ListOffsets).

        Parameters
        ----------
        wanted : mapping of (topic, partition) to int
            A time in milliseconds, for the offset of the first record at or after this time, or None if there is none;
            -1 for the offset after the last record, or -2 for the first offset of the log.
        isolation : {"read_uncommitted", "read_committed"}
            With "read_committed", -1 is the last stable offset.

        Raises
        ------
        BrokerError
            If a partition has no leader within ``default.api.timeout.ms``, or the broker refuses the request.
        """
        check_types(Cluster.offsets, locals())
        return {key: each.offset for key, each in self._listed_offsets(wanted, isolation).items()}

    def _listed_offsets(
        self, wanted: Mapping[PartitionKey, int], isolation: Isolation, known: Iterable[TopicMetadata] = ()
    ) -> dict[PartitionKey, ListedOffset]:
        """Return the result of `offsets` with the epochs of the leaders that have listed the offsets.

        `known` has these topics from metadata that were just received.
        """
        ISOLATION.check(isolation)
        found: dict[PartitionKey, ListedOffset] = {}
        rest = dict(wanted)
        deadline = self._deadline()
        backoff = Backoff(self.settings.retry_backoff_ms, 1000)
        topics = list(known)
        while rest:
            error: BrokerError | None = None
            for leader, partitions in self._by_leader(rest, topics).items():
                try:
                    if leader < 0:
                        topic, number = next(iter(partitions))
                        raise refusal_error(
                            ErrorCode.LEADER_NOT_AVAILABLE, "ListOffsets", broker=None, topic=topic, partition=number
                        )
                    answered, refused = self._listed(leader, partitions, isolation)
                    found.update(answered)
                    error = refused or error
                except BrokerError as failed:
                    if not is_retriable(failed):
                        raise
                    error = failed
            rest = {key: time for key, time in rest.items() if key not in found}
            topics = []
            if error is not None and rest:
                if time.monotonic() > deadline:
                    raise error
                self._pause(backoff)
        return found

    def _by_leader(
        self, wanted: Mapping[PartitionKey, int], known: Sequence[TopicMetadata]
    ) -> dict[int, dict[PartitionKey, int]]:
        """Group partitions by leader id, from known or else new metadata; the id is -1 if there is no leader."""
        topics = {topic.name: topic for topic in known or self.topics({topic for topic, _ in wanted})}
        found: dict[int, dict[PartitionKey, int]] = {}
        for (topic, number), timestamp in wanted.items():
            found.setdefault(leader_of(topics[topic], number).broker, {})[topic, number] = timestamp
        return found

    def _listed(
        self, leader: int, wanted: Mapping[PartitionKey, int], isolation: Isolation
    ) -> tuple[dict[PartitionKey, ListedOffset], BrokerError | None]:
        """Return the offsets that one broker lists, and a retriable error if it refused others."""
        request_class: Any = message_class("ListOffsetsRequest")
        by_topic: dict[str, list[Any]] = {}
        for (topic, number), timestamp in wanted.items():
            entry = request_class.ListOffsetsPartition(partition_index=number, timestamp=timestamp)
            by_topic.setdefault(topic, []).append(entry)
        topics = [request_class.ListOffsetsTopic(name=topic, partitions=each) for topic, each in by_topic.items()]
        message = request_class(replica_id=-1, isolation_level=int(isolation == "read_committed"), topics=topics)
        with self._lock:
            connection = self._connection(leader)
            # Version 0 has several offsets, and brokers before Kafka 0.11 have no isolation.
            version = connection.version_of(ApiKey.LIST_OFFSETS)
            if version < 2:
                raise BrokerError(
                    f"broker {connection.server}: is too old; kbatch needs Kafka 0.11 or newer",
                    broker=str(connection.server),
                    code=ErrorCode.UNSUPPORTED_VERSION,
                )
            response = connection.request(message)
        found: dict[PartitionKey, ListedOffset] = {}
        error = None
        for topic in response.topics:
            for each in topic.partitions:
                if each.error_code:
                    error = refusal_error(
                        each.error_code,
                        "ListOffsets",
                        broker=str(connection.server),
                        topic=topic.name,
                        partition=each.partition_index,
                    )
                    if not is_retriable(error):
                        raise error
                    continue
                offset = each.offset if each.offset >= 0 else None
                found[topic.name, each.partition_index] = ListedOffset(offset, each.leader_epoch)
        return found, error

    def _connection(self, broker: int) -> BrokerConnection:
        """Return the connection for requests other than fetches; the caller holds the lock."""
        first = self._connections.get(None)
        if broker not in self._connections and first is not None and first.server == self._brokers.get(broker):
            # The bootstrap server has turned out to be this broker.
            self._connections[broker] = self._connections.pop(None)
        connection = self._connections.get(broker)
        if connection is None or connection.is_closed or connection.server != self._brokers.get(broker):
            if connection is not None:
                connection.close()
            connection = self._open_connection(broker)
            self._keep(connection)
        return connection

    def _with_any(self, ask: Callable[[BrokerConnection], AnswerT], deadline: float) -> AnswerT:
        """Ask brokers until one responds: by an open connection, known brokers, then the bootstrap servers."""
        backoff = Backoff(self.settings.reconnect_backoff_ms, self.settings.reconnect_backoff_max_ms)
        while True:
            failures: list[BrokerConnectionError] = []
            with self._lock:
                for connection in [each for each in self._connections.values() if not each.is_closed]:
                    try:
                        return ask(connection)
                    except BrokerConnectionError as error:
                        failures.append(error)
                for server in dict.fromkeys([*self._brokers.values(), *self.settings.bootstrap_servers]):
                    self._check_open()
                    try:
                        connection = BrokerConnection(server, self.settings, self._connect, self._tokens)
                        self._keep(connection)
                        found = ask(connection)
                        self._was_reached = True
                        return found
                    except BrokerConnectionError as error:
                        failures.append(error)
            if time.monotonic() > deadline:
                raise _no_broker(failures)
            self._pause(backoff)

    def _keep(self, connection: BrokerConnection) -> None:
        """Keep an open connection for other requests."""
        broker = next((each for each, address in self._brokers.items() if address == connection.server), None)
        if (previous := self._connections.get(broker)) is not None:
            previous.close()
        self._connections[broker] = connection
        if self._closed.is_set():
            # Another thread has since closed the cluster.
            connection.close()

    def _deadline(self) -> float:
        milliseconds = self.settings.default_api_timeout_ms
        if not self._was_reached:
            # The wait for an address that never worked is shorter than for a broker that restarts.
            milliseconds = min(milliseconds, self.settings.socket_connection_setup_timeout_ms)
        return time.monotonic() + milliseconds / 1000

    def _pause(self, backoff: Backoff) -> None:
        self._closed.wait(backoff.next_seconds())
        self._check_open()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ValueError("the cluster is closed")


def _topic_metadata(topic: Any) -> TopicMetadata:
    partitions = {
        each.partition_index: PartitionLeader(each.leader_id, each.leader_epoch)
        for each in sorted(topic.partitions, key=lambda each: each.partition_index)
    }
    return TopicMetadata(topic.name, topic.topic_id, topic.is_internal, partitions)


def leader_of(topic: TopicMetadata, number: int) -> PartitionLeader:
    """Return the leader of a partition from metadata; a partition that does not exist is an error."""
    leader = topic.partitions.get(number)
    if leader is None:
        raise BrokerError(
            f"{topic.name}-{number}: there is no such partition; the topic has {len(topic.partitions)}",
            topic=topic.name,
            partition=number,
        )
    return leader


def topic_exists(cluster: Cluster, topic: str) -> bool:
    """Whether a cluster has a topic.

    Raises
    ------
    BrokerError
        Also if ACLs hide the topic.
    """
    try:
        cluster.topics([topic])
    except BrokerError as error:
        if error.code not in UNKNOWN_TOPIC:
            raise
        return False
    return True


def is_retriable(error: BrokerError) -> bool:
    """Whether a retry after new metadata may succeed."""
    return isinstance(error, BrokerConnectionError) or (error.code is not None and error.code.retriable)


def _no_broker(failures: Sequence[BrokerConnectionError]) -> BrokerConnectionError:
    """Return the error of a request to which no broker responded."""
    reasons = list(dict.fromkeys(map(str, failures)))
    if len(reasons) == 1:
        return failures[0]
    return BrokerConnectionError(f"no broker can be reached: {'; '.join(reasons)}", broker=failures[0].broker)
