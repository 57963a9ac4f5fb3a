"""The transactions of a log over time, in constant memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbatch.format import NO_TIMESTAMP
from kbatch.log.check.statistics import Distribution
from kbatch.report.buckets import TIME_WIDTHS, Buckets
from kbatch.transactions import OpenTransaction
from kbatch.transactions.events import ABORT, COMMIT, INDEXED_ABORT
from kbatch.transactions.opened import Begun

__all__ = ["OUTCOMES", "ShownTransaction", "TransactionHistory"]

OUTCOMES = ("committed", "aborted", "undecided", "open")
# The transactions of a log of which all is known, the longest first, and those that are held until they are counted.
_KEPT_TRANSACTIONS = 100
_HELD = 8192
_HISTORY_COLUMNS = ("outcome", "producer_id", "first_offset", "first_time", "last_offset", "last_time", "duration")


@dataclass(frozen=True, slots=True)
class ShownTransaction:
    """A transaction: who had it, from when to when, and how it ended. Unknown times and offsets are None."""

    outcome: str
    producer_id: int
    first_offset: int
    first_time: int | None
    last_offset: int | None
    last_time: int | None
    duration: int | None


class TransactionHistory:
    """Counts the transactions of a log by the time of their ends, and keeps the longest ones.

    Attributes
    ----------
    durations : Distribution
        Milliseconds of ended transactions, as far as both timestamps are known.
    ends : Buckets
        By the time of the end: the number of all transactions, and of those that were aborted.
    """

    def __init__(self) -> None:
        self.durations = Distribution()
        self.ends = Buckets(TIME_WIDTHS, 1, limit=128)
        self._held = array("q")
        self._kept = np.empty((0, len(_HISTORY_COLUMNS)), np.int64)

    def add(self, begun: Begun, kind: int, last_offset: int, last_timestamp: int) -> None:
        """Add a transaction that ended."""
        outcome = 0 if kind == COMMIT else 1 if kind in (ABORT, INDEXED_ABORT) else 2
        first = begun.first_timestamp
        is_known = 0 <= first <= last_timestamp
        duration = last_timestamp - first if is_known else -1
        self._held.extend(
            (outcome, begun.producer_id, begun.first_offset, first, last_offset, last_timestamp, duration)
        )
        if len(self._held) >= _HELD * len(_HISTORY_COLUMNS):
            self._count()

    def _count(self) -> None:
        rows = np.array(self._held, np.int64).reshape(-1, len(_HISTORY_COLUMNS))
        del self._held[:]
        self.durations.add(rows[rows[:, 6] >= 0, 6])
        ended = rows[rows[:, 5] >= 0]
        self.ends.add(ended[:, 5], (ended[:, 0] == 1).astype(np.float64))
        self._kept = _longest(np.concatenate([self._kept, rows]))

    def longest(self, open_transactions: Iterable[OpenTransaction], last_time: int | None) -> list[ShownTransaction]:
        """Return the open transactions, up to the last time of the log, and the longest others, each by duration."""
        self._count()
        rows = [
            (3, each.producer_id, each.first_offset, each.first_timestamp, -1, -1, _open_duration(each, last_time))
            for each in open_transactions
        ]
        still = _longest(np.array(rows, np.int64).reshape(-1, len(_HISTORY_COLUMNS)))
        return [_shown_transaction(row) for row in np.concatenate([still, self._kept]).tolist()]


def _longest(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return rows[np.argsort(-rows[:, 6], kind="stable")[:_KEPT_TRANSACTIONS]]


def _open_duration(transaction: OpenTransaction, last_time: int | None) -> int:
    first = transaction.first_timestamp
    return -1 if last_time is None or not 0 <= first <= last_time else last_time - first


def _shown_transaction(row: list[int]) -> ShownTransaction:
    outcome, producer_id, first_offset, *others = row
    first_time, last_offset, last_time, duration = (None if each == NO_TIMESTAMP else each for each in others)
    return ShownTransaction(OUTCOMES[outcome], producer_id, first_offset, first_time, last_offset, last_time, duration)
