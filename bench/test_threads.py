"""The whole decode on two threads against one, by the clock."""

from __future__ import annotations

import time

import pytest

import kbatch
from bench.conftest import Contest
from bench.corpora import Sums, corpus

NAMES = ["small", "large", "medium-16k-lz4", "medium-16k-zstd"]
# For seconds at a time the processors of a virtual machine may do less together than at others: medians are of more.
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
