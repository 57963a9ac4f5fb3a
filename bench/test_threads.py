"""Decoding on two threads compared with one thread, in wall-clock time."""

from __future__ import annotations

import time

import pytest

import kbatch
from bench.conftest import Contest
from bench.corpora import Sums, corpus

NAMES = ["small", "large", "medium-16k-lz4", "medium-16k-zstd"]
# The total speed of a virtual machine's processors varies over seconds, so the medians cover a longer time.
SECONDS = 4.0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.benchmark(timer=time.perf_counter)
def test_two_threads(name: str, contest: Contest) -> None:
    what = corpus(name)
    table = contest(
        "threads",
        what,
        lambda: kbatch.decode(what.data, threads=2),
        who="two threads",
        others={"one thread": lambda: kbatch.decode(what.data, threads=1)},
        seconds=SECONDS,
    )
    assert Sums.of_table(table) == what.sums
