"""Framing: which batches begin where in a buffer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from kbatch.batches.pooled import PooledRows
from kbatch.errors import (
    Fault,
    Finding,
    KbatchError,
    TruncatedBatchError,
    finding_text,
    finding_to_error,
)
from kbatch.format import (
    BATCH_DTYPE,
    BATCH_HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_AT,
    MESSAGE_HEADER_SIZES,
    MIN_ENTRY_SIZE,
    BytesLike,
    Limits,
)
from kbatch.kernels import scan as _kernel
from kbatch.public_names import public_in

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "ScannedBatches",
    "byte_array",
    "entry_size",
    "first_offsets",
    "foreign_reason",
    "frame_batches",
    "framing_error",
    "framing_reason",
    "look_of",
    "max_entry_size",
    "plausible_size",
    "put_values",
    "scan",
    "scan_complete",
    "scan_part",
    "size_by_fields",
]

# The smallest capacity of the rows of batches; it doubles when they are full.
FRAMING_MIN_ROWS = 1024

_MAX_ENTRY_SIZE = 64 << 20
# The smallest size of an entry, by magic.
_MIN_ENTRY_SIZES = (MESSAGE_HEADER_SIZES[0] + 8, MESSAGE_HEADER_SIZES[1] + 8, BATCH_HEADER_SIZE)

# The first bytes of files that are mistaken for segments.
_FIRST_BYTES = {
    b"\x1f\x8b": "a gzip file; decompress it first",
    b"PK\x03\x04": "a zip file; extract it first",
    b"\x28\xb5\x2f\xfd": "a zstd file; decompress it first",
    b"\x04\x22\x4d\x18": "an lz4 file; decompress it first",
    b"BZh": "a bzip2 file; decompress it first",
    b"\xfd7zXZ\x00": "an xz file; decompress it first",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"Obj\x01": "an Avro file",
    b"\x7fELF": "an ELF file",
}


class ScannedBatches(NamedTuple):
    """The complete batches, where the last one ends in the input, and the fault there if no batch can follow."""

    batches: npt.NDArray[np.void]
    consumed: int
    finding: Finding | None


def byte_array(data: BytesLike, name: str = "data") -> npt.NDArray[np.uint8]:
    """View anything with the buffer protocol as a read-only array of bytes, without a copy.

    The array holds the buffer, so that a ``bytearray`` cannot be resized meanwhile.
    """
    try:
        return np.frombuffer(memoryview(cast("Buffer", data)).toreadonly(), np.uint8)
    except TypeError:
        hint = ""
        if isinstance(data, str | os.PathLike):
            hint = "; read the file first, as pathlib.Path(path).read_bytes()"
        elif callable(getattr(data, "read", None)):
            hint = "; pass the bytes of the file, as file.read()"
        raise TypeError(
            f"{name} must have the buffer protocol (bytes, memoryview, mmap, ...), got {type(data).__name__}{hint}"
        ) from None
    except (ValueError, BufferError) as error:
        raise ValueError(f"{name} must be a contiguous buffer: {error}") from None


def frame_batches(
    data: npt.NDArray[np.uint8],
    rows: PooledRows,
    *,
    origin: int,
    position: int,
    max_batches: int | None = None,
    max_size: int | None = None,
) -> tuple[int, Finding | None]:
    """Append the batches of `data` from `position` on to `rows`; see `scan_part` for the other parameters.

    Returns
    -------
    position : int
        Where the last complete batch ends.
    finding : Finding or None
        The fault there, if no batch can begin there.
    """
    first, begun = rows.used, position
    rows.reserve(FRAMING_MIN_ROWS if max_batches is None else max_batches)
    finding = None
    while True:
        end = len(rows.array) if max_batches is None else first + max_batches
        n, position, fault, expected, found = _kernel.scan_headers(data, rows.array, rows.used, end, position, origin)
        rows.used += n
        if fault:
            finding = Finding(Fault(fault), expected=expected, found=found)
        if fault or rows.used < end or max_batches is not None:
            break
        # The rest probably has batches of the same average size.
        rows.reserve(int(1.1 * (rows.used - first) * (len(data) - position) / (position - begun)) + FRAMING_MIN_ROWS)
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
                finding = Finding(Fault.BATCH_TOO_LARGE, expected=max_size, found=size, detail=ENTRY_LIMIT)
    return position, finding


def scan_part(
    data: npt.NDArray[np.uint8],
    *,
    origin: int = 0,
    position: int = 0,
    max_batches: int | None = None,
    max_size: int | None = None,
) -> ScannedBatches:
    """Frame the batches of `data` from `position` on.

    Parameters
    ----------
    data : ndarray of uint8
    origin : int
        Position of ``data[0]`` in the source; it is added to the positions in the rows.
    position : int
        Where to begin in `data`.
    max_batches : int, optional
        The maximum number of batches.
    max_size : int, optional
        The maximum size in a header, in bytes. A larger size is damage, whether or not the bytes are present.

    Returns
    -------
    ScannedBatches
        ``consumed`` counts from the beginning of `data`.
    """
    rows = PooledRows(BATCH_DTYPE)
    consumed, finding = frame_batches(
        data, rows, origin=origin, position=position, max_batches=max_batches, max_size=max_size
    )
    return ScannedBatches(rows.filled(), consumed, finding)


def scan_complete(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
    """Frame all of `data`; CorruptBatchError or TruncatedBatchError if it is not a sequence of complete batches."""
    scan = scan_part(data)
    if scan.finding is not None:
        raise finding_to_error(scan.finding, source=None, position=scan.consumed)
    if scan.consumed != len(data):
        left = len(data) - scan.consumed
        raise TruncatedBatchError(
            f"byte {scan.consumed}: the batch is incomplete, {left} bytes remain", position=scan.consumed
        )
    return scan.batches


def put_values(
    out: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], values: npt.NDArray[np.int64], dtype: str
) -> None:
    """Store a value at each position, such as a field of each batch."""
    width = np.dtype(dtype).itemsize
    out[positions[:, None] + np.arange(width)] = values.astype(dtype).view(np.uint8).reshape(-1, width)


@public_in("kbatch")
def scan(data: BytesLike) -> npt.NDArray[np.void]:
    """Read the batch headers of `data`; nothing is decompressed and no checksum computed.

    Parameters
    ----------
    data : buffer
        Consecutive record batches, as in a fetch response or a segment file.

    Returns
    -------
    ndarray of BATCH_DTYPE, shape (batches,)
        One row per batch, with ``position`` and ``size`` in bytes. An incomplete batch at the end has no row (FRM-R3).
        The header of a compressed message of magic 0 or 1 has only the last offset: ``base_offset`` and
        ``record_count`` are -1 until it is decoded (LEG-R23).

    Raises
    ------
    CorruptBatchError
        At bytes that cannot be the beginning of a batch.

    References
    ----------
    Rules such as FRM-R3 are listed in ``docs/format-rules.md``.

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
        raise framing_error(result.finding, array[result.consumed :], source=None, position=result.consumed)
    return result.batches


def framing_error(finding: Finding, data: npt.NDArray[np.uint8], *, source: str | None, position: int) -> KbatchError:
    """Return the error for bytes that no batch can begin with; `data` begins at `position`.

    At the beginning of a source, the message states which other kind of file the bytes look like.
    """
    error = finding_to_error(finding, source=source, position=position)
    reason = framing_reason(finding, data, position)
    if not isinstance(reason, str):
        return error
    return type(error)(f"{source}: {reason}" if source else reason, source=source, position=0)


def framing_reason(finding: Finding, data: npt.NDArray[np.uint8], position: int) -> Finding | str:
    """Return the reason of a loss for bytes that no batch can begin with, in the words of `framing_error`."""
    foreign = foreign_reason(data[:LOG_OVERHEAD].tobytes()) if position == 0 else None
    return finding if foreign is None else f"{foreign} (byte 0: {finding_text(finding)})"


def foreign_reason(first: bytes) -> str | None:
    """Return why a file that begins with these bytes is not a log, or None if they do not look like another kind.

    Only the first 12 bytes decide: a stream may not have more of them yet.
    """
    look = look_of(first[:LOG_OVERHEAD])
    return None if look is None else f"not a Kafka log: the bytes look like {look}"


def look_of(first: bytes) -> str | None:
    """Return the kind of file that begins with these bytes and is not a log, or None if that is unknown."""
    for magic, look in _FIRST_BYTES.items():
        if first.startswith(magic):
            return look
    try:
        text = first.decode("utf-8")
    except UnicodeDecodeError as error:
        # The last character may be cut.
        text = first[: error.start].decode("utf-8") if error.start > len(first) - 4 else ""
    if not text or not all(each.isprintable() or each in "\t\r\n" for each in text):
        return None
    return "JSON" if text[0] in "{[" else "text"


def first_offsets(rows: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Return the base offset of each batch, or the last offset of a compressed message set (LEG-R23)."""
    hidden = (rows["magic"] < 2) & (rows["base_offset"] < 0)
    return np.where(hidden, rows["last_offset"], rows["base_offset"])


def entry_size(data: npt.NDArray[np.uint8], position: int) -> int:
    """Return the size of the entry at ``data[position]`` by its length field; 12 bytes must be known (FRM-R1)."""
    return LOG_OVERHEAD + int.from_bytes(data.data[position + 8 : position + LOG_OVERHEAD], "big", signed=True)


def plausible_size(data: npt.NDArray[np.uint8], position: int) -> int | None:
    """Return the size of the entry whose first 17 bytes are at ``data[position]``; None if no entry begins so."""
    magic = int(data[position + MAGIC_AT])
    size = entry_size(data, position)
    return size if magic <= 2 and size >= _MIN_ENTRY_SIZES[magic] else None


# The parameter that raises the limit.
ENTRY_LIMIT = "Limits(max_batch_bytes=...)"


def max_entry_size(limits: Limits) -> int:
    """Return the largest size of a batch, in bytes, that is accepted from its length field; a larger size is damage.

    The default is the limit on decompressed bytes, and at least the largest batches that brokers accept.
    """
    if limits.max_batch_bytes is not None:
        return limits.max_batch_bytes
    return max(limits.max_decompressed_bytes, _MAX_ENTRY_SIZE)


def size_by_fields(data: npt.NDArray[np.uint8], position: int) -> tuple[int | None, int]:
    """Return the size of the message of magic 0 or 1 at `position`, by the lengths of its key and value.

    The second number is the number of bytes that have to be known for that. If `data` has fewer, the size is None.
    """
    view = data.data[position:]
    at = MESSAGE_HEADER_SIZES[view[MAGIC_AT]]
    for _ in range(2):
        if len(view) < at + 4:
            return None, at + 4
        at += 4 + max(int.from_bytes(view[at : at + 4], "big", signed=True), 0)
    return at, at
