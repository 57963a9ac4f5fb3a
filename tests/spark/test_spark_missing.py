"""Missing offsets, headers and unparsable values in the data source and the export, as a user of Spark meets them."""

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
from kbatch.log.selection import choose_logs  # noqa: E402
from kbatch.plan.read_options import parse_options  # noqa: E402
from kbatch.plan.value_columns import parsers_of  # noqa: E402
from kbatch.sinks.summary import ExportSummary  # noqa: E402
from kbatch.sinks.write_options import WriteOptions  # noqa: E402

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
    summary = kbatch.export(log, tmp_path / "kept", engine="spark")
    kept = pq.ParquetDataset(tmp_path / "kept").read()
    assert any(kept["headers"].to_pylist())
    assert main(["export", str(log), str(tmp_path / "left"), "--no-headers"]) == 0
    left = pq.ParquetDataset(tmp_path / "left").read()
    assert left.column_names == [name for name in kept.column_names if name != "headers"]
    assert left.num_rows == kept.num_rows == summary.records


def write_json(root: Path, values: list[bytes], per_batch: int = 100) -> Path:
    batches = []
    for base in range(0, len(values), per_batch):
        part = values[base : base + per_batch]
        batches.append(kbatch.encode(values=part, base_offset=base, timestamps=[NOW] * len(part)))
    write_segment(root / "t-0", 0, batches, indexes=True)
    return root


def test_a_schema_is_inferred_from_the_whole_log(tmp_path: Path) -> None:
    """Fields that appear later in the log are in the schema too."""
    filler = b"x" * 500
    early = [b'{"id": %d, "filler": "%s"}' % (i, filler) for i in range(6000)]
    late = [b'{"id": %d, "filler": "%s", "late": true}' % (i, filler) for i in range(1000)]
    root = write_json(tmp_path / "logs", early + late)
    options = parse_options({"path": str(root), "valueFormat": "json"})[1]
    (parser,) = parsers_of(options.values, choose_logs([str(root)], options.selection), options).values()
    assert [field.name for field in parser.type] == ["id", "filler", "late"]


@pytest.mark.parametrize(
    ("allowed", "status"), [(None, 5), ("1", 5), ("2", 0), ("0.9%", 5), ("1%", 0), ("100%", 0), ("0", 5)]
)
def test_unparsable_values_beyond_the_limit_have_an_exit_status(allowed: str | None, status: int) -> None:
    writing = WriteOptions() if allowed is None else WriteOptions(max_bad=allowed)
    summary = ExportSummary("logs", "out", too_many_bad=not writing.tolerates(2, 200))
    assert summary.exit_status == status
    assert WriteOptions().tolerates(0, 0)


def test_an_export_with_unparsable_values_has_an_exit_status(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_json(tmp_path / "logs", [b'{"id": 1}'] * 98 + [b"no", b"{"])
    command = ["export", str(root), str(tmp_path / "a"), "--values", "json", "--value-schema", "id bigint"]
    assert main(command) == 5
    assert "more than --max-bad allows" in capsys.readouterr().out
    command[2] = str(tmp_path / "b")
    assert main([*command, "--max-bad", "2%"]) == 0
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--max-bad", "many"])
    assert "argument --max-bad: must be a number such as 100, or percent such as 0.5%" in capsys.readouterr().err
