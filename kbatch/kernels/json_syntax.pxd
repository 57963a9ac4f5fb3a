"""The grammar of JSON (RFC 8259): the end of a value, and the characters of a string."""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

cdef enum:
    KB_MAX_DEPTH = 256  # as `kbatch.values.json.MAX_DEPTH`


cdef inline const uint8_t* kb_skip_space(const uint8_t* p, const uint8_t* end) noexcept nogil:
    while p < end and (p[0] == 0x20 or p[0] == 0x0A or p[0] == 0x0D or p[0] == 0x09):
        p += 1
    return p


cdef inline bint kb_is_hex(uint8_t c) noexcept nogil:
    return 0x30 <= c <= 0x39 or 0x41 <= (c & 0xDF) <= 0x46


cdef inline const uint8_t* kb_skip_string(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Return the end of the string at `p`, NULL if it is not valid. `check_texts` has checked the characters."""
    p += 1
    while True:
        while p < end and p[0] != 0x22 and p[0] != 0x5C and p[0] >= 0x20:
            p += 1
        if p >= end or p[0] < 0x20:
            return NULL
        if p[0] == 0x22:
            return p + 1
        if end - p < 2:
            return NULL
        if p[1] == 0x75:
            if end - p < 6 or not (kb_is_hex(p[2]) and kb_is_hex(p[3]) and kb_is_hex(p[4]) and kb_is_hex(p[5])):
                return NULL
            p += 6
        elif (
            p[1] == 0x22 or p[1] == 0x5C or p[1] == 0x2F or p[1] == 0x62 or p[1] == 0x66 or p[1] == 0x6E
            or p[1] == 0x72 or p[1] == 0x74
        ):
            p += 2
        else:
            return NULL


cdef inline const uint8_t* kb_skip_digits(const uint8_t* p, const uint8_t* end) noexcept nogil:
    while p < end and 0x30 <= p[0] <= 0x39:
        p += 1
    return p


cdef inline const uint8_t* kb_skip_word(
    const uint8_t* p, const uint8_t* end, const char* word, int64_t length
) noexcept nogil:
    return p + length if end - p >= length and memcmp(p, word, length) == 0 else NULL


cdef inline const uint8_t* kb_skip_number(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Return the end of the number at `p`, or NULL. NaN and Infinity are numbers, as in Python's json module."""
    cdef const uint8_t* digits
    if p[0] == 0x4E:
        return kb_skip_word(p, end, b"NaN", 3)
    if p[0] == 0x2D:
        p += 1
    if p < end and p[0] == 0x49:
        return kb_skip_word(p, end, b"Infinity", 8)
    digits = p
    p = kb_skip_digits(p, end)
    if p == digits or (digits[0] == 0x30 and p - digits > 1):
        return NULL
    if p < end and p[0] == 0x2E:
        digits = p + 1
        p = kb_skip_digits(digits, end)
        if p == digits:
            return NULL
    if p < end and (p[0] == 0x65 or p[0] == 0x45):
        p += 1
        if p < end and (p[0] == 0x2B or p[0] == 0x2D):
            p += 1
        digits = p
        p = kb_skip_digits(digits, end)
        if p == digits:
            return NULL
    return p


cdef inline const uint8_t* kb_skip_value(const uint8_t* p, const uint8_t* end, int depth) noexcept nogil:
    """Return the end of the value at `p`, or NULL if it is not valid JSON."""
    cdef uint8_t close
    if p >= end or depth > KB_MAX_DEPTH:
        return NULL
    if p[0] == 0x22:
        return kb_skip_string(p, end)
    if p[0] == 0x74:
        return kb_skip_word(p, end, b"true", 4)
    if p[0] == 0x66:
        return kb_skip_word(p, end, b"false", 5)
    if p[0] == 0x6E:
        return kb_skip_word(p, end, b"null", 4)
    if p[0] != 0x7B and p[0] != 0x5B:
        return kb_skip_number(p, end)
    close = 0x7D if p[0] == 0x7B else 0x5D
    p = kb_skip_space(p + 1, end)
    if p < end and p[0] == close:
        return p + 1
    while True:
        if close == 0x7D:
            if p >= end or p[0] != 0x22:
                return NULL
            p = kb_skip_string(p, end)
            if p == NULL:
                return NULL
            p = kb_skip_space(p, end)
            if p >= end or p[0] != 0x3A:
                return NULL
            p = kb_skip_space(p + 1, end)
        p = kb_skip_value(p, end, depth + 1)
        if p == NULL:
            return NULL
        p = kb_skip_space(p, end)
        if p >= end:
            return NULL
        if p[0] == close:
            return p + 1
        if p[0] != 0x2C:
            return NULL
        p = kb_skip_space(p + 1, end)


cdef inline uint64_t kb_hex4(const uint8_t* p) noexcept nogil:
    cdef uint64_t value = 0
    for i in range(4):
        value = value * 16 + (p[i] - 0x30 if p[i] <= 0x39 else (p[i] & 0xDF) - 0x41 + 10)
    return value


cdef inline int64_t kb_unescape(const uint8_t* p, const uint8_t* end, uint8_t* out, int64_t room) noexcept nogil:
    """Write the characters of a valid string; return their length, or -1 for more than `room` bytes."""
    cdef int64_t n = 0
    cdef uint64_t code
    while p < end:
        if room - n < 4:
            return -1
        if p[0] != 0x5C:
            out[n] = p[0]
            n += 1
            p += 1
            continue
        if p[1] != 0x75:
            out[n] = (
                0x08 if p[1] == 0x62 else 0x0C if p[1] == 0x66 else 0x0A if p[1] == 0x6E
                else 0x0D if p[1] == 0x72 else 0x09 if p[1] == 0x74 else p[1]
            )
            n += 1
            p += 2
            continue
        code = kb_hex4(p + 2)
        p += 6
        if 0xD800 <= code < 0xDC00 and end - p >= 6 and p[0] == 0x5C and p[1] == 0x75 and (
            0xDC00 <= kb_hex4(p + 2) < 0xE000
        ):
            code = 0x10000 + ((code - 0xD800) << 10) + (kb_hex4(p + 2) - 0xDC00)
            p += 6
        if code < 0x80:
            out[n] = <uint8_t> code
            n += 1
        elif code < 0x800:
            out[n] = <uint8_t> (0xC0 | (code >> 6))
            out[n + 1] = <uint8_t> (0x80 | (code & 0x3F))
            n += 2
        elif code < 0x10000:
            out[n] = <uint8_t> (0xE0 | (code >> 12))
            out[n + 1] = <uint8_t> (0x80 | ((code >> 6) & 0x3F))
            out[n + 2] = <uint8_t> (0x80 | (code & 0x3F))
            n += 3
        else:
            out[n] = <uint8_t> (0xF0 | ((code >> 18) & 0x07))
            out[n + 1] = <uint8_t> (0x80 | ((code >> 12) & 0x3F))
            out[n + 2] = <uint8_t> (0x80 | ((code >> 6) & 0x3F))
            out[n + 3] = <uint8_t> (0x80 | (code & 0x3F))
            n += 4
    return n
