"""`kbatch.consume` over brokers in this process: selection, damage, leaders and faults."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from live_reading import QUICK, change_error, consumed, offsets, partition
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition, ScriptedTransport

import kbatch
from kbatch.kernels.buffers import pool_stats
from kbatch.live import BrokerConnectionError, BrokerError
from kbatch.protocol import ApiKey


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    deadline = time.monotonic() + 5
    while any(each.name.startswith("kbatch-fetch") for each in threading.enumerate()):
        assert time.monotonic() < deadline, "a fetch thread still runs"
        time.sleep(0.01)


# -- what is read


def test_every_record_is_read_once_in_order_from_several_brokers() -> None:
    cluster = ScriptedCluster(3, orders=[partition(*[7] * 20, leader=1 + i % 3) for i in range(5)])
    found = offsets(consumed(cluster, fetch_max_bytes=1000))
    assert found == {("orders", i): list(range(140)) for i in range(5)}
    assert {broker for broker, message in cluster.requests if message.schema.api_key == ApiKey.FETCH} == {1, 2, 3}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_read_begins_and_ends_within_batches(codec: str) -> None:
    cluster = ScriptedCluster(orders=[partition(10, 10, 10, codec=codec)])
    consumer = consumed(cluster, start=5, end=25)
    assert consumer.ranges == {("orders", 0): (5, 25)}
    assert offsets(consumer) == {("orders", 0): list(range(5, 25))}


@pytest.mark.parametrize(
    ("bounds", "first", "stop"),
    [
        ({"start": "earliest", "end": "latest"}, 0, 30),
        ({"start": -5}, 25, 30),
        ({"end": -5}, 0, 25),
        ({"start": "1970-01-01T00:00:01.012"}, 12, 30),
        ({"end": "1970-01-01T00:00:01.012"}, 0, 12),
        ({"start": "end-9ms"}, 20, 30),
        ({"start": {0: 28}}, 28, 30),
        ({"start_offset": 3, "stop_offset": 4}, 3, 4),
        ({"last": 4}, 26, 30),
        ({"last": 4, "end": 25}, 21, 25),
        ({"last": 100}, 0, 30),
        ({"start": "latest"}, 30, 30),
        ({"start": 99}, 30, 30),
        ({"end": 99}, 0, 30),
    ],
)
def test_bounds_choose_the_records_that_they_choose_of_a_log(bounds: dict[str, Any], first: int, stop: int) -> None:
    cluster = ScriptedCluster(orders=[partition(10, 10, 10)])
    assert offsets(consumed(cluster, **bounds)) == ({("orders", 0): list(range(first, stop))} if first < stop else {})


def test_last_searches_further_back_where_offsets_have_gaps() -> None:
    made = ScriptedPartition()
    for base in range(0, 5000, 100):
        made.batches.append(kbatch.encode([b"%d" % base], base_offset=base))
    cluster = ScriptedCluster(orders=[made])
    assert offsets(consumed(cluster, last=20)) == {("orders", 0): list(range(3000, 5000, 100))}


def test_records_are_chosen_by_key_and_columns() -> None:
    made = ScriptedPartition()
    made.write([b"a", b"b", b"c"], keys=[b"k", b"l", b"k"])
    cluster = ScriptedCluster(orders=[made])
    (table,) = consumed(cluster, key="k", columns=["value"])
    assert table.values() == [b"a", b"c"]
    assert table.records.dtype.names == ("value_pos", "value_len", "batch")


def test_records_that_are_written_after_the_beginning_are_not_read() -> None:
    made = partition(10)
    cluster = ScriptedCluster(orders=[made])
    consumer = consumed(cluster)
    made.write([b"10"])
    assert offsets(consumer) == {("orders", 0): list(range(10))}


def test_under_read_committed_aborted_records_are_left_out_and_the_read_ends_at_the_last_stable_offset() -> None:
    made = ScriptedPartition()
    made.write([b"0", b"1"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    made.write([b"2"])
    made.batches.append(kbatch.encode_marker("abort", producer_id=7, producer_epoch=0, offset=3))
    made.write([b"4"], producer_id=7, producer_epoch=0, base_sequence=2, transactional=True)
    made.aborted, made.stable = [(7, 0)], 4
    cluster = ScriptedCluster(orders=[made])
    assert offsets(consumed(cluster, isolation="read_committed")) == {("orders", 0): [2]}
    # The marker may arrive in a later response than the records of its transaction.
    assert offsets(consumed(cluster, isolation="read_committed", fetch_max_bytes=1)) == {("orders", 0): [2]}
    assert offsets(consumed(cluster)) == {("orders", 0): [0, 1, 2, 4]}


def test_topics_are_chosen_by_name_glob_and_partition() -> None:
    cluster = ScriptedCluster(a_1=[partition(1), partition(2)], a_2=[partition(3)], b=[partition(4)])
    assert set(offsets(consumed(cluster, "a-*", partitions=[0]))) == {("a-1", 0), ("a-2", 0)}
    with pytest.raises(BrokerError, match=r"broker broker-1:9092: there is no topic 'a-3', did you mean 'a-2'\?"):
        consumed(cluster, "a-3")
    with pytest.raises(ValueError, match="no log of topic 'c"):
        consumed(cluster, "c*")
    with pytest.raises(ValueError, match="no chosen topic has partition 5"):
        consumed(cluster, "b", partitions=[0, 5])


def test_a_batch_that_is_larger_than_the_fetch_size_is_read() -> None:
    made = partition(3)
    made.write([b"3"])
    made.batches.append(kbatch.encode([b"x" * 100_000], base_offset=4))
    cluster = ScriptedCluster(orders=[made])
    tables = list(consumed(cluster, fetch_max_bytes=1000, max_partition_fetch_bytes=500))
    assert sum(map(len, tables)) == 5
    assert tables[-1].value(0) == b"x" * 100_000


def test_a_broker_without_topic_ids_is_read_by_names() -> None:
    cluster = ScriptedCluster(orders=[partition(3)])
    cluster.versions |= {ApiKey.METADATA: (0, 8), ApiKey.FETCH: (4, 11), ApiKey.API_VERSIONS: (0, 2)}
    assert offsets(consumed(cluster)) == {("orders", 0): [0, 1, 2]}
    assert cluster.sent(ApiKey.FETCH)[0].topics[0].topic == "orders"


def test_uncompressed_records_are_not_copied_from_the_receive_buffer() -> None:
    cluster = ScriptedCluster(orders=[partition(*[1000] * 40)])
    (table,) = consumed(cluster)
    # The response begins before the batches, and the buffer ends with it.
    assert table.data.base is not None
    assert table.batches["position"][0] == 0
    assert len(table.data) == int(table.batches["size"].sum())


# -- conversions


def test_conversions_return_all_records_with_topic_and_partition() -> None:
    pytest.importorskip("polars")
    pytest.importorskip("pandas")
    pa = pytest.importorskip("pyarrow")
    cluster = ScriptedCluster(orders=[partition(2), partition(1)])
    rows = [("orders", 0, 0, b"0"), ("orders", 0, 1, b"1"), ("orders", 1, 0, b"0")]
    columns = ["topic", "partition", "offset", "value"]

    def made() -> kbatch.Consumer:
        return consumed(cluster, columns=columns)

    assert sorted(map(tuple, made().to_polars().rows())) == rows
    assert sorted(made().to_pandas().itertuples(index=False, name=None)) == rows
    assert sorted(made().to_pandas(dtype_backend="pyarrow").itertuples(index=False, name=None)) == rows
    assert sorted(tuple(row.values()) for row in made().to_arrow().to_pylist()) == rows
    assert sorted(tuple(row.values()) for row in pa.table(made()).to_pylist()) == rows
    assert made().reader().read_all().schema == made().schema


def test_values_have_the_types_of_a_schema_that_is_given_or_inferred() -> None:
    pytest.importorskip("pyarrow")
    made = ScriptedPartition()
    made.write([b'{"id": 7}'])
    cluster = ScriptedCluster(orders=[made])
    table = consumed(cluster, values="json", value_schema="id bigint", columns=["value.id"]).to_arrow()
    assert table.to_pydict() == {"value.id": [7]}
    later = ScriptedPartition()
    later.write([b'{"id": 8, "name": "x"}'])
    later.write([b'{"id": 9}'])
    cluster = ScriptedCluster(orders=[made, ScriptedPartition(), later])
    table = consumed(cluster, values="json", columns=["value.id", "value.name"]).to_arrow()
    assert sorted(table.to_pylist(), key=lambda row: row["value.id"]) == [
        {"value.id": 7, "value.name": None},
        {"value.id": 8, "value.name": "x"},
        {"value.id": 9, "value.name": None},
    ]


# -- faults


@pytest.mark.parametrize(
    "fault", [Fault(cut=0), Fault(cut=3), Fault(cut=40), Fault(hangs=True)], ids=["closed", "length", "cut", "hangs"]
)
@pytest.mark.parametrize("api_key", [ApiKey.FETCH, ApiKey.METADATA, ApiKey.LIST_OFFSETS, ApiKey.API_VERSIONS])
def test_after_a_broken_connection_no_record_is_missing_or_repeated(fault: Fault, api_key: ApiKey) -> None:
    cluster = ScriptedCluster(2, orders=[partition(*[5] * 8, leader=1), partition(*[5] * 8, leader=2)])
    if api_key == ApiKey.API_VERSIONS:
        # The first connections work, those of the fetches do not.
        cluster.fail(api_key, Fault(), Fault(), fault, fault)
    else:
        cluster.fail(api_key, Fault(), fault, Fault(), fault)
    assert offsets(consumed(cluster, fetch_max_bytes=200)) == {("orders", i): list(range(40)) for i in range(2)}


def test_pauses_after_failures_begin_anew_when_records_have_arrived() -> None:
    cluster = ScriptedCluster(orders=[partition(*[5] * 30)])
    cluster.fail(ApiKey.FETCH, *[Fault(), Fault(cut=3)] * 29)
    began = time.monotonic()
    assert offsets(consumed(cluster, fetch_max_bytes=1)) == {("orders", 0): list(range(150))}
    # The longest pause is a second, after ten failures.
    assert time.monotonic() - began < 5


def test_a_response_that_never_comes_is_an_error_that_names_broker_partition_and_setting() -> None:
    cluster = ScriptedCluster(orders=[partition(5)])
    cluster.fail(ApiKey.FETCH, *[Fault(hangs=True)] * 50)
    with pytest.raises(BrokerConnectionError) as raised:
        list(consumed(cluster))
    assert "orders-0, no records from offset 0" in str(raised.value)
    assert "broker broker-1:9092: no response to Fetch for 200 ms (request.timeout.ms)" in str(raised.value)
    assert (raised.value.broker, raised.value.topic, raised.value.partition) == ("broker-1:9092", "orders", 0)


def test_a_response_that_arrives_slowly_is_received() -> None:
    """A part every 20 ms, for longer than request.timeout.ms."""
    cluster = ScriptedCluster(orders=[partition(2000)])
    receive = ScriptedTransport.receive_into

    class Slow(ScriptedTransport):
        def receive_into(self, buffer: memoryview) -> int:
            time.sleep(0.02)
            return receive(self, buffer)

    def connect(server: Any, settings: Any) -> Any:
        transport = cluster.connect(server, settings)
        transport.__class__ = Slow
        return transport

    consumer = kbatch.consume("orders", transport=connect, bootstrap_servers="broker-1", **QUICK)
    began = time.monotonic()
    assert offsets(consumer) == {("orders", 0): list(range(2000))}
    assert time.monotonic() - began > 0.4
    assert len(cluster.sent(ApiKey.FETCH)) == 1


def test_the_next_bootstrap_server_is_asked_if_one_is_down() -> None:
    cluster = ScriptedCluster(3, orders=[partition(5, leader=3)])
    cluster.refused = {1, 2}
    assert offsets(consumed(cluster, bootstrap_servers="broker-1:9092,broker-3")) == {("orders", 0): list(range(5))}


def test_no_broker_is_one_error_that_names_all_of_them() -> None:
    cluster = ScriptedCluster(2, orders=[partition(5)])
    cluster.refused = {1, 2}
    began = time.monotonic()
    with pytest.raises(BrokerConnectionError, match=r"broker-1:9092: .*refused.*broker-2:9092: .*refused"):
        consumed(cluster, bootstrap_servers=["broker-1:9092", "broker-2:9092"])
    assert time.monotonic() - began < 10


def test_a_new_leader_is_followed() -> None:
    made = partition(*[5] * 10)
    cluster = ScriptedCluster(3, orders=[made])

    def move() -> None:
        made.leader, made.epoch = made.leader % 3 + 1, made.epoch + 1

    cluster.fail(ApiKey.FETCH, *[Fault(), Fault(run=move)] * 4)
    assert offsets(consumed(cluster, fetch_max_bytes=1)) == {("orders", 0): list(range(50))}
    assert made.epoch == 4


@pytest.mark.parametrize("code", [kbatch.ErrorCode.NOT_LEADER_OR_FOLLOWER, kbatch.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
def test_an_error_that_may_pass_is_retried_and_reported_if_it_does_not_pass(code: kbatch.ErrorCode) -> None:
    cluster = ScriptedCluster(orders=[partition(5), partition(5)])
    cluster.fail(ApiKey.FETCH, *[Fault(change=change_error(code))] * 2)
    assert offsets(consumed(cluster)) == {("orders", i): list(range(5)) for i in range(2)}
    cluster.fail(ApiKey.FETCH, *[Fault(change=change_error(code))] * 10_000)
    with pytest.raises(BrokerError, match=rf"orders-\d, no records from offset 0 .*{code.name}") as raised:
        list(consumed(cluster, partitions=[0]))
    assert raised.value.code == code


def test_an_error_that_does_not_pass_names_broker_topic_partition_and_remedy() -> None:
    cluster = ScriptedCluster(orders=[partition(5)])
    cluster.fail(ApiKey.FETCH, Fault(change=change_error(29)))
    with pytest.raises(BrokerError) as raised:
        list(consumed(cluster))
    assert str(raised.value) == (
        "broker broker-1:9092, orders-0: fetch of offset 0 failed with TOPIC_AUTHORIZATION_FAILED (29): "
        f"{kbatch.ErrorCode.TOPIC_AUTHORIZATION_FAILED.description.rstrip('.')}; the principal needs the ACLs DESCRIBE "
        "and READ on this topic"
    )


def test_a_topic_may_be_unknown_for_a_moment_after_a_broker_was_away_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kbatch.live.live_read._UNKNOWN_SECONDS", 0.3)
    cluster = ScriptedCluster(orders=[partition(5)])

    def forget(response: Any) -> None:
        for topic in response.topics:
            topic.error_code, topic.partitions = kbatch.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []

    consumer = consumed(cluster)
    # Three requests without an answer take 0.6 s. The second metadata is for the names in the error.
    cluster.fail(ApiKey.FETCH, *[Fault(hangs=True)] * 3)
    cluster.fail(ApiKey.METADATA, Fault(), Fault(), Fault(change=forget), Fault())
    assert offsets(consumer) == {("orders", 0): list(range(5))}


def test_records_that_retention_deletes_during_the_read_are_an_error() -> None:
    made = partition(*[5] * 4)
    cluster = ScriptedCluster(orders=[made])

    def delete() -> None:
        made.start, made.batches = 15, made.batches[3:]

    cluster.fail(ApiKey.FETCH, Fault(), Fault(run=delete))
    with pytest.raises(BrokerError, match=r"orders-0: offset 5, .* deleted by retention"):
        list(consumed(cluster, fetch_max_bytes=1))


def test_a_read_from_the_earliest_record_begins_where_retention_has_moved_it() -> None:
    made = partition(*[5] * 4)
    cluster = ScriptedCluster(orders=[made])
    consumer = consumed(cluster)
    made.start, made.batches = 15, made.batches[3:]
    assert offsets(consumer) == {("orders", 0): list(range(15, 20))}


def test_a_truncated_log_is_an_error() -> None:
    made = partition(*[5] * 4)
    cluster = ScriptedCluster(orders=[made])

    def truncate() -> None:
        made.batches = made.batches[:1]

    cluster.fail(ApiKey.FETCH, Fault(), Fault(), Fault(run=truncate))
    with pytest.raises(BrokerError, match=r"orders-0: offset 10, .* truncated to offset 5"):
        list(consumed(cluster, fetch_max_bytes=1))


def test_a_leader_that_lacks_records_that_were_read_is_an_error() -> None:
    """The new leader has other records at the same offsets, so that no offset is out of range (KIP-320)."""
    made = partition(5, 5)
    cluster = ScriptedCluster(2, orders=[made])

    def elect() -> None:
        made.batches = made.batches[:1]
        made.leader, made.epoch = 2, 1
        for _ in range(3):
            made.write([b"other"] * 5)

    made.write([b"10"])
    consumer = consumed(cluster, fetch_max_bytes=1)
    cluster.fail(ApiKey.FETCH, Fault(), Fault(), Fault(run=elect))
    with pytest.raises(BrokerError, match=r"orders-0: the records from offset 5 to 10, exclusive, .*leader epoch 1"):
        list(consumer)


def test_a_topic_that_is_made_again_is_an_error() -> None:
    cluster = ScriptedCluster(orders=[partition(*[5] * 4)])

    def make_again() -> None:
        import uuid

        cluster.ids["orders"] = uuid.uuid4()

    cluster.fail(ApiKey.FETCH, Fault(), Fault(run=make_again))
    with pytest.raises(BrokerError, match="broker broker-1:9092, orders-0: the topic was deleted and recreated"):
        list(consumed(cluster, fetch_max_bytes=1))


def damaged(position: int = -1) -> ScriptedPartition:
    made = partition(*[5] * 4)
    batch = bytearray(made.batches[1])
    batch[position] ^= 1
    made.batches[1] = bytes(batch)
    return made


def test_damage_names_broker_topic_and_partition() -> None:
    cluster = ScriptedCluster(orders=[damaged()])
    with pytest.raises(kbatch.CrcMismatchError, match=r"broker broker-1:9092, orders-0, byte \d+, base offset 5"):
        list(consumed(cluster))


# A checksum, the magic, the length, and the number of records.
@pytest.mark.parametrize("position", [-1, 16, 9, 60])
@pytest.mark.parametrize("size", [1, 1_000_000])
def test_damage_is_skipped_listed_and_read_once(position: int, size: int) -> None:
    made = damaged(position)
    # The scripted broker cannot frame a damaged batch, so its response has all batches.
    data = b"".join(made.batches)
    made.batches = partition(*[5] * 4).batches
    cluster = ScriptedCluster(orders=[made])

    def put(response: Any) -> None:
        response.responses[0].partitions[0].records = data

    cluster.fail(ApiKey.FETCH, Fault(change=put))
    tables = list(consumed(cluster, on_error="skip", fetch_max_bytes=size))
    assert offsets(tables) == {("orders", 0): [*range(5), *range(10, 20)]}
    assert sum(len(table.losses) for table in tables) == 1


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_damage_at_the_end_of_the_log_is_skipped(size: int) -> None:
    made = partition(*[5] * 4)
    made.batches[-1] = made.batches[-1][:-1] + b"?"
    cluster = ScriptedCluster(orders=[made])
    tables = list(consumed(cluster, on_error="skip", fetch_max_bytes=size))
    assert offsets(tables) == {("orders", 0): list(range(15))}
    assert [loss.base_offset for table in tables for loss in table.losses] == [15]


def test_stop_ends_the_read_of_a_partition_at_damage() -> None:
    made = damaged()
    cluster = ScriptedCluster(orders=[made, partition(5)])
    assert offsets(consumed(cluster, on_error="stop", fetch_max_bytes=1)) == {
        ("orders", 0): list(range(5)),
        ("orders", 1): list(range(5)),
    }


def test_bytes_that_are_no_response_are_a_protocol_error_with_the_broker() -> None:
    cluster = ScriptedCluster(orders=[partition(5)])

    def put(response: Any) -> None:
        response.responses[0].partitions[0].partition_index = 9

    cluster.fail(ApiKey.FETCH, Fault(change=put))
    with pytest.raises(
        BrokerError, match=r"broker broker-1:9092: the fetch response has .*-9, which was not requested"
    ):
        list(consumed(cluster))


# -- life of a consumer


def test_closing_a_consumer_closes_its_connections() -> None:
    cluster = ScriptedCluster(orders=[partition(*[5] * 100)])
    with consumed(cluster, fetch_max_bytes=1) as consumer:
        next(consumer)
        assert not all(each.is_closed for each in cluster.open)
    assert all(each.is_closed for each in cluster.open)
    assert list(consumer) == []


def test_a_consumer_that_is_dropped_closes_its_connections() -> None:
    cluster = ScriptedCluster(orders=[partition(*[5] * 100)])
    consumer = consumed(cluster, fetch_max_bytes=1)
    next(consumer)
    del consumer
    gc.collect()
    assert all(each.is_closed for each in cluster.open)


def test_closing_in_another_thread_ends_a_read_that_waits() -> None:
    cluster = ScriptedCluster(orders=[partition(5)])
    cluster.fail(ApiKey.FETCH, Fault(hangs=True))
    consumer = consumed(cluster, request_timeout_ms=30_000)
    closing = threading.Timer(0.2, consumer.close)
    closing.start()
    with pytest.raises(ValueError, match="closed during a read"):
        next(consumer)
    closing.join()


def test_the_end_of_the_records_closes_the_connections() -> None:
    cluster = ScriptedCluster(orders=[partition(5)])
    consumer = consumed(cluster)
    assert len(list(consumer)) == 1
    assert all(each.is_closed for each in cluster.open)


def test_a_reader_that_waits_lets_a_broker_send_three_responses() -> None:
    cluster = ScriptedCluster(orders=[partition(*[5] * 100)])
    with consumed(cluster, fetch_max_bytes=1) as consumer:
        next(consumer)
        time.sleep(0.3)
        assert len(cluster.sent(ApiKey.FETCH)) == 3


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_receive_buffers_and_tables_stay_within_the_memory_of_the_read(codec: str) -> None:
    made = ScriptedPartition()
    for _ in range(160):
        made.write([b"x" * 1000] * 200, codec=codec)
    cluster = ScriptedCluster(orders=[made])
    before = pool_stats().live_bytes
    peak = count = 0
    for table in consumed(cluster, max_bytes=12 << 20):
        count += len(table)
        # Leaves the thread time to receive as much as it may.
        time.sleep(0.02)
        peak = max(peak, pool_stats().live_bytes - before)
    assert count == 32_000
    assert (1 << 20) < peak <= 12 << 20


def test_requests_state_the_isolation_and_the_sizes() -> None:
    cluster = ScriptedCluster(orders=[partition(5)])
    list(consumed(cluster, isolation="read_committed", fetch_max_bytes="1000", max_partition_fetch_bytes=500))
    (request,) = cluster.sent(ApiKey.FETCH)
    assert (request.isolation_level, request.max_bytes, request.max_wait_ms) == (1, 1000, 10)
    assert request.topics[0].partitions[0].partition_max_bytes == 500
    assert request.topics[0].partitions[0].current_leader_epoch == 0
