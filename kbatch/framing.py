"""Bytes to batches: what begins where, and where to go on after damage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from kbatch.checksums import crc_holds
from kbatch.errors import Fault, Finding, TruncatedBatchError, finding_to_error
from kbatch.format import (
    ATTRIBUTE_CODEC,
    BATCH_DTYPE,
    LOG_OVERHEAD,
    MAGIC_AT,
    MESSAGE_HEADER_SIZES,
    MIN_ENTRY_SIZE,
    SHORTEST_ENTRY,
    Limits,
)
from kbatch.kernels import scan as _kernel
from kbatch.pooled import PooledRows

__all__ = [
    "Claims",
    "Scan",
    "byte_array",
    "damaged_end",
    "entry_size",
    "find_batch",
    "first_offsets",
    "frame",
    "may_end_later",
    "most_believed",
    "put_values",
    "scan",
    "scan_part",
    "scan_whole",
    "size_by_fields",
]

_FIRST_BATCHES = 1024
_MOST_BELIEVED = 64 << 20
# Offsets of a segment are this far from each other at most: Kafka's indexes store them relative to its first.
_MOST_APART = 1 << 31


class Scan(NamedTuple):
    """Whole batches, where the last of them ends in the input, and what stands there if no batch can."""

    batches: npt.NDArray[np.void]
    consumed: int
    finding: Finding | None


class Claims:
    """What wrong lengths have cost, and what is believed of lengths for it.

    Each header may claim all the bytes that follow it, and only their checksum tells whether it is right. Random bytes
    give a header that looks right once in some megabytes, and crafted ones as often as they like. What wrong ones may
    cost is bounded, so that no input takes quadratic time: each time they have cost so much, only batches of a quarter
    of the size are believed.

    Parameters
    ----------
    size : int
        Bytes of the source.

    Attributes
    ----------
    max_size : int
        What a header may claim at most, in bytes.
    reached : int or None
        The last offset of the good batches so far.
    """

    __slots__ = ("_allowance", "_budget", "_size", "max_size", "reached")

    def __init__(self, size: int) -> None:
        self._size = size
        self._allowance = self._budget = 16 * size + (64 << 20)
        # What is there may be the beginning of what is to come, so that there is no limit at first.
        self.max_size = LOG_OVERHEAD + (1 << 31)
        self.reached: int | None = None

    def wrong(self, size: int) -> None:
        """Take down that a header has claimed `size` bytes which aren't its batch."""
        self._budget -= size
        if self._budget < 0:
            self.max_size = min(self.max_size, self._size) // 4
            self._budget = self._allowance

    def fits(self, data: npt.NDArray[np.uint8], position: int) -> bool:
        """Whether the entry that a search has found at `position`, whose checksum holds, may be one of the source.

        Snappy and lz4 keep stretches of what they compress as they are, so that in a compressed message whose header is
        damaged there are messages with good checksums. These don't cover offsets, which there are relative to the
        wrapper's, or bytes of the codec: what isn't later than all before it, by no more than a segment takes, is none.
        """
        if self.reached is None or data[position + MAGIC_AT] == 2 or data[position + MAGIC_AT + 1] & ATTRIBUTE_CODEC:
            return True
        offset = int.from_bytes(data.data[position : position + 8], "big", signed=True)
        return self.reached < offset <= self.reached + _MOST_APART


def byte_array(data: Buffer) -> npt.NDArray[np.uint8]:
    """View anything with the buffer protocol as a read-only array of bytes, without a copy.

    The array holds the buffer, so that a ``bytearray`` can't be resized underneath.
    """
    try:
        return np.frombuffer(memoryview(data).toreadonly(), np.uint8)
    except TypeError:
        raise TypeError(
            f"data must have the buffer protocol (bytes, memoryview, mmap, ...), got {type(data)}"
        ) from None
    except (ValueError, BufferError) as error:
        raise ValueError(f"data must be a contiguous buffer: {error}") from None


def frame(
    data: npt.NDArray[np.uint8],
    rows: PooledRows,
    *,
    origin: int = 0,
    position: int = 0,
    max_batches: int | None = None,
    max_size: int | None = None,
) -> tuple[int, Finding | None]:
    """Append the batches of `data` from `position` on to `rows`; the other arguments are those of `scan_part`.

    Returns
    -------
    position : int
        Where the last whole batch ends.
    finding : Finding or None
        What stands there, if no batch can.
    """
    first, begun = rows.used, position
    rows.reserve(_FIRST_BATCHES if max_batches is None else max_batches)
    finding = None
    while True:
        end = len(rows.array) if max_batches is None else first + max_batches
        n, position, fault, wanted, found = _kernel.scan(data, rows.array, rows.used, end, position, origin)
        rows.used += n
        if fault:
            finding = Finding(Fault(fault), wanted=wanted, found=found)
        if fault or rows.used < end or max_batches is not None:
            break
        # As many more as there will be if the rest is like what was seen.
        rows.reserve(int(1.1 * (rows.used - first) * (len(data) - position) / (position - begun)) + _FIRST_BATCHES)
    if max_size is not None:
        if len(data) > max_size:
            larger = np.flatnonzero(rows.filled()["size"][first:] > max_size)
            if len(larger):
                rows.used = first + int(larger[0])
                position = int(rows.array["position"][rows.used]) - origin
                finding = None
        if finding is None and rows.used - first != max_batches and len(data) - position >= MIN_ENTRY_SIZE:
            size = entry_size(data, position)
            if size > max_size:
                finding = Finding(Fault.BATCH_TOO_LARGE, wanted=max_size, found=size)
    return position, finding


def scan_part(
    data: npt.NDArray[np.uint8],
    *,
    origin: int = 0,
    position: int = 0,
    max_batches: int | None = None,
    max_size: int | None = None,
) -> Scan:
    """Frame the batches of `data` from `position` on.

    Parameters
    ----------
    data : ndarray of uint8
    origin : int
        Position of ``data[0]`` in the source; it is added to the positions in the rows.
    position : int
        Where to begin in `data`.
    max_batches : int, optional
        Stop after so many.
    max_size : int, optional
        What a header may claim at most, in bytes. More is damage, whether the bytes are there or not.

    Returns
    -------
    Scan
        ``consumed`` counts from the beginning of `data`.
    """
    rows = PooledRows(BATCH_DTYPE)
    consumed, finding = frame(data, rows, origin=origin, position=position, max_batches=max_batches, max_size=max_size)
    return Scan(rows.filled(), consumed, finding)


def scan_whole(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
    """Frame all of `data`; CorruptBatchError or TruncatedBatchError where it isn't whole batches."""
    scan = scan_part(data)
    if scan.finding is not None:
        raise finding_to_error(scan.finding, source=None, position=scan.consumed)
    if scan.consumed != len(data):
        left = len(data) - scan.consumed
        raise TruncatedBatchError(
            f"byte {scan.consumed}: the batch isn't whole, of {left} bytes", position=scan.consumed
        )
    return scan.batches


def put_values(
    out: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], values: npt.NDArray[np.int64], dtype: str
) -> None:
    """Store a value at each position, such as a field of each batch."""
    width = np.dtype(dtype).itemsize
    out[positions[:, None] + np.arange(width)] = values.astype(dtype).view(np.uint8).reshape(-1, width)


def scan(data: Buffer) -> npt.NDArray[np.void]:
    """Read the batch headers of `data`; nothing is decompressed and no checksum computed.

    Parameters
    ----------
    data : buffer
        Record batches one after the other, as in a fetch response or a segment file.

    Returns
    -------
    ndarray of BATCH_DTYPE, shape (batches,)
        One row a batch, ``position`` and ``size`` in bytes. An incomplete batch at the end has no row (FRM-R3). Of a
        compressed message of magic 0 or 1 the headers tell the last offset only: ``base_offset`` and ``record_count``
        are -1 until it is decoded (LEG-R23).

    Raises
    ------
    CorruptBatchError
        At bytes that no batch can begin with.

    Examples
    --------
    >>> import kbatch
    >>> batches = kbatch.scan(b"")
    >>> len(batches)
    0
    """
    array = byte_array(data)
    result = scan_part(array)
    if result.finding is not None:
        raise finding_to_error(result.finding, source=None, position=result.consumed)
    return result.batches


def first_offsets(rows: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Return the base offset of each batch; of compressed message sets, whose headers hide it, the last (LEG-R23)."""
    hidden = (rows["magic"] < 2) & (rows["base_offset"] < 0)
    return np.where(hidden, rows["last_offset"], rows["base_offset"])


def entry_size(data: npt.NDArray[np.uint8], position: int) -> int:
    """Return the bytes that the entry at ``data[position]`` says it takes; its first 12 must be there (FRM-R1)."""
    return LOG_OVERHEAD + int.from_bytes(data.data[position + 8 : position + LOG_OVERHEAD], "big", signed=True)


def most_believed(limits: Limits) -> int:
    """Return the largest batch, in bytes, that a search after damage and a stream believe in.

    Unless the limits say it, that is what decodes, and what brokers take.
    """
    if limits.max_batch_bytes is not None:
        return limits.max_batch_bytes
    return max(limits.max_decompressed_bytes, _MOST_BELIEVED)


def damaged_end(data: npt.NDArray[np.uint8], position: int, claims: Claims) -> int | None:
    """Return where the entry at `position` ends whose length field or magic is wrong, if it tells otherwise.

    The checksum of magic 0 and 1 doesn't cover the length, but those of key and value: if it holds up to where they say
    that the message ends, that is the end. And where the magic is wrong, what follows by the length tells.
    """
    left = len(data) - position
    if left < SHORTEST_ENTRY:
        return None
    size = size_by_fields(data, position)
    if size is not None and size <= min(left, claims.max_size):
        if crc_holds(data, position, size):
            return position + size
        claims.wrong(size)
    size = entry_size(data, position)
    if SHORTEST_ENTRY <= size <= left - MIN_ENTRY_SIZE:
        follower = scan_part(data, position=position + size, max_batches=1, max_size=claims.max_size).batches
        if len(follower):
            if crc_holds(data, position + size, int(follower["size"][0])):
                return position + size
            claims.wrong(int(follower["size"][0]))
    return None


def may_end_later(data: npt.NDArray[np.uint8], position: int) -> bool:
    """Whether the bad entry at `position` looks like a compressed message that goes on beyond `data`.

    A search would look for the next entry within it.
    """
    if len(data) - position < SHORTEST_ENTRY or data[position + MAGIC_AT] > 1:
        return False
    size = size_by_fields(data, position)
    return data[position + MAGIC_AT + 1] & ATTRIBUTE_CODEC != 0 and (size is None or size > len(data) - position)


def size_by_fields(data: npt.NDArray[np.uint8], position: int) -> int | None:
    """Return the bytes that the message of magic 0 or 1 at `position` takes by the lengths of its key and value."""
    view = data.data[position:]
    if view[MAGIC_AT] > 1:
        return None
    at = MESSAGE_HEADER_SIZES[view[MAGIC_AT]]
    for _ in range(2):
        if len(view) < at + 4:
            return None
        at += 4 + max(int.from_bytes(view[at : at + 4], "big", signed=True), 0)
    return at


def find_batch(
    data: npt.NDArray[np.uint8], position: int, *, max_size: int, final: bool, claims: Claims | None = None
) -> tuple[int, bool]:
    """Search for the next batch, or message of magic 0 or 1, after damage: one whose length, magic *and* checksum hold.

    Parameters
    ----------
    data : ndarray of uint8
    position : int
        Where to begin.
    max_size : int
        Larger batches are not believed, in bytes.
    final : bool
        Whether `data` ends where the source ends. If not, and no whole batch is found, the first header whose batch
        ends beyond `data` is where a later search has to begin. Many bytes look like such a header, so that a whole
        batch after it is believed first: it isn't one of another's values unless someone stores batches in batches.
    claims : Claims, optional
        Those of the whole source, if `data` is a part of it.

    Returns
    -------
    position : int
        Where the batch begins; or, if there is none, from where a later search has to begin.
    found : bool
        Whether a batch is there and whole.
    """
    end = len(data)
    if claims is None:
        claims = Claims(end)
    unfinished = None
    while True:
        believed = min(max_size, claims.max_size)
        candidate = _kernel.find_candidate(data, position, believed, final or unfinished is not None)
        if candidate < 0:
            if unfinished is not None:
                return unfinished, False
            return (end if final else max(position, end - MIN_ENTRY_SIZE + 1)), False
        size = entry_size(data, candidate)
        if size > end - candidate:
            unfinished = candidate
            position = candidate + 1
            continue
        if crc_holds(data, candidate, size):
            if claims.fits(data, candidate):
                return candidate, True
        else:
            claims.wrong(size)
        position = candidate + 1
