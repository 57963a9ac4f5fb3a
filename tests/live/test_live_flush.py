"""Gathering: small responses of a partition become one table, by rows, bytes and time."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from live_reading import consumed, offsets, partition
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition

import kbatch
from kbatch.protocol import ApiKey


def sizes(tables: Any) -> list[int]:
    return [len(table) for table in tables]


def test_without_options_each_response_is_a_table() -> None:
    assert sizes(consumed(ScriptedCluster(orders=[partition(*[5] * 4)]), fetch_max_bytes=1)) == [5] * 4


def test_tables_have_at_least_the_number_of_rows_and_the_rest_comes_at_the_end() -> None:
    consumer = consumed(
        ScriptedCluster(orders=[partition(*[5] * 7)]), fetch_max_bytes=1, flush_rows=12, flush_interval="1m"
    )
    assert sizes(consumer) == [15, 15, 5]


def test_tables_have_at_least_the_number_of_bytes() -> None:
    made = partition(*[5] * 7)
    size = len(made.batches[0]) * 2
    consumer = consumed(ScriptedCluster(orders=[made]), fetch_max_bytes=1, flush_bytes=size, flush_interval=60)
    assert sizes(consumer) == [10, 10, 10, 5]


def test_a_quiet_topic_gives_its_records_after_the_interval() -> None:
    made = ScriptedPartition()
    cluster = ScriptedCluster(orders=[made])
    with consumed(cluster, end=None, flush_rows=1000, flush_interval="1500ms") as consumer:
        timers = [threading.Timer(delay, lambda: made.write([b"%d" % made.end])) for delay in (0, 0.08, 0.16)]
        for timer in timers:
            timer.start()
        began = time.monotonic()
        assert offsets([next(consumer)]) == {("orders", 0): [0, 1, 2]}
        assert 1.5 <= time.monotonic() - began < 6


def test_the_interval_is_a_second_if_only_a_size_is_given() -> None:
    made = ScriptedPartition()
    with consumed(ScriptedCluster(orders=[made]), end=None, flush_bytes="1m") as consumer:
        made.write([b"0"])
        began = time.monotonic()
        assert len(next(consumer)) == 1
        assert 0.9 < time.monotonic() - began < 5


def test_partitions_are_gathered_apart() -> None:
    cluster = ScriptedCluster(orders=[partition(*[5] * 4), partition(*[2] * 4)])
    tables = list(consumed(cluster, fetch_max_bytes=1, flush_rows=1000, flush_interval="1m"))
    assert offsets(tables) == {("orders", 0): list(range(20)), ("orders", 1): list(range(8))}
    assert sizes(tables) == [20, 8]


def test_what_is_gathered_counts_to_the_memory_of_the_read() -> None:
    made = ScriptedPartition()
    for _ in range(40):
        made.write([b"x" * 1000] * 50)
    consumer = consumed(
        ScriptedCluster(orders=[made]),
        max_bytes=1 << 20,
        flush_rows=1 << 30,
        flush_bytes="1g",
        flush_interval="1m",
        fetch_max_bytes=1,
    )
    found = sizes(consumer)
    assert sum(found) == 2000
    # A quarter of the memory.
    assert max(found) * 1000 <= (1 << 20) // 4 + 100_000


def test_the_memory_of_responses_is_free_while_their_batches_wait() -> None:
    made = partition(*[5] * 50)
    cluster = ScriptedCluster(orders=[made])
    with consumed(cluster, end=None, start="earliest", fetch_max_bytes=1, flush_interval="300ms") as consumer:
        assert offsets([next(consumer)]) == {("orders", 0): list(range(250))}


def transactional() -> ScriptedPartition:
    """Return records 0, 1 and 4 of an aborted transaction, between others, and its marker."""
    made = ScriptedPartition()
    made.write([b"0", b"1"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    made.write([b"2", b"3"])
    made.write([b"4"], producer_id=7, producer_epoch=0, base_sequence=2, transactional=True)
    made.batches.append(kbatch.encode_marker("abort", producer_id=7, producer_epoch=0, offset=5))
    made.write([b"6"], producer_id=7, producer_epoch=0, base_sequence=3, transactional=True)
    made.batches.append(kbatch.encode_marker("commit", producer_id=7, producer_epoch=0, offset=7))
    made.write([b"8"])
    made.write([b"9"], producer_id=7, producer_epoch=0, base_sequence=4, transactional=True)
    made.batches.append(kbatch.encode_marker("abort", producer_id=7, producer_epoch=0, offset=10))
    return made


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 1000])
def test_aborted_records_are_left_out_of_gathered_tables(rows: int) -> None:
    made = transactional()
    cluster = ScriptedCluster(orders=[made])

    def listed(response: Any) -> None:
        """List the transactions that overlap with the records of the response, as a broker does."""
        for topic in response.responses:
            for part in topic.partitions:
                batches = kbatch.scan(bytes(part.records)) if part.records else []
                if len(batches):
                    first, last = int(batches["base_offset"][0]), int(batches["last_offset"][-1])
                    cls = kbatch.protocol.FetchResponse.AbortedTransaction
                    part.aborted_transactions = [
                        cls(producer_id=7, first_offset=begin)
                        for begin, end in ((0, 5), (9, 10))
                        if begin <= last and end >= first
                    ]

    cluster.fail(ApiKey.FETCH, *[Fault(change=listed)] * 50)
    consumer = consumed(cluster, isolation="read_committed", fetch_max_bytes=1, flush_rows=rows, flush_interval="1m")
    assert offsets(consumer) == {("orders", 0): [2, 3, 6, 8]}


def test_a_read_that_begins_and_ends_within_batches_is_exact() -> None:
    cluster = ScriptedCluster(orders=[partition(*[10] * 5)])
    consumer = consumed(cluster, start=5, end=43, fetch_max_bytes=1, flush_rows=1000, flush_interval="1m")
    assert offsets(consumer) == {("orders", 0): list(range(5, 43))}


def test_batches_of_older_versions_are_not_gathered() -> None:
    made = ScriptedPartition()
    for number in range(3):
        made.batches.append(kbatch.encode([b"%d" % number], base_offset=number, magic=1))
    consumer = consumed(ScriptedCluster(orders=[made]), fetch_max_bytes=1, flush_rows=1000, flush_interval="1m")
    assert sizes(consumer) == [1, 1, 1]


def test_damage_is_found_after_the_records_before_it() -> None:
    made = partition(*[5] * 4)
    made.batches[2] = made.batches[2][:-1] + bytes([made.batches[2][-1] ^ 1])
    consumer = consumed(ScriptedCluster(orders=[made]), fetch_max_bytes=1, flush_rows=1000, flush_interval="1m")
    assert offsets([next(consumer)]) == {("orders", 0): list(range(10))}
    with pytest.raises(kbatch.CrcMismatchError, match=r"orders-0, .*base offset 10"):
        next(consumer)


def test_records_that_wait_are_returned_before_the_error_of_another_partition() -> None:
    cluster = ScriptedCluster(orders=[partition(5, 5, 5)])

    def refuse(response: Any) -> None:
        part = response.responses[0].partitions[0]
        part.error_code, part.records = kbatch.ErrorCode.TOPIC_AUTHORIZATION_FAILED, b""

    cluster.fail(ApiKey.FETCH, Fault(), Fault(), Fault(change=refuse))
    consumer = consumed(cluster, fetch_max_bytes=1, flush_rows=1000, flush_interval="1m")
    assert offsets([next(consumer)]) == {("orders", 0): list(range(10))}
    with pytest.raises(kbatch.live.BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        next(consumer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flush_rows": 0}, "flush_rows must be at least 1, got 0"),
        ({"flush_bytes": 0}, "flush_bytes must be at least 1, got 0"),
        ({"flush_interval": "soon"}, "flush_interval must be a time such as 500ms, 30s or 15m, got 'soon'"),
        ({"flush_interval": -1}, "flush_interval must not be negative, got -1"),
    ],
)
def test_values_that_are_not_allowed_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kbatch.consume("orders", bootstrap_servers="x", **options)
