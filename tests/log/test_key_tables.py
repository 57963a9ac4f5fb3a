"""The records of one key: what a search keeps of the tables that it decodes, and how large these are."""

from __future__ import annotations

import numpy as np
import pytest
from log_batches import write_segment

import kbatch
from kbatch.kernels.buffers import pool_stats, trim
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.split import log_splits
from kbatch.plan.tasks import task_tables
from kbatch.tuning import KEY_TABLE_BYTES

RECORDS, IN_BATCH = 120_000, 2000
KEY = b"wanted"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> kbatch.Log:
    """A log of 30 MB of records, of which every tenth batch has two with the key."""
    batches = []
    for number, base in enumerate(range(0, RECORDS, IN_BATCH)):
        keys = [b"%06d" % n for n in range(IN_BATCH)]
        if number % 10 == 3:
            keys[7] = keys[-1] = KEY
        values = [b"%0240d" % offset for offset in range(base, base + IN_BATCH)]
        batches.append(bytes(kbatch.encode(values, keys=keys, base_offset=base, timestamps=base, codec="lz4")))
    directory = tmp_path_factory.mktemp("keys") / "t-0"
    write_segment(directory, 0, batches)
    return kbatch.Log(directory)


@pytest.fixture(scope="module")
def offsets(log: kbatch.Log) -> list[int]:
    found = [
        offset for base in range(3 * IN_BATCH, RECORDS, 10 * IN_BATCH) for offset in (base + 7, base + IN_BATCH - 1)
    ]
    records = np.concatenate([table.records["offset"][[key == KEY for key in table.keys()]] for table in log])  # noqa: SIM118
    assert found == records.tolist()
    return found


def test_kept_tables_of_a_key_hold_only_its_bytes(log: kbatch.Log, offsets: list[int]) -> None:
    tables = [*log.tables(key=KEY)]
    assert [offset for table in tables for offset in table.records["offset"].tolist()] == offsets
    assert [value for table in tables for value in table.values()] == [b"%0240d" % offset for offset in offsets]
    assert sum(table.data.nbytes for table in tables) == len(offsets) * (len(KEY) + 240)
    # All batches are there, so that nothing that was read goes unreported.
    assert sum(len(table.batches) for table in tables) == RECORDS // IN_BATCH


@pytest.mark.parametrize("front", ["log", "task"])
def test_a_search_by_key_needs_the_memory_of_small_tables(log: kbatch.Log, offsets: list[int], front: str) -> None:
    """Also if the caller keeps what is found; 64 MiB would hold all records of this log at once."""
    options = ReadOptions(key=KEY)
    splits = log_splits(log, None, None, None, options)
    trim()
    before = pool_stats().live_bytes
    tables = log.tables(key=KEY) if front == "log" else (table for _, table in task_tables(splits, options))
    kept, most = [], 0
    for table in tables:
        kept.append(table)
        most = max(most, pool_stats().live_bytes + pool_stats().free_bytes - before)
    assert sum(map(len, kept)) == len(offsets)
    assert len(kept) > 3
    assert most < 3 * KEY_TABLE_BYTES


def test_max_bytes_is_the_size_of_the_tables_of_a_key_too(log: kbatch.Log) -> None:
    assert len([*log.tables(key=KEY, max_bytes="1g")]) == 1
    assert len([*log.tables(key=KEY, max_bytes="1m")]) > len([*log.tables(key=KEY)])
