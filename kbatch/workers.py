"""The threads that decode: how many, and what each needs of its own."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from _thread import start_new_thread
from operator import index

from kbatch.codecs import new_codecs, own_codecs
from kbatch.kernels.helper import Helper
from kbatch.kernels.pipeline import Pipeline

__all__ = ["run", "thread_count", "wake"]

# More never pay, and a number that comes from elsewhere should not bring a machine down.
_MOST = 256

# How long a fork waits for threads to end, in seconds: those that wait for work take a fraction of a millisecond.
_PATIENCE = 0.02

# They wait for a second after the call that they were started for.
_helpers: list[Helper] = []


def thread_count(threads: int) -> int:
    """Return how many threads are meant: 0 is as many as there are processors that this process may use.

    Raises
    ------
    TypeError, ValueError
        If it is no integer, or negative.
    """
    try:
        count = index(threads)
    except TypeError:
        raise TypeError(f"threads must be an integer, got {threads!r}") from None
    if count < 0:
        raise ValueError(f"threads must be 0 (as many as there are processors) or more, got {count}")
    return min(count or _processors(), _MOST)


def _processors() -> int:
    usable = getattr(os, "process_cpu_count", None)
    if usable is not None:
        return usable() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def _lend(pipeline: Pipeline) -> None:
    """Have one more thread help: one that waits, or a new one."""
    if any(helper.give(pipeline) for helper in _helpers):
        return
    helper = Helper(new_codecs())
    helper.give(pipeline)
    start_new_thread(helper.live, ())
    _helpers[:] = [other for other in _helpers if not other.gone] + [helper]


def wake(threads: int) -> None:
    """Wake those that will help with the calling thread's next pipeline, which takes as long as to prepare that one."""
    for helper in _helpers[: threads - 1]:
        helper.wake()


def run(pipeline: Pipeline, threads: int) -> None:
    """Run a pipeline in the calling thread and `threads` - 1 others, none of which is at it any more then."""
    if threads <= 1:
        pipeline.work_alone(own_codecs())
        return
    try:
        # The system may have no more threads to give: those that run do it.
        with contextlib.suppress(RuntimeError):
            for _ in range(threads - 1):
                _lend(pipeline)
        pipeline.work(own_codecs())
    except BaseException:
        # Whatever ends this - Ctrl-C, no memory - at any point of it.
        pipeline.abandon()
        raise


def _dismiss() -> None:
    """Let the threads that wait end."""
    for helper in _helpers:
        helper.dismiss()
    _helpers.clear()


def _dismiss_all() -> None:
    """Wait, too, until they have ended: Python 3.12 and later warn whoever forks while there are other threads."""
    leaving = list(_helpers)
    _dismiss()
    deadline = time.monotonic() + _PATIENCE
    while leaving and time.monotonic() < deadline:
        # They need the GIL to end. Once more when all of them have had it, for the system to be through with them.
        done = all(helper.ended for helper in leaving)
        time.sleep(1e-4)
        if done:
            break


atexit.register(_dismiss)
if hasattr(os, "register_at_fork"):
    # A child has none of them.
    os.register_at_fork(before=_dismiss_all, after_in_child=_helpers.clear)
