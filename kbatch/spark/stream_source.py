"""``spark.readStream.format("kbatch")``: log directories that a broker is still writing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from kbatch.batches.framing import first_offsets
from kbatch.errors import LogDirectoryError
from kbatch.format import INT64_MAX
from kbatch.log import Log
from kbatch.log.missing import report_data_loss, retry_if_gone
from kbatch.log.resolving import check_partitions
from kbatch.log.segment import inode_of, planned_segment
from kbatch.log.store.names import parse_segment_name
from kbatch.plan.arrow_batches import Transform, transformed_batches
from kbatch.plan.following import FollowedLog, check_markers, followed
from kbatch.plan.positions import Position, batch_with, changed_identity, report_unrecognized
from kbatch.plan.read_options import EARLIEST, LATEST, ReadOptions
from kbatch.plan.split import Split, Task, divide_splits, good_row, log_splits
from kbatch.plan.tasks import task_options, task_tables
from kbatch.plan.trigger_limits import bytes_between, bytes_from, offset_after_bytes, offset_after_records, shares
from kbatch.plan.watching import LogState, TopicPartition, WatchedLogs, open_log
from kbatch.spark.micro_batches import MicroBatchReader, partition_name
from kbatch.spark.source_api import InputPartition
from kbatch.spark.stream_offsets import BYTES, MISSING, Offsets, Places
from kbatch.spark.stream_options import StreamReadOptions
from kbatch.table import RecordTable
from kbatch.transactions import Transactions

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KbatchStreamReader"]

# How often a task looks up records whose file was replaced meanwhile.
_READ_ATTEMPTS = 10


class KbatchStreamReader(MicroBatchReader):
    """Follows logs from micro-batch to micro-batch.

    Parameters
    ----------
    paths : list of str
        Directories to watch, on a file system that the driver and the executors have mounted.
    options : StreamReadOptions
    columns : tuple of str
    values : Transform, optional
        Applied to each Arrow batch.
    """

    def __init__(
        self, paths: list[str], options: StreamReadOptions, columns: tuple[str, ...], values: Transform | None = None
    ) -> None:
        super().__init__(options, columns, values)
        self.paths = paths
        self._watched: WatchedLogs | None = None
        self._followed: dict[TopicPartition, FollowedLog] = {}
        self._stable: dict[TopicPartition, tuple[tuple[object, ...], int | None]] = {}
        self._states: dict[TopicPartition, LogState] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a pickled reader, and all of them the same one: without the state, which grows with the logs.
        options = replace(self.options, read=task_options(self.options.read), starting=LATEST)
        return KbatchStreamReader(self.paths, options, self.columns, self.values).__dict__

    # -- methods that Spark calls

    def _tasks(self, begin: Places, until: Places) -> Sequence[tuple[Split, ...]]:
        return retry_if_gone(lambda: self._plan(begin, until))

    def _plan(self, begin: Places, until: Places) -> list[tuple[Split, ...]]:
        gone = sorted(begin.keys() - until.keys())
        if gone:
            self._lose(
                f"{', '.join(map(partition_name, gone))}: the log no longer exists; read up to "
                f"{[begin[key].next_offset for key in gone]}"
            )
        changed = {key: place for key, place in until.items() if begin.get(key) != place}
        states = self._poll() if changed else {}
        found: list[tuple[Log, list[Split]]] = []
        for key, stop in changed.items():
            ranged = self._range(key, begin.get(key), stop, states.get(key))
            if ranged is None:
                continue
            log, first, last = ranged
            transactions = self._follow(key, log, first) if self._is_committed else None
            found.append((log, log_splits(log, first, last, transactions, self.options.read)))
        return _limit_offsets(divide_splits(found, self.options.read), self.options.read)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the splits of one partition."""
        tables = _tables(partition.value or (), self.options, self.columns)
        return transformed_batches(tables, self.columns, self.options.read, self.values)

    def stop(self) -> None:
        """Drop the state."""
        self._watched = None
        self._followed.clear()
        self._stable.clear()

    def _measure(self, begin: Offsets, ends: Offsets) -> dict[str, Offsets]:
        sizes, missing = dict.fromkeys(ends, 0), dict.fromkeys(ends, 0)
        for key, stop in ends.items():
            state = self._states.get(key)
            if state is None:
                continue
            # A log that is new to a query that runs is read from offset 0 on.
            start = begin.get(key, 0)
            first = min(max(start, state.start_offset), stop)
            missing[key] = max(0, first - start)
            log = open_log(state.path, self.options.read.storage) if first < stop else None
            if log is not None:
                with contextlib.suppress(LogDirectoryError):
                    sizes[key] = bytes_between(log, first, stop, state)
        return {BYTES: sizes, MISSING: missing}

    # -- where logs begin and end

    @property
    def _is_committed(self) -> bool:
        return self.options.read.isolation == "read_committed"

    def _poll(self) -> dict[TopicPartition, LogState]:
        if self._watched is None:
            self._watched = WatchedLogs(self.paths, self.options.read)
        return self._watched.poll()

    def _follow(self, key: TopicPartition, log: Log, start: int) -> Transactions:
        transactions = self._followed.setdefault(key, FollowedLog(self.options.read)).follow(log, start)
        check_markers(log, transactions, self.options.read)
        return transactions

    def _begin(self, before: Places) -> Offsets:
        begin = {key: place.next_offset for key, place in before.items()}
        for key, state in self._states.items():
            if key in before and before[key].changed_id(state.topic_id):
                begin[key] = state.start_offset
        return begin

    def _place(self, key: TopicPartition, offset: int, before: Position | None) -> Position:
        state = self._states.get(key)
        if state is None:
            return Position(offset)
        # A copy of a log may lack the id for a while.
        topic_id = state.topic_id or (None if before is None else before.topic_id)
        crc = state.batch_crc if offset == state.end_offset else None
        if before is not None and before.next_offset == offset and not before.changed_id(topic_id):
            if crc is None or before.batch_crc in (None, crc):
                return before
        elif crc is None and offset > state.start_offset:
            log = open_log(state.path, self.options.read.storage)
            found = None if log is None else batch_with(log, offset - 1)
            crc = None if found is None else int(found[1]["crc"])
        return Position(offset, None, topic_id, crc)

    def _ends_now(self, before: Places) -> Offsets:
        return retry_if_gone(lambda: self._listed_ends(before))

    def _listed_ends(self, before: Places) -> Offsets:
        states = self._states = self._poll()
        begin = self._begin(before)
        for key in self._followed.keys() - states.keys():
            del self._followed[key]
            self._stable.pop(key, None)
        return {key: self._end(key, state, begin.get(key, state.start_offset)) for key, state in states.items()}

    def _end(self, key: TopicPartition, state: LogState, start: int) -> int:
        """Return the offset up to which a log can be read from `start`."""
        end = state.end_offset
        if not self._is_committed or end <= start:
            return end
        seen = (state.path, state.last, *state.seen, end)
        known = self._stable.get(key)
        if known is None or known[0] != seen:
            log = open_log(state.path, self.options.read.storage)
            if log is None:
                return start
            known = self._stable[key] = (seen, self._follow(key, log, start).last_stable_offset)
        return end if known[1] is None else max(start, min(end, known[1]))

    def _starts(self) -> Offsets:
        options = self.options
        states = self._states = self._poll()
        bound = options.read.starting
        offsets = options.starting if isinstance(options.starting, dict) else None
        if bound.timestamp is None:
            given = offsets if bound.timestamps is None else bound.timestamps
            check_partitions("starting", given, states.keys(), options.read.selection)
        return {key: self._start(key, state) for key, state in states.items()}

    def _start(self, key: TopicPartition, state: LogState) -> int:
        """Return where a new query begins in one log."""
        options, (topic, partition) = self.options, key
        bound = options.read.starting
        timestamp = bound.timestamp if bound.timestamps is None else bound.timestamps[topic][partition]
        if timestamp is None:
            offset = options.starting[topic][partition] if isinstance(options.starting, dict) else options.starting
        else:
            log = open_log(state.path, options.read.storage)
            found = None if log is None else log.offset_for_timestamp(timestamp)
            if found is None and not options.read.latest_if_no_timestamp:
                raise ValueError(
                    f"{state.path}: no record at or after timestamp {timestamp}; with "
                    "startingOffsetsByTimestampStrategy=latest such a partition starts at its end"
                )
            offset = LATEST if found is None else found
        if offset == EARLIEST:
            return state.start_offset
        return self._latest_readable(key, state) if offset == LATEST else offset

    def _latest_readable(self, key: TopicPartition, state: LogState) -> int:
        if not self._is_committed:
            return state.end_offset
        log = open_log(state.path, self.options.read.storage)
        stable = None if log is None else self._follow(key, log, state.end_offset).last_stable_offset
        return state.end_offset if stable is None else min(stable, state.end_offset)

    def _range(
        self, key: TopicPartition, before: Position | None, until: Position, state: LogState | None
    ) -> tuple[Log, int, int] | None:
        """Return the log and the range of its offsets that can be read; report the offsets that cannot."""
        name, stop = partition_name(key), until.next_offset
        if before is None:
            start = 0 if state is None else state.start_offset
            if start:
                self._lose(f"{name}: a log that is new to the query begins at offset {start} instead of 0")
        else:
            start = before.next_offset
        log = None if state is None else open_log(state.path, self.options.read.storage)
        if state is None or log is None:
            if start < stop:
                self._lose(f"{name}: the log no longer exists; offsets {start} to {stop - 1} were not read")
            return None
        is_known = False
        if before is not None and not until.changed_id(state.topic_id):
            changed = _made_again(name, log, before, until.topic_id, min(stop, state.end_offset))
            is_known = not changed
            if changed:
                self._lose(
                    f"{name}: the last micro-batch ended before offset {start}, but {changed}; {_available(state)}"
                )
                start = state.start_offset
        if not is_known and (changed := _made_again(name, log, until, state.topic_id, state.end_offset)):
            self._lose(
                f"{name}: offsets {start} to {stop - 1} were not read: after the read was planned, {changed}; "
                f"{_available(state)}"
            )
            return None
        if stop < start:
            self._lose(
                f"{name}: the end moved back from offset {start} to {stop} (truncated, or deleted and recreated); "
                f"{_available(state)}"
            )
            return None
        if start < state.start_offset:
            self._lose(f"{name}: offsets {start} to {min(state.start_offset, stop) - 1} were deleted before they were "
                       f"read; {_available(state)}")  # fmt: skip
            start = state.start_offset
        if stop > state.end_offset:
            self._lose(f"{name}: offsets {max(start, state.end_offset)} to {stop - 1} no longer exist (truncated, "
                       f"or deleted and recreated); {_available(state)}")  # fmt: skip
            stop = state.end_offset
        return (log, start, stop) if start < stop else None

    def _lose(self, message: str) -> None:
        report_data_loss(message, fails=self.options.read.fail_on_data_loss)

    # -- limits

    def _limited(self, begin: Offsets, ends: Offsets) -> Offsets:
        options = self.options
        if options.max_offsets is None and options.min_offsets is None and options.max_bytes is None:
            return ends
        states = self._states
        # Offsets below the first one that exists are deleted; `_range` reports them.
        starts = {
            key: max(begin.get(key, 0), states[key].start_offset) if key in states else begin.get(key, 0)
            for key in ends
        }
        backlog = {key: end - starts[key] for key, end in ends.items() if end > starts[key]}
        if self._waits(backlog):
            return begin
        out = dict(ends)
        if options.max_offsets is not None:
            for key, share in shares(backlog, options.max_offsets).items():
                if share < backlog[key]:
                    log = open_log(states[key].path, options.read.storage) if key in states else None
                    stop = starts[key] + share if log is None else offset_after_records(log, starts[key], share)
                    out[key] = min(out[key], stop)
        if options.max_bytes is not None:
            out.update(self._limited_bytes(starts, {key: out[key] for key in backlog}, states, options.max_bytes))
        return out

    def _limited_bytes(
        self, starts: Offsets, ends: Offsets, states: dict[TopicPartition, LogState], limit: int
    ) -> Offsets:
        storage = self.options.read.storage
        opened = ((key, open_log(states[key].path, storage)) for key in ends if key in states)
        logs = {key: log for key, log in opened if log is not None}
        sizes = {key: bytes_from(log, starts[key], states[key]) for key, log in logs.items()}
        return {
            key: min(ends[key], max(offset_after_bytes(logs[key], starts[key], share), starts[key] + 1))
            for key, share in shares(sizes, limit).items()
        }


# -- tasks


def _limit_offsets(tasks: Sequence[Task[Split]], options: ReadOptions) -> list[tuple[Split, ...]]:
    """Limit each split to the offsets of its bytes, which a task looks up again: the log cleaner may replace files."""
    splits = [split for task in tasks for split in task]
    cuts: list[int | None] = [None] * (len(splits) + 1)
    for i, (before, split) in enumerate(pairwise(splits), 1):
        if (before.path, before.end) == (split.path, split.start):
            cuts[i] = _first_offset(split, options)
    limited = []
    for split, start, stop in zip(splits, cuts, cuts[1:], strict=False):
        if start is None:
            base = parse_segment_name(os.path.basename(split.path)) or 0
            start = base if split.start_offset is None else max(split.start_offset, base)
        if stop is None:
            stop = min(INT64_MAX if each is None else each for each in (split.stop_offset, split.below))
        limited.append(replace(split, start_offset=start, stop_offset=stop))
    each = iter(limited)
    return [tuple(islice(each, len(task))) for task in tasks]


def _first_offset(split: Split, options: ReadOptions) -> int:
    row = good_row(planned_segment(split.path, storage_options=options.storage), split.start)
    if row is None:
        raise LogDirectoryError(f"{split.path}: the file was replaced while the read was planned", source=split.path)
    return int(first_offsets(row)[0])


def _tables(
    splits: Sequence[Split], options: StreamReadOptions, columns: tuple[str, ...]
) -> Iterator[tuple[Split, RecordTable]]:
    # A deleted segment must raise here: its records may be in another file now.
    reading = replace(options.read, fail_on_data_loss=True)
    for split in splits:
        for attempt in range(1, _READ_ATTEMPTS + 1):
            inodes = _inodes(split.log)
            current = _current_splits(split, options)
            if attempt < _READ_ATTEMPTS and any(inode_of(each.path) != inodes.get(each.path) for each in current):
                continue
            is_started = False
            try:
                for each in task_tables(current, reading, columns):
                    is_started = True
                    yield each
                break
            except LogDirectoryError:
                if is_started or attempt == _READ_ATTEMPTS or all(os.path.exists(each.path) for each in current):
                    raise


def _inodes(directory: str) -> dict[str, int]:
    try:
        with os.scandir(directory) as entries:
            return {entry.path: entry.inode() for entry in entries if ".log" in entry.name}
    except OSError:
        return {}


def _current_splits(split: Split, options: StreamReadOptions) -> Sequence[Split]:
    """Return the splits that hold the offsets of `split` in the log's files as they are now."""
    start, stop = split.start_offset or 0, split.stop_offset or 0
    log = open_log(split.log, options.read.storage)
    earliest = stop if log is None else max(log.segments[0].base_offset or 0, log.start_checkpoint or 0)
    if start < earliest:
        report_data_loss(
            f"{split.topic}-{split.partition}: offsets {start} to {min(earliest, stop) - 1} were deleted after the "
            f"read was planned ({split.path})",
            fails=options.read.fail_on_data_loss,
        )
        start = earliest
    if log is None or start >= stop:
        return ()
    # The positions of transactions are those of the files as they are now.
    return log_splits(log, start, stop, followed(log, options.read, start, stop), options.read)


def _available(state: LogState) -> str:
    if state.start_offset >= state.end_offset:
        return f"no offset is available now, and the next one will be {state.end_offset}"
    return f"the first offset available is now {state.start_offset} and the last one {state.end_offset - 1}"


def _made_again(name: str, log: Log, place: Position, topic_id: str | None, end: int) -> str:
    """Return what shows that a log, which has this id and end, is not that of a place in it; or nothing."""
    if other := place.changed_id(topic_id):
        return other
    if place.batch_crc is None or place.next_offset > end:
        return ""
    changed = changed_identity(log, place, batch_with(log, place.next_offset - 1))
    if changed is None:
        report_unrecognized([name])
    return changed or ""
