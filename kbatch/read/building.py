"""Building a table: framed batches are checked, decompressed and parsed, up to the first bad one."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kbatch.batches.arena import Arena, PayloadError
from kbatch.batches.codecs import decompress
from kbatch.batches.pooled import PooledRows
from kbatch.errors import Fault, Finding
from kbatch.format import (
    ATTRIBUTE_CODEC,
    BATCH_DTYPE,
    HEADER_DTYPE,
    INT64_MAX,
    MIN_RECORD_SIZE,
    RECORD_DTYPE,
    BatchStatus,
    record_dtype,
)
from kbatch.kernels.batch_decoder import Cause, Config, Outcome
from kbatch.kernels.buffers import trim
from kbatch.kernels.decode import payloads
from kbatch.kernels.pipeline import Pipeline
from kbatch.kernels.runs import BatchRuns
from kbatch.kernels.scan import survey
from kbatch.kernels.spans import check_layouts
from kbatch.read import workers
from kbatch.read.budget import TableBudget
from kbatch.read.decode_options import DecodeOptions
from kbatch.read.refusals import Refusals
from kbatch.read.splitting import SplitBatch, outcome_finding
from kbatch.records.loss_list import LossList
from kbatch.table import RecordTable
from kbatch.tuning import (
    HEADER_SAMPLE,
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

_POINTERS = frozenset(("key", "value", "headers"))
_CRC_STEPS = {"skip": 0, "verify": 1, "mark": 2}

check_layouts(np.empty(0, BATCH_DTYPE), np.empty(0, RECORD_DTYPE), np.empty(0, HEADER_DTYPE))


class BadBatch(NamedTuple):
    """The first row that cannot be decoded, and its fault."""

    row: int
    finding: Finding


class _TableRows:
    """The rows and the bytes of a table that a `TableBuilder` fills; see there for parameters and attributes."""

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        options: DecodeOptions,
        *,
        origin: int,
        max_bytes: int | None,
        expected: tuple[int, int] | None,
        budget: TableBudget,
        losses: LossList,
    ) -> None:
        self._data = data
        self._options = options
        self._origin = origin
        self._max_bytes = max_bytes
        self._expected = expected
        self._budget = budget
        self.split: SplitBatch | None = None
        # Whether the next batch does not fit.
        self._has_ended = False
        self._limits_headers = budget.is_strict and "headers" in options.record_columns
        self._header_bytes = 0
        self.batches = PooledRows(BATCH_DTYPE, 0, budget.frugal_from)
        self.decoded = 0
        # The last row of a batch that is good.
        self._last_good = -1
        # If the rows have no positions, the table does not use any bytes.
        self._columns = options.record_columns
        self._keeps_data = options.framing_only or not _POINTERS.isdisjoint(self._columns)
        self.trimmed = options.start_offset is not None or options.stop_offset is not None
        # Rows are trimmed by their offsets, also where the offset is not among the columns.
        self.dtype = record_dtype((*self._columns, "offset") if self.trimmed else self._columns)
        self._records = PooledRows(self.dtype, 0, budget.frugal_from)
        self._table_bytes = budget.table
        # The memory that is kept for the losses of the table.
        self._set_aside = 0
        self._losses = losses
        self._config = self._new_config()
        self.count_losses()
        # Whether bad batches whose length is right are passed over by the kernel.
        self._skips = options.on_error == "skip"
        # None while all payloads are uncompressed: then positions point into `data` itself.
        self._arena: Arena | None = None
        # The stored bytes that are to be decoded by one thread.
        self._serial_bytes = 0
        # Whether decoding may have filled memory for a batch that is bad.
        self._has_bad = False
        # Rows before this one have a good checksum, or a status that shows a bad one.
        self.verified = 0

    def _new_config(self) -> Config:
        first_offset, last_offset = self._options.offset_range
        return Config(
            self._data,
            origin=self._origin,
            crc=_CRC_STEPS[self._options.crc],
            check_inner=self._options.crc != "skip",
            framing_only=self._options.framing_only,
            keep=self._keeps_data,
            max_bytes=INT64_MAX if self._max_bytes is None else self._max_bytes - self._set_aside,
            table_bytes=self._table_bytes - self._set_aside,
            owned=self._budget.splits,
            max_scratch=self._budget.max_scratch,
            limit=self._options.limits.max_decompressed_bytes,
            include_control=self._options.include_control,
            trimmed=self.trimmed,
            first_offset=first_offset,
            last_offset=last_offset,
        )

    # -- the content of the table

    @property
    def is_full(self) -> bool:
        """Whether the table has reached `max_bytes`, or the next batch does not fit it."""
        if self._has_ended:
            return True
        return self._max_bytes is not None and self.decoded + self._set_aside > 0 and self.cost >= self._max_bytes

    @property
    def max_rows(self) -> int:
        """The number of batches that the memory of the table suffices for, at least one more than it has."""
        return max(self._budget.table // BATCH_DTYPE.itemsize, self.batches.used + 1)

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
        rows = self._records.used * self.dtype.itemsize + self.decoded * BATCH_DTYPE.itemsize
        return rows + size + self._set_aside

    def count_losses(self) -> None:
        """Count the memory of the losses for the table; a part of it is set aside in advance."""
        if (size := self._losses.nbytes) > self._set_aside:
            self._set_aside = size + size // 8
            self._config = self._new_config()

    @property
    def last_good_offset(self) -> int | None:
        """The last offset of the last batch that was decoded without a fault."""
        return int(self.batches.array["last_offset"][self._last_good]) if self._last_good >= 0 else None

    # -- rows

    def prepare(self, first: int, size: int) -> None:
        """Prepare to decode the batches from row `first` on, which were framed in `size` bytes: reserve capacity."""
        count = self.batches.used - first
        if not count:
            return
        batches = self.batches.filled()[first:]
        records, compressed = (0, 0) if self._options.framing_only else survey(batches, self._options.include_control)
        if compressed and self._budget.is_strict:
            self._table_bytes = self._budget.beside(int(batches["size"].max()))
            if self._table_bytes < self._budget.table:
                self._config = self._new_config()
        # The batches that are not framed yet are assumed to be like these, if these are many.
        rest = len(self._data) - (self._end_of(self.batches.used - 1) - self._origin) if count >= SAMPLE_BATCHES else 0
        # The length of a bad batch may be wrong.
        rest = max(rest, 0)
        more = 1.1 * rest / size
        self._reserve(self.batches, 0, int(count * more))
        self._reserve(
            self._records, records, int(records * more), self._expected[0] if compressed and self._expected else None
        )
        if compressed and self._arena is None:
            self._arena = Arena(self._usual_arena(size + rest) if self._keeps_data else 0, self._budget.frugal_from)
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
        self._has_bad = True

    def accept_framed(self, first: int) -> None:
        """Take the rows from `first` on as `frame_damaged` has filled them: their checksums are verified."""
        self.verified, self._has_bad = self.batches.used, True
        if self._options.framing_only:
            self.decoded = self.batches.used
            good = np.flatnonzero(self.batches.filled()["status"][first:] == BatchStatus.OK)
            self._last_good = first + int(good[-1]) if len(good) else self._last_good

    def drop_batches_from(self, row: int) -> None:
        """Remove the rows from `row` on, which have no records."""
        self.batches.used = row
        self.decoded = min(self.decoded, row)

    def append_bad(self, batches: npt.NDArray[np.void]) -> None:
        """Append rows that are not to be decoded, after all other rows have been decoded."""
        self.batches.extend(batches)
        self.decoded = self.batches.used

    def finish(self, *, consumed: int, source: str | None) -> RecordTable:
        """Return the table of all rows, after all have been decoded."""
        if self._has_bad:
            self._discard_unused()
        data = self._data if self._arena is None else self._arena.array()
        return self._table(self._records, self.batches.finished(), data, self._losses, consumed=consumed, source=source)

    def finish_part(self, rows: PooledRows, *, consumed: int, losses: LossList, source: str | None) -> RecordTable:
        """Return a table of some rows of `split`."""
        assert self.split is not None
        at = {"consumed": consumed, "source": source, "continued": self.split.has_begun}
        table = self._table(rows, self.split.batch(), self.split.data, losses, **at)
        self.split.has_begun = True
        return table

    def _table(
        self, rows: PooledRows, batches: npt.NDArray[np.void], data: npt.NDArray[np.uint8], losses: LossList, **at: Any
    ) -> RecordTable:
        records = rows.finished()
        if self.trimmed and "offset" not in self._columns:
            records = records[list(self._options.record_dtype.names or ())]
            records.setflags(write=False)
        if not self._keeps_data:
            data = self._data[:0].copy()
            data.setflags(write=False)
        owned = (records, batches, losses) if data is self._data else (records, batches, losses, data)
        return RecordTable(
            records,
            batches,
            data,
            losses=losses,
            columns=self._options.table_columns,
            memory=self._budget.memory_of(sum(each.nbytes for each in owned)),
            **at,
        )

    # -- capacity

    def _usual_arena(self, size: int) -> int:
        # If tables have similar sizes, each takes the memory of the one before.
        usual = USUAL_RATIO * size if self._expected is None else self._expected[1]
        if self._max_bytes is not None:
            usual = min(usual, self._max_bytes)
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
        size = max(expected, needed)
        if self._budget.splits and size > len(self._arena.view) - self._arena.used:
            # Pages that an earlier table filled would remain in addition.
            self._records.discard_unused()
        self._arena.reserve(size)

    def _discard_unused(self) -> None:
        """Free the pages that decoding filled and that do not belong to the table."""
        self._records.discard_unused()
        if self._arena is not None:
            self._arena.discard_unused()

    def _row_after(self, row: int, size: int) -> int:
        """Return the first row that begins at least `size` bytes after `row`, or the number of rows."""
        positions = self.batches.filled()["position"]
        return bisect_left(positions, positions[row] + size, row)

    def _end_of(self, row: int) -> int:
        return int(self.batches.array["position"][row]) + int(self.batches.array["size"][row])


class TableBuilder(_TableRows):
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
    budget : TableBudget
        The memory of the table.
    losses : LossList
        The losses of the table; the caller adds others by `LossList._append`, and then calls `count_losses`.

    Attributes
    ----------
    batches : PooledRows
        Rows of BATCH_DTYPE, in the order of their positions. New ones are appended to it, before `prepare`.
    decoded : int
        The number of rows at the front of `batches` that are decoded or marked as bad.
    dtype : dtype
        Of the record rows.
    split : SplitBatch or None
        The first batch, if it is larger than a table: the tables of its records take the place of this one.
    """

    # -- decoding

    def decode(self, stop: int | None = None) -> BadBatch | None:
        """Decode the batches from row `decoded` on up to `stop`, until the table is full; return the first bad one."""
        stop = self.batches.used if stop is None else stop
        last = stop
        if self._options.framing_only:
            last = min(stop, (self._budget.table - self._set_aside) // BATCH_DTYPE.itemsize)
        while self.decoded < last and not self.is_full:
            if self._limits_headers:
                finding = self._decode_with_headers(last)
            else:
                finding = self._resolve(self._run_pipeline(last))
            if self._has_ended:
                # A bad batch after the end belongs to the next table.
                break
            if finding is not None:
                return BadBatch(self.decoded, finding)
        if self.decoded < stop and not self.is_full and (finding := self._end_or_split()) is not None:
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
        if (self._serial_bytes or lo < self.verified) and self._skips:
            most = self._options.limits.max_decompressed_bytes
            refusals = None if self._arena is None else Refusals(self._data, self._arena, most, self._losses)
            outcome, last_good = workers.run_skipping(self._pipeline(hi), self._losses, refusals)
            self._accept(outcome, last_good)
            self.count_losses()
        else:
            self._accept(outcome := workers.run_pipeline(self._pipeline(hi), min(threads, max(1, size // least))))
        if self.decoded == hi:
            self._serial_bytes = 0
        return outcome

    def _pipeline(self, hi: int) -> Pipeline:
        arena = self._arena
        return Pipeline(
            self._config,
            self.batches.filled(),
            self.decoded,
            hi,
            self._records.array,
            self._records.used,
            None if arena is None else arena.view,
            0 if arena is None else arena.used,
        )

    def _accept(self, outcome: Outcome, last_good: int | None = None) -> None:
        if outcome.row > self.decoded:
            self._last_good = max(self._last_good, outcome.row - 1 if last_good is None else last_good)
        self.decoded, self._records.used = outcome.row, outcome.used
        if self._arena is not None:
            self._arena.used = outcome.arena_used

    def _decode_with_headers(self, last: int) -> Finding | None:
        """Decode batches up to row `last`, until the table with its header rows is full; return the fault of the next.

        The table ends at the same batch for any steps: a step that goes further is undone, and made up to that batch.
        """
        last = self._row_within_headers(last)
        decoded, used, last_good, losses = self.decoded, self._records.used, self._last_good, len(self._losses)
        arena_used = 0 if self._arena is None else self._arena.used
        # Decoding completes the rows of compressed message sets.
        rows = self.batches.array[decoded:last].copy()
        finding = self._resolve(self._run_pipeline(last))
        end = self._end_with_headers(decoded, used)
        if end is None:
            return finding
        if end < self.decoded:
            self.batches.array[decoded:last] = rows
            self.decoded, self._records.used, self._last_good = decoded, used, last_good
            if len(self._losses) > losses:
                self._losses._truncate(losses)
                self._serial_bytes = SERIAL_BYTES
            if self._arena is not None:
                self._arena.used = arena_used
            while self.decoded < end and not self._has_ended:
                self._resolve(self._run_pipeline(end))
            self._discard_unused()
        return self._end_or_split()

    def _row_within_headers(self, last: int) -> int:
        """Return the row up to which to decode, at most `last`, so that the table probably has memory for the headers.

        The kernel ends a table without regard to its header rows, which are made later.
        """
        assert self._max_bytes is not None
        if not self.decoded:
            return min(last, self._row_after(0, max(self._max_bytes // HEADER_SAMPLE, 1)))
        if not self._header_bytes:
            return last
        size = self.cost + self._header_bytes
        stored = self._end_of(self.decoded - 1) - self._origin
        more = (self._max_bytes - size) * stored // size * 15 // 16
        return min(last, max(self._row_after(self.decoded, more), self.decoded + 1))

    def _end_with_headers(self, first: int, used: int) -> int | None:
        """Return the row before which the table with its header rows ends, or None if it has room for others.

        The header rows of the batches from `first` on, whose records follow the first `used`, are counted here.
        """
        assert self._max_bytes is not None
        records, batches = self._records.filled()[used:], self.batches.array[first : self.decoded]
        # Only headers end a table here. Without them, the arrays of the next lines would be half of the time of a read.
        if not self._header_bytes and not records["header_count"].any():
            return None
        ends = np.append(batches["first_record"][1:] - used, len(records))[: len(batches)]
        headers = np.append(0, np.cumsum(records["header_count"], dtype=np.int64)) * HEADER_DTYPE.itemsize
        headers += self._header_bytes
        self._header_bytes = int(headers[-1])
        headers = headers[ends]
        rows = (used + ends) * self.dtype.itemsize + np.arange(first + 1, self.decoded + 1) * BATCH_DTYPE.itemsize
        # The headers are the end of a record. Where a payload ends is not known, but it is before the next record.
        positions = records["headers_pos"]
        size = headers + rows + np.append(0, positions)[ends]
        if self._arena is None:
            most = batches["position"] + batches["size"] - self._origin
        else:
            most = np.append(positions, self._arena.used)[ends]
        # Smaller steps towards the limit would take more time than they save memory.
        full = np.flatnonzero((headers > 0) & (size >= self._max_bytes - self._max_bytes // HEADER_SAMPLE)) + 1
        over = np.flatnonzero((headers > 0) & (headers + rows + most + self._set_aside > self._table_bytes))
        return first + int(min([*full[:1], *over[:1]])) if len(full) or len(over) else None

    def _resolve(self, outcome: Outcome) -> Finding | None:
        """Prepare the pipeline for the next batch, and return the fault of that batch, if any."""
        if outcome.cause == Cause.RECORDS:
            if self._arena is not None and self._budget.splits:
                self._arena.discard_unused()
            self._records.reserve(outcome.needed)
        elif outcome.cause == Cause.ARENA:
            self._reserve_arena(outcome.needed)
        elif outcome.cause == Cause.ORDER:
            self._serial_bytes = SERIAL_BYTES
        elif outcome.cause == Cause.PAYLOAD:
            return self._decompress(outcome.at, outcome.needed)
        elif outcome.cause == Cause.TABLE:
            return self._end_or_split()
        return outcome_finding(outcome)

    def _decompress(self, position: int, size: int) -> Finding | None:
        """Decode the next batch, whose payload of `size` bytes at `position` may have any shape."""
        assert self._arena is not None
        arena, used, capacity = self._arena, self._arena.used, len(self._arena.view)
        if self._keeps_data:
            self._reserve_arena(0)
        rest = self._table_bytes - self.memory
        batch = self.batches.array[self.decoded]
        rows = int(batch["record_count"]) * self.dtype.itemsize if batch["magic"] == 2 else 0
        # The kernel may have made rows. If the record count is wrong, they need not fit.
        if rows + int(batch["record_count"]) * MIN_RECORD_SIZE <= rest:
            rest -= rows
        try:
            size = self._append_payload(position, size, rest)
        except PayloadError as error:
            return self._end_or_split() if error.finding.fault == Fault.OVER_TABLE else error.finding
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

    def _append_payload(self, position: int, size: int, limit: int) -> int:
        """Decompress the payload of the next batch to the arena, at most to `limit` bytes; return its size."""
        assert self._arena is not None
        batch = self.batches.array[self.decoded]
        codec, magic = int(batch["attributes"]) & ATTRIBUTE_CODEC, int(batch["magic"])
        most = self._options.limits.max_decompressed_bytes
        payload = self._data.data[position : position + size]
        try:
            return decompress(codec, payload, self._arena, min(most, max(limit, 0)), magic)
        except PayloadError as error:
            if error.finding.fault == Fault.OVER_LIMIT and limit < most:
                raise PayloadError(self._budget.finding()) from None
            raise

    # -- batches that do not fit

    @property
    def memory(self) -> int:
        """The memory that the table has by now, in bytes: its rows, and payloads or bytes of the source."""
        size = self._records.used * self.dtype.itemsize + self.batches.used * BATCH_DTYPE.itemsize + self._set_aside
        return size if self._arena is None else size + self._arena.used

    def _end_or_split(self) -> Finding | None:
        """End the table before the next batch, which does not fit, or split the batch; return its fault otherwise."""
        if not self._budget.splits:
            return self._budget.finding()
        if self.decoded == 0 and not self._losses:
            finding = self._split_batch()
            if finding is not None:
                return finding
        self._has_ended = True
        return None

    def _split_batch(self) -> Finding | None:
        """Split the first batch, whose checksum is verified; return its fault."""
        batch = self.batches.array[:1].copy()
        arena, size, stored = None, 0, 0
        if self._arena is not None:
            self._arena.used = 0
        # The batch is rare, so memory that the pool keeps for other tables is freed for it.
        self._records = PooledRows(self.dtype)
        trim()
        if batch["attributes"][0] & ATTRIBUTE_CODEC:
            assert self._arena is not None
            positions, sizes = np.empty(1, np.int64), np.empty(1, np.int64)
            payloads(self._data, batch, 0, 1, self._origin, positions, sizes)
            stored = self._budget.table - self._budget.beside(int(batch["size"][0]))
            try:
                size = self._append_payload(int(positions[0]), int(sizes[0]), self._budget.batch - stored)
            except PayloadError as error:
                return error.finding
            arena = self._arena.view
        runs = BatchRuns(self._config, batch, 0, arena, 0, size, np.empty(0, self.dtype))
        data = self._data if arena is None or self._arena is None else self._arena.array()
        # The rest of the budget, but never so little that there are thousands of parts.
        rest = self._budget.table - BATCH_DTYPE.itemsize - (len(data) if arena is None else size + stored)
        part = max(self._budget.part, rest)
        split = SplitBatch(runs, batch, data, self.dtype, part)
        finding = split.check()
        if finding is None:
            self.split = split
            self._last_good = 0
        return finding
