"""JSON texts -> lines that a parser reads as exactly one value each.

`check_texts` checks only strings and the nesting of brackets. A valid text has no comma, colon or closing bracket
outside its own brackets. Within ``{"v":...}`` it is therefore one value or a parser error, and cannot affect other
texts. The content of the brackets is left to the parser.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memchr, memcpy, memset

from kbatch.kernels.utf8 cimport kb_utf8_step

# Results of `check_texts`; the messages are in `kbatch.values.json`.
cdef enum JsonVerdict:
    FINE = 0
    EMPTY = 1
    CONTROL = 2  # a control character
    NOT_UTF8 = 3
    NOT_ASCII = 4  # a byte above 0x7F, or a backslash, outside a string
    TOO_DEEP = 5
    NOT_ONE = 6  # a comma, colon or closing bracket outside the first value
    UNFINISHED = 7  # a string or a bracket is open at the end

cdef enum Class:
    PLAIN = 0
    SPACE = 1
    QUOTE = 2
    ESCAPE = 3
    OPEN = 4
    CLOSE = 5
    BETWEEN = 6  # comma, colon
    HIGH = 7
    BAD = 8

cdef uint8_t classes[256]
memset(classes, PLAIN, 256)
memset(&classes[0], BAD, 32)
memset(&classes[128], HIGH, 128)
classes[0x20] = classes[0x09] = classes[0x0A] = classes[0x0D] = SPACE
classes[0x5B] = classes[0x7B] = OPEN
classes[0x5D] = classes[0x7D] = CLOSE
classes[0x2C] = classes[0x3A] = BETWEEN
classes[0x22] = QUOTE
classes[0x5C] = ESCAPE

# Bytes that matter within brackets, and within a string.
cdef uint8_t outside[256]
for _i in range(256):
    outside[_i] = classes[_i] not in (PLAIN, SPACE, BETWEEN)

cdef uint8_t stops[256]
memset(stops, 0, 256)
memset(&stops[0], 1, 32)
memset(&stops[128], 1, 128)
stops[0x22] = stops[0x5C] = 1


cdef JsonVerdict check_text(const uint8_t* p, const uint8_t* end, int max_depth) noexcept nogil:
    cdef int depth = 0
    cdef bint seen = False
    cdef uint8_t kind
    cdef int64_t n
    while True:
        if depth:
            while p < end and not outside[p[0]]:
                p += 1
        if p >= end:
            break
        kind = classes[p[0]]
        p += 1
        if kind == QUOTE:
            seen = True
            while True:
                # Most bytes of a text are in strings, so this loop dominates.
                while p < end and not stops[p[0]]:
                    p += 1
                if p >= end:
                    return UNFINISHED
                if p[0] == 0x22:
                    p += 1
                    break
                if p[0] == 0x5C:
                    if end - p < 2:
                        return UNFINISHED
                    # Any character may be escaped here; the parser decides whether the escape is valid.
                    if p[1] < 0x20:
                        return CONTROL
                    if p[1] >= 0x80:
                        p += 1
                    else:
                        p += 2
                elif p[0] < 0x20:
                    return CONTROL
                else:
                    n = kb_utf8_step(p, end)
                    if n == 0:
                        return NOT_UTF8
                    p += n
        elif kind == OPEN:
            seen = True
            depth += 1
            if depth > max_depth:
                return TOO_DEEP
        elif kind == CLOSE:
            depth -= 1
            if depth < 0:
                return NOT_ONE
        elif kind == BETWEEN:
            if depth == 0:
                return NOT_ONE
        elif kind == BAD:
            return CONTROL
        elif kind == HIGH or kind == ESCAPE:
            return NOT_ASCII
        elif kind == PLAIN:
            seen = True
    if depth:
        return UNFINISHED
    return FINE if seen else EMPTY


cdef inline bint is_text(const int32_t[::1] offsets, int64_t size, int64_t row) noexcept nogil:
    """Return whether `row` is the number of a text, and the text is within `size` bytes."""
    return 0 <= row < offsets.shape[0] - 1 and 0 <= offsets[row] <= offsets[row + 1] <= size


def check_texts(
    const int32_t[::1] offsets not None,
    const uint8_t[::1] content not None,
    const int64_t[::1] rows not None,
    uint8_t[::1] verdicts not None,
    int max_depth,
):
    """Check the structure of texts.

    Parameters
    ----------
    offsets : ndarray of int32, shape (n + 1,)
        Arrow offsets of the texts in `content`.
    content : ndarray of uint8
    rows : ndarray of int64, shape (m,)
        Indices of the texts to check.
    verdicts : ndarray of uint8, shape (m,)
        0 for a valid text, otherwise a `JsonVerdict`.
    max_depth : int
        Maximum nesting of brackets.

    Raises
    ------
    IndexError
        If a row isn't the index of a text, or a text isn't within `content`.
    """
    cdef Py_ssize_t i, bad = -1
    cdef int64_t row, start, stop
    cdef int64_t size = content.shape[0]
    cdef const uint8_t* data = &content[0] if size else NULL
    if verdicts.shape[0] < rows.shape[0]:
        raise ValueError(f"verdicts has {verdicts.shape[0]} items for {rows.shape[0]} rows")
    with nogil:
        for i in range(rows.shape[0]):
            row = rows[i]
            if not is_text(offsets, size, row):
                bad = i
                break
            start = offsets[row]
            stop = offsets[row + 1]
            verdicts[i] = EMPTY if stop == start else check_text(data + start, data + stop, max_depth)
    if bad >= 0:
        raise IndexError(f"text {rows[bad]} isn't within the data")


def join(
    const int32_t[::1] offsets not None,
    const uint8_t[::1] content not None,
    const int64_t[::1] rows not None,
    bytes prefix not None,
    bytes suffix not None,
    uint8_t[::1] out not None,
):
    """Write texts consecutively, each between `prefix` and `suffix`, with line breaks replaced by spaces.

    Parameters
    ----------
    offsets, content, rows
        As for `check_texts`.
    prefix, suffix : bytes
    out : ndarray of uint8
        Memory for all texts with their prefixes and suffixes.

    Returns
    -------
    int
        Bytes written.

    Raises
    ------
    IndexError
        As `check_texts`, or if `out` is too small.
    """
    cdef Py_ssize_t i, bad = -1
    cdef int64_t row, k, length
    cdef int64_t size = content.shape[0]
    cdef int64_t capacity = out.shape[0]
    cdef int64_t at = 0
    cdef int64_t before = len(prefix)
    cdef int64_t after = len(suffix)
    cdef const uint8_t* head = prefix
    cdef const uint8_t* tail = suffix
    with nogil:
        for i in range(rows.shape[0]):
            row = rows[i]
            if not is_text(offsets, size, row) or before + after > capacity - at - (offsets[row + 1] - offsets[row]):
                bad = i
                break
            length = offsets[row + 1] - offsets[row]
            memcpy(&out[at], head, before)
            at += before
            if length:
                memcpy(&out[at], &content[offsets[row]], length)
                if memchr(&out[at], 0x0A, length) != NULL or memchr(&out[at], 0x0D, length) != NULL:
                    for k in range(at, at + length):
                        if out[k] == 0x0A or out[k] == 0x0D:
                            out[k] = 0x20
            at += length
            memcpy(&out[at], tail, after)
            at += after
    if bad >= 0:
        raise IndexError(f"text {rows[bad]} isn't within the data, or `out` is too small")
    return at
