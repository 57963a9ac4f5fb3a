"""Sums in buckets equal those of the numbers, whatever their order and range."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kbatch.log.check.statistics import Distribution
from kbatch.report.buckets import OFFSET_WIDTHS, TIME_WIDTHS, Buckets
from kbatch.report.producer_sums import ProducerSums
from kbatch.report.scales import format_width, number_scale, size_scale, time_ticks

INT64 = np.iinfo(np.int64)


@pytest.mark.parametrize("widths", [TIME_WIDTHS, OFFSET_WIDTHS])
@pytest.mark.parametrize("seed", range(6))
def test_sums_are_those_of_the_numbers_of_each_bucket(widths: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    buckets = Buckets(widths, 1, limit=16)
    numbers = np.concatenate([rng.integers(0, 10 ** rng.integers(1, 18), 50), [INT64.max, INT64.min, -1, 0]])
    weights = rng.integers(0, 1000, len(numbers)).astype(np.float64)
    for part in np.array_split(rng.permutation(len(numbers)), 7):
        buckets.add(numbers[part], weights[part])
    assert len(buckets) <= 16
    found = dict(zip(buckets.ids.tolist(), buckets.sums.tolist(), strict=True))
    expected: dict[int, list[float]] = {}
    for number, weight in zip(numbers.tolist(), weights.tolist(), strict=True):
        sums = expected.setdefault(number // buckets.width, [0.0, 0.0])
        sums[0] += 1
        sums[1] += weight
    assert found == expected


@pytest.mark.parametrize("number", [INT64.max, INT64.min, -1, 0])
def test_a_number_at_the_end_of_the_range_has_its_bucket(number: int) -> None:
    buckets = Buckets(TIME_WIDTHS, 0)
    buckets.add(np.array([number, number]))
    assert (buckets.ids.dtype, buckets.ids.tolist(), buckets.sums.tolist()) == (np.int64, [number], [[2.0]])
    buckets.widen(TIME_WIDTHS[-1])
    assert buckets.ids.tolist() == [number // TIME_WIDTHS[-1]]


def test_buckets_of_several_logs_are_joined() -> None:
    one, other = Buckets((1, 10, 100), 0, limit=2), Buckets((1, 10, 100), 0, limit=100)
    one.add(np.array([5, 25, 26]))
    other.add(np.array([7, 17, 150]))
    one.merge(other)
    assert (one.width, one.ids.tolist(), one.sums[:, 0].tolist()) == (100, [0, 1], [5.0, 1.0])
    # The other one is unchanged.
    assert (other.width, len(other)) == (1, 3)


def test_each_width_is_a_multiple_of_the_one_before_and_has_a_name() -> None:
    for widths in (TIME_WIDTHS, OFFSET_WIDTHS):
        assert all(after % before == 0 for before, after in itertools.pairwise(widths))
    names = [format_width(width) for width in TIME_WIDTHS]
    assert len(set(names)) == len(names)
    assert names[3] == "second"
    assert names[-1].endswith(" years")


def test_distributions_count_what_is_below_a_limit() -> None:
    rng = np.random.default_rng(2)
    numbers, more = rng.integers(0, 5000, 1000), rng.integers(0, 1 << 30, 1000)
    found, other = Distribution(), Distribution()
    found.add(numbers)
    other.add(more)
    found.merge(other)
    limits = np.array([0, 1, 100, 4096, 1 << 20, 1 << 40])
    both = np.concatenate([numbers, more])
    assert found.below(limits).tolist() == [int((both < limit).sum()) for limit in limits]
    assert (found.count, found.total, found.largest) == (2000, int(both.sum()), int(both.max()))


def test_producers_with_the_most_bytes_are_kept() -> None:
    sums = ProducerSums()
    dtype = [("magic", "i1"), ("producer_id", "<i8"), ("attributes", "<i2"), ("size", "<i4"), ("producer_epoch", "<i2")]
    for start in range(0, 20_000, 1000):
        batches = np.zeros(1000, dtype)
        batches["magic"], batches["producer_id"] = 2, np.arange(start, start + 1000)
        batches["size"] = 100 + (batches["producer_id"] == 777) * 5000
        sums.add(batches, np.ones(1000, np.int64))
    assert len(sums.ids) <= 4096
    assert not sums.is_complete
    assert sums.sums[sums.ids == 777].tolist() == [[1, 1, 5100, 0]]


@pytest.mark.parametrize("most", [0, 1, 2.5, 999, 10**9])
def test_scales_reach_the_largest_number_with_few_ticks(most: float) -> None:
    for scale in (number_scale(most), size_scale(most)):
        assert scale[0][0] == 0
        assert scale[-1][0] >= most
        assert 2 <= len(scale) <= 5


@pytest.mark.parametrize("span", [1, 999, 60_000, 86_400_000, 5 * 86_400_000, 3 * 10**11, 10**17])
def test_ticks_of_times_are_within_the_axis(span: int) -> None:
    ticks = time_ticks(1_772_409_600_123, 1_772_409_600_123 + span)
    assert len(ticks) <= 6
    assert all(0 <= place <= 1 for place, _ in ticks)
    assert len({text for _, text in ticks}) == len(ticks)
