"""The export: every record once and in order, readable by other libraries, and no output after an error."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import log_batches
import pytest

import kbatch

pytest.importorskip("kbatch.spark", exc_type=ImportError)
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.spark

import local_export  # noqa: E402

from kbatch import exporting  # noqa: E402
from kbatch.plan.read_options import ReadOptions  # noqa: E402
from kbatch.sinks.file_names import FileNames  # noqa: E402
from kbatch.sinks.local_engine import LocalExecutor  # noqa: E402
from kbatch.sinks.outputs import OutputPlace  # noqa: E402
from kbatch.sinks.write_options import WriteOptions  # noqa: E402
from kbatch.spark import export_job  # noqa: E402

MAGIC_2 = ("codec-gzip", "codec-lz4", "codec-none", "codec-snappy", "codec-zstd", "compact-src", "txn", "prealloc")


def options(**given: Any) -> dict[str, Any]:
    """Arguments of `kbatch.export`."""
    return {"topics": MAGIC_2, **given}


def read_options(**given: Any) -> ReadOptions:
    return ReadOptions(**options(**given))


@pytest.fixture(scope="module")
def exported(spark: Any, golden: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    out = tmp_path_factory.mktemp("export") / "out"
    seen: list[tuple[int, int]] = []
    summary = kbatch.export(
        golden / "logs",
        out,
        engine="spark",
        **options(include_headers=True, split_bytes=30_000),
        progress=lambda *counts: seen.append(counts),
    )
    # Progress counts bytes of the logs and records, and not tasks.
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > summary.log_bytes // 2
    assert seen[-1][2] == summary.records
    return out, summary


def rows_of_logs(golden: Path, topics: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return [
        (log.topic, log.partition, int(record["offset"]), table.key(i), table.value(i))
        for log in kbatch.find_logs(golden / "logs")
        if log.topic in topics
        for table in log.tables()
        for i, record in enumerate(table.records)
    ]


def test_files_hold_every_record_once_and_in_order(exported: tuple[Path, Any], golden: Path) -> None:
    out, summary = exported
    rows = []
    for name in summary.files:
        table = pq.ParquetFile(out / name).read()
        topic, partition, _ = name.split("/")
        for row in table.select(["offset", "key", "value"]).to_pylist():
            where = (topic.removeprefix("topic="), int(partition.removeprefix("partition=")))
            rows.append((*where, row["offset"], row["key"], row["value"]))
    assert rows == rows_of_logs(golden, MAGIC_2)
    assert sorted(summary.files) == sorted(str(path.relative_to(out)) for path in out.rglob("*.parquet"))
    assert not [path for path in out.parent.iterdir() if path != out]


def test_schema_of_the_files(exported: tuple[Path, Any]) -> None:
    out, summary = exported
    schema = pq.read_schema(out / summary.files[0])
    assert schema.names == ["key", "value", "offset", "timestamp", "timestampType", "headers"]
    assert schema.field("timestamp").type == pa.timestamp("us", "UTC")
    metadata = pq.ParquetFile(out / summary.files[0]).metadata
    assert metadata.row_group(0).column(1).compression == "ZSTD"


def test_the_summary_matches_kafka(exported: tuple[Path, Any], golden: Path) -> None:
    out, summary = exported
    codecs: dict[str, int] = {}
    for part in summary.partitions:
        batches = [
            batch
            for path in sorted((golden / "logs" / f"{part.topic}-{part.partition}").glob("*.log.expected.jsonl"))
            for batch in map(json.loads, path.read_text().splitlines())
            if "records" in batch
        ]
        for batch in batches:
            codecs[batch["codec"]] = codecs.get(batch["codec"], 0) + 1
        with_records = [batch for batch in batches if not batch["control"] and batch["records"]]
        assert part.records == sum(batch["records"] for batch in with_records)
        assert part.log_bytes == sum(batch["size"] for batch in batches)
        assert part.first_offset == min(batch["first50"][0][0] for batch in with_records)
        if with_records[-1]["records"] <= 50:
            assert part.last_offset == with_records[-1]["first50"][-1][0]
        assert part.last_timestamp == max(batch["maxTimestamp"] for batch in with_records)
        assert part.lost_bytes == 0
    assert [part.topic for part in summary.partitions] == sorted(MAGIC_2)
    assert summary.batches == codecs
    assert summary.records == sum(part.records for part in summary.partitions)
    assert summary.file_bytes == sum((out / name).stat().st_size for name in summary.files)
    assert (summary.loss_count, summary.damaged) == (0, False)
    manifest = json.loads((out / "_manifest.json").read_text())
    assert manifest["files"] == summary.files
    assert manifest["partitions"][0]["records"] == summary.partitions[0].records


def test_spark_reads_the_export(spark: Any, exported: tuple[Path, Any]) -> None:
    out, summary = exported
    frame = spark.read.parquet(str(out))
    assert frame.columns == [
        "key", "value", "offset", "timestamp", "timestampType", "headers", "topic", "partition",
    ]  # fmt: skip
    counts = {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert counts == {part.topic: part.records for part in summary.partitions}


def test_duckdb_polars_and_pyarrow_read_the_export(exported: tuple[Path, Any]) -> None:
    out, summary = exported
    expected = {part.topic: part.records for part in summary.partitions}
    duckdb = pytest.importorskip("duckdb")
    query = f"select topic, count(*) from read_parquet('{out}/**/*.parquet', hive_partitioning=true) group by topic"
    with duckdb.connect() as connection:
        assert dict(connection.execute(query).fetchall()) == expected
    polars = pytest.importorskip("polars")
    frame = polars.scan_parquet(f"{out}/**/*.parquet", hive_partitioning=True).group_by("topic").len().collect()
    assert dict(frame.rows()) == expected
    import pyarrow.dataset

    table = pyarrow.dataset.dataset(out, format="parquet", partitioning="hive").to_table(columns=["topic"])
    assert {row["values"]: row["counts"] for row in table["topic"].value_counts().to_pylist()} == expected


def test_a_failure_leaves_no_output(spark: Any, golden: Path, tmp_path: Path) -> None:
    """Damage in the last of several tasks removes the files that the other tasks have written."""
    root = tmp_path / "logs"
    shutil.copytree(golden / "logs" / "codec-none-0", root / "codec-none-0")
    path = root / "codec-none-0" / "00000000000000001825.log"
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    data = bytearray(path.read_bytes())
    position = int(kbatch.scan(data)["position"][-1])
    data[position + 90] ^= 1
    path.write_bytes(data)
    out = tmp_path / "out"
    with pytest.raises(kbatch.CrcMismatchError, match=rf"1825\.log, byte {position}, base offset"):
        kbatch.export(root, out, engine="spark", **options(topics=None, split_bytes=20_000))
    assert os.listdir(tmp_path) == ["logs"]
    summary = kbatch.export(root, out, engine="spark", **options(topics=None, split_bytes=20_000, on_error="skip"))
    (loss,) = summary.losses
    assert pq.read_table(out / summary.losses_table).to_pylist() == summary.losses == losses_of(root)
    assert (loss["file"], loss["position"]) == (str(path), position)
    assert summary.damaged
    assert summary.lost_bytes == loss["length"] == len(data) - position


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions with 15,000 losses each: every other batch has a wrong checksum."""
    root = tmp_path_factory.mktemp("many") / "logs"
    for partition in range(2):
        for segment in range(3):
            first = segment * 10_000
            batches = [bytearray(log_batches.batch(first + i, [1_700_000_000_000 + i])) for i in range(10_000)]
            for one in batches[::2]:
                one[-2] ^= 1
            log_batches.write_segment(root / f"many-{partition}", first, map(bytes, batches), indexes=True)
    return root


def losses_of(root: Path) -> list[dict[str, Any]]:
    return [
        {"topic": log.topic, "partition": log.partition, **loss._asdict(), "file": table.source}
        for log in kbatch.find_logs(root)
        for table in log.tables(on_error="skip")
        for loss in table.losses
    ]


def test_every_loss_is_in_the_table_of_losses(spark: Any, many: Path, tmp_path: Path) -> None:
    """FRM-R8: the summary lists some losses, the table _losses all of them; readers of the data ignore that table."""
    out = tmp_path / "out"
    summary = kbatch.export(many, out, engine="spark", **options(topics=None, split_bytes=300_000, on_error="skip"))
    expected = losses_of(many)
    assert len(expected) == summary.loss_count == 30_000
    assert (summary.records, summary.damaged, summary.losses_table) == (30_000, True, "_losses")
    assert summary.lost_bytes == sum(loss["length"] for loss in expected)
    assert summary.losses == expected[:100]
    manifest = json.loads((out / "_manifest.json").read_text())
    assert (manifest["losses_table"], manifest["losses"]) == ("_losses", expected[:100])
    side = out / summary.losses_table
    files = sorted(side.iterdir())
    assert len(files) > 4
    tables = [pq.ParquetFile(path).read() for path in files]
    rows = pa.concat_tables(tables)
    assert rows.to_pylist() == expected
    assert rows.schema == pa.schema(
        {
            "topic": pa.string(), "partition": pa.int32(), "file": pa.string(), "position": pa.int64(),
            "length": pa.int64(), "reason": pa.string(), "base_offset": pa.int64(),
        }
    )  # fmt: skip
    # The table of losses.
    frame = spark.read.parquet(str(side))
    assert frame.count() == pq.read_table(side).num_rows == 30_000
    source = spark.read.format("kbatch").option("table", "losses").load(str(many))
    assert frame.exceptAll(source).count() == source.exceptAll(frame).count() == 0
    # The data without the table of losses.
    assert spark.read.parquet(str(out)).count() == pq.read_table(out).num_rows == 30_000
    assert sorted(os.listdir(out)) == ["_losses", "_manifest.json", "_reports", "topic=many"]
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        for pattern in ("**/*.parquet", "_losses/*"):
            query = f"select count(*) from read_parquet('{out}/{pattern}', hive_partitioning=true)"
            assert connection.execute(query).fetchall() == [(30_000,)]
    polars = pytest.importorskip("polars")
    for pattern in ("**/*.parquet", "_losses/*"):
        assert polars.scan_parquet(f"{out}/{pattern}").select(polars.len()).collect().item() == 30_000


def test_reports_of_many_losses_are_small(many: Path, tmp_path: Path) -> None:
    from kbatch.log.selection import open_selected
    from kbatch.plan.planner import plan
    from kbatch.sinks.task import ExportJob, reports_of

    chosen = read_options(topics=None, on_error="skip")
    (splits,) = plan(open_selected([str(many)]), chosen)
    rows = list(ExportJob(chosen, names_in(tmp_path))([(0, splits)]))
    reports = list(reports_of(rows))
    assert [report.counts.loss_count for report in reports] == [15_000, 15_000]
    assert sum(map(len, rows)) < 3_000
    names = [name for report in reports for name in (report.files[0].name, report.losses_file)]
    assert sorted(names) == sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert max(pq.read_metadata(tmp_path / names[1]).row_group(i).num_rows for i in range(2)) <= 8_000


def test_an_export_without_losses_has_no_table_of_losses(exported: tuple[Path, Any]) -> None:
    out, summary = exported
    assert (summary.losses_table, summary.losses) == (None, [])
    assert not (out / "_losses").exists()


def names_in(path: Path) -> FileNames:
    return FileNames(OutputPlace(str(path)), "0a1b2c3d")


def test_a_task_that_runs_twice_duplicates_nothing(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may run a task more than once; only the files of the report that reached the driver count."""

    class Twice(LocalExecutor):
        def run(self, job: Any, tasks: Any, progress: Any) -> Any:
            first, second = (super(Twice, self).run(job, tasks, progress) for _ in range(2))
            assert first != second
            return second

    monkeypatch.setattr(exporting, "LocalExecutor", Twice)
    for kind in ("parquet", "delta"):
        out = tmp_path / kind
        chosen = read_options(topics=None)
        (name,) = local_export.export(golden / "logs" / "codec-zstd-0", out, chosen, format=kind).files
        assert re.search(r"topic=codec-zstd/partition=0/part-0{20}-00000-[0-9a-f]{8}-[0-9a-f]{8}\.parquet$", name)
        assert pq.read_metadata(out / name).num_rows == 3144
        assert [str(path.relative_to(out)) for path in out.rglob("*.parquet")] == [name]
    assert sorted(os.listdir(tmp_path)) == ["delta", "parquet"]


def test_workers_must_see_the_output(golden: Path, tmp_path: Path) -> None:
    from kbatch.log.selection import open_selected
    from kbatch.plan.planner import plan
    from kbatch.sinks.task import ExportJob

    tasks = plan(open_selected([str(golden / "logs" / "codec-zstd-0")]), read_options())
    job = ExportJob(read_options(), names_in(tmp_path / "elsewhere"))
    with pytest.raises(kbatch.LogDirectoryError, match="not found by a Spark worker"):
        list(job(enumerate(tasks)))


def test_the_function_of_the_tasks_has_no_splits(golden: Path, tmp_path: Path) -> None:
    """A task gets its own splits only: the pickled function and reader are as small for many splits as for one."""
    import pickle

    from kbatch.sinks.task import ExportJob
    from kbatch.spark.datasource import KbatchReader

    sizes = set()
    for split_bytes in (1_000, 1_000_000):
        chosen = read_options(split_bytes=split_bytes, min_partitions=None)
        reader = KbatchReader([str(golden / "logs")], chosen, ("offset",))
        partitions = reader.partitions()
        sizes.add(len(partitions))
        assert len(pickle.dumps(reader)) < 3_000
        assert max(len(pickle.dumps(each)) for each in partitions) < 10_000
        assert len(pickle.dumps(ExportJob(chosen, names_in(tmp_path)))) < 3_000
    assert max(sizes) > 10 * min(sizes)


def test_topic_names_are_escaped_like_spark(spark: Any, golden: Path, tmp_path: Path) -> None:
    odd = "a=b%c:d e"
    shutil.copytree(golden / "logs" / "prealloc-0", tmp_path / "logs" / f"{odd}-3")
    summary = kbatch.export(tmp_path / "logs", tmp_path / "out", engine="spark")
    assert summary.files[0].startswith("topic=a%3Db%25c%3Ad e/partition=3/")
    (row,) = spark.read.parquet(str(tmp_path / "out")).select("topic", "partition").distinct().collect()
    assert tuple(row) == (odd, 3)


def test_an_export_without_records_is_empty(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "logs" / "empty-0").mkdir(parents=True)
    (tmp_path / "logs" / "empty-0" / f"{0:020d}.log").touch()
    summary = kbatch.export(tmp_path / "logs", tmp_path / "out", engine="spark")
    assert (summary.records, summary.files, summary.partitions[0].first_offset) == (0, [], None)
    assert os.listdir(tmp_path / "out") == ["_manifest.json"]


def test_wrong_arguments_are_refused_before_spark_starts(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_spark(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(export_job, "spark_session", no_spark)
    logs = golden / "logs"
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").touch()
    (tmp_path / "odd").mkdir()
    shutil.copy(logs / "prealloc-0" / f"{0:020d}.log", tmp_path / "odd")
    for arguments, message in (
        ((logs, tmp_path / "there"), "there: exists already, and is not the output of an export"),
        ((logs, tmp_path / "no" / "out"), "no does not exist"),
        ((logs, "nfs://host/out"), "nfs://host: "),
        ((tmp_path / "nothing", tmp_path / "out"), "nothing: no such directory"),
        ((tmp_path / "there", tmp_path / "out"), "there: no topic-partition directory"),
        ((tmp_path / "odd" / f"{0:020d}.log", tmp_path / "out"), "topic is unknown"),
    ):
        with pytest.raises(kbatch.KbatchError, match=message):
            kbatch.export(*arguments, engine="spark")
    assert sorted(os.listdir(tmp_path)) == ["odd", "there"]
    with pytest.raises(ValueError, match="compression must be"):
        WriteOptions(compression="lzo")


def test_a_master_cannot_be_given_with_a_session(spark: Any, golden: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="session is active"):
        kbatch.export(golden / "logs" / "txn-0", tmp_path / "out", engine="spark", master="local[1]")
    assert os.listdir(tmp_path) == []
