"""batches --> records, uncompressed if of magic 2, CRC checked: kbatch into its table, peers by bare iteration."""

from __future__ import annotations

import crc32c
import numpy as np
import pytest

import kbatch
from bench.conftest import Measure, contests
from bench.corpora import CORPORA, Sums, corpus
from bench.peers import Peer

NAMES = ["small", "medium", "medium-16k", "medium-1m", "large", "headers", "single"]
# Magic 0 and 1. No peer reads lz4 in magic 0: aiokafka refuses it, kafka-python wants a further package for it.
LEGACY = [name for name, recipe in CORPORA.items() if recipe.magic < 2]
LEGACY_OF_PEERS = [name for name in LEGACY if not name.endswith("v0-lz4")]


@pytest.mark.parametrize("name", [*NAMES, *LEGACY])
def test_kbatch(name: str, measure: Measure) -> None:
    what = corpus(name)
    table = measure("decode", what, "kbatch", lambda: kbatch.decode(what.data))
    assert Sums.of_table(table) == what.sums
    assert table.consumed == len(what.data)


@pytest.mark.parametrize(
    ("name", "peer"),
    contests([*NAMES, *LEGACY_OF_PEERS], ["small", "medium", "large", "headers", "small-v1", "medium-v1"]),
)
def test_peer(name: str, peer: Peer, measure: Measure) -> None:
    what = corpus(name)
    measure("decode", what, peer.name, lambda: peer.iterate(what.data))
    assert peer.sums(what.data) == what.sums


@pytest.mark.parametrize("name", NAMES)
def test_limit_crc(name: str, measure: Measure) -> None:
    """CRC-32C of the same bytes in one call: what no decode that checks them can be faster than."""
    what = corpus(name)
    assert measure("decode", what, "CRC-32C alone", lambda: crc32c.crc32c(what.data)) == crc32c.crc32c(what.data)


@pytest.mark.parametrize("name", NAMES)
def test_limit_copy(name: str, measure: Measure) -> None:
    """Copy of the same bytes into memory that was touched before."""
    what = corpus(name)
    source = np.frombuffer(what.data, np.uint8)
    target = source.copy()
    measure("decode", what, "memcpy alone", lambda: np.copyto(target, source))
    assert target.tobytes() == what.data
