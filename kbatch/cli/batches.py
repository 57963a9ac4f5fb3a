"""Columns of a table for `dump`: names in place of codes, and derived fields."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from kbatch.batches.codecs import codec_name
from kbatch.format import ATTRIBUTE_CODEC, INT32_MAX, MESSAGE_HEADER_SIZES, Codec, TimestampType
from kbatch.table import RecordTable

__all__ = [
    "BATCH_FIELDS",
    "TIMESTAMP_TYPES",
    "codec_names",
    "inner_checksums",
    "last_sequences",
    "sequence_after",
    "timestamp_types",
]

# The fields of a batch that both output formats use, in the order that they unpack.
BATCH_FIELDS = [
    "base_offset", "last_offset", "record_count", "base_timestamp", "max_timestamp", "producer_id", "producer_epoch",
    "base_sequence", "partition_leader_epoch", "position", "size", "crc", "attributes", "magic", "status",
]  # fmt: skip
# By TimestampType + 1, as Kafka writes them.
TIMESTAMP_TYPES = ("NoTimestampType", "CreateTime", "LogAppendTime")
_CODECS = [*map(codec_name, Codec), "5", "6", "7"]


def codec_names(batches: npt.NDArray[np.void]) -> list[str]:
    """Return the name of each batch's codec, or its number if no such codec exists (ATT-R3)."""
    return [_CODECS[codec] for codec in (batches["attributes"] & ATTRIBUTE_CODEC).tolist()]


def timestamp_types(batches: npt.NDArray[np.void]) -> npt.NDArray[np.int32]:
    """Return the timestamp type of each batch, as an index of `TIMESTAMP_TYPES`."""
    return TimestampType.of(batches) + np.int32(1)


def last_sequences(batches: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Return the last sequence number of each batch, or -1 if it has none."""
    last = sequence_after(batches["base_sequence"].astype(np.int64), batches["last_offset_delta"])
    last[batches["base_sequence"] == -1] = -1
    return last


def sequence_after(base: npt.NDArray[np.int64], delta: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Add to sequence numbers as Kafka does: 0 follows the largest int32 (SEQ-R1)."""
    return np.where(base > INT32_MAX - delta, delta - (INT32_MAX - base) - 1, base + delta)


def inner_checksums(table: RecordTable) -> list[tuple[int, bool]]:
    """Return the stored checksum of each message of magic 0 and 1, and whether it holds.

    Records of magic 2 have none and get ``(0, True)``.
    """
    batches = table.batches[table.records["batch"]]
    data = table.data.data
    plain = (batches["attributes"] & ATTRIBUTE_CODEC) == 0
    sums: list[tuple[int, bool]] = []
    for magic, is_plain, crc, status, key in zip(
        batches["magic"].tolist(),
        plain.tolist(),
        batches["crc"].tolist(),
        batches["status"].tolist(),
        table.records["key_pos"].tolist(),
        strict=True,
    ):
        sums.append((0, True) if magic == 2 else (crc, status != 1) if is_plain else _inner(data, key, magic))
    return sums


def _inner(data: memoryview, key: int, magic: int) -> tuple[int, bool]:
    # An inner message may be of another magic than its wrapper (LEG-R16).
    stored = 0
    for inner in (1 - magic, magic):
        start = key - 4 - MESSAGE_HEADER_SIZES[inner]
        if start >= 0 and data[start + 16] == inner:
            end = start + 12 + int.from_bytes(data[start + 8 : start + 12], "big")
            stored = int.from_bytes(data[start + 12 : start + 16], "big")
            if key <= end <= len(data) and zlib.crc32(data[start + 16 : end]) == stored:
                return stored, True
    return stored, False
