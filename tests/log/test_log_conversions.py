"""Logs and lists of logs as Arrow, Polars and pandas."""

from __future__ import annotations

import inspect
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import kbatch
from kbatch.kernels import buffers
from kbatch.log import LogList
from kbatch.log.read_arguments import TableOptions

LOGS = Path(__file__).parents[1] / "golden" / "logs"


@pytest.fixture
def log() -> kbatch.Log:
    return kbatch.Log(LOGS / "codec-lz4-0")


def damaged(directory: Path) -> kbatch.Log:
    copied = directory / "codec-lz4-0"
    shutil.copytree(LOGS / "codec-lz4-0", copied)
    segment = sorted(copied.glob("*.log"))[0]
    content = bytearray(segment.read_bytes())
    content[3000] ^= 1
    segment.write_bytes(content)
    return kbatch.Log(copied)


def test_conversions_have_the_records_of_all_tables(log: kbatch.Log) -> None:
    expected = pa.concat_tables(table.to_arrow() for table in log.tables())
    assert log.to_arrow().equals(expected)
    assert log.to_arrow(max_bytes=1000, threads=2).equals(expected)
    assert pa.table(log).equals(expected)
    assert log.to_polars().equals(pl.from_arrow(expected))
    assert pl.DataFrame(log).equals(pl.from_arrow(expected))
    for backend in ("numpy", "pyarrow"):
        frame = log.to_pandas(dtype_backend=backend, max_bytes=1000)  # type: ignore[arg-type]
        assert frame["value"].dropna().tolist() == expected["value"].drop_null().to_pylist()
        assert frame["offset"].tolist() == expected["offset"].to_pylist()
        assert frame.index.tolist() == list(range(expected.num_rows))
    assert duckdb.from_arrow(log).count("*").fetchall() == [(expected.num_rows,)]


def test_conversions_take_the_arguments_of_tables(log: kbatch.Log) -> None:
    made = log.to_arrow(start_offset=10, stop_offset=20, columns=["offset"], isolation="read_committed")
    assert made["offset"].to_pylist() == list(range(10, 20))
    for kind in ("binary", "large_binary", "binary_view"):
        assert log.to_arrow(binary=kind).schema.field("value").type == getattr(pa, kind)()  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="start_ofset"):
        log.to_arrow(start_ofset=10)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="no column 'offsets'"):
        log.to_polars(columns=["offsets"])
    arguments = inspect.signature(kbatch.Log.tables).parameters
    assert {*arguments} - {"self", "columns"} == {*TableOptions.__annotations__}


def test_conversions_of_no_records_have_the_schema(log: kbatch.Log) -> None:
    assert log.to_arrow(start_offset=10**9).schema == log.to_arrow().schema
    assert log.to_arrow(start_offset=10**9).num_rows == 0
    assert log.to_polars(start_offset=10**9).schema == log.to_polars().schema
    assert list(log.to_pandas(start_offset=10**9)) == list(log.to_pandas())


def test_the_reader_of_a_log_takes_bounded_memory(tmp_path: Path) -> None:
    directory = tmp_path / "large-0"
    with kbatch.log.LogWriter(directory) as writer:
        for number in range(200):
            values = [b"0123456789abcdef" * 64] * 100
            writer.append(kbatch.encode(values, codec="zstd", base_offset=100 * number, timestamps=0))
    before = buffers.pool_stats().live_bytes
    peak = rows = 0
    for made in kbatch.Log(directory).reader(max_bytes=1 << 20):
        peak = max(peak, buffers.pool_stats().live_bytes - before)
        rows += made.num_rows
        del made
    # The values take 20 MB; a table and its Arrow columns take about 1 MiB each.
    assert rows == 20_000
    assert 0 < peak < 6 << 20


def test_the_stream_has_the_requested_schema(log: kbatch.Log) -> None:
    schema = pa.schema([("value", pa.binary_view()), ("topic", pa.string()), ("offset", pa.int64())])
    made = pa.table(log, schema=schema)
    assert made.schema.equals(schema)
    assert made["value"].to_pylist() == log.to_arrow()["value"].to_pylist()


def test_iterating_a_log_gives_its_tables(log: kbatch.Log) -> None:
    assert [len(table) for table in log] == [len(table) for table in log.tables()]
    assert log
    with pytest.raises(TypeError, match=r"log\.count\(\) is the number of its records"):
        len(log)  # type: ignore[unused-ignore]


def test_errors_and_losses_of_damaged_logs_are_not_silent(tmp_path: Path) -> None:
    log = damaged(tmp_path)
    with pytest.raises(kbatch.CrcMismatchError):
        log.to_arrow()
    with pytest.raises(pa.ArrowException, match="stored checksum is 0xc1068ca3"):
        pa.table(log)
    with pytest.warns(RuntimeWarning, match=r"1 loss of [\d,]+ bytes: damaged batches have no records here"):
        made = log.to_arrow(on_error="skip")
    assert made.num_rows == sum(len(table) for table in log.tables(on_error="skip"))
    html = log._repr_html_()
    assert "error: " in html
    assert "stored checksum is" in html


@pytest.mark.parametrize("form", ["logs", "log"])
def test_libraries_of_columns_take_logs_for_their_records(form: str) -> None:
    logs = kbatch.find_logs(LOGS, topics="codec-*")
    given = logs if form == "logs" else logs[0]
    expected = given.to_arrow()
    assert pa.table(given).equals(expected)
    assert pl.DataFrame(given).equals(pl.from_arrow(expected))
    assert duckdb.sql("select count(*), max(\"offset\") from given").fetchall() == [(
        len(expected), max(expected["offset"].to_pylist()),
    )]  # fmt: skip
    with pytest.raises(TypeError, match=r"is not an array: to_pandas\(\), .* return its records"):
        pd.DataFrame(given)
    with pytest.raises(TypeError, match="is not an array"):
        np.asarray(given)
    assert not isinstance(given, list | Sequence)


def test_a_list_of_logs_has_a_length_an_order_and_slices() -> None:
    logs = kbatch.find_logs(LOGS)
    assert len(logs) == len(list(logs)) == 14
    assert list(logs)[-1] is logs[-1]
    assert list(logs[1:3]) == [logs[1], logs[2]]
    assert logs[1] in logs
    assert logs[:2] == LogList(list(logs)[:2]) != logs[:3]
    assert {logs[:2]: 1}[LogList(list(logs)[:2])] == 1
    with pytest.raises(IndexError):
        logs[14]
    assert len(pickle.loads(pickle.dumps(logs))) == 14


def test_the_logs_of_a_directory_are_a_list_with_conversions() -> None:
    logs = kbatch.find_logs(LOGS, predicate=lambda topic, partition: topic.startswith("codec-"))
    assert type(logs) is type(logs[:2]) is LogList
    assert (len(logs), len(logs[1:]), logs[0].topic) == (5, 4, "codec-gzip")
    assert [log.topic for log in logs] == [f"codec-{name}" for name in ("gzip", "lz4", "none", "snappy", "zstd")]
    expected = pa.concat_tables(log.to_arrow() for log in logs)
    assert logs.to_arrow().equals(expected)
    assert pa.RecordBatchReader.from_stream(logs).read_all().equals(expected)
    assert logs.to_polars(columns=["topic", "offset"]).equals(pl.from_arrow(expected.select(["topic", "offset"])))
    assert logs.to_pandas(columns=["offset"])["offset"].tolist() == expected["offset"].to_pylist()
    assert sum(map(len, logs.tables(start_offset=100))) == sum(log.to_arrow(start_offset=100).num_rows for log in logs)
    assert LogList().to_arrow().schema == logs.to_arrow().schema
    assert LogList().to_polars().schema == logs.to_polars().schema
    assert not LogList()


def test_html_and_repr_of_logs_are_short_and_escaped(log: kbatch.Log, tmp_path: Path) -> None:
    assert repr(log).endswith(", 2 segments, 62,704 bytes>")
    shown = log._repr_html_()
    for text in (
        "codec-lz4, 0",
        "offsets: 0 to ",
        "timestamps of the first and last batch: 2023-",
        "value: binary",
        "<td>",
    ):
        assert text in shown
    logs = kbatch.find_logs(LOGS)
    assert len(repr(logs).splitlines()) <= 10
    assert "... and 7 more logs" in repr(logs)
    assert "... and 7 more logs" in logs._repr_html_()
    directory = tmp_path / "<b>-0"
    shutil.copytree(LOGS / "codec-lz4-0", directory)
    assert "<b>" not in kbatch.Log(directory)._repr_html_()
