"""Kafka's primitive types: encodings, limits, and truncated or hostile input."""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbatch.protocol.primitives import Reader, WireError, Writer


def test_integers_are_big_endian() -> None:
    data = struct.pack(">bhHiq", -1, -2, 65535, -(2**31), 2**63 - 1) + bytes(range(16))
    reader = Reader(memoryview(data))
    assert [reader.int8(), reader.int16(), reader.uint16(), reader.int32(), reader.int64()] == [
        -1,
        -2,
        65535,
        -(2**31),
        2**63 - 1,
    ]
    assert reader.uuid() == uuid.UUID(bytes=bytes(range(16)))
    assert (reader.position, reader.remaining) == (33, 0)


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"\0", 0), (b"\x7f", 127), (b"\x80\x01", 128), (b"\xac\x02", 300), (b"\xff\xff\xff\xff\x0f", 2**32 - 1)],
)
def test_uvarints_are_unsigned(data: bytes, value: int) -> None:
    """PRI-R9: lengths and tags are unsigned, without the zigzag encoding of records."""
    assert Reader(data).uvarint() == value
    for size in range(len(data)):
        with pytest.raises(WireError, match=r"byte 0: variable-length integer is cut"):
            Reader(data[:size]).uvarint()


@pytest.mark.parametrize("data", [b"\xff" * 5 + b"\x01", b"\xff\xff\xff\xff\x10", b"\x80" * 100])
def test_uvarints_of_more_than_32_bits_raise(data: bytes) -> None:
    with pytest.raises(WireError, match="more than 32 bits"):
        Reader(data).uvarint()


def test_strings_and_bytes_are_read_in_both_encodings() -> None:
    old = Reader(b"\0\2hi" + b"\xff\xff" + b"\0\0" + struct.pack(">i", 2) + b"\0\1" + struct.pack(">i", -1))
    assert [old.string(), old.nullable_string(), old.string(), old.bytes_(), old.nullable_bytes()] == [
        "hi",
        None,
        "",
        b"\0\1",
        None,
    ]
    new = Reader(b"\3hi" + b"\0" + b"\1" + b"\3\0\1" + b"\0", flexible=True)
    assert [new.string(), new.nullable_string(), new.string(), new.bytes_(), new.nullable_bytes()] == [
        "hi",
        None,
        "",
        b"\0\1",
        None,
    ]
    assert (old.remaining, new.remaining) == (0, 0)
    assert Reader(b"\0\1\xff").string() == "\ufffd"


@pytest.mark.parametrize(
    ("data", "read", "message"),
    [
        (b"\xff\xff", Reader.string, "byte 0: null where the schema has none"),
        (b"\xff\xfe", Reader.nullable_string, "length is -2"),
        (b"\0\3hi", Reader.string, "byte 2: needs 3 bytes, 2 remain"),
        (b"\x80\0\0\0", Reader.nullable_bytes, "length is -2147483648"),
        (b"\x7f\xff\xff\xff", Reader.bytes_, "byte 4: needs 2147483647 bytes, 0 remain"),
        (b"\0", Reader.int16, "byte 0: needs 2 bytes, 1 remain"),
        (b"", Reader.int8, "byte 0: needs 1 bytes, 0 remain"),
        (bytes(15), Reader.uuid, "needs 16 bytes, 15 remain"),
    ],
)
def test_missing_bytes_and_invalid_lengths_raise(data: bytes, read: Callable[[Reader], object], message: str) -> None:
    with pytest.raises(WireError, match=message):
        read(Reader(data))


def test_arrays_are_read_in_both_encodings() -> None:
    old = Reader(struct.pack(">iiii", 2, 5, -6, -1))
    assert old.array(old.int32, min_size=4) == [5, -6]
    assert old.nullable_array(old.int32, min_size=4) is None
    new = Reader(b"\3\0\0\0\5\xff\xff\xff\xfa\0\1", flexible=True)
    assert new.array(new.int32, min_size=4) == [5, -6]
    assert new.nullable_array(new.int32, min_size=4) is None
    assert new.array(new.int32, min_size=4) == []


@pytest.mark.parametrize("count", [3, 2**31 - 1, -2, -(2**31)])
def test_array_counts_are_bounded_by_the_remaining_bytes(count: int) -> None:
    calls = []
    reader = Reader(struct.pack(">iii", count, 1, 2))
    with pytest.raises(WireError, match=rf"array of {count} elements, the 8 bytes that remain can hold 2"):
        reader.array(lambda: calls.append(reader.int32()), min_size=4)
    assert calls == []


def test_tagged_fields_are_read_and_unknown_ones_kept() -> None:
    data = b"\3" + b"\0\2\0\5" + b"\7\3abc" + b"\x80\1\0"
    reader = Reader(data, flexible=True)
    assert reader.tags({0: Reader.int16}) == {0: 5}
    assert reader.remaining == 0
    assert Reader(data).tags() == {}
    for size in range(len(data)):
        with pytest.raises(WireError):
            Reader(data[:size], flexible=True).tags({0: Reader.int16})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\1\0\3\0\5\0", "byte 3: tagged field 0 has 1 bytes more than its type"),
        (b"\1\0\1\0", "byte 3: tagged field 0: byte 0: needs 2 bytes, 1 remain"),
        (b"\xff\xff\xff\xff\x0f\1\0", "is cut"),
    ],
)
def test_malformed_tagged_fields_raise(data: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        Reader(data, flexible=True).tags({0: Reader.int16})


@given(st.binary(max_size=64), st.booleans())
def test_any_bytes_are_read_or_raise_a_wire_error(data: bytes, flexible: bool) -> None:
    for read in (
        Reader.nullable_string,
        Reader.nullable_bytes,
        Reader.uvarint,
        Reader.uuid,
        Reader.tags,
        lambda reader: reader.nullable_array(reader.nullable_string, min_size=1),
    ):
        reader = Reader(data, flexible=flexible)
        try:
            read(reader)
        except WireError:
            continue
        assert 0 <= reader.position <= len(data)


# The examples of the specification of primitive types: (method, value, bytes).
EXAMPLES = [
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
    ("varint", 0, "00"),
    ("varint", -1, "01"),
    ("varint", 1, "02"),
    ("varint", 63, "7e"),
    ("varint", 64, "8001"),
    ("varint", -65, "8101"),
    ("varint", 8191, "fe7f"),
    ("varint", 8192, "808001"),
    ("varint", 2**31 - 1, "feffffff0f"),
    ("varint", -(2**31), "ffffffff0f"),
    ("varlong", -(2**63), "ffffffffffffffffff01"),
    ("uvarint", 0, "00"),
    ("uvarint", 127, "7f"),
    ("uvarint", 128, "8001"),
    ("uvarint", 16383, "ff7f"),
    ("uvarint", 16384, "808001"),
    ("uvarint", 2**32 - 1, "ffffffff0f"),
    ("float64", 3.141592653589793, "400921fb54442d18"),
    ("float64", float("inf"), "7ff0000000000000"),
    ("boolean", False, "00"),
    ("boolean", True, "01"),
    ("uuid", uuid.UUID(int=0), "00" * 16),
]
TEXTS = [
    (False, "string", "", "0000"),
    (False, "string", "a", "000161"),
    (False, "string", "hello", "000568656c6c6f"),
    (False, "nullable_string", None, "ffff"),
    (False, "nullable_string", "test", "000474657374"),
    (True, "string", "", "01"),
    (True, "string", "hello", "0668656c6c6f"),
    (True, "nullable_string", None, "00"),
    (True, "nullable_string", "test", "0574657374"),
    (False, "nullable_bytes", None, "ffffffff"),
    (False, "bytes_", b"\0\1", "000000020001"),
    (True, "nullable_bytes", None, "00"),
    (True, "bytes_", b"\0\1", "030001"),
]


@pytest.mark.parametrize(
    ("flexible", "method", "value", "data"), [*((False, *example) for example in EXAMPLES), *TEXTS]
)
def test_examples_of_the_specification_round_trip(flexible: bool, method: str, value: object, data: str) -> None:
    """PRI-R1 to PRI-R4, VAR-R6, VAR-R7: every primitive type."""
    assert getattr(Writer(flexible=flexible), method)(value).getvalue().hex() == data
    reader = Reader(bytes.fromhex(data), flexible=flexible)
    assert getattr(reader, method)() == value
    assert reader.remaining == 0


def test_all_forms_of_a_value_are_read() -> None:
    """PRI-R1, PRI-R6, VAR-R2, VAR-R3: booleans, NaN, null records and varints have several forms."""
    assert Reader(b"\2").boolean() is True
    assert math.isnan(Reader(bytes.fromhex("fff0000000000001")).float64())
    assert Writer().float64(float("nan")).getvalue().hex() == "7ff8000000000000"
    assert Writer().uuid(None).getvalue() == bytes(16)
    assert [Reader(data).records() for data in (b"\xff" * 4, bytes(4), b"\0\0\0\1x")] == [b"", b"", b"x"]
    assert Reader(b"\x80\x80\x80\x80\x00").varint() == 0
    assert Reader(b"\xff\xff\xff\xff\x7f").varint() == -(2**31)
    assert Reader(b"\x82" + b"\x80" * 8 + b"\x02").varlong() == 1


@pytest.mark.parametrize(("method", "size", "bits"), [("varint", 5, 32), ("varlong", 10, 64)])
def test_varints_that_are_too_long_or_truncated_raise(method: str, size: int, bits: int) -> None:
    """VAR-R1, VAR-R5: at most 5 or 10 bytes, within the data."""
    with pytest.raises(WireError, match=f"byte 0: variable-length integer has more than {bits} bits"):
        getattr(Reader(b"\x80" * size + b"\0"), method)()
    with pytest.raises(WireError, match="byte 0: variable-length integer is cut"):
        getattr(Reader(b"\x80" * (size - 1)), method)()


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda writer: writer.int8(128), "128 doesn't fit"),
        (lambda writer: writer.uint32(-1), "-1 doesn't fit"),
        (lambda writer: writer.float64(10**400), "doesn't fit"),
        (lambda writer: writer.float64(10**5000), "."),  # Python does not format a number this long
        (lambda writer: writer.uvarint(2**32), "4294967296 is not an unsigned integer of 32 bits"),
        (lambda writer: writer.varint(2**31), "2147483648 is not a signed integer of 32 bits"),
        (lambda writer: writer.varlong(-(2**63) - 1), "is not a signed integer of 64 bits"),
        (lambda writer: writer.string("\u00e9" * 16384), "a string has 32767 bytes at most, this one has 32768"),
        (lambda writer: writer.string(None), "null where the schema has none"),
        (lambda writer: writer.array(None, writer.int8), "null where the schema has none"),
        (lambda writer: writer.tags({1: b""}), "only a flexible message has tagged fields"),
    ],
)
def test_values_outside_of_their_type_are_not_written(write: Callable[[Writer], object], message: str) -> None:
    """PRI-R5: also strings above the limit of Kafka."""
    with pytest.raises(ValueError, match=message):
        write(Writer())


def test_tagged_fields_are_written_in_order() -> None:
    """PRI-R7: tags ascend."""
    data = Writer(flexible=True).tags({0: b"\0\5", 7: b"abc"}).getvalue()
    assert data == b"\2\0\2\0\5\7\3abc"
    assert Reader(data, flexible=True).tags({0: Reader.int16}) == {0: 5}
    with pytest.raises(ValueError, match=r"tags must ascend, got \[7, 0\]"):
        Writer(flexible=True).tags({7: b"", 0: b""})


INT64S = st.integers(-(2**63), 2**63 - 1)


@given(
    st.booleans(),
    INT64S,
    st.floats(allow_nan=False),
    st.none() | st.text(max_size=50),
    st.none() | st.binary(max_size=300),
    st.none() | st.lists(st.none() | st.text(max_size=5), max_size=200),
)
def test_written_values_are_read_back(
    flexible: bool,
    integer: int,
    real: float,
    text: str | None,
    data: bytes | None,
    array: list[str | None] | None,
) -> None:
    writer = Writer(flexible=flexible)
    writer.int64(integer).varlong(integer).varint(integer >> 32).float64(real)
    writer.nullable_string(text).nullable_bytes(data).nullable_array(array, writer.nullable_string).tags({})
    reader = Reader(writer.getvalue(), flexible=flexible)
    assert (reader.int64(), reader.varlong(), reader.varint(), reader.float64()) == (
        integer,
        integer,
        integer >> 32,
        real,
    )
    assert (reader.nullable_string(), reader.nullable_bytes()) == (text, data)
    assert reader.nullable_array(reader.nullable_string, min_size=1) == array
    assert (reader.tags(), reader.remaining) == ({}, 0)
