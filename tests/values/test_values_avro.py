"""Avro values as columns, compared with fastavro: generated data, damage, framing, schema resolution, counts."""

from __future__ import annotations

import datetime
import io
import json
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import zigzag
from value_tables import table_of

pytest.importorskip("pyarrow")
pytest.importorskip("fastavro")

import fastavro
import pyarrow as pa
from avro_cases import Case, cases, write

import kbatch
from kbatch.kernels.avro import Columns
from kbatch.values import AvroParser


def read(schema: Any, data: bytes) -> Any:
    """Decode with fastavro, and raise if bytes remain."""
    stream = io.BytesIO(data)
    value = fastavro.schemaless_reader(stream, fastavro.parse_schema(schema), None)
    if stream.read(1):
        raise ValueError("bytes remain")
    return value


@given(cases(), st.data())
def test_data_written_by_fastavro_is_parsed(case: Case, data: st.DataObject) -> None:
    schema, values, expected = case
    written = data.draw(st.lists(values, min_size=1, max_size=6))
    datums = [write(schema, value) for value in written]
    parsed = table_of([None, *datums]).values_avro(json.dumps(schema))
    assert parsed.bad.tolist() == []
    parsed.values.validate(full=True)
    assert parsed.values.to_pylist() == [None, *map(expected, written)]


@given(cases(), st.data())
def test_bad_values_keep_their_bytes(case: Case, data: st.DataObject) -> None:
    """Damaged datums among good ones: fastavro gives the same results, and neighbours do not change."""
    schema, values, expected = case
    good = [write(schema, data.draw(values)) for _ in range(2)]
    damaged = bytearray(data.draw(st.sampled_from(good)) or b"\0")
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    datums = [good[0], cut, None, bytes(damaged) + b"\0", good[1], data.draw(st.binary(max_size=10))]
    parsed = table_of(datums).values_avro(schema)
    parsed.values.validate(full=True)
    # Compare Arrow values: a damaged time may be outside the range of Python's types.
    found = parsed.values.combine_chunks()
    bad = parsed.bad.tolist()
    assert 0 not in bad
    assert 4 not in bad
    assert parsed.bad_values == [datums[row] for row in bad]
    assert len(parsed.errors) == len(bad)
    assert not any(found[row].is_valid for row in bad)
    alone = AvroParser(schema)
    for row, datum in enumerate(datums):
        if datum is None:
            assert not found[row].is_valid
            assert row not in bad
            continue
        one = alone.parse(pa.array([datum], pa.binary()))
        assert (one.bad.tolist() == [0]) == (row in bad)
        assert one.values.to_string() == found.slice(row, 1).to_string()
        if row in (0, 4):
            assert found[row].as_py() == expected(read(schema, datum))


def test_names_are_resolved_in_their_namespaces() -> None:
    """Namespaces, repeated named types and logical types have the expected Arrow types."""
    schema = {
        "type": "record",
        "name": "a.b.R",
        "fields": [
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}},
            {"name": "e2", "type": "E"},
            {"name": "e3", "type": ["null", "a.b.E"]},
            {
                "name": "s",
                "type": {"type": "record", "name": "c.S", "fields": [{"name": "t", "type": ["null", "a.b.E"]}]},
            },
            {"name": "s2", "type": {"type": "array", "items": "c.S"}},
            {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "d", "type": {"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 9}},
            {"name": "w", "type": {"type": {"type": "int", "logicalType": "date"}}},
            {"name": "o", "type": {"type": "int", "logicalType": "no-such"}},
        ],
    }
    assert str(AvroParser(schema).type) == (
        "struct<e: string, e2: string, e3: string, s: struct<t: string>, s2: list<item: struct<t: string>>, "
        "t: timestamp[ms, tz=UTC], d: decimal128(9, 0), w: date32[day], o: int32>"
    )
    datum = bytes([0, 2, 2, 0, 2, 2, 4, 0, 2, 0, 0, 2]) + (-7).to_bytes(4, "big", signed=True) + b"\2\3"
    found = table_of([datum]).values_avro(schema)
    assert found.errors == []
    row = found.values[0].as_py()
    assert (row["e"], row["e2"], row["e3"], row["s"], row["s2"]) == (
        "X",
        "Y",
        "X",
        {"t": "Y"},
        [{"t": None}, {"t": "X"}],
    )
    assert (row["d"], row["w"].isoformat(), row["o"]) == (Decimal(-7), "1970-01-02", -2)


@pytest.mark.parametrize(
    ("schema", "datum", "error"),
    [
        ("long", b"", "ends within"),
        ("long", b"\xff" * 10 + b"\1", "more than 10 bytes"),
        ("long", b"\xff" * 9 + b"\2", "more than 10 bytes"),
        ("int", zigzag(2**31), "int32"),
        ({"type": "int", "logicalType": "time-millis"}, zigzag(86_400_000), "time of day"),
        ({"type": "long", "logicalType": "time-micros"}, zigzag(-1), "time of day"),
        ("boolean", b"\2", "boolean"),
        ("string", zigzag(-1), "a length"),
        ("string", zigzag(5) + b"abc", "a length"),
        ("string", zigzag(1) + b"\xff", "UTF-8"),
        ("double", b"1234567", "ends within"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, zigzag(1), "symbol"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, zigzag(-1), "symbol"),
        (["null", "int"], zigzag(2), "branch"),
        (["null", "int"], zigzag(-1), "branch"),
        ({"type": "array", "items": "int"}, zigzag(2**40), "count of items"),
        ({"type": "array", "items": "int"}, zigzag(-(2**63)), "count of items"),
        ({"type": "array", "items": "int"}, zigzag(-1) + zigzag(99), "a length"),
        ({"type": "array", "items": "null"}, zigzag(2**40) + b"\0", "count of items"),
        ({"type": "map", "values": "null"}, zigzag(3) + b"\0\0", "count of items"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, zigzag(1) + b"\x64", "precision"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38}, zigzag(17) + b"\1" + bytes(16), "precision"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, zigzag(0), "precision"),
        ("null", b"\0", "remain"),
        ("int", b"\0\0", "byte 1: bytes remain"),
    ],
)
def test_the_error_of_a_bad_datum_names_the_fault(schema: Any, datum: bytes, error: str) -> None:
    good = {"null": b"", "double": bytes(8)}.get(schema if isinstance(schema, str) else "")
    parsed = table_of([datum, good]).values_avro(schema)
    assert parsed.bad.tolist() == [0]
    assert error in parsed.errors[0]
    assert parsed.values.to_pylist()[0] is None


def test_decimals_up_to_their_precision_are_parsed() -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}
    largest = 10**38 - 1
    numbers = [0, 1, -1, 127, 128, -128, -129, largest, -largest, largest + 1, -largest - 1]
    datums = []
    for number in numbers:
        size = max(1, (number.bit_length() + 8) // 8)
        datums.append(zigzag(size) + number.to_bytes(size, "big", signed=True))
    longer = (5).to_bytes(20, "big"), (-5).to_bytes(20, "big", signed=True)
    parsed = table_of(datums + [zigzag(20) + each for each in longer]).values_avro(schema)
    assert parsed.values.to_pylist() == [*map(Decimal, numbers[:-2]), None, None, Decimal(5), Decimal(-5)]
    assert parsed.bad.tolist() == [9, 10]


def test_items_without_bytes_are_bounded() -> None:
    """2**40 nulls take five bytes; nested arrays of nulls are bounded in total, too."""
    schema = {"type": "array", "items": {"type": "array", "items": "null"}}
    inner = zigzag(1000) + b"\0"
    datums = [zigzag(2) + inner * 2 + b"\0", zigzag(1) + inner + b"\0", zigzag(1) + zigzag(2**62) + b"\0\0"]
    tracemalloc.start()
    parsed = table_of(datums).values_avro(schema)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert parsed.bad.tolist() == [0, 2]
    assert peak < 1 << 20
    assert parsed.values.to_pylist() == [None, [[None] * 1000], None]


def test_blocks_with_a_size_are_parsed() -> None:
    """A negative count is followed by the block's size; several blocks are one array."""
    datum = zigzag(-2) + zigzag(2) + zigzag(1) + zigzag(2) + zigzag(1) + zigzag(3) + b"\0"
    assert read({"type": "array", "items": "int"}, datum) == [1, 2, 3]
    assert table_of([datum]).values_avro({"type": "array", "items": "int"}).values.to_pylist() == [[1, 2, 3]]


def test_bad_values_that_may_have_confluents_prefix_name_the_framing() -> None:
    schema = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
    datum = bytes([2])
    framed = b"\0\0\0\0\7" + datum
    # The last two have no prefix: too short, and another first byte.
    table = kbatch.decode(kbatch.encode([datum, framed, b"\0\0\0\2", b"\2" + framed[1:]], timestamps=0))
    parsed = table.values_avro(schema)
    assert parsed.bad.tolist() == [1, 2, 3]
    hints = ["Confluent's prefix of five bytes: the framing 'confluent' reads it" in error for error in parsed.errors]
    assert hints == [True, False, False]
    assert table[1:2].values_avro(schema, framing="confluent").errors == []


def test_confluent_framing_selects_the_schema() -> None:
    one = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    two = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string", "default": "none"}],
    }

    def framed(number: int, datum: bytes) -> bytes:
        return b"\0" + number.to_bytes(4, "big") + datum

    values = [
        framed(9, zigzag(2**40) + zigzag(1) + b"x"),
        framed(3, zigzag(5)),
        framed(4, b""),
        b"\1\0\0\0\3" + zigzag(5),
        b"\0\0\0",
        None,
        framed(3, b""),
        framed(2**32 - 1, b""),
    ]
    parsed = table_of(values).values_avro({3: one, 9: two}, framing="confluent")
    assert parsed.values.to_pylist() == [{"a": 2**40, "b": "x"}, {"a": 5, "b": "none"}] + [None] * 6
    assert parsed.bad.tolist() == [2, 3, 4, 6, 7]
    assert parsed.errors == [
        "unknown schema id 4; expected one of 3, 9",
        "no Confluent framing: expected 0 as the first byte, found 1",
        "no Confluent framing: 3 bytes, fewer than the prefix of 5",
        "byte 5: ends within the datum",
        "unknown schema id 4294967295; expected one of 3, 9",
    ]
    # One schema is used for all ids; the reader's schema is invalid.
    parsed = table_of(values[1:2]).values_avro(one, framing="confluent", reader_schema=two)
    assert parsed.values.to_pylist() == [{"a": 5, "b": "none"}]
    assert table_of([None]).values_avro({3: one}, framing="confluent").values.to_pylist() == [None]
    with pytest.raises(ValueError, match="schemas by id"):
        table_of(values).values_avro({3: one})
    with pytest.raises(ValueError, match="framing must be"):
        table_of(values).values_avro(one, framing="glue")  # type: ignore[arg-type]


RESOLVED: list[tuple[Any, Any, Any]] = [
    ("int", "long", 7),
    ("int", "double", 7),
    ("float", "double", 1.5),
    ("string", "bytes", "ab"),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "double"}, [1, 2]),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, {"a": 1}),
]


@pytest.mark.parametrize(("writer", "reader", "value"), RESOLVED)
def test_schema_resolution_equals_fastavro(writer: Any, reader: Any, value: Any) -> None:
    def record(kind: Any, extra: list[Any]) -> dict[str, Any]:
        return {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}, *extra]}

    written = record(writer, [{"name": "gone", "type": "int"}])
    extra = [
        {"name": "s", "type": "string", "default": "d"},
        {"name": "n", "type": ["null", "int"], "default": None},
        {"name": "renamed", "aliases": ["gone"], "type": "long"},
    ]
    read_as = record(reader, extra)
    datum = write(written, {"f": value, "gone": 3})
    resolved = fastavro.schemaless_reader(
        io.BytesIO(datum), fastavro.parse_schema(written), fastavro.parse_schema(read_as)
    )
    if isinstance(value, dict):
        resolved["f"] = list(resolved["f"].items())
    parsed = table_of([None, datum, b""]).values_avro(written, reader_schema=read_as)
    assert parsed.values.to_pylist() == [None, resolved, None]
    assert parsed.bad.tolist() == [2]


EURO = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
DEFAULTS: list[tuple[Any, Any, Any]] = [
    ("bytes", "\u0000", b"\0"),
    ("bytes", "\u00ff\u0001", b"\xff\x01"),
    ("bytes", "", b""),
    (["bytes", "null"], "\u0000", b"\0"),
    (["null", "bytes"], "\u0080", b"\x80"),
    ({"type": "fixed", "name": "F", "size": 2}, "\u0001\u00fe", b"\x01\xfe"),
    (EURO, "\u0004\u00d2", Decimal("12.34")),
    (EURO, "\u00ff", Decimal("-0.01")),
    ({**EURO, "type": "fixed", "name": "F", "size": 2}, "\u0000\u0007", Decimal("0.07")),
    ({"type": "array", "items": "bytes"}, ["\u0000", "a"], [b"\0", b"a"]),
    ({"type": "map", "values": "bytes"}, {"k": "\u00e9"}, [("k", b"\xe9")]),
    (
        {"type": "record", "name": "I", "fields": [
            {"name": "b", "type": "bytes"}, {"name": "c", "type": "bytes", "default": "\u0002"}
        ]},
        {"b": "\u0001"}, {"b": b"\x01", "c": b"\x02"},
    ),
    (["bytes", "int"], "\u0003", {"member0": b"\x03", "member1": None}),
    (["int", "bytes"], 3, {"member0": 3, "member1": None}),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    ({"type": "int", "logicalType": "date"}, 1, datetime.date(1970, 1, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "default", "value"), DEFAULTS)
def test_defaults_are_read_as_the_specification_writes_them(kind: Any, default: Any, value: Any) -> None:
    """In a default of bytes, fixed and decimals, the code points 0 to 255 of the text are the bytes."""
    written = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    read_as = {**written, "fields": [*written["fields"], {"name": "d", "type": kind, "default": default}]}
    parsed = table_of([write(written, {"a": 1})] * 2).values_avro(
        json.dumps(written), reader_schema=json.dumps(read_as)
    )
    assert parsed.values.to_pylist() == [{"a": 1, "d": value}] * 2


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("bytes", "\u0100"),
        ("bytes", 1),
        ("bytes", None),
        ({"type": "fixed", "name": "F", "size": 2}, "\u0001"),
        ("int", "1"),
        ("int", True),
        ("int", 2**31),
        ("string", 1),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
        ({"type": "array", "items": "bytes"}, "a"),
        ({"type": "record", "name": "I", "fields": [{"name": "b", "type": "bytes"}]}, {}),
        (["int", "bytes"], 1.5),
    ],
)
def test_a_default_of_another_type_is_refused(kind: Any, default: Any) -> None:
    written = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    read_as = {**written, "fields": [*written["fields"], {"name": "d", "type": kind, "default": default}]}
    with pytest.raises(ValueError, match="field d: the default does not match the type"):
        table_of([write(written, {"a": 1})]).values_avro(written, reader_schema=read_as)


def test_invalid_schemas_raise() -> None:
    node: dict[str, Any] = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
    deep: Any = "int"
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    for schema, message in [
        (node, "contains itself"),
        (deep, "nested deeper"),
        ("{", "invalid JSON"),
        ('{"type":"record","name":"R"}', "without 'fields'"),
        ({"type": "no"}, "unknown Avro type"),
        ([["int"]], "union within a union"),
        ({"type": "fixed", "name": "F", "size": -1}, "size"),
        ("/no/such/file.avsc", "can't read an Avro schema"),
    ]:
        with pytest.raises(ValueError, match=message):
            table_of([b"1"]).values_avro(schema)
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    more = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}]}
    with pytest.raises(ValueError, match=r"field b: missing in the writer"):
        table_of([b"1"]).values_avro(record, reader_schema=more)
    with pytest.raises(ValueError, match="can't be read as"):
        table_of([b"1"]).values_avro("string", reader_schema="int")


def test_schemas_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "1.avsc").write_text('"int"')
    (tmp_path / "12.avsc").write_text('"long"')
    (tmp_path / "readme.txt").write_text("no schema")
    values = [b"\0\0\0\0\1\2", b"\0\0\0\0\x0c\4"]
    parsed = table_of(values).values_avro(tmp_path, framing="confluent")
    assert (parsed.values.type, parsed.values.to_pylist()) == (pa.int64(), [1, 2])
    assert table_of([b"\2"]).values_avro(str(tmp_path / "1.avsc")).values.to_pylist() == [1]
    empty = tmp_path / "empty\x1b[2J"
    empty.mkdir()
    with pytest.raises(ValueError, match=r"/empty\\x1b\[2J: contains no file named <id>\.avsc$"):
        table_of(values).values_avro(empty, framing="confluent")


def test_the_kernel_rejects_invalid_node_tables() -> None:
    limits = np.zeros((1, 2), np.uint64)
    for node, children in [
        ((12, 0, 0, 1, 1, -1, 0), [0]),
        ((12, 0, 0, 0, 1, -1, 0), []),
        ((14, 0, 5, 1, 1, -1, 0), [0]),
        ((13, 0, 0, 1, 1, -1, 0), [0]),
        ((8, -1, 0, 0, 1, -1, 0), []),
    ]:
        with pytest.raises(ValueError, match="node 0"):
            Columns(np.array([node], np.int32), limits, np.array(children, np.int32), 1 << 20)
    columns = Columns(np.array([(3, 0, 0, 0, 1, -1, 0)], np.int32), limits, np.zeros(0, np.int32), 1 << 20)
    one = np.ones(1, np.uint8)
    for offsets in ([0, 2], [1, 0], [-1, 1]):
        with pytest.raises(IndexError):
            columns.decode(np.array(offsets, np.int32), one, one, 0, one.copy(), np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="one item per datum"):
        columns.decode(np.zeros(3, np.int32), one, one, 0, one.copy(), np.zeros(1, np.int32))
    with pytest.raises(IndexError):
        columns.column(1)


def test_schema_ids_and_errors_are_columns() -> None:
    """The id of the prefix is known also where the datum is bad; without framing it is null."""
    values = [b"\0\0\0\0\7\2", b"\0\xff\xff\xff\xff\2", b"\0\0\0\0\7", b"x", None]
    parsed = table_of(values).values_avro("long", framing="confluent")
    assert parsed.schema_ids.to_pylist() == [7, 2**32 - 1, 7, None, None]
    found = parsed.to_arrow(["offset"])
    assert found.column_names == ["value", "offset", "value_bad", "value_error", "value_schema_id"]
    assert found["value_error"].to_pylist() == [
        None,
        None,
        "byte 5: ends within the datum",
        "no Confluent framing: 1 bytes, fewer than the prefix of 5",
        None,
    ]
    assert found["value_schema_id"].to_pylist() == parsed.schema_ids.to_pylist()
    assert table_of([b"\2", None]).values_avro("long").schema_ids.to_pylist() == [None, None]
