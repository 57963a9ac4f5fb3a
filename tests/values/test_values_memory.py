"""The memory of parsed values is bounded: a short value with many items, and many rows of a type with many fields."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
from support.bombs import measured, varint

import kbatch
from kbatch import LimitExceededError, Limits
from kbatch.values import AvroParser, FixedParser, JsonParser, ParsedValues, Parser, ProtobufParser, TextParser
from kbatch.values.json import _most_items
from kbatch.values.parsed import VALUES_PART_MEMORY, parse_column

MIB = 1 << 20
FIELDS = 2000
LIMIT = 144 * MIB
TIGHT_LIMIT = 32 * MIB

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

WIDE = {
    "type": "record",
    "name": "Wide",
    "fields": [{"name": f"f{i}", "type": ["null", "long"]} for i in range(FIELDS)],
}
NULLS = {"type": "record", "name": "Nulls", "fields": [{"name": f"f{i}", "type": "null"} for i in range(500)]}
WIDE_TYPE = pa.struct([(f"f{i}", pa.int64()) for i in range(FIELDS)])


def protobuf() -> ProtobufParser:
    """A message with a repeated message of many fields, repeated numbers, and repeated enums with a long name."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    kind = descriptor_pb2.FieldDescriptorProto
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="a.proto", syntax="proto3")
    names = file.enum_type.add(name="Names")
    names.value.add(name="N" * 10_000, number=0)
    outer = file.message_type.add(name="Outer")
    outer.field.add(name="wide", number=1, label=3, type=kind.TYPE_MESSAGE, type_name=".Wide")
    outer.field.add(name="numbers", number=2, label=3, type=kind.TYPE_INT32)
    outer.field.add(name="enums", number=3, label=3, type=kind.TYPE_ENUM, type_name=".Names")
    outer.field.add(name="inner", number=4, label=1, type=kind.TYPE_MESSAGE, type_name=".Inner")
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="wide", number=1, label=3, type=kind.TYPE_MESSAGE, type_name=".Wide")
    wide = file.message_type.add(name="Wide")
    for i in range(FIELDS):
        wide.field.add(name=f"f{i}", number=i + 1, label=1, type=kind.TYPE_INT64)
    return ProtobufParser(files.SerializeToString(), "Outer")


def of_kind(kind: str) -> tuple[Parser, bytes, bytes]:
    """Return a parser, a hostile value, and a good one."""
    nullable = ["null", WIDE]
    items = 200_000
    if kind.startswith("avro"):
        item, count = (nullable, items) if kind == "avro union" else (NULLS, 1 << 31)
        if kind == "avro null":
            item = "null"
        elif kind == "avro empty record":
            item = {"type": "record", "name": "Empty", "fields": []}
        elif kind == "avro nested":
            item, count = {"type": "array", "items": nullable}, 1
        body = varint(2 * items) + b"\0" * items + b"\0" if kind == "avro nested" else b"\0" * items
        schema = {"type": "array", "items": item}
        one = {"avro union": b"\0", "avro nested": b"\x02\0\0"}.get(kind, b"")
        return AvroParser(schema), varint(2 * count) + body + b"\0", b"\x02" + one + b"\0"
    if kind.startswith("json"):
        text = {"json objects": "{}", "json nulls": "null"}.get(kind, "{}")
        if kind == "json nested":
            parser = JsonParser(pa.struct([("a", pa.struct([("b", pa.list_(WIDE_TYPE))]))]))
            return parser, (f'{{"a":{{"b":[{",".join([text] * items)}]}}}}').encode(), b'{"a":{"b":[{"f1":1}]}}'
        if kind == "json kept":
            # Every number becomes null.
            parser = JsonParser(pa.list_(WIDE_TYPE), "keep")
            return parser, f"[{','.join(['1'] * items)}]".encode(), b'[{"f1":1},null]'
        return JsonParser(pa.list_(WIDE_TYPE)), f"[{','.join([text] * items)}]".encode(), b'[{"f1":1},null]'
    parser = protobuf()
    body = {
        "protobuf messages": b"\x0a\0" * items,
        "protobuf packed enums": b"\x1a" + varint(items) + b"\0" * items,
        "protobuf nested": b"\x22" + varint(2 * items) + b"\x0a\0" * items,
    }[kind]
    return parser, body, b"\x0a\0\x12\x02\x01\x02\x18\0"


KINDS = [
    "avro union",
    "avro nested",
    "avro null",
    "avro empty record",
    "avro null record",
    "json objects",
    "json nulls",
    "json nested",
    "json kept",
    "protobuf messages",
    "protobuf nested",
    "protobuf packed enums",
]


@linux
@pytest.mark.parametrize("kind", KINDS)
def test_a_short_value_with_large_columns_is_bad_and_others_are_parsed(kind: str) -> None:
    """200,000 items of 2,000 fields in 1 MB, and counts of 2**31 items without bytes."""
    parser, hostile, good = of_kind(kind)
    column = pa.array([good, hostile, None, good], pa.binary())
    parse_column(parser, [column.slice(0, 1)])

    def call() -> list[Any]:
        values, bad, errors = parse_column(parser, [column])[:3]
        assert values.is_valid().to_pylist() == [True, False, False, True]
        assert values[0].as_py() == values[3].as_py()
        return [bad.tolist(), errors]

    increase, result = measured(call)
    assert result[0] == [1], result
    assert "bytes of memory as columns" in result[1][0] or "a count of items that exceeds" in result[1][0]
    assert increase <= VALUES_PART_MEMORY * 13 // 10


ROWS = {
    "avro": (AvroParser(["null", WIDE]), b"\0"),
    "avro default": (
        AvroParser(
            {"type": "record", "name": "R", "fields": []},
            reader_schema={
                "type": "record",
                "name": "R",
                "fields": [{"name": "a", "type": "string", "default": "x" * 20_000}],
            },
        ),
        b"",
    ),
    "avro enum": (AvroParser({"type": "enum", "name": "E", "symbols": ["x" * 20_000]}), b"\0"),
    "json": (JsonParser(WIDE_TYPE), b"{}"),
}


@linux
@pytest.mark.parametrize("kind", [*ROWS, "protobuf"])
def test_many_rows_of_many_fields_are_refused_at_the_limit_of_the_table(kind: str) -> None:
    """20,000 values of 16 to 20 KB in columns take 320 MiB; smaller slices of the table are parsed."""
    if kind == "protobuf":
        parser: Parser = ProtobufParser(protobuf().descriptors, "Wide")
        value = b""
    else:
        parser, value = ROWS[kind]
    data = kbatch.encode([value] * 20_000, timestamps=0)
    table = kbatch.decode(data, limits=Limits(max_table_bytes=len(data) + LIMIT))
    parsed = ParsedValues.of(table[:2000], "value", parser)
    assert parsed.bad.tolist() == []
    increase, result = measured(lambda: len(ParsedValues.of(table, "value", parser).values))
    assert isinstance(result, str), result
    assert "LimitExceededError" in result
    assert "max_table_bytes=...), or take a slice of the table" in result
    assert increase <= LIMIT * 13 // 10


@linux
def test_short_values_of_a_large_struct_are_bad_in_bounded_memory() -> None:
    column = pa.array([b""] * 50_000)
    increase, bad = measured(lambda: len(parse_column(FixedParser("S20000"), [column])[1]))
    assert bad == 50_000
    assert increase <= VALUES_PART_MEMORY * 13 // 10


def framed(count: int) -> list[bytes]:
    return [b"\0\0\0\0" + bytes([1 + i % 2]) + b"\x14" + b"x" * 10 for i in range(count)]


# A parser, its values for a count, and two counts: the smaller one fits 32 MiB.
TIGHT: dict[str, tuple[Parser, Callable[[int], list[bytes]], tuple[int, int]]] = {
    "avro boolean": (AvroParser("boolean"), lambda n: [b"\1"] * n, (1_500_000, 3_000_000)),
    "avro enum": (
        AvroParser({"type": "enum", "name": "E", "symbols": ["ab", "cd"]}),
        lambda n: [b"\2"] * n,
        (900_000, 2_000_000),
    ),
    "avro resolved": (AvroParser("int", reader_schema="double"), lambda n: [b"\2"] * n, (700_000, 2_000_000)),
    "avro of two schemas": (AvroParser({1: "string", 2: "string"}, "confluent"), framed, (250_000, 800_000)),
    "avro without a prefix": (AvroParser("long", "confluent"), lambda n: [b""] * n, (80_000, 500_000)),
    "bad avro": (AvroParser("long"), lambda n: [b""] * n, (100_000, 500_000)),
    "json numbers": (JsonParser(pa.list_(pa.int64())), lambda n: [b"[" + b"1," * n + b"1]"], (500_000, 2_000_000)),
    "bad json": (JsonParser(pa.int64()), lambda n: [b"{"] * n, (80_000, 500_000)),
    "fixed": (FixedParser("S100"), lambda n: [b"x" * 100] * (n - 1) + [b""], (140_000, 300_000)),
    "bad fixed": (FixedParser(">i8"), lambda n: [b""] * n, (100_000, 500_000)),
    "text": (TextParser(), lambda n: [b"x" * 10] * (n - 1) + [b"\xff"], (200_000, 500_000)),
    "bad text": (TextParser(), lambda n: [b"\xff"] * n, (80_000, 300_000)),
}


@linux
@pytest.mark.parametrize("kind", TIGHT)
def test_the_limit_of_parse_includes_temporary_memory_and_errors(kind: str) -> None:
    parser, make, counts = TIGHT[kind]
    parser.parse(pa.array(make(10), pa.binary()))
    for count, fits in zip(counts, (True, False), strict=True):
        column = pa.array(make(count), pa.binary())
        increase, result = measured(lambda column=column: len(parser.parse(column, TIGHT_LIMIT).values))
        assert increase <= TIGHT_LIMIT * 13 // 10
        assert isinstance(result, int) if fits else "bytes of memory as columns" in result, result


@linux
def test_bad_values_count_towards_the_limit_of_the_table() -> None:
    data = kbatch.encode([b""] * 400_000, timestamps=0)
    used = kbatch.decode(data)
    limit = used.records.nbytes + TIGHT_LIMIT
    table = kbatch.decode(data, limits=Limits(max_table_bytes=limit))
    increase, result = measured(lambda: len(table.values_struct(">i8").values))
    assert isinstance(result, str), result
    assert "LimitExceededError" in result
    assert increase <= limit * 13 // 10


def test_values_of_many_items_are_not_refused() -> None:
    """Numbers take less than 64 times their bytes, also packed; nulls of fields are not items."""
    numbers = JsonParser(pa.list_(pa.int64())).parse(pa.array([b"[" + b"1," * 3_000_000 + b"1]"]))
    assert (len(numbers.values[0]), numbers.errors) == (3_000_001, [])
    count = 3_000_000
    packed = parse_column(protobuf(), [pa.array([b"\x12" + varint(count) + b"\x01" * count])])
    assert (len(packed[0][0]["numbers"]), packed[2]) == (count, [])
    nulls = b"[" + b",".join([json.dumps(dict.fromkeys(WIDE_TYPE.names)).encode()] * 300) + b"]"
    parsed = parse_column(JsonParser(pa.list_(WIDE_TYPE)), [pa.array([nulls])])
    assert (len(parsed[0][0]), parsed[2]) == (300, [])


@pytest.mark.parametrize(
    ("parser", "value"),
    [
        (TextParser(), b"x" * 1000),
        (FixedParser("S1000"), b"x" * 1000),
        (JsonParser(pa.string()), b'"' + b"x" * 1000 + b'"'),
        (AvroParser("string"), b"\xd0\x0f" + b"x" * 1000),
    ],
    ids=["text", "struct", "json", "avro"],
)
def test_parse_has_a_limit(parser: Parser, value: bytes) -> None:
    column = pa.array([value] * 1000)
    assert len(parser.parse(column, 20_000_000).values) == 1000
    with pytest.raises(LimitExceededError, match="takes more than 500000 bytes of memory as columns"):
        parser.parse(column, 500_000)


def test_parts_that_are_too_large_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows keep their places, and bad rows their numbers."""
    monkeypatch.setattr("kbatch.values.parsed.VALUES_PART_MEMORY", 100_000)
    monkeypatch.setattr("kbatch.values.parsed.VALUES_MEMORY_RATIO", 1)
    values = [str(i).encode() if i % 7 else b"bad" for i in range(10_000)]
    parsed = parse_column(JsonParser(pa.int64()), [pa.array(values[:6000]), pa.array(values[6000:])])
    assert parsed[0].num_chunks > 2
    assert parsed[0].to_pylist() == [i if i % 7 else None for i in range(10_000)]
    assert parsed[1].tolist() == list(range(0, 10_000, 7))
    assert len(parsed[2]) == len(parsed[1])


def test_damaged_messages_are_measured_up_to_the_damage() -> None:
    parser = protobuf()
    memory = parser._memory  # type: ignore[attr-defined]
    item = memory.fields[1].item
    for data, items in [
        (b"\x0a\0\x0a\0", 2),
        (b"\x0a\0\xff", 1),
        (b"\x0a\0\x0a", 2),
        (b"\x0a\0\x0f\x0a\0", 1),
        (b"\x08\x01\x0d1234\x091234567812", 3),
        (b"\x2b\x0a\0\x2c\x0a\0", 1),
        (b"\x80" * 11, 0),
    ]:
        assert memory.of_items(data) == items * item, data
    assert np.all(np.array([memory.most, memory.row]) > 0)


def test_parsed_values_count_next_to_the_bytes_and_the_other_columns() -> None:
    data = kbatch.encode([b"x" * 200] * 1000, timestamps=0)
    used = kbatch.decode(data)
    text = used.values_text()
    base = used.records.nbytes + used.batches.nbytes
    parser_needs = 2 * text.values.nbytes
    with pytest.raises(kbatch.LimitExceededError, match="max_table_bytes"):
        kbatch.decode(data, limits=Limits(max_table_bytes=base + parser_needs - 100_000)).values_text()
    table = kbatch.decode(data, limits=Limits(max_table_bytes=base + parser_needs + 10_000))
    parsed = table.values_text()
    assert table.to_arrow().num_rows == parsed.to_arrow(["value"]).num_rows == 1000
    with pytest.raises(kbatch.LimitExceededError, match="Arrow columns of 1,000 records"):
        parsed.to_arrow()


def struct_of(fields: int, kind: pa.DataType | None = None) -> pa.DataType:
    return pa.struct([(f"f{i}", kind or pa.int64()) for i in range(fields)])


def text_of(fields: int, value: Any = 1) -> bytes:
    return json.dumps({f"f{i}": value for i in range(fields)}).encode()


# A type with a number of fields, and two values, the second of which is bad.
JSON_SHAPES: dict[str, Callable[[int], tuple[pa.DataType, list[bytes]]]] = {
    "nulls": lambda n: (struct_of(n), [b"{}", b'{"f0":""}']),
    "numbers": lambda n: (struct_of(n), [text_of(n), b'{"f0":""}']),
    "strings": lambda n: (struct_of(n, pa.string()), [text_of(n, "1"), b'{"f0":1}']),
    "nested": lambda n: (
        pa.struct([("a", struct_of(n // 2)), ("b", pa.struct([("c", struct_of(n // 2))]))]),
        [b'{"b":{"c":{}}}', b'{"a":1}'],
    ),
    "list": lambda n: (pa.list_(struct_of(n)), [b"[{},{},null]", b"[1]"]),
    "lists": lambda n: (struct_of(n // 2 + 1, pa.list_(pa.int64())), [text_of(n // 2 + 1, [1]), b'{"f0":1}']),
}


# A type has at most 20,000 fields. Each shape with this number takes three seconds, so an ordinary run has only two.
WIDE_SHAPES = [*JSON_SHAPES] if os.environ.get("KBATCH_TEST_ALL") else ["numbers", "list"]


@linux
@pytest.mark.parametrize(
    ("shape", "fields"),
    [*itertools.product(JSON_SHAPES, [1, 1000]), *itertools.product(WIDE_SHAPES, [19_990])],
)
def test_json_of_any_number_of_fields_takes_at_most_the_limit_or_names_it(shape: str, fields: int) -> None:
    """The columns of thousands of fields take memory for each part that is parsed, however few rows it has."""
    kind, (good, bad) = JSON_SHAPES[shape](fields)
    JsonParser(kind).parse(pa.array([good]))
    for values in ([good], [good] * max(2, 200_000 // fields), [good, bad] * 20):
        data = kbatch.encode(values, timestamps=0)
        table = kbatch.decode(data, limits=Limits(max_table_bytes=TIGHT_LIMIT))
        increase, result = measured(lambda table=table: len(table.values_json(kind).values))
        assert increase <= TIGHT_LIMIT * 13 // 10, len(values)
        refused = isinstance(result, str) and "raise limits=kbatch.Limits(max_table_bytes=...)" in result
        assert refused or result == len(values), result
        assert len(values) > 1 or result == 1


@linux
def test_the_objects_of_a_bad_text_are_not_made_where_they_exceed_the_limit() -> None:
    """Four bytes of JSON become 160 bytes of Python objects, also in fields that the type lacks."""
    parser = JsonParser(pa.struct([("f", pa.int64())]))
    text = b'{"more":[' + b"[0,0]," * 1_000_000 + b'[]],"f":"x"}'
    parser.parse(pa.array([b'{"f":"x"}']))
    increase, result = measured(lambda: parser.parse(pa.array([text]), 4 * TIGHT_LIMIT).errors)
    assert increase <= 4 * TIGHT_LIMIT * 13 // 10
    assert len(result) == 1
    assert "Column(/v/f)" in result[0] or "field 'f'" in result[0]


def test_bytes_in_strings_are_items_of_lists_only_in_the_bound() -> None:
    """Spaces are no items, and objects in fields neither."""
    for text, items in [
        (b"[ {}, {} , null,[\n[],1]]", 5),
        (b'{"a": {"b": null}, "c": [1]}', 0),
        (b'["a, null", "[{"]', 2),
        (b"", 0),
        (b"[]", 0),
    ]:
        assert _most_items(np.frombuffer(text, np.uint8)) == items, text
