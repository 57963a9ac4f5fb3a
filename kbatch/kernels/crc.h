/* CRC-32C (magic 2) and CRC-32 (magic 0 and 1). Bits are reflected: the highest bit of a word is x^0.

   x86-64: CRC-32C by the instruction of SSE4.2, or where vectors have carry-less multiplication by folding; CRC-32 by
   folding.
   arm64: both by the instructions of the CRC extension. The instructions of the processor are detected at import;
   without them, tables are used. The code for arm64 has been tested under emulation only; its speed has never
   been measured. */
#ifndef KBATCH_CRC_H
#define KBATCH_CRC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { KB_CRC32C, KB_CRC32 };

/* The implementations; each level includes the lower ones. */
enum { KB_TABLES, KB_INSTRUCTIONS, KB_WIDE_256, KB_WIDE_512 };

static const uint32_t kb_polynomials[2] = {0x82f63b78u, 0xedb88320u};

/* -- combining checksums */

/* kb_by_x4[which][b]: the bits b, times x^4. */
static uint32_t kb_by_x4[2][16];
/* kb_powers[which][i][d]: x^(8 * d * 16^i), the factor by which d * 16^i bytes multiply a checksum. */
static uint32_t kb_powers[2][16][16];

static inline uint32_t kb_times_x(int which, uint32_t a) {
    return a >> 1 ^ (a & 1 ? kb_polynomials[which] : 0);
}

/* The product of two remainders, by four bits of `a` at a time. */
static uint32_t kb_multiply(int which, uint32_t a, uint32_t b) {
    uint32_t multiples[16] = {0};
    uint32_t product = 0;
    for (int bit = 8; bit; bit >>= 1, b = kb_times_x(which, b))
        multiples[bit] = b;
    for (int i = 3; i < 16; i++)
        multiples[i] = multiples[i & -i] ^ multiples[i & (i - 1)];
    for (int i = 0; i < 8; i++, a >>= 4)
        product = product >> 4 ^ kb_by_x4[which][product & 15] ^ multiples[a & 15];
    return product;
}

/* The share of A in the checksum of A || B, from the checksum of A and the length of B; one multiplication for each
   hexadecimal digit of the length that is not 0. crc(A || B) = shift(crc(A), length of B) ^ crc(B), because the
   inversions of a checksum at its beginning and end cancel out. */
static uint32_t kb_crc_shift(int which, uint32_t crc, uint64_t nbytes) {
    for (int i = 0; nbytes; i++, nbytes >>= 4)
        if (nbytes & 15)
            crc = kb_multiply(which, crc, kb_powers[which][i][nbytes & 15]);
    return crc;
}

static void kb_init_powers(int which) {
    uint32_t power = 0x80000000u >> 8;
    for (uint32_t bits = 0; bits < 16; bits++) {
        uint32_t shifted = bits;
        for (int i = 0; i < 4; i++)
            shifted = kb_times_x(which, shifted);
        kb_by_x4[which][bits] = shifted;
    }
    for (int i = 0; i < 16; i++) {
        kb_powers[which][i][0] = 0x80000000u;
        for (int d = 1; d < 16; d++)
            kb_powers[which][i][d] = kb_multiply(which, kb_powers[which][i][d - 1], power);
        power = kb_multiply(which, kb_powers[which][i][15], power);
    }
}

/* -- tables */

/* kb_byte_tables[which][i][b]: the remainder of the byte b followed by i zero bytes. */
static uint32_t kb_byte_tables[2][8][256];

static inline uint64_t kb_word(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

/* Where the number of bytes is not a multiple of eight, the odd ones come first and take one step: zeros before them do
   not change the remainder. kb_odd_rest is the part of the remainder so far that belongs to later bytes. */
static inline uint64_t kb_odd_word(const uint8_t *p, size_t odd, uint32_t crc) {
    return (kb_word(p) ^ crc) << (64 - 8 * odd);
}
static inline uint32_t kb_odd_rest(size_t odd, uint32_t crc) {
    return odd < 4 ? crc >> 8 * odd : 0;
}

static inline uint32_t kb_table_step(int which, uint64_t word) {
    const uint32_t (*tables)[256] = (const uint32_t (*)[256])kb_byte_tables[which];
    uint32_t crc = 0;
    for (int i = 0; i < 8; i++)
        crc ^= tables[7 - i][word >> 8 * i & 0xff];
    return crc;
}

static uint32_t kb_crc_tables(int which, uint32_t crc, const uint8_t *p, size_t n) {
    const size_t odd = n & 7;
    if (n < 8) {
        for (; n; n--, p++)
            crc = crc >> 8 ^ kb_byte_tables[which][0][(crc ^ *p) & 0xff];
        return crc;
    }
    if (odd) {
        crc = kb_table_step(which, kb_odd_word(p, odd, crc)) ^ kb_odd_rest(odd, crc);
        p += odd;
        n -= odd;
    }
    for (; n; n -= 8, p += 8)
        crc = kb_table_step(which, kb_word(p) ^ crc);
    return crc;
}

static void kb_init_byte_tables(int which) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int i = 0; i < 8; i++) {
            for (int bit = 0; bit < 8; bit++)
                crc = kb_times_x(which, crc);
            kb_byte_tables[which][i][byte] = crc;
        }
    }
}

/* -- instructions */

#if defined(__x86_64__) && defined(__GNUC__)
  #include <immintrin.h>
  #define KB_CRC_TARGET __attribute__((target("sse4.2,pclmul")))
  #define KB_CRC_WORD(which, crc, word) ((void)(which), _mm_crc32_u64(crc, word))
  typedef uint64_t kb_remainder;
  static int kb_best_level(void) {
      if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul"))
          return KB_TABLES;
      if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("vpclmulqdq"))
          return KB_INSTRUCTIONS;
      return __builtin_cpu_supports("avx512f") ? KB_WIDE_512 : KB_WIDE_256;
  }
#elif defined(__aarch64__) && defined(__GNUC__) && (defined(__linux__) || defined(__APPLE__))
  #if defined(__clang__)
    #define KB_CRC_TARGET __attribute__((target("crc")))
    #define KB_CRC_WORD(which, crc, word) \
        ((which) == KB_CRC32C ? __builtin_arm_crc32cd(crc, word) : __builtin_arm_crc32d(crc, word))
  #else
    #define KB_CRC_TARGET __attribute__((target("+crc")))
    #define KB_CRC_WORD(which, crc, word) \
        ((which) == KB_CRC32C ? __builtin_aarch64_crc32cx(crc, word) : __builtin_aarch64_crc32x(crc, word))
  #endif
  typedef uint32_t kb_remainder;
  #if defined(__linux__)
    #include <sys/auxv.h>
    /* HWCAP_CRC32 */
    static int kb_best_level(void) { return getauxval(AT_HWCAP) >> 7 & 1 ? KB_INSTRUCTIONS : KB_TABLES; }
  #else
    static int kb_best_level(void) { return KB_INSTRUCTIONS; }
  #endif
#else
  static int kb_best_level(void) { return KB_TABLES; }
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define KB_LOAD(p) _mm_loadu_si128((const __m128i *)(p))
#define KB_FOLD(x, k, next) \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), next)
#define KB_LOAD_256(p) _mm256_loadu_si256((const __m256i *)(p))
#define KB_FOLD_256(x, k, next) _mm256_xor_si256( \
    _mm256_xor_si256(_mm256_clmulepi64_epi128(x, k, 0x00), _mm256_clmulepi64_epi128(x, k, 0x11)), next)
#define KB_LOAD_512(p) _mm512_loadu_si512(p)
#define KB_FOLD_512(x, k, next) _mm512_ternarylogic_epi64( \
    _mm512_clmulepi64_epi128(x, k, 0x00), _mm512_clmulepi64_epi128(x, k, 0x11), next, 0x96)

/* Folding replaces sixteen bytes by the product of each half with a power of x, added to the bytes at a fixed distance
   after them (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ"). The powers for CRC-32C at
   distances of 256, 128, 64 and 16 bytes: */
static uint64_t kb_fold_powers[4][2];
/* The sizes of inputs that are computed in three lanes of a third each, and by number of words the power by which the
   remainder of a lane is multiplied. */
enum { KB_THIRDS_FROM = 192, KB_THIRDS_TO = 1536 };
static uint64_t kb_word_powers[KB_THIRDS_TO / 12 + 1];

static void kb_init_fold_powers(void) {
    static const int distances[4] = {256, 128, 64, 16};
    for (int i = 0; i < 4; i++) {
        /* x^(8 * distance + 31) and x^(8 * distance - 33): the product of two reflected words is short of one bit, a
           power is in the lower half of its word, and the first half is 64 bits further from the target. */
        kb_fold_powers[i][0] = kb_crc_shift(KB_CRC32C, 1, distances[i]);
        kb_fold_powers[i][1] = kb_crc_shift(KB_CRC32C, 0x80000000u >> 7, distances[i] - 5);
    }
    for (int i = 1; i <= KB_THIRDS_TO / 12; i++)
        kb_word_powers[i] = kb_crc_shift(KB_CRC32C, 0x80000000u >> 7, 8 * i - 5);
}

/* The remainder of three lanes of `words` words. Neighbouring batches overlap in the processor: on a Zen 3 one of 509
   bytes takes 37 ns, by folding 256 bits 58 ns, in one lane 56 ns. From 1.5 KiB on, folding is faster. */
KB_CRC_TARGET
static inline uint32_t kb_thirds(uint32_t crc, const uint8_t *p, size_t words) {
    const uint8_t *q = p + 8 * words, *r = q + 8 * words;
    uint64_t a = crc, b = 0, c = 0;
    __m128i x, y;
    for (size_t i = 0; i < words; i++, p += 8, q += 8, r += 8) {
        a = _mm_crc32_u64(a, kb_word(p));
        b = _mm_crc32_u64(b, kb_word(q));
        c = _mm_crc32_u64(c, kb_word(r));
    }
    x = _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)a), _mm_cvtsi64_si128((int64_t)kb_word_powers[2 * words]), 0);
    y = _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)b), _mm_cvtsi64_si128((int64_t)kb_word_powers[words]), 0);
    return (uint32_t)(_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(_mm_xor_si128(x, y))) ^ c);
}

/* The last step of folding: sixteen bytes to 32 bits. */
KB_CRC_TARGET
static inline uint32_t kb_crc32c_of(__m128i x) {
    return (uint32_t)_mm_crc32_u64(_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(x)), (uint64_t)_mm_extract_epi64(x, 1));
}

/* Bytes are fetched this far ahead, across pages, which the processor does not do by itself: 32 MB from memory are read
   1.3 times as fast on a Zen 3, by 1.2 times with 1 KiB; what is in the cache takes up to 4 % longer. */
enum { KB_AHEAD = 4096 };

/* CRC-32C, 128 bytes at a time. `n` is 128 or more and a multiple of 16. On a Zen 3, in the cache, 4 KiB are read at
   25 GB/s, by three lanes of the instruction at 19. */
__attribute__((target("avx2,vpclmulqdq,sse4.2,pclmul")))
static uint32_t kb_crc32c_folded_256(uint32_t crc, const uint8_t *p, size_t n) {
    const __m256i by_128 = _mm256_broadcastsi128_si256(KB_LOAD(kb_fold_powers[1]));
    const __m128i by_16 = KB_LOAD(kb_fold_powers[3]);
    const uint8_t *end = p + n;
    __m256i lanes[4];
    __m128i x;
    for (int i = 0; i < 4; i++, p += 32)
        lanes[i] = KB_LOAD_256(p);
    lanes[0] = _mm256_xor_si256(lanes[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)crc)));
    while (end - p >= 128) {
        __builtin_prefetch(p + KB_AHEAD);
        __builtin_prefetch(p + KB_AHEAD + 64);
        for (int i = 0; i < 4; i++, p += 32)
            lanes[i] = KB_FOLD_256(lanes[i], by_128, KB_LOAD_256(p));
    }
    x = _mm_setzero_si128();
    for (int i = 0; i < 4; i++) {
        x = KB_FOLD(x, by_16, _mm256_castsi256_si128(lanes[i]));
        x = KB_FOLD(x, by_16, _mm256_extracti128_si256(lanes[i], 1));
    }
    for (; p < end; p += 16)
        x = KB_FOLD(x, by_16, KB_LOAD(p));
    return kb_crc32c_of(x);
}

/* CRC-32C, 64 bytes at a time. `n` is 128 or more and a multiple of 16. In the cache this reads 115 GB/s, three lanes of
   the instruction 31 GB/s; decoding of uncompressed batches takes 1.3 to 1.9 times as long with the latter. */
__attribute__((target("avx512f,vpclmulqdq,sse4.2,pclmul")))
static uint32_t kb_crc32c_folded_512(uint32_t crc, const uint8_t *p, size_t n) {
    const __m512i by_256 = _mm512_broadcast_i32x4(KB_LOAD(kb_fold_powers[0]));
    const __m512i by_64 = _mm512_broadcast_i32x4(KB_LOAD(kb_fold_powers[2]));
    const __m128i by_16 = KB_LOAD(kb_fold_powers[3]);
    const uint8_t *end = p + n;
    __m512i a = _mm512_xor_si512(KB_LOAD_512(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m128i x;
    p += 64;
    if (n >= 256) {
        __m512i b = KB_LOAD_512(p), c = KB_LOAD_512(p + 64), d = KB_LOAD_512(p + 128);
        for (p += 192; end - p >= 256; p += 256) {
            a = KB_FOLD_512(a, by_256, KB_LOAD_512(p));
            b = KB_FOLD_512(b, by_256, KB_LOAD_512(p + 64));
            c = KB_FOLD_512(c, by_256, KB_LOAD_512(p + 128));
            d = KB_FOLD_512(d, by_256, KB_LOAD_512(p + 192));
        }
        a = KB_FOLD_512(KB_FOLD_512(KB_FOLD_512(a, by_64, b), by_64, c), by_64, d);
    }
    for (; end - p >= 64; p += 64)
        a = KB_FOLD_512(a, by_64, KB_LOAD_512(p));
    x = _mm512_castsi512_si128(a);
    x = KB_FOLD(x, by_16, _mm512_extracti32x4_epi32(a, 1));
    x = KB_FOLD(x, by_16, _mm512_extracti32x4_epi32(a, 2));
    x = KB_FOLD(x, by_16, _mm512_extracti32x4_epi32(a, 3));
    for (; p < end; p += 16)
        x = KB_FOLD(x, by_16, KB_LOAD(p));
    return kb_crc32c_of(x);
}

/* CRC-32 by folding, with the constants of the paper. `n` is 16 or more. 58 bytes take 3.6 ns; with tables for the odd
   bytes and the last sixteen they would take twice as long. */
KB_CRC_TARGET
static uint32_t kb_crc32_folded(uint32_t crc, const uint8_t *p, size_t n) {
    static const uint8_t shifts[48] = {
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128};
    /* x^(512 + 32), x^(512 - 32) and x^(128 + 32), x^(128 - 32) modulo the polynomial, reflected */
    const __m128i by_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i by_16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const uint8_t *end = p + n;
    __m128i x = _mm_xor_si128(KB_LOAD(p), _mm_cvtsi32_si128((int)crc)), y, back, low, reduce;
    size_t left;
    p += 16;
    if (n >= 128) {
        __m128i b = KB_LOAD(p), c = KB_LOAD(p + 16), d = KB_LOAD(p + 32);
        for (p += 48; end - p >= 64; p += 64) {
            x = KB_FOLD(x, by_64, KB_LOAD(p));
            b = KB_FOLD(b, by_64, KB_LOAD(p + 16));
            c = KB_FOLD(c, by_64, KB_LOAD(p + 32));
            d = KB_FOLD(d, by_64, KB_LOAD(p + 48));
        }
        x = KB_FOLD(KB_FOLD(KB_FOLD(x, by_16, b), by_16, c), by_16, d);
    }
    for (; end - p >= 16; p += 16)
        x = KB_FOLD(x, by_16, KB_LOAD(p));
    /* The first `left` bytes of x are folded into the sixteen bytes after them: the rest of x and of the input. */
    left = (size_t)(end - p);
    back = KB_LOAD(shifts + 16 + left);
    y = _mm_shuffle_epi8(x, KB_LOAD(shifts + left));
    x = _mm_blendv_epi8(_mm_shuffle_epi8(x, back), KB_LOAD(end - 16), back);
    x = KB_FOLD(y, by_16, x);
    /* From 128 bits to 96, to 64, and to 32 by Barrett's reduction. */
    low = _mm_set_epi32(0, 0, 0, -1);
    reduce = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, by_16, 0x10));
    x = _mm_xor_si128(_mm_srli_si128(x, 4),
                      _mm_clmulepi64_si128(_mm_and_si128(x, low), _mm_set_epi64x(0, 0x163cd6124), 0x00));
    y = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(x, low), reduce, 0x10), low);
    x = _mm_xor_si128(x, _mm_clmulepi64_si128(y, reduce, 0x00));
    return (uint32_t)_mm_extract_epi32(x, 1);
}
#endif

#ifdef KB_CRC_TARGET
/* The instruction has a latency of three cycles and a throughput of one per cycle, so three adjacent lanes are computed
   at once. kb_lane_tables[which][i] combines them: each byte of a remainder, multiplied by the factor of a lane. */
enum { KB_LONG_LANE = 4096, KB_SHORT_LANE = 256 };
static uint32_t kb_lane_tables[2][2][4][256];

static void kb_init_lane_tables(int which) {
    static const int sizes[2] = {KB_LONG_LANE, KB_SHORT_LANE};
    for (int i = 0; i < 2; i++)
        for (uint32_t at = 0; at < 4; at++)
            for (uint32_t byte = 0; byte < 256; byte++)
                kb_lane_tables[which][i][at][byte] = kb_crc_shift(which, byte << 8 * at, sizes[i]);
}

static inline uint32_t kb_after_lane(const uint32_t tables[4][256], uint32_t crc) {
    return tables[0][crc & 0xff] ^ tables[1][crc >> 8 & 0xff] ^ tables[2][crc >> 16 & 0xff] ^ tables[3][crc >> 24];
}

/* The remainder of three lanes of `lane` bytes at `p`. */
KB_CRC_TARGET
static inline uint32_t kb_three_lanes(int which, uint32_t crc, const uint8_t *p, size_t lane,
                                      const uint32_t tables[4][256]) {
    kb_remainder a = crc, b = 0, c = 0;
    const uint8_t *end = p + lane;
    #pragma GCC unroll 2
    for (; p < end; p += 8) {
        a = KB_CRC_WORD(which, a, kb_word(p));
        b = KB_CRC_WORD(which, b, kb_word(p + lane));
        c = KB_CRC_WORD(which, c, kb_word(p + 2 * lane));
    }
    return kb_after_lane(tables, kb_after_lane(tables, (uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c;
}

/* `n` is 8 or more. */
KB_CRC_TARGET
static inline uint32_t kb_crc_words(int which, uint32_t crc, const uint8_t *p, size_t n, int level) {
    const uint32_t (*tables)[4][256] = (const uint32_t (*)[4][256])kb_lane_tables[which];
    const size_t odd = n & 7;
    kb_remainder rest;
    (void)level;
    if (odd) {
        crc = (uint32_t)KB_CRC_WORD(which, 0, kb_odd_word(p, odd, crc)) ^ kb_odd_rest(odd, crc);
        p += odd;
        n -= odd;
    }
#if defined(__x86_64__)
    if (level < KB_WIDE_512 && n >= KB_THIRDS_FROM && n < KB_THIRDS_TO) {
        crc = kb_thirds(crc, p, n / 24);
        p += n / 24 * 24;
        n %= 24;
    }
    if (level >= KB_WIDE_256 && n >= (level == KB_WIDE_512 ? 128 : KB_THIRDS_TO)) {
        const size_t folded = n & ~(size_t)15;
        crc = level == KB_WIDE_512 ? kb_crc32c_folded_512(crc, p, folded) : kb_crc32c_folded_256(crc, p, folded);
        p += folded;
        n -= folded;
    }
#endif
    for (; n >= 3 * KB_LONG_LANE; p += 3 * KB_LONG_LANE, n -= 3 * KB_LONG_LANE)
        crc = kb_three_lanes(which, crc, p, KB_LONG_LANE, tables[0]);
    for (; n >= 3 * KB_SHORT_LANE; p += 3 * KB_SHORT_LANE, n -= 3 * KB_SHORT_LANE)
        crc = kb_three_lanes(which, crc, p, KB_SHORT_LANE, tables[1]);
    rest = crc;
    for (; n >= 32; p += 32, n -= 32) {
        rest = KB_CRC_WORD(which, rest, kb_word(p));
        rest = KB_CRC_WORD(which, rest, kb_word(p + 8));
        rest = KB_CRC_WORD(which, rest, kb_word(p + 16));
        rest = KB_CRC_WORD(which, rest, kb_word(p + 24));
    }
    for (; n; n -= 8, p += 8)
        rest = KB_CRC_WORD(which, rest, kb_word(p));
    return (uint32_t)rest;
}
#endif

/* -- the two checksums, continued from `before`: the checksum of the preceding bytes, or 0 */

static int kb_level;

static uint32_t kb_crc32c(uint32_t before, const uint8_t *p, size_t n, int level) {
#ifdef KB_CRC_TARGET
    if (level && n >= 8)
        return ~kb_crc_words(KB_CRC32C, ~before, p, n, level);
#endif
    return ~kb_crc_tables(KB_CRC32C, ~before, p, n);
}

static uint32_t kb_crc32(uint32_t before, const uint8_t *p, size_t n, int level) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (level && n >= 16)
        return ~kb_crc32_folded(~before, p, n);
#elif defined(KB_CRC_TARGET)
    if (level && n >= 8)
        return ~kb_crc_words(KB_CRC32, ~before, p, n, level);
#endif
    return ~kb_crc_tables(KB_CRC32, ~before, p, n);
}

static void kb_init_checksums(void) {
    for (int which = 0; which < 2; which++) {
        kb_init_powers(which);
        kb_init_byte_tables(which);
#ifdef KB_CRC_TARGET
        kb_init_lane_tables(which);
#endif
    }
#if defined(__x86_64__) && defined(__GNUC__)
    kb_init_fold_powers();
#endif
    kb_level = kb_best_level();
}

#endif
