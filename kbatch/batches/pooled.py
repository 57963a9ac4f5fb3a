"""Growing structured arrays over reused memory."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from kbatch.kernels import buffers

__all__ = ["PooledRows"]


class PooledRows:
    """Rows that kernels fill: an array with spare capacity, over a block of `kbatch.kernels.buffers`.

    Allocating a new page costs more than filling it, so that a later table reuses the memory of an earlier one.

    Parameters
    ----------
    dtype : dtype
        The dtype of a row.
    capacity : int
        The initial number of rows.

    Attributes
    ----------
    array : ndarray of dtype, shape (capacity,)
        `reserve` replaces it.
    used : int
        Rows at the front that are filled.
    """

    __slots__ = ("_memory", "array", "used")

    def __init__(self, dtype: np.dtype[np.void], capacity: int = 0) -> None:
        self.used = 0
        self._memory, self.array = _pooled_rows(dtype, capacity) if capacity else _no_rows(dtype)

    def reserve(self, count: int) -> None:
        """Ensure capacity for `count` more rows after the used ones."""
        if count > len(self.array) - self.used:
            dtype = self.array.dtype
            # Doubling keeps the rows copied in proportion to the rows filled.
            memory, array = _pooled_rows(dtype, max(self.used + count, 2 * len(self.array)))
            # As bytes: NumPy copies rows field by field, which takes ten times as long.
            size = self.used * dtype.itemsize
            memory[:size] = self._memory[:size]
            self._memory, self.array = memory, array

    def extend(self, rows: npt.NDArray[np.void]) -> None:
        """Add rows at the end."""
        self.reserve(len(rows))
        self.array[self.used : self.used + len(rows)] = rows
        self.used += len(rows)

    def filled(self) -> npt.NDArray[np.void]:
        """Return the used rows; they keep the memory alive."""
        return self.array[: self.used]

    def finished(self) -> npt.NDArray[np.void]:
        """Return the used rows, read-only; they keep the memory alive."""
        # A slice that is then made read-only takes twice as long.
        return np.frombuffer(self._memory.toreadonly(), self.array.dtype, self.used)


def _pooled_rows(dtype: np.dtype[np.void], capacity: int) -> tuple[memoryview, npt.NDArray[np.void]]:
    memory = memoryview(buffers.allocate(capacity * dtype.itemsize))
    return memory, np.frombuffer(memory, dtype)


@functools.cache
def _no_rows(dtype: np.dtype[np.void]) -> tuple[memoryview, npt.NDArray[np.void]]:
    return memoryview(b""), np.empty(0, dtype)
