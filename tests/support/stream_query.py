"""Streams without Spark and without a broker: a writer of segments, and a query that imitates Spark's micro-batches."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, ClassVar

import pytest
from log_batches import segment_path
from transaction_logs import data, marker, txn

pytest.importorskip("pyspark")

import kbatch
from kbatch.spark.live_stream import KbatchLiveStreamReader
from kbatch.spark.stream_options import parse_live_stream_options, parse_stream_options
from kbatch.spark.stream_source import KbatchStreamReader

COLUMNS = ("topic", "partition", "offset")


class Writer:
    """Appends to the log of a partition, as a broker does."""

    def __init__(self, root: Path, name: str = "t-0", base: int = 0) -> None:
        self.path = root / name
        self.path.mkdir(parents=True)
        self.next = base
        self.roll()

    def roll(self) -> None:
        self.file = segment_path(self.path, self.next)
        self.file.touch()

    def append(self, raw: bytes, count: int) -> None:
        with open(self.file, "ab") as file:
            file.write(raw)
        self.next += count

    def records(self, count: int = 3) -> None:
        self.append(data(self.next, count=count), count)

    def checksum(self, offset: int) -> int:
        """Return the checksum of the batch that has an offset."""
        rows = kbatch.Log(self.path).batches()
        return int(rows["crc"][rows["last_offset"] >= offset][0])

    def txn(self, pid: int, count: int = 1) -> None:
        self.append(txn(self.next, pid, count), count)

    def marker(self, pid: int, kind: int) -> None:
        self.append(marker(self.next, pid, kind), 1)

    def delete_first(self) -> None:
        first = sorted(self.path.glob("*.log"))[0]
        first.rename(f"{first}.deleted")


class Query:
    """Calls the reader as Spark's micro-batches do; offsets are converted to JSON and back, as in a checkpoint."""

    def __init__(self, root: Path, *, reports_seen: bool = False, **options: str) -> None:
        self.reports_seen = reports_seen
        self.root, self.options = root, options
        self.log: list[dict[str, Any]] = []
        self.committed = 0
        self.rows: list[tuple[str, int, int]] = []
        self.restart()

    def restart(self) -> None:
        self.reader = self.made()
        if self.log and self.reports_seen:
            # Before PySpark 4.2: AcceptsLatestSeenOffset.setLatestSeenOffset
            self.reader.partitions(self.log[-1], self.log[-1])

    def made(self) -> Any:
        """Return a reader without state."""
        paths, options = parse_stream_options({"path": str(self.root), **self.options})
        return KbatchStreamReader(paths, options, COLUMNS)

    def start(self) -> dict[str, Any]:
        if self.committed:
            return self.log[self.committed - 1]
        return json.loads(json.dumps(self.reader.initialOffset()))

    def plan(self) -> bool:
        """Log the end of the next batch, unless a batch is already logged; return whether there are new records."""
        if len(self.log) > self.committed:
            return True
        start = self.start()
        end = json.loads(json.dumps(self.reader.latestOffset(start, None)))
        if self.committed and end == start:
            return False
        self.log.append(end)
        return True

    def read(self) -> list[tuple[str, int, int]]:
        rows = []
        for partition in self.reader.partitions(self.start(), self.log[-1]):
            # A task gets a copy.
            partition, reader = pickle.loads(pickle.dumps((partition, self.reader)))
            for batch in reader.read(partition):
                rows += list(zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True))
        return rows

    def batch(self) -> list[int] | None:
        if not self.plan():
            return None
        rows = self.read()
        self.committed = len(self.log)
        self.rows += rows
        return [offset for _, _, offset in rows]

    def drain(self) -> list[int]:
        out: list[int] = []
        while (batch := self.batch()) is not None:
            out += batch
        return out


class LiveQuery(Query):
    """A query of a topic of a live cluster."""

    readers: ClassVar[list[Any]] = []

    def __init__(self, address: str, topic: str = "t", **options: str) -> None:
        self.address, self.topic = address, topic
        super().__init__(Path(), **{"startingOffsets": "earliest", **options})

    def made(self) -> Any:
        given = {
            "kafka.bootstrap.servers": self.address, "kafka.retry.backoff.ms": "1",
            "kafka.default.api.timeout.ms": "30000", "subscribe": self.topic,
        }  # fmt: skip
        if "subscribePattern" in self.options:
            del given["subscribe"]
        source, options = parse_live_stream_options({**given, **self.options})
        self.readers.append(KbatchLiveStreamReader(source, options, COLUMNS))
        return self.readers[-1]

    @classmethod
    def stop_all(cls) -> None:
        """Close the connections of all readers; call it at the end of a test."""
        while cls.readers:
            cls.readers.pop().stop()
