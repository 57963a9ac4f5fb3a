"""The directory that a broker's `LocalTieredStorage` writes, read as logs: DSK-R18."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import kbatch
from kbatch.cli import main

try:
    from confluent_kafka.admin import AdminClient, NewTopic

    from broker.clients import librdkafka, plain, send
    from broker.scenario import ROLL
    from broker.server import TIERED_POM, Broker, Unavailable, tiered_settings
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker

TRANSACTIONS = 4
RECORDS = 50
TOPIC = "orders-2"


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The root of tiered storage, and the log directory that its segments were uploaded from."""
    directory = tmp_path_factory.mktemp("tiered")
    try:
        broker = Broker(directory, settings=tiered_settings(directory / "tier"), pom=TIERED_POM)
    except Unavailable as error:
        pytest.skip(str(error))
    root = directory / "tier" / "kafka-tiered-storage"
    with broker:
        config = {"remote.storage.enable": "true", "segment.ms": str(ROLL)}
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 2, 1, config=config)])[TOPIC].result(60)
        # Each transaction begins a segment: its timestamps are later than the marker before,
        # which has the broker's time.
        now = time.time_ns() // 1_000_000
        for partition in range(2):
            with librdkafka(broker.bootstrap, "lz4", transactional_id=f"tier-{partition}") as producer:
                producer.init_transactions(60)
                for i in range(TRANSACTIONS):
                    producer.begin_transaction()
                    messages = plain(RECORDS, RECORDS * i)
                    send(producer, TOPIC, partition, [m._replace(timestamp=now + i * 2 * ROLL) for m in messages])
                    (producer.abort_transaction if i == 1 else producer.commit_transaction)(60)
        closed = sum(len(list(broker.log_dir.glob(f"{TOPIC}-{partition}/*.log"))) - 1 for partition in range(2))
        deadline = time.monotonic() + 60
        # The file of the leader epochs is the last of an upload.
        while len(list(root.glob("*/*.leader_epoch_checkpoint"))) < closed:
            assert time.monotonic() < deadline, f"no upload:\n{broker.output()[-4000:]}"
            time.sleep(0.1)
    return root, broker.log_dir


def test_the_logs_of_kafkas_local_tiered_storage_are_found_dsk_r18(tier: tuple[Path, Path]) -> None:
    root, log_dir = tier
    logs = kbatch.find_logs(root)
    assert [(log.topic, log.partition, log.mark) for log in logs] == [(TOPIC, 0, None), (TOPIC, 1, None)]
    for log in logs:
        local = kbatch.Log(log_dir / f"{TOPIC}-{log.partition}")
        closed = local.segments[:-1]
        assert len(closed) == TRANSACTIONS - 1
        assert [segment.base_offset for segment in log.segments] == [segment.base_offset for segment in closed]
        assert not any(segment.live for segment in log.segments)
        for isolation in ("read_uncommitted", "read_committed"):
            expected = local.to_arrow(isolation=isolation, stop_offset=log.end_offset)
            assert log.to_arrow(isolation=isolation).equals(expected)
            assert len(expected)
        assert [len(each.transaction_index()) for each in log.segments] == [
            len(each.transaction_index()) for each in closed
        ]


def test_commands_read_kafkas_local_tiered_storage(tier: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tier[0])]) == 0
    assert f"{TOPIC}-0: ok (" in capsys.readouterr().out
    assert main(["stats", str(tier[0])]) == 0
    assert f"{TOPIC}-1" in capsys.readouterr().out
