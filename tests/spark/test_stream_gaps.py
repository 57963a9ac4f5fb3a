"""Streams over offsets that no longer exist, and how far a micro-batch is behind."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from log_batches import NOW, batch
from transaction_logs import data

pytest.importorskip("kbatch.spark", exc_type=ImportError)

from stream_query import Query, Writer

import kbatch
from kbatch.plan.trigger_limits import offset_after_records

pytestmark = pytest.mark.spark

GAP = 1_000_000_000
FAR = 2 * GAP


def compacted(writer: Writer, base: int, count: int, span: int) -> None:
    """Append a batch of `span` offsets, of which the first `count` are left."""
    writer.append(batch(base, [NOW + i for i in range(count)], last_delta=span - 1), 0)
    writer.next = base + span


def test_offsets_that_retention_deleted_are_crossed_in_one_step(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.records(4)
    query = Query(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="2", failOnDataLoss="false")
    assert query.batch() == [0, 1]
    writer.next = GAP
    writer.roll()
    writer.records(3)
    writer.delete_first()
    assert query.batch() == [GAP, GAP + 1]
    assert query.batch() == [GAP + 2]
    assert query.batch() is None


@pytest.mark.parametrize("rolled", [False, True])
def test_offsets_that_compaction_removed_are_crossed_in_one_step(tmp_path: Path, rolled: bool) -> None:
    writer = Writer(tmp_path)
    for base in (0, GAP, FAR):
        writer.next = base
        if rolled and base:
            writer.roll()
        writer.records(3)
    query = Query(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    batches = [[0, 1], [2, GAP], [GAP + 1, GAP + 2], [FAR, FAR + 1], [FAR + 2]]
    assert [query.batch() for _ in batches] == batches
    assert query.batch() is None


def test_a_batch_with_removed_offsets_is_not_divided(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.records(2)
    compacted(writer, 2, 3, GAP)
    # The cleaner keeps an empty batch of a producer.
    compacted(writer, writer.next, 0, GAP)
    writer.records(2)
    after = writer.next
    query = Query(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    batches = [[0, 1], [2, 3, 4], [after - 2, after - 1]]
    assert [query.batch() for _ in batches] == batches
    assert query.batch() is None


def test_limits_count_compressed_message_sets_as_a_whole(golden: Path) -> None:
    log = kbatch.Log(golden / "logs" / "magic1-0")
    ends = {0} | {int(end) + 1 for segment in log.segments for rows in segment.scan() for end in rows["last_offset"]}
    for start in (0, 3, 9, 34):
        for limit in range(1, 30):
            end = offset_after_records(log, start, limit)
            assert start < end
            assert end in ends | {start + limit}


def test_every_limit_gives_as_many_records(golden: Path) -> None:
    """Where no offset is missing, a limit is a number of offsets."""
    log = kbatch.Log(golden / "logs" / "codec-lz4-0")
    offsets = [offset for table in log.tables() for offset in table.records["offset"].tolist()]
    for start in (0, 1, 700, 3000):
        for limit in (1, 2, 50, 1000):
            expected = [offset for offset in offsets if offset >= start][:limit]
            assert offset_after_records(log, start, limit) == (
                expected[-1] + 1 if len(expected) == limit else start + limit
            )


def test_a_limit_before_damage_counts_offsets(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.records(3)
    bad = bytearray(data(3, count=3))
    bad[8:12] = b"\xff" * 4
    writer.append(bytes(bad), 3)
    writer.records(3)
    query = Query(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="2", onError="skip")
    assert query.drain() == [0, 1, 2, 6, 7, 8]


def test_the_lag_of_each_partition_is_reported_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = Writer(tmp_path, "t-0"), Writer(tmp_path, "t-1")
    first.records(8)
    second.records(4)
    query = Query(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="3")
    with caplog.at_level(logging.INFO, "kbatch"):
        query.batch()
        assert query.reader.reportLatestOffset() == {
            "t": {"0": 8, "1": 4}, "$lag": {"t": {"0": 6, "1": 3}},
        }  # fmt: skip
        query.drain()
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "the micro-batch ends 9 offsets before the end of the logs: t-0 by 6, t-1 by 3"
    assert lines[-1] == "the micro-batch ends at the end of the logs (topic-partitions: 2)"
    assert len(lines) == len(query.log)


def test_a_query_of_spark_crosses_gaps_and_shows_its_lag(spark: Any, tmp_path: Path) -> None:
    limits = pytest.importorskip("pyspark.sql.streaming.datasource")
    assert limits.ReadMaxRows
    writer = Writer(tmp_path / "logs")
    for base in (0, GAP, FAR):
        writer.next = base
        writer.records(2)
    stream = spark.readStream.format("kbatch").option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "2")
    sink = stream.load(str(tmp_path / "logs")).writeStream.format("memory").queryName("gaps")
    query = sink.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(180)
        rows = spark.sql("select offset from gaps order by offset").collect()
        assert [row.offset for row in rows] == [0, 1, GAP, GAP + 1, FAR, FAR + 1]
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        assert [each["numInputRows"] for each in progress] == [2, 2, 2]
        latest = [json.loads(each["sources"][0]["latestOffset"]) for each in progress]
        assert [each["$lag"] for each in latest] == [{"t": {"0": FAR}}, {"t": {"0": FAR - GAP}}, {"t": {"0": 0}}]
    finally:
        query.stop()
