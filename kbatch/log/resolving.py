"""The bounds of a read as offsets: a start and a stop for each log."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from kbatch.bounds import PerPartition, Pruning
from kbatch.log.log_bounds import BoundedLog, LogBound, bounds_by_log, start_of, stop_of
from kbatch.log.logs import Log
from kbatch.log.missing import MissingOffsets, missing_offsets, report_data_loss
from kbatch.log.selection import Selection
from kbatch.log.topics import first_names
from kbatch.quantities import largest, smallest

__all__ = ["check_partitions", "log_bounds", "resolve_log"]


def log_bounds(logs: Sequence[BoundedLog], selection: Selection) -> list[tuple[LogBound, LogBound]]:
    """Return where the read of each log begins and ends.

    Raises
    ------
    ValueError
        If offsets or timestamps are given per partition and do not name the partitions that are read.
    """
    read = {(log.topic, log.partition) for log in logs}
    sides = []
    for side, bound in (("starting", selection.starting), ("ending", selection.ending)):
        check_partitions(side, bound.offsets if bound.offsets is not None else bound.timestamps, read, selection)
        sides.append(bounds_by_log(logs, bound, side, selection.leaves_out))
    return list(zip(*sides, strict=True))


def check_partitions(
    side: str,
    given: PerPartition | None,
    read: Set[tuple[str | None, int | None]],
    selection: Selection,
) -> None:
    """Raise if offsets or timestamps per partition do not name exactly the partitions that are read."""
    if given is None:
        return
    named = {(topic, number) for topic, numbers in given.items() for number in numbers}
    unknown = {name for name in named - read if not selection.leaves_out(*name)}
    for text, names in (("missing", read - named), ("unknown", unknown)):
        if names:
            listed = first_names(sorted(f"{topic}-{number}" for topic, number in names))
            raise ValueError(f"{side} offsets must name exactly the partitions that are read; {text}: {listed}")


def resolve_log(
    log: Log, starting: LogBound, ending: LogBound, selection: Selection, prune: Pruning | None = None
) -> tuple[tuple[int | None, int | None], list[MissingOffsets]]:
    """Return the start and the stop of the read of one log, and the named offsets that the log does not have.

    A timestamp becomes the offset of the first record with it or a later one, as in Spark's Kafka source
    (`Log.offset_for_timestamp`). Records between two such offsets may have timestamps outside the range.

    Parameters
    ----------
    log : Log
    starting, ending : LogBound
    selection : Selection
        What is excluded from this range, and how to treat damage and missing offsets.
    prune : Pruning, optional
        What is excluded of this log, instead of ``selection.prune``.

    Returns
    -------
    (start, stop) : int or None
        None is the log's own end on that side.
    list of MissingOffsets

    Raises
    ------
    LogDirectoryError
        With ``fail_on_data_loss=True``, if the bounds name offsets that a log does not have.
    ValueError
        If no record has a starting timestamp or a later one.
    """
    # The earliest offset is the log start offset of the broker; the files may hold earlier records (DSK-R13).
    by_time = starting.timestamp is not None and starting.offset is None
    start, stop = None if by_time else start_of(log, starting), stop_of(log, ending)
    since, until = starting.timestamp, ending.timestamp
    earliest = None
    if since is not None:
        earliest = _first_since(log, since, None, selection)
        if earliest is None and not selection.latest_if_no_timestamp:
            raise ValueError(
                f"{log.path}: no record at or after timestamp {since}; with "
                "startingOffsetsByTimestampStrategy=latest reads nothing from such a partition"
            )
        earliest = log.end_offset if earliest is None else earliest
        start = largest(start, earliest)
    if until is not None:
        # The first record at or after a later timestamp cannot precede the one of the start: search from there.
        later = since is not None and since <= until
        stop = smallest(stop, _first_since(log, until, earliest if later else None, selection))
    start, stop = _pruned(log, start, stop, selection, selection.prune if prune is None else prune)
    return (start, stop), _missing_of(log, starting, ending, start, stop, selection)


def _first_since(log: Log, timestamp: int, start: int | None, selection: Selection) -> int | None:
    # An integer far from the present would give a warning, which its caller got when it was parsed.
    since = np.datetime64(timestamp, "ms")
    return log.offset_for_timestamp(since, start_offset=start, crc=selection.crc, on_error=selection.on_error)


def _pruned(
    log: Log, start: int | None, stop: int | None, selection: Selection, prune: Pruning
) -> tuple[int | None, int | None]:
    """Narrow the bounds to the offsets that a condition does not exclude."""
    if prune.offset.high is not None:
        stop = smallest(stop, prune.offset.high + 1)
    # The read must see the damage at which it stops.
    if selection.on_error == "stop":
        return start, stop
    start = largest(start, prune.offset.low)
    if prune.since is not None:
        found = _first_since(log, prune.since, start, selection)
        start = log.end_offset if found is None else largest(start, found)
    return start, stop


def _missing_of(
    log: Log, starting: LogBound, ending: LogBound, start: int | None, stop: int | None, selection: Selection
) -> list[MissingOffsets]:
    """Return the named offsets that the log does not have; raise if the selection refuses that."""
    if not (starting.is_named or ending.is_named):
        return []
    first, last = (
        bound.offset if bound.is_named else resolved for bound, resolved in ((starting, start), (ending, stop))
    )
    if starting.is_named and ending.is_named and first is not None and last is not None and first > last:
        raise ValueError(f"{log.path}: the starting offset {first} is greater than the ending offset {last}")
    missing = missing_offsets(log, first, last)
    if missing and selection.fail_on_data_loss:
        report_data_loss(missing[0].reason, fails=True)
    return missing
