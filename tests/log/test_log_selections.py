"""The records that the arguments of a read choose: bounds in every form, keys, the first and the last records."""

from __future__ import annotations

import datetime
import gc
import inspect
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from golden_logs import LOGS
from hypothesis import given, settings
from hypothesis import strategies as st
from log_batches import DAY, NOW, batch, write_segment

import kbatch
from kbatch.bounds import Bound
from kbatch.log import LogList, LogWriter, compare_logs
from kbatch.log.conversions import Conversions
from kbatch.log.read_arguments import TableOptions, ViewOptions
from kbatch.log.store.local_files import bytes_read
from kbatch.value_options import ValueArguments

KEYS = [b"a", b"b", b"", b"\xff"]
# Of topic and partition, in the order of `find_logs`.
NAMES = [("orders", 0), ("orders", 1), ("users", 0)]


class Row(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> LogList:
    """Make two topics of three logs, with gaps in the offsets, times that descend, and null keys."""
    root = tmp_path_factory.mktemp("logs")
    rng = np.random.default_rng(7)
    for number, (topic, partition) in enumerate(NAMES):
        offset = 10 * number
        with LogWriter(root / f"{topic}-{partition}", segment_bytes=2000) as writer:
            for i in range(20):
                times = [NOW + 60_000 * i + int(each) for each in rng.integers(-200_000, 200_000, 4)]
                keys = [None if pick == len(KEYS) else KEYS[pick] for pick in rng.integers(len(KEYS) + 1, size=4)]
                writer.append(kbatch.encode([b"v"] * 4, keys=keys, timestamps=times, base_offset=offset))
                offset += 4 + int(rng.integers(3))
    return kbatch.find_logs(root)


@pytest.fixture(scope="module")
def rows(logs: LogList) -> list[Row]:
    columns = ("topic", "partition", "offset", "timestamp", "key")
    table = logs.to_arrow(columns=columns)
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    lists = [times if name == "timestamp" else table[name].to_pylist() for name in columns]
    return [Row(*row) for row in zip(*lists, strict=True)]


def offsets_of(table: pa.Table) -> list[tuple[str, int, int]]:
    return list(zip(*(table[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True))


def end_of(logs: LogList, topic: str) -> int:
    return max(int(log.batches()["max_timestamp"][-1]) for log in logs if log.topic == topic)


class Point(NamedTuple):
    """A bound of one partition, and what it means: whether a row is not before it."""

    given: Any
    follows: Callable[[LogList, Row], bool]


def points() -> st.SearchStrategy[Point]:
    def of_offset(offset: int) -> Point:
        def follows(logs: LogList, row: Row) -> bool:
            end = logs[row.topic, row.partition].end_offset
            return row.offset >= (offset if offset >= 0 else max(end + offset, 0))

        return Point(offset, follows)

    def of_time(milliseconds: int, form: int) -> Point:
        when = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
        forms = [
            when,
            when.isoformat(),
            np.datetime64(milliseconds, "ms"),
            pd.Timestamp(when),
            when.replace(tzinfo=None),
        ]
        return Point(forms[form], lambda logs, row: row.timestamp >= milliseconds)

    def before_end(seconds: int, unit: str) -> Point:
        text = f"end-{seconds}{unit}" if seconds % 2 else f" END - {seconds} {unit} "
        factor = {"s": 1000, "m": 60_000, "h": 3_600_000, "ms": 1, "min": 60_000, "d": DAY}[unit]
        return Point(text, lambda logs, row: row.timestamp >= end_of(logs, row.topic) - factor * seconds)

    return st.one_of(
        st.integers(-120, 160).map(of_offset),
        st.builds(of_time, st.integers(NOW - 200_000, NOW + 1_500_000), st.integers(0, 4)),
        st.builds(before_end, st.integers(0, 1500), st.sampled_from(["s", "ms", "m", "min", "h", "d"])),
        st.just(Point("earliest", lambda logs, row: True)),
        st.just(Point("latest", lambda logs, row: False)),
    )


def bounds() -> st.SearchStrategy[Callable[[str, int], Point | None]]:
    """Return functions from topic and partition to a point, or None for the log's own end."""
    by_partition = st.dictionaries(st.sampled_from([0, 1]), points())
    by_topic = st.dictionaries(st.sampled_from(NAMES), points())
    return st.one_of(
        st.none().map(lambda _: lambda topic, partition: None),
        points().map(lambda point: lambda topic, partition: point),
        by_partition.map(lambda parts: lambda topic, partition: parts.get(partition)),
        by_topic.map(lambda parts: lambda topic, partition: parts.get((topic, partition))),
    )


def given_form(bound: Callable[[str, int], Point | None], form: str) -> Any:
    """Return a bound as an argument: one for all, by partition, or by topic and partition."""
    named = {name: point for name in NAMES if (point := bound(*name)) is not None}
    first = next(iter(named.values()), None)
    if len(named) == len(NAMES) and all(point is first for point in named.values()) and form == "one":
        assert first is not None
        return first.given
    by_topic: dict[str, dict[int, Any]] = {}
    for (topic, partition), point in named.items():
        by_topic.setdefault(topic, {})[partition] = point.given
    return by_topic or None


@settings(max_examples=max(200, settings.default.max_examples))
@given(
    start=bounds(),
    end=bounds(),
    key=st.sampled_from([None, *KEYS, "a", "ab"]),
    last=st.none() | st.integers(0, 50),
    form=st.sampled_from(["one", "by topic"]),
)
def test_bounds_and_keys_choose_the_rows_of_a_full_read(
    logs: LogList, rows: list[Row], start: Any, end: Any, key: Any, last: int | None, form: str
) -> None:
    expected = []
    for name in NAMES:
        first, stop = start(*name), end(*name)
        chosen = [
            (row.topic, row.partition, row.offset)
            for row in rows
            if (row.topic, row.partition) == name
            and (first is None or first.follows(logs, row))
            and (stop is None or stop.given == "latest" or (stop.given != "earliest" and not stop.follows(logs, row)))
            and (key is None or row.key == (key.encode() if isinstance(key, str) else key))
        ]
        expected += chosen if last is None else chosen[len(chosen) - min(last, len(chosen)) :]
    options: dict[str, Any] = {"start": given_form(start, form), "end": given_form(end, form), "key": key, "last": last}
    table = logs.to_arrow(columns=["topic", "partition", "offset"], **options)
    assert offsets_of(table) == expected
    assert logs.count(**options) == len(expected)
    n = 1 + len(rows) // 7
    assert offsets_of(logs.head(n, **options)) == expected[:n]
    assert offsets_of(logs.tail(n, **options)) == expected[-n:]


def test_typed_arguments_are_spellings_of_the_same_bounds(logs: LogList) -> None:
    log = logs["orders", 0]
    middle = np.datetime64(NOW + 600_000, "ms")
    for typed, short in [
        ({"start_offset": 5, "stop_offset": -5}, {"start": 5, "end": -5}),
        ({"start_timestamp": middle}, {"start": middle}),
        ({"stop_timestamp": NOW + 600_000}, {"end": middle}),
        ({"start_timestamp": middle}, {"start": Bound(timestamp=middle)}),  # type: ignore[arg-type]
    ]:
        assert log.to_arrow(**typed).equals(log.to_arrow(**short))  # type: ignore[arg-type]
        assert 0 < log.count(**typed) < log.count()  # type: ignore[arg-type]
    both, by_time = (log.to_arrow(start_timestamp=middle, start_offset=each)["offset"].to_pylist() for each in (60, 0))
    assert both == [offset for offset in by_time if offset >= 60] != by_time


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 1, "start_offset": 2}, "start and start_offset exclude each other"),
        ({"start": 1, "start_timestamp": 2**41}, "start and start_timestamp exclude each other"),
        ({"end": 1, "stop_offset": 2}, "end and stop_offset exclude each other"),
        ({"end": 1, "stop_timestamp": 2**41}, "end and stop_timestamp exclude each other"),
        ({"start": "erliest"}, r"start must be an offset .* got 'erliest', did you mean 'earliest'\?"),
        ({"end": "end-1"}, "end must be an offset .* got 'end-1'"),
        ({"start": "100"}, r"int\('100'\) is an offset, and start_timestamp takes milliseconds"),
        ({"end": "1700000000000"}, r"is an offset, and stop_timestamp takes milliseconds"),
        ({"start": {7: 1}}, "start names 7, which this read does not have; there are: orders-0, orders-1, users-0"),
        ({"end": {"users": {1: 1}}}, "end names users-1, which this read does not have; there are: orders-0"),
        ({"start": {"nobody": {0: 1}, "users": {0: "x"}}}, r"start\['users'\]\[0\] must be an offset"),
        ({"start": 2**63}, "start must be at most"),
        ({"last": -1}, "last must be a number of records, 0 or more, got -1"),
    ],
)
def test_bounds_that_contradict_or_mean_nothing_are_errors(
    logs: LogList, options: dict[str, Any], message: str
) -> None:
    for call in (logs.tables, logs.to_arrow, logs.reader, logs.head, logs.tail, logs.count):
        with pytest.raises(ValueError, match=message):
            call(**options)
    with pytest.raises(ValueError, match=message.partition(",")[0]):
        LogList().tables(**options)


@pytest.mark.parametrize("value", [1.5, True, [1], b"x", object(), {"orders": 5}, {0: {0: 1}}, {None: 1}, pd.NaT])
def test_bounds_of_other_types_are_errors_that_name_the_argument(logs: LogList, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^start must"):
        logs.tables(start=value)


def test_a_bound_of_an_empty_mapping_is_the_end_of_each_log(logs: LogList) -> None:
    assert logs.count(start={}, end={}) == logs.count()


def test_the_end_of_a_topic_is_that_of_all_its_partitions_that_are_read(tmp_path: Path) -> None:
    for partition, latest in ((0, NOW), (1, NOW + DAY)):
        write_segment(tmp_path / f"t-{partition}", 0, [batch(0, [latest - 60_000, latest])])
    write_segment(tmp_path / "t-2", 0, [])
    write_segment(tmp_path / "u-0", 0, [batch(0, [NOW - DAY])])
    logs = kbatch.find_logs(tmp_path)
    found = offsets_of(logs.to_arrow(start="end-90s"))
    assert found == [("t", 1, 0), ("t", 1, 1), ("u", 0, 0)]
    assert offsets_of(logs[:1].to_arrow(start="end-30s")) == [("t", 0, 1)]
    assert logs["t", 0].count(start="end-90s") == 2
    assert logs["t", 2].count(start="end-1h") == 0
    assert offsets_of(logs["t"].to_arrow(end="end-30s")) == [("t", 0, 0), ("t", 0, 1), ("t", 1, 0)]
    # The empty last segment of a log has no timestamp; the one before it has.
    write_segment(tmp_path / "u-0", 1, [])
    assert kbatch.Log(tmp_path / "u-0").last_timestamp == NOW - DAY
    same = compare_logs(logs["t"], logs["t"], start="end-90s").partitions
    assert [each.matching for each in same] == [0, 2, 0]


@pytest.mark.parametrize("start", ["-1h", "1h", timedelta(hours=1), np.timedelta64(1, "h"), pd.Timedelta(hours=1)])
@pytest.mark.parametrize("name", ["start", "start_timestamp"])
def test_an_empty_result_before_now_names_the_last_timestamp(logs: LogList, name: str, start: Any) -> None:
    options: Any = {name: start}
    expected = r'no records: the start is 20..-.*, relative to now, and the last timestamp is 2023-11-14 22:.*"end-1h"'
    reads: list[Callable[..., Any]] = [
        logs.to_arrow, logs.to_polars, logs.to_pandas, logs.count, logs.head, logs.tail, logs[0].to_arrow,
    ]  # fmt: skip
    for read in reads:
        with pytest.warns(RuntimeWarning, match=expected) as found:
            read(**options)
        assert [each.filename for each in found] == [__file__]
    for read in (logs.tables, logs[0].tables, logs.reader):
        with pytest.warns(RuntimeWarning, match=expected):
            assert sum(map(len, read(**options))) == 0
    with pytest.warns(RuntimeWarning, match=expected):
        logs.count(start={0: start, 1: start})


def test_an_empty_result_for_another_reason_is_not_explained(logs: LogList, tmp_path: Path) -> None:
    now = time.time_ns() // 1_000_000
    write_segment(tmp_path / "t-0", 0, [batch(0, [now])])
    recent = kbatch.Log(tmp_path / "t-0")
    assert recent.count(start="-1h") == 1
    assert recent.count(start="-1h", key="absent") == 0
    assert recent.to_arrow(start="-1h", key="absent").num_rows == 0
    assert logs.count(start="2030-01-01") == logs.count(end="earliest") == 0
    assert logs.count(start={0: "-1h"}, end={1: 0}) == 0
    assert LogList().count(start="-1h") == 0
    write_segment(tmp_path / "empty-0", 0, [])
    assert kbatch.Log(tmp_path / "empty-0").count(start="-1h") == 0


METHODS = ("tables", "reader", "to_arrow", "to_pandas", "to_polars", "head", "tail", "count")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("limit", r"head\(n\) returns the first records, last=n the last ones"),
        ("nrows", r"head\(n\) returns the first records, last=n the last ones"),
        ("start_time", "use start, which takes a time or an offset, or start_timestamp"),
        ("end_timestamp", "use end, which takes a time or an offset, or stop_timestamp"),
        ("topic", r'logs\["topic", 0\] choose logs'),
        ("keyz", "did you mean 'key"),
        ("value_format", "use values, the format of the values"),
        ("timestamp", "use start and end, which take times or offsets"),
        ("filter", r"kbatch.scan_logs\(...\).filter\(...\) selects records by a condition"),
        ("isolation_level", "did you mean 'isolation'?"),
        ("xyzzy", ""),
    ],
)
def test_an_unknown_argument_gets_a_suggestion_from_every_method(logs: LogList, name: str, hint: str) -> None:
    for source in (logs, logs[0]):
        for method in METHODS:
            expected = rf"^{method}\(\) got an unexpected keyword argument '{name}'{'; ' if hint else '$'}.*{hint}"
            with pytest.raises(TypeError, match=expected):
                getattr(source, method)(**{name: 3})
    with pytest.raises(TypeError, match=rf"^compare_logs\(\) got an unexpected keyword argument '{name}'"):
        compare_logs(logs, logs, **{name: 3})  # type: ignore[arg-type]


def test_all_methods_have_the_same_arguments() -> None:
    named = {*inspect.signature(kbatch.Log.tables).parameters} - {"self", "columns"}
    assert named == {*TableOptions.__annotations__}
    for method in METHODS[1:]:
        parameters = inspect.signature(getattr(Conversions, method)).parameters
        # What returns columns takes the formats of values too.
        options = TableOptions if method == "count" else ViewOptions
        assert {*options.__annotations__} <= {*parameters}, method
    assert {*ViewOptions.__annotations__} == named | {*ValueArguments.__annotations__}


def test_head_and_tail_are_of_all_logs_and_last_is_of_each(logs: LogList, rows: list[Row]) -> None:
    expected = [row[:3] for row in rows]
    for n in (0, 1, 5, 79, 80, 81, len(rows), len(rows) + 1):
        assert offsets_of(logs.head(n)) == expected[:n]
        assert offsets_of(logs.tail(n)) == expected[len(rows) - n if n <= len(rows) else 0 :]
    last = [row for name in NAMES for row in [row for row in expected if row[:2] == name][-2:]]
    assert offsets_of(logs.to_arrow(last=2)) == last
    assert offsets_of(logs.tail(3, last=2)) == last[-3:]
    assert offsets_of(logs.head(3, last=2)) == last[:3]
    assert logs.head().num_rows == logs.tail().num_rows == 5
    assert logs.head(columns=["offset"]).schema.names == ["offset"]
    with pytest.raises(ValueError, match="n must be a number of records, 0 or more, got -1"):
        logs.head(-1)
    with pytest.raises(ValueError, match="n must be a number of records, 0 or more, got -1"):
        logs.tail(-1)


def test_head_and_tail_read_only_what_they_need(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "large-0", segment_bytes=4 << 20) as writer:
        for number in range(200):
            writer.append(kbatch.encode([bytes(1000)] * 100, base_offset=100 * number, timestamps=NOW))
    log = kbatch.Log(tmp_path / "large-0")
    before = bytes_read()
    assert log.head(250)["offset"].to_pylist() == list(range(250))
    assert log.tail(3)["offset"].to_pylist() == [19_997, 19_998, 19_999]
    # The last records are searched among at least 1,024 offsets, and then read.
    assert log.size > 20_000_000
    assert bytes_read() - before < 4_000_000


def test_head_and_tail_of_damaged_logs_report_losses(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "t-0", 0, [batch(3 * i, [NOW] * 3) for i in range(4)])
    data = bytearray(segment.read_bytes())
    data[len(data) // 4 - 1] ^= 1
    segment.write_bytes(data)
    log = kbatch.Log(tmp_path / "t-0")
    with pytest.warns(RuntimeWarning, match="1 loss of"):
        assert log.head(2, on_error="skip")["offset"].to_pylist() == [3, 4]
    with pytest.raises(kbatch.CrcMismatchError):
        log.head(2)
    with pytest.warns(RuntimeWarning, match="1 loss of"):
        assert log.tail(9, on_error="skip")["offset"].to_pylist() == list(range(3, 12))


def test_the_last_records_of_a_read_that_stops_precede_the_damage(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "t-0", 0, [batch(3 * i, [NOW] * 3) for i in range(1000)])
    data = bytearray(segment.read_bytes())
    size = len(data) // 1000
    data[size * 10 - 1] ^= 1
    segment.write_bytes(data)
    log = kbatch.Log(tmp_path / "t-0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        stopped = log.to_arrow(on_error="stop")["offset"].to_pylist()
        assert stopped == list(range(27))
        assert log.to_arrow(on_error="stop", last=5)["offset"].to_pylist() == stopped[-5:]
        assert log.tail(5, on_error="stop")["offset"].to_pylist() == stopped[-5:]


@pytest.mark.parametrize("many", [False, True])
def test_every_library_takes_logs_and_their_readers(many: bool) -> None:
    logs = kbatch.find_logs(LOGS, topics="codec-*")
    source = logs if many else logs[1]
    expected = source.to_arrow()
    assert source.schema == expected.schema
    reads: list[Callable[[Any], pa.Table]] = [
        pa.table,
        lambda x: pl.DataFrame(x).to_arrow().cast(expected.schema),
        lambda x: pa.Table.from_pandas(pd.DataFrame.from_arrow(x), schema=expected.schema),
        lambda x: duckdb.sql("from x").to_arrow_table().cast(expected.schema),
    ]
    for read in reads:
        assert read(source).equals(expected)
        assert read(source.reader()).equals(expected)
    chosen = source.reader(columns=["offset", "key"], start=100, key="key-8", binary="binary_view")
    assert chosen.schema == pa.schema([("offset", pa.int64()), ("key", pa.binary_view())])
    assert chosen.read_all().equals(
        source.to_arrow(columns=["offset", "key"], start=100, key="key-8", binary="binary_view")
    )


def tables_alive() -> int:
    return sum(isinstance(each, kbatch.RecordTable) for each in gc.get_objects())


@pytest.mark.parametrize("options", [{}, {"key": "key-8"}, {"start": "end-1d"}, {"last": 10**6}, {"start": "-20000d"}])
def test_a_reader_of_many_logs_holds_at_most_two_tables(options: Any) -> None:
    logs = kbatch.find_logs(LOGS, topics="codec-*")
    before = tables_alive()
    expected = logs.count(**options)
    rows = 0
    for number, made in enumerate(logs.reader(max_bytes=1, **options)):
        rows += made.num_rows
        # Looking at all objects takes as long as reading a hundred tables.
        if number % 50 == 0:
            assert tables_alive() - before <= 2
    assert rows == expected > 0
    assert tables_alive() == before


def test_errors_of_a_reader_are_those_of_the_log(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "t-0", 0, [batch(3 * i, [NOW] * 3) for i in range(4)])
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    with pytest.raises(kbatch.CrcMismatchError):
        kbatch.Log(tmp_path / "t-0").reader().read_all()


@pytest.mark.parametrize("topic", ["codec-zstd", "codec-lz4", "magic0", "mixed", "txn"])
def test_the_records_of_a_key_are_those_of_a_full_read(topic: str) -> None:
    log = kbatch.find_logs(LOGS)[topic, 0]
    full = log.to_arrow(columns=["offset", "key"])
    pairs = list(zip(full["offset"].to_pylist(), full["key"].to_pylist(), strict=True))
    keys = {key for _, key in pairs if key is not None}
    assert keys
    for key in [*sorted(keys)[:20], b"absent"]:
        expected = [offset for offset, each in pairs if each == key]
        assert log.to_arrow(columns=["offset"], key=key)["offset"].to_pylist() == expected
        tables = list(log.tables(key=key))
        assert all(table.keys() == [key] * len(table) for table in tables)
        assert sum(map(len, tables)) == len(expected)


def test_a_key_of_another_type_is_an_error(logs: LogList) -> None:
    with pytest.raises(TypeError, match="key must be bytes, a str or None, got int"):
        logs.tables(key=5)  # type: ignore[arg-type]


def test_logs_are_chosen_by_topic_and_partition(logs: LogList, tmp_path: Path) -> None:
    assert [log.partition for log in logs["orders"]] == [0, 1]
    assert logs["orders", 1] is logs[1]
    assert logs["users", np.int64(0)] is logs[2]
    assert logs["orders"]["orders", 0] is logs[0]
    assert "users" in logs
    assert ("orders", 1) in logs
    assert logs[1] in logs
    assert not any(other in logs for other in ("order", ("orders", 2), logs[1].path, None))
    with pytest.raises(KeyError, match=r"no log of topic 'order', did you mean 'orders'\?"):
        logs["order"]
    with pytest.raises(KeyError, match="no log of topic 'xyzzy'; the topics are orders, users"):
        logs["xyzzy", 0]
    with pytest.raises(KeyError, match="no log of orders-2; the partitions of 'orders' are 0, 1"):
        logs["orders", 2]
    for wrong in (("orders",), ("orders", "0"), (0, "orders"), ("orders", True)):
        with pytest.raises(TypeError, match=r"indexed by a place, a slice, a topic or \(topic, partition\)"):
            logs[wrong]  # type: ignore[call-overload]
    future = "t-0.0123456789abcdef0123456789abcdef-"
    for name in ("t-0", f"{future}future", f"{future}delete", f"{future.replace('t-0', 'u-0')}future"):
        write_segment(tmp_path / name, 0, [batch(0, [NOW])])
    marked = kbatch.find_logs(tmp_path, marked=True)
    assert marked["t", 0].mark is None
    assert marked["u", 0].mark == "future"
    both = LogList([log for log in marked if log.mark is not None])
    with pytest.raises(KeyError, match=r"several logs of t-0: .*delete, .*future"):
        both["t", 0]
