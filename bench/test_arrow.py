"""bytes --> Arrow, uncompressed, CRC checked: the whole way, to a table of offset, timestamp, key and value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import kbatch
from bench.conftest import Rotation, beside
from bench.corpora import Sums, corpus
from kbatch.arrow import view_schema

NAMES = ["small", "medium", "large", "headers"]


STAGES = {"binary": "to Arrow", "binary_view": "to Arrow, views"}


@pytest.mark.parametrize("binary", STAGES)
@pytest.mark.parametrize("name", NAMES)
def test_arrow(name: str, binary: Any, arrow_columns: Sequence[str], rotation: Rotation) -> None:
    what = corpus(name)
    schema = view_schema(arrow_columns)

    def function() -> Any:
        return kbatch.decode(what.data).to_arrow(columns=arrow_columns, binary=binary)

    def check(table: Any) -> None:
        assert table.schema.equals(schema)
        assert Sums.of_arrow(table) == what.sums.without_headers()

    peers = beside(lambda peer: peer.to_arrow(what.data, schema), slow=binary == "binary" and name in NAMES[:2])
    table = rotation(STAGES[binary], what, "kbatch", function, {}, peers, check)
    assert table.schema.equals(view_schema(arrow_columns, binary=binary))
    check(table.cast(schema))
