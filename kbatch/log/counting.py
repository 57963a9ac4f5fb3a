"""The number of records that a read gives, from batch headers where they suffice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kbatch.batches.framing import max_entry_size
from kbatch.format import ATTRIBUTE_CODEC, ATTRIBUTE_CONTROL, DEFAULT_LIMITS, BatchStatus, Codec, TimestampType
from kbatch.log.ranges import LogSelection, segments_within
from kbatch.log.reading import read_tables
from kbatch.log.row_filter import RowFilter
from kbatch.log.segment import Segment, check_order, last_offset
from kbatch.read.decode_options import DecodeOptions
from kbatch.table import RecordTable

__all__ = ["SegmentCount", "adjacent_spans", "counted_options", "decided_by_headers", "records_counted"]


def counted_options(options: DecodeOptions) -> DecodeOptions:
    """Return the options of a read whose records are only counted: with few columns, unless these decide what fits."""
    is_limited = options.is_strict or options.limits != DEFAULT_LIMITS
    return options if is_limited else replace(options, columns=("offset",))


def records_counted(selection: LogSelection) -> int:
    """Return the number of records of a read.

    Headers suffice for a batch if damage is an error, because a read without one gives all records of each batch. Other
    batches are decoded: those that a bound of offsets or timestamps may cut, and message sets.
    """
    selection = replace(selection, options=counted_options(selection.options))
    if selection.last is not None or selection.options.on_error != "raise" or selection.rows.keys:
        return _rows_of(selection.tables())
    transactions = selection.followed()
    withheld = None if transactions is None else transactions._withheld_of_log()
    options, count = selection.options, 0
    reached, before = None, ""
    for number, segment in segments_within(selection.segments, options.start_offset, options.stop_offset):
        check_order(before, reached, segment.path, segment.base_offset)
        decode = options if withheld is None else replace(options, withheld=withheld.of_segment(segment.path))
        if selection.rows.columns:
            decode = replace(decode, columns=_with_columns(decode.columns, selection.rows.columns))
        counting = SegmentCount(segment, decode, selection.rows, selection.max_bytes)
        count += counting.count(*selection.span(number))
        if counting.reached is not None:
            reached, before = counting.reached, segment.path
    return count


def _with_columns(columns: Iterable[str] | None, needed: tuple[str, ...]) -> tuple[str, ...] | None:
    return None if columns is None else tuple(dict.fromkeys([*columns, *needed]))


def _rows_of(tables: Iterable[RecordTable]) -> int:
    count = 0
    for table in tables:
        count += len(table)
        # Frees the table before the next one is decoded.
        del table
    return count


class SegmentCount:
    """Counts the records of one segment by headers where they suffice; damage is an error.

    Parameters
    ----------
    segment : Segment
    options : DecodeOptions
    rows : RowFilter
        The choice of records by time and key, whose columns `options` has.
    max_bytes : int
        Limit on a table of batches that are decoded.

    Attributes
    ----------
    reached : int or None
        The last offset of the batches.
    """

    def __init__(self, segment: Segment, options: DecodeOptions, rows: RowFilter, max_bytes: int) -> None:
        self.reached: int | None = None
        self._segment = segment
        self._options = options
        self._max_bytes = max_bytes
        self._rows = rows
        self._max_size = max_entry_size(options.limits)

    def count(self, start: int, end: int) -> int:
        """Return the number of records from byte `start` up to `end`."""
        count, position = 0, start
        with self._segment.open() as file:
            for batches in file.walk(start, end):
                position = int(batches["position"][-1] + batches["size"][-1])
                count += self._count_batches(batches)
        # An incomplete batch at the end of a live segment has no records; anything else is the error of the read.
        return count + self._decoded(position, end)

    def _count_batches(self, batches: npt.NDArray[np.void]) -> int:
        inside = self._options.may_have_records(batches)
        if not inside.all():
            batches = batches[inside]
            if not len(batches):
                return 0
        last = last_offset(batches)
        self.reached = self.reached if last is None else last
        is_whole, is_empty = decided_by_headers(batches, self._options, self._rows)
        count = int(batches["record_count"][is_whole & ~is_empty].sum(dtype=np.int64))
        unknown = batches[~(is_whole | is_empty) | (batches["size"] > self._max_size)]
        return count + sum(self._decoded(*span) for span in adjacent_spans(unknown))

    def _decoded(self, start: int, end: int) -> int:
        if start >= end:
            return 0
        tables = read_tables(self._segment, start, end, self._options, self._max_bytes, splits=True)
        return _rows_of(map(self._rows.chosen, tables))


def decided_by_headers(
    batches: npt.NDArray[np.void], options: DecodeOptions, rows: RowFilter
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which batches give all their records, and which none; the headers do not decide about the others."""
    base, last, largest = (batches[name] for name in ("base_offset", "last_offset", "max_timestamp"))
    is_empty = np.zeros(len(batches), np.bool_)
    is_whole = (batches["record_count"] >= 0) & (batches["attributes"] & ATTRIBUTE_CODEC <= max(Codec))
    if not options.include_control:
        is_control = batches["attributes"] & ATTRIBUTE_CONTROL != 0
        is_empty |= is_control & (batches["magic"] == 2)
        is_whole &= ~is_control
    if options.withheld is not None:
        marked = batches.copy()
        options.withheld.mark(marked)
        is_empty |= np.isin(marked["status"], (BatchStatus.ABORTED, BatchStatus.UNDECIDED))
    first, stop = options.offset_range
    is_bounded = options.start_offset is not None or options.stop_offset is not None
    if is_bounded:
        is_whole &= (base >= first) & (last <= stop) & (base <= last)
    if rows.columns:
        # Only the header of a batch with append time has the timestamps of its records, and of others their maximum.
        is_exact = (TimestampType.of(batches) == TimestampType.LOG_APPEND_TIME) & (batches["magic"] == 2)
        before_stop = np.True_ if rows.stop_timestamp is None else largest < rows.stop_timestamp
        if rows.start_timestamp is not None:
            is_empty |= (largest < rows.start_timestamp) & (batches["magic"] == 2)
            is_whole &= is_exact & (largest >= rows.start_timestamp)
        is_whole &= before_stop
    if options.crc != "verify" and (rows.columns or is_bounded):
        # Damage in a header that has a bound is an error only if checksums are verified.
        is_whole[:] = False
    return is_whole, is_empty


def adjacent_spans(batches: npt.NDArray[np.void]) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges of batches that follow each other."""
    if len(batches):
        ends = batches["position"] + batches["size"]
        first = np.flatnonzero(np.append(True, batches["position"][1:] != ends[:-1]))
        last = np.append(first[1:] - 1, len(batches) - 1)
        yield from zip(batches["position"][first].tolist(), ends[last].tolist(), strict=True)
