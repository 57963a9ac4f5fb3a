"""Membership in a group of the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from kbatch.error_codes import ErrorCode
from kbatch.errors import KbatchError
from kbatch.live.assignors import (
    GroupSubscription,
    assignment_data,
    divide,
    partitions_of,
    subscription_data,
)
from kbatch.live.broker_connection import BrokerConnection
from kbatch.live.broker_errors import BrokerError
from kbatch.live.cluster import Cluster, PartitionKey, is_retriable
from kbatch.live.coordinator import CoordinatorAnswer, GroupCoordinator, Membership
from kbatch.live.group_settings import COOPERATIVE, EAGER_ASSIGNORS
from kbatch.live.group_state import GroupChange, GroupState
from kbatch.live.subscription import TopicSubscription
from kbatch.protocol.api_keys import ApiKey
from kbatch.protocol.messages import message_class

__all__ = ["ClassicGroup"]

_PROTOCOL_TYPE = "consumer"
# From these versions on, requests have the id of a static member (KIP-345), and LeaveGroup a list of members.
_STATIC_JOIN, _LEAVE_LIST = 5, 3
# The member must join again, as the same member or as a new one.
_REJOIN = frozenset([ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED])
_REMOVED = frozenset([ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])


class ClassicGroup:
    """A member of a group with the classic protocol, used by the thread of the membership.

    If cooperative-sticky is its only assignor, the member keeps its partitions during a rebalance (KIP-429). Otherwise
    it gives up all partitions before it joins, as Kafka's clients do.

    Parameters
    ----------
    cluster : Cluster
    coordinator : GroupCoordinator
    state : GroupState
    subscription : TopicSubscription
    """

    def __init__(
        self, cluster: Cluster, coordinator: GroupCoordinator, state: GroupState, subscription: TopicSubscription
    ) -> None:
        self._cluster = cluster
        self._settings = cluster.settings
        self._coordinator = coordinator
        self._state = state
        self._subscription = subscription
        chosen = self._settings.partition_assignment_strategy
        self._may_fall_back = chosen is None
        self._assignors = chosen or (COOPERATIVE,)
        self._member_id = ""
        self._generation = -1
        # The numbers of partitions for which the assignment was computed: a change needs a rebalance.
        self._seen: dict[str, int] = {}
        self._is_leader = False
        self._joins = False

    @property
    def _is_eager(self) -> bool:
        return any(name in EAGER_ASSIGNORS for name in self._assignors)

    @property
    def _membership(self) -> Membership:
        return Membership(self._member_id, self._generation, self._settings.group_instance_id)

    def run(self) -> None:
        """Join, and stay a member until the end.

        Raises
        ------
        GroupClosedError, BrokerError
        """
        while True:
            if self._is_eager and self._state.owned:
                change = GroupChange(frozenset())
                self._state.offer(change)
                self._stay(change, is_rejoining=True)
            assigned = self._joined()
            if assigned is None:
                continue
            self._state.join(self._membership)
            change = GroupChange(assigned)
            revoked = self._state.owned - assigned
            self._state.offer(change)
            # After a revocation, another rebalance assigns the partitions to their new owners.
            self._stay(change if revoked else None)

    def interrupt(self) -> None:
        """Stop waiting for other members, which may take as long as the rebalance."""
        if self._joins:
            self._coordinator.interrupt()

    def leave(self) -> None:
        """Leave the group, unless the member is static (KIP-345)."""
        if not self._member_id or self._settings.group_instance_id is not None:
            return
        cls: Any = message_class("LeaveGroupRequest")

        def ask(connection: BrokerConnection) -> CoordinatorAnswer:
            message = cls(group_id=self._coordinator.group, member_id=self._member_id)
            if connection.version_of(ApiKey.LEAVE_GROUP) >= _LEAVE_LIST:
                message = cls(group_id=self._coordinator.group, members=[cls.MemberIdentity(member_id=self._member_id)])
            connection.request(message)
            return CoordinatorAnswer(None, 0)

        # The session ends even if the broker does not respond, or responds with an invalid message.
        with contextlib.suppress(KbatchError):
            self._coordinator.attempt(ask, "LeaveGroup", 0)
        self._member_id, self._generation = "", -1

    # -- joining

    def _joined(self) -> frozenset[PartitionKey] | None:
        """Join, and return the assignment; None if the member must join again."""
        self._joins = True
        try:
            response = self._join()
            return None if response is None else self._synced(response)
        finally:
            self._joins = False

    def _join(self) -> Any:
        """Return a JoinGroup response; None if the member must join again."""
        settings = self._settings
        cls: Any = message_class("JoinGroupRequest")
        self._subscription.refreshed()
        owned = frozenset() if self._is_eager else self._state.owned
        metadata = subscription_data(self._subscription.names, owned, self._generation)
        wait_seconds = settings.max_poll_interval_ms / 1000

        def ask(connection: BrokerConnection) -> CoordinatorAnswer:
            self._state.check_open()
            message = cls(
                group_id=self._coordinator.group,
                session_timeout_ms=settings.session_timeout_ms,
                rebalance_timeout_ms=settings.max_poll_interval_ms,
                member_id=self._member_id,
                protocol_type=_PROTOCOL_TYPE,
                protocols=[cls.JoinGroupRequestProtocol(name=name, metadata=metadata) for name in self._assignors],
            )
            if settings.group_instance_id is not None:
                if not connection.has(ApiKey.JOIN_GROUP, _STATIC_JOIN):
                    raise BrokerError(
                        f"broker {connection.server}: does not support static members (KIP-345), which need Kafka 2.3 "
                        "or newer; omit group.instance.id",
                        broker=str(connection.server),
                        code=ErrorCode.UNSUPPORTED_VERSION,
                    )
                message.group_instance_id = settings.group_instance_id
            connection.send(message, seconds=wait_seconds)
            response = connection.receive()
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = response.member_id
            return CoordinatorAnswer(response, response.error_code)

        try:
            response = self._coordinator.attempt(
                ask, "JoinGroup", wait_seconds + settings.default_api_timeout_ms / 1000
            )
        except BrokerError as error:
            return self._rejoins(error)
        self._member_id, self._generation = response.member_id, response.generation_id
        return response

    def _rejoins(self, error: BrokerError) -> None:
        """Prepare another attempt to join after an error, or raise the error."""
        if error.code in _REMOVED:
            self._lose(keeps_id=error.code == ErrorCode.ILLEGAL_GENERATION)
        elif error.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL and self._may_fall_back and not self._is_eager:
            # The group has members that do not support the cooperative assignor.
            self._assignors = EAGER_ASSIGNORS
        elif error.code not in _REJOIN:
            raise _explained(error, self._assignors)

    def _synced(self, joined: Any) -> frozenset[PartitionKey] | None:
        """Return the assignment of the member, which the group's leader computes; None if it must join again."""
        cls: Any = message_class("SyncGroupRequest")
        self._is_leader = joined.leader == joined.member_id
        assignments = []
        members = [GroupSubscription.of(each) for each in joined.members] if self._is_leader else []
        topics = {name for each in members for name in each.topics} | {*self._subscription.names}
        self._seen = self._counts(topics)
        if self._is_leader and not joined.skip_assignment:
            divided = divide(joined.protocol_name, members, self._seen)
            assignments = [
                cls.SyncGroupRequestAssignment(member_id=member, assignment=assignment_data(partitions))
                for member, partitions in divided.items()
            ]

        def ask(connection: BrokerConnection) -> CoordinatorAnswer:
            self._state.check_open()
            message = cls(
                group_id=self._coordinator.group,
                generation_id=self._generation,
                member_id=self._member_id,
                protocol_type=_PROTOCOL_TYPE,
                protocol_name=joined.protocol_name,
                assignments=assignments,
            )
            if self._settings.group_instance_id is not None:
                message.group_instance_id = self._settings.group_instance_id
            # The response waits for the leader.
            connection.send(message, seconds=self._settings.max_poll_interval_ms / 1000)
            response = connection.receive()
            return CoordinatorAnswer(response, response.error_code)

        try:
            return partitions_of(bytes(self._coordinator.attempt(ask, "SyncGroup").assignment))
        except BrokerError as error:
            self._rejoins(error)
            return None

    def _counts(self, topics: set[str]) -> dict[str, int]:
        """Return the number of partitions of each existing topic."""
        if not topics:
            return {}
        return {topic.name: len(topic.partitions) for topic in self._cluster._present_topics(topics)}

    # -- heartbeats

    def _stay(self, change: GroupChange | None, *, is_rejoining: bool = False) -> None:
        """Send heartbeats until the reader has acknowledged a change, or the member must join again.

        With `is_rejoining`, the member joins again only after the acknowledgement.
        """
        interval = self._settings.heartbeat_interval_ms / 1000
        metadata_interval = self._settings.metadata_max_age_ms / 1000
        heartbeat_at = time.monotonic() + interval
        metadata_at = time.monotonic() + metadata_interval
        while change is None or self._state.change is change:
            is_signalled = self._state.wait(min(heartbeat_at, metadata_at))
            if self._state.is_behind:
                self.leave()
                self._lose()
                return
            now = time.monotonic()
            if now >= metadata_at:
                metadata_at = now + metadata_interval
                if not is_rejoining and self._has_changed():
                    return
            if now >= heartbeat_at or is_signalled:
                heartbeat_at = now + interval
                if not self._is_member(is_rejoining):
                    return

    def _is_member(self, is_rejoining: bool) -> bool:
        """Send a heartbeat; return whether the member may stay."""
        cls: Any = message_class("HeartbeatRequest")

        def ask(connection: BrokerConnection) -> CoordinatorAnswer:
            self._state.check_open()
            message = cls(group_id=self._coordinator.group, generation_id=self._generation, member_id=self._member_id)
            if self._settings.group_instance_id is not None:
                message.group_instance_id = self._settings.group_instance_id
            return CoordinatorAnswer(None, connection.request(message).error_code)

        try:
            self._coordinator.attempt(ask, "Heartbeat")
        except BrokerError as error:
            if error.code == ErrorCode.REBALANCE_IN_PROGRESS:
                return is_rejoining
            if error.code not in _REMOVED:
                raise _explained(error, self._assignors) from None
            self._lose(keeps_id=error.code == ErrorCode.ILLEGAL_GENERATION)
            return False
        self._state.note_heartbeat()
        return True

    def _has_changed(self) -> bool:
        """Whether the subscribed topics, or the partitions that the leader divides, have changed."""
        names = self._subscription.names
        try:
            self._subscription.refreshed()
            counts = self._counts({*self._seen, *self._subscription.names}) if self._is_leader else self._seen
        except BrokerError as error:
            if not is_retriable(error):
                raise
            return False
        return counts != self._seen or names != self._subscription.names

    def _lose(self, keeps_id: bool = False) -> None:
        """Revoke the partitions of the reader, because other members may own them now."""
        if not keeps_id:
            self._member_id = ""
        self._generation = -1
        self._state.offer(GroupChange(frozenset(), is_lost=True))
        self._state.wait_for_reader()


def _explained(error: BrokerError, assignors: Sequence[str]) -> BrokerError:
    """Return an error with advice."""
    remedies = {
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the other members support no assignor of "
        f"partition.assignment.strategy={','.join(assignors)}; choose one that all members support",
        ErrorCode.FENCED_INSTANCE_ID: "another member has taken over group.instance.id; give each member its own",
        ErrorCode.INVALID_SESSION_TIMEOUT: "choose session.timeout.ms between the broker's "
        "group.min.session.timeout.ms and group.max.session.timeout.ms",
        ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has as many members as the broker's group.max.size allows",
    }
    if error.code not in remedies:
        return error
    return BrokerError(f"{error}; {remedies[error.code]}", broker=error.broker, code=error.code)
