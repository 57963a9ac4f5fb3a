"""The rows that parsing writes: the fields of a record, in rows of RECORD_DTYPE or with only some of its fields."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbatch.kernels.spans cimport Fields
from kbatch.kernels.wire cimport RecordRow


cdef extern from "platform.h":
    void kb_stream_int64(void* p, int64_t value) noexcept nogil
    void kb_stream_int32(void* p, int32_t value) noexcept nogil


# A RecordRow that is written by non-temporal stores: the processor does not load the cache lines that it is about to
# overwrite. 32 MB of records of 48 bytes take 3.8 instead of 4.6 ms.
cdef struct StreamedRow:
    RecordRow row

# A row with any other dtype than RECORD_DTYPE.
cdef struct PartialRow:
    uint8_t first

# The loop for RecordRow has the positions of the fields compiled in: to test for each field whether the rows have it
# takes half a nanosecond per record.
ctypedef fused row_t:
    RecordRow
    StreamedRow
    PartialRow


# The rows to make of the batches of a call.
cdef struct ParseOptions:
    Fields fields
    # Whether a row has all fields of a RecordRow, and whether it is a StreamedRow.
    bint whole
    bint streamed
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


cdef inline void put_int64(row_t* row, Py_ssize_t field, int64_t value) noexcept nogil:
    if row_t is StreamedRow:
        kb_stream_int64(<char*>row + field, value)
    elif field >= 0:
        (<int64_t*>(<char*>row + field))[0] = value


cdef inline void put_int32(row_t* row, Py_ssize_t field, int64_t value) noexcept nogil:
    if row_t is StreamedRow:
        kb_stream_int32(<char*>row + field, <int32_t>value)
    elif field >= 0:
        (<int32_t*>(<char*>row + field))[0] = <int32_t>value


cdef inline row_t* next_row(row_t* row, const Fields* fields) noexcept nogil:
    if row_t is PartialRow:
        return <row_t*>(<char*>row + fields.itemsize)
    else:
        return row + 1
