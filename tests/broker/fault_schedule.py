"""Random faults of a cluster, chosen by a seed, and producers that write while they happen."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka

from .broker_cluster import BrokerCluster, kafka_admin, wait_until
from .clients import kafka
from .proxy import Cut, Exchange
from .reading import Partition, consumed

__all__ = [
    "QUICK_SETTINGS",
    "SECONDS",
    "SEED",
    "TOPICS",
    "FaultSchedule",
    "PlainWriter",
    "TransactionalWriter",
    "Writer",
    "assert_acknowledged",
    "explained",
    "logged",
]

SECONDS = float(os.environ.get("KBATCH_FAULT_SECONDS", 600))
SEED = int(os.environ.get("KBATCH_FAULT_SEED", 1))
# Settings of a reader that notices faults within seconds.
QUICK_SETTINGS = {
    "request_timeout_ms": 2000,
    "default_api_timeout_ms": 60_000,
    "reconnect_backoff_ms": 20,
    "metadata_max_age_ms": 1000,
    "fetch_max_wait_ms": 200,
}
# Topics with three replicas, of which two have to be in sync, and one with two replicas on changing brokers.
TOPICS = PLAIN, TRANSACTIONAL, REASSIGNED = "plain", "transactional", "reassigned"
MAX_PARTITIONS = 8
# librdkafka logs fatal errors of transactions at any level; they are expected.
SILENT = logging.getLogger("kbatch.tests.producers")
SILENT.propagate = False
SILENT.addHandler(logging.NullHandler())


class FaultSchedule:
    """Faults that happen one after the other. The same seed makes the same faults.

    Attributes
    ----------
    events : list of str
        What was done, with the seconds since the beginning.
    partitions : dict of str to int
        The number of partitions of each topic.
    faults : dict of callable to int
        The faults, by their weights. They get a broker and a time.
    """

    def __init__(self, cluster: BrokerCluster, seed: int) -> None:
        self._cluster = cluster
        self._rng = random.Random(seed)
        self._began = time.monotonic()
        self.events: list[str] = []
        self.faults: dict[Callable[[int, float], object], int] = {
            self._kill: 4,
            self._kill_two: 1,
            self._stop: 1,
            self._pause: 4,
            self._cut: 3,
            self._hang: 3,
            self._cut_responses: 3,
            self._move: 5,
            self._reassign: 4,
            self._add_partition: 1,
        }
        self.partitions = {PLAIN: 3, TRANSACTIONAL: 2, REASSIGNED: 2}
        for topic, count in self.partitions.items():
            if topic == REASSIGNED:
                cluster.create_on(topic, [[1, 2], [2, 3]], min_insync_replicas=1)
            else:
                cluster.create(topic, count)

    def run(self, seconds: float, check: Callable[[], object]) -> None:
        """Make faults for some time, then repair the cluster. `check` is called between two of them."""
        rng = self._rng
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            check()
            time.sleep(rng.uniform(0.2, 2))
            fault = rng.choices(*zip(*self.faults.items(), strict=True))[0]
            fault(rng.randint(1, 3), rng.choice((rng.uniform(0.1, 1), rng.uniform(1, 6))))
        self._cluster.repair()
        self.event("repaired")

    def event(self, text: str) -> None:
        self.events.append(f"{time.monotonic() - self._began:7.2f} {text}")

    def _kill(self, node: int, seconds: float) -> None:
        self.event(f"kill broker {node}, start it after {seconds:.1f} s")
        self._cluster.brokers[node].kill()
        time.sleep(seconds)
        self._cluster.brokers[node].start()

    def _kill_two(self, node: int, seconds: float) -> None:
        nodes = [node, node % 3 + 1]
        self.event(f"kill brokers {nodes}, start them after {seconds:.1f} s")
        for each in nodes:
            self._cluster.brokers[each].kill()
        time.sleep(seconds)
        for each in nodes:
            self._cluster.brokers[each].launch()
        for each in nodes:
            self._cluster.brokers[each].wait_until_started()

    def _stop(self, node: int, seconds: float) -> None:
        self.event(f"shut broker {node} down, start it after {seconds:.1f} s")
        self._cluster.brokers[node].stop()
        time.sleep(seconds)
        self._cluster.brokers[node].start()

    def _pause(self, node: int, seconds: float) -> None:
        self.event(f"pause broker {node} for {seconds:.1f} s")
        self._cluster.brokers[node].pause()
        time.sleep(seconds)
        self._cluster.brokers[node].go_on()

    def _cut(self, node: int, seconds: float) -> None:
        self.event(f"end the connections of broker {node}")
        self._cluster.proxies[node].cut()

    def _hang(self, node: int, seconds: float) -> None:
        self.event(f"hold back what broker {node} sends and gets for {seconds:.1f} s")
        self._cluster.proxies[node].hang()
        time.sleep(seconds)
        self._cluster.proxies[node].go_on()

    def _cut_responses(self, node: int, seconds: float) -> None:
        size = self._rng.choice((0, 3, 40, 500, 5000))
        self.event(f"cut responses of broker {node} after {size} bytes, for {seconds:.1f} s")

        def change(exchange: Exchange) -> None:
            raise Cut((len(exchange.data).to_bytes(4, "big") + exchange.data)[:size])

        self._cluster.proxies[node].change = change
        time.sleep(seconds)
        self._cluster.proxies[node].change = None

    def _move(self, node: int, seconds: float) -> None:
        topic = self._rng.choice((PLAIN, TRANSACTIONAL))
        partition = self._rng.randrange(self.partitions[topic])
        self.event(f"move the leader of {topic}-{partition} to broker {node}")
        # The broker may be behind: then the leader stays.
        with contextlib.suppress(kafka.errors.KafkaError):
            self._cluster.move_leader(topic, partition, node)

    def _reassign(self, node: int, seconds: float) -> None:
        partition = self._rng.randrange(self.partitions[REASSIGNED])
        replicas = self._rng.sample((1, 2, 3), 2)
        self.event(f"move {REASSIGNED}-{partition} to brokers {replicas}")
        with contextlib.suppress(kafka.errors.KafkaError), kafka_admin(self._cluster.direct) as admin:
            admin.alter_partition_reassignments({kafka.TopicPartition(REASSIGNED, partition): replicas})

    def _add_partition(self, node: int, seconds: float) -> None:
        topic = self._rng.choice(list(self.partitions))
        if self.partitions[topic] < MAX_PARTITIONS:
            self.event(f"add a partition to {topic}")
            count = self.partitions[topic] + 1
            self._cluster.add_partitions(topic, count)
            wait_until(lambda: len(self._cluster.leaders(topic)) == count, f"{topic} has a new partition")
            self.partitions[topic] = count


class Writer(threading.Thread):
    """Writes numbered records until it is stopped.

    Attributes
    ----------
    acknowledged : dict of (topic, partition) to list of (offset, value)
        Records that a reader under read_committed has to return.
    error : BaseException or None
    """

    def __init__(self, schedule: FaultSchedule, bootstrap: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._schedule = schedule
        self._servers = bootstrap
        self._rng = random.Random(seed)
        self._stopped = threading.Event()
        self._number = 0
        self.acknowledged: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        self.error: BaseException | None = None

    def check(self) -> None:
        """Raise the error of the thread, if it has one."""
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """End after what was begun."""
        self._stopped.set()
        self.join(120)
        assert not self.is_alive(), "a producer does not end"
        self.check()

    def run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self.error = error

    def _write(self) -> None:
        raise NotImplementedError

    def _producer(self, **settings: Any) -> confluent_kafka.Producer:
        return confluent_kafka.Producer(
            {
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "compression.type": self._rng.choice(("none", "gzip", "snappy", "lz4", "zstd")),
                "delivery.timeout.ms": 120_000,
                "socket.timeout.ms": 5000,
                "topic.metadata.refresh.interval.ms": 1000,
                "log_level": 0,
                **{name.replace("_", "."): value for name, value in settings.items()},
            },
            logger=SILENT,
        )

    def _send(self, producer: confluent_kafka.Producer, topic: str, count: int, accept: Any) -> int:
        """Send records, and return their number: a new partition may be unknown to the producer."""
        sent = 0
        for _ in range(count):
            value = b"%d %s" % (self._number, b"x" * self._rng.choice((0, 10, 500)))
            partition = self._rng.randrange(self._schedule.partitions[topic])
            self._number += 1
            try:
                producer.produce(topic, value, partition=partition, on_delivery=accept)
                sent += 1
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() != confluent_kafka.KafkaError._UNKNOWN_PARTITION:
                    raise
        producer.poll(0)
        return sent


class PlainWriter(Writer):
    def _write(self) -> None:
        producer = self._producer()

        def accept(error: Any, message: Any) -> None:
            if error is None:
                place = (message.topic(), message.partition())
                self.acknowledged.setdefault(place, []).append((message.offset(), message.value()))

        while not self._stopped.is_set():
            if len(producer) < 5000:
                self._send(producer, self._rng.choice((PLAIN, REASSIGNED)), self._rng.choice((1, 20, 200)), accept)
            self._stopped.wait(self._rng.choice((0.01, 0.05, 0.2)))
            producer.poll(0)
        assert producer.flush(120) == 0


class TransactionalWriter(Writer):
    """Commits and aborts transactions. Those with an unknown outcome are not in `acknowledged`."""

    def _write(self) -> None:
        while not self._stopped.is_set():
            producer = self._producer(
                transactional_id="faults", transaction_timeout_ms=30_000, delivery_timeout_ms=30_000
            )
            # After an error the producer can't be used any more; the next one ends its transaction.
            with contextlib.suppress(confluent_kafka.KafkaException):
                repeated(producer.init_transactions)
                while not self._stopped.is_set():
                    self._transaction(producer)

    def _transaction(self, producer: confluent_kafka.Producer) -> None:
        sent: list[tuple[tuple[str, int], int, bytes]] = []

        def accept(error: Any, message: Any) -> None:
            if error is None:
                sent.append(((message.topic(), message.partition()), message.offset(), message.value()))

        producer.begin_transaction()
        count = self._rng.choice((1, 5, 30))
        commits = self._rng.random() < 0.7
        try:
            count = self._send(producer, TRANSACTIONAL, count, accept)
            producer.flush(self._rng.choice((0.5, 30)))
            self._stopped.wait(self._rng.choice((0.0, 0.05, 0.3)))
            if commits:
                repeated(producer.commit_transaction)
                assert len(sent) == count
                for place, offset, value in sent:
                    self.acknowledged.setdefault(place, []).append((offset, value))
                return
        except confluent_kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        repeated(producer.abort_transaction)


def repeated(step: Callable[[float], None]) -> None:
    """Do a step of a transaction, again after errors that pass."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return step(10)
        except confluent_kafka.KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


@contextmanager
def explained(schedule: FaultSchedule) -> Iterator[None]:
    """Print the faults if a test fails."""
    try:
        yield
    except BaseException:
        print(f"KBATCH_FAULT_SEED={SEED} KBATCH_FAULT_SECONDS={SECONDS:g}")
        print("\n".join(schedule.events))
        raise


def logged(cluster: BrokerCluster, schedule: FaultSchedule, isolation: str) -> dict[Partition, list[tuple[int, bytes]]]:
    """Return all records as librdkafka reads them."""
    partitions = [(topic, number) for topic, count in schedule.partitions.items() for number in range(count)]
    rows = consumed(cluster.direct, partitions, isolation)
    return {each: [(row.offset, row.value or b"") for row in found] for each, found in rows.items() if found}


def assert_acknowledged(writers: list[Writer], truth: dict[Partition, list[tuple[int, bytes]]]) -> int:
    """Assert that the log has each acknowledged record; return the number.

    librdkafka may write a record twice, at two offsets, after it has got another producer epoch. It reports no offset
    for a batch of which the broker says only that it has it.
    """
    count = 0
    for writer in writers:
        for place, rows in writer.acknowledged.items():
            lost = set(rows).difference(truth[place])
            values = {value for _, value in truth[place]}
            lost = {each for each in lost if has_offset(each) or each[1] not in values}
            assert not lost, (place, sorted(lost, key=str)[:10])
            count += len(rows)
    return count


def has_offset(acknowledged: tuple[int | None, bytes]) -> bool:
    """Whether librdkafka reports an offset; otherwise it is None, or negative."""
    return acknowledged[0] is not None and acknowledged[0] >= 0
