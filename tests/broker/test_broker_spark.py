"""Spark on a real broker without a jar: records as librdkafka reads them, checkpoints across restarts, other topics."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

try:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewTopic

    from broker import reading
    from broker.clients import librdkafka, oddities, plain, send
    from broker.server import Broker, Unavailable
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

from stream_query import LiveQuery

from kbatch.live import BrokerError

pytestmark = pytest.mark.broker

TOPIC = "spark-live"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that tests may stop and start."""
    try:
        one = Broker(tmp_path_factory.mktemp("spark"))
    except Unavailable as error:
        pytest.skip(str(error))
    with one:
        create(one, TOPIC, 2)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            with librdkafka(one.bootstrap, codec) as producer:
                send(producer, TOPIC, 0, plain(120))
                send(producer, TOPIC, 1, oddities(codec))
        transactions(one, TOPIC)
        yield one


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    LiveQuery.stop_all()


def create(broker: Broker, topic: str, partitions: int) -> list[tuple[str, int]]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
    expected = [(topic, number) for number in range(partitions)]
    reading.wait_for_leaders(broker.bootstrap, expected)
    return expected


def transactions(broker: Broker, topic: str) -> None:
    """Write a committed, an aborted and another committed transaction to both partitions."""
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": f"{topic}-writer", "log_level": 2}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(60)
    for turn in range(3):
        producer.begin_transaction()
        for partition in (0, 1):
            send(producer, topic, partition, plain(20, 1000 * (turn + 1)))
        if turn == 1:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)


def frame(spark: Any, broker: Broker, **options: str) -> Any:
    reader = spark.read.format("kbatch").option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.option("subscribe", TOPIC).option("includeHeaders", "true").options(**options).load()


def rows(found: Any) -> list[reading.Row]:
    timed = found.selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp) AS time", "timestampType", "key", "value", "headers"
    )
    return sorted(
        (
            reading.Row(
                *each[:5],
                None if each.key is None else bytes(each.key),
                None if each.value is None else bytes(each.value),
                tuple((h.key.encode(), None if h.value is None else bytes(h.value)) for h in each.headers or ()),
            )
            for each in timed.collect()
        ),
        key=lambda row: row[1:3],
    )


def truth(broker: Broker, partitions: Sequence[tuple[str, int]], isolation: str) -> list[reading.Row]:
    found = reading.consumed(broker.bootstrap, partitions, isolation)
    return sorted((row for each in found.values() for row in each), key=lambda row: row[1:3])


@pytest.mark.spark
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_batch_read_has_the_records_of_librdkafka_however_partitions_are_divided(
    own: Broker, spark: Any, isolation: str
) -> None:
    expected = truth(own, [(TOPIC, 0), (TOPIC, 1)], isolation)
    options = {"kafka.isolation.level": isolation}
    assert rows(frame(spark, own, **options)) == expected
    assert rows(frame(spark, own, **options, minPartitions="9")) == expected


@pytest.mark.spark
def test_a_stream_continues_from_its_checkpoint_after_the_broker_restarted(
    own: Broker, spark: Any, tmp_path: Path
) -> None:
    partitions = create(own, "restarted", 2)
    reader = spark.readStream.format("kbatch").option("kafka.bootstrap.servers", own.bootstrap)
    reader = reader.options(subscribe="restarted", startingOffsets="earliest", maxOffsetsPerTrigger="150")

    def run() -> list[tuple[int, int]]:
        """Read what there is now; a Parquet directory shows records that are doubled."""
        written = reader.load().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "state"))
        query = written.option("path", str(tmp_path / "out")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        found = spark.read.parquet(str(tmp_path / "out")).select("partition", "offset").collect()
        return sorted((each.partition, each.offset) for each in found)

    def write(count: int) -> list[tuple[int, int]]:
        with librdkafka(own.bootstrap) as producer:
            for partition in (0, 1):
                send(producer, "restarted", partition, plain(count))
        return [(row.partition or 0, row.offset) for row in truth(own, partitions, "read_uncommitted")]

    expected = write(200)
    assert run() == expected
    own.stop()
    own.start()
    reading.wait_for_leaders(own.bootstrap, partitions)
    expected = write(100)
    assert run() == expected


def test_a_query_that_runs_survives_a_restart_of_the_broker(own: Broker) -> None:
    partitions = create(own, "survived", 1)
    query = LiveQuery(own.bootstrap, "survived", minPartitions="3")
    with librdkafka(own.bootstrap) as producer:
        send(producer, "survived", 0, plain(50))
    query.plan()
    own.stop()
    own.start()
    query.drain()
    assert [offset for _, _, offset in query.rows] == [row.offset for row in truth(own, partitions, "read_uncommitted")]


def test_a_checkpoint_of_a_topic_that_was_made_again_is_an_error_or_the_new_topic_is_read(
    own: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    admin = AdminClient({"bootstrap.servers": own.bootstrap})
    create(own, "again", 1)
    query = LiveQuery(own.bootstrap, "again")
    with librdkafka(own.bootstrap) as producer:
        send(producer, "again", 0, plain(10))
    assert query.drain() == list(range(10))
    admin.delete_topics(["again"])["again"].result(60)
    create(own, "again", 1)
    with librdkafka(own.bootstrap) as producer:
        send(producer, "again", 0, plain(25))
    query.restart()
    with pytest.raises(BrokerError, match="again-0: the last micro-batch ended before offset 10, but the topic"):
        query.batch()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    with caplog.at_level(logging.WARNING, "kbatch"):
        assert query.drain() == list(range(25))
    assert "the topic was recreated" in caplog.text


def test_a_stream_of_committed_records_has_those_of_librdkafka(own: Broker) -> None:
    expected = truth(own, [(TOPIC, 0), (TOPIC, 1)], "read_committed")
    query = LiveQuery(own.bootstrap, TOPIC, maxOffsetsPerTrigger="70", **{"kafka.isolation.level": "read_committed"})
    turns = 0
    while query.plan():
        query.restart()
        query.batch()
        turns += 1
    assert sorted(query.rows) == [(row.topic, row.partition, row.offset) for row in expected]
    assert turns > 5


def test_records_that_were_deleted_before_a_stream_reads_them_are_an_error_or_skipped(own: Broker) -> None:
    create(own, "deleted", 1)
    query = LiveQuery(own.bootstrap, "deleted", maxOffsetsPerTrigger="50")
    with librdkafka(own.bootstrap) as producer:
        send(producer, "deleted", 0, plain(300))
    assert query.batch() == list(range(50))
    admin = AdminClient({"bootstrap.servers": own.bootstrap})
    low = confluent_kafka.TopicPartition("deleted", 0, 120)
    next(iter(admin.delete_records([low]).values())).result(60)
    with pytest.raises(BrokerError, match="deleted-0: offsets 50 to 119 were deleted before they were read"):
        query.batch()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    assert query.drain() == list(range(120, 300))
