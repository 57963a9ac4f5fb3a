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

# The C functions of the libraries that are called here, as their headers declare them. An error of LZ4F_* and ZSTD_* is
# a size above all possible ones.
cdef struct Functions:
    int (*lz4_decompress)(const uint8_t* p, uint8_t* out, int size, int room) noexcept nogil
    size_t (*lz4f_create)(void** context, unsigned version) noexcept nogil
    size_t (*lz4f_free)(void* context) noexcept nogil
    size_t (*lz4f_decompress)(void* context, uint8_t* out, size_t* room, const uint8_t* p, size_t* size,
                              const void* options) noexcept nogil
    size_t (*lz4f_compress)(uint8_t* out, size_t room, const uint8_t* p, size_t size,
                            const kb_lz4f_preferences* preferences) noexcept nogil
    void* (*zstd_create)() noexcept nogil
    size_t (*zstd_free)(void* context) noexcept nogil
    size_t (*zstd_decompress)(void* context, uint8_t* out, size_t room, const uint8_t* p, size_t size) noexcept nogil
    void* (*zstd_create_packer)() noexcept nogil
    size_t (*zstd_free_packer)(void* context) noexcept nogil
    size_t (*zstd_set)(void* context, int parameter, int value) noexcept nogil
    size_t (*zstd_compress)(void* context, uint8_t* out, size_t room, const uint8_t* p, size_t size) noexcept nogil
    int (*zlib_init)(kb_zlib* stream, int window_bits, const char* version, int stream_size) noexcept nogil
    int (*zlib_reset)(kb_zlib* stream) noexcept nogil
    int (*zlib_inflate)(kb_zlib* stream, int flush) noexcept nogil
    int (*zlib_end)(kb_zlib* stream) noexcept nogil
    void (*isal_init)(kb_isal* state) noexcept nogil
    int (*isal_inflate)(kb_isal* state) noexcept nogil


cdef class Codecs:
    """The libraries, and one thread's contexts of them. Not for two threads at once."""

    cdef Functions functions
    cdef void* lz4f
    cdef void* zstd
    cdef kb_zlib zlib
    cdef kb_isal* isal
    cdef void* zstd_packer
    # That its packer, whichever there is, compresses by.
    cdef int zstd_level
    # Unless NULL, called with `follow_context` behind each block of a payload that has several: with how many bytes of
    # the payload are read by then, and how many of the output are there.
    cdef void (*follow)(void* context, int64_t read, int64_t written) noexcept nogil
    cdef void* follow_context
    # Whether any functions were found: payloads are not decompressed by kernels otherwise.
    cdef bint native
    # The package's compressor, where the library's functions were not found.
    cdef object zstandard_packer


# Decompress `size` bytes at `p` to `out`: at most `room` bytes, and at most `limit`. Returns how many they are; -1 if
# the payload isn't plain (unusual, damaged, too large for `room` or `limit`):
# `kbatch.batches.codecs.decompress_carefully` then takes it or says what is wrong with it. What lies in `out` behind
# the result, or at all if it is -1, is undefined. The GIL is taken only where a library can't be called without.
# `codec` is 1 to 4; `check_header` is whether the batch's magic is above 0 (L4-R5).
cdef int64_t plain_payload(Codecs codecs, int codec, bint check_header, const uint8_t* p, int64_t size, uint8_t* out,
                           int64_t room, int64_t limit) noexcept nogil

cdef inline int64_t packed_bound(int64_t size) noexcept nogil:
    """More bytes than any codec makes of `size`: snappy asks for a sixth more and 36 for each of its blocks."""
    return size + size // 5 + 128


# Compress `size` bytes at `p` to `out`, where there is room for `packed_bound` of them, as
# `kbatch.batches.codecs.compress` says. Returns how many bytes that makes. The GIL is taken where a library can't be
# called without.
cdef int64_t packed_payload(Codecs codecs, int codec, int level, int magic, const uint8_t* p, int64_t size,
                            uint8_t* out, int64_t room) except -1 nogil
