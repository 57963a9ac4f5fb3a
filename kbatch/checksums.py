"""Which implementation of CRC-32C, or of CRC-32 for magic 0 and 1, checks which batch."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from kbatch.kernels import checksum

__all__ = ["crc_holds", "first_bad_crc", "good_crcs", "write_crcs"]

# The checksum covers the batch from its attributes on (CRC-R1), an entry of magic 0 or 1 from its magic on (CRC-R7).
_CRC_START = 21
_CRC_START_LEGACY = 16


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
    most, most_legacy = checksum.MAX_SIZE, checksum.MAX_SIZE_LEGACY
    bad, found, longer = checksum.verify(data, batches, lo, hi, origin, most, most_legacy)
    if longer:
        part = batches[lo:bad]
        long_rows = _left_by_kernel(part)
        chosen = part[long_rows]
        positions = chosen["position"] - origin
        view = data.data
        for row, magic, start, end, stored in zip(
            long_rows.tolist(),
            chosen["magic"].tolist(),
            positions.tolist(),
            (positions + chosen["size"]).tolist(),
            chosen["crc"].tolist(),
            strict=True,
        ):
            crc = _checksum(magic, view[start:end])
            if crc != stored:
                return lo + row, crc
    return bad, found


def good_crcs(data: npt.NDArray[np.uint8], batches: npt.NDArray[np.void], origin: int) -> npt.NDArray[np.bool_]:
    """Whether the checksum of each of `batches` holds; the arguments are those of `first_bad_crc`."""
    good = np.ones(len(batches), np.bool_)
    most, most_legacy = checksum.MAX_SIZE, checksum.MAX_SIZE_LEGACY
    at = 0
    while at < len(batches):
        at, _, _ = checksum.verify(data, batches, at, len(batches), origin, most, most_legacy)
        if at < len(batches):
            good[at] = False
            at += 1
    for row in _left_by_kernel(batches).tolist():
        good[row] = crc_holds(data, int(batches["position"][row]) - origin, int(batches["size"][row]))
    return good


def write_crcs(data: npt.NDArray[np.uint8], batches: npt.NDArray[np.void]) -> None:
    """Compute the checksums of `batches` and write them to `data` and to their rows."""
    most, most_legacy = checksum.MAX_SIZE, checksum.MAX_SIZE_LEGACY
    if not checksum.reseal(data, batches, most, most_legacy):
        return
    for row in _left_by_kernel(batches).tolist():
        start, size, magic = (int(batches[name][row]) for name in ("position", "size", "magic"))
        crc = _checksum(magic, data.data[start : start + size])
        at = start + (_CRC_START if magic == 2 else _CRC_START_LEGACY)
        data.data[at - 4 : at] = crc.to_bytes(4, "big")
        batches["crc"][row] = crc


def crc_holds(data: npt.NDArray[np.uint8], position: int, size: int) -> bool:
    """Whether the batch, or message of magic 0 or 1, of `size` bytes at ``data[position]`` holds its own checksum."""
    batch = data.data[position : position + size]
    magic = batch[16]
    end = _CRC_START if magic == 2 else _CRC_START_LEGACY
    return _checksum(magic, batch) == int.from_bytes(batch[end - 4 : end], "big")


def _left_by_kernel(batches: npt.NDArray[np.void]) -> npt.NDArray[np.intp]:
    """Return the rows of batches that are too long for the kernel: its calls pass over them."""
    most = np.where(batches["magic"] == 2, checksum.MAX_SIZE, checksum.MAX_SIZE_LEGACY)
    return np.flatnonzero(batches["size"] > most)


def _checksum(magic: int, batch: memoryview) -> int:
    return crc32c(batch[_CRC_START:]) if magic == 2 else zlib.crc32(batch[_CRC_START_LEGACY:])
