"""Bytes to records: kbatch in turns with decoders in other languages on the same file.

The decoders verify every CRC and sum the offset, timestamp, key length and value length of every record. kbatch is
measured twice: decoding into its table only, and also summing the table's columns with NumPy.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import pytest

import kbatch
from bench.conftest import describe
from bench.corpora import DECODED, corpus, corpus_file, quick
from bench.foreign import PROGRAMS, CannotRun, Program, Totals

ROUNDS = 11
# Number of rows that are summed at a time. Their four columns fit in the cache, which takes half the time of summing
# whole columns one after the other.
BLOCK = 1 << 14


def sums(table: kbatch.RecordTable) -> Totals:
    """Sum the columns of a table, as the programs do."""
    totals = [0, 0, 0, 0]
    for start in range(0, len(table), BLOCK):
        rows = table.records[start : start + BLOCK]
        totals[0] += int(rows["offset"].sum())
        totals[1] += int(rows["timestamp"].sum())
        totals[2] += int(np.maximum(rows["key_len"], 0).sum(dtype=np.int64))
        totals[3] += int(np.maximum(rows["value_len"], 0).sum(dtype=np.int64))
    return Totals.of(len(table), *totals)


@pytest.mark.parametrize(
    ("name", "program"),
    [
        pytest.param(name, program, id=f"{name}-{program.name}")
        for name in DECODED
        for program in PROGRAMS
        if program.reads(name)
    ],
)
def test_in_turns(name: str, program: Program, benchmark: Any) -> None:
    what = corpus(name)
    rounds: list[float] = []
    with_sums: list[float] = []
    expected = Totals.of_corpus(what)
    try:
        running = program.start(corpus_file(name))
    except CannotRun as error:
        pytest.skip(str(error))
    with running:
        assert running.warm_up(0 if quick() else program.warm_up_seconds).totals == expected

        def turn() -> None:
            """Run the program and kbatch with sums, each after an untimed round that warms the caches with its data."""
            running.round()
            done = running.round()
            assert done.totals == expected
            kbatch.decode(what.data)
            start = time.process_time()
            summed = sums(kbatch.decode(what.data))
            with_sums.append(time.process_time() - start)
            assert summed == expected
            rounds.append(done.seconds)

        describe(benchmark, "foreign", what, f"kbatch, in turns with {program.name}")
        turn()
        table = benchmark.pedantic(
            lambda: kbatch.decode(what.data), setup=turn, rounds=1 if quick() else ROUNDS, warmup_rounds=1
        )
        assert sums(table) == expected
        benchmark.extra_info.update(
            other=program.name,
            other_version=running.version,
            other_seconds=statistics.median(rounds[1:]),
            sums_seconds=statistics.median(with_sums[1:]),
        )
