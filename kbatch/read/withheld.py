"""The transactions that a stream withholds: open ones, and ended ones until their batches are returned."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from kbatch.transactions.opened import INDEX_BYTES, ProducerIndex, as_array

__all__ = ["KEPT_BYTES", "EndedTransactions", "PendingSnapshot", "PendingTransactions"]

_ENDED_FIELDS = 4
# The memory of an ended transaction: its row, and one that was released, in an array with reserved rows; an entry of
# the index; and the range that is made of it, and the arrays of the sorts.
KEPT_BYTES = 2 * 8 * _ENDED_FIELDS * 9 // 8 + INDEX_BYTES + 3 * 8 * 9 // 8 + 72
# The end of a transaction that has not ended.
_NOT_ENDED = 1 << 62
# The history may hold this many ended transactions, and as many as pending ones, before it is rewritten.
_SPARE_ROWS = 64


class EndedTransactions:
    """Ranges of positions of transactions that have ended, until their batches are released.

    Each is added, found and released once: the cost does not depend on the number of transactions that are kept.
    """

    def __init__(self) -> None:
        # Rows in order of the ends: first and last position, producer id, and the number of the producer's next row;
        # the next row of its latest row is its earliest one. Row numbers are never used again. The array begins with
        # row `_begin`; rows before row `_first` are released.
        self._rows = array("q")
        self._begin = self._first = 0
        self._latest = ProducerIndex()

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def _end(self) -> int:
        return self._begin + len(self._rows) // _ENDED_FIELDS

    def _row(self, number: int) -> array[int]:
        at = _ENDED_FIELDS * (number - self._begin)
        return self._rows[at : at + _ENDED_FIELDS]

    def _set_next(self, number: int, following: int) -> None:
        self._rows[_ENDED_FIELDS * (number - self._begin + 1) - 1] = following

    def add(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Add producer ids, and the first and last positions of their transactions, in order of the last ones."""
        for producer_id, first, last in ranges:
            number, latest = self._end, self._latest.pop(producer_id)
            earliest = number
            if latest >= 0:
                earliest = self._row(latest)[-1]
                self._set_next(latest, number)
            self._rows.extend((first, last, producer_id, earliest))
            self._latest.add(producer_id, number)

    def release(self, position: int) -> None:
        """Drop the transactions that end before `position`."""
        while len(self):
            _, last, producer_id, following = self._row(self._first)
            if last >= position:
                break
            latest = self._latest.find(producer_id)
            if latest == self._first:
                self._latest.pop(producer_id)
            else:
                self._set_next(latest, following)
            self._first += 1
        if 2 * (self._first - self._begin) >= self._end - self._begin:
            del self._rows[: _ENDED_FIELDS * (self._first - self._begin)]
            self._begin = self._first

    def of_producers(self, producer_ids: Iterable[int], stop: int | None) -> npt.NDArray[np.int64]:
        """Return producer id, first and last position of these producers' transactions that begin before `stop`."""
        found = array("q")
        for producer_id in producer_ids:
            latest = self._latest.find(producer_id)
            number = self._row(latest)[-1] if latest >= 0 else -1
            while number >= 0:
                first, last, _, following = self._row(number)
                if stop is not None and first >= stop:
                    break
                found.extend((producer_id, first, last))
                number = following if number != latest else -1
        return np.array(found, np.int64).reshape(-1, 3)


class PendingTransactions:
    """The transactions that are withheld now, and snapshots of them.

    A snapshot takes constant time and memory: snapshots share one history, of which each is a point in time.
    """

    def __init__(self) -> None:
        # Producer id and first offset of each transaction, and the time at which it ended.
        self._rows = array("q")
        self._ends = array("q")
        self._time = 0
        # Rows by producer id, and rows with the position at which they are released. Those before `_first` are.
        self._open = ProducerIndex()
        self._undecided = array("q")
        self._first = 0
        self._snapshot: PendingSnapshot | None = None

    def __len__(self) -> int:
        return len(self._open) + len(self._undecided) // 2 - self._first

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Add an open transaction; the producer has no other one."""
        self._open.add(producer_id, self._add(producer_id, first_offset))

    def end(self, producer_id: int) -> None:
        """Remove the open transaction of a producer."""
        self._remove(self._open.pop(producer_id))

    def add_undecided(self, producer_id: int, first_offset: int, last: int) -> None:
        """Add a transaction whose marker is lost, until its batches up to position `last` are released."""
        self._undecided.extend((self._add(producer_id, first_offset), last))

    def release(self, position: int) -> None:
        """Remove the transactions that are undecided and end before `position`."""
        while 2 * self._first < len(self._undecided) and self._undecided[2 * self._first + 1] < position:
            self._remove(self._undecided[2 * self._first])
            self._first += 1
        if 4 * self._first >= len(self._undecided):
            del self._undecided[: 2 * self._first]
            self._first = 0

    def snapshot(self) -> PendingSnapshot:
        """Return a snapshot of the transactions that are pending now."""
        if self._snapshot is None:
            if len(self._ends) > 2 * len(self) + _SPARE_ROWS:
                self._forget_ended()
            self._snapshot = PendingSnapshot(self._rows, self._ends, self._time)
            self._time += 1
        return self._snapshot

    def _add(self, producer_id: int, first_offset: int) -> int:
        self._snapshot = None
        self._rows.extend((producer_id, first_offset))
        self._ends.append(_NOT_ENDED)
        return len(self._ends) - 1

    def _remove(self, row: int) -> None:
        self._snapshot = None
        self._ends[row] = self._time

    def _forget_ended(self) -> None:
        """Begin another history with the transactions that have not ended; snapshots keep the earlier one."""
        rows, ends = _history_arrays(self._rows, self._ends)
        kept = ends == _NOT_ENDED
        places = np.cumsum(kept) - 1
        ids, numbers = self._open.columns()
        self._rows, self._ends = as_array(rows[kept]), as_array(ends[kept])
        self._open = ProducerIndex(ids, places[numbers])
        undecided = np.array(self._undecided[2 * self._first :], np.int64).reshape(-1, 2)
        undecided[:, 0] = places[undecided[:, 0]]
        self._undecided, self._first = as_array(undecided), 0


def _history_arrays(rows: array[int], ends: array[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows of a history as pairs, and the times at which they ended."""
    return np.array(rows, np.int64).reshape(-1, 2), np.array(ends, np.int64)


class PendingSnapshot:
    """The transactions that were pending when the snapshot was taken.

    Calling it returns their producer ids and first offsets, sorted by first offset.
    """

    __slots__ = ("_count", "_ends", "_rows", "_time")

    def __init__(self, rows: array[int], ends: array[int], time: int) -> None:
        self._rows, self._ends, self._time = rows, ends, time
        self._count = len(ends)

    def __call__(self) -> list[tuple[int, int]]:
        """Return the transactions."""
        # Slices of arrays are copies, so that the stream may go on while one is read.
        rows, ends = _history_arrays(self._rows[: 2 * self._count], self._ends[: self._count])
        alive = rows[ends > self._time]
        ordered = alive[np.argsort(alive[:, 1], kind="stable")]
        return list(map(tuple, ordered.tolist()))
