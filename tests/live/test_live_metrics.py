"""`Consumer.metrics` and `on_metrics`: what a read has done, seen from outside."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from typing import Any

import pytest
from group_members import joined, written
from live_reading import change_error, consumed, partition
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition
from scripted_groups import GroupCluster

import kbatch
from kbatch.live import ConsumerMetrics
from kbatch.protocol import ApiKey


def test_counters_have_what_was_fetched_and_returned() -> None:
    made = [partition(5, 5), partition(5)]
    size = sum(len(batch) for each in made for batch in each.batches)
    cluster = ScriptedCluster(orders=made)
    consumer = consumed(cluster, end=12)
    before = consumer.metrics
    assert (before.fetches, before.bytes, before.records, before.lag) == (0, 0, 0, {})
    list(consumer)
    assert consumer.metrics == ConsumerMetrics(
        fetches=1,
        empty_fetches=0,
        bytes=size,
        records=15,
        throttled_seconds=0.0,
        errors=0,
        connections=1,
        rebalances=0,
        missing_offsets=0,
        lag={("orders", 0): 0, ("orders", 1): 0},
    )
    assert before.fetches == 0


def test_a_snapshot_does_not_change() -> None:
    metrics = consumed(ScriptedCluster(orders=[partition(1)])).metrics
    with pytest.raises(dataclasses.FrozenInstanceError):
        metrics.records = 1  # type: ignore[misc]


def test_responses_without_records_are_counted() -> None:
    made = ScriptedPartition()
    cluster = ScriptedCluster(orders=[made])
    with consumed(cluster, end=None) as consumer:
        made.write([b"0"])
        next(consumer)
        time.sleep(0.1)
        metrics = consumer.metrics
    assert metrics.empty_fetches > 0
    assert metrics.fetches > metrics.empty_fetches


def test_errors_and_connections_are_counted() -> None:
    cluster = ScriptedCluster(orders=[partition(5, 5, 5, 5)])
    cluster.fail(ApiKey.FETCH, Fault(), Fault(cut=5), Fault(), Fault(change=change_error(6)))
    consumer = consumed(cluster, fetch_max_bytes=1)
    list(consumer)
    assert (consumer.metrics.errors, consumer.metrics.connections) == (2, 2)


def test_a_client_that_is_throttled_waits_and_counts_the_time() -> None:
    """KIP-219: the broker answers at once, and the client does not send the next request before the time is over."""
    cluster = ScriptedCluster(orders=[partition(5, 5, 5)])
    cluster.throttle_ms = 60
    times: list[float] = []
    cluster.fail(ApiKey.FETCH, *[Fault(run=lambda: times.append(time.monotonic()))] * 3)
    consumer = consumed(cluster, fetch_max_bytes=1)
    list(consumer)
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 0.06
    assert consumer.metrics.throttled_seconds == pytest.approx(0.18)


def test_the_lag_is_that_of_the_records_that_were_not_returned() -> None:
    cluster = ScriptedCluster(orders=[partition(5, 5, 5)])
    with consumed(cluster, fetch_max_bytes=1) as consumer:
        next(consumer)
        next(consumer)
        assert consumer.metrics.lag == consumer.lag
        assert consumer.lag[("orders", 0)] in (5, 10)


def test_the_callback_gets_snapshots_in_the_thread_that_reads_and_one_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kbatch.live.counters._REPORT_SECONDS", 0.0)
    cluster = ScriptedCluster(orders=[partition(*[5] * 10)])
    seen: list[tuple[ConsumerMetrics, Any]] = []
    consumer = consumed(
        cluster, fetch_max_bytes=1, on_metrics=lambda each: seen.append((each, threading.current_thread()))
    )
    list(consumer)
    assert len(seen) > 10
    assert {thread for _, thread in seen} == {threading.current_thread()}
    assert [each.records for each, _ in seen] == sorted(each.records for each, _ in seen)
    assert seen[-1][0] == consumer.metrics


def test_the_callback_is_called_at_most_once_per_second_and_at_the_end() -> None:
    cluster = ScriptedCluster(orders=[partition(*[5] * 50)])
    seen: list[ConsumerMetrics] = []
    consumer = consumed(cluster, fetch_max_bytes=1, on_metrics=seen.append)
    began = time.monotonic()
    list(consumer)
    assert 1 <= len(seen) <= 2 + (time.monotonic() - began)
    assert seen[-1].records == 250


def test_a_reader_that_waits_calls_the_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbatch.live.counters._REPORT_SECONDS", 0.1)
    called = threading.Event()
    with consumed(
        ScriptedCluster(orders=[ScriptedPartition()]), end=None, on_metrics=lambda each: called.set()
    ) as consumer:
        reading = threading.Thread(target=lambda: list(consumer))
        reading.start()
        assert called.wait(5)
        consumer.close()
        reading.join(5)
    assert not reading.is_alive()


def test_an_exception_of_the_callback_ends_the_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbatch.live.counters._REPORT_SECONDS", 0.0)

    def fail(metrics: ConsumerMetrics) -> None:
        raise KeyError("broken")

    cluster = ScriptedCluster(orders=[partition(5)])
    with pytest.raises(KeyError, match="broken"):
        list(consumed(cluster, on_metrics=fail))
    assert all(each.is_closed for each in cluster.open)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="on_metrics"):
        kbatch.consume("orders", bootstrap_servers="x", on_metrics="print")  # type: ignore[arg-type]


def test_rebalances_are_counted() -> None:
    with joined(GroupCluster(orders=[written(3)]), end="latest") as consumer:
        assert consumer.metrics.rebalances == 0
        assert sum(map(len, consumer)) == 3
        assert consumer.metrics.rebalances == 1
