"""Decompression of payloads in the form that ordinary producers write, and compression.

Decompression calls the C functions that `kbatch.batches.native` has found in the packages of the codecs, without the
GIL. For snappy it calls the package cramjam, because no package exports the functions of the library. All other
payloads are left to `kbatch.batches.careful.decompress_carefully`, which decompresses them or reports the fault:
unusual or damaged payloads, payloads over the limit or the capacity, and payloads of a missing library. Each
function below states which payloads it accepts.

Compression calls the C functions too, or the packages if the functions were not found.

A library can write only to the rest of the output, up to the limit. The memory that it allocates itself is bounded
before the call (COD-R8). After an error a context is freed, or reset before the next payload (COD-R9).
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

cdef object snappy_decompress_into = cramjam.snappy.decompress_raw_into
cdef object snappy_compress_into = cramjam.snappy.compress_raw_into

cdef enum:
    # zlib and ISA-L count in unsigned ints.
    GZIP_MAX = 1 << 30
    ZLIB_GZIP = 31
    ZLIB_FINISH = 4
    ZLIB_STREAM_END = 1
    # The fast loops of zlib and ISA-L run while the output has at least this capacity left.
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
    # The header checksum in magic 0 of the frames that are written here (L4-R5).
    LZ4_HEADER = 7
    LZ4_OLD_CHECKSUM = 0x1A
    ZSTD_LEVEL = 100
    # The size of the blocks that Java writes (SN-R9).
    XERIAL_BLOCK = 32 << 10
    ZSTD_BLOCK = 128 << 10
    ZSTD_WINDOW_LOG = 27


cdef inline uint32_t load_le24(const uint8_t* p) noexcept nogil:
    return p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16


cdef inline uint32_t load_le32(const uint8_t* p) noexcept nogil:
    return load_le24(p) | <uint32_t>p[3] << 24


cdef class Codecs:
    """The functions of the libraries, and the contexts of one thread. Two threads must not use them at the same time.

    `functions` are the addresses that `kbatch.batches.native` finds, for each library either all or none. If there are
    no functions at all, nothing is decompressed here.
    """

    def __cinit__(self):
        memset(&self.functions, 0, sizeof(Functions))
        memset(&self.zlib, 0, sizeof(kb_zlib))
        self.lz4f = NULL
        self.zstd = NULL
        self.zstd_compressor = NULL
        self.isal = NULL
        self.on_block = NULL

    def __init__(self, functions not None):
        cdef Functions* f = &self.functions
        (<void**>&f.lz4_decompress)[0] = function_address(functions, "LZ4_decompress_safe")
        (<void**>&f.lz4f_create)[0] = function_address(functions, "LZ4F_createDecompressionContext")
        (<void**>&f.lz4f_free)[0] = function_address(functions, "LZ4F_freeDecompressionContext")
        (<void**>&f.lz4f_decompress)[0] = function_address(functions, "LZ4F_decompress")
        (<void**>&f.lz4f_compress)[0] = function_address(functions, "LZ4F_compressFrame")
        (<void**>&f.zstd_create_compressor)[0] = function_address(functions, "ZSTD_createCCtx")
        (<void**>&f.zstd_free_compressor)[0] = function_address(functions, "ZSTD_freeCCtx")
        (<void**>&f.zstd_set)[0] = function_address(functions, "ZSTD_CCtx_setParameter")
        (<void**>&f.zstd_compress)[0] = function_address(functions, "ZSTD_compress2")
        (<void**>&f.zstd_create)[0] = function_address(functions, "ZSTD_createDCtx")
        (<void**>&f.zstd_free)[0] = function_address(functions, "ZSTD_freeDCtx")
        (<void**>&f.zstd_decompress)[0] = function_address(functions, "ZSTD_decompressDCtx")
        (<void**>&f.zlib_init)[0] = function_address(functions, "inflateInit2_")
        (<void**>&f.zlib_reset)[0] = function_address(functions, "inflateReset")
        (<void**>&f.zlib_inflate)[0] = function_address(functions, "inflate")
        (<void**>&f.zlib_end)[0] = function_address(functions, "inflateEnd")
        (<void**>&f.isal_init)[0] = function_address(functions, "isal_inflate_init")
        (<void**>&f.isal_inflate)[0] = function_address(functions, "isal_inflate_stateless")
        self.native = bool(functions)

    def __dealloc__(self):
        if self.lz4f != NULL:
            self.functions.lz4f_free(self.lz4f)
        if self.zstd != NULL:
            self.functions.zstd_free(self.zstd)
        if self.zstd_compressor != NULL:
            self.functions.zstd_free_compressor(self.zstd_compressor)
        if self.zlib.state != NULL:
            self.functions.zlib_end(&self.zlib)
        free(self.isal)


cdef void* function_address(object functions, str name) except? NULL:
    return <void*><uintptr_t>functions.get(name, 0)


def decompress_into(Codecs codecs not None, int codec, bint check_header, payload not None, out not None,
                    int64_t limit):
    """Decompress a payload to `out`, up to `limit` bytes. Returns the size, or -1 as `decompress_payload` does.

    `check_header` is whether the batch's magic is above 0 (L4-R5).
    """
    cdef Span source = Span(payload, 1, False)
    cdef Span target = Span(out, 1, True)
    cdef int64_t size
    with nogil:
        size = decompress_payload(codecs, codec, check_header, <const uint8_t*>source.items, source.length,
                                  <uint8_t*>target.items, target.length, limit)
    return size


cdef int64_t decompress_payload(Codecs codecs, int codec, bint check_header, const uint8_t* p, int64_t size,
                                uint8_t* out, int64_t capacity, int64_t limit) noexcept nogil:
    capacity = min(capacity, limit)
    # An arena can be empty: cramjam crashes if it gets a null pointer, even to write no bytes.
    if out == NULL or not codecs.native:
        return -1
    if codec == LZ4:
        return decompress_lz4(codecs, check_header, p, size, out, capacity)
    if codec == ZSTD:
        return decompress_zstd(codecs, p, size, out, capacity)
    if codec == SNAPPY:
        return decompress_snappy(codecs, p, size, out, capacity)
    if codec == GZIP:
        return decompress_gzip(codecs, p, size, out, capacity)
    return -1


cdef int64_t gzip_declared_size(const uint8_t* p, int64_t size) noexcept nogil:
    cdef int64_t declared
    if size < GZIP_HEADER + GZIP_TRAILER or size > GZIP_MAX or memcmp(p, b"\x1f\x8b\x08", 3) != 0:
        return -1
    declared = load_le32(p + size - 4)
    return declared if declared <= GZIP_MAX else -1


cdef int64_t decompress_gzip(Codecs codecs, const uint8_t* p, int64_t size, uint8_t* out,
                             int64_t capacity) noexcept nogil:
    """Decompress a single member, of the size that its trailer declares (RFC 1952)."""
    cdef int64_t declared = gzip_declared_size(p, size)
    if declared < 0 or declared > capacity:
        return -1
    # Both libraries also get the capacity beyond the declared size, so that their fast loops run up to the end.
    capacity = min(capacity, declared + INFLATE_FAST)
    if codecs.functions.isal_inflate != NULL:
        return gzip_by_isal(codecs, p, size, out, capacity, declared)
    if codecs.functions.zlib_inflate != NULL:
        return gzip_by_zlib(codecs, p, size, out, capacity)
    return -1


cdef int64_t gzip_by_zlib(Codecs codecs, const uint8_t* p, int64_t size, uint8_t* out, int64_t capacity) noexcept nogil:
    cdef kb_zlib* stream = &codecs.zlib
    if stream.state == NULL:
        if codecs.functions.zlib_init(stream, ZLIB_GZIP, b"1", sizeof(kb_zlib)) != 0:
            return -1
    elif codecs.functions.zlib_reset(stream) != 0:
        return -1
    stream.next_in = p
    stream.avail_in = <unsigned>size
    stream.next_out = out
    stream.avail_out = <unsigned>capacity
    if codecs.functions.zlib_inflate(stream, ZLIB_FINISH) != ZLIB_STREAM_END or stream.avail_in:
        return -1
    return stream.next_out - out


cdef int64_t gzip_by_isal(Codecs codecs, const uint8_t* p, int64_t size, uint8_t* out, int64_t capacity,
                          int64_t declared) noexcept nogil:
    """Decompress a member whose header has no header checksum.

    ISA-L accepts incomplete codes, which zlib, and therefore Kafka, refuses, and which no library writes (GZ-R1). Size
    and checksum of the output are verified in any case.
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
    codecs.isal.avail_out = <uint32_t>capacity
    if codecs.functions.isal_inflate(codecs.isal) != 0 or codecs.isal.avail_in:
        return -1
    if codecs.isal.next_out - out != declared or crc32_legacy(out, declared) != load_le32(end):
        return -1
    return declared


cdef inline object bytes_at(const uint8_t* p, int64_t size):
    return PyMemoryView_FromMemory(<char*>p, size, PyBUF_READ)


@cython.final
@cython.freelist(4)
cdef class ByteBuffer:
    """Bytes that cramjam reads or writes during a call.

    A memoryview would take longer, and cramjam without the GIL does not accept one to write to.
    """

    cdef uint8_t* start
    cdef Py_ssize_t size
    cdef bint readonly

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.start, self.size, self.readonly, flags)


cdef inline object buffer_at(const uint8_t* p, int64_t size, bint readonly):
    cdef ByteBuffer result = ByteBuffer.__new__(ByteBuffer)
    result.start = <uint8_t*>p
    result.size = size
    result.readonly = readonly
    return result


cdef inline int64_t copy_content(bytes content, uint8_t* out, int64_t capacity) noexcept:
    cdef int64_t size = PyBytes_GET_SIZE(content)
    if size > capacity:
        return -1
    memcpy(out, PyBytes_AS_STRING(content), size)
    return size


cdef inline int64_t chunk_size(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Return the size of the next chunk of a xerial stream, stored in four bytes at `p`; -1 if it is incomplete."""
    cdef int64_t size = load_be32(p) if end - p >= 4 else -1
    return size if size <= end - p - 4 else -1


cdef int64_t decompress_snappy(Codecs codecs, const uint8_t* p, int64_t size, uint8_t* out,
                               int64_t capacity) noexcept nogil:
    """Decompress a raw block, or one xerial stream of complete chunks."""
    cdef const uint8_t* start = p
    cdef const uint8_t* end = p + size
    cdef int64_t used = 0
    cdef int64_t written
    if size < XERIAL_HEADER or memcmp(p, b"\x82SNAPPY\x00", 8) != 0:
        return snappy_block(p, size, out, capacity)
    p += XERIAL_HEADER
    while p < end:
        size = chunk_size(p, end)
        if size < 0:
            return -1
        p += 4
        written = snappy_block(p, size, out + used, capacity - used)
        if written < 0:
            return -1
        used += written
        p += size
        if codecs.on_block != NULL:
            codecs.on_block(codecs.block_context, p - start, used)
    return used


cdef inline int64_t snappy_declared_size(const uint8_t* p, int64_t size) noexcept nogil:
    """Return the size that a snappy block declares, or -1 if a block cannot decompress to that size."""
    cdef uint64_t declared = 0
    cdef int64_t i = 0
    while True:
        if i == 5 or i == size:
            return -1
        declared |= <uint64_t>(p[i] & 0x7F) << 7 * i
        if p[i] < 0x80:
            break
        i += 1
    return <int64_t>declared if declared <= <uint64_t>(SNAPPY_MAX_RATIO * size) else -1


cdef inline int64_t snappy_block(const uint8_t* p, int64_t size, uint8_t* out, int64_t capacity) noexcept nogil:
    cdef int64_t declared = snappy_declared_size(p, size)
    return -1 if declared < 0 or declared > capacity else snappy_by_package(p, size, out, declared)


cdef int64_t snappy_by_package(const uint8_t* p, int64_t size, uint8_t* out, int64_t declared) noexcept with gil:
    cdef int64_t written
    try:
        written = snappy_decompress_into(buffer_at(p, size, True), buffer_at(out, declared, False))
    except BaseException:
        return -1
    return written if written == declared else -1


cdef inline uint32_t descriptor_checksum(const uint8_t* p, int n) noexcept nogil:
    """Return the checksum of a frame descriptor: the second byte of xxHash32, for fewer than 16 bytes (L4-R4)."""
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


cdef int64_t decompress_lz4(Codecs codecs, bint check_header, const uint8_t* p, int64_t size, uint8_t* out,
                            int64_t capacity) noexcept nogil:
    """Decompress a frame, with or without a content size; bytes after it are ignored.

    Independent blocks without checksums are decompressed one by one: for blocks of 64 KiB that is faster than the
    library's function for frames.
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
        return decompress_lz4_frame(codecs, p, size, out, capacity)
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
            if length > capacity - used:
                return -1
            memcpy(out + used, p, length)
            written = length
        else:
            written = codecs.functions.lz4_decompress(p, out + used, <int>length, <int>min(block_max, capacity - used))
            if written < 0:
                return -1
        used += written
        p += length
        if codecs.on_block != NULL:
            codecs.on_block(codecs.block_context, p - header, used)
    return -1


cdef int64_t decompress_lz4_frame(Codecs codecs, const uint8_t* p, int64_t size, uint8_t* out,
                                  int64_t capacity) noexcept nogil:
    """Decompress a frame with linked blocks (L4-R2) or checksums, which the library verifies (L4-R7)."""
    cdef size_t consumed = <size_t>size
    cdef size_t written = <size_t>capacity
    if codecs.lz4f == NULL and codecs.functions.lz4f_create(&codecs.lz4f, LZ4F_VERSION) != 0:
        return -1
    # The result is 0 at the end of a frame; the context is then ready for the next one. Any other result is an error or
    # an incomplete frame.
    if codecs.functions.lz4f_decompress(codecs.lz4f, out, &written, p, &consumed, NULL) == 0:
        return <int64_t>written
    # A reset would keep the content size of this frame (liblz4 1.9.4), and the next frame would be refused.
    codecs.functions.lz4f_free(codecs.lz4f)
    codecs.lz4f = NULL
    return -1


cdef int64_t zstd_header(const uint8_t* p, int64_t size, int64_t* declared) noexcept nogil:
    """Return the position of the first block of a frame without a dictionary, or -1 for other frames (RFC 8878).

    Sets `declared` to the content size, or to -1 if the frame has none.
    """
    cdef uint64_t content_size = 0
    cdef int64_t at
    cdef int descriptor
    cdef int size_bytes
    cdef int i
    if size < 9 or load_le32(p) != 0xFD2FB528u or p[4] & 0x03:
        return -1
    descriptor = p[4]
    size_bytes = 1 << (descriptor >> 6) if descriptor >> 6 else descriptor >> 5 & 1
    at = 5 if descriptor & 0x20 else 6
    # The library's function for a complete frame does not bound the window (ZS-R5).
    if size - at < size_bytes or (at == 6 and p[5] > (ZSTD_WINDOW_LOG - 10) << 3):
        return -1
    for i in range(size_bytes):
        content_size |= <uint64_t>p[at + i] << 8 * i
    if size_bytes == 2:
        content_size += 256
    if content_size > 1 << ZSTD_WINDOW_LOG:
        return -1
    declared[0] = <int64_t>content_size if size_bytes else -1
    return at + size_bytes


cdef int64_t decompress_zstd(Codecs codecs, const uint8_t* p, int64_t size, uint8_t* out,
                             int64_t capacity) noexcept nogil:
    """Decompress a single frame without a dictionary (RFC 8878, section 3.1.1)."""
    cdef int64_t declared
    cdef int64_t at = zstd_header(p, size, &declared)
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
    if at + (p[4] & 4) != size or declared > bound:
        return -1
    if codecs.zstd == NULL:
        codecs.zstd = codecs.functions.zstd_create()
        if codecs.zstd == NULL:
            return -1
    written = codecs.functions.zstd_decompress(codecs.zstd, out, <size_t>capacity, p, <size_t>size)
    return <int64_t>written if written <= <size_t>capacity else -1


def compress_to_bytes(Codecs codecs not None, int codec, int level, int magic, payload not None):
    """Return the payload as `compress_payload` compresses it."""
    cdef Span source = Span(payload, 1, False)
    cdef int64_t capacity = compressed_bound(source.length)
    cdef uint8_t* out = <uint8_t*>malloc(capacity)
    cdef int64_t size
    if out == NULL:
        raise MemoryError()
    try:
        with nogil:
            size = compress_payload(codecs, codec, level, magic, <const uint8_t*>source.items, source.length, out,
                                    capacity)
        return PyBytes_FromStringAndSize(<char*>out, size)
    finally:
        free(out)


cdef int64_t compress_payload(Codecs codecs, int codec, int level, int magic, const uint8_t* p, int64_t size,
                              uint8_t* out, int64_t capacity) except -1 nogil:
    if codec == LZ4:
        size = compress_lz4(codecs, level, p, size, out, capacity)
        if magic == 0:
            correct_header_checksum(out, size)
        return size
    if codec == ZSTD:
        return compress_zstd(codecs, level, p, size, out, capacity)
    if codec == SNAPPY:
        return compress_snappy(p, size, out, capacity)
    return compress_gzip(level, p, size, out, capacity)


cdef int64_t compress_lz4(Codecs codecs, int level, const uint8_t* p, int64_t size, uint8_t* out,
                          int64_t capacity) except -1 nogil:
    """Write a frame of independent blocks of 64 KiB without content size and checksums (L4-R12)."""
    cdef kb_lz4f_preferences preferences
    cdef size_t written
    if codecs.functions.lz4f_compress != NULL:
        memset(&preferences, 0, sizeof(preferences))
        preferences.block_size_id = LZ4F_64_KIB
        preferences.block_mode = LZ4F_INDEPENDENT
        preferences.compression_level = level
        written = codecs.functions.lz4f_compress(out, <size_t>capacity, p, <size_t>size, &preferences)
        if written <= <size_t>capacity:
            return <int64_t>written
    with gil:
        return copy_or_raise(lz4_compress(bytes_at(p, size), compression_level=level, block_linked=False,
                                          block_size=LZ4F_64_KIB, store_size=False), out, capacity)


cdef int correct_header_checksum(uint8_t* out, int64_t size) except -1 nogil:
    if size < LZ4_HEADER or memcmp(out, b"\x04\x22\x4d\x18\x60\x40\x82", LZ4_HEADER) != 0:
        with gil:
            raise RuntimeError(f"lz4 wrote an unexpected frame header: {out[:min(size, LZ4_HEADER)].hex()}")
    out[LZ4_HEADER - 1] = LZ4_OLD_CHECKSUM
    return 0


cdef int64_t compress_zstd(Codecs codecs, int level, const uint8_t* p, int64_t size, uint8_t* out,
                           int64_t capacity) except -1 nogil:
    """Write one frame with its content size."""
    cdef size_t written
    cdef bint fresh = codecs.zstd_compressor == NULL
    if codecs.functions.zstd_compress != NULL:
        if fresh:
            codecs.zstd_compressor = codecs.functions.zstd_create_compressor()
        if codecs.zstd_compressor != NULL:
            if fresh or codecs.zstd_level != level:
                codecs.functions.zstd_set(codecs.zstd_compressor, ZSTD_LEVEL, level)
                codecs.zstd_level = level
            written = codecs.functions.zstd_compress(codecs.zstd_compressor, out, <size_t>capacity, p, <size_t>size)
            if written <= <size_t>capacity:
                return <int64_t>written
    with gil:
        if codecs.zstd_compressor != NULL:
            codecs.zstandard_compressor = None  # `zstd_level` is the level of the library's context
        return compress_zstd_by_package(codecs, level, p, size, out, capacity)


cdef int64_t compress_zstd_by_package(Codecs codecs, int level, const uint8_t* p, int64_t size, uint8_t* out,
                                      int64_t capacity) except -1:
    # Created once: creating a context takes longer than compressing a small payload.
    if codecs.zstandard_compressor is None or codecs.zstd_level != level:
        codecs.zstandard_compressor = ZstdCompressor(level)
        codecs.zstd_level = level
    return copy_or_raise(codecs.zstandard_compressor.compress(bytes_at(p, size)), out, capacity)


cdef int64_t compress_gzip(int level, const uint8_t* p, int64_t size, uint8_t* out,
                           int64_t capacity) except -1 with gil:
    """Write one member."""
    member = compressobj(level, DEFLATED, ZLIB_GZIP)
    cdef bytes first = member.compress(bytes_at(p, size))
    cdef int64_t written = copy_or_raise(first, out, capacity)
    return written + copy_or_raise(member.flush(), out + written, capacity - written)


cdef int64_t compress_snappy(const uint8_t* p, int64_t size, uint8_t* out, int64_t capacity) except -1 with gil:
    """Write a xerial stream (SN-R2, SN-R9)."""
    cdef int64_t used = XERIAL_HEADER
    cdef int64_t at = 0
    cdef int64_t written
    cdef uint32_t length
    memcpy(out, b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01", XERIAL_HEADER)
    while at < size:
        written = snappy_compress_into(bytes_at(p + at, min(size - at, XERIAL_BLOCK)),
                                       buffer_at(out + used + 4, capacity - used - 4, False))
        length = kb_bswap32(<uint32_t>written)
        memcpy(out + used, &length, 4)
        used += 4 + written
        at += XERIAL_BLOCK
    return used


cdef inline int64_t copy_or_raise(bytes compressed, uint8_t* out, int64_t capacity) except -1:
    cdef int64_t size = copy_content(compressed, out, capacity)
    if size < 0:
        raise RuntimeError(f"a codec has compressed to {len(compressed)} bytes, more than the bound of {capacity}")
    return size
