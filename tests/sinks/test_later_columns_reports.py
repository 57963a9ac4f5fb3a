"""What summaries, manifests and reports say of columns that come later, with both engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")

import iceberg_catalog  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from export_outputs import FORMATS, Output  # noqa: E402
from later_columns import JSON, add, changes, given, manifest, rows_of  # noqa: E402

import kbatch  # noqa: E402
from kbatch.cli import main  # noqa: E402
from kbatch.cli.export_summary import summary_lines  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
every_format = pytest.mark.parametrize("out", FORMATS, indirect=True)
tables = pytest.mark.parametrize("out", ["delta", "iceberg"], indirect=True)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "json"


# -- what is reported


def test_the_summary_the_manifest_and_the_report_name_new_columns(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    add(logs, 0, [{"id": 1}])
    command = ["export", str(logs), str(out), "--engine", "local", "--values", "json"]
    assert main(command) == 0
    add(logs, 1, [{"id": 2, **{f"n{i:02}": i for i in range(22)}}])
    capsys.readouterr()
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  columns    value.n00 added: int64" in lines
    assert f"             and 2 more; {out}/_manifest.json lists them" in lines
    written = json.loads((out / "_manifest.json").read_text())["schema_changes"]
    assert written[0] == {"column": "value.n00", "change": "added", "type": "int64", "before": None}
    assert len(written) == 22
    assert main(["export", "--report", str(out)]) == 0
    report = capsys.readouterr().out
    assert "  columns    value.n00 added: int64" in report
    assert "  columns    and 2 more" in report
    add(logs, 2, [{"id": 3, "more": [1]}])
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["column"] for each in found["schema_changes"]] == ["value.more"]
    assert main(["export", "--report", str(out), "--json"]) == 0
    reports = json.loads(capsys.readouterr().out)["reports"]
    assert [each["schema_change_count"] for each in reports] == [22, 1]


def test_a_widened_column_is_shown_with_both_types(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    iceberg_catalog.use(tmp_path, monkeypatch)
    out = Output("iceberg", tmp_path / "out")
    add(logs, 0, [{"id": 1}])
    out.write(logs, given("id int"))
    add(logs, 1, [{"id": 2}])
    lines = summary_lines(out.write(logs, given("id bigint")))
    assert "  columns    value.id widened: from int32 to int64" in lines


@pytest.mark.parametrize("text", ["no base64!", "AAAA", 7])
def test_a_manifest_with_a_damaged_schema_is_an_error(logs: Path, tmp_path: Path, text: Any) -> None:
    out = Output("parquet", tmp_path / "out")
    add(logs, 0, [{"id": 1}])
    out.write(logs, JSON)
    (out.path / "_manifest.json").write_text(json.dumps(manifest(out) | {"arrow_schema": text}))
    with pytest.raises(kbatch.LogDirectoryError, match="not the manifest of an export"):
        out.write(logs, JSON)


def test_the_files_of_an_export_without_a_schema_in_its_manifest_have_their_columns(logs: Path, tmp_path: Path) -> None:
    out = Output("parquet", tmp_path / "out")
    add(logs, 0, [{"id": 1}])
    out.write(logs, JSON)
    found = manifest(out)
    del found["arrow_schema"]
    (out.path / "_manifest.json").write_text(json.dumps(found))
    add(logs, 1, [{"id": 2, "late": 1}])
    assert changes(out.write(logs, JSON)) == [("value.late", "added", "int64")]
    assert pq.read_schema(next(out.path.rglob("part-00000000000000000001*"))).field("value").type.num_fields == 2


# -- engines


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize("flatten", [False, True], ids=["struct", "flat"])
@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_both_engines_add_the_same_columns(
    kind: str, flatten: bool, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    iceberg_catalog.use(tmp_path, monkeypatch)
    where: Any = {"table": iceberg_catalog.TABLE, "catalog": iceberg_catalog.NAME} if kind == "iceberg" else {}
    out = Output(kind, tmp_path / "out")
    options: Any = {"values": "json", "flatten": flatten, "format": kind, **where}
    engines: list[Any] = ["local", "spark", "local", "spark"]
    names: list[str] = []
    for number, engine in enumerate(engines):
        add(logs, number, [{"id": number, **{f"n{each}": number for each in range(number)}}])
        summary = kbatch.export(logs, out.path, engine=engine, **options)
        names += [each["column"].removeprefix("value.") for each in summary.schema_changes]
        assert summary.bad == 0
    assert names == ["n0", "n1", "n2"]
    found = [row if flatten else row["value"] for row in rows_of(out)]
    assert [[row[name] for name in names] for row in found] == [
        [None, None, None], [1, None, None], [2, 2, None], [3, 3, 3],
    ]  # fmt: skip
    if kind == "parquet":
        read = spark.read.option("mergeSchema", "true").parquet(str(out.path))
        column = "n2" if flatten else "value.n2"
        assert [row[0] for row in read.orderBy("offset").select(column).collect()] == [None, None, None, 3]
