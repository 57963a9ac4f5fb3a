"""bytes --> pandas, uncompressed, CRC checked: a frame of offset, timestamp, key and value, of objects or of Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import kbatch
from bench.conftest import Rotation, beside
from bench.corpora import Sums, corpus

NAMES = ["small", "medium", "large", "headers"]
STAGES = {"numpy": "to pandas", "pyarrow": "to pandas, ArrowDtype"}


@pytest.mark.parametrize("backend", STAGES)
@pytest.mark.parametrize("name", NAMES)
def test_pandas(name: str, backend: Any, arrow_columns: Sequence[str], rotation: Rotation) -> None:
    pytest.importorskip("pandas")
    what = corpus(name)

    def check(frame: Any) -> None:
        assert tuple(frame.columns) == tuple(arrow_columns)
        timestamps = frame["timestamp"].astype("datetime64[ms, UTC]").astype(np.int64)
        found = Sums.of_columns(frame["offset"].to_numpy(np.int64), timestamps, frame["key"], frame["value"])
        assert found == what.sums.without_headers()

    def function() -> Any:
        return kbatch.decode(what.data).to_pandas(columns=arrow_columns, dtype_backend=backend)

    peers = beside(lambda peer: peer.to_pandas(what.data, arrow_columns, backend), slow=name in NAMES[:2])
    check(rotation(STAGES[backend], what, "kbatch", function, {}, peers, check))
