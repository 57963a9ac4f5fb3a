"""``spark.read.format("kbatch").load(root)``: a broker's log directory as a DataFrame."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kbatch.arrow import spark_batches
from kbatch.spark.options import ReadOptions, parse_options
from kbatch.spark.planning import open_logs, plan, select_logs, task_tables
from kbatch.spark.schema import columns_of, kafka_schema

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

    Filters are not pushed down (``pushFilters``): in PySpark 4.1 to 4.3 a reader with filters is kept for the loaded
    relation, so that a second query of it gives wrong rows. Options prune instead.

    Examples
    --------
    >>> import kbatch.spark
    >>> kbatch.spark.register(spark)  # doctest: +SKIP
    >>> spark.read.format("kbatch").option("subscribe", "orders").load("/data/kafka").count()  # doctest: +SKIP
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "kbatch"

    def schema(self) -> StructType:
        """Return the schema of Spark's Kafka source; this is also where bad options are told first."""
        _, options = parse_options(self.options)
        return kafka_schema(headers=options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for the default schema, or for the columns of a user's."""
        paths, options = parse_options(self.options)
        return KbatchReader(paths, options, columns_of(schema))


class KbatchReader(DataSourceReader):
    """Plans the splits on the driver, and reads them in tasks. It has plain values only: it is pickled."""

    def __init__(self, paths: list[str], options: ReadOptions, columns: tuple[str, ...]) -> None:
        self.paths = paths
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each task; its value is a tuple of `Split`."""
        logs = select_logs(open_logs(self.paths), self.options)
        return [InputPartition(splits) for splits in plan(logs, self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode the splits of one partition."""
        # Spark makes InputPartition(None) of an empty list.
        for split, table in task_tables(partition.value or (), self.options):
            for loss in table.losses:
                _log.warning("%s, byte %d: %d bytes lost: %s", split.path, loss.position, loss.length, loss.reason)
            yield from spark_batches(table, self.columns, overflow=self.options.timestamp_overflow)


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
