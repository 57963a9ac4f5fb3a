"""What a filter excludes is not read, and a consumer that stops ends the read."""

from __future__ import annotations

import datetime
import threading
import time
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from log_batches import NOW

import kbatch
from kbatch.log import LogWriter
from kbatch.log.store.segment_file import SegmentFile
from kbatch.scans import file_source
from kbatch.scans.expression_filter import ExpressionFilter

TOPIC, OFFSET, TIME, KEY = (pc.field(name) for name in ("topic", "offset", "timestamp", "key"))
BATCHES, ROWS = 400, 50
RECORDS = BATCHES * ROWS


def milliseconds(value: int) -> pa.Scalar:
    return pa.scalar(value, pa.timestamp("ms", "UTC"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics of one partition, each with a record per second in several segments."""
    made: Path = tmp_path_factory.mktemp("logs")
    for topic in ("orders", "users"):
        with LogWriter(made / f"{topic}-0", segment_bytes=200_000) as writer:
            for first in range(0, RECORDS, ROWS):
                values = [b"%d" % i * 20 for i in range(first, first + ROWS)]
                keys = [b"k%d" % (i % 10) for i in range(first, first + ROWS)]
                times = NOW + 1000 * np.arange(first, first + ROWS)
                writer.append(kbatch.encode(values, keys=keys, timestamps=times, base_offset=first))
    return made


class Opened:
    """The paths of segments that were opened, and the bytes that were read of them."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.size = 0


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    found = Opened()
    lock = threading.Lock()

    def counted(name: str) -> None:
        original = getattr(SegmentFile, name)

        def read(self: SegmentFile, start: int, *arguments: int, **options: int) -> object:
            result = original(self, start, *arguments, **options)
            with lock:
                found.paths.add(self.path)
                found.size += len(result)
            return result

        monkeypatch.setattr(SegmentFile, name, read)

    counted("window")
    return found


def total(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*.log"))


@pytest.mark.parametrize(
    ("filter", "most", "logs"),
    [
        ((TOPIC == "users") & (OFFSET == 7), 0.1, {"users-0"}),
        (OFFSET.isin([RECORDS - 1]), 0.2, {"orders-0", "users-0"}),
        ((TOPIC == "orders") & (OFFSET >= 3) & (OFFSET < 10) | (TOPIC == "users") & (OFFSET > RECORDS - 9), 0.2, None),
        ((milliseconds(NOW + 1000 * (RECORDS - 10)) <= TIME) & (TOPIC == "users"), 0.15, {"users-0"}),
        (milliseconds(NOW + 1000 * RECORDS) <= TIME, 0.2, None),
        (~(TOPIC != "users") & (OFFSET < 100), 0.1, {"users-0"}),
        (pc.scalar(False), 0.0, set()),
        (TOPIC.isin(["other"]), 0.0, set()),
    ],
)
def test_what_a_filter_excludes_is_not_read(
    root: Path, opened: Opened, filter: pc.Expression, most: float, logs: set[str] | None
) -> None:
    scan = kbatch.scan_logs(root).filter(filter)
    found = scan.to_arrow()
    read, decoded = opened.size, {Path(path).parent.name for path in opened.paths}
    assert found.num_rows == kbatch.find_logs(root).to_arrow().filter(filter).num_rows
    assert read <= most * total(root)
    if logs is not None:
        assert decoded == logs


def test_segments_between_two_offsets_are_not_read(root: Path, opened: Opened) -> None:
    scan = kbatch.scan_logs(root, topics="orders").filter(OFFSET.isin([0, RECORDS - 1]))
    assert scan.to_arrow()["offset"].to_pylist() == [0, RECORDS - 1]
    segments = len(list((root / "orders-0").glob("*.log")))
    assert len(opened.paths) <= 3 < segments


def test_engines_push_their_filters_down(root: Path, opened: Opened) -> None:
    scan = kbatch.scan_logs(root)
    late = datetime.datetime.fromtimestamp(NOW / 1000 + RECORDS - 10, datetime.UTC)
    lazy = scan.lazy().filter(pl.col("timestamp") >= late, pl.col("topic") == "users").select("offset")
    assert lazy.collect()["offset"].to_list() == list(range(RECORDS - 10, RECORDS))
    records = scan.dataset()
    sql = duckdb.connect()
    sql.register("records", records)
    query = """select "offset" from records where topic = 'users' and "timestamp" >= ?"""
    assert sql.execute(query, [late]).fetchall() == [(i,) for i in range(RECORDS - 10, RECORDS)]
    assert opened.size < 0.2 * total(root)


@pytest.mark.parametrize("front", ["head", "tail", "DuckDB", "Polars head", "Polars tail", "dataset", "reader"])
def test_a_consumer_of_few_records_reads_few_bytes(root: Path, opened: Opened, front: str) -> None:
    scan = kbatch.scan_logs(root, threads=2)
    if front == "DuckDB":
        sql = duckdb.connect()
        sql.register("records", scan.dataset())
        assert len(sql.execute("select * from records limit 3").fetchall()) == 3
    elif front == "reader":
        reader = scan.reader()
        assert reader.read_next_batch().num_rows
        reader.close()
    else:
        found = {
            "head": lambda: scan.head(3),
            "tail": lambda: scan.tail(3),
            "Polars head": lambda: scan.lazy().head(3).collect(),
            "Polars tail": lambda: scan.lazy().tail(3).collect(),
            "dataset": lambda: scan.dataset().head(3),
        }[front]()
        assert len(found) == 3
    time.sleep(0.05)
    assert opened.size < 0.8 * total(root)


def test_counts_without_a_filter_decode_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_source, "task_tables", None)
    scan = kbatch.scan_logs(root)
    assert scan.count() == 2 * RECORDS
    assert scan.lazy().select(pl.len()).collect().item() == 2 * RECORDS
    assert scan.filter((TOPIC == "users") & (OFFSET >= 17)).count() == RECORDS - 17


def test_predicates_that_only_the_engine_can_evaluate_are_left_to_it(root: Path) -> None:
    """Top-k pushes a predicate down that changes while the query runs."""
    lazy = kbatch.scan_logs(root).lazy()
    expected = [RECORDS - 1, RECORDS - 1, RECORDS - 2]
    assert lazy.top_k(3, by="offset").collect()["offset"].to_list() == expected
    assert lazy.sort("offset", descending=True).head(3).collect()["offset"].to_list() == expected
    calls: list[int] = []

    def is_small(offset: int) -> bool:
        calls.append(offset)
        return offset < 3

    small = pl.col("offset").map_batches(lambda offsets: pl.Series(map(is_small, offsets)), return_dtype=pl.Boolean)
    filtered = lazy.filter(small, pl.col("topic") == "users")
    assert filtered.collect()["offset"].to_list() == [0, 1, 2]
    assert len(calls) <= 2 * RECORDS


def test_a_range_of_offsets_per_log_prunes_each_log() -> None:
    both = (TOPIC == "a") & (OFFSET >= 10) | (TOPIC == "b") & (OFFSET < 5)
    chosen = ExpressionFilter(both)
    assert chosen.of_log("a", 0).pruning.offset.low == 10
    assert chosen.of_log("b", 0).pruning.offset.high == 4
    assert chosen.of_log("c", 0).is_empty
    assert chosen.of_log("a", 0).is_always_true
    assert not ExpressionFilter(both & (KEY == b"x")).of_log("a", 0).is_always_true


@pytest.mark.parametrize(
    ("condition", "keys"),
    [
        (KEY == b"k", (b"k",)),
        (KEY.isin([b"k", b"", b"\x00"]), (b"", b"\x00", b"k")),
        ((KEY == b"k") | (OFFSET > 3), ()),
        ((KEY == b"k") & (OFFSET > 3), (b"k",)),
        (KEY >= b"k", ()),
        (KEY.is_null(), ()),
        (~(KEY == b"k"), ()),
        ((KEY == b"k") | KEY.is_null(), ()),
    ],
)
def test_only_keys_that_are_proved_to_be_all_choose_rows(condition: pc.Expression, keys: tuple[bytes, ...]) -> None:
    assert ExpressionFilter(condition).keys == keys


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_time_excludes_the_records_before_it(unit: str) -> None:
    literal = pa.scalar(1_700_000_000, pa.timestamp("s", "UTC")).cast(pa.timestamp(unit, "UTC"))
    for condition, since in ((literal <= TIME, 0), (literal < TIME, 1), (literal == TIME, 0)):
        assert ExpressionFilter(condition).pruning.since == 1_700_000_000_000 + since
    for condition in (literal > TIME, (literal < TIME) | TIME.is_null(), ~(literal > TIME) | (OFFSET > 3)):
        assert ExpressionFilter(condition).pruning.since is None


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_choice_of_times_selects_their_records(root: Path, unit: str) -> None:
    times = pa.array([NOW + 7000, NOW + 9000, NOW + 9500], pa.timestamp("ms", "UTC"))
    condition = TIME.isin(times.cast(pa.timestamp(unit, "UTC"), safe=False))
    found = [7, 9, 7, 9]
    assert kbatch.scan_logs(root).filter(condition).to_arrow()["offset"].to_pylist() == found
    records = kbatch.scan_logs(root).lazy()
    assert records.filter(pl.col("timestamp").is_in(times.to_pylist())).collect()["offset"].to_list() == found


def test_timestamps_beyond_microseconds_are_compared(tmp_path: Path) -> None:
    """A producer that sends nanoseconds reaches the year 55 million, and a filter of an engine has microseconds."""
    times = [5, 1_700_000_000_000_000_000, 4, -1]
    with LogWriter(tmp_path / "t-0") as writer:
        writer.append(kbatch.encode([b""] * 4, timestamps=times))
    scan = kbatch.scan_logs(tmp_path)
    literal = pa.scalar(5_000, pa.timestamp("us", "UTC"))
    for condition, expected in ((literal <= TIME, [0, 1]), (literal > TIME, [2]), (literal != TIME, [1, 2])):
        assert scan.filter(condition).to_arrow()["offset"].to_pylist() == expected
