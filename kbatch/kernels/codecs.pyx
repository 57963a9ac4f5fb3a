"""Decompress payloads that have the shape which ordinary producers write; and compress.

Decompression calls the C functions that `kbatch.batches.native` has found in the packages of the codecs, without the
GIL, and for snappy the package cramjam, since no package exports its functions. Every other payload - unusual, damaged,
over a limit, without room, or of a library that was not found - is left to
`kbatch.batches.careful.decompress_carefully`, which decompresses it or reports what is wrong with it. Each function
below states which payloads it takes.

Compression calls the C functions too, and the packages where they were not found.

A library gets to write to what is left of the output, and of the limit, and no more; what it allocates itself is
bounded before (COD-R8). A context that met an error is thrown away, or reset by what begins the next payload (COD-R9).
"""

cimport cython

import cramjam
from lz4.frame import compress as lz4_compress
from zlib import DEFLATED, compressobj
from zstandard import ZstdCompressor

from cpython.buffer cimport PyBUF_READ, PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from kbatch.kernels.checksum cimport crc32_legacy
from kbatch.kernels.spans cimport Span
from kbatch.kernels.wire cimport GZIP, LZ4, SNAPPY, ZSTD, kb_bswap32, load_be32, load_le64

cdef object snappy_into = cramjam.snappy.decompress_raw_into
cdef object snappy_packed_into = cramjam.snappy.compress_raw_into

cdef enum:
    # zlib and ISA-L count in unsigned ints.
    GZIP_MAX = 1 << 30
    ZLIB_GZIP = 31
    ZLIB_FINISH = 4
    ZLIB_STREAM_END = 1
    # While so much room is left, the fast loops of zlib and ISA-L run.
    INFLATE_FAST = 258
    GZIP_HEADER = 10
    GZIP_TRAILER = 8
    GZIP_TEXT = 1
    GZIP_EXTRA = 4
    GZIP_NAME = 8
    GZIP_COMMENT = 16
    XERIAL_HEADER = 16
    # The densest element of snappy is a three-byte copy of 64 bytes.
    SNAPPY_MAX_RATIO = 22
    LZ4F_VERSION = 100
    LZ4F_64_KIB = 4
    LZ4F_INDEPENDENT = 1
    # What the header checksum of the frames that are written here is in magic 0 (L4-R5).
    LZ4_HEADER = 7
    LZ4_OLD_CHECKSUM = 0x1A
    ZSTD_LEVEL = 100
    # A block as Java writes it, and the most that snappy makes of one (SN-R9).
    XERIAL_BLOCK = 32 << 10
    ZSTD_BLOCK = 128 << 10
    ZSTD_WINDOW_LOG = 27


cdef inline uint32_t load_le24(const uint8_t* p) noexcept nogil:
    return p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16


cdef inline uint32_t load_le32(const uint8_t* p) noexcept nogil:
    return load_le24(p) | <uint32_t>p[3] << 24


cdef class Codecs:
    """The libraries, and the contexts of one thread. Not for two threads at once.

    `functions` are addresses as `kbatch.batches.native` finds them. Of a library all of them are there or none. Without
    any, nothing is decompressed here.
    """

    def __cinit__(self):
        memset(&self.functions, 0, sizeof(Functions))
        memset(&self.zlib, 0, sizeof(kb_zlib))
        self.lz4f = NULL
        self.zstd = NULL
        self.zstd_packer = NULL
        self.isal = NULL
        self.follow = NULL

    def __init__(self, functions not None):
        cdef Functions* f = &self.functions
        (<void**>&f.lz4_decompress)[0] = address(functions, "LZ4_decompress_safe")
        (<void**>&f.lz4f_create)[0] = address(functions, "LZ4F_createDecompressionContext")
        (<void**>&f.lz4f_free)[0] = address(functions, "LZ4F_freeDecompressionContext")
        (<void**>&f.lz4f_decompress)[0] = address(functions, "LZ4F_decompress")
        (<void**>&f.lz4f_compress)[0] = address(functions, "LZ4F_compressFrame")
        (<void**>&f.zstd_create_packer)[0] = address(functions, "ZSTD_createCCtx")
        (<void**>&f.zstd_free_packer)[0] = address(functions, "ZSTD_freeCCtx")
        (<void**>&f.zstd_set)[0] = address(functions, "ZSTD_CCtx_setParameter")
        (<void**>&f.zstd_compress)[0] = address(functions, "ZSTD_compress2")
        (<void**>&f.zstd_create)[0] = address(functions, "ZSTD_createDCtx")
        (<void**>&f.zstd_free)[0] = address(functions, "ZSTD_freeDCtx")
        (<void**>&f.zstd_decompress)[0] = address(functions, "ZSTD_decompressDCtx")
        (<void**>&f.zlib_init)[0] = address(functions, "inflateInit2_")
        (<void**>&f.zlib_reset)[0] = address(functions, "inflateReset")
        (<void**>&f.zlib_inflate)[0] = address(functions, "inflate")
        (<void**>&f.zlib_end)[0] = address(functions, "inflateEnd")
        (<void**>&f.isal_init)[0] = address(functions, "isal_inflate_init")
        (<void**>&f.isal_inflate)[0] = address(functions, "isal_inflate_stateless")
        self.native = bool(functions)

    def __dealloc__(self):
        if self.lz4f != NULL:
            self.functions.lz4f_free(self.lz4f)
        if self.zstd != NULL:
            self.functions.zstd_free(self.zstd)
        if self.zstd_packer != NULL:
            self.functions.zstd_free_packer(self.zstd_packer)
        if self.zlib.state != NULL:
            self.functions.zlib_end(&self.zlib)
        free(self.isal)


cdef void* address(object functions, str name) except? NULL:
    return <void*><uintptr_t>functions.get(name, 0)


def plain(Codecs codecs not None, int codec, bint check_header, payload not None, out not None, int64_t limit):
    """Write the plain form of a payload to `out`, at most `limit` bytes; return how many they are, or -1.

    `check_header` is whether the batch's magic is above 0 (L4-R5).
    """
    cdef Span source = Span(payload, 1, False)
    cdef Span target = Span(out, 1, True)
    cdef int64_t size
    with nogil:
        size = plain_payload(codecs, codec, check_header, <const uint8_t*>source.items, source.length,
                             <uint8_t*>target.items, target.length, limit)
    return size


cdef int64_t plain_payload(Codecs codecs, int codec, bint check_header, const uint8_t* p, int64_t size, uint8_t* out,
                           int64_t room, int64_t limit) noexcept nogil:
    room = min(room, limit)
    # An empty arena: cramjam crashes at a pointer to nothing, also where nothing is to be written to it.
    if out == NULL or not codecs.native:
        return -1
    if codec == LZ4:
        return lz4(codecs, check_header, p, size, out, room)
    if codec == ZSTD:
        return zstd(codecs, p, size, out, room)
    if codec == SNAPPY:
        return snappy(codecs, p, size, out, room)
    if codec == GZIP:
        return gzip(codecs, p, size, out, room)
    return -1


cdef int64_t gzip_claim(const uint8_t* p, int64_t size) noexcept nogil:
    cdef int64_t claim
    if size < GZIP_HEADER + GZIP_TRAILER or size > GZIP_MAX or memcmp(p, b"\x1f\x8b\x08", 3) != 0:
        return -1
    claim = load_le32(p + size - 4)
    return claim if claim <= GZIP_MAX else -1


cdef int64_t gzip(Codecs codecs, const uint8_t* p, int64_t size, uint8_t* out, int64_t room) noexcept nogil:
    """One member with nothing behind it, of the size that it claims (RFC 1952)."""
    cdef int64_t claim = gzip_claim(p, size)
    if claim < 0 or claim > room:
        return -1
    # What they get beyond the claim is not trusted either: it is there.
    room = min(room, claim + INFLATE_FAST)
    if codecs.functions.isal_inflate != NULL:
        return gzip_by_isal(codecs, p, size, out, room, claim)
    if codecs.functions.zlib_inflate != NULL:
        return gzip_by_zlib(codecs, p, size, out, room)
    return -1


cdef int64_t gzip_by_zlib(Codecs codecs, const uint8_t* p, int64_t size, uint8_t* out, int64_t room) noexcept nogil:
    cdef kb_zlib* stream = &codecs.zlib
    if stream.state == NULL:
        if codecs.functions.zlib_init(stream, ZLIB_GZIP, b"1", sizeof(kb_zlib)) != 0:
            return -1
    elif codecs.functions.zlib_reset(stream) != 0:
        return -1
    stream.next_in = p
    stream.avail_in = <unsigned>size
    stream.next_out = out
    stream.avail_out = <unsigned>room
    if codecs.functions.zlib_inflate(stream, ZLIB_FINISH) != ZLIB_STREAM_END or stream.avail_in:
        return -1
    return stream.next_out - out


cdef int64_t gzip_by_isal(Codecs codecs, const uint8_t* p, int64_t size, uint8_t* out, int64_t room,
                          int64_t claim) noexcept nogil:
    """A header without a checksum of its own, and what ISA-L makes of the stream behind it.

    ISA-L takes codes that are incomplete, which zlib, and so Kafka, refuses, and which nothing writes (GZ-R1); the
    checksum and the size of what comes out have to hold all the same.
    """
    cdef const uint8_t* end = p + size - GZIP_TRAILER
    cdef int flags = p[3]
    cdef int extra
    cdef int _
    p += GZIP_HEADER
    if flags & ~(GZIP_TEXT | GZIP_EXTRA | GZIP_NAME | GZIP_COMMENT):
        return -1
    if flags & GZIP_EXTRA:
        if end - p < 2:
            return -1
        extra = p[0] | p[1] << 8
        if extra > end - p - 2:
            return -1
        p += 2 + extra
    for _ in range((flags & GZIP_NAME) // GZIP_NAME + (flags & GZIP_COMMENT) // GZIP_COMMENT):
        while p < end and p[0]:
            p += 1
        if p == end:
            return -1
        p += 1
    if codecs.isal == NULL:
        codecs.isal = <kb_isal*>calloc(1, sizeof(kb_isal))
        if codecs.isal == NULL:
            return -1
    codecs.functions.isal_init(codecs.isal)
    codecs.isal.next_in = p
    codecs.isal.avail_in = <uint32_t>(end - p)
    codecs.isal.next_out = out
    codecs.isal.avail_out = <uint32_t>room
    if codecs.functions.isal_inflate(codecs.isal) != 0 or codecs.isal.avail_in:
        return -1
    if codecs.isal.next_out - out != claim or crc32_legacy(out, claim) != load_le32(end):
        return -1
    return claim


cdef inline object bytes_at(const uint8_t* p, int64_t size):
    return PyMemoryView_FromMemory(<char*>p, size, PyBUF_READ)


@cython.final
@cython.freelist(4)
cdef class Room:
    """Bytes for cramjam to read or to write to, for the time of a call.

    It makes no memoryview, which takes longer, and of which cramjam without the GIL takes none to write to.
    """

    cdef uint8_t* start
    cdef Py_ssize_t size
    cdef bint readonly

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.start, self.size, self.readonly, flags)


cdef inline object room_at(const uint8_t* p, int64_t size, bint readonly):
    cdef Room room = Room.__new__(Room)
    room.start = <uint8_t*>p
    room.size = size
    room.readonly = readonly
    return room


cdef inline int64_t copied(bytes plain, uint8_t* out, int64_t room) noexcept:
    cdef int64_t size = PyBytes_GET_SIZE(plain)
    if size > room:
        return -1
    memcpy(out, PyBytes_AS_STRING(plain), size)
    return size


cdef inline int64_t chunk_size(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """The size of a xerial stream's next chunk, behind the four bytes at `p` that tell it; -1 if it isn't whole."""
    cdef int64_t size = load_be32(p) if end - p >= 4 else -1
    return size if size <= end - p - 4 else -1


cdef int64_t snappy(Codecs codecs, const uint8_t* p, int64_t size, uint8_t* out, int64_t room) noexcept nogil:
    """A raw block, or one xerial stream of whole chunks."""
    cdef const uint8_t* start = p
    cdef const uint8_t* end = p + size
    cdef int64_t used = 0
    cdef int64_t written
    if size < XERIAL_HEADER or memcmp(p, b"\x82SNAPPY\x00", 8) != 0:
        return snappy_block(p, size, out, room)
    p += XERIAL_HEADER
    while p < end:
        size = chunk_size(p, end)
        if size < 0:
            return -1
        p += 4
        written = snappy_block(p, size, out + used, room - used)
        if written < 0:
            return -1
        used += written
        p += size
        if codecs.follow != NULL:
            codecs.follow(codecs.follow_context, p - start, used)
    return used


cdef inline int64_t block_claim(const uint8_t* p, int64_t size) noexcept nogil:
    """The size that a block of snappy tells, if it can have it."""
    cdef uint64_t claim = 0
    cdef int64_t i = 0
    while True:
        if i == 5 or i == size:
            return -1
        claim |= <uint64_t>(p[i] & 0x7F) << 7 * i
        if p[i] < 0x80:
            break
        i += 1
    return <int64_t>claim if claim <= <uint64_t>(SNAPPY_MAX_RATIO * size) else -1


cdef inline int64_t snappy_block(const uint8_t* p, int64_t size, uint8_t* out, int64_t room) noexcept nogil:
    cdef int64_t claim = block_claim(p, size)
    return -1 if claim < 0 or claim > room else snappy_by_package(p, size, out, claim)


cdef int64_t snappy_by_package(const uint8_t* p, int64_t size, uint8_t* out, int64_t claim) noexcept with gil:
    cdef int64_t written
    try:
        written = snappy_into(room_at(p, size, True), room_at(out, claim, False))
    except BaseException:
        return -1
    return written if written == claim else -1


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


cdef int64_t lz4(Codecs codecs, bint check_header, const uint8_t* p, int64_t size, uint8_t* out,
                 int64_t room) noexcept nogil:
    """A frame that tells its size or not; whatever is behind it. Block by block if these are independent and without
    checksums: for blocks of 64 KiB that is faster than the library's own way.
    """
    cdef const uint8_t* end = p + size
    cdef const uint8_t* header = p
    cdef int64_t used = 0
    cdef int64_t block_max
    cdef int64_t length
    cdef int64_t written
    cdef uint32_t word
    cdef int size_bytes
    if codecs.functions.lz4_decompress == NULL:
        return -1
    if size < 7 or memcmp(p, b"\x04\x22\x4d\x18", 4) != 0 or p[4] & 0xC3 != 0x40 or p[5] & 0x8F or p[5] < 0x40:
        return -1
    if p[4] & 0xF7 != 0x60:
        return lz4_frame(codecs, p, size, out, room)
    size_bytes = p[4] & 0x08
    if size < 7 + size_bytes or (check_header and p[6 + size_bytes] != descriptor_checksum(p + 4, 2 + size_bytes)):
        return -1
    block_max = 1 << (2 * (p[5] >> 4) + 8)
    p += 7 + size_bytes
    while end - p >= 4:
        word = load_le32(p)
        if word == 0:
            return -1 if size_bytes and load_le64(header + 6) != <uint64_t>used else used
        p += 4
        length = word & 0x7FFFFFFF
        if length > block_max or length > end - p:
            return -1
        if word >> 31:
            if length > room - used:
                return -1
            memcpy(out + used, p, length)
            written = length
        else:
            written = codecs.functions.lz4_decompress(p, out + used, <int>length, <int>min(block_max, room - used))
            if written < 0:
                return -1
        used += written
        p += length
        if codecs.follow != NULL:
            codecs.follow(codecs.follow_context, p - header, used)
    return -1


cdef int64_t lz4_frame(Codecs codecs, const uint8_t* p, int64_t size, uint8_t* out, int64_t room) noexcept nogil:
    """A frame with linked blocks (L4-R2) or checksums, which the library verifies (L4-R7)."""
    cdef size_t taken = <size_t>size
    cdef size_t written = <size_t>room
    if codecs.lz4f == NULL and codecs.functions.lz4f_create(&codecs.lz4f, LZ4F_VERSION) != 0:
        return -1
    # 0 is the end of a frame, after which the context begins with the next; anything else an error or a cut frame.
    if codecs.functions.lz4f_decompress(codecs.lz4f, out, &written, p, &taken, NULL) == 0:
        return <int64_t>written
    # Resetting it wouldn't clear what remains of a frame's content size (liblz4 1.9.4): the next would be refused.
    codecs.functions.lz4f_free(codecs.lz4f)
    codecs.lz4f = NULL
    return -1


cdef int64_t zstd_header(const uint8_t* p, int64_t size, int64_t* claim) noexcept nogil:
    """Where the blocks of a frame without a dictionary begin, or -1; and the size that it tells, or -1 (RFC 8878)."""
    cdef uint64_t told = 0
    cdef int64_t at
    cdef int descriptor
    cdef int size_bytes
    cdef int i
    if size < 9 or load_le32(p) != 0xFD2FB528u or p[4] & 0x03:
        return -1
    descriptor = p[4]
    size_bytes = 1 << (descriptor >> 6) if descriptor >> 6 else descriptor >> 5 & 1
    at = 5 if descriptor & 0x20 else 6
    # The library in one call has no bound for windows (ZS-R5).
    if size - at < size_bytes or (at == 6 and p[5] > (ZSTD_WINDOW_LOG - 10) << 3):
        return -1
    for i in range(size_bytes):
        told |= <uint64_t>p[at + i] << 8 * i
    if size_bytes == 2:
        told += 256
    if told > 1 << ZSTD_WINDOW_LOG:
        return -1
    claim[0] = <int64_t>told if size_bytes else -1
    return at + size_bytes


cdef int64_t zstd(Codecs codecs, const uint8_t* p, int64_t size, uint8_t* out, int64_t room) noexcept nogil:
    """One frame without a dictionary, and nothing behind it (RFC 8878, section 3.1.1)."""
    cdef int64_t claim
    cdef int64_t at = zstd_header(p, size, &claim)
    cdef int64_t bound = 0
    cdef size_t written
    cdef uint32_t header = 0
    if at < 0 or codecs.functions.zstd_decompress == NULL:
        return -1
    while not header & 1:
        if size - at < 3:
            return -1
        header = load_le24(p + at)
        at += 4 if header >> 1 & 3 == 1 else 3 + (header >> 3)
        bound += ZSTD_BLOCK if header >> 1 & 3 == 2 else header >> 3
    if at + (p[4] & 4) != size or claim > bound:
        return -1
    if codecs.zstd == NULL:
        codecs.zstd = codecs.functions.zstd_create()
        if codecs.zstd == NULL:
            return -1
    written = codecs.functions.zstd_decompress(codecs.zstd, out, <size_t>room, p, <size_t>size)
    return <int64_t>written if written <= <size_t>room else -1


def packed(Codecs codecs not None, int codec, int level, int magic, plain not None):
    """Return what `packed_payload` makes of a plain payload."""
    cdef Span source = Span(plain, 1, False)
    cdef int64_t room = packed_bound(source.length)
    cdef uint8_t* out = <uint8_t*>malloc(room)
    cdef int64_t size
    if out == NULL:
        raise MemoryError()
    try:
        with nogil:
            size = packed_payload(codecs, codec, level, magic, <const uint8_t*>source.items, source.length, out, room)
        return PyBytes_FromStringAndSize(<char*>out, size)
    finally:
        free(out)


cdef int64_t packed_payload(Codecs codecs, int codec, int level, int magic, const uint8_t* p, int64_t size,
                            uint8_t* out, int64_t room) except -1 nogil:
    if codec == LZ4:
        size = lz4_packed(codecs, level, p, size, out, room)
        if magic == 0:
            correct_header(out, size)
        return size
    if codec == ZSTD:
        return zstd_packed(codecs, level, p, size, out, room)
    if codec == SNAPPY:
        return snappy_packed(p, size, out, room)
    return gzip_packed(level, p, size, out, room)


cdef int64_t lz4_packed(Codecs codecs, int level, const uint8_t* p, int64_t size, uint8_t* out,
                        int64_t room) except -1 nogil:
    """A frame of independent blocks of 64 KiB without content size and checksums (L4-R12)."""
    cdef kb_lz4f_preferences preferences
    cdef size_t written
    if codecs.functions.lz4f_compress != NULL:
        memset(&preferences, 0, sizeof(preferences))
        preferences.block_size_id = LZ4F_64_KIB
        preferences.block_mode = LZ4F_INDEPENDENT
        preferences.compression_level = level
        written = codecs.functions.lz4f_compress(out, <size_t>room, p, <size_t>size, &preferences)
        if written <= <size_t>room:
            return <int64_t>written
    with gil:
        return taken(lz4_compress(bytes_at(p, size), compression_level=level, block_linked=False,
                                  block_size=LZ4F_64_KIB, store_size=False), out, room)


cdef int correct_header(uint8_t* out, int64_t size) except -1 nogil:
    if size < LZ4_HEADER or memcmp(out, b"\x04\x22\x4d\x18\x60\x40\x82", LZ4_HEADER) != 0:
        with gil:
            raise RuntimeError(f"lz4 wrote a frame of another kind: {out[:min(size, LZ4_HEADER)].hex()}")
    out[LZ4_HEADER - 1] = LZ4_OLD_CHECKSUM
    return 0


cdef int64_t zstd_packed(Codecs codecs, int level, const uint8_t* p, int64_t size, uint8_t* out,
                         int64_t room) except -1 nogil:
    """One frame, which tells its size."""
    cdef size_t written
    cdef bint fresh = codecs.zstd_packer == NULL
    if codecs.functions.zstd_compress != NULL:
        if fresh:
            codecs.zstd_packer = codecs.functions.zstd_create_packer()
        if codecs.zstd_packer != NULL:
            if fresh or codecs.zstd_level != level:
                codecs.functions.zstd_set(codecs.zstd_packer, ZSTD_LEVEL, level)
                codecs.zstd_level = level
            written = codecs.functions.zstd_compress(codecs.zstd_packer, out, <size_t>room, p, <size_t>size)
            if written <= <size_t>room:
                return <int64_t>written
    with gil:
        if codecs.zstd_packer != NULL:
            codecs.zstandard_packer = None  # the level is that of the other
        return zstd_packed_by_package(codecs, level, p, size, out, room)


cdef int64_t zstd_packed_by_package(Codecs codecs, int level, const uint8_t* p, int64_t size, uint8_t* out,
                                    int64_t room) except -1:
    # Made once: a context for each payload would cost more than a small one.
    if codecs.zstandard_packer is None or codecs.zstd_level != level:
        codecs.zstandard_packer = ZstdCompressor(level)
        codecs.zstd_level = level
    return taken(codecs.zstandard_packer.compress(bytes_at(p, size)), out, room)


cdef int64_t gzip_packed(int level, const uint8_t* p, int64_t size, uint8_t* out, int64_t room) except -1 with gil:
    """One member."""
    member = compressobj(level, DEFLATED, ZLIB_GZIP)
    cdef bytes first = member.compress(bytes_at(p, size))
    cdef int64_t written = taken(first, out, room)
    return written + taken(member.flush(), out + written, room - written)


cdef int64_t snappy_packed(const uint8_t* p, int64_t size, uint8_t* out, int64_t room) except -1 with gil:
    """A xerial stream (SN-R2, SN-R9)."""
    cdef int64_t used = XERIAL_HEADER
    cdef int64_t at = 0
    cdef int64_t written
    cdef uint32_t length
    memcpy(out, b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01", XERIAL_HEADER)
    while at < size:
        written = snappy_packed_into(bytes_at(p + at, min(size - at, XERIAL_BLOCK)),
                                     room_at(out + used + 4, room - used - 4, False))
        length = kb_bswap32(<uint32_t>written)
        memcpy(out + used, &length, 4)
        used += 4 + written
        at += XERIAL_BLOCK
    return used


cdef inline int64_t taken(bytes packed, uint8_t* out, int64_t room) except -1:
    cdef int64_t size = copied(packed, out, room)
    if size < 0:
        raise RuntimeError(f"a codec has made {len(packed)} bytes, and none makes more than {room} of as many")
    return size
