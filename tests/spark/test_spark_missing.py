"""Missing offsets and headers in the data source and the export, as a user of Spark meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from log_batches import NOW, batch, write_segment

pytest.importorskip("kbatch.spark", exc_type=ImportError)
pq = pytest.importorskip("pyarrow.parquet")

import kbatch.spark  # noqa: E402
from kbatch.cli import main  # noqa: E402

pytestmark = pytest.mark.spark
ASKED = json.dumps({"t": {"0": 5}})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_segment(tmp_path / "logs" / "t-0", 10, [batch(10, [NOW] * 5), batch(15, [NOW] * 5)])
    return tmp_path / "logs"


def test_missing_offsets_fail_a_query_unless_they_are_allowed(spark: Any, root: Path) -> None:
    reader = spark.read.format("kbatch").option("startingOffsets", ASKED)
    with pytest.raises(Exception, match="t-0: the read asks for offset 5, but the first one available is 10"):
        reader.load(str(root)).count()
    assert reader.option("failOnDataLoss", "false").load(str(root)).count() == 10


def test_an_export_reports_missing_offsets_in_its_summary_and_status(
    spark: Any, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["export", str(root), str(out), "--starting-offsets", ASKED]
    assert main(command) not in (0, 3)
    assert "t-0: the read asks for offset 5" in capsys.readouterr().err
    assert not out.exists()
    assert main([*command, "--allow-missing-offsets"]) == 3
    assert "missing    t-0: the read asks for offset 5" in capsys.readouterr().out
    summary = json.loads((out / "_manifest.json").read_text())
    (gap,) = summary["missing_offsets"]
    assert (gap["topic"], gap["partition"], gap["first_offset"], gap["last_offset"]) == ("t", 0, 5, 9)
    assert summary["records"] == 10


def test_an_export_keeps_headers_unless_they_are_left_out(spark: Any, golden: Path, tmp_path: Path) -> None:
    log = golden / "logs" / "codec-none-0"
    summary = kbatch.spark.export(log, tmp_path / "kept")
    kept = pq.ParquetDataset(tmp_path / "kept").read()
    assert any(kept["headers"].to_pylist())
    assert main(["export", str(log), str(tmp_path / "left"), "--no-headers"]) == 0
    left = pq.ParquetDataset(tmp_path / "left").read()
    assert left.column_names == [name for name in kept.column_names if name != "headers"]
    assert left.num_rows == kept.num_rows == summary.records
