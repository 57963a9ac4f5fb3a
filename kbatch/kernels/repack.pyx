"""Payloads of batches -> another codec: decompressed, compressed and framed batch by batch, without the GIL.

This module contains no policy and raises no errors about batches: it stops before an unusual or damaged batch, and the
caller handles that one.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT32_MAX, int64_t, uint8_t
from libc.string cimport memcpy

from kbatch.kernels.codecs cimport Codecs, compressed_bound, compress_payload, decompress_payload
from kbatch.kernels.messages cimport wrapper_value
from kbatch.kernels.spans cimport Span
from kbatch.kernels.wire cimport BATCH_HEADER_SIZE, CODEC, BatchRow
from kbatch.kernels.wire_out cimport overhead, write_header

cdef enum:
    # Bytes between two checks for signals: at the slowest levels that takes a tenth of a second.
    SIGNAL_BYTES = 256 << 10


cdef struct ByteRange:
    uint8_t* items
    int64_t size


cdef class Target:
    """The codec and level that batches are rewritten to (0, none, only for magic 2), and the decompression limit."""

    cdef Codecs codecs
    cdef int codec
    cdef int level
    cdef int64_t limit

    def __init__(self, Codecs codecs not None, int codec, int level, int64_t limit):
        if codec < 0 or codec > CODEC:
            raise IndexError("no such codec")
        self.codecs = codecs
        self.codec = codec
        self.level = level
        self.limit = limit


def repack(Target target not None, data not None, batches not None, int64_t lo, int64_t origin, scratch not None,
           out not None, int64_t max_bytes):
    """Write batches from row `lo` on to `out`, until at least `max_bytes` are written.

    Parameters
    ----------
    data : buffer
        Batches of magic 2, or compressed message sets, at the positions of their rows minus `origin`.
    batches : ndarray of BATCH_DTYPE
        For each batch written, its row is updated: position, size, attributes and checksum in `out`.
    scratch : buffer
        Holds a payload between decompression and compression.

    Returns
    -------
    int, int
        The row after the last batch written, and the number of bytes written. The next batch, if fewer than `max_bytes`
        were written, is unusual, damaged, over the limit, or too large for `out`.
    """
    cdef Span data_span = Span(data, 1, False)
    cdef Span batch_span = Span(batches, sizeof(BatchRow), True)
    cdef Span scratch_span = Span(scratch, 1, True)
    cdef Span out_span = Span(out, 1, True)
    cdef BatchRow* rows = <BatchRow*>batch_span.items
    cdef uint8_t* start = <uint8_t*>out_span.items
    cdef int64_t used = 0
    cdef int64_t unchecked = 0
    cdef int64_t written = 0
    cdef int64_t at
    cdef int64_t i = lo
    cdef ByteRange spare = ByteRange(<uint8_t*>scratch_span.items, scratch_span.length)
    cdef ByteRange free
    if lo < 0 or lo > batch_span.length:
        raise IndexError("rows out of range")
    with nogil:
        while i < batch_span.length and used < max_bytes:
            at = rows[i].position - origin
            if at < 0 or rows[i].size < 0 or rows[i].size > data_span.length - at:
                break
            free.items = start + used
            free.size = out_span.length - used
            written = repacked(target, <const uint8_t*>data_span.items + at, rows + i, &spare, &free, &unchecked)
            if written < 0:
                break
            rows[i].attributes = rows[i].attributes & ~CODEC | target.codec
            rows[i].position = used
            rows[i].size = written
            write_header(rows + i, start + used)
            used += written
            i += 1
            if unchecked >= SIGNAL_BYTES:
                unchecked = 0
                with gil:
                    PyErr_CheckSignals()
    return i, used


cdef int64_t repacked(Target target, const uint8_t* p, const BatchRow* row, const ByteRange* scratch,
                      const ByteRange* out, int64_t* unchecked) except? -1 nogil:
    """Write the payload of the batch at `p` to its place in `out`; return the size of the batch, or -1."""
    cdef int own = row.attributes & CODEC
    cdef int codec = target.codec
    cdef int64_t at = BATCH_HEADER_SIZE
    cdef int64_t size = row.size - at
    cdef int64_t before
    cdef BatchRow after = row[0]
    if row.magic != 2:
        if not (own and codec):
            return -1
        at = wrapper_value(p, row.size, row.magic, &size)
    if at < 0 or size < 0:
        return -1
    p += at
    after.attributes = <int>(row.attributes & ~CODEC | codec)
    before = overhead(&after)
    if before > out.size:
        return -1
    if own and codec:
        size = decompress_payload(target.codecs, own, row.magic > 0, p, size, scratch.items, scratch.size, target.limit)
        p = scratch.items
    elif own:
        size = decompress_payload(target.codecs, own, True, p, size, out.items + before, out.size - before,
                                  target.limit)
    elif not codec:
        if size > out.size - before:
            return -1
        memcpy(out.items + before, p, size)
    if size < 0:
        return -1
    unchecked[0] += size
    if codec:
        if compressed_bound(size) > out.size - before:
            return -1
        size = compress_payload(target.codecs, codec, target.level, row.magic, p, size, out.items + before,
                                out.size - before)
    return -1 if size > INT32_MAX - before else before + size
