"""Exports that follow logs: what a commit has, when it comes, how one ends, and every record once."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kbatch

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

import export_outputs  # noqa: E402
import iceberg_catalog  # noqa: E402
import killed_followers  # noqa: E402
import local_export  # noqa: E402
from export_outputs import Output  # noqa: E402
from kill_rounds import run_rounds  # noqa: E402
from local_follow import GrowingLog, follow  # noqa: E402
from log_batches import NOW, batch, write_segment  # noqa: E402
from transaction_logs import data, marker, txn  # noqa: E402

from kbatch import exporting  # noqa: E402
from kbatch.bounds import Bound  # noqa: E402
from kbatch.plan.read_options import ReadOptions  # noqa: E402
from kbatch.sinks import follower, offset_ranges, run_input, working  # noqa: E402
from kbatch.sinks.export_run import ExportRun  # noqa: E402
from kbatch.sinks.local_engine import LocalExecutor  # noqa: E402
from kbatch.sinks.offset_ranges import CommitOffsets, OffsetRange  # noqa: E402
from kbatch.sinks.outputs import open_place  # noqa: E402
from kbatch.value_options import ValueOptions  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

# KBATCH_TEST_ALL=1, as in .ci/long, kills a hundred followers of each format.
KILLS = 100 if os.environ.get("KBATCH_TEST_ALL") else 10


def where(kind: str) -> dict[str, Any]:
    tables = {"table": iceberg_catalog.TABLE, "catalog": iceberg_catalog.NAME} if kind == "iceberg" else {}
    return {"format": kind, **tables}


def in_table(kind: str) -> dict[str, Any]:
    return {name: value for name, value in where(kind).items() if name != "format"}


def test_every_record_is_written_once_despite_kills_at_random_times(
    killed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, out = tmp_path / "logs", killed.pop("out")
    assert run_rounds(killed_followers, killed, root, out, KILLS) > 0
    monkeypatch.setattr(working, "DEAD_SECONDS", 0)
    follow(root, out, available_now=True, **killed)
    tables = {name: killed[name] for name in ("table", "catalog") if name in killed}
    found = kbatch.verify_export(out, root, storage_options=killed.get("storage"), **tables)
    assert (found.damaged, found.findings) == (False, [])
    assert sum(part.compared for part in found.partitions) == sum(map(len, local_export.log_offsets(root).values()))
    names = open_place(out, killed.get("storage", {})).files()
    assert [name for name in [*names, *os.listdir(tmp_path)] if "_temporary-" in name or ".tmp-" in name] == []


@pytest.mark.parametrize("out", export_outputs.FORMATS, indirect=True)
def test_a_long_history_is_committed_in_steps_from_the_oldest_segments_on(out: Output, tmp_path: Path) -> None:
    logs = [GrowingLog(tmp_path / "logs" / f"t-{number}") for number in range(2)]
    for log in logs:
        log.append(40)
    reached: list[dict[str, list[int]]] = []
    summary = follow(
        tmp_path / "logs",
        out.path,
        available_now=True,
        commit_bytes=1500,
        on_commit=lambda *_: reached.append(out.offsets()),
        **where(out.kind),
    )
    assert summary.commits == len(reached) > 4
    assert (summary.records, summary.exit_status, summary.lag) == (160, 0, (0, 0))
    for found in reached:
        assert all(offsets == list(range(len(offsets))) for offsets in found.values())
    assert reached[-1] == {"t-0": list(range(80)), "t-1": list(range(80))}
    assert kbatch.verify_export(out.path, tmp_path / "logs", **in_table(out.kind)).findings == []


def test_a_commit_states_the_offsets_that_it_covers(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "logs" / "t-0")
    log.append(40)
    follow(tmp_path / "logs", tmp_path / "out", available_now=True, commit_bytes=2000)
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    found = [CommitOffsets.parse(run["kbatch.offsets"]) for run in manifest["runs"]]
    assert [each.after for each in found] == [None, *(run["run"] for run in manifest["runs"][:-1])]
    ranges = [each.ranges["t", 0] for each in found]
    assert [each.end for each in ranges[:-1]] == [each.start for each in ranges[1:]]
    assert (ranges[0].start, ranges[-1].end, sum(each.records for each in ranges)) == (0, 80, 80)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_the_offsets_of_a_commit_are_in_the_metadata_of_the_table(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "delta":
        pytest.importorskip("deltalake")
    else:
        iceberg_catalog.use(tmp_path, monkeypatch)
    GrowingLog(tmp_path / "logs" / "t-0").append(3)
    follow(tmp_path / "logs", tmp_path / "out", available_now=True, **where(kind))
    table = Output(kind, tmp_path / "out").table()
    if kind == "delta":
        text = table.history(1)[0]["kbatch.offsets"]
    else:
        text = table.current_snapshot().summary.additional_properties["kbatch.offsets"]
    assert CommitOffsets.parse(text).ranges == {("t", 0): OffsetRange(0, 6, 6)}


class Stopped(Exception):
    """Ends a follower in a test."""


class Growing:
    """Follows in this process; at each commit and each pause the next step of the test is taken."""

    def __init__(self, root: Path, out: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.now = 1000.0
        self.commits: list[tuple[float, int]] = []
        self.steps: list[Any] = []
        # Only the follower has this clock: other threads of the process, such as those of py4j, must not take steps.
        monkeypatch.setattr(follower, "time", SimpleNamespace(sleep=self._pause, monotonic=lambda: self.now))
        self._follow = lambda: follow(root, out, on_commit=self._on_commit, **options)

    def run(self, *steps: Any) -> list[tuple[float, int]]:
        """Take the steps, one at each pause; return when there were commits, and of how many records."""
        self.steps = list(steps)
        with pytest.raises(Stopped):
            self._follow()
        return self.commits

    def _pause(self, seconds: float) -> None:
        if not self.steps:
            raise Stopped
        self.now += 1
        step = self.steps.pop(0)
        if step is not None:
            step()

    def _on_commit(self, summary: Any, lag: Any) -> None:
        self.commits.append((self.now - 1000, summary.records))


def test_a_commit_comes_when_a_record_has_waited_for_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = GrowingLog(tmp_path / "logs" / "t-0")
    log.append()
    growing = Growing(tmp_path / "logs", tmp_path / "out", monkeypatch, commit_interval=5)
    # What is there at the start is committed at once.
    assert growing.run(None, log.append, log.append, *[None] * 8, log.append, *[None] * 6) == [(0, 2), (7, 4), (17, 2)]


def test_a_commit_comes_early_when_its_bytes_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = GrowingLog(tmp_path / "logs" / "t-0")
    log.append()
    size = os.path.getsize(tmp_path / "logs" / "t-0" / f"{0:020d}.log")
    options: Any = {"commit_interval": 500, "commit_bytes": 8 * size}
    growing = Growing(tmp_path / "logs", tmp_path / "out", monkeypatch, **options)
    found = growing.run(*[log.append] * 12)
    assert [records for _, records in found] == [2, 16]


def test_new_topics_and_rolled_segments_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, other = GrowingLog(tmp_path / "logs" / "t-0", 2), GrowingLog(tmp_path / "logs" / "u-0", 2)
    log.append()
    growing = Growing(tmp_path / "logs", tmp_path / "out", monkeypatch, commit_interval=0)
    growing.run(lambda: log.append(5), lambda: other.append(3), lambda: log.append(4), None)
    assert Output("parquet", tmp_path / "out").offsets() == {"t-0": list(range(20)), "u-0": list(range(6))}
    assert len(list((tmp_path / "logs" / "t-0").iterdir())) > 3
    assert kbatch.verify_export(tmp_path / "out", tmp_path / "logs").findings == []


def test_logs_without_anything_new_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = [GrowingLog(tmp_path / "logs" / f"t-{number}") for number in range(4)]
    for log in logs:
        log.append()
    opened: list[str] = []
    original = run_input.open_log

    def open_log(path: str, *arguments: Any) -> Any:
        opened.append(os.path.basename(path))
        return original(path, *arguments)

    monkeypatch.setattr(run_input, "open_log", open_log)
    growing = Growing(tmp_path / "logs", tmp_path / "out", monkeypatch, commit_interval=0)
    growing.run(None, logs[2].append, None, None)
    assert opened == ["t-2"]


def test_the_engine_is_started_once_and_only_if_there_is_something_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    class Counted(LocalExecutor):
        def __init__(self, threads: int | None = None) -> None:
            started.append(1)
            super().__init__(threads)

    monkeypatch.setattr(exporting, "LocalExecutor", Counted)
    GrowingLog(tmp_path / "logs" / "t-0").append(20)
    options: Any = {"engine": "local", "available_now": True, "commit_bytes": 500}
    assert kbatch.follow(tmp_path / "logs", tmp_path / "out", **options).commits > 2
    assert started == [1]
    assert kbatch.follow(tmp_path / "logs", tmp_path / "out", **options).commits == 0
    assert started == [1]


def test_all_commits_have_the_columns_that_the_first_one_inferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def segment(first: int, value: bytes) -> None:
        batches = [batch(first + i, [NOW + first + i], value=value) for i in range(20)]
        write_segment(tmp_path / "logs" / "t-0", first, batches)

    segment(0, b'{"a": 1}')
    options = ReadOptions(values=ValueOptions.of({"values": "json"}))
    growing = Growing(tmp_path / "logs", tmp_path / "out", monkeypatch, commit_interval=0, options=options)
    growing.run(lambda: segment(20, b'{"a": 2}'), lambda: segment(40, b'{"a": 3}'), None)
    files = [pq.ParquetFile(path).read() for path in (tmp_path / "out").rglob("part-*.parquet")]
    assert len(files) == 3
    assert {str(file.schema.field("value").type) for file in files} == {"struct<a: int64>"}
    assert sorted(value["a"] for file in files for value in file["value"].to_pylist()) == sorted([1, 2, 3] * 20)


def test_a_start_at_the_end_is_the_end_when_the_follower_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = GrowingLog(tmp_path / "logs" / "t-0")
    log.append(5)
    options = ReadOptions(starting=Bound(log_end="latest"), latest_if_no_timestamp=True)
    growing = Growing(tmp_path / "logs", tmp_path / "out", monkeypatch, commit_interval=0, options=options)
    growing.run(None, lambda: log.append(2), lambda: log.append(2), None)
    assert Output("parquet", tmp_path / "out").offsets() == {"t-0": list(range(10, 18))}


@pytest.mark.parametrize("commit_bytes", [1, 1 << 30])
def test_an_open_transaction_withholds_records_until_it_is_decided(commit_bytes: int, tmp_path: Path) -> None:
    root, out = tmp_path / "logs", tmp_path / "out"
    batches = [data(0, count=2), *(txn(2 + i, 7) for i in range(20)), data(22, count=2)]
    write_segment(root / "t-0", 0, batches)
    options = ReadOptions(isolation="read_committed")
    first = follow(root, out, options, available_now=True, commit_bytes=commit_bytes)
    assert (first.records, first.exit_status, first.lag.offsets) == (2, 4, 22)
    write_segment(root / "t-0", 0, [*batches, marker(24, 7, 1)])
    second = follow(root, out, options, available_now=True, commit_bytes=commit_bytes)
    assert (second.records, second.exit_status, second.lag.offsets) == (22, 0, 0)
    assert kbatch.verify_export(out, root).findings == []


def test_a_second_follower_ends_at_once_with_an_error_also_between_two_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = GrowingLog(tmp_path / "logs" / "t-0")
    log.append()
    root, out = tmp_path / "logs", tmp_path / "out"
    errors: list[str] = []

    def second() -> None:
        with pytest.raises(kbatch.LogDirectoryError) as raised:
            follow(root, out)
        errors.append(str(raised.value))
        with pytest.raises(kbatch.LogDirectoryError, match="another export is writing to it"):
            local_export.export(root, out)
        log.append()

    growing = Growing(root, out, monkeypatch, commit_interval=0)
    assert [records for _, records in growing.run(None, second, None, None)] == [2, 2]
    assert f"another export is writing to it (process {os.getpid()}" in errors[0]
    # The lock ends with the follower.
    assert local_export.export(root, out).action == "unchanged"


def test_a_full_disk_ends_a_follower_and_the_commits_before_remain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = GrowingLog(tmp_path / "logs" / "t-0")
    log.append(40)
    root, out = tmp_path / "logs", tmp_path / "out"
    original = ExportRun.run
    runs: list[int] = []

    def run(self: ExportRun, *arguments: Any) -> None:
        runs.append(1)
        if len(runs) == 3:
            raise OSError(28, "No space left on device")
        original(self, *arguments)

    monkeypatch.setattr(ExportRun, "run", run)
    with pytest.raises(OSError, match="No space left"):
        follow(root, out, available_now=True, commit_bytes=800)
    assert [name for name in os.listdir(out) if "_temporary-" in name] == []
    found = kbatch.verify_export(out, root)
    assert [finding.kind for finding in found.findings] == ["behind"]
    follow(root, out, available_now=True)
    assert kbatch.verify_export(out, root).findings == []


@pytest.mark.parametrize("failures", [1, 4])
def test_a_run_is_repeated_if_a_file_was_deleted_while_it_was_read(
    failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log cleaner replaces segments, and retention deletes them."""
    GrowingLog(tmp_path / "logs" / "t-0").append(5)
    root, out = tmp_path / "logs", tmp_path / "out"
    original = ExportRun.run
    runs: list[int] = []

    def run(self: ExportRun, *arguments: Any) -> None:
        runs.append(1)
        if len(runs) <= failures:
            raise kbatch.LogDirectoryError("deleted", source=str(root / "t-0" / "deleted.log"))
        original(self, *arguments)

    monkeypatch.setattr(ExportRun, "run", run)
    if failures == 4:
        with pytest.raises(kbatch.LogDirectoryError, match="deleted"):
            follow(root, out, available_now=True)
        assert os.listdir(tmp_path) == ["logs"]
        return
    follow(root, out, available_now=True)
    assert len(runs) == 2
    assert kbatch.verify_export(out, root).findings == []


def test_deleted_records_are_an_error_or_a_reported_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = GrowingLog(tmp_path / "logs" / "t-0", 2)
    log.append(2)
    root, out = tmp_path / "logs", tmp_path / "out"
    follow(root, out, available_now=True)
    log.append(6)
    for offset in 0, 4:
        (root / "t-0" / f"{offset:020d}.log").unlink()
    with pytest.raises(kbatch.LogDirectoryError, match="offsets 4 to 7 were deleted"):
        follow(root, out, available_now=True)
    summary = follow(root, out, ReadOptions(fail_on_data_loss=False), available_now=True)
    assert (summary.records, summary.exit_status) == (8, 3)
    assert [(each.kind, each.first_offset) for each in kbatch.verify_export(out, root).findings] == [("gone", 0)]


@pytest.mark.parametrize("is_running", [True, False])
def test_a_log_that_is_truncated_is_an_error_or_a_reported_change(
    is_running: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = GrowingLog(tmp_path / "logs" / "t-0")
    log.append(5)
    root, out = tmp_path / "logs", tmp_path / "out"
    path = root / "t-0" / f"{0:020d}.log"

    def truncate() -> None:
        os.truncate(path, os.path.getsize(path) * 3 // 5)

    if is_running:
        with monkeypatch.context() as patch:
            growing = Growing(root, out, patch, commit_interval=0)
            with pytest.raises(kbatch.LogDirectoryError, match="the log was truncated: its end is now offset 6"):
                growing.run(None, truncate, None)
        assert [records for _, records in growing.commits] == [10]
    else:
        follow(root, out, available_now=True)
        truncate()
        with pytest.raises(kbatch.LogDirectoryError, match="the log was truncated: its end is now offset 6"):
            follow(root, out, available_now=True)
    assert follow(root, out, ReadOptions(fail_on_data_loss=False), available_now=True).records == 0
    found = kbatch.verify_export(out, root)
    assert [(each.kind, each.total) for each in found.findings] == [("restarted", 4)]


def test_a_verification_during_commits_finds_nothing_missing(killed: dict[str, Any], tmp_path: Path) -> None:
    logs = [GrowingLog(tmp_path / "logs" / f"t-{number}") for number in range(2)]
    for log in logs:
        log.append(100)
    out = killed.pop("out")
    tables = {name: killed[name] for name in ("table", "catalog") if name in killed}
    first, failures = threading.Event(), []

    def run() -> None:
        try:
            options: Any = {"available_now": True, "commit_bytes": 600, "on_commit": lambda *_: first.set()}
            follow(tmp_path / "logs", out, **options, **killed)
        except BaseException as error:
            failures.append(error)
        finally:
            first.set()

    thread = threading.Thread(target=run)
    thread.start()
    first.wait()
    found = []
    while thread.is_alive() and len(found) < 5:
        verified = kbatch.verify_export(out, tmp_path / "logs", storage_options=killed.get("storage"), **tables)
        found.append((verified.damaged, {finding.kind for finding in verified.findings}))
    thread.join()
    assert failures == []
    assert found
    assert all(not damaged and kinds <= {"behind"} for damaged, kinds in found), found


def test_the_offsets_of_many_partitions_are_in_a_file_and_not_in_the_metadata(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    text = CommitOffsets(ranges={("t", number): OffsetRange(0, 10**9, 10**9) for number in range(2000)}).to_text()
    assert offset_ranges.commit_metadata(text) == {}
    assert len(CommitOffsets.parse(text).ranges) == 2000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offset_ranges, "MAX_INLINE", 10)
        GrowingLog(tmp_path / "logs" / "t-0").append(3)
        follow(tmp_path / "logs", tmp_path / "out", available_now=True, format="delta")
    assert "kbatch.offsets" not in Output("delta", tmp_path / "out").table().history(1)[0]
    assert kbatch.verify_export(tmp_path / "out", tmp_path / "logs").findings == []


def test_an_interrupt_during_a_commit_ends_the_follower_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import signal

    log = GrowingLog(tmp_path / "logs" / "t-0")
    log.append(40)
    root, out = tmp_path / "logs", tmp_path / "out"
    original = ExportRun.commit

    def commit(self: ExportRun) -> Any:
        signal.raise_signal(signal.SIGINT)
        return original(self)

    monkeypatch.setattr(ExportRun, "commit", commit)
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        follow(root, out, commit_bytes=2000, on_commit=lambda summary, lag: seen.append(summary.records))
    assert len(seen) == 1
    assert out.is_dir()
    assert [name for name in os.listdir(out) if "_temporary-" in name] == []
    assert len(Output("parquet", out).offsets()["t-0"]) == seen[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "overwrite"}, "mode must be continue"),
        ({"end": "latest"}, "end is for an export that ends"),
        ({"on_error": "stop"}, "on_error stop is not valid"),
        ({"on_error": {"t": "stop"}}, "on_error stop is not valid"),
        ({"commit_interval": -1.0}, "commit_interval must not be negative"),
        ({"commit_bytes": 0}, "commit_bytes must be"),
    ],
)
def test_options_of_a_single_run_are_refused(options: Any, message: str, tmp_path: Path) -> None:
    GrowingLog(tmp_path / "logs" / "t-0").append()
    with pytest.raises(ValueError, match=message):
        kbatch.follow(tmp_path / "logs", tmp_path / "out", **options)


def test_a_url_cannot_be_followed(tmp_path: Path) -> None:
    with pytest.raises(kbatch.LogDirectoryError, match="watch directories of a local or mounted file system"):
        kbatch.follow("s3://bucket/logs", tmp_path / "out", storage_options={"region": "x", "anonymous": "true"})


def test_metrics_have_the_lag_of_all_topics_after_each_commit(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    for name in ("t-0", "u-0"):
        GrowingLog(tmp_path / "logs" / name).append(10)
    metrics = tmp_path / "k.prom"
    seen: list[str] = []
    kbatch.follow(
        tmp_path / "logs",
        tmp_path / "out",
        engine="local",
        available_now=True,
        commit_bytes=1000,
        metrics=metrics,
        on_commit=lambda summary, lag: seen.append(metrics.read_text()),
    )
    out = tmp_path / "out"
    assert f'kbatch_export_lag_offsets{{out="{out}",topic="u"}} 0.0' in seen[-1]
    assert f'kbatch_export_lag_bytes{{out="{out}",topic="t"}} 0.0' in seen[-1]
    assert f'kbatch_export_lag_bytes{{out="{out}",topic="t"}} 0.0' not in seen[0]


def test_logs_may_grow_during_a_commit(tmp_path: Path) -> None:
    """A writer appends all the time; what it has appended at the end is there once."""
    logs = [GrowingLog(tmp_path / "logs" / f"t-{number}") for number in range(2)]
    for log in logs:
        log.append(5)
    done = threading.Event()

    def grow() -> None:
        while not done.is_set():
            for log in logs:
                log.append()
            time.sleep(0.002)

    def on_commit(summary: Any, lag: Any) -> None:
        if len(seen) == 10:
            done.set()
            raise Stopped
        seen.append(summary.records)

    seen: list[int] = []
    writer = threading.Thread(target=grow)
    writer.start()
    try:
        with pytest.raises(Stopped):
            follow(tmp_path / "logs", tmp_path / "out", commit_interval=0.0, on_commit=on_commit)
    finally:
        done.set()
        writer.join()
    assert len(seen) == 10
    follow(tmp_path / "logs", tmp_path / "out", available_now=True)
    assert kbatch.verify_export(tmp_path / "out", tmp_path / "logs").findings == []
    assert Output("parquet", tmp_path / "out").offsets() == {
        f"t-{number}": list(range(log.end)) for number, log in enumerate(logs)
    }


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_spark_follows_with_one_session_and_the_local_engine_continues(tmp_path: Path, spark: Any) -> None:
    log = GrowingLog(tmp_path / "logs" / "t-0")
    log.append(20)
    engines: list[str] = []

    def on_commit(summary: Any, lag: Any) -> None:
        engines.append(summary.engine)

    root, out = tmp_path / "logs", tmp_path / "out"
    options: Any = {"available_now": True, "commit_bytes": 2000, "on_commit": on_commit}
    kbatch.follow(root, out, engine="spark", **options)
    log.append(20)
    kbatch.follow(root, out, engine="local", **options)
    assert {*engines} == {"spark", "local"}
    assert Output("parquet", out).offsets() == {"t-0": list(range(80))}
    assert kbatch.verify_export(out, root).findings == []
