"""Records as a consumer receives them from the broker, and as kbatch reads them from its disk."""

from __future__ import annotations

import socket
import struct
import time
import warnings
from collections.abc import Iterable
from typing import NamedTuple

import confluent_kafka
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

import kbatch

from .clients import kafka

__all__ = [
    "Fetched",
    "Partition",
    "Row",
    "consumed",
    "fetch",
    "offsets_of",
    "open_transactions",
    "rows_of",
    "wait_for_leaders",
]

Partition = tuple[str, int]

ISOLATION = {
    "read_uncommitted": confluent_kafka.IsolationLevel.READ_UNCOMMITTED,
    "read_committed": confluent_kafka.IsolationLevel.READ_COMMITTED,
}


class Row(NamedTuple):
    """A record as every reader returns it; timestamp_type is 0 for create time and 1 for log append time."""

    topic: str | None
    partition: int | None
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


TIMESTAMP_TYPES = {confluent_kafka.TIMESTAMP_CREATE_TIME: 0, confluent_kafka.TIMESTAMP_LOG_APPEND_TIME: 1}


def consumed(bootstrap: str, partitions: Iterable[Partition], isolation: str) -> dict[Partition, list[Row]]:
    """Return the records that librdkafka's consumer gets, from the beginning to the end of each partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "kbatch-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
            "log_level": 2,
        }
    )
    rows: dict[Partition, list[Row]] = {partition: [] for partition in partitions}
    left = set(rows)
    deadline = time.monotonic() + 60
    try:
        consumer.assign([TopicPartition(*partition, confluent_kafka.OFFSET_BEGINNING) for partition in rows])
        while left:
            messages = consumer.consume(1000, timeout=0.5)
            if messages:
                deadline = time.monotonic() + 60
            for one in messages:
                partition = (one.topic(), one.partition())
                error = one.error()
                if error is not None and error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    left.discard(partition)
                    continue
                assert error is None, error
                kind, timestamp = one.timestamp()
                headers = tuple((key.encode(), value) for key, value in one.headers() or ())
                row = (one.offset(), timestamp, TIMESTAMP_TYPES[kind], one.key(), one.value(), headers)
                rows[partition].append(Row(*partition, *row))
            assert time.monotonic() < deadline, f"did not reach the end of {sorted(left)}"
    finally:
        consumer.close()
    return rows


def rows_of(tables: Iterable[kbatch.RecordTable]) -> list[Row]:
    rows = []
    for table in tables:
        headers: list[list[tuple[bytes, bytes | None]]] = [[] for _ in range(len(table))]
        for record, key_pos, value_pos, key_len, value_len in table.headers.tolist():
            value = table.data[value_pos : value_pos + value_len].tobytes() if value_len >= 0 else None
            headers[record].append((table.data[key_pos : key_pos + key_len].tobytes(), value))
        kinds = (table.batches["attributes"][table.records["batch"]] >> 3 & 1).tolist()
        columns = zip(
            table.records["offset"].tolist(),
            table.records["timestamp"].tolist(),
            kinds,
            table.keys(),
            table.values(),
            map(tuple, headers),
            strict=True,
        )
        rows += [Row(table.topic, table.partition, *column) for column in columns]
    return rows


def offsets_of(
    bootstrap: str, partitions: Iterable[Partition], what: OffsetSpec, isolation: str = "read_uncommitted"
) -> dict[Partition, int]:
    """Ask the broker (ListOffsets); its latest offset under read_committed is the last stable one."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    asked = {TopicPartition(*partition): what for partition in partitions}
    answers = admin.list_offsets(asked, isolation_level=ISOLATION[isolation])
    return {(one.topic, one.partition): future.result(60).offset for one, future in answers.items()}


class Fetched(NamedTuple):
    """A fetch response for one partition; `aborted` is None if the list of the response is null."""

    records: bytes
    aborted: list[tuple[int, int]] | None
    last_stable_offset: int
    high_watermark: int


def fetch(bootstrap: str, where: Partition, offset: int, isolation: str, max_bytes: int) -> Fetched:
    """Send one Fetch request (version 11) over a socket, and return the response that a consumer would decode."""
    topic = where[0].encode()
    name = struct.pack(f">h{len(topic)}s", len(topic), topic)
    # replica, wait, min and max bytes, isolation, no session; one topic, one partition; no forgotten topics, no rack
    body = struct.pack(">iiiibii", -1, 0, 0, 1 << 20, isolation == "read_committed", 0, -1)
    body += struct.pack(">i", 1) + name + struct.pack(">iiiqqi", 1, where[1], -1, offset, -1, max_bytes)
    body += struct.pack(">ih", 0, 0)
    request = struct.pack(">hhih", 1, 11, 7, -1) + body
    host, port = bootstrap.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            answer = stream.read(size)
    at = 0

    def take(layout: str) -> tuple[int, ...]:
        nonlocal at
        values = struct.unpack_from(">" + layout, answer, at)
        at += struct.calcsize(">" + layout)
        return values

    # correlation, throttling, error, session, topics
    assert take("iihii") == (7, 0, 0, 0, 1)
    (length,) = take("h")
    at += length
    partitions, partition, error, high, stable, _, count = take("iihqqqi")
    assert (partitions, partition, error) == (1, where[1], 0)
    aborted = None if count < 0 else [(pid, first) for pid, first in (take("qq") for _ in range(count))]
    _, size = take("ii")
    return Fetched(answer[at : at + max(size, 0)], aborted, stable, high)


def wait_for_leaders(bootstrap: str, partitions: Iterable[Partition]) -> None:
    """Wait until a restarted broker leads all partitions again."""
    deadline = time.monotonic() + 60
    while True:
        try:
            offsets_of(bootstrap, partitions, OffsetSpec.latest())
            return
        except confluent_kafka.KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def open_transactions(bootstrap: str, partitions: Iterable[Partition]) -> dict[Partition, list[tuple[int, int]]]:
    """Ask the broker (DescribeProducers) for open transactions: (producer id, first offset), by offset."""
    with warnings.catch_warnings():
        # kafka-python loads its schemas on first use, through a function that importlib.resources has deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            answers = admin.describe_producers([kafka.TopicPartition(*partition) for partition in partitions])
        finally:
            admin.close()
    opened: dict[Partition, list[tuple[int, int]]] = {}
    for partition, state in answers.items():
        found = [(one.current_transaction_start_offset, one.producer_id) for one in state.active_producers]
        opened[tuple(partition)] = [(pid, offset) for offset, pid in sorted(found) if offset >= 0]
    return opened
