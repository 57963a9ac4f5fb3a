"""Bytes to an Arrow table or a pandas frame with offset, timestamp, key and value, with verified CRCs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kbatch
from bench.conftest import Contest, each_peer
from bench.corpora import Sums, corpus

pa = pytest.importorskip("pyarrow")
# pyarrow imports modules at first use, which must not be timed.
pa.array([b"warm"], pa.binary()).to_pylist()

NAMES = ["small", "medium"]
COLUMNS = ("offset", "timestamp", "key", "value")
SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
ARROW = {"to Arrow": "binary", "to Arrow, views": "binary_view"}
PANDAS = {"to pandas": "numpy", "to pandas, ArrowDtype": "pyarrow"}


@pytest.mark.parametrize("stage", ARROW)
@pytest.mark.parametrize("name", NAMES)
def test_arrow(name: str, stage: str, contest: Contest) -> None:
    what = corpus(name)

    def function() -> Any:
        return kbatch.decode(what.data).to_arrow(columns=COLUMNS, binary=ARROW[stage])

    def check(table: Any) -> None:
        assert table.column_names == list(COLUMNS)
        assert Sums.of_arrow(table) == what.sums.without_headers()

    peers = each_peer(lambda peer: peer.to_arrow(what.data, SCHEMA), slow=stage == "to Arrow")
    check(contest(stage, what, function, peers=peers, check=check))


@pytest.mark.parametrize("stage", PANDAS)
@pytest.mark.parametrize("name", NAMES)
def test_pandas(name: str, stage: str, contest: Contest) -> None:
    pytest.importorskip("pandas")
    what = corpus(name)

    def function() -> Any:
        return kbatch.decode(what.data).to_pandas(columns=COLUMNS, dtype_backend=PANDAS[stage])

    def check(frame: Any) -> None:
        assert tuple(frame.columns) == COLUMNS
        timestamps = frame["timestamp"].astype("datetime64[ms, UTC]").astype(np.int64)
        found = Sums.of_columns(frame["offset"].to_numpy(np.int64), timestamps, frame["key"], frame["value"])
        assert found == what.sums.without_headers()

    peers = each_peer(lambda peer: peer.to_pandas(what.data, SCHEMA, PANDAS[stage]), slow=stage == "to pandas")
    check(contest(stage, what, function, peers=peers, check=check))
