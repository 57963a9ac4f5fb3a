"""A run of an export, from the lock of its output to the commit; threads or Spark run its tasks.

The driver plans splits (`kbatch.plan`), tasks decode them and write files (`kbatch.sinks.task`), and the driver commits
the files of the tasks' reports together with the positions of the logs.
"""

from __future__ import annotations

import functools
import io
import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.parquet

from kbatch.errors import LogDirectoryError
from kbatch.log import Log
from kbatch.log.missing import MissingOffsets, report_data_loss, warn_missing
from kbatch.plan.arrow_batches import Transform
from kbatch.plan.planner import LogRange, LogRead, Mapper
from kbatch.plan.positions import LogChange, Position, Positions
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import Task
from kbatch.plan.tasks import task_options
from kbatch.plan.transaction_rows import pending_table
from kbatch.plan.value_columns import value_columns
from kbatch.sinks.commits import Commit, CommittedFile, LogName, RunTarget
from kbatch.sinks.counts import Progress
from kbatch.sinks.directories import DirectoryTarget, StoreTarget
from kbatch.sinks.file_names import LOSSES, TRANSACTIONS
from kbatch.sinks.offset_ranges import CommitOffsets, OffsetRange
from kbatch.sinks.outputs import OutputPlace
from kbatch.sinks.run_input import RunInput
from kbatch.sinks.run_record import RunRecord, RunReport
from kbatch.sinks.schema_changes import SchemaChange
from kbatch.sinks.sizing import task_bytes
from kbatch.sinks.summary import MAX_LISTED, ExportSummary, LogFacts, PartitionSummary, RunTotals, sum_reports
from kbatch.sinks.table_target import TableTarget
from kbatch.sinks.task import ExportJob, TaskReport, output_schema
from kbatch.sinks.working import RUN_DIGITS, WORK_PREFIX, RunLock
from kbatch.sinks.write_options import WriteOptions
from kbatch.transactions import Transactions
from kbatch.unfinished import forget_unfinished, register_unfinished, unbroken

__all__ = ["Executor", "ExportRun", "Limit", "open_target"]

# The directory of the counts of running tasks, within the work directory. Readers ignore it.
_COUNTERS = "_counters"

# The logs whose transactions may withhold records, by their number in the run.
_PendingLogs = dict[int, tuple[Log, Transactions, LogRange]]

# Called with the logs, and the offset at which each continues, or None. Returns the offsets at which the run begins and
# ends in each log; None means the bound in the options.
Limit: TypeAlias = Callable[[Sequence[Any], Sequence[int | None]], Sequence[tuple[int | None, int | None]]]


class Executor(Protocol):
    """Runs the tasks.

    Attributes
    ----------
    cores : int
    mapper : Mapper or None
        As for `kbatch.plan.planner.plan_reads`.
    """

    cores: int

    @property
    def mapper(self) -> Mapper | None:
        """Plans logs in parallel if they are many or large."""

    def run(self, job: ExportJob, tasks: Sequence[Task[Any]], progress: Progress | None) -> Iterator[TaskReport]:
        """Run the job for each task; return the reports in the order of the tasks."""


def open_target(out: OutputPlace, writing: WriteOptions, *, table: str | None, catalog: str | None) -> RunTarget:
    """Return the output of a new run.

    Raises
    ------
    MissingDependencyError
        If the library of a table is not installed.
    TableCommitError, ValueError
        If the catalog of an Iceberg table does not exist, or the table's name is missing.
    """
    run = uuid.uuid4().hex[:RUN_DIGITS]
    if writing.format == "delta":
        from kbatch.sinks.delta import DeltaTable

        return TableTarget(out, run, DeltaTable(out, writing.by_day), in_table=True)
    if writing.format == "iceberg":
        from kbatch.sinks.iceberg import IcebergTable

        if table is None:
            raise ValueError("format iceberg needs the table's name, such as db.orders")
        return TableTarget(out, run, IcebergTable(out, writing.by_day, table, catalog), in_table=False)
    return DirectoryTarget(out, run) if out.local else StoreTarget(out, run)


class _Outcome:
    """The contents of the reports that the commit needs: data files, files of losses, and positions after the run."""

    def __init__(self, logs: LogFacts, before: Positions, changes: Sequence[LogChange]) -> None:
        self.files: list[CommittedFile] = []
        self.loss_files: list[str] = []
        self.positions = dict(before)
        names = zip(logs.names, logs.topic_ids, strict=True)
        self._ids = {name: topic_id for name, topic_id in names if topic_id is not None}
        for change in changes:
            key = (change.topic, change.partition)
            self.positions[key] = Position(change.resumed_at, None, self._ids.get(key))

    def kept(self, reports: Iterable[TaskReport]) -> Iterator[TaskReport]:
        """Yield the reports, and keep the fields for the commit."""
        for report in reports:
            self.files += [CommittedFile(report.topic, report.partition, written) for written in report.files]
            if report.losses_file is not None:
                self.loss_files.append(report.losses_file)
            self._advance(report)
            yield report

    def _advance(self, report: TaskReport) -> None:
        key, end = (report.topic, report.partition), report.end_offset
        known = self.positions.get(key)
        if end is None or (known is not None and end <= known.next_offset):
            return
        topic_id = self._ids.get(key)
        if known is None or report.has_batches:
            position = Position(end, report.leader_epoch, topic_id, report.batch_crc, report.record_crc)
        else:
            # The task found only missing offsets.
            position = Position(end, known.leader_epoch, topic_id)
        self.positions[key] = position


class ExportRun:
    """One run of an export: a context manager that locks the output, and removes the run's files unless it commits.

    Parameters
    ----------
    source : RunInput
    target : RunTarget
    logs : sequence
        Logs of `source`, with topic and partition.
    options : ReadOptions
    writing : WriteOptions
    transform : Transform or None
        None parses keys and values according to the options.
    engine : (str, str)
        The name of the engine and the reason for choosing it, for the summary.
    limit : Limit, optional
        Limits the run to a part of the new records.
    within : RunLock, optional
        A lock of the output that the caller holds over several runs.

    Raises
    ------
    LogDirectoryError
        From ``with``: if the output cannot be written, another run is writing to it, the mode does not allow its data,
        a log has changed since the last run, or the columns of the new records conflict with those of the output.
    """

    def __init__(
        self,
        source: RunInput,
        target: RunTarget,
        logs: Sequence[Any],
        options: ReadOptions,
        writing: WriteOptions,
        transform: Transform | None,
        engine: tuple[str, str] = ("", ""),
        *,
        limit: Limit | None = None,
        within: RunLock | None = None,
    ) -> None:
        self._source = source
        self._engine = engine
        self._target = target
        self._logs = logs
        self._options = options
        self._writing = writing
        self._transform = transform
        self._limit = limit
        self._within = within
        self._work: RunLock | None = None
        self._last_run: str | None = None
        self._before: Positions = {}
        self._exists = False
        self._outcome: tuple[Commit, ExportSummary] | None = None
        self._record = RunRecord(target.out)
        self._unseen: list[dict[str, Any]] = []
        self._starts: list[int | None] = []
        # Where the reads begin and end; None, or no entry, means the bound in the options.
        self._begins: Sequence[int | None] = []
        self._stops: Sequence[int | None] | None = None
        self._changes: list[LogChange] = []
        self._missing: list[MissingOffsets] = []
        self._schema_changes: list[SchemaChange] = []
        self._reads: list[LogRead] | None = None
        # The start of planning, and the seconds between the first part of planning and `run`.
        self._began = time.monotonic()
        self._planned = self._began
        self._start_seconds = 0.0
        self.committed = False

    @property
    def schema(self) -> pa.Schema:
        """The schema of the data files."""
        return output_schema(self._options, self._writing, self._transform)

    def __enter__(self) -> ExportRun:
        target = self._target
        target.check_place()
        parent, prefix = target.work_directory()
        self._work = RunLock(target.out, parent, prefix, target.run)
        register_unfinished(self, self._end)
        try:
            dead = self._work.acquire(self._within)
            target.recover(dead)
            for run in dead:
                self._work.remove(run)
            self._load()
            self._begins = self._starts
            if self._limit is not None:
                bounds = self._limit(self._logs, self._starts)
                self._begins, self._stops = zip(*bounds, strict=True)
            self._choose_columns()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Files are removed one by one; an interrupt must not end this early.
        with unbroken:
            self._end()

    def _end(self) -> None:
        target, work = self._target, self._work
        if work is not None:
            self._work = None
            if not target.committed:
                target.undo()
            # The next run finishes a commit that has begun but failed.
            work.release(keep=target.committed and not self.committed)
        forget_unfinished(self)

    def _load(self) -> None:
        """Load the unseen reports and the positions, and compare the positions with the logs."""
        names = self._record.names(unseen=True)[:MAX_LISTED]
        self._unseen = [{"report": name, **each.to_dict()} for name, each in self._record.read(names).items()]
        state = self._target.load([_log_name(log) for log in self._logs])
        self._exists = state.exists
        self._last_run = state.run
        mode, out = self._writing.mode, self._target.out.url
        if state.exists and mode == "error":
            raise LogDirectoryError(
                f"{out}: already has data; mode continue adds what is new, and overwrite replaces it", source=out
            )
        if mode == "overwrite":
            self._starts = [None] * len(self._logs)
            return
        if state.positions is None:
            raise LogDirectoryError(
                f"{out}: has data, but no positions at which an export could continue, because another program wrote "
                "it; mode overwrite replaces the data",
                source=out,
            )
        self._before = state.positions
        self._starts, self._changes = self._source.continued(self._logs, self._before)
        for change in self._changes:
            report_data_loss(change.reason, fails=self._options._for_topic(change.topic).fail_on_data_loss)

    def _choose_columns(self) -> None:
        """Create the parsers of keys and values, and check their columns against those of the data."""
        target, writing, values = self._target, self._writing, self._options.values
        replaces = writing.mode == "overwrite"
        if self._transform is None and values.parsed:
            self._transform = value_columns(
                values,
                self._logs,
                self._options,
                flatten=writing.flatten,
                earlier=None if replaces else target.data_schema(),
                starts=self._begins if writing.new_fields == "add" else None,
                sampled=self._source.sampled,
            )
        self._schema_changes = target.check_columns(self.schema, by_day=writing.by_day, replace=replaces)

    def has_nothing_to_read(self) -> bool:
        """Plan the reads, unless the engine plans them faster; return whether there is nothing to read.

        If there is nothing to read, `run` needs no executor.
        """
        self._began = time.monotonic()
        if self._source.plans_fast(self._logs, self._options, self._begins):
            self._reads = self._source.plan(self._logs, self._options, self._begins, self._stops)
        self._planned = time.monotonic()
        return self._reads is not None and not any(read.splits for read in self._reads)

    def run(self, executor: Executor | None, progress: Progress | None) -> None:
        """Plan, run the tasks, and write the side tables; `commit` is the next step."""
        self._start_seconds = time.monotonic() - self._planned
        source = self._source
        job = ExportJob(
            task_options(self._options), self._target.names(), self._writing, self._transform, reader=source.reader
        )
        logs, options, reads = self._logs, self._options, self._reads or []
        if executor is not None:
            size = sum(log.size for log in logs)
            if reads:
                size = sum(split.bytes for read in reads for split in read.splits)
            share = task_bytes(executor.cores, functools.partial(source.samples, logs), job, size)
            options = replace(options, split_bytes=share)
            if self._reads is None:
                reads = source.plan(logs, options, self._begins, self._stops, executor.mapper)
        self._missing += [each for read in reads for each in read.missing]
        tasks = source.divide(logs, reads, options)
        plan_seconds = self._seconds
        # Logs and splits take as much memory as the rest of the run. They are released before the reports are loaded
        # and the table is committed, which needs the most memory.
        facts, held = LogFacts(logs), _pending_logs(logs, reads)
        begins = [_read_begin(log, read) for log, read in zip(logs, reads, strict=True)]
        transactions, withheld = [read.transactions for read in reads], [read.withheld for read in reads]
        self._logs, self._reads = (), None
        del logs, reads
        reports: Iterable[TaskReport] = ()
        if tasks:
            assert executor is not None
            reports = self._run_tasks(executor, job, tasks, progress)
        del tasks
        task_seconds = self._seconds - plan_seconds
        files = _Outcome(facts, self._before, self._changes)
        totals = sum_reports(facts, transactions, files.kept(reports), self._starts, withheld)
        seconds = {"plan_seconds": round(plan_seconds, 3), "task_seconds": round(task_seconds, 3)}
        commit, summary = self._collect(held, files, totals, seconds)
        self._outcome = replace(commit, offsets=self._offsets(begins, files, totals)), summary

    @property
    def _seconds(self) -> float:
        """The seconds since planning began, without the time between its first part and `run`."""
        return time.monotonic() - self._began - self._start_seconds

    def _run_tasks(
        self, executor: Executor, job: ExportJob, tasks: Sequence[Task[Any]], progress: Progress | None
    ) -> Iterator[TaskReport]:
        assert self._work is not None
        if progress is None or not self._target.out.local:
            return executor.run(job, tasks, progress)
        counters = self._work.place.at(_COUNTERS)
        counters.make()
        try:
            return executor.run(replace(job, counters=counters.path()), tasks, progress)
        finally:
            counters.remove_all()

    def _offsets(self, begins: Sequence[int], outcome: _Outcome, totals: RunTotals) -> str:
        """Return text with the offsets that the commit covers."""
        restarts = {(each.topic, each.partition): each.kind for each in self._changes}
        ranges: dict[tuple[str, int], OffsetRange] = {}
        for part, begin in zip(totals.partitions, begins, strict=True):
            name = (part.topic, part.partition)
            restart, position = restarts.get(name, ""), outcome.positions.get(name)
            end = begin if position is None else max(begin, position.next_offset)
            if end > begin or restart:
                has_losses = int(part.lost_bytes + part.gap_offsets > 0)
                ranges[name] = OffsetRange(begin, end, part.records, has_losses, restart)
        options = self._options
        after = None if self._writing.mode == "overwrite" else self._last_run
        return CommitOffsets(
            after, options.isolation, options.include_control, options.key is not None, ranges
        ).to_text()

    def _collect(
        self, pending: _PendingLogs, outcome: _Outcome, totals: RunTotals, seconds: dict[str, Any]
    ) -> tuple[Commit, ExportSummary]:
        """Write the side tables; return the commit, and the summary up to the commit."""
        counts, mode = totals.counts, self._writing.mode
        warn_missing(self._missing)
        side = self._withheld_table(pending, totals.partitions)
        replaces = mode == "overwrite" and self._exists
        is_new = bool(outcome.files) or replaces or not self._exists or outcome.positions != dict(self._before)
        action = "replaced" if replaces else "created" if not self._exists else "continued"
        parsed = counts.records * len(self._options.values.parsed)
        names = self._target.names()
        summary = ExportSummary(
            self._source.name,
            self._target.out.url,
            self._options.isolation,
            self._writing.format,
            **counts.fields_of(ExportSummary),
            **seconds,
            batches=dict(sorted(counts.codecs.items())),
            losses=self._first_losses(outcome.loss_files),
            losses_table=names.side + LOSSES if outcome.loss_files else None,
            include_control=self._options.include_control and self._options.key is None,
            withheld_transactions=side,
            transactions_table=names.side + TRANSACTIONS if side else None,
            partitions=totals.partitions,
            withheld_offsets=sum(part.withheld_offsets for part in totals.partitions),
            files=[file.name for file in outcome.files],
            manifest=self._target.manifest,
            start_seconds=round(self._start_seconds, 3),
            too_many_bad=not self._writing.tolerates(counts.bad, parsed),
            missing_offsets=[each._asdict() for each in self._missing],
            mode=mode,
            engine=self._engine[0],
            engine_reason=self._engine[1],
            run=self._target.run,
            action=action if is_new else "unchanged",
            changes=[change._asdict() for change in self._changes],
            deviations=totals.deviations,
            gaps=totals.gaps,
            schema_changes=[asdict(each) for each in self._schema_changes] if is_new else [],
            unseen_reports=self._unseen,
        )
        summary._record, summary._followed = self._record, totals.followed
        side_files = [*outcome.loss_files, *([names.transactions_file] if side else [])]
        return Commit(replaces, outcome.files, side_files, self.schema, outcome.positions), summary

    def commit(self) -> ExportSummary:
        """Publish the files and positions; write nothing if there is nothing new.

        Raises
        ------
        TableCommitError
            As `RunTarget.commit`.
        """
        assert self._outcome is not None
        commit, summary = self._outcome
        began = time.monotonic()
        summary.seconds = round(self._seconds, 3)
        with unbroken:
            if summary.action != "unchanged":
                summary.report = self._write_report(summary)
                commit = replace(commit, summary=summary._manifest_fields(), report=summary.report or None)
                self._target.commit(commit)
                self.committed = True
            summary.commit_seconds = round(time.monotonic() - began, 3)
            summary.seconds = round(self._seconds, 3)
            # An export that follows logs has more runs, which an interrupt must undo.
            forget_unfinished(self, complete=self._limit is None)
        return summary

    def keep_lock(self) -> RunLock:
        """Return a lock of the output that outlives this run; other exports fail until it is released."""
        lock = RunLock(self._target.out, self._target.out, WORK_PREFIX, uuid.uuid4().hex[:RUN_DIGITS])
        lock.acquire(self._work)
        return lock

    def _write_report(self, summary: ExportSummary) -> str:
        """Write the report of this run, if it has anything to report; return its name."""
        ended = datetime.now(UTC)
        report = RunReport.of(summary, ended)
        if not report.has_content:
            return ""
        name = RunRecord.name(self._target.run, ended)
        self._target.names().place.write(name, json.dumps(report.to_dict(), indent=1).encode())
        return name

    def _first_losses(self, files: Sequence[str]) -> list[dict[str, Any]]:
        place = self._target.names().place
        losses: list[dict[str, Any]] = []
        for name in files:
            with place.fs.open_input_file(place.path(name)) as stream:
                for batch in pyarrow.parquet.ParquetFile(stream).iter_batches(MAX_LISTED):
                    losses += batch.slice(0, MAX_LISTED - len(losses)).to_pylist()
                    if len(losses) == MAX_LISTED:
                        return losses
        return losses

    def _withheld_table(self, pending: _PendingLogs, partitions: Sequence[PartitionSummary]) -> int:
        """Write a table of the transactions for which records were withheld, if any; return their number."""
        # Only partitions with withheld batches are listed.
        held = [row for number, row in pending.items() if partitions[number].undecided_batches]
        rows = pending_table(held, self._options) if pending else None
        if not rows:
            return 0
        sink = io.BytesIO()
        pyarrow.parquet.write_table(rows, sink, compression="zstd")
        names = self._target.names()
        names.place.write(names.transactions_file, sink.getvalue())
        return int(rows.num_rows)


def _pending_logs(logs: Sequence[Log], reads: Sequence[LogRead]) -> _PendingLogs:
    """Return the logs whose transactions may withhold records, by number."""
    return {
        number: (log, read.transactions, LogRange(log.path, read.start, read.stop))
        for number, (log, read) in enumerate(zip(logs, reads, strict=True))
        if read.transactions is not None and read.transactions.pending
    }


def _read_begin(log: Any, read: LogRead) -> int:
    """Return the offset at which a read begins."""
    return (log.segments[0].base_offset or 0) if read.start is None else read.start


def _log_name(log: Any) -> LogName:
    assert log.topic is not None
    assert log.partition is not None
    return LogName(log.topic, log.partition, None if log.topic_id is None else str(log.topic_id))
