"""The checks that a broker makes before it appends a produced batch: `validate_batch`.

It follows Kafka's ``ProduceRequest.validateRecords``, ``UnifiedLog.append`` and ``LogValidator`` (PRD-R1 to
R4). `kbatch.SequenceChecker` checks the sequences of idempotent producers.
"""

from __future__ import annotations

from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.batches.arena import Arena, PayloadError
from kbatch.batches.checksums import good_crcs
from kbatch.batches.codecs import decompress
from kbatch.batches.framing import byte_array, scan_part
from kbatch.broker.topic_config import TopicConfig
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
    error_at,
    finding_to_error,
)
from kbatch.format import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    DEFAULT_LIMITS,
    MESSAGE_HEADER_SIZES,
    NO_TIMESTAMP,
    BytesLike,
    Limits,
    TimestampType,
)
from kbatch.public_names import public_in
from kbatch.read.decoding import decode
from kbatch.records.display import shown_time
from kbatch.table import RecordTable
from kbatch.write.batch_layout import now

__all__ = ["Origin", "check_segment_size", "count_numbered", "inner_messages", "refuse_batch", "validate_batch"]

Origin: TypeAlias = Literal["client", "coordinator"]

# The maximum number of bad records that an error's text lists.
_MAX_LISTED = 3

# The broker's answer for each exception of the decoder. Kafka has no error code for a payload that does not decompress,
# and none for an unknown codec.
_CODES: dict[type[KbatchError], ErrorCode] = {
    CorruptBatchError: ErrorCode.CORRUPT_MESSAGE,
    TruncatedBatchError: ErrorCode.CORRUPT_MESSAGE,
    CrcMismatchError: ErrorCode.CORRUPT_MESSAGE,
    InvalidRecordError: ErrorCode.INVALID_RECORD,
    CodecError: ErrorCode.UNKNOWN_SERVER_ERROR,
    UnsupportedFormatError: ErrorCode.UNKNOWN_SERVER_ERROR,
    LimitExceededError: ErrorCode.MESSAGE_TOO_LARGE,
}


def refuse_batch(code: ErrorCode, batch: np.void | None, text: str, **details: Any) -> NoReturn:
    """Raise RefusedError for a batch, or for the request as a whole."""
    if batch is None:
        raise RefusedError(f"byte 0: {text}", code=code, position=0)
    raise error_at(RefusedError, batch, None, text, code=code, **details)


def _refuse_for(error: KbatchError, magic: int = 2) -> NoReturn:
    """Raise RefusedError with the broker's code for an error of the decoder."""
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


@public_in("kbatch")
def validate_batch(
    data: BytesLike,
    topic: TopicConfig | None = None,
    *,
    origin: Origin = "client",
    now_ms: int | None = None,
    limits: Limits | None = None,
) -> RecordTable:
    """Check the records that a producer sends for a partition, as the broker does before it appends them.

    Parameters
    ----------
    data : buffer
        The records of one partition in a Produce request: one batch of magic 2, one compressed message of magic 0 or 1,
        or any number of uncompressed messages.
    topic : TopicConfig, optional
        Default is a topic with Kafka's defaults.
    origin : {"client", "coordinator"}
        A group or transaction coordinator may write control batches, any base offset, and batches of a producer without
        a sequence.
    now_ms : int, optional
        The broker's clock, in milliseconds since the epoch. Default is the time of this call.
    limits : Limits, optional
        As for `kbatch.decode`.

    Returns
    -------
    RecordTable
        The decoded records.

    Raises
    ------
    RefusedError
        If a broker would not append the records. ``code`` is the broker's answer; ``records`` contains the numbers of
        all bad records of the first batch that has any, if records are the reason. They count from 0 in each batch.
        Each uncompressed message of magic 0 or 1 counts as a batch, so its number is 0.

    Notes
    -----
    The checks, in order: framing (CORRUPT_MESSAGE); exactly one batch, of the topic's magic (INVALID_RECORD); base
    offset 0 from a client (INVALID_RECORD); ``max.message.bytes`` (MESSAGE_TOO_LARGE); checksums (CORRUPT_MESSAGE);
    from a client at least one record, the number of records that the offsets imply, no control batch, and a sequence if
    there is a producer id (INVALID_RECORD); producer fields only where magic 2 is stored
    (UNSUPPORTED_FOR_MESSAGE_FORMAT); readable records (INVALID_RECORD, or UNKNOWN_SERVER_ERROR if they do not
    decompress; UNSUPPORTED_COMPRESSION_TYPE for zstd in old formats); the checksum of each message in a compressed
    message (CORRUPT_MESSAGE). The last checks collect all bad records of a batch, and stop at the first batch with a
    bad record: one magic in all messages and keys in a compacted topic (INVALID_RECORD); timestamps close enough to the
    clock and not marked as the broker's (INVALID_TIMESTAMP, also if other records are bad for another reason).

    Two checks are stricter than in a broker, which silently drops what they refuse: a partial batch at the end is
    CORRUPT_MESSAGE, and a partial message at the end of a compressed message is INVALID_RECORD, from its 12th
    byte on.

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
    check_types(validate_batch, locals())
    topic = TopicConfig() if topic is None else topic
    if origin not in ("client", "coordinator"):
        raise ValueError(f"origin must be 'client' or 'coordinator', got {origin!r}")
    array = byte_array(data)
    batches = _complete_batches(array, topic, origin)
    try:
        table = decode(data, include_control=True, crc="skip", limits=limits)
    except KbatchError as error:
        _refuse_for(error, int(batches["magic"][0]))
    other = np.zeros(len(table), np.bool_)
    if batches["magic"][0] < 2 and batches["attributes"][0] & ATTRIBUTE_CODEC:
        other = _other_magic(array, batches[0], limits)
    _check_records(table, other, topic, now() if now_ms is None else now_ms)
    return table


def _complete_batches(data: npt.NDArray[np.uint8], topic: TopicConfig, origin: Origin) -> npt.NDArray[np.void]:
    """Return the headers of the batches in `data`, checked; a partial batch is refused."""
    scan = scan_part(data)
    batches = scan.batches
    if scan.finding is not None:
        _refuse_for(finding_to_error(scan.finding, source=None, position=scan.consumed))
    if not len(batches):
        refuse_batch(ErrorCode.INVALID_RECORD, None, "the records contain no complete batch")
    _check_entries(data, batches, topic, origin)
    if batches["magic"][0] == 2:
        _check_fields(batches[0], topic, origin)
    if scan.consumed < len(data):
        text = f"{len(data) - scan.consumed} bytes after the last batch are not a complete batch"
        refuse_batch(ErrorCode.CORRUPT_MESSAGE, None, text)
    return batches


def _check_entries(
    data: npt.NDArray[np.uint8], batches: npt.NDArray[np.void], topic: TopicConfig, origin: Origin
) -> None:
    """Check the number of batches or messages, their magic, sizes and checksums."""

    def first(mask: npt.NDArray[np.bool_]) -> np.void | None:
        batch: np.void | None = batches[int(np.argmax(mask))] if mask.any() else None
        return batch

    invalid = ErrorCode.INVALID_RECORD
    magic = int(batches["magic"][0])
    if len(batches) > 1 and (magic == 2 or batches["attributes"][0] & ATTRIBUTE_CODEC):
        refuse_batch(invalid, batches[1], "a second batch; a request holds exactly one per partition")
    # With more than one message, the first is uncompressed; the others must be uncompressed too.
    if len(batches) > 1 and (bad := first(batches["attributes"] & ATTRIBUTE_CODEC != 0)) is not None:
        refuse_batch(invalid, bad, "a compressed message after uncompressed ones")
    if magic != topic.magic and not topic.converting:
        refuse_batch(invalid, batches[0], f"magic is {magic}, the topic accepts {topic.magic}")
    if magic == 2 and origin == "client" and batches["base_offset"][0] != 0:
        refuse_batch(invalid, batches[0], "the base offset of a produced batch must be 0")
    if (bad := first(batches["size"] > topic.max_message_bytes)) is not None:
        text = f"{bad['size']} bytes, max.message.bytes is {topic.max_message_bytes}"
        refuse_batch(ErrorCode.MESSAGE_TOO_LARGE, bad, text)
    if (bad := first(~good_crcs(data, batches))) is not None:
        refuse_batch(ErrorCode.CORRUPT_MESSAGE, bad, "the checksum does not match the bytes")
    check_segment_size(int(batches["size"].sum()), topic)


def _check_fields(batch: np.void, topic: TopicConfig, origin: Origin) -> None:
    """Check the header of a batch of magic 2."""
    invalid = ErrorCode.INVALID_RECORD
    count, delta, attributes = int(batch["record_count"]), int(batch["last_offset_delta"]), int(batch["attributes"])
    if origin == "client":
        if delta < 0:
            refuse_batch(invalid, batch, f"last offset delta is {delta}")
        if count <= 0:
            refuse_batch(invalid, batch, f"record count is {count}")
        if count != delta + 1:
            refuse_batch(invalid, batch, f"record count is {count}, but the batch spans {delta + 1} offsets")
        if attributes & ATTRIBUTE_CONTROL:
            refuse_batch(invalid, batch, "clients may not write control batches")
        if batch["producer_id"] >= 0 and batch["base_sequence"] < 0:
            refuse_batch(invalid, batch, f"sequence is {batch['base_sequence']} in a batch with a producer id")
    if topic.magic < 2 and (attributes & ATTRIBUTE_TRANSACTIONAL or batch["producer_id"] >= 0):
        text = f"producer fields can't be stored in magic {topic.magic}"
        refuse_batch(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, batch, text)


def check_segment_size(size: int, topic: TopicConfig) -> None:
    """Refuse more bytes than a segment of the topic may hold."""
    if size > topic.segment_bytes:
        refuse_batch(ErrorCode.RECORD_LIST_TOO_LARGE, None, f"{size} bytes, segment.bytes is {topic.segment_bytes}")


def _other_magic(data: npt.NDArray[np.uint8], batch: np.void, limits: Limits | None) -> npt.NDArray[np.bool_]:
    """Return which messages in a compressed message have another magic; refuse it if a checksum is wrong.

    Kafka collects wrong magics with the errors of records, but stops at a wrong checksum (``LogValidator``).
    """
    payload, messages = inner_messages(data, batch, limits)
    other = np.asarray(messages["magic"] != batch["magic"])
    bad = np.flatnonzero(~good_crcs(payload, messages, 0) & ~other)
    if len(bad):
        text = f"the checksums of messages in a compressed message do not match their bytes{_listed(bad)}"
        refuse_batch(ErrorCode.CORRUPT_MESSAGE, batch, text, records=bad)
    return other


def _listed(rows: npt.NDArray[np.intp]) -> str:
    """Return the end of an error's text: the numbers of the first records, and the number of the others."""
    more = f" and {len(rows) - _MAX_LISTED} more" if len(rows) > _MAX_LISTED else ""
    return f": record {', '.join(map(str, rows[:_MAX_LISTED].tolist()))}{more}"


def _check_records(table: RecordTable, other: npt.NDArray[np.bool_], topic: TopicConfig, clock: int) -> None:
    """Check the magic, key and timestamp of each record; `other` has another magic than its compressed message."""
    records, batches = table.records, table.batches
    nothing = np.zeros(len(records), np.bool_)
    keyless = records["key_len"] < 0 if topic.compacted else nothing
    times = records["timestamp"]
    has_time = late = nothing
    if topic.timestamp_type == TimestampType.CREATE_TIME:
        has_time = times != NO_TIMESTAMP
        # As in Java, the difference of extreme values wraps around.
        ahead = times - np.int64(clock)
        late = has_time & ((-ahead > topic.timestamp_before_max_ms) | (ahead > topic.timestamp_after_max_ms))
    appended = (TimestampType.of(batches) == TimestampType.LOG_APPEND_TIME)[records["batch"]] & ~has_time
    late = (late | appended) & ~keyless & ~other
    bad = np.flatnonzero(other | keyless | late)
    if batches["magic"][0] < 2:
        # Each uncompressed message counts as a batch, and Kafka stops at the first bad batch.
        changes = np.flatnonzero(batches["magic"] != batches["magic"][0])
        if len(changes) and not (len(bad) and records["batch"][bad[0]] < changes[0]):
            text = f"magic is {batches['magic'][changes[0]]}, but {batches['magic'][0]} in the messages before"
            refuse_batch(ErrorCode.INVALID_RECORD, batches[changes[0]], text)
        bad = bad[records["batch"][bad] == records["batch"][bad[0]]] if len(bad) else bad
    if not len(bad):
        return
    batch = batches[records["batch"][bad[0]]]
    numbers = bad - int(batch["first_record"])
    late_rows = bad[late[bad]]
    if not len(late_rows):
        text = "records without a key, for a compacted topic"
        if other[bad].any():
            text = f"messages in a compressed message of magic {batch['magic']} have another magic"
            text += " or no key, which a compacted topic requires" * bool((keyless & ~other)[bad].any())
        refuse_batch(ErrorCode.INVALID_RECORD, batch, f"{text}{_listed(numbers)}", records=numbers)
    row = late_rows[0]
    if appended[row]:
        text = "the timestamp type is LogAppendTime, which only the broker may set"
    else:
        text = f"timestamp is {times[row]} ({shown_time(int(times[row]))}), "
        first, last = clock - topic.timestamp_before_max_ms, clock + topic.timestamp_after_max_ms
        is_early = times[row] < first
        text += "earlier" if is_early else "later"
        text += f" than the topic allows: {first if is_early else last} ({shown_time(first if is_early else last)})"
    refuse_batch(ErrorCode.INVALID_TIMESTAMP, batch, f"{text}{_listed(numbers)}", records=numbers)


def inner_messages(
    data: npt.NDArray[np.uint8], batch: np.void, limits: Limits | None = None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.void]]:
    """Decompress a compressed message; return its payload and the headers of the messages in it."""
    view = data.data[int(batch["position"]) : int(batch["position"] + batch["size"])]
    magic = int(batch["magic"])
    at = MESSAGE_HEADER_SIZES[magic]
    at += 4 + max(int.from_bytes(view[at : at + 4], "big", signed=True), 0)
    size = int.from_bytes(view[at : at + 4], "big", signed=True)
    arena = Arena()
    limit = (limits or DEFAULT_LIMITS).max_decompressed_bytes
    try:
        decompress(int(batch["attributes"]) & ATTRIBUTE_CODEC, view[at + 4 : at + 4 + size], arena, limit, magic)
    except PayloadError as error:
        raise finding_to_error(
            error.finding, source=None, position=int(batch["position"]), base_offset=int(batch["last_offset"])
        ) from None
    payload = arena.array()
    return payload, scan_part(payload).batches


def count_numbered(data: npt.NDArray[np.uint8], batch: np.void) -> int | None:
    """Return the number of messages in a compressed message, or None if their offsets are not 0, 1, 2, ..."""
    _, messages = inner_messages(data, batch)
    if not len(messages):
        raise error_at(InvalidRecordError, batch, None, "compressed message contains no messages")
    numbered = np.array_equal(messages["last_offset"], np.arange(len(messages)))
    return len(messages) if numbered else None
