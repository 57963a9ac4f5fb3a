"""Requests to the leader of one partition, repeated after elections and closed connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from kbatch.backoff import Backoff
from kbatch.error_codes import ErrorCode
from kbatch.live.broker_errors import BrokerError, refusal_error
from kbatch.live.cluster import Cluster, PartitionKey, PartitionLeader, TopicMetadata, is_retriable, leader_of
from kbatch.protocol.api_keys import ApiKey
from kbatch.protocol.messages import message_class

__all__ = ["EpochEnd", "ask_epoch_end", "end_of_epoch", "fetch_alone"]

LeaderAnswerT = TypeVar("LeaderAnswerT")


class EpochEnd(NamedTuple):
    """A leader epoch in a log, and the offset after its last record."""

    epoch: int
    offset: int


def _ask_leader(
    cluster: Cluster, topic: TopicMetadata, number: int, action: str, ask: Callable[[PartitionLeader], LeaderAnswerT]
) -> LeaderAnswerT:
    """Ask the leader of a partition, and retry with new metadata after retriable errors.

    `topic` is the caller's metadata; `action` is for messages.
    """
    topic_id = topic.id
    deadline = cluster._deadline()
    backoff = Backoff(cluster.settings.retry_backoff_ms, 1000)
    while True:
        leader = leader_of(topic, number)
        try:
            if leader.broker < 0:
                raise refusal_error(
                    ErrorCode.LEADER_NOT_AVAILABLE, action, broker=None, topic=topic.name, partition=number
                )
            return ask(leader)
        except BrokerError as error:
            if not is_retriable(error) or time.monotonic() > deadline:
                raise
        cluster._pause(backoff)
        [topic] = cluster.topics([topic.name])
        if topic.id != topic_id:
            raise refusal_error(ErrorCode.UNKNOWN_TOPIC_ID, action, broker=None, topic=topic.name, partition=number)


def fetch_alone(cluster: Cluster, topic: TopicMetadata, number: int, message: Any, action: str) -> Any:
    """Return the response of the leader of a partition to a Fetch request for only this partition.

    Raises
    ------
    BrokerError
    AuthenticationError
    """

    def ask(leader: PartitionLeader) -> Any:
        with cluster._lock:
            connection = cluster._connection(leader.broker)
            # From version 13 on, Fetch has topic ids instead of names.
            response = connection.request(message, maximum=12 if topic.id.int == 0 else None)
        parts = [each for one in response.responses for each in one.partitions]
        # A response that a quota throttles has no partitions.
        code = response.error_code or (parts[0].error_code if parts else ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if code:
            server = str(connection.server)
            raise refusal_error(code, action, broker=server, topic=topic.name, partition=number)
        return parts[0]

    return _ask_leader(cluster, topic, number, action, ask)


def end_of_epoch(cluster: Cluster, topic: TopicMetadata, number: int, epoch: int) -> EpochEnd | None:
    """Return the last leader epoch up to `epoch` in the log of a leader, and its end; None if it is unknown.

    Raises
    ------
    BrokerError
    AuthenticationError
    """

    def ask(leader: PartitionLeader) -> EpochEnd | None:
        return ask_epoch_end(cluster, (topic.name, number), leader, epoch)

    return _ask_leader(cluster, topic, number, "OffsetForLeaderEpoch", ask)


def ask_epoch_end(cluster: Cluster, key: PartitionKey, leader: PartitionLeader, epoch: int) -> EpochEnd | None:
    """Return the result of `end_of_epoch` with one request."""
    cls: Any = message_class("OffsetForLeaderEpochRequest")
    part = cls.OffsetForLeaderPartition(partition=key[1], current_leader_epoch=leader.epoch, leader_epoch=epoch)
    message = cls(replica_id=-1, topics=[cls.OffsetForLeaderTopic(topic=key[0], partitions=[part])])
    with cluster._lock:
        connection = cluster._connection(leader.broker)
        if not connection.has(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2):
            return None
        response = connection.request(message)
    found = response.topics[0].partitions[0]
    if found.error_code:
        raise refusal_error(
            found.error_code,
            "OffsetForLeaderEpoch",
            broker=str(connection.server),
            topic=key[0],
            partition=key[1],
        )
    return EpochEnd(found.leader_epoch, found.end_offset) if found.end_offset >= 0 else None
