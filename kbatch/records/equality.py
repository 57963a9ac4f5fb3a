"""Compares the records of two tables by field, and digests them for comparisons of records that are far apart."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kbatch.format import INT32_MAX
from kbatch.kernels.keymap import hash_slices
from kbatch.kernels.slices import slices_equal
from kbatch.records.data import TableData

__all__ = ["DIGEST_WORDS", "RecordDigest", "differing_rows", "key_digests", "record_digests", "record_hashes"]

# The words of each field in a row of `record_digests`.
DIGEST_WORDS = {"timestamp": slice(0, 1), "value": slice(1, 3), "headers": slice(3, 5)}

# The key of hashes that have to be the same on every machine.
_PUBLIC_KEY = b"kbatch digest v1"


def differing_rows(a: TableData, b: TableData) -> dict[str, npt.NDArray[np.bool_]]:
    """Return for each field the rows in which two tables of the same length differ.

    Timestamps, keys, values and headers are compared; null equals only null, and the order of headers matters. Offsets
    and timestamp types are not compared.
    """
    if _same_bytes(a, b):
        return {name: np.zeros(len(a), np.bool_) for name in ("timestamp", "key", "value", "headers")}
    return {
        "timestamp": a.records["timestamp"] != b.records["timestamp"],
        "key": _differing_slices(a.records, b.records, a.data, b.data, "key"),
        "value": _differing_slices(a.records, b.records, a.data, b.data, "value"),
        "headers": _differing_headers(a, b),
    }


def _same_bytes(a: TableData, b: TableData) -> bool:
    """Whether rows and data are the same bytes, as in copies of a log; then no field differs."""
    for one, other in ((a.records, b.records), (a.data, b.data)):
        data, other_data = one.view(np.uint8), other.view(np.uint8)
        if len(data) != len(other_data) or len(data) > INT32_MAX:
            return False
        start, size, equal = np.zeros(1, np.int64), np.array([len(data)], np.int32), np.empty(1, np.uint8)
        if not slices_equal(start, size, data, start, size, other_data, equal):
            return False
    return True


def _differing_slices(
    rows: npt.NDArray[np.void],
    other_rows: npt.NDArray[np.void],
    data: npt.NDArray[np.uint8],
    other_data: npt.NDArray[np.uint8],
    name: str,
) -> npt.NDArray[np.bool_]:
    equal = np.empty(len(rows), np.uint8)
    position, length = f"{name}_pos", f"{name}_len"
    slices_equal(rows[position], rows[length], data, other_rows[position], other_rows[length], other_data, equal)
    differing: npt.NDArray[np.bool_] = equal == 0
    return differing


def _differing_headers(a: TableData, b: TableData) -> npt.NDArray[np.bool_]:
    counts = a.records["header_count"]
    differing: npt.NDArray[np.bool_] = counts != b.records["header_count"]
    if not counts.any():
        return differing
    # Rows of headers correspond if each record has the same number of headers in both tables.
    chosen = np.flatnonzero(~differing)
    if len(chosen) < len(counts):
        a, b = a._select_rows(chosen), b._select_rows(chosen)
    unequal = _differing_slices(a.headers, b.headers, a.data, b.data, "key")
    unequal |= _differing_slices(a.headers, b.headers, a.data, b.data, "value")
    differing[chosen[a.headers["record"][unequal]]] = True
    return differing


def key_digests(table: TableData, secret: bytes) -> npt.NDArray[np.uint64]:
    """Return a keyed hash of 128 bits for each key, shape (records, 2); zeros for a null key."""
    return _slice_digests(table.records, "key", table.data, secret)


def record_digests(table: TableData, secret: bytes) -> npt.NDArray[np.uint64]:
    """Return the timestamp and keyed hashes of value and headers of each record, shape (records, 5).

    `DIGEST_WORDS` has the columns of each field.
    """
    rows = table.records
    digests = np.zeros((len(rows), 5), np.uint64)
    digests[:, 0] = rows["timestamp"].astype(np.uint64)
    digests[:, DIGEST_WORDS["value"]] = _slice_digests(rows, "value", table.data, secret)
    counts = rows["header_count"].astype(np.int64)
    if counts.any():
        headers = table.headers
        pairs = [_slice_digests(headers, name, table.data, secret) for name in ("key", "value")]
        # The digests of a record's headers are consecutive: the hash of these bytes depends on their order.
        data = np.concatenate(pairs, axis=1).view(np.uint8)
        size = data.shape[1]
        ends = np.cumsum(counts)
        digests[:, DIGEST_WORDS["headers"]] = _hashes(secret, (ends - counts) * size, counts * size, data.reshape(-1))
        digests[counts == 0, DIGEST_WORDS["headers"]] = 0
    return digests


def record_hashes(table: TableData) -> npt.NDArray[np.uint64]:
    """Return a hash of offset, timestamp, key, value and headers of each record, shape (records, 2).

    The hash has a known key, so that sums of it on different machines are comparable; it finds accidental differences,
    not malicious ones.
    """
    offsets = table.records["offset"].astype(np.uint64)[:, np.newaxis]
    fields = (offsets, key_digests(table, _PUBLIC_KEY), record_digests(table, _PUBLIC_KEY))
    words = np.ascontiguousarray(np.concatenate(fields, axis=1), "<u8")
    size = words.shape[1] * words.itemsize
    starts = np.arange(len(words), dtype=np.int64) * size
    return _hashes(_PUBLIC_KEY, starts, np.full(len(words), size, np.int64), words.view(np.uint8).reshape(-1))


class RecordDigest:
    """A digest of records, which does not depend on their order or on how they are divided into tables.

    It is the sum of the hashes of the records, modulo 2**64 in both halves.
    """

    def __init__(self) -> None:
        self.records = 0
        self._sum = np.zeros(2, np.uint64)

    def add(self, hashes: npt.NDArray[np.uint64]) -> None:
        """Add records by their `record_hashes`."""
        self.records += len(hashes)
        self._sum += hashes.sum(axis=0, dtype=np.uint64)

    def hexdigest(self) -> str:
        """Return 32 hexadecimal digits."""
        return "".join(f"{int(word):016x}" for word in self._sum)


def _slice_digests(
    rows: npt.NDArray[np.void], name: str, data: npt.NDArray[np.uint8], secret: bytes
) -> npt.NDArray[np.uint64]:
    return _hashes(secret, rows[f"{name}_pos"], rows[f"{name}_len"], data)


def _hashes(
    secret: bytes, positions: npt.NDArray[np.int64], lengths: npt.NDArray[np.integer], data: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint64]:
    out = np.empty((len(positions), 2), np.uint64)
    hash_slices(secret, np.ascontiguousarray(positions), lengths.astype(np.int64), data, out)
    return out
