"""The work of the driver for each file of a commit: constant, and without access to the file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from kbatch.plan.positions import Position  # noqa: E402
from kbatch.plan.read_options import ReadOptions  # noqa: E402
from kbatch.sinks.commits import Commit, CommittedFile  # noqa: E402
from kbatch.sinks.file_names import FileNames  # noqa: E402
from kbatch.sinks.files import WrittenFile  # noqa: E402
from kbatch.sinks.outputs import OutputPlace  # noqa: E402
from kbatch.sinks.task import output_schema  # noqa: E402
from kbatch.sinks.write_options import WriteOptions  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

# KBATCH_TEST_ALL=1, as in .ci/long, commits 100,000 files.
FILES = 100_000 if os.environ.get("KBATCH_TEST_ALL") else 10_000
# CPU time of the driver for a file. Measured with 100,000 files: Delta 0.04 ms, Iceberg 0.11 ms.
MAX_SECONDS = 0.5e-3


def commit_of(kind: str, place: OutputPlace) -> Commit:
    names = FileNames(place, "0a1b2c3d", "run-0a1b2c3d/")
    files = []
    for i in range(FILES):
        name = names.data_file(("t", i % 100), None, 1000 * i, i, ".parquet")
        written = WrittenFile(name, 256 << 20, 1000, 1000 * i, 1000 * i + 999, *[1_700_000_000_000_000] * 2)
        files.append(CommittedFile("t", i % 100, written))
    schema = output_schema(ReadOptions(), WriteOptions(format=kind), None)  # type: ignore[arg-type]
    positions = {("t", i): Position(1000 * FILES, 1, None) for i in range(100)}
    return Commit(False, files, [], schema, positions, {"records": 1000 * FILES})


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_the_commit_of_a_table_opens_no_data_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files do not even exist: everything that the table needs is in the reports of the tasks."""
    place = OutputPlace(str(tmp_path / "out"))
    place.make()
    table: Any
    if kind == "delta":
        pytest.importorskip("deltalake")
        from kbatch.sinks.delta import DeltaTable

        table = DeltaTable(place, False)
    else:
        pytest.importorskip("pyiceberg")
        import pyiceberg.catalog

        from kbatch.sinks.iceberg import IcebergTable

        uri = f"sqlite:///{tmp_path}/c.db"
        for name, value in {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}"}.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__KB__{name.upper()}", value)
        monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", type(pyiceberg.catalog._ENV_CONFIG)())
        table = IcebergTable(place, False, "db.t", "kb")
    commit = commit_of(kind, place)
    began = time.process_time()
    table.load([])
    table.commit("0a1b2c3d", commit)
    seconds = time.process_time() - began
    assert table.has_run("0a1b2c3d")
    assert seconds / FILES < MAX_SECONDS
