"""Building a table: framed batches are checked, decompressed and parsed, up to the first bad one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch import workers
from kbatch.checksums import first_bad_crc
from kbatch.codecs import Arena, PayloadError, decompress
from kbatch.decode_options import Crc, DecodeOptions
from kbatch.errors import Fault, Finding
from kbatch.format import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    BATCH_DTYPE,
    HEADER_DTYPE,
    RECORD_DTYPE,
    BatchStatus,
    Codec,
    record_dtype,
)
from kbatch.kernels import decode as _kernel
from kbatch.kernels.pipeline import Pipeline
from kbatch.kernels.scan import survey
from kbatch.kernels.spans import check_layouts
from kbatch.pooled import PooledRows
from kbatch.table import Loss, RecordTable

__all__ = ["BadBatch", "TableBuilder"]

# No offset lies beyond them.
_MIN_OFFSET, _MAX_OFFSET = -(1 << 63), (1 << 63) - 1
_NO_LIMIT = (1 << 63) - 1
_POINTERS = frozenset(("key", "value", "headers"))
_CRC_STEPS = {"skip": 0, "verify": 1, "mark": 2}

check_layouts(np.empty(0, BATCH_DTYPE), np.empty(0, RECORD_DTYPE), np.empty(0, HEADER_DTYPE))

# The first capacity of an arena is this many times the size of its input, within bounds. Untouched pages are never
# allocated.
_USUAL_RATIO = 5
_MIN_ARENA_BYTES = 64 << 10
_MAX_ARENA_BYTES = 256 << 20
# The stored bytes that one thread decodes after an unusual batch: where there are many of those, what other threads do
# would be discarded.
_SERIAL_BYTES = 1 << 20
# The stored bytes that a further thread is started for, by whether there is something to decompress. To start one takes
# 50 us: two are as fast as one for 1 MiB of uncompressed batches, 1.4 to 1.7 times as fast for 256 KiB of compressed
# ones.
_THREAD_BYTES = 512 << 10
_THREAD_BYTES_COMPRESSED = 128 << 10
# For what is still to come an arena reserves no more than this many times its size, whatever the ratio of a hostile
# first batch is.
_MAX_EXPECTED_RATIO = 6


class BadBatch(NamedTuple):
    """The first row that can't be decoded, and why."""

    row: int
    finding: Finding


class TableBuilder:
    """What a table is made of, while batches are decoded to it.

    The caller frames batches into `batches`, calls `prepare` and then `decode`, which stops at the first bad batch.
    What happens then is the caller's decision: to give up, to `mark_bad` it and decode the rest, or to
    `drop_batches_from` some row. `finish` makes the table.

    Parameters
    ----------
    data : ndarray of uint8, read-only
        The bytes that hold the batches.
    options : DecodeOptions
    origin : int
        Position of ``data[0]`` in the source.
    max_bytes : int, optional
        The table is full when its records, batches and bytes take so much; it holds one batch at least.
    expected : (int, int), optional
        The records and decompressed bytes to be expected of compressed batches, as far as `max_bytes` admits them: the
        first capacity is no larger. Default is as much as there may be.

    Attributes
    ----------
    batches : PooledRows
        Rows of BATCH_DTYPE, in the order of their positions. New ones are appended to it, before `prepare`.
    decoded : int
        Rows of `batches` at the front that are done: decoded, or marked as bad.
    dtype : dtype
        Of the record rows.
    first_offset, last_offset : int
        Records outside of these are left out.
    """

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        options: DecodeOptions,
        *,
        origin: int,
        max_bytes: int | None,
        expected: tuple[int, int] | None,
    ) -> None:
        self._data = data
        self._options = options
        self._origin = origin
        self._max_bytes = max_bytes
        self._expected = expected
        self.batches = PooledRows(BATCH_DTYPE)
        self.decoded = 0
        # The last row of a batch that is good.
        self._last_good = -1
        # Of the rows last prepared, those whose magic and codec can't be decoded whatever their bytes are.
        self._unsupported: list[int] = []
        # Where a row has no position, nothing that a table holds points to bytes.
        self._columns = options.record_columns
        self._keeps_data = options.framing_only or not _POINTERS.isdisjoint(self._columns)
        self.trimmed = options.start_offset is not None or options.stop_offset is not None
        # Rows are trimmed by their offsets, also where the offset is not among the columns.
        self.dtype = record_dtype((*self._columns, "offset") if self.trimmed else self._columns)
        self.first_offset = _MIN_OFFSET if options.start_offset is None else _offset_bound(options.start_offset)
        self.last_offset = _MAX_OFFSET if options.stop_offset is None else _offset_bound(options.stop_offset - 1)
        self._records = PooledRows(self.dtype)
        # None as long as all payloads are uncompressed: then positions point into `data` itself.
        self._arena: Arena | None = None
        # The stored bytes that are to be decoded by one thread.
        self._serial_bytes = 0
        if options.threads > 1 and len(data) >= 2 * _THREAD_BYTES_COMPRESSED:
            workers.wake(options.threads)

    # -- what the table holds so far

    @property
    def is_full(self) -> bool:
        """Whether the table takes `max_bytes`."""
        return self._max_bytes is not None and self.decoded > 0 and self.cost >= self._max_bytes

    @property
    def decompresses(self) -> bool:
        """Whether positions in the table are those of decompressed payloads."""
        return self._arena is not None

    @property
    def cost(self) -> int:
        """Bytes that a table of the batches decoded so far takes."""
        if self._arena is not None:
            size = self._arena.used
        elif self._keeps_data and self.decoded:
            size = self._end_of(self.decoded - 1) - self._origin
        else:
            size = 0
        return self._records.used * self.dtype.itemsize + size + self.decoded * BATCH_DTYPE.itemsize

    @property
    def last_good_offset(self) -> int | None:
        """The last offset of the last batch that was decoded without a fault."""
        return int(self.batches.array["last_offset"][self._last_good]) if self._last_good >= 0 else None

    def may_have_records(self, batches: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Return which batches may have records between `first_offset` and `last_offset`.

        As brokers do, it goes by their headers. These can't tell where offsets wrap or decrease, nor of a compressed
        message set, whose base offset is unknown and -1: producers leave its offset 0 (LEG-R12).
        """
        first, last = batches["base_offset"], batches["last_offset"]
        unknown = (last < first) | ((first < 0) & (last == 0))
        within: npt.NDArray[np.bool_] = unknown | ((last >= self.first_offset) & (first <= self.last_offset))
        return within

    # -- rows

    def prepare(self, first: int, size: int) -> None:
        """Prepare to decode the batches from row `first` on, which were framed in `size` bytes: make room for them."""
        batches = self.batches.filled()[first:]
        records, compressed, unsupported = (
            (0, 0, 0) if self._options.framing_only else survey(batches, self._options.include_control)
        )
        if self._max_bytes is not None:
            records = min(records, self._max_bytes // self.dtype.itemsize)
        if compressed and self._expected is not None:
            records = min(records, self._expected[0])
        if not len(self._records.array):
            self._records.reserve(records)
        self._unsupported = []
        if unsupported:
            # zstd came with magic 2 (ZS-R1).
            last_codec = np.where(batches["magic"] == 2, Codec.ZSTD, Codec.LZ4)
            unknown = (batches["attributes"] & ATTRIBUTE_CODEC) > last_codec
            self._unsupported = (np.flatnonzero(unknown & (batches["status"] == BatchStatus.OK)) + first).tolist()
        if compressed and self._arena is None:
            self._arena = Arena(self._usual_arena(size) if self._keeps_data else 0)
            if self._records.used and self._keeps_data:
                # Rows made so far point into `data`: its beginning becomes the beginning of the arena.
                done = self._end_of(self.decoded - 1) - self._origin
                self._arena.reserve(done)
                self._arena.view[:done] = self._data.data[:done]
                self._arena.used = done

    def mark_bad(self, row: int, status: BatchStatus) -> None:
        """Let the batch at `row`, which `decode` has reported, have this status and no records."""
        self.batches.array["status"][row] = status
        self.batches.array["first_record"][row] = self._records.used
        self.decoded = row + 1
        self._serial_bytes = _SERIAL_BYTES

    def drop_batches_from(self, row: int) -> None:
        """Remove the rows from `row` on, none of which has records."""
        self.batches.used = row
        self.decoded = min(self.decoded, row)

    def append_bad(self, batches: npt.NDArray[np.void]) -> None:
        """Append rows that are not to be decoded, where all before them are done."""
        self.batches.extend(batches)
        self.decoded = self.batches.used

    def finish(self, *, consumed: int, losses: Sequence[Loss], source: str | None) -> RecordTable:
        """Return the table of all rows; there has to be nothing left to decode."""
        records = self._records.finished()
        if self.trimmed and "offset" not in self._columns:
            records = records[list(self._options.record_dtype.names or ())]
            records.setflags(write=False)
        if not self._keeps_data:
            data = self._data[:0].copy()
            data.setflags(write=False)
        else:
            data = self._data if self._arena is None else self._arena.array()
        return RecordTable(
            records,
            self.batches.finished(),
            data,
            consumed=consumed,
            losses=losses,
            source=source,
            columns=self._columns,
        )

    # -- decoding

    def decode(self, stop: int | None = None) -> BadBatch | None:
        """Decode the batches from row `decoded` on up to `stop`, until the table is full; return the first bad one."""
        stop = self.batches.used if stop is None else stop
        while self.decoded < stop and not self.is_full:
            end = self._run_pipeline(stop)
            if self.decoded == end or self.is_full:
                continue
            finding = self._decode_batch(self.decoded)
            if finding is not None:
                return BadBatch(self.decoded, finding)
        return None

    def _run_pipeline(self, hi: int) -> int:
        """Decode ordinary batches; return the row before which it would have ended by itself."""
        lo, crc = self.decoded, self._options.crc
        arena = self._arena
        threads = self._options.threads
        if self._serial_bytes:
            hi = min(hi, self._row_after(lo, self._serial_bytes))
            threads = 1
        if hi > lo:
            pipeline = self._pipeline(lo, hi, crc)
            stored = self._end_of(hi - 1) - int(self.batches.array["position"][lo])
            least = _THREAD_BYTES if arena is None else _THREAD_BYTES_COMPRESSED
            workers.run(pipeline, min(threads, max(1, stored // least)))
            self.decoded, self._records.used = pipeline.next, pipeline.used
            if arena is not None:
                arena.used = pipeline.arena_used
            if self.decoded > lo:
                self._last_good = self.decoded - 1
            if self.decoded == hi:
                self._serial_bytes = 0
        return hi

    def _pipeline(self, lo: int, hi: int, crc: Crc) -> Pipeline:
        return Pipeline(
            self._data,
            self.batches.array,
            lo,
            hi,
            self._origin,
            self._records.array,
            self._records.used,
            None if self._arena is None else self._arena.view,
            0 if self._arena is None else self._arena.used,
            packed=self._arena is not None,
            keep=self._keeps_data,
            crc=_CRC_STEPS[crc],
            check_inner=self._options.crc != "skip",
            framing_only=self._options.framing_only,
            most=_NO_LIMIT if self._max_bytes is None else self._max_bytes,
            limit=self._options.limits.max_decompressed_bytes,
            include_control=self._options.include_control,
            trimmed=self.trimmed,
            first_offset=self.first_offset,
            last_offset=self.last_offset,
        )

    def _decode_batch(self, row: int) -> Finding | None:
        """Decode a batch that may be bad; return what is wrong with it."""
        capacity = self._capacity()
        finding = self._check(row) if self._options.crc == "verify" else None
        if self._options.crc == "mark":
            self._mark(row, row + 1)
        if finding is not None:
            return finding
        unsupported = bisect_left(self._unsupported, row)
        if self._options.framing_only:
            self.decoded = row + 1
        elif unsupported < len(self._unsupported) and self._unsupported[unsupported] == row:
            return self._refusal(row)
        elif self._arena is None:
            finding = self._parse(row, self._data)
        else:
            if self._keeps_data:
                self._expect()
            finding = self._decode_compressed(row)
        if finding is not None:
            return finding
        self._last_good = row
        if capacity == self._capacity():
            self._serial_bytes = _SERIAL_BYTES
        return None

    def _refusal(self, row: int) -> Finding:
        """Return why a batch can't be decoded, whatever its bytes are and also if it has no records (ATT-R3)."""
        batch = self.batches.array[row]
        codec = int(batch["attributes"]) & ATTRIBUTE_CODEC
        if batch["magic"] != 2:
            return Finding(Fault.LEGACY_CODEC, wanted=int(batch["magic"]), found=codec)
        return Finding(Fault.UNKNOWN_CODEC, found=codec)

    def _mark(self, lo: int, hi: int) -> None:
        """Mark the rows from `lo` up to `hi` whose checksum is bad."""
        batches = self.batches.filled()
        while lo < hi:
            lo, _ = first_bad_crc(self._data, batches, lo, hi, self._origin)
            if lo < hi:
                if batches["status"][lo] == BatchStatus.OK:
                    batches["status"][lo] = BatchStatus.BAD_CRC
                lo += 1

    def _check(self, row: int) -> Finding | None:
        """Return what is wrong with the checksum of a batch, if anything is."""
        batches = self.batches.filled()
        good, crc = first_bad_crc(self._data, batches, row, row + 1, self._origin)
        if good > row:
            return None
        if self._options.framing_only and self.trimmed and not self.may_have_records(batches[row : row + 1])[0]:
            # Damage outside of the offsets is not reported.
            batches["status"][row] = BatchStatus.BAD_CRC
            return None
        return Finding(Fault.BAD_CRC, wanted=int(batches["crc"][row]), found=crc)

    def _decode_compressed(self, row: int) -> Finding | None:
        """Decode a batch by way of the arena, compressed or not."""
        assert self._arena is not None
        arena = self._arena
        position = np.empty(1, np.int64)
        size = np.empty(1, np.int64)
        _kernel.payloads(self._data, self.batches.filled(), row, row + 1, self._origin, position, size)
        used = arena.used
        finding: Finding | None = None
        try:
            self._decompress(row, arena, position, size)
            finding = self._parse(row, np.frombuffer(arena.view, np.uint8), position, size)
        except PayloadError as error:
            finding = error.finding
        if finding is not None or not self._keeps_data:
            # Nothing points to what it was decompressed to.
            arena.used = used
        return finding

    def _decompress(self, row: int, arena: Arena, position: npt.NDArray[np.int64], size: npt.NDArray[np.int64]) -> None:
        """Append the uncompressed payload of a batch to the arena; replace its `position` and `size` by those there."""
        batch = self.batches.array[row]
        magic, attributes = int(batch["magic"]), int(batch["attributes"])
        codec = attributes & ATTRIBUTE_CODEC
        start, stored = int(position[0]), int(size[0])
        position[0] = arena.used
        if codec and (
            batch["status"] > BatchStatus.BAD_CRC
            or (magic == 2 and batch["record_count"] <= 0)
            or (attributes & ATTRIBUTE_CONTROL and not self._options.include_control)
        ):
            # There is nothing to read in it, whatever it is.
            size[0] = 0
            return
        if stored < 0:
            raise PayloadError(Finding(Fault.WRAPPER_VALUE))
        payload = self._data.data[start : start + stored]
        size[0] = decompress(codec, payload, arena, self._options.limits.max_decompressed_bytes, magic)

    def _parse(
        self,
        row: int,
        data: npt.NDArray[np.uint8],
        position: npt.NDArray[np.int64] | None = None,
        size: npt.NDArray[np.int64] | None = None,
    ) -> Finding | None:
        """Run the kernel over a batch; `decoded` is then the row after it, unless something is wrong with it."""
        while True:
            self.decoded, self._records.used, fault, record, byte, wanted, found = _kernel.decode(
                data,
                self.batches.filled(),
                row,
                row + 1,
                self._origin,
                position,
                size,
                self._records.array,
                self._records.used,
                self._options.include_control,
                self._options.crc != "skip",
                self.trimmed,
                self.first_offset,
                self.last_offset,
            )
            if fault:
                return Finding(Fault(fault), byte, record, wanted, found)
            if self.decoded > row:
                return None
            # No room for the records of the batch, whose count the kernel has found to be possible.
            self._records.reserve(int(self.batches.array["record_count"][row]))

    # -- capacity

    def _capacity(self) -> tuple[int, int]:
        return len(self._records.array), 0 if self._arena is None else len(self._arena.view)

    def _usual_arena(self, size: int) -> int:
        usual = _USUAL_RATIO * size
        if self._max_bytes is not None:
            usual = min(usual, self._max_bytes)
        if self._expected is not None:
            usual = min(usual, self._expected[1])
        return min(max(usual, _MIN_ARENA_BYTES), _MAX_ARENA_BYTES)

    def _expect(self) -> None:
        """Reserve arena for the rest of the batches, by how much the payloads grew so far.

        Without this the arena would grow by copying, which for lz4 takes a third as long as decompressing.
        """
        assert self._arena is not None
        at = int(self.batches.array["position"][self.decoded]) - self._origin
        rest = self._end_of(self.batches.used - 1) - self._origin - at
        ratio = min(self._arena.used / max(at, 1), _MAX_EXPECTED_RATIO)
        expected = int(1.1 * ratio * rest) + _MIN_ARENA_BYTES
        if self._max_bytes is not None:
            expected = min(expected, max(self._max_bytes - self.cost, 0) + _MIN_ARENA_BYTES)
        self._arena.reserve(expected)

    def _row_after(self, row: int, size: int) -> int:
        """Return the first row after `row` that begins `size` bytes or more after it, or their number."""
        positions = self.batches.filled()["position"]
        return bisect_left(positions, positions[row] + size, row)

    def _end_of(self, row: int) -> int:
        return int(self.batches.array["position"][row]) + int(self.batches.array["size"][row])


def _offset_bound(offset: int) -> int:
    """Return an offset as the kernel takes it: no record lies beyond the bounds of int64."""
    return min(max(int(offset), _MIN_OFFSET), _MAX_OFFSET)
