"""The rows of one batch over several tables."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kbatch.batches.pooled import PooledRows
from kbatch.errors import Fault, Finding
from kbatch.format import HEADER_DTYPE
from kbatch.kernels.batch_decoder import Cause, Outcome
from kbatch.kernels.runs import BatchRuns

__all__ = ["SplitBatch", "header_bytes", "outcome_finding"]


class SplitBatch:
    """A batch that is larger than a table: its records become several tables, which share the payload.

    Parameters
    ----------
    runs : BatchRuns
        Parses the batch, whose checksum is verified.
    batch : ndarray of BATCH_DTYPE, shape (1,)
        Its row, which `runs` completes.
    data : ndarray of uint8, read-only
        The bytes that the positions in its rows point into.
    dtype : dtype
        Of the record rows.
    part : int
        The memory for the rows of a table, in bytes.

    Attributes
    ----------
    end : int
        Position of the end of the batch in the source.
    has_begun : bool
        Whether a table has been returned.
    """

    def __init__(
        self,
        runs: BatchRuns,
        batch: npt.NDArray[np.void],
        data: npt.NDArray[np.uint8],
        dtype: np.dtype[np.void],
        part: int,
    ) -> None:
        self._runs = runs
        self._batch = batch
        self.data = data
        self._dtype = dtype
        self._part = part
        self._most = max(1, part // dtype.itemsize)
        self._next = self._most
        self.end = int(batch["position"][0]) + int(batch["size"][0])
        self.has_begun = False

    def check(self) -> Finding | None:
        """Parse all records, which no table has yet; return the fault of the first bad one."""
        finding = outcome_finding(self._runs.begin())
        rows = PooledRows(self._dtype, min(self._most, max(1, self._runs.remaining_records)))
        while finding is None and self._runs.remaining_records:
            finding = outcome_finding(self._runs.parse_run(rows.array))
        self._runs.rewind()
        return finding

    @property
    def is_done(self) -> bool:
        """Whether all records have been returned."""
        return not self._runs.remaining_records

    def next_rows(self) -> PooledRows:
        """Return the rows of the next records, none if all of the rest are left out."""
        while True:
            count = min(self._next, self._runs.remaining_records)
            rows = PooledRows(self._dtype, count)
            rows.used = self._runs.parse_run(rows.array[:count]).used
            while count > 1 and (size := self._size(rows)) > self._part:
                # Header rows are made later, but they belong to the memory of the table.
                self._runs.undo()
                count = max(1, count * self._part // size)
                rows.used = self._runs.parse_run(rows.array[:count]).used
            self._next = min(self._most, 2 * count)
            if rows.used or self.is_done:
                return rows

    def _size(self, rows: PooledRows) -> int:
        return rows.used * self._dtype.itemsize + header_bytes(rows.filled())

    def batch(self) -> npt.NDArray[np.void]:
        """Return the row of the batch for a table."""
        row = self._batch.copy()
        row["first_record"] = 0
        row.flags.writeable = False
        return row


def outcome_finding(outcome: Outcome) -> Finding | None:
    """Return the fault that an outcome reports, if any."""
    if outcome.cause == Cause.FAULT:
        return Finding(Fault(outcome.fault), outcome.at, outcome.record, outcome.expected, outcome.found)
    return None


def header_bytes(records: npt.NDArray[np.void]) -> int:
    """Return the size of the header rows of some records."""
    if "header_count" not in (records.dtype.names or ()):
        return 0
    return int(records["header_count"].sum(dtype=np.int64)) * HEADER_DTYPE.itemsize
