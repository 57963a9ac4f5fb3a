"""An Iceberg catalog in a SQLite file, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

NAME = "kb"
TABLE = "db.t"


def use(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the catalog, and configure pyiceberg for it in this process and the processes that it starts."""
    pytest.importorskip("pyiceberg")
    import pyiceberg.catalog

    (directory / "catalog").mkdir()
    uri = f"sqlite:///{directory}/catalog/c.db"
    for name, value in {"type": "sql", "uri": uri, "warehouse": f"file://{directory}/catalog"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__{NAME.upper()}__{name.upper()}", value)
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", type(pyiceberg.catalog._ENV_CONFIG)())


def table() -> Any:
    """Return the table of the test."""
    from pyiceberg.catalog import load_catalog

    return load_catalog(NAME).load_table(TABLE)
