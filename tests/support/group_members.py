"""Members of groups over brokers in this process."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from scripted_broker import ScriptedPartition
from scripted_groups import GroupCluster

import kbatch

__all__ = ["KEYS", "SETTINGS", "Follower", "Stopped", "joined", "no_thread_is_left", "offsets", "written"]

SETTINGS = {
    "bootstrap_servers": "broker-1",
    "request_timeout_ms": 1000,
    "default_api_timeout_ms": 2000,
    "reconnect_backoff_ms": 1,
    "retry_backoff_ms": 1,
    "fetch_max_wait_ms": 10,
    "metadata_max_age_ms": 50,
    "heartbeat_interval_ms": 20,
}
KEYS = [("orders", 0), ("orders", 1)]


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    before = {*threading.enumerate()}
    yield
    while Follower.running:
        member = Follower.running.pop()
        member.consumer.close()
        member.join(5)
    gc.collect()
    deadline = time.monotonic() + 5
    while any(each.name.startswith("kbatch-") for each in {*threading.enumerate()} - before):
        assert time.monotonic() < deadline, "a thread still runs"
        time.sleep(0.01)


def joined(cluster: GroupCluster, topics: Any = "orders", **options: Any) -> kbatch.Consumer:
    settings: dict[str, Any] = {**SETTINGS, "group": "etl"}
    return kbatch.consume(topics, transport=cluster.connect, **(settings | options))


def written(*counts: int, **options: Any) -> ScriptedPartition:
    made = ScriptedPartition()
    for count in counts:
        made.write([b"%d" % (made.end + i) for i in range(count)], **options)
    return made


def offsets(tables: Any) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for table in tables:
        found.setdefault((table.topic, table.partition), []).extend(table.records["offset"].tolist())
    return found


class Follower(threading.Thread):
    """A member in a thread.

    `found` are the offsets that it has read, in order, `last` those of its last table, and `error` is how it ended.
    """

    running: ClassVar[list[Follower]] = []

    def __init__(self, cluster: GroupCluster, **options: Any) -> None:
        super().__init__()
        self.consumer = joined(cluster, end=None, auto_offset_reset="earliest", auto_commit=True, **options)
        self.found: list[tuple[str, int, int]] = []
        self.last: list[tuple[str, int, int]] = []
        self.error: BaseException | None = None
        self.running.append(self)
        self.start()

    def run(self) -> None:
        try:
            for table in self.consumer:
                self.last = [(table.topic, table.partition, each) for each in table.records["offset"].tolist()]
                self.found += self.last
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self.consumer.close()
        self.join(5)
        assert not self.is_alive()
        assert self.error is None


class Stopped:
    """Stops a member at the end of a block."""

    def __init__(self, member: Follower) -> None:
        self.member = member

    def __enter__(self) -> Follower:
        return self.member

    def __exit__(self, *_: object) -> None:
        self.member.stop()
