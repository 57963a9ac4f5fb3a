"""Parsing messages of magic 0 and 1 to record rows.

An uncompressed message is a record. A compressed one is a wrapper: its value is a set of uncompressed messages, each
with its offset, length and the layout of `kbatch.format`.

All functions are inline: the compiler of each kernel that uses them, `decode` and `small_batches`, sees all of a
record's code.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint64_t

from kbatch.kernels.checksum cimport crc32_legacy
from kbatch.kernels.rows cimport PartialRow, PayloadState, next_row, put_int32, put_int64, row_t, whole_fields
from kbatch.kernels.spans cimport Fields
from kbatch.kernels.wire cimport (
    BatchRow,
    CODEC,
    FAULT_INNER_COMPRESSED,
    FAULT_INNER_CUT,
    FAULT_INNER_LENGTH,
    FAULT_INNER_MAGIC,
    FAULT_KEY_LENGTH,
    FAULT_NONE,
    FAULT_VALUE_LENGTH,
    FAULT_WRAPPER_EMPTY,
    FAULT_WRAPPER_OFFSET,
    FaultReport,
    LENGTH_AT,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_AT,
    MESSAGE_ATTRIBUTES_AT,
    MESSAGE_CRC_AT,
    CRC_START_LEGACY,
    MESSAGE_TIMESTAMP_AT,
    MIN_LENGTH_V0,
    fault_at,
    header_size,
    kb_unlikely,
    load_be32,
    load_be64,
    minimum_length,
)


cdef inline int read_key_value(const uint8_t* p, const uint8_t* end, const uint8_t* base, row_t* row,
                               const Fields* fields, FaultReport* report) noexcept nogil:
    """Read key and value of a message that ends at `end`, eight bytes later at least. Bytes after them are ignored
    (LEG-R8).
    """
    # Any negative length is null, and no bytes follow it (LEG-R6).
    cdef int32_t length = <int32_t>load_be32(p)
    p += 4
    put_int64(row, fields.key_pos, p - base)
    put_int32(row, fields.key_len, length if length >= 0 else -1)
    if length >= 0:
        if kb_unlikely(length > end - p - 4):
            return fault_at(report, FAULT_KEY_LENGTH, p, end - p - 4, length)
        p += length
    length = <int32_t>load_be32(p)
    p += 4
    put_int64(row, fields.value_pos, p - base)
    put_int32(row, fields.value_len, length if length >= 0 else -1)
    if length >= 0:
        if kb_unlikely(length > end - p):
            return fault_at(report, FAULT_VALUE_LENGTH, p, end - p, length)
        p += length
    put_int64(row, fields.headers_pos, p - base)
    put_int32(row, fields.header_count, 0)
    return FAULT_NONE


cdef inline int check_message(const uint8_t* p, int64_t left, FaultReport* report) noexcept nogil:
    """Check the first `left` bytes of a message in a wrapper, 12 or more, except its checksum, key and value."""
    cdef int32_t length = <int32_t>load_be32(p + LENGTH_AT)
    if length < MIN_LENGTH_V0:
        return fault_at(report, FAULT_INNER_LENGTH, p, MIN_LENGTH_V0, length)
    if length > left - LOG_OVERHEAD:
        return fault_at(report, FAULT_INNER_CUT, p, LOG_OVERHEAD + <int64_t>length, left)
    if p[MAGIC_AT] > 1:
        return fault_at(report, FAULT_INNER_MAGIC, p, 1, p[MAGIC_AT])
    if length < minimum_length(p[MAGIC_AT]):
        return fault_at(report, FAULT_INNER_LENGTH, p, minimum_length(p[MAGIC_AT]), length)
    if p[MESSAGE_ATTRIBUTES_AT] & CODEC:
        return fault_at(report, FAULT_INNER_COMPRESSED, p, 0, p[MESSAGE_ATTRIBUTES_AT] & CODEC)
    return FAULT_NONE


cdef inline int64_t check_messages(const uint8_t* start, int64_t size, const BatchRow* wrapper, bint check_crc,
                                   bint* bad_crc, int64_t* last_inner, FaultReport* report) noexcept nogil:
    """Check the messages in a wrapper, except their keys and values; return their number, or -1 at a fault.

    Sets `last_inner` to the stored offset of the last one, and `bad_crc` if a checksum does not hold.
    """
    cdef const uint8_t* p = start
    cdef const uint8_t* end = start + size
    cdef int64_t count = 0
    cdef int32_t length
    # A rest too short for an offset and a length is ignored. Any other rest that is not a complete message is a fault:
    # it would shift the offsets of all others, which Kafka's reader silently accepts (LEG-R14).
    while end - p >= LOG_OVERHEAD:
        report.record = count
        if check_message(p, end - p, report):
            return -1
        length = <int32_t>load_be32(p + LENGTH_AT)
        if check_crc and (crc32_legacy(p + CRC_START_LEGACY, length - (CRC_START_LEGACY - LOG_OVERHEAD))
                          != load_be32(p + MESSAGE_CRC_AT)):
            bad_crc[0] = True
        last_inner[0] = <int64_t>load_be64(p)
        count += 1
        p += LOG_OVERHEAD + <int64_t>length
    report.record = -1
    if count == 0:
        fault_at(report, FAULT_WRAPPER_EMPTY, start, 1, 0)
        return -1
    # A v1 wrapper of offset 0 comes from producers that leave all offsets to the broker (LEG-R12).
    if wrapper.magic == 1 and wrapper.last_offset != 0 and wrapper.last_offset < last_inner[0]:
        fault_at(report, FAULT_WRAPPER_OFFSET, start, wrapper.last_offset, last_inner[0])
        return -1
    return count


cdef inline int read_messages(const uint8_t* base, int64_t position, BatchRow* wrapper, int32_t index, char* rows,
                              const Fields* fields, PayloadState* state, FaultReport* report) noexcept nogil:
    """Read the messages from `state.first` to `state.stop` of a wrapper that `check_messages` has accepted.

    After the last message, completes the wrapper's row. At a fault the record rows are undefined.
    """
    cdef const uint8_t* start = base + position
    cdef const uint8_t* p = start + state.done_at
    cdef const uint8_t* end
    cdef bint append_time = (wrapper.attributes & LOG_APPEND_TIME) != 0
    # Magic 1 stores offsets relative to the first one of the set, and the wrapper has the last one (LEG-R10, LEG-R11).
    cdef uint64_t first = 0
    if wrapper.magic == 1 and wrapper.last_offset != 0:
        first = <uint64_t>wrapper.last_offset - <uint64_t>state.last_inner
    cdef PartialRow* row = <PartialRow*>rows
    cdef int64_t i
    cdef int64_t timestamp
    cdef int8_t magic
    for i in range(state.first, state.stop):
        magic = <int8_t>p[MAGIC_AT]
        end = p + LOG_OVERHEAD + <int64_t><int32_t>load_be32(p + LENGTH_AT)
        # The message's own magic decides which fields it has, the wrapper's magic what they mean (LEG-R15, LEG-R16).
        timestamp = -1
        if magic == 1:
            timestamp = wrapper.max_timestamp if append_time else <int64_t>load_be64(p + MESSAGE_TIMESTAMP_AT)
        put_int64(row, fields.offset, <int64_t>(first + load_be64(p)))
        put_int64(row, fields.timestamp, timestamp)
        put_int32(row, fields.batch, index)
        if read_key_value(p + header_size(magic), end, base, row, fields, report):
            report.record = i
            report.at -= <int64_t>start
            return report.fault
        row = next_row(row, fields)
        p = end
    if kb_unlikely(state.stop < state.count):
        state.done = state.stop
        state.done_at = p - start
        return FAULT_NONE
    wrapper.record_count = <int32_t>state.count
    wrapper.base_offset = <int64_t>(first + load_be64(start))
    # No broker writes offsets that are further apart than an int32; `last_offset` is right also for such.
    wrapper.last_offset_delta = <int32_t>(<uint64_t>wrapper.last_offset - <uint64_t>wrapper.base_offset)
    return FAULT_NONE


cdef inline int read_message(const uint8_t* base, int64_t position, int64_t size, const BatchRow* batch, int32_t index,
                             PartialRow* row, const Fields* fields, FaultReport* report) noexcept nogil:
    """Read the record of an uncompressed message whose payload is at `position`."""
    put_int64(row, fields.offset, batch.last_offset)
    put_int64(row, fields.timestamp, batch.max_timestamp)
    put_int32(row, fields.batch, index)
    if read_key_value(base + position, base + position + size, base, row, fields, report):
        report.record = 0
        report.at -= <int64_t>(base + position)
        return report.fault
    return FAULT_NONE


cdef inline int64_t read_message_run(const uint8_t* base, BatchRow* batches, int64_t count, int64_t origin,
                                     int32_t index, int64_t first, row_t* row,
                                     const Fields* row_fields) noexcept nogil:
    """Read `count` uncompressed messages, each a batch; return the number before the first fault.

    The first batch has number `index`, and its record number `first`.
    """
    cdef const Fields* fields = row_fields
    cdef Fields whole
    if row_t is not PartialRow:
        whole = whole_fields()
        fields = &whole
    cdef BatchRow* batch
    cdef const uint8_t* p
    cdef FaultReport report
    cdef int64_t i
    for i in range(count):
        batch = batches + i
        p = base + (batch.position - origin)
        put_int64(row, fields.offset, batch.last_offset)
        put_int64(row, fields.timestamp, batch.max_timestamp)
        put_int32(row, fields.batch, index + i)
        if kb_unlikely(read_key_value(p + header_size(batch.magic), p + batch.size, base, row, fields, &report)):
            return i
        batch.first_record = first + i
        row = next_row(row, fields)
    return count


cdef inline int64_t wrapper_value(const uint8_t* p, int64_t size, int8_t magic, int64_t* value_size) noexcept nogil:
    """Return the position of the value in the wrapper at `p`, or -1 if it has none; set `value_size` to its length.

    `magic` comes from the wrapper's row, and `size` suffices for it; the byte in the data may have changed since.
    """
    cdef int64_t at = header_size(magic)
    cdef int64_t length = <int32_t>load_be32(p + at)
    at += 4
    if length > size - at - 4:
        return -1
    if length > 0:
        at += length
    length = <int32_t>load_be32(p + at)
    at += 4
    if length < 0 or length > size - at:
        return -1
    value_size[0] = length
    return at
