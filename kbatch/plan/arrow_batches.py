"""Converts a task's tables to Arrow batches for Spark, for batch reads and streams."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from kbatch.errors import LimitExceededError
from kbatch.escaping import printable
from kbatch.plan.loss_rows import LossLog, ReadPart
from kbatch.plan.read_options import MOST_ROW_BYTES, ReadOptions
from kbatch.records.kafka_columns import spark_batches
from kbatch.table import RecordTable

__all__ = ["COUNT_SCHEMA", "Transform", "count_batches", "transformed_batches"]

COUNT_SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("records", pa.int64())])
_ALL_LOSSES = "a batch read with option('table', 'losses') returns all of them as a DataFrame"
# Records larger than this are logged: with a heap of 1 GiB, a record of 300 MiB passes, and one of 400 MiB ends the
# JVM.
_LARGE = 64 << 20
_SIZED = ("key", "value", "headers")


class Transform(Protocol):
    """A picklable function on batches of records that keeps their rows, such as parsing values."""

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the result of `apply` for batches with a schema."""

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the same rows in the same order."""


def transformed_batches(
    tables: Iterable[tuple[ReadPart, RecordTable]],
    columns: tuple[str, ...],
    options: ReadOptions,
    transform: Transform | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task's tables (`kbatch.plan.tasks.task_tables`) as Arrow batches, in their order.

    Losses are logged in the worker's log.

    Parameters
    ----------
    tables : iterable of (ReadPart, RecordTable)
    columns : tuple of str
        Columns of `kbatch.records.kafka_columns.SPARK_COLUMNS`, in the order to return.
    options : ReadOptions
    transform : Transform, optional

    Raises
    ------
    LimitExceededError
        For a record larger than ``maxRecordBytes``.
    """
    for _, table in _logged(tables):
        _check_sizes(table, columns, options)
        for batch in spark_batches(table, columns, overflow=options.timestamp_overflow):
            yield batch if transform is None else transform.apply(batch)
        del table


def count_batches(tables: Iterable[tuple[ReadPart, RecordTable]], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the record count of each table of a task that has records, as Arrow batches of one row.

    Losses are logged in the worker's log.

    Parameters
    ----------
    tables : iterable of (ReadPart, RecordTable)
        Columns of their records are not used.
    columns : sequence of str
        The columns of `COUNT_SCHEMA` to return, in this order.
    """
    schema = pa.schema([COUNT_SCHEMA.field(name) for name in columns])
    for split, table in _logged(tables):
        if len(table):
            row = {"topic": split.topic, "partition": split.partition, "records": len(table)}
            yield pa.RecordBatch.from_pylist([row], schema=schema)
        del table


def _logged(tables: Iterable[tuple[ReadPart, RecordTable]]) -> Iterator[tuple[ReadPart, RecordTable]]:
    """Yield the tables, and log their losses."""
    losses = LossLog(logging.getLogger(__name__), _ALL_LOSSES)
    for split, table in tables:
        losses.add(split.path, table.losses)
        yield split, table
        # Free the table before the next one is read.
        del table
    losses.close()


def _check_sizes(table: RecordTable, columns: tuple[str, ...], options: ReadOptions) -> None:
    """Report records that may be too large for the JVM, which would exit without naming the cause."""
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
            is_default = options.max_record_bytes == MOST_ROW_BYTES
            directory = os.path.dirname(table.source or "")
            other = f"kbatch.consume({table.topic!r}, partitions=[{table.partition}], start={first})"
            if directory:
                other = f"kbatch.Log({directory!r}).tables(start_offset={first})"
            limit = f"the maximum of Spark, {MOST_ROW_BYTES}" if is_default else "maxRecordBytes"
            raise LimitExceededError(
                f"{where}: {what} exceed {limit}; a schema without the large column reads the others, and "
                f"{other} reads the record",
                source=table.source,
                position=position,
                base_offset=first,
                record=record,
            )
        logging.getLogger(__name__).warning(
            "%s: %s; Spark's JVM needs about four times this size of its heap: if it runs out of memory, give "
            "executors more, or use a schema without the column",
            printable(where),
            what,
        )
