"""Payload to record rows and header rows.

Magic 2:

Record:  length varint | attributes i8 | timestampDelta varlong | offsetDelta varint | keyLength varint, key |
         valueLength varint, value | headerCount varint | header ...
Header:  keyLength varint, key | valueLength varint, value

All varints are zig-zag. Attributes is one byte, never a varint (REC-R5).

Magic 0 and 1: a plain message is a record. A compressed one is a wrapper: its value is a set of plain messages, each
with offset i64, size i32 and the layout of `kbatch.format`.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kbatch.kernels.checksum cimport crc32_legacy
from kbatch.kernels.spans cimport Fields, RecordSpan, Span
from kbatch.kernels.wire cimport (
    BatchRow,
    FAULT_COUNT_NEGATIVE,
    FAULT_COUNT_TOO_LARGE,
    FAULT_HEADER_COUNT,
    FAULT_HEADER_KEY_LENGTH,
    FAULT_HEADER_VALUE_LENGTH,
    FAULT_INNER_COMPRESSED,
    FAULT_INNER_CUT,
    FAULT_INNER_LENGTH,
    FAULT_INNER_MAGIC,
    FAULT_KEY_LENGTH,
    FAULT_NONE,
    FAULT_RECORD_CUT,
    FAULT_RECORD_LENGTH,
    FAULT_RECORD_SIZE,
    FAULT_TRAILING_BYTES,
    FAULT_VALUE_LENGTH,
    FAULT_VARINT_CUT,
    FAULT_VARINT_TOO_LONG,
    FAULT_WRAPPER_EMPTY,
    FAULT_WRAPPER_OFFSET,
    HeaderRow,
    MIN_RECORD,
    RecordRow,
    header_size,
    kb_likely,
    kb_prefetch,
    kb_unlikely,
    load_be32,
    load_be64,
    load_le64,
)

cdef enum:
    # A record's fields up to the key take twelve bytes, a key whose length takes one byte 63, then a length.
    SLACK = 96
    LOG_OVERHEAD = 12
    # Least values of a message's length field (LEG-R1).
    MIN_LENGTH_V0 = 14
    MIN_LENGTH_V1 = 22
    MAX_VARINT = 5
    MAX_VARLONG = 10
    LOG_APPEND_TIME = 0x08
    # How far ahead bytes are asked for. Of plain batches up to NEAR it is the next batch: its checksum then reads the
    # cache, 4.3 instead of 5.3 ns a record of 48 bytes; the next of larger ones would drive out what is being read.
    # Else a kilobyte: 10 % off the whole of decoding lz4 batches of 130-byte records. Rows to come: 5 % off medium.
    NEAR = 128 << 10
    AHEAD = 1024
    ROWS_AHEAD = 2048

# The part of a batch's header that its records depend on.
cdef struct Context:
    int64_t base_offset
    int64_t timestamp
    uint64_t delta_mask
    # As they follow each other in a row: no headers, the batch's index.
    int32_t no_headers[2]
    # Where from a record on bytes are asked for.
    int64_t ahead


# Rows of RECORD_DTYPE, whose loop has the places of the fields compiled in, and rows of any other dtype: to test for
# each field whether it is wanted takes half a nanosecond a record.
cdef struct SomeFields:
    uint8_t first

ctypedef fused row_t:
    RecordRow
    SomeFields


cdef inline Fields whole_fields() noexcept nogil:
    """Those of RECORD_DTYPE."""
    cdef Fields fields
    cdef RecordRow row
    cdef char* start = <char*>&row
    fields.itemsize = sizeof(RecordRow)
    fields.offset = <char*>&row.offset - start
    fields.timestamp = <char*>&row.timestamp - start
    fields.key_pos = <char*>&row.key_pos - start
    fields.value_pos = <char*>&row.value_pos - start
    fields.headers_pos = <char*>&row.headers_pos - start
    fields.key_len = <char*>&row.key_len - start
    fields.value_len = <char*>&row.value_len - start
    fields.header_count = <char*>&row.header_count - start
    fields.batch = <char*>&row.batch - start
    return fields


cdef inline void put_int64(char* row, Py_ssize_t field, int64_t value) noexcept nogil:
    if field >= 0:
        (<int64_t*>(row + field))[0] = value


cdef inline void put_int32(char* row, Py_ssize_t field, int64_t value) noexcept nogil:
    if field >= 0:
        (<int32_t*>(row + field))[0] = <int32_t>value


cdef inline int64_t unzigzag(uint64_t raw) noexcept nogil:
    return <int64_t>((raw >> 1) ^ (0 - (raw & 1)))


# A number and where it ends; NULL where it doesn't. Returned in two registers: a cursor passed by its address would
# live in memory, which took 11.6 ns instead of 8.7 for a record of 40 bytes.
cdef struct Varint:
    const uint8_t* next
    int64_t value


cdef Varint varint_tail(const uint8_t* p, const uint8_t* end, bint wide) noexcept nogil:
    """A varint of up to 5 bytes, or if `wide` a varlong of up to 10; bounded.

    Bits beyond 32 or 64 are dropped, as Kafka does (VAR-R2).
    """
    cdef Varint result
    cdef uint64_t raw = 0
    cdef int shift = 0
    cdef int most = 7 * (MAX_VARLONG if wide else MAX_VARINT)
    result.next = NULL
    result.value = 0
    while p < end and shift < most:
        raw |= <uint64_t>(p[0] & 0x7F) << shift
        if p[0] < 0x80:
            result.next = p + 1
            result.value = unzigzag(raw) if wide else <int32_t>unzigzag(<uint32_t>raw)
            break
        p += 1
        shift += 7
    return result


cdef inline Varint read_number(const uint8_t* p, const uint8_t* end, bint wide) noexcept nogil:
    """A varint or varlong, with a fast path for one and two bytes, which nearly all are."""
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


cdef inline int fault_at(Report* report, int fault, const uint8_t* at, int64_t wanted, int64_t found) noexcept nogil:
    # `at` is made relative to the payload by the caller, who knows where that starts.
    report.fault = fault
    report.at = <int64_t>at
    report.wanted = wanted
    report.found = found
    return fault


cdef int varint_fault(Report* report, const uint8_t* p, const uint8_t* end, int64_t most) noexcept nogil:
    """Why no number could be read at `p`: it goes on for too long, or the end cuts it."""
    return fault_at(report, FAULT_VARINT_TOO_LONG if end - p >= most else FAULT_VARINT_CUT, p, most, 0)


cdef const uint8_t* check_header(const uint8_t* p, const uint8_t* end, Report* report) noexcept nogil:
    """Where the header at `p` ends, or NULL at a fault (HDR-R2, HDR-R6)."""
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
                                         Report* report) noexcept nogil:
    """Walk the headers of a record, so that rows for them can be made later without asking again.

    Returns where they end, or NULL at a fault.
    """
    cdef int64_t _i
    cdef int64_t left
    cdef uint32_t key
    cdef uint32_t value
    for _i in range(count):
        # Lengths of one byte, as nearly all are; an odd one is negative.
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


cdef inline int64_t read_ordinary(const uint8_t* base, int64_t* position, int64_t limit, int64_t count,
                                  const Context* context, char* row, const row_t* _, const Fields* wanted,
                                  Report* report) noexcept nogil:
    """Read up to `count` records as nearly all are: of less than 8 KiB, and no number in them longer than it has to be.

    Returns how many, and moves `position` on to the next one, which `read_record` has to look at: it is no such record,
    something is wrong with it, or it ends after `limit`, `SLACK` bytes before the end of the payload. So no single byte
    that is read here needs a check, and that in the end all lengths add up to that of the record finds whatever was
    wrong.
    """
    cdef const Fields* fields = wanted
    cdef Fields whole
    cdef Py_ssize_t itemsize = wanted.itemsize
    if row_t is RecordRow:
        whole = whole_fields()
        fields = &whole
        itemsize = sizeof(RecordRow)
    cdef uint64_t base_offset = <uint64_t>context.base_offset
    cdef uint64_t base_timestamp = <uint64_t>context.timestamp
    cdef int64_t no_headers
    memcpy(&no_headers, context.no_headers, 8)
    cdef int64_t start = position[0]
    cdef int64_t done = 0
    cdef int64_t at
    cdef int64_t end
    cdef uint64_t timestamp
    cdef uint64_t number
    cdef uint64_t pair
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

        # After the attributes, which nothing reads, the deltas of timestamp and offset: two numbers of two bytes, or of
        # three, that aren't negative are read as one, 20 instructions less than by themselves.
        at += 1
        pair = load_le64(base + at)
        if kb_likely(pair & <uint64_t>0x80818081 == 0x00800080):
            pair = (pair & <uint64_t>0xFFFFFFFF) >> 1
            pair = (pair & 0x003F003F) | (pair >> 1 & 0x1FC01FC0)
            timestamp = pair & 0xFFFF
            number = pair >> 16
            at += 4
        elif pair & <uint64_t>0x808081808081 == <uint64_t>0x008080008080:
            pair >>= 1
            pair = (pair & 0x3F00003F) | (pair >> 1 & <uint64_t>0x1FC0001FC0) | (pair >> 2 & <uint64_t>0xFE0000FE000)
            timestamp = pair & 0xFFFFFF
            number = pair >> 24
            at += 6
        else:
            timestamp = base[at]
            if timestamp < 0x80:
                at += 1
            elif kb_likely(base[at + 1] < 0x80):
                timestamp = (timestamp & 0x7F) | <uint64_t>base[at + 1] << 7
                at += 2
            elif kb_likely(base[at + 2] < 0x80):
                timestamp = (timestamp & 0x7F) | <uint64_t>(base[at + 1] & 0x7F) << 7 | <uint64_t>base[at + 2] << 14
                at += 3
            elif kb_likely(base[at + 3] < 0x80):
                # More than a quarter of an hour after the batch's first.
                timestamp = (pair & 0x7F) | (pair >> 1 & 0x3F80) | (pair >> 2 & 0x1FC000) | (pair >> 3 & 0xFE00000)
                at += 4
            else:
                break
            timestamp = <uint64_t>unzigzag(timestamp)
            number = base[at]
            if kb_unlikely(number & 1):
                break
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
                break
        # Under LogAppendTime the mask is 0 and the base the batch's maximum (TS-R2). Unsigned: offsets and timestamps
        # wrap as Java's do (FRM-R12, TS-R1).
        put_int64(row, fields.timestamp, <int64_t>(base_timestamp + (timestamp & context.delta_mask)))
        put_int64(row, fields.offset, <int64_t>(base_offset + number))

        length = base[at]
        at += 1
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
            put_int32(row, fields.value_len, length)
        put_int64(row, fields.value_pos, at)
        at += length

        if kb_likely(at + 1 == end and base[at] == 0):
            put_int64(row, fields.headers_pos, end)
            if row_t is RecordRow:
                memcpy(&(<RecordRow*>row).header_count, &no_headers, 8)
            else:
                put_int32(row, fields.header_count, 0)
                put_int32(row, fields.batch, context.no_headers[1])
        else:
            if kb_unlikely(at + 1 >= end):
                break
            length = base[at]
            at += 1
            # A header takes two bytes at least (HDR-R1).
            if kb_unlikely(length & 0x81 or length > end - at):
                break
            put_int64(row, fields.headers_pos, at)
            put_int32(row, fields.header_count, length >> 1)
            put_int32(row, fields.batch, context.no_headers[1])
            if kb_unlikely(check_headers(base + at, base + end, length >> 1, report) != base + end):
                break
        start = end
        row += itemsize
        kb_prefetch(row + ROWS_AHEAD)
        done += 1
    position[0] = start
    return done


cdef inline const uint8_t* read_record(const uint8_t* p, const uint8_t* end, const uint8_t* base,
                                       const Context* context, row_t* into, const Fields* wanted,
                                       Report* report) noexcept nogil:
    """One record into a row, as far as its fields are wanted: all of it is checked.

    Returns where the record ends, or NULL at a fault.
    """
    cdef char* row = <char*>into
    cdef const Fields* fields = wanted
    cdef Fields whole
    if row_t is RecordRow:
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
    # No field may reach beyond its own record. Its first byte is the attributes, which nothing reads.
    end = start + length
    p = start + 1

    number = read_varlong(p, end)
    if kb_unlikely(number.next == NULL):
        varint_fault(report, p, end, MAX_VARLONG)
        return NULL
    p = number.next
    # Under LogAppendTime the mask is 0 and the base the batch's maximum (TS-R2). Unsigned: offsets and timestamps wrap
    # as Java's do (FRM-R12, TS-R1).
    put_int64(row, fields.timestamp,
              <int64_t>(<uint64_t>context.timestamp + (<uint64_t>number.value & context.delta_mask)))

    number = read_varint(p, end)
    if kb_unlikely(number.next == NULL):
        varint_fault(report, p, end, MAX_VARINT)
        return NULL
    p = number.next
    put_int64(row, fields.offset, <int64_t>(<uint64_t>context.base_offset + <uint64_t>number.value))

    number = read_varint(p, end)
    if kb_unlikely(number.next == NULL):
        varint_fault(report, p, end, MAX_VARINT)
        return NULL
    p = number.next
    put_int64(row, fields.key_pos, p - base)
    # Any negative length is null, and no bytes follow it (REC-R1).
    put_int32(row, fields.key_len, number.value if number.value >= 0 else -1)
    if number.value >= 0:
        if kb_unlikely(number.value > end - p):
            fault_at(report, FAULT_KEY_LENGTH, p, end - p, number.value)
            return NULL
        p += number.value

    number = read_varint(p, end)
    if kb_unlikely(number.next == NULL):
        varint_fault(report, p, end, MAX_VARINT)
        return NULL
    p = number.next
    put_int64(row, fields.value_pos, p - base)
    put_int32(row, fields.value_len, number.value if number.value >= 0 else -1)
    if number.value >= 0:
        if kb_unlikely(number.value > end - p):
            fault_at(report, FAULT_VALUE_LENGTH, p, end - p, number.value)
            return NULL
        p += number.value

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


cdef int read_batch(const uint8_t* base, int64_t position, int64_t size, const BatchRow* batch, int32_t index,
                    row_t* rows, const Fields* fields, Measure* found, Report* report) noexcept nogil:
    """All records of one payload that aren't done, or a fault and none of them; of a part those that are ordinary."""
    cdef const uint8_t* start = base + position
    cdef const uint8_t* end = start + size
    cdef const uint8_t* p
    cdef int64_t limit = position + size - SLACK
    cdef int64_t at = position + found.done_at
    cdef char* row = <char*>rows
    cdef int64_t count = batch.record_count
    cdef int64_t i = found.done
    cdef Py_ssize_t itemsize = sizeof(RecordRow) if row_t is RecordRow else fields.itemsize
    cdef bint append_time = (batch.attributes & LOG_APPEND_TIME) != 0
    cdef Context context
    context.base_offset = batch.base_offset
    context.timestamp = batch.max_timestamp if append_time else batch.base_timestamp
    context.delta_mask = 0 if append_time else <uint64_t>-1
    context.no_headers[0] = 0
    context.no_headers[1] = index
    while True:
        if at <= limit:
            context.ahead = size if size <= NEAR and not batch.attributes & CODEC else AHEAD
            i += read_ordinary(base, &at, limit, count - i, &context, row + i * itemsize, rows, fields, report)
        if i >= count or found.part:
            break
        if at == position + size:
            report.record = i
            report.at = size
            report.fault = FAULT_RECORD_CUT
            report.wanted = count
            report.found = i
            return FAULT_RECORD_CUT
        p = read_record(base + at, end, base, &context, <row_t*>(row + i * itemsize), fields, report)
        if p == NULL:
            report.record = i
            report.at -= <int64_t>start
            return report.fault
        at = p - base
        i += 1
    if kb_unlikely(found.part):
        found.done = i
        found.done_at = at - position
        return FAULT_NONE
    if kb_unlikely(at != position + size):
        report.record = -1
        report.at = at - position
        report.fault = FAULT_TRAILING_BYTES
        report.wanted = count
        report.found = position + size - at
        return FAULT_TRAILING_BYTES
    return FAULT_NONE


cdef inline int read_key_value(const uint8_t* p, const uint8_t* end, const uint8_t* base, char* row,
                               const Fields* fields, Report* report) noexcept nogil:
    """Key and value of a message, which ends at `end`; eight bytes at least. What follows is ignored (LEG-R8)."""
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


cdef int64_t check_messages(const uint8_t* start, int64_t size, const BatchRow* wrapper, bint check_crc, bint* bad_crc,
                            int64_t* last_inner, Report* report) noexcept nogil:
    """Walk over the messages in a wrapper; return their number, or -1 at a fault.

    Nothing but their keys and values is left to be checked after that. `bad_crc` is set if a checksum doesn't hold.
    """
    cdef const uint8_t* p = start
    cdef const uint8_t* end = start + size
    cdef int64_t count = 0
    cdef int64_t least
    cdef int32_t length
    # Fewer bytes than an offset and a length need are ignored; anything more that is no whole message would shift the
    # offsets of all others, where Kafka's reader silently does that (LEG-R14).
    while end - p >= LOG_OVERHEAD:
        length = <int32_t>load_be32(p + 8)
        report.record = count
        if length < MIN_LENGTH_V0:
            fault_at(report, FAULT_INNER_LENGTH, p, MIN_LENGTH_V0, length)
            return -1
        if length > end - p - LOG_OVERHEAD:
            fault_at(report, FAULT_INNER_CUT, p, LOG_OVERHEAD + <int64_t>length, end - p)
            return -1
        if p[16] > 1:
            fault_at(report, FAULT_INNER_MAGIC, p, 1, p[16])
            return -1
        least = MIN_LENGTH_V1 if p[16] else MIN_LENGTH_V0
        if length < least:
            fault_at(report, FAULT_INNER_LENGTH, p, least, length)
            return -1
        if p[17] & CODEC:
            fault_at(report, FAULT_INNER_COMPRESSED, p, 0, p[17] & CODEC)
            return -1
        if check_crc and crc32_legacy(p + 16, length - 4) != load_be32(p + 12):
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


cdef int read_messages(const uint8_t* base, int64_t position, int64_t count, int64_t last_inner, BatchRow* wrapper,
                       int32_t index, char* rows, const Fields* fields, Report* report) noexcept nogil:
    """The `count` messages of a wrapper, which `check_messages` has found whole, or a fault and none of them.

    Completes the row of the wrapper.
    """
    cdef const uint8_t* start = base + position
    cdef const uint8_t* p = start
    cdef const uint8_t* end
    cdef bint append_time = (wrapper.attributes & LOG_APPEND_TIME) != 0
    # Magic 1 stores the offsets from the set's first on, and the wrapper has that of its last (LEG-R10, LEG-R11).
    cdef uint64_t first = 0
    if wrapper.magic == 1 and wrapper.last_offset != 0:
        first = <uint64_t>wrapper.last_offset - <uint64_t>last_inner
    cdef char* row = rows
    cdef int64_t i
    cdef int64_t timestamp
    cdef int8_t magic
    for i in range(count):
        magic = <int8_t>p[16]
        end = p + LOG_OVERHEAD + <int64_t><int32_t>load_be32(p + 8)
        # The fields are those of the message's own magic, their meaning is the wrapper's (LEG-R15, LEG-R16).
        timestamp = -1
        if magic == 1:
            timestamp = wrapper.max_timestamp if append_time else <int64_t>load_be64(p + 18)
        put_int64(row, fields.offset, <int64_t>(first + load_be64(p)))
        put_int64(row, fields.timestamp, timestamp)
        put_int32(row, fields.batch, index)
        if read_key_value(p + header_size(magic), end, base, row, fields, report):
            report.record = i
            report.at -= <int64_t>start
            return report.fault
        row += fields.itemsize
        p = end
    wrapper.record_count = <int32_t>count
    wrapper.base_offset = <int64_t>(first + load_be64(start))
    # Offsets further apart than that are no broker's; `last_offset` tells them.
    wrapper.last_offset_delta = <int32_t>(<uint64_t>wrapper.last_offset - <uint64_t>wrapper.base_offset)
    return FAULT_NONE


cdef inline int check_count(int64_t count, int64_t size, Report* report) noexcept nogil:
    report.record = -1
    report.at = -1
    report.found = count
    if count < 0:
        report.fault = FAULT_COUNT_NEGATIVE
        return FAULT_COUNT_NEGATIVE
    if count > size // MIN_RECORD:
        report.fault = FAULT_COUNT_TOO_LARGE
        report.wanted = size // MIN_RECORD
        return FAULT_COUNT_TOO_LARGE
    return FAULT_NONE


cdef int read_message(const uint8_t* base, int64_t position, int64_t size, const BatchRow* batch, int32_t index,
                      char* row, const Fields* fields, Report* report) noexcept nogil:
    """The record of a plain message, or a fault."""
    put_int64(row, fields.offset, batch.last_offset)
    put_int64(row, fields.timestamp, batch.max_timestamp)
    put_int32(row, fields.batch, index)
    if read_key_value(base + position, base + position + size, base, row, fields, report):
        report.record = 0
        report.at -= <int64_t>(base + position)
        return report.fault
    return FAULT_NONE


cdef int64_t read_run(const uint8_t* base, const BatchRow* batches, int64_t count, int64_t origin, int32_t index,
                      row_t* into, const Fields* wanted) noexcept nogil:
    cdef char* row = <char*>into
    cdef const Fields* fields = wanted
    cdef Fields whole
    if row_t is RecordRow:
        whole = whole_fields()
        fields = &whole
    cdef const BatchRow* batch
    cdef const uint8_t* p
    cdef Report report
    cdef int64_t i
    for i in range(count):
        batch = batches + i
        p = base + (batch.position - origin)
        put_int64(row, fields.offset, batch.last_offset)
        put_int64(row, fields.timestamp, batch.max_timestamp)
        put_int32(row, fields.batch, index + i)
        if kb_unlikely(read_key_value(p + header_size(batch.magic), p + batch.size, base, row, fields, &report)):
            return i
        row += fields.itemsize
    return count


cdef int64_t read_plain(const uint8_t* base, const BatchRow* batches, int64_t count, int64_t origin, int32_t index,
                        char* into, const Wanted* wanted) noexcept nogil:
    """Read plain messages, the first of which is batch `index`, to rows; how many, before the first with a fault."""
    if kb_likely(wanted.whole):
        return read_run(base, batches, count, origin, index, <RecordRow*>into, &wanted.fields)
    return read_run(base, batches, count, origin, index, <SomeFields*>into, &wanted.fields)


cdef int64_t trim(char* rows, const Fields* fields, int64_t count, int64_t first, int64_t last) noexcept nogil:
    """Keep the rows whose offset is from `first` to `last`; their number."""
    cdef int64_t kept = 0
    cdef int64_t i
    cdef char* row = rows
    for i in range(count):
        if first <= (<int64_t*>(row + fields.offset))[0] <= last:
            if kept != i:
                memcpy(rows + kept * fields.itemsize, row, fields.itemsize)
            kept += 1
        row += fields.itemsize
    return kept


cdef bint measure(const uint8_t* payload, int64_t size, const BatchRow* batch, bint check_crc, Measure* found,
                  Report* report) noexcept nogil:
    """Whether a batch that `gives_rows` has a payload of so many records as are told then, as far as that can be told
    without reading them; of a wrapper all about its messages but keys and values.
    """
    found.bad_inner = False
    found.done = found.done_at = 0
    found.part = False
    if kb_likely(batch.magic == 2):
        found.count = batch.record_count
        return check_count(found.count, size, report) == FAULT_NONE
    if not batch.attributes & CODEC:
        found.count = 1
        return True
    found.last_inner = 0
    found.count = check_messages(payload, size, batch, check_crc, &found.bad_inner, &found.last_inner, report)
    if found.count < 0:
        report.at -= <int64_t>payload
        return False
    return True


cdef int64_t read_rows(const uint8_t* base, int64_t position, int64_t size, BatchRow* batch, int32_t index, char* into,
                       Measure* measured, const Wanted* wanted, Report* report) noexcept nogil:
    """Read a payload that was measured to rows, for which there is room; how many of them are wanted.

    With `measured.part` it is the beginning of a payload of magic 2: read on, up to the first record that isn't whole
    or is unusual, and no more than the batch says; the result is 0.

    -1 at a fault: then none are, and the row of the batch is as it was. Else that of a wrapper is completed.
    """
    cdef const Fields* fields = &wanted.fields
    cdef int fault
    if kb_likely(batch.magic == 2):
        if kb_likely(wanted.whole):
            fault = read_batch(base, position, size, batch, index, <RecordRow*>into, fields, measured, report)
        else:
            fault = read_batch(base, position, size, batch, index, <SomeFields*>into, fields, measured, report)
    elif batch.attributes & CODEC:
        fault = read_messages(base, position, measured.count, measured.last_inner, batch, index, into, fields, report)
    else:
        fault = read_message(base, position, size, batch, index, into, fields, report)
    if kb_unlikely(fault != FAULT_NONE):
        return -1
    if kb_unlikely(measured.part):
        return 0
    if measured.bad_inner and batch.status == 0:
        batch.status = BAD_INNER_CRC
    if wanted.trimmed:
        return trim(into, fields, measured.count, wanted.first_offset, wanted.last_offset)
    return measured.count


def first_records(data not None, batches not None, const int64_t[::1] positions not None,
                  const int64_t[::1] sizes not None, out not None):
    """Decode the first record of each batch into `out`; return how many rows that makes.

    The payload of batch `i` is ``sizes[i]`` bytes of `data` at ``positions[i]``, and the record count of its row is 1.
    A batch that cannot be decoded gives no row: the field ``batch`` of a record is the row of its batch.
    """
    cdef Span data_span = Span(data, 1, False)
    cdef Span batch_span = Span(batches, sizeof(BatchRow), True)
    cdef RecordSpan out_span = RecordSpan(out, True)
    cdef const uint8_t* base = <const uint8_t*>data_span.items
    cdef BatchRow* rows = <BatchRow*>batch_span.items
    cdef int64_t n = batch_span.length
    cdef int64_t used = 0
    cdef int64_t count
    cdef int64_t i
    cdef Wanted wanted
    cdef Measure measured
    cdef Report report
    if positions.shape[0] < n or sizes.shape[0] < n or out_span.length < n:
        raise IndexError("a position, a size and a row are needed for every batch")
    if out_span.length and out_span.stride != out_span.fields.itemsize:
        raise ValueError("out must be contiguous")
    wanted.fields = out_span.fields
    wanted.whole = out_span.whole
    wanted.check_crc = False
    wanted.trimmed = False
    wanted.first_offset = 0
    wanted.last_offset = 0
    for i in range(n):
        if (positions[i] < 0 or sizes[i] < 0 or sizes[i] > data_span.length
                or positions[i] > data_span.length - sizes[i] or rows[i].record_count > 1):
            raise IndexError("payload out of range")
        if not measure(base + positions[i], sizes[i], &rows[i], False, &measured, &report):
            continue
        count = read_rows(base, positions[i], sizes[i], &rows[i], <int32_t>i,
                          out_span.items + used * wanted.fields.itemsize, &measured, &wanted, &report)
        used += max(count, 0)
    return used


cdef int64_t wrapper_value(const uint8_t* p, int64_t size, int8_t magic, int64_t* value_size) noexcept nogil:
    """Where the value of the wrapper at `p` begins in it, and its size; -1 if it has none.

    Of the magic that `size` was found to be enough for: the bytes may have changed since.
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


def payloads(const uint8_t[::1] data not None, batches not None, int64_t lo, int64_t hi, int64_t origin,
             int64_t[::1] positions not None, int64_t[::1] sizes not None):
    """Fill in where in `data` the payload of each batch `lo` to `hi` is, compressed or not.

    The payload of a wrapper of magic 0 or 1 is its value; where it has none, its size is -1. The caller vouches that
    every row is one that `scan` made of `data`, from `origin` on in the source.
    """
    cdef Span batch_span = Span(batches, sizeof(BatchRow), False)
    cdef const BatchRow* rows = <const BatchRow*>batch_span.items
    cdef int64_t i
    cdef int64_t at
    cdef int64_t size
    cdef int64_t skipped
    if lo < 0 or hi > batch_span.length or positions.shape[0] < hi - lo or sizes.shape[0] < hi - lo:
        raise IndexError("rows out of range")
    for i in range(lo, hi):
        at = rows[i].position - origin
        size = rows[i].size
        skipped = header_size(rows[i].magic)
        if at < 0 or size < skipped or size > data.shape[0] - at:
            raise IndexError("payload out of range")
        positions[i - lo] = at + skipped
        sizes[i - lo] = size - skipped
        if rows[i].magic != 2 and rows[i].attributes & CODEC:
            sizes[i - lo] = -1
            skipped = wrapper_value(&data[at], size, rows[i].magic, &sizes[i - lo])
            positions[i - lo] = at + max(skipped, 0)


def headers(const uint8_t[::1] data not None, records not None, HeaderRow[::1] out not None):
    """Fill `out` with the headers of `records`, in their order.

    Returns the number of rows, or -1 - i where record i has no such headers at its position: the bytes that they were
    checked in have been changed since.
    """
    cdef RecordSpan rows = RecordSpan(records)
    cdef int64_t position
    cdef int32_t count
    cdef int64_t capacity = out.shape[0]
    cdef int64_t limit = data.shape[0]
    cdef int64_t n = 0
    cdef int64_t i
    cdef int64_t bad = -1
    cdef int32_t _j
    cdef Varint length
    cdef const uint8_t* base
    cdef const uint8_t* p
    cdef const uint8_t* end
    if rows.fields.headers_pos < 0 or rows.fields.header_count < 0:
        raise ValueError("the rows have no headers")
    if not limit or not capacity:
        return 0
    base = &data[0]
    end = base + limit
    with nogil:
        for i in range(rows.length):
            count = (<const int32_t*>(rows.items + i * rows.stride + rows.fields.header_count))[0]
            if count <= 0:
                continue
            position = (<const int64_t*>(rows.items + i * rows.stride + rows.fields.headers_pos))[0]
            if position < 0 or position > limit:
                bad = i
                break
            p = base + position
            for _j in range(count):
                length = read_varint(p, end)
                if n >= capacity or length.next == NULL or length.value < 0 or length.value > end - length.next:
                    bad = i
                    break
                out[n].record = i
                out[n].key_pos = length.next - base
                out[n].key_len = <int32_t>length.value
                p = length.next + length.value
                length = read_varint(p, end)
                if length.next == NULL or length.value > end - length.next:
                    bad = i
                    break
                out[n].value_pos = length.next - base
                out[n].value_len = <int32_t>length.value if length.value >= 0 else -1
                p = length.next + (length.value if length.value > 0 else 0)
                n += 1
            if bad >= 0:
                break
    return n if bad < 0 else -1 - bad
