"""Access to the items of an array during a call.

A typed memoryview of structs compares the whole layout for each array that is passed: 5 us for the arrays of one call
of `decode`, as much as parsing 600 records; spans take 1 us. `check_layouts` compares structs and dtypes once, when the
package is imported.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_STRIDED, PyBUF_STRIDED_RO, PyBUF_WRITABLE, PyBuffer_Release, \
    PyObject_GetBuffer
from libc.stdint cimport int64_t

from kbatch.format import RECORD_DTYPE
from kbatch.kernels cimport wire
from kbatch.kernels.wire cimport BatchRow, HeaderRow, RecordRow

cdef enum:
    ABSENT = -1

# The layout of each dtype of record rows that has been used: there are few.
cdef dict layouts = {}


cdef class Span:
    """A contiguous buffer as items of `itemsize` bytes. The span holds the buffer until it is deallocated."""

    def __cinit__(self, object array, Py_ssize_t itemsize, bint writable):
        PyObject_GetBuffer(array, &self._view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.items = self._view.buf
        self.length = self._view.len // itemsize

    def __dealloc__(self):
        PyBuffer_Release(&self._view)


def check_layouts(const BatchRow[::1] batches not None, const RecordRow[::1] records not None,
                  const HeaderRow[::1] headers not None):
    """Raise `ValueError` unless the dtypes of these arrays have the fields of the kernels' structs."""
    return batches.shape[0] + records.shape[0] + headers.shape[0]


def wire_constants():
    """Return the constants of ``wire.pxd`` that `kbatch.format` has too, by their names there."""
    return {
        "LOG_OVERHEAD": wire.LOG_OVERHEAD,
        "MAGIC_AT": wire.MAGIC_AT,
        "MIN_ENTRY_SIZE": wire.MIN_ENTRY_SIZE,
        "SHORTEST_ENTRY": wire.MESSAGE_SIZE_V0,
        "BATCH_HEADER_SIZE": wire.BATCH_HEADER_SIZE,
        "MESSAGE_HEADER_SIZES": (wire.MESSAGE_HEADER_V0, wire.MESSAGE_HEADER_V1),
        "LEADER_EPOCH_AT": wire.LEADER_EPOCH_AT,
        "ATTRIBUTES_AT": wire.ATTRIBUTES_AT,
        "MAX_TIMESTAMP_AT": wire.MAX_TIMESTAMP_AT,
        "CRC_START": wire.CRC_START,
        "CRC_START_LEGACY": wire.CRC_START_LEGACY,
        "MESSAGE_ATTRIBUTES_AT": wire.MESSAGE_ATTRIBUTES_AT,
        "MESSAGE_TIMESTAMP_AT": wire.MESSAGE_TIMESTAMP_AT,
        "ATTRIBUTE_CODEC": wire.CODEC,
        "ATTRIBUTE_LOG_APPEND_TIME": wire.LOG_APPEND_TIME,
        "ATTRIBUTE_CONTROL": wire.CONTROL,
        "Codec": {"GZIP": wire.GZIP, "SNAPPY": wire.SNAPPY, "LZ4": wire.LZ4, "ZSTD": wire.ZSTD},
        "BatchStatus": {"BAD_CRC": wire.BAD_CRC, "INVALID": wire.INVALID, "BAD_INNER_CRC": wire.BAD_INNER_CRC},
    }


cdef class RowLayout:
    """The position of each field of RECORD_DTYPE in a row, which may have some of them, in any order and with gaps."""

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
    """An array of record rows during a call, with any fields and any stride."""

    def __cinit__(self, object array not None, bint writable=False):
        cdef RowLayout layout = layouts.get(array.dtype)
        if layout is None:
            layout = layouts[array.dtype] = RowLayout(array.dtype)
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
        """Return the offset of a row, -1 if the rows have no offsets."""
        if self.fields.offset < 0:
            return -1
        return (<int64_t*>(self.items + row * self.stride + self.fields.offset))[0]
