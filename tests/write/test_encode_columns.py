"""Every kind of column that encode() accepts, and the checks of their contents."""

from __future__ import annotations

import datetime
import decimal
import itertools
import json
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kbatch
from kbatch.batches.codecs import own_codecs
from kbatch.kernels import encode as kernel
from kbatch.kernels.sizes import Plan
from kbatch.kernels.source import Column, RecordColumns
from kbatch.write.composing import compose, plan_batches

VALUES = [b"", b"a", None, b"four", b"twelve bytes", b"thirteen byte", b"x" * 40, None, b"y" * 100, b"\0nul\0"]
TEXTS = [None if v is None else v.decode() for v in VALUES]
LONG = st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=9), st.integers(1, 30))
COLUMN = st.lists(st.one_of(st.none(), st.binary(max_size=20), LONG), max_size=700)


def written(values: Any, **options: Any) -> list[bytes | None]:
    """Encode the values, and return the decoded ones."""
    return kbatch.decode(kbatch.encode(values, timestamps=0, **options)).values()


TYPES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.string(), pa.large_string(), pa.string_view()]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_arrow_columns_are_encoded(kind: pa.DataType) -> None:
    array = pa.array(VALUES, pa.binary()).cast(pa.string()).cast(kind)
    assert written(array) == VALUES
    assert written(array.slice(2, 5)) == VALUES[2:7]
    assert written(array.slice(10)) == []
    assert written(pa.chunked_array([array.slice(3), array.slice(0, 0), array])) == VALUES[3:] + VALUES
    assert written(pa.chunked_array([], kind)) == []
    assert written(pa.array([None] * 9, kind)) == [None] * 9
    whole = pa.array([v for v in VALUES if v], pa.binary()).cast(kind)
    assert whole.buffers()[0] is None
    assert written(whole) == [v for v in VALUES if v]


@given(column=COLUMN, cuts=st.lists(st.integers(0, 700), max_size=4), kind=st.sampled_from(TYPES[:3]))
def test_chunks_may_have_any_size(column: list[bytes | None], cuts: list[int], kind: pa.DataType) -> None:
    """Chunks may end anywhere within a block of rows."""
    array = pa.array(column, pa.binary()).cast(kind)
    bounds = [0, *sorted(min(cut, len(column)) for cut in cuts), len(column)]
    chunked = pa.chunked_array([array.slice(a, b - a) for a, b in itertools.pairwise(bounds)], kind)
    assert written(chunked, keys=column[::-1]) == column
    assert kbatch.decode(kbatch.encode(column[::-1], keys=chunked, timestamps=0, batch_size=500)).keys() == column


def test_other_arrow_columns_are_encoded() -> None:
    assert written(pa.array([b"abcd", None, b"efgh"], pa.binary(4)).slice(1)) == [None, b"efgh"]
    assert written(pa.array([b"", None], pa.binary(0))) == [b"", None]
    assert written(pa.array([1, None, -1], pa.int32())) == [b"\1\0\0\0", None, b"\xff\xff\xff\xff"]
    assert written(pa.array([1.5], pa.float64())) == [np.float64(1.5).tobytes()]
    assert written(pa.array(VALUES, pa.binary()).dictionary_encode()) == VALUES
    assert written(pa.nulls(3)) == [None] * 3
    assert written(pa.array([b"a" * 16], pa.uuid() if hasattr(pa, "uuid") else pa.binary(16))) == [b"a" * 16]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([True, None]),
        pa.array([decimal.Decimal("1.5"), None]),
        pa.array([decimal.Decimal("1.5"), None], pa.decimal256(50, 2)),
        pa.array([datetime.date(2026, 1, 1), None]),
        pa.array([datetime.date(2026, 1, 1), None], pa.date64()),
        pa.array([0, None], pa.timestamp("ms")),
        pa.array([0, None], pa.timestamp("us", "UTC")),
        pa.array([0, None], pa.time32("s")),
        pa.array([0, None], pa.time64("us")),
        pa.array([0, None], pa.duration("ms")),
        pa.array([[1], None]),
        pa.array([{"a": "b"}, None]),
        pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
        pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    ],
    ids=lambda array: str(array.type),
)
def test_errors_recommend_a_conversion_of_arrow_columns(array: pa.Array) -> None:
    """The conversion that the message recommends gives bytes, and nulls stay null."""
    with pytest.raises(TypeError, match=r"must not be an Arrow column of .*; ") as caught:
        kbatch.encode(array)
    casts = re.findall(r"\bto (\w+) for", str(caught.value))
    for name in casts:
        cast = array.cast(getattr(pa, name)())
        value, null = written(cast)
        assert null is None
        text = str(cast[0].as_py()).encode()
        assert value == (text if name == "string" else cast[:1].to_numpy(False).astype(name).tobytes())
    if not casts:
        code = re.search(r"as in (\[.*\])$", str(caught.value))
        assert code is not None
        value, null = written(eval(code[1], {"values": array, "json": json}))
        assert value is not None
        assert null is None


@pytest.mark.parametrize(
    "values",
    [
        ["a", None, b"b"],
        np.array(["a", "bc"]),
        np.array(["a", b"b", None], object),
        pd.Series(["a", None], dtype=object),
    ],
)
def test_errors_recommend_to_encode_strings(values: Any) -> None:
    with pytest.raises(TypeError, match="encode the strings, as in ") as caught:
        kbatch.encode(values)
    code = re.search(r"as in (\[.*\])$", str(caught.value))
    assert code is not None
    expected = [v.encode() if isinstance(v, str) else v for v in values]
    assert written(eval(code[1], {"values": values})) == expected


def test_objects_of_polars_are_not_written_as_their_addresses() -> None:
    with pytest.raises(TypeError, match=r"values\[1\] must be bytes or None, got object"):
        kbatch.encode(pl.Series([b"a", object()], dtype=pl.Object))
    assert written(pl.Series([b"a", None], dtype=pl.Object)) == [b"a", None]


@pytest.mark.parametrize("kind", [pa.table, pd.DataFrame, pl.DataFrame, lambda of: pa.record_batch(of)])
def test_frames_are_not_columns(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"values must be one column, got a (Table|DataFrame|RecordBatch) with 2"):
        kbatch.encode(kind({"a": [b"a"], "b": [b"b"]}))


@given(column=COLUMN)
def test_sequences_of_bytes_are_encoded(column: list[bytes | None]) -> None:
    assert written(column) == column
    assert written(tuple(column)) == column
    assert written(value for value in column) == column
    assert written(np.array([*column, None], object)[:-1]) == column
    assert written(pl.Series(column, dtype=pl.Binary)) == column
    assert written(pd.Series(column, dtype=object)) == column


def test_bytes_like_items_are_encoded() -> None:
    class Bytes(bytes):
        pass

    assert written([bytearray(b"a"), memoryview(b"bc"), Bytes(b"d"), None]) == [b"a", b"bc", b"d", None]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["a"], r"values\[0\] must be bytes or None, got str: encode the strings"),
        ([b"a", 5], r"values\[1\] must be bytes or None, got int: use NumPy arrays"),
        ([b"a", 1.5], r"values\[1\] must be bytes or None, got float: use NumPy arrays"),
        (b"abc", "values must be a sequence of bytes or None, .* got bytes"),
        ("abc", "got str"),
        ({"a": b"b"}, "got dict"),
        (7, "got int"),
        (np.array(["a"]), "must not be an array of <U1: encode the strings"),
        (np.array(["a"], object), r"values\[0\] must be bytes or None, got str"),
        (np.zeros((2, 2)), "2 dimensions of float64"),
        (np.zeros((2, 2, 2), np.uint8), "3 dimensions of uint8"),
        (np.array(5), "0 dimensions"),
        (np.zeros(2, [("a", object)]), "contain Python objects"),
        (None, "values=None needs keys"),
        (pd.Series(["a"], dtype=object), r"values\[0\] must be bytes or None, got str"),
    ],
)
def test_columns_without_bytes_are_refused(values: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        kbatch.encode(values)


def items_of(array: Any) -> list[bytes]:
    return [array[i : i + 1].tobytes() for i in range(len(array))]


def test_numpy_items_are_encoded_as_their_bytes() -> None:
    numbers = np.arange(-3, 300, dtype=">i8")
    for array in (
        numbers,
        numbers[::3],
        numbers[::-1],
        numbers.astype("<f4"),
        numbers.astype("?"),
        numbers.view([("a", ">i4"), ("b", "V4")]),
        numbers.view("V8"),
        np.array(["2026-01-01", "NaT"], "datetime64[s]"),
        np.empty(0, ">u2"),
    ):
        assert written(array) == items_of(array)
    table = np.zeros(5, [("x", "u1"), ("n", "<i4")])
    table["n"] = range(5)
    assert written(table["n"]) == items_of(table["n"])
    read_only = numbers.copy()
    read_only.flags.writeable = False
    assert written(read_only) == items_of(numbers)


def test_numpy_bytes_lose_their_padding_and_void_does_not() -> None:
    array = np.array([b"a", b"abc", b"", b"\0b"])
    assert written(array) == [b"a", b"abc", b"", b"\0b"]
    assert written(array.view("V3")) == [b"a\0\0", b"abc", b"\0\0\0", b"\0b\0"]


def test_rows_of_byte_arrays_are_values() -> None:
    rows = np.arange(24, dtype=np.uint8).reshape(4, 6)
    for array in (rows, rows[::2], rows[:, :3], rows[:, ::2], rows.T, rows[:, :0], rows.view(np.int8), rows[:0]):
        assert written(array) == [row.tobytes() for row in array]


def test_masked_items_are_null() -> None:
    masked = np.ma.array([1, 2, 3], mask=[0, 1, 0], dtype="<u2")
    assert written(masked) == [b"\1\0", None, b"\3\0"]
    assert written(np.ma.array([1, 2], dtype="u1")) == [b"\1", b"\2"]
    assert written(np.ma.array([b"a", b"b"], mask=[1, 0], dtype=object)) == [None, b"b"]


def test_pandas_columns_are_encoded() -> None:
    assert written(pd.Series([b"a", None, np.nan, pd.NA], dtype=object)) == [b"a", None, None, None]
    assert written(pd.Series([1, 2], dtype="int16")) == [b"\1\0", b"\2\0"]
    assert written(pd.Series(["a", None], dtype="str")) == [b"a", None]
    assert written(pd.Series(["a", None], dtype="string")) == [b"a", None]
    assert written(pd.Series([b"a", None], dtype=pd.ArrowDtype(pa.binary()))) == [b"a", None]
    assert written(pd.Series([1, None], dtype="Int8")) == [b"\1", None]
    assert written(pd.Index([b"a"], dtype=object)) == [b"a"]
    frame = pd.DataFrame({"v": pd.Series([b"a", b"b", b"c"], dtype=object)})
    assert written(frame[frame["v"] != b"b"]["v"]) == [b"a", b"c"]


def test_polars_columns_are_encoded() -> None:
    assert written(pl.Series(["a", None, "x" * 50])) == [b"a", None, b"x" * 50]
    assert written(pl.Series([1, None], dtype=pl.Int16)) == [b"\1\0", None]
    column = pl.concat([pl.Series(VALUES, dtype=pl.Binary)] * 3, rechunk=False)
    assert written(column) == VALUES * 3
    assert written(pl.Series(["a", "b", "a"], dtype=pl.Categorical)) == [b"a", b"b", b"a"]


def test_objects_with_the_arrow_interface_are_encoded() -> None:
    class Array:
        def __arrow_c_array__(self, requested_schema: object = None) -> Any:
            return pa.array(VALUES, pa.binary()).__arrow_c_array__(requested_schema)

    class Stream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
            return pa.chunked_array([pa.array(VALUES, pa.binary())] * 2).__arrow_c_stream__(requested_schema)

    assert written(Array()) == VALUES
    assert written(Stream(), keys=Stream()) == VALUES * 2


def test_without_pyarrow_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\nimport kbatch\n"
        "class A: __arrow_c_array__ = None\n"
        "assert kbatch.decode(kbatch.encode([b'a'])).values() == [b'a']\n"
        "try: kbatch.encode(A())\nexcept kbatch.MissingDependencyError as e: print(e)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "values of type A needs pyarrow" in result.stdout
    assert "install the extra 'arrow': " in result.stdout


# -- timestamps and offsets


def stamps(timestamps: Any, count: int = 2, **options: Any) -> list[int]:
    data = kbatch.encode([b""] * count, timestamps=timestamps, **options)
    return kbatch.decode(data).records["timestamp"].tolist()


TIME = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)
MS = 1767323045678


@pytest.mark.parametrize(
    "timestamps",
    [
        MS,
        np.int64(MS),
        TIME,
        TIME.astimezone(datetime.timezone(datetime.timedelta(hours=5))),
        np.datetime64(TIME.replace(tzinfo=None)),
        [MS, MS],
        [TIME, MS],
        [np.datetime64(MS, "ms"), TIME],
        np.array([TIME, MS], object),
        pd.Series([TIME, MS], dtype=object),
        pa.array([TIME, TIME], pa.timestamp("us", "UTC")).dictionary_encode(),
        np.array([MS, MS]),
        np.array([MS, MS], np.uint64),
        np.array([MS, 0, MS])[::2],
        np.array([TIME.replace(tzinfo=None)] * 2, "datetime64[us]"),
        pa.array([TIME, TIME], pa.timestamp("us", "Asia/Tokyo")),
        pa.chunked_array([[MS], [MS]]),
        pa.array([MS * 1_000_000 + 999_999] * 2, pa.timestamp("ns")),
        pd.Series([TIME, TIME]),
        pd.Series([TIME, TIME]).dt.tz_convert("Asia/Tokyo"),
        pd.Series([TIME, TIME]).dt.tz_localize(None),
        pd.Series([MS, MS]),
        pd.Series([TIME, TIME], dtype=pd.ArrowDtype(pa.timestamp("us", "UTC"))),
        pd.DatetimeIndex([TIME, TIME]),
        pl.Series([TIME, TIME]),
        pl.Series([MS, MS]),
    ],
    ids=lambda t: f"{type(t).__module__}.{type(t).__name__}",
)
def test_timestamps_of_every_kind_are_encoded(timestamps: Any) -> None:
    assert stamps(timestamps) == [MS, MS]


def test_missing_timestamps_are_minus_one() -> None:
    """TS-R3: a missing timestamp is -1. Times before 1970 are negative, and clients may not write them (TS-R8)."""
    assert stamps(np.array(["NaT", "1970-01-01T00:00:01"], "datetime64[s]")) == [-1, 1000]
    assert stamps(pa.array([None, 5], pa.timestamp("ms"))) == [-1, 5]
    assert stamps(pa.array([None, 5])) == [-1, 5]
    assert stamps(pd.Series([pd.NaT, pd.Timestamp(5, unit="ms")])) == [-1, 5]
    assert stamps(np.datetime64("NaT")) == [-1, -1]
    assert stamps(pd.NaT) == [-1, -1]
    assert stamps([None, 5]) == [-1, 5]
    assert stamps([np.nan, pd.Timestamp(5, unit="ms", tz="UTC"), pd.NaT, None], 4) == [-1, 5, -1, -1]
    assert stamps(pd.Series([pd.NA, 5], dtype=object)) == [-1, 5]
    assert stamps(pd.Series([None, 5], dtype="Int64")) == [-1, 5]
    assert stamps(np.ma.array([7, 5], mask=[True, False])) == [-1, 5]
    assert stamps(np.ma.array([7, 5], "datetime64[ms]", mask=[True, False])) == [-1, 5]
    assert stamps(pa.array([None, 5], pa.uint8())) == [-1, 5]
    assert stamps(pa.nulls(2)) == [-1, -1]
    assert stamps(-1) == [-1, -1]
    for before in (np.array(["1969-12-31"] * 2, "datetime64[ns]"), [5, -(2**40)], -(2**40)):
        with pytest.raises(ValueError, match="-1"):
            stamps(before)


@pytest.mark.parametrize(
    "timestamps",
    [
        b"1",
        [1.5, 2.5],
        [True, None],
        np.zeros((2, 1), int),
        True,
        1.5,
        pa.array([1.5, 2.5]),
        pa.array([1, 2], pa.date32()),
        {1: 2},
        [[1], [2, 3]],
    ],
    # The ids contain no addresses, because parallel test processes must collect the same ids.
    ids=lambda value: f"{type(value).__name__} {value!s:.20}",
)
def test_other_values_are_not_timestamps(timestamps: Any) -> None:
    with pytest.raises(TypeError, match="timestamps must be"):
        stamps(timestamps)


@pytest.mark.parametrize("timestamps", ["now", ["a", "b"], [None, "now"]], ids=repr)
def test_texts_that_are_no_times_are_named(timestamps: Any) -> None:
    with pytest.raises(ValueError, match=r"timestamp must be a time such as 2026-03-01 .*, got '(now|a)'"):
        stamps(timestamps)


def test_timestamps_above_int64_are_refused() -> None:
    for many in (np.array([1, 2**63], np.uint64), np.array([1, 2**63], ">u8"), pa.array([1, 2**63], pa.uint64())):
        with pytest.raises(ValueError, match=r"timestamps must be below 2\*\*63, got 9223372036854775808"):
            stamps(many)
    with pytest.raises(ValueError, match=r"timestamps\[1\] must be below 2\*\*63"):
        stamps([1, 2**70])
    with pytest.raises(ValueError, match="timestamps and values must have the same length, got 0 and 2"):
        stamps([])


def test_timestamps_are_rounded_down_to_milliseconds() -> None:
    """Times before 1970 are rounded down too, so -1 microseconds is -1 milliseconds."""
    for before in (pa.array([-1, 1999], pa.timestamp("us")), np.array([-1, 1999], "datetime64[us]")):
        assert stamps(before) == [-1, 1]


def test_datetimes_without_a_time_zone_are_utc() -> None:
    utc = TIME.astimezone(datetime.UTC)
    assert stamps(utc.replace(tzinfo=None)) == stamps(utc)


@pytest.mark.parametrize("kind", [list, np.array, pa.array, pd.Series, pl.Series, lambda o: np.array(o, np.uint16)])
def test_offsets_of_every_integer_column_are_encoded(kind: Any) -> None:
    data = kbatch.encode([b""] * 3, offsets=kind([3, 7, 300]))
    assert kbatch.decode(data).records["offset"].tolist() == [3, 7, 300]


def test_other_values_are_not_offsets() -> None:
    with pytest.raises(TypeError, match="offsets must be integers"):
        kbatch.encode([b""], offsets=[1.5])
    with pytest.raises(ValueError, match="offsets must not be null"):
        kbatch.encode([b""], offsets=pa.array([None], pa.int64()))
    for dtype in ("<u8", ">u8"):
        with pytest.raises(ValueError, match=r"offsets must be below 2\*\*63"):
            kbatch.encode([b""], offsets=np.array([2**63], dtype))
    with pytest.raises(ValueError, match="offsets must not be null"):
        kbatch.encode([b"", b""], offsets=np.ma.array([1, 2], mask=[False, True]))
    with pytest.raises(TypeError, match="offsets must be integers"):
        kbatch.encode([b""], offsets=pa.array([1], pa.timestamp("ms")))
    with pytest.raises(TypeError, match="one-dimensional"):
        kbatch.encode([b""], offsets=[[1]])


# -- inconsistent columns


def encode_column(column: Column) -> bytes:
    records = RecordColumns(column, None)
    batches = plan_batches(records, Plan(2, 0))
    return compose(records, batches, None)


def test_invalid_arrow_positions_are_an_error() -> None:
    """Offsets and views that point outside are an error, not a crash."""
    data = np.frombuffer(b"some bytes", np.uint8)
    for offsets in ([0, 11], [5, 4], [-1, 3], [0, 2**31 - 1], [11, 11]):
        column = Column()
        column.add_offsets(np.array(offsets, np.int32), 4, 0, 1, data)
        with pytest.raises(ValueError, match="outside of their buffer"):
            encode_column(column)
    for wide in ([0, 11], [2**62, -(2**62)], [0, 2**63 - 1], [-(2**63), 0]):
        column = Column()
        column.add_offsets(np.array(wide, np.int64), 8, 0, 1, data)
        with pytest.raises(ValueError, match="outside of their buffer"):
            encode_column(column)
    for view in ((13, 0, 0, 0), (20, 0, 1, 0), (20, 0, -1, 0), (13, 0, 0, -1), (13, 0, 0, 2**31 - 1), (-5, 0, 0, 0)):
        column = Column()
        column.add_views(np.array(view, np.int32), 0, 1, [data])
        with pytest.raises(ValueError, match="outside of their buffer"):
            encode_column(column)
    column = Column()
    column.add_views(np.array((10, 0, 0, 0, 99, 0, 7, 9), np.int32), 0, 2, [data], np.array([1], np.uint8))
    assert kbatch.decode(encode_column(column)).values() == [b"\0" * 10, None]  # the offset of a null is ignored


def test_short_arrow_buffers_are_an_error() -> None:
    column = Column()
    for add in (
        lambda: column.add_offsets(np.zeros(4, np.int32), 4, 0, 4, None),
        lambda: column.add_offsets(np.zeros(4, np.int32), 4, -1, 2, None),
        lambda: column.add_views(np.zeros(4, np.int32), 0, 2, []),
        lambda: column.add_offsets(np.zeros(40, np.int32), 4, 0, 30, None, b"\0"),
        lambda: column.add_items(np.zeros(4, "V4"), 5),
        lambda: column.add_items(np.zeros((4, 6), np.uint8)[:, ::2], 3),
        lambda: column.add_slices(np.zeros(4, np.int64), np.zeros(3, np.int32), np.zeros(1, np.uint8)),
    ):
        with pytest.raises(ValueError, match=r"."):
            add()
    assert column.length == 0


def test_a_column_changed_during_encoding_is_an_error() -> None:
    """The kernel never writes beyond the measured size, even if another thread changes a column."""
    lengths = np.full(3, 4, np.int32)
    column = Column()
    column.add_slices(np.zeros(3, np.int64), lengths, np.frombuffer(bytes(100), np.uint8))
    records = RecordColumns(column, None)
    for magic in (2, 1):
        for after in (5, 100, 3, -1):
            lengths[:] = 4
            batches = plan_batches(records, Plan(magic, 0))
            lengths[2] = after
            with pytest.raises(ValueError, match="changed while they were encoded"):
                compose(records, batches, None)


def test_deltas_changed_during_encoding_are_an_error() -> None:
    """A last record whose deltas have become longer does not exceed its batch."""
    offsets, times = np.arange(3), np.zeros(3, np.int64)
    large = b"v" * (1 << 20)
    keys = Column()
    keys.add_objects([large, None, None])
    for last in (b"b", b"bc"):
        values = Column()
        values.add_objects([large, b"b", last])
        records = RecordColumns(values, keys, offsets=offsets, timestamps=times)
        offsets[:], times[:] = (0, 1, 2), 0
        batches = plan_batches(records, Plan(2, 0))
        # Deltas are relative to the base, which is already in the batch.
        offsets[0] = times[0] = -(1 << 63)
        size = int(batches["size"].sum())
        memory = bytearray(size + 64)
        _, row, status, _ = kernel.write(records, batches, own_codecs(), [0], memoryview(memory)[:size])
        assert (row, status) == (0, 8)
        assert not any(memory[size:])


def test_items_outlive_their_sequence() -> None:
    """The kernel holds references to the objects that it points to."""
    column = Column()
    objects = [bytes([i]) * 50 for i in range(20)]
    assert column.add_objects(objects) == -1
    expected = list(objects)
    objects.clear()
    array = np.arange(1000, dtype=np.uint8).reshape(20, 50)
    expected += [row.tobytes() for row in array]
    column.add_items(array, 50)
    del array
    assert kbatch.decode(encode_column(column)).values() == expected
