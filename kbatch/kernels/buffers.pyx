"""Large buffers from a free list, which return to it when their last view is released.

The first access to a page costs more than parsing the records on it. Memory returned by an earlier table already has
its pages, so that iterating a log touches no new memory after its first tables.

A lock guards the free list, for builds of Python without the GIL. No Python code runs under it.
"""

cimport cython

from typing import NamedTuple

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.mem cimport PyMem_RawMalloc
from libc.stddef cimport size_t
from libc.string cimport memcpy, memmove

cdef extern from "pages.h":
    const size_t HUGE_PAGE "KB_HUGE_PAGE"
    void* kb_map(size_t size, size_t alignment) noexcept nogil
    void kb_unmap(void* p, size_t size) noexcept nogil
    void kb_want_huge(void* p, size_t size) noexcept nogil
    void kb_discard(char* p, size_t n) noexcept nogil


cdef enum:
    PAGE = 4096
    MIN_SIZE = 16 << 10
    # Enough for the records and the arena of a few tables of 64 MiB (`Log.tables`); memory beyond it is freed.
    MAX_POOLED_BLOCKS = 64
    MAX_POOLED_BYTES = 256 << 20

# Sizes up to this bound cannot overflow when they are rounded up.
cdef size_t MAX_SIZE = (<size_t>-1) >> 2

cdef struct Chunk:
    void* memory
    size_t size

# The free list, oldest first. The memory of `size` bytes at `memory` is owned by the entry.
cdef Chunk* _free = NULL
cdef Py_ssize_t _free_count = 0
cdef size_t _free_bytes = 0
cdef Py_ssize_t _live_count = 0
cdef size_t _live_bytes = 0
# The maximum of `_live_bytes`.
cdef size_t _peak_bytes = 0
cdef Py_ssize_t _reused = 0
cdef Py_ssize_t _fresh_count = 0
cdef cython.pymutex _lock

_free = <Chunk*>PyMem_RawMalloc(MAX_POOLED_BLOCKS * sizeof(Chunk))
if _free == NULL:
    raise MemoryError


class PoolStats(NamedTuple):
    """Contents of the free list, and allocations since the module was loaded.

    Attributes
    ----------
    free_blocks, free_bytes : int
        Chunks of memory available for reuse, and their bytes.
    live_blocks, live_bytes : int
        Chunks of memory that a `Block` owns now, and their bytes.
    reused, fresh : int
        Number of calls of `allocate` that were served from the free list, and from the operating system.
    """

    free_blocks: int
    free_bytes: int
    live_blocks: int
    live_bytes: int
    reused: int
    fresh: int


cdef size_t _rounded(size_t size) noexcept nogil:
    """Round up to one of four sizes per power of two, so that requests of nearly the same size fit each other."""
    cdef size_t step = PAGE
    if size <= MIN_SIZE:
        return MIN_SIZE
    while step * 8 < size:
        step *= 2
    if size >= HUGE_PAGE and step < HUGE_PAGE:
        step = HUGE_PAGE
    return (size + step - 1) // step * step


cdef void _forget(Py_ssize_t i) noexcept nogil:
    """Remove entry `i` from the free list; the caller now owns its memory."""
    global _free_count, _free_bytes
    _free_bytes -= _free[i].size
    _free_count -= 1
    memmove(&_free[i], &_free[i + 1], (_free_count - i) * sizeof(Chunk))


cdef void* _take(size_t minimum, size_t most, size_t* size) noexcept nogil:
    """Take the smallest free chunk of `minimum` to `most` bytes. Without such a chunk, return NULL.

    Of equal chunks it takes the most recent, which is the most likely to be in the cache.
    """
    cdef Py_ssize_t i
    cdef Py_ssize_t best = -1
    cdef void* memory
    for i in range(_free_count):
        if minimum <= _free[i].size <= most and (best < 0 or _free[i].size <= _free[best].size):
            best = i
    if best < 0:
        return NULL
    memory = _free[best].memory
    size[0] = _free[best].size
    _forget(best)
    return memory


cdef void _give_back(void* memory, size_t size) noexcept nogil:
    """Put memory on the free list, and free the oldest chunks where a bound would be exceeded."""
    global _free_count, _free_bytes
    if size > MAX_POOLED_BYTES:
        kb_unmap(memory, size)
        return
    while _free_count == MAX_POOLED_BLOCKS or _free_bytes + size > MAX_POOLED_BYTES:
        kb_unmap(_free[0].memory, _free[0].size)
        _forget(0)
    _free[_free_count].memory = memory
    _free[_free_count].size = size
    _free_count += 1
    _free_bytes += size


cdef void _settle() noexcept nogil:
    """Limit free and live memory to little more than was ever live at once.

    Otherwise requests of ever-changing sizes would fill the free list up to its bounds. The smallest sufficient chunk
    is freed, because fresh pages for a large chunk cost more. The margin allows for small chunks that were live one
    after another, not at once.
    """
    global _peak_bytes
    cdef Py_ssize_t i
    cdef Py_ssize_t best
    cdef size_t limit
    cdef size_t excess
    _peak_bytes = max(_peak_bytes, _live_bytes)
    limit = _peak_bytes + _peak_bytes // 16 + HUGE_PAGE
    while _free_count > 0 and _live_bytes + _free_bytes > limit:
        excess = _live_bytes + _free_bytes - limit
        best = 0
        for i in range(1, _free_count):
            if _free[best].size < excess:
                if _free[i].size > _free[best].size:
                    best = i
            elif excess <= _free[i].size < _free[best].size:
                best = i
        kb_unmap(_free[best].memory, _free[best].size)
        _forget(best)


cdef class Block:
    """Writable memory with the buffer protocol: one dimension, ``uint8``, `nbytes` long.

    Made only by `allocate`. Every view (``memoryview``, ``np.frombuffer``, an Arrow buffer) keeps it alive; when the
    last one is released, the memory returns to the free list. The contents are undefined until they are written.

    Attributes
    ----------
    nbytes : int
        Bytes requested: the length of the buffer.
    capacity : int
        Bytes of memory owned, at least `nbytes`.
    """

    cdef void* _memory
    cdef size_t _capacity
    cdef Py_ssize_t _views
    cdef readonly Py_ssize_t nbytes

    def __cinit__(self):
        self._memory = NULL
        self._capacity = 0
        self._views = 0
        self.nbytes = 0

    def __init__(self):
        raise TypeError("a Block is made by kbatch.kernels.buffers.allocate()")

    def __dealloc__(self):
        global _live_count, _live_bytes
        if self._memory != NULL:
            with _lock:
                _live_count -= 1
                _live_bytes -= self._capacity
                _give_back(self._memory, self._capacity)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self._memory, self.nbytes, False, flags)
        with _lock:
            self._views += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        with _lock:
            self._views -= 1

    def __len__(self):
        return self.nbytes

    @property
    def capacity(self):
        return self._capacity

    def __repr__(self):
        return f"<kbatch.kernels.buffers.Block of {self.nbytes} bytes>"


def allocate(Py_ssize_t nbytes, bint frugal=False) -> Block:
    """Return a buffer of `nbytes` bytes, from the free list if a chunk there fits.

    Parameters
    ----------
    nbytes : int
        Size of the buffer, 0 or more.
    frugal : bool
        Whether memory matters more than the time that new pages take. The buffer then reuses only a free chunk of
        nearly the same size. Without one, all free chunks are released before memory is allocated.

    Returns
    -------
    Block
        Writable and uninitialised: it may hold data of an earlier owner.

    Raises
    ------
    ValueError
        If `nbytes` is negative.
    MemoryError
        If the operating system refuses, even after the free list was emptied.

    Examples
    --------
    >>> import numpy as np
    >>> from kbatch.kernels.buffers import allocate
    >>> rows = np.frombuffer(allocate(4 * 8), dtype="<i8")
    >>> rows.shape, rows.flags.writeable
    ((4,), True)
    """
    global _live_count, _live_bytes, _reused, _fresh_count
    cdef size_t size
    cdef Block block
    if nbytes < 0:
        raise ValueError(f"a block can't have {nbytes} bytes")
    if <size_t>nbytes > MAX_SIZE:
        raise MemoryError(f"can't allocate {nbytes} bytes")
    # The object is made before the lock is taken: it may run the garbage collector, which may change the free list.
    block = Block.__new__(Block)
    size = _rounded(<size_t>nbytes)
    with _lock:
        block._memory = _take(size, size + size // 4 if frugal else 2 * size, &block._capacity)
        if block._memory != NULL:
            _reused += 1
        else:
            if frugal:
                _trim(0)
            block._memory = _map(size)
            if block._memory == NULL:
                _trim(0)
                block._memory = _map(size)
            if block._memory != NULL:
                block._capacity = size
                _fresh_count += 1
        if block._memory != NULL:
            block.nbytes = nbytes
            _live_count += 1
            _live_bytes += block._capacity
            _settle()
    if block._memory == NULL:
        raise MemoryError(f"can't allocate {nbytes} bytes")
    return block


def regrow(Block block not None, Py_ssize_t nbytes, Py_ssize_t used, bint frugal) -> Block:
    """Return a larger buffer with the first `used` bytes of `block`, which the caller no longer needs.

    If `frugal`, each page of `block` is freed after its copy. Both buffers together then need little more memory than
    one, and `block` is empty afterwards. A block with views is kept.

    Parameters
    ----------
    block : Block
    nbytes : int
        Size of the new buffer, at least `used`.
    used : int
        The number of bytes to copy, at most the size of `block`.
    frugal : bool
        As for `allocate`.

    Raises
    ------
    MemoryError
        As `allocate`; `block` is unchanged.

    Examples
    --------
    >>> from kbatch.kernels.buffers import allocate, regrow
    >>> block = allocate(4)
    >>> memoryview(block)[:] = b"abcd"
    >>> memoryview(regrow(block, 6, 3, False))[:3].tobytes()
    b'abc'
    """
    cdef Block grown
    cdef bint is_moved = frugal and block._views == 0
    cdef char* source = <char*>block._memory
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t size
    if used < 0 or used > block.nbytes or used > nbytes:
        raise ValueError(f"can't copy {used} of {block.nbytes} bytes to {nbytes}")
    if is_moved:
        # The two blocks count as one for the bounds of the free list.
        _count_live(-1, -<Py_ssize_t>block._capacity)
    try:
        grown = allocate(nbytes, frugal)
    except BaseException:
        if is_moved:
            _count_live(1, block._capacity)
        raise
    with nogil:
        while at < used:
            size = min(used - at, <Py_ssize_t>HUGE_PAGE)
            memcpy(<char*>grown._memory + at, source + at, size)
            if is_moved:
                kb_discard(source + at, size)
            at += size
    if is_moved:
        kb_unmap(block._memory, block._capacity)
        block._memory = NULL
        block.nbytes = 0
    return grown


def discard(Block block not None, Py_ssize_t start) -> None:
    """Free the pages of `block` from byte `start` on. Its size stays the same, the contents there are undefined.

    Examples
    --------
    >>> from kbatch.kernels.buffers import allocate, discard
    >>> block = allocate(1 << 20)
    >>> discard(block, 4096)
    >>> len(block)
    1048576
    """
    if start < 0:
        raise ValueError(f"start must be at least 0, got {start}")
    if block._memory != NULL and <size_t>start < block._capacity:
        with nogil:
            kb_discard(<char*>block._memory + start, block._capacity - start)


cdef void _count_live(Py_ssize_t blocks, Py_ssize_t size):
    global _live_count, _live_bytes
    with _lock:
        _live_count += blocks
        _live_bytes += size


cdef void* _map(size_t size) noexcept nogil:
    cdef void* memory
    if size < HUGE_PAGE:
        return kb_map(size, PAGE)
    memory = kb_map(size, HUGE_PAGE)
    if memory != NULL:
        kb_want_huge(memory, size)
    return memory


cdef void _trim(size_t keep) noexcept nogil:
    while _free_count > 0 and _free_bytes > keep:
        kb_unmap(_free[0].memory, _free[0].size)
        _forget(0)


def trim(Py_ssize_t keep_bytes=0) -> None:
    """Free pooled memory, least recently used first, until at most `keep_bytes` remain.

    Blocks that are in use are not touched.

    Parameters
    ----------
    keep_bytes : int, default 0
        Bytes that the free list may keep.

    Examples
    --------
    >>> from kbatch.kernels.buffers import pool_stats, trim
    >>> trim()
    >>> pool_stats().free_bytes
    0
    """
    if keep_bytes < 0:
        raise ValueError(f"keep_bytes must not be negative, got {keep_bytes}")
    with _lock:
        _trim(<size_t>keep_bytes)


def pool_stats():
    """Return the contents of the free list and the number of allocations.

    Returns
    -------
    PoolStats
        Free and live blocks and bytes, reused and fresh allocations.

    Examples
    --------
    >>> from kbatch.kernels.buffers import allocate, pool_stats
    >>> del_me = allocate(1 << 20)
    >>> pool_stats().live_bytes >= 1 << 20
    True
    """
    cdef Py_ssize_t free_count
    cdef size_t free_bytes
    cdef Py_ssize_t live_count
    cdef size_t live_bytes
    cdef Py_ssize_t reused
    cdef Py_ssize_t fresh
    with _lock:
        free_count, free_bytes = _free_count, _free_bytes
        live_count, live_bytes = _live_count, _live_bytes
        reused, fresh = _reused, _fresh_count
    return PoolStats(free_count, free_bytes, live_count, live_bytes, reused, fresh)
