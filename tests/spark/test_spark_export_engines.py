"""The rows, tables and file systems of an export, and exports that fail before they finish."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import log_batches
import pytest
from golden_logs import TXN_LOG
from log_batches import DAY, NOW
from transaction_logs import ABORT, COMMIT, damaged, data, marker, txn

import kbatch
from kbatch.cli import main

pytest.importorskip("kbatch.spark", exc_type=ImportError)
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


pytestmark = pytest.mark.spark


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Logs of two topics over several days; one topic has a name that must be escaped."""
    root = tmp_path / "logs"
    for number, topic in enumerate(("plain-0", "plain-1", "a=b%c:d e-3")):
        batches = [log_batches.batch(i * 10, [NOW + i * DAY // 5] * 10, value=b"v%d" % i) for i in range(20 + number)]
        log_batches.write_segment(root / topic, 0, batches)
    return root


def rows_of(root: Path) -> list[tuple[Any, ...]]:
    return sorted(
        (log.topic, log.partition, int(record["offset"]), table.value(i), int(record["timestamp"]) * 1000)
        for log in kbatch.find_logs(root)
        for table in log.tables()
        for i, record in enumerate(table.records)
    )


COLUMNS = ["topic", "partition", "offset", "value", "timestamp"]


def rows_in(table: Any) -> list[tuple[Any, ...]]:
    table = table.select(COLUMNS)
    columns = [table.column(name) for name in COLUMNS[:-1]]
    stamps = table.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return sorted(zip(*(column.to_pylist() for column in [*columns, stamps]), strict=True))


# -- written files


def test_files_hold_the_rows_of_the_logs(spark: Any, logs: Path, tmp_path: Path) -> None:
    """Rows, days, order and names of files, and the types of columns, as Spark reads them."""
    out = tmp_path / "out"
    summary = kbatch.export(logs, out, engine="spark", by_day=True)
    assert summary.records == len(rows_of(logs))
    assert sorted(os.listdir(out)) == ["_manifest.json", "topic=a%3Db%25c%3Ad e", "topic=plain"]
    frame = spark.read.parquet(str(out))
    assert rows_in(frame.toArrow()) == rows_of(logs)
    assert frame.filter("date != to_date(timestamp)").count() == 0
    types = dict(frame.drop("topic", "partition", "date").dtypes)
    kafka = dict(
        spark.read.format("kbatch").option("includeHeaders", "true").load(str(logs)).drop("topic", "partition").dtypes
    )
    assert types == kafka
    for name in summary.files:
        offsets = pq.ParquetFile(out / name).read(["offset"])["offset"].to_pylist()
        assert offsets == sorted(offsets)
        assert int(name.rpartition("part-")[2][:20]) == offsets[0]
    stamp = pq.ParquetFile(out / summary.files[0]).schema_arrow.field("timestamp").type
    assert stamp == pa.timestamp("us", "UTC")
    assert sorted(os.listdir(tmp_path)) == ["logs", "out"]


def test_sparks_own_writer_writes_the_same_rows(spark: Any, logs: Path, tmp_path: Path) -> None:
    frame = spark.read.format("kbatch").load(str(logs))
    frame.write.partitionBy("topic", "partition").parquet(str(tmp_path / "out"))
    assert rows_in(spark.read.parquet(str(tmp_path / "out")).toArrow()) == rows_of(logs)


def test_losses_and_withheld_transactions_are_written_as_tables(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = tmp_path / "logs", tmp_path / "out"
    bad = damaged(data(2))
    log_batches.write_segment(root / "t-0", 0, [data(0), data(1), bad, data(3)])
    log_batches.write_segment(root / "t-1", 0, [data(0), txn(1, 9), data(2)])
    arguments = ["export", str(root), str(out), "--isolation", "read_committed"]
    assert main([*arguments, "--on-error", "skip", "--json"]) == 3
    summary = json.loads(capsys.readouterr().out)
    assert pq.read_table(out / "_losses").to_pylist() == summary["losses"]
    assert (summary["lost_bytes"], summary["records"], summary["withheld_transactions"]) == (len(bad), 4, 1)
    assert pq.read_table(out / "_transactions").column("producer_id").to_pylist() == [9]


def test_damage_stops_the_export_and_leaves_no_output(spark: Any, tmp_path: Path) -> None:
    path = log_batches.write_segment(tmp_path / "logs" / "t-0", 0, [data(0), data(1), damaged(data(2))])
    with pytest.raises(kbatch.CrcMismatchError, match=rf"{path.name}, byte {2 * len(data(0))}"):
        kbatch.export(tmp_path / "logs", tmp_path / "out", engine="spark")
    assert os.listdir(tmp_path) == ["logs"]


# -- Delta


@pytest.mark.parametrize("by_day", [False, True])
def test_a_delta_table_is_created_and_appended_to(spark: Any, logs: Path, tmp_path: Path, by_day: bool) -> None:
    deltalake = pytest.importorskip("deltalake")
    out = tmp_path / "table"
    writing: Any = {"format": "delta", "by_day": by_day}
    first = kbatch.export(logs, out, engine="spark", **writing)
    table = deltalake.DeltaTable(str(out))
    assert table.metadata().partition_columns == ["topic", "partition", *(["date"] if by_day else [])]
    assert rows_in(delta_rows(table)) == rows_of(logs)
    # The second run has one new topic-partition.
    added = tmp_path / "added"
    log_batches.write_segment(added / "new-0", 0, [data(i) for i in range(5)])
    second = kbatch.export(added, out, engine="spark", **writing)
    table = deltalake.DeltaTable(str(out))
    assert table.version() == 1
    assert rows_in(delta_rows(table)) == sorted([*rows_of(logs), *rows_of(added)])
    assert second.records == 5
    assert not set(first.files) & set(second.files)
    # One transaction adds all files of a run, with statistics that readers use for pruning.
    actions = pa.table(table.get_add_actions(flatten=True))
    assert sum(actions["num_records"].to_pylist()) == table_rows(table) > 0
    assert min(actions["min.offset"].to_pylist()) == 0
    assert len(delta_rows(table, filters=[("topic", "=", "a=b%c:d e")])) == 220
    names = sorted(name for name in os.listdir(out) if name.startswith("_"))
    assert [name[:8] for name in names] == ["_delta_l", "_export-", "_export-"]
    assert {name.split("/")[0] for name in second.files} == {f"run-{second.run}"}
    assert json.loads((out / second.manifest).read_text())["files"] == second.files
    assert second.manifest in [f"{name}/_manifest.json" for name in names]


def delta_rows(table: Any, filters: Any = None) -> Any:
    return table.to_pyarrow_table(filters=filters)


def table_rows(table: Any) -> int:
    return len(delta_rows(table))


def test_polars_reads_a_delta_table(spark: Any, logs: Path, tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    polars = pytest.importorskip("polars")
    out = tmp_path / "table"
    kbatch.export(logs, out, engine="spark", format="delta", by_day=True)
    frame = polars.scan_delta(str(out)).collect().to_arrow()
    assert rows_in(frame) == rows_of(logs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_tables_accept_records_without_a_timestamp(spark: Any, tmp_path: Path, catalog: Any) -> None:
    """Records without a timestamp have a null day; a day that the format cannot represent is an error."""
    deltalake = pytest.importorskip("deltalake")
    times = [NOW, -1, NOW + 2 * DAY]
    root = tmp_path / "logs"
    log_batches.write_segment(root / "t-0", 0, [log_batches.batch(i, [time]) for i, time in enumerate(times)])
    kbatch.export(root, tmp_path / "delta", engine="spark", format="delta", by_day=True)
    rows = delta_rows(deltalake.DeltaTable(str(tmp_path / "delta"))).sort_by("offset").to_pylist()
    assert [str(row["date"]) for row in rows] == ["2023-11-14", "None", "2023-11-16"]
    assert [row["timestamp"] is None for row in rows] == [False, True, False]
    kbatch.export(root, tmp_path / "ice", engine="spark", format="iceberg", by_day=True, table="db.t", catalog="kb")
    table = catalog.load_table("db.t")
    assert sorted(table.scan().to_arrow()["offset"].to_pylist()) == [0, 1, 2]
    assert table.scan(row_filter="timestamp is null").to_arrow()["offset"].to_pylist() == [1]
    log_batches.write_segment(root / "t-1", 0, [log_batches.batch(0, [253_402_300_800_000])])
    with pytest.raises(kbatch.KbatchError, match=r"t-1, offset 0: a timestamp of the day \+10000-01-01"):
        kbatch.export(root, tmp_path / "far", engine="spark", format="delta", by_day=True)
    assert not (tmp_path / "far").exists()


def test_a_delta_table_with_another_layout_is_refused(spark: Any, logs: Path, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    out = tmp_path / "table"
    kbatch.export(logs, out, engine="spark", format="delta")
    with pytest.raises(kbatch.KbatchError, match="partitioned by topic, partition, not by topic, partition, date"):
        kbatch.export(logs, out, engine="spark", format="delta", by_day=True)
    with pytest.raises(kbatch.KbatchError, match=r"other columns: value \(binary, not string\)"):
        kbatch.export(logs, out, engine="spark", format="delta", values="string")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "mine").touch()
    with pytest.raises(
        kbatch.KbatchError, match="plain: exists already, and is not a Delta table; choose another path, or remove it"
    ):
        kbatch.export(logs, tmp_path / "plain", engine="spark", format="delta")
    assert deltalake.DeltaTable(str(out)).version() == 0


def test_a_failure_leaves_a_table_unchanged(spark: Any, logs: Path, tmp_path: Path) -> None:
    """After damage or an error of the library, the table has no new file and no new version."""
    deltalake = pytest.importorskip("deltalake")
    out = tmp_path / "table"
    broken = tmp_path / "broken"
    log_batches.write_segment(broken / "t-0", 0, [data(0), damaged(data(1))])
    writing: Any = {"format": "delta"}
    with pytest.raises(kbatch.CrcMismatchError):
        kbatch.export(broken, out, engine="spark", **writing)
    assert not out.exists()
    kbatch.export(logs, out, engine="spark", **writing, topics=("plain",))
    before = sorted(str(path) for path in out.rglob("*"))
    with pytest.raises(kbatch.CrcMismatchError):
        kbatch.export(broken, out, engine="spark", **writing)
    assert sorted(str(path) for path in out.rglob("*")) == before
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deltalake.DeltaTable, "create_write_transaction", refuse)
        with pytest.raises(kbatch.KbatchError, match="the Delta table did not accept the files: RuntimeError: no"):
            kbatch.export(logs, out, engine="spark", **writing)
    assert sorted(str(path) for path in out.rglob("*")) == before
    assert deltalake.DeltaTable(str(out)).version() == 0


def failing_after(function: Any, calls: int) -> Any:
    left = [calls]

    def call(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        return function(*arguments, **options) if left[0] >= 0 else refuse()

    return call


def refuse(*arguments: Any, **options: Any) -> Any:
    raise RuntimeError("no")


# -- Iceberg


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A SQLite catalog in pyiceberg's configuration."""
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog import load_catalog

    (tmp_path / "catalog").mkdir()
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog/c.db", "warehouse": f"file://{tmp_path}/catalog"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__KB__{name.upper()}", value)
    import pyiceberg.catalog

    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", type(pyiceberg.catalog._ENV_CONFIG)())
    made = load_catalog("kb")
    yield made
    made.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("by_day", [False, True])
def test_an_iceberg_table_is_created_and_appended_to(
    spark: Any, logs: Path, tmp_path: Path, catalog: Any, by_day: bool
) -> None:
    out = tmp_path / "files"
    writing: Any = {"format": "iceberg", "by_day": by_day}
    name = {"table": "db.kafka", "catalog": "kb"}
    kbatch.export(logs, out, engine="spark", **writing, **name)
    table = catalog.load_table("db.kafka")
    fields = [str(field.transform) for field in table.spec().fields]
    assert fields == ["identity", "identity", *(["day"] if by_day else [])]
    assert rows_in(table.scan().to_arrow()) == rows_of(logs)
    added = tmp_path / "added"
    log_batches.write_segment(added / "new-0", 0, [data(i) for i in range(5)])
    second = kbatch.export(added, out, engine="spark", **writing, **name)
    table = catalog.load_table("db.kafka")
    assert rows_in(table.scan().to_arrow()) == sorted([*rows_of(logs), *rows_of(added)])
    assert second.records == 5
    assert len(table.snapshots()) == 2
    tasks = list(table.scan(row_filter="topic = 'a=b%c:d e'").plan_files())
    assert 0 < len(tasks) < len(list(table.scan().plan_files()))
    assert table.scan(row_filter="topic = 'a=b%c:d e'").to_arrow().num_rows == 220


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_an_iceberg_error_leaves_the_table_unchanged(spark: Any, logs: Path, tmp_path: Path, catalog: Any) -> None:
    from pyiceberg.table import CreateTableTransaction, Transaction

    out = tmp_path / "files"
    writing: Any = {"format": "iceberg"}
    for given, message in (
        ({}, "needs the table's name"),
        ({"table": "kafka"}, "must have a namespace"),
        ({"table": "db.kafka", "catalog": "nowhere"}, "catalog 'nowhere' cannot be opened"),
    ):
        with pytest.raises((kbatch.KbatchError, ValueError), match=message):
            kbatch.export(logs, out, engine="spark", **writing, **given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CreateTableTransaction, "commit_transaction", refuse)
        with pytest.raises(kbatch.KbatchError, match=r"table db\.kafka did not accept the files: RuntimeError: no"):
            kbatch.export(logs, out, engine="spark", **writing, table="db.kafka", catalog="kb")
    assert not out.exists()
    assert not catalog.table_exists("db.kafka")
    first: Any = {"topics": ("plain",)}
    kbatch.export(logs, out, engine="spark", **writing, **first, table="db.kafka", catalog="kb")
    before = sorted(str(path) for path in out.rglob("*.parquet"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transaction, "commit_transaction", refuse)
        with pytest.raises(kbatch.KbatchError, match=r"table db\.kafka did not accept the files: RuntimeError: no"):
            kbatch.export(logs, out, engine="spark", **writing, table="db.kafka", catalog="kb")
    assert sorted(str(path) for path in out.rglob("*.parquet")) == before
    assert not [name for name in os.listdir(out) if name.startswith("_temporary")]
    # If the catalog becomes unreachable, the files are kept, because the table may refer to them.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transaction, "commit_transaction", refuse)
        patch.setattr(type(catalog), "load_table", failing_after(type(catalog).load_table, 3))
        with pytest.raises(kbatch.KbatchError, match=r"may have accepted the files, which are kept"):
            kbatch.export(logs, out, engine="spark", **writing, table="db.kafka", catalog="kb")
    kept = {str(path) for path in out.rglob("*.parquet")} - set(before)
    assert len(kept) == 1
    with pytest.raises(kbatch.KbatchError, match="partitioned without days"):
        kbatch.export(logs, out, engine="spark", format="iceberg", by_day=True, table="db.kafka", catalog="kb")
    with pytest.raises(ValueError, match="are valid with format iceberg only"):
        kbatch.export(logs, tmp_path / "x", engine="spark", table="db.kafka")


def test_a_missing_library_names_its_extra(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    for kind in ("delta", "iceberg"):
        assert main(["export", str(logs), str(tmp_path / "out"), "--format", kind, *TABLE[kind]]) == 1
        assert f"install the extra '{kind}': " in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["logs"]


TABLE = {"delta": [], "iceberg": ["--table", "db.t"]}


# -- transactions and the exit status


def test_withheld_transactions_are_written_as_a_table(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """LSO-R1: the table has open and undecided transactions, but no aborted or committed ones."""
    root = tmp_path / "logs"
    log_batches.write_segment(root / "t-0", 0, [txn(0, 7), marker(1, 7, COMMIT), data(2)])
    log_batches.write_segment(root / "t-1", 0, [txn(0, 7), marker(1, 7, ABORT), txn(2, 8), txn(3, 9), data(4)])
    log_batches.write_segment(root / "t-2", 0, [txn(0, 5), damaged(marker(1, 5, COMMIT)), data(2)])
    out = tmp_path / "out"
    arguments = ["export", str(root), str(out), "--isolation", "read_committed", "--on-error", "skip"]
    # A marker is lost, so the status is 3 instead of 4.
    assert main(arguments) == 3
    text = capsys.readouterr().out
    assert f"  undecided  3 transactions: {out}/_transactions" in text.splitlines()
    side = pq.read_table(out / "_transactions")
    rows = [
        tuple(row[name] for name in ("partition", "producer_id", "first_offset", "state")) for row in side.to_pylist()
    ]
    assert rows == [(1, 8, 2, "open"), (1, 9, 3, "open"), (2, 5, 0, "undecided")]
    frame = spark.read.parquet(str(out / "_transactions"))
    source = spark.read.format("kbatch").option("table", "transactions").option("onError", "skip").load(str(root))
    assert frame.exceptAll(source).count() == 0
    assert source.exceptAll(frame).select("state").distinct().collect()[0].state == "aborted"
    assert spark.read.parquet(str(out)).count() == json.loads((out / "_manifest.json").read_text())["records"] == 3
    # No record before these offsets is withheld.
    ends = json.dumps({"t": {"0": -1, "1": 2, "2": 0}})
    assert main([*arguments[:2], str(tmp_path / "before"), *arguments[3:5], "--ending-offsets", ends]) == 0
    assert not (tmp_path / "before" / "_transactions").exists()
    capsys.readouterr()
    assert main(["export", str(root / "t-1"), str(tmp_path / "one"), "--isolation", "read_committed"]) == 4


# -- the command line


def export_rows(capsys: pytest.CaptureFixture[str], spark: Any, root: Path, out: Path, *arguments: str) -> list[Any]:
    status = main(["export", str(root), str(out), *arguments])
    assert status == 0, capsys.readouterr().err
    frame = spark.read.parquet(str(out))
    return [tuple(row) for row in frame.select("topic", "partition", "offset").orderBy(*COLUMNS[:3]).collect()]


def test_export_flags_select_records(
    spark: Any, logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    all_rows = [row[:3] for row in rows_of(logs)]
    found = export_rows(capsys, spark, logs, tmp_path / "1", "--topic", "plain", "--partition", "1")
    assert found == [row for row in all_rows if row[:2] == ("plain", 1)]
    offsets = json.dumps({"plain": {"0": 30, "1": -2}})
    ends = json.dumps({"plain": {"0": 60, "1": 11}})
    given = ["--topic", "plain", "--starting-offsets", offsets, "--ending-offsets", ends]
    found = export_rows(capsys, spark, logs, tmp_path / "2", *given)
    assert found == [("plain", 0, i) for i in range(30, 60)] + [("plain", 1, i) for i in range(11)]
    # The timestamps of batch 5 are one day later than NOW, which is 22:00.
    given = ["--topic", "plain", "--times", "2023-11-15T22:00:00Z:2023-11-17", "--offsets", ":-110"]
    found = export_rows(capsys, spark, logs, tmp_path / "3", *given)
    assert found == [("plain", 0, i) for i in range(50, 90)] + [("plain", 1, i) for i in range(50, 100)]
    # Partition 0 ends earlier, which is not an error.
    found = export_rows(capsys, spark, logs, tmp_path / "4", "--times", "2023-11-18T21:59:59.999:", "--topic", "plain")
    assert found == [("plain", 1, i) for i in range(200, 210)]


def test_wrong_arguments_are_usage_errors(tmp_path: Path, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong arguments give exit status 2, and the message has the option's name on the command line."""
    for given, message in (
        (["--times", "yesterday:"], "argument --times: must be a range of times such as 2024-05-01:2024-05-02"),
        (["--times", ":2026-01-01", "--ending-offsets", "{}"], "--ending-offsets excludes --offsets and --times"),
        (["--partition", "x"], "argument --partition: must be numbers and ranges"),
        (
            ["--partition", "7-5"],
            "argument --partition: must be numbers and ranges such as 0,2,5-7; '7-5' is not a range",
        ),
        (["--split-size", "lots"], "argument --split-size: must be a number of bytes"),
        (["--split-size", "0"], "argument --split-size: must be at least 1, got 0"),
        (["--row-group-size", "-1"], "argument --row-group-size: must be at least 1, got -1"),
        (["--key-partitions", "3"], "--key-partitions requires --key"),
        (["--key", "k", "--key-partitions", "0"], "argument --key-partitions: must be at least 1, got 0"),
        (["--file-size", "0"], "argument --file-size: must be at least 1, got 0"),
        (["--row-group-rows", "0"], "argument --row-group-rows: must be at least 1, got 0"),
        (
            ["--compression", "zstd:99"],
            "argument --compression: must be none, gzip, snappy, lz4 or zstd, optionally with a",
        ),
        (["--starting-offsets", "[]"], "argument --starting-offsets: must be JSON"),
        (
            ["--ending-offsets", '{"t": {"0": -2}}'],
            "argument --ending-offsets: must not have offset -2 in a batch",
        ),
        (["--table", "a.b"], "--table and --catalog go with --format iceberg"),
        (["--format", "iceberg"], "--format iceberg needs --table"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["export", str(logs), str(tmp_path / "out"), *given])
        error = capsys.readouterr().err
        assert f"kbatch export: error: {message}" in error
    for option in ("--conf", "--storage-option"):
        with pytest.raises(SystemExit, match="2"):
            main(["export", str(logs), str(tmp_path / "out"), option, "spark.x"])
        assert f"argument {option}: must be NAME=VALUE, got 'spark.x'" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["logs"]


def test_file_options_on_the_command_line(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from random import Random

    root = tmp_path / "logs"
    noise = Random(1)
    batches = [log_batches.batch(i, [NOW + i], value=noise.randbytes(1000)) for i in range(2000)]
    log_batches.write_segment(root / "t-0", 0, batches)
    out = tmp_path / "out"
    given = ["--file-size", "512k", "--row-group-size", "100k", "--compression", "snappy", "--dictionary", "none"]
    assert main(["export", str(root), str(out), *given, "--by-day", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert len(summary["files"]) == 4
    group = pq.read_metadata(out / summary["files"][0]).row_group(0)
    assert group.column(0).compression == "SNAPPY"
    assert 80_000 < group.total_byte_size < 120_000
    assert not any("DICTIONARY" in str(group.column(i).encodings) for i in range(5))
    with pytest.raises(ValueError, match="its settings cannot be changed"):
        kbatch.export(root, tmp_path / "2", engine="spark", conf={"spark.executor.memory": "1g"})
    assert main(["export", str(root), str(tmp_path / "3"), "--format", "arrow"]) == 0
    assert "of Arrow" in capsys.readouterr().out


# -- object stores


@pytest.fixture(scope="module")
def s3(s3_server: str) -> Iterator[Any]:
    """A bucket: its options, and a client."""
    boto3 = pytest.importorskip("boto3")
    options = {
        "endpoint_override": s3_server, "scheme": "http", "access_key": "a", "secret_key": "b", "region": "us-east-1",
    }  # fmt: skip
    client = boto3.client(
        "s3", endpoint_url=f"http://{s3_server}", aws_access_key_id="a", aws_secret_access_key="b",
        region_name="us-east-1",
    )  # fmt: skip
    client.create_bucket(Bucket="bucket")
    yield options, client
    client.close()


def keys(client: Any, prefix: str = "") -> list[str]:
    found = client.list_objects_v2(Bucket="bucket", Prefix=prefix).get("Contents", [])
    return [each["Key"] for each in found]


def test_an_export_writes_to_an_object_store(spark: Any, logs: Path, s3: Any) -> None:
    import pyarrow.dataset
    import pyarrow.fs

    options, client = s3
    writing: Any = {"storage_options": options, "by_day": True}
    summary = kbatch.export(logs, "s3://bucket/out", engine="spark", **writing)
    found = [key for key in keys(client, "out/") if not key.endswith("/")]
    assert sorted(found) == sorted(f"out/{name}" for name in [*summary.files, "_SUCCESS", "_manifest.json"])
    fs = pyarrow.fs.S3FileSystem(**options)
    data = pyarrow.dataset.dataset("bucket/out", filesystem=fs, format="parquet", partitioning="hive")
    assert data.to_table(columns=COLUMNS).num_rows == summary.records == len(rows_of(logs))
    assert kbatch.export(logs, "s3://bucket/out", engine="spark", **writing).action == "unchanged"
    assert sorted(key for key in keys(client, "out/") if not key.endswith("/")) == sorted(found)
    client.put_object(Bucket="bucket", Key="foreign/mine", Body=b"x")
    with pytest.raises(kbatch.LogDirectoryError, match="s3://bucket/foreign: exists already"):
        kbatch.export(logs, "s3://bucket/foreign", engine="spark", **writing)


def test_an_object_store_on_the_command_line(
    spark: Any, logs: Path, s3: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    options, client = s3
    given = [text for name, value in options.items() for text in ("--storage-option", f"{name}={value}")]
    assert main(["export", str(logs), "s3://bucket/cli/", "--topic", "plain", *given]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(" files: s3://bucket/cli")
    assert {"cli/_SUCCESS", "cli/_manifest.json"} < set(keys(client, "cli/"))
    assert not [key for key in keys(client, "cli/") if "_temporary" in key]
    assert main(["export", str(logs), "s3://bucket/x", *given, "--storage-option", "colour=red"]) == 1
    assert "colour" in capsys.readouterr().err


def test_logs_and_output_may_be_in_one_bucket(
    spark: Any, tmp_path: Path, s3: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Logs and output are URLs of one store. Its options apply to both, and appear in no file or message."""
    import pyarrow.dataset
    import pyarrow.fs

    options, client = s3
    options = {**options, "secret_key": "very-secret"}
    golden = TXN_LOG
    for file in golden.iterdir():
        client.upload_file(str(file), "bucket", f"logs/txn-0/{file.name}")
    given = [text for name, value in options.items() for text in ("--storage-option", f"{name}={value}")]
    log = kbatch.Log(golden)
    stamps = [int(stamp) for table in log.tables(isolation="read_committed") for stamp in table.records["timestamp"]]
    since = sorted(stamps)[len(stamps) // 2]
    first = log.offset_for_timestamp(since)
    expected = [
        int(offset)
        for table in log.tables(isolation="read_committed", start_offset=first)
        for offset in table.records["offset"]
    ]
    flags = ["--isolation", "read_committed", "--times", f"{datetime.fromtimestamp(since / 1000, UTC).isoformat()}:"]
    status = main(["export", "s3://bucket/logs", "s3://bucket/copied", *flags, *given])
    assert status == (4 if log.transactions().pending else 0)
    shown = capsys.readouterr()
    manifest = client.get_object(Bucket="bucket", Key="copied/_manifest.json")["Body"].read().decode()
    assert json.loads(manifest)["records"] == len(expected)
    assert "very-secret" not in shown.out + shown.err + manifest
    fs = pyarrow.fs.S3FileSystem(**options)
    found = pyarrow.dataset.dataset("bucket/copied", filesystem=fs, format="parquet").to_table(columns=["offset"])
    assert sorted(found.column("offset").to_pylist()) == expected
    # From a bucket to a mounted file system.
    local = tmp_path / "local"
    assert main(["export", "s3://bucket/logs", str(local), *flags, *given]) == status
    assert pq.ParquetDataset(local).read(["offset"]).num_rows == len(expected)
    shown = capsys.readouterr()
    assert "very-secret" not in shown.out + shown.err + (local / "_manifest.json").read_text()


def test_a_failure_leaves_no_object_in_a_store(
    spark: Any, logs: Path, tmp_path: Path, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kbatch.sinks.directories import StoreTarget

    options, client = s3
    writing: Any = {"storage_options": options}
    broken = tmp_path / "broken"
    log_batches.write_segment(broken / "t-0", 0, [data(0), damaged(data(1))])
    with pytest.raises(kbatch.CrcMismatchError):
        kbatch.export(broken, "s3://bucket/bad", engine="spark", **writing)
    assert keys(client, "bad") == []
    # All files are in place before the last step of the driver.
    monkeypatch.setattr(StoreTarget, "commit", refuse)
    with pytest.raises(RuntimeError, match=r"^no$"):
        kbatch.export(logs, "s3://bucket/bad", engine="spark", **writing)
    assert keys(client, "bad") == []


def test_a_delta_table_in_an_object_store(spark: Any, logs: Path, s3: Any) -> None:
    deltalake = pytest.importorskip("deltalake")
    from kbatch.sinks.delta import delta_storage

    options, _ = s3
    writing: Any = {"format": "delta", "storage_options": options}
    for _ in range(2):
        kbatch.export(logs, "s3://bucket/delta", engine="spark", **writing)
    table = deltalake.DeltaTable("s3://bucket/delta", storage_options=delta_storage(options))
    assert (table.version(), len(table.file_uris())) == (0, 3)
    assert table_rows(table) == len(rows_of(logs))
