"""Records that are written anew -> the batches that they go into."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kbatch.format import ATTRIBUTE_CODEC, ATTRIBUTE_LOG_APPEND_TIME, BATCH_DTYPE, Codec

__all__ = ["falling", "grouped"]

Batches = npt.NDArray[np.void]
Records = npt.NDArray[np.void]

_INT32_MAX = 2**31 - 1
# What a record takes in a batch of magic 2 beside its key and value, about.
_RECORD_OVERHEAD = 16


def falling(
    offsets: npt.NDArray[np.int64], of_batch: npt.NDArray[np.int32], bad: npt.NDArray[np.bool_], after: int
) -> list[int]:
    """Return the batches whose offsets are negative or don't rise, also from those before them that are written.

    Parameters
    ----------
    offsets, of_batch : ndarray, shape (records,)
        Of each record its offset, and the row of its batch.
    bad : ndarray of bool, shape (batches,)
        Batches that are not written.
    after : int
        The last offset that was written before.
    """
    falls = np.ones(len(offsets), np.bool_)
    falls[1:] = offsets[1:] <= offsets[:-1]
    if len(offsets) and offsets[0] > after:
        falls[0] = False
    falls |= offsets < 0
    if not falls.any():
        return []
    begins = np.flatnonzero(np.append(True, of_batch[1:] != of_batch[:-1]))
    ends = np.append(begins[1:], len(offsets)) - 1
    # To its first offset it comes below.
    falls[begins] = offsets[begins] < 0
    inside = np.logical_or.reduceat(falls, begins)
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
    kept: Batches, counts: npt.NDArray[np.int64], rows: Records, magic: int, codec: Codec | None, batch_size: int
) -> Batches:
    """Return the rows of the batches to write, but for their sizes.

    Parameters
    ----------
    kept : ndarray of BATCH_DTYPE
        The batches that the records are from, in order; a message that stands alone is one.
    counts : ndarray of int64
        How many records each of them has, one at least.
    rows : ndarray of RECORD_DTYPE
    magic : int
        Of the batches to write.
    codec : Codec or None
        Theirs; None for that of each batch.
    batch_size : int
        Bytes, before compression, up to which messages that stand alone are put together.
    """
    attributes = kept["attributes"] & (ATTRIBUTE_CODEC | ATTRIBUTE_LOG_APPEND_TIME)
    attributes[kept["magic"] == 0] &= ATTRIBUTE_CODEC
    alone = (kept["magic"] < 2) & (attributes & ATTRIBUTE_CODEC == 0)
    if codec is not None:
        attributes = attributes & ~ATTRIBUTE_CODEC | int(codec)
    first = np.cumsum(counts) - counts
    appended = attributes & ATTRIBUTE_LOG_APPEND_TIME != 0
    if magic == 2 or codec:
        # One batch has one append time.
        times = np.where(appended, kept["max_timestamp"], 0)
        begins = np.ones(len(kept), np.bool_)
        begins[1:] = ~(alone[1:] & alone[:-1])
        begins[1:] |= (attributes[1:] != attributes[:-1]) | (times[1:] != times[:-1])
        begins[1:] |= kept["magic"][1:] != kept["magic"][:-1]
        if alone.any():
            lengths = np.maximum(rows["key_len"], 0) + np.maximum(rows["value_len"], 0, dtype=np.int64)
            lengths += _RECORD_OVERHEAD
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
        # Where it doesn't fit, measuring the batch finds that.
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
    """Let further batches begin where one would become too large, or its offsets too far apart."""
    starts = np.flatnonzero(begins)
    stops = np.append(starts[1:], len(begins))
    ends = np.cumsum(sizes)
    before = ends - sizes
    large = (ends[stops - 1] - before[starts] > batch_size) | (offsets[stops - 1] - offsets[starts] > _INT32_MAX)
    large &= stops - starts > 1
    for start, stop in zip(starts[large].tolist(), stops[large].tolist(), strict=True):
        while start < stop:
            begins[start] = True
            room = int(np.searchsorted(ends[start:stop], before[start] + batch_size, "right"))
            near = int(np.searchsorted(offsets[start:stop], offsets[start] + _INT32_MAX, "right"))
            start += max(1, min(room, near))
