"""A slow, obvious decoder of record batches, and a builder of arbitrary ones; the kernels are held against it.

It is written from the format's description and the conformance catalogue, not from the package, and shares no code with
it: `struct`, one variable-length integer at a time, a bytewise CRC table, one object per record. Only the compression
libraries are the same kind of thing, called in the simplest way.

Outcomes are the words of the catalogue: `Corrupt`, `BadCrc`, `Invalid`, `CodecFailure`, `Unsupported` are exceptions;
PARTIAL is no error but `Decoded.unread`, the number of bytes of an incomplete batch at the end.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import lz4.frame
import snappy
import zstandard

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "snappy-raw": 2, "lz4": 3, "zstd": 4}
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)

Headers = tuple[tuple[bytes, bytes | None], ...]


# -- what comes out


class Record(NamedTuple):
    offset: int
    timestamp: int
    sequence: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Batch(NamedTuple):
    """One entry of a log: the header's fields as stored, and its records."""

    position: int
    size: int
    magic: int
    base_offset: int
    partition_leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    records: tuple[Record, ...] = ()


class Decoded(NamedTuple):
    """Whole batches up to the first error, that error, and the bytes that an incomplete last batch takes."""

    batches: list[Batch]
    error: OracleError | None
    unread: int


class OracleError(Exception):
    """Something is wrong with the batch at `position`."""

    position = -1
    base_offset: int | None = None


class Corrupt(OracleError):
    """The framing can't be followed any further."""


class BadCrc(OracleError):
    """The structure can be read, the checksum is wrong."""


class Invalid(OracleError):
    """The framing is good, the content is not."""


class CodecFailure(OracleError):
    """The compressed payload is no valid stream."""


class Unsupported(OracleError):
    """Codec 5 to 7, or a magic that isn't read."""


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
    """CRC-32C: Castagnoli's polynomial, reflected, begun with and finished by all ones."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


# -- integers


def wrap(number: int, bits: int) -> int:
    """What a signed register of so many bits would hold (FRM-R12, TS-R1)."""
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


class Cursor:
    """Reads a stretch of bytes; what would pass its end is `Invalid`."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        if count < 0 or count > self.left():
            raise Invalid(f"{count} bytes wanted, {self.left()} left")
        self.at += count
        return self.data[self.at - count : self.at]

    def zigzag(self, bits: int) -> int:
        """VAR-R1: at most 5 bytes for 32 bits, 10 for 64; VAR-R2: bits beyond are dropped."""
        raw = 0
        for i in range(5 if bits == 32 else 10):
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << 7 * i
            if byte < 0x80:
                raw &= (1 << bits) - 1
                return raw >> 1 ^ -(raw & 1)
        raise Invalid(f"variable-length integer of {bits} bits goes on")

    def optional_bytes(self) -> bytes | None:
        """Any negative length is null (REC-R1, HDR-R3)."""
        length = self.zigzag(32)
        return None if length < 0 else self.take(length)


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
    """Encode a signed integer in exactly `size` bytes, with more of them than it needs (VAR-R3)."""
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
            raise CodecFailure("gzip stream is cut")
        payload = member.unused_data
        if not payload.startswith(b"\x1f\x8b\x08"):
            return out  # COD-R4: what is no member ends the stream


def _unsnap_block(block: bytes) -> bytes:
    claimed = 0
    for i in range(min(5, len(block))):
        claimed |= (block[i] & 0x7F) << 7 * i
        if block[i] < 0x80:
            break
    if claimed > 64 * len(block):  # SN-R7: no element of three bytes gives more than 64
        raise CodecFailure(f"snappy block of {len(block)} bytes claims to hold {claimed}")
    try:
        return bytes(snappy.decompress(block))
    except Exception as error:
        raise CodecFailure(str(error)) from None


def _unsnap(payload: bytes) -> bytes:
    if len(payload) < 16 or not payload.startswith(XERIAL[:8]):
        return _unsnap_block(payload)
    out = b""
    at = 16  # SN-R2: the versions are not looked at
    while len(payload) - at >= 4:  # SN-R5
        if payload[at : at + 8] == XERIAL[:8] and len(payload) - at >= 16:
            at += 16  # SN-R4: a further stream
            continue
        (length,) = struct.unpack_from(">i", payload, at)
        at += 4
        if length <= 0 or length > len(payload) - at:
            raise CodecFailure(f"chunk of {length} bytes, {len(payload) - at} left")
        out += _unsnap_block(payload[at : at + length])
        at += length
    return out


def _unlz4(payload: bytes) -> bytes:
    if payload[:4] != b"\x04\x22\x4d\x18" or len(payload) < 7:
        raise CodecFailure("no LZ4 frame")  # L4-R10
    flags, block = payload[4], payload[5]
    if flags >> 6 != 1 or flags & 0x03 or block & 0x8F or block >> 4 < 4:
        raise CodecFailure("LZ4 frame descriptor")  # L4-R3
    frame = lz4.frame.LZ4FrameDecompressor()
    try:
        out = frame.decompress(payload)
    except (RuntimeError, EOFError) as error:
        raise CodecFailure(str(error)) from None
    if not frame.eof:
        raise CodecFailure("LZ4 frame is cut")  # L4-R8
    return out


def _unzstd(payload: bytes) -> bytes:
    if not payload:
        raise CodecFailure("zstd payload is empty")
    out = b""
    while payload:
        magic, size = struct.unpack_from("<II", payload) if len(payload) >= 8 else (0, 0)
        if magic & ~0xF == 0x184D2A50:  # ZS-R3: skippable
            if size > len(payload) - 8:
                raise CodecFailure("skippable frame is cut")
            payload = payload[8 + size :]
            continue
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            out += frame.decompress(payload)
        except zstandard.ZstdError as error:
            raise CodecFailure(str(error)) from None
        if not frame.eof:
            raise CodecFailure("zstd frame is cut")
        payload = frame.unused_data
    return out


_DECOMPRESS: dict[int, Callable[[bytes], bytes]] = {0: bytes, 1: _gunzip, 2: _unsnap, 3: _unlz4, 4: _unzstd}


def xerial(plain: bytes, chunk: int = 32 << 10) -> bytes:
    """Snappy as Kafka's Java client writes it: SN-R2, SN-R3."""
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


# -- decoding


def sequence(base: int, delta: int) -> int:
    """SEQ-R1 and SEQ-R4: after INT32_MAX comes 0; a batch without a sequence gives none."""
    if base < 0:
        return -1
    return wrap(delta - (INT32_MAX - base) - 1, 32) if base > INT32_MAX - delta else wrap(base + delta, 32)


def _read_record(payload: Cursor, batch: Batch) -> Record:
    record = Cursor(payload.take(payload.zigzag(32)))
    record.take(1)  # attributes: one byte, whatever it is (REC-R5)
    timestamp_delta = record.zigzag(64)
    offset_delta = record.zigzag(32)
    key = record.optional_bytes()
    value = record.optional_bytes()
    count = record.zigzag(32)
    if count < 0 or count > record.left():
        raise Invalid(f"{count} headers")  # HDR-R1
    headers = []
    for _ in range(count):
        header_key = record.optional_bytes()
        if header_key is None:
            raise Invalid("header without a key")  # HDR-R2
        headers.append((header_key, record.optional_bytes()))
    if record.left():
        raise Invalid(f"{record.left()} bytes after the last field of a record")  # REC-R2
    if batch.attributes & LOG_APPEND_TIME:
        timestamp = batch.max_timestamp  # TS-R2
    else:
        timestamp = wrap(batch.base_timestamp + timestamp_delta, 64)
    return Record(
        wrap(batch.base_offset + offset_delta, 64),
        timestamp,
        sequence(batch.base_sequence, offset_delta),
        key,
        value,
        tuple(headers),
    )


def _decode_v2(entry: bytes, position: int, verify: bool) -> Batch:
    base_offset, _, epoch, magic, crc, *rest = HEADER.unpack_from(entry)
    batch = Batch(position, len(entry), magic, base_offset, epoch, crc, *rest)
    if verify and crc32c(entry[21:]) != crc:
        raise BadCrc(f"stored {crc:#x}")
    codec = batch.attributes & 7
    if codec not in _DECOMPRESS:
        raise Unsupported(f"codec {codec}")  # ATT-R3
    if batch.record_count < 0:
        raise Invalid(f"{batch.record_count} records")  # CNT-R1
    if batch.record_count == 0:
        return batch  # CNT-R2: the payload is not looked at
    payload = Cursor(_DECOMPRESS[codec](entry[HEADER_SIZE:]))
    records = []
    for _ in range(batch.record_count):
        records.append(_read_record(payload, batch))
    if payload.left():
        raise Invalid(f"{payload.left()} bytes after the last record")  # CNT-R4
    return batch._replace(records=tuple(records))


# Least value of the length field, and the reader, by magic. A message set of magic 0 or 1 can be framed but not read.
_LEAST_LENGTH = {0: 14, 1: 22, 2: 49}
_DECODERS: dict[int, Callable[[bytes, int, bool], Batch]] = {2: _decode_v2}


def next_entry(data: bytes, position: int) -> int:
    """Return the size of the entry at `position`, 0 if it is incomplete (PARTIAL)."""
    left = len(data) - position
    if left < 12:
        return 0
    (length,) = struct.unpack_from(">i", data, position + 8)
    if length < 14:
        raise Corrupt(f"length {length}")  # FRM-R2: before asking for more bytes
    if left < 17:
        return 0
    magic = wrap(data[position + 16], 8)
    if magic not in _LEAST_LENGTH:
        raise Corrupt(f"magic {magic}")  # FRM-R4
    if length < _LEAST_LENGTH[magic]:
        raise Corrupt(f"length {length} of magic {magic}")  # FRM-R5
    return 12 + length if length <= left - 12 else 0


def decode(data: bytes, *, verify: bool = True) -> Decoded:
    """Decode until the end of `data` or the first error."""
    batches: list[Batch] = []
    position = 0
    while position < len(data):
        base_offset = None
        try:
            size = next_entry(data, position)
            if not size:
                break
            entry = data[position : position + size]
            (base_offset,) = struct.unpack_from(">q", entry)
            magic = entry[16]
            if magic not in _DECODERS:
                raise Unsupported(f"magic {magic}")
            batches.append(_DECODERS[magic](entry, position, verify))
        except OracleError as error:
            error.position, error.base_offset = position, base_offset
            return Decoded(batches, error, len(data) - position)
        position += size
    return Decoded(batches, None, len(data) - position)


def digest(records: Iterable[Record]) -> str:
    """SHA-1 of the canonical serialisation that the golden files use."""

    def field(data: bytes | None) -> bytes:
        return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data

    sha1 = hashlib.sha1(usedforsecurity=False)
    for r in records:
        sha1.update(struct.pack(">qqi", r.offset, r.timestamp, r.sequence) + field(r.key) + field(r.value))
        sha1.update(struct.pack(">i", len(r.headers)) + b"".join(field(k) + field(v) for k, v in r.headers))
    return sha1.hexdigest()


# -- building


def encode_record(
    offset_delta: int | bytes = 0,
    timestamp_delta: int | bytes = 0,
    key: bytes | None = None,
    value: bytes | None = None,
    headers: Sequence[tuple[bytes, bytes | None]] = (),
    *,
    attributes: int = 0,
    length: int | bytes | None = None,
    key_length: int | bytes | None = None,
    value_length: int | bytes | None = None,
    header_count: int | bytes | None = None,
    extra: bytes = b"",
) -> bytes:
    """Encode a record; every length and count can be given otherwise than it should be, as a number or as raw bytes."""

    def number(given: int | bytes | None, right: int) -> bytes:
        return given if isinstance(given, bytes) else zigzag(right if given is None else given)

    def field(data: bytes | None, given: int | bytes | None = None) -> bytes:
        return number(given, -1 if data is None else len(data)) + (data or b"")

    body = bytes([attributes]) + number(timestamp_delta, 0) + number(offset_delta, 0)
    body += field(key, key_length) + field(value, value_length)
    body += number(header_count, len(headers)) + b"".join(field(k) + field(v) for k, v in headers) + extra
    return number(length, len(body)) + body


def build_batch(
    records: Sequence[bytes] = (),
    *,
    codec: str = "none",
    payload: bytes | None = None,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
    magic: int = 2,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = 1000,
    max_timestamp: int = 1000,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    record_count: int | None = None,
    length: int | None = None,
    crc: int | None = None,
) -> bytes:
    """Frame encoded records as a batch of magic 2.

    `codec` compresses them and sets its bits in `attributes`; `payload` takes the place of what that gives. Of the
    other fields whatever is given is written, right or wrong; what isn't is made right, the checksum last.
    """
    if payload is None:
        payload = compress(codec, b"".join(records))
    count = len(records) if record_count is None else record_count
    size = HEADER_SIZE + len(payload)
    header = HEADER.pack(
        base_offset,
        size - 12 if length is None else length,
        partition_leader_epoch,
        magic,
        0,
        wrap(attributes | CODECS[codec], 16),
        max(len(records) - 1, 0) if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return with_crc(header + payload, crc)


def with_crc(batch: bytes, crc: int | None = None) -> bytes:
    """Return the batch with this checksum, or with the right one."""
    return batch[:17] + struct.pack(">I", crc32c(batch[21:]) if crc is None else crc) + batch[21:]


def three(base_offset: int = 0, **fields: object) -> bytes:
    """Build the batch of three small records that most vectors are made of: timestamps 1000, 1005, 1009."""
    records = [
        encode_record(0, 0, b"k", b"a"),
        encode_record(1, 5, b"k", b"b"),
        encode_record(2, 9, b"k", b"c"),
    ]
    return build_batch(records, base_offset=base_offset, **fields)  # type: ignore[arg-type]
