"""`compare_logs` of live topics: the same results as of log directories, over the offsets that both logs have."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from golden_logs import LOGS
from scripted_broker import ScriptedCluster, ScriptedPartition
from served_logs import cluster_source

import kbatch
from kbatch.live import BrokerError, ClusterSource
from kbatch.log import LogWriter, PartitionComparison, compare_logs

RECORDS = 900


def made(batch: int, codec: str = "none", *, start: int = 0, **changes: Any) -> ScriptedPartition:
    """Return a partition with records in batches of a size; `changes` are columns of some offsets."""
    columns: dict[str, list[Any]] = {
        "values": [b"value-%d" % i for i in range(RECORDS)],
        "keys": [b"key-%d" % (i % 7) for i in range(RECORDS)],
        "timestamps": [1_700_000_000_000 + i for i in range(RECORDS)],
        "headers": [[(b"h", b"%d" % (i % 3))] for i in range(RECORDS)],
        "offsets": list(range(RECORDS)),
    }
    for name, values in changes.items():
        for offset, value in values.items():
            columns[name][offset] = value
    kept = [i for i in range(start, RECORDS) if columns["offsets"][i] is not None]
    partition = ScriptedPartition(start=start)
    for first in range(0, len(kept), batch):
        part = {name: [column[i] for i in kept[first : first + batch]] for name, column in columns.items()}
        partition.batches.append(kbatch.encode(part.pop("values"), codec=codec, **part))
    return partition


def source(*partitions: ScriptedPartition, topic: str = "orders", **settings: Any) -> ClusterSource:
    return cluster_source(ScriptedCluster(**{topic: list(partitions)}), **settings)


def single(*args: Any, **options: Any) -> PartitionComparison:
    (result,) = compare_logs(*args, **options).partitions
    return result


def counts(result: PartitionComparison) -> tuple[int, int, int, int]:
    return result.matching, result.different, result.only_a, result.only_b


def directory(root: Path, partition: ScriptedPartition, name: str = "orders-0") -> Path:
    root.mkdir(exist_ok=True)
    with LogWriter(root / name) as writer:
        for batch in partition.batches:
            writer.append(batch)
    return root


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "snappy", "zstd"])
def test_a_topic_and_its_mirror_with_another_codec_and_batch_size_are_equal(codec: str) -> None:
    result = compare_logs(source(made(17)), source(made(100, codec)), topics="orders", digests=True)
    (partition,) = result.partitions
    assert result.equal
    assert counts(partition) == (RECORDS, 0, 0, 0)
    assert (partition.topic, partition.partition, partition.compared_offsets) == ("orders", 0, (0, RECORDS))
    assert partition.a is not None
    assert partition.b is not None
    assert partition.a.digest == partition.b.digest
    assert (partition.a.path, partition.a.start_offset, partition.a.end_offset) == (
        "kafka://broker-1:9092",
        0,
        RECORDS,
    )


@pytest.mark.parametrize(
    ("changes", "field", "values"),
    [
        ({"values": {500: b"other"}}, "value", (b"value-500", b"other")),
        ({"values": {500: None}}, "value", (b"value-500", None)),
        ({"keys": {500: b""}}, "key", (b"key-3", b"")),
        ({"timestamps": {500: 5}}, "timestamp", (1_700_000_000_500, 5)),
        ({"headers": {500: [(b"h", None)]}}, "headers", ([(b"h", b"2")], [(b"h", None)])),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_changed_field_is_found_with_its_offset_and_both_values(
    changes: dict[str, Any], field: str, values: tuple[Any, Any]
) -> None:
    result = single(source(made(17)), source(made(100, "zstd", **changes)), topics="orders", digests=True)
    assert counts(result) == (RECORDS - 1, 1, 0, 0)
    assert result.first is not None
    assert result.first.fields == (field,)
    assert result.first.a is not None
    assert result.first.b is not None
    assert (result.first.a.offset, result.first.b.offset) == (500, 500)
    assert (getattr(result.first.a, field), getattr(result.first.b, field)) == values
    assert result.a is not None
    assert result.b is not None
    assert result.a.digest != result.b.digest


def test_a_missing_offset_within_the_common_range_is_a_difference() -> None:
    result = single(source(made(17)), source(made(100, offsets={500: None})), topics="orders")
    assert counts(result) == (RECORDS - 1, 0, 1, 0)
    assert result.first is not None
    assert result.first.a is not None
    assert (result.first.a.offset, result.first.a.value, result.first.b) == (500, b"value-500", None)


def test_offsets_that_only_one_log_has_are_reported_and_are_no_difference_unless_asked_for() -> None:
    longer = made(100)
    # Retention removes whole segments, but the log start offset may be within a batch.
    shorter = made(17, start=50)
    shorter.start = 60
    longer.batches.pop()
    sides = source(longer), source(shorter)
    result = single(*sides, topics="orders")
    assert result.equal
    assert (counts(result), result.compared_offsets) == ((740, 0, 0, 0), (60, 800))
    assert [(side.start_offset, side.end_offset) for side in result.sides] == [(0, 800), (60, 900)]
    result = single(*sides, topics="orders", extent="all")
    assert not result.equal
    assert (counts(result), result.compared_offsets) == ((740, 0, 60, 100), None)


def test_bounds_of_the_caller_apply_within_the_common_range() -> None:
    sides = source(made(17)), source(made(100, start=50))
    assert counts(single(*sides, topics="orders", start_offset=-10)) == (10, 0, 0, 0)
    assert counts(single(*sides, topics="orders", stop_offset=70)) == (20, 0, 0, 0)
    assert counts(single(*sides, topics="orders", stop_offset=30)) == (0, 0, 0, 0)
    assert counts(single(*sides, topics="orders", start_timestamp="2023-11-14T22:13:20.890Z")) == (10, 0, 0, 0)


def test_bounds_that_count_back_from_the_ends_compare_the_offsets_that_both_sides_have_within_them() -> None:
    shorter = made(100)
    shorter.batches.pop()
    sides = source(made(17)), source(shorter)
    result = single(*sides, topics="orders", start_offset=-150)
    assert (counts(result), result.compared_offsets) == ((50, 0, 0, 0), (750, 800))
    result = single(*sides, topics="orders", stop_offset=-50)
    assert (counts(result), result.compared_offsets) == ((750, 0, 0, 0), (0, 750))


def test_chosen_offsets_that_only_one_log_has_are_different_and_those_of_neither_log_are_equal() -> None:
    sides = source(made(17)), source(made(100, start=500))
    result = single(*sides, topics="orders", stop_offset=500)
    assert (result.equal, result.disjoint, counts(result)) == (False, True, (0, 0, 0, 0))
    result = single(*sides, topics="orders", start_offset=2000, stop_offset=3000)
    assert (result.equal, result.compared_offsets, counts(result)) == (True, None, (0, 0, 0, 0))


def test_logs_without_a_common_offset_are_different_and_empty_ones_are_equal() -> None:
    early, late = made(100), made(100, start=800)
    del early.batches[1:]
    result = single(source(early), source(late), topics="orders")
    assert (result.equal, result.disjoint, counts(result)) == (False, True, (0, 0, 0, 0))
    assert single(source(ScriptedPartition()), source(ScriptedPartition(start=7)), topics="orders").equal
    assert not single(source(ScriptedPartition()), source(made(100)), topics="orders").equal


def test_partitions_that_only_one_cluster_has_are_different() -> None:
    result = compare_logs(source(made(100), made(100)), source(made(17)), topics="orders")
    assert [(each.partition, each.equal, counts(each)) for each in result.partitions] == [
        (0, True, (RECORDS, 0, 0, 0)),
        (1, False, (0, 0, RECORDS, 0)),
    ]


def test_a_topic_may_have_another_name_in_the_other_cluster() -> None:
    mirror = source(made(17, "lz4"), topic="mirrored")
    result = compare_logs(source(made(100)), mirror, topics="orders", other_topic="mirrored")
    assert result.equal
    assert [(each.topic, each.partition) for each in result.partitions] == [("orders", 0)]
    for topics in (None, "o*", ["a", "b"]):
        with pytest.raises(ValueError, match="the other topic 'mirrored' is the name of one topic in b"):
            compare_logs(source(made(100)), mirror, topics=topics, other_topic="mirrored")


def test_a_backup_is_compared_with_the_topics_that_it_has(tmp_path: Path) -> None:
    cluster = ScriptedCluster(orders=[made(17), made(17)], others=[made(17)])
    directory(tmp_path, made(100, "zstd"))
    for sides in ((tmp_path, cluster_source(cluster)), (cluster_source(cluster), tmp_path)):
        result = compare_logs(*sides)
        assert [(each.topic, each.partition, each.equal) for each in result.partitions] == [
            ("orders", 0, True),
            ("orders", 1, False),
        ]
    assert compare_logs(tmp_path, cluster_source(cluster), partitions=[0]).equal
    assert len(compare_logs(tmp_path, cluster_source(cluster), topics="*").partitions) == 3


def test_one_log_is_compared_with_its_partition_of_the_cluster(tmp_path: Path) -> None:
    cluster = cluster_source(ScriptedCluster(orders=[ScriptedPartition(), made(17)], copies=[made(17), made(17)]))
    log = directory(tmp_path, made(100), "orders-1") / "orders-1"
    assert counts(single(log, cluster)) == (RECORDS, 0, 0, 0)
    assert counts(single(cluster, kbatch.Log(log), topics="copies")) == (RECORDS, 0, 0, 0)
    with pytest.raises(ValueError, match="is one log, but the other side has several"):
        compare_logs(log, cluster, topics="*")
    segment = tmp_path / "any.log"
    segment.write_bytes(next(log.glob("*.log")).read_bytes())
    with pytest.raises(ValueError, match=r"any\.log: its topic is unknown; name the topic of the cluster"):
        compare_logs(segment, cluster)
    assert counts(single(segment, cluster, topics="copies", partitions=[1])) == (RECORDS, 0, 0, 0)


@pytest.mark.parametrize("match", ["order", "key"])
def test_a_mirror_with_other_offsets_is_compared_by_order_or_by_key(match: Any, tmp_path: Path) -> None:
    mirror = made(17, values={1: b"a"}, offsets={0: None})
    result = single(source(made(100)), source(mirror), topics="orders", match=match)
    logs = [directory(tmp_path / name, each) / "orders-0" for name, each in (("a", made(100)), ("b", mirror))]
    expected = single(*logs, match=match)
    assert counts(result) == counts(expected)
    assert result.first == expected.first
    assert result.compared_offsets is None


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("control", [False, True])
def test_control_records_and_isolation_are_as_for_directories(isolation: Any, control: bool, tmp_path: Path) -> None:
    data = b"".join(path.read_bytes() for path in sorted((LOGS / "txn-0").glob("*.log")))
    rows = kbatch.scan(data)
    batches = [data[row["position"] : row["position"] + row["size"]] for row in rows]
    transactions = kbatch.Log(LOGS / "txn-0").transactions()
    aborted = [(int(row["producer_id"]), int(row["first_offset"])) for row in transactions.aborted]
    partition = ScriptedPartition(batches, aborted=aborted, stable=transactions.last_stable_offset)
    options: dict[str, Any] = {"isolation": isolation, "include_control": control}
    result = single(LOGS / "txn-0", source(partition, topic="txn"), **options)
    expected = single(LOGS / "txn-0", LOGS / "txn-0", **options)
    assert result.equal
    assert result.matching == expected.matching
    assert result.matching > 0


@pytest.mark.parametrize("seed", range(6))
def test_random_differences_are_those_of_the_log_directories(seed: int, tmp_path: Path) -> None:
    chosen = random.Random(seed)
    partitions = []
    for name in ("a", "b"):
        changes: dict[str, dict[int, Any]] = {
            "values": {chosen.randrange(RECORDS): None},
            "keys": {chosen.randrange(RECORDS): b"%d" % chosen.randrange(2) for _ in range(3)},
            "headers": {chosen.randrange(RECORDS): [(b"x", b"")] * chosen.randrange(3)},
            "offsets": {chosen.randrange(RECORDS): None for _ in range(chosen.randrange(40))},
        }
        each = made(chosen.choice([1, 7, 50, 400]), chosen.choice(["none", "zstd"]), **changes)
        directory(tmp_path / name, each)
        partitions.append(each)
    sides = [source(each, fetch_max_bytes=chosen.choice([500, 5000, 1 << 20])) for each in partitions]
    live = single(*sides, topics="orders", digests=True)
    of_files = single(tmp_path / "a", tmp_path / "b", extent="common", digests=True)
    for name in ("matching", "different", "only_a", "only_b", "fields", "first", "compared_offsets"):
        assert getattr(live, name) == getattr(of_files, name)
    assert [side.digest for side in live.sides] == [side.digest for side in of_files.sides]
    assert not live.equal


def test_each_batch_is_fetched_once_even_if_records_differ() -> None:
    class Counting(ScriptedPartition):
        sent = 0

        def records(self, offset: int, size: int, end: int) -> bytes:
            found = super().records(offset, size, end)
            self.sent += len(found)
            return found

    changes = {0: b"a", 333: b"b", 899: b"c"}
    sides = [Counting(made(17).batches), Counting(made(100, values=changes).batches)]
    result = single(*(source(each, fetch_max_bytes=2000) for each in sides), topics="orders")
    assert counts(result) == (RECORDS - 3, 3, 0, 0)
    for side in sides:
        stored = sum(map(len, side.batches))
        # A connection that is closed at the end of the range may have had another request.
        assert stored <= side.sent <= stored + max(map(len, side.batches))


def test_memory_does_not_grow_with_the_topic() -> None:
    def peak(batches: int) -> int:
        values = [b"x" * 10_000] * 100
        partition = ScriptedPartition()
        for _ in range(batches):
            partition.write(values)
        sides = source(partition), source(partition)
        tracemalloc.start()
        assert compare_logs(*sides, topics="orders", max_bytes="1m", match="offset").equal
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(1)
    assert peak(20) < peak(8) + (4 << 20)


def test_damage_in_a_response_is_an_error_or_is_listed() -> None:
    damaged = made(100)
    damaged.batches[3] = damaged.batches[3][:-1] + b"\xff"
    sides = source(made(17)), source(damaged)
    with pytest.raises(kbatch.CrcMismatchError, match="orders-0"):
        compare_logs(*sides, topics="orders")
    result = compare_logs(*sides, topics="orders", on_error="skip")
    assert result.damaged
    assert counts(result.partitions[0]) == (RECORDS - 100, 0, 100, 0)


@pytest.mark.parametrize("kept", [0, 5])
def test_a_last_segment_of_damaged_bytes_is_an_error_or_is_listed(kept: int, tmp_path: Path) -> None:
    backup = made(100)
    del backup.batches[kept:]
    log = directory(tmp_path, backup) / "orders-0"
    (log / f"{kept * 100:020}.log").write_bytes(b"\x9f" * 5000)
    cluster = source(made(17))
    with pytest.raises(kbatch.CorruptBatchError, match=rf"{kept * 100:020}\.log, byte 0"):
        compare_logs(tmp_path, cluster)
    result = compare_logs(tmp_path, cluster, on_error="skip")
    assert result.damaged
    assert result.equal == (kept > 0)
    assert counts(result.partitions[0]) == (kept * 100, 0, 0, 0)


def test_a_topic_that_does_not_exist_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="there is no topic 'order'"):
        compare_logs(source(made(17)), source(made(17)), topics="order")
    with pytest.raises(ValueError, match="no log of topic 'x'"):
        compare_logs(directory(tmp_path, made(100)), tmp_path, topics=["x", "orders"])


def test_settings_belong_to_the_cluster_of_their_side(tmp_path: Path) -> None:
    directory(tmp_path, made(100))
    config = {"request_timeout_ms": 100}
    for sides, options, message in [
        ((tmp_path, tmp_path), {"config": config}, "config has no effect: it is for a cluster"),
        (("kafka://a", tmp_path), {"other_config": config}, "other_config has no effect: it is for a cluster"),
        ((source(made(17)), tmp_path), {"config": config}, "config has no effect: a ClusterSource has its settings"),
        ((tmp_path, "kafka://a"), {"config": config, "other_config": config}, "only b is one"),
    ]:
        with pytest.raises(ValueError, match=message):
            compare_logs(*sides, **options)  # type: ignore[arg-type]


def test_extent_common_needs_offsets_that_correspond() -> None:
    with pytest.raises(ValueError, match='extent="common" is for match="offset"'):
        compare_logs(LOGS / "txn-0", LOGS / "txn-0", extent="common", match="key")
    with pytest.raises(ValueError, match='extent must be "common" or "all"'):
        compare_logs(LOGS / "txn-0", LOGS / "txn-0", extent="both")  # type: ignore[arg-type]


def test_directories_are_compared_over_common_offsets_if_asked_for(tmp_path: Path) -> None:
    directory(tmp_path / "a", made(100))
    directory(tmp_path / "b", made(17, start=50))
    assert counts(single(tmp_path / "a", tmp_path / "b")) == (850, 0, 50, 0)
    result = single(tmp_path / "a", tmp_path / "b", extent="common")
    assert (counts(result), result.compared_offsets) == ((850, 0, 0, 0), (50, 900))
