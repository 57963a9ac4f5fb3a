"""`kbatch.consume(end=None)`: records as they arrive, new partitions, and the end by `close`."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition

import kbatch
from kbatch.protocol import ApiKey

SETTINGS = {
    "bootstrap_servers": "broker-1",
    "request_timeout_ms": 200,
    "default_api_timeout_ms": 500,
    "reconnect_backoff_ms": 1,
    "retry_backoff_ms": 1,
    "fetch_max_wait_ms": 10,
    "metadata_max_age_ms": 50,
}


def following(cluster: ScriptedCluster, topics: Any = "orders", **options: Any) -> kbatch.Consumer:
    return kbatch.consume(topics, transport=cluster.connect, end=None, **(SETTINGS | options))


def written(*counts: int) -> ScriptedPartition:
    made = ScriptedPartition()
    for count in counts:
        made.write([b"%d" % (made.end + i) for i in range(count)])
    return made


def test_records_are_returned_as_they_arrive_from_the_latest_on() -> None:
    made = written(5)
    with following(ScriptedCluster(orders=[made])) as consumer:
        assert consumer.ranges == {("orders", 0): (5, None)}
        for number in range(5, 10):
            made.write([b"%d" % number])
            assert next(consumer).values() == [b"%d" % number]


@pytest.mark.parametrize(
    ("start", "first"), [({"start": "earliest"}, 0), ({"start": -2}, 3), ({"last": 2}, 3), ({"last": 0}, 5)]
)
def test_a_read_that_follows_may_begin_earlier(start: dict[str, Any], first: int) -> None:
    made = written(3, 2)
    with following(ScriptedCluster(orders=[made]), **start) as consumer:
        found: list[int] = []
        while found[-1:] != [4] and first < 5:
            found += next(consumer).records["offset"].tolist()
        made.write([b"5"])
        found += next(consumer).records["offset"].tolist()
    assert found == list(range(first, 6))


def test_new_partitions_and_topics_are_read_from_their_beginning() -> None:
    cluster = ScriptedCluster(orders=[written(1)])
    with following(cluster, "or*") as consumer:
        cluster.topics["orders"].append(written(2))
        table = next(consumer)
        assert (table.topic, table.partition, len(table)) == ("orders", 1, 2)
        cluster.topics["orphans"] = [written(3)]
        cluster.ids["orphans"] = kbatch.protocol.FetchRequest.FetchTopic().topic_id.__class__(int=7)
        table = next(consumer)
        assert (table.topic, table.partition, len(table)) == ("orphans", 0, 3)
        assert set(consumer.ranges) == {("orders", 0), ("orders", 1), ("orphans", 0)}


def test_a_quiet_topic_is_waited_for_longer_than_a_broken_one() -> None:
    made = written(1)
    cluster = ScriptedCluster(orders=[made])
    with following(cluster) as consumer:
        # Longer than default.api.timeout.ms.
        threading.Timer(0.8, lambda: made.write([b"1"])).start()
        assert len(next(consumer)) == 1
        cluster.fail(ApiKey.FETCH, Fault(cut=5))
        made.write([b"2"])
        assert len(next(consumer)) == 1
        cluster.fail(ApiKey.FETCH, *[Fault(cut=5)] * 10_000)
        with pytest.raises(kbatch.live.BrokerConnectionError, match=r"orders-0, no records from offset 3 on"):
            next(consumer)


def test_closing_in_another_thread_is_the_end_of_the_records() -> None:
    consumer = following(ScriptedCluster(orders=[written(1)]))
    closing = threading.Timer(0.2, consumer.close)
    closing.start()
    assert list(consumer) == []
    closing.join()


FOLLOWS = """
import sys
sys.path.insert(0, sys.argv[1])
import kbatch
from scripted_broker import ScriptedPartition
from scripted_groups import GroupCluster

cluster = GroupCluster(orders=[ScriptedPartition()])
options = {"group": sys.argv[2]} if sys.argv[2:] else {}
consumer = kbatch.consume("orders", transport=cluster.connect, bootstrap_servers="broker-1", end=None, **options)
print("follows", flush=True)
try:
    next(consumer)
finally:
    print(all(each.is_closed for each in cluster.open), not any(each.members for each in cluster.groups.values()))
"""


@pytest.mark.parametrize("group", [[], ["etl"]])
def test_ctrl_c_ends_a_read_that_waits_within_a_second(group: list[str]) -> None:
    support = str(Path(__file__).parents[1] / "support")
    with subprocess.Popen(
        [sys.executable, "-c", FOLLOWS, support, *group], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "follows\n"
        time.sleep(0.3)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        try:
            out, errors = process.communicate(timeout=20)
        finally:
            process.kill()
        assert time.monotonic() - began < 1.5
    assert out == "True True\n"
    assert errors.endswith("KeyboardInterrupt\n")


def test_the_reader_streams_batches_and_all_records_are_refused() -> None:
    pytest.importorskip("pyarrow")
    made = written(1)
    with following(ScriptedCluster(orders=[made]), columns=["offset"]) as consumer:
        made.write([b"1"])
        assert consumer.reader().read_next_batch().to_pydict() == {"offset": [1]}
        for method in (consumer.to_arrow, consumer.to_polars, consumer.to_pandas):
            with pytest.raises(ValueError, match=r"needs an end, and end=None follows the topics"):
                method()


def test_an_end_excludes_following() -> None:
    with pytest.raises(ValueError, match="end=None and stop_offset exclude each other"):
        kbatch.consume("orders", bootstrap_servers="x", end=None, stop_offset=5)
