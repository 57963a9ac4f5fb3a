"""The transactions of a log, counted while its tables are read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from kbatch.format import BatchStatus, Limits
from kbatch.read.budget import table_limit
from kbatch.table import RecordTable
from kbatch.transactions import Transactions, TransactionTracker, are_control
from kbatch.transactions.lost import LossFollower, follow_batches
from kbatch.transactions.opened import Begun

__all__ = ["TransactionCounter"]


class TransactionCounter:
    """Follows the transactions of one log, in the order of its batches.

    Parameters
    ----------
    limits : Limits
    on_end : callable, optional
        As for `TransactionTracker`.

    Attributes
    ----------
    markers : int
        Transaction markers so far.
    """

    def __init__(self, limits: Limits, on_end: Callable[[Begun, int, int, int], None] | None = None) -> None:
        self._tracker = TransactionTracker(limits=limits, max_bytes=table_limit(limits), on_end=on_end)
        # Decides which transactions may have ended in lost bytes of a segment.
        self._lost: LossFollower | None = None
        self.markers = 0

    def begin_segment(self, base_offset: int | None) -> None:
        """Begin a segment, whose losses decide about transactions."""
        self._lost = LossFollower(base_offset)

    def add(self, table: RecordTable, window: Callable[[int, int], npt.NDArray[np.uint8]]) -> None:
        """Follow the batches of a table; `window` returns the bytes between two positions of the source."""
        batches = table.batches
        is_good = BatchStatus.sound(batches["status"])
        follow_batches(self._tracker, self._lost, batches, is_good, table.losses, partial(_bytes_of_markers, window))
        good = batches[is_good]
        self.markers += int((are_control(good) & (good["producer_id"] >= 0) & (good["record_count"] > 0)).sum())

    def end_segment(self, next_offset: int | None) -> None:
        """End a segment; `next_offset` is the base offset of the next one."""
        if self._lost is not None:
            self._tracker.replay(self._lost.finish(next_offset))

    @property
    def committed(self) -> int:
        """The number of markers that commit, one per transaction."""
        return max(self.markers - len(self._tracker.abort_markers[0]), 0)

    def result(self) -> Transactions:
        """Return the transactions after the last table."""
        return self._tracker.result()


def _bytes_of_markers(
    window: Callable[[int, int], npt.NDArray[np.uint8]], batches: npt.NDArray[np.void]
) -> tuple[npt.NDArray[np.uint8], int]:
    """Return bytes that contain the markers among some batches, and where they begin."""
    markers = batches[are_control(batches)]
    if not len(markers):
        return np.empty(0, np.uint8), 0
    start = int(markers["position"][0])
    return window(start, int(markers["position"][-1] + markers["size"][-1])), start
