"""Live topics: connections to a Kafka cluster, and reads of its topics without decoding in Python.

`kbatch.consume` reads topics. This package contains its settings, errors and extension points, and `Cluster` for
metadata and offsets.
"""

from kbatch.live.broker_errors import AuthenticationError, BrokerConnectionError, BrokerError
from kbatch.live.cluster import Cluster, PartitionLeader, TopicMetadata
from kbatch.live.cluster_source import ClusterSource
from kbatch.live.counters import ConsumerMetrics
from kbatch.live.origins import ReadOrigin
from kbatch.live.settings import ClientSettings, ServerAddress
from kbatch.live.tokens import BearerToken, TokenProvider
from kbatch.live.transport import Transport, TransportFactory, connect_socket

__all__ = [
    "AuthenticationError",
    "BearerToken",
    "BrokerConnectionError",
    "BrokerError",
    "ClientSettings",
    "Cluster",
    "ClusterSource",
    "ConsumerMetrics",
    "PartitionLeader",
    "ReadOrigin",
    "ServerAddress",
    "TokenProvider",
    "TopicMetadata",
    "Transport",
    "TransportFactory",
    "connect_socket",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
