"""The transaction tracker: aborted and open transactions of a log, and its last stable offset."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.format import (
    ABORTED_DTYPE,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_TRANSACTIONAL,
    INT64_MAX,
    NO_TIMESTAMP,
    ControlType,
    Limits,
)
from kbatch.records.display import short_repr
from kbatch.transactions.control import marker_types

__all__ = [
    "EVENT_DTYPE",
    "INDEXED_ABORT",
    "LOST_BYTES",
    "LOST_MARKER",
    "NO_PRODUCER",
    "OpenTransaction",
    "TransactionRecorder",
    "TransactionTracker",
    "Transactions",
]

# Kinds of events: the type of a marker, or one of these. A .txnindex entry may replace a lost marker.
LOST_MARKER = -2
_NO_EVENT = -1
_DATA = 2
INDEXED_ABORT = 3
# Lost bytes that may have contained markers. If the producer of the event has an open transaction, the marker was that
# of this transaction; otherwise any open transaction may have ended.
LOST_BYTES = 4
NO_PRODUCER = -1

# Events that open or end transactions, in log order, with the base offset and last offset of the batch. An event of a
# .txnindex entry has the first offset of the transaction and the offset of its marker.
EVENT_DTYPE = np.dtype(
    [("producer_id", "<i8"), ("offset", "<i8"), ("last_offset", "<i8"), ("timestamp", "<i8"), ("kind", "<i8")]
)


class OpenTransaction(NamedTuple):
    """A transaction that no marker has decided yet.

    Attributes
    ----------
    producer_id : int
    first_offset : int
        Base offset of its first batch (LSO-R3).
    first_timestamp : int
        Base timestamp of that batch, in milliseconds since the epoch; -1 if unknown.

    References
    ----------
    Rules such as LSO-R3 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> kbatch.Log("tests/golden/logs/txn-0").transactions().open[0]
    OpenTransaction(producer_id=1002, first_offset=362, first_timestamp=1700000040000)
    """

    producer_id: int
    first_offset: int
    first_timestamp: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True, eq=False)
class Transactions:
    """The transactions of a log, by its markers.

    Attributes
    ----------
    aborted : ndarray of ABORTED_DTYPE
        Aborted transactions in the order of their markers, as in the log's ``.txnindex`` files (TXI-R5).
    open : list of OpenTransaction
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
    open: list[OpenTransaction]
    last_stable_offset: int | None
    undecided: npt.NDArray[np.void] = field(default_factory=lambda: np.empty(0, ABORTED_DTYPE))

    def __repr__(self) -> str:
        return short_repr(self, self.__dataclass_fields__)

    @property
    def pending(self) -> list[tuple[int, int]]:
        """Producer id and first offset of the open and undecided transactions, by first offset."""
        still = [(each.producer_id, each.first_offset) for each in self.open]
        lost = zip(self.undecided["producer_id"].tolist(), self.undecided["first_offset"].tolist(), strict=True)
        return sorted([*still, *lost], key=lambda pair: pair[1])


class Drained(NamedTuple):
    """The transactions that ended in a part of a log: see `TransactionTracker.drain`.

    Attributes
    ----------
    aborted, undecided : ndarray of ABORTED_DTYPE
        As in `Transactions`.
    abort_markers : (producer ids, offsets)
        As in `TransactionTracker.abort_markers`.
    """

    aborted: npt.NDArray[np.void]
    undecided: npt.NDArray[np.void]
    abort_markers: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


def _by_producer(producer_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Return the stable order that groups rows by producer."""
    least = producer_ids.min()
    if producer_ids.max() - least < 1 << 16:
        # A coordinator assigns adjacent ids. NumPy sorts small integers by radix, ten times as fast.
        return np.argsort((producer_ids - least).astype(np.uint16), kind="stable")
    return np.argsort(producer_ids, kind="stable")


def _first_batches(producer_ids: npt.NDArray[np.int64], kinds: npt.NDArray[np.int16]) -> npt.NDArray[np.intp]:
    """Return the first of each run of consecutive data batches of one producer, in rows that are sorted by producer."""
    is_data = kinds == _DATA
    changes = np.append(True, producer_ids[1:] != producer_ids[:-1])
    return np.flatnonzero(is_data & (changes | np.append(True, ~is_data[:-1])))


def _events(batches: npt.NDArray[np.void], kinds: npt.NDArray[np.int16]) -> npt.NDArray[np.void]:
    events = np.empty(len(batches), EVENT_DTYPE)
    events["producer_id"], events["offset"] = batches["producer_id"], batches["base_offset"]
    events["last_offset"] = batches["last_offset"]
    horizon = (batches["attributes"] & ATTRIBUTE_DELETE_HORIZON) != 0
    events["timestamp"] = np.where(horizon, NO_TIMESTAMP, batches["base_timestamp"])
    events["kind"] = kinds
    return events


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

    def __init__(self, open: Iterable[OpenTransaction] = (), *, limits: Limits | None = None) -> None:
        self._limits = limits if limits is not None else Limits()
        # (first offset, producer id, first timestamp) by producer id. The queue gives the smallest; it also contains
        # some that are already decided.
        self._open: dict[int, tuple[int, int, int]] = {}
        for transaction in open:
            producer_id, first_offset, first_timestamp = map(int, OpenTransaction(*transaction))
            self._open[producer_id] = (first_offset, producer_id, first_timestamp)
        self._queue = sorted(self._open.values())
        # Rows of ABORTED_DTYPE, twice, and the two columns of `abort_markers`.
        self._aborted = array("q")
        self._undecided = array("q")
        self._marker_producers = array("q")
        self._marker_offsets = array("q")

    def add(
        self,
        data: npt.NDArray[np.uint8],
        batches: npt.NDArray[np.void],
        origin: int = 0,
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

        Raises
        ------
        ValueError
            If `data` does not contain a marker.
        """
        rows, kinds = self._relevant(data, batches, origin)
        if not len(rows):
            return
        order = _by_producer(batches["producer_id"][rows])
        rows, kinds = rows[order], kinds[order]
        ordered = batches[rows]
        events = np.append(_first_batches(ordered["producer_id"], kinds), np.flatnonzero(kinds != _DATA))
        events = events[np.argsort(rows[events])]
        self.replay(_events(ordered[events], kinds[events]))

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
        kinds = np.full(len(rows), _DATA, np.int16)
        control = np.flatnonzero(attributes[rows] & ATTRIBUTE_CONTROL)
        if len(control):
            types = marker_types(data, batches[rows[control]], origin, self._limits.max_decompressed_bytes)
            types[(types != ControlType.ABORT) & (types != ControlType.COMMIT)] = _NO_EVENT
            kinds[control] = types
        relevant = kinds != _NO_EVENT
        return rows[relevant], kinds[relevant]

    def replay(self, events: npt.NDArray[np.void]) -> None:
        """Apply the events that a `TransactionRecorder` recorded for the next part of the log.

        Parameters
        ----------
        events : ndarray of EVENT_DTYPE
        """
        aborts = events[events["kind"] == ControlType.ABORT]
        self._marker_producers.frombytes(aborts["producer_id"].tobytes())
        # A consumer looks at a marker's last offset (TXN-R2).
        self._marker_offsets.frombytes(aborts["last_offset"].tobytes())
        is_open = self._open
        for producer_id, offset, last_offset, timestamp, kind in events.tolist():
            if kind == _DATA:
                if producer_id not in is_open:
                    is_open[producer_id] = transaction = (offset, producer_id, timestamp)
                    heapq.heappush(self._queue, transaction)
                continue
            if kind == INDEXED_ABORT:
                self._abort(producer_id, offset, last_offset)
                continue
            if kind == LOST_BYTES and producer_id not in is_open:
                for still in sorted(is_open.values()):
                    del is_open[still[1]]
                    self._record(self._undecided, still, offset)
                continue
            ended = is_open.pop(producer_id, None)
            if ended is not None and kind == ControlType.ABORT:
                self._record(self._aborted, ended, offset)
            elif ended is not None and kind != ControlType.COMMIT:
                self._record(self._undecided, ended, offset)
        if len(self._queue) > 2 * len(is_open) + 64:
            self._queue = sorted(is_open.values())

    def _record(self, ends: array[int], ended: tuple[int, int, int], offset: int) -> None:
        stable = self.last_stable_offset
        ends.extend((ended[1], ended[0], offset, min(offset + 1, INT64_MAX) if stable is None else stable))

    def replay_events(self, events: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Apply events that are given as tuples of the fields of EVENT_DTYPE."""
        if events:
            self.replay(np.array(events, EVENT_DTYPE))

    def _abort(self, producer_id: int, first_offset: int, last_offset: int) -> None:
        """Apply an ABORT marker that is lost, but that a ``.txnindex`` lists.

        It has no effect without an open transaction. One that began before `first_offset` is undecided: its own marker
        is lost too.
        """
        transaction = self._open.get(producer_id)
        if transaction is None or transaction[0] >= last_offset:
            return
        del self._open[producer_id]
        if transaction[0] < first_offset:
            self._record(self._undecided, transaction, last_offset)
            return
        self._marker_producers.append(producer_id)
        self._marker_offsets.append(last_offset)
        self._record(self._aborted, transaction, last_offset)

    def result(self) -> Transactions:
        """Return the transactions of the batches so far."""
        still = sorted(self._open.values())
        return Transactions(
            np.array(self._aborted, np.int64).view(ABORTED_DTYPE),
            [OpenTransaction(producer_id, offset, timestamp) for offset, producer_id, timestamp in still],
            still[0][0] if still else None,
            np.array(self._undecided, np.int64).view(ABORTED_DTYPE),
        )

    @property
    def last_stable_offset(self) -> int | None:
        """The smallest first offset of an open transaction, or None."""
        queue = self._queue
        while queue and self._open.get(queue[0][1]) is not queue[0]:
            heapq.heappop(queue)
        return queue[0][0] if queue else None

    @property
    def abort_markers(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Producer ids and offsets of all ABORT markers so far, including markers without a transaction (TXN-R6)."""
        return np.array(self._marker_producers, np.int64), np.array(self._marker_offsets, np.int64)

    def drain(self) -> Drained:
        """Return and forget the transactions that ended since the last call, to follow a log without end.

        `result` and `abort_markers` no longer contain them.
        """
        drained = Drained(
            np.array(self._aborted, np.int64).view(ABORTED_DTYPE),
            np.array(self._undecided, np.int64).view(ABORTED_DTYPE),
            self.abort_markers,
        )
        for column in (self._aborted, self._undecided, self._marker_producers, self._marker_offsets):
            del column[:]
        return drained


class TransactionRecorder(TransactionTracker):
    """Records the events of a part of a log, without knowing which transactions are open before it.

    `add` works as in the tracker. A tracker that replays the `events` of all parts in order has the same result as one
    that follows the batches themselves.

    Parameters
    ----------
    limits : Limits, optional
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
        events: npt.NDArray[np.void] | None = None,
    ) -> None:
        super().__init__(limits=limits)
        self._parts: list[npt.NDArray[np.void]] = []
        if events is not None:
            self.replay(events)

    @property
    def events(self) -> npt.NDArray[np.void]:
        """The events recorded so far."""
        return np.concatenate([np.empty(0, EVENT_DTYPE), *self._parts])

    def replay(self, events: npt.NDArray[np.void]) -> None:
        """Record events, except repeated opening events of open transactions."""
        interrupted = np.flatnonzero(events["kind"] == LOST_BYTES)
        if len(interrupted):
            # Any transaction may have ended; to record that later batches open them again does no harm.
            end = int(interrupted[-1]) + 1
            self._parts.append(events[:end])
            self._open.clear()
            events = events[end:]
        if not len(events):
            return
        order = _by_producer(events["producer_id"])
        grouped = events[order]
        starts = np.ones(len(order), np.bool_)
        starts[1:] = grouped["producer_id"][1:] != grouped["producer_id"][:-1]
        opened = np.fromiter((p in self._open for p in grouped["producer_id"][starts].tolist()), np.bool_)
        kept = np.ones(len(events), np.bool_)
        kept[order[starts]] = ~opened | (grouped["kind"][starts] != _DATA)
        for event in grouped[np.append(starts[1:], True)].tolist():
            producer_id, offset, _, timestamp, kind = event
            if kind != _DATA:
                # An index entry may or may not end the transaction; recording the next batch again is harmless.
                self._open.pop(producer_id, None)
            elif producer_id not in self._open:
                self._open[producer_id] = (offset, producer_id, timestamp)
        self._parts.append(events[kept])
