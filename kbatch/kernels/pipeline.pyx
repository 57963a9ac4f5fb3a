"""Checksum, decompression and parsing of framed batches, by one thread or by several at once, without the GIL.

One thread goes from batch to batch: each is checked, decompressed to the arena and parsed while it is in the first
level of the cache. Several threads take groups of consecutive batches. A thread checks a group and decompresses it to a
buffer of its own, waits for its turn, in which it only reserves the group's place in the rows and in the arena, and
parses and copies it there while others go on. Batches whose rows can't be counted beforehand are done in that turn. So
the result is the same for any number of threads.

This module knows no policy. It ends at the first batch that has a fault, that there is no capacity for, or whose
payload it can't decompress, and reports which it is: the batches before it are done, it and those after it are as if
they had not been looked at.
"""

from collections import namedtuple
from enum import IntEnum

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from kbatch.kernels.atomic cimport kb_add, kb_get, kb_set, kb_swap, pass_time
from kbatch.kernels.buffers import allocate
from kbatch.kernels.checksum cimport crc32_legacy, crc32c_after
from kbatch.kernels.decode cimport (
    BAD_CRC,
    BAD_INNER_CRC,
    CODEC,
    Measure,
    Report,
    Wanted,
    gives_rows,
    measure,
    read_plain,
    read_rows,
    wrapper_value,
)
from kbatch.kernels.frames cimport Codecs, plain_payload
from kbatch.kernels.spans cimport RecordSpan, Span
from kbatch.kernels.wire cimport (
    BatchRow,
    FAULT_BAD_CRC,
    FAULT_COUNT_NEGATIVE,
    FAULT_LEGACY_CODEC,
    FAULT_NONE,
    FAULT_UNKNOWN_CODEC,
    FAULT_WRAPPER_VALUE,
    header_size,
    kb_likely,
    kb_unlikely,
)

cdef enum:
    # The checksum of magic 2 covers the batch from its attributes on (CRC-R1), that of magic 0 and 1 the entry from its
    # magic on (CRC-R7).
    CRC_START = 21
    CRC_START_LEGACY = 16
    LZ4 = 3
    ZSTD = 4
    # What to do with checksums.
    SKIP = 0
    VERIFY = 1
    MARK = 2
    # The values of `Cause`.
    DONE = 0
    RECORDS = 1
    ARENA = 2
    PAYLOAD = 3
    FAULT = 4
    ORDER = 5
    RANGE = 6
    # Stored bytes of a group: decompressed about four times that, which stays in the L2 cache with what it is copied
    # from. With lz4 batches of 16 KiB two threads are 1.82 times as fast as one, with twice as much 1.74 times.
    GROUP = 256 << 10
    # Towards the end groups are a quarter of what is left, so that no thread waits long for the last one of another.
    LAST_GROUP = 16 << 10
    # Untouched pages are never allocated.
    FIRST_SCRATCH = 4 << 20
    MAX_SCRATCH = 16 << 20
    # So many messages that stand alone are done together at most.
    RUN = 32
    # A batch of so many bytes, which is too much for most caches, is summed and parsed by so many at a time.
    LONG = 2 << 20
    STRIDE = 64 << 10
    # The caller's thread looks for signals each time so many bytes are done.
    SIGNAL_BYTES = 16 << 20
    # A row before all others: what is done is void.
    ABORTED = -1

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


# Where rows and decompressed bytes go next.
cdef struct Place:
    int64_t used
    int64_t arena_used


# Batches `lo` to `hi`, for one thread.
cdef struct Group:
    int64_t number
    int64_t lo
    int64_t hi


# A batch of a group, between decompression and parsing.
cdef struct Item:
    int64_t row
    # Its payload: in the data; or where this is NULL, in the thread's scratch, from byte `at` on.
    const uint8_t* payload
    int64_t at
    int64_t size
    # Where in the arena it belongs, or in the data if that isn't copied.
    int64_t place
    Measure measured


# Why a batch isn't done: of RECORDS and ARENA the capacity that is needed, of FAULT a report, and of PAYLOAD the bytes
# of the payload that is to be decompressed and in `report.at` where in the data they begin.
cdef struct Ending:
    int cause
    int64_t needed
    Report report


# What is done behind each block of a batch that is being decompressed, while the first levels of the cache have both
# sides of it: for lz4 batches of 1 MiB that takes 5 % off the whole.
cdef struct Follower:
    BatchRow* row
    int32_t index
    # What the checksum covers, how many bytes of it lie before the payload; and how many are summed, to what.
    const uint8_t* covered
    int64_t before
    int64_t summed
    uint32_t crc
    # Where the payload goes to, and the rows.
    const uint8_t* base
    int64_t position
    char* into
    const Wanted* wanted
    Measure measured


cdef void follow(void* context, int64_t read, int64_t written) noexcept nogil:
    cdef Follower* it = <Follower*>context
    cdef Report report
    if it.covered != NULL:
        read += it.before
        it.crc = crc32c_after(it.crc, it.covered + it.summed, read - it.summed)
        it.summed = read
    read_rows(it.base, it.position, written, it.row, it.index, it.into, &it.measured, it.wanted, &report)


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

    cdef object data
    cdef int64_t origin
    cdef int crc
    cdef bint check_inner
    cdef bint framing_only
    cdef bint keep
    cdef int64_t max_bytes
    cdef int64_t limit
    cdef bint include_control
    cdef bint trimmed
    cdef int64_t first_offset
    cdef int64_t last_offset

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


cdef class Worker:
    """What a thread needs of its own."""

    cdef Codecs codecs
    cdef Span _block
    cdef uint8_t* scratch
    cdef int64_t capacity
    cdef Span _items
    cdef Item* items
    cdef int64_t item_capacity
    cdef int64_t count

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

    cdef bint reserve(self, int64_t count) noexcept with gil:
        """Have capacity for `count` items; those that are there are lost."""
        try:
            self._items = Span(allocate(count * sizeof(Item)), sizeof(Item), True)
        except MemoryError:
            return False
        self.items = <Item*>self._items.items
        self.item_capacity = count
        return True


cdef class Pipeline:
    """The batches `lo` to `hi`, and where they go.

    Record rows go to `records`, from row `used` on, and payloads to `arena`, from byte `arena_used` on. If that is
    None, no batch is compressed, and positions are those in the data.

    The caller guarantees that the rows come from `scan`, one after the other, and that no other thread touches what is
    written to. What runs it returns an `Outcome`: the batch after the last one that is done, the rows and bytes of the
    arena that are filled then, and why it ended; the other fields belong to that cause.
    """

    cdef Config config
    cdef int64_t lo
    cdef int64_t hi
    cdef Span _data
    cdef Span _batches
    cdef RecordSpan _out
    cdef Span _arena
    cdef const uint8_t* base
    cdef int64_t length
    cdef BatchRow* rows
    cdef char* out
    cdef int64_t capacity
    cdef uint8_t* arena
    cdef int64_t arena_capacity
    cdef int64_t origin
    cdef Wanted wanted
    cdef int crc
    cdef bint copies
    cdef bint keep
    cdef bint framing_only
    cdef bint include_control
    cdef int64_t limit
    cdef int64_t max_bytes
    # What threads write to has cache lines of its own, by who does: for batches of 100 bytes, two threads are no faster
    # than one if they share theirs.
    cdef int64_t _line_1[8]
    # By the thread whose turn it is. No wrapper from row `placed` on has been read when everything has ended.
    cdef Place place
    cdef int64_t placed
    cdef int64_t turn
    cdef int64_t _line_2[8]
    # By the thread that takes a group.
    cdef int64_t lock
    cdef int64_t claimed
    cdef int64_t next_row
    cdef int64_t _line_3[8]
    # The first row that is left, once one is known, why, and what is filled before it. With the lock.
    cdef int64_t stop
    cdef Place stop_place
    cdef Ending ending
    cdef int64_t _line_4[8]
    # Threads at work, and whether no more may begin.
    cdef int64_t inside
    cdef int64_t closed

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
        self.lo = self.next_row = lo
        self.hi = hi
        self.place = Place(used, arena_used)
        self.base = <const uint8_t*>self._data.items
        self.length = self._data.length
        self.rows = <BatchRow*>self._batches.items
        self.out = self._out.items
        self.capacity = self._out.length
        self.origin = config.origin
        self.wanted.fields = self._out.fields
        self.wanted.whole = self._out.whole
        self.wanted.check_crc = config.check_inner
        self.wanted.trimmed = config.trimmed
        self.wanted.first_offset = config.first_offset
        self.wanted.last_offset = config.last_offset
        self.crc = config.crc
        self.copies = arena is not None
        self.keep = config.keep
        self.framing_only = config.framing_only
        self.include_control = config.include_control
        self.limit = config.limit
        self.max_bytes = config.max_bytes
        self.stop = INT64_MAX

    # -- running

    def run(self, Codecs codecs not None):
        """Do all of it in this thread, which looks for signals: where one raises, so does this."""
        cdef Worker worker = Worker(codecs)
        cdef Ending ending = no_ending()
        cdef int64_t i = self.lo
        cdef int64_t looked
        cdef int64_t count
        while i < self.hi and ending.cause == DONE:
            PyErr_CheckSignals()
            looked = 0
            with nogil:
                while i < self.hi and looked < SIGNAL_BYTES:
                    count = self.plain_run(&self.place, i) if self.rows[i].magic != 2 else 0
                    if not count:
                        ending.cause = self.step(worker, &self.place, i, &ending)
                        if ending.cause != DONE:
                            break
                        count = 1
                    i += count
                    looked += self.rows[i - 1].size * count
                    if self.cost(i, &self.place) >= self.max_bytes:
                        break
            if i > self.lo and self.cost(i, &self.place) >= self.max_bytes:
                break
        return outcome(i, &self.place, &ending)

    def run_shared(self, Codecs codecs not None):
        """Do all of it in this thread and those that `help`: none of them is at it any more then.

        This thread looks for signals. Where one raises, so does this: then the caller has to `abandon` all.
        """
        cdef Worker worker = Worker(codecs)
        with nogil:
            self.work(worker, True)
        self.close()
        if self.stop == INT64_MAX:
            return outcome(self.hi, &self.place, &self.ending)
        return outcome(self.stop, &self.stop_place, &self.ending)

    def help(self, Codecs codecs not None):
        """Take part until there is no more to do; for other threads, at any time."""
        cdef Worker worker = Worker(codecs)
        with nogil:
            kb_add(&self.inside, 1)
            if not kb_get(&self.closed):
                self.work(worker, False)
            kb_add(&self.inside, -1)

    def abandon(self):
        """Let all stop, at any time, and wait until none is at it; what is written to is undefined then."""
        cdef Ending ending = no_ending()
        self.end_at(ABORTED, &self.place, &ending)
        self.close()

    def resume(self, int64_t size):
        """Parse the payload of batch `lo`, which the caller has checked and decompressed.

        It is `size` bytes of the arena from byte `arena_used` on.
        """
        cdef Ending ending = no_ending()
        cdef BatchRow* row = &self.rows[self.lo]
        cdef Measure measured
        if size < 0 or size > self.arena_capacity - self.place.arena_used or self.lo == self.hi:
            raise IndexError("payload out of range")
        row.first_record = self.place.used
        with nogil:
            if measure(self.arena + self.place.arena_used, size, row, self.wanted.check_crc, &measured, &ending.report):
                ending.cause = self.parse(&self.place, self.lo, self.arena, self.place.arena_used, size, &measured, &ending)
            else:
                ending.cause = FAULT
        if ending.cause == DONE and self.keep:
            self.place.arena_used += size
        return outcome(self.lo + (ending.cause == DONE), &self.place, &ending)

    cdef void close(self):
        """Let no thread begin, wait until none is at it, and release the arrays."""
        cdef int64_t tries = 0
        if kb_swap(&self.closed, True):
            return
        with nogil:
            while kb_get(&self.inside):
                pass_time(&tries)
        if self.stop != ABORTED:
            self.forget()
        # A thread that was asked to help and hasn't begun holds this object.
        self.config = self._data = self._batches = self._arena = self._out = None

    cdef void forget(self) noexcept nogil:
        """Let the rows of wrappers that were read too early be as `scan` made them."""
        cdef int64_t i
        for i in range(self.stop, self.placed):
            if self.rows[i].magic != 2 and self.rows[i].attributes & CODEC:
                self.rows[i].base_offset = self.rows[i].record_count = -1
                self.rows[i].last_offset_delta = 0
                if self.rows[i].status == BAD_INNER_CRC:
                    self.rows[i].status = 0

    cdef inline int64_t cost(self, int64_t i, const Place* place) noexcept nogil:
        """Bytes that a table of the batches before `i` takes."""
        cdef int64_t size = place.arena_used
        # Without an arena a table holds the data as far as its batches reach.
        if self.keep and not self.copies:
            size = self.rows[i - 1].position + self.rows[i - 1].size - self.origin
        return place.used * self.wanted.fields.itemsize + size + i * <int64_t>sizeof(BatchRow)

    # -- one batch

    cdef inline bint is_in_range(self, const BatchRow* row) noexcept nogil:
        cdef int64_t at = row.position - self.origin
        return at >= 0 and row.size >= CRC_START and row.size <= self.length - at

    cdef inline bint crc_holds(self, BatchRow* row, int64_t summed, uint32_t crc, Report* report) noexcept nogil:
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
        report[0] = Report(FAULT_BAD_CRC, -1, -1, row.crc, found)
        return False

    cdef bint is_outside(self, const BatchRow* row) noexcept nogil:
        """Whether by its header all of a batch would be trimmed, so that damage in it is not reported."""
        if (not self.wanted.trimmed or row.last_offset < row.base_offset
                or row.base_offset < 0 and row.last_offset == 0):
            return False
        return row.last_offset < self.wanted.first_offset or row.base_offset > self.wanted.last_offset

    cdef inline bint supported(self, const BatchRow* row) noexcept nogil:
        return (row.attributes & CODEC) <= (ZSTD if row.magic == 2 else LZ4)

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

    cdef int64_t to_scratch(self, Worker worker, const BatchRow* row, const uint8_t* p, int64_t size,
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
        cdef int64_t hi = min(self.hi, lo + <int64_t>RUN)
        cdef int64_t i = lo
        if self.copies or self.wanted.trimmed:
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
        hi = lo + read_plain(self.base, self.rows + lo, i - lo, self.origin, <int32_t>lo,
                             self.out + place.used * self.wanted.fields.itemsize, &self.wanted)
        for i in range(lo, hi):
            self.rows[i].first_record = place.used + i - lo
        place.used += hi - lo
        return hi - lo

    cdef int step(self, Worker worker, Place* place, int64_t i, Ending* ending) noexcept nogil:
        """Do batch `i`, when all before it are done; the cause if that can't be."""
        cdef BatchRow* row = &self.rows[i]
        cdef const uint8_t* base = self.base
        cdef const uint8_t* p
        cdef int64_t size
        cdef int64_t position
        cdef int64_t added = 0
        cdef int cause
        cdef Measure measured
        # A long batch is summed as it is parsed.
        cdef bint is_long = row.size >= LONG and row.magic == 2 and not self.copies and not self.framing_only
        ending.report = Report(FAULT_NONE, -1, -1, 0, 0)
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
        if not measure(base + position, size, row, self.wanted.check_crc, &measured, &ending.report):
            return FAULT
        cause = self.parse(place, i, base, position, size, &measured, ending)
        if kb_likely(cause == DONE):
            place.arena_used += added
        return cause

    cdef int step_compressed(self, Worker worker, Place* place, int64_t i, Ending* ending) noexcept nogil:
        cdef BatchRow* row = &self.rows[i]
        cdef const uint8_t* base = worker.scratch
        cdef const uint8_t* p
        cdef int64_t stored
        cdef int64_t size
        cdef int64_t position = 0
        cdef int cause
        cdef Measure measured
        # What a library is to read is summed behind it, when it lies in the first levels of the cache. Before it, the
        # sum waits for memory: that took 4 ns for a record of 130 bytes, now 2. Libraries are safe whatever they read.
        cdef Follower follower
        follower.summed = follower.crc = 0
        follower.measured.done = follower.measured.done_at = 0
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
        if not measure(base + position, size, row, self.wanted.check_crc, &measured, &ending.report):
            return FAULT
        measured.done = follower.measured.done
        measured.done_at = follower.measured.done_at
        cause = self.parse(place, i, base, position, size, &measured, ending)
        if kb_likely(cause == DONE) and self.keep:
            place.arena_used += size
        return cause

    cdef bint is_refused(self, const BatchRow* row, Report* report) noexcept nogil:
        """Whether a compressed batch can't be decompressed, whatever its payload is, and why."""
        cdef int64_t size
        if row.status > BAD_CRC:
            return False
        if not self.supported(row):
            # Also of batches without records (ATT-R3).
            report[0] = Report(FAULT_UNKNOWN_CODEC if row.magic == 2 else FAULT_LEGACY_CODEC, -1, -1,
                               0 if row.magic == 2 else row.magic, row.attributes & CODEC)
        elif gives_rows(row, self.include_control):
            if row.magic == 2 and row.record_count < 0:
                report[0] = Report(FAULT_COUNT_NEGATIVE, -1, -1, 0, row.record_count)
            elif self.payload(row, &size) == NULL:
                report[0] = Report(FAULT_WRAPPER_VALUE, -1, -1, 0, 0)
        return report.fault != FAULT_NONE

    cdef inline int parse(self, Place* place, int64_t i, const uint8_t* base, int64_t position, int64_t size,
                          Measure* measured, Ending* ending) noexcept nogil:
        """Read a payload to rows, if there is capacity for them; the cause if that can't be."""
        cdef int64_t count
        if kb_unlikely(measured.count > self.capacity - place.used):
            ending.needed = measured.count
            return RECORDS
        count = read_rows(base, position, size, &self.rows[i], <int32_t>i,
                          self.out + place.used * self.wanted.fields.itemsize, measured, &self.wanted, &ending.report)
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
        follower.into = self.out + place.used * self.wanted.fields.itemsize
        follower.wanted = &self.wanted
        follower.measured.part = True

    cdef int do_long(self, Place* place, int64_t i, int64_t position, int64_t size, Ending* ending) noexcept nogil:
        """Do batch `i`, which is long and has its payload at `position`, as `step` does."""
        cdef BatchRow* row = &self.rows[i]
        cdef int64_t at = 0
        cdef Place after = place[0]
        cdef int cause
        cdef Follower it
        it.summed = it.crc = 0
        if not measure(self.base + position, size, row, self.wanted.check_crc, &it.measured, &ending.report):
            cause = FAULT
        else:
            if it.measured.count <= self.capacity - place.used:
                self.follow_with(&it, place, row, i, self.base, position)
                while at < size:
                    at = min(at + STRIDE, size)
                    follow(&it, at, at)
                it.measured.part = False
            cause = self.parse(&after, i, self.base, position, size, &it.measured, ending)
        # Of several faults, a bad checksum is the one that is reported.
        if not self.crc_holds(row, it.summed, it.crc, &ending.report):
            return FAULT
        if cause == DONE:
            place[0] = after
        return cause

    # -- groups

    cdef int work(self, Worker worker, bint looks) except -1 nogil:
        """Take groups until there are none, or everything ends; `looks` is whether to look for signals."""
        cdef Group group
        cdef int64_t looked = 0
        while self.claim(&group):
            if looked >= SIGNAL_BYTES and looks:
                looked = 0
                with gil:
                    PyErr_CheckSignals()
            looked += self.rows[group.hi - 1].position + self.rows[group.hi - 1].size - self.rows[group.lo].position
            if not self.do_group(worker, &group):
                break
        return 0

    cdef bint claim(self, Group* group) noexcept nogil:
        """Take the next group; False if there is none."""
        cdef int64_t above = self.hi
        cdef int64_t middle
        cdef int64_t end
        self.acquire()
        group.number = self.claimed
        group.lo = group.hi = self.next_row
        if group.lo < self.hi and self.stop > group.lo:
            end = self.rows[above - 1].position - self.rows[group.lo].position
            end = self.rows[group.lo].position + min(max(end // 4, <int64_t>LAST_GROUP), <int64_t>GROUP)
            group.hi += 1
            while group.hi < above:
                middle = group.hi + (above - group.hi) // 2
                if self.rows[middle].position < end:
                    group.hi = middle + 1
                else:
                    above = middle
            self.claimed += 1
            self.next_row = group.hi
        self.release()
        return group.lo < group.hi

    cdef bint do_group(self, Worker worker, const Group* group) noexcept nogil:
        """Do a group; whether to go on after it."""
        cdef int64_t tries = 0
        cdef int64_t ready = self.prepare(worker, group)
        cdef bint more
        while kb_get(&self.turn) != group.number:
            if kb_get(&self.stop) <= group.lo:
                return False
            pass_time(&tries)
        if kb_get(&self.stop) <= group.lo:
            return False
        more = self.settle(worker, group.lo, &ready)
        if more and ready < group.hi:
            more = self.finish(worker) and self.do_in_order(worker, ready, group.hi)
            worker.count = 0
        if more:
            kb_set(&self.turn, group.number + 1)
        return self.finish(worker) and more

    cdef int64_t prepare(self, Worker worker, const Group* group) noexcept nogil:
        """Check and decompress a group, and count its records; the first batch that is left for its turn."""
        cdef BatchRow* row
        cdef Item* item
        cdef const uint8_t* p
        cdef int64_t size
        cdef int64_t used = 0
        cdef int64_t i
        cdef Report report
        report.fault = FAULT_NONE
        worker.count = 0
        if group.hi - group.lo > worker.item_capacity and not worker.reserve(group.hi - group.lo):
            return group.lo
        for i in range(group.lo, group.hi):
            if kb_get(&self.stop) <= group.lo:
                return i
            row = &self.rows[i]
            if not self.is_in_range(row):
                return i
            if row.attributes & CODEC and not self.framing_only and self.is_refused(row, &report):
                return i
            if self.framing_only or not gives_rows(row, self.include_control):
                if not self.crc_holds(row, 0, 0, &report):
                    return i
                continue
            if not self.is_counted(i):
                return i
            p = self.payload(row, &size)
            item = &worker.items[worker.count]
            item.row = i
            item.payload = p
            if row.attributes & CODEC:
                size = self.to_scratch(worker, row, p, size, used)
                item.payload = NULL
                item.at = used
                p = worker.scratch + used
                used += size
            # Behind the library, as in `step_compressed`.
            if size < 0 or not self.crc_holds(row, 0, 0, &report):
                return i
            item.size = size
            if not measure(p, size, row, self.wanted.check_crc, &item.measured, &report):
                return i
            worker.count += 1
        return group.hi

    cdef bint is_counted(self, int64_t i) noexcept nogil:
        """Whether by its header no record of batch `i` is trimmed. When it is parsed that turns out to be so, or not."""
        cdef const BatchRow* row = &self.rows[i]
        if not self.wanted.trimmed:
            return True
        if row.last_offset > self.wanted.last_offset:
            return False
        if row.magic != 2 and row.attributes & CODEC:
            # The offset of the first message isn't known; sets don't overlap.
            return i > self.lo and self.rows[i - 1].last_offset >= self.wanted.first_offset
        return row.base_offset >= self.wanted.first_offset

    cdef bint settle(self, Worker worker, int64_t lo, int64_t* ready) noexcept nogil:
        """Give the batches from `lo` to `ready` their place; whether everything goes on after them.

        `ready` becomes the first batch that has none.
        """
        cdef Item* item
        cdef Ending ending = no_ending()
        cdef Place place = self.place
        cdef int64_t n = 0
        cdef int64_t i = lo
        cdef bint more = True
        while more and i < ready[0]:
            self.rows[i].first_record = place.used
            if n < worker.count and worker.items[n].row == i:
                item = &worker.items[n]
                item.place = place.arena_used if self.copies else item.payload - self.base
                if item.measured.count > self.capacity - place.used:
                    ending.cause = RECORDS
                    ending.needed = item.measured.count
                elif self.copies and self.keep and item.size > self.arena_capacity - place.arena_used:
                    ending.cause = ARENA
                    ending.needed = item.size
                if ending.cause != DONE:
                    more = False
                    break
                place.used += item.measured.count
                if self.copies and self.keep:
                    place.arena_used += item.size
                n += 1
            i += 1
            more = self.cost(i, &place) < self.max_bytes
        self.place = place
        if not more:
            self.end_at(i, &place, &ending)
        worker.count = n
        ready[0] = i
        self.placed = max(self.placed, i)
        return more

    cdef bint do_in_order(self, Worker worker, int64_t lo, int64_t hi) noexcept nogil:
        """Do the batches from `lo` to `hi` of a group whose turn it is; whether to go on after them."""
        cdef Ending ending = no_ending()
        cdef int64_t i = lo
        while i < hi:
            ending.cause = self.step(worker, &self.place, i, &ending)
            if ending.cause == DONE:
                i += 1
                self.placed = i
            if ending.cause != DONE or self.cost(i, &self.place) >= self.max_bytes:
                self.end_at(i, &self.place, &ending)
                return False
        return True

    cdef bint finish(self, Worker worker) noexcept nogil:
        """Parse what has its place; False at a batch that can't be parsed."""
        cdef Item* item
        cdef BatchRow* row
        cdef const uint8_t* p
        cdef int64_t count
        cdef int64_t n = worker.count
        cdef int64_t i
        cdef Place place
        cdef Ending ending = no_ending()
        worker.count = 0
        for i in range(n):
            item = &worker.items[i]
            if kb_get(&self.stop) <= item.row:
                return False
            row = &self.rows[item.row]
            p = item.payload if item.payload != NULL else <const uint8_t*>worker.scratch + item.at
            # Read where the cache has it; positions are those in the arena.
            count = read_rows(p - item.place, item.place, item.size, row, <int32_t>item.row,
                              self.out + row.first_record * self.wanted.fields.itemsize, &item.measured, &self.wanted,
                              &ending.report)
            if kb_unlikely(count != item.measured.count):
                ending.cause = FAULT if count < 0 else ORDER
                place = Place(row.first_record, item.place if self.copies else 0)
                self.end_at(item.row, &place, &ending)
                return False
            if self.copies and self.keep:
                memcpy(self.arena + item.place, p, item.size)
        return True

    cdef inline void acquire(self) noexcept nogil:
        cdef int64_t tries = 0
        while kb_swap(&self.lock, 1):
            # Who has it may have to wait for this processor.
            pass_time(&tries)

    cdef inline void release(self) noexcept nogil:
        kb_set(&self.lock, 0)

    cdef void end_at(self, int64_t row, const Place* place, const Ending* ending) noexcept nogil:
        """Leave the batches from `row` on: why, and what is filled before it. Of several, the first one counts."""
        self.acquire()
        if row < self.stop:
            self.stop_place = place[0]
            self.ending = ending[0]
            kb_set(&self.stop, row)
        self.release()


cdef inline Ending no_ending() noexcept nogil:
    cdef Ending ending
    ending.cause = DONE
    ending.needed = 0
    ending.report = Report(FAULT_NONE, -1, -1, 0, 0)
    return ending


cdef object outcome(int64_t row, const Place* place, const Ending* ending):
    cdef const Report* report = &ending.report
    if ending.cause == RANGE:
        raise IndexError("batch out of range")
    return Outcome(row, place.used, place.arena_used, ending.cause, ending.needed, report.fault, report.record,
                   report.at, report.wanted, report.found)
