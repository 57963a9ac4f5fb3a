"""Index files and seeking: DSK-R2 to DSK-R5. An index changes how fast records are found, never the result."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from golden_logs import LOGS
from log_batches import batch, write_segment

from kbatch.log import Log, Segment
from kbatch.log.files.indexes import OffsetIndex, TimeIndex, stored_entries
from kbatch.log.store.local_files import bytes_read
from kbatch.log.store.storage import Storage

MESSAGE_SETS = ["magic0-0", "magic1-0", "mixed-0"]
INDEXED = ["codec-none-0", "codec-gzip-0", "codec-snappy-0", "codec-lz4-0", "codec-zstd-0", "txn-0", "compact-src-0"]


def expected_batches(log_file: str) -> list[dict[str, object]]:
    lines = Path(log_file + ".expected.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "position" in row]


@pytest.mark.parametrize("name", INDEXED)
def test_indexes_of_real_segments_dsk_r2_dsk_r3(name: str) -> None:
    for segment in Log(LOGS / name).segments:
        assert segment.base_offset is not None
        stem = segment.path.removesuffix(".log")
        file = OffsetIndex(stem + ".index", base_offset=segment.base_offset)
        index = file.read(segment.size)
        last = {row["position"]: row["lastOffset"] for row in expected_batches(segment.path)}
        assert len(index) == Path(stem + ".index").stat().st_size // 8
        assert [last[position] for position in index["position"].tolist()] == index["offset"].tolist()
        for offset in [*index["offset"].tolist(), *(index["offset"] - 1).tolist()]:
            i = int(np.searchsorted(index["offset"], offset, "right")) - 1
            found = file.find(segment.size, offset)
            assert found == (None if i < 0 else tuple(index[i]))
        times, size = stored_entries(stem + ".timeindex", "timeindex")
        assert len(times) == size // 12 > 0
        stamps = {row["maxTimestamp"] for row in expected_batches(segment.path)}
        assert set(times["timestamp"].tolist()) <= stamps
        time_file = TimeIndex(stem + ".timeindex", base_offset=segment.base_offset)
        for at in [*times["timestamp"].tolist(), *(times["timestamp"] + 1).tolist()]:
            i = int(np.searchsorted(times["timestamp"], at, "left")) - 1
            expected = None if i < 0 else (times["timestamp"][i], segment.base_offset + times["offset"][i])
            assert time_file.find(segment.size, at) == expected


def test_zero_tail_of_an_index_is_trimmed_dsk_r4(tmp_path: Path) -> None:
    path = tmp_path / "i.index"
    path.write_bytes(struct.pack(">6i", 3, 0, 9, 400, 20, 900) + bytes(10 * 1024 * 1024 - 24))
    index = OffsetIndex(str(path), base_offset=100)
    assert index.read(1 << 20).tolist() == [(103, 0), (109, 400), (120, 900)]
    assert index.find(1 << 20) == index.find(1 << 20, 120) == (120, 900)
    assert index.find(1 << 20, 119) == (109, 400)
    assert index.find(1 << 20, 102) is None
    path = tmp_path / "i.timeindex"
    path.write_bytes(struct.pack(">qiqi", 50, 3, 70, 9) + bytes(12 * 100))
    times = TimeIndex(str(path), base_offset=100)
    assert [times.find(1 << 20, at) for at in (50, 51, 70, 71)] == [None, (50, 103), (50, 103), (70, 109)]
    path.write_bytes(bytes(1200))
    assert times.find(1 << 20, 100) is None


@pytest.mark.parametrize(
    ("stored", "sound"),
    [
        (struct.pack(">4i", 3, 0, 9, 400) + b"\0", []),
        (struct.pack(">4i", 3, 0, 9, 5000), [(3, 0)]),
        (struct.pack(">4i", 0, 0, 1, 999), [(0, 0), (1, 999)]),
        (struct.pack(">4i", 0, 0, 1, 1000), [(0, 0)]),
        (struct.pack(">6i", 3, 0, 2, 400, 9, 500), [(3, 0)]),
        (struct.pack(">6i", 3, 0, 3, 400, 9, 500), [(3, 0)]),
        (struct.pack(">6i", 3, 100, 5, 100, 9, 500), [(3, 100)]),
        (struct.pack(">4i", -3, 0, 9, 400), []),
        (struct.pack(">4i", 3, -8, 9, 400), []),
        (b"", []),
    ],
)
def test_invalid_index_entries_are_ignored_dsk_r5(tmp_path: Path, stored: bytes, sound: list[tuple[int, int]]) -> None:
    path = tmp_path / "i.index"
    path.write_bytes(stored)
    index = OffsetIndex(str(path), base_offset=0)
    assert index.read(1000).tolist() == sound
    # In a damaged index a different entry may be found. The lookup in the segment checks whether the entry fits.
    if sound or len(stored) % 8 or not stored:
        assert (index.find(1000) is not None) == bool(sound)


def test_entries_of_offset_0_and_of_timestamp_0_are_valid_dsk_r2(tmp_path: Path) -> None:
    """Only an entry of zeros in both fields may be the tail of a preallocated file (DSK-R4)."""
    path = tmp_path / "i.index"
    path.write_bytes(struct.pack(">4i", 0, 0, 1, 70))
    index = OffsetIndex(str(path), base_offset=100)
    assert [index.find(1000, offset) for offset in (99, 100, 101)] == [None, (100, 0), (101, 70)]
    path = tmp_path / "i.timeindex"
    path.write_bytes(struct.pack(">qiqi", 0, 5, 1, 6))
    times = TimeIndex(str(path), base_offset=100)
    assert [times.find(1000, before) for before in (0, 1, 2)] == [None, (0, 105), (1, 106)]


def test_invalid_time_index_entries_are_ignored_dsk_r5(tmp_path: Path) -> None:
    path = tmp_path / "i.timeindex"
    times = TimeIndex(str(path), base_offset=0)
    path.write_bytes(struct.pack(">qiqi", 50, 3, -60, 9))
    assert times.find(1000, 100) == (50, 3)
    path.write_bytes(struct.pack(">qiqi", 50, 3, 60, -9))
    assert times.find(1000, 100) == (50, 3)
    path.write_bytes(struct.pack(">qiqi", 50, 3, 60, 9)[:-1])
    assert times.find(1000, 100) is None


@pytest.mark.parametrize("count", [1, 4, 5, 8, 9, 12])
def test_blocks_of_a_remote_index_are_kept_and_give_the_same_entries(count: int) -> None:
    """The second read takes the entries from memory, in blocks of four here, and reads no byte."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    entries = [(10 * n, 100 * n) for n in range(count)]
    memory.pipe("/kept/i.index", b"".join(struct.pack(">ii", *entry) for entry in entries))
    index = OffsetIndex("memory://kept/i.index", base_offset=0, storage=Storage(remote=True))
    index._entries._rows = 4
    assert index.read(1 << 20).tolist() == entries
    before = bytes_read()
    assert index.read(1 << 20).tolist() == entries
    assert [index.find(1 << 20, 10 * n + 9) for n in range(count)] == entries
    assert bytes_read() == before


def test_a_sparse_giant_index_is_read_only_up_to_the_size_its_log_allows(tmp_path: Path) -> None:
    path = tmp_path / "i.index"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert len(OffsetIndex(str(path), base_offset=0).read(1000)) <= 1


@pytest.mark.parametrize("remote", [False, True])
def test_an_index_lookup_reads_only_a_few_blocks(tmp_path: Path, remote: bool) -> None:
    """The indexes have the sizes for a segment of 1 GiB: 2 MiB and 3 MiB."""
    count = 1 << 18
    numbers = np.arange(count)
    offsets = np.empty(count, [("offset", ">i4"), ("position", ">i4")])
    offsets["offset"], offsets["position"] = 10 * numbers + 9, 4096 * numbers
    times = np.empty(count, [("timestamp", ">i8"), ("offset", ">i4")])
    times["timestamp"], times["offset"] = 1000 * numbers + 1, 10 * numbers
    if remote:
        memory = pytest.importorskip("fsspec").filesystem("memory")
        memory.pipe({"/blocks/i.index": offsets.tobytes(), "/blocks/i.timeindex": times.tobytes()})
        root, storage = "memory://blocks", Storage(remote=True)
    else:
        (tmp_path / "i.index").write_bytes(offsets.tobytes())
        (tmp_path / "i.timeindex").write_bytes(times.tobytes())
        root, storage = str(tmp_path), Storage()
    block = 128 << 10 if remote else 8 << 10
    size = 1 << 30
    for asked, reads in ((count - 1, 1), (count - 100, 1), (200_001, 13), (3, 13)):
        index = OffsetIndex(f"{root}/i.index", base_offset=7, storage=storage)
        before = bytes_read()
        assert index.find(size, 10 * asked + 16) == (10 * asked + 16, 4096 * asked)
        assert bytes_read() - before <= reads * block
        # All entries are read, and no byte twice.
        assert len(index.read(size)) == count
        assert (bytes_read() - before) // (2 << 20) == 1
        times_index = TimeIndex(f"{root}/i.timeindex", base_offset=7, storage=storage)
        before = bytes_read()
        assert times_index.find(size, 1000 * asked + 2) == (1000 * asked + 1, 10 * asked + 7)
        assert bytes_read() - before <= reads * block
        # A remote block is read once, even if the index object is copied.
        before = bytes_read()
        assert pickle.loads(pickle.dumps(times_index)).find(size, 1000 * asked + 2) == (
            1000 * asked + 1,
            10 * asked + 7,
        )
        assert (bytes_read() == before) == remote


def offsets(log: Log, **options: int) -> list[int]:
    return [offset for table in log.tables(**options) for offset in table.records["offset"].tolist()]


def seeks(log: Log) -> list[object]:
    """Return the results of seeks and bounded reads at the first and last offset of every batch."""
    rows = log.batches()
    answers: list[object] = []
    for base, delta, stamp in zip(
        rows["base_offset"].tolist(), rows["last_offset_delta"].tolist(), rows["max_timestamp"].tolist(), strict=True
    ):
        for segment in log.segments:
            for offset in (base, base + delta, base + delta + 1):
                answers.append(segment.seek_offset(offset, use_indexes=log.use_indexes))
            for timestamp in (stamp, stamp + 1):
                answers.append(segment.seek_timestamp(timestamp, use_indexes=log.use_indexes))
        answers.append(log.offset_for_timestamp(stamp))
    middle = int(rows["base_offset"][len(rows) // 2]) + 1
    stamp = int(rows["max_timestamp"][len(rows) // 2])
    answers += [offsets(log, start_offset=middle), offsets(log, stop_offset=middle), log.end_offset]
    answers += [offsets(log, start_timestamp=stamp), offsets(log, stop_timestamp=stamp)]
    return answers


@pytest.fixture(scope="module")
def truth() -> list[object]:
    return seeks(Log(LOGS / "codec-none-0", use_indexes=False))


def copied(tmp_path: Path) -> tuple[Log, list[Path], list[Path]]:
    directory = tmp_path / "codec-none-0"
    shutil.copytree(LOGS / "codec-none-0", directory)
    return Log(directory), sorted(directory.glob("*.index")), sorted(directory.glob("*.timeindex"))


def test_valid_indexes_do_not_change_results(truth: list[object]) -> None:
    assert seeks(Log(LOGS / "codec-none-0")) == truth


def test_a_valid_index_is_used(tmp_path: Path) -> None:
    """With a hole in the log before the entry, only the index leads to the batches after the hole."""
    log, *_ = copied(tmp_path)
    segment = log.segments[0]
    path = Path(segment.path)
    data = bytearray(path.read_bytes())
    data[8:12] = bytes(4)
    path.write_bytes(data)
    assert segment.seek_offset(1700) > 73133
    assert segment.seek_offset(1700, use_indexes=False) == 0
    assert segment.seek_timestamp(1700000048136) > 73133


def test_deleted_indexes_do_not_change_results_dsk_r5(tmp_path: Path, truth: list[object]) -> None:
    log, index, times = copied(tmp_path)
    for path in index + times:
        path.unlink()
    assert seeks(log) == truth


@pytest.mark.parametrize("cut", [1, 8, 12, 40, 60])
def test_truncated_indexes_do_not_change_results_dsk_r5(tmp_path: Path, truth: list[object], cut: int) -> None:
    log, index, times = copied(tmp_path)
    for path in index + times:
        path.write_bytes(path.read_bytes()[:-cut])
    assert seeks(log) == truth


@pytest.mark.parametrize("seed", range(8))
def test_garbage_indexes_do_not_change_results_dsk_r5(tmp_path: Path, truth: list[object], seed: int) -> None:
    log, index, times = copied(tmp_path)
    random_bytes = random.Random(seed).randbytes
    for path in index + times:
        size = path.stat().st_size
        keep = size // 2 if seed % 2 else 0
        path.write_bytes(path.read_bytes()[:keep] + random_bytes(size - keep))
    assert seeks(log) == truth


@pytest.mark.parametrize("shift", [-4096, -61, -8, -1, 1, 12, 4096])
def test_shifted_positions_do_not_change_results_dsk_r5(tmp_path: Path, truth: list[object], shift: int) -> None:
    log, index, _ = copied(tmp_path)
    for path in index:
        entries = np.frombuffer(path.read_bytes(), ">i4").reshape(-1, 2).copy()
        entries[:, 1] += shift
        path.write_bytes(entries.tobytes())
    assert seeks(log) == truth


@pytest.mark.parametrize("shift", [-1000, -1, 1, 1000])
def test_shifted_offsets_do_not_change_results_dsk_r5(tmp_path: Path, truth: list[object], shift: int) -> None:
    log, index, times = copied(tmp_path)
    for path, entry in [(path, [(">i4"), (">i4")]) for path in index] + [(path, [">i8", ">i4"]) for path in times]:
        dtype = np.dtype([("a", entry[0]), ("b", entry[1])])
        entries = np.frombuffer(path.read_bytes(), dtype).copy()
        entries["a" if dtype.itemsize == 8 else "b"] += shift
        path.write_bytes(entries.tobytes())
    assert seeks(log) == truth


def test_indexes_of_another_segment_do_not_change_results_dsk_r5(tmp_path: Path, truth: list[object]) -> None:
    log, index, times = copied(tmp_path)
    for first, second in (index, times):
        swapped = first.read_bytes(), second.read_bytes()
        first.write_bytes(swapped[1])
        second.write_bytes(swapped[0])
    assert seeks(log) == truth


def test_shifted_timestamps_do_not_change_results_dsk_r5(tmp_path: Path, truth: list[object]) -> None:
    log, _, times = copied(tmp_path)
    for path in times:
        entries = np.frombuffer(path.read_bytes(), [("timestamp", ">i8"), ("offset", ">i4")]).copy()
        entries["timestamp"][:-1] = entries["timestamp"][1:]
        path.write_bytes(entries.tobytes())
    assert seeks(log) == truth


@pytest.mark.parametrize(("inner_base", "flipped"), [(12, 0), (0, 1), (11, 1)])
@pytest.mark.parametrize("entries", [1, 2])
def test_index_entries_must_point_at_a_valid_batch_at_or_below_their_offset(
    tmp_path: Path, inner_base: int, flipped: int, entries: int
) -> None:
    """Entries that point into a record's value, at a batch above the entry's offset or with a bad CRC, are ignored."""
    inner = batch(inner_base, [5] * 40, value=b"forged")
    inner = inner[:-1] + bytes([inner[-1] ^ flipped])
    outer = [batch(0, [1] * 10), batch(10, [2], value=inner), batch(11, [3]), batch(12, [4])]
    path = write_segment(tmp_path / "t-0", 0, outer)
    inside = path.read_bytes().index(inner)
    end = len(b"".join(outer[:3]))
    path.with_suffix(".index").write_bytes(struct.pack(">4i", 11, inside, 12, end)[: 8 * entries])
    path.with_suffix(".timeindex").write_bytes(struct.pack(">qiqi", 2, 11, 4, 12))
    segment = Segment(path)
    assert not segment._begins_batch(inside, 11)
    assert segment._begins_batch(end, 12)
    for offset in range(14):
        assert segment.seek_offset(offset) == segment.seek_offset(offset, use_indexes=False)
        assert offsets(Log(path.parent), start_offset=offset) == list(range(offset, 13))
    for timestamp in range(6):
        assert segment.seek_timestamp(timestamp) == segment.seek_timestamp(timestamp, use_indexes=False)
    assert Log(path.parent).end_offset == 13


def test_entry_of_an_append_of_several_batches_dsk_r2(tmp_path: Path) -> None:
    """A follower appends several batches at once; the entry has their last offset and the position of the first."""
    batches = [batch(10 * i, [i] * 10) for i in range(9)]
    path = write_segment(tmp_path / "t-0", 0, batches)
    size = len(batches[0])
    path.with_suffix(".index").write_bytes(struct.pack(">4i", 59, 3 * size, 89, 6 * size))
    segment = Segment(path)
    assert [segment.seek_offset(offset) // size for offset in range(90)] == [offset // 10 for offset in range(90)]


def test_windows_are_bounded_and_read_only() -> None:
    for live in (False, True):
        segment = Segment(LOGS / "codec-none-0" / "00000000000000000000.log", live=live)
        data = Path(segment.path).read_bytes()
        for start, stop in (
            (0, 10),
            (4097, 9000),
            (segment.size - 5, segment.size + 100),
            (segment.size, segment.size),
        ):
            window = segment.window(start, stop)
            assert window.tobytes() == data[start:stop]
            assert not window.flags.writeable
        with pytest.raises(ValueError, match="must not be negative"):
            segment.window(-1, 5)


@pytest.mark.parametrize("name", [*INDEXED, *MESSAGE_SETS, "upconvert-0", "kraft-control-0"])
def test_segments_have_the_batches_that_kafka_reads_frm_r13_frm_r16(name: str) -> None:
    log = Log(LOGS / name)
    expected = [row for segment in log.segments for row in expected_batches(segment.path)]
    rows = log.batches()
    assert rows["position"].tolist() == [row["position"] for row in expected]
    assert rows["size"].tolist() == [row["size"] for row in expected]
    assert rows["last_offset"].tolist() == [row["lastOffset"] for row in expected]
    assert rows["max_timestamp"].tolist() == [row["maxTimestamp"] for row in expected]
    assert log.end_offset == expected[-1]["nextOffset"]
