"""The buffer that payloads are decompressed into."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from kbatch.errors import Finding
from kbatch.format import INT64_MAX
from kbatch.kernels.buffers import allocate, discard, regrow

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Arena", "ArenaFullError", "FixedArena", "PayloadError"]

# The smallest capacity that an arena grows to.
ARENA_MIN_GROWTH = 256 << 10


class PayloadError(Exception):
    """A payload that cannot be decompressed.

    The caller, which knows the batch, raises a `kbatch.errors.KbatchError` for the finding.

    Attributes
    ----------
    finding : Finding
        The fault: ``Fault.CODEC`` with a detail text, ``Fault.OVER_LIMIT`` or ``Fault.UNKNOWN_CODEC``.
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.finding = finding


class ArenaFullError(Exception):
    """A payload needs more memory than a `FixedArena` has."""


class Arena:
    """A growing buffer that payloads are decompressed into, one after the other.

    Its memory comes from the free list of `kbatch.kernels.buffers` and returns there when the arena and all views of it
    are garbage. Only one thread at a time may use an arena.

    Parameters
    ----------
    capacity : int, default 0
        The initial capacity, in bytes.
    frugal_from : int, optional
        The capacity from which growing saves memory rather than time; see `kbatch.kernels.buffers.regrow`.

    Attributes
    ----------
    view : memoryview
        The whole capacity, writable, format ``"B"``. `reserve` replaces it.
    used : int
        The number of bytes at the front that hold data.

    Examples
    --------
    >>> import zlib
    >>> from kbatch.batches.arena import Arena
    >>> from kbatch.batches.codecs import decompress
    >>> from kbatch import Codec
    >>> arena = Arena()
    >>> decompress(Codec.GZIP, memoryview(zlib.compress(b"plain", wbits=31)), arena, limit=1 << 20)
    5
    >>> arena.array().tobytes()
    b'plain'
    """

    __slots__ = ("_block", "_frugal_from", "used", "view")

    def __init__(self, capacity: int = 0, frugal_from: int = INT64_MAX) -> None:
        self._frugal_from = frugal_from
        self._block = allocate(capacity, capacity >= frugal_from)
        self.view = memoryview(self._block)
        self.used = 0

    def reserve(self, n: int, produced: int = 0) -> None:
        """Ensure capacity for `n` more bytes after the used ones, of which the first `produced` already hold data.

        If the memory is replaced, `view` is released.

        Raises
        ------
        MemoryError
            If the allocation fails; the arena is unchanged.
        """
        needed = self.used + n
        if needed > len(self._block):
            # Doubling keeps the bytes copied in proportion to the bytes written.
            capacity = max(needed, 2 * len(self._block), ARENA_MIN_GROWTH)
            # An array over the view keeps it.
            with contextlib.suppress(BufferError):
                self.view.release()
            try:
                self._block = regrow(self._block, capacity, self.used + produced, capacity >= self._frugal_from)
            finally:
                self.view = memoryview(self._block)

    def discard_unused(self) -> None:
        """Free the pages after the used bytes; the capacity stays the same."""
        discard(self._block, self.used)

    def array(self) -> NDArray[np.uint8]:
        """Return the used bytes.

        Returns
        -------
        ndarray of uint8, shape (used,)
            Read-only, without a copy. It keeps the memory alive after the arena has grown or been deleted.
        """
        return np.frombuffer(self.view[: self.used].toreadonly(), np.uint8)


class FixedArena(Arena):
    """The memory of another arena, which does not grow meanwhile: `reserve` raises `ArenaFullError` instead.

    Parameters
    ----------
    view : memoryview
        The whole capacity of the other arena.
    """

    __slots__ = ()

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.used = 0

    def reserve(self, n: int, produced: int = 0) -> None:
        """Ensure capacity for `n` more bytes after the used ones."""
        if self.used + n > len(self.view):
            raise ArenaFullError
