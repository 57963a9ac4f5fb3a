"""Offsets missing between two segments, in exports: a gap of unknown cause is a loss, and compaction is not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import log_batches
import pytest
from log_batches import NOW

import kbatch
from kbatch.plan.read_options import Bound, ReadOptions

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

import iceberg_catalog  # noqa: E402
from local_export import export, log_offsets  # noqa: E402

from kbatch.cli.export_summary import summary_lines  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


def add(root: Path, first: int, count: int = 20) -> Path:
    batches = [log_batches.batch(base, [NOW, NOW]) for base in range(first, first + count, 2)]
    return log_batches.write_segment(root / "t-0", first, batches)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log without the offsets 20 to 39."""
    for first in (0, 40):
        add(tmp_path / "logs", first)
    log_batches.write_segment(tmp_path / "logs" / "t-1", 0, [log_batches.batch(0, [NOW])])
    return tmp_path / "logs"


@pytest.mark.parametrize("kind", ["parquet", "arrow", "delta", "iceberg"])
def test_a_gap_of_unknown_cause_is_a_loss_with_exit_status_3(
    root: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: dict[str, Any] = {}
    if kind == "delta":
        pytest.importorskip("deltalake")
    if kind == "iceberg":
        iceberg_catalog.use(tmp_path, monkeypatch)
        where = {"table": iceberg_catalog.TABLE, "catalog": iceberg_catalog.NAME}
    summary = export(root, tmp_path / "out", format=kind, **where)
    assert (summary.exit_status, summary.damaged, summary.records) == (3, True, 41)
    assert (summary.loss_count, summary.lost_bytes, summary.gap_count, summary.gap_offsets) == (1, 0, 1, 20)
    before, after = (str(root / "t-0" / f"{first:020d}.log") for first in (0, 40))
    assert summary.gaps == [
        {"topic": "t", "partition": 0, "first_offset": 20, "last_offset": 39, "before": before, "after": after}
    ]
    part = summary.partitions[0]
    assert (part.gap_offsets, part.removed_offsets, part.lost_bytes, part.next_offset) == (20, 0, 0, 60)
    assert summary.losses_table is not None
    (path,) = (tmp_path / "out" / summary.losses_table).iterdir()
    (row,) = pq.ParquetFile(path).read().to_pylist()
    assert row == summary.losses[0]
    assert (row["file"], row["length"], row["base_offset"]) == (before, 0, 20)
    text = "\n".join(summary_lines(summary))
    assert "lost       20 offsets in 1 gap of unknown cause between segments" in text
    assert "offsets 20 to 39 are missing between the segments" in text
    assert "compacted" not in text
    # Nothing is new, and the gap is not reported again.
    again = export(root, tmp_path / "out", format=kind, **where)
    assert (again.action, again.gaps, again.loss_count) == ("unchanged", [], 0)


@pytest.mark.parametrize("kind", ["checkpoint", "gap within a segment"])
def test_offsets_that_compaction_has_removed_are_counted_as_such(root: Path, tmp_path: Path, kind: str) -> None:
    removed = 20
    if kind == "checkpoint":
        (root / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 40\n")
    else:
        log_batches.write_segment(root / "t-0", 60, [log_batches.batch(62, [NOW])])
        removed += 2
    summary = export(root, tmp_path / "out")
    assert (summary.exit_status, summary.gaps, summary.losses) == (0, [], [])
    assert (summary.partitions[0].removed_offsets, summary.partitions[0].gap_offsets) == (removed, 0)
    assert f"compacted  {removed} offsets without a record, which compaction has removed" in "\n".join(
        summary_lines(summary)
    )


@pytest.mark.parametrize("split_bytes", [1, 100, 500, 1 << 20])
def test_the_tasks_do_not_change_what_is_missing(root: Path, tmp_path: Path, split_bytes: int) -> None:
    """The batches around a gap are in one task, or in two."""
    add(root, 90)
    (root / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 30\n")
    summary = export(root, tmp_path / "out", ReadOptions(split_bytes=split_bytes))
    assert [(gap["first_offset"], gap["last_offset"]) for gap in summary.gaps] == [(30, 39), (60, 89)]
    part = summary.partitions[0]
    assert (part.removed_offsets, part.gap_offsets, part.next_offset) == (10, 40, 110)


def test_a_gap_that_appears_between_two_runs_is_reported_by_the_second(root: Path, tmp_path: Path) -> None:
    """The first run has read the segment before the gap as the last one of the log."""
    (root / "t-0" / f"{40:020d}.log").rename(tmp_path / "later")
    assert export(root, tmp_path / "out").exit_status == 0
    (tmp_path / "later").rename(root / "t-0" / f"{40:020d}.log")
    summary = export(root, tmp_path / "out")
    assert (summary.exit_status, summary.records, summary.partitions[0].gap_offsets) == (3, 20, 20)
    assert summary.partitions[0].continued_from == 20
    assert export(root, tmp_path / "out").exit_status == 0


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_gap_before_an_empty_last_segment_is_passed_once(tmp_path: Path, is_compacted: bool) -> None:
    root = tmp_path / "logs"
    add(root, 0)
    log_batches.write_segment(root / "t-0", 40, [])
    if is_compacted:
        (root / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 40\n")
    first = export(root, tmp_path / "out")
    assert (first.exit_status, first.partitions[0].next_offset) == (0 if is_compacted else 3, 40)
    assert export(root, tmp_path / "out").action == "unchanged"
    add(root, 40)
    second = export(root, tmp_path / "out")
    assert (second.exit_status, second.records, second.partitions[0].continued_from) == (0, 20, 40)


def test_a_run_of_only_a_gap_keeps_the_leader_epoch_of_its_position(tmp_path: Path) -> None:
    root = tmp_path / "logs"
    add(root, 0)
    export(root, tmp_path / "out")
    log_batches.write_segment(root / "t-0", 40, [])
    assert export(root, tmp_path / "out").action == "continued"
    (position,) = json.loads((tmp_path / "out" / "_manifest.json").read_text())["positions"]
    assert (position["next_offset"], position["leader_epoch"]) == (40, 0)


@pytest.mark.parametrize(
    ("ending", "expected"), [(20, (0, 0, 20)), (30, (3, 10, 30)), (40, (3, 20, 40)), (50, (3, 20, 50))]
)
def test_a_range_has_the_gaps_within_it(root: Path, tmp_path: Path, ending: int, expected: tuple[int, ...]) -> None:
    options = ReadOptions(ending=Bound(offsets={"t": {0: ending, 1: -1}}))
    summary = export(root, tmp_path / "out", options)
    part = summary.partitions[0]
    assert (summary.exit_status, part.gap_offsets, part.next_offset) == expected
    rest = export(root, tmp_path / "out")
    assert rest.partitions[0].gap_offsets == 20 - expected[1]


def test_raise_ends_the_export_without_output(root: Path, tmp_path: Path) -> None:
    raising = ReadOptions(on_gap="raise")
    for _ in range(2):
        with pytest.raises(kbatch.LogDirectoryError, match="t-0: offsets 20 to 39 are missing between the segments"):
            export(root, tmp_path / "out", raising)
        assert not (tmp_path / "out").exists()
    ending = Bound(offsets={"t": {0: 20, 1: -1}})
    assert export(root, tmp_path / "out", dataclasses.replace(raising, ending=ending)).records == 21
    with pytest.raises(kbatch.LogDirectoryError, match="t-0: offsets 20 to 39 are missing between the segments"):
        export(root, tmp_path / "out", raising)
    assert export(root, tmp_path / "out").records == 20
    assert log_offsets(root)["t-0"] == [*range(20), *range(40, 60)]


def test_more_gaps_than_the_summary_lists_are_counted(tmp_path: Path) -> None:
    for first in range(0, 4 * 130, 4):
        add(tmp_path / "logs", first, 2)
    summary = export(tmp_path / "logs", tmp_path / "out")
    assert (len(summary.gaps), summary.gap_count, summary.gap_offsets) == (100, 129, 258)
    assert (len(summary.losses), summary.loss_count) == (100, 129)
