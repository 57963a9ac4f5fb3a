"""A slow, simple decoder of record batches, and a builder of valid and invalid ones, to test the kernels with.

It is written from the description of the format and the conformance catalogue, and shares no code with the package: it
uses `struct`, reads one variable-length integer at a time, and creates one object per record.

Outcomes have the names of the catalogue: `Corrupt`, `BadCrc`, `Invalid`, `CodecFailure` and `Unsupported` are
exceptions. PARTIAL is not an error: `Decoded.unread` is the number of bytes of an incomplete batch at the end.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from oracle_primitives import (  # noqa: F401 - tests import all of these from here
    DECOMPRESS,
    XERIAL,
    CodecFailure,
    OracleError,
    compress,
    crc32c,
    lz4_header_checksum,
    overlong,
    unlz4,
    with_lz4_header_checksum,
    wrap,
    xerial,
    zigzag,
)

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "snappy-raw": 2, "lz4": 3, "zstd": 4}
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61

Headers = tuple[tuple[bytes, bytes | None], ...]


# -- results


class Record(NamedTuple):
    offset: int
    timestamp: int
    sequence: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Batch(NamedTuple):
    """One entry of a log: the header's fields as stored, and its records.

    For an entry of magic 0 or 1, `last_offset` is its offset, and `base_offset` and `record_count` come from its
    content (LEG-R2, LEG-R23). Fields that do not exist in its magic are -1 (LEG-R24), and unknown bits of its
    attributes are 0 (LEG-R3).
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
        """The last offset by the header, even if that record was compacted away (OFF-R1, LEG-R2)."""
        return wrap(self.base_offset + self.last_offset_delta, 64)


class Decoded(NamedTuple):
    """Complete batches up to the first error, the error, and the number of bytes of an incomplete last batch."""

    batches: list[Batch]
    error: OracleError | None
    unread: int


class Corrupt(OracleError):
    """The framing is invalid, so the next batch cannot be found."""


class BadCrc(OracleError):
    """The framing is valid, but the checksum is wrong."""


class Invalid(OracleError):
    """The framing is valid, but the content is not."""


class Unsupported(OracleError):
    """The codec is 5 to 7, or zstd in magic 0 or 1."""


class Cursor:
    """Reads from bytes; reading beyond the end raises `Invalid`."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        if count < 0 or count > self.left():
            raise Invalid(f"{count} bytes requested, {self.left()} left")
        self.at += count
        return self.data[self.at - count : self.at]

    def zigzag(self, bits: int) -> int:
        """Read at most 5 bytes for 32 bits or 10 for 64 (VAR-R1); higher bits are dropped (VAR-R2)."""
        raw = 0
        for i in range(5 if bits == 32 else 10):
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << 7 * i
            if byte < 0x80:
                raw &= (1 << bits) - 1
                return raw >> 1 ^ -(raw & 1)
        raise Invalid(f"variable-length integer of {bits} bits is too long")

    def optional_bytes(self) -> bytes | None:
        """Read a length and the bytes; any negative length is null (REC-R1, HDR-R3)."""
        length = self.zigzag(32)
        return None if length < 0 else self.take(length)


# -- decoding batches (magic 2)


def sequence(base: int, delta: int) -> int:
    """Return the sequence of a record: 0 follows INT32_MAX, and -1 means none (SEQ-R1, SEQ-R4)."""
    if base < 0:
        return -1
    return wrap(delta - (INT32_MAX - base) - 1, 32) if base > INT32_MAX - delta else wrap(base + delta, 32)


def _read_record(payload: Cursor, batch: Batch) -> Record:
    record = Cursor(payload.take(payload.zigzag(32)))
    record.take(1)  # attributes: any value (REC-R5)
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
    if codec not in DECOMPRESS:
        raise Unsupported(f"codec {codec}")  # ATT-R3
    if batch.record_count < 0:
        raise Invalid(f"{batch.record_count} records")  # CNT-R1
    if batch.record_count == 0:
        return batch  # CNT-R2: the payload is ignored
    payload = Cursor(DECOMPRESS[codec](entry[HEADER_SIZE:]))
    records = []
    for _ in range(batch.record_count):
        records.append(_read_record(payload, batch))
    if payload.left():
        raise Invalid(f"{payload.left()} bytes after the last record")  # CNT-R4
    return batch._replace(records=tuple(records))


# -- decoding message sets (magic 0 and 1)


class Message(NamedTuple):
    """One entry of magic 0 or 1 as stored: a record, or a wrapper of records (LEG-R9)."""

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
    """Read an entry whose length is valid for its magic."""
    (offset, crc, magic, attributes) = struct.unpack_from(">q4xIbB", entry)
    if verify and zlib.crc32(entry[16:]) != crc:
        raise BadCrc(f"stored {crc:#x}")  # CRC-R7
    if attributes & 7 > 3:
        raise Unsupported(f"codec {attributes & 7} in magic {magic}")  # LEG-R19: before the other fields are checked
    timestamp = struct.unpack_from(">q", entry, 18)[0] if magic == 1 else -1  # LEG-R4, LEG-R5
    fields = Cursor(entry[26 if magic == 1 else 18 :])

    def optional_bytes() -> bytes | None:
        (length,) = struct.unpack(">i", fields.take(4))
        return None if length < 0 else fields.take(length)  # LEG-R6, LEG-R7

    # Unknown bits (LEG-R3) and bytes after the value (LEG-R8) are ignored.
    attributes &= 0x0F if magic == 1 else 0x07
    return Message(offset, crc, magic, attributes, timestamp, optional_bytes(), optional_bytes())


def _read_inner(data: bytes, verify: bool) -> list[Message]:
    """Read the messages in a wrapper; all must be uncompressed and the last one complete (LEG-R14)."""
    messages = []
    position = 0
    while len(data) - position >= 12:
        try:
            size = next_entry(data, position)
        except Corrupt as error:
            raise Invalid(f"inner message: {error}") from None
        if not size:
            raise Invalid("the last inner message is incomplete")
        if data[position + 16] > 1:
            raise Invalid("inner batch of magic 2")  # LEG-R18
        if data[position + 17] & 7:
            raise Invalid("inner message is compressed")  # LEG-R18
        messages.append(_read_message(data[position : position + size], verify))
        position += size
    if not messages:
        raise Invalid("compressed message is empty")  # LEG-R17
    return messages


def _unwrap(wrapper: Message, verify: bool) -> list[Record]:
    if wrapper.value is None:
        raise Invalid("compressed message without a value")  # LEG-R17
    if wrapper.codec == 3:
        plain = unlz4(wrapper.value, any_header_checksum=wrapper.magic == 0)  # L4-R5
    else:
        plain = DECOMPRESS[wrapper.codec](wrapper.value)
    inner = _read_inner(plain, verify)
    base = 0
    if wrapper.magic == 1 and wrapper.offset != 0:  # LEG-R10 to LEG-R12
        if wrapper.offset < inner[-1].offset:
            raise Invalid(f"wrapper has offset {wrapper.offset}, its last message {inner[-1].offset}")
        base = wrapper.offset - inner[-1].offset
    records = []
    for message in inner:
        timestamp = message.timestamp
        if message.magic == 1 and wrapper.attributes & LOG_APPEND_TIME:
            timestamp = wrapper.timestamp  # LEG-R15; not for inner messages of magic 0 (LEG-R16)
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


# The minimum of the length field, and the decoder, by magic.
_LEAST_LENGTH = {0: 14, 1: 22, 2: 49}
_DECODERS: dict[int, Callable[[bytes, int, bool, bool], Batch]] = {0: _decode_legacy, 1: _decode_legacy, 2: _decode_v2}


def next_entry(data: bytes, position: int) -> int:
    """Return the size of the entry at `position`, 0 if it is incomplete (PARTIAL)."""
    left = len(data) - position
    if left < 12:
        return 0
    (length,) = struct.unpack_from(">i", data, position + 8)
    if length < 14:
        raise Corrupt(f"length {length}")  # FRM-R2: also if the entry is incomplete
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

    If `verify_inner`, a wrong checksum of a message in a wrapper is an error, too; the default is `verify` (CRC-R5).
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
    """Return the SHA-1 of the canonical serialisation, as in the golden files."""

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
    """Encode a record; every length and count can be replaced by another number or by raw bytes."""

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

    `codec` compresses the records and sets its bits in `attributes`; `payload` replaces the compressed records. Other
    given fields are written as they are, right or wrong; fields that are not given are computed.
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
    """Return the batch with the given checksum, by default the correct one."""
    return batch[:17] + struct.pack(">I", crc32c(batch[21:]) if crc is None else crc) + batch[21:]


def three(base_offset: int = 0, **fields: object) -> bytes:
    """Build the batch that most vectors consist of: three small records with timestamps 1000, 1005, 1009."""
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
    """Build a message of magic 0 or 1; given lengths and checksums are written as they are, right or wrong.

    Magic 0 has no timestamp. `extra` is appended after the value (LEG-R8).
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
    """Build consecutive uncompressed messages; by default, offsets start at 0 and timestamps at 1000."""
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
    """Compress `inner`, which is not changed, into the value of a message.

    In magic 0, the header checksum of lz4 is the broken one (L4-R5), unless `broken_lz4` is given. `fields` are passed
    to `build_message`.
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
    """Build messages as a broker stores them (LEG-R27): uncompressed ones separately, compressed ones in one wrapper.

    `deltas` are the offsets relative to `base_offset`, by default 0, 1, 2 ... `append_time` sets the timestamp and the
    timestamp type LogAppendTime, for compressed messages only in the wrapper (LEG-R15); magic 0 has no type.
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
