"""Messages that a log stores: keys and values of internal topics, and values of control records.

Each follows its version, or its record type and version.
"""

from __future__ import annotations

from typing import Any

from kbatch.errors import ProtocolError, UnsupportedFormatError
from kbatch.format import DEFAULT_LIMITS
from kbatch.kernels.message_codec import decode_structure
from kbatch.protocol.codec import message_plan
from kbatch.protocol.schema import message_schemas
from kbatch.read.budget import table_limit

__all__ = ["decode_after_version", "decode_control", "decode_key", "leading_number", "unknown_version"]

_SHORT = 2
_MAX_UVARINT = 5


def leading_number(data: bytes, position: int, *, varint: bool) -> tuple[int, int]:
    """Return a number of 16 bits, or an unsigned varint of up to 15, and the position after it."""
    if not varint:
        if len(data) - position < _SHORT:
            raise ProtocolError(f"needs {_SHORT} bytes, {len(data) - position} remain", position=position)
        return int.from_bytes(data[position : position + _SHORT], "big", signed=True), position + _SHORT
    value = 0
    for number, byte in enumerate(data[position : position + _MAX_UVARINT]):
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            if value > 0x7FFF:
                raise ProtocolError(f"{value} has more than 15 bits", position=position)
            return value, position + number + 1
    if len(data) - position < _MAX_UVARINT:
        raise ProtocolError("variable-length integer is cut", position=position)
    raise ProtocolError("variable-length integer has more than 32 bits", position=position)


def unknown_version(version: int, of: str, known: str) -> UnsupportedFormatError:
    """Return the error for a version that this release does not know."""
    return UnsupportedFormatError(
        f"unsupported {of} version {version}; {known} (a later release of kbatch may read it)"
    )


def _stated_version(data: bytes, position: int, *, varint: bool = False) -> tuple[int, int]:
    """Return a version and the position after it."""
    version, end = leading_number(data, position, varint=varint)
    if version < 0:
        raise ProtocolError(f"version is {version}", position=position)
    return version, end


def _decode(name: str, version: int, data: bytes, position: int, *, whole: bool = False, of: str = "schema") -> Any:
    versions = message_schemas()[name].versions
    if version not in versions:
        raise unknown_version(version, of, f"supported are {versions[0]} to {versions[-1]}")
    limit = table_limit(DEFAULT_LIMITS)
    return decode_structure(message_plan(name, version), memoryview(data), position, whole, limit)[0]


def decode_key(name: str, data: bytes, position: int, *, whole: bool = True) -> Any:
    """Return the key after its record type, which takes all bytes if it is `whole`: keys of other topics are longer."""
    return _decode(name, 0, data, position, whole=whole)


def decode_after_version(name: str, data: bytes, position: int, *, varint: bool = False) -> tuple[int, Any]:
    """Return the version at a position, and the message after it. Trailing bytes are ignored, as by Kafka."""
    version, start = _stated_version(data, position, varint=varint)
    return version, _decode(name, version, data, start)


def decode_control(name: str, data: bytes) -> tuple[int, Any]:
    """Return the version of a control record's value, and the value."""
    version, start = _stated_version(data, 0)
    if message_schemas()[name].fields[0].name == "version":
        return version, _decode(name, version, data, 0, of=name)
    # The version of a transaction marker is not one of its fields, and later ones are read as version 0 (CTL-R3).
    return version, _decode(name, 0, data, start)
