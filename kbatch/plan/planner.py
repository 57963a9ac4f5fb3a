"""Plans reads: turns a list of logs into a list of independent, picklable tasks.

Each log is planned separately. Many logs are planned one after the other, in threads if they are remote, in a cluster
job, or each by the task that reads it. The transactions of large logs are followed in threads or in a job, and their
bytes are divided among tasks. Planning uses names, sizes, index files and some batch headers. It decodes a batch only
to convert a timestamp to an offset.

The offset of a timestamp and the transactions of a log take about a millisecond of CPU per segment.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from kbatch.bounds import Pruning
from kbatch.errors import KbatchError, LogDirectoryError
from kbatch.log import Log, Segment
from kbatch.log.committed import SegmentTransactions, Walk, segment_transactions
from kbatch.log.log_bounds import LogBound
from kbatch.log.missing import MissingOffsets, is_gone, report_data_loss, warn_missing
from kbatch.log.resolving import log_bounds, resolve_log
from kbatch.log.selection import map_logs
from kbatch.plan.following import follow_options, followed, needed_segments, walk_ahead, walk_threads
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import Split, Task, divide_logs, divide_splits, log_splits, records_per_byte
from kbatch.plan.watching import open_log
from kbatch.read.decode_options import DecodeOptions
from kbatch.transactions import Transactions

__all__ = [
    "LogRange",
    "LogRead",
    "LogRequest",
    "Mapper",
    "log_requests",
    "plan",
    "plan_log",
    "plan_or_defer",
    "plan_ranges",
    "plan_reads",
    "plans_fast",
    "resolved_starts",
    "splits_of",
]

# From this number of logs on, a job or the tasks plan the logs: one process would take a second or two.
MANY_LOGS = 1000
# From this number of bytes to follow, a Spark job is faster despite its start: one core takes a fraction of a second if
# the files are in memory, and seconds if a disk has to read them.
FOLLOW_JOB_BYTES = 1 << 30

# Applies a function to items in parallel, and returns the results in the order of the items. The first field of an item
# is a log or a segment. The function, the items and the results are pickled.
Mapper: TypeAlias = Callable[[Callable[[Any], Any], Sequence[tuple[Any, ...]]], list[Any]]

# The result of `resolve_log`.
Resolved: TypeAlias = tuple[tuple[int | None, int | None], list[MissingOffsets]]


class LogRequest(NamedTuple):
    """A log to read, with the bounds of the read. A task that gets a request plans the read itself.

    Attributes
    ----------
    log : Log
        The log, with the segments and sizes at the time of listing: later records are not read.
    starting, ending : LogBound
    prune : Pruning or None
        The ranges of this log that a condition excludes, instead of those that the options exclude from every log.
    """

    log: Log
    starting: LogBound = LogBound()
    ending: LogBound = LogBound()
    prune: Pruning | None = None

    @property
    def bytes(self) -> int:
        """The number of bytes of the log."""
        return self.log.size

    @property
    def records(self) -> int | None:
        """The estimated number of records of the log."""
        density = records_per_byte(self.log)
        return None if density is None else round(density * self.bytes)


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
        One for each segment with such offsets; for a partition of a cluster, its range of offsets.
    withheld : int
        For a partition of a cluster under read_committed, the number of requested offsets from the last stable offset
        on.
    """

    start: int | None
    stop: int | None
    missing: list[MissingOffsets]
    transactions: Transactions | None
    splits: list[Any]
    withheld: int = 0


@dataclass(frozen=True, slots=True)
class LogRange:
    """A whole log for one task to examine, and the range of offsets to report; None is the log's own end."""

    path: str
    start_offset: int | None
    stop_offset: int | None


@dataclass(frozen=True)
class _Planner:
    """Plans the read of one log; `withheld` is as for `log_splits`."""

    options: ReadOptions
    withheld: bool = True

    def __call__(self, request: LogRequest) -> LogRead:
        return self.read(request.log, self.resolve(request))

    def attempt(self, request: LogRequest) -> LogRead | Exception:
        """Return the error of planning, so that the caller can raise it unchanged."""
        try:
            return self(request)
        except (KbatchError, ValueError, OSError) as error:
            return error

    def resolve(self, request: LogRequest) -> Resolved:
        log, starting, ending, prune = request
        return resolve_log(log, starting, ending, self.options._for_topic(log.topic).selection, prune)

    def read(self, log: Log, resolved: Resolved, walk: Walk = map) -> LogRead:
        (start, stop), missing = resolved
        options = self.options._for_topic(log.topic)
        known = followed(log, options, start, stop, walk)
        splits = log_splits(log, start, stop, known, options, withheld=self.withheld)
        return LogRead(start, stop, missing, known, splits)


def plan(logs: Sequence[Log], options: ReadOptions, *, withheld: bool = True) -> list[Task[Split]]:
    """Divide the bytes of `logs` among tasks.

    Parameters
    ----------
    logs : sequence of Log
        The logs to read (`kbatch.log.selection.choose_logs`).
    options : ReadOptions
    withheld : bool
        As for `kbatch.plan.split.log_splits`.

    Returns
    -------
    list of Task
        Joined in order, they cover each byte of the logs that the read may need exactly once: see `divide_splits`.

    Raises
    ------
    ValueError, LogDirectoryError
        As `kbatch.log.resolving.log_bounds` and `resolve_log`.
    CorruptBatchError, TruncatedBatchError, CrcMismatchError
        As `kbatch.plan.following.check_markers`. Under ``on_error="raise"``, damage anywhere in a log is an error if it
        leaves a transaction undecided that has records in the range.
    """
    return _tasks(log_requests(logs, options), _Planner(options, withheld))


def log_requests(
    logs: Sequence[Log],
    options: ReadOptions,
    starts: Sequence[int | None] | None = None,
    stops: Sequence[int | None] | None = None,
) -> list[LogRequest]:
    """Return the requests to read some logs; `starts` and `stops` are as for `plan_reads`.

    Raises
    ------
    ValueError
        As `kbatch.log.resolving.log_bounds`.
    """
    bounds = log_bounds(logs, options.selection)
    if starts is not None:
        bounds = [
            (starting if start is None else LogBound(start), ending)
            for (starting, ending), start in zip(bounds, starts, strict=True)
        ]
    if stops is not None:
        bounds = [
            (starting, ending if stop is None else LogBound(stop))
            for (starting, ending), stop in zip(bounds, stops, strict=True)
        ]
    return [LogRequest(log, *ends) for log, ends in zip(logs, bounds, strict=True)]


def resolved_starts(logs: Sequence[Log], options: ReadOptions, starts: Sequence[int | None]) -> list[int]:
    """Return the offset at which the read of each log begins; `starts` is as for `plan_reads`.

    Raises
    ------
    LogDirectoryError, ValueError
        As `plan`.
    """
    known = [i for i, start in enumerate(starts) if start is None]
    found = [start or 0 for start in starts]
    if known:
        requests = log_requests(logs, options, starts)
        planner = _Planner(options)
        resolved = map_logs(logs, planner.resolve, [requests[i] for i in known])
        for i, ((start, _), _) in zip(known, resolved, strict=True):
            found[i] = (logs[i].segments[0].base_offset or 0) if start is None else start
    return found


def plan_log(request: LogRequest, options: ReadOptions) -> LogRead:
    """Plan the read of one log.

    Raises
    ------
    LogDirectoryError, ValueError, CorruptBatchError, TruncatedBatchError, CrcMismatchError
        As `plan`.
    """
    return _Planner(options)(request)


def plan_or_defer(logs: Sequence[Log], options: ReadOptions) -> list[Task[Split] | Task[LogRequest]]:
    """Divide the bytes of logs among tasks, as `plan` without withheld batches, or the logs (`splits_of`).

    If many logs must be looked up, tasks get whole logs, except for logs larger than ``split_bytes``: one process takes
    ten seconds or more for 10^4 logs, tasks half a second.
    """
    requests, planner = log_requests(logs, options), _Planner(options, withheld=False)
    small: list[LogRequest] = []
    if _looks_up(options) and options.min_partitions is None and options.max_records_per_partition is None:
        small = [request for request in requests if request.bytes <= options.split_bytes]
    if len(small) < MANY_LOGS:
        return [*_tasks(requests, planner)]
    large = [request for request in requests if request.bytes > options.split_bytes]
    deferred = divide_logs(small, [request.log for request in small], options)
    return [*_tasks(large, planner), *map(Task, deferred)]


def plan_reads(
    logs: Sequence[Log],
    options: ReadOptions,
    starts: Sequence[int | None],
    *,
    stops: Sequence[int | None] | None = None,
    mapper: Mapper | None = None,
) -> list[LogRead]:
    """Plan the read of each log; `divide_splits` divides the splits among tasks.

    Parameters
    ----------
    logs : sequence of Log
    options : ReadOptions
    starts : sequence of int or None
        For each log an offset that overrides the start of the options, or None.
    stops : sequence of int or None, optional
        The same for the end of the options.
    mapper : Mapper, optional
        Plans small logs if there are many and planning must read their files, and follows the segments of the other
        logs if they have many bytes.

    Raises
    ------
    LogDirectoryError, ValueError, CorruptBatchError, TruncatedBatchError, CrcMismatchError
        As `plan`.
    """
    requests = log_requests(logs, options, starts, stops)
    planner = _Planner(options)
    if mapper is None:
        return _reads_here(requests, planner)
    mapped: list[int] = []
    if _looks_up(options) or any(start is not None for start in starts):
        mapped = [i for i, request in enumerate(requests) if request.bytes <= options.split_bytes]
    if len(mapped) < MANY_LOGS:
        mapped = []
    results = mapper(planner.attempt, [requests[i] for i in mapped]) if mapped else []
    for result in results:
        if isinstance(result, Exception):
            raise result
    found = dict(zip(mapped, results, strict=True))
    rest = [i for i in range(len(logs)) if i not in found]
    found.update(zip(rest, _reads_here([requests[i] for i in rest], planner, mapper), strict=True))
    return [found[i] for i in range(len(logs))]


def plans_fast(logs: Sequence[Log], options: ReadOptions, starts: Sequence[int | None]) -> bool:
    """Whether one process plans the reads as fast as a job: few logs have records to read or bytes to follow."""
    behind = [log for log, start in zip(logs, starts, strict=True) if start is None or start < log.end_offset]
    follows = options.isolation == "read_committed"
    return len(behind) < MANY_LOGS and not (follows and sum(log.size for log in behind) > FOLLOW_JOB_BYTES)


def splits_of(task: Task[Split] | Task[LogRequest], options: ReadOptions) -> list[Split]:
    """Return the splits of a task in order; plan logs that have not been planned yet, without `withheld`.

    Raises
    ------
    LogDirectoryError, ValueError, CorruptBatchError, TruncatedBatchError, CrcMismatchError
        As `plan`.
    """
    planner = _Planner(options, withheld=False)
    splits: list[Split] = []
    for part in task:
        if isinstance(part, Split):
            splits.append(part)
            continue
        try:
            read = planner(part)
        except LogDirectoryError as error:
            if options._for_topic(part.log.topic).fail_on_data_loss or not is_gone(error):
                raise
            report_data_loss(f"{error}, after the read was planned", fails=False)
            current = open_log(part.log.path, options.storage)
            if current is None:
                continue
            read = planner(part._replace(log=current))
        warn_missing(read.missing)
        splits += read.splits
    return splits


def plan_ranges(logs: Sequence[Log], options: ReadOptions) -> list[tuple[LogRange, ...]]:
    """Divide whole logs among tasks that need all batch headers of a log.

    Raises
    ------
    ValueError, LogDirectoryError
        As `kbatch.log.resolving.log_bounds` and `resolve_log`.
    """
    resolved = map_logs(logs, _Planner(options).resolve, log_requests(logs, options))
    warn_missing([each for _, missing in resolved for each in missing])
    ranges = [LogRange(log.path, *ends) for log, (ends, _) in zip(logs, resolved, strict=True)]
    return [tuple(each) for each in divide_logs(ranges, logs, options)]


def _looks_up(options: ReadOptions) -> bool:
    """Whether planning must read the files of each log, not only their names and sizes."""
    bounds = (options.starting, options.ending)
    has_times = any(
        each is not None
        for bound in bounds
        for each in (bound.timestamp, bound.timestamps, bound.before_end, bound.partitions)
    )
    return options.isolation == "read_committed" or has_times or options.prune.since is not None


def _tasks(requests: Sequence[LogRequest], planner: _Planner) -> list[Task[Split]]:
    reads = _reads_here(requests, planner)
    warn_missing([each for read in reads for each in read.missing])
    found = [(request.log, read.splits) for request, read in zip(requests, reads, strict=True)]
    return divide_splits(found, planner.options)


def _reads_here(requests: Sequence[LogRequest], planner: _Planner, mapper: Mapper | None = None) -> list[LogRead]:
    """Plan reads in this process; `mapper` follows segments."""
    logs = [request.log for request in requests]
    if planner.options.isolation == "read_uncommitted":
        # No transactions are followed. One step per log keeps only the read of this log in memory.
        return map_logs(logs, planner, requests)
    resolved = map_logs(logs, planner.resolve, requests)
    known = _followed_segments(logs, resolved, planner.options, mapper)
    with walk_threads() as pool:
        walks = [functools.partial(walk_ahead, pool, each) for each in known]
        return map_logs(logs, lambda each: planner.read(*each), list(zip(logs, resolved, walks, strict=True)))


def _followed_segments(
    logs: Sequence[Log], resolved: Sequence[Resolved], options: ReadOptions, mapper: Mapper | None
) -> list[dict[int, SegmentTransactions]]:
    """Follow segments in a job if they have many bytes; return the results of each log by the segment's number."""
    found: list[dict[int, SegmentTransactions]] = [{} for _ in logs]
    if mapper is None:
        return found
    needed = [
        (i, number, (segment, below, follow_options(own)))
        for i, (log, (ends, _)) in enumerate(zip(logs, resolved, strict=True))
        for own in [options._for_topic(log.topic)]
        for number, segment, below in needed_segments(log, *ends, own)
    ]
    if sum(segment.size for _, _, (segment, _, _) in needed) > FOLLOW_JOB_BYTES:
        results = mapper(_follow_segment, [item for _, _, item in needed])
        for (i, number, _), result in zip(needed, results, strict=True):
            found[i][number] = result
    return found


def _follow_segment(item: tuple[Segment, int | None, DecodeOptions]) -> SegmentTransactions:
    return segment_transactions(*item)
