"""Idempotent producers: which of their batches a broker appends, which it knows already, and which it refuses.

`SequenceChecker` is Kafka's ``ProducerStateManager`` with ``ProducerAppendInfo`` and ``ProducerStateEntry``, over batch
headers (SEQ-R1 to R6, PRD-R10 to R14).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.errors import (
    ErrorCode,
    FencedError,
    OutOfOrderSequenceError,
    RefusedError,
    TransactionStateError,
)
from kbatch.format import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    INT32_MAX,
    PRODUCER_DTYPE,
    BatchStatus,
    ControlType,
)
from kbatch.table import RecordTable
from kbatch.transactions import control_records

__all__ = ["VERDICT_DTYPE", "Refusal", "SequenceChecker"]

# What becomes of a batch: an `ErrorCode`, and the offset that a broker answers with, the first of the batch or of the
# one that it repeats; -1 for a batch that is refused.
VERDICT_DTYPE = np.dtype([("offset", "<i8"), ("error", "<i2")], align=True)

# ProducerStateEntry.NUM_BATCHES_TO_RETAIN, and so max.in.flight.requests.per.connection of idempotent producers.
_REMEMBERED = 5
# Rows that are Python numbers at a time.
_CHUNK = 1 << 16
_FIELDS = (
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "last_offset_delta",
    "attributes",
    "record_count",
    "base_offset",
    "last_offset",
    "max_timestamp",
)


class _Reason(enum.Enum):
    """Why a batch isn't appended: the error that says so, its code, and its text."""

    DUPLICATE = (
        RefusedError,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        "sequence {found} of producer {producer} again: the batch stands at offset {wanted}",
    )
    GAP = (
        OutOfOrderSequenceError,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        "sequence {found} of producer {producer}; after {wanted} comes {next}",
    )
    NEW_EPOCH = (
        OutOfOrderSequenceError,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        "sequence {found} begins epoch {wanted} of producer {producer}; an epoch begins at 0",
    )
    EPOCH = (
        FencedError,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "epoch {found} of producer {producer}, whose epoch {wanted} has been seen",
    )
    COORDINATOR = (
        FencedError,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        "marker for producer {producer} of coordinator epoch {found}; epoch {wanted} has been seen",
    )
    TRANSACTION = (
        TransactionStateError,
        ErrorCode.INVALID_TXN_STATE,
        "no transactional batch, but producer {producer} has a transaction open since offset {wanted}",
    )


class Refusal(NamedTuple):
    """A batch that no broker would have appended.

    Attributes
    ----------
    row : int
        Of the batch.
    code : ErrorCode
    text : str
        What was found and what was wanted.
    after : int
        Last offset of the producer's last batch before it; -1 if none is known.
    """

    row: int
    code: ErrorCode
    text: str
    after: int


class _Trouble(NamedTuple):
    reason: _Reason
    found: int
    wanted: int
    after: int = -1


class _Producer:
    """What is known of a producer: its entry in a snapshot, and its last batches.

    Of `batches` each is (first sequence, last sequence, first offset, last offset), the latest last.
    """

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_sequence", "timestamp", "transaction")

    def __init__(self) -> None:
        self.epoch = -1
        self.last_sequence = -1
        self.coordinator_epoch = -1
        self.timestamp = -1
        self.transaction = -1
        self.batches: deque[tuple[int, int, int, int]] = deque(maxlen=_REMEMBERED)

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.last_sequence = -1
        self.batches.clear()

    def marker_trouble(self, epoch: int, coordinator_epoch: int) -> _Trouble | None:
        """Say what is wrong with a marker. An equal epoch is right: it is that of the transaction, or of a retry."""
        if epoch < self.epoch:
            return _Trouble(_Reason.EPOCH, epoch, self.epoch)
        if coordinator_epoch < self.coordinator_epoch:
            return _Trouble(_Reason.COORDINATOR, coordinator_epoch, self.coordinator_epoch)
        return None

    def trouble(self, epoch: int, first: int, last: int, transactional: int) -> _Trouble | None:
        """Say what is wrong with a data batch, in the order in which a broker looks."""
        if epoch == self.epoch:
            for seen in self.batches:
                if seen[0] == first and seen[1] == last and first >= 0:
                    return _Trouble(_Reason.DUPLICATE, first, seen[2])
        elif epoch < self.epoch:
            return _Trouble(_Reason.EPOCH, epoch, self.epoch)
        after = self.batches[-1][3] if self.batches else -1
        # Of a producer that isn't known any sequence is right.
        if first >= 0 and self.epoch >= 0:
            if epoch != self.epoch:
                if first > 0:
                    return _Trouble(_Reason.NEW_EPOCH, first, epoch, after)
            elif first != (self.last_sequence + 1) & INT32_MAX:
                return _Trouble(_Reason.GAP, first, self.last_sequence, after)
        if self.transaction >= 0 and not transactional:
            return _Trouble(_Reason.TRANSACTION, -1, self.transaction)
        return None


class SequenceChecker:
    """Checks the sequence numbers of idempotent and transactional producers, as the leader of a partition does.

    Parameters
    ----------
    producers : ndarray of PRODUCER_DTYPE, optional
        What is known before the first batch, as `kbatch.log.read_producer_snapshot` gives it. Of a producer that isn't
        in it any sequence is accepted: its earlier batches may be gone (PRD-R11).
    expiration_ms : int, optional
        A producer is forgotten when its next batch is later than its last by this, in milliseconds and by the batches'
        own timestamps: ``producer.id.expiration.ms``, 86400000 by default in a broker, which goes by its clock. Default
        is never.

    Raises
    ------
    TypeError, ValueError
        If `producers` is no array of PRODUCER_DTYPE, or `expiration_ms` isn't positive.

    Notes
    -----
    A producer's next batch must begin with the sequence after its last one, 0 coming after 2147483647, and with 0 if
    its epoch is new. One with the same first and last sequence as one of the last five is a duplicate, which a broker
    doesn't append. An epoch lower than the last one is fenced off. A marker sets the epoch, which begins anew if it has
    risen (KIP-890), and ends the transaction. Batches without a producer id, control batches of KRaft and empty control
    batches (PRD-R14) are passed over; data batches without a sequence, which only a group coordinator writes, are not
    compared.

    Examples
    --------
    >>> import kbatch
    >>> def batch(sequence, offset):
    ...     return kbatch.scan(
    ...         kbatch.encode([b"a", b"b"], producer_id=7, producer_epoch=0, base_sequence=sequence, base_offset=offset)
    ...     )
    >>> checker = kbatch.SequenceChecker()
    >>> checker.check(batch(0, 100)).tolist(), checker.check(batch(2, 102)).tolist()
    ([(100, 0)], [(102, 0)])

    A producer that got no answer sends the first again, and then leaves one out:

    >>> checker.check(batch(0, 104)).tolist()
    [(100, 46)]
    >>> checker.check(batch(6, 104))
    Traceback (most recent call last):
    kbatch.errors.OutOfOrderSequenceError: byte 0, base offset 104: sequence 6 of producer 7; after 3 comes 4
    """

    def __init__(self, producers: npt.NDArray[np.void] | None = None, *, expiration_ms: int | None = None) -> None:
        if expiration_ms is not None and expiration_ms <= 0:
            raise ValueError(f"expiration_ms must be positive, got {expiration_ms}")
        self._expiration = expiration_ms
        self._producers: dict[int, _Producer] = {}
        if producers is None:
            return
        if producers.dtype != PRODUCER_DTYPE:
            raise TypeError(f"producers must have PRODUCER_DTYPE, got {producers.dtype}")
        for row in producers:
            producer = _Producer()
            producer.epoch = int(row["producer_epoch"])
            producer.last_sequence = last = int(row["last_sequence"])
            producer.coordinator_epoch = int(row["coordinator_epoch"])
            producer.timestamp = int(row["timestamp"])
            producer.transaction = int(row["current_txn_first_offset"])
            if row["last_offset"] >= 0:
                delta, offset = int(row["offset_delta"]), int(row["last_offset"])
                producer.batches.append(((last - delta) & INT32_MAX, last, offset - delta, offset))
            self._producers[int(row["producer_id"])] = producer

    def check(
        self,
        batches: npt.NDArray[np.void] | RecordTable,
        *,
        on_error: Literal["raise", "mark", "follow"] = "raise",
        source: str | None = None,
    ) -> npt.NDArray[np.void]:
        """Check batches in the order in which they are appended, and remember those that would be.

        Parameters
        ----------
        batches : ndarray of BATCH_DTYPE, or RecordTable
            As `kbatch.scan` gives them, with the offsets that they are appended at (`kbatch.assign_offsets`). Of a
            table, decoded with ``include_control=True``, markers tell their coordinator's epoch besides; damaged
            batches are passed over.
        on_error : {"raise", "mark", "follow"}
            What to do at a batch that a broker refuses: raise, the batches before it remembered; say so in its row and
            go on with the next; or the same, but remember it all the same, for it stands in the log.
        source : str, optional
            Path that errors name.

        Returns
        -------
        ndarray of VERDICT_DTYPE, shape (batches,)
            ``error`` is an `ErrorCode`: NONE, DUPLICATE_SEQUENCE_NUMBER, which a broker answers with NONE and the
            offset of the batch that it has, or that of a refusal. ``offset`` is that of the batch, of the one that it
            repeats, or -1.

        Raises
        ------
        OutOfOrderSequenceError
            If sequences are left out or go back further than five batches, or a new epoch doesn't begin at 0.
        FencedError
            If the epoch of the producer, or of the coordinator in a marker, is lower than one seen before.
        TransactionStateError
            If a producer with an open transaction writes outside of it.
        """
        if on_error not in ("raise", "mark", "follow"):
            raise ValueError(f"on_error must be 'raise', 'mark' or 'follow', got {on_error!r}")
        rows = batches.batches if isinstance(batches, RecordTable) else batches
        verdicts = np.empty(len(rows), VERDICT_DTYPE)
        verdicts["offset"], verdicts["error"] = rows["base_offset"], ErrorCode.NONE
        for row, trouble in self._troubles(batches, follow=on_error == "follow"):
            if trouble.reason is _Reason.DUPLICATE:
                verdicts[row] = trouble.wanted, ErrorCode.DUPLICATE_SEQUENCE_NUMBER
            elif on_error == "raise":
                raise _error(rows[row], trouble, source)
            else:
                verdicts[row] = -1, trouble.reason.value[1]
        return verdicts

    def refusals(self, batches: npt.NDArray[np.void] | RecordTable) -> list[Refusal]:
        """Say which batches of a log no broker would have appended, and why; all but repeated ones are remembered.

        Parameters
        ----------
        batches : ndarray of BATCH_DTYPE, or RecordTable
            As for `check`.

        Returns
        -------
        list of Refusal
        """
        rows = batches.batches if isinstance(batches, RecordTable) else batches
        return [
            Refusal(row, trouble.reason.value[1], _text(rows[row], trouble), trouble.after)
            for row, trouble in self._troubles(batches, follow=True)
        ]

    def _troubles(self, batches: npt.NDArray[np.void] | RecordTable, *, follow: bool) -> Iterator[tuple[int, _Trouble]]:
        """Remember batches, and yield the rows of those that a broker doesn't append; with `follow`, after all.

        The loop has Python objects for the fields of a batch, never for a record.
        """
        coordinators: dict[int, int] = {}
        if isinstance(batches, RecordTable):
            markers = control_records(batches)
            ends = np.isin(markers["type"], (ControlType.ABORT, ControlType.COMMIT))
            markers = markers[ends & (markers["valid"] != 0)]
            coordinators = dict(zip(markers["batch"].tolist(), markers["coordinator_epoch"].tolist(), strict=True))
            batches = batches.batches
        chosen = np.flatnonzero(
            (batches["magic"] == 2) & (batches["producer_id"] >= 0) & BatchStatus.sound(batches["status"])
        )
        producers = self._producers
        for start in range(0, len(chosen), _CHUNK):
            rows = chosen[start : start + _CHUNK]
            part = batches[rows]
            for row, producer_id, epoch, first, delta, attributes, count, offset, last_offset, timestamp in zip(
                rows.tolist(), *(part[name].tolist() for name in _FIELDS), strict=True
            ):
                control = attributes & ATTRIBUTE_CONTROL
                if control and not count:
                    continue
                producer = producers.get(producer_id)
                if producer is None or (self._expiration is not None and self._expired(producer, timestamp)):
                    producer = producers[producer_id] = _Producer()
                if control:
                    coordinator = coordinators.get(row, producer.coordinator_epoch)
                    trouble = producer.marker_trouble(epoch, coordinator)
                    if trouble is not None:
                        yield row, trouble
                        if not follow:
                            continue
                    if epoch != producer.epoch:
                        producer.begin_epoch(epoch)
                    producer.coordinator_epoch = coordinator
                    producer.transaction = -1
                    producer.timestamp = timestamp
                    continue
                # DefaultRecordBatch.lastSequence: by offsets, not by the count (SEQ-R3).
                last = (first + delta) & INT32_MAX if first >= 0 else -1
                transactional = attributes & ATTRIBUTE_TRANSACTIONAL
                in_order = epoch == producer.epoch and first == (producer.last_sequence + 1) & INT32_MAX
                if not in_order or (producer.transaction >= 0 and not transactional):
                    trouble = producer.trouble(epoch, first, last, transactional)
                    if trouble is not None:
                        yield row, trouble
                        if not follow or trouble.reason is _Reason.DUPLICATE:
                            continue
                    if epoch != producer.epoch:
                        producer.begin_epoch(epoch)
                if transactional and producer.transaction < 0:
                    producer.transaction = offset
                producer.batches.append((first, last, offset, last_offset))
                producer.last_sequence = last
                producer.timestamp = timestamp

    def _expired(self, producer: _Producer, timestamp: int) -> bool:
        # ProducerStateManager.isProducerExpired: never within a transaction.
        return (
            self._expiration is not None
            and producer.transaction < 0
            and timestamp - producer.timestamp >= self._expiration
        )

    def __len__(self) -> int:
        """Return the number of producers that are known."""
        return len(self._producers)

    def producers(self) -> npt.NDArray[np.void]:
        """Return what is known of producers now, as a snapshot has it.

        Returns
        -------
        ndarray of PRODUCER_DTYPE, shape (producers,)
            In the order in which they were first seen. Of each producer's last batches a snapshot keeps the last one.
        """
        rows = np.empty(len(self._producers), PRODUCER_DTYPE)
        for row, (id_, producer) in enumerate(self._producers.items()):
            _, last, offset, last_offset = producer.batches[-1] if producer.batches else (-1, -1, -1, -1)
            rows[row] = (
                id_,
                last_offset,
                producer.timestamp,
                producer.transaction,
                last,
                last_offset - offset,
                producer.coordinator_epoch,
                producer.epoch,
            )
        return rows


def _text(row: np.void, trouble: _Trouble) -> str:
    text: str = trouble.reason.value[2]
    following = (trouble.wanted + 1) & INT32_MAX
    return text.format(found=trouble.found, wanted=trouble.wanted, next=following, producer=row["producer_id"])


def _error(row: np.void, trouble: _Trouble, source: str | None) -> RefusedError:
    kind: type[RefusedError]
    kind, code, _ = trouble.reason.value
    position, offset = int(row["position"]), int(row["base_offset"])
    where = f"{source}, byte {position}" if source else f"byte {position}"
    message = f"{where}, base offset {offset}: {_text(row, trouble)}"
    return kind(message, code=code, source=source, position=position, base_offset=offset)
