"""The open transactions of an export, from the batches that its tasks have read.

Under read_committed the plan has the transactions of whole logs. Otherwise the tasks follow the transactions in the
batches that they read anyway, and the results are joined in the order of each log.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from kbatch.format import ATTRIBUTE_CONTROL, ATTRIBUTE_DELETE_HORIZON, ATTRIBUTE_TRANSACTIONAL, NO_TIMESTAMP
from kbatch.transactions import OpenTransaction

__all__ = ["TaskTransactions"]


@dataclass(frozen=True, slots=True)
class TaskTransactions:
    """The effect of a part of a log on the open transactions before it, as values for JSON.

    Attributes
    ----------
    opened : list of [producer_id, first_offset, first_timestamp]
        Transactions that begin in the part and have no marker in it.
    ended : list of int
        The producers with a marker in the part, which ends a transaction that is open before it.
    ends_all : bool
        Whether bytes were lost, which may contain the end of any earlier transaction.
    """

    opened: list[list[int]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    ends_all: bool = False

    def with_batches(self, batches: npt.NDArray[np.void], last_loss: int | None) -> TaskTransactions:
        """Add good batches; `last_loss` is the position of the last lost bytes among them, or None."""
        found = self
        if last_loss is not None:
            found = TaskTransactions(ends_all=True)
            batches = batches[batches["position"] > last_loss]
        control = (batches["attributes"] & ATTRIBUTE_CONTROL) != 0
        relevant = ((batches["attributes"] & ATTRIBUTE_TRANSACTIONAL) != 0) & (batches["magic"] == 2)
        # An empty control batch ends nothing (PRD-R14).
        relevant &= (batches["producer_id"] >= 0) & ~(control & (batches["record_count"] == 0))
        if not relevant.any():
            return found
        return found.then(_of_rows(batches[relevant], control[relevant]))

    def then(self, after: TaskTransactions) -> TaskTransactions:
        """Return both parts as one."""
        if after.ends_all:
            return after
        ended = {*after.ended}
        still = [each for each in self.opened if each[0] not in ended]
        known = {each[0] for each in still}
        return replace(
            self,
            opened=[*still, *(each for each in after.opened if each[0] not in known)],
            ended=sorted({*self.ended, *ended}),
        )

    def transactions(self) -> list[OpenTransaction]:
        """Return the open transactions by first offset."""
        return sorted((OpenTransaction(*each) for each in self.opened), key=lambda each: each.first_offset)


def _of_rows(batches: npt.NDArray[np.void], control: npt.NDArray[np.bool_]) -> TaskTransactions:
    """Return the transactions that batches open: for each producer, the first batch after its last marker counts."""
    order = np.argsort(batches["producer_id"], kind="stable")
    producers, starts = np.unique(batches["producer_id"][order], return_index=True)
    opened, ended = [], []
    for producer_id, rows in zip(producers.tolist(), np.split(order, starts[1:]), strict=True):
        markers = np.flatnonzero(control[rows])
        if len(markers):
            ended.append(producer_id)
        begun = int(markers[-1]) + 1 if len(markers) else 0
        if begun < len(rows):
            first = batches[rows[begun]]
            has_horizon = int(first["attributes"]) & ATTRIBUTE_DELETE_HORIZON
            time = NO_TIMESTAMP if has_horizon else int(first["base_timestamp"])
            opened.append([producer_id, int(first["base_offset"]), time])
    return TaskTransactions(opened, ended)
