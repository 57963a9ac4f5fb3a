"""batches --> batches in another magic or with another codec, beside decoding and building them with a client library.

All check the checksums of what they read, and write as many batches; messages that stand alone they put together. Peers
can't set the offset that a batch of magic 2 begins with. Where a codec takes most of the time, it takes it of all
contestants: in turns with kbatch runs what the codecs alone take of it, decompressing the payloads in the fastest way
from Python and compressing them with the library that kbatch has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import kbatch
from bench.conftest import Measure, Rotation, contests
from bench.corpora import KIB, Corpus, Sums, corpus, payloads
from bench.libraries import COMPRESS, fastest
from bench.peers import PEERS, Peer
from bench.results import ALONE

DOWN = ["small", "medium", "medium-16k-lz4"]
BATCH_SIZE = 16 * KIB
UP = ["small-v0", "small-v1"]
# The source's codec, and the target's.
RECOMPRESS = [
    ("small", "lz4"),
    ("small-lz4", "none"),
    ("small-lz4", "zstd"),
    ("medium-16k-gzip", "zstd"),
    ("medium-16k-zstd", "none"),
    ("medium-16k-zstd", "lz4"),
]


@cache
def source(name: str) -> Corpus:
    """Return a corpus, or the small one with a codec."""
    if name != "small-lz4":
        return corpus(name)
    plain = corpus("small")
    return replace(plain, name=name, codec="lz4", data=kbatch.recompress(plain.data, "lz4"))


def assert_same(data: bytes, what: Corpus, **lost: Any) -> None:
    assert Sums.of_table(kbatch.decode(data)) == replace(what.sums, **lost)


def assert_built(built: list[bytes], what: Corpus) -> None:
    found = Sums.of_table(kbatch.decode(b"".join(built)))
    assert (found.records, found.values_crc, found.keys_crc) == (
        what.sums.records,
        what.sums.values_crc,
        what.sums.keys_crc,
    )


def codecs_alone(what: Corpus, target: str) -> dict[str, Callable[[], Any]]:
    """Give what only the codecs do, under the name that it has in the report; nothing if there is none."""
    stored = payloads(what.data)
    plain = payloads(kbatch.recompress(what.data, "none"))
    way = fastest(what.codec, stored) if what.codec != "none" else None
    compress = COMPRESS[target] if target != "none" else None

    def run() -> None:
        if way is not None:
            way.dropped(stored)
        if compress is not None:
            for payload in plain:
                compress(payload)

    return {ALONE: run} if way or compress else {}


@pytest.mark.parametrize("name", DOWN)
def test_kbatch_down(name: str, rotation: Rotation[bytes]) -> None:
    what = source(name)
    alone = codecs_alone(what, what.codec)
    data = rotation("convert to magic 1", what, "kbatch", lambda: kbatch.convert(what.data, 1), alone)
    assert_same(data, what)


@pytest.mark.parametrize(("name", "peer"), contests(DOWN, ["small"]))
def test_peer_down(name: str, peer: Peer, measure: Measure[list[bytes]]) -> None:
    what = source(name)
    codec = int(kbatch.scan(what.data)["attributes"][0] & 7)
    assert_built(measure("convert to magic 1", what, peer.name, lambda: peer.rewrite(what.data, 1, codec)), what)


@pytest.mark.parametrize("name", UP)
def test_kbatch_up(name: str, measure: Measure[bytes]) -> None:
    what = source(name)
    data = measure("convert to magic 2", what, "kbatch", lambda: kbatch.convert(what.data, 2))
    assert_same(data, what)


@pytest.mark.parametrize(("name", "peer"), contests(UP, []))
def test_peer_up(name: str, peer: Peer, measure: Measure[list[bytes]]) -> None:
    what = source(name)
    assert_built(measure("convert to magic 2", what, peer.name, lambda: peer.merge(what.data, BATCH_SIZE)), what)


@pytest.mark.parametrize(("name", "codec"), RECOMPRESS)
def test_kbatch_recompress(name: str, codec: str, rotation: Rotation[bytes]) -> None:
    what = source(name)
    alone = codecs_alone(what, codec)
    data = rotation(f"recompress to {codec}", what, "kbatch", lambda: kbatch.recompress(what.data, codec), alone)
    assert_same(data, what)
    assert len(payloads(data)) == len(payloads(what.data))


@pytest.mark.parametrize("peer", [pytest.param(peer, id=peer.name) for peer in PEERS if not peer.slow])
@pytest.mark.parametrize(("name", "codec"), RECOMPRESS)
def test_peer_recompress(name: str, codec: str, peer: Peer, measure: Measure[list[bytes]]) -> None:
    what = source(name)
    number = kbatch.Codec[codec.upper()]
    assert_built(measure(f"recompress to {codec}", what, peer.name, lambda: peer.rewrite(what.data, 2, number)), what)
