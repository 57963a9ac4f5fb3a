"""Filters of a query: never wrong on a loaded relation, and pushed down only where PySpark is sound."""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_batches import write_segment

import kbatch

pytest.importorskip("kbatch.spark", exc_type=ImportError)

import pyspark

from kbatch.spark import pushdown
from kbatch.spark.options import ReadOptions, Within, parse_options
from kbatch.spark.source import KbatchDataSource, KbatchReader, PushdownReader

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BEGIN = 1_700_000_000_000
COLUMNS = ("topic", "partition", "offset", "timestamp", "key")
Row = tuple[Any, ...]

# As in pyspark.sql.datasource, since 4.1; PySpark 4.0 has none of them, and it is their names that count.
try:
    from pyspark.sql.datasource import (
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
        Not,
        StringStartsWith,
    )
except ImportError:
    pytest.skip("PySpark 4.0 has no filters to push", allow_module_level=True)

COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, listed: value in listed,
    StringStartsWith: lambda value, prefix: value.startswith(prefix),
}


def holds(one: Any, row: Row) -> bool:
    """Whether a filter is true of a row, as in SQL: nothing is true of null."""
    if isinstance(one, Not):
        return row[COLUMNS.index(one.child.attribute[0])] is not None and not holds(one.child, row)
    value = row[COLUMNS.index(one.attribute[0])]
    if isinstance(one, IsNotNull):
        return value is not None
    return value is not None and COMPARE[type(one)](value, one.value)


@dataclass
class Logs:
    root: str
    rows: list[Row]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    """Three topics of three partitions in several segments; timestamps descend now and then, and some are missing."""
    root = tmp_path_factory.mktemp("logs")
    draw = random.Random(11)
    rows: list[Row] = []
    for topic in ("a", "b", "c"):
        for partition in range(3):
            for segment in range(3):
                batches = []
                for first in range(40 * segment, 40 * segment + 40, 8):
                    base = -1 if draw.random() < 0.1 else BEGIN + 1000 * first + draw.randrange(-20_000, 20_000)
                    deltas = [0 if base < 0 else draw.randrange(-500, 500) for _ in range(8)]
                    keys = [draw.choice([None, b"", b"x", b"y"]) for _ in range(8)]
                    records = [oracle.encode_record(i, deltas[i], keys[i], b"v" * 50) for i in range(8)]
                    batches.append(
                        oracle.build_batch(
                            records, base_offset=first, base_timestamp=base,
                            max_timestamp=-1 if base < 0 else base + max(deltas),
                        )
                    )  # fmt: skip
                    for i in range(8):
                        at = None if base < 0 else EPOCH + timedelta(milliseconds=base + deltas[i])
                        rows.append((topic, partition, first + i, at, keys[i]))
                write_segment(root / f"{topic}-{partition}", 40 * segment, batches, indexes=True)
    return Logs(str(root), rows)


def read_rows(reader: KbatchReader) -> list[Row]:
    # As Spark does: what is planned and the reader go to the tasks by pickle.
    partitions, reader = pickle.loads(pickle.dumps((reader.partitions(), reader)))
    rows = []
    for partition in partitions:
        for batch in reader.read(partition):
            rows += [tuple(row[name] for name in COLUMNS) for row in batch.to_pylist()]
    return rows


def planned_bytes(reader: KbatchReader) -> int:
    return sum(split.end - split.start for partition in reader.partitions() for split in partition.value or ())


# -- what filters make of a read

moments = st.integers(BEGIN - 30_000, BEGIN + 150_000).map(lambda ms: EPOCH + timedelta(milliseconds=ms)) | st.integers(
    1000 * (BEGIN - 30_000), 1000 * (BEGIN + 150_000)
).map(lambda us: EPOCH + timedelta(microseconds=us))
comparisons = st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
topics = st.sampled_from(["a", "b", "c", "d"])
partitions = st.integers(-1, 4)
filters = st.one_of(
    st.builds(EqualTo, st.just(("topic",)), topics),
    st.builds(In, st.just(("topic",)), st.lists(topics | st.none(), max_size=3).map(tuple)),
    st.builds(EqualTo, st.just(("partition",)), partitions),
    st.builds(In, st.just(("partition",)), st.lists(partitions, max_size=3).map(tuple)),
    st.tuples(comparisons, st.integers(-3, 125)).map(lambda t: t[0](("offset",), t[1])),
    st.tuples(comparisons, moments).map(lambda t: t[0](("timestamp",), t[1])),
    st.builds(EqualTo, st.just(("key",)), st.sampled_from([b"", b"x", b"y", b"z"])),
    st.builds(IsNotNull, st.just(("key",))),
    st.builds(StringStartsWith, st.just(("topic",)), topics),
    st.builds(lambda v: Not(EqualTo(("partition",), v)), partitions),
    st.builds(GreaterThan, st.just(("partition",)), partitions),
    st.builds(In, st.just(("offset",)), st.lists(st.integers(0, 119), max_size=3).map(tuple)),
)  # fmt: skip


@given(chosen=st.lists(filters, max_size=4), split_bytes=st.sampled_from([500, 1 << 20]))
def test_filters_and_what_is_left_of_them_give_the_rows(logs: Logs, chosen: list[Any], split_bytes: int) -> None:
    options = ReadOptions(split_bytes=split_bytes)
    reader = PushdownReader([logs.root], options, COLUMNS)
    left = reader.pushFilters(list(chosen))
    assert all(any(one is given_one for given_one in chosen) for one in left)
    rows = read_rows(reader)
    want = [row for row in logs.rows if all(holds(one, row) for one in chosen)]
    assert [row for row in rows if all(holds(one, row) for one in left)] == want
    # What isn't left is true of every row by itself.
    assert all(holds(one, row) for row in rows for one in chosen if one not in left)
    assert planned_bytes(reader) <= planned_bytes(KbatchReader([logs.root], options, COLUMNS))


@pytest.mark.parametrize(
    ("one", "exact", "most"),
    [
        (EqualTo(("topic",), "b"), True, 1 / 3),
        (In(("partition",), (0, None)), True, 1 / 3),
        (EqualTo(("offset",), 50), True, 1 / 14),
        (GreaterThan(("offset",), 79), True, 1 / 3),
        (LessThanOrEqual(("offset",), 39), True, 1 / 3),
        (LessThan(("offset",), 0), True, 0),
        (EqualTo(("topic",), "nope"), True, 0),
        (GreaterThanOrEqual(("timestamp",), EPOCH + timedelta(milliseconds=BEGIN + 110_000)), False, 1 / 2),
        (GreaterThan(("timestamp",), EPOCH + timedelta(days=100_000)), False, 0),
        (LessThan(("timestamp",), EPOCH), False, 1),
        (EqualTo(("key",), b"x"), True, 1),
        (EqualTo(("value",), b"x"), False, 1),
        (EqualTo(("timestamp",), datetime(2023, 1, 1)), False, 1),
        (EqualTo(("headers", "key"), "x"), False, 1),
        (EqualTo(("offset",), True), False, 1),
        (IsNotNull(("topic",)), False, 1),
    ],
)
def test_a_filter_reads_less(logs: Logs, one: Any, exact: bool, most: float) -> None:
    reader = PushdownReader([logs.root], ReadOptions(), COLUMNS)
    assert reader.pushFilters([one]) == ([] if exact else [one])
    whole = planned_bytes(KbatchReader([logs.root], ReadOptions(), COLUMNS))
    assert planned_bytes(reader) <= most * whole * 1.01
    if most == 1:
        assert reader.options.within == Within()


def test_filters_narrow_options_and_never_widen_them(logs: Logs) -> None:
    bounds = {"a": {0: 10, 1: 20, 2: 30}}
    text = json.dumps(bounds)
    _, options = parse_options({"path": logs.root, "topics": "a", "startingOffsets": text, "key": "x"})
    reader = PushdownReader([logs.root], options, COLUMNS)
    assert reader.pushFilters([EqualTo(("partition",), 1), LessThan(("offset",), 100), EqualTo(("key",), b"x")]) == []
    want = [row for row in logs.rows if row[:2] == ("a", 1) and 20 <= row[2] < 100 and row[4] == b"x"]
    assert read_rows(reader) == want
    reader.pushFilters([EqualTo(("key",), b"y")])
    assert reader.partitions() == []
    # What the options themselves get wrong is told all the same.
    _, options = parse_options({"path": logs.root, "topics": "a", "startingOffsets": '{"a": {"0": 1, "1": 1}}'})
    reader = PushdownReader([logs.root], options, COLUMNS)
    reader.pushFilters([EqualTo(("partition",), 2)])
    with pytest.raises(ValueError, match="doesn't name a-2"):
        reader.partitions()


# -- who may


def test_opting_in_needs_a_sound_version(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    source = KbatchDataSource({"path": logs.root, "pushFilters": "true"})
    monkeypatch.setattr(pushdown, "SOUND_VERSIONS", frozenset())
    for call in (source.schema, lambda: source.reader(KbatchDataSource({"path": logs.root}).schema())):
        with pytest.raises(
            ValueError, match=rf"pushFilters: PySpark {pyspark.__version__} keeps a reader .*no version"
        ):
            call()
    monkeypatch.setattr(pushdown, "SOUND_VERSIONS", frozenset([pyspark.__version__]))
    assert type(source.reader(source.schema())) is PushdownReader
    # Nobody else overrides it: with the setting off PySpark refuses every reader that does.
    assert type(KbatchDataSource({"path": logs.root}).reader(source.schema())) is KbatchReader
    assert KbatchReader.pushFilters is pyspark.sql.datasource.DataSourceReader.pushFilters


@pytest.mark.spark
def test_kbatch_believes_what_the_probe_finds(spark: Any) -> None:
    before = spark.conf.get(pushdown.SETTING, None)
    found = pushdown.probe(spark)
    assert spark.conf.get(pushdown.SETTING, None) == before
    assert found["filtered"]
    assert found["unfiltered first"]
    assert all(found.values()) == pushdown.is_sound(pyspark.__version__), (
        f"PySpark {pyspark.__version__} isn't what kbatch believes it to be: {found}. If all of it is right now, add "
        "the version to SOUND_VERSIONS in kbatch/spark/pushdown.py, so that option pushFilters works there; else take "
        "it out"
    )


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
def test_queries_of_one_loaded_relation_are_never_wrong(spark: Any, logs: Logs) -> None:
    """Filters, projections, limits, unions, self-joins and caching, one after the other on the same DataFrame."""
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
def test_key_options_of_the_source(spark: Any, logs: Logs) -> None:
    reader = spark.read.format("kbatch").option("key", "x")
    want = select(logs.rows, lambda r: r[4] == b"x")
    assert collected(reader.load(logs.root)) == want
    # A schema without the key: the filter doesn't need the column.
    without = reader.schema("topic string, partition int, offset bigint").load(logs.root)
    assert collected(without) == want
    partition = kbatch.partitioner.key_partition(b"x", 3)
    of_partition = [row for row in want if row[1] == partition]
    assert collected(reader.option("keyPartitions", "3").load(logs.root)) == of_partition
    assert reader.option("minPartitions", "20").load(logs.root).rdd.getNumPartitions() >= 10


# -- large values


def large_log(root: Path, size: int) -> Path:
    """A log of three records, the second of which has a value of `size` zeros."""
    values = [b"small", bytes(size), b"after"]
    for i, value in enumerate(values):
        batch = oracle.build_batch([oracle.encode_record(0, 0, b"k", value)], base_offset=i, codec="zstd")
        path = root / "large-0" / f"{i:020d}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(batch)
    return root


@pytest.mark.spark
def test_a_large_value_is_a_row(spark: Any, tmp_path: Path) -> None:
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
        r"00000000000000000001\.log, byte 0, base offset 1, record 0: 104857600 bytes of value, maxRecordBytes at most"
    )
    with pytest.raises(Exception, match=where):
        read("value binary", maxRecordBytes="99m").selectExpr("length(value)").collect()
    assert read("offset bigint", maxRecordBytes="99m").count() == 3
    with pytest.raises(Exception, match=r"00000000000000000001\.log, byte 0.*max_decompressed_bytes"):
        read("value binary", maxDecompressedBytes="50m").selectExpr("length(value)").collect()


def test_a_record_too_large_for_a_row_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = large_log(tmp_path, 80 << 20)
    reader = KbatchReader([str(root)], ReadOptions(), ("offset", "value"))
    (partition,) = reader.partitions()
    batches = list(reader.read(partition))
    assert [batch.num_rows for batch in batches] == [1, 1, 1]
    assert "base offset 1, record 0: 83886080 bytes of value; Spark's JVM takes about four times" in caplog.text
    reader = replace_options(reader, max_record_bytes=1000)
    with pytest.raises(kbatch.LimitExceededError, match="base offset 1, record 0: 83886080 bytes of value, maxRecord"):
        list(reader.read(partition))


def replace_options(reader: KbatchReader, **changes: Any) -> KbatchReader:
    return KbatchReader(reader.paths, replace(reader.options, **changes), reader.columns)
