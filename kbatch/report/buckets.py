"""Sums over ranges of a number that is not known beforehand, such as records per hour, in constant memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

__all__ = ["OFFSET_WIDTHS", "TIME_WIDTHS", "Buckets"]

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
# Milliseconds. Each width is a multiple of the one before, so that buckets can be joined.
TIME_WIDTHS = (
    1,
    10,
    100,
    _SECOND,
    10 * _SECOND,
    30 * _SECOND,
    _MINUTE,
    5 * _MINUTE,
    10 * _MINUTE,
    30 * _MINUTE,
    _HOUR,
    2 * _HOUR,
    6 * _HOUR,
    12 * _HOUR,
    _DAY,
    7 * _DAY,
    28 * _DAY,
    364 * _DAY,
    *(364 * _DAY * 10**power for power in range(1, 9)),
)
OFFSET_WIDTHS = tuple(1 << power for power in range(6, 63))

# Numbers whose buckets span at most this many times their count are counted in an array of that size.
_MOST_SPARSE = 4


class Buckets:
    """Sums in buckets of equal width. If too many buckets have something, they are joined to the next larger width.

    Empty buckets take no memory, so a few numbers far away from all others do not change the width.

    Parameters
    ----------
    widths : sequence of int
        Ascending; each is a multiple of the one before.
    columns : int
        The number of sums, in addition to the number of numbers.
    limit : int
        The most buckets.

    Attributes
    ----------
    width : int
    ids : ndarray of int64
        Ascending: the numbers in a bucket are from ``id * width`` up to ``(id + 1) * width``.
    sums : ndarray of float64, shape (buckets, 1 + columns)
        The number of numbers, and the sums.

    Examples
    --------
    >>> import numpy as np
    >>> from kbatch.report.buckets import Buckets
    >>> buckets = Buckets((1, 10, 100), 0, limit=3)
    >>> buckets.add(np.array([1, 2, 15, 1000]))
    >>> buckets.width, buckets.ids.tolist(), buckets.sums[:, 0].tolist()
    (10, [0, 1, 100], [2.0, 1.0, 1.0])
    """

    def __init__(self, widths: Sequence[int], columns: int, *, limit: int = 512) -> None:
        self._widths = widths
        self._limit = limit
        self.width = widths[0]
        self.ids: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.sums: npt.NDArray[np.float64] = np.empty((0, 1 + columns), np.float64)

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, numbers: npt.NDArray[np.int64], *columns: npt.NDArray[np.float64]) -> None:
        """Count numbers, and add what belongs to each of them."""
        if not len(numbers):
            return
        ids = numbers // self.width
        low, high = int(ids.min()), int(ids.max())
        if high - low < max(_MOST_SPARSE * len(ids), 1024):
            places, size, found = ids - low, high - low + 1, low + np.arange(high - low + 1)
        else:
            found, places = np.unique(ids, return_inverse=True)
            size = len(found)
        counts = np.bincount(places, minlength=size)
        used = np.flatnonzero(counts)
        sums = [counts, *(np.bincount(places, column, size) for column in columns)]
        self._join(found[used], np.stack([each[used] for each in sums], axis=1).astype(np.float64))

    def merge(self, other: Buckets) -> None:
        """Add the sums of other buckets with the same widths."""
        if len(other):
            self.widen(other.width)
            self._join(other.ids // (self.width // other.width), other.sums)

    def widen(self, width: int) -> None:
        """Join the buckets to at least this width."""
        while self.width < width:
            self._widen()

    def limited(self, limit: int) -> Self:
        """Join the buckets until there are at most this many; return the buckets."""
        self._limit = limit
        while len(self.ids) > limit:
            self._widen()
        return self

    def _widen(self) -> None:
        following = self._widths[self._widths.index(self.width) + 1]
        ids, self.width = self.ids // (following // self.width), following
        self.ids, self.sums = _sums_by_id(ids, self.sums)

    def _join(self, ids: npt.NDArray[np.int64], sums: npt.NDArray[np.float64]) -> None:
        ids, sums = np.concatenate([self.ids, ids]), np.concatenate([self.sums, sums])
        self.ids, self.sums = _sums_by_id(ids, sums)
        self.limited(self._limit)


def _sums_by_id(
    ids: npt.NDArray[np.int64], sums: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return ascending ids, and the sums of each."""
    order = np.argsort(ids, kind="stable")
    ids, sums = ids[order], sums[order]
    first = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])) if len(ids) else np.empty(0, np.intp)
    return ids[first], np.add.reduceat(sums, first) if len(first) else sums
