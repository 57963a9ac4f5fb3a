"""bytes --> Arrow, uncompressed, CRC checked: the whole way, to a table of offset, timestamp, key and value."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import kbatch
from bench.conftest import Measure, contests
from bench.corpora import Sums, corpus
from bench.peers import Peer
from kbatch.arrow import view_schema

NAMES = ["small", "medium", "large", "headers"]


@pytest.mark.parametrize("binary", ["binary", "binary_view"])
@pytest.mark.parametrize("name", NAMES)
def test_kbatch(name: str, binary: str, arrow_columns: Sequence[str], measure: Measure) -> None:
    what = corpus(name)
    who = "kbatch" if binary == "binary" else "kbatch, views"
    table = measure(
        "to Arrow", what, who, lambda: kbatch.decode(what.data).to_arrow(columns=arrow_columns, binary=binary)
    )
    assert table.schema.equals(view_schema(arrow_columns, binary=binary))
    assert Sums.of_arrow(table) == what.sums.without_headers()


@pytest.mark.parametrize(("name", "peer"), contests(NAMES, ["small", "medium"]))
def test_peer(name: str, peer: Peer, arrow_columns: Sequence[str], measure: Measure) -> None:
    what = corpus(name)
    schema = view_schema(arrow_columns)
    table = measure("to Arrow", what, peer.name, lambda: peer.to_arrow(what.data, schema))
    assert table.schema.equals(schema)
    assert Sums.of_arrow(table) == what.sums.without_headers()
