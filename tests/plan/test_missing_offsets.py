"""Offsets that a read asks for and the log does not have: the semantics of Spark's Kafka source (failOnDataLoss)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from log_batches import NOW, batch, segment_path, write_segment

import kbatch
from kbatch.log import Log
from kbatch.plan.loss_rows import loss_batches
from kbatch.plan.planner import plan, plan_reads
from kbatch.plan.read_options import ReadOptions, parse_options
from kbatch.plan.tasks import task_tables


def write_log(directory: Path, first: int = 10, end: int = 30, per_segment: int = 10) -> Path:
    for base in range(first, end, per_segment):
        write_segment(directory, base, [batch(base + i, [NOW] * 5) for i in range(0, per_segment, 5)], indexes=True)
    return directory


def reading(start: int | None = None, stop: int | None = None, **options: str) -> ReadOptions:
    bounds = {"startingOffsets": start, "endingOffsets": stop}
    texts = {name: json.dumps({"t": {"0": offset}}) for name, offset in bounds.items() if offset is not None}
    return parse_options({"path": "x", **texts, **options})[1]


def offsets(log: Path, options: ReadOptions) -> list[int]:
    tasks = plan([Log(log)], options)
    return [int(o) for task in tasks for _, table in task_tables(task, options) for o in table.records["offset"]]


AVAILABLE = "the first one available is 10 and the last one 29"


@pytest.mark.parametrize(
    ("start", "stop", "message", "kept", "missing"),
    [
        (5, None, f"t-0: the read asks for offset 5, but {AVAILABLE}", range(10, 30), [(5, 9)]),
        (None, 31, f"t-0: the read asks for offsets below 31, but {AVAILABLE}", range(10, 30), [(30, 30)]),
        (12, 40, f"t-0: the read asks for offsets below 40, but {AVAILABLE}", range(12, 30), [(30, 39)]),
        (3, 8, f"t-0: the read asks for offset 3, but {AVAILABLE}", (), [(3, 7)]),
        (3, 50, f"t-0: the read asks for offset 3, but {AVAILABLE}", range(10, 30), [(3, 9), (30, 49)]),
        (31, None, f"t-0: the read asks for offset 31, but {AVAILABLE}", (), [(31, None)]),
        (35, 40, f"t-0: the read asks for offsets below 40, but {AVAILABLE}", (), [(35, 39)]),
    ],
)
def test_missing_offsets_are_an_error_or_a_warning(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    start: int | None,
    stop: int | None,
    message: str,
    kept: range,
    missing: list[tuple[int, int | None]],
) -> None:
    """The message has the topic-partition, the offset that the read asks for, and the first and last one available."""
    log = write_log(tmp_path / "t-0")
    with pytest.raises(kbatch.LogDirectoryError) as raised:
        plan([Log(log)], reading(start, stop))
    assert message in str(raised.value)
    assert "failOnDataLoss" in str(raised.value)
    assert not caplog.records
    allowed = reading(start, stop, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "kbatch"):
        assert offsets(log, allowed) == list(kept)
    assert message in caplog.text
    (read,) = plan_reads([Log(log)], allowed, [None])
    assert [(each.topic, each.partition, each.first_offset, each.last_offset) for each in read.missing] == [
        ("t", 0, *each) for each in missing
    ]


@pytest.mark.parametrize(("start", "stop"), [(10, 30), (-2, -1), (12, 12), (30, None), (30, 30), (3, 3), (None, 10)])
def test_offsets_at_the_ends_of_the_log_are_not_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, start: int | None, stop: int | None
) -> None:
    log = write_log(tmp_path / "t-0")
    found = offsets(log, reading(start, stop))
    first, end = 10 if start is None or start < 0 else start, 30 if stop is None or stop < 0 else stop
    assert found == list(range(first, end))
    assert not caplog.records


def test_offsets_that_compaction_removed_are_not_missing(tmp_path: Path) -> None:
    log = tmp_path / "t-0"
    write_segment(log, 0, [batch(7, [NOW]), batch(20, [NOW])])
    assert offsets(log, reading(0, 21)) == [7, 20]


def test_records_before_the_log_start_offset_can_be_read_while_they_exist(tmp_path: Path) -> None:
    """DSK-R13: DeleteRecords leaves the earlier records of a segment in its file."""
    log = write_log(tmp_path / "t-0")
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 13\n")
    assert offsets(log, reading(-2)) == list(range(13, 30))
    assert offsets(log, reading(11)) == list(range(11, 30))


def test_a_start_after_the_stop_is_an_error(tmp_path: Path) -> None:
    log = write_log(tmp_path / "t-0")
    for fails in ("true", "false"):
        with pytest.raises(ValueError, match="the starting offset 20 is greater than the ending offset 12"):
            plan([Log(log)], reading(20, 12, failOnDataLoss=fails))


def test_offsets_in_a_damaged_end_are_losses(tmp_path: Path) -> None:
    log = tmp_path / "t-0"
    damaged = bytearray(batch(15, [NOW] * 5))
    damaged[16] = 7
    write_segment(log, 10, [batch(10, [NOW] * 5), bytes(damaged)])
    options = reading(None, 20, onError="skip")
    (task,) = plan([Log(log)], options)
    assert sum(len(table.losses) for _, table in task_tables(task, options)) == 1


# -- segments that retention deletes during a read


def delete(path: Path) -> None:
    path.unlink()


def rename(path: Path) -> None:
    """Brokers rename a file before they remove it."""
    path.rename(path.with_name(path.name + ".deleted"))


@pytest.mark.parametrize("remove", [delete, rename])
def test_a_segment_deleted_after_planning_is_an_error_that_names_the_offsets(
    tmp_path: Path, remove: Callable[[Path], None]
) -> None:
    log = write_log(tmp_path / "t-0")
    options = reading()
    tasks = plan([Log(log)], options)
    remove(segment_path(log, 10))
    with pytest.raises(kbatch.LogDirectoryError) as raised:
        list(task_tables([split for task in tasks for split in task], options))
    message = str(raised.value)
    assert f"t-0: {segment_path(log, 10)} was deleted after the read was planned" in message
    assert "within offsets 10 to 19, were not read" in message
    assert "the first offset available is now 20 and the last one 29" in message
    assert "failOnDataLoss" in message


def test_a_segment_deleted_after_planning_is_a_loss_if_that_is_allowed(tmp_path: Path) -> None:
    log = write_log(tmp_path / "t-0")
    options = reading(failOnDataLoss="false", onError="raise")
    tasks = plan([Log(log)], options)
    size = segment_path(log, 10).stat().st_size
    segment_path(log, 10).unlink()
    assert [int(o) for task in tasks for _, t in task_tables(task, options) for o in t.records["offset"]] == list(
        range(20, 30)
    )
    rows = [row for task in tasks for b in loss_batches(task_tables(task, options)) for row in b.to_pylist()]
    (row,) = rows
    assert (row["topic"], row["partition"], row["position"], row["length"]) == ("t", 0, 0, size)
    assert "was deleted after the read was planned" in row["reason"]


def test_a_log_deleted_after_planning_is_an_error_that_says_so(tmp_path: Path) -> None:
    log = write_log(tmp_path / "t-0", 10, 20)
    options = reading()
    (task,) = plan([Log(log)], options)
    log.rename(tmp_path / "t-0.0123456789abcdef0123456789abcdef-delete")
    with pytest.raises(kbatch.LogDirectoryError, match="within offsets 10 to the end of the log, were not read; the"):
        list(task_tables(task, options))
