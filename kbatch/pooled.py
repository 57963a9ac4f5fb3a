"""Growing structured arrays over memory that is used again."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from kbatch.kernels import buffers

__all__ = ["PooledRows"]


@functools.cache
def _no_rows(dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    return np.empty(0, dtype)


class PooledRows:
    """Rows that kernels fill: an array with room to spare, over a block of `kbatch.kernels.buffers`.

    A fresh page costs more than filling it, so the memory of one table becomes that of a later one.

    Parameters
    ----------
    dtype : dtype
        Of a row.
    capacity : int
        Rows to begin with.

    Attributes
    ----------
    array : ndarray of dtype, shape (capacity,)
        `reserve` replaces it.
    used : int
        Rows at the front that are filled.
    """

    __slots__ = ("array", "used")

    def __init__(self, dtype: np.dtype[np.void], capacity: int) -> None:
        self.used = 0
        self.array = self._make(dtype, capacity)

    @staticmethod
    def _make(dtype: np.dtype[np.void], capacity: int) -> npt.NDArray[np.void]:
        if not capacity:
            return _no_rows(dtype)
        return np.frombuffer(memoryview(buffers.allocate(capacity * dtype.itemsize)), dtype)

    def reserve(self, count: int) -> None:
        """Make room for `count` more rows after the used ones."""
        if count > len(self.array) - self.used:
            # Doubling keeps the rows copied in proportion to the rows filled.
            grown = self._make(self.array.dtype, max(self.used + count, 2 * len(self.array)))
            if self.used:
                grown[: self.used] = self.array[: self.used]
            self.array = grown

    def extend(self, rows: npt.NDArray[np.void]) -> None:
        """Add rows at the end. As the first ones they are not copied, and belong to this from then on."""
        if not self.used and len(rows) > len(self.array):
            self.array = rows
        else:
            self.reserve(len(rows))
            self.array[self.used : self.used + len(rows)] = rows
        self.used += len(rows)

    def filled(self) -> npt.NDArray[np.void]:
        """Return the used rows; they keep the memory alive."""
        return self.array[: self.used]
