from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

from kbatch.kernels.spans cimport Fields
from kbatch.kernels.wire cimport BatchRow

cdef enum:
    CODEC = 0x07
    CONTROL = 0x20
    BAD_CRC = 1
    BAD_INNER_CRC = 7


# Where a run of batches ended: the batch, and what was wrong with it if anything was. `at` counts from the payload on.
cdef struct Report:
    int fault
    int64_t record
    int64_t at
    int64_t wanted
    int64_t found


# What the batches of a call have in common: the rows that are wanted of them.
cdef struct Wanted:
    Fields fields
    # Whether a row is a RecordRow.
    bint whole
    # Of the messages in wrappers.
    bint check_crc
    bint trimmed
    int64_t first_offset
    int64_t last_offset


# What has to be known of a payload before there can be room for its rows.
cdef struct Measure:
    int64_t count
    int64_t last_inner
    bint bad_inner
    # Records whose rows are there already, and where in the payload the next one begins.
    int64_t done
    int64_t done_at
    # Whether it is only the beginning of a payload: `read_rows` reads as far as it goes.
    bint part


cdef inline bint gives_rows(const BatchRow* batch, bint include_control) noexcept nogil:
    """Whether the payload of a batch is looked at."""
    return (batch.status <= BAD_CRC and batch.record_count != 0
            and (include_control or not batch.attributes & CONTROL))


cdef bint measure(const uint8_t* payload, int64_t size, const BatchRow* batch, bint check_crc, Measure* found,
                  Report* report) noexcept nogil
cdef int64_t read_rows(const uint8_t* base, int64_t position, int64_t size, BatchRow* batch, int32_t index, char* into,
                       Measure* measured, const Wanted* wanted, Report* report) noexcept nogil
cdef int64_t read_plain(const uint8_t* base, const BatchRow* batches, int64_t count, int64_t origin, int32_t index,
                        char* into, const Wanted* wanted) noexcept nogil
cdef int64_t wrapper_value(const uint8_t* p, int64_t size, int8_t magic, int64_t* value_size) noexcept nogil
