"""The metrics of a stream in the progress of its query."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from log_batches import NOW, batch, write_segment

pytest.importorskip("kbatch.spark", exc_type=ImportError)

from stream_query import Query, Writer

import kbatch
from kbatch.spark import StreamMetrics, TopicMetrics, stream_metrics

pytestmark = pytest.mark.spark


def documents(reader: Any) -> dict[str, Any]:
    """Return what a reader adds to the progress."""
    return {name: each for name, each in reader.reportLatestOffset().items() if name.startswith("$")}


def progress(**source: Any) -> dict[str, Any]:
    description = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@1"
    sources = [{"description": description, "numInputRows": 3, **source}]
    return {"durationMs": {"triggerExecution": 1500}, "sources": sources}


def test_a_query_of_spark_reports_what_its_micro_batches_read(spark: Any, tmp_path: Path) -> None:
    """The sums over all micro-batches are the records and bytes of the logs; the last one has no lag."""
    pytest.importorskip("pyspark.sql.streaming.datasource")
    from pyspark.sql.streaming import StreamingQueryListener

    for name, count in (("a-0", 6), ("a-1", 4), ("b-0", 2)):
        write_segment(tmp_path / "logs" / name, 0, [batch(base, [NOW] * 2) for base in range(0, 2 * count, 2)])
    heard: list[StreamMetrics] = []
    ended = threading.Event()

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            pass

        def onQueryProgress(self, event: Any) -> None:
            heard.append(stream_metrics(event.progress))

        def onQueryTerminated(self, event: Any) -> None:
            ended.set()

    listener = Listener()
    spark.streams.addListener(listener)
    stream = spark.readStream.format("kbatch").options(startingOffsets="earliest", maxOffsetsPerTrigger="12")
    query = stream.load(str(tmp_path / "logs")).writeStream.format("noop").trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(180)
        found = [stream_metrics(each) for each in query.recentProgress if each["numInputRows"]]
        assert ended.wait(60)
    finally:
        query.stop()
        spark.streams.removeListener(listener)
    assert len(found) == 2
    assert [each for each in heard if each.records] == found
    assert [each.records for each in found] == [12, 12]
    assert found[0].topics["a"].lag_offsets == 20 - found[0].topics["a"].offsets > 0
    sizes = {name: sum(log.size for log in kbatch.find_logs(tmp_path / "logs", topics=name)) for name in "ab"}
    for name, offsets in (("a", 20), ("b", 4)):
        assert sum(each.topics[name].offsets for each in found) == offsets
        assert sum(each.topics[name].log_bytes or 0 for each in found) == sizes[name]
        assert [each.topics[name].missing_offsets for each in found] == [0, 0]
        assert found[-1].topics[name].lag_offsets == 0
    assert all(0 < each.seconds < 180 for each in found)


def test_bytes_are_those_of_the_batches_of_each_micro_batch(tmp_path: Path) -> None:
    """Also across segments, and if the last one is preallocated."""
    writer = Writer(tmp_path)
    writer.records(2)
    writer.roll()
    writer.records(2)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.log"))
    with next(tmp_path.rglob(f"*{2:020d}.log")).open("ab") as file:
        file.truncate(file.tell() + 4096)
    query = Query(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="3")
    found = []
    while query.batch() is not None:
        found.append(documents(query.reader)["$bytes"]["t"]["0"])
    assert len(found) == 2
    assert min(found) > 0
    assert sum(found) == size
    assert documents(query.reader)["$bytes"] == {"t": {"0": 0}}


def test_offsets_that_retention_deleted_before_they_were_read_are_missing(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.records(4)
    query = Query(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="2", failOnDataLoss="false")
    assert query.batch() == [0, 1]
    assert documents(query.reader)["$missing"] == {"t": {"0": 0}}
    writer.roll()
    writer.records(3)
    writer.delete_first()
    assert query.batch() == [4, 5]
    assert documents(query.reader)["$missing"] == {"t": {"0": 2}}
    assert query.batch() == [6]
    assert documents(query.reader)["$missing"] == {"t": {"0": 0}}


def test_without_what_pyspark_4_2_reports_there_are_offsets_records_and_seconds() -> None:
    """Offsets are text or parsed; the first micro-batch has its start in its end."""
    end = {"t": {"0": 7, "1": 2}, "$start": {"t": {"0": 4, "1": 2}}, "$ids": {"t": {"x": [0]}}}
    first = progress(startOffset=None, endOffset=json.dumps(end), latestOffset="null")
    assert stream_metrics(first) == StreamMetrics(3, 1.5, {"t": TopicMetrics(3, None, None, None)})
    event = progress(startOffset="None", endOffset=json.dumps(end), latestOffset="None")
    assert stream_metrics(event) == stream_metrics(first)
    later = progress(startOffset=end, endOffset={"t": {"0": 9, "1": 2}}, latestOffset=None)
    assert stream_metrics(later).topics == {"t": TopicMetrics(2, None, None, None)}


def test_a_query_without_a_source_in_python_is_refused() -> None:
    with pytest.raises(ValueError, match="the query has no source of kbatch"):
        stream_metrics(progress(description="KafkaV2[Subscribe[t]]", startOffset=None, endOffset=None))
