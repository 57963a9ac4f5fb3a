"""Reads of the files of a history: their parts for tasks, and the tables of the readable part of a file."""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from kbatch.errors import KbatchError, LimitExceededError
from kbatch.live.broker_errors import BrokerError
from kbatch.log import Segment
from kbatch.log.ranges import seek
from kbatch.options import Crc
from kbatch.plan.split import Split, good_row, growing_parts
from kbatch.table import RecordTable

__all__ = ["FileTables", "between", "cut_at_offsets", "cut_split", "file_crc", "narrowed"]


class FileTables:
    """The tables of a part of a file, up to its first unreadable batch.

    Parameters
    ----------
    tables : iterable of RecordTable
        Damage is an error.
    start : int
        The first offset of the part.

    Attributes
    ----------
    reached : int
        The offset after the last batch of the tables.
    error : Exception or None
        The reason why the rest of the part cannot be read.
    """

    def __init__(self, tables: Iterable[RecordTable], start: int) -> None:
        self.reached = start
        self.error: Exception | None = None
        self._tables = tables

    def __iter__(self) -> Iterator[RecordTable]:
        try:
            for table in self._tables:
                if len(table.batches):
                    self.reached = max(self.reached, int(table.batches["last_offset"][-1]) + 1)
                yield table
                del table
        except (BrokerError, LimitExceededError):
            raise
        except (KbatchError, OSError) as error:
            self.error = error


def file_crc(crc: Crc) -> Crc:
    """Return how the CRCs of a file are checked: a batch that fails the check is fetched, and so never marked."""
    return "verify" if crc == "mark" else crc


def narrowed(whole: Split, segment: Segment, start: int, stop: int) -> Split:
    """Return the part of a split with some of its offsets; the batches that cross its ends are in it.

    Raises
    ------
    KbatchError, OSError
    """
    begin, end = whole.start, whole.end
    if start > (whole.start_offset or 0):
        begin = max(begin, seek(segment, start))
    if stop < (whole.stop_offset or 0):
        end = min(end, segment.end_for_offset(stop))
    return replace(whole, start=min(begin, end), end=end, start_offset=start, stop_offset=stop)


def between(offsets: Sequence[int], start: int, stop: int) -> Sequence[int]:
    """Return those of some ascending offsets that are within a range and are not its ends."""
    return offsets[bisect_right(offsets, start) : bisect_left(offsets, stop)]


def cut_at_offsets(whole: Split, segment: Segment, offsets: Sequence[int]) -> Iterator[Split]:
    """Yield the parts of a split between some ascending offsets."""
    first, stop = whole.start_offset or 0, whole.stop_offset or 0
    for begin, end in pairwise([first, *between(offsets, first, stop), stop]):
        try:
            yield narrowed(whole, segment, begin, end)
        except (KbatchError, OSError):
            # The file has changed since it was planned: its task fetches these offsets.
            yield replace(whole, start_offset=begin, stop_offset=end)


def cut_split(whole: Split, segment: Segment, size: int, most: int, *, from_end: bool = False) -> Iterator[Split]:
    """Yield the parts of a split, in order or from the end; each offset belongs to one part.

    Parts have about `size` bytes at first, and grow up to `most`. A split that cannot be cut is one part: if the file
    has changed since it was planned, its task fetches these offsets.
    """
    rest = whole
    with contextlib.suppress(KbatchError, OSError):
        for part in growing_parts(segment, whole, size, most, from_end=from_end):
            cut = part.start if from_end else part.end
            if part.bytes == rest.bytes or (row := good_row(segment, cut)) is None or row["base_offset"][0] < 0:
                break
            offset = min(max(int(row["base_offset"][0]), rest.start_offset or 0), rest.stop_offset or 0)
            before, after = (
                replace(rest, end=cut, stop_offset=offset),
                replace(rest, start=cut, start_offset=offset),
            )
            yield after if from_end else before
            rest = before if from_end else after
    yield rest
