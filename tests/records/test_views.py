"""Views of a table: Arrow, pandas, Polars and DuckDB read the records of the batches."""

from __future__ import annotations

import gc
import re
import struct
import subprocess
import sys
import weakref

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from view_records import BINARY, RECORDS, Header, Record, encode, expected, make, time

import kbatch
from kbatch.extras import extra_hint
from kbatch.format import COLUMNS, VIEW_COLUMNS
from kbatch.records import arrow
from kbatch.records.columns import Reach
from kbatch.records.kafka_columns import SPARK_COLUMNS, spark_batches, spark_schema


class Stream:
    """An object with only the Arrow C stream interface, as readers see a table."""

    def __init__(self, table: kbatch.RecordTable) -> None:
        self.table = table
        self.requested: list[object] = []

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        self.requested.append(requested_schema)
        return arrow.c_stream(self.table, requested_schema)


# --- Arrow ---


@pytest.mark.parametrize("binary", BINARY)
def test_arrow_holds_the_records(binary: arrow.Binary) -> None:
    """COL-R1, COL-R2, REC-R1, HDR-R3, HDR-R4, HDR-R5: null and empty, order and duplicates survive."""
    made = arrow.to_arrow(make(), binary=binary)
    made.validate(full=True)
    assert made.schema.equals(arrow.view_schema(binary=binary))
    assert made.schema.field("timestamp").type == pa.timestamp("ms", tz="UTC")
    assert made.to_pylist() == expected(RECORDS)


@pytest.mark.parametrize("binary", BINARY)
@pytest.mark.parametrize(
    "rows",
    [
        slice(3, 5), slice(1, None), slice(0, 0), slice(None, None, 3), slice(4, 60, 7),
        np.arange(len(RECORDS)) % 3 == 1, np.array([0, 4, 4, 5, 5, 75]),
    ],
    ids=["slice", "tail", "none", "step", "step and bounds", "mask", "numbers"],
)  # fmt: skip
def test_views_of_slices_and_masks_have_their_rows(binary: arrow.Binary, rows: slice | np.ndarray) -> None:
    table = make()[rows]
    expected_rows = expected([RECORDS[i] for i in np.arange(len(RECORDS))[rows]])
    made = arrow.to_arrow(table, binary=binary)
    made.validate(full=True)
    assert made.to_pylist() == expected_rows
    assert table.keys() == [row["key"] for row in expected_rows]
    assert table.values() == [row["value"] for row in expected_rows]
    spark = pa.Table.from_batches(spark_batches(table), schema=spark_schema())
    assert spark["value"].to_pylist() == [row["value"] for row in expected_rows]


short = st.none() | st.binary(max_size=20) | st.binary(min_size=25, max_size=40) | st.binary(min_size=250, max_size=270)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            short, short, st.sampled_from([-1, 0, 5, 10**12]),
            st.lists(st.tuples(st.binary(max_size=14), short), max_size=3),
        ),
        min_size=1, max_size=600,
    ),
    st.integers(1, 50),
)  # fmt: skip
def test_arrow_holds_generated_records(
    rows: list[tuple[bytes | None, bytes | None, int, list[Header]]], size: int
) -> None:
    records = [Record(i, k, v, t, tuple(h)) for i, (k, v, t, h) in enumerate(rows)]
    table = make(records, size=size)
    for binary in BINARY:
        made = arrow.to_arrow(table, binary=binary)
        made.validate(full=True)
        assert made.to_pylist() == expected(records)


def test_views_have_the_requested_columns_in_order() -> None:
    table = make(topic="orders")
    assert tuple(arrow.to_arrow(table).column_names) == VIEW_COLUMNS
    assert tuple(arrow.to_arrow(make()).column_names) == COLUMNS
    made = arrow.to_arrow(table, columns=["value", "partition", "offset", "topic"])
    assert made.column_names == ["value", "partition", "offset", "topic"]
    assert made["offset"].to_pylist() == [r.offset for r in RECORDS]
    assert made["value"].to_pylist() == [r.value for r in RECORDS]
    assert set(made["topic"].to_pylist()) == {"orders"}
    assert set(made["partition"].to_pylist()) == {3}
    made.validate(full=True)
    assert arrow.to_arrow(make(), columns=["topic", "partition"]).to_pylist() == [
        {"topic": None, "partition": None}
    ] * len(RECORDS)
    with pytest.raises(ValueError, match=r"no column 'nope'; there are offset, timestamp"):
        arrow.to_arrow(table, columns=["offset", "nope"])
    with pytest.raises(ValueError, match="named twice"):
        arrow.to_arrow(table, columns=["offset", "offset"])
    with pytest.raises(TypeError, match="sequence of names"):
        arrow.to_arrow(table, columns="offset")
    with pytest.raises(ValueError, match="binary must be"):
        arrow.to_arrow(table, binary="text")


def test_the_batch_determines_the_timestamp_type() -> None:
    kinds = [0] * 10 + [1] * 10
    table = make(RECORDS[10:30], attributes=(0, 8))
    assert arrow.to_arrow(table)["timestampType"].to_pylist() == kinds
    assert arrow.to_arrow(table[7:13])["timestampType"].to_pylist() == kinds[7:13]
    assert set(arrow.to_arrow(make(attributes=(8,)))["timestampType"].to_pylist()) == {1}


def test_control_records_are_in_views_on_request() -> None:
    marker = Record(12, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 7))
    data = encode(RECORDS[:3]) + encode([marker], attributes=0x30)
    assert arrow.to_arrow(kbatch.decode(data)).to_pylist() == expected(RECORDS[:3])
    table = kbatch.decode(data, include_control=True)
    assert arrow.to_arrow(table).to_pylist() == expected([*RECORDS[:3], marker])
    assert table[3:].values_as([("version", ">i2"), ("epoch", ">i4")]).tolist() == [(0, 7)]


def test_only_minus_one_is_a_null_timestamp() -> None:
    """COL-R2: INT64_MIN, NumPy's NaT, is a valid timestamp of a batch."""
    table = make(RECORDS[:4])
    records = table.records.copy()
    records["timestamp"] = [-(2**63), -1, 2**63 - 1, -2]
    table = kbatch.RecordTable(records, table.batches, table.data)
    column = arrow.to_arrow(table)["timestamp"]
    assert column.cast(pa.int64()).to_pylist() == [-(2**63), None, 2**63 - 1, -2]


def test_an_empty_table_has_views_with_a_schema() -> None:
    table = kbatch.decode(b"")
    for binary in BINARY:
        made = arrow.to_arrow(table, binary=binary)
        assert made.num_rows == 0
        assert made.schema.equals(arrow.view_schema(binary=binary))
    assert table.keys() == table.values() == []
    assert arrow.to_polars(table).shape == (0, 6)
    assert arrow.to_pandas(table).shape == (0, 6)
    assert list(spark_batches(table)) == []


def test_header_rows_are_not_built_without_headers() -> None:
    table = make([Record(i, b"k", b"v") for i in range(50)])
    assert arrow.to_arrow(table)["headers"].to_pylist() == [[]] * 50
    assert list(arrow.to_pandas(table)["headers"]) == [()] * 50
    (batch,) = spark_batches(table, ["headers"])
    assert batch["headers"].null_count == 50
    assert table._headers is None


def test_a_column_above_the_int32_limit_has_several_chunks() -> None:
    """COL-R1: a column may exceed 2 GiB; the test uses a small limit instead."""
    table = make(topic="orders")
    made = arrow.to_arrow(table, reach=Reach(offset=1600))
    made.validate(full=True)
    assert made["value"].num_chunks > 2
    assert max(len(b"".join(v for v in c.to_pylist() if v)) for c in made["value"].chunks) <= 1600
    assert made.select(COLUMNS).to_pylist() == expected(RECORDS)


def test_binary_views_above_the_int32_limit_have_several_buffers() -> None:
    table = make()
    made = arrow.to_arrow(table, binary="binary_view", reach=Reach(view_shift=6))
    made.validate(full=True)
    assert len(made["value"].chunk(0).buffers()) == 2 + -(-len(table.data) // 64)
    assert made.to_pylist() == expected(RECORDS)


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 255, 256, 257, 100_000])
def test_row_counts_near_the_edges_of_bitmap_bytes_and_blocks(rows: int) -> None:
    records = [Record(i, None if i % 3 else b"%d" % i, None if i % 7 == 0 else b"v" * (i % 40)) for i in range(rows)]
    made = arrow.to_arrow(make(records, size=1000))
    made.validate(full=True)
    assert made["key"].to_pylist() == [r.key for r in records]
    assert made["value"].to_pylist() == [r.value for r in records]
    assert made["offset"].to_pylist() == [r.offset for r in records]


# --- ownership ---


def address(buffer: pa.Buffer) -> tuple[int, int]:
    return buffer.address, buffer.address + buffer.size


def test_binary_view_points_into_the_table() -> None:
    table = make()
    column = arrow.to_arrow(table, binary="binary_view")["value"].chunk(0)
    start = table.data.__array_interface__["data"][0]
    assert address(column.buffers()[2]) == (start, start + len(table.data))
    frame = arrow.to_polars(table)
    assert frame["value"].to_list() == [r.value for r in RECORDS]


@pytest.mark.parametrize("binary", BINARY)
def test_views_outlive_their_table(binary: arrow.Binary) -> None:
    source = bytearray(encode(RECORDS))
    table = kbatch.decode(source)
    made = arrow.to_arrow(table, binary=binary)
    frame = arrow.to_polars(table)
    owner = weakref.ref(table.data)
    del table
    gc.collect()
    assert made.to_pylist() == expected(RECORDS)
    assert frame["key"].to_list() == [r.key for r in RECORDS]
    with pytest.raises(BufferError):
        source.clear()
    del made, frame
    gc.collect()
    assert owner() is None
    source.clear()


# --- other readers ---


def test_polars_reads_the_records() -> None:
    frame = arrow.to_polars(make(topic="orders"))
    assert frame.columns == list(VIEW_COLUMNS)
    assert frame.schema["timestamp"] == pl.Datetime("ms", "UTC")
    assert frame.drop("topic", "partition").to_dicts() == expected(RECORDS)
    assert pl.DataFrame(Stream(make())).to_dicts() == expected(RECORDS)


def test_pandas_reads_the_records() -> None:
    frame = arrow.to_pandas(make(topic="orders"))
    assert list(frame.columns) == list(VIEW_COLUMNS)
    assert list(frame["key"]) == [r.key for r in RECORDS]
    assert list(frame["value"]) == [r.value for r in RECORDS]
    assert list(frame["headers"]) == [r.headers for r in RECORDS]
    assert str(frame["timestamp"].dtype) == "datetime64[ms, UTC]"
    assert [None if pd.isna(t) else t.to_pydatetime() for t in frame["timestamp"]] == [
        time(r.timestamp) for r in RECORDS
    ]
    assert frame["offset"].dtype == np.int64
    part = arrow.to_pandas(make()[4:6], columns=["headers", "offset"])
    assert list(part.columns) == ["headers", "offset"]
    assert list(part["headers"]) == [RECORDS[4].headers, RECORDS[5].headers]
    with pytest.raises(ValueError, match="dtype_backend must be"):
        arrow.to_pandas(make(), dtype_backend="other")


def test_pandas_may_use_arrow_dtypes() -> None:
    frame = arrow.to_pandas(make(), dtype_backend="pyarrow")
    assert all(isinstance(dtype, pd.ArrowDtype) for dtype in frame.dtypes)
    assert pa.Table.from_pandas(frame).replace_schema_metadata().to_pylist() == expected(RECORDS)


def test_duckdb_reads_the_records() -> None:
    columns = 'key, value, headers, epoch_ms(timestamp), "offset"'
    rows = duckdb.from_arrow(arrow.to_arrow(make(), binary="binary_view")).project(columns).fetchall()
    expected_rows = [
        (
            r.key,
            r.value,
            [{"key": k, "value": v} for k, v in r.headers],
            None if r.timestamp == -1 else r.timestamp,
            r.offset,
        )
        for r in RECORDS
    ]
    assert rows == expected_rows
    stream = duckdb.from_arrow(Stream(make()))
    assert stream.aggregate("count(*), count(key), sum(octet_length(value))").fetchall() == [
        (len(RECORDS), sum(r.key is not None for r in RECORDS), sum(len(r.value or b"") for r in RECORDS))
    ]


def test_the_arrow_stream_has_the_requested_schema() -> None:
    assert pa.table(Stream(make())).schema.equals(arrow.view_schema())
    for schema in (
        arrow.view_schema(["value", "offset"], binary="binary"),
        arrow.view_schema(binary="large_binary"),
        arrow.view_schema(binary="binary_view"),
        pa.schema([("timestamp", pa.timestamp("us", tz="UTC")), ("offset", pa.int64()), ("value", pa.large_binary())]),
    ):
        stream = Stream(make())
        made = pa.table(stream, schema=schema)
        assert stream.requested != [None]
        assert made.schema.equals(schema)
        made.validate(full=True)
        expected_rows = [{name: row[name] for name in schema.names} for row in expected(RECORDS)]
        assert made.to_pylist() == expected_rows


def test_methods_of_the_table_return_the_same_as_to_arrow() -> None:
    table = make(RECORDS[:6], topic="orders")
    assert table.keys() == [r.key for r in RECORDS[:6]]
    assert table.values() == [r.value for r in RECORDS[:6]]
    assert table[4:5].values_as("V999").tobytes() == RECORDS[4].value
    assert table.to_arrow(columns=["offset", "value"], binary="large_binary").equals(
        arrow.to_arrow(table, columns=["offset", "value"], binary="large_binary")
    )
    assert table.to_polars(columns=["value"])["value"].to_list() == table.values()
    assert list(table.to_pandas(columns=["value"])["value"]) == table.values()
    assert pa.table(table).equals(table.to_arrow())


# --- Spark ---


def spark_row(r: Record) -> dict[str, object]:
    pairs = [{"key": java, "value": value} for java, (_, value) in zip(java_keys(r), r.headers, strict=True)]
    return {
        "key": r.key,
        "value": r.value,
        "topic": "orders",
        "partition": 3,
        "offset": r.offset,
        "timestamp": time(r.timestamp),
        "timestampType": 0,
        "headers": pairs or None,
    }


def java_keys(r: Record) -> list[str]:
    # The result of `new String(bytes, UTF_8)` in Java 25, run once: the surrogate is one malformed sequence.
    known = {b"\xff\xfe": "\ufffd\ufffd", b"caf\xe9": "caf\ufffd", b"\xed\xa0\x80": "\ufffd"}
    return [known.get(key) or key.decode() for key, _ in r.headers]


def test_spark_batches_have_the_rows_of_sparks_kafka_source() -> None:
    """HDR-R4: as in Spark's Kafka source, header keys are strings, and headers are null if a record has none."""
    table = make(topic="orders")
    batches = list(spark_batches(table, SPARK_COLUMNS))
    assert [batch.num_rows for batch in batches] == [len(RECORDS)]
    assert batches[0].schema.equals(
        pa.schema(
            [
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("topic", pa.string()),
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("timestamp", pa.timestamp("us", tz="UTC")),
                ("timestampType", pa.int32()),
                ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ]
        )
    )
    batches[0].validate(full=True)
    assert batches[0].to_pylist() == [spark_row(r) for r in RECORDS]


@pytest.mark.parametrize(("max_rows", "max_bytes"), [(1, 10**6), (7, 10**6), (100, 300), (100, 1), (13, 120)])
def test_spark_batches_are_bounded(max_rows: int, max_bytes: int) -> None:
    columns = ["offset", "headers", "value", "key"]
    made = list(spark_batches(make(topic="orders"), columns, max_rows, max_bytes))
    expected_rows = [{name: spark_row(r)[name] for name in columns} for r in RECORDS]
    assert [row for batch in made for row in batch.to_pylist()] == expected_rows
    sizes = {
        r.offset: len(r.key or b"") + len(r.value or b"") + sum(len(k) + len(v or b"") for k, v in r.headers)
        for r in RECORDS
    }
    for batch, after in zip(made, [*made[1:], None], strict=True):
        batch.validate(full=True)
        total = sum(sizes[offset] for offset in batch["offset"].to_pylist())
        assert batch.num_rows <= max_rows
        assert batch.num_rows == 1 or total <= max_bytes
        if after is not None:
            # No batch ends before it reaches the limit.
            assert batch.num_rows == max_rows or total + sizes[after["offset"][0].as_py()] > max_bytes


def test_spark_timestamps_outside_of_microseconds_raise() -> None:
    nanoseconds = 1_700_000_000_000_000_000
    table = make([Record(0), Record(1, timestamp=nanoseconds), Record(2, timestamp=-1)])
    message = (
        f"offset 1: timestamp {nanoseconds} ms doesn't fit .*; timestamp_overflow='null' .--timestamp-overflow null. "
    )
    with pytest.raises(OverflowError, match=message):
        list(spark_batches(table))
    assert next(spark_batches(table, ["offset"]))["offset"].to_pylist() == [0, 1, 2]
    (batch,) = spark_batches(table, ["timestamp"], overflow="null")
    assert batch["timestamp"].to_pylist() == [time(RECORDS[0].timestamp), None, None]
    assert arrow.to_arrow(table)["timestamp"].cast(pa.int64()).to_pylist() == [RECORDS[0].timestamp, nanoseconds, None]


def test_spark_batches_check_their_arguments() -> None:
    table = make()
    with pytest.raises(ValueError, match="must be at least 1"):
        spark_batches(table, max_rows=0)
    with pytest.raises(ValueError, match="overflow must be"):
        spark_batches(table, overflow="wrap")
    with pytest.raises(ValueError, match="no column 'Key'"):
        spark_batches(table, ["Key"])
    (batch,) = spark_batches(table, ["topic", "partition"])
    assert batch["topic"].null_count == batch["partition"].null_count == len(RECORDS)


# --- values of a fixed width ---


@pytest.mark.parametrize("dtype", [">i8", "<i4", "u1", ">f8", "S5", [("a", ">i2"), ("b", "u1")], (">i4", 3), "V17"])
def test_values_as_returns_fixed_width_values(dtype: object) -> None:
    dtype = np.dtype(dtype)
    stored = np.frombuffer(bytes(range(1, 1 + dtype.itemsize)) * 20, np.dtype([("value", dtype)]))["value"]
    raw = np.ascontiguousarray(stored).tobytes()
    step = dtype.itemsize
    table = make([Record(i, value=raw[i * step : (i + 1) * step]) for i in range(20)])
    made = table.values_as(dtype)
    assert made.shape == stored.shape
    assert made.tobytes() == raw
    assert table[::3].values_as(dtype).tobytes() == stored[::3].tobytes()


def test_values_as_raises_if_a_value_does_not_fit() -> None:
    table = make([Record(7, value=bytes(8)), Record(8, value=None), Record(9, value=b"abc")])
    with pytest.raises(ValueError, match=r"offset 8: dtype >i8 needs values of 8 bytes, found null; fill="):
        table.values_as(">i8")
    with pytest.raises(ValueError, match=r"offset 9: dtype >i8 needs values of 8 bytes, found 3 bytes"):
        table.values_as(">i8", fill=-1)
    assert table[:2].values_as(">i8", fill=-5).tolist() == [0, -5]
    with pytest.raises(TypeError, match="must have a fixed size"):
        table.values_as(object)
    with pytest.raises(TypeError, match="must have a fixed size"):
        table.values_as("V0")


# --- optional packages ---


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_importing_kbatch_imports_no_optional_package() -> None:
    optional = "('pyarrow', 'pandas', 'polars', 'duckdb', 'pyspark')"
    assert (
        run(f"import sys, kbatch, kbatch.records.arrow; print([m for m in {optional} if m in sys.modules])") == "[]\n"
    )


@pytest.mark.parametrize(
    ("call", "missing", "extra"),
    [
        ("to_arrow(t)", "pyarrow", "arrow"),
        ("c_stream(t)", "pyarrow", "arrow"),
        ("spark_batches(t)", "pyarrow", "arrow"),
        ("to_pandas(t)", "pandas", "pandas"),
        ("to_pandas(t)", "pyarrow", "pandas"),
        ("to_polars(t)", "polars", "polars"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    call: str, missing: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make()
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(
        kbatch.MissingDependencyError, match=f"needs {missing}.*; install {re.escape(extra_hint(extra))}"
    ):
        eval(call, {**vars(arrow), "spark_batches": spark_batches, "t": table})
