"""The transaction tracker: aborted and open transactions of a log, and its last stable offset."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.errors import LimitExceededError
from kbatch.format import (
    ABORTED_DTYPE,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    INT64_MAX,
    NO_TIMESTAMP,
    Limits,
)
from kbatch.public_names import public_in
from kbatch.records.display import short_repr
from kbatch.transactions.aborted import AbortedRanges, Withheld, WithheldOfLog
from kbatch.transactions.control_parsing import marker_types
from kbatch.transactions.events import (
    ABORT,
    COMMIT,
    DATA,
    INDEXED_ABORT,
    LOST_BYTES,
    LOST_MARKER,
    NO_EVENT,
    LostEvents,
    batch_events,
)
from kbatch.transactions.opened import OPEN_BYTES, Begun, OpenedRows, OpenTransaction, OpenTransactions

__all__ = ["FOLLOWED_ROWS", "Spans", "TransactionTracker", "Transactions"]

# The memory of a transaction that has ended: 48 bytes for the row and its positions and 24 for the marker, the former
# also in the result; and the range that is made of it, as three sorted columns and the arrays of two sorts.
ENDED_BYTES = (48 + 24) + 48 + 72
MAX_TABLE_BYTES = "limits=kbatch.Limits(max_table_bytes=...)"
# Batches that are followed at once, as several arrays, and events that are applied at once, as tuples.
FOLLOWED_ROWS = 16384
_REPLAYED = 4096
# The position of a transaction that began before the bytes that are followed.
_BEFORE = -1


class Spans(NamedTuple):
    """Where transactions are in the bytes that were followed.

    Attributes
    ----------
    aborted, undecided : ndarray of int64, shape (transactions, 2)
        The positions of the first batch and of the marker.
    stable_position : int or None
        The position of the first batch of the earliest open transaction.
    segments : mapping of str to (int, int)
        Of a log, where each segment begins in all of them joined, and its size, by path.
    """

    aborted: npt.NDArray[np.int64]
    undecided: npt.NDArray[np.int64]
    stable_position: int | None
    segments: Mapping[str, tuple[int, int]]


def _no_spans() -> Spans:
    return Spans(np.empty((0, 2), np.int64), np.empty((0, 2), np.int64), None, {})


class _Ended:
    """Transactions that have ended: rows of ABORTED_DTYPE, and their first and last positions."""

    __slots__ = ("_rows", "_spans")

    def __init__(self) -> None:
        self._rows = array("q")
        self._spans = array("q")

    def add(self, row: tuple[int, int, int, int], span: tuple[int, int]) -> None:
        self._rows.extend(row)
        self._spans.extend(span)

    def __len__(self) -> int:
        return len(self._spans) // 2

    def rows(self) -> npt.NDArray[np.void]:
        return np.array(self._rows, np.int64).view(ABORTED_DTYPE)

    def spans(self) -> npt.NDArray[np.int64]:
        return np.array(self._spans, np.int64).reshape(-1, 2)

    def clear(self) -> None:
        del self._rows[:], self._spans[:]


@public_in("kbatch")
@dataclass(frozen=True, slots=True, eq=False)
class Transactions:
    """The transactions of a log, by its markers.

    Attributes
    ----------
    aborted : ndarray of ABORTED_DTYPE
        Aborted transactions in the order of their markers, as in the log's ``.txnindex`` files (TXI-R5).
    open : sequence of OpenTransaction
        Transactions without a marker, by first offset.
    last_stable_offset : int or None
        The smallest first offset of an open transaction: records at or after it are undecided (LSO-R2). None if no
        transaction is open.
    undecided : ndarray of ABORTED_DTYPE
        Transactions whose marker is damaged or may be among lost bytes, in the order of the damage: it is unknown
        whether they were committed or aborted. Their records up to the last offset are withheld, but they do not affect
        the last stable offset.

    References
    ----------
    Rules such as TXI-R5 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> found = kbatch.Log("tests/golden/logs/txn-0").transactions()
    >>> len(found.aborted), found.pending, found.last_stable_offset
    (13, [(1002, 362), (1004, 367)], 362)
    """

    aborted: npt.NDArray[np.void]
    open: Sequence[OpenTransaction]
    last_stable_offset: int | None
    undecided: npt.NDArray[np.void] = field(default_factory=lambda: np.empty(0, ABORTED_DTYPE))
    _spans: Spans = field(default_factory=_no_spans)

    def __repr__(self) -> str:
        return short_repr(self, (name for name in self.__dataclass_fields__ if not name.startswith("_")))

    def _withheld(self) -> Withheld:
        """Return the batches that read_committed does not return, by positions in the bytes that were followed."""
        return Withheld(
            AbortedRanges(self.aborted["producer_id"], *self._spans.aborted.T, by="position"),
            AbortedRanges(self.undecided["producer_id"], *self._spans.undecided.T, by="position"),
            self._spans.stable_position,
        )

    def _withheld_of_log(self) -> WithheldOfLog:
        """Return the same for a log whose segments were followed one after the other."""
        return WithheldOfLog(self._withheld(), self._spans.segments)

    def _within(self, start: int, stop: int) -> Transactions:
        """Return the transactions that overlap an offset range; undecided ones only need to begin before its end."""
        chosen = (self.aborted["last_offset"] >= start) & (self.aborted["first_offset"] < stop)
        before = self.undecided["first_offset"] < stop
        still = OpenTransactions.of(self.open).below(stop)
        spans = self._spans._replace(aborted=self._spans.aborted[chosen], undecided=self._spans.undecided[before])
        return Transactions(
            self.aborted[chosen],
            still,
            still[0].first_offset if still else None,
            self.undecided[before],
            spans if still else spans._replace(stable_position=None),
        )

    @property
    def pending(self) -> list[tuple[int, int]]:
        """Producer id and first offset of the open and undecided transactions, by first offset."""
        rows = OpenTransactions.of(self.open).rows, self.undecided
        producers, offsets = (np.concatenate([each[name] for each in rows]) for name in ("producer_id", "first_offset"))
        order = np.argsort(offsets, kind="stable")
        return list(zip(producers[order].tolist(), offsets[order].tolist(), strict=True))


class Drained(NamedTuple):
    """The transactions that ended in a part of a log: see `TransactionTracker.drain`.

    Attributes
    ----------
    aborted, undecided : ndarray of ABORTED_DTYPE
        As in `Transactions`.
    abort_markers : (producer ids, offsets, positions)
        As in `TransactionTracker.abort_markers`.
    aborted_spans, undecided_spans : ndarray of int64, shape (transactions, 2)
        As in `Spans`.
    """

    aborted: npt.NDArray[np.void]
    undecided: npt.NDArray[np.void]
    abort_markers: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]
    aborted_spans: npt.NDArray[np.int64]
    undecided_spans: npt.NDArray[np.int64]


class TransactionTracker:
    """Follows the transactions of a log from batch to batch.

    It needs the headers of all batches with good checksums, and the bytes of the markers. Its memory is proportional to
    the number of transactions.

    Parameters
    ----------
    open : iterable of OpenTransaction, optional
        The transactions that were open where the log begins, from a producer snapshot (TXI-R7).
    limits : Limits, optional
        Limits for compressed control batches, which no known producer writes.
    max_bytes : int, optional
        The most memory of the transactions; LimitExceededError beyond.
    limit_name, alternative : str
        The parameter that raises it, and what to do instead, for the error.
    on_end : callable, optional
        Called with each transaction that ends: how it began; the kind of the event that ended it, which is ``COMMIT``,
        ``ABORT``, ``INDEXED_ABORT``, or one of lost bytes, which leaves it undecided; and the offset and the timestamp
        of that event, -1 if unknown.

    Attributes
    ----------
    used_bytes : int
        The memory of the transactions, as it is compared to `max_bytes`.

    Notes
    -----
    The rules come from Kafka's ``ProducerAppendInfo`` and ``ProducerStateManager``, and the result equals the log's own
    index (TXI-R5, LSO-R3). If decoding starts in the middle of a log, a transaction begins at the first decoded batch
    (TXI-R6); a marker without a batch aborts no transaction (TXI-R3). Producer epochs are ignored (TXN-R9).

    A flipped bit in a header can turn any batch into part of a transaction that never ends, or into a marker. The
    caller therefore leaves out damaged batches; a `LossFollower` decides which transactions they may have ended.

    Examples
    --------
    >>> import numpy as np
    >>> import kbatch
    >>> from kbatch.transactions import TransactionTracker
    >>> tracker = TransactionTracker()
    >>> tracker.add(np.empty(0, np.uint8), kbatch.scan(b""), 0)
    >>> tracker.result().last_stable_offset is None
    True
    """

    # The memory of an open transaction.
    _open_bytes = OPEN_BYTES

    def __init__(
        self,
        open: Iterable[OpenTransaction] = (),
        *,
        limits: Limits | None = None,
        max_bytes: int | None = None,
        limit_name: str = MAX_TABLE_BYTES,
        alternative: str = ", or read with isolation='read_uncommitted'",
        on_end: Callable[[Begun, int, int, int], None] | None = None,
    ) -> None:
        self._limits = limits if limits is not None else Limits()
        self._max_bytes = max_bytes
        self._limit_name = limit_name
        self._alternative = alternative
        self._on_end = on_end
        self.used_bytes = 0
        self._open = OpenedRows()
        if open:
            begun = OpenTransactions.of(open).rows
            for row in np.argsort(begun["first_offset"], kind="stable").tolist():
                producer_id, first_offset, first_timestamp = begun[row].tolist()
                self._open.begin(Begun(_BEFORE, first_offset, producer_id, first_timestamp))
        self._aborted = _Ended()
        self._undecided = _Ended()
        # The columns of `abort_markers`.
        self._markers = array("q"), array("q"), array("q")

    def add(
        self,
        data: npt.NDArray[np.uint8],
        batches: npt.NDArray[np.void],
        origin: int = 0,
        lost: LostEvents | None = None,
    ) -> None:
        """Follow the next batches of the log.

        Parameters
        ----------
        data : ndarray of uint8
            Bytes that contain the markers among these batches.
        batches : ndarray of BATCH_DTYPE
            Their headers in log order; magic 0 and 1 are ignored.
        origin : int
            Position of ``data[0]`` in the source, which the positions in `batches` count from.
        lost : LostEvents, optional
            Lost bytes among these batches.

        Raises
        ------
        ValueError
            If `data` does not contain a marker.
        LimitExceededError
            If the transactions take too much memory; also by later calls, as not all batches were followed.
        """
        self._check_memory()
        lost = LostEvents.none() if lost is None else lost
        if len(batches) <= FOLLOWED_ROWS:
            self._add(data, batches, origin, lost)
            return
        for begin in range(0, len(batches), FOLLOWED_ROWS):
            part = batches[begin : begin + FOLLOWED_ROWS]
            first, stop = np.searchsorted(lost.rows, [begin, begin + len(part)])
            self._add(data, part, origin, LostEvents(lost.rows[first:stop] - begin, lost.events[first:stop]))

    def _add(self, data: npt.NDArray[np.uint8], batches: npt.NDArray[np.void], origin: int, lost: LostEvents) -> None:
        rows, kinds = self._relevant(data, batches, origin)
        events = batch_events(batches, rows, kinds, lost)
        if len(events):
            self.replay(events)

    def _relevant(
        self,
        data: npt.NDArray[np.uint8],
        batches: npt.NDArray[np.void],
        origin: int,
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int16]]:
        """Return the rows that begin, continue or end a transaction, and the kind of each.

        An empty control batch is ignored, as is one of an unknown type (TXN-R10).
        """
        attributes = batches["attributes"] & (ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL)
        rows = np.flatnonzero((attributes != 0) & (batches["producer_id"] >= 0) & (batches["magic"] == 2))
        kinds = np.full(len(rows), DATA, np.int16)
        control = np.flatnonzero(attributes[rows] & ATTRIBUTE_CONTROL)
        if len(control):
            types = marker_types(data, batches[rows[control]], origin, self._limits.max_decompressed_bytes)
            types[(types != ABORT) & (types != COMMIT)] = NO_EVENT
            kinds[control] = types
        relevant = kinds != NO_EVENT
        return rows[relevant], kinds[relevant]

    def replay(self, events: npt.NDArray[np.void]) -> None:
        """Apply the events that a `TransactionRecorder` recorded for the next part of the log.

        Parameters
        ----------
        events : ndarray of EVENT_DTYPE
        """
        for begin in range(0, len(events), _REPLAYED):
            self._replay(events[begin : begin + _REPLAYED])
            self._check_memory()

    def _ended_bytes(self) -> int:
        return (len(self._markers[0]) + len(self._undecided)) * ENDED_BYTES

    def _exceeds_limit(self) -> bool:
        """Count the memory, and return whether it is too much."""
        self.used_bytes = len(self._open) * self._open_bytes + self._ended_bytes()
        return self._max_bytes is not None and self.used_bytes > self._max_bytes

    def _check_memory(self) -> None:
        """Raise LimitExceededError if the transactions take too much memory."""
        if self._exceeds_limit():
            raise LimitExceededError(
                f"the transactions, {len(self._open):,} of them open, take more than {self._max_bytes} bytes of "
                f"memory; raise {self._limit_name}{self._alternative}"
            )

    def _replay(self, events: npt.NDArray[np.void]) -> None:
        aborts = events[events["kind"] == ABORT]
        # A consumer looks at a marker's last offset (TXN-R2).
        for column, name in zip(self._markers, ("producer_id", "last_offset", "position"), strict=True):
            column.frombytes(aborts[name].tobytes())
        is_open = self._open
        for producer_id, offset, last_offset, timestamp, kind, position in events.tolist():
            if kind == DATA:
                if producer_id not in is_open:
                    is_open.begin(Begun(position, offset, producer_id, timestamp))
            elif kind == INDEXED_ABORT:
                self._abort(producer_id, offset, last_offset, position)
            elif kind == LOST_BYTES and producer_id not in is_open:
                self._end_all(offset, position)
            elif (ended := is_open.end(producer_id)) is not None:
                if self._on_end is not None:
                    self._on_end(ended, kind, offset, timestamp)
                if kind != COMMIT:
                    self._record(self._aborted if kind == ABORT else self._undecided, ended, offset, position)

    def _end_all(self, offset: int, position: int) -> None:
        """Make all open transactions undecided."""
        while (still := self._open.first()) is not None:
            self._open.end(still.producer_id)
            if self._on_end is not None:
                self._on_end(still, LOST_BYTES, offset, NO_TIMESTAMP)
            self._record(self._undecided, still, offset, position)

    def _record(self, ends: _Ended, ended: Begun, offset: int, position: int) -> None:
        first_position, first_offset, producer_id, _ = ended
        stable = self.last_stable_offset
        stable = min(offset + 1, INT64_MAX) if stable is None else stable
        ends.add((producer_id, first_offset, offset, stable), (first_position, position))

    def _abort(self, producer_id: int, first_offset: int, last_offset: int, position: int) -> None:
        """Apply an ABORT marker that is lost, but that a ``.txnindex`` lists.

        It has no effect without an open transaction. One that began before `first_offset` is undecided: its own marker
        is lost too.
        """
        transaction = self._open.get(producer_id)
        if transaction is None or transaction.first_offset >= last_offset:
            return
        self._open.end(producer_id)
        if self._on_end is not None:
            kind = INDEXED_ABORT if transaction.first_offset >= first_offset else LOST_MARKER
            self._on_end(transaction, kind, last_offset, NO_TIMESTAMP)
        if transaction.first_offset < first_offset:
            self._record(self._undecided, transaction, last_offset, position)
            return
        for column, value in zip(self._markers, (producer_id, last_offset, position), strict=True):
            column.append(value)
        self._record(self._aborted, transaction, last_offset, position)

    def result(self, segments: Mapping[str, tuple[int, int]] | None = None) -> Transactions:
        """Return the transactions of the batches so far; `segments` is as for `Spans`."""
        _, offsets, producer_ids, timestamps = self._open.rows().T
        return Transactions(
            self._aborted.rows(),
            OpenTransactions(producer_ids, offsets, timestamps),
            self.last_stable_offset,
            self._undecided.rows(),
            Spans(self._aborted.spans(), self._undecided.spans(), self.stable_position, segments or {}),
        )

    @property
    def last_stable_offset(self) -> int | None:
        """The first offset of the earliest open transaction, or None."""
        first = self._open.first()
        return None if first is None else first.first_offset

    @property
    def stable_position(self) -> int | None:
        """The position of the first batch of the earliest open transaction, or None."""
        first = self._open.first()
        return None if first is None else first.position

    @property
    def abort_markers(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Producer ids, offsets and positions of all ABORT markers so far, also without a transaction (TXN-R6)."""
        producers, offsets, positions = (np.array(column, np.int64) for column in self._markers)
        return producers, offsets, positions

    def drain(self) -> Drained:
        """Return and forget the transactions that ended since the last call, to follow a log without end.

        `result` and `abort_markers` no longer contain them.
        """
        aborted, undecided = self._aborted, self._undecided
        drained = Drained(aborted.rows(), undecided.rows(), self.abort_markers, aborted.spans(), undecided.spans())
        aborted.clear()
        undecided.clear()
        for column in self._markers:
            del column[:]
        return drained
