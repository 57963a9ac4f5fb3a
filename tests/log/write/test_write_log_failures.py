"""write_log after failures and crashes: no partial log remains, and the next writer cleans up."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from log_batches import batch as one_batch
from log_batches import write_segment
from written_logs import expected, found, frame, tree

import kbatch
from kbatch.errors import LogDirectoryError
from kbatch.log import roll_back, write_log
from kbatch.log.write import commit as commit_module
from kbatch.publishing import Journal


class Crash(BaseException):
    """Simulates a killed process: no handler of `Exception` runs."""


@contextlib.contextmanager
def stopping(monkeypatch: pytest.MonkeyPatch, name: str, at: int, error: BaseException) -> Iterator[None]:
    """Let the call number `at` of this function of `os` fail."""
    real, calls = getattr(os, name), [0]

    def call(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == at:
            raise error
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, call)
        yield


def prepared(root: Path) -> dict[str, bytes | None]:
    """Write logs that the test continues; one ends with an empty segment."""
    write_log(root, frame(12, topics=1, partitions=2))
    write_segment(root / "topic.0-0", 6, [])
    return tree(root)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("name", ["rename", "fsync", "unlink"])
def test_a_failure_leaves_existing_logs_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, mode: Any
) -> None:
    root = tmp_path / "logs"
    before = prepared(root)
    failures = 0
    for at in range(1, 200):
        try:
            with stopping(monkeypatch, name, at, OSError(28, "No space left on device")):
                write_log(root, frame(9, topics=1), mode=mode)
        except (OSError, LogDirectoryError):
            failures += 1
            assert tree(root) == before, at
            assert os.listdir(tmp_path) == ["logs"]
        else:
            break
    assert failures >= {"rename": 8, "fsync": 10, "unlink": 1}[name]
    assert found(root) == expected(
        *([frame(12, topics=1, partitions=2)] if mode == "append" else []), frame(9, topics=1)
    )


@pytest.mark.parametrize("name", ["rename", "fsync"])
def test_a_failure_removes_a_new_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for at in range(1, 100):
        try:
            with stopping(monkeypatch, name, at, OSError(5, "Input/output error")):
                write_log(tmp_path / "logs", frame(9))
        except (OSError, LogDirectoryError):
            assert os.listdir(tmp_path) == []
        else:
            break
    assert at > 6
    assert found(tmp_path / "logs") == expected(frame(9))


def crash(monkeypatch: pytest.MonkeyPatch, root: Path, at: int, mode: Any = "append") -> bool:
    """Write, and stop at a rename like a killed process: nothing is cleaned up."""
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "undo", lambda _: None)
        patch.setattr(commit_module.Stage, "remove", lambda _: None)
        try:
            with stopping(monkeypatch, "rename", at, Crash()):
                write_log(root, frame(9, topics=1), mode=mode)
        except Crash:
            return True
    return False


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_crash_is_undone_by_the_next_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any) -> None:
    crashes = undone = 0
    for at in range(1, 100):
        root = tmp_path / str(at)
        before = prepared(root)
        if not crash(monkeypatch, root, at, mode):
            break
        crashes += 1
        # The crash is undone by `roll_back`, and by the next writer.
        journals = list(root.glob(".kbatch-write-*.tmp/journal.json"))
        with contextlib.suppress(LogDirectoryError):
            assert {log.topic for log in kbatch.find_logs(root)} == {"topic.0"}
        if at % 2:
            assert roll_back(root) == len(journals)
            undone += len(journals)
            roll_back(root, unfinished=True)
            assert tree(root) == before, at
        write_log(root, frame(7, topics=1))
        roll_back(root, unfinished=True)
        assert found(root) == expected(frame(12, topics=1, partitions=2), frame(7, topics=1)), at
        assert not list(root.glob(".kbatch*"))
    assert crashes > 8
    assert undone >= 2


def test_logs_changed_after_a_crash_are_not_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashed = tmp_path
    for at in range(1, 100):
        root = tmp_path / str(at)
        prepared(root)
        if not crash(monkeypatch, root, at):
            break
        crashed = root
    tmp_path = crashed
    assert list(tmp_path.glob(".kbatch-write-*.tmp/journal.json"))
    path = tmp_path / "topic.0-1" / f"{6:020}.log"
    with path.open("ab") as file:
        file.write(one_batch(99, [1]))
    before = tree(tmp_path)
    with pytest.raises(LogDirectoryError, match="changed after a crashed write"):
        write_log(tmp_path, frame())
    assert {name: data for name, data in tree(tmp_path).items() if name in before} == before
    path.write_bytes(path.read_bytes()[: -len(one_batch(99, [1]))])
    write_segment(tmp_path / "topic.0-1", 200, [one_batch(200, [1])])
    with pytest.raises(LogDirectoryError, match=rf"{200:020}.log: changed after a crashed write"):
        roll_back(tmp_path)


def test_unfinished_writes_of_a_new_directory_are_removed(tmp_path: Path) -> None:
    (tmp_path / f".logs.kbatch-write-{'0' * 32}.tmp" / "attempts").mkdir(parents=True)
    (tmp_path / f".other.kbatch-write-{'0' * 32}.tmp").mkdir()
    assert roll_back(tmp_path / "logs") == 0
    assert roll_back(tmp_path / "logs", unfinished=True) == 1
    assert os.listdir(tmp_path) == [f".other.kbatch-write-{'0' * 32}.tmp"]


def test_a_changed_part_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def longer(path: Path, data: bytes) -> None:
        path.write_bytes(data + data)

    def damaged(path: Path, data: bytes) -> None:
        path.write_bytes(data[:8] + struct.pack(">i", 5) + data[12:])

    def cut(path: Path, data: bytes) -> None:
        path.write_bytes(data[:8] + struct.pack(">i", len(data)) + data[12:])

    def gone(path: Path, _: bytes) -> None:
        path.unlink()

    for change, message in (
        (longer, r"has \d+ bytes, but \d+ were written"),
        (damaged, "byte 0"),
        (cut, "ends within a batch"),
        (gone, "a task wrote this file, but it can't be opened"),
    ):

        def changed(stage: Any, parts: Any, *, change: Any = change, **options: Any) -> Any:
            path = Path(parts[-1].path)
            change(path, path.read_bytes())
            return commit_module.commit(stage, parts, **options)

        monkeypatch.setattr("kbatch.log.write.dataframes.commit", changed)
        with pytest.raises(kbatch.KbatchError, match=message):
            write_log(tmp_path / "logs", frame())
        assert os.listdir(tmp_path) == []
