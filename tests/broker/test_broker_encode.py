"""Batches of encode() are produced unchanged to a real broker, and a foreign client consumes them.

The Produce requests are written by hand, so that no client touches the batches (PRD-R1 to R3, FCH-R7).
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import kbatch

try:
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    from broker.server import Broker
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker

PRODUCE, VERSION = 0, 7
# UNKNOWN_TOPIC_OR_PARTITION and NOT_LEADER_OR_FOLLOWER: the controller knows a new topic before the broker leads it.
NOT_YET = (3, 6)
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def produce(bootstrap: str, topic: str, batch: bytes, transactional_id: str | None = None) -> tuple[int, int]:
    """Send one batch to partition 0, again while it has no leader; return the error code and the assigned offset."""
    deadline = time.monotonic() + 60
    while (answer := _produce(bootstrap, topic, batch, transactional_id))[0] in NOT_YET:
        assert time.monotonic() < deadline, f"{topic} has no leader"
        time.sleep(0.05)
    return answer


def _produce(bootstrap: str, topic: str, batch: bytes, transactional_id: str | None) -> tuple[int, int]:
    host, port = bootstrap.split(":")
    body = struct.pack(">hhi", PRODUCE, VERSION, 1) + text("kbatch")
    body += struct.pack(">h", -1) if transactional_id is None else text(transactional_id)
    body += struct.pack(">hi", -1, 30_000)  # acks of all, timeout
    body += struct.pack(">i", 1) + text(topic) + struct.pack(">iii", 1, 0, len(batch)) + batch
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    at = 4 + 4 + 2 + len(topic) + 4 + 4
    error, offset = struct.unpack_from(">hq", answer, at)
    return error, offset


def consumed(bootstrap: str, topic: str, count: int) -> list[Any]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "kbatch", "enable.auto.commit": False, "check.crcs": True}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages: list[Any] = []
        while len(messages) < count:
            more = consumer.consume(count - len(messages), timeout=30)
            assert more, f"{len(messages)} of {count} messages"
            messages += more
        assert all(message.error() is None for message in messages)
        return messages
    finally:
        consumer.close()


def create(bootstrap: str, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=config)]).values():
        future.result(60)
    # Waits until the broker knows the topic.
    produce(bootstrap, topic, b"")


@pytest.mark.parametrize("codec", CODECS)
def test_a_broker_accepts_batches_and_a_client_reads_them(broker: Broker, codec: str) -> None:
    topic = f"encoded-{codec}"
    create(broker.bootstrap, topic)
    rng = np.random.default_rng(7)
    values = pa.array([None if n == 0 else rng.bytes(n % 300) * (n % 5) for n in range(500)], pa.binary_view())
    keys = pa.array([b"key-%d" % n for n in range(500)])
    headers = [[("h", b"1"), ("h", None), ("", bytes([n % 256]))] if n % 3 == 0 else None for n in range(500)]
    times = 1_700_000_000_000 + rng.integers(0, 1000, 500)
    cuts = [0, 1, 7, 300, 500]
    sequence = 0
    for first, stop in itertools.pairwise(cuts):
        part = slice(first, stop)
        batch = kbatch.encode(
            values[part],
            keys=keys[part],
            headers=headers[part],
            timestamps=times[part],
            codec=codec,
            producer_id=4711,
            producer_epoch=0,
            base_sequence=sequence,
        )
        assert produce(broker.bootstrap, topic, batch) == (0, first)
        sequence += stop - first
    got = consumed(broker.bootstrap, topic, 500)
    assert [m.offset() for m in got] == list(range(500))
    assert [m.value() for m in got] == values.to_pylist()
    assert [m.key() for m in got] == keys.to_pylist()
    assert [m.timestamp()[1] for m in got] == times.tolist()
    assert [m.headers() for m in got] == headers


def test_a_broker_recompresses_batches(broker: Broker) -> None:
    """The topic has another codec, so the broker decodes and rewrites every record."""
    create(broker.bootstrap, "encoded-again", **{"compression.type": "zstd"})
    for codec in CODECS:
        data = kbatch.encode([b"a", None, b"c" * 1000], timestamps=5, codec=codec)
        assert produce(broker.bootstrap, "encoded-again", data)[0] == 0
    got = consumed(broker.bootstrap, "encoded-again", 15)
    assert [m.value() for m in got] == [b"a", None, b"c" * 1000] * 5


def test_a_broker_rejects_damage(broker: Broker) -> None:
    """Checks the other tests: the broker returns CORRUPT_MESSAGE for a batch with a changed byte."""
    create(broker.bootstrap, "encoded-wrong")
    data = bytearray(kbatch.encode([b"value"]))
    data[-3] ^= 1
    assert produce(broker.bootstrap, "encoded-wrong", bytes(data))[0] == 2
