"""Payloads of batches under another codec: decompressed, compressed and framed, a batch at a time, without the GIL.

This module knows no policy and no errors: at a batch with anything unusual about it it ends, with those before it done.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT32_MAX, int64_t, uint8_t
from libc.string cimport memcpy

from kbatch.kernels.decode cimport wrapper_value
from kbatch.kernels.frames cimport Codecs, packed_bound, packed_payload, plain_payload
from kbatch.kernels.put cimport CODEC, overhead, write_header
from kbatch.kernels.spans cimport Span
from kbatch.kernels.wire cimport HEADER_V2, BatchRow

cdef enum:
    # Bytes between two looks for signals: at the slowest levels that is a tenth of a second.
    SIGNAL_BYTES = 256 << 10


def repack(data not None, batches not None, int64_t lo, int64_t origin, Codecs codecs not None, int codec, int level,
           int64_t limit, scratch not None, out not None, int64_t most):
    """Write batches from the one at `lo` on to `out` with another codec, until so many bytes are written.

    Parameters
    ----------
    data : buffer
        With batches of magic 2, or of messages that are compressed, at the positions of their rows less `origin`.
    batches : ndarray of BATCH_DTYPE
        Of those that are written, position, size, attributes and checksum become what they are in `out`.
    codec, level : int
        0 only for magic 2.
    limit : int
        The most that a payload may decompress to.
    scratch : buffer
        For what is decompressed.

    Returns
    -------
    int, int
        The batch after the last one that is written, and the bytes that are. Where that is the one at `lo`: it is
        unusual, damaged, over the limit, or there is no room.
    """
    cdef Span data_span = Span(data, 1, False)
    cdef Span batch_span = Span(batches, sizeof(BatchRow), True)
    cdef Span scratch_span = Span(scratch, 1, True)
    cdef Span out_span = Span(out, 1, True)
    cdef BatchRow* rows = <BatchRow*>batch_span.items
    cdef uint8_t* start = <uint8_t*>out_span.items
    cdef int64_t used = 0
    cdef int64_t looked = 0
    cdef int64_t written = 0
    cdef int64_t i = lo
    if lo < 0 or lo > batch_span.length or codec < 0 or codec > CODEC:
        raise IndexError("rows out of range")
    with nogil:
        while i < batch_span.length and used < most:
            written = repacked(<const uint8_t*>data_span.items, data_span.length, rows + i, origin, codecs, codec,
                               level, limit, <uint8_t*>scratch_span.items, scratch_span.length, start + used,
                               out_span.length - used, &looked)
            if written < 0:
                break
            rows[i].attributes = rows[i].attributes & ~CODEC | codec
            rows[i].position = used
            rows[i].size = written
            write_header(rows + i, start + used)
            used += written
            i += 1
            if looked >= SIGNAL_BYTES:
                looked = 0
                with gil:
                    PyErr_CheckSignals()
    return i, used


cdef int64_t repacked(const uint8_t* base, int64_t length, const BatchRow* row, int64_t origin, Codecs codecs,
                      int codec, int level, int64_t limit, uint8_t* scratch, int64_t scratch_room, uint8_t* out,
                      int64_t room, int64_t* looked) except? -1 nogil:
    """Write the payload of a batch to where it belongs in `out`; the size of the batch, or -1."""
    cdef int64_t at = row.position - origin
    cdef int64_t size
    cdef int64_t before
    cdef int own = row.attributes & CODEC
    cdef BatchRow after = row[0]
    cdef const uint8_t* p
    if at < 0 or row.size < 0 or row.size > length - at or (row.magic != 2 and not (own and codec)):
        return -1
    p = base + at
    at = HEADER_V2
    size = row.size - at
    if row.magic != 2:
        at = wrapper_value(p, row.size, row.magic, &size)
    if at < 0 or size < 0:
        return -1
    p += at
    after.attributes = <int>(row.attributes & ~CODEC | codec)
    before = overhead(&after)
    if before > room:
        return -1
    if own and codec:
        size = plain_payload(codecs, own, row.magic > 0, p, size, scratch, scratch_room, limit)
        p = scratch
    elif own:
        size = plain_payload(codecs, own, True, p, size, out + before, room - before, limit)
    elif not codec:
        if size > room - before:
            return -1
        memcpy(out + before, p, size)
    if size < 0:
        return -1
    looked[0] += size
    if codec:
        if packed_bound(size) > room - before:
            return -1
        size = packed_payload(codecs, codec, level, row.magic, p, size, out + before, room - before)
    return -1 if size > INT32_MAX - before else before + size
