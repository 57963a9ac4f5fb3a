"""The engine of an export: which one runs, and how the local one ends."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402
from log_batches import batch, write_segment  # noqa: E402

import kbatch  # noqa: E402
from kbatch import exporting  # noqa: E402
from kbatch.cli import main  # noqa: E402
from kbatch.plan.read_options import ReadOptions  # noqa: E402
from kbatch.plan.split import Task  # noqa: E402
from kbatch.sinks import local_engine  # noqa: E402
from kbatch.sinks.local_engine import LocalExecutor  # noqa: E402
from kbatch.sinks.write_options import WriteOptions  # noqa: E402


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Three logs of four segments."""
    for partition in range(3):
        for first in range(0, 400, 100):
            write_segment(
                tmp_path / "logs" / f"t-{partition}", first, [batch(first + i, [first + i]) for i in range(100)]
            )
    return tmp_path / "logs"


def rows(out: Path) -> list[tuple[str, Any]]:
    """Return the rows of all data files of an output, in the order of partitions and offsets."""
    found = [
        (str(path.parent.relative_to(out)), row)
        for path in out.rglob("part-*.parquet")
        for row in pq.ParquetFile(path).read().to_pylist()
    ]
    return sorted(found, key=lambda each: (each[0], each[1]["offset"]))


def test_without_a_session_and_a_master_the_local_engine_runs_and_the_summary_names_why(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "_has_session", lambda: False)
    summary = kbatch.export(logs, tmp_path / "out")
    assert (summary.engine, summary.records) == ("local", 1200)
    assert summary.engine_reason == "no master, no active session, and few bytes"
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert manifest["engine"] == "local"


def test_the_command_line_refuses_what_is_for_the_other_engine_with_the_names_of_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, message in (
        (
            ["--engine", "local", "--conf", "a=b", "--master", "x"],
            "--master and --conf: for Spark, which --engine local",
        ),
        (["--engine", "spark", "--threads", "2"], "--threads: for the local engine; with Spark --master decides"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["export", str(tmp_path), str(tmp_path / "out"), *flags])
        assert f"kbatch export: error: {message}" in capsys.readouterr().err


@pytest.mark.parametrize("size", [0, exporting.SPARK_BYTES - 1, exporting.SPARK_BYTES])
def test_auto_takes_spark_from_the_limit_on_if_pyspark_is_installed(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_has_session", lambda: False)
    choose = exporting.engine_choice("auto")
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    assert choose(size).name == "local"
    if size >= exporting.SPARK_BYTES:
        assert choose(size).reason == "PySpark is not installed"
        pytest.importorskip("kbatch.spark", exc_type=ImportError)
        monkeypatch.setattr(exporting, "find_spec", lambda name: object())
        assert choose(size).name == "spark"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"engine": "local", "master": "local[2]"},
            "master: for Spark, which engine local excludes; use engine spark or auto",
        ),
        ({"engine": "local", "master": "x", "conf": {"a": "b"}}, "master and conf: for Spark"),
        ({"engine": "spark", "threads": 2}, "threads: for the local engine"),
        ({"master": "local[2]", "threads": 2}, "threads: for the local engine"),
        ({"threads": 0}, "threads must be 1 or more, got 0"),
        ({"engine": "dask"}, "engine must be"),
        ({"start_offset": 1, "start": 2}, "start and start_offset exclude each other"),
    ],
)
def test_arguments_of_the_other_engine_are_refused_before_anything_is_read(
    arguments: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        kbatch.export(tmp_path / "missing", tmp_path / "out", **arguments)


def test_an_unknown_option_is_refused_with_a_suggestion(logs: Path, tmp_path: Path) -> None:
    unknown: Any = {"compresion": "zstd"}
    with pytest.raises(TypeError, match="unexpected keyword argument 'compresion'; did you mean 'compression'"):
        kbatch.export(logs, tmp_path / "out", **unknown)
    options: Any = {"options": kbatch.Limits()}
    with pytest.raises(TypeError, match="unexpected keyword argument 'options'; their fields are arguments here"):
        kbatch.export(logs, tmp_path / "out", **options)


def test_bounds_have_the_names_of_the_selection(logs: Path, tmp_path: Path) -> None:
    summary = kbatch.export(logs, tmp_path / "out", engine="local", start_offset=100, stop_offset=-100, partitions=[1])
    assert (summary.records, summary.partitions[0].first_offset) == (200, 100)
    summary = kbatch.export(logs, tmp_path / "times", engine="local", start_timestamp=250, topics="t")
    assert summary.records == 450
    summary = kbatch.export(logs, tmp_path / "last", engine="local", start={0: 390, 1: "latest"}, end=395)
    assert {part.partition: part.records for part in summary.partitions} == {0: 5, 1: 0, 2: 395}


def test_values_have_the_names_of_other_reads(tmp_path: Path) -> None:
    kbatch.log.write_log(tmp_path / "logs", pa.table({"value": [b'{"id": 7}', b"no"]}), topic="t", num_partitions=1)
    arguments: Any = {"values": "json", "value_schema": {"id": "bigint"}}
    summary = kbatch.export(tmp_path / "logs", tmp_path / "out", engine="local", max_bad="1", **arguments)
    assert (summary.records, summary.bad_values) == (2, 1)
    assert [row["value"] for _, row in rows(tmp_path / "out")] == [{"id": 7}, None]


def test_the_arguments_are_all_options_of_reading_and_writing_that_mean_something_for_files() -> None:
    """A new field of `ReadOptions` or `WriteOptions` is an argument of `export`, or in this list."""
    other = {"starting", "ending", "storage", "table", "prune", "min_partitions"}
    other |= {"max_records_per_partition", "policies"}
    names = {each.name for kind in (ReadOptions, WriteOptions) for each in dataclasses.fields(kind)}
    assert names - other == exporting.ExportOptions.__annotations__.keys() & names


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_rows_and_progress_do_not_depend_on_the_number_of_threads(threads: int, logs: Path, tmp_path: Path) -> None:
    shown: list[tuple[int, int, int]] = []
    summary = kbatch.export(
        logs, tmp_path / "out", engine="local", threads=threads, split_bytes=1000,
        progress=lambda *counts: shown.append(counts),
    )  # fmt: skip
    assert summary.records == 1200
    assert len(rows(tmp_path / "out")) == 1200
    size = sum(log.size for log in kbatch.find_logs(logs))
    assert shown[-1] == (size, size, 1200)
    assert shown == sorted(shown)


def test_an_error_of_a_task_stops_the_others_and_leaves_nothing(logs: Path, tmp_path: Path) -> None:
    broken = next((logs / "t-1").glob("*0100.log"))
    data = bytearray(broken.read_bytes())
    data[-1] ^= 1
    broken.write_bytes(data)
    before = threading.active_count()
    with pytest.raises(kbatch.CrcMismatchError, match="t-1"):
        kbatch.export(logs, tmp_path / "out", engine="local", threads=2, split_bytes=1000)
    assert not (tmp_path / "out").exists()
    assert threading.active_count() == before


def test_after_an_error_no_other_task_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_engine, "POLL_SECONDS", 0.01)
    started: list[int] = []

    class Job:
        def run(self, number: int, task: Any, count: Any) -> list[Any]:
            started.append(number)
            if number == 1:
                raise kbatch.KbatchError("broken")
            while number == 0:
                count(local_engine.Counts(records=1))
            return []

        def stop(self) -> None:
            pass

    job: Any = Job()
    with pytest.raises(kbatch.KbatchError, match="broken"):
        list(LocalExecutor(2).run(job, [Task() for _ in range(100)], None))
    assert started == [0, 1]
