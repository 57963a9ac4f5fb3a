"""Columns -> framed batches: `encode`, `encode_table`, and the batches that have no data in them.

What stands in a batch follows Kafka's ``MemoryRecordsBuilder`` (ATT-R6, TS-R8, REC-R8, LEG-R27), and what that refuses
is refused. The kernel measures all records, cutting them into batches; memory is allocated once, of just that size, and
filled, each batch's checksum taken while it is warm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from kbatch.batches.codecs import check_level, level_of, own_codecs
from kbatch.format import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_DTYPE,
    BATCH_HEADER_SIZE,
    INT32_MAX,
    INT64_MAX,
    MESSAGE_HEADER_SIZES,
    NO_TIMESTAMP,
    RECORD_DTYPE,
    BatchStatus,
    Codec,
    ControlType,
    TimestampType,
)
from kbatch.kernels import encode as _kernel
from kbatch.kernels.buffers import allocate
from kbatch.kernels.growing import Growing
from kbatch.kernels.sizes import Plan, measure, measure_batches
from kbatch.kernels.source import Column, Records
from kbatch.table import RecordTable
from kbatch.write.inputs import byte_column, header_column, millisecond, milliseconds, offsets_array

__all__ = [
    "Batches",
    "Layout",
    "append_time_of",
    "check_range",
    "compose",
    "composed",
    "encode",
    "encode_empty",
    "encode_marker",
    "encode_table",
    "frame_payload",
    "new_memory",
    "now",
    "overheads",
    "parse_codec",
    "plan_batches",
    "raise_trouble",
    "records_of",
    "table_records",
]

Batches: TypeAlias = npt.NDArray[np.void]

# Of a control record: int16 version, int16 type; of a marker's value: int16 version, int32 coordinator epoch. Both
# versions are 0 (CTL-R1, CTL-R3).
_MARKERS = {"abort": ControlType.ABORT, "commit": ControlType.COMMIT}

# What the kernel's numbers for trouble mean.
_TROUBLES = {
    1: "its key, value or headers reach outside of their buffer: the column is not valid",
    2: "a header has no key; only its value may be null",
    3: "timestamp is {found}; no timestamp is -1, and no other negative one is allowed",
    4: "offset is {found}; offsets must rise strictly",
    5: "offset is {found} after the batch's first, which is more than an int32 holds; give batch_size= or max_records=",
    6: "it takes {found} bytes or more, and no record may take more than 2147483647",
    7: "the batch would take {found} bytes, and none may take more than 2147483647; give batch_size= or max_records=",
    8: "its columns were changed while they were encoded",
}


def raise_trouble(trouble: int, row: int, found: int = 0) -> None:
    """Raise what the kernel found wrong with record `row`; nothing if it found nothing."""
    if trouble:
        raise ValueError(f"record {row}: " + _TROUBLES[trouble].format(found=found))


def now() -> int:
    """Return the time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def parse_codec(codec: Codec | str | int) -> Codec:
    """Return the codec of this name or number."""
    try:
        return Codec[codec.upper()] if isinstance(codec, str) else Codec(codec)
    except (KeyError, ValueError):
        names = ", ".join(repr(c.name.lower()) for c in Codec)
        raise ValueError(f"codec must be one of {names}, got {codec!r}") from None


def check_range(name: str, value: Any, least: int, most: int) -> None:
    """Raise unless `value` is an integer within these bounds."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be {least} to {most}, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the batches of one `encode` or writer have in common; the parameters are those of `encode`.

    Raises
    ------
    ValueError
        For what no Kafka client may write (ATT-R6, ZS-R1).
    """

    magic: int = 2
    codec: Codec = Codec.NONE
    level: int | None = None
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    delete_horizon: int | None = None

    @classmethod
    def of(
        cls,
        *,
        magic: int,
        codec: Codec | str | None,
        timestamp_type: TimestampType | Literal["create_time", "log_append_time"],
        **fields: Any,
    ) -> Layout:
        """Make a layout of arguments as users give them."""
        if isinstance(timestamp_type, str):
            try:
                timestamp_type = TimestampType[timestamp_type.upper()]
            except KeyError:
                raise ValueError(
                    f"timestamp_type must be 'create_time' or 'log_append_time', got {timestamp_type!r}"
                ) from None
        chosen = Codec.NONE if codec is None else parse_codec(codec)
        layout = cls(magic=magic, codec=chosen, timestamp_type=TimestampType(timestamp_type), **fields)
        layout._check()
        return layout

    def _check(self) -> None:
        if self.magic not in (0, 1, 2):
            raise ValueError(f"magic must be 0, 1 or 2, got {self.magic!r}")
        check_level(self.codec, self.level)
        check_range("leader_epoch", self.leader_epoch, -1, INT32_MAX)
        check_range("producer_id", self.producer_id, -1, INT64_MAX)
        check_range("producer_epoch", self.producer_epoch, -1, 2**15 - 1)
        check_range("base_sequence", self.base_sequence, -1, INT32_MAX)
        if not isinstance(self.transactional, bool | np.bool_):
            raise TypeError(f"transactional must be a bool, got {type(self.transactional).__name__}")
        if self.delete_horizon is not None:
            check_range("delete_horizon", self.delete_horizon, 0, INT64_MAX)
        if self.magic < 2:
            if self.codec == Codec.ZSTD:
                raise ValueError(f"zstd needs magic 2, got magic {self.magic}")
            for name, unset in (
                ("leader_epoch", -1),
                ("producer_id", -1),
                ("producer_epoch", -1),
                ("base_sequence", -1),
                ("transactional", False),
                ("delete_horizon", None),
            ):
                if getattr(self, name) != unset:
                    raise ValueError(f"{name} needs magic 2, got magic {self.magic}")
        if self.timestamp_type not in (TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME):
            raise ValueError("timestamp_type must be CREATE_TIME or LOG_APPEND_TIME; in magic 0 it says nothing")
        if self.magic == 0 and self.timestamp_type == TimestampType.LOG_APPEND_TIME:
            raise ValueError("magic 0 has no timestamps, and so no log_append_time")
        if self.producer_id < 0:
            if self.transactional:
                raise ValueError("a transactional batch needs a producer_id")
            for name in ("producer_epoch", "base_sequence"):
                if getattr(self, name) >= 0:
                    raise ValueError(f"{name} needs a producer_id")
        else:
            for name in ("producer_epoch", "base_sequence"):
                if getattr(self, name) < 0:
                    raise ValueError(f"a batch with a producer_id needs a {name}")

    @property
    def attributes(self) -> int:
        """The attributes of every batch (ATT-R1)."""
        return (
            int(self.codec)
            | ATTRIBUTE_LOG_APPEND_TIME * (self.timestamp_type == TimestampType.LOG_APPEND_TIME)
            | ATTRIBUTE_TRANSACTIONAL * self.transactional
            | ATTRIBUTE_DELETE_HORIZON * (self.delete_horizon is not None)
        )

    def plan(self, batch_size: int | None, max_records: int | None) -> Plan:
        """Return how records are cut into batches."""
        if batch_size is not None:
            check_range("batch_size", batch_size, 0, INT32_MAX)
        if max_records is not None:
            check_range("max_records", max_records, 1, INT32_MAX)
        return Plan(
            self.magic,
            self.attributes,
            room=INT32_MAX if batch_size is None else batch_size,
            max_records=INT32_MAX if max_records is None else max_records,
            cut=batch_size is not None or max_records is not None,
            horizon=self.delete_horizon,
        )

    def complete(self, batches: Batches, base_sequence: int, append_time: int | None) -> int:
        """Set what doesn't depend on records in measured batches; return the sequence that comes after them.

        Sequences go on over batches, by offsets as `DefaultRecordBatch.lastSequence` has it (SEQ-R3), and after
        2^31 - 1 comes 0 (SEQ-R1). An append time is the maximum timestamp of its batch (TS-R8).
        """
        batches["partition_leader_epoch"] = self.leader_epoch
        batches["producer_id"] = self.producer_id
        batches["producer_epoch"] = self.producer_epoch
        batches["base_sequence"] = -1
        if append_time is not None:
            batches["max_timestamp"] = append_time
        if self.producer_id < 0:
            return base_sequence
        steps = batches["last_offset_delta"].astype(np.int64) + 1
        after = base_sequence + np.cumsum(steps)
        batches["base_sequence"] = (after - steps) & INT32_MAX
        return int(after[-1]) & INT32_MAX if len(after) else base_sequence


def encode(
    values: Any,
    *,
    keys: Any = None,
    timestamps: Any = None,
    headers: Any = None,
    offsets: Any = None,
    base_offset: int = 0,
    magic: int = 2,
    codec: Codec | str | None = None,
    level: int | None = None,
    timestamp_type: TimestampType | Literal["create_time", "log_append_time"] = TimestampType.CREATE_TIME,
    append_time: Any = None,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    delete_horizon: int | None = None,
    batch_size: int | None = None,
    max_records: int | None = None,
) -> bytes:
    """Encode records as batches, ready for a log file or a Produce request.

    Parameters
    ----------
    values : sequence of bytes and None, ndarray, Arrow array, pandas or Polars column, or RecordTable
        One a record; None and null are a null value (a tombstone in a compacted topic). Of a NumPy array each item's
        bytes are a value, as they stand in memory (of dtype ``S`` without the NUL bytes at the end, which are padding;
        of ``uint8`` in two dimensions each row). Arrow columns may be chunked, of binary, strings (as UTF-8), their
        large and view types, fixed-size binary, integers and floats (little-endian), or a dictionary of those. Nothing
        is copied, and no Python object is made for a value, but of sequences. A `RecordTable` goes to `encode_table`;
        of the other parameters only `codec` and `level` may then be given. None, with `keys`, is a null for each.
    keys : as `values`, optional
        Default is null for all.
    timestamps : int, datetime, ndarray, sequence of int or datetime, Arrow, pandas or Polars column, optional
        Milliseconds since the epoch, datetime64 or Arrow timestamps (finer ones are rounded down; None, NaT, null and
        what is masked are -1, "no timestamp"), or one for all. Default is the time of this call, as of Kafka's
        producers. Magic 0 has none.
    headers : sequence of lists of (key, value), or Arrow column of list<struct<key, value>> or map, optional
        For each record its headers, or None. Order and duplicates survive. Keys are bytes, or str as UTF-8, and never
        null; values are bytes or None. Only with magic 2.
    offsets : ndarray or sequence of int, optional
        Of each record, rising strictly; there may be gaps. Default is `base_offset` and on from there.
    base_offset : int
        Offset of the first record, where `offsets` are not given. In a Produce request it has to be 0 (PRD-R3).
    magic : {2, 1, 0}
        Version of the format. With 0 and 1, and no codec, each record is an entry of its own; with one, a batch is a
        compressed message with messages in it.
    codec : {"none", "gzip", "snappy", "lz4", "zstd"}, or kbatch.Codec, optional
        zstd only with magic 2.
    level : int, optional
        1 to 9 for gzip, 1 to 17 for lz4, -131072 to 22 for zstd. See `kbatch.batches.codecs.compress` for the default.
    timestamp_type : {"create_time", "log_append_time"}, or kbatch.TimestampType
        With log_append_time every record has the `append_time`; with magic 2 its own stays in the bytes, as in Kafka,
        but no reader sees it.
    append_time : int or datetime, optional
        Only with log_append_time. Default is the time of this call.
    leader_epoch : int
        Partition leader epoch; -1 is unknown, as from producers.
    producer_id, producer_epoch, base_sequence : int
        Of an idempotent or transactional producer: all three or none (-1). The sequence goes on over batches.
    transactional : bool
        Whether the batches belong to a transaction; `encode_marker` ends it.
    delete_horizon : int, optional
        Milliseconds since the epoch after which a cleaner may drop tombstones and markers (KIP-534). Logs have it,
        producers never.
    batch_size : int, optional
        Bytes, header included and before compression, that a batch takes at most; a record that is larger gets a batch
        of its own. This is how producers cut, by ``batch.size``, but that they count on compression (PRD-R15). Default
        is one batch for all.
    max_records : int, optional
        Records of a batch at most.

    Returns
    -------
    bytes
        Whole batches; empty without records.

    Raises
    ------
    TypeError
        If a column is of a type that has no bytes, or that can't be timestamps, offsets or headers.
    ValueError
        If columns are not equally long, and for what the format forbids: headers, producer fields, delete horizon or
        zstd below magic 2, timestamps in magic 0, a header without a key, a negative timestamp but -1, offsets that
        don't rise, a transactional batch without producer id, an id without epoch and sequence (ATT-R6); a batch of
        more than 2147483647 bytes, or offsets over more than that in one batch.

    See Also
    --------
    BatchWriter : the same a piece at a time, into a file.
    encode_table : decoded batches, as they were.

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
    if isinstance(values, RecordTable):
        given = (keys, timestamps, headers, offsets, append_time, delete_horizon, batch_size, max_records)
        fields = (base_offset, magic, leader_epoch, producer_id, producer_epoch, base_sequence, transactional)
        if any(v is not None for v in given) or fields != (0, 2, -1, -1, -1, -1, False) or timestamp_type != 0:
            raise ValueError("a RecordTable brings its own fields: only codec and level go with it")
        return encode_table(values, codec=codec, level=level)
    layout = Layout.of(
        magic=magic,
        codec=codec,
        level=level,
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
    records = records_of(
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
        raise ValueError("base_offset is where offsets= begin: give one of them")
    batches = plan_batches(records, plan)
    layout.complete(batches, base_sequence, appended)
    return compose(records, batches, level)


def append_time_of(layout: Layout, append_time: Any) -> int | None:
    """Return the append time that batches get: what was given or the time of this call; None for create_time."""
    if layout.timestamp_type != TimestampType.LOG_APPEND_TIME:
        if append_time is not None:
            raise ValueError("append_time goes with timestamp_type='log_append_time'")
        return None
    appended = now() if append_time is None else millisecond(append_time)
    check_range("append_time", appended, -1, INT64_MAX)
    return appended


def records_of(
    values: Any,
    *,
    keys: Any,
    timestamps: Any,
    headers: Any,
    offsets: Any,
    next_offset: int,
    layout: Layout,
    append_time: int | None,
) -> Records:
    """Make the columns of records, checked as far as they can be without measuring; see `encode`.

    Without `offsets` they count from `next_offset`, and none of `offsets` is below that.
    """
    key_column: Column | None
    if values is None:
        if keys is None:
            raise TypeError("values=None needs keys, to say how many")
        value_column = Column()
        value_column.add_nulls((key_column := byte_column(keys, "keys")).length)
    else:
        value_column = byte_column(values, "values")
        key_column = None if keys is None else byte_column(keys, "keys")
        if key_column is not None and key_column.length != value_column.length:
            raise ValueError(f"keys must be as many as values, got {key_column.length} for {value_column.length}")
    count = value_column.length
    if layout.magic < 2 and headers is not None:
        raise ValueError(f"headers need magic 2, got magic {layout.magic}")
    columns: dict[str, Any] = {}
    header_columns = header_column(headers, count)
    if header_columns is not None:
        columns = header_columns._asdict()
    if layout.magic == 0:
        if timestamps is not None:
            raise ValueError("magic 0 has no timestamps")
        times, timestamp = None, NO_TIMESTAMP
    elif layout.magic == 1 and append_time is not None:
        times, timestamp = None, append_time
    elif timestamps is None:
        times, timestamp = None, now() if append_time is None else append_time
    else:
        times, timestamp = milliseconds(timestamps, count)
        check_range("timestamps", timestamp, -1, INT64_MAX)
    check_range("base_offset", next_offset, 0, INT64_MAX)
    if offsets is not None:
        columns["offsets"] = array = offsets_array(offsets, count)
        if count and array[0] < next_offset:
            raise ValueError(f"offset of the first record must be {next_offset} at least, got {array[0]}")
    elif count > INT64_MAX - next_offset + 1:
        raise ValueError(f"offsets must be below 2**63, got {count} from {next_offset} on")
    return Records(
        value_column, key_column, first_offset=int(next_offset), timestamps=times, timestamp=timestamp, **columns
    )


def plan_batches(records: Records, plan: Plan, open_batch: Batches | None = None) -> Batches:
    """Cut records into batches, the first of which continues `open_batch` if there is one.

    Sizes are those before compression.
    """
    batches = np.zeros(1 if open_batch is None else 2, BATCH_DTYPE)
    row = used = 0
    if open_batch is not None:
        batches[0] = open_batch
        batches["first_record"] = 0
        used = 1
    while True:
        used, row, trouble, found = measure(records, plan, row, batches, used)
        raise_trouble(trouble, row, found)
        if row == records.count:
            return batches[:used]
        # About as many as the records so far let expect, and at least twice as many as there were.
        expected = used * records.count // max(row, 1)
        grown = np.zeros(min(max(2 * used, expected + expected // 16 + 8), used + records.count - row), BATCH_DTYPE)
        grown[:used] = batches[:used]
        batches = grown


def overheads(batches: Batches) -> npt.NDArray[np.int64]:
    """Return how many bytes of each batch are not its payload; none of plain messages, each framed for itself."""
    # A compressed set is the value of a message: its header, no key, and the value's length.
    legacy = np.take(np.array(MESSAGE_HEADER_SIZES) + 8, np.minimum(batches["magic"], 1))
    legacy[batches["attributes"] & ATTRIBUTE_CODEC == 0] = 0
    return np.where(batches["magic"] == 2, BATCH_HEADER_SIZE, legacy)


def compose(records: Records | None, batches: Batches, level: int | None) -> bytes:
    """Write planned batches, compressing the payloads of those that have a codec; sets their size and position."""
    made = Growing()
    size = _kernel.packed_room(batches)
    made.reserve(size)
    room = made.spare(size)
    assert room is not None
    with room, room[: fill(records, batches, level, room)] as written:
        made.append(written, 0)
    return made.take()


def new_memory(size: int) -> memoryview:
    """Return memory that is used again."""
    return memoryview(allocate(size))


def composed(
    records: Records | None,
    batches: Batches,
    level: int | None,
    memory: Callable[[int], memoryview] = new_memory,
) -> memoryview:
    """Do what `compose` does, in memory that `memory` gives for the most bytes there can be."""
    out = memory(_kernel.packed_room(batches))
    return out[: fill(records, batches, level, out)]


def fill(records: Records | None, batches: Batches, level: int | None, out: memoryview) -> int:
    """Write whole batches to memory, and return how much of it they take; see `kbatch.kernels.encode.write`."""
    levels = [level_of(codec, level) for codec in Codec]
    used, row, trouble, found = _kernel.write(records, batches, own_codecs(), levels, out)
    raise_trouble(trouble, row, found)
    return used


def frame_payload(batch: Batches, payload: bytes | bytearray | memoryview) -> memoryview:
    """Return the batch that holds a payload; `batch`, of one row, gets its size, position and checksum."""
    before = int(overheads(batch)[0])
    with memoryview(payload) as stored:
        batch["size"] = size = before + len(stored)
        if size > INT32_MAX:
            raise_trouble(7, 0, size)
        out = new_memory(size)[:size]
        out[before:] = stored
    _kernel.frame(batch, out)
    return out


def encode_table(
    table: RecordTable,
    *,
    codec: Codec | str | None = None,
    level: int | None = None,
    omitted: Literal["raise", "drop"] = "raise",
) -> bytes:
    """Encode decoded batches as they were: with every field of their headers, gaps of offsets, and empty batches.

    Uncompressed batches as Kafka writes them come out byte for byte; of compressed ones the payloads are the same after
    decompression. Where writers have a choice, the ordinary one is taken: lengths are in their shortest form, the
    attributes of records, which nothing reads, are 0, as are the timestamp deltas that log-append time hides, and empty
    batches have no codec (EMP-R3).

    Of a slice or a selection, batches hold what is left of their records and keep their fields, as after compaction
    (OFF-R4); those of which nothing is left are not written.

    Parameters
    ----------
    table : RecordTable
        Control batches have to be in it if they are in the input: decode with ``include_control=True``.
    codec : {"none", "gzip", "snappy", "lz4", "zstd"}, or kbatch.Codec, optional
        For all batches but control batches (ATT-R5). Default is each one's own.
    level : int, optional
        As for `encode`.
    omitted : {"raise", "drop"}
        What to do about batches that the decode has left out: control batches, those of aborted or undecided
        transactions, damage.

    Returns
    -------
    bytes

    Raises
    ------
    ValueError
        If the table has only some columns; if the decode left out batches and that isn't `omitted`; if records are of
        a batch with a bad checksum, which a new one would hide; if magic and codec, or magic and timestamps, don't fit.

    Examples
    --------
    >>> import kbatch
    >>> data = kbatch.encode([b"a", b"b"], leader_epoch=3, offsets=[5, 9], timestamps=1000)
    >>> kbatch.encode(kbatch.decode(data)) == data
    True
    """
    if omitted not in ("raise", "drop"):
        raise ValueError(f"omitted must be 'raise' or 'drop', got {omitted!r}")
    rows = table.records
    if rows.dtype != RECORD_DTYPE:
        raise ValueError("the table has only some of its columns; decode all of them to encode them again")
    batches = _kept_batches(table, omitted)
    legacy = batches["magic"] < 2
    first, counts = batches["first_record"], batches["record_count"]
    if legacy.any():
        # A message set has no header to keep these in.
        batches["base_offset"][legacy] = rows["offset"][first[legacy]]
        batches["last_offset"][legacy] = rows["offset"][(first + counts - 1)[legacy]]
        _check_message_times(batches[legacy], rows["timestamp"])
    attributes = batches["attributes"]
    if codec is not None:
        chosen = parse_codec(codec)
        change = attributes & ATTRIBUTE_CONTROL == 0
        change |= legacy  # where the bit means nothing
        attributes[change] = attributes[change] & ~ATTRIBUTE_CODEC | int(chosen)
    attributes[counts == 0] &= ~ATTRIBUTE_CODEC
    for used in np.unique(attributes & ATTRIBUTE_CODEC).tolist():
        if used and level is not None:
            check_level(used, level)
    if (legacy & (attributes & ATTRIBUTE_CODEC == Codec.ZSTD)).any():
        raise ValueError("zstd needs magic 2, got batches of magic 0 or 1")
    times = rows["timestamp"]
    appended = ~legacy & (attributes & ATTRIBUTE_LOG_APPEND_TIME != 0)
    if appended.any():
        times = times.copy()
        times[_rows_of(batches[appended])] = np.repeat(batches["base_timestamp"][appended], counts[appended])
    records = table_records(table, timestamps=times)
    _, row, trouble, found = measure_batches(records, batches)
    raise_trouble(trouble, row, found)
    return compose(records, batches, level)


def _check_message_times(batches: Batches, times: npt.NDArray[np.int64]) -> None:
    """Refuse what only messages of another magic than that of the compressed one around them can say (LEG-R16)."""
    counts = batches["record_count"]
    times = times[_rows_of(batches)]
    without = np.repeat(batches["magic"] == 0, counts)
    if (times[without] != NO_TIMESTAMP).any():
        raise ValueError("messages of magic 1 in a compressed one of magic 0 have timestamps, which that hasn't")
    appended = np.repeat((batches["magic"] == 1) & (batches["attributes"] & ATTRIBUTE_LOG_APPEND_TIME != 0), counts)
    if (times != np.repeat(batches["max_timestamp"], counts))[appended].any():
        raise ValueError("messages of magic 0 in a compressed one with an append time have none, and can't be kept so")


def _rows_of(batches: Batches) -> npt.NDArray[np.int64]:
    """Return the rows of the records of batches."""
    counts = batches["record_count"]
    ends = np.cumsum(counts, dtype=np.int64)
    return np.repeat(batches["first_record"] - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)


def _kept_batches(table: RecordTable, omitted: str) -> Batches:
    """Return the batches to write, with the records that the table has of them."""
    batches = table.batches.copy()
    here = np.bincount(table.records["batch"], minlength=len(batches))
    status = batches["status"]
    tainted = (status != BatchStatus.OK) & (here > 0)
    if tainted.any():
        where = int(np.argmax(tainted))
        raise ValueError(
            f"byte {batches['position'][where]}, base offset {batches['base_offset'][where]}: the checksum is wrong "
            f"({BatchStatus(int(status[where])).name}), and a new one would hide that; leave these records out"
        )
    empty = (batches["record_count"] == 0) & (batches["magic"] == 2) & (status == BatchStatus.OK)
    control = (batches["magic"] == 2) & (batches["attributes"] & ATTRIBUTE_CONTROL != 0)
    missing = (here == 0) & ~empty & (control | (status != BatchStatus.OK))
    if omitted == "raise":
        if table.losses:
            loss = table.losses[0]
            raise ValueError(
                f"byte {loss.position}: the decode lost {loss.length} bytes ({loss.reason}); omitted='drop'"
            )
        if missing.any():
            where = int(np.argmax(missing))
            what = BatchStatus(int(status[where])).name
            raise ValueError(
                f"byte {batches['position'][where]}, base offset {batches['base_offset'][where]}: the decode left out "
                + (
                    "this control batch; decode with include_control=True, or give omitted='drop'"
                    if status[where] == BatchStatus.OK
                    else f"this batch ({what}); omitted='drop' drops such batches"
                )
            )
    batches["record_count"] = here
    kept: Batches = batches[(here > 0) | empty]
    return kept


def table_records(
    table: RecordTable,
    *,
    offsets: npt.NDArray[np.int64] | None = None,
    timestamps: npt.NDArray[np.int64] | None = None,
) -> Records:
    """Make the columns of a whole table's records, with other offsets and timestamps if they are given."""
    rows = table.records
    keys, values = Column(), Column()
    keys.add_slices(rows["key_pos"], rows["key_len"], table.data)
    values.add_slices(rows["value_pos"], rows["value_len"], table.data)
    columns: dict[str, Any] = {}
    headers = table.headers
    if len(headers):
        header_keys, header_values = Column(), Column()
        header_keys.add_slices(headers["key_pos"], headers["key_len"], table.data)
        header_values.add_slices(headers["value_pos"], headers["value_len"], table.data)
        counts = rows["header_count"]
        columns = {
            "header_first": np.cumsum(counts, dtype=np.int64) - counts,
            "header_count": counts,
            "header_keys": header_keys,
            "header_values": header_values,
        }
    return Records(
        values,
        keys,
        offsets=rows["offset"] if offsets is None else offsets,
        timestamps=rows["timestamp"] if timestamps is None else timestamps,
        **columns,
    )


def encode_marker(
    kind: Literal["commit", "abort"] | ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int = 0,
    offset: int = 0,
    timestamp: Any = None,
    leader_epoch: int = -1,
) -> bytes:
    """Encode the control batch that ends a transaction, as a transaction coordinator has it written.

    Parameters
    ----------
    kind : {"commit", "abort"}, or kbatch.ControlType
    producer_id, producer_epoch : int
        Of the transaction.
    coordinator_epoch : int
        Epoch of the transaction coordinator, the marker's only value.
    offset : int
        Of the marker, which takes one like any record.
    timestamp : int or datetime, optional
        Default is the time of this call.
    leader_epoch : int
        As for `encode`.

    Returns
    -------
    bytes
        A batch of one record: transactional, control, uncompressed, without a sequence (CTL-R6, SEQ-R6).

    Raises
    ------
    ValueError
        If it is no such kind, or a number is out of range.

    Notes
    -----
    ``MemoryRecords.withEndTransactionMarker``, ``EndTxnMarker.json``, ``ControlRecordTypeSchema.json``.

    Examples
    --------
    >>> import kbatch
    >>> data = kbatch.encode([b"a"], producer_id=9, producer_epoch=2, base_sequence=0, transactional=True)
    >>> data += kbatch.encode_marker("abort", producer_id=9, producer_epoch=2, offset=1)
    >>> len(kbatch.decode(data)), len(kbatch.decode(data, isolation="read_committed"))
    (1, 0)
    """
    marker = _MARKERS.get(kind) if isinstance(kind, str) else kind
    if marker is None or marker not in _MARKERS.values():
        raise ValueError(f"a transaction ends with 'commit' or 'abort', got {kind!r}")
    check_range("producer_id", producer_id, 0, INT64_MAX)
    check_range("producer_epoch", producer_epoch, 0, 2**15 - 1)
    check_range("coordinator_epoch", coordinator_epoch, -(2**31), INT32_MAX)
    check_range("leader_epoch", leader_epoch, -1, INT32_MAX)
    check_range("offset", offset, 0, INT64_MAX)
    stamp = now() if timestamp is None else millisecond(timestamp)
    check_range("timestamp", stamp, -1, INT64_MAX)
    records = records_of(
        [b"\0\0" + int(coordinator_epoch).to_bytes(4, "big", signed=True)],
        keys=[b"\0\0" + int(marker).to_bytes(2, "big")],
        timestamps=stamp,
        headers=None,
        offsets=None,
        next_offset=offset,
        layout=Layout(),
        append_time=None,
    )
    batches = plan_batches(records, Plan(2, ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL))
    batches["producer_id"], batches["producer_epoch"], batches["base_sequence"] = producer_id, producer_epoch, -1
    batches["partition_leader_epoch"] = leader_epoch
    return compose(records, batches, None)


def encode_empty(
    base_offset: int,
    last_offset: int,
    *,
    max_timestamp: int = NO_TIMESTAMP,
    timestamp_type: TimestampType | Literal["create_time", "log_append_time"] = TimestampType.CREATE_TIME,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """Encode a batch without records, by which a compacted log keeps a producer's last sequence or its last offset.

    Parameters
    ----------
    base_offset, last_offset : int
        The offsets that it stands for, both inclusive.
    max_timestamp : int
        Of the batch that it was, in milliseconds since the epoch.
    control : bool
        Whether it was a control batch.
    timestamp_type, leader_epoch, producer_id, producer_epoch, base_sequence, transactional
        As for `encode`; a control batch has no sequence.

    Returns
    -------
    bytes
        61 of them. Its codec is none (EMP-R3), its base timestamp -1 (TS-R7).

    Raises
    ------
    ValueError
        As `encode` does; or if the offsets are not in order, or further apart than an int32 holds.

    Notes
    -----
    ``DefaultRecordBatch.writeEmptyHeader``; EMP-R1.

    Examples
    --------
    >>> import kbatch
    >>> kbatch.decode(kbatch.encode_empty(20, 24)).batches["last_offset"].tolist()
    [24]
    """
    layout = Layout.of(
        magic=2,
        codec=None,
        timestamp_type=timestamp_type,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=0 if control and producer_id >= 0 and base_sequence == -1 else base_sequence,
        transactional=transactional,
    )
    check_range("base_offset", base_offset, 0, INT64_MAX)
    check_range("last_offset", last_offset, base_offset, min(base_offset + INT32_MAX, INT64_MAX))
    check_range("max_timestamp", max_timestamp, -1, INT64_MAX)
    batches = np.zeros(1, BATCH_DTYPE)
    batches["magic"] = 2
    batches["attributes"] = layout.attributes | ATTRIBUTE_CONTROL * control
    batches["base_offset"], batches["last_offset"] = base_offset, last_offset
    batches["last_offset_delta"] = last_offset - base_offset
    batches["base_timestamp"], batches["max_timestamp"] = NO_TIMESTAMP, max_timestamp
    batches["size"] = BATCH_HEADER_SIZE
    layout.complete(batches, layout.base_sequence, None)
    batches["base_sequence"] = base_sequence
    return compose(None, batches, None)
