"""CRC-32C of short batches by the processor's own instruction.

The `crc32c` package is faster on long batches (it interleaves three streams), but a call of it costs more than the
checksum of a short batch itself. So short batches are checked here, a run of them in one call; the facade hands long
ones to the package, and all of them where the processor has no such instruction.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from kbatch.kernels.wire cimport BatchRow

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    #if defined(__x86_64__) && defined(__GNUC__)
      #include <nmmintrin.h>
      static int kb_crc_available(void) { return __builtin_cpu_supports("sse4.2") != 0; }
      __attribute__((target("sse4.2")))
      static uint32_t kb_crc32c(const uint8_t *p, size_t n) {
          uint64_t crc = 0xffffffffu;
          for (; n >= 8; n -= 8, p += 8) {
              uint64_t word;
              memcpy(&word, p, 8);
              crc = _mm_crc32_u64(crc, word);
          }
          for (; n; n--, p++)
              crc = _mm_crc32_u8((uint32_t)crc, *p);
          return (uint32_t)crc ^ 0xffffffffu;
      }
    #elif defined(__ARM_FEATURE_CRC32)
      #include <arm_acle.h>
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
      static int kb_crc_available(void) { return 0; }
      static uint32_t kb_crc32c(const uint8_t *p, size_t n) { (void)p; (void)n; return 0; }
    #endif
    """
    bint kb_crc_available() noexcept nogil
    uint32_t kb_crc32c(const uint8_t* p, size_t n) noexcept nogil


AVAILABLE = bool(kb_crc_available())

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


def verify(const uint8_t[::1] data not None, const BatchRow[::1] batches not None, int64_t lo, int64_t hi,
           int64_t origin, int64_t max_size):
    """Check the batches `lo` to `hi` of magic 2 that take at most `max_size` bytes.

    Returns (row, crc, longer): the row of the first that fails and the checksum of its bytes, or `hi` and 0; and how
    many longer batches were passed over until there. The caller vouches that every row's position and size lie within
    `data` (they come from `scan`).
    """
    cdef uint32_t found = 0
    cdef int64_t bad = hi
    cdef int64_t longer = 0
    if lo < hi:
        with nogil:
            bad = first_mismatch(&data[0], &batches[0], lo, hi, origin, max_size, &longer, &found)
    return bad, found if bad < hi else 0, longer
