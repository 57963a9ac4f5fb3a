"""No result changes unnoticed: digests of what an earlier release gave, see `digests`."""

from __future__ import annotations

import os
from pathlib import Path

import digests
import pytest

# A sample in the ordinary test run; KBATCH_TEST_ALL=1 takes every case, which is some 20 minutes.
PARTS: list[int | None] = list(range(digests.ROTATIONS)) if os.environ.get("KBATCH_TEST_ALL") == "1" else [None]
HOW_TO = (
    "results have changed; `python tests/digests.py --compare PYTHON GROUP` prints the cases, where PYTHON is the "
    "interpreter of a checkout that has the committed results, and --accept REASON lists those that are intended"
)


def test_what_is_read_is_as_before(tmp_path: Path) -> None:
    """Rows, losses and errors of `decode` and `Log.tables` over damaged and cut input, under all options."""
    expected = digests.load("digests.json")
    groups = digests.reading_groups(tmp_path, PARTS)
    different = [
        group for group, cases in groups if digests.digest_of_group(digests.digests_of(group, cases)) != expected[group]
    ]
    assert different == [], HOW_TO


def test_a_stream_is_what_decode_makes_of_the_whole() -> None:
    """Wherever it is cut and flushed; ``streams.json`` lists the cases for which this doesn't hold yet."""
    listed = digests.load("streams.json")
    different = {}
    for group, cases in digests.stream_groups(PARTS):
        unlisted = set(digests.differing_streams(cases)) - set(listed.get(group, ()))
        if unlisted:
            different[group] = sorted(unlisted)
    assert different == {}


@pytest.mark.parametrize("change", digests.load("changes.json") or [None])
def test_intended_changes_have_a_reason(change: dict[str, str] | None) -> None:
    assert change is None or (change["reason"] and change["before"] != change["after"])
