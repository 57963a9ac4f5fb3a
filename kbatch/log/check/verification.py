"""Verification of logs: segments batch by batch, and their index files and snapshots against the segments."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kbatch.broker.producers import SequenceChecker
from kbatch.errors import ErrorCode, KbatchError
from kbatch.escaping import counted, printable
from kbatch.format import INT64_MAX, BatchStatus, Limits
from kbatch.log.check.index_checks import index_checks
from kbatch.log.check.transaction_counts import TransactionCounter
from kbatch.log.check.verification_report import OnFinding, VerificationReport
from kbatch.log.committed import join_transactions, segment_transactions
from kbatch.log.files.producer_snapshot import read_producer_snapshot
from kbatch.log.files.transaction_index import STORED_ABORTED, read_transaction_index
from kbatch.log.gaps import SegmentEnd, SegmentGaps, after_gap
from kbatch.log.reading import TABLE_BYTES, read_tables
from kbatch.log.segment import Segment
from kbatch.log.sorted_values import SortedValues
from kbatch.log.store.names import is_remote_name
from kbatch.log.store.storage import Storage
from kbatch.read.decode_options import DecodeOptions
from kbatch.table import RecordTable
from kbatch.transactions import OpenTransaction, are_control

__all__ = ["verify_index", "verify_log", "verify_snapshot", "verify_transaction_index"]

# Default of producer.id.expiration.ms.
_PRODUCER_EXPIRATION = 86_400_000


def verify_log(
    segments: Sequence[Segment],
    *,
    whole: bool = True,
    sequences: bool = False,
    limits: Limits | None = None,
    on_finding: OnFinding | None = None,
    progress: Callable[[int], None] | None = None,
) -> VerificationReport:
    """Verify the segments of a log, their index files and producer snapshots.

    Parameters
    ----------
    segments : sequence of Segment
        In order of base offset.
    whole : bool
        Whether these are all segments of the log. Only then do the markers show which transactions were aborted.
    sequences : bool
        Whether to verify the sequence numbers of idempotent producers too. A missing batch is damage only if no offsets
        are missing since the producer's previous batch, because compaction removes batches (PRD-R16).
    limits : Limits, optional
    on_finding : callable, optional
        Called with each finding when it is made.
    progress : callable, optional
        Called with the number of segment bytes read so far.

    Returns
    -------
    VerificationReport

    Notes
    -----
    Every batch is decoded, which verifies its checksum (CRC-R1, CRC-R7) and structure. Offsets must ascend within and
    across segments (DSK-R1, DSK-R13). Gaps within segments are notes, except next to damage, as are gaps between
    segments that compaction has left (`kbatch.log.gaps`); another gap between two segments is a fault, since no broker
    leaves one. No record may be later than the header's ``max_timestamp``. An incomplete batch or zeros may only end
    the last segment (DSK-R14). Each entry of an ``.index`` must point at a batch and carry the last offset of one
    (DSK-R2); of a ``.timeindex``, the largest timestamp up to the batch of its offset (DSK-R3). The ``.txnindex`` files
    must agree with the markers (TXI-R5), and the checksum of each ``.snapshot`` must be valid (DSK-R6).
    """
    report = VerificationReport(on_finding=on_finding)
    options = DecodeOptions(include_control=True, on_error="skip", limits=limits if limits is not None else Limits())
    done = 0
    order = _Order(report)
    gaps = SegmentGaps(segments)
    producers = _Sequences(report) if sequences else None
    transactions = TransactionCounter(options.limits)
    lost = False
    for number, segment in enumerate(segments):
        checks = index_checks(segment, report)
        report.segments += 1
        report.bytes += segment.size
        order.begin(segment)
        offsets_end = SegmentEnd(segment.base_offset)
        transactions.begin_segment(segment.base_offset)
        reached = 0
        for table in read_tables(segment, 0, segment.size, options, TABLE_BYTES):
            batches = table.batches
            sound = batches[BatchStatus.sound(batches["status"])]
            report.batches += len(batches)
            report.damaged_batches += int(np.count_nonzero(BatchStatus.damaged(batches["status"])))
            is_control = are_control(batches)
            control_records = int(np.count_nonzero(is_control[table.records["batch"]])) if is_control.any() else 0
            report.control_records += control_records
            report.records += len(table) - control_records
            if len(batches):
                reached = max(reached, int(batches["position"][-1] + batches["size"][-1]))
            lost |= _report_damage(segment, table, report)
            offsets_end.add(table)
            order.follow(segment, table, sound)
            transactions.add(table, segment.window)
            if producers is not None:
                producers.follow(segment.path, table)
            for check in checks:
                check.follow(sound, table)
            if table.losses:
                reached = max(reached, table.losses.end)
            if progress is not None:
                progress(done + reached)
        transactions.end_segment(segments[number + 1].base_offset if number + 1 < len(segments) else None)
        _check_tail(segment, reached, report)
        order.end(segment)
        for gap in gaps.after(number, offsets_end, None, None):
            if not gap.compacted:
                report.add(segment.path, gap.position, gap.reason)
                # Offsets from the next segment's name on may be missing too.
                order.last = max(order.last or 0, gap.last_offset)
        for check in checks:
            check.end(segment)
        done += segment.size
    report.open_transactions = transactions.result().open
    if whole:
        _check_transactions(segments, options, lost, report)
        for storage, path in _snapshots(segments):
            _check_snapshot(path, report, storage)
    return report


def _report_damage(segment: Segment, table: RecordTable, report: VerificationReport) -> bool:
    """Report losses and bad checksums of compressed messages; return whether there are losses."""
    for loss in table.losses:
        where = "" if loss.base_offset is None else f"base offset {loss.base_offset}: "
        report.add(segment.path, loss.position, f"{where}{loss.reason} ({counted(loss.length, 'byte')})")
    for batch in table.batches[table.batches["status"] == BatchStatus.BAD_INNER_CRC]:
        text = f"base offset {batch['base_offset']}: a message inside the compressed message has a wrong checksum"
        report.add(segment.path, int(batch["position"]), text)
    return bool(table.losses)


def _check_tail(segment: Segment, reached: int, report: VerificationReport) -> None:
    """Note the bytes after the last batch of a live segment; in other segments they are listed as a loss."""
    if reached < segment.size:
        with segment.open() as file:
            text, is_foreign = file.describe_tail(file.tail_at(reached))
        report.add(segment.path, reached, text, damage=is_foreign)


def _previous_offsets(
    base: npt.NDArray[np.int64], last: npt.NDArray[np.int64], before: int | None
) -> npt.NDArray[np.int64]:
    """Return the offset before each batch; for the first batch of all, whose is unknown, its own base offset."""
    return np.concatenate(([base[0] if before is None else before], last[:-1]))


class _Order:
    """Verifies that offsets ascend, and that records agree with the header of their batch."""

    def __init__(self, report: VerificationReport) -> None:
        self.report = report
        self.last: int | None = None
        self.last_path = ""
        self.first_gap = ""
        self.gap_position = 0
        self.gaps = 0
        # Whether bytes were lost after the last good batch.
        self.damage_before = False

    def begin(self, segment: Segment) -> None:
        self.gaps = 0
        base = segment.base_offset
        if base is not None and self.last is not None and base <= self.last:
            self.report.add(segment.path, 0, f"begins at offset {base}, but {self.last_path} extends to {self.last}")
            # One finding for the segment, not one for each of its batches.
            self.last = None

    def follow(self, segment: Segment, table: RecordTable, sound: npt.NDArray[np.void]) -> None:
        # Bad batches are ignored, with their headers and records.
        lost = table.losses.positions
        if not len(sound):
            self.damage_before |= len(lost) > 0
            return
        # The number of losses before each batch.
        losses = np.searchsorted(lost, sound["position"])
        after_damage = np.diff(losses, prepend=0) > 0
        after_damage[0] |= self.damage_before
        self.damage_before = bool(losses[-1] < len(lost))
        self._follow_offsets(segment, sound, after_damage)
        self._check_records(segment.path, table)
        self.last = int(sound["last_offset"][-1])
        self.last_path = segment.path

    def _follow_offsets(
        self, segment: Segment, batches: npt.NDArray[np.void], after_damage: npt.NDArray[np.bool_]
    ) -> None:
        base, last = batches["base_offset"], batches["last_offset"]
        start = segment.base_offset
        # Each batch is compared with the previous one, not with the highest offset so far: one batch with a wrong
        # offset causes one finding.
        before = _previous_offsets(base, last, self.last)
        descending = base <= before
        descending[0] &= self.last is not None
        faults = [
            (descending, "base offset {base} after a batch that extends to {before}"),
            (last < base, "last offset {last} is below the base offset {base}"),
        ]
        if start is not None:
            faults.append((base < start, f"base offset {{base}} is below the segment's, {start}"))
        for mask, text in faults:
            for row in np.flatnonzero(mask).tolist():
                found = text.format(base=base[row], before=before[row], last=last[row])
                self.report.add(segment.path, int(batches["position"][row]), found)
        # The damage itself is reported; the offsets after it show nothing more.
        gaps = np.flatnonzero(after_gap(base, before) & ~after_damage)
        if len(gaps):
            row = int(gaps[0])
            if not self.gaps:
                self.gap_position = int(batches["position"][row])
                self.first_gap = f"{before[row]} is followed by {base[row]}"
            self.gaps += len(gaps)

    def _check_records(self, path: str, table: RecordTable) -> None:
        records = table.records
        batch = records["batch"]
        offsets = records["offset"]
        down = np.zeros(len(records), np.bool_)
        down[1:] = (offsets[1:] <= offsets[:-1]) & (batch[1:] == batch[:-1])
        outside = (offsets > table.batches["last_offset"][batch]) | (offsets < table.batches["base_offset"][batch])
        late = records["timestamp"] > table.batches["max_timestamp"][batch]
        for mask, text in (
            (down, "offsets of its records do not ascend, at {offset}"),
            (outside, "record offset {offset} is outside the batch"),
            (late, "a record's timestamp, {timestamp}, is later than the batch's max_timestamp"),
        ):
            bad, first = np.unique(batch[mask], return_index=True)
            chosen = np.flatnonzero(mask)[first]
            for row, record in zip(bad.tolist(), chosen.tolist(), strict=True):
                values = {name: int(records[name][record]) for name in ("offset", "timestamp")}
                base = int(table.batches["base_offset"][row])
                position = int(table.batches["position"][row])
                self.report.add(path, position, f"base offset {base}: {text.format(**values)}")

    def end(self, segment: Segment) -> None:
        if self.gaps:
            more = {1: "", 2: ", and 1 more gap"}.get(self.gaps, f", and {self.gaps - 1:,} more gaps")
            text = f"offsets are missing: {self.first_gap}{more}"
            self.report.add(segment.path, self.gap_position, text, damage=False)


class _Sequences:
    """Verifies the sequence numbers of idempotent producers, over all segments."""

    def __init__(self, report: VerificationReport) -> None:
        self.report = report
        # A broker expires producers by its clock. Timestamps are the closest approximation in the log.
        self.checker = SequenceChecker(expiration_ms=_PRODUCER_EXPIRATION)
        self.last: int | None = None
        self.gap = -1

    def follow(self, path: str, table: RecordTable) -> None:
        rows = np.flatnonzero(BatchStatus.sound(table.batches["status"]))
        if not len(rows):
            return
        base, last = table.batches["base_offset"][rows], table.batches["last_offset"][rows]
        # The batch after each gap, and its first offset.
        is_after_gap = after_gap(base, _previous_offsets(base, last, self.last))
        gap_rows, gaps = rows[is_after_gap], base[is_after_gap]
        for refusal in self.checker.refusals(table):
            batch = table.batches[refusal.row]
            offset = int(batch["base_offset"])
            passed = int(np.searchsorted(gap_rows, refusal.row, "right"))
            explained = refusal.after < (int(gaps[passed - 1]) if passed else self.gap)
            missing = refusal.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            damage = refusal.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER or (missing and not explained)
            text = f"base offset {offset}: {refusal.text}"
            if missing and explained:
                text += "; offsets in between are missing"
            self.report.add(path, int(batch["position"]), text, damage=damage)
        if len(gaps):
            self.gap = int(gaps[-1])
        self.last = int(last[-1])


def verify_index(
    path: str, segment: Segment, *, on_finding: OnFinding | None = None, storage: Storage | None = None
) -> VerificationReport:
    """Verify an ``.index`` or ``.timeindex`` file against the batch headers of its segment."""
    report = VerificationReport(on_finding=on_finding)
    options = DecodeOptions(on_error="skip", framing_only=True)
    for check in index_checks(segment, report, only=os.path.splitext(path)[1], storage=storage):
        for table in read_tables(segment, 0, segment.size, options, TABLE_BYTES):
            check.follow(table.batches[BatchStatus.sound(table.batches["status"])], table)
        check.end(segment)
    return report


def _check_transactions(
    segments: Sequence[Segment], options: DecodeOptions, lost: bool, report: VerificationReport, only: str | None = None
) -> None:
    """Compare the ``.txnindex`` files, or the one at path `only`, with the markers (TXI-R2, TXI-R5)."""
    paths = [segment.sibling(".txnindex") for segment in segments]
    indexed = [segment.has(".txnindex") for segment in segments]
    if not segments or not (any(indexed) or any(segment.has(".index") for segment in segments)):
        return
    aborted = _aborted(segments, options)
    ends = SortedValues(aborted["last_offset"])
    for i, (segment, path) in enumerate(zip(segments, paths, strict=True)):
        if only is not None and os.path.abspath(path) != os.path.abspath(only):
            continue
        listed = np.empty(0, aborted.dtype)
        if indexed[i]:
            report.side_files += 1
            try:
                listed = read_transaction_index(path, storage=segment.storage)
            except KbatchError as error:
                _report_unreadable(path, error, report)
                continue
        elif lost or not segment.has(".index"):
            continue
        if lost:
            text = "not compared with the markers: some may be among the damaged batches"
            report.add(path, 0, text, damage=False)
            continue
        stop = segments[i + 1].base_offset if i + 1 < len(segments) else None
        here = ends.between(segment.base_offset or 0, INT64_MAX if stop is None else stop - 1)
        _compare(path, listed, aborted[here], segments[0].base_offset or 0, report)


def _aborted(segments: Sequence[Segment], options: DecodeOptions) -> npt.NDArray[np.void]:
    """Return the aborted transactions by the markers. A transaction may begin before the log does (TXI-R7)."""
    first = segments[0]
    producers = None
    # In tiered storage the snapshot has the state after the segment.
    if first.has(".snapshot") and not is_remote_name(os.path.basename(first.path)):
        try:
            producers = read_producer_snapshot(first.sibling(".snapshot"), storage=first.storage)
        except KbatchError:
            producers = None
    begun: list[OpenTransaction] = []
    if producers is not None:
        producers = producers[producers["current_txn_first_offset"] >= 0]
        columns = (producers[name].tolist() for name in ("producer_id", "current_txn_first_offset", "timestamp"))
        begun = [OpenTransaction(*row) for row in zip(*columns, strict=True)]
    # The checksums were verified before, and the index is not to be used.
    options = replace(options, on_error="raise", crc="skip")
    followed = (segment_transactions(each, None, options) for each in segments)
    return join_transactions(followed, begun, limits=options.limits).aborted


def _compare(
    path: str, listed: npt.NDArray[np.void], marked: npt.NDArray[np.void], log_start: int, report: VerificationReport
) -> None:
    expected = {(row["producer_id"], row["last_offset"]): row for row in marked}
    for i, entry in enumerate(listed):
        producer, first, last, stable = entry.tolist()
        row = expected.pop((producer, last), None)
        damage = False
        if row is None:
            # Compaction removes the data first and the marker last.
            text = "no such marker follows a transaction's data in the log"
        elif first > row["first_offset"]:
            text = f"first offset is {first}, the transaction began at {row['first_offset']}"
            damage = True
        elif first < row["first_offset"] and first >= log_start:
            text = f"first offset is {first}, the first remaining batch has {row['first_offset']}"
        elif stable != row["last_stable_offset"]:
            text = f"last stable offset is {stable}, the markers give {row['last_stable_offset']}"
        else:
            continue
        text = f"producer {producer}, marker at offset {last}: {text}"
        report.add(path, STORED_ABORTED.itemsize * i, text, damage=damage)
    for producer, last in sorted(expected, key=lambda key: int(key[1])):
        text = f"no entry for the aborted transaction of producer {producer} with the marker at offset {last}"
        report.add(path, STORED_ABORTED.itemsize * len(listed), text)


def _snapshots(segments: Sequence[Segment]) -> Iterator[tuple[Storage, str]]:
    for directory, storage in sorted({os.path.dirname(segment.path): segment.storage for segment in segments}.items()):
        for name in sorted(storage.list(directory or ".")):
            if name.endswith(".snapshot"):
                yield storage, storage.join(directory, name)


def _check_snapshot(path: str, report: VerificationReport, storage: Storage | None = None) -> None:
    report.side_files += 1
    try:
        read_producer_snapshot(path, storage=storage)
    except KbatchError as error:
        _report_unreadable(path, error, report)


def verify_snapshot(
    path: str, *, on_finding: OnFinding | None = None, storage: Storage | None = None
) -> VerificationReport:
    """Verify a ``.snapshot`` file: its version, checksum and size."""
    report = VerificationReport(on_finding=on_finding)
    _check_snapshot(path, report, storage)
    return report


def verify_transaction_index(
    path: str,
    segments: Sequence[Segment],
    *,
    on_finding: OnFinding | None = None,
    storage: Storage | None = None,
) -> VerificationReport:
    """Verify a ``.txnindex`` file against the markers of its log, or by itself if there are no segments."""
    report = VerificationReport(on_finding=on_finding)
    if any(os.path.abspath(segment.sibling(".txnindex")) == os.path.abspath(path) for segment in segments):
        _check_transactions(segments, DecodeOptions(), False, report, only=path)
        return report
    report.side_files += 1
    try:
        read_transaction_index(path, storage=storage)
    except KbatchError as error:
        _report_unreadable(path, error, report)
    return report


def _report_unreadable(path: str, error: KbatchError, report: VerificationReport) -> None:
    """Report an error. The file and the byte are removed from its text, because the finding contains them."""
    text = str(error).removeprefix(printable(path)).removeprefix(f", byte {error.position}")
    report.add(path, error.position or 0, text.removeprefix(": "))
