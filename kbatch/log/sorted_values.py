"""Lookups of rows by the values of a column, in time that depends on the rows found and not on all rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["SortedValues"]


class SortedValues:
    """The sorted values of a column, and their rows.

    Parameters
    ----------
    values : ndarray of int64, shape (rows,)
        In any order.
    """

    def __init__(self, values: npt.NDArray[np.int64]) -> None:
        self._rows = np.argsort(values, kind="stable")
        self._values = values[self._rows]

    def between(self, first: int, last: int) -> npt.NDArray[np.intp]:
        """Return the rows whose values are from `first` to `last`, both inclusive, in ascending order."""
        start, stop = np.searchsorted(self._values, first), np.searchsorted(self._values, last, "right")
        return np.sort(self._rows[start:stop])

    def equal_to(self, values: npt.ArrayLike) -> npt.NDArray[np.intp]:
        """Return the rows that have one of these values, in ascending order."""
        chosen = np.unique(np.asarray(values, np.int64))
        starts = np.searchsorted(self._values, chosen)
        counts = np.searchsorted(self._values, chosen, "right") - starts
        # The rows of one value are adjacent.
        skipped = starts - (np.cumsum(counts) - counts)
        return np.sort(self._rows[np.repeat(skipped, counts) + np.arange(counts.sum())])
