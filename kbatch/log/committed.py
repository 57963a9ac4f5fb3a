"""The transactions of a whole log, for read_committed.

A marker may be in a later table, segment or task than the records of its transaction. Before records are decoded, the
transactions are therefore collected from the batches alone: from each segment separately (`segment_transactions`),
possibly in threads or tasks. The results are joined in log order (`join_transactions`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.batches.checksums import has_good_batch
from kbatch.batches.framing import first_offsets, max_entry_size
from kbatch.errors import KbatchError, LimitExceededError
from kbatch.format import (
    ABORTED_DTYPE,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_DTYPE,
    BATCH_HEADER_SIZE,
    INT64_MAX,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    Limits,
)
from kbatch.kernels.search import last_claimed
from kbatch.log.reading import read_tables
from kbatch.log.segment import Segment, has_batch
from kbatch.read.budget import followed_table_bytes, table_limit
from kbatch.read.committed import counts_for_transactions, tracking_options
from kbatch.read.damage import most_records
from kbatch.read.decode_options import DecodeOptions
from kbatch.records.loss_list import LossList
from kbatch.table import RecordTable
from kbatch.transactions import (
    EVENT_DTYPE,
    LossFollower,
    OpenTransaction,
    TransactionRecorder,
    Transactions,
    TransactionTracker,
    follow_batches,
    lost_bytes,
)
from kbatch.transactions.tracker import MAX_TABLE_BYTES
from kbatch.tuning import MIN_SPLIT_TABLE

__all__ = [
    "SegmentTransactions",
    "follow_transactions",
    "join_transactions",
    "open_before",
    "segment_before",
    "segment_transactions",
]

_NO_ENTRIES = np.empty(0, ABORTED_DTYPE)
# Events that are joined at once.
_JOINED = 16384
# The bytes in which the headers of lost entries are read at once.
_HEADER_WINDOW = 1 << 16


class _Budget(NamedTuple):
    """The most memory of transactions, or None, and the parameter that raises it."""

    max_bytes: int | None
    name: str = MAX_TABLE_BYTES

    def less(self, used: int) -> _Budget:
        return self if self.max_bytes is None else self._replace(max_bytes=max(self.max_bytes - used, 0))


def _budget(limits: Limits, max_bytes: int | None = None) -> _Budget:
    limit = table_limit(limits)
    if max_bytes is None or max(max_bytes, MIN_SPLIT_TABLE) >= limit:
        return _Budget(limit)
    return _Budget(max(max_bytes, MIN_SPLIT_TABLE), "max_bytes")


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTransactions:
    """The transaction events of one segment, independent of the transactions open before it.

    Attributes
    ----------
    events : ndarray of EVENT_DTYPE
        The batches that open transactions, and the markers that end them.
    is_closed : bool
        Whether another segment follows, so that brokers no longer append to this one.
    path : str
    size : int
        Of the segment. The positions of the events are in its file.
    offsets : (int, int) or None
        First offset of the first good batch, and last offset of the last one; None without one.
    resumption : _Resumption or None
        Where the next call resumes if the file has grown; None if from its beginning.
    """

    events: npt.NDArray[np.void]
    is_closed: bool
    path: str
    size: int
    offsets: tuple[int, int] | None
    resumption: _Resumption | None = None

    @property
    def end(self) -> int:
        """The position after the batch at which the next call resumes; 0 if it reads the segment from its beginning."""
        return 0 if self.resumption is None else self.resumption.end

    def is_of(self, segment: Segment) -> bool:
        """Whether a segment has the batch at which the next call resumes; True if it does not resume."""
        known = self.resumption
        return known is None or has_batch(segment, known.last, known.end, known.crc, known.next_offset)


@dataclass(frozen=True, slots=True, eq=False)
class _Resumption:
    """A good batch up to which a segment was followed, and what is known there.

    No damage before it extends beyond it, so bytes that are appended later do not change what was read up to it.

    Attributes
    ----------
    last, end : int
        Where the batch begins and ends. Reading resumes at the batch itself, whose offset shows which entries may
        follow it after damage.
    crc : int
        The checksum in its header.
    next_offset, first_offset : int or None
        The offset after this batch, and that of the first good batch.
    events : ndarray of EVENT_DTYPE
    entries : ndarray of ABORTED_DTYPE
        The entries of the index with offsets below `next_offset`.
    """

    last: int
    end: int
    crc: int
    next_offset: int | None
    first_offset: int | None
    events: npt.NDArray[np.void]
    entries: npt.NDArray[np.void]


# Applies a function to the numbers of segments, like the built-in `map`, which does so lazily and serially.
Walk = Callable[[Callable[[int], SegmentTransactions], Sequence[int]], Iterable[SegmentTransactions]]


def follow_transactions(
    segments: Sequence[Segment],
    options: DecodeOptions,
    *,
    start_offset: int | None = None,
    stop_offset: int | None = None,
    max_bytes: int | None = None,
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
    max_bytes : int, optional
        The most memory of the transactions, from 16 MiB on; by default, and at most, the limit of a table. Beyond it,
        LimitExceededError.
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
    Each segment is framed as for decoding, and checksums are verified according to `options.crc`: a damaged header may
    hide a marker. With ``on_error="skip"`` the walk resumes after damage at the same batch as decoding does. With
    "raise" and "stop" a read ends at damage, but it may also begin after it, so the walk skips damage too.

    A transaction that is open where bytes were lost is undecided if its marker may have been among them, and with
    "raise" and "stop" in any case: see `LossFollower`. With "skip" the segment's ``.txnindex`` is used: an entry counts
    as the ABORT marker if its offset is missing between two good batches, and bytes between them are damaged. An entry
    for which no bytes are damaged is ignored. A missing entry never implies a commit.

    With "skip" the log is always followed from its beginning: damage may have destroyed markers, and every read must
    withhold the same offsets.
    """
    first, already_open = 0, list[OpenTransaction]()
    if start_offset is not None and options.on_error != "skip":
        first, already_open = open_before(segments, segment_before(segments, start_offset), options)
    budget = _budget(options.limits, max_bytes)
    joined = _JoinedSegments(already_open, budget=budget)
    framing = _pass_options(options)

    def follow(number: int) -> SegmentTransactions:
        # What is held of earlier segments counts too.
        rest = budget.less(joined.tracker.used_bytes)
        return segment_transactions(
            segments[number], _below(segments, number), options, budget=rest, pass_options=framing
        )

    for after, part in enumerate(walk(follow, range(first, len(segments))), first + 1):
        joined.add(part)
        if stop_offset is None or after == len(segments) or (segments[after].base_offset or 0) < stop_offset:
            continue
        if (stable := joined.tracker.last_stable_offset) is None or stable >= stop_offset:
            break
    transactions = joined.result()
    if start_offset is None and stop_offset is None:
        return transactions
    return transactions._within(start_offset or 0, INT64_MAX if stop_offset is None else stop_offset)


class _JoinedSegments:
    """Joins the transactions of consecutive segments. Positions count from the beginning of the first one.

    If a segment begins with an offset that is not above those of the segment before, their transactions are not
    continued: segments overlap, or an offset is wrong (`LossFollower`).

    Parameters
    ----------
    already_open : iterable of OpenTransaction
        The transactions open before the first segment.
    last_offset : int, optional
        The last offset before the first segment, if a batch is known.
    budget : _Budget, optional
    """

    def __init__(
        self,
        already_open: Iterable[OpenTransaction] = (),
        last_offset: int | None = None,
        budget: _Budget | None = None,
    ) -> None:
        max_bytes, name = budget or _Budget(None)
        self.tracker = TransactionTracker(already_open, max_bytes=max_bytes, limit_name=name)
        self._last_offset = last_offset
        self._segments: dict[str, tuple[int, int]] = {}
        self._end = 0

    def add(self, part: SegmentTransactions) -> None:
        if part.offsets is not None:
            if self._last_offset is not None and part.offsets[0] <= self._last_offset:
                self.tracker.replay(lost_bytes(self._last_offset, self._end - 1))
            self._last_offset = part.offsets[1]
        for begin in range(0, len(part.events), _JOINED):
            events = part.events[begin : begin + _JOINED].copy()
            events["position"] = np.minimum(events["position"], part.size - 1) + self._end
            with _naming(part.path):
                self.tracker.replay(events)
        self._segments[part.path] = self._end, part.size
        self._end += part.size

    def result(self) -> Transactions:
        return self.tracker.result(self._segments)


def join_transactions(
    parts: Iterable[SegmentTransactions],
    already_open: Iterable[OpenTransaction] = (),
    last_offset: int | None = None,
    limits: Limits | None = None,
) -> Transactions:
    """Return the transactions of consecutive segments.

    Parameters
    ----------
    parts : iterable of SegmentTransactions
    already_open : iterable of OpenTransaction
        The transactions open before the first segment.
    last_offset : int, optional
        The last offset before the first segment, if a batch is known.
    limits : Limits, optional
        The transactions count towards `max_table_bytes`.
    """
    joined = _JoinedSegments(already_open, last_offset, None if limits is None else _budget(limits))
    for part in parts:
        joined.add(part)
    return joined.result()


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
    followed = segment_transactions(segments[before], _below(segments, before), options)
    return (before, begun) if join_transactions([followed], begun, limits=options.limits).open == ended else (0, [])


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
    first_offsets = still["current_txn_first_offset"]
    # A batch has one producer, and opens one transaction.
    order = np.argsort(first_offsets, kind="stable")
    offsets = first_offsets[order]
    if np.any(offsets[1:] == offsets[:-1]):
        return None
    rows = _batches_at(segments, offsets, options)
    if rows is None or not np.array_equal(rows["producer_id"], still["producer_id"][order]):
        return None
    horizon = (rows["attributes"] & ATTRIBUTE_DELETE_HORIZON) != 0
    timestamps = np.where(horizon, NO_TIMESTAMP, rows["base_timestamp"])
    columns = (column.tolist() for column in (rows["producer_id"], rows["base_offset"], timestamps))
    return [OpenTransaction(*each) for each in zip(*columns, strict=True)]


def _batches_at(
    segments: Sequence[Segment], offsets: npt.NDArray[np.int64], options: DecodeOptions
) -> npt.NDArray[np.void] | None:
    """Return the headers of the valid transactional batches that begin at ascending offsets; None unless all exist."""
    numbers = [segment_before(segments, offset) for offset in offsets.tolist()]
    found = [np.empty(0, BATCH_DTYPE)]
    for number in sorted(set(numbers)):
        expected = offsets[bisect_left(numbers, number) : bisect_right(numbers, number)]
        with segments[number].open() as file:
            # The headers are followed once for all offsets of a segment.
            for rows in file.walk(segments[number].seek_offset(int(expected[0]))):
                at = np.minimum(np.searchsorted(expected, rows["base_offset"]), len(expected) - 1)
                here = rows[expected[at] == rows["base_offset"]]
                found.append(here)
                if options.crc == "verify" and not all(has_good_batch(file, row) for row in here):
                    return None
                if int(rows["last_offset"][-1]) >= expected[-1]:
                    break
    rows = np.concatenate(found)
    kinds = rows["attributes"] & (ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL)
    opens = (kinds == ATTRIBUTE_TRANSACTIONAL) & (rows["magic"] == 2)
    return rows if opens.all() and np.array_equal(rows["base_offset"], offsets) else None


def segment_transactions(
    segment: Segment,
    below: int | None,
    options: DecodeOptions,
    since: SegmentTransactions | None = None,
    *,
    budget: _Budget | None = None,
    pass_options: DecodeOptions | None = None,
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
    budget : _Budget, optional
        By default, `options.limits.max_table_bytes`.
    pass_options : DecodeOptions, optional
        `_pass_options(options)`, if the caller has them for several segments.
    """
    max_bytes, limit_name = budget or _budget(options.limits)
    # A read with "raise" or "stop" that begins after damage returns no record that one from the start withholds.
    skips = options.on_error == "skip"
    entries = _read_index(segment, below) if skips else _NO_ENTRIES
    known = None if since is None else since.resumption
    if known is None or not np.array_equal(known.entries, _entries_below(entries, known.next_offset)):
        known = _Resumption(0, 0, 0, segment.base_offset, None, np.empty(0, EVENT_DTYPE), _NO_ENTRIES)
    recorder = TransactionRecorder(
        limits=options.limits, max_bytes=max_bytes, limit_name=limit_name, events=known.events
    )
    lost = LossFollower(known.next_offset, entries, is_after_batch=known.end > 0, is_final=not skips)
    offsets = (
        None if known.first_offset is None or known.next_offset is None else (known.first_offset, known.next_offset - 1)
    )
    tracking = pass_options or _pass_options(options)
    suspect_end = 0
    for table in read_tables(segment, known.last, segment.size, tracking, followed_table_bytes(max_bytes)):
        rows = table.batches
        if known.end:
            rows = rows[np.searchsorted(rows["position"], known.end) :]
        good = counts_for_transactions(rows, tracking)
        sound = rows
        # Every bad batch is a loss.
        if table.losses:
            sound = rows[good]
            suspect_end = max(suspect_end, _suspect_end(segment, rows[~good], table.losses, options.limits))
        with _naming(segment.path):
            follow_batches(recorder, lost, rows, good, table.losses, _bytes_of(segment, table))
        if len(sound):
            first = int(first_offsets(sound[:1])[0]) if offsets is None else offsets[0]
            offsets = first, int(sound["last_offset"][-1])
        if len(rows) and not lost.is_lost:
            last, size, crc, offset = (int(rows[name][-1]) for name in ("position", "size", "crc", "last_offset"))
            if last >= suspect_end and offsets is not None:
                below_offset = _entries_below(entries, offset + 1)
                known = _Resumption(last, last + size, crc, offset + 1, offsets[0], known.events, below_offset)
                recorder.mark()
    recorder.replay(lost.finish(below))
    resumption = replace(known, events=recorder.marked_events) if known.end else None
    return SegmentTransactions(recorder.events, below is not None, segment.path, segment.size, offsets, resumption)


def _pass_options(options: DecodeOptions) -> DecodeOptions:
    """Return the options of the pass over the batches of a segment: whatever `options` say, it skips damage."""
    return tracking_options(replace(options, on_error="skip"))


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name a segment in the error about a log with too many transactions."""
    try:
        yield
    except LimitExceededError as error:
        raise LimitExceededError(f"{path}: {error}", source=path) from None


def _entries_below(entries: npt.NDArray[np.void], offset: int | None) -> npt.NDArray[np.void]:
    return entries[: 0 if offset is None else np.searchsorted(entries["last_offset"], offset)]


def _suspect_end(segment: Segment, bad: npt.NDArray[np.void], losses: LossList, limits: Limits) -> int:
    """Return the last position that damaged batches extend to by their lengths.

    Once the file reaches it, one of these lengths may turn out to be right, and batches before it to be inside of it.
    This includes a batch that begins in the damage and is not complete in the file.
    """
    max_size = max_entry_size(limits)
    ends = (bad["position"] + bad["size"])[bad["size"] <= max_size]
    suspect_end = int(ends.max(initial=0))
    positions = losses.positions
    while len(positions):
        count = int(np.searchsorted(positions, positions[0] + _HEADER_WINDOW))
        sizes = _entry_sizes(segment, positions[:count])
        ends = positions[:count] + np.where(sizes <= max_size, sizes, 0)
        suspect_end = max(suspect_end, int(ends.max()))
        positions = positions[count:]
    return max(suspect_end, _last_claimed(segment, losses, limits))


def _last_claimed(segment: Segment, losses: LossList, limits: Limits) -> int:
    """Return the last position after the end of the file that a batch in the losses may extend to, 0 without one.

    Only batches of magic 2 are searched. Messages of magic 0 and 1 have no transactions, and their short headers match
    too many bytes that are not messages.
    """
    claimed = begin = 0
    window = segment.window(0, 0)
    for position, length in zip(losses.positions.tolist(), losses.lengths.tolist(), strict=True):
        for start in range(position, position + length, _HEADER_WINDOW):
            stop = min(start + _HEADER_WINDOW, position + length)
            if min(stop + BATCH_HEADER_SIZE, segment.size) > begin + len(window):
                window, begin = segment.window(start, start + 2 * _HEADER_WINDOW), start
            end = last_claimed(
                window,
                begin,
                start,
                stop,
                max_size=max_entry_size(limits),
                max_records=most_records(limits),
                base_offset=segment.base_offset or 0,
            )
            claimed = max(claimed, end)
    return claimed if claimed > segment.size else 0


def _entry_sizes(segment: Segment, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sizes of the entries at these positions by their length fields; 0 for one that the file cuts."""
    first = int(positions[0])
    window = segment.window(first, int(positions[-1]) + LOG_OVERHEAD)
    is_whole = positions + LOG_OVERHEAD <= first + len(window)
    lengths = positions[is_whole, np.newaxis] - first + np.arange(LOG_OVERHEAD - 4, LOG_OVERHEAD)
    sizes = np.zeros(len(positions), np.int64)
    sizes[is_whole] = window[lengths].view(">i4")[:, 0].astype(np.int64) + LOG_OVERHEAD
    return sizes


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


def _bytes_of(
    segment: Segment, table: RecordTable
) -> Callable[[npt.NDArray[np.void]], tuple[npt.NDArray[np.uint8], int]]:
    """Return a function that returns bytes which contain the markers among some batches, and where they begin."""

    def window(rows: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.uint8], int]:
        if not table.losses:
            # The bytes of a table without losses begin with its first batch.
            return table.data, int(table.batches["position"][0])
        markers = rows[(rows["attributes"] & ATTRIBUTE_CONTROL) != 0]
        if not len(markers):
            return table.data[:0], 0
        start = int(markers["position"][0])
        return segment.window(start, int(markers["position"][-1] + markers["size"][-1])), start

    return window
