"""An export that follows growing logs: one run after the other, each with its own commit.

Logs are polled at low cost (`kbatch.plan.watching`). A run reads only logs with new records, oldest segments first,
and at most about the bytes of one commit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from kbatch.bounds import Bound
from kbatch.errors import KbatchError
from kbatch.interrupts import INTERRUPTED, HeldInterrupts
from kbatch.options import OptionError
from kbatch.plan.backlog import Backlog, Lag
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.trigger_limits import shares
from kbatch.plan.watching import TopicPartition
from kbatch.public_names import public_in
from kbatch.sinks.export_run import Executor
from kbatch.sinks.exports import Engine, ExportSetup
from kbatch.sinks.follow_options import FollowOptions
from kbatch.sinks.metrics import MetricsFile
from kbatch.sinks.summary import ExportSummary
from kbatch.sinks.task_transactions import TaskTransactions
from kbatch.sinks.working import RunLock
from kbatch.sinks.write_options import WriteOptions
from kbatch.unfinished import forget_unfinished, register_unfinished, unbroken

__all__ = ["FollowProgress", "FollowSummary", "Follower", "OnCommit", "OnProgress"]

# Bounds of the pause between two polls: at most this number of seconds, and a part of the commit interval; at least a
# multiple of the time that a poll takes, so that polls of many logs take at most a tenth of a core.
MAX_PAUSE = 1.0
POLLS_PER_INTERVAL = 10
POLL_SHARE = 9.0
# The number of consecutive runs that may fail because a log changed while they read it.
MAX_GONE = 3


class FollowProgress(NamedTuple):
    """The progress of an export that follows logs.

    Attributes
    ----------
    lag : Lag
        The lag at the last poll.
    read_bytes, total_bytes, records : int
        Of the current run: bytes of the logs read so far, all bytes to read, records written. 0 between runs.
    """

    lag: Lag
    read_bytes: int = 0
    total_bytes: int = 0
    records: int = 0


OnProgress: TypeAlias = Callable[[FollowProgress], None]
OnCommit: TypeAlias = Callable[[ExportSummary, Lag], None]


@public_in("kbatch")
@dataclass
class FollowSummary:
    """The result of an export that followed logs.

    Attributes
    ----------
    out : str
    commits : int
    records, control_records, log_bytes, file_bytes : int
        Totals of all commits; `records` includes control records if they are written.
    exit_status : int
        The worst exit status of all runs; see `ExportSummary.exit_status`.
    lag : Lag
        The lag at the end.

    Examples
    --------
    >>> import kbatch
    >>> summary = kbatch.follow("/var/lib/kafka/data", "/lake/raw", available_now=True)  # doctest: +SKIP
    >>> summary.commits, summary.lag.offsets  # doctest: +SKIP
    (12, 0)
    """

    out: str
    commits: int = 0
    records: int = 0
    control_records: int = 0
    log_bytes: int = 0
    file_bytes: int = 0
    exit_status: int = 0
    lag: Lag = field(default_factory=Lag)

    def __post_init__(self) -> None:
        # By topic-partition: the number of open transactions, or those in the records that were read.
        self._open: dict[TopicPartition, int | TaskTransactions] = {}

    def _add(self, summary: ExportSummary) -> None:
        """Add a run."""
        self.commits += summary.action != "unchanged"
        self.records += summary.records
        self.control_records += summary.control_records
        self.log_bytes += summary.log_bytes
        self.file_bytes += summary.file_bytes
        worst = {self.exit_status, summary.exit_status}
        self.exit_status = next((status for status in (3, 4, 5) if status in worst), 0)
        for part in summary.partitions:
            key = (part.topic, part.partition)
            before, new = self._open.get(key, 0), summary._followed.get(key)
            if new is not None:
                joined = (before if isinstance(before, TaskTransactions) else TaskTransactions()).then(new)
                self._open[key] = TaskTransactions(joined.opened)
            elif part.open_count != before and isinstance(before, int):
                self._open[key] = part.open_count

    @property
    def open_count(self) -> int:
        """Open transactions: under read_committed those of the logs, else those that begin in the records read."""
        return sum(each if isinstance(each, int) else len(each.opened) for each in self._open.values())


class Follower:
    """Commits the new records of growing logs until it is stopped.

    Parameters
    ----------
    setup : ExportSetup
    engine : callable
        As for `kbatch.sinks.exports.run_export`.
    options : FollowOptions
    on_commit : callable, optional
        Called after each commit, with the summary of the run and the current lag. An interrupt waits for its end.
    progress : callable, optional
        Called from time to time.
    metrics : MetricsFile, optional
        Written after each commit.

    Raises
    ------
    OptionError
        For options that only a single run supports: another mode, an end, and ``on_error="stop"``.
    """

    def __init__(
        self,
        setup: ExportSetup,
        engine: Callable[[int], Engine],
        options: FollowOptions,
        *,
        on_commit: OnCommit | None = None,
        progress: OnProgress | None = None,
        metrics: MetricsFile | None = None,
    ) -> None:
        _refuse_options(setup.reading, setup.writing)
        self._setup = setup
        self._engine_of = engine
        self._options = options
        self._on_commit = on_commit
        self._progress = progress
        self._metrics = metrics
        self._source = setup.source
        self._backlog = Backlog(setup.reading, setup.source.bytes_after)
        self._engine: Engine | None = None
        self._executor: Executor | None = None
        self._lock: RunLock | None = None
        # The number of consecutive runs that failed because a log changed.
        self._gone = 0
        self._stack = contextlib.ExitStack()
        # Where the reads of logs without a position begin, and where the reads of the current run begin and end.
        self._begins: dict[TopicPartition, int] = {}
        self._bounds: dict[TopicPartition, tuple[int, int]] = {}
        self.summary = FollowSummary(setup.place.url)

    def run(self) -> FollowSummary:
        """Commit until the process is interrupted, or with ``available_now`` until all records are committed."""
        try:
            with contextlib.closing(self._source), self._stack:
                self._follow()
        except BaseException as error:
            if self._metrics is not None:
                self._metrics.write(None, INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1)
            raise
        self.summary.lag = self._backlog.lag()
        return self.summary

    def _follow(self) -> None:
        polled = self._poll()
        ends = self._backlog.ends()
        # The time since when the oldest record waits. Records from before the start have waited for an unknown time.
        since: float | None = float("-inf")
        if self._run(self._source.logs()):
            since = polled
        self._setup = replace(self._setup, reading=_without_start(self._setup.reading))
        while True:
            polled = self._poll()
            if self._options.available_now and self._backlog.has_reached(ends):
                return
            waiting = self._backlog.waiting()
            since = None if not waiting else polled if since is None else since
            if since is not None and self._is_due(sum(waiting.values()), polled - since):
                if self._run(self._source.reopened(self._backlog.states_of(waiting))):
                    since = polled
            else:
                self._wait(polled)

    def _poll(self) -> float:
        """Poll the logs; return when the poll began."""
        began = time.monotonic()
        self._backlog.update(self._source.poll())
        self._show()
        return began

    def _is_due(self, size: int, seconds: float) -> bool:
        options = self._options
        return options.available_now or size >= options.commit_bytes or seconds >= options.commit_interval

    def _wait(self, polled: float) -> None:
        took = time.monotonic() - polled
        longest = min(MAX_PAUSE, self._options.commit_interval / POLLS_PER_INTERVAL)
        time.sleep(max(longest, POLL_SHARE * took, 0.001))

    def _show(self, read_bytes: int = 0, total_bytes: int = 0, records: int = 0) -> None:
        if self._progress is not None:
            self._progress(FollowProgress(self._backlog.lag(), read_bytes, total_bytes, records))

    # -- one run

    def _run(self, logs: Sequence[Any]) -> bool:
        """Export and commit new records; return whether these are all records of the last poll.

        They are not if the log cleaner, retention or an election changed a log meanwhile; the next run detects it.
        """
        if not logs:
            return True
        try:
            self._commit(logs)
        except KbatchError as error:
            self._gone += 1
            if self._gone > MAX_GONE or not self._source.has_log_changed(error):
                raise
            return False
        self._gone = 0
        return all(stop >= self._backlog.states[key].end_offset for key, (_, stop) in self._bounds.items())

    def _commit(self, logs: Sequence[Any]) -> None:
        target = self._setup.target()
        if self._engine is None:
            self._engine = self._engine_of(sum(log.size for log in logs))
        with self._setup.run(target, logs, self._engine, limit=self._limit, within=self._lock) as run:
            executor = None if run.has_nothing_to_read() else self._started(self._engine)
            run.run(executor, None if self._progress is None else self._show)
            # An interrupt ends the process after the commit and the steps that belong to it.
            with HeldInterrupts(), unbroken:
                summary = run.commit()
                if self._lock is None:
                    self._hold(run.keep_lock())
                self._advance(summary)
                self._report(summary)

    def _started(self, engine: Engine) -> Executor:
        """Return the engine, which runs until the end."""
        if self._executor is None:
            self._executor = self._stack.enter_context(engine.start())
        return self._executor

    def _hold(self, lock: RunLock) -> None:
        """Lock the output against other exports until the end."""
        self._lock = lock
        register_unfinished(lock, lock.release)
        self._stack.callback(forget_unfinished, lock)
        self._stack.callback(lock.release)

    def _limit(self, logs: Sequence[Any], starts: Sequence[int | None]) -> list[tuple[int | None, int | None]]:
        """Return where a run begins and ends in each log: about the bytes of one commit, in proportion."""
        backlog, keys = self._backlog, [(log.topic or "", log.partition or 0) for log in logs]
        given = [self._begins.get(key) if start is None else start for key, start in zip(keys, starts, strict=True)]
        begins = self._source.begins(logs, self._setup.reading, given)
        self._begins |= zip(keys, begins, strict=True)
        self._bounds = {}
        sizes: dict[TopicPartition, int] = {}
        for key, log, begin in zip(keys, logs, begins, strict=True):
            state = backlog.states.get(key)
            if state is not None and begin < state.end_offset and backlog.may_be_limited(key):
                sizes[key] = self._source.bytes_from(log, begin, state)
        parts = shares(sizes, self._options.commit_bytes)
        bounds: list[tuple[int | None, int | None]] = []
        for key, log, begin, start in zip(keys, logs, begins, given, strict=True):
            state = backlog.states.get(key)
            stop = begin if state is None else state.end_offset
            if key in sizes and parts[key] < sizes[key]:
                stop = min(stop, self._source.offset_after(log, begin, parts[key]))
            if state is not None:
                self._bounds[key] = (begin, stop)
            bounds.append((start, stop))
        return bounds

    def _advance(self, summary: ExportSummary) -> None:
        for part in summary.partitions:
            key = (part.topic, part.partition)
            if key in self._bounds:
                begin, stop = self._bounds[key]
                reached = begin if part.next_offset is None else max(begin, part.next_offset)
                self._source.learn(part.topic, part.log_bytes, reached - begin)
                self._backlog.advance(key, reached, before=begin, stop=stop)

    def _report(self, summary: ExportSummary) -> None:
        self.summary._add(summary)
        if summary.action == "unchanged" and not summary.unseen_reports:
            return
        if self._metrics is not None:
            self._metrics.write(summary, summary.exit_status, self._backlog.lags())
        if self._on_commit is not None:
            self._on_commit(summary, self._backlog.lag())
        summary.mark_seen()


def _refuse_options(reading: ReadOptions, writing: WriteOptions) -> None:
    """Raise an error for options that only a single run supports."""
    if writing.mode != "continue":
        raise OptionError("{mode} must be continue for an export that follows logs, got {0!r}", writing.mode)
    if reading.ending != Bound():
        raise OptionError("{ending} is for an export that ends; an export that follows logs does not end")
    for topic in (None, *reading.policies):
        if reading._for_topic(topic).on_error == "stop":
            raise OptionError("{on_error} stop is not valid for an export that follows logs: choose raise or skip")


def _without_start(reading: ReadOptions) -> ReadOptions:
    """Return the options of later runs: of the bounds, only a time applies to topic-partitions that appear later."""
    starting = reading.starting
    by_time = starting.timestamp is not None and starting.offset is None
    return replace(reading, starting=Bound(timestamp=starting.timestamp) if by_time else Bound())
