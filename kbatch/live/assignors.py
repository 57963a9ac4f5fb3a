"""Assignors: how the leader of a classic group divides partitions among its members."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kbatch.live.cluster import PartitionKey
from kbatch.live.group_settings import COOPERATIVE
from kbatch.protocol.member_data import decode_member_data, encode_member_data
from kbatch.protocol.messages import message_class

__all__ = [
    "GroupSubscription",
    "assignment_data",
    "divide",
    "partitions_of",
    "subscription_data",
]

Assignment = dict[str, list[PartitionKey]]


class GroupSubscription(NamedTuple):
    """The topics that a member subscribes to, and the partitions that it owns.

    Attributes
    ----------
    member_id : str
    instance_id : str or None
    topics : list of str
    owned : list of (topic, partition)
    generation : int
        The generation in which the member owned these partitions, or -1.
    """

    member_id: str
    instance_id: str | None
    topics: list[str]
    owned: list[PartitionKey]
    generation: int

    @classmethod
    def of(cls, member: Any) -> GroupSubscription:
        """Return the subscription of a member in a JoinGroup response."""
        found = decode_member_data("ConsumerProtocolSubscription", bytes(member.metadata))
        data = bytes(found.user_data or b"")
        generation = found.generation_id
        if generation < 0 and len(data) == 4:
            # Before version 2, members put the generation into the data of the cooperative assignor.
            generation = int.from_bytes(data, "big", signed=True)
        owned = [(each.topic, number) for each in found.owned_partitions for number in each.partitions]
        return cls(member.member_id, member.group_instance_id, list(found.topics), owned, generation)

    @property
    def place(self) -> tuple[bool, str]:
        """The order of members in Kafka's assignors: static members first, by instance id."""
        return (self.instance_id is None, self.instance_id or self.member_id)


def subscription_data(topics: Iterable[str], owned: Iterable[PartitionKey], generation: int) -> bytes:
    """Return the metadata of a member in a JoinGroup request."""
    cls: Any = message_class("ConsumerProtocolSubscription")
    return encode_member_data(
        cls(
            topics=sorted(topics),
            # Java's cooperative assignor before Kafka 3.2 expects the generation here.
            user_data=generation.to_bytes(4, "big", signed=True),
            owned_partitions=_by_topic(owned, cls.TopicPartition),
            generation_id=generation,
        )
    )


def assignment_data(partitions: Iterable[PartitionKey]) -> bytes:
    """Return the assignment of a member in a SyncGroup request."""
    cls: Any = message_class("ConsumerProtocolAssignment")
    return encode_member_data(cls(assigned_partitions=_by_topic(partitions, cls.TopicPartition)))


def partitions_of(data: bytes) -> frozenset[PartitionKey]:
    """Return the partitions of an assignment; none if it has no data."""
    if not data:
        return frozenset()
    found = decode_member_data("ConsumerProtocolAssignment", data)
    return frozenset((each.topic, number) for each in found.assigned_partitions for number in each.partitions)


def _by_topic(partitions: Iterable[PartitionKey], structure: Any) -> list[Any]:
    groups = itertools.groupby(sorted(partitions), key=lambda key: key[0])
    return [structure(topic=topic, partitions=[number for _, number in each]) for topic, each in groups]


def divide(assignor: str, members: Sequence[GroupSubscription], counts: Mapping[str, int]) -> Assignment:
    """Return the partitions of each member, by member id.

    Parameters
    ----------
    assignor : str
    members : sequence of GroupSubscription
    counts : mapping of str to int
        The number of partitions of each existing topic.
    """
    assignors: dict[str, Callable[[Sequence[GroupSubscription], Mapping[str, int]], Assignment]] = {
        "range": _range_assignment,
        "roundrobin": _round_robin,
        COOPERATIVE: _cooperative,
    }
    return assignors[assignor](sorted(members, key=lambda each: each.place), counts)


def _range_assignment(members: Sequence[GroupSubscription], counts: Mapping[str, int]) -> Assignment:
    """Give each member a range of each topic, so that partitions with equal numbers go to the same member."""
    found: Assignment = {each.member_id: [] for each in members}
    for topic, count in sorted(counts.items()):
        takers = [each.member_id for each in members if topic in each.topics]
        first = 0
        for place, member in enumerate(takers):
            size = count // len(takers) + (place < count % len(takers))
            found[member] += [(topic, number) for number in range(first, first + size)]
            first += size
    return found


def _round_robin(members: Sequence[GroupSubscription], counts: Mapping[str, int]) -> Assignment:
    """Assign the partitions of all topics to the members in turn."""
    found: Assignment = {each.member_id: [] for each in members}
    turn = 0
    for key in _partitions(counts):
        if not any(key[0] in each.topics for each in members):
            continue
        while key[0] not in members[turn % len(members)].topics:
            turn += 1
        found[members[turn % len(members)].member_id].append(key)
        turn += 1
    return found


def _cooperative(members: Sequence[GroupSubscription], counts: Mapping[str, int]) -> Assignment:
    """Balance the partitions with few moves; a partition that moves is unassigned first (KIP-429)."""
    owners = _owners(members, counts)
    found = _sticky(members, counts, owners)
    for member, keys in found.items():
        found[member] = [key for key in keys if owners.get(key, member) == member]
    return found


def _owners(members: Sequence[GroupSubscription], counts: Mapping[str, int]) -> dict[PartitionKey, str]:
    """Return the owner of a partition; if several members claim it, the one with the newest generation."""
    newest: dict[PartitionKey, tuple[int, str | None]] = {}
    for each in members:
        for key in each.owned:
            if key[0] not in each.topics or key[1] >= counts.get(key[0], 0):
                continue
            generation, _ = newest.get(key, (each.generation - 1, None))
            if each.generation > generation:
                newest[key] = each.generation, each.member_id
            elif each.generation == generation:
                newest[key] = generation, None
    return {key: member for key, (_, member) in newest.items() if member is not None}


def _sticky(
    members: Sequence[GroupSubscription], counts: Mapping[str, int], owners: Mapping[PartitionKey, str]
) -> Assignment:
    """Return a balanced assignment in which most partitions stay with their owners."""
    found: Assignment = {each.member_id: [] for each in members}
    topics = {each.member_id: frozenset(each.topics) for each in members}
    rest = []
    for key in _partitions(counts):
        if key in owners:
            found[owners[key]].append(key)
        else:
            rest.append(key)
    for key in rest:
        takers = [member for member in found if key[0] in topics[member]]
        if takers:
            found[min(takers, key=lambda member: len(found[member]))].append(key)
    while (move := _next_move(found, topics)) is not None:
        giver, taker, key = move
        found[giver].remove(key)
        found[taker].append(key)
    return found


def _next_move(found: Assignment, topics: Mapping[str, frozenset[str]]) -> tuple[str, str, PartitionKey] | None:
    """Return giver, taker and partition of a move that balances the assignment; None if the assignment is balanced."""
    by_size = sorted(found, key=lambda member: len(found[member]))
    for giver in reversed(by_size):
        for taker in by_size:
            if len(found[giver]) - len(found[taker]) < 2:
                break
            # Partitions without an owner were added last; moving these keeps the others with their owners.
            for key in reversed(found[giver]):
                if key[0] in topics[taker]:
                    return giver, taker, key
    return None


def _partitions(counts: Mapping[str, int]) -> list[PartitionKey]:
    return [(topic, number) for topic, count in sorted(counts.items()) for number in range(count)]
