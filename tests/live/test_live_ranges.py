"""Ranges of offsets of a live cluster as tasks: their division, their records, and changes since they were planned."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition
from socket_broker import served

from kbatch.live import BrokerError, ClientSettings, Cluster, live_read
from kbatch.live.live_ranges import LiveRange
from kbatch.log import MissingOffsets
from kbatch.plan import live_tasks
from kbatch.plan.cluster_tasks import ClusterRange
from kbatch.plan.live_tasks import divide_ranges, live_task_tables, plan_live_ranges, times_as_offsets
from kbatch.plan.read_options import Bound, ReadOptions
from kbatch.protocol import ApiKey

TOPIC = uuid.uuid5(uuid.NAMESPACE_DNS, "t")


@pytest.fixture
def scripted() -> ScriptedCluster:
    """A topic with ten batches of ten records, from offset 0, and a partition with one batch."""
    log = ScriptedPartition()
    for start in range(0, 100, 10):
        log.write([b"%d" % number for number in range(start, start + 10)], timestamps=range(start, start + 10))
    other = ScriptedPartition()
    other.write([b"a", b"b"], timestamps=[5, 6])
    return ScriptedCluster(t=[log, other])


@pytest.fixture
def address(scripted: ScriptedCluster) -> Iterator[str]:
    with served(scripted) as address:
        yield address


def settings(address: str) -> ClientSettings:
    return ClientSettings.of(bootstrap_servers=address, retry_backoff_ms=1, default_api_timeout_ms=2000)


def planned(address: str, **options: Any) -> list[LiveRange]:
    with Cluster(settings(address)) as cluster:
        return [each for _, each in plan_live_ranges(cluster, ReadOptions(**options))]


def offsets(
    address: str, task: Sequence[LiveRange], missing: list[MissingOffsets] | None = None, **options: Any
) -> list[tuple[int, int]]:
    ranges = tuple(ClusterRange.of(each, 0.0) for each in task)
    pairs = live_task_tables(settings(address), ranges, ReadOptions(**options), ("offset",), missing)
    return [(each.partition, offset) for each, table in pairs for offset in table.records["offset"].tolist()]


def spans(found: list[LiveRange]) -> list[tuple[int, int, int]]:
    return [(each.partition, each.start, each.stop) for each in found]


def one_range(start: int, stop: int, partition: int = 0) -> LiveRange:
    return LiveRange("t", partition, TOPIC, 0, start, stop)


# -- plans


def test_a_plan_has_the_offsets_of_each_partition_with_topic_id_and_leader_epoch(address: str) -> None:
    found = planned(address, topics=("t",))
    assert found == [LiveRange("t", 0, TOPIC, 0, 0, 100, True), LiveRange("t", 1, TOPIC, 0, 0, 2, True)]
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("starting", "ending", "expected"),
    [
        (Bound(offsets={"t": {0: 15, 1: -2}}), Bound(), [(0, 15, 100), (1, 0, 2)]),
        (Bound(offsets={"t": {0: 15, 1: 1}}), Bound(offsets={"t": {0: 25, 1: -1}}), [(0, 15, 25), (1, 1, 2)]),
        (Bound(timestamp=6), Bound(timestamp=20), [(0, 6, 20), (1, 1, 2)]),
        (Bound(timestamp=-1), Bound(), [(0, 0, 100), (1, 0, 2)]),
        (Bound(), Bound(timestamps={"t": {0: 50, 1: 0}}), [(0, 0, 50)]),
    ],
)
def test_bounds_are_offsets_and_times(
    address: str, starting: Bound, ending: Bound, expected: list[tuple[int, int, int]]
) -> None:
    assert spans(planned(address, topics=("t",), starting=starting, ending=ending)) == expected


def test_a_partition_without_a_record_at_the_starting_time_is_an_error_or_skipped(address: str) -> None:
    starting = Bound(timestamp=50)
    with pytest.raises(ValueError, match=r"^t-1: no record at or after timestamp 50; with startingOffsets"):
        planned(address, topics=("t",), starting=starting)
    found = planned(address, topics=("t",), starting=starting, latest_if_no_timestamp=True)
    assert spans(found) == [(0, 50, 100)]


@pytest.mark.parametrize(
    ("starting", "ending"),
    [
        (Bound(offsets={"t": {0: 40}}), Bound(offsets={"t": {0: 20}})),
        (Bound(timestamp=40), Bound(timestamp=20)),
        (Bound(timestamps={"t": {0: 40}}), Bound(timestamps={"t": {0: 20}})),
        (Bound(timestamp=40), Bound(offsets={"t": {0: 20}})),
        (Bound(offsets={"t": {0: 40}}), Bound(timestamp=20)),
    ],
)
def test_a_start_after_the_end_is_an_error(address: str, starting: Bound, ending: Bound) -> None:
    with pytest.raises(ValueError, match=r"^t-0: the starting offset 40 is greater than the ending offset 20$"):
        planned(address, assign={"t": [0]}, starting=starting, ending=ending, fail_on_data_loss=False)


@pytest.mark.parametrize("ending", [Bound(), Bound(timestamp=2000)])
def test_a_record_at_the_starting_time_that_is_written_after_the_plan_is_not_read(
    scripted: ScriptedCluster, address: str, monkeypatch: pytest.MonkeyPatch, ending: Bound
) -> None:
    log = scripted.topics["t"][0]

    def written(*args: Any) -> Any:
        monkeypatch.undo()
        log.write([b"new"], timestamps=[2000])
        return times_as_offsets(*args)

    monkeypatch.setattr(live_tasks, "times_as_offsets", written)
    found = planned(
        address, assign={"t": [0]}, starting=Bound(timestamp=1000), ending=ending, latest_if_no_timestamp=True
    )
    assert found == []
    assert log.end == 101


@pytest.mark.parametrize(
    ("starting", "ending", "message", "rest"),
    [
        ({0: 3}, {0: -1}, "t-0: the read asks for offset 3, but the first one available is 10 and the last one 99", 10),
        ({0: 101}, {0: -1}, "t-0: the read asks for offset 101, but the first one available is 10", None),
        ({0: 20}, {0: 200}, "t-0: the read asks for offsets below 200, but the first one available is 10", 20),
    ],
)
def test_named_offsets_that_do_not_exist_are_an_error_or_left_out(
    scripted: ScriptedCluster,
    address: str,
    starting: dict[int, int],
    ending: dict[int, int],
    message: str,
    rest: int | None,
) -> None:
    scripted.topics["t"][0].start = 10
    options: dict[str, Any] = {
        "assign": {"t": [0]}, "starting": Bound(offsets={"t": starting}), "ending": Bound(offsets={"t": ending}),
    }  # fmt: skip
    with pytest.raises(BrokerError, match=f"^{message}.*failOnDataLoss"):
        planned(address, **options)
    found = planned(address, **options, fail_on_data_loss=False)
    assert spans(found) == ([] if rest is None else [(0, rest, 100)])


def test_a_read_of_committed_records_ends_at_the_last_stable_offset(scripted: ScriptedCluster, address: str) -> None:
    scripted.topics["t"][0].stable = 40
    options: dict[str, Any] = {"assign": {"t": [0]}, "isolation": "read_committed"}
    assert spans(planned(address, **options)) == [(0, 0, 40)]
    # The offset exists, although its transaction is open.
    assert spans(planned(address, **options, ending=Bound(offsets={"t": {0: 60}}))) == [(0, 0, 40)]


# -- division


def test_ranges_are_divided_by_a_number_of_records_and_by_a_number_of_tasks() -> None:
    ranges = [one_range(0, 100), one_range(0, 5, 1), one_range(7, 7, 2)]
    assert divide_ranges(ranges, ReadOptions()) == ranges[:2]
    limited = divide_ranges(ranges, ReadOptions(max_records_per_partition=40))
    assert spans(limited) == [(0, 0, 33), (0, 33, 66), (0, 66, 100), (1, 0, 5)]
    several = divide_ranges(ranges, ReadOptions(min_partitions=5))
    assert spans(several) == [(0, 0, 25), (0, 25, 50), (0, 50, 75), (0, 75, 100), (1, 0, 5)]
    both = divide_ranges(ranges, ReadOptions(min_partitions=2, max_records_per_partition=40))
    assert both == limited


def test_a_range_is_not_divided_if_damage_ends_it() -> None:
    whole = one_range(0, 100)
    options = ReadOptions(min_partitions=5, max_records_per_partition=10, on_error="stop")
    assert divide_ranges([whole], options) == [whole]


@pytest.mark.parametrize("count", [1, 3, 7, 100])
def test_the_parts_of_a_partition_have_each_record_once(address: str, count: int) -> None:
    parts = divide_ranges(planned(address, topics=("t",)), ReadOptions(min_partitions=count))
    assert len(parts) >= count or count == 1
    found = [each for part in parts for each in offsets(address, [part])]
    assert found == [(0, offset) for offset in range(100)] + [(1, 0), (1, 1)]


def test_a_task_may_have_ranges_of_several_partitions(address: str) -> None:
    found = offsets(address, [one_range(13, 27), one_range(1, 2, 1)])
    assert sorted(found) == [(0, offset) for offset in range(13, 27)] + [(1, 1)]


# -- changes between plan and task


def test_a_task_does_not_read_a_topic_that_was_made_again(scripted: ScriptedCluster, address: str) -> None:
    task = planned(address, topics=("t",))
    scripted.ids["t"] = uuid.UUID(int=7)
    with pytest.raises(BrokerError, match=f"^t-0: the topic was recreated: its id was {TOPIC}, and is now"):
        offsets(address, task[:1])
    missing: list[MissingOffsets] = []
    with pytest.warns(RuntimeWarning, match="the topic was recreated"):
        assert offsets(address, task[:1], missing, fail_on_data_loss=False) == []
    assert [each[:4] for each in missing] == [("t", 0, 0, 99)]


def test_a_task_does_not_read_what_a_leader_without_the_records_wrote(scripted: ScriptedCluster, address: str) -> None:
    task = planned(address, topics=("t",))
    log = scripted.topics["t"][0]
    log.batches, log.epoch = log.batches[:4], 1
    for _ in range(8):
        log.write([b"new"] * 10)
    message = "the records from offset 40 to 100, exclusive, were there when the read was planned"
    with pytest.raises(BrokerError, match=message):
        offsets(address, task[:1])
    missing: list[MissingOffsets] = []
    with pytest.warns(RuntimeWarning, match=message):
        found = offsets(address, task[:1], missing, fail_on_data_loss=False)
    assert found == [(0, offset) for offset in range(40)]
    assert [each[:4] for each in missing] == [("t", 0, 40, 99)]


def test_a_task_goes_on_after_a_change_of_the_leader(scripted: ScriptedCluster, address: str) -> None:
    [task, _] = planned(address, topics=("t",))

    def change() -> None:
        scripted.topics["t"][0].epoch = 3

    scripted.fail(ApiKey.FETCH, Fault(run=change))
    assert len(offsets(address, [task])) == 100


@pytest.mark.parametrize("is_named", [False, True])
def test_records_that_retention_deletes_after_the_plan_are_lost_unless_the_read_begins_with_the_earliest(
    scripted: ScriptedCluster, address: str, is_named: bool
) -> None:
    starting = Bound(offsets={"t": {0: 0}}) if is_named else Bound()
    task = planned(address, assign={"t": [0]}, starting=starting)
    scripted.topics["t"][0].start = 30
    if is_named:
        with pytest.raises(BrokerError, match=r"the records before offset 30 were deleted by retention"):
            offsets(address, task)
        with pytest.warns(RuntimeWarning, match="the records before offset 30"):
            assert len(offsets(address, task, fail_on_data_loss=False)) == 70
    else:
        assert len(offsets(address, task)) == 70


def test_a_topic_that_was_deleted_is_an_error_or_has_no_records(
    scripted: ScriptedCluster, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_read, "_UNKNOWN_SECONDS", 0.0)
    task = planned(address, topics=("t",))[:1]
    del scripted.topics["t"], scripted.ids["t"]
    with pytest.raises(BrokerError, match="there is no topic 't'"):
        offsets(address, task)
    with pytest.warns(RuntimeWarning, match=r"^t-0: the topic no longer exists: broker .* there is no topic 't'"):
        assert offsets(address, task, fail_on_data_loss=False) == []


@pytest.mark.parametrize("is_compacted", [True, False])
def test_a_range_ends_where_compaction_has_removed_the_last_records(
    scripted: ScriptedCluster, address: str, monkeypatch: pytest.MonkeyPatch, is_compacted: bool
) -> None:
    monkeypatch.setattr("kbatch.live.fetch_progress.QUIET_SECONDS", 0.1)
    log = scripted.topics["t"][0]
    scripted.compacted = {"t"} if is_compacted else set()
    task = planned(address)[:1]
    log.last = 100
    del log.batches[8:]
    if is_compacted:
        assert offsets(address, task) == [(0, offset) for offset in range(80)]
        return
    # With tiered storage, an empty response may be records that are late.
    with pytest.raises(BrokerError, match=r"t-0: no records from offset 80 on .* the broker cannot read them now"):
        offsets(address, task)
    assert len(scripted.sent(ApiKey.DESCRIBE_CONFIGS)) == 2
