"""Decoding of framed batches by one thread or by several, without the GIL.

A single thread decodes batch by batch: each is verified, decompressed to the arena and parsed while it is in the first
level of the cache. Several threads claim groups of consecutive batches. A thread verifies the batches of its group and
decompresses them to its scratch, waits for its turn, reserves the group's rows and arena bytes in that turn, and then
parses the batches and copies them to the arena while other threads continue. Batches whose rows cannot be counted
beforehand are decoded during the turn. Therefore the result is the same for any number of threads.

A pipeline ends at the first batch that cannot be decoded, and reports its row and the cause. All batches before it are
decoded; it and all batches after it are unchanged.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbatch.kernels.atomic cimport kb_set
from kbatch.kernels.batch_decoder cimport (
    ARENA,
    DONE,
    FAULT,
    ORDER,
    PAYLOAD,
    RECORDS,
    VERIFY,
    BatchDecoder,
    Ending,
    OutputCursor,
    Scratch,
    new_ending,
    outcome,
)
from kbatch.kernels.buffers import allocate
from kbatch.kernels.checksum cimport crc32_legacy, crc32c_after
from kbatch.kernels.codecs cimport Codecs
from kbatch.kernels.decode cimport count_records, gives_rows, read_rows
from kbatch.kernels.rows cimport PayloadState
from kbatch.kernels.schedule cimport (
    Group,
    Schedule,
    acquire,
    claim_group,
    close_entry,
    enter,
    has_stopped,
    leave,
    pass_turn,
    release,
    wait_for_turn,
)
from kbatch.kernels.small_batches cimport decode_small_batches
from kbatch.kernels.spans cimport Span
from kbatch.kernels.tuning cimport SIGNAL_BYTES
from kbatch.kernels.wire cimport (
    BAD_CRC,
    BAD_INNER_CRC,
    CODEC,
    CRC_START,
    CRC_START_LEGACY,
    FAULT_BAD_CRC,
    FAULT_NONE,
    MIN_RECORD,
    BatchRow,
    FaultReport,
    kb_stream_end,
    kb_unlikely,
)

cdef enum:
    # A value of `stop` below all rows: the results are discarded.
    ABORTED = -1
    # The bits of a reason that are its fault.
    FAULT_BITS = 0x7F


# A batch of a group after decompression, before parsing.
cdef struct Item:
    int64_t row
    # The payload in the data; if NULL, the payload is in the thread's scratch from byte `at` on.
    const uint8_t* payload
    int64_t at
    int64_t size
    # The position of the payload in the arena, or in the data if payloads are not copied.
    int64_t position
    PayloadState state


cdef class Worker(Scratch):
    """The scratch of one thread, and the decompressed batches of its group."""

    cdef Span _items
    cdef Item* items
    cdef int64_t item_capacity
    cdef int64_t count

    cdef bint reserve(self, int64_t count) noexcept with gil:
        """Replace the items by memory for `count` items; return whether that succeeded."""
        try:
            self._items = Span(allocate(count * sizeof(Item)), sizeof(Item), True)
        except MemoryError:
            return False
        self.items = <Item*>self._items.items
        self.item_capacity = count
        return True


cdef class Pipeline(BatchDecoder):
    """A `BatchDecoder` that one or several threads run."""

    # Written by the thread whose turn it is, like `cursor`. After the end, no wrapper from row `assigned` on has been
    # parsed.
    cdef int64_t assigned
    cdef Schedule schedule
    # The rows and bytes filled before the batch at which the schedule stops, and the cause. Written under the lock.
    cdef OutputCursor stop_cursor
    cdef Ending ending

    def __cinit__(self):
        self.schedule.stop = INT64_MAX

    # -- running

    def run(self, Codecs codecs not None):
        """Decode all batches in this thread. Checks for signals; an exception of a handler propagates."""
        cdef Worker worker = Worker(codecs, self.max_scratch)
        cdef Ending ending = new_ending()
        cdef int64_t i = self.lo
        cdef int64_t unchecked
        cdef int64_t count
        while i < self.hi and ending.cause == DONE:
            PyErr_CheckSignals()
            unchecked = 0
            with nogil:
                while i < self.hi and unchecked < SIGNAL_BYTES:
                    count = decode_small_batches(self, i)
                    if not count:
                        ending.cause = self.decode_batch(worker, &self.cursor, i, &ending)
                        if ending.cause != DONE:
                            break
                        count = 1
                    i += count
                    unchecked += self.rows[i - 1].position + self.rows[i - 1].size - self.rows[i - count].position
                    if self.cost(i, &self.cursor) >= self.max_bytes:
                        break
            if i > self.lo and self.cost(i, &self.cursor) >= self.max_bytes:
                break
        return outcome(i, &self.cursor, &ending)

    def run_skipping(self, Codecs codecs not None, losses not None, statuses not None, refusal):
        """Decode all batches in this thread, and pass over bad ones whose length is right.

        The length is right if the checksum is good, or if the next batch follows directly and its checksum is good. A
        bad batch that is passed over gets a status and no records. If checksums are verified, a batch with the status
        BAD_CRC is passed over without a loss: `frame_damaged` has reported it.

        Parameters
        ----------
        codecs : Codecs
        losses : ndarray of int64, shape (n, 6)
            Gets a row for each bad batch: position, size, first offset, reason, expected and found value. The reason
            is a fault, or what `refusal` returns. The run ends when the array is full.
        statuses : bytes
            The status by fault.
        refusal : callable
            Called for each payload that the kernels do not decompress, if the checksum of its batch is good: with the
            codec, the magic, the position and size of the payload in the data, and the used bytes and the limit of its
            size in the arena, which it must not replace. Returns the reason, the expected and the found value if the
            payload is refused; None if it has to be decoded, at which the run ends.

        Returns
        -------
        (Outcome, int, int)
            The number of rows of `losses`, and the last good batch, -1 if there is none.
        """
        cdef Worker worker = Worker(codecs, self.max_scratch)
        cdef Span lost = Span(losses, 6 * sizeof(int64_t), True)
        cdef Span by_fault = Span(statuses, 1, False)
        cdef int64_t* into = <int64_t*>lost.items
        cdef Ending ending = new_ending()
        cdef int64_t i = self.lo
        cdef int64_t used = 0
        cdef int64_t last_good = -1
        cdef int64_t unchecked, count, reason
        cdef BatchRow* row
        if by_fault.length <= FAULT_BITS:
            raise ValueError("every fault needs a status")
        while i < self.hi and ending.cause == DONE and used < lost.length:
            PyErr_CheckSignals()
            unchecked = 0
            with nogil:
                while i < self.hi and unchecked < SIGNAL_BYTES and used < lost.length:
                    count = decode_small_batches(self, i)
                    row = &self.rows[i]
                    if not count and row.status == BAD_CRC and self.crc == VERIFY:
                        row.first_record = self.cursor.used
                        count = 1
                    elif not count:
                        ending.cause = self.decode_batch(worker, &self.cursor, i, &ending)
                        reason = 0
                        if ending.cause == FAULT and self.is_length_right(i, &ending.report):
                            reason = ending.report.fault
                        elif ending.cause == PAYLOAD and self.is_checksum_good(i):
                            reason = self.refused(i, &ending, refusal)
                        if reason:
                            row.status = (<const uint8_t*>by_fault.items)[reason & FAULT_BITS]
                            row.first_record = self.cursor.used
                            into[0] = row.position
                            into[1] = row.size
                            into[2] = row.last_offset if row.magic < 2 and row.base_offset < 0 else row.base_offset
                            into[3] = reason
                            into[4] = ending.report.expected
                            into[5] = ending.report.found
                            into += 6
                            used += 1
                            ending = new_ending()
                        elif ending.cause == DONE:
                            last_good = i
                        if ending.cause != DONE:
                            break
                        count = 1
                    else:
                        last_good = i + count - 1
                    i += count
                    unchecked += self.rows[i - 1].position + self.rows[i - 1].size - self.rows[i - count].position
                    if self.cost(i, &self.cursor) >= self.max_bytes:
                        break
            if i > self.lo and self.cost(i, &self.cursor) >= self.max_bytes:
                break
        return outcome(i, &self.cursor, &ending), used, last_good

    cdef int64_t refused(self, int64_t i, Ending* ending, refusal) except -1 with gil:
        """Return the reason why the payload of batch `i` is refused, and report its values; 0 if it may be decoded."""
        cdef const BatchRow* row = &self.rows[i]
        cdef int64_t limit = self.remaining(i, &self.cursor, 0)
        cdef int64_t reason
        # If the record count is wrong, the rows need not fit.
        if row.magic == 2 and self.fits(i, &self.cursor, row.record_count, row.record_count * MIN_RECORD):
            limit = self.remaining(i, &self.cursor, row.record_count)
        found = refusal(row.attributes & CODEC, row.magic, ending.report.at, ending.needed, self.cursor.arena_used,
                        limit)
        if found is None:
            return 0
        reason, ending.report.expected, ending.report.found = found
        return reason

    cdef bint is_length_right(self, int64_t i, const FaultReport* report) noexcept nogil:
        if report.fault != FAULT_BAD_CRC:
            return self.is_checksum_good(i)
        return (i + 1 < self._batches.length and self.rows[i + 1].position == self.rows[i].position + self.rows[i].size
                and self.is_checksum_good(i + 1))

    cdef bint is_checksum_good(self, int64_t i) noexcept nogil:
        """Whether the checksum of batch `i` is good, also if checksums are not verified."""
        cdef const BatchRow* row = &self.rows[i]
        cdef const uint8_t* p = self.base + (row.position - self.origin)
        if not self.is_in_range(row):
            return False
        if row.magic == 2:
            return crc32c_after(0, p + CRC_START, row.size - CRC_START) == row.crc
        return crc32_legacy(p + CRC_START_LEGACY, row.size - CRC_START_LEGACY) == row.crc

    def run_shared(self, Codecs codecs not None):
        """Decode all batches in this thread and the threads in `help`, and return when all have finished.

        Checks for signals. An exception of a handler propagates; the caller must then call `abandon`.
        """
        cdef Worker worker = Worker(codecs, self.max_scratch)
        with nogil:
            self.work(worker, True)
        self.close()
        if self.schedule.stop == INT64_MAX:
            return outcome(self.hi, &self.cursor, &self.ending)
        return outcome(self.schedule.stop, &self.stop_cursor, &self.ending)

    def help(self, Codecs codecs not None):
        """Decode groups until none remain. Called by other threads, at any time."""
        cdef Worker worker = Worker(codecs, self.max_scratch)
        with nogil:
            if enter(&self.schedule):
                self.work(worker, False)
            leave(&self.schedule)

    def abandon(self):
        """Stop all threads and wait for them; the contents of the output are then undefined."""
        cdef Ending ending = new_ending()
        # A thread whose turn it is may be writing `self.cursor`.
        cdef OutputCursor cursor = OutputCursor(0, 0)
        self.end_at(ABORTED, &cursor, &ending)
        self.close()

    cdef void close(self):
        """Let no further thread enter, wait until all have left, and release the arrays."""
        cdef bint closed
        with nogil:
            closed = close_entry(&self.schedule)
        if not closed:
            return
        if self.schedule.stop != ABORTED:
            self.reset_wrappers()
        # A helper that has not started yet keeps a reference to this object.
        self.config = self._data = self._batches = self._arena = self._out = None

    cdef void reset_wrappers(self) noexcept nogil:
        """Restore the rows of wrappers after the end, which threads may have completed, to the state after `scan`."""
        cdef int64_t i
        for i in range(self.schedule.stop, self.assigned):
            if self.rows[i].magic != 2 and self.rows[i].attributes & CODEC:
                self.rows[i].base_offset = self.rows[i].record_count = -1
                self.rows[i].last_offset_delta = 0
                if self.rows[i].status == BAD_INNER_CRC:
                    self.rows[i].status = 0

    # -- groups

    cdef int work(self, Worker worker, bint checks_signals) except -1 nogil:
        """Decode groups until none remain or the pipeline stops."""
        cdef Group group
        cdef int64_t unchecked = 0
        while claim_group(&self.schedule, self.rows, self.lo, self.hi, &group):
            if unchecked >= SIGNAL_BYTES and checks_signals:
                unchecked = 0
                with gil:
                    PyErr_CheckSignals()
            unchecked += self.rows[group.hi - 1].position + self.rows[group.hi - 1].size - self.rows[group.lo].position
            if not self.decode_group(worker, &group):
                break
        kb_stream_end()
        return 0

    cdef bint decode_group(self, Worker worker, const Group* group) noexcept nogil:
        """Decode a group; return whether to continue after it."""
        cdef int64_t ready = self.prepare_group(worker, group)
        cdef bint more
        if not wait_for_turn(&self.schedule, group):
            return False
        more = self.assign_output(worker, group.lo, &ready)
        if more and ready < group.hi:
            more = self.finish_group(worker) and self.decode_in_order(worker, ready, group.hi)
            worker.count = 0
        if more:
            pass_turn(&self.schedule, group)
        return self.finish_group(worker) and more

    cdef int64_t prepare_group(self, Worker worker, const Group* group) noexcept nogil:
        """Verify and decompress a group and count its records; return the first batch that must wait for the turn."""
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
            if has_stopped(&self.schedule, group.lo):
                return i
            row = &self.rows[i]
            if not self.is_in_range(row):
                return i
            if row.attributes & CODEC and not self.framing_only and self.has_header_fault(row, &report):
                return i
            if self.framing_only or not gives_rows(row, self.include_control):
                if not self.crc_holds(row, 0, 0, &report):
                    return i
                continue
            if not self.keeps_all_records(i):
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
            # The checksum is computed after decompression, as in `decode_compressed`. `finish_group` computes it for
            # payloads that are parsed in place: computed here, the data would be loaded from memory twice (32 MB of
            # small records, two threads: 3.8 ms instead of 1.9).
            if size < 0 or not self.is_parsed_in_place(row) and not self.crc_holds(row, 0, 0, &report):
                return i
            item.size = size
            if not count_records(p, size, row, self.options.check_crc, &item.state, &report):
                return i
            worker.count += 1
        return group.hi

    cdef inline bint is_parsed_in_place(self, const BatchRow* row) noexcept nogil:
        return row.magic == 2 and not row.attributes & CODEC and not self.copies

    cdef bint keeps_all_records(self, int64_t i) noexcept nogil:
        """Whether no record of batch `i` is trimmed according to its header, which `finish_group` verifies."""
        cdef const BatchRow* row = &self.rows[i]
        if not self.options.trimmed:
            return True
        if row.last_offset > self.options.last_offset:
            return False
        if row.magic != 2 and row.attributes & CODEC:
            # The offset of the first message is not known, but message sets do not overlap.
            return i > self.lo and self.rows[i - 1].last_offset >= self.options.first_offset
        return row.base_offset >= self.options.first_offset

    cdef bint assign_output(self, Worker worker, int64_t lo, int64_t* ready) noexcept nogil:
        """Assign rows and arena bytes to the batches from `lo` to `ready`; return whether to continue after them.

        Sets `ready` to the first batch to which none are assigned.
        """
        cdef Item* item
        cdef Ending ending = new_ending()
        cdef OutputCursor cursor = self.cursor
        cdef int64_t n = 0
        cdef int64_t i = lo
        cdef bint more = True
        while more and i < ready[0]:
            self.rows[i].first_record = cursor.used
            if n < worker.count and worker.items[n].row == i:
                item = &worker.items[n]
                item.position = cursor.arena_used if self.copies else item.payload - self.base
                if ((self.is_tight or item.state.count > self.capacity - cursor.used)
                        and not self.fits(i, &cursor, item.state.count, item.size)):
                    # Its checksum may not be verified yet.
                    ending.cause = ORDER
                elif item.state.count > self.capacity - cursor.used:
                    ending.cause = RECORDS
                    ending.needed = item.state.count
                elif self.copies and self.keep and item.size > self.arena_capacity - cursor.arena_used:
                    ending.cause = ARENA
                    ending.needed = item.size
                if ending.cause != DONE:
                    more = False
                    break
                cursor.used += item.state.count
                if self.copies and self.keep:
                    cursor.arena_used += item.size
                n += 1
            i += 1
            more = self.cost(i, &cursor) < self.max_bytes
        self.cursor = cursor
        if not more:
            self.end_at(i, &cursor, &ending)
        worker.count = n
        ready[0] = i
        self.assigned = max(self.assigned, i)
        return more

    cdef bint decode_in_order(self, Worker worker, int64_t lo, int64_t hi) noexcept nogil:
        """Decode the batches from `lo` to `hi` of the group whose turn it is; return whether to continue."""
        cdef Ending ending = new_ending()
        cdef int64_t i = lo
        while i < hi:
            ending.cause = self.decode_batch(worker, &self.cursor, i, &ending)
            if ending.cause == DONE:
                i += 1
                self.assigned = i
            if ending.cause != DONE or self.cost(i, &self.cursor) >= self.max_bytes:
                self.end_at(i, &self.cursor, &ending)
                return False
        return True

    cdef bint finish_group(self, Worker worker) noexcept nogil:
        """Parse the batches to which output is assigned; return False at a batch that cannot be parsed."""
        cdef Item* item
        cdef BatchRow* row
        cdef const uint8_t* p
        cdef int64_t count
        cdef int64_t n = worker.count
        cdef int64_t i
        cdef bint valid
        cdef OutputCursor cursor
        cdef Ending ending = new_ending()
        worker.count = 0
        for i in range(n):
            item = &worker.items[i]
            if has_stopped(&self.schedule, item.row):
                return False
            row = &self.rows[item.row]
            p = item.payload if item.payload != NULL else <const uint8_t*>worker.scratch + item.at
            # The payload is parsed in the scratch, which is in the cache; positions are those in the arena.
            count = read_rows(p - item.position, item.position, item.size, row, <int32_t>item.row,
                              self.out + row.first_record * self.options.fields.itemsize, &item.state, &self.options,
                              &ending.report)
            # If there are several faults, the invalid checksum is reported.
            valid = not self.is_parsed_in_place(row) or self.crc_holds(row, 0, 0, &ending.report)
            if kb_unlikely(count != item.state.count or not valid):
                ending.cause = FAULT if count < 0 or not valid else ORDER
                cursor = OutputCursor(row.first_record, item.position if self.copies else 0)
                self.end_at(item.row, &cursor, &ending)
                return False
            if self.copies and self.keep:
                memcpy(self.arena + item.position, p, item.size)
        return True

    cdef void end_at(self, int64_t row, const OutputCursor* cursor, const Ending* ending) noexcept nogil:
        """Stop before batch `row`, and record the cause and the filled output; the lowest row counts."""
        acquire(&self.schedule)
        if row < self.schedule.stop:
            self.stop_cursor = cursor[0]
            self.ending = ending[0]
            kb_set(&self.schedule.stop, row)
        release(&self.schedule)
