from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from kbatch.kernels.wire cimport CRC_START, CRC_START_LEGACY, BatchRow


cdef uint32_t crc32c_of(const uint8_t* data, int64_t size) noexcept nogil
# The CRC-32C of A || B from the CRC-32C of A, and B.
cdef uint32_t crc32c_after(uint32_t before, const uint8_t* data, int64_t size) noexcept nogil
# CRC-32, the checksum of magic 0 and 1.
cdef uint32_t crc32_legacy(const uint8_t* data, int64_t size) noexcept nogil
# The number of batches before the first one with a bad checksum. `base` is the address of position 0 of the source.
cdef int64_t count_good(const uint8_t* base, const BatchRow* batches, int64_t count) noexcept nogil
# crc(A || B) == shift(crc(A), length of B) ^ crc(B)
cpdef uint32_t crc32c_shift(uint32_t crc, uint64_t nbytes) noexcept nogil
cpdef uint32_t crc32_shift(uint32_t crc, uint64_t nbytes) noexcept nogil


cdef inline uint32_t checksum_of(const uint8_t* p, const BatchRow* batch) noexcept nogil:
    """The checksum of the batch, or message of magic 0 or 1, at `p`."""
    if batch.magic == 2:
        return crc32c_of(p + CRC_START, batch.size - CRC_START)
    return crc32_legacy(p + CRC_START_LEGACY, batch.size - CRC_START_LEGACY)
