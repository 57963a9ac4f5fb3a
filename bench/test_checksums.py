"""batches --CRC--> batches known to be whole: nothing decoded.

Beside it, in turns: a call of the package for each batch, and one call for all bytes; and peers, who step over the
batches for it.
"""

from __future__ import annotations

import zlib
from collections import deque

import crc32c
import numpy as np
import pytest

import kbatch
from bench.conftest import Rotation, beside
from bench.corpora import corpus
from bench.results import CRC, CRC_CALLS
from kbatch.checksums import first_bad_crc

NAMES = ["small", "medium-1m", "single", "small-v1"]


@pytest.mark.parametrize("name", NAMES)
def test_checksums(name: str, rotation: Rotation) -> None:
    what = corpus(name)
    data = np.frombuffer(what.data, np.uint8)
    rows = kbatch.scan(what.data)
    legacy = bool(rows["magic"][0] < 2)
    function, start = (zlib.crc32, 16) if legacy else (crc32c.crc32c, 21)
    view = memoryview(what.data)
    starts = rows["position"] + start
    parts = [view[a:b] for a, b in zip(starts.tolist(), (rows["position"] + rows["size"]).tolist(), strict=True)]
    assert [function(part) for part in parts] == rows["crc"].tolist()
    peers = beside(lambda peer: sum(1 for _ in peer.batches(what.data)), slow=name in NAMES[:2])

    def check(count: int) -> None:
        assert count == what.batches

    found = rotation(
        "CRC",
        what,
        "kbatch",
        lambda: first_bad_crc(data, rows, 0, len(rows), 0),
        {CRC: lambda: function(view), CRC_CALLS: lambda: deque(map(function, parts), maxlen=0)},
        peers,
        check,
    )
    assert found == (len(rows), 0)
