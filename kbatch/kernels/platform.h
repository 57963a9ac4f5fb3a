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

/* Non-temporal stores, which do not load the cache line that they write to, on x86-64; ordinary stores elsewhere. */
#if defined(__SSE2__) && defined(__x86_64__)
#include <emmintrin.h>
#define kb_stream_int64(p, v) _mm_stream_si64((long long *)(p), (v))
#define kb_stream_int32(p, v) _mm_stream_si32((int *)(p), (v))
/* Make the non-temporal stores of this thread visible to other threads before its next store. */
#define kb_stream_end() _mm_sfence()
#else
#define kb_stream_int64(p, v) (*(int64_t *)(p) = (v))
#define kb_stream_int32(p, v) (*(int32_t *)(p) = (v))
#define kb_stream_end() ((void)0)
#endif

/* Prefetch the lines of n bytes from p on, and two lines at least. gcc removes a loop that only prefetches, because it
   has no effect. */
#define kb_prefetch_span(p, n) do { \
    const char *kb_p = (const char *)(p), *kb_end = kb_p + (n); \
    __builtin_prefetch(kb_p); __builtin_prefetch(kb_p + 64); \
    for (kb_p += 128; kb_p < kb_end; kb_p += 64) { \
        __builtin_prefetch(kb_p); \
        __asm__ volatile(""); \
    } \
} while (0)

/* The number of bits up to the highest one that is set; 1 for 0. */
static inline int kb_bits(uint64_t x) { return 64 - __builtin_clzll(x | 1); }

#endif
