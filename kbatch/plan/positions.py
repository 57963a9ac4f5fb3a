"""Where an export continues: the position of each topic-partition, and how its log changed since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from kbatch.log import Log
from kbatch.plan.select import map_logs

__all__ = [
    "ANOTHER_ID",
    "ChangeKind",
    "LogChange",
    "Position",
    "Positions",
    "continued_starts",
    "known_epoch",
    "parse_positions",
    "plain_positions",
]


# Stands for the topic id of an output, also in messages, if all that is known of it is that the log's id differs.
ANOTHER_ID = "another one"


@dataclass(frozen=True, slots=True)
class Position:
    """Up to where the records of a topic-partition have been written.

    Attributes
    ----------
    next_offset : int
        The offset after the last batch that was read. Batches without records count.
    leader_epoch : int or None
        The leader epoch of that batch; None if the batch does not have one.
    topic_id : str or None
        The topic's id; None if the log has no ``partition.metadata``.

    Examples
    --------
    >>> from kbatch.plan.positions import Position
    >>> Position(100, leader_epoch=3)
    Position(next_offset=100, leader_epoch=3, topic_id=None)
    """

    next_offset: int
    leader_epoch: int | None = None
    topic_id: str | None = None


# By topic and partition.
Positions: TypeAlias = Mapping[tuple[str, int], Position]

ChangeKind = Literal["deleted", "truncated", "recreated"]


class LogChange(NamedTuple):
    """A change of a log since the last run, after which records cannot simply be added.

    Attributes
    ----------
    topic : str
    partition : int
    kind : {"deleted", "truncated", "recreated"}
        Records from the position on were deleted by retention; the log was truncated below the position, by a new
        leader or a restored copy; the topic was deleted and created again.
    position : int
        The next offset after the last run.
    resumed_at : int
        The offset at which this run resumes.
    reason : str
        A sentence with the offsets of the log.
    """

    topic: str
    partition: int
    kind: ChangeKind
    position: int
    resumed_at: int
    reason: str


def plain_positions(positions: Positions) -> list[dict[str, Any]]:
    """Return positions as plain values, for JSON."""
    return [
        {"topic": topic, "partition": partition, **asdict(each)}
        for (topic, partition), each in sorted(positions.items())
    ]


def parse_positions(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], Position]:
    """Return the positions of `plain_positions`.

    Raises
    ------
    KeyError, TypeError, ValueError
        If they do not have this form.
    """
    return {
        (str(row["topic"]), int(row["partition"])): Position(
            int(row["next_offset"]), row.get("leader_epoch"), row.get("topic_id")
        )
        for row in rows
    }


def continued_starts(logs: Sequence[Log], positions: Positions) -> tuple[list[int | None], list[LogChange]]:
    """Return the offset at which each log continues, and the changes since the last run.

    Parameters
    ----------
    logs : sequence of Log
    positions : mapping of (topic, partition) to Position

    Returns
    -------
    list of int or None
        None for a log without a position.
    list of LogChange
    """

    def start_of(log: Log) -> tuple[int | None, LogChange | None]:
        position = positions.get((log.topic or "", log.partition or 0))
        if position is None:
            return None, None
        change = _change_of(log, position)
        return (position.next_offset if change is None else change.resumed_at), change

    found = map_logs(logs, start_of, logs)
    return [start for start, _ in found], [change for _, change in found if change is not None]


def _change_of(log: Log, position: Position) -> LogChange | None:
    # Not the first batch's offset: compaction may have removed the batches before it.
    first = max(log.segments[0].base_offset or 0, log.start_checkpoint or 0)
    end, next_offset = log.end_offset, position.next_offset
    topic_id = None if log.topic_id is None else str(log.topic_id)
    kind: ChangeKind
    if position.topic_id is not None and topic_id is not None and position.topic_id != topic_id:
        kind, resumed = "recreated", first
        text = f"the topic was created again: its id was {position.topic_id}, and is now {topic_id}"
    elif end < next_offset:
        kind, resumed = "truncated", max(first, _end_of_epoch(log, position, end))
        text = f"the log was truncated: its end is now offset {end}"
    elif first > next_offset:
        kind, resumed = "deleted", first
        text = f"offsets {next_offset} to {first - 1} were deleted: the first offset available is {first}"
    else:
        epoch = _epoch_of(log, next_offset - 1)
        if epoch is None or position.leader_epoch is None or epoch == position.leader_epoch:
            return None
        kind, resumed = "truncated", max(first, _end_of_epoch(log, position, next_offset))
        text = f"the log was truncated and written again: the leader epoch of offset {next_offset - 1} was "
        text += f"{position.leader_epoch} and is now {epoch}"
    assert log.topic is not None
    assert log.partition is not None
    reason = f"{log.topic}-{log.partition}: the last run ended before offset {next_offset}, but {text} ({log.path})"
    return LogChange(log.topic, log.partition, kind, next_offset, resumed, reason)


def _epoch_of(log: Log, offset: int) -> int | None:
    """Return the leader epoch of the batch with an offset; None if compaction removed it, or it has no epoch."""
    for segment in reversed(log.segments):
        if segment.base_offset is None or segment.base_offset <= offset:
            for rows in segment.scan(segment.seek_offset(offset)):
                holds = rows["base_offset"][0] <= offset <= rows["last_offset"][0]
                return known_epoch(rows[0]) if holds else None
            return None
    return None


def known_epoch(batch: np.void) -> int | None:
    """Return the leader epoch of a batch; None if it does not have one."""
    epoch = int(batch["partition_leader_epoch"])
    return epoch if epoch >= 0 and batch["magic"] == 2 else None


def _end_of_epoch(log: Log, position: Position, limit: int) -> int:
    """Return where the batches of later leader epochs than the position's begin, at most `limit`.

    The log has the same records as before up to there: a follower truncates its log at this offset (KIP-101).
    """
    if position.leader_epoch is None:
        return limit
    for segment in reversed(log.segments):
        first = next(segment.scan(), None)
        if first is None or first["partition_leader_epoch"][0] > position.leader_epoch:
            limit = limit if first is None else min(limit, int(first["base_offset"][0]))
            continue
        for rows in segment.scan():
            later = rows["base_offset"][rows["partition_leader_epoch"] > position.leader_epoch]
            if len(later):
                return min(limit, int(later[0]))
        break
    return limit
