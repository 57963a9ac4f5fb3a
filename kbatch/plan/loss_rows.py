"""Losses as rows, for the data source's table ``losses`` and the export's side table."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import pyarrow as pa

from kbatch.escaping import printable
from kbatch.records.loss_list import Loss
from kbatch.table import RecordTable

__all__ = ["LOSS_SCHEMA", "LossLog", "LossRows", "ReadPart", "loss_batches"]

LOSS_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("file", pa.string()),
        ("position", pa.int64()),
        ("length", pa.int64()),
        ("reason", pa.string()),
        ("base_offset", pa.int64()),
    ]
)
# The number of rows of an Arrow batch, and thus of a row group: some megabytes with the longest reasons.
_LOSS_ROWS = 8_000
# The number of losses that a task logs.
_MAX_LINES = 100


class ReadPart(Protocol):
    """The part of a log that a task reads: a range of bytes of a segment, or of offsets of a live partition."""

    @property
    def path(self) -> str:
        """The location of the bytes, for messages."""

    @property
    def topic(self) -> str | None:
        """The topic, if it is known."""

    @property
    def partition(self) -> int | None:
        """The partition, if it is known."""


class LossRows:
    """Collects losses for a batch of `LOSS_SCHEMA`."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in LOSS_SCHEMA.names}

    def __len__(self) -> int:
        return len(self._columns["position"])

    @property
    def full(self) -> bool:
        """Whether there are enough rows for a batch, so that callers should call `take`."""
        return len(self) >= _LOSS_ROWS

    def add(self, split: ReadPart, losses: Sequence[Loss]) -> None:
        """Add the losses of a table that came from `split`."""
        n = len(losses)
        same = {"topic": split.topic, "partition": split.partition, "file": split.path}
        for name, value in same.items():
            self._columns[name] += [value] * n
        for name in ("position", "length", "reason", "base_offset"):
            self._columns[name] += [getattr(loss, name) for loss in losses]

    def take(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows, optionally with only these columns, and remove them."""
        # To make an array from a list, pyarrow imports pandas if it is installed.
        if not len(self):
            return
        schema = pa.schema([LOSS_SCHEMA.field(name) for name in columns or LOSS_SCHEMA.names])
        arrays = [pa.array(self._columns[field.name], field.type) for field in schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        for values in self._columns.values():
            values.clear()
        for start in range(0, batch.num_rows, _LOSS_ROWS):
            yield batch.slice(start, _LOSS_ROWS)


def loss_batches(
    tables: Iterable[tuple[ReadPart, RecordTable]], columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the losses of a task's tables (`kbatch.plan.tasks.task_tables`) as Arrow batches, in their order.

    Parameters
    ----------
    tables : iterable of (ReadPart, RecordTable)
        The records of the tables are not used.
    columns : sequence of str, optional
        The columns of `LOSS_SCHEMA` to return, in this order.

    Yields
    ------
    pyarrow.RecordBatch
    """
    rows = LossRows()
    for split, table in tables:
        rows.add(split, table.losses)
        del table
        if rows.full:
            yield from rows.take(columns)
    yield from rows.take(columns)


class LossLog:
    """Logs warnings about losses in a worker's log: the first ones in detail, then the number of losses.

    Parameters
    ----------
    log : Logger
    where_all : str
        How to get all losses, for the last line.
    """

    def __init__(self, log: logging.Logger, where_all: str) -> None:
        self._log = log
        self._where_all = where_all
        self._count = 0

    def add(self, source: str, losses: Sequence[Loss]) -> None:
        """Log the losses of a table."""
        for loss in islice(losses, max(0, _MAX_LINES - self._count)):
            where, reason = printable(source), printable(loss.reason)
            lost = f"{loss.length} bytes lost: " if loss.length else ""
            self._log.warning("%s, byte %d: %s%s", where, loss.position, lost, reason)
        self._count += len(losses)

    def close(self) -> None:
        """Log the number of losses, and how to get all losses."""
        if self._count:
            self._log.warning("%d losses in this task; %s", self._count, self._where_all)
