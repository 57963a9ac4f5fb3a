"""Exports of a live cluster: the rows of its log directory, exactly once, and clear outcomes when topics change."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

import kbatch
from kbatch.live import BrokerError
from kbatch.protocol import ApiKey

pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")

import iceberg_catalog  # noqa: E402
import killed_live  # noqa: E402
import log_batches  # noqa: E402
from export_outputs import FORMATS, Output  # noqa: E402
from local_follow import follow  # noqa: E402
from scanned_logs import scanned_logs  # noqa: E402
from scripted_broker import Fault, ScriptedCluster, ScriptedPartition  # noqa: E402
from served_logs import cluster_source, served_cluster  # noqa: E402

from kbatch.bounds import Bound  # noqa: E402
from kbatch.plan.read_options import ReadOptions  # noqa: E402

every_format = pytest.mark.parametrize("out", FORMATS, indirect=True)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

# KBATCH_TEST_ALL=1, as in .ci/long, kills more of them, and each way for each format.
ALL = bool(os.environ.get("KBATCH_TEST_ALL"))
KILLS = 60 if ALL else 4
KILLED = [("parquet", False), ("delta", True), ("iceberg", True)]
LOSES = ReadOptions(fail_on_data_loss=False)


class StoppedError(BaseException):
    """Ends an export that follows topics."""


def filled(*batches: int, rows: int = 5, **options: Any) -> ScriptedCluster:
    """Return a cluster with the topic t, whose partitions have these numbers of batches."""
    partitions = [ScriptedPartition(**options) for _ in batches]
    for each, count in zip(partitions, batches, strict=True):
        append(each, count, rows)
    return ScriptedCluster(1, t=partitions)


def append(partition: ScriptedPartition, count: int, rows: int = 5) -> None:
    for _ in range(count):
        partition.write([b"value %d" % (partition.end + i) for i in range(rows)])


def created_again(cluster: ScriptedCluster, *batches: int) -> uuid.UUID:
    """Replace the topic t by another one with the same name."""
    cluster.topics["t"] = filled(*batches).topics["t"]
    cluster.ids["t"] = uuid.uuid4()
    return cluster.ids["t"]


def rows_in(path: Path) -> list[dict[str, Any]]:
    rows = ds.dataset(path, partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def positions_in(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((path / "_manifest.json").read_text())["positions"]
    return found


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("seed", range(3))
def test_the_rows_and_positions_are_those_of_an_export_of_the_log_directory(
    tmp_path: Path, seed: int, isolation: Any
) -> None:
    logs = scanned_logs(tmp_path / "logs", seed)
    source = cluster_source(served_cluster(logs, brokers=1))
    of_files = kbatch.export(logs.root, tmp_path / "files", engine="local", isolation=isolation)
    of_brokers = kbatch.export(source, tmp_path / "brokers", engine="local", isolation=isolation)
    assert rows_in(tmp_path / "brokers") == rows_in(tmp_path / "files")
    for live, file in zip(of_brokers.partitions, of_files.partitions, strict=True):
        for name in ("topic", "partition", "records", "first_offset", "last_offset", "first_timestamp", "end_offset"):
            assert getattr(live, name) == getattr(file, name), name
    for live, file in zip(positions_in(tmp_path / "brokers"), positions_in(tmp_path / "files"), strict=True):
        assert live.pop("topic_id") is not None
        assert file.pop("topic_id") is None
        assert live == file
    assert kbatch.export(source, tmp_path / "brokers", engine="local", isolation=isolation).action == "unchanged"


@every_format
def test_a_later_export_adds_the_new_records_only(out: Output) -> None:
    cluster = filled(4, 2, 0)
    source: Any = cluster_source(cluster)
    summary = out.write(source)
    assert (summary.records, summary.action, summary.logdir) == (30, "created", "kafka://broker-1:9092")
    before = out.files()
    assert out.write(source).action == "unchanged"
    assert out.files() == before
    append(cluster.topics["t"][1], 3)
    append(cluster.topics["t"][2], 1)
    assert out.write(source).records == 20
    assert out.offsets() == {"t-0": list(range(20)), "t-1": list(range(25)), "t-2": list(range(5))}


def test_positions_have_the_topic_id_and_the_leader_epoch_of_the_last_record(out: Output) -> None:
    cluster = filled(2, epoch=7)
    out.write(cluster_source(cluster))  # type: ignore[arg-type]
    [position] = positions_in(out.path)
    assert (position["next_offset"], position["leader_epoch"]) == (10, 7)
    assert position["topic_id"] == str(cluster.ids["t"])


@every_format
def test_a_topic_that_was_created_again_is_one_error_that_names_both_ids(out: Output) -> None:
    cluster = filled(4)
    source: Any = cluster_source(cluster)
    out.write(source)
    first, before = cluster.ids["t"], out.files()
    second = created_again(cluster, 2)
    message = f"t-0: the last run ended before offset 20, but .* its id was {first}, and is now {second}"
    with pytest.raises(kbatch.LogDirectoryError, match=message) as caught:
        out.write(source)
    assert "--allow-missing-offsets" in str(caught.value)
    assert out.files() == before
    summary = out.write(source, LOSES)
    assert [(each["kind"], each["resumed_at"]) for each in summary.changes] == [("recreated", 0)]
    assert out.offsets()["t-0"] == sorted([*range(20), *range(10)])
    assert out.write(source).action == "unchanged"


def test_a_truncation_is_an_error_that_names_the_end_of_the_epoch(out: Output) -> None:
    """Another leader has written other records at the offsets after the ones that it had."""
    cluster = filled(4, epoch=3)
    source: Any = cluster_source(cluster)
    out.write(source)
    [log] = cluster.topics["t"]
    del log.batches[2:]
    log.epoch = 5
    append(log, 3)
    message = "truncated and written again: the records of leader epoch 3 end now at offset 10"
    with pytest.raises(kbatch.LogDirectoryError, match=message):
        out.write(source)
    summary = out.write(source, LOSES)
    assert [(each["kind"], each["resumed_at"]) for each in summary.changes] == [("truncated", 10)]
    assert out.offsets()["t-0"] == sorted([*range(20), *range(10, 25)])


def test_a_log_that_ends_before_the_position_was_truncated(out: Output) -> None:
    cluster = filled(4)
    source: Any = cluster_source(cluster)
    out.write(source)
    del cluster.topics["t"][0].batches[3:]
    with pytest.raises(kbatch.LogDirectoryError, match="the log was truncated: its end is now offset 15"):
        out.write(source)


def test_records_that_retention_deleted_before_the_position_reached_them_are_an_error_or_reported(out: Output) -> None:
    cluster = filled(2)
    source: Any = cluster_source(cluster)
    out.write(source)
    [log] = cluster.topics["t"]
    append(log, 4)
    log.start = 20
    with pytest.raises(kbatch.LogDirectoryError, match="offsets 10 to 19 were deleted: the first offset available is"):
        out.write(source)
    summary = out.write(source, LOSES)
    assert (summary.exit_status, summary.changes[0]["kind"]) == (3, "deleted")
    assert out.offsets()["t-0"] == [*range(10), *range(20, 30)]


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("fails", [True, False])
def test_records_that_are_deleted_during_the_read_are_an_error_or_a_reported_gap(
    out: Output, fails: bool, start: int
) -> None:
    cluster = filled(6)
    source: Any = cluster_source(cluster)
    out.write(source, ReadOptions(ending=Bound(offset=5)))
    [log] = cluster.topics["t"]
    # The position may be the first offset of the log.
    log.start = start

    def delete() -> None:
        log.start = 15

    # The first fetch is of a sample of the sizes.
    cluster.fail(ApiKey.FETCH, Fault(), Fault(run=delete))
    options = ReadOptions(fail_on_data_loss=fails)
    if fails:
        with pytest.raises(
            BrokerError, match=r"were deleted by retention .*; start the export again, .* --allow-missing-offsets"
        ):
            out.write(source, options)
        assert out.offsets()["t-0"] == list(range(5))
        return
    summary = out.write(source, options)
    assert (summary.exit_status, summary.gap_offsets, summary.records) == (3, 10, 15)
    assert "deleted by retention" in summary.losses[0]["reason"]
    assert out.write(source, options).action == "unchanged"
    assert out.offsets()["t-0"] == [*range(5), *range(15, 30)]


# -- logs and clusters


def as_directory(cluster: ScriptedCluster, root: Path, *, has_id: bool) -> Path:
    """Write the partitions of a cluster as a log directory."""
    for number, log in enumerate(cluster.topics["t"]):
        log_batches.write_segment(root / f"t-{number}", 0, log.batches)
        if has_id:
            text = base64.urlsafe_b64encode(cluster.ids["t"].bytes).rstrip(b"=").decode()
            (root / f"t-{number}" / "partition.metadata").write_text(f"version: 0\ntopic_id: {text}\n")
    return root


@pytest.mark.parametrize("has_id", [True, False])
def test_an_export_of_a_directory_continues_from_the_cluster_if_it_is_the_same_log(
    out: Output, tmp_path: Path, has_id: bool
) -> None:
    """The same topic id shows it, or the record before the position."""
    cluster = filled(4)
    out.write(as_directory(cluster, tmp_path / "logs", has_id=has_id))
    append(cluster.topics["t"][0], 2)
    summary = out.write(cluster_source(cluster))  # type: ignore[arg-type]
    assert (summary.action, summary.records, summary.changes) == ("continued", 10, [])
    assert out.offsets()["t-0"] == list(range(30))


def test_an_export_of_a_directory_does_not_continue_from_a_cluster_with_other_records(
    out: Output, tmp_path: Path
) -> None:
    out.write(as_directory(filled(4), tmp_path / "logs", has_id=False))
    other = filled(6, rows=5, epoch=0)
    other.topics["t"][0].batches = []
    for _ in range(6):
        other.topics["t"][0].write([b"other"] * 5)
    with pytest.raises(kbatch.LogDirectoryError, match="the record with offset 19 is not the one that was exported"):
        out.write(cluster_source(other))  # type: ignore[arg-type]


def test_an_export_of_a_directory_does_not_continue_from_a_cluster_without_the_last_record(
    out: Output, tmp_path: Path
) -> None:
    cluster = filled(4)
    out.write(as_directory(cluster, tmp_path / "logs", has_id=False))
    [log] = cluster.topics["t"]
    append(log, 2)
    # Compaction has removed it.
    del log.batches[3]
    with pytest.raises(kbatch.LogDirectoryError, match="nothing shows that this is the log that was exported"):
        out.write(cluster_source(cluster))  # type: ignore[arg-type]


# -- tasks


def test_a_partition_is_read_by_several_tasks_that_are_cut_at_batches(tmp_path: Path) -> None:
    cluster = filled(200, 3, rows=7)
    summary = kbatch.export(cluster_source(cluster), tmp_path / "out", engine="local", threads=3, split_bytes=5000)
    files = [name for name in summary.files if "partition=0" in name]
    assert len(files) > 3
    assert [row["offset"] for row in rows_in(tmp_path / "out")] == [*range(1400), *range(21)]
    assert summary.batches == {"none": 203}
    # The name of a file has its first offset.
    assert all(int(name.rsplit("part-")[1][:20]) % 7 == 0 for name in files)
    assert summary.partitions[0].removed_offsets == 0


def test_lost_connections_and_a_new_leader_are_ridden_out(tmp_path: Path) -> None:
    cluster = filled(60)
    cluster.brokers.append(2)
    [log] = cluster.topics["t"]

    def elect() -> None:
        log.leader, log.epoch = 2, 1

    cluster.fail(ApiKey.FETCH, Fault(), Fault(cut=10), Fault(run=elect))
    cluster.fail(ApiKey.LIST_OFFSETS, Fault(cut=3))
    cluster.fail(ApiKey.METADATA, Fault(cut=3))
    summary = kbatch.export(cluster_source(cluster), tmp_path / "out", engine="local")
    assert (summary.records, summary.lost_bytes) == (300, 0)


def test_tasks_wait_for_brokers_that_restart_as_long_as_reads_that_go_on(tmp_path: Path) -> None:
    """The time for the first connection is for wrong addresses; a task begins after others have connected."""
    cluster = filled(6)

    def restart() -> None:
        # The connections of the planner stay open.
        cluster.refused.add(1)
        threading.Timer(0.3, lambda: cluster.refused.discard(1)).start()

    cluster.fail(ApiKey.FETCH, Fault(run=restart))
    source = cluster_source(cluster, socket_connection_setup_timeout_ms=100)
    assert kbatch.export(source, tmp_path / "out", engine="local").records == 30


def test_a_topic_that_is_created_again_during_the_read_ends_the_run(out: Output) -> None:
    cluster = filled(60)
    cluster.fail(ApiKey.FETCH, Fault(), Fault(run=lambda: created_again(cluster, 90) and None))
    for options in (ReadOptions(), LOSES):
        with pytest.raises(BrokerError, match="recreated"):
            out.write(cluster_source(cluster), options)  # type: ignore[arg-type]
        cluster.fail(ApiKey.FETCH, Fault(), Fault(run=lambda: created_again(cluster, 90) and None))
        assert not (out.path / "_manifest.json").exists()


def test_read_committed_ends_at_the_last_stable_offset_and_continues_there(out: Output) -> None:
    cluster = filled(4)
    [log] = cluster.topics["t"]
    log.stable = 15
    source: Any = cluster_source(cluster)
    options = ReadOptions(isolation="read_committed")
    summary = out.write(source, options)
    assert (summary.records, summary.withheld_offsets, summary.exit_status) == (15, 5, 4)
    assert summary.partitions[0].lag_offsets == 5
    log.stable = None
    summary = out.write(source, options)
    assert (summary.records, summary.withheld_offsets, summary.exit_status) == (5, 0, 0)


def test_bounds_keys_values_and_days_are_as_for_directories(tmp_path: Path) -> None:
    log = ScriptedPartition()
    for number in range(8):
        day = 86_400_000 * (number // 4)
        log.write([b'{"n": %d}' % number] * 2, keys=[b"a", b"b"], timestamps=[day + number] * 2)
    cluster = ScriptedCluster(1, t=[log])
    root = as_directory(cluster, tmp_path / "logs", has_id=False)
    given: list[dict[str, Any]] = [
        {"start_offset": 3, "stop_offset": 9},
        {"start_offset": -5},
        {"start_timestamp": 2, "stop_timestamp": 86_400_005},
        {"start_timestamp": 10**10},
        {"key": b"b"},
        {"values": "json", "by_day": True},
        {"values": "json", "value_schema": "n INT, m STRING", "flatten": True},
        {"topic_pattern": "t|u", "include_headers": False},
    ]
    for number, options in enumerate(given):
        kbatch.export(root, tmp_path / f"files{number}", engine="local", **options)
        kbatch.export(cluster_source(cluster), tmp_path / f"live{number}", engine="local", **options)
        assert rows_in(tmp_path / f"live{number}") == rows_in(tmp_path / f"files{number}"), options


def test_offsets_that_are_named_and_do_not_exist_are_an_error_or_listed(out: Output) -> None:
    source: Any = cluster_source(filled(2))
    ending = Bound(offsets={"t": {0: 30}})
    with pytest.raises(BrokerError, match="the read asks for offsets below 30"):
        out.write(source, ReadOptions(ending=ending))
    summary = out.write(source, ReadOptions(ending=ending, fail_on_data_loss=False))
    assert (summary.exit_status, summary.missing_offsets[0]["last_offset"]) == (3, 29)


def test_new_fields_of_values_become_columns(tmp_path: Path) -> None:
    log = ScriptedPartition()
    log.write([b'{"a": 1}'] * 3)
    source = cluster_source(ScriptedCluster(1, t=[log]))
    kbatch.export(source, tmp_path / "out", engine="local", values="json")
    log.write([b'{"a": 2, "b": "x"}'])
    summary = kbatch.export(source, tmp_path / "out", engine="local", values="json")
    assert [(each["column"], each["change"]) for each in summary.schema_changes] == [("value.b", "added")]


def test_arguments_that_need_files_are_refused(tmp_path: Path) -> None:
    source = cluster_source(filled(1))
    with pytest.raises(ValueError, match="index needs log directories"):
        kbatch.export(source, tmp_path / "out", engine="local", key=b"a", index=tmp_path)
    with pytest.raises(ValueError, match="a cluster excludes other paths"):
        kbatch.export(["kafka://a", "b"], tmp_path / "out")
    with pytest.raises(ValueError, match="config has the settings of a cluster"):
        kbatch.export(tmp_path, tmp_path / "out", config={"client.id": "x"})
    with pytest.raises(ValueError, match="config and a ClusterSource exclude each other"):
        kbatch.export(source, tmp_path / "out", config={"client.id": "x"})
    with pytest.raises(BrokerError, match="there is no topic 'x'"):
        kbatch.export(source, tmp_path / "out", engine="local", topics=["x"])


# -- following


@every_format
def test_a_follower_commits_what_arrives(out: Output) -> None:
    cluster = filled(3, 1)
    commits: list[int] = []

    def on_commit(summary: Any, lag: Any) -> None:
        commits.append(summary.records)
        if len(commits) == 4:
            raise StoppedError
        append(cluster.topics["t"][len(commits) % 2], 2)
        if len(commits) == 2:
            cluster.topics["u"] = filled(1).topics["t"]
            cluster.ids["u"] = uuid.uuid4()

    where = {"table": iceberg_catalog.TABLE, "catalog": iceberg_catalog.NAME} if out.kind == "iceberg" else {}
    source: Any = cluster_source(cluster)
    with pytest.raises(StoppedError):
        follow(source, out.path, format=out.kind, on_commit=on_commit, commit_interval=0.0, **where)
    assert commits[0] == 20
    assert sum(commits) == 20 + 30 + 5
    assert out.offsets() == {"t-0": list(range(25)), "t-1": list(range(25)), "u-0": list(range(5))}


def test_a_follower_divides_a_long_history_into_commits(out: Output) -> None:
    cluster = filled(300, 100)
    summary = follow(cluster_source(cluster), out.path, commit_bytes=6000, available_now=True)  # type: ignore[arg-type]
    assert summary.commits > 3
    assert (summary.records, summary.lag.offsets, summary.lag.bytes) == (2000, 0, 0)
    assert out.offsets() == {"t-0": list(range(1500)), "t-1": list(range(500))}


def test_a_follower_ends_with_both_ids_if_the_topic_is_created_again(out: Output) -> None:
    cluster = filled(3)
    first = cluster.ids["t"]

    def on_commit(summary: Any, lag: Any) -> None:
        append(cluster.topics["t"][0], 2)
        cluster.fail(ApiKey.FETCH, Fault(run=lambda: created_again(cluster, 9) and None))

    source: Any = cluster_source(cluster)
    with pytest.raises(kbatch.LogDirectoryError, match=f"its id was {first}, and is now"):
        follow(source, out.path, on_commit=on_commit, commit_interval=0.0)
    assert out.offsets()["t-0"] == list(range(15))


def test_a_follower_reads_on_after_open_transactions_end(out: Output) -> None:
    cluster = filled(4)
    [log] = cluster.topics["t"]
    log.stable = 10
    commits: list[int] = []

    def on_commit(summary: Any, lag: Any) -> None:
        commits.append(summary.records)
        if len(commits) == 2:
            raise StoppedError
        log.stable = None

    options = ReadOptions(isolation="read_committed")
    with pytest.raises(StoppedError):
        follow(cluster_source(cluster), out.path, options, on_commit=on_commit, commit_interval=0.0)  # type: ignore[arg-type]
    assert commits == [10, 10]


def test_metrics_have_the_lag_of_each_topic(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    cluster = filled(3)
    file = tmp_path / "kbatch.prom"
    kbatch.export(cluster_source(cluster), tmp_path / "out", engine="local", stop_offset=5, metrics=file)
    text = file.read_text()
    assert f'kbatch_export_lag_offsets{{out="{tmp_path}/out",topic="t"}} 10.0' in text
    kbatch.follow(cluster_source(cluster), tmp_path / "out", engine="local", available_now=True, metrics=file)
    assert f'kbatch_export_lag_bytes{{out="{tmp_path}/out",topic="t"}} 0.0' in file.read_text()


@pytest.mark.parametrize("api", [ApiKey.FETCH, ApiKey.LIST_OFFSETS])
def test_an_interrupt_ends_an_export_that_waits_for_a_broker_within_a_second(tmp_path: Path, api: ApiKey) -> None:
    cluster = filled(30)
    began: list[float] = []

    def interrupt() -> None:
        began.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    run = Fault(hangs=True, run=lambda: threading.Timer(0.1, interrupt).start())
    cluster.fail(api, *([Fault(), run] if api == ApiKey.FETCH else [run]))
    with pytest.raises(KeyboardInterrupt):
        kbatch.export(cluster_source(cluster, request_timeout_ms=30_000), tmp_path / "out", engine="local")
    assert time.monotonic() - began[0] < 1
    assert not (tmp_path / "out").exists()


# -- verification and kills


def test_an_output_is_verified_against_the_cluster(out: Output) -> None:
    cluster = filled(4, 2)
    source = cluster_source(cluster)
    out.write(source)  # type: ignore[arg-type]
    append(cluster.topics["t"][1], 1)
    found = kbatch.verify_export(out.path, source)
    assert [(each.kind, each.damage) for each in found.findings] == [("behind", False)]
    assert sum(part.compared for part in found.partitions) == 30
    [file] = (out.path / "topic=t" / "partition=0").iterdir()
    file.unlink()
    (out.path / "_manifest.json").write_text(
        (out.path / "_manifest.json").read_text().replace(f'"topic=t/partition=0/{file.name}",', "", 2)
    )
    found = kbatch.verify_export(out.path, source)
    assert ("missing", 20) in [(each.kind, each.total) for each in found.findings]


@pytest.mark.parametrize(("kind", "follows"), [*KILLED, *((kind, not follows) for kind, follows in KILLED if ALL)])
def test_every_record_is_written_once_despite_kills_at_random_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, follows: bool
) -> None:
    settings: dict[str, Any] = {"format": kind, "follows": follows}
    if kind == "delta":
        pytest.importorskip("deltalake")
    if kind == "iceberg":
        iceberg_catalog.use(tmp_path, monkeypatch)
        settings |= {"table": iceberg_catalog.TABLE, "catalog": iceberg_catalog.NAME}
    script = Path(killed_live.__file__)
    paths = os.pathsep.join([str(script.parent), str(Path(kbatch.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, script, json.dumps(settings), tmp_path / "out", str(KILLS)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 0
