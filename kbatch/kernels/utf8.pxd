"""Validation of UTF-8 as Unicode defines it: no overlong forms, no surrogates, no code point above U+10FFFF."""

from libc.stdint cimport int64_t, uint8_t


cdef inline int64_t kb_utf8_step(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Return the length of the sequence at `p`, whose first byte is 0x80 or above; 0 if it is invalid."""
    cdef uint8_t lead = p[0]
    cdef uint8_t low = 0x80
    cdef uint8_t high = 0xBF
    cdef int64_t n, i
    if lead < 0xC2 or lead > 0xF4:
        return 0
    if lead < 0xE0:
        n = 2
    elif lead < 0xF0:
        n = 3
        if lead == 0xE0:
            low = 0xA0
        elif lead == 0xED:
            high = 0x9F
    else:
        n = 4
        if lead == 0xF0:
            low = 0x90
        elif lead == 0xF4:
            high = 0x8F
    if n > end - p or p[1] < low or p[1] > high:
        return 0
    for i in range(2, n):
        if (p[i] & 0xC0) != 0x80:
            return 0
    return n


cdef inline bint kb_is_utf8(const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef int64_t n
    while p < end:
        if p[0] < 0x80:
            p += 1
            continue
        n = kb_utf8_step(p, end)
        if n == 0:
            return False
        p += n
    return True
