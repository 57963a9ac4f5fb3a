"""Streams of a live cluster: offsets, limits, restarts, topics and logs that change; the calls are those of Spark."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition
from socket_broker import served
from stream_query import LiveQuery, Query

pytest.importorskip("pyspark")

from kbatch import ErrorCode
from kbatch.live import BrokerError
from kbatch.protocol import ApiKey
from kbatch.spark import live_stream
from kbatch.spark.source_api import HAS_LIMITS

IDS = [uuid.UUID(int=number) for number in (1, 2)]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedCluster:
    monkeypatch.setattr(live_stream, "_ABSENT_SECONDS", 0.05)
    cluster = ScriptedCluster(t=[ScriptedPartition()])
    cluster.ids["t"] = IDS[0]
    write(cluster, 6)
    return cluster


@pytest.fixture
def address(scripted: ScriptedCluster) -> Iterator[str]:
    with served(scripted) as address:
        yield address
    LiveQuery.stop_all()


def write(cluster: ScriptedCluster, count: int, partition: int = 0) -> None:
    """Write batches of three records."""
    for _ in range(count // 3):
        cluster.topics["t"][partition].write([b"a", b"b", b"c"], timestamps=[1, 2, 3])


def made_again(cluster: ScriptedCluster, count: int) -> None:
    cluster.topics["t"] = [ScriptedPartition()]
    cluster.ids["t"] = IDS[1]
    write(cluster, count)


def resumed(query: Query, message: str, caplog: pytest.LogCaptureFixture) -> list[int]:
    """Check that a micro-batch fails, and return what the query reads with failOnDataLoss=false, with a warning."""
    with pytest.raises(BrokerError, match=message):
        query.batch()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    with caplog.at_level(logging.WARNING, "kbatch"):
        found = query.drain()
    assert [each for each in caplog.records if each.levelno == logging.WARNING]
    return found


def test_offsets_have_the_next_offset_topic_id_and_leader_epoch_of_each_partition(
    scripted: ScriptedCluster, address: str
) -> None:
    scripted.topics["t"][0].epoch = 3
    query = LiveQuery(address)
    assert query.drain() == list(range(6))
    start = {"t": {"0": 0}, "$ids": {"t": {str(IDS[0]): [0]}}, "$epochs": {"t": {"0": 3}}}
    assert query.log == [{**start, "t": {"0": 6}, "$start": start}]


def test_micro_batches_have_each_record_once_across_restarts(scripted: ScriptedCluster, address: str) -> None:
    query = LiveQuery(address, maxOffsetsPerTrigger="4")
    for count in (9, 0, 3):
        write(scripted, count)
        query.plan()
        # The end of a micro-batch is in the checkpoint before its records are read.
        query.restart()
        query.drain()
    assert [offset for _, _, offset in query.rows] == list(range(18))
    assert [each["t"]["0"] for each in query.log][:3] == [4, 8, 12]


@pytest.mark.parametrize("more", [{}, {"$ids": {"t": {str(IDS[0]): [0]}}, "$checksums": {"t": {"0": 7}}}])
def test_a_checkpoint_with_other_offsets_is_continued(
    scripted: ScriptedCluster, address: str, more: dict[str, Any]
) -> None:
    """As Spark's Kafka source writes them, and a stream of the log directory of a broker."""
    query = LiveQuery(address)
    query.log, query.committed = [{"t": {"0": 4}, **more}], 1
    query.restart()
    assert query.drain() == [4, 5]
    assert query.log[-1]["$ids"] == {"t": {str(IDS[0]): [0]}}


def test_tasks_of_a_micro_batch_divide_a_partition(scripted: ScriptedCluster, address: str) -> None:
    query = LiveQuery(address, minPartitions="4")
    query.plan()
    tasks = query.reader.partitions(query.start(), query.log[-1])
    assert [(each.start, each.stop) for task in tasks for each in task.value] == [(0, 1), (1, 2), (2, 4), (4, 6)]
    assert query.drain() == list(range(6))


@pytest.mark.parametrize(
    ("starting", "first"),
    [
        ({"startingOffsets": "latest"}, 6),
        ({"startingOffsets": '{"t": {"0": 4}}'}, 4),
        ({"startingOffsets": '{"t": {"0": -1}}'}, 6),
        ({"startingTimestamp": "2"}, 1),
        ({"startingOffsetsByTimestamp": '{"t": {"0": 3}}'}, 2),
        ({"startingTimestamp": "99", "startingOffsetsByTimestampStrategy": "latest"}, 6),
    ],
)
def test_a_new_query_starts_where_the_options_state(
    scripted: ScriptedCluster, address: str, starting: dict[str, str], first: int
) -> None:
    query = LiveQuery(address)
    query.options.update(starting)
    query.restart()
    query.batch()
    write(scripted, 3)
    query.drain()
    assert [offset for _, _, offset in query.rows] == list(range(first, 9))


def test_a_start_that_does_not_exist_is_an_error(scripted: ScriptedCluster, address: str) -> None:
    query = LiveQuery(address, startingTimestamp="99")
    with pytest.raises(ValueError, match=r"^t-0: no record at or after timestamp 99; with startingOffsets"):
        query.plan()
    query.options = {"startingOffsets": '{"t": {"0": 40}}'}
    query.restart()
    with pytest.raises(BrokerError, match="t-0: startingOffsets names offset 40, but the first offset avail"):
        query.plan()
    query.options = {"startingOffsets": '{"t": {"1": 0}}'}
    query.restart()
    with pytest.raises(ValueError, match="must name exactly the partitions that are read; missing: t-0"):
        query.plan()


def test_minimum_offsets_are_waited_for_up_to_the_delay(scripted: ScriptedCluster, address: str) -> None:
    query = LiveQuery(address, minOffsetsPerTrigger="6", maxTriggerDelay="1h")
    assert query.batch() == list(range(6))
    write(scripted, 3)
    assert query.batch() is None
    write(scripted, 3)
    assert query.batch() == list(range(6, 12))


@pytest.mark.skipif(not HAS_LIMITS, reason="before PySpark 4.2")
def test_available_now_ends_where_the_partitions_ended_at_the_first_poll(
    scripted: ScriptedCluster, address: str
) -> None:
    query = LiveQuery(address, maxOffsetsPerTrigger="2")
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch() == [0, 1]
    write(scripted, 30)
    assert query.drain() == [2, 3, 4, 5]


def test_new_partitions_are_read_from_their_start(scripted: ScriptedCluster, address: str) -> None:
    query = LiveQuery(address)
    query.drain()
    scripted.topics["t"].append(ScriptedPartition())
    write(scripted, 3, 1)
    query.drain()
    assert query.rows[6:] == [("t", 1, 0), ("t", 1, 1), ("t", 1, 2)]


def test_a_pattern_waits_for_topics(scripted: ScriptedCluster, address: str) -> None:
    query = LiveQuery(address, subscribePattern="new-.*")
    assert query.batch() in (None, [])
    scripted.topics["new-1"], scripted.ids["new-1"] = scripted.topics["t"], IDS[1]
    query.drain()
    assert query.rows == [("new-1", 0, offset) for offset in range(6)]


def test_a_topic_that_does_not_exist_is_an_error_with_a_suggestion(address: str) -> None:
    query = LiveQuery(address, subscribe="tt")
    with pytest.raises(BrokerError, match="there is no topic 'tt', did you mean 't'"):
        query.plan()


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("count", [3, 6, 15])
def test_a_topic_that_was_created_again_is_data_loss_or_read_from_its_start(
    scripted: ScriptedCluster, address: str, caplog: pytest.LogCaptureFixture, count: int, restarts: bool
) -> None:
    """The new log ends before the position of the old one, at it, or beyond it."""
    query = LiveQuery(address)
    query.drain()
    made_again(scripted, count)
    if restarts:
        query.restart()
    message = (
        f"t-0: the last micro-batch ended before offset 6, but the topic was recreated: its id was {IDS[0]}, and "
        f"is now {IDS[1]}"
    )
    assert resumed(query, message, caplog) == list(range(count))
    write(scripted, 3)
    assert query.drain() == [count, count + 1, count + 2]


def test_a_topic_that_was_created_again_is_recognized_by_its_epoch_if_brokers_have_no_topic_ids(
    scripted: ScriptedCluster, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    scripted.ids["t"] = uuid.UUID(int=0)
    scripted.topics["t"][0].epoch = 4
    query = LiveQuery(address)
    query.drain()
    made_again(scripted, 9)
    scripted.ids["t"] = uuid.UUID(int=0)
    message = "the topic was recreated: its leader epoch was 4, and is now 0"
    assert resumed(query, message, caplog) == list(range(9))


def test_a_topic_that_is_created_again_after_a_micro_batch_was_planned_is_not_read_in_its_place(
    scripted: ScriptedCluster, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    query = LiveQuery(address)
    query.plan()
    made_again(scripted, 9)
    message = "t-0: offsets 0 to 5 were not read: after the read was planned, the topic was recreated"
    assert resumed(query, message, caplog) == list(range(9))


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("count", [0, 3, 12])
def test_records_that_a_truncation_replaced_are_data_loss_or_read_from_there(
    scripted: ScriptedCluster, address: str, caplog: pytest.LogCaptureFixture, count: int, restarts: bool
) -> None:
    """The log ends before the position, at it, or beyond it; the leader epoch alone shows the last two."""
    query = LiveQuery(address)
    query.drain()
    log = scripted.topics["t"][0]
    log.batches, log.epoch = log.batches[:1], 1
    write(scripted, count)
    if restarts:
        query.restart()
    if count == 3:
        # Nothing is new until another record arrives.
        assert query.batch() is None
        write(scripted, 3)
    message = (
        r"t-0: the last micro-batch ended before offset 6, but the records from offset 3 on are no longer in the log: "
        r"a leader without them was elected \(leader epoch 0 ends there\)"
    )
    assert resumed(query, message, caplog) == list(range(3, log.end))


def test_a_change_of_the_leader_loses_nothing(scripted: ScriptedCluster, address: str) -> None:
    query = LiveQuery(address)
    query.drain()
    log = scripted.topics["t"][0]
    log.epoch = 1
    write(scripted, 3)
    # The leader answers the first look-up of the epoch as a follower.
    scripted.fail(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        Fault(change=lambda made: setattr(made.topics[0].partitions[0], "error_code", 6)),
    )
    assert query.drain() == [6, 7, 8]
    assert query.log[-1]["$epochs"] == {"t": {"0": 1}}


def test_retention_beyond_the_position_is_data_loss_or_skipped(
    scripted: ScriptedCluster, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    query = LiveQuery(address)
    query.drain()
    write(scripted, 9)
    scripted.topics["t"][0].start = 9
    message = "t-0: offsets 6 to 8 were deleted before they were read; the first offset available is now 9"
    assert resumed(query, message, caplog) == list(range(9, 15))


def test_a_topic_that_was_deleted_is_data_loss_or_no_longer_read(
    scripted: ScriptedCluster, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    query = LiveQuery(address)
    query.drain()
    log, topic_id = scripted.topics.pop("t"), scripted.ids.pop("t")
    assert resumed(query, r"t-0: the topic-partition no longer exists, or .*; read up to \[6\]", caplog) == []
    scripted.topics["t"], scripted.ids["t"] = log, topic_id
    assert query.drain() == list(range(6))


def test_a_topic_recreated_with_fewer_partitions_is_data_loss_with_both_topic_ids(
    scripted: ScriptedCluster, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    scripted.topics["t"].append(ScriptedPartition())
    query = LiveQuery(address)
    query.drain()
    made_again(scripted, 3)
    message = (
        f"t-1: the topic-partition no longer exists, .*; t: the topic was recreated: its id was {IDS[0]}, .* {IDS[1]}"
    )
    assert resumed(query, message, caplog) == [0, 1, 2]


@pytest.mark.parametrize("options", [{}, {"subscribePattern": "t.*"}])
def test_a_topic_that_acls_hide_is_an_error_and_is_not_read_again_later(
    scripted: ScriptedCluster, address: str, options: dict[str, str]
) -> None:
    query = LiveQuery(address, failOnDataLoss="false", **options)
    query.drain()

    def hide(made: Any) -> None:
        """Answer as a broker does: a topic that is named is refused, and a list of all topics is without it."""
        for topic in made.topics:
            topic.error_code, topic.partitions = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []

    scripted.fail(ApiKey.METADATA, *[Fault(change=hide)] * 200)
    with pytest.raises(BrokerError, match=r"TOPIC_AUTHORIZATION_FAILED.*ACLs DESCRIBE and READ"):
        query.batch()
    scripted.faults[ApiKey.METADATA].clear()
    write(scripted, 3)
    assert query.drain() == [6, 7, 8]


def test_metadata_that_lack_the_topic_for_a_moment_are_no_loss(
    scripted: ScriptedCluster, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_stream, "_ABSENT_SECONDS", 5.0)
    query = LiveQuery(address)
    query.drain()
    write(scripted, 3)
    scripted.fail(ApiKey.METADATA, Fault(change=lambda made: made.topics.clear()))
    assert query.drain() == [6, 7, 8]


def test_a_stream_of_committed_records_ends_at_the_last_stable_offset(scripted: ScriptedCluster, address: str) -> None:
    query = LiveQuery(address, **{"kafka.isolation.level": "read_committed"})
    log = scripted.topics["t"][0]
    log.stable = 3
    assert query.drain() == [0, 1, 2]
    log.stable = None
    assert query.drain() == [3, 4, 5]


def test_a_poll_without_new_records_sends_three_requests(scripted: ScriptedCluster, address: str) -> None:
    query = LiveQuery(address)
    query.drain()
    scripted.requests.clear()
    assert query.batch() is None
    assert [message.schema.api_key for _, message in scripted.requests] == [
        ApiKey.METADATA, ApiKey.LIST_OFFSETS, ApiKey.LIST_OFFSETS,
    ]  # fmt: skip


def test_the_progress_has_lag_and_missing_offsets(scripted: ScriptedCluster, address: str) -> None:
    query = LiveQuery(address, maxOffsetsPerTrigger="2", failOnDataLoss="false")
    scripted.topics["t"][0].start = 3
    query.options["startingOffsets"] = '{"t": {"0": 3}}'
    query.restart()
    query.batch()
    reported = query.reader.reportLatestOffset()
    assert reported["t"] == {"0": 6}
    assert reported["$lag"] == {"t": {"0": 1}}
    assert not HAS_LIMITS or reported["$missing"] == {"t": {"0": 0}}
    assert "$bytes" not in reported


def test_neither_checkpoint_nor_repr_have_secrets(scripted: ScriptedCluster, address: str) -> None:
    scripted.password = b"swordfish"
    secured = {
        "kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" '
        'password="swordfish";',
    }  # fmt: skip
    query = LiveQuery(address, **secured)
    assert query.drain() == list(range(6))
    shown = json.dumps(query.log) + repr(query.reader) + repr(query.reader.settings) + repr(query.reader.options)
    assert "swordfish" not in shown
    query.options["kafka.sasl.jaas.config"] = secured["kafka.sasl.jaas.config"].replace("swordfish", "sardine")
    query.restart()
    with pytest.raises(Exception, match="Authentication failed") as raised:
        query.plan()
    assert "sardine" not in str(raised.value)
