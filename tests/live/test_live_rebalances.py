"""Members of groups over brokers in this process: rebalances of both protocols, and the end of a membership."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
from group_members import KEYS, Follower, joined, no_thread_is_left, written
from scripted_broker import Fault
from scripted_groups import GroupCluster

import kbatch
from kbatch.live import BrokerError
from kbatch.protocol import ApiKey

__all__ = ["no_thread_is_left"]

PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])
pytestmark = pytest.mark.usefixtures("no_thread_is_left")


# -- rebalances

REBALANCED = pytest.mark.parametrize(
    "options",
    [
        {"group_protocol": "consumer"},
        {"group_protocol": "classic"},
        {"partition_assignment_strategy": "range"},
        {"partition_assignment_strategy": ["roundrobin", "cooperative-sticky"]},
    ],
    ids=["new", "cooperative", "eager", "both"],
)


def test_an_assignment_in_a_response_that_is_lost_is_requested_again() -> None:
    """KIP-848: the broker repeats an assignment only in the answer to a heartbeat with all fields."""
    cluster = GroupCluster(orders=[written(2)])
    member = Follower(cluster, group_protocol="consumer")
    cluster.wait(lambda: len(member.found) == 2)
    with cluster.lock:
        cluster.topics["orders"].append(written(3))
        cluster.fail(ApiKey.CONSUMER_GROUP_HEARTBEAT, Fault(cut=0))
    cluster.wait(lambda: len(member.consumer.assignment) == 2)
    cluster.wait(lambda: len(member.found) == 5)
    assert len(set(member.found)) == 5
    member.stop()


@REBALANCED
def test_members_that_join_and_leave_lose_and_repeat_nothing(options: dict[str, Any]) -> None:
    """KIP-429, KIP-848: what a member has processed of a revoked partition is committed before another one reads it."""
    cluster = GroupCluster(orders=[written() for _ in range(4)])
    stops = threading.Event()

    def write() -> None:
        while not stops.wait(0.005):
            with cluster.lock:
                for each in cluster.topics["orders"]:
                    each.write([b"x"])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        members = [Follower(cluster, **options)]
        cluster.wait(lambda: members[0].found)
        members.append(Follower(cluster, **options))
        cluster.wait(lambda: len(members[1].consumer.assignment) == 2 and members[1].found)
        members.append(Follower(cluster, **options))
        cluster.wait(lambda: members[2].consumer.assignment and members[2].found)
        keys = [("orders", number) for number in range(4)]
        cluster.wait(lambda: sorted(key for each in members for key in each.consumer.assignment) == keys)
        members[0].stop()
        cluster.wait(lambda: sum(len(each.consumer.assignment) for each in members[1:]) == 4)
    finally:
        stops.set()
        writer.join()
    ends = {("orders", i): each.end for i, each in enumerate(cluster.topics["orders"])}
    cluster.wait(lambda: cluster.committed() == ends)
    for each in members[1:]:
        each.stop()
    found = Counter(each for member in members for each in member.found)
    assert set(found) == {(*key, offset) for key, end in ends.items() for offset in range(end)}
    # The last table of the member that another thread has closed was not committed.
    assert {each for each, count in found.items() if count > 1} <= set(members[0].last)


@PROTOCOLS
def test_partitions_that_stay_are_not_fetched_again(protocol: str) -> None:
    cluster = GroupCluster(orders=[written(2), written(2)])
    first = Follower(cluster, group_protocol=protocol)
    cluster.wait(lambda: len(first.found) == 4)
    second = Follower(cluster, group_protocol=protocol)
    cluster.wait(lambda: len(first.consumer.assignment) == 1 and len(second.consumer.assignment) == 1)
    first.stop()
    second.stop()
    fetched = [
        (part.partition, part.fetch_offset)
        for message in cluster.sent(ApiKey.FETCH)
        for topic in message.topics
        for part in topic.partitions
    ]
    assert fetched.count((0, 0)) == fetched.count((1, 0)) == 1
    assert second.found == []


@PROTOCOLS
def test_new_partitions_are_assigned_and_read_from_their_beginning(protocol: str) -> None:
    cluster = GroupCluster(orders=[written(1)])
    with joined(cluster, "or*", end=None, group_protocol=protocol, metadata_max_age_ms=20) as consumer:
        threading.Timer(0.1, lambda: cluster.topics["orders"].append(written(2))).start()
        if protocol == "consumer":
            threading.Timer(0.2, lambda: setattr(cluster.group(), "generation", 9)).start()
        table = next(consumer)
        assert (table.topic, table.partition, len(table)) == ("orders", 1, 2)
        cluster.topics["orphans"] = [written(3)]
        cluster.ids["orphans"] = kbatch.protocol.FetchRequest.FetchTopic().topic_id.__class__(int=7)
        assert next(consumer).topic == "orphans"


# -- the end of a membership


@PROTOCOLS
def test_a_commit_after_the_loss_of_the_membership_is_refused_and_the_records_are_read_again(protocol: str) -> None:
    cluster = GroupCluster(orders=[written(3)])
    with joined(cluster, group_protocol=protocol, end=None, auto_offset_reset="earliest") as consumer:
        assert len(next(consumer)) == 3
        with cluster.lock:
            for name in list(cluster.group().members):
                cluster.group().remove(name)
        with pytest.raises(
            BrokerError, match=r"the membership has ended, .* max.poll.interval.ms \(300000\)"
        ) as raised:
            consumer.commit()
        assert raised.value.code == kbatch.ErrorCode.UNKNOWN_MEMBER_ID
        assert cluster.committed() == {}
        assert len(next(consumer)) == 3
        consumer.commit()
    assert cluster.committed() == {KEYS[0]: 3}


@PROTOCOLS
def test_a_reader_that_requests_nothing_for_too_long_leaves_the_group_and_joins_again(protocol: str) -> None:
    cluster = GroupCluster(orders=[written(3)])
    options = {"group_protocol": protocol, "end": None, "auto_offset_reset": "earliest", "max_poll_interval_ms": 100}
    with joined(cluster, auto_commit=True, **options) as consumer:
        assert len(next(consumer)) == 3
        cluster.wait(lambda: cluster.group().left)
        with pytest.warns(RuntimeWarning, match=r"exceeds max.poll.interval.ms \(100\)"):
            assert len(next(consumer)) == 3
    assert cluster.committed() == {KEYS[0]: 3}


def test_a_commit_with_the_generation_before_a_rebalance_is_repeated_with_the_new_one() -> None:
    cluster = GroupCluster(has_consumer_protocol=False, orders=[written(3)])
    with joined(cluster, end=None, auto_offset_reset="earliest", heartbeat_interval_ms=10_000) as consumer:
        assert len(next(consumer)) == 3
        with cluster.lock:
            cluster.group().generation += 1
            cluster.group().state = "preparing"
        # The generation is found to be old, so that the partitions are lost.
        with pytest.raises(BrokerError, match="ILLEGAL_GENERATION"):
            consumer.commit()
        assert len(next(consumer)) == 3
        cluster.fail(ApiKey.OFFSET_COMMIT, Fault(change=in_rebalance))
        with cluster.lock:
            cluster.group().state = "preparing"
        consumer.commit()
    codes = [each.generation_id_or_member_epoch for each in cluster.sent(ApiKey.OFFSET_COMMIT)]
    assert len(set(codes)) == 3
    assert cluster.committed() == {KEYS[0]: 3}


def in_rebalance(response: Any) -> None:
    for topic in response.topics:
        for part in topic.partitions:
            part.error_code = 27


@PROTOCOLS
def test_a_static_member_does_not_leave(protocol: str) -> None:
    """KIP-345: its partitions stay with it until its session ends; with KIP-848 it states that it will return."""
    cluster = GroupCluster(orders=[written(1)])
    for _ in range(2):
        with joined(cluster, group_protocol=protocol, group_instance_id="a") as consumer:
            list(consumer)
    if protocol == "classic":
        assert cluster.group().left == []
        assert {each.group_instance_id for each in cluster.sent(ApiKey.JOIN_GROUP)} == {"a"}
        assert {each.group_instance_id for each in cluster.sent(ApiKey.SYNC_GROUP)} == {"a"}
    else:
        assert [each.member_epoch for each in cluster.sent(ApiKey.CONSUMER_GROUP_HEARTBEAT)].count(-2) == 2


@PROTOCOLS
def test_a_static_member_that_was_replaced_gets_a_clear_error(protocol: str) -> None:
    cluster = GroupCluster(orders=[written(1)])

    def fence(response: Any) -> None:
        response.error_code = 82

    key = ApiKey.HEARTBEAT if protocol == "classic" else ApiKey.CONSUMER_GROUP_HEARTBEAT
    with joined(cluster, group_protocol=protocol, group_instance_id="a", end=None) as consumer:
        threading.Timer(0.1, lambda: cluster.fail(key, Fault(change=fence))).start()
        with pytest.raises(BrokerError, match=r"give each member its own"):
            next(consumer)


def test_a_group_that_may_not_be_used_is_an_error_at_once() -> None:
    cluster = GroupCluster(orders=[written(1)])

    def refuse(response: Any) -> None:
        response.coordinators[0].error_code = 30

    cluster.fail(ApiKey.FIND_COORDINATOR, Fault(change=refuse))
    with pytest.raises(
        BrokerError, match=r"group 'etl' failed with GROUP_AUTHORIZATION_FAILED .* ACL READ on this group"
    ):
        joined(cluster)


@PROTOCOLS
def test_another_coordinator_and_broken_connections_are_survived(protocol: str) -> None:
    cluster = GroupCluster(2, orders=[written(1)])
    key = ApiKey.HEARTBEAT if protocol == "classic" else ApiKey.CONSUMER_GROUP_HEARTBEAT
    with joined(cluster, group_protocol=protocol, auto_offset_reset="earliest", end=None) as consumer:
        next(consumer)
        cluster.coordinator = 2
        cluster.fail(key, Fault(cut=3), Fault(cut=0))
        cluster.fail(ApiKey.OFFSET_COMMIT, Fault(cut=3))
        consumer.commit()
        cluster.wait(lambda: any(m.schema.api_key == key and b == 2 for b, m in list(cluster.requests)))
        cluster.topics["orders"][0].write([b"1"])
        assert next(consumer).values() == [b"1"]
    assert cluster.committed() == {KEYS[0]: 1}


@PROTOCOLS
def test_closing_a_member_that_waits_takes_less_than_a_second(protocol: str) -> None:
    cluster = GroupCluster(orders=[written(1)])
    consumer = joined(cluster, group_protocol=protocol, end=None)
    other = joined(cluster, group_protocol=protocol, end=None)
    # The second member is not read, so that the first one waits in a rebalance or for records.
    closing = threading.Timer(0.3, consumer.close)
    closing.start()
    assert list(consumer) == []
    began = time.monotonic()
    closing.join()
    other.close()
    assert time.monotonic() - began < 1.5
    cluster.wait(lambda: not cluster.group().members)
