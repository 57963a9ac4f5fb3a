"""The position of each topic-partition, where an export continues, and the changes of its log since."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from kbatch.batches.checksums import has_good_batch
from kbatch.errors import KbatchError
from kbatch.escaping import printable
from kbatch.log import Log, Segment
from kbatch.log.gaps import are_rewritten, cleaner_checkpoint
from kbatch.log.reading import read_tables
from kbatch.log.selection import map_logs
from kbatch.log.topics import first_names
from kbatch.read.decode_options import DecodeOptions
from kbatch.table import RecordTable
from kbatch.tuning import SMALL_TABLE_BYTES

__all__ = [
    "CHECKSUM_BITS",
    "ChangeKind",
    "LogChange",
    "Position",
    "Positions",
    "batch_with",
    "changed_identity",
    "checksum_bits",
    "continued_starts",
    "known_epoch",
    "parse_positions",
    "plain_positions",
    "record_checksum",
    "report_unrecognized",
]

# In a Delta table, two checksums and a leader epoch are one number. With this size, the probability that a recreated
# log has one of the checksums of the former log is 1 in 8 million.
CHECKSUM_BITS = 24


@dataclass(frozen=True, slots=True)
class Position:
    """The offset up to which the records of a topic-partition have been written, with the identity of its log.

    A log without a topic id is recognized by the batch and the record before the position. A rewritten batch
    (compaction, recompression, another magic) has another checksum, but contains the same record.

    Attributes
    ----------
    next_offset : int
        The offset after the last batch that was read. Batches without records count.
    leader_epoch : int or None
        The leader epoch of that batch; None if the batch does not have one.
    topic_id : str or None
        The topic's id; None if the log has no ``partition.metadata``.
    batch_crc : int or None
        The checksum in the header of the batch with the offset before `next_offset`, or its `checksum_bits`; None if
        no batch had this offset.
    record_crc : int or None
        The `record_checksum` of the record with this offset; None if no such record was read.

    Examples
    --------
    >>> from kbatch.plan.positions import Position
    >>> Position(100, leader_epoch=3)
    Position(next_offset=100, leader_epoch=3, topic_id=None, batch_crc=None, record_crc=None)
    """

    next_offset: int
    leader_epoch: int | None = None
    topic_id: str | None = None
    batch_crc: int | None = None
    record_crc: int | None = None

    def changed_id(self, topic_id: str | None) -> str:
        """Return why a topic with this id is another topic, or "" if it may be the same."""
        if None in (self.topic_id, topic_id) or self.topic_id == topic_id:
            return ""
        return f"the topic was recreated: its id was {self.topic_id}, and is now {topic_id}"


# By topic and partition.
Positions: TypeAlias = Mapping[tuple[str, int], Position]

ChangeKind = Literal["deleted", "truncated", "recreated"]


class LogChange(NamedTuple):
    """A change of a log since the last run that prevents a simple continuation.

    Attributes
    ----------
    topic : str
    partition : int
    kind : {"deleted", "truncated", "recreated"}
        "deleted": retention deleted records from the position on. "truncated": the log was truncated below the
        position, by a new leader or a restored copy. "recreated": the topic, or its log, was recreated.
    position : int
        The next offset after the last run.
    resumed_at : int
        The offset at which this run resumes.
    reason : str
        A sentence that names the offsets of the log.
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
    """Return positions from the result of `plain_positions`.

    Raises
    ------
    KeyError, TypeError, ValueError
        If the values do not have this form.
    """
    return {
        (str(row["topic"]), int(row["partition"])): Position(
            int(row["next_offset"]),
            *(row.get(name) for name in ("leader_epoch", "topic_id", "batch_crc", "record_crc")),
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
    unrecognized: list[str] = []

    def start_of(log: Log) -> tuple[int | None, LogChange | None]:
        position = positions.get((log.topic or "", log.partition or 0))
        if position is None:
            return None, None
        change = _change_of(log, position, unrecognized)
        return (position.next_offset if change is None else change.resumed_at), change

    found = map_logs(logs, start_of, logs)
    report_unrecognized(unrecognized)
    return [start for start, _ in found], [change for _, change in found if change is not None]


def report_unrecognized(names: Sequence[str]) -> None:
    """Log a warning that names the topic-partitions whose logs cannot be recognized."""
    if names:
        logging.getLogger(__name__).warning(
            "what was read last of %s is not there unchanged, because of compaction or damage, and the topic's id is "
            "unknown: if these are not the logs of the last run, records are missing",
            printable(first_names(sorted(names))),
        )


def _change_of(log: Log, position: Position, unrecognized: list[str]) -> LogChange | None:
    # Not the offset of the first batch: compaction may have removed earlier batches.
    first = max(log.segments[0].base_offset or 0, log.start_checkpoint or 0)
    end, next_offset = log.end_offset, position.next_offset
    topic_id = None if log.topic_id is None else str(log.topic_id)
    kind: ChangeKind
    name = f"{log.topic}-{log.partition}"
    if text := position.changed_id(topic_id):
        kind, resumed = "recreated", first
    elif end < next_offset:
        kind, resumed = "truncated", max(first, _end_of_epoch(log, position, end))
        text = f"the log was truncated: its end is now offset {end}"
    elif first > next_offset:
        kind, resumed = "deleted", first
        text = f"offsets {next_offset} to {first - 1} were deleted: the first offset available is {first}"
    else:
        found = batch_with(log, next_offset - 1)
        epoch = None if found is None else known_epoch(found[1])
        if epoch is not None and position.leader_epoch is not None and epoch > position.leader_epoch:
            kind, resumed = "truncated", max(first, _end_of_epoch(log, position, next_offset))
            text = f"the log was truncated and written again: the leader epoch of offset {next_offset - 1} was "
            text += f"{position.leader_epoch} and is now {epoch}"
        else:
            changed = changed_identity(log, position, found)
            if changed is None:
                unrecognized.append(name)
            if not changed:
                return None
            kind, resumed, text = "recreated", first, changed
    assert log.topic is not None
    assert log.partition is not None
    reason = f"{name}: the last run ended before offset {next_offset}, but {text} ({log.path})"
    return LogChange(log.topic, log.partition, kind, next_offset, resumed, reason)


# -- recognition of a log


def batch_with(log: Log, offset: int) -> tuple[Segment, np.void] | None:
    """Return the row of the batch with an offset, and its segment; None if no batch has the offset."""
    for segment in reversed(log.segments):
        if segment.base_offset is None or segment.base_offset <= offset:
            for rows in segment.scan(segment.seek_offset(offset)):
                holds = rows["base_offset"][0] <= offset <= rows["last_offset"][0]
                return (segment, rows[0]) if holds else None
            return None
    return None


def changed_identity(log: Log, position: Position, found: tuple[Segment, np.void] | None) -> str | None:
    """Return why a log is not the log of a position, or "" if it is the same log.

    Parameters
    ----------
    log : Log
        A log without a different topic id, which has the offset before the position within its bounds.
    position : Position
    found : (Segment, row) or None
        The batch with that offset, by `batch_with`.

    Returns
    -------
    str or None
        None if the log cannot be recognized: compaction has removed the record or rewritten its batch, or the batch is
        damaged, and the topic's id is unknown.
    """
    offset = position.next_offset - 1
    epoch = None if found is None else known_epoch(found[1])
    if epoch is not None and position.leader_epoch is not None and epoch < position.leader_epoch:
        # Leader epochs ascend within a log.
        before = position.leader_epoch
        return f"the log was recreated: the leader epoch of offset {offset} was {before} and is now {epoch}"
    if position.batch_crc is None:
        return ""
    is_known = position.topic_id is not None and log.topic_id is not None
    unknown = "" if is_known else None
    if found is None:
        # If retention has removed it too, the log begins at the position, so no earlier records are missing.
        return "" if (log.segments[0].base_offset or 0) > offset else unknown
    segment, row = found
    crc = int(row["crc"])
    if checksum_bits(crc) == checksum_bits(position.batch_crc):
        return ""
    with segment.open() as file:
        if not has_good_batch(file, row):
            return unknown
    if position.record_crc is not None:
        record = _record_with(segment, row, offset)
        if record is None:
            return unknown
        if record == position.record_crc:
            return ""
        return f"the log was recreated: the record with offset {offset} is another one"
    if are_rewritten(row) or cleaner_checkpoint(segment) > offset:
        return unknown
    return (
        f"the log was recreated: the checksum of the batch with offset {offset} was another one than {crc}, and "
        "nothing shows that compaction has rewritten it"
    )


def checksum_bits(crc: int) -> int:
    """Return the bits of a checksum that identify a log: the last 24, and never 0."""
    return (crc & (1 << CHECKSUM_BITS) - 1) or 1


def record_checksum(table: RecordTable, row: int) -> int:
    """Return a checksum of the offset, timestamp, key and value of a record; 24 bits, and never 0.

    Headers are excluded, because a log that was converted to an older magic has none.
    """
    record = table.records[row]
    crc = 0
    for name in ("offset", "timestamp", "key_len", "value_len"):
        crc = zlib.crc32(int(record[name]).to_bytes(8, "big", signed=True), crc)
    for name in ("key", "value"):
        start = int(record[f"{name}_pos"])
        crc = zlib.crc32(table.data[start : start + max(0, int(record[f"{name}_len"]))].data, crc)
    return checksum_bits(crc)


def _record_with(segment: Segment, row: np.void, offset: int) -> int | None:
    """Return the checksum of the record of a batch with an offset; None if the record is missing or unreadable."""
    start, size = int(row["position"]), int(row["size"])
    options = DecodeOptions(on_error="raise", columns=("offset", "timestamp", "key", "value"))
    try:
        for table in read_tables(segment, start, start + size, options, SMALL_TABLE_BYTES):
            at = int(np.searchsorted(table.records["offset"], offset))
            if at < len(table.records) and table.records["offset"][at] == offset:
                return record_checksum(table, at)
    except KbatchError:
        return None
    return None


def known_epoch(batch: np.void) -> int | None:
    """Return the leader epoch of a batch; None if it does not have one."""
    epoch = int(batch["partition_leader_epoch"])
    return epoch if epoch >= 0 and batch["magic"] == 2 else None


def _end_of_epoch(log: Log, position: Position, limit: int) -> int:
    """Return the first offset of batches with a later leader epoch than the position's, at most `limit`.

    Up to this offset, the log has the same records as before: a follower truncates its log there (KIP-101).
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
