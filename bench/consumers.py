"""Clients that read a topic from a broker, each in the fastest way found: to a count of records, and to an Arrow table.

All clients verify CRCs (librdkafka and its wrappers because they are configured to), read all partitions, and stop at
the last record. `Consumer.missing` reports clients that are not installed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import struct
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["ARROW_COLUMNS", "CONSUMERS", "Connection", "Consumer", "Topic"]

ARROW_COLUMNS = ("offset", "timestamp", "key", "value")
MIB = 1 << 20
# Maximum bytes of a response, for each partition and in total: large enough that the cost of a request is negligible.
PARTITION_BYTES, RESPONSE_BYTES = 4 * MIB, 32 * MIB
DEADLINE_SECONDS = 300

# These settings make librdkafka two to ten times as fast. With its defaults, its queue fills up, and it pauses before
# it sends the next request.
LIBRDKAFKA = {
    "check.crcs": True,
    "queued.min.messages": 10_000_000,
    "queued.max.messages.kbytes": 1_048_576,
    "fetch.queue.backoff.ms": 1,
    "fetch.message.max.bytes": PARTITION_BYTES,
}


@dataclass(frozen=True)
class Topic:
    """A topic to read: ``records`` is the number of records in partitions 0 to ``partitions`` - 1."""

    bootstrap: str
    name: str
    partitions: int
    records: int


class Connection:
    """A connection to a broker with the two requests that are needed, in versions with fixed-size lengths."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _send(self, key: int, version: int, body: bytes) -> None:
        request = struct.pack(">hhih", key, version, 7, -1) + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)

    def _receive(self) -> memoryview:
        """Return the bytes of a response after its correlation id."""
        size = int.from_bytes(self._read(4), "big")
        return self._read(size)[4:]

    def _read(self, size: int) -> memoryview:
        # NumPy allocates the memory without filling it with zeros.
        answer = memoryview(np.empty(size, np.uint8))
        done = 0
        while done < size:
            count = self._socket.recv_into(answer[done:])
            if not count:
                raise EOFError("the broker has closed the connection")
            done += count
        return answer

    def produce(self, topic: str, batches: Mapping[int, bytes]) -> None:
        """Append one batch to each of the given partitions (Produce, version 7)."""
        name = topic.encode()
        body = struct.pack(f">hhiih{len(name)}si", -1, 1, 30_000, 1, len(name), name, len(batches))
        for partition, batch in batches.items():
            body += struct.pack(">ii", partition, len(batch)) + batch
        self._send(0, 7, body)
        answer = self._receive()
        at = 4 + 2 + len(name) + 4
        for _ in batches:
            partition, error = struct.unpack_from(">ih", answer, at)
            if error:
                raise RuntimeError(f"the broker refused a batch of partition {partition}: error {error}")
            at += struct.calcsize(">ihqqq")

    def send_fetch(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Send a Fetch request (version 11) for at most `PARTITION_BYTES` of each partition, from the given offset."""
        name = topic.encode()
        body = struct.pack(">iiiibii", -1, 500, 1, RESPONSE_BYTES, 0, 0, -1)
        body += struct.pack(f">ih{len(name)}si", 1, len(name), name, len(offsets))
        for partition, offset in offsets.items():
            body += struct.pack(">iiqqi", partition, -1, offset, -1, PARTITION_BYTES)
        self._send(1, 11, body + struct.pack(">ih", 0, 0))

    def receive_fetch(self) -> Iterator[tuple[int, memoryview]]:
        """Receive the response: partitions, and the bytes of their batches; the last batch may be incomplete."""
        answer = self._receive()
        # throttling, error, session, topics
        _, error, _, topics = struct.unpack_from(">ihii", answer)
        if error:
            raise RuntimeError(f"the broker answered a Fetch request with error {error}")
        at = 14
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", answer, at)
            (partitions,) = struct.unpack_from(">i", answer, at + 2 + length)
            at += 2 + length + 4
            for _ in range(partitions):
                partition, error, _, _, _, aborted = struct.unpack_from(">ihqqqi", answer, at)
                if error:
                    raise RuntimeError(f"the broker answered a Fetch of partition {partition} with error {error}")
                at += struct.calcsize(">ihqqqi") + 16 * max(aborted, 0)
                _, size = struct.unpack_from(">ii", answer, at)
                at += 8
                yield partition, answer[at : at + size]
                at += max(size, 0)


def deadline() -> Callable[[], None]:
    """Return a function that raises `TimeoutError` when `DEADLINE_SECONDS` have passed."""
    until = time.monotonic() + DEADLINE_SECONDS

    def check() -> None:
        if time.monotonic() > until:
            raise TimeoutError(f"not all records arrived within {DEADLINE_SECONDS} s")

    return check


def fetch(topic: Topic) -> Iterator[tuple[memoryview, int]]:
    """Read a topic with Fetch requests; yield the bytes of batches and the number of records in them.

    The batch headers contain the next offsets, so the next request is sent before the batches are decoded.
    """
    import kbatch

    in_time = deadline()
    offsets = dict.fromkeys(range(topic.partitions), 0)
    left = topic.records
    with Connection(topic.bootstrap) as connection:
        connection.send_fetch(topic.name, offsets)
        while left:
            found = []
            for partition, data in connection.receive_fetch():
                batches = kbatch.scan(data)
                if len(batches):
                    offsets[partition] = int(batches["base_offset"][-1] + batches["last_offset_delta"][-1]) + 1
                    count = int(batches["record_count"].sum())
                    left -= count
                    found.append((data, count))
            if left > 0:
                connection.send_fetch(topic.name, offsets)
            in_time()
            yield from found


def count_raw(topic: Topic) -> int:
    return sum(count for _, count in fetch(topic))


def count_kbatch(topic: Topic) -> int:
    import kbatch

    return sum(len(kbatch.decode(data)) for data, _ in fetch(topic))


def arrow_kbatch(topic: Topic) -> Any:
    import pyarrow as pa

    import kbatch

    return pa.concat_tables([kbatch.decode(data).to_arrow(columns=ARROW_COLUMNS) for data, _ in fetch(topic)])


def count_consume(topic: Topic) -> int:
    import kbatch

    return sum(len(table) for table in kbatch.consume(topic.name, bootstrap_servers=topic.bootstrap))


def arrow_consume(topic: Topic) -> Any:
    import kbatch

    return kbatch.consume(topic.name, bootstrap_servers=topic.bootstrap, columns=ARROW_COLUMNS).to_arrow()


class Rows:
    """Columns that grow by one append per value, and the Arrow table that is built from them."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []

    def table(self) -> Any:
        import pyarrow as pa

        count = len(self.offsets)
        # For integers, np.fromiter takes two thirds of the time of pa.array, and for timestamps half.
        timestamps = pa.array(np.fromiter(self.timestamps, np.int64, count)).view(pa.timestamp("ms", "UTC"))
        offsets = pa.array(np.fromiter(self.offsets, np.int64, count))
        keys, values = (pa.array(column, pa.binary()) for column in (self.keys, self.values))
        return pa.table([offsets, timestamps, keys, values], names=list(ARROW_COLUMNS))


def librdkafka(topic: Topic, settings: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield the lists of messages that confluent-kafka's consumer returns."""
    import confluent_kafka

    in_time = deadline()
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": topic.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "log_level": 2,
            **settings,
        }
    )
    start = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(topic.name, one, start) for one in range(topic.partitions)])
    left = topic.records
    while left:
        messages = consumer.consume(100_000, 0.05)
        for one in messages[:1]:
            if one.error():
                raise RuntimeError(f"librdkafka reports {one.error()}")
        left -= len(messages)
        yield messages
        in_time()
    consumer.close()


def arrow_librdkafka(topic: Topic, settings: Mapping[str, Any]) -> Any:
    rows = Rows()
    offset, timestamp, key, value = rows.offsets.append, rows.timestamps.append, rows.keys.append, rows.values.append
    for messages in librdkafka(topic, settings):
        for one in messages:
            offset(one.offset())
            timestamp(one.timestamp()[1])
            key(one.key())
            value(one.value())
    return rows.table()


def kafkarrow(topic: Topic) -> Iterator[Any]:
    """Yield the Arrow record batches that kafkarrow returns."""
    import kafkarrow as package

    in_time = deadline()
    config = {key: str(value).lower() for key, value in LIBRDKAFKA.items()}
    manager = package.ConsumerManager(
        {"bootstrap.servers": topic.bootstrap, "group.id": "bench", "log_level": "2", **config},
        [package.SourceTopic.from_earliest(topic.name)],
        batch_size=1_000_000,
    )
    left = topic.records
    while left:
        batch = manager.poll(100)
        left -= batch.num_rows
        yield batch
        in_time()


def arrow_kafkarrow(topic: Topic) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches(batch for batch in kafkarrow(topic) if batch.num_rows).select(ARROW_COLUMNS)


async def aiokafka(topic: Topic, take: Callable[[list[Any]], None]) -> None:
    """Call `take` with the lists of records that aiokafka's consumer returns."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    in_time = deadline()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=topic.bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=PARTITION_BYTES,
        fetch_max_bytes=RESPONSE_BYTES,
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic.name, one) for one in range(topic.partitions)])
        left = topic.records
        while left:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                left -= len(records)
                take(records)
            in_time()
    finally:
        await consumer.stop()


def kafka_python(topic: Topic, take: Callable[[list[Any]], None]) -> None:
    """Call `take` with the lists of records that kafka-python's consumer returns."""
    # kafka-python reads its schemas through a function that importlib.resources has deprecated.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import KafkaConsumer, TopicPartition

        in_time = deadline()
        consumer = KafkaConsumer(
            bootstrap_servers=topic.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=PARTITION_BYTES,
            fetch_max_bytes=RESPONSE_BYTES,
            max_poll_records=100_000,
        )
        consumer.assign([TopicPartition(topic.name, one) for one in range(topic.partitions)])
        left = topic.records
        while left:
            for records in consumer.poll(timeout_ms=100).values():
                left -= len(records)
                take(records)
            in_time()
        consumer.close()


def counted(read: Callable[[Topic, Callable[[list[Any]], None]], Any], topic: Topic) -> int:
    counts: list[int] = []
    read(topic, lambda records: counts.append(len(records)))
    return sum(counts)


def appended(read: Callable[[Topic, Callable[[list[Any]], None]], Any], topic: Topic) -> Any:
    rows = Rows()
    offset, timestamp, key, value = rows.offsets.append, rows.timestamps.append, rows.keys.append, rows.values.append

    def take(records: list[Any]) -> None:
        for one in records:
            offset(one.offset)
            timestamp(one.timestamp)
            key(one.key)
            value(one.value)

    read(topic, take)
    return rows.table()


def run_aiokafka(topic: Topic, take: Callable[[list[Any]], None]) -> None:
    asyncio.run(aiokafka(topic, take))


@dataclass(frozen=True)
class Consumer:
    """A client: functions that count the records of a topic and that build an Arrow table (None: not possible)."""

    name: str
    package: str
    count: Callable[[Topic], int]
    arrow: Callable[[Topic], Any] | None
    slow: bool = False
    # Codecs that the client cannot read.
    unread: tuple[str, ...] = ()

    def missing(self, corpus: str) -> str | None:
        """Return the reason why the client cannot read a corpus here, or None if it can."""
        if importlib.util.find_spec(self.package) is None:
            return f"{self.package} is not installed"
        return next((f"its wheels are built without {codec}" for codec in self.unread if codec in corpus), None)


def librdkafka_consumer(name: str, settings: Mapping[str, Any], *, slow: bool = False) -> Consumer:
    return Consumer(
        name,
        "confluent_kafka",
        lambda topic: sum(map(len, librdkafka(topic, settings))),
        lambda topic: arrow_librdkafka(topic, settings),
        slow,
    )


def kafkarrow_consumer() -> Consumer:
    return Consumer(
        "kafkarrow",
        "kafkarrow",
        lambda topic: sum(batch.num_rows for batch in kafkarrow(topic)),
        arrow_kafkarrow,
        unread=("zstd",),
    )


CONSUMERS = [
    Consumer("Fetch responses, nothing decoded", "kbatch", count_raw, None),
    Consumer("Fetch responses + kbatch", "kbatch", count_kbatch, arrow_kbatch),
    Consumer("kbatch.consume", "kbatch", count_consume, arrow_consume),
    librdkafka_consumer("confluent-kafka", LIBRDKAFKA),
    librdkafka_consumer("confluent-kafka, defaults", {"check.crcs": True}, slow=True),
    kafkarrow_consumer(),
    Consumer(
        "aiokafka",
        "aiokafka",
        lambda topic: counted(run_aiokafka, topic),
        lambda topic: appended(run_aiokafka, topic),
    ),
    Consumer(
        "kafka-python",
        "kafka",
        lambda topic: counted(kafka_python, topic),
        lambda topic: appended(kafka_python, topic),
        slow=True,
    ),
]
