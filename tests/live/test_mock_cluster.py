"""Live topics of librdkafka's mock cluster, which runs in this process and needs no Java."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import kbatch
from kbatch.live import ClientSettings, Cluster

confluent_kafka = pytest.importorskip("confluent_kafka")

COUNT = 500


@pytest.fixture(scope="module")
def mock() -> Iterator[tuple[Any, str]]:
    """Return a producer that runs three brokers, and their addresses."""
    producer = confluent_kafka.Producer({"test.mock.num.brokers": 3, "log_level": 0})
    brokers = producer.list_topics(timeout=10).brokers.values()
    yield producer, ",".join(f"{each.host}:{each.port}" for each in brokers)
    producer.flush(10)


def written(mock: tuple[Any, str], topic: str) -> dict[int, list[bytes]]:
    """Write records, and return their values by partition."""
    producer, _ = mock
    found: dict[int, list[bytes]] = {}

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        found.setdefault(message.partition(), []).append(message.value())

    for i in range(COUNT):
        producer.produce(topic, value=b"%d" % i, key=b"%d" % (i % 10), on_delivery=delivered)
        # The mock returns one stored request for each fetch.
        if i % 100 == 99:
            producer.flush(10)
    assert sum(map(len, found.values())) == COUNT
    return found


def read(tables: Any) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for table in tables:
        found.setdefault(table.partition, []).extend(table.value(row) for row in range(len(table)))
    return found


@pytest.mark.parametrize("options", [{}, {"fetch_max_bytes": 1000}, {"flush_rows": 10_000}], ids=str)
def test_a_read_returns_what_was_written(mock: tuple[Any, str], options: dict[str, Any]) -> None:
    topic = f"read-{len(options)}-{'-'.join(options)}"
    expected = written(mock, topic)
    with kbatch.consume(topic, bootstrap_servers=mock[1], **options) as consumer:
        assert read(consumer) == expected


def test_a_scan_counts_and_filters_records(mock: tuple[Any, str]) -> None:
    pl = pytest.importorskip("polars")
    expected = written(mock, "scanned")
    scan = kbatch.scan_logs(f"kafka://{mock[1]}", topics="scanned")
    assert scan.count() == COUNT
    late = scan.lazy().filter(pl.col("offset") >= 5).select("value").collect()["value"].to_list()
    assert sorted(late) == sorted(value for values in expected.values() for value in values[5:])


def test_the_offsets_of_a_cluster_are_known(mock: tuple[Any, str]) -> None:
    expected = written(mock, "listed")
    with Cluster(ClientSettings.of(bootstrap_servers=mock[1])) as cluster:
        [topic] = cluster.topics(["listed"])
        ends = cluster.offsets({("listed", number): -1 for number in topic.partitions})
    assert ends == {("listed", number): len(expected.get(number, [])) for number in topic.partitions}
