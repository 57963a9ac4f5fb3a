"""The read of a scan: logs are chosen, planned, pruned and decoded, and the filter is applied to each table."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from kbatch.bounds import Domain
from kbatch.log import Log
from kbatch.log.conversions import losses_text
from kbatch.log.selection import REMOTE_THREADS, Selection
from kbatch.log.source import Source
from kbatch.log.store.storage import is_url
from kbatch.log.topics import TopicChoice
from kbatch.plan.planner import LogRead, LogRequest, log_requests, plan_log
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import Split, Task, divide_splits, last_parts
from kbatch.plan.tasks import TableSize, task_options, task_tables
from kbatch.scans.row_filter import LogPruning, RowFilter
from kbatch.scans.running import map_ahead, steps_ahead
from kbatch.table import RecordTable

__all__ = ["PlannedLog", "Reading"]

# Stored bytes of a task: about a table of records. Every thread decodes a task, and the tasks after the first one hold
# one table each until the consumer reaches them.
TASK_BYTES = 8 << 20
# Stored bytes of the first task of a read from the end; each further one has four times as many.
LAST_BYTES = 256 << 10
# The number of local logs that are planned ahead.
PLANNED_LOGS = 4

UsedT = TypeVar("UsedT")


class PlannedLog(NamedTuple):
    """The part of a log that a scan reads.

    Attributes
    ----------
    log : Log
    read : LogRead
        With the splits that remain.
    pruned : LogPruning or None
        What the filter excludes, if there is one.
    skipped : int
        The number of segments within the range of offsets that the filter excludes.
    """

    log: Log
    read: LogRead
    pruned: LogPruning | None
    skipped: int = 0


class _Step(NamedTuple, Generic[UsedT]):
    """What is made of a table, and the lengths of its losses."""

    used: UsedT | None
    losses: list[int]


@dataclass(frozen=True)
class Reading:
    """The records that a scan reads; `columns` and the use of the tables are chosen for each run.

    Attributes
    ----------
    source : Source
    options : ReadOptions
        How to read, and the bounds.
    topics : TopicChoice or None
        Names, globs and regular expressions.
    row_filter : RowFilter or None
    size : TableSize
    threads : int
        The number of tasks that are decoded at the same time.
    """

    source: Source
    options: ReadOptions
    topics: TopicChoice | None = None
    row_filter: RowFilter | None = None
    size: TableSize = field(default_factory=TableSize)
    threads: int = 1

    def filtered(self, more: RowFilter | None) -> Reading:
        """Return the reading of the records for which `more` is true too."""
        if more is None:
            return self
        return replace(self, row_filter=more if self.row_filter is None else self.row_filter & more)

    def requests(self) -> list[LogRequest]:
        """Choose the logs, without those that the filter excludes by their topic and partition.

        Raises
        ------
        LogDirectoryError, ValueError
            As `kbatch.log.selection.choose_logs` and `kbatch.log.resolving.log_bounds`.
        """
        chosen: Selection = self.options.selection
        if self.topics is not None:
            topics = [self.topics] if isinstance(self.topics, str) or hasattr(self.topics, "pattern") else self.topics
            chosen = replace(chosen, topics=tuple(topics))  # type: ignore[arg-type]
        excludes = None
        if self.row_filter is not None:
            may_select = self.row_filter.may_select

            def excludes(topic: str | None, partition: int | None) -> bool:
                return not may_select(topic, partition)

        return log_requests(self.source.logs(chosen, excludes), self._read_options)

    @property
    def _read_options(self) -> ReadOptions:
        """The options, with the only key for which the filter can be true."""
        key = None if self.row_filter is None else self.row_filter.key
        if key is None or self.options.key not in (None, key):
            return self.options
        return replace(self.options, key=key)

    def planned(self, request: LogRequest) -> PlannedLog:
        """Plan the read of a log, and leave out what the filter excludes.

        Raises
        ------
        LogDirectoryError, ValueError, CorruptBatchError, TruncatedBatchError, CrcMismatchError
            As `kbatch.plan.planner.plan_log`.
        """
        log, options = request.log, replace(self._read_options, storage=request.log.storage_options)
        if self.row_filter is None:
            return PlannedLog(log, plan_log(request, options), None)
        pruned = self.row_filter.of_log(log.topic, log.partition)
        if pruned.is_empty:
            return PlannedLog(log, LogRead(None, None, [], None, []), pruned)
        pruning = pruned.pruning
        if options.crc != "verify":
            # A header whose checksum is not verified may have a wrong time, but its records are returned.
            pruning = replace(pruning, since=None)
        read = plan_log(request._replace(prune=pruning), options)
        kept = list(self._needed(log, read.splits))
        return PlannedLog(log, read._replace(splits=kept), pruned, len(read.splits) - len(kept))

    def _needed(self, log: Log, splits: Sequence[Split]) -> Iterator[Split]:
        """Yield the splits whose offsets the filter does not exclude."""
        assert self.row_filter is not None
        # With "stop", the read must see the damage at which it stops.
        if self.options.on_error == "stop" or "offset" not in self.row_filter.columns or len(splits) < 2:
            yield from splits
            return
        bases = {segment.path: segment.base_offset for segment in log.segments}
        for split in splits:
            offsets = Domain(bases[split.path], None if split.below is None else split.below - 1)
            if self.row_filter.may_have(log.topic, log.partition, offsets):
                yield split

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
            At the end, if there were losses.
        """
        losses: list[int] = []
        requests = self.requests()
        if reverse:
            requests.reverse()
        is_remote = any(is_url(request.log.path) for request in requests)
        pool = ThreadPoolExecutor(REMOTE_THREADS if is_remote else self.threads, "kbatch-scan")
        try:
            planned = map_ahead(pool, self.planned, requests, REMOTE_THREADS if is_remote else PLANNED_LOGS)
            tasks = chain.from_iterable(map(self._last_tasks if reverse else self._tasks, planned))
            steps = (self._steps(task, pruned, columns, use, reverse) for task, pruned in tasks)
            for step in steps_ahead(pool, steps, self.threads + 1):
                losses += step.losses
                if step.used is not None:
                    yield step.used
                del step
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        if (text := losses_text(losses)) is not None:
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _tasks(self, planned: PlannedLog) -> Iterator[tuple[Task[Split], PlannedLog]]:
        """Divide the read of a log, segment by segment; with ``on_error="stop"`` one task reads all of it."""
        options = replace(self.options, split_bytes=TASK_BYTES)
        splits = planned.read.splits
        groups = [splits] if options.on_error == "stop" else [[split] for split in splits]
        for group in groups:
            for task in divide_splits([(planned.log, group)], options):
                yield task, planned

    def _last_tasks(self, planned: PlannedLog) -> Iterator[tuple[Task[Split], PlannedLog]]:
        """Divide the read of a log from its end."""
        splits = planned.read.splits
        if self.options.on_error == "stop":
            yield from self._tasks(planned)
            return
        size = LAST_BYTES
        for split in reversed(splits):
            for part in last_parts(planned.log, split, size):
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
        chosen = self.row_filter
        if chosen is not None and planned.pruned is not None and planned.pruned.is_always_true:
            # Rows outside of the range of offsets are left out already, but for those that "stop" has to read.
            chosen = chosen if self.options.on_error == "stop" else None
        needed = columns if chosen is None else tuple(dict.fromkeys((*columns, *chosen.columns)))
        options = replace(task_options(self._read_options), storage=planned.log.storage_options)
        tables: Iterable[tuple[Split, RecordTable]] = task_tables(task, options, needed, size=self.size)
        if reverse:
            tables = reversed(list(tables))
        for _, table in tables:
            losses = table.losses.lengths.tolist()
            if chosen is not None and len(table):
                mask = chosen.mask(table)
                table = table if mask.all() else table[mask] if mask.any() else table[:0]
            if len(table) or losses:
                yield _Step(use(table) if len(table) else None, losses)
            del table
