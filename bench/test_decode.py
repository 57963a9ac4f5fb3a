"""Bytes to records with verified CRCs: kbatch decodes into its table, peers iterate, and codec libraries decompress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kbatch
from bench.conftest import Contest, each_peer
from bench.corpora import COMPRESSED, DECODED, Sums, corpus, payloads
from bench.libraries import decompress
from bench.peers import PEERS
from bench.results import ALONE

# kafka-python takes seconds for a round of these.
NOT_BY_SLOW_PEERS = ["single", "ten"]


@pytest.mark.parametrize("name", DECODED)
def test_decode(name: str, contest: Contest) -> None:
    what = corpus(name)
    alone: dict[str, Callable[[], Any]] = {}
    if name in COMPRESSED:
        stored = payloads(what.data)
        assert decompress(what.codec, stored) == what.payload_bytes
        alone[ALONE] = lambda: decompress(what.codec, stored)
    peers = each_peer(lambda peer: peer.iterate(what.data), slow=name not in NOT_BY_SLOW_PEERS)
    table = contest("decode", what, lambda: kbatch.decode(what.data), others=alone, peers=peers)
    assert Sums.of_table(table) == what.sums
    assert table.consumed == len(what.data)
    assert all(peer.sums(what.data) == what.sums for peer in PEERS if peer.name in peers)
