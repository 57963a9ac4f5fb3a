"""The bounds of a read for each of its logs, and as offsets of one log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kbatch.bounds import Bound, LogEnd
from kbatch.log.ranges import count_back
from kbatch.log.topics import first_names

__all__ = ["BoundedLog", "LogBound", "bounds_by_log", "start_of", "stop_of"]


class BoundedLog(Protocol):
    """What the bounds of a read need of a log."""

    topic: str | None
    partition: int | None

    @property
    def start_offset(self) -> int:
        """The first offset of the log."""

    @property
    def start_checkpoint(self) -> int | None:
        """The broker's log start offset, if it is known."""

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""

    @property
    def last_timestamp(self) -> int | None:
        """The largest timestamp of the last batch, if there is one."""


class LogBound(NamedTuple):
    """Where the read of one log begins or ends, as the caller gave it; by default it is the log's own end.

    Attributes
    ----------
    offset : int or None
        A negative one counts back from the end of the log.
    timestamp : int or None
        In milliseconds. With `offset` too, both apply.
    is_named : bool
        Whether `offset` was given for this topic-partition, so that it is data loss if the log does not have it.
    log_end : {"earliest", "latest"} or None
        Instead of an offset.
    is_before_now : bool
        Whether `timestamp` was given as a duration before now.
    """

    offset: int | None = None
    timestamp: int | None = None
    is_named: bool = False
    log_end: LogEnd | None = None
    is_before_now: bool = False


def bounds_by_log(
    logs: Sequence[BoundedLog],
    bound: Bound,
    name: str,
    is_excluded: Callable[[str | None, int], bool] = lambda topic, partition: False,
) -> list[LogBound]:
    """Return where the read of each log begins or ends.

    Parameters
    ----------
    logs : sequence of Log
        Those that are read. Their last batches are read if the bound is relative to the end of the topic.
    bound : Bound
    name : str
        The name of the bound, for messages.
    is_excluded : callable
        Whether a topic-partition may be named although it is not read.

    Raises
    ------
    ValueError
        If the bound names a topic or partition that is not read.
    """
    _check_names(logs, bound, name, is_excluded)
    points = [bound._of_partition(log.topic, log.partition) for log in logs]
    ends: dict[object, int] = {}
    named = {log.topic for log, point in zip(logs, points, strict=True) if point.before_end is not None}
    for log in logs:
        if log.topic in named:
            # Without a timestamp, the records of the topic have the timestamp -1.
            last = log.last_timestamp
            ends[_topic_of(log)] = max(ends.get(_topic_of(log), -1), -1 if last is None else last)
    return [_log_bound(log, point, ends.get(_topic_of(log), -1)) for log, point in zip(logs, points, strict=True)]


def _topic_of(log: BoundedLog) -> object:
    # A log without a name is a topic of its own.
    return id(log) if log.topic is None else log.topic


def _log_bound(log: BoundedLog, point: Bound, end: int) -> LogBound:
    if point.before_end is not None:
        return LogBound(timestamp=end - point.before_end)
    topic, partition = log.topic or "", log.partition or 0
    if point.offsets is not None:
        # A negative one means an end of the log: the earliest or the latest offset.
        offset = point.offsets[topic][partition]
        if offset < 0:
            return LogBound(log_end="latest" if offset == -1 else "earliest")
        return LogBound(offset, is_named=True)
    timestamp = point.timestamp if point.timestamps is None else point.timestamps[topic][partition]
    return LogBound(point.offset, timestamp, log_end=point.log_end, is_before_now=point.is_before_now)


def _check_names(
    logs: Sequence[BoundedLog], bound: Bound, name: str, is_excluded: Callable[[str | None, int], bool]
) -> None:
    """Raise if a bound per partition names one that is not read."""
    if bound.partitions is None:
        return
    read = {(log.topic, log.partition) for log in logs}
    numbers = {log.partition for log in logs}
    unknown = sorted(
        str(number) if topic is None else f"{topic}-{number}"
        for topic, parts in bound.partitions.items()
        for number in parts
        if (number not in numbers if topic is None else (topic, number) not in read) and not is_excluded(topic, number)
    )
    if unknown:
        present = first_names(sorted(f"{topic}-{number}" for topic, number in read if topic is not None))
        raise ValueError(f"{name} names {first_names(unknown)}, which this read does not have; there are: {present}")


def start_of(log: BoundedLog, bound: LogBound) -> int | None:
    """Return the first offset of the read of a log; None is its first record on disk."""
    if bound.log_end == "latest":
        return log.end_offset
    if bound.offset is None:
        return log.start_checkpoint
    return bound.offset if bound.offset >= 0 else count_back(bound.offset, log.end_offset, log.start_checkpoint)


def stop_of(log: BoundedLog, bound: LogBound) -> int | None:
    """Return the offset at which the read of a log ends, exclusive; None is its end."""
    if bound.log_end is not None:
        return None if bound.log_end == "latest" else log.start_offset
    if bound.offset is None or bound.offset >= 0:
        return bound.offset
    return count_back(bound.offset, log.end_offset, log.start_checkpoint)
