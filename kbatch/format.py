"""The record format as data: sizes, attribute bits, sentinels and the dtypes of the three tables.

The layouts are those of Apache Kafka's ``DefaultRecordBatch`` (magic 2) and ``LegacyRecord`` (magic 0 and 1).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

__all__ = [
    "ABORTED_DTYPE",
    "ATTRIBUTE_CODEC",
    "ATTRIBUTE_CONTROL",
    "ATTRIBUTE_DELETE_HORIZON",
    "ATTRIBUTE_LOG_APPEND_TIME",
    "ATTRIBUTE_TRANSACTIONAL",
    "BATCH_DTYPE",
    "BATCH_HEADER_SIZE",
    "HEADER_DTYPE",
    "LOG_OVERHEAD",
    "MIN_ENTRY_SIZE",
    "NO_TIMESTAMP",
    "RECORD_DTYPE",
    "BatchStatus",
    "Codec",
    "Limits",
    "TimestampType",
]

# Every entry of a log, whatever its magic, begins with int64 offset and int32 length (FRM-R1) ...
LOG_OVERHEAD = 12
# ... and has its magic at byte 16, so that 17 bytes are needed to know what follows.
MIN_ENTRY_SIZE = 17
# The fixed part of a batch of magic 2:
#
#   baseOffset i64 @0    length i32 @8         partitionLeaderEpoch i32 @12   magic i8 @16
#   crc u32 @17          attributes i16 @21    lastOffsetDelta i32 @23        baseTimestamp i64 @27
#   maxTimestamp i64 @35 producerId i64 @43    producerEpoch i16 @51          baseSequence i32 @53
#   recordCount i32 @57  records @61
#
# The CRC-32C covers byte 21 to the end (CRC-R1).
BATCH_HEADER_SIZE = 61

ATTRIBUTE_CODEC = 0x07
ATTRIBUTE_LOG_APPEND_TIME = 0x08
ATTRIBUTE_TRANSACTIONAL = 0x10
ATTRIBUTE_CONTROL = 0x20
ATTRIBUTE_DELETE_HORIZON = 0x40

NO_TIMESTAMP = -1


class Codec(enum.IntEnum):
    """Compression codec of a batch: bits 0 to 2 of its attributes (ATT-R1)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(enum.IntEnum):
    """What a record's timestamp means: bit 3 of the batch's attributes; -1 for magic 0, which has none.

    The numbers are those of Kafka's ``TimestampType`` and of Spark's ``timestampType`` column.
    """

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchStatus(enum.IntEnum):
    """What decoding made of a batch: the ``status`` column of ``BATCH_DTYPE``.

    Anything but `OK` means that the batch gave no records, except `BAD_CRC` under ``crc="mark"``.
    """

    OK = 0
    BAD_CRC = 1
    INVALID = 2
    BAD_CODEC = 3
    UNSUPPORTED = 4
    OVER_LIMIT = 5


RECORD_DTYPE = np.dtype(
    [
        ("offset", "<i8"),
        ("timestamp", "<i8"),
        ("key_pos", "<i8"),
        ("value_pos", "<i8"),
        ("headers_pos", "<i8"),
        ("key_len", "<i4"),
        ("value_len", "<i4"),
        ("header_count", "<i4"),
        ("batch", "<i4"),
    ],
    align=True,
)

BATCH_DTYPE = np.dtype(
    [
        ("base_offset", "<i8"),
        ("base_timestamp", "<i8"),
        ("max_timestamp", "<i8"),
        ("producer_id", "<i8"),
        ("position", "<i8"),
        ("size", "<i8"),
        ("first_record", "<i8"),
        ("last_offset_delta", "<i4"),
        ("record_count", "<i4"),
        ("base_sequence", "<i4"),
        ("partition_leader_epoch", "<i4"),
        ("crc", "<u4"),
        ("producer_epoch", "<i2"),
        ("attributes", "<i2"),
        ("magic", "i1"),
        ("status", "u1"),
    ],
    align=True,
)

HEADER_DTYPE = np.dtype(
    [
        ("record", "<i8"),
        ("key_pos", "<i8"),
        ("value_pos", "<i8"),
        ("key_len", "<i4"),
        ("value_len", "<i4"),
    ],
    align=True,
)

ABORTED_DTYPE = np.dtype(
    [
        ("producer_id", "<i8"),
        ("first_offset", "<i8"),
        ("last_offset", "<i8"),
        ("last_stable_offset", "<i8"),
    ],
    align=True,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what hostile or damaged input may cost.

    Parameters
    ----------
    max_decompressed_bytes : int
        The largest payload, in bytes, that one batch may decompress to. It is checked while decompressing, so a
        batch that would pass it never gets the memory (COD-R8). The default is far above what brokers accept
        (``message.max.bytes`` is 1 MiB before decompression) and far below what would hurt.
    """

    max_decompressed_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        if self.max_decompressed_bytes < 0:
            raise ValueError(f"max_decompressed_bytes must not be negative, got {self.max_decompressed_bytes}")
