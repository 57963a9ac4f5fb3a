"""`fail_on_data_loss`: records that are gone before they are read are an error, or a gap that is listed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from group_members import KEYS, joined, written
from live_reading import consumed, offsets, partition
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition
from scripted_groups import GroupCluster

import kbatch
from kbatch.live import BrokerError
from kbatch.protocol import ApiKey


def missing(consumer: kbatch.Consumer) -> list[tuple[str | None, int | None, int, int | None]]:
    return [tuple(each)[:4] for each in consumer.missing_offsets]


def taken(consumer: kbatch.Consumer, count: int) -> list[kbatch.RecordTable]:
    """Return tables of a read that follows until they have this number of records, and close it."""
    found: list[kbatch.RecordTable] = []
    with consumer:
        while sum(map(len, found)) < count:
            found.append(next(consumer))
    return found


def numbers(tables: list[kbatch.RecordTable]) -> list[int]:
    return [number for table in tables for number in table.records["offset"].tolist()]


def retained(made: ScriptedPartition, start: int) -> Callable[[], None]:
    def delete() -> None:
        made.start = start
        made.batches = [batch for batch in made.batches if kbatch.scan(batch)["base_offset"][0] >= start]

    return delete


def test_after_retention_the_read_goes_on_at_the_first_record_that_remains() -> None:
    made = partition(*[5] * 6)
    cluster = ScriptedCluster(orders=[made, partition(5)])
    cluster.fail(ApiKey.FETCH, Fault(), Fault(run=retained(made, 20)))
    consumer = consumed(cluster, fetch_max_bytes=1, fail_on_data_loss=False)
    with pytest.warns(RuntimeWarning, match=r"orders-0: offset 5, .*deleted by retention.*resumes at offset 20"):
        found = offsets(consumer)
    assert found == {("orders", 0): [*range(5), *range(20, 30)], ("orders", 1): list(range(5))}
    assert missing(consumer) == [("orders", 0, 5, 19)]
    assert "broker broker-1:9092, orders-0" in consumer.missing_offsets[0].reason
    assert consumer.metrics.missing_offsets == 15


def test_a_read_whose_last_records_were_deleted_ends() -> None:
    made = partition(*[5] * 6)
    cluster = ScriptedCluster(orders=[made])
    cluster.fail(ApiKey.FETCH, Fault(), Fault(run=retained(made, 25)))
    consumer = consumed(cluster, end=15, fetch_max_bytes=1, fail_on_data_loss=False)
    with pytest.warns(RuntimeWarning, match="deleted by retention"):
        assert offsets(consumer) == {("orders", 0): list(range(5))}
    assert missing(consumer) == [("orders", 0, 5, 14)]


def test_what_was_gathered_is_returned_before_the_gap() -> None:
    made = partition(*[5] * 6)
    cluster = ScriptedCluster(orders=[made])
    cluster.fail(ApiKey.FETCH, Fault(), Fault(), Fault(run=retained(made, 20)))
    consumer = consumed(cluster, fetch_max_bytes=1, fail_on_data_loss=False, flush_rows=1000, flush_interval="1m")
    with pytest.warns(RuntimeWarning, match="deleted by retention"):
        assert [len(table) for table in consumer] == [10, 10]


def test_after_a_truncation_the_read_goes_on_where_the_leaders_agree() -> None:
    made = partition(5)
    made.write([b"x"] * 5)
    cluster = ScriptedCluster(2, orders=[made])

    def elect() -> None:
        del made.batches[1:]
        made.leader, made.epoch = 2, 1
        for _ in range(3):
            made.write([b"new"] * 5)

    made.write([b"x"])
    consumer = consumed(cluster, end=None, start="earliest", fetch_max_bytes=1, fail_on_data_loss=False)
    cluster.fail(ApiKey.FETCH, Fault(), Fault(), Fault(run=elect))
    with pytest.warns(RuntimeWarning, match=r"from offset 5 to 10, exclusive, .*resumes at offset 5"):
        tables = taken(consumer, 25)
    assert numbers(tables) == [*range(10), *range(5, 20)]
    assert [value for table in tables[2:] for value in table.values()] == [b"new"] * 15
    assert missing(consumer) == [("orders", 0, 5, 9)]


def test_a_log_that_was_truncated_below_the_position_goes_on_at_its_end() -> None:
    made = partition(*[5] * 4)
    cluster = ScriptedCluster(orders=[made])

    def truncate() -> None:
        del made.batches[1:]
        made.write([b"new"] * 2)

    cluster.fail(ApiKey.FETCH, Fault(), Fault(), Fault(run=truncate))
    cluster.fail(ApiKey.FETCH, Fault(), Fault(run=lambda: made.write([b"newer"])))
    consumer = consumed(cluster, end=None, start="earliest", fetch_max_bytes=1, fail_on_data_loss=False)
    with pytest.warns(RuntimeWarning, match=r"offset 10, .*truncated to offset 7 .*resumes at offset 7"):
        assert numbers(taken(consumer, 11)) == [*range(10), 7]
    assert missing(consumer) == [("orders", 0, 7, 9)]


def test_a_read_with_an_end_ends_at_a_truncated_log_after_the_timeout() -> None:
    made = partition(*[5] * 4)
    cluster = ScriptedCluster(orders=[made])
    cluster.fail(ApiKey.FETCH, Fault(), Fault(run=lambda: made.batches.__delitem__(slice(1, None))))
    consumer = consumed(cluster, fetch_max_bytes=1, fail_on_data_loss=False, default_api_timeout_ms=300)
    with pytest.warns(RuntimeWarning, match=r"orders-0: no records from offset 5 on .* although the read ends at 20"):
        assert offsets(consumer) == {("orders", 0): list(range(5))}
    assert missing(consumer) == [("orders", 0, 5, 19)]


def make_again(cluster: ScriptedCluster, made: ScriptedPartition) -> Callable[[], None]:
    def change() -> None:
        cluster.ids["orders"] = uuid.uuid4()
        made.batches = []
        for number in range(3):
            made.write([b"%d" % (3 * number + i) for i in range(3)])

    return change


def test_a_topic_that_is_made_again_is_read_from_its_beginning() -> None:
    made = partition(*[5] * 4)
    cluster = ScriptedCluster(orders=[made])
    cluster.fail(ApiKey.FETCH, Fault(), Fault(), Fault(run=make_again(cluster, made)))
    consumer = consumed(cluster, end=None, start="earliest", fetch_max_bytes=1, fail_on_data_loss=False)
    with pytest.warns(RuntimeWarning, match=r"orders-0: the topic was deleted and recreated.*resumes at offset 0"):
        assert numbers(taken(consumer, 19)) == [*range(10), *range(9)]
    # How many records the old topic had is unknown.
    assert missing(consumer) == [("orders", 0, 10, None)]


def test_a_read_with_an_end_ends_with_the_records_of_the_topic_that_was_made_again() -> None:
    made = partition(*[5] * 4)
    cluster = ScriptedCluster(orders=[made])
    cluster.fail(ApiKey.FETCH, Fault(), Fault(), Fault(run=make_again(cluster, made)))
    consumer = consumed(cluster, fetch_max_bytes=1, fail_on_data_loss=False)
    with pytest.warns(RuntimeWarning, match="recreated"):
        assert offsets(consumer) == {("orders", 0): [*range(10), *range(9)]}
    assert missing(consumer) == [("orders", 0, 10, 19)]


@pytest.mark.parametrize("start", [20, 15])
def test_by_default_lost_records_are_an_error_that_states_what_to_do(start: int) -> None:
    made = partition(*[5] * 6)
    cluster = ScriptedCluster(orders=[made])
    cluster.fail(ApiKey.FETCH, Fault(), Fault(run=retained(made, start)))
    consumer = consumed(cluster, fetch_max_bytes=1)
    with pytest.raises(BrokerError) as raised:
        list(consumer)
    assert str(raised.value) == (
        "broker broker-1:9092, orders-0: offset 5, which follows the records read so far, is gone: the records before "
        f"offset {start} were deleted by retention during the read; begin a new read, or read the records that "
        "remain with fail_on_data_loss=False"
    )
    assert consumer.missing_offsets == []


def test_records_that_retention_deletes_before_the_first_one_was_read_are_not_missing() -> None:
    made = partition(*[5] * 4)
    cluster = ScriptedCluster(orders=[made])
    consumer = consumed(cluster, fail_on_data_loss=False)
    retained(made, 15)()
    assert offsets(consumer) == {("orders", 0): list(range(15, 20))}
    assert missing(consumer) == []


def test_a_topic_that_does_not_come_back_is_an_error_nevertheless() -> None:
    cluster = ScriptedCluster(orders=[partition(*[5] * 4)])

    def delete() -> None:
        del cluster.ids["orders"]

    def unknown(response: Any) -> None:
        for topic in response.topics:
            topic.error_code, topic.partitions = kbatch.ErrorCode.TOPIC_AUTHORIZATION_FAILED, []

    cluster.fail(ApiKey.FETCH, Fault(), Fault(run=delete))
    consumer = consumed(cluster, fetch_max_bytes=1, fail_on_data_loss=False)
    cluster.fail(ApiKey.METADATA, *[Fault(change=unknown)] * 50)
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        list(consumer)


@pytest.mark.parametrize(("committed", "start", "gap"), [(1, 2, (1, 1)), (9, 3, (3, 8))])
def test_a_committed_offset_that_is_gone_is_a_gap_too(committed: int, start: int, gap: tuple[int, int]) -> None:
    """Below the first record of the log, and above its end."""
    cluster = GroupCluster(orders=[written(2, 1)])
    made = cluster.topics["orders"][0]
    made.start, made.batches = 2, made.batches[1:]
    cluster.group().offsets[KEYS[0]] = (committed, -1)
    consumer = joined(cluster, fail_on_data_loss=False, end="latest")
    with consumer, pytest.warns(RuntimeWarning, match=rf"offset {committed} .*the read resumes at offset {start}"):
        found = numbers(list(consumer))
    assert found == list(range(start, 3))
    assert missing(consumer) == [("orders", 0, *gap)]


def test_a_group_commits_the_position_after_a_gap() -> None:
    made = written(*[5] * 6)
    cluster = GroupCluster(orders=[made])
    cluster.fail(ApiKey.FETCH, Fault(), Fault(run=retained(made, 25)))
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "fetch_max_bytes": 1, "fail_on_data_loss": False}
    with joined(cluster, **options, end=None, auto_commit=True) as consumer:
        next(consumer)
        with pytest.warns(RuntimeWarning, match="deleted by retention"):
            next(consumer)
        assert consumer.positions == {KEYS[0]: 30}
    assert cluster.committed() == {KEYS[0]: 30}
