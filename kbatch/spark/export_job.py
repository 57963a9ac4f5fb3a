"""`export` on Spark, and the engine that runs the tasks of an export as a Spark job."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from kbatch.arguments import check_types
from kbatch.plan.arrow_batches import Transform
from kbatch.plan.planner import Mapper
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import Split, Task
from kbatch.sinks.counts import Counts, Progress, running_counts
from kbatch.sinks.exports import Engine, run_export
from kbatch.sinks.summary import ExportSummary
from kbatch.sinks.task import ExportJob, TaskReport, reports_of
from kbatch.sinks.write_options import WriteOptions
from kbatch.spark.driver.jobs import run_job
from kbatch.spark.driver.session import active_session, is_connect, spark_session
from kbatch.spark.driver.shipping import shipped

__all__ = ["SparkExecutor", "export", "spark_engine"]

# Logs or segments per task of a job that plans, and their bytes.
PLAN_TASK_ITEMS = 1024
PLAN_TASK_BYTES = 1 << 30


def export(
    logdir: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    options: ReadOptions | None = None,
    writing: WriteOptions | None = None,
    table: str | None = None,
    catalog: str | None = None,
    transform: Transform | None = None,
    progress: Progress | None = None,
    mark_seen: bool = True,
) -> ExportSummary:
    """Write the records of log directories as Parquet, partitioned by topic and partition.

    Parameters
    ----------
    logdir : str or path, or iterable of them
        A broker's log directory, a topic-partition directory, or one ``.log`` file in such a directory.
    out : str or path
        A directory, or a URL such as ``s3://bucket/directory``. If it has the data of earlier exports, ``writing.mode``
        decides: by default the export continues after them. If it fails or is interrupted, everything that it has
        written is removed.
    master : str, optional
        Spark's master URL. None is the active session if there is one, else ``local[*]``. On a cluster, log directory
        and output must be on a file system that all workers can access.
    conf : mapping of str to str, optional
        Spark's settings, for a session that the export starts.
    options : ReadOptions, optional
        Topics, offsets, timestamps, headers, isolation, and what to do with damage. ``split_bytes`` is the maximum
        number of bytes that a task reads. Under read_committed the driver follows the headers of the logs first.
    writing : WriteOptions, optional
        Format, compression, sizes of files and row groups, and partitioning by day.
    table, catalog : str, optional
        For ``format="iceberg"``: the table, as ``namespace.name``, and the name of the catalog in pyiceberg's
        configuration.
    transform : Transform, optional
        Applied to each batch of records before it is written, in the tasks. To parse keys and values, use
        ``options.values`` instead.
    progress : callable, optional
        Called from time to time with three numbers: the bytes of the logs that were read, all bytes to read, and the
        records written.
    mark_seen : bool
        Whether the reports of this run and of earlier ones count as seen when this function returns. Otherwise
        `ExportSummary.mark_seen` marks them, or the next export repeats them.

    Returns
    -------
    ExportSummary

    Raises
    ------
    LogDirectoryError
        If no log exists, `out` cannot be written, another export is writing to it, or a log has changed since the last
        export (deleted, truncated or created again); raised before Spark is started.
    CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, ...
        For damage, with ``on_error="raise"``. Everything written is removed.
    MissingDependencyError, SparkStartError
        If the library of a format is not installed, or Spark cannot be started.
    TableCommitError
        If a Delta or Iceberg table does not accept the files.
    ValueError
        For options that conflict with each other or with the logs, and for a session of Spark Connect, which has no
        RDDs.

    Notes
    -----
    `kbatch.export` describes the files, the commits and the reports, which are the same.

    Examples
    --------
    >>> import kbatch.spark
    >>> summary = kbatch.spark.export("tests/golden/logs/codec-zstd-0", "/tmp/parquet")  # doctest: +SKIP
    >>> summary.records  # doctest: +SKIP
    3144
    """
    check_types(export, locals())
    chosen = spark_engine(master, conf, "requested")
    return run_export(
        logdir,
        out,
        lambda size: chosen,
        options or ReadOptions(),
        writing or WriteOptions(),
        table=table,
        catalog=catalog,
        transform=transform,
        progress=progress,
        mark_seen=mark_seen,
    )


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
