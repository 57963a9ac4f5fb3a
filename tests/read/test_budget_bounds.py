"""The bounds of a table's memory: how much its rows, payloads, header rows and threads may take."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from kbatch.format import Limits
from kbatch.read import budget
from kbatch.read.budget import TableBudget, checked_table_bytes, table_budget
from kbatch.tuning import LOG_TABLE_BYTES, MAX_SCRATCH, MIN_DEFAULT_TABLE, MIN_SCRATCH, MIN_SPLIT_TABLE

MIB = 1 << 20
LIMIT = 96 * MIB
LIMITS = Limits(max_table_bytes=LIMIT)
LIMIT_NAME = "Limits(max_table_bytes=...)"


def strict(max_bytes: int = 32 * MIB, threads: int = 1) -> TableBudget:
    return table_budget(LIMITS, max_bytes, is_strict=True, threads=threads)


@pytest.mark.parametrize(
    ("max_bytes", "table"),
    [
        (1, MIN_SPLIT_TABLE),
        (MIN_SPLIT_TABLE - 1, MIN_SPLIT_TABLE),
        (MIN_SPLIT_TABLE + 1, MIN_SPLIT_TABLE + 1),
        (LIMIT - 1, LIMIT - 1),
        (LIMIT + 1, LIMIT),
    ],
)
def test_a_table_takes_max_bytes_between_the_smallest_size_that_splits_and_the_limit(
    max_bytes: int, table: int
) -> None:
    found = table_budget(LIMITS, max_bytes)
    assert (found.table, found.limit, found.splits) == (table, LIMIT, True)


@pytest.mark.parametrize(("max_bytes", "splits"), [(None, True), (None, False), (32 * MIB, False)])
def test_a_table_that_is_not_split_takes_all_of_the_limit(max_bytes: int | None, splits: bool) -> None:
    found = table_budget(LIMITS, max_bytes, is_strict=True, splits=splits)
    assert (found.table, found.target, found.splits, found.is_strict) == (LIMIT, LIMIT, False, False)
    assert found.name == LIMIT_NAME


@pytest.mark.parametrize(
    ("max_bytes", "is_strict", "named"),
    [
        (LIMIT - 1, True, "max_bytes"),
        (LIMIT, True, LIMIT_NAME),
        (LIMIT + 1, True, LIMIT_NAME),
        (LIMIT - 1, False, LIMIT_NAME),
    ],
)
def test_the_limit_that_would_have_to_be_raised_is_the_one_that_is_named(
    max_bytes: int, is_strict: bool, named: str
) -> None:
    """`max_bytes` is no limit if it does not bound a batch, or if `Limits.max_table_bytes` is as low."""
    found = table_budget(LIMITS, max_bytes, is_strict=is_strict)
    assert found.name == named
    assert found.finding().detail == f"a table takes more than {found.table} bytes of memory; raise {named}"
    assert found.is_strict == (named == "max_bytes")


@pytest.mark.parametrize("is_strict", [True, False])
def test_the_payload_of_a_split_batch_and_the_rows_of_a_part_fill_the_limit(is_strict: bool) -> None:
    """A quarter of the table remains for the rows of a part."""
    found = table_budget(LIMITS, 32 * MIB, is_strict=is_strict)
    assert found.part == 8 * MIB
    assert found.batch + found.part == (32 * MIB if is_strict else LIMIT)


def test_max_bytes_is_no_limit_on_a_batch_by_default() -> None:
    assert not table_budget(LIMITS, 32 * MIB).is_strict


def test_a_table_that_may_be_split_ends_an_eighth_before_its_size() -> None:
    """Windows and scratch memory need the rest."""
    assert strict().target == 28 * MIB


@pytest.mark.parametrize(
    ("size", "table"),
    [(0, 32 * MIB), (4 * MIB, 32 * MIB), (4 * MIB + 1, 32 * MIB - 1), (12 * MIB, 24 * MIB)],
)
def test_a_compressed_batch_takes_from_the_table_what_exceeds_an_eighth_of_it(size: int, table: int) -> None:
    assert strict().beside(size) == table
    assert table_budget(LIMITS, 32 * MIB).beside(size) == 32 * MIB


def test_memory_is_saved_from_a_sixteenth_of_the_table_on() -> None:
    assert strict().frugal_from == strict().memory_of(0).frugal_from == 2 * MIB


@pytest.mark.parametrize(
    ("size", "headers"), [(0, 32 * MIB), (20 * MIB, 12 * MIB), (24 * MIB - 1, 8 * MIB + 1), (30 * MIB, 8 * MIB)]
)
def test_header_rows_fit_max_bytes_and_have_at_least_the_memory_of_a_part(size: int, headers: int) -> None:
    """Views have the limit; without a strict `max_bytes`, header rows have it too."""
    memory = strict().memory_of(size)
    assert (memory.rest, memory.headers, memory.name) == (LIMIT - size, headers, "max_bytes")
    assert table_budget(LIMITS, 32 * MIB).memory_of(size).headers == LIMIT - size


@pytest.mark.parametrize(
    ("limit", "threads", "scratch"),
    [
        (32 * MIB, 1, 4 * MIB),
        (32 * MIB, 4, MIB),
        (32 * MIB, 1000, MIN_SCRATCH),
        (8 * MAX_SCRATCH, 1, MAX_SCRATCH),
        (8 * MAX_SCRATCH + 8, 1, MAX_SCRATCH),
        (0, 1, MIN_SCRATCH),
    ],
)
def test_threads_share_an_eighth_of_the_table_as_scratch_memory(limit: int, threads: int, scratch: int) -> None:
    assert table_budget(Limits(max_table_bytes=limit), None, threads=threads).max_scratch == scratch


def test_one_thread_is_the_default() -> None:
    assert table_budget(LIMITS, 32 * MIB) == table_budget(LIMITS, 32 * MIB, threads=1)


def test_the_smallest_size_of_a_table_is_one_byte() -> None:
    assert checked_table_bytes(None) == LOG_TABLE_BYTES
    assert checked_table_bytes(1) == 1
    with pytest.raises(ValueError, match="max_bytes"):
        checked_table_bytes(0)


@pytest.mark.parametrize(
    ("files", "soft", "usable"),
    [
        ({}, resource.RLIM_INFINITY, 1000 * 4096),
        ({"max": b"max\n"}, resource.RLIM_INFINITY, 1000 * 4096),
        ({"v2": b"300000\n", "v1": b"200000\n"}, resource.RLIM_INFINITY, 200_000),
        ({"v2": b"200000\n", "v1": b"max\n"}, 100_000, 100_000),
        ({"v2": b"200000\n"}, 300_000, 200_000),
        # A running process has memory: a limit of 0 means that there is none.
        ({"v2": b"0\n"}, 300_000, 300_000),
        ({"v2": b"1\n"}, 300_000, 1),
        ({"v2": b"200000\n"}, 0, 200_000),
    ],
)
def test_the_memory_of_a_process_is_the_lowest_limit_that_it_has(
    files: dict[str, bytes], soft: int, usable: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(budget, "_CGROUP_FILES", (tmp_path / "missing", *(tmp_path / name for name in files)))
    monkeypatch.setattr(budget.os, "sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    monkeypatch.setattr(budget.resource, "getrlimit", {resource.RLIMIT_AS: (soft, resource.RLIM_INFINITY)}.__getitem__)
    assert budget._usable_memory() == usable


@pytest.mark.parametrize(
    ("usable", "limit"),
    [
        (2 * MIN_DEFAULT_TABLE - 2, MIN_DEFAULT_TABLE),
        (2 * MIN_DEFAULT_TABLE + 2, MIN_DEFAULT_TABLE + 1),
        (8 << 30, 4 << 30),
    ],
)
def test_the_default_limit_is_half_of_the_memory_or_the_smallest_default(
    usable: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_usable_memory", lambda: usable)
    assert budget.default_table_bytes.__wrapped__() == limit


def test_a_limit_of_the_caller_takes_the_place_of_the_default() -> None:
    assert budget.table_limit(Limits(max_table_bytes=0)) == 0
    assert budget.table_limit(Limits(max_table_bytes=7)) == 7
    with pytest.raises(ValueError, match="max_table_bytes must be at least 0, got -1"):
        Limits(max_table_bytes=-1)
