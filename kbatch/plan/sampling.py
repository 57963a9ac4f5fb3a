"""Places in the bytes of logs from which samples are read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from kbatch.log import Log, Segment
from kbatch.log.files.indexes import OffsetEntry

__all__ = ["Place", "places_at"]


class Place(NamedTuple):
    """A place in a segment.

    Attributes
    ----------
    log : Log
    segment : Segment
    position : int
        In bytes.
    is_batch : bool
        Whether a batch begins at `position`. Otherwise decode with ``on_error="skip"``, which searches for the next
        batch.
    """

    log: Log
    segment: Segment
    position: int
    is_batch: bool


def places_at(logs: Sequence[Log], targets: Iterable[int]) -> Iterator[Place]:
    """Yield the place of each target, a position in the joined bytes of all segments.

    It is the batch of the last index entry before the target; without one, as in a copy without indexes, the target.
    """
    segments = [(log, segment) for log in logs for segment in log.segments]
    ends = list(accumulate(segment.size for _, segment in segments))
    for target in targets:
        number = bisect_right(ends, target)
        log, segment = segments[number]
        position = target - (ends[number] - segment.size)
        entry = _entry_before(segment, position)
        if entry is not None and segment._begins_batch(entry.position, entry.offset):
            yield Place(log, segment, entry.position, True)
        else:
            yield Place(log, segment, position, position == 0)


def _entry_before(segment: Segment, position: int) -> OffsetEntry | None:
    if segment.base_offset is None:
        return None
    index = segment.offset_index()
    number = int(np.searchsorted(index["position"], position, "right")) - 1
    return None if number < 0 else OffsetEntry(int(index["offset"][number]), int(index["position"][number]))
