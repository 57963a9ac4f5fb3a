"""Local files that other programs made or change: special files, symbolic links, and truncation during a read."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from golden_logs import LOGS
from log_batches import batch, segment_path, write_segment

import kbatch
from kbatch.batches.framing import byte_array, frame_batches
from kbatch.batches.pooled import PooledRows
from kbatch.batches.regular_files import open_descriptor
from kbatch.cli import main
from kbatch.errors import Fault, LogDirectoryError
from kbatch.format import BATCH_DTYPE
from kbatch.log import Log, Segment, find_logs
from kbatch.log.files.checkpoints import read_leader_epochs
from kbatch.log.files.producer_snapshot import read_producer_snapshot
from kbatch.log.files.transaction_index import read_transaction_index
from kbatch.log.selection import open_selected
from kbatch.log.store.local_files import LocalFile, bytes_read
from kbatch.log.store.storage import locate
from kbatch.log.write.commit import locked, roll_back
from kbatch.plan.planner import plan
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.tasks import task_tables
from kbatch.plan.watching import WatchedLogs

FOLLOW = {"follow_links": "true"}


@pytest.fixture(autouse=True)
def no_hanging() -> Iterator[None]:
    """Raise in a test that waits for the other end of a FIFO."""

    def interrupt(*_: object) -> None:
        raise TimeoutError("a file was opened that never becomes readable")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log directory with one topic-partition of two segments; the paths in it are below ``root``."""
    return Path(shutil.copytree(LOGS / "txn-0", tmp_path / "root" / "txn-0", copy_function=shutil.copyfile))


def make_socket(path: Path) -> None:
    # The path of a socket has at most about 100 bytes.
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


SPECIAL: dict[str, Callable[[Path], object]] = {"a FIFO": os.mkfifo, "a socket": make_socket}


def replace_by(kind: str, path: Path) -> None:
    path.unlink(missing_ok=True)
    SPECIAL[kind](path)


def offsets(log: Log, **options: Any) -> list[int]:
    return [offset for table in log.tables(**options) for offset in table.records["offset"].tolist()]


# -- special files


@pytest.mark.parametrize("kind", SPECIAL)
def test_special_files_are_not_opened_as_files_of_a_log(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    replace_by(kind, path)
    for function in (Segment, Log, LocalFile, read_transaction_index, read_producer_snapshot, read_leader_epochs):
        with pytest.raises((LogDirectoryError, OSError), match=f"it is {kind}; only regular files are read"):
            function(str(path))  # type: ignore[operator]


def test_devices_are_not_opened_as_files_of_a_log() -> None:
    for path in ("/dev/zero", "/dev/null"):
        with pytest.raises(OSError, match="it is a device; only regular files are read"):
            LocalFile(path)
    with pytest.raises(IsADirectoryError):
        LocalFile("/dev")


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("command", ["verify", "dump", "stats"])
def test_commands_end_with_an_error_at_a_special_file_in_place_of_a_segment(
    kind: str, command: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segment_path(log, 186)
    replace_by(kind, path)
    assert main([command, str(log)]) != 0
    captured = capsys.readouterr()
    assert f"{path}: can't be read: it is {kind}; only regular files are read" in captured.out + captured.err


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_special_files_in_place_of_auxiliary_files_are_findings_of_verify(
    kind: str, suffix: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segment_path(log, 186, suffix)
    replace_by(kind, path)
    for target in (log, path):
        assert main(["verify", str(target)]) == 3
        assert f"it is {kind}; only regular files are read" in capsys.readouterr().out
    assert main(["dump", str(path)]) != 0
    assert f"{path}: can't be read: it is {kind}" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_is_a_fifo_counts_as_missing_in_reads_dsk_r5(suffix: str, log: Path) -> None:
    expected = offsets(Log(log), start_offset=300)
    replace_by("a FIFO", segment_path(log, 186, suffix))
    assert offsets(Log(log), start_offset=300) == expected
    assert Log(log).segments[1].seek_timestamp(0) == 0


def test_a_lock_or_journal_that_is_a_fifo_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(kbatch.LogDirectoryError, match="it is a FIFO"), locked(str(tmp_path)):
        pass
    (tmp_path / ".lock").unlink()
    stage = tmp_path / f".kbatch-write-{0:032x}.tmp"
    stage.mkdir()
    os.mkfifo(stage / "journal.json")
    with pytest.raises(LogDirectoryError, match=r"journal\.json: can't be read: .*it is a FIFO"):
        roll_back(tmp_path)


@pytest.mark.parametrize("kind", SPECIAL)
def test_captured_connections_are_regular_files(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "requests"
    replace_by(kind, path)
    assert main(["dump", "--protocol", str(path)]) == 1
    assert capsys.readouterr().err == f"kbatch dump: {path}: it is {kind}; only regular files are read\n"


def test_descriptors_are_not_inherited(log: Path) -> None:
    descriptor = open_descriptor(str(segment_path(log, 0)))
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


# -- symbolic links


def link_out(path: Path) -> None:
    """Move a file or directory out of its log directory, and leave a symbolic link."""
    outside = path.parents[2] / "outside" if path.is_file() else path.parents[1] / "outside"
    outside.mkdir()
    path.rename(outside / path.name)
    path.symlink_to(outside / path.name)


LINK = r"can't be (read|listed): it is a symbolic link in a log directory; the storage option follow_links=true follows"


def test_links_to_segments_are_followed_only_by_option(log: Path) -> None:
    expected = offsets(Log(log))
    path = segment_path(log, 186)
    link_out(path)
    for opened in (lambda: Log(log), lambda: find_logs(log.parent), lambda: open_selected([str(log.parent)])):
        with pytest.raises(LogDirectoryError, match=LINK) as caught:
            opened()
        assert caught.value.source == str(path)
    assert offsets(Log(log, storage_options=FOLLOW)) == expected
    assert offsets(find_logs(log.parent, storage_options=FOLLOW)[0]) == expected
    options = ReadOptions(storage=FOLLOW)
    tasks = plan(open_selected([str(log.parent)], FOLLOW), options)
    assert sum(len(table) for task in tasks for _, table in task_tables(task, options)) == len(expected)


def test_a_task_does_not_follow_a_link_that_replaced_a_planned_segment(log: Path) -> None:
    tasks = plan(open_selected([str(log)]), ReadOptions())
    link_out(segment_path(log, 186))
    with pytest.raises(LogDirectoryError, match=LINK):
        [list(task_tables(task, ReadOptions())) for task in tasks]


def test_links_to_topic_partitions_are_followed_only_by_option(log: Path) -> None:
    expected = offsets(Log(log))
    link_out(log)
    with pytest.raises(LogDirectoryError, match=LINK):
        find_logs(log.parent)
    assert find_logs(log.parent, storage_options=FOLLOW)[0].topic == "txn"
    with pytest.raises(LogDirectoryError, match=LINK):
        WatchedLogs([str(log.parent)], ReadOptions()).poll()
    assert list(WatchedLogs([str(log.parent)], ReadOptions(storage=FOLLOW)).poll()) == [("txn", 0)]
    # The caller names the link itself.
    assert offsets(Log(log)) == offsets(Log(f"{log}/")) == expected
    assert WatchedLogs([str(log)], ReadOptions()).poll()["txn", 0].end_offset == Log(log).end_offset


@pytest.mark.parametrize("suffix", [".txnindex", ".snapshot", ".index"])
def test_links_to_auxiliary_files_are_not_followed(suffix: str, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = segment_path(log, 186, suffix)
    link_out(path)
    assert main(["verify", str(log)]) == 3
    assert f"{path}: byte 0: " in (shown := capsys.readouterr().out)
    assert "it is a symbolic link in a log directory" in shown
    assert main(["verify", "--storage-option", "follow_links=true", str(log)]) == 0
    if suffix == ".txnindex":
        with pytest.raises(LogDirectoryError, match=LINK):
            Log(log).segments[1].transaction_index()
        assert len(Log(log, storage_options=FOLLOW).segments[1].transaction_index())


def test_links_that_the_caller_names_are_followed(log: Path, tmp_path: Path) -> None:
    expected = offsets(Log(segment_path(log, 0)))
    link = tmp_path / f"{0:020d}.log"
    link.symlink_to(segment_path(log, 0))
    assert offsets(Log(link)) == expected
    assert Segment(link).size == segment_path(log, 0).stat().st_size
    (tasks,) = plan(open_selected([str(link)]), ReadOptions())
    assert sum(len(table) for _, table in task_tables(tasks, ReadOptions())) == len(expected)
    index = tmp_path / f"{0:020d}.txnindex"
    index.symlink_to(segment_path(log, 0, ".txnindex"))
    assert len(read_transaction_index(index))
    assert main(["dump", str(index)]) == 0
    index = tmp_path / f"{0:020d}.index"
    index.symlink_to(segment_path(log, 0, ".index"))
    assert main(["verify", str(index)]) == 0
    (tmp_path / "data").symlink_to(log.parent)
    assert [each.topic for each in find_logs(tmp_path / "data")] == ["txn"]


def test_links_to_checkpoints_of_a_log_directory_are_not_followed(log: Path, tmp_path: Path) -> None:
    """DSK-R13: as in a starting broker, a checkpoint that can't be read is ignored."""
    (tmp_path / "checkpoint").write_text("0\n1\ntxn 0 30\n")
    (log.parent / "log-start-offset-checkpoint").symlink_to(tmp_path / "checkpoint")
    assert Log(log).start_checkpoint is None
    assert Log(log, storage_options=FOLLOW).start_checkpoint == 30
    (log / "leader-epoch-checkpoint").unlink(missing_ok=True)
    (log / "leader-epoch-checkpoint").symlink_to(tmp_path / "missing")
    with pytest.raises(LogDirectoryError, match=LINK):
        Log(log).leader_epochs  # noqa: B018


def test_follow_links_must_be_true_or_false(log: Path) -> None:
    with pytest.raises(ValueError, match="storage option follow_links must be true or false, got 'maybe'"):
        Log(log, storage_options={"follow_links": "maybe"})


# -- headers without payloads


def expected_scan(data: bytes, position: int, end: int) -> tuple[list[Any], int]:
    rows = PooledRows(BATCH_DTYPE)
    reached, _ = frame_batches(byte_array(data[:end]), rows, origin=0, position=position)
    return rows.filled().tolist(), reached - position


@pytest.mark.parametrize("name", ["txn-0", "mixed-0", "magic0-0", "upconvert-0", "prealloc-0"])
def test_headers_of_a_file_are_those_of_its_bytes_wherever_it_ends(name: str) -> None:
    """FRM-R2, FRM-R3, FRM-R5."""
    path = segment_path(LOGS / name, 0)
    data = path.read_bytes()
    file = LocalFile(str(path))
    ends = [*range(min(len(data), 300)), *range(300, len(data), 97), len(data)]
    for end in ends:
        scan = file.headers(0, end, len(data) // 22 + 1)
        assert (scan.batches.tolist(), scan.consumed) == expected_scan(data, 0, end)
    for row in file.headers(0, len(data), 20).batches:
        position = int(row["position"])
        scan = file.headers(position, len(data), 3)
        rows, _ = expected_scan(data, position, len(data))
        assert scan.batches.tolist() == rows[:3]
    file.close()


@pytest.mark.parametrize("size", [61, 100, 2000, 2100, 40_000])
def test_headers_are_found_for_batches_of_every_size(size: int, tmp_path: Path) -> None:
    batches = [batch(i, [i], value=bytes(max(size + i % 7 * (i // 20) - 70, 0))) for i in range(60)]
    data = b"".join(batches)
    path = write_segment(tmp_path / "t-0", 0, batches, tail=b"\xff" * 40)
    file = LocalFile(str(path))
    scan = file.headers(0, file.size, 100)
    assert (scan.batches.tolist(), scan.consumed) == expected_scan(data, 0, len(data))
    assert scan.finding is not None
    assert scan.finding.fault == Fault.LENGTH_TOO_SMALL
    file.close()


def test_headers_of_large_batches_are_read_without_the_payloads(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "t-0", 0, [batch(i, [i], value=bytes(200_000)) for i in range(20)])
    before = bytes_read()
    assert len(Log(path).batches()) == 20
    assert bytes_read() - before < 100_000


@pytest.mark.parametrize("size", [0, 5100, 500_000])
def test_a_truncation_is_noticed_by_a_walk_over_headers(tmp_path: Path, size: int) -> None:
    path = write_segment(tmp_path / "t-0", 0, [batch(i, [i], value=bytes(5000)) for i in range(100)])
    with Log(path).segments[0].open() as file:
        rows = file.walk(0)
        next(rows)
        os.truncate(path, size)
        with pytest.raises(LogDirectoryError, match="was truncated after the log was opened"):
            list(rows)


def test_a_failed_read_of_headers_is_an_error(log: Path) -> None:
    file = LocalFile(str(segment_path(log, 0)))
    read, write = os.pipe()
    try:
        os.dup2(read, file._file.fileno())
        with pytest.raises(OSError, match="Illegal seek"):
            file.headers(0, 100, 1)
    finally:
        os.close(read)
        os.close(write)
        file.close()


# -- truncation


@pytest.mark.parametrize("keep", [0, 50])
def test_a_state_file_truncated_during_the_read_is_an_error(
    keep: int, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction index that ends at an entry would otherwise return fewer aborted transactions."""
    path = segment_path(log, 0, ".txnindex")
    window = LocalFile.window

    def truncating(file: LocalFile, start: int, stop: int, capacity: int = 0) -> Any:
        os.truncate(path, keep)
        return window(file, start, stop, capacity)

    monkeypatch.setattr(LocalFile, "window", truncating)
    with pytest.raises(LogDirectoryError, match=f"it was truncated to {keep} bytes while it was read"):
        read_transaction_index(path)


def test_an_index_truncated_during_a_seek_is_a_hint_less_dsk_r5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_segment(tmp_path / "t-0", 0, [batch(i, [i]) for i in range(50)], indexes=True)
    expected = Segment(path).seek_offset(40)
    window = LocalFile.window

    def truncating(file: LocalFile, start: int, stop: int, capacity: int = 0) -> Any:
        os.truncate(path.with_suffix(".index"), 0)
        return window(file, start, stop, capacity)

    monkeypatch.setattr(LocalFile, "window", truncating)
    assert Segment(path).seek_offset(40) == expected


def test_windows_are_copies_dsk_r19(log: Path) -> None:
    storage, path = locate(segment_path(log, 0))
    file = storage.open(path)
    before = file.window(0, 1000).copy()
    window = file.window(0, 1000)
    segment_path(log, 0).write_bytes(bytes(1000))
    assert window.tobytes() == before.tobytes()
    file.close()
    assert kbatch.scan(before.tobytes())["base_offset"][0] == 0
