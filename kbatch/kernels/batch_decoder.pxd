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
    TABLE = 6
    RANGE = 7


# What to do with checksums.
cdef enum:
    SKIP = 0
    VERIFY = 1
    MARK = 2


# The numbers of record rows and of arena bytes that are filled: the next batch is written after them.
cdef struct OutputCursor:
    int64_t used
    int64_t arena_used


# Why decoding ended. For RECORDS and ARENA, `needed` is the capacity that the next batch needs. For PAYLOAD, it is the
# size of the compressed payload, and `report.at` its position in the data. For FAULT, `report` is the fault. For TABLE,
# the checksum and the record count of the next batch are right, but its rows and payload exceed the table's memory.
cdef struct Ending:
    int cause
    int64_t needed
    FaultReport report


# The state of checksum and parsing after each block of a batch that is being decompressed. Processing a block while its
# input and output are in the first levels of the cache makes decoding lz4 batches of 1 MiB 5 % faster.
cdef struct BlockParser:
    BatchRow* row
    int32_t index
    # The bytes that the checksum covers, the position of the payload in them, the number of bytes that are summed, and
    # their checksum.
    const uint8_t* checksummed
    int64_t payload_start
    int64_t summed
    uint32_t crc
    # The buffer of the decompressed payload, its position there, and the first row to fill.
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
    cdef int64_t table_bytes
    cdef bint owned
    cdef int64_t max_scratch
    cdef int64_t limit
    cdef bint include_control
    cdef bint trimmed
    cdef int64_t first_offset
    cdef int64_t last_offset


cdef class Scratch:
    cdef Codecs codecs
    cdef int64_t max_scratch
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
    # The memory for record rows and payloads, whether the capacities exceed it, and the number of rows that can be
    # filled without a check: the capacity, or -1 if the capacities exceed the memory.
    cdef int64_t table_bytes
    cdef bint owned
    cdef bint is_tight
    cdef int64_t unchecked_rows
    cdef int64_t max_scratch
    cdef OutputCursor cursor
    # The maximum number of batches in the next run of small batches.
    cdef int64_t run_limit

    cdef int64_t remaining(self, int64_t i, const OutputCursor* cursor, int64_t count) noexcept nogil
    cdef bint fits(self, int64_t i, const OutputCursor* cursor, int64_t count, int64_t size) noexcept nogil
    cdef int check_capacity(self, int64_t i, const OutputCursor* cursor, int64_t count, int64_t size,
                            Ending* ending) noexcept nogil
    cdef int64_t cost(self, int64_t i, const OutputCursor* cursor) noexcept nogil
    cdef bint is_in_range(self, const BatchRow* row) noexcept nogil
    cdef bint crc_holds(self, BatchRow* row, int64_t summed, uint32_t crc, FaultReport* report) noexcept nogil
    cdef bint is_trimmed(self, const BatchRow* row) noexcept nogil
    cdef bint supported(self, const BatchRow* row) noexcept nogil
    cdef const uint8_t* payload(self, const BatchRow* row, int64_t* size) noexcept nogil
    cdef int64_t to_scratch(self, Scratch worker, const BatchRow* row, const uint8_t* p, int64_t size,
                            int64_t used) noexcept nogil
    cdef int decode_batch(self, Scratch worker, OutputCursor* cursor, int64_t i, Ending* ending) noexcept nogil
    cdef int decode_compressed(self, Scratch worker, OutputCursor* cursor, int64_t i, Ending* ending) noexcept nogil
    cdef bint has_header_fault(self, const BatchRow* row, FaultReport* report) noexcept nogil
    cdef void begin_blocks(self, BlockParser* parser, const OutputCursor* cursor, BatchRow* row, int64_t i,
                           const uint8_t* base, int64_t position) noexcept nogil
    cdef int decode_long(self, OutputCursor* cursor, int64_t i, int64_t position, int64_t size,
                         Ending* ending) noexcept nogil


cdef Ending new_ending() noexcept nogil
cdef object outcome(int64_t row, const OutputCursor* cursor, const Ending* ending)
