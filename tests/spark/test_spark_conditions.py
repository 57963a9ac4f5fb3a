"""`read_logs`: a condition excludes what it can, and the result is that of a filter."""

from __future__ import annotations

import random
from typing import Any

import pytest
from keyed_logs import KeyedLogs, keyed_logs

import kbatch

pytest.importorskip("kbatch.spark", exc_type=ImportError)

from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kbatch.plan.read_options import ReadOptions, parse_options
from kbatch.spark.conditions import columns_used, excluded_by
from kbatch.spark.datasource import KbatchReader
from kbatch.spark.frames import _pruning_options
from kbatch.spark.table_schemas import kafka_schema

pytestmark = pytest.mark.spark

Place = tuple[str, int, int]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> KeyedLogs:
    """Two topics of two partitions."""
    keys = [None, b"", b"x", b"\xff", "\ufffd".encode()]
    return keyed_logs(tmp_path_factory.mktemp("logs"), ("a", "b"), 2, keys, seed=3)


ATOMS = [
    "offset > 70", "offset >= 41 and offset < 44", "OFFSET BETWEEN 3 AND -2 + 10", "50 < `offset`", "offset <= -1",
    "offset IN (3, 77, 119)", "offset IN (3, null)", "offset = 5.0", "offset <> 7", "offset % 2 = 0", "offset IS NULL",
    "offset IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)", "offset > 9223372036854775806", "cast(offset AS string) = '5'",
    "offset < 9223372036854775808", "partition = 1", "partition = 1L", "partition > 0 AND partition < 9",
    "1 <> partition",
    "cast(partition AS double) >= 0.5", "Topic = 'a'", "topic IN ('b', 'nosuch')", "topic = 'A'", "lower(topic) = 'b'",
    "topic LIKE 'a%'", "'b' <=> topic", "topic > 'a'", "topic = 'nosuch'", "timestamp >= '2023-11-14 22:14:00'",
    "timestamp < timestamp'2023-11-14 22:14:30Z'", "timestamp > timestamp_millis(1700000060123)", "timestamp IS NULL",
    "timestamp BETWEEN '2023-11-14 22:14:00' AND '2023-11-14 22:14:20'", "date(timestamp) = date'2023-11-14'",
    "timestamp = timestamp_millis(1700000000000)", "cast('2023-11-14 22:14:10.0005' AS timestamp) <= timestamp",
    "hour(timestamp) = 22", "timestamp > now() - INTERVAL 1 HOUR", "timestamp < now()", "timestamp > current_date",
    "key = X'78'", "cast(key AS string) = 'x'", "key = 'x'", "key IS NULL", "key = X''", "key IN (X'78', X'ff')",
    "cast(key AS string) = '\ufffd'", "key = X'ff'", "length(value) = 50", "value = X'00'", "true", "false",
    "cast(null AS boolean)", "1 = 1", "now() < timestamp'2000-01-01'", "timestampType = 0", "cast(key AS string) > 'w'",
]  # fmt: skip


def conditions() -> list[str]:
    """Return the atoms, and combinations of them."""
    draw = random.Random(5)
    found = list(ATOMS)
    for _ in range(60):
        one, two, three = (f"({text})" for text in draw.sample(ATOMS, 3))
        found.append(
            draw.choice(
                [f"{one} AND {two}", f"{one} OR {two}", f"NOT {one} AND {two}", f"{one} AND ({two} OR {three})"]
            )
        )
    return found


def places(batches: Any) -> set[Place]:
    return {place for batch in batches for place in zip(*(batch.column(i).to_pylist() for i in range(3)), strict=True)}


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_a_condition_excludes_no_record_for_which_it_is_true(spark: Any, logs: KeyedLogs, zone: str) -> None:
    """Over a hundred conditions, compared with Spark's own evaluation of them on all records."""
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        texts = conditions() if zone == "UTC" else [text for text in ATOMS if "time" in text]
        whole = spark.read.format("kbatch").load(logs.root)
        flags = [sf.coalesce(sf.expr(text), sf.lit(False)).alias(f"c{i}") for i, text in enumerate(texts)]
        table = whole.select("topic", "partition", "offset", *flags).toArrow()
        every = list(zip(*(table.column(i).to_pylist() for i in range(3)), strict=True))
        empty = spark.createDataFrame(spark.sparkContext.emptyRDD(), kafka_schema())
        smaller = 0
        for i, text in enumerate(texts):
            expected = {place for place, is_true in zip(every, table.column(3 + i).to_pylist(), strict=True) if is_true}
            given = {"path": logs.root, **_pruning_options(empty.filter(text), {})}
            reader = KbatchReader(*parse_options(given), ("topic", "partition", "offset"))
            partitions = reader.partitions()
            assert expected <= places(batch for each in partitions for batch in reader.read(each)), text
            smaller += sum(split.end - split.start for each in partitions for split in each.value) < logs.size
        assert smaller > len(texts) // 4
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def read_bytes(spark: Any, logs: KeyedLogs, where: str) -> int:
    """Return the bytes that the splits of a condition have."""
    empty = spark.createDataFrame(spark.sparkContext.emptyRDD(), kafka_schema())
    _, options = parse_options({"path": logs.root, **_pruning_options(empty.filter(where), {})})
    partitions = KbatchReader([logs.root], options, ("offset",)).partitions()
    return sum(split.end - split.start for each in partitions for split in each.value or ())


@pytest.mark.parametrize(
    ("where", "share"),
    [
        ("offset >= 112", 0.1),
        ("offset BETWEEN 3 AND -2 + 10", 0.2),
        ("5 > Offset", 0.1),
        ("topic = 'a' AND partition = 1L AND offset IN (41, 42)", 0.03),
        ("topic IN ('b', 'nosuch')", 0.5),
        ("(topic = 'a' AND offset < 8) OR (topic = 'b' AND offset < 16)", 0.2),
        ("timestamp >= timestamp'2023-11-14 22:15:00Z'", 0.4),
        ("timestamp > now() - INTERVAL 1 HOUR", 0.0),
        ("offset > 9223372036854775806", 0.0),
    ],
)
def test_a_condition_reduces_the_bytes_to_read(spark: Any, logs: KeyedLogs, where: str, share: float) -> None:
    assert read_bytes(spark, logs, where) <= share * logs.size + 1


@pytest.mark.parametrize(
    "where",
    [
        "offset > 70 OR now() > timestamp'2100-01-01'",
        "timestamp > timestamp'2100-01-01' - (now() - timestamp'2000-01-01')",
        "timestamp = (SELECT max(timestamp'2100-01-01') - (now() - timestamp'2000-01-01'))",
        "offset IN (SELECT id FROM range(3))",
        "offset > unix_timestamp() - 1e12",
    ],
)
def test_conditions_whose_value_changes_with_time_exclude_nothing(spark: Any, where: str) -> None:
    """A DataFrame may be used again later."""
    empty = spark.createDataFrame(spark.sparkContext.emptyRDD(), kafka_schema())
    assert excluded_by(empty.filter(where)) == {}


def test_columns_of_a_condition_are_found(spark: Any) -> None:
    empty = spark.createDataFrame(spark.sparkContext.emptyRDD(), kafka_schema())
    assert {name.lower() for name in columns_used(empty.filter("OFFSET > 3 AND length(value) = 2")) or ()} == {
        "offset", "value",
    }  # fmt: skip
    assert columns_used(empty.filter("offset IN (SELECT id FROM range(3))")) is None
    other = spark.createDataFrame(
        spark.sparkContext.emptyRDD(), StructType([StructField("a", LongType()), StructField("topic", StringType())])
    )
    # Only columns of these names and types exclude something.
    assert set(excluded_by(other.filter("a = 3 AND topic = 'x'"))) == {"topic"}


def test_read_logs_returns_what_a_filter_returns(spark: Any, logs: KeyedLogs) -> None:
    whole = spark.read.format("kbatch").load(logs.root)
    for where in ("OFFSET > 110 AND length(value) = 50", sf.col("partition") == 1, "cast(key AS string) = 'x'"):
        expected = sorted(map(tuple, whole.filter(where).select("topic", "offset", "key").collect()), key=repr)
        found = kbatch.spark.read_logs(spark, logs.root, where=where, columns=["topic", "Offset", "key"])
        assert sorted(map(tuple, found.collect()), key=repr) == expected
    some = kbatch.spark.read_logs(
        spark, [f"{logs.root}/a-0", f"{logs.root}/b-1"], where="offset < 8", options={"includeHeaders": True}
    )
    assert some.columns == [*whole.columns, "headers"]
    assert some.count() == 16


def test_read_logs_counts_without_columns(spark: Any, logs: KeyedLogs) -> None:
    assert kbatch.spark.read_logs(spark, logs.root, columns=[]).count() == 480
    assert kbatch.spark.read_logs(spark, logs.root, where="offset >= 100", columns=[]).count() == 80


def test_read_logs_sends_numbers_of_records_if_only_topics_and_partitions_are_needed(
    spark: Any, logs: KeyedLogs
) -> None:
    whole = spark.read.format("kbatch").load(logs.root)
    names = ["partition", "TOPIC"]
    for where in (None, "topic = 'a'", "partition IN (1, 7) OR topic < 'b'", "topic IS NULL"):
        found = kbatch.spark.read_logs(spark, logs.root, where=where, columns=names)
        filtered = whole if where is None else whole.filter(where)
        assert found.columns == names
        assert sorted(map(tuple, found.collect())) == sorted(map(tuple, filtered.select(*names).collect()))
        assert "explode" in found._jdf.queryExecution().toString()
    keyed = kbatch.spark.read_logs(spark, logs.root, columns=[], options={"key": "x"})
    assert keyed.count() == whole.filter("key = X'78'").count()
    # A condition without columns is applied to each record.
    assert 0 < kbatch.spark.read_logs(spark, logs.root, where="rand(1) < 0.5", columns=[]).count() < 480
    for columns in (["topic"], []):
        losses = kbatch.spark.read_logs(spark, logs.root, columns=columns, options={"Table": "losses"})
        assert losses.count() == 0


def test_errors_of_read_logs_reach_the_user(spark: Any, logs: KeyedLogs) -> None:
    with pytest.raises(ValueError, match=r"^unknown option 'nosuch'"):
        kbatch.spark.read_logs(spark, logs.root, options={"nosuch": 1})
    with pytest.raises(Exception, match=r"UNRESOLVED_COLUMN.*`nosuch`"):
        kbatch.spark.read_logs(spark, logs.root, where="nosuch > 3")
    with pytest.raises(Exception, match=r"UNRESOLVED_COLUMN.*`nosuch`"):
        kbatch.spark.read_logs(spark, logs.root, columns=["nosuch"])
    assert ReadOptions().prune.since is None
