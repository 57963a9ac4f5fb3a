"""``spark.read.format("kbatch")`` compared with `kbatch.Log` and with Kafka's classes on the same files."""

from __future__ import annotations

import json
import shutil
import stat
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from view_records import EPOCH

import kbatch

pytest.importorskip("kbatch.spark", exc_type=ImportError)

pytestmark = pytest.mark.spark

MAGIC_2 = ["codec-gzip", "codec-lz4", "codec-none", "codec-snappy", "codec-zstd", "compact-pass1", "txn", "prealloc"]
# For tests of many queries: compressed, compacted, and with transactions.
FEW = ["codec-zstd", "compact-pass1", "txn"]
Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def logs(golden: Path) -> str:
    return str(golden / "logs")


def load(spark: Any, path: str, schema: str | None = None, **options: str) -> Any:
    reader = spark.read.format("kbatch").options(**options)
    return (reader.schema(schema) if schema else reader).load(path)


def expected(path: str, topics: list[str], **options: Any) -> list[Row]:
    """Return the rows that the source must have, made from the tables of the logs."""
    rows = []
    for log in kbatch.find_logs(path):
        if log.topic not in topics:
            continue
        for table in log.tables(**options):
            headers: list[list[tuple[str, bytes | None]]] = [[] for _ in range(len(table))]
            for header in table.headers:
                name = table.data[header["key_pos"] :][: header["key_len"]].tobytes().decode()
                value = table.data[header["value_pos"] :][: max(header["value_len"], 0)].tobytes()
                headers[header["record"]].append((name, None if header["value_len"] < 0 else value))
            for i, record in enumerate(table.records):
                log_append = bool(table.batches["attributes"][record["batch"]] & 8)
                timestamp = int(record["timestamp"])
                rows.append(
                    (
                        table.key(i), table.value(i), log.topic, log.partition, int(record["offset"]),
                        None if timestamp < 0 else EPOCH + timedelta(milliseconds=timestamp), int(log_append),
                        headers[i] or None,
                    )
                )  # fmt: skip
    return sorted(rows, key=lambda row: (row[2], row[4]))


def rows_of(frame: Any) -> list[Row]:
    rows = []
    for row in frame.collect():
        # Spark returns naive datetimes in the time zone of this process.
        timestamp = row.timestamp.astimezone(UTC) if row.timestamp else None
        headers = [tuple(header) for header in row.headers] if "headers" in row and row.headers is not None else None
        plain = tuple(bytes(v) if isinstance(v, bytearray) else v for v in row[:5])
        rows.append((*plain, timestamp, row.timestampType, headers))
    return sorted(rows, key=lambda row: (row[2], row[4]))


def test_the_schema_equals_sparks_kafka_source(spark: Any, logs: str) -> None:
    columns = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    columns += "timestampType int"
    headers = ", headers array<struct<key:string,value:binary>>"
    from pyspark.sql.types import StructType

    assert load(spark, logs).schema == StructType.fromDDL(columns)
    assert load(spark, logs, includeHeaders="true").schema == StructType.fromDDL(columns + headers)


def test_rows_equal_the_rows_of_the_tables(spark: Any, logs: str) -> None:
    """Null and empty differ; both timestamp types; headers with duplicates (COL-R1, REC-R1, HDR-R5)."""
    frame = load(spark, logs, topics=",".join(MAGIC_2), includeHeaders="true")
    expected_rows = expected(logs, MAGIC_2)
    assert len(expected_rows) > 15_000
    assert any(row[7] for row in expected_rows)
    assert any(row[1] is None for row in expected_rows)
    assert rows_of(frame) == expected_rows


def test_rows_equal_the_records_that_kafka_reads(spark: Any, logs: str) -> None:
    frame = load(spark, logs, "topic string, offset long, key binary, value binary", topics=",".join(MAGIC_2))
    got = {(row.topic, row.offset): (row.key, row.value) for row in frame.collect()}
    records = 0
    for topic in MAGIC_2:
        for truth in Path(logs, f"{topic}-0").glob("*.log.expected.jsonl"):
            for line in truth.read_text().splitlines():
                batch = json.loads(line)
                if "records" not in batch or batch["control"]:
                    continue
                records += batch["records"]
                for offset, _, key_size, value_size in batch.get("first50", []):
                    key, value = got[topic, offset]
                    assert (-1 if key is None else len(key)) == key_size
                    assert (-1 if value is None else len(value)) == value_size
    assert len(got) == records


def test_tiny_splits_give_the_same_rows_once(spark: Any, logs: str) -> None:
    topics = ["codec-none", "codec-zstd", "txn"]
    frame = load(spark, logs, topics=",".join(topics), splitBytes="20k", includeHeaders="true")
    assert frame.rdd.getNumPartitions() > 8
    assert rows_of(frame) == expected(logs, topics)


def test_a_schema_chooses_columns_in_its_order(spark: Any, logs: str) -> None:
    frame = load(spark, logs, "offset long, topic string, headers array<struct<key:string,value:binary>>", topics="txn")
    assert frame.columns == ["offset", "topic", "headers"]
    expected_rows = [(row[4], row[2]) for row in expected(logs, ["txn"])]
    assert sorted((row.offset, row.topic) for row in frame.collect()) == expected_rows
    assert load(spark, logs, "timestampType int", topics="txn").count() == len(expected_rows)


FIELDS = {
    "offset": "long",
    "timestamp": "timestamp",
    "timestampType": "int",
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
}


@pytest.fixture(scope="module", params=["read_uncommitted", "read_committed"])
def whole(request: pytest.FixtureRequest, spark: Any, logs: str) -> tuple[dict[str, str], list[Any]]:
    """Options, and the rows of the full relation with them."""
    options = {"subscribe": ",".join(FEW), "isolationLevel": request.param}
    return options, load(spark, logs, **options).collect()


@pytest.mark.parametrize(
    "columns",
    [
        ["topic"],
        ["partition", "topic"],
        ["timestampType", "topic"],
        ["offset", "timestamp"],
        ["timestamp"],
        ["key", "partition"],
        ["value", "offset"],
        ["topic", "offset", "value", "timestamp"],
    ],
)
def test_a_projection_has_the_rows_of_the_full_relation(
    spark: Any, logs: str, whole: tuple[dict[str, str], list[Any]], columns: list[str]
) -> None:
    options, rows = whole
    some = load(spark, logs, ", ".join(f"{name} {FIELDS[name]}" for name in columns), **options)
    expected_rows = sorted((tuple(row[name] for name in columns) for row in rows), key=repr)
    assert expected_rows
    assert sorted(map(tuple, some.collect()), key=repr) == expected_rows
    assert some.count() == len(expected_rows)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("offset long, colour string", "no column 'colour'; the columns are key, value, topic"),
        ("offset int", "column 'offset' is bigint, not int"),
        ("headers array<string>", "column 'headers' is array<struct<key:string,value:binary>>"),
    ],
)
def test_an_unsupported_schema_is_refused(spark: Any, logs: str, schema: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        load(spark, logs, schema, topics="txn").count()


def test_offsets_and_timestamps_select_records(spark: Any, logs: str) -> None:
    rows = expected(logs, ["codec-none"])

    def offsets(**options: str) -> list[int]:
        frame = load(spark, logs, "offset long", topics="codec-none", **options)
        return sorted(row.offset for row in frame.collect())

    bounds = {"startingOffsets": '{"codec-none": {"0": 1000}}', "endingOffsets": '{"codec-none": {"0": 2000}}'}
    assert offsets(**bounds) == list(range(1000, 2000))
    # All records from the first one at or after the timestamp; later records may have lower timestamps.
    moment = rows[1500][5] + timedelta(milliseconds=1)
    milliseconds = (moment - EPOCH) // timedelta(milliseconds=1)
    first = next(row[4] for row in rows if row[5] is not None and row[5] >= moment)
    assert first > 0
    assert offsets(startingTimestamp=str(milliseconds)) == [row[4] for row in rows if row[4] >= first]
    by_partition = json.dumps({"codec-none": {"0": milliseconds}})
    assert offsets(endingOffsetsByTimestamp=by_partition) == [row[4] for row in rows if row[4] < first]


def test_control_records_only_when_asked_for(spark: Any, logs: str) -> None:
    assert load(spark, logs, topics="kraft-control").count() == 0
    assert load(spark, logs, topics="kraft-control", includeControl="true").count() == len(
        expected(logs, ["kraft-control"], include_control=True)
    )


def test_pyspark_still_gives_wrong_rows_after_it_pushed_filters(spark: Any) -> None:
    """If this fails, PySpark has repaired it: then `KbatchReader` can accept filters on that version and later."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        low = 0

        def pushFilters(self, filters: list[Any]) -> Any:
            for pushed in filters:
                if type(pushed).__name__ == "GreaterThanOrEqual":
                    self.low = pushed.value
                else:
                    yield pushed

        def partitions(self) -> list[Any]:
            return [InputPartition(self.low)]

        def read(self, partition: Any) -> Any:
            yield from ((number,) for number in range(partition.value, 10))

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "number int"

        def reader(self, schema: Any) -> Any:
            return Reader()

    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    spark.dataSource.register(Numbers)
    spark.conf.set(setting, "true")
    try:
        numbers = spark.read.format("numbers").load()
        assert numbers.filter("number >= 7").count() == 3
        assert numbers.count() == 3
    finally:
        spark.conf.set(setting, before)


def test_filters_on_a_loaded_relation_are_applied_by_spark(spark: Any, logs: str) -> None:
    """PySpark reuses a reader after it pushed filters into it, so this reader must not accept filters."""
    from pyspark.sql.datasource import DataSourceReader

    from kbatch.spark.datasource import KbatchReader

    assert KbatchReader.pushFilters is DataSourceReader.pushFilters
    frame = load(spark, logs, topics="codec-none")
    assert frame.filter("offset >= 3000").count() == 160
    assert frame.count() == 3160
    assert frame.filter("offset < 10").union(frame.filter("offset >= 3150")).count() == 20
    assert frame.filter("offset < 10 and topic = 'codec-none'").count() == 10
    assert frame.count() == 3160


# -- damage


@pytest.fixture
def damaged(golden: Path, tmp_path: Path) -> tuple[str, Any]:
    """A copy of a log with one wrong byte in the middle, and the row of the damaged batch."""
    copy = tmp_path / "root" / "codec-none-0"
    shutil.copytree(golden / "logs" / "codec-none-0", copy)
    path = copy / "00000000000000000000.log"
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    data = bytearray(path.read_bytes())
    batches = kbatch.scan(data)
    batch = batches[len(batches) // 2]
    data[int(batch["position"]) + 100] ^= 1
    path.write_bytes(data)
    return str(copy.parent), batch


def test_options_of_spark_s_kafka_source_need_not_be_removed(spark: Any, logs: str, tmp_path: Path) -> None:
    """Also those of streams, which Spark's Kafka source ignores in batch reads. Internal topics have to be named."""
    brought = {"kafka.bootstrap.servers": "host:9092", "kafkaConsumer.pollTimeoutMs": "10", "maxOffsetsPerTrigger": "1"}
    assert rows_of(load(spark, logs, subscribe="codec-lz4", includeHeaders="true", **brought)) == expected(
        logs, ["codec-lz4"]
    )
    shutil.copytree(Path(logs) / "codec-lz4-0", tmp_path / "__consumer_offsets-0")
    shutil.copytree(Path(logs) / "codec-zstd-0", tmp_path / "codec-zstd-0")
    for options, topics in ({}, ["codec-zstd"]), ({"subscribe": "__consumer_offsets"}, ["__consumer_offsets"]):
        frame = load(spark, str(tmp_path), **options)
        assert [row.topic for row in frame.select("topic").distinct().collect()] == topics
    with pytest.raises(
        Exception, match=r"no topic matches the pattern '__con\.\*'; the topics are codec-zstd; internal"
    ):
        load(spark, str(tmp_path), subscribePattern="__con.*").count()


def test_damage_is_an_error_with_its_position(spark: Any, damaged: tuple[str, Any]) -> None:
    root, batch = damaged
    where = rf"00000000000000000000\.log, byte {batch['position']}, base offset {batch['base_offset']}: stored checksum"
    with pytest.raises(Exception, match=where):
        load(spark, root).count()


@pytest.mark.parametrize("options", [{"onError": "skip"}, {"failOnDataLoss": "false"}])
@pytest.mark.parametrize("split_bytes", ["128m", "5k"])
def test_damage_is_skipped(spark: Any, damaged: tuple[str, Any], options: dict[str, str], split_bytes: str) -> None:
    root, batch = damaged
    rows = rows_of(load(spark, root, includeHeaders="true", splitBytes=split_bytes, **options))
    assert rows == expected(root, ["codec-none"], on_error="skip")
    lost = set(range(3160)) - {row[4] for row in rows}
    assert lost == set(range(batch["base_offset"], batch["base_offset"] + batch["last_offset_delta"] + 1))


def test_damage_ends_the_read_of_a_log(spark: Any, damaged: tuple[str, Any]) -> None:
    root, batch = damaged
    frame = load(spark, root, "offset long", onError="stop", splitBytes="5k")
    assert sorted(row.offset for row in frame.collect()) == list(range(batch["base_offset"]))


def test_a_wrong_checksum_can_be_accepted(spark: Any, damaged: tuple[str, Any]) -> None:
    root, _ = damaged
    assert load(spark, root, crc="skip").count() == load(spark, root, crc="mark").count() == 3160


# -- the table of counts


@pytest.mark.parametrize(
    "options",
    [{}, {"splitBytes": "20k"}, {"isolationLevel": "read_committed"}, {"onError": "skip", "crc": "skip"},
     {"key": "key-8"}, {"topics": "txn", "startingOffsets": json.dumps({"txn": {"0": 30}})},
     {"includeControl": "true"}],
)  # fmt: skip
def test_counts_are_the_numbers_of_the_records(spark: Any, logs: str, options: dict[str, str]) -> None:
    options = {"topics": ",".join(FEW), **options}
    counts = load(spark, logs, table="counts", **options)
    assert counts.columns == ["topic", "partition", "records"]
    rows = counts.groupBy("topic", "partition").sum("records").collect()
    records = load(spark, logs, **options).groupBy("topic", "partition").count().collect()
    assert records
    assert sorted(map(tuple, rows)) == sorted(map(tuple, records))
    assert counts.filter("records < 1").count() == 0


def test_counts_of_damaged_logs_log_the_losses(damaged_logs: str, caplog: pytest.LogCaptureFixture) -> None:
    from kbatch.spark.datasource import KbatchDataSource

    def rows(**options: str) -> list[Any]:
        source = KbatchDataSource({"path": damaged_logs, "topics": "txn", "onError": "skip", **options})
        reader = source.reader(source.schema())
        return [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]

    assert sum(row["records"] for row in rows(table="counts")) == len(rows())
    losses = [row for row in losses_of(damaged_logs) if row[0] == "txn"]
    assert len([each for each in caplog.messages if "bytes lost" in each]) == 2 * len(losses) > 0


# -- the table of losses

LOSS_SCHEMA = (
    "topic string, partition int, file string, position bigint, length bigint, reason string, base_offset bigint"
)


@pytest.fixture(scope="module")
def damaged_logs(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Logs of several partitions with flipped bits in payloads, checksums, magic and lengths of several segments."""
    root = tmp_path_factory.mktemp("damaged_logs")
    for source, name in (("codec-none-0", "codec-none-0"), ("codec-zstd-0", "codec-zstd-3"), ("txn-0", "txn-0")):
        shutil.copytree(golden / "logs" / source, root / name, copy_function=shutil.copyfile)
        for path in sorted((root / name).glob("*.log")):
            data = bytearray(path.read_bytes())
            starts = kbatch.scan(data)["position"].tolist()
            middle = len(starts) // 2
            # The payloads of two adjacent batches, a checksum, a magic, and lengths that point far ahead or nowhere.
            for row, at, bits in (
                (1, 70, 1), (middle, 62, 4), (middle + 1, 64, 128), (middle + 3, 18, 2), (middle + 5, 16, 8),
                (middle + 7, 10, 4), (-2, 8, 64), (3, 11, 16),
            ):  # fmt: skip
                if row + 1 < len(starts):
                    data[starts[row] + at] ^= bits
            path.write_bytes(data)
    return str(root)


def losses_of(path: str, **options: Any) -> list[Row]:
    return [
        (log.topic, log.partition, table.source, *loss[:4])
        for log in kbatch.find_logs(path)
        for table in log.tables(**{"on_error": "skip", **options})
        for loss in table.losses
    ]


def loss_rows(frame: Any) -> list[Row]:
    return sorted(map(tuple, frame.collect()))


@pytest.mark.parametrize("split_bytes", ["128m", "30k", "5k", "1"])
def test_losses_equal_the_losses_of_the_tables_for_any_split(spark: Any, damaged_logs: str, split_bytes: str) -> None:
    """FRM-R8: damage at the boundary of a split is reported once, as without a boundary."""
    from pyspark.sql.types import StructType

    frame = load(spark, damaged_logs, table="losses", splitBytes=split_bytes)
    assert frame.schema == StructType.fromDDL(LOSS_SCHEMA)
    expected_rows = losses_of(damaged_logs)
    assert len(expected_rows) > 20
    assert len({row[:3] for row in expected_rows}) == 7
    assert {row[6] is None for row in expected_rows} == {True, False}
    assert loss_rows(frame) == sorted(expected_rows)
    read = {(row[2], row[4]) for row in expected(damaged_logs, ["codec-none", "codec-zstd", "txn"], on_error="skip")}
    rows = rows_of(load(spark, damaged_logs, onError="skip", splitBytes=split_bytes, includeHeaders="true"))
    assert {(row[2], row[4]) for row in rows} == read
    assert len(rows) == len(read)


def test_losses_respect_the_options_of_a_read(spark: Any, damaged_logs: str) -> None:
    def losses(**options: str) -> list[Row]:
        return loss_rows(load(spark, damaged_logs, table="losses", **options))

    every = losses_of(damaged_logs)
    assert losses(topics="txn") == sorted(row for row in every if row[0] == "txn")
    assert losses(partitions="3", failOnDataLoss="false") == sorted(row for row in every if row[1] == 3)
    assert losses(crc="skip") == sorted(losses_of(damaged_logs, crc="skip"))
    assert losses(onError="stop") == sorted(losses_of(damaged_logs, on_error="stop"))
    ending = json.dumps({"codec-none": {"0": 1000}})
    assert losses(topics="codec-none", endingOffsets=ending) == sorted(
        row for row in losses_of(damaged_logs, stop_offset=1000) if row[0] == "codec-none"
    )
    frame = load(spark, damaged_logs, "length long, topic string", table="losses")
    assert sorted(map(tuple, frame.collect())) == sorted((row[4], row[0]) for row in every)
    assert frame.groupBy("topic").sum("length").count() == 3


def test_the_table_of_losses_is_empty_without_damage(spark: Any, logs: str) -> None:
    for options in ({}, {"onError": "stop"}, {"splitBytes": "5k"}):
        assert load(spark, logs, topics=",".join(MAGIC_2), table="losses", **options).collect() == []
    assert load(spark, logs, partitions="5", table="losses").collect() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "losses", "onError": "raise"}, "requires onError skip or stop"),
        ({"table": "losses", "failOnDataLoss": "true"}, "requires onError skip or stop"),
        ({"table": "loss"}, "table must be one of 'records', 'counts', 'losses'"),
    ],
)
def test_invalid_options_for_losses_are_refused(spark: Any, logs: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        load(spark, logs, **options)
    with pytest.raises(Exception, match="no column 'value'; the columns are topic, partition, file"):
        load(spark, logs, "value binary", table="losses").count()
    assert load(spark, logs, topics="txn", table="records").columns[0] == "key"


def test_a_read_of_records_logs_losses_and_names_the_table(damaged_logs: str, caplog: pytest.LogCaptureFixture) -> None:
    from kbatch.spark.datasource import KbatchDataSource

    source = KbatchDataSource({"path": damaged_logs, "onError": "skip", "topics": "codec-none"})
    reader = source.reader(source.schema())
    for partition in reader.partitions():
        list(reader.read(partition))
    expected_rows = [row for row in losses_of(damaged_logs) if row[0] == "codec-none"]
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:-1] == [f"{row[2]}, byte {row[3]}: {row[4]} bytes lost: {row[5]}" for row in expected_rows]
    hint = "a batch read with option('table', 'losses') returns all of them as a DataFrame"
    assert lines[-1] == f"{len(expected_rows)} losses in this task; {hint}"


# -- errors


def test_planning_errors_are_raised_at_load(spark: Any, logs: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="unknown option 'topic', did you mean 'topics'"):
        load(spark, logs, topic="txn")
    with pytest.raises(Exception, match="no-such: no such directory"):
        load(spark, str(tmp_path / "no-such")).count()
    with pytest.raises(Exception, match="no topic-partition directory"):
        load(spark, str(tmp_path)).count()
    with pytest.raises(Exception, match="no log of topic 'nope'"):
        load(spark, logs, subscribe="nope").count()


def test_message_sets_are_read_like_batches(spark: Any, logs: str) -> None:
    rows = load(spark, logs, topics="magic0,magic1").orderBy("topic", "offset").collect()
    have = [(row.topic, row.offset, row.timestampType, row.timestamp is None) for row in rows]
    expected_rows = []
    for topic in ("magic0", "magic1"):
        for table in kbatch.Log(f"{logs}/{topic}-0").tables():
            types = np.where(table.batches["magic"] == 0, -1, table.batches["attributes"] >> 3 & 1)
            for offset, timestamp, batch in table.records[["offset", "timestamp", "batch"]].tolist():
                expected_rows.append((topic, offset, int(types[batch]), timestamp == -1))
    assert have == expected_rows
    assert len(have) > 20


def test_an_empty_selection_has_no_rows(spark: Any, logs: str) -> None:
    assert load(spark, logs, partitions="5").collect() == []


def test_several_paths_may_be_directories_and_files(spark: Any, logs: str) -> None:
    paths = [f"{logs}/txn-0", f"{logs}/codec-none-0/00000000000000001825.log"]
    frame = spark.read.format("kbatch").load(paths)
    assert {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()} == {
        "txn": 337,
        "codec-none": 3160 - 1825,
    }
