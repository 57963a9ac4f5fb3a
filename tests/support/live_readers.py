"""The batch reader of a live cluster, called as Spark calls it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

pytest.importorskip("pyspark")

from kbatch.plan.cluster_options import parse_cluster_options
from kbatch.spark.live_reader import KbatchLiveReader
from kbatch.spark.table_schemas import table_schema

__all__ = ["live_reader", "reader_rows"]


def live_reader(address: str, topic: str, *columns: str, **options: Any) -> KbatchLiveReader:
    """Return the reader of a topic; without `columns`, of all columns."""
    given = {name: str(value) for name, value in {"subscribe": topic, **options}.items()}
    source, read = parse_cluster_options({"kafka.bootstrap.servers": address, **given})
    return KbatchLiveReader(source, read, columns or tuple(table_schema(read.table).names))


def reader_rows(made: KbatchLiveReader) -> list[dict[str, Any]]:
    """Return the rows of all tasks; each task gets a pickled reader."""
    found: list[dict[str, Any]] = []
    for partition in made.partitions():
        task, copy = pickle.loads(pickle.dumps((partition, made)))
        found += [row for batch in copy.read(task) for row in batch.to_pylist()]
    return found
