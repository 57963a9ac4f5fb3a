"""The items of an array, for the time of a call.

A typed memoryview of structs compares the whole layout whenever an array comes in: 5 us for the arrays of one call of
`decode`, as much as parsing 600 records; with spans it is 1 us. That structs and dtypes agree is checked once, when the
package is imported (`check_layouts`).
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_STRIDED, PyBUF_STRIDED_RO, PyBUF_WRITABLE, PyBuffer_Release, \
    PyObject_GetBuffer
from libc.stdint cimport int64_t

from kbatch.format import RECORD_DTYPE
from kbatch.kernels.wire cimport BatchRow, HeaderRow, RecordRow

cdef enum:
    ABSENT = -1

# The fields of rows of each dtype that has been met: there are few.
cdef dict layouts = {}


cdef class Span:
    """A contiguous buffer as items of `itemsize` bytes; it holds the buffer as long as it lives."""

    def __cinit__(self, object array, Py_ssize_t itemsize, bint writable):
        PyObject_GetBuffer(array, &self._view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.items = self._view.buf
        self.length = self._view.len // itemsize

    def __dealloc__(self):
        PyBuffer_Release(&self._view)


def check_layouts(const BatchRow[::1] batches not None, const RecordRow[::1] records not None,
                  const HeaderRow[::1] headers not None):
    """Raise `ValueError` unless the dtypes of these arrays are the structs of the kernels, field by field."""
    return batches.shape[0] + records.shape[0] + headers.shape[0]


cdef class Layout:
    """Where in a row each field of RECORD_DTYPE is: rows may have some of them, in any order and with gaps."""

    def __init__(self, dtype):
        known = RECORD_DTYPE.fields
        if not dtype.names or not all(name in known and dtype[name] == known[name][0] for name in dtype.names):
            raise ValueError(f"rows of records have fields of RECORD_DTYPE, got {dtype}")
        at = {name: dtype.fields[name][1] for name in dtype.names}
        self.fields.itemsize = dtype.itemsize
        self.fields.offset = at.get("offset", ABSENT)
        self.fields.timestamp = at.get("timestamp", ABSENT)
        self.fields.key_pos = at.get("key_pos", ABSENT)
        self.fields.value_pos = at.get("value_pos", ABSENT)
        self.fields.headers_pos = at.get("headers_pos", ABSENT)
        self.fields.key_len = at.get("key_len", ABSENT)
        self.fields.value_len = at.get("value_len", ABSENT)
        self.fields.header_count = at.get("header_count", ABSENT)
        self.fields.batch = at.get("batch", ABSENT)
        self.whole = dtype == RECORD_DTYPE
        self.alignment = max(dtype[name].itemsize for name in dtype.names)
        if any(place % dtype[name].itemsize for name, place in at.items()):
            raise ValueError(f"fields of records must be aligned, got {dtype}")


cdef class RecordSpan:
    """An array of rows of records, whatever fields they have and however far apart they are, for the time of a call."""

    def __cinit__(self, object array not None, bint writable=False):
        cdef Layout layout = layouts.get(array.dtype)
        if layout is None:
            layout = layouts[array.dtype] = Layout(array.dtype)
        PyObject_GetBuffer(array, &self._view, PyBUF_STRIDED if writable else PyBUF_STRIDED_RO)
        self.fields = layout.fields
        self.whole = layout.whole
        if self._view.ndim != 1 or self._view.itemsize != layout.fields.itemsize:
            raise ValueError(f"rows of records are an array of one dimension, got {self._view.ndim}")
        self.items = <char*>self._view.buf
        self.length = self._view.shape[0]
        self.stride = self._view.strides[0]
        if self.length and (<Py_ssize_t>self.items % layout.alignment or self.stride % layout.alignment):
            raise ValueError("rows of records must be aligned")

    def __dealloc__(self):
        PyBuffer_Release(&self._view)

    cdef int64_t offset(self, Py_ssize_t row):
        """Return the offset of a row, -1 if the rows have none."""
        if self.fields.offset < 0:
            return -1
        return (<int64_t*>(self.items + row * self.stride + self.fields.offset))[0]
