"""The sizes of records, shared by the pass that measures and the pass that writes."""

from libc.stdint cimport INT32_MAX, int64_t, uint32_t

from kbatch.kernels.source cimport Content, HeaderWindow, Numbers, Source, load_32, load_64, open_window, read_contents
from kbatch.kernels.wire cimport kb_unlikely
from kbatch.kernels.wire_out cimport message_size, varint_size

cdef enum:
    # Zigzag values below SHORT, and lengths below SHORT_LENGTH, take at most two bytes as varints.
    SHORT = 1 << 14
    SHORT_LENGTH = 1 << 13

# Why records cannot be measured or written; the messages are in `kbatch.write.composing`.
cdef enum WriteFault:
    NONE = 0
    OUTSIDE = 1  # a slice is not within its buffer
    NULL_HEADER_KEY = 2
    BAD_TIMESTAMP = 3
    OFFSET_ORDER = 4
    OFFSET_FAR = 5
    RECORD_SIZE = 6
    BATCH_SIZE = 7
    CHANGED = 8  # the columns changed after they were measured


cdef struct Failure:
    int fault
    int64_t row
    int64_t found


cdef inline bint read_pairs(const Source* source, int64_t row, int64_t count, Content* keys, Content* values,
                            Failure* failure) noexcept nogil:
    """Read the keys and values of rows; return whether all of them are within their buffers."""
    failure.row = row
    if read_contents(source.keys, row, count, keys) < count \
            or read_contents(source.values, row, count, values) < count:
        failure.fault = OUTSIDE
        return False
    return True


cdef inline int64_t bytes_size(int64_t n) noexcept nogil:
    return 1 if n < 0 else varint_size(n) + n


cdef inline int64_t headers_size(const Source* source, HeaderWindow* window, int64_t row,
                                 Failure* failure) noexcept nogil:
    """Return the size of a record's headers, including their count; -1 if they can't be written."""
    cdef int64_t count = 0
    cdef int64_t first
    cdef int64_t size
    cdef int64_t i
    cdef int64_t at
    if source.header_count.items != NULL:
        count = load_32(source.header_count.items + row * source.header_count.stride)
    if count == 0:
        return 1
    failure.fault = OUTSIDE
    if count < 0:
        return -1
    first = load_64(source.header_first.items + row * source.header_first.stride)
    size = varint_size(count)
    for i in range(count):
        at = open_window(source, window, first + i)
        if kb_unlikely(at < 0):
            return -1
        if kb_unlikely(window.keys[at].n < 0):
            failure.fault = NULL_HEADER_KEY
            return -1
        if kb_unlikely(window.keys[at].n > INT32_MAX or window.values[at].n > INT32_MAX or size > INT32_MAX):
            failure.fault = RECORD_SIZE
            return -1
        size += bytes_size(window.keys[at].n) + bytes_size(window.values[at].n)
    failure.fault = NONE
    return size


cdef inline int64_t body_size(int64_t time_delta, int64_t offset_delta, int64_t key, int64_t value,
                              int64_t headers) noexcept nogil:
    return 1 + varint_size(time_delta) + varint_size(offset_delta) + bytes_size(key) + bytes_size(value) + headers


cdef inline int64_t record_size(bint modern, int magic, int64_t time_delta, int64_t offset_delta, int64_t key,
                                int64_t value, int64_t headers) noexcept nogil:
    """Return the size of a record, or of a message, including its length."""
    cdef int64_t size
    if not modern:
        return message_size(magic, key, value)
    size = body_size(time_delta, offset_delta, key, value, headers)
    return size + varint_size(size)


cdef bint short_deltas(Numbers numbers, int64_t row, int64_t count, int64_t base, uint32_t* out) noexcept nogil
