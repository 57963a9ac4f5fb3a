"""Encodes the records of batches again, as batches of another magic or codec."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from kbatch.errors import CrcMismatchError, InvalidRecordError, error_at
from kbatch.format import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_LOG_APPEND_TIME,
    BATCH_DTYPE,
    INT32_MAX,
    NO_TIMESTAMP,
    BatchStatus,
    Codec,
)
from kbatch.kernels import source as _source
from kbatch.kernels.sizes import measure_batches
from kbatch.read.in_memory import decode_tables
from kbatch.rewrite.rewriter import Memory, Rewriter, Run
from kbatch.table import RecordTable
from kbatch.write.composing import compose_view, raise_fault

__all__ = ["grouped", "non_monotonic", "reencoded"]

# The approximate size of a table of decoded records.
GROUPING_TABLE_BYTES = 8 << 20

# The approximate size of a record of magic 2 without its key and value.
_TYPICAL_OVERHEAD = 16


def reencoded(
    run: Run,
    magic: int,
    rewriter: Rewriter,
    memory: Memory,
    check: Callable[[RecordTable, str | None], None] | None = None,
) -> Iterator[memoryview]:
    """Decode the records of a run, and encode them with the header fields that all magics have.

    Each message set and each batch of magic 2 becomes one batch. Uncompressed messages are combined if the output is a
    batch or a compressed message set.

    Parameters
    ----------
    run : Run
    magic : int
        Magic of the output.
    rewriter : Rewriter
        Its codec is the codec of the output; None keeps the codec of each batch.
    memory : callable
        Returns memory of a size, for the output.
    check : callable, optional
        Called with each decoded table and the source.

    Yields
    ------
    memoryview
        Complete batches.
    """
    batches = run.batches
    # The checksums of batches were verified, but not the checksums of messages in compressed messages.
    verified = (batches["magic"] == 2) | (batches["attributes"] & ATTRIBUTE_CODEC == 0)
    options = replace(rewriter.decoding, crc="skip" if verified.all() else "verify")
    after, left = -1, len(run.data)
    for decoded in decode_tables(
        run.data,
        options,
        origin=run.origin,
        source=run.source,
        max_bytes=GROUPING_TABLE_BYTES,
        is_bounded=True,
        splits=False,
    ):
        left -= decoded.consumed
        rewriter.add_damage(decoded.losses, run.source)
        if check is not None:
            check(decoded, run.source)
        table = _writable(decoded, after, run.source, rewriter)
        if len(table):
            after = int(table.records["offset"][-1])
            yield _encoded(table, magic, run.source, rewriter, memory)
    if left:
        raise RuntimeError(f"the last {left} bytes were not decoded, before byte {run.origin + len(run.data)}")


def _writable(table: RecordTable, after: int, source: str | None, rewriter: Rewriter) -> RecordTable:
    """Return the records that can be written after offset `after`; leave out batches with other records."""
    rows, batches = table.records, table.batches
    bad = (batches["status"] != BatchStatus.OK) & (np.bincount(rows["batch"], minlength=len(batches)) > 0)
    for row in np.flatnonzero(bad).tolist():
        # Bad batches have no rows, except for wrong checksums of inner messages.
        text = "the checksum of a message in a compressed message does not match"
        rewriter.leave_out(batches[row], text, source, CrcMismatchError)
    for row in non_monotonic(rows["offset"], rows["batch"], bad, after):
        text = "offsets do not ascend or are negative, so the records can't be written"
        rewriter.leave_out(batches[row], text, source, InvalidRecordError)
        bad[row] = True
    return table[~bad[rows["batch"]]] if bad.any() else table


def _encoded(table: RecordTable, magic: int, source: str | None, rewriter: Rewriter, memory: Memory) -> memoryview:
    """Encode records with ascending offsets."""
    rows, batches = table.records, table.batches
    counts = np.bincount(rows["batch"], minlength=len(batches))
    used = counts > 0
    kept = batches if used.all() else batches[used]
    made = grouped(kept, counts[used], rows, magic, rewriter.codec, rewriter.batch_size)
    times: Any = rows["timestamp"] if magic else None
    keys, values = _source.Column(), _source.Column()
    keys.add_slices(rows["key_pos"], rows["key_len"], table.data)
    values.add_slices(rows["value_pos"], rows["value_len"], table.data)
    records = _source.RecordColumns(values, keys, offsets=rows["offset"], timestamps=times, timestamp=NO_TIMESTAMP)
    _, row, fault, found = measure_batches(records, made)
    if fault:
        _raise_unsupported(batches[rows["batch"][row]], fault, found, source)
    rewriter.report.records += len(rows)
    messages = (made["magic"] < 2) & (made["attributes"] & ATTRIBUTE_CODEC == 0)
    rewriter.report.batches_written += int(np.where(messages, made["record_count"], 1).sum())
    return compose_view(records, made, rewriter.level, memory)


def _raise_unsupported(row: np.void, fault: int, found: int, source: str | None) -> NoReturn:
    """Raise for a batch with a record that the format does not support."""
    try:
        raise_fault(fault, 0, found)
    except ValueError as error:
        # The text may end with a hint about arguments of `encode`.
        text = str(error).removeprefix("record 0: ").partition("; give ")[0]
        raise error_at(InvalidRecordError, row, source, text) from None
    raise AssertionError("the kernel found no fault")


def non_monotonic(
    offsets: npt.NDArray[np.int64], of_batch: npt.NDArray[np.int32], bad: npt.NDArray[np.bool_], after: int
) -> list[int]:
    """Return the batches with negative offsets, and those whose offsets do not ascend from the last one written.

    Parameters
    ----------
    offsets, of_batch : ndarray, shape (records,)
        Offset of each record, and the row of its batch.
    bad : ndarray of bool, shape (batches,)
        Batches that are not written.
    after : int
        The last offset written before.
    """
    drops = np.ones(len(offsets), np.bool_)
    drops[1:] = offsets[1:] <= offsets[:-1]
    if len(offsets) and offsets[0] > after:
        drops[0] = False
    drops |= offsets < 0
    if not drops.any():
        return []
    begins = np.flatnonzero(np.append(True, of_batch[1:] != of_batch[:-1]))
    ends = np.append(begins[1:], len(offsets)) - 1
    # The first offset of a batch is compared with the batch before in the loop below.
    drops[begins] = offsets[begins] < 0
    inside = np.logical_or.reduceat(drops, begins)
    found = []
    last = after
    columns = (of_batch[begins], offsets[begins], offsets[ends], inside)
    for row, first, end, within in zip(*(column.tolist() for column in columns), strict=True):
        if bad[row]:
            continue
        if within or first <= last:
            found.append(row)
        else:
            last = end
    return found


def grouped(
    kept: npt.NDArray[np.void],
    counts: npt.NDArray[np.int64],
    rows: npt.NDArray[np.void],
    magic: int,
    codec: Codec | None,
    batch_size: int,
) -> npt.NDArray[np.void]:
    """Return the rows of the batches to write, without their sizes.

    Parameters
    ----------
    kept : ndarray of BATCH_DTYPE
        The source batches, in order; an uncompressed message is one.
    counts : ndarray of int64
        Number of records in each of them, at least 1.
    rows : ndarray of RECORD_DTYPE
    magic : int
        Magic of the output.
    codec : Codec or None
        Codec of the output; None keeps the codec of each batch.
    batch_size : int
        Size limit of combined messages, in bytes before compression.
    """
    attributes = kept["attributes"] & (ATTRIBUTE_CODEC | ATTRIBUTE_LOG_APPEND_TIME)
    attributes[kept["magic"] == 0] &= ATTRIBUTE_CODEC
    single = (kept["magic"] < 2) & (attributes & ATTRIBUTE_CODEC == 0)
    if codec is not None:
        attributes = attributes & ~ATTRIBUTE_CODEC | int(codec)
    first = np.cumsum(counts) - counts
    appended = attributes & ATTRIBUTE_LOG_APPEND_TIME != 0
    if magic == 2 or codec:
        # One batch has one append time.
        times = np.where(appended, kept["max_timestamp"], 0)
        begins = np.ones(len(kept), np.bool_)
        begins[1:] = ~(single[1:] & single[:-1])
        begins[1:] |= (attributes[1:] != attributes[:-1]) | (times[1:] != times[:-1])
        begins[1:] |= kept["magic"][1:] != kept["magic"][:-1]
        if single.any():
            lengths = np.maximum(rows["key_len"], 0) + np.maximum(rows["value_len"], 0, dtype=np.int64)
            lengths += _TYPICAL_OVERHEAD
            offsets = rows["offset"]
            if len(rows) > len(kept):
                lengths, offsets = np.add.reduceat(lengths, first), offsets[first]
            _cut(begins, lengths, offsets, batch_size)
        chosen = np.flatnonzero(begins)
    else:
        chosen = np.arange(len(kept))
    made = np.zeros(len(chosen), BATCH_DTYPE)
    made["magic"] = magic
    made["attributes"] = attributes[chosen]
    if magic == 0:
        made["attributes"] &= ATTRIBUTE_CODEC
    made["first_record"] = first[chosen]
    made["record_count"] = np.add.reduceat(counts, chosen)
    last = made["first_record"] + made["record_count"] - 1
    made["base_offset"] = rows["offset"][made["first_record"]]
    made["last_offset"] = rows["offset"][last]
    if magic == 2:
        # Measuring the batch detects an overflow.
        made["last_offset_delta"] = made["last_offset"] - made["base_offset"]
    largest = np.maximum.reduceat(rows["timestamp"], made["first_record"])
    made["max_timestamp"] = np.where(appended[chosen], kept["max_timestamp"][chosen], largest)
    made["base_timestamp"] = rows["timestamp"][made["first_record"]]
    for name in ("partition_leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
        made[name] = -1
    return made


def _cut(
    begins: npt.NDArray[np.bool_], sizes: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], batch_size: int
) -> None:
    """Begin further batches where one would become too large, or its offsets too far apart."""
    starts = np.flatnonzero(begins)
    stops = np.append(starts[1:], len(begins))
    ends = np.cumsum(sizes)
    before = ends - sizes
    large = (ends[stops - 1] - before[starts] > batch_size) | (offsets[stops - 1] - offsets[starts] > INT32_MAX)
    large &= stops - starts > 1
    for start, stop in zip(starts[large].tolist(), stops[large].tolist(), strict=True):
        while start < stop:
            begins[start] = True
            fitting = int(np.searchsorted(ends[start:stop], before[start] + batch_size, "right"))
            near = int(np.searchsorted(offsets[start:stop], offsets[start] + INT32_MAX, "right"))
            start += max(1, min(fitting, near))
