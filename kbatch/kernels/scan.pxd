from libc.stdint cimport int64_t, uint8_t

from kbatch.kernels.wire cimport BatchRow, kb_prefetch, kb_prefetch_around

cdef enum:
    # Sizes from which on headers are fetched from where they are about to be, and up to which.
    FAR = 3 << 10
    TOO_FAR = 64 << 10


cdef struct Stop:
    int fault
    int64_t wanted
    int64_t found


# Fill rows from byte `position` on; leave `position` after the last whole batch. Returns how many. `ahead` is whether
# nothing else fetches the headers of larger batches: where each is read before the next one is framed, to fetch them
# takes 4 % of the time of 16 KiB batches, and else they would be waited for.
cdef int64_t scan_into(const uint8_t* base, int64_t size, int64_t* position, int64_t origin, BatchRow* rows,
                       int64_t capacity, Stop* stop, bint ahead) noexcept nogil


cdef inline void fetch_ahead(const uint8_t* p, int64_t size, int64_t near) noexcept nogil:
    """Have the headers behind the batch of `size` bytes at `p` be on their way; small ones `near` bytes ahead.

    Each tells where the next one is, so that one would wait for each. Batches that were closed when they were full
    differ by a record: thus about where the fourth after this one is, for all four to be on their way at once.
    """
    if size < FAR:
        kb_prefetch(p + near)
        kb_prefetch(p + near + 64)
    elif size < TOO_FAR:
        kb_prefetch_around(p + 4 * size)


# Bytes whose batches' lengths are followed, and of which none may be longer than `max_size`.
cdef struct Road:
    const uint8_t* base
    int64_t length
    int64_t max_size
    bint include_control
    # Whether records are counted.
    bint counts


# Batches one after the other from byte `start` on, as their lengths tell: up to `at`, which is to go to `end`.
cdef struct Chain:
    int64_t start
    int64_t at
    int64_t end
    int64_t batches
    int64_t records


cdef inline void start_chain(Chain* chain, int64_t start, int64_t end) noexcept nogil:
    chain.start = chain.at = start
    chain.end = end
    chain.batches = chain.records = 0


cdef bint hop(const Road* road, Chain* chain) noexcept nogil
cdef void follow_lengths(const Road* road, Chain* whole, int64_t start, int64_t end, bint small) noexcept nogil
