"""Every field type in both encodings: the message codec compared with the primitive types and the specification."""

from __future__ import annotations

import math
import uuid
from typing import Any

import pytest
from test_protocol_primitives import EXAMPLES, TEXTS

from kbatch.kernels.message_codec import Structure, decode_structure, encode_structures
from kbatch.protocol import ProtocolError
from kbatch.protocol.codec import _structure
from kbatch.protocol.messages import Message, _make_class
from kbatch.protocol.primitives import Reader, WireError, Writer
from kbatch.protocol.schema import FieldSchema, MessageSchema

ZEROS = {"bool": False, "float64": 0.0, "uuid": uuid.UUID(int=0), "string": "", "bytes": b"", "records": None}


def plan(kind: str, *, flexible: bool, nullable: bool = False, tag: int | None = None) -> Structure:
    """Return the plan of a message with one field."""
    default: Any = () if kind.startswith("[]") else ZEROS.get(kind, 0)
    versions = range(1 if flexible else 0, 2)
    field = FieldSchema("field", kind, range(2), range(2 if nullable else 0), tag, default, False, "", ())
    schema = MessageSchema("Test", None, range(2), range(1, 2), (field,))
    cls = _make_class("Test", schema, "Test", {})
    return _structure(cls, cls, (field,), versions.start, flexible, 0)


def read(made: Structure, data: bytes) -> Any:
    return decode_structure(made, memoryview(data), 0, True, 1 << 30)[0].field


def write(made: Structure, value: Any) -> bytes:
    message: Message = made.cls(field=value)
    return b"".join(encode_structures([(made, message)], False))


TYPES = {"boolean": "bool", "bytes_": "bytes", "nullable_bytes": "bytes", "nullable_string": "string"}
CASES = [
    (flexible, method, value, data)
    for flexible, method, value, data in [*((False, *example) for example in EXAMPLES), *TEXTS]
    # Varints are lengths and tags only (PRI-R9).
    if "var" not in method
]


@pytest.mark.parametrize(("flexible", "method", "value", "data"), CASES)
def test_the_message_codec_has_the_examples_of_the_specification(
    flexible: bool, method: str, value: Any, data: str
) -> None:
    """PRI-R1 to PRI-R4: integers, UUIDs, strings and arrays."""
    made = plan(TYPES.get(method, method), flexible=flexible, nullable="nullable" in method)
    end = "00" if flexible else ""
    assert write(made, value).hex() == data + end
    assert read(made, bytes.fromhex(data + end)) == value


@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("kind", ["int8", "int16", "uint16", "int32", "uint32", "int64"])
def test_integers_are_checked_against_their_range(kind: str, flexible: bool) -> None:
    made = plan(kind, flexible=flexible)
    bits = int(kind.removeprefix("u").removeprefix("int"))
    low = 0 if kind.startswith("u") else -(1 << bits - 1)
    high = low + (1 << bits) - 1
    for value in (low, high, 0, 1):
        data = write(made, value)
        assert len(data) == bits // 8 + flexible
        assert read(made, data) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ValueError, match=r"^field: "):
            write(made, value)


def test_booleans_and_doubles_have_many_forms() -> None:
    """PRI-R1: any non-zero byte is true, and NaN has many bit patterns."""
    assert read(plan("bool", flexible=False), b"\2") is True
    made = plan("float64", flexible=False)
    assert math.isnan(read(made, bytes.fromhex("fff0000000000001")))
    assert write(made, float("nan")).hex() == "7ff8000000000000"
    assert read(made, write(made, float("-inf"))) == float("-inf")


@pytest.mark.parametrize("flexible", [False, True])
def test_null_and_empty_are_distinct(flexible: bool) -> None:
    """PRI-R3, PRI-R4, PRI-R6: strings, bytes and arrays."""
    empty: dict[str, Any] = {"string": "", "bytes": b"", "records": b"", "[]int32": [], "[]string": []}
    for kind, value in empty.items():
        made = plan(kind, flexible=flexible, nullable=True)
        assert read(made, write(made, None)) is None
        assert read(made, write(made, value)) == value
        made = plan(kind, flexible=flexible)
        with pytest.raises(ValueError, match="field: None, but the field is not nullable"):
            write(made, None)
        with pytest.raises(ProtocolError, match="byte 0, field: null, but the field is not nullable"):
            read(made, write(plan(kind, flexible=flexible, nullable=True), None))


@pytest.mark.parametrize("flexible", [False, True])
def test_arrays_of_every_type_round_trip(flexible: bool) -> None:
    arrays: dict[str, list[Any]] = {
        "[]bool": [True, False],
        "[]int8": [1, -1],
        "[]int64": [2**62],
        "[]float64": [1.5],
        "[]uuid": [uuid.UUID(int=5)],
        "[]string": ["a", ""],
        "[]bytes": [b"a", b""],
    }
    for kind, values in arrays.items():
        made = plan(kind, flexible=flexible)
        writer = Writer(flexible=flexible)
        method = {"bool": "boolean", "bytes": "bytes_"}.get(kind[2:], kind[2:])
        writer.array(values, getattr(writer, method)).tags({})
        assert write(made, values) == writer.getvalue()
        assert read(made, write(made, values)) == values
        with pytest.raises(ValueError, match=r"field\[1\]: "):
            write(made, [values[0], None if kind != "[]uuid" else 3])


def test_the_message_codec_reads_any_bytes_like_the_primitive_types() -> None:
    rejected = 0
    for flexible in (False, True):
        for kind, method in (("string", "string"), ("bytes", "bytes_"), ("int32", "int32"), ("bool", "boolean")):
            made = plan(kind, flexible=flexible)
            for number in range(4000):
                data = (number * 2654435761 % 2**32).to_bytes(4, "big")[: number % 5] + b"\0\1a\0"[: number % 4]
                reader = Reader(data, flexible=flexible)
                try:
                    expected = getattr(reader, method)()
                    reader.tags()
                except WireError:
                    rejected += 1
                    with pytest.raises(ProtocolError):
                        read(made, data)
                    continue
                if reader.remaining:
                    with pytest.raises(ProtocolError, match="trailing"):
                        read(made, data)
                elif not flexible or not data.endswith(b"a\0"):
                    assert read(made, data) == expected
    assert rejected > 1000


def test_tagged_fields_of_every_type_round_trip() -> None:
    """PRI-R7: a tagged field with its default value is not written."""
    values: dict[str, Any] = {"int32": 5, "string": "x" * 200, "bytes": b"", "uuid": uuid.UUID(int=1), "[]int8": [1]}
    for kind, value in values.items():
        made = plan(kind, flexible=True, tag=3)
        data = write(made, value)
        assert data[:2] == (b"\1\3" if value else b"\0")
        assert read(made, data) == value
        # A missing field has its default, which takes no bytes.
        assert read(made, b"\0") == made.cls().field
        assert write(made, made.cls().field) == b"\0"


def test_a_tagged_field_must_use_all_of_its_size() -> None:
    made = plan("int8", flexible=True, tag=3)
    with pytest.raises(ProtocolError, match="byte 4, field: 1 trailing bytes in the tagged field"):
        read(made, b"\1\3\2\0\0")
    with pytest.raises(ProtocolError, match="byte 3, field: needs 1 bytes, 0 remain"):
        read(made, b"\1\3\0\0")


def test_tags_out_of_order_are_read_and_written_in_order() -> None:
    made = plan("int8", flexible=True, tag=3)
    message = decode_structure(made, memoryview(bytes.fromhex("03 090161 030105 0100")), 0, True, 1 << 30)[0]
    assert (message.field, message.unknown_tags) == (5, {9: b"a", 1: b""})
    assert b"".join(encode_structures([(made, message)], False)).hex() == "030100030105090161"
