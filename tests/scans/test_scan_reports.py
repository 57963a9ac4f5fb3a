"""What a scan reports: losses and bad values also if few records are needed, and the way out of wrong arguments."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from log_batches import NOW, batch, write_segment
from value_tables import write_log

import kbatch

LOGS = "tests/golden/logs"


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A log of 400 batches of 3 records, of which the second is damaged."""
    segment = write_segment(tmp_path / "t-0", 0, [batch(3 * i, [NOW] * 3) for i in range(400)])
    data = bytearray(segment.read_bytes())
    data[len(data) // 400 * 2 - 1] ^= 1
    segment.write_bytes(data)
    return tmp_path


def first_batch(scan: kbatch.Scan) -> list[int]:
    reader = scan.reader()
    found: list[int] = reader.read_next_batch()["offset"].to_pylist()[:4]
    reader.close()
    return found


@pytest.mark.parametrize(
    ("read", "offsets"),
    [
        (lambda scan: scan.head(4)["offset"].to_pylist(), [0, 1, 2, 6]),
        (lambda scan: scan.lazy().head(4).collect()["offset"].to_list(), [0, 1, 2, 6]),
        (lambda scan: scan.lazy().slice(2, 2).collect()["offset"].to_list(), [2, 6]),
        (lambda scan: scan.tail(1196)["offset"].to_pylist()[:3], [1, 2, 6]),
        (lambda scan: scan.lazy().tail(1196).collect()["offset"].to_list()[:3], [1, 2, 6]),
        (first_batch, [0, 1, 2, 6]),
    ],
)
def test_a_consumer_of_few_records_is_told_of_losses(
    damaged: Path, read: Callable[[kbatch.Scan], list[int]], offsets: list[int]
) -> None:
    with pytest.warns(RuntimeWarning, match="1 loss of .*; the tables of Log.tables list them"):
        assert read(kbatch.scan_logs(damaged, on_error="skip")) == offsets


def test_the_end_of_a_read_that_stops_is_reported(damaged: Path) -> None:
    with pytest.warns(RuntimeWarning, match="damaged batches have no records here") as caught:
        assert kbatch.scan_logs(damaged, on_error="stop").tail(1)["offset"].to_pylist() == [2]
    assert [each.filename for each in caught] == [__file__]


def test_a_consumer_of_few_records_is_told_of_bad_values(tmp_path: Path) -> None:
    write_log(tmp_path, "t", [b"bad", b'{"id": 1}', b'{"id": 2}'])
    scan = kbatch.scan_logs(tmp_path, values="json", value_schema="id bigint", columns=["value.id"])
    for read in (lambda: scan.head(2), lambda: scan.tail(3), lambda: scan.lazy().head(2).collect()):
        with pytest.warns(RuntimeWarning, match=r"^1 value is null or .*schema \(first: ") as caught:
            read()
        assert len(caught) == 1


def test_a_scan_warns_of_the_unit_of_a_time_once() -> None:
    with pytest.warns(UserWarning, match=r"^start_timestamp 1700000085 is in milliseconds"):
        scan = kbatch.scan_logs(LOGS, topics="codec-*", start_timestamp=1_700_000_085)
    for made in (scan, kbatch.scan_logs(LOGS, topics="codec-*", start="1990-01-01")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert made.count() == made.to_arrow().num_rows == 15_477


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("limit", r"head\(n\) returns the first records, last=n the last ones"),
        ("topic", "use topics"),
        ("partition", "use partitions"),
        ("where", r"use scan.filter\(...\)"),
        ("time", "use start and end, which take times or offsets"),
        ("binary", r"reader\(binary=...\) and to_arrow take it"),
        ("keyz", "did you mean 'key"),
    ],
)
def test_an_unknown_argument_of_a_scan_gets_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(TypeError, match=rf"^scan_logs\(\) got an unexpected keyword argument '{name}'; {hint}"):
        kbatch.scan_logs(LOGS, **{name: 3})


@pytest.mark.parametrize("method", ["reader", "to_arrow", "to_polars", "to_pandas", "head", "tail", "count"])
def test_the_methods_of_a_scan_name_where_arguments_of_reads_belong(method: str) -> None:
    scan = kbatch.scan_logs(LOGS)
    for name, hint in (("columns", r"use scan.select\(...\)"), ("isolation", "scan_logs takes it")):
        with pytest.raises(TypeError, match=rf"^{method}\(\) got an unexpected keyword argument '{name}'; {hint}$"):
            getattr(scan, method)(**{name: None})


def test_libraries_without_arrow_streams_are_refused_with_the_methods() -> None:
    scan = kbatch.scan_logs(LOGS, topics="txn")
    with pytest.raises(TypeError, match=r"is not an array: to_pandas\(\), .* return its records"):
        pd.DataFrame(scan)
    with pytest.raises(TypeError, match="is not an array"):
        np.asarray(scan)
    with pytest.raises(TypeError, match=r"cannot be iterated: reader\(\)"):
        list(scan)
    with pytest.raises(TypeError, match=r"^source must be one or several paths, .*, got Scan$"):
        kbatch.scan_logs(scan)  # type: ignore[arg-type]


def test_partitions_are_numbers() -> None:
    assert kbatch.scan_logs(LOGS, topics="txn", partitions={0, 7}).count() == 337
    with pytest.raises(TypeError, match=r"^partitions must be numbers such as \[0, 1\], got \['0'\]"):
        kbatch.scan_logs(LOGS, partitions=["0"])  # type: ignore[list-item]


def test_the_plan_names_empty_segments_and_is_one_line_per_fact(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch(0, [NOW] * 3)])
    write_segment(tmp_path / "t-0", 3, [])
    scan = kbatch.scan_logs(tmp_path).filter(pc.field("topic").isin(["t", "u"]))
    lines = scan.explain().splitlines()
    assert lines[2].startswith('filter: is_in(topic, {value_set=string:[ "t", "u" ], ')
    assert lines[4] == "segments: 1 of 2; 1 empty"
    assert 'value_set=string:[ "t", "u" ]' in repr(scan)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({}, None),
        ({"start": 5, "end": "latest"}, "start offset 5, end latest"),
        ({"start": "2023-11-14T22:14:50Z", "key": "k"}, "start 2023-11-14 22:14:50.000Z, key b'k'"),
        ({"start": "end-5s", "last": 1}, "start 5,000 ms before the end of the topic, last 1 record of each log"),
        ({"stop_offset": -3, "stop_timestamp": "2023-11-15"}, "end offset -3 and 2023-11-15 00:00:00.000Z"),
        ({"end": {0: 9}}, "end by partition"),
    ],
)
def test_the_plan_states_the_arguments_that_choose_records(arguments: dict[str, Any], shown: str | None) -> None:
    lines = kbatch.scan_logs(LOGS, topics="codec-lz4", **arguments).explain().splitlines()
    assert [each for each in lines if each.startswith("arguments: ")] == ([f"arguments: {shown}"] if shown else [])


def test_a_comparison_of_timestamps_without_time_zone_names_the_way_out() -> None:
    for literal in (np.datetime64("2023-11-14T22:14:50"), "2023-11-14"):
        condition = pc.field("timestamp") >= pa.scalar(literal)
        with pytest.raises(ValueError, match="timestamps compare with a datetime with a time zone, such as"):
            kbatch.scan_logs(LOGS).filter(condition)


def test_a_condition_that_is_null_selects_nothing() -> None:
    scan = kbatch.scan_logs(LOGS, topics="codec-lz4")
    assert scan.filter(pc.scalar(None)).count() == 0
    lazy, null, few = scan.lazy(), pl.lit(None, pl.Boolean), pl.col("offset") < 5
    assert [lazy.filter(what).collect().height for what in (null, few & null, few | null, ~null)] == [0, 0, 5, 0]


def test_numbers_that_are_not_a_number_follow_the_rules_of_polars(tmp_path: Path) -> None:
    nan = float("nan")
    write_log(tmp_path, "t", [struct.pack(">d", each) for each in (1.0, nan, -1.0, float("inf"), -0.0, 0.0)])
    given: dict[str, Any] = {"values": "struct", "value_schema": "p:>f8"}
    flat = kbatch.scan_logs(tmp_path, columns=["offset", "value.p"], **given)
    nested = kbatch.scan_logs(tmp_path, columns=["offset", "value"], **given)
    for scan, price in ((flat, pl.col("value.p")), (nested, pl.col("value").struct.field("p"))):
        frame, lazy = scan.to_polars(), scan.lazy()
        for condition in (price > 1, price >= nan, price == nan, price <= nan, price.is_between(0, nan), price == 0):
            what = condition & (pl.col("offset") < 5)
            assert lazy.filter(what).collect().equals(frame.filter(what))
            with pytest.raises(TypeError, match="has no exact counterpart in Arrow"):
                scan.filter(what)
