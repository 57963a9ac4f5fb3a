"""A task of an export: reads splits, and writes data files and a report.

Tasks write with pyarrow, because Spark's own writer takes five times as long. Each attempt writes files with unique
names, which count only if its report reaches the driver. A task that runs twice, or dies halfway, therefore cannot
duplicate records. A task gets only its own splits.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from kbatch.batches.codecs import codec_name
from kbatch.errors import KbatchError, LogDirectoryError
from kbatch.escaping import one_line
from kbatch.format import ATTRIBUTE_CODEC, NO_TIMESTAMP, BatchStatus
from kbatch.log.gaps import SegmentGap
from kbatch.plan.arrow_batches import Transform
from kbatch.plan.loss_rows import LOSS_SCHEMA, LossRows
from kbatch.plan.positions import known_epoch, record_checksum
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import Split
from kbatch.plan.tasks import task_tables
from kbatch.records.display import changed_fields
from kbatch.records.kafka_columns import SPARK_COLUMNS, spark_batches, spark_schema
from kbatch.sinks.counts import Counts, TaskCounter
from kbatch.sinks.file_names import FileNames
from kbatch.sinks.files import DataFiles, FileLimits, WrittenFile
from kbatch.sinks.outputs import OutputPlace
from kbatch.sinks.task_transactions import TaskTransactions
from kbatch.sinks.write_options import WriteOptions
from kbatch.table import RecordTable
from kbatch.transactions import are_control
from kbatch.values.typed_columns import ValueColumns, ValueCounts

__all__ = ["ExportJob", "TaskReader", "TaskReport", "output_schema", "reports_of", "written_columns"]


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The result of one task for one topic-partition. The task sends it to the driver as JSON.

    Attributes
    ----------
    task : int
    topic : str
    partition : int
    counts : Counts
    files : list of WrittenFile
        The data files; none if there were no records.
    gaps : list of dict
        Offsets that are missing between two segments for an unknown reason: first_offset, last_offset, and the files
        before and after.
    deviations : list of [on, kind, field, reason, occurrences, offset]
        The fields that do not fit an inferred schema, like `kbatch.values.FieldDeviation`, with the first offset.
    losses_file : str or None
        Name of the file of losses, relative to the place of `FileNames`; None if nothing was lost.
    begin_offset, end_offset : int or None
        The base offset of the first batch read, and the offset after the last batch and any missing offsets after it;
        None without either.
    leader_epoch : int or None
        The leader epoch of the last batch; None if it has none.
    batch_crc, record_crc : int or None
        The checksums of the batch and the record with the offset before `end_offset`, as in `Position`.
    transactions : TaskTransactions
    """

    task: int
    topic: str
    partition: int
    counts: Counts = field(default_factory=Counts)
    files: list[WrittenFile] = field(default_factory=list)
    gaps: list[dict[str, Any]] = field(default_factory=list)
    deviations: list[list[Any]] = field(default_factory=list)
    losses_file: str | None = None
    begin_offset: int | None = None
    end_offset: int | None = None
    leader_epoch: int | None = None
    batch_crc: int | None = None
    record_crc: int | None = None
    transactions: TaskTransactions = field(default_factory=TaskTransactions)

    @property
    def has_batches(self) -> bool:
        """Whether batches were read, omitted or withheld; False if there were only missing offsets."""
        return self.counts.log_bytes + self.counts.aborted_bytes + self.counts.undecided_bytes > 0

    def to_json(self) -> str:
        """Return the report for `reports_of`, without defaults, because the driver holds the reports of all tasks."""
        return json.dumps(changed_fields(self), default=changed_fields)

    def with_table(
        self,
        table: RecordTable,
        *,
        bad_crc_accepted: bool,
        limit: int | None = None,
        follows: bool = True,
        is_history: bool = False,
    ) -> TaskReport:
        """Add a table; `follows` is False if the key index has excluded bytes before it, whose offsets are unknown.

        Batches with a wrong checksum count as read if they were accepted, else as losses. The next run reads batches
        from the offset `limit` on again.
        """
        # A batch that is split over several tables counts once.
        batches = table.batches[table.continued :]
        status = batches["status"]
        good = (status == BatchStatus.OK) | (status == BatchStatus.BAD_INNER_CRC)
        lost = np.isin(batches["position"], table.losses.positions)
        good |= (status == BatchStatus.BAD_CRC) & bad_crc_accepted & ~lost
        read = batches[good]
        aborted, undecided = (batches["size"][status == s] for s in (BatchStatus.ABORTED, BatchStatus.UNDECIDED))
        decided = batches[good | (status == BatchStatus.ABORTED) | (status == BatchStatus.UNDECIDED)]
        if limit is not None:
            decided = decided[decided["base_offset"] < limit]
        control = decided[are_control(decided)]
        numbers, codecs = np.unique(read["attributes"] & ATTRIBUTE_CODEC, return_counts=True)
        counts = Counts(
            records=len(table),
            control_records=int(control["record_count"].sum(dtype=np.int64)),
            log_bytes=int(read["size"].sum()),
            codecs={codec_name(n): count for n, count in zip(numbers.tolist(), codecs.tolist(), strict=True)},
            bad_crc_batches=int(np.count_nonzero(read["status"] == BatchStatus.BAD_CRC)),
            aborted_batches=len(aborted),
            aborted_bytes=int(aborted.sum()),
            undecided_batches=len(undecided),
            undecided_bytes=int(undecided.sum()),
            lost_bytes=int(table.losses.lengths.sum()),
            loss_count=len(table.losses),
            removed_offsets=0 if table.losses else self._removed_offsets(decided, follows),
            history_records=len(table) if is_history else 0,
            history_bytes=int(read["size"].sum()) if is_history else 0,
        )
        last_loss = int(table.losses.positions.max()) if table.losses else None
        transactions = self.transactions.with_batches(decided, last_loss)
        report = replace(self, counts=self.counts + counts, transactions=transactions)
        return report._with_end(decided, limit)._with_records(table)

    def _removed_offsets(self, batches: npt.NDArray[np.void], follows: bool) -> int:
        """Return the number of offsets that compaction has removed, within batches and between them and the end."""
        if not len(batches) or batches["magic"].min() < 2:
            return 0
        last = batches["last_offset"]
        before = self.end_offset if follows else None
        before = int(batches["base_offset"][0]) if before is None else before
        spans = last - np.concatenate([[before - 1], last[:-1]])
        return int(np.maximum(spans - batches["record_count"], 0).sum())

    def _with_end(self, batches: npt.NDArray[np.void], limit: int | None) -> TaskReport:
        """Move the end after batches."""
        if not len(batches):
            return self
        begin = int(batches["base_offset"][0]) if self.begin_offset is None else self.begin_offset
        # Offsets may descend in a damaged log.
        row = int(batches["last_offset"].argmax())
        end = int(batches["last_offset"][row]) + 1
        if self.end_offset is not None and end <= self.end_offset:
            return replace(self, begin_offset=begin)
        return replace(
            self,
            begin_offset=begin,
            end_offset=end if limit is None else min(end, limit),
            leader_epoch=known_epoch(batches[row]),
            batch_crc=int(batches["crc"][row]),
            record_crc=None,
        )

    def _with_records(self, table: RecordTable) -> TaskReport:
        """Add the ranges of a table's records, and the checksum of the last one."""
        offsets, timestamps = table.records["offset"], table.records["timestamp"]
        if not len(offsets):
            return self
        row = int(offsets.argmax())
        last = int(offsets[row])
        known = timestamps[timestamps != NO_TIMESTAMP]
        ranges = Counts(
            first_offset=int(offsets.min()),
            last_offset=last,
            first_timestamp=int(known.min()) if len(known) else None,
            last_timestamp=int(known.max()) if len(known) else None,
        )
        is_end = last + 1 == self.end_offset
        checksum = record_checksum(table, row) if is_end else self.record_crc
        return replace(self, counts=self.counts + ranges, record_crc=checksum)

    def with_gap(self, gap: SegmentGap) -> TaskReport:
        """Add missing offsets after the last batch; the next run does not look for them again."""
        begin = gap.first_offset if self.begin_offset is None else self.begin_offset
        if gap.compacted:
            report = replace(self, counts=self.counts + Counts(removed_offsets=gap.offset_count), begin_offset=begin)
        else:
            names = ("first_offset", "last_offset", "before", "after")
            counts = self.counts + Counts(gap_offsets=gap.offset_count, gap_count=1)
            gaps = [*self.gaps, {name: getattr(gap, name) for name in names}]
            report = replace(self, counts=counts, gaps=gaps, begin_offset=begin)
        if self.end_offset is not None and self.end_offset > gap.last_offset:
            return report
        return replace(report, end_offset=gap.last_offset + 1, batch_crc=None, record_crc=None)

    def with_files(self, files: list[WrittenFile], losses_file: str | None, values: ValueCounts) -> TaskReport:
        """Add the files, and the counts of keys and values that their columns do not represent."""
        counts = Counts(
            file_count=len(files),
            file_bytes=sum(file.file_bytes for file in files),
            bad_keys=values.unparsed["key"],
            bad_values=values.unparsed["value"],
            incomplete_keys=values.incomplete["key"],
            incomplete_values=values.incomplete["value"],
        )
        deviations = [[*key, count, *place] for key, (count, place) in values.deviations.found.items()]
        return replace(self, counts=self.counts + counts, files=files, losses_file=losses_file, deviations=deviations)


@dataclass
class _LogShare:
    """The bytes of a log that a task must read, and has read so far."""

    size: int
    done: int = 0

    def left(self, more: float) -> float:
        """Return the bytes to read after `more` bytes, as a multiple of the bytes before."""
        done = self.done + more
        return math.inf if done <= 0 else max(0.0, self.size - done) / done


class TaskReader(Protocol):
    """Reads the parts of tasks; pickled with the job."""

    def tables(
        self, parts: Any, options: ReadOptions, columns: tuple[str, ...] | None, gaps: list[SegmentGap]
    ) -> Iterator[tuple[Any, RecordTable]]:
        """Yield the tables of a task, like `kbatch.plan.tasks.task_tables`."""

    def stop(self) -> None:
        """Make the reads of this process end soon; another thread calls this."""


@dataclass(frozen=True)
class ExportJob:
    """The function that runs tasks. It is pickled for all tasks, so it holds only plain values and no splits.

    Attributes
    ----------
    options : ReadOptions
    names : FileNames
        The names of files, at a place to which every worker can write.
    writing : WriteOptions
    transform : Transform or None
        Applied to each batch of records before it is written.
    limits : FileLimits
    counters : str or None
        The directory of the counts of running tasks (`TaskCounter`).
    reader : TaskReader or None
        Reads the parts of tasks if they are not splits of files.
    """

    options: ReadOptions
    names: FileNames
    writing: WriteOptions = field(default_factory=WriteOptions)
    transform: Transform | None = None
    limits: FileLimits = field(default_factory=FileLimits)
    counters: str | None = None
    reader: TaskReader | None = None

    @property
    def schema(self) -> pa.Schema:
        """The schema of the files."""
        return output_schema(self.options, self.writing, self.transform)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of records before the transform."""
        return written_columns(self.options, self.writing)

    def __call__(self, tasks: Iterable[tuple[int, Sequence[Split]]]) -> Iterator[str]:
        """Run numbered tasks; yield a report, as JSON, for each topic-partition of a task."""
        for task, splits in tasks:
            for report in self.run(task, splits):
                yield report.to_json()

    def run(
        self, task: int, splits: Sequence[Split], count: Callable[[Counts], None] | None = None
    ) -> list[TaskReport]:
        """Run a task; return a report for each of its topic-partitions.

        `count` is called with the counts of each written table, instead of `counters`.
        """
        try:
            with TaskCounter(self.counters if count is None else None, task) as counter:
                return self._export(task, splits, counter.add if count is None else count)
        except KbatchError:
            raise
        except Exception as error:
            # Only one line reaches the user; a bare `[Errno 28]` would not be enough.
            files = ", ".join(sorted({split.path for split in splits})[:3])
            raise KbatchError(f"while exporting {files}: {type(error).__name__}: {one_line(error)}") from error

    def stop(self) -> None:
        """Make reads of this process that wait for a broker end; another thread calls this."""
        if self.reader is not None:
            self.reader.stop()

    def _export(self, task: int, splits: Sequence[Split], count: Callable[[Counts], None]) -> list[TaskReport]:
        place = self.names.place
        if place.local and not place.exists():
            raise LogDirectoryError(
                f"{place.url}: not found by a Spark worker; the output must be on a file system that the driver and "
                "all workers share",
                source=place.url,
            )
        reports: list[TaskReport] = []
        gaps: list[SegmentGap] = []
        read: Any = task_tables if self.reader is None else self.reader.tables
        tables: Iterable[tuple[Any, RecordTable]] = read(splits, self.options, self.columns, gaps)
        for log, of_log in groupby(tables, lambda each: each[0].log):
            losses = _LossFile(self.names.place, self.names.losses_file(task, len(reports) + 1))
            chosen = [each for each in splits if each.log == log]
            reports.append(self._export_log(task, chosen, of_log, gaps, losses, count))
        return reports

    def _export_log(
        self,
        task: int,
        splits: Sequence[Split],
        tables: Iterable[tuple[Split, RecordTable]],
        gaps: list[SegmentGap],
        losses: _LossFile,
        count: Callable[[Counts], None],
    ) -> TaskReport:
        """Write the tables of a log's splits; `gaps` has the missing offsets that belong to the current table."""
        topic, partition = splits[0].topic, splits[0].partition
        assert topic is not None
        assert partition is not None
        report, values = TaskReport(task, topic, partition), ValueCounts()
        reading = _LogShare(sum(each.bytes for each in splits))
        before: Split | None = None
        with (
            DataFiles(
                self.names, (topic, partition), task, self.schema, self.writing, splits[0].log, self.limits
            ) as files,
            losses,
        ):
            for split, table in tables:
                for gap in gaps:
                    report = report.with_gap(gap)
                gaps.clear()
                excluded = split.bytes_after(before)
                before = split
                accepted = self.options.crc == "mark"
                report = report.with_table(
                    table,
                    bad_crc_accepted=accepted,
                    limit=split.limit,
                    follows=not excluded,
                    is_history=split.is_history,
                )
                losses.write(split, table)
                self._write(files, values, table, reading)
                reading.done += excluded + table.consumed
                count(Counts(read_bytes=excluded + table.consumed, records=len(table)))
                del table
        return report.with_files(files.written, losses.written, values)

    def _write(self, files: DataFiles, counts: ValueCounts, table: RecordTable, reading: _LogShare) -> None:
        batches = spark_batches(
            table,
            self.columns,
            self.writing.row_group_rows,
            self.writing.row_group_bytes,
            overflow=self.options.timestamp_overflow,
        )
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            if isinstance(self.transform, ValueColumns):
                written = self.transform.apply(batch, counts)
            else:
                written = batch if self.transform is None else self.transform.apply(batch)
            if written.num_rows != batch.num_rows:
                raise KbatchError(
                    f"the transform must keep the number of rows, got {written.num_rows} for {batch.num_rows}"
                )
            left = reading.left(table.consumed * rows / len(table))
            files.write(written, batch.column("offset"), batch.column("timestamp"), left)


def output_schema(options: ReadOptions, writing: WriteOptions, transform: Transform | None) -> pa.Schema:
    """Return the schema of the files of an export."""
    schema = spark_schema(written_columns(options, writing))
    return schema if transform is None else transform.schema(schema)


def written_columns(options: ReadOptions, writing: WriteOptions) -> tuple[str, ...]:
    """Return Spark's columns, except the columns in the names of directories."""
    columns = SPARK_COLUMNS[:-1] if options.include_headers is False else SPARK_COLUMNS
    return tuple(name for name in columns if name not in writing.columns_in_path)


class _LossFile:
    """Writes the losses of a report to a Parquet file, created at the first loss. It holds at most one row group."""

    def __init__(self, place: OutputPlace, name: str) -> None:
        # The name, if there were losses, after the `with` block.
        self.written: str | None = None
        self._place = place
        self._name = name
        self._writer: pyarrow.parquet.ParquetWriter | None = None
        self._stack = contextlib.ExitStack()
        self._rows = LossRows()

    def __enter__(self) -> _LossFile:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._stack:
            if error is None:
                self._write_rows()
        if self._writer is not None:
            if error is None:
                self.written = self._name
            else:
                self._place.remove(self._name)

    def write(self, split: Split, table: RecordTable) -> None:
        """Add the losses of a table."""
        self._rows.add(split, table.losses)
        if self._rows.full:
            self._write_rows()

    def _write_rows(self) -> None:
        for batch in self._rows.take():
            if self._writer is None:
                stream = self._stack.enter_context(self._place.create(self._name))
                self._writer = self._stack.enter_context(
                    pyarrow.parquet.ParquetWriter(stream, LOSS_SCHEMA, compression="zstd")
                )
            self._writer.write_batch(batch)


def reports_of(rows: Iterable[str]) -> Iterator[TaskReport]:
    """Return the reports of tasks in the same order; if `rows` is an iterator, run the tasks to their end.

    Each report is parsed on request, and its text is dropped.
    """
    return _parsed_reports(deque(rows))


def _parsed_reports(texts: deque[str]) -> Iterator[TaskReport]:
    topics: dict[str, str] = {}
    while texts:
        sent = json.loads(texts.popleft())
        sent["topic"] = topics.setdefault(sent["topic"], sent["topic"])
        if "counts" in sent:
            sent["counts"] = Counts(**sent["counts"])
        if "transactions" in sent:
            sent["transactions"] = TaskTransactions(**sent["transactions"])
        sent["files"] = [WrittenFile(**file) for file in sent.get("files", ())]
        yield TaskReport(**sent)
