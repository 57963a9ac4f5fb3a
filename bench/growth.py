"""Hostile inputs for `bench.linear`, each built for a number of entries and read by the code that it is aimed at."""

from __future__ import annotations

import itertools
import json
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["growth_steps"]

TRANSACTIONAL, CONTROL = 0x10, 0x20


def record(delta: int, value: bytes = b"", headers: bytes = b"\0") -> bytes:
    """Encode a record of magic 2 without a key; `headers` is their count and content."""
    body = b"\0\0" + varint(2 * delta) + b"\1" + varint(2 * len(value)) + value + headers
    return varint(2 * len(body)) + body


def varint(number: int) -> bytes:
    """Encode an unsigned varint. A record stores numbers that are not negative as twice their value."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def framed(payload: bytes, count: int, *, codec: int = 0, offset: int = 0, producer: int = -1, flags: int = 0) -> bytes:
    """Frame a payload as a batch of magic 2 with a good checksum."""
    from crc32c import crc32c

    fields = struct.pack(">hiqqqhii", codec | flags, count - 1, 1, 1, producer, 0 if producer >= 0 else -1, -1, count)
    checked = fields + payload
    return struct.pack(">qiibI", offset, 9 + len(checked), 0, 2, crc32c(checked)) + checked


def marker(producer: int, offset: int, *, commit: bool) -> bytes:
    """Build the batch that ends a transaction."""
    key = struct.pack(">hh", 0, commit)
    body = b"\0\0\0" + bytes([2 * len(key)]) + key + b"\x0c" + struct.pack(">hi", 0, 0) + b"\0"
    return framed(bytes([2 * len(body)]) + body, 1, offset=offset, producer=producer, flags=TRANSACTIONAL | CONTROL)


def message(value: bytes, *, magic: int = 0, codec: int = 0, offset: int = 0, crc: int | None = None) -> bytes:
    """Build a message of magic 0 or 1 without a key."""
    body = bytes([magic, codec]) + (bytes(8) if magic else b"") + b"\xff" * 4 + struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body) if crc is None else crc) + body


def gzip_member(content: bytes) -> bytes:
    """Compress one member of a gzip stream."""
    deflate = zlib.compressobj(6, zlib.DEFLATED, 31)
    return deflate.compress(content) + deflate.flush()


def transactions(count: int, *, ended: bool) -> bytes:
    """Build one batch for each of `count` producers, and then a marker that aborts each, if `ended`."""
    payload = record(0, b"v")
    opened = [framed(payload, 1, offset=i, producer=i, flags=TRANSACTIONAL) for i in range(count)]
    markers = [marker(i, count + i, commit=False) for i in range(count)] if ended else []
    return b"".join(opened + markers)


def payloads(count: int) -> dict[str, bytes]:
    """Return batches whose content is expensive: many entries, records, headers, blocks, or errors."""
    import lz4.block
    import zstandard

    one = record(0)
    zstd = zstandard.ZstdCompressor()
    records = b"".join(record(i) for i in range(count))
    snappy_block = struct.pack(">i", 2 + len(one)) + bytes([len(one), 4 * (len(one) - 1)]) + one
    lz4_block = lz4.block.compress(one, store_size=False)
    lz4_blocks = (struct.pack("<I", len(lz4_block)) + lz4_block) * count
    inner = b"".join(message(b"", magic=1, offset=i) for i in range(count))
    bad_inner = b"".join(message(b"", magic=1, offset=i, crc=1) for i in range(count))
    skippable = struct.pack("<II", 0x184D2A50, 0) * count
    header = b"\2h\1"
    return {
        "empty batches": framed(b"", 0) * count,
        "batches of one record": framed(one, 1) * count,
        "smallest records": framed(records, count),
        "smallest records in zstd": framed(zstd.compress(records), count, codec=4),
        "headers of one record": framed(
            record(0, b"", bytes([count & 0x7F | 0x80, count >> 7 & 0x7F | 0x80, count >> 14]) + header * (count // 2)),
            1,
        ),
        "records with headers": framed(record(0, b"", b"\4" + header * 2) * count, count),
        "gzip members": framed(gzip_member(one) * count, count, codec=1),
        "empty gzip members": framed(gzip_member(b"") * count + gzip_member(one), 1, codec=1),
        "snappy chunks": framed(b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + snappy_block * count, count, codec=2),
        "lz4 blocks": framed(b'\x04"M\x18\x60\x40\x82' + lz4_blocks + bytes(4), count, codec=3),
        "zstd frames": framed(zstd.compress(one) * count, count, codec=4),
        "skippable zstd frames": framed(skippable + zstd.compress(one), 1, codec=4),
        "messages of magic 0": message(b"v") * count,
        "messages of magic 1 in gzip": message(gzip_member(inner), magic=1, codec=1, offset=count - 1),
        "inner messages with wrong checksums": message(gzip_member(bad_inner), magic=1, codec=1, offset=count - 1),
        "compressed messages of one message": message(gzip_member(message(b"")), codec=1) * count,
        "record counts that are too large": framed(one, 1 << 30) * count,
        "alternating magics": (framed(one, 1) + message(b"v") + message(b"v", magic=1)) * (count // 3),
        "zeros": bytes(20 * count),
        "noise": random.Random(count).randbytes(20 * count),
        "codecs that fail": (framed(b"\x1f\x8b\x08", 1, codec=1) + framed(b"(", 1, codec=4)) * (count // 2),
        "unknown codecs": framed(one, 1, codec=6) * count,
        "markers": b"".join(marker(i, i, commit=True) for i in range(count)),
    }


def streams(count: int) -> dict[str, Callable[[], Any]]:
    """Return the steps that read streams, transactions and lists of aborted transactions."""
    import kbatch

    data = framed(record(0), 1) * (count // 4)
    few = framed(record(0), 1) * (count // 64)
    bytewise = [few[at : at + 1] for at in range(len(few))]
    large = framed(record(0, bytes(40 * count)), 1)
    pieces = [large[at : at + 64] for at in range(0, len(large), 64)]
    opened, ended = transactions(count, ended=False), transactions(count // 2, ended=True)
    messages = b"".join(message(b"v", offset=i) for i in range(count))
    aborted = [(i, i) for i in range(count)]
    committed: dict[str, Any] = {"isolation": "read_committed", "on_error": "skip"}

    def fed(chunks: list[bytes], **options: Any) -> Callable[[], Any]:
        return lambda: list(kbatch.decode_stream(chunks, **options))

    def cut(data: bytes) -> list[bytes]:
        return [data[at : at + 1024] for at in range(0, len(data), 1024)]

    return {
        "stream of single bytes": fed(bytewise),
        "stream of a large batch in small chunks": fed(pieces),
        "open transactions": lambda: kbatch.decode(opened, **committed),
        "open transactions, stream": fed(cut(opened), **committed),
        "overlapping aborted transactions": lambda: kbatch.decode(ended, **committed),
        "overlapping aborted transactions, stream": fed(cut(ended), **committed),
        "list of aborted transactions": lambda: kbatch.decode(opened, aborted=aborted, **committed),
        "convert messages": lambda: kbatch.convert(messages, 2),
        "recompress small batches": lambda: kbatch.recompress(data, "gzip"),
        "encode headers": lambda: kbatch.encode([b"v"] * count, headers=[[("h", b"v")] * 2] * count),
    }


def messages_and_values(count: int, directory: Path) -> dict[str, Callable[[], Any]]:
    """Return the steps that read messages of the protocol, values, and files of a log directory."""
    import pyarrow as pa

    import kbatch.log
    from kbatch.protocol import MetadataRequest, decode_message, encode_message, split_messages
    from kbatch.values import AvroParser, JsonParser, infer_json
    from kbatch.values.projection import projected, pruned_type

    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="") for _ in range(count)])
    topics = b"".join(encode_message(asked, 12))
    unknown = MetadataRequest(unknown_tags={100 + i: b"" for i in range(count)})
    tagged = b"".join(encode_message(unknown, 12))
    avro = AvroParser({"type": "array", "items": "null"})
    blocks = pa.array([b"\2" * count + b"\0"], pa.binary())
    wide = json.dumps({f"f{i}": i for i in range(count)}).encode()
    parser = JsonParser(pa.struct({"f0": pa.int64()}))
    pair = pa.struct({"f0": pa.int64(), "f1": pa.list_(pa.string())})
    part = projected(JsonParser(pair), pruned_type(pair, [("f0",)]))
    hidden = json.dumps({"f0": 1, "f1": ["\u00e9"] * count}).encode()
    directory.mkdir()
    epochs = directory / "leader-epoch-checkpoint"
    epochs.write_text(f"0\n{count}\n" + "".join(f"{i} {i}\n" for i in range(count)))
    index = directory / "0.txnindex"
    index.write_bytes(b"".join(struct.pack(">hqqqq", 0, i, i, i, i) for i in range(count)))

    return {
        "elements of an array": lambda: decode_message(MetadataRequest, topics, 12),
        "tagged fields": lambda: decode_message(MetadataRequest, tagged, 12),
        "empty protocol messages": lambda data=bytes(4 * count): list(split_messages(data)),
        "Avro blocks": lambda: avro.parse(blocks),
        "JSON fields": lambda: parser.parse(pa.array([wide], pa.binary())),
        "JSON fields that are not requested": lambda: part.parse(pa.array([hidden, wide], pa.binary())),
        "JSON fields, inferred": lambda: infer_json([wide]),
        "leader epochs": lambda: kbatch.log.read_leader_epochs(epochs),
        "entries of a transaction index": lambda: kbatch.log.read_transaction_index(index),
    }


def schemas(count: int) -> dict[str, Callable[[], Any]]:
    """Return the steps that compile schemas with up to `count` definitions, and read a value with them."""
    import pyarrow as pa
    from google.protobuf import descriptor_pb2

    from kbatch.values import AvroParser, JsonParser, ProtobufParser
    from kbatch.values.ddl import parse_ddl

    empty = pa.array([b""], pa.binary())

    def avro_record(*fields: dict[str, Any], namespace: str = "") -> dict[str, Any]:
        return {"type": "record", "name": "r", "namespace": namespace, "fields": list(fields)}

    def default_of(kind: Any, default: Any) -> Callable[[], Any]:
        reader = avro_record({"name": "a", "type": kind, "default": default})
        return lambda: AvroParser(avro_record(), reader_schema=reader).parse(empty)

    enums = [{"type": "enum", "name": f"e{i}", "symbols": ["a"]} for i in range(count)]
    namespaced = avro_record(*({"name": f"f{i}", "type": each} for i, each in enumerate(enums)), namespace="n" * count)
    symbols = {"type": "enum", "name": "e", "symbols": [f"s{i}" for i in range(count)]}
    used = avro_record(*({"name": f"f{i}", "type": symbols if i == 0 else "e"} for i in range(count // 8)))

    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="f.proto", package="p", syntax="proto3")
    enum, message = file.enum_type.add(name="E"), file.message_type.add(name="M")
    for i in range(count):
        enum.value.add(name=f"v{i}", number=i)
    for i in range(count // 8):
        message.field.add(name=f"f{i}", number=i + 1, type=14, label=1, type_name=".p.E")
    descriptors = files.SerializeToString()
    ddl = f"`{'n' * 100 * count}` struct<{','.join(f'f{i}: int' for i in range(count))}>"

    return {
        "Avro enums in a long namespace": lambda: AvroParser(namespaced),
        "Avro enum of many fields": lambda: AvroParser(used).parse(empty),
        "Avro default of many symbols": default_of({"type": "array", "items": symbols}, [f"s{count - 1}"] * count),
        "Avro default of a union": default_of([*enums, "string"], "x" * count),
        "Protobuf enum of many fields": lambda: ProtobufParser(descriptors, "p.M").parse(empty),
        "DDL with a long name": lambda: JsonParser(parse_ddl(ddl), "keep").parse(pa.array([b"{}"])),
    }


def write_files(directory: Path, segments: dict[int, bytes], **others: bytes) -> Path:
    """Write the segments of a log by base offset; `others` are files of the first segment by suffix."""
    directory.mkdir(parents=True)
    for base, data in segments.items():
        (directory / f"{base:020}.log").write_bytes(data)
    for suffix, data in others.items():
        (directory / f"{min(segments):020}.{suffix}").write_bytes(data)
    return directory


def snapshot(count: int) -> bytes:
    """Build a producer snapshot in which the producers 0 to `count` - 1 have open transactions."""
    from crc32c import crc32c

    entries = [struct.pack(">qhiqiqiq", i, 0, 0, i, 0, 1, 0, i) for i in range(count)]
    checked = struct.pack(">i", count) + b"".join(entries)
    return struct.pack(">hI", 1, crc32c(checked)) + checked


def logs(count: int, directory: Path) -> dict[str, Callable[[], Any]]:
    """Return the steps that read logs with their index files, and write logs, of up to 8 times `count` entries."""
    import kbatch
    from kbatch.log.check.verification import verify_log

    one, noise = record(0, b"v"), b"\xff" * 20
    size = len(framed(one, 1)) + len(noise)
    lossy = b"".join(framed(one, 1, offset=2 * i) + noise for i in range(count // 2))
    index = b"".join(struct.pack(">ii", i, size * i // 16) for i in range(8 * count))
    lost = kbatch.Log(write_files(directory / "lost-0", {0: lossy, 2 * count: b""}, index=index))

    gaps = b"".join(
        kbatch.encode([b"v"], base_offset=3 * i, producer_id=5, producer_epoch=0, base_sequence=7 * i)
        for i in range(8 * count)
    )
    unsequenced = kbatch.Log(write_files(directory / "gaps-0", {0: gaps}))

    back_and_forth = (framed(one, 1) + noise + framed(one, 1, offset=10 * count) + noise) * (count // 16)
    aborts = b"".join(struct.pack(">hqqqq", 0, 1, i, i + 1, 0) for i in range(1, 10 * count - 2, 20))
    indexed = kbatch.Log(write_files(directory / "indexed-0", {0: back_and_forth}, txnindex=aborts))

    small = {
        i: b"".join(framed(one, 1, offset=i + j, producer=i + j) for j in range(8)) for i in range(0, 3 * count, 8)
    }
    producers = kbatch.Log(write_files(directory / "producers-0", small))
    outputs = (directory / f"out-{i}" / "producers-0" for i in itertools.count())

    def compacted() -> Any:
        out = next(outputs)
        out.parent.mkdir()
        return kbatch.log.compact_log(producers, out, include_active=True)

    open_count = 3 * count
    ends = {base: framed(one, 1, offset=base) for base in (open_count, open_count + 1)}
    path = write_files(directory / "open-0", {0: transactions(open_count, ended=False)} | ends)
    for base in ends:
        (path / f"{base:020}.snapshot").write_bytes(snapshot(open_count))
    opened = kbatch.Log(path)

    return {
        "index entries and losses": lambda: verify_log(lost.segments),
        "missing sequences and offsets": lambda: verify_log(unsequenced.segments, sequences=True),
        "descending offsets and a transaction index": lambda: indexed.transactions(on_error="skip"),
        "producers of small segments": compacted,
        "open transactions of a snapshot": lambda: list(
            opened.tables(start_offset=open_count + 1, isolation="read_committed")
        ),
    }


def growth_steps(count: int, directory: Path) -> dict[str, Callable[[], Any]]:
    """Return one step for each input of about `count` entries; files are in `directory`, which must not exist."""
    import kbatch

    def decoded(data: bytes) -> Callable[[], Any]:
        return lambda: kbatch.decode(data, on_error="skip")

    steps = {name: decoded(data) for name, data in payloads(count).items()}
    steps |= streams(count) | messages_and_values(count, directory) | schemas(count)
    return steps | logs(count // 4, directory / "logs")
