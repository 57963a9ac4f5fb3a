"""A task of the export: splits -> data files and a report.

Tasks write with pyarrow, because Spark's own writer takes five times as long. Each attempt writes files with unique
names, and they count only if its report reaches the driver. So a task that runs twice, or dies half way, cannot
duplicate a record. A task gets its own splits only.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from kbatch.errors import KbatchError, LogDirectoryError
from kbatch.escaping import one_line
from kbatch.format import ATTRIBUTE_CODEC, NO_TIMESTAMP, BatchStatus, Codec
from kbatch.log.gaps import SegmentGap
from kbatch.plan.losses import LOSS_SCHEMA, LossRows
from kbatch.plan.positions import known_epoch, record_checksum
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.rows import Transform
from kbatch.plan.split import Split
from kbatch.plan.tasks import task_tables
from kbatch.plan.value_columns import ValueColumns, ValueCounts
from kbatch.records.kafka_columns import SPARK_COLUMNS, spark_batches, spark_schema
from kbatch.sinks.counters import TaskCounter
from kbatch.sinks.files import DataFiles, FileLimits, WrittenFile
from kbatch.sinks.names import FileNames
from kbatch.sinks.write_options import WriteOptions
from kbatch.table import RecordTable

__all__ = ["ExportJob", "TaskReport", "larger", "output_schema", "reports_of", "smaller", "written_columns"]


@dataclass(slots=True)
class TaskReport:
    """The result of one task for one topic-partition. The task sends it to the driver as JSON.

    Attributes
    ----------
    task : int
    topic : str
    partition : int
    files : list of WrittenFile
        The data files; none if there were no records.
    records, log_bytes : int
        Records written, and bytes of the batches that were read, including batches without records.
    codecs : dict of str to int
        Batches that were read, by codec.
    bad_crc_batches : int
        Batches with a wrong checksum that were accepted (``crc="mark"``).
    aborted_batches, aborted_bytes, undecided_batches, undecided_bytes : int
        Batches that read_committed omitted, of aborted transactions and from the last stable offset on. They count
        neither as read nor as lost.
    first_offset, last_offset, first_timestamp, last_timestamp : int or None
        Ranges of the records; timestamps are in ms.
    lost_bytes, loss_count : int
    gaps : list of dict
        Offsets that are missing between two segments for an unknown reason: first_offset, last_offset, and the files
        before and after. They count as losses of no bytes.
    bad_keys, bad_values, incomplete_keys, incomplete_values : int
        Keys and values that cannot be parsed, and those that lack fields; their bytes were written.
    deviations : list of [on, kind, field, reason, occurrences, offset]
        The fields that do not fit an inferred schema, as `kbatch.values.FieldDeviation`, with the offset of the first.
    losses_file : str or None
        Name of the file of losses, relative to the place of `FileNames`; None if nothing was lost.
    begin_offset, end_offset : int or None
        The base offset of the first batch that was read, and the offset after the last one, and after the offsets that
        are missing there; None without either.
    leader_epoch : int or None
        The leader epoch of that last batch; None if it has none.
    batch_crc, record_crc : int or None
        The checksums of the batch and the record with the offset before `end_offset`, as in `Position`.
    removed_offsets : int
        Offsets without a record within batches, between them and between segments, which compaction removed.
    """

    task: int
    topic: str
    partition: int
    files: list[WrittenFile] = field(default_factory=list)
    records: int = 0
    log_bytes: int = 0
    codecs: dict[str, int] = field(default_factory=dict)
    bad_crc_batches: int = 0
    aborted_batches: int = 0
    aborted_bytes: int = 0
    undecided_batches: int = 0
    undecided_bytes: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    lost_bytes: int = 0
    loss_count: int = 0
    gaps: list[dict[str, Any]] = field(default_factory=list)
    bad_keys: int = 0
    bad_values: int = 0
    incomplete_keys: int = 0
    incomplete_values: int = 0
    deviations: list[list[Any]] = field(default_factory=list)
    losses_file: str | None = None
    begin_offset: int | None = None
    end_offset: int | None = None
    leader_epoch: int | None = None
    batch_crc: int | None = None
    record_crc: int | None = None
    removed_offsets: int = 0

    @property
    def has_batches(self) -> bool:
        """Whether batches were read, omitted or withheld, and not only missing offsets found."""
        return self.log_bytes + self.aborted_bytes + self.undecided_bytes > 0

    def to_json(self) -> str:
        """Return the report for `reports_of`, without defaults: the driver holds the texts of all tasks together."""
        return json.dumps({name: value for name, value in asdict(self).items() if value != _DEFAULTS[name]})

    def add(self, table: RecordTable, *, bad_crc_accepted: bool, limit: int | None = None) -> None:
        """Add a table. Batches with a wrong checksum count as read if they were accepted, else they are losses.

        Batches from the offset `limit` on are read again by the next run.
        """
        # A batch that is split over several tables counts once.
        batches = table.batches[table.continued :]
        status = batches["status"]
        good = (status == BatchStatus.OK) | (status == BatchStatus.BAD_INNER_CRC)
        lost = np.isin(batches["position"], table.losses.positions)
        good |= (status == BatchStatus.BAD_CRC) & bad_crc_accepted & ~lost
        read = batches[good]
        decided = good | (status == BatchStatus.ABORTED) | (status == BatchStatus.UNDECIDED)
        self._advance(batches[decided], limit, complete=not table.losses)
        self.log_bytes += int(read["size"].sum())
        self.bad_crc_batches += int(np.count_nonzero(read["status"] == BatchStatus.BAD_CRC))
        aborted, undecided = (batches["size"][status == s] for s in (BatchStatus.ABORTED, BatchStatus.UNDECIDED))
        self.aborted_batches += len(aborted)
        self.aborted_bytes += int(aborted.sum())
        self.undecided_batches += len(undecided)
        self.undecided_bytes += int(undecided.sum())
        codecs = Counter(self.codecs)
        numbers, counts = np.unique(read["attributes"] & ATTRIBUTE_CODEC, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            codecs[Codec(number).name.lower()] += count
        self.codecs = dict(codecs)
        self.lost_bytes += int(table.losses.lengths.sum())
        self.loss_count += len(table.losses)
        records = table.records
        if not len(records):
            return
        self.records += len(records)
        offsets = records["offset"]
        self.first_offset = smaller(self.first_offset, int(offsets.min()))
        row = int(offsets.argmax())
        last = int(offsets[row])
        self.last_offset = larger(self.last_offset, last)
        if last + 1 == self.end_offset:
            self.record_crc = record_checksum(table, row)
        known = records["timestamp"][records["timestamp"] != NO_TIMESTAMP]
        if len(known):
            self.first_timestamp = smaller(self.first_timestamp, int(known.min()))
            self.last_timestamp = larger(self.last_timestamp, int(known.max()))

    def add_gap(self, gap: SegmentGap) -> None:
        """Add offsets that are missing after the last batch; the next run does not look for them again."""
        if gap.compacted:
            self.removed_offsets += gap.offset_count
        else:
            names = ("first_offset", "last_offset", "before", "after")
            self.gaps.append({name: getattr(gap, name) for name in names})
        self.begin_offset = gap.first_offset if self.begin_offset is None else self.begin_offset
        if self.end_offset is None or self.end_offset <= gap.last_offset:
            self.end_offset = gap.last_offset + 1
            self.batch_crc = self.record_crc = None

    def set_values(self, counts: ValueCounts) -> None:
        """Set the counts of keys and values that their columns do not represent."""
        self.bad_keys, self.bad_values = counts.unparsed["key"], counts.unparsed["value"]
        self.incomplete_keys, self.incomplete_values = counts.incomplete["key"], counts.incomplete["value"]
        self.deviations = [[*key, count, *place] for key, (count, place) in counts.deviations.found.items()]

    def _advance(self, batches: npt.NDArray[np.void], limit: int | None, *, complete: bool) -> None:
        if limit is not None:
            batches = batches[batches["base_offset"] < limit]
        if not len(batches):
            return
        first, last = batches["base_offset"], batches["last_offset"]
        if complete and batches["magic"].min() == 2:
            before = int(first[0]) if self.end_offset is None else self.end_offset
            spans = last - np.concatenate([[before - 1], last[:-1]])
            self.removed_offsets += int(np.maximum(spans - batches["record_count"], 0).sum())
        if self.begin_offset is None:
            self.begin_offset = int(first[0])
        # Offsets may descend in a damaged log.
        row = int(last.argmax())
        end = int(last[row]) + 1
        if self.end_offset is None or end > self.end_offset:
            self.end_offset = end if limit is None else min(end, limit)
            self.leader_epoch = known_epoch(batches[row])
            self.batch_crc, self.record_crc = int(batches["crc"][row]), None


# The names of a report are always sent.
_DEFAULTS = asdict(TaskReport(0, "", 0)) | dict.fromkeys(("task", "topic", "partition"))


@dataclass
class _LogShare:
    """The bytes of a log that a task reads, and those that it has read."""

    size: int
    done: int = 0

    def left(self, more: float) -> float:
        """Return the bytes to be read after `more` bytes, as a multiple of the bytes before."""
        done = self.done + more
        return math.inf if done <= 0 else max(0.0, self.size - done) / done


@dataclass(frozen=True)
class ExportJob:
    """The function that runs tasks. It is pickled for all of them, so it holds plain values only, and no splits.

    Attributes
    ----------
    options : ReadOptions
    names : FileNames
        Names of files at a place that every worker can write to.
    writing : WriteOptions
    transform : Transform or None
        Applied to each batch of records before it is written.
    limits : FileLimits
    counters : str or None
        The directory of the counts of running tasks (`TaskCounter`).
    """

    options: ReadOptions
    names: FileNames
    writing: WriteOptions = field(default_factory=WriteOptions)
    transform: Transform | None = None
    limits: FileLimits = field(default_factory=FileLimits)
    counters: str | None = None

    @property
    def schema(self) -> pa.Schema:
        """The schema of the files."""
        return output_schema(self.options, self.writing, self.transform)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of records before the transform."""
        return written_columns(self.options, self.writing)

    def __call__(self, tasks: Iterable[tuple[int, Sequence[Split]]]) -> Iterator[str]:
        """Run tasks, each given with its number; yield a report, as JSON, for each topic-partition of a task."""
        for task, splits in tasks:
            for report in self._run(task, splits):
                yield report.to_json()

    def _run(self, task: int, splits: Sequence[Split]) -> list[TaskReport]:
        try:
            return self._export(task, splits)
        except KbatchError:
            raise
        except Exception as error:
            # Only one line reaches the user, for which a bare `[Errno 28]` is not enough.
            files = ", ".join(sorted({split.path for split in splits})[:3])
            raise KbatchError(f"while exporting {files}: {type(error).__name__}: {one_line(error)}") from error

    def _export(self, task: int, splits: Sequence[Split]) -> list[TaskReport]:
        place = self.names.place
        if place.local and not place.exists():
            raise LogDirectoryError(
                f"{place.url}: not found by a Spark worker; the output must be on a file system that the driver and "
                "all workers share",
                source=place.url,
            )
        reports: list[TaskReport] = []
        log: str | None = None
        with TaskCounter(self.counters, task) as counter, contextlib.ExitStack() as stack:
            files: DataFiles | None = None
            losses: _LossFile | None = None
            reading = _LogShare(0)
            counts = ValueCounts()
            gaps: list[SegmentGap] = []
            for split, table in task_tables(splits, self.options, self.columns, gaps):
                if split.log != log:
                    stack.close()
                    log = split.log
                    assert split.topic is not None
                    assert split.partition is not None
                    reports.append(TaskReport(task, split.topic, split.partition))
                    named = (split.topic, split.partition)
                    counts = ValueCounts()
                    files = DataFiles(self.names, named, task, self.schema, self.writing, log, self.limits)
                    reports[-1].files = files.written
                    stack.enter_context(files)
                    reading = _LogShare(sum(each.end - each.start for each in splits if each.log == log))
                    losses = stack.enter_context(_LossFile(self.names, reports[-1], len(reports)))
                assert files is not None
                assert losses is not None
                for gap in gaps:
                    reports[-1].add_gap(gap)
                gaps.clear()
                limits = [each for each in (split.stop_offset, split.stable_offset) if each is not None]
                reports[-1].add(table, bad_crc_accepted=self.options.crc == "mark", limit=min(limits, default=None))
                losses.write(split, table)
                self._write(files, counts, table, reading)
                reports[-1].set_values(counts)
                reading.done += table.consumed
                counter.add(table.consumed, len(table))
                del table
        return reports

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
    """Return Spark's columns, except those in the names of directories."""
    columns = SPARK_COLUMNS[:-1] if options.include_headers is False else SPARK_COLUMNS
    return tuple(name for name in columns if name not in writing.columns_in_path)


class _LossFile:
    """The losses of a report as a Parquet file with a unique name, which is created at the first loss.

    At most one row group is held in memory.
    """

    def __init__(self, names: FileNames, report: TaskReport, number: int) -> None:
        self._place = names.place
        self._report = report
        self._name = names.losses_file(report.task, number)
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
                self._report.losses_file = self._name
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
    """Run the tasks to their end, if `rows` is an iterator, and return their reports in the same order.

    Each report is parsed when it is asked for, and its text is dropped.
    """
    return _parsed_reports(deque(rows))


def _parsed_reports(texts: deque[str]) -> Iterator[TaskReport]:
    topics: dict[str, str] = {}
    while texts:
        report = TaskReport(**json.loads(texts.popleft()))
        report.topic = topics.setdefault(report.topic, report.topic)
        report.files = [WrittenFile(**file) for file in report.files]  # type: ignore[arg-type]
        yield report


def smaller(a: int | None, b: int | None) -> int | None:
    """Return the smaller number; None counts as missing."""
    return b if a is None else a if b is None else min(a, b)


def larger(a: int | None, b: int | None) -> int | None:
    """Return the larger number; None counts as missing."""
    return b if a is None else a if b is None else max(a, b)
