"""Every field type in both encodings: the message codec has the examples and the limits of the specification."""

from __future__ import annotations

import math
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbatch.kernels.message_codec import Structure, decode_structure, encode_structures
from kbatch.protocol import ProtocolError
from kbatch.protocol.codec import _structure
from kbatch.protocol.messages import Message, _make_class
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


# The examples of the specification: (type, value, bytes), which are the same in both encodings.
FIXED: list[tuple[str, Any, str]] = [
    ("int8", 0, "00"),
    ("int8", -1, "ff"),
    ("int8", 127, "7f"),
    ("int8", -128, "80"),
    ("int16", 256, "0100"),
    ("int16", -1, "ffff"),
    ("int32", 16909060, "01020304"),
    ("uint16", 65535, "ffff"),
    ("uint32", 4294967295, "ffffffff"),
    ("int64", -(2**63), "8000000000000000"),
    ("float64", 3.141592653589793, "400921fb54442d18"),
    ("float64", float("inf"), "7ff0000000000000"),
    ("bool", False, "00"),
    ("bool", True, "01"),
    ("uuid", uuid.UUID(int=0), "00" * 16),
    ("uuid", uuid.UUID(bytes=bytes(range(16))), "000102030405060708090a0b0c0d0e0f"),
]
# (type, value, bytes in the old encoding, bytes in the flexible encoding)
SIZED: list[tuple[str, Any, str, str]] = [
    ("string", "", "0000", "01"),
    ("string", "a", "000161", "0261"),
    ("string", "hello", "000568656c6c6f", "0668656c6c6f"),
    ("string", None, "ffff", "00"),
    ("bytes", b"\0\1", "000000020001", "030001"),
    ("bytes", None, "ffffffff", "00"),
    ("[]int32", [5, -6], "0000000200000005fffffffa", "0300000005fffffffa"),
    ("[]int32", [], "00000000", "01"),
    ("[]int32", None, "ffffffff", "00"),
    ("[]string", ["a", ""], "0000000200016100" + "00", "03026101"),
]
EXAMPLES = [
    *((flexible, *example) for example in FIXED for flexible in (False, True)),
    *((False, kind, value, data) for kind, value, data, _ in SIZED),
    *((True, kind, value, data) for kind, value, _, data in SIZED),
]


@pytest.mark.parametrize(("flexible", "kind", "value", "data"), EXAMPLES)
def test_the_message_codec_has_the_examples_of_the_specification(
    flexible: bool, kind: str, value: Any, data: str
) -> None:
    """PRI-R1 to PRI-R4: integers, UUIDs, strings and arrays."""
    made = plan(kind, flexible=flexible, nullable=value is None)
    end = "00" if flexible else ""
    assert write(made, value).hex() == data + end
    assert read(made, bytes.fromhex(data + end)) == value
    for size in range(len(data) // 2):
        with pytest.raises(ProtocolError, match=r"byte \d+, field"):
            read(made, bytes.fromhex(data)[:size])


@pytest.mark.parametrize(
    ("size", "length"),
    [(0, "01"), (62, "3f"), (63, "40"), (126, "7f"), (127, "8001"), (16382, "ff7f"), (16383, "808001")],
)
def test_lengths_in_the_flexible_encoding_are_varints_without_zigzag(size: int, length: str) -> None:
    """PRI-R4, PRI-R9, VAR-R7: the length is one more than the number of bytes, and records have the zig-zag varints."""
    made = plan("bytes", flexible=True)
    data = bytes.fromhex(length) + bytes(size) + b"\0"
    assert write(made, bytes(size)) == data
    assert read(made, data) == bytes(size)
    # A form that is longer than necessary is read, up to 5 bytes.
    number = bytearray.fromhex(length)
    number[-1] |= 0x80
    number += b"\x80" * (4 - len(number)) + b"\0"
    assert read(made, bytes(number) + bytes(size) + b"\0") == bytes(size)


@pytest.mark.parametrize("place", ["length", "tag", "count of tags"])
def test_varints_that_are_cut_or_have_more_than_32_bits_are_refused(place: str) -> None:
    """VAR-R7: unsigned ones have the limit of 5 bytes of the others."""
    kind, before = {"length": ("bytes", b""), "tag": ("bool", b"\0\1"), "count of tags": ("bool", b"\0")}[place]
    made = plan(kind, flexible=True)
    for number in (b"", b"\x80", b"\xff" * 4, b"\x80" * 4):
        with pytest.raises(ProtocolError, match=rf"byte {len(before)}.*: variable-length integer is cut"):
            read(made, before + number)
    for number in (b"\xff" * 5 + b"\1", b"\xff\xff\xff\xff\x10", b"\x80" * 100):
        with pytest.raises(
            ProtocolError, match=rf"byte {len(before)}.*: variable-length integer has more than 32 bits"
        ):
            read(made, before + number)


@pytest.mark.parametrize(
    ("kind", "flexible", "data", "text"),
    [
        ("string", False, "fffe", "length is -2, but 0 bytes remain"),
        ("string", False, "0003 6869", "length is 3, but 2 bytes remain"),
        ("string", False, "ffff", "null, but the field is not nullable"),
        ("string", True, "00 00", "null, but the field is not nullable"),
        ("bytes", False, "80000000", "length is -2147483648, but 0 bytes remain"),
        ("bytes", False, "7fffffff", "length is 2147483647, but 0 bytes remain"),
        ("bytes", True, "ffffffff0f", "length is 4294967294, but 0 bytes remain"),
        (
            "[]int32",
            False,
            "00000003 0000000100000002",
            "array of 3 elements, but the remaining 8 bytes hold at most 2",
        ),
        ("[]int32", False, "7fffffff 0000000100000002", "array of 2147483647 elements, but the remaining 8 bytes hold"),
        ("[]int32", False, "fffffffe 0000000100000002", "array of -2 elements, but the remaining 8 bytes hold at most"),
    ],
)
def test_lengths_and_counts_that_the_bytes_do_not_have_are_refused(
    kind: str, flexible: bool, data: str, text: str
) -> None:
    """PRI-R5: nothing is built for a count that the remaining bytes cannot have."""
    with pytest.raises(ProtocolError, match=f"byte 0, field: {text}"):
        read(plan(kind, flexible=flexible), bytes.fromhex(data))


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
        element = plan(kind[2:], flexible=flexible)
        count = bytes([len(values) + 1]) if flexible else len(values).to_bytes(4, "big")
        end = b"\0" if flexible else b""
        assert write(made, values) == count + b"".join(write(element, each).removesuffix(end) for each in values) + end
        assert read(made, write(made, values)) == values
        with pytest.raises(ValueError, match=r"field\[1\]: "):
            write(made, [values[0], None if kind != "[]uuid" else 3])


KINDS = ["bool", "int8", "uint16", "uint32", "int64", "float64", "uuid", "string", "bytes", "[]int16", "[]string"]


@given(st.sampled_from(KINDS), st.booleans(), st.booleans(), st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(kind: str, flexible: bool, nullable: bool, data: bytes) -> None:
    made = plan(kind, flexible=flexible, nullable=nullable)
    try:
        value = read(made, data)
    except ProtocolError:
        return
    assert repr(read(made, write(made, value))) == repr(value)


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
