"""``engine="dataframe"``: the export by Spark's own Parquet writer, over the data source.

Several times slower than tasks that write by themselves, and with files as Spark makes them. What it wrote is read from
the footers, so that the rest of the export is the same.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kbatch.spark.files import WrittenFile
from kbatch.spark.jobs import Progress, run_job
from kbatch.spark.options import Bound, PerPartition, ReadOptions
from kbatch.spark.outputs import Place
from kbatch.spark.parquet import TaskReport
from kbatch.spark.source import register
from kbatch.spark.write_options import WriteOptions, parse_compression

__all__ = ["check_frame_options", "source_options", "write_frame"]

_RECORDS = "records"
# Whole days, also before 1970.
_DAYS = "(unix_micros(timestamp) - pmod(unix_micros(timestamp), 86400000000L)) div 86400000000L"
_LOSSES = "losses"

# Option and text of what isn't the default.
_OPTIONS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "topics": ("subscribe", ",".join),
    "topic_pattern": ("subscribePattern", str),
    "assign": ("assign", json.dumps),
    "partitions": ("partitions", lambda numbers: ",".join(map(str, sorted(numbers)))),
    "latest_if_no_timestamp": ("startingOffsetsByTimestampStrategy", lambda _: "latest"),
    "include_headers": ("includeHeaders", lambda _: "true"),
    "include_control": ("includeControl", lambda _: "true"),
    "isolation": ("isolationLevel", str),
    "crc": ("crc", str),
    "on_error": ("onError", str),
    "timestamp_overflow": ("timestampOverflow", str),
    "key": ("keyHex", bytes.hex),
    "key_partitions": ("keyPartitions", str),
    "split_bytes": ("splitBytes", str),
    "min_partitions": ("minPartitions", str),
    "max_records_per_partition": ("maxRecordsPerPartition", str),
    "max_decompressed_bytes": ("maxDecompressedBytes", str),
    "max_record_bytes": ("maxRecordBytes", str),
    "table": ("table", str),
}


def check_frame_options(out: Place, options: ReadOptions, writing: WriteOptions) -> None:
    """Fail for what Spark's writer doesn't do.

    Raises
    ------
    ValueError
    """
    plain = WriteOptions()
    if writing.format not in ("parquet", "delta"):
        raise ValueError(f"engine dataframe writes Parquet or Delta, not {writing.format}; engine tasks does")
    for name in ("row_group_rows", "file_bytes", "dictionary"):
        if getattr(writing, name) != getattr(plain, name):
            raise ValueError(f"engine dataframe has no {name}; engine tasks does")
    codec, level = parse_compression(writing.compression)
    if level is not None and codec != "zstd":
        raise ValueError(f"engine dataframe has no levels of {codec}; engine tasks does")
    if not out.local:
        raise ValueError(f"{out.url}: engine dataframe writes to mounted file systems; engine tasks writes there")
    if options.values.parsed:
        raise ValueError("engine dataframe leaves keys and values bytes; engine tasks parses them")
    if options.crc == "mark":
        raise ValueError(
            "engine dataframe doesn't count batches with a wrong checksum that crc=mark takes; engine tasks does"
        )
    source_options(options)


def source_options(options: ReadOptions) -> dict[str, str]:
    """Return the options of the data source that mean the same: `parse_options` reads them back.

    Raises
    ------
    ValueError
        For something that isn't known here.
    """
    plain = ReadOptions()
    given: dict[str, str] = {}
    for field in fields(options):
        value = getattr(options, field.name)
        if value == getattr(plain, field.name):
            continue
        if field.name in ("starting", "ending"):
            given.update(_bound(field.name, value))
            continue
        if field.name == "storage":
            given.update({f"storage.{name}": text for name, text in value.items()})
            continue
        if field.name not in _OPTIONS:
            raise ValueError(f"engine dataframe doesn't know {field.name}; engine tasks does")
        name, write = _OPTIONS[field.name]
        given[name] = write(value)
    return given


def _bound(side: str, bound: Bound) -> dict[str, str]:
    if bound.timestamp is not None:
        return {f"{side}Timestamp": str(bound.timestamp)}
    if bound.timestamps is not None:
        return {f"{side}OffsetsByTimestamp": _per_partition(bound.timestamps)}
    return {f"{side}Offsets": _per_partition(bound.offsets)} if bound.offsets is not None else {}


def _per_partition(values: PerPartition) -> str:
    return json.dumps({topic: {str(number): value for number, value in each.items()} for topic, each in values.items()})


def write_frame(
    spark: SparkSession,
    logdir: str,
    options: ReadOptions,
    attempts: Place,
    writing: WriteOptions,
    tasks: int,
    progress: Progress | None,
) -> list[TaskReport]:
    """Write the records of `logdir`, and what is lost, below the directory of attempts; return what is there.

    The reports are as those of tasks that write by themselves, with one file or none each.
    """
    register(spark)
    given = source_options(options)
    frame = spark.read.format("kbatch").options(**given).load(logdir)
    by = ["topic", "partition"]
    if writing.by_day:
        # Not to_date, which asks for the session's time zone.
        frame = frame.withColumn("date", F.expr(f"date_from_unix_date(int({_DAYS}))"))
        by.append("date")
    with _settings(spark, {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}):
        records = frame.sortWithinPartitions(*by, "offset")
        run_job(spark, lambda: _save(records, attempts.path(_RECORDS), writing, by), tasks, progress)
        if options.on_error != "raise":
            losses = spark.read.format("kbatch").options(**{**given, "table": "losses"}).load(logdir)
            run_job(spark, lambda: _save(losses, attempts.path(_LOSSES), WriteOptions(), []), tasks, None)
    return [*_records(attempts, writing), *(_losses(attempts) if options.on_error != "raise" else ())]


def _save(frame: DataFrame, path: str, writing: WriteOptions, by: list[str]) -> None:
    codec, level = parse_compression(writing.compression)
    settings = {
        "compression": "lz4_raw" if codec == "lz4" else codec,
        "parquet.block.size": str(writing.row_group_bytes),
    }
    if level is not None:
        settings["parquet.compression.codec.zstd.level"] = str(level)
    frame.write.options(**settings).partitionBy(*by).parquet(path)


@contextlib.contextmanager
def _settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.set(name, old)  # type: ignore[arg-type]


def _files(attempts: Place, directory: str) -> list[str]:
    """List the Parquet files in a directory of attempts, by name."""
    selector = pyarrow.fs.FileSelector(attempts.path(directory), recursive=True)
    found = [info.path for info in attempts.fs.get_file_info(selector) if info.path.endswith(".parquet")]
    return sorted(path[len(attempts.path()) + 1 :] for path in found)


def _records(attempts: Place, writing: WriteOptions) -> list[TaskReport]:
    reports = []
    for name in _files(attempts, _RECORDS):
        values = dict(part.split("=", 1) for part in name.split("/")[1:-1])
        task = re.match(r"part-(\d+)", name.rpartition("/")[2])
        assert task is not None
        file = WrittenFile(name, date=unquote(values["date"]) if "date" in values else None)
        _read_footer(attempts, file)
        if not file.rows:
            continue
        report = TaskReport(int(task[1]), unquote(values["topic"]), int(values["partition"]), [file], file.rows)
        report.first_offset, report.last_offset = file.first_offset, file.last_offset
        if file.first_timestamp is not None and file.last_timestamp is not None:
            report.first_timestamp, report.last_timestamp = file.first_timestamp // 1000, file.last_timestamp // 1000
        reports.append(report)
    return sorted(reports, key=lambda report: (report.task, report.first_offset))


def _read_footer(attempts: Place, file: WrittenFile) -> None:
    with attempts.fs.open_input_file(attempts.path(file.name)) as stream:
        file.file_bytes = stream.size()
        metadata = pyarrow.parquet.read_metadata(stream)
    columns = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        offsets, timestamps = (group.column(columns[name]).statistics for name in ("offset", "timestamp"))
        file.first_offset = offsets.min if not file.rows else min(file.first_offset, offsets.min)
        file.last_offset = max(file.last_offset, offsets.max)
        file.rows += group.num_rows
        file.null_timestamps += timestamps.null_count
        if timestamps.has_min_max:
            first, last = int(timestamps.min_raw), int(timestamps.max_raw)
            file.first_timestamp = first if file.first_timestamp is None else min(first, file.first_timestamp)
            file.last_timestamp = last if file.last_timestamp is None else max(last, file.last_timestamp)


def _losses(attempts: Place) -> Iterator[TaskReport]:
    """Yield a report for each topic-partition of each file of losses; the file belongs to the first one."""
    for number, name in enumerate(_files(attempts, _LOSSES)):
        with attempts.fs.open_input_file(attempts.path(name)) as stream:
            table = pyarrow.parquet.read_table(stream, columns=["topic", "partition", "length"])
        groups = pa.TableGroupBy(table, ["topic", "partition"], use_threads=False)
        rows = groups.aggregate([("length", "sum"), ("length", "count")]).to_pylist()
        for i, row in enumerate(rows):
            report = TaskReport(number, row["topic"], row["partition"])
            report.lost_bytes, report.loss_count = row["length_sum"], row["length_count"]
            report.losses_file = name if i == 0 else None
            yield report
