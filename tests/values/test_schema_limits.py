"""Limits on schemas: their size, depth and number of nodes, for Avro, Protobuf and JSON."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from kbatch.value_options import FormatOptions
from kbatch.values import AvroParser, JsonParser, infer_json
from kbatch.values.avro import read_schemas
from kbatch.values.ddl import parse_ddl
from kbatch.values.protobuf import read_descriptors
from kbatch.values.schema_limits import MAX_NESTING, MAX_NODES, MAX_SCHEMA_BYTES

TOO_MANY = "more than 20000 fields"
TOO_DEEP = "nested deeper than 64 levels"


def record(name: str, *types: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(types)]}


def doubling(levels: int) -> dict[str, Any]:
    """A schema of nested records. Each has the same record in two fields, the second time by reference."""
    schema: Any = "int"
    for level in range(levels):
        schema = record(f"R{level}", schema, f"R{level - 1}" if level else "int")
    return schema


def nested_arrays(levels: int) -> Any:
    schema: Any = "int"
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def allocated_bytes(code: str) -> int:
    """Run code in a process; return by how many bytes its peak memory grew, with the imports done before."""
    program = f"""
import json, resource
import kbatch, pyarrow
from kbatch.values import AvroParser, ProtobufParser
AvroParser("int").parse(pyarrow.array([b"1"]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{code}
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout)


def test_references_to_named_types_are_refused_before_they_are_expanded() -> None:
    """2 KB of schema for 2**40 columns: memory stays below 20 MB, and the error names the place."""
    text = json.dumps(doubling(30))
    assert len(text) < 3100
    grown = allocated_bytes(f"""
try:
    AvroParser({text!r})
    raise SystemExit("accepted")
except ValueError as error:
    assert "{TOO_MANY}" in str(error) and "at f0.f0" in str(error), error
""")
    assert grown < 20 << 20


def test_a_named_type_is_compiled_once_and_has_columns_for_each_reference() -> None:
    parser = AvroParser(doubling(4))
    decoder = parser._decoders[None]  # type: ignore[attr-defined]
    assert decoder.root.children[0] is decoder.root.children[1]
    assert len(decoder.table[0]) == decoder.root.total.nodes == 31
    values = parser.parse(pa.array([bytes(range(0, 32, 2)), bytes(range(1, 33, 2))])).values.to_pylist()

    def leaves(value: Any) -> list[int]:
        return [value] if isinstance(value, int) else [leaf for part in value.values() for leaf in leaves(part)]

    assert [leaves(value) for value in values] == [list(range(16)), [-1 - n for n in range(16)]]


def test_types_of_the_largest_size_are_accepted_and_larger_ones_are_not() -> None:
    """The limit counts the fields and the records themselves."""
    wide = record("R", *["int"] * (MAX_NODES - 1))
    assert AvroParser(wide).type.num_fields == MAX_NODES - 1
    with pytest.raises(ValueError, match=f"at the top level: .*{TOO_MANY}"):
        AvroParser(record("R", *["int"] * MAX_NODES))
    with pytest.raises(ValueError, match=f"at outer: .*{TOO_MANY}"):
        AvroParser({"type": "record", "name": "O", "fields": [{"name": "outer", "type": ["int", wide]}]})
    kind = pa.struct([(f"f{i}", pa.int32()) for i in range(MAX_NODES - 1)])
    JsonParser(kind)
    with pytest.raises(ValueError, match=TOO_MANY):
        JsonParser(pa.struct([*kind, pa.field("more", pa.int32())]))
    text = ", ".join(f"f{i} int" for i in range(MAX_NODES))
    assert parse_ddl(text).num_fields == MAX_NODES
    with pytest.raises(ValueError, match=TOO_MANY):
        parse_ddl(f"{text}, more int")


@pytest.mark.parametrize("levels", [MAX_NESTING, MAX_NESTING + 20, 2000, 200_000])
def test_deep_schemas_are_refused(levels: int) -> None:
    """Without a RecursionError, as text and as parsed JSON."""
    text = '{"type": "array", "items": ' * levels + '"int"' + "}" * levels
    with pytest.raises(ValueError, match="nested deeper than 64"):
        AvroParser(text)
    wrapped = '{"type": ' * levels + '"int"' + "}" * levels
    if levels > MAX_NESTING:
        with pytest.raises(ValueError, match="nested deeper than 64"):
            AvroParser(wrapped)
    if levels < 200_000:
        with pytest.raises(ValueError, match=TOO_DEEP):
            AvroParser(nested_arrays(levels))
        with pytest.raises(ValueError, match="not an Avro schema"):
            AvroParser(record("R", {"type": 5, "doc": nested_arrays(levels)}))
    with pytest.raises(ValueError, match=TOO_DEEP):
        parse_ddl("array<" * levels + "int" + ">" * levels)
    with pytest.raises(ValueError, match=TOO_DEEP):
        AvroParser(chain(min(levels, 2000)))


def chain(levels: int) -> dict[str, Any]:
    """A record with records as fields. Each of them refers to the one before."""
    records: list[Any] = [record("R0", "int")]
    records += [record(f"R{n}", f"R{n - 1}") for n in range(1, levels)]
    return record("All", *records)


def test_types_of_the_largest_depth_are_accepted() -> None:
    parser = AvroParser(nested_arrays(MAX_NESTING - 1))
    datum = b"\2" * (MAX_NESTING - 1) + b"\6" + b"\0" * (MAX_NESTING - 1)
    (value,) = parser.parse(pa.array([datum])).values.to_pylist()
    for _ in range(MAX_NESTING - 1):
        (value,) = value
    assert value == 3
    parse_ddl("array<" * (MAX_NESTING - 1) + "int" + ">" * (MAX_NESTING - 1))
    kind = pa.int64()
    for _ in range(MAX_NESTING - 1):
        kind = pa.list_(kind)
    assert JsonParser(kind).parse(pa.array([b"[" * 63 + b"1" + b"]" * 63])).bad.tolist() == []
    with pytest.raises(ValueError, match=TOO_DEEP):
        JsonParser(pa.list_(kind))


def test_inferred_types_have_text_for_levels_that_are_too_deep() -> None:
    text = b'{"a": 1, "b": ' + b"[" * 100 + b"]" * 100 + b', "c": ' + b'{"d": ' * 100 + b"1" + b"}" * 101
    parsed = JsonParser(infer_json([text]), "keep").parse(pa.array([text]))
    assert parsed.bad.tolist() == []
    found = parsed.values[0].as_py()
    assert found["a"] == 1
    inner = found["b"]
    for _ in range(MAX_NESTING - 2):
        (inner,) = inner
    assert inner == "[" * (100 - MAX_NESTING + 2) + "]" * (100 - MAX_NESTING + 2)


def test_the_sizes_of_schema_texts_and_files_are_limited(tmp_path: Path) -> None:
    size = MAX_SCHEMA_BYTES + 1
    with pytest.raises(ValueError, match=f"has {size} bytes; the limit is {MAX_SCHEMA_BYTES}"):
        AvroParser('"int"'.ljust(size))
    with pytest.raises(ValueError, match=f"has {size} bytes"):
        parse_ddl("int".ljust(size))
    path = tmp_path / "large.avsc"
    with path.open("wb") as file:
        file.truncate(10 * size)
    for options in (FormatOptions("avro", schema_file=str(path)), FormatOptions("json", schema_file=str(path))):
        with pytest.raises(ValueError, match=f"large.avsc: .*has {10 * size} bytes"):
            options.parser(list)


def test_schema_files_are_regular_files(tmp_path: Path) -> None:
    """A FIFO would make the caller wait for its other end."""
    path = tmp_path / "7.avsc"
    os.mkfifo(path)
    for source in (path, tmp_path):
        with pytest.raises(ValueError, match=r"7\.avsc: can't read an Avro schema: it is a FIFO; only regular files"):
            read_schemas(source)
    with pytest.raises(ValueError, match=r"7\.avsc: can't read the schema: it is a FIFO"):
        FormatOptions("json", schema_file=str(path)).parser(list)
    pytest.importorskip("google.protobuf")
    for name in ("set.pb", "message.proto"):
        os.mkfifo(tmp_path / name)
        if name.endswith(".pb") or importlib.util.find_spec("grpc_tools"):
            with pytest.raises(ValueError, match=rf"{name}: can't read a .*: it is a FIFO"):
                read_descriptors(tmp_path / name)


def test_null_values_of_a_fixed_take_no_memory() -> None:
    """A bad datum of one byte is a null of 16 MB otherwise."""
    kind = {"type": "fixed", "name": "F", "size": (1 << 24) - 1}
    parsed = AvroParser(record("R", kind, "int")).parse(pa.array([b"1"] * 1000))
    assert len(parsed.bad) == 1000
    assert parsed.values.nbytes < 100_000
    small = AvroParser(["null", {"type": "fixed", "name": "F", "size": 2}])
    data = [b"\2ab", b"\0", b"\2c", b"\2de"]
    parsed = small.parse(pa.array(data))
    assert (parsed.values.to_pylist(), parsed.bad.tolist()) == ([b"ab", None, None, b"de"], [2])
    parsed.values.validate(full=True)


def test_errors_of_a_schema_name_the_place() -> None:
    for schema, message in [
        (record("R", record("S", "no")), r"at f0\.f0: unknown Avro type 'no'"),
        (record("R", {"type": "map", "values": ["null", {"type": "array"}]}), r"at f0\{\}: .* without 'items'"),
        (record("R", ["int", {"type": "array", "items": ["int", ["int"]]}]), r"at f0\.member1\[\]: a union within"),
        (record("R", "int", record("S", "R")), r"at f1\.f0: Avro type 'R' contains itself"),
        ({"type": "record", "name": "R", "fields": [{"name": "\x1b[2J", "type": "no"}]}, r"at \\x1b\[2J: unknown"),
    ]:
        with pytest.raises(ValueError, match=message):
            AvroParser(schema)


class TestProtobuf:
    """Messages of a descriptor set."""

    @staticmethod
    def descriptors(levels: int, references: int) -> bytes:
        """Return a chain of messages. Each has `references` fields of the type of the next one."""
        pytest.importorskip("google.protobuf")
        from google.protobuf import descriptor_pb2

        files = descriptor_pb2.FileDescriptorSet()
        file = files.file.add(name="t.proto", package="t", syntax="proto3")
        kind = descriptor_pb2.FieldDescriptorProto
        for level in range(levels):
            message = file.message_type.add(name=f"M{level}")
            for n in range(references):
                field = message.field.add(name=f"f{n}", number=n + 1, label=kind.LABEL_OPTIONAL, type=kind.TYPE_INT32)
                if level + 1 < levels:
                    field.type, field.type_name = kind.TYPE_MESSAGE, f".t.M{level + 1}"
        return files.SerializeToString()

    def test_messages_are_refused_before_they_are_expanded(self) -> None:
        from kbatch.values import ProtobufParser

        data = self.descriptors(30, 2)
        assert len(data) < 3000
        grown = allocated_bytes(f"""
try:
    ProtobufParser({data!r})
    raise SystemExit("accepted")
except ValueError as error:
    assert "{TOO_MANY}" in str(error) and "at f0.f0" in str(error), error
""")
        assert grown < 20 << 20
        assert (
            ProtobufParser(self.descriptors(3, 2)).type.field("f1").type.field("f1").type.field("f1").type == pa.int32()
        )

    def test_deep_and_wide_messages_are_refused(self) -> None:
        from kbatch.values import ProtobufParser

        ProtobufParser(self.descriptors(MAX_NESTING - 1, 1))
        for levels in (MAX_NESTING, 3000):
            with pytest.raises(ValueError, match=f"the descriptor set, at .*: types are {TOO_DEEP}"):
                ProtobufParser(self.descriptors(levels, 1))
        with pytest.raises(ValueError, match=f"at the top level: .*{TOO_MANY}"):
            ProtobufParser(self.descriptors(2, 150))

    def test_the_size_of_descriptors_is_limited(self) -> None:
        from kbatch.values import ProtobufParser

        with pytest.raises(ValueError, match="the descriptor set has"):
            ProtobufParser(bytes(MAX_SCHEMA_BYTES + 1))
