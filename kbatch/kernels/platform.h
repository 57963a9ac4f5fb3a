/* Functions of the compiler (gcc or clang) that kernels use. */
#ifndef KBATCH_PLATFORM_H
#define KBATCH_PLATFORM_H

#include <stdint.h>

#define kb_bswap16 __builtin_bswap16
#define kb_bswap32 __builtin_bswap32
#define kb_bswap64 __builtin_bswap64
#define kb_likely(x) __builtin_expect(!!(x), 1)
#define kb_unlikely(x) __builtin_expect(!!(x), 0)
#define kb_prefetch(p) __builtin_prefetch(p)

/* Write past the cache, where the processor can. */
#if defined(__SSE2__) && defined(__x86_64__)
#include <emmintrin.h>
#define kb_stream_int64(p, v) _mm_stream_si64((long long *)(p), (v))
#define kb_stream_int32(p, v) _mm_stream_si32((int *)(p), (v))
/* What this thread wrote past the cache is visible to others before what it writes next. */
#define kb_stream_end() _mm_sfence()
#else
#define kb_stream_int64(p, v) (*(int64_t *)(p) = (v))
#define kb_stream_int32(p, v) (*(int32_t *)(p) = (v))
#define kb_stream_end() ((void)0)
#endif

/* Prefetch the lines of n bytes from p on, and two lines at least. */
#define kb_prefetch_span(p, n) do { \
    const char *kb_p = (const char *)(p), *kb_end = kb_p + (n); \
    __builtin_prefetch(kb_p); __builtin_prefetch(kb_p + 64); \
    for (kb_p += 128; kb_p < kb_end; kb_p += 64) { \
        __builtin_prefetch(kb_p); \
        __asm__ volatile(""); \
    } \
} while (0)

/* Prefetch 576 bytes around p. gcc removes a function or loop that only prefetches, because it has no effect. */
#define kb_prefetch_around(p) do { \
    const char *kb_p = (const char *)(p) - 256; \
    __builtin_prefetch(kb_p); __builtin_prefetch(kb_p + 64); __builtin_prefetch(kb_p + 128); \
    __builtin_prefetch(kb_p + 192); __builtin_prefetch(kb_p + 256); __builtin_prefetch(kb_p + 320); \
    __builtin_prefetch(kb_p + 384); __builtin_prefetch(kb_p + 448); __builtin_prefetch(kb_p + 512); \
    __asm__ volatile(""); \
} while (0)

/* The number of bits up to the highest one that is set; 1 for 0. */
static inline int kb_bits(uint64_t x) { return 64 - __builtin_clzll(x | 1); }

#endif
