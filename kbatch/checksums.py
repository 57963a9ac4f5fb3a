"""Which implementation of CRC-32C checks which batch."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from kbatch.kernels import checksum

__all__ = ["crc_holds", "first_bad_crc"]

# The checksum covers the batch from its attributes on (CRC-R1).
_CRC_START = 21


def first_bad_crc(
    data: npt.NDArray[np.uint8], batches: npt.NDArray[np.void], lo: int, hi: int, origin: int
) -> tuple[int, int]:
    """Find the first batch of magic 2 from row `lo` up to `hi` whose checksum doesn't hold.

    Parameters
    ----------
    data : ndarray of uint8
        The bytes that hold the batches.
    batches : ndarray of BATCH_DTYPE
    lo, hi : int
        Rows to check.
    origin : int
        Position of ``data[0]`` in the source.

    Returns
    -------
    row, crc : int
        The row and the checksum of its bytes; ``(hi, 0)`` if all hold.
    """
    bad, found, longer = checksum.verify(data, batches, lo, hi, origin, checksum.MAX_SIZE)
    if longer:
        part = batches[lo:bad]
        long_rows = np.flatnonzero((part["size"] > checksum.MAX_SIZE) & (part["magic"] == 2))
        chosen = part[long_rows]
        starts = chosen["position"] - (origin - _CRC_START)
        ends = chosen["position"] + chosen["size"] - origin
        view = data.data
        for row, start, end, stored in zip(
            long_rows.tolist(), starts.tolist(), ends.tolist(), chosen["crc"].tolist(), strict=True
        ):
            crc = crc32c(view[start:end])
            if crc != stored:
                return lo + row, crc
    return bad, found


def crc_holds(data: npt.NDArray[np.uint8], position: int, size: int) -> bool:
    """Whether the batch, or message of magic 0 or 1, of `size` bytes at ``data[position]`` holds its own checksum."""
    batch = data.data[position : position + size]
    if batch[16] != 2:
        # CRC-32 from the magic on (CRC-R7).
        return zlib.crc32(batch[16:]) == int.from_bytes(batch[12:16], "big")
    return crc32c(batch[_CRC_START:]) == int.from_bytes(batch[17:_CRC_START], "big")
