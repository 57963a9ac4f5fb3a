"""Kafka's primitive types: what is read, and that no bytes are believed that aren't there."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbatch.protocol.primitives import Reader, WireError


def test_integers() -> None:
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
def test_uvarint(data: bytes, value: int) -> None:
    assert Reader(data).uvarint() == value
    for size in range(len(data)):
        with pytest.raises(WireError, match=r"byte 0: variable-length integer is cut"):
            Reader(data[:size]).uvarint()


@pytest.mark.parametrize("data", [b"\xff" * 5 + b"\x01", b"\xff\xff\xff\xff\x10", b"\x80" * 100])
def test_uvarint_of_more_than_32_bits(data: bytes) -> None:
    with pytest.raises(WireError, match="more than 32 bits"):
        Reader(data).uvarint()


def test_strings_and_bytes_in_both_encodings() -> None:
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
    ("data", "read", "said"),
    [
        (b"\xff\xff", Reader.string, "byte 0: null where the schema has none"),
        (b"\xff\xfe", Reader.nullable_string, "length is -2"),
        (b"\0\3hi", Reader.string, "byte 2: 3 bytes wanted, 2 remain"),
        (b"\x80\0\0\0", Reader.nullable_bytes, "length is -2147483648"),
        (b"\x7f\xff\xff\xff", Reader.bytes_, "byte 4: 2147483647 bytes wanted, 0 remain"),
        (b"\0", Reader.int16, "byte 0: 2 bytes wanted, 1 remain"),
        (b"", Reader.int8, "byte 0: 1 bytes wanted, 0 remain"),
        (bytes(15), Reader.uuid, "16 bytes wanted, 15 remain"),
    ],
)
def test_what_is_not_there_is_refused(data: bytes, read: Callable[[Reader], object], said: str) -> None:
    with pytest.raises(WireError, match=said):
        read(Reader(data))


def test_arrays() -> None:
    old = Reader(struct.pack(">iiii", 2, 5, -6, -1))
    assert old.array(old.int32, min_size=4) == [5, -6]
    assert old.nullable_array(old.int32, min_size=4) is None
    new = Reader(b"\3\0\0\0\5\xff\xff\xff\xfa\0\1", flexible=True)
    assert new.array(new.int32, min_size=4) == [5, -6]
    assert new.nullable_array(new.int32, min_size=4) is None
    assert new.array(new.int32, min_size=4) == []


@pytest.mark.parametrize("count", [3, 2**31 - 1, -2, -(2**31)])
def test_hostile_array_counts_cost_nothing(count: int) -> None:
    calls = []
    reader = Reader(struct.pack(">iii", count, 1, 2))
    with pytest.raises(WireError, match=rf"array of {count} elements, the 8 bytes that remain can hold 2"):
        reader.array(lambda: calls.append(reader.int32()), min_size=4)
    assert calls == []


def test_tagged_fields() -> None:
    data = b"\3" + b"\0\2\0\5" + b"\7\3abc" + b"\x80\1\0"
    reader = Reader(data, flexible=True)
    assert reader.tags({0: Reader.int16}) == {0: 5}
    assert reader.remaining == 0
    assert Reader(data).tags() == {}
    for size in range(len(data)):
        with pytest.raises(WireError):
            Reader(data[:size], flexible=True).tags({0: Reader.int16})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\1\0\3\0\5\0", "byte 3: tagged field 0 has 1 bytes more than its type"),
        (b"\1\0\1\0", "byte 3: tagged field 0: byte 0: 2 bytes wanted, 1 remain"),
        (b"\xff\xff\xff\xff\x0f\1\0", "is cut"),
    ],
)
def test_malformed_tagged_fields(data: bytes, said: str) -> None:
    with pytest.raises(WireError, match=said):
        Reader(data, flexible=True).tags({0: Reader.int16})


@given(st.binary(max_size=64), st.booleans())
def test_any_bytes_are_read_or_refused(data: bytes, flexible: bool) -> None:
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
