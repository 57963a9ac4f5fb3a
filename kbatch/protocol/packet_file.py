"""Files of captured packets: pcap and pcapng (https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-05.html)."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from kbatch.batches.regular_files import open_regular
from kbatch.errors import ProtocolError
from kbatch.escaping import counted

__all__ = ["CapturedPacket", "PacketFile", "is_capture"]

# The first bytes of pcap: the byte order, and the number of fractions of a second.
_PCAP = {
    bytes.fromhex(magic): (order, fractions)
    for magic, order, fractions in (
        ("d4c3b2a1", "<", 10**6),
        ("a1b2c3d4", ">", 10**6),
        ("4d3cb2a1", "<", 10**9),
        ("a1b23c4d", ">", 10**9),
    )
}
# The size of a block without a body; a section has its byte order up to there.
_MIN_BLOCK = 12
_SECTION = bytes.fromhex("0a0d0d0a")
_BYTE_ORDERS = {bytes.fromhex("4d3c2b1a"): "<", bytes.fromhex("1a2b3c4d"): ">"}
# As lengths of messages these are above the limit or negative, so no stream of messages begins with them.
_COMPRESSED = {b"\x1f\x8b\x08": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz"}
# The largest packet or block that is read; snap lengths are at most 256 KiB.
_MAX_PACKET = 16 << 20
# The upper bits of a link type in pcap describe the checksum of frames.
_LINK_MASK = 0x03FFFFFF
_INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _PACKET = 1, 2, 3, 6
_TIME_RESOLUTION, _TIME_OFFSET = 9, 14
# The last second of the year 9999.
_LAST_SECOND = 253402300799


class CapturedPacket(NamedTuple):
    """A packet, with the number of its link type, and its size before it was cut to the snap length."""

    time: float
    link: int
    data: bytes
    size: int


class _Interface(NamedTuple):
    link: int
    fractions: int
    offset: int


class PacketFile:
    """The packets of a file. After the last one, `torn` has the bytes of an incomplete packet and how many it lacks."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.torn: tuple[int, int] | None = None

    def packets(self) -> Iterator[CapturedPacket]:
        """Yield all packets.

        Raises
        ------
        ProtocolError
            If the file is not a capture, or is damaged.
        """
        self.torn = None
        with io.BufferedReader(open_regular(self._path)) as file:
            first = file.peek(_MIN_BLOCK)[:_MIN_BLOCK]
            if first[:4] in _PCAP and len(first) == _MIN_BLOCK:
                yield from self._pcap(file, *_PCAP[first[:4]])
            elif first[:4] == _SECTION and first[8:] in _BYTE_ORDERS:
                yield from self._pcapng(file)
            else:
                method = next((name for magic, name in _COMPRESSED.items() if first.startswith(magic)), None)
                if method is not None:
                    raise ProtocolError(
                        f"{self._path} is compressed with {method}; decompress it first: {method} -dk FILE"
                    )
                raise ProtocolError(
                    f"{self._path} is neither a pcap nor a pcapng file; convert captures of other formats with "
                    "editcap -F pcapng IN OUT"
                )

    def _pcap(self, file: io.BufferedReader[Any], order: str, fractions: int) -> Iterator[CapturedPacket]:
        header = self._bytes(file, 24)
        if header is None:
            return
        link = struct.unpack(f"{order}I", header[20:])[0] & _LINK_MASK
        while (fields := self._bytes(file, 16)) is not None:
            seconds, fraction, captured, size = struct.unpack(f"{order}IIII", fields)
            data = self._bytes(file, captured, 16)
            if data is None:
                return
            yield CapturedPacket(self._time(file, seconds + fraction / fractions), link, data, size)

    def _pcapng(self, file: io.BufferedReader[Any]) -> Iterator[CapturedPacket]:
        order, interfaces, time = "<", list[_Interface](), 0.0
        while (head := self._bytes(file, _MIN_BLOCK)) is not None:
            if head[:4] == _SECTION:
                # Its byte order, and the interfaces of the packets that follow.
                if head[8:] not in _BYTE_ORDERS:
                    raise self._error(file, f"a section of pcapng has the byte-order mark {head[8:].hex()}")
                order = _BYTE_ORDERS[head[8:]]
                interfaces.clear()
            kind, length = struct.unpack(f"{order}II", head[:8])
            if length < _MIN_BLOCK:
                raise self._error(file, f"a block of pcapng has the length {length}, expected at least {_MIN_BLOCK}")
            rest = self._bytes(file, length - _MIN_BLOCK, _MIN_BLOCK)
            if rest is None:
                return
            # Without the length, which follows again.
            body = (head[8:] + rest)[:-4]
            try:
                if kind == _INTERFACE:
                    interfaces.append(_interface(body, order))
                elif kind in (_PACKET, _OLD_PACKET):
                    number, high, low, captured, size = struct.unpack_from(f"{order}IIIII", body)
                    if kind == _OLD_PACKET:
                        number = struct.unpack_from(f"{order}H", body)[0]
                    each = interfaces[number]
                    time = self._time(file, each.offset + (high << 32 | low) / each.fractions)
                    if captured > len(body) - 20:
                        raise IndexError
                    yield CapturedPacket(time, each.link, body[20 : 20 + captured], size)
                elif kind == _SIMPLE_PACKET:
                    size = struct.unpack_from(f"{order}I", body)[0]
                    # It has no time of its own.
                    yield CapturedPacket(time, interfaces[0].link, body[4 : 4 + size], size)
            except (struct.error, IndexError):  # no such interface, or fewer bytes than stated
                raise self._error(file, f"a block of pcapng of type {kind} and {length} bytes is damaged") from None

    def _bytes(self, file: io.BufferedReader[Any], size: int, before: int = 0) -> bytes | None:
        """Read bytes of a packet after `before` others of it; None if the file ends with or within it."""
        if size > _MAX_PACKET:
            raise self._error(file, f"a packet of {counted(size, 'byte')}, the limit is {_MAX_PACKET}")
        data = file.read(size)
        if len(data) == size:
            return data
        if data or before:
            self.torn = before + len(data), size - len(data)
        return None

    def _time(self, file: io.BufferedReader[Any], time: float) -> float:
        if 0 <= time <= _LAST_SECOND:
            return time
        raise self._error(file, f"the time of a packet is {time:.0f} seconds since 1970, expected 0 to {_LAST_SECOND}")

    def _error(self, file: io.BufferedReader[Any], reason: str) -> ProtocolError:
        return ProtocolError(f"{self._path}: before byte {file.tell()}: {reason}")


def _interface(body: bytes, order: str) -> _Interface:
    """Read an interface description block; times are in microseconds unless an option states otherwise."""
    link, fractions, offset = struct.unpack_from(f"{order}H", body)[0], 10**6, 0
    position = 8
    while position + 4 <= len(body):
        code, size = struct.unpack_from(f"{order}HH", body, position)
        if code == _TIME_RESOLUTION and size == 1:
            value = body[position + 4]
            fractions = (2 if value & 0x80 else 10) ** (value & 0x7F)
        elif code == _TIME_OFFSET and size == 8:
            offset = struct.unpack_from(f"{order}q", body, position + 4)[0]
        position += 4 + (size + 3 & ~3)
    return _Interface(link, fractions, offset)


def is_capture(path: str) -> bool:
    """Return whether a file begins like a pcap or pcapng file, or like a compressed one, which has its own error."""
    with open_regular(path) as file:
        first = file.read(6)
    return first[:4] in _PCAP or first[:4] == _SECTION or first.startswith(tuple(_COMPRESSED))
