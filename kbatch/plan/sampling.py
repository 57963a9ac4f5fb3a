"""Places in the bytes of logs from which samples are read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from kbatch.log import Log, Segment
from kbatch.log.indexes import OffsetEntry

__all__ = ["Place", "places_at"]


class Place(NamedTuple):
    """A byte of a log.

    Attributes
    ----------
    log : Log
    segment : Segment
    entry : OffsetEntry or None
        The last entry of the segment's index at or before the byte; None if there is none.
    """

    log: Log
    segment: Segment
    entry: OffsetEntry | None


def places_at(logs: Sequence[Log], targets: Iterable[int]) -> Iterator[Place]:
    """Yield the place of each target, a position in the joined bytes of all segments."""
    segments = [(log, segment) for log in logs for segment in log.segments]
    ends = list(accumulate(segment.size for _, segment in segments))
    for target in targets:
        number = bisect_right(ends, target)
        log, segment = segments[number]
        yield Place(log, segment, _entry_before(segment, target - (ends[number] - segment.size)))


def _entry_before(segment: Segment, position: int) -> OffsetEntry | None:
    if segment.base_offset is None:
        return None
    index = segment.offset_index()
    number = int(np.searchsorted(index["position"], position, "right")) - 1
    return None if number < 0 else OffsetEntry(int(index["offset"][number]), int(index["position"][number]))
