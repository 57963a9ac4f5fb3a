"""Compares the offsets of a topic-partition in the output of exports with the offsets of its log.

The commits of an export state which offsets they cover, and the log shows which of these offsets have records. Both are
compared with the column ``offset`` of the data files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.escaping import counted
from kbatch.format import INT64_MAX
from kbatch.public_names import public_in
from kbatch.quantities import smallest
from kbatch.sinks.file_names import run_of
from kbatch.sinks.offset_windows import LogOffsets, OffsetArray, VerifiedLog, Window, WrittenOffsets, windows
from kbatch.sinks.output_offsets import CoveredRange, ExportOutput, row_groups

__all__ = ["ExportFinding", "PartitionCheck", "PartitionVerification"]

# The number of ranges to list for each kind of finding of a topic-partition; all are counted.
MAX_RANGES = 100

FindingKind = Literal[
    "missing", "doubled", "uncovered", "fewer", "unknown", "lost", "damaged", "behind", "gone", "restarted", "extra"
]


@public_in("kbatch")
class ExportFinding(NamedTuple):
    """A fault or a note.

    Attributes
    ----------
    topic : str
    partition : int
    kind : str
        Faults: ``"missing"`` (the log has the records, but the output does not), ``"doubled"``, ``"uncovered"`` (rows
        that no commit covers), ``"fewer"`` (a commit wrote more records than the output has, and the log does not have
        them either). Notes name records that are not compared: ``"unknown"`` commits, records that the export
        ``"lost"``, a ``"damaged"`` log, an export that is ``"behind"``, offsets that are ``"gone"`` from the log, rows
        of a log that was ``"restarted"``, and ``"extra"`` rows, which the log no longer has.
    first_offset, last_offset : int or None
    total : int
        The number of records, offsets or bytes.
    text : str
    damage : bool
        False for a note.
    """

    topic: str
    partition: int
    kind: FindingKind
    first_offset: int | None
    last_offset: int | None
    total: int
    text: str
    damage: bool = True


@public_in("kbatch")
@dataclass
class PartitionVerification:
    """The result for a topic-partition.

    Attributes
    ----------
    topic : str
    partition : int
    start, end : int or None
        The offsets that the commits cover; None if they cover none.
    records : int
        Distinct offsets in the output.
    compared : int
        Records of the log that were compared with them.
    missing, doubled : int
        Records that the output does not have, and surplus rows.
    findings : list of ExportFinding
        With the first hundred ranges of each kind.
    """

    topic: str
    partition: int
    start: int | None = None
    end: int | None = None
    records: int = 0
    compared: int = 0
    missing: int = 0
    doubled: int = 0
    findings: list[ExportFinding] = field(default_factory=list)

    def add(
        self,
        kind: FindingKind,
        text: str,
        *,
        first: int | None = None,
        last: int | None = None,
        total: int = 0,
        damage: bool = False,
    ) -> None:
        """Add a finding."""
        self.findings.append(ExportFinding(self.topic, self.partition, kind, first, last, total, text, damage))


class _Ranges:
    """The offsets of one kind of finding: the first ranges, and the number of all offsets."""

    def __init__(self) -> None:
        self.count = 0
        self.more = 0
        self.found: list[list[int]] = []
        self._next = -1

    def add(self, offsets: OffsetArray, places: npt.NDArray[np.int64]) -> None:
        """Add offsets with their indices in a sequence; offsets with consecutive indices form one range."""
        if not len(offsets):
            return
        self.count += len(offsets)
        breaks = np.flatnonzero(np.diff(places) != 1) + 1
        starts, ends = np.concatenate([[0], breaks]), np.concatenate([breaks, [len(offsets)]])
        for start, end in zip(starts[: MAX_RANGES + 1].tolist(), ends[: MAX_RANGES + 1].tolist(), strict=True):
            if self.found and start == 0 and int(places[0]) == self._next:
                self.found[-1][1:] = [int(offsets[end - 1]), self.found[-1][2] + end - start]
            elif len(self.found) < MAX_RANGES:
                self.found.append([int(offsets[start]), int(offsets[end - 1]), end - start])
        self._next = int(places[-1]) + 1

    def report(self, part: PartitionVerification, kind: FindingKind, text: str, *, damage: bool = True) -> None:
        """Add a finding for each range; the offsets replace the braces in `text`."""
        listed = 0
        for first, last, count in self.found:
            listed += count
            of = "" if count == last - first + 1 else f" ({counted(count, 'record')})"
            where = f"offset {first}" if first == last else f"offsets {first} to {last}{of}"
            part.add(kind, text.format(where), first=first, last=last, total=count, damage=damage)
        if listed < self.count:
            part.add(
                kind, text.format(f"{self.count - listed:,} more offsets"), total=self.count - listed, damage=damage
            )


class _Live(NamedTuple):
    """The part of a covered range whose records no truncation has replaced."""

    start: int
    end: int
    is_whole: bool
    covered: CoveredRange


class PartitionCheck:
    """Compares the offsets of one topic-partition; calls `progress` with the bytes of the log read so far."""

    def __init__(
        self, output: ExportOutput, name: tuple[str, int], log: VerifiedLog | None, progress: Callable[[int], None]
    ) -> None:
        self._output = output
        self._name = name
        self._log = log
        self._covered = output.covered.get(name, [])
        self._limits = _limits(self._covered)
        self._live = _live_ranges(self._covered, self._limits)
        self._part = PartitionVerification(*name)
        if self._live:
            self._part.start, self._part.end = self._live[0].start, max(each.end for each in self._live)
        self._expected = [] if log is None else list(self._expected_ranges(log))
        self._offsets = LogOffsets(log, self._expected, progress)
        self._found: dict[str, _Ranges] = {kind: _Ranges() for kind in ("missing", "doubled", "uncovered", "extra")}
        # For each live range: its bounds, its rows in the output, and its missing records.
        self._starts = np.array([each.start for each in self._live], np.int64)
        self._ends = np.array([each.end for each in self._live], np.int64)
        self._rows = np.zeros(len(self._live), np.int64)
        self._missing = np.zeros(len(self._live), np.int64)

    def _expected_ranges(self, log: VerifiedLog) -> Iterator[tuple[int, int, Any, bool]]:
        """Yield the ranges of the log to compare: the ranges that commits cover, and the gaps between them."""
        first, end = log.first_offset, log.end_offset
        reached: int | None = None
        for each in self._live:
            start = each.start
            # No commit covers the gap before this range, although the log has not lost these offsets.
            if reached is not None and each.covered.restart != "deleted":
                start = reached
            reached = each.end
            start, stop = max(start, first), min(each.end, end)
            if start < stop and not each.covered.has_key:
                yield start, stop, each.covered.isolation, each.covered.has_control

    def run(self) -> PartitionVerification:
        """Compare all offsets."""
        place, names = self._output.place, self._output.files.get(self._name, [])
        written = WrittenOffsets(place, list(row_groups(place, names)), self._limit_of)
        place_in_log = 0
        for window in windows(written, self._offsets):
            place_in_log = self._compare(window, place_in_log)
        part, found = self._part, self._found
        part.compared, part.missing = place_in_log, found["missing"].count
        lost = any(each.covered.has_losses for each in self._live)
        why = "; commits that cover this topic-partition had losses" if lost else ""
        found["missing"].report(part, "missing", f"missing in the output, though the log has it: {{}}{why}")
        found["doubled"].report(part, "doubled", "more than once in the output: {}")
        found["uncovered"].report(part, "uncovered", "in the output, but covered by no commit: {}")
        self._compare_counts()
        self._add_notes(written.void_rows)
        return part

    def _limit_of(self, name: str) -> int | None:
        """Return the offset from which on rows of a file belong to a log that was truncated or recreated later."""
        run = run_of(name)
        number = self._output.runs.get(run) if run is not None else None
        if number is None:
            return None
        return next(
            (limit for each, limit in zip(self._covered, self._limits, strict=True) if each.first_run >= number), None
        )

    def _compare(self, window: Window, place: int) -> int:
        """Compare a window; return the index of the next record of the log."""
        rows, row_counts = _with_counts(window.written)
        records, record_counts = _with_counts(window.expected)
        # How often each offset of the output is in the log, and each offset of the log in the output.
        in_log = _counts_at(rows, records, record_counts)
        in_output = _counts_at(records, rows, row_counts)
        allowed = np.maximum(in_log, 1)
        doubled = row_counts > allowed
        self._part.doubled += int((row_counts - allowed)[doubled].sum())
        self._part.records += len(rows)
        self._found["doubled"].add(rows[doubled], rows[doubled])
        missing = np.flatnonzero(in_output < record_counts)
        self._found["missing"].add(records[missing], missing + place)
        numbers, is_covered = self._ranges_of(rows)
        np.add.at(self._rows, numbers[is_covered], np.minimum(row_counts, allowed)[is_covered])
        missed, is_known = self._ranges_of(records[missing])
        np.add.at(self._missing, missed[is_known], 1)
        stray = rows[~is_covered & ~self._may_be_covered(rows)]
        self._found["uncovered"].add(stray, stray)
        extra = rows[(in_log == 0) & is_covered & self._is_compared(rows)]
        self._found["extra"].add(extra, extra)
        return place + len(records)

    def _ranges_of(self, offsets: OffsetArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the number of the live range of each offset, and whether it is in one."""
        if not len(self._starts):
            return np.zeros(len(offsets), np.int64), np.zeros(len(offsets), np.bool_)
        numbers = np.maximum(np.searchsorted(self._starts, offsets, "right") - 1, 0)
        return numbers, (offsets >= self._starts[numbers]) & (offsets < self._ends[numbers])

    def _may_be_covered(self, offsets: OffsetArray) -> npt.NDArray[np.bool_]:
        """Return, for each offset, whether a commit with unknown ranges may cover it."""
        if self._output.unknown_run is None:
            return np.zeros(len(offsets), np.bool_)
        return offsets < (INT64_MAX if self._part.start is None else self._part.start)

    def _is_compared(self, offsets: OffsetArray) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(offsets), np.bool_)
        for start, stop, *_ in self._expected:
            found |= (offsets >= start) & (offsets < stop)
        return found

    def _compare_counts(self) -> None:
        """Add a finding for each range whose number of rows differs from the commits, unless the offsets show it.

        They do not show it if the log no longer has these records.
        """
        for live, rows, missing in zip(self._live, self._rows.tolist(), self._missing.tolist(), strict=True):
            written = live.covered.records
            more, fewer = rows - written, written - rows - missing
            if not live.is_whole or (more <= 0 and fewer <= 0):
                continue
            known = "" if missing == 0 else f", and {missing:,} records of the log are missing"
            text = f"offsets {live.start} to {live.end - 1}: the commits wrote {counted(written, 'record')}, and the "
            text += f"output has {rows:,}{known}"
            kind: FindingKind = "uncovered" if more > 0 else "fewer"
            self._part.add(kind, text, first=live.start, last=live.end - 1, total=max(more, fewer), damage=True)

    def _add_notes(self, void_rows: int) -> None:
        """Add notes on records that were not compared."""
        part, log = self._part, self._log
        if self._output.unknown_run is not None:
            part.add(
                "unknown", f"the offsets that the run {self._output.unknown_run} and earlier runs cover are unknown"
            )
        for each in self._live:
            if each.covered.has_losses:
                text = f"offsets {each.start} to {each.end - 1}: the export had losses, which _losses lists"
                part.add("lost", text, first=each.start, last=each.end - 1)
            if each.covered.has_key:
                part.add(
                    "unknown", f"offsets {each.start} to {each.end - 1}: only the records of one key were exported"
                )
        if self._offsets.lost_bytes:
            lost = counted(self._offsets.lost_bytes, "byte")
            part.add("damaged", f"{lost} of the log are damaged, with unknown offsets", total=self._offsets.lost_bytes)
        if part.start is not None and part.end is not None:
            self._add_ends(log, part.start, part.end)
        if void_rows:
            part.add(
                "restarted", f"{counted(void_rows, 'row')} of a log that was truncated or recreated", total=void_rows
            )
        extra = self._found["extra"].count
        if extra:
            part.add(
                "extra",
                f"{counted(extra, 'row')} that the log no longer has: compaction, or damage",
                total=extra,
            )

    def _add_ends(self, log: VerifiedLog | None, start: int, end: int) -> None:
        part = self._part
        if log is None:
            part.add("gone", "there is no log: only the number of records and duplicates were checked")
            return
        first, log_end = log.first_offset, log.end_offset
        if first > start:
            text = f"offsets {start} to {min(first, end) - 1} are no longer in the log"
            part.add("gone", text, first=start, last=min(first, end) - 1)
        if log_end < end:
            text = f"the log ends at offset {log_end}, before the position of the export, {end}"
            part.add("gone", text, first=log_end, last=end - 1)
        if log_end > end:
            text = f"the export is {counted(log_end - end, 'offset')} behind the log; it continues at offset {end}"
            part.add("behind", text, first=end, last=log_end - 1, total=log_end - end)


def _limits(covered: Sequence[CoveredRange]) -> list[int | None]:
    """Return, for each range, the offset from which on a later change of the log invalidates it, or None."""
    limits: list[int | None] = []
    limit: int | None = None
    for each in covered:
        limits.append(limit)
        if each.restart in ("truncated", "recreated"):
            limit = smallest(limit, each.start)
    return limits


def _live_ranges(covered: Sequence[CoveredRange], limits: Sequence[int | None]) -> list[_Live]:
    """Return the valid parts of the ranges in the order of their offsets, without overlaps."""
    live: list[_Live] = []
    reached = -1
    for each, limit in zip(reversed(covered), reversed(limits), strict=True):
        start, end = max(each.start, reached), each.end if limit is None else min(each.end, limit)
        if start < end:
            live.append(_Live(start, end, (start, end) == (each.start, each.end), each))
            reached = end
    return live


def _with_counts(offsets: OffsetArray) -> tuple[OffsetArray, npt.NDArray[np.int64]]:
    """Return the distinct offsets of a sorted array, and the count of each."""
    is_first = np.ones(len(offsets), np.bool_)
    np.not_equal(offsets[1:], offsets[:-1], out=is_first[1:])
    starts = np.flatnonzero(is_first)
    return offsets[starts], np.diff(starts, append=len(offsets))


def _counts_at(offsets: OffsetArray, others: OffsetArray, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return, for each offset, its count among the others, which ascend; 0 if it is missing there."""
    if not len(others):
        return np.zeros(len(offsets), np.int64)
    at = np.minimum(np.searchsorted(others, offsets), len(others) - 1)
    found: npt.NDArray[np.int64] = np.where(others[at] == offsets, counts[at], 0)
    return found
