"""Parameters and checks of the tests of message sets (magic 0 and 1)."""

from __future__ import annotations

import struct

import oracle
import pytest
from oracle import (
    LEGACY_CODECS,
    build_message,
    three,
)
from tables import assert_accounted, batches_of, lost, offsets_of, records_of

import kbatch
from kbatch import BatchStatus

ABC: list[tuple[bytes | None, bytes | None]] = [(b"k", b"a"), (b"k", b"b"), (None, b"c")]
BEFORE, AFTER = three(0), build_message(b"k", b"after", offset=90)
magics = pytest.mark.parametrize("magic", [0, 1])
wrapped = pytest.mark.parametrize("codec", LEGACY_CODECS[1:])


def rows_of(entry: bytes) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Decode an entry between two others, check it with the oracle; return its offsets, timestamps, keys and values."""
    data = BEFORE + entry + AFTER
    table = kbatch.decode(data)
    assert batches_of(table) == oracle.decode(data).batches
    assert table.consumed == len(data)
    return [(r.offset, r.timestamp, r.key, r.value) for r in records_of(table)[3:-1]]


def offsets(entry: bytes) -> list[int]:
    return [row[0] for row in rows_of(entry)]


def refused(
    entry: bytes, kind: type[kbatch.KbatchError], match: str, *, record: int | None = None, offset: int | None = None
) -> kbatch.KbatchError:
    """Check the error, the loss and the end of a read for a bad entry between good ones."""
    data = BEFORE + entry + AFTER
    start, end = len(BEFORE), len(BEFORE) + len(entry)
    base_offset = struct.unpack_from(">q", entry)[0] if offset is None else offset
    assert oracle.decode(data).error is not None
    with pytest.raises(kbatch.KbatchError, match=match) as caught:
        kbatch.decode(data)
    assert type(caught.value) is kind
    assert (caught.value.position, caught.value.base_offset, caught.value.record) == (start, base_offset, record)
    assert f"byte {start}" in str(caught.value)
    skipped = kbatch.decode(data, on_error="skip")
    assert offsets_of(skipped) == [0, 1, 2, 90]
    assert lost(skipped) == [(start, end)]
    assert skipped.losses[0].base_offset == base_offset
    assert_accounted(skipped, len(data))
    stopped = kbatch.decode(data, on_error="stop")
    assert (offsets_of(stopped), stopped.consumed, lost(stopped)) == ([0, 1, 2], start, [(start, len(data))])
    for table in (skipped, stopped):
        assert table.batches["status"][:2].tolist()[0] == BatchStatus.OK
        assert table.batches["status"][1] not in (BatchStatus.OK, BatchStatus.BAD_INNER_CRC)
        if entry[17] & 7:  # the headers of a compressed set do not show the error
            assert (table.batches["base_offset"][1], table.batches["record_count"][1]) == (-1, -1)
    return caught.value
