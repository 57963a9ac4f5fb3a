"""Incremental fetch sessions (KIP-227): what requests have, and new sessions after errors."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from live_reading import consumed, offsets, partition
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition

import kbatch
from kbatch.live.fetch_sessions import FetchSession
from kbatch.live.fetch_state import FetchLimits, PartitionFetch
from kbatch.protocol import ApiKey, FetchResponse

LIMITS = FetchLimits(1000, None, 1, 10, 1.0, "", 300.0)


def parts(request: Any) -> list[int]:
    """Return the partitions of a request."""
    return [each.partition for topic in request.topics for each in topic.partitions]


def forgotten(request: Any) -> list[int]:
    return [number for topic in request.forgotten_topics_data for number in topic.partitions]


def fetches(cluster: ScriptedCluster) -> list[tuple[int, int, list[int], list[int]]]:
    """Return session id, epoch, partitions and forgotten partitions of each request."""
    return [(each.session_id, each.session_epoch, parts(each), forgotten(each)) for each in cluster.sent(ApiKey.FETCH)]


def test_after_a_full_request_a_request_has_only_changed_and_forgotten_partitions() -> None:
    cluster = ScriptedCluster(orders=[partition(5), partition(5, 5, 5), partition(5, 5)])
    found = offsets(consumed(cluster, fetch_max_bytes=1))
    assert found == {("orders", i): list(range(size)) for i, size in enumerate((5, 15, 10))}
    assert fetches(cluster) == [
        (0, 0, [0, 1, 2], []),
        (1, 1, [1, 2], [0]),
        (1, 2, [1], [2]),
    ]


def test_a_request_without_changes_has_no_partitions() -> None:
    made = partition(5)
    cluster = ScriptedCluster(orders=[made, partition(5)])
    with consumed(cluster, end=None) as consumer:
        for _ in range(2):
            made.write([b"%d" % made.end])
            next(consumer)
        sent = fetches(cluster)
    assert sent[0] == (0, 0, [0, 1], [])
    assert {tuple(each[2]) for each in sent[1:]} <= {(), (0,)}
    assert [each[1] for each in sent] == list(range(len(sent)))


def test_a_new_partition_joins_the_session() -> None:
    cluster = ScriptedCluster(orders=[partition(1)])
    with consumed(cluster, end=None, metadata_max_age_ms=50) as consumer:
        cluster.topics["orders"].append(partition(2))
        assert next(consumer).partition == 1
    assert (1, [1]) in [(each[0], each[2]) for each in fetches(cluster)]
    assert all(each[1] > 0 for each in fetches(cluster)[1:])


@pytest.mark.parametrize(
    "code",
    [
        kbatch.ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        kbatch.ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        kbatch.ErrorCode.INCONSISTENT_TOPIC_ID,
        kbatch.ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ],
)
def test_an_error_of_the_session_begins_another_one_without_a_pause(code: kbatch.ErrorCode) -> None:
    cluster = ScriptedCluster(orders=[partition(*[5] * 6), partition(*[5] * 6)])

    def refuse(response: Any) -> None:
        response.error_code, response.responses = code, []

    cluster.fail(ApiKey.FETCH, Fault(), Fault(), Fault(change=refuse))
    consumer = consumed(cluster, fetch_max_bytes=1, retry_backoff_ms=60_000)
    assert offsets(consumer) == {("orders", i): list(range(30)) for i in range(2)}
    # The next request names the session, which the broker then forgets.
    assert [each[:3] for each in fetches(cluster)][2:5] == [(1, 2, [0, 1]), (1, 0, [0, 1]), (2, 1, [0, 1])]
    assert consumer.metrics.errors == 1


def test_an_error_of_the_session_that_a_full_request_gets_is_retried_after_a_pause() -> None:
    cluster = ScriptedCluster(orders=[partition(5)])

    def refuse(response: Any) -> None:
        response.error_code, response.responses = 71, []

    cluster.fail(ApiKey.FETCH, *[Fault(change=refuse)] * 3)
    assert offsets(consumed(cluster)) == {("orders", 0): list(range(5))}
    cluster.fail(ApiKey.FETCH, *[Fault(change=refuse)] * 100_000)
    with pytest.raises(kbatch.live.BrokerError, match="INVALID_FETCH_SESSION_EPOCH"):
        list(consumed(cluster))


def test_brokers_before_version_7_get_full_requests_without_a_session() -> None:
    cluster = ScriptedCluster(orders=[partition(5, 5), partition(5, 5)])
    cluster.versions[ApiKey.FETCH] = (4, 6)
    assert offsets(consumed(cluster, fetch_max_bytes=1)) == {("orders", i): list(range(10)) for i in range(2)}
    assert [each[2] for each in fetches(cluster)] == [[0, 1], [0, 1]]
    assert not cluster.sessions


def test_a_broker_that_has_no_session_to_give_gets_full_requests() -> None:
    cluster = ScriptedCluster(orders=[partition(5, 5), partition(5, 5)])
    cluster.max_sessions = 0
    assert offsets(consumed(cluster, fetch_max_bytes=1)) == {("orders", i): list(range(10)) for i in range(2)}
    assert [each[:3] for each in fetches(cluster)] == [(0, 0, [0, 1])] * 2


@pytest.mark.parametrize("fault", [Fault(cut=10), Fault(hangs=True)], ids=["cut", "hangs"])
def test_no_session_outlasts_its_connection(fault: Fault) -> None:
    cluster = ScriptedCluster(orders=[partition(5, 5, 5), partition(5, 5, 5)])
    cluster.fail(ApiKey.FETCH, Fault(), fault)
    assert offsets(consumed(cluster, fetch_max_bytes=1)) == {("orders", i): list(range(15)) for i in range(2)}
    assert [each[:3] for each in fetches(cluster)] == [
        (0, 0, [0, 1]),
        (1, 1, [0, 1]),
        (1, 0, [0, 1]),
        (2, 1, [0, 1]),
    ]


@pytest.mark.parametrize("max_sessions", [0, 1000], ids=["full", "session"])
def test_partitions_take_turns_if_a_response_has_room_for_one(max_sessions: int) -> None:
    made = [partition(*[5] * 4) for _ in range(3)]
    cluster = ScriptedCluster(orders=made)
    cluster.max_sessions = max_sessions
    records, order = ScriptedPartition.records, []

    def with_room(self: ScriptedPartition, offset: int, size: int, end: int) -> bytes:
        found = records(self, offset, size, end) if size > 0 else b""
        if found:
            order.extend(i for i in range(3) if made[i] is self)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptedPartition, "records", with_room)
        assert offsets(consumed(cluster, fetch_max_bytes=1)) == {("orders", i): list(range(20)) for i in range(3)}
    assert order == [0, 1, 2] * 4


def test_a_batch_that_the_broker_cuts_off_is_requested_first_and_without_a_session() -> None:
    cluster = ScriptedCluster(orders=[partition(5, 5), partition(5, 5)])

    def cut(response: Any) -> None:
        parts = [part for topic in response.responses for part in topic.partitions]
        parts[1].records = parts[1].records[:30]

    cluster.fail(ApiKey.FETCH, Fault(change=cut))
    assert offsets(consumed(cluster, fetch_max_bytes=1)) == {("orders", i): list(range(10)) for i in range(2)}
    assert fetches(cluster)[1][:3] == (0, -1, [1, 0])
    # The session continues after it.
    assert fetches(cluster)[2][:2] == (1, 1)


def test_a_throttled_response_without_partitions_is_followed_by_another_request() -> None:
    cluster = ScriptedCluster(orders=[partition(5)])

    def throttle(response: Any) -> None:
        response.responses, response.session_id, response.throttle_time_ms = [], 0, 50

    cluster.fail(ApiKey.FETCH, Fault(change=throttle))
    consumer = consumed(cluster)
    assert offsets(consumer) == {("orders", 0): list(range(5))}
    assert [each[:2] for each in fetches(cluster)] == [(0, 0), (0, 0)]
    assert consumer.metrics.throttled_seconds == 0.05


def test_a_read_of_many_partitions_that_ends_fails_if_no_records_come() -> None:
    """Partitions without news are not in the responses of a session, and their time counts nevertheless."""
    cluster = ScriptedCluster(orders=[partition(5), partition(5)])
    consumer = consumed(cluster)
    cluster.topics["orders"][1].batches = [kbatch.encode([b"0"], base_offset=0)]
    with pytest.raises(kbatch.live.BrokerError, match=r"orders-1: no records from offset 1 on .* ends at 5") as raised:
        list(consumer)
    assert raised.value.broker == "broker-1:9092"


def test_the_epoch_of_a_session_begins_again_after_the_largest_number() -> None:
    session = FetchSession(LIMITS, "read_uncommitted")
    fetch = PartitionFetch("orders", 0, uuid.uuid4(), 0, 5)
    assert session.request([fetch], 13).session_epoch == 0
    session.accept(FetchResponse(session_id=7))
    session._epoch = 2**31 - 1
    assert session.request([fetch], 13).session_epoch == 2**31 - 1
    session.accept(FetchResponse(session_id=7))
    assert session.request([fetch], 13).session_epoch == 1


def test_a_session_that_gets_a_topic_without_an_id_begins_again_with_names() -> None:
    session = FetchSession(LIMITS, "read_uncommitted")
    first = PartitionFetch("orders", 0, uuid.uuid4(), 0, 5)
    session.request([first], 16)
    session.accept(FetchResponse(session_id=7))
    both = [first, PartitionFetch("items", 0, uuid.UUID(int=0), 0, 5)]
    assert session.highest_version(both) == 12
    request = session.request(both, 12)
    assert (request.session_id, request.session_epoch, parts(request)) == (7, 0, [0, 0])


def test_a_topic_that_was_made_again_replaces_the_one_before_in_the_session() -> None:
    session = FetchSession(LIMITS, "read_uncommitted")
    fetch = PartitionFetch("orders", 0, uuid.uuid4(), 0, 5)
    old = fetch.topic_id
    session.request([fetch], 16)
    session.accept(FetchResponse(session_id=7))
    fetch.topic_id = uuid.uuid4()
    request = session.request([fetch], 16)
    assert [topic.topic_id for topic in request.topics] == [fetch.topic_id]
    assert [topic.topic_id for topic in request.forgotten_topics_data] == [old]
