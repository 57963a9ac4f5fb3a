"""Plans that scale on Spark: logs that a job or the tasks plan, and tasks that get their own splits only."""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from log_batches import NOW, batch, write_segment

import kbatch

pytest.importorskip("kbatch.spark", exc_type=ImportError)
pytest.importorskip("pyspark.sql.datasource", exc_type=ImportError)
pq = pytest.importorskip("pyarrow.parquet")


from kbatch.log.resolving import LogBound  # noqa: E402
from kbatch.log.selection import choose_logs  # noqa: E402
from kbatch.plan import planner  # noqa: E402
from kbatch.plan.read_options import Bound, ReadOptions  # noqa: E402
from kbatch.sinks.export_run import ExportRun, open_target  # noqa: E402
from kbatch.sinks.local_engine import LocalExecutor  # noqa: E402
from kbatch.sinks.outputs import open_place  # noqa: E402
from kbatch.sinks.run_input import DirectoryInput  # noqa: E402
from kbatch.sinks.write_options import WriteOptions  # noqa: E402
from kbatch.spark.datasource import KbatchReader  # noqa: E402
from kbatch.spark.export_job import SparkExecutor  # noqa: E402
from kbatch.spark.stream_options import StreamReadOptions  # noqa: E402
from kbatch.spark.stream_source import KbatchStreamReader  # noqa: E402

# The timestamp in the middle of the log with transactions.
MIDDLE = 1_700_000_021_998


@pytest.mark.spark
def test_an_export_planned_in_a_job_writes_the_same_records(
    spark: Any, golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many logs, read_committed and times are resolved in a Spark job, with the same records and summary."""
    for number in range(3):
        shutil.copytree(golden / "logs" / "txn-0", tmp_path / "logs" / f"txn-{number}")
    given: Any = {"isolation": "read_committed", "start_timestamp": MIDDLE}
    calls: list[int] = []

    def mapper(executor: SparkExecutor) -> Any:
        def counted(function: Any, items: Any) -> Any:
            calls.append(len(items))
            return executor.apply(function, items)

        return counted

    # On a local master the executor has none, because one process then needs less CPU.
    assert SparkExecutor(spark).mapper is None
    monkeypatch.setattr(SparkExecutor, "mapper", property(mapper))
    summaries = []
    for out, limit in (("one", 1000), ("many", 2)):
        monkeypatch.setattr(planner, "MANY_LOGS", limit)
        summaries.append(kbatch.export(tmp_path / "logs", tmp_path / out, engine="spark", **given))
    assert calls == [3]
    one, other = summaries
    assert one.records == other.records > 100
    assert one.partitions == other.partitions
    assert [rows(tmp_path / out) for out in ("one", "many")] == [rows(tmp_path / "one")] * 2


def rows(out: Path) -> list[Any]:
    return sorted(map(str, pq.read_table(out).to_pylist()))


@pytest.mark.spark
def test_a_frame_whose_tasks_plan_returns_the_same_rows(
    spark: Any, golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader is pickled by reference to its module, so the tasks plan although the limit is set here only."""
    for number in range(3):
        shutil.copytree(golden / "logs" / "txn-0", tmp_path / f"txn-{number}")
    options = ReadOptions(isolation="read_committed")
    reader = KbatchReader([str(tmp_path)], options, ("topic", "partition", "offset"))
    expected = sorted(map(str, (row for part in reader.partitions() for each in reader.read(part)
                                for row in each.to_pylist())))  # fmt: skip
    monkeypatch.setattr(planner, "MANY_LOGS", 2)
    parts = reader.partitions()
    assert all(isinstance(each, planner.LogRequest) for part in parts for each in part.value)
    tasks = spark.sparkContext.parallelize(parts, len(parts))
    found = tasks.flatMap(lambda part: [row for each in reader.read(part) for row in each.to_pylist()]).collect()
    assert sorted(map(str, found)) == expected


# -- what a task gets


def planned(kind: str, root: Path, topics: int) -> tuple[Any, list[Any]]:
    """Return what all tasks of a read get, after planning, and the parts of the single tasks."""
    bound = Bound(offsets={"t": dict.fromkeys(range(topics), -2)})
    options = ReadOptions(split_bytes=2000, isolation="read_committed", starting=bound)
    if kind == "stream":
        given = StreamReadOptions(read=replace(options, starting=Bound()), starting=bound.offsets)
        reader = KbatchStreamReader([str(root)], given, ("offset", "value"))
        start = reader.initialOffset()
        return reader, list(reader.partitions(start, reader.latestOffset(start)))
    source = KbatchReader([str(root)], options, ("offset", "value"))
    if kind == "data source":
        return source, list(source.partitions())
    jobs: list[Any] = []

    class Recorded(LocalExecutor):
        def run(self, job: Any, tasks: Any, progress: Any) -> Any:
            jobs.append((job, list(tasks)))
            return super().run(job, tasks, progress)

    writing = WriteOptions()
    logs = choose_logs([str(root)], options.selection)
    target = open_target(open_place(str(root.parent / f"out-{topics}"), {}), writing, table=None, catalog=None)
    with ExportRun(DirectoryInput([str(root)], options), target, logs, options, writing, None) as run:
        run.run(Recorded(), None)
    return jobs[0]


@pytest.mark.parametrize("kind", ["export", "data source", "stream"])
def test_a_task_gets_its_own_splits_and_nothing_else(tmp_path: Path, kind: str) -> None:
    """What travels to every task, and each task's own part, have the same size for a few splits and for hundreds."""
    shared, own, counts = [], [], []
    for name, topics in (("few", 2), ("many", 60)):
        for number in range(topics):
            batches = [batch(i, [NOW], value=os.urandom(1900)) for i in range(4)]
            write_segment(tmp_path / name / f"t-{number}", 0, batches)
        function, parts = planned(kind, tmp_path / name, topics)
        shared.append(len(pickle.dumps(function)))
        own.append(max(len(pickle.dumps(part)) for part in parts))
        counts.append(len(parts))
    assert counts[0] <= 10
    assert counts[1] > 100
    assert abs(shared[1] - shared[0]) < 100, shared
    assert abs(own[1] - own[0]) < 100, own


def test_a_task_that_plans_its_logs_gets_their_bounds_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "MANY_LOGS", 2)
    for number in range(300):
        write_segment(tmp_path / f"t-{number}", 0, [batch(i, [NOW + i]) for i in range(3)])
    bound = Bound(timestamps={"t": dict.fromkeys(range(300), NOW + 1)})
    reader = KbatchReader([str(tmp_path)], ReadOptions(starting=bound, split_bytes=1 << 20), ("offset",))
    parts = [part.value for part in reader.partitions()]
    assert len(parts) >= 3
    assert {request.starting for part in parts for request in part} == {LogBound(timestamp=NOW + 1)}
    assert len(pickle.dumps(parts[0])) < 500 * len(parts[0])
    copied = pickle.loads(pickle.dumps(reader))
    assert copied.options.starting == Bound()
    found = [
        offset for part in reader.partitions() for each in copied.read(part) for offset in each["offset"].to_pylist()
    ]
    assert found == [1, 2] * 300
