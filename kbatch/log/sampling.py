"""Samples of logs: places spread over their bytes, and the keys and values there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np

from kbatch.errors import KbatchError
from kbatch.log.files.indexes import OffsetEntry
from kbatch.log.reading import read_tables
from kbatch.log.segment import Segment
from kbatch.options import Crc, On
from kbatch.read.decode_options import DecodeOptions
from kbatch.values.parsed import sample

__all__ = ["NamedLog", "Place", "SegmentedLog", "places_at", "sample_logs", "topics_of"]

# A schema is inferred from at most this number of places in the logs, and of values; a place has about these bytes.
SAMPLED_PLACES = 64
SAMPLED_ROWS = 6400
_SAMPLED_BYTES = 256 << 10
# Without an index, a batch is searched for in this number of bytes.
_SEARCHED_BYTES = 4 << 20


class SegmentedLog(Protocol):
    """A log of which samples are taken."""

    @property
    def segments(self) -> list[Segment]:
        """The segments by offset."""


class NamedLog(Protocol):
    """A log whose topic may be known."""

    @property
    def topic(self) -> str | None:
        """The topic, if it is known."""


def topics_of(logs: Iterable[NamedLog]) -> list[str]:
    """Return the topics of logs, as far as they are known."""
    return [log.topic for log in logs if log.topic is not None]


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


def sample_logs(
    logs: Sequence[SegmentedLog], on: On, crc: Crc = "verify", starts: Sequence[int | None] | None = None
) -> list[bytes]:
    """Return keys or values from places spread evenly over all bytes of the logs, to infer a schema; skip damage.

    With `starts`, an offset for each log or None, only what follows them is sampled, of as many logs as there are
    places.
    """
    rest: Sequence[_Rest] = [_Rest(log.segments) for log in logs]
    if starts is not None:
        chosen = np.unique(np.linspace(0, len(logs) - 1, SAMPLED_PLACES).astype(np.int64)) if logs else ()
        rest = [_rest_of(logs[number].segments, starts[number]) for number in chosen]
    found: list[bytes] = []
    seen: set[tuple[str, int]] = set()
    decoding = DecodeOptions(crc=crc, on_error="skip")
    for segment, start, is_batch in places_at(rest, _spread_targets(rest)):
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


class _Rest(NamedTuple):
    """The segments of a log of which samples are taken, without the first bytes of the first one."""

    segments: list[Segment]
    skipped: int = 0


def _rest_of(segments: list[Segment], start: int | None) -> _Rest:
    """Return what follows an offset."""
    bases = [0 if segment.base_offset is None else segment.base_offset for segment in segments]
    if start is None or not segments or start <= bases[0]:
        return _Rest(segments)
    first = bisect_right(bases, start) - 1
    try:
        skipped = segments[first].seek_offset(start)
    except KbatchError:
        # The tasks report the reason.
        skipped = 0
    return _Rest(segments[first:], skipped)


def _spread_targets(logs: Sequence[_Rest]) -> list[int]:
    """Return places that are spread evenly over what is not skipped, as positions in the joined bytes of all."""
    sizes = np.array([sum(segment.size for segment in log.segments) for log in logs], np.int64)
    skipped = np.array([log.skipped for log in logs], np.int64)
    ends = np.cumsum(sizes - skipped)
    if not len(ends) or not ends[-1]:
        return []
    targets = np.linspace(0, ends[-1] - 1, SAMPLED_PLACES).astype(np.int64)
    numbers = np.searchsorted(ends, targets, "right")
    # The bytes of all logs up to the end of the log, less those after the target that are not skipped.
    found: list[int] = (np.cumsum(sizes)[numbers] - (ends[numbers] - targets)).tolist()
    return found
