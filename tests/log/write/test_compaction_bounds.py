"""Compaction at the exact times at which producers expire and tombstones of old formats go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from compaction import write_log

import kbatch
from kbatch.log import compact_log

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
