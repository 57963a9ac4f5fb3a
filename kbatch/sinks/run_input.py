"""The input of export runs: log directories or a cluster, behind one protocol, so that the rest is the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from kbatch.batches.framing import scan_part
from kbatch.errors import KbatchError, LogDirectoryError, finding_to_error
from kbatch.log import Log
from kbatch.log.missing import is_gone, retry_if_gone
from kbatch.log.sampling import sample_logs
from kbatch.log.selection import choose_logs, map_logs
from kbatch.options import Crc, On
from kbatch.plan.backlog import BytesAfter, FollowedState
from kbatch.plan.planner import LogRead, Mapper, plan_reads, plans_fast, resolved_starts
from kbatch.plan.positions import LogChange, Positions, continued_starts
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import Task, divide_splits
from kbatch.plan.trigger_limits import bytes_from, offset_after_bytes
from kbatch.plan.watching import TopicPartition, WatchedLogs, open_log
from kbatch.sinks.sizing import log_samples
from kbatch.sinks.task import TaskReader

__all__ = ["DirectoryInput", "RunInput"]


class RunInput(Protocol):
    """The logs that an export reads. Each run lists them again; other methods take some of these as `logs`.

    Attributes
    ----------
    name : str
        For the summary.
    reader : TaskReader or None
        As for `kbatch.sinks.task.ExportJob`.
    bytes_after : BytesAfter or None
        As for `kbatch.plan.backlog.Backlog`.
    """

    @property
    def name(self) -> str:
        """The name of the source."""

    @property
    def reader(self) -> TaskReader | None:
        """Reads the parts of tasks."""

    @property
    def bytes_after(self) -> BytesAfter | None:
        """Estimates the bytes of logs."""

    def logs(self) -> list[Any]:
        """Return the logs that the options select.

        Raises
        ------
        KbatchError
            If there are none.
        """

    def continued(self, logs: Sequence[Any], positions: Positions) -> tuple[list[int | None], list[LogChange]]:
        """Return the offset at which each log continues, and the changes of logs since the last run."""

    def sampled(self, logs: Sequence[Any], on: On, crc: Crc, starts: Sequence[int | None] | None) -> list[bytes]:
        """Return keys or values to infer a schema, like `kbatch.log.sampling.sample_logs`."""

    def plans_fast(self, logs: Sequence[Any], options: ReadOptions, starts: Sequence[int | None]) -> bool:
        """Whether this process plans the reads as fast as a job of the engine."""

    def plan(
        self,
        logs: Sequence[Any],
        options: ReadOptions,
        starts: Sequence[int | None],
        stops: Sequence[int | None] | None,
        mapper: Mapper | None = None,
    ) -> list[LogRead]:
        """Plan the read of each log, like `kbatch.plan.planner.plan_reads`."""

    def samples(self, logs: Sequence[Any]) -> Iterator[tuple[Any, bool]]:
        """Yield batches of logs, like `kbatch.sinks.sizing.log_samples`."""

    def divide(self, logs: Sequence[Any], reads: Sequence[LogRead], options: ReadOptions) -> Sequence[Task[Any]]:
        """Divide the reads among tasks."""

    def poll(self) -> Mapping[TopicPartition, FollowedState]:
        """Return the current state of all logs, for an export that follows them."""

    def reopened(self, states: Mapping[TopicPartition, FollowedState]) -> list[Any]:
        """Return the logs of some states, without logs that no longer exist."""

    def begins(self, logs: Sequence[Any], options: ReadOptions, starts: Sequence[int | None]) -> list[int]:
        """Return the offset at which the read of each log begins; `starts` override the options."""

    def bytes_from(self, log: Any, begin: int, state: FollowedState) -> int:
        """Return the bytes of a log from an offset to the end in a state."""

    def offset_after(self, log: Any, begin: int, size: int) -> int:
        """Return the offset after about `size` bytes from an offset on."""

    def has_log_changed(self, error: KbatchError) -> bool:
        """Whether a run failed because a log changed meanwhile; the next run detects the change."""

    def learn(self, topic: str, size: int, offsets: int) -> None:
        """Record how many bytes of a topic a run has read for a number of offsets."""

    def close(self) -> None:
        """Close connections."""


class DirectoryInput:
    """Log directories; a `RunInput`.

    Parameters
    ----------
    paths : sequence of str
    options : ReadOptions
    """

    reader: TaskReader | None = None
    bytes_after: BytesAfter | None = None

    def __init__(self, paths: Sequence[str], options: ReadOptions) -> None:
        self._paths = paths
        self._options = options
        self._watched: WatchedLogs | None = None

    @property
    def name(self) -> str:
        """The paths."""
        return ",".join(self._paths)

    def logs(self) -> list[Log]:
        """Return the logs that the options select, after reading the first batch of each."""
        logs = choose_logs(self._paths, self._options.selection, self._options.storage)
        if not logs:
            raise LogDirectoryError(
                f"{', '.join(self._paths)}: the options exclude all of the topic-partitions", source=self._paths[0]
            )
        for log in logs:
            if log.topic is None:
                raise LogDirectoryError(
                    f"{log.path}: its directory is not named 'topic-partition', so the topic is unknown",
                    source=log.path,
                )
        _check_first_batches([log for log in logs if self._options._for_topic(log.topic).on_error == "raise"])
        return logs

    def continued(self, logs: Sequence[Log], positions: Positions) -> tuple[list[int | None], list[LogChange]]:
        """Compare the positions with the logs; see `RunInput`."""
        return continued_starts(logs, positions)

    def sampled(self, logs: Sequence[Log], on: On, crc: Crc, starts: Sequence[int | None] | None) -> list[bytes]:
        """Return keys or values."""
        return sample_logs(logs, on, crc, starts)

    def plans_fast(self, logs: Sequence[Log], options: ReadOptions, starts: Sequence[int | None]) -> bool:
        """Whether few logs have records to read; see `kbatch.plan.planner.plans_fast`."""
        return plans_fast(logs, options, starts)

    def plan(
        self,
        logs: Sequence[Log],
        options: ReadOptions,
        starts: Sequence[int | None],
        stops: Sequence[int | None] | None,
        mapper: Mapper | None = None,
    ) -> list[LogRead]:
        """Plan the reads; without a mapper, reads that begin at the end of a log have no splits."""
        reads = plan_reads(logs, options, starts, stops=stops, mapper=mapper)
        return [
            read._replace(splits=[]) if mapper is None and _is_at_end(log, read) else read
            for log, read in zip(logs, reads, strict=True)
        ]

    def samples(self, logs: Sequence[Log]) -> Iterator[tuple[Any, bool]]:
        """Yield batches of logs."""
        return log_samples(logs)

    def divide(self, logs: Sequence[Log], reads: Sequence[LogRead], options: ReadOptions) -> Sequence[Task[Any]]:
        """Divide the splits among tasks."""
        return divide_splits([(log, read.splits) for log, read in zip(logs, reads, strict=True)], options)

    def poll(self) -> Mapping[TopicPartition, FollowedState]:
        """Poll the directories."""
        if self._watched is None:
            self._watched = WatchedLogs(self._paths, self._options)
        return retry_if_gone(self._watched.poll)

    def reopened(self, states: Mapping[TopicPartition, FollowedState]) -> list[Log]:
        """Open the logs of some states."""
        opened = [open_log(states[key].path, self._options.storage) for key in sorted(states)]
        return [log for log in opened if log is not None]

    def begins(self, logs: Sequence[Log], options: ReadOptions, starts: Sequence[int | None]) -> list[int]:
        """Return the offset at which the read of each log begins."""
        return resolved_starts(logs, options, starts)

    def bytes_from(self, log: Log, begin: int, state: Any) -> int:
        """Return the bytes from an offset to the end of the last complete batch."""
        return bytes_from(log, begin, state)

    def offset_after(self, log: Log, begin: int, size: int) -> int:
        """Return the offset after the batch that ends after `size` or more bytes."""
        return offset_after_bytes(log, begin, size)

    def has_log_changed(self, error: KbatchError) -> bool:
        """Whether a file of a log was deleted meanwhile."""
        return isinstance(error, LogDirectoryError) and is_gone(error)

    def learn(self, topic: str, size: int, offsets: int) -> None:
        """Do nothing: sizes of files are not estimated."""

    def close(self) -> None:
        """Do nothing: no connection is open."""


def _is_at_end(log: Log, read: LogRead) -> bool:
    """Whether a read begins at the end of a log, where only zeros or an incomplete batch may follow."""
    return read.start is not None and read.start >= log.end_offset and log.incomplete_tail.kind != "damaged"


def _check_first_batches(logs: Sequence[Log]) -> None:
    """Raise an error, before Spark is started, if the first batch of a log cannot be read."""

    def check(log: Log) -> None:
        segment = log.segments[0]
        scan = scan_part(segment.window(0, min(segment.size, 1 << 16)), max_batches=1)
        if scan.finding is not None:
            with segment.open() as file:
                if file.tail_at(0).kind == "damaged" or not segment.live:
                    raise finding_to_error(scan.finding, source=segment.path, position=0)

    map_logs(logs, check, logs)
