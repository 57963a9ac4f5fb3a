"""Directories after a finished or interrupted compaction: DSK-R8, DSK-R13, TXI-R8, CMP-R7."""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from golden_logs import LOGS
from hypothesis import given, settings
from hypothesis import strategies as st
from log_batches import batch, segment_path, write_segment

from kbatch.errors import LogDirectoryError, TruncatedBatchError
from kbatch.log import Log, find_logs
from kbatch.log.store.names import SegmentName, segment_names


def offsets(log: Log) -> list[int]:
    return [offset for table in log.tables() for offset in table.records["offset"].tolist()]


def values(log: Log) -> list[bytes | None]:
    return [value for table in log.tables() for value in table.values()]


# -- how a broker loads a directory


def next_offset(path: Path) -> int:
    """The offset after the last complete batch of a file (Kafka's ``LogSegment.readNextOffset``)."""
    data, position, reached = path.read_bytes(), 0, int(path.name[:20])
    while position + 61 <= len(data):
        base, length, delta = struct.unpack_from(">qi11xi", data, position)
        if position + 12 + length > len(data):
            break
        reached = base + delta + 1
        position += 12 + length
    return reached


def start_broker(directory: Path) -> None:
    """Change the files of a directory as Kafka's ``LogLoader.load`` does, in the same passes."""

    def base(path: Path) -> int:
        return int(path.name.split(".")[0])

    swaps, cleaned = [], []
    for path in directory.iterdir():
        if path.suffix == ".deleted":
            path.unlink()
        elif path.suffix == ".cleaned":
            cleaned.append(path)
        elif path.suffix == ".swap":
            swaps.append(path)
    least = min(map(base, cleaned), default=2**63 - 1)
    for path in list(swaps):
        if base(path) >= least:
            path.unlink()
            swaps.remove(path)
    for path in cleaned:
        path.unlink()
    logs = [path for path in swaps if path.name.endswith(".log.swap")]
    first = min(map(base, logs), default=2**63 - 1)
    end = max(map(next_offset, logs), default=-1)
    for path in list(directory.iterdir()):
        if path.suffix != ".swap" and path.name[:20].isdigit() and first <= base(path) < end:
            path.unlink()
    for path in swaps:
        path.rename(path.with_suffix(""))


def seen(log: Log) -> list[tuple[int | None, bytes]]:
    return [(segment.base_offset, Path(segment.path).read_bytes()) for segment in log.segments]


BASES = (0, 10, 20, 30)


@st.composite
def directories(draw: st.DrawFn) -> dict[str, bytes]:
    """Files with any of the four suffixes, each with different batches."""
    files = {}
    for base in BASES:
        for suffix in (".log", ".log.swap", ".log.cleaned", ".log.deleted"):
            if draw(st.booleans() if suffix in (".log", ".log.swap") else st.integers(0, 5).map(lambda n: n == 0)):
                starts = draw(st.lists(st.integers(base, base + 24), max_size=3, unique=True).map(sorted))
                name = f"{base:020d}{suffix}"
                files[name] = b"".join(batch(start, [start], value=name.encode()) for start in starts)
                if draw(st.integers(0, 5)) == 0:
                    files[name] += batch(base + 25, [1])[: draw(st.integers(1, 60))]
    return files


@settings(max_examples=150, deadline=None)
@given(directories())
def test_a_directory_is_read_as_a_broker_would_load_it_dsk_r8(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as root:
        cold, started = Path(root, "cold-0"), Path(root, "started-0")
        for directory in (cold, started):
            directory.mkdir()
            for name, data in files.items():
                (directory / name).write_bytes(data)
        start_broker(started)
        if not list(started.glob("*.log")):
            with pytest.raises(LogDirectoryError, match="no segment"):
                Log(cold)
            return
        assert seen(Log(cold)) == seen(Log(started))
        assert seen(Log(cold, use_indexes=False)) == seen(Log(started))
        assert sorted(path.name for path in cold.iterdir()) == sorted(files)


def compacting(tmp_path: Path) -> Path:
    """Two segments, the .swap file that they were compacted into, and a later segment."""
    directory = tmp_path / "t-0"
    write_segment(directory, 0, [batch(0, [1, 2, 3], value=b"old")])
    write_segment(directory, 3, [batch(3, [4, 5], value=b"old")])
    write_segment(directory, 5, [batch(5, [6], value=b"new")])
    segment_path(directory, 0, ".log.swap").write_bytes(
        batch(1, [2], value=b"compacted") + batch(4, [5], value=b"compacted")
    )
    return directory


def test_swap_replaces_the_segments_that_it_covers_dsk_r8(tmp_path: Path) -> None:
    directory = compacting(tmp_path)
    log = Log(directory)
    assert [(segment.base_offset, segment.live) for segment in log.segments] == [(0, False), (5, True)]
    expected = [b"compacted", b"compacted", b"new"]
    assert values(log) == expected
    assert (log.start_offset, log.end_offset, offsets(log)) == (1, 6, [1, 4, 5])
    (found,) = find_logs(tmp_path)
    assert values(found) == expected
    # Each step of the swap gives the same records: the originals are renamed one by one, then the .swap file.
    segment_path(directory, 0).rename(segment_path(directory, 0, ".log.deleted"))
    assert values(Log(directory)) == expected
    segment_path(directory, 3).rename(segment_path(directory, 3, ".log.deleted"))
    assert values(Log(directory)) == expected
    segment_path(directory, 0, ".log.swap").rename(segment_path(directory, 0))
    assert values(Log(directory)) == expected


def test_swap_of_an_unfinished_split_is_ignored_dsk_r8(tmp_path: Path) -> None:
    """A broker stopped while it split a segment: only the later part is a .swap file, and the original is complete."""
    directory = tmp_path / "t-0"
    write_segment(directory, 0, [batch(0, [1, 2], value=b"old"), batch(2, [3], value=b"old")])
    segment_path(directory, 2, ".log.swap").write_bytes(batch(2, [3], value=b"split"))
    segment_path(directory, 0, ".log.cleaned").write_bytes(batch(0, [1, 2], value=b"split"))
    assert values(Log(directory)) == [b"old"] * 3
    segment_path(directory, 0, ".log.cleaned").rename(segment_path(directory, 0, ".log.swap"))
    assert values(Log(directory)) == [b"split"] * 3


def test_swap_without_other_segments_is_a_log_dsk_r8(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    segment_path(directory, 7, ".log.swap").write_bytes(batch(7, [1, 2]))
    assert offsets(Log(directory)) == [7, 8]
    assert [log.topic for log in find_logs(tmp_path)] == ["t"]


def test_a_swap_file_with_garbage_is_refused_dsk_r8(tmp_path: Path) -> None:
    """A broker cannot load such a log, because the offset range of the file is unknown."""
    directory = compacting(tmp_path)
    path = segment_path(directory, 0, ".log.swap")
    path.write_bytes(batch(1, [2]) + bytes(range(100)))
    with pytest.raises(LogDirectoryError, match=r"log\.swap, byte \d+: no batch can begin here") as caught:
        Log(directory)
    assert caught.value.source == str(path)
    assert offsets(Log(segment_path(directory, 3))) == [3, 4]


def test_cut_swap_is_an_error_when_it_is_read_dsk_r8_dsk_r14(tmp_path: Path) -> None:
    directory = compacting(tmp_path)
    path = segment_path(directory, 0, ".log.swap")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TruncatedBatchError, match=r"log\.swap"):
        offsets(Log(directory))


def test_index_files_of_a_swap_dsk_r8_txi_r8(tmp_path: Path) -> None:
    def entry(last: int) -> bytes:
        return struct.pack(">hqqqq", 0, 9, 0, last, last + 1)

    directory = compacting(tmp_path)
    segment_path(directory, 0, ".txnindex").write_bytes(entry(2) + entry(3))
    segment_path(directory, 5, ".txnindex").write_bytes(entry(5))
    log = Log(directory)
    assert [segment.transaction_index()["last_offset"].tolist() for segment in log.segments] == [[], [5]]
    segment_path(directory, 0, ".txnindex.swap").write_bytes(entry(3))
    assert Log(directory).segments[0].transaction_index()["last_offset"].tolist() == [3]
    # The broker stopped after it had renamed the .log file, before it renamed the indexes.
    start_broker(directory)
    segment_path(directory, 0, ".txnindex").rename(segment_path(directory, 0, ".txnindex.swap"))
    segment = Log(directory).segments[0]
    assert segment.path.endswith(".log")
    assert segment.transaction_index()["last_offset"].tolist() == [3]


def test_indexes_of_a_swap_are_used_but_not_trusted(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    path = write_segment(directory, 0, [batch(i, [i]) for i in range(50)], indexes=True)
    for suffix in (".log", ".index", ".timeindex"):
        path.with_suffix(suffix).rename(path.with_suffix(f"{suffix}.swap"))
    segment = Log(directory).segments[0]
    assert segment.seek_offset(40) == segment.seek_offset(40, use_indexes=False)
    # With a hole in the log before the entry, only the index leads to the batches after the hole.
    data = bytearray(Path(segment.path).read_bytes())
    position = segment.seek_offset(40)
    data[8:12] = bytes(4)
    Path(segment.path).write_bytes(data)
    assert (segment.seek_offset(40), segment.seek_offset(40, use_indexes=False)) == (position, 0)


def test_other_names_are_not_files_of_a_compaction() -> None:
    names = ["00000000000000000003.log", "x.swap", "3.log.swap", "00000000000000000003.index.cleaned.bak", ".swap"]
    assert segment_names(names, lambda name, base: 1 << 40) == [SegmentName(3, "00000000000000000003.log")]
    high = "99999999999999999999"
    assert segment_names([*names, f"{high}.log.swap", f"{high}.log.cleaned"], lambda name, base: 1 << 40) == [
        SegmentName(3, "00000000000000000003.log")
    ]


# -- records and offsets of a compacted log


def test_compacted_logs_have_gaps_in_their_offsets_dsk_r13_cmp_r7() -> None:
    """The log has gaps before, between and within batches, and the marker of an aborted transaction without records."""
    lines = (LOGS / "compact-pass1-0" / "00000000000000000000.log.expected.jsonl").read_text().splitlines()
    expected = [row for row in map(json.loads, lines) if "baseOffset" in row]
    log = Log(LOGS / "compact-pass1-0")
    rows = log.batches()
    assert rows["base_offset"].tolist() == [row["baseOffset"] for row in expected]
    assert (rows["base_offset"] + rows["last_offset_delta"]).tolist() == [row["lastOffset"] for row in expected]
    assert (log.start_offset, log.end_offset) == (40, 100)
    assert offsets(log) == offsets(Log(LOGS / "compact-pass1-0", use_indexes=False))
    assert len(offsets(log)) == sum(row["count"] for row in expected if not row["control"])
    assert set(offsets(log)) < set(range(40, 99))
    for start in range(38, 100):
        (table,) = log.tables(start_offset=start)
        assert table.records["offset"].tolist() == [offset for offset in offsets(log) if offset >= start]


def test_compaction_keeps_the_last_of_each_key(tmp_path: Path) -> None:
    """The cleaner keeps the last committed record of each key, and drops records without a key."""
    source = {
        table.key(i): (int(table.records["offset"][i]), table.value(i))
        for table in Log(LOGS / "compact-src-0").tables(stop_offset=96)
        for i in range(len(table))
        if table.key(i) is not None
    }
    kept = {
        table.key(i): (int(table.records["offset"][i]), table.value(i))
        for table in Log(LOGS / "compact-pass1-0").tables()
        for i in range(len(table))
    }
    assert kept == source
    # The directory of a broker that was stopped during the swap.
    directory = tmp_path / "compact-src-0"
    shutil.copytree(LOGS / "compact-src-0", directory)
    shutil.copy(LOGS / "compact-pass1-0" / "00000000000000000000.log", segment_path(directory, 0, ".log.swap"))
    assert offsets(Log(directory)) == offsets(Log(LOGS / "compact-pass1-0"))


def test_empty_batches_keep_the_offsets_of_a_compacted_log_dsk_r13(tmp_path: Path) -> None:
    """The cleaner keeps a producer's last batch without its records; the batch counts for the next offset."""
    directory = tmp_path / "t-0"
    write_segment(directory, 0, [batch(4, [1]), batch(8, [], last_delta=3)])
    write_segment(directory, 20, [batch(25, [], last_delta=0), batch(30, [7])])
    write_segment(directory, 40, [batch(44, [], last_delta=5)])
    log = Log(directory)
    assert (offsets(log), log.start_offset, log.end_offset) == ([4, 30], 4, 50)
    assert [len(table.batches) for table in log.tables(start_offset=9, stop_offset=31)] != []
    assert np.all(log.batches()["record_count"] == [1, 0, 0, 1, 0])
