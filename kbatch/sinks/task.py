"""What a task of the export does: splits -> data files, and what they held.

Tasks write with pyarrow: rows that go back through Spark's own writer take five times as long. A file has a name of its
own for each attempt, and counts only if the attempt's report reaches the driver: so a task that runs twice, or dies
half way, can't duplicate a record.
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
from kbatch.format import ATTRIBUTE_CODEC, NO_TIMESTAMP, BatchStatus, Codec
from kbatch.plan.losses import LOSS_SCHEMA, LossRows
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.rows import Transform
from kbatch.plan.split import Split
from kbatch.plan.tasks import task_tables
from kbatch.records.kafka_columns import SPARK_COLUMNS, spark_batches, spark_schema
from kbatch.sinks.files import DataFiles, FileLimits, WrittenFile
from kbatch.sinks.outputs import Place
from kbatch.sinks.write_options import WriteOptions
from kbatch.table import RecordTable

__all__ = ["LOSSES_SUFFIX", "ExportJob", "TaskReport", "least", "most", "reports_of"]

# Not ".parquet": DuckDB and Polars take whatever `OUT/**/*.parquet` matches, also below a name that begins with an
# underscore, as data.
LOSSES_SUFFIX = ".parq"


@dataclass
class TaskReport:
    """What one task found of one topic-partition: sent from the task to the driver as JSON.

    Attributes
    ----------
    task : int
    topic : str
    partition : int
    files : list of WrittenFile
        The data files; none if there were no records.
    records, log_bytes : int
        Records written, and bytes of the batches that were read, also of those without records.
    codecs : dict of str to int
        Batches that could be read, by codec.
    bad_crc_batches : int
        Batches whose checksum is wrong and that were taken all the same (``crc="mark"``).
    aborted_batches, aborted_bytes, undecided_batches, undecided_bytes : int
        What read_committed left out of aborted transactions, and from the last stable offset on: neither read nor lost.
    first_offset, last_offset, first_timestamp, last_timestamp : int or None
        Of the records; timestamps are the smallest and the largest, in ms.
    lost_bytes, loss_count : int
    bad_keys, bad_values : int
        Those that aren't of the format and the schema they were to be parsed by; their bytes were written.
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

    def add(self, table: RecordTable, *, bad_crc_taken: bool) -> None:
        """Count a table. Batches with a wrong checksum are read if they were taken, else they are among its losses."""
        status = table.batches["status"]
        good = (status == BatchStatus.OK) | (status == BatchStatus.BAD_INNER_CRC)
        read = table.batches[good | ((status == BatchStatus.BAD_CRC) & bad_crc_taken)]
        self.log_bytes += int(read["size"].sum())
        self.bad_crc_batches += int(np.count_nonzero(read["status"] == BatchStatus.BAD_CRC))
        aborted, undecided = (table.batches["size"][status == s] for s in (BatchStatus.ABORTED, BatchStatus.UNDECIDED))
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
        self.first_offset = least(self.first_offset, int(offsets.min()))
        self.last_offset = most(self.last_offset, int(offsets.max()))
        known = records["timestamp"][records["timestamp"] != NO_TIMESTAMP]
        if len(known):
            self.first_timestamp = least(self.first_timestamp, int(known.min()))
            self.last_timestamp = most(self.last_timestamp, int(known.max()))


@dataclass(frozen=True)
class ExportJob:
    """The function for `mapInArrow` over a range of task numbers; plain values only, it is pickled.

    Attributes
    ----------
    tasks : list of tuple of Split
    options : ReadOptions
    attempts : Place
        Directory that every worker can write to.
    writing : WriteOptions
    transform : Transform or None
        What each batch of records passes before it is written.
    limits : FileLimits
    """

    tasks: list[tuple[Split, ...]]
    options: ReadOptions
    attempts: Place
    writing: WriteOptions = field(default_factory=WriteOptions)
    transform: Transform | None = None
    limits: FileLimits = field(default_factory=FileLimits)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of records before the transform: those of Spark's source that the directories don't tell."""
        columns = SPARK_COLUMNS if self.options.include_headers else SPARK_COLUMNS[:-1]
        return tuple(name for name in columns if name not in self.writing.columns_in_path)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the files."""
        schema = spark_schema(self.columns)
        return schema if self.transform is None else self.transform.schema(schema)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do the tasks of the numbers in `batches`, and yield a report, as JSON, for each topic-partition."""
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
            # One line is what reaches the user: it has to say more than a bare `[Errno 28]`.
            files = ", ".join(sorted({split.path for split in self.tasks[task]})[:3])
            raise KbatchError(f"while exporting {files}: {type(error).__name__}: {error}") from error

    def _export(self, task: int) -> list[TaskReport]:
        if self.attempts.local and not self.attempts.exists():
            raise LogDirectoryError(
                f"{self.attempts.url}: not there for a Spark worker; the output must be on a file system that the "
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
                reports[-1].add(table, bad_crc_taken=self.options.crc == "mark")
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
                raise KbatchError(f"the transform made {written.num_rows} rows of {batch.num_rows}")
            if self.options.values.parsed:
                report.bad_keys += _count_bad(written, "key")
                report.bad_values += _count_bad(written, "value")
            files.write(written, batch.column("offset"), batch.column("timestamp"))


def _count_bad(batch: pa.RecordBatch, on: str) -> int:
    index = batch.schema.get_field_index(f"{on}_bad")
    return 0 if index < 0 else batch.num_rows - batch.column(index).null_count


class _LossFile:
    """The losses of a report as Parquet, under a name that no other attempt has; made when there is a first one.

    However many there are, only a row group of them is held.
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
    """Read the reports of all tasks, in the order of tasks and within a task as it made them."""
    reports = [TaskReport(**json.loads(row)) for row in rows]
    for report in reports:
        report.files = [WrittenFile(**file) for file in report.files]  # type: ignore[arg-type]
    return sorted(reports, key=lambda report: report.task)


def least(a: int | None, b: int | None) -> int | None:
    """Return the smaller number, where there is one."""
    return b if a is None else a if b is None else min(a, b)


def most(a: int | None, b: int | None) -> int | None:
    """Return the larger number, where there is one."""
    return b if a is None else a if b is None else max(a, b)
