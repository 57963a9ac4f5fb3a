"""`export`: log directories -> Parquet on Spark, all or nothing.

The driver plans splits; tasks decode them and write files (`kbatch.sinks.task`); the driver moves the files of the
tasks' reports into place (`kbatch.sinks.staging`), and publishes the output when all of them are there.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.parquet
from pyspark.sql import SparkSession

from kbatch.batches.framing import scan_part
from kbatch.errors import LogDirectoryError, exists_already, finding_to_error
from kbatch.log import Log
from kbatch.plan.bounds import resolve_bounds
from kbatch.plan.following import log_transactions
from kbatch.plan.missing import MissingOffsets, warn_missing
from kbatch.plan.read_options import DEFAULT_SPLIT_BYTES, ReadOptions
from kbatch.plan.rows import Transform
from kbatch.plan.select import choose_logs, map_logs
from kbatch.plan.split import plan_logs, plan_ranges
from kbatch.plan.transactions import pending_table
from kbatch.sinks.outputs import OutputPlace, open_place
from kbatch.sinks.staging import Staging
from kbatch.sinks.summary import ExportSummary, summarize
from kbatch.sinks.tables import CommittedFile, OutputTable, TableCommitError, open_table
from kbatch.sinks.task import LOSSES_SUFFIX, ExportJob, TaskReport, reports_of
from kbatch.sinks.write_options import WriteOptions
from kbatch.spark.driver.interrupts import HeldInterrupts
from kbatch.spark.driver.jobs import TaskProgress, run_job
from kbatch.spark.driver.session import spark_session
from kbatch.spark.values import value_columns
from kbatch.spark.walk_job import segment_walker
from kbatch.transactions import Transactions
from kbatch.tuning import MIN_SPLIT_BYTES
from kbatch.unfinished import forget_unfinished, unbroken

__all__ = ["LOSSES", "MANIFEST", "TRANSACTIONS", "export"]

# Readers ignore names that begin with an underscore.
MANIFEST = "_manifest.json"
LOSSES = "_losses"
TRANSACTIONS = "_transactions"
# The number of losses that the summary lists; the side table has all of them.
_MAX_LOSSES = 100

# The characters that Spark escapes in names of partition directories (ExternalCatalogUtils.escapePathName).
_ESCAPED = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")


def export(
    logdir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    options: ReadOptions | None = None,
    writing: WriteOptions | None = None,
    table: str | None = None,
    catalog: str | None = None,
    transform: Transform | None = None,
    progress: TaskProgress | None = None,
) -> ExportSummary:
    """Write the records of a log directory as Parquet, partitioned by topic and partition.

    Parameters
    ----------
    logdir : str or path
        A broker's log directory, a topic-partition directory, or one ``.log`` file in such a directory.
    out : str or path
        A directory that must not exist yet, or a URL such as ``s3://bucket/directory`` with no objects below it. An
        existing Delta or Iceberg table is appended to. The notes describe what readers see during the export. If it
        fails or is interrupted, everything that it has written is removed.
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
        Called from time to time with the number of finished tasks and of all tasks.

    Returns
    -------
    ExportSummary

    Raises
    ------
    LogDirectoryError
        If no log exists, or `out` cannot be written; raised before Spark is started.
    CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, ...
        For damage, with ``on_error="raise"``. Everything written is removed.
    MissingDependencyError, SparkStartError
        If the library of a format is not installed, or Spark cannot be started.
    TableCommitError
        If a Delta or Iceberg table does not accept the files.
    ValueError
        For options that conflict with each other or with the logs.

    Notes
    -----
    Files are ``topic=T/partition=N/part-<first offset>-<task>.parquet``, with rows in the order of the log, and columns
    key, value, offset, timestamp, timestampType (and headers) as in Spark's Kafka source; topic and partition are in
    the path, and with ``by_day`` also ``date=YYYY-MM-DD`` below them: the day of the timestamp, in UTC, or
    ``__HIVE_DEFAULT_PARTITION__`` for records without a timestamp. Offsets increase within a file, and from file to
    file of a directory in the order of their names. ``_manifest.json`` holds the summary with the list of files.

    If anything was lost, ``_losses/part-<number>.parq`` are Parquet files with one row per loss, in the order of the
    logs: topic, partition, file, position, length, reason, base_offset. If read_committed withheld records,
    ``_transactions/part-00000.parq`` lists the transactions that are the reason, with the columns of the data source's
    table ``transactions`` and state ``open`` or ``undecided``. Readers do not take them for data: Spark, pyarrow and
    pandas ignore directories of such names, and ``**/*.parquet`` in DuckDB and Polars does not match the files.

    On a mounted file system the directory appears complete, with one rename; until then the files are in
    ``OUT.tmp-<id>`` next to it. An object store has no such rename: tasks write below ``OUT/_temporary-<id>/``, then
    the driver has the files copied into place one by one, and writes ``_manifest.json`` and finally ``_SUCCESS``. A
    reader that does not wait for ``_SUCCESS`` may see only some of the files. (A worker that is killed may leave an
    incomplete multipart upload, which is invisible and which the store's lifecycle rules remove.)

    A Delta or Iceberg table gets the files in one transaction. Manifest and side tables of each run are in
    ``OUT/_export-<id>/``, and files are named ``part-<first offset>-<task>-<id>.parquet``. Iceberg tables are
    partitioned by topic, partition and the day of ``timestamp``; their files have topic and partition as columns.

    Examples
    --------
    >>> import kbatch.spark
    >>> summary = kbatch.spark.export("tests/golden/logs/codec-zstd-0", "/tmp/parquet")  # doctest: +SKIP
    >>> summary.records  # doctest: +SKIP
    3144
    """
    logdir, out = os.fspath(logdir), os.fspath(out)
    options, writing = options or ReadOptions(), writing or WriteOptions()
    if options.table != "records":
        raise ValueError(
            f"table={options.table} is for the data source: an export writes records and a side table of losses"
        )
    if (table is not None or catalog is not None) and writing.format != "iceberg":
        raise ValueError("table and catalog are valid with format iceberg only")
    place = open_place(out, writing.storage)
    if transform is not None and options.values.parsed:
        raise ValueError("give either a transform or formats of keys and values, not both")
    target: OutputTable | None = None
    if writing.format == "delta" or writing.format == "iceberg":
        target = open_table(writing.format, place, by_day=writing.by_day, name=table, catalog=catalog)
    _check_out(place, may_exist=target is not None)
    logs = _export_logs(logdir, options)
    transform = transform or value_columns(options.values, logs, options)
    job = ExportJob([], options, place, writing, transform)
    if target is not None:
        target.check(job.schema)
    began = time.monotonic()
    session = spark_session(master, app_name="kbatch export", conf=conf)
    in_place = target is not None or not place.local
    with (
        contextlib.ExitStack() as to_the_end,
        Staging(place, in_place=in_place) as staging,
        _quiet_pandas(),
        session as spark,
    ):
        ready = time.monotonic()
        options = replace(options, split_bytes=_split_bytes(spark, logs, options, writing))
        missing: list[MissingOffsets] = []
        transactions = _follow(spark, logs, options, bounds := resolve_bounds(logs, options, missing))
        ranges = [(log, *ends, known) for log, ends, known in zip(logs, bounds, transactions, strict=True)]
        job = replace(job, tasks=plan_ranges(ranges, options), options=options, attempts=staging.attempts)
        reports = _run(spark, job, progress) if job.tasks else []
        summary = ExportSummary(logdir, place.url, options.isolation, writing.format)
        summarize(summary, logs, transactions, reports)
        parsed = summary.records * len(options.values.parsed)
        summary.too_many_bad = not writing.tolerates(summary.bad_keys + summary.bad_values, parsed)
        warn_missing(missing)
        summary.missing_offsets = [each._asdict() for each in missing]
        summary.start_seconds = round(ready - began, 3)
        files = _data_files(reports, f"-{staging.run}" if target is not None else "", writing.suffix)
        staging.place([(file.written.name, file.name) for file in files])
        summary.files = [file.name for file in files]
        side = f"_export-{staging.run}/" if target is not None else ""
        _place_losses(staging, side, reports, summary)
        _place_transactions(staging, side, logs, transactions, options, summary)
        summary.seconds = round(time.monotonic() - ready, 3)
        summary.manifest = side + MANIFEST
        staging.write(summary.manifest, json.dumps(summary.to_dict(), indent=1).encode())
        # An interrupt in the middle of a table's commit would leave unknown whether it succeeded, and one while Spark
        # stops would report that nothing was written.
        held = to_the_end.enter_context(HeldInterrupts())
        with unbroken:
            if target is None:
                staging.publish()
            else:
                _commit(target, files, job.schema, staging)
            held.finish()
            forget_unfinished(staging, complete=True)
    return summary


def _check_out(out: OutputPlace, *, may_exist: bool) -> None:
    exists = os.path.lexists(out.url) if out.local else out.exists()
    if exists and not may_exist:
        raise exists_already(out.url)
    if not out.local:
        return
    parent = out.url if exists else os.path.dirname(out.url)
    if not os.path.isdir(parent):
        raise LogDirectoryError(f"{out.url}: the directory {parent} does not exist", source=out.url)
    if not os.access(parent, os.W_OK):
        raise LogDirectoryError(f"{out.url}: no permission to write in {parent}", source=out.url)


def _export_logs(logdir: str, options: ReadOptions) -> list[Log]:
    logs = choose_logs([logdir], options)
    if not logs:
        raise LogDirectoryError(f"{logdir}: the options exclude all of its topic-partitions", source=logdir)
    for log in logs:
        if log.topic is None:
            raise LogDirectoryError(
                f"{log.path}: its directory is not named 'topic-partition', so the topic is unknown",
                source=log.path,
            )
    if options.on_error == "raise":
        _check_first_batches(logs)
    return logs


def _check_first_batches(logs: Sequence[Log]) -> None:
    """Raise before Spark is started if the first batch of a log cannot be read."""

    def check(log: Log) -> None:
        segment = log.segments[0]
        scan = scan_part(segment.window(0, min(segment.size, 1 << 16)), max_batches=1)
        if scan.finding is not None:
            with segment.open() as file:
                if file.tail_at(0).kind == "damaged" or not segment.live:
                    raise finding_to_error(scan.finding, source=segment.path, position=0)

    map_logs(logs, check, logs)


def _split_bytes(spark: SparkSession, logs: Sequence[Log], options: ReadOptions, writing: WriteOptions) -> int:
    """Choose the bytes per task: all cores busy, no tiny tasks, and enough for a file of the requested size."""
    limit = options.split_bytes
    if writing.file_bytes is not None and limit == DEFAULT_SPLIT_BYTES:
        limit = max(limit, writing.file_bytes)
    cores = max(1, spark.sparkContext.defaultParallelism)
    size = sum(log.size for log in logs)
    # The same number of tasks for each core: three equal tasks on two cores would take as long as four.
    turns = max(1, -(-size // (cores * limit)))
    share = size // (cores * turns) + 1
    return min(limit, max(share, MIN_SPLIT_BYTES))


@contextlib.contextmanager
def _quiet_pandas() -> Iterator[None]:
    """Suppress PySpark's warning about new versions of pandas, which the export does not use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
        yield


def _follow(
    spark: SparkSession, logs: Sequence[Log], options: ReadOptions, bounds: Sequence[tuple[int | None, int | None]]
) -> list[Transactions | None]:
    if options.isolation == "read_uncommitted":
        return [None] * len(logs)
    return run_job(spark, lambda: log_transactions(logs, options, bounds, segment_walker(spark)), 0, None)


def _run(spark: SparkSession, job: ExportJob, progress: TaskProgress | None) -> list[TaskReport]:
    tasks = len(job.tasks)

    def collect() -> list[str]:
        reports = spark.range(0, tasks, 1, tasks).mapInArrow(job, "report string")
        return [row.report for row in reports.collect()]

    return reports_of(run_job(spark, collect, tasks, progress))


def _data_files(reports: Sequence[TaskReport], run: str, suffix: str) -> list[CommittedFile]:
    """Name the files of the reports."""
    files: list[CommittedFile] = []
    taken: set[str] = set()
    for report in reports:
        for written in report.files:
            directory = f"topic={_escape(report.topic)}/partition={report.partition}"
            if written.date is not None:
                directory += f"/date={written.date}"
            stem = f"{directory}/part-{written.first_offset:020d}-{report.task:05d}{run}"
            name, again = stem, 0
            while name in taken:
                again += 1
                name = f"{stem}-{again}"
            taken.add(name)
            files.append(CommittedFile(name + suffix, report.topic, report.partition, written))
    return files


def _place_losses(staging: Staging, side: str, reports: Sequence[TaskReport], summary: ExportSummary) -> None:
    """Move the files of losses into the side table, in the order of the logs."""
    sources = [report.losses_file for report in reports if report.losses_file is not None]
    if not sources:
        return
    summary.losses_table = side + LOSSES
    names = [f"{side}{LOSSES}/part-{number:05d}{LOSSES_SUFFIX}" for number in range(len(sources))]
    staging.place(list(zip(sources, names, strict=True)))
    for name in names:
        with staging.data.fs.open_input_file(staging.data.path(name)) as stream:
            for batch in pyarrow.parquet.ParquetFile(stream).iter_batches(_MAX_LOSSES):
                summary.losses += batch.slice(0, _MAX_LOSSES - len(summary.losses)).to_pylist()
                if len(summary.losses) == _MAX_LOSSES:
                    return


def _place_transactions(
    staging: Staging,
    side: str,
    logs: Sequence[Log],
    transactions: Sequence[Transactions | None],
    options: ReadOptions,
    summary: ExportSummary,
) -> None:
    """Write the side table of the transactions for which records were withheld."""
    if not any(each is not None and each.pending for each in transactions):
        return
    ranges = [each for task in plan_logs(logs, options, []) for each in task]
    # Only partitions with withheld batches are listed.
    parts = zip(logs, transactions, ranges, summary.partitions, strict=True)
    held = [(log, known, each) for log, known, each, part in parts if known is not None and part.undecided_batches]
    rows = pending_table(held, options)
    if not rows.num_rows:
        return
    sink = io.BytesIO()
    pyarrow.parquet.write_table(rows, sink, compression="zstd")
    staging.write(f"{side}{TRANSACTIONS}/part-00000{LOSSES_SUFFIX}", sink.getvalue())
    summary.withheld_transactions = rows.num_rows
    summary.transactions_table = side + TRANSACTIONS


def _commit(target: OutputTable, files: Sequence[CommittedFile], schema: Any, staging: Staging) -> None:
    try:
        target.commit(files, schema)
        staging.published = True
    except TableCommitError as error:
        staging.published = error.unknown
        raise


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
