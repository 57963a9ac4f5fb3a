"""A task of the export: splits -> data files and a report.

Tasks write with pyarrow, because Spark's own writer takes five times as long. Each attempt writes files with unique
names, and they count only if its report reaches the driver. So a task that runs twice, or dies half way, cannot
duplicate a record.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from kbatch.errors import KbatchError, LogDirectoryError
from kbatch.escaping import one_line
from kbatch.format import ATTRIBUTE_CODEC, NO_TIMESTAMP, BatchStatus, Codec
from kbatch.plan.losses import LOSS_SCHEMA, LossRows
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.rows import Transform
from kbatch.plan.split import Split
from kbatch.plan.tasks import task_tables
from kbatch.records.kafka_columns import SPARK_COLUMNS, spark_batches, spark_schema
from kbatch.sinks.files import DataFiles, FileLimits, WrittenFile
from kbatch.sinks.outputs import OutputPlace
from kbatch.sinks.write_options import WriteOptions
from kbatch.table import RecordTable

__all__ = ["LOSSES_SUFFIX", "ExportJob", "TaskReport", "larger", "reports_of", "smaller"]

# Not ".parquet": DuckDB and Polars read all files that `OUT/**/*.parquet` matches as data, also below a directory whose
# name begins with an underscore.
LOSSES_SUFFIX = ".parq"


@dataclass
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
    bad_keys, bad_values : int
        Keys and values that do not fit the format or its schema; their bytes were written.
    losses_file : str or None
        Name of the file of losses in the directory of attempts; None if nothing was lost.
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
    bad_keys: int = 0
    bad_values: int = 0
    losses_file: str | None = None

    def add(self, table: RecordTable, *, bad_crc_accepted: bool) -> None:
        """Add a table. Batches with a wrong checksum count as read if they were accepted, else they are losses."""
        # A batch that is split over several tables counts once.
        batches = table.batches[table.continued :]
        status = batches["status"]
        good = (status == BatchStatus.OK) | (status == BatchStatus.BAD_INNER_CRC)
        read = batches[good | ((status == BatchStatus.BAD_CRC) & bad_crc_accepted)]
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
        self.lost_bytes += sum(loss.length for loss in table.losses)
        self.loss_count += len(table.losses)
        records = table.records
        if not len(records):
            return
        self.records += len(records)
        offsets = records["offset"]
        self.first_offset = smaller(self.first_offset, int(offsets.min()))
        self.last_offset = larger(self.last_offset, int(offsets.max()))
        known = records["timestamp"][records["timestamp"] != NO_TIMESTAMP]
        if len(known):
            self.first_timestamp = smaller(self.first_timestamp, int(known.min()))
            self.last_timestamp = larger(self.last_timestamp, int(known.max()))


@dataclass(frozen=True)
class ExportJob:
    """The function for `mapInArrow` over a range of task numbers. It is pickled, so it holds plain values only.

    Attributes
    ----------
    tasks : list of tuple of Split
    options : ReadOptions
    attempts : OutputPlace
        Directory that every worker can write to.
    writing : WriteOptions
    transform : Transform or None
        Applied to each batch of records before it is written.
    limits : FileLimits
    """

    tasks: list[tuple[Split, ...]]
    options: ReadOptions
    attempts: OutputPlace
    writing: WriteOptions = field(default_factory=WriteOptions)
    transform: Transform | None = None
    limits: FileLimits = field(default_factory=FileLimits)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of records before the transform: Spark's columns, except those in the directory names."""
        columns = SPARK_COLUMNS[:-1] if self.options.include_headers is False else SPARK_COLUMNS
        return tuple(name for name in columns if name not in self.writing.columns_in_path)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the files."""
        schema = spark_schema(self.columns)
        return schema if self.transform is None else self.transform.schema(schema)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the tasks whose numbers are in `batches`; yield a report, as JSON, for each topic-partition."""
        for batch in batches:
            for task in batch.column(0).to_pylist():
                reports = [json.dumps(asdict(report)) for report in self._run(task)]
                yield pa.RecordBatch.from_arrays([pa.array(reports, pa.string())], ["report"])

    def _run(self, task: int) -> list[TaskReport]:
        try:
            return self._export(task)
        except KbatchError:
            raise
        except Exception as error:
            # Only one line reaches the user, for which a bare `[Errno 28]` is not enough.
            files = ", ".join(sorted({split.path for split in self.tasks[task]})[:3])
            raise KbatchError(f"while exporting {files}: {type(error).__name__}: {one_line(error)}") from error

    def _export(self, task: int) -> list[TaskReport]:
        if self.attempts.local and not self.attempts.exists():
            raise LogDirectoryError(
                f"{self.attempts.url}: not found by a Spark worker; the output must be on a file system that the "
                "driver and all workers share",
                source=self.attempts.url,
            )
        reports: list[TaskReport] = []
        log: str | None = None
        with contextlib.ExitStack() as stack:
            files: DataFiles | None = None
            losses: _LossFile | None = None
            for split, table in task_tables(self.tasks[task], self.options, self.columns):
                if split.log != log:
                    stack.close()
                    log = split.log
                    assert split.topic is not None
                    assert split.partition is not None
                    reports.append(TaskReport(task, split.topic, split.partition))
                    files = DataFiles(self.attempts, f"{task:05d}", self.schema, self.writing, log, self.limits)
                    reports[-1].files = files.written
                    stack.enter_context(files)
                    losses = stack.enter_context(_LossFile(self, reports[-1]))
                assert files is not None
                assert losses is not None
                reports[-1].add(table, bad_crc_accepted=self.options.crc == "mark")
                losses.write(split, table)
                self._write(files, reports[-1], table)
                del table
        return reports

    def _write(self, files: DataFiles, report: TaskReport, table: RecordTable) -> None:
        batches = spark_batches(
            table,
            self.columns,
            self.writing.row_group_rows,
            self.writing.row_group_bytes,
            overflow=self.options.timestamp_overflow,
        )
        for batch in batches:
            written = batch if self.transform is None else self.transform.apply(batch)
            if written.num_rows != batch.num_rows:
                raise KbatchError(
                    f"the transform must keep the number of rows, got {written.num_rows} for {batch.num_rows}"
                )
            if self.options.values.parsed:
                report.bad_keys += _count_bad(written, "key")
                report.bad_values += _count_bad(written, "value")
            files.write(written, batch.column("offset"), batch.column("timestamp"))


def _count_bad(batch: pa.RecordBatch, on: str) -> int:
    index = batch.schema.get_field_index(f"{on}_bad")
    return 0 if index < 0 else batch.num_rows - batch.column(index).null_count


class _LossFile:
    """The losses of a report as a Parquet file with a unique name, which is created at the first loss.

    At most one row group is held in memory.
    """

    def __init__(self, job: ExportJob, report: TaskReport) -> None:
        self._job = job
        self._report = report
        self._name = f"{report.task:05d}-{uuid.uuid4().hex}{LOSSES_SUFFIX}"
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
                self._job.attempts.remove(self._name)

    def write(self, split: Split, table: RecordTable) -> None:
        """Add the losses of a table."""
        self._rows.add(split, table.losses)
        if self._rows.full:
            self._write_rows()

    def _write_rows(self) -> None:
        for batch in self._rows.take():
            if self._writer is None:
                stream = self._stack.enter_context(self._job.attempts.create(self._name))
                self._writer = self._stack.enter_context(
                    pyarrow.parquet.ParquetWriter(stream, LOSS_SCHEMA, compression="zstd")
                )
            self._writer.write_batch(batch)


def reports_of(rows: Iterable[str]) -> list[TaskReport]:
    """Parse the reports of all tasks; return them in the order of the tasks, and within a task in its order."""
    reports = [TaskReport(**json.loads(row)) for row in rows]
    for report in reports:
        report.files = [WrittenFile(**file) for file in report.files]  # type: ignore[arg-type]
    return sorted(reports, key=lambda report: report.task)


def smaller(a: int | None, b: int | None) -> int | None:
    """Return the smaller number; None counts as missing."""
    return b if a is None else a if b is None else min(a, b)


def larger(a: int | None, b: int | None) -> int | None:
    """Return the larger number; None counts as missing."""
    return b if a is None else a if b is None else max(a, b)
