from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef extern from "codec_api.h":
    ctypedef struct kb_zlib:
        const uint8_t* next_in
        unsigned avail_in
        unsigned long total_in
        uint8_t* next_out
        unsigned avail_out
        unsigned long total_out
        void* state
    ctypedef struct kb_isal:
        uint8_t* next_out
        uint32_t avail_out
        const uint8_t* next_in
        uint32_t avail_in
    ctypedef struct kb_lz4f_preferences:
        int block_size_id
        int block_mode
        int compression_level

# The C functions of the libraries that are called here, as their headers declare them. LZ4F_* and ZSTD_* report an
# error as a size that exceeds every possible one.
cdef struct Functions:
    int (*lz4_decompress)(const uint8_t* p, uint8_t* out, int size, int capacity) noexcept nogil
    size_t (*lz4f_create)(void** context, unsigned version) noexcept nogil
    size_t (*lz4f_free)(void* context) noexcept nogil
    size_t (*lz4f_decompress)(void* context, uint8_t* out, size_t* capacity, const uint8_t* p, size_t* size,
                              const void* options) noexcept nogil
    size_t (*lz4f_compress)(uint8_t* out, size_t capacity, const uint8_t* p, size_t size,
                            const kb_lz4f_preferences* preferences) noexcept nogil
    void* (*zstd_create)() noexcept nogil
    size_t (*zstd_free)(void* context) noexcept nogil
    size_t (*zstd_decompress)(void* context, uint8_t* out, size_t capacity, const uint8_t* p,
                              size_t size) noexcept nogil
    void* (*zstd_create_compressor)() noexcept nogil
    size_t (*zstd_free_compressor)(void* context) noexcept nogil
    size_t (*zstd_set)(void* context, int parameter, int value) noexcept nogil
    size_t (*zstd_compress)(void* context, uint8_t* out, size_t capacity, const uint8_t* p, size_t size) noexcept nogil
    int (*zlib_init)(kb_zlib* stream, int window_bits, const char* version, int stream_size) noexcept nogil
    int (*zlib_reset)(kb_zlib* stream) noexcept nogil
    int (*zlib_inflate)(kb_zlib* stream, int flush) noexcept nogil
    int (*zlib_end)(kb_zlib* stream) noexcept nogil
    void (*isal_init)(kb_isal* state) noexcept nogil
    int (*isal_inflate)(kb_isal* state) noexcept nogil


cdef class Codecs:
    cdef Functions functions
    cdef void* lz4f
    cdef void* zstd
    cdef kb_zlib zlib
    cdef kb_isal* isal
    cdef void* zstd_compressor
    # The compression level of `zstd_compressor` or `zstandard_compressor`.
    cdef int zstd_level
    # Unless NULL, called after each block of a payload of several blocks, with `block_context`, the number of bytes of
    # the payload that have been read, and the number of bytes that have been written.
    cdef void (*on_block)(void* context, int64_t read, int64_t written) noexcept nogil
    cdef void* block_context
    # Whether any functions were found. If not, kernels do not decompress payloads.
    cdef bint native
    # The package's compressor, used if the library's functions were not found.
    cdef object zstandard_compressor


# Decompress `size` bytes at `p` to `out`, up to `capacity` and up to `limit` bytes. Returns the decompressed size, or
# -1 for an unusual or damaged payload, or one that exceeds `capacity` or `limit`:
# `kbatch.batches.careful.decompress_carefully` then decompresses it or reports the fault. Bytes of `out` after the
# result are undefined, and all bytes if it is -1. The GIL is acquired only for libraries that need it. `codec` is 1 to
# 4; `check_header` is whether the batch's magic is above 0 (L4-R5).
cdef int64_t decompress_payload(Codecs codecs, int codec, bint check_header, const uint8_t* p, int64_t size,
                                uint8_t* out, int64_t capacity, int64_t limit) noexcept nogil

cdef inline int64_t compressed_bound(int64_t size) noexcept nogil:
    """Return a bound for the compressed size of `size` bytes: snappy needs a sixth more, and 36 bytes per block."""
    return size + size // 5 + 128


# Compress `size` bytes at `p` to `out`, whose `capacity` is at least `compressed_bound(size)`, in the form that
# `kbatch.batches.codecs.compress` describes. Returns the compressed size. The GIL is acquired only for libraries that
# need it.
cdef int64_t compress_payload(Codecs codecs, int codec, int level, int magic, const uint8_t* p, int64_t size,
                              uint8_t* out, int64_t capacity) except -1 nogil
