from libc.stdint cimport int64_t, uint8_t

from kbatch.kernels.wire cimport BatchRow


# Why a scan ended: a fault of wire.pxd, with what was expected and found; or none.
cdef struct Stop:
    int fault
    int64_t wanted
    int64_t found


# Fill rows from byte `position` on; leave `position` after the last whole batch. Returns how many.
cdef int64_t scan_into(const uint8_t* base, int64_t size, int64_t* position, int64_t origin, BatchRow* rows,
                       int64_t capacity, Stop* stop) noexcept nogil
