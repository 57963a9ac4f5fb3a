/* The structs that the C functions of the codecs' libraries take, as the libraries' own headers declare them. */
#ifndef KBATCH_CODEC_API_H
#define KBATCH_CODEC_API_H

#include <stddef.h>
#include <stdint.h>

/* z_stream of zlib.h; zlib checks its size, and the first digit of the version. */
typedef struct {
    const uint8_t *next_in; unsigned avail_in; unsigned long total_in;
    uint8_t *next_out; unsigned avail_out; unsigned long total_out;
    const char *msg; void *state;
    void *zalloc; void *zfree; void *opaque;
    int data_type; unsigned long adler; unsigned long reserved;
} kb_zlib;

/* The first fields of igzip_lib.h's inflate_state, and more memory than all of it takes (87 KiB in ISA-L 2.31). */
typedef struct {
    uint8_t *next_out; uint32_t avail_out; uint32_t total_out;
    const uint8_t *next_in; uint64_t read_in; uint32_t avail_in; int32_t read_in_length;
    uint8_t others[256 << 10];
} kb_isal;

/* LZ4F_preferences_t of lz4frame.h. */
typedef struct {
    int block_size_id, block_mode, content_checksum, frame_type;
    unsigned long long content_size;
    unsigned dict_id;
    int block_checksum, compression_level;
    unsigned auto_flush, favor_decompression, reserved[3];
} kb_lz4f_preferences;

#endif
