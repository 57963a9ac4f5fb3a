"""The batches without application data: transaction markers and empty batches."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from kbatch.arguments import check_types
from kbatch.format import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_DTYPE,
    BATCH_HEADER_SIZE,
    INT32_MAX,
    INT64_MAX,
    NO_TIMESTAMP,
    ControlType,
    TimestampType,
)
from kbatch.kernels.sizes import Plan
from kbatch.public_names import public_in
from kbatch.write.batch_layout import BatchLayout, check_range, now
from kbatch.write.composing import compose, plan_batches, record_columns
from kbatch.write.record_columns import millisecond

__all__ = ["encode_empty", "encode_marker"]

_MARKER_TYPES = {"abort": ControlType.ABORT, "commit": ControlType.COMMIT}


@public_in("kbatch")
def encode_marker(
    kind: Literal["commit", "abort"] | ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int = 0,
    offset: int = 0,
    timestamp: Any = None,
    leader_epoch: int = -1,
) -> bytes:
    """Encode the control batch that ends a transaction, as written for a transaction coordinator.

    Parameters
    ----------
    kind : {"commit", "abort"}, or kbatch.ControlType
    producer_id, producer_epoch : int
        Of the transaction.
    coordinator_epoch : int
        Epoch of the transaction coordinator, the marker's only value.
    offset : int
        Of the marker, which takes one like any record.
    timestamp : int, datetime or str, optional
        Default is the time of this call.
    leader_epoch : int
        As for `encode`.

    Returns
    -------
    bytes
        A batch of one record: transactional, control, uncompressed, without a sequence (CTL-R6, SEQ-R6).

    Raises
    ------
    ValueError
        If `kind` is invalid, or a number is out of range.

    Notes
    -----
    ``MemoryRecords.withEndTransactionMarker``, ``EndTxnMarker.json``, ``ControlRecordTypeSchema.json``.

    References
    ----------
    Rules such as CTL-R6 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> data = kbatch.encode([b"a"], producer_id=9, producer_epoch=2, base_sequence=0, transactional=True)
    >>> data += kbatch.encode_marker("abort", producer_id=9, producer_epoch=2, offset=1)
    >>> len(kbatch.decode(data)), len(kbatch.decode(data, isolation="read_committed"))
    (1, 0)
    """
    check_types(encode_marker, locals())
    marker = _MARKER_TYPES.get(kind) if isinstance(kind, str) else kind
    if not isinstance(marker, int | np.integer) or marker not in _MARKER_TYPES.values():
        raise ValueError(f"kind must be 'commit' or 'abort', got {kind!r}")
    check_range("producer_id", producer_id, 0, INT64_MAX)
    check_range("producer_epoch", producer_epoch, 0, 2**15 - 1)
    check_range("coordinator_epoch", coordinator_epoch, -(2**31), INT32_MAX)
    check_range("leader_epoch", leader_epoch, -1, INT32_MAX)
    check_range("offset", offset, 0, INT64_MAX)
    stamp = now() if timestamp is None else millisecond(timestamp)
    check_range("timestamp", stamp, -1, INT64_MAX)
    records = record_columns(
        [b"\0\0" + int(coordinator_epoch).to_bytes(4, "big", signed=True)],
        keys=[b"\0\0" + int(marker).to_bytes(2, "big")],
        timestamps=stamp,
        headers=None,
        offsets=None,
        next_offset=offset,
        layout=BatchLayout(),
        append_time=None,
    )
    batches = plan_batches(records, Plan(2, ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL))
    batches["producer_id"], batches["producer_epoch"], batches["base_sequence"] = producer_id, producer_epoch, -1
    batches["partition_leader_epoch"] = leader_epoch
    return compose(records, batches, None)


@public_in("kbatch")
def encode_empty(
    base_offset: int,
    last_offset: int,
    *,
    max_timestamp: int = NO_TIMESTAMP,
    timestamp_type: TimestampType | Literal["create_time", "log_append_time"] = TimestampType.CREATE_TIME,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """Encode a batch without records, by which a compacted log keeps a producer's last sequence or its last offset.

    Parameters
    ----------
    base_offset, last_offset : int
        The range of offsets that the batch covers, both inclusive.
    max_timestamp : int
        Of the batch that it was, in milliseconds since the epoch.
    control : bool
        Whether it was a control batch.
    timestamp_type, leader_epoch, producer_id, producer_epoch, base_sequence, transactional
        As for `encode`; a control batch has no sequence.

    Returns
    -------
    bytes
        The 61 bytes of a batch header, with codec none (EMP-R3) and base timestamp -1 (TS-R7).

    Raises
    ------
    ValueError
        As `encode` does; or if the offsets are not in order, or further apart than an int32 holds.

    Notes
    -----
    ``DefaultRecordBatch.writeEmptyHeader``; EMP-R1.

    References
    ----------
    Rules such as EMP-R3 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> kbatch.decode(kbatch.encode_empty(20, 24)).batches["last_offset"].tolist()
    [24]
    """
    check_types(encode_empty, locals())
    layout = BatchLayout.of(
        magic=2,
        codec=None,
        timestamp_type=timestamp_type,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=0 if control and producer_id >= 0 and base_sequence == -1 else base_sequence,
        transactional=transactional,
    )
    check_range("base_offset", base_offset, 0, INT64_MAX)
    check_range("last_offset", last_offset, base_offset, min(base_offset + INT32_MAX, INT64_MAX))
    check_range("max_timestamp", max_timestamp, -1, INT64_MAX)
    batches = np.zeros(1, BATCH_DTYPE)
    batches["magic"] = 2
    batches["attributes"] = layout.attributes | ATTRIBUTE_CONTROL * control
    batches["base_offset"], batches["last_offset"] = base_offset, last_offset
    batches["last_offset_delta"] = last_offset - base_offset
    batches["base_timestamp"], batches["max_timestamp"] = NO_TIMESTAMP, max_timestamp
    batches["size"] = BATCH_HEADER_SIZE
    layout.complete(batches, layout.base_sequence, None)
    batches["base_sequence"] = base_sequence
    return compose(None, batches, None)
