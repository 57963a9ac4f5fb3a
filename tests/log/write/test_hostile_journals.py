"""Journals and symbolic links that were not made by kbatch, in a directory that write_log writes to."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from written_logs import expected, found, frame

from kbatch import publishing
from kbatch.errors import LogDirectoryError
from kbatch.log import roll_back, write_log

STAGE = f".kbatch-write-{'0' * 32}.tmp"
SEGMENT = f"{0:020}.log"
# A file outside of the log directory, from the log directory.
OUTSIDE = "../home/keys"


def everything(path: Path) -> dict[str, bytes | str | None]:
    """Return all files with their bytes and all links with their targets, except for locks."""
    kept: dict[str, bytes | str | None] = {}
    for each in sorted(path.rglob("*")):
        content = os.readlink(each) if each.is_symlink() else each.read_bytes() if each.is_file() else None
        kept[str(each.relative_to(path))] = content
    return {name: content for name, content in kept.items() if not name.endswith(".lock")}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log directory with a log, the stage of a crashed write without a journal, and a file outside."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "keys").write_text("precious")
    root = tmp_path / "logs"
    write_log(root, frame(6, topics=1, partitions=1))
    (root / STAGE / "new" / "t-0").mkdir(parents=True)
    (root / STAGE / "old").mkdir()
    (root / STAGE / "old" / "evil").write_text("evil")
    (root / STAGE / "old" / "u-0").mkdir()
    return root


def plant(root: Path, *, placed: Any = (), removed: Any = ("u-0",), sizes: Any = ()) -> None:
    """Write a journal; without arguments, one that moves a directory back when it is followed."""
    (root / STAGE / "journal.json").write_text(json.dumps({"placed": placed, "removed": removed, "sizes": sizes}))


def assert_refused(root: Path, message: str) -> None:
    """Neither function that follows journals moves anything, and both errors name the journal and the remedy."""
    before = everything(root.parent)
    for call in (lambda: roll_back(root), lambda: write_log(root, frame())):
        with pytest.raises(LogDirectoryError, match=message) as caught:
            call()
        text = str(caught.value)
        assert text.startswith(f"{root / STAGE / 'journal.json'}: ")
        assert text.endswith(f"whether the other files are complete, then remove {root / STAGE}")
        assert everything(root.parent) == before


HOSTILE_NAMES: dict[str, Any] = {
    "an absolute path": "/etc/passwd",
    "a path outside": OUTSIDE,
    "parts of two dots": "t-0/../../x",
    "a topic-partition of two dots": "..",
    "the log directory": ".",
    "a path with an empty part": "t-0//x",
    "a file of another name": "t-0/run.sh",
    "a file in a deeper directory": f"t-0/t-0/{SEGMENT}",
    "a file of the log directory": "meta.properties",
    "another stage": f".kbatch-write-{'1' * 32}.tmp",
    "a file of the stage": f"{STAGE}/old/evil",
    "a marked directory": "t-0.0-delete",
    "a null byte": "t\0-0",
    "a name that is no text": "t\ud800-0",
    "a name that is too long": f"{'t' * 300}-0",
    "an empty path": "",
    "a list": ["t-0"],
    "a number": 1,
    "nothing": None,
}
REFUSED = (
    "is not the name of a file below this directory|is not a name that a write places or removes here|can't be read|"
    "can't encode"
)


@pytest.mark.parametrize("field", ["placed", "removed"])
@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_journal_with_other_names_than_those_of_a_write_moves_nothing(root: Path, name: str, field: str) -> None:
    """Also if the names before it are valid and were moved: undoing them would be the first change."""
    plant(root, **({"removed": ["u-0"]} | {field: ["u-0", HOSTILE_NAMES[name]]}))
    assert_refused(root, REFUSED)


@pytest.mark.parametrize(
    "entry",
    [
        ["/etc/passwd", 1],
        [f"../home/{SEGMENT}", 1],
        [f"u-0/../{SEGMENT}", 1],
        ["u-0/run.sh", 1],
        [f"u-0/{SEGMENT}", "1"],
        [f"u-0/{SEGMENT}", 1.5],
        [f"u-0/{SEGMENT}", True],
        [f"u-0/{SEGMENT}"],
        [f"u-0/{SEGMENT}", 1, 1],
        "u0",
        {},
        1,
    ],
)
def test_a_journal_with_other_sizes_than_those_of_segments_moves_nothing(root: Path, entry: Any) -> None:
    plant(root, sizes=[entry])
    assert_refused(root, f"sizes has other entries than names with sizes|{REFUSED}")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"placed":' * 100_000,
        "[]",
        "{}",
        '{"placed": [], "removed": []}',
        '{"placed": {}, "removed": [], "sizes": []}',
        '{"placed": [], "removed": "u-0", "sizes": []}',
        "",
        "\xff",
    ],
)
def test_a_journal_that_is_no_journal_moves_nothing(root: Path, text: str) -> None:
    (root / STAGE / "journal.json").write_text(text, "latin-1")
    assert_refused(root, r"journal\.json: is not the journal of a write: ")


def test_a_journal_that_is_no_file_or_too_large_is_an_error_without_a_delay(root: Path) -> None:
    journal = root / STAGE / "journal.json"
    os.mkfifo(journal)
    assert_refused(root, "can't be read: it is a FIFO; only regular files are read")
    journal.unlink()
    journal.mkdir()
    assert_refused(root, "can't be read: Is a directory")
    journal.rmdir()
    journal.touch()
    os.truncate(journal, (256 << 20) + 1)
    with pytest.raises(LogDirectoryError, match=r"journal\.json: .*it has 268435457 bytes, expected at most 268435456"):
        roll_back(root)


def links() -> dict[str, tuple[Callable[[Path], tuple[Path, Path]], dict[str, list[str]]]]:
    """Return for each kind of link the function that creates it, and a journal through it."""
    home = "../home"
    return {
        "the topic-partition": (lambda root: (root / "t-0", root / home), {"placed": [f"t-0/{SEGMENT}"]}),
        "the moved directory": (lambda root: (root / "u-1", root / home), {"placed": ["u-1"]}),
        "the moved file": (
            lambda root: (root / "topic.0-0" / f"{7:020}.log", root / home / "keys"),
            {"placed": [f"topic.0-0/{7:020}.log"]},
        ),
        "a directory of the stage": (
            lambda root: (root / STAGE / "new" / "v-0", root / home),
            {"placed": [f"v-0/{SEGMENT}"]},
        ),
        "a checkpoint": (
            lambda root: (root / STAGE / "old" / "cleaner-offset-checkpoint", root / home / "keys"),
            {"removed": ["u-0", "cleaner-offset-checkpoint"]},
        ),
    }


@pytest.mark.parametrize("kind", links())
def test_a_journal_through_a_symbolic_link_moves_nothing(root: Path, kind: str) -> None:
    make, journal = links()[kind]
    link, target = make(root)
    link.symlink_to(target)
    (root.parent / "home" / SEGMENT).write_text("x")
    plant(root, **journal)
    assert_refused(root, "is a symbolic link, and links are not followed")


def test_a_stage_or_a_journal_that_is_a_symbolic_link_is_not_followed(root: Path) -> None:
    outside = root.parent / "outside"
    plant(root)
    (root / STAGE).rename(outside)
    (root / STAGE).symlink_to(outside)
    assert_refused(root, rf"'{STAGE}' is a symbolic link")
    assert roll_back_unfinished(root) == 0
    (root / STAGE).unlink()
    (root / STAGE).mkdir()
    (root / STAGE / "journal.json").symlink_to(outside / "journal.json")
    assert_refused(root, rf"'{STAGE}/journal.json' is a symbolic link")


def roll_back_unfinished(root: Path) -> int:
    """Roll back where the only stage is a link without a journal."""
    link, target = root / STAGE, (root / STAGE).resolve()
    (target / "journal.json").rename(target / "kept")
    count = roll_back(root, unfinished=True)
    assert link.is_symlink()
    (target / "kept").rename(target / "journal.json")
    return count


def test_a_hostile_journal_prevents_that_an_earlier_one_is_followed(root: Path) -> None:
    plant(root, placed=[OUTSIDE])
    later = root / f".kbatch-write-{'1' * 32}.tmp"
    (root / STAGE).rename(later)
    (root / STAGE / "old" / "u-0").mkdir(parents=True)
    plant(root)
    before = everything(root)
    with pytest.raises(LogDirectoryError, match=rf"{later.name}/journal\.json: .*{OUTSIDE}"):
        roll_back(root)
    assert everything(root) == before


def test_a_journal_of_kbatch_is_followed(root: Path) -> None:
    """The valid move of the other tests, so that they do not pass because of it."""
    plant(root)
    assert roll_back(root) == 1
    assert (root / "u-0").is_dir()
    assert not (root / STAGE).exists()


def test_a_move_back_to_a_directory_that_was_removed_moves_nothing(root: Path) -> None:
    (root / STAGE / "old" / "t-0").mkdir()
    (root / STAGE / "old" / "t-0" / SEGMENT).write_bytes(b"")
    plant(root, removed=["u-0", f"t-0/{SEGMENT}"])
    assert_refused(root, "can't be moved back, because its directory does not exist")


@pytest.mark.parametrize(
    "name",
    [
        # Neither path exists, and neither does the directory of the name: there is nothing to move back.
        f"w-0/{SEGMENT}",
        # It is in its place, so it was not moved.
        f"t-0/{SEGMENT}",
        "recovery-point-offset-checkpoint",
    ],
)
def test_a_move_of_a_write_that_was_not_made_is_passed_over(root: Path, name: str) -> None:
    (root / "t-0").mkdir()
    (root / "t-0" / SEGMENT).write_bytes(b"kept")
    plant(root, removed=[name, "u-0"])
    assert roll_back(root) == 1
    assert (root / "u-0").is_dir()
    assert (root / "t-0" / SEGMENT).read_bytes() == b"kept"


def test_a_removed_checkpoint_is_moved_back(root: Path) -> None:
    name = "replication-offset-checkpoint"
    (root / STAGE / "old" / name).write_text("0\n0\n")
    plant(root, removed=[name])
    assert roll_back(root) == 1
    assert (root / name).read_text() == "0\n0\n"


def test_a_file_that_has_replaced_another_is_moved_away_before_that_returns(root: Path) -> None:
    (root / "t-0").mkdir()
    (root / "t-0" / SEGMENT).write_bytes(b"new")
    (root / STAGE / "old" / "t-0").mkdir()
    (root / STAGE / "old" / "t-0" / SEGMENT).write_bytes(b"old")
    plant(root, placed=[f"t-0/{SEGMENT}"], removed=[f"t-0/{SEGMENT}"])
    assert roll_back(root) == 1
    assert (root / "t-0" / SEGMENT).read_bytes() == b"old"


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda log: None, None),
        (lambda log: (log / f"{5:020}.log").write_bytes(b"12"), f"{5:020}.log"),
        (lambda log: (log / f"{5:020}.log").write_bytes(b"1234"), f"{5:020}.log"),
        (lambda log: (log / f"{6:020}.log").write_bytes(b""), f"{6:020}.log"),
        (lambda log: (log / f"{4:020}.log").write_bytes(b""), None),
        (lambda log: (log / f"{6:020}.index").write_bytes(b""), None),
        (lambda log: (log / f"{5:020}.log").unlink(), None),
    ],
    ids=["nothing", "shorter", "longer", "a later segment", "an earlier segment", "another file", "removed"],
)
def test_a_log_that_grew_after_a_crash_is_not_moved_back(
    root: Path, change: Callable[[Path], Any], refused: str | None
) -> None:
    """A broker appends to the last segment, or begins one after it."""
    (root / STAGE / "new" / "t-0").rmdir()
    log = root / "t-1"
    log.mkdir()
    (log / f"{0:020}.log").write_bytes(b"1")
    (log / f"{5:020}.log").write_bytes(b"123")
    plant(root, placed=["t-1"], sizes=[(f"t-1/{base:020}.log", size) for base, size in ((5, 3), (0, 1))])
    change(log)
    before = everything(root)
    if refused is None:
        assert roll_back(root) == 1
        assert not log.exists()
        return
    with pytest.raises(LogDirectoryError, match=f"{refused}: changed after a crashed write"):
        roll_back(root)
    assert everything(root) == before


def test_a_segment_that_was_not_moved_may_have_any_size(root: Path) -> None:
    """The crash was before its move; another log may have its place since."""
    for log in (root / "t-0", root / STAGE / "new" / "t-0"):
        log.mkdir(exist_ok=True)
        (log / SEGMENT).write_bytes(b"12")
    plant(root, placed=["t-0"], sizes=[(f"t-0/{SEGMENT}", 1)])
    assert roll_back(root) == 1
    assert (root / "t-0" / SEGMENT).read_bytes() == b"12"


def test_a_journal_lists_the_sizes_of_segments_that_are_placed_alone_or_with_their_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, frame(6, topics=1, partitions=1))
    found: list[Any] = []
    monkeypatch.setattr(publishing.Journal, "write", lambda journal: found.extend(journal.sizes))
    with pytest.raises(FileNotFoundError):
        write_log(tmp_path, frame(12, topics=1, partitions=2))
    written = dict(found)
    assert {os.path.dirname(name) for name in written} == {"topic.0-0", "topic.0-1"}
    assert f"topic.0-1/{SEGMENT}" in written
    assert f"topic.0-0/{SEGMENT}" not in written
    assert all(name.endswith(".log") and size > 0 for name, size in written.items())


@pytest.mark.parametrize(
    ("entry", "shown"),
    [("/" + "a" * 199, f"'/{'a' * 199}' is"), ("/" + "a" * 200, f"'/{'a' * 199}' is"), (None, "'None' is")],
)
def test_an_error_shows_a_part_of_a_name_of_limited_length(root: Path, entry: Any, shown: str) -> None:
    plant(root, placed=[entry])
    assert_refused(root, f"write: {shown}")


def test_a_stage_that_cannot_be_removed_does_not_prevent_that_its_moves_are_undone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(root)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refuse)
        assert roll_back(root) == 1
    assert (root / "u-0").is_dir()
    assert not (root / STAGE / "journal.json").exists()


def test_a_journal_of_the_largest_size_is_written_and_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(root)
    size = (root / STAGE / "journal.json").stat().st_size
    monkeypatch.setattr(publishing, "_MAX_JOURNAL_BYTES", size - 1)
    assert_refused(root, f"it has {size} bytes, expected at most {size - 1}")
    monkeypatch.setattr(publishing, "_MAX_JOURNAL_BYTES", size)
    assert roll_back(root) == 1
    monkeypatch.setattr(publishing, "_MAX_JOURNAL_BYTES", 1)
    with pytest.raises(LogDirectoryError, match="need a journal of") as caught:
        write_log(root, frame(40))
    needed = int(str(caught.value).split("need a journal of ")[1].split()[0])
    monkeypatch.setattr(publishing, "_MAX_JOURNAL_BYTES", needed - 1)
    with pytest.raises(LogDirectoryError, match="need a journal of"):
        write_log(root, frame(40))
    monkeypatch.setattr(publishing, "_MAX_JOURNAL_BYTES", needed)
    write_log(root, frame(40))


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_moves_that_need_a_larger_journal_than_is_read_are_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    before = everything(root)
    monkeypatch.setattr(publishing, "_MAX_JOURNAL_BYTES", 100)
    with pytest.raises(LogDirectoryError, match=r"\d+ moves need a journal of \d+ bytes"):
        write_log(root, frame(40), mode=mode)
    assert everything(root) == before


# -- links to logs

LINK = "it is a symbolic link in a log directory, and writers follow none. Nothing was written"


@pytest.mark.parametrize("mode", ["append", "overwrite", "error"])
@pytest.mark.parametrize("target", ["out/topic.0-0", "missing"])
def test_a_write_does_not_follow_a_link_to_a_topic_partition(tmp_path: Path, mode: Any, target: str) -> None:
    write_log(tmp_path / "out", frame(6, topics=1, partitions=1))
    (tmp_path / "logs").mkdir()
    link = tmp_path / "logs" / "topic.0-0"
    link.symlink_to(tmp_path / target)
    before = everything(tmp_path)
    with pytest.raises(LogDirectoryError, match=LINK) as caught:
        write_log(tmp_path / "logs", frame(6, topics=1, partitions=1), mode=mode)
    assert caught.value.source == str(link)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("name", [f"topic.0-0/{6:020}.index", "recovery-point-offset-checkpoint"])
def test_a_write_does_not_replace_a_link(root: Path, name: str) -> None:
    link = root / name
    link.symlink_to(root.parent / "home" / "keys")
    before = everything(root.parent)
    with pytest.raises(LogDirectoryError, match=LINK) as caught:
        write_log(root, frame(6, topics=1, partitions=1), mode="append" if "/" in name else "overwrite")
    assert caught.value.source == str(link)
    assert everything(root.parent) == before


def test_the_log_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "logs").symlink_to("disk")
    write_log(tmp_path / "logs", frame())
    assert found(tmp_path / "disk") == expected(frame())
