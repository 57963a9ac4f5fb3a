"""Offsets that are missing between two segments of a log: removed by compaction, or for an unknown reason.

A broker begins a segment at the offset after the last batch of the segment before (``LocalLog.roll``). Only the log
cleaner removes batches from the middle of a log. Without a sign of it, a file is missing, or has lost its end.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.batches.checksums import has_good_batch
from kbatch.batches.framing import first_offsets
from kbatch.errors import LogDirectoryError
from kbatch.format import ATTRIBUTE_DELETE_HORIZON
from kbatch.log.files.checkpoints import CLEANER_CHECKPOINT, checkpoint_offsets
from kbatch.log.reading import read_tables
from kbatch.log.segment import Segment
from kbatch.log.store.names import parse_directory_name
from kbatch.read.decode_options import DecodeOptions
from kbatch.records.loss_list import Loss
from kbatch.table import RecordTable
from kbatch.tuning import SMALL_TABLE_BYTES

__all__ = ["SegmentEnd", "SegmentGap", "SegmentGaps", "after_gap", "are_rewritten", "cleaner_checkpoint"]

# Segments after a gap are searched for signs of compaction up to this size in total, and the next one in any case, so
# that many gaps take time linear in the size of the log.
_MAX_SEARCHED_BYTES = 256 << 20


class SegmentGap(NamedTuple):
    """Offsets that are missing between two segments.

    Attributes
    ----------
    first_offset, last_offset : int
    before, after : str
        The files of the segments.
    position : int
        The size of the file before.
    compacted : bool
        Whether there is a sign that compaction has removed the offsets; otherwise the cause is unknown.
    """

    first_offset: int
    last_offset: int
    before: str
    after: str
    position: int
    compacted: bool

    @property
    def offset_count(self) -> int:
        """The number of missing offsets."""
        return self.last_offset - self.first_offset + 1

    @property
    def reason(self) -> str:
        """The offsets, the files, and what is known of the cause."""
        names = " and ".join(os.path.basename(path) for path in (self.before, self.after))
        one = f"offset {self.first_offset} is"
        many = f"offsets {self.first_offset} to {self.last_offset} are"
        cause = (
            "compaction has removed them"
            if self.compacted
            else "a gap of unknown cause, since nothing shows that compaction has removed them"
        )
        return f"{one if self.offset_count == 1 else many} missing between the segments {names}: {cause}"

    def as_table(self, options: DecodeOptions | None = None) -> RecordTable:
        """Return an empty table; a gap of unknown cause is its loss, of no bytes at the end of the segment before."""
        options = options if options is not None else DecodeOptions()
        losses = [] if self.compacted else [Loss(self.position, 0, self.reason, self.first_offset)]
        return RecordTable._empty(options.table_columns, consumed=0, losses=losses, source=self.before)

    def error(self, name: str | None) -> LogDirectoryError:
        """Make the error for a gap of unknown cause in the log of a topic-partition."""
        prefix = os.path.dirname(self.before) if name is None else name
        return LogDirectoryError(
            f"{prefix}: {self.reason} ({self.before}, {self.after}); restore the missing segment, or read what is "
            "there and list the gap with onGap=report (kbatch export: --gaps report)",
            source=self.after,
        )


class SegmentEnd:
    """Follows the tables of a segment, and knows which offsets are missing after it.

    Parameters
    ----------
    base_offset : int or None
        Of the segment.
    """

    def __init__(self, base_offset: int | None) -> None:
        # The offset after the last batch that is not lost; None if it is unknown.
        self._next = base_offset
        # Whether bytes were lost after that batch, which may have had the offsets that are missing.
        self._is_damaged = False

    def add(self, table: RecordTable) -> None:
        """Add the next table; the last one ends at the end of the file."""
        batches = table.batches
        if table.losses:
            starts = table.losses.positions
            ends = starts + table.losses.lengths
            at = np.searchsorted(starts, batches["position"], "right")
            batches = batches[(at == 0) | (batches["position"] >= ends[at - 1])]
            self._is_damaged = not len(batches) or bool(starts[-1] > batches["position"][-1])
        elif len(batches):
            self._is_damaged = False
        if len(batches) and self._next is not None:
            last = batches["last_offset"]
            # A maximum takes 8 us, which a log of tiny segments would notice.
            self._next = max(self._next, int(last[0] if len(last) == 1 else last.max()) + 1)

    def missing(self, below: int | None, start: int | None, stop: int | None) -> tuple[int, int] | None:
        """Return the range of offsets up to `below` that are missing, as far as they are from `start` up to `stop`."""
        if self._next is None or below is None or self._is_damaged:
            return None
        first, end = max(self._next, start or 0), below if stop is None else min(below, stop)
        return (first, end) if first < end else None


class SegmentGaps:
    """Finds the gaps between the segments of a log. Files are read only where offsets are missing.

    Compaction begins at the first offset of a log, so whatever shows that it reached an offset explains all gaps below:

    - the entry of the topic-partition in ``cleaner-offset-checkpoint``, the offset up to which the log was cleaned;
    - in a segment after the gap, a batch that the cleaner has written, or offsets that are missing before a batch;
    - the same in the segment before the gap, above the checkpoint: the cleaner may have removed the end of the segment
      too.

    A batch was written by the cleaner if it has a delete horizon, or fewer records than offsets.

    Parameters
    ----------
    segments : sequence of Segment
        In order of base offset.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._cleaned: int | None = None

    def after(self, number: int, end: SegmentEnd, start: int | None, stop: int | None) -> list[SegmentGap]:
        """Return the offsets that are missing between a segment and the next one.

        Parameters
        ----------
        number : int
            The number of the segment.
        end : SegmentEnd
            Of its tables from `start` on, up to the end of the file.
        start, stop : int or None
            Only offsets in this range count.

        Returns
        -------
        list of SegmentGap
            Empty, or one gap, or two: the part that compaction has removed, and the rest.
        """
        if number + 1 == len(self._segments):
            return []
        segment, following = self._segments[number : number + 2]
        missing = end.missing(following.base_offset, start, stop)
        if missing is not None:
            missing = end.missing(_begin_of(following, missing[0]), start, stop)
        if missing is None:
            return []
        first, below = missing
        cleaned = self._cleaned_offset()
        if cleaned < below and self._shows_compaction(number, cleaned):
            cleaned = below
        parts = ((first, min(below, cleaned), True), (max(first, cleaned), below, False))
        return [
            SegmentGap(low, high - 1, segment.path, following.path, segment.size, compacted)
            for low, high, compacted in parts
            if low < high
        ]

    def _cleaned_offset(self) -> int:
        """Return the offset up to which the log was cleaned by the checkpoint, or 0."""
        if self._cleaned is None:
            self._cleaned = cleaner_checkpoint(self._segments[0])
        return self._cleaned

    def _shows_compaction(self, number: int, cleaned: int) -> bool:
        """Whether the segments around the gap after a segment show that compaction has passed it."""
        if _is_compacted(self._segments[number], cleaned):
            return True
        searched = 0
        for segment in self._segments[number + 1 :]:
            if searched and searched + segment.size > _MAX_SEARCHED_BYTES:
                return False
            searched += segment.size
            if _is_compacted(segment, 0):
                return True
        return False


def after_gap(base: npt.NDArray[np.int64], before: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return whether offsets are missing between `before` and `base`; differences of int64 fit in uint64."""
    return (base > before) & (base.astype(np.uint64) - before.astype(np.uint64) > 1)


def are_rewritten(batches: npt.NDArray[np.void] | np.void) -> npt.NDArray[np.bool_]:
    """Return whether batches show that the log cleaner has written them."""
    has_horizon = (batches["attributes"] & ATTRIBUTE_DELETE_HORIZON) != 0
    lacks_records = batches["record_count"] < batches["last_offset"] - batches["base_offset"] + 1
    rewritten: npt.NDArray[np.bool_] = (batches["magic"] == 2) & (has_horizon | lacks_records)
    return rewritten


def _begin_of(segment: Segment, first: int) -> int | None:
    """Return the offset in a segment's name, or that of its first batch if it is lower, but not below `first`."""
    below = segment.base_offset
    for rows in segment.scan():
        offset = int(first_offsets(rows[:1])[0])
        return offset if below is not None and first <= offset < below else below
    return below


def cleaner_checkpoint(segment: Segment) -> int:
    """Return the offset up to which the log of a segment was cleaned, from its log directory; 0 if it is unknown."""
    storage = segment.storage
    directory = os.path.dirname(storage.absolute(segment.path))
    try:
        topic, partition, mark = parse_directory_name(os.path.basename(directory))
    except LogDirectoryError:
        return 0
    if mark is not None:
        return 0
    return checkpoint_offsets(os.path.dirname(directory), CLEANER_CHECKPOINT, storage).get((topic, partition), 0)


def _is_compacted(segment: Segment, above: int) -> bool:
    """Whether a good batch of a segment shows that compaction reached offsets from `above` on.

    The checksum does not cover the base offset: where offsets do not ascend, a gap may be a wrong offset.
    """
    found = has_sets = False
    before = (segment.base_offset or 0) - 1
    with segment.open() as file:
        for rows in file.walk(0):
            base, last = first_offsets(rows), rows["last_offset"]
            previous = np.concatenate([[before], last[:-1]])
            if np.any(base <= previous):
                return False
            is_set = rows["base_offset"] < 0
            signs = (after_gap(base, previous) & ~is_set & (base > above)) | (are_rewritten(rows) & (last >= above))
            found = found or any(has_good_batch(file, row) for row in rows[signs])
            has_sets = has_sets or bool(is_set.any())
            before = int(last[-1])
    return found or (has_sets and _lacks_records(segment, above))


def _lacks_records(segment: Segment, above: int) -> bool:
    """Whether offsets are missing between records, from `above` on; the headers of compressed message sets hide it."""
    options = DecodeOptions(on_error="skip", include_control=True, columns=("offset",))
    before = (segment.base_offset or 0) - 1
    for table in read_tables(segment, 0, segment.size, options, SMALL_TABLE_BYTES):
        offsets = table.records["offset"]
        if table.losses:
            return False
        if len(offsets):
            missing = after_gap(offsets, np.concatenate([[before], offsets[:-1]]))
            if np.any(missing & (offsets > above)):
                return True
            before = int(offsets[-1])
    return False
