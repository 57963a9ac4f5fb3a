"""Single requests to the leader of a partition: they outlive elections and closed connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition

from kbatch.error_codes import ErrorCode
from kbatch.live import BrokerError, ClientSettings, Cluster
from kbatch.live.live_partitions import LivePartition, located_partitions
from kbatch.protocol import ApiKey


@pytest.fixture
def log() -> ScriptedPartition:
    made = ScriptedPartition()
    made.write([b"a"] * 10, timestamps=range(10))
    made.epoch = 3
    made.write([b"b"] * 5, timestamps=range(10, 15))
    return made


@pytest.fixture
def scripted(log: ScriptedPartition) -> ScriptedCluster:
    return ScriptedCluster(2, t=[log])


@pytest.fixture
def partition(scripted: ScriptedCluster) -> Iterator[LivePartition]:
    settings = ClientSettings.of(
        bootstrap_servers="broker-1:9092", retry_backoff_ms=1, reconnect_backoff_ms=1, default_api_timeout_ms=500
    )
    with Cluster(settings, transport=scripted.connect) as cluster:
        [found] = located_partitions(cluster, [(cluster.topics(["t"])[0], 0)], "read_uncommitted")
        yield found


ASKED: dict[ApiKey, Callable[[LivePartition], bool]] = {
    ApiKey.FETCH: lambda partition: len(partition.fetched(0, 1, "fetch of a sample")) > 61,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda partition: partition.epoch_end(0).offset == 10,
}


@pytest.mark.parametrize("api", ASKED)
def test_a_connection_that_the_broker_closes_is_opened_again(
    scripted: ScriptedCluster, partition: LivePartition, api: ApiKey
) -> None:
    scripted.fail(api, Fault(cut=0), Fault(cut=7))
    assert ASKED[api](partition)
    assert len(scripted.sent(api)) == 3


@pytest.mark.parametrize("api", ASKED)
def test_a_new_leader_is_asked(
    scripted: ScriptedCluster, log: ScriptedPartition, partition: LivePartition, api: ApiKey
) -> None:
    log.leader, log.epoch = 2, 4
    assert ASKED[api](partition)
    # The first leader refuses: it is none any more.
    assert [broker for broker, message in scripted.requests if message.schema.api_key == api] == [1, 2]


@pytest.mark.parametrize("api", ASKED)
def test_a_partition_without_a_leader_is_asked_again_until_the_deadline(
    log: ScriptedPartition, scripted: ScriptedCluster, partition: LivePartition, api: ApiKey
) -> None:
    def elect() -> None:
        log.leader = 1 if len(scripted.sent(ApiKey.METADATA)) > 5 else -1

    log.leader = 2
    scripted.fail(ApiKey.METADATA, *[Fault(run=elect)] * 10)
    assert ASKED[api](partition)
    scripted.faults.clear()
    log.leader = -1
    with pytest.raises(BrokerError, match=r"^t-0: .* failed with LEADER_NOT_AVAILABLE .*; the partition has no leader"):
        ASKED[api](partition)


def test_a_topic_that_was_made_again_is_not_asked(scripted: ScriptedCluster, partition: LivePartition) -> None:
    def recreate(_: Any) -> None:
        scripted.ids["t"] = scripted.ids["t"].__class__(int=7)

    scripted.fail(ApiKey.FETCH, Fault(run=lambda: recreate(None), cut=0))
    with pytest.raises(
        BrokerError, match=r"t-0: fetch of a sample failed with UNKNOWN_TOPIC_ID .*; begin a new read"
    ) as raised:
        partition.fetched(0, 1, "fetch of a sample")
    assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_fetch_that_a_quota_holds_back_is_repeated(scripted: ScriptedCluster, partition: LivePartition) -> None:
    def hold_back(response: Any) -> None:
        response.throttle_time_ms, response.responses = 5, []

    scripted.fail(ApiKey.FETCH, *[Fault(change=hold_back)] * 2)
    assert len(partition.fetched(0, 1, "fetch of a sample")) > 61
    assert len(scripted.sent(ApiKey.FETCH)) == 3


def test_an_error_that_does_not_pass_is_raised_at_once(scripted: ScriptedCluster, partition: LivePartition) -> None:
    def deny(response: Any) -> None:
        response.responses[0].partitions[0].error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED

    scripted.fail(ApiKey.FETCH, Fault(change=deny))
    with pytest.raises(BrokerError, match="broker broker-1:9092, t-0: fetch of a sample failed with TOPIC_AUTHOR"):
        partition.fetched(0, 1, "fetch of a sample")
    assert len(scripted.sent(ApiKey.FETCH)) == 1
