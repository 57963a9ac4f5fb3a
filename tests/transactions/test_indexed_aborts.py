"""Aborted ranges at their bounds, and lost ABORT markers that a ``.txnindex`` lists."""

from __future__ import annotations

import numpy as np
import pytest
from transaction_logs import txn

from kbatch import BATCH_DTYPE
from kbatch.batches.framing import byte_array, scan_part
from kbatch.format import INT64_MAX, NO_TIMESTAMP
from kbatch.transactions import AbortedRanges, TransactionTracker
from kbatch.transactions.events import EVENT_DTYPE, INDEXED_ABORT


@pytest.mark.parametrize(
    ("first", "last", "outcome"),
    [(5, 10, "open"), (5, 11, "aborted"), (10, 11, "aborted"), (11, 12, "undecided"), (11, 20, "undecided")],
)
def test_a_listed_marker_ends_a_transaction_that_began_before_it_txi_r1(first: int, last: int, outcome: str) -> None:
    """A marker has its own offset, after the first one of its transaction. An earlier transaction lost its marker."""
    data = byte_array(txn(10, 7))
    tracker = TransactionTracker()
    tracker.add(data, scan_part(data).batches, 0)
    entries = [(producer, first, last, NO_TIMESTAMP, INDEXED_ABORT, INT64_MAX) for producer in (8, 7)]
    tracker.replay(np.array(entries, EVENT_DTYPE))
    result = tracker.result()
    found = {
        "open": [each.producer_id for each in result.open],
        "aborted": result.aborted["producer_id"].tolist(),
        "undecided": result.undecided["producer_id"].tolist(),
    }
    assert found == {"open": [], "aborted": [], "undecided": []} | {outcome: [7]}


def test_a_range_that_ends_with_another_one_is_removed() -> None:
    """Ranges within others are removed, also if both end at the same offset."""
    ranges = AbortedRanges([7, 7, 7, 8], [0, 5, 5, 5], [9, 9, 9, 9])
    assert (ranges.producer_id.tolist(), ranges.first.tolist()) == ([7, 8], [0, 5])
    longer = AbortedRanges([7, 7], [0, 5], [9, 10])
    assert longer.last.tolist() == [9, 10]


@pytest.mark.parametrize(("offsets", "aborted"), [((4, 4), False), ((4, 5), True), ((9, 12), True), ((10, 12), False)])
def test_both_ends_of_a_range_belong_to_it_txn_r2(offsets: tuple[int, int], aborted: bool) -> None:
    """A batch is aborted if it overlaps a range of its producer."""
    rows = np.zeros(1, BATCH_DTYPE)
    rows["magic"], rows["attributes"], rows["producer_id"] = 2, 0x10, 0
    rows["base_offset"], rows["last_offset"] = offsets
    ranges = AbortedRanges([0], [5], [9])
    assert ranges.mask(rows).tolist() == [aborted]
    assert len(ranges.within(offsets[0], offsets[1] + 1)) == aborted
    rows["magic"] = 1
    assert ranges.mask(rows).tolist() == [False]


def test_columns_of_a_smaller_or_larger_length_are_refused() -> None:
    for columns in (([1, 2], [0], [0]), ([1], [0, 1], [0]), ([1], [0], [0, 1]), ([1, 2], [0, 1], [0])):
        with pytest.raises(ValueError, match="of one length"):
            AbortedRanges(*columns)


def batches_at(offsets: list[int]) -> np.ndarray:
    """Make rows of batches with these offsets, which are also their positions."""
    rows = np.zeros(len(offsets), BATCH_DTYPE)
    rows["magic"] = 2
    rows["base_offset"] = rows["last_offset"] = rows["position"] = offsets
    return rows


def test_numbers_at_the_limits_of_int64_are_accepted() -> None:
    limit = 2**63 - 1
    ranges = AbortedRanges.from_list([(limit, -limit - 1), (0, limit)], batches_at([1, limit]), ([limit], [limit]))
    assert ranges.producer_id.tolist() == [0, limit]
    assert (ranges.first.tolist(), ranges.last.tolist()) == ([limit, 1], [limit, limit])
    for entry in ((limit + 1, 0), (0, -limit - 2)):
        with pytest.raises(ValueError, match="exceeds int64"):
            AbortedRanges.from_list([entry], batches_at([]), ([], []))


def test_entries_end_at_the_first_marker_at_or_after_their_first_offset_txn_r2() -> None:
    """The markers of other producers and earlier ones do not count."""
    markers = ([7, 8, 7, 7, 6], [9, 12, 20, 25, 30])
    batches = batches_at(list(range(8, 31)))
    for first, last in ((8, 9), (9, 9), (10, 20), (20, 20), (21, 25), (26, 2**63 - 1)):
        ranges = AbortedRanges.from_list([(7, first)], batches, markers)
        assert (ranges.first.tolist(), ranges.last.tolist()) == ([first], [last])


def test_entries_that_no_batch_reaches_have_no_effect_txn_r7() -> None:
    assert len(AbortedRanges.from_list([(7, 31)], batches_at([29, 30]), ([7], [30]))) == 0
