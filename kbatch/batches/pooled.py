"""Growing structured arrays over reused memory."""

from __future__ import annotations

import contextlib
import functools

import numpy as np
import numpy.typing as npt

from kbatch.format import INT64_MAX
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
    frugal_from : int
        The size in bytes from which growing saves memory rather than time; see `kbatch.kernels.buffers.regrow`.

    Attributes
    ----------
    array : ndarray of dtype, shape (capacity,)
        `reserve` replaces it.
    used : int
        Rows at the front that are filled.
    """

    __slots__ = ("_block", "_frugal_from", "_memory", "array", "used")

    def __init__(self, dtype: np.dtype[np.void], capacity: int = 0, frugal_from: int = INT64_MAX) -> None:
        self.used = 0
        self._frugal_from = frugal_from
        self._block: buffers.Block | None = None
        self._memory, self.array = memoryview(b""), _no_rows(dtype)
        if capacity:
            size = capacity * dtype.itemsize
            self._attach(buffers.allocate(size, size >= frugal_from), dtype)

    def reserve(self, count: int) -> None:
        """Ensure capacity for `count` more rows after the used ones."""
        if count > len(self.array) - self.used:
            dtype = self.array.dtype
            # Doubling keeps the rows copied in proportion to the rows filled.
            capacity = max(self.used + count, 2 * len(self.array)) * dtype.itemsize
            if self._block is None:
                self._attach(buffers.allocate(capacity, capacity >= self._frugal_from), dtype)
                return
            block = self._block
            # If nothing else refers to the rows, `regrow` frees their pages while it copies them.
            self.array = _no_rows(dtype)
            with contextlib.suppress(BufferError):
                self._memory.release()
            try:
                # As bytes: NumPy copies rows field by field, which takes ten times as long.
                used = self.used * dtype.itemsize
                block = buffers.regrow(block, capacity, used, capacity >= self._frugal_from)
            finally:
                self._attach(block, dtype)

    def discard_unused(self) -> None:
        """Free the pages after the used rows; the capacity stays the same."""
        if self._block is not None:
            buffers.discard(self._block, self.used * self.array.dtype.itemsize)

    def _attach(self, block: buffers.Block, dtype: np.dtype[np.void]) -> None:
        self._block = block
        self._memory = memoryview(block)
        self.array = np.frombuffer(self._memory, dtype)

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


@functools.cache
def _no_rows(dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    return np.empty(0, dtype)
