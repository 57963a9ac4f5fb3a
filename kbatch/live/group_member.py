"""The thread of a membership, which joins a group with a protocol that the broker supports."""

from __future__ import annotations

import threading

from kbatch.error_codes import ErrorCode
from kbatch.live.broker_errors import BrokerError
from kbatch.live.classic_group import ClassicGroup
from kbatch.live.cluster import Cluster
from kbatch.live.consumer_group import ConsumerGroup
from kbatch.live.coordinator import GroupCoordinator
from kbatch.live.group_state import GroupClosedError, GroupState
from kbatch.live.subscription import TopicSubscription
from kbatch.protocol.api_keys import ApiKey

__all__ = ["GroupMember"]

# Seconds that `close` waits for the thread to leave the group.
_LEAVE_SECONDS = 0.5
# The group cannot be joined with the consumer protocol: the broker disables it, or does not convert a classic group.
_CLASSIC_ONLY = (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.GROUP_ID_NOT_FOUND)


class GroupMember(threading.Thread):
    """A member of a group, in the background. The reader uses `state`.

    Parameters
    ----------
    cluster : Cluster
    group : str
    subscription : TopicSubscription

    Raises
    ------
    BrokerError
        If the client may not use the group, or the group has no coordinator.
    """

    def __init__(self, cluster: Cluster, group: str, subscription: TopicSubscription) -> None:
        super().__init__(name="kbatch-group", daemon=True)
        self.state = GroupState(cluster.settings.max_poll_interval_ms / 1000)
        self._coordinator = GroupCoordinator(cluster, group)
        arguments = (cluster, self._coordinator, self.state, subscription)
        protocol = cluster.settings.group_protocol
        try:
            has_consumer_protocol = self._coordinator.has(ApiKey.CONSUMER_GROUP_HEARTBEAT)
        except BaseException:
            self._coordinator.close()
            raise
        if protocol == "consumer" and not has_consumer_protocol:
            self._coordinator.close()
            raise BrokerError(
                f"group {group!r}: the broker does not support group.protocol=consumer (KIP-848), which needs Kafka "
                "4.0 or newer; set group.protocol=classic",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        # A list of assignors belongs to the classic protocol.
        prefers_classic = protocol is None and cluster.settings.partition_assignment_strategy is not None
        is_classic = protocol == "classic" or prefers_classic or not has_consumer_protocol
        self._fallback = None if is_classic or protocol == "consumer" else ClassicGroup(*arguments)
        self._session: ClassicGroup | ConsumerGroup = (
            ClassicGroup(*arguments) if is_classic else ConsumerGroup(*arguments)
        )

    def run(self) -> None:
        """Be a member until the end."""
        try:
            try:
                self._session.run()
            except BrokerError as error:
                if self._fallback is None or error.code not in _CLASSIC_ONLY or self.state.has_assignment:
                    raise
                self._session = self._fallback
                self._session.run()
        except GroupClosedError:
            self._session.leave()
        except BaseException as error:
            self.state.fail(error)
        finally:
            self._coordinator.close()

    def close(self) -> None:
        """Leave the group, unless the member is static, and end the thread."""
        self.state.close()
        self._session.interrupt()
        if self.ident is not None:
            self.join(_LEAVE_SECONDS)
        self._coordinator.close()
