"""bytes --> pandas, uncompressed, CRC checked: a frame of offset, timestamp, key and value, of objects or of Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import kbatch
from bench.conftest import Measure, contests
from bench.corpora import Sums, corpus
from bench.peers import Peer

NAMES = ["small", "medium", "large", "headers"]
STAGES = {"numpy": "to pandas", "pyarrow": "to pandas, ArrowDtype"}
backends = pytest.mark.parametrize("backend", STAGES)


def sums(frame: Any, arrow_columns: Sequence[str]) -> Sums:
    assert tuple(frame.columns) == tuple(arrow_columns)
    timestamps = frame["timestamp"].astype("datetime64[ms, UTC]").astype(np.int64)
    return Sums.of_columns(frame["offset"].to_numpy(np.int64), timestamps, frame["key"], frame["value"])


@backends
@pytest.mark.parametrize("name", NAMES)
def test_kbatch(name: str, backend: Any, arrow_columns: Sequence[str], measure: Measure) -> None:
    pytest.importorskip("pandas")
    what = corpus(name)
    frame = measure(
        STAGES[backend],
        what,
        "kbatch",
        lambda: kbatch.decode(what.data).to_pandas(columns=arrow_columns, dtype_backend=backend),
    )
    assert sums(frame, arrow_columns) == what.sums.without_headers()


@backends
@pytest.mark.parametrize(("name", "peer"), contests(NAMES, ["small", "medium"]))
def test_peer(name: str, backend: Any, peer: Peer, arrow_columns: Sequence[str], measure: Measure) -> None:
    pytest.importorskip("pandas")
    what = corpus(name)
    frame = measure(STAGES[backend], what, peer.name, lambda: peer.to_pandas(what.data, arrow_columns, backend))
    assert sums(frame, arrow_columns) == what.sums.without_headers()
