"""The memory of the driver of an export, for each log."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from log_batches import NOW, batch, write_segment

pytest.importorskip("pyarrow")

from bench.driver import export_unread
from kbatch.sinks.counts import Counts
from kbatch.sinks.files import WrittenFile
from kbatch.sinks.outputs import OutputPlace
from kbatch.sinks.summary import sum_reports
from kbatch.sinks.task import TaskReport, reports_of

# Bytes of Python memory for each log, at most: when the tasks have run and the driver begins to read their reports,
# before the commit, and at the peak. 650, 1,110 and 1,650 are measured.
MAX_REPORTED = 800
MAX_HELD = 1300
MAX_PEAK = 2200


def memory_of(tmp_path: Path, count: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """Export a number of logs; return the memory that is held at the reports and before the commit, and the peak."""
    for number in range(count):
        write_segment(tmp_path / f"logs{count}" / f"t-{number}", 0, [batch(0, [NOW])])
    held: list[int] = []

    def measure() -> None:
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])

    def measured(*arguments: Any) -> Any:
        measure()
        return sum_reports(*arguments)

    monkeypatch.setattr("kbatch.sinks.export_run.sum_reports", measured)
    tracemalloc.start()
    try:
        out = tmp_path / f"out{count}"
        summary = export_unread(tmp_path / f"logs{count}", out, kind, before_commit=measure)  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert summary.records == count
    return held[0], held[1], peak


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_the_memory_for_a_log_is_bounded_until_the_commit_and_in_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "delta":
        pytest.importorskip("deltalake")
    memory_of(tmp_path, 10, kind, monkeypatch)
    few, many = (memory_of(tmp_path, count, kind, monkeypatch) for count in (100, 400))
    reported, held, peak = ((after - before) / 300 for before, after in zip(few, many, strict=True))
    assert reported < MAX_REPORTED
    assert held < MAX_HELD
    assert peak < MAX_PEAK


def test_a_report_is_sent_without_defaults_and_is_equal_when_it_is_parsed() -> None:
    counts = Counts(records=1, codecs={"none": 1}, first_offset=0)
    files = [WrittenFile("name", 10, 1, 0, 0, 5, 5)]
    full = TaskReport(3, "t", 0, counts, files, [{"first_offset": 0}], [["key", 1]], end_offset=0)
    assert list(reports_of([full.to_json(), TaskReport(4, "", 0).to_json()])) == [full, TaskReport(4, "", 0)]
    assert json.loads(TaskReport(4, "", 0).to_json()) == {"task": 4, "topic": "", "partition": 0}


def test_a_manifest_in_parts_is_the_text_of_the_summary(tmp_path: Path) -> None:
    write_segment(tmp_path / "logs" / "t-0", 0, [batch(0, [NOW])])
    summary = export_unread(tmp_path / "logs", tmp_path / "out", "parquet")
    text = (tmp_path / "out" / "_manifest.json").read_text()
    found = json.loads(text)
    assert text == json.dumps(found, indent=1)
    expected = {name: value for name, value in summary.to_dict().items() if name != "unseen_reports"}
    timed = {"seconds", "records_per_second", "commit_seconds"}
    assert {name: found[name] for name in expected.keys() - timed} == {
        name: expected[name] for name in expected.keys() - timed
    }


def test_an_object_is_not_replaced_by_a_part_of_it(tmp_path: Path) -> None:
    """An object store replaces an object when its stream is closed, also after an error."""

    def fails() -> object:
        yield b"first"
        raise RuntimeError("no second part")

    place = OutputPlace(f"memory://{tmp_path.name}")
    place.write("manifest", b"before")
    with pytest.raises(RuntimeError, match="no second part"):
        place.write_parts("manifest", fails())  # type: ignore[arg-type]
    assert place.read("manifest") == b"before"
