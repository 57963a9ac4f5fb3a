"""Topics of a broker: written from corpora, and read raw, with the few requests that this needs."""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.corpora import BASE_TIMESTAMP, Corpus

__all__ = ["PARTITION_BYTES", "RESPONSE_BYTES", "Connection", "Topic", "create_topic", "delete_topics", "write_topic"]

MIB = 1 << 20
# Maximum bytes of a response, for each partition and in total: large enough that the cost of a request is negligible.
PARTITION_BYTES, RESPONSE_BYTES = 4 * MIB, 32 * MIB
# Requests that are sent before the first one is answered.
PRODUCE_REQUESTS = 8


@dataclass(frozen=True)
class Topic:
    """A topic to read.

    Attributes
    ----------
    bootstrap, name : str
    partitions : int
        They are numbered from 0.
    records : int
        In all partitions.
    sums : tuple of int
        What every client must return: records, offsets, timestamps, bytes of keys and of values.
    """

    bootstrap: str
    name: str
    partitions: int
    records: int
    sums: tuple[int, ...]


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

    def produce(self, topic: str, requests: Iterable[Mapping[int, bytes]]) -> None:
        """Append batches (Produce, version 7): each request holds one batch for some of the partitions."""
        waiting: deque[int] = deque()
        for batches in requests:
            if len(waiting) == PRODUCE_REQUESTS:
                self._receive_produced(topic, waiting.popleft())
            name = topic.encode()
            parts = [struct.pack(f">hhiih{len(name)}si", -1, 1, 30_000, 1, len(name), name, len(batches))]
            for partition, batch in batches.items():
                parts += [struct.pack(">ii", partition, len(batch)), batch]
            self._send(0, 7, b"".join(parts))
            waiting.append(len(batches))
        while waiting:
            self._receive_produced(topic, waiting.popleft())

    def _receive_produced(self, topic: str, batches: int) -> None:
        answer = self._receive()
        at = 4 + 2 + len(topic.encode()) + 4
        for _ in range(batches):
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


def admin(bootstrap: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})


def create_topic(bootstrap: str, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
    from confluent_kafka.admin import NewTopic

    from tests.broker.reading import wait_for_leaders

    client = admin(bootstrap)
    for future in client.create_topics([NewTopic(name, partitions, 1, config=dict(config or {}))]).values():
        future.result(60)
    wait_for_leaders(bootstrap, [(name, partition) for partition in range(partitions)])


def delete_topics(bootstrap: str, names: Iterable[str]) -> None:
    client = admin(bootstrap)
    for future in client.delete_topics(list(names)).values():
        future.result(60)


def write_topic(
    bootstrap: str,
    name: str,
    what: Corpus,
    partitions: int,
    copies: int = 1,
    config: Mapping[str, str] | None = None,
) -> Topic:
    """Write the batches of a corpus to the partitions of a new topic, once or several times.

    The broker assigns consecutive offsets, so the sum of offsets differs from the corpus.
    """
    import kbatch

    create_topic(bootstrap, name, partitions, config)
    batches = kbatch.scan(what.data)
    shares = np.array_split(np.arange(len(batches)), partitions)

    def requests() -> Iterator[dict[int, bytes]]:
        for _ in range(copies):
            queues = [
                deque(zip(batches["position"][s].tolist(), batches["size"][s].tolist(), strict=True)) for s in shares
            ]
            while any(queues):
                # A request holds one batch per partition, with base offset 0. The CRC does not cover the base offset.
                heads = {partition: queue.popleft() for partition, queue in enumerate(queues) if queue}
                yield {partition: bytes(8) + what.data[at + 8 : at + size] for partition, (at, size) in heads.items()}

    with Connection(bootstrap) as connection:
        connection.produce(name, requests())
    counts = [copies * int(batches["record_count"][share].sum()) for share in shares]
    sums = what.sums
    per_copy = (sums.records, sums.timestamps + sums.records * BASE_TIMESTAMP, sums.key_bytes, sums.value_bytes)
    records, timestamps, key_bytes, value_bytes = (copies * each for each in per_copy)
    offsets = sum(count * (count - 1) // 2 for count in counts)
    return Topic(bootstrap, name, partitions, records, (records, offsets, timestamps, key_bytes, value_bytes))
