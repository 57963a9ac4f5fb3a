"""Logs that grow, and the outputs of exports in all formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import iceberg_catalog
import log_batches
import pyarrow as pa
import pyarrow.parquet as pq
from local_export import export
from log_batches import NOW

from kbatch.plan.read_options import ReadOptions

FORMATS = ["parquet", "arrow", "delta", "iceberg"]


def batches(first: int, count: int, *, epoch: int = 0) -> list[bytes]:
    """Return batches of two records each."""
    found = []
    for base in range(first, first + 2 * count, 2):
        one = bytearray(log_batches.batch(base, [NOW + base, NOW + base + 1]))
        one[12:16] = epoch.to_bytes(4, "big")
        found.append(bytes(one))
    return found


class Output:
    """An output of some format, and the offsets in it."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind = kind
        self.path = path

    def write(self, root: Path, options: ReadOptions | None = None, **writing: Any) -> Any:
        where = {"table": iceberg_catalog.TABLE, "catalog": iceberg_catalog.NAME} if self.kind == "iceberg" else {}
        return export(root, self.path, options, format=self.kind, **where, **writing)

    def offsets(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for name, table in self._tables():
            found.setdefault(name, []).extend(table.column("offset").to_pylist())
        return {name: sorted(each) for name, each in sorted(found.items())}

    def _tables(self) -> Any:
        if self.kind in ("delta", "iceberg"):
            table = self.table()
            rows = table.to_pyarrow_table() if self.kind == "delta" else table.scan().to_arrow()
            for row in rows.select(["topic", "partition", "offset"]).to_pylist():
                yield f"{row['topic']}-{row['partition']}", pa.table({"offset": [row["offset"]]})
            return
        manifest = json.loads((self.path / "_manifest.json").read_text())
        listed = sorted(name for run in manifest["runs"] for name in run["files"])
        found = [path for path in self.path.rglob("*") if path.suffix in (".parquet", ".arrow")]
        assert listed == sorted(str(path.relative_to(self.path)) for path in found)
        for path in found:
            table = pq.ParquetFile(path).read() if self.kind == "parquet" else pa.ipc.open_file(path).read_all()
            topic, partition = (part.partition("=")[2] for part in path.relative_to(self.path).parts[:2])
            yield f"{topic}-{partition}", table

    def table(self) -> Any:
        if self.kind == "delta":
            import deltalake

            return deltalake.DeltaTable(str(self.path))
        return iceberg_catalog.table()

    def files(self) -> list[str]:
        """Return all files with their times: a run that writes nothing changes none of them."""
        return sorted(f"{path}, {path.stat().st_mtime_ns}" for path in self.path.rglob("*") if path.is_file())
