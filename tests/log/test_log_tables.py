"""Iteration over logs: FRM-R7, FRM-R8, DSK-R13, DSK-R14, DSK-R19, TS-R4, OFF-R1, EMP-R1; bounds, damage, memory."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from golden_logs import LOGS
from log_batches import batch, segment_path, write_segment

import kbatch
from kbatch.errors import (
    CorruptBatchError,
    CrcMismatchError,
    LimitExceededError,
    LogDirectoryError,
    TruncatedBatchError,
)
from kbatch.log import Log, find_logs

MAGIC_2 = sorted(path.name for path in LOGS.iterdir())


def offsets(log: Log, **options: object) -> list[int]:
    return [offset for table in log.tables(**options) for offset in table.records["offset"].tolist()]  # type: ignore[arg-type]


def losses(log: Log, **options: object) -> list[tuple[int, int]]:
    return [loss[:2] for table in log.tables(**options) for loss in table.losses]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MAGIC_2)
@pytest.mark.parametrize("max_bytes", [1, 20_000, 64 << 20])
def test_logs_written_by_kafka_have_the_records_that_kafka_reads(name: str, max_bytes: int) -> None:
    log = Log(LOGS / name)
    tables = list(log.tables(include_control=True, max_bytes=max_bytes))
    expected = []
    for segment in log.segments:
        rows = map(json.loads, Path(segment.path + ".expected.jsonl").read_text().splitlines())
        expected += [row for row in rows if "records" in row]
    counts = [n for table in tables for n in np.bincount(table.records["batch"], minlength=len(table.batches)).tolist()]
    assert counts == [row["records"] for row in expected]
    firsts = [row["first50"][0][:2] for row in expected if row["first50"]]
    seen = [
        [int(table.records["offset"][first]), int(table.records["timestamp"][first])]
        for table in tables
        for first, n in zip(
            table.batches["first_record"].tolist(),
            np.bincount(table.records["batch"], minlength=len(table.batches)).tolist(),
            strict=True,
        )
        if n
    ]
    assert seen == firsts
    assert {(table.topic, table.partition) for table in tables} == {(log.topic, log.partition)}
    assert {table.source for table in tables} <= {segment.path for segment in log.segments}
    assert not any(table.losses for table in tables)


def test_find_logs_of_the_golden_directory() -> None:
    found = {log.topic: log for log in find_logs(LOGS)}
    assert {"codec-none", "txn", "prealloc"} <= set(found)
    assert found["txn"].end_offset == 371
    assert len(found["txn"].segments) == 3


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Three segments with a gap between the second and the third (DSK-R13), and offsets 0 to 39, 60 to 79."""
    directory = tmp_path / "t-0"
    write_segment(
        directory, 0, [batch(i, [1000 + i, 900 + i, 1002 + i, 1003 + i]) for i in range(0, 20, 4)], indexes=True
    )
    write_segment(directory, 20, [batch(i, [1000 + i, 1001 + i]) for i in range(20, 40, 2)], indexes=True)
    write_segment(directory, 55, [batch(i, [1000 + i] * 5) for i in range(60, 80, 5)], indexes=True)
    return Log(directory)


ALL = [*range(40), *range(60, 80)]


def test_bounds_by_offset_cut_within_batches_off_r3(log: Log) -> None:
    assert offsets(log) == ALL
    for start in (None, -5, 0, 1, 3, 19, 20, 21, 39, 40, 50, 55, 57, 60, 61, 79, 80, 200):
        for stop in (None, -1, 0, 1, 20, 22, 39, 40, 55, 56, 61, 79, 80, 200):
            first, end = (None if bound is None or bound >= 0 else 80 + bound for bound in (start, stop))
            first, end = start if first is None else first, stop if end is None else end
            expected = [o for o in ALL if (first is None or o >= first) and (end is None or o < end)]
            assert offsets(log, start_offset=start, stop_offset=stop) == expected
            assert offsets(log, start_offset=start, stop_offset=stop, max_bytes=1) == expected


@pytest.mark.parametrize("use_indexes", [True, False])
def test_bounds_by_timestamp_choose_records_ts_r4(log: Log, use_indexes: bool) -> None:
    log = Log(log.path, use_indexes=use_indexes)
    stamps = {o: t for table in log.tables() for o, t in table.records[["offset", "timestamp"]].tolist()}
    points = sorted({t + d for t in stamps.values() for d in (-1, 0, 1)})
    for start in (None, *points[::7]):
        for stop in (None, *points[::11]):
            expected = [o for o, t in stamps.items() if (start is None or t >= start) and (stop is None or t < stop)]
            assert offsets(log, start_timestamp=start, stop_timestamp=stop) == expected
    for point in points:
        first = next((o for o, t in stamps.items() if t >= point), None)
        assert log.offset_for_timestamp(point) == first


def test_bounds_by_offset_and_timestamp_together(log: Log) -> None:
    expected = [o for o in range(25, 70) if o in ALL and 1030 <= 1000 + o - o % 5 * (o >= 60) < 1064]
    assert offsets(log, start_offset=25, stop_offset=70, start_timestamp=1030, stop_timestamp=1064) == expected


def test_a_stale_max_timestamp_does_not_change_the_result_ts_r4(tmp_path: Path) -> None:
    """After compaction, a batch's maximum timestamp may exceed the timestamps of its records."""
    write_segment(tmp_path / "t-0", 0, [batch(0, [10, 11], max_timestamp=99), batch(2, [50]), batch(3, [60])])
    log = Log(tmp_path / "t-0")
    assert log.offset_for_timestamp(55) == 3
    assert log.offset_for_timestamp(70) is None
    assert offsets(log, start_timestamp=50) == [2, 3]


def test_batches_before_the_start_offset_are_not_decoded(log: Log) -> None:
    """Damage before the start offset raises no error, because the damaged batches are not decoded."""
    path = Path(log.segments[1].path)
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    with pytest.raises(CrcMismatchError):
        offsets(log)
    assert offsets(log, start_offset=30) == [o for o in ALL if o >= 30]
    assert offsets(log, stop_offset=20) == list(range(20))
    assert offsets(log, start_timestamp=1060) == list(range(60, 80))


def test_empty_batches_and_lost_ends_count_for_the_end_emp_r1_off_r1(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch(0, [1]), batch(1, [], last_delta=8), batch(10, [1, 2], last_delta=9)])
    log = Log(tmp_path / "t-0")
    assert (log.start_offset, log.end_offset) == (0, 20)
    (table,) = log.tables()
    assert table.batches["record_count"].tolist() == [1, 0, 2]
    assert table.records["offset"].tolist() == [0, 10, 11]


def test_an_empty_last_segment_has_no_records(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch(0, [1])])
    write_segment(tmp_path / "t-0", 30, [])
    log = Log(tmp_path / "t-0")
    assert (log.start_offset, log.end_offset, log.incomplete_tail.kind) == (0, 30, "none")
    assert offsets(log) == [0]
    write_segment(tmp_path / "u-0", 17, [])
    log = Log(tmp_path / "u-0")
    assert (log.start_offset, log.end_offset, len(log.batches()), list(log.tables())) == (17, 17, 0, [])


def test_overlapping_segments_are_an_error_dsk_r13(log: Log) -> None:
    write_segment(Path(log.path), 38, [batch(38, [1, 2])])
    overlapping = Log(log.path)
    for read in (overlapping.batches, lambda: offsets(overlapping), lambda: offsets(overlapping, on_error="skip")):
        with pytest.raises(LogDirectoryError, match=r"begins at offset 38.*extends to 39"):
            read()


# -- the ends of segments

COMPLETE = [batch(0, [1, 2]), batch(2, [3], value=bytes(40)), batch(3, [4])]
NEXT = batch(4, [5], value=b"x" * 300)


@pytest.mark.parametrize("cut", [1, 11, 12, 16, 17, 60, 61, 100, len(NEXT) - 1])
@pytest.mark.parametrize("on_error", ["raise", "stop", "skip"])
def test_a_partial_last_batch_is_not_damage_frm_r3_dsk_r14(tmp_path: Path, cut: int, on_error: str) -> None:
    write_segment(tmp_path / "t-0", 0, COMPLETE, tail=NEXT[:cut])
    log = Log(tmp_path / "t-0")
    assert offsets(log, on_error=on_error) == [0, 1, 2, 3]
    assert losses(log, on_error=on_error) == []
    end = len(b"".join(COMPLETE))
    assert log.incomplete_tail == ("partial", end, cut, None)
    assert (log.end_offset, len(log.batches())) == (4, 3)


@pytest.mark.parametrize("zeros", [12, 61, 100_000, 5 << 20])
@pytest.mark.parametrize("on_error", ["raise", "stop", "skip"])
@pytest.mark.parametrize("last", [3, 2])
def test_zeros_after_the_last_batch_are_not_damage_frm_r7_dsk_r14(
    tmp_path: Path, zeros: int, on_error: str, last: int
) -> None:
    """The zeros may follow a batch that ends with zeros: one whose last value is zeros, without headers."""
    write_segment(tmp_path / "t-0", 0, COMPLETE[:last], tail=bytes(zeros))
    log = Log(tmp_path / "t-0")
    for max_bytes in (1, 1 << 20, 64 << 20):
        assert offsets(log, on_error=on_error, max_bytes=max_bytes) == list(range(last + 1))
        assert losses(log, on_error=on_error, max_bytes=max_bytes) == []
    assert log.incomplete_tail == ("zeros", len(b"".join(COMPLETE[:last])), zeros, None)
    assert log.end_offset == last + 1
    assert len(log.batches()) == last


def test_up_to_eleven_zeros_are_a_partial_batch_frm_r7(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, COMPLETE, tail=bytes(11))
    log = Log(tmp_path / "t-0")
    assert log.incomplete_tail.kind == "partial"
    assert offsets(log) == [0, 1, 2, 3]


def test_a_preallocated_segment_of_kafka_is_read_frm_r7() -> None:
    log = Log(LOGS / "prealloc-0")
    assert log.incomplete_tail.kind == "zeros"
    assert log.incomplete_tail.position + log.incomplete_tail.size == 65536
    assert len(offsets(log)) == 5


@pytest.mark.parametrize(
    "tail", [NEXT[:100], NEXT[:11], bytes(100), b"\xff" * 100], ids=["cut", "cut11", "zeros", "junk"]
)
def test_trailing_bytes_of_an_earlier_segment_are_damage_dsk_r14(tmp_path: Path, tail: bytes) -> None:
    first = write_segment(tmp_path / "t-0", 0, COMPLETE, tail=tail)
    write_segment(tmp_path / "t-0", 10, [batch(10, [9])])
    log = Log(tmp_path / "t-0")
    end = len(b"".join(COMPLETE))
    with pytest.raises((CorruptBatchError, TruncatedBatchError)) as caught:
        offsets(log)
    assert (caught.value.source, caught.value.position) == (str(first), end)
    assert offsets(log, on_error="stop") == [0, 1, 2, 3]
    # The later segment, which is not read, is a loss too.
    assert losses(log, on_error="stop") == [(end, len(tail)), (0, log.segments[1].size)]
    assert offsets(log, on_error="skip") == [0, 1, 2, 3, 10]
    assert losses(log, on_error="skip") == [(end, len(tail))]
    with pytest.raises((CorruptBatchError, LogDirectoryError), match=f"byte {end}"):
        log.batches()


def test_junk_at_the_end_of_the_last_segment_is_damage_dsk_r14(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "t-0", 0, COMPLETE, tail=b"\xff" * 100)
    log = Log(tmp_path / "t-0")
    end = len(b"".join(COMPLETE))
    assert log.incomplete_tail[:3] == ("damaged", end, 100)
    with pytest.raises(CorruptBatchError, match=f"byte {end}") as caught:
        offsets(log)
    assert caught.value.source == str(path)
    assert losses(log, on_error="skip") == [(end, 100)]
    with pytest.raises(CorruptBatchError):
        log.batches()


def test_nonzero_bytes_before_a_zero_tail_are_damage(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, COMPLETE, tail=b"\x01\x02\x03" + bytes(1000))
    log = Log(tmp_path / "t-0")
    end = len(b"".join(COMPLETE))
    assert log.incomplete_tail[:3] == ("damaged", end, 1003)
    with pytest.raises(CorruptBatchError, match=f"byte {end}"):
        offsets(log)
    assert offsets(log, on_error="skip") == [0, 1, 2, 3]
    assert losses(log, on_error="skip") == [(end, 1003)]


# -- damage within segments

MANY = [batch(i, [i], value=b"%06d" % i * 500) for i in range(300)]
SIZE = len(MANY[0])


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("max_bytes", [1, 100_000, 64 << 20])
@pytest.mark.parametrize(
    ("at", "value"),
    [
        (200, b"\xaa"),
        (8, b"\x00\x00\x00\x00"),
        (8, b"\x7f\xff\xff\xff"),
        (8, b"\x00\x05\x00\x00"),
        (8, b"\xff\xff\xff\xff"),
        (16, b"\x09"),
    ],
    ids=["payload", "length 0", "length max", "length long", "length -1", "magic"],
)
def test_skipping_loses_one_batch_at_any_window_boundary(
    tmp_path: Path, live: bool, max_bytes: int, at: int, value: bytes
) -> None:
    bad = 150
    path = write_segment(tmp_path / "t-0", 0, MANY)
    if not live:
        write_segment(tmp_path / "t-0", 300, [])
    data = bytearray(path.read_bytes())
    data[bad * SIZE + at : bad * SIZE + at + len(value)] = value
    path.write_bytes(data)
    log = Log(tmp_path / "t-0")
    kept = [i for i in range(300) if i != bad]
    assert offsets(log, on_error="skip", max_bytes=max_bytes) == kept
    lost = losses(log, on_error="skip", max_bytes=max_bytes)
    assert lost == [(bad * SIZE, SIZE)]
    with pytest.raises((CorruptBatchError, CrcMismatchError, LimitExceededError)) as caught:
        offsets(log, max_bytes=max_bytes)
    assert (caught.value.source, caught.value.position) == (str(path), bad * SIZE)
    assert offsets(log, on_error="stop", max_bytes=max_bytes) == kept[:bad]
    assert losses(log, on_error="stop", max_bytes=max_bytes) == [(bad * SIZE, len(data) - bad * SIZE)]


def test_stop_ends_the_read_of_all_segments_frm_r8(log: Log) -> None:
    path = Path(log.segments[1].path)
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    assert offsets(log, on_error="stop") == list(range(20))
    assert offsets(log, on_error="skip") == [o for o in ALL if o not in (20, 21)]


def test_batches_larger_than_a_window_are_read(tmp_path: Path) -> None:
    large = [batch(0, [1], value=bytes(3 << 20)), batch(1, [1]), batch(2, [1], value=b"y" * (9 << 20)), batch(3, [1])]
    write_segment(tmp_path / "t-0", 0, large)
    write_segment(tmp_path / "t-0", 4, [bytes(8) + one[8:] for one in []] + [batch(4, [1], value=bytes(5 << 20))])
    log = Log(tmp_path / "t-0")
    assert offsets(log, max_bytes=1) == [0, 1, 2, 3, 4]
    assert [segment.seek_offset(3) for segment in log.segments] == [sum(map(len, large[:3])), 0]
    assert len(log.batches()) == 5


# -- files


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts files by /proc")
def test_an_abandoned_iteration_leaves_no_file_open(log: Log) -> None:
    before = open_files()
    tables = log.tables(max_bytes=1)
    first = next(tables)
    assert len(first) == 4
    tables.close()
    del first, tables
    assert open_files() == before
    for table in log.tables(max_bytes=1):
        assert len(table) == 4
        break
    del table
    assert log.end_offset == 80
    assert next(log.segments[0].scan())["base_offset"][0] == 0
    assert open_files() == before


def test_tables_outlive_the_file_and_the_iteration(log: Log) -> None:
    tables = list(log.tables(max_bytes=1))
    for segment in log.segments:
        os.unlink(segment.path)
    assert [value for table in tables for value in table.values()] == [b"value"] * 60


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts files by /proc")
def test_kept_tables_keep_few_files_open(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, MANY)
    write_segment(tmp_path / "t-0", 300, [])
    before = open_files()
    tables = list(Log(tmp_path / "t-0").tables(max_bytes=1))
    assert len(tables) == 300
    assert open_files() == before
    assert [value[:6] for table in tables for value in table.values()] == [b"%06d" % i for i in range(300)]
    del tables
    assert open_files() == before


def test_batches_appended_after_opening_are_not_read_dsk_r19(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "t-0", 0, MANY)
    log = Log(tmp_path / "t-0")
    with path.open("ab") as file:
        file.write(batch(300, [1]))
    assert offsets(log) == list(range(300))


@pytest.mark.parametrize("segments", [1, 2])
def test_truncation_during_a_read_is_an_error_in_live_and_closed_segments_dsk_r19(
    tmp_path: Path, segments: int
) -> None:
    path = write_segment(tmp_path / "t-0", 0, MANY)
    if segments == 2:
        write_segment(tmp_path / "t-0", 300, [])
    log = Log(tmp_path / "t-0")
    tables = log.tables(max_bytes=100_000)
    next(tables)
    os.truncate(path, 200 * SIZE + 5)
    for read in (lambda: list(tables), lambda: offsets(log), log.batches):
        with pytest.raises(LogDirectoryError, match=r"0\.log: was truncated after the log was opened; open the log"):
            read()
    assert offsets(Log(path)) == list(range(200))


@pytest.mark.parametrize("segments", [1, 2])
def test_tables_outlive_the_truncation_of_their_file_dsk_r19(tmp_path: Path, segments: int) -> None:
    """In a process of its own: an access to a mapped page that no longer exists would end it."""
    path = write_segment(tmp_path / "t-0", 0, [batch(i, [1], value=b"v" * 5000) for i in range(100)])
    if segments == 2:
        write_segment(tmp_path / "t-0", 100, [])
    code = """
import os, sys, kbatch
log = kbatch.Log(os.path.dirname(sys.argv[1]))
tables, window = list(log.tables()), log.segments[0].window(0, log.segments[0].size)
os.truncate(sys.argv[1], 0)
values = [value for table in tables for value in table.values()]
assert values == [b"v" * 5000] * 100 and int(window.sum()), values[:1]
"""
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.returncode == 0, done


def test_a_truncated_closed_segment_is_an_error(log: Log) -> None:
    os.truncate(log.segments[0].path, 10)
    with pytest.raises(LogDirectoryError, match="open the log again"):
        offsets(log)
    with log.segments[1].open() as file:
        os.truncate(log.segments[1].path, 10)
        with pytest.raises(LogDirectoryError, match="open the log again"):
            file.window(0, 100)


def test_a_deleted_segment_is_an_error_in_one_line(log: Log) -> None:
    os.unlink(log.segments[1].path)
    with pytest.raises(LogDirectoryError, match=r"00000000000000000020\.log: can't be read: No such file") as caught:
        offsets(log)
    assert caught.value.source == log.segments[1].path


def test_bad_arguments_are_refused_at_once(log: Log) -> None:
    with pytest.raises(ValueError, match="max_bytes must be at least 1, got 0"):
        log.tables(max_bytes=0)
    with pytest.raises(ValueError, match="on_error"):
        log.tables(on_error="ignore")  # type: ignore[arg-type]


def test_a_segment_may_be_named_below_its_first_offset_dsk_r1(log: Log) -> None:
    assert log.segments[2].base_offset == 55
    assert log.start_offset == 0
    assert Log(segment_path(Path(log.path), 55)).start_offset == 60


# -- memory

ITERATE = """
import resource, sys
from kbatch.log import Log
log = Log(sys.argv[1])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
first = count = reached = 0
for table in log.tables(max_bytes=8 << 20):
    count += len(table)
    reached = int(table.records["offset"][-1]) + 1
    if not first and count:
        first = peak()
import numpy
print(count, reached, log.size, first, peak())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
@pytest.mark.parametrize("live", [True, False])
def test_memory_does_not_grow_with_the_log(tmp_path: Path, live: bool) -> None:
    """200 MB in tables of 8 MiB: the process grows by less than 8 MiB x 4 after its first table."""
    one = np.frombuffer(batch(0, list(range(300)), value=b"v" * 32), np.uint8)
    count = (200 << 20) // len(one)
    block = np.tile(one, (1000, 1))
    path = tmp_path / "t-0" / f"{0:020d}.log"
    path.parent.mkdir()
    with path.open("wb") as file:
        for start in range(0, count, 1000):
            rows = block[: min(1000, count - start)]
            bases = (np.arange(start, start + len(rows)) * 300).astype(">i8")
            rows[:, :8] = bases.view(np.uint8).reshape(-1, 8)
            file.write(rows.tobytes())
    if not live:
        write_segment(tmp_path / "t-0", count * 300, [])
    root = Path(kbatch.__file__).parent.parent
    run = subprocess.run(
        [sys.executable, "-c", ITERATE, str(path.parent)],
        cwd=root, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    records, reached, size, first, peak = map(int, run.stdout.split())
    assert (records, reached) == (count * 300, count * 300)
    assert size > 199 << 20
    assert (peak - first) << 10 < 4 * (8 << 20)
