"""Lost bytes and wrong offsets: which transactions may have ended there."""

from __future__ import annotations

from collections.abc import Callable
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
from kbatch.records.loss_list import LossList
from kbatch.transactions.control_parsing import MAX_MARKER_SIZE, lost_markers
from kbatch.transactions.events import (
    EVENT_DTYPE,
    INDEXED_ABORT,
    LOST_BYTES,
    LOST_MARKER,
    NO_EVENT,
    NO_PRODUCER,
    LostEvents,
)
from kbatch.transactions.tracker import FOLLOWED_ROWS, TransactionTracker

__all__ = ["MAX_LOST_HEADERS", "LossFollower", "follow_batches", "lost_bytes"]

# The most headers of bad batches between two good ones that are looked at. If there are more, a marker of any producer
# may have been there. It decides results, so it is the same for every source and every limit.
MAX_LOST_HEADERS = 1 << 15
# The size of a marker as Kafka writes it.
_USUAL_MARKER_SIZE = 78
# What a bad batch was, by its header.
_UNKNOWN, _MARKER, _RECORDS = range(3)
_BAD_DTYPE = np.dtype(
    [(name, "<i8") for name in ("position", "size", "first_offset", "last_offset", "producer_id", "kind")]
)
_SPAN_DTYPE = np.dtype([("position", "<i8"), ("length", "<i8")])
# What shows which offsets were lost: an index entry or a bad batch. `kind` is the kind of its event, or NO_EVENT.
# `offset` is the first offset of the transaction. An entry that replaces a bad marker has the marker's producer id as
# `marker_producer`.
_FOUND_DTYPE = np.dtype(
    [
        (name, "<i8")
        for name in ("gap", "first_offset", "last_offset", "kind", "producer_id", "offset", "marker_producer")
    ]
)
_NO_INDEX = np.empty(0, ABORTED_DTYPE)

_Rows = npt.NDArray[np.void]
_Numbers = npt.NDArray[np.int64]


def lost_bytes(last_offset: int, position: int) -> _Rows:
    """Return the event of lost bytes up to a position, after a batch with this last offset.

    All open transactions are undecided then.
    """
    return np.array([(NO_PRODUCER, last_offset, last_offset, NO_TIMESTAMP, LOST_BYTES, position)], EVENT_DTYPE)


class _Gaps(NamedTuple):
    """Stretches of lost bytes, and what was in them.

    Attributes
    ----------
    first, stop : ndarray of int64, shape (gaps,)
        The missing offsets: from `first`, which follows the good batch before, up to `stop`, which begins the next one.
    position : ndarray of int64, shape (gaps,)
        The last position before the good batch that follows.
    bad : ndarray of _BAD_DTYPE
        The bad batches, by position, and in `bad_gaps` the number of the gap of each.
    spans : ndarray of _SPAN_DTYPE
        The losses, by position, and in `span_gaps` the number of the gap of each.
    """

    first: _Numbers
    stop: _Numbers
    position: _Numbers
    bad: _Rows
    bad_gaps: npt.NDArray[np.intp]
    spans: _Rows
    span_gaps: npt.NDArray[np.intp]


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

    Of the bad batches between two good ones, at most `MAX_LOST_HEADERS` are looked at: with more of them, all open
    transactions are undecided, except those that the index aborts.

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
        # Since the last good batch: whether bytes were lost, the bad batches, and the losses.
        self._is_lost = False
        self._bad = np.empty(0, _BAD_DTYPE)
        self._spans = np.empty(0, _SPAN_DTYPE)

    @property
    def is_lost(self) -> bool:
        """Whether bytes were lost after the last good batch."""
        return self._is_lost

    def follow(self, batches: _Rows, is_good: npt.NDArray[np.bool_], spans: _Rows) -> LostEvents:
        """Follow the next batches and losses.

        Parameters
        ----------
        batches : ndarray of BATCH_DTYPE
            By position; headers of bad batches are included if they could be framed.
        is_good : ndarray of bool, shape (batches,)
            Which of them count for transactions.
        spans : ndarray of _SPAN_DTYPE
            The ranges of lost bytes, by position.

        Returns
        -------
        LostEvents
            By row of ``batches[is_good]``.
        """
        # Without bad batches, which is usual, the headers are not copied.
        good, bad = (batches, batches[:0]) if is_good.all() else (batches[is_good], batches[~is_good])
        firsts, lasts = first_offsets(good), good["last_offset"]
        descents = self._descents(firsts, lasts)
        if not len(bad) and not len(spans) and not self._is_lost and not len(descents):
            self._note_last(lasts)
            return LostEvents.none()
        # The good batch after each bad one, and after each loss. Those that are kept come before all good ones.
        bad_rows = _rows_after(good, bad["position"], len(self._bad))
        span_rows = _rows_after(good, spans["position"], len(self._spans))
        bad, spans = np.append(self._bad, _described(bad)), np.append(self._spans, spans)
        still_lost = np.zeros(int(self._is_lost), np.intp)
        rows = np.unique(np.concatenate([bad_rows, span_rows, still_lost, descents]))
        self._is_lost = bool(rows[-1] == len(good))
        # One more than are looked at show that there are too many.
        self._bad = bad[bad_rows == len(good)][: MAX_LOST_HEADERS + 1]
        self._spans = spans[span_rows == len(good)][: MAX_LOST_HEADERS + 1]
        rows = rows[: len(rows) - self._is_lost]
        before = np.append(np.int64(self._next_offset or 0), lasts + 1)[rows]
        if self._next_offset is None:
            # No transaction is known before the first batch.
            rows, before = rows[rows > 0], before[rows > 0]
        self._note_last(lasts)
        bad_gaps, span_gaps = np.searchsorted(rows, bad_rows), np.searchsorted(rows, span_rows)
        within, spans_within = (np.isin(each, rows) for each in (bad_rows, span_rows))
        gaps = _Gaps(
            before,
            firsts[rows],
            good["position"][rows] - 1,
            bad[within],
            bad_gaps[within],
            spans[spans_within],
            span_gaps[spans_within],
        )
        numbers, events = self._events(gaps)
        return LostEvents(rows[numbers], events)

    def _note_last(self, last_offsets: _Numbers) -> None:
        if len(last_offsets):
            self._next_offset = int(last_offsets[-1]) + 1
            self._is_after_batch = True

    def _descents(self, firsts: _Numbers, lasts: _Numbers) -> npt.NDArray[np.intp]:
        """Return the good batches whose offsets are not above those of the batch before."""
        descents = np.flatnonzero(firsts[1:] <= lasts[:-1]) + 1
        if len(firsts) and self._is_after_batch and self._next_offset is not None and firsts[0] < self._next_offset:
            descents = np.append(0, descents)
        return descents

    def finish(self, next_offset: int | None = None) -> _Rows:
        """Return the events of lost bytes after the last good batch.

        Parameters
        ----------
        next_offset : int, optional
            The offset of the batch that follows, if one is known to follow.

        Returns
        -------
        ndarray of EVENT_DTYPE
        """
        bad, spans, is_lost = self._bad, self._spans, self._is_lost
        self._is_lost, self._bad, self._spans = False, bad[:0], spans[:0]
        if not is_lost or self._next_offset is None:
            return np.empty(0, EVENT_DTYPE)
        stop = INT64_MAX if next_offset is None else next_offset
        first, stops, position = np.array([[self._next_offset], [stop], [INT64_MAX]])
        gap = _Gaps(first, stops, position, bad, np.zeros(len(bad), np.intp), spans, np.zeros(len(spans), np.intp))
        return self._events(gap, is_followed=next_offset is not None)[1]

    def end(self) -> _Rows:
        """Return the events of damage after the last good batch that ends the reading."""
        self._is_lost = True
        return self.finish()

    def _events(self, gaps: _Gaps, *, is_followed: bool = True) -> tuple[npt.NDArray[np.intp], _Rows]:
        """Return the numbers of gaps and the events of each, in order; see the notes of the class."""
        if self._is_final:
            is_missing = is_unexplained = np.ones(len(gaps.first), np.bool_)
            found = np.empty(0, _FOUND_DTYPE)
        else:
            is_missing = gaps.first != gaps.stop
            found = self._found(gaps, is_missing)
            is_unexplained = is_missing & ~_tiles(found, gaps) if is_followed else np.zeros(len(gaps.first), np.bool_)
        has_event = (found["kind"] == INDEXED_ABORT) | ((found["kind"] == LOST_BYTES) & ~is_unexplained[found["gap"]])
        found = found[has_event]
        # An entry replaces the bad marker, which has no effect unless the entry contradicts the log.
        replaced = np.flatnonzero((found["marker_producer"] != NO_PRODUCER) & ~is_unexplained[found["gap"]])
        lost = np.flatnonzero(is_unexplained)
        numbers = np.concatenate([found["gap"], found["gap"][replaced], lost])
        ranks = np.concatenate([np.arange(len(found)), replaced, np.full(len(lost), len(found))])
        events = np.empty(len(numbers), EVENT_DTYPE)
        events["timestamp"] = NO_TIMESTAMP
        events["position"] = gaps.position[numbers]
        own, of_markers, of_gaps = np.split(events, [len(found), len(found) + len(replaced)])
        for name in ("producer_id", "offset", "last_offset", "kind"):
            own[name] = found[name]
        of_markers["producer_id"], of_markers["kind"] = found["marker_producer"][replaced], LOST_MARKER
        of_markers["offset"] = of_markers["last_offset"] = found["last_offset"][replaced]
        of_gaps["producer_id"], of_gaps["kind"] = NO_PRODUCER, LOST_BYTES
        of_gaps["offset"] = of_gaps["last_offset"] = gaps.first[lost] - 1
        order = np.lexsort((ranks, numbers))
        return numbers[order], events[order]

    def _found(self, gaps: _Gaps, is_missing: npt.NDArray[np.bool_]) -> _Rows:
        """Return what shows which of the missing offsets were lost, by gap and first offset."""
        indexed = self._indexed(gaps, is_missing)
        bad, numbers = gaps.bad, gaps.bad_gaps
        size = len(gaps.first)
        counts = np.maximum(np.bincount(numbers, minlength=size), np.bincount(gaps.span_gaps, minlength=size))
        is_known = (bad["kind"] != _UNKNOWN) | (_lead_through(gaps)[numbers] & (bad["size"] > MAX_MARKER_SIZE))
        # A header whose offsets are not missing is damaged, or was never a header.
        first, last = bad["first_offset"], bad["last_offset"]
        is_known &= (gaps.first[numbers] <= first) & (first <= last) & (last < gaps.stop[numbers])
        is_known &= is_missing[numbers] & (counts[numbers] <= MAX_LOST_HEADERS)
        if len(indexed):
            is_known &= ~_have_entries(indexed, gaps)
        bad = bad[is_known]
        found = np.empty(len(bad), _FOUND_DTYPE)
        found["gap"], found["marker_producer"] = numbers[is_known], NO_PRODUCER
        found["kind"] = np.where(bad["kind"] == _MARKER, LOST_BYTES, NO_EVENT)
        found["offset"] = bad["first_offset"]
        for name in ("first_offset", "last_offset", "producer_id"):
            found[name] = bad[name]
        found = np.append(indexed, found)
        return found[np.lexsort((found["first_offset"], found["gap"]))]

    def _indexed(self, gaps: _Gaps, is_missing: npt.NDArray[np.bool_]) -> _Rows:
        """Return the entries of the index for missing offsets."""
        ends = np.searchsorted(self._entry_offsets, np.maximum(gaps.first, gaps.stop))
        ends = np.maximum.accumulate(np.append(self._used, np.where(is_missing, ends, 0)))
        begins = np.maximum(np.searchsorted(self._entry_offsets, gaps.first), ends[:-1])
        counts = np.where(is_missing, ends[1:] - begins, 0)
        self._used = int(ends[-1])
        before = np.cumsum(counts) - counts
        entries = self._entries[np.arange(counts.sum()) + np.repeat(begins - before, counts)]
        found = np.empty(len(entries), _FOUND_DTYPE)
        found["gap"] = np.repeat(np.arange(len(counts)), counts)
        found["first_offset"] = found["last_offset"] = entries["last_offset"]
        found["kind"], found["producer_id"] = INDEXED_ABORT, entries["producer_id"]
        found["offset"], found["marker_producer"] = entries["first_offset"], NO_PRODUCER
        return found


def _have_entries(indexed: _Rows, gaps: _Gaps) -> npt.NDArray[np.bool_]:
    """Return the bad batches that entries of the index replace, and note the producers of the markers among them."""
    keys = zip(indexed["gap"].tolist(), indexed["last_offset"].tolist(), strict=True)
    entries = {key: row for row, key in enumerate(keys)}
    offsets = zip(gaps.bad_gaps.tolist(), gaps.bad["first_offset"].tolist(), strict=True)
    rows = (entries.get(key, -1) for key in offsets)
    replaced = np.fromiter(rows, np.intp, len(gaps.bad))
    markers = np.flatnonzero((replaced >= 0) & (gaps.bad["kind"] == _MARKER))
    indexed["marker_producer"][replaced[markers]] = gaps.bad["producer_id"][markers]
    return replaced >= 0


def _rows_after(good: _Rows, positions: _Numbers, earlier: int) -> npt.NDArray[np.intp]:
    """Return the row of the good batch after each position, and 0 for the `earlier` ones before them."""
    return np.append(np.zeros(earlier, np.intp), np.searchsorted(good["position"], positions))


def _lead_through(gaps: _Gaps) -> npt.NDArray[np.bool_]:
    """Return for each gap whether the lengths of bad batches lead through all of its losses."""
    leads = np.ones(len(gaps.first), np.bool_)
    begins, ends = gaps.spans["position"], gaps.spans["position"] + gaps.spans["length"]
    at, stops = gaps.bad["position"], gaps.bad["position"] + gaps.bad["size"]
    owners = np.searchsorted(begins, at, "right") - 1
    inside = owners >= 0
    inside[inside] = at[inside] < ends[owners[inside]]
    leads[gaps.bad_gaps[~inside]] = False
    at, stops, owners = at[inside], stops[inside], owners[inside]
    # Each bad batch begins where its loss does, or where the one before it ends.
    expected = begins[owners]
    follows = np.flatnonzero(owners[1:] == owners[:-1])
    expected[follows + 1] = stops[follows]
    is_led_to = begins == ends
    # Of several rows for one loss, the last one is assigned.
    is_led_to[owners] = stops == ends[owners]
    is_led_to[owners[at != expected]] = False
    leads[gaps.span_gaps[~is_led_to]] = False
    return leads


def _tiles(found: _Rows, gaps: _Gaps) -> npt.NDArray[np.bool_]:
    """Return for each gap whether each missing offset belongs to one of the batches that were found."""
    tiles = np.zeros(len(gaps.first), np.bool_)
    numbers, nexts = found["gap"], found["last_offset"] + 1
    tiles[numbers] = nexts == gaps.stop[numbers]
    expected = gaps.first[numbers]
    follows = np.flatnonzero(numbers[1:] == numbers[:-1])
    expected[follows + 1] = nexts[follows]
    tiles[numbers[found["first_offset"] != expected]] = False
    return tiles


def _described(bad: _Rows) -> _Rows:
    """Return the fields of bad batches that show which offsets they had."""
    described = np.empty(len(bad), _BAD_DTYPE)
    described["kind"] = kinds = _kinds(bad)
    described["first_offset"] = first = first_offsets(bad)
    described["last_offset"] = np.where(kinds == _MARKER, first, bad["last_offset"])
    for name in ("position", "size", "producer_id"):
        described[name] = bad[name]
    return described


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
    follower: LossFollower | None,
    batches: _Rows,
    is_good: npt.NDArray[np.bool_],
    losses: LossList,
    window: Callable[[_Rows], tuple[npt.NDArray[np.uint8], int]],
) -> None:
    """Follow the next batches of a log, and the losses among them.

    Parameters
    ----------
    tracker : TransactionTracker
    follower : LossFollower or None
        None if losses decide nothing.
    batches : ndarray of BATCH_DTYPE
        By position.
    is_good : ndarray of bool, shape (batches,)
        Which of them count for transactions.
    losses : LossList
    window : callable
        Returns, for some good batches, bytes that contain them, and the position of the first byte in the source.
    """
    spans = np.empty(len(losses), _SPAN_DTYPE)
    spans["position"], spans["length"] = losses.positions, losses.lengths
    done = 0
    for begin in range(0, max(len(batches), 1), FOLLOWED_ROWS):
        part, is_part_good = batches[begin : begin + FOLLOWED_ROWS], is_good[begin : begin + FOLLOWED_ROWS]
        lost = None
        if follower is not None:
            end = begin + len(part)
            stop = np.searchsorted(spans["position"], batches["position"][end]) if end < len(batches) else len(spans)
            lost = follower.follow(part, is_part_good, spans[done:stop])
            done = stop
        part = part if is_part_good.all() else part[is_part_good]
        if len(part):
            data, origin = window(part)
            tracker.add(data, part, origin, lost)
