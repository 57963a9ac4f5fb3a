"""``spark.read.format("kbatch")``: a broker's log directory, or a live cluster, as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from kbatch.live.cluster_source import ClusterSource
from kbatch.log.missing import retry_if_gone
from kbatch.log.selection import choose_logs
from kbatch.options import On
from kbatch.plan.arrow_batches import count_batches, transformed_batches
from kbatch.plan.cluster_options import is_live, parse_source, warn_without_effect
from kbatch.plan.loss_rows import loss_batches
from kbatch.plan.planner import plan_or_defer, plan_ranges, splits_of
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.tasks import task_options, task_tables
from kbatch.plan.transaction_rows import transaction_batches
from kbatch.plan.value_columns import parsers_of
from kbatch.public_names import public_in
from kbatch.spark.datasink import KbatchWriter
from kbatch.spark.driver.shipping import Shipped
from kbatch.spark.live_reader import KbatchLiveReader, live_parsers
from kbatch.spark.live_stream import KbatchLiveStreamReader
from kbatch.spark.source_api import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    check_data_source,
)
from kbatch.spark.stream_options import parse_live_stream_options, parse_stream_options
from kbatch.spark.stream_source import KbatchStreamReader
from kbatch.spark.table_options import created_options, read_table_options, with_options
from kbatch.spark.table_schemas import columns_of, kafka_schema, table_schema
from kbatch.spark.value_schema import columns_for, value_schema
from kbatch.value_options import ValueOptions
from kbatch.values.parsed import Parser
from kbatch.values.typed_columns import ValueColumns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["KbatchDataSource", "KbatchReader", "register"]


@public_in("kbatch.spark")
class KbatchDataSource(Shipped, DataSource):
    """The data source ``kbatch``: log directories and live clusters, like Spark's Kafka source.

    It has the schema and the options of that source.

    With ``option("kafka.bootstrap.servers", "HOST:PORT")`` and no path, records come from a live cluster, by the
    protocol of Kafka: the driver looks up offsets, and tasks fetch from the leaders of partitions. With
    ``option("history", PATH)`` they read closed segments from log directories or tiered storage, and fetch only the
    rest. ``docs/spark-live.md`` lists the options. Otherwise a path names log directories.

    Columns are key, value, topic, partition, offset, timestamp, timestampType, and headers with
    ``option("includeHeaders", "true")``. A user's schema chooses among them and sets their order; other columns are
    not built. ``docs/options.md`` describes the options.

    ``option("table", "counts")`` returns the number of records, in one row or more for each topic-partition that has
    records, with topic, partition and records. It reads and checks the logs as for records, but builds no columns.

    ``option("table", "losses")`` returns the losses of a read with the same options (``onError`` is then ``skip``
    unless it is ``stop``): one row for each byte range lost to damage, and for each gap of unknown cause between two
    segments (`ReadOptions.on_gap`), with topic, partition, file, position and length (bytes in the file; 0 for a gap),
    reason, and base_offset, which is null if the header cannot be framed. The logs are read and checked as for records;
    an empty table means that there are no losses.

    ``option("table", "transactions")`` returns the transactions of the logs, without decoding their records: one row
    for each aborted, undecided and open transaction that reaches into the chosen offsets, with topic, partition,
    producer_id, first_offset, last_offset (of the marker; null if it is open), state (``aborted``; ``undecided``, if
    its marker is lost to damage; or ``open``), first_timestamp (of the first batch of an open transaction if it has
    one; otherwise null), and last_stable_offset, from which on read_committed withholds the records of this log (null
    if nothing is open).

    ``spark.readStream`` follows logs that a broker is writing.

    ``option("valueFormat", "json")`` (``avro``, ``protobuf``, ``struct``, ``string``; ``keyFormat`` likewise) returns
    parsed values in place of bytes, and as the last columns ``value_bad`` and ``value_error``, the bytes of values that
    cannot be parsed completely and the reason, and ``value_schema_id``, a registry's id with Confluent framing. If
    neither ``valueSchema`` nor a user's schema gives the schema of json, it is inferred from a sample of the logs,
    once, when the DataFrame is created; with ``schemaRegistry``, schemas are those of a schema registry.

    Options prune the read; the filters of a query do not, because PySpark reuses a reader with the filters of one
    query for later queries of the same DataFrame, which would then miss rows. ``key`` and ``keyHex`` choose the records
    of one key before any row is built. If ``keyPartitions`` is also given, only the partition that Kafka's default
    partitioner chooses for the key is read.

    A row of Spark is limited to 2 GiB, and an executor needs heap of about four times the size of its largest record;
    with less, Spark fails without naming the cause. Records above 64 MiB are logged by the worker, and records
    above ``maxRecordBytes``, by default 2 GiB, are an error that names them.

    ``CREATE TABLE t USING kbatch OPTIONS (path '/data', subscribe 'orders')`` makes a table, and ``CREATE TEMPORARY
    VIEW`` a view. A table must be created without a list of columns, because its options are stored with the schema.

    ``df.write.format("kbatch").mode("append").save(root)`` writes rows with the columns of `kbatch.log.write_log` into
    a log directory that driver and executors share. New segments continue the offsets of the existing ones, in the
    order of tasks and of rows in them; all rows are written, or none.

    Examples
    --------
    >>> import kbatch.spark
    >>> kbatch.spark.register(spark)  # doctest: +SKIP
    >>> spark.read.format("kbatch").option("subscribe", "orders").load("/data/kafka").count()  # doctest: +SKIP
    >>> spark.read.format("kbatch").option("table", "losses").load("/data/kafka").show()  # doctest: +SKIP
    >>> live = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}
    >>> spark.read.format("kbatch").options(**live).load().count()  # doctest: +SKIP
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "kbatch"

    def schema(self) -> StructType:
        """Return the table's schema; records have the schema of Spark's Kafka source. Spark calls this first."""
        created = created_options(self.options)
        if created is not None:
            return with_options(self._schema(created), created)
        return self._schema(self.options)

    def _schema(self, given: Mapping[str, str]) -> StructType:
        source: list[str] | ClusterSource
        try:
            source, options = parse_source(given)
        except ValueError as error:
            # It is unknown here whether this is a batch read or a stream.
            try:
                source, stream = parse_live_stream_options(given) if is_live(given) else parse_stream_options(given)
            except ValueError:
                raise error from None
            options = stream.read
        if options.table == "records":
            schema = kafka_schema(headers=bool(options.include_headers))
            if options.values.parsed:
                schema = value_schema(schema, _parsers(source, options.values, options))
            return schema
        return table_schema(options.table)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for the default schema, or for the columns of a user's."""
        given = read_table_options(self.options, schema)
        source, options = parse_source(given)
        warn_without_effect(given)
        columns, values = _columns(schema, source, options)
        if isinstance(source, ClusterSource):
            return KbatchLiveReader(source, options, columns, values)
        return KbatchReader(source, options, columns, values)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream, with the same columns as `reader`."""
        given = read_table_options(self.options, schema)
        warn_without_effect(given, is_stream=True)
        if is_live(given):
            source, options = parse_live_stream_options(given)
            return KbatchLiveStreamReader(source, options, *_columns(schema, source, options.read))
        paths, options = parse_stream_options(given)
        return KbatchStreamReader(paths, options, *_columns(schema, paths, options.read))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of rows with the columns of `kbatch.log.write_log`."""
        return KbatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Raise: streams cannot be written."""
        raise ValueError(
            "kbatch writes no streams; write each micro-batch: "
            'writeStream.foreachBatch(lambda df, _: df.write.format("kbatch").mode("append").save(root))'
        )


def _columns(
    schema: StructType, source: list[str] | ClusterSource, options: ReadOptions
) -> tuple[tuple[str, ...], ValueColumns | None]:
    """Return the columns to decode for a schema, and the parser of their values."""
    if options.table == "records" and options.values.parsed:
        return columns_for(schema, options, lambda values: _parsers(source, values, options))
    return columns_of(schema, options.table), None


def _parsers(source: list[str] | ClusterSource, values: ValueOptions, options: ReadOptions) -> dict[On, Parser]:
    """Return the parsers of the keys and values of directories or a cluster, which may take a sample of them."""
    if isinstance(source, ClusterSource):
        return live_parsers(source, values, options)
    return parsers_of(values, choose_logs(source, options.selection, options.storage), options)


class KbatchReader(Shipped, DataSourceReader):
    """Plans the splits on the driver, and reads them in tasks. It is pickled, so it holds plain values only."""

    def __init__(
        self, paths: list[str], options: ReadOptions, columns: tuple[str, ...], values: ValueColumns | None = None
    ) -> None:
        self.paths = paths
        self.options = options
        self.columns = columns
        self.values = values

    def __getstate__(self) -> dict[str, Any]:
        # Only tasks get a pickled reader, and all of them the same one.
        return {**self.__dict__, "options": task_options(self.options)}

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each task.

        Its value is a `Task`, or a tuple of `LogRange` for transactions.
        """

        def tasks() -> Sequence[object]:
            logs = choose_logs(self.paths, self.options.selection, self.options.storage)
            if self.options.table == "transactions":
                return plan_ranges(logs, self.options)
            return plan_or_defer(logs, self.options)

        return [InputPartition(task) for task in retry_if_gone(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the splits or logs of one partition."""
        # Spark replaces an empty list by InputPartition(None).
        task: Any = partition.value or ()
        columns, options = self.columns, self.options
        if options.table == "transactions":
            return transaction_batches(task, columns, options)
        task = splits_of(task, options)
        if options.table == "losses":
            # No column of the records is needed.
            return loss_batches(task_tables(task, options, ()), columns)
        if options.table == "counts":
            return count_batches(task_tables(task, options, ()), columns)
        return transformed_batches(task_tables(task, options, columns), columns, options, self.values)


@public_in("kbatch.spark")
def register(spark: SparkSession) -> None:
    """Register ``format("kbatch")`` with a session.

    Parameters
    ----------
    spark : SparkSession

    Raises
    ------
    MissingDependencyError
        If PySpark is older than 4.0, which has no data sources in Python.

    Examples
    --------
    >>> import kbatch.spark
    >>> kbatch.spark.register(spark)  # doctest: +SKIP
    """
    check_data_source()
    spark.dataSource.register(KbatchDataSource)
