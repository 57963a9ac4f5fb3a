"""bytes --scan--> batches: headers only, nothing decoded and no CRC."""

from __future__ import annotations

import pytest

import kbatch
from bench.conftest import Measure, contests
from bench.corpora import corpus
from bench.peers import Peer

NAMES = ["small", "medium", "single"]


@pytest.mark.parametrize("name", NAMES)
def test_kbatch(name: str, measure: Measure) -> None:
    what = corpus(name)
    batches = measure("scan", what, "kbatch", lambda: kbatch.scan(what.data))
    assert len(batches) == what.batches
    assert int(batches["record_count"].sum()) == what.sums.records
    assert int(batches["size"].sum()) == len(what.data)


@pytest.mark.parametrize(("name", "peer"), contests(NAMES, NAMES))
def test_peer(name: str, peer: Peer, measure: Measure) -> None:
    what = corpus(name)
    assert measure("scan", what, peer.name, lambda: peer.walk(what.data)) == what.batches
