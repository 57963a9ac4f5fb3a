"""Payload to record rows and header rows, for every magic: `records` and `messages` parse the payloads."""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbatch.kernels.messages cimport (
    check_messages,
    read_message,
    read_messages,
    wrapper_value,
)
from kbatch.kernels.records cimport Varint, read_batch, read_varint
from kbatch.kernels.rows cimport PartialRow, PayloadState, ParseOptions, StreamedRow
from kbatch.kernels.spans cimport Fields, RecordSpan, Span
from kbatch.kernels.wire cimport (
    BAD_INNER_CRC,
    BatchRow,
    CODEC,
    FAULT_COUNT_NEGATIVE,
    FAULT_COUNT_TOO_LARGE,
    FAULT_NONE,
    FaultReport,
    HeaderRow,
    MIN_RECORD,
    RecordRow,
    header_size,
    kb_likely,
    kb_unlikely,
)


cdef inline bint check_count(int64_t count, int64_t size, FaultReport* report) noexcept nogil:
    """Whether `size` bytes can hold `count` records."""
    if count < 0:
        report[0] = FaultReport(FAULT_COUNT_NEGATIVE, -1, -1, 0, count)
        return False
    if count > size // MIN_RECORD:
        report[0] = FaultReport(FAULT_COUNT_TOO_LARGE, -1, -1, size // MIN_RECORD, count)
        return False
    return True


cdef int64_t keep_offsets(char* rows, const Fields* fields, int64_t count, int64_t first, int64_t last) noexcept nogil:
    """Keep only the rows with offsets from `first` to `last`; return their number."""
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


cdef bint count_records(const uint8_t* payload, int64_t size, const BatchRow* batch, bint check_crc,
                        PayloadState* state, FaultReport* report) noexcept nogil:
    state.bad_inner = False
    state.done = state.done_at = state.first = 0
    state.is_part = False
    if kb_likely(batch.magic == 2):
        state.count = state.stop = batch.record_count
        return check_count(state.count, size, report)
    if not batch.attributes & CODEC:
        state.count = state.stop = 1
        return True
    state.last_inner = 0
    state.count = check_messages(payload, size, batch, check_crc, &state.bad_inner, &state.last_inner, report)
    state.stop = state.count
    if state.count < 0:
        report.at -= <int64_t>payload
        return False
    return True


cdef int64_t read_rows(const uint8_t* base, int64_t position, int64_t size, BatchRow* batch, int32_t index, char* into,
                       PayloadState* state, const ParseOptions* options, FaultReport* report) noexcept nogil:
    cdef const Fields* fields = &options.fields
    cdef int fault
    if kb_likely(batch.magic == 2):
        if options.streamed:
            fault = read_batch(base, position, size, batch, index, <StreamedRow*>into, fields, state, report)
        elif kb_likely(options.whole):
            fault = read_batch(base, position, size, batch, index, <RecordRow*>into, fields, state, report)
        else:
            fault = read_batch(base, position, size, batch, index, <PartialRow*>into, fields, state, report)
    elif batch.attributes & CODEC:
        fault = read_messages(base, position, batch, index, into, fields, state, report)
    else:
        fault = read_message(base, position, size, batch, index, <PartialRow*>into, fields, report)
    if kb_unlikely(fault != FAULT_NONE):
        return -1
    if kb_unlikely(state.is_part):
        return 0
    if state.bad_inner and batch.status == 0:
        batch.status = BAD_INNER_CRC
    if options.trimmed:
        return keep_offsets(into, fields, state.stop - state.first, options.first_offset, options.last_offset)
    return state.stop - state.first


def first_records(data not None, batches not None, const int64_t[::1] positions not None,
                  const int64_t[::1] sizes not None, out not None):
    """Decode the first record of each batch into `out`; return the number of rows.

    The payload of batch `i` is ``sizes[i]`` bytes of `data` at ``positions[i]``, and the record count of its row is 1.
    A batch that cannot be decoded gives no row. The field ``batch`` of a record is the row of its batch.
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
    cdef ParseOptions options
    cdef PayloadState state
    cdef FaultReport report
    if positions.shape[0] < n or sizes.shape[0] < n or out_span.length < n:
        raise IndexError("positions, sizes and out must have an item for every batch")
    if out_span.length and out_span.stride != out_span.fields.itemsize:
        raise ValueError("out must be contiguous")
    options.fields = out_span.fields
    options.whole = out_span.whole
    options.streamed = False
    options.check_crc = False
    options.trimmed = False
    options.first_offset = 0
    options.last_offset = 0
    for i in range(n):
        if (positions[i] < 0 or sizes[i] < 0 or sizes[i] > data_span.length
                or positions[i] > data_span.length - sizes[i] or rows[i].record_count > 1):
            raise IndexError("payload out of range")
        if not count_records(base + positions[i], sizes[i], &rows[i], False, &state, &report):
            continue
        count = read_rows(base, positions[i], sizes[i], &rows[i], <int32_t>i,
                          out_span.items + used * options.fields.itemsize, &state, &options, &report)
        used += max(count, 0)
    return used


def payloads(const uint8_t[::1] data not None, batches not None, int64_t lo, int64_t hi, int64_t origin,
             int64_t[::1] positions not None, int64_t[::1] sizes not None):
    """Write the positions and sizes of the payloads, compressed or not, of the batches `lo` to `hi`.

    Positions are those in `data`, which begins at `origin` in the source. The payload of a wrapper of magic 0 or 1 is
    its value; without a value its size is -1. The caller guarantees that the rows come from a scan of `data`.
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

    Returns the number of rows, or -1 - i if record i has no valid headers at its position: the bytes have changed since
    they were checked.
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
