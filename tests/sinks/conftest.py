"""Fixtures of exports that continue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
