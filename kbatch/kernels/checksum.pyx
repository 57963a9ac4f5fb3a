"""The checksums of a run of batches in one call, where a call for each would cost more than the sum.

CRC-32C for magic 2, by folding or by the processor's own instruction; the facade hands to the `crc32c` package what is
slower here, which is all of them where the processor has no such instruction. CRC-32 for magic 0 and 1, where a batch
is often a single message of some dozen bytes: by folding or by tables, and by `zlib` where that is faster.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kbatch.kernels.spans cimport Span
from kbatch.kernels.wire cimport BatchRow, kb_bswap32

cdef extern from "crc.h":
    enum:
        KB_CRC32C
        KB_CRC32
    uint32_t kb_crc_shift(int which, uint32_t crc, uint64_t nbytes) noexcept nogil
    void kb_crc_shift_init() noexcept nogil

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    static inline uint64_t kb_word(const uint8_t *p) {
        uint64_t word;
        memcpy(&word, p, 8);
        return word;
    }
    /* Where bytes aren't a multiple of eight, the odd ones are the first, so that they take one step: zeros before them
       add nothing, once the ones that a sum begins with are in the bytes. What belongs to bytes after them stays. */
    static inline uint64_t kb_odd_word(const uint8_t *p, size_t odd, uint32_t crc) {
        return (kb_word(p) ^ crc) << (64 - 8 * odd);
    }
    static inline uint32_t kb_odd_rest(size_t odd, uint32_t crc) {
        return odd < 4 ? crc >> 8 * odd : 0;
    }
    /* By polynomial, bits reflected, the powers of x that move on by 256, 64 and 16 bytes in folding. */
    static uint64_t kb_crc_moves[2][3][2];
    static void kb_crc_moves_init(void) {
        static const uint32_t polynomials[2] = {0x82f63b78u, 0xedb88320u};
        static const int bits[3] = {8 * 256, 8 * 64, 8 * 16};
        for (int which = 0; which < 2; which++) {
            uint32_t power = 0x80000000u;
            for (int n = 0; n <= bits[0] + 31; n++) {
                /* The product of two reflected words is short of a bit, and the power is in the lower half of its word,
                   which is x^33. The first half of what is moved is 64 bits further on its way. */
                for (int i = 0; i < 3; i++) {
                    if (n == bits[i] + 31)
                        kb_crc_moves[which][i][0] = power;
                    if (n == bits[i] - 33)
                        kb_crc_moves[which][i][1] = power;
                }
                power = power >> 1 ^ (power & 1 ? polynomials[which] : 0);
            }
        }
    }
    #if defined(__x86_64__) && defined(__GNUC__)
      #include <immintrin.h>
      #define KB_CRC_MAX_SIZE INT64_MAX
      static int kb_crc_available(void) {
          return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
      }
      static int kb_crc_fold(void) {
          int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
              && __builtin_cpu_supports("vpclmulqdq");
          return kb_crc_available() ? (wide ? 64 : 16) : 0;
      }
      /* Folding: sixteen bytes are as good as what they become when moved on, each half times a power of x, added to
         the bytes there (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ"). So all are
         folded into the last sixteen. `n` is at least sixteen, and a multiple of it. */
      #define KB_FOLD(x, k, next) _mm_xor_si128(_mm_xor_si128( \\
          _mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), next)
      #define KB_LOAD(p) _mm_loadu_si128((const __m128i *)(p))
      __attribute__((target("sse4.2,pclmul")))
      static __m128i kb_fold(const uint8_t *p, size_t n, uint32_t crc, int which) {
          const __m128i far_on = KB_LOAD(kb_crc_moves[which][1]), next_on = KB_LOAD(kb_crc_moves[which][2]);
          __m128i x = _mm_xor_si128(KB_LOAD(p), _mm_cvtsi32_si128((int)crc));
          const uint8_t *end = p + n;
          p += 16;
          if (n >= 64) {
              __m128i a = x, b = KB_LOAD(p), c = KB_LOAD(p + 16), d = KB_LOAD(p + 32);
              for (p += 48; end - p >= 64; p += 64) {
                  a = KB_FOLD(a, far_on, KB_LOAD(p));
                  b = KB_FOLD(b, far_on, KB_LOAD(p + 16));
                  c = KB_FOLD(c, far_on, KB_LOAD(p + 32));
                  d = KB_FOLD(d, far_on, KB_LOAD(p + 48));
              }
              x = KB_FOLD(KB_FOLD(KB_FOLD(a, next_on, b), next_on, c), next_on, d);
          }
          for (; p < end; p += 16)
              x = KB_FOLD(x, next_on, KB_LOAD(p));
          return x;
      }
      /* The same, sixty-four bytes at a time, of which there are at least as many. In cache 115 GB/s, where the three
         streams below reach 31; from memory both wait for it. */
      #define KB_FOLD_WIDE(x, k, next) _mm512_ternarylogic_epi64( \\
          _mm512_clmulepi64_epi128(x, k, 0x00), _mm512_clmulepi64_epi128(x, k, 0x11), next, 0x96)
      #define KB_LOAD_WIDE(p) _mm512_loadu_si512(p)
      __attribute__((target("avx512f,vpclmulqdq,sse4.2,pclmul")))
      static __m128i kb_fold_wide(const uint8_t *p, size_t n, uint32_t crc, int which) {
          const __m512i far_on = _mm512_broadcast_i32x4(KB_LOAD(kb_crc_moves[which][0]));
          const __m512i wide_on = _mm512_broadcast_i32x4(KB_LOAD(kb_crc_moves[which][1]));
          const __m128i next_on = KB_LOAD(kb_crc_moves[which][2]);
          __m512i a = _mm512_xor_si512(KB_LOAD_WIDE(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
          __m128i x;
          const uint8_t *end = p + n;
          p += 64;
          if (n >= 256) {
              __m512i b = KB_LOAD_WIDE(p), c = KB_LOAD_WIDE(p + 64), d = KB_LOAD_WIDE(p + 128);
              for (p += 192; end - p >= 256; p += 256) {
                  a = KB_FOLD_WIDE(a, far_on, KB_LOAD_WIDE(p));
                  b = KB_FOLD_WIDE(b, far_on, KB_LOAD_WIDE(p + 64));
                  c = KB_FOLD_WIDE(c, far_on, KB_LOAD_WIDE(p + 128));
                  d = KB_FOLD_WIDE(d, far_on, KB_LOAD_WIDE(p + 192));
              }
              a = KB_FOLD_WIDE(KB_FOLD_WIDE(KB_FOLD_WIDE(a, wide_on, b), wide_on, c), wide_on, d);
          }
          for (; end - p >= 64; p += 64)
              a = KB_FOLD_WIDE(a, wide_on, KB_LOAD_WIDE(p));
          x = _mm512_castsi512_si128(a);
          x = KB_FOLD(x, next_on, _mm512_extracti32x4_epi32(a, 1));
          x = KB_FOLD(x, next_on, _mm512_extracti32x4_epi32(a, 2));
          x = KB_FOLD(x, next_on, _mm512_extracti32x4_epi32(a, 3));
          for (; p < end; p += 16)
              x = KB_FOLD(x, next_on, KB_LOAD(p));
          return x;
      }
      /* x^n modulo the polynomial, by squaring and doubling; bits reflected. */
      __attribute__((target("sse4.2,pclmul")))
      static uint32_t kb_crc_power(uint64_t n) {
          /* A product of two reflected words is short of a bit, and the instruction multiplies by x^32: squaring x^m
             gives x^(2m + 33), or x^(2m + 32) if shifted by one. So down to a small n, and the same way up. */
          uint64_t steps = 1;
          uint32_t power;
          for (; n > 191; n = (n >> 1) - 16)
              steps = (steps << 1) | (~n & 1);
          power = 0x80000000u >> (n & 31);
          for (n >>= 5; n; n--)
              power = _mm_crc32_u32(power, 0);
          for (; steps > 1; steps >>= 1) {
              __m128i x = _mm_cvtsi32_si128((int)power);
              uint64_t square = (uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128(x, x, 0));
              power = (uint32_t)_mm_crc32_u64(0, square << (steps & 1));
          }
          return power;
      }
      /* What `crc` becomes `bytes` later, to be added to the word that is summed then. */
      __attribute__((target("sse4.2,pclmul")))
      static uint64_t kb_crc_later(uint64_t crc, uint64_t bytes) {
          __m128i x = _mm_cvtsi32_si128((int)(uint32_t)crc);
          __m128i y = _mm_cvtsi32_si128((int)kb_crc_power(bytes * 8 - 33));
          return (uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128(x, y, 0));
      }
      /* Without wide folding: the instruction takes three cycles, but one can begin in every cycle. So three thirds
         side by side, put together at the end. One stream takes 1.5 us for 16 KiB, three take 0.55. */
      __attribute__((target("sse4.2,pclmul")))
      static uint32_t kb_crc32c(const uint8_t *p, size_t n, int fold, uint32_t before) {
          uint64_t crc = before ^ 0xffffffffu;
          size_t odd = n & 7;
          if (n < 8) {
              for (; n; n--, p++)
                  crc = _mm_crc32_u8((uint32_t)crc, *p);
              return (uint32_t)crc ^ 0xffffffffu;
          }
          if (odd) {
              crc = _mm_crc32_u64(0, kb_odd_word(p, odd, (uint32_t)crc)) ^ kb_odd_rest(odd, (uint32_t)crc);
              p += odd;
              n -= odd;
          }
          if (fold >= 64 && n >= 128) {
              size_t whole = n & ~(size_t)15;
              __m128i x = kb_fold_wide(p, whole, (uint32_t)crc, KB_CRC32C);
              crc = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(x));
              crc = _mm_crc32_u64(0, (uint64_t)_mm_extract_epi64(x, 1) ^ crc);
              p += whole;
              n -= whole;
          } else if (n >= 256) {
              size_t third = (n - 8) / 24 * 8;
              uint64_t second = 0, last = 0;
              const uint8_t *end = p + third;
              for (; p < end; p += 8) {
                  crc = _mm_crc32_u64(crc, kb_word(p));
                  second = _mm_crc32_u64(second, kb_word(p + third));
                  last = _mm_crc32_u64(last, kb_word(p + 2 * third));
              }
              p += 2 * third;
              crc = kb_crc_later(crc, 2 * third + 8) ^ kb_crc_later(second, third + 8);
              crc = _mm_crc32_u64(last, kb_word(p) ^ crc);
              p += 8;
              n -= 3 * third + 8;
          }
          for (; n; n -= 8, p += 8)
              crc = _mm_crc32_u64(crc, kb_word(p));
          return (uint32_t)crc ^ 0xffffffffu;
      }
    #elif defined(__ARM_FEATURE_CRC32)
      #include <arm_acle.h>
      #define KB_CRC_MAX_SIZE (4 << 10)
      static int kb_crc_available(void) { return 1; }
      static int kb_crc_fold(void) { return 0; }
      static uint32_t kb_crc32c(const uint8_t *p, size_t n, int fold, uint32_t before) {
          uint32_t crc = before ^ 0xffffffffu;
          (void)fold;
          for (; n >= 8; n -= 8, p += 8)
              crc = __crc32cd(crc, kb_word(p));
          for (; n; n--, p++)
              crc = __crc32cb(crc, *p);
          return crc ^ 0xffffffffu;
      }
    #else
      #define KB_CRC_MAX_SIZE -1
      static int kb_crc_available(void) { return 0; }
      static int kb_crc_fold(void) { return 0; }
      static uint32_t kb_crc32c(const uint8_t *p, size_t n, int fold, uint32_t before) {
          (void)p; (void)n; (void)fold;
          return before;
      }
    #endif

    /* CRC-32 of zlib (CRC-R7), bits reflected: kb_crc32_table[i][b] is what the byte b adds when i bytes follow it. */
    static uint32_t kb_crc32_table[8][256];
    /* The sum of so many zeros: what a message's is, if its bytes are summed from 0 on, apart from that. */
    enum { KB_SHORT = 1024 };
    static uint32_t kb_crc32_zeros[KB_SHORT];
    static void kb_crc32_init(void) {
        for (uint32_t b = 0; b < 256; b++) {
            uint32_t crc = b;
            for (int bit = 0; bit < 8; bit++)
                crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
            kb_crc32_table[0][b] = crc;
        }
        for (int i = 1; i < 8; i++)
            for (int b = 0; b < 256; b++) {
                uint32_t crc = kb_crc32_table[i - 1][b];
                kb_crc32_table[i][b] = crc >> 8 ^ kb_crc32_table[0][crc & 0xff];
            }
        uint32_t crc = 0xffffffffu;
        for (int n = 0; n < KB_SHORT; n++) {
            kb_crc32_zeros[n] = crc ^ 0xffffffffu;
            crc = crc >> 8 ^ kb_crc32_table[0][crc & 0xff];
        }
    }
    /* The sum of eight bytes; the caller has added what was summed before to the first four of them. */
    static inline uint32_t kb_crc32_step(uint64_t word) {
    #if defined(__ARM_FEATURE_CRC32)
        return __crc32d(0, word);
    #else
        return kb_crc32_table[7][word & 0xff] ^ kb_crc32_table[6][word >> 8 & 0xff]
            ^ kb_crc32_table[5][word >> 16 & 0xff] ^ kb_crc32_table[4][word >> 24 & 0xff]
            ^ kb_crc32_table[3][word >> 32 & 0xff] ^ kb_crc32_table[2][word >> 40 & 0xff]
            ^ kb_crc32_table[1][word >> 48 & 0xff] ^ kb_crc32_table[0][word >> 56];
    #endif
    }
    #if defined(__x86_64__) && defined(__GNUC__)
      /* `n` is a multiple of sixteen, at least thirty-two. */
      __attribute__((target("sse4.2,pclmul")))
      static uint32_t kb_crc32_folded(const uint8_t *p, size_t n, uint32_t crc, int fold) {
          __m128i x = fold >= 64 && n >= 128 ? kb_fold_wide(p, n, crc, KB_CRC32) : kb_fold(p, n, crc, KB_CRC32);
          crc = kb_crc32_step((uint64_t)_mm_cvtsi128_si64(x));
          return kb_crc32_step((uint64_t)_mm_extract_epi64(x, 1) ^ crc);
      }
      /* CRC-32 of sixteen bytes or more by folding alone: tables for the odd bytes and for the last sixteen take twice
         as long for messages of some dozen bytes. Constants and the last steps are those of Gopal et al. too. */
      __attribute__((target("sse4.2,pclmul")))
      static uint32_t kb_message_crc(const uint8_t *p, size_t n) {
          static const uint8_t shifts[48] = {
              128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
              0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
              128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128};
          /* x^(512 + 32), x^(512 - 32) and x^(128 + 32), x^(128 - 32) modulo the polynomial, reflected */
          const __m128i far_on = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
          const __m128i next_on = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
          const __m128i low = _mm_set_epi32(0, 0, 0, -1);
          const uint8_t *end = p + n;
          __m128i x = _mm_xor_si128(KB_LOAD(p), low), y;
          p += 16;
          if (n >= 128) {
              __m128i b = KB_LOAD(p), c = KB_LOAD(p + 16), d = KB_LOAD(p + 32);
              for (p += 48; end - p >= 64; p += 64) {
                  x = KB_FOLD(x, far_on, KB_LOAD(p));
                  b = KB_FOLD(b, far_on, KB_LOAD(p + 16));
                  c = KB_FOLD(c, far_on, KB_LOAD(p + 32));
                  d = KB_FOLD(d, far_on, KB_LOAD(p + 48));
              }
              x = KB_FOLD(KB_FOLD(KB_FOLD(x, next_on, b), next_on, c), next_on, d);
          }
          for (; end - p >= 16; p += 16)
              x = KB_FOLD(x, next_on, KB_LOAD(p));
          {
              /* Of the sixteen, as many as are left go before sixteen others: the rest of them, and what is left. */
              size_t left = (size_t)(end - p);
              __m128i back = KB_LOAD(shifts + 16 + left);
              y = _mm_shuffle_epi8(x, KB_LOAD(shifts + left));
              x = _mm_blendv_epi8(_mm_shuffle_epi8(x, back), KB_LOAD(end - 16), back);
              x = KB_FOLD(y, next_on, x);
          }
          x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, next_on, 0x10));
          x = _mm_xor_si128(_mm_srli_si128(x, 4), _mm_clmulepi64_si128(_mm_and_si128(x, low),
                                                                       _mm_set_epi64x(0, 0x163cd6124), 0x00));
          {
              const __m128i reduce = _mm_set_epi64x(0x1f7011641, 0x1db710641);
              y = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(x, low), reduce, 0x10), low);
              x = _mm_xor_si128(x, _mm_clmulepi64_si128(y, reduce, 0x00));
          }
          return (uint32_t)_mm_extract_epi32(x, 1) ^ 0xffffffffu;
      }
      /* The same sixty-four bytes at a time. Zeros before a message add nothing, so that the first load takes what is
         odd, and nothing of it is behind the end; what a sum begins with is added last (`kb_crc32_zeros`). */
      #define KB_TARGET_WIDE __attribute__((target("avx512f,avx512bw,vpclmulqdq,sse4.2,pclmul")))
      /* Four sums, of 96 bits each, that only have to be added up. */
      KB_TARGET_WIDE
      static inline __m512i kb_message_sum(const uint8_t *p, size_t n) {
          /* By half of sixteen bytes that end d bits before the message does, x^(d + 96) and x^(d + 32). */
          const __m512i to_end = _mm512_set_epi64(0x1db710640, 0x0ccaa009e, 0x1751997d0, 0x15a546366,
                                                  0x0f1da05aa, 0x174359406, 0x03db1ecdc, 0x1c6e41596);
          const __m512i far_on = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1c6e41596, 0x154442bd4));
          const uint8_t *end = p + n;
          size_t odd = ((n - 1) & 63) + 1;
          __m512i x = _mm512_maskz_loadu_epi8(n ? ~0ull << (64 - odd) : 0, (const void *)((uintptr_t)p + odd - 64));
          for (p += odd; p < end; p += 64)
              x = KB_FOLD_WIDE(x, far_on, KB_LOAD_WIDE(p));
          return _mm512_xor_si512(_mm512_clmulepi64_epi128(x, to_end, 0x00), _mm512_clmulepi64_epi128(x, to_end, 0x11));
      }
      /* From 96 bits to 32, in each of four lanes; they stand in the second word of it. */
      KB_TARGET_WIDE
      static inline __m512i kb_message_reduce(__m512i x) {
          const __m512i low = _mm512_set1_epi64(0xffffffff);
          const __m512i reduce = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1f7011641, 0x1db710641));
          const __m512i fold = _mm512_broadcast_i32x4(_mm_set_epi64x(0, 0x163cd6124));
          __m512i y = _mm512_clmulepi64_epi128(_mm512_and_si512(x, low), fold, 0x00);
          x = _mm512_xor_si512(_mm512_bsrli_epi128(x, 4), y);
          y = _mm512_clmulepi64_epi128(_mm512_and_si512(x, low), reduce, 0x10);
          y = _mm512_clmulepi64_epi128(_mm512_and_si512(y, low), reduce, 0x00);
          return _mm512_xor_si512(x, y);
      }
      KB_TARGET_WIDE
      static uint32_t kb_message_crc_wide(const uint8_t *p, size_t n) {
          __m512i x = kb_message_sum(p, n);
          x = _mm512_xor_si512(x, _mm512_shuffle_i64x2(x, x, 0x4e));
          x = kb_message_reduce(_mm512_xor_si512(x, _mm512_shuffle_i64x2(x, x, 0xb1)));
          return (uint32_t)_mm_extract_epi32(_mm512_castsi512_si128(x), 1) ^ kb_crc32_zeros[n];
      }
      /* Those of four messages, reduced together. Of 58 bytes one takes 2.2 ns here, 3.0 by itself, and 3.6 if
         sixteen bytes are folded at a time; of 134 bytes 3.4, 4.6 and 5.8. */
      KB_TARGET_WIDE
      static void kb_message_crcs_wide(const uint8_t *const *p, const int64_t *n, uint32_t *crcs) {
          const __m512i seconds = _mm512_castsi128_si512(_mm_set_epi32(13, 9, 5, 1));
          __m512i a = kb_message_sum(p[0], n[0]), b = kb_message_sum(p[1], n[1]);
          __m512i c = kb_message_sum(p[2], n[2]), d = kb_message_sum(p[3], n[3]);
          __m128i sums;
          a = _mm512_xor_si512(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee));
          c = _mm512_xor_si512(_mm512_shuffle_i64x2(c, d, 0x44), _mm512_shuffle_i64x2(c, d, 0xee));
          a = _mm512_xor_si512(_mm512_shuffle_i64x2(a, c, 0x88), _mm512_shuffle_i64x2(a, c, 0xdd));
          sums = _mm512_castsi512_si128(_mm512_permutexvar_epi32(seconds, kb_message_reduce(a)));
          sums = _mm_xor_si128(sums, _mm_set_epi32((int)kb_crc32_zeros[n[3]], (int)kb_crc32_zeros[n[2]],
                                                   (int)kb_crc32_zeros[n[1]], (int)kb_crc32_zeros[n[0]]));
          _mm_storeu_si128((__m128i *)crcs, sums);
      }
    #else
      static uint32_t kb_crc32_folded(const uint8_t *p, size_t n, uint32_t crc, int fold) {
          (void)p; (void)n; (void)fold;
          return crc;
      }
      static uint32_t kb_message_crc(const uint8_t *p, size_t n) { (void)p; (void)n; return 0; }
      static uint32_t kb_message_crc_wide(const uint8_t *p, size_t n) { (void)p; (void)n; return 0; }
      static void kb_message_crcs_wide(const uint8_t *const *p, const int64_t *n, uint32_t *crcs) {
          (void)p; (void)n; (void)crcs;
      }
    #endif
    static uint32_t kb_crc32(const uint8_t *p, size_t n, int fold) {
        uint32_t crc = 0xffffffffu;
        size_t odd = n & 7;
        if (n < KB_SHORT) {
            if (fold >= 64)
                return kb_message_crc_wide(p, n);
            /* Tables for what is odd take twice as long. */
            if (fold && n >= 16)
                return kb_message_crc(p, n);
        }
        if (n < 8) {
            for (; n; n--, p++)
                crc = crc >> 8 ^ kb_crc32_table[0][(crc ^ *p) & 0xff];
            return crc ^ 0xffffffffu;
        }
        if (odd) {
            crc = kb_crc32_step(kb_odd_word(p, odd, crc)) ^ kb_odd_rest(odd, crc);
            p += odd;
            n -= odd;
        }
        if (fold && n >= 32) {
            size_t whole = n & ~(size_t)15;
            crc = kb_crc32_folded(p, whole, crc, fold);
            p += whole;
            n -= whole;
        }
        for (; n; n -= 8, p += 8)
            crc = kb_crc32_step(kb_word(p) ^ crc);
        return crc ^ 0xffffffffu;
    }
    static void kb_crc32_each(const uint8_t *const *p, const int64_t *n, int64_t count, uint32_t *crcs, int fold) {
        int64_t i = 0;
        if (fold >= 64)
            for (; count - i >= 4; i += 4) {
                if ((n[i] | n[i + 1] | n[i + 2] | n[i + 3]) < KB_SHORT)
                    kb_message_crcs_wide(p + i, n + i, crcs + i);
                else
                    for (int j = 0; j < 4; j++)
                        crcs[i + j] = kb_crc32(p[i + j], (size_t)n[i + j], fold);
            }
        for (; i < count; i++)
            crcs[i] = kb_crc32(p[i], (size_t)n[i], fold);
    }
    """
    const int64_t KB_CRC_MAX_SIZE
    bint kb_crc_available() noexcept nogil
    int kb_crc_fold() noexcept nogil
    void kb_crc_moves_init() noexcept nogil
    uint32_t kb_crc32c(const uint8_t* p, size_t n, int fold, uint32_t before) noexcept nogil
    void kb_crc32_init() noexcept nogil
    uint32_t kb_crc32(const uint8_t* p, size_t n, int fold) noexcept nogil
    void kb_crc32_each(const uint8_t** p, const int64_t* n, int64_t count, uint32_t* crcs, int fold) noexcept nogil


AVAILABLE = bool(kb_crc_available())
# The largest batch, in bytes, that is better checked here than by the package; -1 if none is.
MAX_SIZE = KB_CRC_MAX_SIZE if AVAILABLE else -1

kb_crc_shift_init()
kb_crc_moves_init()
kb_crc32_init()

# How many bytes this processor folds at a time: 64, 16, or 0 if it can't.
cdef int widest = kb_crc_fold()
FOLD = widest
# The same for entries of magic 0 and 1: folding is faster than zlib at any size (5 times at 1 MiB), tables up to this.
MAX_SIZE_LEGACY = INT64_MAX if widest else 512

# The checksum of magic 2 covers the batch from its attributes on (CRC-R1).
cdef int64_t CRC_START = 21
# That of magic 0 and 1 covers the entry from its magic on (CRC-R7).
cdef int64_t CRC_START_LEGACY = 16

cdef enum:
    # Messages are summed so many at a time.
    BLOCK = 32


def crc32c(const uint8_t[::1] data not None, int fold=64):
    """Return the CRC-32C of `data`; only where `AVAILABLE`. At most `fold` bytes are folded at a time."""
    if not AVAILABLE:
        raise RuntimeError("this processor has no CRC-32C instruction; use the crc32c package")
    cdef size_t n = data.shape[0]
    cdef uint32_t crc
    with nogil:
        crc = kb_crc32c(&data[0] if n else NULL, n, min(fold, widest), 0)
    return crc


cdef uint32_t crc32c_of(const uint8_t* data, int64_t size) noexcept nogil:
    """The CRC-32C of `size` bytes, for other kernels; only where `AVAILABLE`."""
    return kb_crc32c(data, size, widest, 0)


cdef uint32_t crc32c_after(uint32_t before, const uint8_t* data, int64_t size) noexcept nogil:
    """The same of bytes that follow those whose sum is `before`."""
    return kb_crc32c(data, size, widest, before)


cpdef uint32_t crc32c_shift(uint32_t crc, uint64_t nbytes) noexcept nogil:
    """The share of A in the CRC-32C of A || B: `crc` is that of A, and B has `nbytes` bytes.

    So crc32c(A || B) == crc32c_shift(crc32c(A), len(B)) ^ crc32c(B).
    """
    return kb_crc_shift(KB_CRC32C, crc, nbytes)


cpdef uint32_t crc32_shift(uint32_t crc, uint64_t nbytes) noexcept nogil:
    """The same for CRC-32."""
    return kb_crc_shift(KB_CRC32, crc, nbytes)


cdef uint32_t crc32c_joined(uint32_t first, uint32_t second, int64_t size) noexcept nogil:
    return kb_crc_shift(KB_CRC32C, first, size) ^ second


cdef uint32_t crc32_legacy(const uint8_t* data, int64_t size) noexcept nogil:
    """The CRC-32 of `size` bytes, as messages of magic 0 and 1 have it; for other kernels."""
    return kb_crc32(data, size, widest)


cdef void crc32_each(const uint8_t** data, const int64_t* sizes, int64_t count, uint32_t* sums) noexcept nogil:
    """The CRC-32 of each of `count` pieces, to `sums`: faster together than one by one, where they are short."""
    kb_crc32_each(data, sizes, count, sums, widest)


def crc32(const uint8_t[::1] data not None, int fold=64):
    """Return the CRC-32 of `data`, as `zlib.crc32` does. At most `fold` bytes are folded at a time; tables if 0."""
    cdef size_t n = data.shape[0]
    cdef uint32_t crc
    with nogil:
        crc = kb_crc32(&data[0] if n else NULL, n, min(fold, widest))
    return crc


def crc32_pieces(const uint8_t[::1] data not None, const int64_t[::1] ends not None, int fold=64):
    """Return the CRC-32 of each of the pieces that `data` is in, by where they end; `fold` as for `crc32`."""
    cdef int64_t start = 0
    cdef int64_t i
    cdef const uint8_t* starts[BLOCK]
    cdef int64_t sizes[BLOCK]
    cdef uint32_t sums[BLOCK]
    if not 0 < ends.shape[0] <= BLOCK:
        raise ValueError(f"1 to {BLOCK} pieces, got {ends.shape[0]}")
    for i in range(ends.shape[0]):
        if not start <= ends[i] <= data.shape[0]:
            raise IndexError("pieces out of range")
        starts[i] = &data[0] + start if data.shape[0] else NULL
        sizes[i] = ends[i] - start
        start = ends[i]
    kb_crc32_each(starts, sizes, ends.shape[0], sums, min(fold, widest))
    return [sums[i] for i in range(ends.shape[0])]


cdef int64_t first_bad_message(const uint8_t* base, const BatchRow* batches, int64_t count, int64_t origin,
                               uint32_t* found) noexcept nogil:
    """The first of up to `BLOCK` entries of magic 0 and 1 whose checksum doesn't hold, or `count`."""
    cdef const uint8_t* starts[BLOCK]
    cdef int64_t sizes[BLOCK]
    cdef uint32_t sums[BLOCK]
    cdef int64_t i
    for i in range(count):
        starts[i] = base + (batches[i].position - origin) + CRC_START_LEGACY
        sizes[i] = batches[i].size - CRC_START_LEGACY
    kb_crc32_each(starts, sizes, count, sums, widest)
    for i in range(count):
        if sums[i] != batches[i].crc:
            found[0] = sums[i]
            return i
    return count


cdef int64_t first_mismatch(const uint8_t* base, const BatchRow* batches, int64_t lo, int64_t hi, int64_t origin,
                            int64_t max_size, int64_t max_size_legacy, int64_t* longer,
                            uint32_t* found) noexcept nogil:
    cdef int64_t i = lo
    cdef int64_t n
    cdef int64_t bad
    cdef const uint8_t* p
    while i < hi:
        if batches[i].size > (max_size if batches[i].magic == 2 else max_size_legacy):
            longer[0] += 1
            i += 1
            continue
        if batches[i].magic == 2:
            p = base + (batches[i].position - origin)
            found[0] = kb_crc32c(p + CRC_START, batches[i].size - CRC_START, widest, 0)
            if found[0] != batches[i].crc:
                return i
            i += 1
            continue
        n = 1
        while n < min(hi - i, <int64_t>BLOCK) and batches[i + n].magic != 2 and batches[i + n].size <= max_size_legacy:
            n += 1
        bad = first_bad_message(base, batches + i, n, origin, found)
        i += bad
        if bad < n:
            return i
    return hi


def verify(data not None, batches not None, int64_t lo, int64_t hi, int64_t origin, int64_t max_size,
           int64_t max_size_legacy):
    """Check the batches `lo` to `hi` that take at most `max_size` bytes, or `max_size_legacy` with magic 0 or 1.

    Returns (row, crc, longer): the row of the first that fails and the checksum of its bytes, or `hi` and 0; and how
    many longer batches were passed over until there. The caller vouches that every row's position and size lie within
    `data` (they come from `scan`).
    """
    cdef Span data_span = Span(data, 1, False)
    cdef Span batch_span = Span(batches, sizeof(BatchRow), False)
    cdef uint32_t found = 0
    cdef int64_t bad
    cdef int64_t longer = 0
    if lo < 0 or hi > batch_span.length:
        raise IndexError("rows out of range")
    with nogil:
        bad = first_mismatch(<const uint8_t*>data_span.items, <const BatchRow*>batch_span.items, lo, hi, origin,
                             max_size, max_size_legacy, &longer, &found)
    return bad, found if bad < hi else 0, longer


cdef inline void store_crc(uint8_t* p, uint32_t crc) noexcept nogil:
    crc = kb_bswap32(crc)
    memcpy(p, &crc, 4)


def reseal(data not None, batches not None, int64_t max_size, int64_t max_size_legacy):
    """Write the checksums of batches anew, where they stand in `data` and in the rows.

    Returns how many were passed over because they take more than `max_size` bytes, or `max_size_legacy` with magic 0
    or 1. The caller vouches that every row's position and size lie within `data` (they come from `scan`).
    """
    cdef Span data_span = Span(data, 1, True)
    cdef Span batch_span = Span(batches, sizeof(BatchRow), True)
    cdef BatchRow* rows = <BatchRow*>batch_span.items
    cdef int64_t i
    cdef int64_t longer = 0
    cdef uint8_t* p
    with nogil:
        for i in range(batch_span.length):
            p = <uint8_t*>data_span.items + rows[i].position
            if rows[i].magic == 2:
                if rows[i].size > max_size:
                    longer += 1
                    continue
                rows[i].crc = kb_crc32c(p + CRC_START, rows[i].size - CRC_START, widest, 0)
                store_crc(p + CRC_START - 4, rows[i].crc)
            else:
                if rows[i].size > max_size_legacy:
                    longer += 1
                    continue
                rows[i].crc = crc32_legacy(p + CRC_START_LEGACY, rows[i].size - CRC_START_LEGACY)
                store_crc(p + CRC_START_LEGACY - 4, rows[i].crc)
    return longer
