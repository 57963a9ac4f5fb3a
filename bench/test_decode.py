"""batches --> records, uncompressed if of magic 2, CRC checked: kbatch into its table, peers by bare iteration.

Beside kbatch, in turns with it, what no decode that checks them can be faster than: the CRC-32C of the same bytes in
one call, and a copy of them into memory that was touched before.
"""

from __future__ import annotations

import crc32c
import numpy as np
import pytest

import kbatch
from bench.conftest import Rotation, beside
from bench.corpora import CORPORA, Sums, corpus
from bench.peers import PEERS
from bench.results import COPY, CRC

NAMES = ["small", "medium", "medium-16k", "medium-1m", "large", "headers", "single", "million"]
# Magic 0 and 1. No peer reads lz4 in magic 0: aiokafka refuses it, kafka-python wants a further package for it.
LEGACY = [name for name, recipe in CORPORA.items() if recipe.magic < 2]
UNREAD = [name for name in LEGACY if name.endswith("v0-lz4")]
SLOW = ["small", "medium", "large", "headers", "small-v1"]


@pytest.mark.parametrize("name", [*NAMES, *LEGACY])
def test_decode(name: str, rotation: Rotation) -> None:
    what = corpus(name)
    source = np.frombuffer(what.data, np.uint8)
    target = source.copy()
    limits = {CRC: lambda: crc32c.crc32c(what.data), COPY: lambda: np.copyto(target, source)} if name in NAMES else {}
    peers = beside(lambda peer: peer.iterate(what.data), slow=name in SLOW) if name not in UNREAD else {}
    table = rotation("decode", what, "kbatch", lambda: kbatch.decode(what.data), limits, peers)
    assert Sums.of_table(table) == what.sums
    assert table.consumed == len(what.data)
    assert all(peer.sums(what.data) == what.sums for peer in PEERS if peer.name in peers)
