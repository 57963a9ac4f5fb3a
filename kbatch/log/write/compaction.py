"""Compaction: what Kafka's log cleaner makes of a log.

The rules are those of Kafka 4's ``Cleaner`` (``cleanInto``, ``shouldRetainRecord``), ``CleanedTransactionMetadata`` and
``MemoryRecords.filterTo``; CMP-R1 to CMP-R9. A log is read twice: once for the last offset of every key, and once to
keep what is still wanted. Memory holds a hash of each key, and a table's worth of batches.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kbatch.errors import InvalidRecordError, LimitExceededError, LogDirectoryError
from kbatch.format import ATTRIBUTE_CONTROL, BATCH_DTYPE, INT32_MAX, INT64_MAX, NO_TIMESTAMP, Limits
from kbatch.kernels.keymap import KeyOffsets
from kbatch.log.committed import follow_transactions
from kbatch.log.logs import Log
from kbatch.log.reading import read_tables
from kbatch.log.segment import Segment
from kbatch.log.write.cleaning import Cleaning, Compaction, Producers
from kbatch.log.write.log_writer import LogWriter
from kbatch.log.write.rewriting import check_out
from kbatch.log.write.side_files import copy_beside, names_beside
from kbatch.read.committed import committed
from kbatch.read.decode_options import DecodeOptions
from kbatch.records.data import Loss
from kbatch.table import RecordTable
from kbatch.transactions import Transactions
from kbatch.write.batch_layout import check_range
from kbatch.write.batch_layout import now as time_of_call
from kbatch.write.inputs import millisecond

__all__ = ["Compaction", "compact_log"]

_DAY = 86_400_000


def compact_log(
    log: Log | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    now: Any = None,
    delete_retention_ms: int = _DAY,
    min_compaction_lag_ms: int = 0,
    first_dirty_offset: int | None = None,
    include_active: bool = False,
    segment_bytes: int = 1 << 30,
    segment_index_bytes: int = 10 << 20,
    producer_expiration_ms: int = _DAY,
    dedupe_buffer_bytes: int = 128 << 20,
    max_bytes: int = 32 << 20,
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Compaction:
    """Compact a log as Kafka's cleaner does, into a new directory.

    Of every key the last record stays; records without a key and those of aborted transactions go. Tombstones and the
    markers of transactions stay until `delete_retention_ms` after the first compaction that could have dropped them:
    it writes that time into the batch, as its delete horizon. Batches that keep all their records are copied byte for
    byte; the others keep base and last offset, codec, and all other fields of their headers.

    Parameters
    ----------
    log : Log, str or path
        A topic-partition, or one ``.log`` file. It is only read.
    out : str or path
        Directory to make, whose name should be that of the topic-partition; local. Of a single ``.log`` file, the file
        to make. It appears when all of it is there, or not at all.
    now : int or datetime, optional
        Time of the compaction, in milliseconds since the epoch: for tombstones, markers, the lag, and the expiration of
        producers. Default is the time of this call.
    delete_retention_ms : int
        How long consumers may take to read tombstones and markers (``delete.retention.ms``).
    min_compaction_lag_ms : int
        From the first segment on that has a record younger than this, nothing is cleaned (``min.compaction.lag.ms``).
    first_dirty_offset : int, optional
        Where the part begins that was never cleaned: only keys from here on are looked at, to drop records before, too.
        A broker keeps it in ``cleaner-offset-checkpoint``. Default is the beginning of the log, which cleans the log as
        a whole. With it, tombstones of magic 0 and 1 go once their segments' files are `delete_retention_ms` older than
        that of the last clean segment.
    include_active : bool
        Whether the last segment is cleaned. A broker never cleans it, since it writes to it.
    segment_bytes : int
        Neighbouring segments that together are no larger become one (``segment.bytes``).
    segment_index_bytes : int
        The same, for each of their index files (``segment.index.bytes``).
    producer_expiration_ms : int
        For how long after its last batch a producer is known (``producer.id.expiration.ms``). Of those that are, the
        batch with the last sequence stays, if only its header.
    dedupe_buffer_bytes : int
        Memory for keys, 24 bytes each (``log.cleaner.dedupe.buffer.size``); it is used as it is needed, and half as
        much again while it grows.
    max_bytes : int
        What decoded records may take at a time, about; one batch is decoded at least.
    limits : kbatch.Limits, optional
    progress : callable, optional
        Called now and then with bytes done and bytes in all; the log is counted twice.

    Returns
    -------
    Compaction

    Raises
    ------
    LimitExceededError
        If there are more keys than `dedupe_buffer_bytes` has room for.
    LogDirectoryError
        If there is something at `out`, if it lies in the log, if a log of several segments is to be one file, or `log`
        can't be read as one.
    CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, TruncatedBatchError
        If a segment is damaged: nothing is compacted around damage.

    Notes
    -----
    As Kafka 4 does, batches of magic 0 and 1 that stay are written as magic 2. In three things this goes its own ways,
    none of which loses what Kafka keeps. Where an open transaction begins within a segment, Kafka looks at the keys of
    the whole segment, open transaction and all; here the cleaned part ends before it. Where the last entry of the
    cleaned part is of magic 0 or 1 and has to go, Kafka's cleaner gives up; here an empty batch of magic 2 stays for
    it. And where the keys don't fit in memory, Kafka cleans a part of the log; here that is an error.

    Examples
    --------
    >>> import tempfile
    >>> from kbatch.log import compact_log
    >>> with tempfile.TemporaryDirectory() as where:
    ...     done = compact_log("tests/golden/logs/compact-src-0", f"{where}/compact-src-0", include_active=True)
    >>> done.records_in, done.records_out, done.keys
    (100, 20, 19)
    """
    time = time_of_call() if now is None else millisecond(now)
    for name, value, least, most in (
        ("now", time, 0, INT64_MAX),
        ("delete_retention_ms", delete_retention_ms, 0, INT64_MAX - time),
        ("min_compaction_lag_ms", min_compaction_lag_ms, 0, INT64_MAX),
        ("producer_expiration_ms", producer_expiration_ms, 0, INT64_MAX),
        ("first_dirty_offset", 0 if first_dirty_offset is None else first_dirty_offset, 0, INT64_MAX),
        ("segment_bytes", segment_bytes, 1, INT32_MAX),
        ("segment_index_bytes", segment_index_bytes, 24, INT32_MAX),
        ("dedupe_buffer_bytes", dedupe_buffer_bytes, 64, INT64_MAX),
        ("max_bytes", max_bytes, 1, INT64_MAX),
    ):
        check_range(name, value, least, most)
    if not isinstance(log, Log):
        log = Log(log)
    check_out(log, os.fspath(out))
    segments = log.segments
    options = DecodeOptions(isolation="read_committed", limits=limits if limits is not None else Limits())
    survey = _survey(segments)
    transactions = follow_transactions(segments, options)
    start = max(log.start_checkpoint or 0, _base(segments[0]), first_dirty_offset or 0)
    end = survey.end_offset if include_active else _base(segments[-1])
    if transactions.last_stable_offset is not None:
        end = min(end, transactions.last_stable_offset)
    if min_compaction_lag_ms:
        end = min(end, _first_young(segments, survey, start, time - min_compaction_lag_ms))
    # Of a part without an offset nothing is cleaned.
    end = end if end > start else 0
    result = Compaction(first_dirty_offset=start, end_offset=max(start, end), bytes_in=log.size)
    result.segments_in = len(segments)
    told = _Progress(progress, 2 * log.size)
    options = committed(options, transactions)
    keys = KeyOffsets(dedupe_buffer_bytes)
    clean = [segment for segment in segments if _base(segment) < start]
    legacy_horizon = _modified(clean[-1]) - delete_retention_ms if first_dirty_offset and clean else 0
    cleaning = Cleaning(
        keys,
        end,
        time,
        time + delete_retention_ms,
        transactions.aborted,
        _active_producers(survey, transactions, time - producer_expiration_ms),
        result,
    )
    groups = _grouped(segments, end, segment_bytes, segment_index_bytes)
    mapped = replace(options, start_offset=start, columns=("offset", "key"))
    cleaned = replace(options, include_control=True)
    # What is copied is looked at too, so that no damage is passed on.
    copied = DecodeOptions(include_control=True, limits=options.limits, columns=("offset",))
    with LogWriter(
        out,
        base_offset=_base(segments[0]),
        segment_bytes=INT32_MAX,
        segment_index_bytes=segment_index_bytes,
        follow_transactions=False,
    ) as writer:
        for segment in segments:
            for table in told.tables(segment, 0, _end_within(segment, end), mapped, max_bytes):
                _note_keys(keys, table)
            told.reach(segment)
        for number, group in enumerate(groups):
            if number:
                writer.roll(_base(group[0]))
            for segment in group:
                cleaning.keeps_legacy_tombstones = _modified(segment) > legacy_horizon
                cut = _end_within(segment, end)
                for table in told.tables(segment, 0, cut, cleaned, max_bytes):
                    cleaning.clean(table, segment, writer)
                for table in told.tables(segment, cut, segment.size, copied, max_bytes):
                    cleaning.copy(table, segment, writer)
                told.reach(segment)
        if not log.path.endswith(".log"):
            result.damage = _copy_beside(log, writer)
    result.keys = len(keys)
    _set_times(os.fspath(out), writer.segments, groups)
    result.tail_bytes = log.size - cleaning.bytes_seen
    result.segments_out = len(writer.segments)
    result.bytes_out = writer.bytes_written
    return result


def _copy_beside(log: Log, writer: LogWriter) -> list[Loss]:
    """Copy what stands beside segments; of producer snapshots a cleaner leaves those of its segments, and the last."""
    beside = names_beside(log)
    last = max((snapshot for snapshot in beside.values() if snapshot is not None), default=None)
    there = {*writer.segments, last, None}
    return copy_beside(log, [name for name, snapshot in beside.items() if snapshot in there], writer)


def _base(segment: Segment) -> int:
    if segment.base_offset is None:
        raise LogDirectoryError(
            f"{segment.path}: the name doesn't say the base offset (20 digits and '.log')", source=segment.path
        )
    return segment.base_offset


class _Progress:
    """Tables of segments, while it is told how far they have got."""

    def __init__(self, tell: Callable[[int, int], None] | None, total: int) -> None:
        self._tell = tell
        self._total = total
        self._before = 0

    def tables(
        self, segment: Segment, start: int, end: int, options: DecodeOptions, max_bytes: int
    ) -> Iterator[RecordTable]:
        """Decode the batches from byte `start` up to `end`."""
        position = start
        if start >= end:
            return
        for table in read_tables(segment, start, end, options, max_bytes):
            position += table.consumed
            yield table
            del table
            if self._tell is not None:
                self._tell(self._before + position, self._total)

    def reach(self, segment: Segment) -> None:
        """Take a segment for done."""
        self._before += segment.size
        if self._tell is not None:
            self._tell(self._before, self._total)


@dataclass(frozen=True, slots=True)
class _Survey:
    """What the headers of a log tell: of each producer its last batch or marker, and its last batch of data."""

    last: npt.NDArray[np.void]
    last_data: npt.NDArray[np.void]
    max_timestamps: list[int]
    end_offset: int


def _survey(segments: Sequence[Segment]) -> _Survey:
    last = last_data = np.empty(0, BATCH_DTYPE)
    times = []
    end = _base(segments[0])
    for segment in segments:
        if _base(segment) < end:
            raise LogDirectoryError(
                f"{segment.path}: begins at offset {segment.base_offset}, but the segment before reaches to {end - 1}: "
                "the segments overlap",
                source=segment.path,
            )
        end = _base(segment)
        largest = NO_TIMESTAMP
        for rows in segment.scan():
            largest = max(largest, int(rows["max_timestamp"].max()))
            end = int(rows["last_offset"][-1]) + 1
            control = rows["attributes"] & ATTRIBUTE_CONTROL != 0
            # An empty control batch updates nothing (PRD-R14).
            rows = rows[(rows["magic"] == 2) & (rows["producer_id"] >= 0) & ~(control & (rows["record_count"] == 0))]
            last = _last_of_each(np.concatenate([last, rows]))
            data = rows[rows["attributes"] & ATTRIBUTE_CONTROL == 0]
            last_data = _last_of_each(np.concatenate([last_data, data]))
        times.append(largest)
    return _Survey(last, last_data, times, end)


def _last_of_each(rows: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Choose the last row of every producer; they ascend by producer id."""
    _, backwards = np.unique(rows["producer_id"][::-1], return_index=True)
    return rows[len(rows) - 1 - backwards]


def _active_producers(survey: _Survey, transactions: Transactions, expired: int) -> Producers:
    """Say which producers a broker would know (``ProducerStateManager``), and what it knows of them.

    A marker of a new epoch makes it forget the batches before. With an open transaction no producer expires.
    """
    last = survey.last
    still_open = [each.producer_id for each in transactions.open]
    last = last[(last["max_timestamp"] > expired) | np.isin(last["producer_id"], still_open)]
    offsets = np.full(len(last), -1, np.int64)
    at = np.searchsorted(survey.last_data["producer_id"], last["producer_id"])
    at = np.minimum(at, max(len(survey.last_data) - 1, 0))
    if len(survey.last_data):
        data = survey.last_data[at]
        known = (data["producer_id"] == last["producer_id"]) & (data["producer_epoch"] == last["producer_epoch"])
        offsets[known] = data["last_offset"][known]
    return Producers(last["producer_id"].copy(), last["producer_epoch"].copy(), offsets)


def _first_young(segments: Sequence[Segment], survey: _Survey, start: int, time: int) -> int:
    """Return where the first segment begins that has something later than `time`, and is not clean."""
    for i, segment in enumerate(segments):
        is_dirty = i + 1 == len(segments) or _base(segments[i + 1]) > start
        if is_dirty and survey.max_timestamps[i] > time:
            return _base(segment)
    return INT64_MAX


def _end_within(segment: Segment, end: int) -> int:
    """Return the byte of a segment at which the batches up to offset `end` end."""
    return 0 if _base(segment) >= end else segment.seek_offset(end)


def _modified(segment: Segment) -> int:
    """Return when a segment was written last, in milliseconds since the epoch."""
    found = segment.storage.find(segment.path)
    return 0 if found is None else found.mtime // 1_000_000


def _note_keys(keys: KeyOffsets, table: RecordTable) -> None:
    rows = table.records
    if len(rows) and rows["offset"].min() < 0:
        row = int(np.argmin(rows["offset"]))
        raise InvalidRecordError(f"{table.source}: offset {rows['offset'][row]}; none may be negative")
    if keys.add(rows["offset"], rows["key_pos"], rows["key_len"], table.data) < len(rows):
        raise LimitExceededError(
            f"{table.source}: more than {keys.most_keys} different keys up to here, for which a dedupe buffer of "
            f"{keys.max_bytes} bytes has no room; each takes 24 bytes and a tenth: give a larger dedupe_buffer_bytes",
            source=table.source,
        )


def _grouped(segments: Sequence[Segment], end: int, segment_bytes: int, index_bytes: int) -> list[list[Segment]]:
    """Group segments as ``Cleaner.groupSegmentsBySize``; those that aren't cleaned stay by themselves."""
    groups: list[list[Segment]] = []
    sizes: tuple[int, ...] = (0, 0, 0)
    for i, segment in enumerate(segments):
        own = segment.size, _size_beside(segment, ".index"), _size_beside(segment, ".timeindex")
        total = tuple(a + b for a, b in zip(sizes, own, strict=True))
        following = segments[i + 1 : i + 2]
        last = (_base(following[0]) if following and _base(following[0]) < end else end) - 1
        fits = (
            groups
            and _base(segment) < end
            and total[0] <= segment_bytes
            and max(total[1:]) <= index_bytes
            and (segment.size == 0 or last - _base(groups[-1][0]) <= INT32_MAX)
        )
        if fits:
            groups[-1].append(segment)
            sizes = total
        else:
            groups.append([segment])
            sizes = own
    return groups


def _size_beside(segment: Segment, suffix: str) -> int:
    found = segment.storage.find(segment.sibling(suffix)) if segment.has(suffix) else None
    return 0 if found is None else found.size or 0


def _set_times(out: str, bases: Sequence[int], groups: Sequence[Sequence[Segment]]) -> None:
    """Give segments the time of the last one that went into them: retention and later compactions go by it."""
    firsts = [_base(group[0]) for group in groups]
    for base in bases:
        modified = _modified(groups[bisect_right(firsts, base) - 1][-1])
        path = out if out.endswith(".log") else os.path.join(out, f"{base:020d}.log")
        for suffix in (".log", ".index", ".timeindex"):
            each = path.removesuffix(".log") + suffix
            if os.path.exists(each):
                os.utime(each, ns=(modified * 1_000_000, modified * 1_000_000))
