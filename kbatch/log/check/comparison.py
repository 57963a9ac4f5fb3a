"""Compares the records of two logs, a table of each side at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kbatch.errors import LogDirectoryError
from kbatch.format import ATTRIBUTE_TRANSACTIONAL, NO_TIMESTAMP, BatchStatus
from kbatch.log.check.differences import ComparedLog, ComparedRecord, Difference, PartitionComparison
from kbatch.log.check.latest_records import LatestRecords, common_keys
from kbatch.log.log_bounds import BoundedLog
from kbatch.log.logs import Log
from kbatch.log.ranges import LogSelection
from kbatch.options import Match
from kbatch.records.concatenation import concat_tables
from kbatch.records.equality import (
    DIGEST_WORDS,
    RecordDigest,
    differing_rows,
    key_digests,
    record_digests,
    record_hashes,
)
from kbatch.table import RecordTable
from kbatch.transactions import OpenTransaction, are_control

__all__ = ["COMPARED_COLUMNS", "ComparedInput", "FileInput", "compare_inputs"]

# The records of each side among which a comparison by order searches the next equal record after a difference. The cost
# stays linear with any number, because the searched records are then skipped; the memory grows with it.
ALIGNMENT_RECORDS = 1024
# Further tables are read for the search as long as the keys and values of the remaining records have fewer bytes.
ALIGNMENT_BYTES = 16 << 20

# The columns of the tables that are compared.
COMPARED_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
# By order: the number of records in the first comparison after a difference. It doubles while all records are equal.
_FIRST_STEP = 64
# The number of records in which the next equal one is searched first. Each further search takes four times as many, so
# that all searches together cost as much as a few passes over the skipped records.
_FIRST_SEARCH = 4


class ComparedInput(Protocol):
    """The records of one log that are compared: between two bounds, with columns that a comparison needs."""

    @property
    def log(self) -> BoundedLog:
        """The log."""

    @property
    def path(self) -> str:
        """Where the log is, for the report."""

    def tables(self) -> Iterator[RecordTable]:
        """Yield tables of the records, in the order of the log."""

    def tables_at(self, offset: int) -> Iterator[RecordTable]:
        """Yield the tables of the records at an offset."""

    def open_transactions(self) -> Sequence[OpenTransaction]:
        """Return the transactions of the whole log without a marker, if they can be known."""


@dataclass(frozen=True)
class FileInput:
    """A `ComparedInput` of a log in files."""

    log: Log
    selection: LogSelection

    @property
    def path(self) -> str:
        """The path of the log."""
        return self.log.path

    def tables(self) -> Iterator[RecordTable]:
        """Yield tables of the records."""
        return self.selection.tables()

    def tables_at(self, offset: int) -> Iterator[RecordTable]:
        """Yield the tables of the records at an offset."""
        options = replace(self.selection.options, start_offset=offset, stop_offset=offset + 1)
        return replace(self.selection, options=options, last=None).tables()

    def open_transactions(self) -> Sequence[OpenTransaction]:
        """Return the transactions of the whole log without a marker."""
        options = self.selection.options
        return self.log.transactions(crc=options.crc, on_error="skip", limits=options.limits).open


def compare_inputs(
    a: ComparedInput | None,
    b: ComparedInput | None,
    match: Match,
    advance: Callable[[int], None],
    *,
    digests: bool = False,
) -> PartitionComparison:
    """Compare the records of two logs, as `compare_logs` does.

    Parameters
    ----------
    a, b : ComparedInput or None
        None if a side does not have the log.
    match : {"offset", "order", "key"}
    advance : callable
        Called with the size of the batches that were read.
    digests : bool
        Whether to compute digests.
    """
    side, other = (_Side(each, match, advance, digests=digests) for each in (a, b))
    return _Comparing(side, other, match).run()


class _Side:
    """The records of one log, with one table at a time in memory."""

    def __init__(
        self, given: ComparedInput | None, match: Match, advance: Callable[[int], None], *, digests: bool
    ) -> None:
        self.given = given
        self.report = None if given is None else ComparedLog(given.path)
        self._tables = iter(()) if given is None else given.tables()
        self._digest = RecordDigest() if digests else None
        self._ascending = match == "offset"
        self._advance = advance
        self._table = RecordTable._empty(COMPARED_COLUMNS)
        # The records of the table that have been taken, and the last offset of the previous tables.
        self._taken = 0
        self._reached = -1
        self._has_transactions = False

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """The offsets of the records of the table that have not been taken."""
        offsets: npt.NDArray[np.int64] = self._table.records["offset"][self._taken :]
        return offsets

    def take(self, count: int) -> RecordTable:
        """Return the next records of the table."""
        start, self._taken = self._taken, self._taken + count
        return self._table[start : self._taken]

    def peek(self, count: int) -> RecordTable:
        """Return the next records of the table without taking them."""
        return self._table[self._taken : self._taken + count]

    def extend(self) -> None:
        """Read further tables until there are enough records for a search, up to `ALIGNMENT_BYTES`."""
        parts = [self._table[self._taken :]]
        count, size = len(parts[0]), _payload_bytes(parts[0])
        if count >= ALIGNMENT_RECORDS:
            return
        # With twice the records, the next searches do not copy them again.
        while count < 2 * ALIGNMENT_RECORDS and size < ALIGNMENT_BYTES:
            table = next(self._tables, None)
            if table is None:
                break
            self._add(table)
            parts.append(table)
            count, size = count + len(table), size + _payload_bytes(table)
        if len(parts) > 1:
            self._table, self._taken = concat_tables(parts), 0

    def fill(self) -> bool:
        """Read tables until there are records that have not been taken; False at the end of the log."""
        while self._taken == len(self._table):
            # Frees the table before the next one is decoded.
            self._table, self._taken = RecordTable._empty(COMPARED_COLUMNS), 0
            table = next(self._tables, None)
            if table is None:
                self._find_open()
                return False
            self._add(table)
        return True

    def _find_open(self) -> None:
        """Find the open transactions of the log, if what was read has any transaction."""
        if self._has_transactions and self.given is not None:
            assert self.report is not None
            self.report.open_transactions = self.given.open_transactions()
            self._has_transactions = False

    def _add(self, table: RecordTable) -> None:
        assert self.report is not None
        self.report.records += len(table)
        # All tables of a log list the same transactions.
        self.report.withheld = self.report.withheld or len(table.pending)
        self.report.losses += [loss._replace(file=table.source) for loss in table.losses]
        if self._digest is not None:
            self._digest.add(record_hashes(table))
            self.report.digest = self._digest.hexdigest()
        # A batch that is split over several tables counts once.
        batches = table.batches[table.continued :]
        control = batches[are_control(batches) & BatchStatus.sound(batches["status"])]
        self.report.control_records += int(control["record_count"].sum(dtype=np.int64))
        self._has_transactions |= bool(((batches["attributes"] & ATTRIBUTE_TRANSACTIONAL) != 0).any())
        self._advance(int(batches["size"].sum()))
        offsets = table.records["offset"]
        if self._ascending and len(offsets):
            steps = np.diff(offsets, prepend=self._reached)
            if (steps <= 0).any():
                row = int(np.argmax(steps <= 0))
                before = self._reached if row == 0 else int(offsets[row - 1])
                raise LogDirectoryError(
                    f"{table.source}: offset {offsets[row]} follows offset {before}, so records cannot be paired by "
                    "offset; pair them by order",
                    source=table.source,
                )
            self._reached = int(offsets[-1])
        self._table = table


class _Comparing:
    """The comparison of two logs; one side may be missing."""

    def __init__(self, a: _Side, b: _Side, match: Match) -> None:
        self._a, self._b = a, b
        self._match = match
        given = a.given or b.given
        assert given is not None
        self._result = PartitionComparison(given.log.topic, given.log.partition, a.report, b.report)
        # By order: the maximum number of records compared at once, and the key of the digests.
        self._step = _FIRST_STEP
        self._secret = os.urandom(16)
        # The number of pairs that have been compared, and the place of the first difference.
        self._row = 0
        self._first_at: int | None = None

    def run(self) -> PartitionComparison:
        """Compare all records."""
        if self._match == "key":
            self._by_key()
            return self._result
        a, b = self._a, self._b
        # Both sides are filled, even if one of them has ended.
        while all([a.fill(), b.fill()]):
            if self._match == "offset":
                last = min(a.offsets[-1], b.offsets[-1])
                self._pair_offsets(*(side.take(int(np.searchsorted(side.offsets, last, "right"))) for side in (a, b)))
            else:
                self._pair_in_order()
        for side in (a, b):
            while side.fill():
                self._add_missing(side.take(len(side.offsets)), side is a)
        return self._result

    def _pair_in_order(self) -> None:
        """Compare the next records up to a difference, and then skip to the next record that both sides have."""
        a, b = self._a, self._b
        count = min(len(a.offsets), len(b.offsets), self._step)
        self._step *= 2
        masks = differing_rows(a.peek(count), b.peek(count))
        # Mirrored records may have other timestamps.
        apart = np.flatnonzero(masks["key"] | masks["value"] | masks["headers"])
        same = int(apart[0]) if len(apart) else count
        self._compare(a.take(same), b.take(same))
        if same == count:
            return
        a.extend()
        b.extend()
        skipped = resume_point(a.peek(ALIGNMENT_RECORDS), b.peek(ALIGNMENT_RECORDS), self._secret)
        pairs = min(skipped)
        self._compare(a.take(pairs), b.take(pairs))
        self._add_missing(a.take(skipped[0] - pairs), True)
        self._add_missing(b.take(skipped[1] - pairs), False)
        # The comparison of records that are compared again after a difference must not cost more than the skipped ones.
        self._step = max(_FIRST_STEP, 2 * pairs)

    def _pair_offsets(self, a: RecordTable, b: RecordTable) -> None:
        """Compare the records of an interval of offsets."""
        offsets, others = a.records["offset"], b.records["offset"]
        if np.array_equal(offsets, others):
            self._compare(a, b)
            return
        _, rows, other_rows = np.intersect1d(offsets, others, assume_unique=True, return_indices=True)
        self._compare(a[rows], b[other_rows])
        self._add_missing(a[_rows_except(rows, len(a))], True)
        self._add_missing(b[_rows_except(other_rows, len(b))], False)

    def _add_missing(self, part: RecordTable, is_a: bool) -> None:
        """Count the records that the other side does not have."""
        if not len(part):
            return
        if is_a:
            self._result.only_a += len(part)
        else:
            self._result.only_b += len(part)
        if self._is_first(at := self._place(part, 0)):
            record = _record(part, 0)
            self._set_first(at, Difference(record if is_a else None, None if is_a else record))

    def _compare(self, a: RecordTable, b: RecordTable) -> None:
        """Compare the records of two tables row by row."""
        masks = differing_rows(a, b)
        differing = self._count(masks, len(a))
        if len(differing) and self._is_first(at := self._place(a, int(differing[0]))):
            row = int(differing[0])
            fields = tuple(name for name, mask in masks.items() if mask[row])
            self._set_first(at, Difference(_record(a, row), _record(b, row), fields))
        self._row += len(a)

    def _count(self, masks: dict[str, npt.NDArray[np.bool_]], pairs: int) -> npt.NDArray[np.intp]:
        """Count equal and different pairs; return the rows of the different ones."""
        differing = np.flatnonzero(np.logical_or.reduce(list(masks.values())))
        self._result.different += len(differing)
        self._result.matching += pairs - len(differing)
        totals = {name: self._result.fields.get(name, 0) + int(np.count_nonzero(mask)) for name, mask in masks.items()}
        self._result.fields = {name: total for name, total in totals.items() if total}
        return differing

    def _place(self, table: RecordTable, row: int) -> int:
        """Return what orders the differences: the offset, or the number of records before this one."""
        return self._row + row if self._match == "order" else int(table.records["offset"][row])

    def _is_first(self, at: int) -> bool:
        return self._first_at is None or at < self._first_at

    def _set_first(self, at: int, difference: Difference) -> None:
        self._first_at = at
        self._result.first = replace(difference, row=at) if self._match == "order" else difference

    def _by_key(self) -> None:
        """Compare the last record of each key, by digests."""
        result, secret = self._result, os.urandom(16)
        sides = []
        for side in (self._a, self._b):
            latest = LatestRecords(secret)
            while side.fill():
                keyless = latest.add(side.take(len(side.offsets)))
                assert side.report is not None
                side.report.keyless += keyless
            sides.append(latest.present())
        left, right = sides
        rows, other_rows = common_keys(left, right)
        masks = left.differing(rows, right, other_rows)
        differing = self._count(masks, len(rows))
        only_a, only_b = _rows_except(rows, len(left)), _rows_except(other_rows, len(right))
        result.only_a, result.only_b = len(only_a), len(only_b)
        # Offsets of both sides are unrelated, so the order of `a` decides.
        first_a = np.concatenate([left.offsets[rows[differing]], left.offsets[only_a]])
        if len(first_a):
            at = int(first_a.min())
            pair = np.flatnonzero(left.offsets[rows] == at)
            other = _record_at(self._b, int(right.offsets[other_rows[pair[0]]])) if len(pair) else None
            fields = tuple(name for name, mask in masks.items() if len(pair) and mask[pair[0]])
            result.first = Difference(_record_at(self._a, at), other, fields)
        elif len(only_b):
            result.first = Difference(None, _record_at(self._b, int(right.offsets[only_b].min())))


def _payload_bytes(table: RecordTable) -> int:
    records = table.records
    return int(np.maximum(records["key_len"], 0).sum() + np.maximum(records["value_len"], 0).sum(dtype=np.int64))


def _rows_except(rows: npt.NDArray[np.intp], count: int) -> npt.NDArray[np.intp]:
    """Return the numbers below `count` that are not among `rows`, ascending."""
    others = np.ones(count, np.bool_)
    others[rows] = False
    return np.flatnonzero(others)


def _record(table: RecordTable, row: int) -> ComparedRecord:
    timestamp = int(table.records["timestamp"][row])
    return ComparedRecord(
        int(table.records["offset"][row]),
        None if timestamp == NO_TIMESTAMP else timestamp,
        table.key(row),
        table.value(row),
        table.headers_of(row),
    )


def _record_at(side: _Side, offset: int) -> ComparedRecord | None:
    """Read the record at an offset again; the last one if the log has several."""
    assert side.given is not None
    found = None
    for table in side.given.tables_at(offset):
        if len(table):
            found = _record(table, len(table) - 1)
    return found


def resume_point(a: RecordTable, b: RecordTable, secret: bytes) -> tuple[int, int]:
    """Return the number of records of each table before the next record that both have.

    Of several such records, the one with the fewest records before it is chosen. Records are the same if key, value and
    headers are equal. Without one among the first `ALIGNMENT_RECORDS`, these are all skipped.
    """
    count = _FIRST_SEARCH
    while True:
        count = min(count, ALIGNMENT_RECORDS)
        left, right = (_digests(table[:count], secret) for table in (a, b))
        # The rows are the first ones with each digest.
        _, rows, other_rows = np.intersect1d(left, right, return_indices=True)
        if len(rows):
            cost = 2 * (rows + other_rows) + (rows != other_rows)
            best = int(np.argmin(cost))
            return int(rows[best]), int(other_rows[best])
        if count == ALIGNMENT_RECORDS or count >= max(len(a), len(b)):
            both = min(len(a), len(b), ALIGNMENT_RECORDS)
            return both, both
        count *= 4


def _digests(table: RecordTable, secret: bytes) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Return a digest of key, value and headers of each record, as one item."""
    digests = record_digests(table, secret)
    # Null and empty have different digests.
    digests[:, DIGEST_WORDS["timestamp"]] = 0
    words = np.ascontiguousarray(np.concatenate([key_digests(table, secret), digests], axis=1))
    rows: np.ndarray[tuple[int], np.dtype[np.void]] = words.view(np.dtype((np.void, words.shape[1] * 8))).reshape(-1)
    return rows
