"""(position, length) slices in the rows of records and headers, and their checked reads."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from kbatch.kernels.spans cimport RecordSpan
from kbatch.kernels.wire cimport HeaderRow, kb_unlikely


# The position and length fields of the first row, and the distance in bytes to the next row.
cdef struct SliceColumn:
    const char* position
    const char* length
    Py_ssize_t stride


cdef inline int64_t int64_at(const char* field) noexcept nogil:
    return (<const int64_t*> field)[0]


cdef inline int64_t int32_at(const char* field) noexcept nogil:
    return (<const int32_t*> field)[0]


cdef inline int64_t slice_position(SliceColumn s, Py_ssize_t i) noexcept nogil:
    return int64_at(s.position + i * s.stride)


cdef inline int64_t slice_length(SliceColumn s, Py_ssize_t i) noexcept nogil:
    return int32_at(s.length + i * s.stride)


cdef inline bint is_outside(int64_t position, int64_t length, int64_t size) noexcept nogil:
    return kb_unlikely(<uint64_t> position > <uint64_t> size or length > size - position)


cdef inline int64_t sum_lengths(const char* field, Py_ssize_t stride, Py_ssize_t n) noexcept nogil:
    # Local variables and no branches: such loops run at memory speed.
    cdef int64_t total = 0, length
    cdef Py_ssize_t _i
    for _i in range(n):
        length = int32_at(field)
        total += length if length > 0 else 0
        field += stride
    return total


cdef SliceColumn record_slices(RecordSpan rows, bint values) except *
cdef SliceColumn header_slices(const HeaderRow[:] headers, bint values) noexcept
cdef const uint8_t* data_start(const uint8_t[::1] data) noexcept
cdef str record_name(RecordSpan rows, Py_ssize_t i, int64_t first_row)
cdef str header_name(const HeaderRow[:] headers, Py_ssize_t i, int64_t first_row)
cdef object outside_error(str row, str column, SliceColumn s, Py_ssize_t i, int64_t size)
