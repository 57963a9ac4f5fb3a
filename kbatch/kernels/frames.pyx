"""A run of payloads to their plain form, as far as they have the shape that ordinary producers write.

Reading the framing around each call of a library takes 1 to 2 us in Python, for 16 KiB of lz4 half as long as the
library; here it takes 0.3. The whole decode of such a batch takes 43.3 us instead of 44.7 with gzip, 8.9 instead of
10.1 with xerial snappy, 8.8 instead of 9.9 with raw, 6.5 instead of 8.0 with lz4, 17.1 instead of 19.6 with zstd.

This module knows no policy and no errors: what is not plain - unusual, damaged, over a limit, or without room - it
leaves as it found it to `kbatch.codecs.decompress`, which takes it or says what is wrong with it. What counts as plain
stands at the functions below.

A library gets to write to what is left of the output, and of the limit, and no more; what it allocates itself is
bounded before (COD-R8).
"""

import cramjam
from zlib import decompressobj

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from kbatch.kernels.spans cimport Span
from kbatch.kernels.wire cimport BatchRow, load_be32

cdef object snappy_into = cramjam.snappy.decompress_raw_into
cdef object lz4_into = cramjam.lz4.decompress_block_into

cdef enum:
    CODEC = 0x07
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
    CONTROL = 0x20
    BAD_CRC = 1
    XERIAL_HEADER = 16
    # The densest element of snappy is a three-byte copy of 64 bytes.
    SNAPPY_MAX_RATIO = 22
    # Every byte of a block adds 255 bytes to a length at most.
    LZ4_MAX_RATIO = 255
    ZSTD_BLOCK = 128 << 10
    # zstandard's one call puts out bytes of its own, which have to be copied. For 16 KiB that is a tenth faster than to
    # have it write to the output, as `kbatch.codecs` does; for 1 MiB it is 4 % slower.
    ZSTD_MAX = 256 << 10


cdef inline uint32_t load_le24(const uint8_t* p) noexcept nogil:
    return p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16


cdef inline uint32_t load_le32(const uint8_t* p) noexcept nogil:
    return load_le24(p) | <uint32_t>p[3] << 24


cdef inline uint64_t load_le64(const uint8_t* p) noexcept nogil:
    return load_le32(p) | <uint64_t>load_le32(p + 4) << 32


cdef class Run:
    """The payloads of batches `lo` to `hi`.

    That of batch ``i`` is at ``positions[i - lo]`` of `data`, ``sizes[i - lo]`` bytes long; a size of -1 is that of a
    wrapper without a value. Where one is done, both tell where it is in the output. No compressed one may come to more
    than `limit` bytes; those with nothing to read in them come to none: without records, with a bad status, or of
    control batches unless `include_control`.
    """

    cdef object data
    cdef Span _data
    cdef Span _batches
    cdef Span _positions
    cdef Span _sizes
    cdef readonly int64_t lo
    cdef readonly int64_t hi
    cdef readonly int64_t limit
    cdef bint include_control
    # The input; the output, from where on it goes on, and how much more of it there may be.
    cdef const uint8_t* base
    cdef object out
    cdef uint8_t* start
    cdef int64_t used
    cdef int64_t left

    def __init__(self, data not None, batches not None, int64_t lo, int64_t hi, positions not None, sizes not None,
                 int64_t limit, bint include_control):
        self.data = data
        self._data = Span(data, 1, False)
        self._batches = Span(batches, sizeof(BatchRow), False)
        self._positions = Span(positions, sizeof(int64_t), True)
        self._sizes = Span(sizes, sizeof(int64_t), True)
        if lo < 0 or hi > self._batches.length or self._positions.length < hi - lo or self._sizes.length < hi - lo:
            raise IndexError("rows out of range")
        self.base = <const uint8_t*>self._data.items
        self.lo = lo
        self.hi = hi
        self.limit = limit
        self.include_control = include_control

    cdef const BatchRow* row(self, int64_t i) except NULL:
        """The header of batch `i`, if there is such a batch, and its payload is within the data."""
        cdef int64_t at
        cdef int64_t size
        if i < self.lo or i >= self.hi:
            raise IndexError("rows out of range")
        at = (<int64_t*>self._positions.items)[i - self.lo]
        size = (<int64_t*>self._sizes.items)[i - self.lo]
        if at < 0 or at > self._data.length or size > self._data.length - at:
            raise IndexError("payload out of range")
        return <const BatchRow*>self._batches.items + i

    def payload(self, int64_t i):
        """Return (codec, magic, bytes of the payload) of batch `i`, which is not done; None for a missing value."""
        cdef const BatchRow* row = self.row(i)
        cdef int64_t at = (<int64_t*>self._positions.items)[i - self.lo]
        cdef int64_t size = (<int64_t*>self._sizes.items)[i - self.lo]
        return row.attributes & CODEC, row.magic, None if size < 0 else self.data[at : at + size]

    def done(self, int64_t i, int64_t position, int64_t size):
        """Tell where in the output the payload of batch `i` is."""
        self.row(i)
        (<int64_t*>self._positions.items)[i - self.lo] = position
        (<int64_t*>self._sizes.items)[i - self.lo] = size

    def decompress(self, int64_t i, out not None, int64_t used, int64_t stop, zstd not None):
        """Write the payloads of batches from `i` on to `out`, from byte `used` on.

        `zstd` is a decompressor of this thread's. Uncompressed payloads are copied.

        Returns (batch, used): the batch is `hi`, or the one before which `stop` bytes were reached, or one that is not
        plain. Of that nothing is written that counts.
        """
        cdef Span out_span = Span(out, 1, True)
        cdef int64_t* position
        cdef int64_t* size
        cdef const BatchRow* row
        cdef int codec
        cdef bint plain
        if used < 0 or used > out_span.length:
            raise IndexError("output out of range")
        self.out = out
        self.start = <uint8_t*>out_span.items
        try:
            while i < self.hi and used < stop:
                row = self.row(i)
                position = <int64_t*>self._positions.items + (i - self.lo)
                size = <int64_t*>self._sizes.items + (i - self.lo)
                codec = row.attributes & CODEC
                self.used = used
                self.left = out_span.length - used
                if codec and (row.status > BAD_CRC or (row.magic == 2 and row.record_count <= 0)
                              or (row.attributes & CONTROL and not self.include_control)):
                    plain = True
                elif size[0] < 0:
                    plain = False
                elif codec:
                    self.left = min(self.left, self.limit)
                    plain = decompress(self, codec, position[0], position[0] + size[0], row.magic > 0, zstd)
                else:
                    plain = self.append(self.base + position[0], size[0])
                if not plain:
                    break
                position[0] = used
                size[0] = self.used - used
                used = self.used
                i += 1
        finally:
            self.out = None
        return i, used

    cdef inline bint take(self, int64_t size):
        """Count `size` bytes that a library has written to the output."""
        if size < 0 or size > self.left:
            return False
        self.used += size
        self.left -= size
        return True

    cdef inline bint append(self, const uint8_t* p, int64_t size):
        if size > self.left:
            return False
        memcpy(self.start + self.used, p, size)
        return self.take(size)


cdef bint decompress(Run run, int codec, int64_t at, int64_t end, bint check_header, object zstd_decompressor):
    """Whether the payload from byte `at` to `end` was plain."""
    try:
        if codec == LZ4:
            return lz4(run, at, end, check_header)
        if codec == ZSTD:
            return zstd(run, at, end, zstd_decompressor)
        if codec == SNAPPY:
            return snappy(run, at, end)
        if codec == GZIP:
            return gzip(run, at, end)
    except Exception:
        # Whatever it was, it comes up again in `kbatch.codecs`, which knows what to say.
        pass
    return False


cdef bint gzip(Run run, int64_t at, int64_t end) except -1:
    """One member with nothing behind it. By zlib, though cramjam's inflate is 15 to 25 % faster and could write to the
    output: that takes streams which zlib, and so Kafka, refuses (a distance that reaches before the first byte).
    """
    cdef int64_t size
    cdef bytes plain
    if end - at < 18 or memcmp(run.base + at, b"\x1f\x8b\x08", 3) != 0:
        return False
    size = load_le32(run.base + end - 4)
    if size > run.left:
        return False
    member = decompressobj(31)
    # One byte more: 0 would mean that there is no bound.
    plain = member.decompress(run.data[at:end], size + 1)
    if not member.eof or member.unused_data:
        return False
    return run.append(<const uint8_t*>PyBytes_AS_STRING(plain), PyBytes_GET_SIZE(plain))


cdef bint snappy(Run run, int64_t at, int64_t end) except -1:
    """A raw block, or one xerial stream of whole chunks."""
    cdef int64_t size
    if end - at < XERIAL_HEADER or memcmp(run.base + at, b"\x82SNAPPY\x00", 8) != 0:
        return snappy_block(run, at, end)
    at += XERIAL_HEADER
    while at < end:
        if end - at < 4:
            return False
        size = load_be32(run.base + at)
        at += 4
        if size > end - at or not snappy_block(run, at, at + size):
            return False
        at += size
    return True


cdef bint snappy_block(Run run, int64_t at, int64_t end) except -1:
    cdef uint64_t size = 0
    cdef int64_t i = 0
    while True:
        if i == 5 or i == end - at:
            return False
        size |= <uint64_t>(run.base[at + i] & 0x7F) << 7 * i
        if run.base[at + i] < 0x80:
            break
        i += 1
    if size > <uint64_t>(SNAPPY_MAX_RATIO * (end - at)) or size > <uint64_t>run.left:
        return False
    written = snappy_into(run.data[at:end], run.out[run.used : run.used + <int64_t>size])
    return written == size and run.take(size)


cdef inline uint32_t descriptor_checksum(const uint8_t* p, int n) noexcept nogil:
    """The checksum of a frame's descriptor: the second byte of xxHash32, here for fewer than 16 bytes (L4-R4)."""
    cdef uint32_t x = 374761393u + <uint32_t>n
    cdef int i = 0
    while n - i >= 4:
        x += load_le32(p + i) * 3266489917u
        x = (x << 17 | x >> 15) * 668265263u
        i += 4
    while i < n:
        x += p[i] * 374761393u
        x = (x << 11 | x >> 21) * 2654435761u
        i += 1
    x = (x ^ x >> 15) * 2246822519u
    x = (x ^ x >> 13) * 3266489917u
    return (x ^ x >> 16) >> 8 & 0xFF


cdef bint lz4(Run run, int64_t at, int64_t end, bint check_header) except -1:
    """Independent blocks without checksums, in a frame that tells its size or not; whatever is behind it."""
    cdef const uint8_t* p = run.base + at
    cdef int64_t before = run.used
    cdef int64_t block_max
    cdef int64_t length
    cdef int64_t room
    cdef uint32_t word
    cdef int size_bytes
    if end - at < 7 or memcmp(p, b"\x04\x22\x4d\x18", 4) != 0 or p[4] & 0xF7 != 0x60 or p[5] & 0x8F or p[5] < 0x40:
        return False
    size_bytes = p[4] & 0x08
    if end - at < 7 + size_bytes or (check_header and p[6 + size_bytes] != descriptor_checksum(p + 4, 2 + size_bytes)):
        return False
    block_max = 1 << (2 * (p[5] >> 4) + 8)
    at += 7 + size_bytes
    while end - at >= 4:
        word = load_le32(run.base + at)
        if word == 0:
            return not size_bytes or load_le64(p + 6) == <uint64_t>(run.used - before)
        at += 4
        length = word & 0x7FFFFFFF
        if length > block_max or length > end - at:
            return False
        if word >> 31:
            if not run.append(run.base + at, length):
                return False
        else:
            room = min(block_max, LZ4_MAX_RATIO * length)
            if room > run.left:
                return False
            written = lz4_into(run.data[at : at + length], run.out[run.used : run.used + room], room)
            if not run.take(written):
                return False
        at += length
    return False


cdef bint zstd(Run run, int64_t at, int64_t end, object decompressor) except -1:
    """One small frame without a dictionary, and nothing behind it (RFC 8878, section 3.1.1)."""
    cdef const uint8_t* p = run.base + at
    cdef int64_t length = end - at
    cdef int64_t bound = 0
    cdef uint64_t claim = 0
    cdef uint32_t header = 0
    cdef int descriptor
    cdef int size_bytes
    cdef int i
    cdef bytes plain
    if length < 9 or load_le32(p) != 0xFD2FB528u or p[4] & 0x03:
        return False
    descriptor = p[4]
    size_bytes = 1 << (descriptor >> 6) if descriptor >> 6 else descriptor >> 5 & 1
    at = 5 if descriptor & 0x20 else 6
    if length - at < size_bytes:
        return False
    for i in range(size_bytes):
        claim |= <uint64_t>p[at + i] << 8 * i
    at += size_bytes
    while not header & 1:
        if length - at < 3:
            return False
        header = load_le24(p + at)
        at += 4 if header >> 1 & 3 == 1 else 3 + (header >> 3)
        bound += ZSTD_BLOCK if header >> 1 & 3 == 2 else header >> 3
        if bound > ZSTD_MAX:
            return False
    # A frame that tells its size makes the library allocate that, and do nothing else if it is 0.
    if at + (descriptor & 4) != length or (size_bytes and (claim == 0 or claim > <uint64_t>bound)):
        return False
    # One byte more than fits: 0 would mean that there is no bound.
    plain = decompressor.decompress(run.data[end - length : end], min(bound, run.left) + 1)
    return run.append(<const uint8_t*>PyBytes_AS_STRING(plain), PyBytes_GET_SIZE(plain))
