"""Groups over brokers in this process: commits, where partitions begin, and the protocol of a membership."""

from __future__ import annotations

import contextlib
import re
import threading
from typing import Any

import pytest
from group_members import KEYS, SETTINGS, Follower, Stopped, joined, no_thread_is_left, offsets, written
from scripted_broker import Fault, ScriptedPartition
from scripted_groups import GroupCluster

import kbatch
from kbatch.live import BrokerError
from kbatch.protocol import ApiKey

__all__ = ["no_thread_is_left"]

PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])
pytestmark = pytest.mark.usefixtures("no_thread_is_left")


# -- commits


@PROTOCOLS
def test_a_member_begins_at_the_committed_offsets_and_commits_those_after_the_last_batch(protocol: str) -> None:
    cluster = GroupCluster(orders=[written(3, 4), written(5)])
    cluster.group().offsets[KEYS[0]] = (2, 0)
    with joined(cluster, group_protocol=protocol, end="latest") as consumer:
        assert offsets(consumer) == {KEYS[0]: [2, 3, 4, 5, 6], KEYS[1]: [0, 1, 2, 3, 4]}
        assert consumer.assignment == KEYS
        assert consumer.ranges == {KEYS[0]: (2, 7), KEYS[1]: (0, 5)}
        assert cluster.group().commits == []
        consumer.commit()
        consumer.commit()
    assert sorted(cluster.group().commits) == [("orders", 0, 7, 0), ("orders", 1, 5, 0)]
    with joined(cluster, group_protocol=protocol, end="latest") as consumer:
        assert offsets(consumer) == {}
    assert len(cluster.group().left) == 2


def test_a_commit_includes_control_batches_and_batches_without_records_for_the_reader() -> None:
    made = ScriptedPartition(epoch=3)
    made.write([b"0"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    made.batches.append(kbatch.encode_marker("commit", producer_id=7, producer_epoch=0, offset=1, leader_epoch=3))
    with joined(GroupCluster(orders=[made]), auto_offset_reset="earliest", end=None) as consumer:
        assert len(next(consumer)) == 1
        assert consumer.positions == {KEYS[0]: 2}
        # Records of another key, and a marker that arrives alone.
    cluster = GroupCluster(orders=[made])
    with joined(cluster, key="other", end="latest", auto_commit=True) as consumer:
        assert list(consumer) == []
    assert cluster.group().commits[-1] == ("orders", 0, 2, 3)


def test_a_table_is_committed_when_the_next_one_is_requested() -> None:
    cluster = GroupCluster(orders=[written(1)])
    with joined(cluster, auto_commit=True, end=None, auto_offset_reset="earliest") as consumer:
        next(consumer)
        assert cluster.committed() == {KEYS[0]: 0}
        cluster.topics["orders"][0].write([b"1"])
        next(consumer)
        assert cluster.committed() == {KEYS[0]: 1}
    assert cluster.committed() == {KEYS[0]: 2}


def test_nothing_is_committed_after_an_exception_or_by_close() -> None:
    cluster = GroupCluster(orders=[written(1)])
    options: dict[str, Any] = {"auto_commit": True, "auto_offset_reset": "earliest", "end": None}
    with contextlib.suppress(ZeroDivisionError), joined(cluster, **options) as consumer:
        next(consumer)
        raise ZeroDivisionError
    consumer = joined(cluster, **options)
    next(consumer)
    consumer.close()
    assert cluster.committed() == {KEYS[0]: 0}
    with pytest.raises(ValueError, match="the consumer is closed"):
        consumer.commit()


def test_a_conversion_is_committed_by_the_caller_or_at_the_end_of_the_block() -> None:
    pytest.importorskip("pyarrow")
    cluster = GroupCluster(orders=[written(3)])
    with joined(cluster, end="latest", columns=["offset"]) as consumer:
        assert consumer.to_arrow().num_rows == 3
        consumer.commit()
    assert cluster.committed() == {KEYS[0]: 3}
    cluster.topics["orders"][0].write([b"3"])
    with joined(cluster, end="latest", columns=["offset"], auto_commit=True) as consumer:
        assert consumer.to_arrow().to_pydict() == {"offset": [3]}
        assert cluster.committed() == {KEYS[0]: 3}
    assert cluster.committed() == {KEYS[0]: 4}


def test_a_part_of_a_split_response_is_committed_by_whole_batches() -> None:
    made = ScriptedPartition()
    for _ in range(40):
        made.write([b"x" * 10_000] * 10)
    cluster = GroupCluster(orders=[made])
    with joined(cluster, end="latest", max_bytes=1 << 20, columns=["value"]) as consumer:
        count = len(next(consumer))
        assert 0 < count < 400
        consumer.commit()
        assert cluster.committed() == {KEYS[0]: count}
        rest = sum(map(len, consumer))
        consumer.commit()
    assert (count + rest, cluster.committed()) == (400, {KEYS[0]: 400})


# -- where partitions begin


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"end": "latest"}, [0, 1, 2]),
        ({"end": None}, [3]),
        ({"end": None, "auto_offset_reset": "earliest"}, [0, 1, 2]),
        ({"end": None, "enable_auto_commit": False, "start": "committed", "auto_offset_reset": "smallest"}, [0, 1, 2]),
    ],
)
def test_partitions_without_a_committed_offset_begin_where_auto_offset_reset_states(
    options: dict[str, Any], found: list[int]
) -> None:
    cluster = GroupCluster(orders=[written(3)])
    with joined(cluster, **options) as consumer:
        if found == [3]:
            writer = threading.Timer(0.3, lambda: cluster.topics["orders"][0].write([b"3"]))
            writer.start()
        assert next(consumer).records["offset"].tolist() == found


def test_without_a_policy_a_missing_or_lost_committed_offset_is_an_error() -> None:
    cluster = GroupCluster(orders=[written(3)])
    with (
        pytest.raises(BrokerError, match=r"'etl' has no committed offset of orders-0, and auto.offset.reset is none"),
        joined(cluster, auto_offset_reset="none") as consumer,
    ):
        next(consumer)
    cluster.group().offsets[KEYS[0]] = (9, -1)
    with pytest.raises(BrokerError, match=r"committed offset 9 .* the log ends at 3"), joined(cluster) as consumer:
        next(consumer)
    cluster.topics["orders"][0].start = 2
    cluster.group().offsets[KEYS[0]] = (1, -1)
    with pytest.raises(BrokerError, match=r"offset 1 .* deleted by retention; set auto"), joined(cluster) as consumer:
        next(consumer)
    with (
        joined(cluster, auto_offset_reset="earliest") as consumer,
        pytest.warns(RuntimeWarning, match=r"auto.offset.reset=earliest"),
    ):
        assert offsets([next(consumer)]) == {KEYS[0]: [2]}


def test_a_truncation_before_the_committed_offset_is_found_by_its_leader_epoch() -> None:
    """KIP-320: the records before the committed offset were of epoch 1, which has ended earlier."""
    made = written(2)
    made.epoch = 2
    made.write([b"2", b"3"])
    cluster = GroupCluster(orders=[made])
    cluster.group().offsets[KEYS[0]] = (4, 1)
    with pytest.raises(BrokerError, match="no longer in the log"), joined(cluster, end=None) as consumer:
        next(consumer)


def test_committed_offsets_of_an_open_transaction_are_waited_for() -> None:
    """KIP-447: the broker refuses an offset that a transaction may still replace."""
    cluster = GroupCluster(orders=[written(3, 4)])
    cluster.group().offsets[KEYS[0]] = (3, 0)

    def is_unstable(response: Any) -> None:
        for topic in response.groups[0].topics:
            for part in topic.partitions:
                part.error_code = kbatch.ErrorCode.UNSTABLE_OFFSET_COMMIT

    cluster.fail(ApiKey.OFFSET_FETCH, Fault(change=is_unstable), Fault(change=is_unstable))
    with joined(cluster, end="latest") as consumer:
        assert offsets(consumer) == {KEYS[0]: [3, 4, 5, 6]}
    requests = cluster.sent(ApiKey.OFFSET_FETCH)
    assert len(requests) == 3
    assert all(request.require_stable for request in requests)


# -- which protocol


def sessions(cluster: GroupCluster) -> set[ApiKey]:
    return {
        ApiKey(message.schema.api_key)
        for _, message in cluster.requests
        if message.schema.api_key in (ApiKey.JOIN_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT)
    }


def test_the_protocol_is_the_consumer_protocol_if_the_broker_has_it() -> None:
    for has_consumer_protocol, key in ((True, ApiKey.CONSUMER_GROUP_HEARTBEAT), (False, ApiKey.JOIN_GROUP)):
        cluster = GroupCluster(has_consumer_protocol=has_consumer_protocol, orders=[written(1)])
        with joined(cluster) as consumer:
            assert offsets(consumer) == {KEYS[0]: [0]}
        assert sessions(cluster) == {key}
    with pytest.raises(BrokerError, match=r"does not support group.protocol=consumer"):
        joined(cluster, group_protocol="consumer")


@pytest.mark.parametrize("code", [35, 69])
def test_the_classic_protocol_serves_where_the_new_one_is_turned_off_or_the_group_is_classic(code: int) -> None:
    cluster = GroupCluster(orders=[written(1)])

    def refuse(response: Any) -> None:
        response.error_code = code
        cluster.group().members.clear()

    cluster.fail(ApiKey.CONSUMER_GROUP_HEARTBEAT, Fault(change=refuse))
    with joined(cluster) as consumer:
        assert offsets(consumer) == {KEYS[0]: [0]}
    assert ApiKey.JOIN_GROUP in sessions(cluster)
    cluster.fail(ApiKey.CONSUMER_GROUP_HEARTBEAT, Fault(change=refuse))
    with (
        pytest.raises(BrokerError, match=r"set group.protocol=classic"),
        joined(cluster, group_protocol="consumer") as consumer,
    ):
        next(consumer)


def test_with_members_that_have_only_range_the_default_assignors_are_the_eager_ones() -> None:
    cluster = GroupCluster(has_consumer_protocol=False, orders=[written(4), written(4)])
    first = Follower(cluster, partition_assignment_strategy="range")
    cluster.wait(lambda: len(first.found) == 8)
    second = Follower(cluster)
    cluster.wait(lambda: second.consumer.assignment == [KEYS[1]] and first.consumer.assignment == [KEYS[0]])
    first.stop()
    second.stop()
    with Stopped(Follower(cluster, partition_assignment_strategy="range")):
        cluster.wait(lambda: cluster.group().state == "stable")
        refused = pytest.raises(BrokerError, match=r"strategy=cooperative-sticky; choose one that all members support")
        with refused, joined(cluster, partition_assignment_strategy="CooperativeStickyAssignor") as consumer:
            next(consumer)


# -- assigned partitions, and reads without a group


def test_assigned_partitions_are_committed_without_a_membership() -> None:
    cluster = GroupCluster(orders=[written(3), written(3)])
    cluster.group().offsets[KEYS[1]] = (1, 0)
    with joined(cluster, partitions=[1], auto_commit=True) as consumer:
        assert consumer.ranges == {KEYS[1]: (1, 3)}
        assert offsets(consumer) == {KEYS[1]: [1, 2]}
    assert cluster.committed() == {KEYS[1]: 3}
    assert sessions(cluster) == set()
    with joined(cluster, partitions=[0], start=2, end=3) as consumer:
        assert offsets(consumer) == {KEYS[0]: [2]}
        consumer.commit()
    assert cluster.committed() == {KEYS[0]: 3, KEYS[1]: 3}


def test_assigned_partitions_cannot_commit_for_a_group_with_members() -> None:
    cluster = GroupCluster(orders=[written(3)])
    with Stopped(Follower(cluster)) as member:
        cluster.wait(lambda: member.found)
        with joined(cluster, partitions=[0], start="earliest") as consumer:
            next(consumer)
            cluster.group().offsets.clear()
            with pytest.raises(BrokerError, match=r"has members, so that a read with partitions= can't commit for it"):
                consumer.commit()


def test_the_lag_is_known_without_a_group() -> None:
    made = written(3, 4)
    cluster = GroupCluster(orders=[made])
    options: dict[str, Any] = {**SETTINGS, "transport": cluster.connect, "start": "earliest"}
    with kbatch.consume("orders", **options, fetch_max_bytes=1) as consumer:
        assert consumer.lag == {}
        next(consumer)
        assert (consumer.lag, consumer.positions) == ({KEYS[0]: 4}, {KEYS[0]: 3})
        next(consumer)
        assert consumer.lag == {KEYS[0]: 0}
        with pytest.raises(ValueError, match=re.escape("commit() needs a group: consume(..., group=NAME)")):
            consumer.commit()
    made.stable = 5
    with kbatch.consume("orders", **options, isolation="read_committed", end=1) as consumer:
        next(consumer)
        assert consumer.lag == {KEYS[0]: 4}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_id": "b"}, "group is 'etl', and group.id is 'b'; give one of them"),
        ({"start": "earliest"}, "start and group exclude each other: the partitions of a member begin"),
        ({"last": 3}, "last and group exclude each other"),
        ({"end": {0: 3}}, "with group, end must be the same for all partitions"),
        ({"end": "end-1h"}, "with group, end must be the same for all partitions"),
        ({"group": None, "start": "committed"}, 'start="committed" needs group='),
        ({"group": None, "auto_commit": True}, "auto_commit needs group="),
        ({"group": None, "auto_offset_reset": "earliest"}, "auto.offset.reset needs a group"),
        ({"group": ""}, "group must not be empty"),
        ({"partitions": [0], "start": "committed", "last": 3}, 'start="committed" and last exclude each other'),
        ({"session_timeout_ms": 20}, "heartbeat.interval.ms (20) must be less than session.timeout.ms (20)"),
        ({"partition_assignment_strategy": "stiky"}, "must be some of range, roundrobin, cooperative-sticky"),
        ({"group_protocol": "new"}, "group.protocol must be one of classic, consumer"),
        ({"group_protocol": "classic", "group_remote_assignor": "range"}, "belongs to group.protocol=consumer"),
        ({"group_protocol": "consumer", "partition_assignment_strategy": "range"}, "belongs to group.protocol=classic"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        joined(GroupCluster(orders=[written(1)]), **options)


def test_the_settings_of_a_group_are_those_of_kafka() -> None:
    cluster = GroupCluster(orders=[written(2)])
    config = {
        "group.id": "etl",
        "enable.auto.commit": "true",
        "auto.offset.reset": "earliest",
        "group.protocol": "consumer",
        "group.remote.assignor": "uniform",
        "max.poll.interval.ms": "9000",
    }
    with joined(cluster, group=None, config=config) as consumer:
        assert offsets(consumer) == {KEYS[0]: [0, 1]}
    assert cluster.committed() == {KEYS[0]: 2}
    sent = cluster.sent(ApiKey.CONSUMER_GROUP_HEARTBEAT)[0]
    assert (sent.server_assignor, sent.rebalance_timeout_ms) == ("uniform", 9000)
