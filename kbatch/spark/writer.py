"""``df.write.format("kbatch").mode("append").save(root)``: a DataFrame as segments of a log directory.

Each attempt of a task writes files of its own, with offsets that count from 0. Only the files of the attempts that
Spark takes are told to the driver, so that neither a retry nor a speculative duplicate writes a row twice. The driver
gives offsets in the order of the tasks, and puts everything in place at once (`kbatch.log.commit`).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
)
from pyspark.sql.types import TimestampType as SparkTimestampType

from kbatch.format import TimestampType
from kbatch.log.commit import Mode, Stage, check_before, commit
from kbatch.log.parts import Part, PartWriter
from kbatch.log.rows import RowOptions, check_columns, parse_compression
from kbatch.spark.options import parse_size

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KbatchWriter", "SinkOptions", "parse_sink_options"]

# Seconds to wait for the commit of another job: before the tasks begin, and when all of them have done their work.
_WAIT_BEFORE = 30.0
_WAIT = 600.0
_OPTIONS = (
    "batchSize",
    "compression",
    "includeHeaders",
    "indexIntervalBytes",
    "numPartitions",
    "offsets",
    "replaceLogs",
    "segmentBytes",
    "timestampType",
    "topic",
)
_TIMESTAMP_TYPES = {"createtime": TimestampType.CREATE_TIME, "logappendtime": TimestampType.LOG_APPEND_TIME}


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """What a write is asked to do. Picklable, with plain values only.

    Attributes
    ----------
    rows : RowOptions
    segment_bytes, index_interval_bytes : int
        As for `kbatch.log.LogWriter`.
    replace : bool
        Whether mode overwrite may remove logs that are there.
    """

    rows: RowOptions
    segment_bytes: int = 1 << 30
    index_interval_bytes: int = 4096
    replace: bool = False


def parse_sink_options(options: Mapping[str, str]) -> tuple[str, SinkOptions]:
    """Return the directory to write to and the options, from the strings that Spark hands over.

    Parameters
    ----------
    options : mapping of str to str
        Names in any case. ``topic``: where all rows go, whatever their column says, as in Spark's Kafka sink.
        ``numPartitions``: how many there are to choose from, for rows whose partition is null or not there.
        ``offsets``: ``keep`` (the default, where there is a column) or ``assign``. ``compression``: ``none``, ``gzip``,
        ``snappy``, ``lz4``, ``zstd``, or with a level such as ``zstd:3``. ``batchSize`` (16k), ``segmentBytes`` (1g),
        ``indexIntervalBytes`` (4096). ``timestampType``: ``CreateTime`` (the default) or ``LogAppendTime``.
        ``includeHeaders``: ``false`` leaves out a column of headers. ``replaceLogs``: ``true`` lets mode overwrite
        remove **all** logs that are in the directory.

    Raises
    ------
    ValueError
        An unknown option, or a value that isn't one of its option's.

    Examples
    --------
    >>> from kbatch.spark.writer import parse_sink_options
    >>> path, sink = parse_sink_options({"path": "/data", "topic": "orders", "compression": "zstd:3"})
    >>> path, sink.rows.topic, sink.rows.codec, sink.rows.level
    ('/data', 'orders', <Codec.ZSTD: 4>, 3)
    """
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower(): name for name in _OPTIONS}
    unknown = sorted(set(given) - set(known) - {"path"})
    if unknown:
        raise ValueError(f"unknown option {', '.join(map(repr, unknown))} for a write; known are {', '.join(_OPTIONS)}")
    if "path" not in given:
        raise ValueError("no path: name the log directory in save(...)")

    def get(name: str, parse: Callable[[str, str], Any], default: Any = None) -> Any:
        value = given.get(name.lower())
        return default if value is None else parse(name, value)

    codec, level = parse_compression(given.get("compression"))
    rows = RowOptions(
        topic=given.get("topic"),
        num_partitions=get("numPartitions", _count),
        offsets=cast('Literal["keep", "assign"]', get("offsets", _lower, "keep")),
        codec=codec,
        level=level,
        batch_size=get("batchSize", parse_size, 16384),
        timestamp_type=get("timestampType", _timestamp_type, TimestampType.CREATE_TIME),
        headers=get("includeHeaders", _boolean, True),
    )
    sink = SinkOptions(
        rows=rows,
        segment_bytes=get("segmentBytes", parse_size, 1 << 30),
        index_interval_bytes=get("indexIntervalBytes", parse_size, 4096),
        replace=get("replaceLogs", _boolean, False),
    )
    if sink.segment_bytes > (1 << 31) - 1:
        raise ValueError(f"segmentBytes must be 2147483647 at most, got {sink.segment_bytes}")
    return given["path"], sink


def _count(name: str, value: str) -> int:
    if not (value.strip().isascii() and value.strip().isdigit()) or int(value) < 1:
        raise ValueError(f"{name} must be a number, 1 or more, got {value!r}")
    return int(value)


def _boolean(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise ValueError(f"{name} must be true or false, got {value!r}")
    return value.strip().lower() == "true"


def _lower(name: str, value: str) -> str:
    return value.strip().lower()


def _timestamp_type(name: str, value: str) -> TimestampType:
    try:
        return _TIMESTAMP_TYPES[value.strip().replace("_", "").lower()]
    except KeyError:
        raise ValueError(f"{name} must be CreateTime or LogAppendTime, got {value!r}") from None


def _arrow_schema(schema: StructType) -> pa.Schema:
    """Return what the columns will be in Arrow; PySpark's own function has other arguments in each version."""
    import pyarrow as pa

    simple: list[tuple[type[DataType], pa.DataType]] = [
        (BinaryType, pa.binary()),
        (StringType, pa.string()),
        (ByteType, pa.int8()),
        (ShortType, pa.int16()),
        (IntegerType, pa.int32()),
        (LongType, pa.int64()),
        (SparkTimestampType, pa.timestamp("us", "UTC")),
        (TimestampNTZType, pa.timestamp("us")),
        (NullType, pa.null()),
    ]

    def arrow(name: str, kind: DataType) -> pa.DataType:
        for each, found in simple:
            if isinstance(kind, each):
                return found
        if isinstance(kind, ArrayType):
            return pa.list_(arrow(name, kind.elementType))
        if isinstance(kind, MapType):
            return pa.map_(arrow(name, kind.keyType), arrow(name, kind.valueType))
        if isinstance(kind, StructType):
            return pa.struct([(field.name, arrow(name, field.dataType)) for field in kind.fields])
        raise TypeError(
            f"column {name!r} is {kind.simpleString()}, which no column of a record can be; cast or drop it"
        )

    return pa.schema([(field.name, arrow(field.name, field.dataType)) for field in schema.fields])


@dataclass
class PartsMessage(WriterCommitMessage):
    """What a task has written: its number, and its files."""

    task: int
    parts: list[Part]


class KbatchWriter(DataSourceArrowWriter):
    """Writes parts in tasks, and puts them in place on the driver. It has plain values only: it is pickled."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        path, self.options = parse_sink_options(options)
        check_columns(_arrow_schema(schema), self.options.rows)
        self.stage = Stage(path)
        # Spark has no other mode for a source of Python: ErrorIfExists and Ignore it refuses itself.
        self.mode: Mode = "append"
        if overwrite:
            self.mode = "overwrite" if self.options.replace else "error"
        check_before(self.stage, self.mode, _WAIT_BEFORE)
        # Spark asks for a writer when it begins with the tasks, and not before.
        self.stage.make()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task into files of this attempt."""
        context = TaskContext.get()
        task, attempt = (context.partitionId(), context.attemptNumber()) if context is not None else (0, 0)
        directory = None
        try:
            writer = None
            for batch in iterator:
                if writer is None:
                    directory = self.stage.attempt(f"{task:06d}-{attempt}")
                    writer = PartWriter(directory, self.options.rows, turn=task)
                writer.add(batch)
            return PartsMessage(task, [] if writer is None else writer.close())
        except BaseException:
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)
            raise

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give offsets and put everything in place, or nothing."""
        told = sorted((each for each in messages if isinstance(each, PartsMessage)), key=lambda each: each.task)
        try:
            if len(told) != len(messages):
                raise RuntimeError(f"{len(messages) - len(told)} of {len(messages)} tasks didn't tell what they wrote")
            commit(
                self.stage,
                [part for message in told for part in message.parts],
                segment_bytes=self.options.segment_bytes,
                index_interval_bytes=self.options.index_interval_bytes,
                mode=self.mode,
                wait=_WAIT,
            )
        finally:
            self.stage.remove()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what tasks have written."""
        with contextlib.suppress(OSError):
            self.stage.remove()
