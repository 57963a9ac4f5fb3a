"""Faults of the disk and of other processes while a command runs; docs/faults.md lists them all."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from log_batches import batch, write_segment

import kbatch
from kbatch.cli import main
from kbatch.cli.terminal import ProgressLine
from kbatch.log.store.storage import Storage
from kbatch.sinks.local_engine import LocalExecutor

SUPPORT = Path(__file__).parents[1] / "support"
DOCS = Path(__file__).parents[2] / "docs"
NOW = 1_700_000_000_000
OUT = {
    "convert": ["--magic", "1"],
    "recompress": ["--codec", "lz4"],
    "compact": ["--include-active"],
}
READERS: dict[str, list[str]] = {
    "verify": ["verify"],
    "stats": ["stats"],
    "stats-headers": ["stats", "--headers-only"],
    "dump": ["dump"],
    "dump-records": ["dump", "--records"],
    "dump-kafka": ["dump", "--format", "kafka", "--print-data-log"],
    "diff": ["diff"],
    "report": ["report"],
}


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with one log of three segments of 1.5 MB, which every command keeps."""
    root = tmp_path_factory.mktemp("frozen")
    for base in (0, 300, 600):
        batches = [
            kbatch.encode([os.urandom(5000)], keys=[b"%d" % offset], timestamps=NOW + offset, base_offset=offset)
            for offset in range(base, base + 300)
        ]
        write_segment(root / "t-0", base, map(bytes, batches), indexes=True)
    return root


@pytest.fixture
def log(frozen: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(frozen, tmp_path / "logs"))


def command_of(name: str, source: Path, out: Path) -> list[str]:
    if name == "export":
        return ["export", str(source), str(out)]
    if name == "diff":
        return [name, str(source), str(source)]
    if name == "report":
        return [name, str(source), "-o", str(out)]
    return [*READERS[name], str(source)] if name in READERS else [name, str(source), str(out), *OUT[name]]


def error_status(name: str) -> int:
    """Return the exit status after an error: 1, but 2 for `diff`, whose status 1 means different records."""
    return 2 if name == "diff" else 1


def run(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kbatch", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **options,
    )


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


@pytest.mark.parametrize("name", OUT)
def test_a_full_disk_is_an_error_and_leaves_no_output(name: str, log: Path, tmp_path: Path) -> None:
    done = run(command_of(name, log, tmp_path / "out"), preexec_fn=small_files)
    assert done.returncode == 1
    assert re.fullmatch(rf"kbatch {name}: {tmp_path}/out(/\S+)?: File too large\n", done.stderr), done.stderr
    assert os.listdir(tmp_path) == ["logs"]


@pytest.mark.parametrize("name", READERS)
def test_a_full_disk_at_standard_output_is_an_error(name: str, log: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "kbatch", *command_of(name, log, log.parent / "out")]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    expected = error_status(name), f"kbatch {READERS[name][0]}: No space left on device\n"
    assert (done.returncode, done.stderr) == expected


@pytest.mark.parametrize(
    "arguments", [["help"], ["help", "dump"], ["dump", "--help"], ["--version"], ["--help"], ["completion", "bash"]]
)
def test_help_that_cannot_be_written_is_an_error(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "kbatch", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    name = "kbatch" if arguments[-1].startswith("-") else f"kbatch {arguments[0]}"
    assert (done.returncode, done.stderr) == (1, f"{name}: No space left on device\n")


def without_privileges() -> None:
    """Drop the capabilities by which root ignores permissions (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH)."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2):
        libc.prctl(24, capability, 0, 0, 0)


@pytest.mark.parametrize("name", [*READERS, *OUT])
def test_a_file_without_permission_is_an_error_with_its_path(name: str, log: Path, tmp_path: Path) -> None:
    second = log / "t-0" / f"{300:020d}.log"
    second.chmod(0)
    done = run(command_of(name, log, tmp_path / "out"), preexec_fn=without_privileges)
    assert done.returncode == error_status(name)
    assert done.stderr.count("\n") == 1
    assert f"{second}: can't be read: Permission denied" in done.stderr
    assert os.listdir(tmp_path) == ["logs"]


@pytest.mark.parametrize("name", OUT)
def test_an_output_directory_without_permission_is_an_error(name: str, log: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(0o555)
    done = run(command_of(name, log, tmp_path / "closed" / "out"), preexec_fn=without_privileges)
    assert done.returncode == 1
    assert done.stderr == f"kbatch {name}: {tmp_path}/closed/out: can't be written: Permission denied\n"
    assert os.listdir(tmp_path / "closed") == []


def test_an_export_without_permission_is_an_error_before_the_engine_starts(log: Path, tmp_path: Path) -> None:
    first = log / "t-0" / f"{0:020d}.log"
    first.chmod(0)
    done = run(command_of("export", log, tmp_path / "out"), preexec_fn=without_privileges)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{first}: can't be read: Permission denied" in done.stderr
    first.chmod(0o644)
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(0o555)
    done = run(command_of("export", log, tmp_path / "closed" / "out"), preexec_fn=without_privileges)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(f"closed/out: no permission to write in {tmp_path}/closed\n")


WITHOUT_PERMISSION = """
import sys
import pyarrow as pa
from kbatch.errors import LogDirectoryError
from kbatch.log import write_log
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.watching import WatchedLogs
try:
    write_log(sys.argv[1], pa.table({"value": [b"1"]}), topic="t", num_partitions=1)
except LogDirectoryError as error:
    print(error)
try:
    WatchedLogs([sys.argv[2]], ReadOptions()).poll()
except LogDirectoryError as error:
    print(error)
"""


def test_writers_and_watchers_report_missing_permissions(log: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    log.chmod(0)
    command = [sys.executable, "-c", WITHOUT_PERMISSION, closed, log]
    done = subprocess.run(command, preexec_fn=without_privileges, capture_output=True, text=True, check=False)
    log.chmod(0o755)
    written, watched = done.stdout.splitlines()
    assert written == f"{closed}/.lock: can't be locked: Permission denied"
    assert watched == f"{log}: can't be listed: Permission denied"
    assert os.listdir(closed) == []


@pytest.mark.parametrize("name", READERS)
def test_a_batch_that_is_being_written_is_not_damage(name: str, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = log / "t-0" / f"{600:020d}.log"
    with open(last, "ab") as file:
        file.write(batch(900, [NOW], value=bytes(1000))[:500])
    assert main(command_of(name, log, log.parent / "out")) == 0
    printed = capsys.readouterr()
    if name == "verify":
        assert "note: " in printed.out


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.parametrize("fault", ["truncated", "deleted", "second writer"])
def test_an_export_fails_at_faults_of_other_processes(
    fault: str,
    engine: str,
    request: pytest.FixtureRequest,
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After the plan and before the tasks, a segment is truncated or deleted, or OUT is created."""
    executor: Any = LocalExecutor
    if engine == "spark":
        request.getfixturevalue("spark")
        from kbatch.spark.export_job import SparkExecutor as executor
    second = log / "t-0" / f"{300:020d}.log"
    run_tasks = executor.run

    def meanwhile(*arguments: Any) -> Any:
        if fault == "truncated":
            os.truncate(second, 10_000)
        elif fault == "deleted":
            second.unlink()
        else:
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "theirs").touch()
        return run_tasks(*arguments)

    monkeypatch.setattr(executor, "run", meanwhile)
    assert main([*command_of("export", log, tmp_path / "out"), "--engine", engine]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(tmp_path / "out" if fault == "second writer" else second) in error
    assert sorted(os.listdir(tmp_path)) == (["logs", "out"] if fault == "second writer" else ["logs"])
    if fault == "second writer":
        assert os.listdir(tmp_path / "out") == ["theirs"]


@pytest.mark.parametrize("fault", ["truncated", "deleted"])
@pytest.mark.parametrize("name", [*READERS, *OUT])
def test_a_segment_that_another_process_removes_is_an_error(
    name: str,
    fault: str,
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The second segment is truncated or deleted after the log was opened, while the first one is read."""
    second = log / "t-0" / f"{300:020d}.log"
    opened = Storage.open

    def meanwhile(self: Storage, path: str, size: int | None = None) -> Any:
        if path.endswith(f"{0:020d}.log") and second.exists() and second.stat().st_size > 10_000:
            os.truncate(second, 10_000) if fault == "truncated" else second.unlink()
        return opened(self, path, size)

    monkeypatch.setattr(Storage, "open", meanwhile)
    assert main(command_of(name, log, tmp_path / "out")) == error_status(name)
    error = capsys.readouterr().err
    assert str(second) in error
    assert ("truncated" if fault == "truncated" else "No such file") in error
    assert os.listdir(tmp_path) == ["logs"]


@pytest.mark.parametrize("name", OUT)
def test_the_output_of_a_second_writer_is_kept(
    name: str, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another process creates OUT meanwhile: this one fails and changes nothing."""

    def meanwhile(self: ProgressLine, done: int, total: int) -> None:
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "theirs").touch()

    monkeypatch.setattr(ProgressLine, "show_bytes", meanwhile)
    assert main(command_of(name, log, tmp_path / "out")) == 1
    assert f"{tmp_path}/out: exists already" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["logs", "out"]
    assert os.listdir(tmp_path / "out") == ["theirs"]


@pytest.mark.parametrize("name", OUT)
def test_a_clock_that_goes_back_does_not_change_the_output(
    name: str, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is a year earlier at each call; only the horizon of a compaction depends on it."""
    names = ("before", "after")
    assert main(command_of(name, log, tmp_path / "before")) == 0
    clock = [time.time_ns()]

    def back() -> int:
        clock[0] -= 365 * 86_400 * 10**9
        return clock[0]

    monkeypatch.setattr(time, "time_ns", back)
    monkeypatch.setattr(time, "time", lambda: back() / 1e9)
    assert main(command_of(name, log, tmp_path / "after")) == 0
    before, after = ({path.name: path.read_bytes() for path in (tmp_path / when).rglob("*.*")} for when in names)
    assert before == after


def test_a_stream_sees_new_segments_when_the_clock_is_before_their_times(tmp_path: Path) -> None:
    """Times of a directory in the future must not make the watcher take an old listing for the current one."""
    from kbatch.plan.read_options import ReadOptions
    from kbatch.plan.watching import WatchedLogs

    directory = tmp_path / "t-0"
    future = time.time() + 86_400
    write_segment(directory, 0, [batch(0, [NOW])])
    os.utime(directory, (future, future))
    watched = WatchedLogs([str(tmp_path)], ReadOptions())
    assert watched.poll()["t", 0].end_offset == 1
    write_segment(directory, 1, [batch(1, [NOW])])
    os.utime(directory, (future, future))
    assert watched.poll()["t", 0].end_offset == 2


@pytest.fixture(scope="module")
def read_errors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes reads fail; the kernels need a C compiler anyway."""
    made = tmp_path_factory.mktemp("library") / "read_errors.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", made, SUPPORT / "read_errors.c", "-ldl"], check=True)
    return made


def with_read_error(library: Path, path: str, at: int) -> dict[str, str]:
    # A sanitizer's runtime, which `.ci/sanitize` preloads, must come first.
    libraries = " ".join(filter(None, (os.environ.get("LD_PRELOAD"), str(library))))
    return {**os.environ, "LD_PRELOAD": libraries, "KBATCH_FAULT_PATH": path, "KBATCH_FAULT_AT": str(at)}


@pytest.mark.parametrize("name", [*READERS, *OUT])
def test_a_read_error_in_a_segment_names_file_and_byte(name: str, log: Path, tmp_path: Path, read_errors: Path) -> None:
    second = log / "t-0" / f"{300:020d}.log"
    done = run(command_of(name, log, tmp_path / "out"), env=with_read_error(read_errors, second.name, 700_000))
    assert done.returncode == error_status(name)
    assert done.stderr.count("\n") == 1
    found = re.search(rf"{second}: can't be read: Input/output error at byte (\d+)\n$", done.stderr)
    assert found, done.stderr
    # A walk over headers reads only a few of the bytes, so the first one that fails may be later.
    assert 700_000 <= int(found[1]) < 710_000
    assert os.listdir(tmp_path) == ["logs"]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("name", ["verify", "dump"])
def test_a_read_error_in_an_index_file_names_it(name: str, suffix: str, log: Path, read_errors: Path) -> None:
    path = log / "t-0" / f"{300:020d}{suffix}"
    done = run([name, str(path)], env=with_read_error(read_errors, path.name, 100))
    # To verify, an index file that cannot be read is a finding like others.
    status, printed = (3, done.stdout) if name == "verify" else (1, done.stderr)
    assert done.returncode == status
    assert re.search(rf"{path}: .*can't be read: Input/output error at byte 100\n", printed), printed


def test_a_read_error_in_a_captured_connection_names_file_and_byte(log: Path, read_errors: Path) -> None:
    path = log / "capture.bin"
    path.write_bytes(bytes([0, 0, 0, 8]) + bytes(8) + bytes([0, 64, 0, 0]) + bytes(1 << 22))
    done = run(["dump", "--protocol", str(path)], env=with_read_error(read_errors, path.name, 3_000_000))
    assert done.returncode == 1
    assert done.stderr.endswith(f"{path}: Input/output error at byte 3000000\n")


APPEND = """
import sys
import pyarrow as pa
from kbatch.log import write_log
write_log(sys.argv[1], pa.table({"value": [b"1"]}), topic="t", num_partitions=1)
"""


def test_a_read_error_at_the_end_of_a_log_prevents_a_write(log: Path, read_errors: Path) -> None:
    pytest.importorskip("pyarrow")
    last = log / "t-0" / f"{600:020d}.log"
    before = {path: path.read_bytes() for path in log.rglob("*.*")}
    done = subprocess.run(
        [sys.executable, "-c", APPEND, log],
        env=with_read_error(read_errors, last.name, 1_000_000),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert re.search(rf"LogDirectoryError: {last}: can't be read: Input/output error at byte \d+\n$", done.stderr)
    assert {path: path.read_bytes() for path in log.rglob("*.*") if path.name != ".lock"} == before


def test_a_read_error_in_an_export_names_file_and_byte(log: Path, tmp_path: Path, read_errors: Path) -> None:
    """Without Spark; that it hands on the errors of its tasks is tested with a full disk."""
    pytest.importorskip("pyarrow")
    second = log / "t-0" / f"{300:020d}.log"
    environment = with_read_error(read_errors, second.name, 700_000)
    paths = os.pathsep.join([str(SUPPORT), str(Path(kbatch.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", "import sys, local_export; local_export.export(*sys.argv[1:])", log, tmp_path / "out"],
        env={**environment, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert re.search(rf"{second}: can't be read: Input/output error at byte \d+\n$", done.stderr), done.stderr
    assert os.listdir(tmp_path) == ["logs"]


FAULTS = [
    "kill",
    "disk full",
    "read error",
    "truncation",
    "deletion",
    "permission",
    "second writer",
    "clock going back",
]
WORK = [
    "verify, stats, dump, diff",
    "report",
    "convert, recompress, compact",
    "export",
    "follow",
    "write_log",
    "Spark writer",
    "Spark stream",
]
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_the_table_of_faults_is_complete_and_names_existing_tests() -> None:
    """Every fault has a section of docs/faults.md with a row for each kind of work, with a test that exists."""
    sections = re.split(r"^## ", (DOCS / "faults.md").read_text(), flags=re.MULTILINE)[1:]
    assert [section.splitlines()[0].lower() for section in sections] == FAULTS
    for section in sections:
        rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")][2:]
        assert [row[0].strip().replace("`", "") for row in rows] == WORK, section
        for _, _, tests in rows:
            named = _TEST.findall(tests)
            assert named or "not applicable" in tests, (section, tests)
            for path, name in named:
                text = (DOCS.parent / path).read_text()
                assert re.search(rf"^\s*def {name}\(", text, re.MULTILINE), f"{path} has no test {name}"
