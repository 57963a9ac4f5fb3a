"""What each producer has written to a log, in bounded memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kbatch.format import ATTRIBUTE_TRANSACTIONAL

__all__ = ["PRODUCER_SUMS", "ProducerSums"]

PRODUCER_SUMS = ("batches", "records", "bytes", "transactional")
# Beyond twice as many producers, those with the fewest bytes are dropped.
_KEPT_PRODUCERS = 2048


class ProducerSums:
    """Batches, records and bytes by producer id.

    Attributes
    ----------
    ids : ndarray of int64
        Ascending; -1 for batches without a producer id.
    sums : ndarray of int64, shape (producers, 4)
        `PRODUCER_SUMS`.
    epochs : ndarray of int64
        The highest of each.
    is_complete : bool
        Whether no producer was dropped.
    """

    def __init__(self) -> None:
        self.ids: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.sums: npt.NDArray[np.int64] = np.empty((0, len(PRODUCER_SUMS)), np.int64)
        self.epochs: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.is_complete = True

    def add(self, batches: npt.NDArray[np.void], records: npt.NDArray[np.int64]) -> None:
        """Add batches of records, and the number of records of each."""
        if not len(batches):
            return
        is_old = batches["magic"] < 2
        ids = np.where(is_old, -1, batches["producer_id"])
        transactional = (batches["attributes"] & ATTRIBUTE_TRANSACTIONAL != 0) & ~is_old
        sums = np.stack([np.ones(len(ids), np.int64), records, batches["size"], transactional], axis=1)
        self._join(ids, sums.astype(np.int64), batches["producer_epoch"].astype(np.int64))

    def merge(self, other: ProducerSums) -> None:
        """Add the sums of another log."""
        self._join(other.ids, other.sums, other.epochs)
        self.is_complete &= other.is_complete

    def _join(self, ids: npt.NDArray[np.int64], sums: npt.NDArray[np.int64], epochs: npt.NDArray[np.int64]) -> None:
        if not len(ids):
            return
        ids = np.concatenate([self.ids, ids])
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        first = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
        self.ids = ids[first]
        self.sums = np.add.reduceat(np.concatenate([self.sums, sums])[order], first)
        self.epochs = np.maximum.reduceat(np.concatenate([self.epochs, epochs])[order], first)
        if len(self.ids) > 2 * _KEPT_PRODUCERS:
            kept = np.sort(np.argsort(-self.sums[:, 2], kind="stable")[:_KEPT_PRODUCERS])
            self.ids, self.sums, self.epochs = self.ids[kept], self.sums[kept], self.epochs[kept]
            self.is_complete = False
