"""Fixtures of exports that continue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import log_batches
import pytest

if TYPE_CHECKING:
    from export_outputs import Output


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two topic-partitions: one with 20 records, one with 10."""
    export_outputs = pytest.importorskip("export_outputs", exc_type=ImportError)
    log_batches.write_segment(tmp_path / "logs" / "t-0", 0, export_outputs.batches(0, 10))
    log_batches.write_segment(tmp_path / "logs" / "t-1", 0, export_outputs.batches(0, 5))
    return tmp_path / "logs"


@pytest.fixture
def out(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Output:
    export_outputs = pytest.importorskip("export_outputs", exc_type=ImportError)
    kind: str = getattr(request, "param", "parquet")
    if kind == "delta":
        pytest.importorskip("deltalake")
    if kind == "iceberg":
        import iceberg_catalog

        iceberg_catalog.use(tmp_path, monkeypatch)
    output: Output = export_outputs.Output(kind, tmp_path / "out")
    return output


@pytest.fixture(params=["parquet", "delta", "iceberg", "object store"])
def killed(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The output of exports to kill: keywords of `local_export.export`, and `out`."""
    kind: str = request.param
    settings: dict[str, Any] = {"format": kind, "out": str(tmp_path / "out")}
    if kind == "delta":
        pytest.importorskip("deltalake")
    if kind == "iceberg":
        import iceberg_catalog

        iceberg_catalog.use(tmp_path, monkeypatch)
        settings |= {"table": iceberg_catalog.TABLE, "catalog": iceberg_catalog.NAME}
    if kind == "object store":
        from kbatch.log.store.storage import filesystem

        server = request.getfixturevalue("s3_server")
        own = {"access_key": "me", "secret_key": "secret", "background_writes": "false"}
        settings |= {
            "format": "parquet",
            "storage": {**own, "endpoint_override": f"http://{server}"},
            # The server is the same for all tests.
            "out": f"s3://killed/{tmp_path.name}",
        }
        creating = {**settings["storage"], "allow_bucket_creation": "true"}
        filesystem("s3://killed", creating)[0].create_dir("killed")
    return settings
