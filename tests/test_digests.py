"""Results equal the digests of the results of an earlier release, see `digests`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import digests
import pytest
from tables import short_inputs
from written import writing_groups

# A sample in the ordinary test run; KBATCH_TEST_ALL=1 runs every case, 1.5 million of them.
PARTS: list[int | None] = [None, *range(digests.ROTATIONS)] if os.environ.get("KBATCH_TEST_ALL") == "1" else [None]
each_part = pytest.mark.parametrize("part", PARTS)
HOW_TO = (
    "results have changed; `python tests/support/digests.py --compare PYTHON GROUP` prints the cases, where PYTHON is "
    "the interpreter of a checkout that has the committed results, and --accept REASON lists the changes as intended"
)


def assert_as_before(groups: Iterable[digests.Group]) -> None:
    expected = digests.committed()
    different = [
        group
        for group, cases in groups
        if group in expected and digests.digest_of_group(digests.digests_of(group, cases)) != expected[group]
    ]
    assert different == [], HOW_TO


@short_inputs
@each_part
def test_decoded_results_are_unchanged(tmp_path: Path, part: int | None) -> None:
    """Rows, losses and errors of `decode` and `Log.tables` over damaged and cut input, under all options."""
    assert_as_before(digests.reading_groups(tmp_path, [part]))


# `writing_groups` has only two groups of each kind: a sample, and all cases with the first rotation.
@pytest.mark.parametrize("part", PARTS[:2])
def test_written_results_are_unchanged(tmp_path: Path, part: int | None) -> None:
    """Bytes of `encode`, conversion, recompression and compaction, and the decoded records."""
    assert_as_before(writing_groups(tmp_path, [part]))


@short_inputs
@each_part
def test_a_stream_has_the_result_of_decode(part: int | None) -> None:
    """The rule holds for any chunks and flushes, except for the cases of the sample in ``streams.json``."""
    listed = digests.load("streams.json")
    different = {}
    for group, cases in digests.stream_groups([part]):
        unlisted = set(digests.differing_streams(cases)) - set(listed.get(group, ()))
        if unlisted:
            different[group] = sorted(unlisted)
    assert different == {}


def test_every_group_has_a_digest(tmp_path: Path) -> None:
    expected = digests.load("digests.json")
    assert {group for group, _ in digests.frozen_groups(tmp_path, PARTS)} <= set(expected)


def test_intended_changes_have_a_reason() -> None:
    for change in digests.changes().values():
        assert change.reason
        assert change.before != change.after
