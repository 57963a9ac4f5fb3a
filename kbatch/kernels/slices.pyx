"""Slices of a table's rows -> Python bytes, fixed-width arrays and comparisons.

Rows may be strided (a slice of a table) and may have only some fields of RECORD_DTYPE. They are not trusted: each
position is checked against the buffer, so that rows made or changed by a user raise an exception and never crash.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from kbatch.kernels.spans cimport RecordSpan
from kbatch.kernels.wire cimport HeaderRow, kb_unlikely


cdef SliceColumn record_slices(RecordSpan rows, bint values) except *:
    cdef Py_ssize_t position = rows.fields.value_pos if values else rows.fields.key_pos
    cdef Py_ssize_t length = rows.fields.value_len if values else rows.fields.key_len
    if position < 0 or length < 0:
        raise ValueError(f"the rows have no {'value' if values else 'key'}")
    return SliceColumn(rows.items + position, rows.items + length, rows.stride)


cdef SliceColumn header_slices(const HeaderRow[:] headers, bint values) noexcept:
    cdef SliceColumn s = SliceColumn(NULL, NULL, headers.strides[0])
    if headers.shape[0]:
        s.position = <const char*> &headers[0].value_pos if values else <const char*> &headers[0].key_pos
        s.length = <const char*> &headers[0].value_len if values else <const char*> &headers[0].key_len
    return s


# An address that is valid for reads of no bytes.
cdef uint8_t nothing = 0


cdef const uint8_t* data_start(const uint8_t[::1] data) noexcept:
    return &data[0] if data.shape[0] else &nothing


cdef str record_name(RecordSpan rows, Py_ssize_t i, int64_t first_row):
    return f"record row {first_row + i}" + (f" (offset {rows.offset(i)})" if rows.fields.offset >= 0 else "")


cdef str header_name(const HeaderRow[:] headers, Py_ssize_t i, int64_t first_row):
    return f"header row {first_row + i} (of record row {headers[i].record})"


cdef object outside_error(str row, str column, SliceColumn s, Py_ssize_t i, int64_t size):
    return IndexError(
        f"{row}: its {column} is {slice_length(s, i)} bytes at position {slice_position(s, i)}, "
        f"outside the table's data of {size} bytes"
    )


def gather_by_batch(
    records not None,
    const int32_t[::1] of_batch not None,
    int32_t[::1] out not None,
    *,
    int64_t first_row=0,
):
    """Write to `out` the entry of `of_batch` for each row's batch.

    Parameters
    ----------
    records : ndarray of RECORD_DTYPE or some of its fields, shape (n,)
    of_batch : ndarray of int32, shape (batches,)
    out : ndarray of int32, shape (n,)
    first_row : int
        Number of the first row in its table, for error messages.

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
    """Write all values, each exactly `itemsize` bytes, consecutively.

    Parameters
    ----------
    records : ndarray of RECORD_DTYPE or some of its fields, shape (n,)
    data : ndarray of uint8
    itemsize : int
        Bytes of a value.
    out : ndarray of uint8, shape (n * itemsize,)
    fill : ndarray of uint8, shape (itemsize,), optional
        Written for a null.

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
    cdef const uint8_t* p = data_start(data)
    cdef const uint8_t* source
    cdef uint8_t* target
    cdef SliceColumn values = record_slices(rows, True)
    cdef bint outside = False
    if itemsize < 1 or out.shape[0] // itemsize < n or (fill is not None and fill.shape[0] < itemsize):
        raise ValueError(f"an array is too short for {n} rows of {itemsize} bytes")
    with nogil:
        for i in range(n):
            length = slice_length(values, i)
            if length == itemsize:
                position = slice_position(values, i)
                outside = is_outside(position, length, size)
                if outside:
                    bad = i
                    break
                source = p + position
            elif length < 0 and fill is not None:
                source = &fill[0]
            else:
                bad = i
                break
            target = &out[i * itemsize]
            # A constant size compiles to a move instead of a call.
            if itemsize == 8:
                memcpy(target, source, 8)
            elif itemsize == 4:
                memcpy(target, source, 4)
            else:
                memcpy(target, source, itemsize)
    if outside:
        raise outside_error(record_name(rows, bad, 0), "value", values, bad, size)
    return bad


def keys_equal(
    const int64_t[:] key_pos not None,
    const int32_t[:] key_len not None,
    const uint8_t[::1] data not None,
    const uint8_t[::1] key not None,
    uint8_t[::1] out not None,
):
    """Write to `out` 1 for each row whose key equals `key`, else 0; a null key never does.

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
        Number of equal keys.

    Raises
    ------
    IndexError
        If a key of that length isn't within `data`.
    """
    cdef Py_ssize_t n = key_pos.shape[0], i, bad = -1, found = 0
    cdef int64_t size = data.shape[0], length = key.shape[0], position
    cdef const uint8_t* p = data_start(data)
    cdef const uint8_t* expected = data_start(key)
    cdef bint equal
    if key_len.shape[0] < n or out.shape[0] < n:
        raise ValueError(f"key_len has {key_len.shape[0]} rows and out {out.shape[0]}, needed are {n}")
    with nogil:
        for i in range(n):
            equal = False
            # The data is read only for keys of the same length.
            if key_len[i] == length:
                position = key_pos[i]
                if is_outside(position, length, size):
                    bad = i
                    break
                equal = memcmp(p + position, expected, length) == 0
            out[i] = equal
            found += equal
    if bad >= 0:
        raise IndexError(
            f"record row {bad}: its key is {length} bytes at position {key_pos[bad]}, outside the table's data of "
            f"{size} bytes"
        )
    return found


def slices_equal(
    const int64_t[:] positions not None,
    const int32_t[:] lengths not None,
    const uint8_t[::1] data not None,
    const int64_t[:] other_positions not None,
    const int32_t[:] other_lengths not None,
    const uint8_t[::1] other_data not None,
    uint8_t[::1] out not None,
):
    """Write to `out` 1 for each row where both slices have the same bytes, else 0; null equals only null.

    Parameters
    ----------
    positions, other_positions : ndarray of int64, shape (n,)
    lengths, other_lengths : ndarray of int32, shape (n,)
        A negative length is null.
    data, other_data : ndarray of uint8
    out : ndarray of uint8, shape (n,)

    Returns
    -------
    int
        Number of equal rows.

    Raises
    ------
    IndexError
        If one of two slices of the same length isn't within its data.
    """
    cdef Py_ssize_t n = positions.shape[0], i, bad = -1, found = 0
    cdef int64_t size = data.shape[0], other_size = other_data.shape[0], length
    cdef const uint8_t* p = data_start(data)
    cdef const uint8_t* q = data_start(other_data)
    cdef bint equal
    if min(lengths.shape[0], other_positions.shape[0], other_lengths.shape[0], out.shape[0]) < n:
        raise ValueError(f"an array has fewer than {n} rows")
    with nogil:
        for i in range(n):
            length = lengths[i]
            equal = length == other_lengths[i] or (length < 0 and other_lengths[i] < 0)
            # The data is read only for slices of the same length.
            if equal and length > 0:
                if is_outside(positions[i], length, size) or is_outside(other_positions[i], length, other_size):
                    bad = i
                    break
                equal = memcmp(p + positions[i], q + other_positions[i], length) == 0
            out[i] = equal
            found += equal
    if bad >= 0:
        raise IndexError(
            f"row {bad}: its slices are {lengths[bad]} bytes at positions {positions[bad]} and {other_positions[bad]}, "
            f"outside data of {size} and {other_size} bytes"
        )
    return found


cdef list bytes_list(RecordSpan rows, const HeaderRow[:] headers, bint values, const uint8_t[::1] data):
    """Return the slices of records, or else of headers, as a list of bytes and None."""
    cdef SliceColumn s = record_slices(rows, values) if rows is not None else header_slices(headers, values)
    cdef list out = [None] * (rows.length if rows is not None else headers.shape[0])
    cdef Py_ssize_t i
    cdef int64_t size = data.shape[0]
    cdef const uint8_t* p = data_start(data)
    cdef int64_t position, length
    for i in range(len(out)):
        length = slice_length(s, i)
        if length >= 0:
            position = slice_position(s, i)
            if is_outside(position, length, size):
                name = record_name(rows, i, 0) if rows is not None else header_name(headers, i, 0)
                raise outside_error(name, "value" if values else "key", s, i, size)
            out[i] = PyBytes_FromStringAndSize(<const char*> p + position, length)
    return out


def record_keys(records not None, const uint8_t[::1] data not None):
    """Return the keys as a list of bytes or None; IndexError if one isn't within `data`."""
    return bytes_list(RecordSpan(records), None, False, data)


def record_values(records not None, const uint8_t[::1] data not None):
    """Return the values as a list of bytes or None; IndexError if one isn't within `data`."""
    return bytes_list(RecordSpan(records), None, True, data)


def header_keys(const HeaderRow[:] headers not None, const uint8_t[::1] data not None):
    """Return the header keys as a list of bytes; IndexError if one isn't within `data`."""
    return bytes_list(None, headers, False, data)


def header_values(const HeaderRow[:] headers not None, const uint8_t[::1] data not None):
    """Return the header values as a list of bytes or None; IndexError if one isn't within `data`."""
    return bytes_list(None, headers, True, data)
