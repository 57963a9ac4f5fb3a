"""`peers.Input` encoded by kbatch, and the payloads of encoded batches."""

from __future__ import annotations

from typing import Any

import oracle
from peers import Input

import kbatch


def payload_of(entry: bytes) -> bytes:
    """Return the decompressed payload of a batch, or all bytes of an uncompressed message."""
    magic = entry[16]
    codec = entry[22 if magic == 2 else 17] & 7
    if magic == 2:
        payload = entry[61:]
    elif codec:
        message = oracle._read_message(entry, True)
        assert message.value is not None
        payload = message.value
    else:
        return entry
    if codec == 3:
        return oracle.unlz4(payload, any_header_checksum=magic == 0)
    return oracle.DECOMPRESS[codec](payload)


# -- round trips


def encode_input(made: Input, **options: Any) -> bytes:
    with_producer = made.producer_id >= 0
    return kbatch.encode(
        [value for _, value, _ in made.contents],
        keys=[key for key, _, _ in made.contents],
        headers=[headers for _, _, headers in made.contents],
        timestamps=made.timestamps,
        offsets=[made.base_offset + delta for delta in made.deltas],
        codec=made.codec,
        producer_id=made.producer_id,
        producer_epoch=3 if with_producer else -1,
        base_sequence=made.base_sequence if with_producer else -1,
        timestamp_type="log_append_time" if made.log_append_time else "create_time",
        append_time=made.max_timestamp if made.log_append_time else None,
        **options,
    )
