"""``spark.readStream.format("kbatch")`` over logs that are being written; see test_stream_reader.py for the reader."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark")

from generated_logs import generated
from stream_query import Writer
from transaction_logs import ABORT, COMMIT

from kbatch.log.committed import follow_transactions
from kbatch.plan import planner
from kbatch.plan.following import follow_options
from kbatch.plan.read_options import Bound, ReadOptions
from kbatch.spark.export_job import SparkExecutor

pytestmark = pytest.mark.spark

Rows = dict[int, list[tuple[str, int, int]]]


class Sink:
    """Keeps the rows of each batch like an idempotent sink: a repeated batch replaces the earlier one.

    `fails` returns whether a call raises an error after it has kept the rows.
    """

    def __init__(self, fails: Callable[[int], bool] = lambda call: False) -> None:
        self.batches: Rows = {}
        self.calls = 0
        self.fails = fails

    def __call__(self, frame: Any, number: int) -> None:
        rows = [tuple(row) for row in frame.select("topic", "partition", "offset").collect()]
        self.calls += 1
        if number in self.batches:
            # A repeated batch has the same rows.
            assert sorted(self.batches[number]) == sorted(rows)
        self.batches[number] = rows
        if self.fails(self.calls):
            raise RuntimeError("the sink died")

    @property
    def rows(self) -> list[tuple[str, int, int]]:
        return sorted(row for rows in self.batches.values() for row in rows)


def begin(spark: Any, root: Path, sink: Sink, checkpoint: Path, *, once: bool = True, **options: str) -> Any:
    frame = spark.readStream.format("kbatch").options(**options).load(str(root))
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="100 milliseconds")).start()


def run(spark: Any, *args: Any, **options: str) -> None:
    query = begin(spark, *args, **options)
    assert query.awaitTermination(120)


def test_existing_records_are_read_before_new_ones(spark: Any, tmp_path: Path) -> None:
    root, sink = tmp_path / "logs", Sink()
    writer = Writer(root)
    for _ in range(5):
        writer.records()
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "6"}
    run(spark, root, sink, tmp_path / "checkpoint", **options)
    assert [offset for *_, offset in sink.rows] == list(range(15))
    if hasattr(__import__("pyspark.sql.streaming.datasource", fromlist=["x"]), "ReadMaxRows"):
        assert [len(sink.batches[n]) for n in sorted(sink.batches)] == [6, 6, 3]
    writer.roll()
    writer.records()
    Writer(root, "u-1").records()
    run(spark, root, sink, tmp_path / "checkpoint", **options)
    assert sink.rows == [("t", 0, offset) for offset in range(18)] + [("u", 1, offset) for offset in range(3)]


def test_a_repeated_first_batch_keeps_its_latest_offset(spark: Any, tmp_path: Path) -> None:
    """A query that fails in its first batch resumes at the offset that was latest when it began."""
    root = tmp_path / "logs"
    writer = Writer(root)
    writer.records()
    sink = Sink(lambda call: call == 1)
    with pytest.raises(Exception, match="the sink died"):
        run(spark, root, sink, tmp_path / "checkpoint")
    writer.records()
    run(spark, root, sink, tmp_path / "checkpoint")
    assert [offset for *_, offset in sink.rows] == [3, 4, 5]


def test_each_record_is_read_exactly_once_while_the_log_is_written(spark: Any, tmp_path: Path) -> None:
    """A thread appends, rolls and ends transactions, while the query is stopped and its sink fails several times."""
    root = tmp_path / "logs"
    writers = [Writer(root, "t-0"), Writer(root, "t-1")]
    rng = np.random.default_rng(3)
    committed: list[tuple[str, int, int]] = []
    done = threading.Event()

    def write() -> None:
        still: list[dict[int, list[int]]] = [{}, {}]
        for _ in range(300):
            done.wait(0.05)
            which, pid = int(rng.integers(2)), int(rng.integers(1, 4))
            writer, action = writers[which], rng.random()
            if action < 0.4:
                committed.extend(("t", which, writer.next + i) for i in range(3))
                writer.records()
            elif action < 0.6:
                still[which].setdefault(pid, []).append(writer.next)
                writer.txn(pid)
            elif action < 0.9 and pid in still[which]:
                offsets = still[which].pop(pid)
                kind = COMMIT if rng.random() < 0.6 else ABORT
                committed.extend(("t", which, offset) for offset in offsets if kind == COMMIT)
                writer.marker(pid, kind)
            elif action > 0.95:
                writer.roll()
        for which, rest in enumerate(still):
            for pid in rest:
                writers[which].marker(pid, ABORT)

    thread = threading.Thread(target=write)
    thread.start()
    options = {
        "startingOffsets": "earliest",
        "isolationLevel": "read_committed",
        "maxOffsetsPerTrigger": "60",
        "splitBytes": "2000",
    }
    sink = Sink()
    try:
        for number in range(3):
            sink.calls = 0
            if number % 2:
                sink.fails = lambda call: call == 2
                query = begin(spark, root, sink, tmp_path / "checkpoint", once=False, **options)
                with pytest.raises(Exception, match="the sink died"):
                    query.awaitTermination(120)
            else:
                sink.fails = lambda call: False
                query = begin(spark, root, sink, tmp_path / "checkpoint", once=False, **options)
                deadline = time.monotonic() + 60
                while sink.calls < 2 and time.monotonic() < deadline:
                    time.sleep(0.05)
                query.stop()
    finally:
        done.set()
        thread.join()
    sink.fails = lambda call: False
    run(spark, root, sink, tmp_path / "checkpoint", **options)
    assert sink.rows == sorted(committed)
    assert len(sink.batches) > 3


def test_records_deleted_by_retention_are_data_loss(spark: Any, tmp_path: Path) -> None:
    root, sink = tmp_path / "logs", Sink()
    writer = Writer(root)
    writer.records()
    run(spark, root, sink, tmp_path / "checkpoint", startingOffsets="earliest")
    writer.records()
    writer.roll()
    writer.records()
    writer.delete_first()
    with pytest.raises(Exception, match="t-0: offsets 3 to 5 were deleted before they were read"):
        run(spark, root, sink, tmp_path / "checkpoint", startingOffsets="earliest")
    run(spark, root, sink, tmp_path / "checkpoint", startingOffsets="earliest", failOnDataLoss="false")
    assert [offset for *_, offset in sink.rows] == [0, 1, 2, 6, 7, 8]


def test_streams_have_columns_and_refuse_batch_options(spark: Any, tmp_path: Path) -> None:
    Writer(tmp_path / "logs").records()
    frame = spark.readStream.format("kbatch").schema("offset long, value binary").load(str(tmp_path / "logs"))
    assert frame.isStreaming
    assert frame.columns == ["offset", "value"]
    full = spark.readStream.format("kbatch").option("includeHeaders", "true").load(str(tmp_path / "logs"))
    assert full.columns[-1] == "headers"
    with pytest.raises(Exception, match="endingOffsets is not valid in streaming queries"):
        run(spark, tmp_path / "logs", Sink(), tmp_path / "checkpoint", endingOffsets="latest")


def test_transactions_followed_in_tasks_equal_a_sequential_walk(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark job, threads and a sequential walk find the same transactions, for all offsets and for ranges."""
    logs = [generated(tmp_path / f"t-{seed}", seed) for seed in range(3)]
    executor = SparkExecutor(spark)
    jobs: list[int] = []

    def mapper(function: Any, items: Any) -> Any:
        jobs.append(len(items))
        return executor.apply(function, items)

    monkeypatch.setattr(planner, "FOLLOW_JOB_BYTES", 0)
    for on_error in ("raise", "skip"):
        for starts, stops in (([None] * 3, [None] * 3), ([None, 20, 35], [None, 40, None])):
            given = {number: -1 if stop is None else stop for number, stop in enumerate(stops)}
            options = ReadOptions(
                isolation="read_committed",
                on_error=on_error,  # type: ignore[arg-type]
                ending=Bound(offsets={"t": given}),
            )
            reads = [planner.plan_reads(logs, options, starts, mapper=each) for each in (mapper, None)]
            for i, log in enumerate(logs):
                ends = {"start_offset": starts[i], "stop_offset": stops[i]}
                expected = follow_transactions(log.segments, follow_options(options), **ends)
                for read in reads:
                    got = read[i].transactions
                    assert got is not None
                    assert got.aborted.tolist() == expected.aborted.tolist()
                    assert got.pending == expected.pending
    assert len(jobs) == 4
    for read in planner.plan_reads(logs, ReadOptions(), [None] * 3, mapper=mapper):
        assert read.transactions is None
    assert len(jobs) == 4
