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
    """One entry of a log: the header's fields as stored, and its records.

    An entry of magic 0 or 1 has its offset for `last_offset`, and `base_offset` and `record_count` by what is in it
    (LEG-R2, LEG-R23); fields that its magic doesn't have are -1 (LEG-R24), and unknown bits of its attributes 0
    (LEG-R3).
    """

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

    @property
    def last_offset(self) -> int:
        """The offset of the last record by the header, whether it is still there or not (OFF-R1, LEG-R2)."""
        return wrap(self.base_offset + self.last_offset_delta, 64)


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
    """Codec 5 to 7, or zstd in magic 0 and 1."""


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


def lz4_header_checksum(data: bytes) -> int:
    """L4-R4: the second byte of xxh32 with seed 0; `data` is shorter than 16 bytes, for which no lanes are needed."""
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
    """Return the frame with the right header checksum, or with that of KAFKA-3160: over the magic too (L4-R5)."""
    end = 14 if frame[4] & 0x08 else 6  # behind the content size, if there is one
    if len(frame) <= end:
        raise CodecFailure("LZ4 frame is cut")
    return frame[:end] + bytes([lz4_header_checksum(frame[0 if broken else 4 : end])]) + frame[end + 1 :]


def _unlz4(payload: bytes, any_header_checksum: bool = False) -> bytes:
    if payload[:4] != b"\x04\x22\x4d\x18" or len(payload) < 7:
        raise CodecFailure("no LZ4 frame")  # L4-R10
    flags, block = payload[4], payload[5]
    if flags >> 6 != 1 or flags & 0x03 or block & 0x8F or block >> 4 < 4:
        raise CodecFailure("LZ4 frame descriptor")  # L4-R3
    if any_header_checksum:
        payload = with_lz4_header_checksum(payload)
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


# -- decoding batches (magic 2)


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


def _decode_v2(entry: bytes, position: int, verify: bool, _verify_inner: bool) -> Batch:
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


# -- decoding message sets (magic 0 and 1)


class Message(NamedTuple):
    """One entry of magic 0 or 1 as stored: a record, or the wrapper of some (LEG-R9)."""

    offset: int
    crc: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def codec(self) -> int:
        return self.attributes & 7

    def record(self, offset: int, timestamp: int) -> Record:
        return Record(offset, timestamp, -1, self.key, self.value)


def _read_message(entry: bytes, verify: bool) -> Message:
    """Read an entry whose length fits its magic."""
    (offset, crc, magic, attributes) = struct.unpack_from(">q4xIbB", entry)
    if verify and zlib.crc32(entry[16:]) != crc:
        raise BadCrc(f"stored {crc:#x}")  # CRC-R7
    if attributes & 7 > 3:
        raise Unsupported(f"codec {attributes & 7} in magic {magic}")  # LEG-R19: whatever the fields are
    timestamp = struct.unpack_from(">q", entry, 18)[0] if magic == 1 else -1  # LEG-R4, LEG-R5
    fields = Cursor(entry[26 if magic == 1 else 18 :])

    def optional_bytes() -> bytes | None:
        (length,) = struct.unpack(">i", fields.take(4))
        return None if length < 0 else fields.take(length)  # LEG-R6, LEG-R7

    # LEG-R3, LEG-R8: bits without a meaning, and bytes behind the value, are not looked at.
    attributes &= 0x0F if magic == 1 else 0x07
    return Message(offset, crc, magic, attributes, timestamp, optional_bytes(), optional_bytes())


def _read_inner(data: bytes, verify: bool) -> list[Message]:
    """Read what was in a wrapper: messages, none of them compressed, the last of them whole (LEG-R14)."""
    messages = []
    position = 0
    while len(data) - position >= 12:
        try:
            size = next_entry(data, position)
        except Corrupt as error:
            raise Invalid(f"inner message: {error}") from None
        if not size:
            raise Invalid("inner messages are cut")
        if data[position + 16] > 1:
            raise Invalid("inner batch of magic 2")  # LEG-R18
        if data[position + 17] & 7:
            raise Invalid("inner message is compressed")  # LEG-R18
        messages.append(_read_message(data[position : position + size], verify))
        position += size
    if not messages:
        raise Invalid("nothing in a compressed message")  # LEG-R17
    return messages


def _unwrap(wrapper: Message, verify: bool) -> list[Record]:
    if wrapper.value is None:
        raise Invalid("compressed message without a value")  # LEG-R17
    if wrapper.codec == 3:
        plain = _unlz4(wrapper.value, any_header_checksum=wrapper.magic == 0)  # L4-R5
    else:
        plain = _DECOMPRESS[wrapper.codec](wrapper.value)
    inner = _read_inner(plain, verify)
    base = 0
    if wrapper.magic == 1 and wrapper.offset != 0:  # LEG-R10 to LEG-R12
        if wrapper.offset < inner[-1].offset:
            raise Invalid(f"offset {wrapper.offset} of a wrapper, {inner[-1].offset} of the last message in it")
        base = wrapper.offset - inner[-1].offset
    records = []
    for message in inner:
        timestamp = message.timestamp
        if message.magic == 1 and wrapper.attributes & LOG_APPEND_TIME:
            timestamp = wrapper.timestamp  # LEG-R15; LEG-R16: not that of magic 0
        records.append(message.record(wrap(base + message.offset, 64), timestamp))
    return records


def _decode_legacy(entry: bytes, position: int, verify: bool, verify_inner: bool) -> Batch:
    message = _read_message(entry, verify)
    records = _unwrap(message, verify_inner) if message.codec else [message.record(message.offset, message.timestamp)]
    return Batch(
        position=position,
        size=len(entry),
        magic=message.magic,
        base_offset=records[0].offset,
        partition_leader_epoch=-1,
        crc=message.crc,
        attributes=message.attributes,
        last_offset_delta=wrap(message.offset - records[0].offset, 32),
        base_timestamp=-1,
        max_timestamp=message.timestamp,  # LEG-R22
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=len(records),
        records=tuple(records),
    )


# -- decoding anything


# Least value of the length field, and the reader, by magic.
_LEAST_LENGTH = {0: 14, 1: 22, 2: 49}
_DECODERS: dict[int, Callable[[bytes, int, bool, bool], Batch]] = {0: _decode_legacy, 1: _decode_legacy, 2: _decode_v2}


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


def decode(data: bytes, *, verify: bool = True, verify_inner: bool | None = None) -> Decoded:
    """Decode until the end of `data` or the first error.

    A bad checksum of a message in a wrapper is an error too if `verify_inner`, by default as `verify` (CRC-R5).
    """
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
            batches.append(
                _DECODERS[entry[16]](entry, position, verify, verify if verify_inner is None else verify_inner)
            )
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


# -- building batches


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


# -- building message sets

LEGACY_CODECS = ("none", "gzip", "snappy", "snappy-raw", "lz4")


def build_message(
    key: bytes | None = None,
    value: bytes | None = None,
    *,
    magic: int = 1,
    offset: int = 0,
    timestamp: int = 1000,
    attributes: int = 0,
    key_length: int | None = None,
    value_length: int | None = None,
    extra: bytes = b"",
    length: int | None = None,
    crc: int | None = None,
) -> bytes:
    """Frame a message of magic 0 or 1; what is given of lengths and checksum is written, right or wrong.

    The timestamp is left out of magic 0. `extra` is what stands behind the value (LEG-R8).
    """

    def field(data: bytes | None, given: int | None) -> bytes:
        right = -1 if data is None else len(data)
        return struct.pack(">i", right if given is None else given) + (data or b"")

    body = struct.pack(">bB", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    body += field(key, key_length) + field(value, value_length) + extra
    header = struct.pack(">qi", offset, 4 + len(body) if length is None else length)
    return header + struct.pack(">I", zlib.crc32(body) if crc is None else crc) + body


def message_set(
    contents: Sequence[tuple[bytes | None, bytes | None]],
    *,
    magic: int = 1,
    offsets: Sequence[int] | None = None,
    timestamps: Sequence[int] | None = None,
    attributes: int = 0,
) -> bytes:
    """Frame plain messages one after the other; offsets count from 0 and timestamps from 1000 if they aren't given."""
    count = len(contents)
    return b"".join(
        build_message(key, value, magic=magic, offset=offset, timestamp=timestamp, attributes=attributes)
        for (key, value), offset, timestamp in zip(
            contents,
            range(count) if offsets is None else offsets,
            range(1000, 1000 + count) if timestamps is None else timestamps,
            strict=True,
        )
    )


def build_wrapper(
    inner: bytes,
    *,
    codec: str,
    magic: int = 1,
    offset: int = 0,
    timestamp: int = 1000,
    attributes: int = 0,
    key: bytes | None = None,
    broken_lz4: bool | None = None,
    **fields: int | bytes | None,
) -> bytes:
    """Compress `inner`, which is written as it is, into the value of a message.

    The header checksum of lz4 is the broken one in magic 0 (L4-R5) if `broken_lz4` doesn't say otherwise. Further
    fields are those of `build_message`.
    """
    payload = compress(codec, inner)
    if codec == "lz4":
        payload = with_lz4_header_checksum(payload, broken=magic == 0 if broken_lz4 is None else broken_lz4)
    return build_message(
        key,
        payload,
        magic=magic,
        offset=offset,
        timestamp=timestamp,
        attributes=attributes | CODECS[codec],
        **fields,  # type: ignore[arg-type]
    )


def build_message_set(
    contents: Sequence[tuple[bytes | None, bytes | None]],
    *,
    codec: str = "none",
    magic: int = 1,
    base_offset: int = 0,
    deltas: Sequence[int] | None = None,
    timestamps: Sequence[int] | None = None,
    append_time: int | None = None,
) -> bytes:
    """Build messages as a broker stores them (LEG-R27): plain ones each for itself, others in one wrapper.

    `deltas` are the distances of offsets from `base_offset`, 0, 1, 2 ... if they aren't given. With `append_time` the
    timestamp type is that, in a wrapper that of the wrapper only (LEG-R15); magic 0 ignores it.
    """
    count = len(contents)
    deltas = range(count) if deltas is None else deltas
    offsets = [wrap(base_offset + delta, 64) for delta in deltas]
    timestamps = range(1000, 1000 + count) if timestamps is None else timestamps
    attributes = LOG_APPEND_TIME if magic == 1 and append_time is not None else 0
    if codec == "none":
        if append_time is not None:
            timestamps = [append_time] * count
        return message_set(contents, magic=magic, offsets=offsets, timestamps=timestamps, attributes=attributes)
    inner = message_set(contents, magic=magic, offsets=deltas if magic else offsets, timestamps=timestamps)
    latest = max(timestamps, default=-1) if append_time is None else append_time
    return build_wrapper(
        inner,
        codec=codec,
        magic=magic,
        offset=offsets[-1] if offsets else base_offset,
        timestamp=latest,
        attributes=attributes,
    )
