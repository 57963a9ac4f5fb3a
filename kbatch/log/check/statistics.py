"""Statistics of a log: counts, sizes and ranges, from batch headers alone or also from the records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types
from kbatch.batches.codecs import codec_name
from kbatch.escaping import counted
from kbatch.format import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER_SIZE,
    MESSAGE_HEADER_SIZES,
    NO_TIMESTAMP,
    BatchStatus,
    Codec,
    Limits,
)
from kbatch.log.check.transaction_counts import TransactionCounter
from kbatch.log.gaps import SegmentEnd, SegmentGap, SegmentGaps
from kbatch.log.logs import Log
from kbatch.log.reading import TABLE_BYTES, read_tables
from kbatch.log.segment import Segment
from kbatch.public_names import public_in
from kbatch.quantities import largest, smallest
from kbatch.read.decode_options import DecodeOptions
from kbatch.table import RecordTable
from kbatch.transactions import OpenTransaction, are_control, record_counts
from kbatch.transactions.opened import Begun

__all__ = [
    "PERCENTILES",
    "Distribution",
    "LogCounter",
    "LogObserver",
    "LogStatistics",
    "TablePlace",
    "codec_dicts",
    "log_statistics",
    "observed_statistics",
    "statistics_repr",
]

PERCENTILES = (50, 90, 99)
# Numbers below this have one slot each; larger ones share a slot with numbers that have the same leading bits.
_EXACT = 4096
_BITS = 7
# Bytes of a message of magic 0 and of magic 1 without key and value (LEG-R28), and before the key.
_WRAPPER_SIZES = tuple(size + 8 for size in MESSAGE_HEADER_SIZES)
_BEFORE_KEY = tuple(size + 4 for size in MESSAGE_HEADER_SIZES)


class Distribution:
    """A histogram of integers in constant memory: exact below 4096, within one percent above.

    Examples
    --------
    >>> sizes = Distribution()
    >>> sizes.add(np.arange(101))
    >>> sizes.count, sizes.mean, sizes.percentile(50), sizes.percentile(99), sizes.largest
    (101, 50.0, 50, 99, 100)
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.smallest: int | None = None
        self.largest: int | None = None
        self._counts = np.zeros(_EXACT + (64 << _BITS), np.int64)

    def add(self, numbers: npt.NDArray[Any]) -> None:
        """Count non-negative numbers."""
        if not len(numbers):
            return
        self.count += len(numbers)
        self.total += int(numbers.sum(dtype=np.int64))
        low, high = int(numbers.min()), int(numbers.max())
        self.smallest, self.largest = smallest(self.smallest, low), largest(self.largest, high)
        counts = np.bincount(_slots(numbers.astype(np.int64)))
        # Untouched pages are never allocated.
        self._counts[: len(counts)] += counts

    def merge(self, other: Distribution) -> None:
        """Count the numbers of another distribution too."""
        if other.count:
            self.count += other.count
            self.total += other.total
            self.smallest = smallest(self.smallest, other.smallest)
            self.largest = largest(self.largest, other.largest)
            self._counts += other._counts

    def below(self, limits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many numbers are below each limit, with the accuracy of the histogram."""
        found: npt.NDArray[np.int64] = np.append(0, np.cumsum(self._counts))[_slots(limits)]
        return found

    @property
    def mean(self) -> float | None:
        """The mean, or None if there are no values."""
        return self.total / self.count if self.count else None

    def percentile(self, percent: float) -> int | None:
        """Return the percentile, or None if there are no values."""
        if not self.count:
            return None
        assert self.largest is not None
        rank = max(1, int(np.ceil(self.count * percent / 100)))
        slot = int(np.searchsorted(np.cumsum(self._counts), rank))
        return min(_largest_in(slot), self.largest)

    def to_dict(self) -> dict[str, Any]:
        """Return count, mean, percentiles, minimum and maximum."""
        return {
            "count": self.count,
            "mean": None if self.mean is None else round(self.mean, 2),
            "min": self.smallest,
            **{f"p{percent}": self.percentile(percent) for percent in PERCENTILES},
            "max": self.largest,
        }


def _slots(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    slots = numbers.copy()
    large = np.flatnonzero(numbers >= _EXACT)
    if len(large):
        exponent = np.frexp(numbers[large].astype(np.float64))[1].astype(np.int64)
        slots[large] = _EXACT + (exponent << _BITS) + ((numbers[large] >> (exponent - 1 - _BITS)) & ((1 << _BITS) - 1))
    return slots


def _largest_in(slot: int) -> int:
    """Return the largest number of a slot."""
    if slot < _EXACT:
        return slot
    exponent, first = divmod(slot - _EXACT, 1 << _BITS)
    return (((1 << _BITS) + first + 1) << (exponent - 1 - _BITS)) - 1


class _Counts(Protocol):
    records: int
    control_records: int
    bytes: int

    @property
    def open(self) -> int: ...


def statistics_repr(counts: _Counts) -> str:
    """Return the representation of statistics by their main counts."""
    return (
        f"<{type(counts).__name__}: {counted(counts.records, 'record')}, "
        f"{counted(counts.control_records, 'control record')}, {counts.bytes} bytes, "
        f"{counted(counts.open, 'open transaction')}>"
    )


@public_in("kbatch.log")
class LogStatistics:
    """Statistics of a log.

    Attributes
    ----------
    segments : int or None
        None for a live topic, whose segments are not known.
    bytes : int
    batches, control_batches : int
    damaged_batches : int or None
        Batches that are damaged, or have a damaged message inside; None without decoding. They count in `batches`, but
        other counts leave out batches without records.
    records, control_records : int
        Counts in headers; the records of control batches, such as transaction markers, are not in `records` but in
        `control_records`. Headers of compressed messages of magic 0 and 1 have no count; without decoding they are in
        `uncounted_batches`.
    first_offset, last_offset, first_timestamp, last_timestamp : int or None
        Offsets are from the headers. Timestamps are the smallest and the largest of any record; without decoding they
        are from `base_timestamp` and `max_timestamp`.
    codecs : dict
        By name: ``batches``, ``bytes`` of complete batches, ``payload_bytes`` of their payloads, and ``plain_bytes``,
        the approximate size of the uncompressed payloads (None if not decoded). Control batches count in these too;
        ``control_batches`` and ``control_bytes`` are their part.
    magics : dict
        Batches by magic.
    records_per_batch, batch_bytes, record_bytes : Distribution
        Records and stored bytes of each batch except control batches; and the size of key and value of each record.
    null_keys, null_values, tombstones, headers : int
        Counts of records, without control records. Tombstones are records with a key and a null value.
    committed, aborted, open : int
        Transactions by their markers. A transaction with no remaining batch is counted only if committed.
    undecided : int
        Transactions whose marker is damaged or may be among lost bytes.
    open_transactions : sequence of OpenTransaction
        The open ones, by first offset.
    producers : int
        Number of producer ids.
    losses : int
        Number of damaged byte ranges, and of gaps of unknown cause between segments; `lost_bytes`
        is the size of the ranges, and `missing_offsets` the number of offsets in the gaps.

    Examples
    --------
    >>> import kbatch
    >>> kbatch.log.log_statistics(kbatch.Log("tests/golden/logs/txn-0"))
    <LogStatistics: 337 records, 34 control records, 22437 bytes, 2 open transactions>
    """

    def __init__(self, *, decoded: bool) -> None:
        check_types(LogStatistics.__init__, locals())
        self.decoded = decoded
        self.segments: int | None = None
        self.bytes = 0
        self.batches = self.control_batches = self.empty_batches = self.transactional_batches = 0
        self.damaged_batches: int | None = 0 if decoded else None
        self.records = self.uncounted_batches = 0
        self.first_offset: int | None = None
        self.last_offset: int | None = None
        self.first_timestamp: int | None = None
        self.last_timestamp: int | None = None
        self.codecs: dict[str, dict[str, Any]] = {}
        self.magics: dict[int, int] = {}
        self.records_per_batch = Distribution()
        self.batch_bytes = Distribution()
        self.record_bytes = Distribution()
        self.null_keys = self.null_values = self.tombstones = self.headers = self.records_with_headers = 0
        self.control_records = 0
        self.committed = self.aborted = self.undecided = 0
        self.open_transactions: Sequence[OpenTransaction] = []
        self.losses = self.lost_bytes = self.missing_offsets = 0
        self._producers: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def __repr__(self) -> str:
        return statistics_repr(self)

    @property
    def open(self) -> int:
        """Number of open transactions."""
        return len(self.open_transactions)

    @property
    def producers(self) -> int:
        """Number of producer ids."""
        return len(self._producers)

    @property
    def producer_ids(self) -> npt.NDArray[np.int64]:
        """The producer ids, ascending."""
        return self._producers

    def _add_batches(self, batches: npt.NDArray[np.void]) -> None:
        """Count batches by their headers."""
        if not len(batches):
            return
        new = batches["magic"] == 2
        control = are_control(batches)
        self.batches += len(batches)
        self.control_batches += int(control.sum())
        self.transactional_batches += int((new & ((batches["attributes"] & ATTRIBUTE_TRANSACTIONAL) != 0)).sum())
        counts = batches["record_count"]
        self.empty_batches += int((counts == 0).sum())
        found = record_counts(batches)
        self.records += found.records
        self.control_records += found.control_records
        self.uncounted_batches += found.uncounted_batches
        self.records_per_batch.add(counts[(counts >= 0) & ~control])
        self.batch_bytes.add(batches["size"][~control])
        for magic, count in zip(*np.unique(batches["magic"], return_counts=True), strict=True):
            self.magics[int(magic)] = self.magics.get(int(magic), 0) + int(count)
        codec = batches["attributes"] & ATTRIBUTE_CODEC
        payload = batches["size"] - _before_payload(batches)
        for number in np.unique(codec).tolist():
            chosen = codec == number
            entry = self._codec(number)
            entry["batches"] += int(chosen.sum())
            entry["bytes"] += int(batches["size"][chosen].sum())
            entry["payload_bytes"] += int(payload[chosen].sum())
            entry["control_batches"] += int((chosen & control).sum())
            entry["control_bytes"] += int(batches["size"][chosen & control].sum())
        # Headers of compressed message sets have no base offset (LEG-R23).
        first = np.where(batches["base_offset"] < 0, batches["last_offset"], batches["base_offset"])
        self.first_offset = smallest(self.first_offset, int(first.min()))
        self.last_offset = largest(self.last_offset, int(batches["last_offset"].max()))
        # base_timestamp is not a record's time in an empty batch or with a delete horizon (TS-R5, TS-R7).
        if not self.decoded:
            based = new & (counts > 0) & ((batches["attributes"] & ATTRIBUTE_DELETE_HORIZON) == 0)
            self._times(np.concatenate((batches["base_timestamp"][based], batches["max_timestamp"])))
        producers = batches["producer_id"][new & (batches["producer_id"] >= 0)]
        self._producers = np.union1d(self._producers, producers)

    def _codec(self, number: int) -> dict[str, Any]:
        name = codec_name(number) if number < len(Codec) else str(number)
        plain = 0 if self.decoded else None
        counts = dict.fromkeys(("batches", "bytes", "control_batches", "control_bytes", "payload_bytes"), 0)
        return self.codecs.setdefault(name, {**counts, "plain_bytes": plain})

    def _times(self, timestamps: npt.NDArray[np.int64]) -> None:
        timestamps = timestamps[timestamps != NO_TIMESTAMP]
        if len(timestamps):
            self.first_timestamp = smallest(self.first_timestamp, int(timestamps.min()))
            self.last_timestamp = largest(self.last_timestamp, int(timestamps.max()))

    def _add_table(self, table: RecordTable) -> None:
        """Count the records and losses of a table that was decoded with its control records."""
        batches, records = table.batches, table.records
        status = batches["status"]
        self.batches += int(np.count_nonzero(~BatchStatus.sound(status)))
        self.damaged_batches = (self.damaged_batches or 0) + int(np.count_nonzero(BatchStatus.damaged(status)))
        is_control = are_control(batches)[records["batch"]]
        self._add_payload_sizes(table)
        if is_control.any():
            records = records[~is_control]
        self._times(records["timestamp"])
        null_key, null_value = records["key_len"] < 0, records["value_len"] < 0
        self.null_keys += int(null_key.sum())
        self.null_values += int(null_value.sum())
        self.tombstones += int((null_value & ~null_key).sum())
        self.headers += int(records["header_count"].sum(dtype=np.int64))
        self.records_with_headers += int((records["header_count"] > 0).sum())
        self.record_bytes.add(np.maximum(records["key_len"], 0).astype(np.int64) + np.maximum(records["value_len"], 0))
        self.losses += len(table.losses)
        self.lost_bytes += int(table.losses.lengths.sum())

    def _add_gaps(self, gaps: Sequence[SegmentGap]) -> None:
        """Count the gaps after a segment; offsets that compaction has removed are not lost."""
        counts = [gap.offset_count for gap in gaps if not gap.compacted]
        self.losses += len(counts)
        self.missing_offsets += sum(counts)

    def _add_payload_sizes(self, table: RecordTable) -> None:
        """Add the approximate sizes of uncompressed payloads.

        Payloads are consecutive in the table's data, and the first key is nearly at the same place in each, so the
        distance between first keys approximates the size.
        """
        batches = table.batches
        codec = batches["attributes"] & ATTRIBUTE_CODEC
        payload_sizes = np.where(codec == 0, batches["size"] - _before_payload(batches), 0)
        if codec.any() and len(table):
            holders, first = np.unique(table.records["batch"], return_index=True)
            starts = table.records["key_pos"][first]
            magic = batches["magic"][holders]
            before = np.select([magic == 0, magic == 1], _BEFORE_KEY, min(5, int(starts[0])))
            distances = np.diff(np.append(starts - before, len(table.data)))
            compressed = codec[holders] != 0
            payload_sizes[holders[compressed]] = np.maximum(distances[compressed], 0)
        good = BatchStatus.sound(batches["status"])
        for number in np.unique(codec[good]).tolist():
            self._codec(number)["plain_bytes"] += int(payload_sizes[good & (codec == number)].sum())

    def to_dict(self) -> dict[str, Any]:
        """Return all statistics as JSON values; statistics that need decoding are None without it."""
        decoded = self.decoded

        def if_decoded(value: Any) -> Any:
            return value if decoded else None

        return {
            "segments": self.segments,
            "bytes": self.bytes,
            "batches": self.batches,
            "damaged_batches": self.damaged_batches,
            "control_batches": self.control_batches,
            "empty_batches": self.empty_batches,
            "transactional_batches": self.transactional_batches,
            "records": self.records,
            "control_records": self.control_records,
            "uncounted_batches": self.uncounted_batches,
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
            "first_timestamp": self.first_timestamp,
            "last_timestamp": self.last_timestamp,
            "codecs": codec_dicts(self.codecs),
            "magics": {str(magic): count for magic, count in sorted(self.magics.items())},
            "records_per_batch": self.records_per_batch.to_dict(),
            "batch_bytes": self.batch_bytes.to_dict(),
            "record_bytes": if_decoded(self.record_bytes.to_dict()),
            "null_keys": if_decoded(self.null_keys),
            "null_values": if_decoded(self.null_values),
            "tombstones": if_decoded(self.tombstones),
            "headers": if_decoded(self.headers),
            "records_with_headers": if_decoded(self.records_with_headers),
            "transactions": {
                "committed": self.committed,
                "aborted": self.aborted,
                "undecided": self.undecided,
                "open": self.open,
            },
            "open_transactions": [each._asdict() for each in self.open_transactions],
            "producers": self.producers,
            "losses": self.losses,
            "lost_bytes": self.lost_bytes,
            "missing_offsets": self.missing_offsets,
        }


def codec_dicts(codecs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the counts by codec with the ratio of each."""
    return {name: {**entry, "ratio": _ratio(name, entry)} for name, entry in sorted(codecs.items())}


def _ratio(codec: str, entry: dict[str, Any]) -> float | None:
    if codec == "none" or not entry["plain_bytes"] or not entry["payload_bytes"]:
        return None
    ratio = float(entry["plain_bytes"]) / float(entry["payload_bytes"])
    return round(ratio, 2)


def _before_payload(batches: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Return the bytes before each batch's payload; an uncompressed message counts entirely as payload."""
    of_wrapper = np.where(batches["magic"] == 0, _WRAPPER_SIZES[0], _WRAPPER_SIZES[1])
    of_message = np.where((batches["attributes"] & ATTRIBUTE_CODEC) == 0, 0, of_wrapper)
    before: npt.NDArray[np.int64] = np.where(batches["magic"] == 2, BATCH_HEADER_SIZE, of_message)
    return before


class TablePlace(Protocol):
    """Where the batches of a table are: a `Segment`, or a partition of a cluster."""

    @property
    def path(self) -> str:
        """The name of the file or partition."""

    @property
    def base_offset(self) -> int | None:
        """The first offset that it may have."""


class LogObserver(Protocol):
    """What else is collected in the pass over a log that `observed_statistics` makes."""

    def add_table(self, place: TablePlace, table: RecordTable) -> None:
        """Receive the next table, with its control records."""

    def add_gaps(self, gaps: Sequence[SegmentGap]) -> None:
        """Receive, after each segment, the offsets that are missing before the next one."""

    def add_transaction(self, begun: Begun, kind: int, last_offset: int, last_timestamp: int) -> None:
        """Receive a transaction that ended; see `TransactionTracker`."""


@public_in("kbatch.log")
def log_statistics(
    log: Log,
    *,
    headers_only: bool = False,
    limits: Limits | None = None,
    progress: Callable[[int], None] | None = None,
) -> LogStatistics:
    """Compute the statistics of a log, as ``kbatch stats`` prints them.

    Parameters
    ----------
    log : Log
    headers_only : bool
        Whether to read batch headers only. Payloads and checksums are read only for transaction markers and for
        batches that begin a transaction.
    limits : Limits, optional
    progress : callable, optional
        Called with the number of segment bytes read so far.

    Returns
    -------
    LogStatistics

    Examples
    --------
    >>> import kbatch
    >>> statistics = kbatch.log.log_statistics(kbatch.Log("tests/golden/logs/txn-0"), headers_only=True)
    >>> statistics.records, statistics.control_records
    (337, 34)
    >>> statistics.committed, statistics.aborted, statistics.open
    (20, 13, 2)
    """
    check_types(log_statistics, locals())
    return observed_statistics(log.segments, None, headers_only=headers_only, limits=limits, progress=progress)


def observed_statistics(
    segments: Sequence[Segment],
    observer: LogObserver | None,
    *,
    headers_only: bool = False,
    limits: Limits | None = None,
    progress: Callable[[int], None] | None = None,
) -> LogStatistics:
    """Compute the statistics of a log, whose tables an observer receives too."""
    counter = LogCounter(headers_only=headers_only, limits=limits, observer=observer)
    statistics, options = counter.statistics, counter.options
    statistics.segments = len(segments)
    done = 0
    gaps = SegmentGaps(segments)
    for number, segment in enumerate(segments):
        statistics.bytes += segment.size
        offsets_end = SegmentEnd(segment.base_offset)
        counter.begin_segment(segment.base_offset)
        for table in read_tables(segment, 0, segment.size, options, TABLE_BYTES):
            batches = table.batches
            offsets_end.add(table)
            counter.add(table, segment.window)
            if observer is not None:
                observer.add_table(segment, table)
            if progress is not None and len(batches):
                progress(done + int(batches["position"][-1] + batches["size"][-1]))
        counter.end_segment(segments[number + 1].base_offset if number + 1 < len(segments) else None)
        found = gaps.after(number, offsets_end, None, None)
        statistics._add_gaps(found)
        if observer is not None:
            observer.add_gaps(found)
        done += segment.size
    return counter.result()


class LogCounter:
    """Counts the tables of one log, in the order of their batches.

    Parameters
    ----------
    headers_only : bool
    limits : Limits, optional
    observer : LogObserver, optional
        Its `add_transaction` is called.

    Attributes
    ----------
    statistics : LogStatistics
    options : DecodeOptions
        How the tables are decoded.
    """

    def __init__(
        self, *, headers_only: bool, limits: Limits | None = None, observer: LogObserver | None = None
    ) -> None:
        self.statistics = LogStatistics(decoded=not headers_only)
        self.options = DecodeOptions(
            include_control=True,
            on_error="skip",
            limits=limits if limits is not None else Limits(),
            framing_only=headers_only,
            crc="skip" if headers_only else "verify",
        )
        self._transactions = TransactionCounter(
            self.options.limits, None if observer is None else observer.add_transaction
        )

    def begin_segment(self, base_offset: int | None) -> None:
        """Begin a segment, whose losses decide about transactions."""
        self._transactions.begin_segment(base_offset)

    def add(self, table: RecordTable, window: Callable[[int, int], npt.NDArray[np.uint8]]) -> None:
        """Count a table; `window` returns the bytes between two positions of the source."""
        batches = table.batches
        is_good = BatchStatus.sound(batches["status"])
        good = batches[is_good]
        statistics = self.statistics
        statistics._add_batches(good)
        if self.options.framing_only:
            statistics.losses += len(table.losses)
            statistics.lost_bytes += int(table.losses.lengths.sum())
        else:
            statistics._add_table(table)
        self._transactions.add(table, window)

    def end_segment(self, next_offset: int | None) -> None:
        """End a segment; `next_offset` is the base offset of the next one."""
        self._transactions.end_segment(next_offset)

    def result(self) -> LogStatistics:
        """Return the statistics after the last table."""
        result = self._transactions.result()
        self.statistics.aborted, self.statistics.open_transactions = len(result.aborted), result.open
        self.statistics.undecided = len(result.undecided)
        self.statistics.committed = self._transactions.committed
        return self.statistics
