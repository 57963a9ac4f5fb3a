"""Both engines in every format: equal rows, files and summaries, and each ends what the other began."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import iceberg_catalog
import pytest
from log_batches import batch, write_segment

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("kbatch.spark", exc_type=ImportError)

import killed_engine  # noqa: E402
from export_outputs import FORMATS, Output  # noqa: E402
from local_export import log_offsets  # noqa: E402

import kbatch  # noqa: E402
from kbatch.exporting import engine_choice  # noqa: E402

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore:PySpark does not yet fully support pandas:FutureWarning",
        "ignore::DeprecationWarning",
        "ignore::ResourceWarning",
    ),
]

ENGINES: list[Any] = ["local", "spark"]
TIMES = {
    "engine", "engine_reason", "seconds", "start_seconds", "plan_seconds", "task_seconds", "commit_seconds",
    "records_per_second",
}  # fmt: skip
NAMED = {"iceberg": {"table": iceberg_catalog.TABLE, "catalog": iceberg_catalog.NAME}}


def summary_of(summary: kbatch.ExportSummary) -> Any:
    """Return a summary without times, and with fixed names of the output, the run and the files."""
    text = json.dumps({name: value for name, value in summary.to_dict().items() if name not in TIMES})
    text = text.replace(summary.out, "OUT").replace(summary.run, "RUN")
    text = re.sub(r"-[0-9a-f]{8}(\.\w+\b)", r"-ID\1", text)
    return json.loads(re.sub(r"_reports/[0-9TZ]+-", "_reports/TIME-", text))


def contents(out: Path, summary: kbatch.ExportSummary) -> list[tuple[str, Any]]:
    """Return the rows of each data file, with the file's name without ids, and its row groups or batches."""
    found = []
    for name in summary.files:
        path = out / name
        masked = re.sub(r"-[0-9a-f]{8}(\.\w+)$", r"-ID\1", name.replace(summary.run, "RUN"))
        if path.suffix == ".arrow":
            with pa.ipc.open_file(path) as reader:
                groups = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
                found.append((masked, (groups, reader.schema, reader.read_all().to_pylist())))
        else:
            file = pq.ParquetFile(path)
            groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            found.append((masked, (groups, file.schema_arrow, file.read().to_pylist())))
    return found


def prepared(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "delta":
        pytest.importorskip("deltalake")
    if kind == "iceberg":
        iceberg_catalog.use(tmp_path, monkeypatch)


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_files_and_summaries_are_equal(
    kind: Any, golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    """Of committed records, with damage that is skipped, withheld transactions and days."""
    prepared(kind, tmp_path, monkeypatch)
    damaged = tmp_path / "logs" / "t-0"
    bad = bytearray(batch(10, [11, 12, 13]))
    bad[-1] ^= 1
    write_segment(damaged, 0, [batch(0, [5, -1, 86_400_000]), bytes(bad), batch(20, [21])])
    summaries, written = {}, {}
    for engine in ENGINES:
        options: Any = {"isolation": "read_committed", "on_error": "skip", "by_day": True, "format": kind}
        if kind == "iceberg":
            options |= {"table": f"db.{engine}", "catalog": iceberg_catalog.NAME}
        out = tmp_path / engine
        summary = kbatch.export([golden / "logs", tmp_path / "logs"], out, engine=engine, **options)
        assert (summary.engine, summary.engine_reason, summary.exit_status) == (engine, "requested", 3)
        summaries[engine], written[engine] = summary_of(summary), contents(out, summary)
    assert summaries["local"] == summaries["spark"]
    assert written["local"] == written["spark"]
    assert sum(len(rows) for _, (_, _, rows) in written["local"]) == summaries["local"]["records"] > 10_000


def test_a_transform_and_the_progress_are_those_of_both_engines(tmp_path: Path, spark: Any) -> None:
    class Sizes:
        """A transform that writes the size of a value in its place."""

        def schema(self, schema: Any) -> Any:
            return schema.set(schema.get_field_index("value"), pa.field("value", pa.int32()))

        def apply(self, given: Any) -> Any:
            import pyarrow.compute

            column = pyarrow.compute.binary_length(given["value"])
            return given.set_column(given.schema.get_field_index("value"), "value", column)

    grow(tmp_path / "logs", 0)
    written, shown = {}, {}
    for engine in ENGINES:
        seen: list[tuple[int, int, int]] = []
        summary = kbatch.export(
            tmp_path / "logs", tmp_path / engine, engine=engine, transform=Sizes(),
            progress=lambda *counts, seen=seen: seen.append(counts),
        )  # fmt: skip
        written[engine], shown[engine] = contents(tmp_path / engine, summary), seen[-1]
    size = sum(log.size for log in kbatch.find_logs(tmp_path / "logs"))
    assert shown == dict.fromkeys(ENGINES, (size, size, 40))
    assert written["local"] == written["spark"]
    assert {row["value"] for _, (_, _, rows) in written["local"] for row in rows} == {5}


def test_auto_takes_spark_with_an_active_session_a_master_or_settings(tmp_path: Path, spark: Any) -> None:
    grow(tmp_path / "logs", 0)
    summary = kbatch.export(tmp_path / "logs", tmp_path / "out")
    assert (summary.engine, summary.engine_reason) == ("spark", "a session is active")
    for given, reason in (
        ({"master": "local[2]"}, "master given"),
        ({"conf": {"spark.x": "y"}}, "conf given"),
        ({"master": "local[2]", "conf": {"spark.x": "y"}}, "master and conf given"),
    ):
        chosen = engine_choice("auto", **given)(0)  # type: ignore[arg-type]
        assert (chosen.name, chosen.reason) == ("spark", reason)
    assert engine_choice("auto", threads=1)(1 << 50).name == engine_choice("local")(1 << 50).name == "local"


def grow(root: Path, first: int) -> None:
    for partition in range(2):
        batches = [batch(base, [base, base + 1]) for base in range(first, first + 20, 2)]
        write_segment(root / f"t-{partition}", first, batches)


# A killed Spark takes 10 seconds, and the code of Arrow and Parquet differs only in the files.
KILLED = [
    pytest.param(begins, kind, marks=[pytest.mark.long] if begins == "spark" and kind in ("arrow", "iceberg") else [])
    for begins in ENGINES
    for kind in FORMATS
]


@pytest.mark.parametrize(("begins", "kind"), KILLED)
@pytest.mark.parametrize("moment", ["before the commit", "in the commit"])
def test_one_engine_undoes_or_finishes_what_was_killed_under_the_other(
    kind: Any, moment: str, begins: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    """The first run is of one engine, the killed one too; the other engine ends it and continues."""
    prepared(kind, tmp_path, monkeypatch)
    root, output = tmp_path / "logs", Output(kind, tmp_path / "out")
    ends: Any = "spark" if begins == "local" else "local"
    options: Any = {"format": kind, **NAMED.get(kind, {})}
    grow(root, 0)
    # The other engine has begun the output, so that the killed run continues it.
    assert kbatch.export(root, output.path, engine=ends, **options).records == 40
    before = output.offsets()
    grow(root, 20)
    support = Path(killed_engine.__file__)
    done = subprocess.run(
        [sys.executable, support, root, output.path, begins, moment, json.dumps(options)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(support.parent), str(Path(kbatch.__file__).parents[1])])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    if moment == "before the commit" and kind in ("delta", "iceberg"):
        assert output.offsets() == before
    grow(root, 40)
    records = 80 if moment == "before the commit" else 40
    assert kbatch.export(root, output.path, engine=ends, **options).records == records
    assert output.offsets() == log_offsets(root)
    names = [*os.listdir(output.path), *os.listdir(tmp_path)]
    assert [name for name in names if "_temporary-" in name or ".tmp-" in name] == []
    for engine in ENGINES:
        assert kbatch.export(root, output.path, engine=engine, **options).action == "unchanged"
