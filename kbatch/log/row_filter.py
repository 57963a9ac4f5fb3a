"""The choice of the records of a table by timestamp and key, before anything is built from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbatch.kernels.slices import keys_equal
from kbatch.records.trimming import pays, trimmed_bytes
from kbatch.table import RecordTable

__all__ = ["RowFilter", "key_bytes"]


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The records between timestamps and with a key.

    Attributes
    ----------
    start_timestamp, stop_timestamp : int or None
        In milliseconds; a half-open range.
    keys : tuple of bytes
        The record has one of these keys; no key chooses all records.
    """

    start_timestamp: int | None = None
    stop_timestamp: int | None = None
    keys: tuple[bytes, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the filter needs; none if it chooses all records."""
        by_time = self.start_timestamp is not None or self.stop_timestamp is not None
        return (*(("timestamp",) if by_time else ()), *(("key",) if self.keys else ()))

    def mask(self, table: RecordTable) -> npt.NDArray[np.bool_]:
        """Return which records are chosen."""
        rows = table.records
        chosen = np.ones(len(rows), np.bool_)
        if self.start_timestamp is not None:
            chosen &= rows["timestamp"] >= self.start_timestamp
        if self.stop_timestamp is not None:
            chosen &= rows["timestamp"] < self.stop_timestamp
        if self.keys:
            has_key, equal = np.zeros(len(rows), np.bool_), np.empty(len(rows), np.bool_)
            for key in self.keys:
                keys_equal(rows["key_pos"], rows["key_len"], table.data, key, equal.view(np.uint8))
                has_key |= equal
            chosen &= has_key
        return chosen

    def chosen(self, table: RecordTable) -> RecordTable:
        """Return the table of the chosen records, with all batches and losses."""
        if not self.columns:
            return table
        mask = self.mask(table)
        count = int(np.count_nonzero(mask))
        if count == len(table):
            return table
        found = table[mask] if count else table[:0]
        # So the memory of the table is free for the next one, also if the caller keeps what was found.
        return trimmed_bytes(found) if self.keys and pays(found) else found


def key_bytes(key: bytes | str | None) -> tuple[bytes, ...]:
    """Return the keys of a `RowFilter` for the argument ``key`` of a read; a text is taken as UTF-8."""
    if key is None:
        return ()
    if not isinstance(key, bytes | str):
        raise TypeError(f"key must be bytes, a str or None, got {type(key).__name__}")
    return (key if isinstance(key, bytes) else key.encode(),)
