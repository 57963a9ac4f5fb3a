"""The open transactions of live partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kbatch.batches.framing import scan_part
from kbatch.format import ATTRIBUTE_DELETE_HORIZON, NO_TIMESTAMP
from kbatch.live.broker_connection import BrokerConnection
from kbatch.live.broker_errors import BrokerError, refusal_error
from kbatch.live.cluster import Cluster, PartitionKey, TopicMetadata
from kbatch.live.live_partitions import LivePartition
from kbatch.protocol.api_keys import ApiKey
from kbatch.protocol.messages import message_class
from kbatch.transactions import OpenTransaction

__all__ = ["live_open_transactions"]

# The size to request for the header of a batch; a broker returns the whole batch nevertheless.
_BATCH_BYTES = 1
# The number of transactions whose first batch is fetched for its timestamp.
_TIMED = 100


def live_open_transactions(
    cluster: Cluster, partitions: Mapping[PartitionKey, int], note: Callable[[str], None]
) -> dict[PartitionKey, list[OpenTransaction]]:
    """Return the open transactions of partitions, by first offset (DescribeProducers, KIP-664).

    Parameters
    ----------
    cluster : Cluster
    partitions : mapping of (topic, partition) to int
        The leader of each.
    note : callable
        Called with the reason why the transactions of some partitions are unknown; the result omits them.
    """
    found: dict[PartitionKey, list[OpenTransaction]] = {}
    by_leader: dict[int, list[PartitionKey]] = {}
    for key, leader in partitions.items():
        by_leader.setdefault(leader, []).append(key)
    for leader, keys in by_leader.items():
        try:
            found |= cluster._ask_broker(leader, _asking(keys, note))
        except BrokerError as error:
            note(f"open transactions are not known: {error}")
    return _with_times(cluster, found)


def _asking(
    keys: Iterable[PartitionKey], note: Callable[[str], None]
) -> Callable[[BrokerConnection], dict[PartitionKey, list[OpenTransaction]]]:
    """Return the function that asks a leader for the producers of its partitions."""
    cls: Any = message_class("DescribeProducersRequest")
    topics: dict[str, Any] = {}
    for name, number in keys:
        topics.setdefault(name, cls.TopicRequest(name=name, partition_indexes=[])).partition_indexes.append(number)

    def ask(connection: BrokerConnection) -> dict[PartitionKey, list[OpenTransaction]]:
        broker = str(connection.server)
        if not connection.has(ApiKey.DESCRIBE_PRODUCERS, 0):
            note(f"open transactions are not known: broker {broker} does not list producers, which needs Kafka 2.8")
            return {}
        found = {}
        for topic in connection.request(cls(topics=list(topics.values()))).topics:
            for part in topic.partitions:
                if part.error_code:
                    reason = refusal_error(
                        part.error_code, "DescribeProducers", broker=broker, topic=topic.name,
                        partition=part.partition_index, message=part.error_message,
                    )  # fmt: skip
                    note(f"open transactions are not known: {reason}")
                    continue
                still_open = [
                    OpenTransaction(each.producer_id, each.current_txn_start_offset)
                    for each in part.active_producers
                    if each.current_txn_start_offset >= 0
                ]
                found[topic.name, part.partition_index] = sorted(still_open, key=lambda each: each.first_offset)
        return found

    return ask


def _with_times(
    cluster: Cluster, found: Mapping[PartitionKey, list[OpenTransaction]]
) -> dict[PartitionKey, list[OpenTransaction]]:
    """Return the transactions with the timestamps of their first batches, which are fetched."""
    names = {topic for (topic, _), listed in found.items() if listed}
    topics = {topic.name: topic for topic in cluster.topics(sorted(names))} if names else {}
    rest = _TIMED
    timed = {}
    for (topic, number), listed in found.items():
        timed[topic, number] = [
            each._replace(first_timestamp=_time_at(cluster, topics[topic], number, each.first_offset))
            if i < rest
            else each
            for i, each in enumerate(listed)
        ]
        rest -= min(rest, len(listed))
    return timed


def _time_at(cluster: Cluster, topic: TopicMetadata, number: int, offset: int) -> int:
    """Return the base timestamp of the batch at an offset, or -1."""
    try:
        data = LivePartition(cluster, topic, number, offset, offset + 1).fetched(
            offset, _BATCH_BYTES, "fetch of the first batch of a transaction"
        )
    except BrokerError:
        return NO_TIMESTAMP
    batches = scan_part(data).batches
    if not len(batches) or int(batches["attributes"][0]) & ATTRIBUTE_DELETE_HORIZON:
        return NO_TIMESTAMP
    return int(batches["base_timestamp"][0])
