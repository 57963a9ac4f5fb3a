"""`export`: log directories -> Parquet on Spark, all of it or nothing.

The driver plans splits; tasks decode them and write Parquet (`kbatch.spark.parquet`); the driver moves the files whose
reports it has into place, and only then gives the whole its name.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import pyarrow.parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kbatch.errors
from kbatch.decoding import Isolation
from kbatch.errors import KbatchError, LogDirectoryError, finding_to_error
from kbatch.framing import scan_part
from kbatch.log import Log
from kbatch.spark.executors import ExecutorWatch
from kbatch.spark.interrupts import HeldInterrupts
from kbatch.spark.options import ReadOptions
from kbatch.spark.parquet import LOSSES_SUFFIX, ExportJob, FileReport, least, most, reports_of
from kbatch.spark.planning import log_transactions, open_logs, plan, select_logs
from kbatch.spark.session import spark_session
from kbatch.transactions import Transactions

__all__ = ["LOSSES", "MANIFEST", "ExportSummary", "PartitionSummary", "export"]

# Readers pass over names that begin with an underscore.
MANIFEST = "_manifest.json"
LOSSES = "_losses"
# How many losses the summary tells one by one; all of them are counted, and in the side table.
_MAX_LOSSES = 100
# And how many open transactions of a partition.
_MAX_OPEN = 20

Compression = Literal["zstd", "snappy", "gzip", "none"]
Progress = Callable[[int, int], None]

# A task costs about a tenth of a second whatever it does, so that small logs aren't cut finer than this.
_MIN_SPLIT_BYTES = 16 << 20
# What Spark itself escapes in the names of partition directories (ExternalCatalogUtils.escapePathName).
_ESCAPED = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")


# What read_committed leaves out, in reports and summaries.
_LEFT_OUT = ("aborted_batches", "aborted_bytes", "undecided_batches", "undecided_bytes")


@dataclass
class PartitionSummary:
    """What an export found of one topic-partition.

    Attributes
    ----------
    topic : str
    partition : int
    records, files, file_bytes, log_bytes : int
        Records and Parquet files written, their bytes, and bytes of the batches that were read.
    first_offset, last_offset, first_timestamp, last_timestamp : int or None
        Of the records written; timestamps are the smallest and the largest, in milliseconds since the epoch.
    lost_bytes : int
        Bytes of the log that gave no records because of damage, or because kbatch doesn't read their format.
    unfinished_bytes : int
        Bytes of an incomplete batch at the end of the log: cut off, or still being written.
    aborted_batches, aborted_bytes : int
        Batches that read_committed left out because their transaction was aborted.
    undecided_batches, undecided_bytes : int
        Batches that it withheld: of those that are wanted all from the last stable offset on, and those of transactions
        whose markers are lost to damage.
    last_stable_offset : int or None
        Under read_committed the first offset of the log's first open transaction; None if none is open.
    open_count : int
        How many transactions of the log are open, under read_committed.
    open_transactions : list of dict
        The first twenty of them: producer_id, first_offset.
    undecided_count : int
        How many transactions of the log ended with a marker that is damaged, so that nothing tells how.
    undecided_transactions : list of dict
        The first twenty of them: producer_id, first_offset, last_offset.
    """

    topic: str
    partition: int
    records: int = 0
    files: int = 0
    file_bytes: int = 0
    log_bytes: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    lost_bytes: int = 0
    unfinished_bytes: int = 0
    aborted_batches: int = 0
    aborted_bytes: int = 0
    undecided_batches: int = 0
    undecided_bytes: int = 0
    last_stable_offset: int | None = None
    open_count: int = 0
    open_transactions: list[dict[str, int]] = field(default_factory=list)
    undecided_count: int = 0
    undecided_transactions: list[dict[str, int]] = field(default_factory=list)

    def add(self, report: FileReport) -> None:
        """Count a task's report."""
        self.files += report.file is not None
        for name in ("records", "file_bytes", "log_bytes", "lost_bytes", *_LEFT_OUT):
            setattr(self, name, getattr(self, name) + getattr(report, name))
        self.first_offset = least(self.first_offset, report.first_offset)
        self.last_offset = most(self.last_offset, report.last_offset)
        self.first_timestamp = least(self.first_timestamp, report.first_timestamp)
        self.last_timestamp = most(self.last_timestamp, report.last_timestamp)


@dataclass
class ExportSummary:
    """What an export did.

    Attributes
    ----------
    logdir, out : str
    isolation : str
    records, log_bytes, file_bytes, aborted_batches, aborted_bytes, undecided_batches, undecided_bytes : int
        Of all partitions together, as in `PartitionSummary`.
    batches : dict of str to int
        Batches that were read, by codec.
    bad_crc_batches : int
        Batches with a wrong checksum that were taken all the same (``crc="mark"``).
    lost_bytes, loss_count : int
        Bytes that gave no records, and in how many places.
    losses : list of dict
        The first hundred of them: topic, partition, file, position, length, reason, base_offset.
    losses_table : str or None
        Where all of them are, with the same columns: a directory of Parquet files, relative to `out`. None if nothing
        was lost.
    partitions : list of PartitionSummary
    files : list of str
        The Parquet files, relative to `out`.
    seconds, start_seconds : float
        Time for reading and writing, and for starting Spark.
    """

    logdir: str
    out: str
    isolation: Isolation = "read_uncommitted"
    records: int = 0
    log_bytes: int = 0
    file_bytes: int = 0
    aborted_batches: int = 0
    aborted_bytes: int = 0
    undecided_batches: int = 0
    undecided_bytes: int = 0
    batches: dict[str, int] = field(default_factory=dict)
    bad_crc_batches: int = 0
    lost_bytes: int = 0
    loss_count: int = 0
    losses: list[dict[str, Any]] = field(default_factory=list)
    losses_table: str | None = None
    partitions: list[PartitionSummary] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    seconds: float = 0.0
    start_seconds: float = 0.0

    @property
    def damaged(self) -> bool:
        """Whether anything was lost, or taken with a wrong checksum. What read_committed leaves out isn't damage."""
        return self.loss_count > 0 or self.bad_crc_batches > 0

    @property
    def records_per_second(self) -> float:
        """Records written per second of `seconds`."""
        return self.records / self.seconds if self.seconds > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {**asdict(self), "records_per_second": round(self.records_per_second)}


def export(
    logdir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    master: str | None = None,
    options: ReadOptions | None = None,
    compression: Compression = "zstd",
    progress: Progress | None = None,
) -> ExportSummary:
    """Write the records of a log directory as Parquet, partitioned by topic and partition.

    Parameters
    ----------
    logdir : str or path
        A broker's log directory, a topic-partition directory, or one ``.log`` file in such a directory.
    out : str or path
        A directory that must not be there yet. It appears when everything is written: until then there is
        ``OUT.tmp-<id>`` beside it, which is removed if the export fails or is interrupted.
    master : str, optional
        Spark's master URL. None is the active session if there is one, else ``local[*]``. On a cluster, log directory
        and output must be on a file system that all workers share.
    options : ReadOptions, optional
        Topics, offsets, timestamps, headers, isolation, and what to do with damage. ``split_bytes`` is the most that a
        task reads. Under read_committed the headers of the logs are followed on the driver before.
    compression : {"zstd", "snappy", "gzip", "none"}
    progress : callable, optional
        Called now and then with the number of tasks done and of all tasks.

    Returns
    -------
    ExportSummary

    Raises
    ------
    LogDirectoryError
        If there is no log, or `out` can't be written, before Spark is started.
    CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, ...
        For damage, with ``on_error="raise"``. Nothing is left behind.
    MissingDependencyError, SparkStartError
        If Spark can't be started.
    ValueError
        For options that don't fit what is there.

    Notes
    -----
    Files are ``topic=T/partition=N/part-<first offset>-<task>.parquet``, with rows in the order of the log, and columns
    key, value, offset, timestamp, timestampType (and headers) as Spark's Kafka source has them; topic and partition are
    in the path. ``_manifest.json`` holds the summary with the list of files.

    If anything was lost, ``_losses/part-<number>.parq`` are Parquet files with a row a loss, in the order of the logs:
    topic, partition, file, position, length, reason, base_offset. They are no part of the data set: Spark, pyarrow and
    pandas pass over the name of the directory, DuckDB and Polars with ``**/*.parquet`` over the names of the files.

    Examples
    --------
    >>> import kbatch.spark
    >>> summary = kbatch.spark.export("tests/golden/logs/codec-zstd-0", "/tmp/parquet")  # doctest: +SKIP
    >>> summary.records  # doctest: +SKIP
    3144
    """
    logdir, out = os.fspath(logdir), os.fspath(out)
    options = options or ReadOptions()
    if compression not in ("zstd", "snappy", "gzip", "none"):
        raise ValueError(f"compression must be zstd, snappy, gzip or none, got {compression!r}")
    if options.table != "records":
        raise ValueError(
            f"table={options.table} is for the data source: an export writes records, and losses beside them"
        )
    out = _check_out(out)
    logs = select_logs(open_logs([logdir]), options)
    if not logs:
        raise LogDirectoryError(f"{logdir}: none of its topic-partitions is chosen", source=logdir)
    for log in logs:
        if log.topic is None:
            raise LogDirectoryError(
                f"{log.path}: not in a directory named 'topic-partition', so that its topic isn't known",
                source=log.path,
            )
    if options.on_error == "raise":
        _check_first_batches(logs)
    began = time.monotonic()
    with _staging(out) as staging, _quiet_pandas(), spark_session(master, app_name="kbatch export") as spark:
        ready = time.monotonic()
        cores = max(1, spark.sparkContext.defaultParallelism)
        share = sum(log.size for log in logs) // cores + 1
        transactions = log_transactions(logs, options)
        split_bytes = min(options.split_bytes, max(share, _MIN_SPLIT_BYTES))
        tasks = plan(logs, replace(options, split_bytes=split_bytes), transactions)
        attempts = os.path.join(staging, "attempts")
        os.mkdir(attempts)
        job = ExportJob(tasks, options, attempts, compression)
        reports = reports_of(_run(spark, job, progress) if tasks else [])
        summary = _summarize(ExportSummary(logdir, out, options.isolation), logs, transactions, reports)
        summary.start_seconds = round(ready - began, 3)
        data = os.path.join(staging, "data")
        summary.files = _commit(reports, attempts, data)
        tables = _commit_losses(reports, attempts, data)
        summary.losses_table = LOSSES if tables else None
        summary.losses = _first_rows(tables, _MAX_LOSSES)
        summary.seconds = round(time.monotonic() - ready, 3)
        with open(os.path.join(data, MANIFEST), "w", encoding="utf-8") as file:
            json.dump(summary.to_dict(), file, indent=1)
        # Fails if another process has made `out` meanwhile, unless as an empty directory.
        os.rename(data, out)
    return summary


def _check_out(out: str) -> str:
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", out) and not out.startswith("file://"):
        raise LogDirectoryError(f"{out}: output must be a path of a mounted file system", source=out)
    out = os.path.abspath(out.removeprefix("file://"))
    if os.path.lexists(out):
        raise LogDirectoryError(f"{out}: exists already; name a new directory, or remove it", source=out)
    parent = os.path.dirname(out)
    if not os.path.isdir(parent):
        raise LogDirectoryError(f"{out}: there is no directory {parent} to make it in", source=out)
    if not os.access(parent, os.W_OK):
        raise LogDirectoryError(f"{out}: no permission to write in {parent}", source=out)
    return out


def _check_first_batches(logs: Sequence[Log]) -> None:
    """Fail before Spark is started where the first batch of a log can't be read anyway."""
    for log in logs:
        segment = log.segments[0]
        scan = scan_part(segment.window(0, min(segment.size, 1 << 16)), max_batches=1)
        if scan.finding is not None:
            with segment.open() as file:
                if file.tail_at(0).kind == "damaged" or not segment.live:
                    raise finding_to_error(scan.finding, source=segment.path, position=0)


@contextlib.contextmanager
def _staging(out: str) -> Iterator[str]:
    staging = f"{out}.tmp-{uuid.uuid4().hex[:8]}"
    os.mkdir(staging)
    try:
        yield staging
    finally:
        # A task that was cancelled may still be writing for a moment where the session isn't ours.
        for _ in range(50):
            shutil.rmtree(staging, ignore_errors=True)
            if not os.path.exists(staging):
                break
            time.sleep(0.1)


@contextlib.contextmanager
def _quiet_pandas() -> Iterator[None]:
    """Keep PySpark from warning of a new pandas: none is used here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
        yield


def _run(spark: SparkSession, job: ExportJob, progress: Progress | None) -> list[str]:
    """Run the job in a thread, so that this one can show progress and be interrupted; return the reports."""
    context = spark.sparkContext
    group = f"kbatch-export-{uuid.uuid4().hex}"
    rows: list[str] = []
    errors: list[BaseException] = []
    done = threading.Event()
    tasks = len(job.tasks)

    def collect() -> None:
        try:
            context.setJobGroup(group, "kbatch export", interruptOnCancel=True)
            reports = spark.range(0, tasks, 1, tasks).mapInArrow(job, "report string")
            rows.extend(row.report for row in reports.collect())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    executors = ExecutorWatch(context)
    thread = threading.Thread(target=collect, name="kbatch-export", daemon=True)
    thread.start()
    try:
        with HeldInterrupts() as held:
            while not done.wait(0.2):
                held.check()
                executors.check()
                if progress is not None:
                    progress(_tasks_done(context, group), tasks)
    except BaseException:
        with contextlib.suppress(Exception):
            context.cancelJobGroup(group)
        raise
    thread.join()
    if errors:
        raise _task_error(errors[0]) from errors[0]
    if progress is not None:
        progress(tasks, tasks)
    return rows


def _tasks_done(context: Any, group: str) -> int:
    tracker = context.statusTracker()
    done = 0
    for number in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(number)
        for stage in job.stageIds if job else ():
            info = tracker.getStageInfo(stage)
            done += info.numCompletedTasks if info else 0
    return done


def _task_error(error: BaseException) -> BaseException:
    """Find our own exception in the text that is all Spark hands on of it."""
    found = re.findall(r"^kbatch\.\w+(?:\.\w+)*\.(\w+): (.+)$", str(error), re.MULTILINE)
    if found:
        name, text = found[-1]
        cls = getattr(kbatch.errors, name, KbatchError)
        made: BaseException = cls(text.strip())
        return made
    if re.search(r"No module named '(kbatch|pyarrow)\b", str(error)):
        return KbatchError(
            "the Python of Spark's workers doesn't have kbatch, or what it needs; `kbatch pack` makes an archive that "
            "brings it, and tells the settings"
        )
    if isinstance(error, PySparkException) or type(error).__module__.startswith("py4j"):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # The end of a worker's traceback says what went wrong; without one, Spark's own first line does.
        raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)]
        return KbatchError(f"Spark failed: {(raised[-1:] or lines[:1] or [type(error).__name__])[0]}")
    return error


def _summarize(
    summary: ExportSummary,
    logs: Sequence[Log],
    transactions: Sequence[Transactions | None],
    reports: Sequence[FileReport],
) -> ExportSummary:
    partitions: dict[tuple[str, int], PartitionSummary] = {}
    for log, known in zip(logs, transactions, strict=True):
        assert log.topic is not None
        assert log.partition is not None
        part = PartitionSummary(log.topic, log.partition)
        partitions[log.topic, log.partition] = part
        tail = log.tail
        if tail.kind == "partial":
            part.unfinished_bytes = tail.size
        if known is not None:
            part.last_stable_offset = known.last_stable_offset
            part.open_count = len(known.open)
            part.open_transactions = [
                {"producer_id": each.producer_id, "first_offset": each.first_offset} for each in known.open[:_MAX_OPEN]
            ]
            part.undecided_count = len(known.undecided)
            part.undecided_transactions = [
                {name: int(row[name]) for name in ("producer_id", "first_offset", "last_offset")}
                for row in known.undecided[:_MAX_OPEN]
            ]
    codecs: Counter[str] = Counter()
    for report in reports:
        partitions[report.topic, report.partition].add(report)
        codecs.update(report.codecs)
        summary.bad_crc_batches += report.bad_crc_batches
        summary.loss_count += report.loss_count
    summary.partitions = list(partitions.values())
    summary.batches = dict(sorted(codecs.items()))
    for name in ("records", "log_bytes", "file_bytes", "lost_bytes", *_LEFT_OUT):
        setattr(summary, name, sum(getattr(part, name) for part in summary.partitions))
    return summary


def _commit(reports: Sequence[FileReport], attempts: str, data: str) -> list[str]:
    """Move the files that were reported to where they belong; return their paths, relative to `data`."""
    os.mkdir(data)
    files = []
    for report in reports:
        if report.file is None:
            continue
        directory = f"topic={_escape(report.topic)}/partition={report.partition}"
        os.makedirs(os.path.join(data, directory), exist_ok=True)
        name = f"{directory}/part-{report.first_offset:020d}-{report.task:05d}.parquet"
        _move(os.path.join(attempts, report.file), os.path.join(data, name))
        files.append(name)
    return files


def _commit_losses(reports: Sequence[FileReport], attempts: str, data: str) -> list[str]:
    """Move the files of losses to the side table, in the order of the logs; return their paths."""
    tables: list[str] = []
    for report in reports:
        if report.losses_file is None:
            continue
        os.makedirs(os.path.join(data, LOSSES), exist_ok=True)
        path = os.path.join(data, LOSSES, f"part-{len(tables):05d}{LOSSES_SUFFIX}")
        _move(os.path.join(attempts, report.losses_file), path)
        tables.append(path)
    return tables


def _move(source: str, target: str) -> None:
    if not os.path.isfile(source):
        raise LogDirectoryError(
            f"{source}: a Spark worker wrote it, but it isn't there for the driver; the output must be on a file "
            "system that the driver and all workers share",
            source=source,
        )
    os.rename(source, target)


def _first_rows(tables: Sequence[str], most: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in tables:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(most):
                rows += batch.slice(0, most - len(rows)).to_pylist()
                if len(rows) == most:
                    return rows
    return rows


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
