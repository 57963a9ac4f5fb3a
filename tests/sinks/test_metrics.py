"""The file of metrics: what it has after a run, after a failed run, and that it is replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("prometheus_client")
from log_batches import batch, write_segment
from prometheus_client.parser import text_string_to_metric_families

import kbatch
from kbatch.cli import main


def metrics(path: Path) -> dict[tuple[str, str | None], float]:
    """Return the values by name and topic, as Prometheus parses them."""
    return {
        (sample.name.removeprefix("kbatch_export_"), sample.labels.get("topic")): sample.value
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }


def damaged_logs(root: Path) -> Path:
    """Two topics of two and one partitions; a batch of topic b is damaged."""
    for name, count in (("a-0", 30), ("a-1", 20), ("b-0", 10)):
        batches = [bytearray(batch(offset, [offset])) for offset in range(count)]
        if name == "b-0":
            batches[3][-1] ^= 1
        write_segment(root / name, 0, map(bytes, batches))
    return root


def test_metrics_have_the_sums_of_each_topic_and_the_result_of_the_run(tmp_path: Path) -> None:
    logs, file = damaged_logs(tmp_path / "logs"), tmp_path / "kbatch.prom"
    summary = kbatch.export(logs, tmp_path / "out", engine="local", on_error="skip", metrics=file)
    found = metrics(file)
    assert (found["records", "a"], found["records", "b"]) == (50, 9)
    assert (found["lost_bytes", "a"], found["lost_bytes", "b"]) == (0, summary.lost_bytes)
    assert found["log_bytes", "a"] + found["log_bytes", "b"] == summary.log_bytes
    assert found["file_bytes", "a"] + found["file_bytes", "b"] == summary.file_bytes
    assert (found["success", None], found["exit_status", None], found["seconds", None]) == (1, 3, summary.seconds)
    assert found["lag_offsets", "a"] == found["lag_offsets", "b"] == 0
    assert found["end_time_seconds", None] == pytest.approx(os.path.getmtime(file), abs=2)


def test_the_lag_is_what_the_bounds_leave_for_later(tmp_path: Path) -> None:
    logs, file = damaged_logs(tmp_path / "logs"), tmp_path / "kbatch.prom"
    kbatch.export(logs, tmp_path / "out", engine="local", topics="a", end=15, metrics=file)
    assert metrics(file)["lag_offsets", "a"] == 15 + 5


def test_a_failed_run_replaces_the_metrics_of_the_last_one(tmp_path: Path) -> None:
    logs, file = damaged_logs(tmp_path / "logs"), tmp_path / "kbatch.prom"
    arguments = ["export", str(logs), str(tmp_path / "out"), "--engine", "local", "--metrics", str(file)]
    assert main([*arguments, "--topic", "a"]) == 0
    assert metrics(file)["success", None] == 1
    assert main(arguments) == 1
    found = metrics(file)
    assert (found["success", None], found["exit_status", None]) == (0, 1)
    assert not [name for name, topic in found if topic is not None]
    assert sorted(os.listdir(tmp_path)) == ["kbatch.prom", "logs", "out"]


def test_a_file_that_cannot_be_written_is_an_error_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = damaged_logs(tmp_path / "logs")
    missing = tmp_path / "missing" / "kbatch.prom"
    assert main(["export", str(logs), str(tmp_path / "out"), "--metrics", str(missing)]) == 1
    assert "no directory" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["logs"]
