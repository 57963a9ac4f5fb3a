"""Two threads against one, and against two processes that share nothing, in turns: wall time of the whole decode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import kbatch
from bench.conftest import Rotation
from bench.corpora import CORPORA, Sums, corpus
from bench.pair import Pair, clock
from bench.results import BOTH, HALF


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.mark.parametrize("name", CORPORA)
@pytest.mark.benchmark(timer=clock)
def test_two_threads(name: str, rotation: Rotation, pair: Pair) -> None:
    what = corpus(name)
    alone, both = pair.prepare(name, "decode")
    table = rotation(
        "threads",
        what,
        "two threads",
        lambda: kbatch.decode(what.data, threads=2),
        {
            "one thread": lambda: kbatch.decode(what.data, threads=1),
            HALF: alone,
            BOTH: both,
        },
    )
    assert Sums.of_table(table) == what.sums


@pytest.mark.parametrize("what", ["memcpy", "CRC-32C"])
@pytest.mark.benchmark(timer=clock)
def test_two_processes(what: str, rotation: Rotation, pair: Pair) -> None:
    """What the machine gives them at the least work a byte there is."""
    alone, both = pair.prepare("large", what)
    rotation("threads", corpus("large"), f"{BOTH}, {what}", both, {f"{HALF}, {what}": alone})
