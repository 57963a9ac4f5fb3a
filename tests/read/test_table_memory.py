"""The memory of a table is bounded, for every codec, magic and route: `Limits.max_table_bytes` and `max_bytes`."""

from __future__ import annotations

import functools
import operator
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bombs import MIB, RECORD, batch, measured, message, record, wrapper

import kbatch
from kbatch import LimitExceededError, Limits
from kbatch.cli import main
from kbatch.format import BATCH_DTYPE, BatchStatus
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import Split
from kbatch.plan.tasks import task_tables
from kbatch.read import budget
from kbatch.tuning import MIN_SPLIT_TABLE

LIMIT = 24 * MIB
LIMITS = Limits(max_table_bytes=LIMIT)
# The increase that is allowed during a call. The window of a zstd frame is at most this in frames of Kafka's clients.
WINDOW = 8 * MIB
MOST = LIMIT * 13 // 10 + WINDOW

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CODECS = ("gzip", "snappy", "lz4", "zstd")


def many_records(codec: str) -> bytes:
    """4 MiB of payload, 37 MiB with the rows."""
    count = 4 * MIB // len(RECORD)
    return batch(RECORD * count, count, codec)


def too_many_records(codec: str) -> bytes:
    count = 3 * LIMIT // len(RECORD)
    return batch(RECORD * count, count, codec)


def many_headers(codec: str) -> bytes:
    """6 MiB of headers, which become 96 MiB of header rows."""
    return batch(record(headers=3 * MIB), 1, codec)


def large_value(codec: str) -> bytes:
    return batch(record(bytes(3 * LIMIT)), 1, codec)


def ten_batches(codec: str) -> bytes:
    return b"".join(batch(record(bytes(LIMIT // 3)), 1, codec, offset=i) for i in range(10))


def message_sets(codec: str) -> bytes:
    """Two wrappers of magic 0 and 1, each of 5 MiB of messages and 10 MiB of rows."""
    return wrapper(0, 200_000, codec) + wrapper(1, 150_000, codec)


def large_message_set(codec: str) -> bytes:
    return wrapper(1, LIMIT // 12, codec)


KINDS = (many_records, too_many_records, many_headers, large_value, ten_batches, message_sets, large_message_set)
BOMBS = [
    pytest.param(kind, codec, id=f"{kind.__name__}-{codec}")
    for kind in KINDS
    for codec in CODECS
    if codec != "zstd" or kind not in (message_sets, large_message_set)
]


@functools.cache
def bomb(kind: Callable[[str], bytes], codec: str) -> bytes:
    """Return a bomb, which is small until it is decompressed."""
    # What the first call of a process allocates is not counted.
    drained(kbatch.decode_stream([batch(record(bytes(MIB)), 1, codec)]))
    return kind(codec)


def drained(tables: Iterator[kbatch.RecordTable]) -> int:
    """Read all tables, and make the header rows of each; return the number of records."""
    total = 0
    for table in tables:
        total += len(table)
        if "headers" in table.columns:
            assert table.headers is not None
        del table
    return total


def segment(directory: Path, data: bytes) -> str:
    (directory / "t-0").mkdir()
    path = directory / "t-0" / "00000000000000000000.log"
    path.write_bytes(data)
    return str(path)


def is_refusal(result: Any, advice: str) -> bool:
    return isinstance(result, str) and result.startswith("LimitExceededError") and advice in result


@linux
@pytest.mark.parametrize(("kind", "codec"), BOMBS)
def test_decode_stays_within_the_limit_or_names_it(kind: Callable[[str], bytes], codec: str) -> None:
    data = bomb(kind, codec)
    others = ({"threads": 4}, {"columns": ["offset"]}, {"on_error": "skip"})
    # Over all bombs, each codec and each kind has each of the options.
    for options in ({}, others[(KINDS.index(kind) + CODECS.index(codec)) % len(others)]):
        increase, result = measured(lambda options=options: len(kbatch.decode(data, limits=LIMITS, **options)))
        assert increase <= MOST, options
        assert isinstance(result, int) or is_refusal(result, "raise Limits(max_table_bytes=...)"), result


@linux
def test_the_window_of_an_earlier_zstd_frame_is_not_filled_by_later_ones() -> None:
    """The library fills all of a window, however small the next frame's window is."""
    bombs = batch(record(bytes(MIB)), 1, "zstd", style="wide"), bomb(large_value, "zstd")

    def decoded() -> int:
        return sum(len(kbatch.decode(data, limits=LIMITS, on_error="skip")) for data in bombs)

    increase, result = measured(decoded)
    assert increase <= MOST
    assert result == 1


@linux
@pytest.mark.parametrize(("kind", "codec"), BOMBS)
def test_streams_and_logs_split_or_name_the_limit(kind: Callable[[str], bytes], codec: str, tmp_path: Path) -> None:
    data = bomb(kind, codec)
    directory = Path(segment(tmp_path, data)).parent
    routes: dict[str, Callable[[], int]] = {
        "decode_stream": lambda: drained(kbatch.decode_stream([data], max_bytes=LIMIT)),
        "Log.tables": lambda: drained(kbatch.Log(directory).tables(max_bytes=LIMIT, threads=2)),
    }
    for name, call in routes.items():
        increase, result = measured(call)
        assert increase <= MOST, name
        if kind in (many_records, ten_batches, message_sets):
            assert isinstance(result, int), result
        else:
            assert is_refusal(result, "raise max_bytes"), result


LARGE = 64 * MIB


def repeated(payload: bytes, count: int, times: int, codec: str) -> bytes:
    return batch(payload * count, count, codec) * times


# Logs of about 140 MiB with their rows, and the text of an error if a batch does not fit.
LOGS: dict[str, tuple[Callable[[str], bytes], str]] = {
    "large values": (lambda codec: repeated(record(b"lorem ipsum " * 80), 1000, 150, codec), ""),
    "small values": (lambda codec: repeated(record(b"value"), 5000, 400, codec), ""),
    "headers": (lambda codec: repeated(record(b"value", headers=4), 1000, 700, codec), ""),
    "rows, then values": (
        lambda codec: (repeated(RECORD, 70_000, 15, codec) + repeated(record(bytes(4 * MIB)), 1, 15, codec)) * 2,
        "",
    ),
    "values, then headers": (
        lambda codec: (
            (batch(record(bytes(LARGE // 2)), 1, codec) + repeated(record(headers=LARGE // 80), 1, 3, codec)) * 2
        ),
        "",
    ),
    "large batches": (lambda codec: batch(record(random.Random(1).randbytes(LARGE * 3 // 10)), 1, codec) * 4, ""),
    "larger batches": (
        lambda codec: batch(record(random.Random(1).randbytes(LARGE * 7 // 10)), 1, codec) * 2,
        "raise max_bytes to decode it",
    ),
    "batches above the limit": (
        lambda codec: batch(record(random.Random(1).randbytes(LARGE * 8 // 10)), 1, codec),
        "above the limit of 50331648; raise max_bytes if such batches are valid",
    ),
}


@linux
@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("kind", LOGS)
def test_a_log_is_read_within_a_larger_limit(kind: str, codec: str, tmp_path: Path) -> None:
    """The caller makes the header rows of each table, and drops it before the next one."""
    bomb(large_value, codec)
    make, error = LOGS[kind]
    log = kbatch.Log(Path(segment(tmp_path, make(codec))).parent)
    increase, result = measured(lambda: drained(log.tables(max_bytes=LARGE, threads=2)))
    assert increase <= LARGE * 13 // 10 + WINDOW
    if error and not (codec == "none" and kind == "larger batches"):
        assert is_refusal(result, error), result
    else:
        assert result == log.batches()["record_count"].sum()


@linux
@pytest.mark.parametrize("command", ["scan", "verify", "stats", "dump"])
@pytest.mark.parametrize("kind", [many_records, large_value])
def test_commands_stay_within_the_default(
    kind: Callable[[str], bytes], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = segment(tmp_path, bomb(kind, "zstd"))
    monkeypatch.setattr(budget, "default_table_bytes", lambda: LIMIT)
    if command == "scan":
        increase, _ = measured(lambda: len(kbatch.scan(bomb(kind, "zstd"))))
    else:
        increase, _ = measured(lambda: main([command, path]))
    # Statistics and checks of the records of a table take memory in addition to the table.
    assert increase <= MOST + LIMIT


@linux
def test_a_task_of_spark_splits_a_batch(tmp_path: Path) -> None:
    count = 1_000_000
    path = segment(tmp_path, batch(RECORD * count, count, "zstd"))
    split = Split(path, 0, (size := Path(path).stat().st_size), size, True, "t", 0, None, None, None)
    increase, result = measured(lambda: drained(map(operator.itemgetter(1), task_tables([split], ReadOptions()))))
    assert result == count
    # 7 MB of payload, and 64 MB of rows.
    assert increase <= 13 * (32 * MIB) // 10 + WINDOW


def test_a_refused_batch_is_damage() -> None:
    limits = Limits(max_table_bytes=100_000)
    small, large = batch(record(b"v"), 1), batch(RECORD * 5000, 5000, "gzip", offset=1)
    data = small + large + batch(record(b"w"), 1, offset=6000)
    with pytest.raises(
        LimitExceededError, match=r"base offset 1: .*100000 bytes .* raise Limits\(max_table_bytes=...\)"
    ):
        kbatch.decode(data, limits=limits)
    table = kbatch.decode(data, limits=limits, on_error="skip")
    assert table.values() == [b"v", b"w"]
    assert table.batches["status"].tolist() == [BatchStatus.OK, BatchStatus.OVER_LIMIT, BatchStatus.OK]
    assert [(loss.position, loss.length) for loss in table.losses] == [(len(small), len(large))]
    assert kbatch.decode(data, limits=limits, on_error="stop").values() == [b"v"]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_the_limit_counts_rows_and_decompressed_payloads(codec: str, threads: int) -> None:
    count = 2000
    data = batch(RECORD * count, count, codec)
    payload = 0 if codec == "none" else len(RECORD) * count
    needed = 56 * count + BATCH_DTYPE.itemsize + payload
    assert len(kbatch.decode(data, limits=Limits(max_table_bytes=needed), threads=threads)) == count
    with pytest.raises(LimitExceededError, match="max_table_bytes"):
        kbatch.decode(data, limits=Limits(max_table_bytes=needed - 1), threads=threads)


@pytest.mark.parametrize("magic", [0, 1])
def test_the_limit_counts_the_rows_of_message_sets(magic: int) -> None:
    data = wrapper(magic, 1000, "gzip")
    needed = 56 * 1000 + BATCH_DTYPE.itemsize + 1000 * len(message(magic, None))
    assert len(kbatch.decode(data, limits=Limits(max_table_bytes=needed))) == 1000
    with pytest.raises(LimitExceededError, match="max_table_bytes"):
        kbatch.decode(data, limits=Limits(max_table_bytes=needed - 1))
    plain = b"".join(message(magic, b"v", offset=i) for i in range(1000))
    assert len(kbatch.decode(plain, limits=Limits(max_table_bytes=(56 + BATCH_DTYPE.itemsize) * 1000))) == 1000
    with pytest.raises(LimitExceededError, match="max_table_bytes"):
        kbatch.decode(plain, limits=Limits(max_table_bytes=(56 + BATCH_DTYPE.itemsize) * 1000 - 1))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_a_false_record_count_is_reported_and_not_the_limit(codec: str, threads: int) -> None:
    data = batch(RECORD * 10, 2**31 - 1, codec)
    with pytest.raises(kbatch.InvalidRecordError, match="record count"):
        kbatch.decode(data, limits=Limits(max_table_bytes=1 << 20), threads=threads)


def test_header_rows_and_views_are_refused_above_the_limit() -> None:
    data = batch(record(headers=10_000), 1, "gzip")
    table = kbatch.decode(data, limits=Limits(max_table_bytes=200_000))
    with pytest.raises(LimitExceededError, match=r"header rows of 1 record take 320000 bytes.*max_table_bytes"):
        _ = table.headers
    assert len(kbatch.decode(data, limits=Limits(max_table_bytes=400_000)).headers) == 10_000

    count = 1000
    data = batch(record(b"x" * 40) * count, count, "gzip")
    size = kbatch.decode(data)
    base = size.records.nbytes + size.batches.nbytes + size.data.nbytes
    table = kbatch.decode(data, limits=Limits(max_table_bytes=base + 20_000))
    assert len(table) == count
    for view in (table.to_arrow, table.to_pandas, table.values, table.to_polars):
        with pytest.raises(LimitExceededError, match=r"raise limits=kbatch\.Limits\(max_table_bytes=\.\.\.\)"):
            view()
    assert table[:10].to_arrow().num_rows == 10
    table = kbatch.decode(data, limits=Limits(max_table_bytes=base + 200_000))
    assert table.to_arrow().num_rows == len(table.to_pandas()) == len(table.values()) == count


BATCHES = st.lists(
    st.tuples(
        st.sampled_from(["none", *CODECS, "message", "wrapper-0", "wrapper-1"]),
        st.integers(1, 400),
        st.integers(0, 30),
        st.integers(0, 4),
    ),
    min_size=1,
    max_size=6,
)


def made(batches: list[tuple[str, int, int, int]]) -> bytes:
    parts, offset = [], 0
    for kind, count, size, headers in batches:
        if kind == "message":
            parts += [message(1, b"m" * size, offset=offset + i) for i in range(count)]
        elif kind.startswith("wrapper"):
            parts.append(wrapper(int(kind[-1]), count, "gzip", b"w" * size))
        else:
            parts.append(batch(record(b"v" * size, headers) * count, count, kind, offset=offset))
        offset += count
    return b"".join(parts)


def contents(table: kbatch.RecordTable) -> list[Any]:
    headers = table._by_record(table.headers[["key_len", "value_len"]].tolist())
    rows = table.records[["offset", "timestamp"]].tolist()
    return list(zip(rows, table.keys(), table.values(), headers, strict=True))


@settings(deadline=None, max_examples=60)
@given(BATCHES, st.sampled_from([40_000, 60_000, 200_000]), st.sampled_from([1, 3]), st.booleans())
def test_split_tables_have_the_records_of_one_table(
    batches: list[tuple[str, int, int, int]], max_bytes: int, threads: int, trimmed: bool
) -> None:
    data = made(batches)
    options: dict[str, Any] = {"start_offset": 20, "stop_offset": 500} if trimmed else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "MIN_SPLIT_TABLE", 1)
        whole = kbatch.decode(data, **options)
        tables = list(kbatch.decode_stream([data], max_bytes=max_bytes, threads=threads, **options))
    assert [row for table in tables for row in contents(table)] == contents(whole)
    names = [name for name in BATCH_DTYPE.names or () if name != "first_record"]
    rows = [row for table in tables for row in table.batches[names].tolist()[table.continued :]]
    assert rows == whole.batches[names].tolist()
    # The end of a stream without a record has no table.
    assert trimmed or sum(table.consumed for table in tables) == whole.consumed
    for table in tables:
        assert (np.diff(table.records["batch"]) >= 0).all()
        size = table.records.nbytes + table.headers.nbytes + table.batches.nbytes
        assert size <= max_bytes * 5 // 4 + 1000
    if tables:
        joined = kbatch.concat_tables(tables)
        assert contents(joined) == contents(whole)
        assert joined.batches.tolist() == whole.batches.tolist()


@pytest.mark.parametrize("codec", ["none", *CODECS])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_split_batch_is_all_or_nothing(codec: str, on_error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MIN_SPLIT_TABLE", 1)
    good = batch(record(b"v") * 5, 5)
    # The last record ends after the payload.
    bad = batch(RECORD * 999 + b"\x0e" + RECORD[1:], 1000, codec, offset=5)
    tables = kbatch.decode_stream([good + bad + batch(RECORD, 1, offset=2000)], max_bytes=20_000, on_error=on_error)
    if on_error == "raise":
        assert len(next(tables)) == 5
        with pytest.raises(kbatch.InvalidRecordError, match="record 999"):
            next(tables)
        return
    found = list(tables)
    assert [offset for table in found for offset in table.records["offset"].tolist()] == [0] * 5 + [2000]
    assert [(loss.position, loss.length) for table in found for loss in table.losses] == [(len(good), len(bad))]


def test_a_notebook_shows_a_log_whose_first_batch_is_large(tmp_path: Path) -> None:
    log = kbatch.Log(Path(segment(tmp_path, batch(record(bytes(MIN_SPLIT_TABLE)), 1, "zstd"))).parent)
    with pytest.raises(LimitExceededError, match="raise max_bytes"):
        list(log.tables(max_bytes=1))
    shown = log._repr_html_()
    assert "(16,777,216 bytes)" in shown
    assert "max_bytes" not in shown


def test_flush_returns_tables_within_the_limit() -> None:
    data = b"".join(batch(RECORD * 1000, 1000, "gzip", offset=1000 * i) for i in range(10))
    decoder = kbatch.StreamDecoder(limits=Limits(max_table_bytes=200_000))
    decoder.feed(data)
    sizes = []
    while len(table := decoder.flush()):
        sizes.append(len(table))
        assert table.records.nbytes + table.data.nbytes + table.batches.nbytes <= 200_000
    assert sum(sizes) == 10_000
    assert len(sizes) > 3
    assert len(decoder.finish()) == 0


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("on_error", ["raise", "stop", "skip"])
@pytest.mark.parametrize("sizes", [[1000] * 10, [10_000], [100, 10_000, 100]], ids=["batches", "one batch", "mixed"])
def test_finish_does_not_lose_batches_that_exceed_a_table(sizes: list[int], on_error: Any, isolation: Any) -> None:
    """`finish` refuses a rest of several tables, which `flush` returns; the end of the stream is a loss as ever."""
    firsts = np.cumsum([0, *sizes])[:-1].tolist()
    data = b"".join(batch(RECORD * n, n, "gzip", offset=at) for at, n in zip(firsts, sizes, strict=True))
    decoder = kbatch.StreamDecoder(
        limits=Limits(max_table_bytes=200_000), on_error=on_error, isolation=isolation, source="orders"
    )
    decoder.feed(data if on_error == "raise" else data + data[:50])
    for _ in range(2):
        with pytest.raises(LimitExceededError, match=r"the rest of the stream .* call flush\(\) until"):
            decoder.finish()
        assert decoder.position == 0
    with pytest.raises(ValueError, match="stream is finished"):
        decoder.feed(b"")
    tables = []
    while len((table := decoder.flush()).batches):
        assert table.records.nbytes + table.data.nbytes <= 200_000
        tables.append(table)
    assert np.array_equal(np.concatenate([table.records["offset"] for table in tables]), np.repeat(firsts, sizes))
    assert len(tables) > 3
    assert sum(table.consumed for table in tables) == len(data)
    last = decoder.finish()
    losses = [loss for each in (*tables, table, last) for loss in each.losses]
    assert [loss[:2] for loss in losses] == ([] if on_error == "raise" else [(len(data), 50)])
    assert len(decoder.finish()) == 0


def test_a_stream_may_be_continued_after_finish_refused_a_large_rest_with_an_incomplete_end() -> None:
    data = b"".join(batch(RECORD * 1000, 1000, "gzip", offset=1000 * i) for i in range(10))
    decoder = kbatch.StreamDecoder(limits=Limits(max_table_bytes=200_000))
    decoder.feed(data[:-1])
    with pytest.raises(LimitExceededError, match="call flush"):
        decoder.finish()
    total = 0
    while len(table := decoder.flush()):
        total += len(table)
    with pytest.raises(kbatch.TruncatedBatchError, match="feed the rest"):
        decoder.finish()
    decoder.feed(data[-1:])
    assert total + len(decoder.finish()) == 10_000


def keyed(count: int) -> bytes:
    """Records with a key and a value of two bytes, which take 128 bytes as Python objects."""
    body = b"\0\0\0\x04ab\x04cd\0"
    return batch((bytes([2 * len(body)]) + body) * count, count, "zstd")


VIEWED: dict[str, Callable[[], bytes]] = {
    "headers": lambda: batch(record(headers=1000) * 1000, 1000, "zstd"),
    "headers of a record": lambda: batch(record(headers=MIB // 2), 1, "zstd"),
    "keys and values": lambda: keyed(500_000),
    "rows": lambda: batch(RECORD * 600_000, 600_000, "zstd"),
    "large values": lambda: batch(record(bytes(10 * MIB)) * 4, 4, "zstd"),
}
TABLE_VIEWS: dict[str, Callable[[kbatch.RecordTable], Any]] = {
    "to_pandas": lambda table: table.to_pandas(),
    "to_pandas with Arrow types": lambda table: table.to_pandas(dtype_backend="pyarrow"),
    "to_pandas of headers": lambda table: table.to_pandas(columns=["headers"]),
    "to_arrow": lambda table: table.to_arrow(),
    "to_arrow with int64 offsets": lambda table: table.to_arrow(binary="large_binary"),
    "to_arrow with views": lambda table: table.to_arrow(binary="binary_view"),
    "keys": lambda table: table.keys(),
    "values": lambda table: table.values(),
    "value": lambda table: table.value(0),
    "headers_of": lambda table: table.headers_of(0),
    "headers_of, after the header rows": lambda table: (table.headers, table.headers_of(0)),
    "values_as": lambda table: table.values_as("S40", fill=b"x"),
    "mask": lambda table: table[np.ones(len(table), np.bool_)],
    "batches of a slice": lambda table: table[1:].batches,
    "HTML": lambda table: table._repr_html_(),
}


@functools.cache
def viewed_data(kind: str) -> bytes:
    return VIEWED[kind]()


@linux
@pytest.mark.parametrize("view", TABLE_VIEWS)
@pytest.mark.parametrize("kind", VIEWED)
def test_a_table_with_a_view_stays_within_the_limit_or_names_it(kind: str, view: str) -> None:
    data = viewed_data(kind)
    make = TABLE_VIEWS[view]
    # Libraries that are imported by the first view are not counted.
    make(kbatch.decode(batch(record(b"x" * 40, headers=1), 1, "zstd")))

    def viewed(limit: int) -> int:
        table = kbatch.decode(data, limits=Limits(max_table_bytes=limit))
        result = make(table)
        del result
        return len(table)

    for limit in (48 * MIB, 128 * MIB):
        increase, result = measured(functools.partial(viewed, limit))
        assert increase <= limit * 13 // 10 + WINDOW, (limit, result)
        errors = (r"raise limits=kbatch.Limits(max_table_bytes=...)", "ValueError: offset 0: dtype |S40")
        assert isinstance(result, int) or any(error in result for error in errors), result
    _, result = measured(functools.partial(viewed, 1 << 30))
    assert isinstance(result, int) or "dtype |S40" in result


@pytest.mark.parametrize(
    ("data", "needed"),
    [
        # Two lists of objects of 64 bytes, an empty tuple of headers, and 23 bytes of Arrow columns, copied once.
        (keyed(1000), 1000 * (2 * (64 + 2) + 16 + 2 * 23)),
        # A header row, a pair of shared objects, and the tuple of the record.
        (batch(record(headers=1000), 1, "zstd"), 1000 * (32 + 96) + 96 + 2 * 16 + 2 * 23),
    ],
    ids=["keys and values", "headers"],
)
def test_the_columns_of_a_frame_count_together(data: bytes, needed: int) -> None:
    table = kbatch.decode(data)
    needed += table.records.nbytes + table.batches.nbytes + table.data.nbytes
    assert len(kbatch.decode(data, limits=Limits(max_table_bytes=needed)).to_pandas()) == len(table)
    with pytest.raises(LimitExceededError, match=r"Python objects of .* raise limits=kbatch\.Limits\(max_table_bytes"):
        kbatch.decode(data, limits=Limits(max_table_bytes=needed - 1)).to_pandas()


def test_repeated_rows_count_as_often_as_they_are_selected() -> None:
    data = batch(record(b"x" * 1000), 1, "zstd")
    table = kbatch.decode(data, limits=Limits(max_table_bytes=100_000))
    repeated_rows = table[[0] * 500]
    for view in (repeated_rows.values, repeated_rows.to_arrow, repeated_rows.to_pandas):
        with pytest.raises(LimitExceededError, match="max_table_bytes"):
            view()
    with pytest.raises(LimitExceededError, match="the selected rows of 5,000 records take 280000 bytes"):
        _ = table[[0] * 5000]


def test_the_cast_of_a_requested_schema_counts() -> None:
    pa = pytest.importorskip("pyarrow")
    table = kbatch.decode(keyed(1000), limits=Limits(max_table_bytes=100_000))
    columns = ["offset", "value"]
    assert table.to_arrow(columns=columns).num_rows == 1000
    requested = pa.schema([("offset", pa.decimal128(38, 0)), ("value", pa.string())]).__arrow_c_schema__()
    with pytest.raises(LimitExceededError, match="max_table_bytes"):
        table.__arrow_c_stream__(requested)
