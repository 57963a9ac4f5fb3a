"""Kafka's primitive types, read from bytes with every length checked against what remains.

Messages that Kafka generates from schemas have two encodings: the old one, and since KIP-482 the "flexible" one, in
which lengths are varints, moved by one so that 0 is null, and every structure ends with tagged fields. A `Reader` knows
which of them it reads, so that a decoder is the list of the schema's fields.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping
from typing import TypeVar

from typing_extensions import Buffer

__all__ = ["Reader", "WireError"]

T = TypeVar("T")

_INT16 = struct.Struct(">h")
_UINT16 = struct.Struct(">H")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
# A varint of 32 bits takes five bytes at most.
_LAST_SHIFT = 28


class WireError(ValueError):
    """Bytes that are not what a schema says; whoever knows where they came from makes a `KbatchError` of it."""


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

    Examples
    --------
    >>> reader = Reader(bytes([0, 2, 104, 105, 255, 255]))
    >>> reader.string(), reader.nullable_string(), reader.remaining
    ('hi', None, 0)
    """

    __slots__ = ("_data", "_end", "_position", "flexible")

    def __init__(self, data: Buffer, *, flexible: bool = False) -> None:
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
        if size > self._end - self._position:
            raise WireError(f"byte {self._position}: {size} bytes wanted, {self.remaining} remain")
        start = self._position
        self._position += size
        return self._data[start : self._position]

    def _fixed(self, field: struct.Struct) -> int:
        if field.size > self._end - self._position:
            raise WireError(f"byte {self._position}: {field.size} bytes wanted, {self.remaining} remain")
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

    def uuid(self) -> uuid.UUID:
        """Read 16 bytes as a UUID."""
        return uuid.UUID(bytes=self.take(16))

    def uvarint(self) -> int:
        """Read an unsigned varint of 32 bits."""
        start = self._position
        value = 0
        for shift in range(0, _LAST_SHIFT + 1, 7):
            if self._position == self._end:
                raise WireError(f"byte {start}: variable-length integer is cut")
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >= 1 << 32:
                    break
                return value
        raise WireError(f"byte {start}: variable-length integer has more than 32 bits")

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


def _not_null(value: T | None, position: int) -> T:
    if value is None:
        raise WireError(f"byte {position}: null where the schema has none")
    return value
