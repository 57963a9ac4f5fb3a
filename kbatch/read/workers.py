"""The threads that decode: how many, and the executor that runs them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from operator import index

import numpy as np

from kbatch.batches.codecs import own_codecs
from kbatch.errors import Fault, fault_status
from kbatch.kernels.batch_decoder import Outcome
from kbatch.kernels.pipeline import Pipeline
from kbatch.read.refusals import Refusals
from kbatch.records.loss_list import LossList

__all__ = ["run_pipeline", "run_skipping", "thread_count"]

# More threads are never faster, and a huge number from a configuration must not exhaust the machine.
_MAX_THREADS = 256

# The maximum time, in seconds, that a fork waits for threads to end; idle threads end within a millisecond.
_FORK_TIMEOUT = 0.02

# The maximum number of bad batches that a pipeline passes over before it returns.
_MAX_SKIPPED = 1024
# The status of a batch by its fault, of which a reason has seven bits.
_STATUSES = bytes([0, *(fault_status(fault) for fault in Fault if fault != Fault.NONE)]).ljust(128, b"\0")


class _Pool:
    """An executor and the threads that it has started."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.threads: list[threading.Thread] = []
        self.executor = ThreadPoolExecutor(size, "kbatch", lambda: self.threads.append(threading.current_thread()))

    def end(self, timeout: float) -> None:
        """Let the threads end, busy ones after their work; wait at most `timeout` seconds for that."""
        self.executor.shutdown(wait=False)
        deadline = time.monotonic() + timeout
        for thread in self.threads:
            thread.join(max(deadline - time.monotonic(), 0))


_pool: _Pool | None = None


def thread_count(threads: int) -> int:
    """Return the number of threads: for 0, the number of processors that this process may use.

    Raises
    ------
    TypeError, ValueError
        If the number is not an integer, or negative.
    """
    try:
        count = index(threads)
    except TypeError:
        raise TypeError(f"threads must be an integer, got {threads!r}") from None
    if count < 0:
        raise ValueError(f"threads must be 0 (the number of processors) or more, got {count}")
    return min(count or _processors(), _MAX_THREADS)


def _processors() -> int:
    usable = getattr(os, "process_cpu_count", None)
    if usable is not None:
        return usable() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def run_pipeline(pipeline: Pipeline, threads: int) -> Outcome:
    """Run a pipeline in the calling thread and `threads` - 1 others; when it returns, all have finished."""
    if threads <= 1:
        return pipeline.run(own_codecs())
    try:
        # If the system cannot start more threads, or the interpreter exits, the running threads do the work.
        with contextlib.suppress(RuntimeError):
            executor = _executor(threads - 1)
            for _ in range(threads - 1):
                executor.submit(_help, pipeline)
        return pipeline.run_shared(own_codecs())
    except BaseException:
        # Ctrl-C and memory errors may end the call at any point.
        pipeline.abandon()
        raise


def run_skipping(pipeline: Pipeline, losses: LossList, refusals: Refusals | None) -> tuple[Outcome, int]:
    """Run a pipeline that passes over bad batches whose length is right, and add them to `losses`.

    `refusals` may be None if no batch is compressed. The second result is the last good batch, -1 if there is none.
    """
    rows = np.empty((_MAX_SKIPPED, 6), np.int64)
    outcome, count, last_good = pipeline.run_skipping(own_codecs(), rows, _STATUSES, refusals)
    losses._append_rows(rows[:count])
    return outcome, last_good


def _help(pipeline: Pipeline) -> None:
    pipeline.help(own_codecs())


def _executor(count: int) -> ThreadPoolExecutor:
    """Return an executor of at least `count` threads, which are kept for the next call."""
    global _pool
    pool = _pool
    if pool is None or pool.size < count:
        _pool = _Pool(max(count, _processors()))
        if pool is not None:
            pool.end(0)
        pool = _pool
    return pool.executor


def _before_fork() -> None:
    """End the threads: a child process does not inherit them, and Python 3.12 and later warn of a fork with threads."""
    global _pool
    if _pool is not None:
        pool, _pool = _pool, None
        pool.end(_FORK_TIMEOUT)


def _after_fork() -> None:
    """Forget the pool that another thread made between `_before_fork` and the fork."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
