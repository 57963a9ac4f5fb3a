"""The read of a scan: logs are chosen, planned, pruned and decoded, and the condition is applied to each table."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from kbatch.bounds import Domain, Pruning
from kbatch.log import Log
from kbatch.log.conversions import losses_text, warn_if_after_end
from kbatch.log.counting import records_counted
from kbatch.log.key_lookup import KeyIndex, index_of_log
from kbatch.log.log_bounds import LogBound, start_of, stop_of
from kbatch.log.read_arguments import ReadArguments
from kbatch.log.row_filter import RowFilter
from kbatch.log.selection import REMOTE_THREADS, Selection
from kbatch.log.source import LogSource
from kbatch.log.store.storage import is_url
from kbatch.plan.planner import LogRead, LogRequest, plan_log
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import Split, Task, growing_parts, indexed_splits
from kbatch.plan.tasks import TableSize, task_tables
from kbatch.quantities import callers_stacklevel, largest, smallest
from kbatch.scans.ahead import at_end, map_ahead, steps_ahead
from kbatch.scans.expression_filter import ExpressionFilter, LogPruning
from kbatch.table import RecordTable

__all__ = ["PlannedLog", "Reading"]

# Stored bytes of a task: about a table of records. Every thread decodes a task, and the tasks after the first one hold
# one table each until the consumer reaches them.
TASK_BYTES = 16 << 20
# Stored bytes of the first task of a read; each further one has four times as many. A consumer may need few records.
FIRST_BYTES = 256 << 10
# The number of local logs that are planned ahead.
PLANNED_LOGS = 4

UsedT = TypeVar("UsedT")


class ChosenLog(NamedTuple):
    """A log that a scan reads, and where the read begins and ends."""

    log: Log
    start: LogBound
    stop: LogBound


class PlannedLog(NamedTuple):
    """The part of a log that a scan reads.

    Attributes
    ----------
    log : Log
    rows : RowFilter
        The choice by time and key that the arguments of the scan, and keys that its condition make.
    splits : list of Split
    excluded : LogPruning or None
        What the condition excludes, if there is one.
    skipped : int
        The number of segments within the range of offsets that the condition excludes.
    indexed : int
        The number of segments for which the key index was used.
    """

    log: Log
    rows: RowFilter
    splits: list[Split]
    excluded: LogPruning | None = None
    skipped: int = 0
    indexed: int = 0


class _Step(NamedTuple, Generic[UsedT]):
    """What is made of the parts of a table, and the lengths of its losses."""

    used: list[UsedT]
    losses: list[int]


@dataclass(frozen=True)
class Reading:
    """The records that a scan reads; columns and the use of the tables are chosen for each run.

    Attributes
    ----------
    source : LogSource
    selection : Selection
        The topics and partitions.
    arguments : ReadArguments
        The number of threads is that of the tasks that are decoded at the same time.
    condition : ExpressionFilter or None
    """

    source: LogSource
    selection: Selection
    arguments: ReadArguments
    condition: ExpressionFilter | None = None

    def narrowed(self, more: ExpressionFilter) -> Reading:
        """Return the reading of the records for which `more` is true too."""
        return replace(self, condition=more if self.condition is None else self.condition & more)

    def chosen(self, left_out: set[tuple[str | None, int | None]] | None = None) -> list[ChosenLog]:
        """Choose the logs, without those that the condition excludes by their topic and partition.

        Parameters
        ----------
        left_out : set, optional
            The topics and partitions that the condition excludes are added to it.

        Raises
        ------
        LogDirectoryError, ValueError
            As `kbatch.log.source.LogSource.logs` and `kbatch.log.log_bounds.bounds_by_log`.
        """

        def excludes(topic: str | None, partition: int | None) -> bool:
            is_excluded = self.condition is not None and not self.condition.may_select(topic, partition)
            if is_excluded and left_out is not None:
                left_out.add((topic, partition))
            return is_excluded

        # The end of a topic is that of all partitions that the arguments choose.
        all_logs = self.arguments.needs_all_logs or self.condition is None
        logs = self.source.logs(self.selection, None if all_logs else excludes)
        found = [ChosenLog(log, *ends) for log, ends in zip(logs, self.arguments.bounds(logs), strict=True)]
        return [each for each in found if not excludes(each.log.topic, each.log.partition)] if all_logs else found

    @functools.cached_property
    def _options(self) -> ReadOptions:
        decode = self.arguments.decode
        return ReadOptions(
            include_control=decode.include_control,
            isolation=decode.isolation,
            crc=decode.crc,
            on_error=decode.on_error,
            latest_if_no_timestamp=True,
            # Splits are divided by the index when they are planned.
            index=False,
        )

    def _options_of(self, log: Log) -> ReadOptions:
        """Return the options with those of the storage of a log; the logs of a source share them."""
        if not log.storage_options:
            return self._options
        given = self._options_by_storage
        key = tuple(sorted(log.storage_options.items()))
        if key not in given:
            given[key] = replace(self._options, storage=dict(key))
        return given[key]

    @functools.cached_property
    def _options_by_storage(self) -> dict[tuple[tuple[str, str], ...], ReadOptions]:
        return {}

    @property
    def _size(self) -> TableSize:
        decode = self.arguments.decode
        return TableSize(self.arguments.max_bytes, decode.is_strict, decode.limits)

    def planned(self, chosen: ChosenLog) -> PlannedLog:
        """Plan the read of a log, and leave out what the condition excludes.

        Raises
        ------
        LogDirectoryError, ValueError, CorruptBatchError, TruncatedBatchError, CrcMismatchError
            As `kbatch.plan.planner.plan_log`.
        """
        log, rows = chosen.log, self.arguments.rows(chosen.start, chosen.stop)
        excluded, pruning = None, Pruning()
        if self.condition is not None:
            excluded = self._excluded_of(log, self.condition)
            if excluded.is_empty:
                return PlannedLog(log, rows, [], excluded)
            pruning = excluded.pruning
            if not rows.keys:
                rows = replace(rows, keys=self.condition.keys)
        if self.arguments.last == 0:
            return PlannedLog(log, rows, [], excluded)
        read = self._read(chosen, pruning)
        kept = list(self._needed(log, read.splits))
        skipped = len(read.splits) - len(kept)
        index = None
        if KeyIndex.serves(self.arguments.decode, rows):
            index = index_of_log(self.arguments.index, log.segments)
        if index is not None:
            kept = indexed_splits(log, kept, index, rows)
        return PlannedLog(log, rows, kept, excluded, skipped, 0 if index is None else index.used)

    def _excluded_of(self, log: Log, condition: ExpressionFilter) -> LogPruning:
        """Return what the condition excludes of a log."""
        excluded = condition.of_log(log.topic, log.partition)
        if self._options.crc == "verify" or excluded.pruning == Pruning():
            return excluded
        # The records of a batch are returned even if its header, which is not verified, has wrong offsets or times.
        return excluded._replace(pruning=Pruning(), is_always_true=False)

    def _read(self, chosen: ChosenLog, pruning: Pruning) -> LogRead:
        """Plan the read of a log between its bounds."""
        log, start, stop = chosen
        if self.arguments.last is not None:
            first = log._selection(self.arguments, start, stop).first_of_last()
            start = LogBound(first)
        # Rows are chosen by their time, so the read does not end at a time.
        return plan_log(LogRequest(log, start, stop._replace(timestamp=None), pruning), self._options_of(log))

    def _needed(self, log: Log, splits: Sequence[Split]) -> Iterator[Split]:
        """Yield the splits whose offsets the condition does not exclude."""
        condition = self.condition
        # With "stop", the read must see the damage at which it stops.
        is_whole = self._options.on_error == "stop" or self._options.crc != "verify" or len(splits) < 2
        if condition is None or is_whole or "offset" not in condition.columns:
            yield from splits
            return
        bases = {segment.path: segment.base_offset for segment in log.segments}
        for split in splits:
            offsets = Domain(bases[split.path], None if split.below is None else split.below - 1)
            if condition.may_have(log.topic, log.partition, offsets):
                yield split

    def count(self) -> int:
        """Return the number of records: from batch headers where they decide, as `kbatch.Log.count` does."""
        chosen = self.chosen()
        counts = [self._counted(each) for each in chosen]
        rest = [each for each, count in zip(chosen, counts, strict=True) if count is None]
        total = sum(count for count in counts if count is not None) + sum(self._run(rest, (), len))
        if not total:
            warn_if_after_end([each.log for each in chosen], [(each.start, each.stop) for each in chosen])
        return total

    def _counted(self, chosen: ChosenLog) -> int | None:
        """Return the number of records of a log if the condition is true for all within a range of offsets."""
        log, start, stop = chosen
        if self._options.on_error != "raise":
            return None
        if self.condition is not None:
            excluded = self._excluded_of(log, self.condition)
            if excluded.is_empty:
                return 0
            if not excluded.is_always_true or self.arguments.last is not None:
                return None
            offsets = excluded.pruning.offset
            end = None if offsets.high is None else offsets.high + 1
            start = LogBound(largest(start_of(log, start), offsets.low), start.timestamp)
            stop = LogBound(smallest(stop_of(log, stop), end), stop.timestamp)
        return records_counted(log._selection(self.arguments, start, stop))

    def run(
        self, columns: tuple[str, ...], use: Callable[[RecordTable], UsedT], *, reverse: bool = False
    ) -> Generator[UsedT, None, None]:
        """Yield what `use` makes of each table that has records, in the order of the records; it runs in threads.

        Parameters
        ----------
        columns : tuple of str
            The columns of records that `use` needs.
        use : callable
        reverse : bool
            Whether to yield the tables from the last one to the first. A log is read from its end, at first few bytes.

        Warns
        -----
        RuntimeWarning
            At the end, if there were losses, or no records because the start is relative to now. If the consumer stops
            early, the warning covers the losses up to that record.
        """
        chosen = self.chosen()
        is_empty = True
        with contextlib.closing(self._run(chosen, columns, use, reverse=reverse)) as found:
            for used in found:
                is_empty = False
                yield used
                del used
        if is_empty:
            warn_if_after_end([each.log for each in chosen], [(each.start, each.stop) for each in chosen])

    def _run(
        self,
        chosen: list[ChosenLog],
        columns: tuple[str, ...],
        use: Callable[[RecordTable], UsedT],
        *,
        reverse: bool = False,
    ) -> Generator[UsedT, None, None]:
        losses: list[int] = []
        is_remote = any(is_url(each.log.path) for each in chosen)
        threads = self.arguments.decode.threads
        pool = ThreadPoolExecutor(REMOTE_THREADS if is_remote else threads, "kbatch-scan")
        with at_end(lambda: _warn_of(losses)):
            try:
                logs = map_ahead(
                    pool,
                    self.planned,
                    chosen[::-1] if reverse else chosen,
                    REMOTE_THREADS if is_remote else PLANNED_LOGS,
                )
                tasks = self._tasks(logs, reverse=reverse)
                steps = (self._steps(task, planned, columns, use, reverse) for task, planned in tasks)
                for step in steps_ahead(pool, steps, threads + 1):
                    losses += step.losses
                    yield from reversed(step.used) if reverse else step.used
                    del step
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _tasks(self, logs: Iterable[PlannedLog], *, reverse: bool) -> Iterator[tuple[Task[Split], PlannedLog]]:
        """Divide the reads of logs, at first into small tasks; with ``on_error="stop"`` one task reads a whole log."""
        size = FIRST_BYTES
        for planned in logs:
            if self._options.on_error == "stop":
                if planned.splits:
                    yield Task(planned.splits), planned
                continue
            for split in reversed(planned.splits) if reverse else planned.splits:
                for part in growing_parts(planned.log, split, size, TASK_BYTES, from_end=reverse):
                    yield Task([part]), planned
                    size = min(4 * size, TASK_BYTES)

    def _steps(
        self,
        task: Task[Split],
        planned: PlannedLog,
        columns: tuple[str, ...],
        use: Callable[[RecordTable], UsedT],
        reverse: bool,
    ) -> Iterator[_Step[UsedT]]:
        """Decode a task; a step is one table."""
        condition = self.condition
        if planned.excluded is not None and planned.excluded.is_always_true and self._options.on_error != "stop":
            # Rows outside of the range of offsets are left out already, but for those that "stop" has to read.
            condition = None
        needed = columns if condition is None else tuple(dict.fromkeys((*columns, *condition.inputs)))
        tables: Iterable[tuple[Split, RecordTable]] = task_tables(
            task, self._options_of(planned.log), needed, size=self._size, rows=planned.rows
        )
        if reverse:
            tables = reversed(list(tables))
        for _, table in tables:
            losses = table.losses.lengths.tolist()
            parts = condition.selected(table) if condition is not None and len(table) else [table] if len(table) else []
            if parts or losses:
                yield _Step([use(part) for part in parts], losses)
            del table, parts


def _warn_of(losses: Sequence[int]) -> None:
    if (text := losses_text(losses)) is not None:
        warnings.warn(text, RuntimeWarning, stacklevel=callers_stacklevel())
