from libc.stdint cimport int64_t


cdef class Span:
    cdef Py_buffer _view
    cdef void* items
    cdef int64_t length


# The position of each field in a row of records, in bytes; negative for a field that the rows do not have.
cdef struct Fields:
    Py_ssize_t itemsize
    Py_ssize_t offset
    Py_ssize_t timestamp
    Py_ssize_t key_pos
    Py_ssize_t value_pos
    Py_ssize_t headers_pos
    Py_ssize_t key_len
    Py_ssize_t value_len
    Py_ssize_t header_count
    Py_ssize_t batch


cdef class RowLayout:
    cdef Fields fields
    cdef bint whole
    cdef Py_ssize_t alignment


cdef class RecordSpan:
    cdef Py_buffer _view
    cdef char* items
    cdef int64_t length
    cdef Py_ssize_t stride
    cdef Fields fields
    # Whether a row is a RecordRow.
    cdef bint whole
    cdef int64_t offset(self, Py_ssize_t row)
