"""Reads of scripted clusters: partitions whose values are their offsets, and what a consumer returns of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scripted_broker import ScriptedCluster, ScriptedPartition

import kbatch

__all__ = ["QUICK", "change_error", "consumed", "offsets", "partition"]

# Faults are over within milliseconds, and what does not pass fails within a second.
QUICK = {
    "request_timeout_ms": 200,
    "default_api_timeout_ms": 1000,
    "reconnect_backoff_ms": 1,
    "retry_backoff_ms": 1,
    "fetch_max_wait_ms": 10,
}


def partition(*sizes: int, leader: int = 1, **options: Any) -> ScriptedPartition:
    """Return a partition with batches of these numbers of records, whose values are their offsets."""
    made = ScriptedPartition(leader=leader)
    for size in sizes:
        first = made.end
        times = list(range(1000 + first, 1000 + first + size))
        made.write([b"%d" % i for i in range(first, first + size)], timestamps=times, **options)
    return made


def consumed(cluster: ScriptedCluster, topics: Any = "orders", **options: Any) -> kbatch.Consumer:
    settings = {"bootstrap_servers": "broker-1:9092", **QUICK}
    return kbatch.consume(topics, transport=cluster.connect, **(settings | options))


def offsets(tables: Any) -> dict[tuple[str, int], list[int]]:
    """Return the offsets by partition; the values are checked."""
    found: dict[tuple[str, int], list[int]] = {}
    for table in tables:
        numbers = table.records["offset"].tolist()
        assert table.values() == [b"%d" % each for each in numbers]
        found.setdefault((table.topic, table.partition), []).extend(numbers)
    return found


def change_error(code: int) -> Callable[[Any], None]:
    """Return a change that puts an error into the first partition of a fetch response."""

    def change(response: Any) -> None:
        part = response.responses[0].partitions[0]
        part.error_code, part.records = code, b""

    return change
