"""What a cluster has: topics with their partitions, offsets and sizes, and groups with their offsets and lag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbatch.error_codes import ErrorCode
from kbatch.errors import ProtocolError
from kbatch.live.assignors import partitions_of
from kbatch.live.broker_connection import BrokerConnection
from kbatch.live.broker_errors import BrokerError, refusal_error
from kbatch.live.cluster import EARLIEST, LATEST, Cluster, PartitionKey
from kbatch.live.coordinator import CommittedOffset, committed_answer
from kbatch.live.live_transactions import live_open_transactions
from kbatch.live.subscription import TopicSubscription
from kbatch.log.store.names import INTERNAL_TOPICS
from kbatch.options import Isolation
from kbatch.protocol.api_keys import ApiKey
from kbatch.protocol.messages import message_class
from kbatch.transactions import OpenTransaction

__all__ = ["ClusterListing", "GroupOffset", "ListedGroup", "ListedPartition", "ListedTopic"]

# Kinds of groups that have no committed offsets or use another protocol.
_OTHER_KINDS = frozenset(["share", "streams"])


class ListedPartition(NamedTuple):
    """A partition.

    Attributes
    ----------
    topic : str
    partition : int
    leader : int or None
        The id of a broker.
    replicas, in_sync, offline : tuple of int
    first, stable, end : int or None
        The first offset, the last stable offset, and the offset after the last record; None without a leader.
    size : int or None
        The bytes of the leader's log; None if the brokers do not report it.
    open_transactions : list of OpenTransaction or None
        By first offset; None if the leader does not report them.
    """

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]
    first: int | None
    stable: int | None
    end: int | None
    size: int | None
    open_transactions: list[OpenTransaction] | None

    @property
    def offsets(self) -> int | None:
        """The number of offsets; a log with gaps has fewer records."""
        return None if self.first is None or self.end is None else self.end - self.first


class ListedTopic(NamedTuple):
    """A topic; `id` is None if the broker has none."""

    name: str
    id: str | None
    internal: bool
    partitions: list[ListedPartition]


class GroupOffset(NamedTuple):
    """A partition of a group: its committed offset, the end of its log, and the client id and host of its member."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    member: str | None

    @property
    def lag(self) -> int | None:
        """The number of offsets from the committed offset to the end."""
        return None if self.committed is None or self.end is None else max(self.end - self.committed, 0)


class ListedGroup(NamedTuple):
    """A group; `members` is None if the client may not describe it."""

    name: str
    kind: str
    state: str
    members: int | None
    partitions: list[GroupOffset]


@dataclass
class _Described:
    """A group as its coordinator describes it; `owners` are members by partition."""

    kind: str
    state: str
    members: int | None = None
    owners: dict[PartitionKey, str] = field(default_factory=dict)
    committed: dict[PartitionKey, CommittedOffset] = field(default_factory=dict)


class ClusterListing:
    """The topics and groups of a cluster.

    Parameters
    ----------
    cluster : Cluster
    topics : sequence of str
        Names and globs; all topics if it is empty.
    internal : bool
        Whether to list internal topics that are not named.

    Attributes
    ----------
    topics : list of ListedTopic
    notes : list of str
        Reasons why values are unknown.

    Raises
    ------
    BrokerError, AuthenticationError
        If a named topic does not exist, or no broker can be reached.

    Examples
    --------
    >>> from kbatch.live import ClientSettings, Cluster
    >>> from kbatch.live.cluster_listing import ClusterListing
    >>> with Cluster(ClientSettings.of(bootstrap_servers="localhost:9092")) as cluster:  # doctest: +SKIP
    ...     [topic.name for topic in ClusterListing(cluster).topics]
    ['orders']
    """

    def __init__(self, cluster: Cluster, topics: Sequence[str] = (), *, internal: bool = False) -> None:
        self._cluster = cluster
        self._is_chosen = bool(topics)
        self.notes: list[str] = []
        if topics:
            names = [topic.name for topic in TopicSubscription(cluster, topics).topics]
        else:
            listed = cluster.topics()
            hidden = (
                [] if internal else [each.name for each in listed if each.is_internal or each.name in INTERNAL_TOPICS]
            )
            names = [topic.name for topic in listed if topic.name not in hidden]
        self.topics = self._listed_topics(names)

    def _listed_topics(self, names: Sequence[str]) -> list[ListedTopic]:
        if not names:
            return []
        response, _ = self._cluster._metadata(names, self._cluster._deadline())
        found = sorted((each for each in response.topics if not each.error_code), key=lambda each: str(each.name))
        parts = {(topic.name, part.partition_index): part for topic in found for part in topic.partitions}
        led = [key for key, part in parts.items() if part.leader_id >= 0]
        first, end = self._offsets(led, EARLIEST), self._offsets(led, LATEST)
        stable = self._offsets(led, LATEST, "read_committed")
        sizes = self._sizes(parts)
        # The last stable offset is the end, unless a transaction is open.
        withheld = {key: parts[key].leader_id for key in led if stable.get(key) != end.get(key)}
        still_open = live_open_transactions(self._cluster, withheld, self._note) if withheld else {}
        return [
            ListedTopic(
                topic.name,
                str(topic.topic_id) if topic.topic_id.int else None,
                topic.is_internal,
                [
                    ListedPartition(
                        topic.name,
                        number,
                        part.leader_id if part.leader_id >= 0 else None,
                        tuple(part.replica_nodes),
                        tuple(part.isr_nodes),
                        tuple(part.offline_replicas),
                        first.get((topic.name, number)),
                        stable.get((topic.name, number)),
                        end.get((topic.name, number)),
                        sizes.get((topic.name, number, part.leader_id)),
                        still_open.get((topic.name, number), None if (topic.name, number) in withheld else []),
                    )
                    for number, part in sorted((each.partition_index, each) for each in topic.partitions)
                ],
            )
            for topic in found
        ]

    def _offsets(
        self, keys: Sequence[PartitionKey], timestamp: int, isolation: Isolation = "read_uncommitted"
    ) -> dict[PartitionKey, int | None]:
        return self._cluster.offsets(dict.fromkeys(keys, timestamp), isolation=isolation)

    def _from_brokers(self, what: str, ask: Callable[[BrokerConnection], Any]) -> Iterator[tuple[int, Any]]:
        """Yield the response of each broker, by id; a broker that does not respond is noted."""
        for broker in self._cluster._broker_ids():
            try:
                answer = self._cluster._ask_broker(broker, ask)
            except BrokerError as error:
                self._note(f"{what}: {error}")
            else:
                yield broker, answer

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _sizes(self, keys: Iterable[PartitionKey]) -> dict[tuple[str, int, int], int]:
        """Return the sizes of logs by topic, partition and broker (DescribeLogDirs)."""
        cls: Any = message_class("DescribeLogDirsRequest")
        topics: dict[str, Any] = {}
        for name, number in keys:
            topics.setdefault(name, cls.DescribableLogDirTopic(topic=name, partitions=[])).partitions.append(number)
        message = cls(topics=list(topics.values()))

        def ask(connection: BrokerConnection) -> Any:
            response = connection.request(message)
            for code in (response.error_code, *(each.error_code for each in response.results)):
                if code:
                    raise refusal_error(code, "DescribeLogDirs", broker=str(connection.server))
            return response

        found: dict[tuple[str, int, int], int] = {}
        for broker, response in self._from_brokers("sizes are not known", ask):
            for directory in response.results:
                for topic in directory.topics:
                    for part in topic.partitions:
                        if not part.is_future_key:
                            found[topic.name, part.partition_index, broker] = part.partition_size
        return found

    # -- groups

    def groups(self) -> list[ListedGroup]:
        """Return the groups by name: all groups, or those of the chosen topics.

        Committed offsets of topics that are not listed have neither end nor lag.
        """
        found: dict[str, _Described] = {}
        for _, described in self._from_brokers("groups are not complete", self._described):
            found |= described
        ends = {(each.topic, each.partition): each.end for topic in self.topics for each in topic.partitions}
        groups = []
        for name, each in sorted(found.items()):
            keys = sorted({*each.committed, *each.owners})
            if self._is_chosen:
                keys = [key for key in keys if key in ends]
                if not keys:
                    continue
            offsets = [
                GroupOffset(
                    *key,
                    each.committed[key].offset if key in each.committed else None,
                    ends.get(key),
                    each.owners.get(key),
                )
                for key in keys
            ]
            groups.append(ListedGroup(name, each.kind, each.state, each.members, offsets))
        return groups

    def _described(self, connection: BrokerConnection) -> dict[str, _Described]:
        """Return the groups that a broker coordinates (ListGroups)."""
        broker = str(connection.server)
        response = connection.request(message_class("ListGroupsRequest")())
        if response.error_code:
            raise refusal_error(response.error_code, "ListGroups", broker=broker)
        found = {
            # Brokers before Kafka 3.8 have only classic groups, and do not state the type.
            each.group_id: _Described(each.group_type.lower() or "classic", each.group_state)
            for each in response.groups
        }
        self._describe_classic(connection, {name: each for name, each in found.items() if each.kind == "classic"})
        self._describe_consumers(connection, {name: each for name, each in found.items() if each.kind == "consumer"})
        for name, each in found.items():
            if each.kind in _OTHER_KINDS:
                continue
            offsets, code, message = committed_answer(connection, name)
            if code:
                self._refused(code, name, broker, message)
            else:
                each.committed = offsets
        return found

    def _describe_classic(self, connection: BrokerConnection, groups: dict[str, _Described]) -> None:
        if not groups:
            return
        response = connection.request(message_class("DescribeGroupsRequest")(groups=sorted(groups)))
        for each in response.groups:
            if each.error_code:
                self._refused(each.error_code, each.group_id, str(connection.server), each.error_message)
                continue
            group = groups[each.group_id]
            group.state, group.members = each.group_state, len(each.members)
            if each.protocol_type != "consumer":
                continue
            for member in each.members:
                try:
                    assigned = partitions_of(bytes(member.member_assignment))
                except ProtocolError as error:
                    self._note(f"group {each.group_id!r}: the assignment of a member cannot be read: {error}")
                    continue
                group.owners |= dict.fromkeys(assigned, _member_text(member))

    def _describe_consumers(self, connection: BrokerConnection, groups: dict[str, _Described]) -> None:
        if not groups:
            return
        if not connection.has(ApiKey.CONSUMER_GROUP_DESCRIBE, 0):
            return
        response = connection.request(message_class("ConsumerGroupDescribeRequest")(group_ids=sorted(groups)))
        for each in response.groups:
            if each.error_code:
                self._refused(each.error_code, each.group_id, str(connection.server), each.error_message)
                continue
            group = groups[each.group_id]
            group.state, group.members = each.group_state, len(each.members)
            for member in each.members:
                for topic in member.assignment.topic_partitions:
                    keys = [(topic.topic_name, number) for number in topic.partitions]
                    group.owners |= dict.fromkeys(keys, _member_text(member))

    def _refused(self, code: int, group: str, broker: str, message: str | None) -> None:
        if code != ErrorCode.GROUP_ID_NOT_FOUND:
            self._note(str(refusal_error(code, f"description of group {group!r}", broker=broker, message=message)))


def _member_text(member: Any) -> str:
    return f"{member.client_id} {member.client_host}"
