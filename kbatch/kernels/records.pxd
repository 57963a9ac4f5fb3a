"""Parsing the payload of a batch of magic 2 to record rows.

Record:  length varint | attributes i8 | timestampDelta varlong | offsetDelta varint | keyLength varint, key |
         valueLength varint, value | headerCount varint | header ...
Header:  keyLength varint, key | valueLength varint, value

All varints are zig-zag. Attributes is one byte, never a varint (REC-R5).

All functions are inline: the compiler of each kernel that uses them, `decode` and `small_batches`, sees all of a
record's code.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kbatch.kernels.rows cimport (
    PartialRow,
    PayloadState,
    StreamedRow,
    next_row,
    put_int32,
    put_int64,
    row_t,
    whole_fields,
)
from kbatch.kernels.spans cimport Fields
from kbatch.kernels.tuning cimport NEXT_BATCH_MAX, PAYLOAD_AHEAD, ROWS_AHEAD
from kbatch.kernels.wire cimport (
    BATCH_HEADER_SIZE,
    BatchRow,
    CODEC,
    FAULT_HEADER_COUNT,
    FAULT_HEADER_KEY_LENGTH,
    FAULT_HEADER_VALUE_LENGTH,
    FAULT_KEY_LENGTH,
    FAULT_NONE,
    FAULT_RECORD_CUT,
    FAULT_RECORD_LENGTH,
    FAULT_RECORD_SIZE,
    FAULT_TRAILING_BYTES,
    FAULT_VALUE_LENGTH,
    FAULT_VARINT_CUT,
    FAULT_VARINT_TOO_LONG,
    FaultReport,
    LOG_APPEND_TIME,
    MAX_VARINT,
    MAX_VARLONG,
    RecordRow,
    fault_at,
    kb_likely,
    kb_prefetch,
    kb_unlikely,
    load_le64,
)

cdef enum:
    # Bytes after the start of a record that `read_ordinary` may read without a check: up to the key a record takes
    # twelve, a key with a length of one byte takes 63, and the value's length follows.
    RECORD_SLACK = 96


# The part of a batch's header that its records depend on.
cdef struct RecordContext:
    int64_t base_offset
    int64_t timestamp
    uint64_t delta_mask
    # The fields `header_count`, here 0, and `batch`, which are adjacent in a row.
    int32_t no_headers[2]
    # The distance in bytes from a record to the bytes that are prefetched.
    int64_t ahead


cdef inline void set_context(RecordContext* context, const BatchRow* batch, int32_t index) noexcept nogil:
    cdef bint append_time = (batch.attributes & LOG_APPEND_TIME) != 0
    context.base_offset = batch.base_offset
    context.timestamp = batch.max_timestamp if append_time else batch.base_timestamp
    context.delta_mask = 0 if append_time else <uint64_t>-1
    context.no_headers[0] = 0
    context.no_headers[1] = index


# A number and the position after it, which is NULL where the number is incomplete. Returned in two registers: a cursor
# passed by its address would live in memory, which took 11.6 instead of 8.7 ns for a record of 40 bytes.
cdef struct Varint:
    const uint8_t* next
    int64_t value


cdef inline int64_t unzigzag(uint64_t raw) noexcept nogil:
    return <int64_t>((raw >> 1) ^ (0 - (raw & 1)))


cdef inline Varint varint_tail(const uint8_t* p, const uint8_t* end, bint wide) noexcept nogil:
    """Read a varint of up to 5 bytes, or if `wide` a varlong of up to 10, of any length.

    Bits beyond 32 or 64 are dropped, as Kafka does (VAR-R2).
    """
    cdef Varint result
    cdef uint64_t raw = 0
    cdef int shift = 0
    cdef int bits = 7 * (MAX_VARLONG if wide else MAX_VARINT)
    result.next = NULL
    result.value = 0
    while p < end and shift < bits:
        raw |= <uint64_t>(p[0] & 0x7F) << shift
        if p[0] < 0x80:
            result.next = p + 1
            result.value = unzigzag(raw) if wide else <int32_t>unzigzag(<uint32_t>raw)
            break
        p += 1
        shift += 7
    return result


cdef inline Varint read_number(const uint8_t* p, const uint8_t* end, bint wide) noexcept nogil:
    """Read a varint or varlong, with a fast path for one and two bytes, which nearly all are."""
    cdef Varint result
    if kb_likely(end - p >= 2):
        if kb_likely(p[0] < 0x80):
            result.value = unzigzag(p[0])
            result.next = p + 1
            return result
        if kb_likely(p[1] < 0x80):
            result.value = unzigzag((p[0] & 0x7F) | (<uint64_t>p[1] << 7))
            result.next = p + 2
            return result
    return varint_tail(p, end, wide)


cdef inline Varint read_varint(const uint8_t* p, const uint8_t* end) noexcept nogil:
    return read_number(p, end, False)


cdef inline Varint read_varlong(const uint8_t* p, const uint8_t* end) noexcept nogil:
    return read_number(p, end, True)


cdef inline int varint_fault(FaultReport* report, const uint8_t* p, const uint8_t* end,
                             int64_t max_bytes) noexcept nogil:
    """Report why no number could be read at `p`: it is longer than `max_bytes`, or reaches beyond the end."""
    return fault_at(report, FAULT_VARINT_TOO_LONG if end - p >= max_bytes else FAULT_VARINT_CUT, p, max_bytes, 0)


# -- headers


cdef inline const uint8_t* check_header(const uint8_t* p, const uint8_t* end, FaultReport* report) noexcept nogil:
    """Return the end of the header at `p`, or NULL at a fault (HDR-R2, HDR-R6)."""
    cdef Varint length = read_varint(p, end)
    if length.next == NULL:
        varint_fault(report, p, end, MAX_VARINT)
        return NULL
    p = length.next
    if length.value < 0 or length.value > end - p:
        fault_at(report, FAULT_HEADER_KEY_LENGTH, p, end - p, length.value)
        return NULL
    p += length.value
    length = read_varint(p, end)
    if length.next == NULL:
        varint_fault(report, p, end, MAX_VARINT)
        return NULL
    p = length.next
    if length.value > 0:
        if length.value > end - p:
            fault_at(report, FAULT_HEADER_VALUE_LENGTH, p, end - p, length.value)
            return NULL
        p += length.value
    return p


cdef inline const uint8_t* check_headers(const uint8_t* p, const uint8_t* end, int64_t count,
                                         FaultReport* report) noexcept nogil:
    """Check the headers of a record, whose rows are made later. Return the position after them, or NULL at a fault."""
    cdef int64_t _i
    cdef int64_t left
    cdef uint32_t key
    cdef uint32_t value
    for _i in range(count):
        # Nearly all lengths take one byte; an odd one is negative.
        left = end - p - 2
        if kb_likely(left >= 0):
            key = p[0]
            if kb_likely(not key & 0x81 and key >> 1 <= left):
                left -= key >> 1
                value = p[1 + (key >> 1)]
                if kb_likely(not value & 0x81 and value >> 1 <= left):
                    p += 2 + (key >> 1) + (value >> 1)
                    continue
        p = check_header(p, end, report)
        if kb_unlikely(p == NULL):
            return NULL
    return p


# -- ordinary records


cdef inline bint ordinary_deltas(const uint8_t* base, int64_t* position, uint64_t* timestamp,
                                 uint64_t* offset) noexcept nogil:
    """Read the deltas of timestamp and offset; return whether both are short, and the latter not negative."""
    cdef int64_t at = position[0]
    # Two numbers of two bytes, or of three, that are not negative are read as one, which saves 20 instructions.
    cdef uint64_t pair = load_le64(base + at)
    cdef uint64_t number
    if kb_likely(pair & <uint64_t>0x80818081 == 0x00800080):
        pair = (pair & <uint64_t>0xFFFFFFFF) >> 1
        pair = (pair & 0x003F003F) | (pair >> 1 & 0x1FC01FC0)
        timestamp[0] = pair & 0xFFFF
        offset[0] = pair >> 16
        position[0] = at + 4
        return True
    # Two numbers of one byte: batches of few records have no others. Saves 17 of 83 instructions per record.
    if pair & 0x8181 == 0:
        timestamp[0] = pair >> 1 & 0x3F
        offset[0] = pair >> 9 & 0x3F
        position[0] = at + 2
        return True
    if pair & <uint64_t>0x808081808081 == <uint64_t>0x008080008080:
        pair >>= 1
        pair = (pair & 0x3F00003F) | (pair >> 1 & <uint64_t>0x1FC0001FC0) | (pair >> 2 & <uint64_t>0xFE0000FE000)
        timestamp[0] = pair & 0xFFFFFF
        offset[0] = pair >> 24
        position[0] = at + 6
        return True
    number = base[at]
    if number < 0x80:
        at += 1
    elif kb_likely(base[at + 1] < 0x80):
        number = (number & 0x7F) | <uint64_t>base[at + 1] << 7
        at += 2
    elif kb_likely(base[at + 2] < 0x80):
        number = (number & 0x7F) | <uint64_t>(base[at + 1] & 0x7F) << 7 | <uint64_t>base[at + 2] << 14
        at += 3
    elif kb_likely(base[at + 3] < 0x80):
        # More than a quarter of an hour after the batch's first record.
        number = (pair & 0x7F) | (pair >> 1 & 0x3F80) | (pair >> 2 & 0x1FC000) | (pair >> 3 & 0xFE00000)
        at += 4
    else:
        return False
    timestamp[0] = <uint64_t>unzigzag(number)
    number = base[at]
    if kb_unlikely(number & 1):
        return False
    if number < 0x80:
        number >>= 1
        at += 1
    elif kb_likely(base[at + 1] < 0x80):
        number = (number & 0x7F) >> 1 | <uint64_t>base[at + 1] << 6
        at += 2
    elif kb_likely(base[at + 2] < 0x80):
        number = (number & 0x7F) >> 1 | <uint64_t>(base[at + 1] & 0x7F) << 6 | <uint64_t>base[at + 2] << 13
        at += 3
    else:
        return False
    offset[0] = number
    position[0] = at
    return True


cdef inline bint ordinary_headers(const uint8_t* base, int64_t at, int64_t end, row_t* row, const Fields* fields,
                                  int32_t index, FaultReport* report) noexcept nogil:
    """Read the header count at `at`; return whether it and the headers fill the record."""
    cdef uint32_t length
    if kb_unlikely(at + 1 >= end):
        return False
    length = base[at]
    at += 1
    # A header takes two bytes at least (HDR-R1).
    if kb_unlikely(length & 0x81 or length > end - at):
        return False
    put_int64(row, fields.headers_pos, at)
    put_int32(row, fields.header_count, length >> 1)
    put_int32(row, fields.batch, index)
    return check_headers(base + at, base + end, length >> 1, report) == base + end


cdef inline int64_t read_ordinary(const uint8_t* base, int64_t* position, int64_t limit, int64_t count,
                                  const RecordContext* context, row_t* row, const Fields* row_fields,
                                  FaultReport* report) noexcept nogil:
    """Read up to `count` ordinary records: shorter than 8 KiB, with numbers in their shortest form.

    Returns how many were read, and moves `position` to the next one, which `read_record` has to parse: it is not
    ordinary, it has a fault, or it ends after `limit`, `RECORD_SLACK` bytes before the end of the payload. The distance
    makes it safe to read single bytes without a check; a wrong length shows at the end of the record, where all lengths
    must add up to that of the record.

    Key and value are read in the loop itself, which makes it longer than 80 lines: one function for both costs one or
    two instructions per record (`python -m bench.instructions`: decode small +2.4 %, medium and lz4 +1.6 %).
    """
    cdef const Fields* fields = row_fields
    cdef Fields whole
    if row_t is not PartialRow:
        whole = whole_fields()
        fields = &whole
    cdef uint64_t base_offset = <uint64_t>context.base_offset
    cdef uint64_t base_timestamp = <uint64_t>context.timestamp
    cdef int64_t no_headers
    memcpy(&no_headers, context.no_headers, 8)
    cdef int64_t start = position[0]
    cdef int64_t done = 0
    cdef int64_t at
    cdef int64_t end
    cdef uint64_t timestamp = 0
    cdef uint64_t offset = 0
    cdef uint32_t length
    while done < count:
        length = base[start]
        at = start + 1
        # An odd length is negative.
        if length & 0x81:
            if kb_unlikely(length & 1 or base[at] >= 0x80):
                break
            length = (length & 0x7F) | <uint32_t>base[at] << 7
            at += 1
            kb_prefetch(base + at + context.ahead + 64)
        kb_prefetch(base + at + context.ahead)
        end = at + (length >> 1)
        if kb_unlikely(end > limit):
            break
        at += 1  # the attributes, which no reader uses
        if not ordinary_deltas(base, &at, &timestamp, &offset):
            break
        # Under LogAppendTime the mask is 0 and the base the batch's maximum (TS-R2). Unsigned: offsets and timestamps
        # wrap as Java's do (FRM-R12, TS-R1).
        put_int64(row, fields.timestamp, <int64_t>(base_timestamp + (timestamp & context.delta_mask)))
        put_int64(row, fields.offset, <int64_t>(base_offset + offset))
        length = base[at]
        at += 1
        # An odd length is negative.
        if kb_likely(not length & 0x81):
            length >>= 1
            put_int32(row, fields.key_len, length)
        elif length < 0x80:
            length = 0
            put_int32(row, fields.key_len, -1)
        else:
            if kb_unlikely(length & 1 or base[at] >= 0x80):
                break
            length = (length & 0x7F) >> 1 | <uint32_t>base[at] << 6
            at += 1
            if kb_unlikely(length > end - at):
                break
            put_int32(row, fields.key_len, length)
        put_int64(row, fields.key_pos, at)
        at += length
        length = base[at]
        at += 1
        if kb_likely(not length & 0x81):
            length >>= 1
            put_int32(row, fields.value_len, length)
        elif length < 0x80:
            length = 0
            put_int32(row, fields.value_len, -1)
        else:
            if kb_unlikely(length & 1 or base[at] >= 0x80):
                break
            length = (length & 0x7F) >> 1 | <uint32_t>base[at] << 6
            at += 1
            # The end of the value is compared with the end of the record below.
            put_int32(row, fields.value_len, length)
        put_int64(row, fields.value_pos, at)
        at += length
        if kb_likely(at + 1 == end and base[at] == 0):
            put_int64(row, fields.headers_pos, end)
            if row_t is PartialRow:
                put_int32(row, fields.header_count, 0)
                put_int32(row, fields.batch, context.no_headers[1])
            else:
                put_int64(row, fields.header_count, no_headers)
        elif not ordinary_headers(base, at, end, row, fields, context.no_headers[1], report):
            break
        start = end
        row = next_row(row, fields)
        if row_t is not StreamedRow:
            kb_prefetch(<char*>row + ROWS_AHEAD)
        done += 1
    position[0] = start
    return done


# -- all records


cdef inline const uint8_t* read_bytes(const uint8_t* p, const uint8_t* end, const uint8_t* base, row_t* row,
                                      Py_ssize_t pos_field, Py_ssize_t len_field, int fault,
                                      FaultReport* report) noexcept nogil:
    """Read a key or value; return the position after it, or NULL at a fault: `fault` if its length is wrong."""
    cdef Varint length = read_varint(p, end)
    if kb_unlikely(length.next == NULL):
        varint_fault(report, p, end, MAX_VARINT)
        return NULL
    p = length.next
    put_int64(row, pos_field, p - base)
    # Any negative length is null, and no bytes follow it (REC-R1).
    if length.value < 0:
        put_int32(row, len_field, -1)
        return p
    put_int32(row, len_field, length.value)
    if kb_unlikely(length.value > end - p):
        fault_at(report, fault, p, end - p, length.value)
        return NULL
    return p + length.value


cdef inline const uint8_t* read_record(const uint8_t* p, const uint8_t* end, const uint8_t* base,
                                       const RecordContext* context, row_t* row, const Fields* row_fields,
                                       FaultReport* report) noexcept nogil:
    """Read one record into the fields that its row has, and check all of it.

    Returns the position after the record, or NULL at a fault.
    """
    cdef const Fields* fields = row_fields
    cdef Fields whole
    if row_t is not PartialRow:
        whole = whole_fields()
        fields = &whole
    cdef const uint8_t* start
    cdef Varint number = read_varint(p, end)
    if kb_unlikely(number.next == NULL):
        varint_fault(report, p, end, MAX_VARINT)
        return NULL
    start = number.next
    cdef int64_t length = number.value
    if kb_unlikely(length < 1 or length > end - start):
        fault_at(report, FAULT_RECORD_LENGTH, start, end - start, length)
        return NULL
    # No field may reach beyond its own record. Its first byte is the attributes, which no reader uses.
    end = start + length
    p = start + 1
    number = read_varlong(p, end)
    if kb_unlikely(number.next == NULL):
        varint_fault(report, p, end, MAX_VARLONG)
        return NULL
    p = number.next
    # As in `read_ordinary`.
    put_int64(row, fields.timestamp,
              <int64_t>(<uint64_t>context.timestamp + (<uint64_t>number.value & context.delta_mask)))
    number = read_varint(p, end)
    if kb_unlikely(number.next == NULL):
        varint_fault(report, p, end, MAX_VARINT)
        return NULL
    put_int64(row, fields.offset, <int64_t>(<uint64_t>context.base_offset + <uint64_t>number.value))
    p = read_bytes(number.next, end, base, row, fields.key_pos, fields.key_len, FAULT_KEY_LENGTH, report)
    if kb_unlikely(p == NULL):
        return NULL
    p = read_bytes(p, end, base, row, fields.value_pos, fields.value_len, FAULT_VALUE_LENGTH, report)
    if kb_unlikely(p == NULL):
        return NULL
    put_int32(row, fields.batch, context.no_headers[1])
    if kb_likely(end - p == 1 and p[0] == 0):
        put_int64(row, fields.headers_pos, end - base)
        put_int32(row, fields.header_count, 0)
        return end
    number = read_varint(p, end)
    if kb_unlikely(number.next == NULL):
        varint_fault(report, p, end, MAX_VARINT)
        return NULL
    p = number.next
    # A header takes two bytes at least (HDR-R1).
    if kb_unlikely(number.value < 0 or number.value > (end - p) // 2):
        fault_at(report, FAULT_HEADER_COUNT, p, (end - p) // 2, number.value)
        return NULL
    put_int64(row, fields.headers_pos, p - base)
    put_int32(row, fields.header_count, number.value)
    p = check_headers(p, end, number.value, report)
    if kb_unlikely(p == NULL):
        return NULL
    if kb_unlikely(p != end):
        fault_at(report, FAULT_RECORD_SIZE, p, length, p - start)
        return NULL
    return p


cdef inline int read_batch(const uint8_t* base, int64_t position, int64_t size, const BatchRow* batch, int32_t index,
                           row_t* rows, const Fields* fields, PayloadState* state, FaultReport* report) noexcept nogil:
    """Read the remaining records up to `state.stop`, or the ordinary ones if only a part of the payload is known.

    The row of record `state.first` is the first of `rows`. At a fault the rows are undefined.
    """
    cdef const uint8_t* start = base + position
    cdef const uint8_t* end = start + size
    cdef const uint8_t* p
    cdef int64_t limit = position + size - RECORD_SLACK
    cdef int64_t at = position + state.done_at
    cdef char* row = <char*>rows
    cdef int64_t count = state.stop
    cdef int64_t i = state.done
    cdef Py_ssize_t itemsize = fields.itemsize if row_t is PartialRow else sizeof(RecordRow)
    cdef RecordContext context
    row -= state.first * itemsize
    set_context(&context, batch, index)
    while True:
        if at <= limit:
            context.ahead = size if size <= NEXT_BATCH_MAX and not batch.attributes & CODEC else PAYLOAD_AHEAD
            i += read_ordinary(base, &at, limit, count - i, &context, <row_t*>(row + i * itemsize), fields, report)
        if i >= count or state.is_part:
            break
        if at == position + size:
            report[0] = FaultReport(FAULT_RECORD_CUT, i, size, batch.record_count, i)
            return FAULT_RECORD_CUT
        p = read_record(base + at, end, base, &context, <row_t*>(row + i * itemsize), fields, report)
        if p == NULL:
            report.record = i
            report.at -= <int64_t>start
            return report.fault
        at = p - base
        i += 1
    if kb_unlikely(state.is_part or count < batch.record_count):
        state.done = i
        state.done_at = at - position
        return FAULT_NONE
    if kb_unlikely(at != position + size):
        report[0] = FaultReport(FAULT_TRAILING_BYTES, -1, at - position, count, position + size - at)
        return FAULT_TRAILING_BYTES
    return FAULT_NONE


cdef inline int64_t read_batch_run(const uint8_t* base, int64_t size, BatchRow* batches, int64_t count, int64_t origin,
                                   int32_t index, int64_t first, int64_t ahead, row_t* into,
                                   const Fields* fields) noexcept nogil:
    """Read the records of `count` uncompressed batches; return the number of batches before one that is not ordinary.

    The first batch has number `index`, and its first record number `first`; bytes are prefetched `ahead` of a record.
    Bytes of the next batch, or other ones of the `size` bytes at `base`, are the `RECORD_SLACK` of a payload.
    """
    cdef char* row = <char*>into
    cdef Py_ssize_t itemsize = fields.itemsize if row_t is PartialRow else sizeof(RecordRow)
    cdef RecordContext context
    cdef FaultReport report
    cdef BatchRow* batch
    cdef int64_t at
    cdef int64_t end
    cdef int64_t i
    for i in range(count):
        batch = batches + i
        at = batch.position - origin + BATCH_HEADER_SIZE
        end = at - BATCH_HEADER_SIZE + batch.size
        if end > size - RECORD_SLACK:
            return i
        set_context(&context, batch, index + <int32_t>i)
        context.ahead = ahead
        if (read_ordinary(base, &at, end, batch.record_count, &context, <row_t*>row, fields, &report)
                < batch.record_count):
            return i
        if at != end:
            return i
        batch.first_record = first
        first += batch.record_count
        row += batch.record_count * itemsize
    return count
