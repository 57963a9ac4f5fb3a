"""Numbers that several threads change, each change seen by all in the same order; and how to wait for one.

Inline C, for kernels that run without the GIL.
"""

from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <stdint.h>
    #if defined(_MSC_VER)
      #include <windows.h>
      #include <intrin.h>
      static int64_t kb_add(int64_t *p, int64_t n) { return _InterlockedExchangeAdd64((volatile __int64 *)p, n); }
      static int64_t kb_get(int64_t *p) { return _InterlockedExchangeAdd64((volatile __int64 *)p, 0); }
      static void kb_set(int64_t *p, int64_t n) { _InterlockedExchange64((volatile __int64 *)p, n); }
      static int64_t kb_swap(int64_t *p, int64_t n) { return _InterlockedExchange64((volatile __int64 *)p, n); }
      static void kb_pause(void) { YieldProcessor(); }
      static void kb_yield(void) { SwitchToThread(); }
      static void kb_nap(void) { Sleep(1); }
    #else
      #include <sched.h>
      #include <time.h>
      static int64_t kb_add(int64_t *p, int64_t n) { return __atomic_fetch_add(p, n, __ATOMIC_SEQ_CST); }
      static int64_t kb_get(int64_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
      static void kb_set(int64_t *p, int64_t n) { __atomic_store_n(p, n, __ATOMIC_SEQ_CST); }
      static int64_t kb_swap(int64_t *p, int64_t n) { return __atomic_exchange_n(p, n, __ATOMIC_SEQ_CST); }
      static void kb_pause(void) {
      #if defined(__x86_64__) || defined(__i386__)
          __builtin_ia32_pause();
      #endif
      }
      static void kb_yield(void) { sched_yield(); }
      static void kb_nap(void) {
          struct timespec time = {0, 50000};
          nanosleep(&time, NULL);
      }
    #endif
    """
    int64_t kb_add(int64_t* p, int64_t n) noexcept nogil
    int64_t kb_get(int64_t* p) noexcept nogil
    void kb_set(int64_t* p, int64_t n) noexcept nogil
    int64_t kb_swap(int64_t* p, int64_t n) noexcept nogil
    void kb_pause() noexcept nogil
    void kb_yield() noexcept nogil
    void kb_nap() noexcept nogil

cdef enum:
    # How often a thread that waits only pauses, and until when it lets others run.
    SPINS = 1000
    YIELDS = 3000


cdef inline void pass_time(int64_t* tries) noexcept nogil:
    """Wait a little, and ever longer."""
    tries[0] += 1
    if tries[0] < SPINS:
        kb_pause()
    elif tries[0] < YIELDS:
        kb_yield()
    else:
        kb_nap()
