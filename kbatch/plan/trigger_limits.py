"""The end of a micro-batch of a stream with a limit on its records or bytes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np

from kbatch.log import Log
from kbatch.log.committed import segment_before
from kbatch.plan.watching import LogState

__all__ = ["bytes_between", "bytes_from", "offset_after_bytes", "offset_after_records", "shares"]

KeyT = TypeVar("KeyT", bound=Hashable)


def shares(backlog: Mapping[KeyT, int], limit: int) -> dict[KeyT, int]:
    """Divide a limit in proportion, with at least one for each, like ``KafkaMicroBatchStream.rateLimit``."""
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    return {key: max(1, limit * size // total) for key, size in backlog.items()}


def bytes_from(log: Log, start: int, state: LogState) -> int:
    """Return the number of bytes from the offset `start` to the last complete batch."""
    number = segment_before(log.segments, start)
    size = sum(segment.size for segment in log.segments[number:])
    if log.segments[-1].path == state.last:
        size -= log.segments[-1].size - state.position
    return max(1, size - log.segments[number].seek_offset(start))


def bytes_between(log: Log, start: int, stop: int, state: LogState) -> int:
    """Return the number of bytes from the batch of the offset `start` up to the batch of `stop`, exclusive."""
    first, last = segment_before(log.segments, start), segment_before(log.segments, stop)
    is_end = stop >= state.end_offset and log.segments[last].path == state.last
    end = state.position if is_end else log.segments[last].seek_offset(stop)
    size = sum(segment.size for segment in log.segments[first:last])
    return max(0, size + end - log.segments[first].seek_offset(start))


def offset_after_bytes(log: Log, start: int, size: int) -> int:
    """Return the offset after the batch that ends `size` or more bytes after the offset `start`."""
    number = segment_before(log.segments, start)
    position = log.segments[number].seek_offset(start)
    offset = start
    for segment in log.segments[number:]:
        is_passed = segment.size - position <= size and segment is not log.segments[-1]
        for rows in () if is_passed else segment.scan(position):
            beyond = np.flatnonzero(rows["position"] + rows["size"] - position >= size)
            offset = int(rows["last_offset"][beyond[0] if len(beyond) else -1]) + 1
            if len(beyond):
                return offset
        size -= segment.size - position
        position = 0
    return offset


def offset_after_records(log: Log, start: int, limit: int) -> int:
    """Return the offset up to which a log has `limit` records from the offset `start` on, by its batch headers.

    Offsets that retention or compaction removed do not count. Only batches without missing offsets are divided: other
    batches, and compressed message sets, whose headers have no count, are included completely if they come first, and
    otherwise excluded. If the log ends earlier, or is damaged, the result is `limit` offsets after `start`, or the
    offset after the last batch if that is larger.
    """
    number = segment_before(log.segments, start)
    position = log.segments[number].seek_offset(start)
    reached, taken = start, 0
    for segment in log.segments[number:]:
        end = position
        for rows in segment.scan(position):
            last = rows["last_offset"]
            # Each batch counts from its first offset, which message sets do not have, or from `start`.
            before = np.maximum(np.concatenate([[reached], last[:-1] + 1]), reached)
            first = np.where(rows["base_offset"] < 0, before, np.maximum(rows["base_offset"], reached))
            counts = np.where(rows["record_count"] < 0, last - before + 1, rows["record_count"])
            counts = np.clip(counts, 0, np.maximum(last - first + 1, 0))
            totals = taken + np.cumsum(counts)
            beyond = int(np.searchsorted(totals, limit))
            if beyond < len(rows):
                more = int(totals[beyond]) - limit
                if more and rows["record_count"][beyond] == last[beyond] - rows["base_offset"][beyond] + 1:
                    return int(last[beyond]) + 1 - more
                if more and totals[beyond] > counts[beyond]:
                    return int(before[beyond])
                return int(last[beyond]) + 1
            taken, reached = int(totals[-1]), max(reached, int(last[-1]) + 1)
            end = int(rows["position"][-1] + rows["size"][-1])
        if end < segment.size:
            break
        position = 0
    return max(reached, start + limit)
