"""CRC-32 of messages, as magic 0 and 1 have it (CRC-R7), by folding alone."""

from libc.stdint cimport uint8_t, uint32_t

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #if defined(__x86_64__) && defined(__GNUC__)
      #include <immintrin.h>
      #define KB_ONWARD(x, k, next) _mm_xor_si128(_mm_xor_si128( \\
          _mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), next)
      #define KB_SIXTEEN(p) _mm_loadu_si128((const __m128i *)(p))
      /* The sum of sixteen bytes or more. Constants and the last steps are those of Gopal et al., "Fast CRC Computation
         for Generic Polynomials Using PCLMULQDQ". Tables for the odd bytes and for the last sixteen take twice as long
         for messages of some dozen bytes. */
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
          __m128i x = _mm_xor_si128(KB_SIXTEEN(p), low), y;
          p += 16;
          if (n >= 128) {
              __m128i b = KB_SIXTEEN(p), c = KB_SIXTEEN(p + 16), d = KB_SIXTEEN(p + 32);
              for (p += 48; end - p >= 64; p += 64) {
                  x = KB_ONWARD(x, far_on, KB_SIXTEEN(p));
                  b = KB_ONWARD(b, far_on, KB_SIXTEEN(p + 16));
                  c = KB_ONWARD(c, far_on, KB_SIXTEEN(p + 32));
                  d = KB_ONWARD(d, far_on, KB_SIXTEEN(p + 48));
              }
              x = KB_ONWARD(KB_ONWARD(KB_ONWARD(x, next_on, b), next_on, c), next_on, d);
          }
          for (; end - p >= 16; p += 16)
              x = KB_ONWARD(x, next_on, KB_SIXTEEN(p));
          {
              /* Of the sixteen, as many as are left go before sixteen others: the rest of them, and what is left. */
              size_t left = (size_t)(end - p);
              __m128i back = KB_SIXTEEN(shifts + 16 + left);
              y = _mm_shuffle_epi8(x, KB_SIXTEEN(shifts + left));
              x = _mm_blendv_epi8(_mm_shuffle_epi8(x, back), KB_SIXTEEN(end - 16), back);
              x = KB_ONWARD(y, next_on, x);
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
    #else
      static uint32_t kb_message_crc(const uint8_t *p, size_t n) { (void)p; (void)n; return 0; }
    #endif
    """
    uint32_t kb_message_crc(const uint8_t* p, size_t n) noexcept nogil
