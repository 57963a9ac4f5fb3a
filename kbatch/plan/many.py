"""Plans the reads of very many logs: a cluster reads their files in parallel, or each task reads the files of its logs.

The offset of a timestamp and the transactions of a log take about a millisecond of CPU per segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from kbatch.errors import KbatchError, LogDirectoryError
from kbatch.log import Log
from kbatch.log.committed import follow_transactions
from kbatch.plan.bounds import check_bounds, resolve_log
from kbatch.plan.following import SegmentWalker, follow_options, log_transactions
from kbatch.plan.missing import MissingOffsets, is_gone, report_data_loss, warn_missing
from kbatch.plan.read_options import Bound, PerPartition, ReadOptions
from kbatch.plan.select import map_logs
from kbatch.plan.split import Split, divide_logs, divide_splits, log_splits, plan
from kbatch.plan.watching import open_log
from kbatch.transactions import Transactions
from kbatch.tuning import FOLLOW_JOB_BYTES, MANY_LOGS

__all__ = ["LogMapper", "LogRead", "UnplannedLogs", "plan_or_defer", "plan_reads", "plans_fast"]

# Applies a function to items, in parallel; returns the results in the order of the items. Both are pickled.
LogMapper: TypeAlias = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


class LogRead(NamedTuple):
    """The read of one log.

    Attributes
    ----------
    start, stop : int or None
        The range of offsets; None is the log's own end.
    missing : list of MissingOffsets
    transactions : Transactions or None
        Under read_committed.
    splits : list of Split
        One for each segment with such offsets.
    """

    start: int | None
    stop: int | None
    missing: list[MissingOffsets]
    transactions: Transactions | None
    splits: list[Split]


@dataclass(frozen=True)
class _ReadOfLog:
    """A function that plans one log, given with an offset that overrides the start of the options, or None."""

    options: ReadOptions
    withheld: bool = True

    def __call__(self, each: tuple[Log, int | None]) -> LogRead:
        log, given = each
        options = self.options
        (start, stop), missing = _resolved_from(log, options, given)
        known = None
        if options.isolation == "read_committed":
            known = follow_transactions(log.segments, follow_options(options), start_offset=start, stop_offset=stop)
        splits = log_splits(log, start, stop, known, options, withheld=self.withheld)
        return LogRead(start, stop, missing, known, splits)

    def result(self, each: tuple[Log, int | None]) -> LogRead | Exception:
        """Return the error that planning raises, so that the caller raises it unchanged."""
        try:
            return self(each)
        except (KbatchError, ValueError, OSError) as error:
            return error


def plan_reads(
    logs: Sequence[Log],
    options: ReadOptions,
    starts: Sequence[int | None],
    *,
    walker: SegmentWalker | None = None,
    mapper: LogMapper | None = None,
) -> list[LogRead]:
    """Plan the read of each log.

    Parameters
    ----------
    logs : sequence of Log
    options : ReadOptions
    starts : sequence of int or None
        For each log an offset that overrides the start of the options, or None.
    walker : SegmentWalker, optional
        Follows the segments of large logs, as for `kbatch.plan.following.log_transactions`.
    mapper : LogMapper, optional
        Plans small logs, if they are many and their files must be read for it.

    Raises
    ------
    LogDirectoryError, ValueError
        As `kbatch.plan.bounds.resolve_bounds`.
    CorruptBatchError, TruncatedBatchError, CrcMismatchError
        As `kbatch.plan.split.plan`.
    """
    check_bounds(logs, options)
    items = list(zip(logs, starts, strict=True))
    mapped: list[int] = []
    if mapper is not None and (_looks_up(options) or any(start is not None for start in starts)):
        mapped = [i for i, log in enumerate(logs) if log.size <= options.split_bytes]
    found: dict[int, LogRead] = {}
    if mapper is not None and len(mapped) >= MANY_LOGS:
        results = mapper(_ReadOfLog(options).result, [items[i] for i in mapped])
        for i, result in zip(mapped, results, strict=True):
            if isinstance(result, Exception):
                raise result
            found[i] = result
    rest = [i for i in range(len(logs)) if i not in found]
    others = _reads_here([logs[i] for i in rest], options, [starts[i] for i in rest], walker)
    found.update(zip(rest, others, strict=True))
    return [found[i] for i in range(len(logs))]


def plans_fast(logs: Sequence[Log], options: ReadOptions, starts: Sequence[int | None]) -> bool:
    """Whether one process plans the reads as fast as a job: few logs have something to read, or few bytes to follow."""
    behind = [log for log, start in zip(logs, starts, strict=True) if start is None or start < log.end_offset]
    follows = options.isolation == "read_committed"
    return len(behind) < MANY_LOGS and not (follows and sum(log.size for log in behind) > FOLLOW_JOB_BYTES)


def _resolved_from(
    log: Log, options: ReadOptions, start: int | None
) -> tuple[tuple[int | None, int | None], list[MissingOffsets]]:
    """Resolve the bounds of a log; an offset that overrides the start is not compared with the one of the options."""
    if start is None:
        return resolve_log(log, options)
    (_, stop), missing = resolve_log(log, replace(options, starting=Bound()))
    return (start, stop), missing


def _reads_here(
    logs: Sequence[Log],
    options: ReadOptions,
    starts: Sequence[int | None],
    walker: SegmentWalker | None = None,
    *,
    withheld: bool = True,
) -> list[LogRead]:
    """Plan reads in this process; the walker follows large segments."""
    given = list(zip(logs, starts, strict=True))
    resolved = map_logs(logs, lambda each: _resolved_from(each[0], options, each[1]), given)
    ranges = [ends for ends, _ in resolved]
    known = log_transactions(logs, options, ranges, walker)
    items = [(log, *ends, each) for log, ends, each in zip(logs, ranges, known, strict=True)]
    splits = map_logs(logs, lambda item: log_splits(*item, options, withheld=withheld), items)
    return [
        LogRead(start, stop, missing, each, found)
        for (_, start, stop, each), (_, missing), found in zip(items, resolved, splits, strict=True)
    ]


def _looks_up(options: ReadOptions) -> bool:
    """Whether planning reads the files of each log, and not only their names and sizes."""
    bounds = (options.starting, options.ending)
    has_times = any(bound.timestamp is not None or bound.timestamps is not None for bound in bounds)
    return options.isolation == "read_committed" or has_times or options.prune.since is not None


# -- without a cluster to plan on


@dataclass(frozen=True)
class UnplannedLogs:
    """Logs whose read is planned by the task that reads them.

    Attributes
    ----------
    logs : tuple of Log
        With the segments and sizes at the time when they were listed: later records are not read.
    starting, ending : Bound
        The bounds of the read for these logs.
    """

    logs: tuple[Log, ...]
    starting: Bound
    ending: Bound

    @classmethod
    def of(cls, logs: tuple[Log, ...], options: ReadOptions) -> UnplannedLogs:
        """Return logs with their part of the bounds in the options."""
        return cls(logs, _bound_of(logs, options.starting), _bound_of(logs, options.ending))

    def splits(self, options: ReadOptions) -> list[Split]:
        """Plan the read; return the splits in the order of the logs.

        Raises
        ------
        LogDirectoryError, ValueError, CorruptBatchError, TruncatedBatchError, CrcMismatchError
            As `kbatch.plan.split.plan`.
        """
        options = replace(options, starting=self.starting, ending=self.ending)
        read = _ReadOfLog(options, withheld=False)
        splits: list[Split] = []
        for log in self.logs:
            try:
                planned = read((log, None))
            except LogDirectoryError as error:
                if options.fail_on_data_loss or not is_gone(error):
                    raise
                report_data_loss(f"{error}, after the read was planned", fails=False)
                current = open_log(log.path, options.storage)
                if current is None:
                    continue
                planned = read((current, None))
            warn_missing(planned.missing)
            splits += planned.splits
        return splits


def _bound_of(logs: Sequence[Log], bound: Bound) -> Bound:
    """Return the part of a bound that concerns these logs."""
    names = {(log.topic, log.partition) for log in logs}

    def part(numbers: PerPartition | None) -> PerPartition | None:
        if numbers is None:
            return None
        chosen = {topic: {n: each[n] for n in each if (topic, n) in names} for topic, each in numbers.items()}
        return {topic: each for topic, each in chosen.items() if each}

    return replace(bound, timestamps=part(bound.timestamps), offsets=part(bound.offsets))


def plan_or_defer(logs: Sequence[Log], options: ReadOptions) -> list[tuple[Split, ...] | UnplannedLogs]:
    """Divide the bytes of logs among tasks, as `kbatch.plan.split.plan` without withheld batches.

    If many logs have to be looked up, tasks get whole logs, except for logs larger than ``split_bytes``: 10^4 logs take
    ten seconds or more in one process, and as elements of tasks half a second.
    """
    small: list[Log] = []
    if _looks_up(options) and options.min_partitions is None and options.max_records_per_partition is None:
        small = [log for log in logs if log.size <= options.split_bytes]
    if len(small) < MANY_LOGS:
        return list(plan(logs, options, withheld=False))
    check_bounds(logs, options)
    tasks: list[tuple[Split, ...] | UnplannedLogs] = []
    large = [log for log in logs if log.size > options.split_bytes]
    reads = _reads_here(large, options, [None] * len(large), withheld=False)
    warn_missing([each for read in reads for each in read.missing])
    tasks += divide_splits([(log, read.splits) for log, read in zip(large, reads, strict=True)], options)
    tasks += (UnplannedLogs.of(each, options) for each in divide_logs(small, options))
    return tasks
