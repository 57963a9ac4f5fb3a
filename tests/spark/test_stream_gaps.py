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

import kbatch.spark
from kbatch.cli import main
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
        reported = query.reader.reportLatestOffset() or {}
        assert (reported["t"], reported["$lag"]) == ({"0": 8, "1": 4}, {"t": {"0": 6, "1": 3}})
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


# -- offsets missing between two segments


def with_a_gap(root: Path) -> Writer:
    """Write offsets 0 to 2 and 10 to 12, each in a segment."""
    writer = Writer(root)
    writer.records(3)
    writer.next = 10
    writer.roll()
    writer.records(3)
    return writer


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "2"}, {"maxBytesPerTrigger": "1"}])
def test_a_stream_logs_a_gap_of_unknown_cause_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: dict[str, str]
) -> None:
    with_a_gap(tmp_path)
    query = Query(tmp_path, startingOffsets="earliest", **limit)
    assert query.drain() == [0, 1, 2, 10, 11, 12]
    logged = [record.getMessage() for record in caplog.records if "are missing" in record.getMessage()]
    assert len(logged) == 1
    assert "offsets 3 to 9 are missing between the segments" in logged[0]
    assert "a gap of unknown cause" in logged[0]


def test_a_gap_that_appears_while_a_stream_runs_ends_it_if_it_must_not_be_passed(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.records(3)
    query = Query(tmp_path, startingOffsets="earliest", onGap="raise")
    assert query.batch() == [0, 1, 2]
    writer.next = 10
    writer.roll()
    assert query.plan()
    with pytest.raises(kbatch.LogDirectoryError, match="t-0: offsets 3 to 9 are missing between the segments"):
        query.read()
    writer.records(3)
    with pytest.raises(kbatch.LogDirectoryError, match="onGap=report"):
        query.read()
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 10\n")
    assert query.drain() == [10, 11, 12]


def test_a_read_of_spark_lists_a_gap_as_a_loss_or_fails(spark: Any, tmp_path: Path) -> None:
    with_a_gap(tmp_path / "logs")
    root = str(tmp_path / "logs")
    reader = spark.read.format("kbatch")
    assert reader.load(root).count() == 6
    (row,) = reader.option("table", "losses").load(root).collect()
    assert (row.topic, row.partition, row.length, row.base_offset) == ("t", 0, 0, 3)
    assert "offsets 3 to 9 are missing between the segments" in row.reason
    with pytest.raises(Exception, match="offsets 3 to 9 are missing between the segments"):
        reader.option("table", "records").option("onGap", "raise").load(root).count()
    (tmp_path / "logs" / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 10\n")
    assert reader.option("table", "losses").load(root).count() == 0
    assert reader.option("table", "records").option("onGap", "raise").load(root).count() == 6


def test_an_export_of_the_command_line_reports_or_raises_a_gap(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_a_gap(tmp_path / "logs")
    command = ["export", str(tmp_path / "logs"), str(tmp_path / "out")]
    assert main([*command, "--gaps", "raise"]) == 1
    assert "t-0: offsets 3 to 9 are missing between the segments" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*command, "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["exit_status"], document["damaged"], document["gap_offsets"]) == (3, True, 7)
    assert document["logs"][0]["gap_offsets"] == 7


def test_an_export_in_python_marks_its_reports_unless_the_caller_does(spark: Any, tmp_path: Path) -> None:
    with_a_gap(tmp_path / "logs")
    out = tmp_path / "out"
    first = kbatch.export(tmp_path / "logs", out, engine="spark", mark_seen=False)
    again = kbatch.export(tmp_path / "logs", out, engine="spark", mark_seen=False)
    assert ([each["run"] for each in again.unseen_reports], again.exit_status) == ([first.run], 3)
    first.mark_seen()
    assert kbatch.export(tmp_path / "logs", out, engine="spark").unseen_reports == []
    writer = Writer(tmp_path / "logs", "t-1", base=5)
    writer.next = 9
    writer.roll()
    assert kbatch.export(tmp_path / "logs", out, engine="spark").gap_offsets == 4
    assert kbatch.export(tmp_path / "logs", out, engine="spark").exit_status == 0
