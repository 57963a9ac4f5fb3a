"""Turns a selection of a live cluster into ranges of offsets, and these into independent, picklable tasks.

The driver looks up offsets. A task opens its own connections, and fetches and decodes only its ranges.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from kbatch.live.broker_errors import BrokerError
from kbatch.live.cluster import LATEST, Cluster, PartitionKey
from kbatch.live.live_partitions import LivePartition, located_partitions, selected_partitions
from kbatch.live.live_ranges import LiveRange, range_tables
from kbatch.live.settings import ClientSettings
from kbatch.log.log_bounds import LogBound, start_of, stop_of
from kbatch.log.missing import MissingOffsets, report_data_loss, warn_missing
from kbatch.log.reading import TABLE_BYTES
from kbatch.log.resolving import log_bounds
from kbatch.log.row_filter import RowFilter, key_bytes
from kbatch.plan.cluster_tasks import ClusterRange, file_tables, range_decoding
from kbatch.plan.read_options import ReadOptions
from kbatch.quantities import largest, smallest
from kbatch.table import RecordTable

__all__ = ["LiveTask", "divide_ranges", "live_task_tables", "plan_live_ranges", "resolved_ranges", "times_as_offsets"]

# The ranges that a task reads: a fetched one, or those in files of one partition.
LiveTask = tuple[ClusterRange, ...]


def plan_live_ranges(cluster: Cluster, options: ReadOptions) -> list[tuple[LivePartition, LiveRange]]:
    """Return the non-empty range of offsets of each partition that the options select, by topic and number.

    Under read_committed a range ends at the last stable offset.

    Raises
    ------
    BrokerError
        If a topic does not exist. With ``fail_on_data_loss=True``, if the options name offsets that do not exist.
    ValueError
        As for directories (`kbatch.log.resolving`).
    """
    logs = located_partitions(cluster, selected_partitions(cluster, options.selection), options.isolation)
    found = resolved_ranges(cluster, logs, log_bounds(logs, options.selection), options)
    warn_missing([each for _, missing in found for each in missing])
    return [(log, each) for log, (each, _) in zip(logs, found, strict=True) if each.records]


def resolved_ranges(
    cluster: Cluster,
    logs: Sequence[LivePartition],
    bounds: Sequence[tuple[LogBound, LogBound]],
    options: ReadOptions,
) -> list[tuple[LiveRange, list[MissingOffsets]]]:
    """Return the range of offsets of each partition, which may be empty, and named offsets that do not exist.

    Errors are as for `plan_live_ranges`.
    """
    selection = options.selection
    starts = _bound_times(cluster, logs, [start for start, _ in bounds], options)
    stops = _bound_times(cluster, logs, [stop for _, stop in bounds], options)
    pruned = _pruned_starts(cluster, logs, options)
    ends = _named_ends(cluster, logs, [stop for _, stop in bounds], options)
    ranges = []
    for log, (starting, ending), since_start, until, first, end in zip(
        logs, bounds, starts, stops, pruned, ends, strict=True
    ):
        of_topic = options._for_topic(log.topic)
        start = _start(log, starting, since_start, of_topic)
        stop = smallest(stop_of(log, ending), until)
        stop = log.end_offset if stop is None else stop
        missing = _missing_named(log, starting, ending, (start, stop), end, of_topic)
        low, high = selection.prune.offset.low, selection.prune.offset.high
        stop = smallest(stop, log.end_offset, None if high is None else high + 1) or 0
        begin = largest(start, log.start_offset, *(() if of_topic.on_error == "stop" else (low, first))) or 0
        is_first = begin == log.start_offset and not starting.is_named
        planned = LiveRange(log.metadata.name, log.number, log.metadata.id, log.end_epoch, begin, stop, is_first)
        ranges.append((planned, missing))
    return ranges


def divide_ranges(ranges: Sequence[LiveRange], options: ReadOptions) -> list[LiveRange]:
    """Divide ranges by ``minPartitions`` and ``maxRecordsPerPartition``, as Spark's Kafka source does.

    By default, and always with ``on_error="stop"``, no range is divided: only the reader of a whole range knows where
    it stops.

    Returns
    -------
    list of LiveRange
        Joined in order, they have each offset of the ranges exactly once.
    """
    found = [each for each in ranges if each.records]
    if options.on_error == "stop":
        return found
    if (limit := options.max_records_per_partition) is not None:
        found = [part for each in found for part in _range_parts(each, math.ceil(each.records / limit))]
    minimum = options.min_partitions
    if minimum is not None and minimum > len(found):
        total = sum(each.records for each in found)
        # Ranges that are too small to be divided do not reduce the share of the others.
        is_small = [_share(each, total, minimum) == 1 for each in found]
        rest = sum(each.records for each, small in zip(found, is_small, strict=True) if not small)
        tasks = max(minimum - sum(is_small), 1)
        found = [
            part
            for each, small in zip(found, is_small, strict=True)
            for part in _range_parts(each, 1 if small else _share(each, rest, tasks))
        ]
    return found


def live_task_tables(
    settings: ClientSettings,
    task: LiveTask,
    options: ReadOptions,
    columns: tuple[str, ...] | None = None,
    missing: list[MissingOffsets] | None = None,
) -> Iterator[tuple[LiveRange, RecordTable]]:
    """Fetch and decode the ranges of a task, as `kbatch.plan.tasks.task_tables` reads splits of files.

    Those that are in files of the history are read from there, and fetched if they cannot be read.

    Parameters
    ----------
    settings : ClientSettings
    task : tuple of ClusterRange
    options : ReadOptions
        With the options of the file system of the history.
    columns : tuple of str, optional
        The columns of the records that the caller uses, from `kbatch.records.kafka_columns.SPARK_COLUMNS`.
    missing : list of MissingOffsets, optional
        With ``fail_on_data_loss=False``, missing offsets are appended to it.

    Yields
    ------
    LiveRange, RecordTable

    Raises
    ------
    BrokerError, AuthenticationError
    KbatchError
        For damage.
    """
    rows = RowFilter(keys=key_bytes(options.key))
    decode = range_decoding(options, columns, rows)
    with Cluster(settings) as cluster:

        def fetched(parts: Sequence[LiveRange]) -> Iterator[tuple[LiveRange, RecordTable]]:
            fails = options.fail_on_data_loss
            return range_tables(cluster, parts, decode, rows=rows, max_bytes=TABLE_BYTES, fails=fails, missing=missing)

        yield from file_tables((each for each in task if each.is_history), options, columns, options.storage, fetched)
        if rest := [each for each in task if not each.is_history]:
            yield from fetched(rest)


# -- bounds


def times_as_offsets(
    cluster: Cluster, logs: Sequence[LivePartition], times: Sequence[int | None], options: ReadOptions
) -> list[int | None]:
    """Return the offset of the first record of each partition at or after a time; None if there is none."""
    # A record without a timestamp has -1, and brokers interpret negative numbers as the ends of the log.
    wanted: dict[PartitionKey, int] = {
        (log.metadata.name, log.number): time
        for log, time in zip(logs, times, strict=True)
        if time is not None and time >= 0
    }
    found = cluster.offsets(wanted, isolation=options.isolation) if wanted else {}
    return [
        log.start_offset if time is not None and time < 0 else found.get((log.metadata.name, log.number))
        for log, time in zip(logs, times, strict=True)
    ]


def _bound_times(
    cluster: Cluster, logs: Sequence[LivePartition], bounds: Sequence[LogBound], options: ReadOptions
) -> list[int | None]:
    return times_as_offsets(cluster, logs, [bound.timestamp for bound in bounds], options)


def _pruned_starts(cluster: Cluster, logs: Sequence[LivePartition], options: ReadOptions) -> list[int | None]:
    """Return the first offset of each partition that a condition on the time does not exclude; None without one."""
    since = options.selection.prune.since
    if since is None or options.on_error == "stop":
        return [None] * len(logs)
    found = _bound_times(cluster, logs, [LogBound(timestamp=since)] * len(logs), options)
    return [log.end_offset if each is None else each for log, each in zip(logs, found, strict=True)]


def _start(log: LivePartition, starting: LogBound, found: int | None, options: ReadOptions) -> int:
    """Return the first offset to read; `found` is the offset of the starting time."""
    by_time = starting.timestamp is not None and starting.offset is None
    start = None if by_time else start_of(log, starting)
    start = log.start_offset if start is None else start
    if starting.timestamp is None:
        return start
    if found is None and not options.latest_if_no_timestamp:
        raise ValueError(
            f"{log.topic}-{log.number}: no record at or after timestamp {starting.timestamp}; with "
            "startingOffsetsByTimestampStrategy=latest reads nothing from such a partition"
        )
    # Records that were written after the end was listed are not read.
    return log.end_offset if found is None else max(start, min(found, log.end_offset))


def _named_ends(
    cluster: Cluster, logs: Sequence[LivePartition], endings: Sequence[LogBound], options: ReadOptions
) -> list[int]:
    """Return the high watermarks of partitions with a named offset beyond the last stable offset."""
    beyond: list[PartitionKey] = []
    if options.isolation == "read_committed":
        beyond = [
            (log.metadata.name, log.number)
            for log, bound in zip(logs, endings, strict=True)
            if bound.is_named and bound.offset is not None and bound.offset > log.end_offset
        ]
    found = cluster.offsets(dict.fromkeys(beyond, LATEST)) if beyond else {}
    return [found.get((log.metadata.name, log.number)) or log.end_offset for log in logs]


def _missing_named(
    log: LivePartition,
    starting: LogBound,
    ending: LogBound,
    resolved: tuple[int, int],
    end: int,
    options: ReadOptions,
) -> list[MissingOffsets]:
    """Return the named offsets that do not exist; raise if the options do not allow this."""
    name = f"{log.topic}-{log.number}"
    first = starting.offset if starting.is_named and starting.offset is not None else resolved[0]
    last = ending.offset if ending.is_named and ending.offset is not None else resolved[1]
    if _is_given(starting) and _is_given(ending) and first > last:
        raise ValueError(f"{name}: the starting offset {first} is greater than the ending offset {last}")
    asked: list[tuple[str, int, int | None]] = []
    if starting.is_named and first < log.start_offset and first < last:
        asked.append((f"offset {first}", first, min(log.start_offset, last) - 1))
    elif starting.is_named and first > end:
        asked.append((f"offset {first}", first, None))
    elif ending.is_named and last > end:
        asked.append((f"offsets below {last}", max(first, end), last - 1))
    available = f"the first one available is {log.start_offset} and the last one {end - 1}"
    if log.start_offset >= end:
        available = f"no offset is available, and the next one will be {end}"
    missing = [
        MissingOffsets(log.topic, log.number, low, high, f"{name}: the read asks for {text}, but {available}")
        for text, low, high in asked
    ]
    if missing and options.fail_on_data_loss:
        report_data_loss(missing[0].reason, fails=True, kind=BrokerError)
    return missing


def _is_given(bound: LogBound) -> bool:
    """Whether a bound sets where this partition begins or ends, by its own offset or by a time."""
    return bound.is_named or (bound.timestamp is not None and bound.offset is None)


# -- division


def _share(each: LiveRange, total: int, tasks: int) -> int:
    """Return the number of tasks in proportion to the offsets of a range, rounded half up."""
    return max(math.floor(each.records / total * tasks + 0.5), 1)


def _range_parts(whole: LiveRange, count: int) -> Iterator[LiveRange]:
    """Yield parts of a range with equal numbers of offsets, as far as possible."""
    start = whole.start
    for number in range(count):
        stop = start + (whole.stop - start) // (count - number)
        if start < stop:
            is_first = whole.may_begin_later and start == whole.start
            yield LiveRange(whole.topic, whole.partition, whole.topic_id, whole.leader_epoch, start, stop, is_first)
        start = stop
