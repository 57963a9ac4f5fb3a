"""Lost bytes and wrong offsets: which transactions may have ended there."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.batches.framing import first_offsets
from kbatch.format import (
    ABORTED_DTYPE,
    ATTRIBUTE_CONTROL,
    INT64_MAX,
    NO_TIMESTAMP,
)
from kbatch.records.loss_list import Loss, LossList
from kbatch.transactions.control import MAX_MARKER_SIZE, lost_markers
from kbatch.transactions.tracker import INDEXED_ABORT, LOST_BYTES, LOST_MARKER, NO_PRODUCER, TransactionTracker

__all__ = ["LossFollower", "Step", "follow_batches", "lost_bytes"]

# The size of a marker as Kafka writes it.
_USUAL_MARKER_SIZE = 78
# What a bad batch was, by its header.
_UNKNOWN, _MARKER, _RECORDS = range(3)
_NO_INDEX = np.empty(0, ABORTED_DTYPE)

_Event = tuple[int, int, int, int, int]


class Step(NamedTuple):
    """The events of lost bytes before a good batch.

    Attributes
    ----------
    row : int
        The number of the good batch, or the number of good batches for events after all of them.
    events : list of tuple
        See `TransactionTracker.replay_events`.
    position : int
        The last position before the good batch.
    """

    row: int
    events: list[_Event]
    position: int = INT64_MAX


def lost_bytes(last_offset: int) -> list[_Event]:
    """Return the event after which all open transactions are undecided; `last_offset` is that of the batch before."""
    return [(NO_PRODUCER, last_offset, last_offset, NO_TIMESTAMP, LOST_BYTES)]


class LossFollower:
    """Decides which transactions may have ended in lost bytes.

    Parameters
    ----------
    next_offset : int, optional
        The offset of the first batch, if it is known.
    is_after_batch : bool
        Whether this is the offset after a batch. Otherwise a first batch with a smaller offset shows nothing.
    entries : ndarray of ABORTED_DTYPE, optional
        Entries of a ``.txnindex``, by last offset: the ABORT markers of the log.
    is_final : bool
        Whether damage ends the reading, so that nothing shows what was lost: all open transactions are undecided there.

    Notes
    -----
    Offsets show what was lost between two good batches: the offsets from the end of the first to the beginning of the
    second. Each of them belongs to one of

    - an ABORT marker that the index lists, which aborts its transaction;
    - a bad batch whose header is that of a marker: the transaction of its producer is undecided. If that producer has
      no open transaction, its id may be damaged, and all open transactions are undecided;
    - a bad batch whose header is that of a batch of records;
    - none of these. A marker of any producer may have had this offset, so all open transactions are undecided.

    If no offset is missing, no marker was lost. If the second offset is smaller than the first, offsets show nothing,
    and all open transactions are undecided. If no good batch follows, open transactions stay open.

    The checksum of a bad batch does not confirm its header. It counts as a batch of records only if at least two
    fields, that a marker has in common with no batch of records, show this: the control bit and the sequence or
    producer id (SEQ-R6), or the number of records and the last offset. For a batch of exactly the size that Kafka's
    markers have, only the second counts. A batch that is larger than any marker counts as one of records, if the
    lengths of bad batches lead through the lost bytes.

    Without lost bytes, an offset that is not above that of the batch before ends certainty in the same way: one of the
    two offsets is wrong, or the bytes are those of another place, and a marker may have been there. So offsets ascend
    from the first batch of a transaction to its marker.

    Later batches of a producer do not decide its transaction: neither a sequence of 0, nor a sequence that continues,
    nor a higher epoch shows whether the lost marker was COMMIT or ABORT. Later markers end only later transactions.
    """

    def __init__(
        self,
        next_offset: int | None = None,
        entries: npt.NDArray[np.void] = _NO_INDEX,
        *,
        is_after_batch: bool = False,
        is_final: bool = False,
    ) -> None:
        self._next_offset = next_offset
        self._is_after_batch = is_after_batch
        self._entries = entries
        self._entry_offsets = np.ascontiguousarray(entries["last_offset"])
        # The entries that lost bytes had so far. Each is used once, also where offsets descend.
        self._used = 0
        self._is_final = is_final
        # Since the last good batch: whether bytes were lost, the bad batches, and position and length of each loss.
        self._is_lost = False
        self._bad: list[_BadBatch] = []
        self._losses: list[tuple[int, int]] = []

    @property
    def is_lost(self) -> bool:
        """Whether bytes were lost after the last good batch."""
        return self._is_lost

    def follow(
        self, batches: npt.NDArray[np.void], is_good: npt.NDArray[np.bool_], losses: Sequence[Loss]
    ) -> list[Step]:
        """Follow the next batches and losses.

        Parameters
        ----------
        batches : ndarray of BATCH_DTYPE
            By position; headers of bad batches are included if they could be framed.
        is_good : ndarray of bool, shape (batches,)
            Which of them count for transactions.
        losses : sequence of Loss
            The ranges of lost bytes, by position.

        Returns
        -------
        list of Step
            By row of ``batches[is_good]``.
        """
        # Without bad batches, which is usual, the headers are not copied.
        good, bad = (batches, batches[:0]) if is_good.all() else (batches[is_good], batches[~is_good])
        firsts, lasts = first_offsets(good), good["last_offset"]
        descents = self._descents(firsts, lasts)
        if not len(bad) and not losses and not self._is_lost and not len(descents):
            self._note_last(lasts)
            return []
        described = _described(bad)
        spans = losses if isinstance(losses, LossList) else LossList(losses)
        lost = list(zip(spans.positions.tolist(), spans.lengths.tolist(), strict=True))
        # The good batch after each bad one, after each loss, and after any lost bytes.
        bad_places = np.searchsorted(good["position"], bad["position"])
        loss_places = np.searchsorted(good["position"], np.array([position for position, _ in lost], np.int64))
        still_lost = np.zeros(int(self._is_lost), np.intp)
        places = np.unique(np.concatenate([bad_places, loss_places, still_lost, descents]))
        bad_stops = np.searchsorted(bad_places, places, "right").tolist()
        loss_stops = np.searchsorted(loss_places, places, "right").tolist()
        steps: list[Step] = []
        bad_done = loss_done = 0
        for row, bad_stop, loss_stop in zip(places.tolist(), bad_stops, loss_stops, strict=True):
            self._note_last(lasts[:row])
            self._is_lost = True
            self._bad += described[bad_done:bad_stop]
            self._losses += lost[loss_done:loss_stop]
            bad_done, loss_done = bad_stop, loss_stop
            if row < len(good) and (events := self.finish(int(firsts[row]))):
                steps.append(Step(row, events, int(good["position"][row]) - 1))
        if not self._is_lost:
            self._note_last(lasts)
        return steps

    def _note_last(self, last_offsets: npt.NDArray[np.int64]) -> None:
        if len(last_offsets):
            self._next_offset = int(last_offsets[-1]) + 1
            self._is_after_batch = True

    def _descents(self, firsts: npt.NDArray[np.int64], lasts: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """Return the good batches whose offsets are not above those of the batch before."""
        descents = np.flatnonzero(firsts[1:] <= lasts[:-1]) + 1
        if len(firsts) and self._is_after_batch and self._next_offset is not None and firsts[0] < self._next_offset:
            descents = np.append(0, descents)
        return descents

    def finish(self, next_offset: int | None = None) -> list[_Event]:
        """Return the events of lost bytes after the last good batch.

        Parameters
        ----------
        next_offset : int, optional
            The offset of the batch that follows, if one is known to follow.
        """
        if not self._is_lost:
            return []
        events = self._events(next_offset)
        self._is_lost, self._bad, self._losses = False, [], []
        return events

    def end(self) -> list[_Event]:
        """Return the events of damage after the last good batch that ends the reading."""
        self._is_lost = True
        return self.finish()

    def _events(self, following: int | None) -> list[_Event]:
        """Return the events of the lost bytes before the offset `following`; None if nothing follows."""
        first = self._next_offset
        if first is None or (first == following and not self._is_final):
            # No transaction is known before the first batch, or nothing is missing.
            return []
        if self._is_final:
            return lost_bytes(first - 1)
        followed = self._lengths_lead_through()
        stop = INT64_MAX if following is None else max(first, following)
        lo, hi = np.maximum(np.searchsorted(self._entry_offsets, [first, stop]), self._used).tolist()
        self._used = hi
        markers = {each.first_offset: each.producer_id for each in self._bad if each.kind == _MARKER}
        # First and last offset of batches that were lost, and their events.
        found: list[tuple[int, int, list[_Event]]] = []
        listed = set()
        for entry in self._entries[lo:hi]:
            last = int(entry["last_offset"])
            listed.add(last)
            events = [(int(entry["producer_id"]), int(entry["first_offset"]), last, NO_TIMESTAMP, INDEXED_ABORT)]
            if last in markers:
                # It has no effect, unless the entry contradicts the log.
                events.append((markers[last], last, last, NO_TIMESTAMP, LOST_MARKER))
            found.append((last, last, events))
        for each in self._bad:
            start = each.first_offset
            is_known = each.kind != _UNKNOWN or (followed and each.size > MAX_MARKER_SIZE)
            # A header whose offsets are not missing is damaged, or was never a header.
            if is_known and start not in listed and first <= start <= each.last_offset < stop:
                events = [(each.producer_id, start, start, NO_TIMESTAMP, LOST_BYTES)] if each.kind == _MARKER else []
                found.append((start, each.last_offset, events))
        found.sort(key=operator.itemgetter(0))
        events = [event for _, _, those in found for event in those]
        if following is None or self._explains(found, first, following):
            return events
        aborts = [event for event in events if event[-1] == INDEXED_ABORT]
        return [*aborts, *lost_bytes(first - 1)]

    def _lengths_lead_through(self) -> bool:
        """Return whether the lengths of bad batches lead through all lost bytes."""
        bad = iter(self._bad)
        batch = next(bad, None)
        for position, length in self._losses:
            at = position
            while batch is not None and batch.position == at < position + length:
                at += batch.size
                batch = next(bad, None)
            if at != position + length:
                return False
        return True

    @staticmethod
    def _explains(found: Sequence[tuple[int, int, list[_Event]]], first: int, stop: int) -> bool:
        """Return whether each offset from `first` up to `stop` belongs to one of the batches."""
        for start, last, _ in found:
            if start != first:
                return False
            first = last + 1
        return first == stop


class _BadBatch(NamedTuple):
    position: int
    size: int
    first_offset: int
    last_offset: int
    producer_id: int
    kind: int


def _described(bad: npt.NDArray[np.void]) -> list[_BadBatch]:
    """Return the fields of bad batches that show which offsets they had."""
    kinds = _kinds(bad)
    first = first_offsets(bad)
    last = np.where(kinds == _MARKER, first, bad["last_offset"])
    columns = bad["position"], bad["size"], first, last, bad["producer_id"], kinds
    return [_BadBatch(*fields) for fields in zip(*(column.tolist() for column in columns), strict=True)]


def _kinds(bad: npt.NDArray[np.void]) -> npt.NDArray[np.int8]:
    """Return what each bad batch was by its header."""
    attributes, count, delta = bad["attributes"], bad["record_count"], bad["last_offset_delta"]
    producer_id, epoch, sequence = bad["producer_id"], bad["producer_epoch"], bad["base_sequence"]
    is_new = bad["magic"] == 2
    has_several = (count > 1) & (delta >= count - 1)
    has_sequence = (producer_id >= 0) & (epoch >= 0) & (sequence >= 0)
    has_none = (producer_id == -1) & (epoch == -1) & (sequence == -1)
    is_data = ((attributes & ATTRIBUTE_CONTROL) == 0) & (count > 0) & (has_sequence | has_none)
    is_data &= bad["size"] != _USUAL_MARKER_SIZE
    kinds = np.full(len(bad), _UNKNOWN, np.int8)
    kinds[lost_markers(bad)] = _MARKER
    kinds[is_new & (has_several | is_data)] = _RECORDS
    return kinds


def follow_batches(
    tracker: TransactionTracker,
    good: npt.NDArray[np.void],
    steps: Sequence[Step],
    window: Callable[[npt.NDArray[np.void]], tuple[npt.NDArray[np.uint8], int]],
) -> None:
    """Follow good batches, and apply each step before its batch.

    Parameters
    ----------
    tracker : TransactionTracker
    good : ndarray of BATCH_DTYPE
    steps : sequence of Step
    window : callable
        Returns, for some of the batches, bytes that contain them, and the position of the first byte in the source.
    """
    done = 0
    for row, events, position in [*steps, Step(len(good), [])]:
        if row > done:
            part = good[done:row]
            data, origin = window(part)
            tracker.add(data, part, origin)
            done = row
        tracker.replay_events(events, position)
