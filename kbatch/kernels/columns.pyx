"""Rows -> contiguous columns and Arrow views, in memory that the caller allocated after measuring the rows (`extents`).

As in `slices`, rows may be strided and are not trusted: each position is checked against the buffer once, and each
write against the memory given.
"""

from typing import NamedTuple

from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

from kbatch.kernels.slices cimport (
    SliceColumn,
    data_start,
    header_name,
    header_slices,
    int32_at,
    int64_at,
    is_outside,
    outside_error,
    record_name,
    record_slices,
    slice_length,
    sum_lengths,
)
from kbatch.kernels.spans cimport RecordSpan
from kbatch.kernels.wire cimport HeaderRow, kb_likely, kb_prefetch, kb_unlikely

# Values of up to this many bytes are copied as one block of 16 bytes, the end of which the next value overwrites. The
# memory for a column's bytes must therefore be this much longer than the column. A `memcpy` of constant size is one or
# two vector moves; one of variable size is a call that costs more than the copy.
COPY_SLACK = 16
cdef enum:
    SLACK = 16

    # Rows that are written at a time, in one column after the other: few enough that writes of one block overlap with
    # reads of the next. With 256 rows memory and computation took turns, 12.1 instead of 8.6 ns per record of 50 bytes.
    # A multiple of 8, so that no byte of a bitmap belongs to two blocks.
    FILL_ROWS = 16
    # Rows are prefetched this many rows ahead, and two cache lines of the bytes they point to this many.
    ROWS_AHEAD = 128
    BYTES_AHEAD = 64
    CACHE_LINE = 64

    INLINE = 12  # bytes of a value that an Arrow view holds itself


cdef enum GatherFault:
    GATHERED = 0
    OUTSIDE = 1  # a slice isn't within the data
    OVER_CAPACITY = 2  # the rows have more bytes than were measured


# The memory that a kernel writes one binary column to.
cdef struct ColumnMemory:
    int width
    uint8_t* slots
    uint8_t* content
    int64_t capacity
    int64_t written
    int64_t nulls
    uint8_t* valid
    int view_shift


# Keys and values of the same rows, and where each of them is written to, or NULL.
cdef struct Pairs:
    SliceColumn keys
    SliceColumn values
    ColumnMemory* key
    ColumnMemory* value
    const uint8_t* data
    int64_t size
    Py_ssize_t row  # of a fault
    bint in_key


ctypedef fused offset_t:
    int32_t
    int64_t


class CapacityError(RuntimeError):
    """The rows have more bytes than there is memory for: more than was measured or estimated."""


cdef class BinarySink:
    """Memory for one binary column: offsets or views, the bytes, and the validity bitmap.

    Parameters
    ----------
    rows : int
        Length of the column.
    width : int
        Size of an item of `slots`: 4 for ``rows + 1`` int32 offsets, 8 for ``rows + 1`` int64 offsets, 16 for views.
    slots : ndarray of uint8
        Memory for offsets or views.
    content : ndarray of uint8, optional
        Memory for the bytes, `COPY_SLACK` longer than the column's bytes. Views do not need it.
    valid : ndarray of uint8, optional
        Memory for the bitmap, one bit per row. The caller may drop the bitmap if `nulls` is 0. Without it nulls become
        empty.
    view_shift : int
        Views refer to buffer number ``position >> view_shift``, which starts at that multiple of the data.

    Attributes
    ----------
    nulls : int
        Number of nulls among the rows written.
    nbytes : int
        Number of bytes written to `content`.
    """

    cdef ColumnMemory memory
    cdef int64_t rows
    cdef uint8_t[::1] _slots, _content, _valid

    def __init__(
        self,
        int64_t rows,
        int width,
        uint8_t[::1] slots not None,
        uint8_t[::1] content=None,
        uint8_t[::1] valid=None,
        int view_shift=30,
    ):
        if width not in (4, 8, 16) or rows < 0 or not 0 <= view_shift <= 30:
            raise ValueError(f"rows={rows}, width={width}, view_shift={view_shift}")
        if slots.shape[0] < (rows if width == 16 else rows + 1) * width:
            raise ValueError(f"slots has {slots.shape[0]} bytes, {rows} rows of width {width} need more")
        if valid is not None and valid.shape[0] < (rows + 7) // 8:
            raise ValueError(f"valid has {valid.shape[0]} bytes, {rows} rows need {(rows + 7) // 8}")
        if width != 16 and (content is None or content.shape[0] < SLACK):
            raise ValueError(f"content must have {SLACK} bytes more than the column")
        self.rows = rows
        self._slots = slots
        self._content = content
        self._valid = valid
        self.memory.width = width
        self.memory.slots = &slots[0] if slots.shape[0] else NULL
        self.memory.content = &content[0] if content is not None else NULL
        self.memory.capacity = content.shape[0] - SLACK if content is not None else 0
        self.memory.written = 0
        self.memory.nulls = 0
        self.memory.valid = &valid[0] if valid is not None and valid.shape[0] else NULL
        self.memory.view_shift = view_shift
        if width == 4:
            (<int32_t*> self.memory.slots)[0] = 0
        elif width == 8:
            (<int64_t*> self.memory.slots)[0] = 0

    @property
    def nulls(self):
        return self.memory.nulls

    @property
    def nbytes(self):
        return self.memory.written


cdef inline void copy_ends(uint8_t* out, const uint8_t* p, int64_t n, int64_t half) noexcept nogil:
    """Copy `n` bytes, ``half <= n <= 2 * half``, as two overlapping halves: no other byte is touched."""
    memcpy(out, p, half)
    memcpy(out + n - half, p + n - half, half)


cdef inline void copy_bytes(uint8_t* out, const uint8_t* p, int64_t n, int64_t readable) noexcept nogil:
    # No loop up to 256 bytes: the processor mispredicts its iterations where lengths differ.
    if n <= 16:
        if kb_likely(readable >= 16):
            memcpy(out, p, 16)
        else:
            memcpy(out, p, n)
    elif n <= 32:
        copy_ends(out, p, n, 16)
    elif n <= 64:
        copy_ends(out, p, n, 32)
    elif n <= 128:
        copy_ends(out, p, n, 64)
    elif n <= 256:
        copy_ends(out, p, n, 128)
    else:
        memcpy(out, p, n)


cdef inline void write_bits(uint8_t* valid, Py_ssize_t begin, Py_ssize_t end, uint32_t bits) noexcept nogil:
    """Write the bits of a block of rows, the lowest one first, and no byte more than they take."""
    valid[begin >> 3] = <uint8_t> bits
    if end - begin > 8:
        valid[(begin >> 3) + 1] = <uint8_t> (bits >> 8)


cdef inline void finish_bitmap(
    SliceColumn s, ColumnMemory* memory, Py_ssize_t begin, Py_ssize_t end, int64_t nulls
) noexcept nogil:
    """Write the bits of a block of rows, `nulls` of which are null: nearly always 0."""
    cdef Py_ssize_t i
    cdef uint32_t bits = 0
    memory.nulls += nulls
    if memory.valid == NULL:
        return
    if not nulls:
        write_bits(memory.valid, begin, end, (1 << (end - begin)) - 1)
        return
    for i in range(begin, end):
        bits |= <uint32_t> (slice_length(s, i) >= 0) << (i - begin)
    write_bits(memory.valid, begin, end, bits)


cdef inline int gather_bytes(
    SliceColumn s, const uint8_t* data, int64_t size, ColumnMemory* memory, offset_t* offsets,
    Py_ssize_t begin, Py_ssize_t end, Py_ssize_t* row,
) noexcept nogil:
    cdef const char* position_at = s.position + begin * s.stride
    cdef const char* length_at = s.length + begin * s.stride
    cdef Py_ssize_t i
    cdef int64_t position, length, present, written = memory.written, nulls = 0
    for i in range(begin, end):
        length = int32_at(length_at)
        # A null is read as zero bytes at position 0, without a branch, which would be mispredicted among mixed rows.
        present = ~(length >> 63)
        nulls += 1 + present
        length &= present
        position = int64_at(position_at) & present
        if is_outside(position, length, size):
            row[0] = i
            return OUTSIDE
        if kb_unlikely(length > memory.capacity - written):
            row[0] = i
            return OVER_CAPACITY
        copy_bytes(memory.content + written, data + position, length, size - position)
        written += length
        offsets[i + 1] = <offset_t> written
        position_at += s.stride
        length_at += s.stride
    memory.written = written
    finish_bitmap(s, memory, begin, end, nulls)
    return GATHERED


cdef inline uint64_t low_bytes(int64_t n) noexcept nogil:
    return ~(<uint64_t> 0) if n >= 8 else ((<uint64_t> 1) << (8 * n)) - 1


# The bytes to keep of a view's first 4 bytes of content, and of the next 8, if the content has n bytes.
cdef uint64_t[INLINE + 1] FIRST_MASKS
cdef uint64_t[INLINE + 1] REST_MASKS
for _n in range(INLINE + 1):
    FIRST_MASKS[_n] = low_bytes(min(_n, 4)) << 32
    REST_MASKS[_n] = low_bytes(max(_n - 4, 0))


cdef inline int gather_views(
    SliceColumn s, const uint8_t* data, int64_t size, ColumnMemory* memory,
    Py_ssize_t begin, Py_ssize_t end, Py_ssize_t* row,
) noexcept nogil:
    # A view is length, 4 bytes of prefix, buffer, offset (int32 each), or length and up to 12 bytes, zero-padded.
    cdef const char* position_at = s.position + begin * s.stride
    cdef const char* length_at = s.length + begin * s.stride
    cdef const uint8_t* p
    cdef Py_ssize_t i
    cdef int64_t position, length, present, inlined, nulls = 0
    # A local variable: as far as the compiler knows, the stores below could change the struct.
    cdef int shift = memory.view_shift
    cdef int64_t within = (<int64_t> 1 << shift) - 1
    cdef uint64_t rest, place
    cdef uint32_t first
    cdef uint64_t* views = <uint64_t*> memory.slots + 2 * begin
    cdef uint8_t[INLINE] last
    for i in range(begin, end):
        length = int32_at(length_at)
        present = ~(length >> 63)
        nulls += 1 + present
        length &= present
        position = int64_at(position_at) & present
        if is_outside(position, length, size):
            row[0] = i
            return OUTSIDE
        p = data + position
        inlined = min(length, <int64_t> INLINE)
        if kb_unlikely(size - position < INLINE):
            memset(last, 0, INLINE)
            memcpy(last, p, inlined)
            p = last
        memcpy(&first, p, 4)
        memcpy(&rest, p + 4, 8)
        place = <uint64_t> (position >> shift) | (<uint64_t> (position & within) << 32)
        rest &= REST_MASKS[inlined]
        views[0] = <uint64_t> length | ((<uint64_t> first << 32) & FIRST_MASKS[inlined])
        views[1] = place if length > INLINE else rest
        views += 2
        position_at += s.stride
        length_at += s.stride
    finish_bitmap(s, memory, begin, end, nulls)
    return GATHERED


cdef int gather(
    SliceColumn s, const uint8_t* data, int64_t size, ColumnMemory* memory,
    Py_ssize_t begin, Py_ssize_t end, Py_ssize_t* row,
) noexcept nogil:
    if memory.width == 4:
        return gather_bytes[int32_t](s, data, size, memory, <int32_t*> memory.slots, begin, end, row)
    if memory.width == 8:
        return gather_bytes[int64_t](s, data, size, memory, <int64_t*> memory.slots, begin, end, row)
    return gather_views(s, data, size, memory, begin, end, row)


cdef inline void prefetch_block(
    SliceColumn s, const uint8_t* data, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t rows
) noexcept nogil:
    """Prefetch what later blocks read: their rows, and the first bytes of their slices."""
    cdef const char* position_at = s.position + begin * s.stride
    cdef uintptr_t address
    cdef Py_ssize_t i
    for i in range(begin, end):
        kb_prefetch(position_at + ROWS_AHEAD * s.stride)
        if i + BYTES_AHEAD < rows:
            # An integer: C does not allow a pointer outside the buffer, even unused.
            address = <uintptr_t> data + <uintptr_t> int64_at(position_at + BYTES_AHEAD * s.stride)
            kb_prefetch(<const void*> address)
            kb_prefetch(<const void*> (address + CACHE_LINE))
        position_at += s.stride


cdef inline int gather_pairs(Pairs* pairs, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef int fault = GATHERED
    if pairs.key != NULL:
        fault = gather(pairs.keys, pairs.data, pairs.size, pairs.key, begin, end, &pairs.row)
        pairs.in_key = fault != GATHERED
    if pairs.value != NULL and fault == GATHERED:
        fault = gather(pairs.values, pairs.data, pairs.size, pairs.value, begin, end, &pairs.row)
    return fault


cdef object gather_error(int fault, str row, const Pairs* pairs):
    cdef str column = "key" if pairs.in_key else "value"
    if fault == OUTSIDE:
        return outside_error(row, column, pairs.keys if pairs.in_key else pairs.values, pairs.row, pairs.size)
    return CapacityError(f"{row}: its {column} was changed while columns were made of the table")


cdef inline void gather_offsets(RecordSpan rows, int64_t* out, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const char* offsets = rows.items + rows.fields.offset
    cdef Py_ssize_t i
    for i in range(begin, end):
        out[i] = int64_at(offsets + i * rows.stride)


# The columns of `fill_records` that have a fixed width, and its counts.
cdef struct FixedColumns:
    int64_t* offset
    int64_t* timestamp
    uint8_t* valid
    int64_t scale
    int64_t limit
    int64_t timestamp_nulls
    int64_t timestamp_overflows
    int64_t headers


cdef inline void gather_timestamps(
    RecordSpan rows, FixedColumns* fixed, Py_ssize_t begin, Py_ssize_t end
) noexcept nogil:
    cdef const char* timestamps = rows.items + rows.fields.timestamp
    cdef Py_ssize_t stride = rows.stride, i
    # Local variables: as far as the compiler knows, the stores below could change the struct.
    cdef int64_t* out = fixed.timestamp
    cdef int64_t scale = fixed.scale, limit = fixed.limit, t, nulls = 0, overflows = 0
    cdef uint32_t bits = 0
    if scale == 1:
        for i in range(begin, end):
            t = int64_at(timestamps + i * stride)
            nulls += t == -1
            out[i] = t
    else:
        for i in range(begin, end):
            t = int64_at(timestamps + i * stride)
            nulls += t == -1
            overflows += (t > limit) | (t < -limit)
            out[i] = <int64_t> (<uint64_t> t * <uint64_t> scale)
    if kb_likely(not nulls + overflows):
        if fixed.valid != NULL:
            write_bits(fixed.valid, begin, end, (1 << (end - begin)) - 1)
        return
    fixed.timestamp_nulls += nulls
    fixed.timestamp_overflows += overflows
    for i in range(begin, end):
        t = int64_at(timestamps + i * stride)
        # At a scale of 1 only INT64_MIN is beyond the limit, and it fits.
        if t == -1 or (scale > 1 and (t > limit or t < -limit)):
            out[i] = 0
        else:
            bits |= <uint32_t> 1 << (i - begin)
    if fixed.valid != NULL:
        write_bits(fixed.valid, begin, end, bits)


cdef int fill_blocks(RecordSpan rows, FixedColumns* fixed, Pairs* pairs) noexcept nogil:
    """Write all columns, a block of rows at a time."""
    cdef Py_ssize_t n = rows.length, begin = 0, end
    cdef int fault = GATHERED
    while begin < n and fault == GATHERED:
        end = min(begin + FILL_ROWS, n)
        if pairs.key != NULL:
            prefetch_block(pairs.keys, pairs.data, begin, end, n)
        elif pairs.value != NULL:
            prefetch_block(pairs.values, pairs.data, begin, end, n)
        if fixed.offset != NULL:
            gather_offsets(rows, fixed.offset, begin, end)
        if fixed.timestamp != NULL:
            gather_timestamps(rows, fixed, begin, end)
        fault = gather_pairs(pairs, begin, end)
        if rows.fields.header_count >= 0:
            fixed.headers += sum_lengths(
                rows.items + begin * rows.stride + rows.fields.header_count, rows.stride, end - begin
            )
        begin = end
    return fault


class Filled(NamedTuple):
    """Counts of a pass of `fill_records`.

    Attributes
    ----------
    timestamp_nulls, timestamp_overflows : int
        Number of timestamps that are -1, and that do not fit int64 when multiplied by the scale.
    headers : int
        Number of headers of the rows, 0 if they have no ``header_count``.
    """

    timestamp_nulls: int
    timestamp_overflows: int
    headers: int


def fill_records(
    records not None,
    const uint8_t[::1] data not None,
    *,
    int64_t[::1] offset=None,
    int64_t[::1] timestamp=None,
    uint8_t[::1] timestamp_valid=None,
    int64_t timestamp_scale=1,
    BinarySink key=None,
    BinarySink value=None,
    int64_t first_row=0,
):
    """Write the requested columns in one pass over the rows.

    Parameters
    ----------
    records : ndarray of RECORD_DTYPE or some of its fields, shape (n,)
    data : ndarray of uint8
        The buffer that the rows' positions index.
    offset, timestamp : ndarray of int64, shape (n,), optional
    timestamp_valid : ndarray of uint8, optional
        Bitmap: 0 where the timestamp is -1 (none) or, times `timestamp_scale`, doesn't fit int64. These timestamps
        become 0.
    timestamp_scale : int
        Factor on timestamps, which are milliseconds.
    key, value : BinarySink, optional
    first_row : int
        Number of the first row in its table, for error messages.

    Returns
    -------
    Filled
        Null counts of the other columns; the sinks of keys and values have their own.

    Raises
    ------
    IndexError
        If a key or value isn't within `data` (COL-R1).
    CapacityError
        If keys or values have more bytes than their sink has capacity for.
    ValueError
        If an output is too short, or the rows lack its field.
    """
    cdef RecordSpan rows = RecordSpan(records)
    cdef Py_ssize_t n = rows.length, fault
    cdef FixedColumns fixed
    cdef Pairs pairs
    if (
        (offset is not None and offset.shape[0] < n)
        or (timestamp is not None and timestamp.shape[0] < n)
        or (timestamp_valid is not None and timestamp_valid.shape[0] < (n + 7) // 8)
        or (key is not None and key.rows < n)
        or (value is not None and value.rows < n)
    ):
        raise ValueError(f"an output is too short for {n} rows")
    if timestamp_scale < 1:
        raise ValueError(f"timestamp_scale must be positive, got {timestamp_scale}")
    if (offset is not None and rows.fields.offset < 0) or (timestamp is not None and rows.fields.timestamp < 0):
        raise ValueError(f"the rows have no {'offset' if rows.fields.offset < 0 else 'timestamp'}")
    memset(&fixed, 0, sizeof(FixedColumns))
    memset(&pairs, 0, sizeof(Pairs))
    if key is not None:
        pairs.keys, pairs.key = record_slices(rows, False), &key.memory
    if value is not None:
        pairs.values, pairs.value = record_slices(rows, True), &value.memory
    if n == 0:
        return Filled(0, 0, 0)
    pairs.data, pairs.size = data_start(data), data.shape[0]
    fixed.scale, fixed.limit = timestamp_scale, INT64_MAX // timestamp_scale
    if offset is not None:
        fixed.offset = &offset[0]
    if timestamp is not None:
        fixed.timestamp = &timestamp[0]
    if timestamp_valid is not None:
        fixed.valid = &timestamp_valid[0]
    with nogil:
        fault = fill_blocks(rows, &fixed, &pairs)
    if fault != GATHERED:
        raise gather_error(fault, record_name(rows, pairs.row, first_row), &pairs)
    return Filled(fixed.timestamp_nulls, fixed.timestamp_overflows, fixed.headers)


cdef Py_ssize_t fill_list_offsets(
    const HeaderRow[:] headers, int64_t first_record, int32_t[::1] offsets, uint8_t[::1] valid
) noexcept nogil:
    """Write the offsets and the bitmap of the header lists; return the first header that belongs to no record."""
    cdef Py_ssize_t n = offsets.shape[0] - 1, m = headers.shape[0], i, h = 0
    cdef uint8_t bits = 0
    offsets[0] = 0
    for i in range(n):
        if h < m and headers[h].record == first_record + i:
            bits |= <uint8_t> (1 << (i & 7))
            while h < m and headers[h].record == first_record + i:
                h += 1
        offsets[i + 1] = <int32_t> h
        if (i & 7) == 7:
            if valid is not None:
                valid[i >> 3] = bits
            bits = 0
    if valid is not None and n & 7:
        valid[n >> 3] = bits
    return h


def fill_headers(
    const HeaderRow[:] headers not None,
    const uint8_t[::1] data not None,
    int64_t first_record,
    int32_t[::1] offsets not None,
    *,
    uint8_t[::1] valid=None,
    BinarySink key not None,
    BinarySink value not None,
    int64_t first_row=0,
):
    """Write the columns of a list of (key, value) pairs: list offsets, keys and values, in their order (HDR-R5).

    Parameters
    ----------
    headers : ndarray of HEADER_DTYPE, shape (m,)
        In the order of the records; ``record`` counts from `first_record`.
    data : ndarray of uint8
    first_record : int
        Number of the record that ``offsets[0]`` belongs to.
    offsets : ndarray of int32, shape (n + 1,)
        Receives the list offsets of n records.
    valid : ndarray of uint8, optional
        Bitmap: 0 where a record has no header.
    key, value : BinarySink
    first_row : int
        Number of the first header in its table, for error messages.

    Raises
    ------
    IndexError
        If a header isn't within `data`, or belongs to none of the n records.
    """
    cdef Py_ssize_t n = offsets.shape[0] - 1, m = headers.shape[0], h, begin = 0, end
    cdef Pairs pairs = Pairs(
        header_slices(headers, False), header_slices(headers, True), &key.memory, &value.memory, data_start(data),
        data.shape[0], 0, False
    )
    cdef int fault = GATHERED
    if n < 0 or key.rows < m or value.rows < m or (valid is not None and valid.shape[0] < (n + 7) // 8):
        raise ValueError(f"an output is too short for {n} records and {m} headers")
    if m > INT32_MAX:
        raise ValueError(f"{m} headers are more than int32 offsets hold")
    with nogil:
        h = fill_list_offsets(headers, first_record, offsets, valid)
        while begin < m and fault == GATHERED:
            end = min(begin + FILL_ROWS, m)
            prefetch_block(pairs.keys, pairs.data, begin, end, m)
            fault = gather_pairs(&pairs, begin, end)
            begin = end
    if h < m:
        raise IndexError(
            f"header row {first_row + h} belongs to record {headers[h].record}, "
            f"not one of {first_record} to {first_record + n - 1} in their order"
        )
    if fault != GATHERED:
        raise gather_error(fault, header_name(headers, pairs.row, first_row), &pairs)
