"""Following transactions over the batches of a log: what is aborted, what is open, and from which offset on."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.batches.checksums import good_crcs
from kbatch.format import (
    ABORTED_DTYPE,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_TRANSACTIONAL,
    NO_TIMESTAMP,
    ControlType,
    Limits,
)
from kbatch.transactions.control import lost_markers, marker_types

__all__ = ["EVENT_DTYPE", "OpenTransaction", "TransactionRecorder", "TransactionTracker", "Transactions"]

_INT64 = np.iinfo(np.int64)
# Kinds of events: the type of a marker, or one of these. An entry of a .txnindex may replace a lost marker.
_LOST = -2
_NOTHING = -1
_DATA = 2
_INDEXED_ABORT = 3
# Damage that may have cost the markers of all that is open; it has no producer.
_INTERRUPTED = 4

# What opens transactions and what ends them, in the order of a log: the base offset of a batch and its last; of an
# entry of a .txnindex the transaction's first offset and that of its marker.
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
        Aborted transactions in the order of their markers: what the log's ``.txnindex`` files hold (TXI-R5).
    open : list of OpenTransaction
        Those without a marker, by first offset.
    last_stable_offset : int or None
        The least first offset of an open transaction: what is at or after it is undecided (LSO-R2). None if none is
        open, and nothing is held back.
    undecided : ndarray of ABORTED_DTYPE
        Transactions that ended with a marker that is damaged, in the order of their markers: it is unknown whether they
        were committed or aborted. Their own records are withheld, but they hold back nothing else.

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

    @property
    def pending(self) -> list[tuple[int, int]]:
        """Producer id and first offset of the open and the undecided ones, by first offset."""
        still = [(each.producer_id, each.first_offset) for each in self.open]
        lost = zip(self.undecided["producer_id"].tolist(), self.undecided["first_offset"].tolist(), strict=True)
        return sorted([*still, *lost], key=lambda pair: pair[1])


class Drained(NamedTuple):
    """What ended in a part of a log: see `TransactionTracker.drain`.

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
    """Return the order that brings the rows of a producer together and keeps them in theirs."""
    least = producer_ids.min()
    if producer_ids.max() - least < 1 << 16:
        # A coordinator's ids are neighbours. Small integers are sorted by their digits, ten times as fast.
        return np.argsort((producer_ids - least).astype(np.uint16), kind="stable")
    return np.argsort(producer_ids, kind="stable")


class _Runs(NamedTuple):
    """Data batches of one producer with nothing of it between them, as rows `start` up to `stop`."""

    start: npt.NDArray[np.intp]
    stop: npt.NDArray[np.intp]
    is_first: npt.NDArray[np.bool_]
    """Whether it begins the rows of its producer."""
    is_decided: npt.NDArray[np.bool_]
    """Whether an ABORT or COMMIT follows."""


def _runs_of_data(producer_ids: npt.NDArray[np.int64], kinds: npt.NDArray[np.int16]) -> _Runs:
    """Find the runs in rows that are sorted by producer."""
    is_data = kinds == _DATA
    changes = np.append(True, producer_ids[1:] != producer_ids[:-1])
    start = np.flatnonzero(is_data & (changes | np.append(True, ~is_data[:-1])))
    ends = np.append(np.flatnonzero(changes | ~is_data), len(kinds))
    stop = ends[np.searchsorted(ends, start, "right")]
    ended_by = np.append(np.where(changes, _NOTHING, kinds), _NOTHING)[stop]
    return _Runs(start, stop, changes[start], (ended_by == ControlType.ABORT) | (ended_by == ControlType.COMMIT))


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

    It needs the headers of all batches, and of the bytes only the markers and the first batches of transactions. What
    it keeps is in proportion to the transactions.

    Parameters
    ----------
    open : iterable of OpenTransaction, optional
        The transactions that were open where the log begins, from a producer snapshot (TXI-R7).
    check_crc : bool
        Whether to follow only batches whose checksum holds: a marker decides a transaction, and a batch that opens
        one holds everything after it back.
    limits : Limits, optional
        What a compressed control batch may cost. Nobody writes them.

    Notes
    -----
    The rules are those of Kafka's ``ProducerAppendInfo`` and ``ProducerStateManager``, and what comes out equals the
    log's own index (TXI-R5, LSO-R3). Of a log that is decoded from its middle on, a transaction begins at the first
    batch that is seen (TXI-R6); a marker without a batch aborts nothing (TXI-R3). Producer epochs play no part
    (TXN-R9).

    A bit that flips in a header can make any batch one of a transaction that nobody ever ends. Therefore the first
    batches of those still open at the end of an `add` have their checksums verified, each once; what is damaged opens
    nothing.

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

    def __init__(
        self, open: Iterable[OpenTransaction] = (), *, check_crc: bool = True, limits: Limits | None = None
    ) -> None:
        self.check_crc = check_crc
        self._limits = limits if limits is not None else Limits()
        # (first offset, producer id, first timestamp) by producer id. The queue gives the least of them; it holds
        # some that are decided already.
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
        lost: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Follow the next batches of the log.

        Parameters
        ----------
        data : ndarray of uint8
            Bytes that hold all of these batches.
        batches : ndarray of BATCH_DTYPE
            Their headers in the order of the log; those of magic 0 and 1 are passed over.
        origin : int
            Position of ``data[0]`` in the source, which the positions in `batches` count from.
        lost : ndarray of bool, shape (batches,), optional
            Which of them are markers that were damaged (`lost_markers`), so that their type is unknown. With
            `check_crc` the tracker finds these itself.

        Raises
        ------
        ValueError
            If a batch that is needed doesn't lie in `data`.
        """
        rows, kinds = self._relevant(data, batches, origin, lost)
        if not len(rows):
            return
        order = _by_producer(batches["producer_id"][rows])
        rows, kinds = rows[order], kinds[order]
        ordered = batches[rows]
        runs = _runs_of_data(ordered["producer_id"], kinds)
        opening = self._first_valid(data, ordered, origin, runs) if self.check_crc else runs.start
        events = np.append(opening, np.flatnonzero(kinds != _DATA))
        events = events[np.argsort(rows[events])]
        self.replay(_events(ordered[events], kinds[events]))

    def _relevant(
        self,
        data: npt.NDArray[np.uint8],
        batches: npt.NDArray[np.void],
        origin: int,
        lost: npt.NDArray[np.bool_] | None,
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int16]]:
        """Return the rows that begin, continue or end a transaction, and the kind of each.

        An empty control batch is ignored, as is one of an unknown type (TXN-R10).
        """
        attributes = batches["attributes"] & (ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL)
        rows = np.flatnonzero((attributes != 0) & (batches["producer_id"] >= 0) & (batches["magic"] == 2))
        kinds = np.full(len(rows), _DATA, np.int16)
        control = np.flatnonzero(attributes[rows] & ATTRIBUTE_CONTROL)
        if len(control):
            markers = batches[rows[control]]
            good = np.ones(len(markers), np.bool_)
            if self.check_crc:
                good = good_crcs(data, markers, origin)
            types = np.full(len(markers), _NOTHING, np.int16)
            types[good] = marker_types(data, markers[good], origin, self._limits.max_decompressed_bytes)
            types[(types != ControlType.ABORT) & (types != ControlType.COMMIT)] = _NOTHING
            types[~good & lost_markers(markers)] = _LOST
            kinds[control] = types
        if lost is not None:
            kinds[lost[rows]] = _LOST
        relevant = kinds != _NOTHING
        return rows[relevant], kinds[relevant]

    def _first_valid(
        self, data: npt.NDArray[np.uint8], batches: npt.NDArray[np.void], origin: int, runs: _Runs
    ) -> npt.NDArray[np.intp]:
        """Return the batch that opens each run: of runs that no marker decides the first one that is valid, if any."""
        opening = runs.start.copy()
        is_open = [producer_id in self._open for producer_id in batches["producer_id"][opening].tolist()]
        checked = np.flatnonzero(~(runs.is_decided | runs.is_first & np.array(is_open, np.bool_)))
        good = good_crcs(data, batches[opening[checked]], origin)
        for run in checked[~good].tolist():
            later = int(opening[run]) + 1
            valid = np.flatnonzero(good_crcs(data, batches[later : runs.stop[run]], origin))
            opening[run] = later + valid[0] if len(valid) else -1
        return opening[opening >= 0]

    def replay(self, events: npt.NDArray[np.void]) -> None:
        """Apply the events of the next part of the log, which a `TransactionRecorder` has recorded.

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
            if kind == _INDEXED_ABORT:
                self.abort(producer_id, offset, last_offset)
                continue
            if kind == _INTERRUPTED:
                for still in sorted(is_open.values()):
                    del is_open[still[1]]
                    self._record(self._undecided, still, offset)
                continue
            ended = is_open.pop(producer_id, None)
            if ended is not None and kind == ControlType.ABORT:
                self._record(self._aborted, ended, offset)
            elif ended is not None and kind == _LOST:
                self._record(self._undecided, ended, offset)
        if len(self._queue) > 2 * len(is_open) + 64:
            self._queue = sorted(is_open.values())

    def _record(self, ends: array[int], ended: tuple[int, int, int], offset: int) -> None:
        queue = self._queue
        while queue and self._open.get(queue[0][1]) is not queue[0]:
            heapq.heappop(queue)
        stable = queue[0][0] if queue else min(offset + 1, _INT64.max)
        ends.extend((ended[1], ended[0], offset, stable))

    def abort(self, producer_id: int, first_offset: int, last_offset: int) -> bool:
        """Apply an ABORT marker whose batch is lost, but which a ``.txnindex`` lists.

        Its place in the log is after the batches added before, and before those added next.

        Parameters
        ----------
        producer_id, first_offset, last_offset : int
            The entry: the transaction's first offset, and that of its marker.

        Returns
        -------
        bool
            Whether it was applied. It isn't where the log contradicts it: if no transaction of the producer is open, or
            one that began before `first_offset`, whose own marker may have been lost as well.
        """
        transaction = self._open.get(producer_id)
        if transaction is None or not first_offset <= transaction[0] < last_offset:
            return False
        del self._open[producer_id]
        self._marker_producers.append(producer_id)
        self._marker_offsets.append(last_offset)
        self._record(self._aborted, transaction, last_offset)
        return True

    def result(self) -> Transactions:
        """Return what is known so far."""
        still = sorted(self._open.values())
        return Transactions(
            np.array(self._aborted, np.int64).view(ABORTED_DTYPE),
            [OpenTransaction(producer_id, offset, timestamp) for offset, producer_id, timestamp in still],
            still[0][0] if still else None,
            np.array(self._undecided, np.int64).view(ABORTED_DTYPE),
        )

    @property
    def abort_markers(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Producer ids and offsets of all ABORT markers so far, also of those that ended nothing (TXN-R6)."""
        return np.array(self._marker_producers, np.int64), np.array(self._marker_offsets, np.int64)

    def drain(self) -> Drained:
        """Hand over what ended since the last call, and forget it: for logs without end.

        `result` and `abort_markers` then have none of it.
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
    """Records what begins and ends transactions in a part of a log, when it isn't known what is open before it.

    `add` and `abort` are those of the tracker. A tracker that replays the `events` of one part after the other has the
    same result as over the batches themselves.

    Parameters
    ----------
    check_crc, limits
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
        check_crc: bool = True,
        limits: Limits | None = None,
        events: npt.NDArray[np.void] | None = None,
    ) -> None:
        super().__init__(check_crc=check_crc, limits=limits)
        self._parts: list[npt.NDArray[np.void]] = []
        if events is not None:
            self.replay(events)

    @property
    def events(self) -> npt.NDArray[np.void]:
        """What was written down so far."""
        return np.concatenate([np.empty(0, EVENT_DTYPE), *self._parts])

    def replay(self, events: npt.NDArray[np.void]) -> None:
        """Write events down, but for the opening of what is open already."""
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
                # An entry of an index may end it or not: then the next batch may be needed again, and does no harm.
                self._open.pop(producer_id, None)
            elif producer_id not in self._open:
                self._open[producer_id] = (offset, producer_id, timestamp)
        self._parts.append(events[kept])

    def abort(self, producer_id: int, first_offset: int, last_offset: int) -> bool:
        """Record that a ``.txnindex`` lists a lost marker; the replay decides whether it applies."""
        event = (producer_id, first_offset, last_offset, NO_TIMESTAMP, _INDEXED_ABORT)
        self.replay(np.array([event], EVENT_DTYPE))
        return False

    def interrupt(self, offset: int) -> None:
        """Record damage that may have cost any markers: what is open stays undecided, and ends at `offset`."""
        self._parts.append(np.array([(_NOTHING, offset, offset, NO_TIMESTAMP, _INTERRUPTED)], EVENT_DTYPE))
        self._open.clear()
