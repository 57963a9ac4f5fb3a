"""Logs of JSON values that get new fields, and what an output has of them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import log_batches
import pytest
from value_tables import batch_of

pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")

from export_outputs import Output  # noqa: E402

from kbatch.plan.read_options import ReadOptions  # noqa: E402
from kbatch.value_options import FormatOptions, ValueOptions  # noqa: E402

JSON = ReadOptions(values=ValueOptions(value=FormatOptions("json")))
BOTH = ReadOptions(values=ValueOptions(key=FormatOptions("json"), value=FormatOptions("json")))


def given(schema: str) -> ReadOptions:
    return ReadOptions(values=ValueOptions(value=FormatOptions("json", schema)))


def add(logs: Path, first: int, values: list[Any], keys: list[bytes | None] | None = None) -> None:
    """Add a segment with one batch."""
    texts = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    log_batches.write_segment(logs / "t-0", first, [batch_of(texts, keys, first)])


def rows_of(out: Output) -> list[dict[str, Any]]:
    """Return all rows, by offset, as a reader of the whole output gets them."""
    if out.kind == "delta":
        table = out.table().to_pyarrow_table()
    elif out.kind == "iceberg":
        table = out.table().scan().to_arrow()
    else:
        kind = "parquet" if out.kind == "parquet" else "ipc"
        files = [str(out.path / name) for run in manifest(out)["runs"] for name in run["files"]]
        table = ds.dataset(files, format=kind, schema=schema_of(out)).to_table()
    return sorted(table.to_pylist(), key=lambda row: row["offset"])


def manifest(out: Output) -> Any:
    return json.loads((out.path / "_manifest.json").read_text())


def schema_of(out: Output) -> Any:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(manifest(out)["arrow_schema"])))


def changes(summary: Any) -> list[tuple[str, str, str]]:
    return [(each["column"], each["change"], each["type"]) for each in summary.schema_changes]
