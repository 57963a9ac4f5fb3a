"""Protobuf values as columns, compared with the messages of the protobuf package."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from oracle import zigzag
from value_tables import table_of

pytest.importorskip("pyarrow")
pytest.importorskip("google.protobuf")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from kbatch.values import ProtobufParser
from kbatch.values.schema_framing import message_path

F = descriptor_pb2.FieldDescriptorProto


def field(message: Any, name: str, number: int, kind: int, type_name: str | None = None, label: int = 1) -> Any:
    made = message.field.add(name=name, number=number, type=kind, label=label)
    if type_name is not None:
        made.type_name = type_name
    return made


def descriptors() -> bytes:
    """Return the descriptor set that protoc writes for two files, one importing the other."""
    files = descriptor_pb2.FileDescriptorSet()
    other = files.file.add(name="other.proto", package="o", syntax="proto3")
    field(other.message_type.add(name="Point"), "x", 1, F.TYPE_DOUBLE)
    file = files.file.add(name="main.proto", package="t", syntax="proto3", dependency=["other.proto"])
    one = file.message_type.add(name="One")
    field(one, "id", 1, F.TYPE_INT64)
    field(one, "text", 2, F.TYPE_STRING)
    field(one, "raw", 3, F.TYPE_BYTES)
    field(one, "many", 4, F.TYPE_UINT32, label=3)
    field(one, "point", 5, F.TYPE_MESSAGE, ".o.Point")
    field(one, "points", 6, F.TYPE_MESSAGE, ".o.Point", label=3)
    field(one, "color", 7, F.TYPE_ENUM, ".t.Color")
    field(one, "counts", 8, F.TYPE_MESSAGE, ".t.One.CountsEntry", label=3)
    entry = one.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    field(entry, "key", 1, F.TYPE_STRING)
    field(entry, "value", 2, F.TYPE_INT32)
    maybe = field(one, "maybe", 9, F.TYPE_BOOL)
    maybe.proto3_optional = True
    maybe.oneof_index = 0
    one.oneof_decl.add(name="_maybe")
    field(one.nested_type.add(name="Inner"), "f", 1, F.TYPE_FLOAT)
    file.message_type.add(name="Empty")
    again = file.message_type.add(name="Again")
    field(again, "again", 1, F.TYPE_MESSAGE, ".t.Again")
    color = file.enum_type.add(name="Color")
    color.value.add(name="RED", number=0)
    color.value.add(name="BLUE", number=5)
    return files.SerializeToString()


def message_class(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


One = message_class("t.One")
FULL = {
    "id": -(2**63),
    "text": "ä",
    "raw": b"\0\xff",
    "many": [0, 2**32 - 1],
    "point": {"x": 1.5},
    "points": [{"x": 0.0}, {"x": -2.5}],
    "color": "BLUE",
    "counts": {"a": 1},
    "maybe": False,
}


def row_of(message: Any) -> dict[str, Any]:
    """Return the expected column value of a message, read attribute by attribute."""
    names = {0: "RED", 5: "BLUE"}
    return {
        "id": message.id,
        "text": message.text,
        "raw": message.raw,
        "many": list(message.many),
        "point": {"x": message.point.x} if message.HasField("point") else None,
        "points": [{"x": point.x} for point in message.points],
        "color": names.get(message.color, str(message.color)),
        "counts": sorted(message.counts.items()),
        "maybe": message.maybe if message.HasField("maybe") else None,
    }


def sorted_maps(row: dict[str, Any] | None) -> dict[str, Any] | None:
    return row and {**row, "counts": sorted(row["counts"])}


def test_every_kind_of_field_is_parsed() -> None:
    values = [One(**FULL).SerializeToString(), b"", None, One(color=9).SerializeToString()]
    parsed = table_of(values).values_protobuf(descriptors(), "t.One")
    assert str(parsed.values.type) == (
        "struct<id: int64, text: string, raw: binary, many: list<item: uint32>, point: struct<x: double>, "
        "points: list<item: struct<x: double>>, color: string, counts: map<string, int32>, maybe: bool>"
    )
    parsed.values.validate(full=True)
    assert parsed.bad.tolist() == []
    found = parsed.values.to_pylist()
    assert found[0] == {**FULL, "counts": [("a", 1)]}
    assert found[1] == row_of(One())
    assert found[1]["point"] is None
    assert found[1]["maybe"] is None
    assert found[2] is None
    assert found[3]["color"] == "9"


def test_a_repeated_message_with_lists_may_have_no_element() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="main.proto", package="t", syntax="proto3")
    field(file.message_type.add(name="Order"), "lines", 1, F.TYPE_MESSAGE, ".t.Line", label=3)
    field(file.message_type.add(name="Line"), "codes", 1, F.TYPE_INT32, label=3)
    parsed = table_of([b"", None]).values_protobuf(files.SerializeToString(), "t.Order")
    assert parsed.values.to_pylist() == [{"lines": []}, None]


def test_bad_values_keep_their_bytes() -> None:
    """Damaged and truncated messages: protobuf gives the same results, and the bytes of bad values are kept."""
    rng = random.Random(4)
    values: list[bytes | None] = []
    for i in range(6000):
        message = One(id=i, text="t" * (i % 5), many=range(i % 4), points=[{"x": i}] * (i % 3), counts={"k": i})
        data = bytearray(message.SerializeToString())
        if i % 3 == 1:
            data[rng.randrange(len(data))] = rng.randrange(256)
        if i % 7 == 1:
            del data[rng.randrange(len(data)) :]
        values.append(None if i % 50 == 0 else bytes(data))
    parsed = table_of(values).values_protobuf(descriptors(), "t.One")
    bad = set(parsed.bad.tolist())
    for row, (value, found) in enumerate(zip(values, parsed.values.to_pylist(), strict=True)):
        try:
            expected = None if value is None else row_of(One.FromString(value))
            assert row not in bad
        except DecodeError:
            expected = None
            assert row in bad
        assert repr(sorted_maps(found)) == repr(expected)
    assert parsed.bad_values == [values[row] for row in sorted(bad)]
    assert len(bad) > 500


def test_confluent_framing_checks_the_message_path() -> None:
    prefix = b"\0\0\0\0\7"
    one = One(id=3).SerializeToString()
    values = [
        prefix + b"\0" + one,
        prefix + zigzag(1) + zigzag(0) + one,
        prefix + zigzag(1) + zigzag(1) + one,
        prefix + zigzag(100) + one,
        prefix,
        prefix + b"\xff" * 6,
        prefix + b"\0\xff",
        b"\1" + prefix[1:] + b"\0" + one,
        b"\0\0",
        None,
    ]
    parsed = table_of(values).values_protobuf(descriptors(), "t.One", framing="confluent")
    assert [row and row["id"] for row in parsed.values.to_pylist()] == [3, 3] + [None] * 8
    assert parsed.bad.tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert parsed.errors[0] == "expected message path [0], found [1]"
    assert parsed.schema_ids.to_pylist() == [7] * 7 + [None] * 3
    columns = parsed.to_arrow(["offset"])
    assert columns["value_error"].to_pylist() == [None, None, *parsed.errors, None]
    assert columns["value_schema_id"].to_pylist() == parsed.schema_ids.to_pylist()
    inner = message_class("t.One.Inner")(f=1.5).SerializeToString()
    index = One.DESCRIPTOR.nested_types.index(next(n for n in One.DESCRIPTOR.nested_types if n.name == "Inner"))
    framed = [prefix + zigzag(2) + zigzag(0) + zigzag(index) + inner]
    parsed = table_of(framed).values_protobuf(descriptors(), "t.One.Inner", framing="confluent")
    assert parsed.values.to_pylist() == [{"f": 1.5}]
    assert message_path(zigzag(2) + zigzag(300) + zigzag(1) + b"x", 0) == ((300, 1), 4)


def test_strings_of_proto2_that_are_not_utf8_are_bad() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    two = files.file.add(name="two.proto", syntax="proto2").message_type.add(name="Two")
    field(two, "s", 1, F.TYPE_STRING)
    field(two, "r", 2, F.TYPE_STRING, label=3)
    values = [b"\x0a\1a", b"\x0a\1\xff", b"\x12\1\xff", b"\x12\1b", None]
    parsed = table_of(values).values_protobuf(files.SerializeToString())
    assert parsed.bad.tolist() == [1, 2]
    assert parsed.values.to_pylist() == [{"s": "a", "r": []}, None, None, {"s": None, "r": ["b"]}, None]
    parsed.values.validate(full=True)


def test_invalid_descriptors_raise() -> None:
    for data, message, error in [
        (b"\xff", None, "not a descriptor set"),
        (b"", None, "not a descriptor set"),
        (descriptors(), "t.None", "no message 't.None'"),
        (descriptors(), "t.Again", "contains itself"),
        ("/no/such/file.desc", None, "can't read a descriptor set"),
    ]:
        with pytest.raises(ValueError, match=error):
            table_of([b""]).values_protobuf(data, message)
    assert table_of([b"", None]).values_protobuf(descriptors(), "t.Empty").values.to_pylist() == [{}, None]
    assert table_of([]).values_protobuf(descriptors()).values.type == ProtobufParser(descriptors(), "t.One").type


def test_parsers_from_files_can_be_pickled(tmp_path: Path) -> None:
    path = tmp_path / "set.desc"
    path.write_bytes(descriptors())
    table = table_of([One(id=1).SerializeToString()])
    expected = table.values_protobuf(path).values
    assert expected.to_pylist()[0]["id"] == 1
    parser = pickle.loads(pickle.dumps(ProtobufParser(descriptors())))
    assert parser.parse(table.to_arrow(columns=["value"]).column(0).chunk(0)).values.equals(expected.chunk(0))


def test_proto_files_are_compiled(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    (tmp_path / "part.proto").write_text('syntax = "proto3"; package p; message Part { int32 n = 1; }')
    (tmp_path / "whole.proto").write_text(
        'syntax = "proto3"; package p; import "part.proto"; import "google/protobuf/timestamp.proto";'
        "message Whole { Part part = 1; google.protobuf.Timestamp at = 2; }"
    )
    parsed = table_of([b"\x0a\x02\x08\x05"]).values_protobuf(tmp_path / "whole.proto")
    assert parsed.values.to_pylist() == [{"part": {"n": 5}, "at": None}]
    (tmp_path / "bad.proto").write_text("nothing")
    with pytest.raises(ValueError, match="protoc failed"):
        table_of([b""]).values_protobuf(tmp_path / "bad.proto")
