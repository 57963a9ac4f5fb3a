/* The number of significant bits of an integer, at least 1. */
#ifndef KBATCH_BITS_H
#define KBATCH_BITS_H

#include <stdint.h>

#if defined(_MSC_VER)
#include <intrin.h>
static inline int kb_bits(uint64_t x) { unsigned long i; _BitScanReverse64(&i, x | 1); return (int)i + 1; }
#else
static inline int kb_bits(uint64_t x) { return 64 - __builtin_clzll(x | 1); }
#endif

#endif
