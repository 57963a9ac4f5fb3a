"""A parser of some fields returns what a parser of all fields returns for them, and judges the same values as bad."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("fastavro")
pytest.importorskip("google.protobuf")

import pyarrow as pa
from avro_cases import Case, cases, write
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from kbatch.values import AvroParser, FixedParser, JsonParser, Parsed, Parser, ProtobufParser, TextParser
from kbatch.values.json_projection import JsonProjection
from kbatch.values.parsed import parse_column, selected_fields
from kbatch.values.projection import field_path, projected, pruned_type
from kbatch.values.schemas import json_type


def paths_of(kind: pa.DataType, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all fields of structs."""
    if pa.types.is_struct(kind):
        for each in kind:
            yield (*path, each.name)
            yield from paths_of(each.type, (*path, each.name))


def check_projection(parser: Parser, kind: pa.DataType, values: list[bytes | None]) -> None:
    column = pa.array(values, pa.binary())
    part = projected(parser, kind)
    assert part.type.equals(kind)
    whole: Parsed = parser.parse(column)
    found: Parsed = pickle.loads(pickle.dumps(part)).parse(column)
    found.values.validate(full=True)
    assert found.values.type.equals(kind)
    # As text, because a damaged time may be outside the range of Python's types.
    assert found.values.to_string(window=1000) == selected_fields(whole.values, kind).to_string(window=1000)
    assert found.values.is_valid().equals(whole.values.is_valid())
    assert (found.bad.tolist(), found.errors, found.deviations) == (whole.bad.tolist(), whole.errors, whole.deviations)
    ids = [None if each.schema_ids is None else each.schema_ids.tolist() for each in (found, whole)]
    assert ids[0] == ids[1]


def parts_of(kind: pa.DataType) -> st.SearchStrategy[pa.DataType]:
    """Return a strategy of parts of a type, from no field to all of them."""
    paths = list(paths_of(kind))
    if not paths:
        return st.just(kind)
    return st.lists(st.sampled_from(paths), max_size=4, unique=True).map(lambda chosen: pruned_type(kind, chosen))


# -- JSON

KIND = json_type(
    "id bigint, name string, price double, ok boolean, tags array<string>, day date, cost decimal(9,2), "
    "big decimal(38,0), at timestamp, raw binary, real float, "
    "sub struct<x: bigint, deep: array<struct<y: string, z: double>>, t: timestamp>"
)
# Of each field: values that fit, and values of other types or beyond its range.
SCALARS: list[bytes] = [
    b"null", b"true", b"false", b"0", b"-0", b"1", b"-5", b"1.5", b"1e3", b"1e99", b"1e999", b"-1E-400", b"9" * 30,
    b"9" * 45, b"0.5" + b"5" * 120, b"9223372036854775807", b"9223372036854775808", b"9007199254740993",
    b"NaN", b"-Infinity", b'""', b'"a"', b'"2024-02-29"', b'"2024-02-29T01:02:03Z"',
    b'"\\u00e9"', b'"\\ud83d\\ude00"', b'"\\ud800"',
    b'"\\udc00x"', b'"\\\\ud800"', b'"\\"q"', b'"e1234"', b'"12.50"', b"[]", b"{}", b"[1]", b'["a",null]', b"[[]]",
    b'{"x":1}', b'{"y":"\\ud800"}',
    b'[{"y":"b","z":2}]', b'[{"y":5}]', b'[{"y":"a","y":"b"},{"q":1}]', b"tru", b"01", b"1.", b'"open', b"{", b"nul",
]  # fmt: skip
NAMES = [
    each.encode() for each in ("id", "name", "price", "ok", "tags", "day", "cost", "big", "at", "raw", "real", "sub")
]
NAMES += [b"other", b"x", b"", b"n\\u0061me", b"\\ud800", b"sub.x"]


@st.composite
def objects(draw: st.DrawFn) -> bytes:
    space = draw(st.sampled_from([b"", b" ", b"\n\t"]))
    fields = draw(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(SCALARS)), max_size=6))
    nested = draw(
        st.lists(st.tuples(st.sampled_from([b"x", b"deep", b"t", b"u"]), st.sampled_from(SCALARS)), max_size=3)
    )
    if draw(st.booleans()):
        fields.append((b"sub", b"{" + b",".join(b'"%s":%s' % each for each in nested) + b"}"))
    return b"{" + (b"," + space).join(b'"%s"%s:%s' % (name, space, value) for name, value in fields) + b"}"


@st.composite
def good_objects(draw: st.DrawFn) -> bytes:
    value = {
        "id": draw(st.integers(-(2**63), 2**63 - 1)),
        "name": draw(st.text(max_size=5)),
        "price": draw(st.floats(-1e9, 1e9)),
        "tags": draw(st.lists(st.none() | st.text(max_size=3), max_size=3)),
        "sub": {"x": draw(st.integers(-9, 9)), "deep": [{"y": "a"}, None]},
        "more": {"a": [1, {"b": "c"}]},
    }
    names = draw(st.lists(st.sampled_from(sorted(value)), unique=True))
    return json.dumps({name: value[name] for name in names}, ensure_ascii=draw(st.booleans())).encode()


@pytest.mark.parametrize("unknown", ["ignore", "bad", "keep"])
@given(
    st.lists(
        st.none() | objects() | good_objects() | st.sampled_from([*SCALARS, b"", b" null ", b"{}{}"]), max_size=30
    ),
    parts_of(KIND),
)
@example(
    [b'{"id":1,"name":5}', b'{"id":2,"id":3,"name":"a"}', b'{"name":"a","name":"b","id":1}'],
    pruned_type(KIND, [("id",)]),
)
def test_json_fields_are_those_of_the_whole_value(unknown: Any, values: list[bytes | None], kind: pa.DataType) -> None:
    check_projection(JsonParser(KIND, unknown), kind, values)


@pytest.mark.parametrize("unknown", ["ignore", "bad", "keep"])
@pytest.mark.parametrize("name", [each.name for each in KIND])
def test_every_value_of_a_field_that_is_not_requested_is_judged_as_by_arrow(unknown: Any, name: str) -> None:
    """Each value in each field, one by one: the rest of the object is good."""
    kind = pruned_type(KIND, [("id",)] if name != "id" else [("ok",)])
    values: list[bytes | None] = [b'{"id":1,"ok":true,"%s":%s}' % (name.encode(), each) for each in SCALARS]
    if name == "id":
        values = [b'{"ok":true,"id":%s}' % each for each in SCALARS]
    elif name == "ok":
        values = [b'{"id":1,"ok":%s}' % each for each in SCALARS]
    values += [b'{"id":1,"ok":true,"other":%s}' % each for each in SCALARS]
    check_projection(JsonParser(KIND, unknown), kind, values)


def test_deviations_beyond_those_that_are_listed_are_the_same() -> None:
    """The reason of a value is one of the first hundred fields, or the collective one for further fields."""
    parser = JsonParser(pa.struct({"id": pa.int64(), "s": pa.string()}), "keep")
    values: list[bytes | None] = [b'{"id":%d,"f%d":1}' % (i, i % 300) for i in range(1000)]
    values[500] = b'{"id":1,"s":"a","s":"b","f450":1}'
    values[501] = b'{"id":1,"s":"\\ud800","g":2}'
    values[502] = b'{"id":1,"s":[1'
    for part in ([("id",)], [("s",)], []):
        check_projection(parser, pruned_type(parser.type, part), values)


def test_arrow_parses_only_requested_json_fields_and_those_that_it_must_check() -> None:
    def fields(*names: str) -> list[str]:
        part = projected(JsonParser(KIND), pruned_type(KIND, [(name,) for name in names]))
        assert isinstance(part, JsonProjection)
        return [each.name for each in part._inner.type]  # type: ignore[attr-defined]

    always = ["day", "cost", "at", "raw", "real", "sub"]
    assert fields() == always
    assert fields("id") == ["id", *always]
    kind = pa.struct([(f"f{i}", pa.int64()) for i in range(20)])
    part = projected(JsonParser(kind), pruned_type(kind, [("f3",), ("f7",)]))
    assert [each.name for each in part._inner.type] == ["f3", "f7"]  # type: ignore[attr-defined]


# -- Avro


def spoiled(data: st.DataObject, good: list[bytes]) -> bytes:
    """Return bytes like those of one of the good values, with some changes and of another length."""
    damaged = bytearray(data.draw(st.sampled_from(good)) or b"\0")
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    return bytes(damaged[: data.draw(st.integers(0, len(damaged)))])


@given(st.lists(cases(depth=2), min_size=1, max_size=4), st.data())
def test_avro_fields_are_those_of_the_whole_value(fields: list[Case], data: st.DataObject) -> None:
    named = [
        {"name": f"g{i}", "type": json.loads(json.dumps(f[0]).replace('"N', f'"R{i}N'))} for i, f in enumerate(fields)
    ]
    schema = {"type": "record", "name": "Top", "fields": named}
    values = st.fixed_dictionaries({f"g{i}": each[1] for i, each in enumerate(fields)})
    good = [write(schema, data.draw(values)) for _ in range(3)]
    damaged = [spoiled(data, good) for _ in range(3)]
    parser = AvroParser(schema)
    kind = data.draw(parts_of(parser.type))
    check_projection(parser, kind, [None, *good, *damaged, b"", data.draw(st.binary(max_size=10))])


INNER = {"type": "record", "name": "In", "fields": [{"name": "p", "type": "string"}, {"name": "q", "type": "long"}]}
WRITERS = {
    3: {"type": "record", "name": "R", "fields": [
        {"name": "old", "type": "int"}, {"name": "in", "type": ["null", INNER]}, {"name": "gone", "type": "string"}]},
    9: {"type": "record", "name": "R", "fields": [
        {"name": "in", "type": INNER}, {"name": "s", "type": "string"}, {"name": "id", "type": "long"}]},
}  # fmt: skip
READER = {"type": "record", "name": "R", "fields": [
    {"name": "id", "aliases": ["old"], "type": "double"}, {"name": "again", "aliases": ["id", "old"], "type": "double"},
    {"name": "in", "type": ["null", {"type": "record", "name": "In", "fields": [
        {"name": "q", "type": "double"}, {"name": "n", "type": "int", "default": 7}, {"name": "p", "type": "bytes"}]}]},
    {"name": "s", "type": ["null", "string"], "default": None}]}  # fmt: skip


@pytest.mark.parametrize("number", range(40))
def test_resolved_avro_fields_are_those_of_the_whole_value(number: int) -> None:
    """Each writer's schema has other fields than the reader's, in another order, and bad values among good ones."""
    rng = random.Random(number)
    parser = AvroParser(WRITERS, "confluent", READER)
    rows = [
        (3, {"old": 5, "in": None, "gone": "x"}),
        (3, {"old": -1, "in": {"p": "a", "q": 2}, "gone": ""}),
        (9, {"in": {"p": "", "q": 2**40}, "s": "y", "id": 12}),
    ]
    good = [b"\0" + key.to_bytes(4, "big") + write(WRITERS[key], value) for key, value in rows]
    values: list[bytes | None] = [*good, None, b"\0\0\0\0\4x", good[0][:-1], good[2] + b"x", b"\1", b"\0\0\0\0\3"]
    paths = list(paths_of(parser.type))
    kind = pruned_type(parser.type, rng.sample(paths, number % len(paths)))
    check_projection(parser, kind, values)


def test_avro_fields_that_are_not_requested_have_no_columns() -> None:
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "a", "type": "long"}, {"name": "s", "type": {"type": "array", "items": "string"}}]}  # fmt: skip
    parser = AvroParser(schema)
    part = projected(parser, pruned_type(parser.type, [("a",)]))
    kept = part._decoders[None].table[0][:, 6].tolist()  # type: ignore[attr-defined]
    assert kept == [0, 0, 1, 1]


# -- Protobuf

FIELD = descriptor_pb2.FieldDescriptorProto


def add_field(message: Any, name: str, number: int, kind: int, of: str | None = None, label: int = 1) -> None:
    made = message.field.add(name=name, number=number, type=kind, label=label)
    if of is not None:
        made.type_name = of


def shop(syntax: str) -> tuple[bytes, Any]:
    """Return the descriptors of a message with fields of all kinds, and its class."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name=f"{syntax}.proto", package=syntax, syntax=syntax)
    item = file.message_type.add(name="Item")
    add_field(item, "sku", 1, FIELD.TYPE_STRING)
    add_field(item, "count", 2, FIELD.TYPE_INT32)
    deep = file.message_type.add(name="Deep")
    add_field(deep, "item", 1, FIELD.TYPE_MESSAGE, f".{syntax}.Item")
    add_field(deep, "n", 2, FIELD.TYPE_INT64)
    order = file.message_type.add(name="Order")
    add_field(order, "id", 1, FIELD.TYPE_INT64)
    add_field(order, "name", 2, FIELD.TYPE_STRING)
    add_field(order, "item", 3, FIELD.TYPE_MESSAGE, f".{syntax}.Item")
    add_field(order, "items", 4, FIELD.TYPE_MESSAGE, f".{syntax}.Item", 3)
    add_field(order, "deep", 5, FIELD.TYPE_MESSAGE, f".{syntax}.Deep")
    add_field(order, "tags", 6, FIELD.TYPE_STRING, label=3)
    add_field(order, "raw", 7, FIELD.TYPE_BYTES)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return files.SerializeToString(), message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{syntax}.Order"))


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@given(data=st.data())
def test_protobuf_fields_are_those_of_the_whole_message(syntax: str, data: st.DataObject) -> None:
    """Strings of proto2 that are not UTF-8 are bad, whether they are requested or not."""
    descriptors, order = shop(syntax)
    full = order(
        id=5, name="a", item={"sku": "s", "count": 1}, deep={"item": {"sku": "t"}, "n": 2}, tags=["x"], raw=b"\xff"
    )
    good = [full.SerializeToString(), b"", order(id=1, items=[{"count": 3}]).SerializeToString()]
    values = [None, *good, *(spoiled(data, good) for _ in range(3)), full.SerializeToString().replace(b"t", b"\xff")]
    parser = ProtobufParser(descriptors, f"{syntax}.Order")
    check_projection(parser, data.draw(parts_of(parser.type)), values)


def test_fields_of_proto3_that_are_not_requested_are_not_read() -> None:
    for syntax, kept in (("proto3", ["id"]), ("proto2", ["id", "name", "item", "items", "deep", "tags"])):
        parser = ProtobufParser(shop(syntax)[0], f"{syntax}.Order")
        part = parser._projected(pruned_type(parser.type, [("id",)]))
        assert [each.name for each in part.type] == kept


# -- structs, and other parsers


@given(st.lists(st.none() | st.binary(min_size=20, max_size=20) | st.binary(max_size=22), max_size=20), st.data())
def test_struct_fields_are_those_of_the_whole_value(values: list[bytes | None], data: st.DataObject) -> None:
    inner = np.dtype([("x", ">i2"), ("y", "S3")])
    parser = FixedParser(
        np.dtype([("id", ">i8"), ("in", inner), ("many", "<i2", (2,)), ("flag", "u1"), ("rest", "V2")])
    )
    check_projection(parser, data.draw(parts_of(parser.type)), values)


class Reversed:
    """A parser of a user: a struct with the bytes and their number."""

    type = pa.struct({"length": pa.int64(), "back": pa.binary()})

    def parse(self, column: pa.Array, max_bytes: Any = 0) -> Parsed:
        rows = [each and {"length": len(each), "back": each[::-1]} for each in column.to_pylist()]
        return Parsed(pa.array(rows, self.type), np.zeros(0, np.int64), [])


def test_other_parsers_parse_all_fields() -> None:
    check_projection(Reversed(), pa.struct({"back": pa.binary()}), [b"abc", None])
    text = TextParser()
    assert projected(text, text.type) is text


# -- names of fields


@pytest.mark.parametrize(
    ("name", "path"),
    [("a", ("a",)), ("a.b", ("a", "b")), ("a.b.c", ("a.b", "c")), ("d.e", ("d.e",)), ("a.b.c.d", ("a.b", "c.d"))],
)
def test_a_field_whose_own_name_has_dots_takes_precedence(name: str, path: tuple[str, ...]) -> None:
    leaf = pa.struct([("c", pa.int64()), ("c.d", pa.int64())])
    kind = pa.struct([("a", pa.struct([("b", pa.int64())])), ("a.b", leaf), ("d.e", pa.int64())])
    if name == "a.b":
        path = ("a.b",)
    assert field_path(kind, name) == path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nme", "there is no field 'nme', did you mean 'name'?; the fields are id, name, price, "),
        ("sub.w", "'sub' has no field 'w'; the fields are x, deep, t"),
        ("id.x", "'id' has no field 'x': the type is int64"),
    ],
)
def test_an_unknown_field_is_an_error_that_lists_the_fields(name: str, message: str) -> None:
    with pytest.raises(ValueError, match="^" + message.replace("?", r"\?")):
        field_path(KIND, name)


def test_a_column_of_any_size_is_projected(monkeypatch: pytest.MonkeyPatch) -> None:
    from kbatch.values import parsed

    monkeypatch.setattr(parsed, "VALUES_PART_ROWS", 7)
    values = pa.array([b'{"id":%d,"name":"a"}' % i for i in range(50)])
    part = projected(JsonParser(KIND), pruned_type(KIND, [("id",)]))
    assert parse_column(part, [values]).values.to_pylist() == [{"id": i} for i in range(50)]
