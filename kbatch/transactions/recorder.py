"""The transaction recorder: what a part of a log adds to the transactions of the log before it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kbatch.format import Limits
from kbatch.transactions.events import (
    ABORT,
    COMMIT,
    DATA,
    EVENT_DTYPE,
    INDEXED_ABORT,
    LOST_BYTES,
    LOST_MARKER,
    by_producer,
)
from kbatch.transactions.opened import Begun
from kbatch.transactions.tracker import MAX_TABLE_BYTES, TransactionTracker

__all__ = ["EVENT_BYTES", "TransactionRecorder"]

# The memory of a recorded event: once in its part, and once in the array of all of them.
EVENT_BYTES = 2 * EVENT_DTYPE.itemsize
# Events that are not needed are dropped once there are this many more than twice those that were kept the last time.
_SPARE_EVENTS = 16384


def _is_needed(events: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Return which events change what a tracker makes of them, whichever transactions are open before."""
    needed = np.ones(len(events), np.bool_)
    if len(events) < 2:
        return needed
    kinds = np.ascontiguousarray(events["kind"])
    order = by_producer(events["producer_id"])
    producers, grouped = events["producer_id"][order], kinds[order]
    follows = producers[1:] == producers[:-1]
    # After a marker, its producer has no open transaction until the next batch: another COMMIT changes nothing.
    is_closed = follows & _is_any(grouped[:-1], COMMIT, ABORT, LOST_MARKER)
    commits = follows & (grouped[1:] == COMMIT)
    needed[order[1:][commits & is_closed]] = False
    # Transactions that begin and are committed, between which no bytes were lost. If an earlier one of the producer
    # may be open, its marker is needed.
    losses = np.cumsum(kinds == LOST_BYTES)[order]
    begun = np.flatnonzero(commits & (grouped[:-1] == DATA) & (losses[1:] == losses[:-1]))
    begun = begun[np.argsort(order[begun])]
    first, last = order[begun], order[begun + 1]
    dropped = np.ones(len(begun), np.bool_)
    # A transaction that ends otherwise is recorded with the last stable offset, so the earliest one open then is kept.
    ends = np.flatnonzero(_is_any(kinds, ABORT, LOST_MARKER, INDEXED_ABORT))
    earliest = np.searchsorted(np.maximum.accumulate(last), ends, "right")
    ends, earliest = ends[earliest < len(begun)], earliest[earliest < len(begun)]
    dropped[earliest[first[earliest] < ends]] = False
    needed[first[dropped]] = False
    was_closed = dropped & (begun > 0) & is_closed[begun - 1]
    needed[last[was_closed]] = False
    return needed


def _is_any(kinds: npt.NDArray[np.int64], first: int, second: int, third: int) -> npt.NDArray[np.bool_]:
    """Return which kinds are one of three: for a few events `np.isin` takes 20 times as long."""
    found: npt.NDArray[np.bool_] = (kinds == first) | (kinds == second) | (kinds == third)
    return found


class TransactionRecorder(TransactionTracker):
    """Records the events of a part of a log, without knowing which transactions are open before it.

    `add` works as in the tracker. A tracker that replays the `events` of all parts in order has the same result as one
    that follows the batches themselves. A transaction that begins and is committed in the part has no events, but the
    first marker of each producer is kept: it may end a transaction that was open before.

    Parameters
    ----------
    limits, max_bytes, limit_name
        As for the tracker.
    events : ndarray of EVENT_DTYPE, optional
        Events of an earlier recorder, to resume from.

    Examples
    --------
    >>> import numpy as np
    >>> import kbatch
    >>> from kbatch.transactions import TransactionRecorder, TransactionTracker
    >>> recorder = TransactionRecorder()
    >>> recorder.add(np.empty(0, np.uint8), kbatch.scan(b""), 0)
    >>> tracker = TransactionTracker()
    >>> tracker.replay(recorder.events)
    >>> tracker.result().open
    []
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        max_bytes: int | None = None,
        limit_name: str = MAX_TABLE_BYTES,
        events: npt.NDArray[np.void] | None = None,
    ) -> None:
        super().__init__(limits=limits, max_bytes=max_bytes, limit_name=limit_name)
        self._parts: list[npt.NDArray[np.void]] = []
        # The numbers of all events, of those before the mark, and of those that the last `_drop` kept.
        self._count = self._marked = self._kept = 0
        if events is not None:
            self.replay(events)
            self.mark()

    @property
    def events(self) -> npt.NDArray[np.void]:
        """The events recorded so far."""
        self._drop()
        return self._parts[0]

    @property
    def marked_events(self) -> npt.NDArray[np.void]:
        """The events that were recorded when `mark` was called last."""
        return self.events[: self._marked]

    def mark(self) -> None:
        """Note that a recorder may resume from here, whatever follows now."""
        self._marked = self._count

    def _drop(self) -> None:
        """Drop events that are not needed. Those before the mark do not depend on those after it."""
        if len(self._parts) == 1 and self._count == self._kept:
            return
        events = self._parts[0] if len(self._parts) == 1 else np.concatenate([np.empty(0, EVENT_DTYPE), *self._parts])
        # The parts are freed before the copy is made.
        self._parts = [events]
        needed = _is_needed(events[: self._marked])
        if self._marked < self._count:
            needed = np.append(needed, _is_needed(events[self._marked :]))
        self._marked = int(np.count_nonzero(needed[: self._marked]))
        self._parts = [events[needed]]
        self._count = self._kept = len(self._parts[0])

    def _check_memory(self) -> None:
        if self._count > 2 * self._kept + _SPARE_EVENTS or self._exceeds_limit():
            self._drop()
        super()._check_memory()

    def _replay(self, events: npt.NDArray[np.void]) -> None:
        """Record events, except repeated opening events of open transactions."""
        interrupted = np.flatnonzero(events["kind"] == LOST_BYTES)
        if len(interrupted):
            # Any transaction may have ended; to record that later batches open them again does no harm.
            end = int(interrupted[-1]) + 1
            self._append(events[:end])
            self._open.clear()
            events = events[end:]
        if not len(events):
            return
        order = by_producer(events["producer_id"])
        grouped = events[order]
        producers = grouped["producer_id"]
        starts = np.ones(len(order) + 1, np.bool_)
        starts[1:-1] = producers[1:] != producers[:-1]
        is_first, is_last = starts[:-1], starts[1:]
        kept = np.ones(len(events), np.bool_)
        if len(self._open):
            opened = np.fromiter((p in self._open for p in producers[is_first].tolist()), np.bool_)
            kept[order[is_first]] = ~opened | (grouped["kind"][is_first] != DATA)
        for event in grouped[is_last].tolist():
            producer_id, offset, _, timestamp, kind, position = event
            if kind != DATA:
                # An index entry may or may not end the transaction; recording the next batch again is harmless.
                self._open.end(producer_id)
            elif producer_id not in self._open:
                self._open.begin(Begun(position, offset, producer_id, timestamp))
        self._append(events[kept])

    def _ended_bytes(self) -> int:
        return self._count * EVENT_BYTES

    def _append(self, events: npt.NDArray[np.void]) -> None:
        self._parts.append(events)
        self._count += len(events)
