"""The time and the memory that hostile schemas take."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from kbatch.escaping import printable
from kbatch.values import AvroParser, JsonParser, ProtobufParser, infer_json
from kbatch.values import json as values_json
from kbatch.values.ddl import parse_ddl
from kbatch.values.schema_limits import MAX_DEFAULT_VALUES, MAX_FULL_NAMES

EMPTY = pa.array([b""], pa.binary())
HOSTILE = "\x1b[31m\x9b1m\u202e\n"


def avro_record(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": list(fields), **more}


def avro_enum(name: str, *symbols: str) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols)}


def default_of(kind: Any, default: Any) -> AvroParser:
    """A parser whose reader takes a field from its default."""
    return AvroParser(avro_record(), reader_schema=avro_record({"name": "a", "type": kind, "default": default}))


def peak_of(step: Callable[[], Any]) -> int:
    """The peak of Python's memory during a step, which may refuse the schema."""
    tracemalloc.start()
    try:
        step()
    except ValueError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def descriptors(package: str, values: int, fields: int, nested: int = 0) -> bytes:
    """A file with an enum, and a message whose fields all have this enum, below `nested` other messages."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2

    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="f.proto", package=package, syntax="proto3")
    enum, message = file.enum_type.add(name="E"), file.message_type.add(name="M")
    for _ in range(nested):
        message = message.nested_type.add(name="N" * 1000)
    for i in range(values):
        enum.value.add(name=f"v{i}", number=i)
    for i in range(fields):
        message.field.add(name=f"f{i}", number=i + 1, type=14, label=1, type_name=f".{package}.E")
    return files.SerializeToString()


class TestFullNames:
    """The characters of the full names of a schema."""

    REFUSED = f"the full names have more than {MAX_FULL_NAMES} characters in total"

    def test_names_in_a_long_avro_namespace_are_refused_before_they_are_made(self) -> None:
        size = MAX_FULL_NAMES // 100
        definitions = [{"name": f"f{i}", "type": avro_enum(f"e{i}", "a")} for i in range(100)]
        references = [{"name": f"f{i}", "type": "e0"} for i in range(1, 1000)]
        for fields in (definitions, [definitions[0], *references]):
            with pytest.raises(ValueError, match=rf"Avro schema, at f\d+: {self.REFUSED}"):
                AvroParser(avro_record(*fields, namespace="n" * size))
        # The namespace itself is one name; the types in it share the characters.
        AvroParser(avro_record(*definitions[:90], namespace="n" * size))

    def test_names_in_a_long_protobuf_package_are_refused_before_they_are_made(self) -> None:
        data = descriptors("p" * (MAX_FULL_NAMES // 100), 200, 1)
        code = f"""
import resource
from kbatch.values import AvroParser, ProtobufParser
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
AvroParser("int")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
data = open(0, "rb").read()
try:
    ProtobufParser(data, "M")
except ValueError as error:
    assert {self.REFUSED!r} in str(error), error
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
        done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
        assert int(done.stdout) < 20 << 10

    def test_names_of_nested_protobuf_messages_count_with_the_messages_around_them(self) -> None:
        with pytest.raises(ValueError, match=self.REFUSED):
            ProtobufParser(descriptors("p", 1, MAX_FULL_NAMES // 40_000, nested=40))
        ProtobufParser(descriptors("p", 1, 100, nested=40), "p.M")

    def test_protobuf_packages_have_limited_levels(self) -> None:
        """The search for a relative reference tries each of them."""
        ProtobufParser(descriptors(".".join("p" * 60), 1, 1))
        with pytest.raises(ValueError, match=r"the descriptor set, at p\.p.*nested deeper than 64 levels"):
            ProtobufParser(descriptors(".".join("p" * 100), 1, 1))


def test_paths_below_a_long_name_take_memory_in_proportion_to_the_schema() -> None:
    count = 2000
    names = "n" * 100 * count
    inner = ",".join(f"f{i}: int" for i in range(count))
    kind = parse_ddl(f"`{names}` struct<{inner}>")
    assert peak_of(lambda: JsonParser(kind, "keep").parse(pa.array([b"{}"]))) < 8 << 20
    below = avro_record(*({"name": f"f{i}", "type": "int"} for i in range(count)))
    schema = avro_record({"name": names, "type": {**below, "name": "inner"}}, name="outer")
    assert peak_of(lambda: AvroParser(schema)) < 8 << 20


def test_long_names_are_shortened_in_deviations_and_errors() -> None:
    parsed = JsonParser(pa.struct({"n" * 300: pa.struct({"a": pa.int64()})}), "keep").parse(
        pa.array([b'{"%s": {"a": "x"}}' % (b"n" * 300)])
    )
    path = f"{'n' * 100}....a"
    assert [each.field for each in parsed.deviations] == [path]
    assert parsed.errors == [f"{path}: expected int64, found a string"]
    with pytest.raises(ValueError, match=f"at {'n' * 200}\\.\\.\\.: unknown"):
        AvroParser(avro_record({"name": "n" * 10_000, "type": "no"}))


class TestDefaults:
    """Defaults of a reader's schema."""

    REFUSED = f"field a: the defaults of the schema have more than {MAX_DEFAULT_VALUES} values"

    @pytest.mark.parametrize(
        ("kind", "default"),
        [
            ([*(avro_record(name=f"q{i}") for i in range(1000)), "string"], "x"),
            (avro_record({"name": "b", "type": "string", "default": "x" * 64_000}, name="q"), {}),
            (avro_record(*({"name": f"b{i}", "type": "int", "default": 0} for i in range(1000)), name="q"), {}),
            ([*({"type": "fixed", "name": f"q{i}", "size": 1} for i in range(1000)), "string"], "x" * 10_000),
        ],
    )
    def test_items_count_with_all_fields_and_branches_that_they_are_compared_with(
        self, kind: Any, default: Any
    ) -> None:
        began = time.process_time()
        for each in ({"type": "array", "items": kind}, {"type": "map", "values": kind}):
            items = [default] * 2000
            values = items if each["type"] == "array" else {f"k{i}": item for i, item in enumerate(items)}
            with pytest.raises(ValueError, match=self.REFUSED):
                default_of(each, values)
        assert time.process_time() - began < 5

    def test_the_largest_defaults_are_accepted(self) -> None:
        count = MAX_DEFAULT_VALUES // 2 - 1
        parsed = default_of({"type": "array", "items": "int"}, list(range(count))).parse(EMPTY)
        assert parsed.values.to_pylist() == [{"a": list(range(count))}]
        with pytest.raises(ValueError, match=self.REFUSED):
            default_of({"type": "array", "items": "int"}, list(range(count + 1)))

    def test_symbols_of_an_enum_are_found_in_linear_time(self) -> None:
        count = 80_000
        enum = avro_enum("e", *(f"s{i}" for i in range(count)))
        began = time.process_time()
        parsed = default_of({"type": "array", "items": enum}, [f"s{count - 1}"] * count).parse(EMPTY)
        assert time.process_time() - began < 5
        assert parsed.values[0]["a"][count - 1].as_py() == f"s{count - 1}"

    def test_branches_are_compared_with_a_long_text_without_copies_of_it(self) -> None:
        branches = [avro_record(name=f"q{i}") for i in range(5000)]
        began = time.process_time()
        with pytest.raises(ValueError, match=r"'x{64}' is not a value of a branch") as caught:
            default_of(branches, "x" * 4_000_000)
        assert time.process_time() - began < 2
        assert len(str(caught.value)) < 300

    def test_defaults_are_converted_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from kbatch.values import avro_resolution

        parser = default_of({"type": "array", "items": "bytes"}, ["x"] * 100)
        monkeypatch.delattr(avro_resolution._DefaultValues, "of")
        assert parser.parse(pa.array([b"", b""])).values.to_pylist() == [{"a": [b"x"] * 100}] * 2


class TestEnumsOfManyFields:
    """The names of an enum are read once, not for each field of its type."""

    def test_protobuf_enums_take_linear_time(self) -> None:
        data = descriptors("p", 80_000, 800)
        began = time.process_time()
        parsed = ProtobufParser(data, "p.M").parse(EMPTY)
        assert time.process_time() - began < 3
        assert set(parsed.values[0].as_py().values()) == {"v0"}

    def test_avro_enums_take_linear_time(self) -> None:
        enum = avro_enum("e", *(f"s{i}" for i in range(20_000)))
        fields = [{"name": f"f{i}", "type": "e" if i else enum} for i in range(4000)]
        # The reader has one more symbol, so that every field is resolved.
        reader = avro_record({**fields[0], "type": avro_enum("e", *enum["symbols"], "more")}, *fields[1:])
        began = time.process_time()
        parser = AvroParser(avro_record(*fields), reader_schema=reader)
        parsed = parser.parse(pa.array([bytes([2]) * len(fields)]))
        assert time.process_time() - began < 5
        assert set(parsed.values[0].as_py().values()) == {"s1"}


class TestInferredPaths:
    """The number of different fields that `infer_json` considers."""

    def test_fields_after_the_first_ones_take_no_memory(self) -> None:
        seen = values_json._Seen()
        seen.add({str(i): {"a": [None]} for i in range(values_json._MAX_PATHS)}, values_json._Paths())
        assert sum(1 for _ in seen.all_times()) == values_json._MAX_PATHS
        assert len(seen.fields) == -(-values_json._MAX_PATHS // 3)

    def test_the_most_frequent_fields_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(values_json, "_MAX_PATHS", 4)
        texts = [b'{"a": 1, "b": {"c": 2, "d": 3, "e": 4}, "f": 5}', b'{"a": 1.5, "b": {"e": 4}, "f": 5, "g": []}']
        assert infer_json(texts) == pa.struct({"a": pa.float64(), "b": pa.struct({"c": pa.int64(), "d": pa.int64()})})

    def test_arrays_without_a_path_for_their_items_are_lists_of_text(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(values_json, "_MAX_PATHS", 1)
        text = b'{"a": [1, [2]]}'
        kind = infer_json([text])
        assert kind == pa.struct({"a": pa.list_(pa.string())})
        assert JsonParser(kind, "keep").parse(pa.array([text])).values.to_pylist() == [{"a": ["1", "[2]"]}]


def test_names_are_escaped_in_errors_of_schemas() -> None:
    name = f"a{HOSTILE}"
    field = {"name": name, "type": "int"}
    twice = [{"name": "a", "type": "int"}] * 2
    text = avro_record({"name": name, "type": "string"})
    steps: list[Callable[[], Any]] = [
        lambda: AvroParser(avro_record(*twice, name=f"r{HOSTILE}")),
        lambda: AvroParser(avro_record({"name": name, "type": f"z{HOSTILE}"})),
        lambda: AvroParser(avro_record(), reader_schema=avro_record(field)),
        lambda: AvroParser(text, reader_schema=avro_record(field)),
        lambda: AvroParser(avro_record({"name": "a", "type": text}), reader_schema=avro_record(twice[0])),
        lambda: default_of(["int", {**avro_record(field), "name": "q"}], {}),
        lambda: default_of("int", HOSTILE),
        lambda: JsonParser(pa.struct({name: pa.map_(pa.string(), pa.int64())})),
        lambda: parse_ddl(f"{name} int"),
        lambda: parse_ddl(f"a int, {HOSTILE}"),
    ]
    for step in steps:
        with pytest.raises((ValueError, TypeError)) as caught:
            step()
        assert str(caught.value) == printable(str(caught.value))


def test_names_are_escaped_in_errors_of_values() -> None:
    name = f"a{HOSTILE}"
    text = pa.array([b'{"a\\u001b[31m\\u009b1m\\u202e\\n": "x"}'])
    for unknown in ("ignore", "bad", "keep"):
        parsed = JsonParser(pa.struct({name: pa.int64()}), unknown).parse(text)  # type: ignore[arg-type]
        assert re.search("expected int64, found a string", parsed.errors[0])
        assert parsed.errors[0] == printable(parsed.errors[0])


def test_names_that_are_not_text_are_refused() -> None:
    for schema in (avro_record({"name": "\ud800", "type": "int"}), avro_enum("e", "\ud800")):
        with pytest.raises(ValueError, match="not an Avro schema: a name that is not text"):
            AvroParser(schema)
        with pytest.raises(ValueError, match="reader_schema: not an Avro schema: a name that is not text"):
            AvroParser("int", reader_schema=schema)


def test_values_of_an_enum_without_symbols_are_bad() -> None:
    parsed = AvroParser(avro_enum("e")).parse(pa.array([b"\0", None]))
    assert (parsed.values.to_pylist(), parsed.bad.tolist()) == ([None, None], [0])
