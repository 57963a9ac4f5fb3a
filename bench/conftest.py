"""What every benchmark needs: the fixtures that time, and the quick mode."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

from bench.corpora import Corpus, quick
from bench.peers import PEERS

T = TypeVar("T")
Measure = Callable[[str, Corpus, str, Callable[[], T]], T]
InTurns = Callable[[str, Corpus, str, Callable[[], T], str, Callable[[], Any]], T]
Rotation = Callable[[str, Corpus, str, Callable[[], T], Mapping[str, Callable[[], Any]]], T]

# Rounds: of what is measured in turns as many as fit into some seconds, at most 11; of what is measured by itself as
# many as fit into half a second.
ROUNDS, TURNS_SECONDS = 11, 6
FEWEST_ROUNDS, MOST_ROUNDS, SECONDS = 5, 100, 0.5


@pytest.fixture
def measure(rotation: Rotation[Any]) -> Measure[Any]:
    """Time a function under a stage (an arrow of the design's picture), a corpus and a contestant's name.

    Returns what the function returned, so that the benchmark can check it. The report finds its way by ``extra_info``.
    """

    def run(stage: str, corpus: Corpus, who: str, function: Callable[[], T]) -> T:
        return rotation(stage, corpus, who, function, {})

    return run


@pytest.fixture
def rotation(benchmark: Any, request: pytest.FixtureRequest) -> Rotation[Any]:
    """Time a function as `measure` does, but before each of its rounds others, whose medians are kept beside it.

    All then meet the same machine, and the memory as another one has left it. Who goes first changes. The clock of
    all is that of a marker ``benchmark(timer=...)``, or CPU time.
    """
    marker = request.node.get_closest_marker("benchmark")
    wanted: dict[str, Any] = dict(marker.kwargs) if marker else {}
    clock: Callable[[], float] = wanted.get("timer", time.process_time)
    fewest: int = wanted.get("min_rounds", FEWEST_ROUNDS)

    def run(
        stage: str, corpus: Corpus, who: str, function: Callable[[], T], others: Mapping[str, Callable[[], Any]]
    ) -> T:
        describe(benchmark, stage, corpus, who)
        seconds: dict[str, list[float]] = {name: [] for name in others}
        order = list(others)
        # What the last round returned, until the next one: pytest-benchmark itself would hold on to it for longer.
        results: list[T] = []

        def turn() -> None:
            results.clear()
            gc.disable()
            try:
                for name in order:
                    start = clock()
                    result = others[name]()
                    seconds[name].append(clock() - start)
                    del result
            finally:
                gc.enable()
            order[:] = order[1:] + order[:1]

        if quick():
            rounds = 1
        else:
            # Warms up, and tells how long a round is.
            start = clock()
            turn()
            for found in seconds.values():
                found.clear()
            results.append(function())
            whole, most = (TURNS_SECONDS, ROUNDS) if others else (SECONDS, MOST_ROUNDS)
            rounds = max(fewest, min(most, round(whole / (clock() - start))))
        benchmark.pedantic(lambda: results.append(function()), setup=turn, rounds=rounds)
        benchmark.extra_info.update(others={name: statistics.median(found) for name, found in seconds.items()})
        return results.pop()

    return run


@pytest.fixture
def in_turns(rotation: Rotation[Any]) -> InTurns[Any]:
    """Time a function in turns with one other."""

    def run(
        stage: str, corpus: Corpus, who: str, function: Callable[[], T], other: str, before: Callable[[], Any]
    ) -> T:
        return rotation(stage, corpus, who, function, {other: before})

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


def contests(names: Sequence[str], slow_names: Sequence[str]) -> list[Any]:
    """Pair corpora with peers, as parameters ``name`` and ``peer``; slow peers only get some of the corpora."""
    rounds = {False: pytest.mark.benchmark(min_rounds=FEWEST_ROUNDS), True: pytest.mark.benchmark(min_rounds=2)}
    return [
        pytest.param(name, peer, id=f"{name}-{peer.name}", marks=rounds[peer.slow])
        for name in names
        for peer in PEERS
        if not peer.slow or name in slow_names
    ]


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
