"""columns --> payload --> batches: kbatch from Arrow columns, peers by their builders; and beside compressing alone.

The records are those of the decode corpora, cut at a target size as producers cut them. Results are decoded again: what
kbatch wrote by the peers too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import kbatch
from bench.conftest import Rotation, beside
from bench.corpora import CODECS, KIB, MIB, Corpus, Sums, corpus, payloads
from bench.libraries import COMPRESS
from bench.peers import PEERS
from bench.results import ALONE

pa = pytest.importorskip("pyarrow")

NAMES = ["small", "medium", "large", "headers"]
LEGACY = ["small-v0", "small-v1"]
BATCH_SIZE = 16 * KIB
SIZES = {"16k": BATCH_SIZE, "1m": MIB}
COMPRESSED = [f"medium-{size}-{codec}" for codec in CODECS if codec not in ("none", "snappy-raw") for size in SIZES]


@cache
def columns(name: str) -> dict[str, Any]:
    """Return the records of a corpus as contiguous Arrow columns."""
    table = kbatch.decode(corpus(name).data).to_arrow()
    table = table.combine_chunks()
    found = {"values": table["value"], "keys": table["key"], "timestamps": table["timestamp"].cast(pa.int64())}
    if len(kbatch.decode(corpus(name).data).headers):
        found["headers"] = table["headers"]
    return found


@cache
def rows(name: str) -> list[tuple[int, bytes, bytes, list[Any]]]:
    """Return the same records as the objects that a builder takes."""
    found = columns(name)
    headers = found["headers"].to_pylist() if "headers" in found else [[]] * len(found["values"])
    pairs = [[(header["key"].decode(), header["value"]) for header in row] for row in headers]
    columns_of_rows = (found[column].to_pylist() for column in ("timestamps", "keys", "values"))
    return list(zip(*columns_of_rows, pairs, strict=True))


def sums_from_0(what: Corpus) -> Sums:
    """Return the sums of a corpus whose offsets count from 0 without a gap."""
    count = what.sums.records
    return replace(what.sums, offsets=count * (count - 1) // 2)


def assert_same(data: bytes, what: Corpus) -> None:
    assert Sums.of_table(kbatch.decode(data)) == sums_from_0(what)
    for peer in PEERS[:1]:
        assert peer.sums(data) == sums_from_0(what)


@pytest.mark.parametrize("name", NAMES)
def test_encode(name: str, rotation: Rotation) -> None:
    what = corpus(name)
    given, records = columns(name), rows(name)

    def check(built: list[bytes]) -> None:
        # Each batch counts from 0.
        found = Sums.of_table(kbatch.decode(b"".join(built)))
        assert replace(found, offsets=what.sums.offsets) == what.sums
        assert all(len(batch) <= BATCH_SIZE for batch in built)

    data = rotation(
        "encode",
        what,
        "kbatch",
        lambda: kbatch.encode(**given, batch_size=BATCH_SIZE),
        {},
        beside(lambda peer: peer.encode(records, BATCH_SIZE)),
        check,
    )
    assert_same(data, what)


@pytest.mark.parametrize("name", NAMES)
def test_table(name: str, rotation: Rotation) -> None:
    """What a decode gave, written again."""
    what = corpus(name)
    table = kbatch.decode(what.data)
    assert rotation("encode", what, "kbatch, a table", lambda: kbatch.encode(table)) == what.data


@pytest.mark.parametrize("name", LEGACY)
def test_legacy(name: str, rotation: Rotation) -> None:
    what = corpus(name)
    magic = int(name[-1])
    given = columns(name) if magic else columns(name) | {"timestamps": None}
    data = rotation("encode", what, "kbatch", lambda: kbatch.encode(**given, magic=magic, batch_size=BATCH_SIZE))
    assert_same(data, what)


@pytest.mark.parametrize("name", COMPRESSED)
def test_in_turns_with_compressing_alone(name: str, rotation: Rotation) -> None:
    _, size, codec = name.split("-")
    what = corpus(name)
    given = columns(f"medium-{size}")
    plain = payloads(kbatch.encode(**given, batch_size=SIZES[size]))
    function = COMPRESS[codec]

    def alone() -> list[Any]:
        return [function(payload) for payload in plain]

    data = rotation(
        "encode compressed",
        what,
        "kbatch",
        lambda: kbatch.encode(**given, batch_size=SIZES[size], codec=codec),
        {ALONE: alone},
    )
    assert_same(data, what)
    stored = payloads(data)
    assert [len(part) for part in stored] == [
        len(part) if codec != "snappy" else 16 + sum(4 + len(block) for block in part) for part in alone()
    ]
