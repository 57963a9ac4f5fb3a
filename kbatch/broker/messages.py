"""The messages in a compressed message of magic 0 or 1."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kbatch.batches.arena import Arena, PayloadError
from kbatch.batches.codecs import decompress
from kbatch.batches.framing import scan_part
from kbatch.errors import InvalidRecordError, error_at, finding_to_error
from kbatch.format import ATTRIBUTE_CODEC, DEFAULT_LIMITS, MESSAGE_HEADER_SIZES, Limits

__all__ = ["count_numbered", "inner_messages"]


def inner_messages(
    data: npt.NDArray[np.uint8], batch: np.void, limits: Limits | None = None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.void]]:
    """Decompress a compressed message; return its payload and the headers of the messages in it."""
    view = data.data[int(batch["position"]) : int(batch["position"] + batch["size"])]
    magic = int(batch["magic"])
    at = MESSAGE_HEADER_SIZES[magic]
    at += 4 + max(int.from_bytes(view[at : at + 4], "big", signed=True), 0)
    size = int.from_bytes(view[at : at + 4], "big", signed=True)
    arena = Arena()
    limit = (limits or DEFAULT_LIMITS).max_decompressed_bytes
    try:
        decompress(int(batch["attributes"]) & ATTRIBUTE_CODEC, view[at + 4 : at + 4 + size], arena, limit, magic)
    except PayloadError as error:
        raise finding_to_error(
            error.finding, source=None, position=int(batch["position"]), base_offset=int(batch["last_offset"])
        ) from None
    payload = arena.array()
    return payload, scan_part(payload).batches


def count_numbered(data: npt.NDArray[np.uint8], batch: np.void) -> int | None:
    """Return the number of messages in a compressed message, or None if their offsets are not 0, 1, 2, ..."""
    _, messages = inner_messages(data, batch)
    if not len(messages):
        raise error_at(InvalidRecordError, batch, None, "compressed message contains no messages")
    numbered = np.array_equal(messages["last_offset"], np.arange(len(messages)))
    return len(messages) if numbered else None
