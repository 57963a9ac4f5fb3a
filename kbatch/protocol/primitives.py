"""Kafka's primitive types: readers that check every length against the remaining bytes, and writers.

Messages that Kafka generates from schemas have two encodings: the old one, and since KIP-482 the "flexible" one, in
which lengths are varints, moved by one so that 0 is null, and every structure ends with tagged fields. A `Reader` and a
`Writer` know which of them it is, so that a decoder or an encoder is the list of the schema's fields.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Self, TypeVar

from typing_extensions import Buffer

from kbatch.arguments import check_types

__all__ = ["Reader", "WireError", "Writer"]

T = TypeVar("T")

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_UINT16 = struct.Struct(">H")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT64 = struct.Struct(">q")
_FLOAT64 = struct.Struct(">d")
_NAN = bytes.fromhex("7ff8000000000000")
# A varint of 32 bits takes five bytes at most, one of 64 bits ten (VAR-R1).
_LAST_SHIFT = 28
_LAST_LONG_SHIFT = 63
_MAX_STRING = (1 << 15) - 1
_MAX_LENGTH = (1 << 31) - 1


class WireError(ValueError):
    """Bytes that do not match the schema. A caller that knows their source raises a `KbatchError` instead."""


class Reader:
    """A cursor over the fields of one message.

    Parameters
    ----------
    data : buffer
    flexible : bool
        Which encoding strings, bytes, arrays and tagged fields have.

    Notes
    -----
    Every method raises `WireError`, with the byte counted from the beginning of `data`, where the bytes don't hold what
    is asked for. Lengths below -1 are refused. As in Java, bytes of a string that are not UTF-8 become U+FFFD.

    References
    ----------
    Rules such as PRI-R1 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> reader = Reader(bytes([0, 2, 104, 105, 255, 255]))
    >>> reader.string(), reader.nullable_string(), reader.remaining
    ('hi', None, 0)
    """

    __slots__ = ("_data", "_end", "_position", "flexible")

    def __init__(self, data: Buffer, *, flexible: bool = False) -> None:
        check_types(Reader.__init__, locals())
        self._data = bytes(data)
        self._position = 0
        self._end = len(self._data)
        self.flexible = flexible

    @property
    def position(self) -> int:
        """Bytes that were read."""
        return self._position

    @property
    def remaining(self) -> int:
        """Bytes that were not."""
        return self._end - self._position

    def take(self, size: int) -> bytes:
        """Read `size` bytes."""
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"size must be a number of bytes, got {size!r}")
        if size > self._end - self._position:
            raise WireError(f"byte {self._position}: needs {size} bytes, {self.remaining} remain")
        start = self._position
        self._position += size
        return self._data[start : self._position]

    def _fixed(self, field: struct.Struct) -> int:
        if field.size > self._end - self._position:
            raise WireError(f"byte {self._position}: needs {field.size} bytes, {self.remaining} remain")
        value: int = field.unpack_from(self._data, self._position)[0]
        self._position += field.size
        return value

    def int8(self) -> int:
        """Read a signed byte."""
        value = self.take(1)[0]
        return value - 256 if value > 127 else value

    def int16(self) -> int:
        """Read a signed big-endian integer of 2 bytes."""
        return self._fixed(_INT16)

    def uint16(self) -> int:
        """Read an unsigned big-endian integer of 2 bytes."""
        return self._fixed(_UINT16)

    def int32(self) -> int:
        """Read a signed big-endian integer of 4 bytes."""
        return self._fixed(_INT32)

    def int64(self) -> int:
        """Read a signed big-endian integer of 8 bytes."""
        return self._fixed(_INT64)

    def uint32(self) -> int:
        """Read an unsigned big-endian integer of 4 bytes."""
        return self._fixed(_UINT32)

    def float64(self) -> float:
        """Read an IEEE 754 double, big-endian."""
        number: float = _FLOAT64.unpack(self.take(_FLOAT64.size))[0]
        return number

    def boolean(self) -> bool:
        """Read a byte; any but 0 is true (PRI-R1).

        References
        ----------
        Rules such as PRI-R1 are listed in ``docs/format-rules.md``.
        """
        return self.take(1) != b"\0"

    def uuid(self) -> uuid.UUID:
        """Read 16 bytes as a UUID; zeros mean null (PRI-R2).

        References
        ----------
        Rules such as PRI-R2 are listed in ``docs/format-rules.md``.
        """
        return uuid.UUID(bytes=self.take(16))

    def uvarint(self) -> int:
        """Read an unsigned varint of 32 bits."""
        start = self._position
        value = self._raw_varint(_LAST_SHIFT)
        if value >= 1 << 32:
            raise WireError(f"byte {start}: variable-length integer has more than 32 bits")
        return value

    def varint(self) -> int:
        """Read a zig-zag varint of 32 bits; bits beyond these are dropped, as Kafka does (VAR-R2).

        References
        ----------
        Rules such as VAR-R2 are listed in ``docs/format-rules.md``.
        """
        return _unzigzag(self._raw_varint(_LAST_SHIFT) & 0xFFFFFFFF)

    def varlong(self) -> int:
        """Read a zig-zag varint of 64 bits; bits beyond these are dropped, as Kafka does (VAR-R2).

        References
        ----------
        Rules such as VAR-R2 are listed in ``docs/format-rules.md``.
        """
        return _unzigzag(self._raw_varint(_LAST_LONG_SHIFT) & 0xFFFFFFFFFFFFFFFF)

    def _raw_varint(self, last_shift: int) -> int:
        start = self._position
        value = 0
        for shift in range(0, last_shift + 1, 7):
            if self._position == self._end:
                raise WireError(f"byte {start}: variable-length integer is cut")
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise WireError(
            f"byte {start}: variable-length integer has more than {32 if last_shift == _LAST_SHIFT else 64} bits"
        )

    def nullable_string(self) -> str | None:
        """Read a string that may be null."""
        size = self.uvarint() - 1 if self.flexible else self.int16()
        taken = self._sized(size)
        return None if taken is None else taken.decode("utf-8", "replace")

    def string(self) -> str:
        """Read a string."""
        start = self._position
        return _not_null(self.nullable_string(), start)

    def nullable_bytes(self) -> bytes | None:
        """Read bytes that may be null."""
        return self._sized(self.uvarint() - 1 if self.flexible else self.int32())

    def bytes_(self) -> bytes:
        """Read bytes."""
        start = self._position
        return _not_null(self.nullable_bytes(), start)

    def records(self) -> bytes:
        """Read record batches, as `kbatch.decode` takes them: null and empty are both none (PRI-R6).

        References
        ----------
        Rules such as PRI-R6 are listed in ``docs/format-rules.md``.
        """
        return self.nullable_bytes() or b""

    def _sized(self, size: int) -> bytes | None:
        if size == -1:
            return None
        if size < 0:
            raise WireError(f"byte {self._position}: length is {size}")
        return self.take(size)

    def nullable_array(self, element: Callable[[], T], *, min_size: int) -> list[T] | None:
        """Read an array that may be null.

        Parameters
        ----------
        element : callable
            Reads one element with this reader.
        min_size : int
            The least bytes that an element takes: no count is believed that the bytes can't hold.
        """
        check_types(Reader.nullable_array, locals())
        if min_size < 1:
            raise ValueError(f"min_size must be positive, got {min_size}")
        count = self.uvarint() - 1 if self.flexible else self.int32()
        if count == -1:
            return None
        if count < 0 or count > self.remaining // min_size:
            raise WireError(
                f"byte {self._position}: array of {count} elements, the {self.remaining} bytes that remain can hold "
                f"{self.remaining // min_size}"
            )
        return [element() for _ in range(count)]

    def array(self, element: Callable[[], T], *, min_size: int) -> list[T]:
        """Read an array; see `nullable_array`."""
        start = self._position
        return _not_null(self.nullable_array(element, min_size=min_size), start)

    def tags(self, known: Mapping[int, Callable[[Reader], T]] | None = None) -> dict[int, T]:
        """Read the tagged fields that end a structure; there are none in the old encoding.

        Parameters
        ----------
        known : mapping, optional
            By tag, what reads the field from a reader of its bytes. Other tags are passed over, as KIP-482 wants.
        """
        check_types(Reader.tags, locals())
        found: dict[int, T] = {}
        if not self.flexible:
            return found
        # Each takes two bytes at least, so that a hostile count soon meets the end.
        for _ in range(self.uvarint()):
            tag, size = self.uvarint(), self.uvarint()
            start = self._position
            field = Reader(self.take(size), flexible=True)
            if known is None or tag not in known:
                continue
            try:
                found[tag] = known[tag](field)
            except WireError as error:
                raise WireError(f"byte {start}: tagged field {tag}: {error}") from None
            if field.remaining:
                raise WireError(f"byte {start}: tagged field {tag} has {field.remaining} bytes more than its type")
        return found


class Writer:
    r"""The fields of one message, one after the other: the counterpart of `Reader`.

    Parameters
    ----------
    flexible : bool
        Which encoding strings, bytes, arrays and tagged fields have.

    Notes
    -----
    Every method returns the writer, and raises `ValueError` for a value that it cannot write: an integer out of range,
    a string that is longer than 32767 bytes (PRI-R5) or cannot be encoded as UTF-8, tags that do not ascend (PRI-R7).

    References
    ----------
    Rules such as PRI-R5 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> Writer().int16(-1).string("hi").nullable_string(None).getvalue()
    b'\xff\xff\x00\x02hi\xff\xff'
    >>> Writer(flexible=True).string("hi").tags({}).getvalue()
    b'\x03hi\x00'
    """

    __slots__ = ("_data", "flexible")

    def __init__(self, *, flexible: bool = False) -> None:
        check_types(Writer.__init__, locals())
        self._data = bytearray()
        self.flexible = flexible

    def getvalue(self) -> bytes:
        """Return the bytes that were written."""
        return bytes(self._data)

    def raw(self, data: Buffer) -> Self:
        """Write bytes as they are, without a length."""
        check_types(Writer.raw, locals())
        self._data += memoryview(data)
        return self

    def _fixed(self, field: struct.Struct, value: float) -> Self:
        try:
            self._data += field.pack(value)
        except (struct.error, OverflowError, TypeError) as error:  # OverflowError: a huge integer as a double
            raise ValueError(f"value {value!r} doesn't fit: {error}") from None
        return self

    def int8(self, value: int) -> Self:
        """Write a signed byte."""
        return self._fixed(_INT8, value)

    def int16(self, value: int) -> Self:
        """Write a signed big-endian integer of 2 bytes."""
        return self._fixed(_INT16, value)

    def uint16(self, value: int) -> Self:
        """Write an unsigned big-endian integer of 2 bytes."""
        return self._fixed(_UINT16, value)

    def int32(self, value: int) -> Self:
        """Write a signed big-endian integer of 4 bytes."""
        return self._fixed(_INT32, value)

    def uint32(self, value: int) -> Self:
        """Write an unsigned big-endian integer of 4 bytes."""
        return self._fixed(_UINT32, value)

    def int64(self, value: int) -> Self:
        """Write a signed big-endian integer of 8 bytes."""
        return self._fixed(_INT64, value)

    def float64(self, value: float) -> Self:
        """Write an IEEE 754 double, big-endian; of the many NaNs the canonical one."""
        check_types(Writer.float64, locals())
        return self.raw(_NAN) if value != value else self._fixed(_FLOAT64, value)

    def boolean(self, value: bool) -> Self:
        """Write a byte, 1 or 0."""
        check_types(Writer.boolean, locals())
        return self.int8(int(bool(value)))

    def uuid(self, value: uuid.UUID | None) -> Self:
        """Write a UUID as 16 bytes, none as zeros (PRI-R2).

        References
        ----------
        Rules such as PRI-R2 are listed in ``docs/format-rules.md``.
        """
        check_types(Writer.uuid, locals())
        return self.raw(bytes(16) if value is None else value.bytes)

    def uvarint(self, value: int) -> Self:
        """Write an unsigned varint of 32 bits."""
        if not isinstance(value, int) or not 0 <= value < 1 << 32:
            raise ValueError(f"value {value!r} is not an unsigned integer of 32 bits")
        return self._raw_varint(value)

    def varint(self, value: int) -> Self:
        """Write a zig-zag varint of 32 bits, in its shortest form (VAR-R4).

        References
        ----------
        Rules such as VAR-R4 are listed in ``docs/format-rules.md``.
        """
        return self._raw_varint(_zigzag(value, 32))

    def varlong(self, value: int) -> Self:
        """Write a zig-zag varint of 64 bits, in its shortest form (VAR-R4).

        References
        ----------
        Rules such as VAR-R4 are listed in ``docs/format-rules.md``.
        """
        return self._raw_varint(_zigzag(value, 64))

    def _raw_varint(self, value: int) -> Self:
        while value >= 0x80:
            self._data.append(value & 0x7F | 0x80)
            value >>= 7
        self._data.append(value)
        return self

    def nullable_string(self, value: str | None) -> Self:
        """Write a string that may be null."""
        check_types(Writer.nullable_string, locals())
        data = None if value is None else value.encode()
        if data is not None and len(data) > _MAX_STRING:
            raise ValueError(f"a string has {_MAX_STRING} bytes at most, this one has {len(data)}")
        if self.flexible:
            self.uvarint(0 if data is None else len(data) + 1)
        else:
            self.int16(-1 if data is None else len(data))
        return self.raw(data or b"")

    def string(self, value: str) -> Self:
        """Write a string."""
        return self.nullable_string(_given(value))

    def nullable_bytes(self, value: Buffer | None) -> Self:
        """Write bytes that may be null."""
        check_types(Writer.nullable_bytes, locals())
        data = None if value is None else memoryview(value).cast("B")
        self._length(None if data is None else len(data))
        return self if data is None else self.raw(data)

    def bytes_(self, value: Buffer) -> Self:
        """Write bytes."""
        return self.nullable_bytes(_given(value))

    def records(self, value: Buffer | None) -> Self:
        """Write record batches, as `kbatch.encode` makes them."""
        return self.nullable_bytes(value)

    def nullable_array(self, values: Collection[T] | None, element: Callable[[T], object]) -> Self:
        """Write an array that may be null.

        Parameters
        ----------
        values : collection or None
        element : callable
            Writes one element with this writer.
        """
        check_types(Writer.nullable_array, locals())
        self._length(None if values is None else len(values))
        for value in () if values is None else values:
            element(value)
        return self

    def array(self, values: Collection[T], element: Callable[[T], object]) -> Self:
        """Write an array; see `nullable_array`."""
        return self.nullable_array(_given(values, "values"), element)

    def _length(self, length: int | None) -> None:
        if length is not None and length > _MAX_LENGTH:
            raise ValueError(f"a length is {_MAX_LENGTH} at most, got {length}")
        if self.flexible:
            self.uvarint(0 if length is None else length + 1)
        else:
            self.int32(-1 if length is None else length)

    def tags(self, fields: Mapping[int, Buffer]) -> Self:
        """Write the tagged fields that end a structure.

        Parameters
        ----------
        fields : mapping
            By tag, in ascending order, the bytes of the field. The old encoding has room for none.
        """
        check_types(Writer.tags, locals())
        if not self.flexible:
            if fields:
                raise ValueError(f"only a flexible message has tagged fields, got {list(fields)}")
            return self
        tags = list(fields)
        if tags != sorted(tags):
            raise ValueError(f"tags must ascend, got {tags}")
        self.uvarint(len(tags))
        for tag, data in fields.items():
            view = memoryview(data).cast("B")
            self.uvarint(tag).uvarint(len(view)).raw(view)
        return self


def _zigzag(value: int, bits: int) -> int:
    if not isinstance(value, int) or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"value {value!r} is not a signed integer of {bits} bits")
    return value << 1 if value >= 0 else (-value << 1) - 1


def _unzigzag(raw: int) -> int:
    return raw >> 1 ^ -(raw & 1)


def _given(value: T | None, name: str = "value") -> T:
    if value is None:
        raise ValueError(f"{name} None: null where the schema has none")
    return value


def _not_null(value: T | None, position: int) -> T:
    if value is None:
        raise WireError(f"byte {position}: null where the schema has none")
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
