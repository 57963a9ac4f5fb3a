"""Groups of a real broker: both protocols, members that join and die, static members, and offsets of other clients."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kbatch
from kbatch.live import BrokerError

try:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewTopic

    from broker.server import SETTINGS, Broker, Unavailable
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker

# Members that die are noticed after a second.
GROUPS = {
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": "100",
}
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])
PARTITIONS = 4


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        made = Broker(tmp_path_factory.mktemp("groups") / "broker", settings=SETTINGS | GROUPS)
    except Unavailable as error:
        pytest.skip(str(error))
    with made:
        yield made


class Topic:
    """A topic of this test, whose records are numbered, and the settings of members."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        self.admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 2})
        self.count = 0

    def write(self, count: int = PARTITIONS) -> None:
        for _ in range(count):
            self._producer.produce(self.name, b"%d" % self.count, partition=self.count % PARTITIONS)
            self.count += 1
        self._producer.flush(30)

    def settings(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap,
            "group": f"group-{self.name}",
            "heartbeat_interval_ms": 100,
            "session_timeout_ms": 1000,
            "auto_offset_reset": "earliest",
            "fetch_max_wait_ms": 50,
            **more,
        }

    def consume(self, **more: Any) -> kbatch.Consumer:
        return kbatch.consume(self.name, **self.settings(**more))

    def committed(self) -> dict[int, int]:
        """Return what librdkafka reads of the group."""
        request = confluent_kafka.ConsumerGroupTopicPartitions(f"group-{self.name}")
        found = self.admin.list_consumer_group_offsets([request])[request.group_id].result(30)
        return {each.partition: each.offset for each in found.topic_partitions}


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> Topic:
    return Topic(broker.bootstrap, "".join(each if each.isalnum() else "-" for each in request.node.name)[-60:])


class Member(threading.Thread):
    """A member that follows; `found` are the values that it has read."""

    def __init__(self, topic: Topic, **options: Any) -> None:
        super().__init__()
        self.consumer = topic.consume(end=None, auto_commit=True, **options)
        self.found: list[bytes | None] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            for table in self.consumer:
                self.found += table.values()
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self.consumer.close()
        self.join(10)
        assert not self.is_alive()
        assert self.error is None


def wait(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@PROTOCOLS
def test_offsets_are_those_that_librdkafka_commits_and_reads(topic: Topic, protocol: str) -> None:
    topic.write(20)
    with topic.consume(group_protocol=protocol, end="latest") as consumer:
        assert sum(map(len, consumer)) == 20
        assert consumer.lag == {(topic.name, number): 0 for number in range(PARTITIONS)}
        consumer.commit()
    assert topic.committed() == dict.fromkeys(range(PARTITIONS), 5)
    parts = [confluent_kafka.TopicPartition(topic.name, number, number) for number in range(PARTITIONS)]
    group = confluent_kafka.ConsumerGroupTopicPartitions(f"group-{topic.name}", parts)
    topic.admin.alter_consumer_group_offsets([group])[group.group_id].result(30)
    with topic.consume(group_protocol=protocol, end="latest", auto_commit=True) as consumer:
        assert sum(map(len, consumer)) == 20 - 0 - 1 - 2 - 3
        assert consumer.ranges == {(topic.name, number): (number, 5) for number in range(PARTITIONS)}
    assert topic.committed() == dict.fromkeys(range(PARTITIONS), 5)
    with kbatch.consume(topic.name, partitions=[1], **topic.settings(start=2)) as consumer:
        assert len(next(consumer)) == 3
        consumer.commit()


DIES = """
import sys
import kbatch
settings = eval(sys.argv[2])
with kbatch.consume(sys.argv[1], end=None, auto_commit=True, **settings) as consumer:
    for table in consumer:
        print(*(value.decode() for value in table.values()), flush=True)
"""


@PROTOCOLS
def test_members_that_join_leave_and_die_lose_nothing(topic: Topic, protocol: str) -> None:
    stops = threading.Event()

    def write() -> None:
        while not stops.wait(0.02):
            topic.write()

    writer = threading.Thread(target=write)
    writer.start()
    settings = topic.settings(group_protocol=protocol)
    command = [sys.executable, "-c", DIES, topic.name, repr(settings)]
    members = []
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                read = process.stdout.readline().split()
                members.append(Member(topic, group_protocol=protocol))
                wait(lambda: len(members[0].consumer.assignment) == 2 and members[0].found)
            finally:
                process.kill()
            read += process.stdout.read().split()
        wait(lambda: len(members[0].consumer.assignment) == PARTITIONS)
        members.append(Member(topic, group_protocol=protocol))
        wait(lambda: len(members[1].consumer.assignment) == 2 and members[1].found)
        members[0].stop()
        wait(lambda: len(members[1].consumer.assignment) == PARTITIONS)
    finally:
        stops.set()
        writer.join()
        ends = dict.fromkeys(range(PARTITIONS), topic.count // PARTITIONS)
        with contextlib.suppress(AssertionError):
            wait(lambda: topic.committed() == ends, 10)
        for each in members:
            each.stop()
    assert topic.committed() == ends
    found = Counter([*map(str.encode, read), *members[0].found, *members[1].found])
    assert set(found) == {b"%d" % number for number in range(topic.count)}
    # At least once: of the two members that did not end their block, the last table.
    assert sum(found.values()) - len(found) < topic.count // 2


@PROTOCOLS
def test_a_static_member_keeps_its_partitions_while_it_is_away(topic: Topic, protocol: str) -> None:
    """KIP-345."""
    topic.write()
    options = {"group_protocol": protocol, "session_timeout_ms": 10_000}
    other = Member(topic, **options)
    with contextlib.closing(topic.consume(end=None, group_instance_id="a", auto_commit=True, **options)) as consumer:
        reading = threading.Thread(target=lambda: list(consumer))
        reading.start()
        wait(lambda: len(consumer.assignment) == 2 and len(other.consumer.assignment) == 2)
        assignment = consumer.assignment
    reading.join(10)
    time.sleep(0.5)
    assert len(other.consumer.assignment) == 2
    consumer = topic.consume(end=None, group_instance_id="a", auto_commit=True, **options)
    reading = threading.Thread(target=lambda: list(consumer))
    reading.start()
    wait(lambda: consumer.assignment == assignment)
    consumer.close()
    reading.join(10)
    other.stop()


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_classic_group_is_shared_with_librdkafka(topic: Topic, strategy: str) -> None:
    topic.write(8)
    settings = {
        "bootstrap.servers": topic.bootstrap,
        "group.id": f"group-{topic.name}",
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": strategy,
        "heartbeat.interval.ms": 100,
        "session.timeout.ms": 6000,
        "log_level": 2,
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic.name])
    found: list[bytes | None] = []

    def poll() -> list[Any]:
        message = consumer.poll(0.05)
        if message is not None and message.error() is None:
            found.append(message.value())
        return list(consumer.assignment())

    wait(lambda: len(poll()) == PARTITIONS and len(found) == 8)
    # The default assignors are those that the other member has.
    member = Member(topic, group_protocol="classic")
    wait(lambda: len(poll()) == 2 and len(member.consumer.assignment) == 2)
    topic.write(8)
    wait(lambda: poll() and len(found) + len(member.found) == 16)
    consumer.close()
    wait(lambda: len(member.consumer.assignment) == PARTITIONS)
    member.stop()
    assert Counter([*found, *member.found]) == Counter(b"%d" % number for number in range(16))


def test_a_classic_group_that_other_members_have_is_joined_by_the_new_protocol(topic: Topic) -> None:
    """The broker converts the group (KIP-848)."""
    topic.write()
    classic = Member(topic, group_protocol="classic")
    wait(lambda: len(classic.consumer.assignment) == PARTITIONS)
    member = Member(topic)
    wait(lambda: len(classic.consumer.assignment) == 2 and len(member.consumer.assignment) == 2)
    classic.stop()
    wait(lambda: len(member.consumer.assignment) == PARTITIONS)
    member.stop()


def test_a_broker_with_the_classic_protocol_only_is_served_by_it(tmp_path: Path) -> None:
    settings = SETTINGS | GROUPS | {"group.coordinator.rebalance.protocols": "classic"}
    try:
        broker = Broker(tmp_path / "broker", settings=settings)
    except Unavailable as error:
        pytest.skip(str(error))
    with broker:
        topic = Topic(broker.bootstrap, "orders")
        topic.write()
        with topic.consume(end="latest", auto_commit=True) as consumer:
            assert sum(map(len, consumer)) == PARTITIONS
        assert topic.committed() == dict.fromkeys(range(PARTITIONS), 1)
        with pytest.raises(BrokerError, match=r"set group.protocol=classic"):
            list(topic.consume(group_protocol="consumer"))
