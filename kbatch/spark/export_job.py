"""The engine that runs the tasks of an export as a Spark job."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from kbatch.plan.planner import Mapper
from kbatch.plan.split import Split, Task
from kbatch.sinks.counts import Counts, Progress, running_counts
from kbatch.sinks.exports import Engine
from kbatch.sinks.task import ExportJob, TaskReport, reports_of
from kbatch.spark.driver.jobs import run_job
from kbatch.spark.driver.session import active_session, is_connect, spark_session
from kbatch.spark.driver.shipping import shipped

__all__ = ["SparkExecutor", "spark_engine"]

# Logs or segments per task of a job that plans, and their bytes.
PLAN_TASK_ITEMS = 1024
PLAN_TASK_BYTES = 1 << 30


def spark_engine(master: str | None, conf: Mapping[str, str] | None, reason: str) -> Engine:
    """Return the engine that runs tasks as a Spark job; raise for a session of Spark Connect."""
    _refuse_connect(master)
    return Engine("spark", reason, lambda: _started(master, conf))


@contextlib.contextmanager
def _started(master: str | None, conf: Mapping[str, str] | None) -> Iterator[SparkExecutor]:
    """Yield the executor of a session, without the warning about new versions of pandas, which it does not use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
        with spark_session(master, app_name="kbatch export", conf=conf) as spark:
            yield SparkExecutor(spark)


def _refuse_connect(master: str | None) -> None:
    """Raise if the export would run in a session of Spark Connect."""
    active = active_session() if master is None else None
    if (master or "").startswith("sc://") or (active is not None and is_connect(active)):
        raise ValueError(
            "an export runs as a job of RDDs, which Spark Connect does not have: run it where PySpark itself is "
            "installed, with the master of the cluster (kbatch export --master spark://...), or write a DataFrame: "
            "kbatch.spark.read_logs(spark, path).write.parquet(...)"
        )


class SparkExecutor:
    """Runs the tasks of an export as a Spark job; each gets its own splits only.

    Parameters
    ----------
    spark : SparkSession
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.cores = max(1, spark.sparkContext.defaultParallelism)

    @property
    def mapper(self) -> Mapper | None:
        """Plans logs in a Spark job; None on a local master, where threads of this process need less CPU."""
        is_local = self._spark.sparkContext._jsc.sc().isLocal()
        return None if is_local else lambda function, items: run_job(self._spark, lambda: self.apply(function, items))

    def apply(self, function: Callable[[Any], Any], items: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Apply a function to logs or segments in a Spark job, as a `Mapper`."""
        context = self._spark.sparkContext
        size = sum(each.size for each, *_ in items)
        tasks = max(len(items) // PLAN_TASK_ITEMS, size // PLAN_TASK_BYTES, context.defaultParallelism)

        def apply_all(given: Iterable[Any]) -> Iterator[Any]:
            return map(function, given)

        return list(context.parallelize(items, min(len(items), tasks)).mapPartitions(shipped(apply_all)).collect())

    def run(self, job: ExportJob, tasks: Sequence[Task[Split]], progress: Progress | None) -> Iterator[TaskReport]:
        """Run the job for each task; return the reports in the order of the tasks."""
        context = self._spark.sparkContext
        counted = _CountedJob(job, context.accumulator(Counts(), _CountsParam()))
        total = sum(task.bytes for task in tasks)
        reached = (0, 0)

        def collect() -> list[str]:
            # Elements of an RDD reach the task that they belong to. What a function refers to would reach all of them:
            # with 10^5 splits, 100 empty tasks took 94 seconds of CPU instead of 8.
            parts = context.parallelize(list(enumerate(tasks)), len(tasks))
            found: list[str] = parts.mapPartitions(shipped(counted)).collect()
            return found

        def show() -> None:
            nonlocal reached
            counts = counted.done.value + (Counts() if job.counters is None else running_counts(job.counters))
            # Between the two counts, a task may be missing for a moment.
            reached = (min(total, max(reached[0], counts.read_bytes)), max(reached[1], counts.records))
            assert progress is not None
            progress(reached[0], total, reached[1])

        return reports_of(run_job(self._spark, collect, None if progress is None else show))


class _CountsParam(AccumulatorParam[Counts]):
    """Adds up counts."""

    def zero(self, value: Counts) -> Counts:
        return Counts()

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:
        return value1 + value2


@dataclass(frozen=True)
class _CountedJob:
    """The job of an export, and an accumulator of the counts of finished tasks."""

    job: ExportJob
    done: Accumulator[Counts]

    def __call__(self, tasks: Iterable[tuple[int, Task[Split]]]) -> Iterator[str]:
        for number, task in tasks:
            reports = self.job.run(number, task)
            yield from (report.to_json() for report in reports)
            records = sum(report.counts.records for report in reports)
            self.done.add(Counts(read_bytes=task.bytes, records=records))
