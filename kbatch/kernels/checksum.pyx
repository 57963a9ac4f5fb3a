"""CRC-32C by the processor's own instruction, for batches where a call of the `crc32c` package costs more than the sum.

A run of batches is checked in one call. The facade hands longer batches to the package, and all of them where the
processor has no such instruction.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from kbatch.kernels.spans cimport Span
from kbatch.kernels.wire cimport BatchRow

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    #if defined(__x86_64__) && defined(__GNUC__)
      #include <immintrin.h>
      #define KB_CRC_MAX_SIZE (64 << 10)
      static int kb_crc_available(void) {
          return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
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
      static inline uint64_t kb_word(const uint8_t *p) {
          uint64_t word;
          memcpy(&word, p, 8);
          return word;
      }
      /* The instruction takes three cycles, but one can begin in every cycle: so three thirds side by side, put
         together at the end. One stream takes 1.8 us for 16 KiB, three take 0.7. */
      __attribute__((target("sse4.2,pclmul")))
      static uint32_t kb_crc32c(const uint8_t *p, size_t n) {
          uint64_t crc = 0xffffffffu;
          if (n >= 256) {
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
          for (; n >= 8; n -= 8, p += 8)
              crc = _mm_crc32_u64(crc, kb_word(p));
          for (; n; n--, p++)
              crc = _mm_crc32_u8((uint32_t)crc, *p);
          return (uint32_t)crc ^ 0xffffffffu;
      }
    #elif defined(__ARM_FEATURE_CRC32)
      #include <arm_acle.h>
      #define KB_CRC_MAX_SIZE (4 << 10)
      static int kb_crc_available(void) { return 1; }
      static uint32_t kb_crc32c(const uint8_t *p, size_t n) {
          uint32_t crc = 0xffffffffu;
          for (; n >= 8; n -= 8, p += 8) {
              uint64_t word;
              memcpy(&word, p, 8);
              crc = __crc32cd(crc, word);
          }
          for (; n; n--, p++)
              crc = __crc32cb(crc, *p);
          return crc ^ 0xffffffffu;
      }
    #else
      #define KB_CRC_MAX_SIZE -1
      static int kb_crc_available(void) { return 0; }
      static uint32_t kb_crc32c(const uint8_t *p, size_t n) { (void)p; (void)n; return 0; }
    #endif
    """
    const int64_t KB_CRC_MAX_SIZE
    bint kb_crc_available() noexcept nogil
    uint32_t kb_crc32c(const uint8_t* p, size_t n) noexcept nogil


AVAILABLE = bool(kb_crc_available())
# The largest batch, in bytes, that is better checked here than by the package; -1 if none is.
MAX_SIZE = KB_CRC_MAX_SIZE if AVAILABLE else -1

# The checksum of magic 2 covers the batch from its attributes on (CRC-R1).
cdef int64_t CRC_START = 21


def crc32c(const uint8_t[::1] data not None):
    """Return the CRC-32C of `data`; only where `AVAILABLE`."""
    if not AVAILABLE:
        raise RuntimeError("this processor has no CRC-32C instruction; use the crc32c package")
    cdef size_t n = data.shape[0]
    cdef uint32_t crc
    with nogil:
        crc = kb_crc32c(&data[0] if n else NULL, n)
    return crc


cdef int64_t first_mismatch(const uint8_t* base, const BatchRow* batches, int64_t lo, int64_t hi, int64_t origin,
                            int64_t max_size, int64_t* longer, uint32_t* found) noexcept nogil:
    cdef int64_t i
    for i in range(lo, hi):
        if batches[i].magic != 2:
            continue
        if batches[i].size > max_size:
            longer[0] += 1
            continue
        found[0] = kb_crc32c(base + (batches[i].position - origin) + CRC_START, batches[i].size - CRC_START)
        if found[0] != batches[i].crc:
            return i
    return hi


def verify(data not None, batches not None, int64_t lo, int64_t hi, int64_t origin, int64_t max_size):
    """Check the batches `lo` to `hi` of magic 2 that take at most `max_size` bytes.

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
                             max_size, &longer, &found)
    return bad, found if bad < hi else 0, longer


cdef uint32_t crc32_legacy(const uint8_t* p, int64_t n) noexcept nogil:
    cdef uint32_t crc = <uint32_t>-1
    cdef uint32_t poly = <uint32_t>0xEDB88320
    cdef int64_t i
    cdef int k
    for i in range(n):
        crc ^= p[i]
        for k in range(8):
            crc = (crc >> 1) ^ (poly & (0 - (crc & 1)))
    return ~crc
