"""Which part of a log a compaction cleans, and why not more (Kafka's ``LogCleanerManager.cleanableOffsets``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from kbatch.errors import LogDirectoryError
from kbatch.format import INT64_MAX
from kbatch.log.segment import Segment

__all__ = ["Cleanable", "CleaningLimit", "CountingWriter", "base_of", "cleanable_part", "dirty_part"]

CleaningLimit: TypeAlias = Literal["active_segment", "open_transaction", "min_compaction_lag", "dirty_ratio"]


def base_of(segment: Segment) -> int:
    """Return the base offset of a segment.

    Raises
    ------
    LogDirectoryError
        If its name does not have one.
    """
    if segment.base_offset is None:
        raise LogDirectoryError(
            f"{segment.path}: the file name has no base offset (20 digits and '.log')", source=segment.path
        )
    return segment.base_offset


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The part of a log that is cleaned.

    Attributes
    ----------
    start, end : int
        The first offset whose key is collected, and the offset after the last one; equal if nothing is cleaned.
    limit : str or None
        What ends the part; None if it reaches the end of the log.
    clean_bytes, dirty_bytes : int
        The segments before `start`, and those from there up to the end.
    """

    start: int
    end: int
    limit: CleaningLimit | None
    clean_bytes: int
    dirty_bytes: int


def cleanable_part(
    segments: Sequence[Segment],
    start: int,
    end_offset: int,
    *,
    include_active: bool,
    last_stable_offset: int | None,
    max_timestamps: Sequence[int],
    newest: int | None,
    min_ratio: float,
) -> Cleanable:
    """Return the part of a log that is cleaned.

    Parameters
    ----------
    segments : sequence of Segment
    start, end_offset : int
        The first dirty offset, and the offset after the last batch.
    include_active : bool
    last_stable_offset : int or None
    max_timestamps : sequence of int
        Of each segment.
    newest : int or None
        Segments with a later record, and those after them, are not cleaned.
    min_ratio : float
        Nothing is cleaned unless the dirty ratio is larger.
    """
    ends: list[tuple[int, CleaningLimit | None]] = [(end_offset, None)]
    if not include_active and end_offset > base_of(segments[-1]):
        ends.append((base_of(segments[-1]), "active_segment"))
    if last_stable_offset is not None:
        ends.append((last_stable_offset, "open_transaction"))
    if newest is not None:
        ends.append((_first_too_recent(segments, max_timestamps, start, newest), "min_compaction_lag"))
    end, limit = min(ends, key=lambda each: each[0])
    end = max(start, end)
    clean = sum(segment.size for segment in segments if base_of(segment) < start)
    dirty = sum(segment.size for segment in segments if start <= base_of(segment) < end)
    if end > start and min_ratio and dirty_part(clean, dirty) <= min_ratio:
        return Cleanable(start, start, "dirty_ratio", clean, dirty)
    return Cleanable(start, end, limit, clean, dirty)


def dirty_part(clean_bytes: int, dirty_bytes: int) -> float:
    """Return the part of the bytes that is dirty, as a broker compares it with ``min.cleanable.dirty.ratio``."""
    return dirty_bytes / (clean_bytes + dirty_bytes) if dirty_bytes else 0.0


def _first_too_recent(segments: Sequence[Segment], max_timestamps: Sequence[int], start: int, time: int) -> int:
    """Return the base offset of the first dirty segment with a timestamp after `time`."""
    for i, segment in enumerate(segments):
        is_dirty = i + 1 == len(segments) or base_of(segments[i + 1]) > start
        if is_dirty and max_timestamps[i] > time:
            return base_of(segment)
    return INT64_MAX


class CountingWriter:
    """Takes the place of a `LogWriter` for a dry run: it counts what would be written.

    Attributes
    ----------
    segments : list of int
        The base offsets of the segments that would be written.
    bytes_written : int
    """

    def __init__(self, base_offset: int) -> None:
        self.segments = [base_offset]
        self.bytes_written = 0

    def __enter__(self) -> CountingWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def append_scanned(self, data: npt.NDArray[np.uint8], rows: npt.NDArray[np.void], origin: int = 0) -> None:
        """Count batches."""
        self.bytes_written += int(rows["size"].sum())

    def append_aborted(self, aborted: npt.NDArray[np.void]) -> None:
        """Do nothing: entries of ``.txnindex`` files are not counted."""

    def roll(self, base_offset: int) -> None:
        """Begin another segment."""
        self.segments.append(base_offset)
