"""Checks of what a broker has on disk: segments batch by batch, and the files beside them against the segments.

What a finding calls damage is something that no broker writes, and that costs records or misleads who reads. What may
well be (offsets left out, a file that ends with an unfinished batch) is a note.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.broker.producers import SequenceChecker
from kbatch.errors import ErrorCode, KbatchError, LogDirectoryError
from kbatch.format import BatchStatus, Limits
from kbatch.log.indexes import stored_entries
from kbatch.log.names import is_remote_name
from kbatch.log.reading import read_tables
from kbatch.log.segment import Segment
from kbatch.log.state import read_producer_snapshot, read_transaction_index
from kbatch.log.storage import Storage
from kbatch.read.decode_options import DecodeOptions
from kbatch.table import RecordTable
from kbatch.transactions import OpenTransaction, TransactionTracker

__all__ = ["Report", "VerifyFinding", "verify_index", "verify_log", "verify_snapshot", "verify_transaction_index"]

_MAX_BYTES = 32 << 20
# producer.id.expiration.ms, by default.
_PRODUCER_EXPIRATION = 86_400_000
_INDEX_ENTRY = {".index": 8, ".timeindex": 12}
_TRANSACTION_ENTRY = 34


class VerifyFinding(NamedTuple):
    """Something that was found.

    Attributes
    ----------
    file : str
    position : int
        Byte in the file.
    text : str
    damage : bool
        False for a note.
    """

    file: str
    position: int
    text: str
    damage: bool = True


@dataclass(slots=True)
class Report:
    """What the checks of a log or a file have seen.

    Attributes
    ----------
    segments, batches, records, bytes : int
        What was read; bytes of segment files.
    side_files : int
        Index files and snapshots.
    findings : list of VerifyFinding
    """

    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    side_files: int = 0
    findings: list[VerifyFinding] = field(default_factory=list)
    tell: Callable[[VerifyFinding], None] | None = None

    @property
    def damaged(self) -> bool:
        """Whether any finding is damage."""
        return any(finding.damage for finding in self.findings)

    def add(self, file: str, position: int, text: str, *, damage: bool = True) -> None:
        """Add a finding and tell it."""
        finding = VerifyFinding(file, position, text, damage)
        self.findings.append(finding)
        if self.tell is not None:
            self.tell(finding)


def verify_log(
    segments: Sequence[Segment],
    *,
    whole: bool = True,
    sequences: bool = False,
    limits: Limits | None = None,
    tell: Callable[[VerifyFinding], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Check the segments of a log and the files beside them.

    Parameters
    ----------
    segments : sequence of Segment
        In order of base offset.
    whole : bool
        Whether these are all segments of the log: only then the markers can say what was aborted.
    sequences : bool
        Whether idempotent producers' sequences are checked too. That batches are missing is damage only where no
        offsets are left out since the producer's last batch: compaction takes batches away (PRD-R16).
    limits : Limits, optional
    tell : callable, optional
        Called with each finding as it is made.
    progress : callable, optional
        Called with the bytes of segments that are done.

    Returns
    -------
    Report

    Notes
    -----
    Every batch is decoded: checksum (CRC-R1, CRC-R7), structure, offsets that ascend within and across segments
    (DSK-R1, DSK-R13; gaps are notes), no timestamp later than the header's ``max_timestamp``, an unfinished end or
    zeros in the last segment only (DSK-R14). Each entry of an ``.index`` must point at a batch and carry the last
    offset of one (DSK-R2), of a ``.timeindex`` the largest timestamp up to the batch of its offset (DSK-R3), of a
    ``.txnindex`` what the markers say (TXI-R5); the checksum of a ``.snapshot`` must hold (DSK-R6).
    """
    report = Report(tell=tell)
    options = DecodeOptions(include_control=True, on_error="skip", limits=limits if limits is not None else Limits())
    done = 0
    order = _Order(report)
    producers = _Sequences(report) if sequences else None
    lost = False
    for segment in segments:
        checks = [check for suffix in _INDEX_ENTRY if (check := _index_check(segment, suffix, report)) is not None]
        report.segments += 1
        report.bytes += segment.size
        order.begin(segment)
        reached = 0
        for table in read_tables(segment, 0, segment.size, options, _MAX_BYTES):
            batches = table.batches
            sound = batches[BatchStatus.sound(batches["status"])]
            report.batches += len(batches)
            report.records += len(table)
            if len(batches):
                reached = max(reached, int(batches["position"][-1] + batches["size"][-1]))
            lost |= _tell_damage(segment, table, report)
            order.follow(table)
            if producers is not None:
                producers.follow(segment.path, table)
            for check in checks:
                check.follow(sound, table)
            if table.losses:
                reached = max(reached, *(loss.position + loss.length for loss in table.losses))
            if progress is not None:
                progress(done + reached)
        _check_tail(segment, reached, report)
        order.end(segment)
        for check in checks:
            check.end(segment)
        done += segment.size
    if whole:
        _check_transactions(segments, options, lost, report)
        for storage, path in _snapshots(segments):
            _check_snapshot(path, report, storage)
    return report


def _tell_damage(segment: Segment, table: RecordTable, report: Report) -> bool:
    for loss in table.losses:
        where = "" if loss.base_offset is None else f"base offset {loss.base_offset}: "
        report.add(segment.path, loss.position, f"{where}{loss.reason} ({loss.length} bytes)")
    for row in np.flatnonzero(table.batches["status"] == BatchStatus.BAD_INNER_CRC).tolist():
        batch = table.batches[row]
        report.add(
            segment.path,
            int(batch["position"]),
            f"base offset {batch['base_offset']}: the checksum of a compressed message isn't that of its bytes",
        )
    return bool(table.losses)


def _check_tail(segment: Segment, reached: int, report: Report) -> None:
    """Note what stands after the last batch of a live segment; of any other it is a loss."""
    if reached >= segment.size:
        return
    with segment.open() as file:
        tail = file.tail_at(reached)
    if tail.kind == "zeros":
        report.add(segment.path, reached, f"{tail.size} bytes of zeros: the file is preallocated", damage=False)
    elif tail.kind != "none":
        report.add(segment.path, reached, f"{tail.size} bytes of an unfinished batch", damage=False)


class _Order:
    """Offsets and timestamps from batch to batch."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.last: int | None = None
        self.where = ""
        self.first_gap = ""
        self.gap_position = 0
        self.gaps = 0
        self.segment: Segment | None = None

    def begin(self, segment: Segment) -> None:
        self.segment = segment
        self.gaps = 0
        base = segment.base_offset
        if base is not None and self.last is not None and base <= self.last:
            self.report.add(segment.path, 0, f"begins at offset {base}, but {self.where} reaches to {self.last}")
            # Told once, not for each of its batches.
            self.last = None

    def follow(self, table: RecordTable) -> None:
        assert self.segment is not None
        path = self.segment.path
        # What header or records of a bad batch say doesn't count.
        batches = table.batches[BatchStatus.sound(table.batches["status"])]
        if not len(batches):
            return
        self._offsets(path, batches)
        self._records(path, table)
        self.last = int(batches["last_offset"][-1])
        self.where = path

    def _offsets(self, path: str, batches: npt.NDArray[np.void]) -> None:
        base, last = batches["base_offset"], batches["last_offset"]
        start = self.segment.base_offset if self.segment is not None else None
        if self.last is not None:
            first = self.last
        else:
            first = int(base[0]) - 1 if start is None else min(int(base[0]), start) - 1
        # Not the highest before: one batch whose offset is wrong doesn't make all that follow wrong.
        before = np.concatenate(([first], last[:-1]))
        for row in np.flatnonzero(base <= before).tolist():
            self._tell(path, batches, row, f"base offset {base[row]} after a batch that reaches to {before[row]}")
        for row in np.flatnonzero(last < base).tolist():
            self._tell(path, batches, row, f"last offset {last[row]} is below the base offset {base[row]}")
        if start is not None:
            for row in np.flatnonzero(base < start).tolist():
                self._tell(path, batches, row, f"base offset {base[row]} is below the segment's, {start}")
        if self.last is None:
            before[0] = base[0] - 1
        gaps = np.flatnonzero(base > before + 1)
        if len(gaps):
            row = int(gaps[0])
            if not self.gaps:
                self.gap_position = int(batches["position"][row])
                self.first_gap = f"{before[row]} is followed by {base[row]}"
            self.gaps += len(gaps)

    def _records(self, path: str, table: RecordTable) -> None:
        records = table.records
        batch = records["batch"]
        offsets = records["offset"]
        down = np.zeros(len(records), np.bool_)
        down[1:] = (offsets[1:] <= offsets[:-1]) & (batch[1:] == batch[:-1])
        outside = (offsets > table.batches["last_offset"][batch]) | (offsets < table.batches["base_offset"][batch])
        late = records["timestamp"] > table.batches["max_timestamp"][batch]
        for mask, text in (
            (down, "offsets of its records do not ascend, at {offset}"),
            (outside, "record offset {offset} lies outside of the batch"),
            (late, "a record's timestamp, {timestamp}, is later than the batch's max_timestamp"),
        ):
            bad, first = np.unique(batch[mask], return_index=True)
            chosen = np.flatnonzero(mask)[first]
            for row, record in zip(bad.tolist(), chosen.tolist(), strict=True):
                values = {name: int(records[name][record]) for name in ("offset", "timestamp")}
                base = int(table.batches["base_offset"][row])
                position = int(table.batches["position"][row])
                self.report.add(path, position, f"base offset {base}: {text.format(**values)}")

    def _tell(self, path: str, batches: npt.NDArray[np.void], row: int, text: str) -> None:
        self.report.add(path, int(batches["position"][row]), text)

    def end(self, segment: Segment) -> None:
        if self.gaps:
            more = {1: "", 2: ", and 1 more gap"}.get(self.gaps, f", and {self.gaps - 1:,} more gaps")
            self.report.add(
                segment.path, self.gap_position, f"offsets are left out: {self.first_gap}{more}", damage=False
            )


class _Sequences:
    """Sequences of idempotent producers, over all segments."""

    def __init__(self, report: Report) -> None:
        self.report = report
        # A broker forgets by its clock, of which timestamps are the nearest thing to be had.
        self.checker = SequenceChecker(expiration_ms=_PRODUCER_EXPIRATION)
        self.last: int | None = None
        self.gap = -1

    def follow(self, path: str, table: RecordTable) -> None:
        rows = np.flatnonzero(BatchStatus.sound(table.batches["status"]))
        if not len(rows):
            return
        base, last = table.batches["base_offset"][rows], table.batches["last_offset"][rows]
        before = np.concatenate(([base[0] - 1 if self.last is None else self.last], last[:-1]))
        # The first offset after each stretch that is left out.
        gaps = base[base > before + 1]
        for refusal in self.checker.refusals(table):
            batch = table.batches[refusal.row]
            offset = int(batch["base_offset"])
            passed = gaps[gaps <= offset]
            explained = refusal.after < (int(passed[-1]) if len(passed) else self.gap)
            missing = refusal.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            damage = refusal.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER or (missing and not explained)
            text = f"base offset {offset}: {refusal.text}"
            if missing and explained:
                text += "; offsets are left out in between"
            self.report.add(path, int(batch["position"]), text, damage=damage)
        if len(gaps):
            self.gap = int(gaps[-1])
        self.last = int(last[-1])


# -- .index and .timeindex


def _index_check(segment: Segment, suffix: str, report: Report) -> _OffsetIndexCheck | _TimeIndexCheck | None:
    path = segment.sibling(suffix)
    if segment.base_offset is None or not segment.has(suffix):
        return None
    report.side_files += 1
    try:
        entries, size = stored_entries(path, "index" if suffix == ".index" else "timeindex", segment.storage)
    except LogDirectoryError as error:
        report.add(path, 0, str(error))
        return None
    width = _INDEX_ENTRY[suffix]
    if size % width:
        report.add(path, size - size % width, f"{size} bytes are no whole number of entries of {width}")
    entries["offset"] += segment.base_offset
    check = _OffsetIndexCheck if suffix == ".index" else _TimeIndexCheck
    return check(path, entries, report)


def _descents(values: npt.NDArray[np.int64], *, strict: bool) -> list[int]:
    down = values[1:] <= values[:-1] if strict else values[1:] < values[:-1]
    rows: list[int] = (np.flatnonzero(down) + 1).tolist()
    return rows


class _OffsetIndexCheck:
    """Each entry of an ``.index`` points at a batch, and has the last offset of what was appended there (DSK-R2)."""

    def __init__(self, path: str, entries: npt.NDArray[np.void], report: Report) -> None:
        self.path, self.entries, self.report = path, entries, report
        self.skip = np.zeros(len(entries), np.bool_)
        for name, text in (("offset", "offset {} after {}"), ("position", "position {} after {}")):
            values = entries[name]
            for row in _descents(values, strict=True):
                if not self.skip[row]:
                    report.add(path, 8 * row, f"{text.format(values[row], values[row - 1])}: entries must ascend")
                self.skip[row] = True
        self.pointed = np.zeros(len(entries), np.bool_)
        self.offset_seen = np.zeros(len(entries), np.bool_)
        self.batch_last = np.zeros(len(entries), np.int64)
        self.batch_base = np.zeros(len(entries), np.int64)
        self.lost: list[tuple[int, int]] = []

    def follow(self, sound: npt.NDArray[np.void], table: RecordTable) -> None:
        self.lost += [(loss.position, loss.position + loss.length) for loss in table.losses]
        if not len(sound) or not len(self.entries):
            return
        at = np.minimum(np.searchsorted(sound["position"], self.entries["position"]), len(sound) - 1)
        hit = sound["position"][at] == self.entries["position"]
        self.pointed |= hit
        self.batch_last[hit] = sound["last_offset"][at[hit]]
        self.batch_base[hit] = sound["base_offset"][at[hit]]
        self.offset_seen |= np.isin(self.entries["offset"], sound["last_offset"])

    def end(self, segment: Segment) -> None:
        size = _size_now(segment)
        for row in np.flatnonzero(~self.skip).tolist():
            offset, position = self.entries[row].tolist()
            place = f"entry of offset {offset}"
            if any(start <= position < end for start, end in self.lost):
                continue
            if not self.pointed[row]:
                if position >= segment.size:
                    if position >= size:
                        text = f"{place}: position {position} is beyond the segment's {segment.size} bytes"
                        self.report.add(self.path, 8 * row, text)
                    continue
                self.report.add(self.path, 8 * row, f"{place}: no batch begins at position {position}")
            elif offset < self.batch_last[row]:
                text = f"the batch at position {position} has the offsets {self.batch_base[row]} to"
                self.report.add(self.path, 8 * row, f"{place}: {text} {self.batch_last[row]}")
            elif not self.offset_seen[row] and not self.lost:
                self.report.add(self.path, 8 * row, f"{place}: no batch ends with this offset")


class _TimeIndexCheck:
    """Each entry of a ``.timeindex`` has the largest timestamp up to the batch with its offset (DSK-R3)."""

    def __init__(self, path: str, entries: npt.NDArray[np.void], report: Report) -> None:
        self.path, self.entries, self.report = path, entries, report
        self.skip = np.zeros(len(entries), np.bool_)
        for name in ("timestamp", "offset"):
            values = entries[name]
            for row in _descents(values, strict=False):
                if not self.skip[row]:
                    report.add(
                        path, 12 * row, f"{name} {values[row]} after {values[row - 1]}: entries must not descend"
                    )
                self.skip[row] = True
        self.largest_at = np.full(len(entries), -1, np.int64)
        self.found = np.zeros(len(entries), np.bool_)
        self.largest = -1
        self.reached = -1
        self.lost = False

    def follow(self, sound: npt.NDArray[np.void], table: RecordTable) -> None:
        self.lost |= bool(table.losses)
        if not len(sound):
            return
        largest = np.maximum(np.maximum.accumulate(sound["max_timestamp"]), self.largest)
        # The base offset isn't covered by the checksum. One that is far too large doesn't count.
        last = np.minimum.accumulate(sound["last_offset"][::-1])[::-1]
        at = np.searchsorted(last, self.entries["offset"])
        here = (at < len(sound)) & ~self.found
        self.largest_at[here] = largest[at[here]]
        self.found |= here
        self.largest = int(largest[-1])
        self.reached = int(last[-1])

    def end(self, segment: Segment) -> None:
        # Damage may have taken the batch that an entry is about; and what is written meanwhile is not seen.
        if self.lost:
            return
        grown = _size_now(segment) > segment.size
        for row in np.flatnonzero(~self.skip).tolist():
            timestamp, offset = self.entries[row].tolist()
            if not self.found[row]:
                if not grown:
                    text = f"entry of offset {offset}: the segment ends at {self.reached}"
                    self.report.add(self.path, 12 * row, text)
            elif self.largest_at[row] != timestamp and not (timestamp <= 0 and self.largest_at[row] == -1):
                text = f"timestamp {timestamp}, the largest up to that batch is {self.largest_at[row]}"
                self.report.add(self.path, 12 * row, f"entry of offset {offset}: {text}")


def _size_now(segment: Segment) -> int:
    try:
        found = segment.storage.find(segment.path)
    except KbatchError:
        found = None
    return segment.size if found is None or found.size is None else found.size


def verify_index(path: str, segment: Segment, *, tell: Callable[[VerifyFinding], None] | None = None) -> Report:
    """Check an ``.index`` or ``.timeindex`` file against the batch headers of its segment."""
    report = Report(tell=tell)
    check = _index_check(segment, os.path.splitext(path)[1], report)
    if check is not None:
        options = DecodeOptions(on_error="skip", framing_only=True)
        for table in read_tables(segment, 0, segment.size, options, _MAX_BYTES):
            check.follow(table.batches[BatchStatus.sound(table.batches["status"])], table)
        check.end(segment)
    return report


# -- .txnindex and .snapshot


def _check_transactions(
    segments: Sequence[Segment], options: DecodeOptions, lost: bool, report: Report, only: str | None = None
) -> None:
    """Compare the ``.txnindex`` files with what the markers say (TXI-R2, TXI-R5)."""
    paths = [segment.sibling(".txnindex") for segment in segments]
    indexed = [segment.has(".txnindex") for segment in segments]
    if not segments or not (any(indexed) or any(segment.has(".index") for segment in segments)):
        return
    aborted = _aborted(segments, options)
    for i, (segment, path) in enumerate(zip(segments, paths, strict=True)):
        if only is not None and os.path.abspath(path) != os.path.abspath(only):
            continue
        listed = np.empty(0, aborted.dtype)
        if indexed[i]:
            report.side_files += 1
            try:
                listed = read_transaction_index(path, storage=segment.storage)
            except KbatchError as error:
                report.add(path, error.position or 0, _without_place(error, path))
                continue
        elif not segment.has(".index"):
            continue
        if lost:
            text = "not compared with the markers: what damage took may have been one"
            report.add(path, 0, text, damage=False)
            continue
        start = segment.base_offset or 0
        stop = segments[i + 1].base_offset if i + 1 < len(segments) else None
        ends = aborted["last_offset"]
        here = aborted[(ends >= start) & (True if stop is None else ends < stop)]
        _compare(path, listed, here, segments[0].base_offset or 0, report)


def _aborted(segments: Sequence[Segment], options: DecodeOptions) -> npt.NDArray[np.void]:
    """Follow the markers, from the transactions on that were open where the log begins (TXI-R7)."""
    first = segments[0]
    begun: list[OpenTransaction] = []
    producers = None
    # In tiered storage it is the state after the segment.
    if first.has(".snapshot") and not is_remote_name(os.path.basename(first.path)):
        try:
            producers = read_producer_snapshot(first.sibling(".snapshot"), storage=first.storage)
        except KbatchError:
            producers = None
    if producers is not None:
        producers = producers[producers["current_txn_first_offset"] >= 0]
        columns = (producers[name].tolist() for name in ("producer_id", "current_txn_first_offset", "timestamp"))
        begun = [OpenTransaction(*row) for row in zip(*columns, strict=True)]
    tracker = TransactionTracker(begun, limits=options.limits)
    for segment in segments:
        with segment.open() as file:
            for window, rows in file.walk_windows(0):
                tracker.add(window, rows, int(rows["position"][0]))
    return tracker.result().aborted


def _compare(
    path: str, listed: npt.NDArray[np.void], marked: npt.NDArray[np.void], log_start: int, report: Report
) -> None:
    wanted = {(row["producer_id"], row["last_offset"]): row for row in marked}
    for i, entry in enumerate(listed):
        producer, first, last, stable = entry.tolist()
        place = f"producer {producer}, marker at offset {last}"
        row = wanted.pop((producer, last), None)
        if row is None:
            # Compaction takes the data, and at last the marker.
            text = f"{place}: the log has no such marker with data before it"
            report.add(path, _TRANSACTION_ENTRY * i, text, damage=False)
        elif first > row["first_offset"]:
            text = f"{place}: first offset is {first}, the transaction began at {row['first_offset']}"
            report.add(path, _TRANSACTION_ENTRY * i, text)
        elif first < row["first_offset"] and first >= log_start:
            text = f"{place}: first offset is {first}, the first batch that is left has {row['first_offset']}"
            report.add(path, _TRANSACTION_ENTRY * i, text, damage=False)
        elif stable != row["last_stable_offset"]:
            text = f"{place}: last stable offset is {stable}, by the log {row['last_stable_offset']}"
            report.add(path, _TRANSACTION_ENTRY * i, text, damage=False)
    for producer, last in sorted(wanted, key=lambda key: int(key[1])):
        text = f"aborted transaction of producer {producer}, marker at offset {last}, has no entry"
        report.add(path, _TRANSACTION_ENTRY * len(listed), text)


def _snapshots(segments: Sequence[Segment]) -> Iterator[tuple[Storage, str]]:
    for directory, storage in sorted({os.path.dirname(segment.path): segment.storage for segment in segments}.items()):
        for name in sorted(storage.list(directory or ".")):
            if name.endswith(".snapshot"):
                yield storage, storage.join(directory, name)


def _check_snapshot(path: str, report: Report, storage: Storage | None = None) -> None:
    report.side_files += 1
    try:
        read_producer_snapshot(path, storage=storage)
    except KbatchError as error:
        report.add(path, error.position or 0, _without_place(error, path))


def verify_snapshot(
    path: str, *, tell: Callable[[VerifyFinding], None] | None = None, storage: Storage | None = None
) -> Report:
    """Check a ``.snapshot`` file: its version, its checksum, its size."""
    report = Report(tell=tell)
    _check_snapshot(path, report, storage)
    return report


def verify_transaction_index(
    path: str,
    segments: Sequence[Segment],
    *,
    tell: Callable[[VerifyFinding], None] | None = None,
    storage: Storage | None = None,
) -> Report:
    """Check a ``.txnindex`` file against the markers of its log; by itself, if there are no segments."""
    report = Report(tell=tell)
    if any(os.path.abspath(segment.sibling(".txnindex")) == os.path.abspath(path) for segment in segments):
        _check_transactions(segments, DecodeOptions(), False, report, only=path)
        return report
    report.side_files += 1
    try:
        read_transaction_index(path, storage=storage)
    except KbatchError as error:
        report.add(path, error.position or 0, _without_place(error, path))
    return report


def _without_place(error: KbatchError, path: str) -> str:
    """Return an error's text without the file and the byte, which a finding says itself."""
    text = str(error).removeprefix(path).removeprefix(f", byte {error.position}")
    return text.removeprefix(": ")
