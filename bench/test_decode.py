"""batches --> records, uncompressed if of magic 2, CRC checked: kbatch into its table, peers by bare iteration.

Beside kbatch, in turns with it, what no decode that checks them can be faster than: the CRC-32C of the same bytes in
one call, and a copy of them into memory that was touched before.
"""

from __future__ import annotations

import crc32c
import numpy as np
import pytest

import kbatch
from bench.conftest import Measure, Rotation, contests
from bench.corpora import CORPORA, Sums, corpus
from bench.peers import Peer
from bench.results import COPY, CRC

NAMES = ["small", "medium", "medium-16k", "medium-1m", "large", "headers", "single", "million"]
# Magic 0 and 1. No peer reads lz4 in magic 0: aiokafka refuses it, kafka-python wants a further package for it.
LEGACY = [name for name, recipe in CORPORA.items() if recipe.magic < 2]
LEGACY_OF_PEERS = [name for name in LEGACY if not name.endswith("v0-lz4")]


@pytest.mark.parametrize("name", NAMES)
def test_kbatch(name: str, rotation: Rotation[kbatch.RecordTable]) -> None:
    what = corpus(name)
    source = np.frombuffer(what.data, np.uint8)
    target = source.copy()
    limits = {CRC: lambda: crc32c.crc32c(what.data), COPY: lambda: np.copyto(target, source)}
    table = rotation("decode", what, "kbatch", lambda: kbatch.decode(what.data), limits)
    assert Sums.of_table(table) == what.sums
    assert table.consumed == len(what.data)


@pytest.mark.parametrize("name", LEGACY)
def test_kbatch_legacy(name: str, measure: Measure) -> None:
    what = corpus(name)
    table = measure("decode", what, "kbatch", lambda: kbatch.decode(what.data))
    assert Sums.of_table(table) == what.sums
    assert table.consumed == len(what.data)


@pytest.mark.parametrize(
    ("name", "peer"),
    contests(
        [*NAMES, *LEGACY_OF_PEERS],
        ["small", "medium", "large", "headers", "small-v1"],
    ),
)
def test_peer(name: str, peer: Peer, measure: Measure) -> None:
    what = corpus(name)
    measure("decode", what, peer.name, lambda: peer.iterate(what.data))
    assert peer.sums(what.data) == what.sums
