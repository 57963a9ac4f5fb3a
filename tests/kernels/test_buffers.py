"""The free list of big buffers (`kbatch.kernels.buffers`)."""

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

from kbatch.kernels.buffers import Block, allocate, pool_stats, trim

HUGE_PAGE = 2 << 20


@pytest.fixture(autouse=True)
def empty_pool():
    gc.collect()
    trim()
    yield
    gc.collect()
    trim()


def address(view):
    return np.frombuffer(view, np.uint8).ctypes.data


@pytest.mark.parametrize("nbytes", [1, 4096, 100_000, HUGE_PAGE - 1, HUGE_PAGE, 5_000_000])
def test_memory_of_a_dead_block_is_used_again(nbytes):
    block = allocate(nbytes)
    where = address(block)
    del block
    assert address(allocate(nbytes)) == where
    assert pool_stats().free_blocks == 1


def test_reuse_is_counted():
    before = pool_stats()
    del_me = allocate(1 << 20)
    del del_me
    again = allocate(1 << 20)
    after = pool_stats()
    assert (after.fresh - before.fresh, after.reused - before.reused) == (1, 1)
    assert after.live_blocks - before.live_blocks == 1
    assert after.live_bytes - before.live_bytes == again.capacity


@pytest.mark.parametrize(
    "make_view",
    [
        lambda block: memoryview(block)[10:20],
        lambda block: np.frombuffer(block, "<i8")[1:],
        lambda block: np.asarray(memoryview(block))[5:].view(np.uint8),
        lambda block: np.asarray(memoryview(block)[:64].toreadonly())[::2],
    ],
    ids=["memoryview", "frombuffer", "asarray", "readonly"],
)
def test_memory_is_not_handed_out_while_a_view_of_it_lives(make_view):
    block = allocate(1 << 20)
    np.frombuffer(block, np.uint8)[:] = 7
    start = address(block)
    view = make_view(block)
    expected = bytes(view)
    del block
    gc.collect()
    others = [allocate(1 << 20) for _ in range(5)]
    for other in others:
        np.frombuffer(other, np.uint8)[:] = 0
        assert abs(address(other) - start) >= 1 << 20
    assert bytes(view) == expected
    del view, others, other
    gc.collect()
    blocks = [allocate(1 << 20) for _ in range(6)]
    assert start in {address(block) for block in blocks}


def test_memory_goes_back_with_the_last_view_only():
    block = allocate(1 << 20)
    first = np.frombuffer(block, np.uint8)
    second = first[100:]
    del block, first
    assert pool_stats().free_blocks == 0
    del second
    assert pool_stats().free_blocks == 1


def test_nearly_the_same_size_fits():
    block = allocate(1_000_000)
    where = address(block)
    del block
    assert address(allocate(1_010_000)) == where


def test_best_fit_is_taken_and_never_more_than_twice_the_need():
    blocks = {size: allocate(size) for size in (1 << 20, 3 << 19, 4 << 20)}
    where = {size: address(block) for size, block in blocks.items()}
    del blocks
    assert address(allocate(3 << 19)) == where[3 << 19]
    small = allocate(64 << 10)
    assert small.capacity <= 128 << 10
    assert address(small) not in where.values()


def test_sizes_are_rounded_by_a_quarter_at_most():
    for nbytes in (20_000, 70_001, 1_000_001, 16 * HUGE_PAGE + 1, 100_000_001):
        trim()
        assert nbytes <= allocate(nbytes).capacity <= nbytes * 1.25 + 4096


def test_big_blocks_are_aligned_to_huge_pages():
    assert address(allocate(HUGE_PAGE)) % HUGE_PAGE == 0
    assert address(allocate(3 * HUGE_PAGE + 1)) % HUGE_PAGE == 0


def test_buffer_is_writable_bytes_of_exactly_the_size_asked_for():
    block = allocate(56 * 3)
    view = memoryview(block)
    assert (view.format, view.ndim, view.nbytes, view.readonly, view.itemsize) == ("B", 1, 168, False, 1)
    assert len(block) == block.nbytes == 168
    rows = np.frombuffer(block, np.dtype([("a", "<i8"), ("b", "V48")]))
    assert rows.shape == (3,)
    rows["a"] = [1, 2, 3]
    assert view[0] == 1
    assert view[112] == 3


def test_empty_block_has_an_empty_buffer():
    assert memoryview(allocate(0)).nbytes == 0


def test_pool_is_bounded_in_bytes_and_blocks():
    del_me = [allocate(48 << 20) for _ in range(8)]
    del del_me
    assert pool_stats().free_bytes <= 256 << 20
    assert pool_stats().free_blocks == 5
    trim()
    del_me = [allocate(4096) for _ in range(200)]
    del del_me
    assert pool_stats().free_blocks == 64
    trim()
    del_me = allocate(300 << 20)  # bigger than the pool may hold: it is really freed
    del del_me
    assert pool_stats().free_blocks == 0


def test_trim_frees_the_oldest_first_and_leaves_live_blocks_alone():
    live = allocate(1 << 20)
    blocks = [allocate(n << 20) for n in (1, 2, 4)]
    for block in blocks:
        np.frombuffer(block, np.uint8)[:] = 1
    np.frombuffer(live, np.uint8)[:] = 9
    while blocks:
        block = blocks.pop(0)
    del block
    assert pool_stats().free_bytes == 7 << 20
    trim(6 << 20)
    assert (pool_stats().free_blocks, pool_stats().free_bytes) == (2, 6 << 20)
    trim()
    assert (pool_stats().free_blocks, pool_stats().free_bytes) == (0, 0)
    assert np.frombuffer(live, np.uint8).min() == 9


def test_refuses_what_can_not_be():
    with pytest.raises(ValueError, match="-1 bytes"):
        allocate(-1)
    with pytest.raises(ValueError, match="-1"):
        trim(-1)
    with pytest.raises(TypeError, match="allocate"):
        Block()
    before = pool_stats()
    with pytest.raises(MemoryError):
        allocate(2**63 - 1)
    with pytest.raises(MemoryError):
        allocate(1 << 60)
    after = pool_stats()
    assert (before.live_blocks, before.live_bytes) == (after.live_blocks, after.live_bytes)


def test_threads_never_share_memory():
    failures = []
    trim()

    def work(mark):
        for i in range(300):
            view = np.frombuffer(allocate(50_000 + 1000 * (i % 7)), np.uint8)
            view[:] = mark
            kept = view[::97].copy()
            if not (view == mark).all() or not (kept == mark).all():
                failures.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    # A thread has two at a time at most: the next one is made before the one before it goes.
    assert pool_stats().free_blocks <= 12


SIZES_THAT_ALWAYS_DIFFER = """
from kbatch.kernels.buffers import allocate, pool_stats

kept, peak = [None, None], 0
for turn in range(40):
    kept[turn % 2] = None
    kept[turn % 2] = last = allocate((8 << 20) + turn * (700 << 10))
    stats = pool_stats()
    peak = max(peak, stats.live_bytes)
    most = peak + peak // 16 + (2 << 20)
    assert stats.live_bytes + stats.free_bytes <= most, (turn, stats)
# What went to make room is the smallest that is enough: the large ones are there to be used again.
size = last.nbytes
del kept, last
again = allocate(size)
assert pool_stats().fresh == stats.fresh, (stats, pool_stats())
"""


def test_free_memory_and_live_come_to_what_was_live_at_once():
    # In a process of its own: the most that was ever live is the process's.
    subprocess.run([sys.executable, "-c", SIZES_THAT_ALWAYS_DIFFER], check=True)
