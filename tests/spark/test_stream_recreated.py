"""Streams over logs that are recreated, with and without a topic id; the calls are those of Spark, without Spark."""

from __future__ import annotations

import base64
import json
import logging
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from stream_query import Query, Writer
from transaction_logs import COMMIT

import kbatch

pytest.importorskip("pyspark")

from kbatch.plan.following import FollowedLog
from kbatch.plan.read_options import ReadOptions

IDS = {name: uuid.UUID(int=number) for number, name in enumerate("abc", start=1)}


def set_id(writer: Writer, name: str | None) -> None:
    path = writer.path / "partition.metadata"
    path.unlink(missing_ok=True)
    if name is not None:
        path.write_text(f"version: 0\ntopic_id: {kbatch_id(IDS[name])}\n")


def kbatch_id(value: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def made(root: Path, count: int, topic_id: str | None, *, first: int = 3) -> Writer:
    """Make the log t-0 again, with `count` batches of `first` records."""
    shutil.rmtree(root / "t-0", ignore_errors=True)
    writer = Writer(root)
    set_id(writer, topic_id)
    for _ in range(count):
        writer.records(first)
    return writer


def started(root: Path, topic_id: str | None, **options: str) -> Query:
    """Return a query that has read six records of t-0."""
    made(root, 2, topic_id)
    query = Query(root, startingOffsets="earliest", **options)
    assert query.drain() == list(range(6))
    return query


def resumed(query: Query, message: str, caplog: pytest.LogCaptureFixture) -> list[int]:
    """Check that a batch fails, and return what the query reads with failOnDataLoss=false, which logs the reason."""
    with pytest.raises(kbatch.LogDirectoryError, match=message):
        query.batch()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    with caplog.at_level(logging.WARNING, "kbatch"):
        rows = query.drain()
    assert any("recreated" in each.getMessage() for each in caplog.records)
    assert query.batch() is None
    return rows


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_topic_that_was_created_again_is_data_loss_or_read_from_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int, restarts: bool, isolation: str
) -> None:
    """The new log ends before the position of the old one, at it, or beyond it."""
    query = started(tmp_path, "a", isolationLevel=isolation)
    writer = made(tmp_path, count, "b")
    if restarts:
        query.restart()
    message = f"t-0: .* the topic was recreated: its id was {IDS['a']}, and is now {IDS['b']}"
    assert resumed(query, message, caplog) == list(range(3 * count))
    writer.records()
    assert query.drain() == [3 * count + number for number in range(3)]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_log_made_again_without_an_id_is_recognized_by_the_batch_before_the_position(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int, restarts: bool, isolation: str
) -> None:
    """The new log ends at the position, or beyond it in the middle of a batch or after several."""
    query = started(tmp_path, None, isolationLevel=isolation)
    writer = made(tmp_path, count, None, first=6 if count < 3 else 4)
    if restarts:
        query.restart()
    message = "t-0: the last micro-batch ended before offset 6, but the log was recreated: the checksum of the batch"
    assert resumed(query, message, caplog) == list(range(writer.next))
    writer.records()
    assert query.drain() == [writer.next - 3 + number for number in range(3)]


def test_a_segment_that_is_overwritten_in_place_is_followed_from_its_start(tmp_path: Path) -> None:
    """The file keeps its inode and becomes longer, so neither shows that the log was recreated."""
    query = started(tmp_path, None, failOnDataLoss="false")
    other = made(tmp_path / "other", 7, None, first=5).file.read_bytes()
    next(tmp_path.glob("t-0/*.log")).write_bytes(other)
    assert query.drain() == list(range(35))


def test_transactions_of_an_overwritten_log_do_not_stay_open(tmp_path: Path) -> None:
    followed = FollowedLog(ReadOptions(isolation="read_committed"))
    writer = Writer(tmp_path)
    writer.records()
    writer.txn(7)
    assert followed.follow(kbatch.Log(writer.path), 0).last_stable_offset == 3
    # A batch of the new log begins where the open transaction did, so its bytes can be followed from there.
    again = Writer(tmp_path / "other")
    for _ in range(3):
        again.records()
    writer.file.write_bytes(again.file.read_bytes())
    assert followed.follow(kbatch.Log(writer.path), 0).last_stable_offset is None
    again.txn(8)
    again.marker(8, COMMIT)
    again.txn(9)
    writer.file.write_bytes(again.file.read_bytes())
    assert followed.follow(kbatch.Log(writer.path), 0).last_stable_offset == 11


@pytest.mark.parametrize("limit", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_limits_of_a_trigger_count_from_the_start_of_a_topic_that_was_created_again(tmp_path: Path, limit: str) -> None:
    query = started(tmp_path, "a", failOnDataLoss="false", **{limit: "4"})
    made(tmp_path, 3, "b")
    sizes = []
    while (batch := query.batch()) is not None:
        sizes.append(len(batch))
    assert sizes == ([4, 4, 1] if limit == "maxOffsetsPerTrigger" else [9])


@pytest.mark.parametrize("topic_id", ["a", None])
def test_checkpoints_of_earlier_releases_are_resumed(tmp_path: Path, topic_id: str | None) -> None:
    """Their offsets have neither ids nor checksums; the next micro-batch adds them."""
    query = started(tmp_path, topic_id)
    keys = {"$ids", "$checksums"}

    def plain(document: dict[str, Any]) -> dict[str, Any]:
        return {key: plain(each) if key == "$start" else each for key, each in document.items() if key not in keys}

    query.log = [plain(each) for each in query.log]
    query.restart()
    assert query.batch() is None
    writer = Writer.__new__(Writer)
    writer.path, writer.next = tmp_path / "t-0", 6
    writer.file = next(writer.path.glob("*.log"))
    writer.records()
    assert query.drain() == [6, 7, 8]
    assert set(query.log[-1]) == {"t", "$checksums"} | ({"$ids"} if topic_id else set())


def test_the_id_of_a_topic_may_be_unknown_for_a_while(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    query = started(tmp_path, "a")
    writer = Writer.__new__(Writer)
    writer.path, writer.next = tmp_path / "t-0", 6
    writer.file = next(writer.path.glob("*.log"))
    set_id(writer, None)
    writer.records()
    query.restart()
    assert query.drain() == [6, 7, 8]
    set_id(writer, "a")
    writer.records()
    assert query.drain() == [9, 10, 11]
    set_id(writer, "c")
    writer.records()
    message = f"its id was {IDS['a']}, and is now {IDS['c']}"
    assert resumed(query, message, caplog) == list(range(15))


@pytest.mark.parametrize("ids", [("a", "b"), (None, None)])
def test_a_log_made_again_after_the_read_was_planned_is_read_from_its_start_by_the_next_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ids: tuple[str | None, str | None]
) -> None:
    writer = made(tmp_path, 2, ids[0])
    query = Query(tmp_path, startingOffsets="earliest")
    assert query.drain() == list(range(6))
    writer.records()
    assert query.plan()
    made(tmp_path, 4, ids[1], first=5)
    query.restart()
    rows = resumed(query, "the topic was recreated" if ids[0] else "the log was recreated", caplog)
    assert rows == list(range(20))


def test_a_compacted_log_is_continued_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    query = started(tmp_path, None)
    file = next(tmp_path.glob("t-0/*.log"))
    batches = file.read_bytes()
    half = len(batches) // 2
    file.write_bytes(batches[:half])
    writer = Writer.__new__(Writer)
    writer.path, writer.next, writer.file = file.parent, 8, file
    writer.records()
    query.restart()
    assert query.drain() == [8, 9, 10]
    assert [each.getMessage()[:38] for each in caplog.records] == ["what was read last of t-0 is not there"]


def test_offsets_name_each_topic_id_once_with_its_partitions(tmp_path: Path) -> None:
    for number, name in enumerate("aab"):
        set_id(Writer(tmp_path, f"t-{number}"), name)
    query = Query(tmp_path)
    query.batch()
    assert query.log[-1]["$ids"] == {"t": {str(IDS["a"]): [0, 1], str(IDS["b"]): [2]}}
    assert json.loads(json.dumps(query.log[-1])) == query.log[-1]


def test_a_limited_micro_batch_ends_with_the_checksum_of_the_batch_before_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its end is not that of the log, whose last batch is known."""
    writer = made(tmp_path, 5, None)
    query = Query(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="3")
    for number in range(2):
        assert query.batch() == [3 * number + offset for offset in range(3)]
        crc = int(kbatch.Log(writer.path).batches()["crc"][number])
        assert query.log[-1]["$checksums"] == {"t": {"0": crc}}
    made(tmp_path, 5, None, first=4)
    assert resumed(query, "the log was recreated: the checksum of the batch with offset 5", caplog) == list(range(20))
