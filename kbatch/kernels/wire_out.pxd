"""Inline writers of the wire format, shared by all kernels that write batches: numbers, contents and headers.

They write to a pointer without a bound: the caller ensures the capacity.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kbatch.kernels.checksum cimport crc32_legacy, crc32c_of
from kbatch.kernels.wire cimport BatchRow, kb_bswap16, kb_bswap32, kb_bswap64, kb_likely

cdef extern from "bits.h":
    int kb_bits(uint64_t) noexcept nogil

cdef enum:
    LOG_OVERHEAD = 12
    BATCH_HEADER = 61
    CRC_START = 21
    CRC_START_LEGACY = 16
    # A message of magic 0 with neither key nor value, its offset and length included; magic 1 adds a timestamp.
    MESSAGE_V0 = 26
    MESSAGE_V1 = 34
    CODEC = 0x07
    # Maximum size of a record without key, value and headers: its length, attributes, deltas, and the two lengths. A
    # delta may take ten bytes, because another thread may change the offsets after they were measured.
    RECORD_BOUND = 36
    # Bytes after a content that `put_loosely` may read, and after its copy that it may write.
    SLACK = 64


cdef inline uint64_t zigzag(int64_t x) noexcept nogil:
    return (<uint64_t>x << 1) ^ <uint64_t>(x >> 63)


cdef inline int64_t varint_size(int64_t x) noexcept nogil:
    cdef uint64_t raw = zigzag(x)
    if kb_likely(raw < 1 << 7):
        return 1
    if kb_likely(raw < 1 << 14):
        return 2
    # ceil(bits / 7) without a division.
    return (kb_bits(raw) * 9 + 64) >> 6


cdef inline int64_t message_size(int magic, int64_t key, int64_t value) noexcept nogil:
    return (MESSAGE_V1 if magic else MESSAGE_V0) + max(key, 0) + max(value, 0)


cdef inline int64_t overhead(const BatchRow* row) noexcept nogil:
    """Return the bytes of a batch before its payload: a compressed set is the value of a message without a key."""
    if row.magic == 2:
        return BATCH_HEADER
    if row.attributes & CODEC:
        return MESSAGE_V1 if row.magic else MESSAGE_V0
    return 0


cdef inline void store_be16(uint8_t* p, int64_t x) noexcept nogil:
    cdef uint16_t swapped = kb_bswap16(<uint16_t>x)
    memcpy(p, &swapped, 2)


cdef inline void store_be32(uint8_t* p, int64_t x) noexcept nogil:
    cdef uint32_t swapped = kb_bswap32(<uint32_t>x)
    memcpy(p, &swapped, 4)


cdef inline void store_be64(uint8_t* p, int64_t x) noexcept nogil:
    cdef uint64_t swapped = kb_bswap64(<uint64_t>x)
    memcpy(p, &swapped, 8)


cdef inline uint8_t* put_varint(uint8_t* p, int64_t x) noexcept nogil:
    cdef uint64_t rest = zigzag(x)
    if kb_likely(rest < 1 << 7):
        p[0] = <uint8_t>rest
        return p + 1
    if kb_likely(rest < 1 << 14):
        p[0] = <uint8_t>(rest | 0x80)
        p[1] = <uint8_t>(rest >> 7)
        return p + 2
    while rest > 0x7F:
        p[0] = <uint8_t>(rest | 0x80)
        p += 1
        rest >>= 7
    p[0] = <uint8_t>rest
    return p + 1


cdef inline uint8_t* put_content(uint8_t* p, const uint8_t* content, int64_t n) noexcept nogil:
    """Copy; short contents by two overlapping moves of constant size, which cost less than a call of memcpy."""
    if n > 64:
        memcpy(p, content, n)
    elif n > 32:
        memcpy(p, content, 32)
        memcpy(p + n - 32, content + n - 32, 32)
    elif n >= 16:
        memcpy(p, content, 16)
        memcpy(p + n - 16, content + n - 16, 16)
    elif n >= 8:
        memcpy(p, content, 8)
        memcpy(p + n - 8, content + n - 8, 8)
    elif n >= 4:
        memcpy(p, content, 4)
        memcpy(p + n - 4, content + n - 4, 4)
    elif n > 0:
        p[0] = content[0]
        p[n >> 1] = content[n >> 1]
        p[n - 1] = content[n - 1]
    return p + n


cdef inline uint8_t* put_loosely(uint8_t* p, const uint8_t* content, int64_t n) noexcept nogil:
    """Copy in fixed steps, which read and write up to `SLACK` extra bytes, to save branches on the length."""
    cdef int64_t at = 64
    if n > 0:
        memcpy(p, content, 16)
        if n > 16:
            memcpy(p + 16, content + 16, 16)
            if n > 32:
                memcpy(p + 32, content + 32, 32)
                while at < n:
                    memcpy(p + at, content + at, 64)
                    at += 64
    return p + n


cdef inline uint8_t* put_short(uint8_t* p, uint64_t raw) noexcept nogil:
    """Write a varint below `SHORT`."""
    cdef uint16_t both
    if raw < 128:
        p[0] = <uint8_t>raw
        return p + 1
    both = <uint16_t>((raw & 0x7F) | 0x80 | (raw >> 7 << 8))
    memcpy(p, &both, 2)
    return p + 2


cdef inline void write_header(BatchRow* batch, uint8_t* p) noexcept nogil:
    """Write the header of a batch whose payload is in place, with its checksum."""
    store_be64(p, batch.base_offset if batch.magic == 2 else batch.last_offset)
    store_be32(p + 8, batch.size - LOG_OVERHEAD)
    p[16] = <uint8_t>batch.magic
    if batch.magic == 2:
        store_be32(p + 12, batch.partition_leader_epoch)
        store_be16(p + 21, batch.attributes)
        store_be32(p + 23, batch.last_offset_delta)
        store_be64(p + 27, batch.base_timestamp)
        store_be64(p + 35, batch.max_timestamp)
        store_be64(p + 43, batch.producer_id)
        store_be16(p + 51, batch.producer_epoch)
        store_be32(p + 53, batch.base_sequence)
        store_be32(p + 57, batch.record_count)
        batch.crc = crc32c_of(p + CRC_START, batch.size - CRC_START)
        store_be32(p + 17, batch.crc)
        return
    p[17] = <uint8_t>batch.attributes
    if batch.magic:
        store_be64(p + 18, batch.max_timestamp)
    store_be32(p + (26 if batch.magic else 18), -1)  # no key
    store_be32(p + (30 if batch.magic else 22), batch.size - overhead(batch))
    batch.crc = crc32_legacy(p + CRC_START_LEGACY, batch.size - CRC_START_LEGACY)
    store_be32(p + 12, batch.crc)
