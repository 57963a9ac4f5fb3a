"""Runs the tasks of a scan in threads: ahead of the consumer, in order, in bounded memory.

A thread never waits for the consumer. It advances a task by one step, and the consumer asks for the next one when it
takes the result. So a consumer that stops leaves nothing behind that could block the process.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["at_end", "map_ahead", "sliced_rows", "steps_ahead"]

WorkItemT = TypeVar("WorkItemT")
StepT = TypeVar("StepT")

_END = object()


def map_ahead(
    pool: ThreadPoolExecutor, function: Callable[[WorkItemT], StepT], items: Iterable[WorkItemT], count: int
) -> Iterator[StepT]:
    """Yield the results of a function in the order of the items; `count` items are submitted ahead."""
    waiting = iter(items)
    ahead = deque(pool.submit(function, item) for item in islice(waiting, count))
    try:
        while ahead:
            found = ahead.popleft().result()
            ahead.extend(pool.submit(function, item) for item in islice(waiting, 1))
            yield found
            del found
    finally:
        for future in ahead:
            future.cancel()


def steps_ahead(pool: ThreadPoolExecutor, tasks: Iterable[Iterator[StepT]], count: int) -> Iterator[StepT]:
    """Yield what iterators yield, one iterator after the other.

    The first `count` unfinished iterators are advanced by one step each before the consumer needs it, so at most
    `count` results are held. At first only one is advanced, since a consumer may need few results. An error is raised
    when the consumer reaches its step.
    """
    waiting = iter(tasks)
    begun = 1
    window: deque[tuple[Iterator[StepT], Future[object]]] = deque()
    try:
        while True:
            for task in islice(waiting, max(0, min(count, begun) - len(window))):
                window.append((task, pool.submit(next, task, _END)))
            if not window:
                return
            task, future = window.popleft()
            found = future.result()
            del future
            if found is _END:
                continue
            begun += 1
            window.appendleft((task, pool.submit(next, task, _END)))
            yield cast(StepT, found)
            del found
    finally:
        for _, future in window:
            future.cancel()


@contextlib.contextmanager
def at_end(report: Callable[[], None]) -> Iterator[None]:
    """Call `report` at the end of a generator, also if its consumer needs no more, but not after an error."""
    try:
        yield
    except GeneratorExit:
        report()
        raise
    report()


def sliced_rows(
    batches: Generator[pa.RecordBatch, None, None], start: int, length: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield a slice of the rows of batches, and end the read with it."""
    remaining = length
    with contextlib.closing(batches):
        while remaining is None or remaining > 0:
            batch = next(batches, None)
            if batch is None:
                return
            skipped = min(start, batch.num_rows)
            start -= skipped
            batch = batch.slice(skipped, remaining)
            if batch.num_rows:
                if remaining is not None:
                    remaining -= batch.num_rows
                yield batch
            del batch
