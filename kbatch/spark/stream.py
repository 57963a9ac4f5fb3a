"""``spark.readStream.format("kbatch")``: log directories that a broker is still writing."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from kbatch import options as opts
from kbatch.errors import LogDirectoryError
from kbatch.log import Log, Segment
from kbatch.log.committed import segment_before
from kbatch.log.segment import inode_of
from kbatch.options import Kind, OptionError, option
from kbatch.plan.following import FollowedLog
from kbatch.plan.read_options import EARLIEST, LATEST, PerPartition, ReadOptions, parse_options, parse_per_partition
from kbatch.plan.rows import Transform, record_batches
from kbatch.plan.split import Split, plan_ranges, require_markers, task_tables
from kbatch.plan.watching import LogState, TopicPartition, WatchedLogs, open_log
from kbatch.table import RecordTable
from kbatch.transactions import Transactions

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    _HAS_LIMITS = True
except ImportError:  # before PySpark 4.2
    _HAS_LIMITS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands for what PySpark doesn't have yet."""


__all__ = ["KbatchStreamReader", "StreamOptions", "parse_stream_options"]

_log = logging.getLogger(__name__)

_REFUSED = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp", "table")
# The end of a query's first batch says under this key where it began. No topic has such a name.
_START = "$start"
# How often a task looks again for records whose file was replaced.
_ATTEMPTS = 10
_HINT = (
    "Some data may have been lost: retention, a truncated log or a deleted topic took it before it was read. "
    "option('failOnDataLoss', 'false') goes on from what there is"
)

Offsets = dict[TopicPartition, int]
T = TypeVar("T")


def _parse_starting(text: str) -> int | PerPartition:
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    try:
        return parse_per_partition(text)
    except ValueError:
        raise ValueError(
            f'must be earliest, latest or JSON such as {{"topic": {{"0": 23, "1": -2}}}}, got {text!r}'
        ) from None


def _check_starting(value: int | PerPartition) -> None:
    numbers = [value] if isinstance(value, int) else [each for parts in value.values() for each in parts.values()]
    if min(numbers, default=0) < EARLIEST:
        raise ValueError(f"must be earliest, latest or JSON with offsets, -2 or -1, got {value}")


def _check_delay(value: float) -> None:
    if not value >= 0:
        raise ValueError(f"must not be negative, got {value}")


@opts.documented
@dataclass(frozen=True)
class StreamOptions:
    """What a stream is asked to do.

    Attributes
    ----------
    read : ReadOptions
        As for a batch read; of its bounds only starting timestamps count.
    {options}
    """

    read: ReadOptions
    fail_on_data_loss: bool = option(
        opts.BOOLEAN, True, spark="failOnDataLoss",
        help="offsets that are gone before they were read are an error; damage in what is there is onError, which is "
        "skip with failOnDataLoss=false unless it is given",
    )  # fmt: skip
    starting: int | PerPartition = option(
        Kind(_parse_starting, "earliest", _check_starting, metavar="JSON", show=lambda value: "latest"),
        LATEST, spark="startingOffsets",
        help="where a new query begins: earliest (-2), latest (-1), or offsets by topic and partition",
    )  # fmt: skip
    max_offsets: int | None = option(
        opts.whole_number(1), None, spark="maxOffsetsPerTrigger", help="offsets of a micro-batch, at most"
    )
    min_offsets: int | None = option(
        opts.whole_number(1), None, spark="minOffsetsPerTrigger",
        help="a micro-batch waits for this number of offsets, up to maxTriggerDelay",
    )  # fmt: skip
    max_bytes: int | None = option(
        opts.size(), None, spark="maxBytesPerTrigger", help="bytes of the files that a micro-batch reads, about"
    )
    # The default is that of Spark's Kafka source.
    max_delay: float = option(
        Kind(opts.parse_duration, "1m", _check_delay, metavar="TIME", show=lambda value: f"{value / 60:g}m"),
        15 * 60.0, spark="maxTriggerDelay",
        help="seconds (or a time such as 15m) after which a micro-batch begins with less than minOffsetsPerTrigger",
    )  # fmt: skip

    def __post_init__(self) -> None:
        opts.check(self)
        if self.max_offsets is not None and self.min_offsets is not None and self.max_offsets < self.min_offsets:
            raise OptionError("{min_offsets} must not be more than {max_offsets}")
        outside = set(self.starting) - set(self.read.assign or self.starting) if isinstance(self.starting, dict) else ()
        if outside:
            raise OptionError("{starting} names {0}, which assign does not", ", ".join(sorted(outside)))


def parse_stream_options(options: Mapping[str, str]) -> tuple[list[str], StreamOptions]:
    """Return the directories to watch and the options, from the strings that Spark hands over.

    Parameters
    ----------
    options : mapping of str to str
        Names in any case; ``docs/options.md`` lists all of them. Those of a batch read are valid too, except endings
        and ``table``. Before PySpark 4.2 limits cannot be combined with ``Trigger.AvailableNow``: it ends after one
        batch there.

    Raises
    ------
    ValueError
        As `parse_options`, and for options that make no sense in a stream.

    Examples
    --------
    >>> from kbatch.spark.stream import parse_stream_options
    >>> given = {"path": "/data", "startingOffsets": "earliest", "maxTriggerDelay": "1m"}
    >>> paths, stream = parse_stream_options(given)
    >>> stream.starting, stream.max_delay, stream.fail_on_data_loss
    (-2, 60.0, True)
    """
    given = {name.lower(): value for name, value in options.items()}
    for name in _REFUSED:
        if name.lower() in given and not (name == "table" and given["table"] == "records"):
            raise ValueError(f"{name} is not valid in streaming queries")
    if given.get("onerror", "").strip().lower() == "stop":
        raise ValueError("onError=stop is not valid in streaming queries: choose raise or skip")
    values, names = opts.from_strings(opts.options_of(StreamOptions), given)
    # failOnDataLoss is about onError too, unless that is given.
    own = {name.lower() for name in names.values() if name != "failOnDataLoss" or "onerror" in given}
    paths, read = parse_options({name: value for name, value in given.items() if name not in own})
    return paths, opts.as_named(lambda: StreamOptions(read, **values), names)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A split, with what finds its records again if its file is replaced (compaction) before it is read."""

    split: Split
    inode: int
    # None if headers of an old magic don't tell.
    start_offset: int | None
    stop_offset: int | None


class KbatchStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows logs from micro-batch to micro-batch.

    Offsets are ``{"topic": {"0": next}}``, as in Spark's Kafka source: the next offset to read of each partition. The
    end of a query's first batch says under ``"$start"`` too where it began, so that the batch can be done again.

    Parameters
    ----------
    paths : list of str
        Directories to watch, on a file system that the driver and the executors have mounted.
    options : StreamOptions
    columns : tuple of str
    values : Transform, optional
        What is made of the batches.
    """

    def __init__(
        self, paths: list[str], options: StreamOptions, columns: tuple[str, ...], values: Transform | None = None
    ) -> None:
        self.paths = paths
        self.options = options
        self.columns = columns
        self.values = values
        # What follows is of the driver's one process; a restart begins without.
        self._watched: WatchedLogs | None = None
        self._followed: dict[TopicPartition, FollowedLog] = {}
        self._stable: dict[TopicPartition, tuple[tuple[object, ...], int | None]] = {}
        self._initial: dict[str, Any] | None = None
        # Where the last batch ends, for PySpark that doesn't say.
        self._reached: dict[str, Any] | None = None
        self._states: dict[TopicPartition, LogState] = {}
        self._latest: Offsets = {}
        self._until_now: Offsets | None = None
        self._is_until_now = False
        self._last_batch = float("-inf")

    # -- what Spark asks

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins, the same each time."""
        if self._initial is None:
            self._initial = _json(self._starts())
        return self._initial

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return where the next micro-batch ends.

        Parameters
        ----------
        start : dict, optional
            Where it begins; before PySpark 4.2 it isn't told, and is where the last one ended.
        limit : ReadLimit, optional
            ``ReadAllAvailable`` puts aside what the options say, if they say anything.
        """
        if start is None:
            start = self._reached if self._reached is not None else self.initialOffset()
        first = start == self._initial
        begin = _offsets(start)
        ends = self._ends(begin)
        self._latest = ends
        every = _HAS_LIMITS and isinstance(limit, ReadAllAvailable)
        if not every:
            ends = self._limited(begin, ends)
        if ends == begin and not first:
            return start
        return {**_json(ends), _START: start} if first else _json(ends)

    def getDefaultReadLimit(self) -> Any:
        """Return a limit that stands for those of the options."""
        options = self.options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_offsets is not None:
            return ReadMinRows(options.min_offsets)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return what there was when last looked, for the query's progress."""
        return _json(self._latest) or None

    def prepareForTriggerAvailableNow(self) -> None:
        """End where the logs end when they are next looked at."""
        self._is_until_now = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a partition for each task of a micro-batch.

        Raises
        ------
        LogDirectoryError
            If offsets between are gone, with ``failOnDataLoss``.
        CorruptBatchError, TruncatedBatchError, CrcMismatchError
            As `kbatch.plan.split.require_markers`, under read_committed with ``onError=raise``.
        """
        self._reached = end
        if start == end:
            # So PySpark before 4.2 says from where a query goes on.
            return []
        # A first batch that is done again begins where it did: Spark asks for the initial offset once more, and what is
        # latest then is another.
        begin, until = _offsets(end.get(_START, start)), _offsets(end)
        return [InputPartition(task) for task in _again_if_gone(lambda: self._plan(begin, until))]

    def _plan(self, begin: Offsets, until: Offsets) -> list[tuple[_Piece, ...]]:
        gone = sorted(begin.keys() - until.keys())
        if gone:
            self._lose(f"{', '.join(map(_name, gone))}: the log is gone; it was read up to {[begin[k] for k in gone]}")
        changed = {key: offset for key, offset in until.items() if begin.get(key) != offset}
        states = self._poll() if changed else {}
        ranges = []
        inodes: dict[str, int] = {}
        for key, stop in changed.items():
            if key in states:
                # Before the log is opened: what is replaced later than this is noticed.
                inodes.update(_inodes(states[key].path))
            found = self._range(key, begin.get(key), stop, states.get(key))
            if found is None:
                continue
            log, first, last = found
            transactions = None
            if self._is_committed:
                transactions = self._follow(key, log, first)
            ranges.append((log, first, last, transactions))
        tasks = plan_ranges(ranges, self.options.read)
        return _pieces(tasks, inodes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one partition names."""
        tables = _tables(partition.value or (), self.options, self.columns)
        return record_batches(tables, self.columns, self.options.read, self.values)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: no more is kept than the next batch needs."""

    def stop(self) -> None:
        """Forget all that was seen."""
        self._watched = None
        self._followed.clear()
        self._stable.clear()

    # -- where logs begin and end

    @property
    def _is_committed(self) -> bool:
        return self.options.read.isolation == "read_committed"

    def _poll(self) -> dict[TopicPartition, LogState]:
        if self._watched is None:
            self._watched = WatchedLogs(self.paths, self.options.read)
        return self._watched.poll()

    def _follow(self, key: TopicPartition, log: Log, start: int) -> Transactions:
        followed = self._followed.setdefault(key, FollowedLog(self.options.read))
        transactions = followed.follow(log, start)
        if self.options.read.on_error == "raise" and not followed.is_whole:
            require_markers(log, self.options.read)
        return transactions

    def _ends(self, begin: Offsets) -> Offsets:
        if self._is_until_now:
            if self._until_now is None:
                self._until_now = _again_if_gone(lambda: self._ends_now(begin))
            return self._until_now
        return _again_if_gone(lambda: self._ends_now(begin))

    def _ends_now(self, begin: Offsets) -> Offsets:
        states = self._states = self._poll()
        for key in self._followed.keys() - states.keys():
            del self._followed[key]
            self._stable.pop(key, None)
        return {key: self._end(key, state, begin.get(key, state.start_offset)) for key, state in states.items()}

    def _end(self, key: TopicPartition, state: LogState, start: int) -> int:
        """Return up to where a log may be read by one who has come to `start`."""
        end = state.end_offset
        if not self._is_committed or end <= start:
            return end
        seen = (state.path, state.last, *state.seen, end)
        known = self._stable.get(key)
        if known is None or known[0] != seen:
            log = open_log(state.path)
            if log is None:
                return start
            known = self._stable[key] = (seen, self._follow(key, log, start).last_stable_offset)
        return end if known[1] is None else max(start, min(end, known[1]))

    def _starts(self) -> Offsets:
        """Resolve where a new query begins."""
        options = self.options
        states = self._poll()
        bound = options.read.starting
        offsets = options.starting if isinstance(options.starting, dict) else None
        given = offsets if bound.timestamps is None else bound.timestamps
        if given is not None and bound.timestamp is None:
            named = {(topic, number) for topic, numbers in given.items() for number in numbers}
            for text, names in (
                ("doesn't name", states.keys() - named),
                ("names, but there is no", named - states.keys()),
            ):
                if names:
                    listed = ", ".join(_name(key) for key in sorted(names)[:10])
                    raise ValueError(
                        f"starting offsets must be those of the partitions that are read: it {text} {listed}"
                    )
        starts = {}
        for key, state in states.items():
            timestamp = bound.timestamp
            if timestamp is None and bound.timestamps is not None:
                timestamp = bound.timestamps[key[0]][key[1]]
            if timestamp is not None:
                log = open_log(state.path)
                offset = None if log is None else log.offset_for_timestamp(timestamp)
                if offset is None and not options.read.latest_if_no_timestamp:
                    raise ValueError(
                        f"{state.path}: no record at or after timestamp {timestamp}; with "
                        "startingOffsetsByTimestampStrategy=latest such a partition begins at its end"
                    )
                offset = LATEST if offset is None else offset
            elif isinstance(options.starting, dict):
                offset = options.starting[key[0]][key[1]]
            else:
                offset = options.starting
            if offset == EARLIEST:
                offset = state.start_offset
            elif offset == LATEST:
                offset = self._latest_readable(key, state)
            starts[key] = offset
        return starts

    def _latest_readable(self, key: TopicPartition, state: LogState) -> int:
        if not self._is_committed:
            return state.end_offset
        log = open_log(state.path)
        stable = None if log is None else self._follow(key, log, state.end_offset).last_stable_offset
        return state.end_offset if stable is None else min(stable, state.end_offset)

    def _range(
        self, key: TopicPartition, start: int | None, stop: int, state: LogState | None
    ) -> tuple[Log, int, int] | None:
        """Return the log and the offsets of it that can be read, after telling what can't."""
        name = _name(key)
        if start is None:
            start = 0 if state is None else state.start_offset
            if start:
                self._lose(f"{name}: found while running, begins at offset {start} instead of 0")
        log = None if state is None else open_log(state.path)
        if state is None or log is None:
            if start < stop:
                self._lose(f"{name}: the log is gone; offsets {start} to {stop - 1} were not read")
            return None
        if stop < start:
            self._lose(f"{name}: the end went back from offset {start} to {stop} (truncated, or created anew)")
            return None
        if start < state.start_offset:
            self._lose(f"{name}: offsets {start} to {min(state.start_offset, stop) - 1} were deleted before they were "
                       f"read; the log begins at {state.start_offset} now")  # fmt: skip
            start = state.start_offset
        if stop > state.end_offset:
            self._lose(f"{name}: offsets {max(start, state.end_offset)} to {stop - 1} are gone; the log ends at "
                       f"{state.end_offset} now (truncated, or created anew)")  # fmt: skip
            stop = state.end_offset
        return (log, start, stop) if start < stop else None

    def _lose(self, message: str) -> None:
        _lose(self.options, message)

    # -- limits

    def _limited(self, begin: Offsets, ends: Offsets) -> Offsets:
        options = self.options
        if options.max_offsets is None and options.min_offsets is None and options.max_bytes is None:
            return ends
        states = self._states
        starts = {key: begin.get(key, states[key].start_offset if key in states else 0) for key in ends}
        backlog = {key: end - starts[key] for key, end in ends.items() if end > starts[key]}
        if options.min_offsets is not None and not self._is_until_now:
            now = time.monotonic()
            if now - self._last_batch < options.max_delay and sum(backlog.values()) < options.min_offsets:
                return begin
            self._last_batch = now
        out = dict(ends)
        if options.max_offsets is not None:
            for key, share in _shares(backlog, options.max_offsets).items():
                out[key] = min(out[key], starts[key] + share)
        if options.max_bytes is not None:
            out.update(self._limited_bytes(starts, {key: out[key] for key in backlog}, states, options.max_bytes))
        return out

    def _limited_bytes(
        self, starts: Offsets, ends: Offsets, states: dict[TopicPartition, LogState], most: int
    ) -> Offsets:
        logs = {key: log for key in ends if key in states and (log := open_log(states[key].path)) is not None}
        sizes = {key: _bytes_from(log, starts[key], states[key]) for key, log in logs.items()}
        return {
            key: min(ends[key], max(_offset_after(logs[key], starts[key], share), starts[key] + 1))
            for key, share in _shares(sizes, most).items()
        }


def _again_if_gone(ask: Callable[[], T]) -> T:
    """Ask again if a segment was deleted or renamed meanwhile."""
    for _ in range(3):
        try:
            return ask()
        except LogDirectoryError as error:
            if error.source is None or os.path.exists(error.source):
                raise
    return ask()


def _shares(backlog: Mapping[TopicPartition, int], limit: int) -> Offsets:
    """Share out a limit in proportion, at least one to each: as ``KafkaMicroBatchStream.rateLimit``."""
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    return {key: max(1, limit * size // total) for key, size in backlog.items()}


def _bytes_from(log: Log, start: int, state: LogState) -> int:
    number = segment_before(log.segments, start)
    size = sum(segment.size for segment in log.segments[number:])
    if log.segments[-1].path == state.last:
        size -= log.segments[-1].size - state.position
    return max(1, size - log.segments[number].seek_offset(start))


def _offset_after(log: Log, start: int, size: int) -> int:
    """Return the offset after the batch that takes the bytes from `start` on to `size` or beyond."""
    number = segment_before(log.segments, start)
    position = log.segments[number].seek_offset(start)
    offset = start
    for segment in log.segments[number:]:
        if segment.size - position <= size and segment is not log.segments[-1]:
            size -= segment.size - position
            position = 0
            continue
        for rows in segment.scan(position):
            ends = rows["position"] + rows["size"] - position
            beyond = ends >= size
            offset = int(rows["last_offset"][int(beyond.argmax()) if beyond.any() else -1]) + 1
            if beyond.any():
                return offset
        size -= segment.size - position
        position = 0
    return offset


# -- tasks


def _pieces(tasks: Sequence[tuple[Split, ...]], inodes: Mapping[str, int]) -> list[tuple[_Piece, ...]]:
    """Say of each split which offsets it holds."""
    splits = [split for task in tasks for split in task]
    bounds: list[tuple[int | None, int | None]] = []
    for i, split in enumerate(splits):
        follows = i > 0 and splits[i - 1].path == split.path and splits[i - 1].end == split.start
        start = _first_offset(split) if follows else split.start_offset
        if follows:
            bounds[-1] = (bounds[-1][0], start)
        stop = split.stop_offset
        if split.below is not None and (stop is None or split.below < stop):
            stop = split.below
        if start is not None and not follows:
            start = max(start, Segment(split.path).base_offset or 0) if os.path.exists(split.path) else start
        bounds.append((start, stop))
    pieces = iter(
        _Piece(split, inodes.get(split.path, -1), *bound) for split, bound in zip(splits, bounds, strict=True)
    )
    return [tuple(next(pieces) for _ in task) for task in tasks]


def _first_offset(split: Split) -> int | None:
    try:
        head = Segment(split.path).window(split.start, split.start + 17).tobytes()
    except LogDirectoryError:
        return None
    return int.from_bytes(head[:8], "big") if len(head) == 17 and head[16] == 2 else None


def _inodes(directory: str) -> dict[str, int]:
    try:
        with os.scandir(directory) as entries:
            return {entry.path: entry.inode() for entry in entries if ".log" in entry.name}
    except OSError:
        return {}


def _tables(
    pieces: Sequence[_Piece], options: StreamOptions, columns: tuple[str, ...]
) -> Iterator[tuple[Split, RecordTable]]:
    for piece in pieces:
        splits: Sequence[Split] = (piece.split,)
        inodes = {piece.split.path: piece.inode}
        attempts = 0
        while True:
            if attempts < _ATTEMPTS and not all(_is_same(each.path, inodes[each.path]) for each in splits):
                # Deleted, or replaced by the log cleaner: its records are looked for again by their offsets.
                attempts += 1
                splits = _planned_again(piece, options)
                inodes = {each.path: inode_of(each.path) for each in splits}
                continue
            given = False
            try:
                for each in task_tables(splits, options.read, columns):
                    given = True
                    yield each
                break
            except LogDirectoryError:
                if given or attempts >= _ATTEMPTS or all(os.path.exists(each.path) for each in splits):
                    raise


def _is_same(path: str, inode: int) -> bool:
    return inode != -1 and inode_of(path) == inode


def _planned_again(piece: _Piece, options: StreamOptions) -> Sequence[Split]:
    split, start, stop = piece.split, piece.start_offset, piece.stop_offset
    name = f"{split.topic}-{split.partition}"
    if start is None or stop is None:
        raise LogDirectoryError(
            f"{split.path}: was replaced while it was read; restart the query, which plans anew", source=split.path
        )
    log = open_log(split.log)
    earliest = stop if log is None else max(log.segments[0].base_offset or 0, log.start_checkpoint or 0)
    if start < earliest:
        _lose(
            options,
            f"{name}: offsets {start} to {min(earliest, stop) - 1} were deleted after they were planned ({split.path})",
        )
        start = earliest
    if log is None or start >= stop:
        return ()
    tasks = plan_ranges([(log, start, stop, None)], replace(options.read, split_bytes=1 << 62))
    return [
        replace(
            each,
            aborted=split.aborted,
            undecided=split.undecided,
            stable_offset=split.stable_offset,
        )
        for task in tasks
        for each in task
    ]


def _lose(options: StreamOptions, message: str) -> None:
    """Tell that offsets are gone: an error, or a warning."""
    if options.fail_on_data_loss:
        raise LogDirectoryError(f"{message}. {_HINT}")
    _log.warning("%s", message)


def _name(key: TopicPartition) -> str:
    return f"{key[0]}-{key[1]}"


def _offsets(offset: Mapping[str, Any]) -> Offsets:
    return {
        (topic, int(number)): next_offset
        for topic, numbers in offset.items()
        if topic != _START
        for number, next_offset in numbers.items()
    }


def _json(offsets: Offsets) -> dict[str, Any]:
    """Return offsets in one order: Spark compares them as text."""
    out: dict[str, Any] = {}
    for (topic, number), offset in sorted(offsets.items()):
        out.setdefault(topic, {})[str(number)] = offset
    return out
