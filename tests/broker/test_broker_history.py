"""A broker with tiered storage: its topics are read with their history, from the tier, its disk and a backup."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import kbatch
from kbatch.live import ClientSettings, ClusterSource, ServerAddress, Transport, connect_socket

try:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    from broker.clients import librdkafka, plain, send
    from broker.scenario import ROLL
    from broker.server import TIERED_POM, Broker, Unavailable, tiered_settings
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker

TRANSACTIONS = 5
RECORDS = 400
TOPIC = "orders"
FETCH = 1


@dataclass
class Traffic:
    """What clients of a broker have sent and received."""

    requests: list[int] = field(default_factory=list)
    received: int = 0

    def connect(self, server: ServerAddress, settings: ClientSettings) -> Transport:
        return _Counted(connect_socket(server, settings), self)


class _Counted:
    def __init__(self, inner: Transport, traffic: Traffic) -> None:
        self._inner = inner
        self._traffic = traffic

    def send(self, parts: Any) -> None:
        parts = list(parts)
        self._traffic.requests.append(int.from_bytes(b"".join(parts)[4:6], "big"))
        self._inner.send(parts)

    def receive_into(self, buffer: memoryview) -> int:
        count = self._inner.receive_into(buffer)
        self._traffic.received += count
        return count

    def set_timeout(self, seconds: float) -> None:
        self._inner.set_timeout(seconds)

    def close(self) -> None:
        self._inner.close()


@dataclass(frozen=True)
class TieredBroker:
    """A broker, its tier, a copy of its log directory, and the client."""

    broker: Broker
    tier: Path
    backup: Path
    admin: AdminClient

    def source(self, *history: Path, traffic: Traffic | None = None, **options: Any) -> ClusterSource:
        transport = Traffic() if traffic is None else traffic
        settings = ClientSettings.of(bootstrap_servers=self.broker.bootstrap)
        return ClusterSource(settings, history=history or None, transport=transport.connect, **options)


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredBroker]:
    directory = tmp_path_factory.mktemp("history")
    try:
        broker = Broker(directory, settings=tiered_settings(directory / "tier"), pom=TIERED_POM)
    except Unavailable as error:
        pytest.skip(str(error))
    root = directory / "tier" / "kafka-tiered-storage"
    with broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        config = {"remote.storage.enable": "true", "segment.ms": str(ROLL)}
        admin.create_topics([NewTopic(TOPIC, 2, 1, config=config)])[TOPIC].result(60)
        write(broker)
        closed = sum(len(list(broker.log_dir.glob(f"{TOPIC}-{partition}/*.log"))) - 1 for partition in range(2))
        deadline = time.monotonic() + 60
        while len(list(root.glob("*/*.leader_epoch_checkpoint"))) < closed:
            assert time.monotonic() < deadline, f"no upload:\n{broker.output()[-4000:]}"
            time.sleep(0.1)
        # The broker replaces its checkpoints meanwhile.
        shutil.copytree(broker.log_dir, directory / "backup", ignore=shutil.ignore_patterns("*.tmp"))
        yield TieredBroker(broker, root, directory / "backup", admin)


def write(broker: Broker) -> None:
    """Write transactions, of which each begins a segment; those that were aborted overlap the others."""
    now = time.time_ns() // 1_000_000
    for partition in range(2):
        with (
            librdkafka(broker.bootstrap, "lz4", transactional_id=f"one-{partition}") as one,
            librdkafka(broker.bootstrap, "none", transactional_id=f"two-{partition}") as two,
        ):
            for producer in (one, two):
                producer.init_transactions(60)
            # It is open over several segments, and its marker is in the active one.
            two.begin_transaction()
            for i in range(TRANSACTIONS):
                one.begin_transaction()
                messages = plain(RECORDS, RECORDS * i)
                send(one, TOPIC, partition, [each._replace(timestamp=now + i * 2 * ROLL) for each in messages])
                late = [each._replace(timestamp=now + i * 2 * ROLL) for each in plain(5, 5 * i)]
                send(two, TOPIC, partition, late)
                (one.abort_transaction if i == 1 else one.commit_transaction)(60)
            two.abort_transaction(60)


COLUMNS = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("place", ["tier", "disk", "all"])
def test_a_scan_with_its_history_is_that_of_the_broker_and_fetches_only_the_tail(
    tiered: TieredBroker, place: str, isolation: Any
) -> None:
    history = {"tier": [tiered.tier], "disk": [tiered.broker.log_dir], "all": [tiered.tier, tiered.backup]}[place]
    options: dict[str, Any] = {"topics": TOPIC, "isolation": isolation, "columns": COLUMNS}
    plain_traffic, traffic = Traffic(), Traffic()
    expected = kbatch.scan_logs(tiered.source(traffic=plain_traffic), **options).to_arrow().combine_chunks()
    source = tiered.source(*history, traffic=traffic)
    assert kbatch.scan_logs(source, **options).to_arrow().combine_chunks().equals(expected)
    committed = (TRANSACTIONS - 1) * RECORDS
    assert len(expected) == 2 * (committed if isolation == "read_committed" else TRANSACTIONS * (RECORDS + 5))
    active = [kbatch.Log(tiered.broker.log_dir / f"{TOPIC}-{partition}").segments[-1] for partition in range(2)]
    tail = sum(each.size for each in active)
    counts = {each.source: each for each in source.origins}
    assert counts[source.url].bytes <= tail
    assert counts[str(history[0])].records > 2 * counts[source.url].records
    # The whole answers of the broker, metadata included, are little more than the active segments.
    assert traffic.received < tail + 20_000 < plain_traffic.received / 2
    # Per partition: the tail, and under read_committed the list of transactions that are open before it.
    assert traffic.requests.count(FETCH) <= (4 if isolation == "read_uncommitted" else 6)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_an_export_with_its_history_is_that_of_the_broker(
    tiered: TieredBroker, tmp_path: Path, engine: Any, isolation: Any
) -> None:
    ds = pytest.importorskip("pyarrow.dataset")
    url = f"kafka://{tiered.broker.bootstrap}"
    options: dict[str, Any] = {"topics": [TOPIC], "isolation": isolation}
    plain = kbatch.export(url, tmp_path / "plain", engine="local", **options)
    if engine == "spark":
        pytest.importorskip("pyspark")
        options["master"] = "local[2]"
    history = [tiered.tier, tiered.broker.log_dir]
    summary = kbatch.export(url, tmp_path / "out", history=history, engine=engine, split_bytes=50_000, **options)
    order = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    tables = [
        ds.dataset(tmp_path / name, partitioning="hive").to_table().sort_by(order).select(COLUMNS)
        for name in ("out", "plain")
    ]
    assert tables[0].combine_chunks().equals(tables[1].combine_chunks())
    assert (summary.records, summary.control_records) == (plain.records, plain.control_records)
    assert summary.history_records > summary.records // 2
    active = sum(kbatch.Log(tiered.broker.log_dir / f"{TOPIC}-{number}").segments[-1].size for number in range(2))
    assert summary.log_bytes - summary.history_bytes <= active
    # A run without the history continues it.
    assert kbatch.export(url, tmp_path / "out", engine="local", isolation=isolation, topics=[TOPIC]).records == 0


@pytest.mark.spark
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("divided", [{}, {"minPartitions": "11"}, {"maxRecordsPerPartition": "300"}])
def test_spark_with_the_history_reads_the_rows_of_the_broker(
    tiered: TieredBroker, request: pytest.FixtureRequest, isolation: str, divided: dict[str, str]
) -> None:
    pytest.importorskip("kbatch.spark", exc_type=ImportError)
    spark = request.getfixturevalue("spark")

    def rows(**options: str) -> list[Any]:
        live = {"kafka.bootstrap.servers": tiered.broker.bootstrap, "subscribe": TOPIC, "includeHeaders": "true"}
        reader = spark.read.format("kbatch").options(**live, **options)
        found: list[Any] = reader.option("isolationLevel", isolation).load().orderBy("partition", "offset").collect()
        return found

    expected = rows()
    assert len(expected) > TRANSACTIONS * RECORDS
    assert rows(history=f"{tiered.tier},{tiered.broker.log_dir}", **divided) == expected


def test_missing_and_cut_objects_of_the_tier_are_fetched(tiered: TieredBroker, tmp_path: Path) -> None:
    copy = shutil.copytree(tiered.tier, tmp_path / "tier")
    first, second = (sorted(each.glob("*.log")) for each in sorted(copy.iterdir()))
    first[1].unlink()
    second[2].write_bytes(second[2].read_bytes()[:-100])
    options: dict[str, Any] = {"topics": TOPIC, "isolation": "read_committed", "columns": COLUMNS}
    expected = kbatch.scan_logs(tiered.source(), **options).to_arrow().combine_chunks()
    with pytest.warns(RuntimeWarning, match=f"{TOPIC}-0: offsets .* no file of the history has them; {TOPIC}-1: .*cut"):
        found = kbatch.scan_logs(tiered.source(copy), **options).to_arrow().combine_chunks()
    assert found.equals(expected)


def test_a_backup_has_what_the_cluster_has_deleted_unless_the_topic_was_made_again(tiered: TieredBroker) -> None:
    options: dict[str, Any] = {"topics": TOPIC, "partitions": [0], "isolation": "read_committed", "columns": COLUMNS}
    expected = kbatch.scan_logs(tiered.source(), **options).to_arrow().combine_chunks()
    bounds = [segment.base_offset or 0 for segment in kbatch.Log(tiered.backup / f"{TOPIC}-0").segments]
    start = bounds[2] + 7
    tiered.admin.delete_records([TopicPartition(TOPIC, 0, start)])
    deadline = time.monotonic() + 30
    while (rest := kbatch.scan_logs(tiered.source(), **options).to_arrow().combine_chunks()).num_rows == len(expected):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert rest.column("offset")[0].as_py() >= start
    assert kbatch.scan_logs(tiered.source(tiered.backup), **options).to_arrow().combine_chunks().equals(rest)
    all_of_it = kbatch.scan_logs(tiered.source(tiered.backup, include_expired=True), **options)
    assert all_of_it.to_arrow().combine_chunks().equals(expected)
    tiered.admin.delete_topics([TOPIC])[TOPIC].result(60)
    deadline = time.monotonic() + 30
    while TOPIC in tiered.admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    tiered.admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(60)
    with librdkafka(tiered.broker.bootstrap, "none") as producer:
        send(producer, TOPIC, 0, plain(30))
    with pytest.warns(RuntimeWarning, match="has .*: it was recreated"):
        again = kbatch.scan_logs(tiered.source(tiered.backup, tiered.tier), **options).to_arrow()
    assert again.column("offset").to_pylist() == list(range(30))
