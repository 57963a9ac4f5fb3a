"""The public names change only on purpose: `public_api` describes how to list an intended change."""

from __future__ import annotations

import public_api
import pytest

HOW_TO = (
    "the public names have changed; if intended, list it: python tests/support/public_api.py --accept 'P0: the reason'"
)


def test_public_names_equal_the_last_release_plus_listed_changes() -> None:
    pytest.importorskip("pyspark")
    listed = public_api.changes()
    assert set(listed) == public_api.difference(), HOW_TO
    assert all(listed.values())
