"""`AbortedRanges`: the mask of aborted batches, ranges within offsets, and lists of aborted transactions."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import CONTROL, INT64_MAX

from kbatch.format import ABORTED_DTYPE, BATCH_DTYPE
from kbatch.transactions import AbortedRanges, Transactions

INT64_MIN = -INT64_MAX - 1


def rows_of(batches: Sequence[tuple[int, int, int]], attributes: int = 0x10) -> np.ndarray:
    """Make batch rows of (producer id, first offset, last offset delta)."""
    rows = np.zeros(len(batches), BATCH_DTYPE)
    rows["magic"] = 2
    rows["attributes"] = attributes
    for i, (pid, base, delta) in enumerate(batches):
        rows["producer_id"][i], rows["base_offset"][i], rows["last_offset"][i] = pid, base, base + delta
    return rows


offsets = st.integers(-3, 30) | st.sampled_from([INT64_MIN, INT64_MAX, INT64_MAX - 1])
producers = st.sampled_from([-1, 0, 1, 5, INT64_MAX])
some_ranges = st.lists(st.tuples(producers, offsets, offsets), max_size=8)
some_batches = st.lists(st.tuples(producers, st.integers(-3, 30), st.integers(-2, 6)), max_size=12)


def literal(ranges: Sequence[tuple[int, int, int]], batches: Sequence[tuple[int, int, int]]) -> list[bool]:
    return [
        pid >= 0 and any(p == pid and first <= base + delta and base <= last for p, first, last in ranges)
        for pid, base, delta in batches
    ]


def columns(ranges: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    return [[r[i] for r in ranges] for i in range(3)]


@given(some_ranges, some_batches)
def test_the_mask_equals_a_slow_loop(ranges: list[tuple[int, int, int]], batches: list[tuple[int, int, int]]) -> None:
    """Overlapping, repeated and empty ranges in any order; batches with non-monotonic offsets."""
    made = AbortedRanges(*columns(ranges))
    expected = literal(ranges, batches)
    assert made.mask(rows_of(batches)).tolist() == expected
    assert len(made) <= len(ranges)
    again = pickle.loads(pickle.dumps(made))
    assert again.mask(rows_of(batches)).tolist() == expected
    for attributes in (0, CONTROL, CONTROL | 0x10):
        assert not made.mask(rows_of(batches, attributes)).any()
    assert made.mask(rows_of(batches, 0x10 | 0x4B)).tolist() == expected


@given(some_ranges, some_batches, st.integers(-3, 30), st.integers(-3, 30))
def test_within_keeps_the_mask_of_batches_inside_the_offsets(
    ranges: list[tuple[int, int, int]], batches: list[tuple[int, int, int]], start: int, stop: int
) -> None:
    """`within` keeps only the ranges that overlap the offsets; the mask of batches inside them does not change."""
    made = AbortedRanges(*columns(ranges))
    part = made.within(start, stop)
    inside = [(pid, base, delta) for pid, base, delta in batches if start <= base <= base + delta < stop]
    assert part.mask(rows_of(inside)).tolist() == literal(ranges, inside)
    assert len(part) <= len(made)
    assert (part.first < stop).all()
    assert (part.last >= start).all()


def test_within_covers_batches_across_its_ends() -> None:
    ranges = AbortedRanges([7, 7, 8], [0, 10, 12], [9, 19, 14])
    batches = rows_of([(7, 0, 8), (7, 10, 8), (8, 12, 1)])
    assert ranges.within(5, 11).mask(batches[:2]).tolist() == [True, True]
    assert len(ranges.within(20, 100)) == 0
    assert len(ranges.within(11, 13)) == 2


def test_ranges_are_sorted_and_read_only() -> None:
    ranges = AbortedRanges([8, 7, 7, 7, 7], [0, 20, 0, 5, 0], [3, 30, 9, 6, 9])
    assert ranges.producer_id.tolist() == [7, 7, 8]
    assert ranges.first.tolist() == [0, 20, 0]
    assert ranges.last.tolist() == [9, 30, 3]
    assert repr(ranges) == "<AbortedRanges: 3 ranges of 2 producers>"
    with pytest.raises(ValueError, match="read-only"):
        ranges.last[0] = 1


def test_empty_ranges_abort_no_batch() -> None:
    nothing = Transactions(np.empty(0, ABORTED_DTYPE), [], None)
    assert nothing._withheld_of_log().segments == {}
    for ranges in (
        AbortedRanges([], [], []),
        AbortedRanges.from_list([], rows_of([(7, 1, 0)]), ([7], [1])),
        nothing._withheld().aborted,
    ):
        assert len(ranges) == len(ranges.within(0, 10)) == 0
        assert ranges.mask(rows_of([(7, 0, 1)])).tolist() == [False]
        assert ranges.mask(rows_of([])).tolist() == []


def test_columns_of_unequal_length_are_rejected() -> None:
    with pytest.raises(ValueError, match="one length"):
        AbortedRanges([7], [0, 1], [2])
    with pytest.raises(ValueError, match="one-dimensional"):
        AbortedRanges([[7]], [[0]], [[2]])


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        (7, TypeError),
        (None, TypeError),
        ("ab", TypeError),
        ((7, 1.0), TypeError),
        ((7, None), TypeError),
        (("7", "0"), TypeError),
        ((7,), ValueError),
        ((7, 0, 1), ValueError),
        ((), ValueError),
        ((7, 1 << 63), ValueError),
        ((-(1 << 63) - 1, 0), ValueError),
    ],
)
def test_errors_name_the_invalid_entry(entry: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="entry 1 "):
        AbortedRanges.from_list([(7, 0), entry], rows_of([]), ([], []))


def test_entries_may_be_any_integer_type() -> None:
    listed: list[Any] = [[7, 0], (np.int64(8), np.int32(3)), np.array([9, 4])]
    batches = rows_of([(7, 0, 0), (8, 3, 0), (9, 4, 0), (8, 5, 0)])
    batches["position"] = [10, 20, 30, 40]
    ranges = AbortedRanges.from_list(iter(listed), batches, (np.array([8]), [40]))
    assert ranges.producer_id.tolist() == [7, 8, 9]
    assert ranges.first.tolist() == [10, 20, 30]
    assert ranges.last.tolist() == [INT64_MAX, 40, INT64_MAX]


@given(some_ranges, some_batches, st.integers(-3, 30), st.integers(-3, 30))
def test_ranges_of_positions_within_a_segment_count_from_its_beginning(
    ranges: list[tuple[int, int, int]], batches: list[tuple[int, int, int]], start: int, stop: int
) -> None:
    """Offsets do not matter for ranges by position, and a part of them has the mask of the whole."""
    made = AbortedRanges(*columns(ranges), by="position")
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert hash(again) == hash(made) != hash(AbortedRanges(*columns(ranges)))
    rows = rows_of(batches)
    rows["position"] = rows["base_offset"]
    rows["base_offset"] = rows["last_offset"] = 5
    expected = literal(ranges, [(pid, base, 0) for pid, base, _ in batches])
    assert again.mask(rows).tolist() == expected
    inside = (start <= rows["position"]) & (rows["position"] < stop)
    part = rows[inside]
    part["position"] -= start
    assert made.within(start, stop, from_start=True).mask(part).tolist() == np.array(expected, bool)[inside].tolist()
