"""Ctrl-C and SIGTERM end every command within a second, with status 130, one line and no output left."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from log_batches import batch, segment_path, write_segment

from kbatch.cli import main
from kbatch.log.files.key_index import KeyIndexFile
from kbatch.publishing import WorkDirectory

NOW = 1_700_000_000_000
# The promise is one second. Tests share a machine with others, which may delay processes.
SECONDS = 2.0
WRITERS = ("convert", "recompress", "compact")


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory that takes every command minutes: thousands of names for one segment."""
    root = tmp_path_factory.mktemp("long")
    path = write_segment(root / "t-0", 0, (batch(i * 100, [NOW] * 100, value=os.urandom(1000)) for i in range(400)))
    for partition in range(1, 1500):
        (root / f"t-{partition}").mkdir()
        os.link(path, segment_path(root / f"t-{partition}", 0))
    return root


@pytest.fixture(scope="module")
def long_batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A segment of one batch whose compression at a high level is one call of minutes."""
    directory = tmp_path_factory.mktemp("batch") / "t-0"
    pieces = os.urandom(1 << 16)
    write_segment(directory, 0, [batch(0, [NOW], value=b"".join(pieces[i:] + pieces[:i] for i in range(900)))])
    return directory


def start(*arguments: object, stdin: int | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kbatch", *map(str, arguments)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


EARLY = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "kbatch.unfinished":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from kbatch.cli import main
sys.argv = ["kbatch", "stats", "missing"]
sys.exit(main())
"""


def test_an_interrupt_during_the_first_imports_gives_status_130_and_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "kbatch stats: interrupted\n")


def has_started(process: subprocess.Popen[str]) -> bool:
    """Whether the command handles signals."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << signal.SIGTERM - 1)


def unread_bytes(reader: int) -> int:
    """The number of bytes that a pipe holds."""
    return int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, bytes(4)), sys.byteorder)


def interrupt(
    process: subprocess.Popen[str], after: float, number: signal.Signals = signal.SIGINT, *, read: bool = True
) -> None:
    """Send a signal some seconds after the start of the command; check how the command ends."""
    deadline = time.monotonic() + 60
    while not has_started(process) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    time.sleep(after)
    assert process.poll() is None, process.communicate()
    began = time.monotonic()
    process.send_signal(number)
    if read:
        _, errors = process.communicate(timeout=60)
    else:
        process.wait(timeout=60)
        errors = process.stderr.read() if process.stderr else ""
    took = time.monotonic() - began
    assert (process.returncode, errors) == (130, f"kbatch {process.args[3]}: interrupted\n")  # type: ignore[index]
    assert took < SECONDS


COMMANDS = {
    "verify": ["verify", "{log}"],
    "verify-sequences": ["verify", "--sequences", "--json", "{log}"],
    "stats": ["stats", "{log}"],
    "stats-headers": ["stats", "--headers-only", "{log}"],
    "report": ["report", "{log}", "-o", "{out}"],
    "diff": ["diff", "{log}", "{log}"],
    "diff-key": ["diff", "--match", "key", "--json", "{log}", "{log}"],
    "dump": ["dump", "{log}"],
    "dump-records": ["dump", "--records", "{log}"],
    "dump-kafka": ["dump", "--format", "kafka", "--print-data-log", "{log}"],
    "convert": ["convert", "--magic", "1", "{log}", "{out}"],
    "recompress": ["recompress", "--codec", "gzip", "{log}", "{out}"],
    "compact": ["compact", "--include-active", "{log}", "{out}"],
}


@pytest.mark.parametrize(("name", "after"), [(name, i % 3 * 0.2) for i, name in enumerate(COMMANDS)])
def test_every_command_ends_at_once(name: str, after: float, long_log: Path, tmp_path: Path) -> None:
    arguments = [each.format(log=long_log, out=tmp_path / "out") for each in COMMANDS[name]]
    with start(*arguments) as process:
        interrupt(process, after, signal.SIGTERM if name == "stats" else signal.SIGINT)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("codec", ["zstd:19", "gzip:9", "lz4:12"])
def test_a_long_call_of_a_codec_is_interrupted(codec: str, long_batch: Path, tmp_path: Path) -> None:
    with start("recompress", "--codec", codec, long_batch, tmp_path / "t-0") as process:
        interrupt(process, 0.4)
    assert os.listdir(tmp_path) == []


def test_a_command_that_waits_for_input_is_interrupted() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"\0\0")  # a part of a message's length
    with start("dump", "--protocol", "-", stdin=reader) as process:
        while unread_bytes(reader):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        interrupt(process, 0.3)
    os.close(reader)
    os.close(writer)


def test_a_command_whose_output_nobody_reads_is_interrupted(long_log: Path) -> None:
    with start("dump", "--records", long_log) as process:
        interrupt(process, 0.5, read=False)


def test_a_second_signal_changes_nothing(long_batch: Path, tmp_path: Path) -> None:
    with start("recompress", "--codec", "zstd:19", long_batch, tmp_path / "t-0") as process:
        while not has_started(process) or not os.listdir(tmp_path):
            time.sleep(0.01)
        for _ in range(5):
            process.send_signal(signal.SIGINT)
            time.sleep(0.02)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "kbatch recompress: interrupted\n")
    assert os.listdir(tmp_path) == []


@pytest.mark.spark
@pytest.mark.parametrize("when", ["java", "spark", "tasks"])
def test_an_export_ends_at_once(when: str, long_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While Java starts, while Spark starts, and while tasks run."""
    pytest.importorskip("kbatch.spark", exc_type=ImportError)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    with start("export", "--engine", "spark", long_log, tmp_path / "out") as process:
        reached = {
            "java": lambda: True,
            "spark": lambda: any(log.stat().st_size for log in scratch.glob("kbatch-spark-*/spark.log")),
            "tasks": lambda: list(tmp_path.glob("out.tmp-*/new")),
        }[when]
        while not reached():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        interrupt(process, 0.5)
    assert os.listdir(tmp_path) == ["scratch"]
    assert [name for name in os.listdir(scratch) if name.startswith("kbatch-")] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_export_without_spark_ends_at_once(number: signal.Signals, long_log: Path, tmp_path: Path) -> None:
    with start("export", "--engine", "local", long_log, tmp_path / "out") as process:
        while not list(tmp_path.glob("out.tmp-*/new/*/*/*")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        interrupt(process, 0.3, number)
    assert os.listdir(tmp_path) == []


def test_an_interrupted_index_has_only_whole_files_and_is_continued(long_log: Path, tmp_path: Path) -> None:
    root, index = tmp_path / "logs", tmp_path / "index"
    for partition in range(150):
        (root / f"t-{partition}").mkdir(parents=True)
        os.link(segment_path(long_log / "t-0", 0), segment_path(root / f"t-{partition}", 0))
        segment_path(root / f"t-{partition}", 40_000).touch()
    with start("index", root, "--index", index) as process:
        while not list(index.glob("*/*.parquet")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        interrupt(process, 0.05)
    whole = list(index.glob("*/*.parquet"))
    assert 0 < len(whole) < 150
    assert sorted(path for path in index.rglob("*") if path.is_file()) == sorted(whole)
    for path in whole:
        with KeyIndexFile(str(path)) as file:
            assert len(file.blocks())
    assert main(["index", str(root), "--index", str(index)]) == 0
    assert {*whole} < {*index.glob("*/*.parquet")}
    assert len(list(index.glob("*/*.parquet"))) == 150


def arguments_of(name: str, source: Path, out: Path) -> list[str]:
    rest = {"convert": ["--magic", "2", "--codec", "zstd:19"], "recompress": ["--codec", "zstd:19"], "compact": []}
    return [name, str(source), str(out), *rest[name]]


def kill(name: str, source: Path, out: Path) -> str:
    """Kill a command in the middle of its work; return the directory that it leaves."""
    with start(*arguments_of(name, source, out)) as process:
        deadline = time.monotonic() + 60
        while not (left := leftovers(out)) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
    (only,) = left
    return only


def leftovers(out: Path) -> list[str]:
    return [each for each in os.listdir(out.parent) if each.startswith(f".{out.name}.") and each.endswith(".tmp")]


@pytest.mark.parametrize("name", WRITERS)
def test_the_next_run_removes_the_leftovers_of_a_killed_one(name: str, long_log: Path, tmp_path: Path) -> None:
    write_segment(tmp_path / "logs" / "t-0", 0, [batch(i, [NOW]) for i in range(5)])
    out = tmp_path / "out"
    kill(name, long_log, out)
    assert leftovers(out)
    done = start(*arguments_of(name, tmp_path / "logs", out)).communicate(timeout=60)
    assert done[1] == ""
    assert sorted(os.listdir(tmp_path)) == ["logs", "out"]


@pytest.mark.parametrize("name", WRITERS)
def test_the_files_of_a_live_run_are_not_removed(name: str, long_log: Path, tmp_path: Path) -> None:
    """Two runs to one OUT: the later one succeeds, and the earlier one still has its directory."""
    write_segment(tmp_path / "logs" / "t-0", 0, [batch(i, [NOW]) for i in range(5)])
    out = tmp_path / "out"
    with start(*arguments_of(name, long_log, out)) as live:
        while not leftovers(out):
            time.sleep(0.01)
        assert start(*arguments_of(name, tmp_path / "logs", out)).communicate(timeout=60)[1] == ""
        assert live.poll() is None
        assert len(leftovers(out)) == 1
        interrupt(live, 0)
    assert sorted(os.listdir(tmp_path)) == ["logs", "out"]


def test_other_directories_are_not_taken_for_leftovers(tmp_path: Path) -> None:
    write_segment(tmp_path / "logs" / "t-0", 0, [batch(i, [NOW]) for i in range(5)])
    names = [".out.kbatch-1234567.tmp", ".out.tmp", ".out2.kbatch-12345678.tmp", ".out.kbatch-1234567g.tmp"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / ".out.kbatch-12345678.tmp").write_text("a file")
    (tmp_path / ".out.kbatch-aaaaaaaa.tmp").mkdir()
    assert main(arguments_of("compact", tmp_path / "logs", tmp_path / "out")) == 0
    assert sorted(os.listdir(tmp_path)) == sorted([*names, ".out.kbatch-12345678.tmp", "logs", "out"])


def test_a_directory_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    path = tmp_path / "own"
    lock = fcntl.flock
    calls = []

    def race(descriptor: int, operation: int) -> None:
        calls.append(operation)
        if len(calls) == 1:
            path.rmdir()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", race)
    work = WorkDirectory(str(path))
    work.lock()
    assert path.is_dir()
    assert len(calls) == 2
    work.release()
