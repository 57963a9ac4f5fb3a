"""The interface through which a buffer, a file and a stream supply their bytes to a reader."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["BufferWindows", "Windows"]


class Windows(Protocol):
    """The bytes of a source, by position."""

    @property
    def end(self) -> int:
        """The position after the last byte that is known."""

    @property
    def is_final(self) -> bool:
        """Whether the source ends there."""

    @property
    def is_bounded(self) -> bool:
        """Whether a batch is known to begin there."""

    @property
    def may_be_cut(self) -> bool:
        """Whether the source may end within a batch, as a fetch response does, without damage."""

    def window(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return the known bytes from `start` on, at least up to `stop` if they are known."""


class BufferWindows:
    """A source that is in memory as a whole.

    Parameters
    ----------
    data : ndarray of uint8
    origin : int
        Position of ``data[0]`` in the source.
    is_bounded : bool
        Whether a batch is known to begin where `data` ends.
    """

    is_final = True

    def __init__(self, data: npt.NDArray[np.uint8], origin: int = 0, *, is_bounded: bool = False) -> None:
        self._data = data
        self._origin = origin
        self.end = origin + len(data)
        self.is_bounded = is_bounded
        self.may_be_cut = not is_bounded

    def window(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return the bytes from `start` on."""
        return self._data[start - self._origin :] if start > self._origin else self._data
