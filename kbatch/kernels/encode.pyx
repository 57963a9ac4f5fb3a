"""Columns to payloads and framed batches: the reverse of `decode.pyx`, in two passes.

`sizes.pyx` cuts records into batches and sums up their sizes; `payload` and `write` then fill memory of that size.

Another thread may change the memory that a column points to between the two passes: `source.pyx` checks each position
against its buffer in both, and each record is checked against the space that remains.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT32_MAX, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memmove

from kbatch.kernels.buffers import allocate
from kbatch.kernels.sizes import WriteOutcome
from kbatch.kernels.checksum cimport crc32_legacy
from kbatch.kernels.codecs cimport Codecs, compressed_bound, compress_payload
from kbatch.kernels.sizes cimport (
    BATCH_SIZE,
    CHANGED,
    NONE,
    OUTSIDE,
    Failure,
    bytes_size,
    headers_size,
    read_pairs,
    record_size,
    short_deltas,
)
from kbatch.kernels.source cimport (
    BLOCK,
    HeaderWindow,
    Numbers,
    RecordColumns,
    Content,
    Source,
    has_slack,
    load_32,
    load_64,
    number,
    open_window,
)
from kbatch.kernels.spans cimport Span
from kbatch.kernels.wire cimport (
    CODEC,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_AT,
    MESSAGE_ATTRIBUTES_AT,
    MESSAGE_CRC_AT,
    MESSAGE_TIMESTAMP_AT,
    CRC_START_LEGACY,
    BatchRow,
    header_size,
    kb_prefetch,
    kb_unlikely,
)
from kbatch.kernels.wire_out cimport (
    RECORD_BOUND,
    SLACK,
    message_size,
    overhead,
    put_content,
    put_loosely,
    put_short,
    put_varint,
    store_be32,
    store_be64,
    varint_size,
    write_header,
    zigzag,
)

cdef enum:
    # Bytes compressed between two checks for signals: at the slowest levels that takes a tenth of a second.
    SIGNAL_BYTES = 256 << 10
    AHEAD = 1024  # values are prefetched this many bytes ahead of the copy
    TIMESTAMP_TYPE = 0x08
    # Longer contents are copied by a call of memcpy, which then costs less than the loop.
    SHORT_CONTENT = 256


cdef inline uint8_t* put_bytes(uint8_t* p, Content content) noexcept nogil:
    if content.n < 0:
        p[0] = 1
        return p + 1
    return put_content(put_varint(p, content.n), content.p, content.n)


cdef inline uint8_t* put_bytes_be32(uint8_t* p, Content content) noexcept nogil:
    store_be32(p, content.n)  # -1 if null
    return put_content(p + 4, content.p, content.n) if content.n > 0 else p + 4


cdef inline uint8_t* put_record(uint8_t* p, int64_t time_delta, int64_t offset_delta, Content key, Content value,
                                int64_t headers, int64_t exact) noexcept nogil:
    """Write a record without its headers and their count, which take `headers` bytes.

    With them it takes `exact` bytes. If that is 0, there is enough space for any record: its length, which precedes it,
    is computed after its fields are written, and rarely has another size than estimated from key and value.
    """
    cdef int64_t expected = max(key.n, 0) + max(value.n, 0) + headers
    cdef int64_t before = 1 if expected < 58 else (2 if expected < 8170 else varint_size(expected))
    cdef int64_t size
    cdef uint8_t* body
    if exact:
        before = varint_size(exact - varint_size(exact))
        before = varint_size(exact - before)
    body = p + before
    body[0] = 0  # attributes
    body = put_varint(body + 1, time_delta)
    body = put_varint(body, offset_delta)
    body = put_bytes(body, key)
    body = put_bytes(body, value)
    size = body - (p + before) + headers
    if kb_unlikely(varint_size(size) != before):
        memmove(p + varint_size(size), p + before, size - headers)
        body += varint_size(size) - before
    put_varint(p, size)
    return body


cdef inline void put_message(uint8_t* p, int magic, uint8_t attributes, int64_t offset, int64_t timestamp, Content key,
                             Content value, int64_t size) noexcept nogil:
    """Write a message of `size` bytes without its checksum."""
    store_be64(p, offset)
    store_be32(p + LENGTH_AT, size - LOG_OVERHEAD)
    p[MAGIC_AT] = <uint8_t>magic
    p[MESSAGE_ATTRIBUTES_AT] = attributes
    if magic:
        store_be64(p + MESSAGE_TIMESTAMP_AT, timestamp)
    put_bytes_be32(put_bytes_be32(p + header_size(magic), key), value)


cdef uint8_t* put_headers(uint8_t* p, const uint8_t* end, const Source* source, HeaderWindow* window,
                          int64_t row) noexcept nogil:
    """Write the headers of a record, which `headers_size` just measured; return NULL if they changed since."""
    cdef int64_t count = load_32(source.header_count.items + row * source.header_count.stride)
    cdef int64_t first = load_64(source.header_first.items + row * source.header_first.stride)
    cdef int64_t i
    cdef int64_t slot
    if kb_unlikely(varint_size(count) > end - p):
        return NULL
    p = put_varint(p, count)
    for i in range(count):
        slot = open_window(source, window, first + i)
        if kb_unlikely(slot < 0 or bytes_size(window.keys[slot].n) + bytes_size(window.values[slot].n) > end - p):
            return NULL
        p = put_bytes(put_bytes(p, window.keys[slot]), window.values[slot])
    return p


cdef int64_t write_short(const Content* keys, const Content* values, const uint32_t* times, const uint32_t* offsets,
                         int64_t count, uint8_t** at, const uint8_t* end) noexcept nogil:
    """Write records without headers, up to the first with a long key or value; return the number written.

    This loop takes half the time of the general one. It needs `SLACK` readable bytes after each key and value, and
    stops where fewer than `SLACK` writable bytes would follow a record.
    """
    cdef uint8_t* p = at[0]
    cdef int64_t i = 0
    cdef int64_t key
    cdef int64_t value
    cdef uint64_t size
    while i < count:
        key = max(keys[i].n, 0)
        value = max(values[i].n, 0)
        if kb_unlikely(key > 63 or value > SHORT_CONTENT or 64 + SHORT_CONTENT + RECORD_BOUND + SLACK > end - p):
            break
        # The processor itself prefetches only within a page.
        kb_prefetch(<const void*>(<uintptr_t>values[i].p + AHEAD))
        # Attributes, deltas, the two lengths and the count of headers.
        size = <uint64_t>(key + value + 6 + (times[i] > 127) + (offsets[i] > 127) + (value > 63))
        p = put_short(p, size << 1)
        p[0] = 0
        p = put_short(p + 1, times[i])
        p = put_short(p, offsets[i])
        p[0] = <uint8_t>zigzag(keys[i].n)
        p = put_loosely(p + 1, keys[i].p, key)
        p = put_short(p, zigzag(values[i].n))
        p = put_loosely(p, values[i].p, value)
        p[0] = 0
        p += 1
        i += 1
    at[0] = p
    return i


cdef int write_records(const Source* source, const BatchRow* batch, int64_t row, int64_t stop, uint8_t** at,
                       const uint8_t* end, Failure* failure) noexcept nogil:
    """Write the records of a batch of magic 2 from `row` on to `at`, and move `at` to their end."""
    cdef Content keys[BLOCK]
    cdef Content values[BLOCK]
    cdef HeaderWindow window
    # Local copies whose address is not taken: as far as the compiler knows, the stores could change anything else.
    cdef uint8_t* p = at[0]
    cdef uint8_t* after
    cdef Numbers timestamps = source.timestamps
    cdef Numbers offsets = source.offsets
    cdef uint64_t base_timestamp = <uint64_t>batch.base_timestamp
    cdef uint64_t base_offset = <uint64_t>batch.base_offset
    cdef int64_t count
    cdef int64_t i
    cdef int64_t time_delta
    cdef int64_t offset_delta
    cdef int64_t headers = 1
    cdef int64_t size
    cdef uint32_t times[BLOCK]
    cdef uint32_t deltas[BLOCK]
    cdef bint short
    cdef bint with_headers = source.header_count.items != NULL
    window.start = window.stop = 0
    while row < stop:
        count = min(stop - row, <int64_t>BLOCK)
        if not read_pairs(source, row, count, keys, values, failure):
            return OUTSIDE
        short = not with_headers and has_slack(source.keys, row, count, keys) \
            and has_slack(source.values, row, count, values) \
            and short_deltas(timestamps, row, count, batch.base_timestamp, times) \
            and short_deltas(offsets, row, count, batch.base_offset, deltas)
        i = 0
        while i < count:
            if short:
                after = p
                i += write_short(keys + i, values + i, times + i, deltas + i, count - i, &after, end)
                p = after
                if i == count:
                    break
            # The processor itself prefetches only within a page.
            kb_prefetch(<const void*>(<uintptr_t>values[i].p + AHEAD))
            time_delta = <int64_t>(<uint64_t>number(&timestamps, row + i) - base_timestamp)
            offset_delta = <int64_t>(<uint64_t>number(&offsets, row + i) - base_offset)
            if with_headers:
                headers = headers_size(source, &window, row + i, failure)
                if kb_unlikely(headers < 0):
                    failure.row = row + i
                    return failure.fault
            size = max(keys[i].n, 0) + max(values[i].n, 0) + headers
            if kb_unlikely(size + RECORD_BOUND > end - p):
                # Near the end of the memory, or the columns changed after they were measured.
                size = record_size(True, 2, time_delta, offset_delta, keys[i].n, values[i].n, headers)
                if size > end - p:
                    failure.row = row + i
                    failure.fault = CHANGED
                    return CHANGED
                p = put_record(p, time_delta, offset_delta, keys[i], values[i], headers, size)
            else:
                p = put_record(p, time_delta, offset_delta, keys[i], values[i], headers, 0)
            if headers == 1:
                p[0] = 0
                p += 1
            else:
                p = put_headers(p, end, source, &window, row + i)
                if kb_unlikely(p == NULL):
                    failure.row = row + i
                    failure.fault = CHANGED
                    return CHANGED
            i += 1
        row += count
    at[0] = p
    return NONE


cdef int write_messages(const Source* source, const BatchRow* batch, int64_t row, int64_t stop, uint8_t** at,
                        const uint8_t* end, Failure* failure) noexcept nogil:
    """Write the messages of a message set from `row` on to `at`, and move `at` to their end."""
    cdef Content keys[BLOCK]
    cdef Content values[BLOCK]
    cdef uint8_t* p = at[0]
    cdef int64_t count
    cdef int64_t i
    cdef int64_t size
    # Offsets in a compressed set of magic 1 count from its first (LEG-R27).
    cdef uint64_t base = <uint64_t>batch.base_offset if batch.magic == 1 and batch.attributes & CODEC else 0
    cdef uint8_t attributes = <uint8_t>batch.attributes
    if batch.attributes & CODEC:
        attributes = <uint8_t>(batch.attributes & TIMESTAMP_TYPE) if batch.magic else 0
    while row < stop:
        count = min(stop - row, <int64_t>BLOCK)
        if not read_pairs(source, row, count, keys, values, failure):
            return OUTSIDE
        for i in range(count):
            size = message_size(batch.magic, keys[i].n, values[i].n)
            if kb_unlikely(size > end - p):
                failure.row = row + i
                failure.fault = CHANGED
                return CHANGED
            put_message(p, batch.magic, attributes, <int64_t>(<uint64_t>number(&source.offsets, row + i) - base),
                        number(&source.timestamps, row + i), keys[i], values[i], size)
            store_be32(p + MESSAGE_CRC_AT, crc32_legacy(p + CRC_START_LEGACY, size - CRC_START_LEGACY))
            p += size
        row += count
    at[0] = p
    return NONE


cdef int write_payload(const Source* source, const BatchRow* batch, int64_t row, int64_t stop, uint8_t* p,
                       const uint8_t* end, Failure* failure) noexcept nogil:
    """Write the uncompressed payload of a batch, which must fill the memory exactly."""
    if batch.magic == 2:
        write_records(source, batch, row, stop, &p, end, failure)
    else:
        write_messages(source, batch, row, stop, &p, end, failure)
    if failure.fault == NONE and p != end:
        failure.row = stop - 1
        failure.fault = CHANGED
    return failure.fault


def payload(RecordColumns records not None, batches not None, int64_t i, int64_t skip, out not None):
    """Write the uncompressed payload of batch `i`, without its first `skip` records, to `out`, which has that size.

    The batch's `first_record` is the row of the first record that is not skipped. Returns (row, fault).
    """
    cdef Span batch_span = Span(batches, sizeof(BatchRow), False)
    cdef Span out_span = Span(out, 1, True)
    cdef Failure failure = Failure(fault=NONE, row=0, found=0)
    cdef const BatchRow* batch
    cdef int64_t count
    cdef uint8_t* p = <uint8_t*>out_span.items
    if i < 0 or i >= batch_span.length:
        raise IndexError("rows out of range")
    batch = <const BatchRow*>batch_span.items + i
    count = batch.record_count - skip
    if skip < 0 or count < 0 or batch.first_record < 0 or count > records.count - batch.first_record:
        raise IndexError("rows out of range")
    with nogil:
        write_payload(&records.source, batch, batch.first_record, batch.first_record + count, p,
                      p + out_span.length, &failure)
    return failure.row, failure.fault


def write(RecordColumns records, batches not None, Codecs codecs not None, levels not None, out not None):
    """Write complete batches to `out`, and compress the payloads of those with a codec, at that codec's level.

    On entry the `size` of a batch is its uncompressed size, and `out` has `max_encoded_size` bytes. Sets size, position
    and crc.

    Returns a `WriteOutcome` of bytes.
    """
    cdef Span batch_span = Span(batches, sizeof(BatchRow), True)
    cdef Span out_span = Span(out, 1, True)
    cdef Span scratch
    cdef BatchRow* rows = <BatchRow*>batch_span.items
    cdef BatchRow* row
    cdef int64_t count = batch_span.length
    cdef uint8_t* start = <uint8_t*>out_span.items
    cdef uint8_t* p = start
    cdef const uint8_t* end = p + out_span.length
    cdef uint8_t* uncompressed
    cdef uint8_t* into
    cdef Failure failure = Failure(fault=NONE, row=-1, found=0)
    cdef const Source* source = NULL
    cdef int64_t total = 0 if records is None else records.count
    cdef int64_t largest = 0
    cdef int64_t unchecked = 0
    cdef int64_t before
    cdef int64_t size
    cdef int64_t i
    cdef int[8] level_of
    cdef int codec
    for i in range(8):
        level_of[i] = levels[i] if i < len(levels) else 0
    for i in range(count):
        if is_compressed(rows + i):
            largest = max(largest, rows[i].size - overhead(rows + i))
    scratch = Span(allocate(largest), 1, True)
    uncompressed = <uint8_t*>scratch.items
    if records is not None:
        source = &records.source
    with nogil:
        for i in range(count):
            row = rows + i
            before = overhead(row)
            size = row.size - before
            codec = row.attributes & CODEC if is_compressed(row) else 0
            into = uncompressed if codec else p + before
            if (size < 0 or (compressed_bound(size) if codec else size) > end - p - before
                    or row.first_record < 0 or row.record_count < 0
                    or row.record_count > total - row.first_record or (row.record_count == 0 and size)):
                failure.fault = CHANGED
                break
            if row.record_count and write_payload(source, row, row.first_record, row.first_record + row.record_count,
                                                  into, into + size, &failure):
                break
            if codec:
                unchecked += size
                size = compress_payload(codecs, codec, level_of[codec], row.magic, uncompressed, size, p + before,
                                        end - p - before)
                if size > INT32_MAX - before:
                    failure.fault = BATCH_SIZE
                    failure.row = row.first_record
                    failure.found = before + size
                    break
                row.size = before + size
                if unchecked >= SIGNAL_BYTES:
                    unchecked = 0
                    with gil:
                        PyErr_CheckSignals()
            row.position = p - start
            if before:
                write_header(row, p)
            p += row.size
    return WriteOutcome(p - start, failure.row, failure.fault, failure.found)


cdef inline bint is_compressed(const BatchRow* row) noexcept nogil:
    return row.attributes & CODEC and row.record_count > 0


def max_encoded_size(batches not None):
    """Return the capacity that `write` needs for batches with uncompressed sizes."""
    cdef Span span = Span(batches, sizeof(BatchRow), False)
    cdef const BatchRow* rows = <const BatchRow*>span.items
    cdef int64_t capacity = 0
    cdef int64_t before
    cdef int64_t i
    for i in range(span.length):
        before = overhead(rows + i)
        capacity += before + compressed_bound(rows[i].size - before) if is_compressed(rows + i) else rows[i].size
    return capacity


def write_headers(batches not None, out not None):
    """Write the headers of batches whose payloads are already in `out`; set position and crc."""
    cdef Span batch_span = Span(batches, sizeof(BatchRow), True)
    cdef Span out_span = Span(out, 1, True)
    cdef BatchRow* rows = <BatchRow*>batch_span.items
    cdef uint8_t* p = <uint8_t*>out_span.items
    cdef const uint8_t* end = p + out_span.length
    cdef int64_t before
    cdef int64_t i
    with nogil:
        for i in range(batch_span.length):
            before = overhead(rows + i)
            if rows[i].size < before or rows[i].size > end - p:
                with gil:
                    raise ValueError(f"batch {i} has no payload there")
            rows[i].position = p - <uint8_t*>out_span.items
            if before:
                write_header(rows + i, p)
            p += rows[i].size
    if p != end:
        raise ValueError(f"batches end {end - p} bytes before their memory")
