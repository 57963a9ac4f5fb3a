"""The part of `kbatch.spark` that every supported version of PySpark has; .ci/spark-versions runs it on several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kbatch

pytest.importorskip("kbatch.spark", exc_type=ImportError)
pq = pytest.importorskip("pyarrow.parquet")

from kbatch.spark.source_api import HAS_DATA_SOURCE  # noqa: E402

pytestmark = pytest.mark.spark

# As in PySpark 3.5, where the modules do not exist.
WITHOUT = """
import sys, warnings
warnings.simplefilter("ignore")
sys.modules["pyspark.sql.datasource"] = sys.modules["pyspark.sql.streaming.datasource"] = None
import kbatch.spark
try:
    {}
except ImportError as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""


def offsets(out: Path, topic: str) -> list[int]:
    files = sorted(out.glob(f"topic={topic}/partition=*/*.parquet"))
    return [offset for file in files for offset in pq.ParquetFile(file).read(["offset"])["offset"].to_pylist()]


@pytest.mark.parametrize("call", ["kbatch.spark.register(None)", "kbatch.spark.KbatchDataSource({})"])
def test_without_python_data_sources_the_error_names_what_works(call: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT.format(call)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith('MissingDependencyError: format("kbatch") needs PySpark 4.0 or newer, and this is ')
    assert "kbatch.export" in done.stdout
    assert "kbatch.spark.decode_frame" in done.stdout


def test_raw_batches_are_decoded_in_frames_and_rdds(spark: Any, golden: Path) -> None:
    data = (golden / "logs" / "codec-zstd-0" / f"{0:020}.log").read_bytes()
    expected = kbatch.decode(data).records["offset"].tolist()
    frame = spark.createDataFrame([("orders", bytearray(data))], "topic string, bytes binary")
    decoded = kbatch.spark.decode_frame(frame, "bytes", keep=["topic"], include_headers=True)
    rows = decoded.collect()
    assert [row.offset for row in rows] == expected
    assert {row.topic for row in rows} == {"orders"}
    found = spark.sparkContext.parallelize([data]).mapPartitions(kbatch.spark.decode_batches()).collect()
    assert [row.offset for row in found] == expected
    assert [row.value for row in found] == [row.value for row in rows]


def test_exports_continue_and_leave_out_aborted_records(spark: Any, golden: Path, tmp_path: Path) -> None:
    reading: Any = {"topics": ["txn", "codec-lz4"], "isolation": "read_committed"}
    first = kbatch.export(golden / "logs", tmp_path / "out", engine="spark", **reading)
    again = kbatch.export(golden / "logs", tmp_path / "out", engine="spark", **reading)
    assert (first.records > 0, again.records) == (True, 0)
    for topic in ("txn", "codec-lz4"):
        tables = kbatch.Log(golden / "logs" / f"{topic}-0").tables(isolation="read_committed")
        expected = [offset for table in tables for offset in table.records["offset"].tolist()]
        assert offsets(tmp_path / "out", topic) == expected


def test_the_error_of_a_task_is_raised_as_it_is(spark: Any, golden: Path, tmp_path: Path) -> None:
    log = tmp_path / "t-0"
    log.mkdir()
    data = bytearray((golden / "logs" / "codec-lz4-0" / f"{0:020}.log").read_bytes())
    data[-5] ^= 1
    (log / f"{0:020}.log").write_bytes(data)
    with pytest.raises(kbatch.CrcMismatchError, match=r"0000\.log, byte \d+"):
        kbatch.export(log, tmp_path / "out", engine="spark")


# With the newest PySpark, tests/cli/test_cli.py exports from a shell.
@pytest.mark.long
def test_the_command_line_exports(golden: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kbatch", "export", "--json", "--topic", "codec-zstd", golden / "logs", out],
        env=os.environ | {"PYTHONWARNINGS": "ignore"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"] == len(offsets(out, "codec-zstd"))


def test_the_data_source_reads_and_streams_where_pyspark_has_one(spark: Any, golden: Path) -> None:
    if not HAS_DATA_SOURCE:
        with pytest.raises(kbatch.errors.MissingDependencyError, match=r"PySpark 4\.0"):
            kbatch.spark.register(spark)
        return
    logs = str(golden / "logs")
    expected = sum(len(table) for table in kbatch.Log(golden / "logs" / "codec-gzip-0").tables())
    assert spark.read.format("kbatch").option("subscribe", "codec-gzip").load(logs).count() == expected
    stream = spark.readStream.format("kbatch").option("subscribe", "codec-gzip").option("startingOffsets", "earliest")
    query = stream.load(logs).writeStream.format("memory").queryName("versions").trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
        assert spark.table("versions").count() == expected
    finally:
        query.stop()
