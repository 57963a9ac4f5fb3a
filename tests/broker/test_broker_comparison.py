"""`kbatch diff` and `kbatch backup` of a real broker: a topic, its mirror, its backup and its log directory."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kbatch
from kbatch.cli import main
from kbatch.live import ClientSettings, Cluster
from kbatch.log import backup_topics, compare_logs

try:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewTopic

    from broker.server import Broker, Unavailable
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker

TOPICS = {"orders": 2, "mirror": 2, "changed": 2, "txn": 1, "growing": 1, "open": 1}
COUNT = 2000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        with Broker(tmp_path_factory.mktemp("comparison")) as started:
            admin = AdminClient({"bootstrap.servers": started.bootstrap})
            for future in admin.create_topics([NewTopic(*each, 1) for each in TOPICS.items()]).values():
                future.result(60)
            produce(started, "orders", "zstd", 20_000)
            produce(started, "mirror", "lz4", 1_000)
            produce(started, "changed", "gzip", 5_000, {1000: b"changed"})
            write_transactions(started)
            yield started
    except Unavailable as unavailable:
        pytest.skip(str(unavailable))


def produce(broker: Broker, topic: str, codec: str, size: int, changes: dict[int, bytes] | None = None) -> None:
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "compression.type": codec,
        "batch.size": size,
        "enable.idempotence": True,
    }
    producer = confluent_kafka.Producer(settings)
    for number in range(COUNT):
        value = (changes or {}).get(number, b'{"id": %d}' % number)
        producer.produce(
            topic,
            value,
            b"key-%d" % (number % 10),
            partition=number % 2,
            timestamp=1_700_000_000_000 + number,
            headers=[("n", b"%d" % (number % 3))],
        )
    assert producer.flush(60) == 0


def write_transactions(broker: Broker) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": "t", "log_level": 2}
    )
    producer.init_transactions(60)
    for number in range(4):
        producer.begin_transaction()
        for each in range(5):
            producer.produce("txn", b"%d %d" % (number, each))
        producer.flush(60)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(60)


def url(broker: Broker) -> str:
    return f"kafka://{broker.bootstrap}"


Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    def made(*arguments: Any) -> tuple[int, dict[str, Any]]:
        status = main([*map(str, arguments), "--json"])
        captured = capsysbinary.readouterr()
        assert captured.err == b""
        return status, json.loads(captured.out)

    return made


def test_a_topic_and_its_mirror_with_another_codec_and_batch_size_are_equal(broker: Broker, run: Run) -> None:
    arguments = ("--topic", "orders", "--other-topic", "mirror", "--digests")
    status, document = run("diff", url(broker), url(broker), *arguments)
    assert (status, document["equal"]) == (0, True)
    assert [log["matching"] for log in document["logs"]] == [COUNT // 2] * 2
    assert all(log["a"]["digest"] == log["b"]["digest"] for log in document["logs"])
    batches = [len(kbatch.Log(Path(broker.log_dir) / f"{topic}-0").batches()) for topic in ("orders", "mirror")]
    assert batches[0] < batches[1]


def test_a_changed_value_is_found_with_its_offset_and_both_values(broker: Broker, run: Run) -> None:
    status, document = run("diff", url(broker), url(broker), "--topic", "orders", "--other-topic", "changed")
    assert status == 1
    first, second = document["logs"]
    assert (first["different"], second["equal"]) == (1, True)
    assert first["first"]["fields"] == ["value"]
    assert [first["first"][side]["offset"] for side in "ab"] == [500, 500]
    assert [first["first"][side]["value"] for side in "ab"] == ['{"id": 1000}', "changed"]


def test_open_transactions_are_stated_as_for_directories(broker: Broker, run: Run) -> None:
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "open", "log_level": 2}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(60)
    producer.begin_transaction()
    for each in range(5):
        producer.produce("open", b"%d" % each)
    producer.flush(60)
    try:
        for isolation, records in (("read_uncommitted", 5), ("read_committed", 0)):
            arguments = ("--topic", "open", "--isolation", isolation)
            status, document = run("diff", url(broker), broker.log_dir, *arguments)
            (log,) = document["logs"]
            assert (status, log["matching"]) == (0, records)
            if records:
                assert log["a"]["open_transactions"] == log["b"]["open_transactions"]
                assert [each["first_offset"] for each in log["a"]["open_transactions"]] == [0]
    finally:
        producer.abort_transaction(60)


def listing(broker: Broker, directory: Path) -> list[str]:
    """Return what Kafka's tool prints of the segments of a log, without what depends on their files."""
    logs = ",".join(map(str, sorted(directory.glob("*.log"))))
    lines = broker.run_class("org.apache.kafka.tools.DumpLogSegments", "--files", logs, "--print-data-log").splitlines()
    kept = [line for line in lines if line.startswith(("baseOffset:", "|"))]
    return [re.sub(r"position: \d+ ", "", line) for line in kept]


def test_a_backup_equals_the_brokers_directory_and_is_read_by_kafkas_tool(
    broker: Broker, run: Run, tmp_path: Path
) -> None:
    topics = [f"--topic={topic}" for topic in ("orders", "txn")]
    for _ in range(2):
        status, document = run("backup", url(broker), tmp_path / "out", *topics)
        assert status == 0
    assert [log["bytes"] for log in document["logs"]] == [0, 0, 0]
    for name in ("orders-0", "orders-1", "txn-0"):
        theirs, ours = Path(broker.log_dir) / name, tmp_path / "out" / name
        for pattern in ("*.log", "*.txnindex"):
            found, expected = (
                b"".join(path.read_bytes() for path in sorted(each.glob(pattern))) for each in (ours, theirs)
            )
            assert found == expected
        assert kbatch.Log(ours).topic_id == kbatch.Log(theirs).topic_id
        assert kbatch.Log(ours).leader_epochs.tolist() == kbatch.Log(theirs).leader_epochs.tolist()
        lines = listing(broker, ours)
        assert lines == listing(broker, theirs)
        assert len(lines) > 10
    for other in (url(broker), broker.log_dir):
        for isolation in ("read_uncommitted", "read_committed"):
            status, document = run("diff", tmp_path / "out", other, *topics, "--isolation", isolation)
            assert (status, document["equal"], len(document["logs"])) == (0, True, 3)


def test_a_backup_is_continued_while_the_topic_grows_and_refused_after_it_was_made_again(
    broker: Broker, tmp_path: Path
) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(3):
        for each in range(100):
            producer.produce("growing", b"%d %d" % (number, each))
        assert producer.flush(60) == 0
        (written,) = backup_topics(url(broker), tmp_path / "out", topics="growing")
        assert (written.first_offset, written.next_offset, written.records) == (100 * number, 100 * number + 100, 100)
    assert compare_logs(tmp_path / "out", url(broker), extent="all").equal
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["growing"])["growing"].result(60)
    for _ in range(100):
        try:
            admin.create_topics([NewTopic("growing", 1, 1)])["growing"].result(60)
            break
        except confluent_kafka.KafkaException:
            continue
    with Cluster(ClientSettings.of(bootstrap_servers=broker.bootstrap)) as cluster:
        # Metadata may not have the new topic yet.
        while "growing" not in [topic.name for topic in cluster.topics()]:
            time.sleep(0.05)
    with pytest.raises(kbatch.LogDirectoryError, match=r"growing-0: can't be continued: .*was deleted and recreated"):
        backup_topics(url(broker), tmp_path / "out", topics="growing")
