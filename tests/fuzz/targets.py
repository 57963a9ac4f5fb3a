"""All targets, with their seeds and mutators."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import batch_targets
import file_targets
import oracle
import protocol_targets
import value_targets
from choices import OPTION_BYTES
from mutator import BytesMutator, mutate_batches

GOLDEN = Path(__file__).parents[1] / "golden"
# Larger inputs are slower and seldom reach more code.
MAX_SEED = 3000
OPTIONS = [bytes(OPTION_BYTES), bytes(range(37, 37 + OPTION_BYTES)), bytes([251, 3, 9, 77, 180, 34])]

Mutator = Callable[[bytes, int, int, BytesMutator], bytes]


@dataclass(frozen=True)
class Target:
    """A function that takes any bytes, and fails where a promise is broken.

    If `batches`, the content is record batches, and the mutator is the one that knows them.
    """

    function: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    batches: bool = False

    def mutate(self, data: bytes, max_size: int, seed: int, mutate_bytes: BytesMutator) -> bytes:
        """Change the options or the content."""
        options = data[:OPTION_BYTES].ljust(OPTION_BYTES, b"\0")
        content = data[OPTION_BYTES:]
        if seed % 16 == 0 or not self.batches:
            return mutate_bytes(data, max_size)
        return options + mutate_batches(content, max_size - OPTION_BYTES, seed, mutate_bytes)


def _golden_batches() -> Iterator[bytes]:
    """Yield the vectors, the beginnings of the logs, and batches of each magic and codec."""
    for path in sorted((GOLDEN / "vectors").glob("*.bin")):
        if path.stat().st_size <= MAX_SEED:
            yield path.read_bytes()
    for path in sorted(GOLDEN.glob("logs/*/*.log")):
        data = path.read_bytes()
        if len(data) <= MAX_SEED:
            yield data
        elif data:
            size = oracle.next_entry(data, 0)
            yield data[: max(size, 100)][:MAX_SEED]
    for codec in ("none", "gzip", "snappy", "snappy-raw", "lz4", "zstd"):
        yield oracle.three(100, codec=codec) + oracle.three(103)
        if codec != "zstd":
            for magic in (0, 1):
                yield oracle.build_message_set([(b"k", b"v" * 30)] * 3, magic=magic, codec=codec, base_offset=7)
    marker = struct.pack(">hi", 0, 0)
    for kind in (0, 1):
        data = oracle.three(0, producer_id=1, producer_epoch=0, base_sequence=0, attributes=0x10)
        record = oracle.encode_record(0, 0, struct.pack(">hh", 0, kind), marker)
        yield data + oracle.build_batch([record], base_offset=3, producer_id=1, producer_epoch=0, attributes=0x30)


def batch_seeds() -> Iterator[bytes]:
    for number, data in enumerate(_golden_batches()):
        yield OPTIONS[number % len(OPTIONS)] + data


def log_seeds() -> Iterator[bytes]:
    yield from batch_seeds()
    for directory in sorted((GOLDEN / "logs").iterdir()):
        for path in sorted(directory.glob("*.log"))[:1]:
            data = path.read_bytes()[:2000]
            for suffix in file_targets.INDEXES:
                index = path.with_suffix(suffix)
                if index.exists():
                    data += index.read_bytes()[: 4 * file_targets.INDEXES[suffix]]
            yield bytes([9, 9, 9, 9, 9, 9]) + data


def state_seeds() -> Iterator[bytes]:
    paths = [*GOLDEN.glob("internal/state/*"), *GOLDEN.glob("logs/*/*.snapshot"), *GOLDEN.glob("logs/*/*.txnindex")]
    for path in sorted(paths):
        for number in range(len(file_targets.STATE)):
            yield bytes([number]) + bytes(OPTION_BYTES - 1) + path.read_bytes()[:MAX_SEED]


def internal_seeds() -> Iterator[bytes]:
    for number, topic in enumerate(("__consumer_offsets-0", "__transaction_state-0", "__cluster_metadata-0")):
        for path in sorted((GOLDEN / "internal" / topic).glob("*.log")):
            for batch in oracle.decode(path.read_bytes()).batches[:40]:
                data = bytes([number]) + bytes(OPTION_BYTES - 1)
                for record in batch.records:
                    key, value = record.key, record.value
                    if max(len(key or b""), len(value or b"")) < 255:
                        data += bytes([255 if key is None else len(key), 255 if value is None else len(value)])
                        data += (key or b"") + (value or b"")
                yield data


def value_seeds() -> Iterator[bytes]:
    texts = [b"\x02", b"\x00\x00\x00\x00\x07\x02", b"\x04\x02\x06abc\x00", bytes(range(30)), b"\x01" * 60]
    for number in range(12):
        content = b"".join(bytes([len(text)]) + text for text in texts) + b"\xff"
        yield bytes([number]) + bytes(OPTION_BYTES - 1) + content


def avro_schema_seeds() -> Iterator[bytes]:
    for schema in value_targets.schema_seeds():
        yield bytes(OPTION_BYTES) + schema + b"\0\x02\x04a\x04\x02\x02\x02b"


def json_seeds() -> Iterator[bytes]:
    texts = [
        b'{"a": 1, "b": "x", "c": 1.5, "d": true, "e": [1, 2], "f": {"x": 1, "y": "2020-01-02T03:04:05Z"}}',
        b'{"a": null, "g": "2020-01-02", "h": "\\u00e9\\ud83d\\ude00", "more": [[], {}]}',
        b'["a", null]',
        b"12345678901234567890",
        b'"text"',
        b"{}",
    ]
    for number in range(2 * len(value_targets.JSON_PARSERS)):
        yield number.to_bytes(OPTION_BYTES, "little") + b"\0".join(texts[number % 3 :])


def protobuf_seeds() -> Iterator[bytes]:
    yield from value_seeds()
    fields = b"".join(bytes([number << 3, 1]) for number in range(1, 16)) + b"\x4a\x02hi"
    for number in range(2):
        yield bytes([number]) + bytes(OPTION_BYTES - 1) + bytes([len(fields)]) + fields


def descriptor_seeds() -> Iterator[bytes]:
    yield bytes(OPTION_BYTES) + value_targets.descriptors()


def text_seeds() -> Iterator[bytes]:
    yield bytes(OPTION_BYTES) + b"a INT, b STRUCT<c: ARRAY<STRING>, d: MAP<STRING, DECIMAL(10, 2)>> NOT NULL"
    yield b"\1" + bytes(OPTION_BYTES - 1) + b"a:>i4,b:>f8,c:(2,3)<u2,d:S5"
    for number in range(8):
        yield bytes([2 + number]) + bytes(OPTION_BYTES - 1) + b"\x08abcdefgh\x05hello\xff"


def message_seeds() -> Iterator[bytes]:
    for number, data in protocol_targets.message_seeds():
        if len(data) <= MAX_SEED:
            yield number.to_bytes(OPTION_BYTES, "little") + data


def request_seeds() -> Iterator[bytes]:
    for path in sorted((GOLDEN / "protocol").glob("*.requests"))[::3]:
        data = path.read_bytes()
        yield b"\2" + bytes(OPTION_BYTES - 1) + data[:MAX_SEED]
        size = int.from_bytes(data[:4], "big")
        yield bytes(OPTION_BYTES) + data[4 : 4 + size]
    for path in sorted((GOLDEN / "protocol").glob("*.responses"))[::3]:
        data = path.read_bytes()
        yield b"\1" + bytes(OPTION_BYTES - 1) + data[4 : 4 + int.from_bytes(data[:4], "big")][:MAX_SEED]


def fetch_seeds() -> Iterator[bytes]:
    for number, batches in enumerate(_golden_batches()):
        if number % 8 == 0:
            yield bytes([number % 13]) + bytes(OPTION_BYTES - 1) + protocol_targets.fetch_seed(batches, 4 + number % 13)


TARGETS = {
    "decode": Target(batch_targets.fuzz_decode, batch_seeds, batches=True),
    "oracle": Target(batch_targets.fuzz_oracle, batch_seeds, batches=True),
    "scan": Target(batch_targets.fuzz_scan, batch_seeds, batches=True),
    "stream": Target(batch_targets.fuzz_stream, batch_seeds, batches=True),
    "committed": Target(batch_targets.fuzz_committed, batch_seeds, batches=True),
    "encode": Target(batch_targets.fuzz_encode, value_seeds),
    "rewrite": Target(batch_targets.fuzz_rewrite, batch_seeds, batches=True),
    "broker": Target(batch_targets.fuzz_broker, batch_seeds, batches=True),
    "log": Target(file_targets.fuzz_log, log_seeds, batches=True),
    "state": Target(file_targets.fuzz_state, state_seeds),
    "internal": Target(file_targets.fuzz_internal, internal_seeds),
    "avro": Target(value_targets.fuzz_avro, value_seeds),
    "avro-schema": Target(value_targets.fuzz_avro_schema, avro_schema_seeds),
    "json": Target(value_targets.fuzz_json, json_seeds),
    "protobuf": Target(value_targets.fuzz_protobuf, protobuf_seeds),
    "protobuf-schema": Target(value_targets.fuzz_protobuf_schema, descriptor_seeds),
    "text": Target(value_targets.fuzz_text, text_seeds),
    "message": Target(protocol_targets.fuzz_message, message_seeds),
    "request": Target(protocol_targets.fuzz_request, request_seeds),
    "fetch": Target(protocol_targets.fuzz_fetch, fetch_seeds),
}
