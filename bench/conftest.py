"""What every benchmark needs: the fixture that times, and the quick mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

from bench.corpora import Corpus, quick
from bench.peers import PEERS

T = TypeVar("T")
Measure = Callable[[str, Corpus, str, Callable[[], T]], T]


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
        return benchmark(function)

    return run


@pytest.fixture(scope="session")
def arrow_columns() -> Iterable[str]:
    """The columns that every contestant builds; also what pyarrow imports at first use is imported here, untimed."""
    pa = pytest.importorskip("pyarrow")
    pa.array([b"warm"], pa.binary()).to_pylist()
    return ("offset", "timestamp", "key", "value")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a benchmark that asks for a peer each one that is installed; the slow ones get fewer rounds."""
    if "peer" in metafunc.fixturenames:
        rounds = {"aiokafka": 5, "kafka-python": 3}
        marks = {name: pytest.mark.benchmark(min_rounds=count) for name, count in rounds.items()}
        metafunc.parametrize("peer", [pytest.param(peer, id=peer.name, marks=marks[peer.name]) for peer in PEERS])
