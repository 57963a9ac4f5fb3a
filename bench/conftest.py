"""What every benchmark needs: the fixture that times, and the quick mode."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from bench.corpora import Corpus, quick
from bench.peers import PEERS

T = TypeVar("T")
Measure = Callable[[str, Corpus, str, Callable[[], T]], T]
InTurns = Callable[[str, Corpus, str, Callable[[], T], str, Callable[[], Any]], T]

# Rounds of what is measured in turns.
ROUNDS = 11


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Run each benchmark once and untimed in quick mode; what it checks is checked all the same."""
    if quick():
        config.option.benchmark_disable = True


@pytest.fixture
def measure(benchmark: Any) -> Measure[Any]:
    """Time a function under a stage (an arrow of the design's picture), a corpus and a contestant's name.

    Returns what the function returned, so that the benchmark can check it. The report finds its way by ``extra_info``.
    """

    def run(stage: str, corpus: Corpus, who: str, function: Callable[[], T]) -> T:
        describe(benchmark, stage, corpus, who)
        return benchmark(function)

    return run


@pytest.fixture
def in_turns(benchmark: Any) -> InTurns[Any]:
    """Time a function as `measure` does, but before each of its rounds another, whose median is kept beside it.

    Both then meet the same machine, and the memory as the other has left it.
    """

    def run(
        stage: str, corpus: Corpus, who: str, function: Callable[[], T], other: str, before: Callable[[], Any]
    ) -> T:
        describe(benchmark, stage, corpus, who)
        seconds: list[float] = []

        def setup() -> None:
            start = time.process_time()
            result = before()
            seconds.append(time.process_time() - start)
            del result

        setup()
        result = benchmark.pedantic(function, setup=setup, rounds=1 if quick() else ROUNDS, warmup_rounds=1)
        benchmark.extra_info.update(other=other, other_seconds=statistics.median(seconds[1:]))
        return result

    return run


def describe(benchmark: Any, stage: str, corpus: Corpus, who: str) -> None:
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
    rounds = {False: pytest.mark.benchmark(min_rounds=5), True: pytest.mark.benchmark(min_rounds=3)}
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
        name = getattr(item, "callspec").params["name"]  # noqa: B009 - only parametrized items have it
        return order.setdefault((item.path.name, name), len(order))

    items.sort(key=place)
