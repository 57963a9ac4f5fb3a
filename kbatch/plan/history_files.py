"""Reads of the files of a history: their parts for tasks, and their tables up to where a file can be read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from kbatch.errors import KbatchError, LimitExceededError
from kbatch.live.broker_errors import BrokerError
from kbatch.log import Segment
from kbatch.plan.split import Split, good_row, growing_parts
from kbatch.table import RecordTable

__all__ = ["FileTables", "cut_split"]


class FileTables:
    """The tables of a part of a file, up to where it can be read.

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
        Why the part cannot be read from there on.
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


def cut_split(whole: Split, segment: Segment, size: int, most: int, *, from_end: bool = False) -> Iterator[Split]:
    """Yield the parts of a split, in order or from the end, each with the offsets that only it has.

    Parts have about `size` bytes at first, and grow up to `most`. What can't be cut is one part: if the file has
    changed since it was planned, its task fetches these offsets.
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
