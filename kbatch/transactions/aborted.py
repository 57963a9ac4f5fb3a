"""Aborted ranges: which batches read_committed leaves out."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kbatch.format import ABORTED_DTYPE, ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, INT64_MAX

if TYPE_CHECKING:
    from kbatch.transactions.tracker import Transactions

__all__ = ["AbortedRanges", "ListedAborts"]


class _Pairs:
    """Searches sorted pairs of a producer id and an offset."""

    __slots__ = ("_keys", "_offsets", "_producers", "_stride")

    def __init__(self, producer_ids: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> None:
        # np.searchsorted takes numbers only, so each pair becomes one number, computed from the ranks of its parts.
        self._producers = np.unique(producer_ids)
        self._offsets = np.unique(offsets)
        self._stride = len(self._offsets) + 1
        self._keys = self._key(producer_ids, np.searchsorted(self._offsets, offsets))

    def _key(self, producer_ids: npt.NDArray[np.int64], ranks: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        return np.searchsorted(self._producers, producer_ids) * self._stride + ranks

    def count(self, producer_ids: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """Return the number of pairs up to and including each given pair.

        The result is undefined for a producer id that occurs in no pair.
        """
        ranks = np.searchsorted(self._offsets, offsets, "right")
        return np.searchsorted(self._keys, self._key(producer_ids, ranks))


class AbortedRanges:
    """The offset ranges of aborted transactions, by producer: read_committed leaves out their batches.

    Ranges of a producer may overlap or be repeated. The object is small and can be pickled.

    Parameters
    ----------
    producer_id, first_offset, last_offset : ndarray of int64, shape (ranges,)
        From the first batch of a transaction to its marker, both inclusive; in any order.

    Attributes
    ----------
    producer_id, first_offset, last_offset : ndarray of int64, read-only
        Sorted by producer id and first offset. Within a producer `last_offset` never decreases: it is the largest last
        offset of this and earlier ranges. Ranges within others are removed.

    Examples
    --------
    >>> from kbatch.transactions import AbortedRanges
    >>> ranges = AbortedRanges.from_list([(7, 0), (7, 20)], ([7], [9]))
    >>> ranges.first_offset.tolist(), ranges.last_offset.tolist()
    ([0, 20], [9, 9223372036854775807])
    >>> len(ranges.within(10, 20))
    0
    """

    __slots__ = ("_pairs", "first_offset", "last_offset", "producer_id")

    def __init__(self, producer_id: npt.ArrayLike, first_offset: npt.ArrayLike, last_offset: npt.ArrayLike) -> None:
        producers = np.asarray(producer_id, np.int64)
        first = np.asarray(first_offset, np.int64)
        last = np.asarray(last_offset, np.int64)
        if producers.ndim != 1 or producers.shape != first.shape or producers.shape != last.shape:
            raise ValueError(
                "producer_id, first_offset and last_offset must be one-dimensional and of one length, got shapes "
                f"{producers.shape}, {first.shape} and {last.shape}"
            )
        order = np.lexsort((first, producers))
        producers, first, last = producers[order], first[order], last[order]
        if len(order):
            # The running maximum of the last offsets within each producer. Each producer's ranks are higher than the
            # previous producer's, so that one pass computes all of them.
            lasts, ranks = np.unique(last, return_inverse=True)
            starts = np.ones(len(order), np.bool_)
            starts[1:] = producers[1:] != producers[:-1]
            reach = np.maximum.accumulate(np.cumsum(starts) * len(lasts) + ranks)
            kept = starts
            kept[1:] |= reach[1:] > reach[:-1]
            producers, first, last = producers[kept], first[kept], lasts[reach[kept] % len(lasts)]
        for column in (producers, first, last):
            column.flags.writeable = False
        self.producer_id: npt.NDArray[np.int64] = producers
        self.first_offset: npt.NDArray[np.int64] = first
        self.last_offset: npt.NDArray[np.int64] = last
        self._pairs = _Pairs(producers, first)

    def __reduce__(self) -> tuple[object, ...]:
        return AbortedRanges, self._columns()

    def __len__(self) -> int:
        return len(self.producer_id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AbortedRanges):
            return NotImplemented
        columns = zip(self._columns(), other._columns(), strict=True)
        return all(np.array_equal(mine, theirs) for mine, theirs in columns)

    def __hash__(self) -> int:
        return hash(tuple(column.tobytes() for column in self._columns()))

    def _columns(self) -> tuple[npt.NDArray[np.int64], ...]:
        return self.producer_id, self.first_offset, self.last_offset

    def __repr__(self) -> str:
        return f"<AbortedRanges: {len(self)} ranges of {len(np.unique(self.producer_id))} producers>"

    @classmethod
    def from_transactions(cls, transactions: Transactions) -> AbortedRanges:
        """Make the ranges of the aborted transactions of a log."""
        return cls.from_rows(transactions.aborted)

    @classmethod
    def from_rows(cls, aborted: npt.NDArray[np.void]) -> AbortedRanges:
        """Make the ranges of aborted transactions, given as rows of ABORTED_DTYPE."""
        return cls(aborted["producer_id"], aborted["first_offset"], aborted["last_offset"])

    @classmethod
    def from_list(
        cls, aborted: Iterable[tuple[int, int]], abort_markers: tuple[npt.ArrayLike, npt.ArrayLike]
    ) -> AbortedRanges:
        """Make the ranges of the aborted transactions in a fetch response.

        Parameters
        ----------
        aborted : iterable of (producer id, first offset)
            In any order, with repetitions (TXN-R1); entries outside of the response's data have no effect (TXN-R7).
        abort_markers : (producer ids, offsets)
            The ABORT markers in the response's data; see `TransactionTracker.abort_markers`.

        Returns
        -------
        AbortedRanges
            Each entry ends at the first ABORT marker of its producer at or after its first offset; without a marker it
            has no end (TXN-R2, TXN-R8). COMMIT markers are ignored (TXN-R4).

        Raises
        ------
        TypeError
            If an entry isn't a pair of integers.
        ValueError
            If an entry does not have two integers, or one exceeds int64.
        """
        listed = ListedAborts(aborted)
        producers, offsets = (np.asarray(column, np.int64) for column in abort_markers)
        order = np.argsort(offsets, kind="stable")
        closed = listed.close((producers[order], offsets[order]))
        still = np.array(listed.open_entries(), np.int64).reshape(-1, 2)
        return cls(
            np.append(closed["producer_id"], still[:, 0]),
            np.append(closed["first_offset"], still[:, 1]),
            np.append(closed["last_offset"], np.full(len(still), INT64_MAX)),
        )

    def mask(self, batches: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Return a mask of the batches that belong to aborted transactions.

        Parameters
        ----------
        batches : ndarray of BATCH_DTYPE

        Returns
        -------
        ndarray of bool, shape (batches,)
            True for transactional batches within a range of their producer. False for control batches, batches without
            a producer id and non-transactional batches (TXN-R3, TXN-R13).
        """
        out = np.zeros(len(batches), np.bool_)
        if not len(self):
            return out
        kind = batches["attributes"] & (ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL)
        rows = np.flatnonzero(
            (kind == ATTRIBUTE_TRANSACTIONAL) & (batches["producer_id"] >= 0) & (batches["magic"] == 2)
        )
        producers, first = batches["producer_id"][rows], batches["base_offset"][rows]
        last = batches["last_offset"][rows]
        # Among the ranges that begin before the end of a batch, the last one has the largest last offset.
        at = self._pairs.count(producers, last) - 1
        out[rows] = (at >= 0) & (self.producer_id[at] == producers) & (self.last_offset[at] >= first)
        return out

    def within(self, start: int, stop: int) -> AbortedRanges:
        """Return the ranges that overlap the offsets from `start` up to but not including `stop`.

        They also suffice for a batch that extends beyond these offsets, because a transaction begins with a batch.
        """
        chosen = (self.first_offset < stop) & (self.last_offset >= start)
        return AbortedRanges(self.producer_id[chosen], self.first_offset[chosen], self.last_offset[chosen])


class ListedAborts:
    """The aborted transactions in a fetch response, closed by markers as they are decoded.

    Parameters
    ----------
    aborted : iterable of (producer id, first offset)
        See `AbortedRanges.from_list`.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        # The first offsets of the entries that are not closed, in ascending order, by producer id.
        self._open: dict[int, deque[int]] = {}
        for producer_id, first_offset in sorted(_checked_pair(i, entry) for i, entry in enumerate(aborted)):
            self._open.setdefault(producer_id, deque()).append(first_offset)

    def close(self, abort_markers: tuple[npt.ArrayLike, npt.ArrayLike]) -> npt.NDArray[np.void]:
        """Close each open entry at the first of these ABORT markers at or after its first offset (TXN-R2).

        Parameters
        ----------
        abort_markers : (producer ids, offsets)
            In log order; markers of later calls are later in the log.

        Returns
        -------
        ndarray of ABORTED_DTYPE
            The entries that this call has closed.
        """
        closed = []
        producers, offsets = (np.asarray(column, np.int64).tolist() for column in abort_markers)
        for producer_id, offset in zip(producers, offsets, strict=True):
            first = self._open.get(producer_id)
            while first and first[0] <= offset:
                closed.append((producer_id, first.popleft(), offset, 0))
        return np.array(closed, ABORTED_DTYPE)

    def open_entries(self, producer_ids: Iterable[int] | None = None) -> list[tuple[int, int]]:
        """Return the first open entry of each producer, or of these producers; it has no end (TXN-R8)."""
        chosen = self._open if producer_ids is None else producer_ids
        return [(producer_id, first[0]) for producer_id in chosen if (first := self._open.get(producer_id))]


def _checked_pair(number: int, entry: Any) -> tuple[int, int]:
    try:
        values = tuple(map(operator.index, entry))
    except TypeError:
        raise TypeError(
            f"aborted: entry {number} must be a pair of integers (producer id, first offset), got {entry!r}"
        ) from None
    if len(values) != 2:
        raise ValueError(f"aborted: entry {number} must be (producer id, first offset), got {entry!r}")
    if not all(-INT64_MAX - 1 <= value <= INT64_MAX for value in values):
        raise ValueError(f"aborted: entry {number} contains a number that exceeds int64: {entry!r}")
    return values[0], values[1]
