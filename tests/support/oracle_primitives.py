"""The primitives of the oracle: CRC-32C, variable-length integers, and the codecs as Kafka uses them.

The compression libraries are called in the simplest way. Code around them accepts and refuses what Kafka does.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable

import lz4.frame
import snappy
import zstandard

XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


class OracleError(Exception):
    """The batch at `position` cannot be read."""

    position = -1
    base_offset: int | None = None


class CodecFailure(OracleError):
    """The compressed payload is not a valid stream."""


# -- checksum (CRC-R1)


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """CRC-32C: Castagnoli's polynomial, reflected, with initial value and final XOR of all ones."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


# -- integers


def wrap(number: int, bits: int) -> int:
    """Return the value of a signed integer of `bits` bits after overflow (FRM-R12, TS-R1)."""
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def zigzag(number: int, bits: int = 64) -> bytes:
    """Encode a signed integer in the shortest form (VAR-R6)."""
    raw = (number << 1 ^ number >> (bits - 1)) & ((1 << bits) - 1)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def overlong(number: int, size: int) -> bytes:
    """Encode a signed integer in exactly `size` bytes, which is more than necessary (VAR-R3)."""
    short = zigzag(number)
    if len(short) >= size:
        raise ValueError(f"{number} takes {len(short)} bytes")
    return bytes(b | 0x80 for b in short) + b"\x80" * (size - len(short) - 1) + b"\0"


# -- codecs


def _gunzip(payload: bytes) -> bytes:
    out = b""
    while True:
        member = zlib.decompressobj(wbits=31)
        try:
            out += member.decompress(payload)
        except zlib.error as error:
            raise CodecFailure(str(error)) from None
        if not member.eof:
            raise CodecFailure("gzip stream is truncated")
        payload = member.unused_data
        if not payload.startswith(b"\x1f\x8b\x08"):
            return out  # COD-R4: bytes that are not a member end the stream


def _unsnap_block(block: bytes) -> bytes:
    claimed = 0
    for i in range(min(5, len(block))):
        claimed |= (block[i] & 0x7F) << 7 * i
        if block[i] < 0x80:
            break
    if claimed > 64 * len(block):  # SN-R7: an element of three bytes decompresses to at most 64
        raise CodecFailure(f"snappy block of {len(block)} bytes claims to hold {claimed}")
    try:
        return bytes(snappy.decompress(block))
    except Exception as error:
        raise CodecFailure(str(error)) from None


def _unsnap(payload: bytes) -> bytes:
    if len(payload) < 16 or not payload.startswith(XERIAL[:8]):
        return _unsnap_block(payload)
    out = b""
    at = 16  # SN-R2: the versions are ignored
    while len(payload) - at >= 4:  # SN-R5
        if payload[at : at + 8] == XERIAL[:8] and len(payload) - at >= 16:
            at += 16  # SN-R4: another stream
            continue
        (length,) = struct.unpack_from(">i", payload, at)
        at += 4
        if length <= 0 or length > len(payload) - at:
            raise CodecFailure(f"chunk of {length} bytes, {len(payload) - at} left")
        out += _unsnap_block(payload[at : at + length])
        at += length
    return out


def lz4_header_checksum(data: bytes) -> int:
    """Return the second byte of xxh32 with seed 0 (L4-R4); `data` is shorter than 16 bytes, so no lanes are needed."""
    assert len(data) < 16
    lane, mask = 0x165667B1 + len(data), 2**32 - 1  # prime 5
    at = 0
    for at in range(0, len(data) - 3, 4):
        lane += struct.unpack_from("<I", data, at)[0] * 0xC2B2AE3D
        lane = (lane << 17 | (lane & mask) >> 15) * 0x27D4EB2F & mask
    for byte in data[len(data) & ~3 :]:
        lane += byte * 0x165667B1
        lane = (lane << 11 | (lane & mask) >> 21) * 0x9E3779B1 & mask
    lane = (lane ^ lane >> 15) * 0x85EBCA77 & mask
    lane = (lane ^ lane >> 13) * 0xC2B2AE3D & mask
    return (lane ^ lane >> 16) >> 8 & 0xFF


def with_lz4_header_checksum(frame: bytes, *, broken: bool = False) -> bytes:
    """Set the correct header checksum, or the broken one of KAFKA-3160, which includes the magic (L4-R5)."""
    end = 14 if frame[4] & 0x08 else 6  # after the content size, if present
    if len(frame) <= end:
        raise CodecFailure("LZ4 frame is truncated")
    return frame[:end] + bytes([lz4_header_checksum(frame[0 if broken else 4 : end])]) + frame[end + 1 :]


def unlz4(payload: bytes, any_header_checksum: bool = False) -> bytes:
    if payload[:4] != b"\x04\x22\x4d\x18" or len(payload) < 7:
        raise CodecFailure("not an LZ4 frame")  # L4-R10
    flags, block = payload[4], payload[5]
    if flags >> 6 != 1 or flags & 0x03 or block & 0x8F or block >> 4 < 4:
        raise CodecFailure("invalid LZ4 frame descriptor")  # L4-R3
    if any_header_checksum:
        payload = with_lz4_header_checksum(payload)
    frame = lz4.frame.LZ4FrameDecompressor()
    try:
        out = frame.decompress(payload)
    except (RuntimeError, EOFError) as error:
        raise CodecFailure(str(error)) from None
    if not frame.eof:
        raise CodecFailure("LZ4 frame is truncated")  # L4-R8
    return out


def _unzstd(payload: bytes) -> bytes:
    if not payload:
        raise CodecFailure("zstd payload is empty")
    out = b""
    while payload:
        magic, size = struct.unpack_from("<II", payload) if len(payload) >= 8 else (0, 0)
        if magic & ~0xF == 0x184D2A50:  # ZS-R3: skippable
            if size > len(payload) - 8:
                raise CodecFailure("skippable frame is truncated")
            payload = payload[8 + size :]
            continue
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            out += frame.decompress(payload)
        except zstandard.ZstdError as error:
            raise CodecFailure(str(error)) from None
        if not frame.eof:
            raise CodecFailure("zstd frame is truncated")
        payload = frame.unused_data
    return out


DECOMPRESS: dict[int, Callable[[bytes], bytes]] = {0: bytes, 1: _gunzip, 2: _unsnap, 3: unlz4, 4: _unzstd}


def xerial(plain: bytes, chunk: int = 32 << 10) -> bytes:
    """Compress as Kafka's Java client does, in xerial blocks (SN-R2, SN-R3)."""
    out = XERIAL
    for i in range(0, len(plain), chunk):
        block = snappy.compress(plain[i : i + chunk])
        out += struct.pack(">i", len(block)) + block
    return out


def compress(codec: str, plain: bytes) -> bytes:
    match codec:
        case "none":
            return plain
        case "gzip":
            return gzip.compress(plain, mtime=0)
        case "snappy":
            return xerial(plain)
        case "snappy-raw":
            return bytes(snappy.compress(plain))
        case "lz4":
            return bytes(lz4.frame.compress(plain, block_linked=False, store_size=False))
        case "zstd":
            return zstandard.ZstdCompressor().compress(plain)
    raise ValueError(codec)
