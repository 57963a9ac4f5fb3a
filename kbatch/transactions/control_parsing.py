"""Control records: the contents of transaction markers and other control batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.batches.arena import Arena, PayloadError
from kbatch.batches.codecs import decompress
from kbatch.format import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER_SIZE,
    CONTROL_DTYPE,
    RECORD_DTYPE,
    ControlType,
)
from kbatch.kernels import decode as _kernel
from kbatch.public_names import public_in

if TYPE_CHECKING:
    from kbatch.table import RecordTable

__all__ = ["MAX_MARKER_SIZE", "control_records", "lost_markers", "marker_types"]

# Sizes of a control record's key, int16 version and int16 type, and of a marker's value, int16 version and int32
# coordinator epoch; more bytes than these are ignored (CTL-R1, CTL-R3).
_KEY_SIZE = 4
_MARKER_SIZE = 6
_MAX_VARINT = 5
# A marker of Kafka takes 78 bytes. A larger batch with a bad checksum is not a damaged marker.
MAX_MARKER_SIZE = 128


def _bytes_at(data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
    """Gather `width` bytes at each of `positions`; shape (positions, width)."""
    gathered: npt.NDArray[np.uint8] = data[positions[:, np.newaxis] + np.arange(width)]
    return gathered


def _control_keys(
    records: npt.NDArray[np.void], data: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16], npt.NDArray[np.bool_]]:
    """Read the keys of control records: version (-1 if missing), type, and whether they are valid."""
    version = np.full(len(records), -1, np.int16)
    kind = np.full(len(records), -1, np.int16)
    long = np.flatnonzero(records["key_len"] >= _KEY_SIZE)
    fields = _bytes_at(data, records["key_pos"][long], _KEY_SIZE).view(">i2")
    version[long], kind[long] = fields[:, 0], fields[:, 1]
    valid = version >= 0
    kind[~valid] = -1
    return version, kind, valid


@public_in("kbatch")
def control_records(table: RecordTable) -> npt.NDArray[np.void]:
    """Read the control records of a table.

    Parameters
    ----------
    table : RecordTable
        Decoded with ``include_control=True``; without it a table has no control records.

    Returns
    -------
    ndarray of CONTROL_DTYPE, shape (control records,)
        One row per record of a control batch, in order. ``record`` and ``batch`` are its rows in ``table.records`` and
        ``table.batches``. ``type`` is the id in the key, a `ControlType` or an id of a later Kafka (CTL-R2), and -1 if
        the key is null, too short or of a negative version; ``version`` is the version of the key, -1 if missing.
        ``coordinator_epoch`` is from the value of an ABORT or COMMIT, else -1. ``valid`` is 0 if the key, or the value
        of an ABORT or COMMIT, can't be read (CTL-R1, CTL-R3).

    Notes
    -----
    Kafka's ``ControlRecordType.parse`` and ``EndTransactionMarker.deserialize``. A newer version is read as version 0.

    References
    ----------
    Rules such as CTL-R2 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> from kbatch import control_records
    >>> marker = bytes.fromhex(
    ...     "0000000000000007" "00000042" "ffffffff" "02" "0bce4676" "0030" "00000000" "00000000000003e8"
    ...     "00000000000003e8" "0000000000000007" "0000" "ffffffff" "00000001"
    ...     "20" "00" "00" "00" "08" "00000000" "0c" "000000000000" "00"
    ... )
    >>> rows = control_records(kbatch.decode(marker, include_control=True))
    >>> rows[["offset", "producer_id", "type", "coordinator_epoch", "valid"]].tolist()
    [(7, 7, 0, 0, 1)]
    """
    check_types(control_records, locals())
    table.require("offset", "timestamp", "key", "value")
    batches = table.batches
    control = np.flatnonzero(((batches["attributes"] & ATTRIBUTE_CONTROL) != 0) & (batches["magic"] == 2))
    first = batches["first_record"]
    counts = np.append(first[1:], len(table.records))[control] - first[control]
    before = np.cumsum(counts) - counts
    rows = np.repeat(first[control] - before, counts) + np.arange(counts.sum())
    records = table.records[rows]
    batch = records["batch"]

    out = np.empty(len(rows), CONTROL_DTYPE)
    out["record"] = rows
    out["batch"] = batch
    for name in ("offset", "timestamp"):
        out[name] = records[name]
    for name in ("producer_id", "producer_epoch"):
        out[name] = batches[name][batch]
    version, kind, valid = _control_keys(records, table.data)
    out["version"], out["type"] = version, kind
    out["coordinator_epoch"] = -1
    marker = valid & ((kind == ControlType.ABORT) | (kind == ControlType.COMMIT))
    long = np.flatnonzero(marker & (records["value_len"] >= _MARKER_SIZE))
    value = _bytes_at(table.data, records["value_pos"][long], _MARKER_SIZE).view(">i2")
    whole = value[:, 0] >= 0
    long = long[whole]
    out["coordinator_epoch"][long] = np.ascontiguousarray(value[whole, 1:]).view(">i4")[:, 0]
    valid[marker] = False
    valid[long] = True
    out["valid"] = valid
    return out


def lost_markers(batches: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Return a mask of the damaged markers among batches with bad checksums, by their headers.

    Parameters
    ----------
    batches : ndarray of BATCH_DTYPE
        Batches with bad checksums; checksums are not verified here.

    Returns
    -------
    ndarray of bool, shape (batches,)
        True for uncompressed transactional control batches with one record, of the size of a marker.
    """
    attributes = batches["attributes"]
    both = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL
    out: npt.NDArray[np.bool_] = (
        (attributes & (both | ATTRIBUTE_CODEC) == both)
        & (batches["magic"] == 2)
        & (batches["producer_id"] >= 0)
        & (batches["record_count"] == 1)
        & (batches["size"] <= MAX_MARKER_SIZE)
    )
    return out


def marker_types(
    data: npt.NDArray[np.uint8], rows: npt.NDArray[np.void], origin: int, max_decompressed_bytes: int
) -> npt.NDArray[np.int16]:
    """Read the first record of control batches.

    Parameters
    ----------
    data : ndarray of uint8
    rows : ndarray of BATCH_DTYPE
    origin : int
        Position of ``data[0]`` in the source, which the positions in `rows` count from.
    max_decompressed_bytes : int

    Returns
    -------
    ndarray of int16, shape (rows,)
        The id of the control type, -1 if the batch is empty (TXN-R10) or its first record can't be read.
    """
    _require_bytes(data, rows, origin)
    types = np.full(len(rows), -1, np.int16)
    is_compressed = (rows["attributes"] & ATTRIBUTE_CODEC) != 0
    positions = rows["position"] - (origin - BATCH_HEADER_SIZE)
    sizes = rows["size"] - BATCH_HEADER_SIZE
    has_records = rows["record_count"] > 0
    uncompressed = np.flatnonzero(has_records & ~is_compressed)
    types[uncompressed] = _payload_types(data, rows[uncompressed], positions[uncompressed], sizes[uncompressed])
    if not is_compressed.any():
        return types
    arena = Arena()
    for i in np.flatnonzero(has_records & is_compressed).tolist():
        arena.used = 0
        start, size = int(positions[i]), int(sizes[i])
        codec = int(rows["attributes"][i]) & ATTRIBUTE_CODEC
        try:
            decompress(codec, data.data[start : start + size], arena, max_decompressed_bytes)
        except PayloadError:
            continue
        whole = np.array([arena.used])
        types[i] = _payload_types(arena.array(), rows[i : i + 1].copy(), np.zeros(1, np.int64), whole)[0]
    return types


def _require_bytes(data: npt.NDArray[np.uint8], rows: npt.NDArray[np.void], origin: int) -> None:
    """Raise for rows outside of `data`, because the kernels do not check them."""
    start = rows["position"] - origin
    size = rows["size"]
    if np.any((start < 0) | (size < BATCH_HEADER_SIZE) | (size > len(data) - start)):
        raise ValueError(f"rows of batches are outside of the {len(data)} bytes that begin at {origin}")


def _first_record_sizes(
    data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the size of the first record of each payload, or of the payload if the record has no valid length."""
    at = np.minimum(np.arange(_MAX_VARINT), sizes[:, np.newaxis] - 1)
    raw = data[positions[:, np.newaxis] + at].astype(np.int64)
    ends = raw < 0x80
    last = ends.argmax(axis=1)
    within = np.arange(_MAX_VARINT) <= last[:, np.newaxis]
    number = (np.where(within, raw & 0x7F, 0) << 7 * np.arange(_MAX_VARINT)).sum(axis=1)
    # As in the kernel: 32 bits, zig-zag (VAR-R2).
    number &= 0xFFFFFFFF
    length = np.where(number & 1, -1, number >> 1) + last + 1
    return np.where(ends.any(axis=1) & (length > last + 1) & (length < sizes), length, sizes)


def _payload_types(
    data: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.void],
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
) -> npt.NDArray[np.int16]:
    """Return the type of each control batch, -1 if its first record can't be read.

    As in Kafka, bytes after the first record are ignored (CTL-R4), unless it is the only one. `rows` is modified.
    """
    several = np.flatnonzero((rows["record_count"] > 1) & (sizes > 0))
    if len(several):
        sizes[several] = _first_record_sizes(data, positions[several], sizes[several])
    rows["record_count"] = 1
    rows["status"] = 0
    records = np.empty(len(rows), RECORD_DTYPE)
    records = records[: _kernel.first_records(data, rows, positions, sizes, records)]
    types = np.full(len(rows), -1, np.int16)
    types[records["batch"]] = _control_keys(records, data)[1]
    return types
