"""``df.write.format("kbatch")``: segments for each topic-partition; a failed write changes nothing."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kbatch

pytest.importorskip("kbatch.spark", exc_type=ImportError)
pa = pytest.importorskip("pyarrow")

from kbatch.broker.partitioner import key_partition  # noqa: E402
from kbatch.errors import LogDirectoryError  # noqa: E402
from kbatch.log.check.verification import verify_log  # noqa: E402
from kbatch.spark.datasink import KbatchWriter, parse_sink_options  # noqa: E402
from kbatch.spark.datasource import KbatchDataSource  # noqa: E402
from kbatch.spark.table_schemas import kafka_schema  # noqa: E402

pytestmark = pytest.mark.spark


def save(frame: Any, root: Path, mode: str = "append", **options: str) -> None:
    frame.write.format("kbatch").mode(mode).options(**options).save(str(root))


def rows_of(spark: Any, root: Path | str, **options: str) -> list[Any]:
    reader = spark.read.format("kbatch").option("includeHeaders", "true").options(**options)
    return sorted(map(tuple, reader.load(str(root)).collect()), key=lambda row: row[2:5])


def values(root: Path) -> dict[tuple[str | None, int | None], list[bytes | None]]:
    logs = {}
    for log in kbatch.find_logs(root):
        assert not verify_log(log.segments).damaged
        logs[log.topic, log.partition] = [value for table in log.tables() for value in table.values()]
        offsets = [table.records["offset"] for table in log.tables()]
        assert np.concatenate(offsets).tolist() == list(range(log.start_offset, log.end_offset))
    return logs


def tree(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.name != ".lock"
    }


def test_rewritten_logs_of_kafka_have_the_same_records(spark: Any, golden: Path, tmp_path: Path) -> None:
    topics = "codec-gzip,codec-lz4,codec-none,codec-snappy,codec-zstd,compact-pass1"
    reader = spark.read.format("kbatch").options(subscribe=topics, includeHeaders="true", splitBytes="64k")
    frame = reader.load(str(golden / "logs"))
    assert frame.rdd.getNumPartitions() > 6
    save(frame, tmp_path / "logs", codec="lz4", batchSize="8k", segmentBytes="100k")
    # Offsets with their gaps, timestamps and headers are equal; all records have timestamp type CreateTime.
    expected = rows_of(spark, golden / "logs", subscribe=topics)
    assert [row[:6] + row[7:] for row in rows_of(spark, tmp_path / "logs")] == [row[:6] + row[7:] for row in expected]
    assert len(expected) > 10_000
    for log in kbatch.find_logs(tmp_path / "logs"):
        assert not verify_log(log.segments).damaged
    assert os.listdir(tmp_path) == ["logs"]


def test_offsets_continue_in_the_order_of_tasks(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    expected: list[bytes] = []
    for turn in range(3):
        frame = spark.range(turn * 1000, turn * 1000 + 1000, 1, 5).selectExpr(
            "cast(id as string) as value", "'t' as topic", "cast(id % 2 as int) as partition"
        )
        save(frame, root, codec=("zstd:3", "none", "gzip")[turn])
        expected += [b"%d" % n for n in range(turn * 1000, turn * 1000 + 1000)]
        assert values(root) == {("t", 0): expected[::2], ("t", 1): expected[1::2]}
    assert [segment.base_offset for segment in kbatch.Log(root / "t-0").segments] == [0, 500, 1000]
    assert sorted(os.listdir(root)) == [".lock", "t-0", "t-1"]


def test_options_replace_topic_partitions_and_timestamp_type(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame(
        [(None if n % 2 else f"k{n}", bytearray(b"%d" % n), "other", None if n < 150 else 3) for n in range(200)],
        "key string, value binary, topic string, partition int",
    ).coalesce(1)
    save(frame, tmp_path / "logs", topic="mine", numPartitions="4", timestampType="LogAppendTime")
    found = values(tmp_path / "logs")
    assert {topic for topic, _ in found} == {"mine"}
    assert sum(map(len, found.values())) == 200
    for (_, partition), seen in found.items():
        numbers = [int(value or b"") for value in seen]
        assert all(key_partition(b"k%d" % n, 4) == partition for n in numbers if n < 150 and n % 2 == 0)
        assert len([n for n in numbers if n < 150 and n % 2]) in (18, 19)
        assert partition == 3 or all(n < 150 for n in numbers)
    times = {(row[5], row[6]) for row in rows_of(spark, tmp_path / "logs")}
    assert len(times) == 1
    assert times.pop()[1] == 1


def test_headers_may_be_omitted(spark: Any, tmp_path: Path) -> None:
    frame = spark.sql(
        "select 'v' as value, 't' as topic, 0 as partition, "
        "array(named_struct('key', 'h', 'value', cast('1' as binary)), named_struct('key', 'h', 'value', null)) headers"
    )
    save(frame, tmp_path / "with")
    save(frame, tmp_path / "without", includeHeaders="false")
    assert rows_of(spark, tmp_path / "with")[0][-1] == [("h", bytearray(b"1")), ("h", None)]
    assert rows_of(spark, tmp_path / "without")[0][-1] is None


def test_kept_offsets_of_tasks_must_not_overlap(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    frame = spark.range(100).selectExpr("id as offset", "cast(id as string) as value", "'t' as topic", "0 as partition")
    save(frame.repartition(3), tmp_path / "assigned", offsets="assign")
    assert sorted(values(tmp_path / "assigned")["t", 0]) == sorted(b"%d" % n for n in range(100))
    with pytest.raises(Exception, match="sort the rows of each topic-partition by offset"):
        save(frame.coalesce(1).orderBy("value"), root)
    with pytest.raises(Exception, match=r"can't write offset .*: another task's last offset is"):
        save(frame.repartition(3).sortWithinPartitions("offset"), root)
    assert os.listdir(tmp_path) == ["assigned"]
    save(frame.repartitionByRange(3, "offset").sortWithinPartitions("offset"), root)
    assert values(root)["t", 0] == [b"%d" % n for n in range(100)]
    before = tree(root)
    with pytest.raises(Exception, match="can't write offset 0: the log's last offset is 99"):
        save(frame, root)
    assert tree(root) == before


def test_existing_logs_are_overwritten_only_with_replace_logs(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    frame = spark.range(10).selectExpr(
        "cast(id as string) as value", "'t' as topic", "cast(id % 2 as int) as partition"
    )
    save(frame, root, "overwrite")
    before = tree(root)
    with pytest.raises(Exception, match=r"exists already, with logs \(t-0, t-1\).*replaceLogs=true"):
        save(frame, root, "overwrite")
    for mode in ("errorifexists", "ignore"):
        with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            save(frame, root, mode)
    assert tree(root) == before
    save(frame.where("partition = 1"), root, "overwrite", replaceLogs="true")
    assert values(root) == {("t", 1): [b"1", b"3", b"5", b"7", b"9"]}


def test_a_failed_task_leaves_no_output(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.functions import udf

    @udf("string")
    def broken(n):  # type: ignore[no-untyped-def]
        if n == 900:
            raise RuntimeError("boom")
        return str(n)

    frame = spark.range(0, 1000, 1, 4).select(broken("id").alias("value"))
    with pytest.raises(Exception, match="boom"):
        save(frame, tmp_path / "new", topic="t", numPartitions="2")
    assert os.listdir(tmp_path) == []
    root = tmp_path / "logs"
    save(spark.range(5).selectExpr("cast(id as string) as value"), root, topic="t", numPartitions="1")
    before = tree(root)
    with pytest.raises(Exception, match="boom"):
        save(frame, root, topic="t", numPartitions="2")
    assert tree(root) == before


def test_a_failed_commit_leaves_no_output(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(10).selectExpr(
        "cast(id as string) as value", "'t' as topic", "cast(id % 3 as int) as partition"
    )
    (tmp_path / "t-2").write_text("no directory")
    before = tree(tmp_path)
    with pytest.raises(Exception, match="t-2: is not a directory"):
        save(frame, tmp_path)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("select", "options", "message"),
    [
        (["'a' as key"], {}, "required column 'value' is missing"),
        (
            ["1 as value"],
            {"topic": "t", "numPartitions": "1"},
            "column 'value' must be binary or string, not int32; cast it",
        ),
        (["'a' as value"], {}, "column 'topic' is missing"),
        (["'a' as value", "cast(null as string) as topic"], {"numPartitions": "1"}, "the topic is null"),
        (["1.5D as value"], {"topic": "t"}, "column 'value' is double, a type that records do not have"),
        (["'a' as value", "1 as other"], {"topic": "t", "numPartitions": "1"}, "column 'other' can't be written"),
        (["'a' as value", "map('a', 'b') as headers"], {"topic": "t", "numPartitions": "1"}, None),
        (["'a' as value", "array('a') as headers"], {"topic": "t", "numPartitions": "1"}, "column 'headers' must be"),
        (["'a' as value"], {"subscribe": "t"}, "unknown option 'subscribe'. The options are batchSize"),
        (["'a' as value"], {"topic": "t", "codec": "lzo"}, "codec must be none, gzip"),
    ],
)
def test_unsupported_columns_and_options_are_refused(
    spark: Any, tmp_path: Path, select: list[str], options: dict[str, str], message: str | None
) -> None:
    frame = spark.range(3).selectExpr(*select)
    if message is None:
        save(frame, tmp_path / "logs", **options)
        return
    with pytest.raises(Exception, match=message):
        save(frame, tmp_path / "logs", **options)
    assert os.listdir(tmp_path) == []


def test_a_stream_is_refused(spark: Any, tmp_path: Path) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
    with pytest.raises(Exception, match="kbatch writes no streams; write each micro-batch"):
        stream.writeStream.format("kbatch").option("checkpointLocation", str(tmp_path / "cp")).start(
            str(tmp_path / "logs")
        ).awaitTermination()
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no path"),
        (
            {"kafka.bootstrap.servers": "a:9092", "topic": "t"},
            "kbatch does not write to brokers, .* Spark's Kafka sink",
        ),
        ({"path": "p", "numPartitions": "0"}, "numPartitions must be 1 to 2147483647, got 0"),
        ({"path": "p", "offsets": "drop"}, "offsets must be one of 'keep', 'assign', got 'drop'"),
        ({"path": "p", "batchSize": "many"}, "batchSize must be a number of bytes"),
        ({"path": "p", "batchSize": "4g"}, "batchSize must be 0 to 2147483647"),
        ({"path": "p", "segmentBytes": "4g"}, "segmentBytes must be 1 to 2147483647"),
        ({"path": "p", "timestampType": "EventTime"}, "timestampType must be CreateTime or LogAppendTime"),
        ({"path": "p", "replaceLogs": "yes"}, "replaceLogs must be true or false"),
        ({"path": "p", "codec": "zstd:99"}, "codec must be .* zstd:22.*, got 'zstd:99'"),
    ],
)
def test_options_are_checked(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_sink_options(options)


# -- attempts, without the scheduler


def writer_of(root: Path, overwrite: bool = False, **options: str) -> KbatchWriter:
    schema = kafka_schema(("value", "topic", "partition"))
    return pickle.loads(
        pickle.dumps(KbatchDataSource({"path": str(root), **options}).writer(schema, overwrite=overwrite))
    )


def batches(count: int, first: int = 0) -> list[Any]:
    table = pa.table(
        {
            "value": [b"%d" % n for n in range(first, first + count)],
            "topic": ["t"] * count,
            "partition": pa.array([n % 2 for n in range(count)], pa.int32()),
        }
    )
    return table.to_batches(max_chunksize=7)


def test_only_attempts_accepted_by_spark_are_committed(tmp_path: Path) -> None:
    writer = writer_of(tmp_path / "logs")

    def dies() -> Any:
        yield from batches(30)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        writer.write(dies())
    assert os.listdir(os.path.join(writer.stage.path, "attempts")) == []
    # A speculative duplicate may finish like the accepted attempt; a killed attempt leaves the same files or fewer.
    writer.write(iter(batches(30)))
    messages = [writer.write(iter(batches(30))), writer.write(iter([])), writer.write(iter(batches(10, first=30)))]
    for number, message in enumerate(messages):
        message.task = number
    writer.commit(pickle.loads(pickle.dumps(messages[::-1])))
    assert values(tmp_path / "logs") == {("t", p): [b"%d" % n for n in range(p, 40, 2)] for p in (0, 1)}
    assert os.listdir(tmp_path) == ["logs"]


def test_a_task_without_a_report_is_an_error(tmp_path: Path) -> None:
    writer = writer_of(tmp_path / "logs")
    message = writer.write(iter(batches(4)))
    with pytest.raises(RuntimeError, match="1 of 2 tasks did not report their files"):
        writer.commit([message, None])
    assert os.listdir(tmp_path) == []


def test_abort_removes_everything(tmp_path: Path) -> None:
    for root in (tmp_path / "new", tmp_path):
        writer = writer_of(root)
        message = writer.write(iter(batches(30)))
        assert tree(tmp_path)
        writer.abort([message, None])
        assert tree(tmp_path) == {}
        with pytest.raises(LogDirectoryError, match=r"directory of this write does not exist\. The write was aborted"):
            writer.write(iter(batches(30)))
        # A commit after the abort finds no files.
        with pytest.raises(LogDirectoryError, match="a task wrote this file, but it can't be opened"):
            writer.commit([message])
        assert tree(tmp_path) == {}


def test_concurrent_jobs_are_refused_or_append(tmp_path: Path) -> None:
    one, other = writer_of(tmp_path / "logs"), writer_of(tmp_path / "logs")
    messages = [writer.write(iter(batches(4))) for writer in (one, other)]
    one.commit([messages[0]])
    with pytest.raises(LogDirectoryError, match="another writer may have created it meanwhile"):
        other.commit([messages[1]])
    assert os.listdir(tmp_path) == ["logs"]
    # Both jobs append to existing logs, one after the other.
    one, other = writer_of(tmp_path / "logs"), writer_of(tmp_path / "logs")
    messages = [writer.write(iter(batches(4, first=first))) for first, writer in ((10, one), (20, other))]
    other.commit([messages[1]])
    one.commit([messages[0]])
    assert values(tmp_path / "logs")["t", 0] == [b"0", b"2", b"20", b"22", b"10", b"12"]
    # A job that may only overwrite an empty directory checks it again at the commit.
    (tmp_path / "empty").mkdir()
    one, other = writer_of(tmp_path / "empty", overwrite=True), writer_of(tmp_path / "empty")
    messages = [writer.write(iter(batches(4))) for writer in (one, other)]
    other.commit([messages[1]])
    with pytest.raises(LogDirectoryError, match="exists already, with logs"):
        one.commit([messages[0]])
    assert values(tmp_path / "empty")["t", 0] == [b"0", b"2"]


def test_killed_workers_duplicate_no_rows(retried: tuple[Path, dict[str, Any]]) -> None:
    directory, _ = retried
    assert len(list(directory.glob("killed-*"))) >= 4
    assert values(directory / "written") == {("t", 0): [b"%d" % n for n in range(1000)] * 2}
    assert sorted(os.listdir(directory / "written")) == [".lock", "t-0"]
