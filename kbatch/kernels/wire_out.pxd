"""Shared code of the kernels that write batches: numbers, contents and headers of the format.

All of it is inline C over a pointer. The caller guarantees the capacity.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kbatch.kernels.checksum cimport checksum_of
from kbatch.kernels.wire cimport (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    BATCH_HEADER_SIZE,
    BatchRow,
    CODEC,
    CRC_AT,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    MESSAGE_ATTRIBUTES_AT,
    MESSAGE_CRC_AT,
    MESSAGE_SIZE_V0,
    MESSAGE_SIZE_V1,
    MESSAGE_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    header_size,
    kb_bits,
    kb_bswap16,
    kb_bswap32,
    kb_bswap64,
    kb_likely,
)

cdef enum:
    # Maximum size of a record without its key, value and headers: its length, attributes, deltas, and their lengths. A
    # delta may take ten bytes, because another thread may change the offsets after they were measured.
    RECORD_BOUND = 36
    # How many bytes after the copied ones `put_loosely` may read and write.
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
    return (MESSAGE_SIZE_V1 if magic else MESSAGE_SIZE_V0) + max(key, 0) + max(value, 0)


cdef inline int64_t overhead(const BatchRow* row) noexcept nogil:
    """Bytes of a batch before its payload. A compressed set of messages is the value of a message without a key."""
    if row.magic == 2:
        return BATCH_HEADER_SIZE
    if row.attributes & CODEC:
        return MESSAGE_SIZE_V1 if row.magic else MESSAGE_SIZE_V0
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
    """Copy; short contents by two overlapping moves of a constant size, which cost less than a call of memcpy."""
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
    """Copy in whole steps, which read and write up to `SLACK` bytes more: no branch for each length."""
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
    """Write a varint of one or two bytes."""
    cdef uint16_t both
    if raw < 128:
        p[0] = <uint8_t>raw
        return p + 1
    both = <uint16_t>((raw & 0x7F) | 0x80 | (raw >> 7 << 8))
    memcpy(p, &both, 2)
    return p + 2


cdef inline void write_header(BatchRow* batch, uint8_t* p) noexcept nogil:
    """Write the header of a batch whose payload is at its position, and the CRC of both."""
    cdef int64_t key_at = header_size(batch.magic)
    store_be64(p, batch.base_offset if batch.magic == 2 else batch.last_offset)
    store_be32(p + LENGTH_AT, batch.size - LOG_OVERHEAD)
    p[MAGIC_AT] = <uint8_t>batch.magic
    if batch.magic == 2:
        store_be32(p + LEADER_EPOCH_AT, batch.partition_leader_epoch)
        store_be16(p + ATTRIBUTES_AT, batch.attributes)
        store_be32(p + LAST_OFFSET_DELTA_AT, batch.last_offset_delta)
        store_be64(p + BASE_TIMESTAMP_AT, batch.base_timestamp)
        store_be64(p + MAX_TIMESTAMP_AT, batch.max_timestamp)
        store_be64(p + PRODUCER_ID_AT, batch.producer_id)
        store_be16(p + PRODUCER_EPOCH_AT, batch.producer_epoch)
        store_be32(p + BASE_SEQUENCE_AT, batch.base_sequence)
        store_be32(p + RECORD_COUNT_AT, batch.record_count)
    else:
        p[MESSAGE_ATTRIBUTES_AT] = <uint8_t>batch.attributes
        if batch.magic:
            store_be64(p + MESSAGE_TIMESTAMP_AT, batch.max_timestamp)
        store_be32(p + key_at, -1)  # no key
        store_be32(p + key_at + 4, batch.size - overhead(batch))
    batch.crc = checksum_of(p, batch)
    store_be32(p + (CRC_AT if batch.magic == 2 else MESSAGE_CRC_AT), batch.crc)
