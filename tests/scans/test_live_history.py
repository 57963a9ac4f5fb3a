"""Scans of a cluster with its history: what comes from files and what is fetched, and what is refused."""

from __future__ import annotations

import gc
import pickle
import random
import shutil
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from history_cluster import BATCH, cut, fetched_offsets, log_of, offsets, partition, served, source_of
from history_copies import copied_log, kafka_id, tiered_log, write_log, write_partition_metadata
from hypothesis import given, settings
from hypothesis import strategies as st
from scanned_logs import scanned_logs
from scripted_broker import ScriptedCluster
from served_logs import QUICK, served_cluster

import kbatch
from kbatch.errors import LogDirectoryError
from kbatch.live import ClientSettings, ClusterSource
from kbatch.log.selection import Selection
from kbatch.protocol import ApiKey

OFFSET = pc.field("offset")


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    deadline = time.monotonic() + 5
    while any(each.name.startswith("kbatch-") for each in threading.enumerate()):
        assert time.monotonic() < deadline, "a thread still runs"
        time.sleep(0.01)


# -- the seam


@pytest.mark.parametrize("closed", range(7))
def test_closed_segments_come_from_the_disk_and_the_rest_from_the_broker(tmp_path: Path, closed: int) -> None:
    cluster = served(partition())
    log_of(cluster, tmp_path, [2] * closed)
    source = source_of(cluster, tmp_path)
    scan = kbatch.scan_logs(source, topics="orders")
    expected = kbatch.scan_logs(source_of(cluster), topics="orders").to_arrow()
    cluster.requests.clear()
    assert scan.to_arrow().equals(expected)
    seam = closed * 2 * BATCH
    assert all(offset >= seam for offset in fetched_offsets(cluster))
    counts = {each.source: each.records for each in source.origins}
    assert counts.get(str(tmp_path), 0) == seam
    assert counts.get("kafka://broker-1:9092", 0) == 120 - seam


@pytest.mark.parametrize("layout", ["local", "aiven", "aiven-zstd"])
def test_both_layouts_of_tiered_storage_are_a_history(tmp_path: Path, layout: str) -> None:
    cluster = served(partition())
    log = log_of(cluster, tmp_path / "disk", [3, 3, 3])
    tiered_log(log, tmp_path / "tier", layout, cluster.ids["orders"])
    source = source_of(cluster, tmp_path / "tier")
    assert offsets(kbatch.scan_logs(source)) == list(range(120))
    assert set(fetched_offsets(cluster)) == {90}
    assert [each.records for each in source.origins] == [90, 30]


@pytest.mark.parametrize("bounds", [(0, 35), (35, 55), (35, 95), (88, 120), (95, 99), (60, 60)])
@pytest.mark.parametrize("layout", ["disk", "aiven-zstd"])
def test_a_range_of_offsets_begins_and_ends_anywhere(tmp_path: Path, layout: str, bounds: tuple[int, int]) -> None:
    cluster = served(partition())
    root = tmp_path / "disk"
    log = log_of(cluster, root, [4, 5])
    if layout != "disk":
        tiered_log(log, root := tmp_path / "tier", layout, cluster.ids["orders"])
    scan = kbatch.scan_logs(source_of(cluster, root), start_offset=bounds[0], stop_offset=bounds[1])
    assert offsets(scan) == list(range(*bounds))
    assert all(offset >= 90 for offset in fetched_offsets(cluster))
    assert scan.count() == bounds[1] - bounds[0]


@settings(max_examples=12)
@given(seed=st.integers(0, 2**32))
def test_a_scan_with_any_history_is_that_of_the_cluster(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Random logs with transactions and gaps; of each copy of them, some segments are missing."""
    draw = random.Random(seed)
    root = tmp_path_factory.mktemp("history")
    logs = scanned_logs(root / "logs", seed, lengths=False)
    cluster = served_cluster(logs)
    history: list[Path] = []
    for number in range(draw.randint(1, 3)):
        layout = draw.choice(["disk", "disk", "local", "aiven", "aiven-zstd"])
        target = root / f"copy-{number}"
        for log in logs.logs:
            topic = log.name.rpartition("-")[0]
            if layout == "disk":
                first = draw.randint(0, 2)
                copied_log(log, target, slice(first, draw.randint(first, 3)))
            else:
                made = tiered_log(log, target, layout, cluster.ids[topic])
                for file in sorted(made.glob("*.log")):
                    if draw.random() < 0.3:
                        file.unlink()
        history.append(target)
    for isolation in ("read_uncommitted", "read_committed"):
        options: dict[str, Any] = {"isolation": isolation, "columns": ["topic", "partition", "offset", "value"]}
        if draw.random() < 0.5:
            options["start_offset"] = draw.randrange(40)
        if draw.random() < 0.5:
            options["stop_offset"] = draw.randrange(60)
        plain = kbatch.scan_logs(source_of(cluster), **options)
        with_history = kbatch.scan_logs(source_of(cluster, *history), **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            expected = plain.to_arrow().combine_chunks()
            assert with_history.to_arrow().combine_chunks().equals(expected), options
            assert with_history.count() == len(expected)
            assert with_history.tail(7).to_pylist() == plain.tail(7).to_pylist()
            what = draw.randrange(60) < OFFSET
            found = with_history.filter(what).to_arrow().combine_chunks()
            assert found.equals(plain.filter(what).to_arrow().combine_chunks())


def test_overlapping_copies_give_each_record_once(tmp_path: Path) -> None:
    cluster = served(partition())
    log_of(cluster, tmp_path / "a", [3, 3])
    log_of(cluster, tmp_path / "b", [2, 5, 4])
    copied_log(tmp_path / "b" / "orders-0", tmp_path / "c", slice(1, 2))
    source = source_of(cluster, tmp_path / "a", tmp_path / "c")
    assert offsets(kbatch.scan_logs(source)) == list(range(120))
    assert min(fetched_offsets(cluster)) == 70
    assert {Path(each.source).name: each.records for each in source.origins if each.source[0] == "/"} == {
        "a": 60,
        "c": 10,
    }


def test_segments_of_a_tier_may_overlap_and_be_there_twice(tmp_path: Path) -> None:
    """Leaders begin segments at different offsets, and an upload that failed leaves an object that is cut."""
    cluster = served(partition())
    tier = tmp_path / "tier"
    for number, sizes in enumerate(([4, 4], [3, 4, 3])):
        log = log_of(cluster, tmp_path / str(number), sizes)
        made = tiered_log(log, tmp_path / f"tier-{number}", "local", cluster.ids["orders"])
        shutil.copytree(made, tier / made.name, dirs_exist_ok=True)
    for whole in sorted((tier / made.name).glob("*.log")):
        failed = whole.with_name(f"{whole.name[:21]}{kafka_id(uuid.UUID(int=99 << 64))}.log")
        failed.write_bytes(whole.read_bytes()[:200])
    assert len(list((tier / made.name).glob("*.log"))) == 8
    assert offsets(kbatch.scan_logs(source_of(cluster, tier))) == list(range(120))
    assert set(fetched_offsets(cluster)) == {100}


def test_the_active_segment_of_a_log_directory_is_not_read(tmp_path: Path) -> None:
    cluster = served(partition())
    log = log_of(cluster, tmp_path, [6])
    active = max(log.glob("*.log"))
    active.write_bytes(b"not a batch")
    assert offsets(kbatch.scan_logs(source_of(cluster, tmp_path))) == list(range(120))


def test_records_after_the_last_stable_offset_are_not_taken_from_files(tmp_path: Path) -> None:
    made = partition()
    cluster = served(made)
    log_of(cluster, tmp_path, [4, 4, 3])
    made.stable = 45
    scan = kbatch.scan_logs(source_of(cluster, tmp_path), isolation="read_committed")
    assert offsets(scan) == list(range(45))


def test_records_that_the_cluster_has_lost_are_not_taken_from_files(tmp_path: Path) -> None:
    made = partition()
    cluster = served(made)
    log_of(cluster, tmp_path, [4, 4, 3])
    made.batches = made.batches[:6]
    with pytest.warns(RuntimeWarning, match="whose epoch 0 ends at 60: it is of a replica that diverged"):
        assert offsets(kbatch.scan_logs(source_of(cluster, tmp_path))) == list(range(60))
    assert set(fetched_offsets(cluster)) == {40}


def test_a_head_of_the_history_fetches_nothing(tmp_path: Path) -> None:
    cluster = served(partition())
    log_of(cluster, tmp_path, [6, 5])
    assert kbatch.scan_logs(source_of(cluster, tmp_path), threads=1).head(3).num_rows == 3
    assert not cluster.sent(ApiKey.FETCH)


def test_partitions_without_a_copy_are_fetched(tmp_path: Path) -> None:
    cluster = ScriptedCluster(1, orders=[partition(), partition(4)], users=[partition(3)])
    log_of(cluster, tmp_path, [6])
    scan = kbatch.scan_logs(source_of(cluster, tmp_path), columns=["topic", "partition", "offset"])
    found = [tuple(each.values()) for each in scan.to_arrow().to_pylist()]
    keys = [("orders", 0, 120), ("orders", 1, 40), ("users", 0, 30)]
    assert found == [(topic, number, i) for topic, number, end in keys for i in range(end)]


# -- the plan, its text, and arguments


def test_a_plan_can_be_pickled(tmp_path: Path) -> None:
    cluster = served(partition())
    log_of(cluster, tmp_path, [3, 3])
    reading = kbatch.scan_logs(source_of(cluster, tmp_path))._reading
    with reading.source.open(reading.arguments) as opened:
        [log] = opened.logs(Selection())
        [chosen] = reading._chosen(opened)
        plan = opened.plan(reading._request(chosen)).plan
    assert log.topic == "orders"
    assert pickle.loads(pickle.dumps(plan)) == plan
    parts = [(each.start_offset, each.stop_offset) for each in plan.splits]
    assert parts == [(0, 30), (30, 60)]
    assert [(each.start, each.stop, each.last_epoch) for each in plan.fetched] == [(60, 120, 0)]


def test_explain_states_what_comes_from_where(tmp_path: Path) -> None:
    cluster = served(partition())
    log = log_of(cluster, tmp_path, [3, 3, 3])
    cut(log / f"{30:020d}.log")
    sizes = [len(batch) for batch in cluster.topics["orders"][0].batches]
    scan = kbatch.scan_logs(source_of(cluster, tmp_path), isolation="read_committed")
    assert scan.explain().splitlines() == [
        f"SCAN kafka://broker-1:9092 with history {tmp_path}",
        "columns: offset, timestamp, timestampType, key, value, headers, topic, partition",
        "logs: 1 of 1",
        "offsets: 120 of 120 of these logs: 60 from files of the history, 60 from the cluster",
        f"files: 2 segments, {sum(sizes[:3] + sizes[6:9]):,} bytes",
        f"orders-0: offsets 0 to 29 from {log}",
        "orders-0: offsets 30 to 59 from the cluster",
        f"orders-0: offsets 60 to 89 from {log}",
        "orders-0: offsets 90 to 119 from the cluster",
        f"not read: {log}/{30:020d}.log: after byte {sum(sizes[3:5])} it has {sizes[5] - 30} bytes of partial data: it "
        "was cut",
        "isolation: read_committed, up to the last stable offsets, by the markers in the files and the lists of the "
        "brokers",
    ]


def test_conditions_leave_out_files_and_fetches(tmp_path: Path) -> None:
    cluster = served(partition())
    log_of(cluster, tmp_path, [3, 3, 3])
    source = source_of(cluster, tmp_path)
    assert offsets(kbatch.scan_logs(source).filter((OFFSET == 5) | (OFFSET == 65))) == [5, 65]
    assert not cluster.sent(ApiKey.FETCH)
    assert offsets(kbatch.scan_logs(source).filter(OFFSET >= 95)) == list(range(95, 120))
    assert set(fetched_offsets(cluster)) == {95}


def test_a_count_parses_no_record_of_a_batch_in_a_file(tmp_path: Path) -> None:
    cluster = served(partition())
    log = log_of(cluster, tmp_path, [3, 3, 3])
    path = log / f"{30:020d}.log"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    scan = kbatch.scan_logs(source_of(cluster, tmp_path))
    assert scan.count() == 120
    assert scan.filter(OFFSET < 90).count() == 90
    assert set(fetched_offsets(cluster)) == {90}
    with pytest.warns(RuntimeWarning, match="offsets 40 to 59 fetched"):
        assert scan.filter(pc.field("timestamp").is_valid()).count() == 120


def test_the_last_records_and_keys_are_read_too(tmp_path: Path) -> None:
    cluster = served(partition())
    log_of(cluster, tmp_path, [3, 3, 3])
    assert offsets(kbatch.scan_logs(source_of(cluster, tmp_path), last=40)) == list(range(80, 120))
    assert offsets(kbatch.scan_logs(source_of(cluster, tmp_path), key="x")) == []
    with pytest.raises(ValueError, match="last counts from the end of the cluster's log"):
        kbatch.scan_logs(source_of(cluster, tmp_path, include_expired=True), last=1).to_arrow()


def test_the_history_is_an_argument_of_scans_of_a_url(tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0", partition().batches, [3], None)
    write_partition_metadata(tmp_path / "orders-0", uuid.UUID(int=1))
    scan = kbatch.scan_logs("kafka://localhost:1", history=tmp_path, include_expired=True)
    assert repr(scan).startswith(f"<Scan of kafka://localhost:1 with history {tmp_path}: offset")
    for options, message in (
        ({"history": tmp_path / "x"}, "x: no such directory, given as history"),
        ({"include_expired": True}, "include_expired belongs to history"),
        ({"history": []}, "history must name a log directory"),
    ):
        with pytest.raises((ValueError, LogDirectoryError), match=message):
            kbatch.scan_logs("kafka://localhost:1", **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="history belongs to a cluster"):
        kbatch.scan_logs(tmp_path, history=tmp_path)
    with pytest.raises(ValueError, match="storage_options belongs to history"):
        source_of(served(partition()), storage_options={"region": "x"})


def test_a_url_of_an_object_store_is_a_history(tmp_path: Path) -> None:
    cluster = served(partition())
    log = log_of(cluster, tmp_path / "disk", [3, 3, 3])
    made = tiered_log(log, tmp_path / "tier", "aiven-zstd", cluster.ids["orders"])
    shutil.rmtree(log)
    import fsspec

    memory = fsspec.filesystem("memory")
    for file in made.iterdir():
        memory.pipe(f"/history-{tmp_path.name}/{made.parent.name}/0/{file.name}", file.read_bytes())
    url = f"memory://history-{tmp_path.name}"
    source = ClusterSource(
        ClientSettings.of({"bootstrap_servers": "broker-1:9092", **QUICK}), history=url, transport=cluster.connect
    )
    assert offsets(kbatch.scan_logs(source)) == list(range(120))
    assert set(fetched_offsets(cluster)) == {90}
    assert [each.source for each in source.origins] == ["kafka://broker-1:9092", url]
    assert kafka_id(cluster.ids["orders"]) in made.parent.name
