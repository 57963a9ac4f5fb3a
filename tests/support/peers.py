"""Random batches and message sets, built and read by the oracle, aiokafka and kafka-python."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import oracle
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.legacy_records import LegacyRecordBatch as AiokafkaSet
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AiokafkaSetBuilder
from hypothesis import strategies as st
from oracle import Record

with warnings.catch_warnings():
    # kafka-python reads its schemas through a function that importlib.resources has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
    from kafka.record.legacy_records import LegacyRecordBatch as KafkaPythonSet
    from kafka.record.legacy_records import LegacyRecordBatchBuilder as KafkaPythonSetBuilder

__all__ = [
    "BUILDERS",
    "CONTENT",
    "HEADER",
    "NUMBERS",
    "SET_BUILDERS",
    "AiokafkaBatch",
    "AiokafkaSet",
    "Input",
    "KafkaPythonBatch",
    "KafkaPythonSet",
    "SetInput",
    "as_appended",
    "as_stored",
    "build_set_with",
    "build_set_with_oracle",
    "build_with",
    "build_with_oracle",
    "entries_of",
    "expected_of_set",
    "expected_records",
    "inputs",
    "read_set_with",
    "read_with",
    "set_inputs",
]


class Input(NamedTuple):
    """The content of a batch, with only timestamps, headers and offset gaps that all three builders can write."""

    codec: str
    base_offset: int
    deltas: list[int]
    timestamps: list[int]
    contents: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]
    log_append_time: bool
    max_timestamp: int
    producer_id: int
    base_sequence: int


NUMBERS = st.integers(-(2**31), 2**31 - 1)


CONTENT = st.one_of(
    st.none(),
    st.just(b""),
    st.binary(max_size=80),
    # Long values repeat a few bytes, so that they compress and are cheap to generate.
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=20), st.integers(1, 3000)),
)


HEADER = st.tuples(st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=70)))


@st.composite
def inputs(draw: st.DrawFn) -> Input:
    count = draw(st.integers(1, 12))
    steps = draw(st.lists(st.integers(1, 300), min_size=count, max_size=count))
    first = steps[0]
    start = draw(st.integers(0, 2**41))
    spread = draw(st.lists(st.integers(-(2**36), 2**36), min_size=count, max_size=count))
    return Input(
        codec=draw(st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"])),
        base_offset=draw(st.one_of(st.integers(0, 1000), st.integers(0, 2**62))),
        deltas=[sum(steps[: i + 1]) - first for i in range(count)],
        timestamps=[max(start + s, 0) for s in spread],
        contents=draw(
            st.lists(st.tuples(CONTENT, CONTENT, st.lists(HEADER, max_size=4)), min_size=count, max_size=count)
        ),
        log_append_time=draw(st.booleans()),
        max_timestamp=draw(st.integers(0, 2**42)),
        producer_id=draw(st.sampled_from([-1, 0, 77, 2**40])),
        base_sequence=draw(st.sampled_from([0, 5, 2**31 - 2])),
    )


def build_with_oracle(made: Input) -> bytes:
    records = [
        oracle.encode_record(
            delta, timestamp - made.timestamps[0], key, value, [(name.encode(), data) for name, data in headers]
        )
        for delta, timestamp, (key, value, headers) in zip(made.deltas, made.timestamps, made.contents, strict=True)
    ]
    return oracle.build_batch(
        records,
        codec=made.codec,
        base_timestamp=made.timestamps[0],
        max_timestamp=max(made.timestamps),
        last_offset_delta=made.deltas[-1],
        producer_id=made.producer_id,
        producer_epoch=-1 if made.producer_id < 0 else 3,
        base_sequence=-1 if made.producer_id < 0 else made.base_sequence,
    )


def build_with(builder_class: Callable[..., Any], made: Input) -> bytes:
    builder = builder_class(
        magic=2,
        compression_type=oracle.CODECS[made.codec],
        is_transactional=False,
        producer_id=made.producer_id,
        producer_epoch=-1 if made.producer_id < 0 else 3,
        base_sequence=-1 if made.producer_id < 0 else made.base_sequence,
        batch_size=1 << 24,
    )
    for delta, timestamp, (key, value, headers) in zip(made.deltas, made.timestamps, made.contents, strict=True):
        assert builder.append(delta, timestamp=timestamp, key=key, value=value, headers=headers) is not None
    return bytes(builder.build())


def as_appended(batch: bytes, made: Input) -> bytes:
    """Set the base offset as a broker does, and with LogAppendTime also the timestamp type and time (CRC-R8)."""
    batch = struct.pack(">q", made.base_offset) + batch[8:]
    if made.log_append_time:
        (attributes,) = struct.unpack_from(">h", batch, 21)
        batch = batch[:21] + struct.pack(">h", attributes | oracle.LOG_APPEND_TIME) + batch[23:]
        batch = batch[:35] + struct.pack(">q", made.max_timestamp) + batch[43:]
    return oracle.with_crc(batch)


def expected_records(made: Input) -> list[Record]:
    """Return the records that a decode of the batch must return."""
    return [
        Record(
            made.base_offset + delta,
            made.max_timestamp if made.log_append_time else timestamp,
            -1 if made.producer_id < 0 else oracle.sequence(made.base_sequence, delta),
            key,
            value,
            tuple((name.encode(), data) for name, data in headers),
        )
        for delta, timestamp, (key, value, headers) in zip(made.deltas, made.timestamps, made.contents, strict=True)
    ]


def read_with(batch_class: Callable[..., Any], batch: bytes) -> list[Record]:
    """Decode with a peer, which returns no sequences."""
    peer = batch_class(batch)
    assert peer.validate_crc()
    return [
        Record(r.offset, r.timestamp, -1, r.key, r.value, tuple((name.encode(), data) for name, data in r.headers))
        for r in peer
    ]


BUILDERS: dict[str, Callable[[Input], bytes]] = {
    "oracle": build_with_oracle,
    "aiokafka": lambda made: build_with(AiokafkaBuilder, made),
    "kafka-python": lambda made: build_with(KafkaPythonBuilder, made),
}


class SetInput(NamedTuple):
    """The content of a message set: uncompressed messages, or one compressed wrapper of them."""

    magic: int
    codec: str
    base_offset: int
    deltas: list[int]
    timestamps: list[int]
    contents: list[tuple[bytes | None, bytes | None]]
    append_time: int | None


@st.composite
def set_inputs(draw: st.DrawFn) -> SetInput:
    count = draw(st.integers(1, 12))
    steps = draw(st.lists(st.integers(1, 300), min_size=count, max_size=count))
    return SetInput(
        magic=draw(st.sampled_from([0, 1])),
        codec=draw(st.sampled_from(["none", "gzip", "snappy", "lz4"])),
        base_offset=draw(st.one_of(st.integers(0, 1000), st.integers(0, 2**62))),
        deltas=[sum(steps[: i + 1]) - steps[0] for i in range(count)],
        timestamps=draw(st.lists(st.integers(-1, 2**42), min_size=count, max_size=count)),
        contents=draw(st.lists(st.tuples(CONTENT, CONTENT), min_size=count, max_size=count)),
        append_time=draw(st.one_of(st.none(), st.integers(0, 2**42))),
    )


def build_set_with_oracle(made: SetInput) -> bytes:
    return oracle.build_message_set(**made._asdict())


def build_set_with(builder_class: Callable[..., Any], made: SetInput) -> bytes:
    """Build with a peer, and set the wrapper's offset, timestamp and timestamp type, as a broker does."""
    builder = builder_class(magic=made.magic, compression_type=oracle.CODECS[made.codec], batch_size=1 << 24)
    plain = made.codec == "none"
    for delta, timestamp, (key, value) in zip(made.deltas, made.timestamps, made.contents, strict=True):
        offset = delta if made.magic and not plain else made.base_offset + delta
        stamp = made.append_time if plain and made.append_time is not None else timestamp
        assert builder.append(offset, timestamp=stamp, key=key, value=value) is not None
    built = bytes(builder.build())
    if plain:
        return b"".join(as_stored(entry, made, None) for entry in entries_of(built))
    return as_stored(built, made, made.base_offset + made.deltas[-1])


def as_stored(entry: bytes, made: SetInput, offset: int | None) -> bytes:
    changed = bytearray(entry)
    if offset is not None:
        struct.pack_into(">q", changed, 0, offset)
        if made.magic:
            latest = max(made.timestamps) if made.append_time is None else made.append_time
            struct.pack_into(">q", changed, 18, latest)
    if made.magic and made.append_time is not None:
        changed[17] |= oracle.LOG_APPEND_TIME
    struct.pack_into(">I", changed, 12, zlib.crc32(changed[16:]))
    return bytes(changed)


def entries_of(data: bytes) -> list[bytes]:
    entries = []
    while data:
        size = oracle.next_entry(data, 0)
        entries.append(data[:size])
        data = data[size:]
    return entries


def expected_of_set(made: SetInput) -> list[Record]:
    """Return the records that a decode of the message set must return."""
    return [
        Record(
            made.base_offset + delta,
            -1 if made.magic == 0 else timestamp if made.append_time is None else made.append_time,
            -1,
            key,
            value,
        )
        for delta, timestamp, (key, value) in zip(made.deltas, made.timestamps, made.contents, strict=True)
    ]


def read_set_with(set_class: Callable[..., Any], data: bytes) -> list[Record]:
    """Decode with a peer, for which every entry is a batch. In magic 0, it returns no timestamps."""
    records = []
    for entry in entries_of(data):
        peer = set_class(entry, entry[16])
        assert peer.validate_crc()
        records += [Record(r.offset, -1 if r.timestamp is None else r.timestamp, -1, r.key, r.value) for r in peer]
    return records


SET_BUILDERS: dict[str, Callable[[SetInput], bytes]] = {
    "oracle": build_set_with_oracle,
    "aiokafka": lambda made: build_set_with(AiokafkaSetBuilder, made),
    "kafka-python": lambda made: build_set_with(KafkaPythonSetBuilder, made),
}
