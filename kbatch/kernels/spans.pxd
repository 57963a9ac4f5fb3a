from libc.stdint cimport int64_t


cdef class Span:
    cdef Py_buffer _view
    cdef void* items
    cdef int64_t length
