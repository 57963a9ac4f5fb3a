"""Scans of segments: the planner divides their bytes among tasks, which are decoded independently of each other."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from kbatch.bounds import Domain
from kbatch.escaping import counted
from kbatch.log import Log
from kbatch.log.counting import records_counted
from kbatch.log.key_lookup import KeyIndex, index_of_log
from kbatch.log.log_bounds import LogBound
from kbatch.log.read_arguments import ReadArguments
from kbatch.log.sampling import sample_logs
from kbatch.log.selection import REMOTE_THREADS, Selection
from kbatch.log.source import Excludes, RangeRequest, ReadAhead, SegmentSource
from kbatch.log.store.storage import is_url
from kbatch.options import On
from kbatch.plan.planner import LogRead, LogRequest, plan_log
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import Split, Task, growing_parts, indexed_splits, records_per_byte
from kbatch.plan.tasks import TableSize, task_tables
from kbatch.table import RecordTable

__all__ = ["FileSource", "PlannedSegments"]

# Stored bytes of a task: about a table of records. Every thread decodes a task, and the tasks after the first one hold
# one table each until the consumer reaches them.
TASK_BYTES = 16 << 20
# Stored bytes of the first task of a read; each further one has four times as many. A consumer may need few records.
FIRST_BYTES = 256 << 10
# The number of local logs that are planned ahead.
PLANNED_LOGS = 4


@dataclass(frozen=True)
class FileSource:
    """A `kbatch.log.source.LogSource` of segments."""

    segments: SegmentSource

    def open(self, arguments: ReadArguments) -> _OpenFiles:
        """Return the logs as they are listed now."""
        return _OpenFiles(self.segments, arguments)

    def describe(self) -> str:
        """Return what the segments are."""
        return self.segments.describe()


@dataclass(frozen=True)
class PlannedSegments:
    """The part of a log that a scan reads.

    Attributes
    ----------
    request : RangeRequest
    splits : list of Split
    skipped : int
        The number of segments within the range of offsets that the condition excludes.
    indexed : int
        The number of segments for which the key index was used.
    """

    request: RangeRequest
    splits: list[Split]
    skipped: int = 0
    indexed: int = 0

    @property
    def log(self) -> Log:
        """The log."""
        log: Log = self.request.log
        return log


class _OpenFiles:
    """A `kbatch.log.source.OpenSource`. Files are open only while they are read."""

    def __init__(self, source: SegmentSource, arguments: ReadArguments) -> None:
        self._source = source
        self._arguments = arguments
        decode = arguments.decode
        self._options = ReadOptions(
            include_control=decode.include_control,
            isolation=decode.isolation,
            crc=decode.crc,
            on_error=decode.on_error,
            latest_if_no_timestamp=True,
            # Splits are divided by the index when they are planned.
            index=False,
        )
        self._options_by_storage: dict[tuple[tuple[str, str], ...], ReadOptions] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def logs(self, selection: Selection, excludes: Excludes | None = None) -> Sequence[Log]:
        return self._source.logs(selection, excludes)

    def _options_of(self, log: Log) -> ReadOptions:
        """Return the options with those of the storage of a log; the logs of a source share them."""
        if not log.storage_options:
            return self._options
        key = tuple(sorted(log.storage_options.items()))
        if key not in self._options_by_storage:
            self._options_by_storage[key] = replace(self._options, storage=dict(key))
        return self._options_by_storage[key]

    @functools.cached_property
    def _size(self) -> TableSize:
        decode = self._arguments.decode
        return TableSize(self._arguments.max_bytes, decode.is_strict, decode.limits)

    # -- plans

    def plan(self, request: RangeRequest) -> PlannedSegments:
        """Plan the read of a log, and leave out what the condition excludes.

        Raises
        ------
        LogDirectoryError, ValueError, CorruptBatchError, TruncatedBatchError, CrcMismatchError
            As `kbatch.plan.planner.plan_log`.
        """
        if request.is_empty or self._arguments.last == 0:
            return PlannedSegments(request, [])
        log: Log = request.log
        read = self._read(request)
        kept = list(self._needed(request, read.splits))
        skipped = len(read.splits) - len(kept)
        index = None
        if KeyIndex.serves(self._arguments.decode, request.rows):
            index = index_of_log(self._arguments.index, log.segments)
        if index is not None:
            kept = indexed_splits(log, kept, index, request.rows)
        return PlannedSegments(request, kept, skipped, 0 if index is None else index.used)

    def _read(self, request: RangeRequest) -> LogRead:
        """Plan the read of a log between its bounds."""
        log, start, stop = request.log, request.start, request.stop
        if self._arguments.last is not None:
            first = log._selection(self._arguments, start, stop).first_of_last()
            start = LogBound(first)
        # Rows are chosen by their time, so the read does not end at a time.
        wanted = LogRequest(log, start, stop._replace(timestamp=None), request.pruning)
        return plan_log(wanted, self._options_of(log))

    def _needed(self, request: RangeRequest, splits: Sequence[Split]) -> Iterator[Split]:
        """Yield the splits whose offsets the condition does not exclude."""
        # With "stop", the read must see the damage at which it stops.
        is_whole = self._options.on_error == "stop" or self._options.crc != "verify" or len(splits) < 2
        if request.may_have is None or is_whole:
            yield from splits
            return
        bases = {segment.path: segment.base_offset for segment in request.log.segments}
        for split in splits:
            if request.may_have(Domain(bases[split.path], None if split.below is None else split.below - 1)):
                yield split

    # -- tables

    def ahead(self, logs: Sequence[Log], *, reverse: bool) -> ReadAhead:
        threads = self._arguments.decode.threads
        if any(is_url(log.path) for log in logs):
            return ReadAhead(REMOTE_THREADS, REMOTE_THREADS, threads + 1)
        return ReadAhead(threads, PLANNED_LOGS, threads + 1)

    def tasks(
        self, planned: Iterable[PlannedSegments], *, reverse: bool
    ) -> Iterator[tuple[PlannedSegments, Task[Split]]]:
        """Divide the reads of logs, at first into small tasks; with ``on_error="stop"`` one task reads a whole log."""
        size = FIRST_BYTES
        for each in planned:
            if self._options.on_error == "stop":
                if each.splits:
                    yield each, Task(each.splits)
                continue
            segments = {segment.path: segment for segment in each.log.segments}
            for split in reversed(each.splits) if reverse else each.splits:
                for part in growing_parts(segments[split.path], split, size, TASK_BYTES, from_end=reverse):
                    yield each, Task([part])
                    size = min(4 * size, TASK_BYTES)

    def tables(
        self, planned: PlannedSegments, work: Task[Split], columns: tuple[str, ...], *, reverse: bool
    ) -> Iterator[RecordTable]:
        options, rows = self._options_of(planned.log), planned.request.rows
        tables: Iterable[tuple[Split, RecordTable]] = task_tables(work, options, columns, size=self._size, rows=rows)
        if reverse:
            tables = reversed(list(tables))
        for _, table in tables:
            yield table
            del table

    def counts(self, requests: Sequence[RangeRequest]) -> list[int | None]:
        """Count by batch headers where they decide, as `kbatch.Log.count` does."""
        if self._options.on_error != "raise":
            return [None] * len(requests)
        return [0 if each.is_empty else self._count(each) if each.is_exact else None for each in requests]

    def _count(self, request: RangeRequest) -> int:
        return records_counted(request.log._selection(self._arguments, request.start, request.stop))

    def sampled(self, logs: Sequence[Log], on: On) -> list[bytes]:
        return sample_logs(logs, on, self._arguments.decode.crc)

    # -- what is read, as text

    def explained(self, planned: Sequence[PlannedSegments]) -> Iterator[str]:
        yield _segment_counts(planned)
        size = sum(split.bytes for each in planned for split in each.splits)
        yield f"bytes: {size:,} of {sum(each.log.size for each in planned):,} of these logs"
        yield f"records: about {_estimated_records(planned):,} in these bytes"
        if indexed := sum(each.indexed for each in planned):
            yield f"key index: of {counted(indexed, 'segment')}, only the blocks that may have the key are read"
        if self._options.isolation == "read_committed":
            yield "isolation: read_committed, by the markers of the whole logs"


def _segment_counts(planned: Sequence[PlannedSegments]) -> str:
    total = sum(len(each.log.segments) for each in planned)
    read = sum(len({split.path for split in each.splits}) for each in planned)
    skipped = sum(each.skipped for each in planned)
    empty = sum(not segment.size for each in planned for segment in each.log.segments)
    text = f"segments: {read:,} of {total:,}"
    reasons = []
    if total - read - skipped - empty:
        reasons.append(f"{total - read - skipped - empty:,} outside of the range of offsets and times")
    if skipped:
        reasons.append(f"{skipped:,} within them have no offset of the filter")
    if empty:
        reasons.append(f"{empty:,} empty")
    return text + (f"; {', '.join(reasons)}" if reasons else "")


def _estimated_records(planned: Sequence[PlannedSegments]) -> int:
    """Estimate the records of the bytes that are read, from the offsets of the segments."""
    total = 0
    for each in planned:
        size = sum(split.bytes for split in each.splits)
        density = records_per_byte(each.log)
        if density is None and size:
            # A log of one segment: its last offset is in the header of its last batch.
            density = (each.log.end_offset - (each.log.segments[0].base_offset or 0)) / max(1, each.log.size)
        total += round((density or 0) * size)
    return total
