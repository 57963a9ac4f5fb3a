"""Decoding of one batch: checksum, decompression and parsing while its bytes are in the cache, without the GIL.

This module implements no policy. A batch is either decoded completely, or left unchanged with a cause: a fault, missing
capacity, or a payload that the C functions do not decompress.
"""

from collections import namedtuple
from enum import IntEnum

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from kbatch.kernels.buffers import allocate
from kbatch.kernels.checksum cimport crc32_legacy, crc32c_after
from kbatch.kernels.codecs cimport Codecs, decompress_payload
from kbatch.kernels.decode cimport count_records, gives_rows, read_rows
from kbatch.kernels.messages cimport wrapper_value
from kbatch.kernels.rows cimport PayloadState
from kbatch.kernels.spans cimport RecordSpan, Span
from kbatch.kernels.tuning cimport FIRST_SCRATCH, LONG_BATCH, LONG_STRIDE, RUN, STREAMED_BYTES
from kbatch.kernels.wire cimport (
    BAD_CRC,
    BatchRow,
    CODEC,
    CRC_START,
    FAULT_BAD_CRC,
    FAULT_COUNT_NEGATIVE,
    FAULT_LEGACY_CODEC,
    FAULT_NONE,
    FAULT_UNKNOWN_CODEC,
    FAULT_WRAPPER_VALUE,
    FaultReport,
    MAX_CODEC,
    MAX_CODEC_LEGACY,
    CRC_START_LEGACY,
    MIN_RECORD,
    header_size,
    kb_likely,
    kb_unlikely,
)

Outcome = namedtuple("Outcome", "row used arena_used cause needed fault record at expected found")


class Cause(IntEnum):
    """Why a pipeline ended: all batches are decoded, the table is full, or the next batch could not be decoded."""

    DONE = 0
    # The remaining record rows, or the remaining arena bytes, do not suffice.
    RECORDS = 1
    ARENA = 2
    # The payload has an unusual form, is damaged, or exceeds the limit or the capacity.
    PAYLOAD = 3
    FAULT = 4
    # The records of the batch contradict its header or do not fit, so that a single thread must decode it.
    ORDER = 5
    # The rows and the payload of the batch exceed the memory of the table.
    TABLE = 6


cdef void parse_block(void* context, int64_t read, int64_t written) noexcept nogil:
    cdef BlockParser* parser = <BlockParser*>context
    cdef FaultReport report
    if parser.checksummed != NULL:
        read += parser.payload_start
        parser.crc = crc32c_after(parser.crc, parser.checksummed + parser.summed, read - parser.summed)
        parser.summed = read
    read_rows(parser.base, parser.position, written, parser.row, parser.index, parser.into, &parser.state,
              parser.options, &report)


cdef class Config:
    """The settings for decoding the batches of a table.

    Parameters
    ----------
    data : ndarray of uint8
        The bytes that hold the batches; `origin` is their position in the source.
    crc : int
        0 to skip checksums, 1 to end at an invalid one, 2 to mark its batch.
    check_inner : bool
        Whether to verify the checksums of the messages in wrappers.
    framing_only : bool
        Whether to verify only the checksums, without decoding payloads.
    keep : bool
        If False, rows have no positions, and decompressed payloads are not kept.
    max_bytes : int
        Decoding ends after the batch that brings record rows, batch rows and data to this size.
    table_bytes : int
        Decoding ends before the batch that would bring record rows, batch rows and decompressed payloads, or the data
        if it is `owned`, above this size.
    owned : bool
        Whether the memory of `data` counts.
    max_scratch : int
        The maximum scratch memory of a thread.
    limit : int
        Maximum decompressed size of a payload.
    include_control : bool
        Whether control batches give rows.
    trimmed : bool
        Whether to keep only records with offsets from `first_offset` to `last_offset`.
    """

    def __init__(self, data not None, *, int64_t origin, int crc, bint check_inner, bint framing_only, bint keep,
                 int64_t max_bytes, int64_t table_bytes, bint owned, int64_t max_scratch, int64_t limit,
                 bint include_control, bint trimmed, int64_t first_offset, int64_t last_offset):
        self.data = data
        self.origin = origin
        self.crc = crc
        self.check_inner = check_inner
        self.framing_only = framing_only
        self.keep = keep
        self.max_bytes = max_bytes
        self.table_bytes = table_bytes
        self.owned = owned
        self.max_scratch = max_scratch
        self.limit = limit
        self.include_control = include_control
        self.trimmed = trimmed
        self.first_offset = first_offset
        self.last_offset = last_offset


cdef class Scratch:
    """The codecs and the scratch memory of one thread."""

    def __init__(self, Codecs codecs not None, int64_t max_scratch):
        self.codecs = codecs
        self.max_scratch = max_scratch

    cdef bint grow(self, int64_t used, int64_t needed) noexcept with gil:
        """Grow the scratch to at least `needed` bytes and keep the first `used`; return whether that succeeded."""
        cdef Span span
        cdef int64_t size = max(self.capacity, min(<int64_t>FIRST_SCRATCH, self.max_scratch))
        while size < needed:
            size *= 2
        if size > self.max_scratch:
            return False
        try:
            span = Span(allocate(size), 1, True)
        except MemoryError:
            return False
        if used:
            memcpy(span.items, self.scratch, used)
        self._block = span
        self.scratch = <uint8_t*>span.items
        self.capacity = size
        return True


cdef class BatchDecoder:
    """Decodes the batches from `lo` to `hi`.

    Record rows are written to `records` from row `used` on, and payloads to `arena` from byte `arena_used` on. If
    `arena` is None, no batch is compressed, and positions are those in the data.

    The caller guarantees that the rows come from `scan`, in order and without gaps, and that no other thread accesses
    the memory that is written. Methods that decode return an `Outcome`: the batch after the last decoded one, the
    numbers of rows and arena bytes that are filled, and the cause of the end, to which the other fields belong.
    """

    def __init__(self, Config config not None, batches not None, int64_t lo, int64_t hi, records not None, int64_t used,
                 arena, int64_t arena_used):
        self.config = config
        self._data = Span(config.data, 1, False)
        self._batches = Span(batches, sizeof(BatchRow), True)
        self._out = RecordSpan(records, True)
        if arena is not None:
            self._arena = Span(arena, 1, True)
            self.arena = <uint8_t*>self._arena.items
            self.arena_capacity = self._arena.length
        if lo < 0 or hi < lo or hi > self._batches.length or used < 0 or used > self._out.length:
            raise IndexError("rows out of range")
        if arena_used < 0 or arena_used > self.arena_capacity:
            raise IndexError("arena out of range")
        if config.trimmed and not config.framing_only and self._out.fields.offset < 0:
            raise ValueError("records have no offset to trim by")
        if self._out.length and self._out.stride != self._out.fields.itemsize:
            raise ValueError("records must be contiguous")
        self.lo = lo
        self.hi = hi
        self.cursor = OutputCursor(used, arena_used)
        self.base = <const uint8_t*>self._data.items
        self.length = self._data.length
        self.rows = <BatchRow*>self._batches.items
        self.out = self._out.items
        self.capacity = self._out.length
        self.origin = config.origin
        self.options.fields = self._out.fields
        self.options.whole = self._out.whole
        self.options.check_crc = config.check_inner
        self.options.trimmed = config.trimmed
        # Trimming reads rows again.
        self.options.streamed = (self._out.whole and not config.trimmed
                                 and self.capacity * self.options.fields.itemsize >= STREAMED_BYTES)
        self.options.first_offset = config.first_offset
        self.options.last_offset = config.last_offset
        self.crc = config.crc
        self.copies = arena is not None
        self.keep = config.keep
        self.framing_only = config.framing_only
        self.include_control = config.include_control
        self.limit = config.limit
        self.max_bytes = config.max_bytes
        self.table_bytes = config.table_bytes - self._batches.length * <int64_t>sizeof(BatchRow)
        self.max_scratch = config.max_scratch
        self.owned = config.owned and config.keep and arena is None
        self.is_tight = (self.capacity * self.options.fields.itemsize + self.arena_capacity
                         + (self.length if self.owned else 0) > self.table_bytes)
        self.unchecked_rows = -1 if self.is_tight else self.capacity
        self.run_limit = RUN

    def resume(self, int64_t size):
        """Parse the payload of batch `lo`, which the caller has verified and decompressed.

        The payload is the `size` bytes of the arena from byte `arena_used` on.
        """
        cdef Ending ending = new_ending()
        cdef BatchRow* row = &self.rows[self.lo]
        cdef PayloadState state
        cdef int64_t position = self.cursor.arena_used
        if size < 0 or size > self.arena_capacity - position or self.lo == self.hi:
            raise IndexError("payload out of range")
        row.first_record = self.cursor.used
        with nogil:
            if count_records(self.arena + position, size, row, self.options.check_crc, &state, &ending.report):
                ending.cause = parse(self, &self.cursor, self.lo, self.arena, position, size, &state, &ending)
            else:
                ending.cause = FAULT
        if ending.cause == DONE and self.keep:
            self.cursor.arena_used += size
        return outcome(self.lo + (ending.cause == DONE), &self.cursor, &ending)

    cdef inline int64_t cost(self, int64_t i, const OutputCursor* cursor) noexcept nogil:
        """Return the size in bytes of a table of the batches before `i`."""
        cdef int64_t size = cursor.arena_used
        # Without an arena a table holds the data up to the end of its last batch.
        if self.keep and not self.copies:
            size = self.rows[i - 1].position + self.rows[i - 1].size - self.origin
        return cursor.used * self.options.fields.itemsize + size + i * <int64_t>sizeof(BatchRow)

    cdef int64_t remaining(self, int64_t i, const OutputCursor* cursor, int64_t count) noexcept nogil:
        """Return the memory for the payload of batch `i` and the data before it, if the batch has `count` rows."""
        cdef int64_t used = cursor.arena_used
        if self.owned:
            used = self.rows[i].position - self.origin
        return self.table_bytes - used - (cursor.used + count) * self.options.fields.itemsize

    cdef bint fits(self, int64_t i, const OutputCursor* cursor, int64_t count, int64_t size) noexcept nogil:
        """Whether `count` rows and the payload of batch `i`, of `size` bytes, fit the memory of the table."""
        if self.owned:
            size = self.rows[i].size
        elif not self.copies:
            size = 0
        return size <= self.remaining(i, cursor, count)

    cdef inline bint is_in_range(self, const BatchRow* row) noexcept nogil:
        cdef int64_t at = row.position - self.origin
        return at >= 0 and row.size >= CRC_START and row.size <= self.length - at

    cdef inline bint crc_holds(self, BatchRow* row, int64_t summed, uint32_t crc, FaultReport* report) noexcept nogil:
        """Whether the checksum is valid or only marked; for magic 2, `crc` covers the first `summed` bytes."""
        cdef const uint8_t* p = self.base + (row.position - self.origin)
        cdef uint32_t found
        if self.crc == SKIP:
            return True
        if kb_likely(row.magic == 2):
            found = crc32c_after(crc, p + CRC_START + summed, row.size - CRC_START - summed)
        else:
            found = crc32_legacy(p + CRC_START_LEGACY, row.size - CRC_START_LEGACY)
        if kb_likely(found == row.crc):
            return True
        if self.crc == MARK or self.framing_only and self.is_trimmed(row):
            if row.status == 0:
                row.status = BAD_CRC
            return True
        report[0] = FaultReport(FAULT_BAD_CRC, -1, -1, row.crc, found)
        return False

    cdef bint is_trimmed(self, const BatchRow* row) noexcept nogil:
        """Whether all records of a batch are trimmed according to its header; damage in it is not reported then."""
        if (not self.options.trimmed or row.last_offset < row.base_offset
                or row.base_offset < 0 and row.last_offset == 0):
            return False
        return row.last_offset < self.options.first_offset or row.base_offset > self.options.last_offset

    cdef inline bint supported(self, const BatchRow* row) noexcept nogil:
        return (row.attributes & CODEC) <= (MAX_CODEC if row.magic == 2 else MAX_CODEC_LEGACY)

    cdef inline const uint8_t* payload(self, const BatchRow* row, int64_t* size) noexcept nogil:
        """Return the address of a batch's payload and set `size`; return NULL for a wrapper without a value."""
        cdef const uint8_t* p = self.base + (row.position - self.origin)
        cdef int64_t at = header_size(row.magic)
        if row.magic != 2 and row.attributes & CODEC:
            at = wrapper_value(p, row.size, row.magic, size)
        else:
            size[0] = row.size - at
        if at < 0 or size[0] < 0:
            return NULL
        return p + at

    cdef int64_t to_scratch(self, Scratch worker, const BatchRow* row, const uint8_t* p, int64_t size,
                            int64_t used) noexcept nogil:
        """Decompress to the scratch, from byte `used` on; return the decompressed size, or -1."""
        cdef int64_t written
        cdef int64_t capacity
        cdef int64_t limit = min(self.limit, worker.max_scratch - used)
        # A library must not get a null pointer.
        if worker.scratch == NULL and not worker.grow(0, 1):
            return -1
        while True:
            capacity = worker.capacity - used
            written = decompress_payload(worker.codecs, row.attributes & CODEC, row.magic > 0, p, size,
                                         worker.scratch + used, capacity, limit)
            # The result does not show whether the capacity was too small, so every failure is retried with more.
            if written >= 0 or capacity >= limit or not worker.grow(used, worker.capacity + 1):
                return written

    cdef int decode_batch(self, Scratch worker, OutputCursor* cursor, int64_t i, Ending* ending) noexcept nogil:
        """Decode batch `i` after all batches before it; return the cause if that fails, else DONE."""
        cdef BatchRow* row = &self.rows[i]
        cdef const uint8_t* base = self.base
        cdef const uint8_t* p
        cdef int64_t size
        cdef int64_t position
        cdef int64_t added = 0
        cdef int cause
        cdef PayloadState state
        # The checksum of a long batch is computed as it is parsed.
        cdef bint is_long = row.size >= LONG_BATCH and row.magic == 2 and not self.copies and not self.framing_only
        ending.report = FaultReport(FAULT_NONE, -1, -1, 0, 0)
        if kb_unlikely(not self.is_in_range(row)):
            return RANGE
        if row.attributes & CODEC and not self.framing_only:
            return self.decode_compressed(worker, cursor, i, ending)
        if not is_long and kb_unlikely(not self.crc_holds(row, 0, 0, &ending.report)):
            return FAULT
        if self.framing_only:
            return DONE
        row.first_record = cursor.used
        if not gives_rows(row, self.include_control):
            return DONE if not is_long or self.crc_holds(row, 0, 0, &ending.report) else FAULT
        p = self.payload(row, &size)
        position = p - base
        if is_long:
            return self.decode_long(cursor, i, position, size, ending)
        if self.copies and self.keep:
            if kb_unlikely(self.is_tight) and not self.fits(i, cursor, 0, size):
                return TABLE
            if size > self.arena_capacity - cursor.arena_used:
                ending.needed = size
                return ARENA if self.fits(i, cursor, 0, size) else TABLE
            memcpy(self.arena + cursor.arena_used, p, size)
            base = self.arena
            position = cursor.arena_used
            added = size
        if not count_records(base + position, size, row, self.options.check_crc, &state, &ending.report):
            return FAULT
        cause = parse(self, cursor, i, base, position, size, &state, ending)
        if kb_likely(cause == DONE):
            cursor.arena_used += added
        return cause

    cdef int decode_compressed(self, Scratch worker, OutputCursor* cursor, int64_t i, Ending* ending) noexcept nogil:
        cdef BatchRow* row = &self.rows[i]
        cdef const uint8_t* base = worker.scratch
        cdef const uint8_t* p
        cdef int64_t stored
        cdef int64_t size
        cdef int64_t position = 0
        cdef int64_t limit = self.limit
        cdef int cause
        cdef PayloadState state
        # The checksum is computed after decompression, when the payload is in the first levels of the cache: 2 ns for a
        # record of 130 bytes. Before decompression it would wait for memory: 4 ns. The libraries accept invalid bytes
        # safely.
        cdef BlockParser parser
        parser.summed = parser.crc = 0
        parser.state.done = parser.state.done_at = 0
        row.first_record = cursor.used
        if self.has_header_fault(row, &ending.report) or not gives_rows(row, self.include_control):
            if not self.crc_holds(row, 0, 0, &ending.report):
                return FAULT
            return FAULT if ending.report.fault else DONE
        p = self.payload(row, &stored)
        if self.keep:
            base = self.arena
            position = cursor.arena_used
            if kb_unlikely(self.is_tight):
                limit = min(limit, max(self.remaining(i, cursor, 0), <int64_t>0))
            if row.magic == 2 and row.record_count <= self.capacity - cursor.used and (
                    not self.is_tight or self.fits(i, cursor, row.record_count, row.record_count * MIN_RECORD)):
                if kb_unlikely(self.is_tight):
                    limit = min(limit, self.remaining(i, cursor, row.record_count))
                self.begin_blocks(&parser, cursor, row, i, base, position)
                worker.codecs.block_context = &parser
                worker.codecs.on_block = parse_block
            size = decompress_payload(worker.codecs, row.attributes & CODEC, row.magic > 0, p, stored,
                                      self.arena + position, self.arena_capacity - position, limit)
            worker.codecs.on_block = NULL
        else:
            size = self.to_scratch(worker, row, p, stored, 0)
            base = worker.scratch
        if size < 0:
            ending.report.at = p - self.base
            ending.needed = stored
            return PAYLOAD if self.crc_holds(row, 0, 0, &ending.report) else FAULT
        if kb_unlikely(not self.crc_holds(row, parser.summed, parser.crc, &ending.report)):
            return FAULT
        if not count_records(base + position, size, row, self.options.check_crc, &state, &ending.report):
            return FAULT
        state.done = parser.state.done
        state.done_at = parser.state.done_at
        cause = parse(self, cursor, i, base, position, size, &state, ending)
        if kb_likely(cause == DONE) and self.keep:
            cursor.arena_used += size
        return cause

    cdef bint has_header_fault(self, const BatchRow* row, FaultReport* report) noexcept nogil:
        """Whether the header of a compressed batch has a fault that excludes decompression; the fault is reported."""
        cdef int64_t size
        if row.status > BAD_CRC:
            return False
        if not self.supported(row):
            # Also for batches without records (ATT-R3).
            report[0] = FaultReport(FAULT_UNKNOWN_CODEC if row.magic == 2 else FAULT_LEGACY_CODEC, -1, -1,
                                    0 if row.magic == 2 else row.magic, row.attributes & CODEC)
        elif gives_rows(row, self.include_control):
            if row.magic == 2 and row.record_count < 0:
                report[0] = FaultReport(FAULT_COUNT_NEGATIVE, -1, -1, 0, row.record_count)
            elif self.payload(row, &size) == NULL:
                report[0] = FaultReport(FAULT_WRAPPER_VALUE, -1, -1, 0, 0)
        return report.fault != FAULT_NONE

    cdef int check_capacity(self, int64_t i, const OutputCursor* cursor, int64_t count, int64_t size,
                            Ending* ending) noexcept nogil:
        """Return the cause if the memory or the capacity does not suffice for `count` rows of batch `i`, else DONE."""
        if not self.fits(i, cursor, count, size):
            return TABLE
        if count > self.capacity - cursor.used:
            ending.needed = count
            return RECORDS
        return DONE

    cdef inline void begin_blocks(self, BlockParser* parser, const OutputCursor* cursor, BatchRow* row, int64_t i,
                                  const uint8_t* base, int64_t position) noexcept nogil:
        """Initialize `parser` for a batch of magic 2 whose payload is at `position` and whose rows have capacity.

        The checksum and the counts of the header are verified after the last block.
        """
        parser.row = row
        parser.index = <int32_t>i
        parser.checksummed = NULL
        if self.crc != SKIP:
            parser.checksummed = self.base + (row.position - self.origin) + CRC_START
        parser.payload_start = header_size(row.magic) - CRC_START
        parser.base = base
        parser.position = position
        parser.into = self.out + cursor.used * self.options.fields.itemsize
        parser.options = &self.options
        parser.state.is_part = True
        parser.state.first = 0
        parser.state.stop = row.record_count

    cdef int decode_long(self, OutputCursor* cursor, int64_t i, int64_t position, int64_t size,
                         Ending* ending) noexcept nogil:
        """Decode the long batch `i`, whose payload is at `position`, as `decode_batch` does."""
        cdef BatchRow* row = &self.rows[i]
        cdef int64_t at = 0
        cdef OutputCursor after = cursor[0]
        cdef int cause
        cdef BlockParser parser
        parser.summed = parser.crc = 0
        if not count_records(self.base + position, size, row, self.options.check_crc, &parser.state, &ending.report):
            cause = FAULT
        else:
            if parser.state.count <= self.capacity - cursor.used and (
                    not self.is_tight or self.fits(i, cursor, parser.state.count, size)):
                self.begin_blocks(&parser, cursor, row, i, self.base, position)
                while at < size:
                    at = min(at + LONG_STRIDE, size)
                    parse_block(&parser, at, at)
                parser.state.is_part = False
            cause = parse(self, &after, i, self.base, position, size, &parser.state, ending)
        # If there are several faults, the invalid checksum is reported.
        if not self.crc_holds(row, parser.summed, parser.crc, &ending.report):
            return FAULT
        if cause == DONE:
            cursor[0] = after
        return cause


cdef inline int parse(BatchDecoder self, OutputCursor* cursor, int64_t i, const uint8_t* base, int64_t position,
                      int64_t size, PayloadState* state, Ending* ending) noexcept nogil:
    """Parse a payload to rows; return the cause if that fails or the capacity does not suffice, else DONE."""
    # A function of the module is declared inline in C; a method is not, and costs 30 instructions per batch.
    cdef int64_t count
    cdef int cause
    if kb_unlikely(state.count > self.unchecked_rows - cursor.used):
        cause = self.check_capacity(i, cursor, state.count, size, ending)
        if cause != DONE:
            return cause
    count = read_rows(base, position, size, &self.rows[i], <int32_t>i,
                      self.out + cursor.used * self.options.fields.itemsize, state, &self.options, &ending.report)
    if kb_unlikely(count < 0):
        return FAULT
    cursor.used += count
    return DONE


cdef Ending new_ending() noexcept nogil:
    cdef Ending ending
    ending.cause = DONE
    ending.needed = 0
    ending.report = FaultReport(FAULT_NONE, -1, -1, 0, 0)
    return ending


cdef object outcome(int64_t row, const OutputCursor* cursor, const Ending* ending):
    cdef const FaultReport* report = &ending.report
    if ending.cause == RANGE:
        raise IndexError("batch out of range")
    return Outcome(row, cursor.used, cursor.arena_used, ending.cause, ending.needed, report.fault, report.record,
                   report.at, report.expected, report.found)
