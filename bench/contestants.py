"""The programs that `bench.spark` compares: the records of a topic on Spark, into a count, into nothing, into Parquet.

What a contestant is given is the same topic: its partition directories, and for Spark's own Kafka source the broker
that they belong to. Each makes a DataFrame with the columns of `COLUMNS`; what is done with it is the same for all.
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
    "AIOKAFKA",
    "CEILING",
    "COMPRESSION",
    "CONTESTANTS",
    "EXPORT",
    "KAFKA",
    "KAFKA_PYTHON",
    "SOURCE",
    "Contestant",
    "Input",
    "Sums",
]

COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
# The same for all: what each would use by itself differs in speed.
COMPRESSION = "snappy"


@dataclass(frozen=True)
class Sums:
    """What every way of reading a topic must add up to."""

    records: int
    offsets: int
    key_bytes: int
    value_bytes: int

    @classmethod
    def of_parquet(cls, directory: str) -> Sums:
        """Read what was written with neither Spark nor kbatch."""
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
    """Partitions of a topic, where they are, and what is in them."""

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


def kafka_frame(spark: Any, given: Input) -> Any:
    """Read with Spark's own source; what a poll and a fetch may bring is raised to what helps it."""
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", given.bootstrap)
        .option("assign", assignment(given))
        .option("kafka.max.poll.records", "10000")
        .option("kafka.max.partition.fetch.bytes", str(8 << 20))
        .load()
    )


def aiokafka_frame(spark: Any, given: Input) -> Any:
    return rdd_frame(spark, given, aiokafka_records)


def aiokafka_tuples_frame(spark: Any, given: Input) -> Any:
    return rdd_frame(spark, given, aiokafka_records, tuples=True)


def kafka_python_frame(spark: Any, given: Input) -> Any:
    return rdd_frame(spark, given, kafka_python_records)


def aiokafka_records() -> Callable[[bytes], Any]:
    from aiokafka.record.memory_records import MemoryRecords

    # Without its C extension it is ten times slower, and a comparison with it worth nothing.
    if "_crecords" not in MemoryRecords.__module__:
        raise RuntimeError("aiokafka runs without its C extension: a comparison would flatter kbatch")
    return MemoryRecords


def kafka_python_records() -> Callable[[bytes], Any]:
    from kafka.record.memory_records import MemoryRecords
    from kafka.record.util import crc32c_c

    if crc32c_c is None:
        raise RuntimeError("kafka-python runs without the crc32c package: a comparison would flatter kbatch")
    return MemoryRecords


def rdd_frame(spark: Any, given: Input, decoder: Callable[[], Callable[[bytes], Any]], *, tuples: bool = False) -> Any:
    """Segment files -> records -> DataFrame, as somebody would write it who has a client library.

    A record is a Row, as `kbatch.spark.decode_batches` gives it, in whose place the client stands here. With `tuples`
    it is a tuple whose types nobody checks, the fastest way that was found.
    """
    from pyspark.sql import Row

    make = Row("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")

    def rows(paths: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        records_of = decoder()
        time_of = datetime.fromtimestamp
        for path in paths:
            topic, _, number = os.path.basename(os.path.dirname(path)).rpartition("-")
            partition = int(number)
            entries = records_of(Path(path).read_bytes())
            while entries.has_next():
                batch = entries.next_batch()
                if not batch.validate_crc():
                    raise ValueError(f"{path}: wrong CRC at base offset {batch.base_offset}")
                for record in batch:
                    time = time_of(record.timestamp / 1000, UTC)
                    row = (record.key, record.value, topic, partition, record.offset, time, record.timestamp_type)
                    yield row if tuples else make(*row)

    files = given.segments()
    rdd = spark.sparkContext.parallelize(files, len(files)).mapPartitions(rows)
    return spark.createDataFrame(rdd, COLUMNS, verifySchema=not tuples)


def ready_made_frame(spark: Any, given: Input) -> Any:
    """Read nothing: one Arrow batch a task, made before and given as often as it takes. The transport and no more."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from kbatch.spark.source import KbatchDataSource

    # As many tasks as kbatch has, and of each as many rows; and batches as it makes them.
    like = KbatchDataSource({"path": given.logs, "assign": assignment(given)})
    bytes_of = [
        sum(split.end - split.start for split in task.value) for task in like.reader(like.schema()).partitions()
    ]
    shares = [given.sums.records * size // sum(bytes_of) for size in bytes_of]
    shares[-1] += given.sums.records - sum(shares)
    sample = given.segments()[0]

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(rows) for rows in shares]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import kbatch
            from kbatch.arrow import spark_batches

            rows = partition.value
            ready = next(iter(spark_batches(next(kbatch.Log(sample).tables(max_bytes=4 << 20)))))
            while rows > 0:
                yield ready.slice(0, rows)
                rows -= ready.num_rows

    class ReadyMade(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready_made"

        def schema(self) -> str:
            return COLUMNS

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(ReadyMade)
    return spark.read.format("ready_made").load()


def export(spark: Any, given: Input, out: str) -> None:
    from kbatch.spark import export
    from kbatch.spark.options import ReadOptions
    from kbatch.spark.write_options import WriteOptions

    options = ReadOptions(assign={given.topic: list(given.partitions)})
    export(given.logs, out, options=options, writing=WriteOptions(compression=COMPRESSION))


def count(frame: Any, out: str) -> int:
    return int(frame.count())


def noop(frame: Any, out: str) -> None:
    frame.write.format("noop").mode("overwrite").save()


def parquet(frame: Any, out: str) -> None:
    frame.write.option("compression", COMPRESSION).parquet(out)


SINKS: dict[str, Callable[[Any, str], int | None]] = {"noop": noop, "count": count, "parquet": parquet}


@dataclass(frozen=True)
class Contestant:
    """One of those who are compared.

    Attributes
    ----------
    frame : callable or None
        Gives the DataFrame that the sinks are run on; None is the export, which has no DataFrame.
    sinks : tuple of str
    slow : bool
        Takes minutes: it runs once, however many rounds there are, and on an eighth of the records.
    broker : bool
        Reads from the broker; the others read its files while it is down.
    """

    frame: Callable[[Any, Input], Any] | None
    sinks: tuple[str, ...] = ("noop", "count", "parquet")
    slow: bool = False
    broker: bool = False

    def run(self, spark: Any, given: Input, scratch: Path) -> dict[str, float]:
        """Run every sink once; return its seconds. What can be checked is checked, untimed."""
        seconds = {}
        for sink in self.sinks:
            out = str(scratch / sink)
            start = time.perf_counter()
            counted = export(spark, given, out) if self.frame is None else SINKS[sink](self.frame(spark, given), out)
            seconds[sink] = time.perf_counter() - start
            if counted is not None and counted != given.sums.records:
                raise AssertionError(f"counted {counted} records, the topic has {given.sums.records}")
            if sink == "parquet":
                found = Sums.of_parquet(out)
                if found != given.sums:
                    raise AssertionError(f"wrote {found}, the topic has {given.sums}")
                shutil.rmtree(out)
        return seconds


EXPORT, SOURCE, CEILING = "kbatch export", "kbatch data source", "ready-made Arrow batches"
KAFKA = "Spark's Kafka source"
AIOKAFKA, KAFKA_PYTHON = "mapPartitions with aiokafka", "mapPartitions with kafka-python"
AIOKAFKA_TUPLES = "mapPartitions with aiokafka, unchecked tuples"

CONTESTANTS = {
    EXPORT: Contestant(None, ("parquet",)),
    SOURCE: Contestant(kbatch_frame),
    CEILING: Contestant(ready_made_frame, ("noop", "count")),
    KAFKA: Contestant(kafka_frame, broker=True),
    AIOKAFKA: Contestant(aiokafka_frame, slow=True),
    AIOKAFKA_TUPLES: Contestant(aiokafka_tuples_frame, slow=True),
    KAFKA_PYTHON: Contestant(kafka_python_frame, slow=True),
}
