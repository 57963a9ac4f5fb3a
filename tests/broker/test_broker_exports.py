"""Exports of a real broker: the rows of its log directory, new records only, and every record once despite kills."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kbatch

pytest.importorskip("pyarrow")

try:
    import confluent_kafka
    import iceberg_catalog
    from confluent_kafka.admin import AdminClient, NewTopic
    from export_outputs import FORMATS, Output

    from broker.clients import CODECS, WRITERS, oddities, plain
    from broker.server import SETTINGS, Broker, Unavailable
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = [
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        with Broker(tmp_path_factory.mktemp("exports") / "broker", settings=SETTINGS) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            for future in admin.create_topics([NewTopic("codecs", len(CODECS), 1), NewTopic("txn", 1, 1)]).values():
                future.result(60)
            for number, codec in enumerate(CODECS):
                WRITERS["librdkafka"](broker.bootstrap, codec, "codecs", number, [*oddities(codec), *plain(200)])
            write_transactions(broker.bootstrap)
            yield broker
    except Unavailable as error:
        pytest.skip(str(error))


def write_transactions(bootstrap: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "log_level": 2})
    producer.init_transactions(60)
    for number in range(6):
        producer.begin_transaction()
        for each in range(20):
            producer.produce("txn", b"%d %d" % (number, each))
        producer.flush(60)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(60)


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic with two partitions and no records."""
    name = f"topic-{next(_numbers)}"
    create(broker, name)
    return name


@pytest.fixture
def out(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Output:
    kind: str = request.param
    if kind == "delta":
        pytest.importorskip("deltalake")
    if kind == "iceberg":
        iceberg_catalog.use(tmp_path, monkeypatch)
    return Output(kind, tmp_path / "out")


def create(broker: Broker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(60)


def delete(broker: Broker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([name])[name].result(60)
    deadline = time.monotonic() + 30
    while name in admin.list_topics(timeout=10).topics and time.monotonic() < deadline:
        time.sleep(0.05)


def send(broker: Broker, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    for number in range(count):
        producer.produce(topic, b"value %d" % number, partition=number % 2)
    producer.flush(60)


def where(out: Output) -> dict[str, Any]:
    tables = {"table": iceberg_catalog.TABLE, "catalog": iceberg_catalog.NAME} if out.kind == "iceberg" else {}
    return {"format": out.kind, "engine": "local", **tables}


def rows_in(path: Path) -> list[dict[str, Any]]:
    import pyarrow.dataset as ds

    rows = ds.dataset(path, partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_rows_are_those_of_the_log_directory(broker: Broker, tmp_path: Path, isolation: Any) -> None:
    given: Any = {"topics": ["codecs", "txn"], "engine": "local", "isolation": isolation}
    live = kbatch.export(f"kafka://{broker.bootstrap}", tmp_path / "live", **given)
    files = kbatch.export(broker.log_dir, tmp_path / "files", **given)
    assert live.records == files.records > 0
    assert rows_in(tmp_path / "live") == rows_in(tmp_path / "files")
    manifests = [json.loads((tmp_path / name / "_manifest.json").read_text()) for name in ("live", "files")]
    assert manifests[0]["positions"] == manifests[1]["positions"]
    # The topic ids are the same, so that either continues what the other began.
    assert kbatch.export(broker.log_dir, tmp_path / "live", **given).action == "unchanged"
    assert kbatch.export(f"kafka://{broker.bootstrap}", tmp_path / "files", **given).action == "unchanged"


@pytest.mark.parametrize("out", FORMATS, indirect=True)
def test_a_later_export_adds_the_new_records_and_names_a_topic_that_was_created_again(
    broker: Broker, topic: str, out: Output
) -> None:
    url = f"kafka://{broker.bootstrap}"
    send(broker, topic, 1000)
    assert kbatch.export(url, out.path, topics=[topic], **where(out)).records == 1000
    assert kbatch.export(url, out.path, topics=[topic], **where(out)).action == "unchanged"
    send(broker, topic, 100)
    assert kbatch.export(url, out.path, topics=[topic], **where(out)).records == 100
    assert out.offsets() == {f"{topic}-{number}": list(range(550)) for number in range(2)}
    assert not kbatch.verify_export(out.path, url, **tables_of(out)).findings
    delete(broker, topic)
    create(broker, topic)
    send(broker, topic, 10)
    with pytest.raises(kbatch.LogDirectoryError, match="the topic was recreated: its id was"):
        kbatch.export(url, out.path, topics=[topic], **where(out))


def tables_of(out: Output) -> dict[str, Any]:
    return {name: value for name, value in where(out).items() if name in ("table", "catalog")}


FOLLOWS = """
import sys, json, kbatch
kbatch.follow(sys.argv[1], sys.argv[2], topics=[sys.argv[3]], commit_interval=0.05, **json.loads(sys.argv[4]))
"""


@pytest.mark.parametrize("out", ["delta", "iceberg"], indirect=True)
def test_every_record_is_committed_once_despite_kills_of_followers_and_the_broker(
    broker: Broker, topic: str, out: Output
) -> None:
    url = f"kafka://{broker.bootstrap}"
    paths = os.pathsep.join(str(path) for path in [Path(kbatch.__file__).parents[1]])
    numbers = random.Random(5)
    sent = 0
    for round_ in range(4):
        command = [sys.executable, "-c", FOLLOWS, url, out.path, topic, json.dumps(where(out))]
        follower = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 1.5 + numbers.uniform(0.5, 2.0)
        while time.monotonic() < deadline:
            send(broker, topic, 100)
            sent += 100
            if round_ == 2 and deadline - time.monotonic() < 1.5:
                broker.kill()
                broker.start()
                deadline = 0.0
        if follower.poll() is not None:
            # It began while the broker was down.
            assert round_ == 2
            assert b"can't be reached" in follower.communicate()[1]
            continue
        follower.send_signal(signal.SIGKILL)
        follower.communicate()
    kbatch.follow(url, out.path, topics=[topic], available_now=True, **where(out))
    found = kbatch.verify_export(out.path, url, **tables_of(out))
    assert (found.damaged, found.findings) == (False, [])
    assert sum(part.records for part in found.partitions) == sent
