"""The events that open and end transactions: batches, markers and lost bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.format import ATTRIBUTE_CONTROL, ATTRIBUTE_DELETE_HORIZON, NO_TIMESTAMP, ControlType

__all__ = [
    "ABORT",
    "COMMIT",
    "DATA",
    "EVENT_DTYPE",
    "INDEXED_ABORT",
    "LOST_BYTES",
    "LOST_MARKER",
    "NO_EVENT",
    "NO_PRODUCER",
    "LostEvents",
    "RecordCounts",
    "are_control",
    "batch_events",
    "by_producer",
    "record_counts",
]

# Kinds of events: the type of a marker as a plain integer, which is compared faster than a member of the enumeration,
# or another event. A .txnindex entry may replace a lost marker.
ABORT, COMMIT = int(ControlType.ABORT), int(ControlType.COMMIT)
LOST_MARKER = -2
NO_EVENT = -1
DATA = 2
INDEXED_ABORT = 3
# Lost bytes that may have contained markers. If the producer of the event has an open transaction, the marker was that
# of this transaction; otherwise any open transaction may have ended.
LOST_BYTES = 4
NO_PRODUCER = -1
# From this number of rows on, a sort by radix is faster: 18 us for 512 rows, and 20 us as they are.
_RADIX_ROWS = 512

# Events that open or end transactions, in log order, with the base offset, last offset and position of the batch. An
# event of a .txnindex entry has the first offset of the transaction and the offset of its marker. The position of lost
# bytes is the last one before the batch that follows them.
EVENT_DTYPE = np.dtype(
    [
        ("producer_id", "<i8"),
        ("offset", "<i8"),
        ("last_offset", "<i8"),
        ("timestamp", "<i8"),
        ("kind", "<i8"),
        ("position", "<i8"),
    ]
)


class LostEvents(NamedTuple):
    """Events of lost bytes among batches, in order.

    Attributes
    ----------
    rows : ndarray of intp, shape (events,)
        The number of the batch that follows the lost bytes.
    events : ndarray of EVENT_DTYPE, shape (events,)
    """

    rows: npt.NDArray[np.intp]
    events: npt.NDArray[np.void]

    @classmethod
    def none(cls) -> LostEvents:
        """Return no events."""
        return cls(np.empty(0, np.intp), np.empty(0, EVENT_DTYPE))


def are_control(batches: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Return which batches are control batches."""
    found: npt.NDArray[np.bool_] = (batches["magic"] == 2) & ((batches["attributes"] & ATTRIBUTE_CONTROL) != 0)
    return found


class RecordCounts(NamedTuple):
    """Numbers of records by batch headers.

    Attributes
    ----------
    records, control_records : int
        Records of control batches are `control_records` only.
    uncounted_batches : int
        Compressed message sets of magic 0 and 1, whose headers have no count (LEG-R23).
    """

    records: int
    control_records: int
    uncounted_batches: int


def record_counts(batches: npt.NDArray[np.void]) -> RecordCounts:
    """Count the records of batches by their headers."""
    counts, control = batches["record_count"], are_control(batches)
    known = counts >= 0
    total = int(counts[known].sum(dtype=np.int64))
    control_records = int(counts[known & control].sum(dtype=np.int64))
    return RecordCounts(total - control_records, control_records, len(batches) - int(np.count_nonzero(known)))


def batch_events(
    batches: npt.NDArray[np.void], rows: npt.NDArray[np.intp], kinds: npt.NDArray[np.int16], lost: LostEvents
) -> npt.NDArray[np.void]:
    """Return the events of these rows of batches, which have these kinds, and of the lost bytes among all batches.

    Of consecutive data batches of one producer, only the first has an event.
    """
    if len(rows):
        order = by_producer(batches["producer_id"][rows])
        rows, kinds = rows[order], kinds[order]
        stretches = np.searchsorted(lost.rows, rows, "right")
        first = _first_batches(batches["producer_id"][rows], kinds, stretches)
        chosen = np.concatenate((first, np.flatnonzero(kinds != DATA)))
        chosen = chosen[np.argsort(rows[chosen])]
        rows, kinds = rows[chosen], kinds[chosen]
    events = _events(batches[rows], kinds)
    return _with_lost(events, rows, lost) if len(lost.rows) else events


def by_producer(producer_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Return the stable order that groups rows by producer."""
    if len(producer_ids) >= _RADIX_ROWS:
        least = int(producer_ids.min())
        if int(producer_ids.max()) - least < 1 << 16:
            # A coordinator assigns adjacent ids. NumPy sorts small integers by radix, ten times as fast.
            return np.argsort((producer_ids - least).astype(np.uint16), kind="stable")
    return np.argsort(producer_ids, kind="stable")


def _first_batches(
    producer_ids: npt.NDArray[np.int64], kinds: npt.NDArray[np.int16], stretches: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    """Return the first of each run of consecutive data batches of one producer, in rows that are sorted by producer.

    `stretches` numbers the stretches of batches without lost bytes among them.
    """
    is_data = kinds == DATA
    begins = np.ones(len(kinds), np.bool_)
    begins[1:] = (producer_ids[1:] != producer_ids[:-1]) | (stretches[1:] != stretches[:-1]) | ~is_data[:-1]
    return np.flatnonzero(is_data & begins)


def _events(batches: npt.NDArray[np.void], kinds: npt.NDArray[np.int16]) -> npt.NDArray[np.void]:
    events = np.empty(len(batches), EVENT_DTYPE)
    events["producer_id"], events["offset"] = batches["producer_id"], batches["base_offset"]
    events["last_offset"], events["position"] = batches["last_offset"], batches["position"]
    horizon = (batches["attributes"] & ATTRIBUTE_DELETE_HORIZON) != 0
    events["timestamp"] = np.where(horizon, NO_TIMESTAMP, batches["base_timestamp"])
    events["kind"] = kinds
    return events


def _with_lost(events: npt.NDArray[np.void], rows: npt.NDArray[np.intp], lost: LostEvents) -> npt.NDArray[np.void]:
    """Insert lost bytes, except those that follow others directly: no transaction is open there."""
    events = np.insert(events, np.searchsorted(rows, lost.rows), lost.events)
    ends_all = (events["kind"] == LOST_BYTES) & (events["producer_id"] == NO_PRODUCER)
    joined: npt.NDArray[np.void] = events[~(ends_all & np.append(False, ends_all[:-1]))]
    return joined
