"""The transactions that a stream withholds: open ones, and ended ones until their batches are returned."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from kbatch.transactions.opened import ProducerIndex, as_array

__all__ = ["EndedTransactions", "PendingSnapshot", "PendingTransactions"]

# The end of a transaction that has not ended.
_NOT_ENDED = 1 << 62
# The history may hold this many ended transactions, and as many as pending ones, before it is rewritten.
_SPARE_ROWS = 64


class EndedTransactions:
    """Ranges of positions of transactions that have ended, until their batches are released.

    Each is added, found and released once: the cost does not depend on the number of transactions that are kept.
    """

    def __init__(self) -> None:
        # First and last positions by producer id, and pairs of the last one and the producer id, in order of the ends.
        self._ranges: dict[int, deque[tuple[int, int]]] = {}
        self._ends: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Add producer ids, and the first and last positions of their transactions, in order of the last ones."""
        for producer_id, first, last in ranges:
            self._ranges.setdefault(producer_id, deque()).append((first, last))
            self._ends.append((last, producer_id))

    def release(self, position: int) -> None:
        """Drop the transactions that end before `position`."""
        while self._ends and self._ends[0][0] < position:
            producer_id = self._ends.popleft()[1]
            ranges = self._ranges[producer_id]
            ranges.popleft()
            if not ranges:
                del self._ranges[producer_id]

    def of_producers(self, producer_ids: Iterable[int], stop: int | None) -> list[tuple[int, int, int]]:
        """Return producer id, first and last position of these producers' transactions that begin before `stop`."""
        found = []
        for producer_id in producer_ids:
            for first, last in self._ranges.get(producer_id, ()):
                if stop is not None and first >= stop:
                    break
                found.append((producer_id, first, last))
        return found


class PendingTransactions:
    """The transactions that are withheld now, and snapshots of them.

    A snapshot takes constant time and memory: snapshots share one history, of which each is a point in time.
    """

    def __init__(self) -> None:
        # Producer id and first offset of each transaction, and the time at which it ended.
        self._rows = array("q")
        self._ends = array("q")
        self._time = 0
        # Rows by producer id, and rows with the position at which they are released.
        self._open = ProducerIndex()
        self._undecided: deque[tuple[int, int]] = deque()
        self._snapshot: PendingSnapshot | None = None

    def __len__(self) -> int:
        return len(self._open) + len(self._undecided)

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Add an open transaction; the producer has no other one."""
        self._open.add(producer_id, self._add(producer_id, first_offset))

    def end(self, producer_id: int) -> None:
        """Remove the open transaction of a producer."""
        self._remove(self._open.pop(producer_id))

    def add_undecided(self, producer_id: int, first_offset: int, last: int) -> None:
        """Add a transaction whose marker is lost, until its batches up to position `last` are released."""
        self._undecided.append((self._add(producer_id, first_offset), last))

    def release(self, position: int) -> None:
        """Remove the transactions that are undecided and end before `position`."""
        while self._undecided and self._undecided[0][1] < position:
            self._remove(self._undecided.popleft()[0])

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
        self._undecided = deque((int(places[row]), end) for row, end in self._undecided)


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
