"""`compare_logs`: pairs of records, counts, the first difference, damage and memory, against comparisons in Python."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from log_batches import segment_path, write_segment
from support.bombs import batch, record

import kbatch
from kbatch.kernels.keymap import hash_slices, siphash
from kbatch.kernels.slices import slices_equal
from kbatch.log import ComparedRecord, Difference, PartitionComparison, compare_logs
from kbatch.tuning import MIN_SPLIT_TABLE

MATCHES = ("offset", "order", "key")


class Record(NamedTuple):
    offset: int
    timestamp: int | None = 1000
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


def write(directory: Path, records: list[Record], *, per_batch: int = 3, codec: str = "none") -> Path:
    """Write a log of batches of this number of records."""
    batches = []
    for start in range(0, len(records), per_batch):
        part = records[start : start + per_batch]
        batches.append(
            kbatch.encode(
                [each.value for each in part],
                keys=[each.key for each in part],
                timestamps=[-1 if each.timestamp is None else each.timestamp for each in part],
                headers=[list(each.headers) for each in part],
                offsets=[each.offset for each in part],
                codec=codec,
            )
        )
    write_segment(directory, 0, batches)
    return directory


def compare(tmp_path: Path, a: list[Record], b: list[Record], **options: Any) -> PartitionComparison:
    (result,) = compare_logs(write(tmp_path / "a/t-0", a), write(tmp_path / "b/t-0", b), **options).partitions
    return result


def counts(result: PartitionComparison) -> tuple[int, int, int, int]:
    return result.matching, result.different, result.only_a, result.only_b


def as_compared(record: Record | None) -> ComparedRecord | None:
    return None if record is None else ComparedRecord(*record[:4], list(record.headers))


# -- pairs and counts


def test_records_are_compared_and_batches_are_not(tmp_path: Path) -> None:
    records = [Record(n, 1000 + n, b"%d" % n, b"v" * n, ((b"h", None),) * (n % 3)) for n in range(50)]
    a = write(tmp_path / "a/t-0", records, per_batch=7)
    b = write(tmp_path / "b/other-3", records, per_batch=11, codec="zstd")
    for match in MATCHES:
        assert compare_logs(a, b, match=match).equal
    kbatch.log.convert_log("tests/golden/logs/magic0-0", tmp_path / "converted")
    assert compare_logs("tests/golden/logs/magic0-0", tmp_path / "converted").equal


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timestamp", 1001),
        ("timestamp", None),
        ("key", b"K"),
        ("key", b""),
        ("key", None),
        ("value", b"w"),
        ("value", b""),
        ("value", None),
        ("headers", ()),
        ("headers", ((b"x", b"1"), (b"y", b""))),
        ("headers", ((b"y", None), (b"x", b"1"))),
        ("headers", ((b"x", b"1"), (b"y", None), (b"y", None))),
        ("headers", ((b"x", b"2"), (b"y", None))),
    ],
)
def test_each_field_is_compared_and_null_is_not_empty(tmp_path: Path, field: str, value: Any) -> None:
    record = Record(1, headers=((b"x", b"1"), (b"y", None)))
    changed = record._replace(**{field: value})
    a, b = [Record(0), record, Record(2)], [Record(0), changed, Record(2)]
    result = compare(tmp_path, a, b)
    assert counts(result) == (2, 1, 0, 0)
    assert result.fields == {field: 1}
    assert result.first == Difference(as_compared(record), as_compared(changed), (field,))
    assert not result.equal


def test_offsets_pair_records_across_gaps(tmp_path: Path) -> None:
    a = [Record(n, value=b"%d" % n) for n in (0, 1, 2, 5, 9, 20)]
    b = [Record(n, value=b"%d" % n) for n in (1, 2, 3, 5, 9)]
    b[3] = b[3]._replace(value=b"changed")
    result = compare(tmp_path, a, b)
    assert counts(result) == (3, 1, 2, 1)
    assert result.first == Difference(as_compared(a[0]), None)
    reverse = compare_logs(tmp_path / "b/t-0", tmp_path / "a/t-0").partitions[0]
    assert counts(reverse) == (3, 1, 1, 2)
    assert reverse.first == Difference(None, as_compared(a[0]))


def test_the_first_difference_has_the_lowest_offset_whatever_its_kind(tmp_path: Path) -> None:
    a = [Record(0), Record(1, value=b"x"), Record(2), Record(3)]
    b = [Record(0), Record(1), Record(3)]
    result = compare(tmp_path, a, b)
    assert result.first == Difference(as_compared(a[1]), as_compared(b[1]), ("value",))
    assert counts(result) == (2, 1, 1, 0)


def test_order_pairs_records_whatever_their_offsets(tmp_path: Path) -> None:
    a = [Record(n, value=b"%d" % n) for n in range(10)]
    b = [each._replace(offset=3 * each.offset + 1) for each in a]
    assert compare(tmp_path, a, b, match="order").equal
    b[4] = b[4]._replace(value=b"x", timestamp=9)
    result = compare(tmp_path / "2", a, b[:8], match="order")
    assert counts(result) == (7, 1, 2, 0)
    assert result.first == Difference(as_compared(a[4]), as_compared(b[4]), ("timestamp", "value"), 4)
    shorter = compare(tmp_path / "3", a, a[:4], match="order")
    assert shorter.first == Difference(as_compared(a[4]), None, row=4)


def test_order_reports_a_missing_record_as_one_difference(tmp_path: Path) -> None:
    a = [Record(n, value=b"%d" % n) for n in range(300)]
    b = [*a[:100], *a[101:]]
    result = compare(tmp_path, a, b, match="order")
    assert counts(result) == (299, 0, 1, 0)
    assert result.first == Difference(as_compared(a[100]), None, row=100)
    assert counts(compare(tmp_path / "2", b, a, match="order")) == (299, 0, 0, 1)


def test_order_resumes_after_each_of_several_differences(tmp_path: Path) -> None:
    a = [Record(n, value=b"%d" % n) for n in range(2000)]
    b = [each for each in a if each.offset % 200 != 50]
    b[700] = b[700]._replace(value=b"changed")
    b[900:900] = [Record(n, value=b"new %d" % n) for n in range(40)]
    assert counts(compare(tmp_path, a, b, match="order")) == (1989, 1, 10, 40)


def test_order_resumes_where_only_timestamps_differ(tmp_path: Path) -> None:
    a = [Record(n, value=b"%d" % n) for n in range(100)]
    b = [each._replace(timestamp=7) for each in a if each.offset != 30]
    result = compare(tmp_path, a, b, match="order")
    assert counts(result) == (0, 99, 1, 0)
    assert result.fields == {"timestamp": 99}


@pytest.mark.parametrize(("missing", "resumes"), [(1023, True), (1024, False)])
def test_order_looks_ahead_by_1024_records(tmp_path: Path, missing: int, resumes: bool) -> None:
    a = [Record(n, value=b"%d" % n) for n in range(1200)]
    result = compare(tmp_path, a, [*a[:5], *a[5 + missing :]], match="order")
    assert (result.different == 0) == resumes
    assert (result.only_a, result.only_b) == (missing, 0)


def test_order_looks_into_the_next_table(tmp_path: Path) -> None:
    a = [Record(n, value=b"%d" % n) for n in range(50)]
    result = compare(tmp_path, a, [*a[:20], *a[21:]], match="order", max_bytes=1)
    assert counts(result) == (49, 0, 1, 0)


def test_key_compares_the_last_record_of_each_key_and_ignores_tombstones(tmp_path: Path) -> None:
    a = [
        Record(0, key=b"a", value=b"old"),
        Record(1, key=b"b"),
        Record(2, key=b"gone"),
        Record(3, key=None, value=b"no key"),
        Record(4, key=b"a", value=b"new", headers=((b"h", b"1"),)),
        Record(5, key=b"gone", value=None),
        Record(6, key=b"", value=b"empty key"),
    ]
    compacted = [a[6]._replace(offset=0), a[1], a[4]._replace(offset=70)]
    result = compare(tmp_path, a, compacted, match="key")
    assert result.equal
    assert counts(result) == (3, 0, 0, 0)
    assert result.a is not None
    assert (result.a.records, result.a.keyless) == (7, 1)

    changed = [a[6]._replace(headers=((b"h", None),)), a[4]._replace(offset=70, timestamp=7), Record(80, key=b"new")]
    result = compare(tmp_path / "2", a, changed, match="key")
    assert counts(result) == (0, 2, 1, 1)
    assert result.fields == {"timestamp": 1, "headers": 1}
    assert result.first == Difference(as_compared(a[1]), None)
    result = compare(tmp_path / "3", a[6:], [a[6], Record(80, key=b"new")], match="key")
    assert result.first == Difference(None, as_compared(Record(80, key=b"new")))


def test_key_counts_as_a_dictionary_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rows are reduced to one per key several times.
    monkeypatch.setattr("kbatch.log.check.latest_records.LATEST_MIN_ROWS", 40)
    chosen = random.Random(5)
    sides = [
        [
            Record(n, key=b"%d" % chosen.randrange(60), value=chosen.choice([b"x", b"y", None]), timestamp=5)
            for n in range(300)
        ]
        for _ in range(2)
    ]
    result = compare(tmp_path, *sides, match="key", max_bytes=1)
    a, b = ({each.key: each for each in side} for side in sides)
    a, b = ({key: each for key, each in side.items() if each.value is not None} for side in (a, b))
    equal = sum(a[key].value == b[key].value for key in a.keys() & b.keys())
    assert counts(result) == (
        equal,
        len(a.keys() & b.keys()) - equal,
        len(a.keys() - b.keys()),
        len(b.keys() - a.keys()),
    )
    first = min(
        (each for key, each in a.items() if key not in b or b[key].value != each.value), key=lambda each: each.offset
    )
    assert result.first is not None
    assert result.first.a == as_compared(first)
    assert result.first.b == as_compared(b.get(first.key))


@pytest.mark.parametrize("seed", range(12))
def test_counts_and_first_difference_agree_with_a_dictionary(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    everything = [
        Record(n, n, b"%d" % n, b"v" * chosen.randrange(40), ((b"h", b"%d" % n),) * chosen.randrange(3))
        for n in range(400)
    ]

    def altered(record: Record) -> Record:
        changes: dict[str, Any] = {"key": None, "timestamp": None, "value": b"altered", "headers": ((b"", b""),)}
        name = chosen.choice(list(changes))
        return record._replace(**{name: changes[name]})

    a = [each for each in everything if chosen.random() < 0.9]
    b = [altered(each) if chosen.random() < 0.1 else each for each in everything if chosen.random() < 0.9]
    left, right = ({each.offset: each for each in side} for side in (a, b))
    common = left.keys() & right.keys()
    first = min(offset for offset in left.keys() | right.keys() if left.get(offset) != right.get(offset))
    write(tmp_path / "a/t-0", a, per_batch=chosen.randrange(1, 50), codec=chosen.choice(["none", "lz4"]))
    write(tmp_path / "b/t-0", b, per_batch=chosen.randrange(1, 50), codec=chosen.choice(["none", "gzip"]))
    # One batch per table, so that the tables of both sides end at different offsets.
    (result,) = compare_logs(tmp_path / "a/t-0", tmp_path / "b/t-0", max_bytes=1).partitions
    assert counts(result) == (
        sum(left[offset] == right[offset] for offset in common),
        sum(left[offset] != right[offset] for offset in common),
        len(left.keys() - right.keys()),
        len(right.keys() - left.keys()),
    )
    assert result.first is not None
    assert (result.first.a, result.first.b) == (as_compared(left.get(first)), as_compared(right.get(first)))

    (result,) = compare_logs(tmp_path / "a/t-0", tmp_path / "b/t-0", max_bytes=1, match="order").partitions
    assert result.matching + result.different + result.only_a == len(a)
    assert result.matching + result.different + result.only_b == len(b)
    # Keys and values are unique, so that every record that both sides have unchanged is paired with itself.
    assert result.matching == sum(left[offset] == right[offset] for offset in common)


# -- logs and directories


def test_directories_are_paired_by_topic_and_partition(tmp_path: Path) -> None:
    for side, names in (("a", ("t-0", "t-1", "t-10")), ("b", ("t-1", "t-10", "u-0"))):
        for name in names:
            write(tmp_path / side / name, [Record(0), Record(1)])
    write(tmp_path / "b/t-10", [Record(0), Record(1, value=b"w")])
    seen: list[PartitionComparison] = []
    result = compare_logs(tmp_path / "a", tmp_path / "b", on_partition=seen.append)
    assert seen == result.partitions
    found = [(each.topic, each.partition, each.equal, counts(each)) for each in result.partitions]
    assert found == [
        ("t", 0, False, (0, 0, 2, 0)),
        ("t", 1, True, (2, 0, 0, 0)),
        ("t", 10, False, (1, 1, 0, 0)),
        ("u", 0, False, (0, 0, 0, 2)),
    ]
    assert result.partitions[0].b is None
    assert repr(result) == "<Comparison of 4 topic-partitions: 3 different>"


def test_a_partition_without_records_on_one_side_only_is_a_difference(tmp_path: Path) -> None:
    write(tmp_path / "a/t-0", [Record(0)])
    write(tmp_path / "a/t-1", [])
    write(tmp_path / "b/t-0", [Record(0)])
    result = compare_logs(kbatch.find_logs(tmp_path / "a"), tmp_path / "b")
    assert not result.equal
    assert counts(result.partitions[1]) == (0, 0, 0, 0)


def test_segments_are_compared_by_their_records(tmp_path: Path) -> None:
    a = write(tmp_path / "a/t-0", [Record(0), Record(1)])
    b = write(tmp_path / "b/t-0", [Record(0), Record(2)])
    result = compare_logs(segment_path(a, 0), segment_path(b, 0))
    assert counts(result.partitions[0]) == (1, 0, 1, 1)


def test_wrong_pairs_of_logs_are_refused(tmp_path: Path) -> None:
    log = write(tmp_path / "a/t-0", [Record(0)])
    with pytest.raises(
        ValueError, match=r"t-0 is one log, but the other side has several; compare two logs or two directories"
    ):
        compare_logs(log, tmp_path / "a")
    with pytest.raises(ValueError, match=r"t-0 is in the list twice"):
        compare_logs([kbatch.Log(log), kbatch.Log(log)], tmp_path / "a")
    with pytest.raises(ValueError, match="its topic and partition are unknown"):
        compare_logs([kbatch.Log(write(tmp_path / "unnamed", [Record(0)]))], tmp_path / "a")
    with pytest.raises(ValueError, match='match must be "offset", "order" or "key", got \'time\''):
        compare_logs(log, log, match="time")  # type: ignore[arg-type]
    with pytest.raises(kbatch.LogDirectoryError, match="no such file or directory"):
        compare_logs(log, tmp_path / "missing")


def test_ranges_and_isolation_apply_to_both_sides(tmp_path: Path) -> None:
    a = [Record(n, 1000 + n) for n in range(20)]
    b = [*a[:5], *(each._replace(value=b"x") for each in a[5:15]), *a[15:]]
    directories = write(tmp_path / "a/t-0", a), write(tmp_path / "b/t-0", b)
    assert counts(compare_logs(*directories, stop_offset=7).partitions[0]) == (5, 2, 0, 0)
    assert compare_logs(*directories, start_offset=-5).equal
    assert compare_logs(*directories, start_timestamp=1015).equal
    log = "tests/golden/logs/txn-0"
    (result,) = compare_logs(log, log, isolation="read_committed").partitions
    assert result.a is not None
    assert result.a.records == sum(map(len, kbatch.Log(log).tables(isolation="read_committed")))


# -- damage


def test_damage_raises_or_is_listed(tmp_path: Path) -> None:
    records = [Record(n) for n in range(9)]
    a, b = write(tmp_path / "a/t-0", records), write(tmp_path / "b/t-0", records)
    path = segment_path(b, 0)
    data = bytearray(path.read_bytes())
    size = len(data) // 3
    data[size + 40] ^= 1
    path.write_bytes(data)
    with pytest.raises(kbatch.CrcMismatchError, match="b/t-0"):
        compare_logs(a, b)
    result = compare_logs(a, b, on_error="skip")
    (one,) = result.partitions
    assert counts(one) == (6, 0, 3, 0)
    assert result.damaged
    assert one.b is not None
    assert [(loss.position, loss.length) for loss in one.b.losses] == [(size, size)]
    assert one.b.losses[0].file == str(path)
    assert repr(result) == "<Comparison of 1 topic-partition: 1 different, damaged>"
    # Equal damage on both sides is still damage.
    same = compare_logs(b, b, on_error="skip")
    assert (same.equal, same.damaged) == (True, True)


def test_offsets_that_do_not_ascend_are_an_error(tmp_path: Path) -> None:
    a = write(tmp_path / "a/t-0", [Record(n) for n in range(6)])
    repeated = kbatch.encode([b"v"] * 3, timestamps=1000, base_offset=2)
    write_segment(tmp_path / "b/t-0", 0, [kbatch.encode([b"v"] * 4, timestamps=1000), repeated])
    with pytest.raises(
        kbatch.LogDirectoryError, match="offset 2 follows offset 3, so records cannot be paired by offset"
    ):
        compare_logs(a, tmp_path / "b/t-0")
    assert not compare_logs(a, tmp_path / "b/t-0", match="order").equal


# -- memory and progress


def test_memory_does_not_depend_on_the_size_of_the_logs(tmp_path: Path) -> None:
    value = np.random.default_rng(1).bytes(4096)

    def peak(batches: int) -> int:
        log = tmp_path / f"{batches}/t-0"
        write_segment(log, 0, (kbatch.encode([value] * 16, timestamps=1, base_offset=n * 16) for n in range(batches)))
        tracemalloc.start()
        compare_logs(log, log, max_bytes="256k")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak(16)
    assert peak(256) < 1.5 * peak(32)


def test_progress_reaches_the_bytes_of_both_sides(tmp_path: Path) -> None:
    log = kbatch.Log(write(tmp_path / "a/t-0", [Record(n) for n in range(30)]))
    seen: list[int] = []
    compare_logs(log, log, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 2 * log.size


# -- kernels


def test_slices_equal_distinguishes_null_and_checks_positions() -> None:
    data, other = np.frombuffer(b"abcabd", np.uint8), np.frombuffer(b"xxabc", np.uint8)
    positions, lengths = np.array([0, 3, 0, 0, 6]), np.array([3, 3, 0, -1, 0], np.int32)
    other_positions, other_lengths = np.array([2, 2, 0, 0, 5]), np.array([3, 3, -1, -1, 0], np.int32)
    out = np.empty(5, np.uint8)
    assert slices_equal(positions, lengths, data, other_positions, other_lengths, other, out) == 3
    assert out.tolist() == [1, 0, 0, 1, 1]
    with pytest.raises(IndexError, match="row 1: its slices are 3 bytes at positions 4 and 2, outside data of 6 and 5"):
        slices_equal(np.array([0, 4]), lengths[:2], data, other_positions[:2], other_lengths[:2], other, out)
    with pytest.raises(IndexError, match="row 0"):
        slices_equal(positions[:1], lengths[:1], data, np.array([-1]), other_lengths[:1], other, out)
    with pytest.raises(ValueError, match="fewer than 5 rows"):
        slices_equal(positions, lengths, data, other_positions, other_lengths[:4], other, out)


def test_hash_slices_is_siphash_of_each_slice() -> None:
    data = np.arange(40, dtype=np.uint8)
    positions, lengths = np.array([0, 3, 40, 0]), np.array([17, 8, 0, -1])
    out = np.ones((4, 2), np.uint64)
    hash_slices(bytes(16), positions, lengths, data, out)
    pairs = zip(positions[:3], lengths[:3], strict=True)
    assert [row.tobytes() for row in out[:3]] == [siphash(bytes(16), data[p : p + n].tobytes()) for p, n in pairs]
    assert out[3].tolist() == [0, 0]
    with pytest.raises(IndexError, match="row 0: 2 bytes at position 39 of 40 bytes"):
        hash_slices(bytes(16), np.array([39]), np.array([2]), data, out[:1])
    with pytest.raises(ValueError, match="a secret has 16 bytes"):
        hash_slices(b"", positions, lengths, data, out)
    with pytest.raises(ValueError, match="needed are 4 lengths"):
        hash_slices(bytes(16), positions, lengths[:2], data, out)


def test_batches_of_any_size_are_compared(tmp_path: Path) -> None:
    value = bytes(MIN_SPLIT_TABLE)
    for side in "ab":
        (tmp_path / side / "t-0").mkdir(parents=True)
        (tmp_path / side / "t-0" / "00000000000000000000.log").write_bytes(batch(record(value), 1, "zstd"))
    assert compare_logs(tmp_path / "a/t-0", tmp_path / "b/t-0").equal
