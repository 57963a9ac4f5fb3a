"""Random schedules of faults on a cluster of three: every record is read once and in order."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import kbatch

try:
    from broker.broker_cluster import BrokerCluster, running_cluster, wait_until
    from broker.fault_schedule import (
        QUICK_SETTINGS,
        SECONDS,
        SEED,
        TOPICS,
        FaultSchedule,
        PlainWriter,
        TransactionalWriter,
        assert_acknowledged,
        explained,
        logged,
    )
    from broker.reading import Partition
    from broker.server import Unavailable
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

# The start of three brokers alone takes 15 s of processor time.
pytestmark = [pytest.mark.broker, pytest.mark.long]


class Reader(threading.Thread):
    """Follows the topics, and keeps what it reads.

    Attributes
    ----------
    rows : dict of (topic, partition) to list of (offset, value)
    """

    def __init__(self, bootstrap: str, seed: int, **options: Any) -> None:
        super().__init__(daemon=True)
        self._rng = random.Random(seed)
        self._consumer = kbatch.consume(
            TOPICS, bootstrap_servers=bootstrap, start="earliest", end=None, **(QUICK_SETTINGS | options)
        )
        self.isolation = options["isolation"]
        self.rows: dict[Partition, list[tuple[int, bytes]]] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for table in self._consumer:
                assert table.topic is not None
                assert table.partition is not None
                rows = zip(table.records["offset"].tolist(), table.values(), strict=True)
                self.rows.setdefault((table.topic, table.partition), []).extend(rows)  # type: ignore[arg-type]
                # A slow reader stops the fetches.
                if self._rng.random() < 0.02:
                    time.sleep(0.5)
        except BaseException as error:
            self.error = error

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def has_read(self, ends: dict[Partition, int]) -> bool:
        self.check()
        return all((self.rows.get(each) or [(-1, b"")])[-1][0] >= end for each, end in ends.items())

    def stop(self) -> None:
        self._consumer.close()
        self.join(30)
        assert not self.is_alive(), "the reader does not end"
        self.check()


def test_one_reader_returns_every_acknowledged_record_once_and_in_order(tmp_path: Path) -> None:
    try:
        with running_cluster(tmp_path) as cluster:
            read_during_faults(cluster)
    except Unavailable as error:
        pytest.skip(str(error))


def read_during_faults(cluster: BrokerCluster) -> None:
    schedule = FaultSchedule(cluster, SEED)
    readers = [
        Reader(cluster.bootstrap, SEED, isolation="read_committed"),
        Reader(cluster.bootstrap, SEED, isolation="read_uncommitted", fetch_max_bytes=20_000, max_bytes=1 << 20),
    ]
    writers = [kind(schedule, cluster.direct, SEED) for kind in (PlainWriter, TransactionalWriter)]
    threads = [*readers, *writers]
    for each in threads:
        each.start()
    with explained(schedule):
        schedule.run(SECONDS, lambda: [each.check() for each in threads])
        for writer in writers:
            writer.stop()
        for reader in readers:
            truth = logged(cluster, schedule, reader.isolation)
            count = assert_acknowledged(writers, truth)
            last = {place: rows[-1][0] for place, rows in truth.items()}
            wait_until(lambda: reader.has_read(last), f"all records under {reader.isolation} are read", 120)  # noqa: B023
            reader.stop()
            for place, rows in truth.items():
                assert reader.rows[place] == rows, place
            print(f"{reader.isolation}: { ({p: len(r) for p, r in truth.items()}) } records, {count} acknowledged")
            assert count > 20 * SECONDS
        print(len(schedule.events), "faults")
