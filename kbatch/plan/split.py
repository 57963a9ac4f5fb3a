"""Which bytes of which files a read needs, and how they are shared out among tasks.

Planning looks at names, sizes, index files and some batch headers. It decodes a batch only where a timestamp has to be
turned into an offset. No pyspark in here.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from kbatch.batches.checksums import has_good_batch
from kbatch.batches.framing import first_offsets
from kbatch.errors import Fault, Finding, TruncatedBatchError, finding_to_error
from kbatch.format import ATTRIBUTE_CONTROL, INT64_MAX, Limits
from kbatch.kernels.checksum import first_bad_crc
from kbatch.kernels.slices import keys_equal
from kbatch.log import Log, Segment, find_logs
from kbatch.log.indexes import OFFSET_INDEX_DTYPE
from kbatch.log.reading import NOT_REACHED, lost_table, read_tables
from kbatch.log.segment import check_order, last_offset
from kbatch.log.storage import identity, is_url, locate
from kbatch.plan.following import log_transactions
from kbatch.plan.read_options import Bound, ReadOptions
from kbatch.read.decode_options import DecodeOptions
from kbatch.records.data import decoded_columns
from kbatch.table import RecordTable
from kbatch.transactions import AbortedRanges, Transactions

__all__ = [
    "LogRange",
    "Selection",
    "Split",
    "choose_logs",
    "look_into",
    "open_logs",
    "plan",
    "plan_logs",
    "plan_ranges",
    "require_markers",
    "resolve_bounds",
    "task_tables",
]

# Opening a file counts as reading so many bytes, and a task opens no more than so many tiny ones.
_OPEN_COST = 1 << 20
_MOST_OPENED = 128
# A task may be larger than the others by such a part of them, rather than that something small is cut off.
_SLACK = 16
# Logs on a remote filesystem that are looked into at a time.
_LOOKED_INTO_AT_ONCE = 16
# A table's size while a task reads, in bytes: large enough for speed, small beside a worker's other memory.
_TABLE_BYTES = 32 << 20

S = TypeVar("S")
T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Split:
    """A stretch of one segment file, for one task to read. Plain values only: it is pickled.

    Attributes
    ----------
    path : str
    start, end : int
        Bytes; a batch begins at `start`, and at `end` unless that is the file's end.
    size : int
        Bytes of the whole file when it was planned: what is written later is not read.
    live : bool
        Whether the file is the last of its log, which a broker may be writing.
    topic, partition
        From the directory's name, as far as it says them.
    start_offset, stop_offset : int or None
        Records outside are not wanted.
    below : int or None
        Where the next segment begins: an offset from there on means that segments overlap.
    aborted : AbortedRanges or None
        Under read_committed the aborted transactions that reach into the segment; the markers that say so may stand
        in other splits.
    undecided : AbortedRanges or None
        Likewise those whose markers are lost to damage.
    stable_offset : int or None
        Under read_committed the log's last stable offset, if anything is undecided.
    """

    path: str
    start: int
    end: int
    size: int
    live: bool
    topic: str | None
    partition: int | None
    start_offset: int | None
    stop_offset: int | None
    below: int | None
    aborted: AbortedRanges | None = None
    undecided: AbortedRanges | None = None
    stable_offset: int | None = None

    @property
    def log(self) -> str:
        """The directory, which tells the log."""
        return os.path.dirname(self.path)


@dataclass(frozen=True, slots=True)
class LogRange:
    """A whole log for one task to look at, and which of its offsets are wanted; None is the log's own end."""

    path: str
    start_offset: int | None
    stop_offset: int | None


class Selection:
    """Which topic-partitions the options name: asked by name, before a directory is looked into.

    Parameters
    ----------
    options : ReadOptions
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pattern = None if options.topic_pattern is None else re.compile(options.topic_pattern)
        self._assigned = None
        if options.assign is not None:
            self._assigned = {(topic, number) for topic, numbers in options.assign.items() for number in numbers}
        self._seen: set[tuple[str | None, int | None]] = set()

    def __call__(self, topic: str | None, partition: int | None) -> bool:
        """Whether the log of that name is to be read; that it is there is kept in mind."""
        self._seen.add((topic, partition))
        if not self._names(topic, partition):
            return False
        most = self._options.key_partitions
        if most is not None and partition is not None and partition >= most:
            raise ValueError(
                f"keyPartitions is {most}, but there is {topic}-{partition}: give the number of partitions that the "
                "topic was written to, or leave the option out"
            )
        return not self._options.leaves_out(partition)

    def _names(self, topic: str | None, partition: int | None) -> bool:
        options = self._options
        if self._assigned is not None:
            return (topic, partition) in self._assigned
        return (
            (options.topics is None or topic in options.topics)
            and (self._pattern is None or (topic is not None and self._pattern.fullmatch(topic) is not None))
            and (options.partitions is None or partition in options.partitions)
        )

    def check(self) -> None:
        """Fail if the options name what isn't there.

        Raises
        ------
        ValueError
            If a topic or an assigned partition isn't among the names that were asked about.
        """
        present = sorted({topic for topic, _ in self._seen if topic is not None})
        if self._assigned is not None:
            missing = sorted(self._assigned - self._seen)
            if missing:
                names = ", ".join(f"{topic}-{number}" for topic, number in missing)
                raise ValueError(f"no log of {names}; there are topics {_some(present)}")
        unknown = sorted(set(self._options.topics or ()) - set(present))
        if unknown:
            raise ValueError(f"no log of topic {', '.join(map(repr, unknown))}; there are {_some(present)}")


def open_logs(
    paths: Iterable[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    wanted: Callable[[str, int], bool] | None = None,
) -> list[Log]:
    """Open the logs under each path or URL: a log directory, a topic-partition directory, or one ``.log`` file.

    Each directory is listed once, and sizes are those of the listing where it has them. What is `wanted` in log
    directories is asked by name; a path that is a log itself is opened in any case.

    Raises
    ------
    LogDirectoryError
        If there is none under one of them.
    """
    logs: list[Log] = []
    for path in paths:
        storage, path = locate(path, storage_options)
        # Remotely a question costs a request: there a name tells.
        is_file = path.endswith(".log") if storage.remote else os.path.isfile(path)
        if is_file:
            logs.append(Log(path, storage_options=storage_options))
        else:
            logs += find_logs(path, wanted=wanted, storage_options=storage_options)
    # Paths may overlap: a log is read once.
    return list({identity(log.path): log for log in reversed(logs)}.values())[::-1]


def choose_logs(paths: Iterable[str], options: ReadOptions) -> list[Log]:
    """Open the logs under each path that the options name; directories of other names are not looked into.

    Raises
    ------
    LogDirectoryError
        As `open_logs`.
    ValueError
        If a topic or an assigned partition isn't there, or a partition that ``keyPartitions`` says isn't.
    """
    selection = Selection(options)
    logs = [log for log in open_logs(paths, options.storage, wanted=selection) if selection(log.topic, log.partition)]
    selection.check()
    return logs


def require_markers(log: Log, options: ReadOptions) -> None:
    """Fail where damage hides markers: what is open by those that are left may have been committed.

    Raises
    ------
    CorruptBatchError, TruncatedBatchError
        Where headers can't be followed to the end of a segment.
    CrcMismatchError
        At a control batch whose checksum is wrong, with ``crc="verify"``.
    """
    for segment in log.segments:
        end = 0
        with segment.open() as file:
            for window, rows in file.walk_windows(0):
                end = int(rows["position"][-1] + rows["size"][-1])
                if options.crc == "verify":
                    _check_control(segment, window, rows)
            tail = file.tail_at(end)
        if tail.finding is not None:
            raise finding_to_error(tail.finding, source=segment.path, position=end)
        if tail.kind != "none" and not segment.live:
            raise TruncatedBatchError(
                f"{segment.path}, byte {end}: {tail.size} bytes that are no whole batch, where markers may have been; "
                "only the last segment of a log may end so; onError=skip passes over them",
                source=segment.path,
                position=end,
            )


def _check_control(segment: Segment, window: npt.NDArray[np.uint8], rows: npt.NDArray[np.void]) -> None:
    control = rows[((rows["attributes"] & ATTRIBUTE_CONTROL) != 0) & (rows["magic"] == 2)]
    at, found = first_bad_crc(window, control, 0, len(control), int(rows["position"][0]))
    if at < len(control):
        raise finding_to_error(
            Finding(Fault.BAD_CRC, wanted=int(control["crc"][at]), found=found),
            source=segment.path,
            position=int(control["position"][at]),
            base_offset=int(control["base_offset"][at]),
        )


def plan(
    logs: Sequence[Log],
    options: ReadOptions,
    transactions: Sequence[Transactions | None] | None = None,
    *,
    withheld: bool = True,
) -> list[tuple[Split, ...]]:
    """Share out the bytes of `logs` among tasks.

    Parameters
    ----------
    logs : sequence of Log
        Those that are wanted (`choose_logs`).
    options : ReadOptions
    transactions : sequence of Transactions or None, optional
        What `log_transactions` found, where it has been asked already.
    withheld : bool
        Under read_committed, whether batches from the last stable offset on are read all the same, to count them.
        Where they are not, and some would be wanted, a warning is logged.

    Returns
    -------
    list of tuple of Split
        The splits of each task. All together, in their order, are the logs in theirs, each byte that may be wanted
        once. Tasks are of one size, as far as batches let them be, and of about ``split_bytes`` at most (an eighth
        more, or one batch). With ``on_error="stop"`` a log is never shared by tasks, since only who reads all of it
        knows where it stops.

    Raises
    ------
    ValueError
        If offsets or timestamps are given per partition and don't name the partitions that are read, or a starting
        timestamp has no record.
    CorruptBatchError, TruncatedBatchError, CrcMismatchError
        As `require_markers`: with ``on_error="raise"`` damage anywhere in a log is an error if read_committed would
        withhold records that are wanted, since it may be for that damage only.
    """
    bounds = resolve_bounds(logs, options)
    if transactions is None:
        transactions = log_transactions(logs, options, bounds)
    ranges = [(log, *ends, known) for log, ends, known in zip(logs, bounds, transactions, strict=True)]
    return plan_ranges(ranges, options, withheld=withheld)


def plan_ranges(
    ranges: Iterable[tuple[Log, int | None, int | None, Transactions | None]],
    options: ReadOptions,
    *,
    withheld: bool = True,
) -> list[tuple[Split, ...]]:
    """Share out offsets of logs among tasks, as `plan` does once it knows them.

    Parameters
    ----------
    ranges : iterable of (Log, start offset or None, stop offset or None, Transactions or None)
        None is the log's own end on that side; the transactions are those of the whole log, under read_committed.
    options : ReadOptions
        Its bounds are not looked at.
    withheld : bool
        As for `plan`.
    """

    def wanted(each: tuple[Log, int | None, int | None, Transactions | None]) -> list[tuple[Segment, Split]]:
        log, start, stop, known = each
        pending = known.pending if known is not None else []
        if options.on_error == "raise" and pending and (stop is None or pending[0][1] < stop):
            require_markers(log, options)
        stable = None if known is None or withheld else known.last_stable_offset
        if known is not None and stable is not None and (stop is None or stable < stop):
            _log.warning(
                "%s: read_committed gives nothing from offset %d on, since %d transactions are open; "
                "option('table', 'transactions') gives them as a DataFrame",
                log.path,
                stable,
                len(known.open),
            )
            stop = stable
        return list(_log_splits(log, start, stop, known))

    ranges = list(ranges)
    logs = [log for log, *_ in ranges]
    pieces: list[_Piece[Split]] = []
    for log, whole in zip(logs, look_into(logs, wanted, ranges), strict=True):
        if options.on_error == "stop":
            # Damage before the offsets that are wanted doesn't stop the read: seeking has passed it.
            if whole:
                pieces.append(_Piece([split for _, split in whole], sum(split.end - split.start for _, split in whole)))
        elif options.max_records_per_partition is not None:
            for segment, split in whole:
                end = log.end_offset if split.below is None else split.below
                pieces += _cut_by_offsets(segment, split, end, options.max_records_per_partition)
        else:
            pieces += (_Piece([split], split.end - split.start, segment=segment) for segment, split in whole)
    return _share_out(pieces, options)


def plan_logs(logs: Sequence[Log], options: ReadOptions) -> list[tuple[LogRange, ...]]:
    """Share out whole logs among tasks, for what has to see all of a log's headers.

    Raises
    ------
    ValueError
        As `plan`.
    """
    bounds = zip(logs, resolve_bounds(logs, options), strict=True)
    return _share_out([_Piece([LogRange(log.path, *ends)], log.size) for log, ends in bounds], options)


@dataclass(slots=True)
class _Piece(Generic[T]):
    """What one task has to read as a whole; in one `segment`, it can be cut where a batch begins.

    `size` is in bytes; `offsets` is how many it reaches over, if that matters.
    """

    parts: list[T]
    size: int
    offsets: int = 0
    segment: Segment | None = None


def _share_out(pieces: Iterable[_Piece[T]], options: ReadOptions) -> list[tuple[T, ...]]:
    """Give pieces, in their order, to tasks of one size that is at most about ``split_bytes``."""
    queue = deque(pieces)
    size = sum(piece.size for piece in queue)
    every = options.split_bytes
    if options.min_partitions is not None:
        every = min(every, size // options.min_partitions)
    opening = min(_OPEN_COST, every // _MOST_OPENED)
    left = size + opening * sum(len(piece.parts) for piece in queue)
    most = options.split_bytes + opening
    most_offsets = options.max_records_per_partition or INT64_MAX
    cutter = _Cutter()
    tasks: list[tuple[T, ...]] = []
    held: list[T] = []
    cost = offsets = 0
    while queue:
        piece = queue.popleft()
        # What is left is shared evenly by the tasks that are left, so that what couldn't be cut evens out.
        count = max((options.min_partitions or 1) - len(tasks), math.ceil((left + cost) / most - 1 / _SLACK), 1)
        share = (left + cost) / count
        slack = share / _SLACK
        room = share + slack - cost
        if piece.size + opening * len(piece.parts) > room and share - cost > slack:
            halves = cutter.cut(piece, max(1, int(share - cost) - opening), int(slack))
            if halves is not None:
                piece, rest = halves
                queue.appendleft(rest)
                left += opening
        weight = piece.size + opening * len(piece.parts)
        too_much = weight > room or offsets + piece.offsets > most_offsets
        if held and too_much:
            queue.appendleft(piece)
        else:
            held += piece.parts
            cost += weight
            left -= weight
            offsets += piece.offsets
        if too_much or cost >= share:
            tasks.append(tuple(held))
            held, cost, offsets = [], 0, 0
    if held:
        tasks.append(tuple(held))
    return tasks


def _segment(split: Split, options: ReadOptions) -> Segment:
    return Segment(split.path, live=split.live, storage_options=options.storage, size=split.size)


def _split_tables(
    split: Split, options: ReadOptions, columns: tuple[str, ...] | None
) -> Generator[RecordTable, None, bool]:
    """Decode a split, as `read_tables` does; `columns` is what is wanted of its records."""
    segment = _segment(split, options)
    decode = DecodeOptions(
        include_control=options.include_control,
        crc=options.crc,
        on_error=options.on_error,
        start_offset=split.start_offset,
        stop_offset=split.stop_offset,
        limits=Limits(max_decompressed_bytes=options.max_decompressed_bytes),
        aborted=split.aborted,
        undecided=split.undecided,
        stable_offset=split.stable_offset,
        columns=None if columns is None else decoded_columns(columns),
    )
    return read_tables(segment, split.start, split.end, decode, _TABLE_BYTES)


def task_tables(
    splits: Sequence[Split], options: ReadOptions, columns: tuple[str, ...] | None = None
) -> Iterator[tuple[Split, RecordTable]]:
    """Decode the splits of a task one after the other, in tables of bounded size.

    With ``options.key`` the tables have only the records of that key; batches and losses are those of all. A log that
    ``on_error="stop"`` has stopped is not gone on with: the rest of it is lost.

    Parameters
    ----------
    splits : sequence of Split
    options : ReadOptions
    columns : tuple of str, optional
        The only columns of the records that will be asked for, of `kbatch.records.kafka_columns.SPARK_COLUMNS`.
    """
    if columns is not None and options.key is not None and "key" not in columns:
        columns = (*columns, "key")
    stopped: set[str] = set()
    for split in splits:
        if split.log in stopped:
            yield split, lost_table(_segment(split, options), split.start, split.end, NOT_REACHED)
            continue
        tables = _split_tables(split, options, columns)
        while True:
            try:
                table = next(tables)
            except StopIteration as done:
                if done.value:
                    stopped.add(split.log)
                break
            check_order(split.path, last_offset(table.batches), None, split.below)
            if options.key is not None:
                table = _of_key(table, options.key)
            table = table._with(topic=split.topic, partition=split.partition)
            yield split, table
            del table


def _of_key(table: RecordTable, key: bytes) -> RecordTable:
    """Choose the records of one key, before anything is made of them."""
    equal = np.empty(len(table), np.bool_)
    rows = table.records
    found = keys_equal(rows["key_pos"], rows["key_len"], table.data, key, equal.view(np.uint8))
    return table if found == len(table) else table[equal] if found else table[:0]


def resolve_bounds(logs: Sequence[Log], options: ReadOptions) -> list[tuple[int | None, int | None]]:
    """Turn the bounds of a read into a start and a stop offset for each log; None is the log's own end on that side.

    A timestamp becomes the offset of the first record with it or a later one, as in Spark's Kafka source
    (`Log.offset_for_timestamp`): the records between need not be within the two times.

    Raises
    ------
    ValueError
        As `plan`.
    """
    for side, bound in (("starting", options.starting), ("ending", options.ending)):
        _check_named(side, bound, logs, options)
    return look_into(logs, lambda log: _resolve(log, options), logs)


def look_into(logs: Sequence[Log], look: Callable[[S], T], each: Sequence[S]) -> list[T]:
    """Return what `look` says of `each`, which stand for `logs`: of some at a time, where they are remote.

    Every look into an object is a round trip.
    """
    if not any(is_url(log.path) for log in logs):
        return [look(one) for one in each]
    with ThreadPoolExecutor(_LOOKED_INTO_AT_ONCE, "kbatch-look") as pool:
        return list(pool.map(look, each))


def _check_named(side: str, bound: Bound, logs: Sequence[Log], options: ReadOptions) -> None:
    given = bound.offsets if bound.offsets is not None else bound.timestamps
    if given is None:
        return
    named = {(topic, number) for topic, numbers in given.items() for number in numbers}
    read = {(log.topic, log.partition) for log in logs}
    unknown = {name for name in named - read if not options.leaves_out(name[1])}
    for text, names in (("doesn't name", read - named), ("names, but this read has no", unknown)):
        if names:
            listed = _some(sorted(f"{topic}-{number}" for topic, number in names))
            raise ValueError(f"{side} offsets must be those of the partitions that are read: it {text} {listed}")


def _resolve(log: Log, options: ReadOptions) -> tuple[int | None, int | None]:
    # The earliest offset is where the broker lets the log begin; files may hold more (DSK-R13).
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
                "startingOffsetsByTimestampStrategy=latest such a partition has nothing to read"
            )
        if start is None:
            start = log.end_offset
    if until is not None:
        # What is before the first record of one time is before that of a later time too: it needn't be gone over again.
        later = since is not None and since <= until
        stop = log.offset_for_timestamp(
            until, start_offset=start if later else None, crc=options.crc, on_error=options.on_error
        )
    return start, stop


def _offset_of(log: Log, bound: Bound) -> int | None:
    return None if bound.offsets is None else bound.offsets[log.topic or ""][log.partition or 0]


def _timestamp_of(log: Log, bound: Bound) -> int | None:
    if bound.timestamps is not None:
        return bound.timestamps[log.topic or ""][log.partition or 0]
    return bound.timestamp


def _log_splits(
    log: Log, start: int | None, stop: int | None, transactions: Transactions | None
) -> Iterator[tuple[Segment, Split]]:
    """Yield what is wanted of each segment of a log between two offsets, in order."""
    ranges = lost = stable = None
    if transactions is not None:
        ranges = AbortedRanges.from_transactions(transactions)
        lost = AbortedRanges.from_rows(transactions.undecided) if len(transactions.undecided) else None
        stable = transactions.last_stable_offset
    if start is not None and stop is not None and start >= stop:
        return
    for i, segment in enumerate(log.segments):
        below = log.segments[i + 1].base_offset if i + 1 < len(log.segments) else None
        if start is not None and below is not None and below <= start:
            continue
        if stop is not None and segment.base_offset is not None and segment.base_offset >= stop:
            break
        begin, end = 0, segment.size
        if start is not None and (segment.base_offset is None or segment.base_offset < start):
            begin = segment.seek_offset(start)
        if stop is not None and (below is None or below > stop):
            end = segment.end_for_offset(stop)
        if begin >= end:
            continue
        here = (segment.base_offset or 0, INT64_MAX if below is None else below)
        yield (
            segment,
            Split(
                segment.path,
                begin,
                end,
                segment.size,
                segment.live,
                log.topic,
                log.partition,
                start,
                stop,
                below,
                None if ranges is None else ranges.within(*here),
                None if lost is None else lost.within(*here),
                stable,
            ),
        )


def _cut_by_offsets(segment: Segment, split: Split, end: int, most: int) -> Iterator[_Piece[Split]]:
    """Cut a split where a batch begins so that no piece reaches over more than `most` offsets, `end` excluded.

    A batch that has more is a piece by itself. Damage that can't be followed over ends the cutting.
    """
    end = end if split.stop_offset is None else min(end, split.stop_offset)
    first = max(segment.base_offset or 0, split.start_offset or 0)
    while True:
        row = _good_row(segment, split.start)
        if row is not None:
            first = max(first, int(first_offsets(row)[0]))
        cut = None
        if row is not None and end - first > most:
            position = segment.seek_offset(first + most)
            cut = _good_row(segment, max(position, split.start + int(row["size"][0])))
        if cut is None or cut["position"][0] >= split.end:
            yield _Piece([split], split.end - split.start, max(0, end - first), segment)
            return
        reached, position = int(first_offsets(cut)[0]), int(cut["position"][0])
        yield _Piece([replace(split, end=position)], position - split.start, max(0, reached - first), segment)
        split, first = replace(split, start=position), reached


def _good_row(segment: Segment, position: int) -> npt.NDArray[np.void] | None:
    """Return the header at `position`, as an array of one row, if a batch with a good checksum begins there."""
    for rows in segment.scan(position):
        return rows[:1] if has_good_batch(segment, rows[0]) else None
    return None


class _Cutter:
    """Cuts pieces in two where a batch begins.

    Index entries are taken where the bytes agree with them; without, the headers are followed. Damage that can't be
    followed over ends the cutting.
    """

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._index = np.empty(0, OFFSET_INDEX_DTYPE)

    def cut(self, piece: _Piece[Any], room: int, slack: int) -> tuple[_Piece[Any], _Piece[Any]] | None:
        """Cut so that the first half has about `room` bytes, up to `slack` more if batches allow it."""
        segment = piece.segment
        if segment is None:
            return None
        (split,) = piece.parts
        target = split.start + room
        index = self._index_of(segment)
        entry = int(np.searchsorted(index["position"], target))
        position: int | None = None
        near = entry < len(index) and split.start < index["position"][entry] < min(target + slack, split.end)
        if near and segment._begins_batch(int(index["position"][entry]), int(index["offset"][entry])):
            position = int(index["position"][entry])
        if position is None:
            position = _next_batch(segment, split.start, target)
        if position is None or position >= split.end:
            return None
        return (
            replace(piece, parts=[replace(split, end=position)], size=position - split.start),
            replace(piece, parts=[replace(split, start=position)], size=split.end - position),
        )

    def _index_of(self, segment: Segment) -> npt.NDArray[np.void]:
        if self._segment is not segment:
            self._segment = segment
            self._index = np.empty(0, OFFSET_INDEX_DTYPE)
            if segment.base_offset is not None:
                self._index = segment.offset_index()
        return self._index


def _next_batch(segment: Segment, start: int, target: int) -> int | None:
    """Follow headers from the batch at `start` to the first at `target` or later, whose checksum has to hold."""
    for rows in segment.scan(start):
        later = rows[rows["position"] >= target]
        if len(later):
            return int(later["position"][0]) if has_good_batch(segment, later[0]) else None
    return None


def _some(names: Sequence[str], most: int = 10) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "none"
