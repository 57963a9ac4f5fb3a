"""The threads that decode: how many, and what each needs of its own."""

from __future__ import annotations

import contextlib
import os
from _thread import start_new_thread
from operator import index

from kbatch.codecs import new_codecs, own_codecs
from kbatch.kernels.frames import Codecs
from kbatch.kernels.pipeline import Pipeline

__all__ = ["run", "thread_count"]

# More never pay, and a number that comes from elsewhere should not bring a machine down.
_MOST = 256

# Of threads that have ended: making contexts costs more than a small batch.
_spare: list[Codecs] = []


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


def _spare_codecs() -> Codecs:
    try:
        return _spare.pop()
    except IndexError:
        return new_codecs()


def run(pipeline: Pipeline, threads: int) -> None:
    """Run a pipeline in the calling thread and `threads` - 1 others, none of which is at it any more then."""
    if threads <= 1:
        pipeline.work_alone(own_codecs())
        return
    lent: list[Codecs] = []
    try:
        # The system may have no more threads to give: those that run do it.
        with contextlib.suppress(RuntimeError):
            for _ in range(threads - 1):
                lent.append(_spare_codecs())
                start_new_thread(pipeline.help, (lent[-1],))
        pipeline.work(own_codecs())
    except BaseException:
        # Whatever ends this - Ctrl-C, no memory - at any point of it.
        pipeline.abandon()
        raise
    _spare.extend(lent)
