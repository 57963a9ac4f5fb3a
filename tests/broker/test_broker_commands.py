"""`kbatch consume`, `topics`, `dump` and `stats` of a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbatch.cli import main

try:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewTopic

    from broker.reading import consumed
    from broker.server import Broker, Unavailable
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker

TOPICS = {"orders": 2, "txn": 1}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        with Broker(tmp_path_factory.mktemp("commands")) as started:
            admin = AdminClient({"bootstrap.servers": started.bootstrap})
            for future in admin.create_topics([NewTopic(*each, 1) for each in TOPICS.items()]).values():
                future.result(60)
            produce(started, "zstd", "orders", range(1000))
            write_transactions(started)
            yield started
    except Unavailable as unavailable:
        pytest.skip(str(unavailable))


def produce(broker: Broker, codec: str, topic: str, numbers: range) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec})
    for number in numbers:
        producer.produce(topic, b'{"id": %d}' % number, b"key-%d" % (number % 10), partition=number % 2)
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


Run = Callable[..., str]


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    def made(*arguments: Any) -> str:
        status = main(list(map(str, arguments)))
        captured = capsysbinary.readouterr()
        assert (status, captured.err) == (0, b"")
        return captured.out.decode()

    return made


def place_of(line: dict[str, Any]) -> tuple[int, int]:
    return line["partition"], line.get("offset", line.get("base_offset"))


def lines_of(text: str) -> list[dict[str, Any]]:
    lines = list(map(json.loads, text.splitlines()))
    for line in lines:
        line.pop("file", None)
        line.pop("position", None)
    return lines


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_records_are_those_that_librdkafka_reads(broker: Broker, run: Run, isolation: Any) -> None:
    expected = consumed(broker.bootstrap, [("orders", 0), ("orders", 1), ("txn", 0)], isolation)
    out = run("consume", "orders", "txn", "--bootstrap-server", broker.bootstrap, "--isolation", isolation)
    found: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    for line in lines_of(out):
        found.setdefault((line["topic"], line["partition"]), []).append((line["offset"], line["value"].encode()))
    assert found == {key: [(row.offset, row.value) for row in rows] for key, rows in expected.items()}


@pytest.mark.parametrize(
    "arguments", [[], ["--records", "--control"], ["--tail", "3"], ["--records", "--key", "key-4"]]
)
def test_a_listing_is_that_of_the_log_directory(broker: Broker, run: Run, arguments: list[str]) -> None:
    for topic in TOPICS:
        found = lines_of(run("dump", *arguments, "--topic", topic, f"kafka://{broker.bootstrap}"))
        expected = lines_of(run("dump", *arguments, "--topic", topic, broker.log_dir))
        assert sorted(found, key=place_of) == sorted(expected, key=place_of)


@pytest.mark.parametrize("arguments", [[], ["--headers-only"]])
def test_statistics_are_those_of_the_log_directory(broker: Broker, run: Run, arguments: list[str]) -> None:
    topics = [f"--topic={topic}" for topic in TOPICS]
    found = [
        {log.pop("name"): log for log in json.loads(run("stats", "--json", *arguments, *topics, path))["logs"]}
        for path in (f"kafka://{broker.bootstrap}", broker.log_dir)
    ]
    for logs in found:
        for log in logs.values():
            del log["path"], log["segments"]
            # The size of decompressed payloads is approximate.
            for codec in log["codecs"].values():
                del codec["plain_bytes"], codec["ratio"]
    assert found[0] == found[1]


def test_a_group_reads_each_record_once_and_its_lag_is_listed(broker: Broker) -> None:
    """The command is stopped by Ctrl-C, which leaves the group; the next one resumes."""
    command = [sys.executable, "-m", "kbatch", "consume", "orders", "--group", "etl", "--format", "value"]
    command += ["--bootstrap-server", broker.bootstrap, "--follow", "--setting", "auto.offset.reset=earliest"]
    values = []
    for start, stop in ((0, 1000), (1000, 1100)):
        if start:
            produce(broker, "none", "orders", range(start, stop))
            assert group_of(broker, "etl")["lag"] == 100
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            values += [process.stdout.readline() for _ in range(start, stop)]
            wait_for_lag(broker, 0)
            assert group_of(broker, "etl")["members"] == 1
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=30)
            assert (process.returncode, rest, errors) == (130, b"", b"kbatch consume: interrupted\n")
    assert sorted(json.loads(value)["id"] for value in values) == list(range(1100))
    group = group_of(broker, "etl")
    assert (group["state"], group["members"], group["lag"]) == ("Empty", 0, 0)


def listed(broker: Broker, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "kbatch", "topics", "--json", "--bootstrap-server", broker.bootstrap, *arguments]
    document: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return document


def group_of(broker: Broker, name: str) -> dict[str, Any]:
    (group,) = (each for each in listed(broker, "--groups")["groups"] if each["name"] == name)
    return dict(group)


def wait_for_lag(broker: Broker, lag: int) -> None:
    for _ in range(20):
        if group_of(broker, "etl")["lag"] == lag:
            return
    raise AssertionError("the offsets were not committed")


def test_topics_have_the_offsets_and_sizes_of_their_logs(broker: Broker) -> None:
    document = listed(broker)
    assert [topic["name"] for topic in document["topics"]] == sorted(TOPICS)
    assert document["notes"] == []
    for topic in document["topics"]:
        for part in topic["partitions"]:
            (log,) = (broker.log_dir / f"{topic['name']}-{part['partition']}").glob("*.log")
            assert part["size"] == log.stat().st_size
            assert (part["leader"], part["replicas"], part["in_sync"]) == (1, [1], [1])
            assert (part["first"], part["stable"]) == (0, part["end"])


def test_members_of_other_clients_are_listed(broker: Broker) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "classic", "client.id": "me", "auto.offset.reset": "latest"}
    )
    consumer.subscribe(["txn"])
    try:
        for _ in range(50):
            consumer.poll(0.2)
            if consumer.assignment():
                break
        (group,) = listed(broker, "txn", "--groups")["groups"]
        assert (group["name"], group["kind"], group["state"], group["members"]) == ("classic", "classic", "Stable", 1)
        assert group["partitions"][0]["member"] == "me /127.0.0.1"
    finally:
        consumer.close()
