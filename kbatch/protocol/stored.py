"""Keys and values of internal topics as messages: each follows its version, or its record type and version."""

from __future__ import annotations

from typing import Any

from kbatch.errors import ProtocolError, UnsupportedFormatError
from kbatch.format import DEFAULT_LIMITS
from kbatch.kernels.message_codec import decode_structure
from kbatch.protocol.codec import message_plan
from kbatch.protocol.schema import message_schemas
from kbatch.read.budget import table_limit

__all__ = ["decode_after_version", "decode_key", "leading_number", "unknown_version"]

_SHORT = 2
_VARINT = 3


def leading_number(data: bytes, position: int, *, varint: bool) -> tuple[int, int]:
    """Return a number of 16 bits, or an unsigned varint of up to 15, and the position after it."""
    if not varint:
        if len(data) - position < _SHORT:
            raise ProtocolError(f"needs {_SHORT} bytes, {len(data) - position} remain", position=position)
        return int.from_bytes(data[position : position + _SHORT], "big", signed=True), position + _SHORT
    value = 0
    for number, byte in enumerate(data[position : position + _VARINT]):
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            if value > 0x7FFF:
                break
            return value, position + number + 1
    raise ProtocolError("variable-length integer is cut, or has more than 15 bits", position=position)


def unknown_version(version: int, of: str, known: str) -> UnsupportedFormatError:
    """Return the error for a version that this release does not know."""
    return UnsupportedFormatError(
        f"unsupported {of} version {version}; {known} (a later release of kbatch may read it)"
    )


def decode_key(name: str, data: bytes, position: int) -> Any:
    """Return the key after its record type, which must take all bytes to the end: keys of other topics are longer."""
    return decode_structure(message_plan(name, 0), memoryview(data), position, True, table_limit(DEFAULT_LIMITS))[0]


def decode_after_version(name: str, data: bytes, position: int, *, varint: bool = False) -> tuple[int, Any]:
    """Return the version at a position, and the message after it. Trailing bytes are ignored, as by Kafka."""
    version, start = leading_number(data, position, varint=varint)
    versions = message_schemas()[name].versions
    if version not in versions:
        raise unknown_version(version, "schema", f"supported are {versions[0]} to {versions[-1]}")
    plan, limit = message_plan(name, version), table_limit(DEFAULT_LIMITS)
    return version, decode_structure(plan, memoryview(data), start, False, limit)[0]
