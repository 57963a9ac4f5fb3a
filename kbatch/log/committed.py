"""The transactions of a whole log, for read_committed.

A marker may be in a later table, segment or task than the records of its transaction. Before records are decoded, the
transactions are therefore collected from the batches alone: from each segment separately (`segment_transactions`),
possibly in threads or tasks. The results are joined in log order (`join_transactions`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kbatch.batches.checksums import has_good_batch
from kbatch.batches.framing import first_offsets, scan_part
from kbatch.errors import KbatchError
from kbatch.format import (
    ABORTED_DTYPE,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_TRANSACTIONAL,
    INT64_MAX,
    NO_TIMESTAMP,
)
from kbatch.log.reading import read_tables
from kbatch.log.segment import Segment
from kbatch.read.committed import counts_for_transactions, tracking_options
from kbatch.read.decode_options import DecodeOptions
from kbatch.table import RecordTable
from kbatch.transactions import OpenTransaction, TransactionRecorder, Transactions, TransactionTracker
from kbatch.tuning import SMALL_TABLE_BYTES

__all__ = [
    "SegmentTransactions",
    "follow_transactions",
    "join_transactions",
    "open_before",
    "segment_before",
    "segment_transactions",
    "within_offsets",
]

_NO_ENTRIES = np.empty(0, ABORTED_DTYPE)

# An action before a row: apply an entry of a .txnindex as an ABORT marker (producer id, first and last offset), or
# leave all open transactions undecided because of damage after an offset.
_Step = tuple[int, tuple[int, int, int] | int]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTransactions:
    """The transaction events of one segment, independent of the transactions open before it.

    Attributes
    ----------
    end : int
        Position up to which the batches were followed, where the next call resumes; 0 after damage, because the
        segment must then be followed from its beginning.
    events : ndarray of EVENT_DTYPE
        The batches that open transactions, and the markers that end them.
    is_closed : bool
        Whether another segment follows, so that brokers no longer append to this one.
    """

    end: int
    events: npt.NDArray[np.void]
    is_closed: bool = True


# Applies a function to the numbers of segments, like the built-in `map`, which does so lazily and serially.
Walk = Callable[[Callable[[int], SegmentTransactions], Sequence[int]], Iterable[SegmentTransactions]]


def follow_transactions(
    segments: Sequence[Segment],
    options: DecodeOptions,
    *,
    start_offset: int | None = None,
    stop_offset: int | None = None,
    walk: Walk = map,
) -> Transactions:
    """Follow the transactions of a log over its batches.

    Parameters
    ----------
    segments : sequence of Segment
        All segments of the log, in order. If older ones were deleted, a transaction begins at its first remaining
        batch (TXI-R6).
    options : DecodeOptions
        Decide how damage is handled (`on_error`, `crc`, `limits`).
    start_offset, stop_offset : int, optional
        Return only transactions that overlap these offsets. If producer snapshots list the open transactions, the walk
        begins at the segment of `start_offset` or the one before. It ends where all transactions that began below
        `stop_offset` are decided.
    walk : callable, optional
        Walks segments concurrently. Called with a function and the numbers of segments in order, it returns an iterable
        of the results in the same order. The iterable may not be exhausted.

    Returns
    -------
    Transactions
        With offsets, only the transactions that overlap them, and the last stable offset only if it is below
        `stop_offset`.

    Notes
    -----
    Each segment is framed as for decoding, and checksums are verified according to `options.crc`. With
    ``on_error="skip"`` the walk resumes after damage at the same batch as decoding does. With "raise" and "stop" a read
    ends at damage, but it may also begin after it. So the walk skips damage too, and transactions that are open where
    the damage begins stay undecided, unless the batch lengths lead from the beginning of the damage to its end.

    The loss of a marker leaves its transaction undecided, unless the segment's ``.txnindex`` lists it: an entry counts
    as the ABORT marker if its offset is missing between two good batches, and bytes between them are damaged. An entry
    that contradicts the log, or for which no bytes are damaged, is ignored. A missing entry never implies a commit.

    With "skip" the log is always followed from its beginning: damage may have destroyed markers, and every read must
    withhold the same offsets.
    """
    first, already_open = 0, list[OpenTransaction]()
    if start_offset is not None and options.on_error != "skip":
        first, already_open = open_before(segments, segment_before(segments, start_offset), options)
    tracker = TransactionTracker(already_open)
    after = first

    def follow(number: int) -> SegmentTransactions:
        return segment_transactions(segments[number], _below(segments, number), options)

    for part in walk(follow, range(first, len(segments))):
        tracker.replay(part.events)
        after += 1
        if stop_offset is None or after == len(segments) or (segments[after].base_offset or 0) < stop_offset:
            continue
        known = tracker.result()
        if all(begun >= stop_offset for _, begun in known.pending):
            break
    return within_offsets(tracker.result(), start_offset, stop_offset)


def join_transactions(
    parts: Sequence[SegmentTransactions], already_open: Iterable[OpenTransaction] = ()
) -> Transactions:
    """Return the transactions of consecutive segments.

    Parameters
    ----------
    parts : sequence of SegmentTransactions
    already_open : iterable of OpenTransaction
        The transactions open before the first segment.
    """
    tracker = TransactionTracker(already_open)
    for part in parts:
        tracker.replay(part.events)
    return tracker.result()


def within_offsets(transactions: Transactions, start_offset: int | None, stop_offset: int | None) -> Transactions:
    """Return the transactions that overlap an offset range, and the last stable offset if it is below the range's end.

    Undecided transactions that ended before the range are included: their markers are damaged.
    """
    if start_offset is None and stop_offset is None:
        return transactions
    start = 0 if start_offset is None else start_offset
    stop = INT64_MAX if stop_offset is None else stop_offset
    aborted, undecided = transactions.aborted, transactions.undecided
    still = [each for each in transactions.open if each.first_offset < stop]
    return Transactions(
        aborted[(aborted["last_offset"] >= start) & (aborted["first_offset"] < stop)],
        still,
        still[0].first_offset if still else None,
        undecided[undecided["first_offset"] < stop],
    )


def segment_before(segments: Sequence[Segment], offset: int) -> int:
    """Return the number of the last segment that begins at or before `offset`, else 0."""
    return max(0, bisect_right(segments, offset, key=lambda segment: segment.base_offset or 0) - 1)


def _below(segments: Sequence[Segment], number: int) -> int | None:
    return segments[number + 1].base_offset if number + 1 < len(segments) else None


def open_before(segments: Sequence[Segment], number: int, options: DecodeOptions) -> tuple[int, list[OpenTransaction]]:
    """Return where to start following the log to decide the transactions of segment `number`.

    Returns
    -------
    int
        The number of the previous segment, or 0.
    list of OpenTransaction
        The transactions open at the beginning of that segment. A deleted first batch does not count (TXI-R6).

    Notes
    -----
    When a broker rolls a segment, it writes a ``.snapshot`` with the producers and the first offset of each open
    transaction (TXI-R7; ``ProducerStateManager.takeSnapshot``). Expired producers are left out, but a producer with an
    open transaction never expires. The file identifies neither its log nor its time. So two consecutive snapshots are
    compared with the segment between them: the first batches of the transactions open in the first snapshot must be in
    the log, and following the segment must give the second snapshot. Otherwise the log is followed from its beginning.
    """
    before = number - 1
    if before <= 0:
        return 0, []
    begun, ended = _snapshot(segments, before, options), _snapshot(segments, number, options)
    if begun is None or ended is None:
        return 0, []
    tracker = TransactionTracker(begun)
    tracker.replay(segment_transactions(segments[before], _below(segments, before), options).events)
    return (before, begun) if tracker.result().open == ended else (0, [])


def _snapshot(segments: Sequence[Segment], number: int, options: DecodeOptions) -> list[OpenTransaction] | None:
    """Return the open transactions of a segment's snapshot by first offset; None if the log contradicts it."""
    segment = segments[number]
    try:
        producers = segment.producer_snapshot()
    except (KbatchError, OSError):
        return None
    if producers is None or segment.base_offset is None or np.any(producers["last_offset"] >= segment.base_offset):
        return None
    still = producers[producers["current_txn_first_offset"] >= 0]
    if np.any(still["current_txn_first_offset"] >= segment.base_offset):
        return None
    found = []
    for producer_id, offset in zip(
        still["producer_id"].tolist(), still["current_txn_first_offset"].tolist(), strict=True
    ):
        row = _batch_at(segments, offset, options)
        if row is None or int(row["producer_id"]) != producer_id:
            return None
        horizon = int(row["attributes"]) & ATTRIBUTE_DELETE_HORIZON
        timestamp = NO_TIMESTAMP if horizon else int(row["base_timestamp"])
        found.append(OpenTransaction(producer_id, offset, timestamp))
    return sorted(found, key=lambda each: (each.first_offset, each.producer_id))


def _batch_at(segments: Sequence[Segment], offset: int, options: DecodeOptions) -> np.void | None:
    """Return the header of the valid transactional batch that begins at `offset`, or None."""
    segment = segments[segment_before(segments, offset)]
    with segment.open() as file:
        for rows in file.walk(segment.seek_offset(offset)):
            row: np.void = rows[0]
            kind = int(row["attributes"]) & (ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL)
            if int(row["base_offset"]) != offset or kind != ATTRIBUTE_TRANSACTIONAL or int(row["magic"]) != 2:
                return None
            if options.crc == "verify" and not has_good_batch(file, row):
                return None
            return row
    return None


def segment_transactions(
    segment: Segment, below: int | None, options: DecodeOptions, since: SegmentTransactions | None = None
) -> SegmentTransactions:
    """Follow the transactions of one segment of a log.

    Parameters
    ----------
    segment : Segment
    below : int or None
        Base offset of the next segment.
    options : DecodeOptions
    since : SegmentTransactions, optional
        The result for an earlier, shorter state of the segment's file, to resume from.
    """
    start, events = (0, None) if since is None or not since.end else (since.end, since.events)
    skips = options.on_error == "skip"
    # With "raise" a read ends at the first bad checksum, so headers and markers are enough, and payloads of a closed
    # segment are not read. Otherwise all checksums are verified, since a wrong length could hide a marker.
    headers_only = options.on_error == "raise" and options.crc == "verify"
    recorder = TransactionRecorder(check_crc=headers_only, limits=options.limits, events=events)
    entries = _read_index(segment, below) if skips else _NO_ENTRIES
    reached = -1 if segment.base_offset is None else segment.base_offset - 1
    tracking = tracking_options(replace(options, on_error="skip", crc="skip" if headers_only else options.crc))
    end, is_damaged, ends_damaged = start, False, False
    for table in read_tables(segment, start, segment.size, tracking, SMALL_TABLE_BYTES):
        good, lost = counts_for_transactions(table.batches, tracking)
        is_damaged |= bool(table.losses) or not good.all()
        if is_damaged and start:
            # The batches before damage decide how it is handled, so the segment is followed from its beginning.
            return segment_transactions(segment, below, options)
        if not is_damaged:
            steps: list[_Step] = []
        elif skips:
            steps = _lost_aborts(table, good, lost, entries, reached, ends_damaged)
        else:
            steps = _interruptions(segment, table, good | lost, table.batches[good], reached)
        _record(segment, recorder, table, good | lost, lost, steps)
        bad_positions = [loss.position for loss in table.losses] + table.batches["position"][~good].tolist()
        if good.any():
            last = table.batches[good][-1]
            reached, ends_damaged = int(last["last_offset"]), max(bad_positions, default=-1) > int(last["position"])
        else:
            ends_damaged |= bool(bad_positions)
        end += table.consumed
    if ends_damaged:
        # The entries are all below the next segment.
        for entry in entries[entries["last_offset"] > reached]:
            recorder.abort(*_as_abort(entry))
    return SegmentTransactions(0 if is_damaged else end, recorder.events, below is not None)


def _read_index(segment: Segment, below: int | None) -> npt.NDArray[np.void]:
    """Return the plausible entries of a segment's ``.txnindex``."""
    try:
        entries = segment.transaction_index()
    except (KbatchError, OSError):
        return _NO_ENTRIES
    sound = (entries["producer_id"] >= 0) & (entries["first_offset"] < entries["last_offset"])
    if below is not None:
        sound &= entries["last_offset"] < below
    return entries[sound]


def _as_abort(entry: np.void) -> tuple[int, int, int]:
    return int(entry["producer_id"]), int(entry["first_offset"]), int(entry["last_offset"])


def _lost_aborts(
    table: RecordTable,
    is_good: npt.NDArray[np.bool_],
    is_lost: npt.NDArray[np.bool_],
    entries: npt.NDArray[np.void],
    reached: int,
    begins_damaged: bool,
) -> list[_Step]:
    """Return the entries of a ``.txnindex`` that count as ABORT markers, each with the row that follows its marker.

    `reached` is the last good offset before the table; `begins_damaged` states whether damage follows it.
    """
    good = table.batches[is_good]
    followed = table.batches[is_good | is_lost]
    good_rows = np.flatnonzero(is_good[is_good | is_lost])
    damage = np.concatenate(
        [table.batches["position"][~is_good], np.array([loss.position for loss in table.losses], np.int64)]
    )
    # Good rows directly after damage; `len(good)` for damage after the last row.
    cuts = np.unique(np.searchsorted(good["position"], damage))
    if begins_damaged:
        cuts = np.union1d(cuts, [0])
    lasts = np.append(reached, good["last_offset"])
    gaps = _lost_markers(entries, cuts[cuts < len(good)], lasts, first_offsets(good))
    steps: list[_Step] = [(int(good_rows[cut]), _as_abort(entry)) for cut, entry in gaps]
    # The header of a damaged marker leaves its transaction undecided, so the entry is applied before it.
    by_marker = {(entry["producer_id"], entry["last_offset"]): entry for entry in entries}
    for row in np.flatnonzero(is_lost[is_good | is_lost]).tolist():
        entry = by_marker.get((followed["producer_id"][row], followed["base_offset"][row]))
        if entry is not None:
            steps.append((row, _as_abort(entry)))
    return sorted(steps, key=lambda each: each[0])


def _interruptions(
    segment: Segment, table: RecordTable, is_followed: npt.NDArray[np.bool_], good: npt.NDArray[np.void], reached: int
) -> list[_Step]:
    """Return the last good offset before each loss that may hide markers, with the row that follows the loss.

    A loss is left out if the batch lengths lead from its beginning to its end: all its markers then have rows.
    """
    steps: list[_Step] = []
    for loss in table.losses:
        if scan_part(segment.window(loss.position, loss.position + loss.length)).consumed == loss.length:
            continue
        before = int(np.searchsorted(good["position"], loss.position))
        offset = reached if before == 0 else int(good["last_offset"][before - 1])
        row = np.searchsorted(table.batches["position"][is_followed], loss.position + loss.length)
        steps.append((int(row), offset))
    return steps


def _lost_markers(
    entries: npt.NDArray[np.void],
    cuts: npt.NDArray[np.intp],
    lasts: npt.NDArray[np.int64],
    firsts: npt.NDArray[np.int64],
) -> Iterator[tuple[int, np.void]]:
    """Yield the entries whose markers are lost, in log order, each with the row that follows its marker.

    A marker is lost if its offset is missing between two good batches with damage between them. `lasts` has the last
    offset before each row.
    """
    if not len(cuts) or not len(entries):
        return
    at = np.searchsorted(firsts[cuts], entries["last_offset"], "right")
    for entry, place in zip(entries, at.tolist(), strict=True):
        if place < len(cuts) and lasts[cuts[place]] < entry["last_offset"] < firsts[cuts[place]]:
            yield int(cuts[place]), entry


def _record(
    segment: Segment,
    recorder: TransactionRecorder,
    table: RecordTable,
    is_followed: npt.NDArray[np.bool_],
    is_lost: npt.NDArray[np.bool_],
    steps: list[_Step],
) -> None:
    """Record the followed batches of a table, and apply each step before its row."""
    rows, lost = table.batches[is_followed], is_lost[is_followed]
    done = 0
    for row, step in [*steps, (len(rows), None)]:
        part = rows[done:row]
        # The recorder reads markers and, if it verifies checksums, batches that begin a transaction.
        read = part if recorder.check_crc else part[(part["attributes"] & ATTRIBUTE_CONTROL) != 0]
        data, start = table.data[:0], 0
        if len(read) and not table.losses:
            # The bytes of a table without losses begin with its first batch.
            data, start = table.data, int(table.batches["position"][0])
        elif len(read):
            start = int(read["position"][0])
            data = segment.window(start, int(read["position"][-1] + read["size"][-1]))
        recorder.add(data, part, start, lost[done:row])
        done = row
        if isinstance(step, int):
            recorder.interrupt(step)
        elif step is not None:
            recorder.abort(*step)
