/* Sequentially consistent operations on shared integers, and the three ways for a thread to wait. */
#ifndef KBATCH_ATOMIC_H
#define KBATCH_ATOMIC_H

#include <sched.h>
#include <stdint.h>
#include <time.h>

static inline int64_t kb_add(int64_t *p, int64_t n) { return __atomic_fetch_add(p, n, __ATOMIC_SEQ_CST); }
static inline int64_t kb_get(int64_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
static inline void kb_set(int64_t *p, int64_t n) { __atomic_store_n(p, n, __ATOMIC_SEQ_CST); }
static inline int64_t kb_swap(int64_t *p, int64_t n) { return __atomic_exchange_n(p, n, __ATOMIC_SEQ_CST); }

static inline void kb_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static inline void kb_yield(void) { sched_yield(); }

static inline void kb_nap(void) {
    struct timespec time = {0, 50000};
    nanosleep(&time, NULL);
}

#endif
