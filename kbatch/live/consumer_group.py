"""Membership in a group with the consumer protocol, in which the broker assigns partitions (KIP-848)."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import Any

from kbatch.error_codes import ErrorCode
from kbatch.live.broker_connection import BrokerConnection
from kbatch.live.broker_errors import BrokerError
from kbatch.live.cluster import Cluster, PartitionKey
from kbatch.live.coordinator import CoordinatorAnswer, GroupCoordinator, Membership
from kbatch.live.group_state import GroupChange, GroupState
from kbatch.live.subscription import TopicSubscription
from kbatch.protocol.api_keys import ApiKey
from kbatch.protocol.messages import message_class

__all__ = ["ConsumerGroup"]

_JOIN, _LEAVE, _LEAVE_STATIC = 0, -1, -2
# From this version on, members choose their ids.
_OWN_ID = 1
_REMOVED_BY_BROKER = frozenset([ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH])


class ConsumerGroup:
    """A member of a group with the consumer protocol, used by the thread of the membership.

    The broker revokes partitions by sending an assignment without them. It assigns them to another member after this
    member has acknowledged the revocation, which it does when its reader has given them up.

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
        self._member_id = ""
        self._epoch = _JOIN
        self._interval = 0.0
        # The fields that the broker has received; None after an error, when all of them are sent again.
        self._sent: dict[str, Any] | None = None
        # The assignment by topic id, as long as a topic is missing in the metadata.
        self._unresolved: list[Any] | None = None

    def run(self) -> None:
        """Join, and stay a member until the end.

        Raises
        ------
        GroupClosedError, BrokerError
        """
        metadata_interval = self._settings.metadata_max_age_ms / 1000
        metadata_at = time.monotonic() + metadata_interval
        while True:
            self._heartbeat()
            heartbeat_at = time.monotonic() + self._interval
            owned = self._state.owned
            while time.monotonic() < heartbeat_at and self._state.owned == owned:
                if self._state.wait(min(heartbeat_at, metadata_at)):
                    break
                if time.monotonic() >= metadata_at:
                    metadata_at = time.monotonic() + metadata_interval
                    self._refresh()
            if self._state.is_behind:
                self.leave()
                self._lose()

    def interrupt(self) -> None:
        """Stop waiting for the coordinator; this protocol has no long waits."""

    def leave(self) -> None:
        """Leave the group; a static member may return within the session timeout."""
        if self._epoch <= _JOIN:
            return
        is_static = self._settings.group_instance_id is not None
        with contextlib.suppress(BrokerError):
            self._send({}, _LEAVE_STATIC if is_static else _LEAVE, seconds=0)
        self._epoch = _JOIN

    def _refresh(self) -> None:
        with contextlib.suppress(BrokerError):
            self._subscription.refreshed()

    def _heartbeat(self) -> None:
        """Send the changed fields, and offer the reader a new assignment."""
        known = self._fields()
        previous = self._sent or {}
        changed = {name: value for name, value in known.items() if name not in previous or previous[name] != value}
        self._sent = None
        try:
            response = self._send(changed, self._epoch, again=known)
        except BrokerError as error:
            if error.code in _REMOVED_BY_BROKER and self._epoch != _JOIN:
                self._lose()
                self._interval = 0.0
                return
            raise self._explained(error) from None
        self._sent = known
        self._state.note_heartbeat()
        self._interval = response.heartbeat_interval_ms / 1000
        if response.member_id:
            self._member_id = response.member_id
        if response.member_epoch != self._epoch or self._state.current() is None:
            self._epoch = response.member_epoch
            self._state.join(Membership(self._member_id, self._epoch, self._settings.group_instance_id))
        if response.assignment is not None:
            self._unresolved = list(response.assignment.topic_partitions)
        self._offer()

    def _fields(self) -> dict[str, Any]:
        """Return the fields of the member in a heartbeat."""
        ids = {topic.name: topic.id for topic in self._subscription.topics}
        by_topic: dict[uuid.UUID, list[int]] = {}
        if self._epoch != _JOIN:
            for topic, number in sorted(self._state.owned):
                by_topic.setdefault(ids.get(topic, uuid.UUID(int=0)), []).append(number)
        return {
            "instance_id": self._settings.group_instance_id,
            "rebalance_timeout_ms": self._settings.max_poll_interval_ms,
            "subscribed_topic_names": self._subscription.names,
            "server_assignor": self._settings.group_remote_assignor,
            "topic_partitions": by_topic,
        }

    def _send(
        self, fields: dict[str, Any], epoch: int, seconds: float | None = None, again: dict[str, Any] | None = None
    ) -> Any:
        """Send a heartbeat with those fields, and return the response.

        A lost response may have contained an assignment. The broker repeats it only if all fields are sent `again`.
        """
        cls: Any = message_class("ConsumerGroupHeartbeatRequest")
        attempts = [fields if again is None else again, fields]

        def ask(connection: BrokerConnection) -> CoordinatorAnswer:
            if seconds is None:
                self._state.check_open()
            given = dict(attempts.pop() if len(attempts) > 1 else attempts[0])
            if "topic_partitions" in given:
                given["topic_partitions"] = [
                    cls.TopicPartitions(topic_id=topic, partitions=numbers)
                    for topic, numbers in given["topic_partitions"].items()
                ]
            if not self._member_id and connection.has(ApiKey.CONSUMER_GROUP_HEARTBEAT, _OWN_ID):
                self._member_id = str(uuid.uuid4())
            message = cls(group_id=self._coordinator.group, member_id=self._member_id, member_epoch=epoch, **given)
            message.instance_id = self._settings.group_instance_id
            response = connection.request(message)
            return CoordinatorAnswer(response, response.error_code, response.error_message)

        return self._coordinator.attempt(ask, "ConsumerGroupHeartbeat", seconds)

    def _offer(self) -> None:
        """Offer the reader the last assignment once the names of its topics are known."""
        if self._unresolved is None:
            return
        names = {topic.id: topic.name for topic in self._subscription.topics}
        if any(each.topic_id not in names for each in self._unresolved):
            self._refresh()
            names = {topic.id: topic.name for topic in self._subscription.topics}
        if any(each.topic_id not in names for each in self._unresolved):
            return
        assigned: frozenset[PartitionKey] = frozenset(
            (names[each.topic_id], number) for each in self._unresolved for number in each.partitions
        )
        self._unresolved = None
        self._state.offer(GroupChange(assigned))

    def _lose(self) -> None:
        """Revoke the partitions of the reader, because other members may own them now."""
        self._epoch = _JOIN
        self._sent = None
        self._unresolved = None
        self._state.offer(GroupChange(frozenset(), is_lost=True))
        self._state.wait_for_reader()

    def _explained(self, error: BrokerError) -> BrokerError:
        """Return an error with advice."""
        remedies = {
            ErrorCode.UNRELEASED_INSTANCE_ID: "another member has this group.instance.id; give each member its own, or "
            "wait until the session of the other one ends",
            ErrorCode.FENCED_INSTANCE_ID: "another member has taken over group.instance.id; give each member its own",
            ErrorCode.UNSUPPORTED_ASSIGNOR: f"group.remote.assignor={self._settings.group_remote_assignor} is not one "
            "of the broker's group.consumer.assignors",
            ErrorCode.GROUP_ID_NOT_FOUND: "the group has members of the classic protocol, and the broker does not "
            "convert it; set group.protocol=classic",
            ErrorCode.UNSUPPORTED_VERSION: "the broker does not support group.protocol=consumer; set "
            "group.protocol=classic",
            ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has as many members as the broker's group.consumer.max.size "
            "allows",
        }
        if error.code not in remedies:
            return error
        return BrokerError(f"{error}; {remedies[error.code]}", broker=error.broker, code=error.code)
