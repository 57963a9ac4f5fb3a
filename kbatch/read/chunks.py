"""The bytes of a stream that are still needed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kbatch.kernels.buffers import allocate
from kbatch.tuning import CHUNKS_MIN_CAPACITY

__all__ = ["ChunkBuffer"]


class ChunkBuffer:
    """Chunks of a stream, copied one after the other: the `kbatch.read.windows.Windows` of a stream.

    Bytes that were part of a window are not overwritten: a table may point to them.

    Parameters
    ----------
    origin : int
        Position of the first byte of the stream.

    Attributes
    ----------
    start, end : int
        Positions of the first byte that is kept, and after the last one.
    is_final : bool
        Whether the stream ends there.
    """

    is_bounded = False
    may_be_cut = False

    def __init__(self, origin: int) -> None:
        self.start = self.end = origin
        self.is_final = False
        self._memory: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        # Where in the memory the byte at `start` is.
        self._begin = 0

    def window(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return the bytes from `start` to the end, read-only."""
        window = self._memory[self._begin + start - self.start : self._begin + self.end - self.start]
        window.flags.writeable = False
        return window

    def append(self, chunk: npt.NDArray[np.uint8], expected: int = 0) -> None:
        """Copy a chunk to the end; `expected` is as for `free`."""
        self.free(len(chunk), expected)[:] = chunk
        self.end += len(chunk)

    def free(self, size: int, expected: int = 0) -> npt.NDArray[np.uint8]:
        """Return the `size` bytes of memory after the end. The caller writes to them and advances `end`.

        If memory has to be allocated, it has at least `expected` bytes from `start` on.
        """
        used = self.end - self.start
        if self._begin + used + size > len(self._memory):
            # Doubling keeps the bytes copied in proportion to the bytes that came.
            self._move(max(used + size, expected, 2 * used, CHUNKS_MIN_CAPACITY))
        at = self._begin + used
        return self._memory[at : at + size]

    def _move(self, capacity: int) -> None:
        used = self.end - self.start
        memory = np.frombuffer(memoryview(allocate(capacity)), np.uint8)
        memory[:used] = self._memory[self._begin : self._begin + used]
        self._memory, self._begin = memory, 0

    def release(self, position: int) -> None:
        """Drop the bytes before `position`."""
        dropped = position - self.start
        if dropped <= 0:
            return
        left = self.end - position
        self._begin += dropped
        self.start = position
        if left <= dropped:
            # Moving the smaller rest costs less than reading the dropped bytes did, and frees the memory.
            self._move(left)
