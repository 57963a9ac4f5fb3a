"""Sequentially consistent integers that several threads change, and waiting for such a change, without the GIL."""

from libc.stdint cimport int64_t

from kbatch.kernels.tuning cimport WAIT_PAUSES, WAIT_YIELDS

cdef extern from "atomic.h":
    int64_t kb_add(int64_t* p, int64_t n) noexcept nogil
    int64_t kb_get(int64_t* p) noexcept nogil
    void kb_set(int64_t* p, int64_t n) noexcept nogil
    int64_t kb_swap(int64_t* p, int64_t n) noexcept nogil
    void kb_pause() noexcept nogil
    void kb_yield() noexcept nogil
    void kb_nap() noexcept nogil


cdef inline void pass_time(int64_t* tries) noexcept nogil:
    """Wait for a moment, which becomes longer with the number of `tries`."""
    tries[0] += 1
    if tries[0] < WAIT_PAUSES:
        kb_pause()
    elif tries[0] < WAIT_YIELDS:
        kb_yield()
    else:
        kb_nap()
