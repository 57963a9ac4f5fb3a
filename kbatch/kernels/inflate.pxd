from libc.stdint cimport int64_t, uint8_t

# Decompress the raw deflate stream (RFC 1951) that begins at `source[0]`, to at most `room` bytes at `out`. Returns how
# many they are and moves `source[0]` behind the stream; -1 if it is malformed, cut, or has no room. What lies in `out`
# behind the result is undefined then.
cdef int64_t inflate_raw(const uint8_t** source, const uint8_t* end, uint8_t* out, int64_t room) noexcept nogil
