"""The bounds of a read as offsets: a start and a stop for each log."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from kbatch.log import Log
from kbatch.log.ranges import count_back
from kbatch.log.topics import first_names
from kbatch.plan.missing import MissingOffsets, missing_offsets, report_data_loss, warn_missing
from kbatch.plan.read_options import Bound, PerPartition, ReadOptions
from kbatch.plan.select import map_logs

__all__ = ["check_bounds", "check_partitions", "resolve_bounds", "resolve_log"]


def resolve_bounds(
    logs: Sequence[Log], options: ReadOptions, missing: list[MissingOffsets] | None = None
) -> list[tuple[int | None, int | None]]:
    """Turn the bounds of a read into a start and a stop offset for each log; None is the log's own end on that side.

    A timestamp becomes the offset of the first record with it or a later one, as in Spark's Kafka source
    (`Log.offset_for_timestamp`). Records between two such offsets may have timestamps outside the range.

    Parameters
    ----------
    logs : sequence of Log
    options : ReadOptions
    missing : list of MissingOffsets, optional
        With ``fail_on_data_loss=False``, the offsets that the options name and the logs do not have are appended to it.
        Without it they are logged as warnings.

    Raises
    ------
    LogDirectoryError
        With ``fail_on_data_loss=True``, if the options name offsets that a log does not have.
    ValueError
        If offsets or timestamps are given per partition and do not name the partitions that are read, or no record has
        a starting timestamp or a later one.
    """
    check_bounds(logs, options)
    resolved = map_logs(logs, lambda log: resolve_log(log, options), logs)
    found = [each for _, ranges in resolved for each in ranges]
    if missing is None:
        warn_missing(found)
    else:
        missing += found
    return [bounds for bounds, _ in resolved]


def check_partitions(
    side: str,
    given: PerPartition | None,
    read: Set[tuple[str | None, int | None]],
    options: ReadOptions,
) -> None:
    """Raise if offsets or timestamps per partition do not name exactly the partitions that are read."""
    if given is None:
        return
    named = {(topic, number) for topic, numbers in given.items() for number in numbers}
    unknown = {name for name in named - read if not options.leaves_out(*name)}
    for text, names in (("missing", read - named), ("unknown", unknown)):
        if names:
            listed = first_names(sorted(f"{topic}-{number}" for topic, number in names))
            raise ValueError(f"{side} offsets must name exactly the partitions that are read; {text}: {listed}")


def check_bounds(logs: Sequence[Log], options: ReadOptions) -> None:
    """Raise if offsets or timestamps per partition do not name the partitions that are read.

    Raises
    ------
    ValueError
    """
    read = {(log.topic, log.partition) for log in logs}
    for side, bound in (("starting", options.starting), ("ending", options.ending)):
        check_partitions(side, bound.offsets if bound.offsets is not None else bound.timestamps, read, options)


def resolve_log(log: Log, options: ReadOptions) -> tuple[tuple[int | None, int | None], list[MissingOffsets]]:
    """Return the start and the stop of one log, as `resolve_bounds`, and the offsets that it does not have."""
    bounds = _resolve(log, options)
    return bounds, _missing_of(log, bounds, options)


def _resolve(log: Log, options: ReadOptions) -> tuple[int | None, int | None]:
    # The earliest offset is the log start offset of the broker; the files may hold earlier records (DSK-R13).
    start = _offset_of(log, options.starting)
    if start is None or start < 0:
        start = log.start_checkpoint
    stop = _offset_of(log, options.ending)
    if stop is not None and stop < 0:
        stop = None
    since, until = _timestamp_of(log, options.starting), _timestamp_of(log, options.ending)
    if since is not None:
        start = log.offset_for_timestamp(since, crc=options.crc, on_error=options.on_error)
        if start is None and not options.latest_if_no_timestamp:
            raise ValueError(
                f"{log.path}: no record at or after timestamp {since}; with "
                "startingOffsetsByTimestampStrategy=latest reads nothing from such a partition"
            )
        if start is None:
            start = log.end_offset
    if until is not None:
        # The first record at or after a later timestamp cannot precede the start: search from there.
        later = since is not None and since <= until
        stop = log.offset_for_timestamp(
            until, start_offset=start if later else None, crc=options.crc, on_error=options.on_error
        )
    first, end = (_counted(log, bound.offset) for bound in (options.starting, options.ending))
    if first is not None:
        start = first if since is None else max(first, start or 0)
    if end is not None:
        stop = end if stop is None else min(end, stop)
    return _pruned(log, start, stop, options)


def _pruned(log: Log, start: int | None, stop: int | None, options: ReadOptions) -> tuple[int | None, int | None]:
    """Narrow the bounds to the offsets that ``options.prune`` does not exclude."""
    prune = options.prune
    if prune.offset.high is not None:
        stop = prune.offset.high + 1 if stop is None else min(stop, prune.offset.high + 1)
    # The read must see the damage at which it stops.
    if options.on_error == "stop":
        return start, stop
    if prune.offset.low is not None:
        start = prune.offset.low if start is None else max(start, prune.offset.low)
    if prune.since is not None:
        # An integer far from the present would give a warning.
        since = np.datetime64(prune.since, "ms")
        found = log.offset_for_timestamp(since, start_offset=start, crc=options.crc, on_error=options.on_error)
        start = log.end_offset if found is None else found if start is None else max(start, found)
    return start, stop


def _counted(log: Log, offset: int | None) -> int | None:
    """Return an offset for every partition; a negative one counts back from the end of this one."""
    return offset if offset is None or offset >= 0 else count_back(offset, log.end_offset, log.start_checkpoint)


def _missing_of(log: Log, bounds: tuple[int | None, int | None], options: ReadOptions) -> list[MissingOffsets]:
    """Return the offsets that the options name and the log does not have; raise if the options refuse that."""
    given = [_offset_of(log, bound) for bound in (options.starting, options.ending)]
    start, stop = (None if each is None or each < 0 else each for each in given)
    if start is not None and stop is not None and start > stop:
        raise ValueError(f"{log.path}: the starting offset {start} is greater than the ending offset {stop}")
    if start is None and stop is None:
        return []
    missing = missing_offsets(log, bounds[0] if start is None else start, bounds[1] if stop is None else stop)
    if missing and options.fail_on_data_loss:
        report_data_loss(missing[0].reason, fails=True)
    return missing


def _offset_of(log: Log, bound: Bound) -> int | None:
    return None if bound.offsets is None else bound.offsets[log.topic or ""][log.partition or 0]


def _timestamp_of(log: Log, bound: Bound) -> int | None:
    if bound.timestamps is not None:
        return bound.timestamps[log.topic or ""][log.partition or 0]
    return bound.timestamp
