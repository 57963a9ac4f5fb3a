from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kbatch.kernels.codecs cimport Codecs
from kbatch.kernels.rows cimport PayloadState, ParseOptions
from kbatch.kernels.spans cimport RecordSpan, Span
from kbatch.kernels.wire cimport BatchRow, FaultReport

# The values of `Cause`.
cdef enum:
    DONE = 0
    RECORDS = 1
    ARENA = 2
    PAYLOAD = 3
    FAULT = 4
    ORDER = 5
    RANGE = 6


# Where rows and decompressed bytes go next.
cdef struct Place:
    int64_t used
    int64_t arena_used


# Why a batch isn't done: of RECORDS and ARENA the capacity that is needed, of FAULT a report, and of PAYLOAD the bytes
# of the payload that is to be decompressed and in `report.at` where in the data they begin.
cdef struct Ending:
    int cause
    int64_t needed
    FaultReport report


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
    const ParseOptions* options
    PayloadState state


cdef class Config:
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


cdef class Scratch:
    cdef Codecs codecs
    cdef Span _block
    cdef uint8_t* scratch
    cdef int64_t capacity

    cdef bint grow(self, int64_t used, int64_t needed) noexcept with gil


cdef class BatchDecoder:
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
    cdef ParseOptions options
    cdef int crc
    cdef bint copies
    cdef bint keep
    cdef bint framing_only
    cdef bint include_control
    cdef int64_t limit
    cdef int64_t max_bytes
    cdef Place place

    cdef int64_t cost(self, int64_t i, const Place* place) noexcept nogil
    cdef bint is_in_range(self, const BatchRow* row) noexcept nogil
    cdef bint crc_holds(self, BatchRow* row, int64_t summed, uint32_t crc, FaultReport* report) noexcept nogil
    cdef bint is_outside(self, const BatchRow* row) noexcept nogil
    cdef bint supported(self, const BatchRow* row) noexcept nogil
    cdef const uint8_t* payload(self, const BatchRow* row, int64_t* size) noexcept nogil
    cdef int64_t to_scratch(self, Scratch worker, const BatchRow* row, const uint8_t* p, int64_t size,
                            int64_t used) noexcept nogil
    cdef int64_t plain_run(self, Place* place, int64_t lo) noexcept nogil
    cdef int step(self, Scratch worker, Place* place, int64_t i, Ending* ending) noexcept nogil
    cdef int step_compressed(self, Scratch worker, Place* place, int64_t i, Ending* ending) noexcept nogil
    cdef bint is_refused(self, const BatchRow* row, FaultReport* report) noexcept nogil
    cdef int parse(self, Place* place, int64_t i, const uint8_t* base, int64_t position, int64_t size,
                   PayloadState* state, Ending* ending) noexcept nogil
    cdef void follow_with(self, Follower* follower, const Place* place, BatchRow* row, int64_t i,
                          const uint8_t* base, int64_t position) noexcept nogil
    cdef int do_long(self, Place* place, int64_t i, int64_t position, int64_t size, Ending* ending) noexcept nogil


cdef Ending no_ending() noexcept nogil
cdef object outcome(int64_t row, const Place* place, const Ending* ending)
