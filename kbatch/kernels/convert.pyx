"""Records, or plain batches of them, to messages of magic 0 and 1, and messages to batches of magic 2, in one pass.

All take what is ordinary, and say where they meet something else: that is for the general way, which decodes, groups,
measures and writes in passes of their own, and knows what to do about it.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from kbatch.kernels.checksum cimport crc32_each, crc32c_of
from kbatch.kernels.decode cimport CONTROL, Measure, Report, Wanted, measure, read_rows
from kbatch.kernels.put cimport (
    BATCH_HEADER,
    CODEC,
    CRC_START,
    CRC_START_LEGACY,
    LOG_OVERHEAD,
    MESSAGE_V1,
    RECORD_BOUND,
    SLACK,
    message_size,
    put_content,
    put_loosely,
    put_varint,
    store_be32,
    store_be64,
    varint_size,
    write_header,
)
from kbatch.kernels.spans cimport RecordSpan, Span
from kbatch.kernels.wire cimport BatchRow, RecordRow, header_size, kb_prefetch_far, kb_unlikely, load_be32

cdef enum:
    LOG_APPEND_TIME = 0x08
    # Messages are summed up so many at a time: reading what was stored just before, in pieces of another size, stalls.
    BLOCK = 32
    # From here on a call of memcpy is worth its price.
    SHORT_CONTENT = 256
    # What a record takes in a batch of magic 2 beside its key and value, about.
    RECORD_OVERHEAD = 16
    # So large a record or batch is for the general way, which looks at the limits of the format.
    LARGE = 1 << 30

# What a run of records has lost, and the last of their offsets.
cdef struct Flat:
    int64_t with_headers
    int64_t with_times
    int64_t last_offset


cdef inline uint8_t* put(uint8_t* p, const uint8_t* content, int64_t n, bint loosely) noexcept nogil:
    if loosely and n <= SHORT_CONTENT:
        return put_loosely(p, content, n)
    return put_content(p, content, n)


cdef int64_t write_flat(const uint8_t* data, int64_t limit, const RecordRow* rows, int64_t count,
                        const BatchRow* batches, int64_t batch_count, int magic, uint8_t* out, int64_t room,
                        int64_t ahead, Flat* flat) noexcept nogil:
    """Each record a message; the bytes written, or -1 if something isn't ordinary. Of the data what is `ahead` of a
    value is asked for.
    """
    # Of what is summed: a message from its magic on.
    cdef const uint8_t* starts[BLOCK]
    cdef int64_t sizes[BLOCK]
    cdef uint32_t sums[BLOCK]
    cdef uint8_t* p = out
    cdef uint8_t* at
    cdef const uint8_t* end = out + room
    cdef const RecordRow* row
    cdef int64_t done = 0
    cdef int64_t last = flat.last_offset
    cdef int64_t with_headers = 0
    cdef int64_t with_times = 0
    cdef int64_t n
    cdef int64_t i
    cdef int64_t key
    cdef int64_t value
    cdef int64_t key_at
    cdef int64_t value_at
    cdef int64_t size
    cdef int32_t batch = -1
    cdef uint8_t attributes = 0
    cdef bint loosely
    while done < count:
        n = min(count - done, <int64_t>BLOCK)
        for i in range(n):
            row = rows + done + i
            key = max(row.key_len, 0)
            value = max(row.value_len, 0)
            size = message_size(magic, key, value)
            if kb_unlikely(row.offset <= last or size > end - p or size > LARGE):
                return -1
            # Where there are no bytes, their position says nothing.
            key_at = row.key_pos if key else 0
            value_at = row.value_pos if value else 0
            if kb_unlikely(key_at < 0 or key_at > limit - key or value_at < 0 or value_at > limit - value):
                return -1
            if kb_unlikely(row.batch != batch or batch < 0):
                batch = row.batch
                if batch < 0 or batch >= batch_count:
                    return -1
                # Only magic 1 knows timestamp types.
                attributes = <uint8_t>(batches[batch].attributes & LOG_APPEND_TIME) \
                    if magic and batches[batch].magic else 0
            last = row.offset
            with_headers += row.header_count > 0
            with_times += row.timestamp != -1
            store_be64(p, row.offset)
            store_be32(p + 8, size - LOG_OVERHEAD)
            p[16] = <uint8_t>magic
            p[17] = attributes
            at = p + 18
            if magic:
                store_be64(at, row.timestamp)
                at += 8
            loosely = size + SLACK <= end - p and limit - value_at >= value + SLACK and limit - key_at >= key + SLACK
            store_be32(at, key if row.key_len >= 0 else -1)
            at = put(at + 4, data + key_at, key, loosely)
            store_be32(at, value if row.value_len >= 0 else -1)
            put(at + 4, data + value_at, value, loosely)
            kb_prefetch_far(data + value_at + ahead)
            if value > 64:
                kb_prefetch_far(data + value_at + ahead + 64)
            starts[i] = p + CRC_START_LEGACY
            sizes[i] = size - CRC_START_LEGACY
            p += size
        crc32_each(starts, sizes, n, sums)
        for i in range(n):
            store_be32(<uint8_t*>starts[i] - 4, sums[i])
        done += n
    flat.with_headers = with_headers
    flat.with_times = with_times
    flat.last_offset = last
    return p - out


def flatten(data not None, records not None, batches not None, int magic, int64_t after, out not None):
    """Write records to `out`, each as a message that stands alone.

    `records` are rows of RECORD_DTYPE that point into `data`; their batches tell the timestamp type. Offsets have to
    rise, from above `after`, and not be negative.

    Returns (used, with_headers, with_times, last_offset): the bytes written, the records that have headers, those that
    have a timestamp, and the last offset; `used` is -1 where a record can't be written so, or `out` is too small.
    """
    cdef Span data_span = Span(data, 1, False)
    cdef Span row_span = Span(records, sizeof(RecordRow), False)
    cdef Span batch_span = Span(batches, sizeof(BatchRow), False)
    cdef Span out_span = Span(out, 1, True)
    cdef Flat flat = Flat(with_headers=0, with_times=0, last_offset=max(after, -1))
    cdef int64_t used
    if magic not in (0, 1):
        raise ValueError(f"messages are of magic 0 or 1, got {magic}")
    with nogil:
        used = write_flat(<const uint8_t*>data_span.items, data_span.length, <const RecordRow*>row_span.items,
                          row_span.length, <const BatchRow*>batch_span.items, batch_span.length, magic,
                          <uint8_t*>out_span.items, out_span.length, 0, &flat)
    return used, flat.with_headers, flat.with_times, flat.last_offset


cdef int64_t write_lowered(const uint8_t* data, int64_t limit, const BatchRow* batches, int64_t count, int64_t origin,
                           int magic, bint drops, bint check_crc, int64_t max_crc, RecordSpan rows, uint8_t* out,
                           int64_t room, int64_t* used, int64_t* records, Flat* flat) noexcept nogil:
    """Each record of plain batches of magic 2 a message; how many batches are done."""
    cdef const RecordRow* scratch = <const RecordRow*>rows.items
    cdef const BatchRow* batch
    cdef Measure measured
    cdef Report report
    cdef Wanted wanted
    cdef Flat found
    cdef int64_t at
    cdef int64_t size
    cdef int64_t written
    cdef int64_t i
    wanted.fields = rows.fields
    wanted.whole = True
    wanted.check_crc = wanted.trimmed = False
    for i in range(count):
        batch = batches + i
        at = batch.position - origin
        if (batch.magic != 2 or batch.attributes & (CODEC | CONTROL) or batch.record_count <= 0
                or at < 0 or batch.size < BATCH_HEADER or batch.size > limit or at > limit - batch.size):
            return i
        if check_crc and (batch.size > max_crc
                          or crc32c_of(data + at + CRC_START, batch.size - CRC_START) != batch.crc):
            return i
        at += BATCH_HEADER
        size = batch.size - BATCH_HEADER
        if (not measure(data + at, size, batch, False, &measured, &report) or measured.count > rows.length
                or measured.count * MESSAGE_V1 + size > room - used[0]):
            return i
        # The row of a batch of magic 2 is only read.
        if read_rows(data, at, size, <BatchRow*>batch, 0, rows.items, &measured, &wanted, &report) != measured.count:
            return i
        found.last_offset = flat.last_offset
        written = write_flat(data, limit, scratch, measured.count, batch, 1, magic, out + used[0], room - used[0],
                             batch.size, &found)
        if written < 0 or (not drops and (found.with_headers or (found.with_times and not magic))):
            return i
        used[0] += written
        records[0] += measured.count
        flat.with_headers += found.with_headers
        flat.with_times += found.with_times
        flat.last_offset = found.last_offset
    return count


def lower(data not None, batches not None, int64_t origin, int magic, int64_t after, rows not None, out not None,
          bint drops, bint check_crc, int64_t max_crc):
    """Write the records of plain batches of magic 2 to `out`, each as a message that stands alone.

    `origin` is the position of ``data[0]`` in the source. `rows`, of RECORD_DTYPE, is room for the records of any batch
    there is, and written to. Offsets have to rise, from above `after`, and not be negative. Unless `drops`, no record
    may have anything that would be lost. If `check_crc`, checksums are looked at, of batches of up to `max_crc` bytes.

    Returns (done, used, records, with_headers, with_times, last_offset): how many batches are done, before the first
    that isn't ordinary, is damaged, or for which `out` or `rows` may be too small; then as `flatten`.
    """
    cdef Span data_span = Span(data, 1, False)
    cdef Span batch_span = Span(batches, sizeof(BatchRow), False)
    cdef RecordSpan row_span = RecordSpan(rows, True)
    cdef Span out_span = Span(out, 1, True)
    cdef Flat flat = Flat(with_headers=0, with_times=0, last_offset=max(after, -1))
    cdef int64_t used = 0
    cdef int64_t records = 0
    cdef int64_t done
    if magic not in (0, 1):
        raise ValueError(f"messages are of magic 0 or 1, got {magic}")
    if not row_span.whole or row_span.stride != sizeof(RecordRow):
        raise ValueError("rows must be contiguous, of RECORD_DTYPE")
    with nogil:
        done = write_lowered(<const uint8_t*>data_span.items, data_span.length, <const BatchRow*>batch_span.items,
                             batch_span.length, origin, magic, drops, check_crc, max_crc, row_span,
                             <uint8_t*>out_span.items, out_span.length, &used, &records, &flat)
    return done, used, records, flat.with_headers, flat.with_times, flat.last_offset


cdef inline bint goes_on(const BatchRow* batch, const BatchRow* first, const BatchRow* message, int64_t estimate,
                         int64_t batch_size) noexcept nogil:
    """Whether a message may go to the batch that `first` began: one batch has one timestamp type and append time."""
    if message.magic != first.magic or estimate > batch_size or message.last_offset - batch.base_offset > INT32_MAX:
        return False
    if message.magic == 0:
        return True
    if (message.attributes ^ first.attributes) & LOG_APPEND_TIME:
        return False
    return message.attributes & LOG_APPEND_TIME == 0 or message.max_timestamp == first.max_timestamp


cdef inline void close_batch(BatchRow* batch, int64_t last_offset, int64_t max_timestamp, int64_t count, uint8_t* out,
                             const uint8_t* end, int64_t max_crc) noexcept nogil:
    """Complete a batch, which reaches to `end`, and write its header."""
    batch.last_offset = last_offset
    batch.last_offset_delta = <int32_t>(last_offset - batch.base_offset)
    batch.max_timestamp = max_timestamp
    batch.record_count = <int32_t>count
    batch.size = end - (out + batch.position)
    write_header(batch, out + batch.position, max_crc)


cdef int64_t write_merged(const uint8_t* data, int64_t limit, const BatchRow* messages, int64_t count, int64_t origin,
                          int64_t batch_size, uint8_t* out, int64_t room, BatchRow* made, int64_t made_room,
                          int64_t max_crc, int64_t* made_count) noexcept nogil:
    """Each message a record; the bytes written, or -1 if something isn't ordinary."""
    cdef uint8_t* p = out
    cdef const uint8_t* end = out + room
    cdef BatchRow* batch = NULL
    cdef const BatchRow* first = NULL
    cdef const BatchRow* message
    cdef const uint8_t* keys
    cdef const uint8_t* values
    cdef int64_t estimate = 0
    cdef int64_t last = -1
    cdef int64_t latest = 0
    cdef int64_t begun = 0
    cdef int64_t used = 0
    cdef int64_t i
    cdef int64_t at
    cdef int64_t left
    cdef int64_t key
    cdef int64_t value
    cdef int64_t key_length
    cdef int64_t value_length
    cdef int64_t time_delta
    cdef int64_t offset_delta
    cdef int64_t size
    cdef bint loosely
    for i in range(count):
        message = messages + i
        if kb_unlikely(not 0 <= message.magic <= 1 or message.attributes & CODEC or message.last_offset <= last):
            return -1
        at = message.position - origin
        left = message.size - header_size(message.magic) - 8
        if kb_unlikely(at < 0 or left < 0 or message.size > limit or at > limit - message.size
                       or message.size > LARGE):
            return -1
        # Any negative length is null, and no bytes follow it; what follows the value is ignored (LEG-R6, LEG-R8).
        keys = data + at + header_size(message.magic)
        key_length = <int32_t>load_be32(keys)
        keys += 4
        key = max(key_length, 0)
        if kb_unlikely(key > left):
            return -1
        values = keys + key
        value_length = <int32_t>load_be32(values)
        values += 4
        value = max(value_length, 0)
        if kb_unlikely(value > left - key):
            return -1
        estimate += key + value + RECORD_OVERHEAD
        if kb_unlikely(batch == NULL or not goes_on(batch, first, message, estimate, batch_size)):
            if batch != NULL:
                close_batch(batch, last, latest, i - begun, out, p, max_crc)
            if used == made_room or BATCH_HEADER > end - p:
                return -1
            batch = made + used
            used += 1
            first = message
            begun = i
            estimate = key + value + RECORD_OVERHEAD
            latest = message.max_timestamp
            memset(batch, 0, sizeof(BatchRow))
            batch.magic = 2
            batch.attributes = message.attributes & LOG_APPEND_TIME if message.magic else 0
            batch.base_offset = message.last_offset
            batch.base_timestamp = message.max_timestamp
            batch.first_record = i
            batch.partition_leader_epoch = batch.base_sequence = -1
            batch.producer_id = batch.producer_epoch = -1
            batch.position = p - out
            p += BATCH_HEADER
        last = message.last_offset
        latest = max(latest, message.max_timestamp)
        time_delta = <int64_t>(<uint64_t>message.max_timestamp - <uint64_t>batch.base_timestamp)
        offset_delta = last - batch.base_offset
        # Attributes, and the count of headers.
        size = 2 + varint_size(time_delta) + varint_size(offset_delta) + key + value \
            + (varint_size(key) if key_length >= 0 else 1) + (varint_size(value) if value_length >= 0 else 1)
        if kb_unlikely(size + 5 > end - p or p - out > LARGE):
            return -1
        loosely = size + RECORD_BOUND + SLACK <= end - p and data + limit - values >= value + SLACK
        p = put_varint(p, size)
        p[0] = 0
        p = put_varint(put_varint(p + 1, time_delta), offset_delta)
        p = put(put_varint(p, key if key_length >= 0 else -1), keys, key, loosely)
        p = put(put_varint(p, value if value_length >= 0 else -1), values, value, loosely)
        p[0] = 0
        p += 1
    if batch != NULL:
        close_batch(batch, last, latest, count - begun, out, p, max_crc)
    made_count[0] = used
    return p - out


def merge(data not None, messages not None, int64_t origin, int64_t batch_size, out not None, made not None,
          int64_t max_crc):
    """Write messages that stand alone to `out`, put together to batches of magic 2.

    `messages` are rows of BATCH_DTYPE, and `origin` is the position of ``data[0]`` in the source. A batch has messages
    of one magic, timestamp type and append time, about `batch_size` bytes of them at most, or a single one. Offsets
    have to rise, and not be negative. Rows of the batches go to `made`. Those of more than `max_crc` bytes get no
    checksum.

    Returns (used, count): the bytes written and the number of batches; `used` is -1 where a message can't be written
    so, or there is too little room.
    """
    cdef Span data_span = Span(data, 1, False)
    cdef Span message_span = Span(messages, sizeof(BatchRow), False)
    cdef Span out_span = Span(out, 1, True)
    cdef Span made_span = Span(made, sizeof(BatchRow), True)
    cdef int64_t count = 0
    cdef int64_t used
    with nogil:
        used = write_merged(<const uint8_t*>data_span.items, data_span.length, <const BatchRow*>message_span.items,
                            message_span.length, origin, batch_size, <uint8_t*>out_span.items, out_span.length,
                            <BatchRow*>made_span.items, made_span.length, max_crc, &count)
    return used, count
