"""Threads that wait for work, and help whoever has some without the GIL."""

from cpython.pythread cimport (
    NOWAIT_LOCK,
    PY_LOCK_ACQUIRED,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
)
from libc.stdint cimport int64_t

from kbatch.kernels.atomic cimport YIELDS, kb_get, kb_set, kb_swap, kb_turn, pass_time
from kbatch.kernels.frames cimport Codecs

cdef extern from "pythread.h":
    int PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int intr_flag) nogil

cdef enum:
    # How long a helper without work stays, in microseconds.
    IDLE_TIME = 1_000_000
    # What a helper is: asleep, awake, at work, or through.
    IDLE = 0
    AWAKE = 1
    TAKEN = 2
    GONE = 3


cdef class Work:
    """What several threads can do together."""

    cdef object lend(self, Codecs codecs):
        """What a thread needs of its own, which this holds on to until no thread is at it any more."""
        raise NotImplementedError

    cdef void help(self, void* own) noexcept nogil:
        """Take part, with what was lent, until there is no more to do; for other threads, at any time."""


cdef class Helper:
    """A thread that helps with one work after the other, and ends when it had none for a second.

    To start a thread takes 50 us, to wake one that sleeps 15 to 40 us; 32 MB of batches of 1 KiB records take 800 us.
    So it is woken when there will be something to do, and stays awake for longer than it takes to prepare that.

    Attributes
    ----------
    gone : bool
        Whether it takes no more.
    ended : bool
        Whether its thread does nothing more but end.
    """

    cdef Codecs codecs
    cdef Work work
    # What it needs of its own for that.
    cdef object own
    cdef PyThread_type_lock bell
    cdef int64_t state
    cdef int64_t given
    cdef int64_t left

    def __cinit__(self):
        self.bell = PyThread_allocate_lock()
        if self.bell == NULL:
            raise MemoryError
        PyThread_acquire_lock(self.bell, NOWAIT_LOCK)

    def __init__(self, Codecs codecs not None):
        self.codecs = codecs

    def __dealloc__(self):
        if self.bell != NULL:
            PyThread_free_lock(self.bell)

    @property
    def gone(self):
        return kb_get(&self.state) == GONE

    @property
    def ended(self):
        return kb_get(&self.left) != 0

    def wake(self):
        """Have it be awake when it is given something, which may not be; nothing if it is at work, or gone."""
        if kb_turn(&self.state, IDLE, AWAKE):
            PyThread_release_lock(self.bell)

    def give(self, Work work not None):
        """Let it help with this; False if it is at other work, or gone. Nothing comes between the two."""
        cdef bint asleep
        if kb_get(&self.state) > AWAKE:
            return False
        own = work.lend(self.codecs)
        asleep = kb_turn(&self.state, IDLE, TAKEN)
        if not asleep and not kb_turn(&self.state, AWAKE, TAKEN):
            return False
        self.work = work
        self.own = own
        kb_set(&self.given, True)
        if asleep:
            PyThread_release_lock(self.bell)
        return True

    def dismiss(self):
        """Let it end, when it is through with what it has."""
        if kb_swap(&self.state, GONE) == IDLE:
            PyThread_release_lock(self.bell)

    def live(self):
        """Wait for work; what the thread runs. Only to begin and to end it needs the GIL."""
        cdef int64_t tries
        with nogil:
            while True:
                if PyThread_acquire_lock_timed(self.bell, IDLE_TIME, 0) != PY_LOCK_ACQUIRED:
                    if kb_turn(&self.state, IDLE, GONE):
                        break
                    continue
                tries = 0
                while kb_get(&self.state) == AWAKE and tries < YIELDS:
                    pass_time(&tries)
                if kb_turn(&self.state, AWAKE, IDLE):
                    continue
                if kb_get(&self.state) == GONE:
                    break
                # Who took it is giving it something.
                while not kb_swap(&self.given, False):
                    pass_time(&tries)
                (<Work><void*>self.work).help(<void*>self.own)
                if not kb_turn(&self.state, TAKEN, IDLE):
                    break
        kb_set(&self.left, True)
