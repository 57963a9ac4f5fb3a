"""Records, and three clients that write them: librdkafka (confluent-kafka), aiokafka and kafka-python."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka

# kafka-python reads its schemas through a function that importlib.resources has deprecated.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

__all__ = ["CODECS", "EPOCH", "WRITERS", "Message", "kafka_python", "librdkafka", "oddities", "plain", "send"]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

# 14 November 2023. Segments roll by the timestamps of their records.
EPOCH = 1_700_000_000_000


class Message(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, bytes | None]] = []  # noqa: RUF012 (nobody appends to it)


def plain(count: int, start: int = 0, tag: str = "v") -> list[Message]:
    """Return compressible messages, one millisecond apart."""
    return [
        Message(b"key-%d" % (i % 7), f"{tag} {i} ".encode() + b"abcdefgh" * (i % 5), EPOCH + i)
        for i in range(start, start + count)
    ]


def oddities(tag: str) -> list[Message]:
    """Return records with null, empty and unusual fields (REC, HDR), followed by a hundred plain ones."""
    headers: list[list[tuple[str, bytes | None]]] = [
        [("a", b"1")],
        [("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"1")],
        [("a", None)],
        [("a", b"")],
        [("", b"nameless"), ("", None)],
        [("grüße-☃", "größe".encode())],
        [(f"h{i}", b"x" * i) for i in range(130)],
    ]
    odd = [
        Message(b"key", b"value", EPOCH),
        Message(None, b"value", EPOCH + 1),
        Message(b"", b"value", EPOCH + 2),
        Message(b"key", None, EPOCH + 3),
        Message(b"key", b"", EPOCH + 4),
        Message(b"", b"", EPOCH + 5),
        Message(None, b"", EPOCH + 6),
        Message(b"", None, EPOCH + 7),
        # Timestamps may decrease, also by years.
        Message(b"late", b"value", EPOCH - 86_400_000),
        Message(b"old", b"value", 1),
        Message(b"\x00\xff" * 40, bytes(range(256)) * 8, EPOCH + 8),
        Message(b"large", b"large " * 20_000, EPOCH + 9),
    ]
    odd += [Message(b"with-headers", b"%d" % i, EPOCH + 10 + i, h) for i, h in enumerate(headers)]
    return odd + plain(100, 100, tag)


@contextmanager
def librdkafka(bootstrap: str, codec: str = "none", **settings: Any) -> Iterator[confluent_kafka.Producer]:
    """A producer of batches of at most ten records; flushed at the end."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "batch.num.messages": 10,
            "linger.ms": 20,
            # Failures reach the delivery callback. The broker may stop while a producer is open: that is not logged.
            "log_level": 2,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    yield producer
    assert producer.flush(60) == 0


def send(producer: confluent_kafka.Producer, topic: str, partition: int, messages: Iterable[Message]) -> None:
    """Send, and wait until the broker has stored all messages, so that later ones follow them in the log."""
    failed = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for one in messages:
        producer.produce(
            topic,
            partition=partition,
            key=one.key,
            value=one.value,
            headers=one.headers,
            timestamp=one.timestamp,
            on_delivery=delivered,
        )
    assert producer.flush(60) == 0
    assert not failed


def write_librdkafka(bootstrap: str, codec: str, topic: str, partition: int, messages: list[Message]) -> None:
    with librdkafka(bootstrap, codec, enable_idempotence=codec in ("lz4", "zstd")) as producer:
        send(producer, topic, partition, messages)


def write_aiokafka(bootstrap: str, codec: str, topic: str, partition: int, messages: list[Message]) -> None:
    async def write() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec, max_batch_size=4096
        ) as producer:
            sent = [
                await producer.send(
                    topic,
                    one.value,
                    key=one.key,
                    partition=partition,
                    timestamp_ms=one.timestamp,
                    headers=one.headers,
                )
                for one in messages
            ]
            await asyncio.gather(*sent)

    asyncio.run(write())


@contextmanager
def kafka_python(bootstrap: str, codec: str, **settings: Any) -> Iterator[kafka.KafkaProducer]:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        batch_size=4096,
        linger_ms=5,
        **settings,
    )
    try:
        yield producer
    finally:
        producer.close()


def write_kafka_python(bootstrap: str, codec: str, topic: str, partition: int, messages: list[Message]) -> None:
    with kafka_python(bootstrap, codec) as producer:
        sent = [
            producer.send(
                topic,
                value=one.value,
                key=one.key,
                partition=partition,
                timestamp_ms=one.timestamp,
                # kafka-python cannot send a header with a null value.
                headers=[(key, value) for key, value in one.headers if value is not None],
            )
            for one in messages
        ]
        for future in sent:
            future.get(timeout=60)


# Each writer writes to one partition of a topic.
WRITERS = {"librdkafka": write_librdkafka, "aiokafka": write_aiokafka, "kafka-python": write_kafka_python}
