"""CRC-32C of magic 2, and CRC-32 of magic 0 and 1: the implementation that all kernels share is in ``crc.h``."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kbatch.kernels.spans cimport Span
from kbatch.kernels.wire cimport CRC_AT, CRC_START, MESSAGE_CRC_AT, BatchRow, kb_bswap32

cdef extern from "crc.h":
    enum:
        KB_CRC32C
        KB_CRC32
    int kb_level
    void kb_init_checksums() noexcept nogil
    uint32_t kb_crc32c(uint32_t before, const uint8_t* p, size_t n, int level) noexcept nogil
    uint32_t kb_crc32(uint32_t before, const uint8_t* p, size_t n, int level) noexcept nogil
    uint32_t kb_crc_shift(int which, uint32_t crc, uint64_t nbytes) noexcept nogil

kb_init_checksums()

# The level of this processor: 0 has only tables, 1 also instructions for checksums,
# 2 carry-less multiplication in vectors of 256 bits, 3 of 512 bits.
LEVEL = kb_level


def crc32c(const uint8_t[::1] data not None, int level=3):
    """Return the CRC-32C of `data`; `level` is the highest level to use (see `LEVEL`)."""
    cdef size_t n = data.shape[0]
    cdef uint32_t crc
    with nogil:
        crc = kb_crc32c(0, &data[0] if n else NULL, n, min(level, kb_level))
    return crc


def crc32(const uint8_t[::1] data not None, int level=3):
    """Return the CRC-32 of `data`, as `zlib.crc32` does; the arguments are as for `crc32c`."""
    cdef size_t n = data.shape[0]
    cdef uint32_t crc
    with nogil:
        crc = kb_crc32(0, &data[0] if n else NULL, n, min(level, kb_level))
    return crc


cdef uint32_t crc32c_of(const uint8_t* data, int64_t size) noexcept nogil:
    return kb_crc32c(0, data, size, kb_level)


cdef uint32_t crc32c_after(uint32_t before, const uint8_t* data, int64_t size) noexcept nogil:
    return kb_crc32c(before, data, size, kb_level)


cdef uint32_t crc32_legacy(const uint8_t* data, int64_t size) noexcept nogil:
    return kb_crc32(0, data, size, kb_level)


cdef int64_t count_good(const uint8_t* base, const BatchRow* batches, int64_t count) noexcept nogil:
    cdef int64_t i
    for i in range(count):
        if checksum_of(base + batches[i].position, batches + i) != batches[i].crc:
            return i
    return count


cpdef uint32_t crc32c_shift(uint32_t crc, uint64_t nbytes) noexcept nogil:
    """Return the share of A in the CRC-32C of A || B, where `crc` is the CRC-32C of A and B has `nbytes` bytes:

    crc32c(A || B) == crc32c_shift(crc32c(A), len(B)) ^ crc32c(B).
    """
    return kb_crc_shift(KB_CRC32C, crc, nbytes)


cpdef uint32_t crc32_shift(uint32_t crc, uint64_t nbytes) noexcept nogil:
    """As `crc32c_shift`, for CRC-32."""
    return kb_crc_shift(KB_CRC32, crc, nbytes)


def first_bad_crc(data not None, batches not None, int64_t row, int64_t end, int64_t origin):
    """Return the first of the rows from `row` up to `end` with a bad checksum, and the checksum of its bytes.

    If all are good, the result is `end` and 0. `origin` is the position of ``data[0]`` in the source.
    """
    cdef Span data_span = Span(data, 1, False)
    cdef Span batch_span = Span(batches, sizeof(BatchRow), False)
    cdef const BatchRow* rows = <const BatchRow*>batch_span.items
    cdef const uint8_t* base = <const uint8_t*>data_span.items
    cdef uint32_t found = 0
    cdef int64_t at
    cdef bint is_inside = True
    if row < 0 or end > batch_span.length:
        raise IndexError("rows out of range")
    with nogil:
        while row < end:
            at = rows[row].position - origin
            is_inside = at >= 0 and CRC_START <= rows[row].size <= data_span.length - at
            if not is_inside:
                break
            found = checksum_of(base + at, rows + row)
            if found != rows[row].crc:
                break
            row += 1
    if not is_inside:
        raise ValueError(f"batches are outside of the {data_span.length} bytes that begin at {origin}")
    return row, found if row < end else 0


def write_crcs(data not None, batches not None):
    """Compute the checksums of batches and write them to `data` and to the rows.

    The caller guarantees that all batches are within `data`.
    """
    cdef Span data_span = Span(data, 1, True)
    cdef Span batch_span = Span(batches, sizeof(BatchRow), True)
    cdef BatchRow* rows = <BatchRow*>batch_span.items
    cdef int64_t i
    cdef uint32_t stored
    cdef uint8_t* p
    with nogil:
        for i in range(batch_span.length):
            p = <uint8_t*>data_span.items + rows[i].position
            rows[i].crc = checksum_of(p, rows + i)
            stored = kb_bswap32(rows[i].crc)
            memcpy(p + (CRC_AT if rows[i].magic == 2 else MESSAGE_CRC_AT), &stored, 4)
