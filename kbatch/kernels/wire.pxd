"""The layout of the format, the row structs, faults and loads, for all kernels that read or write batches.

The functions are inline C over a pointer and an end pointer. A length from the input is compared as `n > end - p`,
never as `p + n > end`, which can overflow (REC-R4).
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from "platform.h":
    uint16_t kb_bswap16(uint16_t) noexcept nogil
    uint32_t kb_bswap32(uint32_t) noexcept nogil
    uint64_t kb_bswap64(uint64_t) noexcept nogil
    int kb_bits(uint64_t) noexcept nogil
    bint kb_likely(bint) noexcept nogil
    bint kb_unlikely(bint) noexcept nogil
    void kb_stream_end() noexcept nogil
    void kb_prefetch(const void*) noexcept nogil
    void kb_prefetch_span(const void*, int64_t) noexcept nogil


# The layout of batches and messages. `kbatch.format` describes it and has the same constants for Python;
# `spans.wire_constants` lists these for the test that compares both.
cdef enum:
    # Entries of every magic.
    LENGTH_AT = 8
    LOG_OVERHEAD = 12
    MAGIC_AT = 16
    MIN_ENTRY_SIZE = 17
    # A batch of magic 2. Its checksum covers everything from the attributes on (CRC-R1).
    LEADER_EPOCH_AT = 12
    CRC_AT = 17
    ATTRIBUTES_AT = 21
    CRC_START = 21
    LAST_OFFSET_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    BASE_SEQUENCE_AT = 53
    RECORD_COUNT_AT = 57
    BATCH_HEADER_SIZE = 61
    # A message of magic 0 or 1. Its checksum covers everything from the magic on (CRC-R7). The header ends before the
    # length of the key.
    MESSAGE_CRC_AT = 12
    CRC_START_LEGACY = 16
    MESSAGE_ATTRIBUTES_AT = 17
    MESSAGE_TIMESTAMP_AT = 18
    MESSAGE_HEADER_V0 = 18
    MESSAGE_HEADER_V1 = 26
    # A message with neither key nor value: its header and two lengths.
    MESSAGE_SIZE_V0 = 26
    MESSAGE_SIZE_V1 = 34
    # Minimum values of the length field, by magic (FRM-R2, FRM-R5, LEG-R1).
    MIN_LENGTH_V0 = 14
    MIN_LENGTH_V1 = 22
    MIN_LENGTH_V2 = 49
    # The shortest record: a byte each of length, attributes, both deltas, key and value length, header count (CNT-R7).
    MIN_RECORD = 7
    # Bytes of the longest numbers of 32 and of 64 bits (VAR-R1).
    MAX_VARINT = 5
    MAX_VARLONG = 10
    # Bits of the attributes. In a message of magic 1, only the lower four have a meaning (LEG-R3).
    CODEC = 0x07
    LOG_APPEND_TIME = 0x08
    CONTROL = 0x20
    ATTRIBUTES_V1 = 0x0F
    # Codecs. zstd came with magic 2.
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
    MAX_CODEC = 4
    MAX_CODEC_LEGACY = 3
    # Values of a batch's status (`kbatch.BatchStatus`).
    BAD_CRC = 1
    INVALID = 2
    BAD_INNER_CRC = 7


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


# The faults of input. The Python twin is kbatch.errors.Fault; a test compares both.
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
    FAULT_OVER_TABLE = 30
    FAULT_LENGTH_TOO_LONG = 31


# A fault, its record (-1 if it concerns no single record), its position in the payload (-1 if it has none), and the
# numbers of its message.
cdef struct FaultReport:
    int fault
    int64_t record
    int64_t at
    int64_t expected
    int64_t found


cdef inline int fault_at(FaultReport* report, int fault, const uint8_t* at, int64_t expected,
                         int64_t found) noexcept nogil:
    """Report a fault at the address `at`, from which the caller computes the position in the payload."""
    report.fault = fault
    report.at = <int64_t>at
    report.expected = expected
    report.found = found
    return fault


cdef inline int64_t header_size(int8_t magic) noexcept nogil:
    """Bytes of a batch before its records, or of a message before the length of its key."""
    return BATCH_HEADER_SIZE if magic == 2 else (MESSAGE_HEADER_V1 if magic == 1 else MESSAGE_HEADER_V0)


cdef inline int64_t minimum_length(int8_t magic) noexcept nogil:
    """The minimum value of the length field."""
    return MIN_LENGTH_V2 if magic == 2 else (MIN_LENGTH_V1 if magic == 1 else MIN_LENGTH_V0)


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
