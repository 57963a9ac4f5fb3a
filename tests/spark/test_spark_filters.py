"""Filters of a query, the options for one key, and large records."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import oracle
import pytest
from keyed_logs import KeyedLogs, Row, keyed_logs

import kbatch
import kbatch.broker.partitioner

pytest.importorskip("kbatch.spark", exc_type=ImportError)

from kbatch.plan.read_options import ReadOptions
from kbatch.spark.datasource import KbatchReader


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> KeyedLogs:
    """Three topics of three partitions."""
    return keyed_logs(tmp_path_factory.mktemp("logs"), ("a", "b", "c"), 3, [None, b"", b"x", b"y"], seed=11)


# -- queries against an oracle

CONDITIONS: list[tuple[str, Callable[[Row], bool]]] = [
    ("offset >= 100", lambda r: r[2] >= 100),
    ("offset = 41", lambda r: r[2] == 41),
    ("offset < 8 or offset > 115", lambda r: r[2] < 8 or r[2] > 115),
    ("topic = 'b'", lambda r: r[0] == "b"),
    ("topic in ('a', 'c') and partition = 2", lambda r: r[0] in "ac" and r[1] == 2),
    ("partition <> 1", lambda r: r[1] != 1),
    ("key = X'78'", lambda r: r[4] == b"x"),
    ("key is null", lambda r: r[4] is None),
    (
        "timestamp >= timestamp'2023-11-14 22:14:00Z' and timestamp < timestamp'2023-11-14 22:14:30Z'",
        lambda r: r[3] is not None and 1_700_000_040 <= r[3].timestamp() < 1_700_000_070,
    ),
    ("timestamp is null", lambda r: r[3] is None),
]


def select(rows: list[Row], condition: Callable[[Row], bool]) -> list[tuple[str, int, int]]:
    return sorted(row[:3] for row in rows if condition(row))


def collected(frame: Any) -> list[tuple[str, int, int]]:
    return sorted((row.topic, row.partition, row.offset) for row in frame.collect())


@pytest.mark.spark
def test_queries_of_one_relation_match_the_oracle(spark: Any, logs: KeyedLogs) -> None:
    """Filters, projections, limits, unions, self-joins and caching, in sequence on the same DataFrame."""
    kbatch.spark.register(spark)
    frame = spark.read.format("kbatch").option("splitBytes", "40k").load(logs.root)
    everything = select(logs.rows, lambda _: True)
    for text, condition in CONDITIONS:
        assert collected(frame.filter(text)) == select(logs.rows, condition), text
    assert collected(frame) == everything
    for (text, condition), (other, second) in itertools.pairwise(CONDITIONS):
        union = frame.filter(text).union(frame.filter(other))
        assert collected(union) == sorted(select(logs.rows, condition) + select(logs.rows, second)), (text, other)
    names = ["topic", "partition", "offset"]
    text, condition = CONDITIONS[0]
    joined = frame.filter(text).select(names).join(frame.filter("partition <> 1").select(names), names)
    assert collected(joined) == select(logs.rows, lambda r: condition(r) and r[1] != 1)
    first = frame.filter("topic = 'a' and partition = 0").select("offset").limit(3)
    assert [row.offset for row in first.collect()] == [0, 1, 2]
    assert frame.filter("offset < 5").limit(1000).count() == 45
    kept = frame.filter("offset >= 100").cache()
    try:
        assert collected(kept) == select(logs.rows, condition)
        assert collected(kept.filter("topic = 'b'")) == select(logs.rows, lambda r: r[0] == "b" and condition(r))
        assert collected(frame) == everything
    finally:
        kept.unpersist()
    whole = frame.cache()
    try:
        assert collected(whole.filter("partition = 1")) == select(logs.rows, lambda r: r[1] == 1)
        assert collected(whole) == everything
    finally:
        whole.unpersist()
    assert collected(frame) == everything
    assert sum(frame.filter(f"partition = {partition}").count() for partition in range(3)) == len(logs.rows)


@pytest.mark.spark
def test_key_options_select_the_records_of_a_key(spark: Any, logs: KeyedLogs) -> None:
    reader = spark.read.format("kbatch").option("key", "x")
    expected = select(logs.rows, lambda r: r[4] == b"x")
    assert collected(reader.load(logs.root)) == expected
    # The filter works without the key column in the schema.
    without = reader.schema("topic string, partition int, offset bigint").load(logs.root)
    assert collected(without) == expected
    partition = kbatch.broker.partitioner.key_partition(b"x", 3)
    of_partition = [row for row in expected if row[1] == partition]
    assert collected(reader.option("keyPartitions", "3").load(logs.root)) == of_partition
    assert reader.option("minPartitions", "20").load(logs.root).rdd.getNumPartitions() >= 10


@pytest.mark.spark
def test_a_key_index_does_not_change_the_records_of_a_key(
    spark: Any, logs: KeyedLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbatch.log.write.indexing.BLOCK_BYTES", 500)
    assert sum(each.written for each in kbatch.index_logs(logs.root, tmp_path / "index")) > 0
    reader = spark.read.format("kbatch").option("keyIndex", str(tmp_path / "index"))
    expected = select(logs.rows, lambda r: r[4] == b"x")
    assert collected(reader.option("key", "x").load(logs.root)) == expected
    assert collected(reader.option("keyIndex", "false").option("key", "x").load(logs.root)) == expected


# -- large values


def large_log(root: Path, size: int) -> Path:
    """Write a log of three records; the second one has a value of `size` zeros."""
    values = [b"small", bytes(size), b"after"]
    for i, value in enumerate(values):
        batch = oracle.build_batch([oracle.encode_record(0, 0, b"k", value)], base_offset=i, codec="zstd")
        path = root / "large-0" / f"{i:020d}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(batch)
    return root


@pytest.mark.spark
def test_a_large_value_is_read_as_a_row(spark: Any, tmp_path: Path) -> None:
    size = 100 << 20
    root = large_log(tmp_path, size)
    assert sum(path.stat().st_size for path in root.rglob("*.log")) < 1 << 20
    frame = spark.read.format("kbatch").load(str(root))
    rows = frame.selectExpr("offset", "length(value)", "md5(value)").collect()
    md5 = hashlib.md5(bytes(size), usedforsecurity=False).hexdigest()
    assert [tuple(row)[:2] for row in rows] == [(0, 5), (1, size), (2, 5)]
    assert rows[1][2] == md5

    def read(schema: str, **options: str) -> Any:
        return spark.read.format("kbatch").schema(schema).options(**options).load(str(root))

    where = (
        r"00000000000000000001\.log, byte 0, base offset 1, record 0: 104857600 bytes of value exceed maxRecordBytes"
    )
    with pytest.raises(Exception, match=where):
        read("value binary", maxRecordBytes="99m").selectExpr("length(value)").collect()
    assert read("offset bigint", maxRecordBytes="99m").count() == 3
    with pytest.raises(Exception, match=r"00000000000000000001\.log, byte 0.*max_decompressed_bytes"):
        read("value binary", maxDecompressedBytes="50m").selectExpr("length(value)").collect()


def test_a_record_too_large_for_a_row_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = large_log(tmp_path, 80 << 20)
    reader = KbatchReader([str(root)], ReadOptions(), ("offset", "value"))
    (partition,) = reader.partitions()
    batches = list(reader.read(partition))
    assert [batch.num_rows for batch in batches] == [1, 1, 1]
    assert "base offset 1, record 0: 83886080 bytes of value; Spark's JVM needs about four times" in caplog.text
    reader = replace_options(reader, max_record_bytes=1000)
    with pytest.raises(kbatch.LimitExceededError, match="record 0: 83886080 bytes of value exceed maxRecord"):
        list(reader.read(partition))


def replace_options(reader: KbatchReader, **changes: Any) -> KbatchReader:
    return KbatchReader(reader.paths, replace(reader.options, **changes), reader.columns)
