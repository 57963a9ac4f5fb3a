"""Building a table: framed batches are checked, decompressed and parsed, up to the first bad one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.batches.arena import Arena, PayloadError
from kbatch.batches.codecs import decompress
from kbatch.batches.pooled import PooledRows
from kbatch.errors import Fault, Finding
from kbatch.format import ATTRIBUTE_CODEC, BATCH_DTYPE, HEADER_DTYPE, INT64_MAX, RECORD_DTYPE, BatchStatus, record_dtype
from kbatch.kernels.batch_decoder import Cause, Config, Outcome
from kbatch.kernels.pipeline import Pipeline
from kbatch.kernels.scan import survey
from kbatch.kernels.spans import check_layouts
from kbatch.read import workers
from kbatch.read.decode_options import DecodeOptions
from kbatch.records.data import Loss
from kbatch.table import RecordTable
from kbatch.tuning import (
    MAX_ARENA_BYTES,
    MAX_EXPECTED_RATIO,
    MIN_ARENA_BYTES,
    SAMPLE_BATCHES,
    SERIAL_BYTES,
    THREAD_BYTES,
    THREAD_BYTES_COMPRESSED,
    USUAL_RATIO,
)

__all__ = ["BadBatch", "TableBuilder"]

# The bounds of all offsets.
_MIN_OFFSET, _MAX_OFFSET = -(1 << 63), (1 << 63) - 1
_POINTERS = frozenset(("key", "value", "headers"))
_CRC_STEPS = {"skip": 0, "verify": 1, "mark": 2}

check_layouts(np.empty(0, BATCH_DTYPE), np.empty(0, RECORD_DTYPE), np.empty(0, HEADER_DTYPE))


class BadBatch(NamedTuple):
    """The first row that cannot be decoded, and its fault."""

    row: int
    finding: Finding


class TableBuilder:
    """Builds a table from the batches that are decoded into it.

    The caller frames batches into `batches`, calls `prepare` and then `decode`, which stops at the first bad batch. The
    caller then gives up, or calls `mark_bad` and decodes the rest, or calls `drop_batches_from` with some row. `finish`
    returns the table.

    Parameters
    ----------
    data : ndarray of uint8, read-only
        The bytes that hold the batches.
    options : DecodeOptions
    origin : int
        Position of ``data[0]`` in the source.
    max_bytes : int, optional
        The table is full when its records, batches and data have this size; it has at least one batch.
    expected : (int, int), optional
        The expected number of records and decompressed bytes of compressed batches, which bounds the first capacity in
        addition to `max_bytes`.

    Attributes
    ----------
    batches : PooledRows
        Rows of BATCH_DTYPE, in the order of their positions. New ones are appended to it, before `prepare`.
    decoded : int
        The number of rows at the front of `batches` that are decoded or marked as bad.
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
        # If the rows have no positions, the table does not use any bytes.
        self._columns = options.record_columns
        self._keeps_data = options.framing_only or not _POINTERS.isdisjoint(self._columns)
        self.trimmed = options.start_offset is not None or options.stop_offset is not None
        # Rows are trimmed by their offsets, also where the offset is not among the columns.
        self.dtype = record_dtype((*self._columns, "offset") if self.trimmed else self._columns)
        self.first_offset = _MIN_OFFSET if options.start_offset is None else _offset_bound(options.start_offset)
        self.last_offset = _MAX_OFFSET if options.stop_offset is None else _offset_bound(options.stop_offset - 1)
        self._records = PooledRows(self.dtype)
        self._config = Config(
            data,
            origin=origin,
            crc=_CRC_STEPS[options.crc],
            check_inner=options.crc != "skip",
            framing_only=options.framing_only,
            keep=self._keeps_data,
            max_bytes=INT64_MAX if max_bytes is None else max_bytes,
            limit=options.limits.max_decompressed_bytes,
            include_control=options.include_control,
            trimmed=self.trimmed,
            first_offset=self.first_offset,
            last_offset=self.last_offset,
        )
        # None while all payloads are uncompressed: then positions point into `data` itself.
        self._arena: Arena | None = None
        # The stored bytes that are to be decoded by one thread.
        self._serial_bytes = 0

    # -- the content of the table

    @property
    def is_full(self) -> bool:
        """Whether the table has reached `max_bytes`."""
        return self._max_bytes is not None and self.decoded > 0 and self.cost >= self._max_bytes

    @property
    def decompresses(self) -> bool:
        """Whether positions in the table point into decompressed payloads."""
        return self._arena is not None

    @property
    def cost(self) -> int:
        """The size of a table of the batches decoded so far, in bytes."""
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

        The decision uses the headers, as brokers do. They do not suffice if offsets wrap or decrease, nor for a
        compressed message set, whose base offset is unknown and -1: producers leave its offset 0 (LEG-R12).
        """
        first, last = batches["base_offset"], batches["last_offset"]
        unknown = (last < first) | ((first < 0) & (last == 0))
        within: npt.NDArray[np.bool_] = unknown | ((last >= self.first_offset) & (first <= self.last_offset))
        return within

    # -- rows

    def prepare(self, first: int, size: int) -> None:
        """Prepare to decode the batches from row `first` on, which were framed in `size` bytes: reserve capacity."""
        count = self.batches.used - first
        if not count:
            return
        batches = self.batches.filled()[first:]
        records, compressed = (0, 0) if self._options.framing_only else survey(batches, self._options.include_control)
        end = self._end_of(self.batches.used - 1) - self._origin
        # The batches that are not framed yet are assumed to be like these, if these are many.
        rest = len(self._data) - end if count >= SAMPLE_BATCHES else 0
        more = 1.1 * rest / size
        self._reserve(self.batches, 0, int(count * more))
        self._reserve(
            self._records, records, int(records * more), self._expected[0] if compressed and self._expected else None
        )
        if compressed and self._arena is None:
            self._arena = Arena(self._usual_arena(size + rest) if self._keeps_data else 0)
            if self._records.used and self._keeps_data:
                # Rows made so far point into `data`: its beginning becomes the beginning of the arena.
                done = self._end_of(self.decoded - 1) - self._origin
                self._arena.reserve(done)
                self._arena.view[:done] = self._data.data[:done]
                self._arena.used = done

    def _reserve(self, rows: PooledRows, count: int, later: int, limit: int | None = None) -> None:
        """Reserve `count` rows if the capacity is too small, and then also the rows that are expected `later`."""
        if self._max_bytes is not None:
            most = self._max_bytes // rows.array.dtype.itemsize + 1
            limit = most if limit is None else min(limit, most)
        if count + (later > 0) > len(rows.array) - rows.used:
            rows.reserve(count + later if limit is None else min(count + later, limit))

    def mark_bad(self, row: int, status: BatchStatus) -> None:
        """Give the batch at `row`, which `decode` has reported, this status and no records."""
        self.batches.array["status"][row] = status
        self.batches.array["first_record"][row] = self._records.used
        self.decoded = row + 1
        self._serial_bytes = SERIAL_BYTES

    def drop_batches_from(self, row: int) -> None:
        """Remove the rows from `row` on, which have no records."""
        self.batches.used = row
        self.decoded = min(self.decoded, row)

    def append_bad(self, batches: npt.NDArray[np.void]) -> None:
        """Append rows that are not to be decoded, after all other rows have been decoded."""
        self.batches.extend(batches)
        self.decoded = self.batches.used

    def finish(self, *, consumed: int, losses: Sequence[Loss], source: str | None) -> RecordTable:
        """Return the table of all rows, after all have been decoded."""
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
            columns=self._options.table_columns,
        )

    # -- decoding

    def decode(self, stop: int | None = None) -> BadBatch | None:
        """Decode the batches from row `decoded` on up to `stop`, until the table is full; return the first bad one."""
        stop = self.batches.used if stop is None else stop
        while self.decoded < stop and not self.is_full:
            finding = self._resolve(self._run_pipeline(stop))
            if finding is not None:
                return BadBatch(self.decoded, finding)
        return None

    def _run_pipeline(self, hi: int) -> Outcome:
        lo = self.decoded
        threads = self._options.threads
        if self._serial_bytes:
            hi = min(hi, self._row_after(lo, self._serial_bytes))
            threads = 1
        size = self._end_of(hi - 1) - int(self.batches.array["position"][lo])
        least = self._options.thread_bytes
        if least is None:
            least = THREAD_BYTES if self._arena is None else THREAD_BYTES_COMPRESSED
        outcome = workers.run_pipeline(self._pipeline(hi), min(threads, max(1, size // least)))
        self._accept(outcome)
        if self.decoded == hi:
            self._serial_bytes = 0
        return outcome

    def _pipeline(self, hi: int) -> Pipeline:
        arena = self._arena
        return Pipeline(
            self._config,
            self.batches.array,
            self.decoded,
            hi,
            self._records.array,
            self._records.used,
            None if arena is None else arena.view,
            0 if arena is None else arena.used,
        )

    def _accept(self, outcome: Outcome) -> None:
        if outcome.row > self.decoded:
            self._last_good = outcome.row - 1
        self.decoded, self._records.used = outcome.row, outcome.used
        if self._arena is not None:
            self._arena.used = outcome.arena_used

    def _resolve(self, outcome: Outcome) -> Finding | None:
        """Prepare the pipeline for the next batch, and return the fault of that batch, if any."""
        if outcome.cause == Cause.RECORDS:
            self._records.reserve(outcome.needed)
        elif outcome.cause == Cause.ARENA:
            self._reserve_arena(outcome.needed)
        elif outcome.cause == Cause.ORDER:
            self._serial_bytes = SERIAL_BYTES
        elif outcome.cause == Cause.PAYLOAD:
            return self._decompress(outcome.at, outcome.needed)
        elif outcome.cause == Cause.FAULT:
            return Finding(Fault(outcome.fault), outcome.at, outcome.record, outcome.expected, outcome.found)
        return None

    def _decompress(self, position: int, size: int) -> Finding | None:
        """Decode the next batch, whose payload of `size` bytes at `position` may have any shape."""
        assert self._arena is not None
        arena, used, capacity = self._arena, self._arena.used, len(self._arena.view)
        batch = self.batches.array[self.decoded]
        codec, magic = int(batch["attributes"]) & ATTRIBUTE_CODEC, int(batch["magic"])
        if self._keeps_data:
            self._reserve_arena(0)
        try:
            payload = self._data.data[position : position + size]
            size = decompress(codec, payload, arena, self._options.limits.max_decompressed_bytes, magic)
        except PayloadError as error:
            return error.finding
        arena.used = used
        while True:
            outcome = self._pipeline(self.decoded + 1).resume(size)
            if outcome.cause != Cause.RECORDS:
                break
            self._records.reserve(outcome.needed)
        self._accept(outcome)
        if len(arena.view) == capacity:
            self._serial_bytes = SERIAL_BYTES
        return self._resolve(outcome)

    # -- capacity

    def _usual_arena(self, size: int) -> int:
        usual = USUAL_RATIO * size
        if self._max_bytes is not None:
            usual = min(usual, self._max_bytes)
        if self._expected is not None:
            usual = min(usual, self._expected[1])
        return min(max(usual, MIN_ARENA_BYTES), MAX_ARENA_BYTES)

    def _reserve_arena(self, needed: int) -> None:
        """Reserve capacity for `needed` bytes and for the rest of the data, by the ratio of the payloads so far.

        Without this, the arena would grow by copying, which for lz4 takes a third of the time of decompressing.
        """
        assert self._arena is not None
        at = int(self.batches.array["position"][self.decoded]) - self._origin
        ratio = min(self._arena.used / max(at, 1), MAX_EXPECTED_RATIO)
        expected = int(1.1 * ratio * (len(self._data) - at)) + MIN_ARENA_BYTES
        if self._max_bytes is not None:
            expected = min(expected, max(self._max_bytes - self.cost, 0) + MIN_ARENA_BYTES)
        self._arena.reserve(max(expected, needed))

    def _row_after(self, row: int, size: int) -> int:
        """Return the first row that begins at least `size` bytes after `row`, or the number of rows."""
        positions = self.batches.filled()["position"]
        return bisect_left(positions, positions[row] + size, row)

    def _end_of(self, row: int) -> int:
        return int(self.batches.array["position"][row]) + int(self.batches.array["size"][row])


def _offset_bound(offset: int) -> int:
    """Return an offset within the bounds of int64, as the kernel takes it."""
    return min(max(int(offset), _MIN_OFFSET), _MAX_OFFSET)
