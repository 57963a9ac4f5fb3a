"""Samples of logs: places spread over their bytes, and the keys and values there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np

from kbatch.log.files.indexes import OffsetEntry
from kbatch.log.reading import read_tables
from kbatch.log.segment import Segment
from kbatch.options import Crc, On
from kbatch.read.decode_options import DecodeOptions
from kbatch.values.parsed import sample

__all__ = ["Place", "SegmentedLog", "places_at", "sample_logs"]

# A schema is inferred from at most this number of places in the logs, and of values; a place has about these bytes.
SAMPLED_PLACES = 64
SAMPLED_ROWS = 6400
_SAMPLED_BYTES = 256 << 10
# Without an index, a batch is searched for in this number of bytes.
_SEARCHED_BYTES = 4 << 20


class SegmentedLog(Protocol):
    """A log of which samples are taken."""

    segments: list[Segment]


class Place(NamedTuple):
    """A place in a segment.

    Attributes
    ----------
    segment : Segment
    position : int
        In bytes.
    is_batch : bool
        Whether a batch begins at `position`. Otherwise decode with ``on_error="skip"``, which searches for the next
        batch.
    """

    segment: Segment
    position: int
    is_batch: bool


def places_at(logs: Sequence[SegmentedLog], targets: Iterable[int]) -> Iterator[Place]:
    """Yield the place of each target, a position in the joined bytes of all segments.

    It is the batch of the last index entry before the target; without one, as in a copy without indexes, the target.
    """
    segments = [segment for log in logs for segment in log.segments]
    ends = list(accumulate(segment.size for segment in segments))
    for target in targets:
        number = bisect_right(ends, target)
        segment = segments[number]
        position = target - (ends[number] - segment.size)
        entry = _entry_before(segment, position)
        if entry is not None and segment._begins_batch(entry.position, entry.offset):
            yield Place(segment, entry.position, True)
        else:
            yield Place(segment, position, position == 0)


def _entry_before(segment: Segment, position: int) -> OffsetEntry | None:
    if segment.base_offset is None:
        return None
    index = segment.offset_index()
    number = int(np.searchsorted(index["position"], position, "right")) - 1
    return None if number < 0 else OffsetEntry(int(index["offset"][number]), int(index["position"][number]))


def sample_logs(logs: Sequence[SegmentedLog], on: On, crc: Crc = "verify") -> list[bytes]:
    """Return keys or values from places spread evenly over all bytes of the logs, to infer a schema; skip damage."""
    size = sum(segment.size for log in logs for segment in log.segments)
    if not size:
        return []
    found: list[bytes] = []
    seen: set[tuple[str, int]] = set()
    targets = np.linspace(0, size - 1, SAMPLED_PLACES).astype(np.int64).tolist()
    decoding = DecodeOptions(crc=crc, on_error="skip")
    for segment, start, is_batch in places_at(logs, targets):
        # The last batch of a segment may begin before a place without a batch.
        for position in (start,) if is_batch else (start, 0):
            # A search for the next batch must not read a damaged segment to its end.
            end = segment.size if is_batch or not position else min(segment.size, position + _SEARCHED_BYTES)
            tables = read_tables(segment, position, end, decoding, _SAMPLED_BYTES)
            table = next((each for each in tables if len(each)), None)
            if table is not None:
                first = (segment.path, int(table.batches["position"][0]))
                if first not in seen:
                    found += sample(table, on, SAMPLED_ROWS // SAMPLED_PLACES)
                    seen.add(first)
                break
    return found
