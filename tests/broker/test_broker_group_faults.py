"""Faults of groups on a cluster of three: records are read at least once, and none again after its commit."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

try:
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import OffsetSpec

    from broker.broker_cluster import BrokerCluster, running_cluster, wait_until
    from broker.clients import WRITERS, plain
    from broker.fault_schedule import (
        QUICK_SETTINGS,
        SECONDS,
        SEED,
        TOPICS,
        FaultSchedule,
        PlainWriter,
        TransactionalWriter,
        Writer,
        assert_acknowledged,
        explained,
        logged,
    )
    from broker.reading import Partition, offsets_of
    from broker.server import Unavailable, ending_with_thread
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = [pytest.mark.broker, pytest.mark.long]

GROUP_READER = str(Path(__file__).parents[1] / "support" / "group_reader.py")
# Members that are gone are noticed within seconds.
GROUP_SETTINGS = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
}


class Members:
    """Members of a group in processes of their own, which begin, end and are killed.

    Attributes
    ----------
    paths : list of Path
        What each of them has written.
    """

    def __init__(self, directory: Path, schedule: FaultSchedule, settings: dict[str, Any]) -> None:
        self._directory = directory
        self._schedule = schedule
        self._settings = settings
        self._rng = random.Random(SEED)
        self._running: dict[Path, subprocess.Popen[bytes]] = {}
        self.paths: list[Path] = []
        schedule.faults |= {self.begin: 3, self.kill: 3, self.end: 2, self.pause: 2}

    def begin(self, *_: object) -> None:
        if len(self._running) < 3:
            path = self._directory / f"member-{len(self.paths)}"
            self._schedule.event(f"{path.name} begins")
            command = ending_with_thread([sys.executable, GROUP_READER, json.dumps(self._settings), str(path)])
            with open(f"{path}.err", "wb") as errors:
                self._running[path] = subprocess.Popen(command, stderr=errors, process_group=0)
            self.paths.append(path)

    def kill(self, *_: object) -> None:
        if len(self._running) > 1:
            path = self._rng.choice(list(self._running))
            self._schedule.event(f"kill {path.name}")
            self._remove(path, signal.SIGKILL)

    def end(self, *_: object) -> None:
        if len(self._running) > 1:
            path = self._rng.choice(list(self._running))
            self._schedule.event(f"end {path.name}")
            self._remove(path, signal.SIGTERM)

    def pause(self, _: int, seconds: float) -> None:
        """Pause a member, sometimes for longer than its session."""
        path = self._rng.choice(list(self._running))
        seconds *= self._rng.choice((1, 3))
        self._schedule.event(f"pause {path.name} for {seconds:.1f} s")
        self._running[path].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._running[path].send_signal(signal.SIGCONT)

    def check(self) -> None:
        """Raise if a member has ended by itself; begin one if there is none."""
        for path, process in self._running.items():
            if process.poll() is not None:
                last = path.read_bytes().splitlines()[-1:] if path.exists() else []
                errors = Path(f"{path}.err").read_text()
                raise AssertionError(f"{path.name} has ended with status {process.returncode}: {last} {errors}")
        if not self._running:
            self.begin()

    def close(self, with_signal: signal.Signals = signal.SIGKILL) -> None:
        for path in list(self._running):
            self._remove(path, with_signal)

    def _remove(self, path: Path, with_signal: signal.Signals) -> None:
        process = self._running.pop(path)
        process.send_signal(with_signal)
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()


class Portion(NamedTuple):
    """The offsets of a table that a member has returned."""

    offsets: list[int]
    crc: int
    is_committed: bool


def portions(paths: Iterable[Path]) -> dict[Partition, list[Portion]]:
    """Return what the members of a group have read."""
    found: dict[Partition, list[Portion]] = {}
    for path in paths:
        events = [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
        for event, following in itertools.pairwise([*events, {}]):
            assert "error" not in event, event
            if "place" in event:
                topic, partition = event["place"]
                is_committed = "is_committed" in following
                found.setdefault((topic, partition), []).append(Portion(event["offsets"], event["crc"], is_committed))
    return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_reads_every_acknowledged_record_and_repeats_none_after_its_commit(
    tmp_path: Path, protocol: str
) -> None:
    try:
        with running_cluster(tmp_path, settings=GROUP_SETTINGS) as cluster:
            read_in_a_group(tmp_path, cluster, protocol)
    except Unavailable as error:
        pytest.skip(str(error))


def read_in_a_group(directory: Path, cluster: BrokerCluster, protocol: str) -> None:
    schedule = FaultSchedule(cluster, SEED)
    writers = [kind(schedule, cluster.direct, SEED) for kind in (PlainWriter, TransactionalWriter)]
    settings = {
        "topics": TOPICS,
        "bootstrap_servers": cluster.bootstrap,
        "group": "readers",
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
        "isolation": "read_committed",
        **QUICK_SETTINGS,
    }
    if protocol == "classic":
        settings |= {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500}
    members = Members(directory, schedule, settings)
    for writer in writers:
        writer.start()
    try:
        with explained(schedule):
            members.begin()
            members.begin()
            schedule.run(SECONDS, lambda: [each.check() for each in (*writers, members)])
            for writer in writers:
                writer.stop()
            # After these records no marker of a transaction follows, which a commit after a table does not include.
            for topic, count in schedule.partitions.items():
                for number in range(count):
                    WRITERS["librdkafka"](cluster.direct, "none", topic, number, plain(1, tag=f"end {topic} {number}"))
            places = [(topic, number) for topic, count in schedule.partitions.items() for number in range(count)]
            ends = offsets_of(cluster.direct, places, OffsetSpec.latest())
            wait_until(lambda: not members.check() and committed(cluster, "readers") == ends, "all is committed", 90)
            members.close(signal.SIGTERM)
            assert committed(cluster, "readers") == ends
            assert_accounted(members, writers, logged(cluster, schedule, "read_committed"))
            print(f"{protocol}: {len(schedule.events)} faults, {len(members.paths)} members")
    finally:
        members.close()


def committed(cluster: BrokerCluster, group: str) -> dict[Partition, int]:
    """Return the committed offsets, as librdkafka sees them."""
    request = [ConsumerGroupTopicPartitions(group)]
    found = cluster.admin.list_consumer_group_offsets(request)[group].result(10)
    return {(each.topic, each.partition): each.offset for each in found.topic_partitions}


def assert_accounted(members: Members, writers: list[Writer], truth: dict[Partition, list[tuple[int, bytes]]]) -> None:
    read = portions(members.paths)
    assert set(read) == set(truth)
    repeated = 0
    for place, rows in truth.items():
        values = dict(rows)
        found: set[int] = set()
        committed_once: set[int] = set()
        for portion in read[place]:
            assert portion.crc == zlib.crc32(b"\n".join(values[each] for each in portion.offsets)), place
            assert portion.offsets == sorted(set(portion.offsets)), place
            repeated += len(found.intersection(portion.offsets))
            found.update(portion.offsets)
            if portion.is_committed:
                assert committed_once.isdisjoint(portion.offsets), (place, "read again after a commit")
                committed_once.update(portion.offsets)
        assert found == set(values), place
    count = assert_acknowledged(writers, truth)
    print(f"{sum(map(len, truth.values()))} records, {count} acknowledged, {repeated} repeated")
    assert count > 20 * SECONDS
