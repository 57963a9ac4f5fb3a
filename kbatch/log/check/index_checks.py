"""Checks of ``.index`` and ``.timeindex`` files against the batches of their segment."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kbatch.errors import KbatchError, LogDirectoryError
from kbatch.log.check.verification_report import VerificationReport
from kbatch.log.files.indexes import STORED_OFFSET_ENTRY, STORED_TIME_ENTRY, stored_entries
from kbatch.log.segment import Segment
from kbatch.log.sorted_values import SortedValues
from kbatch.log.store.storage import Storage
from kbatch.table import RecordTable

__all__ = ["OffsetIndexCheck", "TimeIndexCheck", "index_checks"]


class OffsetIndexCheck:
    """Checks that each entry of an ``.index`` points at a batch, with the last offset appended there (DSK-R2)."""

    width = STORED_OFFSET_ENTRY.itemsize

    def __init__(self, path: str, entries: npt.NDArray[np.void], report: VerificationReport) -> None:
        self.path, self.entries, self.report = path, entries, report
        self.misplaced = _misplaced(self, ("offset", "position"), "entries must ascend", strict=True)
        self.pointed = np.zeros(len(entries), np.bool_)
        self.offset_seen = np.zeros(len(entries), np.bool_)
        self.batch_last = np.zeros(len(entries), np.int64)
        self.batch_base = np.zeros(len(entries), np.int64)
        self._positions = SortedValues(entries["position"])
        self._offsets = SortedValues(entries["offset"])
        self.lost: list[tuple[int, int]] = []

    def follow(self, sound: npt.NDArray[np.void], table: RecordTable) -> None:
        """Check the next batches of the segment, with the losses between them."""
        starts = table.losses.positions
        self.lost += zip(starts.tolist(), (starts + table.losses.lengths).tolist(), strict=True)
        if not len(sound) or not len(self.entries):
            return
        rows = self._positions.between(int(sound["position"][0]), int(sound["position"][-1]))
        positions = self.entries["position"][rows]
        at = np.searchsorted(sound["position"], positions)
        hit = sound["position"][at] == positions
        self.pointed[rows[hit]] = True
        self.batch_last[rows[hit]] = sound["last_offset"][at[hit]]
        self.batch_base[rows[hit]] = sound["base_offset"][at[hit]]
        self.offset_seen[self._offsets.equal_to(sound["last_offset"])] = True

    def end(self, segment: Segment) -> None:
        """Report the entries that no batch of the segment matches."""
        size = _size_now(segment)
        lost = np.array([(-1, -1), *self.lost], np.int64)
        before = np.searchsorted(lost[:, 0], self.entries["position"], "right") - 1
        is_lost = self.entries["position"] < lost[before, 1]
        for row in np.flatnonzero(~self.misplaced & ~is_lost).tolist():
            offset, position = self.entries[row].tolist()
            text = None
            if not self.pointed[row]:
                if position < segment.size:
                    text = f"no batch begins at position {position}"
                elif position >= size:
                    text = f"position {position} is beyond the segment's {segment.size} bytes"
            elif offset < self.batch_last[row]:
                text = (
                    f"the batch at position {position} has the offsets {self.batch_base[row]} to {self.batch_last[row]}"
                )
            elif not self.offset_seen[row] and not self.lost:
                text = "no batch ends with this offset"
            if text is not None:
                self.report.add(self.path, self.width * row, f"entry of offset {offset}: {text}")


class TimeIndexCheck:
    """Checks that each ``.timeindex`` entry has the largest timestamp up to the batch with its offset (DSK-R3)."""

    width = STORED_TIME_ENTRY.itemsize

    def __init__(self, path: str, entries: npt.NDArray[np.void], report: VerificationReport) -> None:
        self.path, self.entries, self.report = path, entries, report
        self.misplaced = _misplaced(self, ("timestamp", "offset"), "entries must not descend", strict=False)
        self.largest_at = np.full(len(entries), -1, np.int64)
        self.found = np.zeros(len(entries), np.bool_)
        self.largest = -1
        self.reached = -1
        self.lost = False

    def follow(self, sound: npt.NDArray[np.void], table: RecordTable) -> None:
        """Check the next batches of the segment, with the losses between them."""
        self.lost |= bool(table.losses)
        if not len(sound):
            return
        largest = np.maximum(np.maximum.accumulate(sound["max_timestamp"]), self.largest)
        # The checksum does not cover the base offset: one batch with a far too large offset must not count.
        last = np.minimum.accumulate(sound["last_offset"][::-1])[::-1]
        at = np.searchsorted(last, self.entries["offset"])
        here = (at < len(sound)) & ~self.found
        self.largest_at[here] = largest[at[here]]
        self.found |= here
        self.largest = int(largest[-1])
        self.reached = int(last[-1])

    def end(self, segment: Segment) -> None:
        """Report the entries that no batch of the segment matches."""
        # The batches of some entries may be among the losses.
        if self.lost:
            return
        # Batches that a broker has appended meanwhile were not read.
        has_grown = _size_now(segment) > segment.size
        for row in np.flatnonzero(~self.misplaced).tolist():
            timestamp, offset = self.entries[row].tolist()
            text = None
            if not self.found[row]:
                if not has_grown:
                    text = f"the segment ends at {self.reached}"
            elif self.largest_at[row] != timestamp and not (timestamp <= 0 and self.largest_at[row] == -1):
                text = f"timestamp {timestamp}, the largest up to that batch is {self.largest_at[row]}"
            if text is not None:
                self.report.add(self.path, self.width * row, f"entry of offset {offset}: {text}")


_CHECKS: dict[str, type[OffsetIndexCheck | TimeIndexCheck]] = {".index": OffsetIndexCheck, ".timeindex": TimeIndexCheck}


def index_checks(
    segment: Segment, report: VerificationReport, only: str | None = None, storage: Storage | None = None
) -> list[OffsetIndexCheck | TimeIndexCheck]:
    """Make the checks of the index files that a segment has, or of the one with suffix `only` in `storage`."""
    checks = []
    for suffix, kind in _CHECKS.items():
        if segment.base_offset is None or not segment.has(suffix) or only not in (None, suffix):
            continue
        path = segment.sibling(suffix)
        report.side_files += 1
        try:
            entries, size = stored_entries(
                path, "index" if suffix == ".index" else "timeindex", storage or segment.storage
            )
        except LogDirectoryError as error:
            report.add(path, 0, str(error))
            continue
        if size % kind.width:
            text = f"the size, {size} bytes, is not a multiple of an entry's {kind.width} bytes"
            report.add(path, size - size % kind.width, text)
        elif size > entries.size * kind.width:
            if len(entries) == 1 and not any(entries[0].tolist()):
                # `stored_entries` keeps the first entry, but a file of several entries that are all zeros has none.
                entries = entries[:0]
            # A broker preallocates the files of the active segment, and truncates them when it closes the segment.
            if not segment.live:
                end = entries.size * kind.width
                text = f"{size - end} bytes of zeros after the entries: only the last segment's index is preallocated"
                report.add(path, end, text)
        entries["offset"] += segment.base_offset
        checks.append(kind(path, entries, report))
    return checks


def _misplaced(
    check: OffsetIndexCheck | TimeIndexCheck, names: tuple[str, str], rule: str, *, strict: bool
) -> npt.NDArray[np.bool_]:
    """Report each entry that is out of order once; return a mask of these entries."""
    misplaced = np.zeros(len(check.entries), np.bool_)
    for name in names:
        values = check.entries[name]
        down = values[1:] <= values[:-1] if strict else values[1:] < values[:-1]
        for row in (np.flatnonzero(down) + 1).tolist():
            if not misplaced[row]:
                check.report.add(check.path, check.width * row, f"{name} {values[row]} after {values[row - 1]}: {rule}")
            misplaced[row] = True
    return misplaced


def _size_now(segment: Segment) -> int:
    try:
        found = segment.storage.find(segment.path)
    except KbatchError:
        found = None
    return segment.size if found is None or found.size is None else found.size
