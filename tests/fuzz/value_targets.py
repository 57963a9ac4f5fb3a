"""Targets that parse values and schemas: Avro, JSON, Protobuf, structs and DDL."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
from choices import Choices, split
from google.protobuf import descriptor_pb2

from kbatch.kernels.murmur import murmur2
from kbatch.values import AvroParser, FixedParser, JsonParser, Parsed, ProtobufParser, infer_json
from kbatch.values.ddl import parse_ddl
from kbatch.values.parsed import selected_fields
from kbatch.values.projection import projected, pruned_type
from kbatch.values.protobuf import read_descriptors

MAX_VALUES = 50


def some_values(data: bytes) -> pa.Array:
    """Cut bytes into values; a length of 255 is a null."""
    choices = Choices(data)
    values: list[bytes | None] = [b"", None]
    while choices.left() and len(values) < MAX_VALUES:
        size = choices.number(1)
        values.append(None if size == 255 else choices.take(size))
    return pa.array(values, pa.binary())


def check_parsed(parser: Any, column: pa.Array) -> None:
    """Parse a column; bad rows are null or lack fields, and every value is parsed as if it were the only one."""
    parsed = parser.parse(column)
    assert len(parsed.values) == len(column)
    assert parsed.values.type == parser.type
    assert len(parsed.bad) == len(parsed.errors)
    check_projected(parser, column, parsed)
    bad = set(parsed.bad.tolist())
    chunks = parsed.values.chunks if isinstance(parsed.values, pa.ChunkedArray) else [parsed.values]
    values = pa.chunked_array(chunks, parser.type)
    values.validate(full=True)
    for row in sorted(bad | set(range(min(4, len(column))))):
        assert (row not in bad) or not values[row].is_valid or getattr(parser, "unknown", None) == "keep"
        alone = parser.parse(column[row : row + 1])
        assert (len(alone.bad) == 1) == (row in bad), row
        assert alone.values[0].equals(values[row]) or "double" in str(parser.type) or "float" in str(parser.type)


def check_projected(parser: Any, column: pa.Array, parsed: Parsed) -> None:
    """Parse half of the fields: the same values are bad for the same reasons, and the others have the same fields."""
    if not pa.types.is_struct(parser.type) or not parser.type.num_fields:
        return
    for first in (0, 1):
        kind = pruned_type(parser.type, [(each.name,) for each in list(parser.type)[first::2]])
        part = projected(parser, kind).parse(column)
        assert (part.bad.tolist(), part.errors) == (parsed.bad.tolist(), parsed.errors)
        part.values.validate(full=True)
        expected = selected_fields(parsed.values, kind)
        assert part.values.to_string(window=1 << 20) == expected.to_string(window=1 << 20)


# Schemas with every type, also below arrays, maps and unions.
AVRO = [
    {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": f"f{i}", "type": kind}
            for i, kind in enumerate(
                [
                    "null",
                    "boolean",
                    "int",
                    "long",
                    "float",
                    "double",
                    "bytes",
                    "string",
                    ["null", "string"],
                    {"type": "fixed", "name": "x", "size": 5},
                    {"type": "enum", "name": "e", "symbols": ["A", "B", "C"]},
                ]
            )
        ],
    },
    {"type": "array", "items": ["null", {"type": "map", "values": {"type": "array", "items": "null"}}]},
    {"type": "map", "values": ["null", "long", "string", {"type": "array", "items": "bytes"}]},
    {
        "type": "record",
        "name": "times",
        "fields": [
            {"name": "d", "type": {"type": "int", "logicalType": "date"}},
            {"name": "m", "type": {"type": "int", "logicalType": "time-millis"}},
            {"name": "u", "type": {"type": "long", "logicalType": "time-micros"}},
            {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "n", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "x", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}},
            {"name": "i", "type": {"type": "string", "logicalType": "uuid"}},
        ],
    },
    "bytes",
    "long",
]
AVRO_PARSERS = [AvroParser(schema) for schema in AVRO] + [AvroParser({7: "int", 258: "long"}, "confluent", "double")]


def fuzz_avro(data: bytes) -> None:
    """Parse values of schemas with every type."""
    choices, data = split(data)
    check_parsed(choices.of(AVRO_PARSERS), some_values(data))


def fuzz_avro_schema(data: bytes) -> None:
    """Compile a schema, or refuse it with ValueError, and parse values with it."""
    choices, data = split(data)
    text, _, values = data.partition(b"\0")
    try:
        parser = AvroParser(text.decode(), choices.of(["none", "confluent"]))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return
    check_parsed(parser, some_values(values))


JSON_TYPES = [
    pa.struct(
        {
            "a": pa.int64(),
            "b": pa.string(),
            "c": pa.float64(),
            "d": pa.bool_(),
            "e": pa.list_(pa.int32()),
            "f": pa.struct({"x": pa.int8(), "y": pa.timestamp("ms", "UTC")}),
            "g": pa.date32(),
            "h": pa.binary(),
        }
    ),
    pa.list_(pa.string()),
    pa.int64(),
    pa.string(),
]
JSON_PARSERS = [JsonParser(kind, unknown) for kind in JSON_TYPES for unknown in ("ignore", "bad", "keep")]  # type: ignore[arg-type]


def fuzz_json(data: bytes) -> None:
    """Parse JSON texts, and infer their type."""
    choices, data = split(data)
    texts = data.split(b"\0")[:MAX_VALUES]
    column = pa.array([None, *texts], pa.binary())
    if choices.of([True, True, False]):
        check_parsed(choices.of(JSON_PARSERS), column)
        return
    try:
        kind = infer_json(texts)
    except (ValueError, TypeError):
        return
    JsonParser(kind).parse(column)


def descriptors() -> bytes:
    """Return a descriptor set with a message of every type."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="m.proto", package="t", syntax="proto3")
    message = file.message_type.add(name="All")
    # Types 10 and 11 are groups and messages, 14 is an enum.
    for kind in [*range(1, 10), 12, 13, *range(15, 19)]:
        message.field.add(name=f"one{kind}", number=kind, type=kind, label=1)
        message.field.add(name=f"many{kind}", number=kind + 20, type=kind, label=3)
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="text", number=1, type=9, label=1)
    for number, label in ((50, 1), (51, 3)):
        message.field.add(name=f"inner{number}", number=number, type=11, type_name=".t.Inner", label=label)
    return files.SerializeToString()


PROTOBUF_PARSERS = [ProtobufParser(descriptors(), "t.All", framing) for framing in ("none", "confluent")]  # type: ignore[arg-type]


def fuzz_protobuf(data: bytes) -> None:
    """Parse messages with a field of every type."""
    choices, data = split(data)
    check_parsed(choices.of(PROTOBUF_PARSERS), some_values(data))


def fuzz_protobuf_schema(data: bytes) -> None:
    """Read a descriptor set, or refuse it with ValueError."""
    _, data = split(data)
    try:
        parser = ProtobufParser(read_descriptors(data))
    except (ValueError, TypeError):
        return
    parser.parse(pa.array([b"", b"\x08\x01", None], pa.binary()))


FIXED_PARSERS = [
    FixedParser(dtype) for dtype in (">i8", "a:>i4,b:>f8", "S5", [("x", "<i2", (2, 3)), ("y", "?"), ("z", "V3")])
]


def fuzz_text(data: bytes) -> None:
    """Read a DDL schema, a dtype, fixed-size values, and hash keys."""
    choices, data = split(data)
    match choices.of(["ddl", "dtype", "fixed", "murmur"]):
        case "ddl":
            try:
                parse_ddl(data.decode())
            except ValueError:
                return
        case "dtype":
            try:
                parser = FixedParser(data.decode())
            except (ValueError, TypeError):
                return
            if parser.dtype.itemsize < 10_000:  # type: ignore[union-attr]
                check_parsed(parser, pa.array([b"", bytes(parser.dtype.itemsize)], pa.binary()))  # type: ignore[union-attr]
        case "fixed":
            check_parsed(choices.of(FIXED_PARSERS), some_values(data))
        case _:
            values = some_values(data).drop_null()
            offsets = np.frombuffer(values.buffers()[1], np.int32)[: len(values) + 1].astype(np.int64)
            content = np.frombuffer(values.buffers()[2] or b"", np.uint8)
            murmur2(offsets, content, np.zeros(len(values), np.uint32))


def schema_seeds() -> list[bytes]:
    """Return the text of each Avro schema above."""
    return [json.dumps(schema).encode() for schema in AVRO]
