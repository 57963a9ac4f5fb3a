"""Every way to read a scan gives the records of a full read with the same filter, whatever is pruned."""

from __future__ import annotations

import contextlib
import itertools
import random
import warnings
from collections.abc import Callable
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_conditions import Condition, condition
from scanned_logs import ScannedLogs, scanned_logs
from served_logs import cluster_source, served_cluster

import kbatch

COLUMNS = ["topic", "partition", "offset", "timestamp", "key", "value"]
ISOLATION = ("read_uncommitted", "read_committed")
CONDITIONS = 4
LIVE_CONDITIONS = 2


@pytest.fixture(scope="module")
def connection() -> duckdb.DuckDBPyConnection:
    made = duckdb.connect()
    made.execute("set timezone = 'UTC'")
    return made


def full_read(logs: ScannedLogs, options: dict[str, Any]) -> tuple[pa.Table, bool]:
    """Return all records, and whether the read raises; then those of a read that skips damage."""
    found = kbatch.find_logs(logs.root)
    try:
        return found.to_arrow(columns=COLUMNS, **options), False
    except kbatch.KbatchError:
        return found.to_arrow(columns=COLUMNS, **{**options, "on_error": "skip"}), True


def in_order(table: pa.Table) -> pa.Table:
    return table.combine_chunks()


class Fronts:
    """The results of a condition by name, each as a function, next to those that are expected."""

    def __init__(self, scan: kbatch.Scan, whole: pa.Table, what: Condition, sql: duckdb.DuckDBPyConnection) -> None:
        self.scan, self.whole, self.what, self.sql = scan, whole, what, sql

    def each(self) -> dict[str, tuple[Callable[[], Any], Any]]:
        scan, what = self.scan.filter(self.what.arrow), self.what
        expected = in_order(self.whole.filter(what.arrow))
        count = expected.num_rows
        frame = pl.from_arrow(self.whole)
        assert isinstance(frame, pl.DataFrame)
        filtered = frame.filter(what.polars)
        lazy = self.scan.lazy()
        return {
            "to_arrow": (lambda: in_order(scan.to_arrow()), expected),
            "select": (
                lambda: in_order(scan.select("value", "offset").to_arrow()),
                in_order(expected.select(["value", "offset"])),
            ),
            "stream": (lambda: in_order(pa.table(scan)), expected),
            "count": (scan.count, count),
            "head": (lambda: in_order(scan.head(5)), in_order(expected.slice(0, 5))),
            "tail": (lambda: in_order(scan.tail(5)), in_order(expected.slice(max(0, count - 5)))),
            "lazy": (lambda: lazy.filter(what.polars).collect().rows(), filtered.rows()),
            "lazy columns": (
                lambda: lazy.filter(what.polars).select("key", "offset").collect().rows(),
                filtered.select("key", "offset").rows(),
            ),
            "lazy count": (lambda: lazy.filter(what.polars).select(pl.len()).collect().item(), filtered.height),
            "lazy head": (
                lambda: lazy.head(7).filter(what.polars).collect().rows(),
                frame.head(7).filter(what.polars).rows(),
            ),
            "lazy tail": (lambda: lazy.filter(what.polars).tail(3).collect().rows(), filtered.tail(3).rows()),
            "lazy slice": (
                lambda: lazy.slice(-9, 4).filter(what.polars).collect().rows(),
                frame.slice(-9, 4).filter(what.polars).rows(),
            ),
            "dataset of Polars": (
                lambda: pl.scan_pyarrow_dataset(self.scan.dataset()).filter(what.polars).collect().rows(),
                filtered.rows(),
            ),
            "DuckDB": (lambda: self.queried(self.scan.dataset()), self.queried(self.whole)),
            "DuckDB count": (lambda: self.counted(self.scan.dataset()), self.counted(self.whole)),
        }

    def queried(self, records: Any) -> list[Any]:
        self.sql.register("records", records)
        columns = 'topic, partition, "offset", epoch_ms("timestamp"), key, value'
        return self.sql.execute(f"select {columns} from records where {self.what.sql}").fetchall()

    def counted(self, records: Any) -> list[Any]:
        self.sql.register("records", records)
        return self.sql.execute(f"select count(*) from records where {self.what.sql}").fetchall()


def different_fronts(
    scan: kbatch.Scan,
    whole: pa.Table,
    raises: bool,
    draw: random.Random,
    logs: ScannedLogs,
    connection: duckdb.DuckDBPyConnection,
    count: int,
) -> list[tuple[str, str]]:
    """Return the fronts and random conditions whose records are not those of a full read."""
    different: list[tuple[str, str]] = []
    for _ in range(count):
        what = condition(draw, logs.values)
        for name, (front, expected) in Fronts(scan, whole, what, connection).each().items():
            # Engines raise errors of their own with the message.
            with contextlib.suppress(Exception) if raises else contextlib.nullcontext():
                found = front()
                is_equal = found.equals(expected) if isinstance(expected, pa.Table) else found == expected
                # Headers count the records of damaged batches.
                if not is_equal and not (raises and name in ("count", "lazy count")):
                    different.append((name, what.sql))
    return different


@pytest.mark.filterwarnings("ignore:.*(damaged batches have no records|of unknown cause)")
@pytest.mark.parametrize(("isolation", "on_error"), list(itertools.product(ISOLATION, ("raise", "stop", "skip"))))
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), damage=st.sampled_from([0.0, 0.08, 0.3]))
def test_every_front_returns_the_records_of_a_full_read(
    tmp_path_factory: pytest.TempPathFactory,
    connection: duckdb.DuckDBPyConnection,
    isolation: str,
    on_error: str,
    seed: int,
    damage: float,
) -> None:
    """Under ``on_error="raise"`` a pruned read may pass the damage at which a full read raises."""
    draw = random.Random(seed)
    logs = scanned_logs(tmp_path_factory.mktemp("logs"), seed, damage=damage)
    options = {"isolation": isolation, "on_error": on_error}
    whole, raises = full_read(logs, options)
    scan = kbatch.scan_logs(logs.root, columns=COLUMNS, threads=draw.choice([1, 3]), **options)  # type: ignore[arg-type]
    assert not different_fronts(scan, whole, raises, draw, logs, connection, CONDITIONS)


@pytest.mark.filterwarnings("ignore:.*(damaged batches have no records|of unknown cause)")
@pytest.mark.parametrize(("isolation", "on_error"), list(itertools.product(ISOLATION, ("raise", "stop", "skip"))))
@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), damage=st.sampled_from([0.0, 0.08, 0.3]))
def test_every_front_of_a_live_topic_returns_the_records_of_its_log_directory(
    tmp_path_factory: pytest.TempPathFactory,
    connection: duckdb.DuckDBPyConnection,
    isolation: str,
    on_error: str,
    seed: int,
    damage: float,
) -> None:
    """Brokers rely on the lengths of batches, and what they know of transactions does not depend on damage."""
    draw = random.Random(seed)
    is_committed = isolation == "read_committed"
    logs = scanned_logs(tmp_path_factory.mktemp("logs"), seed, damage=0.0 if is_committed else damage, lengths=False)
    options = {"isolation": isolation, "on_error": on_error}
    whole, raises = full_read(logs, options)
    source = cluster_source(served_cluster(logs), fetch_max_bytes=draw.choice([1, 300, 1 << 20]))
    scan = kbatch.scan_logs(source, columns=COLUMNS, threads=draw.choice([1, 3]), **options)  # type: ignore[arg-type]
    assert not different_fronts(scan, whole, raises, draw, logs, connection, LIVE_CONDITIONS)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_a_batch_with_a_wrong_checksum_is_not_pruned_by_its_header(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Unverified times exclude nothing: ``crc="mark"`` returns the records of such a batch."""
    draw = random.Random(seed)
    logs = scanned_logs(tmp_path_factory.mktemp("logs"), seed, damage=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole, raises = full_read(logs, {"crc": "mark", "on_error": "skip"})
        assert not raises
        for _ in range(CONDITIONS):
            what = condition(draw, logs.values)
            scan = kbatch.scan_logs(logs.root, columns=COLUMNS, crc="mark", on_error="skip").filter(what.arrow)
            assert in_order(scan.to_arrow()).equals(in_order(whole.filter(what.arrow))), what.sql


@pytest.mark.filterwarnings("ignore:.*(damaged batches have no records|of unknown cause)")
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), damage=st.sampled_from([0.0, 0.2]))
def test_scans_take_the_bounds_of_logs(tmp_path_factory: pytest.TempPathFactory, seed: int, damage: float) -> None:
    """With any arguments, a scan has the records of the same read of a list of logs."""
    draw = random.Random(seed)
    logs = scanned_logs(tmp_path_factory.mktemp("logs"), seed, damage=damage)
    times, offsets = logs.values.timestamps, logs.values.offsets
    bounds: list[dict[str, Any]] = [
        {"start_offset": abs(draw.choice(offsets))},
        {"stop_offset": abs(draw.choice(offsets))},
        {"start": -draw.randint(1, 20)},
        {"start_timestamp": max(0, draw.choice(times))},
        {"stop_timestamp": max(0, draw.choice(times))},
        {"start": f"end-{draw.randint(1, 60)}s"},
        {"start": {0: draw.randrange(30), 1: "latest"}},
        {"end": {"a": {0: draw.randrange(30)}}},
        {"last": draw.randint(0, 20)},
        {"key": draw.choice([b"a", "b", b""])},
        {"last": draw.randint(1, 9), "key": b"a", "stop_offset": 30},
    ]
    for given_options in bounds:
        options = {"isolation": draw.choice(ISOLATION), "on_error": "skip", "columns": COLUMNS, **given_options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = in_order(kbatch.find_logs(logs.root).to_arrow(**options))
        scan = kbatch.scan_logs(logs.root, **options)
        assert in_order(scan.to_arrow()).equals(expected), options
        what = condition(draw, logs.values)
        assert in_order(scan.filter(what.arrow).to_arrow()).equals(in_order(expected.filter(what.arrow))), options
