"""The stream reader with the calls that Spark makes, without Spark; a writer of segments simulates a broker."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_batches import segment_path
from oracle import three
from stream_query import COLUMNS, Query, Writer
from transaction_logs import ABORT, COMMIT, damaged, data

import kbatch

pytest.importorskip("pyspark")

from kbatch.broker.partitioner import key_partition
from kbatch.plan import following
from kbatch.spark.stream_options import parse_stream_options
from kbatch.spark.stream_source import KbatchStreamReader


def test_a_stream_starts_at_the_end_and_reads_new_records(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.records()
    query = Query(tmp_path)
    initial = query.reader.initialOffset()
    assert query.reader.initialOffset() == initial
    assert (initial["t"], initial["$checksums"]) == ({"0": 3}, {"t": {"0": writer.checksum(2)}})
    assert query.drain() == []
    writer.records()
    writer.roll()
    writer.records()
    assert query.batch() == [3, 4, 5, 6, 7, 8]
    assert query.batch() is None
    assert query.log[-1] == {"t": {"0": 9}, "$checksums": {"t": {"0": writer.checksum(8)}}}


def test_a_repeated_first_batch_starts_at_the_same_offset(tmp_path: Path) -> None:
    """A query that fails before its first commit resumes at the offset that was `latest` then."""
    writer = Writer(tmp_path)
    writer.records()
    for starting, reports_seen in (("latest", False), ("earliest", False), ("latest", True)):
        query = Query(tmp_path, reports_seen=reports_seen, startingOffsets=starting)
        first = writer.next if starting == "latest" else 0
        query.start()
        writer.records()
        assert query.plan()
        until = writer.next
        writer.records()
        query.restart()
        assert query.batch() == list(range(first, until))
        query.restart()
        assert query.drain() == list(range(until, writer.next))


def test_a_stream_starts_at_the_given_offsets(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for _ in range(4):
        writer.records()
    assert Query(tmp_path, startingOffsets='{"t": {"0": 7}}').drain() == [7, 8, 9, 10, 11]
    assert Query(tmp_path, startingOffsets='{"t": {"0": -2}}').drain() == list(range(12))
    assert Query(tmp_path, startingOffsets='{"t": {"0": -1}}').drain() == []
    with pytest.raises(ValueError, match="unknown: u-1"):
        Query(tmp_path, startingOffsets='{"t": {"0": 0}, "u": {"1": 0}}').batch()
    with pytest.raises(ValueError, match="missing: t-0"):
        Query(tmp_path, startingOffsets='{"u": {"1": 0}}').batch()
    rows = kbatch.scan(writer.file.read_bytes())
    later = str(int(rows["max_timestamp"].max()) + 1)
    with pytest.raises(ValueError, match="no record at or after"):
        Query(tmp_path, startingTimestamp=later).batch()
    assert Query(tmp_path, startingTimestamp=later, startingOffsetsByTimestampStrategy="latest").drain() == []
    assert Query(tmp_path, startingTimestamp="0").drain() == list(range(12))


def test_a_stream_ends_before_partial_batches_and_zeros(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.records()
    query = Query(tmp_path, startingOffsets="earliest")
    assert query.drain() == [0, 1, 2]
    whole = three(3)
    for at in range(1, len(whole)):
        with open(writer.file, "ab") as file:
            file.write(whole[at - 1 : at])
        assert query.batch() is None
    with open(writer.file, "ab") as file:
        file.write(whole[-1:])
    assert query.drain() == [3, 4, 5]
    # A preallocated file does not change its size, and may contain a partial batch.
    size = writer.file.stat().st_size
    with open(writer.file, "ab") as file:
        file.write(bytes(4096))
    assert query.batch() is None
    raw = three(6)
    with open(writer.file, "r+b") as file:
        file.seek(size)
        file.write(raw[:-5])
    fresh = Query(tmp_path, startingOffsets="earliest")
    assert fresh.drain() == [0, 1, 2, 3, 4, 5]


def test_a_preallocated_file_is_followed(tmp_path: Path) -> None:
    """FRM-R7: a preallocated file changes without a change of its size."""
    writer = Writer(tmp_path)
    writer.file.write_bytes(bytes(4096))
    query = Query(tmp_path, startingOffsets="earliest")
    assert query.drain() == []
    position = 0
    for base in (0, 3, 6):
        raw = three(base)
        for part in (raw[:70], raw):
            with open(writer.file, "r+b") as file:
                file.seek(position)
                file.write(part)
            assert query.drain() == ([] if part is not raw else [base, base + 1, base + 2])
        position += len(raw)


def test_new_partitions_are_read_from_their_start(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.records()
    query = Query(tmp_path)
    assert query.drain() == []
    Writer(tmp_path, "u-3").records()
    (tmp_path / "empty-0").mkdir()
    assert query.drain() == [0, 1, 2]
    Writer(tmp_path, "v-0", base=7).records()
    with pytest.raises(kbatch.LogDirectoryError, match="v-0: a log that is new to the query begins at offset 7"):
        query.batch()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    assert query.drain() == [7, 8, 9]
    marked = Writer(tmp_path, "w-0.0123456789abcdef0123456789abcdef-delete")
    marked.records()
    assert query.batch() is None


def test_a_stream_reads_the_selected_topics(tmp_path: Path) -> None:
    for name in ("a-0", "a-1", "b-0"):
        Writer(tmp_path, name).records()
    everything = {"startingOffsets": "earliest"}
    for options, expected in (
        ({"subscribe": "a"}, {("a", 0), ("a", 1)}),
        ({"subscribePattern": "b|c"}, {("b", 0)}),
        ({"assign": '{"a": [1], "c": [0]}'}, {("a", 1)}),
        ({"partitions": "0"}, {("a", 0), ("b", 0)}),
    ):
        query = Query(tmp_path, **everything, **options)
        query.drain()
        assert {row[:2] for row in query.rows} == expected
    # The directory of one partition.
    query = Query(tmp_path / "b-0", **everything)
    assert query.drain() == [0, 1, 2]


def lossy(query: Query, caplog: pytest.LogCaptureFixture, message: str) -> None:
    """Check that the planned batch fails, and that it logs a warning with failOnDataLoss=false."""
    with pytest.raises(kbatch.LogDirectoryError, match=message):
        query.batch()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "kbatch"):
        query.drain()
    assert any(re.search(message, record.getMessage()) for record in caplog.records)


def test_segments_deleted_by_retention_are_data_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer(tmp_path)
    writer.records()
    query = Query(tmp_path, startingOffsets="earliest")
    assert query.drain() == [0, 1, 2]
    writer.records()
    writer.roll()
    writer.records()
    writer.delete_first()
    lossy(query, caplog, "t-0: offsets 3 to 5 were deleted before they were read")
    assert [offset for *_, offset in query.rows] == [0, 1, 2, 6, 7, 8]


def test_an_advanced_log_start_offset_is_data_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """DSK-R13: DeleteRecords does not remove the bytes from the segment."""
    writer = Writer(tmp_path)
    query = Query(tmp_path, startingOffsets="earliest")
    query.drain()
    for _ in range(3):
        writer.records()
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 4\n")
    lossy(query, caplog, "t-0: offsets 0 to 3 were deleted")
    assert [offset for *_, offset in query.rows] == [4, 5, 6, 7, 8]


def test_a_deleted_partition_is_data_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer(tmp_path)
    Writer(tmp_path, "u-0")
    writer.records()
    query = Query(tmp_path, startingOffsets="earliest")
    query.drain()
    writer.path.rename(tmp_path / "t-0.0123456789abcdef0123456789abcdef-delete")
    lossy(query, caplog, "t-0: the log no longer exists")
    # A log that was recreated is a new log.
    shutil.rmtree(tmp_path / "t-0.0123456789abcdef0123456789abcdef-delete")
    Writer(tmp_path).records()
    assert query.drain() == [0, 1, 2]


def test_a_truncated_log_is_data_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a truncation by a new leader, the query resumes at the new end, like Spark's Kafka source."""
    writer = Writer(tmp_path)
    writer.records()
    size = writer.file.stat().st_size
    writer.records()
    query = Query(tmp_path, startingOffsets="earliest")
    query.drain()
    os.truncate(writer.file, size)
    lossy(query, caplog, "t-0: the end moved back from offset 6 to 3")
    writer.next = 3
    writer.records(2)
    assert query.drain() == [3, 4]


def test_truncation_after_planning_is_data_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer(tmp_path)
    writer.records()
    size = writer.file.stat().st_size
    writer.records()
    query = Query(tmp_path, startingOffsets="earliest")
    query.plan()
    os.truncate(writer.file, size)
    lossy(query, caplog, r"t-0: offsets 3 to 5 no longer exist .* the last one 2")
    assert [offset for *_, offset in query.rows] == [0, 1, 2]


@pytest.mark.parametrize("how", ["gone", "compacted"])
def test_segments_may_be_deleted_or_replaced_after_planning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """A deleted segment fails or warns, as failOnDataLoss selects. Records of a compacted segment are found."""
    writer = Writer(tmp_path)
    writer.records()
    writer.records()
    first = writer.file
    writer.roll()
    writer.records()
    query = Query(tmp_path, startingOffsets="earliest", splitBytes="1")
    query.plan()
    partitions = query.reader.partitions(query.start(), query.log[-1])
    assert len(partitions) == 3
    if how == "gone":
        first.unlink()
    else:
        swap = Path(f"{first}.tmp")
        swap.write_bytes(data(1, count=1) + data(2, count=1) + data(4, count=1))
        swap.rename(first)

    def rows() -> list[int]:
        return [o for p in partitions for b in query.reader.read(p) for o in b.column("offset").to_pylist()]

    if how == "compacted":
        assert rows() == [1, 2, 4, 6, 7, 8]
        return
    with pytest.raises(kbatch.LogDirectoryError, match="t-0: offsets 0 to 2 were deleted after the read was planned"):
        rows()
    paths, options = parse_stream_options({"path": str(tmp_path), "failOnDataLoss": "false"})
    query.reader = KbatchStreamReader(paths, options, COLUMNS)
    with caplog.at_level(logging.WARNING, "kbatch"):
        assert rows() == [6, 7, 8]
    assert [r.getMessage()[:24] for r in caplog.records] == ["t-0: offsets 0 to 2 were", "t-0: offsets 3 to 5 were"]


def test_rate_limits_are_shared_in_proportion(tmp_path: Path) -> None:
    big, small = Writer(tmp_path, "t-0"), Writer(tmp_path, "t-1")
    for _ in range(30):
        big.records(3)
    small.records(3)
    query = Query(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    assert query.batch() == [*range(9), 0]
    batches = []
    while (batch := query.batch()) is not None:
        batches.append(len(batch))
    assert max(batches) <= 11
    assert sorted(row[1:] for row in query.rows) == [(0, i) for i in range(90)] + [(1, i) for i in range(3)]
    assert [row[2] for row in query.rows if row[1] == 0] == list(range(90))


def test_rate_limits_work_without_admission_control(tmp_path: Path) -> None:
    """Before PySpark 4.2 `latestOffset()` does not get the start of the batch."""
    writer = Writer(tmp_path)
    for _ in range(4):
        writer.records()
    query = Query(tmp_path, reports_seen=True, startingOffsets="earliest", maxOffsetsPerTrigger="5")
    shown = query.reader.latestOffset
    rows = []
    for restart in (False, True, False):
        if restart:
            query.restart()
        query.reader.latestOffset = lambda *_: shown.__func__(query.reader)  # type: ignore[assignment, attr-defined]
        rows.append(query.batch())
    assert rows == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert query.batch() is None


def test_bytes_per_trigger_are_limited(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for number in range(9):
        writer.records()
        if number % 4 == 3:
            writer.roll()
    size = len(three(0))
    query = Query(tmp_path, startingOffsets="earliest", maxBytesPerTrigger=str(2 * size))
    batches = []
    while (batch := query.batch()) is not None:
        batches.append(batch)
    assert [offset for batch in batches for offset in batch] == list(range(27))
    assert [len(batch) for batch in batches] == [6, 6, 6, 6, 3]
    # At least one batch is read.
    query = Query(tmp_path, startingOffsets="earliest", maxBytesPerTrigger="1")
    assert query.batch() == [0, 1, 2]


def test_a_trigger_waits_for_the_minimum_of_offsets(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.records()
    query = Query(tmp_path, startingOffsets="earliest", minOffsetsPerTrigger="5", maxTriggerDelay="1h")
    assert query.batch() == [0, 1, 2]
    writer.records()
    assert query.batch() is None
    writer.records()
    assert query.batch() == [3, 4, 5, 6, 7, 8]
    writer.records()
    assert query.batch() is None
    query.reader._last_batch -= 3601
    assert query.batch() == [9, 10, 11]


def test_available_now_ends_at_the_offsets_of_its_start(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for _ in range(4):
        writer.records()
    query = Query(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="5", minOffsetsPerTrigger="4")
    query.reader.prepareForTriggerAvailableNow()
    rows = query.batch()
    writer.records()
    Writer(tmp_path, "u-0").records()
    assert rows is not None
    assert rows + query.drain() == list(range(12))
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    query.drain()
    assert len(query.rows) == 18


def test_limits_of_spark_are_respected(tmp_path: Path) -> None:
    limits = pytest.importorskip("pyspark.sql.streaming.datasource")
    writer = Writer(tmp_path)
    writer.records()
    writer.records()
    reader = Query(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="2").reader
    assert reader.getDefaultReadLimit() == limits.ReadMaxRows(2)
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit())["t"] == {"0": 2}
    assert reader.latestOffset(start, limits.ReadAllAvailable())["t"] == {"0": 6}
    assert reader.reportLatestOffset().items() >= {"t": {"0": 6}, "$lag": {"t": {"0": 0}}}.items()
    assert Query(tmp_path).reader.getDefaultReadLimit() == limits.ReadAllAvailable()


def test_read_committed_ends_at_the_last_stable_offset(tmp_path: Path) -> None:
    """LSO-R1: a stream waits for the end of an open transaction, over rolled segments, and omits aborted records."""
    writer = Writer(tmp_path)
    writer.records()
    query = Query(tmp_path, startingOffsets="earliest", isolationLevel="read_committed")
    assert query.drain() == [0, 1, 2]
    writer.txn(7, 2)
    writer.txn(8)
    writer.roll()
    writer.records()
    assert query.batch() is None
    writer.marker(8, ABORT)
    assert query.batch() is None
    writer.roll()
    writer.marker(7, COMMIT)
    assert query.drain() == [3, 4, 6, 7, 8]
    writer.txn(7)
    assert query.drain() == []
    query.restart()
    writer.marker(7, ABORT)
    writer.records()
    assert query.drain() == [13, 14, 15]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_each_record_is_read_exactly_once_over_restarts(tmp_path: Path, on_error: str) -> None:
    """A query that fails at any point returns the rows of a batch read, while a writer rolls and deletes segments."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        root = tmp_path / str(seed)
        writers = [Writer(root, "t-0"), Writer(root, "t-1")]
        committed = seed % 2 == 0
        options = {"isolationLevel": "read_committed"} if committed else {}
        if seed % 3:
            options["maxOffsetsPerTrigger"] = str(int(rng.integers(1, 12)))
        query = Query(root, startingOffsets="earliest", splitBytes="150", onError=on_error, **options)
        opened: list[set[int]] = [set(), set()]
        for _ in range(120):
            which = int(rng.integers(2))
            writer, still = writers[which], opened[which]
            pid = int(rng.integers(1, 4))
            action = rng.random()
            if action < 0.3:
                writer.records(int(rng.integers(1, 4)))
            elif action < 0.5:
                writer.txn(pid, int(rng.integers(1, 4)))
                still.add(pid)
            elif action < 0.7 and pid in still:
                writer.marker(pid, int(rng.integers(2)))
                still.discard(pid)
            elif action < 0.8:
                writer.roll()
            elif action < 0.9:
                query.batch()
            elif action < 0.95 and query.plan():
                query.read()
                query.restart()
            else:
                query.restart()
        for writer, still in zip(writers, opened, strict=True):
            for pid in still:
                writer.marker(pid, COMMIT)
        query.drain()
        expected = [
            ("t", log.partition, offset)
            for log in kbatch.find_logs(root)
            for table in log.tables(isolation="read_committed" if committed else "read_uncommitted")
            for offset in table.records["offset"].tolist()
        ]
        assert sorted(query.rows) == expected


def test_damage_fails_or_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer(tmp_path)
    writer.records()
    writer.append(damaged(three(3)), 3)
    query = Query(tmp_path, startingOffsets="earliest", onError="skip")
    # At the end of the log, a broker may still write the batch.
    assert query.drain() == [0, 1, 2]
    writer.records()
    with caplog.at_level(logging.WARNING, "kbatch"):
        assert query.drain() == [6, 7, 8]
    assert "bytes lost" in caplog.text
    with pytest.raises(kbatch.CrcMismatchError):
        Query(tmp_path, startingOffsets="earliest").drain()
    # Garbage bytes, followed by a batch.
    for bad in (b"\x7f" * 40, damaged(three(9), 8), struct.pack(">qi", 9, 5) + bytes(40)):
        size = writer.file.stat().st_size
        with open(writer.file, "ab") as file:
            file.write(bad + three(12))
        query = Query(tmp_path, startingOffsets="earliest", onError="skip")
        assert query.drain() == [0, 1, 2, 6, 7, 8, 12, 13, 14]
        with pytest.raises(kbatch.KbatchError):
            Query(tmp_path, startingOffsets='{"t": {"0": 6}}').drain()
        os.truncate(writer.file, size)


def test_skipped_damage_that_may_hold_a_marker_leaves_open_transactions_undecided(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.txn(7)
    writer.append(struct.pack(">qi", 1, 5) + bytes(60), 1)
    writer.marker(7, COMMIT)
    writer.roll()
    writer.records()
    query = Query(tmp_path, startingOffsets="earliest", isolationLevel="read_committed")
    with pytest.raises(kbatch.CorruptBatchError):
        query.batch()
    query = Query(tmp_path, startingOffsets="earliest", isolationLevel="read_committed", onError="skip")
    assert query.drain() == [3, 4, 5]


def test_idle_partitions_are_not_read(tmp_path: Path) -> None:
    for number in range(1000):
        path = tmp_path / f"t-{number}"
        path.mkdir()
        segment_path(path, 0).write_bytes(three(0))
    query = Query(tmp_path, startingOffsets="earliest", isolationLevel="read_committed")
    assert len(query.drain()) == 3000
    start = query.start()
    began = time.process_time()
    for _ in range(3):
        assert query.reader.latestOffset(start, None) == start
    assert (time.process_time() - began) / 3 < 0.5


def test_only_the_partition_of_the_key_is_followed(tmp_path: Path) -> None:
    for number in range(3):
        Writer(tmp_path / "logs", f"t-{number}").records()
    query = Query(tmp_path / "logs", startingOffsets="earliest", key="a", keyPartitions="3")
    query.batch()
    assert {topic: set(parts) for topic, parts in query.start().items() if topic == "t"} == {
        "t": {str(key_partition(b"a", 3))}
    }
    with pytest.raises(ValueError, match=r"keyPartitions is 2, but there is t-2"):
        Query(tmp_path / "logs", startingOffsets="earliest", key="a", keyPartitions="2").batch()


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(kbatch.LogDirectoryError, match=r"none: no such directory$"):
        Query(tmp_path / "none").batch()
    for root in ("s3://bucket/logs", "hdfs:///logs"):
        with pytest.raises(kbatch.LogDirectoryError, match="local or mounted"):
            KbatchStreamReader(*parse_stream_options({"path": root}), COLUMNS).initialOffset()
    Writer(tmp_path / "a").records()
    Writer(tmp_path / "b").records()
    paths, options = parse_stream_options({"paths": json.dumps([str(tmp_path / "a"), str(tmp_path / "b")])})
    with pytest.raises(kbatch.LogDirectoryError, match=r"t-0 is in .*a.* and in .*b"):
        KbatchStreamReader(paths, options, COLUMNS).initialOffset()


def test_each_trigger_follows_only_new_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trigger follows only new bytes. A replaced or truncated segment is followed from its start."""
    walked: list[tuple[int, int]] = []
    original = following.segment_transactions

    def noted(segment: Any, below: Any, options: Any, since: Any = None) -> Any:
        part = original(segment, below, options, since)
        walked.append((segment.base_offset, part.end - (0 if since is None else since.end)))
        return part

    monkeypatch.setattr(following, "segment_transactions", noted)
    for on_error in ("raise", "skip"):
        writer = Writer(tmp_path / on_error)
        for _ in range(5):
            writer.txn(7)
            writer.marker(7, COMMIT)
            writer.roll()
        query = Query(
            tmp_path / on_error, startingOffsets="earliest", isolationLevel="read_committed", onError=on_error
        )
        assert query.drain() == [0, 2, 4, 6, 8]
        walked.clear()
        writer.txn(7)
        assert query.drain() == []
        writer.marker(7, ABORT)
        writer.records()
        assert query.drain() == [12, 13, 14]
        assert {base for base, _ in walked} == {10}
        assert sum(size for _, size in walked) == writer.file.stat().st_size
        # Retention deletes a segment, and a cleaner makes one smaller.
        writer.delete_first()
        second = segment_path(writer.path, 2)
        swap = Path(f"{second}.swap-to-be")
        swap.write_bytes(second.read_bytes())
        swap.rename(second)
        walked.clear()
        writer.records()
        assert query.drain() == [15, 16, 17]
        assert {base for base, _ in walked} <= {2, 10}
