"""One way to publish files: renames and locks of directories are in one module, and journals roll back or forward."""

from __future__ import annotations

import ast
import multiprocessing
import os
import re
from pathlib import Path

import pytest

import kbatch
from kbatch.errors import LogDirectoryError
from kbatch.publishing import Journal, WorkDirectory, directory_lock, is_abandoned, remove_abandoned

PACKAGE = Path(kbatch.__file__).parent
# The functions that put files into place or lock them, and the modules that may use them.
USERS = {
    "os.rename": ["publishing.py"],
    "os.renames": [],
    "os.replace": [],
    "os.link": [],
    "shutil.move": [],
    "fcntl.flock": ["publishing.py"],
    # A broker takes this lock of its log directory, so writers take the same.
    "fcntl.lockf": ["log/write/commit.py"],
}


def users() -> dict[str, list[str]]:
    """Return the modules that use each of these functions, as an attribute or by an import of the name."""
    found: dict[str, list[str]] = {name: [] for name in USERS}
    for path in sorted(PACKAGE.rglob("*.py")):
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                names.add(f"{node.value.id}.{node.attr}")
            elif isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{each.name}" for each in node.names}
        for name in names & found.keys():
            found[name].append(path.relative_to(PACKAGE).as_posix())
    return found


def test_one_module_renames_files_and_locks_work_directories() -> None:
    assert users() == USERS


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A work directory in an output: it places ``a/new`` and ``b``, and removes ``a/old`` and what ``b`` replaces."""
    for name, text in (("a/old", "old"), ("b", "old"), ("work/new/a/new", "new"), ("work/new/b", "new")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "work"


def output(work: Path) -> dict[str, str]:
    """Return the files of the output without those of the work directory."""
    paths = [path for path in work.parent.rglob("*") if path.is_file() and work not in path.parents]
    return {str(path.relative_to(work.parent)): path.read_text() for path in paths}


BEFORE = {"a/old": "old", "b": "old"}


def test_a_journal_is_published_and_then_removed(work: Path) -> None:
    Journal(str(work), ["a/new", "b"], ["a/old", "b"]).publish()
    assert output(work) == {"a/new": "new", "b": "new"}
    assert Journal.read(str(work)) is None


@pytest.mark.parametrize("moves", range(4))
def test_a_journal_that_a_crash_leaves_is_undone(work: Path, moves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same after any number of moves, and undoing it again changes nothing."""
    with monkeypatch.context() as patch:
        # The journal itself is renamed first.
        crash_after(moves + 1, patch)
        patch.setattr(Journal, "undo", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            Journal(str(work), ["a/new", "b"], ["a/old", "b"], [("b", 3)]).publish()
    journal = Journal.read(str(work))
    assert journal is not None
    assert journal.sizes == [("b", 3)]
    assert journal.is_placed("a/new") == (moves > 2)
    for _ in range(2):
        journal.undo()
        assert output(work) == BEFORE
        assert Journal.read(str(work)) is None


def crash_after(renames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all renames after this number of them fail."""
    real, calls = os.rename, [0]

    def rename(source: str, target: str) -> None:
        calls[0] += 1
        if calls[0] > renames:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)


@pytest.mark.parametrize("moves", range(3))
def test_a_journal_that_a_crash_leaves_is_finished(work: Path, moves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A placed file replaces another with one rename; emptied directories are removed."""
    (work.parent / "c").mkdir()
    (work.parent / "c" / "old").write_text("old")
    journal = Journal(str(work), ["a/new", "b"], ["a/old", "c/old"])
    journal.write()
    with monkeypatch.context() as patch:
        crash_after(moves, patch)
        if moves < 2:
            with pytest.raises(KeyboardInterrupt):
                journal.finish()
    for _ in range(2):
        found = Journal.read(str(work))
        assert found is not None
        found.finish()
        assert output(work) == {"a/new": "new", "b": "new"}
    assert sorted(os.listdir(work.parent)) == ["a", "b", "work"]


def test_a_journal_that_cannot_be_read_is_named_with_the_remedy(work: Path) -> None:
    (work / "journal.json").write_text('{"placed": ["../b"], "removed": [], "sizes": []}')
    with pytest.raises(LogDirectoryError) as caught:
        Journal.read(str(work))
    assert str(caught.value) == (
        f"{work}/journal.json: is not the journal of a write: '../b' is not the name of a file below this directory. "
        "Nothing was moved. Check where this file comes from and whether the other files are complete, then remove "
        f"{work}"
    )
    assert output(work) == BEFORE


def hold(path: str, ready: str) -> None:
    """Lock a work directory until this process is killed."""
    work = WorkDirectory(path)
    work.lock()
    Path(ready).touch()
    multiprocessing.Event().wait()


def test_a_work_directory_is_abandoned_as_soon_as_its_process_has_ended(tmp_path: Path) -> None:
    parent, path = tmp_path / "parent", tmp_path / "parent" / "own"
    child = multiprocessing.get_context("spawn").Process(target=hold, args=(str(path), str(tmp_path / "ready")))
    child.start()
    while not (tmp_path / "ready").exists():
        assert child.is_alive()
        child.join(0.01)
    (parent / "other").mkdir()
    names = re.compile("own")
    assert not is_abandoned(str(path))
    assert remove_abandoned(str(parent), names) == []
    child.kill()
    child.join()
    assert is_abandoned(str(path))
    assert remove_abandoned(str(parent), names) == ["own"]
    assert os.listdir(parent) == ["other"]


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with directory_lock(str(tmp_path)) as first:
        assert first
        with directory_lock(str(tmp_path), wait=False) as second:
            assert not second
    with directory_lock(str(tmp_path), wait=False) as third:
        assert third
