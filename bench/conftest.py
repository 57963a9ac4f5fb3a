"""The fixture that times contestants in turns, and the order of benchmarks."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import pytest

from bench.corpora import Corpus, quick
from bench.peers import PEERS, Peer
from bench.results import KBATCH

T = TypeVar("T")
Contest = Callable[..., Any]
Functions = Mapping[str, Callable[[], Any]]

# kbatch runs as many rounds as fit into a second. Peers take far longer and run five rounds among these, slow peers
# three. Rounds of 4 ms take up to twice as long directly after a peer; with only a few of these, the median does not
# change.
FEWEST_ROUNDS, MOST_ROUNDS, SECONDS = 11, 100, 1.0
PEER_ROUNDS = 5
SLOW = [peer.name for peer in PEERS if peer.slow]


@pytest.fixture
def contest(benchmark: Any, request: pytest.FixtureRequest) -> Contest:
    """Time a function and its contestants in turns, so that all run under the same conditions.

    Before each round of the function, each of `others` runs one round, in changing order; before some rounds, spread
    evenly, each of `peers` runs one. `check` is called with the first result of each peer. The report reads the medians
    from ``extra_info``. Times are CPU time, unless a marker ``benchmark(timer=...)`` sets another clock. Returns the
    last result of the function.
    """
    marker = request.node.get_closest_marker("benchmark")
    clock: Callable[[], float] = marker.kwargs.get("timer", time.process_time) if marker else time.process_time

    def run(
        stage: str,
        corpus: Corpus,
        function: Callable[[], T],
        *,
        who: str = KBATCH,
        others: Functions | None = None,
        peers: Functions | None = None,
        check: Callable[[Any], None] = lambda result: None,
        seconds: float = SECONDS,
    ) -> T:
        others, peers = others or {}, peers or {}
        describe(benchmark, stage, corpus, who)
        times: dict[str, list[float]] = {name: [] for name in (*peers, *others)}
        order = list(others)
        # Keeps only the result of the last round; pytest-benchmark itself would keep results for longer.
        results: list[T] = []
        rounds = 1
        numbers = itertools.count()

        def timed(name: str, other: Callable[[], Any]) -> Any:
            start = clock()
            result = other()
            times[name].append(clock() - start)
            return result

        def peers_of_round(number: int) -> list[str]:
            turn, remainder = divmod(number * PEER_ROUNDS, rounds)
            return [name for name in peers if remainder < PEER_ROUNDS and (name not in SLOW or turn % 2 == 0)]

        def before_round() -> None:
            number = next(numbers)
            results.clear()
            gc.disable()
            try:
                for name in peers_of_round(number):
                    result = timed(name, peers[name])
                    if number == 0:
                        check(result)
                    del result
                for name in order:
                    timed(name, others[name])
            finally:
                gc.enable()
            order[:] = order[1:] + order[:1]

        if not quick():
            # Warm up, and measure the time of a round.
            start = time.perf_counter()
            for other in others.values():
                other()
            results.append(function())
            elapsed = time.perf_counter() - start
            rounds = max(FEWEST_ROUNDS, min(round(MOST_ROUNDS * seconds), round(seconds / elapsed)))
        benchmark.pedantic(lambda: results.append(function()), setup=before_round, rounds=rounds)
        benchmark.extra_info.update(others={name: statistics.median(found) for name, found in times.items()})
        return results.pop()

    return run


def describe(benchmark: Any, stage: str, corpus: Corpus, who: str) -> None:
    """Store the stage, corpus and contestant of a benchmark, which the report reads."""
    benchmark.group = f"{stage}: {corpus.name}"
    benchmark.extra_info.update(
        stage=stage,
        corpus=corpus.name,
        who=who,
        records=corpus.sums.records,
        payload_bytes=corpus.payload_bytes,
    )


def each_peer(function: Callable[[Peer], Any], *, slow: bool = True) -> Functions:
    """Bind `function` to each peer; slow peers are omitted unless `slow`."""
    return {peer.name: partial(function, peer) for peer in PEERS if slow or not peer.slow}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the contestants of a stage and corpus directly after each other, because the speed of machines changes."""
    order: dict[tuple[str, str], int] = {}

    def place(item: pytest.Item) -> int:
        callspec = getattr(item, "callspec", None)
        name = callspec.params.get("name", "") if callspec else ""
        return order.setdefault((item.path.name, name), len(order))

    items.sort(key=place)
