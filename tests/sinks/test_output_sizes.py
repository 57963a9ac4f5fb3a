"""Sizes of the files and tasks of an export, and the counts of running tasks."""

from __future__ import annotations

import os
import random
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from log_batches import DAY, NOW, batch, write_segment

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from kbatch.log import Log  # noqa: E402
from kbatch.log.selection import open_selected  # noqa: E402
from kbatch.plan.planner import plan  # noqa: E402
from kbatch.plan.read_options import ReadOptions  # noqa: E402
from kbatch.plan.split import Split  # noqa: E402
from kbatch.sinks import counts, sizing  # noqa: E402
from kbatch.sinks.counts import Counts, TaskCounter, running_counts  # noqa: E402
from kbatch.sinks.file_names import FileNames  # noqa: E402
from kbatch.sinks.outputs import OutputPlace  # noqa: E402
from kbatch.sinks.task import ExportJob, reports_of  # noqa: E402
from kbatch.sinks.write_options import WriteOptions  # noqa: E402

TARGET = 400_000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three segments of 1.5 MB each; about two thirds of the values can be compressed."""
    root: Path = tmp_path_factory.mktemp("logs")
    noise = random.Random(3)
    for first in (0, 4000, 8000):
        rows = range(first, first + 4000)
        batches = [batch(i, [NOW + i], value=noise.randbytes(100) + bytes(200)) for i in rows]
        write_segment(root / "t-0", first, batches)
    return root


def run(
    root: Path, out: Path, splits: tuple[Split, ...] | None = None, *, counts: str | None = None, **writing: Any
) -> list[int]:
    """Run one task of an export without Spark; return the sizes of its files in the order of writing."""
    out.mkdir()
    if splits is None:
        (splits,) = plan(open_selected([str(root)]), ReadOptions())
    job = ExportJob(ReadOptions(), names(out), WriteOptions(**writing), counters=counts)
    (report,) = reports_of(job([(0, splits)]))
    assert report.counts.records == 12_000
    assert [file.file_bytes for file in report.files] == [(out / file.name).stat().st_size for file in report.files]
    ends = [(file.first_offset, file.last_offset) for file in report.files]
    assert all(last < first for (_, last), (first, _) in pairwise(ends))
    return [file.file_bytes for file in report.files]


def names(out: Path) -> FileNames:
    return FileNames(OutputPlace(str(out)), "0a1b2c3d")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
@pytest.mark.parametrize("group", [50_000, 300_000, 128 << 20])
def test_files_have_the_target_size(root: Path, tmp_path: Path, kind: str, compression: str, group: int) -> None:
    """All files but the last have the target size within 15 %, whatever the compression and the row groups."""
    sizes = run(root, tmp_path / "out", format=kind, compression=compression, file_bytes=TARGET, row_group_bytes=group)
    assert len(sizes) >= 3
    assert all(abs(size - TARGET) <= 0.15 * TARGET for size in sizes[:-1]), sizes
    # The last rows get no file of their own if they are few.
    assert sizes[-1] > 0.1 * TARGET


def test_file_sizes_do_not_depend_on_the_number_of_splits(root: Path, tmp_path: Path) -> None:
    """A task that reads its bytes as many splits writes files of the same sizes as for one split of each segment."""
    few = plan(open_selected([str(root)]), ReadOptions())
    many = plan(open_selected([str(root)]), ReadOptions(split_bytes=100_000))
    assert (len(few), sum(map(len, few))) == (1, 3)
    assert len(many) > 30
    joined = tuple(split for task in many for split in task)
    one, other = (
        run(root, tmp_path / name, splits, file_bytes=TARGET, compression="none")
        for name, splits in (("few", few[0]), ("many", joined))
    )
    assert len(one) == len(other)
    assert all(abs(size - TARGET) <= 0.15 * TARGET for size in one[:-1] + other[:-1])


def test_row_groups_have_their_size_until_the_file_is_full(root: Path, tmp_path: Path) -> None:
    run(root, tmp_path / "out", file_bytes=1_000_000, row_group_bytes=300_000, compression="none")
    for path in sorted(tmp_path.rglob("*.parquet"))[:-1]:
        metadata = pq.read_metadata(path)
        groups = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
        assert all(abs(size - 300_000) <= 45_000 for size in groups[:-1]), groups


def test_files_of_days_have_the_target_size(tmp_path: Path) -> None:
    """Each day has files of the target size, except for its last one, if rows of two days alternate."""
    noise = random.Random(4)
    stamps = [[NOW + (i + j) % 2 * DAY for j in range(10)] for i in range(0, 8000, 10)]
    write_segment(
        tmp_path / "logs" / "t-0",
        0,
        [batch(10 * i, times, value=noise.randbytes(300)) for i, times in enumerate(stamps)],
    )
    (splits,) = plan(open_selected([str(tmp_path / "logs")]), ReadOptions())
    (tmp_path / "out").mkdir()
    writing = WriteOptions(file_bytes=TARGET, by_day=True, row_group_bytes=100_000, compression="none")
    (report,) = reports_of(ExportJob(ReadOptions(), names(tmp_path / "out"), writing)([(0, splits)]))
    days: dict[str | None, list[int]] = {}
    for file in report.files:
        days.setdefault(file.date, []).append(file.file_bytes)
    assert len(days) == 2
    for sizes in days.values():
        assert len(sizes) >= 3
        assert all(abs(size - TARGET) <= 0.15 * TARGET for size in sizes[:-1]), sizes


# -- tasks


def test_a_sample_estimates_the_size_of_the_output(root: Path, tmp_path: Path) -> None:
    """The ratio of bytes written and read is estimated within 15 %, without reading everything."""
    logs = open_selected([str(root)])
    size = sum(log.size for log in logs)
    for compression in ("none", "zstd"):
        job = ExportJob(ReadOptions(), names(tmp_path), WriteOptions(compression=compression))
        written = sum(run(root, tmp_path / compression, compression=compression))
        ratio = sizing.output_ratio(sizing.log_samples(logs), job)
        assert ratio is not None
        assert abs(ratio * size - written) < 0.15 * written


def test_a_log_that_cannot_be_decoded_has_no_estimate(tmp_path: Path) -> None:
    """Planning does not fail for damage, which the tasks report or skip."""
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"\x05" * 5000)
    job = ExportJob(ReadOptions(), names(tmp_path), WriteOptions())
    assert sizing.output_ratio(sizing.log_samples([Log(tmp_path / "t-0")]), job) is None


@pytest.mark.parametrize(("ratio", "cores", "expected"), [(0.5, 2, 10), (0.25, 2, 6), (0.5, 4, 12), (1.0, 1, 20)])
def test_a_task_reads_the_bytes_of_one_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ratio: float, cores: int, expected: int
) -> None:
    """By default, tasks write about a file of the target size each, and each core gets the same number of tasks."""
    total = 20 * (256 << 20)
    monkeypatch.setattr(sizing, "output_ratio", lambda samples, job: ratio)
    size = sizing.task_bytes(cores, lambda: iter(()), ExportJob(ReadOptions(), names(tmp_path)), total)
    assert round(total / size) == expected
    given = ExportJob(ReadOptions(split_bytes=10_000_000), names(tmp_path))
    assert 9_900_000 < sizing.task_bytes(cores, lambda: iter(()), given, total) <= 10_000_000


def test_a_small_log_keeps_all_cores_busy(tmp_path: Path) -> None:
    job = ExportJob(ReadOptions(), names(tmp_path))
    size = sizing.task_bytes(4, lambda: pytest.fail("a small log needs no sample"), job, 200 << 20)
    assert size == (50 << 20) + 1


def test_splits_are_packed_into_tasks_by_bytes(tmp_path: Path) -> None:
    """Tasks have about equal bytes, whether segments are small or large."""
    value, offset = random.Random(5).randbytes(1000), 0
    for count in (10, 300, 20, 5, 700, 40, 90, 10, 800, 25):
        write_segment(tmp_path / "t-0", offset, [batch(offset + i, [NOW], value=value) for i in range(count)])
        offset += count
    tasks = plan(open_selected([str(tmp_path)]), ReadOptions(split_bytes=300_000))
    sizes = [sum(split.end - split.start for split in task) for task in tasks]
    assert sum(map(len, tasks)) > len(tasks)
    assert all(250_000 < size < 320_000 for size in sizes), sizes


# -- counts of running tasks


def test_running_tasks_count_bytes_and_records(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts of a task can be read while it runs, reach the bytes and records of its splits, and then disappear."""
    monkeypatch.setattr(counts, "COUNTER_SECONDS", 0.0)
    seen: list[tuple[int, int]] = []
    add = TaskCounter.add

    def observe(self: TaskCounter, more: Counts) -> None:
        add(self, more)
        now = running_counts(str(tmp_path))
        seen.append((now.read_bytes, now.records))

    monkeypatch.setattr(TaskCounter, "add", observe)
    run(root, tmp_path / "out", counts=str(tmp_path))
    assert seen == sorted(seen)
    assert seen[-1] == (sum(path.stat().st_size for path in root.rglob("*.log")), 12_000)
    assert running_counts(str(tmp_path)) == Counts()
    assert os.listdir(tmp_path) == ["out"]


def test_counts_are_written_rarely_and_never_fail_a_task(tmp_path: Path) -> None:
    began = time.monotonic()
    with TaskCounter(str(tmp_path), 3) as counter:
        for _ in range(1000):
            counter.add(Counts(read_bytes=10, records=1))
        assert os.listdir(tmp_path) == [] or time.monotonic() - began > 0.5
        assert counter.counts == Counts(read_bytes=10_000, records=1000)
    with TaskCounter(str(tmp_path / "missing"), 3) as counter:
        counter._written = 0.0
        counter.add(Counts(read_bytes=10, records=1))
    assert os.listdir(tmp_path) == []
