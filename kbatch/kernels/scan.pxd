from libc.stdint cimport int64_t, uint8_t

from kbatch.kernels.wire cimport BatchRow, FaultReport


# Fill rows from byte `position` on, and move it to the end of the last complete batch. Returns the number of rows, and
# in `report` the fault that ended the scan, if one did.
cdef int64_t scan_into(const uint8_t* base, int64_t size, int64_t* position, int64_t origin, BatchRow* rows,
                       int64_t capacity, FaultReport* report) noexcept nogil
