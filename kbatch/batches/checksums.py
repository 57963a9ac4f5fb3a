"""Which batches have a good checksum: CRC-32C, or CRC-32 for magic 0 and 1."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from kbatch.kernels.checksum import first_bad_crc

__all__ = ["good_crcs", "has_good_batch"]


class _Windows(Protocol):
    def window(self, start: int, stop: int, /) -> npt.NDArray[np.uint8]: ...


def good_crcs(data: npt.NDArray[np.uint8], batches: npt.NDArray[np.void], origin: int = 0) -> npt.NDArray[np.bool_]:
    """Return for each of `batches` whether its checksum is good; `origin` is the position of ``data[0]``."""
    good = np.ones(len(batches), np.bool_)
    row, _ = first_bad_crc(data, batches, 0, len(batches), origin)
    while row < len(batches):
        good[row] = False
        row, _ = first_bad_crc(data, batches, row + 1, len(batches), origin)
    return good


def has_good_batch(source: _Windows, row: np.void) -> bool:
    """Return whether `source`, such as a segment, has all bytes of the batch with this header and a good checksum."""
    position, size = int(row["position"]), int(row["size"])
    window = source.window(position, position + size)
    return len(window) >= size and bool(good_crcs(window, np.array([row]), position)[0])
