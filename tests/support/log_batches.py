"""Batches of magic 2, and logs of them, for the tests of ``kbatch.log``: struct and nothing of kbatch."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from crc32c import crc32c


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def batch(
    base_offset: int,
    timestamps: Sequence[int],
    *,
    value: bytes = b"value",
    max_timestamp: int | None = None,
    last_delta: int | None = None,
) -> bytes:
    """One uncompressed batch with a record a timestamp."""
    base = timestamps[0] if timestamps else -1
    payload = bytearray()
    for i, timestamp in enumerate(timestamps):
        body = b"\0" + varint(timestamp - base) + varint(i) + varint(-1) + varint(len(value)) + value + varint(0)
        payload += varint(len(body)) + body
    largest = max(timestamps, default=-1) if max_timestamp is None else max_timestamp
    delta = len(timestamps) - 1 if last_delta is None else last_delta
    covered = struct.pack(">hiqqqhii", 0, delta, base, largest, -1, -1, -1, len(timestamps)) + payload
    return struct.pack(">qiibI", base_offset, 9 + len(covered), 0, 2, crc32c(covered)) + covered


def segment_path(directory: Path, base_offset: int, suffix: str = ".log") -> Path:
    return directory / f"{base_offset:020d}{suffix}"


def write_segment(
    directory: Path, base_offset: int, batches: Iterable[bytes], *, tail: bytes = b"", indexes: bool = False
) -> Path:
    """Write a ``.log`` file; with indexes, an entry a batch as DSK-R2 and DSK-R3 say."""
    directory.mkdir(parents=True, exist_ok=True)
    data, offsets, times = bytearray(), bytearray(), bytearray()
    largest = -1
    for one in batches:
        base, delta, latest = struct.unpack_from(">q", one)[0], *struct.unpack_from(">i8xq", one, 23)
        offsets += struct.pack(">ii", base + delta - base_offset, len(data))
        if latest > largest:
            largest = latest
            times += struct.pack(">qi", latest, base + delta - base_offset)
        data += one
    path = segment_path(directory, base_offset)
    path.write_bytes(bytes(data) + tail)
    if indexes:
        path.with_suffix(".index").write_bytes(offsets)
        path.with_suffix(".timeindex").write_bytes(times)
    return path
