"""decode(columns=...) returns the same rows, errors and losses as a decode of all columns."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pyarrow as pa
import pytest
from golden_logs import LOGS
from hypothesis import given
from hypothesis import strategies as st

import kbatch
from kbatch.format import COLUMN_FIELDS, RECORD_DTYPE, record_dtype
from kbatch.kernels import buffers, columns, decode, extents, slices
from kbatch.read.decode_options import DecodeOptions
from kbatch.records.kafka_columns import spark_batches

NAMES = tuple(COLUMN_FIELDS)
SUBSETS = [subset for n in range(len(NAMES) + 1) for subset in itertools.combinations(NAMES, n)]

CONTENT = st.one_of(st.none(), st.binary(max_size=40), st.builds(lambda b: b * 700, st.binary(min_size=1, max_size=3)))
HEADERS = st.lists(st.tuples(st.binary(max_size=9), st.one_of(st.none(), st.binary(max_size=9))), max_size=3)
TIMESTAMP = st.integers(-1, 2**42)


@st.composite
def entries(draw: st.DrawFn, offset: int) -> bytes:
    """Build one entry of a log: a transactional or other batch of magic 2, a marker, or a message set."""
    count = draw(st.integers(1, 5))
    magic = draw(st.sampled_from([2, 2, 2, 1, 0]))
    contents = draw(st.lists(st.tuples(CONTENT, CONTENT), min_size=count, max_size=count))
    times = draw(st.lists(TIMESTAMP, min_size=count, max_size=count))
    if magic < 2:
        codec = draw(st.sampled_from(oracle.LEGACY_CODECS))
        return oracle.build_message_set(contents, codec=codec, magic=magic, base_offset=offset, timestamps=times)
    producer = draw(st.sampled_from([-1, -1, 7, 8]))
    fields: dict[str, Any] = {"base_offset": offset, "producer_id": producer, "producer_epoch": min(producer, 0)}
    if producer >= 0 and draw(st.booleans()):
        record = oracle.encode_record(0, 0, bytes([0, 0, 0, draw(st.integers(0, 1))]), bytes(6))
        return oracle.build_batch([record], attributes=oracle.TRANSACTIONAL | oracle.CONTROL, **fields)
    records = [
        oracle.encode_record(i, time - times[0], key, value, draw(HEADERS))
        for i, ((key, value), time) in enumerate(zip(contents, times, strict=True))
    ]
    attributes = oracle.TRANSACTIONAL if producer >= 0 else draw(st.sampled_from([0, oracle.LOG_APPEND_TIME]))
    codec = draw(st.sampled_from(list(oracle.CODECS)))
    return oracle.build_batch(
        records, codec=codec, attributes=attributes, base_timestamp=times[0], max_timestamp=max(times), **fields
    )


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    data = bytearray(b"".join(draw(entries(10 * i)) for i in range(draw(st.integers(1, 5)))))
    if draw(st.booleans()):
        for at in draw(st.lists(st.integers(0, len(data) - 1), max_size=3)):
            data[at] ^= draw(st.integers(1, 255))
    return bytes(data)


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "isolation": draw(st.sampled_from(["read_uncommitted", "read_committed"])),
        "on_error": draw(st.sampled_from(["raise", "stop", "skip"])),
        "crc": draw(st.sampled_from(["verify", "verify", "mark", "skip"])),
        "include_control": draw(st.booleans()),
        "start_offset": draw(st.sampled_from([None, None, 2, 11])),
        "stop_offset": draw(st.sampled_from([None, None, 13, 42])),
    }


def assert_restricted(found: kbatch.RecordTable, whole: kbatch.RecordTable, subset: tuple[str, ...]) -> None:
    """Check that `found` equals `whole` in the columns of `subset`, and has no others."""
    assert found.columns == subset
    assert set(found.records.dtype.names) == set(record_dtype(subset).names)
    assert len(found) == len(whole)
    for name in found.records.dtype.names:
        assert np.array_equal(found.records[name], whole.records[name]), name
    assert np.array_equal(found.batches, whole.batches)
    assert found.losses == whole.losses
    assert (found.consumed, found.pending, found.last_stable_offset) == (
        whole.consumed,
        whole.pending,
        whole.last_stable_offset,
    )
    if {"key", "value", "headers"}.isdisjoint(subset):
        assert not len(found.data)
    else:
        assert np.array_equal(found.data, whole.data)


def outcome(data: bytes, **given: Any) -> kbatch.RecordTable | tuple[type, str]:
    try:
        return kbatch.decode(data, **given)
    except kbatch.KbatchError as error:
        return type(error), str(error)


@given(logs(), options(), st.sampled_from(SUBSETS))
def test_decoding_a_subset_of_columns_equals_selecting_from_a_full_decode(
    data: bytes, given: dict[str, Any], subset: tuple[str, ...]
) -> None:
    whole = outcome(data, **given)
    found = outcome(data, columns=subset, **given)
    if isinstance(whole, tuple):
        assert found == whole
        return
    assert isinstance(found, kbatch.RecordTable)
    assert_restricted(found, whole, subset)
    assert found.to_arrow().equals(whole.to_arrow(columns=subset))
    if "headers" in subset:
        assert np.array_equal(found.headers, whole.headers)
    if "key" in subset:
        assert found.keys() == whole.keys()
    if "value" in subset:
        assert found.values() == whole.values()


@given(logs(), options(), st.sampled_from(SUBSETS), st.integers(1, 200))
def test_streaming_a_subset_of_columns_equals_selecting_from_a_full_stream(
    data: bytes, given: dict[str, Any], subset: tuple[str, ...], step: int
) -> None:
    def tables(**more: Any) -> tuple[list[kbatch.RecordTable], str | None]:
        got: list[kbatch.RecordTable] = []
        chunks = [data[i : i + step] for i in range(0, len(data), step)]
        try:
            got.extend(kbatch.decode_stream(chunks, **given, **more))
        except kbatch.KbatchError as error:
            return got, f"{type(error)}: {error}"
        return got, None

    wholes, expected_error = tables()
    found, error = tables(columns=subset)
    assert error == expected_error
    assert len(found) == len(wholes)
    for one, whole in zip(found, wholes, strict=True):
        assert one.columns == subset
        for name in one.records.dtype.names:
            assert np.array_equal(one.records[name], whole.records[name]), name
        assert np.array_equal(one.batches, whole.batches)
        assert one.losses == whole.losses


@pytest.fixture(scope="module")
def mixed() -> bytes:
    """Return batches of every codec and magic; the first is uncompressed, so that rows exist before the arena."""
    made = [
        oracle.build_batch(
            [oracle.encode_record(i, i, b"k%d" % i, b"v" * i or None, [(b"h", b"x")] * (i % 3)) for i in range(9)],
            codec=codec,
            base_offset=10 * n,
            base_timestamp=1000 + n,
            attributes=oracle.LOG_APPEND_TIME if n == 2 else 0,
        )
        for n, codec in enumerate(oracle.CODECS)
    ]
    pairs = [(b"k", b"v"), (None, b""), (b"", None)]
    made += [
        oracle.build_message_set(pairs, codec=codec, magic=magic, base_offset=100 + 10 * n + 50 * magic)
        for magic in (0, 1)
        for n, codec in enumerate(oracle.LEGACY_CODECS)
    ]
    return b"".join(made)


@pytest.mark.parametrize("subset", SUBSETS)
def test_views_have_the_columns_that_were_decoded(mixed: bytes, subset: tuple[str, ...]) -> None:
    whole = kbatch.decode(mixed)
    mask = np.arange(len(whole)) % 3 == 1
    for found, full in (
        (kbatch.decode(mixed, columns=subset), whole),
        (whole.select(subset), whole),
        (kbatch.decode(mixed, columns=subset)[5:40:2], whole[5:40:2]),
        (kbatch.decode(mixed, columns=subset)[mask], whole[mask]),
    ):
        expected = full.to_arrow(columns=subset)
        assert found.to_arrow().schema == expected.schema
        assert found.to_arrow().equals(expected)
        assert found.to_arrow(binary="binary_view").equals(full.to_arrow(columns=subset, binary="binary_view"))
        assert pa.RecordBatchReader.from_stream(found).read_all().column_names == list(subset)
        if subset:
            assert found.to_pandas().equals(full.to_pandas(columns=subset))
            assert found.to_polars().equals(full.to_polars(columns=subset))
        spark = [name for name in (*subset, "topic", "partition") if name != "headers"]
        for rows in (7, 16_000):
            got = list(spark_batches(found, spark, rows))
            assert got == list(spark_batches(full, spark, rows))
    default = next(spark_batches(kbatch.decode(mixed, columns=subset)))
    assert set(default.schema.names) == {*subset, "topic", "partition"} - {"headers"}


@pytest.mark.parametrize("missing", ["offset", "timestamp", "timestampType", "key", "value", "headers"])
def test_using_a_column_that_was_not_decoded_raises_an_error_that_names_it(mixed: bytes, missing: str) -> None:
    table = kbatch.decode(mixed, columns=[name for name in NAMES if name != missing])
    message = rf"decoded without {missing}: its columns are .*; name it in decode\(columns=\.\.\.\)"
    uses = {
        "key": [table.keys, lambda: table.key(0)],
        "value": [table.values, lambda: table.value(0), lambda: table.values_as("i8")],
        "headers": [lambda: table.headers],
    }
    for use in (
        lambda: table.to_arrow(columns=[missing]),
        lambda: table.to_pandas(columns=[missing]),
        lambda: table.to_polars(columns=[missing]),
        lambda: spark_batches(table, [missing]),
        lambda: table.select([missing]),
        lambda: table[1:].select([missing]),
        *uses.get(missing, []),
    ):
        with pytest.raises(kbatch.MissingColumnError, match=message):
            use()
    if missing in ("offset", "timestamp", "key", "value"):
        with pytest.raises(kbatch.MissingColumnError, match=message):
            kbatch.control_records(table)


def test_columns_must_be_a_sequence_of_known_names(mixed: bytes) -> None:
    with pytest.raises(TypeError, match="sequence of names, got 'offset'"):
        kbatch.decode(mixed, columns="offset")
    with pytest.raises(ValueError, match=r"no column 'topics'; there are offset, timestamp, timestampType, key"):
        kbatch.StreamDecoder(columns=["offset", "topics"])
    with pytest.raises(ValueError, match="a column is named twice: offset, value, offset"):
        kbatch.decode(mixed, columns=["offset", "value", "offset"])
    assert DecodeOptions(columns=iter(["value", "offset"])).columns == ("value", "offset")  # type: ignore[arg-type]
    assert kbatch.decode(mixed, columns=NAMES).records.dtype is RECORD_DTYPE
    sizes = {subset: record_dtype(subset).itemsize for subset in ((), ("offset",), ("offset", "timestamp"), NAMES)}
    assert list(sizes.values()) == [4, 16, 24, 56]


def test_errors_name_the_row_if_offsets_were_not_decoded() -> None:
    data = oracle.build_batch([oracle.encode_record(0, 2**62, b"k", b"abc")])
    table = kbatch.decode(data, columns=["value", "timestamp"])
    with pytest.raises(ValueError, match=r"^record row 0: dtype int64 needs values of 8 bytes, found 3"):
        table.values_as("i8")
    with pytest.raises(OverflowError, match=r"^timestamp \d+ ms doesn't fit"):
        list(spark_batches(table, ["timestamp"]))
    records = table.records.copy()
    records["value_pos"] = 10**6
    with pytest.raises(IndexError, match="record row 0: its value is 3 bytes at position 1000000"):
        kbatch.RecordTable(records, table.batches, table.data).values()


def test_kernels_reject_rows_with_an_unsupported_dtype_or_layout(mixed: bytes) -> None:
    table = kbatch.decode(mixed)
    data, batches = np.frombuffer(mixed, np.uint8), kbatch.scan(mixed)
    positions = np.zeros(len(batches), np.int64)
    for dtype in ([("offset", "<i4")], [("offset", ">i8")], [("other", "<i8")], "<i8"):
        with pytest.raises(ValueError, match="rows of records have fields of RECORD_DTYPE"):
            decode.first_records(data, batches, positions, positions, np.empty(len(batches), dtype))
    unaligned = np.dtype([("batch", "<i4"), ("offset", "<i8")])
    with pytest.raises(ValueError, match="aligned"):
        extents.measure_extent(np.zeros(3, unaligned))
    with pytest.raises(ValueError, match="aligned"):
        extents.measure_extent(np.zeros(17, np.uint8)[1:].view(record_dtype(("offset",))))
    narrow = np.empty(9, record_dtype(("timestamp",)))
    spread = np.empty(2 * len(batches), narrow.dtype)[::2]
    with pytest.raises(ValueError, match="contiguous"):
        decode.first_records(data, batches, positions, positions, spread)
    with pytest.raises(ValueError, match="one dimension"):
        extents.measure_extent(table.records[:4].reshape(2, 2))
    with pytest.raises(ValueError, match="the rows have no offset"):
        columns.fill_records(narrow, data, offset=np.zeros(9, np.int64))
    with pytest.raises(ValueError, match="the rows have no key"):
        slices.record_keys(narrow, data)
    with pytest.raises(ValueError, match="the rows have no headers"):
        decode.headers(data, narrow, np.empty(1, kbatch.HEADER_DTYPE))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("subset", [(), ("offset",), ("offset", "timestamp", "timestampType")])
def test_payloads_are_released_if_no_column_refers_to_them(codec: str, subset: tuple[str, ...]) -> None:
    records = [oracle.encode_record(i, i, b"key", bytes(1000)) for i in range(40)]
    data = oracle.build_batch(records, codec=codec) * 400
    table = kbatch.decode(data)
    assert len(table.data) > 400 * 40_000
    del table
    gc.collect()
    before = buffers.pool_stats()
    table = kbatch.decode(data, columns=subset)
    held = buffers.pool_stats().live_bytes - before.live_bytes
    assert len(table) == 16_000
    # Only rows are held, in pool blocks larger than the requested size; the payloads take 16 MB.
    assert held < 1 << 20
    assert not len(table.data)
    assert not table.data.flags.writeable


def test_the_input_is_released_if_no_column_refers_to_it(mixed: bytes) -> None:
    data = bytearray(oracle.three() * 10)
    table = kbatch.decode(data, columns=["offset"])
    data.extend(b"no export of the buffer is alive")
    assert len(table) == 30


@pytest.mark.parametrize("log", ["mixed-0", "txn-0", "codec-lz4-0", "codec-none-0", "upconvert-0"])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_logs_return_the_selected_columns(log: str, isolation: Any) -> None:
    opened = kbatch.Log(LOGS / log)
    wholes = list(opened.tables(isolation=isolation))
    for subset in SUBSETS[::5]:
        found = [table.to_arrow() for table in opened.tables(isolation=isolation, columns=subset, max_bytes=10_000)]
        expected = pa.concat_tables(table.to_arrow(columns=subset) for table in wholes)
        assert pa.concat_tables(found).combine_chunks().equals(expected.combine_chunks())


@pytest.mark.parametrize("subset", [(), ("offset",), ("value", "timestamp"), ("key",)])
def test_timestamp_bounds_apply_without_the_timestamp_column(subset: tuple[str, ...]) -> None:
    log = kbatch.Log(LOGS / "codec-lz4-0")
    times = np.concatenate([table.records["timestamp"] for table in log.tables()])
    start, stop = (int(np.quantile(times, q)) for q in (0.3, 0.6))
    whole = list(log.tables(start_timestamp=start, stop_timestamp=stop))
    found = list(log.tables(start_timestamp=start, stop_timestamp=stop, columns=subset))
    assert 0 < sum(map(len, found)) < len(times)
    for one, other in zip(found, whole, strict=True):
        assert one.columns == subset
        assert set(one.records.dtype.names) == set(record_dtype(subset).names)
        assert one.to_arrow().equals(other.to_arrow(columns=subset))


def test_tables_with_losses_have_the_selected_columns(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    bad = bytearray(oracle.three(0))
    bad[-1] ^= 1
    for offset, content in ((0, bytes(bad)), (3, oracle.three(3))):
        (directory / f"{offset:020d}.log").write_bytes(content)
    for on_error in ("stop", "skip"):
        tables = list(kbatch.Log(directory).tables(on_error=on_error, columns=["timestamp"]))  # type: ignore[arg-type]
        assert all(table.columns == ("timestamp",) for table in tables)
        assert pa.concat_tables(table.to_arrow() for table in tables).column_names == ["timestamp"]
        assert sum(len(table.losses) for table in tables) == (2 if on_error == "stop" else 1)


def test_the_attributes_of_a_table_are_read_only() -> None:
    table = kbatch.decode(b"")
    for name in ("records", "batches", "headers", "data", "columns", "consumed", "losses", "pending", "topic"):
        with pytest.raises(AttributeError):
            setattr(table, name, getattr(table, name))
    named = table._with(topic="orders", partition=3, pending=[(7, 0)], last_stable_offset=0)
    assert (named.topic, named.partition, named.pending, named.last_stable_offset) == ("orders", 3, [(7, 0)], 0)
    assert (table.topic, table.pending) == (None, [])
    assert named.records is table.records
