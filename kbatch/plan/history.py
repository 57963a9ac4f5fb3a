"""Plans reads of a partition with its history: the offsets to read from files, and the offsets to fetch from brokers.

The history of a partition consists of copies of its log: log directories, and tiered storage. Only closed segments are
read. A segment is refused, and its offsets are fetched, unless

- it belongs to the same topic: the topic ids are equal, or if the copy has no id, its last batch equals the broker's;
- it ends with a complete batch that has a valid checksum, and not beyond the beginning of the next segment;
- the leader has each of its leader epochs at the same offsets. Two logs with the same epoch at an offset are equal up
  to this offset.

Each offset of the plan is in exactly one part.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from kbatch.batches.checksums import has_good_batch
from kbatch.batches.framing import first_offsets, scan_part
from kbatch.errors import KbatchError, LogDirectoryError
from kbatch.escaping import counted
from kbatch.format import BATCH_DTYPE, INT64_MAX, NO_TIMESTAMP
from kbatch.live.broker_errors import BrokerError
from kbatch.live.leader_requests import EpochEnd
from kbatch.live.live_partitions import LivePartition
from kbatch.log import Log, Segment
from kbatch.log.committed import SegmentTransactions, join_transactions, segment_transactions
from kbatch.log.gaps import SegmentEnd, SegmentGaps, are_rewritten
from kbatch.log.selection import REMOTE_THREADS
from kbatch.log.store.names import is_remote_name
from kbatch.log.store.storage import is_url
from kbatch.plan.following import walk_threads
from kbatch.plan.history_files import narrowed
from kbatch.plan.history_plan import FetchedRange, HistoryPlan, RefusedFile, unavailable
from kbatch.plan.split import Split, records_per_byte
from kbatch.read.decode_options import DecodeOptions
from kbatch.transactions import OpenTransaction
from kbatch.transactions.events import ABORT, COMMIT, EVENT_DTYPE, LOST_BYTES, LOST_MARKER

__all__ = ["HistoryPlanner"]

# The size to request to compare a batch; a broker returns the whole batch nevertheless.
_COMPARED_BYTES = 1


LookedUpT = TypeVar("LookedUpT")


class _RefusedError(Exception):
    """A segment that is not read."""


@dataclass(frozen=True)
class _Sound:
    """A segment that may be read.

    Attributes
    ----------
    copy : _Copy
    number : int
    first, stop : int
        The range of its offsets.
    epoch : int
        The leader epoch of its last batch.
    """

    copy: _Copy
    number: int
    first: int
    stop: int
    epoch: int

    @property
    def segment(self) -> Segment:
        return self.copy.segments[self.number]


class _Piece(NamedTuple):
    """Offsets that are read from a segment or, without a segment, fetched."""

    start: int
    stop: int
    sound: _Sound | None


class _Copy:
    """Closed segments of a copy of the log, by base offset.

    In tiered storage, segments may overlap, since leaders begin segments at different offsets.
    """

    def __init__(self, log: Log, segments: Sequence[Segment], epochs: Sequence[tuple[int, int]]) -> None:
        self.log = log
        self.segments = segments
        self.bases = [each.base_offset or 0 for each in segments]
        self.epochs = epochs
        self.is_tiered = _is_tiered(log)

    @classmethod
    def of(cls, log: Log, log_start: int) -> list[_Copy]:
        """Return the copies in a log; tiered storage has several if an upload failed and was repeated."""
        segments = [each for each in log.segments if each.base_offset is not None]
        if _is_active(log, log_start):
            del segments[-1:]
        layers: list[list[Segment]] = []
        for segment in segments:
            layer = next((each for each in layers if each[-1].base_offset != segment.base_offset), None)
            layers.append([segment]) if layer is None else layer.append(segment)
        epochs = _epochs_of(log)
        return [cls(log, layer, epochs) for layer in layers]

    def below(self, number: int) -> int | None:
        """Return the base offset of the next segment, which may be the active one."""
        if number + 1 < len(self.bases):
            return self.bases[number + 1]
        last = self.log.segments[-1].base_offset
        return last if last is not None and last > self.bases[number] else None

    def at(self, offset: int) -> int:
        """Return the number of the last segment that begins at or before an offset, or -1."""
        return bisect_right(self.bases, offset) - 1


def _is_active(log: Log, log_start: int) -> bool:
    """Whether a broker may be writing the last segment of a log."""
    last = log.segments[-1]
    if not last.live or (last.base_offset or 0) >= log_start:
        return last.live
    # Brokers do not write to segments that the cluster has deleted.
    try:
        return log.end_offset > log_start
    except KbatchError:
        return True


def _is_tiered(log: Log) -> bool:
    return is_remote_name(os.path.basename(log.segments[0].path))


def _epochs_of(log: Log) -> list[tuple[int, int]]:
    """Return the leader epochs of a log and their first offsets; empty if they are unknown."""
    try:
        rows = log.leader_epochs
    except KbatchError:
        return []
    return list(zip(rows["epoch"].tolist(), rows["start_offset"].tolist(), strict=True))


class HistoryPlanner:
    """Plans the read of one partition.

    Parameters
    ----------
    live : LivePartition
        The partition, with the offsets of the cluster.
    copies : iterable of Log
        Copies of its log.
    decode : DecodeOptions
        Under read_committed, batches of aborted transactions are withheld.
    """

    def __init__(self, live: LivePartition, copies: Iterable[Log], decode: DecodeOptions) -> None:
        self._live = live
        self._decode = decode
        self._refused: dict[str, RefusedFile] = {}
        self._known: dict[str, _Sound | None] = {}
        self._epoch_ends: dict[int, EpochEnd | None] = {}
        self._lock = threading.Lock()
        self._copies = [copy for log in copies if self._is_same_topic(log) for copy in _Copy.of(log, live.start_offset)]

    @property
    def first_offset(self) -> int | None:
        """The first offset of the copies."""
        return min((copy.bases[0] for copy in self._copies if copy.bases), default=None)

    @property
    def segments(self) -> dict[str, Segment]:
        """The segments of the copies, by path."""
        return {segment.path: segment for copy in self._copies for segment in copy.segments}

    def plan(self, start: int, stop: int) -> HistoryPlan:
        """Plan the read of a range of offsets; `stop` is exclusive.

        Raises
        ------
        BrokerError, AuthenticationError
        LogDirectoryError
            If the cluster has deleted offsets that no sound file has.
        """
        log_start = self._live.start_offset
        committed = self._decode.isolation == "read_committed"
        # Files after the end of the read may decide transactions that are open there; the cluster does not.
        end = max(stop, log_start) if committed and start < log_start else stop
        self._look_ahead(start, end)
        self._leave_out_others()
        while True:
            try:
                parts = self._parts(start, stop, end)
                break
            except _DamagedError as damaged:
                self._refuse(damaged.segment, damaged.first, damaged.stop, damaged.reason)
        plan = HistoryPlan(
            self._live.metadata.name,
            self._live.number,
            start,
            stop,
            log_start,
            tuple(_parts_before(parts, stop)),
            tuple(sorted(self._refused.values(), key=lambda each: (each.first or 0, each.path))),
        )
        for part in plan.fetched:
            if part.start < log_start:
                raise unavailable(plan, part.start, min(part.stop, log_start))
        return plan

    # -- what is sound

    def _refuse(self, path: str, first: int | None, stop: int | None, reason: str) -> None:
        self._known[path] = None
        self._refused.setdefault(path, RefusedFile(path, first, stop, reason))

    def _is_same_topic(self, log: Log) -> bool:
        ours = self._live.metadata.id
        try:
            theirs = log.topic_id
        except KbatchError as error:
            self._refuse(log.path, None, None, str(error))
            return False
        if theirs is None or not ours.int or theirs == ours:
            return True
        reason = f"it is a log of a topic with the id {theirs}, and that of the cluster has {ours}: it was recreated"
        self._refuse(log.path, None, None, reason)
        return False

    def _leave_out_others(self) -> None:
        """Refuse copies without a topic id that belong to another log."""
        for copy in list(self._copies):
            if copy.log.topic_id is not None and self._live.metadata.id.int:
                continue
            if (reason := self._check_contents(copy)) is not None:
                self._copies.remove(copy)
                self._refuse(copy.log.path, None, None, reason)

    def _look_ahead(self, start: int, stop: int) -> None:
        """Examine the remote segments of a range in parallel, because each needs several requests."""
        remote = [copy for copy in self._copies if is_url(copy.log.path)]
        wanted = [
            (copy, number)
            for copy in remote
            for number in range(max(copy.at(start), 0), len(copy.bases))
            if copy.bases[number] < stop
        ]
        if len(wanted) > 1:
            with ThreadPoolExecutor(REMOTE_THREADS, "kbatch-plan") as pool:
                list(pool.map(lambda each: self._examined(*each), wanted))

    def _examined(self, copy: _Copy, number: int) -> _Sound | None:
        """Return a segment if it is sound."""
        segment = copy.segments[number]
        if segment.path not in self._known:
            try:
                self._known[segment.path] = self._sound(copy, number)
            except BrokerError:
                raise
            except (_RefusedError, KbatchError, OSError) as error:
                self._refuse(segment.path, copy.bases[number], copy.below(number), str(error))
        return self._known[segment.path]

    def _sound(self, copy: _Copy, number: int) -> _Sound:
        segment, base, below = copy.segments[number], copy.bases[number], copy.below(number)
        last, epochs = _ends(segment, base)
        if below is not None and last >= below and not copy.is_tiered:
            raise _RefusedError(f"it extends to offset {last}, and the next segment begins at {below}")
        if last < base:
            raise _RefusedError(f"its last offset is {last}, before its first one")
        between = [(epoch, first) for epoch, first in copy.epochs if base < first <= last]
        for epoch, offset in [*epochs, *between]:
            self._check_epoch(epoch, offset)
        return _Sound(copy, number, base, last + 1, epochs[-1][0])

    def _check_epoch(self, epoch: int, offset: int) -> None:
        """Refuse a segment whose leader epoch at an offset differs from the cluster's."""
        # The cluster drops epochs before the log start offset, and batches before magic 2 have none.
        if epoch < 0 or offset < self._live.start_offset:
            return
        leader = self._live.metadata.partitions[self._live.number].epoch
        found = f"it has leader epoch {epoch} at offset {offset}, and the cluster"
        if 0 <= leader < epoch:
            raise _RefusedError(f"{found} is at epoch {leader}: it is another log")
        end = self._epoch_end(epoch)
        if end is not None and (end.epoch != epoch or end.offset <= offset):
            ends = f"epoch {end.epoch} ends at {end.offset}"
            raise _RefusedError(f"{found} does not, whose {ends}: it is of a replica that diverged")
        before = self._epoch_end(epoch - 1) if epoch else None
        if before is not None and before.offset > offset:
            ends = f"epoch {before.epoch} ends at {before.offset}"
            raise _RefusedError(f"{found} has an earlier one there, whose {ends}: it is of a replica that diverged")

    def _epoch_end(self, epoch: int) -> EpochEnd | None:
        with self._lock:
            if epoch not in self._epoch_ends:
                self._epoch_ends[epoch] = self._live.epoch_end(epoch)
            return self._epoch_ends[epoch]

    def _check_contents(self, copy: _Copy) -> str | None:
        """Compare a batch of a copy without a topic id with the broker's batch; return the difference.

        Two logs with the same batch at an offset are equal up to it, so the last batch of the copy is compared.
        """
        first, end = self._live.start_offset, self._live.end_offset
        for number in reversed(range(len(copy.segments))):
            if copy.bases[number] >= end:
                continue
            sound = self._examined(copy, number)
            if sound is None or sound.stop > end:
                continue
            if sound.stop <= first:
                return None
            row, last = sound.segment.last_batch()[0], sound.stop - 1
            rows = scan_part(self._live.fetched(last, _COMPARED_BYTES, "fetch of a batch to compare")).batches
            # Compaction removes batches, and rewrites others.
            if row is None or not len(rows) or first_offsets(rows[:1])[0] > last or are_rewritten(rows[:1])[0]:
                return None
            if rows["last_offset"][0] != last or rows["crc"][0] != row["crc"]:
                return f"its batch with the offset {last} is not the one that the cluster has: it is another log"
            return None
        return None

    # -- which segment has which offsets

    def _parts(self, start: int, stop: int, end: int) -> list[Split | FetchedRange]:
        """Return the parts up to `end`; parts from `stop` on only decide transactions that begin before."""
        pieces = list(self._pieces(start, end))
        parts: list[Split | FetchedRange] = []
        region: list[_Piece] = []
        for piece in [*pieces, _Piece(end, end, None)]:
            if piece.sound is not None:
                region.append(piece)
                continue
            if region:
                parts += self._region(region, stop)
            before = region[-1].sound if region else None
            region = []
            if piece.start < piece.stop:
                epoch = -1 if before is None else before.epoch
                parts.append(FetchedRange(piece.start, piece.stop, before is not None, epoch))
        return parts

    def _pieces(self, start: int, stop: int) -> Iterator[_Piece]:
        """Yield the offsets from `start` up to `stop` with the segment that has them, or None."""
        previous: _Sound | None = None
        while start < stop:
            sound = self._sound_at(start, previous)
            end = self._next_base(start, stop) if sound is None else min(sound.stop, stop)
            yield _Piece(start, end, sound)
            start, previous = end, sound
            if sound is not None:
                start = min(self._after_compaction(sound), stop)

    def _sound_at(self, offset: int, previous: _Sound | None) -> _Sound | None:
        """Return a sound segment with an offset: if possible the next one of a copy, else the longest one."""
        found: list[tuple[bool, bool, int, int]] = []
        for place, copy in enumerate(self._copies):
            number = copy.at(offset)
            if number >= 0:
                is_next = previous is not None and previous.copy is copy and previous.number + 1 == number
                found.append((is_next, copy.bases[number] == offset, copy.below(number) or INT64_MAX, -place))
        for *_, place in sorted(found, reverse=True):
            copy = self._copies[-place]
            sound = self._examined(copy, copy.at(offset))
            if sound is not None and offset < sound.stop:
                return sound
        return None

    def _next_base(self, offset: int, stop: int) -> int:
        """Return the first offset of the first sound segment after an offset, at most `stop`."""
        ahead = sorted(
            (base, place, number)
            for place, copy in enumerate(self._copies)
            for number, base in enumerate(copy.bases)
            if offset < base < stop
        )
        for base, place, number in ahead:
            if self._examined(self._copies[place], number) is not None:
                return base
        return stop

    def _after_compaction(self, sound: _Sound) -> int:
        """Return the end of a segment, or the beginning of the next if compaction removed the offsets in between."""
        copy, number = sound.copy, sound.number
        below = copy.below(number)
        if below is None or below <= sound.stop or number + 1 >= len(copy.segments):
            return sound.stop
        try:
            gaps = SegmentGaps(copy.segments).after(number, SegmentEnd(sound.stop), None, None)
        except KbatchError:
            return sound.stop
        return below if gaps and all(each.compacted for each in gaps) else sound.stop

    # -- bytes and transactions

    def _region(self, region: Sequence[_Piece], needed: int) -> list[Split]:
        """Return the splits of segments that follow each other without a gap.

        Transactions that begin at or after the offset `needed` need not be decided.
        """
        splits = [_naming_segment(piece, self._split) for piece in region]
        if self._decode.isolation != "read_committed":
            return splits
        parts = self._followed(region)
        transactions = join_transactions(parts, limits=self._decode.limits)
        if transactions.open:
            stop, log_start = region[-1].stop, self._live.start_offset
            if stop < log_start and transactions.open[0].first_offset < needed:
                first = transactions.open[0].first_offset
                raise LogDirectoryError(
                    f"{self._live.metadata.name}-{self._live.number}: transactions that begin at offset {first} or "
                    f"later end between the offsets {stop} and {log_start}, which the cluster has deleted and no sound "
                    "file of the history has; restore the files, or read with isolation='read_uncommitted'"
                )
            ends = self._ends_of(transactions.open, stop)
            parts.append(SegmentTransactions(ends, True, "", 1, (stop, stop)))
            transactions = join_transactions(parts, limits=self._decode.limits)
        withheld = transactions._withheld_of_log()
        return [replace(split, withheld=withheld.of_segment(split.path)) for split in splits]

    def _split(self, piece: _Piece) -> Split:
        assert piece.sound is not None
        segment, log = piece.sound.segment, piece.sound.copy.log
        whole = Split(
            segment.path,
            0,
            segment.size,
            segment.size,
            False,
            self._live.metadata.name,
            self._live.number,
            piece.sound.first,
            piece.sound.stop,
            None,
            density=records_per_byte(log),
        )
        return narrowed(whole, segment, piece.start, piece.stop)

    def _followed(self, region: Sequence[_Piece]) -> list[SegmentTransactions]:
        """Return the beginnings and ends of transactions between the offsets of each piece."""
        options = DecodeOptions(crc=self._decode.crc, limits=self._decode.limits)

        def follow(piece: _Piece) -> SegmentTransactions:
            assert piece.sound is not None
            return segment_transactions(piece.sound.segment, piece.sound.copy.below(piece.sound.number), options)

        with walk_threads() as pool:
            found = list(pool.map(lambda piece: _naming_segment(piece, follow), region))
        parts = []
        for place, (piece, part) in enumerate(zip(region, found, strict=True)):
            events = part.events
            if np.isin(events["kind"], (LOST_BYTES, LOST_MARKER)).any():
                raise _DamagedError(piece, "it has damaged batches, which may hide the ends of transactions")
            # The bytes before the first piece show where its transactions begin.
            kept = (events["offset"] < piece.stop) & ((events["offset"] >= piece.start) | (place == 0))
            parts.append(replace(part, events=events[kept], offsets=(piece.start, piece.stop - 1)))
        return parts

    def _ends_of(self, still: Iterable[OpenTransaction], stop: int) -> npt.NDArray[np.void]:
        """Return how the transactions that are open at an offset end, by the list of the cluster.

        All of these transactions have ended, since reads under read_committed end at the last stable offset.
        """
        live = self._live
        # The list has the transactions that reach the batch before the offset; those that end there are not open.
        at = max(stop - 1, live.start_offset)
        aborted = live.aborted_at(at) if at < live.end_offset else []
        first: dict[int, int] = {}
        for producer, offset in aborted:
            first[producer] = min(offset, first.get(producer, offset))
        rows = [
            (each.producer_id, stop, stop, NO_TIMESTAMP, _end_kind(first.get(each.producer_id), each.first_offset), 0)
            for each in still
        ]
        return np.array(rows, EVENT_DTYPE)


class _DamagedError(Exception):
    """Damage in a segment that was found when its bytes were looked up."""

    def __init__(self, piece: _Piece, reason: str) -> None:
        super().__init__(reason)
        assert piece.sound is not None
        self.segment = piece.sound.segment.path
        self.first, self.stop, self.reason = piece.sound.first, piece.sound.stop, reason


def _naming_segment(piece: _Piece, function: Callable[[_Piece], LookedUpT]) -> LookedUpT:
    """Apply a function; raise `_DamagedError` for a fault of the file."""
    try:
        return function(piece)
    except BrokerError:
        raise
    except (KbatchError, OSError) as error:
        raise _DamagedError(piece, str(error)) from error


def _end_kind(aborted_first: int | None, first: int) -> int:
    return ABORT if aborted_first is not None and aborted_first <= first else COMMIT


def _ends(segment: Segment, base: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the last offset of a segment, and its leader epochs at some offsets, including the last offset.

    Raises
    ------
    _RefusedError, KbatchError, OSError
        If the end of the segment is not sound.
    """
    manifest = segment.manifest
    if manifest is not None and manifest.last_offset is not None and manifest.layout is not None:
        # Opening the segment compares the size of the object.
        segment.open().__exit__(None, None, None)
        if manifest.start_offset not in (None, base):
            raise _RefusedError(f"its .rsm-manifest is of the segment that begins at {manifest.start_offset}")
        epochs = list(manifest.leader_epochs) or [(-1, base)]
        return manifest.last_offset, [*epochs, (epochs[-1][0], manifest.last_offset)]
    row, tail = segment.last_batch()
    if tail.kind != "none":
        what = "bytes that are no batch" if tail.kind == "damaged" else f"{tail.kind} data"
        raise _RefusedError(f"after byte {tail.position:,} it has {counted(tail.size, 'byte')} of {what}: it was cut")
    if row is None:
        raise _RefusedError("it has no batch")
    if not has_good_batch(segment, row):
        raise _RefusedError(f"the batch at byte {int(row['position']):,} has a wrong checksum")
    first = next(segment.scan(), np.empty(0, BATCH_DTYPE))[0]
    begin = max(int(first_offsets(np.array([first]))[0]), base)
    last = int(row["last_offset"])
    return last, [(_epoch(first), begin), (_epoch(row), last)]


def _epoch(row: np.void) -> int:
    return int(row["partition_leader_epoch"]) if row["magic"] >= 2 else -1


def _parts_before(parts: Iterable[Split | FetchedRange], stop: int) -> Iterator[Split | FetchedRange]:
    """Yield the parts of a plan that begin before an offset, cut at this offset."""
    for part in parts:
        if isinstance(part, FetchedRange):
            if part.start < stop:
                yield replace(part, stop=min(part.stop, stop))
        elif (part.start_offset or 0) < stop:
            yield replace(part, stop_offset=min(part.stop_offset or stop, stop))
