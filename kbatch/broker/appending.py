"""What a broker does to a produced batch: `validate_batch`, `assign_offsets`, and both as they follow: `accept_batch`.

The rules are those of Kafka's ``ProduceRequest.validateRecords``, ``UnifiedLog.append`` and ``LogValidator`` (PRD-R1 to
R8). Which sequences of idempotent producers are right is `kbatch.SequenceChecker`'s to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from kbatch.batches.checksums import good_crcs, write_crcs
from kbatch.batches.codecs import Arena, PayloadError, decompress
from kbatch.batches.framing import byte_array, put_values, scan_part, scan_whole
from kbatch.errors import (
    CodecError,
    CorruptBatchError,
    CrcMismatchError,
    ErrorCode,
    InvalidRecordError,
    KbatchError,
    LimitExceededError,
    RefusedError,
    TruncatedBatchError,
    UnsupportedFormatError,
    finding_to_error,
)
from kbatch.format import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    INT32_MAX,
    INT64_MAX,
    KNOWN_ATTRIBUTES,
    MESSAGE_HEADER_SIZES,
    NO_TIMESTAMP,
    Codec,
    Limits,
    TimestampType,
)
from kbatch.read.decoding import decode
from kbatch.table import RecordTable
from kbatch.write.encoding import Layout, check_range, compose, now, parse_codec, plan_batches, table_records

__all__ = ["TopicConfig", "accept_batch", "assign_offsets", "validate_batch"]

Batches: TypeAlias = npt.NDArray[np.void]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Origin: TypeAlias = Literal["client", "coordinator"]

# Where fields of a batch of magic 2 stand, and of messages.
_LEADER_EPOCH_AT = 12
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP_AT = 35
_MESSAGE_ATTRIBUTES_AT = 17
_MESSAGE_TIMESTAMP_AT = 18
# How many of the records that are wrong an error's text names.
_NAMED = 3

# What a broker answers where kbatch's decoder refuses. It has no code for what it can't decompress, nor for codecs that
# it doesn't know.
_CODES: dict[type[KbatchError], ErrorCode] = {
    CorruptBatchError: ErrorCode.CORRUPT_MESSAGE,
    TruncatedBatchError: ErrorCode.CORRUPT_MESSAGE,
    CrcMismatchError: ErrorCode.CORRUPT_MESSAGE,
    InvalidRecordError: ErrorCode.INVALID_RECORD,
    CodecError: ErrorCode.UNKNOWN_SERVER_ERROR,
    UnsupportedFormatError: ErrorCode.UNKNOWN_SERVER_ERROR,
    LimitExceededError: ErrorCode.MESSAGE_TOO_LARGE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of a topic that matter for a produced batch, with Kafka's defaults.

    Parameters
    ----------
    max_message_bytes : int
        ``max.message.bytes``: the largest batch, as stored, in bytes.
    segment_bytes : int
        ``segment.bytes``: no more than a segment holds can be appended at once, in bytes.
    compression_type : {"producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"}
        ``compression.type``: "producer" keeps what a batch has.
    compression_level : int, optional
        ``compression.gzip.level``, ``compression.lz4.level`` or ``compression.zstd.level``; see `kbatch.encode`.
    compacted : bool
        Whether ``cleanup.policy`` has "compact" in it, so that every record needs a key.
    timestamp_type : kbatch.TimestampType
        ``message.timestamp.type``.
    timestamp_before_max_ms, timestamp_after_max_ms : int
        ``message.timestamp.before.max.ms`` and ``message.timestamp.after.max.ms``: how far a record's timestamp may be
        from the broker's clock. The second is an hour since Kafka 4.0, and was unlimited before.
    magic : {2, 1, 0}
        The format that is stored: ``message.format.version``. It is always 2 since Kafka 4.0.
    converting : bool
        Whether batches of another magic are taken, and converted, as brokers before Kafka 4.0 do; else they are
        INVALID_RECORD.

    Raises
    ------
    ValueError, TypeError
        If a setting isn't one that a broker takes.

    Examples
    --------
    >>> import kbatch
    >>> kbatch.TopicConfig(compacted=True).max_message_bytes
    1048588
    """

    max_message_bytes: int = 1_048_588
    segment_bytes: int = 1 << 30
    compression_type: Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"] = "producer"
    compression_level: int | None = None
    compacted: bool = False
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = INT64_MAX
    timestamp_after_max_ms: int = 3_600_000
    magic: int = 2
    converting: bool = False

    def __post_init__(self) -> None:
        check_range("max_message_bytes", self.max_message_bytes, 0, INT32_MAX)
        check_range("segment_bytes", self.segment_bytes, 1, INT32_MAX)
        check_range("timestamp_before_max_ms", self.timestamp_before_max_ms, 0, INT64_MAX)
        check_range("timestamp_after_max_ms", self.timestamp_after_max_ms, 0, INT64_MAX)
        check_range("magic", self.magic, 0, 2)
        if self.timestamp_type not in (TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME):
            raise ValueError("timestamp_type must be CREATE_TIME or LOG_APPEND_TIME")
        if self.codec_of(Codec.NONE) == Codec.ZSTD and self.magic < 2:
            raise ValueError(f"zstd needs magic 2, got magic {self.magic}")

    def codec_of(self, source: int) -> Codec:
        """Return the codec in which a batch of codec `source` is stored."""
        if self.compression_type == "producer":
            return Codec(source)
        return Codec.NONE if self.compression_type == "uncompressed" else parse_codec(self.compression_type)


def _refuse(code: ErrorCode, batch: np.void | None, text: str, **more: Any) -> NoReturn:
    position = 0 if batch is None else int(batch["position"])
    offset = None if batch is None else int(batch["last_offset"] if batch["base_offset"] < 0 else batch["base_offset"])
    where = f"byte {position}" if offset is None else f"byte {position}, base offset {offset}"
    raise RefusedError(f"{where}: {text}", code=code, position=position, base_offset=offset, **more)


def _refuse_for(error: KbatchError, magic: int = 2) -> NoReturn:
    code = _CODES.get(type(error), ErrorCode.UNKNOWN_SERVER_ERROR)
    if magic < 2 and isinstance(error, UnsupportedFormatError):
        code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    raise RefusedError(
        str(error),
        code=code,
        source=error.source,
        position=error.position,
        base_offset=error.base_offset,
        record=error.record,
    ) from error


def validate_batch(
    data: Buffer,
    topic: TopicConfig | None = None,
    *,
    origin: Origin = "client",
    now_ms: int | None = None,
    limits: Limits | None = None,
) -> RecordTable:
    """Check what a producer has sent for a partition as the broker does that is to append it.

    Parameters
    ----------
    data : buffer
        The records of one partition in a Produce request: one batch of magic 2, one compressed message of magic 0 or 1,
        or any number of plain ones.
    topic : TopicConfig, optional
        Default is a topic with Kafka's defaults.
    origin : {"client", "coordinator"}
        A group or transaction coordinator may write control batches, offsets of its own, and batches of a producer
        without a sequence.
    now_ms : int, optional
        The broker's clock, in milliseconds since the epoch. Default is the time of this call.
    limits : Limits, optional
        As for `kbatch.decode`.

    Returns
    -------
    RecordTable
        The records, decoded.

    Raises
    ------
    RefusedError
        If a broker wouldn't append it. ``code`` is what it would answer; where records are the reason, ``records`` has
        the numbers of all that are wrong.

    Notes
    -----
    In this order: framing (CORRUPT_MESSAGE); exactly one batch, and the topic's magic (INVALID_RECORD); a client's base
    offset is 0 (INVALID_RECORD); ``max.message.bytes`` (MESSAGE_TOO_LARGE); checksums (CORRUPT_MESSAGE); of a client as
    many records as its offsets say, at least one, no control batch, and a sequence if there is a producer id
    (INVALID_RECORD); producer fields only where magic 2 is stored (UNSUPPORTED_FOR_MESSAGE_FORMAT); the records can be
    read (INVALID_RECORD, or UNKNOWN_SERVER_ERROR where they don't decompress; UNSUPPORTED_COMPRESSION_TYPE for zstd in
    old formats); in compressed messages the magic of each (INVALID_RECORD) and its checksum (CORRUPT_MESSAGE); keys in
    a compacted topic (INVALID_RECORD); timestamps not too far from the clock, and not by the producer said to be the
    broker's (INVALID_TIMESTAMP).

    Stricter than a broker in this: the fragment of a batch after the whole ones is CORRUPT_MESSAGE, where Kafka drops
    it without a word.

    Examples
    --------
    >>> import kbatch
    >>> len(kbatch.validate_batch(kbatch.encode([b"a", b"b"], codec="lz4")))
    2
    >>> try:
    ...     kbatch.validate_batch(kbatch.encode([b"a", b"b"], keys=[b"k", None]), kbatch.TopicConfig(compacted=True))
    ... except kbatch.RefusedError as error:
    ...     print(error.code.name, error.records.tolist())
    INVALID_RECORD [1]
    """
    topic = TopicConfig() if topic is None else topic
    if origin not in ("client", "coordinator"):
        raise ValueError(f"origin must be 'client' or 'coordinator', got {origin!r}")
    array = byte_array(data)
    found = scan_part(array)
    batches = found.batches
    if found.finding is not None:
        _refuse_for(finding_to_error(found.finding, source=None, position=found.consumed))
    if not len(batches):
        _refuse(ErrorCode.INVALID_RECORD, None, "there is no whole batch")
    _check_batches(array, batches, topic, origin)
    if found.consumed < len(array):
        left = len(array) - found.consumed
        _refuse(ErrorCode.CORRUPT_MESSAGE, None, f"{left} bytes after the last batch are none")
    try:
        table = decode(data, include_control=True, crc="skip", limits=limits)
    except KbatchError as error:
        _refuse_for(error, int(batches["magic"][0]))
    if batches["magic"][0] < 2 and batches["attributes"][0] & ATTRIBUTE_CODEC:
        _check_inner(array, batches[0], limits)
    _check_records(table, topic, now() if now_ms is None else now_ms)
    return table


def _check_batches(data: Bytes, batches: Batches, topic: TopicConfig, origin: Origin) -> None:
    """Check what headers say."""

    def first(mask: npt.NDArray[np.bool_]) -> np.void | None:
        batch: np.void | None = batches[int(np.argmax(mask))] if mask.any() else None
        return batch

    invalid = ErrorCode.INVALID_RECORD
    magic = int(batches["magic"][0])
    if len(batches) > 1 and (magic == 2 or batches["attributes"][0] & ATTRIBUTE_CODEC):
        _refuse(invalid, batches[1], "a second batch, and a request holds exactly one for a partition")
    if (bad := first(batches["magic"] != magic)) is not None:
        _refuse(invalid, bad, f"magic is {bad['magic']}, and that of the batches before is {magic}")
    # All of them are plain, if there is more than one.
    packed = (batches["attributes"] & ATTRIBUTE_CODEC != 0) & (len(batches) > 1)
    if magic < 2 and (bad := first(packed)) is not None:
        _refuse(invalid, bad, "a compressed message after plain ones")
    if magic != topic.magic and not topic.converting:
        _refuse(invalid, batches[0], f"magic is {magic}, the topic takes {topic.magic}")
    if magic == 2 and origin == "client" and batches["base_offset"][0] != 0:
        _refuse(invalid, batches[0], "the base offset of a produced batch must be 0")
    if (bad := first(batches["size"] > topic.max_message_bytes)) is not None:
        _refuse(
            ErrorCode.MESSAGE_TOO_LARGE, bad, f"{bad['size']} bytes, max.message.bytes is {topic.max_message_bytes}"
        )
    if (bad := first(~good_crcs(data, batches, 0))) is not None:
        _refuse(ErrorCode.CORRUPT_MESSAGE, bad, "the checksum isn't that of the bytes")
    _check_size(int(batches["size"].sum()), topic)
    if magic < 2:
        return
    batch = batches[0]
    count, delta, attributes = int(batch["record_count"]), int(batch["last_offset_delta"]), int(batch["attributes"])
    if origin == "client":
        if delta < 0:
            _refuse(invalid, batch, f"last offset delta is {delta}")
        if count <= 0:
            _refuse(invalid, batch, f"record count is {count}")
        if count != delta + 1:
            _refuse(invalid, batch, f"record count is {count}, the offsets are those of {delta + 1}")
        if attributes & ATTRIBUTE_CONTROL:
            _refuse(invalid, batch, "a control batch, which clients may not write")
        if batch["producer_id"] >= 0 and batch["base_sequence"] < 0:
            _refuse(invalid, batch, f"sequence is {batch['base_sequence']} in a batch with a producer id")
    if topic.magic < 2 and (attributes & ATTRIBUTE_TRANSACTIONAL or batch["producer_id"] >= 0):
        _refuse(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, batch, f"producer fields can't be stored in magic {topic.magic}"
        )


def _check_size(size: int, topic: TopicConfig) -> None:
    if size > topic.segment_bytes:
        _refuse(ErrorCode.RECORD_LIST_TOO_LARGE, None, f"{size} bytes, segment.bytes is {topic.segment_bytes}")


def _inner_messages(data: Bytes, batch: np.void, limits: Limits | None) -> tuple[Bytes, Batches]:
    """Decompress a compressed message; return its bytes and the messages in it."""
    view = data.data[int(batch["position"]) : int(batch["position"] + batch["size"])]
    at = MESSAGE_HEADER_SIZES[int(batch["magic"])]
    at += 4 + max(int.from_bytes(view[at : at + 4], "big", signed=True), 0)
    size = int.from_bytes(view[at : at + 4], "big", signed=True)
    arena = Arena()
    limit = (Limits() if limits is None else limits).max_decompressed_bytes
    try:
        decompress(
            int(batch["attributes"]) & ATTRIBUTE_CODEC, view[at + 4 : at + 4 + size], arena, limit, int(batch["magic"])
        )
    except PayloadError as error:
        raise finding_to_error(
            error.finding, source=None, position=int(batch["position"]), base_offset=int(batch["last_offset"])
        ) from None
    inner = arena.array()
    return inner, scan_part(inner).batches


def _check_inner(data: Bytes, batch: np.void, limits: Limits | None) -> None:
    inner, messages = _inner_messages(data, batch, limits)
    other = np.flatnonzero(messages["magic"] != batch["magic"])
    if len(other):
        text = f"messages in it have another magic than its own, {batch['magic']}{_named(other)}"
        _refuse(ErrorCode.INVALID_RECORD, batch, text, records=other)
    bad = np.flatnonzero(~good_crcs(inner, messages, 0))
    if len(bad):
        text = f"the checksum of messages in it isn't that of their bytes{_named(bad)}"
        _refuse(ErrorCode.CORRUPT_MESSAGE, batch, text, records=bad)


def _named(rows: npt.NDArray[np.intp]) -> str:
    """Say which records, the first of them by number."""
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f": record {', '.join(map(str, rows[:_NAMED].tolist()))}{more}"


def _check_records(table: RecordTable, topic: TopicConfig, clock: int) -> None:
    records, batches = table.records, table.batches
    keyless = records["key_len"] < 0 if topic.compacted else np.zeros(len(records), np.bool_)
    times = records["timestamp"]
    late = np.zeros(len(records), np.bool_)
    if topic.timestamp_type == TimestampType.CREATE_TIME:
        known = times != NO_TIMESTAMP
        # As in Java, where the difference of extremes goes round.
        ahead = times - np.int64(clock)
        late = known & ((-ahead > topic.timestamp_before_max_ms) | (ahead > topic.timestamp_after_max_ms))
    else:
        known = np.zeros(len(records), np.bool_)
    appended = (TimestampType.of(batches) == TimestampType.LOG_APPEND_TIME)[records["batch"]] & ~known
    late = (late | appended) & ~keyless
    bad = np.flatnonzero(keyless | late)
    if not len(bad):
        return
    batch = batches[records["batch"][bad[0]]]
    if not late.any():
        text = f"records without a key, for a compacted topic{_named(bad)}"
        _refuse(ErrorCode.INVALID_RECORD, batch, text, records=bad)
    if appended[np.argmax(late)]:
        text = "the timestamp type says that the broker has set the time"
    else:
        bounds = f"{clock - topic.timestamp_before_max_ms} to {clock + topic.timestamp_after_max_ms}"
        text = f"timestamp is {times[np.argmax(late)]}, allowed are {bounds}"
    _refuse(ErrorCode.INVALID_TIMESTAMP, batch, f"{text}{_named(bad)}", records=bad)


def assign_offsets(
    data: Buffer, base_offset: int, *, leader_epoch: int | None = None, append_time: int | None = None
) -> int:
    """Give batches the offsets from `base_offset` on, in place, as the leader of a partition does.

    Base offset and leader epoch of a batch of magic 2 stand outside of what its checksum covers, as do the offsets of
    messages, so that nothing else changes, whatever the codec.

    Parameters
    ----------
    data : writable buffer
        Whole batches, such as a ``bytearray``.
    base_offset : int
        Of the first record.
    leader_epoch : int, optional
        What batches of magic 2 get; default is to leave it as it is.
    append_time : int, optional
        Milliseconds since the epoch, which all records then have, by the batch's timestamp type; checksums are written
        anew (PRD-R7). In magic 2 the records' own timestamps stay in the bytes, where no reader sees them.

    Returns
    -------
    int
        The offset after the last one.

    Raises
    ------
    TypeError
        If `data` isn't writable.
    CorruptBatchError, InvalidRecordError, CodecError, TruncatedBatchError
        If something in `data` isn't a batch. Nothing has been changed then.
    UnsupportedFormatError
        For what can't be done in place: a compressed message of magic 0, whose inner messages have absolute offsets,
        or of magic 1 whose inner messages aren't numbered 0, 1, 2, ... `accept_batch` writes such ones anew.

    Notes
    -----
    A batch takes as many offsets as its ``last_offset_delta`` says. A compressed message of magic 1 has the offset of
    its last record, those in it are relative (LEG-R11): it has to be decompressed to be counted.

    Examples
    --------
    >>> import kbatch
    >>> data = bytearray(kbatch.encode([b"a", b"b"], codec="zstd", timestamps=1))
    >>> kbatch.assign_offsets(data, 100, leader_epoch=3)
    102
    >>> kbatch.decode(data).records["offset"].tolist()
    [100, 101]
    """
    check_range("base_offset", base_offset, 0, INT64_MAX)
    if leader_epoch is not None:
        check_range("leader_epoch", leader_epoch, -1, INT32_MAX)
    if append_time is not None:
        check_range("append_time", append_time, -1, INT64_MAX)
    array = byte_array(data)
    if memoryview(data).readonly:
        raise TypeError("data must be writable, such as a bytearray")
    batches = scan_whole(array)
    counts = _offset_counts(array, batches)
    if append_time is not None and (batches["magic"] == 0).any():
        raise ValueError("messages of magic 0 have no timestamps, and so no append time")
    ends = np.cumsum(counts)
    if len(ends) and int(ends[-1]) > INT64_MAX - base_offset + 1:
        raise ValueError(f"offsets must be below 2**63, got {ends[-1]} from {base_offset} on")
    out = np.frombuffer(memoryview(data).cast("B"), np.uint8)
    last = base_offset - 1 + ends
    current = batches["magic"] == 2
    positions = batches["position"]
    put_values(out, positions, np.where(current, last - batches["last_offset_delta"], last), ">i8")
    if leader_epoch is not None:
        at = positions[current] + _LEADER_EPOCH_AT
        put_values(out, at, np.full(len(at), leader_epoch, np.int64), ">i4")
    if append_time is not None:
        _set_times(out, batches, TimestampType.LOG_APPEND_TIME, np.full(len(batches), append_time, np.int64))
    return base_offset + (int(ends[-1]) if len(ends) else 0)


def _offset_counts(data: Bytes, batches: Batches) -> npt.NDArray[np.int64]:
    """Return how many offsets each batch takes; refuse what can't be given others in place."""
    counts = batches["last_offset_delta"].astype(np.int64) + 1
    wrong = np.flatnonzero((batches["magic"] == 2) & (counts <= 0))
    if len(wrong):
        batch = batches[wrong[0]]
        raise InvalidRecordError(
            f"byte {batch['position']}: last offset delta is {batch['last_offset_delta']}",
            position=int(batch["position"]),
            base_offset=int(batch["base_offset"]),
        )
    counts[batches["magic"] < 2] = 1
    for row in np.flatnonzero((batches["magic"] < 2) & (batches["attributes"] & ATTRIBUTE_CODEC != 0)).tolist():
        batch = batches[row]
        numbered = None if batch["magic"] == 0 else _count_numbered(data, batch)
        if numbered is None:
            what = "of magic 0" if batch["magic"] == 0 else "whose messages aren't numbered 0, 1, 2, ..."
            raise UnsupportedFormatError(
                f"byte {batch['position']}: a compressed message {what} can't get other offsets in place; "
                "kbatch.accept_batch writes it anew",
                position=int(batch["position"]),
                base_offset=int(batch["last_offset"]),
            )
        counts[row] = numbered
    return counts


def _count_numbered(data: Bytes, batch: np.void) -> int | None:
    """Count the messages in a compressed one; None if their offsets aren't 0, 1, 2, ..."""
    _, messages = _inner_messages(data, batch, None)
    if not len(messages):
        raise InvalidRecordError(
            f"byte {batch['position']}: compressed message holds no messages", position=int(batch["position"])
        )
    numbered: bool = np.array_equal(messages["last_offset"], np.arange(len(messages)))
    return len(messages) if numbered else None


def _set_times(out: Bytes, batches: Batches, kind: TimestampType, times: npt.NDArray[np.int64]) -> None:
    """Set timestamp type and maximum timestamp of batches, or messages, and the checksums of those that change."""
    bit = ATTRIBUTE_LOG_APPEND_TIME * (kind == TimestampType.LOG_APPEND_TIME)
    attributes = batches["attributes"]
    changed = (batches["magic"] > 0) & (
        (attributes & ATTRIBUTE_LOG_APPEND_TIME != bit) | (batches["max_timestamp"] != times)
    )
    rows, times = batches[changed], times[changed]
    current = rows["magic"] == 2
    known = np.where(current, KNOWN_ATTRIBUTES, ATTRIBUTE_CODEC) & ~ATTRIBUTE_LOG_APPEND_TIME
    attributes = (rows["attributes"] & known | bit).astype(np.int64)
    positions = rows["position"]
    put_values(out, positions[current] + _ATTRIBUTES_AT, attributes[current], ">i2")
    put_values(out, positions[~current] + _MESSAGE_ATTRIBUTES_AT, attributes[~current], ">i1")
    put_values(out, positions + np.where(current, _MAX_TIMESTAMP_AT, _MESSAGE_TIMESTAMP_AT), times, ">i8")
    write_crcs(out, rows)


def accept_batch(
    data: Buffer,
    base_offset: int,
    topic: TopicConfig | None = None,
    *,
    leader_epoch: int = 0,
    origin: Origin = "client",
    now_ms: int | None = None,
    limits: Limits | None = None,
) -> bytearray:
    """Make of what a producer has sent what a broker writes to the log.

    Parameters
    ----------
    data, topic, origin, now_ms, limits
        As for `validate_batch`, which is done first. `now_ms` is the append time besides.
    base_offset : int
        The end offset of the log.
    leader_epoch : int
        Of the broker as leader of the partition.

    Returns
    -------
    bytearray
        The batches, with offsets, leader epoch and maximum timestamp. The payload is that of `data` where the codec,
        and the format, are those of the topic; else one new batch takes all records (PRD-R5, PRD-R8).

    Raises
    ------
    RefusedError
        As by `validate_batch`; or MESSAGE_TOO_LARGE if it is too large once it is written anew.

    See Also
    --------
    SequenceChecker : what a broker checks next, of the batches as they are here; a duplicate isn't appended.

    Examples
    --------
    >>> import kbatch
    >>> sent = kbatch.encode([b"a" * 100, b"b"], timestamps=1)
    >>> stored = kbatch.accept_batch(sent, 100, kbatch.TopicConfig(compression_type="zstd"), leader_epoch=2)
    >>> kbatch.scan(stored)[["base_offset", "last_offset", "partition_leader_epoch", "attributes"]].tolist()
    [(100, 101, 2, 4)]
    """
    topic = TopicConfig() if topic is None else topic
    check_range("base_offset", base_offset, 0, INT64_MAX)
    check_range("leader_epoch", leader_epoch, 0, INT32_MAX)
    clock = now() if now_ms is None else now_ms
    table = validate_batch(data, topic, origin=origin, now_ms=clock, limits=limits)
    array = byte_array(data)
    batches = table.batches
    source = Codec(int(batches["attributes"][0]) & ATTRIBUTE_CODEC)
    magic = int(batches["magic"][0])
    control = magic == 2 and bool(batches["attributes"][0] & ATTRIBUTE_CONTROL)
    target = topic.codec_of(source)
    in_place = source == target and magic == topic.magic
    if in_place and source:
        in_place = magic == 2 and bool(
            (table.records["offset"] - batches["base_offset"][0] == np.arange(len(table))).all()
        )
        if magic == 1:
            in_place = _count_numbered(array, batches[0]) is not None
    if control and not source:
        in_place = True
    if not in_place:
        written = bytearray(_rebuild(table, base_offset, topic, target, leader_epoch, clock))
        # Of a batch without records nothing is left.
        if (size := int(scan_part(byte_array(written)).batches["size"].max(initial=0))) > topic.max_message_bytes:
            text = f"{size} bytes once written anew, max.message.bytes is {topic.max_message_bytes}"
            _refuse(ErrorCode.MESSAGE_TOO_LARGE, batches[0], text)
        _check_size(len(written), topic)
        return written
    out = bytearray(array.tobytes())
    appended = topic.timestamp_type == TimestampType.LOG_APPEND_TIME
    assign_offsets(out, base_offset, leader_epoch=leader_epoch, append_time=clock if appended and magic else None)
    if not appended:
        # What records have, not what the header said that they had (TS-R4).
        largest = np.full(len(batches), NO_TIMESTAMP, np.int64)
        filled = np.flatnonzero(batches["record_count"] > 0)
        if len(filled):
            found = np.maximum.reduceat(table.records["timestamp"], batches["first_record"][filled])
            largest[filled] = np.maximum(found, NO_TIMESTAMP)
        _set_times(np.frombuffer(out, np.uint8), batches, TimestampType.CREATE_TIME, largest)
    return out


def _rebuild(
    table: RecordTable, base_offset: int, topic: TopicConfig, codec: Codec, leader_epoch: int, clock: int
) -> bytes:
    """Write all records anew (``LogValidator.buildRecordsAndAssignOffsets``)."""
    first = table.batches[0]
    current = first["magic"] == 2
    if current and first["attributes"] & ATTRIBUTE_CONTROL:
        _refuse(ErrorCode.INVALID_RECORD, first, "a compressed control batch can't be written anew")
    if topic.magic < 2 and table.records["header_count"].any():
        _refuse(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, first, f"headers can't be stored in magic {topic.magic}")
    if codec == Codec.ZSTD and topic.magic < 2:
        _refuse(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, first, f"zstd can't be stored in magic {topic.magic}")
    appended = topic.timestamp_type == TimestampType.LOG_APPEND_TIME and topic.magic > 0
    times = table.records["timestamp"]
    if topic.magic == 0:
        times = np.full(len(table), NO_TIMESTAMP, np.int64)
    elif topic.magic == 1 and appended:
        times = np.full(len(table), clock, np.int64)
    layout = Layout(
        magic=topic.magic,
        codec=codec,
        timestamp_type=TimestampType.LOG_APPEND_TIME if appended else TimestampType.CREATE_TIME,
        transactional=bool(current and first["attributes"] & ATTRIBUTE_TRANSACTIONAL),
    )
    records = table_records(table, offsets=base_offset + np.arange(len(table), dtype=np.int64), timestamps=times)
    try:
        batches = plan_batches(records, layout.plan(None, None))
    except ValueError as error:
        # A timestamp below -1, which Kafka's builder refuses too.
        _refuse(ErrorCode.UNKNOWN_SERVER_ERROR, first, str(error))
    if topic.magic == 2:
        batches["partition_leader_epoch"] = leader_epoch
        for name in ("producer_id", "producer_epoch", "base_sequence"):
            batches[name] = first[name] if current else -1
    if appended:
        batches["max_timestamp"] = clock
    return compose(records, batches, topic.compression_level)
