from libc.stdint cimport int64_t, uint8_t

from kbatch.kernels.wire cimport BatchRow


cdef struct Stop:
    int fault
    int64_t wanted
    int64_t found


cdef int64_t scan_into(const uint8_t* base, int64_t size, int64_t* position, int64_t origin,
                       BatchRow* rows, int64_t capacity, Stop* stop) noexcept nogil
