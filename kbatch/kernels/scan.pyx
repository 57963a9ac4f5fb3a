"""Bytes to batch rows: the headers only, payloads untouched."""

from collections import namedtuple

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t

from kbatch.kernels.spans cimport Span
from kbatch.kernels.wire cimport (
    BatchRow,
    FAULT_BAD_MAGIC,
    FAULT_BATCH_TOO_SHORT,
    FAULT_LENGTH_TOO_SMALL,
    FAULT_NONE,
    MIN_RECORD,
    load_be16,
    load_be32,
    load_be64,
    kb_prefetch,
    kb_prefetch_around,
)

cdef enum:
    LOG_OVERHEAD = 12
    MAGIC_AT = 16
    MIN_ENTRY = 17
    # How far ahead headers of small batches are fetched.
    NEAR = 2 << 10
    # Sizes of batches from which on headers are fetched from where they are about to be, and up to which.
    FAR = 3 << 10
    TOO_FAR = 64 << 10
    # Least values of the length field, by magic (FRM-R2, FRM-R5, LEG-R1).
    MIN_LENGTH_V0 = 14
    MIN_LENGTH_V1 = 22
    MIN_LENGTH_V2 = 49
    # A guess, below what is usual, at the compressed bytes that a record takes.
    PACKED_RECORD = 8
    CODEC = 0x07
    MAX_CODEC = 4
    MAX_CODEC_LEGACY = 3
    CONTROL = 0x20
    ATTRIBUTES_V1 = 0x0F
    UNKNOWN = -1
    BAD_CRC = 1


Scanned = namedtuple("Scanned", "rows position fault expected found")


cdef inline void fill_v2(const uint8_t* p, BatchRow* row) noexcept nogil:
    row.base_offset = <int64_t>load_be64(p)
    row.partition_leader_epoch = <int32_t>load_be32(p + 12)
    row.magic = 2
    row.crc = load_be32(p + 17)
    row.attributes = <int16_t>load_be16(p + 21)
    row.last_offset_delta = <int32_t>load_be32(p + 23)
    row.last_offset = <int64_t>(<uint64_t>row.base_offset + <uint64_t><int64_t>row.last_offset_delta)
    row.base_timestamp = <int64_t>load_be64(p + 27)
    row.max_timestamp = <int64_t>load_be64(p + 35)
    row.producer_id = <int64_t>load_be64(p + 43)
    row.producer_epoch = <int16_t>load_be16(p + 51)
    row.base_sequence = <int32_t>load_be32(p + 53)
    row.record_count = <int32_t>load_be32(p + 57)


cdef inline void fill_legacy(const uint8_t* p, int8_t magic, BatchRow* row) noexcept nogil:
    # The offset is that of the entry's last record. The first, and the count, of a wrapper need decompression
    # (LEG-R23).
    row.last_offset = <int64_t>load_be64(p)
    # Magic 0 knows no timestamp types, and neither knows more than four bits (LEG-R3).
    row.attributes = p[17] & (ATTRIBUTES_V1 if magic == 1 else CODEC)
    cdef bint wrapper = (row.attributes & CODEC) != 0
    row.base_offset = UNKNOWN if wrapper else row.last_offset
    row.record_count = UNKNOWN if wrapper else 1
    row.partition_leader_epoch = -1
    row.magic = magic
    row.crc = load_be32(p + 12)
    row.last_offset_delta = 0
    row.base_timestamp = -1
    row.max_timestamp = <int64_t>load_be64(p + 18) if magic == 1 else -1
    row.producer_id = -1
    row.producer_epoch = -1
    row.base_sequence = -1


# Why no batch can begin somewhere.
cdef inline void fetch_ahead(const uint8_t* p, int64_t size) noexcept nogil:
    """Have the headers behind the batch of `size` bytes at `p` be on their way.

    Each states where the next one is, so that one would wait for each. Batches that were closed when they were full
    differ by a record: thus about where the fourth after this one is, for all four to be on their way at once.
    """
    if size < FAR:
        kb_prefetch(p + NEAR)
        kb_prefetch(p + NEAR + 64)
    elif size < TOO_FAR:
        kb_prefetch_around(p + 4 * size)


cdef int64_t scan_into(const uint8_t* base, int64_t size, int64_t* position, int64_t origin, BatchRow* rows,
                       int64_t capacity, Stop* stop) noexcept nogil:
    """Fill rows from byte `position` on; leave `position` after the last whole batch. Returns how many."""
    cdef int64_t at = position[0]
    cdef int64_t n = 0
    cdef int64_t left
    cdef int64_t minimum
    cdef int32_t length
    cdef int8_t magic
    cdef const uint8_t* p
    stop.fault = FAULT_NONE
    while n < capacity:
        left = size - at
        if left < LOG_OVERHEAD:
            break
        p = base + at
        length = <int32_t>load_be32(p + 8)
        if length < MIN_LENGTH_V0:
            # Before asking whether enough bytes are there: FRM-R2.
            stop.fault = FAULT_LENGTH_TOO_SMALL
            stop.wanted = MIN_LENGTH_V0
            stop.found = length
            break
        if left < MIN_ENTRY:
            break
        magic = <int8_t>p[MAGIC_AT]
        if magic < 0 or magic > 2:
            stop.fault = FAULT_BAD_MAGIC
            stop.found = magic
            break
        minimum = MIN_LENGTH_V2 if magic == 2 else (MIN_LENGTH_V1 if magic == 1 else MIN_LENGTH_V0)
        if length < minimum:
            stop.fault = FAULT_BATCH_TOO_SHORT
            stop.wanted = minimum
            stop.found = length
            break
        if left - LOG_OVERHEAD < length:
            break
        fetch_ahead(p, LOG_OVERHEAD + <int64_t>length)
        if magic == 2:
            fill_v2(p, &rows[n])
        else:
            fill_legacy(p, magic, &rows[n])
        rows[n].position = origin + at
        rows[n].size = LOG_OVERHEAD + <int64_t>length
        rows[n].first_record = 0
        rows[n].status = 0
        n += 1
        at += LOG_OVERHEAD + <int64_t>length
    position[0] = at
    return n


def scan_headers(data not None, rows not None, int64_t first, int64_t end, int64_t position, int64_t origin):
    """Fill `rows`, from row `first` up to row `end`, with the batches of `data` from byte `position` on.

    Returns (rows filled, position after the last whole batch, fault, wanted, found). It ends where these are full,
    where fewer bytes remain than the next batch needs (no fault), or at bytes that no batch can begin with (a fault).
    ``origin`` is added to every position that is stored.
    """
    cdef Span bytes_ = Span(data, 1, False)
    cdef Span into = Span(rows, sizeof(BatchRow), True)
    cdef Stop stop
    cdef int64_t n
    stop.fault = FAULT_NONE
    stop.wanted = 0
    stop.found = 0
    if position < 0:
        raise ValueError("position must not be negative")
    if first < 0 or end < first or end > into.length:
        raise IndexError("rows out of range")
    with nogil:
        n = scan_into(<const uint8_t*>bytes_.items, bytes_.length, &position, origin, <BatchRow*>into.items + first,
                      end - first, &stop)
    return Scanned(n, position, stop.fault, stop.wanted, stop.found)


def survey(rows not None, bint include_control):
    """What the headers say about decoding `rows`, in one pass over them.

    Returns (records, compressed): how many records to reserve, and how many batches have a payload to decompress. No
    count is believed that the bytes can't hold (CNT-R7): an uncompressed payload has seven bytes a record at least, and
    of a compressed one eight are guessed.
    """
    cdef Span span = Span(rows, sizeof(BatchRow), False)
    cdef const BatchRow* row = <const BatchRow*>span.items
    cdef int64_t records = 0
    cdef int64_t compressed = 0
    cdef int64_t payload
    cdef int codec
    cdef int64_t _
    with nogil:
        for _ in range(span.length):
            codec = row.attributes & CODEC
            payload = row.size - (LOG_OVERHEAD + MIN_LENGTH_V2)
            if row.status > BAD_CRC or codec > (MAX_CODEC if row.magic == 2 else MAX_CODEC_LEGACY):
                pass
            elif row.magic != 2:
                compressed += codec != 0
                records += row.size // PACKED_RECORD if codec else 1
            elif row.record_count > 0 and (include_control or not row.attributes & CONTROL):
                compressed += codec != 0
                records += min(<int64_t>row.record_count, payload // (PACKED_RECORD if codec else MIN_RECORD))
            row += 1
    return records, compressed
