"""Offsets that a read asks for and its logs do not have: data loss, which is an error or is reported.

The rules are those of Spark's Kafka source (``KafkaDataConsumer``, ``failOnDataLoss``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from kbatch.errors import KbatchError, LogDirectoryError
from kbatch.escaping import printable
from kbatch.log.logs import Log
from kbatch.log.store.storage import is_url
from kbatch.public_names import public_in

__all__ = ["MissingOffsets", "is_gone", "missing_offsets", "report_data_loss", "retry_if_gone", "warn_missing"]

_HINT = (
    "Some data may have been lost: it was removed before it was read, by retention, a truncation or the deletion of "
    "the topic. option('failOnDataLoss', 'false') (kbatch export: --allow-missing-offsets) continues with the data "
    "that remains"
)

ValueT = TypeVar("ValueT")


@public_in("kbatch.log")
class MissingOffsets(NamedTuple):
    """A range of offsets that a read asks for and that the log does not have.

    Attributes
    ----------
    topic, partition
        Of the log; None if its directory has no such name.
    first_offset : int
    last_offset : int or None
        None if the read asks for all records from `first_offset` on, and the log ends before it.
    reason : str
        A sentence with the offset that the read asks for, and the first and last one available.

    Examples
    --------
    >>> from kbatch.log import MissingOffsets
    >>> gap = MissingOffsets("orders", 0, 17, 19, "offset 17 was deleted by retention")
    >>> gap.last_offset - gap.first_offset + 1
    3
    """

    topic: str | None
    partition: int | None
    first_offset: int
    last_offset: int | None
    reason: str


def missing_offsets(log: Log, start: int | None, stop: int | None) -> list[MissingOffsets]:
    """Return the offsets from `start` up to `stop` (exclusive) outside of the log; None is its own end on that side.

    Offsets that compaction or transactions removed within the log are not missing (DSK-R13). Neither are offsets at a
    damaged end, whose records are losses.
    """
    if start is None and stop is None:
        return []
    first, last = log.segments[0].base_offset, log.segments[-1].base_offset
    first = log.start_offset if first is None else first
    found = []
    if start is not None and start < first and (stop is None or start < stop):
        found.append(
            _missing(log, start, first if stop is None else min(first, stop), f"offset {start}", first, log.end_offset)
        )
    # Both ends of the log are in the last segment, which is read only if an offset may be beyond the end.
    furthest = max(start or 0, stop or 0)
    if furthest > (first if last is None else last) and log.incomplete_tail.kind != "damaged":
        end = log.end_offset
        if stop is None and start is not None and start > end:
            found.append(_missing(log, start, None, f"offset {start}", first, end))
        elif stop is not None and stop > end and (start is None or start < stop):
            found.append(_missing(log, max(start or 0, end), stop, f"offsets below {stop}", first, end))
    return found


def _missing(log: Log, start: int, stop: int | None, asked: str, first: int, end: int) -> MissingOffsets:
    name = log.path if log.topic is None else f"{log.topic}-{log.partition}"
    available = (
        f"the first one available is {first} and the last one {end - 1}"
        if first < end
        else f"no offset is available, and the next one will be {end}"
    )
    reason = f"{name}: the read asks for {asked}, but {available} ({log.path})"
    return MissingOffsets(log.topic, log.partition, start, None if stop is None else stop - 1, reason)


def warn_missing(missing: list[MissingOffsets]) -> None:
    """Log a warning for each range."""
    for each in missing:
        report_data_loss(each.reason, fails=False)


def report_data_loss(message: str, *, fails: bool, kind: type[KbatchError] = LogDirectoryError) -> None:
    """Raise an error for lost data if `fails`, else log a warning.

    Raises
    ------
    LogDirectoryError
        Or an error of another `kind`.
    """
    if fails:
        raise kind(f"{message}. {_HINT}")
    logging.getLogger(__name__).warning("%s", printable(message))


def is_gone(error: LogDirectoryError) -> bool:
    """Whether a file of a log could not be read because it no longer exists."""
    if isinstance(error.__cause__, FileNotFoundError):
        return True
    return error.source is not None and not is_url(error.source) and not os.path.exists(error.source)


def retry_if_gone(function: Callable[[], ValueT]) -> ValueT:
    """Call a function that lists logs, and again if a segment was deleted or renamed meanwhile."""
    for _ in range(3):
        try:
            return function()
        except LogDirectoryError as error:
            if not is_gone(error):
                raise
    return function()
