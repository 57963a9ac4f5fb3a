"""What the whole of a log says about its transactions, for read_committed.

A marker may stand in a later table, segment or task than the records that it decides. So the log's headers are followed
once, from its first batch to its last, before anything is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    ABORT marker. The bytes come first: where they contradict the index, or no damage is, it isn't looked at.
    """
    tracker = TransactionTracker(check_crc=options.crc == "verify", limits=options.limits)
    for i, segment in enumerate(segments):
        below = segments[i + 1].base_offset if i + 1 < len(segments) else None
        entries = _entries(segment, below) if options.on_error == "skip" else _NO_ENTRIES
        if options.on_error == "skip" and _is_damaged(segment, entries):
            _follow_bytes(segment, tracker, options, entries)
        else:
            with segment.open() as file:
                for window, rows in file.walk_windows(0):
                    tracker.add(window, rows, int(rows["position"][0]))
    return tracker.result()


def _entries(segment: Segment, below: int | None) -> npt.NDArray[np.void]:
    """Read the aborted transactions that the index of a segment tells of, as far as they can be true."""
    try:
        entries = segment.transaction_index()
    except KbatchError:
        return _NO_ENTRIES
    sound = (entries["producer_id"] >= 0) & (entries["first_offset"] < entries["last_offset"])
    if below is not None:
        sound &= entries["last_offset"] < below
    return entries[sound]


def _is_damaged(segment: Segment, entries: npt.NDArray[np.void]) -> bool:
    """Whether a walk over headers doesn't tell all: it doesn't reach the end, or a marker of the index isn't there."""
    if segment.last_batch(use_indexes=False)[1].kind not in ("none", "zeros"):
        return True
    if not len(entries):
        return False
    there = np.zeros(len(entries), np.bool_)
    with segment.open() as file:
        for window, rows in file.walk_windows(0):
            markers = rows[np.isin(rows["last_offset"], entries["last_offset"])]
            good = markers[good_crcs(window, markers, int(rows["position"][0]))]
            there |= np.isin(entries["last_offset"], good["last_offset"])
    return not there.all()


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
        is_good = counts_for_transactions(table.batches["status"], options)
        good = table.batches[is_good]
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
            _add(segment, tracker, good[done:cut])
            done = cut
            tracker.abort(int(lost["producer_id"]), int(lost["first_offset"]), int(lost["last_offset"]))
        _add(segment, tracker, good[done:])
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
