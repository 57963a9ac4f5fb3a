"""Reads from the closest replica (KIP-392): `client.rack`, followers, and the way back to the leader."""

from __future__ import annotations

import time
from typing import Any

import pytest
from live_reading import change_error, consumed, offsets, partition
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition

import kbatch
from kbatch.live import ClientSettings
from kbatch.protocol import ApiKey


def replicated(*sizes: int) -> tuple[ScriptedCluster, ScriptedPartition]:
    """Return a cluster in which broker 1 leads and broker 2, in rack b, follows."""
    made = partition(*sizes)
    made.replicas = {2: made.end}
    cluster = ScriptedCluster(2, orders=[made])
    cluster.racks = {1: "a", 2: "b"}
    return cluster, made


def brokers(cluster: ScriptedCluster) -> list[int]:
    """Return the brokers of the fetches, each once for requests that follow each other."""
    found = [broker for broker, message in cluster.requests if message.schema.api_key == ApiKey.FETCH]
    return [broker for i, broker in enumerate(found) if i == 0 or found[i - 1] != broker]


def test_a_read_with_a_rack_is_sent_to_the_replica_that_the_leader_prefers_and_stays_there() -> None:
    cluster, _ = replicated(5, 5, 5)
    assert offsets(consumed(cluster, client_rack="b", fetch_max_bytes=1)) == {("orders", 0): list(range(15))}
    assert brokers(cluster) == [1, 2]
    assert {request.rack_id for request in cluster.sent(ApiKey.FETCH)} == {"b"}


@pytest.mark.parametrize("rack", ["a", "c", None])
def test_a_read_without_a_replica_in_its_rack_stays_at_the_leader(rack: str | None) -> None:
    cluster, _ = replicated(5, 5)
    assert offsets(consumed(cluster, client_rack=rack, fetch_max_bytes=1)) == {("orders", 0): list(range(10))}
    assert brokers(cluster) == [1]


def test_a_broker_before_version_11_is_read_from_the_leader() -> None:
    cluster, _ = replicated(5, 5)
    cluster.versions[ApiKey.FETCH] = (4, 10)
    assert offsets(consumed(cluster, client_rack="b")) == {("orders", 0): list(range(10))}
    assert brokers(cluster) == [1]


def test_a_position_that_the_follower_refuses_is_read_from_the_leader() -> None:
    cluster, made = replicated(5, 5, 5)
    # The follower has fewer records than the leader states.
    made.replicas = {2: 15}
    cluster.fail(ApiKey.FETCH, Fault(), Fault(change=change_error(kbatch.ErrorCode.OFFSET_OUT_OF_RANGE)))

    def falls_behind() -> None:
        made.replicas = {}

    cluster.fail(ApiKey.FETCH, Fault(run=falls_behind))
    assert offsets(consumed(cluster, client_rack="b", fetch_max_bytes=1)) == {("orders", 0): list(range(15))}
    assert brokers(cluster) == [1, 2, 1]


@pytest.mark.parametrize(
    "code",
    [
        kbatch.ErrorCode.NOT_LEADER_OR_FOLLOWER,
        kbatch.ErrorCode.REPLICA_NOT_AVAILABLE,
        kbatch.ErrorCode.OFFSET_NOT_AVAILABLE,
        kbatch.ErrorCode.UNKNOWN_LEADER_EPOCH,
    ],
)
def test_after_an_error_of_a_follower_the_leader_is_asked(code: kbatch.ErrorCode) -> None:
    cluster, _ = replicated(5, 5)
    cluster.fail(ApiKey.FETCH, Fault(), Fault(change=change_error(code)))
    assert offsets(consumed(cluster, client_rack="b", fetch_max_bytes=1)) == {("orders", 0): list(range(10))}
    # The leader prefers the follower again.
    assert brokers(cluster) == [1, 2, 1, 2]


def test_a_follower_that_cannot_be_reached_is_replaced_by_the_leader() -> None:
    cluster, made = replicated(5, 5, 5)

    def leave() -> None:
        cluster.refused.add(2)
        made.replicas = {}

    cluster.fail(ApiKey.FETCH, Fault(), Fault(), Fault(run=leave, cut=0))
    assert offsets(consumed(cluster, client_rack="b", fetch_max_bytes=1)) == {("orders", 0): list(range(15))}
    assert brokers(cluster) == [1, 2, 1]


def test_a_preferred_replica_that_the_metadata_does_not_list_is_not_asked() -> None:
    cluster, _ = replicated(5, 5)

    def prefer(response: Any) -> None:
        response.responses[0].partitions[0].preferred_read_replica = 9

    cluster.fail(ApiKey.FETCH, Fault(change=prefer), Fault(change=prefer))
    assert offsets(consumed(cluster, client_rack="c")) == {("orders", 0): list(range(10))}
    assert brokers(cluster) == [1]


def test_a_preferred_replica_is_read_as_soon_as_the_metadata_list_it_and_the_leader_is_not_asked_in_a_loop() -> None:
    cluster, _ = replicated(5, 5)
    cluster.brokers = [1]

    def comes_back() -> None:
        cluster.brokers = [1, 2]

    # The broker is back with the fourth response to Metadata.
    cluster.fail(ApiKey.METADATA, Fault(), Fault(), Fault(), Fault(run=comes_back))
    assert offsets(consumed(cluster, client_rack="b", retry_backoff_ms=20)) == {("orders", 0): list(range(10))}
    assert brokers(cluster)[-1] == 2
    assert len(cluster.sent(ApiKey.FETCH)) < 10


def test_the_leader_is_asked_again_after_metadata_max_age() -> None:
    cluster, made = replicated(5)
    with consumed(cluster, client_rack="b", end=None, start="earliest", metadata_max_age_ms=100) as consumer:
        assert len(next(consumer)) == 5
        time.sleep(0.15)
        made.replicas = {}
        made.write([b"5"])
        assert offsets([next(consumer)]) == {("orders", 0): [5]}
    assert brokers(cluster) == [1, 2, 1]


def test_a_new_leader_is_found_while_a_follower_is_read() -> None:
    cluster, made = replicated(5, 5, 5)

    def move() -> None:
        made.leader, made.epoch, made.replicas = 2, 1, {}

    cluster.fail(ApiKey.FETCH, Fault(), Fault(), Fault(run=move))
    assert offsets(consumed(cluster, client_rack="b", fetch_max_bytes=1)) == {("orders", 0): list(range(15))}


def test_records_that_the_leader_has_lost_are_an_error_also_if_a_follower_is_read() -> None:
    cluster, made = replicated(5, 5, 5)

    def delete() -> None:
        made.start, made.batches = 15, made.batches[3:]
        made.write([b"15"])
        made.replicas = {2: 16}

    cluster.fail(ApiKey.FETCH, Fault(), Fault(), Fault(run=delete))
    with pytest.raises(kbatch.live.BrokerError, match=r"offset 5, .* deleted by retention"):
        list(consumed(cluster, client_rack="b", fetch_max_bytes=1))


def test_the_rack_is_a_setting_of_kafkas_clients() -> None:
    settings = ClientSettings.of({"client.rack": "eu-1a", "bootstrap.servers": "a"})
    assert settings.client_rack == "eu-1a"
    assert ClientSettings.of(bootstrap_servers="a").client_rack is None
