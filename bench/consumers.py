"""Clients that read topics from a broker, each in the fastest way found for each form of the result.

The forms are: a count of the records; Arrow tables, each dropped when the next one is made; the whole topic as one
Arrow table, as a pandas and as a Polars frame. Clients that hand out objects append their fields to lists, which become
the columns of a pandas frame, or Arrow arrays. The other frames for pandas have Arrow's types.

All clients verify CRCs (librdkafka and its wrappers because they are configured to), read all partitions, and stop at
the last record. `Consumer.missing` reports clients that are not installed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from bench.broker_topics import PARTITION_BYTES, RESPONSE_BYTES, Connection, Topic
from bench.corpora import CORPORA
from bench.foreign import CONSUMER_PROGRAMS, CannotRun, Program, command_of
from bench.report import LIVE

__all__ = [
    *(
        "ARROW",
        "ARROW_COLUMNS",
        "BYTES",
        "CONSUMERS",
        "COUNT",
        "FIFTIETH",
        "FORMS",
        "OBJECTS",
        "PARTS",
        "TABLES",
        "TENTH",
    ),
    *("WHOLE", "WHOLE_TABLE", "Consumer"),
]

ARROW_COLUMNS = ("offset", "timestamp", "key", "value")
COUNT, TABLES, WHOLE_TABLE, PANDAS, POLARS = FORMS = ("count", "arrow tables", "arrow", "pandas", "polars")
# Slow clients read a smaller topic of the same batches; rates are compared.
WHOLE, TENTH, FIFTIETH = "whole", "tenth", "fiftieth"
PARTS = {WHOLE: 1, TENTH: 10, FIFTIETH: 50}
# What a client gives to its users. The raw probe gives bytes that are not decoded.
BYTES, OBJECTS, ARROW, RECORD_TABLES = "bytes", "objects", "Arrow", "record tables"
DEADLINE_SECONDS = 120
MESSAGES = 10_000

# These settings make librdkafka two to ten times as fast. With its defaults, its queue fills up, and it pauses before
# it sends the next request.
LIBRDKAFKA = {
    "check.crcs": True,
    "queued.min.messages": 10_000_000,
    "queued.max.messages.kbytes": 1_048_576,
    "fetch.queue.backoff.ms": 1,
    "fetch.message.max.bytes": PARTITION_BYTES,
    # Closing a consumer waits for the last request.
    "fetch.wait.max.ms": 50,
}

# Functions that close clients, called after the time is taken, because closing waits for the last request.
CLOSE: list[Callable[[], Any]] = []

Take = Callable[[list[Any]], None]
Use = Callable[[Any], None]


def deadline() -> Callable[[], None]:
    """Return a function that raises `TimeoutError` when `DEADLINE_SECONDS` have passed."""
    until = time.monotonic() + DEADLINE_SECONDS

    def check() -> None:
        if time.monotonic() > until:
            raise TimeoutError(f"not all records arrived within {DEADLINE_SECONDS} s")

    return check


def fetch(topic: Topic) -> Iterator[tuple[memoryview, int]]:
    """Read a topic with Fetch requests; yield the bytes of batches and the number of records in them.

    The batch headers contain the next offsets, so the next request is sent before the batches are decoded.
    """
    import kbatch

    in_time = deadline()
    offsets = dict.fromkeys(range(topic.partitions), 0)
    left = topic.records
    with Connection(topic.bootstrap) as connection:
        connection.send_fetch(topic.name, offsets)
        while left:
            found = []
            for partition, data in connection.receive_fetch():
                batches = kbatch.scan(data)
                if len(batches):
                    offsets[partition] = int(batches["base_offset"][-1] + batches["last_offset_delta"][-1]) + 1
                    count = int(batches["record_count"].sum())
                    left -= count
                    found.append((data, count))
            if left > 0:
                connection.send_fetch(topic.name, offsets)
            in_time()
            yield from found


def count_raw(topic: Topic) -> int:
    return sum(count for _, count in fetch(topic))


def count_kbatch(topic: Topic) -> int:
    import kbatch

    return sum(len(kbatch.decode(data)) for data, _ in fetch(topic))


def tables_kbatch(topic: Topic, use: Use) -> None:
    import kbatch

    for data, _ in fetch(topic):
        use(kbatch.decode(data).to_arrow(columns=ARROW_COLUMNS))


def arrow_kbatch(topic: Topic) -> Any:
    import pyarrow as pa

    tables: list[Any] = []
    tables_kbatch(topic, tables.append)
    return pa.concat_tables(tables)


def consume(topic: Topic) -> Any:
    import kbatch

    return kbatch.consume(topic.name, bootstrap_servers=topic.bootstrap, columns=ARROW_COLUMNS)


def count_consume(topic: Topic) -> int:
    import kbatch

    return sum(len(table) for table in kbatch.consume(topic.name, bootstrap_servers=topic.bootstrap))


def tables_consume(topic: Topic, use: Use) -> None:
    for table in consume(topic):
        use(table.to_arrow())


class Rows:
    """Columns that grow by one append per value, and the frames that are made from them."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []

    def add_messages(self, messages: list[Any]) -> None:
        """Append the fields of confluent-kafka's messages."""
        offset, timestamp = self.offsets.append, self.timestamps.append
        key, value = self.keys.append, self.values.append
        for one in messages:
            offset(one.offset())
            timestamp(one.timestamp()[1])
            key(one.key())
            value(one.value())

    def add_records(self, records: list[Any]) -> None:
        """Append the fields of aiokafka's and kafka-python's records."""
        offset, timestamp = self.offsets.append, self.timestamps.append
        key, value = self.keys.append, self.values.append
        for one in records:
            offset(one.offset)
            timestamp(one.timestamp)
            key(one.key)
            value(one.value)

    def integers(self) -> tuple[Any, Any]:
        # np.fromiter takes two thirds of the time of pa.array, and for timestamps half.
        count = len(self.offsets)
        return np.fromiter(self.offsets, np.int64, count), np.fromiter(self.timestamps, np.int64, count)

    def table(self) -> Any:
        import pyarrow as pa

        offsets, timestamps = map(pa.array, self.integers())
        keys, values = (pa.array(column, pa.binary()) for column in (self.keys, self.values))
        columns = [offsets, timestamps.view(pa.timestamp("ms", "UTC")), keys, values]
        return pa.table(columns, names=list(ARROW_COLUMNS))

    def pandas(self) -> Any:
        import pandas as pd

        offsets, timestamps = self.integers()
        times = pd.DatetimeIndex(timestamps.view("M8[ms]"), tz="UTC")
        columns = [offsets, times, self.keys, self.values]
        return pd.DataFrame(dict(zip(ARROW_COLUMNS, columns, strict=True)), copy=False)

    def polars(self) -> Any:
        return polars_of(self.table())


def polars_of(table: Any) -> Any:
    import polars as pl

    return pl.from_arrow(table)


def pandas_of(table: Any) -> Any:
    import pandas as pd

    return table.to_pandas(types_mapper=pd.ArrowDtype)


def librdkafka(topic: Topic, take: Take, settings: Mapping[str, Any]) -> None:
    """Call `take` with the lists of messages that confluent-kafka's consumer returns."""
    import confluent_kafka

    in_time = deadline()
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": topic.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "log_level": 2,
            **settings,
        }
    )
    CLOSE.append(consumer.close)
    start = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(topic.name, one, start) for one in range(topic.partitions)])
    left = topic.records
    while left:
        messages = consumer.consume(MESSAGES, 0.05)
        for one in messages[:1]:
            if one.error():
                raise RuntimeError(f"librdkafka reports {one.error()}")
        left -= len(messages)
        take(messages)
        in_time()


def kafkarrow(topic: Topic) -> Iterator[Any]:
    """Yield the Arrow record batches that kafkarrow returns."""
    import kafkarrow as package

    in_time = deadline()
    config = {key: str(value).lower() for key, value in LIBRDKAFKA.items()}
    manager = package.ConsumerManager(
        {"bootstrap.servers": topic.bootstrap, "group.id": "bench", "log_level": "2", **config},
        [package.SourceTopic.from_earliest(topic.name)],
        batch_size=1_000_000,
    )
    left = topic.records
    while left:
        batch = manager.poll(100)
        left -= batch.num_rows
        yield batch
        in_time()


def tables_kafkarrow(topic: Topic, use: Use) -> None:
    import pyarrow as pa

    for batch in kafkarrow(topic):
        if batch.num_rows:
            use(pa.Table.from_batches([batch]).select(ARROW_COLUMNS))


def arrow_kafkarrow(topic: Topic) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches(batch for batch in kafkarrow(topic) if batch.num_rows).select(ARROW_COLUMNS)


async def aiokafka(topic: Topic, take: Take) -> None:
    """Call `take` with the lists of records that aiokafka's consumer returns."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    in_time = deadline()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=topic.bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=PARTITION_BYTES,
        fetch_max_bytes=RESPONSE_BYTES,
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic.name, one) for one in range(topic.partitions)])
        left = topic.records
        while left:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                left -= len(records)
                take(records)
            in_time()
    finally:
        await consumer.stop()


def kafka_python(topic: Topic, take: Take) -> None:
    """Call `take` with the lists of records that kafka-python's consumer returns."""
    # kafka-python reads its schemas through a function that importlib.resources has deprecated.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import KafkaConsumer, TopicPartition

        in_time = deadline()
        consumer = KafkaConsumer(
            bootstrap_servers=topic.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=PARTITION_BYTES,
            fetch_max_bytes=RESPONSE_BYTES,
            max_poll_records=MESSAGES,
        )
        CLOSE.append(consumer.close)
        consumer.assign([TopicPartition(topic.name, one) for one in range(topic.partitions)])
        left = topic.records
        while left:
            for records in consumer.poll(timeout_ms=100).values():
                left -= len(records)
                take(records)
            in_time()


def run_aiokafka(topic: Topic, take: Take) -> None:
    asyncio.run(aiokafka(topic, take))


@dataclass(frozen=True)
class Consumer:
    """A client, and a function for each form of the result that it has.

    Attributes
    ----------
    name : str
        Of a package that is not part of kbatch, also its name on PyPI.
    package : str
        The package that must be importable.
    gives : str
        `BYTES`, `OBJECTS`, `ARROW` or `RECORD_TABLES`.
    count : callable, optional
        Returns the number of records.
    tables : callable, optional
        Calls a function with each Arrow table.
    frames : mapping
        By form, a function that returns a frame of all records.
    parts, compressed_parts : mapping
        The part of the topic to read for each form, if it is not all; and the same for more forms of compressed topics.
    turns : int or None
        The most rounds that the client takes part in.
    seconds : int or None
        It is left out of a topic if it takes longer.
    is_chosen : bool
        Whether it runs if no clients are chosen.
    unread : tuple of str
        Codecs that the client cannot read.
    program : Program, optional
        The client is a program in another language, which counts.
    """

    name: str
    package: str
    gives: str
    count: Callable[[Topic], int] | None = None
    tables: Callable[[Topic, Use], None] | None = None
    frames: Mapping[str, Callable[[Topic], Any]] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    compressed_parts: Mapping[str, str] = field(default_factory=dict)
    turns: int | None = None
    seconds: int | None = None
    is_chosen: bool = True
    unread: tuple[str, ...] = ()
    program: Program | None = None

    @property
    def forms(self) -> list[str]:
        """The forms of results that the client has."""
        has = {COUNT: self.count or self.program, TABLES: self.tables, **self.frames}
        return [form for form in FORMS if has.get(form)]

    def part(self, form: str, corpus: str) -> str:
        """Return the part of a topic that the client reads into a form."""
        more = {} if CORPORA[corpus].codec == "none" else self.compressed_parts
        return {**more, **self.parts}.get(form, WHOLE)

    def missing(self, corpus: str) -> str | None:
        """Return the reason why the client cannot read a corpus here, or None if it can."""
        if self.program is not None:
            try:
                command_of(self.program)
            except CannotRun as error:
                return str(error).splitlines()[-1]
            return None
        if importlib.util.find_spec(self.package) is None:
            return f"{self.package} is not installed"
        return next((f"its wheels are built without {codec}" for codec in self.unread if codec in corpus), None)


def object_consumer(
    name: str, package: str, read: Callable[[Topic, Take], None], add: Callable[[Rows, list[Any]], None], **more: Any
) -> Consumer:
    """Return a client whose function `read` calls `take` with lists of objects, which `add` appends to columns."""

    def count(topic: Topic) -> int:
        counts: list[int] = []
        read(topic, lambda objects: counts.append(len(objects)))
        return sum(counts)

    def tables(topic: Topic, use: Use) -> None:
        def take(objects: list[Any]) -> None:
            if objects:
                rows = Rows()
                add(rows, objects)
                use(rows.table())

        read(topic, take)

    def whole(topic: Topic, frame: Callable[[Rows], Any]) -> Any:
        rows = Rows()
        read(topic, partial(add, rows))
        return frame(rows)

    frames = {WHOLE_TABLE: Rows.table, PANDAS: Rows.pandas, POLARS: Rows.polars}
    functions = {form: partial(whole, frame=frame) for form, frame in frames.items()}
    return Consumer(name, package, OBJECTS, count, tables, functions, turns=1, **more)


def frames_of(arrow: Callable[[Topic], Any]) -> dict[str, Callable[[Topic], Any]]:
    """Return the functions of a client whose frames are made from its Arrow table."""
    return {
        WHOLE_TABLE: arrow,
        PANDAS: lambda topic: pandas_of(arrow(topic)),
        POLARS: lambda topic: polars_of(arrow(topic)),
    }


CONSUMERS = [
    Consumer("raw probe", "kbatch", BYTES, count_raw),
    Consumer(
        LIVE,
        "kbatch",
        RECORD_TABLES,
        count_consume,
        tables_consume,
        {
            WHOLE_TABLE: lambda topic: consume(topic).to_arrow(),
            PANDAS: lambda topic: consume(topic).to_pandas(dtype_backend="pyarrow"),
            POLARS: lambda topic: consume(topic).to_polars(),
        },
    ),
    Consumer(
        "raw probe + kbatch.decode",
        "kbatch",
        RECORD_TABLES,
        count_kbatch,
        tables_kbatch,
        frames_of(arrow_kbatch),
        is_chosen=False,
    ),
    object_consumer(
        "confluent-kafka",
        "confluent_kafka",
        partial(librdkafka, settings=LIBRDKAFKA),
        Rows.add_messages,
        parts=dict.fromkeys((TABLES, PANDAS, POLARS), TENTH),
        compressed_parts={WHOLE_TABLE: TENTH},
    ),
    object_consumer(
        "confluent-kafka, defaults",
        "confluent_kafka",
        partial(librdkafka, settings={"check.crcs": True}),
        Rows.add_messages,
        parts=dict.fromkeys(FORMS, FIFTIETH),
        is_chosen=False,
    ),
    # Its CPU time is lower in some forms; neither is faster in all.
    object_consumer(
        "confluent-kafka, queue of 64 MiB",
        "confluent_kafka",
        partial(librdkafka, settings={**LIBRDKAFKA, "queued.max.messages.kbytes": 1 << 16}),
        Rows.add_messages,
        is_chosen=False,
    ),
    object_consumer(
        "aiokafka",
        "aiokafka",
        run_aiokafka,
        Rows.add_records,
        parts=dict.fromkeys((TABLES, PANDAS, POLARS), TENTH),
        compressed_parts={WHOLE_TABLE: TENTH},
    ),
    object_consumer("kafka-python", "kafka", kafka_python, Rows.add_records, parts=dict.fromkeys(FORMS, FIFTIETH)),
    Consumer(
        "kafkarrow",
        "kafkarrow",
        ARROW,
        lambda topic: sum(batch.num_rows for batch in kafkarrow(topic)),
        tables_kafkarrow,
        frames_of(arrow_kafkarrow),
        parts=dict.fromkeys(FORMS, TENTH),
        turns=1,
        seconds=60,
        unread=("zstd",),
    ),
    *(Consumer(name, "", OBJECTS, turns=1, program=program) for name, program in CONSUMER_PROGRAMS.items()),
]
