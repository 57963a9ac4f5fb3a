"""Aborted ranges: which batches read_committed leaves out."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kbatch.format import ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, INT64_MAX, BatchStatus

__all__ = ["AbortedRanges", "ListedAborts", "Withheld", "WithheldOfLog"]


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
    """The ranges of aborted transactions, by producer: read_committed leaves out their batches.

    Ranges of a producer may overlap or be repeated. The object is small and can be pickled.

    Parameters
    ----------
    producer_id, first, last : ndarray of int64, shape (ranges,)
        From the first batch of a transaction to its marker, both inclusive; in any order.
    by : {"offset", "position"}
        Whether `first` and `last` are offsets, or positions of batches in their source. No checksum covers the offset
        of a batch, so transactions that were followed from batch to batch have positions.

    Attributes
    ----------
    producer_id, first, last : ndarray of int64, read-only
        Sorted by producer id and first offset or position. Within a producer `last` never decreases: it is the largest
        last one of this and earlier ranges. Ranges within others are removed.
    by : str

    Examples
    --------
    >>> from kbatch.transactions import AbortedRanges
    >>> ranges = AbortedRanges([7, 7], [0, 20], [9, 30])
    >>> ranges.first.tolist(), ranges.last.tolist()
    ([0, 20], [9, 30])
    >>> len(ranges.within(10, 20))
    0
    """

    __slots__ = ("_pairs", "by", "first", "last", "producer_id")

    def __init__(
        self,
        producer_id: npt.ArrayLike,
        first: npt.ArrayLike,
        last: npt.ArrayLike,
        *,
        by: Literal["offset", "position"] = "offset",
    ) -> None:
        producers = np.asarray(producer_id, np.int64)
        firsts = np.asarray(first, np.int64)
        lasts = np.asarray(last, np.int64)
        if producers.ndim != 1 or producers.shape != firsts.shape or producers.shape != lasts.shape:
            raise ValueError(
                "producer_id, first and last must be one-dimensional and of one length, got shapes "
                f"{producers.shape}, {firsts.shape} and {lasts.shape}"
            )
        order = np.lexsort((firsts, producers))
        producers, firsts, lasts = producers[order], firsts[order], lasts[order]
        if len(order):
            # The running maximum of the last offsets within each producer. Each producer's ranks are higher than the
            # previous producer's, so that one pass computes all of them.
            values, ranks = np.unique(lasts, return_inverse=True)
            starts = np.ones(len(order), np.bool_)
            starts[1:] = producers[1:] != producers[:-1]
            reach = np.maximum.accumulate(np.cumsum(starts) * len(values) + ranks)
            kept = starts
            kept[1:] |= reach[1:] > reach[:-1]
            producers, firsts, lasts = producers[kept], firsts[kept], values[reach[kept] % len(values)]
        self._set(producers, firsts, lasts, by)

    @classmethod
    def _of_sorted(
        cls,
        producers: npt.NDArray[np.int64],
        firsts: npt.NDArray[np.int64],
        lasts: npt.NDArray[np.int64],
        by: Literal["offset", "position"],
    ) -> AbortedRanges:
        """Make ranges of own arrays, sorted as those of an instance, of which none is within another."""
        ranges = cls.__new__(cls)
        ranges._set(producers, firsts, lasts, by)
        return ranges

    def _set(
        self,
        producers: npt.NDArray[np.int64],
        firsts: npt.NDArray[np.int64],
        lasts: npt.NDArray[np.int64],
        by: Literal["offset", "position"],
    ) -> None:
        for column in (producers, firsts, lasts):
            column.flags.writeable = False
        self.producer_id: npt.NDArray[np.int64] = producers
        self.first: npt.NDArray[np.int64] = firsts
        self.last: npt.NDArray[np.int64] = lasts
        self.by: Literal["offset", "position"] = by
        # Made by the first search, which is usually in the task that gets the ranges, not where they are planned.
        self._pairs: _Pairs | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _ranges_by, (self.by, *self._columns())

    def __len__(self) -> int:
        return len(self.producer_id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AbortedRanges):
            return NotImplemented
        columns = zip(self._columns(), other._columns(), strict=True)
        return self.by == other.by and all(np.array_equal(mine, theirs) for mine, theirs in columns)

    def __hash__(self) -> int:
        return hash((self.by, *(column.tobytes() for column in self._columns())))

    def _columns(self) -> tuple[npt.NDArray[np.int64], ...]:
        return self.producer_id, self.first, self.last

    def __repr__(self) -> str:
        return f"<AbortedRanges: {len(self)} ranges of {len(np.unique(self.producer_id))} producers>"

    @classmethod
    def from_rows(cls, aborted: npt.NDArray[np.void]) -> AbortedRanges:
        """Make the ranges of aborted transactions, given as rows of ABORTED_DTYPE, by offset."""
        return cls(aborted["producer_id"], aborted["first_offset"], aborted["last_offset"])

    @classmethod
    def from_list(
        cls,
        aborted: Iterable[tuple[int, int]],
        batches: npt.NDArray[np.void],
        abort_markers: tuple[npt.ArrayLike, npt.ArrayLike],
    ) -> AbortedRanges:
        """Make the ranges of the aborted transactions in a fetch response, by position.

        Parameters
        ----------
        aborted : iterable of (producer id, first offset)
            In any order, with repetitions (TXN-R1); entries outside of the response's data have no effect (TXN-R7).
        batches : ndarray of BATCH_DTYPE
            The batches in the response's data.
        abort_markers : (producer ids, positions)
            The ABORT markers among them; see `TransactionTracker.abort_markers`.

        Returns
        -------
        AbortedRanges
            Each entry begins and ends as described for `ListedAborts`.

        Raises
        ------
        TypeError
            If an entry isn't a pair of integers.
        ValueError
            If an entry does not have two integers, or one exceeds int64.
        """
        listed = ListedAborts(aborted)
        closed = listed.follow(batches, abort_markers)
        return cls(*np.concatenate([closed, listed.open_entries()]).T, by="position")

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
        names = ("base_offset", "last_offset") if self.by == "offset" else ("position", "position")
        producers, first, last = (batches[name][rows] for name in ("producer_id", *names))
        if self._pairs is None:
            self._pairs = _Pairs(self.producer_id, self.first)
        # Among the ranges that begin before the end of a batch, the last one has the largest last offset.
        at = self._pairs.count(producers, last) - 1
        out[rows] = (at >= 0) & (self.producer_id[at] == producers) & (self.last[at] >= first)
        return out

    def within(self, start: int, stop: int, *, from_start: bool = False) -> AbortedRanges:
        """Return the ranges that overlap the offsets or positions from `start` up to but not including `stop`.

        They also suffice for a batch that extends beyond these offsets, because a transaction begins with a batch.
        With `from_start`, the result has the parts of ranges inside of it, and positions count from `start`.
        """
        chosen = (self.first < stop) & (self.last >= start)
        producers, first, last = self.producer_id[chosen], self.first[chosen], self.last[chosen]
        if from_start:
            first, last = np.maximum(first, start) - start, np.minimum(last, stop - 1) - start
            if ((producers[1:] == producers[:-1]) & ((first[1:] == first[:-1]) | (last[1:] == last[:-1]))).any():
                # The inside part of one range is within that of another.
                return AbortedRanges(producers, first, last, by=self.by)
        return AbortedRanges._of_sorted(producers, first, last, self.by)


def _ranges_by(by: Literal["offset", "position"], *columns: npt.NDArray[np.int64]) -> AbortedRanges:
    return AbortedRanges(*columns, by=by)


def _no_ranges() -> AbortedRanges:
    return AbortedRanges([], [], [], by="position")


@dataclass(frozen=True, slots=True)
class Withheld:
    """The batches of a source that read_committed does not return. It can be pickled.

    Attributes
    ----------
    aborted : AbortedRanges
    undecided : AbortedRanges
        The transactions whose markers are lost.
    stable_position : int or None
        Position of the first batch of the earliest open transaction: nothing is returned from there on.
    """

    aborted: AbortedRanges
    undecided: AbortedRanges = field(default_factory=_no_ranges)
    stable_position: int | None = None

    def mark(self, batches: npt.NDArray[np.void]) -> None:
        """Set the status of those among some batches of the source that are aborted or undecided."""
        for ranges, status in ((self.aborted, BatchStatus.ABORTED), (self.undecided, BatchStatus.UNDECIDED)):
            if len(ranges):
                batches["status"][ranges.mask(batches)] = status
        if self.stable_position is not None:
            batches["status"][batches["position"] >= self.stable_position] = BatchStatus.UNDECIDED


@dataclass(frozen=True, slots=True)
class WithheldOfLog:
    """The batches of a log that read_committed does not return, by positions in its segments joined.

    Attributes
    ----------
    withheld : Withheld
    segments : mapping of str to (int, int)
        Where each segment begins, and its size, by path.
    """

    withheld: Withheld
    segments: Mapping[str, tuple[int, int]]

    def of_segment(self, path: str) -> Withheld | None:
        """Return those of one segment, by positions in its file; None if nothing is withheld."""
        start, size = self.segments[path]
        whole, stop = self.withheld, start + size
        stable = whole.stable_position
        stable = None if stable is None or stable >= stop else max(stable - start, 0)
        aborted, undecided = (
            each.within(start, stop, from_start=True) if len(each) else each
            for each in (whole.aborted, whole.undecided)
        )
        return Withheld(aborted, undecided, stable) if len(aborted) or len(undecided) or stable is not None else None


class ListedAborts:
    """The aborted transactions in a fetch response, begun and closed by batches as they are decoded.

    As in Kafka's consumer, an entry begins at the first batch that reaches its first offset, and ends at the next ABORT
    marker of its producer, whatever the offset of the marker is (TXN-R2). Without a marker it has no end (TXN-R8).
    COMMIT markers are ignored (TXN-R4).

    Parameters
    ----------
    aborted : iterable of (producer id, first offset)
        See `AbortedRanges.from_list`.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        producers, first = _checked_pairs(aborted).T
        order = np.argsort(first, kind="stable")
        producers, self._first = producers[order], first[order]
        # The entries of a producer are adjacent slots, in the order of their first offsets, in which they also begin
        # and are closed. An object for each producer would take a kilobyte.
        self._ids, groups = np.unique(producers, return_inverse=True)
        slots = np.argsort(groups, kind="stable")
        self._slots = np.empty(len(slots), np.int64)
        self._slots[slots] = np.arange(len(slots))
        self._groups = groups
        # The positions where entries begin, by slot, and by producer the first slot that is not closed and the first
        # one that has not begun.
        self._positions = np.zeros(len(slots), np.int64)
        self._next = np.searchsorted(groups[slots], np.arange(len(self._ids))).astype(np.int64)
        self._ends = self._next.copy()
        self._begun = 0
        self._reach = -INT64_MAX - 1

    def follow(
        self, batches: npt.NDArray[np.void], abort_markers: tuple[npt.ArrayLike, npt.ArrayLike]
    ) -> npt.NDArray[np.int64]:
        """Follow the next batches.

        Parameters
        ----------
        batches : ndarray of BATCH_DTYPE
        abort_markers : (producer ids, positions)
            The ABORT markers among them, in log order.

        Returns
        -------
        ndarray of int64, shape (entries, 3)
            Producer id, first position, and position of the marker, of the entries that these batches have closed.
        """
        rows = batches[(batches["magic"] == 2) & (batches["producer_id"] >= 0)]
        if len(rows) and self._begun < len(self._first):
            reach = np.maximum(np.maximum.accumulate(rows["last_offset"]), self._reach)
            self._reach = int(reach[-1])
            stop = int(np.searchsorted(self._first, self._reach, "right"))
            new = slice(self._begun, stop)
            positions = rows["position"][np.searchsorted(reach, self._first[new])]
            self._positions[self._slots[new]] = positions
            np.add.at(self._ends, self._groups[new], 1)
            self._begun = stop
        closed = array("q")
        producers, places = (np.asarray(column, np.int64) for column in abort_markers)
        listed, groups = self._find(producers)
        for group, position in zip(groups.tolist(), places[listed].tolist(), strict=True):
            begin = int(self._next[group])
            began = self._positions[begin : self._ends[group]]
            count = int(np.searchsorted(began, position, "right"))
            for first in began[:count].tolist():
                closed.extend((int(self._ids[group]), first, position))
            self._next[group] = begin + count
        return np.array(closed, np.int64).reshape(-1, 3)

    def open_entries(self, producer_ids: Iterable[int] | None = None) -> npt.NDArray[np.int64]:
        """Return the first open entry of each producer, or of these producers, as a range without end (TXN-R8)."""
        groups: npt.NDArray[np.intp] = np.arange(len(self._ids))
        if producer_ids is not None:
            groups = self._find(np.fromiter(producer_ids, np.int64))[1]
        groups = groups[self._next[groups] < self._ends[groups]]
        positions = self._positions[self._next[groups]]
        return np.stack([self._ids[groups], positions, np.full(len(groups), INT64_MAX)], axis=1)

    def _find(self, producer_ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return the places in `producer_ids` of the listed producers, and their numbers."""
        groups = np.searchsorted(self._ids, producer_ids)
        listed = np.flatnonzero(groups < len(self._ids))
        listed = listed[self._ids[groups[listed]] == producer_ids[listed]]
        return listed, groups[listed]


def _checked_pairs(aborted: Iterable[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """Return pairs of a producer id and a first offset as rows; a tuple for each would take three times the memory."""
    pairs = array("q")
    for number, entry in enumerate(aborted):
        pairs.extend(_checked_pair(number, entry))
    return np.array(pairs, np.int64).reshape(-1, 2)


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
