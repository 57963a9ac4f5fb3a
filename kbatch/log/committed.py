"""What the whole of a log says about its transactions, for read_committed.

A marker may stand in a later table, segment or task than the records that it decides. So the log's headers are followed
before anything is decoded: each segment by itself (`segment_transactions`), in threads or tasks, and what they tell is
joined in the order of the log (`join_transactions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.checksums import good_crcs
from kbatch.decode_options import DecodeOptions
from kbatch.errors import KbatchError
from kbatch.format import (
    ABORTED_DTYPE,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_TRANSACTIONAL,
    NO_TIMESTAMP,
)
from kbatch.framing import first_offsets
from kbatch.isolation import counts_for_transactions
from kbatch.log.reading import read_tables
from kbatch.log.segment import Segment
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
_MOST_OFFSETS = (1 << 63) - 1
_NO_ENTRIES = np.empty(0, ABORTED_DTYPE)
# An entry of a .txnindex file, with its version (TXI-R1).
_ENTRY_SIZE = 34


class _Index(NamedTuple):
    """What a segment's ``.txnindex`` tells of, as far as it can be true; and whether the file is there and all is."""

    entries: npt.NDArray[np.void]
    is_whole: bool


_NO_INDEX = _Index(_NO_ENTRIES, False)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTransactions:
    """What the headers of one segment tell about transactions, whatever is open before it. Small, and can be pickled.

    Attributes
    ----------
    base_offset : int
    end : int
        Byte up to which the headers were followed; 0 if it was by the bytes, over damage.
    events : ndarray of EVENT_DTYPE
        What opens transactions and what ends them.
    index : tuple
        Under ``on_error="skip"`` what its ``.txnindex`` says.
    is_closed : bool
        Whether another segment follows, so that it isn't written any more.
    """

    base_offset: int
    end: int
    events: npt.NDArray[np.void]
    index: _Index = _NO_INDEX
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
    """Follow the transactions of a log over its batch headers.

    Parameters
    ----------
    segments : sequence of Segment
        All of the log, in order. Where the older ones were deleted, a transaction begins at its first batch that is
        left (TXI-R6).
    options : DecodeOptions
        What damage means (`on_error`, `crc`, `limits`).
    start_offset, stop_offset : int, optional
        What is wanted is what concerns these offsets. It begins at the segment of `start_offset`, or the one before, if
        producer snapshots say what is open there, and ends where everything that began below `stop_offset` is decided.
    walk : callable, optional
        To have segments walked side by side: it is given a function and the numbers of segments, in order, and returns
        an iterable of what the function makes of them. What isn't needed any more is not asked of it.

    Returns
    -------
    Transactions
        With offsets given, those that reach into them, and the last stable offset if it lies below `stop_offset`.

    Notes
    -----
    Of the bytes between the headers only those of markers, and of batches that open a transaction, are looked at. Where
    ``on_error="skip"`` passes over damage, the segment that has it is followed by the bytes, checksums and all, so that
    markers behind it are found just as the decoding finds them. With "raise" and "stop" nothing after damage is read.

    A marker that is lost leaves its transaction undecided, unless the segment's ``.txnindex`` tells of it: where an
    offset is missing between good batches, and bytes between them are damaged, an entry of that offset counts as the
    ABORT marker. Where the header of a marker is still there, and only its checksum is bad, an index without such an
    entry tells that it was a COMMIT: the index lists every abort. The bytes come first: where they contradict the
    index, or no damage is, it isn't looked at.

    With "skip" the log is followed from its beginning whatever `start_offset` is: damage may have cost markers, and the
    same offsets are then withheld from every read.
    """
    first, already_open = 0, list[OpenTransaction]()
    if start_offset is not None and options.on_error != "skip":
        first, already_open = open_before(segments, segment_before(segments, start_offset), options)
    tracker = TransactionTracker(already_open)
    parts = []

    def one(number: int) -> SegmentTransactions:
        return segment_transactions(segments[number], _below(segments, number), options)

    for part in walk(one, range(first, len(segments))):
        parts.append(part)
        tracker.replay(part.events)
        after = first + len(parts)
        if stop_offset is None or after == len(segments) or (segments[after].base_offset or 0) < stop_offset:
            continue
        known = tracker.result()
        if all(begun >= stop_offset for _, begun in known.pending):
            break
    transactions = _judge(tracker.result(), parts)
    return within_offsets(transactions, start_offset, stop_offset)


def join_transactions(
    parts: Sequence[SegmentTransactions], already_open: Iterable[OpenTransaction] = ()
) -> Transactions:
    """Tell what segments that follow each other say together.

    Parameters
    ----------
    parts : sequence of SegmentTransactions
    already_open : iterable of OpenTransaction
        What is open before the first of them.
    """
    tracker = TransactionTracker(already_open)
    for part in parts:
        tracker.replay(part.events)
    return _judge(tracker.result(), parts)


def within_offsets(transactions: Transactions, start_offset: int | None, stop_offset: int | None) -> Transactions:
    """Choose the transactions that reach into some offsets; the last stable offset counts if it lies below the end.

    Undecided ones count that ended before, too: damage cost their markers, whatever a read makes of that.
    """
    if start_offset is None and stop_offset is None:
        return transactions
    start = 0 if start_offset is None else start_offset
    stop = _MOST_OFFSETS if stop_offset is None else stop_offset
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
    bases = [segment.base_offset or 0 for segment in segments]
    return max(0, int(np.searchsorted(bases, offset, "right")) - 1)


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
        for window, rows in file.walk_windows(segment.seek_offset(offset)):
            row: np.void = rows[0]
            kind = int(row["attributes"]) & (ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL)
            if int(row["base_offset"]) != offset or kind != ATTRIBUTE_TRANSACTIONAL or int(row["magic"]) != 2:
                return None
            if options.crc == "verify" and not good_crcs(window, rows[:1], int(row["position"]))[0]:
                return None
            return row
    return None


def segment_transactions(
    segment: Segment, below: int | None, options: DecodeOptions, since: SegmentTransactions | None = None
) -> SegmentTransactions:
    """Follow the headers of one segment of a log.

    Parameters
    ----------
    segment : Segment
    below : int or None
        Where the next segment begins.
    options : DecodeOptions
    since : SegmentTransactions, optional
        What this gave of the segment when its file was shorter: it is gone on with.
    """
    index = _read_index(segment, below) if options.on_error == "skip" else _NO_INDEX
    entries = index.entries
    if since is not None and since.end and since.index.entries.tolist() == entries[: len(since.index.entries)].tolist():
        recorder, end = _recorder(options, since), since.end
        entries = entries[len(since.index.entries) :]
    else:
        recorder, end = _recorder(options), 0
    there = np.zeros(len(entries), np.bool_)
    with segment.open() as file:
        for window, rows in file.walk_windows(end):
            start = int(rows["position"][0])
            recorder.add(window, rows, start)
            end = int(rows["position"][-1] + rows["size"][-1])
            if len(entries):
                markers = rows[np.isin(rows["last_offset"], entries["last_offset"])]
                good = markers[good_crcs(window, markers, start)] if len(markers) else markers
                there |= np.isin(entries["last_offset"], good["last_offset"])
        # Then the walk doesn't tell all: it doesn't reach the end, or a marker of the index isn't there.
        damaged = options.on_error == "skip" and not (there.all() and file.tail_at(end).kind in ("none", "zeros"))
    if damaged:
        recorder, end = _recorder(options), 0
        _follow_bytes(segment, recorder, options, index.entries)
    return SegmentTransactions(segment.base_offset or 0, end, recorder.events, index, below is not None)


def _recorder(options: DecodeOptions, since: SegmentTransactions | None = None) -> TransactionRecorder:
    events = None if since is None else since.events
    return TransactionRecorder(check_crc=options.crc == "verify", limits=options.limits, events=events)


def _judge(transactions: Transactions, parts: Sequence[SegmentTransactions]) -> Transactions:
    """Decide by the indexes what lost markers left undecided."""
    indexes, base_offsets = [part.index for part in parts], [part.base_offset for part in parts]
    undecided, aborted = transactions.undecided, transactions.aborted
    if not len(undecided) or not any(index.is_whole or len(index.entries) for index in indexes):
        return transactions
    entries = np.concatenate([index.entries for index in indexes])
    listed = {(pid, last): first for pid, first, last, _ in entries.tolist()}
    is_abort = np.array([listed.get((pid, last), first + 1) <= first for pid, first, last, _ in undecided.tolist()])
    # Only of an index that agrees with all else that is known of its segment its silence is believed.
    known = {(pid, last) for pid, _, last, _ in np.concatenate([aborted, undecided[is_abort]]).tolist()}
    contradicted = {last for pair in known ^ listed.keys() for last in pair[1:]}
    wrong = set(_segments_of(np.array(sorted(contradicted), np.int64), base_offsets).tolist())
    believed = [index.is_whole and i not in wrong for i, index in enumerate(indexes)]
    silent = np.array(believed)[_segments_of(undecided["last_offset"], base_offsets)]
    is_commit = ~is_abort & silent & ~_are_touched(undecided, entries)
    aborted = np.concatenate([aborted, undecided[is_abort]])
    return replace(
        transactions,
        aborted=aborted[np.argsort(aborted["last_offset"], kind="stable")] if is_abort.any() else aborted,
        undecided=undecided[~is_abort & ~is_commit],
    )


def _segments_of(offsets: npt.NDArray[np.int64], base_offsets: Sequence[int]) -> npt.NDArray[np.intp]:
    return np.maximum(np.searchsorted(base_offsets, offsets, "right") - 1, 0)


def _are_touched(ranges: npt.NDArray[np.void], entries: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Tell the transactions that overlap with an aborted one of their producer: what ended them was no marker."""
    out = np.zeros(len(ranges), np.bool_)
    for i, row in enumerate(ranges):
        own = entries[entries["producer_id"] == row["producer_id"]]
        out[i] = np.any((own["first_offset"] <= row["last_offset"]) & (own["last_offset"] >= row["first_offset"]))
    return out


def _read_index(segment: Segment, below: int | None) -> _Index:
    path = segment.sibling(".txnindex")
    try:
        entries = segment.transaction_index()
        found = segment.storage.find(path) if segment.has(".txnindex") else None
        size = None if found is None else found.size
    except (KbatchError, OSError):
        return _NO_INDEX
    sound = (entries["producer_id"] >= 0) & (entries["first_offset"] < entries["last_offset"])
    if below is not None:
        sound &= entries["last_offset"] < below
    return _Index(entries[sound], size == len(entries) * _ENTRY_SIZE and bool(sound.all()))


def _follow_bytes(
    segment: Segment,
    tracker: TransactionTracker,
    options: DecodeOptions,
    entries: npt.NDArray[np.void],
) -> None:
    options = DecodeOptions(crc=options.crc, on_error="skip", limits=options.limits, framing_only=True)
    reached = -1 if segment.base_offset is None else segment.base_offset - 1
    damaged = False
    for table in read_tables(segment, 0, segment.size, options, _WINDOW):
        is_good, is_lost = counts_for_transactions(table.batches, options)
        good = table.batches[is_good]
        # With the markers that have a header still; before row i of `good` stand so many of them.
        followed = table.batches[is_good | is_lost]
        lost_before = np.append(np.cumsum(is_lost)[is_good], is_lost.sum())
        damage = np.concatenate(
            [table.batches["position"][~is_good], np.array([loss.position for loss in table.losses], np.int64)]
        )
        # Damage stands before these rows; `len(good)`: after the last.
        cuts = np.unique(np.searchsorted(good["position"], damage))
        if damaged:
            cuts = np.union1d(cuts, [0])
        damaged = len(cuts) > 0 and cuts[-1] == len(good)
        lasts = np.append(reached, good["last_offset"])
        done = 0
        for cut, lost in _lost_markers(entries, cuts[cuts < len(good)], lasts, first_offsets(good)):
            until = cut + int(lost_before[cut])
            _add(segment, tracker, followed[done:until])
            done = until
            tracker.abort(int(lost["producer_id"]), int(lost["first_offset"]), int(lost["last_offset"]))
        _add(segment, tracker, followed[done:])
        reached = int(lasts[-1])
    if damaged:
        # The entries are all below the next segment.
        for lost in entries[entries["last_offset"] > reached]:
            tracker.abort(int(lost["producer_id"]), int(lost["first_offset"]), int(lost["last_offset"]))


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


def _add(segment: Segment, tracker: TransactionTracker, rows: npt.NDArray[np.void]) -> None:
    if len(rows):
        start = int(rows["position"][0])
        tracker.add(segment.window(start, int(rows["position"][-1] + rows["size"][-1])), rows, start)
