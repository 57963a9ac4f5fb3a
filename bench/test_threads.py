"""Two threads against one, and two processes that share nothing against one of them: wall time of the whole decode."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import kbatch
from bench.conftest import Rotation
from bench.corpora import CORPORA, Sums, corpus
from bench.pair import WORKS, Pair, clock
from bench.results import BOTH, HALF

# For seconds at a time the processors of a virtual machine may do less together than at others: two processes that
# share nothing then get 1.5 instead of 2 times as much done as one. Medians are of more than that.
SECONDS = 4.0


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.mark.parametrize("name", CORPORA)
@pytest.mark.benchmark(timer=time.perf_counter)
def test_two_threads(name: str, rotation: Rotation) -> None:
    what = corpus(name)
    table = rotation(
        "threads",
        what,
        "two threads",
        lambda: kbatch.decode(what.data, threads=2),
        {"one thread": lambda: kbatch.decode(what.data, threads=1)},
        seconds_wanted=SECONDS,
    )
    assert Sums.of_table(table) == what.sums


# What the machine gives; of "large" also at the least work a byte there is.
@pytest.mark.parametrize(
    ("name", "work"),
    [(name, "decode") for name in CORPORA] + [("large", work) for work in WORKS if work != "decode"],
)
@pytest.mark.benchmark(timer=clock)
def test_two_processes(name: str, work: str, rotation: Rotation, pair: Pair) -> None:
    alone, both = pair.prepare(name, work)
    which = "" if work == "decode" else f", {work}"
    rotation("threads", corpus(name), BOTH + which, both, {HALF + which: alone}, seconds_wanted=SECONDS)
