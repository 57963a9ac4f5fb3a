"""The transactions of a log over time, in constant memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kbatch.format import NO_TIMESTAMP
from kbatch.log.check.statistics import Distribution
from kbatch.report.buckets import TIME_WIDTHS, Buckets
from kbatch.transactions import OpenTransaction
from kbatch.transactions.events import ABORT, COMMIT, INDEXED_ABORT
from kbatch.transactions.opened import Begun, OpenTransactions

__all__ = ["LONG_OPEN", "OUTCOMES", "ShownTransaction", "TransactionHistory"]

OUTCOMES = ("committed", "aborted", "undecided", "open")
# The default of transaction.max.timeout.ms of a broker, in milliseconds: it aborts older transactions itself.
LONG_OPEN = 900_000
# The transactions of a log and an outcome that are kept, and those that are held until they are counted.
_KEPT_TRANSACTIONS = 20
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
    hanging, left_open : int
        After `longest`, the number of open transactions that last longer than `LONG_OPEN`, and of those that do not
        within their log, but began that long before the report.
    """

    def __init__(self) -> None:
        self.durations = Distribution()
        self.ends = Buckets(TIME_WIDTHS, 1, limit=128)
        self.hanging = self.left_open = 0
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

    def longest(
        self, open_transactions: Sequence[OpenTransaction], last_time: int | None, now: int
    ) -> list[ShownTransaction]:
        """Return the longest transactions of each outcome; open ones last up to the last time of the log."""
        self._count()
        found = OpenTransactions.of(open_transactions).rows
        rows = np.full((len(found), len(_HISTORY_COLUMNS)), -1, np.int64)
        rows[:, 0] = OUTCOMES.index("open")
        for column, name in enumerate(("producer_id", "first_offset", "first_timestamp"), 1):
            rows[:, column] = found[name]
        rows[:, 6] = _open_durations(found["first_timestamp"], last_time)
        is_hanging = rows[:, 6] > LONG_OPEN
        is_old = _open_durations(found["first_timestamp"], now) > LONG_OPEN
        self.hanging, self.left_open = int(np.count_nonzero(is_hanging)), int(np.count_nonzero(is_old & ~is_hanging))
        return [_shown_transaction(row) for row in np.concatenate([_longest(rows), self._kept]).tolist()]


def _longest(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the longest transactions of each outcome."""
    rows = rows[np.argsort(-rows[:, 6], kind="stable")]
    return np.concatenate([rows[rows[:, 0] == number][:_KEPT_TRANSACTIONS] for number in range(len(OUTCOMES))])


def _open_durations(first_times: npt.NDArray[np.int64], last_time: int | None) -> npt.NDArray[np.int64]:
    """Return the durations up to the last time; -1 where one is unknown."""
    last = -1 if last_time is None else last_time
    durations: npt.NDArray[np.int64] = np.where((first_times >= 0) & (first_times <= last), last - first_times, -1)
    return durations


def _shown_transaction(row: list[int]) -> ShownTransaction:
    outcome, producer_id, first_offset, *others = row
    first_time, last_offset, last_time, duration = (None if each == NO_TIMESTAMP else each for each in others)
    return ShownTransaction(OUTCOMES[outcome], producer_id, first_offset, first_time, last_offset, last_time, duration)
