"""Scans of a cluster with its history: closed segments are read from files, and only the rest is fetched."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from kbatch.bounds import Domain
from kbatch.errors import KbatchError, LimitExceededError
from kbatch.escaping import counted
from kbatch.live import BrokerError, ClusterSource
from kbatch.live.cluster import PartitionKey
from kbatch.live.cluster_source import PlannedOffsets
from kbatch.live.live_partitions import LivePartition
from kbatch.log import Log, Segment
from kbatch.log.counting import SegmentCount, counted_options
from kbatch.log.read_arguments import ReadArguments
from kbatch.log.reading import read_tables
from kbatch.log.segment import planned_segment
from kbatch.log.selection import Selection
from kbatch.log.source import Excludes, RangeRequest, ReadAhead
from kbatch.log.store.storage import locate
from kbatch.options import On
from kbatch.plan.history import HistoryPlanner
from kbatch.plan.history_copies import found_copies
from kbatch.plan.history_files import FileTables, cut_split
from kbatch.plan.history_plan import FetchedRange, HistoryPlan, offsets_text, unavailable
from kbatch.plan.split import Split
from kbatch.quantities import callers_stacklevel
from kbatch.read.decode_options import DecodeOptions, OnError
from kbatch.records.data import decoded_columns
from kbatch.scans.file_source import FIRST_BYTES, PLANNED_LOGS, TASK_BYTES
from kbatch.table import RecordTable

__all__ = ["HistorySource"]

# The number of texts of a warning.
_SHOWN = 3


@dataclass(frozen=True)
class HistorySource:
    """A `kbatch.log.source.LogSource` of a cluster that was given its history."""

    cluster: ClusterSource

    def open(self, arguments: ReadArguments) -> _OpenHistory:
        """Return the cluster and the files as they are now, for one request of records."""
        return _OpenHistory(self.cluster, arguments)

    def describe(self) -> str:
        """Return the URL of the cluster, and the paths of the history."""
        return self.cluster.describe()


@dataclass(frozen=True)
class PlannedHistory:
    """The parts of a partition that a scan reads."""

    request: RangeRequest
    plan: HistoryPlan
    segments: dict[str, Segment]
    live: LivePartition


class _OpenHistory:
    """A `kbatch.log.source.OpenSource`. A part that is fetched is one task: brokers send few records of a backfill."""

    def __init__(self, source: ClusterSource, arguments: ReadArguments) -> None:
        if source.include_expired and arguments.last is not None:
            raise ValueError("last counts from the end of the cluster's log, so it cannot be used with include_expired")
        self._source = source
        self._arguments = arguments
        self._opened = source.open(arguments)
        self._copies: dict[PartitionKey, list[Log]] = {}
        self._planners: dict[PartitionKey, HistoryPlanner] = {}
        # By partition, without the offsets that the cluster has deleted.
        self._live: dict[PartitionKey, LivePartition] = {}
        self._lock = threading.Lock()
        self._notes: list[str] = []
        # Paths of the history in which nothing is found.
        self._unlisted: list[str] = []
        # Partitions whose read has ended at damage.
        self._stopped: set[PartitionKey] = set()

    def __enter__(self) -> Self:
        self._opened.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)
        if self._notes and (kind is None or kind is GeneratorExit):
            # Threads plan several partitions at the same time.
            notes = sorted(self._notes)
            rest = f"; and {len(notes) - _SHOWN} more" if len(notes) > _SHOWN else ""
            text = "; ".join(notes[:_SHOWN]) + rest
            warnings.warn(f"history: {text}", RuntimeWarning, stacklevel=callers_stacklevel())

    def _note(self, text: str) -> None:
        with self._lock:
            if text not in self._notes:
                self._notes.append(text)

    # -- plans

    def logs(self, selection: Selection, excludes: Excludes | None = None) -> Sequence[LivePartition]:
        found = self._opened.logs(selection, excludes)
        self._live = {(log.metadata.name, log.number): log for log in found}
        found_in = found_copies(self._source.history, self._live, self._source.storage_options, self._note_unlisted)
        self._copies = {key: found_in.get(key, []) for key in self._live}
        if not self._source.include_expired:
            return found
        return [self._extended(log) for log in found]

    def _note_unlisted(self, reason: str) -> None:
        self._unlisted.append(reason)
        self._note(f"{reason}; all is fetched instead")

    def _extended(self, live: LivePartition) -> LivePartition:
        """Return a partition from the beginning of its history on."""
        first = self._planner(live).first_offset
        return live if first is None or first >= live.start_offset else replace(live, start_offset=first)

    def _planner(self, live: LivePartition) -> HistoryPlanner:
        key = (live.metadata.name, live.number)
        with self._lock:
            planner = self._planners.get(key)
        if planner is None:
            planner = HistoryPlanner(live, self._copies[key], self._arguments.decode)
            with self._lock:
                self._planners[key] = planner
        return planner

    def plan(self, request: RangeRequest) -> PlannedHistory:
        """Look up the offsets of a request, and divide them among files and brokers.

        Raises
        ------
        BrokerError, AuthenticationError, LogDirectoryError
        """
        log: LivePartition = request.log
        live = self._live[log.metadata.name, log.number]
        wanted = request
        if log.start_offset < live.start_offset:
            # The cluster knows no times of what it has deleted; the rows are chosen by their time anyway.
            start = request.start._replace(timestamp=None)
            wanted = replace(request, start=start, pruning=replace(request.pruning, since=None))
        offsets = self._opened.plan(wanted)
        if offsets.start >= offsets.stop:
            plan = HistoryPlan(live.metadata.name, live.number, offsets.start, offsets.start, live.start_offset)
            return PlannedHistory(request, plan, {}, live)
        planner = self._planner(live)
        plan = planner.plan(offsets.start, offsets.stop)
        for part, reason in plan.replaced_files():
            self._note(
                f"{plan.topic}-{plan.partition}: {offsets_text(part.start, part.stop)} fetched from the cluster, "
                f"since {reason}"
            )
        return PlannedHistory(request, self._pruned(request, plan), planner.segments, live)

    def _pruned(self, request: RangeRequest, plan: HistoryPlan) -> HistoryPlan:
        """Return a plan without the parts whose offsets a condition excludes."""
        decode = self._arguments.decode
        may_have = request.may_have
        if may_have is None or decode.on_error == "stop" or decode.crc != "verify":
            return plan
        return replace(plan, parts=tuple(part for part in plan.parts if may_have(Domain(*_offsets_of(part)))))

    # -- tables

    def ahead(self, logs: Sequence[LivePartition], *, reverse: bool) -> ReadAhead:
        decode = self._arguments.decode
        return ReadAhead(decode.threads, PLANNED_LOGS, 1 if decode.on_error == "stop" else decode.threads + 1)

    def tasks(self, planned: Iterable[PlannedHistory], *, reverse: bool) -> Iterator[tuple[PlannedHistory, Any]]:
        """Divide the bytes of files, at first into small tasks."""
        size = FIRST_BYTES
        for each in planned:
            for part in reversed(each.plan.parts) if reverse else each.plan.parts:
                if isinstance(part, FetchedRange):
                    yield each, part
                    continue
                for split in cut_split(part, each.segments[part.path], size, TASK_BYTES, from_end=reverse):
                    yield each, split
                    size = min(4 * size, TASK_BYTES)

    def tables(
        self, planned: PlannedHistory, work: Split | FetchedRange, columns: tuple[str, ...], *, reverse: bool
    ) -> Iterator[RecordTable]:
        key = (planned.plan.topic, planned.plan.partition)
        if key in self._stopped:
            return
        if isinstance(work, FetchedRange):
            tables = self._fetched(planned, work, columns, reverse)
        elif reverse:
            tables = reversed(list(self._file_tables(planned, work, columns)))
        else:
            tables = self._file_tables(planned, work, columns)
        for table in tables:
            if self._arguments.decode.on_error == "stop" and table.losses:
                self._stopped.add(key)
            yield table
            del table

    def _fetched(
        self, planned: PlannedHistory, part: FetchedRange, columns: tuple[str, ...], reverse: bool
    ) -> Iterator[RecordTable]:
        for each, work in self._opened.tasks([_planned_offsets(planned, part)], reverse=reverse):
            for table in self._opened.tables(each, work, columns, reverse=reverse):
                within = (table.batches["last_offset"] >= part.start) & (table.batches["base_offset"] < part.stop)
                size = int(table.batches["size"][within].sum())
                self._source._origins.add(self._source.url, len(table), size)
                yield table
                del table
            del work

    def _file_tables(self, planned: PlannedHistory, split: Split, columns: tuple[str, ...]) -> Iterator[RecordTable]:
        """Yield the tables of a part of a file; the offsets after damage, or of a deleted file, are fetched.

        Raise LogDirectoryError if the cluster has deleted these offsets, and damage is an error.
        """
        tables = FileTables(self._decoded(planned, split, columns, "raise"), split.start_offset or 0)
        yield from tables
        failed, reached = tables.error, tables.reached
        plan, stop, on_error = planned.plan, split.stop_offset or 0, self._arguments.decode.on_error
        if failed is None or reached >= stop:
            return
        if reached >= plan.log_start:
            where = f"{plan.topic}-{plan.partition}: {offsets_text(reached, stop)}"
            self._note(f"{where} fetched from the cluster, since {failed}")
            yield from self._fetched(planned, FetchedRange(reached, stop, True), columns, False)
        elif on_error == "raise":
            raise unavailable(replace(plan, refused=()), reached, min(stop, plan.log_start), str(failed)) from failed
        else:
            yield from self._decoded(planned, replace(split, start_offset=reached), columns, on_error)

    def _decoded(
        self, planned: PlannedHistory, split: Split, columns: tuple[str, ...], on_error: OnError
    ) -> Iterator[RecordTable]:
        """Yield the tables of a part of a file."""
        rows, origin = planned.request.rows, self._origin_of(split.path)
        options = self._decode_options(split, tuple(dict.fromkeys((*columns, *rows.columns))), on_error)
        segment = planned_segment(split.path, live=False, storage_options=self._source.storage_options, size=split.size)
        for table in read_tables(segment, split.start, split.end, options, self._arguments.max_bytes):
            chosen = rows.chosen(table)._with(topic=split.topic, partition=split.partition)
            self._source._origins.add(origin, len(chosen), table.consumed)
            del table
            yield chosen
            del chosen

    def _decode_options(self, split: Split, columns: tuple[str, ...], on_error: OnError) -> DecodeOptions:
        return replace(
            self._arguments.decode,
            columns=decoded_columns(columns),
            start_offset=split.start_offset,
            stop_offset=split.stop_offset,
            withheld=split.withheld,
            isolation="read_uncommitted",
            on_error=on_error,
            # Tasks are decoded at the same time.
            threads=1,
        )

    @functools.cached_property
    def _roots(self) -> list[tuple[str, str]]:
        """The paths of the history as logs have them, the longest first, with those that the caller gave."""
        known = [(locate(path, self._source.storage_options)[1].rstrip("/"), path) for path in self._source.history]
        return sorted(known, key=lambda each: len(each[0]), reverse=True)

    def _origin_of(self, path: str) -> str:
        return next((given for root, given in self._roots if path.startswith(root)), path)

    # -- counts, samples and text

    def counts(self, requests: Sequence[RangeRequest]) -> list[int | None]:
        """Count by the headers of batches; logs with damage are decoded, so that it is fetched."""
        if self._arguments.decode.on_error != "raise" or self._arguments.last is not None:
            return [0 if each.is_empty else None for each in requests]
        counted_by_headers = (each.is_exact and not each.rows.columns for each in requests)
        return [
            0 if each.is_empty else self._count(each) if by_headers else None
            for each, by_headers in zip(requests, counted_by_headers, strict=True)
        ]

    def _count(self, request: RangeRequest) -> int | None:
        planned, count = self.plan(request), 0
        try:
            for split in planned.plan.splits:
                options = self._decode_options(split, ("offset",), "raise")
                counting = SegmentCount(
                    planned.segments[split.path], counted_options(options), request.rows, self._arguments.max_bytes
                )
                count += counting.count(split.start, split.end)
        except (BrokerError, LimitExceededError):
            raise
        except (KbatchError, OSError):
            return None
        return count + sum(self._opened.count_of(_planned_offsets(planned, part)) for part in planned.plan.fetched)

    def sampled(self, logs: Sequence[LivePartition], on: On) -> list[bytes]:
        return self._opened.sampled([self._live[log.metadata.name, log.number] for log in logs], on)

    def explained(self, planned: Sequence[PlannedHistory]) -> Iterator[str]:
        self._notes.clear()
        plans = [each.plan for each in planned]
        total = sum(log.end_offset - log.start_offset for log in (each.request.log for each in planned))
        in_files, fetched = (
            sum(stop - start + 1 for plan in plans for start, stop in map(_offsets_of, parts(plan)))
            for parts in (_split_parts, _fetched_parts)
        )
        yield (
            f"offsets: {in_files + fetched:,} of {total:,} of these logs: {in_files:,} from files of the history, "
            f"{fetched:,} from the cluster"
        )
        splits = [split for plan in plans for split in plan.splits]
        yield f"files: {counted(len(splits), 'segment')}, {sum(split.bytes for split in splits):,} bytes"
        for plan in plans[:_SHOWN]:
            yield from self._parts_text(plan)
        if len(plans) > _SHOWN:
            yield f"and {counted(len(plans) - _SHOWN, 'more log')}"
        yield from (f"not read: {each}" for each in self._unlisted)
        refused = list(dict.fromkeys(each for plan in plans for each in plan.refused))
        for each in refused[:_SHOWN]:
            yield f"not read: {each.path}: {each.reason}"
        if len(refused) > _SHOWN:
            yield f"not read: {counted(len(refused) - _SHOWN, 'more file')}"
        if self._arguments.decode.isolation == "read_committed":
            yield (
                "isolation: read_committed, up to the last stable offsets, by the markers in the files and the lists "
                "of the brokers"
            )

    def _parts_text(self, plan: HistoryPlan) -> Iterator[str]:
        """Yield where each range of offsets comes from; segments of one copy are one range."""
        ranges: list[tuple[int, int, str]] = []
        for part in plan.parts:
            start, last = _offsets_of(part)
            where = "the cluster" if isinstance(part, FetchedRange) else part.log
            if ranges and ranges[-1][2] == where:
                ranges[-1] = (ranges[-1][0], last, where)
            else:
                ranges.append((start, last, where))
        for start, last, where in ranges:
            yield f"{plan.topic}-{plan.partition}: {offsets_text(start, last + 1)} from {where}"


def _planned_offsets(planned: PlannedHistory, part: FetchedRange) -> PlannedOffsets:
    request = replace(planned.request, log=planned.live)
    return PlannedOffsets(request, part.start, part.stop, part.is_after_files, part.last_epoch)


def _offsets_of(part: Split | FetchedRange) -> tuple[int, int]:
    """Return the first and the last offset of a part."""
    if isinstance(part, FetchedRange):
        return part.start, part.stop - 1
    return part.start_offset or 0, (part.stop_offset or 0) - 1


def _split_parts(plan: HistoryPlan) -> Sequence[Split | FetchedRange]:
    return plan.splits


def _fetched_parts(plan: HistoryPlan) -> Sequence[Split | FetchedRange]:
    return plan.fetched
