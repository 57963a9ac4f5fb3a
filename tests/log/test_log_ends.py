"""Offsets counted back from the end of a log, and the last records of a log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_logs import COMMITTED, LOGS
from log_batches import NOW, batch, write_segment

import kbatch
from kbatch.cli import main
from kbatch.format import BATCH_DTYPE
from kbatch.log import Log, LogWriter, compact_log

LOG = LOGS / "txn-0"
END = 371


def offsets(log: kbatch.Log, **options: Any) -> list[int]:
    return [offset for table in log.tables(**options) for offset in table.records["offset"].tolist()]


@pytest.fixture(name="sparse", scope="module")
def sparse_log(tmp_path_factory: pytest.TempPathFactory) -> kbatch.Log:
    """A log with large gaps, in several segments."""
    path = tmp_path_factory.mktemp("logs") / "sparse-0"
    with LogWriter(path, segment_bytes=500) as writer:
        for first in range(0, 50_000, 2_500):
            writer.append(kbatch.encode([b"v", b"w"], offsets=[first, first + 700], timestamps=first))
    return kbatch.Log(path)


def test_negative_offsets_count_back_from_the_end() -> None:
    log = kbatch.Log(LOG)
    everything = offsets(log)
    assert offsets(log, start_offset=-5) == [each for each in everything if each >= END - 5]
    assert offsets(log, stop_offset=-5) == [each for each in everything if each < END - 5]
    assert offsets(log, start_offset=np.int64(-20), stop_offset=-10) == [
        each for each in everything if END - 20 <= each < END - 10
    ]
    assert offsets(log, start_offset=-(10**12)) == everything
    assert log.offset_for_timestamp(0, start_offset=-5) == END - 5


def test_negative_offsets_begin_at_the_log_start_offset(tmp_path: Path) -> None:
    """The records before the log start offset have been deleted, as for a default read (DSK-R13)."""
    with LogWriter(tmp_path / "orders-0") as writer:
        writer.append(kbatch.encode([b""] * 10, timestamps=0, max_records=1))
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\norders 0 4\n")
    log = kbatch.Log(tmp_path / "orders-0")
    assert offsets(log, start_offset=-100) == offsets(log) == offsets(log, last=100) == [4, 5, 6, 7, 8, 9]
    assert offsets(log, start_offset=0, last=7) == [3, 4, 5, 6, 7, 8, 9]


def test_buffers_and_streams_refuse_negative_offsets() -> None:
    for call in (
        lambda: kbatch.decode(b"", start_offset=-5),
        lambda: kbatch.decode(b"", stop_offset=-1),
        lambda: kbatch.StreamDecoder(start_offset=-5),
    ):
        with pytest.raises(ValueError, match=r"must not be negative, got -\d; only kbatch.Log knows the end"):
            call()


@pytest.mark.parametrize("count", [0, 1, 3, 5, 39, 40, 41])
@pytest.mark.parametrize("use_indexes", [True, False])
def test_the_last_records_are_counted_in_a_log_with_gaps(sparse: kbatch.Log, count: int, use_indexes: bool) -> None:
    log = kbatch.Log(sparse.path, use_indexes=use_indexes)
    assert offsets(log, last=count) == offsets(log)[max(0, 40 - count) :]


def test_the_last_records_are_counted_in_a_compacted_log(tmp_path: Path) -> None:
    compact_log(LOGS / "compact-src-0", tmp_path / "compact-src-0", include_active=True)
    log = kbatch.Log(tmp_path / "compact-src-0")
    assert len(log.segments) == 1
    assert len(offsets(log)) == 19 < log.end_offset
    assert offsets(log, last=10) == offsets(log)[-10:]


def test_the_last_records_of_a_transactional_log_are_those_that_the_other_arguments_select() -> None:
    log = kbatch.Log(LOG)
    assert offsets(log, last=10, isolation="read_committed") == COMMITTED[-10:]
    assert offsets(log, last=400, isolation="read_committed") == COMMITTED
    assert offsets(log, last=4, include_control=True) == offsets(log, include_control=True)[-4:]
    assert offsets(log, last=4, stop_offset=-30) == offsets(log, stop_offset=-30)[-4:]
    early = offsets(log, stop_timestamp="2023-11-14T22:13:30")
    assert offsets(log, last=4, stop_timestamp="2023-11-14T22:13:30") == early[-4:]
    assert [table.columns for table in log.tables(last=1, columns=["key"])] == [("key",)]


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "10"])
def test_last_must_be_a_number_of_records(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"last must be (an int|a number of records, 0 or more).*, got"):
        kbatch.Log(LOG).tables(last=wrong)


def dumped(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[int]:
    assert main(["dump", *arguments]) == 0
    return [json.loads(line)["offset"] for line in capsys.readouterr().out.splitlines()]


def test_dump_counts_offsets_back_from_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    everything = offsets(kbatch.Log(LOG))
    assert dumped(capsys, "--records", "--offsets=-5:", str(LOG)) == [each for each in everything if each >= END - 5]
    assert dumped(capsys, "--records", "--offsets=:-5", str(LOG)) == [each for each in everything if each < END - 5]
    assert dumped(capsys, "--records", "--offsets=-2", str(LOG)) == [END - 2]
    assert dumped(capsys, "--records", "--offsets=-1", str(LOG)) == [END - 1]


def test_dump_prints_the_last_records_of_each_log(sparse: kbatch.Log, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [kbatch.Log(LOG), sparse]
    expected = [offset for log in logs for offset in offsets(log)[-10:]]
    assert dumped(capsys, "--tail", "10", *(log.path for log in logs)) == expected
    tables = logs[0].tables()
    by_key = [int(row["offset"]) for t in tables for i, row in enumerate(t.records) if t.key(i) == b"key-8"]
    assert dumped(capsys, "--tail", "2", "--key", "key-8", str(LOG)) == by_key[-2:]
    segment = logs[0].segments[0].path
    assert dumped(capsys, "--tail", "1", segment) == [offsets(kbatch.Log(segment))[-1]]


@pytest.mark.parametrize("count", [1, 15, 1000])
def test_a_log_whose_end_is_known_holds_one_header_whatever_the_log_has(count: int, tmp_path: Path) -> None:
    """An export holds all of its logs at once."""
    write_segment(tmp_path / "t-0", 0, [batch(number, [NOW]) for number in range(count)])
    log = Log(tmp_path / "t-0")
    assert log.end_offset == count
    held: Any = log._last[0]
    while isinstance(held.base, np.ndarray):
        held = held.base
    assert held.nbytes == BATCH_DTYPE.itemsize
