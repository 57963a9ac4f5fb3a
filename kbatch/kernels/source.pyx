"""Columns of records in any layout: lists, NumPy arrays, all of Arrow's layouts and the rows of a decoded table.

Another thread may change the memory that a column points to at any time: a position is checked against its buffer
whenever it is read.
"""

from cpython.buffer cimport PyBUF_STRIDED_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset

from kbatch.kernels.spans cimport Span
from kbatch.kernels.wire cimport kb_likely, kb_unlikely
from kbatch.kernels.wire_out cimport SLACK


cdef class Strided:
    """A strided buffer in one or two dimensions, held for the lifetime of this object."""

    cdef Py_buffer view

    def __cinit__(self, object array):
        PyObject_GetBuffer(array, &self.view, PyBUF_STRIDED_RO)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    cdef Py_ssize_t rows(self) except -1:
        if self.view.ndim < 1:
            raise ValueError("a column must have one or two dimensions, got a scalar")
        return self.view.shape[0]


cdef class Column:
    """Keys, values, or keys or values of headers: consecutive parts in any layout. Buffers are held, not copied."""

    def __cinit__(self):
        self.held = []

    def __dealloc__(self):
        cdef int64_t i
        for i in range(self.used):
            PyMem_Free(<void*>self.parts[i].buffers)
            PyMem_Free(self.parts[i].sizes)
            if self.parts[i].kind == POINTERS:
                PyMem_Free(<void*>self.parts[i].items)
        PyMem_Free(self.parts)

    cdef ColumnPart* add(self, PartKind kind, int64_t count, object valid, int64_t first) except NULL:
        """Return a new part, whose layout the caller sets; the caller then adds the part to `used` and `length`."""
        cdef ColumnPart* part
        cdef Span bits
        if self.used == self.capacity:
            part = <ColumnPart*>PyMem_Realloc(self.parts, (2 * self.capacity + 4) * sizeof(ColumnPart))
            if part == NULL:
                raise MemoryError()
            self.parts = part
            self.capacity = 2 * self.capacity + 4
        part = self.parts + self.used
        memset(part, 0, sizeof(ColumnPart))
        part.kind = kind
        part.start = self.length
        part.stop = self.length + count
        part.valid_start = first
        if valid is not None:
            bits = Span(valid, 1, False)
            if count < 0 or first < 0 or bits.length < (first + count + 7) // 8:
                raise ValueError(f"the validity bitmap has {bits.length} bytes, rows {first} to {first + count}")
            self.held.append(bits)
            part.valid = <const uint8_t*>bits.items
        return part

    def add_nulls(self, int64_t count):
        """Add null rows."""
        self.add(NULLS, count, None, 0)
        self.used += 1
        self.length += count

    def add_offsets(self, offsets not None, int width, int64_t first, int64_t count, data, valid=None):
        """Add rows ``first .. first + count - 1`` of an Arrow binary array with offsets of `width` bytes."""
        cdef Span at = Span(offsets, width, False)
        cdef Span content
        cdef ColumnPart* part
        if count <= 0:
            return
        if first < 0 or at.length < first + count + 1:
            raise ValueError(f"{at.length} offsets, rows {first} to {first + count}")
        part = self.add(OFFSETS_32 if width == 4 else OFFSETS_64, count, valid, first)
        part.items = <const char*>at.items + first * width
        self.held.append(at)
        if data is not None:
            content = Span(data, 1, False)
            self.held.append(content)
            part.data = <const uint8_t*>content.items
            part.size = content.length
        self.used += 1
        self.length += count

    def add_views(self, views not None, int64_t first, int64_t count, list buffers not None, valid=None):
        """Add rows of an Arrow view array."""
        cdef Span at = Span(views, 16, False)
        cdef Span content
        cdef ColumnPart* part
        cdef int64_t i
        if count <= 0:
            return
        if first < 0 or at.length < first + count:
            raise ValueError(f"{at.length} views, rows {first} to {first + count}")
        part = self.add(VIEWS, count, valid, first)
        part.items = <const char*>at.items + first * 16
        self.held.append(at)
        # Counted before the allocations, so that the column frees them.
        self.used += 1
        self.length += count
        part.buffers = <const uint8_t**>PyMem_Calloc(len(buffers) + 1, sizeof(uint8_t*))
        part.sizes = <int64_t*>PyMem_Calloc(len(buffers) + 1, sizeof(int64_t))
        if part.buffers == NULL or part.sizes == NULL:
            raise MemoryError()
        for i in range(len(buffers)):
            content = Span(buffers[i], 1, False)
            self.held.append(content)
            part.buffers[i] = <const uint8_t*>content.items
            part.sizes[i] = content.length
        part.buffer_count = len(buffers)

    def add_items(self, items not None, int64_t width, bint strip=False, valid=None, int64_t valid_start=0):
        """Add an array of items of `width` bytes; `strip` removes trailing NUL bytes."""
        cdef Strided array = Strided(items)
        cdef int64_t count = array.rows()
        cdef ColumnPart* part
        if array.view.ndim == 1:
            if width != array.view.itemsize:
                raise ValueError(f"items of {array.view.itemsize} bytes, not {width}")
        elif array.view.ndim != 2 or array.view.itemsize != 1 or array.view.shape[1] != width \
                or (width > 1 and array.view.strides[1] != 1):
            raise ValueError("rows of bytes must be contiguous")
        part = self.add(TEXTS if strip else ITEMS, count, valid, valid_start)
        part.items = <const char*>array.view.buf
        part.stride = array.view.strides[0]
        part.width = width
        self.held.append(array)
        self.used += 1
        self.length += count

    def add_slices(self, positions not None, lengths not None, data not None):
        """Add (int64 position, int32 length) rows that point into `data`; a negative length is null."""
        cdef Strided at = Strided(positions)
        cdef Strided sizes = Strided(lengths)
        cdef Span content = Span(data, 1, False)
        cdef int64_t count = at.rows()
        cdef ColumnPart* part
        if at.view.itemsize != 8 or sizes.view.itemsize != 4 or sizes.rows() != count:
            raise ValueError("positions must be int64 and lengths int32, of the same length")
        part = self.add(SLICES, count, None, 0)
        part.items = <const char*>at.view.buf
        part.stride = at.view.strides[0]
        part.lengths = <const char*>sizes.view.buf
        part.lengths_stride = sizes.view.strides[0]
        part.data = <const uint8_t*>content.items
        part.size = content.length
        self.held += [at, sizes, content]
        self.used += 1
        self.length += count

    def add_objects(self, list objects not None):
        """Add bytes objects and None; return the index of the first object that is neither, or -1."""
        cdef int64_t count = len(objects)
        cdef list kept = list(objects)
        cdef Content* slices = <Content*>PyMem_Calloc(count + 1, sizeof(Content))
        cdef ColumnPart* part
        cdef int64_t i
        cdef object value
        if slices == NULL:
            raise MemoryError()
        for i in range(count):
            value = kept[i]
            if PyBytes_CheckExact(value):
                slices[i].p = <const uint8_t*>PyBytes_AS_STRING(value)
                slices[i].n = PyBytes_GET_SIZE(value)
            elif value is None:
                slices[i].n = -1
            elif isinstance(value, (bytes, bytearray, memoryview)):
                kept[i] = value = bytes(value)
                slices[i].p = <const uint8_t*>PyBytes_AS_STRING(value)
                slices[i].n = PyBytes_GET_SIZE(value)
            else:
                PyMem_Free(slices)
                return i
        try:
            part = self.add(POINTERS, count, None, 0)
        except BaseException:
            PyMem_Free(slices)
            raise
        part.items = <const char*>slices
        self.held.append(kept)
        self.used += 1
        self.length += count
        return -1


cdef class RecordColumns:
    """The columns of records, to be measured and written.

    Only `values` is required. Without `keys` all keys are null. Without `offsets` they count from `first_offset`, and
    without `timestamps` all are `timestamp`. The headers of a row are `header_count` rows of the header columns, from
    `header_first` on.
    """

    def __init__(self, Column values not None, Column keys, *, offsets=None, int64_t first_offset=0, timestamps=None,
                 int64_t timestamp=-1, header_first=None, header_count=None, Column header_keys=None,
                 Column header_values=None):
        self.count = values.length
        self.held = [values, keys, header_keys, header_values]
        self.source.values = Parts(parts=values.parts, count=values.used)
        self.source.keys = Parts(parts=NULL, count=0)
        self.source.header_keys = Parts(parts=NULL, count=0)
        self.source.header_values = Parts(parts=NULL, count=0)
        if keys is not None:
            if keys.length != self.count:
                raise ValueError(f"{keys.length} keys, {self.count} values")
            self.source.keys = Parts(parts=keys.parts, count=keys.used)
        self.source.offsets = self.numbers(offsets, 8, first_offset, 1)
        self.source.timestamps = self.numbers(timestamps, 8, timestamp, 0)
        self.source.header_first = self.numbers(header_first, 8, 0, 0)
        self.source.header_count = self.numbers(header_count, 4, 0, 0)
        if header_keys is not None:
            if header_values is None or header_first is None or header_count is None:
                raise ValueError("headers need all four columns")
            if header_keys.length != header_values.length:
                raise ValueError(f"{header_keys.length} header keys, {header_values.length} header values")
            self.source.header_keys = Parts(parts=header_keys.parts, count=header_keys.used)
            self.source.header_values = Parts(parts=header_values.parts, count=header_values.used)
        elif header_count is not None:
            raise ValueError("headers need all four columns")

    cdef Numbers numbers(self, object array, int itemsize, int64_t first, int64_t step) except *:
        cdef Strided strided
        if array is None:
            return Numbers(items=NULL, stride=0, first=first, step=step)
        strided = Strided(array)
        if strided.view.ndim != 1 or strided.view.itemsize != itemsize or strided.view.shape[0] != self.count:
            raise ValueError(f"expected a column of {self.count} integers of {itemsize} bytes")
        self.held.append(strided)
        return Numbers(items=<const char*>strided.view.buf, stride=strided.view.strides[0], first=0, step=0)


cdef inline bint is_null(const ColumnPart* part, int64_t i) noexcept nogil:
    cdef int64_t bit = part.valid_start + i
    return not part.valid[bit >> 3] >> (bit & 7) & 1


cdef inline int64_t load_offset(const char* p, int width) noexcept nogil:
    return load_32(p) if width == 4 else load_64(p)


cdef inline int64_t offset_contents(const ColumnPart* part, int64_t first, int64_t count, Content* out,
                                    int width) noexcept nogil:
    """Read rows of a part with offsets of `width` bytes, as `part_contents` does."""
    cdef const char* p = part.items + first * width
    cdef const uint8_t* data = part.data
    cdef int64_t size = part.size
    cdef int64_t at = load_offset(p, width)
    cdef int64_t i
    cdef int64_t n
    if kb_unlikely(at < 0):
        return 0
    p += width
    for i in range(count):
        n = load_offset(p + i * width, width)
        if kb_unlikely(n < at or n > size):
            return i
        out[i].p = data + at
        out[i].n = n - at
        at = n
    return count


cdef int64_t part_contents(const ColumnPart* part, int64_t first, int64_t count, Content* out) noexcept nogil:
    """Read rows from row `first` of the part; return the number of rows before the first that is outside the data."""
    cdef int64_t i
    cdef int64_t n
    cdef int64_t at
    cdef int64_t good
    cdef const char* p
    cdef const uint8_t* item
    cdef const uint8_t* data = part.data
    cdef int64_t size = part.size
    if part.kind == OFFSETS_32:
        good = offset_contents(part, first, count, out, 4)
        if kb_unlikely(good < count):
            return good
    elif part.kind == OFFSETS_64:
        good = offset_contents(part, first, count, out, 8)
        if kb_unlikely(good < count):
            return good
    elif part.kind == ITEMS:
        for i in range(count):
            out[i].p = <const uint8_t*>part.items + (first + i) * part.stride
            out[i].n = part.width
    elif part.kind == SLICES:
        for i in range(count):
            at = load_64(part.items + (first + i) * part.stride)
            n = load_32(part.lengths + (first + i) * part.lengths_stride)
            if n < 0:
                out[i] = Content(p=NULL, n=-1)
            elif kb_unlikely(at < 0 or at > size or n > size - at):
                return i
            else:
                out[i].p = data + at
                out[i].n = n
    elif part.kind == POINTERS:
        memcpy(out, <const Content*>part.items + first, count * sizeof(Content))
    elif part.kind == VIEWS:
        for i in range(count):
            if part.valid != NULL and is_null(part, first + i):
                out[i].p = NULL  # the view of a null row is undefined
                continue
            p = part.items + (first + i) * 16
            n = load_32(p)
            out[i].n = n
            if 0 <= n <= 12:
                out[i].p = <const uint8_t*>p + 4
                continue
            at = load_32(p + 12)
            if kb_unlikely(n < 0 or at < 0 or not 0 <= load_32(p + 8) < part.buffer_count):
                return i
            if kb_unlikely(at > part.sizes[load_32(p + 8)] or n > part.sizes[load_32(p + 8)] - at):
                return i
            out[i].p = part.buffers[load_32(p + 8)] + at
    elif part.kind == TEXTS:
        for i in range(count):
            item = <const uint8_t*>part.items + (first + i) * part.stride
            n = part.width
            while n and item[n - 1] == 0:
                n -= 1
            out[i].p = item
            out[i].n = n
    else:
        for i in range(count):
            out[i] = Content(p=NULL, n=-1)
    if part.valid != NULL:
        for i in range(count):
            if is_null(part, first + i):
                out[i].n = -1
    return count


cdef int64_t part_of(Parts column, int64_t row) noexcept nogil:
    """Return the index of the part that holds a row."""
    cdef int64_t lo = 0
    cdef int64_t hi = column.count
    cdef int64_t middle
    while lo < hi:
        middle = (lo + hi) >> 1
        if column.parts[middle].stop <= row:
            lo = middle + 1
        else:
            hi = middle
    return lo


cdef int64_t read_contents(Parts column, int64_t row, int64_t count, Content* out) noexcept nogil:
    """Read the contents of rows, all null if there is no column; return the number before the first invalid row."""
    cdef int64_t done = 0
    cdef int64_t i
    cdef int64_t n
    cdef int64_t good
    cdef const ColumnPart* part
    if column.parts == NULL:
        for i in range(count):
            out[i] = Content(p=NULL, n=-1)
        return count
    i = part_of(column, row)
    while done < count and i < column.count:
        part = column.parts + i
        n = min(count - done, part.stop - (row + done))
        if n > 0:
            good = part_contents(part, row + done - part.start, n, out + done)
            done += good
            if good < n:
                break
        i += 1
    return done


cdef bint has_slack(Parts column, int64_t row, int64_t count, const Content* slices) noexcept nogil:
    """Return whether `SLACK` bytes of the same buffer follow each of these contents, as read by `read_contents`."""
    cdef int64_t i = part_of(column, row)
    cdef int64_t last
    cdef const ColumnPart* part = column.parts + i
    if column.parts == NULL:
        return True
    if row + count > part.stop:
        return False
    if part.kind == OFFSETS_32 or part.kind == OFFSETS_64:
        last = slices[count - 1].p - part.data + max(slices[count - 1].n, 0)
    elif part.kind == SLICES:
        last = 0
        for i in range(count):
            if slices[i].n > 0:
                last = max(last, slices[i].p - part.data + slices[i].n)
    else:
        return False
    return part.size - last >= SLACK


cdef int64_t part_lengths(const ColumnPart* part, int64_t first, int64_t count, int32_t* out) noexcept nogil:
    """Read only the lengths, as `part_contents` does; -1 is null, -2 a length that does not fit an int32."""
    cdef Content slices[BLOCK]
    cdef int64_t i
    cdef int64_t good
    cdef int32_t any_bit = 0
    cdef const char* p
    if part.kind == OFFSETS_32:
        # No branch in the loop, so that the compiler vectorizes it.
        p = part.items + first * 4
        for i in range(count):
            out[i] = <int32_t>(<uint32_t>load_32(p + i * 4 + 4) - <uint32_t>load_32(p + i * 4))
            any_bit |= out[i]
        if kb_likely(any_bit >= 0 and load_32(p) >= 0 and load_32(p + count * 4) <= part.size):
            if part.valid != NULL:
                for i in range(count):
                    if is_null(part, first + i):
                        out[i] = -1
            return count
    good = part_contents(part, first, count, slices)
    for i in range(good):
        out[i] = -2 if slices[i].n > INT32_MAX else <int32_t>slices[i].n
    return good


cdef int64_t read_lengths(Parts column, int64_t row, int64_t count, int32_t* out) noexcept nogil:
    """Read the lengths of up to `BLOCK` rows; see `read_contents`."""
    cdef int64_t done = 0
    cdef int64_t i
    cdef int64_t n
    cdef int64_t good
    cdef const ColumnPart* part
    if column.parts == NULL:
        for i in range(count):
            out[i] = -1
        return count
    i = part_of(column, row)
    while done < count and i < column.count:
        part = column.parts + i
        n = min(count - done, part.stop - (row + done))
        if n > 0:
            good = part_lengths(part, row + done - part.start, n, out + done)
            done += good
            if good < n:
                break
        i += 1
    return done
