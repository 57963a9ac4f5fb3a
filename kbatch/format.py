"""The record format as data: sizes, attribute bits, sentinels and the dtypes of the three tables.

Apache Kafka defines these layouts in ``DefaultRecordBatch`` (magic 2) and ``LegacyRecord`` (magic 0 and 1).
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from kbatch.public_names import public_in
from kbatch.quantities import INT32_MAX, INT64_MAX, MAX_DECOMPRESSED_BYTES, size_between

__all__ = [
    "ABORTED_DTYPE",
    "ATTRIBUTES_AT",
    "ATTRIBUTE_CODEC",
    "ATTRIBUTE_CONTROL",
    "ATTRIBUTE_DELETE_HORIZON",
    "ATTRIBUTE_LOG_APPEND_TIME",
    "ATTRIBUTE_TRANSACTIONAL",
    "BATCH_DTYPE",
    "BATCH_HEADER_SIZE",
    "COLUMNS",
    "COLUMN_FIELDS",
    "CONTROL_DTYPE",
    "CRC_START",
    "CRC_START_LEGACY",
    "DEFAULT_LIMITS",
    "HEADER_DTYPE",
    "INT32_MAX",
    "INT64_MAX",
    "KNOWN_ATTRIBUTES",
    "LEADER_EPOCH_AT",
    "LOG_OVERHEAD",
    "MAGIC_AT",
    "MAX_TIMESTAMP_AT",
    "MESSAGE_ATTRIBUTES_AT",
    "MESSAGE_HEADER_SIZES",
    "MESSAGE_TIMESTAMP_AT",
    "MIN_ENTRY_SIZE",
    "MIN_RECORD_SIZE",
    "NO_TIMESTAMP",
    "PRODUCER_DTYPE",
    "RECORD_DTYPE",
    "SHORTEST_ENTRY",
    "VIEW_COLUMNS",
    "BatchStatus",
    "BytesLike",
    "Codec",
    "ControlType",
    "Limits",
    "TimestampType",
    "record_dtype",
]

# An object with the buffer protocol. The stubs of NumPy declare the protocol only from Python 3.12 on.
BytesLike: TypeAlias = Buffer | npt.NDArray[Any]

# Every entry of a log, of any magic, begins with int64 offset and int32 length (FRM-R1) ...
LOG_OVERHEAD = 12
# ... and has its magic at byte 16, so that the first 17 bytes determine the layout.
MAGIC_AT = 16
MIN_ENTRY_SIZE = 17
# The shortest valid entry: a message of magic 0 with neither key nor value (LEG-R1).
SHORTEST_ENTRY = 26
# The fixed part of a batch of magic 2:
#
#   baseOffset i64 @0    length i32 @8         partitionLeaderEpoch i32 @12   magic i8 @16
#   crc u32 @17          attributes i16 @21    lastOffsetDelta i32 @23        baseTimestamp i64 @27
#   maxTimestamp i64 @35 producerId i64 @43    producerEpoch i16 @51          baseSequence i32 @53
#   recordCount i32 @57  records @61
#
# The CRC-32C covers byte 21 to the end (CRC-R1).
BATCH_HEADER_SIZE = 61
# The smallest record of magic 2 (CNT-R7): its length, and six fields of one byte.
MIN_RECORD_SIZE = 7
LEADER_EPOCH_AT = 12
ATTRIBUTES_AT = 21
MAX_TIMESTAMP_AT = 35
# The first byte that the CRC covers, in a batch and in a message of magic 0 or 1 (CRC-R1, CRC-R7).
CRC_START = 21
CRC_START_LEGACY = 16

# Messages of magic 0 and 1 share a layout up to the attributes; magic 1 has a timestamp before the key:
#
#   offset i64 @0        size i32 @8           crc u32 @12                    magic i8 @16
#   attributes i8 @17    timestamp i64 @18 (magic 1)                          key @18 or @26, value: i32 length, bytes
#
# The CRC-32 covers byte 16 to the end (CRC-R7).
#
# Bytes before the key's length, by magic.
MESSAGE_HEADER_SIZES = (18, 26)
MESSAGE_ATTRIBUTES_AT = 17
MESSAGE_TIMESTAMP_AT = 18
ATTRIBUTE_CODEC = 0x07
ATTRIBUTE_LOG_APPEND_TIME = 0x08
ATTRIBUTE_TRANSACTIONAL = 0x10
ATTRIBUTE_CONTROL = 0x20
ATTRIBUTE_DELETE_HORIZON = 0x40
# The bits that have a meaning. DefaultRecordBatch clears the others when it rewrites a header.
KNOWN_ATTRIBUTES = 0x7F

NO_TIMESTAMP = -1


@public_in("kbatch")
class Codec(enum.IntEnum):
    """Compression codec of a batch: bits 0 to 2 of its attributes (ATT-R1).

    References
    ----------
    Rules such as ATT-R1 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> kbatch.Codec(4), kbatch.Codec["LZ4"].value
    (<Codec.ZSTD: 4>, 3)
    """

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


@public_in("kbatch")
class TimestampType(enum.IntEnum):
    """The meaning of a record's timestamp: bit 3 of the batch's attributes; -1 for magic 0, which has no timestamps.

    Kafka's ``TimestampType`` and Spark's ``timestampType`` column have the same numbers.

    Examples
    --------
    >>> import kbatch
    >>> batches = kbatch.scan(kbatch.encode([b"v"], timestamp_type="log_append_time", append_time=1000))
    >>> [kbatch.TimestampType(number).name for number in kbatch.TimestampType.of(batches).tolist()]
    ['LOG_APPEND_TIME']
    """

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1

    @staticmethod
    def of(batches: npt.NDArray[np.void]) -> npt.NDArray[np.int32]:
        """Return the type of each batch (LEG-R4).

        References
        ----------
        Rules such as LEG-R4 are listed in ``docs/format-rules.md``.
        """
        types = np.where(batches["attributes"] & ATTRIBUTE_LOG_APPEND_TIME, np.int32(1), np.int32(0))
        types[batches["magic"] == 0] = TimestampType.NO_TIMESTAMP_TYPE
        return types


@public_in("kbatch")
class BatchStatus(enum.IntEnum):
    """The result of decoding a batch: the ``status`` column of ``BATCH_DTYPE``.

    A batch with any status but `OK` has no records in the table, with two exceptions: `BAD_CRC` under ``crc="mark"``,
    and `BAD_INNER_CRC`, where a compressed message of magic 0 or 1 has a good checksum, but a message inside of it has
    a bad one. The outer checksum shows that the bytes are as they were written; Kafka's consumer returns such a message
    only with ``check.crcs=false``, and otherwise raises an error.

    `ABORTED` and `UNDECIDED` do not mean damage: read_committed leaves out the batches of aborted transactions, the
    batches of transactions whose marker is lost, and everything from the last stable offset on.

    Examples
    --------
    >>> import kbatch
    >>> data = bytearray(kbatch.encode([b"v"], timestamps=1000))
    >>> data[-1] ^= 1
    >>> table = kbatch.decode(data, on_error="skip")
    >>> [kbatch.BatchStatus(number).name for number in table.batches["status"].tolist()]
    ['BAD_CRC']
    """

    OK = 0
    BAD_CRC = 1
    INVALID = 2
    BAD_CODEC = 3
    UNSUPPORTED = 4
    OVER_LIMIT = 5
    ABORTED = 6
    BAD_INNER_CRC = 7
    UNDECIDED = 8

    @staticmethod
    def sound(status: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Return for each batch whether it is complete with a good checksum; it need not have records."""
        sound: npt.NDArray[np.bool_] = (status == BatchStatus.OK) | (status >= BatchStatus.ABORTED)
        return sound

    @staticmethod
    def damaged(status: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Return for each batch whether it or a message inside of it is damaged; its records may be in the table."""
        damaged: npt.NDArray[np.bool_] = ~BatchStatus.sound(status) | (status == BatchStatus.BAD_INNER_CRC)
        return damaged


@public_in("kbatch")
class ControlType(enum.IntEnum):
    """The type of a control record, as stored in its key (CTL-R1, CTL-R2).

    An id that is not listed here is not an error: later versions of Kafka may add types.

    References
    ----------
    Rules such as CTL-R1 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> marker = kbatch.encode_marker("abort", offset=5, timestamp=1000, producer_id=7, producer_epoch=0)
    >>> found = kbatch.control_records(kbatch.decode(marker, include_control=True))
    >>> [kbatch.ControlType(number).name for number in found["type"].tolist()]
    ['ABORT']
    """

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


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

# The columns that can be decoded, and the fields of RECORD_DTYPE that each of them needs. Every row also has the field
# `batch`: the batch determines the type of the timestamp.
COLUMN_FIELDS: dict[str, tuple[str, ...]] = {
    "offset": ("offset",),
    "timestamp": ("timestamp",),
    "timestampType": (),
    "key": ("key_pos", "key_len"),
    "value": ("value_pos", "value_len"),
    "headers": ("headers_pos", "header_count"),
}
COLUMNS = tuple(COLUMN_FIELDS)
# The columns of every view, in their order. The last two are included by default if the table came from a log.
VIEW_COLUMNS = (*COLUMNS, "topic", "partition")


@functools.cache
def record_dtype(columns: tuple[str, ...]) -> np.dtype[np.void]:
    """Return RECORD_DTYPE with only the fields that these columns need: 4 to 56 bytes per row."""
    fields = {"batch"}.union(*(COLUMN_FIELDS.get(name, ()) for name in columns))
    if fields == set(RECORD_DTYPE.names or ()):
        return RECORD_DTYPE
    return np.dtype([(name, RECORD_DTYPE[name]) for name in RECORD_DTYPE.names or () if name in fields], align=True)


BATCH_DTYPE = np.dtype(
    [
        ("base_offset", "<i8"),
        ("base_timestamp", "<i8"),
        ("max_timestamp", "<i8"),
        ("producer_id", "<i8"),
        ("position", "<i8"),
        ("size", "<i8"),
        ("first_record", "<i8"),
        ("last_offset", "<i8"),
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

# A control record with its parsed key and marker value; fields that cannot be read are -1.
CONTROL_DTYPE = np.dtype(
    [
        ("record", "<i8"),
        ("offset", "<i8"),
        ("timestamp", "<i8"),
        ("producer_id", "<i8"),
        ("batch", "<i4"),
        ("coordinator_epoch", "<i4"),
        ("type", "<i2"),
        ("version", "<i2"),
        ("producer_epoch", "<i2"),
        ("valid", "u1"),
    ],
    align=True,
)

# An aborted transaction: an entry of a .txnindex without its version (TXI-R1). `last_offset` is the marker's offset.
ABORTED_DTYPE = np.dtype(
    [
        ("producer_id", "<i8"),
        ("first_offset", "<i8"),
        ("last_offset", "<i8"),
        ("last_stable_offset", "<i8"),
    ],
    align=True,
)

# The state of an idempotent producer in a partition: an entry of a .snapshot (DSK-R6). `last_sequence`, `last_offset`
# and `offset_delta` (last offset minus first) describe its last batch; without one they are -1, -1 and 0.
PRODUCER_DTYPE = np.dtype(
    [
        ("producer_id", "<i8"),
        ("last_offset", "<i8"),
        ("timestamp", "<i8"),
        ("current_txn_first_offset", "<i8"),
        ("last_sequence", "<i4"),
        ("offset_delta", "<i4"),
        ("coordinator_epoch", "<i4"),
        ("producer_epoch", "<i2"),
    ],
    align=True,
)


@public_in("kbatch")
@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the memory and time that hostile or damaged input can cost.

    Parameters
    ----------
    max_decompressed_bytes : int or str
        The largest payload that one batch may decompress to, in bytes or as in ``"64m"``. It is checked while
        decompressing, so that no memory is allocated for output beyond it (COD-R8). The default is far above the
        batches that brokers accept (``message.max.bytes`` is 1 MiB before decompression) and far below the memory of a
        machine.
    max_batch_bytes : int or str, optional
        The largest batch, in bytes as stored. A header with a larger size is damage (FRM-R14), unless it belongs to an
        incomplete last batch in a fetch response or a file that is being written, and no valid batch follows.
        For sockets, where a wrong length makes a reader wait for bytes that never come, choose a little more than the
        ``message.max.bytes`` of the topic.
        None means the larger of `max_decompressed_bytes` and 64 MiB.
    max_table_bytes : int, optional
        The most memory, in bytes, of one table (its records, batches, losses and decompressed payloads) with its header
        rows and one view of it, such as `RecordTable.to_arrow`, `to_pandas`, `values` or selected rows. An input that
        is not copied does not count, nor do other views that the caller keeps. It is checked before memory is
        allocated. Also the most memory of the objects of one message of `kbatch.protocol`. None means half of the
        memory of the machine, the container or the process, whichever is the least, but at least 512 MiB. Readers that
        return several tables begin a new one instead, and split a large batch; their ``max_bytes`` does not include
        views, which this limit bounds.

    References
    ----------
    Rules such as COD-R8 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> kbatch.Limits(max_batch_bytes=2 << 20)
    Limits(max_decompressed_bytes=268435456, max_batch_bytes=2097152, max_table_bytes=None)
    """

    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
    max_batch_bytes: int | None = None
    max_table_bytes: int | None = None

    def __post_init__(self) -> None:
        # The smallest batch is a header.
        for name, minimum in (
            ("max_decompressed_bytes", 0),
            ("max_batch_bytes", BATCH_HEADER_SIZE),
            ("max_table_bytes", 0),
        ):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, size_between(name, value, minimum))


DEFAULT_LIMITS = Limits()
