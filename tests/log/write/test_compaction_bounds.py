"""Compaction at the exact times at which producers expire and tombstones of old formats go."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from compaction import write_log

import kbatch
from kbatch.log import Compaction, compact_log

NOW = 1_700_000_000_000
HOUR = 3_600_000


def stored(path: Path) -> list[tuple[int, int]]:
    """Return base offset and record count of each batch."""
    rows: list[tuple[int, int]] = kbatch.Log(path).batches()[["base_offset", "record_count"]].tolist()
    return rows


@pytest.mark.parametrize(("age", "known"), [(HOUR - 1, True), (HOUR, False), (HOUR + 1, False)])
def test_a_producer_expires_when_its_time_has_passed_prd_r16(tmp_path: Path, age: int, known: bool) -> None:
    """``ProducerStateManager.isProducerExpired`` compares with ``>=``; the header of its last batch stays before."""
    producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    log = kbatch.encode([b"a"], keys=[b"k"], timestamps=NOW - age, **producer)
    log += kbatch.encode([b"b"], keys=[b"k"], timestamps=NOW, base_offset=1)
    source = write_log(tmp_path / "in-0", {0: log})
    compact_log(source, tmp_path / "out-0", now=NOW, producer_expiration_ms=HOUR, include_active=True)
    assert stored(tmp_path / "out-0") == ([(0, 0), (1, 1)] if known else [(1, 1)])


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(("later", "stays"), [(-1, False), (0, False), (1, True)])
def test_tombstones_of_old_formats_go_up_to_the_horizon_cmp_r5(
    tmp_path: Path, magic: int, later: int, stays: bool
) -> None:
    """``LogCleaner`` keeps them in segments that were modified after the horizon.

    The horizon is the modification time of the last clean segment, minus the retention.
    """
    times = {} if magic == 0 else {"timestamps": NOW}
    log = {
        0: kbatch.encode([b"a"], keys=[b"x"], magic=magic, **times),
        1: kbatch.encode([None], keys=[b"y"], magic=magic, base_offset=1, **times),
        2: kbatch.encode([b"c"], keys=[b"z"], magic=magic, base_offset=2, **times),
    }
    source = write_log(tmp_path / "in-0", log, modified=[NOW, NOW - HOUR + later, NOW])
    compact_log(
        source, tmp_path / "out-0", now=NOW, delete_retention_ms=HOUR, first_dirty_offset=1, include_active=True
    )
    assert [offset for offset, count in stored(tmp_path / "out-0") if count] == ([0, 1, 2] if stays else [0, 2])


def test_counts_begin_at_0() -> None:
    names = {each.name for each in fields(Compaction)} - {"damage", "limit", "open_transactions"}
    assert {getattr(Compaction(), name) for name in names} == {0}
    assert Compaction().damage == []


@pytest.mark.parametrize("first_dirty_offset", [None, 3])
def test_counts_are_those_of_the_output(tmp_path: Path, first_dirty_offset: int | None) -> None:
    """Also with clean segments. An empty value is not a tombstone; records without a key are removed, as by Kafka."""
    log = {
        0: batch_of(0, [(b"a", b"1"), (b"b", b""), (None, b"x")]),
        3: batch_of(3, [(b"a", b""), (b"c", b"2"), (b"d", None), (None, None)]),
        7: batch_of(7, [(b"c", b"3"), (None, b"y")]),
        9: batch_of(9, [(b"e", b"5")]),
    }
    source = write_log(tmp_path / "in-0", log)
    done = compact_log(source, tmp_path / "out-0", now=NOW, first_dirty_offset=first_dirty_offset)
    tables = list(kbatch.Log(tmp_path / "out-0").tables())
    offsets = [offset for table in tables for offset in table.records["offset"].tolist()]
    assert offsets == [1, 3, 5, 7, 9]
    assert (done.records_in, done.records_out, done.keyless) == (10, len(offsets), 3)
    assert (done.tombstones, done.tombstones_removed) == (1, 0)
    assert (done.segments_in, done.bytes_in, done.tail_bytes) == (4, sum(map(len, log.values())), 0)
    later = compact_log(tmp_path / "out-0", tmp_path / "later-0", now=NOW + 10 * 24 * HOUR, include_active=True)
    assert (later.tombstones, later.tombstones_removed) == (0, 1)


def batch_of(offset: int, records: list[tuple[bytes | None, bytes | None]]) -> bytes:
    keys, values = zip(*records, strict=True)
    return kbatch.encode(list(values), keys=list(keys), timestamps=NOW - HOUR, base_offset=offset)


def test_the_smallest_table_of_keys_has_64_bytes(tmp_path: Path) -> None:
    source = write_log(tmp_path / "in-0", {0: batch_of(0, [(b"a", b"1")]), 1: batch_of(1, [(b"a", b"2")])})
    assert compact_log(source, tmp_path / "out-0", now=NOW, dedupe_buffer_bytes=64).keys == 1
    with pytest.raises(ValueError, match="dedupe_buffer_bytes must be at least 64"):
        compact_log(source, tmp_path / "other-0", now=NOW, dedupe_buffer_bytes=63)


def test_the_active_segment_may_be_within_the_compaction_lag(tmp_path: Path) -> None:
    """It is the last segment, and no other one begins after it."""
    log = {0: batch_of(0, [(b"a", b"1"), (b"a", b"2")]), 2: batch_of(2, [(b"a", b"3"), (b"a", b"4")])}
    source = write_log(tmp_path / "in-0", log)
    for lag, count in ((2 * HOUR, 4), (HOUR, 1), (1, 1)):
        done = compact_log(source, tmp_path / f"{lag}-0", now=NOW, min_compaction_lag_ms=lag, include_active=True)
        assert done.records_out == count


@pytest.mark.parametrize(("first_of_third", "joined"), [(2**31, True), (2**31 + 1, False)])
def test_joined_segments_have_offsets_within_2_31_cmp_r10(tmp_path: Path, first_of_third: int, joined: bool) -> None:
    """``groupSegmentsBySize``: the last offset of a segment is the one before the next segment."""
    log = {
        0: batch_of(0, [(b"a", b"1")]),
        10: batch_of(10, [(b"e", b"1")]),
        1000: batch_of(1000, [(b"b", b"1")]),
        first_of_third: batch_of(first_of_third, [(b"c", b"1")]),
        first_of_third + 1: batch_of(first_of_third + 1, [(b"d", b"1")]),
    }
    compact_log(write_log(tmp_path / "in-0", log), tmp_path / "out-0", now=NOW)
    found = [segment.base_offset for segment in kbatch.Log(tmp_path / "out-0").segments]
    assert found == [0, first_of_third if joined else 1000, first_of_third + 1]
