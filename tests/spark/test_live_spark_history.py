"""Spark reads a live cluster with its history: rows, tasks, SQL, and a backfill by a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from history_cluster import BATCH, cut, fetched_offsets, log_of, partition
from history_cluster import served as served_partition
from history_copies import tiered_log
from scanned_logs import scanned_logs
from scripted_broker import ScriptedCluster
from served_logs import served_cluster
from socket_broker import served

pytest.importorskip("kbatch.spark", exc_type=ImportError)

import kbatch.spark
from kbatch.spark.source_api import HAS_DATA_SOURCE, HAS_LIMITS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not HAS_DATA_SOURCE, reason="before PySpark 4.0"),
]


@pytest.fixture
def cluster() -> ScriptedCluster:
    """A topic with 12 batches of ten records."""
    return served_partition(partition())


@pytest.fixture
def address(cluster: ScriptedCluster) -> Iterator[str]:
    with served(cluster) as address:
        yield address


def frame(spark: Any, address: str, topic: str = "orders", **options: Any) -> Any:
    reader = spark.read.format("kbatch").option("kafka.bootstrap.servers", address)
    return reader.option("subscribe", topic).options(**options).load()


def offsets(found: Any) -> list[int]:
    return sorted(each.offset for each in found.select("offset").collect())


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_rows_are_those_without_the_history(spark: Any, tmp_path: Path, isolation: str) -> None:
    logs = scanned_logs(tmp_path, 3)
    options = {"kafka.isolation.level": isolation, "includeHeaders": "true"}
    with served(served_cluster(logs, brokers=1)) as address:
        expected = frame(spark, address, "a,b,a.b-c", **options).orderBy("topic", "partition", "offset").collect()
        for divided in ({}, {"minPartitions": "11"}, {"splitBytes": "500"}):
            found = frame(spark, address, "a,b,a.b-c", **options, **divided, history=str(logs.root))
            assert found.orderBy("topic", "partition", "offset").collect() == expected
    assert len(expected) > 30


def test_tasks_read_files_and_fetch_only_the_tail(
    spark: Any, cluster: ScriptedCluster, address: str, tmp_path: Path
) -> None:
    log = log_of(cluster, tmp_path / "disk", [3, 3, 3])
    tiered_log(log, tmp_path / "tier", "aiven-zstd", cluster.ids["orders"])
    found = frame(spark, address, history=str(tmp_path / "tier"), minPartitions="7")
    assert found.rdd.getNumPartitions() >= 7
    assert offsets(found) == list(range(12 * BATCH))
    assert min(fetched_offsets(cluster)) == 9 * BATCH
    where = {"where": "offset BETWEEN 10 AND 40", "options": {"subscribe": "orders", "history": str(tmp_path / "tier")}}
    cluster.requests.clear()
    assert offsets(kbatch.spark.read_logs(spark, f"kafka://{address}", **where)) == list(range(10, 41))
    assert fetched_offsets(cluster) == []


@pytest.mark.parametrize("fault", ["cut", "gone"])
def test_what_the_files_lack_is_fetched(
    spark: Any, cluster: ScriptedCluster, address: str, tmp_path: Path, fault: str
) -> None:
    log = log_of(cluster, tmp_path / "disk", [3, 3, 3])
    middle = log / f"{3 * BATCH:020d}.log"
    if fault == "cut":
        cut(middle)
    else:
        middle.unlink()
    assert offsets(frame(spark, address, history=str(tmp_path / "disk"), minPartitions="5")) == list(range(12 * BATCH))
    fetched = set(fetched_offsets(cluster))
    assert fetched >= {3 * BATCH, 9 * BATCH}
    assert not fetched & {*range(3 * BATCH), *range(6 * BATCH, 9 * BATCH)}


def test_sql_reads_the_history_of_a_table(spark: Any, cluster: ScriptedCluster, address: str, tmp_path: Path) -> None:
    log_of(cluster, tmp_path / "disk", [3, 3, 3])
    spark.sql("DROP TABLE IF EXISTS backfilled")
    spark.sql(
        f"CREATE TABLE backfilled USING kbatch OPTIONS (`kafka.bootstrap.servers` '{address}', subscribe 'orders', "
        f"history '{tmp_path / 'disk'}')"
    )
    try:
        assert spark.sql("SELECT count(*), max(offset) FROM backfilled").first() == (12 * BATCH, 12 * BATCH - 1)
    finally:
        spark.sql("DROP TABLE backfilled")
    assert min(fetched_offsets(cluster)) == 9 * BATCH


def test_errors_of_the_option_reach_the_caller(spark: Any, address: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="missing: no such directory, given as history"):
        frame(spark, address, history=str(tmp_path / "missing"))
    with pytest.raises(Exception, match="onError stop cannot be used with a history"):
        frame(spark, address, history=str(tmp_path), onError="stop")


def test_a_stream_backfills_from_files_and_goes_on_without_them(
    spark: Any, cluster: ScriptedCluster, address: str, tmp_path: Path
) -> None:
    log_of(cluster, tmp_path / "disk", [3, 3, 3])
    options = {"kafka.bootstrap.servers": address, "subscribe": "orders", "startingOffsets": "earliest"}
    if HAS_LIMITS:
        options["maxOffsetsPerTrigger"] = "50"

    def run(**more: str) -> list[int]:
        reader = spark.readStream.format("kbatch").options(**options, **more)
        written = reader.load().writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = written.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return offsets(spark.read.parquet(str(tmp_path / "out")))

    assert run(history=str(tmp_path / "disk")) == list(range(12 * BATCH))
    assert min(fetched_offsets(cluster)) == 9 * BATCH
    cluster.topics["orders"][0].write([b"new"] * BATCH)
    assert run() == list(range(13 * BATCH))
    cluster.topics["orders"][0].write([b"new"] * BATCH)
    assert run(history=str(tmp_path / "disk")) == list(range(14 * BATCH))
    logged = sorted((tmp_path / "state" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    ids = {"orders": {str(cluster.ids["orders"]): [0]}}
    assert json.loads(logged[-1].read_text().splitlines()[-1]) == {
        "orders": {"0": 14 * BATCH}, "$ids": ids, "$epochs": {"orders": {"0": 0}},
    }  # fmt: skip
