"""Files of every magic and codec written by `kbatch.encode`, and the records that foreign readers return for them.

The readers are Kafka's own classes of two releases, librdkafka, which consumes from a broker that has recovered the
files as its own segments, aiokafka and kafka-python.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from confluent_kafka import Consumer, TopicPartition, libversion
from confluent_kafka.admin import AdminClient, NewTopic

import kbatch

from ..clients import CODECS, EPOCH
from ..legacy.make import POM as LEGACY_POM
from ..server import POM, Broker, find_jars, find_java

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

__all__ = ["CASES", "REFUSALS", "Case", "Row", "make", "markdown", "readers", "table"]

CASES = [(magic, codec) for magic in (2, 1, 0) for codec in CODECS if magic == 2 or codec != "zstd"]
# Formats that a reader does not support, whichever program wrote the file.
REFUSALS = {
    ("aiokafka", 0, "lz4"): "has no LZ4 for magic 0",
    ("kafka-python", 0, "lz4"): "needs xxhash for LZ4 in magic 0",
}
APPENDED = EPOCH + 5_000_000


class Row(NamedTuple):
    """A record as a reader should return it; `producer` is id, epoch, sequence, transactional, leader epoch."""

    offset: int
    timestamp: int
    type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]
    control: str | None
    producer: tuple[int, int, int, bool, int]


class Case(NamedTuple):
    """A file of one magic and codec, and the records in it; `aborted` lists the values that read_committed omits."""

    data: bytes
    rows: list[Row]
    aborted: set[bytes]


class CaseWriter:
    """Writes the batches of one case, and lists the records that readers should return."""

    def __init__(self, magic: int, codec: str) -> None:
        self.magic = magic
        self.codec = codec
        self.parts: list[bytes] = []
        self.rows: list[Row] = []

    @property
    def next_offset(self) -> int:
        return self.rows[-1].offset + 1 if self.rows else 0

    def add(
        self,
        values: list[bytes | None],
        keys: list[bytes | None],
        times: list[int],
        headers: list[list[tuple[bytes, bytes | None]]] | None = None,
        offsets: list[int] | None = None,
        append_time: int | None = None,
        **fields: Any,
    ) -> None:
        """Encode records as one or more batches."""
        magic = self.magic
        offsets = offsets or [self.next_offset + i for i in range(len(values))]
        options: dict[str, Any] = {} if magic == 0 else {"timestamps": times}
        if append_time is not None:
            options |= {"timestamp_type": "log_append_time", "append_time": append_time}
        if magic == 2:
            options |= {"headers": headers, "leader_epoch": 0}
        options |= fields
        self.parts.append(kbatch.encode(values, keys=keys, offsets=offsets, magic=magic, codec=self.codec, **options))
        first_sequence = fields.get("base_sequence", -1)
        for i, offset in enumerate(offsets):
            timestamp = times[i] if append_time is None else append_time
            sequence = -1 if first_sequence < 0 else (first_sequence + offset - offsets[0]) & 0x7FFFFFFF
            producer = (
                fields.get("producer_id", -1),
                fields.get("producer_epoch", -1),
                sequence,
                fields.get("transactional", False),
                0 if magic == 2 else -1,
            )
            self.rows.append(
                Row(
                    offset,
                    -1 if magic == 0 else timestamp,
                    -1 if magic == 0 else int(append_time is not None),
                    keys[i],
                    values[i],
                    headers[i] if magic == 2 and headers is not None else [],
                    None,
                    producer,
                )
            )

    def add_marker(self, kind: Literal["commit", "abort"], producer_id: int, producer_epoch: int) -> None:
        """End a transaction."""
        offset, timestamp = self.next_offset, EPOCH + 2
        self.parts.append(
            kbatch.encode_marker(
                kind,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=9,
                offset=offset,
                timestamp=timestamp,
                leader_epoch=0,
            )
        )
        key, value = b"\0\0\0" + bytes([kind == "commit"]), b"\0\0" + (9).to_bytes(4, "big")
        producer = (producer_id, producer_epoch, -1, True, 0)
        self.rows.append(Row(offset, timestamp, 0, key, value, [], f"{kind.upper()} 9", producer))


HEADER_LISTS: list[list[tuple[bytes, bytes | None]]] = [
    [],
    [(b"a", b"1")],
    [(b"a", b"1"), (b"b", None), (b"a", b"")],
    [(b"", b"x")],
    [("grüße".encode(), b"\xff")],
]


def make(magic: int, codec: str) -> Case:
    """Make everything that `encode` can write with a magic and a codec."""
    writer = CaseWriter(magic, codec)
    rng = np.random.default_rng(magic)
    odd_keys = [b"key", None, b"", b"key", b"key", None, b"", bytes([0, 255])]
    odd_values = [b"value", b"value", b"value", None, b"", None, b"", bytes(range(256))]
    plain: list[bytes | None] = [rng.bytes(n % 40) * (n % 9) for n in range(150)]
    count = len(odd_values) + len(plain)
    writer.add(
        odd_values + plain,
        odd_keys + [b"k%d" % (n % 7) for n in range(len(plain))],
        [EPOCH + int(n) for n in rng.integers(-1000, 1000, count)],
        [HEADER_LISTS[n % len(HEADER_LISTS)] for n in range(count)],
        batch_size=2000,
    )
    # Offsets with gaps, a missing timestamp, and values longer than a block of snappy or lz4.
    start = writer.next_offset
    writer.add(
        [b"gap", b"large " * 30_000, rng.bytes(100_000)],
        [b"g"] * 3,
        [EPOCH, -1, EPOCH + 7],
        [[]] * 3,
        [start + 4, start + 5, start + 89],
    )
    if magic > 0:
        times = [EPOCH, EPOCH - 5, -1]
        writer.add([b"appended", None, b"x"], [b"k"] * 3, times, [HEADER_LISTS[1]] * 3, append_time=APPENDED)
    if magic < 2:
        return Case(b"".join(writer.parts), writer.rows, set())
    aborted = _add_producers(writer)
    offset = writer.next_offset
    writer.parts.append(kbatch.encode_empty(offset, offset + 19, max_timestamp=EPOCH, leader_epoch=0))
    after = [offset + 29, offset + 30]
    writer.add([None, b"kept"], [b"tombstone", b"k"], [EPOCH, EPOCH + 1], offsets=after, delete_horizon=EPOCH + 99)
    return Case(b"".join(writer.parts), writer.rows, aborted)


def _add_producers(writer: CaseWriter) -> set[bytes]:
    """Add an idempotent batch, a committed and an aborted transaction; return the aborted values."""
    writer.add([b"idempotent"] * 4, [None] * 4, [EPOCH] * 4, producer_id=70, producer_epoch=3, base_sequence=2**31 - 2)
    kinds: tuple[Literal["commit"], Literal["abort"]] = ("commit", "abort")
    for number, kind in enumerate(kinds):
        for sequence in (4 * number, 4 * number + 2):
            writer.add(
                [b"%s %d" % (kind.encode(), sequence)] * 2,
                [b"t"] * 2,
                [EPOCH, EPOCH + 1],
                base_sequence=sequence,
                transactional=True,
                producer_id=80,
                producer_epoch=1,
            )
        writer.add_marker(kind, 80, 1)
    return {b"abort 4", b"abort 6"}


def java(pom: Path, files: Mapping[str, Path]) -> dict[str, list[Row] | str]:
    """Read files with Kafka's classes; return the rows of each file, or the error message."""
    jars = find_jars(pom)
    (clients,) = jars.glob("kafka-clients-*.jar")
    source = Path(__file__).with_name("Acceptance.java").read_text()
    with zipfile.ZipFile(clients) as jar:
        names = jar.namelist()
        if "org/apache/kafka/common/utils/internals/BufferSupplier.class" in names:
            # Kafka 4.4 moved these.
            for name in ("BufferSupplier", "CloseableIterator"):
                source = source.replace(f"common.utils.{name};", f"common.utils.internals.{name};")
        if "org/apache/kafka/common/record/internal/MemoryRecords.class" in names:
            # Kafka 4.2 moved most of the classes to this package.
            package = "import org.apache.kafka.common.record."
            source = source.replace(f"{package}*;", f"{package}*;\n{package}internal.*;")
            source = source.replace(f"{package}Record;", f"{package}internal.Record;")
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "Acceptance.java")
        program.write_text(source)
        command = [find_java(), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", os.fspath(program)]
        done = subprocess.run(
            [*command, *map(os.fspath, files.values())], capture_output=True, timeout=300, check=False
        )
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace")[-4000:])
    found: dict[str, list[Row] | str] = {}
    name_of = {os.fspath(path): name for name, path in files.items()}
    rows: list[Row] = []
    for line in done.stdout.decode().splitlines():
        one = json.loads(line)
        if isinstance(one, str):
            found[name_of[one]] = rows = []
            name = name_of[one]
        elif "error" in one:
            found[name] = one["error"]
        else:
            key, value = _bytes(one["key"]), _bytes(one["value"])
            headers = [(_bytes(k) or b"", _bytes(v)) for k, v in one["headers"]]
            control, producer = one["control"], tuple(one["producer"])
            rows.append(Row(one["offset"], one["timestamp"], one["type"], key, value, headers, control, producer))
    return found


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def _rows(records: Any, magic: int) -> list[tuple[Any, ...]]:
    rows = []
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        for one in batch:
            timestamp = -1 if one.timestamp is None else one.timestamp
            # aiokafka returns no timestamp type for a missing timestamp.
            kind = one.timestamp_type if one.timestamp_type is not None else min(magic, 1) - 1
            headers = [(key.encode(), value) for key, value in one.headers]
            rows.append(
                (
                    one.offset,
                    timestamp,
                    kind,
                    one.key,
                    one.value,
                    headers,
                    bool(getattr(batch, "is_control_batch", False)),
                )
            )
    return rows


def seen(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    """Return the fields of rows that every reader returns."""
    return [(*row[:6], row.control is not None) for row in rows]


def python_reader(kind: Callable[[bytes], Any], files: Mapping[str, Path]) -> dict[str, list[tuple[Any, ...]] | str]:
    """Read files with the classes of aiokafka or kafka-python."""
    found: dict[str, list[tuple[Any, ...]] | str] = {}
    for name, path in files.items():
        try:
            found[name] = _rows(kind(path.read_bytes()), CASES[list(files).index(name)][0])
        except Exception as error:
            found[name] = repr(error)
    return found


def served(directory: Path, files: Mapping[str, Path]) -> Broker:
    """Start a broker whose logs are these files, one per topic; it checks and indexes them as after a crash."""
    broker = Broker(directory)
    with broker:
        # With log_level 0 the client does not log that the broker stops.
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(name, 1, 1) for name in files]).values():
            future.result(60)
    for name, path in files.items():
        log = broker.log_dir / f"{name}-0"
        for old in log.glob("0*"):
            old.unlink()
        shutil.copy(path, log / f"{0:020d}.log")
    # Without this file, a broker recovers its logs: it checks every batch and rebuilds indexes and producer state.
    (broker.log_dir / ".kafka_cleanshutdown").unlink()
    broker.start()
    return broker


def librdkafka(bootstrap: str, name: str, last: int, isolation: str) -> list[tuple[Any, ...]] | str:
    """Consume a topic up to an offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "kbatch",
            "enable.auto.commit": False,
            "check.crcs": True,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    rows: list[tuple[Any, ...]] = []
    try:
        consumer.assign([TopicPartition(name, 0, 0)])
        while True:
            message = consumer.poll(20)
            if message is None:
                return f"no record after {rows[-1][0] if rows else 'the beginning'}; the last offset is {last}"
            error = message.error()
            if error is not None:
                # librdkafka reports the end of a partition as an error.
                return rows if error.name() == "_PARTITION_EOF" else str(error)
            kind, timestamp = message.timestamp()
            headers = [(key.encode(), value) for key, value in message.headers() or []]
            times = (-1, -1) if kind == 0 else (timestamp, kind - 1)
            rows.append((message.offset(), *times, message.key(), message.value(), headers, False))
    finally:
        consumer.close()


def readers() -> dict[str, str]:
    """Return the readers, each with its version."""
    (clients,) = find_jars(POM).glob("kafka-clients-*.jar")
    kafka = clients.stem.removeprefix("kafka-clients-")
    return {
        f"kafka-clients {kafka}": "Kafka's classes",
        "kafka-clients 2.8.2": "Kafka's classes",
        f"librdkafka {libversion()[0]}": f"consumer of a broker {kafka} that recovered the files",
        f"aiokafka {importlib.metadata.version('aiokafka')}": "its record classes",
        f"kafka-python {importlib.metadata.version('kafka-python')}": "its record classes",
    }


def table(directory: Path) -> dict[tuple[str, int, str], str]:
    """Read every case with every reader; return "ok" or an error by reader, magic and codec."""
    cases = {f"magic{magic}-{codec}": make(magic, codec) for magic, codec in CASES}
    keys = dict(zip(cases, CASES, strict=True))
    files = {}
    for name, case in cases.items():
        files[name] = directory / f"{name}.log"
        files[name].write_bytes(case.data)
    new, old, rdkafka, aio, python = readers()
    results: dict[tuple[str, int, str], str] = {}

    def judge(reader: str, name: str, found: Any, expected: Any) -> None:
        key = (reader, *keys[name])
        refused = REFUSALS.get((reader.split()[0], *keys[name]))
        if isinstance(found, str):
            results[key] = f"not read: {refused}" if refused else found
        elif found == expected:
            results[key] = "ok"
        else:
            at = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), "end")
            detail = "" if at == "end" else f": {str(found[at])[:200]}, expected {str(expected[at])[:200]}"
            results[key] = f"{len(found)} records, expected {len(expected)}; the first difference is at {at}{detail}"

    legacy = directory / "pom.xml"
    legacy.write_text(LEGACY_POM.format("kafka-clients", "2.8.2"))
    for reader, pom in ((new, POM), (old, legacy)):
        for name, found in java(pom, files).items():
            judge(reader, name, found, cases[name].rows)
    for reader, kind in ((aio, AiokafkaRecords), (python, KafkaPythonRecords)):
        for name, rows in python_reader(kind, files).items():
            judge(reader, name, rows, seen(cases[name].rows))
    broker = served(directory / "broker", files)
    try:
        for name, case in cases.items():
            data = [row for row in case.rows if row.control is None]
            last = case.rows[-1].offset
            judge(rdkafka, name, librdkafka(broker.bootstrap, name, last, "read_uncommitted"), seen(data))
            if case.aborted and results[rdkafka, *keys[name]] == "ok":
                kept = [row for row in data if row.value not in case.aborted]
                judge(rdkafka, name, librdkafka(broker.bootstrap, name, last, "read_committed"), seen(kept))
            if (broker.log_dir / f"{name}-0" / f"{0:020d}.log").read_bytes() != case.data:
                results[rdkafka, *keys[name]] = "the broker truncated or changed the file"
    finally:
        broker.stop()
    return results


def markdown(results: Mapping[tuple[str, int, str], str]) -> str:
    """Return the results as a table of readers by magic and codec."""
    columns = list(dict.fromkeys(key[1:] for key in results))
    lines = [
        "| reader | " + " | ".join(f"{magic} {codec}" for magic, codec in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    lines += [
        f"| {reader} | " + " | ".join(results[reader, magic, codec] for magic, codec in columns) + " |"
        for reader in dict.fromkeys(key[0] for key in results)
    ]
    return "\n".join(lines)
