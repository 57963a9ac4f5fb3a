"""The schedule of threads that decode groups of batches: claiming, turns and the end, without the GIL.

A thread claims one group after another. It waits for the turn of its group, passes the turn on when the next group may
follow, and stops everything at a batch that cannot be decoded.
"""

from libc.stdint cimport int64_t

from kbatch.kernels.atomic cimport kb_add, kb_get, kb_set, kb_swap, pass_time
from kbatch.kernels.tuning cimport GROUP_BYTES, LAST_GROUP_BYTES
from kbatch.kernels.wire cimport BatchRow


# The batches from `lo` to `hi`, which one thread claims.
cdef struct Group:
    int64_t number
    int64_t lo
    int64_t hi


# Fields that different threads write are in different cache lines: if they shared one, two threads would be no faster
# than one for batches of 100 bytes.
cdef struct Schedule:
    int64_t _line_1[8]
    # The number of the group whose turn it is. Written by the thread that has claimed this group.
    int64_t turn
    int64_t _line_2[8]
    # The numbers of claimed groups and batches. Written under the lock.
    int64_t lock
    int64_t claimed
    int64_t claimed_batches
    int64_t _line_3[8]
    # The first batch that is not decoded, INT64_MAX until one is known. Written under the lock.
    int64_t stop
    int64_t _line_4[8]
    # The number of threads that have entered, and whether no other may enter.
    int64_t inside
    int64_t closed


cdef inline void acquire(Schedule* schedule) noexcept nogil:
    cdef int64_t tries = 0
    while kb_swap(&schedule.lock, 1):
        # The thread that holds the lock may be waiting for this processor.
        pass_time(&tries)


cdef inline void release(Schedule* schedule) noexcept nogil:
    kb_set(&schedule.lock, 0)


cdef inline bint claim_group(Schedule* schedule, const BatchRow* rows, int64_t lo, int64_t hi,
                             Group* group) noexcept nogil:
    """Claim the next group of the batches from `lo` to `hi`; return whether one remains."""
    cdef int64_t above = hi
    cdef int64_t middle
    cdef int64_t end
    acquire(schedule)
    group.number = schedule.claimed
    group.lo = group.hi = lo + schedule.claimed_batches
    if group.lo < hi and schedule.stop > group.lo:
        end = rows[above - 1].position - rows[group.lo].position
        end = rows[group.lo].position + min(max(end // 4, <int64_t>LAST_GROUP_BYTES), <int64_t>GROUP_BYTES)
        group.hi += 1
        while group.hi < above:
            middle = group.hi + (above - group.hi) // 2
            if rows[middle].position < end:
                group.hi = middle + 1
            else:
                above = middle
        schedule.claimed += 1
        schedule.claimed_batches = group.hi - lo
    release(schedule)
    return group.lo < group.hi


cdef inline bint has_stopped(Schedule* schedule, int64_t row) noexcept nogil:
    """Whether everything has stopped at batch `row` or before it."""
    return kb_get(&schedule.stop) <= row


cdef inline bint wait_for_turn(Schedule* schedule, const Group* group) noexcept nogil:
    """Wait for the turn of a group; return False if everything has stopped before it."""
    cdef int64_t tries = 0
    while kb_get(&schedule.turn) != group.number:
        if has_stopped(schedule, group.lo):
            return False
        pass_time(&tries)
    return not has_stopped(schedule, group.lo)


cdef inline void pass_turn(Schedule* schedule, const Group* group) noexcept nogil:
    kb_set(&schedule.turn, group.number + 1)


cdef inline bint enter(Schedule* schedule) noexcept nogil:
    """Count this thread until `leave`, in any case; return whether it may claim groups."""
    kb_add(&schedule.inside, 1)
    return not kb_get(&schedule.closed)


cdef inline void leave(Schedule* schedule) noexcept nogil:
    kb_add(&schedule.inside, -1)


cdef inline bint close_entry(Schedule* schedule) noexcept nogil:
    """Let no further thread enter and wait until all have left; return False if another thread does so."""
    cdef int64_t tries = 0
    if kb_swap(&schedule.closed, True):
        return False
    while kb_get(&schedule.inside):
        pass_time(&tries)
    return True
