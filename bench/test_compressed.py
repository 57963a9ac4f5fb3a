"""batches --codecs--> payload --> records: the whole decode, in turns with decompressing the same payloads alone.

"Alone" is a plain loop over the payloads, once for each way of `libraries.WAYS`. "Kept" holds on to all plain payloads,
as a table does: this is what the floor is about, whichever library is the fastest. "Dropped" does nothing with them and
so writes to the same few warm kilobytes again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import kbatch
from bench.conftest import Rotation, beside
from bench.corpora import CODECS, Sums, corpus, payloads
from bench.libraries import WAYS
from bench.peers import PEERS
from bench.results import DROPPED, KEPT

NAMES = [f"medium-{size}-{codec}" for codec in CODECS if codec != "none" for size in ("16k", "1m")]


@pytest.mark.parametrize("name", NAMES)
def test_compressed(name: str, rotation: Rotation) -> None:
    what = corpus(name)
    stored = payloads(what.data)
    others: dict[str, Callable[[], Any]] = {}
    for way in WAYS[name.split("-", 2)[2]]:
        assert sum(map(len, way.kept(stored, what.payload_bytes))) == what.payload_bytes
        assert way.dropped(stored) == what.payload_bytes
        others[way.name + KEPT] = partial(way.kept, stored, what.payload_bytes)
        others[way.name + DROPPED] = partial(way.dropped, stored)
    peers = beside(lambda peer: peer.iterate(what.data), slow="-16k-" in name)
    table = rotation("decompress", what, "kbatch", lambda: kbatch.decode(what.data), others, peers)
    assert Sums.of_table(table) == what.sums
    assert all(peer.sums(what.data) == what.sums for peer in PEERS if peer.name in peers)
