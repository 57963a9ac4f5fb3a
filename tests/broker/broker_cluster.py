"""Three Kafka brokers (KRaft) as child processes, each of which is also a controller, with a proxy in front of each.

Clients that begin with `BrokerCluster.bootstrap` reach the brokers only through the proxies, which make connections
fail. Tests themselves use `direct`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from .clients import kafka
from .proxy import Proxy
from .server import SETTINGS, Broker, free_ports

__all__ = ["BrokerCluster", "kafka_admin", "running_cluster", "wait_until"]

# The listener of clients, whose advertised address is that of the proxy.
CLIENT = "CLIENT"
# Brokers that are gone are noticed within seconds.
CLUSTER_SETTINGS = SETTINGS | {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "2000",
    "controller.quorum.request.timeout.ms": "1000",
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.backoff.ms": "200",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "auto.leader.rebalance.enable": "false",
    "group.coordinator.rebalance.protocols": "classic,consumer",
}


class BrokerCluster:
    """Three brokers, numbered from 1; their racks are a, b and c.

    Attributes
    ----------
    brokers : dict of int to Broker
    proxies : dict of int to Proxy
    direct, bootstrap : str
        Addresses of all brokers, and those of the proxies.
    admin : AdminClient
        Without a proxy.
    """

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        records: bool = False,
    ) -> None:
        nodes = (1, 2, 3)
        controllers = dict(zip(nodes, free_ports(3), strict=True))
        # A proxy has its port first, since the broker advertises it.
        ports = dict(zip(nodes, free_ports(3), strict=True))
        self.brokers: dict[int, Broker] = {}
        self.proxies: dict[int, Proxy] = {}
        for node in nodes:
            self.brokers[node] = Broker(
                directory / f"broker-{node}",
                settings=CLUSTER_SETTINGS | {"broker.rack": "abc"[node - 1]} | dict(settings or {}),
                listeners={CLIENT: "PLAINTEXT", **(listeners or {})},
                advertised={CLIENT: f"127.0.0.1:{ports[node]}"},
                node=node,
                controllers=controllers,
            )
            self.proxies[node] = Proxy(self.brokers[node].addresses[CLIENT], port=ports[node], records=records)
        self.direct = ",".join(each.bootstrap for each in self.brokers.values())
        self.bootstrap = ",".join(each.bootstrap for each in self.proxies.values())

    def start(self) -> None:
        """Start all brokers, and return when they serve clients."""
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(Broker.format, self.brokers.values()))
        for broker in self.brokers.values():
            broker.launch()
        for broker in self.brokers.values():
            broker.wait_until_started()
        self.admin = AdminClient({"bootstrap.servers": self.direct, "log_level": 0})

    def close(self) -> None:
        """Kill all brokers: their directories are not used again."""
        for proxy in self.proxies.values():
            proxy.close()
        for broker in self.brokers.values():
            broker.kill()

    def restart(self, node: int) -> None:
        """Start a broker that was killed, and return when it serves clients."""
        self.brokers[node].start()

    def repair(self) -> None:
        """End all faults, and return when all replicas are in sync."""
        for proxy in self.proxies.values():
            proxy.change = None
            proxy.go_on()
        for broker in self.brokers.values():
            if broker.runs:
                broker.go_on()
            else:
                broker.start()
        wait_until(self._is_in_sync, "all replicas are in sync", 120)

    def _is_in_sync(self) -> bool:
        found = [each for topic in self.topics().values() for each in topic.partitions.values()]
        return all(each.leader > 0 and len(each.isrs) == len(each.replicas) for each in found)

    # -- topics

    def create(self, topic: str, partitions: int = 1, replicas: int = 3, **config: Any) -> None:
        """Make a topic, and wait until all its partitions have leaders."""
        settings = {name.replace("_", "."): str(value) for name, value in config.items()}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=replicas, config=settings)
        self.admin.create_topics([new])[topic].result(60)
        self._wait_for_leaders(topic, partitions)

    def create_on(self, topic: str, replicas: Sequence[Sequence[int]], **config: Any) -> None:
        """Make a topic whose partitions are on these brokers; the first of each is the leader."""
        settings = {name.replace("_", "."): str(value) for name, value in config.items()}
        assigned = [list(each) for each in replicas]
        new = NewTopic(topic, num_partitions=len(assigned), replica_assignment=assigned, config=settings)
        self.admin.create_topics([new])[topic].result(60)
        self._wait_for_leaders(topic, len(replicas))

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(60)

    def add_partitions(self, topic: str, total: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(60)

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the leader of each partition, -1 if there is none."""
        return {number: each.leader for number, each in self._partitions(topic).items()}

    def replicas(self, topic: str, in_sync: bool = False) -> dict[int, list[int]]:
        """Return the brokers of each partition."""
        return {number: each.isrs if in_sync else each.replicas for number, each in self._partitions(topic).items()}

    def _partitions(self, topic: str) -> dict[int, Any]:
        return dict(sorted(self.topics()[topic].partitions.items()))

    def topics(self) -> dict[str, Any]:
        """Return metadata from a broker that runs and is not paused."""
        broker = next(each for each in self.brokers.values() if each.runs and not each.is_paused)
        # A new client has no connection to another broker, for which it would wait.
        found: dict[str, Any] = (
            AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0}).list_topics(timeout=5).topics
        )
        return found

    def _wait_for_leaders(self, topic: str, partitions: int) -> None:
        wait_until(
            lambda: len(found := self.leaders(topic)) == partitions and min(found.values()) > 0, f"{topic} has leaders"
        )

    def move_leader(self, topic: str, partition: int, node: int) -> None:
        """Make a broker with a replica the leader: a reassignment of the order, and a preferred election."""
        order = sorted(self.replicas(topic)[partition], key=lambda each: each != node)
        with kafka_admin(self.direct) as admin:
            admin.alter_partition_reassignments({kafka.TopicPartition(topic, partition): order})
            admin.elect_leaders(0, {topic: [partition]}, raise_errors=False)


@contextmanager
def kafka_admin(bootstrap: str) -> Iterator[kafka.KafkaAdminClient]:
    """The client that can reassign partitions; librdkafka can not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
        try:
            yield admin
        finally:
            admin.close()


def wait_until(holds: Any, what: str, seconds: float = 60) -> None:
    """Wait until a condition holds; errors count as false."""
    deadline = time.monotonic() + seconds
    while True:
        failed = None
        try:
            if holds():
                return
        except Exception as error:
            failed = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}") from failed
        time.sleep(0.05)


@contextmanager
def running_cluster(directory: Path, **options: Any) -> Iterator[BrokerCluster]:
    """Run a cluster; no process is left behind, whatever fails."""
    cluster = BrokerCluster(directory, **options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
