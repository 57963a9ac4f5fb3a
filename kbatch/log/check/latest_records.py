"""The last record of each key of a log, as digests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbatch.records.equality import DIGEST_WORDS, key_digests, record_digests
from kbatch.table import RecordTable

__all__ = ["LatestRecords", "PresentRecords", "common_keys"]

# Rows of 65 bytes that a comparison by key collects before it reduces them to one per key.
LATEST_MIN_ROWS = 1 << 18

# A record: the digests of its key and its fields, its offset, and whether its value is null.
_ROW_DTYPE = np.dtype([("key", "u8", 2), ("record", "u8", 5), ("offset", "i8"), ("tombstone", "?")])


@dataclass(frozen=True, slots=True)
class PresentRecords:
    """The last record of each key, unless it is a tombstone; sorted by the digests of keys.

    Attributes
    ----------
    keys : ndarray of uint64, shape (keys, 2)
    records : ndarray of uint64, shape (keys, 5)
    offsets : ndarray of int64, shape (keys,)
    """

    keys: npt.NDArray[np.uint64]
    records: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets)

    def differing(
        self, rows: npt.NDArray[np.intp], other: PresentRecords, other_rows: npt.NDArray[np.intp]
    ) -> dict[str, npt.NDArray[np.bool_]]:
        """Return for each field the pairs of rows in which it differs."""
        unequal = self.records[rows] != other.records[other_rows]
        return {name: unequal[:, words].any(axis=1) for name, words in DIGEST_WORDS.items()}


class LatestRecords:
    """Collects the last record of each key.

    Rows are collected and reduced to one per key when they have doubled, so memory depends on the number of keys.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._parts: list[npt.NDArray[np.void]] = []
        self._rows = 0
        self._keys = 0

    def add(self, table: RecordTable) -> int:
        """Add the records of the next table; return the number of records without a key."""
        keyed = table.records["key_len"] >= 0
        keyless = len(table) - int(np.count_nonzero(keyed))
        if keyless:
            table = table[keyed]
        rows = np.empty(len(table), _ROW_DTYPE)
        rows["key"] = key_digests(table, self._secret)
        rows["record"] = record_digests(table, self._secret)
        rows["offset"] = table.records["offset"]
        rows["tombstone"] = table.records["value_len"] < 0
        self._parts.append(rows)
        self._rows += len(rows)
        if self._rows > max(2 * self._keys, LATEST_MIN_ROWS):
            self._reduce()
        return keyless

    def _reduce(self) -> npt.NDArray[np.void]:
        """Keep the last row of each key, sorted by key."""
        rows = np.concatenate([np.empty(0, _ROW_DTYPE), *self._parts])
        self._parts = []
        keys = rows["key"]
        # A stable sort: the rows of a key remain in their order in the log.
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        keys = keys[order]
        last = np.ones(len(rows), np.bool_)
        last[:-1] = (keys[1:] != keys[:-1]).any(axis=1)
        rows = rows[order[last]]
        self._parts = [rows]
        self._rows = self._keys = len(rows)
        return rows

    def present(self) -> PresentRecords:
        """Return the last records of all keys, except tombstones."""
        rows = self._reduce()
        rows = rows[~rows["tombstone"]]
        return PresentRecords(rows["key"], rows["record"], rows["offset"])


def common_keys(a: PresentRecords, b: PresentRecords) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the rows of the keys that both sides have, pair by pair."""
    keys = np.concatenate([a.keys, b.keys])
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    keys = keys[order]
    # The sort is stable, and each side has a key once: the row of `a` comes first.
    at = np.flatnonzero((keys[1:] == keys[:-1]).all(axis=1))
    return order[at], order[at + 1] - len(a)
