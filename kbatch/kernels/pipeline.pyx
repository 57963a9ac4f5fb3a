"""Decoding of framed batches by one thread or by several at once, without the GIL.

One thread goes from batch to batch: each is checked, decompressed to the arena and parsed while it is in the first
level of the cache. Several threads take groups of consecutive batches. A thread checks a group and decompresses it to a
buffer of its own, waits for its turn, in which it only reserves the group's place in the rows and in the arena, and
parses and copies it there while others go on. Batches whose rows can't be counted beforehand are done in that turn. So
the result is the same for any number of threads.

A pipeline ends at the first batch that isn't done, and reports which it is and why: the batches before it are done, it
and those after it are as if they had not been looked at.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbatch.kernels.atomic cimport kb_add, kb_get, kb_set, kb_swap, pass_time
from kbatch.kernels.batch_decoder cimport (
    ARENA,
    DONE,
    FAULT,
    ORDER,
    RECORDS,
    BatchDecoder,
    Ending,
    Place,
    Scratch,
    no_ending,
    outcome,
)
from kbatch.kernels.buffers import allocate
from kbatch.kernels.codecs cimport Codecs
from kbatch.kernels.decode cimport count_records, gives_rows, read_rows
from kbatch.kernels.rows cimport PayloadState
from kbatch.kernels.spans cimport Span
from kbatch.kernels.tuning cimport GROUP_BYTES, LAST_GROUP_BYTES, SIGNAL_BYTES
from kbatch.kernels.wire cimport BAD_INNER_CRC, CODEC, FAULT_NONE, BatchRow, FaultReport, kb_unlikely

cdef enum:
    # The value of `stop` before all rows: the results are discarded.
    ABORTED = -1


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
    PayloadState state


cdef class Worker(Scratch):
    """With the batches that are between decompression and parsing."""

    cdef Span _items
    cdef Item* items
    cdef int64_t item_capacity
    cdef int64_t count

    cdef bint reserve(self, int64_t count) noexcept with gil:
        """Have capacity for `count` items; those that are there are lost."""
        try:
            self._items = Span(allocate(count * sizeof(Item)), sizeof(Item), True)
        except MemoryError:
            return False
        self.items = <Item*>self._items.items
        self.item_capacity = count
        return True


cdef class Pipeline(BatchDecoder):
    """A `BatchDecoder` that one thread can run, or several."""

    # What threads write to has cache lines of its own, by who does: for batches of 100 bytes, two threads are no faster
    # than one if they share theirs.
    cdef int64_t _line_1[8]
    # By the thread whose turn it is, with `place`. When everything has ended, no wrapper from row `placed` on has been
    # read.
    cdef int64_t placed
    cdef int64_t turn
    cdef int64_t _line_2[8]
    # By the thread that takes a group.
    cdef int64_t lock
    cdef int64_t claimed
    cdef int64_t taken
    cdef int64_t _line_3[8]
    # The first row that is left, once one is known, why, and what is filled before it. With the lock.
    cdef int64_t stop
    cdef Place stop_place
    cdef Ending ending
    cdef int64_t _line_4[8]
    # Threads at work, and whether no more may begin.
    cdef int64_t inside
    cdef int64_t closed

    def __cinit__(self):
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
        group.lo = group.hi = self.lo + self.taken
        if group.lo < self.hi and self.stop > group.lo:
            end = self.rows[above - 1].position - self.rows[group.lo].position
            end = self.rows[group.lo].position + min(max(end // 4, <int64_t>LAST_GROUP_BYTES), <int64_t>GROUP_BYTES)
            group.hi += 1
            while group.hi < above:
                middle = group.hi + (above - group.hi) // 2
                if self.rows[middle].position < end:
                    group.hi = middle + 1
                else:
                    above = middle
            self.claimed += 1
            self.taken = group.hi - self.lo
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
        cdef FaultReport report
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
            # Behind the library, as in `step_compressed`. What is parsed where it lies is summed behind the parser, in
            # `finish`: summed first, it waits for memory twice (32 MB of small records, two threads: 3.8 ms, else 1.9).
            if size < 0 or not self.is_parsed_in_place(row) and not self.crc_holds(row, 0, 0, &report):
                return i
            item.size = size
            if not count_records(p, size, row, self.options.check_crc, &item.state, &report):
                return i
            worker.count += 1
        return group.hi

    cdef inline bint is_parsed_in_place(self, const BatchRow* row) noexcept nogil:
        return row.magic == 2 and not row.attributes & CODEC and not self.copies

    cdef bint is_counted(self, int64_t i) noexcept nogil:
        """Whether by its header no record of batch `i` is trimmed. `finish` finds out whether that is true."""
        cdef const BatchRow* row = &self.rows[i]
        if not self.options.trimmed:
            return True
        if row.last_offset > self.options.last_offset:
            return False
        if row.magic != 2 and row.attributes & CODEC:
            # The offset of the first message isn't known; sets don't overlap.
            return i > self.lo and self.rows[i - 1].last_offset >= self.options.first_offset
        return row.base_offset >= self.options.first_offset

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
                if item.state.count > self.capacity - place.used:
                    ending.cause = RECORDS
                    ending.needed = item.state.count
                elif self.copies and self.keep and item.size > self.arena_capacity - place.arena_used:
                    ending.cause = ARENA
                    ending.needed = item.size
                if ending.cause != DONE:
                    more = False
                    break
                place.used += item.state.count
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
        cdef bint valid
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
                              self.out + row.first_record * self.options.fields.itemsize, &item.state, &self.options,
                              &ending.report)
            # Of several faults, a bad checksum is the one that is reported.
            valid = not self.is_parsed_in_place(row) or self.crc_holds(row, 0, 0, &ending.report)
            if kb_unlikely(count != item.state.count or not valid):
                ending.cause = FAULT if count < 0 or not valid else ORDER
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
