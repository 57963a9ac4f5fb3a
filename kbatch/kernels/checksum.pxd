from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef uint32_t crc32c_of(const uint8_t* data, int64_t size) noexcept nogil
# The CRC-32C of A || B from that of A, and B.
cdef uint32_t crc32c_after(uint32_t before, const uint8_t* data, int64_t size) noexcept nogil
# CRC-32, which magic 0 and 1 have.
cdef uint32_t crc32_legacy(const uint8_t* data, int64_t size) noexcept nogil
# crc(A || B) == shift(crc(A), length of B) ^ crc(B)
cpdef uint32_t crc32c_shift(uint32_t crc, uint64_t nbytes) noexcept nogil
cpdef uint32_t crc32_shift(uint32_t crc, uint64_t nbytes) noexcept nogil
