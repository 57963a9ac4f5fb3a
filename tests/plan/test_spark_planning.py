"""Which bytes a read opens, and how they are divided among tasks: pruning, even tasks, thousands of segments."""

from __future__ import annotations

import os
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from log_batches import batch, segment_path, write_segment

import kbatch
from kbatch.broker.partitioner import key_partition, murmur2
from kbatch.kernels.slices import keys_equal
from kbatch.log import ranges
from kbatch.log.selection import choose_logs, open_selected
from kbatch.log.store import local_files, storage
from kbatch.log.store.segment_file import SegmentFile
from kbatch.plan.planner import plan, plan_ranges
from kbatch.plan.read_options import Bound, ReadOptions, parse_options
from kbatch.plan.split import Split
from kbatch.plan.tasks import task_tables

HOUR = 3_600_000
# Size in bytes of a batch in the topics that cover two days.
BATCH = 17_000
BEGIN = 1_700_000_000_000


def read(**options: str) -> ReadOptions:
    return parse_options({"path": "/x", **options})[1]


@pytest.fixture
def bytes_read_since() -> Callable[[], int]:
    """Return the number of bytes read from logs and from indexes since the last call."""
    before = [local_files.bytes_read()]

    def since() -> int:
        now = local_files.bytes_read()
        shown, before[0] = now - before[0], now
        return shown

    return since


def offsets_of(tasks: list[tuple[Split, ...]], options: ReadOptions) -> list[int]:
    return [int(o) for task in tasks for _, table in task_tables(task, options) for o in table.records["offset"]]


def sizes_of(tasks: list[tuple[Split, ...]]) -> list[int]:
    return [sum(split.end - split.start for split in task) for task in tasks]


def is_even(sizes: list[int]) -> bool:
    return max(sizes) <= 1.3 * sum(sizes) / len(sizes)


# -- pruning


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write three topics of two partitions over two days, one 1 MiB segment per hour; timestamps jitter by a minute."""
    root = tmp_path_factory.mktemp("days")
    draw = random.Random(7)
    for partition in range(2):
        for hour in range(48):
            batches = []
            for i in range(64):
                at = BEGIN + hour * HOUR + i * HOUR // 64
                times = [at + draw.randrange(-60_000, 60_000) for _ in range(16)]
                batches.append(batch(hour * 1024 + i * 16, times, value=b"v" * 1000))
            write_segment(root / f"orders-{partition}", hour * 1024, batches, indexes=True)
    for other in ("clicks", "users"):
        for partition in range(2):
            directory = root / f"{other}-{partition}"
            directory.mkdir()
            for name in os.listdir(root / f"orders-{partition}"):
                os.link(root / f"orders-{partition}" / name, directory / name)
    return root


@pytest.mark.parametrize("hour", [0, 1, 23, 46])
def test_a_time_range_reads_only_its_bytes(days: Path, bytes_read_since: Callable[[], int], hour: int) -> None:
    """TS-R4: skipping a segment and finding a batch add only a few kilobytes each."""
    since, until = BEGIN + hour * HOUR, BEGIN + (hour + 1) * HOUR
    options = read(topics="orders", startingTimestamp=str(since), endingTimestamp=str(until))
    tasks = plan(choose_logs([str(days)], options.selection), options)
    planned = bytes_read_since()
    rows = offsets_of(tasks, options)
    of_rows = bytes_read_since()
    # As in Kafka, a time selects the first record with that timestamp or a later one; the end bound likewise.
    expected_rows = []
    for partition in range(2):
        records = np.concatenate([table.records for table in kbatch.Log(days / f"orders-{partition}").tables()])
        first, stop = (int(records["offset"][np.argmax(records["timestamp"] >= at)]) for at in (since, until))
        expected_rows += list(range(first, stop))
    assert rows == expected_rows
    expected = sum(sizes_of(tasks))
    assert expected < 1.1 * 2 * (1 << 20)
    assert of_rows <= 1.01 * expected
    # A few windows of headers for each bound of a partition, and the last batches of every segment before it.
    assert planned <= 2 * (700_000 + hour * 6 * BATCH)


def test_an_offset_range_reads_only_its_bytes(days: Path, bytes_read_since: Callable[[], int]) -> None:
    bounds = {"starting": (20 * 1024 + 100, "startingOffsets"), "ending": (20 * 1024 + 140, "endingOffsets")}
    named = {name: f'{{"orders": {{"1": {offset}}}}}' for offset, name in bounds.values()}
    options = read(assign='{"orders": [1]}', **named)
    tasks = plan(choose_logs([str(days)], options.selection), options)
    assert offsets_of(tasks, options) == list(range(20 * 1024 + 100, 20 * 1024 + 140))
    assert sum(sizes_of(tasks)) < 5 * 17_000
    assert bytes_read_since() < 700_000


def test_directories_of_other_partitions_are_not_listed(days: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    original = storage.Storage.list

    def counted(self: storage.Storage, path: str) -> Any:
        listed.append(os.path.basename(path))
        return original(self, path)

    monkeypatch.setattr(storage.Storage, "list", counted)

    def chosen(**options: str) -> set[str]:
        listed.clear()
        logs = choose_logs([str(days)], read(**options).selection)
        assert len(listed) == len(set(listed)), "listed twice"
        below = set(listed) - {days.name}
        assert below == {os.path.basename(log.path) for log in logs}
        return below

    assert chosen(topics="users") == {"users-0", "users-1"}
    assert chosen(subscribePattern="[cu].*", partitions="1") == {"clicks-1", "users-1"}
    assert chosen(assign='{"users": [0]}') == {"users-0"}
    assert chosen(topics="users", key="a", keyPartitions="2") == {f"users-{key_partition(b'a', 2)}"}
    assert chosen(partitions="7") == set()
    with pytest.raises(ValueError, match="no log of topic 'nope'; the topics are clicks, orders, users"):
        chosen(topics="users,nope")
    with pytest.raises(ValueError, match="no log of users-7; the topics are clicks, orders, users"):
        chosen(assign='{"users": [0, 7]}')
    with pytest.raises(ValueError, match=r"keyPartitions is 1, but there is \w+-1"):
        chosen(key="a", keyPartitions="1")


def test_a_path_of_one_log_is_selected_by_its_name(days: Path) -> None:
    path = str(days / "users-1")
    assert [log.path for log in choose_logs([path], read(topics="users").selection)] == [path]
    assert choose_logs([path], read(partitions="0").selection) == []
    with pytest.raises(ValueError, match="no log of topic 'orders'; the topics are users"):
        choose_logs([path], read(topics="orders").selection)


@pytest.mark.parametrize("index", ["missing", "truncated", "low", "high", "random", "of another segment"])
def test_a_wrong_time_index_loses_no_record(tmp_path: Path, index: str) -> None:
    """DSK-R3, DSK-R5: timestamps may descend, and the first record is found with any .timeindex."""
    draw = random.Random(3)
    times = [BEGIN + 1000 * i + draw.choice([0, 0, 0, -30_000, 40_000]) for i in range(600)]
    for segment in range(6):
        batches = [batch(100 * segment + 5 * i, times[100 * segment + 5 * i :][:5]) for i in range(20)]
        path = write_segment(tmp_path / "t-0", 100 * segment, batches, indexes=True).with_suffix(".timeindex")
        stored = np.frombuffer(path.read_bytes(), np.dtype([("timestamp", ">i8"), ("offset", ">i4")])).copy()
        if index == "missing":
            path.unlink()
            continue
        if index == "truncated":
            stored = stored[: len(stored) // 2]
        elif index == "low":
            stored["timestamp"] -= 100_000
        elif index == "high":
            stored["timestamp"] += 100_000
        elif index == "random":
            stored["timestamp"] = sorted(draw.randrange(BEGIN, BEGIN + 600_000) for _ in stored)
        elif segment:
            stored = np.frombuffer(segment_path(tmp_path / "t-0", 0, ".timeindex").read_bytes(), stored.dtype)
        path.write_bytes(stored.tobytes())
    (log,) = open_selected([str(tmp_path)])
    for expected in range(BEGIN - 50_000, BEGIN + 650_000, 7_000):
        late = [i for i, at in enumerate(times) if at >= expected]
        assert log.offset_for_timestamp(expected) == (late[0] if late else None)
        for start in (0, 99, 100, 333):
            late = [i for i, at in enumerate(times) if at >= expected and i >= start]
            assert log.offset_for_timestamp(expected, start_offset=start) == (late[0] if late else None)


@pytest.mark.parametrize("damage", ["header", "payload", "cut"])
def test_damage_before_a_timestamp_is_reported(tmp_path: Path, damage: str) -> None:
    for segment in range(2):
        batches = [batch(100 * segment + 5 * i, [BEGIN + 1000 * (100 * segment + 5 * i)] * 5) for i in range(20)]
        path = write_segment(tmp_path / "t-0", 100 * segment, batches)
        if not segment:
            data = bytearray(path.read_bytes())
            at = len(batches[0]) * 10
            if damage == "header":
                data[at + 8 : at + 12] = b"\x7f\xff\xff\xff"
            elif damage == "payload":
                data[at + 70] ^= 1
            else:
                del data[at + 100 :]
            path.write_bytes(data)
    expected = BEGIN + 1000 * 50
    with pytest.raises(kbatch.KbatchError, match=r"00000000000000000000\.log, byte"):
        plan(open_selected([str(tmp_path)]), ReadOptions(starting=Bound(timestamp=expected)))
    options = ReadOptions(starting=Bound(timestamp=expected), on_error="skip")
    everything = ReadOptions(on_error="skip")
    logs = open_selected([str(tmp_path)])
    rows = offsets_of(plan(logs, everything), everything)
    assert offsets_of(plan(logs, options), options) == [offset for offset in rows if offset >= 50]


# -- keys


def keyed(offset: int, keys: list[bytes | None]) -> bytes:
    return oracle.build_batch([oracle.encode_record(i, 0, key, b"v") for i, key in enumerate(keys)], base_offset=offset)


def test_key_selects_only_the_records_of_a_key(tmp_path: Path) -> None:
    """COL-R1: null is not a key; an empty key is."""
    draw = random.Random(5)
    pool = [None, b"", b"a", b"b", b"user-1", b"user-17", b"user-18", bytes(range(256)), "schlüssel".encode()]
    keys = [draw.choice(pool) for _ in range(2000)]
    write_segment(tmp_path / "t-0", 0, [keyed(i, keys[i : i + 10]) for i in range(0, 2000, 10)])
    for key in [*pool[1:], b"none", b"user-1\0"]:
        assert key is not None
        for text in (
            {"keyHex": key.hex()},
            {"keyHex": "0x" + key.hex().upper()},
            {"key": key.decode("utf-8", "replace")},
        ):
            if "key" in text and text["key"].encode() != key:
                continue
            options = read(splitBytes="3000", **text)
            assert options.key == key
            rows = offsets_of(plan(open_selected([str(tmp_path)]), options), options)
            assert rows == [i for i, each in enumerate(keys) if each == key]
    options = ReadOptions(key=b"a")
    (task,) = plan(open_selected([str(tmp_path)]), options)
    ((_, table),) = task_tables(task, options, ("offset",))
    # Batches and losses include all batches, as an export counts them.
    assert len(table.batches) == 200
    assert set(table.keys()) == {b"a"}


def test_keys_equal_checks_that_rows_are_within_the_data() -> None:
    table = kbatch.decode(keyed(0, [b"abc", b"abd", b"ab", None, b"abc"]))
    out = np.full(5, 7, np.uint8)

    def equal(rows: np.ndarray) -> int:
        return keys_equal(rows["key_pos"], rows["key_len"], table.data, b"abc", out)

    assert equal(table.records) == 2
    assert out.tolist() == [1, 0, 0, 0, 1]
    assert equal(table.records[1::3]) == 1
    assert out.tolist() == [0, 1, 0, 0, 1]
    rows = table.records.copy()
    for position in (len(table.data) - 2, -1, 1 << 62):
        rows["key_pos"][4] = position
        with pytest.raises(IndexError, match=f"record row 4: its key is 3 bytes at position {position}"):
            equal(rows)
    with pytest.raises(ValueError, match="key_len has 10 rows and out 5, needed are 10"):
        equal(np.concatenate([rows, rows]))


def test_the_partition_of_a_key_equals_kafkas() -> None:
    # The values are from Kafka's UtilsTest.
    for key, expected in (
        (b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829), (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ):  # fmt: skip
        assert murmur2(key) == expected & 0xFFFFFFFF
    partitioner = pytest.importorskip("aiokafka.partitioner")
    draw = random.Random(1)
    for size in [*range(40), 1000]:
        key = draw.randbytes(size)
        assert murmur2(key) == partitioner.murmur2(key) & 0xFFFFFFFF
        partitions = list(range(13))
        assert key_partition(key, 13) == partitioner.DefaultPartitioner()(key, partitions, partitions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "a", "keyHex": "61"}, "key and keyHex exclude each other"),
        ({"keyHex": "6"}, "keyHex must be hexadecimal digits, two for each byte, got '6'"),
        ({"keyPartitions": "3"}, "keyPartitions requires key"),
        ({"key": "a", "keyPartitions": "0"}, "keyPartitions must be at least 1, got 0"),
        ({"minPartitions": "-1"}, "minPartitions must be at least 1, got -1"),
        ({"maxRecordsPerPartition": "many"}, "maxRecordsPerPartition must be a whole number, got 'many'"),
        ({"maxRecordBytes": "3g"}, "maxRecordBytes must be 1 to 2147482608"),
        ({"key": "a", "table": "losses"}, "key chooses records; table losses has none"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(**options)


# -- even tasks


def uniform(offset: int, size: int) -> Iterator[bytes]:
    """Yield about `size` bytes of 1 KiB batches."""
    for i in range(max(1, size // 1100)):
        yield batch(offset + 10 * i, [BEGIN] * 10, value=b"v" * 96)


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("shape", ["one 100x larger", "thousands of tiny ones", "just above a split", "mixed"])
def test_tasks_are_even_if_partitions_are_not(tmp_path: Path, shape: str, indexed: bool) -> None:
    draw = random.Random(2)
    sizes = {
        "one 100x larger": [20_000] * 20 + [2_000_000] + [20_000] * 20,
        "thousands of tiny ones": [1100] * 2000,
        "just above a split": [70_000] * 30,
        "mixed": [int(10 ** draw.uniform(3, 6)) for _ in range(60)],
    }[shape]
    for partition, size in enumerate(sizes):
        write_segment(tmp_path / f"t-{partition}", 0, uniform(0, size), indexes=indexed)
    logs = open_selected([str(tmp_path)])
    total = sum(log.size for log in logs)
    for options in (ReadOptions(split_bytes=64 << 10), ReadOptions(min_partitions=50)):
        tasks = plan(logs, options)
        assert is_even(sizes_of(tasks)), sizes_of(tasks)
        assert sum(sizes_of(tasks)) == total
        assert max(sizes_of(tasks)) <= 1.125 * options.split_bytes + 1200
    assert len(tasks) in (50, 51)
    records = sum(len(table) for log in logs for table in log.tables())
    assert len(offsets_of(tasks, options)) == records


def test_a_batch_is_never_divided(tmp_path: Path) -> None:
    """If a batch exceeds the task size, a task has one batch, and the others share the rest."""
    large = batch(0, [BEGIN], value=b"v" * 500_000)
    write_segment(tmp_path / "t-0", 0, [large, *uniform(1, 100_000)])
    tasks = plan(open_selected([str(tmp_path)]), ReadOptions(split_bytes=10_000))
    sizes = sizes_of(tasks)
    assert sizes[0] == len(large)
    assert is_even(sizes[1:])
    assert len(plan(open_selected([str(tmp_path)]), ReadOptions(min_partitions=10_000))) == 1 + len(
        list(uniform(1, 100_000))
    )


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("limit", [1, 9, 10, 25, 1000])
def test_a_task_has_at_most_the_given_number_of_records(tmp_path: Path, limit: int, indexed: bool) -> None:
    write_segment(tmp_path / "a-0", 0, uniform(0, 40_000), indexes=indexed)
    # Compaction has left a gap, and one batch exceeds the limit.
    batches = [*uniform(1000, 20_000), batch(5000, [BEGIN] * 60), *uniform(5060, 20_000)]
    write_segment(tmp_path / "b-0", 1000, batches, indexes=indexed)
    write_segment(tmp_path / "b-0", 6000, uniform(6000, 20_000), indexes=indexed)
    logs = open_selected([str(tmp_path)])
    options = ReadOptions(max_records_per_partition=limit)
    tasks = plan(logs, options)
    counts = [sum(len(table) for _, table in task_tables(task, options)) for task in tasks]
    for count, task in zip(counts, tasks, strict=True):
        # A task exceeds the limit only if it has a single batch.
        assert count <= limit or sum(len(t.batches) for _, t in task_tables(task, options)) == 1
    assert offsets_of(tasks, options) == offsets_of(plan(logs, ReadOptions()), ReadOptions())
    if limit in (25, 1000):
        assert len(tasks) < 2 * sum(counts) / (limit // 10 * 10) + 3
    positions: dict[str, int] = {}
    for task in tasks:
        for split in task:
            assert positions.get(split.path, 0) == split.start
            positions[split.path] = split.end
    starting = ReadOptions(max_records_per_partition=limit, starting=Bound(offsets={"a": {0: 105}, "b": {0: 5030}}))
    assert offsets_of(plan(logs, starting), starting) == [
        offset for log, first in zip(logs, (105, 5030), strict=True)
        for table in log.tables(start_offset=first) for offset in table.records["offset"]
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_damage_loses_the_same_records_for_every_split(golden: Path, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    directory = tmp_path / "codec-none-0"
    directory.mkdir()
    for path in (golden / "logs" / "codec-none-0").iterdir():
        data = bytearray(path.read_bytes())
        if path.suffix == ".log":
            # The damage may be anywhere except in a base offset, which no checksum covers.
            for row in draw.choices(kbatch.scan(bytes(data)), k=3):
                data[int(row["position"]) + draw.randrange(8, int(row["size"]))] ^= 1 << draw.randrange(8)
        (directory / path.name).write_bytes(data)
    logs = open_selected([str(tmp_path)])
    expected = [(table.source, loss) for table in logs[0].tables(on_error="skip") for loss in table.losses]
    rows = [int(offset) for table in logs[0].tables(on_error="skip") for offset in table.records["offset"]]
    for options in (
        ReadOptions(on_error="skip", min_partitions=17),
        ReadOptions(on_error="skip", max_records_per_partition=100),
        ReadOptions(on_error="skip", max_records_per_partition=7, split_bytes=4000),
    ):
        tasks = plan(logs, options)
        assert offsets_of(tasks, options) == rows
        assert [
            (s.path, loss) for task in tasks for s, t in task_tables(task, options) for loss in t.losses
        ] == expected


# -- many segments


@pytest.fixture(scope="module")
def many_segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a hundred partitions of a hundred segments, each with four small batches and indexes."""
    root = tmp_path_factory.mktemp("many")
    for segment in range(100):
        first = 40 * segment
        batches = [batch(first + 10 * i, [BEGIN + 1000 * (first + 10 * i + j) for j in range(10)]) for i in range(4)]
        write_segment(root / "t-0", first, batches, indexes=True)
    names = os.listdir(root / "t-0")
    for partition in range(1, 100):
        directory = root / f"t-{partition}"
        directory.mkdir()
        for name in names:
            os.link(root / "t-0" / name, directory / name)
    return root


def test_ten_thousand_segments_plan_in_seconds(many_segments: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.process_time()
    logs = choose_logs([str(many_segments)], read(topics="t").selection)
    assert sum(len(log.segments) for log in logs) == 10_000
    opened = [0]
    original = SegmentFile.__init__

    def counted(self: SegmentFile, *arguments: Any) -> None:
        opened[0] += 1
        original(self, *arguments)

    monkeypatch.setattr(SegmentFile, "__init__", counted)
    tasks = plan(logs, ReadOptions())
    # Planning needs only file names and sizes.
    assert opened == [0]
    assert sum(len(task) for task in tasks) == 10_000
    assert max(len(task) for task in tasks) < 200
    assert max(len(pickle.dumps(task)) for task in tasks) < 40_000
    offsets = {"t": dict.fromkeys(range(100), 2005)}
    bounded = plan(logs, ReadOptions(starting=Bound(offsets=offsets)))
    # Planning opens the segment where reading begins, to find the batch and to verify it.
    assert opened[0] <= 100 * 10
    assert sum(len(task) for task in bounded) == 5000
    options = ReadOptions(starting=Bound(timestamp=BEGIN + 1000 * 3505), ending=Bound(timestamp=BEGIN + 1000 * 3605))
    timed = plan(logs, options)
    # Processor time: about 3 s on an idle machine.
    assert time.process_time() - began < 20
    assert offsets_of(timed[:1], options)[:95] == list(range(3505, 3600))
    assert sum(len(table) for task in timed for _, table in task_tables(task, options)) == 100 * 100


def test_no_payload_is_decoded_in_planning(many_segments: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any, **options: Any) -> None:
        raise AssertionError("decoded in planning")

    monkeypatch.setattr(ranges, "decode_part", refused)
    logs = open_selected([str(many_segments / "t-3")])
    offsets = {"t": {3: 2005}}
    for options in (
        ReadOptions(starting=Bound(offsets=offsets), split_bytes=1000),
        ReadOptions(min_partitions=500),
        ReadOptions(max_records_per_partition=15),
    ):
        assert plan(logs, options)
    with pytest.raises(AssertionError, match="decoded in planning"):
        plan(logs, ReadOptions(starting=Bound(timestamp=BEGIN + 5000)))


def ranges_of(logs: list[kbatch.Log], options: ReadOptions) -> list[tuple[int | None, int | None]]:
    """Return the start and the stop of the read of each log."""
    return [(each.start_offset, each.stop_offset) for task in plan_ranges(logs, options) for each in task]


def test_offsets_of_remote_logs_are_looked_up_concurrently() -> None:
    class Remote:
        """A log whose lookup blocks until the others are looked up too."""

        together = threading.Barrier(8, timeout=60)

        def __init__(self, partition: int) -> None:
            self.path, self.topic, self.partition = f"s3://bucket/t-{partition}", "t", partition
            self.start_checkpoint, self.size = None, 0

        def offset_for_timestamp(self, timestamp: np.datetime64, **options: Any) -> int:
            self.together.wait()
            return int(timestamp.astype("M8[ms]").astype(np.int64)) + self.partition

    logs: Any = [Remote(partition) for partition in range(8)]
    options = ReadOptions(starting=Bound(timestamp=10), ending=Bound(timestamp=20))
    assert ranges_of(logs, options) == [(10 + i, 20 + i) for i in range(8)]


def test_an_offset_for_all_partitions_counts_back_from_the_end_of_each(golden: Path) -> None:
    """`Bound.offset`, alone and with a timestamp: then both apply."""
    logs = [kbatch.Log(golden / "logs" / name) for name in ("txn-0", "codec-none-0")]
    ends = [log.end_offset for log in logs]
    for given, expected in (
        ((-10, None), [(end - 10, None) for end in ends]),
        ((100, -5), [(100, end - 5) for end in ends]),
        ((-(10**9), -(10**9)), [(0, 0)] * 2),
    ):
        options = ReadOptions(starting=Bound(offset=given[0]), ending=Bound(offset=given[1]))
        assert ranges_of(logs, options) == expected
    since, until = 1_700_000_030_000, 1_700_000_035_000
    first, end = (logs[0].offset_for_timestamp(time) or 0 for time in (since, until))
    for offsets, expected_bound in (((0, 10**6), (first, end)), ((first + 5, end - 5), (first + 5, end - 5))):
        options = ReadOptions(
            starting=Bound(offset=offsets[0], timestamp=since), ending=Bound(offset=offsets[1], timestamp=until)
        )
        assert ranges_of(logs[:1], options) == [expected_bound]


# -- read_committed


def test_withheld_records_are_not_read(golden: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """LSO-R2: no record from the last stable offset on is read, and a warning is logged."""
    (log,) = open_selected([str(golden / "logs" / "txn-0")])
    stable = log.transactions().last_stable_offset
    assert stable is not None
    options = ReadOptions(isolation="read_committed", split_bytes=2000)
    every = plan([log], options)
    assert not caplog.records
    tasks = plan([log], options, withheld=False)
    assert len(caplog.records) == 1
    assert f"returns no records from offset {stable} on" in caplog.text
    assert offsets_of(tasks, options) == offsets_of(every, options)
    assert sum(sizes_of(tasks)) < sum(sizes_of(every))
    assert max(max(offsets_of([task], options), default=0) for task in tasks) < stable
    assert pickle.loads(pickle.dumps(tasks)) == tasks
    assert hash(pickle.loads(pickle.dumps(tasks))[0]) == hash(tasks[0])
    caplog.clear()
    plan([log], ReadOptions(isolation="read_committed", ending=Bound(offsets={"txn": {0: 10}})), withheld=False)
    assert not caplog.records
