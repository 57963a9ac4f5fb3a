"""Rows of `decode_batches`: the values that Arrow gives, in a fraction of its time."""

from __future__ import annotations

import copy
import datetime
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest

import kbatch

pytest.importorskip("kbatch.spark", exc_type=ImportError)
pa = pytest.importorskip("pyarrow")

from pyspark.sql import Row  # noqa: E402

from kbatch.spark import functions  # noqa: E402

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COLUMNS = [
    pa.array([b"a", b"", b"\xff\0", b"long" * 100]),
    pa.array([None, b"", None, b"x"]),
    pa.array([], pa.binary()),
    pa.array([None, None], pa.binary()),
    pa.array([0, -1, 1_700_000_000_000_001, None], pa.timestamp("us", "UTC")),
    pa.array([1, 2, 3], pa.int64()),
    pa.array([1, None, 3], pa.int32()),
    pa.array(["a", None]),
]


@pytest.mark.parametrize("column", COLUMNS)
def test_values_equal_those_of_arrow(column: Any) -> None:
    for part in (column, column[1:], column[1:2], column[:0]):
        assert functions._python_values(part) == part.to_pylist()


def test_timestamps_are_datetimes_in_utc() -> None:
    (value,) = functions._python_values(pa.array([1_700_000_000_123_456], pa.timestamp("us", "UTC")))
    assert value == datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=datetime.UTC)
    assert value.tzinfo is datetime.UTC


def test_headers_are_lists_of_rows_or_none() -> None:
    column = pa.array([None, [], [("h", b"1"), ("h", None)], [("", b"")]], HEADERS)
    for part in (column, column[2:], column[1:3]):
        got = functions._python_values(part)
        assert got == [each and [Row(key=k["key"], value=k["value"]) for k in each] for each in part.to_pylist()]
    assert got[1][1].value is None
    assert got[1][0].key == "h"


def test_timestamps_after_the_year_9999_are_an_error() -> None:
    data = kbatch.encode(values=[b"a"], timestamps=[300_000_000_000_000])
    with pytest.raises((ValueError, OverflowError)):
        list(kbatch.spark.decode_batches()([data]))


def test_rows_behave_like_rows_of_spark() -> None:
    data = kbatch.encode(keys=[b"k"], values=[b"v"], timestamps=[5])
    (row,) = kbatch.spark.decode_batches("raw", keep=["name"])([Row(name="n", raw=data)])
    assert isinstance(row, Row)
    assert row.asDict() == {
        "name": "n",
        "key": b"k",
        "value": b"v",
        "offset": 0,
        "timestamp": datetime.datetime(1970, 1, 1, 0, 0, 0, 5000, tzinfo=datetime.UTC),
        "timestampType": 0,
    }
    assert pickle.loads(pickle.dumps(row)) == copy.copy(row) == row
    assert (row.value, row["offset"]) == (b"v", 0)


def cpu_times(*functions: Callable[[], Any]) -> list[float]:
    """Return the least CPU time of each function in turns, which other processes disturb little."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(20):
        for function, each in zip(functions, times, strict=True):
            began = time.process_time()
            function()
            each.append(time.process_time() - began)
    return [min(each) for each in times]


def test_rows_cost_less_than_half_of_the_values_of_arrow() -> None:
    """0.4 million rows per second of CPU time are required; `Array.to_pylist` gives 0.1 to 0.25."""
    count = 8000
    data = kbatch.encode(values=[b"v" * 100] * count, keys=[b"key"] * count, timestamps=range(count))
    decode, (in_arrow, _) = kbatch.spark.decode_batches(), kbatch.spark.decode_in_arrow("raw")
    batches = list(in_arrow(iter([pa.record_batch({"raw": [data]})])))
    make = Row(*batches[0].schema.names)

    def plain() -> None:
        for batch in batches:
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                make(*values)

    assert sum(1 for _ in decode([data])) == count
    rows, values_of_arrow = cpu_times(lambda: sum(1 for _ in decode([data])), plain)
    assert rows < 0.5 * values_of_arrow
