"""Batches -> the same records in other batches: what `kbatch.conversion` and `kbatch.recompression` have in common.

Stretches of batches are rewritten alike; the rest is copied. What is damaged is refused, or left out and told.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from kbatch.checksums import first_bad_crc
from kbatch.codecs import PayloadError, check_level
from kbatch.decode_options import Crc, DecodeOptions
from kbatch.encoding import check_range, composed, new_memory, parse_codec, raise_trouble
from kbatch.errors import (
    CrcMismatchError,
    InvalidRecordError,
    KbatchError,
    TruncatedBatchError,
    finding_text,
    finding_to_error,
)
from kbatch.format import (
    ATTRIBUTE_CODEC,
    COLUMN_FIELDS,
    NO_TIMESTAMP,
    RECORD_DTYPE,
    BatchStatus,
    Codec,
    Limits,
)
from kbatch.framing import byte_array, scan_part
from kbatch.grouping import falling, grouped
from kbatch.kernels import convert as _convert_kernel
from kbatch.kernels import decode as _decode_kernel
from kbatch.kernels import encode as _kernel
from kbatch.kernels.buffers import allocate
from kbatch.passes import decode_part
from kbatch.table import Loss, RecordTable

__all__ = [
    "BLOCK_BYTES",
    "LOST_TEXTS",
    "MESSAGE_BYTES",
    "OnError",
    "Output",
    "RewriteReport",
    "Rewriter",
    "error_at",
    "good_batches",
    "runs",
]

OnError = Literal["raise", "skip"]
Bytes = npt.NDArray[np.uint8]
Batches = npt.NDArray[np.void]

_INT32_MAX = 2**31 - 1
# What is checked, and put together, at a time.
_RUN_BYTES = 1 << 20
# What is decoded, or compressed anew, at a time: it stays in the L2 cache, with its records and what they become.
BLOCK_BYTES = 256 << 10
# What a table of compressed batches takes, about.
_TABLE_BYTES = 8 << 20
# How many batches are scanned at a time.
_MOST_ROWS = 8192
# What a record takes at most beside its key and value as a message.
MESSAGE_BYTES = 34
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
_ALL_COLUMNS = tuple(COLUMN_FIELDS)


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

    Examples
    --------
    >>> import kbatch
    >>> report = kbatch.RewriteReport()
    >>> message = kbatch.convert(kbatch.encode([b"v"], timestamps=1000), 0, lossy="drop", report=report)
    >>> report.batches, report.records, report.lost
    (1, 1, {'timestamps': 1})
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


def runs(data: Bytes, rows: Batches, origin: int) -> Iterator[tuple[Bytes, Batches, int]]:
    """Part batches that lie one after the other in `data` into runs: the bytes, rows and position of each."""
    for lo, hi in _runs(rows, _RUN_BYTES):
        run = rows[lo:hi]
        begin = int(run["position"][0])
        yield data[begin - origin : int(run["position"][-1] + run["size"][-1]) - origin], run, begin


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


class Output:
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
        """Return all of it."""
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
        out = Output(len(array))
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

    def _lower_into(self, out: Output, data: Bytes, rows: Batches, flat: npt.NDArray[np.bool_]) -> int:
        """Write what such batches become, checksums included, as far as nothing is unusual; how many of them."""
        raise NotImplementedError

    def _report_lowered(self, rows: Batches) -> None:
        """Report about batches that became messages so."""
        raise NotImplementedError

    def _rewrite_damaged(self, data: Bytes, out: Output) -> None:
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
            raise error_at(kind, row, source, text)
        self.report.damage.append(Loss(int(row["position"]), int(row["size"]), text, _offset_of(row)))

    def _refuse(self, row: np.void, trouble: int, found: int, source: str | None) -> NoReturn:
        """Raise for records that no batch of the wanted kind can hold."""
        try:
            raise_trouble(trouble, 0, found)
        except ValueError as error:
            # What `encode` could be given doesn't help here.
            text = str(error).removeprefix("record 0: ").partition("; give ")[0]
            raise error_at(InvalidRecordError, row, source, text) from None
        raise AssertionError("there was no trouble")

    def _tables(self, data: Bytes, rows: Batches, origin: int, source: str | None) -> Iterator[RecordTable]:
        """Decode a run of batches, some of its records at a time."""
        packed = rows["attributes"] & ATTRIBUTE_CODEC != 0
        if (rows["magic"] == 2).all() and not packed.any():
            for lo, hi in _runs(rows, BLOCK_BYTES):
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
        out = memoryview(allocate(len(rows) * MESSAGE_BYTES + len(table.data)))
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
        for row in falling(offsets, rows["batch"], bad, self._last_offset):
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
        made = grouped(kept, counts, rows, magic, codec, self.batch_size)
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


def good_batches(table: RecordTable) -> Batches:
    """Return the batches of a framing pass that are whole and hold their checksum."""
    good = table.batches["status"] == BatchStatus.OK
    # NumPy is slow at choosing rows of many fields.
    return table.batches if good.all() else table.batches[good]


def _offset_of(row: np.void) -> int:
    return int(row["base_offset"] if row["base_offset"] >= 0 else row["last_offset"])


def error_at(kind: type[KbatchError], row: np.void, source: str | None, text: str) -> KbatchError:
    """Make an error about a batch."""
    position, base_offset = int(row["position"]), _offset_of(row)
    where = "" if source is None else f"{source}, "
    return kind(
        f"{where}byte {position}, base offset {base_offset}: {text}",
        source=source,
        position=position,
        base_offset=base_offset,
    )
