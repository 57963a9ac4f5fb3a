"""`index_logs` and ``kbatch index``: which files they write, leave and remove, and what they refuse."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oracle
import pyarrow.parquet as pq
import pytest
from local_export import export
from log_batches import segment_path, write_segment

import kbatch
from kbatch.cli import main
from kbatch.errors import LogDirectoryError
from kbatch.log.write import indexing
from kbatch.plan.read_options import ReadOptions


def batches(first: int, count: int, keys: int = 40) -> list[bytes]:
    return [
        oracle.build_batch(
            [oracle.encode_record(0, 0, b"k%d" % (offset % keys), b"v" * 100)],
            base_offset=offset,
            base_timestamp=1000 + offset,
            max_timestamp=1000 + offset,
        )
        for offset in range(first, first + count)
    ]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few batches."""
    monkeypatch.setattr(indexing, "BLOCK_BYTES", 1000)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two logs of two closed segments and an open one."""
    for partition in range(2):
        for segment in range(3):
            write_segment(tmp_path / "logs" / f"t-{partition}", 100 * segment, batches(100 * segment, 100))
    return tmp_path / "logs"


def files(index: Path) -> dict[str, int]:
    return {str(path.relative_to(index)): path.stat().st_mtime_ns for path in index.rglob("*") if path.is_file()}


def counts(done: list[kbatch.IndexedLog]) -> list[tuple[int, int, int]]:
    return [(each.written, each.unchanged, each.removed) for each in done]


def test_each_closed_segment_has_one_file_of_its_keys_and_blocks(root: Path, tmp_path: Path) -> None:
    done = kbatch.index_logs(root, tmp_path / "index")
    assert counts(done) == [(2, 0, 0)] * 2
    assert [each.segments for each in done] == [2, 2]
    assert [each.log.partition for each in done] == [0, 1]
    assert sum(each.bytes for each in done) == sum(path.stat().st_size for path in (tmp_path / "index").rglob("*.*"))
    path = next(Path(done[0].path).glob(f"{100:020}-*.parquet"))
    rows = pq.ParquetFile(path).read().to_pylist()
    blocks = [row for row in rows if row["hash"] is None]
    begins = [position for headers in done[0].log.segments[1].scan() for position in headers["position"].tolist()]
    assert [row["block"] for row in blocks] == list(range(len(blocks)))
    assert {row["position"] for row in blocks} <= set(begins)
    assert (blocks[0]["first_offset"], blocks[-1]["last_offset"]) == (100, 199)
    for row, after in itertools.pairwise(blocks):
        assert row["last_offset"] + 1 == after["first_offset"]
        assert (row["min_timestamp"], row["max_timestamp"]) == (1000 + row["first_offset"], 1000 + row["last_offset"])
    pairs = rows[len(blocks) :]
    assert [row["hash"] for row in pairs] == sorted(row["hash"] for row in pairs)
    assert len(pairs) == done[0].keys / 2
    expected = {(offset % 40, sum(offset >= row["first_offset"] for row in blocks) - 1) for offset in range(100, 200)}
    assert len(pairs) == len(expected)


def test_files_that_fit_are_left_and_those_of_other_segments_are_removed(root: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    kbatch.index_logs(root, index)
    before = files(index)
    assert counts(kbatch.index_logs(root, index)) == [(0, 2, 0)] * 2
    assert files(index) == before
    # Retention removes a segment, another one is replaced, and the open one is closed.
    segment_path(root / "t-0", 0).unlink()
    write_segment(root / "t-0", 100, batches(100, 100, keys=7)[1:])
    write_segment(root / "t-0", 300, batches(300, 1))
    assert counts(kbatch.index_logs(root, index)) == [(2, 0, 2), (0, 2, 0)]
    assert counts(kbatch.index_logs(root, index)) == [(0, 2, 0)] * 2
    assert len(files(index)) == 4


def test_a_damaged_file_is_written_again(root: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    kbatch.index_logs(root, index)
    path = sorted(index.rglob("*.parquet"))[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert sorted(counts(kbatch.index_logs(root, index))) == [(0, 2, 0), (1, 1, 1)]
    assert counts(kbatch.index_logs(root, index)) == [(0, 2, 0)] * 2


def test_copies_of_a_log_share_a_directory_until_one_of_them_no_longer_exists(root: Path, tmp_path: Path) -> None:
    (root / "t-0" / "partition.metadata").write_text("version: 0\ntopic_id: MWJ6FHTfRYy67jzwZdeqSQ\n")
    copy, index = tmp_path / "copy" / "t-0", tmp_path / "index"
    shutil.copytree(root / "t-0", copy)
    write_segment(copy, 100, batches(100, 100, keys=7))
    (first,) = kbatch.index_logs(root / "t-0", index)
    (second,) = kbatch.index_logs(copy, index)
    assert first.path == second.path
    assert counts([second]) == [(1, 1, 0)]
    assert counts(kbatch.index_logs(root / "t-0", index)) == [(0, 2, 0)]
    assert len(files(index)) == 3
    shutil.rmtree(copy)
    assert counts(kbatch.index_logs(root / "t-0", index)) == [(0, 2, 1)]


def test_the_files_of_deleted_logs_are_removed_unless_their_log_directory_is_missing_too(
    root: Path, tmp_path: Path
) -> None:
    """A log directory is missing if its file system is not mounted."""
    other, index = tmp_path / "other", tmp_path / "index"
    shutil.copytree(root, other)
    kbatch.index_logs(root, index)
    kbatch.index_logs(other, index)
    shutil.rmtree(root / "t-1")
    other.rename(tmp_path / "unmounted")
    (done,) = kbatch.index_logs(root, index)
    assert counts([done]) == [(0, 2, 0)]
    assert len(list(index.iterdir())) == 3
    assert len(files(index)) == 6


def test_other_files_in_the_directory_are_left(root: Path, tmp_path: Path) -> None:
    (done, _) = kbatch.index_logs(root, tmp_path / "index")
    notes = Path(done.path) / "notes.parquet"
    notes.write_text("not a key index")
    kbatch.index_logs(root, tmp_path / "index")
    assert notes.exists()


def test_nothing_is_written_to_the_logs_unless_it_is_asked_for(root: Path) -> None:
    before = files(root)
    kbatch.index_logs(root, root.parent / "index")
    for log in kbatch.find_logs(root):
        log.to_arrow(key="k1", index=root.parent / "index")
    assert files(root) == before
    kbatch.index_logs(root / "t-0", root / "t-0" / "index")
    log = kbatch.Log(root / "t-0")
    assert log.count(key="k1", index=root / "t-0" / "index") == log.count(key="k1", index=False) == 8


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    # A byte of the last value.
    content[-5] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def descending(path: Path) -> None:
    path.write_bytes(b"".join([*batches(0, 50), *batches(20, 50)]))


@pytest.mark.parametrize(
    ("change", "reason"),
    [(damaged, "checksum"), (cut, "truncated batch"), (descending, "a key index needs ascending offsets")],
)
def test_a_segment_that_cannot_be_indexed_is_refused_with_the_reason(
    change: Any, reason: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segment_path(root / "t-0", 0)
    change(path)
    (done,) = kbatch.index_logs(root / "t-0", tmp_path / "index")
    ((refused, why),) = done.refused
    assert refused == str(path)
    assert reason in why
    assert str(path) in why
    assert (done.written, done.segments) == (1, 2)
    assert main(["index", str(root), "--index", str(tmp_path / "index")]) == 3
    out, errors = capsys.readouterr()
    assert errors.startswith(f"kbatch index: no index: {path}")
    assert out.startswith("2 logs, 4 closed segments: 2 indexed, 1 unchanged, 0 removed\n")


def test_a_segment_with_too_many_keys_is_refused(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "_MAX_PAIRS", 50)
    (done,) = kbatch.index_logs(root / "t-0", tmp_path / "index")
    assert [reason.partition(": ")[2] for _, reason in done.refused] == [
        "it has more than 50 keys in its blocks of batches, the most that a key index has"
    ] * 2


def test_the_result_does_not_depend_on_the_number_of_threads(root: Path, tmp_path: Path) -> None:
    one, many = (kbatch.index_logs(root, tmp_path / name, threads=n) for name, n in (("one", 1), ("many", 8)))
    # The secrets of the hashes differ.
    assert [(each.written, each.keys) for each in one] == [(each.written, each.keys) for each in many]


def test_progress_reaches_the_bytes_of_the_segments_that_are_read(root: Path, tmp_path: Path) -> None:
    shown: list[tuple[int, int]] = []
    kbatch.index_logs(root, tmp_path / "index", progress=lambda done, total: shown.append((done, total)))
    size = sum(segment.size for log in kbatch.find_logs(root) for segment in log.segments[:-1])
    assert shown[-1] == (size, size)
    assert [done for done, _ in shown] == sorted(done for done, _ in shown)
    shown.clear()
    kbatch.index_logs(root, tmp_path / "index", progress=lambda done, total: shown.append((done, total)))
    assert shown == []


def test_an_error_of_the_progress_function_ends_the_call_and_leaves_no_unfinished_file(
    root: Path, tmp_path: Path
) -> None:
    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kbatch.index_logs(root, tmp_path / "index", progress=fail)
    assert not files(tmp_path / "index")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kbatch-index")]
    assert counts(kbatch.index_logs(root, tmp_path / "index")) == [(2, 0, 0)] * 2


def test_the_work_directory_of_a_killed_run_is_removed_by_the_next_one(root: Path, tmp_path: Path) -> None:
    (done, _) = kbatch.index_logs(root, tmp_path / "index")
    work = Path(done.path) / "work-12345678.tmp"
    work.mkdir()
    (work / "half").write_bytes(b"PAR1")
    for path in Path(done.path).glob("*.parquet"):
        path.unlink()
    kbatch.index_logs(root, tmp_path / "index")
    assert not work.exists()
    assert len(list(Path(done.path).iterdir())) == 2


def test_a_directory_that_cannot_be_written_is_an_error(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogDirectoryError, match=r"file.*: can't be written: Not a directory"):
        kbatch.index_logs(root, tmp_path / "file")


def test_without_a_home_the_directory_must_be_given(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "relative")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(LogDirectoryError, match="give the directory of the index"):
        kbatch.index_logs(root)


# -- the command


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The default directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kbatch" / "key-index"


def test_the_command_writes_to_the_cache_and_prints_a_summary(
    root: Path, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", str(root)]) == 0
    out, errors = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == "2 logs, 4 closed segments: 4 indexed, 0 unchanged, 0 removed"
    assert lines[1].startswith("the index has ")
    assert errors == ""
    assert len(files(index)) == 4
    assert main(["index", "--json", "--topic", "t", "--partition", "1", str(root)]) == 0
    document = json.loads(capsys.readouterr().out)
    (log,) = document.pop("logs")
    assert document == {"command": "index", "exit_status": 0, "damaged": False}
    assert (log["name"], log["segments"], log["unchanged"], log["refused"]) == ("t-1", 2, 2, [])
    assert os.path.dirname(log["index"]) == str(index)


def test_an_export_of_a_key_is_the_same_with_an_index(root: Path, index: Path, tmp_path: Path) -> None:
    """Also what the next run continues from, and the counts of offsets."""
    kbatch.index_logs(root)
    summaries = []
    for name, chosen in (("with", None), ("without", False)):
        options = ReadOptions(key=b"k7", index=chosen, split_bytes=4000)
        summaries.append(export(root, tmp_path / name, options))
    names = ("records", "first_offset", "last_offset", "lost_bytes", "removed_offsets", "gap_offsets", "next_offset")
    first, second = ([[getattr(each, name) for name in names] for each in found.partitions] for found in summaries)
    assert first == second == [[8, 7, 287, 0, 0, 0, 300]] * 2
    assert summaries[0].log_bytes < summaries[1].log_bytes
    read: list[tuple[int, int]] = []
    kbatch.export(root, tmp_path / "shown", engine="local", key="k7", progress=lambda *each: read.append(each[:2]))
    assert read[-1] == (sum(log.size for log in kbatch.find_logs(root)),) * 2
    manifests = [json.loads((tmp_path / name / "_manifest.json").read_text()) for name in ("with", "without")]
    assert manifests[0]["positions"] == manifests[1]["positions"]
    for name in ("with", "without"):
        write_segment(root / "t-0", 300, batches(300, 50))
        again = export(root, tmp_path / name, ReadOptions(key=b"k7"))
        assert again.records == 1
    rows = [sorted(map(str, pq.read_table(tmp_path / name).to_pylist())) for name in ("with", "without")]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 17
