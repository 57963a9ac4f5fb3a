"""`kbatch.scan_logs` of a real broker: the records of its log directory, and what is fetched."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.compute as pc
import pytest

import kbatch
from kbatch.live import BrokerError

try:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewTopic

    from broker.clients import CODECS, EPOCH, WRITERS, oddities, plain
    from broker.server import SETTINGS, Broker, Unavailable
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker

TOPICS = ["codecs", "times", "txn"]
COLUMNS = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
OFFSET, TIME, PARTITION = pc.field("offset"), pc.field("timestamp"), pc.field("partition")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        with Broker(tmp_path_factory.mktemp("scans") / "broker", settings=SETTINGS) as broker:
            write_topics(broker.bootstrap)
            yield broker
    except Unavailable as error:
        pytest.skip(str(error))


def write_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = {"codecs": len(CODECS), "times": 1, "txn": 1}
    for future in admin.create_topics([NewTopic(name, count, 1) for name, count in names.items()]).values():
        future.result(60)
    for number, codec in enumerate(CODECS):
        WRITERS["librdkafka"](bootstrap, codec, "codecs", number, [*oddities(codec), *plain(200)])
    # Timestamps descend.
    WRITERS["librdkafka"](bootstrap, "zstd", "times", 0, plain(1000)[::-1])
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "log_level": 2})
    producer.init_transactions(60)
    for number in range(6):
        producer.begin_transaction()
        for each in range(20):
            producer.produce("txn", b"%d %d" % (number, each))
        producer.flush(60)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(60)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_scan_of_the_broker_equals_a_scan_of_its_log_directory(broker: Broker, isolation: Any) -> None:
    options: dict[str, Any] = {"topics": TOPICS, "isolation": isolation, "columns": COLUMNS}
    live = kbatch.scan_logs(f"kafka://{broker.bootstrap}", config={"client.id": "scans"}, **options)
    stored = kbatch.scan_logs(broker.log_dir, **options)
    late = datetime.datetime.fromtimestamp((EPOCH + 150) / 1000, datetime.UTC)
    conditions = [OFFSET >= 0, OFFSET >= 150, (OFFSET < 20) & (PARTITION < 3), late <= TIME, late > TIME]
    for condition in conditions:
        one, other = live.filter(condition), stored.filter(condition)
        expected = other.to_arrow().combine_chunks()
        assert expected.num_rows
        assert one.to_arrow().combine_chunks().equals(expected), condition
        assert one.count() == other.count() == expected.num_rows
        assert one.head(7).combine_chunks().equals(expected.slice(0, 7).combine_chunks())
        assert one.tail(7).combine_chunks().equals(expected.slice(expected.num_rows - 7).combine_chunks())
    for bounds in ({"start": late}, {"last": 30}, {"key": "k1"}, {"start": "end-50ms"}):
        one = kbatch.scan_logs(f"kafka://{broker.bootstrap}", **options, **bounds)
        other = kbatch.scan_logs(broker.log_dir, **options, **bounds)
        assert one.to_arrow().combine_chunks().equals(other.to_arrow().combine_chunks()), bounds


def test_polars_sees_records_that_are_written_later(broker: Broker) -> None:
    frame = kbatch.scan_logs(f"kafka://{broker.bootstrap}", topics="times").lazy()
    counts = []
    for _ in range(2):
        counts.append(frame.filter(pl.col("offset") >= 900).select(pl.len()).collect().item())
        WRITERS["librdkafka"](broker.bootstrap, "lz4", "times", 0, plain(50))
    assert counts == [counts[0], counts[0] + 50]
    assert list(itertools.chain(*frame.tail(1).select("offset").collect().rows())) == [900 + counts[1] + 50 - 1]


def test_an_unknown_topic_is_one_error(broker: Broker, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={broker.bootstrap}\n")
    with pytest.raises(BrokerError, match="there is no topic 'time', did you mean 'times'"):
        kbatch.scan_logs(f"kafka://{broker.bootstrap}", topics="time", config=config).count()
