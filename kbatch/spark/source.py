"""``spark.read.format("kbatch").load(root)``: a broker's log directory as a DataFrame."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kbatch.arrow import spark_batches
from kbatch.spark.losses import LossLog, loss_batches
from kbatch.spark.options import ReadOptions, Table, parse_options
from kbatch.spark.planning import open_logs, plan, plan_logs, select_logs, task_tables
from kbatch.spark.schema import columns_of, kafka_schema, table_schema
from kbatch.spark.transactions import transaction_batches
from kbatch.spark.values import ValueColumns, columns_for, parsers_of, value_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["KbatchDataSource", "KbatchReader", "register"]

_log = logging.getLogger(__name__)


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

    ``option("valueFormat", "json")`` (``avro``, ``protobuf``, ``struct``, ``string``; ``keyFormat`` likewise) gives
    values in place of bytes, and a last column ``value_bad`` with the bytes of those that are none; the options that go
    with it are those of `kbatch.spark.value_options.ValueOptions.parse`. A schema of json that isn't given, by
    ``valueSchema`` or a user's schema, comes from a sample of the logs, once, when the DataFrame is made.

    Filters are not pushed down (``pushFilters``): in PySpark 4.1 to 4.3 a reader with filters is kept for the loaded
    relation, so that a second query of it gives wrong rows. Options prune instead.

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
        paths, options = parse_options(self.options)
        if options.table == "records":
            schema = kafka_schema(headers=options.include_headers)
            if options.values.parsed:
                logs = select_logs(open_logs(paths), options)
                schema = value_schema(schema, parsers_of(options.values, logs, options))
            return schema
        return table_schema(options.table)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for the default schema, or for the columns of a user's."""
        paths, options = parse_options(self.options)
        if options.table == "records" and options.values.parsed:
            columns, values = columns_for(schema, options, lambda: select_logs(open_logs(paths), options))
            return KbatchReader(paths, options, columns, values)
        return KbatchReader(paths, options, columns_of(schema, options.table))


class KbatchReader(DataSourceReader):
    """Plans the splits on the driver, and reads them in tasks. It has plain values only: it is pickled."""

    def __init__(
        self, paths: list[str], options: ReadOptions, columns: tuple[str, ...], values: ValueColumns | None = None
    ) -> None:
        self.paths = paths
        self.options = options
        self.columns = columns
        self.values = values

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each task; its value is a tuple of `Split`, or of `LogRange` for transactions."""
        logs = select_logs(open_logs(self.paths), self.options)
        tasks = plan_logs(logs, self.options) if self.options.table == "transactions" else plan(logs, self.options)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one partition names."""
        # Spark makes InputPartition(None) of an empty list.
        for batch in _BATCHES[self.options.table](partition.value or (), self.columns, self.options):
            yield batch if self.values is None else self.values.apply(batch)


def _records(task: tuple[Any, ...], columns: tuple[str, ...], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    losses = LossLog(_log, "option('table', 'losses') gives all of them as a DataFrame")
    for split, table in task_tables(task, options):
        losses.add(split.path, table.losses)
        yield from spark_batches(table, columns, overflow=options.timestamp_overflow)
        del table
    losses.close()


def _losses(task: tuple[Any, ...], columns: tuple[str, ...], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    return loss_batches(task_tables(task, options), columns)


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
