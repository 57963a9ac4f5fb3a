"""Checksums of batches: CRC-32C, or CRC-32 for magic 0 and 1."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from kbatch.format import CRC_START, CRC_START_LEGACY
from kbatch.kernels import checksum

__all__ = ["crc_holds", "first_bad_crc", "good_crcs", "write_crcs"]


def first_bad_crc(
    data: npt.NDArray[np.uint8], batches: npt.NDArray[np.void], lo: int, hi: int, origin: int
) -> tuple[int, int]:
    """Find the first batch, or message of magic 0 or 1, from row `lo` up to `hi` whose checksum doesn't hold.

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
    return checksum.verify(data, batches, lo, hi, origin)


def good_crcs(data: npt.NDArray[np.uint8], batches: npt.NDArray[np.void], origin: int) -> npt.NDArray[np.bool_]:
    """Whether the checksum of each of `batches` holds; the arguments are those of `first_bad_crc`."""
    good = np.ones(len(batches), np.bool_)
    at = 0
    while at < len(batches):
        at, _ = checksum.verify(data, batches, at, len(batches), origin)
        if at < len(batches):
            good[at] = False
            at += 1
    return good


def write_crcs(data: npt.NDArray[np.uint8], batches: npt.NDArray[np.void]) -> None:
    """Compute the checksums of `batches` and write them to `data` and to their rows."""
    checksum.reseal(data, batches)


def crc_holds(data: npt.NDArray[np.uint8], position: int, size: int) -> bool:
    """Whether the batch, or message of magic 0 or 1, of `size` bytes at ``data[position]`` holds its own checksum."""
    batch = data.data[position : position + size]
    if batch[16] == 2:
        return crc32c(batch[CRC_START:]) == int.from_bytes(batch[CRC_START - 4 : CRC_START], "big")
    return zlib.crc32(batch[CRC_START_LEGACY:]) == int.from_bytes(batch[12:CRC_START_LEGACY], "big")
