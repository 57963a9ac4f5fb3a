"""A broker started on logs that write_log has appended to serves them, and appends to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kbatch
from kbatch.errors import LogDirectoryError
from kbatch.log import write_log

try:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    from broker.server import Broker, Unavailable
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker

Seen = list[tuple[int, bytes | None, bytes | None, Any, int]]


def consumed(bootstrap: str, topic: str, partition: int, count: int) -> Seen:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "kbatch", "enable.auto.commit": False, "check.crcs": True}
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        seen: Seen = []
        while len(seen) < count:
            more = consumer.consume(count - len(seen), timeout=60)
            assert more, f"{len(seen)} of {count} messages"
            assert all(message.error() is None for message in more)
            seen += [(m.offset(), m.key(), m.value(), m.headers(), m.timestamp()[1]) for m in more]
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        assert (low, high) == (0, seen[-1][0] + 1)
        # Offsets by time use the written .timeindex.
        found = consumer.offsets_for_times([TopicPartition(topic, partition, seen[-1][4])], timeout=30)
        assert found[0].offset <= seen[-1][0]
        return seen
    finally:
        consumer.close()


def produce(bootstrap: str, topic: str, partition: int, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, key=b"broker", partition=partition, timestamp=1000)
    assert producer.flush(60) == 0


def test_a_broker_continues_written_logs(tmp_path: Path) -> None:
    try:
        broker = Broker(tmp_path / "broker")
    except Unavailable as error:
        pytest.skip(str(error))
    rows = {
        "key": pa.array([None if n % 4 == 0 else b"k%d" % n for n in range(3000)], pa.binary()),
        "value": [f"value {n}" for n in range(3000)],
        "partition": [n % 2 for n in range(3000)],
        "timestamp": [2000 + n for n in range(3000)],
        "headers": pa.array([[("n", b"%d" % n)] for n in range(3000)], pa.map_(pa.string(), pa.binary())),
    }
    expected: dict[int, Seen] = {0: [], 1: []}

    def add(partition: int, key: bytes | None, value: bytes, headers: Any, timestamp: int) -> None:
        expected[partition].append((len(expected[partition]), key, value, headers, timestamp))

    with broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.create_topics([NewTopic("t", 2, 1)]).values():
            future.result(60)
        # Partition 1 has an empty segment until then.
        produce(broker.bootstrap, "t", 0, [b"first", b"second"])
        with pytest.raises(LogDirectoryError, match="a broker or another writer holds this lock"):
            write_log(broker.log_dir, pa.table(rows), topic="t")
    for value in (b"first", b"second"):
        add(0, b"broker", value, None, 1000)
    for compression in ("zstd", "none"):
        write_log(broker.log_dir, pa.table(rows), topic="t", codec=compression, segment_bytes=20_000)
        for n in range(3000):
            key = None if n % 4 == 0 else b"k%d" % n
            add(n % 2, key, b"value %d" % n, [("n", b"%d" % n)], 2000 + n)
    printed = broker.run_class(
        "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--verify-index-only", "--files",
        ",".join(str(path) for path in sorted((broker.log_dir / "t-1").glob("*.*index"))[:4]),
    )  # fmt: skip
    assert "Index mismatch" not in printed
    assert "Mismatches" not in printed
    with broker:
        for partition in (0, 1):
            assert consumed(broker.bootstrap, "t", partition, len(expected[partition])) == expected[partition]
            produce(broker.bootstrap, "t", partition, [b"third"])
            add(partition, b"broker", b"third", None, 1000)
            assert consumed(broker.bootstrap, "t", partition, len(expected[partition])) == expected[partition]
    # kbatch reads the records of both writers.
    write_log(broker.log_dir, pa.table({"value": ["last"], "partition": [0]}), topic="t")
    log = kbatch.Log(broker.log_dir / "t-0")
    assert log.end_offset == len(expected[0]) + 1
    assert [value for table in log.tables() for value in table.values()] == [w[2] for w in expected[0]] + [b"last"]
