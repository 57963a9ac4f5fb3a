"""Brokers in this process that coordinate groups: the classic protocol, and the new one (KIP-848)."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from scripted_broker import ScriptedCluster, ScriptedPartition

from kbatch.protocol import (
    ApiKey,
    ConsumerGroupHeartbeatResponse,
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
)

__all__ = ["GroupCluster", "ScriptedGroup", "ScriptedMember"]

CONSUMER_PROTOCOL = {ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1)}
CLASSIC_PROTOCOL = {
    ApiKey.OFFSET_COMMIT: (2, 10),
    ApiKey.OFFSET_FETCH: (1, 10),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 5),
}
HEARTBEAT_MS = 20


@dataclass
class ScriptedMember:
    """A member as its coordinator knows it; partitions are those of the consumer protocol, by topic and number."""

    instance_id: str | None = None
    protocols: dict[str, bytes] = field(default_factory=dict)
    topics: list[str] = field(default_factory=list)
    epoch: int = 0
    previous_epoch: int = 0
    owned: set[tuple[str, int]] = field(default_factory=set)
    granted: set[tuple[str, int]] = field(default_factory=set)
    sent: set[tuple[str, int]] | None = None


@dataclass
class ScriptedGroup:
    """A group: ``commits`` are the offsets that were committed, in order, as (topic, partition, offset, epoch)."""

    offsets: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    commits: list[tuple[str, int, int, int]] = field(default_factory=list)
    members: dict[str, ScriptedMember] = field(default_factory=dict)
    generation: int = 0
    state: str = "empty"
    joined: set[str] = field(default_factory=set)
    leader: str = ""
    protocol: str = ""
    assignments: dict[str, bytes] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    made: int = 0

    def new_id(self) -> str:
        self.made += 1
        return f"member-{self.made}"

    def remove(self, member: str) -> None:
        """Remove a member, as after its session."""
        if self.members.pop(member, None) is not None:
            self.joined.discard(member)
            self.state = "preparing" if self.members else "empty"
            self.generation += not self.members


class GroupCluster(ScriptedCluster):
    """Brokers that coordinate groups: broker `coordinator` answers, by the classic and maybe the consumer protocol."""

    def __init__(
        self, brokers: int = 1, *, has_consumer_protocol: bool = True, **topics: list[ScriptedPartition]
    ) -> None:
        super().__init__(brokers, **topics)
        self.versions |= CLASSIC_PROTOCOL | (CONSUMER_PROTOCOL if has_consumer_protocol else {})
        self.coordinator = 1
        self.groups: dict[str, ScriptedGroup] = {}
        self.changed = threading.Condition(self.lock)

    def group(self, name: str = "etl") -> ScriptedGroup:
        return self.groups.setdefault(name, ScriptedGroup())

    def committed(self, name: str = "etl") -> dict[tuple[str, int], int]:
        with self.lock:
            return {key: offset for key, (offset, _) in self.group(name).offsets.items()}

    def wait(self, condition: Any, seconds: float = 5.0) -> None:
        """Wait until the state of the groups fulfils a condition."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the condition is not fulfilled"
            time.sleep(0.005)

    def _fetch(self, broker: int, message: Any, version: int) -> Any:
        response = super()._fetch(broker, message, version)
        if not any(part.records or part.error_code for topic in response.responses for part in topic.partitions):
            # As a broker that waits for records.
            self.changed.wait(0.005)
        return response

    def _find_coordinator(self, broker: int, message: Any, version: int) -> Any:
        cls = FindCoordinatorResponse
        where = {"node_id": self.coordinator, "host": f"broker-{self.coordinator}", "port": 9092}
        if version < 4:
            return cls(**where)
        return cls(coordinators=[cls.Coordinator(key=key, **where) for key in message.coordinator_keys])

    # -- offsets

    def _offset_fetch(self, broker: int, message: Any, version: int) -> Any:
        cls = OffsetFetchResponse
        is_list = version >= 8
        asked = message.groups[0] if is_list else message
        offsets = self.group(asked.group_id).offsets
        keys = list(offsets)
        if asked.topics is not None:
            keys = [(topic.name, number) for topic in asked.topics for number in topic.partition_indexes]
        topic_class = cls.OffsetFetchResponseTopics if is_list else cls.OffsetFetchResponseTopic
        part_class = cls.OffsetFetchResponsePartitions if is_list else cls.OffsetFetchResponsePartition
        topics = []
        for name, number in keys:
            offset, epoch = offsets.get((name, number), (-1, -1))
            part = part_class(partition_index=number, committed_offset=offset, committed_leader_epoch=epoch)
            topics.append(topic_class(name=name, partitions=[part]))
        code = 0 if broker == self.coordinator else 16
        if not is_list:
            return cls(topics=topics, error_code=code)
        return cls(groups=[cls.OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics, error_code=code)])

    def _offset_commit(self, broker: int, message: Any, version: int) -> Any:
        cls = OffsetCommitResponse
        group = self.group(message.group_id)
        generation = message.generation_id_or_member_epoch
        member = group.members.get(message.member_id)
        code = 0
        if broker != self.coordinator:
            code = 16
        elif generation < 0:
            code = 25 if group.members else 0
        elif member is None:
            code = 25
        elif member.epoch:
            code = 0 if generation == member.epoch else 113
        elif generation != group.generation:
            code = 22
        elif group.state == "completing":
            code = 27
        topics = []
        for topic in message.topics:
            found = []
            for each in topic.partitions:
                found.append(cls.OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code))
                if not code:
                    key = (topic.name, each.partition_index)
                    group.offsets[key] = (each.committed_offset, each.committed_leader_epoch)
                    group.commits.append((*key, each.committed_offset, each.committed_leader_epoch))
            topics.append(cls.OffsetCommitResponseTopic(name=topic.name, partitions=found))
        return cls(topics=topics)

    # -- the classic protocol

    def _join_group(self, broker: int, message: Any, version: int) -> Any:
        group = self.group(message.group_id)
        if broker != self.coordinator:
            return JoinGroupResponse(error_code=16)
        name = message.member_id
        instance = message.group_instance_id
        offered = {each.name for each in message.protocols}
        if any(each.protocols and not offered & each.protocols.keys() for each in group.members.values()):
            return JoinGroupResponse(error_code=23)
        if not name:
            name = group.new_id()
            if instance is None and version >= 4:
                return JoinGroupResponse(error_code=79, member_id=name)
            statics = {each.instance_id: key for key, each in group.members.items() if each.instance_id is not None}
            previous = statics.get(instance, "")
            group.members.pop(previous, None)
            group.joined.discard(previous)
        protocols = {each.name: bytes(each.metadata) for each in message.protocols}
        group.members[name] = ScriptedMember(instance, protocols)
        group.joined.add(name)
        group.state = "preparing"
        self.changed.notify_all()
        deadline = time.monotonic() + message.rebalance_timeout_ms / 1000
        round_begun = group.generation
        while group.generation == round_begun and group.joined < group.members.keys() and time.monotonic() < deadline:
            self.changed.wait(0.01)
        if group.generation == round_begun:
            for each in group.members.keys() - group.joined:
                del group.members[each]
            group.generation += 1
            group.state = "completing"
            group.leader = min(group.members)
            common = set.intersection(*({*each.protocols} for each in group.members.values()))
            group.protocol = next(each for each in group.members[group.leader].protocols if each in common)
            group.joined = set()
            self.changed.notify_all()
        if name not in group.members:
            return JoinGroupResponse(error_code=25)
        cls = JoinGroupResponse.JoinGroupResponseMember
        members = [
            cls(member_id=key, group_instance_id=each.instance_id, metadata=each.protocols[group.protocol])
            for key, each in group.members.items()
        ]
        return JoinGroupResponse(
            generation_id=round_begun + 1,
            protocol_type="consumer",
            protocol_name=group.protocol,
            leader=group.leader,
            member_id=name,
            members=members if name == group.leader else [],
        )

    def _sync_group(self, broker: int, message: Any, version: int) -> Any:
        group = self.group(message.group_id)
        if code := self._refusal(group, message):
            return SyncGroupResponse(error_code=code)
        if group.leader == message.member_id:
            group.assignments = {each.member_id: bytes(each.assignment) for each in message.assignments}
            if group.state == "completing":
                group.state = "stable"
            self.changed.notify_all()
        while group.state == "completing":
            self.changed.wait(0.01)
        code = self._refusal(group, message) or (27 if group.state == "preparing" else 0)
        assignment = b"" if code else group.assignments.get(message.member_id, b"")
        return SyncGroupResponse(
            error_code=code, protocol_type="consumer", protocol_name=group.protocol, assignment=assignment
        )

    def _refusal(self, group: ScriptedGroup, message: Any) -> int:
        if message.member_id not in group.members:
            return 25
        return 0 if message.generation_id == group.generation else 22

    def _heartbeat(self, broker: int, message: Any, version: int) -> Any:
        group = self.group(message.group_id)
        if broker != self.coordinator:
            return HeartbeatResponse(error_code=16)
        code = self._refusal(group, message) or (27 if group.state == "preparing" else 0)
        return HeartbeatResponse(error_code=code)

    def _leave_group(self, broker: int, message: Any, version: int) -> Any:
        group = self.group(message.group_id)
        for name in [each.member_id for each in message.members] if version >= 3 else [message.member_id]:
            group.left.append(name)
            group.remove(name)
        self.changed.notify_all()
        return LeaveGroupResponse()

    # -- the consumer protocol

    def _consumer_group_heartbeat(self, broker: int, message: Any, version: int) -> Any:
        cls = ConsumerGroupHeartbeatResponse
        group = self.group(message.group_id)
        if broker != self.coordinator:
            return cls(error_code=16)
        name = message.member_id
        if message.member_epoch < 0:
            group.left.append(name)
            group.members.pop(name, None)
            group.generation += 1
            return cls(member_id=name, member_epoch=message.member_epoch)
        if message.member_epoch == 0:
            name = name or group.new_id()
            group.members[name] = ScriptedMember(message.instance_id)
            group.generation += 1
        if name not in group.members:
            return cls(error_code=25, error_message=f"Member {name} is not a member of the group.")
        member = group.members[name]
        # The response with the new epoch may have been lost: then the member states its partitions again.
        is_repeated = message.member_epoch == member.previous_epoch and message.topic_partitions is not None
        if message.member_epoch not in (0, member.epoch) and not is_repeated:
            return cls(error_code=110)
        if message.subscribed_topic_names is not None and member.topics != message.subscribed_topic_names:
            member.topics = list(message.subscribed_topic_names)
            group.generation += 1
        if message.topic_partitions is not None:
            names = {topic_id: topic for topic, topic_id in self.ids.items()}
            member.owned = {(names[each.topic_id], n) for each in message.topic_partitions for n in each.partitions}
        is_full = message.topic_partitions is not None and message.subscribed_topic_names is not None
        return self._assigned(group, name, is_full)

    def _assigned(self, group: ScriptedGroup, name: str, is_full: bool) -> Any:
        """Return the part of the target that no other member has: first without what this one has to give up."""
        cls = ConsumerGroupHeartbeatResponse
        member = group.members[name]
        target = self._target(group, name)
        if member.owned - target:
            assigned = member.owned & target
        else:
            if member.epoch != group.generation:
                member.previous_epoch, member.epoch = member.epoch, group.generation
            others = set().union(*(each.owned | each.granted for each in group.members.values() if each is not member))
            assigned = target - others
        member.granted = assigned | member.owned
        assignment = None
        if assigned != member.sent or is_full:
            member.sent = assigned
            by_topic: dict[str, list[int]] = {}
            for topic, number in sorted(assigned):
                by_topic.setdefault(topic, []).append(number)
            assignment = cls.Assignment(
                topic_partitions=[
                    cls.TopicPartitions(topic_id=self.ids[topic], partitions=numbers)
                    for topic, numbers in by_topic.items()
                ]
            )
        return cls(member_id=name, member_epoch=member.epoch, heartbeat_interval_ms=HEARTBEAT_MS, assignment=assignment)

    def _target(self, group: ScriptedGroup, name: str) -> set[tuple[str, int]]:
        found = set()
        for topic, partitions in self.topics.items():
            takers = sorted(key for key, each in group.members.items() if topic in each.topics)
            for number in range(len(partitions)):
                if takers and takers[number % len(takers)] == name:
                    found.add((topic, number))
        return found
