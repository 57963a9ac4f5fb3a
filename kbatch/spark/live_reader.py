"""``spark.read.format("kbatch").option("kafka.bootstrap.servers", ...)``: the records of a live cluster."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kbatch.live.cluster import Cluster
from kbatch.live.cluster_source import ClusterSource
from kbatch.live.live_partitions import LivePartition, located_partitions, selected_partitions
from kbatch.live.live_sampling import sample_partitions
from kbatch.log.sampling import topics_of
from kbatch.options import On
from kbatch.plan.arrow_batches import Transform, count_batches, transformed_batches
from kbatch.plan.cluster_history import ClusterHistory
from kbatch.plan.live_tasks import live_task_tables, plan_live_ranges
from kbatch.plan.loss_rows import loss_batches
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.spark_types import SparkParser
from kbatch.plan.tasks import task_options
from kbatch.spark.driver.shipping import Shipped
from kbatch.spark.driver_log import log_origins
from kbatch.spark.source_api import DataSourceReader, InputPartition
from kbatch.value_options import ValueOptions
from kbatch.values.parsed import Parser

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KbatchLiveReader", "live_parsers"]


class KbatchLiveReader(Shipped, DataSourceReader):
    """Looks up offsets on the driver; each task reads its own range, from files of the history or from the leader.

    It is pickled with the settings, which may have secrets: Spark sends it to executors, and shows it nowhere.
    """

    def __init__(
        self, source: ClusterSource, options: ReadOptions, columns: tuple[str, ...], values: Transform | None = None
    ) -> None:
        self.settings = source._settings
        self.history = source.history
        self.options = options
        self.columns = columns
        self.values = values

    def __getstate__(self) -> dict[str, Any]:
        # Only tasks get a pickled reader, and all of them the same one.
        return {**self.__dict__, "options": task_options(self.options), "history": ()}

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each task; its value is a tuple of `LiveRange`."""
        with Cluster(self.settings) as cluster:
            # As in Spark's Kafka source, a task does not pass over what retention deletes after the plan.
            found = [
                (log, replace(each, may_begin_later=False)) for log, each in plan_live_ranges(cluster, self.options)
            ]
            tasks = ClusterHistory(self.history, self.options.storage).tasks(found, self.options)
        if self.history:
            log_origins(tasks)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the ranges of one partition."""
        # Spark replaces an empty list by InputPartition(None).
        task: Any = partition.value or ()
        options, is_records = self.options, self.options.table == "records"
        tables = live_task_tables(self.settings, task, options, self.columns if is_records else ())
        if options.table == "losses":
            return loss_batches(tables, self.columns)
        if options.table == "counts":
            return count_batches(tables, self.columns)
        return transformed_batches(tables, self.columns, options, self.values)


def live_parsers(source: ClusterSource, values: ValueOptions, options: ReadOptions) -> dict[On, Parser]:
    """Return the parsers of the options, of values with Spark's types; schemas of json may be inferred from a sample.

    Raises
    ------
    BrokerError, AuthenticationError
    """
    with source._connected() as cluster:

        @functools.cache
        def logs() -> list[LivePartition]:
            return located_partitions(cluster, selected_partitions(cluster, options.selection), options.isolation)

        made = values.parsers(
            lambda on: sample_partitions(logs(), on, options.crc), topics=lambda: sorted(set(topics_of(logs())))
        )
        return {on: SparkParser(parser) for on, parser in made.items()}
