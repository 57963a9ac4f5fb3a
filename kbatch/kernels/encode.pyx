"""Columns to payloads and framed batches: `decode.pyx` the other way round, in two passes.

`measure` cuts records into batches and sums up their sizes; `payload` and `write` then fill memory of that size. Both
see keys and values as (pointer, length) slices, a block of rows at a time, whatever the columns are: so there is one
loop for lists, NumPy arrays, all of Arrow's layouts and the rows of a decoded table.

What a column points to may be changed by another thread between the two passes: every position is checked against its
buffer in both, and every record against the room left for it.
"""

from typing import NamedTuple

from cpython.buffer cimport PyBUF_STRIDED_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.ref cimport PyObject, Py_XDECREF
from libc.stdint cimport INT32_MAX, INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdint cimport uintptr_t
from libc.string cimport memcpy, memmove

from kbatch.kernels.buffers import allocate
from kbatch.kernels.checksum cimport crc32_legacy
from kbatch.kernels.codecs cimport Codecs, packed_bound, packed_payload
from kbatch.kernels.wire_out cimport (
    CODEC,
    CRC_START_LEGACY,
    LOG_OVERHEAD,
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
from kbatch.kernels.spans cimport Span
from kbatch.kernels.wire cimport BatchRow, kb_likely, kb_prefetch, kb_unlikely

cdef extern from "Python.h":
    const int PyBUF_WRITE
    PyObject* PyBytes_FromStringAndSize_ "PyBytes_FromStringAndSize"(const char* content, Py_ssize_t size)
    int _PyBytes_Resize(PyObject** made, Py_ssize_t size) except -1
    const Py_ssize_t PY_SSIZE_T_MAX

cdef extern from *:
    """
    #if defined(__linux__)
      #include <sys/mman.h>
      /* Large memory in large pages: a fault for each of 4 KiB costs more than filling them. */
      static void kb_expect_fill(char *p, size_t n) {
      #ifdef MADV_HUGEPAGE
          uintptr_t start = ((uintptr_t)p + 4095) & ~(uintptr_t)4095;
          uintptr_t end = ((uintptr_t)p + n) & ~(uintptr_t)4095;
          if (n >= (4u << 20) && end > start)
              (void)madvise((void *)start, end - start, MADV_HUGEPAGE);  /* advice only */
      #else
          (void)p; (void)n;
      #endif
      }
    #else
      static void kb_expect_fill(char *p, size_t n) { (void)p; (void)n; }
    #endif
    """
    void kb_expect_fill(char* p, size_t n) noexcept nogil

cdef enum:
    # Compressed bytes between two looks for signals: at the slowest levels that is a tenth of a second.
    SIGNAL_BYTES = 256 << 10
    BLOCK = 256  # rows of one turn over the columns: their slices stay in the first cache
    HEADER_BLOCK = 64
    AHEAD = 1024  # bytes of values that are asked for before they are copied
    TIMESTAMP_TYPE = 0x08
    # Below this a varint takes at most two bytes; and a length, which is not negative, below that.
    SHORT = 1 << 14
    SHORT_LENGTH = 1 << 13
    # From here on a call of memcpy is worth its price.
    SHORT_CONTENT = 256

# What stops `measure` or a writer; `kbatch.write.encoding` has the words.
cdef enum Trouble:
    NONE = 0
    OUTSIDE = 1  # a slice is not within its buffer
    NULL_HEADER_KEY = 2
    BAD_TIMESTAMP = 3
    OFFSET_ORDER = 4
    OFFSET_FAR = 5
    RECORD_SIZE = 6
    BATCH_SIZE = 7
    CHANGED = 8  # what is written isn't what was measured


class Outcome(NamedTuple):
    """How many batches or bytes are done; and where that is not all, the row with a `Trouble`, and what was found."""

    used: int
    row: int
    trouble: int
    found: int


# Bytes of a key, value or header; a length of -1 is null.
cdef struct Slice:
    const uint8_t* p
    int64_t n

cdef enum Kind:
    NULLS
    OFFSETS_32
    OFFSETS_64
    VIEWS
    ITEMS
    TEXTS
    SLICES
    POINTERS

# A stretch of a column in one layout.
cdef struct Part:
    Kind kind
    int64_t start  # its rows of the column
    int64_t stop
    const char* items  # offsets, views, items, positions or slices: of its first row
    Py_ssize_t stride
    const char* lengths
    Py_ssize_t lengths_stride
    const uint8_t* data
    int64_t size
    const uint8_t** buffers
    int64_t* sizes
    int64_t buffer_count
    const uint8_t* valid
    int64_t valid_start  # the bit of its first row
    int64_t width

# All parts of a column.
cdef struct Parts:
    const Part* parts
    int64_t count

# A column of integers; without one, `first + row * step`.
cdef struct Numbers:
    const char* items
    Py_ssize_t stride
    int64_t first
    int64_t step

# Everything that a record is made of.
cdef struct Source:
    Parts keys
    Parts values
    Parts header_keys
    Parts header_values
    Numbers offsets
    Numbers timestamps
    Numbers header_first
    Numbers header_count

# Header slices around the last row asked for: records ask for theirs one after the other.
cdef struct HeaderWindow:
    int64_t start
    int64_t stop
    Slice keys[HEADER_BLOCK]
    Slice values[HEADER_BLOCK]

cdef struct Report:
    int trouble
    int64_t row
    int64_t found


cdef class Strided:
    """A buffer in one or two dimensions, as it lies in memory, for as long as this lives."""

    cdef Py_buffer view

    def __cinit__(self, object array):
        PyObject_GetBuffer(array, &self.view, PyBUF_STRIDED_RO)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    cdef Py_ssize_t rows(self) except -1:
        if self.view.ndim < 1:
            raise ValueError("an array without dimensions is no column")
        return self.view.shape[0]


cdef class Column:
    """Keys, values or what is in headers: parts in any layout, one after the other. Buffers are held, not copied."""

    cdef Part* parts
    cdef int64_t used
    cdef int64_t room
    cdef readonly int64_t length
    cdef list held

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

    cdef Part* add(self, Kind kind, int64_t count, object valid, int64_t first) except NULL:
        """A further part, of which the caller sets the rest; `length` is to be raised when that has gone well."""
        cdef Part* part
        cdef Span bits
        if self.used == self.room:
            part = <Part*>PyMem_Realloc(self.parts, (2 * self.room + 4) * sizeof(Part))
            if part == NULL:
                raise MemoryError()
            self.parts = part
            self.room = 2 * self.room + 4
        part = self.parts + self.used
        part[0] = Part(kind=kind, start=self.length, stop=self.length + count, items=NULL, stride=0, lengths=NULL,
                       lengths_stride=0, data=NULL, size=0, buffers=NULL, sizes=NULL, buffer_count=0, valid=NULL,
                       valid_start=first, width=0)
        if valid is not None:
            bits = Span(valid, 1, False)
            if count < 0 or first < 0 or bits.length < (first + count + 7) // 8:
                raise ValueError(f"the validity bitmap has {bits.length} bytes, rows {first} to {first + count}")
            self.held.append(bits)
            part.valid = <const uint8_t*>bits.items
        return part

    def add_nulls(self, int64_t count):
        """Add rows without a value."""
        self.add(NULLS, count, None, 0)
        self.used += 1
        self.length += count

    def add_offsets(self, offsets not None, int width, int64_t first, int64_t count, data, valid=None):
        """Add rows ``first .. first + count - 1`` of an Arrow binary array with offsets of `width` bytes."""
        cdef Span at = Span(offsets, width, False)
        cdef Span content
        cdef Part* part
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
        cdef Part* part
        cdef int64_t i
        if count <= 0:
            return
        if first < 0 or at.length < first + count:
            raise ValueError(f"{at.length} views, rows {first} to {first + count}")
        part = self.add(VIEWS, count, valid, first)
        part.items = <const char*>at.items + first * 16
        self.held.append(at)
        # Counted from here on, so that what is allocated goes with the column.
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
        """Add an array of items of `width` bytes; with `strip` without the NUL bytes at their ends."""
        cdef Strided array = Strided(items)
        cdef int64_t count = array.rows()
        cdef Part* part
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
        cdef Part* part
        if at.view.itemsize != 8 or sizes.view.itemsize != 4 or sizes.rows() != count:
            raise ValueError("positions are int64, lengths int32, and as many")
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
        """Add bytes objects and Nones; return the row of the first that is neither, and -1 if all of them are."""
        cdef int64_t count = len(objects)
        cdef list kept = list(objects)
        cdef Slice* slices = <Slice*>PyMem_Calloc(count + 1, sizeof(Slice))
        cdef Part* part
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


cdef class Records:
    """The columns of records, to be measured and written.

    `keys` and header columns may be missing, as may `offsets`, which then count from 0 at the first row, and
    `timestamps`, all of which are then `timestamp`. `header_first` and `header_count` are rows of the header columns.
    """

    cdef Source source
    cdef readonly int64_t count
    cdef list held

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
                raise ValueError("headers are four columns")
            if header_keys.length != header_values.length:
                raise ValueError(f"{header_keys.length} header keys, {header_values.length} header values")
            self.source.header_keys = Parts(parts=header_keys.parts, count=header_keys.used)
            self.source.header_values = Parts(parts=header_values.parts, count=header_values.used)
        elif header_count is not None:
            raise ValueError("headers are four columns")

    cdef Numbers numbers(self, object array, int itemsize, int64_t first, int64_t step) except *:
        cdef Strided strided
        if array is None:
            return Numbers(items=NULL, stride=0, first=first, step=step)
        strided = Strided(array)
        if strided.view.ndim != 1 or strided.view.itemsize != itemsize or strided.view.shape[0] != self.count:
            raise ValueError(f"a column of {self.count} integers of {itemsize} bytes is needed")
        self.held.append(strided)
        return Numbers(items=<const char*>strided.view.buf, stride=strided.view.strides[0], first=0, step=0)


# -- reading columns


cdef inline int64_t load_64(const char* p) noexcept nogil:
    cdef int64_t x
    memcpy(&x, p, 8)
    return x


cdef inline int64_t load_32(const char* p) noexcept nogil:
    cdef int32_t x
    memcpy(&x, p, 4)
    return x


cdef inline int64_t number(const Numbers* numbers, int64_t row) noexcept nogil:
    if numbers.items == NULL:
        return numbers.first + row * numbers.step
    return load_64(numbers.items + row * numbers.stride)


cdef inline bint is_null(const Part* part, int64_t i) noexcept nogil:
    cdef int64_t bit = part.valid_start + i
    return not part.valid[bit >> 3] >> (bit & 7) & 1


cdef int64_t fetch_part(const Part* part, int64_t first, int64_t count, Slice* out) noexcept nogil:
    """Slices of the rows from `first` on, counted within the part; the number of them that are within the data."""
    cdef int64_t i
    cdef int64_t n
    cdef int64_t at
    cdef const char* p
    cdef const uint8_t* item
    cdef const uint8_t* data = part.data
    cdef int64_t size = part.size
    if part.kind == OFFSETS_32:
        p = part.items + first * 4
        at = load_32(p)
        if kb_unlikely(at < 0):
            return 0
        for i in range(count):
            n = load_32(p + i * 4 + 4)
            if kb_unlikely(n < at or n > size):
                return i
            out[i].p = data + at
            out[i].n = n - at
            at = n
    elif part.kind == OFFSETS_64:
        p = part.items + first * 8
        at = load_64(p)
        if kb_unlikely(at < 0):
            return 0
        for i in range(count):
            n = load_64(p + i * 8 + 8)
            if kb_unlikely(n < at or n > size):
                return i
            out[i].p = data + at
            out[i].n = n - at
            at = n
    elif part.kind == ITEMS:
        for i in range(count):
            out[i].p = <const uint8_t*>part.items + (first + i) * part.stride
            out[i].n = part.width
    elif part.kind == SLICES:
        for i in range(count):
            at = load_64(part.items + (first + i) * part.stride)
            n = load_32(part.lengths + (first + i) * part.lengths_stride)
            if n < 0:
                out[i] = Slice(p=NULL, n=-1)
            elif kb_unlikely(at < 0 or at > size or n > size - at):
                return i
            else:
                out[i].p = data + at
                out[i].n = n
    elif part.kind == POINTERS:
        memcpy(out, <const Slice*>part.items + first, count * sizeof(Slice))
    elif part.kind == VIEWS:
        for i in range(count):
            if part.valid != NULL and is_null(part, first + i):
                out[i].p = NULL  # what stands in the view means nothing
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
            out[i] = Slice(p=NULL, n=-1)
    if part.valid != NULL:
        for i in range(count):
            if is_null(part, first + i):
                out[i].n = -1
    return count


cdef int64_t part_of(Parts column, int64_t row) noexcept nogil:
    """The first part that ends behind a row."""
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


cdef int64_t fetch(Parts column, int64_t row, int64_t count, Slice* out) noexcept nogil:
    """Slices of the rows from `row` on, all null if there is no column; the number of them that are good."""
    cdef int64_t done = 0
    cdef int64_t i
    cdef int64_t n
    cdef int64_t good
    cdef const Part* part
    if column.parts == NULL:
        for i in range(count):
            out[i] = Slice(p=NULL, n=-1)
        return count
    i = part_of(column, row)
    while done < count and i < column.count:
        part = column.parts + i
        n = min(count - done, part.stop - (row + done))
        if n > 0:
            good = fetch_part(part, row + done - part.start, n, out + done)
            done += good
            if good < n:
                break
        i += 1
    return done


cdef bint has_slack(Parts column, int64_t row, int64_t count, const Slice* slices) noexcept nogil:
    """Whether behind the end of each of these slices, which `fetch` gave, `SLACK` bytes are in the same buffer."""
    cdef int64_t i = part_of(column, row)
    cdef int64_t last
    cdef const Part* part = column.parts + i
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


cdef int64_t part_lengths(const Part* part, int64_t first, int64_t count, int32_t* out) noexcept nogil:
    """What `fetch_part` says of lengths; -1 is null, and -2 more than an int32 holds."""
    cdef Slice slices[BLOCK]
    cdef int64_t i
    cdef int64_t good
    cdef int32_t any_bit = 0
    cdef const char* p
    if part.kind == OFFSETS_32:
        # No branch in the loop, so that it takes several at a time.
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
    good = fetch_part(part, first, count, slices)
    for i in range(good):
        out[i] = -2 if slices[i].n > INT32_MAX else <int32_t>slices[i].n
    return good


cdef int64_t fetch_lengths(Parts column, int64_t row, int64_t count, int32_t* out) noexcept nogil:
    """Lengths of at most `BLOCK` rows from `row` on, all null if there is no column; the number that are good."""
    cdef int64_t done = 0
    cdef int64_t i
    cdef int64_t n
    cdef int64_t good
    cdef const Part* part
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


cdef int64_t open_window(const Source* source, HeaderWindow* window, int64_t row) noexcept nogil:
    """Where the slices of header `row` are in the window, which is moved if need be; -1 if they are not good."""
    cdef int64_t count
    if row < window.start or row >= window.stop:
        # As many as there are, and no more than fit; `fetch` ends where the column does, or at the first that is bad.
        window.start = row
        count = 0
        if source.header_keys.count and row >= 0:
            count = source.header_keys.parts[source.header_keys.count - 1].stop - row
        count = max(0, min(count, <int64_t>HEADER_BLOCK))
        if fetch(source.header_keys, row, count, window.keys) != count \
                or fetch(source.header_values, row, count, window.values) != count:
            # Perhaps it is one of the others.
            count = 1
            if fetch(source.header_keys, row, count, window.keys) != count \
                    or fetch(source.header_values, row, count, window.values) != count:
                count = 0
        window.stop = row + count
        if count == 0:
            return -1
    return row - window.start


# -- sizes


cdef inline int64_t bytes_size(int64_t n) noexcept nogil:
    return 1 if n < 0 else varint_size(n) + n


cdef inline int64_t headers_size(const Source* source, HeaderWindow* window, int64_t row,
                                 Report* report) noexcept nogil:
    """Bytes of the headers of a record, with their count; -1 if they can't be written."""
    cdef int64_t count = 0
    cdef int64_t first
    cdef int64_t size
    cdef int64_t i
    cdef int64_t at
    if source.header_count.items != NULL:
        count = load_32(source.header_count.items + row * source.header_count.stride)
    if count == 0:
        return 1
    report.trouble = OUTSIDE
    if count < 0:
        return -1
    first = load_64(source.header_first.items + row * source.header_first.stride)
    size = varint_size(count)
    for i in range(count):
        at = open_window(source, window, first + i)
        if kb_unlikely(at < 0):
            return -1
        if kb_unlikely(window.keys[at].n < 0):
            report.trouble = NULL_HEADER_KEY
            return -1
        if kb_unlikely(window.keys[at].n > INT32_MAX or window.values[at].n > INT32_MAX or size > INT32_MAX):
            report.trouble = RECORD_SIZE
            return -1
        size += bytes_size(window.keys[at].n) + bytes_size(window.values[at].n)
    report.trouble = NONE
    return size


cdef inline int64_t body_size(int64_t time_delta, int64_t offset_delta, int64_t key, int64_t value,
                              int64_t headers) noexcept nogil:
    return 1 + varint_size(time_delta) + varint_size(offset_delta) + bytes_size(key) + bytes_size(value) + headers


cdef inline int64_t record_size(bint modern, int magic, int64_t time_delta, int64_t offset_delta, int64_t key,
                                int64_t value, int64_t headers) noexcept nogil:
    """Bytes of a whole record, or of a message."""
    cdef int64_t size
    if not modern:
        return message_size(magic, key, value)
    size = body_size(time_delta, offset_delta, key, value, headers)
    return size + varint_size(size)


# -- measuring


cdef class Plan:
    """What batches are to be like.

    `room` is the most bytes of a batch, its header included and before compression; a batch of one record may be
    larger. If not `cut`, all records go to one batch. `horizon` stands for the first timestamp, if there is one.
    `strict` is what writers have to keep to, beyond what readers take: offsets rise and timestamps are not negative.
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

    def __init__(self, int magic, int attributes, *, int64_t room=INT32_MAX, int64_t max_records=INT32_MAX,
                 bint cut=False, bint strict=True, horizon=None):
        self.magic = magic
        self.attributes = attributes
        # Uncompressed messages of magic 0 and 1 are entries of their own, so that there may be any number of them.
        self.bounded = magic == 2 or attributes & CODEC
        self.limit = room if cut else (INT32_MAX if self.bounded else INT64_MAX)
        self.max_records = max_records if cut else INT32_MAX
        self.cut = cut
        self.strict = strict
        self.has_horizon = horizon is not None
        self.horizon = horizon if self.has_horizon else 0


# A batch as records are added to it. Its row is written when it is opened and closed, not with each record.
cdef struct Growth:
    int64_t total
    int64_t records
    int64_t base_offset
    int64_t base_timestamp
    int64_t last_offset
    int64_t max_timestamp


cdef inline Growth open_batch(BatchRow* batch, Plan plan, int64_t row, int64_t offset,
                              int64_t timestamp) noexcept nogil:
    """Begin a batch with the record in `row`, which is not added yet."""
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
    """What rows are after `base`, zigzag, if all of them are below `SHORT`; returns whether they are."""
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
    """Attributes, keys and values with their lengths: bytes of them, if all are short; returns whether they are."""
    cdef int32_t longest = 0
    cdef int64_t i
    for i in range(count):
        out[i] = max(keys[i], 0) + max(values[i], 0) + 3
        longest |= max(keys[i], 0) | max(values[i], 0)
    if longest > 63:
        for i in range(count):
            out[i] += (keys[i] > 63) + (values[i] > 63)
    return longest < SHORT_LENGTH


cdef int64_t grow(const int32_t* sizes, int64_t row, int64_t count, Numbers offsets, Numbers timestamps, int64_t limit,
                  bint strict, Growth* batch) noexcept nogil:
    """Add short records to a batch that has some, up to one for which there is no room; return their number.

    -1 if one needs a closer look. Small loops over a column each, most of which take several rows at a time, need half
    as long as one loop that does everything.
    """
    cdef uint32_t times[BLOCK]
    cdef uint32_t deltas[BLOCK]
    cdef int32_t whole[BLOCK]
    cdef int64_t room = limit - batch.total
    cdef int64_t i
    cdef int32_t size
    cdef int32_t longest = 0
    cdef int32_t earliest = 0
    cdef int32_t latest = 0
    cdef uint32_t disorder = 0
    cdef int64_t average = max(batch.total // max(batch.records, 1), 1)
    # No more than are likely to fit: a batch of few records isn't worth a look at all the rows behind it.
    count = min(count, room // average + 8)
    if count <= 0 or room <= 0:
        return 0
    if batch.base_offset > INT64_MAX - SHORT or not -1 <= batch.base_timestamp <= INT64_MAX - SHORT:
        return -1  # sums might not be what they seem
    if not short_deltas(timestamps, row, count, batch.base_timestamp, times) \
            or not short_deltas(offsets, row, count, batch.base_offset, deltas):
        return -1
    for i in range(count):
        disorder |= deltas[i] & 1
        # With the one byte of its length, which lengths up to 63 take.
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
    while i < count and whole[i] <= room:
        room -= whole[i]
        i += 1
    count = i
    for i in range(count):
        latest = max(latest, <int32_t>(times[i] >> 1) ^ -<int32_t>(times[i] & 1))
    if count:
        batch.total = limit - room
        batch.records += count
        batch.last_offset = batch.base_offset + (deltas[count - 1] >> 1)
        batch.max_timestamp = max(batch.max_timestamp, batch.base_timestamp + latest)
    return count


# Lengths of some rows, and what they need beside their deltas.
cdef struct Block:
    int32_t keys[BLOCK]
    int32_t values[BLOCK]
    int32_t sizes[BLOCK]
    int64_t count
    bint oversized  # some length does not fit an int32
    bint short  # `grow` may take them


cdef bint read_block(const Source* source, Plan plan, int64_t row, int64_t stop, Block* block) noexcept nogil:
    """Read the lengths of the rows from `row` on, up to the first that is bad; False if that is `row`."""
    cdef int64_t count = min(stop - row, <int64_t>BLOCK)
    cdef int64_t i
    cdef int32_t least = 0
    block.count = min(fetch_lengths(source.keys, row, count, block.keys),
                      fetch_lengths(source.values, row, count, block.values))
    for i in range(block.count):
        least = min(least, min(block.keys[i], block.values[i]))
    block.oversized = least < -1
    block.short = (plan.magic == 2 and source.header_count.items == NULL and least >= -1
                   and short_sizes(block.keys, block.values, block.count, block.sizes))
    return block.count > 0


cdef inline int64_t size_in(const Growth* growth, Plan plan, int64_t timestamp, int64_t offset_delta, int64_t key,
                            int64_t value, int64_t headers) noexcept nogil:
    """Bytes of a record in the batch, or of a message."""
    return record_size(plan.magic == 2, plan.magic, <int64_t>(<uint64_t>timestamp - <uint64_t>growth.base_timestamp),
                       offset_delta, key, value, headers)


cdef inline void refuse(Report* report, int trouble, int64_t found) noexcept nogil:
    report.trouble = trouble
    report.found = found


cdef bint opens_next(Plan plan, const Growth* growth, int64_t size, int64_t delta, Report* report) noexcept nogil:
    """Whether a record for which a batch has no room goes to the next one; otherwise that is reported."""
    if not plan.cut:
        if size > INT32_MAX:
            refuse(report, RECORD_SIZE, size)
        elif size > plan.limit - growth.total or growth.records >= plan.max_records:
            refuse(report, BATCH_SIZE, growth.total + size)
        else:
            refuse(report, OFFSET_FAR, delta)
    return plan.cut


cdef int64_t measure_rows(const Source* source, Plan plan, int64_t row, int64_t stop, BatchRow* batches,
                          int64_t* used, int64_t room, Report* report) noexcept nogil:
    """Cut records from `row` on into batches; return the row before which there was no more room for batches."""
    cdef Block block
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
            report.trouble = OUTSIDE
            break
        i = 0
        while i < block.count:
            if block.short and is_open:
                good = grow(block.sizes + i, row + i, min(block.count - i, plan.max_records - growth.records),
                            source.offsets, source.timestamps, plan.limit, plan.strict, &growth)
                block.short = good >= 0
                i += max(good, 0)
                if i == block.count:
                    break
            offset = number(&source.offsets, row + i)
            timestamp = number(&source.timestamps, row + i)
            if kb_unlikely(plan.strict and timestamp < -1):
                refuse(report, BAD_TIMESTAMP, timestamp)
                break
            if kb_unlikely(block.oversized and (block.keys[i] < -1 or block.values[i] < -1)):
                refuse(report, RECORD_SIZE, <int64_t>INT32_MAX + 1)
                break
            if with_headers:
                headers = headers_size(source, &window, row + i, report)
                if kb_unlikely(headers < 0):
                    break
            if kb_likely(is_open):
                if kb_unlikely(plan.strict and offset <= growth.last_offset):
                    refuse(report, OFFSET_ORDER, offset)
                    break
                delta = <int64_t>(<uint64_t>offset - <uint64_t>growth.base_offset)
                size = size_in(&growth, plan, timestamp, delta, block.keys[i], block.values[i], headers)
                if kb_unlikely(size > plan.limit - growth.total or growth.records >= plan.max_records
                               or (plan.bounded and not 0 <= delta <= INT32_MAX)):
                    if not opens_next(plan, &growth, size, delta, report):
                        break
                    close_batch(batches + filled - 1, &growth)
                    is_open = False
            if kb_unlikely(not is_open):
                if filled == room:
                    break
                growth = open_batch(batches + filled, plan, row + i, offset, timestamp)
                filled += 1
                size = size_in(&growth, plan, timestamp, 0, block.keys[i], block.values[i], headers)
                if kb_unlikely(size > INT32_MAX - growth.total):
                    refuse(report, RECORD_SIZE if size > INT32_MAX else BATCH_SIZE,
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


def measure(Records records not None, Plan plan not None, int64_t row, batches not None, int64_t used):
    """Cut the records from `row` on into batches, rows of `batches`, of which `used` are filled.

    The last of those is continued. Set are what depends on the records, magic, attributes and `size`: that of the whole
    batch if it isn't compressed.

    Returns an `Outcome` of batches. Its row is the first without a place: it comes before the end of the records where
    `batches` are full, or where there is trouble with that row.
    """
    cdef Span span = Span(batches, sizeof(BatchRow), True)
    cdef Report report = Report(trouble=NONE, row=0, found=0)
    if row < 0 or used < 0 or used > span.length:
        raise IndexError("rows out of range")
    with nogil:
        row = measure_rows(&records.source, plan, row, records.count, <BatchRow*>span.items, &used, span.length,
                           &report)
    return Outcome(used, row, report.trouble, report.found)


def measure_batches(Records records not None, batches not None):
    """Set the size of each of `batches`, whose other fields are given.

    Returns an `Outcome` of batches.
    """
    cdef Span span = Span(batches, sizeof(BatchRow), True)
    cdef BatchRow* rows = <BatchRow*>span.items
    cdef Report report = Report(trouble=NONE, row=0, found=0)
    cdef int64_t i = 0
    with nogil:
        while i < span.length:
            if rows[i].first_record < 0 or rows[i].record_count < 0 \
                    or rows[i].record_count > records.count - rows[i].first_record:
                report.trouble = OUTSIDE
                report.row = rows[i].first_record
            else:
                measure_batch(&records.source, rows + i, &report)
            if report.trouble:
                break
            i += 1
    return Outcome(i, report.row, report.trouble, report.found)


cdef int measure_batch(const Source* source, BatchRow* batch, Report* report) noexcept nogil:
    cdef Slice keys[BLOCK]
    cdef Slice values[BLOCK]
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
        report.row = row
        if fetch(source.keys, row, count, keys) < count or fetch(source.values, row, count, values) < count:
            report.trouble = OUTSIDE
            return OUTSIDE
        for i in range(count):
            report.row = row + i
            delta = <int64_t>(<uint64_t>number(&source.offsets, row + i) - <uint64_t>batch.base_offset)
            if kb_unlikely(batch.magic == 2 and not -<int64_t>INT32_MAX - 1 <= delta <= INT32_MAX):
                report.found = delta
                report.trouble = OFFSET_FAR
                return OFFSET_FAR
            if batch.magic == 2:
                headers = headers_size(source, &window, row + i, report)
                if kb_unlikely(headers < 0):
                    return report.trouble
            size = record_size(
                batch.magic == 2, batch.magic,
                <int64_t>(<uint64_t>number(&source.timestamps, row + i) - <uint64_t>batch.base_timestamp),
                delta, keys[i].n, values[i].n, headers)
            batch.size += size
            if kb_unlikely(size > INT32_MAX or batch.size > INT32_MAX):
                report.trouble = RECORD_SIZE if size > INT32_MAX else BATCH_SIZE
                report.found = batch.size
                return report.trouble
        row += count
    return NONE


# -- writing


cdef inline uint8_t* put_bytes(uint8_t* p, Slice content) noexcept nogil:
    if content.n < 0:
        p[0] = 1
        return p + 1
    return put_content(put_varint(p, content.n), content.p, content.n)


cdef inline uint8_t* put_bytes_be32(uint8_t* p, Slice content) noexcept nogil:
    store_be32(p, content.n)  # -1 if null
    return put_content(p + 4, content.p, content.n) if content.n > 0 else p + 4


cdef inline uint8_t* put_record(uint8_t* p, int64_t time_delta, int64_t offset_delta, Slice key, Slice value,
                                int64_t headers, int64_t exact) noexcept nogil:
    """A record without its headers and their count, which take `headers` bytes.

    It takes `exact` bytes with them. Where that is 0 there is room enough not to know: its length, which stands before
    it, is known when it is written, and mostly takes as many bytes as the key and value alone let expect.
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


cdef inline void put_message(uint8_t* p, int magic, uint8_t attributes, int64_t offset, int64_t timestamp, Slice key,
                             Slice value, int64_t size) noexcept nogil:
    """A message of `size` bytes, for which there is room, without its checksum."""
    store_be64(p, offset)
    store_be32(p + 8, size - LOG_OVERHEAD)
    p[16] = <uint8_t>magic
    p[17] = attributes
    if magic:
        store_be64(p + 18, timestamp)
    put_bytes_be32(put_bytes_be32(p + (26 if magic else 18), key), value)


cdef uint8_t* put_headers(uint8_t* p, const uint8_t* end, const Source* source, HeaderWindow* window,
                          int64_t row) noexcept nogil:
    """Write the headers of a record, which `headers_size` has just measured; NULL if they have changed since."""
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


cdef int64_t write_short(const Slice* keys, const Slice* values, const uint32_t* times, const uint32_t* offsets,
                         int64_t count, uint8_t** at, const uint8_t* end) noexcept nogil:
    """Records without headers, up to the first whose key or value is long or that has no room for slack behind it.

    A loop of its own for them, with nothing in it that they don't need, takes half the time of the general one. Returns
    their number. There has to be slack behind the keys and values.
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
        # The processor asks ahead only as far as a page.
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
                       const uint8_t* end, Report* report) noexcept nogil:
    """The records of a batch of magic 2 from `row` on, without its header, to `at`, which is moved behind them."""
    cdef Slice keys[BLOCK]
    cdef Slice values[BLOCK]
    cdef HeaderWindow window
    # Nothing that the loop needs is behind a pointer, or has its address taken: any byte stored could be one of it.
    cdef uint8_t* p = at[0]
    cdef uint8_t* behind
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
        report.row = row
        if fetch(source.keys, row, count, keys) < count or fetch(source.values, row, count, values) < count:
            report.trouble = OUTSIDE
            return OUTSIDE
        short = not with_headers and has_slack(source.keys, row, count, keys) \
            and has_slack(source.values, row, count, values) \
            and short_deltas(timestamps, row, count, batch.base_timestamp, times) \
            and short_deltas(offsets, row, count, batch.base_offset, deltas)
        i = 0
        while i < count:
            if short:
                behind = p
                i += write_short(keys + i, values + i, times + i, deltas + i, count - i, &behind, end)
                p = behind
                if i == count:
                    break
            # The processor asks ahead only as far as a page.
            kb_prefetch(<const void*>(<uintptr_t>values[i].p + AHEAD))
            time_delta = <int64_t>(<uint64_t>number(&timestamps, row + i) - base_timestamp)
            offset_delta = <int64_t>(<uint64_t>number(&offsets, row + i) - base_offset)
            if with_headers:
                headers = headers_size(source, &window, row + i, report)
                if kb_unlikely(headers < 0):
                    report.row = row + i
                    return report.trouble
            size = max(keys[i].n, 0) + max(values[i].n, 0) + headers
            if kb_unlikely(size + RECORD_BOUND > end - p):
                # Near the end; or what is there isn't what was measured.
                size = record_size(True, 2, time_delta, offset_delta, keys[i].n, values[i].n, headers)
                if size > end - p:
                    report.row = row + i
                    report.trouble = CHANGED
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
                    report.row = row + i
                    report.trouble = CHANGED
                    return CHANGED
            i += 1
        row += count
    at[0] = p
    return NONE


cdef int write_messages(const Source* source, const BatchRow* batch, int64_t row, int64_t stop, uint8_t** at,
                        const uint8_t* end, Report* report) noexcept nogil:
    """The records of a message set from `row` on, each a message, to `at`, which is moved behind them."""
    cdef Slice keys[BLOCK]
    cdef Slice values[BLOCK]
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
        report.row = row
        if fetch(source.keys, row, count, keys) < count or fetch(source.values, row, count, values) < count:
            report.trouble = OUTSIDE
            return OUTSIDE
        for i in range(count):
            size = message_size(batch.magic, keys[i].n, values[i].n)
            if kb_unlikely(size > end - p):
                report.row = row + i
                report.trouble = CHANGED
                return CHANGED
            put_message(p, batch.magic, attributes, <int64_t>(<uint64_t>number(&source.offsets, row + i) - base),
                        number(&source.timestamps, row + i), keys[i], values[i], size)
            store_be32(p + CRC_START_LEGACY - 4, crc32_legacy(p + CRC_START_LEGACY, size - CRC_START_LEGACY))
            p += size
        row += count
    at[0] = p
    return NONE


cdef int write_payload(const Source* source, const BatchRow* batch, int64_t row, int64_t stop, uint8_t* p,
                       const uint8_t* end, Report* report) noexcept nogil:
    """The plain payload of a batch, which has to end where the memory for it does."""
    if batch.magic == 2:
        write_records(source, batch, row, stop, &p, end, report)
    else:
        write_messages(source, batch, row, stop, &p, end, report)
    if report.trouble == NONE and p != end:
        report.row = stop - 1
        report.trouble = CHANGED
    return report.trouble


def payload(Records records not None, batches not None, int64_t i, int64_t skip, out not None):
    """Write the plain payload of batch `i` to `out`, which has to be of its size; without its first `skip` records.

    Of those that are left, the first is the batch's `first_record`. Returns (row, trouble).
    """
    cdef Span batch_span = Span(batches, sizeof(BatchRow), False)
    cdef Span out_span = Span(out, 1, True)
    cdef Report report = Report(trouble=NONE, row=0, found=0)
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
                      p + out_span.length, &report)
    return report.row, report.trouble


def write(Records records, batches not None, Codecs codecs not None, levels not None, out not None):
    """Write whole batches to `out`, the payloads of those that have a codec compressed at the level that it has there.

    A batch takes its `size` of `out`, and gets it. One that is compressed has that of its plain form in `size`, needs
    room as `packed_room` says, and gets the size that it comes to. Sets size, position
    and crc.

    Returns an `Outcome` of bytes.
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
    cdef uint8_t* plain
    cdef uint8_t* into
    cdef Report report = Report(trouble=NONE, row=-1, found=0)
    cdef const Source* source = NULL
    cdef int64_t total = 0 if records is None else records.count
    cdef int64_t most = 0
    cdef int64_t looked = 0
    cdef int64_t before
    cdef int64_t size
    cdef int64_t i
    cdef int[8] level_of
    cdef int codec
    for i in range(8):
        level_of[i] = levels[i] if i < len(levels) else 0
    for i in range(count):
        if is_packed(rows + i):
            most = max(most, rows[i].size - overhead(rows + i))
    scratch = Span(allocate(most), 1, True)
    plain = <uint8_t*>scratch.items
    if records is not None:
        source = &records.source
    with nogil:
        for i in range(count):
            row = rows + i
            before = overhead(row)
            size = row.size - before
            codec = row.attributes & CODEC if is_packed(row) else 0
            into = plain if codec else p + before
            if (size < 0 or (packed_bound(size) if codec else size) > end - p - before
                    or row.first_record < 0 or row.record_count < 0
                    or row.record_count > total - row.first_record or (row.record_count == 0 and size)):
                report.trouble = CHANGED
                break
            if row.record_count and write_payload(source, row, row.first_record, row.first_record + row.record_count,
                                                  into, into + size, &report):
                break
            if codec:
                looked += size
                size = packed_payload(codecs, codec, level_of[codec], row.magic, plain, size, p + before,
                                      end - p - before)
                if size > INT32_MAX - before:
                    report.trouble = BATCH_SIZE
                    report.row = row.first_record
                    report.found = before + size
                    break
                row.size = before + size
                if looked >= SIGNAL_BYTES:
                    looked = 0
                    with gil:
                        PyErr_CheckSignals()
            row.position = p - start
            if before:
                write_header(row, p)
            p += row.size
    return Outcome(p - start, report.row, report.trouble, report.found)


cdef inline bint is_packed(const BatchRow* row) noexcept nogil:
    return row.attributes & CODEC and row.record_count > 0


def packed_room(batches not None):
    """Return how many bytes `write` wants for batches that have their plain sizes."""
    cdef Span span = Span(batches, sizeof(BatchRow), False)
    cdef const BatchRow* rows = <const BatchRow*>span.items
    cdef int64_t room = 0
    cdef int64_t before
    cdef int64_t i
    for i in range(span.length):
        before = overhead(rows + i)
        room += before + packed_bound(rows[i].size - before) if is_packed(rows + i) else rows[i].size
    return room


def frame(batches not None, out not None):
    """Write the headers of batches whose payloads are in their places in `out`, which is as large as all.

    Sets position and crc.
    """
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


cdef class Growing:
    """A bytes object that is appended to.

    It is made in memory of its own, which then is not copied, but cut: so it may be given too much, which costs nothing
    until it is written to.
    """

    cdef PyObject* made
    cdef readonly Py_ssize_t used
    cdef Py_ssize_t room

    def __cinit__(self):
        self.made = PyBytes_FromStringAndSize_(NULL, 0)
        if self.made == NULL:
            raise MemoryError()

    def __dealloc__(self):
        Py_XDECREF(self.made)

    cdef int resize(self, Py_ssize_t room) except -1:
        # On failure the object is gone, and the pointer NULL.
        self.room = 0
        _PyBytes_Resize(&self.made, room)
        self.room = room
        return 0

    def append(self, piece not None, Py_ssize_t expected):
        """Append bytes; where there is no room for them, make some for `expected` bytes in all.

        What was written to `spare` memory is not copied.
        """
        cdef Span span = Span(piece, 1, False)
        if self.made == NULL:
            raise ValueError("the bytes have been taken")
        if span.items == PyBytes_AS_STRING(<object>self.made) + self.used and span.length <= self.room - self.used:
            self.used += span.length
            return
        if span.length > self.room - self.used:
            self.resize(max(expected, self.used + span.length, self.room + self.room // 2))
            kb_expect_fill(PyBytes_AS_STRING(<object>self.made) + self.used, self.room - self.used)
        memcpy(PyBytes_AS_STRING(<object>self.made) + self.used, span.items, span.length)
        self.used += span.length

    def reserve(self, Py_ssize_t size):
        """Have room for so many bytes behind those that are used."""
        if self.made == NULL:
            raise ValueError("the bytes have been taken")
        if size > self.room - self.used:
            self.resize(self.used + size)
            kb_expect_fill(PyBytes_AS_STRING(<object>self.made) + self.used, size)

    def spare(self, Py_ssize_t size):
        """Return a view of so many bytes behind those that are used, or None where there is no room for them.

        The caller lets go of it before anything but `append` is called.
        """
        if self.made == NULL or size < 0 or size > self.room - self.used:
            return None
        return PyMemoryView_FromMemory(PyBytes_AS_STRING(<object>self.made) + self.used, size, PyBUF_WRITE)

    def take(self):
        """Return the bytes; there is nothing left here then."""
        cdef object taken
        if self.made == NULL:
            raise ValueError("the bytes have been taken")
        if self.room != self.used:
            self.resize(self.used)
        taken = <object>self.made
        Py_XDECREF(self.made)
        self.made = NULL
        return taken
