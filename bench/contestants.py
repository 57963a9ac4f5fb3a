"""The contestants of `bench.spark`: ways to read the records of a topic, to count them or to write Parquet.

All contestants read the same topic, from the broker or from its log directory. Those on Spark return a DataFrame with
the columns of `COLUMNS`, which is processed in the same way for all; exports write Parquet themselves.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = [
    "COMPRESSION",
    "CONTESTANTS",
    "EXPORT",
    "KAFKA",
    "LIVE_LOCAL",
    "LIVE_SPARK",
    "Contestant",
    "Input",
    "Sums",
]

COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
# The same codec for all, because the contestants' defaults differ in speed.
COMPRESSION = "snappy"


@dataclass(frozen=True)
class Sums:
    """The sums that every contestant's output must have."""

    records: int
    offsets: int
    key_bytes: int
    value_bytes: int

    @classmethod
    def of_parquet(cls, directory: str) -> Sums:
        """Sum written Parquet files, using neither Spark nor kbatch."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        totals = [0, 0, 0, 0]
        for path in Path(directory).rglob("*.parquet"):
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(columns=["offset", "key", "value"]):
                    lengths = (pc.sum(pc.binary_length(batch[name])).as_py() or 0 for name in ("key", "value"))
                    found = (batch.num_rows, pc.sum(batch["offset"]).as_py() or 0, *lengths)
                    totals = [total + number for total, number in zip(totals, found, strict=True)]
        return cls(*totals)


@dataclass(frozen=True)
class Input:
    """Partitions of a topic: their location and their sums."""

    logs: str
    topic: str
    partitions: tuple[int, ...]
    bootstrap: str
    sums: Sums

    def segments(self) -> list[str]:
        found: list[str] = []
        for partition in self.partitions:
            found += sorted(glob.glob(f"{self.logs}/{self.topic}-{partition}/*.log"))
        return found


def assignment(given: Input) -> str:
    """Return the value of the option ``assign``, the same for Spark's source and for kbatch."""
    return json.dumps({given.topic: list(given.partitions)})


def kbatch_frame(spark: Any, given: Input) -> Any:
    from kbatch.spark import register

    register(spark)
    return spark.read.format("kbatch").option("assign", assignment(given)).load(given.logs)


def live_frame(spark: Any, given: Input) -> Any:
    from kbatch.spark import register

    register(spark)
    reader = spark.read.format("kbatch").option("kafka.bootstrap.servers", given.bootstrap)
    return reader.option("assign", assignment(given)).load()


def kafka_frame(spark: Any, given: Input) -> Any:
    """Read with Spark's own source, with larger limits for polls and fetches, which make it faster."""
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", given.bootstrap)
        .option("assign", assignment(given))
        .option("kafka.max.poll.records", "10000")
        .option("kafka.max.partition.fetch.bytes", str(8 << 20))
        .load()
    )


def aiokafka_frame(spark: Any, given: Input) -> Any:
    """Read segment files with aiokafka in mapPartitions, as a user of a client library does.

    Each record is a tuple whose types Spark does not check, which was the fastest way. With a Row for
    each record it takes 50 % longer.
    """

    def rows(paths: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        from aiokafka.record.memory_records import MemoryRecords

        # Without its C extension, aiokafka is ten times slower and the comparison would be meaningless.
        if "_crecords" not in MemoryRecords.__module__:
            raise RuntimeError("aiokafka has no C extension here, so the comparison would favour kbatch")
        time_of = datetime.fromtimestamp
        for path in paths:
            topic, _, number = os.path.basename(os.path.dirname(path)).rpartition("-")
            partition = int(number)
            entries = MemoryRecords(Path(path).read_bytes())
            while entries.has_next():
                batch = entries.next_batch()
                if not batch.validate_crc():
                    raise ValueError(f"{path}: wrong CRC at base offset {batch.base_offset}")
                for record in batch:
                    time = time_of(record.timestamp / 1000, UTC)
                    yield (record.key, record.value, topic, partition, record.offset, time, record.timestamp_type)

    files = given.segments()
    rdd = spark.sparkContext.parallelize(files, len(files)).mapPartitions(rows)
    return spark.createDataFrame(rdd, COLUMNS, verifySchema=False)


def exported(given: Input, source: str, engine: str, out: str) -> None:
    import kbatch

    assign = {given.topic: list(given.partitions)}
    kbatch.export(source, out, engine=engine, assign=assign, compression=COMPRESSION)


def export(given: Input, out: str) -> None:
    exported(given, given.logs, "spark", out)


def live_export(given: Input, out: str) -> None:
    exported(given, f"kafka://{given.bootstrap}", "spark", out)


def local_live_export(given: Input, out: str) -> None:
    exported(given, f"kafka://{given.bootstrap}", "local", out)


def count(frame: Any, out: str) -> int:
    return int(frame.count())


def parquet(frame: Any, out: str) -> None:
    frame.write.option("compression", COMPRESSION).parquet(out)


SINKS: dict[str, Callable[[Any, str], int | None]] = {"count": count, "parquet": parquet}


@dataclass(frozen=True)
class Contestant:
    """One way to read a topic.

    Attributes
    ----------
    frame : callable or None
        Returns the DataFrame for the sinks; None for an export, which has no DataFrame.
    export : callable or None
        Writes Parquet; None for a DataFrame.
    sinks : tuple of str
    slow : bool
        The contestant takes minutes, so it runs in the first round only and on an eighth of the records.
    broker : bool
        The contestant reads from the broker; the others read its files while it is down.
    """

    frame: Callable[[Any, Input], Any] | None = None
    export: Callable[[Input, str], None] | None = None
    sinks: tuple[str, ...] = ("count", "parquet")
    slow: bool = False
    broker: bool = False

    def run(self, spark: Any, given: Input, scratch: Path) -> dict[str, float]:
        """Run every sink once and check its result; return the seconds by sink, without the checks."""
        seconds = {}
        for sink in self.sinks:
            out = str(scratch / sink)
            start = time.perf_counter()
            counted = None
            if self.frame is not None:
                counted = SINKS[sink](self.frame(spark, given), out)
            elif self.export is not None:
                self.export(given, out)
            seconds[sink] = time.perf_counter() - start
            if counted is not None and counted != given.sums.records:
                raise AssertionError(f"counted {counted} records, the topic has {given.sums.records}")
            if sink == "parquet":
                found = Sums.of_parquet(out)
                if found != given.sums:
                    raise AssertionError(f"wrote {found}, the topic has {given.sums}")
                shutil.rmtree(out)
        return seconds


EXPORT, KAFKA = "kbatch export", "Spark's Kafka source"
LIVE_SPARK, LIVE_LOCAL = "kbatch export from the broker, Spark", "kbatch export from the broker, local"
CONTESTANTS = {
    EXPORT: Contestant(export=export, sinks=("parquet",)),
    "kbatch data source": Contestant(kbatch_frame),
    KAFKA: Contestant(kafka_frame, broker=True),
    LIVE_SPARK: Contestant(export=live_export, sinks=("parquet",), broker=True),
    LIVE_LOCAL: Contestant(export=local_live_export, sinks=("parquet",), broker=True),
    "kbatch data source from the broker": Contestant(live_frame, broker=True),
    "mapPartitions with aiokafka": Contestant(aiokafka_frame, slow=True),
}
