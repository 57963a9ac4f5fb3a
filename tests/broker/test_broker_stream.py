"""A stream over the log directory of a running broker returns every record of librdkafka's consumer exactly once."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

try:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewTopic

    from broker import reading
    from broker.clients import librdkafka, plain, send
    from broker.server import Broker
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

from stream_query import Query

pytestmark = pytest.mark.broker

ISOLATIONS = ["read_uncommitted", "read_committed"]


def create(broker: Broker, topic: str, partitions: int, **config: str) -> list[tuple[str, int]]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(60)
    expected = [(topic, number) for number in range(partitions)]
    reading.wait_for_leaders(broker.bootstrap, expected)
    return expected


def produce(broker: Broker, topic: str, rounds: int) -> None:
    """Write batches, and committed and aborted transactions of two concurrent producers, while segments roll."""
    producers = []
    for number in range(2):
        settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": f"{topic}-{number}", "log_level": 2}
        producers.append(confluent_kafka.Producer({**settings, "linger.ms": 1}))
        producers[-1].init_transactions(60)
    with librdkafka(broker.bootstrap, "lz4") as idle:
        for turn in range(rounds):
            send(idle, topic, turn % 2, plain(25, 100 * turn))
            for producer in producers:
                producer.begin_transaction()
            for partition in (0, 1):
                for producer in producers:
                    send(producer, topic, partition, plain(12, 100 * turn + 30))
            for number, producer in enumerate(producers):
                if (turn + number) % 3:
                    producer.commit_transaction(60)
                else:
                    producer.abort_transaction(60)


def while_it_is_written(broker: Broker, topic: str, rounds: int) -> threading.Thread:
    thread = threading.Thread(target=produce, args=(broker, topic, rounds))
    thread.start()
    return thread


def truth(broker: Broker, partitions: list[tuple[str, int]], isolation: str) -> list[tuple[str, int, int]]:
    rows = reading.consumed(broker.bootstrap, partitions, isolation)
    return sorted((row.topic or "", row.partition or 0, row.offset) for each in rows.values() for row in each)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_stream_reader_returns_each_record_of_a_running_broker_once(broker: Broker, isolation: str) -> None:
    """LSO-R1: the reader plans batches while clients write, and is restarted several times."""
    topic = f"stream-{isolation}"
    partitions = create(broker, topic, 2, segment_bytes="1048576", segment_ms="400")
    query = Query(broker.log_dir, subscribe=topic, startingOffsets="earliest", isolationLevel=isolation)
    thread = while_it_is_written(broker, topic, 15)
    turns = 0
    while thread.is_alive():
        query.batch()
        turns += 1
        if turns % 7 == 0:
            query.plan()
            query.restart()
    thread.join()
    deadline = time.monotonic() + 60
    expected = truth(broker, partitions, isolation)
    while sorted(query.rows) != expected and time.monotonic() < deadline:
        query.drain()
        time.sleep(0.2)
    assert sorted(query.rows) == expected
    assert query.committed > 5


def test_retention_deletes_segments_before_a_stream_reads_them(broker: Broker) -> None:
    """DSK-R13, DSK-R8: DeleteRecords removes segments that have not been read yet."""
    create(broker, "stream-retention", 1, segment_bytes="1048576", segment_ms="400")
    query = Query(broker.log_dir, subscribe="stream-retention", startingOffsets="earliest", failOnDataLoss="false")
    with librdkafka(broker.bootstrap) as producer:
        send(producer, "stream-retention", 0, plain(2000))
    query.options["maxOffsetsPerTrigger"] = "50"
    query.restart()
    assert query.batch() == list(range(50))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    low = confluent_kafka.TopicPartition("stream-retention", 0, 1500)
    next(iter(admin.delete_records([low]).values())).result(60)
    checkpoint = broker.log_dir / "log-start-offset-checkpoint"
    deadline = time.monotonic() + 90
    while "stream-retention 0 1500" not in checkpoint.read_text() and time.monotonic() < deadline:
        time.sleep(0.2)
    query.options.pop("maxOffsetsPerTrigger")
    query.restart()
    assert query.drain() == list(range(1500, 2000))


@pytest.mark.spark
def test_a_query_returns_each_record_of_a_running_broker_once(broker: Broker, spark: Any, tmp_path: Path) -> None:
    partitions = create(broker, "stream-query", 2, segment_bytes="1048576", segment_ms="400")
    rows: dict[int, list[tuple[str, int, int]]] = {}

    def sink(frame: Any, number: int) -> None:
        rows[number] = [tuple(row) for row in frame.select("topic", "partition", "offset").collect()]

    frame = (
        spark.readStream.format("kbatch")
        .option("assign", json.dumps({"stream-query": [0, 1]}))
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("maxOffsetsPerTrigger", "100")
        .load(str(broker.log_dir))
    )
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
    thread = while_it_is_written(broker, "stream-query", 10)
    query = writer.start()
    thread.join()
    expected = truth(broker, partitions, "read_committed")
    deadline = time.monotonic() + 120
    while sum(map(len, rows.values())) < len(expected) and query.isActive and time.monotonic() < deadline:
        time.sleep(0.2)
    query.stop()
    assert query.exception() is None
    assert sorted(row for each in rows.values() for row in each) == expected
