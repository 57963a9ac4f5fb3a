"""batches --> records: kbatch beside decoders of other languages, in turns on the same file.

Every one sums each record's offset, timestamp, key length and value length, and checks every CRC. kbatch has two
figures: into its table only (what its users start from), and with NumPy's sums over the table's columns.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kbatch
from bench.conftest import ROUNDS, describe
from bench.corpora import CODECS, CORPORA, Corpus, corpus, quick
from bench.foreign import PROGRAMS, CannotRun, Program, Totals

COMPRESSED = [f"medium-{size}-{codec}" for codec in CODECS if codec != "none" for size in ("16k", "1m")]
NAMES = ["small", "medium", "medium-16k", "medium-1m", "large", "headers", "single", *COMPRESSED]
LEGACY = [name for name, recipe in CORPORA.items() if recipe.magic < 2]


# Rows whose four columns NumPy sums while they are in the cache: half the time of whole columns, one after the other.
BLOCK = 1 << 14


def sums(table: kbatch.RecordTable) -> Totals:
    """Do what the programs do, over the columns of a table."""
    totals = [0, 0, 0, 0]
    for start in range(0, len(table), BLOCK):
        rows = table.records[start : start + BLOCK]
        totals[0] += int(rows["offset"].sum())
        totals[1] += int(rows["timestamp"].sum())
        totals[2] += int(np.maximum(rows["key_len"], 0).sum(dtype=np.int64))
        totals[3] += int(np.maximum(rows["value_len"], 0).sum(dtype=np.int64))
    return Totals.of(len(table), *totals)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Give the file of a corpus."""
    directory = tmp_path_factory.mktemp("foreign")

    def file_of(what: Corpus) -> Path:
        path: Path = directory / what.name
        if not path.exists():
            path.write_bytes(what.data)
        return path

    return file_of


def contests(names: list[str], *, read: bool) -> list[Any]:
    return [
        pytest.param(name, program, id=f"{name}-{program.name}")
        for name in names
        for program in PROGRAMS
        if (program.says_to(name) is None) is read
    ]


@pytest.mark.parametrize(("name", "program"), contests([*NAMES, *LEGACY], read=True))
def test_in_turns(name: str, program: Program, benchmark: Any, files: Any) -> None:
    what = corpus(name)
    rounds: list[float] = []
    walls: list[float] = []
    with_sums: list[float] = []
    expected = Totals.of_corpus(what)
    try:
        running = program.start(files(what))
    except CannotRun as error:
        pytest.skip(str(error))
    with running:
        assert running.warm_up(0 if quick() else program.warm_up_seconds).totals == expected

        def turn() -> None:
            """Let the other two go before kbatch does, each after a round that makes the caches its own."""
            running.round()
            done = running.round()
            assert done.totals == expected
            kbatch.decode(what.data)
            start = time.process_time()
            summed = sums(kbatch.decode(what.data))
            with_sums.append(time.process_time() - start)
            assert summed == expected
            rounds.append(done.seconds)
            walls.append(done.wall)

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
            other_wall_seconds=statistics.median(walls[1:]),
            sums_seconds=statistics.median(with_sums[1:]),
        )


@pytest.mark.parametrize(("name", "program"), contests([*NAMES, *LEGACY], read=False))
def test_unread(name: str, program: Program, files: Any) -> None:
    """What a library doesn't read it says so of; if it learns to, it is to be compared."""
    try:
        running = program.start(files(corpus(name)))
    except CannotRun as error:
        pytest.skip(str(error))
    with running, pytest.raises(CannotRun) as raised:
        running.round()
    said = program.says_to(name)
    assert said is not None
    assert said in str(raised.value)
