"""Exports that are killed, and two at once: every record once, and one clear error."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import kbatch

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

import iceberg_catalog  # noqa: E402
import killed_exports  # noqa: E402
import killed_steps  # noqa: E402
import local_export  # noqa: E402
from kill_rounds import run_rounds  # noqa: E402
from killed_exports import grow  # noqa: E402
from local_export import export, export_killed_at, log_offsets  # noqa: E402

from kbatch import exporting  # noqa: E402
from kbatch.publishing import Journal  # noqa: E402
from kbatch.sinks import working  # noqa: E402
from kbatch.sinks.export_run import ExportRun, open_target  # noqa: E402
from kbatch.sinks.local_engine import LocalExecutor  # noqa: E402
from kbatch.sinks.outputs import open_place  # noqa: E402
from kbatch.sinks.run_input import DirectoryInput  # noqa: E402
from kbatch.sinks.write_options import WriteOptions  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

# KBATCH_TEST_ALL=1, as in .ci/long, kills a hundred runs of each format, and tries every step of writing.
KILLS, STEPS = (100, 1) if os.environ.get("KBATCH_TEST_ALL") else (8, 29)


def offsets_in(kind: str, out: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    if kind == "delta":
        import deltalake

        names = [uri[len(str(out)) + 1 :] for uri in deltalake.DeltaTable(str(out)).file_uris()]
    else:
        names = [str(path.relative_to(out)) for path in out.rglob("*.parquet")]
    for name in names:
        topic, partition = re.findall(r"topic=(\w+)/partition=(\d+)/", name)[0]
        offsets = pq.ParquetFile(out / name).read(["offset"])["offset"].to_pylist()
        found.setdefault(f"{topic}-{partition}", []).extend(offsets)
    return {name: sorted(each) for name, each in sorted(found.items())}


def leftovers(out: Path) -> list[str]:
    return [name for name in [*os.listdir(out), *os.listdir(out.parent)] if "_temporary-" in name or ".tmp-" in name]


def test_every_record_is_written_once_despite_kills_at_random_times(killed: dict[str, Any], tmp_path: Path) -> None:
    root = tmp_path / "logs"
    out = killed.pop("out")
    assert 0 < run_rounds(killed_exports, killed, root, out, KILLS) < KILLS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(working, "DEAD_SECONDS", 0)
        export(root, out, **killed)
    assert exported_offsets(out, killed) == log_offsets(root)
    place = open_place(out, killed.get("storage", {}))
    files = place.files()
    assert [name for name in files if "_temporary-" in name] == []
    if place.local:
        assert leftovers(Path(out)) == []
    if killed["format"] in ("delta", "iceberg"):
        # Nothing of the killed runs remains next to the table's files.
        runs = {name.split("/")[0].removeprefix("run-") for name in files if name.startswith("run-")}
        assert runs == {name.split("/")[0].removeprefix("_export-") for name in files if name.startswith("_export-")}
    elif not place.local:
        manifest = json.loads(place.read("_manifest.json") or b"")
        listed = [name for run in manifest["runs"] for name in run["files"]]
        assert sorted(listed) == sorted(name for name in files if name.endswith(".parquet"))


def test_the_next_run_reports_a_gap_after_a_kill_at_any_step(killed: dict[str, Any], tmp_path: Path) -> None:
    """A report is committed with the data, and repeated until somebody has seen it."""
    out = killed.pop("out")
    support = Path(killed_steps.__file__)
    paths = os.pathsep.join([str(support.parent), str(Path(kbatch.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, support, json.dumps(killed), tmp_path / "logs", f"{out}-step", str(STEPS)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    runs, repeated = map(int, done.stdout.split())
    # The last export is not killed.
    assert 0 < repeated <= runs + 1


def exported_offsets(out: str, settings: dict[str, Any]) -> dict[str, list[int]]:
    """Return the sorted offsets in an output, by the name of the topic-partition."""
    if settings["format"] != "iceberg" and "storage" not in settings:
        return offsets_in(settings["format"], Path(out))
    if settings["format"] == "iceberg":
        rows = iceberg_catalog.table().scan().to_arrow()
    else:
        place = open_place(out, settings["storage"])
        rows = pq.read_table(place.path(), filesystem=place.fs, columns=["topic", "partition", "offset"])
    found: dict[str, list[int]] = {}
    for row in rows.select(["topic", "partition", "offset"]).to_pylist():
        found.setdefault(f"{row['topic']}-{row['partition']}", []).append(row["offset"])
    return {name: sorted(each) for name, each in sorted(found.items())}


@pytest.mark.parametrize("count", [4, 5, 6], ids=["first file", "second file", "manifest"])
def test_a_commit_that_has_begun_is_finished_by_the_next_run(tmp_path: Path, count: int) -> None:
    """Files are renamed into place one by one, then the manifest is replaced."""
    root, out = tmp_path / "logs", tmp_path / "out"
    for partition in range(2):
        grow(root, partition, 0)
    export(root, out)
    for partition in range(2):
        grow(root, partition, 40)
    # Renames of small files: owner.json, the new manifest, the journal; then the files and the manifest itself.
    child = multiprocessing.get_context("spawn").Process(target=export_killed_at, args=(root, out, "rename", count))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert leftovers(out)
    assert export(root, out).action == "unchanged"
    assert offsets_in("parquet", out) == log_offsets(root)
    assert leftovers(out) == []
    manifest = json.loads((out / "_manifest.json").read_text())
    assert sum(run["records"] for run in manifest["runs"]) == 160


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first run", "later run"])
def test_a_run_ends_with_an_error_while_another_one_writes(kind: str, is_first: bool, tmp_path: Path) -> None:
    if kind == "delta":
        pytest.importorskip("deltalake")
    root, out = tmp_path / "logs", tmp_path / "out"
    grow(root, 0, 0)
    if not is_first:
        export(root, out, format=kind)
        grow(root, 0, 40)
    target = open_run(root, out, kind)
    with (
        target,
        pytest.raises(kbatch.LogDirectoryError, match=f"another export is writing to it .process {os.getpid()}"),
    ):
        export(root, out, format=kind)
    export(root, out, format=kind)
    assert offsets_in(kind, out) == log_offsets(root)


def open_run(root: Path, out: Path, kind: str = "parquet") -> ExportRun:
    from kbatch.plan.read_options import ReadOptions

    writing = WriteOptions(format=kind)
    target = open_target(open_place(str(out), {}), writing, table=None, catalog=None)
    options = ReadOptions()
    return ExportRun(DirectoryInput([str(root)], options), target, kbatch.find_logs(root), options, writing, None)


def test_of_runs_that_begin_at_the_same_time_one_succeeds(tmp_path: Path) -> None:
    root, out = tmp_path / "logs", tmp_path / "out"
    grow(root, 0, 0)
    results: list[str] = []

    def run() -> None:
        try:
            results.append(export(root, out).action)
        except kbatch.KbatchError as error:
            results.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count("created") == 1
    others = [each for each in results if each not in ("created", "unchanged")]
    assert all("another export" in each for each in others)
    assert offsets_in("parquet", out) == log_offsets(root)


def test_a_delta_table_refuses_a_run_if_another_one_has_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock may be missing, for example on two machines: then the table's commit decides."""
    pytest.importorskip("deltalake")
    from kbatch.sinks.delta import DeltaTable

    root, out = tmp_path / "logs", tmp_path / "out"
    grow(root, 0, 0)
    export(root, out, format="delta")
    grow(root, 0, 40)
    commit = DeltaTable.commit

    def late(self: Any, run: str, what: Any) -> None:
        monkeypatch.setattr(DeltaTable, "commit", commit)
        commit(other_table(out), "another", what)
        commit(self, run, what)

    def other_table(path: Path) -> Any:
        table = DeltaTable(open_place(str(path), {}), False)
        table.load([])
        return table

    monkeypatch.setattr(DeltaTable, "commit", late)
    with pytest.raises(kbatch.KbatchError, match="was changed by another export during this one, which has written"):
        export(root, out, format="delta")


def test_the_work_directory_of_a_dead_first_run_is_removed(tmp_path: Path) -> None:
    root, out = tmp_path / "logs", tmp_path / "out"
    grow(root, 0, 0)
    dead = tmp_path / "out.tmp-0123abcd"
    (dead / "new" / "topic=t").mkdir(parents=True)
    foreign = tmp_path / "out.tmp-mine"
    foreign.mkdir()
    export(root, out)
    assert sorted(os.listdir(tmp_path)) == ["logs", "out", "out.tmp-mine"]


def test_an_error_during_the_commit_leaves_it_to_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, out = tmp_path / "logs", tmp_path / "out"
    grow(root, 0, 0)
    export(root, out)
    grow(root, 0, 40)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "finish", full_disk)
        with pytest.raises(OSError, match="No space left"):
            export(root, out)
    assert leftovers(out)
    assert export(root, out).action == "unchanged"
    assert offsets_in("parquet", out) == log_offsets(root)
    assert leftovers(out) == []


def full_disk(*arguments: Any) -> None:
    raise OSError(28, "No space left on device")


def test_files_that_the_driver_cannot_see_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is published if the driver cannot see the files, for example on the local disks of workers."""

    class Elsewhere(LocalExecutor):
        def run(self, job: Any, tasks: Any, progress: Any) -> Any:
            reports = list(super().run(job, tasks, progress))
            job.names.place.remove(reports[0].files[0].name)
            return reports

    grow(tmp_path / "logs", 0, 0)
    monkeypatch.setattr(exporting, "LocalExecutor", Elsewhere)
    for kind in ("parquet", "delta"):
        with pytest.raises(kbatch.LogDirectoryError, match="not found by the driver"):
            local_export.export(tmp_path / "logs", tmp_path / "out", format=kind)
    assert os.listdir(tmp_path) == ["logs"]


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        "[]",
        '{"placed": ["../keys"], "removed": [], "sizes": []}',
        '{"placed": [], "removed": ["topic=t/../../keys"], "sizes": []}',
        '{"placed": [], "removed": ["/etc/passwd"], "sizes": []}',
        '{"placed": ["link/keys"], "removed": [], "sizes": []}',
        '{"placed": [], "removed": ["link/keys"], "sizes": []}',
        '{"placed": [], "removed": [1], "sizes": []}',
    ],
)
def test_a_journal_that_leads_out_of_the_output_is_not_finished(tmp_path: Path, text: str) -> None:
    root, out = tmp_path / "logs", tmp_path / "out"
    grow(root, 0, 0)
    export(root, out)
    (tmp_path / "keys").write_text("precious")
    work = out / "_temporary-0123abcd"
    (work / "new" / "link").mkdir(parents=True)
    (work / "new" / "keys").write_text("stolen")
    (work / "new" / "link" / "keys").write_text("stolen")
    (out / "link").symlink_to(tmp_path)
    (work / "journal.json").write_text(text)
    with pytest.raises(
        kbatch.LogDirectoryError, match=r"journal\.json: is not the journal of a write: .* Nothing was moved"
    ):
        export(root, out)
    assert (tmp_path / "keys").read_text() == "precious"


@pytest.mark.parametrize("field", ["files", "side_files", "deep"])
def test_a_manifest_that_leads_out_of_the_output_removes_nothing(tmp_path: Path, field: str) -> None:
    root, out = tmp_path / "logs", tmp_path / "out"
    grow(root, 0, 0)
    export(root, out)
    (tmp_path / "keys").write_text("precious")
    manifest = json.loads((out / "_manifest.json").read_text())
    manifest["runs"][0].setdefault(field, []).append("../keys")
    (out / "_manifest.json").write_text(DEEP if field == "deep" else json.dumps(manifest))
    with pytest.raises(kbatch.LogDirectoryError, match=r"_manifest\.json: not the manifest of an export"):
        export(root, out, mode="overwrite")
    assert (tmp_path / "keys").read_text() == "precious"


def test_a_manifest_that_is_no_regular_file_is_an_error(tmp_path: Path) -> None:
    root, out = tmp_path / "logs", tmp_path / "out"
    grow(root, 0, 0)
    export(root, out)
    (out / "_manifest.json").unlink()
    os.mkfifo(out / "_manifest.json")
    with pytest.raises((OSError, kbatch.LogDirectoryError), match="is a FIFO"):
        export(root, out)


@pytest.mark.parametrize("owner", [DEEP, "[1, 2, 3]", '{"pid": 1}', "7"])
def test_an_owner_that_cannot_be_read_is_not_named(tmp_path: Path, owner: str) -> None:
    root, out = tmp_path / "logs", tmp_path / "out"
    grow(root, 0, 0)
    with open_run(root, out):
        (path,) = tmp_path.glob("**/owner.json")
        path.write_text(owner)
        with pytest.raises(kbatch.LogDirectoryError, match="another export is writing to it; run this one again"):
            export(root, out)
