"""The columns that batches are written from, and the functions that read their rows.

Keys, values and headers of any layout are read as (pointer, length) contents, a block of rows at a time.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

cdef enum:
    BLOCK = 256  # rows that are read at a time: their contents stay in the first-level cache
    HEADER_BLOCK = 64


# Bytes of a key, value or header; a length of -1 is null.
cdef struct Content:
    const uint8_t* p
    int64_t n

cdef enum PartKind:
    NULLS
    OFFSETS_32
    OFFSETS_64
    VIEWS
    ITEMS
    TEXTS
    SLICES
    POINTERS

# A run of a column's rows in one layout.
cdef struct ColumnPart:
    PartKind kind
    int64_t start  # its rows are start .. stop - 1 of the column
    int64_t stop
    const char* items  # the offset, view, item, position or content of its first row
    Py_ssize_t stride
    const char* lengths
    Py_ssize_t lengths_stride
    const uint8_t* data
    int64_t size
    const uint8_t** buffers
    int64_t* sizes
    int64_t buffer_count
    const uint8_t* valid
    int64_t valid_start  # bit of its first row in `valid`
    int64_t width

# All parts of a column.
cdef struct Parts:
    const ColumnPart* parts
    int64_t count

# A column of integers; if `items` is NULL, row number `row` is `first + row * step`.
cdef struct Numbers:
    const char* items
    Py_ssize_t stride
    int64_t first
    int64_t step

# The columns that make up records.
cdef struct Source:
    Parts keys
    Parts values
    Parts header_keys
    Parts header_values
    Numbers offsets
    Numbers timestamps
    Numbers header_first
    Numbers header_count

# Contents of consecutive headers, including the one read last: records read their headers in order.
cdef struct HeaderWindow:
    int64_t start
    int64_t stop
    Content keys[HEADER_BLOCK]
    Content values[HEADER_BLOCK]


cdef class Column:
    cdef ColumnPart* parts
    cdef int64_t used
    cdef int64_t capacity
    cdef readonly int64_t length
    cdef list held
    cdef ColumnPart* add(self, PartKind kind, int64_t count, object valid, int64_t first) except NULL


cdef class RecordColumns:
    cdef Source source
    cdef readonly int64_t count
    cdef list held
    cdef Numbers numbers(self, object array, int itemsize, int64_t first, int64_t step) except *


cdef inline int64_t load_64(const char* p) noexcept nogil:
    cdef int64_t x
    memcpy(&x, p, 8)
    return x


cdef inline int64_t load_32(const char* p) noexcept nogil:
    cdef int32_t x
    memcpy(&x, p, 4)
    return x


cdef inline int64_t number(const Numbers* numbers, int64_t row) noexcept nogil:
    if numbers.items == NULL:
        return numbers.first + row * numbers.step
    return load_64(numbers.items + row * numbers.stride)


cdef int64_t read_contents(Parts column, int64_t row, int64_t count, Content* out) noexcept nogil
cdef bint has_slack(Parts column, int64_t row, int64_t count, const Content* slices) noexcept nogil
cdef int64_t read_lengths(Parts column, int64_t row, int64_t count, int32_t* out) noexcept nogil


cdef inline int64_t open_window(const Source* source, HeaderWindow* window, int64_t row) noexcept nogil:
    """Return the index of header `row` in the window, which is moved if necessary; -1 if the header is invalid."""
    cdef int64_t count
    if row < window.start or row >= window.stop:
        # As many headers as the column has and the window holds; `read_contents` stops at the first invalid one.
        window.start = row
        count = 0
        if source.header_keys.count and row >= 0:
            count = source.header_keys.parts[source.header_keys.count - 1].stop - row
        count = max(0, min(count, <int64_t>HEADER_BLOCK))
        if read_contents(source.header_keys, row, count, window.keys) != count \
                or read_contents(source.header_values, row, count, window.values) != count:
            # The invalid header may be a later one.
            count = 1
            if read_contents(source.header_keys, row, count, window.keys) != count \
                    or read_contents(source.header_values, row, count, window.values) != count:
                count = 0
        window.stop = row + count
        if count == 0:
            return -1
    return row - window.start
