"""Rows -> the number of bytes that their columns need: the pass before `columns.pyx` fills them."""

from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t
from libc.string cimport memset

from kbatch.kernels.slices cimport sum_lengths
from kbatch.kernels.spans cimport RecordSpan
from kbatch.kernels.wire cimport HeaderRow

cdef enum:
    # Rows that `measure_extent` adds at a time; they stay in the first-level cache.
    MEASURE_ROWS = 256

    # `estimate_extent` reads the first SAMPLE rows of every SAMPLED.
    SAMPLE = 64
    SAMPLED = 4096


cdef struct Totals:
    int64_t key_bytes
    int64_t value_bytes
    int64_t header_count
    int64_t header_stop
    int64_t header_key_bytes
    int64_t header_value_bytes


cdef class Extent:
    """The capacity that the columns of rows ``start .. stop - 1`` need; see `measure_extent`."""

    cdef readonly int64_t start
    cdef readonly int64_t stop
    cdef readonly int64_t header_start
    cdef readonly int64_t key_bytes
    cdef readonly int64_t value_bytes
    cdef readonly int64_t header_count
    cdef readonly int64_t header_stop
    cdef readonly int64_t header_key_bytes
    cdef readonly int64_t header_value_bytes


cdef Extent new_extent(int64_t start, int64_t stop, int64_t header_start, Totals totals):
    cdef Extent extent = Extent.__new__(Extent)
    extent.start = start
    extent.stop = stop
    extent.header_start = header_start
    extent.key_bytes = totals.key_bytes
    extent.value_bytes = totals.value_bytes
    extent.header_count = totals.header_count
    extent.header_stop = totals.header_stop
    extent.header_key_bytes = totals.header_key_bytes
    extent.header_value_bytes = totals.header_value_bytes
    return extent


cdef void add_records(RecordSpan rows, Py_ssize_t begin, Py_ssize_t end, Totals* totals) noexcept nogil:
    # A block of rows is in the cache, so that one loop per field costs no more than one loop over all fields.
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
    # Headers must be in the order of their records; `measure_extent` reports any that are left over.
    while h < headers.shape[0] and last <= headers[h].record < end:
        last = headers[h].record
        totals.header_key_bytes += headers[h].key_len if headers[h].key_len > 0 else 0
        totals.header_value_bytes += headers[h].value_len if headers[h].value_len > 0 else 0
        h += 1
    totals.header_stop = h


cdef inline bint within_bounds(const Totals* totals, int64_t max_column_bytes, int64_t max_bytes) noexcept nogil:
    return (
        totals.key_bytes <= max_column_bytes
        and totals.value_bytes <= max_column_bytes
        and totals.header_key_bytes <= max_column_bytes
        and totals.header_value_bytes <= max_column_bytes
        and totals.header_count <= min(max_column_bytes, <int64_t> INT32_MAX)
        and totals.key_bytes + totals.value_bytes + totals.header_key_bytes + totals.header_value_bytes <= max_bytes
    )


def measure_extent(
    records not None,
    int64_t start=0,
    *,
    int64_t max_rows=INT64_MAX,
    int64_t max_column_bytes=INT64_MAX,
    int64_t max_bytes=INT64_MAX,
    const HeaderRow[:] headers=None,
    int64_t header_start=0,
):
    """Measure what the columns of rows from `start` on need, up to the row that would exceed a bound.

    Parameters
    ----------
    records : ndarray of RECORD_DTYPE or some of its fields, shape (n,)
        Missing fields count as empty, also towards the bounds.
    start : int
        First row.
    max_rows, max_column_bytes, max_bytes : int
        Bounds on the rows, on the bytes of each binary column (and on the number of headers, which must always fit an
        int32), and on the bytes of keys, values and headers together. At least one row is taken, whatever its size.
    headers : ndarray of HEADER_DTYPE, optional
        If given, headers count towards the bounds, and the header fields of the result are set.
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
    cdef Totals totals, grown
    if not 0 <= start <= n:
        raise IndexError(f"row {start} of {n} rows")
    if not 0 <= header_start <= m:
        raise IndexError(f"header row {header_start} of {m} rows")
    end = start + min(n - start, max_rows if max_rows > 1 else 1)
    memset(&totals, 0, sizeof(Totals))
    totals.header_stop = header_start
    with nogil:
        # Whole blocks as long as they fit, then row by row.
        step = MEASURE_ROWS
        while i < end:
            stop = min(i + step, end)
            grown = totals
            add_records(rows, i, stop, &grown)
            if m:
                add_headers(headers, i, stop, &grown)
                grown.header_count = grown.header_stop - header_start
            if stop > start + 1 and not within_bounds(&grown, max_column_bytes, max_bytes):
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
    return new_extent(start, i, header_start, totals)


def estimate_extent(records not None, int64_t size):
    """Estimate what the columns of all rows need, from a sample of the rows.

    Parameters
    ----------
    records : ndarray of RECORD_DTYPE or some of its fields, shape (n,)
    size : int
        Size of the buffer that the rows point into, the upper bound of the estimate. Only rows that share bytes can
        need more, and without the bound a few long values in the sample would inflate the estimate.

    Returns
    -------
    Extent
        Of all rows. For many rows, the bytes of keys and values are extrapolated from one row in 64, with a margin,
        which costs nothing compared with a pass over all rows. `fill_records` raises if the estimate was too low.
    """
    cdef RecordSpan rows = RecordSpan(records)
    cdef Py_ssize_t n = rows.length
    cdef Py_ssize_t i = 0, seen = 0, stop
    # The sample is spread over all rows, so that the last ones count as much as the first.
    cdef Py_ssize_t every = SAMPLED if n > 4 * SAMPLED else SAMPLE
    cdef Totals totals
    memset(&totals, 0, sizeof(Totals))
    with nogil:
        while i < n:
            stop = min(i + SAMPLE, n)
            add_records(rows, i, stop, &totals)
            seen += stop - i
            i += every
    totals.key_bytes = extrapolate(totals.key_bytes, seen, n, size)
    totals.value_bytes = extrapolate(totals.value_bytes, seen, n, size)
    return new_extent(0, n, 0, totals)


cdef int64_t extrapolate(int64_t found, Py_ssize_t seen, Py_ssize_t n, int64_t size) noexcept:
    if seen == n:
        return found
    return min(<int64_t> (<double> found / seen * n * 1.0625) + 4096, size)
