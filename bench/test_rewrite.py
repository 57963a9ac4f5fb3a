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
from bench.conftest import Rotation, beside
from bench.corpora import KIB, Corpus, Sums, corpus, payloads
from bench.libraries import COMPRESS, fastest
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


def built_of(what: Corpus) -> Callable[[list[bytes]], None]:
    """Give a check of what peers built of a corpus."""

    def check(built: list[bytes]) -> None:
        found, sums = Sums.of_table(kbatch.decode(b"".join(built))), what.sums
        assert (found.records, found.values_crc, found.keys_crc) == (sums.records, sums.values_crc, sums.keys_crc)

    return check


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
def test_down(name: str, rotation: Rotation) -> None:
    what = source(name)
    alone = codecs_alone(what, what.codec)
    codec = int(kbatch.scan(what.data)["attributes"][0] & 7)
    peers = beside(lambda peer: peer.rewrite(what.data, 1, codec), slow=name == "small")
    stage = "convert to magic 1"
    data = rotation(stage, what, "kbatch", lambda: kbatch.convert(what.data, 1), alone, peers, built_of(what))
    assert_same(data, what)


@pytest.mark.parametrize("name", UP)
def test_up(name: str, rotation: Rotation) -> None:
    what = source(name)
    peers = beside(lambda peer: peer.merge(what.data, BATCH_SIZE), slow=False)
    stage = "convert to magic 2"
    data = rotation(stage, what, "kbatch", lambda: kbatch.convert(what.data, 2), {}, peers, built_of(what))
    assert_same(data, what)


@pytest.mark.parametrize(("name", "codec"), RECOMPRESS)
def test_recompress(name: str, codec: str, rotation: Rotation) -> None:
    what = source(name)
    alone = codecs_alone(what, codec)
    peers = beside(lambda peer: peer.rewrite(what.data, 2, kbatch.Codec[codec.upper()]), slow=False)
    stage = f"recompress to {codec}"
    data = rotation(stage, what, "kbatch", lambda: kbatch.recompress(what.data, codec), alone, peers, built_of(what))
    assert_same(data, what)
    assert len(payloads(data)) == len(payloads(what.data))
