"""What every benchmark needs: the fixtures that time, and the quick mode."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import pytest

from bench.corpora import Corpus, quick
from bench.peers import PEERS, Peer

T = TypeVar("T")
# A function to time, and those that take turns with it, by name.
Rotation = Callable[..., Any]
Functions = Mapping[str, Callable[[], Any]]

# Rounds: as many as fit into a second, or what is asked for; where others take turns, up to 11 if they fit into some
# seconds. Peers, which take far longer, have a few among those, and slow ones every second of these: so few that what
# follows finds caches as its own rounds have left them. After a peer the first six rounds of 4 ms take up to twice as
# long.
FEWEST_ROUNDS, MOST_ROUNDS, SECONDS = 5, 100, 1.0
ROUNDS, TURNS_SECONDS = 11, 6
PEER_ROUNDS = 5
SLOW = [peer.name for peer in PEERS if peer.slow]


@pytest.fixture
def rotation(benchmark: Any, request: pytest.FixtureRequest) -> Rotation:
    """Time a function under a stage (an arrow of the design's picture), a corpus and a contestant's name.

    Before each of its rounds `others` have one each, and who is the first of them changes; before some of its rounds
    `peers` have one each, spread evenly over the whole. So all meet the same machine, and memory as another has left
    it. The medians of all are kept; the report finds its way by ``extra_info``. `check` is called with
    the first result of each peer. Returns what the function returned, so that the benchmark can check it. The clock of
    all is that of a marker ``benchmark(timer=...)``, or CPU time.
    """
    marker = request.node.get_closest_marker("benchmark")
    clock: Callable[[], float] = marker.kwargs.get("timer", time.process_time) if marker else time.process_time

    def run(
        stage: str,
        corpus: Corpus,
        who: str,
        function: Callable[[], T],
        others: Functions | None = None,
        peers: Functions | None = None,
        check: Callable[[Any], None] = lambda result: None,
        seconds_wanted: float = SECONDS,
    ) -> T:
        others, peers = others or {}, peers or {}
        describe(benchmark, stage, corpus, who)
        seconds: dict[str, list[float]] = {name: [] for name in (*peers, *others)}
        order = list(others)
        # What the last round returned, until the next one: pytest-benchmark itself would hold on to it for longer.
        results: list[T] = []
        rounds = 1
        numbers = itertools.count()

        def timed(name: str, other: Callable[[], Any]) -> Any:
            start = clock()
            result = other()
            seconds[name].append(clock() - start)
            return result

        def guests(number: int) -> list[str]:
            """Tell the peers whose turn it is too."""
            done, over = divmod(number * PEER_ROUNDS, rounds)
            return [name for name in peers if over < PEER_ROUNDS and (name not in SLOW or done % 2 == 0)]

        def turn() -> None:
            number = next(numbers)
            results.clear()
            gc.disable()
            try:
                for name in guests(number):
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
            # Warms up, and tells how long a round is.
            start = clock()
            for name in others:
                timed(name, others[name])
                seconds[name].clear()
            results.append(function())
            lasts = clock() - start
            rounds = max(FEWEST_ROUNDS, min(round(MOST_ROUNDS * seconds_wanted), round(seconds_wanted / lasts)))
            if others:
                rounds = max(rounds, min(ROUNDS, round(TURNS_SECONDS / lasts)))
        benchmark.pedantic(lambda: results.append(function()), setup=turn, rounds=rounds)
        benchmark.extra_info.update(others={name: statistics.median(found) for name, found in seconds.items()})
        return results.pop()

    return run


def describe(benchmark: Any, stage: str, corpus: Corpus, who: str) -> None:
    """Say what a benchmark measures, where the report looks for it."""
    benchmark.group = f"{stage}: {corpus.name}"
    benchmark.extra_info.update(
        stage=stage,
        corpus=corpus.name,
        who=who,
        records=corpus.sums.records,
        batches=corpus.batches,
        payload_bytes=corpus.payload_bytes,
        stored_bytes=len(corpus.data),
    )


def beside(function: Callable[[Peer], Any], *, slow: bool = True) -> Functions:
    """Give what each peer does as a function of its own; a slow peer's only if `slow`."""
    return {peer.name: partial(function, peer) for peer in PEERS if slow or not peer.slow}


@pytest.fixture(scope="session")
def arrow_columns() -> Sequence[str]:
    """The columns that every contestant builds; also what pyarrow imports at first use is imported here, untimed."""
    pa = pytest.importorskip("pyarrow")
    pa.array([b"warm"], pa.binary()).to_pylist()
    return ("offset", "timestamp", "key", "value")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what is compared one after the other, stage by stage and corpus by corpus: machines change their mind."""
    order: dict[tuple[str, str], int] = {}

    def place(item: pytest.Item) -> int:
        callspec = getattr(item, "callspec", None)
        name = callspec.params.get("name", "") if callspec else ""
        return order.setdefault((item.path.name, name), len(order))

    items.sort(key=place)
