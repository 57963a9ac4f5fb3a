"""bytes --scan--> batches: headers only, nothing decoded and no CRC."""

from __future__ import annotations

import pytest

import kbatch
from bench.conftest import Rotation, beside
from bench.corpora import corpus

NAMES = ["small", "medium", "single"]


@pytest.mark.parametrize("name", NAMES)
def test_scan(name: str, rotation: Rotation) -> None:
    what = corpus(name)
    peers = beside(lambda peer: peer.walk(what.data))

    def check(count: int) -> None:
        assert count == what.batches

    batches = rotation("scan", what, "kbatch", lambda: kbatch.scan(what.data), peers=peers, check=check)
    assert len(batches) == what.batches
    assert int(batches["record_count"].sum()) == what.sums.records
    assert int(batches["size"].sum()) == len(what.data)
