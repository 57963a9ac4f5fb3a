"""Two processes that do the same at the same time, each with half of a corpus: what two workers get that share nothing.

No number of threads is faster than that on a machine whose processors share memory, caches and power.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import crc32c
import numpy as np

import kbatch
from bench.corpora import Corpus, corpus, default_size

__all__ = ["WORKS", "Pair", "clock"]

READY, GO, DONE, FLAGS = 0, 1, 2, 3
# Seconds by the clock that were spent on getting two processes to begin together.
_waited = 0.0


def clock() -> float:
    """Tell the time without what passes until both processes of a `Pair` are about to begin."""
    return time.perf_counter() - _waited


def _copy(data: bytes) -> Callable[[], object]:
    source = np.frombuffer(data, np.uint8)
    target = np.empty_like(source)
    return lambda: np.copyto(target, source)


# How to get ready for something, which gives what is timed.
WORKS: dict[str, Callable[[bytes], Callable[[], object]]] = {
    "decode": lambda data: lambda: kbatch.decode(data, threads=1),
    "memcpy": _copy,
    "CRC-32C": lambda data: lambda: crc32c.crc32c(data),
}


def half(name: str) -> Corpus:
    """Return a corpus of half the usual size."""
    return corpus(name, default_size() // 2)


def _serve(orders: Connection, flags: Any) -> None:
    """Do what the other process asks for: get ready for something, or do it."""
    gc.disable()
    work: Callable[[], object] = lambda: None  # noqa: E731
    while (order := orders.recv()) is not None:
        if order:
            name, what = order
            work = WORKS[what](half(name).data)
            work()
            orders.send(True)
            continue
        work()
        flags[READY] = 1
        while not flags[GO]:
            pass
        result = work()
        flags[DONE] = 1
        del result


class Pair:
    """This process and one other."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._flags = context.RawArray("b", FLAGS)
        self._orders, theirs = context.Pipe()
        self._other = context.Process(target=_serve, args=(theirs, self._flags), daemon=True)
        self._other.start()

    def close(self) -> None:
        """End the other process."""
        self._orders.send(None)
        self._other.join()

    def prepare(self, name: str, what: str) -> tuple[Callable[[], object], Callable[[], object]]:
        """Return what does one of `WORKS` with half of a corpus here, and what does it in both processes at once.

        To be timed by `clock`: each does it once before, so that the memory and the caches of a process that has
        waited are no colder than those of the other. The second ends when both have.
        """
        self._orders.send((name, what))
        work = WORKS[what](half(name).data)
        self._orders.recv()

        def alone() -> object:
            global _waited  # noqa: PLW0603
            start = time.perf_counter()
            work()
            _waited += time.perf_counter() - start
            return work()

        def both() -> object:
            global _waited  # noqa: PLW0603
            start = time.perf_counter()
            self._flags[:] = bytes(FLAGS)
            self._orders.send(())
            work()
            while not self._flags[READY]:
                pass
            _waited += time.perf_counter() - start
            self._flags[GO] = 1
            result = work()
            while not self._flags[DONE]:
                pass
            return result

        return alone, both
