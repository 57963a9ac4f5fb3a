"""Transactions: control records, what is aborted, what is still open, and which batches read_committed leaves out.

A transaction is the transactional batches of a producer id up to the marker, a control batch, that decides them. The
rules are those of Kafka: of its broker (``ProducerStateManager``, ``TransactionIndex``) for what a log says about its
transactions, and of its consumer (``CompletedFetch``) for what a fetch response does.
"""

from __future__ import annotations

import heapq
import operator
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.checksums import good_crcs
from kbatch.codecs import Arena, PayloadError, decompress
from kbatch.format import (
    ABORTED_DTYPE,
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER_SIZE,
    CONTROL_DTYPE,
    NO_TIMESTAMP,
    RECORD_DTYPE,
    ControlType,
    Limits,
)
from kbatch.kernels import decode as _kernel

if TYPE_CHECKING:
    from kbatch.table import RecordTable

__all__ = [
    "EVENT_DTYPE",
    "AbortedRanges",
    "ListedAborts",
    "OpenTransaction",
    "TransactionRecorder",
    "TransactionTracker",
    "Transactions",
    "control_records",
    "lost_markers",
]

_INT64 = np.iinfo(np.int64)
# Sizes of a control record's key, int16 version and int16 type, and of a marker's value, int16 version and int32
# coordinator epoch; more bytes than these are ignored (CTL-R1, CTL-R3).
_KEY_SIZE = 4
_MARKER_SIZE = 6
_MAX_VARINT = 5
# A marker of Kafka takes 78 bytes. What has a bad checksum and is larger than this is no marker that was damaged.
_MAX_MARKER_SIZE = 128

# What a batch is to the tracker: a marker by its type, or one of these. An entry of a .txnindex may stand for one.
_LOST = -2
_NOTHING = -1
_DATA = 2
_INDEXED_ABORT = 3

# What opens transactions and what ends them, in the order of a log: the base offset of a batch and its last; of an
# entry of a .txnindex the transaction's first offset and that of its marker.
EVENT_DTYPE = np.dtype(
    [("producer_id", "<i8"), ("offset", "<i8"), ("last_offset", "<i8"), ("timestamp", "<i8"), ("kind", "<i8")]
)


# -- control records


def _bytes_at(data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
    """Gather `width` bytes at each of `positions`; shape (positions, width)."""
    gathered: npt.NDArray[np.uint8] = data[positions[:, np.newaxis] + np.arange(width)]
    return gathered


def _control_keys(
    records: npt.NDArray[np.void], data: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16], npt.NDArray[np.bool_]]:
    """Read the keys of control records: their version (-1 if there is none), their type, and whether they hold it."""
    version = np.full(len(records), -1, np.int16)
    kind = np.full(len(records), -1, np.int16)
    long = np.flatnonzero(records["key_len"] >= _KEY_SIZE)
    fields = _bytes_at(data, records["key_pos"][long], _KEY_SIZE).view(">i2")
    version[long], kind[long] = fields[:, 0], fields[:, 1]
    valid = version >= 0
    kind[~valid] = -1
    return version, kind, valid


def control_records(table: RecordTable) -> npt.NDArray[np.void]:
    """Read what the control records of a table say.

    Parameters
    ----------
    table : RecordTable
        Decoded with ``include_control=True``; without it a table has no control records.

    Returns
    -------
    ndarray of CONTROL_DTYPE, shape (control records,)
        One row a record of a control batch, in order. ``record`` and ``batch`` are its rows in ``table.records`` and
        ``table.batches``. ``type`` is the id in the key, a `ControlType` or one of a later Kafka (CTL-R2), and -1 where
        the key is null, too short or of a negative version; ``version`` is that of the key, -1 where it has none.
        ``coordinator_epoch`` is from the value of an ABORT or COMMIT, else -1. ``valid`` is 0 where the key, or the
        value of an ABORT or COMMIT, can't be read (CTL-R1, CTL-R3).

    Notes
    -----
    Kafka's ``ControlRecordType.parse`` and ``EndTransactionMarker.deserialize``. A newer version is read as version 0.

    Examples
    --------
    >>> import kbatch
    >>> from kbatch.transactions import control_records
    >>> marker = bytes.fromhex(
    ...     "0000000000000007" "00000042" "ffffffff" "02" "0bce4676" "0030" "00000000" "00000000000003e8"
    ...     "00000000000003e8" "0000000000000007" "0000" "ffffffff" "00000001"
    ...     "20" "00" "00" "00" "08" "00000000" "0c" "000000000000" "00"
    ... )
    >>> rows = control_records(kbatch.decode(marker, include_control=True))
    >>> rows[["offset", "producer_id", "type", "coordinator_epoch", "valid"]].tolist()
    [(7, 7, 0, 0, 1)]
    """
    table.require("offset", "timestamp", "key", "value")
    batches = table.batches
    control = np.flatnonzero(((batches["attributes"] & ATTRIBUTE_CONTROL) != 0) & (batches["magic"] == 2))
    first = batches["first_record"]
    counts = np.append(first[1:], len(table.records))[control] - first[control]
    before = np.cumsum(counts) - counts
    rows = np.repeat(first[control] - before, counts) + np.arange(counts.sum())
    records = table.records[rows]
    batch = records["batch"]

    out = np.empty(len(rows), CONTROL_DTYPE)
    out["record"] = rows
    out["batch"] = batch
    for name in ("offset", "timestamp"):
        out[name] = records[name]
    for name in ("producer_id", "producer_epoch"):
        out[name] = batches[name][batch]
    version, kind, valid = _control_keys(records, table.data)
    out["version"], out["type"] = version, kind
    out["coordinator_epoch"] = -1
    marker = valid & ((kind == ControlType.ABORT) | (kind == ControlType.COMMIT))
    long = np.flatnonzero(marker & (records["value_len"] >= _MARKER_SIZE))
    value = _bytes_at(table.data, records["value_pos"][long], _MARKER_SIZE).view(">i2")
    whole = value[:, 0] >= 0
    long = long[whole]
    out["coordinator_epoch"][long] = np.ascontiguousarray(value[whole, 1:]).view(">i4")[:, 0]
    valid[marker] = False
    valid[long] = True
    out["valid"] = valid
    return out


# -- what a log says


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
    """What the markers of a log say about its transactions.

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
        Transactions that ended with a marker that is damaged, in the order of their markers: whether they were
        committed or aborted nothing tells. Their own records are withheld, but they hold back nothing else.

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


def lost_markers(batches: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Tell which batches of a bad checksum are markers that were damaged, by their headers.

    Parameters
    ----------
    batches : ndarray of BATCH_DTYPE
        Their checksums are not looked at.

    Returns
    -------
    ndarray of bool, shape (batches,)
        True for uncompressed transactional control batches of one record, and no larger than markers are.
    """
    attributes = batches["attributes"]
    both = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL
    out: npt.NDArray[np.bool_] = (
        (attributes & (both | ATTRIBUTE_CODEC) == both)
        & (batches["magic"] == 2)
        & (batches["producer_id"] >= 0)
        & (batches["record_count"] == 1)
        & (batches["size"] <= _MAX_MARKER_SIZE)
    )
    return out


def _by_producer(producer_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Return the order that brings the rows of a producer together and keeps them in theirs."""
    least = producer_ids.min()
    if producer_ids.max() - least < 1 << 16:
        # A coordinator's ids are neighbours. Small integers are sorted by their digits, ten times as fast.
        return np.argsort((producer_ids - least).astype(np.uint16), kind="stable")
    return np.argsort(producer_ids, kind="stable")


def _require_bytes(data: npt.NDArray[np.uint8], rows: npt.NDArray[np.void], origin: int) -> None:
    """Refuse rows whose bytes aren't in `data`: the kernels believe them."""
    start = rows["position"] - origin
    size = rows["size"]
    if np.any((start < 0) | (size < BATCH_HEADER_SIZE) | (size > len(data) - start)):
        raise ValueError(f"rows of batches lie outside of the {len(data)} bytes that begin at {origin}")


def _first_record_sizes(
    data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the bytes that the first record of each payload takes; where it has no length, those of the payload."""
    at = np.minimum(np.arange(_MAX_VARINT), sizes[:, np.newaxis] - 1)
    raw = data[positions[:, np.newaxis] + at].astype(np.int64)
    ends = raw < 0x80
    last = ends.argmax(axis=1)
    within = np.arange(_MAX_VARINT) <= last[:, np.newaxis]
    number = (np.where(within, raw & 0x7F, 0) << 7 * np.arange(_MAX_VARINT)).sum(axis=1)
    # As the kernel reads it: of 32 bits, zig-zag (VAR-R2).
    number &= 0xFFFFFFFF
    length = np.where(number & 1, -1, number >> 1) + last + 1
    return np.where(ends.any(axis=1) & (length > last + 1) & (length < sizes), length, sizes)


def _marker_types(
    data: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.void],
    origin: int,
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
) -> npt.NDArray[np.int16]:
    """Return the type of each control batch, -1 where its first record can't be read.

    As in Kafka nothing after the first record is looked at (CTL-R4), unless it should be the only one. `rows` is
    written to.
    """
    several = np.flatnonzero((rows["record_count"] > 1) & (sizes > 0))
    sizes[several] = _first_record_sizes(data, positions[several], sizes[several])
    rows["record_count"] = 1
    rows["status"] = 0
    records = np.empty(len(rows), RECORD_DTYPE)
    at = used = 0
    while at < len(rows):
        at, used, fault, *_ = _kernel.decode(
            data, rows, at, len(rows), origin, positions[at:], sizes[at:], records, used, True, False, False, 0, 0
        )
        at += fault != 0
    records = records[:used]
    types = np.full(len(rows), -1, np.int16)
    types[records["batch"]] = _control_keys(records, data)[1]
    return types


class TransactionTracker:
    """Follows the transactions of a log from batch to batch.

    It needs the headers of all batches, and of the bytes only the markers and the first batches of transactions. What
    it keeps is in proportion to the transactions.

    Parameters
    ----------
    open : iterable of OpenTransaction, optional
        The transactions that were open where the log begins, from a producer snapshot (TXI-R7).
    check_crc : bool
        Whether to believe only batches whose checksum holds: a marker decides a transaction, and a batch that opens
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
        self._check_crc = check_crc
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
            Which of them are markers that were damaged (`lost_markers`), so that what they say isn't believed. Those
            that the tracker itself finds to be so, if it checks checksums, need not be told.

        Raises
        ------
        ValueError
            If a batch that is needed doesn't lie in `data`.
        """
        attributes = batches["attributes"] & (ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL)
        if not attributes.any():
            return
        chosen = np.flatnonzero((attributes != 0) & (batches["producer_id"] >= 0) & (batches["magic"] == 2))
        kinds = np.full(len(chosen), _DATA, np.int16)
        control = np.flatnonzero(attributes[chosen] & ATTRIBUTE_CONTROL)
        kinds[control] = self._markers(data, batches[chosen[control]], origin)
        if lost is not None:
            kinds[lost[chosen]] = _LOST
        relevant = kinds != _NOTHING
        chosen, kinds = chosen[relevant], kinds[relevant]
        if not len(chosen):
            return

        # Events of a producer side by side: of a run of data only its first batch matters.
        producer_ids = batches["producer_id"][chosen]
        order = _by_producer(producer_ids)
        grouped = producer_ids[order]
        is_data = kinds[order] == _DATA
        starts = np.ones(len(order), np.bool_)
        starts[1:] = grouped[1:] != grouped[:-1]
        opens = is_data.copy()
        opens[1:] &= starts[1:] | ~is_data[:-1]
        if self._check_crc:
            ends = np.append(starts[1:], True)
            ends[:-1] |= kinds[order[1:]] == _LOST
            ends &= is_data
            self._drop_damaged(data, batches, origin, chosen[order], grouped, starts, ends, opens)
        events = np.sort(order[opens | ~is_data])
        rows = batches[chosen[events]]
        out = np.empty(len(rows), EVENT_DTYPE)
        out["producer_id"], out["offset"], out["last_offset"] = (
            rows[name] for name in ("producer_id", "base_offset", "last_offset")
        )
        horizon = (rows["attributes"] & ATTRIBUTE_DELETE_HORIZON) != 0
        out["timestamp"] = np.where(horizon, NO_TIMESTAMP, rows["base_timestamp"])
        out["kind"] = kinds[events]
        self.replay(out)

    def _markers(self, data: npt.NDArray[np.uint8], rows: npt.NDArray[np.void], origin: int) -> npt.NDArray[np.int16]:
        """Tell ABORT, COMMIT, a lost marker and nothing apart.

        An empty control batch is nothing, nor is one of an unknown type (TXN-R10).
        """
        kinds = np.full(len(rows), _NOTHING, np.int16)
        _require_bytes(data, rows, origin)
        wanted = rows["record_count"] > 0
        if self._check_crc:
            good = good_crcs(data, rows, origin)
            wanted &= good
        packed = (rows["attributes"] & ATTRIBUTE_CODEC) != 0
        plain = np.flatnonzero(wanted & ~packed)
        positions = rows["position"] - (origin - BATCH_HEADER_SIZE)
        sizes = rows["size"] - BATCH_HEADER_SIZE
        kinds[plain] = _marker_types(data, rows[plain], origin, positions[plain], sizes[plain])
        arena = Arena()
        for i in np.flatnonzero(wanted & packed).tolist():
            arena.used = 0
            start, size = int(positions[i]), int(sizes[i])
            codec = int(rows["attributes"][i]) & ATTRIBUTE_CODEC
            try:
                decompress(codec, data.data[start : start + size], arena, self._limits.max_decompressed_bytes)
            except PayloadError:
                continue
            whole = np.array([arena.used])
            kinds[i] = _marker_types(arena.array(), rows[i : i + 1].copy(), 0, np.zeros(1, np.int64), whole)[0]
        kinds[(kinds != ControlType.ABORT) & (kinds != ControlType.COMMIT)] = _NOTHING
        if self._check_crc:
            kinds[~good & lost_markers(rows)] = _LOST
        return kinds

    def _drop_damaged(
        self,
        data: npt.NDArray[np.uint8],
        batches: npt.NDArray[np.void],
        origin: int,
        rows: npt.NDArray[np.intp],
        producer_ids: npt.NDArray[np.int64],
        starts: npt.NDArray[np.bool_],
        is_last: npt.NDArray[np.bool_],
        opens: npt.NDArray[np.bool_],
    ) -> None:
        """Let no batch with a bad checksum open what nothing decides: take the next good one of the run, or none.

        `is_last` are the last batches of such runs.
        """
        ends = np.flatnonzero(is_last) + 1
        opening = np.flatnonzero(opens)
        opening = opening[np.searchsorted(opening, ends) - 1]
        known = np.fromiter((p in self._open for p in producer_ids[opening].tolist()), np.bool_, len(opening))
        new = ~(known & starts[opening])
        opening, ends = opening[new], ends[new]
        first = batches[rows[opening]]
        _require_bytes(data, first, origin)
        bad = np.flatnonzero(~good_crcs(data, first, origin))
        for at, end in zip(opening[bad].tolist(), ends[bad].tolist(), strict=True):
            opens[at] = False
            i, count = at + 1, 1
            while i < end:
                following = batches[rows[i : min(i + count, end)]]
                _require_bytes(data, following, origin)
                good = np.flatnonzero(good_crcs(data, following, origin))
                if len(good):
                    opens[i + good[0]] = True
                    break
                i, count = i + count, 2 * count

    def replay(self, events: npt.NDArray[np.void]) -> None:
        """Go through what a `TransactionRecorder` has written down of the next part of the log.

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
        """Apply an ABORT marker whose batch is lost, but which an entry of a ``.txnindex`` tells of.

        It has its place in the log: after what was added before, and before what is added next.

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

    def drain(self) -> tuple[npt.NDArray[np.void], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Hand over what was decided since the last call, and forget it: for logs without end.

        What lost markers left undecided is kept.

        Returns
        -------
        aborted : ndarray of ABORTED_DTYPE
            As in `result`, which has them no more.
        abort_markers : (producer ids, offsets)
            As in the property, which has them no more.
        """
        aborted, markers = np.array(self._aborted, np.int64).view(ABORTED_DTYPE), self.abort_markers
        for column in (self._aborted, self._marker_producers, self._marker_offsets):
            del column[:]
        return aborted, markers


class TransactionRecorder(TransactionTracker):
    """Writes down what a part of a log says about transactions, where it isn't known what is open before it.

    `add` and `abort` are those of the tracker. A tracker that replays the `events` of one part after the other comes to
    what it would have come to over the batches themselves.

    Parameters
    ----------
    check_crc, limits
        As for the tracker.
    events : ndarray of EVENT_DTYPE, optional
        Those of a recorder that came before: it is gone on with.

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
        """Write down that an entry of a ``.txnindex`` tells of a marker; whether it is applied shows in the replay."""
        event = (producer_id, first_offset, last_offset, NO_TIMESTAMP, _INDEXED_ABORT)
        self.replay(np.array([event], EVENT_DTYPE))
        return False


# -- what read_committed leaves out


class _Pairs:
    """Searches in pairs of a producer id and an offset, which come sorted."""

    __slots__ = ("_keys", "_offsets", "_producers", "_stride")

    def __init__(self, producer_ids: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> None:
        # A pair becomes one number by the ranks of both: numpy searches numbers.
        self._producers = np.unique(producer_ids)
        self._offsets = np.unique(offsets)
        self._stride = len(self._offsets) + 1
        self._keys = self._key(producer_ids, np.searchsorted(self._offsets, offsets))

    def _key(self, producer_ids: npt.NDArray[np.int64], ranks: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        return np.searchsorted(self._producers, producer_ids) * self._stride + ranks

    def count(
        self, producer_ids: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], *, included: bool
    ) -> npt.NDArray[np.intp]:
        """Return how many pairs stand before each that is given, or if `included` up to it.

        For a producer id that none of the pairs has the answer means nothing.
        """
        ranks = np.searchsorted(self._offsets, offsets, "right" if included else "left")
        return np.searchsorted(self._keys, self._key(producer_ids, ranks))


class AbortedRanges:
    """The offsets that aborted transactions take, by producer: which batches read_committed leaves out.

    Ranges of a producer may overlap and be given twice. The object is small and can be pickled.

    Parameters
    ----------
    producer_id, first_offset, last_offset : ndarray of int64, shape (ranges,)
        From the first batch of a transaction to its marker, both inclusive; in any order.

    Attributes
    ----------
    producer_id, first_offset, last_offset : ndarray of int64, read-only
        Sorted by producer id and first offset. `last_offset` doesn't descend within a producer: it is the last that
        this range or one before it reaches. Ranges within others are left out.

    Examples
    --------
    >>> from kbatch.transactions import AbortedRanges
    >>> ranges = AbortedRanges.from_list([(7, 0), (7, 20)], ([7], [9]))
    >>> ranges.first_offset.tolist(), ranges.last_offset.tolist()
    ([0, 20], [9, 9223372036854775807])
    >>> len(ranges.within(10, 20))
    0
    """

    __slots__ = ("_pairs", "first_offset", "last_offset", "producer_id")

    def __init__(self, producer_id: npt.ArrayLike, first_offset: npt.ArrayLike, last_offset: npt.ArrayLike) -> None:
        producers = np.asarray(producer_id, np.int64)
        first = np.asarray(first_offset, np.int64)
        last = np.asarray(last_offset, np.int64)
        if producers.ndim != 1 or producers.shape != first.shape or producers.shape != last.shape:
            raise ValueError(
                "producer_id, first_offset and last_offset must be one-dimensional and of one length, got shapes "
                f"{producers.shape}, {first.shape} and {last.shape}"
            )
        order = np.lexsort((first, producers))
        producers, first, last = producers[order], first[order], last[order]
        if len(order):
            # The running maximum within each producer: on ranks of offsets, raised from producer to producer.
            lasts, ranks = np.unique(last, return_inverse=True)
            starts = np.ones(len(order), np.bool_)
            starts[1:] = producers[1:] != producers[:-1]
            reach = np.maximum.accumulate(np.cumsum(starts) * len(lasts) + ranks)
            kept = starts
            kept[1:] |= reach[1:] > reach[:-1]
            producers, first, last = producers[kept], first[kept], lasts[reach[kept] % len(lasts)]
        for column in (producers, first, last):
            column.flags.writeable = False
        self.producer_id: npt.NDArray[np.int64] = producers
        self.first_offset: npt.NDArray[np.int64] = first
        self.last_offset: npt.NDArray[np.int64] = last
        self._pairs = _Pairs(producers, first)

    def __reduce__(self) -> tuple[object, ...]:
        return AbortedRanges, self._columns()

    def __len__(self) -> int:
        return len(self.producer_id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AbortedRanges):
            return NotImplemented
        columns = zip(self._columns(), other._columns(), strict=True)
        return all(np.array_equal(mine, theirs) for mine, theirs in columns)

    def __hash__(self) -> int:
        return hash(tuple(column.tobytes() for column in self._columns()))

    def _columns(self) -> tuple[npt.NDArray[np.int64], ...]:
        return self.producer_id, self.first_offset, self.last_offset

    def __repr__(self) -> str:
        return f"<AbortedRanges: {len(self)} ranges of {len(np.unique(self.producer_id))} producers>"

    @classmethod
    def from_transactions(cls, transactions: Transactions) -> AbortedRanges:
        """Take the aborted transactions of a log."""
        return cls.from_rows(transactions.aborted)

    @classmethod
    def from_rows(cls, aborted: npt.NDArray[np.void]) -> AbortedRanges:
        """Take aborted transactions as rows of ABORTED_DTYPE."""
        return cls(aborted["producer_id"], aborted["first_offset"], aborted["last_offset"])

    @classmethod
    def from_list(
        cls, aborted: Iterable[tuple[int, int]], abort_markers: tuple[npt.ArrayLike, npt.ArrayLike]
    ) -> AbortedRanges:
        """Take the aborted transactions that a fetch response lists.

        Parameters
        ----------
        aborted : iterable of (producer id, first offset)
            In any order, also repeated (TXN-R1); those that begin before the response's data or after it do no harm
            (TXN-R7).
        abort_markers : (producer ids, offsets)
            The ABORT markers in the response's data; see `TransactionTracker.abort_markers`.

        Returns
        -------
        AbortedRanges
            Each entry ends at the first ABORT marker of its producer at or after its first offset, and without one
            nowhere (TXN-R2, TXN-R8). COMMIT markers change nothing (TXN-R4).

        Raises
        ------
        TypeError
            If an entry isn't a pair of integers.
        ValueError
            If it has more or less than two, or one that no int64 holds.
        """
        listed = ListedAborts(aborted)
        listed.close(abort_markers)
        return listed.ranges()

    def mask(self, batches: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Tell which batches belong to aborted transactions.

        Parameters
        ----------
        batches : ndarray of BATCH_DTYPE

        Returns
        -------
        ndarray of bool, shape (batches,)
            True for transactional batches that lie in a range of their producer. Never for control batches, for those
            without a producer id and for what a producer wrote outside of transactions (TXN-R3, TXN-R13).
        """
        out = np.zeros(len(batches), np.bool_)
        if not len(self):
            return out
        kind = batches["attributes"] & (ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL)
        rows = np.flatnonzero(
            (kind == ATTRIBUTE_TRANSACTIONAL) & (batches["producer_id"] >= 0) & (batches["magic"] == 2)
        )
        producers, first = batches["producer_id"][rows], batches["base_offset"][rows]
        last = batches["last_offset"][rows]
        # Of the ranges that begin up to a batch's end the latest reaches farthest.
        at = self._pairs.count(producers, last, included=True) - 1
        out[rows] = (at >= 0) & (self.producer_id[at] == producers) & (self.last_offset[at] >= first)
        return out

    def within(self, start: int, stop: int) -> AbortedRanges:
        """Return the ranges that reach into offsets from `start` up to but without `stop`.

        A batch that reaches beyond these offsets is told apart by them as well: a transaction begins with a batch.
        """
        chosen = (self.first_offset < stop) & (self.last_offset >= start)
        return AbortedRanges(self.producer_id[chosen], self.first_offset[chosen], self.last_offset[chosen])


class ListedAborts:
    """The aborted transactions that a fetch response lists, closed by the markers as these come.

    Parameters
    ----------
    aborted : iterable of (producer id, first offset)
        See `AbortedRanges.from_list`.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        pairs = np.array([_checked_pair(i, entry) for i, entry in enumerate(aborted)], np.int64).reshape(-1, 2)
        self._producers, self._first = pairs[:, 0], pairs[:, 1]
        self._last = np.full(len(pairs), _INT64.max, np.int64)
        self._ranges: AbortedRanges | None = None

    def close(self, abort_markers: tuple[npt.ArrayLike, npt.ArrayLike]) -> None:
        """Let each entry that is open end at the first of these ABORT markers at or after its first offset (TXN-R2)."""
        marker_producers = np.asarray(abort_markers[0], np.int64)
        marker_offsets = np.asarray(abort_markers[1], np.int64)
        still = np.flatnonzero(self._last == _INT64.max)
        if not len(marker_producers) or not len(still):
            return
        order = np.lexsort((marker_offsets, marker_producers))
        marker_producers, marker_offsets = marker_producers[order], marker_offsets[order]
        producers = self._producers[still]
        at = _Pairs(marker_producers, marker_offsets).count(producers, self._first[still], included=False)
        there = at < len(order)
        at[~there] = 0
        there &= marker_producers[at] == producers
        if there.any():
            self._last[still[there]] = marker_offsets[at[there]]
            self._ranges = None

    def ranges(self) -> AbortedRanges:
        """Return what the entries take by now; those without a marker end nowhere (TXN-R8)."""
        if self._ranges is None:
            self._ranges = AbortedRanges(self._producers, self._first, self._last)
        return self._ranges


def _checked_pair(number: int, entry: Any) -> tuple[int, int]:
    try:
        values = tuple(map(operator.index, entry))
    except TypeError:
        raise TypeError(
            f"aborted: entry {number} must be a pair of integers (producer id, first offset), got {entry!r}"
        ) from None
    if len(values) != 2:
        raise ValueError(f"aborted: entry {number} must be (producer id, first offset), got {entry!r}")
    if not all(_INT64.min <= value <= _INT64.max for value in values):
        raise ValueError(f"aborted: entry {number} holds a number that is no int64: {entry!r}")
    return values[0], values[1]
