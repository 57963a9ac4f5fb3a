"""Scans of a cluster: what is fetched, when connections end, and the errors of settings and of other functions."""

from __future__ import annotations

import datetime
import gc
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_conditions import condition
from scanned_logs import scanned_logs
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition
from served_logs import cluster_source, served_cluster

import kbatch
from kbatch.live import BrokerConnectionError, BrokerError
from kbatch.protocol import ApiKey

TOPIC, PARTITION, OFFSET, TIME = (pc.field(name) for name in ("topic", "partition", "offset", "timestamp"))
BATCH = 10
BEGIN = 1_700_000_000_000
COLUMNS = ["topic", "partition", "offset", "timestamp", "key", "value"]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    deadline = time.monotonic() + 5
    while any(each.name.startswith("kbatch-") for each in threading.enumerate()):
        assert time.monotonic() < deadline, "a thread still runs"
        time.sleep(0.01)


def partition(batches: int, *, leader: int = 1, size: int = 20, **options: Any) -> ScriptedPartition:
    """Return a partition with a record for each second."""
    made = ScriptedPartition(leader=leader)
    for first in range(0, batches * BATCH, BATCH):
        times = [BEGIN + 1000 * i for i in range(first, first + BATCH)]
        keys = [b"k%d" % (i % 3) for i in range(first, first + BATCH)]
        made.write([b"%d" % i * size for i in range(first, first + BATCH)], keys=keys, timestamps=times, **options)
    return made


def orders(batches: int = 20, **options: Any) -> ScriptedCluster:
    """Return a cluster of two brokers with a topic of two partitions, and another topic."""
    return ScriptedCluster(
        2,
        orders=[partition(batches, **options), partition(batches, leader=2, **options)],
        users=[partition(batches, **options)],
    )


def scanned(cluster: ScriptedCluster, **options: Any) -> kbatch.Scan:
    settings = {"fetch_max_bytes": options.pop("fetch_max_bytes", 1 << 20)}
    return kbatch.scan_logs(cluster_source(cluster, **settings), **options)


def fetched(cluster: ScriptedCluster) -> set[tuple[str, int]]:
    """Return the partitions that were fetched."""
    names = {topic_id: name for name, topic_id in cluster.ids.items()}
    return {
        (names[topic.topic_id], part.partition)
        for message in cluster.sent(ApiKey.FETCH)
        for topic in message.topics
        for part in topic.partitions
    }


def first_fetches(cluster: ScriptedCluster) -> list[int]:
    """Return the offsets that were fetched, in ascending order."""
    return sorted(
        part.fetch_offset
        for message in cluster.sent(ApiKey.FETCH)
        for topic in message.topics
        for part in topic.partitions
    )


def all_closed(cluster: ScriptedCluster) -> bool:
    deadline = time.monotonic() + 5
    while not all(each.is_closed for each in cluster.open) and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(cluster.open) and all(each.is_closed for each in cluster.open)


# -- records


def test_records_are_in_the_order_of_topic_partition_and_offset() -> None:
    cluster = orders()
    table = scanned(cluster, fetch_max_bytes=2000).select("topic", "partition", "offset").to_arrow()
    numbers = list(range(20 * BATCH))
    expected = [("orders", 0), ("orders", 1), ("users", 0)]
    assert list(zip(*table.to_pydict().values(), strict=True)) == [(*key, i) for key in expected for i in numbers]
    assert all_closed(cluster)


@pytest.mark.filterwarnings("ignore:.*(damaged batches have no records|of unknown cause)")
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32), damage=st.sampled_from([0.0, 0.2]))
def test_a_live_scan_takes_the_bounds_of_logs(
    tmp_path_factory: pytest.TempPathFactory, seed: int, damage: float
) -> None:
    draw = random.Random(seed)
    logs = scanned_logs(tmp_path_factory.mktemp("logs"), seed, damage=damage, lengths=False)
    source = cluster_source(served_cluster(logs), fetch_max_bytes=draw.choice([1, 500, 1 << 20]))
    times, offsets = logs.values.timestamps, logs.values.offsets
    bounds: list[dict[str, Any]] = [
        {"start_offset": abs(draw.choice(offsets))},
        {"stop_offset": abs(draw.choice(offsets))},
        {"start_timestamp": draw.choice(times)},
        {"stop_timestamp": max(0, draw.choice(times))},
        {"start": {0: draw.randrange(30), 1: "latest"}},
        {"end": {"a": {0: draw.randrange(30)}}},
        {"last": draw.randint(0, 20)},
        {"key": draw.choice([b"a", "b", b""])},
        {"last": draw.randint(1, 9), "key": b"a", "stop_offset": 30},
    ]
    if not logs.is_damaged:
        # A log directory knows its end by following headers.
        bounds.append({"start": f"end-{draw.randint(1, 60)}s"})
    for given_options in bounds:
        options = {"on_error": "skip", "columns": COLUMNS, **given_options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = kbatch.find_logs(logs.root).to_arrow(**options).combine_chunks()
        scan = kbatch.scan_logs(source, **options)
        assert scan.to_arrow().combine_chunks().equals(expected), options
        assert scan.count() == len(expected), options
        what = condition(draw, logs.values)
        chosen = expected.filter(what.arrow).combine_chunks()
        assert scan.filter(what.arrow).to_arrow().combine_chunks().equals(chosen), options


def test_each_request_sees_the_partitions_of_that_time() -> None:
    cluster = orders(2)
    scan = scanned(cluster, topics="orders")
    assert scan.count() == 40
    cluster.topics["orders"][0].write([b"new"])
    cluster.topics["orders"].append(partition(1))
    assert scan.count() == 51
    assert scan.select("offset").to_arrow().num_rows == 51


def test_polars_and_duckdb_query_a_cluster() -> None:
    cluster = orders()
    scan = scanned(cluster, topics="orders")
    late = datetime.datetime.fromtimestamp((BEGIN + 150_000) / 1000, datetime.UTC)
    frame = scan.lazy().filter(pl.col("timestamp") >= late).group_by("partition").len().sort("partition").collect()
    assert frame.rows() == [(0, 50), (1, 50)]
    sql = duckdb.connect()
    sql.register("records", scan.dataset())
    assert sql.execute('from records select max("offset") where partition = 1').fetchall() == [(199,)]
    assert scan.to_pandas().shape == (400, 8)


def test_values_of_a_live_topic_are_typed_with_a_schema_that_is_given_or_inferred() -> None:
    made = ScriptedPartition()
    made.write([b'{"id": %d}' % i for i in range(5)])
    cluster = ScriptedCluster(1, orders=[made])
    scan = scanned(cluster, values="json", value_schema="id bigint", columns=["offset", "value.id"])
    assert scan.filter(pc.field("value.id") > 2).to_arrow().to_pydict() == {"offset": [3, 4], "value.id": [3, 4]}
    inferred = scanned(cluster, values="json", columns=["value.id"])
    assert inferred.to_arrow().to_pydict() == {"value.id": [0, 1, 2, 3, 4]}
    assert all_closed(cluster)


# -- what is fetched


@pytest.mark.parametrize(
    ("what", "partitions"),
    [
        (TOPIC == "users", {("users", 0)}),
        (PARTITION == 1, {("orders", 1)}),
        ((TOPIC == "orders") & (OFFSET < 10), {("orders", 0), ("orders", 1)}),
        (OFFSET > 1000, set()),
        (TOPIC == "x", set()),
    ],
)
def test_partitions_that_a_filter_excludes_are_not_fetched(
    what: pc.Expression, partitions: set[tuple[str, int]]
) -> None:
    cluster = orders()
    scan = scanned(cluster).filter(what)
    assert scan.to_arrow().num_rows == scan.count() == kbatch_count(orders(), what)
    assert fetched(cluster) == partitions


def kbatch_count(cluster: ScriptedCluster, what: pc.Expression) -> int:
    """Return the number of records of a scan of everything whose filter is applied afterwards."""
    return int(scanned(cluster).to_arrow().filter(what).num_rows)


def test_conditions_on_offsets_and_times_bound_the_fetches() -> None:
    cluster = orders()
    scan = scanned(cluster, topics="orders", partitions=[0], fetch_max_bytes=1)
    assert scan.filter((OFFSET >= 55) & (OFFSET < 75)).to_arrow().num_rows == 20
    assert first_fetches(cluster) == [55, 60, 70]
    cluster.requests.clear()
    late = datetime.datetime.fromtimestamp((BEGIN + 185_000) / 1000, datetime.UTC)
    assert scan.filter(late <= TIME).to_arrow().num_rows == 15
    assert first_fetches(cluster) == [185, 190]
    asked = [topic.partitions[0].timestamp for each in cluster.sent(ApiKey.LIST_OFFSETS) for topic in each.topics]
    assert asked == [-2, -1, BEGIN + 185_000]


def test_metadata_and_times_are_not_requested_for_each_partition() -> None:
    cluster = ScriptedCluster(2, orders=[partition(2, leader=1 + i % 2) for i in range(30)])
    late = datetime.datetime.fromtimestamp((BEGIN + 15_000) / 1000, datetime.UTC)
    assert scanned(cluster).filter(late <= TIME).to_arrow().num_rows == 30 * 5
    # One request lists the topics; the other is for the partitions of one.
    assert len(cluster.sent(ApiKey.METADATA)) == 2
    assert len(cluster.sent(ApiKey.LIST_OFFSETS)) == 3 * 2
    assert len(cluster.open) == 2 + 2


def test_a_head_ends_the_fetches_and_a_tail_reads_only_the_end() -> None:
    cluster = orders(2000)
    scan = scanned(cluster, topics="orders", partitions=[0])
    assert scan.head(3).column("offset").to_pylist() == [0, 1, 2]
    assert all_closed(cluster)
    assert max(first_fetches(cluster)) < 20_000
    first = cluster.sent(ApiKey.FETCH)[0].topics[0].partitions[0]
    assert first.partition_max_bytes == 256 << 10
    cluster.requests.clear()
    assert scan.tail(3).column("offset").to_pylist() == [19_997, 19_998, 19_999]
    assert first_fetches(cluster) == [20_000 - 64]
    cluster.requests.clear()
    assert scan.filter(OFFSET < 15_000).tail(100).column("offset").to_pylist() == list(range(14_900, 15_000))
    assert min(first_fetches(cluster)) == 15_000 - 64 - 256
    assert all_closed(cluster)


def test_engines_fetch_the_part_that_a_query_needs() -> None:
    cluster = orders(2000)
    scan = scanned(cluster, topics="orders", partitions=[0])
    assert scan.lazy().select("offset").tail(3).collect().rows() == [(19_997,), (19_998,), (19_999,)]
    assert first_fetches(cluster) == [20_000 - 64]
    cluster.requests.clear()
    assert scan.lazy().filter(pl.col("offset") > 19_990).select("offset").collect().height == 9
    assert first_fetches(cluster) == [19_991]
    cluster.requests.clear()
    sql = duckdb.connect()
    sql.register("records", scan.dataset())
    assert sql.execute('select "offset" from records limit 2').fetchall() == [(0,), (1,)]
    assert max(first_fetches(cluster)) < 20_000


def test_a_tail_reads_further_back_where_offsets_have_gaps() -> None:
    made = ScriptedPartition()
    for base in range(0, 50_000, 1000):
        made.batches.append(kbatch.encode([b"%d" % base], base_offset=base))
    scan = scanned(ScriptedCluster(1, orders=[made]))
    assert scan.tail(20).column("offset").to_pylist() == list(range(30_000, 50_000, 1000))
    assert scan.tail(100).num_rows == scan.count() == 50


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_count_parses_no_record_of_a_batch_within_the_bounds(codec: str) -> None:
    cluster = orders(codec=codec)
    for batches in (each.batches for each in cluster.topics["orders"]):
        # The payload is damaged, and its checksum: headers are counted.
        batches[3] = batches[3][:-1] + bytes([batches[3][-1] ^ 1])
    scan = scanned(cluster, topics="orders")
    assert scan.count() == 400
    assert scan.filter(OFFSET >= 5).count() == 390
    assert scan.filter(OFFSET < 30).count() == 60
    with pytest.raises(kbatch.KbatchError, match="broker broker-1:9092, orders-0"):
        scan.filter(TIME.is_valid()).count()


def test_a_count_leaves_out_aborted_and_open_transactions(tmp_path: Path) -> None:
    for seed in range(8):
        logs = scanned_logs(tmp_path / str(seed), seed)
        expected = kbatch.find_logs(logs.root).count(isolation="read_committed")
        source = cluster_source(served_cluster(logs), fetch_max_bytes=300)
        assert kbatch.scan_logs(source, isolation="read_committed").count() == expected


def test_a_consumer_that_stops_ends_the_read() -> None:
    for threads in (1, 3):
        cluster = orders(500)
        reader = scanned(cluster, threads=threads, fetch_max_bytes=3000).reader()
        reader.read_next_batch()
        time.sleep(0.1)
        assert len(cluster.sent(ApiKey.FETCH)) < 10, "a reader that is slow stops the fetches"
        reader.close()
        del reader
        assert all_closed(cluster)


def test_explain_states_the_offsets() -> None:
    cluster = orders()
    scan = scanned(cluster, isolation="read_committed").filter((TOPIC == "orders") & (OFFSET < 50))
    lines = scan.explain().splitlines()
    assert lines[0] == "SCAN kafka://broker-1:9092"
    assert lines[3:] == [
        "logs: 2 of 3; 1 have a topic or partition that the filter excludes",
        "offsets: 100 of 400 of these logs",
        "isolation: read_committed, up to the last stable offsets, by the lists of the brokers",
        "pruned by: offset <= 49 (2 logs)",
    ]
    assert not cluster.sent(ApiKey.FETCH)


# -- faults


def test_a_connection_that_breaks_loses_and_repeats_nothing() -> None:
    cluster = orders()
    cluster.fail(ApiKey.FETCH, Fault(), Fault(cut=100), Fault(), Fault(change=lambda m: setattr(m, "error_code", 6)))
    scan = scanned(cluster, topics="orders", columns=["partition", "offset"], fetch_max_bytes=2000)
    assert scan.to_arrow().to_pylist() == [{"partition": p, "offset": i} for p in (0, 1) for i in range(200)]


def test_a_leader_that_moves_between_partitions_is_followed() -> None:
    cluster = orders()

    def move() -> None:
        cluster.topics["orders"][0].leader, cluster.topics["orders"][0].epoch = 2, 1

    cluster.fail(ApiKey.FETCH, Fault(), Fault(), Fault(run=move))
    scan = scanned(cluster, topics="orders", columns=["partition", "offset"], fetch_max_bytes=1)
    assert scan.to_arrow().to_pylist() == [{"partition": p, "offset": i} for p in (0, 1) for i in range(200)]


def test_errors_of_a_cluster_name_it() -> None:
    cluster = orders()
    with pytest.raises(BrokerError, match="there is no topic 'ordrs', did you mean 'orders'"):
        scanned(cluster, topics="ordrs").count()
    with pytest.raises(ValueError, match="no chosen topic has partition 7"):
        scanned(cluster, topics="orders", partitions=[7]).count()
    cluster.refused.update({1, 2})
    source = cluster_source(cluster, socket_connection_setup_timeout_ms=100)
    with pytest.raises(BrokerConnectionError, match="broker broker-1:9092: can't be reached"):
        kbatch.scan_logs(source, topics="orders").to_arrow()


# -- settings, and functions that read directories


def test_a_url_names_a_cluster_and_config_has_its_settings(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("socket.connection.setup.timeout.ms=1\nreconnect.backoff.ms=1\n")
    scan = kbatch.scan_logs("kafka://localhost:1,localhost:2", topics="orders", config=config)
    assert repr(scan).startswith("<Scan of kafka://localhost:1,localhost:2: offset, ")
    with pytest.raises(BrokerConnectionError, match="localhost:1"):
        scan.count()
    with pytest.raises(ValueError, match=r"unknown setting 'bootstrap\.server'"):
        kbatch.scan_logs("kafka://localhost", config={"bootstrap.server": "x"})


@pytest.mark.parametrize(
    "url", ["kafka://me:secret@host:9092", "kafka://host/orders", "kafka://host?security.protocol=SSL"]
)
def test_settings_in_a_url_are_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(ValueError, match="no settings, topics or passwords") as caught:
        kbatch.scan_logs(url)
    assert "secret" not in str(caught.value)


def test_settings_without_a_cluster_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="config has the settings of a cluster"):
        kbatch.scan_logs(tmp_path, config={})
    with pytest.raises(ValueError, match="storage_options are for URLs of files; config"):
        kbatch.scan_logs("kafka://localhost", storage_options={})
    with pytest.raises(TypeError, match=r"security_protocol.*use config="):
        kbatch.scan_logs("kafka://localhost", security_protocol="SSL")  # type: ignore[call-arg]


URL = "kafka://localhost:9092"


@pytest.mark.parametrize(
    "read",
    [
        lambda out: kbatch.Log(URL),
        lambda out: kbatch.Segment(URL),
        lambda out: kbatch.find_logs(URL),
        lambda out: kbatch.scan_logs([URL, str(out)]),
        lambda out: kbatch.index_logs(URL, out),
    ],
)
def test_functions_of_log_directories_refuse_the_url_of_a_cluster(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    with pytest.raises(
        kbatch.KbatchError, match=r"names a cluster, which kbatch\.consume, scan_logs, export and follow read"
    ):
        read(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_scan_of_files_imports_no_module_of_live_topics() -> None:
    code = (
        "import sys, kbatch; kbatch.scan_logs('tests/golden/logs', topics='codec-lz4').to_arrow(); "
        "print([name for name in sys.modules if name.startswith('kbatch.live')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
