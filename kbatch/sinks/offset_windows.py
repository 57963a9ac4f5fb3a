"""The offsets in the data files of a topic-partition and in its log, read in windows in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from kbatch.format import INT64_MAX
from kbatch.log import Log
from kbatch.options import Isolation
from kbatch.sinks.output_offsets import RowGroup, read_offsets
from kbatch.sinks.outputs import OutputPlace
from kbatch.table import RecordTable

__all__ = ["FileOffsets", "LogOffsets", "OffsetArray", "VerifiedLog", "Window", "WrittenOffsets", "windows"]

# The number of offsets of the files or the log in a window; a row group is read as a whole, and may have more.
WINDOW_ROWS = 1 << 20

OffsetArray: TypeAlias = npt.NDArray[np.int64]


class VerifiedLog(Protocol):
    """A log whose offsets are compared with those of an output.

    Attributes
    ----------
    first_offset, end_offset : int
    size : int
        In bytes.
    """

    @property
    def first_offset(self) -> int:
        """The first offset."""

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""

    @property
    def size(self) -> int:
        """The bytes."""

    def tables(self, start: int, stop: int, isolation: Isolation, *, include_control: bool) -> Iterator[RecordTable]:
        """Yield the tables of a range with the column ``offset``; damage is skipped."""


class FileOffsets:
    """A log of files; a `VerifiedLog`.

    Parameters
    ----------
    log : Log
    """

    def __init__(self, log: Log) -> None:
        self._log = log

    @property
    def first_offset(self) -> int:
        """The base offset of the first segment."""
        return self._log.segments[0].base_offset or 0

    @property
    def end_offset(self) -> int:
        """The offset after the last complete batch."""
        return self._log.end_offset

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        return self._log.size

    def tables(self, start: int, stop: int, isolation: Isolation, *, include_control: bool) -> Iterator[RecordTable]:
        """Yield the tables of a range."""
        yield from self._log.tables(
            start_offset=start,
            stop_offset=stop,
            isolation=isolation,
            include_control=include_control,
            on_error="skip",
            columns=("offset",),
        )


class LogOffsets:
    """The offsets of a log's records in ranges, returned in order and in parts.

    Parameters
    ----------
    log : VerifiedLog or None
    ranges : sequence of (start, stop, isolation, has_control)
        In order, without overlaps.
    progress : callable, optional
        Called with the bytes of each table.

    Attributes
    ----------
    lost_bytes : int
        The size of damaged batches, whose offsets are unknown.
    """

    def __init__(
        self,
        log: VerifiedLog | None,
        ranges: Sequence[tuple[int, int, Isolation, bool]],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.lost_bytes = 0
        self._log = log
        self._ranges = ranges if log is not None else ()
        self._progress = progress
        self._parts = self._read()
        self._rest: OffsetArray = np.empty(0, np.int64)
        self._is_over = False

    def _read(self) -> Iterator[OffsetArray]:
        for start, stop, isolation, has_control in self._ranges:
            assert self._log is not None
            for table in self._log.tables(start, stop, isolation, include_control=has_control):
                self.lost_bytes += int(table.losses.lengths.sum())
                if self._progress is not None:
                    self._progress(table.consumed)
                # The table would keep the data of its batches.
                yield np.array(table.records["offset"])

    @property
    def next_offset(self) -> int | None:
        """The next offset; None at the end."""
        self._fill(1)
        return int(self._rest[0]) if len(self._rest) else None

    def _fill(self, rows: int) -> None:
        parts = [self._rest]
        have = len(self._rest)
        while have < rows and not self._is_over:
            part = next(self._parts, None)
            self._is_over = part is None
            if part is not None and len(part):
                parts.append(part)
                have += len(part)
        if len(parts) > 1:
            self._rest = np.concatenate(parts)

    def take(self, stop: int) -> tuple[OffsetArray, int]:
        """Return the next offsets below `stop`, and their end: before `stop` if a window has no space for more."""
        self._fill(WINDOW_ROWS + 1)
        beyond = np.flatnonzero(self._rest >= stop)
        count = int(beyond[0]) if len(beyond) else len(self._rest)
        if count > WINDOW_ROWS:
            count = WINDOW_ROWS
            stop = int(self._rest[count])
        taken, self._rest = self._rest[:count], self._rest[count:]
        # The offsets of a damaged log may descend.
        return np.sort(taken), stop


class WrittenOffsets:
    """The offsets in the row groups of a topic-partition.

    Parameters
    ----------
    place : OutputPlace
    groups : sequence of RowGroup
    limit_of : callable
        Returns the offset from which the rows of a file, given by name, do not count; None if all count.
    """

    def __init__(self, place: OutputPlace, groups: Sequence[RowGroup], limit_of: Callable[[str], int | None]) -> None:
        self.void_rows = 0
        self._place = place
        self._waiting = sorted(groups, key=lambda group: group.low, reverse=True)
        self._limit_of = limit_of
        # Row groups that reach into the next window, with their offsets if they were read.
        self._active: list[tuple[RowGroup, OffsetArray | None]] = []

    @property
    def next_offset(self) -> int | None:
        """A lower bound of the next offset; None at the end."""
        lows = [group.low if found is None else int(found[0]) for group, found in self._active]
        lows += [self._waiting[-1].low] if self._waiting else []
        return min(lows, default=None)

    def window_end(self, begin: int) -> int:
        """Return the end of a window that begins at an offset and has about `WINDOW_ROWS` rows."""
        rows = 0
        while self._waiting and self._waiting[-1].low <= begin:
            self._active.append((self._waiting.pop(), None))
        rows = sum(group.rows if found is None else len(found) for group, found in self._active)
        while self._waiting and rows < WINDOW_ROWS:
            group = self._waiting.pop()
            self._active.append((group, None))
            rows += group.rows
        return self._waiting[-1].low if self._waiting else INT64_MAX

    def take(self, stop: int) -> OffsetArray:
        """Return the sorted offsets below `stop` that were not taken yet."""
        taken: list[OffsetArray] = [np.empty(0, np.int64)]
        kept: list[tuple[RowGroup, OffsetArray | None]] = []
        for group, known in self._active:
            if known is None and group.low >= stop:
                kept.append((group, None))
                continue
            found = self._read(group) if known is None else known
            end = int(np.searchsorted(found, stop))
            taken.append(found[:end])
            if end < len(found):
                kept.append((group, found[end:]))
        self._active = kept
        return np.sort(np.concatenate(taken))

    def _read(self, group: RowGroup) -> OffsetArray:
        found = np.sort(read_offsets(self._place, group))
        limit = self._limit_of(group.name)
        if limit is None:
            return found
        end = int(np.searchsorted(found, limit))
        self.void_rows += len(found) - end
        return found[:end]


class Window(NamedTuple):
    """The sorted offsets below `stop` after the previous windows, in the files and in the log."""

    stop: int
    written: OffsetArray
    expected: OffsetArray


def windows(written: WrittenOffsets, log: LogOffsets) -> Iterator[Window]:
    """Yield windows up to the end of both."""
    while True:
        nexts = [each for each in (written.next_offset, log.next_offset) if each is not None]
        if not nexts:
            return
        expected, stop = log.take(written.window_end(min(nexts)))
        yield Window(stop, written.take(stop), expected)
