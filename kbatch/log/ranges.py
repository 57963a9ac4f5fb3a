"""Reads of a log by offsets and timestamps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from kbatch.log.committed import follow_transactions, segment_before
from kbatch.log.gaps import SegmentEnd, SegmentGaps
from kbatch.log.key_lookup import KeyIndex
from kbatch.log.reading import NOT_REACHED, lost_table, read_tables
from kbatch.log.row_filter import RowFilter
from kbatch.log.segment import Segment, check_order, last_offset
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.in_memory import decode_part
from kbatch.table import RecordTable
from kbatch.transactions import Transactions
from kbatch.tuning import SMALL_TABLE_BYTES

__all__ = [
    "LogSelection",
    "count_back",
    "end_offset_after",
    "first_offset",
    "first_offset_since",
    "seek",
    "segments_within",
]

# The last records are first searched among this number of offsets, then among four times as many.
_FIRST_SPAN = 1024


@dataclass(frozen=True)
class LogSelection:
    """The records of a log between offsets and timestamps.

    Attributes
    ----------
    segments : sequence of Segment
    options : DecodeOptions
        With the range of offsets.
    max_bytes : int
        Approximate limit on the size of a table.
    rows : RowFilter
        The records to choose among these by timestamp and key.
    use_indexes : bool
    topic, partition
        Of the tables.
    transactions : Transactions or None
        Those of the whole log, if they are known.
    last : int or None
        Only this number of records, the last ones of all that are chosen; requires `end_offset`.
    end_offset : int or None
        Of the log.
    key_index : KeyIndex or None
    """

    segments: Sequence[Segment]
    options: DecodeOptions
    max_bytes: int
    rows: RowFilter = field(default_factory=RowFilter)
    use_indexes: bool = True
    topic: str | None = None
    partition: int | None = None
    transactions: Transactions | None = None
    last: int | None = None
    end_offset: int | None = None
    key_index: KeyIndex | None = None

    def tables(self) -> Iterator[RecordTable]:
        """Yield tables of the records."""
        if self.last is not None:
            return self._last_tables(self.last)
        selected, needed = self.options.table_columns, self.rows.columns
        if selected is None or not needed:
            return self._decoded()
        # Rows are selected by these columns, so they are decoded even if `columns` does not have them.
        complete = self._with(columns=tuple(dict.fromkeys([*self.options.record_columns, *needed])))
        # Unlike a generator, `map` holds no reference to a table while it waits for the next.
        return map(operator.methodcaller("select", selected), complete._decoded())

    def _last_tables(self, count: int) -> Iterator[RecordTable]:
        if count == 0:
            return iter(())
        return replace(self, last=None)._with(start_offset=self.first_of_last()).tables()

    def first_of_last(self) -> int:
        """Return the offset from which the last records are read: at least one of them, with `last`."""
        assert self.last is not None
        assert self.end_offset is not None
        return replace(self, last=None)._with(columns=["offset"]).start_of_last(self.last, self.end_offset)

    def start_of_last(
        self, count: int, end_offset: int, choose: Callable[[RecordTable], RecordTable] = lambda table: table
    ) -> int:
        """Return the offset of the first of the last `count` records that `choose` keeps, or of the first record."""
        search = self
        if self.options.isolation == "read_committed":
            search = replace(self, transactions=follow_transactions(self.segments, self.options, max_bytes=self._limit))
        first = max(self.options.start_offset or 0, self.segments[0].base_offset or 0)
        stop = self.options.stop_offset
        start = end = end_offset if stop is None else min(stop, end_offset)
        # Under "stop", damage decides which records are the last ones, so all of them are read.
        span = max(count, _FIRST_SPAN) if self.options.on_error != "stop" else max(start - first, 1)
        while start > first:
            start = max(first, end - span)
            offsets = np.empty(0, np.int64)
            for table in search._with(start_offset=start, stop_offset=stop).tables():
                offsets = np.concatenate([offsets, choose(table).records["offset"]])[-count:]
            count -= len(offsets)
            if count == 0:
                return int(offsets[0])
            stop = start
            span *= 4
        return first

    def _with(self, **options: Any) -> LogSelection:
        return replace(self, options=replace(self.options, **options))

    @property
    def _limit(self) -> int | None:
        """The limit on the memory of transactions."""
        return self.max_bytes if self.options.is_strict else None

    def followed(self) -> Transactions | None:
        """Return the transactions that decide which batches are withheld; None under read_uncommitted."""
        options = self.options
        if options.isolation == "read_uncommitted" or self.transactions is not None:
            return self.transactions
        return follow_transactions(
            self.segments,
            options,
            start_offset=options.start_offset,
            stop_offset=options.stop_offset,
            max_bytes=self._limit,
        )

    def span(self, number: int) -> tuple[int, int]:
        """Return the byte range of a segment that may hold the records, by its indexes and headers."""
        segment, stop_offset = self.segments[number], self.options.stop_offset
        start = seek(segment, self.options.start_offset, self.rows.start_timestamp, self.use_indexes)
        if stop_offset is not None and number == segment_before(self.segments, stop_offset):
            return start, segment.end_for_offset(stop_offset, use_indexes=self.use_indexes)
        return start, segment.size

    def _parts(self, segment: Segment, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of a byte range that may hold the records, by the key index."""
        if self.key_index is None or not KeyIndex.serves(self.options, self.rows):
            return [(start, end)]
        return self.key_index.ranges(segment, start, end, self.rows)

    def _decoded(self) -> Iterator[RecordTable]:
        """Decode as `kbatch.log.Log.tables` does."""
        segments, options = self.segments, self.options
        start_offset, stop_offset = options.start_offset, options.stop_offset
        reached, before = None, ""
        stopped = False
        about: dict[str, Any] = {"topic": self.topic, "partition": self.partition}
        withheld = None
        transactions = self.followed()
        if transactions is not None:
            withheld = transactions._withheld_of_log()
            about |= {"pending": lambda: transactions.pending, "last_stable_offset": transactions.last_stable_offset}
        gaps = SegmentGaps(segments)
        for number, segment in segments_within(segments, start_offset, stop_offset):
            if stopped:
                if segment.size:
                    yield lost_table(segment, 0, segment.size, NOT_REACHED, options=options)._with(**about)
                continue
            check_order(before, reached, segment.path, segment.base_offset)
            start, end = self.span(number)
            decode = options if withheld is None else replace(options, withheld=withheld.of_segment(segment.path))
            offsets_end = SegmentEnd(segment.base_offset)
            for table in chain.from_iterable(
                read_tables(segment, *part, decode, self.max_bytes, splits=True)
                for part in self._parts(segment, start, end)
            ):
                stopped = options.on_error == "stop" and bool(table.losses)
                if (last := last_offset(table.batches)) is not None:
                    reached, before = last, segment.path
                offsets_end.add(table)
                yield self.rows.chosen(table._with(**about))
                # Frees the table before the next one is decoded.
                del table
            # Where a segment is skipped because of its timestamps, its last offset is unknown.
            if not stopped and end == segment.size and (self.rows.start_timestamp is None or start < end):
                for gap in gaps.after(number, offsets_end, start_offset, stop_offset):
                    if not gap.compacted:
                        yield gap.as_table(options)._with(**about)


def first_offset(segments: Sequence[Segment]) -> int:
    """Return the base offset of the first batch; of the first segment if there is none, or before a message set."""
    for segment in segments:
        for rows in segment.scan():
            base_offset = int(rows["base_offset"][0])
            return segment.base_offset if base_offset < 0 and segment.base_offset is not None else base_offset
    return segments[0].base_offset or 0


def end_offset_after(segment: Segment, row: np.void | None) -> int:
    """Return the offset after the last batch of the last segment (OFF-R1); an empty segment's base offset."""
    return segment.base_offset or 0 if row is None else int(row["last_offset"]) + 1


def count_back(offset: int, end_offset: int, first: int | None) -> int:
    """Return a negative offset counted back from the end of a log, at most to its `first` offset."""
    return max(end_offset + offset, first or 0)


def first_offset_since(
    segments: Sequence[Segment], timestamp: int, options: DecodeOptions, *, use_indexes: bool
) -> int | None:
    """Return the offset of the first record with `timestamp` or later, or None, as `Log.offset_for_timestamp` does."""
    for _, segment in segments_within(segments, options.start_offset, None):
        start = seek(segment, options.start_offset, timestamp, use_indexes)
        if start >= segment.size:
            continue
        with segment.open() as file:
            end = start
            for rows in file.walk(start):
                end = int(rows["position"][-1] + rows["size"][-1])
                for row in rows[rows["max_timestamp"] >= timestamp]:
                    position, size = int(row["position"]), int(row["size"])
                    table = decode_part(
                        file.window(position, position + size), options, origin=position, source=segment.path
                    )
                    if (found := _first_at_or_after(table, timestamp)) is not None:
                        return found
            tail = file.tail_at(end)
        if tail.kind == "damaged" or (tail.kind != "none" and not segment.live):
            # Decoding finds the batches after the damage; it raises the error or lists the losses of a read.
            for table in read_tables(segment, end, segment.size, options, SMALL_TABLE_BYTES):
                if (found := _first_at_or_after(table, timestamp)) is not None:
                    return found
    return None


def segments_within(
    segments: Sequence[Segment], start_offset: int | None, stop_offset: int | None
) -> Iterator[tuple[int, Segment]]:
    """Yield the segments that may hold offsets of a range, each with its number."""
    first = 0 if start_offset is None else segment_before(segments, start_offset)
    for number, segment in enumerate(segments[first:], first):
        if stop_offset is None or segment.base_offset is None or segment.base_offset < stop_offset:
            yield number, segment


def seek(segment: Segment, offset: int | None, timestamp: int | None = None, use_indexes: bool = True) -> int:
    """Return the position of the first batch that may hold records from `offset` and `timestamp` on."""
    start = 0
    if offset is not None and (segment.base_offset is None or segment.base_offset < offset):
        start = segment.seek_offset(offset, use_indexes=use_indexes)
    if timestamp is not None:
        start = max(start, segment._seek_time(timestamp, use_indexes=use_indexes))
    return start


def _first_at_or_after(table: RecordTable, timestamp: int) -> int | None:
    """Return the offset of the first record with `timestamp` or a later one."""
    late = np.flatnonzero(table.records["timestamp"] >= timestamp)
    return int(table.records["offset"][late[0]]) if len(late) else None
