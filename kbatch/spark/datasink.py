"""``df.write.format("kbatch").mode("append").save(root)``: a DataFrame as segments of a log directory.

Each attempt of a task writes its own files, with offsets that count from 0. The driver gets only the files of the
attempts that Spark accepts, so neither a retry nor a speculative duplicate writes a row twice. The driver assigns
offsets in the order of the tasks, and moves all files into place at once (`kbatch.log.write.commit`).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
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

from kbatch import options as opts
from kbatch.log.write.commit import Mode, check_before, commit
from kbatch.log.write.dataframe_rows import RowOptions, check_columns
from kbatch.log.write.parts import PartFile, PartWriter
from kbatch.log.write.staging import Stage
from kbatch.options import option
from kbatch.spark.driver.shipping import Shipped
from kbatch.spark.source_api import DataSourceArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KbatchWriter", "SinkOptions", "parse_sink_options"]

# Seconds to wait for the commit of another job, before the tasks begin and after all of them have finished.
_WAIT_BEFORE = 30.0
_WAIT_AFTER = 600.0


@opts.documented
@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """The options of a write. Instances hold plain values only and can be pickled.

    Attributes
    ----------
    rows : RowOptions
    {options}
    """

    rows: RowOptions
    segment_bytes: int = option(
        opts.size(1, opts.INT32_MAX), 1 << 30, spark="segmentBytes", help="maximum number of bytes in a segment"
    )
    index_interval_bytes: int = option(
        opts.size(), 4096, spark="indexIntervalBytes", help="bytes of a segment per index entry"
    )
    replace: bool = option(
        opts.BOOLEAN, False, spark="replaceLogs",
        help="let mode overwrite remove **all** logs in the directory"
    )  # fmt: skip

    def __post_init__(self) -> None:
        opts.check_options(self)


def parse_sink_options(options: Mapping[str, str]) -> tuple[str, SinkOptions]:
    """Return the directory to write to and the options, from the strings that Spark passes.

    Parameters
    ----------
    options : mapping of str to str
        Names in any case; ``docs/options.md`` lists all of them.

    Raises
    ------
    ValueError
        An unknown option, or a value that an option cannot have.

    Examples
    --------
    >>> from kbatch.spark.datasink import parse_sink_options
    >>> path, sink = parse_sink_options({"path": "/data", "topic": "orders", "codec": "zstd:3"})
    >>> path, sink.rows.topic, sink.rows.codec
    ('/data', 'orders', 'zstd:3')
    """
    given = {name.lower(): value for name, value in options.items()}
    if any(name.startswith("kafka.") for name in given):
        raise ValueError(
            "kbatch does not write to brokers, so that kafka.* does not apply: it writes a log directory, which "
            "save(...) names; write to a topic with Spark's Kafka sink, or with a producer in foreachPartition"
        )
    definitions = [*opts.options_of(RowOptions), *opts.options_of(SinkOptions)]
    opts.refuse_unknown(set(given) - {"path"}, [name for each in definitions for name in each.spark])
    if "path" not in given:
        raise ValueError("no path: name the log directory in save(...)")
    rows, row_names = opts.from_strings(opts.options_of(RowOptions), given)
    values, names = opts.from_strings(opts.options_of(SinkOptions), given)
    names |= row_names
    return given["path"], opts.as_named(lambda: SinkOptions(rows=RowOptions(**rows), **values), names)


def _arrow_schema(schema: StructType) -> pa.Schema:
    """Return the columns' schema in Arrow; PySpark's own function has other arguments in each version."""
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
        raise TypeError(f"column {name!r} is {kind.simpleString()}, a type that records do not have; cast or drop it")

    return pa.schema([(field.name, arrow(field.name, field.dataType)) for field in schema.fields])


@dataclass
class PartsMessage(WriterCommitMessage):
    """The files that a task has written, and its number."""

    task: int
    parts: list[PartFile]


class KbatchWriter(Shipped, DataSourceArrowWriter):
    """Writes parts in tasks, and moves them into place on the driver. It is pickled, so it holds plain values only."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        path, self.options = parse_sink_options(options)
        check_columns(_arrow_schema(schema), self.options.rows)
        self.stage = Stage(path, overwrite="mode 'overwrite' and option replaceLogs=true")
        # Spark has no other mode for a Python data source: it rejects ErrorIfExists and Ignore itself.
        self.mode: Mode = "append"
        if overwrite:
            self.mode = "overwrite" if self.options.replace else "error"
        check_before(self.stage, self.mode, _WAIT_BEFORE)
        # Spark creates the writer when it starts the tasks, and not before.
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
        """Assign offsets and move all files into place, or none."""
        sent = sorted((each for each in messages if isinstance(each, PartsMessage)), key=lambda each: each.task)
        try:
            if len(sent) != len(messages):
                raise RuntimeError(f"{len(messages) - len(sent)} of {len(messages)} tasks did not report their files")
            commit(
                self.stage,
                [part for message in sent for part in message.parts],
                segment_bytes=self.options.segment_bytes,
                index_interval_bytes=self.options.index_interval_bytes,
                mode=self.mode,
                wait=_WAIT_AFTER,
            )
        finally:
            self.stage.remove()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what tasks have written."""
        with contextlib.suppress(OSError):
            self.stage.remove()
