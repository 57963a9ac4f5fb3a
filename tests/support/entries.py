"""Fields of a stored entry, a batch or a message, by position, and the repair of an entry whose bytes were changed."""

from __future__ import annotations

import struct
import zlib

from crc32c import crc32c

# Offset and size of the fields of a header, by magic.
FIELDS = {
    2: [
        *((0, 8), (8, 4), (12, 4), (16, 1), (17, 4), (21, 2), (23, 4)),
        *((27, 8), (35, 8), (43, 8), (51, 2), (53, 4), (57, 4)),
    ],
    1: [(0, 8), (8, 4), (12, 4), (16, 1), (17, 1), (18, 8), (26, 4), (30, 4)],
    0: [(0, 8), (8, 4), (12, 4), (16, 1), (17, 1), (18, 4), (22, 4)],
}
LEAST_SIZE = {0: 26, 1: 34, 2: 61}


def is_entry(entry: bytes) -> bool:
    return len(entry) > 16 and entry[16] in FIELDS and len(entry) >= LEAST_SIZE[entry[16]]


def repaired(entry: bytes, *, length: bool = True) -> bytes:
    """Set the length, if `length`, and the checksum of an entry."""
    if not is_entry(entry):
        return entry
    if length:
        entry = entry[:8] + struct.pack(">i", len(entry) - 12) + entry[12:]
    if entry[16] == 2:
        return entry[:17] + struct.pack(">I", crc32c(entry[21:])) + entry[21:]
    return entry[:12] + struct.pack(">I", zlib.crc32(entry[16:])) + entry[16:]
