"""``spark.read.format("kbatch").load(root)``: a broker's log directory as a DataFrame."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kbatch.arrow import spark_batches
from kbatch.errors import LimitExceededError
from kbatch.spark.losses import LossLog, loss_batches
from kbatch.spark.options import MOST_ROW_BYTES, ReadOptions, Table, parse_options
from kbatch.spark.planning import choose_logs, plan, plan_logs, task_tables
from kbatch.spark.pushdown import pushed, require_sound
from kbatch.spark.schema import columns_of, kafka_schema, table_schema
from kbatch.spark.stream import KbatchStreamReader, parse_stream_options
from kbatch.spark.transactions import transaction_batches
from kbatch.table import RecordTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["KbatchDataSource", "KbatchReader", "PushdownReader", "register"]

_log = logging.getLogger(__name__)

# From so many bytes on a record is told of: 300 MiB pass through a heap of 1 GiB, and 400 MiB end the JVM.
_LARGE = 64 << 20
_SIZED = ("key", "value", "headers")


class KbatchDataSource(DataSource):
    """The data source ``kbatch``: log directories with the schema and the options of Spark's Kafka source.

    Columns are key, value, topic, partition, offset, timestamp, timestampType, and headers with
    ``option("includeHeaders", "true")``. A schema given by the user chooses among them, in its order: what it leaves
    out is not built. The options are those of `kbatch.spark.options.parse_options`.

    ``option("table", "losses")`` gives another table, of what damage costs a read with the same options (``onError`` is
    then ``skip`` unless it is ``stop``): a row for each range of bytes that gives no records, with topic, partition,
    file, position and length (bytes in the file), reason, and base_offset, which is null where no header could be
    framed. The logs are read and checked for it as for the records; an empty table means that nothing is lost.

    ``option("table", "transactions")`` gives what the markers of the logs say, from their headers alone: a row for each
    aborted, each undecided and each open transaction that reaches into the offsets that are chosen, with topic,
    partition, producer_id, first_offset, last_offset (that of the marker; null while it is open), state (``aborted``;
    ``undecided``, if its marker is there but damaged; or ``open``), first_timestamp (of the first batch of an open one;
    null for the others, and where there is none), and last_stable_offset: from there on read_committed withholds
    everything of this log; null if nothing is open.

    ``spark.readStream`` follows logs that a broker is writing, see `kbatch.spark.stream.parse_stream_options`.

    A query's filters don't prune, since PySpark would give wrong rows then (`kbatch.spark.pushdown`); options do. With
    ``key`` or ``keyHex`` the records of one key are chosen before any row is made, and with ``keyPartitions`` too, only
    the partition that Kafka's default partitioner sends the key to is read.

    A row of Spark holds less than 2 GiB, and an executor takes about four times the bytes of its largest record from
    the heap; what dies of that doesn't say so. Records above 64 MiB are told of in the worker's log, and those above
    ``maxRecordBytes``, 2 GiB unless it is given, are an error that names them.

    Examples
    --------
    >>> import kbatch.spark
    >>> kbatch.spark.register(spark)  # doctest: +SKIP
    >>> spark.read.format("kbatch").option("subscribe", "orders").load("/data/kafka").count()  # doctest: +SKIP
    >>> spark.read.format("kbatch").option("table", "losses").load("/data/kafka").show()  # doctest: +SKIP
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "kbatch"

    def schema(self) -> StructType:
        """Return the table's schema, for records that of Spark's Kafka source; bad options are told here first."""
        try:
            _, options = parse_options(self.options)
        except ValueError as error:
            # Spark doesn't say yet whether it will be a batch or a stream.
            try:
                options = parse_stream_options(self.options)[1].read
            except ValueError:
                raise error from None
        if options.push_filters:
            require_sound()
        if options.table == "records":
            return kafka_schema(headers=options.include_headers)
        return table_schema(options.table)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for the default schema, or for the columns of a user's."""
        paths, options = parse_options(self.options)
        columns = columns_of(schema, options.table)
        if options.push_filters and options.table == "records":
            require_sound()
            return PushdownReader(paths, options, columns)
        return KbatchReader(paths, options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream, whose columns are those of `reader`."""
        paths, options = parse_stream_options(self.options)
        return KbatchStreamReader(paths, options, columns_of(schema))


class KbatchReader(DataSourceReader):
    """Plans the splits on the driver, and reads them in tasks. It has plain values only: it is pickled."""

    def __init__(self, paths: list[str], options: ReadOptions, columns: tuple[str, ...]) -> None:
        self.paths = paths
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each task; its value is a tuple of `Split`, or of `LogRange` for transactions."""
        logs = choose_logs(self.paths, self.options)
        if self.options.table == "transactions":
            return [InputPartition(ranges) for ranges in plan_logs(logs, self.options)]
        return [InputPartition(splits) for splits in plan(logs, self.options, withheld=False)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one partition names."""
        # Spark makes InputPartition(None) of an empty list.
        yield from _BATCHES[self.options.table](partition.value or (), self.columns, self.options)


class PushdownReader(KbatchReader):
    """A reader that the filters of a query narrow, for versions of PySpark that are sound."""

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Narrow the options, and return the filters that Spark has to apply all the same."""
        self.options, left = pushed(self.options, filters)
        return left


def _records(task: tuple[Any, ...], columns: tuple[str, ...], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    losses = LossLog(_log, "option('table', 'losses') gives all of them as a DataFrame")
    for split, table in task_tables(task, options, columns):
        losses.add(split.path, table.losses)
        _check_sizes(table, columns, options)
        yield from spark_batches(table, columns, overflow=options.timestamp_overflow)
        del table
    losses.close()


def _losses(task: tuple[Any, ...], columns: tuple[str, ...], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    # Of the records nothing is asked for.
    return loss_batches(task_tables(task, options, ()), columns)


def _check_sizes(table: RecordTable, columns: tuple[str, ...], options: ReadOptions) -> None:
    """Tell of records that may be too much for the JVM before it has them: it dies without saying of what."""
    if len(table.data) <= min(options.max_record_bytes, _LARGE):
        return
    sizes = np.zeros(len(table), np.int64)
    for column in ("key", "value"):
        if column in columns:
            sizes += np.maximum(table.records[f"{column}_len"], 0)
    if "headers" in columns:
        for length in ("key_len", "value_len"):
            np.add.at(sizes, table.headers["record"], np.maximum(table.headers[length], 0))
    for row in np.flatnonzero(sizes > min(options.max_record_bytes, _LARGE)).tolist():
        batch = table.batches[table.records["batch"][row]]
        position, first, record = int(batch["position"]), int(batch["base_offset"]), row - int(batch["first_record"])
        where = f"{table.source}, byte {position}, base offset {first}, record {record}"
        what = f"{sizes[row]} bytes of {', '.join(column for column in _SIZED if column in columns)}"
        if sizes[row] > options.max_record_bytes:
            most = (
                f"a row of Spark {MOST_ROW_BYTES}" if options.max_record_bytes == MOST_ROW_BYTES else "maxRecordBytes"
            )
            raise LimitExceededError(
                f"{where}: {what}, {most} at most; a schema without the large column reads the others, and "
                f"kbatch.Log({os.path.dirname(table.source or '')!r}).tables(start_offset={first}) the record itself",
                source=table.source,
                position=position,
                base_offset=first,
                record=record,
            )
        _log.warning(
            "%s: %s; Spark's JVM takes about four times as much of its heap: if it dies of that, give executors more "
            "memory, or leave the column out by a schema",
            where,
            what,
        )


# What a task makes of the value of its partition.
_BATCHES: dict[Table, Callable[[tuple[Any, ...], tuple[str, ...], ReadOptions], Iterator[pa.RecordBatch]]] = {
    "records": _records,
    "losses": _losses,
    "transactions": transaction_batches,
}


def register(spark: SparkSession) -> None:
    """Make ``format("kbatch")`` known to a session.

    Parameters
    ----------
    spark : SparkSession

    Examples
    --------
    >>> import kbatch.spark
    >>> kbatch.spark.register(spark)  # doctest: +SKIP
    """
    spark.dataSource.register(KbatchDataSource)
