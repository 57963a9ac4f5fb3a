"""Offsets, leader epochs and append times, written into batches in place: `assign_offsets` (PRD-R6, PRD-R7)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from kbatch.arguments import check_types
from kbatch.batches.framing import byte_array, put_values, scan_complete
from kbatch.broker.validation import count_numbered
from kbatch.errors import InvalidRecordError, UnsupportedFormatError, error_at
from kbatch.format import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTES_AT,
    INT32_MAX,
    INT64_MAX,
    KNOWN_ATTRIBUTES,
    LEADER_EPOCH_AT,
    MAX_TIMESTAMP_AT,
    MESSAGE_ATTRIBUTES_AT,
    MESSAGE_TIMESTAMP_AT,
    TimestampType,
)
from kbatch.kernels.checksum import write_crcs
from kbatch.public_names import public_in
from kbatch.write.batch_layout import check_range

__all__ = ["assign_offsets", "write_times"]


@public_in("kbatch")
def assign_offsets(
    data: Buffer, base_offset: int, *, leader_epoch: int | None = None, append_time: int | None = None
) -> int:
    """Assign consecutive offsets to batches, in place, as the leader of a partition does.

    The checksum of a batch of magic 2 covers neither its base offset nor its leader epoch, and the checksum of a
    message does not cover its offset, so no other byte changes, with any codec.

    Parameters
    ----------
    data : writable buffer
        Complete batches, such as a ``bytearray``.
    base_offset : int
        Offset of the first record.
    leader_epoch : int, optional
        Leader epoch of the batches of magic 2. Default is to leave it unchanged.
    append_time : int, optional
        Milliseconds since the epoch. All records get this timestamp by way of the batch's timestamp type, and the
        checksums are written again (PRD-R7). In magic 2 the records' own timestamps stay in the bytes, where no reader
        sees them.

    Returns
    -------
    int
        The offset after the last one.

    Raises
    ------
    TypeError
        If `data` is not writable.
    CorruptBatchError, InvalidRecordError, CodecError, TruncatedBatchError
        If `data` is not a sequence of valid batches; `data` is then unchanged.
    UnsupportedFormatError
        If offsets can't be assigned in place: for a compressed message of magic 0, whose inner messages have absolute
        offsets, and for one of magic 1 whose inner messages are not numbered 0, 1, 2, ... `accept_batch` re-encodes
        them.

    Notes
    -----
    A batch takes ``last_offset_delta`` + 1 offsets. A compressed message of magic 1 has the offset of its last record,
    and the offsets in it are relative (LEG-R11): it has to be decompressed to count its messages.

    References
    ----------
    Rules such as PRD-R7 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> data = bytearray(kbatch.encode([b"a", b"b"], codec="zstd", timestamps=1))
    >>> kbatch.assign_offsets(data, 100, leader_epoch=3)
    102
    >>> kbatch.decode(data).records["offset"].tolist()
    [100, 101]
    """
    check_types(assign_offsets, locals())
    check_range("base_offset", base_offset, 0, INT64_MAX)
    if leader_epoch is not None:
        check_range("leader_epoch", leader_epoch, -1, INT32_MAX)
    if append_time is not None:
        check_range("append_time", append_time, -1, INT64_MAX)
    array = byte_array(data)
    if memoryview(data).readonly:
        raise TypeError(f"data must be writable, such as a bytearray, got {type(data).__name__}")
    batches = scan_complete(array)
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
        at = positions[current] + LEADER_EPOCH_AT
        put_values(out, at, np.full(len(at), leader_epoch, np.int64), ">i4")
    if append_time is not None:
        write_times(out, batches, TimestampType.LOG_APPEND_TIME, np.full(len(batches), append_time, np.int64))
    return base_offset + (int(ends[-1]) if len(ends) else 0)


def _offset_counts(data: npt.NDArray[np.uint8], batches: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Return the number of offsets that each batch takes; raise where they can't be assigned in place."""
    old = batches["magic"] < 2
    counts = np.where(old, 1, batches["last_offset_delta"].astype(np.int64) + 1)
    wrong = np.flatnonzero(counts <= 0)
    if len(wrong):
        batch = batches[wrong[0]]
        raise error_at(InvalidRecordError, batch, None, f"last offset delta is {batch['last_offset_delta']}")
    for row in np.flatnonzero(old & (batches["attributes"] & ATTRIBUTE_CODEC != 0)).tolist():
        batch = batches[row]
        numbered = None if batch["magic"] == 0 else count_numbered(data, batch)
        if numbered is None:
            kind = "of magic 0" if batch["magic"] == 0 else "whose messages aren't numbered 0, 1, 2, ..."
            text = f"a compressed message {kind} can't get other offsets in place; kbatch.accept_batch re-encodes it"
            raise error_at(UnsupportedFormatError, batch, None, text)
        counts[row] = numbered
    return counts


def write_times(
    out: npt.NDArray[np.uint8], batches: npt.NDArray[np.void], kind: TimestampType, times: npt.NDArray[np.int64]
) -> None:
    """Write the timestamp type and maximum timestamp of batches or messages, and the checksums of the changed ones."""
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
    put_values(out, positions[current] + ATTRIBUTES_AT, attributes[current], ">i2")
    put_values(out, positions[~current] + MESSAGE_ATTRIBUTES_AT, attributes[~current], ">i1")
    put_values(out, positions + np.where(current, MAX_TIMESTAMP_AT, MESSAGE_TIMESTAMP_AT), times, ">i8")
    write_crcs(out, rows)
