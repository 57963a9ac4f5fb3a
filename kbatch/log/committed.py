"""What the whole of a log says about its transactions, for read_committed.

A marker may stand in a later table, segment or task than the records that it decides. So the log's headers are followed
once, from its first batch to its last, before anything is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.checksums import good_crcs
from kbatch.decoding import DecodeOptions, counts_for_transactions
from kbatch.errors import KbatchError
from kbatch.format import ABORTED_DTYPE
from kbatch.framing import first_offsets
from kbatch.log.reading import read_tables
from kbatch.log.segment import Segment
from kbatch.transactions import Transactions, TransactionTracker

__all__ = ["follow_transactions"]

_WINDOW = 16 << 20
_NO_ENTRIES = np.empty(0, ABORTED_DTYPE)
# An entry of a .txnindex file, with its version (TXI-R1).
_ENTRY_SIZE = 34


class _Index(NamedTuple):
    """What a segment's ``.txnindex`` tells of, as far as it can be true; and whether the file is there and all is."""

    entries: npt.NDArray[np.void]
    is_whole: bool


_NO_INDEX = _Index(_NO_ENTRIES, False)


def follow_transactions(segments: Sequence[Segment], options: DecodeOptions) -> Transactions:
    """Follow the transactions of a log over its batch headers.

    Parameters
    ----------
    segments : sequence of Segment
        All of the log, in order. Where the older ones were deleted, a transaction begins at its first batch that is
        left (TXI-R6).
    options : DecodeOptions
        What damage means (`on_error`, `crc`, `limits`).

    Returns
    -------
    Transactions

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
    """
    tracker = TransactionTracker(check_crc=options.crc == "verify", limits=options.limits)
    indexes: list[_Index] = []
    for i, segment in enumerate(segments):
        below = segments[i + 1].base_offset if i + 1 < len(segments) else None
        indexes.append(_read_index(segment, below) if options.on_error == "skip" else _NO_INDEX)
        entries = indexes[-1].entries
        if options.on_error == "skip" and _is_damaged(segment, entries):
            _follow_bytes(segment, tracker, options, entries)
        else:
            with segment.open() as file:
                for window, rows in file.walk_windows(0):
                    tracker.add(window, rows, int(rows["position"][0]))
    return _judge(tracker.result(), indexes, [segment.base_offset or 0 for segment in segments])


def _judge(transactions: Transactions, indexes: Sequence[_Index], base_offsets: Sequence[int]) -> Transactions:
    """Decide by the indexes what lost markers left undecided."""
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


def _is_damaged(segment: Segment, entries: npt.NDArray[np.void]) -> bool:
    """Whether a walk over headers doesn't tell all: it doesn't reach the end, or a marker of the index isn't there."""
    there = np.zeros(len(entries), np.bool_)
    end = 0
    with segment.open() as file:
        for window, rows in file.walk_windows(0):
            end = int(rows["position"][-1] + rows["size"][-1])
            markers = rows[np.isin(rows["last_offset"], entries["last_offset"])]
            good = markers[good_crcs(window, markers, int(rows["position"][0]))] if len(markers) else markers
            there |= np.isin(entries["last_offset"], good["last_offset"])
        return file.tail_at(end).kind not in ("none", "zeros") or not there.all()


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
