"""Slices -> contiguous columns and Arrow views.

A table's rows say where keys, values and headers stand in one buffer. The functions here measure rows, then write
columns into memory that the caller allocated after measuring. Rows may be strided (a slice of a table), and have some
fields of RECORD_DTYPE only, but are never trusted: positions are checked against the buffer once per row, and writes
against the memory given, so that rows made or changed by a user give an exception and never a crash.
"""

from typing import NamedTuple

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy, memset

from kbatch.kernels.spans cimport RecordSpan
from kbatch.kernels.wire cimport HeaderRow, kb_likely, kb_prefetch, kb_unlikely

# Values of up to this many bytes are copied whole, whatever their length, into bytes that the next value overwrites: so
# the memory for a column's bytes must be this much longer than the column. `memcpy` with a constant size is a vector
# move or two, with a variable size a call that costs more than the copy.
COPY_SLACK = 16
cdef enum:
    SLACK = 16

    # Rows that `measure` takes at a time.
    BLOCK = 256
    # Rows of one turn over all columns: so few that what the turn before wrote and what the next reads are under way at
    # the same time; with 256 rows memory and computation took turns, 12.1 instead of 8.6 ns a record of 50 bytes. A
    # multiple of 8, so that no byte of a bitmap belongs to two turns.
    TURN = 16
    # So many rows ahead rows are asked for, and so many the bytes that they point to: two cache lines.
    ROWS_AHEAD = 128
    BYTES_AHEAD = 64
    CACHE_LINE = 64

    INLINE = 12  # bytes of a value that an Arrow view holds itself

    # `estimate` looks at the first of so many rows in each run of so many.
    SAMPLE = 64
    SAMPLED = 4096


cdef enum Trouble:
    NONE = 0
    OUTSIDE = 1  # a slice isn't within the data
    NO_ROOM = 2  # rows are not those that were measured
    WRONG_LENGTH = 3
    IS_NULL = 4


# One column of (position, length) pairs among the fields of rows: those of the first row, and the way to the next.
cdef struct Slices:
    const char* position
    const char* length
    Py_ssize_t stride


cdef struct Sink:
    int width
    uint8_t* slots
    uint8_t* content
    int64_t room
    int64_t written
    int64_t nulls
    uint8_t* valid
    int view_shift


ctypedef fused offset_t:
    int32_t
    int64_t


cdef class BinarySink:
    """Memory for one binary column: offsets or views, the bytes, and the validity bitmap.

    Parameters
    ----------
    rows : int
        Length of the column.
    width : int
        What `slots` holds: 4 for ``rows + 1`` int32 offsets, 8 for ``rows + 1`` int64 offsets, 16 for views.
    slots : ndarray of uint8
        Memory for offsets or views.
    content : ndarray of uint8, optional
        Memory for the bytes, `COPY_SLACK` longer than the column's bytes. Views need none.
    valid : ndarray of uint8, optional
        Memory for the bitmap, a bit per row; it may be left away where `nulls` is 0. Without it nulls become empty.
    view_shift : int
        Views name buffer ``position >> view_shift``, which starts at that multiple of the data.

    Attributes
    ----------
    nulls : int
        Nulls among the rows that were written.
    nbytes : int
        Bytes that were written to `content`.
    """

    cdef Sink sink
    cdef int64_t rows
    cdef uint8_t[::1] _slots
    cdef uint8_t[::1] _content
    cdef uint8_t[::1] _valid

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
        self.sink.width = width
        self.sink.slots = &slots[0] if slots.shape[0] else NULL
        self.sink.content = &content[0] if content is not None else NULL
        self.sink.room = content.shape[0] - SLACK if content is not None else 0
        self.sink.written = 0
        self.sink.nulls = 0
        self.sink.valid = &valid[0] if valid is not None and valid.shape[0] else NULL
        self.sink.view_shift = view_shift
        if width == 4:
            (<int32_t*> self.sink.slots)[0] = 0
        elif width == 8:
            (<int64_t*> self.sink.slots)[0] = 0

    @property
    def nulls(self):
        return self.sink.nulls

    @property
    def nbytes(self):
        return self.sink.written


cdef struct Totals:
    int64_t key_bytes
    int64_t value_bytes
    int64_t header_count
    int64_t header_stop
    int64_t header_key_bytes
    int64_t header_value_bytes


cdef class Extent:
    """What the rows ``start .. stop - 1`` need as columns; see `measure`."""

    cdef readonly int64_t start
    cdef readonly int64_t stop
    cdef readonly int64_t header_start
    cdef readonly int64_t key_bytes
    cdef readonly int64_t value_bytes
    cdef readonly int64_t header_count
    cdef readonly int64_t header_stop
    cdef readonly int64_t header_key_bytes
    cdef readonly int64_t header_value_bytes


cdef inline int64_t int64_at(const char* field) noexcept nogil:
    return (<const int64_t*> field)[0]


cdef inline int64_t int32_at(const char* field) noexcept nogil:
    return (<const int32_t*> field)[0]


class NoRoomError(RuntimeError):
    """The rows have more bytes than there is memory for: more than was measured, or estimated."""


cdef inline bint is_outside(int64_t position, int64_t length, int64_t size) noexcept nogil:
    return kb_unlikely(<uint64_t> position > <uint64_t> size or length > size - position)


cdef inline int64_t slice_position(Slices s, Py_ssize_t i) noexcept nogil:
    return int64_at(s.position + i * s.stride)


cdef inline int64_t slice_length(Slices s, Py_ssize_t i) noexcept nogil:
    return int32_at(s.length + i * s.stride)


cdef inline void copy_ends(uint8_t* out, const uint8_t* p, int64_t n, int64_t half) noexcept nogil:
    """Copy `n` bytes, `half` to twice as many, as two halves that overlap: no byte beyond is touched."""
    memcpy(out, p, half)
    memcpy(out + n - half, p + n - half, half)


cdef inline void copy_bytes(uint8_t* out, const uint8_t* p, int64_t n, int64_t readable) noexcept nogil:
    # Up to 256 bytes no loop, whose number of turns is guessed wrong where lengths differ.
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


cdef inline void set_bits(uint8_t* valid, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Set the bits of a turn."""
    cdef uint16_t bits = 0xFFFF
    if kb_likely(end - begin == TURN):
        memcpy(valid + (begin >> 3), &bits, 2)
    else:
        write_bits(valid, begin, end, (1 << (end - begin)) - 1)


cdef inline void write_bits(uint8_t* valid, Py_ssize_t begin, Py_ssize_t end, uint32_t bits) noexcept nogil:
    """Write the bits of a turn, the lowest one first; not a byte more than they take."""
    valid[begin >> 3] = <uint8_t> bits
    if end - begin > 8:
        valid[(begin >> 3) + 1] = <uint8_t> (bits >> 8)


cdef inline void finish_bitmap(Slices s, Sink* sink, Py_ssize_t begin, Py_ssize_t end, int64_t nulls) noexcept nogil:
    """Write the bits of a turn, of whose rows so many are null: nearly always none."""
    cdef Py_ssize_t i
    cdef uint32_t bits = 0
    sink.nulls += nulls
    if sink.valid == NULL:
        return
    if not nulls:
        set_bits(sink.valid, begin, end)
        return
    for i in range(begin, end):
        bits |= <uint32_t> (slice_length(s, i) >= 0) << (i - begin)
    write_bits(sink.valid, begin, end, bits)


cdef inline int gather_bytes(
    Slices s, const uint8_t* data, int64_t size, Sink* sink, offset_t* offsets,
    Py_ssize_t begin, Py_ssize_t end, Py_ssize_t* row,
) noexcept nogil:
    cdef const char* position_at = s.position + begin * s.stride
    cdef const char* length_at = s.length + begin * s.stride
    cdef Py_ssize_t i
    cdef int64_t position, length, present
    cdef int64_t written = sink.written
    cdef int64_t nulls = 0
    for i in range(begin, end):
        length = int32_at(length_at)
        # A null is zero bytes at position 0: without a branch, as where some are null no guess would hold.
        present = ~(length >> 63)
        nulls += 1 + present
        length &= present
        position = int64_at(position_at) & present
        if is_outside(position, length, size):
            row[0] = i
            return OUTSIDE
        if kb_unlikely(length > sink.room - written):
            row[0] = i
            return NO_ROOM
        copy_bytes(sink.content + written, data + position, length, size - position)
        written += length
        offsets[i + 1] = <offset_t> written
        position_at += s.stride
        length_at += s.stride
    sink.written = written
    finish_bitmap(s, sink, begin, end, nulls)
    return NONE


cdef inline uint64_t low_bytes(int64_t n) noexcept nogil:
    return ~(<uint64_t> 0) if n >= 8 else ((<uint64_t> 1) << (8 * n)) - 1


# What stays of a view's first 4 bytes of content, where it has n of them, and of the 8 that follow.
cdef uint64_t[INLINE + 1] FIRST_MASKS
cdef uint64_t[INLINE + 1] REST_MASKS
for _n in range(INLINE + 1):
    FIRST_MASKS[_n] = low_bytes(min(_n, 4)) << 32
    REST_MASKS[_n] = low_bytes(max(_n - 4, 0))


cdef inline int gather_views(
    Slices s, const uint8_t* data, int64_t size, Sink* sink,
    Py_ssize_t begin, Py_ssize_t end, Py_ssize_t* row,
) noexcept nogil:
    # A view is length, 4 bytes of prefix, buffer, offset (int32 each), or length and up to 12 bytes, zero-padded.
    cdef const char* position_at = s.position + begin * s.stride
    cdef const char* length_at = s.length + begin * s.stride
    cdef const uint8_t* p
    cdef Py_ssize_t i
    cdef int64_t position, length, present, inlined
    cdef int64_t nulls = 0
    # A local: for all the compiler knows, what is written could be the sink's own.
    cdef int shift = sink.view_shift
    cdef int64_t within = (<int64_t> 1 << shift) - 1
    cdef uint64_t rest, place
    cdef uint32_t first
    cdef uint64_t* views = <uint64_t*> sink.slots + 2 * begin
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
    finish_bitmap(s, sink, begin, end, nulls)
    return NONE


cdef inline int gather(
    Slices s, const uint8_t* data, int64_t size, Sink* sink, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t* row,
) noexcept nogil:
    if sink.width == 4:
        return gather_bytes[int32_t](s, data, size, sink, <int32_t*> sink.slots, begin, end, row)
    if sink.width == 8:
        return gather_bytes[int64_t](s, data, size, sink, <int64_t*> sink.slots, begin, end, row)
    return gather_views(s, data, size, sink, begin, end, row)


cdef inline void fetch(
    Slices s, const uint8_t* data, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t rows
) noexcept nogil:
    """Ask for what a turn to come reads: its rows, and the bytes where the first column of these begins."""
    cdef const char* position_at = s.position + begin * s.stride
    cdef uintptr_t coming
    cdef Py_ssize_t i
    for i in range(begin, end):
        kb_prefetch(position_at + ROWS_AHEAD * s.stride)
        if i + BYTES_AHEAD < rows:
            # As a number: a position that points nowhere must not make a pointer.
            coming = <uintptr_t> data + <uintptr_t> int64_at(position_at + BYTES_AHEAD * s.stride)
            kb_prefetch(<const void*> coming)
            kb_prefetch(<const void*> (coming + CACHE_LINE))
        position_at += s.stride


cdef Slices record_slices(RecordSpan rows, bint values) except *:
    cdef Py_ssize_t position = rows.fields.value_pos if values else rows.fields.key_pos
    cdef Py_ssize_t length = rows.fields.value_len if values else rows.fields.key_len
    if position < 0 or length < 0:
        raise ValueError(f"the rows have no {'value' if values else 'key'}")
    return Slices(rows.items + position, rows.items + length, rows.stride)


cdef Slices header_slices(const HeaderRow[:] headers, bint values) noexcept:
    cdef Slices s = Slices(NULL, NULL, headers.strides[0])
    if headers.shape[0]:
        s.position = <const char*> &headers[0].value_pos if values else <const char*> &headers[0].key_pos
        s.length = <const char*> &headers[0].value_len if values else <const char*> &headers[0].key_len
    return s


# An address to read no bytes from.
cdef uint8_t nothing = 0


cdef const uint8_t* address(const uint8_t[::1] data) noexcept:
    return &data[0] if data.shape[0] else &nothing


cdef object trouble_error(int trouble, str row, str column, Slices s, Py_ssize_t i, int64_t size):
    if trouble == OUTSIDE:
        return IndexError(
            f"{row}: its {column} is {slice_length(s, i)} bytes at position {slice_position(s, i)}, "
            f"outside the table's data of {size} bytes"
        )
    return NoRoomError(f"{row}: its {column} was changed while columns were made of the table")


cdef str record_name(RecordSpan rows, Py_ssize_t i, int64_t first_row):
    return f"record row {first_row + i}" + (f" (offset {rows.offset(i)})" if rows.fields.offset >= 0 else "")


cdef str header_name(const HeaderRow[:] headers, Py_ssize_t i, int64_t first_row):
    return f"header row {first_row + i} (of record row {headers[i].record})"


cdef inline int64_t sum_lengths(const char* field, Py_ssize_t stride, Py_ssize_t n) noexcept nogil:
    # In locals, without a branch: such loops run at the speed of memory.
    cdef int64_t total = 0, length
    cdef Py_ssize_t _i
    for _i in range(n):
        length = int32_at(field)
        total += length if length > 0 else 0
        field += stride
    return total


cdef void add_records(RecordSpan rows, Py_ssize_t begin, Py_ssize_t end, Totals* totals) noexcept nogil:
    # A block of rows is in the cache, so that a loop for each field that is there costs no more than one for all.
    cdef const char* first = rows.items + begin * rows.stride
    cdef Py_ssize_t n = end - begin
    if rows.fields.key_len >= 0:
        totals.key_bytes += sum_lengths(first + rows.fields.key_len, rows.stride, n)
    if rows.fields.value_len >= 0:
        totals.value_bytes += sum_lengths(first + rows.fields.value_len, rows.stride, n)
    if rows.fields.header_count >= 0:
        totals.header_count += sum_lengths(first + rows.fields.header_count, rows.stride, n)


cdef void add_headers(
    const HeaderRow[:] headers, Py_ssize_t begin, Py_ssize_t end, Totals* totals
) noexcept nogil:
    cdef Py_ssize_t h = totals.header_stop
    cdef int64_t last = begin
    # In their order, or not at all: what is left over is an error.
    while h < headers.shape[0] and last <= headers[h].record < end:
        last = headers[h].record
        totals.header_key_bytes += headers[h].key_len if headers[h].key_len > 0 else 0
        totals.header_value_bytes += headers[h].value_len if headers[h].value_len > 0 else 0
        h += 1
    totals.header_stop = h


def measure(
    records not None,
    int64_t start=0,
    *,
    int64_t max_rows=INT64_MAX,
    int64_t max_column_bytes=INT64_MAX,
    int64_t max_bytes=INT64_MAX,
    const HeaderRow[:] headers=None,
    int64_t header_start=0,
):
    """Count what rows from `start` on need as columns, up to the row that would pass a bound.

    Parameters
    ----------
    records : ndarray of RECORD_DTYPE or some of its fields, shape (n,)
        Only the fields that are there count, towards the bounds too.
    start : int
        First row.
    max_rows, max_column_bytes, max_bytes : int
        Bounds on the rows, on the bytes of each binary column (and on the number of headers, which an int32 must
        always hold), and on the bytes of keys, values and headers together. One row is taken whatever its size.
    headers : ndarray of HEADER_DTYPE, optional
        With it headers count towards the bounds, and the header fields of the result are set.
    header_start : int
        First row of `headers` that belongs to the rows from `start` on.

    Returns
    -------
    Extent

    Raises
    ------
    IndexError
        If `start` is outside the rows, or `headers` is not in the order of the records.
    """
    cdef RecordSpan rows = RecordSpan(records)
    cdef Py_ssize_t n = rows.length
    cdef Py_ssize_t m = headers.shape[0] if headers is not None else 0
    cdef Py_ssize_t i = start, end, step, stop
    cdef int64_t header_limit = min(max_column_bytes, <int64_t> INT32_MAX)
    cdef Totals totals, grown
    if not 0 <= start <= n:
        raise IndexError(f"row {start} of {n} rows")
    if not 0 <= header_start <= m:
        raise IndexError(f"header row {header_start} of {m} rows")
    end = start + min(n - start, max_rows if max_rows > 1 else 1)
    memset(&totals, 0, sizeof(Totals))
    totals.header_stop = header_start
    with nogil:
        # Blocks of rows as long as they fit, then row by row.
        step = BLOCK
        while i < end:
            stop = min(i + step, end)
            grown = totals
            add_records(rows, i, stop, &grown)
            if m:
                add_headers(headers, i, stop, &grown)
                grown.header_count = grown.header_stop - header_start
            if stop > start + 1 and (
                grown.key_bytes > max_column_bytes
                or grown.value_bytes > max_column_bytes
                or grown.header_key_bytes > max_column_bytes
                or grown.header_value_bytes > max_column_bytes
                or grown.header_count > header_limit
                or grown.key_bytes + grown.value_bytes + grown.header_key_bytes + grown.header_value_bytes > max_bytes
            ):
                if stop == i + 1:
                    break
                step = 1
            else:
                totals = grown
                i = stop
    if totals.header_stop < m and (i == n or headers[totals.header_stop].record < i):
        raise IndexError(
            f"header row {totals.header_stop} belongs to record {headers[totals.header_stop].record}, "
            f"not one of {n} in their order"
        )
    cdef Extent extent = Extent.__new__(Extent)
    extent.start = start
    extent.stop = i
    extent.header_start = header_start
    extent.key_bytes = totals.key_bytes
    extent.value_bytes = totals.value_bytes
    extent.header_count = totals.header_count
    extent.header_stop = totals.header_stop
    extent.header_key_bytes = totals.header_key_bytes
    extent.header_value_bytes = totals.header_value_bytes
    return extent


def estimate(records not None, int64_t size):
    """Tell what all rows are likely to need as columns, from a look at some of them.

    Parameters
    ----------
    records : ndarray of RECORD_DTYPE or some of its fields, shape (n,)
    size : int
        Bytes that the rows point into. What is estimated is no more than that: only where rows repeat each other can
        they need more, and a few long values that are looked at say little about the rest.

    Returns
    -------
    Extent
        Of all rows. Where rows are many, the bytes of keys and values are those of one row in 64, with a margin: it
        costs nothing beside a pass over all of them. `fill_records` tells where they are too few.
    """
    cdef RecordSpan rows = RecordSpan(records)
    cdef Py_ssize_t n = rows.length
    cdef Py_ssize_t i = 0, seen = 0, stop
    # Rows of all places count the same, also the last ones.
    cdef Py_ssize_t every = SAMPLED if n > 4 * SAMPLED else SAMPLE
    cdef Totals totals
    memset(&totals, 0, sizeof(Totals))
    with nogil:
        while i < n:
            stop = min(i + SAMPLE, n)
            add_records(rows, i, stop, &totals)
            seen += stop - i
            i += every
    cdef Extent extent = Extent.__new__(Extent)
    extent.start = 0
    extent.stop = n
    extent.key_bytes = likely(totals.key_bytes, seen, n, size)
    extent.value_bytes = likely(totals.value_bytes, seen, n, size)
    extent.header_count = totals.header_count
    return extent


cdef int64_t likely(int64_t found, Py_ssize_t seen, Py_ssize_t n, int64_t size) noexcept:
    if seen == n:
        return found
    return min(<int64_t> (<double> found / seen * n * 1.0625) + 4096, size)


cdef inline void gather_offsets(RecordSpan rows, int64_t* out, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const char* offsets = rows.items + rows.fields.offset
    cdef Py_ssize_t i
    for i in range(begin, end):
        out[i] = int64_at(offsets + i * rows.stride)


# What `fill_records` came across.
cdef struct Found:
    int64_t timestamp_nulls
    int64_t timestamp_overflows


cdef inline void gather_timestamps(
    RecordSpan rows, int64_t* out, uint8_t* valid, int64_t scale, int64_t limit, Py_ssize_t begin, Py_ssize_t end,
    Found* found,
) noexcept nogil:
    cdef const char* timestamps = rows.items + rows.fields.timestamp
    cdef Py_ssize_t stride = rows.stride
    cdef Py_ssize_t i
    cdef int64_t t, nulls = 0, overflows = 0
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
        if valid != NULL:
            set_bits(valid, begin, end)
        return
    found.timestamp_nulls += nulls
    found.timestamp_overflows += overflows
    for i in range(begin, end):
        t = int64_at(timestamps + i * stride)
        # At a scale of 1 only INT64_MIN is beyond the limit, and it fits.
        if t == -1 or (scale > 1 and (t > limit or t < -limit)):
            out[i] = 0
        else:
            bits |= <uint32_t> 1 << (i - begin)
    if valid != NULL:
        write_bits(valid, begin, end, bits)


class Filled(NamedTuple):
    """What `fill_records` came across.

    Attributes
    ----------
    timestamp_nulls, timestamp_overflows : int
        Timestamps of -1, and those that times the scale don't fit int64.
    headers : int
        How many headers the rows have, if they tell.
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
    """Write the columns asked for, in one pass over the rows.

    Parameters
    ----------
    records : ndarray of RECORD_DTYPE or some of its fields, shape (n,)
    data : ndarray of uint8
        What the rows' positions index.
    offset, timestamp : ndarray of int64, shape (n,), optional
    timestamp_valid : ndarray of uint8, optional
        Bitmap: 0 where the timestamp is -1 (none) or, times `timestamp_scale`, doesn't fit int64; where there is none
        of these, it may be left away. Without it they become 0.
    timestamp_scale : int
        Factor on timestamps, which are milliseconds.
    key, value : BinarySink, optional
    first_row : int
        What the first of the rows is called in an error: its number in the table.

    Returns
    -------
    Filled
        What there is no column for; the nulls among keys and values stand in their sinks.

    Raises
    ------
    IndexError
        If a key or value isn't within `data` (COL-R1).
    NoRoomError
        If there are more bytes of keys or values than a sink has room for.
    ValueError
        If an output is too short, or the rows have no field for it.
    """
    cdef RecordSpan rows = RecordSpan(records)
    cdef Py_ssize_t n = rows.length
    cdef Py_ssize_t begin = 0, end, row = 0
    cdef int64_t size = data.shape[0]
    cdef const uint8_t* p = address(data)
    cdef Slices keys = Slices(NULL, NULL, 0)
    cdef Slices values = Slices(NULL, NULL, 0)
    cdef Sink* key_sink = &key.sink if key is not None else NULL
    cdef Sink* value_sink = &value.sink if value is not None else NULL
    cdef int64_t* offset_out = NULL
    cdef int64_t* timestamp_out = NULL
    cdef uint8_t* valid_out = NULL
    cdef Found found
    cdef int64_t headers = 0, limit
    cdef int trouble = NONE
    cdef bint in_key = False
    found.timestamp_nulls = 0
    found.timestamp_overflows = 0
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
    if key is not None:
        keys = record_slices(rows, False)
    if value is not None:
        values = record_slices(rows, True)
    limit = INT64_MAX // timestamp_scale
    if n == 0:
        return Filled(0, 0, 0)
    if offset is not None:
        offset_out = &offset[0]
    if timestamp is not None:
        timestamp_out = &timestamp[0]
    if timestamp_valid is not None:
        valid_out = &timestamp_valid[0]
    with nogil:
        while begin < n and trouble == NONE:
            end = min(begin + TURN, n)
            if key_sink != NULL:
                fetch(keys, p, begin, end, n)
            elif value_sink != NULL:
                fetch(values, p, begin, end, n)
            if offset_out != NULL:
                gather_offsets(rows, offset_out, begin, end)
            if timestamp_out != NULL:
                gather_timestamps(rows, timestamp_out, valid_out, timestamp_scale, limit, begin, end, &found)
            if key_sink != NULL:
                trouble = gather(keys, p, size, key_sink, begin, end, &row)
                in_key = trouble != NONE
            if value_sink != NULL and trouble == NONE:
                trouble = gather(values, p, size, value_sink, begin, end, &row)
            if rows.fields.header_count >= 0:
                headers += sum_lengths(
                    rows.items + begin * rows.stride + rows.fields.header_count, rows.stride, end - begin
                )
            begin = end
    if trouble != NONE:
        raise trouble_error(
            trouble,
            record_name(rows, row, first_row),
            "key" if in_key else "value",
            keys if in_key else values,
            row,
            size,
        )
    return Filled(found.timestamp_nulls, found.timestamp_overflows, headers)


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
        In the order of the records, ``record`` counting from `first_record`.
    data : ndarray of uint8
    first_record : int
        Number of the record that ``offsets[0]`` belongs to.
    offsets : ndarray of int32, shape (n + 1,)
        Gets the list offsets of n records.
    valid : ndarray of uint8, optional
        Bitmap: 0 where a record has no header.
    key, value : BinarySink
    first_row : int
        What the first of the headers is called in an error: its number in the table.

    Raises
    ------
    IndexError
        If a header isn't within `data`, or belongs to none of the n records.
    """
    cdef Py_ssize_t n = offsets.shape[0] - 1
    cdef Py_ssize_t m = headers.shape[0]
    cdef Py_ssize_t i, h = 0, begin = 0, end, row = 0
    cdef int64_t size = data.shape[0]
    cdef const uint8_t* p = address(data)
    cdef Slices keys = header_slices(headers, False)
    cdef Slices values = header_slices(headers, True)
    cdef int trouble = NONE
    cdef bint in_key = False
    cdef uint8_t bits = 0
    if n < 0 or key.rows < m or value.rows < m or (valid is not None and valid.shape[0] < (n + 7) // 8):
        raise ValueError(f"an output is too short for {n} records and {m} headers")
    if m > INT32_MAX:
        raise ValueError(f"{m} headers are more than int32 offsets hold")
    with nogil:
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
        while begin < m and trouble == NONE:
            end = min(begin + TURN, m)
            fetch(keys, p, begin, end, m)
            trouble = gather(keys, p, size, &key.sink, begin, end, &row)
            in_key = trouble != NONE
            if trouble == NONE:
                trouble = gather(values, p, size, &value.sink, begin, end, &row)
            begin = end
    if h < m:
        raise IndexError(
            f"header row {first_row + h} belongs to record {headers[h].record}, "
            f"not one of {first_record} to {first_record + n - 1} in their order"
        )
    if trouble != NONE:
        raise trouble_error(
            trouble,
            header_name(headers, row, first_row),
            "key" if in_key else "value",
            keys if in_key else values,
            row,
            size,
        )


def gather_by_batch(
    records not None,
    const int32_t[::1] of_batch not None,
    int32_t[::1] out not None,
    *,
    int64_t first_row=0,
):
    """Write to `out` each row's entry of `of_batch`, a column with a row per batch.

    Parameters
    ----------
    records : ndarray of RECORD_DTYPE or some of its fields, shape (n,)
    of_batch : ndarray of int32, shape (batches,)
    out : ndarray of int32, shape (n,)
    first_row : int
        What the first of the rows is called in an error: its number in the table.

    Raises
    ------
    IndexError
        If a row's ``batch`` isn't a row of `of_batch`.
    """
    cdef RecordSpan rows = RecordSpan(records)
    cdef const char* batches = rows.items + rows.fields.batch
    cdef Py_ssize_t n = rows.length, i, bad = -1
    cdef int64_t count = min(of_batch.shape[0], <Py_ssize_t> INT32_MAX)
    cdef int64_t b
    if rows.fields.batch < 0:
        raise ValueError("the rows have no batch")
    if out.shape[0] < n:
        raise ValueError(f"out has {out.shape[0]} rows, needs {n}")
    with nogil:
        for i in range(n):
            b = int32_at(batches + i * rows.stride)
            if kb_unlikely(b < 0 or b >= count):
                bad = i
                break
            out[i] = of_batch[b]
    if bad >= 0:
        raise IndexError(
            f"{record_name(rows, bad, first_row)}: its batch is {int32_at(batches + bad * rows.stride)}, "
            f"the table has {count} batches"
        )


def gather_fixed(
    records not None,
    const uint8_t[::1] data not None,
    int64_t itemsize,
    uint8_t[::1] out not None,
    const uint8_t[::1] fill=None,
):
    """Write all values, each exactly `itemsize` bytes, one after the other.

    Parameters
    ----------
    records : ndarray of RECORD_DTYPE or some of its fields, shape (n,)
    data : ndarray of uint8
    itemsize : int
        Bytes of a value.
    out : ndarray of uint8, shape (n * itemsize,)
    fill : ndarray of uint8, shape (itemsize,), optional
        What stands for a null.

    Returns
    -------
    int
        -1, or the first row whose value is null (without `fill`) or has another length.

    Raises
    ------
    IndexError
        If a value isn't within `data`.
    """
    cdef RecordSpan rows = RecordSpan(records)
    cdef Py_ssize_t n = rows.length, i, bad = -1
    cdef int64_t size = data.shape[0]
    cdef int64_t length, position
    cdef const uint8_t* p = address(data)
    cdef const uint8_t* source
    cdef uint8_t* target
    cdef Slices values = record_slices(rows, True)
    cdef int trouble = NONE
    if itemsize < 1 or out.shape[0] // itemsize < n or (fill is not None and fill.shape[0] < itemsize):
        raise ValueError(f"an array is too short for {n} rows of {itemsize} bytes")
    with nogil:
        for i in range(n):
            length = slice_length(values, i)
            if length == itemsize:
                position = slice_position(values, i)
                if is_outside(position, length, size):
                    trouble = OUTSIDE
                    bad = i
                    break
                source = p + position
            elif length < 0 and fill is not None:
                source = &fill[0]
            else:
                trouble = WRONG_LENGTH
                bad = i
                break
            target = &out[i * itemsize]
            if itemsize == 8:
                memcpy(target, source, 8)
            elif itemsize == 4:
                memcpy(target, source, 4)
            else:
                memcpy(target, source, itemsize)
    if trouble == OUTSIDE:
        raise trouble_error(trouble, record_name(rows, bad, 0), "value", values, bad, size)
    return bad


def keys_equal(
    const int64_t[:] key_pos not None,
    const int32_t[:] key_len not None,
    const uint8_t[::1] data not None,
    const uint8_t[::1] key not None,
    uint8_t[::1] out not None,
):
    """Write to `out` 1 for each row whose key is these bytes, else 0; a null key is never equal.

    Parameters
    ----------
    key_pos : ndarray of int64, shape (n,)
    key_len : ndarray of int32, shape (n,)
    data : ndarray of uint8
    key : ndarray of uint8, or bytes
    out : ndarray of uint8, shape (n,)

    Returns
    -------
    int
        How many are equal.

    Raises
    ------
    IndexError
        If a key of that length isn't within `data`.
    """
    cdef Py_ssize_t n = key_pos.shape[0], i, bad = -1, found = 0
    cdef int64_t size = data.shape[0], length = key.shape[0], position
    cdef const uint8_t* p = address(data)
    cdef const uint8_t* wanted = address(key)
    cdef bint equal
    if key_len.shape[0] < n or out.shape[0] < n:
        raise ValueError(f"key_len has {key_len.shape[0]} rows and out {out.shape[0]}, needed are {n}")
    with nogil:
        for i in range(n):
            equal = False
            # A key of another length costs no look at the data.
            if key_len[i] == length:
                position = key_pos[i]
                if is_outside(position, length, size):
                    bad = i
                    break
                equal = memcmp(p + position, wanted, length) == 0
            out[i] = equal
            found += equal
    if bad >= 0:
        raise IndexError(
            f"record row {bad}: its key is {length} bytes at position {key_pos[bad]}, outside the table's data of "
            f"{size} bytes"
        )
    return found


cdef Py_ssize_t fill_list(list out, Slices s, const uint8_t[::1] data) except -2:
    """Fill `out` with bytes and None; return the first row that isn't within `data`, or -1."""
    cdef Py_ssize_t i
    cdef int64_t size = data.shape[0]
    cdef const uint8_t* p = address(data)
    cdef int64_t position, length
    for i in range(len(out)):
        length = slice_length(s, i)
        if length >= 0:
            position = slice_position(s, i)
            if is_outside(position, length, size):
                return i
            out[i] = PyBytes_FromStringAndSize(<const char*> p + position, length)
    return -1


cdef list record_list(RecordSpan rows, bint values, const uint8_t[::1] data):
    cdef list out = [None] * rows.length
    cdef Slices s = record_slices(rows, values)
    cdef Py_ssize_t bad = fill_list(out, s, data)
    if bad >= 0:
        raise trouble_error(
            OUTSIDE, record_name(rows, bad, 0), "value" if values else "key", s, bad, data.shape[0]
        )
    return out


cdef list header_list(const HeaderRow[:] headers, bint values, const uint8_t[::1] data):
    cdef list out = [None] * headers.shape[0]
    cdef Slices s = header_slices(headers, values)
    cdef Py_ssize_t bad = fill_list(out, s, data)
    if bad >= 0:
        raise trouble_error(
            OUTSIDE, header_name(headers, bad, 0), "value" if values else "key", s, bad, data.shape[0]
        )
    return out


def record_keys(records not None, const uint8_t[::1] data not None):
    """Return the keys as a list of bytes or None; IndexError if one isn't within `data`."""
    return record_list(RecordSpan(records), False, data)


def record_values(records not None, const uint8_t[::1] data not None):
    """Return the values as a list of bytes or None; IndexError if one isn't within `data`."""
    return record_list(RecordSpan(records), True, data)


def header_keys(const HeaderRow[:] headers not None, const uint8_t[::1] data not None):
    """Return the header keys as a list of bytes; IndexError if one isn't within `data`."""
    return header_list(headers, False, data)


def header_values(const HeaderRow[:] headers not None, const uint8_t[::1] data not None):
    """Return the header values as a list of bytes or None; IndexError if one isn't within `data`."""
    return header_list(headers, True, data)
