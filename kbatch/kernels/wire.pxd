"""What every kernel shares: the row structs, the faults a kernel can report, and the bounded reads of the wire.

All of it is inline C over a pointer and an end pointer. A length from the input is compared as `n > end - p`,
never as `p + n > end`, which can overflow (REC-R4).
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #if defined(_MSC_VER)
      #include <stdlib.h>
      #define kb_bswap16 _byteswap_ushort
      #define kb_bswap32 _byteswap_ulong
      #define kb_bswap64 _byteswap_uint64
      #define kb_likely(x) (x)
      #define kb_unlikely(x) (x)
      #define kb_prefetch(p)
      #define kb_prefetch_around(p)
    #else
      #define kb_bswap16 __builtin_bswap16
      #define kb_bswap32 __builtin_bswap32
      #define kb_bswap64 __builtin_bswap64
      #define kb_likely(x) __builtin_expect(!!(x), 1)
      #define kb_unlikely(x) __builtin_expect(!!(x), 0)
      #define kb_prefetch(p) __builtin_prefetch(p)
      /* Half a kilobyte. gcc leaves out a function or a loop of nothing but prefetches, as one that does nothing. */
      #define kb_prefetch_around(p) do { \
          const char *kb_p = (const char *)(p) - 256; \
          __builtin_prefetch(kb_p); __builtin_prefetch(kb_p + 64); __builtin_prefetch(kb_p + 128); \
          __builtin_prefetch(kb_p + 192); __builtin_prefetch(kb_p + 256); __builtin_prefetch(kb_p + 320); \
          __builtin_prefetch(kb_p + 384); __builtin_prefetch(kb_p + 448); __builtin_prefetch(kb_p + 512); \
          __asm__ volatile(""); \
      } while (0)
    #endif
    """
    uint16_t kb_bswap16(uint16_t) noexcept nogil
    uint32_t kb_bswap32(uint32_t) noexcept nogil
    uint64_t kb_bswap64(uint64_t) noexcept nogil
    bint kb_likely(bint) noexcept nogil
    bint kb_unlikely(bint) noexcept nogil
    void kb_prefetch(const void*) noexcept nogil
    void kb_prefetch_around(const void*) noexcept nogil


# One row of RECORD_DTYPE, BATCH_DTYPE and HEADER_DTYPE; `spans.check_layouts` compares them with the dtypes.
cdef struct RecordRow:
    int64_t offset
    int64_t timestamp
    int64_t key_pos
    int64_t value_pos
    int64_t headers_pos
    int32_t key_len
    int32_t value_len
    int32_t header_count
    int32_t batch

cdef struct BatchRow:
    int64_t base_offset
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int64_t position
    int64_t size
    int64_t first_record
    int64_t last_offset
    int32_t last_offset_delta
    int32_t record_count
    int32_t base_sequence
    int32_t partition_leader_epoch
    uint32_t crc
    int16_t producer_epoch
    int16_t attributes
    int8_t magic
    uint8_t status

cdef struct HeaderRow:
    int64_t record
    int64_t key_pos
    int64_t value_pos
    int32_t key_len
    int32_t value_len


# What can be wrong. The Python twin is kbatch.errors.Fault; a test holds the two together.
cdef enum Fault:
    FAULT_NONE = 0
    FAULT_LENGTH_TOO_SMALL = 1
    FAULT_BAD_MAGIC = 2
    FAULT_LEGACY_CODEC = 3
    FAULT_BATCH_TOO_SHORT = 4
    FAULT_BAD_CRC = 5
    FAULT_COUNT_NEGATIVE = 6
    FAULT_COUNT_TOO_LARGE = 7
    FAULT_VARINT_TOO_LONG = 8
    FAULT_VARINT_CUT = 9
    FAULT_RECORD_LENGTH = 10
    FAULT_RECORD_CUT = 11
    FAULT_KEY_LENGTH = 12
    FAULT_VALUE_LENGTH = 13
    FAULT_HEADER_COUNT = 14
    FAULT_HEADER_KEY_LENGTH = 15
    FAULT_HEADER_VALUE_LENGTH = 16
    FAULT_RECORD_SIZE = 17
    FAULT_TRAILING_BYTES = 18
    FAULT_CODEC = 19
    FAULT_UNKNOWN_CODEC = 20
    FAULT_OVER_LIMIT = 21
    FAULT_WRAPPER_VALUE = 22
    FAULT_WRAPPER_EMPTY = 23
    FAULT_WRAPPER_OFFSET = 24
    FAULT_INNER_LENGTH = 25
    FAULT_INNER_CUT = 26
    FAULT_INNER_MAGIC = 27
    FAULT_INNER_COMPRESSED = 28
    FAULT_BATCH_TOO_LARGE = 29


# Bytes of an entry before its payload: all of magic 2 after the header; of a message, from its key on.
cdef enum:
    HEADER_V0 = 18
    HEADER_V1 = 26
    HEADER_V2 = 61
    # The shortest record: a byte each of length, attributes, both deltas, key and value length, header count (CNT-R7).
    MIN_RECORD = 7


cdef inline int64_t header_size(int8_t magic) noexcept nogil:
    return HEADER_V2 if magic == 2 else (HEADER_V1 if magic == 1 else HEADER_V0)


cdef inline uint16_t load_be16(const uint8_t* p) noexcept nogil:
    cdef uint16_t x
    memcpy(&x, p, 2)
    return kb_bswap16(x)


cdef inline uint32_t load_be32(const uint8_t* p) noexcept nogil:
    cdef uint32_t x
    memcpy(&x, p, 4)
    return kb_bswap32(x)


cdef inline uint64_t load_be64(const uint8_t* p) noexcept nogil:
    cdef uint64_t x
    memcpy(&x, p, 8)
    return kb_bswap64(x)


cdef inline uint64_t load_le64(const uint8_t* p) noexcept nogil:
    cdef uint64_t x
    memcpy(&x, p, 8)
    return x
