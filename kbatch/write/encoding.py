"""Columns -> batches, in one call.

The content of a batch follows Kafka's ``MemoryRecordsBuilder`` (ATT-R6, TS-R8, REC-R8, LEG-R27). Arguments that it
rejects raise an exception here.
"""

from __future__ import annotations

from typing import Any, Literal

from kbatch.arguments import check_types
from kbatch.format import Codec, TimestampType
from kbatch.options import CodecLevel, CodecName
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike
from kbatch.table import RecordTable
from kbatch.write.batch_layout import BatchLayout, append_time_of
from kbatch.write.composing import compose, plan_batches, record_columns
from kbatch.write.original_batches import encode_table

__all__ = ["encode"]


@public_in("kbatch")
def encode(
    values: Any,
    *,
    keys: Any = None,
    timestamps: Any = None,
    headers: Any = None,
    offsets: Any = None,
    base_offset: int = 0,
    magic: int = 2,
    codec: Codec | CodecName | CodecLevel | None = None,
    timestamp_type: TimestampType | Literal["create_time", "log_append_time"] = TimestampType.CREATE_TIME,
    append_time: Any = None,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    delete_horizon: int | None = None,
    batch_size: SizeLike | None = None,
    max_records: int | None = None,
) -> bytes:
    """Encode records as batches, ready for a log file or a Produce request.

    Parameters
    ----------
    values : sequence of bytes and None, ndarray, Arrow array, pandas or Polars column, or RecordTable
        One per record; None and null are a null value (a tombstone in a compacted topic). In a NumPy array the bytes of
        each item in memory are a value (dtype ``S`` without trailing NUL bytes, which are padding), and in a
        two-dimensional array of ``uint8`` each row. Arrow columns may be chunked, of binary, strings (as UTF-8), their
        large and view types, fixed-size binary, integers and floats (little-endian), or a dictionary of such values.
        Array values are not copied, and no Python object is made per value. A `RecordTable` is passed to
        `encode_table`, with `codec` as the only other argument. None means a null value for each of
        `keys`.
    keys : as `values`, optional
        Default is null for all.
    timestamps : int, datetime, str, or an array, sequence or column of these, optional
        Milliseconds since the epoch, datetime64 or Arrow timestamps, texts in ISO 8601, or one for all records. Finer
        units are rounded down; None, NaT, null and masked items are -1, "no timestamp". Default is the time of this
        call, as in Kafka's producers. Magic 0 has no timestamps.
    headers : sequence of lists of (key, value), or Arrow column of list<struct<key, value>> or map, optional
        The headers of each record, or None. Order and duplicates are kept. Keys are bytes, or str as UTF-8, and never
        null; values are bytes or None. Only with magic 2.
    offsets : ndarray or sequence of int, optional
        Strictly increasing, gaps allowed. Default is consecutive offsets from `base_offset`.
    base_offset : int
        Offset of the first record, if `offsets` are not given. In a Produce request it must be 0 (PRD-R3).
    magic : {2, 1, 0}
        Version of the format. In 0 and 1 each record is a separate message; with a codec, a batch is a compressed
        message that contains messages.
    codec : str or kbatch.Codec, optional
        "none", "gzip", "snappy", "lz4" or "zstd". gzip, lz4 and zstd may have a level, as in ``"zstd:3"``: 1 to 9 for
        gzip, 1 to 17 for lz4, -131072 to 22 for zstd. The default is that of Kafka's producer: 6 for gzip, 9 for lz4,
        3 for zstd. zstd needs magic 2.
    timestamp_type : {"create_time", "log_append_time"}, or kbatch.TimestampType
        With log_append_time every record has the `append_time`; in magic 2 the bytes keep its own timestamp, as in
        Kafka, but readers ignore it.
    append_time : int, datetime or str, optional
        Only with log_append_time. Default is the time of this call.
    leader_epoch : int
        Partition leader epoch; -1 is unknown, as from producers.
    producer_id, producer_epoch, base_sequence : int
        Of an idempotent or transactional producer: all three, or none (-1). The sequence continues across batches.
    transactional : bool
        Whether the batches belong to a transaction; `encode_marker` ends it.
    delete_horizon : int, optional
        Milliseconds since the epoch after which a cleaner may drop tombstones and markers (KIP-534). Only compacted
        logs have it, never batches from producers.
    batch_size : int or str, optional
        Maximum size of a batch, in bytes or as in ``"64k"``, including its header and before compression; a larger
        record gets a separate batch.
        Producers cut by ``batch.size`` in the same way, but estimate the compressed size (PRD-R15). Default is one
        batch for all records.
    max_records : int, optional
        Maximum records of a batch.

    Returns
    -------
    bytes
        Whole batches; empty without records.

    Raises
    ------
    TypeError
        If the type of a column cannot be converted to bytes, timestamps, offsets or headers.
    ValueError
        If columns differ in length, or the format forbids an argument: headers, producer fields, delete horizon or
        zstd below magic 2, timestamps in magic 0, a header without a key, a negative timestamp other than -1, offsets
        that are not strictly increasing, a transactional batch without producer id, an id without epoch and sequence
        (ATT-R6), a batch of more than 2147483647 bytes, or offsets in one batch that are further apart than that.

    See Also
    --------
    BatchWriter : writes records to a file as they arrive.
    encode_table : encodes decoded batches unchanged.

    References
    ----------
    Rules such as PRD-R3 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> data = kbatch.encode([b"a", None], keys=[b"k", b"k"], timestamps=[1000, 1005], codec="zstd", base_offset=7)
    >>> table = kbatch.decode(data)
    >>> table.values(), table.records["offset"].tolist(), table.records["timestamp"].tolist()
    ([b'a', None], [7, 8], [1000, 1005])

    NumPy arrays, each item's bytes; and batches of at most 16 KiB:

    >>> import numpy as np
    >>> data = kbatch.encode(np.arange(10_000, dtype=">i8"), batch_size=16_384)
    >>> len(kbatch.scan(data)), int(kbatch.decode(data).values_as(">i8").sum())
    (10, 49995000)
    """
    check_types(encode, locals())
    if isinstance(values, RecordTable):
        given = (keys, timestamps, headers, offsets, append_time, delete_horizon, batch_size, max_records)
        fields = (base_offset, magic, leader_epoch, producer_id, producer_epoch, base_sequence, transactional)
        if any(v is not None for v in given) or fields != (0, 2, -1, -1, -1, -1, False) or timestamp_type != 0:
            raise ValueError("with a RecordTable, only codec may be given: the table has all other fields")
        return encode_table(values, codec=codec)
    layout = BatchLayout.of(
        magic=magic,
        codec=codec,
        timestamp_type=timestamp_type,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        delete_horizon=delete_horizon,
    )
    appended = append_time_of(layout, append_time)
    plan = layout.plan(batch_size, max_records)
    records = record_columns(
        values,
        keys=keys,
        timestamps=timestamps,
        headers=headers,
        offsets=offsets,
        next_offset=base_offset,
        layout=layout,
        append_time=appended,
    )
    if offsets is not None and base_offset:
        raise ValueError("base_offset and offsets exclude each other")
    batches = plan_batches(records, plan)
    layout.complete(batches, base_sequence, appended)
    return compose(records, batches, layout.level)
