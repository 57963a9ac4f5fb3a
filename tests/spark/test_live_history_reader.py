"""The readers of a live cluster with its history, without Spark: the rows are those of the brokers, which send few."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from history_cluster import BATCH, faulty_log, fetched_offsets, log_of, partition
from history_cluster import served as served_partition
from history_copies import tiered_log
from live_readers import live_reader, reader_rows
from scanned_logs import scanned_logs
from scripted_broker import ScriptedCluster
from served_logs import served_cluster
from socket_broker import served
from stream_query import LiveQuery

pytest.importorskip("pyspark")

import kbatch
from kbatch.plan.cluster_options import parse_cluster_options, parse_source
from kbatch.spark.live_reader import KbatchLiveReader
from kbatch.spark.source_api import HAS_LIMITS
from kbatch.spark.stream_options import parse_live_stream_options

COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
DIVISIONS: list[dict[str, str]] = [
    {}, {"minPartitions": "9"}, {"maxRecordsPerPartition": "7"}, {"splitBytes": "300"},
    {"maxRecordsPerPartition": "25", "splitBytes": "300"},
]  # fmt: skip


@pytest.fixture
def cluster() -> ScriptedCluster:
    """A topic with 12 batches of ten records."""
    return served_partition(partition())


@pytest.fixture
def address(cluster: ScriptedCluster) -> Iterator[str]:
    with served(cluster) as address:
        yield address
    LiveQuery.stop_all()


def reader(address: str, *columns: str, **options: Any) -> KbatchLiveReader:
    return live_reader(address, "orders", *columns, **options)


def tasks_of(made: KbatchLiveReader) -> list[Any]:
    """Return the parts of each task."""
    return [partition.value for partition in made.partitions()]


def offsets(address: str, **options: Any) -> list[int]:
    return [each["offset"] for each in reader_rows(reader(address, "offset", **options))]


# -- the same rows


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("seed", range(2))
def test_rows_are_those_without_the_history_however_partitions_are_divided(
    tmp_path: Path, seed: int, division: dict[str, str], isolation: str
) -> None:
    logs = scanned_logs(tmp_path, seed)
    options = {"subscribe": "a,b,a.b-c", "isolationLevel": isolation, "includeHeaders": "true"}

    def sort_key(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["topic"], row["partition"], row["offset"]

    with served(served_cluster(logs, brokers=1)) as address:
        expected = sorted(reader_rows(reader(address, *COLUMNS, **options)), key=sort_key)
        made = reader(address, *COLUMNS, **options, **division, history=logs.root)
        found = reader_rows(made)
        assert sorted(found, key=sort_key) == expected
        assert len(found) > 30
        # Tasks in their order have the records of a partition in theirs.
        assert [each["offset"] for each in found if each["topic"] == "b"] == [
            each["offset"] for each in expected if each["topic"] == "b"
        ]
        parts = [each for task in tasks_of(made) for each in task]
        assert {each.is_history for each in parts} == {True, False}
        [counts] = [
            sum(each["records"] for each in reader_rows(reader(address, **options, table="counts", history=logs.root)))
        ]
        assert counts == len(expected)


@pytest.mark.parametrize("layout", ["disk", "local", "aiven", "aiven-zstd"])
@pytest.mark.parametrize("division", DIVISIONS)
def test_closed_segments_come_from_files_and_brokers_are_asked_only_for_the_rest(
    cluster: ScriptedCluster, address: str, tmp_path: Path, layout: str, division: dict[str, str]
) -> None:
    log = log_of(cluster, tmp_path / "disk", [3, 3, 3])
    if layout != "disk":
        tiered_log(log, tmp_path / "tier", layout, cluster.ids["orders"])
    history = tmp_path / ("disk" if layout == "disk" else "tier")
    assert offsets(address, **division, history=history) == list(range(12 * BATCH))
    assert min(fetched_offsets(cluster)) == 9 * BATCH


def test_the_log_of_the_driver_has_the_offsets_in_files_and_those_that_are_fetched(
    cluster: ScriptedCluster, address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = log_of(cluster, tmp_path / "disk", [3, 3, 3]).parent
    (tmp_path / "other" / "users-0").mkdir(parents=True)
    (tmp_path / "other" / "users-0" / f"{0:020d}.log").touch()
    caplog.set_level("INFO", "kbatch.spark.history")
    reader(address, "offset").partitions()
    reader(address, "offset", history=history, minPartitions=7).partitions()
    # The directory has no copy of the topic.
    reader(address, "offset", history=tmp_path / "other").partitions()
    query(address, history=history).drain()
    assert [each.getMessage() for each in caplog.records if each.name == "kbatch.spark.history"] == [
        f"{in_files} offsets are in files of the history, {fetched} are fetched from the cluster"
        for in_files, fetched in [(90, 30), (0, 120), (90, 30)]
    ]


def test_a_task_that_reads_files_sends_no_request(cluster: ScriptedCluster, address: str, tmp_path: Path) -> None:
    log_of(cluster, tmp_path / "disk", [3, 3, 3])
    made = reader(address, "offset", history=tmp_path / "disk")
    in_files, tail = made.partitions()
    cluster.requests.clear()
    assert sum(batch.num_rows for batch in made.read(in_files)) == 9 * BATCH
    assert cluster.requests == []
    assert sum(batch.num_rows for batch in made.read(tail)) == 3 * BATCH
    assert cluster.requests


def test_several_paths_have_commas_between_or_are_a_json_list(
    cluster: ScriptedCluster, address: str, tmp_path: Path
) -> None:
    log = log_of(cluster, tmp_path / "disk", [3, 3, 3])
    for number in (0, 1):
        log_of(cluster, tmp_path / f"disk-{number}", [3, 3, 3])
        for path in sorted((tmp_path / f"disk-{number}" / log.name).glob("*.log"))[number + 1 : 3]:
            path.unlink()
    paths = [str(tmp_path / f"disk-{number}") for number in (0, 1)]
    for history in (",".join(paths), str(paths).replace("'", '"')):
        cluster.requests.clear()
        assert offsets(address, history=history) == list(range(12 * BATCH))
        assert min(fetched_offsets(cluster)) == 6 * BATCH


def test_bounds_conditions_and_keys_choose_within_files(cluster: ScriptedCluster, address: str, tmp_path: Path) -> None:
    history = log_of(cluster, tmp_path / "disk", [3, 3, 3]).parent
    bounds = {"startingOffsets": '{"orders": {"0": 17}}', "endingOffsets": '{"orders": {"0": 52}}'}
    assert offsets(address, **bounds, history=history) == list(range(17, 52))
    assert offsets(address, prune='{"offset": [88, 92, null]}', history=history) == list(range(88, 93))
    assert offsets(address, key="no such key", history=history) == []


# -- division


def test_tasks_are_cut_where_files_end_and_at_split_bytes_by_default(
    cluster: ScriptedCluster, address: str, tmp_path: Path
) -> None:
    history = log_of(cluster, tmp_path / "disk", [3, 3, 3]).parent

    def spans(**options: Any) -> list[list[tuple[int, int]]]:
        made = reader(address, "offset", **options, history=history)
        return [[(each.start, each.stop) for each in task] for task in tasks_of(made)]

    # Small segments are read by one task; the rest is fetched by another one.
    assert spans() == [[(0, 30), (30, 60), (60, 90)], [(90, 120)]]
    size = len(cluster.topics["orders"][0].batches[0])
    assert spans(splitBytes=3 * size) == [[(0, 30)], [(30, 60)], [(60, 90)], [(90, 120)]]
    assert spans(splitBytes=1)[:3] == [[(0, 10)], [(10, 20)], [(20, 30)]]
    # The rule is the one of Spark's Kafka source; parts are cut within batches too.
    assert spans(minPartitions=3) == [[(0, 30), (30, 40)], [(40, 60), (60, 80)], [(80, 90)], [(90, 120)]]
    assert spans(maxRecordsPerPartition=24) == [
        [(0, 24)], [(24, 30), (30, 48)], [(48, 60), (60, 72)], [(72, 90)], [(90, 96)], [(96, 120)],
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 7, 33, 500])
def test_a_divided_partition_has_each_record_once(
    cluster: ScriptedCluster, address: str, tmp_path: Path, count: int
) -> None:
    history = log_of(cluster, tmp_path / "disk", [5, 1, 4]).parent
    made = reader(address, "offset", history=history, minPartitions=count)
    tasks = tasks_of(made)
    assert len(tasks) >= min(count, 12 * BATCH)
    assert [offset for task in tasks for each in task for offset in range(each.start, each.stop)] == list(range(120))
    assert [each["offset"] for each in reader_rows(made)] == list(range(120))


# -- faults


@pytest.mark.parametrize("division", [{}, {"minPartitions": "10"}])
@pytest.mark.parametrize("fault", ["cut", "gone", "another topic", "no copy"])
def test_what_the_history_lacks_is_fetched_with_a_warning(
    cluster: ScriptedCluster, address: str, tmp_path: Path, fault: str, division: dict[str, str]
) -> None:
    log = faulty_log(cluster, tmp_path / "disk", fault)
    if fault == "no copy":
        shutil.rmtree(log)
    is_whole = fault in ("another topic", "no copy")
    where = "offsets 0 to 119" if is_whole else "offsets 30 to 59"
    message = "; all is fetched" if fault == "no copy" else f"orders-0: {where} fetched from the cluster, since"
    with pytest.warns(RuntimeWarning, match=f"history: .*{message}"):
        assert offsets(address, **division, history=log.parent) == list(range(12 * BATCH))
    from_files = range(0) if is_whole else [*range(30), *range(60, 90)]
    assert not set(fetched_offsets(cluster)) & set(from_files)


@pytest.mark.parametrize("division", [{}, {"minPartitions": "10"}])
def test_damage_within_a_file_is_fetched_and_no_loss(
    cluster: ScriptedCluster, address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, division: dict[str, str]
) -> None:
    log = log_of(cluster, tmp_path / "disk", [4, 4])
    segment = log / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    # The second batch: a plan looks at the headers, and at the last batch.
    data[len(cluster.topics["orders"][0].batches[0]) + 70] ^= 1
    segment.write_bytes(data)
    assert offsets(address, **division, history=log.parent) == list(range(12 * BATCH))
    assert "orders-0: offsets 10 to " in caplog.text
    assert "fetched from the cluster, since" in caplog.text
    assert "checksum" in caplog.text
    # What was read before the damage is not fetched.
    assert min(fetched_offsets(cluster)) == BATCH
    assert reader_rows(reader(address, **division, table="losses", history=log.parent)) == []


def test_a_file_that_is_gone_when_its_task_runs_is_fetched(
    cluster: ScriptedCluster, address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_of(cluster, tmp_path / "disk", [4, 4])
    made = reader(address, "offset", history=log.parent, splitBytes=1)
    tasks = made.partitions()
    (log / f"{0:020d}.log").unlink()
    found = [offset for task in tasks for batch in made.read(task) for offset in batch["offset"].to_pylist()]
    assert found == list(range(12 * BATCH))
    assert "orders-0: offsets 30 to 39 fetched from the cluster, since" in caplog.text
    assert not set(fetched_offsets(cluster)) & set(range(40, 80))


# -- options


def test_options_that_a_history_excludes_or_needs_are_named(tmp_path: Path) -> None:
    live = {"kafka.bootstrap.servers": "a:9092", "subscribe": "t"}
    with pytest.raises(ValueError, match=r"^onError stop cannot be used with a history"):
        parse_source({**live, "history": str(tmp_path), "onError": "stop"})
    with pytest.raises(ValueError, match=r"^history belongs to a live cluster: name its brokers"):
        parse_source({**live, "history": str(tmp_path), "path": str(tmp_path)})
    with pytest.raises(ValueError, match=r"^history must be a JSON list such as .* or have commas between, got ''"):
        parse_source({**live, "history": ""})
    with pytest.raises(ValueError, match=r"^keyIndex does not apply to a live cluster"):
        parse_source({**live, "history": str(tmp_path), "keyIndex": "/x"})
    with pytest.raises(ValueError, match="unknown option 'histroy', did you mean 'history'"):
        parse_source({**live, "histroy": str(tmp_path)})
    with pytest.raises(kbatch.LogDirectoryError, match="missing: no such directory, given as history"):
        parse_source({**live, "history": str(tmp_path / "missing")})
    source, read = parse_cluster_options({**live, "history": "s3://tier/x", "storage.anon": "true", "splitBytes": "1m"})
    assert source.history == ("s3://tier/x",)
    assert (read.storage, read.split_bytes) == ({"anon": "true"}, 1 << 20)
    with pytest.raises(ValueError, match=r"^maxBytesPerTrigger does not apply to a live cluster"):
        parse_live_stream_options({**live, "history": str(tmp_path), "maxBytesPerTrigger": "1m"})


def test_a_task_gets_no_paths_of_the_history(cluster: ScriptedCluster, address: str, tmp_path: Path) -> None:
    history = log_of(cluster, tmp_path / "disk", [3, 3, 3]).parent
    assert reader(address, "offset", history=history).history == (str(history),)
    assert pickle.loads(pickle.dumps(reader(address, "offset", history=history))).history == ()


# -- streams


def query(address: str, **options: Any) -> LiveQuery:
    return LiveQuery(address, "orders", **{name: str(value) for name, value in options.items()})


def test_micro_batches_have_the_offsets_of_those_without_the_history(
    cluster: ScriptedCluster, address: str, tmp_path: Path
) -> None:
    history = log_of(cluster, tmp_path / "disk", [3, 3, 3]).parent
    limit = {"maxOffsetsPerTrigger": 25}
    plain, made = query(address, **limit), query(address, **limit, history=history)
    assert plain.drain() == list(range(12 * BATCH))
    cluster.requests.clear()
    assert made.drain() == list(range(12 * BATCH))
    assert made.log == plain.log
    assert [each["orders"]["0"] for each in made.log] == [25, 50, 75, 100, 120]
    assert min(fetched_offsets(cluster)) == 9 * BATCH


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_checkpoint_holds_with_and_without_the_history(tmp_path: Path, isolation: str) -> None:
    logs = scanned_logs(tmp_path, 1)
    given = {"subscribe": "a", "kafka.isolation.level": isolation, "maxOffsetsPerTrigger": "9"}
    with served(served_cluster(logs, brokers=1)) as address:
        expected = LiveQuery(address, "a", **given)
        expected.drain()
        found = LiveQuery(address, "a", **given)
        for turn in range(len(expected.log)):
            # Each micro-batch is planned with the option, and read without it after a restart, or the reverse.
            for is_given in (turn % 2 == 0, turn % 2 == 1):
                found.options.pop("history", None)
                if is_given:
                    found.options["history"] = str(logs.root)
                found.restart()
                found.plan()
            found.batch()
        found.drain()
        LiveQuery.stop_all()
    assert found.log == expected.log
    assert found.rows == expected.rows
    assert len(found.log) > 3


@pytest.mark.skipif(not HAS_LIMITS, reason="before PySpark 4.2")
def test_available_now_reads_the_history_and_ends_where_the_partition_ended(
    cluster: ScriptedCluster, address: str, tmp_path: Path
) -> None:
    history = log_of(cluster, tmp_path / "disk", [3, 3, 3]).parent
    made = query(address, maxOffsetsPerTrigger=50, history=history)
    made.reader.prepareForTriggerAvailableNow()
    assert made.batch() == list(range(50))
    cluster.topics["orders"][0].write([b"new"] * BATCH)
    assert made.drain() == list(range(50, 12 * BATCH))
    assert min(fetched_offsets(cluster)) == 9 * BATCH


def test_a_stream_reads_on_from_the_cluster_after_its_history(
    cluster: ScriptedCluster, address: str, tmp_path: Path
) -> None:
    log = log_of(cluster, tmp_path / "disk", [3, 3, 3])
    made = query(address, history=log.parent, minPartitions=7)
    assert made.drain() == list(range(12 * BATCH))
    # The files have nothing more, so that they may be deleted.
    for path in log.iterdir():
        path.unlink()
    for _ in range(2):
        cluster.topics["orders"][0].write([b"new"] * BATCH)
        assert len(made.batch() or ()) == BATCH
