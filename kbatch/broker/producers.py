"""Idempotent producers: which of their batches a broker appends, recognizes as duplicates, or refuses.

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

from kbatch.arguments import check_types
from kbatch.errors import (
    ErrorCode,
    FencedError,
    OutOfOrderSequenceError,
    RefusedError,
    TransactionStateError,
    error_at,
)
from kbatch.escaping import counted
from kbatch.format import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    INT32_MAX,
    PRODUCER_DTYPE,
    BatchStatus,
    ControlType,
)
from kbatch.public_names import public_in
from kbatch.table import RecordTable
from kbatch.transactions import control_records

__all__ = ["VERDICT_DTYPE", "Refusal", "SequenceChecker"]

# The broker's answer for a batch: an `ErrorCode`, and the first offset of the batch, or of the earlier batch if it
# is a duplicate; -1 if the batch is refused.
VERDICT_DTYPE = np.dtype([("offset", "<i8"), ("error", "<i2")], align=True)

# ProducerStateEntry.NUM_BATCHES_TO_RETAIN, which limits max.in.flight.requests.per.connection of idempotent producers.
_REMEMBERED = 5
# Batches whose fields are converted to Python numbers at a time.
_CHUNK_ROWS = 1 << 16
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
    """Why a batch is not appended: the exception, its code, and its text."""

    DUPLICATE = (
        RefusedError,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        "sequence {found} of producer {producer} is a duplicate of the batch at offset {known}",
    )
    GAP = (
        OutOfOrderSequenceError,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        "sequence {found} of producer {producer}; expected {next} after {known}",
    )
    NEW_EPOCH = (
        OutOfOrderSequenceError,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        "sequence {found} begins epoch {known} of producer {producer}; an epoch begins with sequence 0",
    )
    EPOCH = (
        FencedError,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        "epoch {found} of producer {producer} after its epoch {known}",
    )
    COORDINATOR = (
        FencedError,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        "marker for producer {producer} of coordinator epoch {found} after coordinator epoch {known}",
    )
    TRANSACTION = (
        TransactionStateError,
        ErrorCode.INVALID_TXN_STATE,
        "the batch is not transactional, but producer {producer} has a transaction open since offset {known}",
    )


class Refusal(NamedTuple):
    """A batch that no broker would have appended.

    Attributes
    ----------
    row : int
        Row of the batch.
    code : ErrorCode
    text : str
        The reason, with the values found and expected.
    after : int
        Last offset of the producer's previous batch; -1 if none is known.
    """

    row: int
    code: ErrorCode
    text: str
    after: int


class _Violation(NamedTuple):
    """A rule that a batch breaks, with its own value and the value known before it."""

    reason: _Reason
    found: int
    known: int
    after: int = -1

    @property
    def code(self) -> ErrorCode:
        code: ErrorCode = self.reason.value[1]
        return code

    def text(self, batch: np.void) -> str:
        text: str = self.reason.value[2]
        following = (self.known + 1) & INT32_MAX
        return text.format(found=self.found, known=self.known, next=following, producer=batch["producer_id"])


class _Producer:
    """The state of a producer: the fields of its snapshot entry, and its last batches.

    `batches` contains (first sequence, last sequence, first offset, last offset), the latest last.
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

    def marker_violation(self, epoch: int, coordinator_epoch: int) -> _Violation | None:
        """Check a marker. Its epoch may be equal: the transaction or a retry has the same epoch."""
        if epoch < self.epoch:
            return _Violation(_Reason.EPOCH, epoch, self.epoch)
        if coordinator_epoch < self.coordinator_epoch:
            return _Violation(_Reason.COORDINATOR, coordinator_epoch, self.coordinator_epoch)
        return None

    def violation(self, epoch: int, first: int, last: int, transactional: int) -> _Violation | None:
        """Check a data batch, in the broker's order."""
        if epoch == self.epoch:
            for seen in self.batches:
                if seen[0] == first and seen[1] == last and first >= 0:
                    return _Violation(_Reason.DUPLICATE, first, seen[2])
        elif epoch < self.epoch:
            return _Violation(_Reason.EPOCH, epoch, self.epoch)
        after = self.batches[-1][3] if self.batches else -1
        # Any sequence is accepted from an unknown producer.
        if first >= 0 and self.epoch >= 0:
            if epoch != self.epoch:
                if first > 0:
                    return _Violation(_Reason.NEW_EPOCH, first, epoch, after)
            elif first != (self.last_sequence + 1) & INT32_MAX:
                return _Violation(_Reason.GAP, first, self.last_sequence, after)
        if self.transaction >= 0 and not transactional:
            return _Violation(_Reason.TRANSACTION, -1, self.transaction)
        return None


def _batch_rows(batches: npt.NDArray[np.void] | RecordTable) -> npt.NDArray[np.void]:
    rows = batches.batches if isinstance(batches, RecordTable) else batches
    if rows.dtype.names is None or not {"base_offset", "producer_id", "status"} <= {*rows.dtype.names}:
        raise TypeError(f"batches must be a RecordTable or rows of BATCH_DTYPE, got dtype {rows.dtype}")
    return rows


@public_in("kbatch")
class SequenceChecker:
    """Checks the sequence numbers of idempotent and transactional producers, as the leader of a partition does.

    Parameters
    ----------
    producers : ndarray of PRODUCER_DTYPE, optional
        The state before the first batch, as returned by `kbatch.log.read_producer_snapshot`. Any sequence is accepted
        from a producer without an entry: its earlier batches may have been deleted (PRD-R11).
    expiration_ms : int, optional
        ``producer.id.expiration.ms``, in milliseconds: a producer is forgotten if its next batch is this much later
        than its last one, by the timestamps of the batches. A broker uses its clock, and 86400000 by default. By
        default producers are never forgotten.

    Raises
    ------
    TypeError, ValueError
        If `producers` does not have PRODUCER_DTYPE, or `expiration_ms` isn't positive.

    Notes
    -----
    A producer's next batch must begin with the sequence after its last one, where 0 follows 2147483647, and with 0 if
    its epoch is new. A batch with the same first and last sequence as one of the last five is a duplicate, which a
    broker does not append. An epoch lower than the last one is fenced. A marker ends the transaction and sets the
    epoch; a higher epoch starts again at sequence 0 (KIP-890). Batches without a producer id, control batches of KRaft
    and empty control batches (PRD-R14) are ignored. Data batches without a sequence, which only a group coordinator
    writes, are not checked for gaps.

    References
    ----------
    Rules such as PRD-R11 are listed in ``docs/format-rules.md``.

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

    A producer that received no answer sends its first batch again, and later skips a sequence:

    >>> checker.check(batch(0, 104)).tolist()
    [(100, 46)]
    >>> checker.check(batch(6, 104))
    Traceback (most recent call last):
    kbatch.OutOfOrderSequenceError: byte 0, base offset 104: sequence 6 of producer 7; expected 4 after 3
    """

    def __init__(self, producers: npt.NDArray[np.void] | None = None, *, expiration_ms: int | None = None) -> None:
        check_types(SequenceChecker.__init__, locals())
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

    def __repr__(self) -> str:
        return f"<SequenceChecker: {counted(len(self._producers), 'producer')}>"

    def check(
        self,
        batches: npt.NDArray[np.void] | RecordTable,
        *,
        on_error: Literal["raise", "mark", "follow"] = "raise",
        source: str | None = None,
    ) -> npt.NDArray[np.void]:
        """Check batches in the order of their append, and remember the accepted ones.

        Parameters
        ----------
        batches : ndarray of BATCH_DTYPE, or RecordTable
            As returned by `kbatch.scan`, with their offsets in the log (`kbatch.assign_offsets`). With a table, decoded
            with ``include_control=True``, the coordinator epochs of markers are checked too. Damaged batches are
            ignored.
        on_error : {"raise", "mark", "follow"}
            What to do at a batch that a broker refuses: "raise" an error, with the batches before it remembered; "mark"
            its row and continue with the next batch; or "follow": mark its row, and remember the batch nevertheless,
            because the log contains it, as a broker does when it loads or replicates a log. A duplicate
            then determines the last sequence and offset of its producer.
        source : str, optional
            Path for error messages.

        Returns
        -------
        ndarray of VERDICT_DTYPE, shape (batches,)
            ``error`` is an `ErrorCode`: NONE, DUPLICATE_SEQUENCE_NUMBER (a broker answers NONE, with the offset of the
            batch in the log), or the code of the refusal. ``offset`` is the offset of the batch, or of the earlier
            batch if it is a duplicate, or -1.

        Raises
        ------
        OutOfOrderSequenceError
            If sequences are skipped or repeat more than five batches back, or a new epoch does not begin at 0.
        FencedError
            If the epoch of the producer, or of the coordinator in a marker, is lower than an earlier one.
        TransactionStateError
            If a producer with an open transaction writes outside of it.
        """
        check_types(SequenceChecker.check, locals())
        if on_error not in ("raise", "mark", "follow"):
            raise ValueError(f"on_error must be 'raise', 'mark' or 'follow', got {on_error!r}")
        rows = _batch_rows(batches)
        verdicts = np.empty(len(rows), VERDICT_DTYPE)
        verdicts["offset"], verdicts["error"] = rows["base_offset"], ErrorCode.NONE
        follow = on_error == "follow"
        for row, violation in self._violations(batches, follow=follow, follow_duplicates=follow):
            if violation.reason is _Reason.DUPLICATE:
                verdicts[row] = violation.known, violation.code
            elif on_error == "raise":
                kind = violation.reason.value[0]
                raise error_at(kind, rows[row], source, violation.text(rows[row]), code=violation.code)
            else:
                verdicts[row] = -1, violation.code
        return verdicts

    def refusals(self, batches: npt.NDArray[np.void] | RecordTable) -> list[Refusal]:
        """Return the batches of a log that no broker would have appended; all but duplicates are remembered.

        Parameters
        ----------
        batches : ndarray of BATCH_DTYPE, or RecordTable
            As for `check`.

        Returns
        -------
        list of Refusal
        """
        check_types(SequenceChecker.refusals, locals())
        rows = _batch_rows(batches)
        return [
            Refusal(row, violation.code, violation.text(rows[row]), violation.after)
            for row, violation in self._violations(batches, follow=True, follow_duplicates=False)
        ]

    def _violations(
        self, batches: npt.NDArray[np.void] | RecordTable, *, follow: bool, follow_duplicates: bool
    ) -> Iterator[tuple[int, _Violation]]:
        """Remember batches, and yield the rows that a broker does not append; the options remember these too.

        The loop creates Python objects per batch, never per record.
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
        for start in range(0, len(chosen), _CHUNK_ROWS):
            rows = chosen[start : start + _CHUNK_ROWS]
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
                    violation = producer.marker_violation(epoch, coordinator)
                    if violation is not None:
                        yield row, violation
                        if not follow:
                            continue
                    if epoch != producer.epoch:
                        producer.begin_epoch(epoch)
                    producer.coordinator_epoch = coordinator
                    producer.transaction = -1
                    producer.timestamp = timestamp
                    continue
                # DefaultRecordBatch.lastSequence counts offsets, not records (SEQ-R3).
                last = (first + delta) & INT32_MAX if first >= 0 else -1
                transactional = attributes & ATTRIBUTE_TRANSACTIONAL
                in_order = epoch == producer.epoch and first == (producer.last_sequence + 1) & INT32_MAX
                if not in_order or (producer.transaction >= 0 and not transactional):
                    violation = producer.violation(epoch, first, last, transactional)
                    if violation is not None:
                        yield row, violation
                        if not (follow_duplicates if violation.reason is _Reason.DUPLICATE else follow):
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
        """Return the number of known producers."""
        return len(self._producers)

    def producers(self) -> npt.NDArray[np.void]:
        """Return the current state of the producers, as in a producer snapshot.

        Returns
        -------
        ndarray of PRODUCER_DTYPE, shape (producers,)
            In the order of the first batch of each producer. A snapshot contains only the last batch of a producer.
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
