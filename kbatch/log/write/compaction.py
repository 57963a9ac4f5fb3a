"""Compaction of a log, as Kafka's log cleaner does it.

The rules come from Kafka 4's ``Cleaner`` (``cleanInto``, ``shouldRetainRecord``), ``CleanedTransactionMetadata`` and
``MemoryRecords.filterTo``; CMP-R1 to CMP-R9. A log is read twice: first for the last offset of every key, then to write
the records that remain. Memory holds a hash of each key, and the batches of one table.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.errors import CorruptBatchError, LimitExceededError
from kbatch.format import ATTRIBUTE_CONTROL, BATCH_DTYPE, INT32_MAX, INT64_MAX, NO_TIMESTAMP, Limits
from kbatch.kernels.keymap import KeyOffsets
from kbatch.log.committed import follow_transactions
from kbatch.log.logs import Log
from kbatch.log.reading import read_tables
from kbatch.log.segment import Segment, check_order
from kbatch.log.store.segment_file import WALK_BATCHES
from kbatch.log.write.cleanable import Cleanable, CountingWriter, base_of, cleanable_part
from kbatch.log.write.cleaning import Cleaning, Compaction, Producers
from kbatch.log.write.log_writer import LogWriter
from kbatch.log.write.rewriting import check_out, copy_side_files, side_files
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike, TimeLike, parse_time, size_between
from kbatch.read.decode_options import DecodeOptions
from kbatch.records.loss_list import Loss
from kbatch.table import RecordTable
from kbatch.transactions import Transactions
from kbatch.write.batch_layout import check_range
from kbatch.write.batch_layout import now as time_of_call

__all__ = ["Compaction", "compact_log"]

_DAY_IN_MS = 86_400_000


@public_in("kbatch.log")
def compact_log(
    log: Log | str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
    *,
    dry_run: bool = False,
    now: TimeLike | None = None,
    delete_retention_ms: int = _DAY_IN_MS,
    min_compaction_lag_ms: int = 0,
    min_cleanable_dirty_ratio: float = 0.0,
    first_dirty_offset: int | None = None,
    include_active: bool = False,
    segment_bytes: SizeLike = 1 << 30,
    segment_index_bytes: SizeLike = 10 << 20,
    producer_expiration_ms: int = _DAY_IN_MS,
    dedupe_buffer_bytes: SizeLike = 128 << 20,
    max_bytes: SizeLike = 32 << 20,
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Compaction:
    """Compact a log as Kafka's cleaner does, into a new directory.

    The last record of every key stays; records without a key and records of aborted transactions are removed.
    Tombstones and transaction markers stay until `delete_retention_ms` after the first compaction that could have
    removed them. That compaction stores this time in the batch, as its delete horizon. Batches that keep all their
    records are copied byte for byte; the others keep base and last offset, codec, and all other header fields.

    Parameters
    ----------
    log : Log, str or path
        A topic-partition, or one ``.log`` file. It is not modified.
    out : str or path
        Local directory to create, with the name of the topic-partition; for a single ``.log`` file, the file to create.
        It appears only after the compaction has succeeded. None with `dry_run`.
    dry_run : bool
        Whether to count only what a compaction would do. The log is read as for a compaction, and nothing is written.
    now : int, datetime, datetime64, timedelta or str, optional
        Time of the compaction, as for `Log.tables`. It applies to tombstones, markers, the lag, and the
        expiration of producers. Default is the time of this call.
    delete_retention_ms : int
        How long tombstones and markers stay readable (``delete.retention.ms``).
    min_compaction_lag_ms : int
        Cleaning ends before the first segment that has a record younger than this (``min.compaction.lag.ms``).
    min_cleanable_dirty_ratio : float
        Nothing is cleaned unless a larger part of the bytes is dirty (``min.cleanable.dirty.ratio``, which is 0.5 by
        default on a broker); 0 cleans any log. Without `first_dirty_offset` all bytes are dirty.
    first_dirty_offset : int, optional
        First offset of the part that was never cleaned. Only keys from here on are collected; earlier records with
        these keys are removed too. A broker keeps this offset in ``cleaner-offset-checkpoint``. By default the whole
        log is cleaned. With this offset, tombstones of magic 0 and 1 are removed if the file of their segment is
        `delete_retention_ms` older than the file of the last clean segment.
    include_active : bool
        Whether to clean the last segment. A broker never does, since it writes to it.
    segment_bytes : int or str
        Adjacent segments are merged up to this size (``segment.bytes``).
    segment_index_bytes : int or str
        The same limit, for each of their index files (``segment.index.bytes``).
    producer_expiration_ms : int
        How long a producer is known after its last batch (``producer.id.expiration.ms``). The batch with the last
        sequence of a known producer stays, at least its header.
    dedupe_buffer_bytes : int or str
        Memory for keys, 24 bytes each (``log.cleaner.dedupe.buffer.size``). It is allocated as needed; while it
        grows, it takes half as much again.
    max_bytes : int or str
        Approximate limit on the decoded records in memory; at least one batch is decoded.
    limits : kbatch.Limits, optional
    progress : callable, optional
        Called from time to time with the bytes processed and the total. The total is twice the size of the log, which
        is read twice.

    Returns
    -------
    Compaction

    Raises
    ------
    LimitExceededError
        If `dedupe_buffer_bytes` is too small for the keys.
    LogDirectoryError
        If `out` exists or is inside the log, if `out` is one file and the log has several segments, or if `log` can't
        be read as a log.
    CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, TruncatedBatchError
        If a segment is damaged. Damage is never skipped.

    Notes
    -----
    As in Kafka 4, batches of magic 0 and 1 that stay are written as magic 2. There are three differences from Kafka;
    none removes a record that Kafka keeps. If an open transaction begins within a segment, Kafka collects the keys of
    the whole segment, including the open transaction; here the cleaned part ends before it. If the last entry of the
    cleaned part has magic 0 or 1 and is to be removed, Kafka's cleaner fails; here an empty batch of magic 2 replaces
    it. If the keys do not fit in memory, Kafka cleans a part of the log; here that is an error.

    Examples
    --------
    >>> import tempfile
    >>> from kbatch.log import compact_log
    >>> with tempfile.TemporaryDirectory() as where:
    ...     done = compact_log("tests/golden/logs/compact-src-0", f"{where}/compact-src-0", include_active=True)
    >>> done.records_in, done.records_out, done.keys
    (99, 19, 19)
    """
    check_types(compact_log, locals())
    time = time_of_call() if now is None else parse_time(now, "now")
    segment_bytes = size_between("segment_bytes", segment_bytes, 1, INT32_MAX)
    segment_index_bytes = size_between("segment_index_bytes", segment_index_bytes, 24, INT32_MAX)
    dedupe_buffer_bytes = size_between("dedupe_buffer_bytes", dedupe_buffer_bytes, 64)
    max_bytes = size_between("max_bytes", max_bytes, 1)
    _check_numbers(
        time, delete_retention_ms, min_compaction_lag_ms, producer_expiration_ms, first_dirty_offset,
        min_cleanable_dirty_ratio,
    )  # fmt: skip
    if not isinstance(log, Log):
        log = Log(log)
    _check_target(log, out, dry_run)
    segments = log.segments
    options = DecodeOptions(isolation="read_committed", limits=limits if limits is not None else Limits())
    survey = _survey(segments)
    transactions = follow_transactions(segments, options)
    _check_decided(log, transactions)
    start = max(log.start_checkpoint or 0, base_of(segments[0]), int(first_dirty_offset or 0))
    part = cleanable_part(
        segments,
        start,
        survey.end_offset,
        include_active=include_active,
        last_stable_offset=transactions.last_stable_offset,
        max_timestamps=survey.max_timestamps,
        newest=time - min_compaction_lag_ms if min_compaction_lag_ms else None,
        min_ratio=min_cleanable_dirty_ratio,
    )
    # If the part to clean is empty, the whole log is copied unchanged.
    end = part.end if part.end > start else 0
    result = _result(log, part, transactions, dry_run)
    clean = [segment for segment in segments if base_of(segment) < start]
    cleaning = Cleaning(
        KeyOffsets(dedupe_buffer_bytes),
        end,
        time,
        time + delete_retention_ms,
        transactions.aborted,
        _active_producers(survey, transactions, time - producer_expiration_ms),
        result,
    )
    groups = _grouped(segments, end, segment_bytes, segment_index_bytes)
    with _new_writer(None if dry_run else out, base_of(segments[0]), segment_index_bytes) as writer:
        reading = _Reading(options, transactions, max_bytes, progress, 2 * log.size)
        reading.collect_keys(segments, cleaning.keys, start, end)
        horizon = _modified(clean[-1]) - delete_retention_ms if first_dirty_offset and clean else 0
        reading.clean(groups, cleaning, horizon, writer)
        if isinstance(writer, LogWriter) and not log.path.endswith(".log"):
            result.damage = _copy_side_files(log, writer)
    result.keys = len(cleaning.keys)
    if out is not None and not dry_run:
        _copy_mtimes(os.fspath(out), writer.segments, groups)
    result.tail_bytes = log.size - cleaning.bytes_seen
    result.segments_out = len(writer.segments)
    result.bytes_out = writer.bytes_written
    return result


def _check_numbers(
    now: int,
    delete_retention_ms: int,
    min_compaction_lag_ms: int,
    producer_expiration_ms: int,
    first_dirty_offset: int | None,
    min_ratio: float,
) -> None:
    for name, value, low, high in (
        ("now", now, 0, INT64_MAX),
        ("delete_retention_ms", delete_retention_ms, 0, INT64_MAX - now),
        ("min_compaction_lag_ms", min_compaction_lag_ms, 0, INT64_MAX),
        ("producer_expiration_ms", producer_expiration_ms, 0, INT64_MAX),
        ("first_dirty_offset", 0 if first_dirty_offset is None else first_dirty_offset, 0, INT64_MAX),
    ):
        check_range(name, value, low, high)
    if not 0 <= min_ratio <= 1:
        raise ValueError(f"min_cleanable_dirty_ratio must be from 0 to 1, got {min_ratio}")


def _check_target(log: Log, out: str | os.PathLike[str] | None, dry_run: bool) -> None:
    if out is not None:
        check_out(log, os.fspath(out))
    elif not dry_run:
        raise ValueError("out is required, except with dry_run=True")


def _result(log: Log, part: Cleanable, transactions: Transactions, dry_run: bool) -> Compaction:
    """Return the result before the log is read."""
    return Compaction(
        first_dirty_offset=part.start,
        end_offset=part.end,
        limit=part.limit,
        clean_bytes=part.clean_bytes,
        dirty_bytes=part.dirty_bytes,
        open_transactions=transactions.open,
        dry_run=dry_run,
        bytes_in=log.size,
        segments_in=len(log.segments),
    )


def _new_writer(out: str | os.PathLike[str] | None, base_offset: int, index_bytes: int) -> LogWriter | CountingWriter:
    """Return the writer of the compacted log, or without `out` one that only counts."""
    if out is None:
        return CountingWriter(base_offset)
    return LogWriter(
        out,
        base_offset=base_offset,
        segment_bytes=INT32_MAX,
        segment_index_bytes=index_bytes,
        follow_transactions=False,
    )


def _copy_side_files(log: Log, writer: LogWriter) -> list[Loss]:
    """Copy the log's side files; a cleaner keeps the producer snapshots of its segments, and the last one."""
    snapshots = side_files(log)
    last = max((snapshot for snapshot in snapshots.values() if snapshot is not None), default=None)
    kept = {*writer.segments, last, None}
    return copy_side_files(log, [name for name, snapshot in snapshots.items() if snapshot in kept], writer)


class _Reading:
    """The two passes over the segments, with their progress."""

    def __init__(
        self,
        options: DecodeOptions,
        transactions: Transactions,
        max_bytes: int,
        progress: Callable[[int, int], None] | None,
        total: int,
    ) -> None:
        self._options = options
        self._withheld = transactions._withheld_of_log()
        self._max_bytes = max_bytes
        self._progress = progress
        self._total = total
        self._before = 0

    def collect_keys(self, segments: Sequence[Segment], keys: KeyOffsets, start: int, end: int) -> None:
        """Add the last offset of each key between two offsets to `keys`."""
        for segment in segments:
            options = replace(self._committed(segment), start_offset=start, columns=("offset", "key"))
            for table in self._tables(segment, 0, _end_within(segment, end), options):
                _add_keys(keys, table)
            self._finish(segment)

    def clean(
        self, groups: Sequence[list[Segment]], cleaning: Cleaning, horizon: int, writer: LogWriter | CountingWriter
    ) -> None:
        """Write each group of segments as one; tombstones of magic 0 and 1 stay in files modified after `horizon`."""
        # Copied batches are decoded too, so that no damage is copied.
        copied = DecodeOptions(include_control=True, limits=self._options.limits, columns=("offset",))
        for number, group in enumerate(groups):
            if number:
                writer.roll(base_of(group[0]))
            for segment in group:
                cleaning.keeps_legacy_tombstones = _modified(segment) > horizon
                end = _end_within(segment, cleaning.end)
                cleaned = replace(self._committed(segment), include_control=True)
                for table in self._tables(segment, 0, end, cleaned):
                    cleaning.clean(table, segment, writer)
                for table in self._tables(segment, end, segment.size, copied):
                    cleaning.copy(table, segment, writer)
                self._finish(segment)

    def _committed(self, segment: Segment) -> DecodeOptions:
        return replace(self._options, withheld=self._withheld.of_segment(segment.path))

    def _tables(self, segment: Segment, start: int, end: int, options: DecodeOptions) -> Iterator[RecordTable]:
        """Decode the batches from byte `start` up to `end`."""
        position = start
        if start >= end:
            return
        for table in read_tables(segment, start, end, options, self._max_bytes):
            position += table.consumed
            yield table
            del table
            self._report(position)

    def _finish(self, segment: Segment) -> None:
        self._before += segment.size
        self._report(0)

    def _report(self, position: int) -> None:
        if self._progress is not None:
            self._progress(self._before + position, self._total)


@dataclass(frozen=True, slots=True)
class _Survey:
    """Facts from the headers of a log.

    `last` has the last batch or marker of each producer, `last_data` its last data batch; both sorted by producer id.
    """

    last: npt.NDArray[np.void]
    last_data: npt.NDArray[np.void]
    max_timestamps: list[int]
    end_offset: int


def _survey(segments: Sequence[Segment]) -> _Survey:
    last, last_data = _LastOfEach(), _LastOfEach()
    times = []
    before, reached = "", None
    for segment in segments:
        check_order(before, reached, segment.path, base_of(segment))
        before, reached = segment.path, base_of(segment) - 1
        largest = NO_TIMESTAMP
        for rows in segment.scan():
            largest = max(largest, int(rows["max_timestamp"].max()))
            reached = int(rows["last_offset"][-1])
            control = rows["attributes"] & ATTRIBUTE_CONTROL != 0
            # An empty control batch updates nothing (PRD-R14).
            rows = rows[(rows["magic"] == 2) & (rows["producer_id"] >= 0) & ~(control & (rows["record_count"] == 0))]
            last.add(rows)
            last_data.add(rows[rows["attributes"] & ATTRIBUTE_CONTROL == 0])
        times.append(largest)
    return _Survey(last.reduce(), last_data.reduce(), times, base_of(segments[0]) if reached is None else reached + 1)


class _LastOfEach:
    """Collects the last row of every producer. Rows are reduced when they have doubled."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.void]] = []
        self._rows = self._producers = 0

    def add(self, rows: npt.NDArray[np.void]) -> None:
        """Add further batch headers, of dtype BATCH_DTYPE."""
        self._parts.append(rows)
        self._rows += len(rows)
        if self._rows > 2 * self._producers + WALK_BATCHES:
            self.reduce()

    def reduce(self) -> npt.NDArray[np.void]:
        """Return the last row of every producer so far, by producer id."""
        rows = np.concatenate([np.empty(0, BATCH_DTYPE), *self._parts])
        _, backwards = np.unique(rows["producer_id"][::-1], return_index=True)
        rows = rows[len(rows) - 1 - backwards]
        self._parts, self._rows, self._producers = [rows], len(rows), len(rows)
        return rows


def _check_decided(log: Log, transactions: Transactions) -> None:
    """Raise if the outcome of a transaction is unknown: its records can neither be kept nor removed."""
    if len(undecided := transactions.undecided):
        row = undecided[0]
        raise CorruptBatchError(
            f"{log.path}: the transaction of producer {row['producer_id']} from offset {row['first_offset']} to "
            f"{row['last_offset']} is undecided, since bytes are damaged or offsets do not ascend after it; run "
            "kbatch verify, and restore the log from another replica before it is compacted",
            source=log.path,
            base_offset=int(row["first_offset"]),
        )


def _active_producers(survey: _Survey, transactions: Transactions, expired: int) -> Producers:
    """Return the producers that a broker would know (``ProducerStateManager``), with the last batch of each.

    A marker with a new epoch discards the earlier batches. A producer with an open transaction does not expire.
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


def _end_within(segment: Segment, end: int) -> int:
    """Return the position in a segment where the batches below offset `end` end."""
    return 0 if base_of(segment) >= end else segment.seek_offset(end)


def _modified(segment: Segment) -> int:
    """Return the modification time of a segment, in milliseconds since the epoch."""
    found = segment.storage.find(segment.path)
    return 0 if found is None else found.mtime // 1_000_000


def _add_keys(keys: KeyOffsets, table: RecordTable) -> None:
    rows = table.records
    if keys.add(rows["offset"], rows["key_pos"], rows["key_len"], table.data) < len(rows):
        raise LimitExceededError(
            f"{table.source}: a dedupe buffer of {keys.max_bytes} bytes holds at most {keys.most_keys} different keys, "
            "and the log has more up to here; give a larger dedupe_buffer_bytes (24 bytes per key, plus 10 %)",
            source=table.source,
        )


def _grouped(segments: Sequence[Segment], end: int, segment_bytes: int, index_bytes: int) -> list[list[Segment]]:
    """Group segments as ``Cleaner.groupSegmentsBySize`` does; segments that are not cleaned are not merged."""
    groups: list[list[Segment]] = []
    sizes: tuple[int, ...] = (0, 0, 0)
    for i, segment in enumerate(segments):
        own = segment.size, _index_size(segment, ".index"), _index_size(segment, ".timeindex")
        total = tuple(a + b for a, b in zip(sizes, own, strict=True))
        following = segments[i + 1 : i + 2]
        last = (base_of(following[0]) if following and base_of(following[0]) < end else end) - 1
        fits = (
            groups
            and base_of(segment) < end
            and total[0] <= segment_bytes
            and max(total[1:]) <= index_bytes
            and (segment.size == 0 or last - base_of(groups[-1][0]) <= INT32_MAX)
        )
        if fits:
            groups[-1].append(segment)
            sizes = total
        else:
            groups.append([segment])
            sizes = own
    return groups


def _index_size(segment: Segment, suffix: str) -> int:
    found = segment.storage.find(segment.sibling(suffix)) if segment.has(suffix) else None
    return 0 if found is None else found.size or 0


def _copy_mtimes(out: str, bases: Sequence[int], groups: Sequence[Sequence[Segment]]) -> None:
    """Give segments the modification time of their last source, which retention and later compactions use."""
    firsts = [base_of(group[0]) for group in groups]
    for base in bases:
        modified = _modified(groups[bisect_right(firsts, base) - 1][-1])
        path = out if out.endswith(".log") else os.path.join(out, f"{base:020d}.log")
        for suffix in (".log", ".index", ".timeindex"):
            each = path.removesuffix(".log") + suffix
            if os.path.exists(each):
                os.utime(each, ns=(modified * 1_000_000, modified * 1_000_000))
