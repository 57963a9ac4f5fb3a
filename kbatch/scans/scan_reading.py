"""The read of a scan: logs are chosen, planned, pruned and decoded, and the condition is applied to each table."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from kbatch.bounds import Pruning
from kbatch.log.conversions import losses_text, warn_if_after_end
from kbatch.log.log_bounds import BoundedLog, LogBound, start_of, stop_of
from kbatch.log.read_arguments import ReadArguments
from kbatch.log.sampling import topics_of
from kbatch.log.selection import Selection
from kbatch.log.source import LogSource, OpenSource, PlannedRange, RangeRequest
from kbatch.options import On
from kbatch.quantities import callers_stacklevel, largest, smallest
from kbatch.scans.ahead import at_end, map_ahead, steps_ahead
from kbatch.scans.expression_filter import ExpressionFilter, LogPruning
from kbatch.table import RecordTable

__all__ = ["Explanation", "Reading"]

UsedT = TypeVar("UsedT")


class ChosenLog(NamedTuple):
    """A log that a scan reads, and where the read begins and ends."""

    log: BoundedLog
    start: LogBound
    stop: LogBound


class Explanation(NamedTuple):
    """What is known of a read before records are read.

    Attributes
    ----------
    left_out : int
        The number of topic-partitions that the condition excludes.
    planned : list of PlannedRange
    lines : list of str
        Of the source, about the ranges.
    """

    left_out: int
    planned: list[PlannedRange]
    lines: list[str]


class _Step(NamedTuple, Generic[UsedT]):
    """The results for the parts of a table, and the lengths of its losses."""

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

    def _chosen(
        self, opened: OpenSource, left_out: set[tuple[str | None, int | None]] | None = None
    ) -> list[ChosenLog]:
        """Choose the logs, without those that the condition excludes by their topic and partition.

        Those are added to `left_out`. Errors are those of `OpenSource.logs` and `kbatch.log.log_bounds.bounds_by_log`.
        """

        def excludes(topic: str | None, partition: int | None) -> bool:
            is_excluded = self.condition is not None and not self.condition.may_select(topic, partition)
            if is_excluded and left_out is not None:
                left_out.add((topic, partition))
            return is_excluded

        # The end of a topic is that of all partitions that the arguments choose.
        all_logs = self.arguments.needs_all_logs or self.condition is None
        logs = opened.logs(self.selection, None if all_logs else excludes)
        found = [ChosenLog(log, *ends) for log, ends in zip(logs, self.arguments.bounds(logs), strict=True)]
        return [each for each in found if not excludes(each.log.topic, each.log.partition)] if all_logs else found

    def sampled(self, on: On) -> list[bytes]:
        """Return keys or values of the logs that the arguments choose, to infer a schema."""
        with self.source.open(self.arguments) as opened:
            return opened.sampled([each.log for each in self._chosen(opened)], on)

    def topics(self) -> list[str]:
        """Return the topics of the logs that the arguments choose."""
        with self.source.open(self.arguments) as opened:
            return topics_of([each.log for each in self._chosen(opened)])

    def explained(self) -> Explanation:
        """Plan the read."""
        left_out: set[tuple[str | None, int | None]] = set()
        with self.source.open(self.arguments) as opened:
            planned = [opened.plan(self._request(each)) for each in self._chosen(opened, left_out)]
            return Explanation(len(left_out), planned, list(opened.explained(planned)))

    def _request(self, chosen: ChosenLog) -> RangeRequest:
        """Return the records that are needed of a log, without those that the condition excludes."""
        log, rows = chosen.log, self.arguments.rows(chosen.start, chosen.stop)
        condition = self.condition
        if condition is None:
            return RangeRequest(*chosen, rows)
        excluded = self._excluded_of(log, condition)
        may_have = None
        if "offset" in condition.columns:
            may_have = functools.partial(condition.may_have, log.topic, log.partition)
        if not rows.keys and not excluded.is_empty:
            rows = replace(rows, keys=condition.keys)
        return RangeRequest(
            *chosen,
            rows,
            excluded.pruning,
            is_exact=excluded.is_always_true,
            is_empty=excluded.is_empty,
            may_have=may_have,
        )

    def _excluded_of(self, log: BoundedLog, condition: ExpressionFilter) -> LogPruning:
        """Return what the condition excludes of a log."""
        excluded = condition.of_log(log.topic, log.partition)
        if self.arguments.decode.crc == "verify" or excluded.pruning == Pruning():
            return excluded
        # The records of a batch are returned even if its header, which is not verified, has wrong offsets or times.
        return excluded._replace(pruning=Pruning(), is_always_true=False)

    def count(self) -> int:
        """Return the number of records: from batch headers where they decide, as `kbatch.Log.count` does."""
        with self.source.open(self.arguments) as opened:
            chosen = self._chosen(opened)
            requests = [self._counted_request(each) for each in chosen]
            counts = opened.counts(requests)
            rest = [each for each, count in zip(chosen, counts, strict=True) if count is None]
            total = sum(count for count in counts if count is not None) + sum(self._run(opened, rest, (), len))
            if not total:
                warn_if_after_end([each.log for each in chosen], [(each.start, each.stop) for each in chosen])
            return total

    def _counted_request(self, chosen: ChosenLog) -> RangeRequest:
        """Return the records of a log, without a condition if it is true for all within a range of offsets."""
        log, start, stop = chosen
        rows = self.arguments.rows(start, stop)
        if self.condition is None:
            return RangeRequest(*chosen, rows, is_exact=True)
        excluded = self._excluded_of(log, self.condition)
        if excluded.is_empty:
            return RangeRequest(*chosen, rows, is_empty=True)
        offsets = excluded.pruning.offset
        end = None if offsets.high is None else offsets.high + 1
        start = LogBound(largest(start_of(log, start), offsets.low), start.timestamp)
        stop = LogBound(smallest(stop_of(log, stop), end), stop.timestamp)
        return RangeRequest(log, start, stop, rows, is_exact=excluded.is_always_true and self.arguments.last is None)

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
        with self.source.open(self.arguments) as opened:
            chosen = self._chosen(opened)
            is_empty = True
            with contextlib.closing(self._run(opened, chosen, columns, use, reverse=reverse)) as found:
                for used in found:
                    is_empty = False
                    yield used
                    del used
            if is_empty:
                warn_if_after_end([each.log for each in chosen], [(each.start, each.stop) for each in chosen])

    def _run(
        self,
        opened: OpenSource,
        chosen: list[ChosenLog],
        columns: tuple[str, ...],
        use: Callable[[RecordTable], UsedT],
        *,
        reverse: bool = False,
    ) -> Generator[UsedT, None, None]:
        losses: list[int] = []
        ahead = opened.ahead([each.log for each in chosen], reverse=reverse)
        pool = ThreadPoolExecutor(ahead.threads, "kbatch-scan")
        with at_end(lambda: _warn_of(losses)):
            try:
                planned = map_ahead(
                    pool,
                    lambda each: opened.plan(self._request(each)),
                    chosen[::-1] if reverse else chosen,
                    ahead.logs,
                )
                tasks = opened.tasks(planned, reverse=reverse)
                steps = (self._steps(opened, *task, columns, use, reverse) for task in tasks)
                for step in steps_ahead(pool, steps, ahead.tasks):
                    losses += step.losses
                    yield from reversed(step.used) if reverse else step.used
                    del step
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _steps(
        self,
        opened: OpenSource,
        planned: PlannedRange,
        work: Any,
        columns: tuple[str, ...],
        use: Callable[[RecordTable], UsedT],
        reverse: bool,
    ) -> Iterator[_Step[UsedT]]:
        """Decode a task; a step is one table."""
        condition = self.condition
        if planned.request.is_exact and self.arguments.decode.on_error != "stop":
            # Rows outside of the range of offsets are left out already, except for those that "stop" has to read.
            condition = None
        needed = columns if condition is None else tuple(dict.fromkeys((*columns, *condition.inputs)))
        for table in opened.tables(planned, work, needed, reverse=reverse):
            losses = table.losses.lengths.tolist()
            parts = condition.selected(table) if condition is not None and len(table) else [table] if len(table) else []
            if parts or losses:
                yield _Step([use(part) for part in parts], losses)
            del table, parts


def _warn_of(losses: Sequence[int]) -> None:
    if (text := losses_text(losses)) is not None:
        warnings.warn(text, RuntimeWarning, stacklevel=callers_stacklevel())
