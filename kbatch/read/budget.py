"""The memory of a table: how much it may take, and what happens to a batch that does not fit."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
from typing import NamedTuple

from kbatch.errors import Fault, Finding
from kbatch.format import Limits
from kbatch.quantities import SizeLike, size_between
from kbatch.records.data import TableMemory
from kbatch.tuning import (
    LOG_TABLE_BYTES,
    MAX_SCRATCH,
    MIN_DEFAULT_TABLE,
    MIN_FOLLOWED_TABLE,
    MIN_SCRATCH,
    MIN_SPLIT_TABLE,
    SMALL_TABLE_BYTES,
)

__all__ = [
    "TableBudget",
    "checked_table_bytes",
    "default_table_bytes",
    "followed_table_bytes",
    "table_budget",
    "table_limit",
]

_LIMITS_NAME = "Limits(max_table_bytes=...)"
# The memory limit of a container: version 2 of control groups, and version 1.
_CGROUP_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# The losses of an input that becomes one table may take this part of its memory, one part in ..., although batches no
# longer fit: each of those is a loss.
_LOSSES_PART = 8


class TableBudget(NamedTuple):
    """The memory of one table, in bytes.

    Attributes
    ----------
    table : int
        The limit on records, batches and payloads.
    batch : int
        The limit on the payload of a batch that is split over several tables.
    name : str
        The parameter that raises the limit, for messages.
    splits : bool
        Whether a table ends before a batch that does not fit, and larger batches are split. Otherwise such a batch is
        refused.
    max_scratch : int
        The limit on the scratch memory of a thread.
    limit : int
        The limit on a table with its header rows, or with a view.
    is_strict : bool
        Whether the header rows must also fit the memory of a part.
    used : int
        What other tables of the same result take of the limit; the other attributes are without it.
    """

    table: int
    batch: int
    name: str
    splits: bool
    max_scratch: int
    limit: int
    is_strict: bool
    used: int = 0

    def holds_losses(self, losses: int, memory: int) -> bool:
        """Whether a table with losses of this size, and of this size in all, is within the limit, or may end."""
        return self.splits or losses <= self.table // _LOSSES_PART or memory <= self.table

    @property
    def part(self) -> int:
        """The memory for the rows of a part of a batch."""
        return self.table // 4

    @property
    def target(self) -> int:
        """The size from which a table that may be split ends: windows and scratch memory need the rest."""
        return self.table - self.table // 8 if self.splits else self.table

    def beside(self, size: int) -> int:
        """Return the limit on a table of which one compressed batch has `size` bytes in addition."""
        return self.table - max(size - self.table // 8, 0) if self.is_strict else self.table

    @property
    def frugal_from(self) -> int:
        """The size from which growing memory saves memory rather than time."""
        return self.table // 16

    def memory_of(self, size: int) -> TableMemory:
        """Return the memory that remains for the header rows and the views of a table of `size` bytes."""
        rest = self.limit - size
        headers = max(self.table - size, self.part) if self.is_strict else rest
        return TableMemory(rest, headers, self.name, self.frugal_from)

    def finding(self) -> Finding:
        """Return the fault of a batch that does not fit."""
        if self.used:
            reason = (
                f"all tables take more than {self.table + self.used} bytes of memory, {self.used} of them for other "
                f"partitions; fetch fewer bytes at a time, or raise {self.name}"
            )
        else:
            reason = f"a table takes more than {self.table} bytes of memory; raise {self.name}"
        return Finding(Fault.OVER_TABLE, detail=reason)


def table_budget(
    limits: Limits,
    max_bytes: int | None,
    *,
    is_strict: bool = False,
    splits: bool = True,
    threads: int = 1,
    used: int = 0,
) -> TableBudget:
    """Return the budget of the tables of a read.

    Parameters
    ----------
    limits : Limits
    max_bytes : int, optional
        The size of a table. Without it, all of an input becomes one table.
    is_strict : bool
        Whether `max_bytes` is a limit that a batch must not exceed. Otherwise only `limits` are.
    splits : bool
        Whether batches may be split, given `max_bytes`.
    threads : int
    used : int
        What other tables of the same result take of the limit.
    """
    limit = most = max(table_limit(limits) - used, 0)
    table, name = limit, _LIMITS_NAME
    splits = splits and max_bytes is not None
    is_strict = is_strict and splits
    if max_bytes is not None and splits:
        table = min(limit, max(max_bytes, MIN_SPLIT_TABLE))
        is_strict = is_strict and table < limit
        if is_strict:
            most, name = table, "max_bytes"
    # A part of a batch needs memory for its rows in addition to the payload.
    batch = most - table // 4
    scratch = min(MAX_SCRATCH, max(table // (8 * threads), MIN_SCRATCH))
    return TableBudget(table, batch, name, splits, scratch, limit, is_strict, used)


def checked_table_bytes(max_bytes: SizeLike | None) -> int:
    """Return the size of the tables that a caller gets, or raise `ValueError`."""
    return LOG_TABLE_BYTES if max_bytes is None else size_between("max_bytes", max_bytes, 1)


def followed_table_bytes(max_bytes: int | None) -> int:
    """Return the size of the tables whose transactions are followed, in memory of `max_bytes`.

    The headers of the batches of a table are held several times.
    """
    return SMALL_TABLE_BYTES if max_bytes is None else min(SMALL_TABLE_BYTES, max(max_bytes // 16, MIN_FOLLOWED_TABLE))


def table_limit(limits: Limits) -> int:
    """Return `limits.max_table_bytes`, or its default for this machine."""
    return default_table_bytes() if limits.max_table_bytes is None else limits.max_table_bytes


@functools.cache
def default_table_bytes() -> int:
    """Return the default of `Limits.max_table_bytes`: half of the memory that this process may use."""
    return max(_usable_memory() // 2, MIN_DEFAULT_TABLE)


def _usable_memory() -> int:
    """Return the memory of the machine, or the limit of the container or process if that is lower."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CGROUP_FILES:
        # The file contains "max" if there is no limit.
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            sizes.append(int(file.read()))
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft != resource.RLIM_INFINITY:
        sizes.append(soft)
    return min(size for size in sizes if size > 0)
