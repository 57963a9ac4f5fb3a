from libc.stdint cimport int64_t, uint8_t, uint32_t

from kbatch.kernels.wire cimport BatchRow


cdef class RunningChecksum:
    cdef bint castagnoli
    # Positions in the source: of the first summed byte, and after the last summed byte.
    cdef int64_t anchor
    cdef int64_t end
    cdef uint32_t* marks
    cdef int64_t count
    cdef int64_t capacity

    cdef uint32_t after(self, uint32_t crc, const uint8_t* p, int64_t size) noexcept nogil
    cdef uint32_t at(self, const uint8_t* base, int64_t origin, int64_t position) noexcept nogil
    cdef bint extend(self, const uint8_t* base, int64_t origin, int64_t lowest, int64_t end) noexcept nogil


cdef class EntryChecksums:
    cdef RunningChecksum crc32c
    cdef RunningChecksum crc32
    # The checksum of the last verified bytes.
    cdef uint32_t last_crc

    cpdef int64_t first_byte(self, int64_t position)
    # Whether the checksum of the complete entry at `position` is valid; -1 without memory.
    cdef int entry_holds(self, const uint8_t* base, int64_t origin, int64_t lowest, int64_t position,
                         int64_t size) noexcept nogil


# The header chain from byte `at` of a window on: see `follow_lengths`.
cdef struct Chain:
    int64_t at
    int64_t last
    bint holds
    int64_t used


# Return the first position from `position` up to `stop` where an entry within the source may begin, or -1.
cdef int64_t first_plausible(const uint8_t* base, int64_t size, int64_t position, int64_t stop, int64_t max_size,
                             int64_t max_records, int64_t source_end) noexcept nogil

# Follow the header chain up to byte `end`, and add rows of batches of magic 2 from row `chain.used` on.
cdef void follow_chain(const uint8_t* base, int64_t size, int64_t origin, int64_t end, int64_t max_size, BatchRow* rows,
                       int64_t capacity, Chain* chain) noexcept nogil
