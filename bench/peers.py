"""Other Python libraries that read and write record batches, each used in the fastest way found.

Both libraries have the same interface: `MemoryRecords` over the bytes yields batches, and a batch yields records; a
builder accepts records until it is full. `PEERS` lists the installed libraries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.corpora import Sums

__all__ = ["PEERS", "Peer"]


@dataclass(frozen=True)
class Peer:
    """A client library: its classes that read and build batches. Slow libraries do not run every benchmark."""

    name: str
    memory_records: Callable[[bytes], Any]
    builder: Callable[..., Any]
    legacy_builder: Callable[..., Any]
    slow: bool = False

    def batches(self, data: bytes) -> Any:
        """Yield the batches and verify their CRCs."""
        entries = self.memory_records(data)
        while entries.has_next():
            batch = entries.next_batch()
            if not batch.validate_crc():
                raise AssertionError(f"{self.name} found a wrong CRC at base offset {batch.base_offset}")
            yield batch

    def iterate(self, data: bytes) -> None:
        """Decode every record and drop it: an empty deque is the fastest way to exhaust an iterator."""
        for batch in self.batches(data):
            deque(batch, maxlen=0)

    def encode(self, rows: list[tuple[int, bytes, bytes, list[Any]]], batch_size: int) -> list[bytes]:
        """Build uncompressed batches of (timestamp, key, value, headers) as a producer does: append until full."""
        built = []
        count = len(rows)
        done = 0
        while done < count:
            builder = self.builder(
                magic=2,
                compression_type=0,
                is_transactional=False,
                producer_id=-1,
                producer_epoch=-1,
                base_sequence=-1,
                batch_size=batch_size,
            )
            append = builder.append
            first = done
            while done < count:
                timestamp, key, value, headers = rows[done]
                if append(done - first, timestamp=timestamp, key=key, value=value, headers=headers) is None:
                    break
                done += 1
            built.append(bytes(builder.build()))
        return built

    def convert(self, data: bytes, magic: int, batch_size: int) -> list[bytes]:
        """Decode every batch and build it in the other magic; batches of magic 2 are filled as a producer does."""
        built = []
        if magic == 2:
            records = (record for batch in self.batches(data) for record in batch)
            return self.encode([(record.timestamp, record.key, record.value, []) for record in records], batch_size)
        for batch in self.batches(data):
            builder = self.legacy_builder(magic=magic, compression_type=0, batch_size=4 * batch_size)
            append = builder.append
            for record in batch:
                append(record.offset, timestamp=record.timestamp, key=record.key, value=record.value)
            built.append(bytes(builder.build()))
        return built

    def columns(self, data: bytes) -> tuple[Any, Any, list[bytes | None], list[bytes | None]]:
        """Decode to four columns with one loop and four appends per record."""
        offsets: list[int] = []
        timestamps: list[int] = []
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        add_offset, add_timestamp, add_key, add_value = offsets.append, timestamps.append, keys.append, values.append
        for batch in self.batches(data):
            for record in batch:
                add_offset(record.offset)
                add_timestamp(record.timestamp)
                add_key(record.key)
                add_value(record.value)
        count = len(offsets)
        # For integers, np.fromiter takes two thirds of the time of pa.array, and for timestamps half.
        return np.fromiter(offsets, np.int64, count), np.fromiter(timestamps, np.int64, count), keys, values

    def to_arrow(self, data: bytes, schema: Any) -> Any:
        """Decode to four columns, and build an Arrow table of them with the types in `schema`."""
        import pyarrow as pa

        offsets, timestamps, keys, values = self.columns(data)
        return pa.Table.from_arrays(
            [
                pa.array(offsets),
                pa.array(timestamps).view(schema.field("timestamp").type),
                pa.array(keys, schema.field("key").type),
                pa.array(values, schema.field("value").type),
            ],
            schema=schema,
        )

    def to_pandas(self, data: bytes, schema: Any, dtype_backend: str) -> Any:
        """Build a pandas frame with the columns in `schema`: from objects, or with ``pyarrow`` from an Arrow table."""
        import pandas as pd

        if dtype_backend == "pyarrow":
            return self.to_arrow(data, schema).to_pandas(types_mapper=pd.ArrowDtype)
        offsets, timestamps, keys, values = self.columns(data)
        times = pd.Series(timestamps.view("datetime64[ms]")).dt.tz_localize("UTC")
        # Object arrays, because pandas would check every element of a list to infer its type.
        columns = (offsets, times, np.fromiter(keys, object, len(keys)), np.fromiter(values, object, len(values)))
        return pd.DataFrame(dict(zip(schema.names, columns, strict=True)), copy=False)

    def sums(self, data: bytes) -> Sums:
        """Decode once more, untimed, and sum the records."""
        records = [record for batch in self.batches(data) for record in batch]
        return Sums.of_columns(
            [record.offset for record in records],
            [record.timestamp for record in records],
            [record.key for record in records],
            [record.value for record in records],
            sum(len(record.headers) for record in records),
        )


def installed() -> list[Peer]:
    found = []
    try:
        from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
        from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AiokafkaLegacyBuilder
        from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
    except ImportError:
        pass
    else:
        # Without its C extension, aiokafka is ten times slower and the comparison would be meaningless.
        if any(
            "_crecords" not in used.__module__ for used in (AiokafkaRecords, AiokafkaBuilder, AiokafkaLegacyBuilder)
        ):
            raise RuntimeError("aiokafka has no C extension here, so the comparison would favour kbatch")
        found.append(Peer("aiokafka", AiokafkaRecords, AiokafkaBuilder, AiokafkaLegacyBuilder))
    try:
        from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
        from kafka.record.legacy_records import LegacyRecordBatchBuilder as KafkaPythonLegacyBuilder
        from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords
        from kafka.record.util import crc32c_c
    except ImportError:
        pass
    else:
        if crc32c_c is None:
            raise RuntimeError("kafka-python has no crc32c package here, so the comparison would favour kbatch")
        found.append(Peer("kafka-python", KafkaPythonRecords, KafkaPythonBuilder, KafkaPythonLegacyBuilder, slow=True))
    return found


PEERS = installed()
