"""What is done with a batch: checksum, decompression and parsing, each while the cache has its bytes. Without the GIL.

This module knows no policy. A batch is done, or it is as if it had not been looked at and there is a cause: a fault, no
capacity for it, or a payload that the C functions don't decompress.
"""

from collections import namedtuple
from enum import IntEnum

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from kbatch.kernels.buffers import allocate
from kbatch.kernels.checksum cimport crc32_legacy, crc32c_after
from kbatch.kernels.codecs cimport Codecs, plain_payload
from kbatch.kernels.decode cimport count_records, gives_rows, read_rows, read_uncompressed
from kbatch.kernels.messages cimport wrapper_value
from kbatch.kernels.rows cimport PayloadState
from kbatch.kernels.spans cimport RecordSpan, Span
from kbatch.kernels.tuning cimport FIRST_SCRATCH, LONG_BATCH, LONG_STRIDE, MAX_SCRATCH, MESSAGE_RUN
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
    header_size,
    kb_likely,
    kb_unlikely,
)

cdef enum:
    # What to do with checksums.
    SKIP = 0
    VERIFY = 1
    MARK = 2

Outcome = namedtuple("Outcome", "row used arena_used cause needed fault record at expected found")


class Cause(IntEnum):
    """Why a pipeline ended: all is done or the table is full, or why the next batch isn't."""

    DONE = 0
    # There is no capacity for so many records, or for so many bytes of the arena.
    RECORDS = 1
    ARENA = 2
    # Its payload has an unusual shape, is damaged, or is larger than the limit or than there is capacity for.
    PAYLOAD = 3
    FAULT = 4
    # It has other records than its header states, so that one thread has to do it.
    ORDER = 5


cdef void follow(void* context, int64_t read, int64_t written) noexcept nogil:
    cdef Follower* it = <Follower*>context
    cdef FaultReport report
    if it.covered != NULL:
        read += it.before
        it.crc = crc32c_after(it.crc, it.covered + it.summed, read - it.summed)
        it.summed = read
    read_rows(it.base, it.position, written, it.row, it.index, it.into, &it.state, it.options, &report)


cdef class Config:
    """What decoding has in common for all batches of a table.

    Parameters
    ----------
    data : ndarray of uint8
        The bytes that hold the batches; `origin` is their position in the source.
    crc : int
        0 to skip checksums, 1 to end at a bad one, 2 to mark its batch.
    check_inner : bool
        Whether to look at the checksums of the messages in wrappers.
    framing_only : bool
        Whether nothing but checksums is looked at.
    keep : bool
        If False, rows have no positions, and nothing has to stay decompressed.
    max_bytes : int
        Everything ends after the batch with which rows, batches and bytes come to this.
    limit : int
        The most bytes that a compressed payload may come to.
    include_control : bool
    trimmed : bool
        Whether only records from `first_offset` to `last_offset` stay.
    """

    def __init__(self, data not None, *, int64_t origin, int crc, bint check_inner, bint framing_only, bint keep,
                 int64_t max_bytes, int64_t limit, bint include_control, bint trimmed, int64_t first_offset,
                 int64_t last_offset):
        self.data = data
        self.origin = origin
        self.crc = crc
        self.check_inner = check_inner
        self.framing_only = framing_only
        self.keep = keep
        self.max_bytes = max_bytes
        self.limit = limit
        self.include_control = include_control
        self.trimmed = trimmed
        self.first_offset = first_offset
        self.last_offset = last_offset


cdef class Scratch:
    """What a thread needs of its own."""

    def __init__(self, Codecs codecs not None):
        self.codecs = codecs

    cdef bint grow(self, int64_t used, int64_t needed) noexcept with gil:
        """Have capacity for `needed` bytes, of which `used` stay."""
        cdef Span span
        cdef int64_t size = max(self.capacity, FIRST_SCRATCH)
        while size < needed:
            size *= 2
        if size > MAX_SCRATCH:
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
    """The batches `lo` to `hi`, and where they go.

    Record rows go to `records`, from row `used` on, and payloads to `arena`, from byte `arena_used` on. If that is
    None, no batch is compressed, and positions are those in the data.

    The caller guarantees that the rows come from `scan`, one after the other, and that no other thread touches what is
    written to. What decodes returns an `Outcome`: the batch after the last one that is done, the rows and bytes of the
    arena that are filled then, and why it ended; the other fields belong to that cause.
    """

    def __init__(self, Config config not None, batches not None, int64_t lo, int64_t hi, records not None,
                 int64_t used, arena, int64_t arena_used):
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
        self.place = Place(used, arena_used)
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
        self.options.first_offset = config.first_offset
        self.options.last_offset = config.last_offset
        self.crc = config.crc
        self.copies = arena is not None
        self.keep = config.keep
        self.framing_only = config.framing_only
        self.include_control = config.include_control
        self.limit = config.limit
        self.max_bytes = config.max_bytes

    def resume(self, int64_t size):
        """Parse the payload of batch `lo`, which the caller has checked and decompressed.

        It is `size` bytes of the arena from byte `arena_used` on.
        """
        cdef Ending ending = no_ending()
        cdef BatchRow* row = &self.rows[self.lo]
        cdef PayloadState state
        cdef int64_t position = self.place.arena_used
        if size < 0 or size > self.arena_capacity - position or self.lo == self.hi:
            raise IndexError("payload out of range")
        row.first_record = self.place.used
        with nogil:
            if count_records(self.arena + position, size, row, self.options.check_crc, &state, &ending.report):
                ending.cause = self.parse(&self.place, self.lo, self.arena, position, size, &state, &ending)
            else:
                ending.cause = FAULT
        if ending.cause == DONE and self.keep:
            self.place.arena_used += size
        return outcome(self.lo + (ending.cause == DONE), &self.place, &ending)

    cdef inline int64_t cost(self, int64_t i, const Place* place) noexcept nogil:
        """Bytes that a table of the batches before `i` takes."""
        cdef int64_t size = place.arena_used
        # Without an arena a table holds the data as far as its batches reach.
        if self.keep and not self.copies:
            size = self.rows[i - 1].position + self.rows[i - 1].size - self.origin
        return place.used * self.options.fields.itemsize + size + i * <int64_t>sizeof(BatchRow)

    cdef inline bint is_in_range(self, const BatchRow* row) noexcept nogil:
        cdef int64_t at = row.position - self.origin
        return at >= 0 and row.size >= CRC_START and row.size <= self.length - at

    cdef inline bint crc_holds(self, BatchRow* row, int64_t summed, uint32_t crc, FaultReport* report) noexcept nogil:
        """Whether the checksum holds or is marked; of magic 2, `summed` bytes of what it covers come to `crc`."""
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
        if self.crc == MARK or self.framing_only and self.is_outside(row):
            if row.status == 0:
                row.status = BAD_CRC
            return True
        report[0] = FaultReport(FAULT_BAD_CRC, -1, -1, row.crc, found)
        return False

    cdef bint is_outside(self, const BatchRow* row) noexcept nogil:
        """Whether by its header all of a batch would be trimmed, so that damage in it is not reported."""
        if (not self.options.trimmed or row.last_offset < row.base_offset
                or row.base_offset < 0 and row.last_offset == 0):
            return False
        return row.last_offset < self.options.first_offset or row.base_offset > self.options.last_offset

    cdef inline bint supported(self, const BatchRow* row) noexcept nogil:
        return (row.attributes & CODEC) <= (MAX_CODEC if row.magic == 2 else MAX_CODEC_LEGACY)

    cdef inline const uint8_t* payload(self, const BatchRow* row, int64_t* size) noexcept nogil:
        """Where the payload of a batch begins, and its size; NULL where a wrapper has none."""
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
        """Decompress to the scratch, from byte `used` on; how many bytes, or -1."""
        cdef int64_t written
        cdef int64_t capacity
        # No library gets a pointer to nothing.
        if worker.scratch == NULL and not worker.grow(0, 1):
            return -1
        while True:
            capacity = worker.capacity - used
            written = plain_payload(worker.codecs, row.attributes & CODEC, row.magic > 0, p, size,
                                    worker.scratch + used, capacity, self.limit)
            # Whether the capacity was the reason can't be told.
            if written >= 0 or capacity >= self.limit or not worker.grow(used, worker.capacity + 1):
                return written

    cdef int64_t plain_run(self, Place* place, int64_t lo) noexcept nogil:
        """Do messages of magic 0 and 1 that stand alone, from batch `lo` on; how many.

        They end before one with anything unusual about it, and after the one with which the table is full.
        """
        cdef const BatchRow* row
        cdef Place after = place[0]
        cdef int64_t hi = min(self.hi, lo + <int64_t>MESSAGE_RUN)
        cdef int64_t i = lo
        if self.copies or self.options.trimmed:
            return 0
        if not self.framing_only:
            hi = min(hi, lo + self.capacity - place.used)
        while i < hi:
            row = &self.rows[i]
            if row.magic == 2 or row.attributes & CODEC or row.status or not self.is_in_range(row):
                break
            if self.crc != SKIP and kb_unlikely(row.crc != crc32_legacy(
                    self.base + (row.position - self.origin) + CRC_START_LEGACY, row.size - CRC_START_LEGACY)):
                break
            i += 1
            after.used += not self.framing_only
            if self.cost(i, &after) >= self.max_bytes:
                break
        if self.framing_only:
            return i - lo
        hi = lo + read_uncompressed(self.base, self.rows + lo, i - lo, self.origin, <int32_t>lo,
                                    self.out + place.used * self.options.fields.itemsize, &self.options)
        for i in range(lo, hi):
            self.rows[i].first_record = place.used + i - lo
        place.used += hi - lo
        return hi - lo

    cdef int step(self, Scratch worker, Place* place, int64_t i, Ending* ending) noexcept nogil:
        """Do batch `i`, when all before it are done; the cause if that can't be."""
        cdef BatchRow* row = &self.rows[i]
        cdef const uint8_t* base = self.base
        cdef const uint8_t* p
        cdef int64_t size
        cdef int64_t position
        cdef int64_t added = 0
        cdef int cause
        cdef PayloadState state
        # A long batch is summed as it is parsed.
        cdef bint is_long = row.size >= LONG_BATCH and row.magic == 2 and not self.copies and not self.framing_only
        ending.report = FaultReport(FAULT_NONE, -1, -1, 0, 0)
        if kb_unlikely(not self.is_in_range(row)):
            return RANGE
        if row.attributes & CODEC and not self.framing_only:
            return self.step_compressed(worker, place, i, ending)
        if not is_long and kb_unlikely(not self.crc_holds(row, 0, 0, &ending.report)):
            return FAULT
        if self.framing_only:
            return DONE
        row.first_record = place.used
        if not gives_rows(row, self.include_control):
            return DONE if not is_long or self.crc_holds(row, 0, 0, &ending.report) else FAULT
        p = self.payload(row, &size)
        position = p - base
        if is_long:
            return self.do_long(place, i, position, size, ending)
        if self.copies and self.keep:
            if size > self.arena_capacity - place.arena_used:
                ending.needed = size
                return ARENA
            memcpy(self.arena + place.arena_used, p, size)
            base = self.arena
            position = place.arena_used
            added = size
        if not count_records(base + position, size, row, self.options.check_crc, &state, &ending.report):
            return FAULT
        cause = self.parse(place, i, base, position, size, &state, ending)
        if kb_likely(cause == DONE):
            place.arena_used += added
        return cause

    cdef int step_compressed(self, Scratch worker, Place* place, int64_t i, Ending* ending) noexcept nogil:
        cdef BatchRow* row = &self.rows[i]
        cdef const uint8_t* base = worker.scratch
        cdef const uint8_t* p
        cdef int64_t stored
        cdef int64_t size
        cdef int64_t position = 0
        cdef int cause
        cdef PayloadState state
        # What a library is to read is summed behind it, when it lies in the first levels of the cache. Before it, the
        # sum waits for memory: that took 4 ns for a record of 130 bytes, now 2. Libraries are safe whatever they read.
        cdef Follower follower
        follower.summed = follower.crc = 0
        follower.state.done = follower.state.done_at = 0
        row.first_record = place.used
        if self.is_refused(row, &ending.report) or not gives_rows(row, self.include_control):
            if not self.crc_holds(row, 0, 0, &ending.report):
                return FAULT
            return FAULT if ending.report.fault else DONE
        p = self.payload(row, &stored)
        if self.keep:
            base = self.arena
            position = place.arena_used
            if row.magic == 2 and row.record_count <= self.capacity - place.used:
                self.follow_with(&follower, place, row, i, base, position)
                worker.codecs.follow_context = &follower
                worker.codecs.follow = follow
            size = plain_payload(worker.codecs, row.attributes & CODEC, row.magic > 0, p, stored,
                                 self.arena + position, self.arena_capacity - position, self.limit)
            worker.codecs.follow = NULL
        else:
            size = self.to_scratch(worker, row, p, stored, 0)
            base = worker.scratch
        if size < 0:
            ending.report.at = p - self.base
            ending.needed = stored
            return PAYLOAD if self.crc_holds(row, 0, 0, &ending.report) else FAULT
        if kb_unlikely(not self.crc_holds(row, follower.summed, follower.crc, &ending.report)):
            return FAULT
        if not count_records(base + position, size, row, self.options.check_crc, &state, &ending.report):
            return FAULT
        state.done = follower.state.done
        state.done_at = follower.state.done_at
        cause = self.parse(place, i, base, position, size, &state, ending)
        if kb_likely(cause == DONE) and self.keep:
            place.arena_used += size
        return cause

    cdef bint is_refused(self, const BatchRow* row, FaultReport* report) noexcept nogil:
        """Whether a compressed batch can't be decompressed, whatever its payload is, and why."""
        cdef int64_t size
        if row.status > BAD_CRC:
            return False
        if not self.supported(row):
            # Also of batches without records (ATT-R3).
            report[0] = FaultReport(FAULT_UNKNOWN_CODEC if row.magic == 2 else FAULT_LEGACY_CODEC, -1, -1,
                                    0 if row.magic == 2 else row.magic, row.attributes & CODEC)
        elif gives_rows(row, self.include_control):
            if row.magic == 2 and row.record_count < 0:
                report[0] = FaultReport(FAULT_COUNT_NEGATIVE, -1, -1, 0, row.record_count)
            elif self.payload(row, &size) == NULL:
                report[0] = FaultReport(FAULT_WRAPPER_VALUE, -1, -1, 0, 0)
        return report.fault != FAULT_NONE

    cdef inline int parse(self, Place* place, int64_t i, const uint8_t* base, int64_t position, int64_t size,
                          PayloadState* state, Ending* ending) noexcept nogil:
        """Read a payload to rows, if there is capacity for them; the cause if that can't be."""
        cdef int64_t count
        if kb_unlikely(state.count > self.capacity - place.used):
            ending.needed = state.count
            return RECORDS
        count = read_rows(base, position, size, &self.rows[i], <int32_t>i,
                          self.out + place.used * self.options.fields.itemsize, state, &self.options, &ending.report)
        if kb_unlikely(count < 0):
            return FAULT
        place.used += count
        return DONE

    cdef inline void follow_with(self, Follower* follower, const Place* place, BatchRow* row, int64_t i,
                                 const uint8_t* base, int64_t position) noexcept nogil:
        """Prepare for a batch of magic 2 whose payload is at `position`, and there is capacity for its rows.

        Whether its checksum holds, and whether its header tells the truth, is seen in the end.
        """
        follower.row = row
        follower.index = <int32_t>i
        follower.covered = NULL
        if self.crc != SKIP:
            follower.covered = self.base + (row.position - self.origin) + CRC_START
        follower.before = header_size(row.magic) - CRC_START
        follower.base = base
        follower.position = position
        follower.into = self.out + place.used * self.options.fields.itemsize
        follower.options = &self.options
        follower.state.is_part = True

    cdef int do_long(self, Place* place, int64_t i, int64_t position, int64_t size, Ending* ending) noexcept nogil:
        """Do batch `i`, which is long and has its payload at `position`, as `step` does."""
        cdef BatchRow* row = &self.rows[i]
        cdef int64_t at = 0
        cdef Place after = place[0]
        cdef int cause
        cdef Follower it
        it.summed = it.crc = 0
        if not count_records(self.base + position, size, row, self.options.check_crc, &it.state, &ending.report):
            cause = FAULT
        else:
            if it.state.count <= self.capacity - place.used:
                self.follow_with(&it, place, row, i, self.base, position)
                while at < size:
                    at = min(at + LONG_STRIDE, size)
                    follow(&it, at, at)
                it.state.is_part = False
            cause = self.parse(&after, i, self.base, position, size, &it.state, ending)
        # Of several faults, a bad checksum is the one that is reported.
        if not self.crc_holds(row, it.summed, it.crc, &ending.report):
            return FAULT
        if cause == DONE:
            place[0] = after
        return cause


cdef Ending no_ending() noexcept nogil:
    cdef Ending ending
    ending.cause = DONE
    ending.needed = 0
    ending.report = FaultReport(FAULT_NONE, -1, -1, 0, 0)
    return ending


cdef object outcome(int64_t row, const Place* place, const Ending* ending):
    cdef const FaultReport* report = &ending.report
    if ending.cause == RANGE:
        raise IndexError("batch out of range")
    return Outcome(row, place.used, place.arena_used, ending.cause, ending.needed, report.fault, report.record,
                   report.at, report.expected, report.found)
