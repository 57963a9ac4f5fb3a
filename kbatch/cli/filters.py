"""The records and batches that a listing includes, and the arguments that choose them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbatch.format import BatchStatus
from kbatch.table import RecordTable

__all__ = ["Filters"]


@dataclass(frozen=True, slots=True)
class Filters:
    """The records and batches to list; None chooses all.

    Attributes
    ----------
    start_offset, stop_offset, start_timestamp, stop_timestamp : int or None
        Half-open ranges; timestamps in milliseconds.
    keys : tuple of bytes
        Chooses records with one of these keys; an empty tuple chooses all.
    producer_id : int or None
    committed : bool
        Whether the table was decoded with ``isolation="read_committed"``.
    """

    start_offset: int | None = None
    stop_offset: int | None = None
    start_timestamp: int | None = None
    stop_timestamp: int | None = None
    keys: tuple[bytes, ...] = ()
    producer_id: int | None = None
    committed: bool = False

    @property
    def by_record(self) -> bool:
        """Whether a batch is chosen by its records."""
        return bool(self.keys) or self.start_timestamp is not None or self.stop_timestamp is not None

    @property
    def any(self) -> bool:
        """Whether any filter is set."""
        bounded = self.start_offset is not None or self.stop_offset is not None
        return self.by_record or bounded or self.producer_id is not None or self.committed

    def records(self, table: RecordTable) -> RecordTable:
        """Return the chosen records; the table was decoded with the range of offsets."""
        rows = table.records
        chosen = np.ones(len(rows), np.bool_)
        if self.producer_id is not None:
            chosen &= (table.batches["producer_id"] == self.producer_id)[rows["batch"]]
        if self.start_timestamp is not None:
            chosen &= rows["timestamp"] >= self.start_timestamp
        if self.stop_timestamp is not None:
            chosen &= rows["timestamp"] < self.stop_timestamp
        if self.keys:
            found = [_rows_with_key(table, chosen, key) for key in self.keys]
            chosen[:] = False
            chosen[np.concatenate(found)] = True
        return table if chosen.all() else table[chosen]

    def batches(self, chosen: RecordTable) -> npt.NDArray[np.intp]:
        """Return the rows of the batches to list, from a table of the chosen records."""
        if self.by_record:
            return np.unique(chosen.records["batch"]).astype(np.intp)
        batches = chosen.batches
        kept = (batches["status"] != BatchStatus.ABORTED) & (batches["status"] != BatchStatus.UNDECIDED)
        if self.producer_id is not None:
            kept &= batches["producer_id"] == self.producer_id
        return np.flatnonzero(kept)


def _rows_with_key(table: RecordTable, chosen: npt.NDArray[np.bool_], key: bytes) -> npt.NDArray[np.intp]:
    rows = table.records
    found = np.flatnonzero(chosen & (rows["key_len"] == len(key)))
    for i, byte in enumerate(key):
        found = found[table.data[rows["key_pos"][found] + i] == byte]
    return found
