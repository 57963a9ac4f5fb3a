"""Two threads against one, in turns: wall time of the whole decode."""

from __future__ import annotations

import time

import pytest

import kbatch
from bench.conftest import Rotation
from bench.corpora import CORPORA, Sums, corpus


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
    )
    assert Sums.of_table(table) == what.sums
