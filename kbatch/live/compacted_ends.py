"""Logs whose last records compaction has removed: a broker sends no batches for these offsets."""

from __future__ import annotations

from typing import Any

from kbatch.live.broker_connection import BrokerConnection
from kbatch.live.broker_errors import BrokerError
from kbatch.live.cluster import Cluster
from kbatch.live.fetch_state import PartitionFetch
from kbatch.live.live_partitions import LivePartition
from kbatch.protocol.api_keys import ApiKey
from kbatch.protocol.messages import message_class

__all__ = ["QUIET_SECONDS", "has_compacted_end"]

# After this time without records, a read with an end checks whether compaction has removed them.
QUIET_SECONDS = 2.0

_TOPIC_RESOURCE = 2
_CLEANUP_POLICY = "cleanup.policy"


def has_compacted_end(cluster: Cluster, fetch: PartitionFetch) -> bool:
    """Whether compaction has removed all records from the position of a fetch to its end; False if unknown.

    An empty response proves nothing for other topics: with tiered storage, the records may arrive later.
    """
    try:
        [topic] = cluster.topics([fetch.topic])
        leader = topic.partitions.get(fetch.partition)
        if leader is None or topic.id != fetch.topic_id or not _has_compaction(cluster, leader.broker, fetch.topic):
            return False
        partition = LivePartition(cluster, topic, fetch.partition, fetch.position, fetch.stop)
        return partition.has_no_records(fetch.position, fetch.stop)
    except BrokerError:
        return False


def _has_compaction(cluster: Cluster, broker: int, topic: str) -> bool:
    cls: Any = message_class("DescribeConfigsRequest")
    resource = cls.DescribeConfigsResource(
        resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=[_CLEANUP_POLICY]
    )

    def ask(connection: BrokerConnection) -> bool:
        if not connection.has(ApiKey.DESCRIBE_CONFIGS, 1):
            return False
        # Without the ACL DESCRIBE_CONFIGS, the response has no settings.
        results = connection.request(cls(resources=[resource])).results
        return any("compact" in (each.value or "") for result in results for each in result.configs)

    return cluster._ask_broker(broker, ask)
