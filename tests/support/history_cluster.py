"""A cluster of one partition whose history is in files."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from history_copies import write_log
from scripted_broker import ScriptedCluster, ScriptedPartition
from served_logs import QUICK

import kbatch
from kbatch.live import ClientSettings, ClusterSource
from kbatch.protocol import ApiKey

__all__ = [
    "BATCH",
    "BEGIN",
    "cut",
    "faulty_log",
    "fetched_offsets",
    "log_of",
    "offsets",
    "partition",
    "served",
    "source_of",
]

BATCH = 10
BEGIN = 1_700_000_000_000


def partition(batches: int = 12, epochs: Sequence[int] = ()) -> ScriptedPartition:
    """Return a partition with a record for each second; `epochs` are the leader epochs of the batches."""
    made = ScriptedPartition()
    for number in range(batches):
        made.epoch = epochs[number] if epochs else 0
        first = number * BATCH
        times = [BEGIN + 1000 * i for i in range(first, first + BATCH)]
        made.write([b"value %d" % i for i in range(first, first + BATCH)], timestamps=times)
    return made


def served(made: ScriptedPartition) -> ScriptedCluster:
    return ScriptedCluster(1, orders=[made])


def source_of(cluster: ScriptedCluster, *history: Path, **options: Any) -> ClusterSource:
    given = {"bootstrap_servers": "broker-1:9092", **QUICK, "fetch_max_bytes": 1 << 20}
    return ClusterSource(ClientSettings.of(given), history=history or None, transport=cluster.connect, **options)


def fetched_offsets(cluster: ScriptedCluster) -> list[int]:
    return [
        part.fetch_offset
        for message in cluster.sent(ApiKey.FETCH)
        for topic in message.topics
        for part in topic.partitions
    ]


def offsets(scan: kbatch.Scan) -> list[int]:
    found: list[int] = scan.select("offset").to_arrow().column("offset").to_pylist()
    return found


def log_of(cluster: ScriptedCluster, root: Path, sizes: Sequence[int], **options: Any) -> Path:
    """Write the batches of the partition as a log with these segments."""
    batches = options.get("batches", cluster.topics["orders"][0].batches)
    return write_log(root / "orders-0", batches, sizes, options.get("topic_id", cluster.ids["orders"]))


def faulty_log(cluster: ScriptedCluster, root: Path, fault: str) -> Path:
    """Write the log of three segments of three batches each, of which the second is "cut" or "gone".

    With the fault "another topic", the log has another topic id.
    """
    topic_id = uuid.UUID(int=7) if fault == "another topic" else cluster.ids["orders"]
    log = log_of(cluster, root, [3, 3, 3], topic_id=topic_id)
    middle = log / f"{3 * BATCH:020d}.log"
    if fault == "cut":
        cut(middle)
    elif fault == "gone":
        middle.unlink()
    return log


def cut(path: Path) -> None:
    """Cut the end of a file."""
    path.write_bytes(path.read_bytes()[:-30])
