"""Options of a call, and structured values, from the bytes of an input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

# An input begins with this many bytes for options; mutators of the content leave them unchanged.
OPTION_BYTES = 6


class Choices:
    """Takes numbers, choices and bytes from the front of the input; at its end everything is 0, first, or empty."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        part = self.data[self.at : self.at + size]
        self.at += len(part)
        return part

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def signed(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def of(self, options: Sequence[T]) -> T:
        return options[self.number(1) % len(options)]

    def rest(self) -> bytes:
        return self.take(self.left())


class PackedChoices:
    """Makes many choices from a few bytes: each is the remainder of one large number."""

    def __init__(self, data: bytes) -> None:
        self.state = int.from_bytes(data, "little")

    def of(self, options: Sequence[T]) -> T:
        self.state, index = divmod(self.state, len(options))
        return options[index]


def guarded(data: bytes) -> npt.NDArray[Any]:
    """Copy bytes to memory of their own, where ASan detects accesses beyond the end; small objects share theirs."""
    return np.frombuffer(data, np.uint8).copy()


def split(data: bytes) -> tuple[PackedChoices, bytes]:
    """Return the choices in the first bytes, and the content."""
    return PackedChoices(data[:OPTION_BYTES]), data[OPTION_BYTES:]
