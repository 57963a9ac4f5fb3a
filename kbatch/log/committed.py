"""The transactions of a whole log, for read_committed.

A marker may be in a later table, segment or task than the records that it decides. So the log's batches are followed
before anything is decoded, without their records: each segment by itself (`segment_transactions`), in threads or tasks,
and the results are joined in the order of the log (`join_transactions`).
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

__all__ = [
    "SegmentTransactions",
    "follow_transactions",
    "join_transactions",
    "open_before",
    "segment_before",
    "segment_transactions",
    "within_offsets",
]

_WINDOW = 16 << 20
_NO_ENTRIES = np.empty(0, ABORTED_DTYPE)

# What happens before the row of a batch: an entry of a .txnindex counts as an ABORT marker (producer id, first and last
# offset), or damage after an offset leaves undecided whatever is open.
_Step = tuple[int, tuple[int, int, int] | int]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTransactions:
    """What begins and ends transactions in one segment, whatever is open before it. Small, and can be pickled.

    Attributes
    ----------
    end : int
        Byte up to which the batches were followed; 0 if there is damage: then it cannot be resumed from.
    events : ndarray of EVENT_DTYPE
        What opens transactions and what ends them.
    is_closed : bool
        Whether another segment follows, so that it isn't written any more.
    """

    end: int
    events: npt.NDArray[np.void]
    is_closed: bool = True


# How `follow_transactions` has segments walked: as the built-in `map`, which does it one after the other when asked.
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
        All of the log, in order. Where the older ones were deleted, a transaction begins at its first batch that is
        left (TXI-R6).
    options : DecodeOptions
        What damage means (`on_error`, `crc`, `limits`).
    start_offset, stop_offset : int, optional
        Only transactions that reach into these offsets are needed. The walk begins at the segment of `start_offset`, or
        the one before, if producer snapshots list what is open there, and ends where everything that began below
        `stop_offset` is decided.
    walk : callable, optional
        To have segments walked side by side: it is given a function and the numbers of segments, in order, and returns
        an iterable of the results, which is read only as far as needed.

    Returns
    -------
    Transactions
        With offsets given, those that reach into them, and the last stable offset if it lies below `stop_offset`.

    Notes
    -----
    Each segment is framed as for decoding, and each checksum computed, as `options.crc` says. Where ``on_error="skip"``
    passes over damage, what counts behind it is what the decoding finds there. With "raise" and "stop" a read ends at
    damage, but it may begin after it. So damage is passed over too, and what is open where it begins stays undecided,
    unless the lengths of batches lead from there to its end.

    A marker that is lost leaves its transaction undecided, unless the segment's ``.txnindex`` lists it: where an
    offset is missing between good batches, and bytes between them are damaged, an entry of that offset counts as the
    ABORT marker. No entry means nothing: a commit is never inferred. Where the log contradicts an entry, or no bytes
    are damaged, it is ignored.

    With "skip" the log is followed from its beginning whatever `start_offset` is: damage may have cost markers, and the
    same offsets are then withheld from every read.
    """
    first, already_open = 0, list[OpenTransaction]()
    if start_offset is not None and options.on_error != "skip":
        first, already_open = open_before(segments, segment_before(segments, start_offset), options)
    tracker = TransactionTracker(already_open)
    after = first

    def one(number: int) -> SegmentTransactions:
        return segment_transactions(segments[number], _below(segments, number), options)

    for part in walk(one, range(first, len(segments))):
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
    """Return the transactions of segments that follow each other.

    Parameters
    ----------
    parts : sequence of SegmentTransactions
    already_open : iterable of OpenTransaction
        What is open before the first of them.
    """
    tracker = TransactionTracker(already_open)
    for part in parts:
        tracker.replay(part.events)
    return tracker.result()


def within_offsets(transactions: Transactions, start_offset: int | None, stop_offset: int | None) -> Transactions:
    """Choose the transactions that reach into some offsets; the last stable offset counts if it lies below the end.

    Undecided ones count that ended before, too: damage cost their markers, whatever a read makes of that.
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
    """Say from which segment on a log can be followed for what segment `number` holds, and what is open there.

    Returns
    -------
    int
        The segment before it, or 0.
    list of OpenTransaction
        Those that are open at its beginning. First batches that were deleted since don't count (TXI-R6).

    Notes
    -----
    A broker writes a ``.snapshot`` when it rolls a segment: the producers, and where the transaction of each began
    that is open (TXI-R7; ``ProducerStateManager.takeSnapshot``). Those that have expired are left out, but never with
    an open transaction. Nothing in the file says of which log it is, or of which time. So the snapshots of two segments
    in a row are asked, and the segment between them: what is open in the first has to have its batches in the log, and
    the headers have to lead from the first to the second. Else the log is followed from its beginning.
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
    """Return what is open by the snapshot of a segment, if it can be true; by first offset."""
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
    """Return the header of the good transactional batch that begins at `offset`, if there is one."""
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
        Where the next segment begins.
    options : DecodeOptions
    since : SegmentTransactions, optional
        What this returned when the segment's file was shorter, to resume from.
    """
    start, events = (0, None) if since is None or not since.end else (since.end, since.events)
    skips = options.on_error == "skip"
    # With "raise" a read ends with an error at the first bad checksum: headers and markers are enough, and payloads of
    # a closed segment are not read. Else a batch with a wrong length that hides a marker must not be believed.
    headers_only = options.on_error == "raise" and options.crc == "verify"
    recorder = TransactionRecorder(check_crc=headers_only, limits=options.limits, events=events)
    entries = _read_index(segment, below) if skips else _NO_ENTRIES
    reached = -1 if segment.base_offset is None else segment.base_offset - 1
    tracking = tracking_options(replace(options, on_error="skip", crc="skip" if headers_only else options.crc))
    end, is_damaged, ends_damaged = start, False, False
    for table in read_tables(segment, start, segment.size, tracking, _WINDOW):
        good, lost = counts_for_transactions(table.batches, tracking)
        is_damaged |= bool(table.losses) or not good.all()
        if is_damaged and start:
            # What stands before damage decides what is found in it.
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
    """Return the entries of a segment's ``.txnindex`` that can be true."""
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
    """Return the entries of a ``.txnindex`` that count as ABORT markers, and the rows before which they stood.

    `reached` is the last good offset before the table, and `begins_damaged` whether damage follows it.
    """
    good = table.batches[is_good]
    followed = table.batches[is_good | is_lost]
    good_rows = np.flatnonzero(is_good[is_good | is_lost])
    damage = np.concatenate(
        [table.batches["position"][~is_good], np.array([loss.position for loss in table.losses], np.int64)]
    )
    # There is damage before these good rows; `len(good)`: after the last.
    cuts = np.unique(np.searchsorted(good["position"], damage))
    if begins_damaged:
        cuts = np.union1d(cuts, [0])
    lasts = np.append(reached, good["last_offset"])
    gaps = _lost_markers(entries, cuts[cuts < len(good)], lasts, first_offsets(good))
    steps: list[_Step] = [(int(good_rows[cut]), _as_abort(entry)) for cut, entry in gaps]
    # If the marker still has its header, the entry is applied first: the header alone would leave it undecided.
    by_marker = {(entry["producer_id"], entry["last_offset"]): entry for entry in entries}
    for row in np.flatnonzero(is_lost[is_good | is_lost]).tolist():
        entry = by_marker.get((followed["producer_id"][row], followed["base_offset"][row]))
        if entry is not None:
            steps.append((row, _as_abort(entry)))
    return sorted(steps, key=lambda each: each[0])


def _interruptions(
    segment: Segment, table: RecordTable, is_followed: npt.NDArray[np.bool_], good: npt.NDArray[np.void], reached: int
) -> list[_Step]:
    """Return the last good offsets before damage that may hold any number of markers, and the rows it stands before.

    Where lengths lead from its beginning to its end, there are no more batches than those: the markers have rows.
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
    """Yield the entries whose markers are lost, in the order of the log, and the rows before which they stood.

    A marker is lost if its offset is missing between two good batches, and there is damage between them: without that,
    what the log says is all that there is. `lasts` are the last offsets before each row.
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
    """Record the rows of a table that are followed, and each step before its row."""
    rows, lost = table.batches[is_followed], is_lost[is_followed]
    done = 0
    for row, step in [*steps, (len(rows), None)]:
        part = rows[done:row]
        # The recorder reads markers, and if it verifies checksums, also batches that begin a transaction.
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
