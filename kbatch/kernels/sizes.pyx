"""Columns of records -> batches and their sizes: the pass before `encode.pyx` writes them."""

from typing import NamedTuple

from libc.stdint cimport INT32_MAX, INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint32_t, uint64_t

from kbatch.kernels.source cimport (
    BLOCK,
    HeaderWindow,
    Numbers,
    RecordColumns,
    Content,
    Source,
    read_lengths,
    load_64,
    number,
)
from kbatch.kernels.spans cimport Span
from kbatch.kernels.wire cimport CODEC, BatchRow, kb_likely, kb_unlikely
from kbatch.kernels.wire_out cimport overhead, zigzag


class WriteOutcome(NamedTuple):
    """The number of batches or bytes done; if that is not all, the row with a `WriteFault`, and the value found."""

    used: int
    row: int
    fault: int
    found: int


cdef class Plan:
    """The settings by which records are cut into batches.

    `max_bytes` limits a batch, including its header and before compression; a batch of one record may be larger.
    Unless `cut` is set, all records go to one batch. `horizon` replaces the first timestamp as base timestamp.
    `strict` checks what writers must guarantee and readers do not: offsets rise, and timestamps are not below -1.
    """

    cdef int magic
    cdef int attributes
    cdef int64_t limit
    cdef int64_t max_records
    cdef bint cut
    cdef bint strict
    cdef bint bounded
    cdef bint has_horizon
    cdef int64_t horizon

    def __init__(self, int magic, int attributes, *, int64_t max_bytes=INT32_MAX, int64_t max_records=INT32_MAX,
                 bint cut=False, bint strict=True, horizon=None):
        self.magic = magic
        self.attributes = attributes
        # Uncompressed messages of magic 0 and 1 are separate entries: their number and total size are not limited.
        self.bounded = magic == 2 or attributes & CODEC
        self.limit = max_bytes if cut else (INT32_MAX if self.bounded else INT64_MAX)
        self.max_records = max_records if cut else INT32_MAX
        self.cut = cut
        self.strict = strict
        self.has_horizon = horizon is not None
        self.horizon = horizon if self.has_horizon else 0


# The state of a batch that records are added to. Its row is written when it is opened and closed, not per record.
cdef struct Growth:
    int64_t total
    int64_t records
    int64_t base_offset
    int64_t base_timestamp
    int64_t last_offset
    int64_t max_timestamp


cdef inline Growth open_batch(BatchRow* batch, Plan plan, int64_t row, int64_t offset,
                              int64_t timestamp) noexcept nogil:
    """Start a batch at the record in `row`, without adding it."""
    batch.magic = <int8_t>plan.magic
    batch.attributes = <int16_t>plan.attributes
    batch.base_offset = offset
    batch.base_timestamp = plan.horizon if plan.has_horizon else timestamp
    batch.max_timestamp = timestamp
    batch.first_record = row
    batch.record_count = 0
    batch.last_offset_delta = 0
    batch.size = overhead(batch)
    return reopen_batch(batch)


cdef inline Growth reopen_batch(const BatchRow* batch) noexcept nogil:
    return Growth(total=batch.size, records=batch.record_count, base_offset=batch.base_offset,
                  base_timestamp=batch.base_timestamp, last_offset=batch.last_offset,
                  max_timestamp=batch.max_timestamp)


cdef inline void close_batch(BatchRow* batch, const Growth* growth) noexcept nogil:
    batch.size = growth.total
    batch.record_count = <int32_t>growth.records
    batch.last_offset = growth.last_offset
    batch.last_offset_delta = <int32_t>(<uint64_t>growth.last_offset - <uint64_t>batch.base_offset)
    batch.max_timestamp = growth.max_timestamp


cdef bint short_deltas(Numbers numbers, int64_t row, int64_t count, int64_t base, uint32_t* out) noexcept nogil:
    """Write the zigzag deltas of rows from `base`; return whether all of them are below `SHORT`."""
    cdef uint64_t largest = 0
    cdef uint64_t raw
    cdef int64_t i
    cdef const char* p
    if numbers.items == NULL and numbers.step in (0, 1):
        raw = <uint64_t>number(&numbers, row) - <uint64_t>base
        if raw >= SHORT // 2 - BLOCK:
            return False
        for i in range(count):
            out[i] = <uint32_t>(raw + <uint64_t>i * <uint64_t>numbers.step) << 1
        return True
    p = numbers.items + row * numbers.stride
    for i in range(count):
        raw = zigzag(<int64_t>(<uint64_t>load_64(p) - <uint64_t>base))
        out[i] = <uint32_t>raw
        largest |= raw
        p += numbers.stride
    return largest < SHORT


cdef inline int32_t short_sizes(const int32_t* keys, const int32_t* values, int64_t count, int32_t* out) noexcept nogil:
    """Write the size of attributes, key and value with their lengths for each row; return whether all are short."""
    cdef int32_t longest = 0
    cdef int64_t i
    for i in range(count):
        out[i] = max(keys[i], 0) + max(values[i], 0) + 3
        longest |= max(keys[i], 0) | max(values[i], 0)
    if longest > 63:
        for i in range(count):
            out[i] += (keys[i] > 63) + (values[i] > 63)
    return longest < SHORT_LENGTH


cdef int64_t add_short(const int32_t* sizes, int64_t row, int64_t count, Numbers offsets, Numbers timestamps,
                       int64_t limit, bint strict, Growth* batch) noexcept nogil:
    """Add short records to a batch that has records, until it is full; return the number added.

    -1 if a record is not short. Small loops over one column each, most of them vectorized, take half the time of one
    loop that does everything.
    """
    cdef uint32_t times[BLOCK]
    cdef uint32_t deltas[BLOCK]
    cdef int32_t whole[BLOCK]
    cdef int64_t free = limit - batch.total
    cdef int64_t i
    cdef int32_t size
    cdef int32_t longest = 0
    cdef int32_t earliest = 0
    cdef int32_t latest = 0
    cdef uint32_t disorder = 0
    cdef int64_t average = max(batch.total // max(batch.records, 1), 1)
    # Only as many as are likely to fit: a small batch would not repay reading a whole block of rows.
    count = min(count, free // average + 8)
    if count <= 0 or free <= 0:
        return 0
    if batch.base_offset > INT64_MAX - SHORT or not -1 <= batch.base_timestamp <= INT64_MAX - SHORT:
        return -1  # sums might overflow
    if not short_deltas(timestamps, row, count, batch.base_timestamp, times) \
            or not short_deltas(offsets, row, count, batch.base_offset, deltas):
        return -1
    for i in range(count):
        disorder |= deltas[i] & 1
        # Lengths up to 63 take one byte, included in the 4.
        size = sizes[i] + (times[i] > 127) + (deltas[i] > 127) + 4
        size += size > 64
        whole[i] = size
        longest |= size
    if strict:
        disorder |= deltas[0] >> 1 <= <uint64_t>(batch.last_offset - batch.base_offset)
        for i in range(1, count):
            disorder |= deltas[i] <= deltas[i - 1]
        for i in range(count):
            earliest = min(earliest, <int32_t>(times[i] >> 1) ^ -<int32_t>(times[i] & 1))
        disorder |= batch.base_timestamp + earliest < -1
    if disorder or longest >= SHORT_LENGTH:
        return -1
    i = 0
    while i < count and whole[i] <= free:
        free -= whole[i]
        i += 1
    count = i
    for i in range(count):
        latest = max(latest, <int32_t>(times[i] >> 1) ^ -<int32_t>(times[i] & 1))
    if count:
        batch.total = limit - free
        batch.records += count
        batch.last_offset = batch.base_offset + (deltas[count - 1] >> 1)
        batch.max_timestamp = max(batch.max_timestamp, batch.base_timestamp + latest)
    return count


# Lengths of some rows, and the sizes of their records without the deltas.
cdef struct LengthBlock:
    int32_t keys[BLOCK]
    int32_t values[BLOCK]
    int32_t sizes[BLOCK]
    int64_t count
    bint oversized  # a length does not fit an int32
    bint short  # `add_short` may add them


cdef bint read_block(const Source* source, Plan plan, int64_t row, int64_t stop, LengthBlock* block) noexcept nogil:
    """Read the lengths of the rows from `row` on, up to the first invalid one; return False if that is `row`."""
    cdef int64_t count = min(stop - row, <int64_t>BLOCK)
    cdef int64_t i
    cdef int32_t least = 0
    block.count = min(read_lengths(source.keys, row, count, block.keys),
                      read_lengths(source.values, row, count, block.values))
    for i in range(block.count):
        least = min(least, min(block.keys[i], block.values[i]))
    block.oversized = least < -1
    block.short = (plan.magic == 2 and source.header_count.items == NULL and least >= -1
                   and short_sizes(block.keys, block.values, block.count, block.sizes))
    return block.count > 0


cdef inline int64_t size_in(const Growth* growth, Plan plan, int64_t timestamp, int64_t offset_delta, int64_t key,
                            int64_t value, int64_t headers) noexcept nogil:
    """Return the size of a record in the batch, or of a message."""
    return record_size(plan.magic == 2, plan.magic, <int64_t>(<uint64_t>timestamp - <uint64_t>growth.base_timestamp),
                       offset_delta, key, value, headers)


cdef inline void refuse(Failure* failure, int fault, int64_t found) noexcept nogil:
    failure.fault = fault
    failure.found = found


cdef bint opens_next(Plan plan, const Growth* growth, int64_t size, int64_t delta, Failure* failure) noexcept nogil:
    """Return whether a record that does not fit a batch goes to the next one; if not, report why."""
    if not plan.cut:
        if size > INT32_MAX:
            refuse(failure, RECORD_SIZE, size)
        elif size > plan.limit - growth.total or growth.records >= plan.max_records:
            refuse(failure, BATCH_SIZE, growth.total + size)
        else:
            refuse(failure, OFFSET_FAR, delta)
    return plan.cut


cdef int64_t measure_rows(const Source* source, Plan plan, int64_t row, int64_t stop, BatchRow* batches,
                          int64_t* used, int64_t capacity, Failure* failure) noexcept nogil:
    """Cut records from `row` on into batches; return the first row that no batch has."""
    cdef LengthBlock block
    cdef HeaderWindow window
    cdef Growth growth
    cdef int64_t filled = used[0]
    cdef bint is_open = filled > 0
    cdef bint with_headers = plan.magic == 2 and source.header_count.items != NULL
    cdef int64_t i
    cdef int64_t good
    cdef int64_t offset
    cdef int64_t timestamp
    cdef int64_t delta
    cdef int64_t headers = 1
    cdef int64_t size
    window.start = window.stop = 0
    if is_open:
        growth = reopen_batch(batches + filled - 1)
    while row < stop:
        if kb_unlikely(not read_block(source, plan, row, stop, &block)):
            failure.fault = OUTSIDE
            break
        i = 0
        while i < block.count:
            if block.short and is_open:
                good = add_short(block.sizes + i, row + i, min(block.count - i, plan.max_records - growth.records),
                                 source.offsets, source.timestamps, plan.limit, plan.strict, &growth)
                block.short = good >= 0
                i += max(good, 0)
                if i == block.count:
                    break
            offset = number(&source.offsets, row + i)
            timestamp = number(&source.timestamps, row + i)
            if kb_unlikely(plan.strict and timestamp < -1):
                refuse(failure, BAD_TIMESTAMP, timestamp)
                break
            if kb_unlikely(block.oversized and (block.keys[i] < -1 or block.values[i] < -1)):
                refuse(failure, RECORD_SIZE, <int64_t>INT32_MAX + 1)
                break
            if with_headers:
                headers = headers_size(source, &window, row + i, failure)
                if kb_unlikely(headers < 0):
                    break
            if kb_likely(is_open):
                if kb_unlikely(plan.strict and offset <= growth.last_offset):
                    refuse(failure, OFFSET_ORDER, offset)
                    break
                delta = <int64_t>(<uint64_t>offset - <uint64_t>growth.base_offset)
                size = size_in(&growth, plan, timestamp, delta, block.keys[i], block.values[i], headers)
                if kb_unlikely(size > plan.limit - growth.total or growth.records >= plan.max_records
                               or (plan.bounded and not 0 <= delta <= INT32_MAX)):
                    if not opens_next(plan, &growth, size, delta, failure):
                        break
                    close_batch(batches + filled - 1, &growth)
                    is_open = False
            if kb_unlikely(not is_open):
                if filled == capacity:
                    break
                growth = open_batch(batches + filled, plan, row + i, offset, timestamp)
                filled += 1
                size = size_in(&growth, plan, timestamp, 0, block.keys[i], block.values[i], headers)
                if kb_unlikely(size > INT32_MAX - growth.total):
                    refuse(failure, RECORD_SIZE if size > INT32_MAX else BATCH_SIZE,
                           size if size > INT32_MAX else growth.total + size)
                    break
                is_open = True
            growth.total += size
            growth.records += 1
            growth.last_offset = offset
            growth.max_timestamp = max(growth.max_timestamp, timestamp)
            i += 1
        row += i
        if i < block.count:
            break
    if is_open:
        close_batch(batches + filled - 1, &growth)
    used[0] = filled
    return row


def cut_batches(RecordColumns records not None, Plan plan not None, int64_t row, batches not None, int64_t used):
    """Cut the records from `row` on into batches, and write them to `batches` after the first `used` rows.

    The last used row is continued. Sets magic, attributes, the fields that depend on the records, and `size`, which is
    that of the whole uncompressed batch.

    Returns a `WriteOutcome` of batches. Its row is the first that no batch has; it is before the end of the records if
    `batches` is full or that row has a fault.
    """
    cdef Span span = Span(batches, sizeof(BatchRow), True)
    cdef Failure failure = Failure(fault=NONE, row=0, found=0)
    if row < 0 or used < 0 or used > span.length:
        raise IndexError("rows out of range")
    with nogil:
        row = measure_rows(&records.source, plan, row, records.count, <BatchRow*>span.items, &used, span.length,
                           &failure)
    return WriteOutcome(used, row, failure.fault, failure.found)


cdef int measure_batch(const Source* source, BatchRow* batch, Failure* failure) noexcept nogil:
    cdef Content keys[BLOCK]
    cdef Content values[BLOCK]
    cdef HeaderWindow window
    cdef int64_t row = batch.first_record
    cdef int64_t stop = row + batch.record_count
    cdef int64_t count
    cdef int64_t i
    cdef int64_t delta
    cdef int64_t headers = 1
    cdef int64_t size
    window.start = window.stop = 0
    batch.size = overhead(batch)
    while row < stop:
        count = min(stop - row, <int64_t>BLOCK)
        if not read_pairs(source, row, count, keys, values, failure):
            return OUTSIDE
        for i in range(count):
            failure.row = row + i
            delta = <int64_t>(<uint64_t>number(&source.offsets, row + i) - <uint64_t>batch.base_offset)
            if kb_unlikely(batch.magic == 2 and not -<int64_t>INT32_MAX - 1 <= delta <= INT32_MAX):
                failure.found = delta
                failure.fault = OFFSET_FAR
                return OFFSET_FAR
            if batch.magic == 2:
                headers = headers_size(source, &window, row + i, failure)
                if kb_unlikely(headers < 0):
                    return failure.fault
            size = record_size(
                batch.magic == 2, batch.magic,
                <int64_t>(<uint64_t>number(&source.timestamps, row + i) - <uint64_t>batch.base_timestamp),
                delta, keys[i].n, values[i].n, headers)
            batch.size += size
            if kb_unlikely(size > INT32_MAX or batch.size > INT32_MAX):
                failure.fault = RECORD_SIZE if size > INT32_MAX else BATCH_SIZE
                failure.found = batch.size
                return failure.fault
        row += count
    return NONE


def measure_batches(RecordColumns records not None, batches not None):
    """Set the size of each batch, whose other fields are given; return a `WriteOutcome` of batches."""
    cdef Span span = Span(batches, sizeof(BatchRow), True)
    cdef BatchRow* rows = <BatchRow*>span.items
    cdef Failure failure = Failure(fault=NONE, row=0, found=0)
    cdef int64_t i = 0
    with nogil:
        while i < span.length:
            if rows[i].first_record < 0 or rows[i].record_count < 0 \
                    or rows[i].record_count > records.count - rows[i].first_record:
                failure.fault = OUTSIDE
                failure.row = rows[i].first_record
            else:
                measure_batch(&records.source, rows + i, &failure)
            if failure.fault:
                break
            i += 1
    return WriteOutcome(i, failure.row, failure.fault, failure.found)
