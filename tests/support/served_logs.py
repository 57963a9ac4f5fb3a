"""Logs of a directory that brokers in this process serve, to compare reads of both."""

from __future__ import annotations

from pathlib import Path

from scanned_logs import ScannedLogs
from scripted_broker import ScriptedCluster, ScriptedPartition

import kbatch
from kbatch.live import ClientSettings, ClusterSource

__all__ = ["cluster_source", "served_cluster"]

QUICK = {
    "request_timeout_ms": 5000,
    "default_api_timeout_ms": 5000,
    "reconnect_backoff_ms": 1,
    "retry_backoff_ms": 1,
    "fetch_max_wait_ms": 10,
}


class ServedPartition(ScriptedPartition):
    """A partition whose batches may be damaged, so that a broker knows their offsets from before."""

    def __init__(self, log: Path, batches: list[tuple[bytes, int, int]], leader: int) -> None:
        super().__init__([batch for batch, _, _ in batches], leader=leader)
        self._ends = [end for _, _, end in batches]
        self._log = kbatch.Log(log)
        self._transactions = self._log.transactions(on_error="skip")
        self.stable = self._transactions.last_stable_offset

    @property
    def end(self) -> int:
        return self._ends[-1]

    def offset_at(self, time: int) -> int:
        found = self._log.offset_for_timestamp(time, on_error="skip")
        return -1 if found is None else found

    def aborted_from(self, offset: int) -> list[tuple[int, int]]:
        rows = self._transactions.aborted
        rows = rows[rows["last_offset"] >= offset]
        return sorted(zip(rows["producer_id"].tolist(), rows["first_offset"].tolist(), strict=True), key=lambda x: x[1])

    def records(self, offset: int, size: int, stop: int) -> bytes:
        found = b""
        for batch, end in zip(self.batches, self._ends, strict=True):
            if end <= offset:
                continue
            if end > stop:
                break
            if found and len(found) + len(batch) > size:
                break
            found += batch
        return found


def served_cluster(logs: ScannedLogs, brokers: int = 2) -> ScriptedCluster:
    """Return a cluster with the topics of logs; the leaders alternate."""
    topics = {
        topic: [
            ServedPartition(logs.root / f"{topic}-{number}", batches, 1 + number % brokers)
            for number, batches in enumerate(partitions)
        ]
        for topic, partitions in logs.batches.items()
    }
    return ScriptedCluster(brokers, **topics)  # type: ignore[arg-type]


def cluster_source(cluster: ScriptedCluster, **settings: object) -> ClusterSource:
    """Return the source of scans of a cluster."""
    given = {"bootstrap_servers": "broker-1:9092", **QUICK, **settings}
    return ClusterSource(ClientSettings.of(given), transport=cluster.connect)
