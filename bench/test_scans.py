"""Scans of a topic of a day: an hour against all of it, in Polars and DuckDB, the whole topic, and counts."""

from __future__ import annotations

import datetime
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kbatch
from bench.corpora import quick
from kbatch.log import LogWriter

duckdb = pytest.importorskip("duckdb")
pl = pytest.importorskip("polars")
pc = pytest.importorskip("pyarrow.compute")

HOURS = 24
HOUR = 3_600_000
BEGIN = 1_767_225_600_000
BATCH = 500
RECORDS_PER_HOUR = 20_000 if quick() else 200_000
RECORDS = HOURS * RECORDS_PER_HOUR
LAST_HOUR = datetime.datetime.fromtimestamp((BEGIN + (HOURS - 1) * HOUR) / 1000, datetime.UTC)
ROUNDS, RUNS = (1, 1) if quick() else (4, 3)
# An hour is read at least this number of times as fast as the day, of 24 that are possible; a scan of everything takes
# at most this part of the time of `Log.to_arrow`. A quick run is too short to measure.
HOUR_FLOOR, ALL_CEILING = 15, 1.1


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A topic of one day. Timestamps ascend, except that those of neighbouring records vary by up to 50 ms."""
    draw = np.random.default_rng(1)
    values = [b'{"id": %d, "amount": %d, "status": "paid"}' % (i, i * 7) for i in range(BATCH)]
    with tempfile.TemporaryDirectory() as directory:
        with LogWriter(Path(directory) / "day-0", segment_bytes="16m") as writer:
            for first in range(0, RECORDS, BATCH):
                numbers = np.arange(first, first + BATCH)
                times = BEGIN + numbers * HOUR // RECORDS_PER_HOUR + draw.integers(0, 50, BATCH)
                keys = [b"k%d" % (i % 1000) for i in numbers]
                writer.append(kbatch.encode(values, keys=keys, base_offset=first, timestamps=times, codec="lz4"))
        yield Path(directory)


def best(*functions: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> list[float]:
    """Return the least time of each function, which run in turns: the CPU time, unless `clock` is another.

    Each runs several times per turn: the first time it also pays for the memory that the other one has returned.
    """
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(ROUNDS):
        for function, found in zip(functions, times, strict=True):
            for _ in range(RUNS):
                start = clock()
                function()
                found.append(clock() - start)
    return [min(found) for found in times]


def polars_sums(frame: Any) -> tuple[int, int]:
    """Return the sums of offsets and of the sizes of values in the last hour."""
    late = frame.lazy().filter(pl.col("timestamp") >= LAST_HOUR)
    found: tuple[int, int] = late.select(pl.col("offset").sum(), pl.col("value").bin.size().sum()).collect().row(0)
    return found


def duckdb_sums(records: Any) -> tuple[int, int]:
    connection = duckdb_connection()
    connection.register("records", records)
    query = 'select sum("offset"), sum(octet_length(value)) from records where "timestamp" >= ?'
    found: tuple[int, int] = connection.execute(query, [LAST_HOUR]).fetchall()[0]
    connection.unregister("records")
    return found


@functools.cache
def duckdb_connection() -> Any:
    return duckdb.connect()


@pytest.mark.parametrize("engine", ["Polars", "DuckDB"])
def test_an_hour_of_a_day(root: Path, engine: str, benchmark: Any) -> None:
    log = kbatch.Log(root / "day-0")
    expected = polars_sums(log.to_polars())

    def hour() -> tuple[int, int]:
        scan = kbatch.scan_logs(root)
        return polars_sums(scan.lazy()) if engine == "Polars" else duckdb_sums(scan.dataset())

    def day() -> tuple[int, int]:
        return polars_sums(log.to_polars()) if engine == "Polars" else duckdb_sums(log.to_arrow())

    assert hour() == day() == expected
    fast, slow = best(hour, day)
    benchmark.extra_info.update(day=slow, ratio=slow / fast)
    benchmark.pedantic(hour, rounds=ROUNDS)
    assert quick() or slow / fast >= HOUR_FLOOR, f"an hour takes 1/{slow / fast:.1f} of the time of the day"


def test_everything(root: Path, benchmark: Any) -> None:
    log = kbatch.Log(root / "day-0")

    def scanned() -> int:
        count: int = kbatch.scan_logs(root).to_arrow().num_rows
        return count

    def read() -> int:
        count: int = log.to_arrow().num_rows
        return count

    assert scanned() == read() == RECORDS
    # A scan decodes in own threads, Log.to_arrow in this one: what counts for a caller is the time that passes.
    scan, whole = best(scanned, read, clock=time.perf_counter)
    scan_cpu, whole_cpu = best(scanned, read)
    benchmark.extra_info.update(log=whole, ratio=scan / whole, cpu_ratio=scan_cpu / whole_cpu)
    benchmark.pedantic(scanned, rounds=ROUNDS)
    assert quick() or scan / whole <= ALL_CEILING, f"a scan takes {scan / whole:.2f} of the time of Log.to_arrow"


def test_count(root: Path, benchmark: Any) -> None:
    """Headers are counted; a filter by offset reads the headers of its batches."""
    scan = kbatch.scan_logs(root)
    assert scan.filter(pc.field("offset") >= 700).count() == RECORDS - 700
    assert benchmark.pedantic(scan.count, rounds=ROUNDS) == RECORDS


def test_the_ends(root: Path, benchmark: Any) -> None:
    scan = kbatch.scan_logs(root)
    assert scan.head(5)["offset"].to_pylist() == list(range(5))
    assert benchmark.pedantic(lambda: scan.tail(5), rounds=ROUNDS)["offset"].to_pylist() == list(
        range(RECORDS - 5, RECORDS)
    )
