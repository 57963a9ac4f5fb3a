"""Decoding of one batch in runs of records, for batches whose rows are split over several tables."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbatch.kernels.batch_decoder cimport FAULT, BatchDecoder, Config, Ending, OutputCursor, new_ending, outcome
from kbatch.kernels.decode cimport count_records, read_rows
from kbatch.kernels.rows cimport PayloadState
from kbatch.kernels.spans cimport RecordSpan
from kbatch.kernels.wire cimport BatchRow


cdef class BatchRuns(BatchDecoder):
    """Parses batch `lo` in runs, each to rows of its own, any number of times.

    The caller has verified the checksum. The payload is the `size` bytes of the arena from byte `arena_used` on, or if
    `arena` is None, it is in the data.
    """

    cdef PayloadState state
    cdef const uint8_t* payload_base
    cdef int64_t position
    cdef int64_t size
    cdef PayloadState start
    cdef PayloadState previous

    def __init__(self, Config config not None, batches not None, int64_t lo, arena, int64_t arena_used, int64_t size,
                 records not None):
        cdef const uint8_t* p
        super().__init__(config, batches, lo, lo + 1, records, 0, arena, arena_used)
        if self.copies:
            self.payload_base, self.position, self.size = self.arena, arena_used, size
            if size < 0 or size > self.arena_capacity - arena_used:
                raise IndexError("payload out of range")
        elif not self.is_in_range(&self.rows[lo]):
            raise IndexError("batch out of range")
        else:
            p = self.payload(&self.rows[lo], &self.size)
            self.payload_base, self.position = self.base, p - self.base

    def begin(self):
        """Check the number of records, and return to the first one."""
        cdef Ending ending = new_ending()
        cdef BatchRow* row = &self.rows[self.lo]
        with nogil:
            if not count_records(self.payload_base + self.position, self.size, row, self.options.check_crc, &self.start,
                                 &ending.report):
                ending.cause = FAULT
        self.state = self.start
        return outcome(self.lo, &self.cursor, &ending)

    def rewind(self):
        """Return to the first record."""
        self.state = self.start

    def undo(self):
        """Return to the state before the last run."""
        self.state = self.previous

    @property
    def remaining_records(self):
        """The number of records that no run has parsed."""
        return self.state.count - self.state.done

    def parse_run(self, records not None):
        """Parse as many of the next records as `records` has rows; `used` of the outcome is the number of rows kept."""
        cdef RecordSpan out = RecordSpan(records, True)
        cdef Ending ending = new_ending()
        cdef OutputCursor cursor = OutputCursor(0, 0)
        if out.fields.itemsize != self.options.fields.itemsize or out.stride != out.fields.itemsize:
            raise ValueError("records must be contiguous, with the fields of the first ones")
        self.previous = self.state
        self.state.first = self.state.done
        self.state.stop = min(self.state.count, self.state.first + out.length)
        with nogil:
            cursor.used = read_rows(self.payload_base, self.position, self.size, &self.rows[self.lo],
                                    <int32_t>self.lo, out.items, &self.state, &self.options, &ending.report)
        if cursor.used < 0:
            ending.cause = FAULT
        self.state.done = self.state.stop
        return outcome(self.lo, &cursor, &ending)
