"""Batches of magic 2 and segments of them, for the tests of ``kbatch.log``; written without kbatch."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from crc32c import crc32c
from oracle import encode_record

DAY = 86_400_000
# 2023-11-14, 22:00 UTC.
NOW = 1_699_999_200_000


def batch(
    base_offset: int,
    timestamps: Sequence[int],
    *,
    value: bytes = b"value",
    max_timestamp: int | None = None,
    last_delta: int | None = None,
) -> bytes:
    """Build an uncompressed batch with one record per timestamp."""
    base = timestamps[0] if timestamps else -1
    payload = b"".join(encode_record(i, timestamp - base, value=value) for i, timestamp in enumerate(timestamps))
    largest = max(timestamps, default=-1) if max_timestamp is None else max_timestamp
    delta = len(timestamps) - 1 if last_delta is None else last_delta
    covered = struct.pack(">hiqqqhii", 0, delta, base, largest, -1, -1, -1, len(timestamps)) + payload
    return struct.pack(">qiibI", base_offset, 9 + len(covered), 0, 2, crc32c(covered)) + covered


def segment_path(directory: Path, base_offset: int, suffix: str = ".log") -> Path:
    return directory / f"{base_offset:020d}{suffix}"


def write_segment(
    directory: Path, base_offset: int, batches: Iterable[bytes], *, tail: bytes = b"", indexes: bool = False
) -> Path:
    """Write a ``.log`` file, and with `indexes` its index files with one entry per batch (DSK-R2, DSK-R3)."""
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
