"""What read_committed costs: the same batches as transactions of ten producers, decoded with and without it."""

from __future__ import annotations

import dataclasses
import functools
import struct

import numpy as np
import pytest
from crc32c import crc32c

import kbatch
from bench.conftest import Rotation
from bench.corpora import Corpus, Sums, corpus

NAMES = ["small", "medium-16k", "medium-16k-lz4"]
PRODUCERS = 10
BATCHES_A_TRANSACTION = 10
TRANSACTIONAL, CONTROL = 0x10, 0x20
# A marker's record: its key is version 0 and type 1 (COMMIT), its value a version and a coordinator epoch.
COMMIT = bytes([32, 0, 0, 0, 8, 0, 0, 0, 1, 12, 0, 0, 0, 0, 0, 0, 0])


def framed(batch: bytearray, offset: int, producer_id: int, flags: int) -> bytearray:
    """Give a batch its offset, its producer and the attributes' flags, and the checksum that follows."""
    struct.pack_into(">q", batch, 0, offset)
    struct.pack_into(">h", batch, 21, batch[22] | flags)
    struct.pack_into(">qh", batch, 43, producer_id, 0)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def marker(like: bytes, offset: int, producer_id: int) -> bytearray:
    batch = bytearray(like[:61]) + COMMIT
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    batch[22] = 0
    struct.pack_into(">i", batch, 23, 0)
    struct.pack_into(">i", batch, 57, 1)
    return framed(batch, offset, producer_id, TRANSACTIONAL | CONTROL)


@functools.lru_cache(maxsize=1)
def transactional(name: str) -> Corpus:
    """Make transactions of a corpus' batches: each producer's tenth batch is followed by its COMMIT."""
    what = corpus(name)
    out = bytearray()
    rows = kbatch.scan(what.data)
    offset = 0
    for i, (position, size, delta) in enumerate(rows[["position", "size", "last_offset_delta"]].tolist()):
        producer = i % PRODUCERS
        batch = bytearray(what.data[position : position + size])
        out += framed(batch, offset, producer, TRANSACTIONAL)
        offset += delta + 1
        last = i + PRODUCERS >= len(rows)
        if last or i // PRODUCERS % BATCHES_A_TRANSACTION == BATCHES_A_TRANSACTION - 1:
            out += marker(batch, offset, producer)
            offset += 1
    return dataclasses.replace(what, name=f"{name}-txn", data=bytes(out))


@pytest.mark.parametrize("name", NAMES)
def test_in_turns_with_uncommitted(name: str, rotation: Rotation) -> None:
    what = transactional(name)
    table = rotation(
        "transactions", what, "read_committed",
        lambda: kbatch.decode(what.data, isolation="read_committed"),
        {"read_uncommitted": lambda: kbatch.decode(what.data)},
    )  # fmt: skip
    assert table.pending == []
    assert len(np.flatnonzero(table.batches["attributes"] & CONTROL)) >= PRODUCERS
    have = Sums.of_table(table)
    # Markers take offsets of their own.
    assert dataclasses.replace(have, offsets=what.sums.offsets) == what.sums
