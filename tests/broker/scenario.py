"""Creates and writes every topic that the broker tests read."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from .clients import CODECS, EPOCH, WRITERS, Message, kafka_python, librdkafka, oddities, plain, send
from .server import Broker

__all__ = ["GROUP", "TOPICS", "Scenario", "write"]

# segment.ms: a segment rolls at a record whose timestamp is this much later than the segment's first. Markers have
# timestamps from the broker's clock.
ROLL = 60_000
GROUP = "kbatch-group"

# Partitions and settings of every topic.
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    **{f"codec-{codec}": (len(WRITERS), {}) for codec in CODECS},
    # The broker recompresses every batch with Java's codecs.
    **{f"broker-{codec}": (1, {"compression.type": codec}) for codec in CODECS[1:]},
    "broker-uncompressed": (1, {"compression.type": "uncompressed"}),
    "append-time": (1, {"message.timestamp.type": "LogAppendTime"}),
    "rolled": (1, {"segment.ms": str(ROLL)}),
    "trimmed": (2, {"segment.ms": str(ROLL)}),
    "compacted": (1, {"cleanup.policy": "compact", "segment.ms": str(ROLL), "min.cleanable.dirty.ratio": "0.0"}),
    "tombstones-gone": (
        1,
        {
            "cleanup.policy": "compact",
            "segment.ms": str(ROLL),
            "min.cleanable.dirty.ratio": "0.0",
            "delete.retention.ms": "0",
        },
    ),
    "transactions": (3, {"segment.ms": str(ROLL)}),
    "empty": (1, {}),
}


@dataclass
class Scenario:
    """Facts about the written records that the topics do not contain.

    Attributes
    ----------
    sent : dict
        Messages in order, by topic and partition, of topics with one writer per partition.
    trimmed : dict
        The log start offset that DeleteRecords set, by partition.
    committed : dict
        The last offset and metadata that `GROUP` committed, by topic and partition.
    """

    broker: Broker
    sent: dict[tuple[str, int], list[Message]] = field(default_factory=dict)
    trimmed: dict[int, int] = field(default_factory=dict)
    committed: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)
    # Producers with open transactions; they must not be garbage-collected before the tests end.
    open_producers: list[confluent_kafka.Producer] = field(default_factory=list)


def write(broker: Broker) -> Scenario:
    """Create and write the topics; return after the cleaner and DeleteRecords have finished."""
    scenario = Scenario(broker)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    created = admin.create_topics([NewTopic(name, count, 1, config=config) for name, (count, config) in TOPICS.items()])
    for future in created.values():
        future.result(60)
    _write_compacted(broker, "compacted")
    _write_compacted(broker, "tombstones-gone")
    _write_codecs(scenario)
    _write_rolled(scenario, admin)
    _write_transactions(scenario)
    _commit_offsets(scenario)
    _wait_for_cleaner(broker, "compacted")
    _wait_for_cleaner(broker, "tombstones-gone")
    # The first pass sets the delete horizon of tombstones; the next one, after further writes, removes them.
    with librdkafka(broker.bootstrap) as producer:
        for minutes in (4, 6):
            send(producer, "tombstones-gone", 0, [Message(b"again", b"%d" % minutes, _in_minutes(minutes))])
    _wait_for_cleaner(broker, "tombstones-gone")
    return scenario


def _write_codecs(scenario: Scenario) -> None:
    bootstrap = scenario.broker.bootstrap
    for codec in CODECS:
        for partition, write_with in enumerate(WRITERS.values()):
            messages = oddities(codec)
            write_with(bootstrap, codec, f"codec-{codec}", partition, messages)
            scenario.sent[f"codec-{codec}", partition] = messages
    for number, name in enumerate([name for name in TOPICS if name.startswith("broker-")]):
        messages = oddities(name)
        WRITERS["librdkafka"](bootstrap, CODECS[number], name, 0, messages)
        scenario.sent[name, 0] = messages
    for number, codec in enumerate(CODECS):
        write_with = list(WRITERS.values())[number % len(WRITERS)]
        write_with(bootstrap, codec, "append-time", 0, plain(30, 30 * number, codec))


def _write_rolled(scenario: Scenario, admin: AdminClient) -> None:
    with librdkafka(scenario.broker.bootstrap, "lz4") as producer:
        for topic, partition in [("rolled", 0), ("trimmed", 0), ("trimmed", 1)]:
            for i in range(5):
                messages = [one._replace(timestamp=EPOCH + i * 2 * ROLL + n) for n, one in enumerate(plain(50, 50 * i))]
                send(producer, topic, partition, messages)
    # Partition 0: an offset within a segment and within a batch. Partition 1: all records.
    scenario.trimmed = {0: 123, 1: 250}
    asked = [confluent_kafka.TopicPartition("trimmed", p, offset) for p, offset in scenario.trimmed.items()]
    for partition, future in admin.delete_records(asked).items():
        assert future.result(60).low_watermark == scenario.trimmed[partition.partition]
    checkpoint = scenario.broker.log_dir / "log-start-offset-checkpoint"
    expected = {f"trimmed {p} {offset}" for p, offset in scenario.trimmed.items()}
    _wait(lambda: expected <= set(checkpoint.read_text().splitlines()), "the checkpoint of log start offsets")


def _write_compacted(broker: Broker, topic: str) -> None:
    """Write keys repeatedly, with tombstones and an aborted transaction; the last record rolls the segment."""
    bootstrap = broker.bootstrap
    for number, codec in enumerate(CODECS):
        with librdkafka(bootstrap, codec) as producer:
            messages = plain(40, 40 * number, codec)
            send(producer, topic, 0, [one._replace(headers=[("n", b"%d" % number)]) for one in messages])
            send(producer, topic, 0, [Message(b"only-%d" % number, codec.encode(), EPOCH + number)])
    for name, end in [("kept", "commit_transaction"), ("aborted", "abort_transaction")]:
        with librdkafka(bootstrap, "zstd", transactional_id=f"{topic}-{name}") as producer:
            producer.init_transactions(60)
            producer.begin_transaction()
            send(producer, topic, 0, plain(20, 7, name))
            getattr(producer, end)(60)
    with librdkafka(bootstrap) as producer:
        gone = [
            Message(b"key-1", None, EPOCH + 900),
            Message(b"key-2", None, EPOCH + 901),
            Message(b"new", None, EPOCH),
        ]
        send(producer, topic, 0, gone)
        send(producer, topic, 0, [Message(b"key-2", b"back", EPOCH + 902), Message(b"", b"empty key", EPOCH + 903)])
        send(producer, topic, 0, [Message(b"key-3", b"later", _in_minutes(2))])


def _write_transactions(scenario: Scenario) -> None:
    """Interleave producers over partitions 0 and 1, which end with open transactions, and 2, which has none."""
    bootstrap, topic = scenario.broker.bootstrap, "transactions"
    with contextlib.ExitStack() as stack:
        a, b, c = (
            stack.enter_context(librdkafka(bootstrap, codec, transactional_id=f"rd-{codec}"))
            for codec in ("none", "lz4", "zstd")
        )
        idempotent = stack.enter_context(librdkafka(bootstrap, "snappy", enable_idempotence=True))
        simple = stack.enter_context(librdkafka(bootstrap, "gzip", acks=1))
        for one in (a, b, c):
            one.init_transactions(60)

        a.begin_transaction()
        send(a, topic, 0, plain(15, 0, "a commits"))
        b.begin_transaction()
        send(b, topic, 0, plain(12, 0, "b aborts"))
        send(simple, topic, 0, plain(3, 0, "simple"))
        send(a, topic, 1, plain(4, 15, "a commits"))
        send(a, topic, 2, plain(4, 19, "a commits"))
        send(b, topic, 2, plain(2, 12, "b aborts"))
        a.commit_transaction(60)
        send(b, topic, 0, plain(2, 14, "b aborts"))
        send(idempotent, topic, 0, oddities("idempotent"))
        b.abort_transaction(60)

        # One producer, alternating outcomes.
        for i in range(6):
            c.begin_transaction()
            for partition in range(3):
                send(c, topic, partition, plain(2 + i, 10 * i, "c aborts" if i % 2 else "c commits"))
            c.abort_transaction(60) if i % 2 else c.commit_transaction(60)
        # An empty transaction writes no marker.
        c.begin_transaction()
        c.commit_transaction(60)

        _write_transactions_otherwise(bootstrap, topic)

        # Aborted transactions that begin in one segment and end in the next.
        later = _in_minutes(2)
        b.begin_transaction()
        send(b, topic, 0, plain(5, 100, "b aborts"))
        send(b, topic, 2, plain(5, 100, "b aborts"))
        for partition in (0, 2):
            send(simple, topic, partition, [Message(b"simple", b"rolls", later)] * 3)
        send(b, topic, 0, [Message(b"b", b"aborts", later + 10)])
        b.abort_transaction(60)

        for number, partitions in enumerate([[0], [0, 1]]):
            opened = stack.enter_context(librdkafka(bootstrap, "lz4", transactional_id=f"open-{number}"))
            opened.init_transactions(60)
            opened.begin_transaction()
            for partition in partitions:
                send(opened, topic, partition, [Message(b"open", b"%d" % number, later + 20)] * 3)
            scenario.open_producers.append(opened)
        # Decided transactions after the first open one: they are beyond the last stable offset.
        for producer, end in [(a, "commit_transaction"), (b, "abort_transaction")]:
            producer.begin_transaction()
            for partition in range(3):
                send(producer, topic, partition, [Message(b"behind", end.encode(), later + 30)] * 4)
            getattr(producer, end)(60)
        send(idempotent, topic, 0, [Message(b"behind", b"idempotent", later + 40)])


def _write_transactions_otherwise(bootstrap: str, topic: str) -> None:
    """Commit and abort with aiokafka and kafka-python."""

    async def write() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type="gzip", transactional_id="aio"
        ) as producer:
            for text, end in [
                ("aio commits", producer.commit_transaction),
                ("aio aborts", producer.abort_transaction),
            ]:
                await producer.begin_transaction()
                sent = [
                    await producer.send(topic, one.value, key=one.key, partition=one.timestamp % 3)
                    for one in plain(30, 0, text)
                ]
                await asyncio.gather(*sent)
                await end()

    asyncio.run(write())
    with kafka_python(bootstrap, "snappy", transactional_id="kafka-python") as producer:
        producer.init_transactions()
        for text, end in [
            ("kafka-python commits", producer.commit_transaction),
            ("kafka-python aborts", producer.abort_transaction),
        ]:
            producer.begin_transaction()
            sent = [
                producer.send(topic, value=one.value, key=one.key, partition=one.timestamp % 3)
                for one in plain(30, 0, text)
            ]
            for future in sent:
                future.get(timeout=60)
            end()


def _commit_offsets(scenario: Scenario) -> None:
    """Commit offsets as a group: twice, with metadata, and in transactions that commit and abort."""
    bootstrap = scenario.broker.bootstrap

    def at(topic: str, partition: int, offset: int, metadata: str = "") -> Any:
        scenario.committed[topic, partition] = (offset, metadata)
        return confluent_kafka.TopicPartition(topic, partition, offset, metadata)

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 2,
        }
    )
    try:
        consumer.subscribe(["rolled"])
        _wait(lambda: consumer.poll(0.2) is not None, "a record for the group")
        consumer.commit(offsets=[at("rolled", 0, 5)], asynchronous=False)
        consumer.commit(offsets=[at("rolled", 0, 17, "größer")], asynchronous=False)
        consumer.commit(offsets=[at("codec-none", 1, 3)], asynchronous=False)
        group = consumer.consumer_group_metadata()
        with librdkafka(bootstrap, transactional_id="offsets") as producer:
            producer.init_transactions(60)
            producer.begin_transaction()
            producer.send_offsets_to_transaction([at("codec-none", 2, 40)], group, 60)
            producer.commit_transaction(60)
            producer.begin_transaction()
            lost = confluent_kafka.TopicPartition("codec-none", 2, 999)
            producer.send_offsets_to_transaction([lost], group, 60)
            producer.abort_transaction(60)
    finally:
        consumer.close()


def _in_minutes(minutes: int) -> int:
    """Return a timestamp (ms) that rolls a segment beginning with a marker; brokers allow one hour ahead."""
    return int(time.time() * 1000) + minutes * ROLL


def _wait(done: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)


def _wait_for_cleaner(broker: Broker, topic: str) -> None:
    """Return when all but the active segment of partition 0 has been cleaned."""
    active = max(int(path.stem) for path in _segments(broker, topic))
    checkpoint = broker.log_dir / "cleaner-offset-checkpoint"
    _wait(
        lambda: checkpoint.exists() and f"{topic} 0 {active}" in checkpoint.read_text().splitlines(),
        f"the cleaner to reach offset {active} of {topic}",
    )


def _segments(broker: Broker, topic: str) -> list[Path]:
    return sorted((broker.log_dir / f"{topic}-0").glob("*.log"))
