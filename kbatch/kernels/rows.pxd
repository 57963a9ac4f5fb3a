"""The rows that parsing writes: the fields of a record, in rows of RECORD_DTYPE or with only some of its fields."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbatch.kernels.spans cimport Fields
from kbatch.kernels.wire cimport RecordRow


# A row with any other dtype than RECORD_DTYPE.
cdef struct PartialRow:
    uint8_t first

# The loop for RecordRow has the positions of the fields compiled in: to test for each field whether the rows have it
# takes half a nanosecond per record.
ctypedef fused row_t:
    RecordRow
    PartialRow


# The rows to make of the batches of a call.
cdef struct ParseOptions:
    Fields fields
    # Whether a row is a RecordRow.
    bint whole
    # Whether to verify the checksums of the messages in wrappers.
    bint check_crc
    # Whether to keep only records with offsets from `first_offset` to `last_offset`.
    bint trimmed
    int64_t first_offset
    int64_t last_offset


# The progress of parsing a payload.
cdef struct PayloadState:
    # The number of records, known before the first one is parsed.
    int64_t count
    # Of a wrapper: the last offset as stored in it, and whether a checksum in it does not hold.
    int64_t last_inner
    bint bad_inner
    # Records that have been parsed, and the position of the next one in the payload.
    int64_t done
    int64_t done_at
    # The records to read, from `first` up to `stop`: all, except in a run of a batch that is split.
    int64_t first
    int64_t stop
    # Whether only the beginning of the payload is known so far.
    bint is_part


cdef inline Fields whole_fields() noexcept nogil:
    """Return the fields of RECORD_DTYPE."""
    cdef Fields fields
    cdef RecordRow row
    cdef char* start = <char*>&row
    fields.itemsize = sizeof(RecordRow)
    fields.offset = <char*>&row.offset - start
    fields.timestamp = <char*>&row.timestamp - start
    fields.key_pos = <char*>&row.key_pos - start
    fields.value_pos = <char*>&row.value_pos - start
    fields.headers_pos = <char*>&row.headers_pos - start
    fields.key_len = <char*>&row.key_len - start
    fields.value_len = <char*>&row.value_len - start
    fields.header_count = <char*>&row.header_count - start
    fields.batch = <char*>&row.batch - start
    return fields


cdef inline void put_int64(char* row, Py_ssize_t field, int64_t value) noexcept nogil:
    if field >= 0:
        (<int64_t*>(row + field))[0] = value


cdef inline void put_int32(char* row, Py_ssize_t field, int64_t value) noexcept nogil:
    if field >= 0:
        (<int32_t*>(row + field))[0] = <int32_t>value
