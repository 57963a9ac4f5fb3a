"""Exports of a cluster with its history: the same rows and positions as without it, of which brokers send few."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kbatch
from kbatch.protocol import ApiKey

pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")

from export_outputs import FORMATS, Output  # noqa: E402
from history_cluster import BATCH, faulty_log, log_of, partition, served, source_of  # noqa: E402
from history_copies import tiered_log  # noqa: E402
from local_follow import follow  # noqa: E402
from scanned_logs import scanned_logs  # noqa: E402
from served_logs import cluster_source, served_cluster  # noqa: E402

from kbatch.live import ClusterSource  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


def rows_in(path: Path) -> list[dict[str, Any]]:
    rows = ds.dataset(path, partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def offsets_in(path: Path) -> list[int]:
    return [row["offset"] for row in rows_in(path)]


def positions_in(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((path / "_manifest.json").read_text())["positions"]
    return found


def export(source: ClusterSource, out: Path, **options: Any) -> kbatch.ExportSummary:
    return kbatch.export(source, out, engine="local", **options)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("seed", range(3))
def test_rows_and_positions_are_those_without_the_history(tmp_path: Path, seed: int, isolation: Any) -> None:
    logs = scanned_logs(tmp_path / "logs", seed)
    cluster = served_cluster(logs, brokers=1)
    plain = export(cluster_source(cluster), tmp_path / "plain", isolation=isolation)
    source = source_of(cluster, logs.root)
    with_files = export(source, tmp_path / "files", isolation=isolation, split_bytes=20_000)
    assert rows_in(tmp_path / "files") == rows_in(tmp_path / "plain")
    assert positions_in(tmp_path / "files") == positions_in(tmp_path / "plain")
    assert (with_files.records, with_files.withheld_offsets) == (plain.records, plain.withheld_offsets)
    assert plain.history_records == 0 < with_files.history_records <= with_files.records
    assert 0 < with_files.history_bytes <= with_files.log_bytes
    assert sum(each.history_records for each in with_files.partitions) == with_files.history_records
    assert export(cluster_source(cluster), tmp_path / "files", isolation=isolation).action == "unchanged"


@pytest.mark.parametrize("layout", ["disk", "local", "aiven", "aiven-zstd"])
@pytest.mark.parametrize("split_bytes", [1, 1 << 30])
def test_closed_segments_come_from_files_and_the_rest_is_fetched(tmp_path: Path, layout: str, split_bytes: int) -> None:
    cluster = served(partition())
    log = log_of(cluster, tmp_path / "disk", [3, 3, 3])
    if layout != "disk":
        tiered_log(log, tmp_path / "tier", layout, cluster.ids["orders"])
    source = source_of(cluster, tmp_path / ("disk" if layout == "disk" else "tier"))
    cluster.requests.clear()
    summary = export(source, tmp_path / "out", split_bytes=split_bytes)
    assert (summary.records, summary.history_records) == (12 * BATCH, 9 * BATCH)
    assert offsets_in(tmp_path / "out") == list(range(12 * BATCH))
    # The requests of tasks, which are in sessions.
    fetched = [
        part.fetch_offset
        for message in cluster.sent(ApiKey.FETCH)
        if message.session_epoch >= 0
        for topic in message.topics
        for part in topic.partitions
    ]
    assert min(fetched) == 9 * BATCH


@pytest.mark.parametrize("out", FORMATS, indirect=True)
@pytest.mark.parametrize("first", ["files", "brokers"])
def test_a_run_with_the_history_and_one_without_continue_each_other(out: Output, tmp_path: Path, first: str) -> None:
    made = partition(6)
    cluster = served(made)
    log_of(cluster, tmp_path / "disk", [3, 2])
    sources: list[Any] = [source_of(cluster, tmp_path / "disk"), source_of(cluster)]
    before, after = sources if first == "files" else sources[::-1]
    assert out.write(before).records == 6 * BATCH
    for _ in range(3):
        made.write([b"new"] * BATCH)
    log_of(cluster, tmp_path / "later", [3, 3, 2])
    after = source_of(cluster, tmp_path / "later") if first == "brokers" else after
    summary = out.write(after)
    assert (summary.records, summary.action) == (3 * BATCH, "continued")
    assert summary.history_records == (2 * BATCH if first == "brokers" else 0)
    assert out.write(before).action == "unchanged"
    assert out.offsets() == {"orders-0": list(range(9 * BATCH))}


def test_damage_within_a_file_is_fetched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cluster = served(partition())
    log = log_of(cluster, tmp_path / "disk", [4, 4])
    segment = log / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    # The second batch: a plan looks at the headers, and at the last batch.
    data[len(cluster.topics["orders"][0].batches[0]) + 70] ^= 1
    segment.write_bytes(data)
    summary = export(source_of(cluster, tmp_path / "disk"), tmp_path / "out")
    assert offsets_in(tmp_path / "out") == list(range(12 * BATCH))
    assert (summary.history_records, summary.lost_bytes) == (5 * BATCH, 0)
    assert "orders-0: offsets 10 to 39 fetched from the cluster, since" in caplog.text
    assert "checksum" in caplog.text


@pytest.mark.parametrize("fault", ["cut", "gone", "another topic"])
def test_what_the_history_lacks_is_fetched_with_a_warning(tmp_path: Path, fault: str) -> None:
    cluster = served(partition())
    faulty_log(cluster, tmp_path / "disk", fault)
    where = "offsets 0 to 119" if fault == "another topic" else "offsets 30 to 59"
    with pytest.warns(RuntimeWarning, match=f"history: orders-0: {where} fetched from the cluster, since"):
        summary = export(source_of(cluster, tmp_path / "disk"), tmp_path / "out")
    assert offsets_in(tmp_path / "out") == list(range(12 * BATCH))
    assert summary.history_records == (0 if fault == "another topic" else 6 * BATCH)


def test_a_file_that_is_gone_when_a_task_reads_it_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kbatch.plan.cluster_logs import ClusterLogs

    cluster = served(partition())
    log = log_of(cluster, tmp_path / "disk", [4, 4])
    divided = ClusterLogs.divided

    def delete_then_divide(*arguments: Any) -> Any:
        found = divided(*arguments)
        (log / f"{0:020d}.log").unlink()
        return found

    monkeypatch.setattr(ClusterLogs, "divided", delete_then_divide)
    summary = export(source_of(cluster, tmp_path / "disk"), tmp_path / "out")
    assert offsets_in(tmp_path / "out") == list(range(12 * BATCH))
    assert summary.history_records == 4 * BATCH


def test_an_export_that_follows_reads_the_history_once(tmp_path: Path) -> None:
    made = partition(9)
    cluster = served(made)
    log_of(cluster, tmp_path / "disk", [3, 3, 3])
    commits: list[Any] = []

    class Over(BaseException):
        pass

    def on_commit(summary: kbatch.ExportSummary, lag: Any) -> None:
        commits.append(summary)
        if len(commits) == 2:
            raise Over
        made.write([b"new"] * BATCH)

    with pytest.raises(Over):
        follow(source_of(cluster, tmp_path / "disk"), tmp_path / "out", on_commit=on_commit, commit_interval=0.01)
    assert [each.history_records for each in commits] == [9 * BATCH, 0]
    assert offsets_in(tmp_path / "out") == list(range(10 * BATCH))


def test_options_that_a_history_excludes_are_named(tmp_path: Path) -> None:
    cluster = served(partition())
    log_of(cluster, tmp_path / "disk", [3])
    with pytest.raises(ValueError, match="on_error stop cannot be used with a history"):
        export(source_of(cluster, tmp_path / "disk"), tmp_path / "out", on_error={"orders": "stop"})
    with pytest.raises(ValueError, match=r"include_expired is for kbatch\.scan_logs"):
        export(source_of(cluster, tmp_path / "disk", include_expired=True), tmp_path / "out")
    with pytest.raises(ValueError, match="history and a ClusterSource exclude each other"):
        export(source_of(cluster), tmp_path / "out", history=tmp_path)
    with pytest.raises(ValueError, match="history belongs to a cluster, kafka://HOST:PORT"):
        kbatch.export(tmp_path / "disk", tmp_path / "out", history=tmp_path)
    with pytest.raises(kbatch.LogDirectoryError, match=r"missing: no such directory, given as history"):
        kbatch.export("kafka://broker-1:9092", tmp_path / "out", history=tmp_path / "missing")
    export(source_of(cluster), tmp_path / "out")
    with pytest.raises(ValueError, match="against a cluster all records are fetched"):
        kbatch.verify_export(tmp_path / "out", source_of(cluster, tmp_path / "disk"))
