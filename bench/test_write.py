"""Columns to batches, and batches to another magic: kbatch and the peers' builders. Results are decoded again.

Peers append records, which are Python objects before timing starts, to a builder until it is full; to convert, they
decode every batch and append its records to a builder of the other magic.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import kbatch
from bench.conftest import Contest, each_peer
from bench.corpora import KIB, Corpus, Sums, corpus
from bench.peers import PEERS

pa = pytest.importorskip("pyarrow")

NAMES = ["small", "medium"]
BATCH_SIZE = 16 * KIB


def columns(name: str) -> dict[str, Any]:
    """Return the records of a corpus as contiguous Arrow columns."""
    table = kbatch.decode(corpus(name).data).to_arrow().combine_chunks()
    return {"values": table["value"], "keys": table["key"], "timestamps": table["timestamp"].cast(pa.int64())}


def rows(columns: dict[str, Any]) -> list[tuple[int, bytes, bytes, list[Any]]]:
    """Return the same records as the objects that a builder takes."""
    parts = [columns[name].to_pylist() for name in ("timestamps", "keys", "values")]
    return [(timestamp, key, value, []) for timestamp, key, value in zip(*parts, strict=True)]


def assert_content(data: bytes, what: Corpus, **changes: Any) -> None:
    """Compare everything except offsets, which start at 0 in each batch of a builder."""
    found = Sums.of_table(kbatch.decode(data))
    assert replace(found, offsets=what.sums.offsets) == replace(what.sums, **changes)


@pytest.mark.parametrize("name", NAMES)
def test_encode(name: str, contest: Contest) -> None:
    what = corpus(name)
    given = columns(name)
    records = rows(given)

    def check(built: list[bytes]) -> None:
        assert_content(b"".join(built), what)
        assert all(len(batch) <= BATCH_SIZE for batch in built)

    data = contest(
        "encode",
        what,
        lambda: kbatch.encode(**given, batch_size=BATCH_SIZE),
        peers=each_peer(lambda peer: peer.encode(records, BATCH_SIZE)),
        check=check,
    )
    assert_content(data, what)
    count = what.sums.records
    for peer in PEERS[:1]:
        assert peer.sums(data) == replace(what.sums, offsets=count * (count - 1) // 2)


@pytest.mark.parametrize(("name", "magic"), [("small", 1), ("small-v1", 2)])
def test_convert(name: str, magic: int, contest: Contest) -> None:
    what = corpus(name)

    def check(built: list[bytes]) -> None:
        assert_content(b"".join(built), what)

    data = contest(
        f"convert to magic {magic}",
        what,
        lambda: kbatch.convert(what.data, magic),
        peers=each_peer(lambda peer: peer.convert(what.data, magic, BATCH_SIZE)),
        check=check,
    )
    assert Sums.of_table(kbatch.decode(data)) == what.sums
