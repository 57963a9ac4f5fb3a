"""Frames for `write_log`, and the records and files of the logs it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kbatch
from kbatch.log.check.verification import verify_log

pa = pytest.importorskip("pyarrow")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Record = tuple[Any, ...]


def frame(count: int = 50, *, topics: int = 2, partitions: int = 3, first: int = 0) -> Any:
    """Return rows that alternate between topic-partitions; some have nulls, empty values, headers or no timestamp."""
    rows = range(first, first + count)
    return pa.table(
        {
            "headers": pa.array([None if n % 3 else [("h", b"%d" % n), ("h", None)] for n in rows], HEADERS),
            "key": pa.array([None if n % 4 == 0 else b"k%d" % n for n in rows], pa.binary()),
            "value": pa.array([None if n % 5 == 0 else b"v" * (n % 7) + b"%d" % n for n in rows], pa.binary()),
            "topic": pa.array([f"topic.{n % topics}" for n in rows], pa.string()),
            "partition": pa.array([n % partitions for n in rows], pa.int32()),
            "timestamp": pa.array([None if n % 11 == 0 else 1000 + n for n in rows], pa.timestamp("ms", "UTC")),
        }
    )


def expected(*tables: Any) -> dict[tuple[str, int], list[Record]]:
    """Return the records that logs must have for these rows: offset, timestamp, key, value, headers."""
    logs: dict[tuple[str, int], list[Record]] = {}
    for table in tables:
        columns = [table[name].to_pylist() for name in ("topic", "partition", "key", "value", "headers")]
        times = table["timestamp"].cast(pa.int64()).to_pylist()
        for topic, partition, key, value, headers, time in zip(*columns, times, strict=True):
            log = logs.setdefault((topic, partition), [])
            pairs = [(each["key"].encode(), each["value"]) for each in headers or ()]
            log.append((len(log), -1 if time is None else time, key, value, pairs))
    return logs


def found(root: Path) -> dict[tuple[str, int], list[Record]]:
    logs: dict[tuple[str, int], list[Record]] = {}
    for log in kbatch.find_logs(root):
        assert log.topic is not None
        assert log.partition is not None
        assert not verify_log(log.segments).damaged
        records = logs.setdefault((log.topic, log.partition), [])
        for table in log.tables():
            headers = table.to_arrow(columns=("headers",))["headers"].to_pylist()
            for i, row in enumerate(table.records):
                pairs = [(each["key"], each["value"]) for each in headers[i] or ()]
                records.append((int(row["offset"]), int(row["timestamp"]), table.key(i), table.value(i), pairs))
    return logs


def tree(root: Path) -> dict[str, bytes | None]:
    """Return all files and directories, except the lock file, which is not deleted."""
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.name != ".lock"
    }
