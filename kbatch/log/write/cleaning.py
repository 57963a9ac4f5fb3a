"""The batches and records that remain after compaction, given the last offset of every key.

The rules come from Kafka 4's ``Cleaner`` (``shouldRetainRecord``), ``CleanedTransactionMetadata`` and
``MemoryRecords.filterTo``; CMP-R1 to CMP-R9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kbatch.errors import CrcMismatchError, InvalidRecordError
from kbatch.format import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    KNOWN_ATTRIBUTES,
    NO_TIMESTAMP,
    BatchStatus,
    ControlType,
)
from kbatch.kernels.keymap import KeyOffsets
from kbatch.kernels.sizes import measure_batches
from kbatch.log.segment import Segment
from kbatch.log.sorted_values import SortedValues
from kbatch.log.write.cleanable import CleaningLimit, CountingWriter, dirty_part
from kbatch.log.write.log_writer import LogWriter
from kbatch.public_names import public_in
from kbatch.records.display import short_repr
from kbatch.records.loss_list import Loss
from kbatch.table import RecordTable
from kbatch.transactions import OpenTransaction, are_control, control_records
from kbatch.write.composing import compose, raise_fault
from kbatch.write.original_batches import table_records

__all__ = ["Cleaning", "Compaction", "Producers"]

Mask = npt.NDArray[np.bool_]
Attributes = npt.NDArray[np.int16]

_DECIDING = (ControlType.ABORT, ControlType.COMMIT)


class _Action(IntEnum):
    """Whether a batch is removed, copied byte for byte, rewritten with fewer records, or kept without records."""

    DROP = 0
    KEEP = 1
    REWRITE = 2
    EMPTY = 3


@public_in("kbatch.log")
@dataclass(slots=True, kw_only=True)
class Compaction:
    """The result of a compaction. Counts are for the whole log, including the parts that were not cleaned.

    Attributes
    ----------
    first_dirty_offset, end_offset : int
        The offset range whose keys were collected, `end_offset` exclusive. Batches from `end_offset` on do not change.
    keys : int
        Number of different keys in this range.
    limit : {"active_segment", "open_transaction", "min_compaction_lag", "dirty_ratio"} or None
        What ends the cleaned part: the last segment, to which a broker writes; the first open transaction; a record
        younger than the lag; or a dirty ratio that is too small, so that nothing is cleaned. None if it reaches the
        end of the log.
    clean_bytes, dirty_bytes : int
        Bytes of the segments before `first_dirty_offset`, and of those from there up to `end_offset`.
    dirty_ratio : float
        The part of these bytes that is dirty. A broker cleans a log from ``min.cleanable.dirty.ratio`` on.
    open_transactions : sequence of OpenTransaction
        The open transactions of the log, by first offset.
    dry_run : bool
        Whether nothing was written.
    records_in, records_out : int
        Without control records. Records of aborted transactions are counted by batch headers.
    control_records_in, control_records_out : int
        Control records, such as transaction markers.
    batches_in, batches_out, bytes_in, bytes_out, segments_in, segments_out : int
    batches_rewritten : int
        Batches of `batches_out` that are not byte-for-byte copies, including batches without remaining records.
    tombstones : int
        Records with a null value that stay, before `end_offset`.
    tombstones_removed : int
        Tombstones removed after their retention, each the last record of its key.
    markers, markers_removed : int
        Transaction markers that stay, and markers that were removed.
    aborted : int
        Records of aborted transactions, all removed.
    keyless : int
        Records without a key, all removed; a compacted topic should have none.
    tail_bytes : int
        Bytes after the last complete batch (an incomplete batch or zeros), which are not copied.
    damage : list of Loss
        Producer snapshots and leader epoch files that can't be read and were not copied. They can be rebuilt from the
        log.

    Examples
    --------
    >>> import tempfile
    >>> from kbatch.log import compact_log
    >>> with tempfile.TemporaryDirectory() as where:
    ...     done = compact_log("tests/golden/logs/txn-0", f"{where}/txn-0")
    >>> done.records_in, done.records_out, done.aborted, done.damage
    (337, 104, 72, [])
    """

    first_dirty_offset: int = 0
    end_offset: int = 0
    limit: CleaningLimit | None = None
    clean_bytes: int = 0
    dirty_bytes: int = 0
    open_transactions: Sequence[OpenTransaction] = ()
    dry_run: bool = False
    keys: int = 0
    records_in: int = 0
    records_out: int = 0
    control_records_in: int = 0
    control_records_out: int = 0
    batches_in: int = 0
    batches_out: int = 0
    batches_rewritten: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    segments_in: int = 0
    segments_out: int = 0
    tombstones: int = 0
    tombstones_removed: int = 0
    markers: int = 0
    markers_removed: int = 0
    aborted: int = 0
    keyless: int = 0
    tail_bytes: int = 0
    damage: list[Loss] = field(default_factory=list)

    def __repr__(self) -> str:
        return short_repr(self, self.__dataclass_fields__)

    @property
    def dirty_ratio(self) -> float:
        """The part of the bytes up to `end_offset` that is dirty."""
        return dirty_part(self.clean_bytes, self.dirty_bytes)


@dataclass(frozen=True, slots=True)
class Producers:
    """Active producers by id: their epoch, and the last offset of their last data batch, or -1."""

    producer_id: npt.NDArray[np.int64]
    producer_epoch: npt.NDArray[np.int16]
    last_data_offset: npt.NDArray[np.int64]

    def are_last(self, batches: npt.NDArray[np.void], control: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which batches have the last sequence of a producer or, for one without data, its last epoch."""
        out = np.zeros(len(batches), np.bool_)
        if not len(self.producer_id):
            return out
        at = np.minimum(np.searchsorted(self.producer_id, batches["producer_id"]), len(self.producer_id) - 1)
        known = (self.producer_id[at] == batches["producer_id"]) & (batches["magic"] == 2)
        offsets = self.last_data_offset[at]
        epoch = control & (batches["producer_epoch"] == self.producer_epoch[at])
        out[known] = np.where(offsets >= 0, batches["last_offset"] == offsets, epoch)[known]
        return out


@dataclass(slots=True)
class Cleaning:
    """The second pass: it decides which batches and records stay, and writes them.

    Attributes
    ----------
    keys : KeyOffsets
    end : int
        Offset where the cleaned part ends.
    now, horizon : int
        Time of the compaction, and the delete horizon of tombstones and markers that become removable now.
    aborted : ndarray of ABORTED_DTYPE
    producers : Producers
    result : Compaction
        Receives the counts.
    keeps_legacy_tombstones : bool
        Whether tombstones of magic 0 and 1, which have no delete horizon, stay.
    bytes_seen : int
        Bytes of the batches so far.
    """

    keys: KeyOffsets
    end: int
    now: int
    horizon: int
    aborted: npt.NDArray[np.void]
    producers: Producers
    result: Compaction
    keeps_legacy_tombstones: bool = True
    bytes_seen: int = 0
    # Producers with a data batch since their last marker.
    _seen: set[int] = field(default_factory=set)
    _ends: SortedValues = field(init=False)

    def __post_init__(self) -> None:
        self._ends = SortedValues(self.aborted["last_offset"])

    def copy(self, table: RecordTable, segment: Segment, writer: LogWriter | CountingWriter) -> None:
        """Write the batches of a table as they are."""
        batches = table.batches
        self.bytes_seen += table.consumed
        if not len(batches):
            return
        self._refuse(table, batches["status"] != BatchStatus.OK)
        first, last = int(batches["last_offset"][0]), int(batches["last_offset"][-1])
        writer.append_aborted(self.aborted[self._ends.between(first, last)])
        start, stop = int(batches["position"][0]), int(batches["position"][-1] + batches["size"][-1])
        writer.append_scanned(segment.window(start, stop), batches, start)
        self.result.batches_in += len(batches)
        self.result.batches_out += len(batches)
        control = int(np.count_nonzero(are_control(batches)[table.records["batch"]]))
        self.result.control_records_in += control
        self.result.control_records_out += control
        self.result.records_in += len(table) - control
        self.result.records_out += len(table) - control

    def clean(self, table: RecordTable, segment: Segment, writer: LogWriter | CountingWriter) -> None:
        """Write the remaining batches of a table that was decoded with markers and without aborted batches."""
        batches = table.batches
        self.bytes_seen += table.consumed
        if not len(batches):
            return
        self._refuse(table, (batches["status"] != BatchStatus.OK) & (batches["status"] != BatchStatus.ABORTED))
        # Magic 0 and 1 have no such attributes.
        attributes = np.where(batches["magic"] == 2, batches["attributes"], 0)
        of_empty, aborts = self._follow_markers(table, attributes)
        latest, stays = self._staying(table, attributes, of_empty)
        actions, gets_horizon = self._actions(table, attributes, of_empty, stays)
        new, data = self._rewritten(table, stays, actions, gets_horizon)

        writer.append_aborted(self.aborted[self._ends.equal_to(aborts)])
        written = actions != _Action.DROP
        is_new = actions[written] >= _Action.REWRITE
        out = batches[written]
        out[is_new] = new
        if len(out):
            self._write(segment, writer, out, is_new, data)
        self.result.batches_out += len(out)
        self.result.batches_rewritten += len(new)
        self._count(table, attributes, latest, stays)

    def _staying(self, table: RecordTable, attributes: Attributes, of_empty: Mask) -> tuple[Mask, Mask]:
        """Return which records are the last ones of their keys, and which stay (``shouldRetainRecord``)."""
        rows, batches = table.records, table.batches
        of = rows["batch"]
        due = (attributes & ATTRIBUTE_DELETE_HORIZON != 0) & (batches["base_timestamp"] <= self.now)
        discarded = (batches["status"] == BatchStatus.ABORTED) | (of_empty & due)
        keeps_tombstones = np.where(batches["magic"] == 2, ~due, self.keeps_legacy_tombstones)
        latest = np.empty(len(rows), np.bool_)
        self.keys.latest(rows["offset"], rows["key_pos"], rows["key_len"], table.data, latest.view(np.uint8))
        valid = latest & ((rows["value_len"] >= 0) | keeps_tombstones[of])
        return latest, ~discarded[of] & (valid | (attributes & ATTRIBUTE_CONTROL != 0)[of])

    def _actions(
        self, table: RecordTable, attributes: Attributes, of_empty: Mask, stays: Mask
    ) -> tuple[npt.NDArray[np.int8], Mask]:
        """Return the action for each batch, and which batches get a delete horizon (``MemoryRecords.filterTo``)."""
        rows, batches = table.records, table.batches
        of = rows["batch"]
        counts = np.bincount(of, minlength=len(batches))
        kept = np.bincount(of[stays], minlength=len(batches))
        # As in filterBatch, any record with a null value counts.
        valueless = np.bincount(of[stays & (rows["value_len"] < 0)], minlength=len(batches)) > 0
        gets_horizon = (kept > 0) & (valueless | of_empty) & (attributes & ATTRIBUTE_DELETE_HORIZON == 0)
        is_same = (batches["magic"] == 2) & (kept == counts) & ~gets_horizon
        kept_empty = self.producers.are_last(batches, attributes & ATTRIBUTE_CONTROL != 0)
        kept_empty |= batches["last_offset"] + 1 == self.end
        actions = np.where(
            kept > 0,
            np.where(is_same, _Action.KEEP, _Action.REWRITE),
            np.where(kept_empty, _Action.EMPTY, _Action.DROP),
        )
        return actions.astype(np.int8), gets_horizon

    def _count(self, table: RecordTable, attributes: Attributes, latest: Mask, stays: Mask) -> None:
        """Add the records of a table to the counts of the compaction."""
        rows, batches, result = table.records, table.batches, self.result
        own = attributes[rows["batch"]]
        is_control = own & ATTRIBUTE_CONTROL != 0
        is_marker = is_control & (own & ATTRIBUTE_TRANSACTIONAL != 0)
        is_tombstone = ~is_control & (rows["value_len"] < 0)
        lost = int(batches["record_count"][batches["status"] == BatchStatus.ABORTED].sum())
        result.batches_in += len(batches)
        result.aborted += lost
        result.control_records_in += int(np.count_nonzero(is_control))
        result.control_records_out += int(np.count_nonzero(is_control & stays))
        result.records_in += int(np.count_nonzero(~is_control)) + lost
        result.records_out += int(np.count_nonzero(~is_control & stays))
        result.keyless += int(np.count_nonzero(~is_control & (rows["key_len"] < 0)))
        result.tombstones += int(np.count_nonzero(is_tombstone & stays))
        result.tombstones_removed += int(np.count_nonzero(is_tombstone & latest & ~stays))
        result.markers += int(np.count_nonzero(is_marker & stays))
        result.markers_removed += int(np.count_nonzero(is_marker & ~stays))

    def _refuse(self, table: RecordTable, bad: Mask) -> None:
        """Raise for bad batches that decoding only marks."""
        if bad.any():
            row = table.batches[int(np.argmax(bad))]
            raise CrcMismatchError(
                f"{table.source}, byte {row['position']}: the batch is damaged "
                f"({BatchStatus(int(row['status'])).name}); run `kbatch verify` for details",
                source=table.source,
                position=int(row["position"]),
            )

    def _follow_markers(self, table: RecordTable, attributes: Attributes) -> tuple[Mask, list[int]]:
        """Return the markers without remaining data batches, and the offsets of the other ABORT markers.

        An empty batch counts as remaining, so its marker must stay.
        """
        batches = table.batches
        of_empty = np.zeros(len(batches), np.bool_)
        aborts: list[int] = []
        producers = batches["producer_id"]
        is_data = attributes & (ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL) == ATTRIBUTE_TRANSACTIONAL
        done = 0
        found = control_records(table)
        _, first = np.unique(found["batch"], return_index=True)
        for at, kind in zip(found["batch"][first].tolist(), found["type"][first].tolist(), strict=True):
            if kind not in _DECIDING:
                continue
            self._seen.update(np.unique(producers[done:at][is_data[done:at]]).tolist())
            producer, done = int(producers[at]), at
            if producer not in self._seen:
                of_empty[at] = True
                continue
            self._seen.remove(producer)
            if kind == ControlType.ABORT:
                aborts.append(int(batches["last_offset"][at]))
        self._seen.update(np.unique(producers[done:][is_data[done:]]).tolist())
        return of_empty, aborts

    def _rewritten(
        self, table: RecordTable, stays: Mask, actions: npt.NDArray[np.int8], gets_horizon: Mask
    ) -> tuple[npt.NDArray[np.void], bytes]:
        """Make the changed batches, as ``buildRetainedRecordsInto`` and ``writeEmptyHeader`` do; CMP-R3.

        Every field of a new header is computed from the old header and the records that stay.
        """
        is_new = actions >= _Action.REWRITE
        old = table.batches[is_new]
        if not len(old):
            return old, b""
        part = table[stays & is_new[table.records["batch"]]]
        offsets, times = part.records["offset"], part.records["timestamp"]
        counts = np.bincount(part.records["batch"], minlength=len(actions))[is_new]
        first = np.cumsum(counts) - counts
        legacy, full, gets_horizon = old["magic"] < 2, counts > 0, gets_horizon[is_new]

        known = np.where(old["magic"] == 1, ATTRIBUTE_CODEC | ATTRIBUTE_LOG_APPEND_TIME, ATTRIBUTE_CODEC)
        known = np.where(legacy, known, KNOWN_ATTRIBUTES)
        known[~full] &= ~(ATTRIBUTE_CODEC | ATTRIBUTE_DELETE_HORIZON)
        attributes = (old["attributes"] & known) | np.where(gets_horizon, ATTRIBUTE_DELETE_HORIZON, 0)
        first_times, largest = np.full((2, len(old)), NO_TIMESTAMP, np.int64)
        first_times[full], largest[full] = times[first[full]], np.maximum.reduceat(times, first[full])
        kept_times = np.where(attributes & ATTRIBUTE_DELETE_HORIZON != 0, old["base_timestamp"], first_times)
        # A message set has the offsets of its messages, but no producer.
        base_offset = np.where(old["base_offset"] < 0, old["last_offset"], old["base_offset"])
        last_offset = old["last_offset"].copy()
        sets = legacy & full
        base_offset[sets], last_offset[sets] = offsets[first[sets]], offsets[(first + counts - 1)[sets]]

        new = old.copy()
        new["magic"] = 2
        new["record_count"], new["first_record"] = counts, first
        new["attributes"] = attributes
        new["base_timestamp"] = np.where(gets_horizon, self.horizon, kept_times)
        created = full & (attributes & ATTRIBUTE_LOG_APPEND_TIME == 0)
        new["max_timestamp"] = np.where(created, largest, old["max_timestamp"])
        new["base_offset"], new["last_offset"] = base_offset, last_offset
        new["last_offset_delta"] = last_offset - base_offset
        for name in ("producer_id", "producer_epoch", "base_sequence", "partition_leader_epoch"):
            new[name][legacy] = -1
        records = table_records(part, timestamps=times)
        try:
            _, row, fault, found = measure_batches(records, new)
            raise_fault(fault, row, found)
            return new, compose(records, new, None)
        except ValueError as error:
            raise InvalidRecordError(
                f"{table.source}, batches from byte {table.batches['position'][0]} on: can't be rewritten: {error}",
                source=table.source,
                position=int(table.batches["position"][0]),
            ) from error

    def _write(
        self, segment: Segment, writer: LogWriter | CountingWriter, out: npt.NDArray[np.void], is_new: Mask, data: bytes
    ) -> None:
        """Write batches in order: new ones from `data`, the others from the segment."""
        starts = out["position"]
        ends = starts + out["size"]
        # Runs of adjacent batches from the same source.
        breaks = np.flatnonzero((is_new[1:] != is_new[:-1]) | (starts[1:] != ends[:-1])) + 1
        firsts, lasts = np.append(0, breaks), np.append(breaks, len(out)) - 1
        runs = zip(is_new[firsts].tolist(), starts[firsts].tolist(), ends[lasts].tolist(), strict=True)
        with segment.open() as file:
            same = out[~is_new]
            origin = int(same["position"][0]) if len(same) else 0
            window = file.window(origin, int(same["position"][-1] + same["size"][-1]) if len(same) else 0).data
            made = memoryview(data)
            parts = [made[a:b] if new else window[a - origin : b - origin] for new, a, b in runs]
            whole = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), np.uint8)
            out["position"] = np.cumsum(out["size"]) - out["size"]
            writer.append_scanned(whole, out)
