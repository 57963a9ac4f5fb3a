"""The number of different keys of a topic, and its most frequent ones, estimated in constant memory."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kbatch.errors import MissingDependencyError
from kbatch.extras import require
from kbatch.kernels.keymap import hash_slices

__all__ = ["FREQUENT", "OFTEN", "FrequentKey", "KeyCounts", "KeyFigures"]

# A relative standard error of 0.65 %, in 16 KiB.
_LG_REGISTERS = 14
# Estimates are too high by at most 0.1 % of all records.
_LG_FREQUENT = 12
# The share of the records from which a key is frequent, and the number of keys that are listed.
FREQUENT = 0.005
# How many times as many records as an average key such a key has at least.
OFTEN = 3
_LISTED_KEYS = 10
# The most frequent keys of a table whose bytes are kept, and how much of each. A key with a share of all records has at
# least this share in one of the tables, where at most ``1 / FREQUENT`` keys have it.
_KEPT_OF_TABLE = round(1 / FREQUENT)
_KEPT_KEYS = 16 * _KEPT_OF_TABLE
_KEPT_KEY_BYTES = 200


@dataclass(frozen=True, slots=True)
class FrequentKey:
    """A frequent key: its first bytes, its size, and the least and the greatest number of its records."""

    key: bytes
    size: int
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class KeyFigures:
    """What is known about the keys of a topic.

    Attributes
    ----------
    records : int
        With a key that is not null.
    distinct, least, most : int
        The estimated number of different keys, and its bounds with a confidence of 95 %.
    frequent : tuple of FrequentKey
        The most frequent first.
    """

    records: int
    distinct: int
    least: int
    most: int
    frequent: tuple[FrequentKey, ...]


class KeyCounts:
    """Counts the keys of tables by their hashes, with the sketches of the package ``datasketches``.

    The hash is SipHash with a random secret, so that nobody can construct keys that collide.
    """

    def __init__(self, sketches: Any) -> None:
        self._sketches = sketches
        self._secret = os.urandom(16)
        self._distinct = sketches.hll_sketch(_LG_REGISTERS)
        self._frequent = sketches.frequent_items_sketch(_LG_FREQUENT)
        self._records = 0
        # By hash, the first bytes and the size of keys that may be frequent.
        self._keys: dict[int, tuple[bytes, int]] = {}

    @classmethod
    def make(cls) -> KeyCounts | None:
        """Return new counts; None if the package is not installed."""
        try:
            return cls(require("datasketches", "report", "the section on keys"))
        except MissingDependencyError:
            return None

    def add(
        self, positions: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]
    ) -> None:
        """Count the keys of a table, none of which is null."""
        if not len(positions):
            return
        hashes = np.empty((len(positions), 2), np.uint64)
        hash_slices(self._secret, np.ascontiguousarray(positions), lengths.astype(np.int64), data, hashes)
        column = hashes[:, 0].astype(np.int64)
        distinct, counts = np.unique(column, return_counts=True)
        # The sketches take one number at a time: 0.1 us for each different key of a table.
        numbers = distinct.tolist()
        deque(map(self._distinct.update, numbers), maxlen=0)
        deque(map(self._frequent.update, numbers, counts.tolist()), maxlen=0)
        self._records += len(column)
        self._keep(column, distinct, counts, positions, lengths, data)

    def _keep(
        self,
        hashes: npt.NDArray[np.int64],
        distinct: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        data: npt.NDArray[np.uint8],
    ) -> None:
        """Keep the bytes of the keys that are frequent in a table."""
        found = np.flatnonzero(counts >= FREQUENT * len(hashes))
        found = found[np.argsort(-counts[found], kind="stable")[:_KEPT_OF_TABLE]]
        new = np.sort(distinct[found])
        if self._keys:
            new = new[~np.isin(new, np.fromiter(self._keys, np.int64, len(self._keys)))]
        if not len(new):
            return
        at = np.minimum(np.searchsorted(new, hashes), len(new) - 1)
        rows = np.flatnonzero(new[at] == hashes)
        _, first = np.unique(at[rows], return_index=True)
        for row in rows[first].tolist():
            start, size = int(positions[row]), int(lengths[row])
            self._keys[int(hashes[row])] = data[start : start + min(size, _KEPT_KEY_BYTES)].tobytes(), size
        if len(self._keys) > _KEPT_KEYS:
            by_count = sorted(self._keys, key=self._frequent.get_estimate, reverse=True)
            self._keys = {hash_: self._keys[hash_] for hash_ in by_count[: _KEPT_KEYS // 2]}

    def figures(self) -> KeyFigures:
        """Return what is known now."""
        sketch, kind = self._frequent, self._sketches.frequent_items_error_type.NO_FALSE_NEGATIVES
        items = sketch.get_frequent_items(kind, int(FREQUENT * self._records))
        found = sorted(((least, most, hash_) for hash_, _, least, most in items), reverse=True)
        threshold = max(OFTEN * self._records / max(self._distinct.get_estimate(), 1.0), FREQUENT * self._records, 2)
        frequent = [
            FrequentKey(*self._keys[hash_], least, most)
            for least, most, hash_ in found
            if hash_ in self._keys and least >= threshold
        ]
        distinct, least, most = (
            min(round(number), self._records)
            for number in (
                self._distinct.get_estimate(),
                self._distinct.get_lower_bound(2),
                self._distinct.get_upper_bound(2),
            )
        )
        return KeyFigures(self._records, distinct, least, most, tuple(frequent[:_LISTED_KEYS]))
