"""The records and batches that a listing includes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbatch.cli.selection_flags import SelectionFlags
from kbatch.format import BatchStatus
from kbatch.log.row_filter import RowFilter
from kbatch.table import RecordTable

__all__ = ["Filters"]


@dataclass(frozen=True, slots=True)
class Filters:
    """The records and batches to list.

    Attributes
    ----------
    selection : SelectionFlags
        Without negative offsets. Under read_committed, tables were decoded with this isolation level.
    producer_id : int or None
    """

    selection: SelectionFlags
    producer_id: int | None = None

    @property
    def by_record(self) -> bool:
        """Whether a batch is chosen by its records."""
        return bool(self.rows.columns)

    @property
    def rows(self) -> RowFilter:
        """The choice of records by timestamp and key."""
        return RowFilter(self.selection.start_timestamp, self.selection.stop_timestamp, self.selection.key)

    @property
    def any(self) -> bool:
        """Whether any filter is set."""
        chosen = self.selection
        bounded = chosen.start_offset is not None or chosen.stop_offset is not None
        return self.by_record or bounded or self.producer_id is not None or chosen.isolation == "read_committed"

    def records(self, table: RecordTable) -> RecordTable:
        """Return the chosen records; the table was decoded with the range of offsets."""
        mask = self.rows.mask(table)
        if self.producer_id is not None:
            mask &= (table.batches["producer_id"] == self.producer_id)[table.records["batch"]]
        return table if mask.all() else table[mask]

    def batches(self, chosen: RecordTable) -> npt.NDArray[np.intp]:
        """Return the rows of the batches to list, from a table of the chosen records."""
        if self.by_record:
            return np.unique(chosen.records["batch"]).astype(np.intp)
        batches = chosen.batches
        kept = (batches["status"] != BatchStatus.ABORTED) & (batches["status"] != BatchStatus.UNDECIDED)
        if self.producer_id is not None:
            kept &= batches["producer_id"] == self.producer_id
        return np.flatnonzero(kept)
