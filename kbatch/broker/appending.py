"""The batches that a broker appends for the records of a produce request: `accept_batch`.

A batch is stored as it is, with offsets, leader epoch and maximum timestamp written in place, or re-encoded where the
topic's codec or format differs (PRD-R5, PRD-R8).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.batches.framing import byte_array, scan_part
from kbatch.broker.offsets import assign_offsets, write_times
from kbatch.broker.topic_config import TopicConfig
from kbatch.broker.validation import Origin, check_segment_size, count_numbered, refuse_batch, validate_batch
from kbatch.errors import ErrorCode, ProducerStateError, error_at
from kbatch.format import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    INT32_MAX,
    INT64_MAX,
    NO_TIMESTAMP,
    BytesLike,
    Codec,
    Limits,
    TimestampType,
)
from kbatch.public_names import public_in
from kbatch.table import RecordTable
from kbatch.write.batch_layout import BatchLayout, check_range, now
from kbatch.write.composing import compose, plan_batches
from kbatch.write.original_batches import table_records

__all__ = ["accept_batch"]


@public_in("kbatch")
def accept_batch(
    data: BytesLike,
    base_offset: int,
    topic: TopicConfig | None = None,
    *,
    leader_epoch: int = 0,
    origin: Origin = "client",
    now_ms: int | None = None,
    limits: Limits | None = None,
) -> bytearray:
    """Return the batches that a broker writes to the log for the records that a producer sends.

    Parameters
    ----------
    data, topic, origin, now_ms, limits
        As for `validate_batch`, which checks the records first. `now_ms` is also the append time.
    base_offset : int
        The end offset of the log.
    leader_epoch : int
        The broker's epoch as the leader of the partition.

    Returns
    -------
    bytearray
        The batches, with offsets, leader epoch and maximum timestamp. The payload of `data` is kept if its codec and
        format are the topic's; otherwise one new batch contains all records (PRD-R5, PRD-R8).

    Raises
    ------
    RefusedError
        As for `validate_batch`, and MESSAGE_TOO_LARGE if the batch is too large after it was re-encoded. A batch to be
        re-encoded is also refused (UNKNOWN_SERVER_ERROR) if it is transactional without a producer id, or has a
        producer id without an epoch or sequence. That error is an InvalidRecordError too.

    See Also
    --------
    SequenceChecker : the broker's next check, for the returned batches; a duplicate is not appended.

    References
    ----------
    Rules such as PRD-R5 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> sent = kbatch.encode([b"a" * 100, b"b"], timestamps=1)
    >>> stored = kbatch.accept_batch(sent, 100, kbatch.TopicConfig(compression_type="zstd"), leader_epoch=2)
    >>> kbatch.scan(stored)[["base_offset", "last_offset", "partition_leader_epoch", "attributes"]].tolist()
    [(100, 101, 2, 4)]
    """
    check_types(accept_batch, locals())
    topic = TopicConfig() if topic is None else topic
    check_range("base_offset", base_offset, 0, INT64_MAX)
    check_range("leader_epoch", leader_epoch, 0, INT32_MAX)
    clock = now() if now_ms is None else now_ms
    table = validate_batch(data, topic, origin=origin, now_ms=clock, limits=limits)
    array = byte_array(data)
    if not _is_kept(array, table, topic):
        return _reencoded(table, base_offset, topic, leader_epoch, clock)
    out = bytearray(array.tobytes())
    batches = table.batches
    appended = topic.timestamp_type == TimestampType.LOG_APPEND_TIME
    append_time = clock if appended and batches["magic"][0] else None
    assign_offsets(out, base_offset, leader_epoch=leader_epoch, append_time=append_time)
    if not appended:
        # The records determine the maximum, even if the header contains another value (TS-R4).
        largest = np.full(len(batches), NO_TIMESTAMP, np.int64)
        filled = np.flatnonzero(batches["record_count"] > 0)
        if len(filled):
            found = np.maximum.reduceat(table.records["timestamp"], batches["first_record"][filled])
            largest[filled] = np.maximum(found, NO_TIMESTAMP)
        write_times(np.frombuffer(out, np.uint8), batches, TimestampType.CREATE_TIME, largest)
    return out


def _is_kept(data: npt.NDArray[np.uint8], table: RecordTable, topic: TopicConfig) -> bool:
    """Return whether the payload is stored as it is."""
    first = table.batches[0]
    magic, source = int(first["magic"]), int(first["attributes"]) & ATTRIBUTE_CODEC
    if magic == 2 and first["attributes"] & ATTRIBUTE_CONTROL and not source:
        return True
    if source != topic.codec_of(source) or magic != topic.magic:
        return False
    if not source:
        return True
    if magic == 2:
        return bool((table.records["offset"] - first["base_offset"] == np.arange(len(table))).all())
    return magic == 1 and count_numbered(data, first) is not None


def _producer_fault(batch: np.void) -> str | None:
    """Return why Kafka refuses to write a batch with these producer fields, or None.

    The rules are those of ``MemoryRecordsBuilder.validateProducerState``. Kafka has no error code for them.
    """
    if batch["producer_id"] == -1:
        is_transactional = batch["attributes"] & ATTRIBUTE_TRANSACTIONAL
        return "a transactional batch has no producer id" if is_transactional else None
    if batch["producer_epoch"] == -1:
        return "a batch with a producer id has no epoch"
    return "a batch with a producer id has no sequence" if batch["base_sequence"] < 0 else None


def _reencoded(table: RecordTable, base_offset: int, topic: TopicConfig, leader_epoch: int, clock: int) -> bytearray:
    """Encode all records as one batch (``LogValidator.buildRecordsAndAssignOffsets``)."""
    first = table.batches[0]
    current = first["magic"] == 2
    codec = topic.codec_of(int(first["attributes"]) & ATTRIBUTE_CODEC)
    if current and first["attributes"] & ATTRIBUTE_CONTROL:
        refuse_batch(ErrorCode.INVALID_RECORD, first, "a compressed control batch can't be re-encoded")
    if current and (fault := _producer_fault(first)) is not None:
        text = f"{fault}, so the batch can't be re-encoded"
        raise error_at(ProducerStateError, first, None, text, code=ErrorCode.UNKNOWN_SERVER_ERROR)
    if topic.magic < 2 and table.records["header_count"].any():
        refuse_batch(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, first, f"headers can't be stored in magic {topic.magic}")
    if codec == Codec.ZSTD and topic.magic < 2:
        refuse_batch(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, first, f"zstd can't be stored in magic {topic.magic}")
    appended = topic.timestamp_type == TimestampType.LOG_APPEND_TIME and topic.magic > 0
    times = table.records["timestamp"]
    if topic.magic == 0:
        times = np.full(len(table), NO_TIMESTAMP, np.int64)
    elif topic.magic == 1 and appended:
        times = np.full(len(table), clock, np.int64)
    layout = BatchLayout(
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
        refuse_batch(ErrorCode.UNKNOWN_SERVER_ERROR, first, str(error))
    if topic.magic == 2:
        batches["partition_leader_epoch"] = leader_epoch
        for name in ("producer_id", "producer_epoch", "base_sequence"):
            batches[name] = first[name] if current else -1
    if appended:
        batches["max_timestamp"] = clock
    written = bytearray(compose(records, batches, topic.compression_level))
    # A batch without records is re-encoded as no bytes.
    if (size := int(scan_part(byte_array(written)).batches["size"].max(initial=0))) > topic.max_message_bytes:
        text = f"{size} bytes after re-encoding, max.message.bytes is {topic.max_message_bytes}"
        refuse_batch(ErrorCode.MESSAGE_TOO_LARGE, first, text)
    check_segment_size(len(written), topic)
    return written
