"""Comparison of `kbatch.decode` with the oracle: both return the same batches, or the same error in the same place."""

from __future__ import annotations

from typing import Any

import oracle
from tables import batches_of

import kbatch

ERRORS: dict[type[oracle.OracleError], type[kbatch.KbatchError]] = {
    oracle.Corrupt: kbatch.CorruptBatchError,
    oracle.BadCrc: kbatch.CrcMismatchError,
    oracle.Invalid: kbatch.InvalidRecordError,
    oracle.CodecFailure: kbatch.CodecError,
    oracle.Unsupported: kbatch.UnsupportedFormatError,
}


def assert_agrees(data: bytes, *, verify: bool = True) -> None:
    """Compare the first error, its position, and everything before it with the oracle."""
    # A wrong checksum of an inner message is only marked.
    truth = oracle.decode(data, verify=verify, verify_inner=False)
    crc: Any = "verify" if verify else "skip"
    found: kbatch.KbatchError | None = None
    try:
        kbatch.decode(data, crc=crc, include_control=True)
    except kbatch.KbatchError as error:
        found = error
    if truth.error is None:
        # An incomplete last batch may declare more bytes than the limit.
        assert found is None or isinstance(found, kbatch.LimitExceededError), found
    else:
        assert found is not None, truth.error
        assert type(found) is ERRORS[type(truth.error)], (found, truth.error)
        assert found.base_offset == truth.error.base_offset
        assert found.position == truth.error.position
    table = kbatch.decode(data, crc=crc, include_control=True, on_error="stop")
    good = batches_of(table)[: len(truth.batches)]
    assert good == truth.batches
    for batch, row in zip(truth.batches, table.batches, strict=False):
        entry = data[batch.position : batch.position + batch.size]
        bad = verify and batch.magic < 2 and oracle.decode(entry).error is not None
        assert row["status"] == (kbatch.BatchStatus.BAD_INNER_CRC if bad else kbatch.BatchStatus.OK)
    assert len(table) == sum(len(batch.records) for batch in truth.batches)
    assert table.consumed == (len(data) - truth.unread)
