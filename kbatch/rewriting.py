"""Batches -> the same records in another magic, or with another codec: `convert` and `recompress`.

What a conversion does to a batch follows Kafka: down as ``RecordsUtil.downConvert`` (PRD-R9), up as ``LogValidator``
(PRD-R8), but that offsets stay what they are. What the older format can't hold is lost only where the caller said so.

A recompression never looks at the records of a batch of magic 2: its payload is decompressed and compressed, and the
header around it stays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from kbatch.checksums import first_bad_crc
from kbatch.codecs import Arena, PayloadError, check_level, compress, decompress, level_of, own_codecs
from kbatch.decoding import Crc, DecodeOptions, decode_part
from kbatch.encoding import check_range, composed, frame, new_memory, overheads, parse_codec, raise_trouble, seal
from kbatch.errors import (
    ConversionLossError,
    CrcMismatchError,
    Fault,
    Finding,
    InvalidRecordError,
    KbatchError,
    TruncatedBatchError,
    finding_text,
    finding_to_error,
)
from kbatch.format import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_DTYPE,
    COLUMN_FIELDS,
    MIN_RECORD_SIZE,
    NO_TIMESTAMP,
    RECORD_DTYPE,
    BatchStatus,
    Codec,
    Limits,
)
from kbatch.framing import byte_array, scan_part
from kbatch.kernels import checksum
from kbatch.kernels import convert as _convert_kernel
from kbatch.kernels import decode as _decode_kernel
from kbatch.kernels import encode as _kernel
from kbatch.kernels import repack as _repack
from kbatch.kernels.buffers import allocate
from kbatch.table import Loss, RecordTable

__all__ = ["LOST_TEXTS", "Conversion", "Recompression", "RewriteReport", "Rewriter", "convert", "recompress"]

Lossy = Literal["raise", "drop"]
OnError = Literal["raise", "skip"]
Bytes = npt.NDArray[np.uint8]
Batches = npt.NDArray[np.void]

_INT32_MAX = 2**31 - 1
# What is checked, and put together, at a time.
_RUN_BYTES = 1 << 20
# What is decoded, or compressed anew, at a time: it stays in the L2 cache, with its records and what they become.
_BLOCK_BYTES = 256 << 10
# What a table of compressed batches takes, about.
_TABLE_BYTES = 8 << 20
# How many times as large an ordinary batch becomes at most with another codec, and how large: for that there is room.
_ORDINARY_GROWTH = 8
_ORDINARY_BYTES = 16 << 20
# How many batches are scanned at a time.
_MOST_ROWS = 8192
# What a record takes in a batch of magic 2 beside its key and value, about.
_RECORD_OVERHEAD = 16
# What a record takes at most beside its key and value as a message.
_MESSAGE_BYTES = 34
# By how much a message that becomes a batch of magic 2 grows at most.
_BATCH_GROWTH = 66
# How many times as large as the input an output may be expected to be.
_MOST_GROWTH = 8
# Rows of records there is room for, to begin with.
_FEWEST_RECORDS = 4096

# What can be lost, by the field of the report that counts it.
LOST_TEXTS = {
    "control_batches": "{count} control batch(es), which end transactions",
    "transactional_batches": "that {count} batch(es) belong to transactions; what was aborted becomes visible",
    "producer_batches": "producer id, epoch and sequence of {count} batch(es)",
    "delete_horizons": "the delete horizon of {count} batch(es)",
    "records_with_headers": "the headers of {count} record(s)",
    "timestamps": "the timestamps of {count} record(s)",
    "leader_epochs": "the leader epoch of {count} batch(es)",
    "empty_batches": "{count} batch(es) without records",
}
# What a refusal says instead: nobody has looked further than to the first of them.
_REFUSED_TEXTS = {
    "control_batches": "control batches, which end transactions",
    "transactional_batches": "batches of transactions, what was aborted among them",
    "producer_batches": "producer ids, epochs and sequences",
    "delete_horizons": "delete horizons",
    "records_with_headers": "headers of records",
    "timestamps": "timestamps",
}
_ALL_COLUMNS = tuple(COLUMN_FIELDS)
# Nobody is asked about these: they say nothing about records.
_UNASKED = ("leader_epochs", "empty_batches")


@dataclass
class RewriteReport:
    """What a rewriting did, summed up over all calls that were given it.

    Attributes
    ----------
    batches, bytes : int
        Whole batches that were read, a message of magic 0 or 1 that isn't compressed counting as one.
    rewritten : int
        How many of them were not copied as they are.
    records : int
        Records of the batches that were converted; of a recompression, those whose headers tell how many they are.
    batches_written, bytes_written : int
    control_batches : int
        Control batches that were dropped.
    producer_batches, transactional_batches, delete_horizons, leader_epochs : int
        Batches that lost these fields of their headers.
    empty_batches : int
        Batches without records that were dropped.
    records_with_headers, timestamps : int
        Records that lost theirs.
    tail_bytes : int
        Bytes after the last whole batch of a log, an incomplete one or zeros, that were not copied.
    damage : list of Loss
        Ranges of the input that were left out with ``on_error="skip"``. Of a log, whatever `on_error` says, also
        producer snapshots and leader epochs that can't be read: they can be made anew from the log.
    """

    batches: int = 0
    bytes: int = 0
    rewritten: int = 0
    records: int = 0
    batches_written: int = 0
    bytes_written: int = 0
    control_batches: int = 0
    producer_batches: int = 0
    transactional_batches: int = 0
    delete_horizons: int = 0
    leader_epochs: int = 0
    empty_batches: int = 0
    records_with_headers: int = 0
    timestamps: int = 0
    tail_bytes: int = 0
    damage: list[Loss] = field(default_factory=list)

    @property
    def lost(self) -> dict[str, int]:
        """What the magic couldn't hold, by the name of the count; without what there was none of."""
        return {name: getattr(self, name) for name in LOST_TEXTS if getattr(self, name)}

    def add(self, other: RewriteReport) -> None:
        """Add the counts of another."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def _runs(rows: Batches, size: int) -> Iterator[tuple[int, int]]:
    """Part batches that lie one after the other into runs of so many bytes, or of one batch that is larger."""
    if not len(rows):
        return
    start, last = int(rows["position"][0]), rows[-1]
    if last["position"] + last["size"] - start <= size:
        yield 0, len(rows)
        return
    ends = rows["position"] + rows["size"]
    done = 0
    while done < len(rows):
        stop = max(done + 1, int(np.searchsorted(ends, start + size, "right")))
        yield done, stop
        start, done = int(ends[stop - 1]), stop


class _Output:
    """What becomes of `total` bytes of input, of which `consumed` are done."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.consumed = self.expected = 0
        self._bytes = _kernel.Growing()

    def add(self, pieces: Iterable[memoryview], consumed: int) -> None:
        """Append what becomes of the input up to `consumed`."""
        if not self.expected:
            # The first tell how much all of it will be: to move large memory costs more than to fill it.
            pieces = list(pieces)
            made = sum(map(len, pieces))
            # And may be nothing like the rest: no more is asked for on their word than the input and they suggest.
            self.expected = made + min(int(1.02 * made * self.total / max(consumed, 1)), _MOST_GROWTH * self.total)
        for piece in pieces:
            self._bytes.append(piece, self.expected)
        self.consumed = consumed

    def memory(self, size: int) -> memoryview:
        """Return memory for a piece: where the next one belongs, if there is room for it."""
        spare = self._bytes.spare(size)
        return new_memory(size) if spare is None else spare

    def take(self) -> bytes:
        return self._bytes.take()


class Rewriter(ABC):
    """What is done to batches, a stretch of them at a time.

    Parameters
    ----------
    codec : str, int or None
        The one that is wanted.
    level : int or None
    batch_size : int
        Bytes, before compression, up to which messages that stand alone are put together.
    on_error : {"raise", "skip"}
    limits : Limits or None
    report : RewriteReport or None
        Is added to.
    """

    def __init__(
        self,
        *,
        codec: Codec | str | int | None,
        level: int | None,
        batch_size: int,
        on_error: OnError,
        limits: Limits | None,
        report: RewriteReport | None,
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
        check_range("batch_size", batch_size, 0, _INT32_MAX)
        self.codec = None if codec is None else parse_codec(codec)
        if self.codec is not None:
            check_level(self.codec, level)
        self.level = level
        self.batch_size = batch_size
        self.limits = limits if limits is not None else Limits()
        self.on_error = on_error
        self.report = report if report is not None else RewriteReport()
        self._options = DecodeOptions(on_error=on_error, limits=self.limits)
        self._rows = np.empty(_FEWEST_RECORDS, RECORD_DTYPE)
        # Of the run at hand, that of the last record written.
        self._last_offset = -1
        # Where pieces are written.
        self._memory = new_memory

    @property
    def framing(self) -> DecodeOptions:
        """Options of the pass that tells which batches are good."""
        return replace(self._options, framing_only=True)

    @abstractmethod
    def _kinds(self, rows: Batches) -> npt.NDArray[np.int8]:
        """Tell of each batch what is done to it: 0 is nothing; `_rewrite` knows the others."""

    @abstractmethod
    def _rewrite(self, kind: int, data: Bytes, rows: Batches, origin: int, source: str | None) -> Iterator[memoryview]:
        """Yield what becomes of batches of one kind that lie one after the other in `data`."""

    def pieces(
        self, data: Bytes, rows: Batches, origin: int = 0, source: str | None = None, after: int = -1
    ) -> Iterator[memoryview]:
        """Rewrite good batches.

        Parameters
        ----------
        data : ndarray of uint8
        rows : ndarray of BATCH_DTYPE
            Batches in `data`, in order, whose checksums hold.
        origin : int
            Position of ``data[0]`` in the source.
        source : str, optional
            For errors.
        after : int, default -1
            The last offset that was written of the run that these go on with.

        Yields
        ------
        memoryview
            Whole batches, of bytes.
        """
        if not len(rows):
            return
        self._last_offset = after
        kinds = self._kinds(rows)
        starts, sizes = rows["position"], rows["size"]
        report = self.report
        report.batches += len(rows)
        size = int(sizes.sum())
        report.bytes += size
        report.rewritten += int(np.count_nonzero(kinds))
        parted = kinds[1:] != kinds[:-1]
        if int(starts[-1] + sizes[-1] - starts[0]) > size:
            # Damage between two batches parts them too.
            parted |= starts[1:] != starts[:-1] + sizes[:-1]
        breaks = np.flatnonzero(parted) + 1
        for lo, hi in zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True):
            begin = int(starts[lo])
            part = data[begin - origin : int(starts[hi - 1] + sizes[hi - 1]) - origin]
            if kinds[lo] == 0:
                self._last_offset = -1
                report.batches_written += hi - lo
                report.bytes_written += len(part)
                yield part.data
                continue
            for piece in self._rewrite(int(kinds[lo]), part, rows[lo:hi], begin, source):
                report.bytes_written += len(piece)
                yield piece

    def bytes_of(self, data: Buffer) -> bytes:
        """Rewrite all of `data`."""
        array = byte_array(data)
        out = _Output(len(array))
        self._memory = out.memory
        while out.consumed < len(array):
            scan = scan_part(array, position=out.consumed, max_batches=_MOST_ROWS)
            batches = scan.batches
            flat = self._flat(batches)
            lowered = np.zeros(len(batches), np.bool_)
            for lo, hi in _runs(batches, _RUN_BYTES):
                # A run at a time, so that each step finds it in the cache.
                self._last_offset = -1
                start = lo
                if flat is not None and flat[lo]:
                    start += self._lower_into(out, array, batches[lo:hi], flat[lo:hi])
                    lowered[lo:start] = True
                if start == hi:
                    self._last_offset = -1
                    continue
                if first_bad_crc(array, batches, start, hi, 0)[0] < hi:
                    break
                rows = batches[start:hi]
                out.add(self.pieces(array, rows, after=self._last_offset), int(rows["position"][-1] + rows["size"][-1]))
            if lowered.any():
                # NumPy is slow at choosing rows of many fields.
                self._report_lowered(batches if lowered.all() else batches[lowered])
            if out.consumed < scan.consumed or not len(batches):
                self._rewrite_damaged(array[out.consumed :], out)
                break
        return out.take()

    def _flat(self, rows: Batches) -> npt.NDArray[np.bool_] | None:
        """Tell which batches can become messages that stand alone in one pass; None if that isn't what is done."""
        return None

    def _lower_into(self, out: _Output, data: Bytes, rows: Batches, flat: npt.NDArray[np.bool_]) -> int:
        """Write what such batches become, checksums included, as far as nothing is unusual; how many of them."""
        raise NotImplementedError

    def _report_lowered(self, rows: Batches) -> None:
        """Report about batches that became messages so."""
        raise NotImplementedError

    def _rewrite_damaged(self, data: Bytes, out: _Output) -> None:
        """Rewrite what is whole, if damage is to be left out."""
        origin = out.consumed
        table = decode_part(data, self.framing, origin=origin).table
        self.report.damage += table.losses
        left = len(data) - table.consumed
        if left:
            text = f"byte {origin + table.consumed}: {left} bytes that are no whole batch"
            if self.on_error == "raise":
                raise TruncatedBatchError(
                    f"{text}; give whole batches, or on_error='skip' to leave them out",
                    position=origin + table.consumed,
                )
            self.report.damage.append(Loss(origin + table.consumed, left, "cut in a batch"))
        out.expected = max(out.expected, len(data))
        pieces = self.pieces(data, good_batches(table), origin, after=self._last_offset)
        out.add(pieces, origin + table.consumed)

    def _damaged(self, error: PayloadError, row: np.void, source: str | None) -> None:
        """Raise for a payload that can't be read, or leave its batch out."""
        if self.on_error == "raise":
            position = int(row["position"])
            raise finding_to_error(
                error.finding, source=source, position=position, base_offset=_offset_of(row)
            ) from None
        self._leave_out(row, finding_text(error.finding), source, InvalidRecordError)

    def _leave_out(self, row: np.void, text: str, source: str | None, kind: type[KbatchError]) -> None:
        if self.on_error == "raise":
            raise _error(kind, row, source, text)
        self.report.damage.append(Loss(int(row["position"]), int(row["size"]), text, _offset_of(row)))

    def _refuse(self, row: np.void, trouble: int, found: int, source: str | None) -> NoReturn:
        """Raise for records that no batch of the wanted kind can hold."""
        try:
            raise_trouble(trouble, 0, found)
        except ValueError as error:
            raise _error(InvalidRecordError, row, source, str(error).removeprefix("record 0: ")) from None
        raise AssertionError("there was no trouble")

    def _tables(self, data: Bytes, rows: Batches, origin: int, source: str | None) -> Iterator[RecordTable]:
        """Decode a run of batches, some of its records at a time."""
        packed = rows["attributes"] & ATTRIBUTE_CODEC != 0
        if (rows["magic"] == 2).all() and not packed.any():
            for lo, hi in _runs(rows, _BLOCK_BYTES):
                yield from self._block(data, rows[lo:hi], origin, source)
            return
        # The checksums of batches were looked at; those of messages in a compressed one were not.
        checked = (rows["magic"] == 2) | ~packed
        yield from self._decoded(data, origin, source, "skip" if checked.all() else "verify")

    def _block(self, data: Bytes, rows: Batches, origin: int, source: str | None) -> Iterator[RecordTable]:
        """Decode plain batches of magic 2 into rows that are used again."""
        batches = rows.copy()
        while True:
            # All offsets are wanted, and no control batches; checksums were looked at.
            done, used, fault, *_ = _decode_kernel.decode(
                data, batches, 0, len(batches), origin, None, None, self._rows, 0, False, False, False, 0, 0
            )
            if fault:
                start = int(rows["position"][0]) - origin
                stop = int(rows["position"][-1] + rows["size"][-1]) - origin
                yield from self._decoded(data[start:stop], origin + start, source, "skip")
                return
            if done == len(batches):
                break
            # The kernel has found that there can be so many.
            wanted = used + int(batches["record_count"][done])
            self._rows = np.empty(max(wanted, 2 * len(self._rows)), RECORD_DTYPE)
        yield RecordTable(self._rows[:used], batches, data, columns=_ALL_COLUMNS)

    def _decoded(self, data: Bytes, origin: int, source: str | None, crc: Crc) -> Iterator[RecordTable]:
        """Decode batches of any kind."""
        options = replace(self._options, crc=crc)
        position = 0
        while position < len(data):
            table = decode_part(
                data[position:],
                options,
                origin=origin + position,
                source=source,
                max_bytes=_TABLE_BYTES,
                followed=True,
            ).table
            if not table.consumed:
                raise RuntimeError(f"nothing decoded at byte {origin + position}")
            position += table.consumed
            self.report.damage += table.losses
            yield table

    def _check_records(self, table: RecordTable, source: str | None) -> None:  # noqa: B027 - most lose nothing
        """Count what is lost of records, or refuse it."""

    def _flattened(self, table: RecordTable, magic: int, source: str | None) -> memoryview | None:
        """Write the records of a table as messages that stand alone; None if one needs a closer look."""
        rows = table.records
        if table.batches["status"].any():
            return None  # not all of them are OK
        out = memoryview(allocate(len(rows) * _MESSAGE_BYTES + len(table.data)))
        used, with_headers, with_times, last = _convert_kernel.flatten(
            table.data, rows, table.batches, magic, self._last_offset, out
        )
        if used < 0:
            return None
        if with_headers or (with_times and not magic):
            self._check_records(table, source)
        self._last_offset = last
        self.report.records += len(rows)
        self.report.batches_written += len(rows)
        return out[:used]

    def _rebuilt(self, table: RecordTable, magic: int, codec: Codec | None, source: str | None) -> memoryview:
        """Encode the records of a table in batches of another magic or codec, with no field but what all magics have.

        Message sets, and batches of magic 2, stay what they are; messages that stand alone are put together where the
        result is a batch or a compressed set.
        """
        if magic < 2 and not codec and (codec is not None or not (table.batches["attributes"] & ATTRIBUTE_CODEC).any()):
            made = self._flattened(table, magic, source)
            if made is not None:
                return made
        self._check_records(table, source)
        return self._regrouped(table, magic, codec, source)

    def _regrouped(self, table: RecordTable, magic: int, codec: Codec | None, source: str | None) -> memoryview:
        """Do that in the general way, with a look at everything that can be wrong."""
        rows = table.records
        batches = table.batches
        counts = np.bincount(rows["batch"], minlength=len(batches))
        bad = (batches["status"] != BatchStatus.OK) & (counts > 0)
        for row in np.flatnonzero(bad).tolist():
            # Of all others that are bad there are no rows.
            self._leave_out(batches[row], "the checksum of a message in it doesn't hold", source, CrcMismatchError)
        offsets = rows["offset"]
        for row in self._falling(offsets, rows["batch"], bad):
            text = "offsets don't rise, or are negative: nothing can be written so"
            self._leave_out(batches[row], text, source, InvalidRecordError)
            bad[row] = True
        if bad.any():
            return self._regrouped(table[~bad[rows["batch"]]], magic, codec, source)
        here = np.flatnonzero(counts)
        if not len(here):
            return memoryview(b"")
        kept = batches
        if len(here) < len(batches):
            kept, counts = batches[here], counts[here]
        made = self._grouped(kept, counts, table, magic, codec)
        times: Any = rows["timestamp"] if magic else None
        keys, values = _kernel.Column(), _kernel.Column()
        keys.add_slices(rows["key_pos"], rows["key_len"], table.data)
        values.add_slices(rows["value_pos"], rows["value_len"], table.data)
        records = _kernel.Records(values, keys, offsets=offsets, timestamps=times, timestamp=NO_TIMESTAMP)
        _, row, trouble, found = _kernel.measure_batches(records, made)
        if trouble:
            self._refuse(batches[rows["batch"][row]], trouble, found, source)
        self._last_offset = int(offsets[-1])
        self.report.records += len(rows)
        stands_alone = (made["magic"] < 2) & (made["attributes"] & ATTRIBUTE_CODEC == 0)
        self.report.batches_written += int(np.where(stands_alone, made["record_count"], 1).sum())
        return composed(records, made, self.level, self._memory)

    def _falling(
        self, offsets: npt.NDArray[np.int64], of_batch: npt.NDArray[np.int32], bad: npt.NDArray[np.bool_]
    ) -> list[int]:
        """Return the batches whose offsets are negative or don't rise, also from those before them that are written."""
        falls = np.ones(len(offsets), np.bool_)
        falls[1:] = offsets[1:] <= offsets[:-1]
        if len(offsets) and offsets[0] > self._last_offset:
            falls[0] = False
        falls |= offsets < 0
        if not falls.any():
            return []
        begins = np.flatnonzero(np.append(True, of_batch[1:] != of_batch[:-1]))
        ends = np.append(begins[1:], len(offsets)) - 1
        # To its first offset it comes below.
        falls[begins] = offsets[begins] < 0
        inside = np.logical_or.reduceat(falls, begins)
        falling = []
        last = self._last_offset
        columns = (of_batch[begins], offsets[begins], offsets[ends], inside)
        for row, first, end, within in zip(*(column.tolist() for column in columns), strict=True):
            if bad[row]:
                continue
            if within or first <= last:
                falling.append(row)
            else:
                last = end
        return falling

    def _grouped(
        self, kept: Batches, counts: npt.NDArray[np.int64], table: RecordTable, magic: int, codec: Codec | None
    ) -> Batches:
        """Return the rows of the batches to write for those that have `counts` records each."""
        rows = table.records
        attributes = kept["attributes"] & (ATTRIBUTE_CODEC | ATTRIBUTE_LOG_APPEND_TIME)
        attributes[kept["magic"] == 0] &= ATTRIBUTE_CODEC
        alone = (kept["magic"] < 2) & (attributes & ATTRIBUTE_CODEC == 0)
        if codec is not None:
            attributes = attributes & ~ATTRIBUTE_CODEC | int(codec)
        first = np.cumsum(counts) - counts
        appended = attributes & ATTRIBUTE_LOG_APPEND_TIME != 0
        if magic == 2 or codec:
            # One batch has one append time.
            times = np.where(appended, kept["max_timestamp"], 0)
            begins = np.ones(len(kept), np.bool_)
            begins[1:] = ~(alone[1:] & alone[:-1])
            begins[1:] |= (attributes[1:] != attributes[:-1]) | (times[1:] != times[:-1])
            begins[1:] |= kept["magic"][1:] != kept["magic"][:-1]
            if alone.any():
                lengths = np.maximum(rows["key_len"], 0) + np.maximum(rows["value_len"], 0, dtype=np.int64)
                lengths += _RECORD_OVERHEAD
                offsets = rows["offset"]
                if len(rows) > len(kept):
                    lengths, offsets = np.add.reduceat(lengths, first), offsets[first]
                self._cut(begins, lengths, offsets)
            chosen = np.flatnonzero(begins)
        else:
            chosen = np.arange(len(kept))
        made = np.zeros(len(chosen), BATCH_DTYPE)
        made["magic"] = magic
        made["attributes"] = attributes[chosen]
        if magic == 0:
            made["attributes"] &= ATTRIBUTE_CODEC
        made["first_record"] = first[chosen]
        made["record_count"] = np.add.reduceat(counts, chosen)
        last = made["first_record"] + made["record_count"] - 1
        made["base_offset"] = rows["offset"][made["first_record"]]
        made["last_offset"] = rows["offset"][last]
        apart = made["last_offset"] - made["base_offset"]
        if magic == 2:
            if (apart > _INT32_MAX).any():
                row = int(made["first_record"][np.argmax(apart)])
                self._refuse(table.batches[rows["batch"][row]], 5, int(apart.max()), None)
            made["last_offset_delta"] = apart
        largest = np.maximum.reduceat(rows["timestamp"], made["first_record"])
        made["max_timestamp"] = np.where(appended[chosen], kept["max_timestamp"][chosen], largest)
        made["base_timestamp"] = rows["timestamp"][made["first_record"]]
        for name in ("partition_leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
            made[name] = -1
        return made

    def _cut(self, begins: npt.NDArray[np.bool_], sizes: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> None:
        """Let further batches begin where one would become too large, or its offsets too far apart."""
        starts = np.flatnonzero(begins)
        stops = np.append(starts[1:], len(begins))
        ends = np.cumsum(sizes)
        before = ends - sizes
        large = (ends[stops - 1] - before[starts] > self.batch_size) | (
            offsets[stops - 1] - offsets[starts] > _INT32_MAX
        )
        large &= stops - starts > 1
        for start, stop in zip(starts[large].tolist(), stops[large].tolist(), strict=True):
            while start < stop:
                begins[start] = True
                room = int(np.searchsorted(ends[start:stop], before[start] + self.batch_size, "right"))
                near = int(np.searchsorted(offsets[start:stop], offsets[start] + _INT32_MAX, "right"))
                start += max(1, min(room, near))


class Conversion(Rewriter):
    """What `convert` does; see there for the parameters."""

    def __init__(
        self,
        magic: int = 2,
        *,
        codec: Codec | str | int | None = None,
        level: int | None = None,
        lossy: Lossy = "raise",
        batch_size: int = 16384,
        on_error: OnError = "raise",
        limits: Limits | None = None,
        report: RewriteReport | None = None,
    ) -> None:
        super().__init__(
            codec=codec, level=level, batch_size=batch_size, on_error=on_error, limits=limits, report=report
        )
        if magic not in (0, 1, 2):
            raise ValueError(f"magic must be 0, 1 or 2, got {magic!r}")
        if lossy not in ("raise", "drop"):
            raise ValueError(f"lossy must be 'raise' or 'drop', got {lossy!r}")
        if level is not None and codec is None:
            raise ValueError("level goes with codec=")
        if magic < 2 and self.codec == Codec.ZSTD:
            raise ValueError(f"zstd needs magic 2, got magic {magic}")
        self.magic = magic
        self.lossy = lossy

    def _kinds(self, rows: Batches) -> npt.NDArray[np.int8]:
        kinds: npt.NDArray[np.int8] = (rows["magic"] != self.magic).astype(np.int8)
        return kinds

    def _rewrite(self, kind: int, data: Bytes, rows: Batches, origin: int, source: str | None) -> Iterator[memoryview]:
        if self.magic < 2:
            rows = self._checked_headers(rows, source)
        for lo, hi in _runs(rows, _RUN_BYTES):
            run = rows[lo:hi]
            begin = int(run["position"][0])
            part = data[begin - origin : int(run["position"][-1] + run["size"][-1]) - origin]
            merged = self._merged(part, run, begin) if self.magic == 2 and not self.codec else None
            if merged is not None:
                yield merged
                continue
            flat = self._flat(run)
            if flat is not None and flat[0]:
                out = memoryview(allocate(_most_bytes(run)))
                done, used = self._lower(part, run, flat, begin, out, check_crc=False)
                if done:
                    yield out[:used]
                    if done == len(run):
                        self._last_offset = -1
                        continue
                    run = run[done:]
                    part = part[int(run["position"][0]) - begin :]
                    begin = int(run["position"][0])
            for table in self._tables(part, run, begin, source):
                piece = self._rebuilt(table, self.magic, self.codec, source)
                if piece:
                    yield piece
            self._last_offset = -1

    def _flat(self, rows: Batches) -> npt.NDArray[np.bool_] | None:
        if self.magic == 2 or self.codec:
            return None
        attributes = rows["attributes"]
        flat: npt.NDArray[np.bool_] = (rows["magic"] == 2) & (rows["record_count"] > 0)
        flat &= attributes & (ATTRIBUTE_CODEC | ATTRIBUTE_CONTROL) == 0
        if self.lossy == "raise":
            flat &= attributes & (ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_DELETE_HORIZON) == 0
            flat &= rows["producer_id"] < 0
        return flat

    def _lower_into(self, out: _Output, data: Bytes, rows: Batches, flat: npt.NDArray[np.bool_]) -> int:
        room = out.memory(_most_bytes(rows))
        done, used = self._lower(data, rows, flat, 0, room, check_crc=True)
        if done:
            self.report.bytes_written += used
            out.add([room[:used]], int(rows["position"][done - 1] + rows["size"][done - 1]))
        return done

    def _report_lowered(self, rows: Batches) -> None:
        self._checked_headers(rows, None)
        self.report.batches += len(rows)
        self.report.rewritten += len(rows)
        self.report.bytes += int(rows["size"].sum())

    def _lower(
        self,
        data: Bytes,
        rows: Batches,
        flat: npt.NDArray[np.bool_],
        origin: int,
        out: memoryview,
        *,
        check_crc: bool,
    ) -> tuple[int, int]:
        """Write the messages of batches, up to the first that isn't flat or ordinary; how many batches and bytes."""
        if not flat.all():
            rows = rows[: int(np.argmin(flat))]
        most = int(_most_records(rows).max())
        if most > len(self._rows):
            self._rows = np.empty(max(most, 2 * len(self._rows)), RECORD_DTYPE)
        drops = self.lossy == "drop"
        done, used, records, with_headers, with_times, self._last_offset = _convert_kernel.lower(
            data, rows, origin, self.magic, self._last_offset, self._rows, out, drops, check_crc, checksum.MAX_SIZE
        )
        report = self.report
        report.records += records
        report.batches_written += records
        report.records_with_headers += with_headers
        report.timestamps += 0 if self.magic else with_times
        return done, used

    def _merged(self, data: Bytes, rows: Batches, origin: int) -> memoryview | None:
        """Put messages that stand alone together; None if one doesn't, or needs a closer look."""
        out = memoryview(allocate(len(data) + len(rows) * _BATCH_GROWTH))
        made = np.empty(len(rows), BATCH_DTYPE)
        most = checksum.MAX_SIZE
        used, count = _convert_kernel.merge(data, rows, origin, self.batch_size, out, made, most)
        if used < 0:
            return None
        seal(made[:count], out)
        self.report.records += len(rows)
        self.report.batches_written += count
        return out[:used]

    def _checked_headers(self, rows: Batches, source: str | None) -> Batches:
        """Count what is lost of headers, or refuse it."""
        current = rows["magic"] == 2
        attributes = rows["attributes"]
        control = current & (attributes & ATTRIBUTE_CONTROL != 0)
        empty = current & (rows["record_count"] == 0) & ~control
        data = current & ~control
        self._lose("control_batches", control, rows, source)
        self._lose("transactional_batches", data & (attributes & ATTRIBUTE_TRANSACTIONAL != 0), rows, source)
        self._lose("producer_batches", data & (rows["producer_id"] >= 0), rows, source)
        self._lose("delete_horizons", data & (attributes & ATTRIBUTE_DELETE_HORIZON != 0), rows, source)
        self._lose("leader_epochs", data & (rows["partition_leader_epoch"] >= 0), rows, source)
        self._lose("empty_batches", empty, rows, source)
        if self.codec is None:
            packed = data & ~empty & (attributes & ATTRIBUTE_CODEC == Codec.ZSTD)
            if packed.any():
                raise _error(
                    ConversionLossError,
                    rows[int(np.argmax(packed))],
                    source,
                    f"magic {self.magic} has no zstd, with which this batch is compressed; name another codec, as with "
                    "codec='lz4' (--codec lz4)",
                )
        return rows

    def _check_records(self, table: RecordTable, source: str | None) -> None:
        if self.magic == 2:
            return
        rows, batches = table.records, table.batches
        if self.magic == 0:
            self._lose("timestamps", rows["timestamp"] != NO_TIMESTAMP, batches, source, rows["batch"])
        self._lose("records_with_headers", rows["header_count"] > 0, batches, source, rows["batch"])

    def _lose(
        self,
        name: str,
        lost: npt.NDArray[np.bool_],
        batches: Batches,
        source: str | None,
        batch: npt.NDArray[np.int32] | None = None,
    ) -> None:
        count = int(np.count_nonzero(lost))
        if not count:
            return
        if self.lossy == "raise" and name not in _UNASKED:
            row = int(np.argmax(lost))
            raise _error(
                ConversionLossError,
                batches[row if batch is None else int(batch[row])],
                source,
                f"magic {self.magic} can't hold {_REFUSED_TEXTS[name]}, which this is the first batch to have; "
                "lossy='drop' (--lossy drop) drops them and tells how many they were",
            )
        setattr(self.report, name, getattr(self.report, name) + count)


# What a recompression does to a batch: only its payload, or its records.
_PAYLOAD, _RECORDS = 1, 2


class Recompression(Rewriter):
    """What `recompress` does; see there for the parameters."""

    codec: Codec

    def __init__(
        self,
        codec: Codec | str | int,
        *,
        level: int | None = None,
        batch_size: int = 16384,
        on_error: OnError = "raise",
        limits: Limits | None = None,
        report: RewriteReport | None = None,
    ) -> None:
        super().__init__(
            codec=codec, level=level, batch_size=batch_size, on_error=on_error, limits=limits, report=report
        )

    def _kinds(self, rows: Batches) -> npt.NDArray[np.int8]:
        own = rows["attributes"] & ATTRIBUTE_CODEC
        current = rows["magic"] == 2
        kinds = np.full(len(rows), _PAYLOAD, np.int8)
        # Messages stand alone, or are one compressed one: these are other records of the log.
        kinds[~current & ((own == 0) | (self.codec == Codec.NONE))] = _RECORDS
        if self.level is None or self.codec == Codec.NONE:
            kinds[own == self.codec] = 0
        # Kafka never compresses these (ATT-R5, EMP-R3).
        kinds[current & ((rows["attributes"] & ATTRIBUTE_CONTROL != 0) | (rows["record_count"] == 0))] = 0
        return kinds

    def _rewrite(self, kind: int, data: Bytes, rows: Batches, origin: int, source: str | None) -> Iterator[memoryview]:
        if self.codec == Codec.ZSTD and (rows["magic"] < 2).any():
            row = rows[int(np.argmax(rows["magic"] < 2))]
            raise _error(
                ConversionLossError, row, source, f"magic {row['magic']} has no zstd; convert to magic 2 first"
            )
        if kind == _PAYLOAD:
            yield from self._repacked(data, rows, origin, source)
            return
        magics = rows["magic"]
        breaks = [0, *(np.flatnonzero(magics[1:] != magics[:-1]) + 1).tolist(), len(rows)]
        for lo, hi in pairwise(breaks):
            for first, last in _runs(rows[lo:hi], _RUN_BYTES):
                run = rows[lo + first : lo + last]
                begin = int(run["position"][0])
                part = data[begin - origin : int(run["position"][-1] + run["size"][-1]) - origin]
                for table in self._tables(part, run, begin, source):
                    piece = self._rebuilt(table, int(magics[lo]), self.codec, source)
                    if piece:
                        yield piece
                self._last_offset = -1

    def _repacked(self, data: Bytes, rows: Batches, origin: int, source: str | None) -> Iterator[memoryview]:
        """Compress payloads anew, some of them at a time."""
        made = rows.copy()
        largest = min(_ORDINARY_GROWTH * int(rows["size"].max()), _ORDINARY_BYTES)
        scratch = allocate(max(_BLOCK_BYTES, largest))
        done = 0
        while done < len(rows):
            out = self._memory(_BLOCK_BYTES + largest)
            last, used = _repack.repack(
                data,
                made,
                done,
                origin,
                own_codecs(),
                self.codec,
                level_of(self.codec, self.level),
                self.limits.max_decompressed_bytes,
                scratch,
                out,
                _BLOCK_BYTES,
                checksum.MAX_SIZE,
            )
            if last > done:
                out = out[:used]
                seal(made[done:last], out)
            else:
                last += 1
                try:
                    out = self._one_repacked(data, made[done:last], origin)
                except PayloadError as error:
                    self._damaged(error, rows[done], source)
                    done = last
                    continue
            self.report.batches_written += last - done
            self.report.records += int(rows["record_count"][done:last].clip(0).sum())
            yield out
            done = last

    def _one_repacked(self, data: Bytes, batch: Batches, origin: int) -> memoryview:
        """Do that to one batch, whatever its shape and size."""
        position, size = np.empty(1, np.int64), np.empty(1, np.int64)
        _decode_kernel.payloads(data, batch, 0, 1, origin, position, size)
        start, stored = int(position[0]), int(size[0])
        if stored < 0:
            raise PayloadError(Finding(Fault.WRAPPER_VALUE))
        own, magic = int(batch["attributes"][0]) & ATTRIBUTE_CODEC, int(batch["magic"][0])
        arena = Arena()
        plain = data.data[start : start + stored]
        if own:
            decompress(own, plain, arena, self.limits.max_decompressed_bytes, magic)
            plain = arena.view[: arena.used]
        payload = compress(self.codec, plain, self.level, magic) if self.codec else plain
        batch["attributes"] = batch["attributes"] & ~ATTRIBUTE_CODEC | int(self.codec)
        before = int(overheads(batch)[0])
        batch["size"] = before + len(payload)
        if batch["size"][0] > _INT32_MAX:
            raise_trouble(7, 0, int(batch["size"][0]))
        out = memoryview(allocate(before + len(payload)))[: before + len(payload)]
        out[before:] = payload
        frame(batch, out)
        return out


def _most_records(rows: Batches) -> npt.NDArray[np.int64]:
    """Return how many records batches of magic 2 may have: no count is believed that the bytes can't hold."""
    most: npt.NDArray[np.int64] = np.minimum(rows["record_count"], rows["size"] // MIN_RECORD_SIZE)
    return most


def _most_bytes(rows: Batches) -> int:
    """Return how many bytes batches of magic 2 may become as messages."""
    return int(rows["size"].sum() + _MESSAGE_BYTES * _most_records(rows).clip(0).sum())


def good_batches(table: RecordTable) -> Batches:
    """Return the batches of a framing pass that are whole and hold their checksum."""
    good = table.batches["status"] == BatchStatus.OK
    # NumPy is slow at choosing rows of many fields.
    return table.batches if good.all() else table.batches[good]


def _offset_of(row: np.void) -> int:
    return int(row["base_offset"] if row["base_offset"] >= 0 else row["last_offset"])


def _error(kind: type[KbatchError], row: np.void, source: str | None, text: str) -> KbatchError:
    position, base_offset = int(row["position"]), _offset_of(row)
    where = "" if source is None else f"{source}, "
    return kind(
        f"{where}byte {position}, base offset {base_offset}: {text}",
        source=source,
        position=position,
        base_offset=base_offset,
    )


def convert(
    data: Buffer,
    magic: int = 2,
    *,
    codec: Codec | str | None = None,
    level: int | None = None,
    lossy: Lossy = "raise",
    batch_size: int = 16384,
    on_error: OnError = "raise",
    limits: Limits | None = None,
    report: RewriteReport | None = None,
) -> bytes:
    """Convert batches to another magic; those that have it are copied as they are.

    Offsets, keys, values, timestamps and their type stay. To magic 2: a compressed message set becomes a batch;
    messages that stand alone are put together up to `batch_size`; magic 0 has no timestamps, which gives -1. From magic
    2: a compressed batch becomes a compressed message set, of any other each record a message.

    Parameters
    ----------
    data : buffer
        Whole batches.
    magic : {2, 1, 0}
    codec : {"none", "gzip", "snappy", "lz4", "zstd"}, or kbatch.Codec, optional
        Of what is converted. Default is each batch's own. Magic 0 and 1 have no zstd: another one has to be given then.
    level : int, optional
        As for `kbatch.encode`, with `codec`.
    lossy : {"raise", "drop"}
        What to do about what the magic can't hold: refuse, or drop it and count it in the report. Below magic 2 that
        are headers, control batches, producer ids, epochs and sequences, that batches are transactional, and delete
        horizons; with magic 0 timestamps too. As in Kafka's down-conversion, records of aborted transactions become
        records like all others. Leader epochs, and batches without records, are dropped and counted in any case.
    batch_size : int
        Bytes before compression.
    on_error : {"raise", "skip"}
        What to do at damage: raise; or leave it out, and say so in the report.
    limits : Limits, optional
        What a batch may cost at most.
    report : RewriteReport, optional
        Is added to.

    Returns
    -------
    bytes

    Raises
    ------
    ConversionLossError
        At the first batch that can't be converted without a loss.
    CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, LimitExceededError
        At damage, as `kbatch.decode`.
    TruncatedBatchError
        If `data` ends within a batch.

    See Also
    --------
    kbatch.log.convert_log : the same for a log of any size.

    Examples
    --------
    >>> import kbatch
    >>> old = kbatch.encode([b"a", b"b"], timestamps=1000, magic=1)
    >>> new = kbatch.convert(old, 2)
    >>> kbatch.scan(new)["record_count"].tolist(), kbatch.decode(new).values()
    ([2], [b'a', b'b'])

    Magic 1 has no headers:

    >>> report = kbatch.RewriteReport()
    >>> batch = kbatch.encode([b"a"], headers=[[("k", b"v")]], timestamps=1000)
    >>> kbatch.convert(batch, 1, lossy="drop", report=report) == kbatch.encode([b"a"], timestamps=1000, magic=1)
    True
    >>> report.lost
    {'records_with_headers': 1}
    """
    return Conversion(
        magic,
        codec=codec,
        level=level,
        lossy=lossy,
        batch_size=batch_size,
        on_error=on_error,
        limits=limits,
        report=report,
    ).bytes_of(data)


def recompress(
    data: Buffer,
    codec: Codec | str,
    *,
    level: int | None = None,
    batch_size: int = 16384,
    on_error: OnError = "raise",
    limits: Limits | None = None,
    report: RewriteReport | None = None,
) -> bytes:
    """Compress the payloads of batches with another codec; every other field stays, but size and checksum.

    Control batches and batches without records have no codec and stay as they are. Messages of magic 0 and 1 that stand
    alone are put together to compressed sets up to `batch_size`; with ``codec="none"`` a compressed set becomes
    messages again. Records of magic 2 are not looked at.

    Parameters
    ----------
    data : buffer
        Whole batches.
    codec : {"none", "gzip", "snappy", "lz4", "zstd"}, or kbatch.Codec
        zstd only for magic 2.
    level : int, optional
        As for `kbatch.encode`. Without it a batch that has the codec already is copied.
    batch_size : int
        Bytes before compression.
    on_error, limits, report
        As for `convert`.

    Returns
    -------
    bytes

    Raises
    ------
    ConversionLossError
        At a message of magic 0 or 1, with zstd.
    CorruptBatchError, CrcMismatchError, InvalidRecordError, CodecError, UnsupportedFormatError, LimitExceededError
        At damage, as `kbatch.decode`.
    TruncatedBatchError
        If `data` ends within a batch.

    See Also
    --------
    kbatch.log.recompress_log : the same for a log of any size.

    Examples
    --------
    >>> import kbatch
    >>> batch = kbatch.encode([b"value"] * 100, timestamps=1000, producer_id=7, producer_epoch=0, base_sequence=3)
    >>> packed = kbatch.recompress(batch, "zstd")
    >>> len(packed) < len(batch) and kbatch.recompress(packed, "none") == batch
    True
    """
    return Recompression(
        codec, level=level, batch_size=batch_size, on_error=on_error, limits=limits, report=report
    ).bytes_of(data)
