"""Which bytes of which files a read needs, and how they are shared out among tasks.

Planning looks at names, sizes, index files and some batch headers. It decodes a batch only where a timestamp has to be
turned into an offset. No pyspark in here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kbatch.checksums import crc_holds, first_bad_crc
from kbatch.decoding import DecodeOptions
from kbatch.errors import Fault, Finding, LogDirectoryError, TruncatedBatchError, finding_to_error
from kbatch.format import ATTRIBUTE_CONTROL, BatchStatus
from kbatch.framing import first_offsets
from kbatch.log import Log, Segment, find_logs
from kbatch.log.reading import NOT_REACHED, lost_table, read_tables
from kbatch.log.storage import identity, locate
from kbatch.spark.options import Bound, ReadOptions
from kbatch.table import RecordTable
from kbatch.transactions import AbortedRanges, Transactions

__all__ = [
    "LogRange",
    "Split",
    "log_transactions",
    "open_logs",
    "plan",
    "plan_logs",
    "plan_ranges",
    "require_markers",
    "select_logs",
    "task_tables",
]

# Opening a file counts as reading so many bytes, so that a task isn't given thousands of tiny ones.
_OPEN_COST = 1 << 20
# A table's size while a task reads, in bytes: large enough for speed, small beside a worker's other memory.
_TABLE_BYTES = 32 << 20
_MOST_OFFSETS = (1 << 63) - 1

T = TypeVar("T")


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


def open_logs(paths: Iterable[str], storage_options: Mapping[str, str] | None = None) -> list[Log]:
    """Open the logs under each path or URL: a log directory, a topic-partition directory, or one ``.log`` file.

    Each directory is listed once, and sizes are those of the listing where it has them.

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
        logs += (
            [Log(path, storage_options=storage_options)]
            if is_file
            else find_logs(path, storage_options=storage_options)
        )
    # Paths may overlap: a log is read once.
    return list({identity(log.path): log for log in reversed(logs)}.values())[::-1]


def select_logs(logs: Sequence[Log], options: ReadOptions) -> list[Log]:
    """Choose the topic-partitions that the options name.

    Raises
    ------
    ValueError
        If a topic or an assigned partition isn't there.
    """
    present = sorted({log.topic for log in logs if log.topic is not None})
    if options.assign is not None:
        wanted = {(topic, number) for topic, numbers in options.assign.items() for number in numbers}
        missing = sorted(wanted - {(log.topic, log.partition) for log in logs})
        if missing:
            names = ", ".join(f"{topic}-{number}" for topic, number in missing)
            raise ValueError(f"no log of {names}; there are topics {_some(present)}")
        return [log for log in logs if (log.topic, log.partition) in wanted]
    chosen = list(logs)
    if options.topics is not None:
        unknown = sorted(set(options.topics) - set(present))
        if unknown:
            raise ValueError(f"no log of topic {', '.join(map(repr, unknown))}; there are {_some(present)}")
        chosen = [log for log in chosen if log.topic in options.topics]
    if options.topic_pattern is not None:
        pattern = re.compile(options.topic_pattern)
        chosen = [log for log in chosen if log.topic is not None and pattern.fullmatch(log.topic)]
    if options.partitions is not None:
        chosen = [log for log in chosen if log.partition in options.partitions]
    return chosen


def log_transactions(logs: Sequence[Log], options: ReadOptions) -> list[Transactions | None]:
    """Follow the transactions of each log over its headers; None for each under read_uncommitted."""
    if options.isolation == "read_uncommitted":
        return [None] * len(logs)
    return [log.transactions(crc=options.crc, on_error=options.on_error) for log in logs]


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
    logs: Sequence[Log], options: ReadOptions, transactions: Sequence[Transactions | None] | None = None
) -> list[tuple[Split, ...]]:
    """Share out the bytes of `logs` among tasks.

    Parameters
    ----------
    logs : sequence of Log
        Those that are wanted (`select_logs`).
    options : ReadOptions
    transactions : sequence of Transactions or None, optional
        What `log_transactions` found, where it has been asked already.

    Returns
    -------
    list of tuple of Split
        The splits of each task. All together, in their order, are the logs in theirs, each byte that may be wanted
        once. With ``on_error="stop"`` a log is never shared by tasks, since only who reads all of it knows where it
        stops.

    Raises
    ------
    ValueError
        If offsets or timestamps are given per partition and don't name the partitions that are read, or a starting
        timestamp has no record.
    CorruptBatchError, TruncatedBatchError, CrcMismatchError
        As `require_markers`: with ``on_error="raise"`` damage anywhere in a log is an error if read_committed would
        withhold records that are wanted, since it may be for that damage only.
    """
    starting = _resolve("starting", options.starting, logs, options.latest_if_no_timestamp)
    ending = _resolve("ending", options.ending, logs, True)
    if transactions is None:
        transactions = log_transactions(logs, options)
    return plan_ranges(zip(logs, starting, ending, transactions, strict=True), options)


def plan_ranges(
    ranges: Iterable[tuple[Log, int | None, int | None, Transactions | None]], options: ReadOptions
) -> list[tuple[Split, ...]]:
    """Share out offsets of logs among tasks, as `plan` does once it knows them.

    Parameters
    ----------
    ranges : iterable of (Log, start offset or None, stop offset or None, Transactions or None)
        None is the log's own end on that side; the transactions are those of the whole log, under read_committed.
    options : ReadOptions
        Its bounds are not looked at.
    """
    weighed: list[tuple[int, list[Split]]] = []
    for log, start, stop, known in ranges:
        withheld = known.pending if known is not None else []
        if options.on_error == "raise" and withheld and (stop is None or withheld[0][1] < stop):
            require_markers(log, options)
        if options.on_error == "stop":
            # Damage before the offsets that are wanted doesn't stop the read: seeking has passed it.
            pieces: Iterable[list[Split]] = [list(_log_splits(log, start, stop, None, known))]
        else:
            pieces = ([split] for split in _log_splits(log, start, stop, options.split_bytes, known))
        for piece in pieces:
            weighed.append((sum(split.end - split.start + _OPEN_COST for split in piece), piece))
    return _share_out(weighed, options)


def plan_logs(logs: Sequence[Log], options: ReadOptions) -> list[tuple[LogRange, ...]]:
    """Share out whole logs among tasks, for what has to see all of a log's headers.

    Raises
    ------
    ValueError
        As `plan`.
    """
    starting = _resolve("starting", options.starting, logs, options.latest_if_no_timestamp)
    ending = _resolve("ending", options.ending, logs, True)
    ranges = zip(logs, starting, ending, strict=True)
    weighed = [(log.size + _OPEN_COST, [LogRange(log.path, start, stop)]) for log, start, stop in ranges]
    return _share_out(weighed, options)


def _share_out(weighed: Iterable[tuple[int, list[T]]], options: ReadOptions) -> list[tuple[T, ...]]:
    """Give pieces, in their order and each as a whole, to tasks of about ``split_bytes``."""
    tasks: list[tuple[T, ...]] = []
    held: list[T] = []
    cost = 0
    for weight, piece in weighed:
        if held and cost + weight > options.split_bytes + _OPEN_COST:
            tasks.append(tuple(held))
            held, cost = [], 0
        held += piece
        cost += weight
    if held:
        tasks.append(tuple(held))
    return tasks


def _segment(split: Split, options: ReadOptions) -> Segment:
    return Segment(split.path, live=split.live, storage_options=options.storage, size=split.size)


def _split_tables(split: Split, options: ReadOptions) -> Generator[RecordTable, None, bool]:
    """Decode a split, as `read_tables` does."""
    segment = _segment(split, options)
    decode = DecodeOptions(
        include_control=options.include_control,
        crc=options.crc,
        on_error=options.on_error,
        start_offset=split.start_offset,
        stop_offset=split.stop_offset,
        aborted=split.aborted,
        undecided=split.undecided,
        stable_offset=split.stable_offset,
    )
    return read_tables(segment, split.start, split.end, decode, _TABLE_BYTES)


def task_tables(splits: Sequence[Split], options: ReadOptions) -> Iterator[tuple[Split, RecordTable]]:
    """Decode the splits of a task one after the other, in tables of bounded size.

    A log that ``on_error="stop"`` has stopped is not gone on with: the rest of it is lost.
    """
    stopped: set[str] = set()
    for split in splits:
        if split.log in stopped:
            yield split, lost_table(_segment(split, options), split.start, split.end, NOT_REACHED)
            continue
        tables = _split_tables(split, options)
        while True:
            try:
                table = next(tables)
            except StopIteration as done:
                if done.value:
                    stopped.add(split.log)
                break
            _check_order(table, split)
            table.topic, table.partition = split.topic, split.partition
            yield split, table
            del table


def _check_order(table: RecordTable, split: Split) -> None:
    if split.below is None:
        return
    good = table.batches[BatchStatus.sound(table.batches["status"])]
    if len(good) and int(good["last_offset"][-1]) >= split.below:
        raise LogDirectoryError(
            f"{split.path}: reaches to offset {int(good['last_offset'][-1])}, but the next segment begins at "
            f"{split.below}: the segments overlap; read them one by one",
            source=split.path,
        )


def _resolve(side: str, bound: Bound, logs: Sequence[Log], none_is_latest: bool) -> list[int | None]:
    """Turn a bound into an offset for each log; None is the log's own end on that side."""
    # The earliest offset is where the broker lets the log begin; files may hold more (DSK-R13).
    ends = [log.start_checkpoint if side == "starting" else None for log in logs]
    if bound.offsets is None and bound.timestamps is None and bound.timestamp is None:
        return ends
    given = bound.offsets if bound.offsets is not None else bound.timestamps
    if given is not None:
        named = {(topic, number) for topic, numbers in given.items() for number in numbers}
        read = {(log.topic, log.partition) for log in logs}
        for text, names in (("doesn't name", read - named), ("names, but this read has no", named - read)):
            if names:
                listed = _some(sorted(f"{topic}-{number}" for topic, number in names))
                raise ValueError(f"{side} offsets must be those of the partitions that are read: it {text} {listed}")
    resolved: list[int | None] = []
    for log, own_end in zip(logs, ends, strict=True):
        if bound.offsets is not None:
            offset = bound.offsets[log.topic or ""][log.partition or 0]
            resolved.append(own_end if offset < 0 else offset)
            continue
        timestamp = bound.timestamp
        if bound.timestamps is not None:
            timestamp = bound.timestamps[log.topic or ""][log.partition or 0]
        assert timestamp is not None
        found = log.offset_for_timestamp(timestamp)
        if found is None and not none_is_latest:
            raise ValueError(
                f"{log.path}: no record at or after timestamp {timestamp}; with "
                "startingOffsetsByTimestampStrategy=latest such a partition has nothing to read"
            )
        if found is None and side == "starting":
            found = log.end_offset
        resolved.append(found)
    return resolved


def _log_splits(
    log: Log, start: int | None, stop: int | None, every: int | None, transactions: Transactions | None
) -> Iterator[Split]:
    """Yield the splits of a log between two offsets, in order, each of about `every` bytes at most."""
    ranges = lost = stable = None
    if transactions is not None:
        ranges = AbortedRanges.from_transactions(transactions)
        lost = AbortedRanges.from_rows(transactions.undecided) if len(transactions.undecided) else None
        stable = transactions.last_stable_offset
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
        here = (segment.base_offset or 0, _MOST_OFFSETS if below is None else below)
        aborted = None if ranges is None else ranges.within(*here)
        undecided = None if lost is None else lost.within(*here)
        cuts = [] if every is None else _cuts(segment, begin, end, every)
        for first, last in zip([begin, *cuts], [*cuts, end], strict=True):
            yield Split(
                segment.path,
                first,
                last,
                segment.size,
                segment.live,
                log.topic,
                log.partition,
                start,
                stop,
                below,
                aborted,
                undecided,
                stable,
            )


def _cuts(segment: Segment, begin: int, end: int, every: int) -> list[int]:
    """Choose bytes between `begin` and `end` where a batch begins, about `every` bytes apart.

    Index entries are taken where the bytes agree with them; without, the headers are followed. Damage that can't be
    followed over ends the cutting, and the rest is one piece.
    """
    cuts: list[int] = []
    pieces = -(-(end - begin) // every)
    if pieces < 2:
        return cuts
    # Pieces of one size: none of them a small rest.
    step = (end - begin) / pieces
    index = np.empty(0, np.int64)
    offsets = index
    if segment.base_offset is not None:
        entries = segment.offset_index()
        index, offsets = entries["position"], entries["offset"]
    last = begin
    for piece in range(1, pieces):
        target = begin + int(piece * step)
        if target <= last:
            continue
        entry = int(np.searchsorted(index, target))
        cut: int | None = None
        if entry < len(index) and last < index[entry] < min(target + step, end):
            cut = int(index[entry]) if _is_boundary(segment, index, offsets, entry) else None
        if cut is None:
            cut = _next_batch(segment, last, target)
        if cut is None or cut >= end:
            break
        cuts.append(cut)
        last = cut
    return cuts


def _is_boundary(
    segment: Segment, positions: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], entry: int
) -> bool:
    """Whether a batch that fits the index entry begins at its position, and headers lead on to the entries after."""
    position = int(positions[entry])
    rows = next(iter(segment.scan(position)), None)
    if rows is None:
        return False
    first = rows[0]
    size = int(first["size"])
    if not (segment.base_offset or 0) <= int(first_offsets(rows[:1])[0]) <= int(offsets[entry]):
        return False
    if not crc_holds(segment.window(position, position + size), 0, size):
        return False
    reached = positions[(positions >= position) & (positions <= int(rows["position"][-1]))]
    return bool(np.isin(reached, rows["position"]).all())


def _next_batch(segment: Segment, start: int, target: int) -> int | None:
    """Follow headers from the batch at `start` to the first at `target` or later, whose checksum has to hold."""
    for rows in segment.scan(start):
        later = rows[rows["position"] >= target]
        if len(later):
            position, size = int(later["position"][0]), int(later["size"][0])
            return position if crc_holds(segment.window(position, position + size), 0, size) else None
    return None


def _some(names: Sequence[str], most: int = 10) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "none"
