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
from bench.corpora import corpus, default_size

__all__ = ["WORKS", "Pair", "clock"]

READY, DONE = 0, 1
# Seconds by the clock that were no work of a `Pair`, but getting ready for it.
_waited = 0.0


def clock() -> float:
    """Tell the time without what passes until the processes of a `Pair` begin."""
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


def _serve(orders: Connection, flags: Any, me: int) -> None:
    """Do what is asked for: get ready for something; or do it, with the other process or not, and tell the seconds."""
    gc.disable()
    work: Callable[[], object] = lambda: None  # noqa: E731
    while (order := orders.recv()) is not None:
        if isinstance(order, tuple):
            name, what = order
            work = WORKS[what](corpus(name, default_size() // 2).data)
            work()
            orders.send(0.0)
            continue
        # As warm as the other one.
        work()
        if order:
            _meet(flags, READY, me)
        start = time.perf_counter()
        result = work()
        if order:
            _meet(flags, DONE, me)
        orders.send(time.perf_counter() - start)
        del result


def _meet(flags: Any, at: int, me: int) -> None:
    flags[2 * at + me] = 1
    while not flags[2 * at + 1 - me]:
        pass


class Pair:
    """Two processes besides this one."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._flags = context.RawArray("b", 4)
        self._orders: list[Connection] = []
        self._processes = []
        for me in (0, 1):
            ours, theirs = context.Pipe()
            self._orders.append(ours)
            self._processes.append(context.Process(target=_serve, args=(theirs, self._flags, me), daemon=True))
            self._processes[me].start()

    def close(self) -> None:
        """End them."""
        for orders in self._orders:
            orders.send(None)
        for process in self._processes:
            process.join()

    def prepare(self, name: str, what: str) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return what has one process do one of `WORKS` with half of a corpus, and what has both do it at once.

        To be timed by `clock`. Each does it once before, so that caches are as warm as those of who works all the time;
        the second ends when both have ended.
        """
        self._ask(self._orders, (name, what))
        return lambda: self._ask(self._orders[:1], False), lambda: self._ask(self._orders, True)

    def _ask(self, asked: list[Connection], order: object) -> None:
        global _waited
        start = time.perf_counter()
        self._flags[:] = bytes(4)
        for orders in asked:
            orders.send(order)
        seconds = max([orders.recv() for orders in asked])
        _waited += time.perf_counter() - start - seconds
