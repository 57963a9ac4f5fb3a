"""Rows of a DataFrame by topic-partition: the columns, their types, and Kafka's default partitioner.

The columns of Spark's Kafka sink, plus timestamp and offset, which a log can store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from kbatch import options as opts
from kbatch.broker.partitioner import key_partitions
from kbatch.format import INT32_MAX, TimestampType
from kbatch.options import CODEC_LEVELS, OptionError, ValueKind, option
from kbatch.records.kafka_columns import SPARK_COLUMNS
from kbatch.write.batch_layout import now

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RowOptions", "RowSplitter", "check_columns"]

_TIMESTAMP_TYPES = {"createtime": TimestampType.CREATE_TIME, "logappendtime": TimestampType.LOG_APPEND_TIME}
# Kafka's Topic.validate.
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


def _parse_timestamp_type(text: str) -> TimestampType:
    try:
        return _TIMESTAMP_TYPES[text.strip().replace("_", "").lower()]
    except KeyError:
        raise ValueError(f"must be CreateTime or LogAppendTime, got {text!r}") from None


def _check_topic(topic: str) -> None:
    if topic in (".", "..") or not _TOPIC.fullmatch(topic):
        raise ValueError(
            f"must be a name that Kafka allows: 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-', got {topic!r}"
        )


_CODEC = ValueKind(
    str, "zstd:3", lambda text: opts.parse_codec_level(text, CODEC_LEVELS) and None, metavar="CODEC[:LEVEL]"
)
_TIMESTAMP_TYPE = ValueKind(
    _parse_timestamp_type,
    "LogAppendTime",
    metavar="{CreateTime,LogAppendTime}",
    show=lambda value: "LogAppendTime" if value else "CreateTime",
)


@opts.documented
@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """How rows become batches of topic-partitions. Picklable, with plain values only.

    Attributes
    ----------
    {options}
    now : int
        Timestamp in milliseconds of records without a timestamp column, and the append time.
    """

    topic: str | None = option(
        ValueKind(str, "orders", _check_topic),
        None,
        spark="topic",
        help="the topic of all rows; overrides the column topic",
    )
    num_partitions: int = option(
        opts.whole_number(1, INT32_MAX), 1, spark="numPartitions",
        help="number of partitions, if the column partition is missing or null: Kafka's default partitioner chooses "
        "one by the key; rows without a key go to each in turn",
    )  # fmt: skip
    offsets: Literal["keep", "assign"] = option(
        opts.choice("keep", "assign"), "keep", spark="offsets",
        help="keep the offsets of a column offset, or assign new ones after the log's last",
    )  # fmt: skip
    codec: str = option(
        _CODEC, "none", spark="codec",
        help="none, gzip, snappy, lz4 or zstd, with a level such as zstd:3",
    )  # fmt: skip
    batch_size: int = option(
        opts.size(0, INT32_MAX),
        16384,
        spark="batchSize",
        help="largest size of a batch in bytes; see `BatchWriter`",
    )
    timestamp_type: TimestampType = option(
        _TIMESTAMP_TYPE, TimestampType.CREATE_TIME, spark="timestampType",
        help="whether batches have the timestamps of their records, or the time of the write",
    )  # fmt: skip
    headers: bool = option(
        opts.BOOLEAN, True, spark="includeHeaders", help="write the column of headers, if there is one"
    )
    now: int = field(default_factory=now)

    def __post_init__(self) -> None:
        opts.check_options(self)


def check_columns(schema: pa.Schema, options: RowOptions) -> None:
    """Raise if rows of this schema can't be written.

    Raises
    ------
    ValueError
        If a column is missing, duplicated or unknown.
    TypeError
        If a column has a type that can't be written.
    """
    from pyarrow import types

    names = schema.names
    unknown = [name for name in names if name not in SPARK_COLUMNS]
    if unknown:
        raise ValueError(
            f"column {', '.join(map(repr, unknown))} can't be written; select from {', '.join(SPARK_COLUMNS)}"
        )
    if len(set(names)) != len(names):
        raise ValueError(f"column names must be unique, got {', '.join(names)}")
    if "value" not in names:
        raise ValueError("required column 'value' is missing")
    if "topic" not in names and options.topic is None:
        raise OptionError("column 'topic' is missing: add it, or give the topic of all rows as {topic}")
    for name in names:
        kind = schema.field(name).type
        if types.is_dictionary(kind):
            kind = kind.value_type
        if not types.is_null(kind) and (options.headers or name != "headers"):
            _check_type(name, kind)


def _check_type(name: str, kind: pa.DataType) -> None:
    """Raise TypeError if a column can't have a type."""
    from pyarrow import types

    if name in ("key", "value"):
        fits, expected = _is_binary(kind) or _is_string(kind), "binary or string"
    elif name == "topic":
        fits, expected = _is_string(kind), "string"
    elif name in ("partition", "offset"):
        fits, expected = types.is_integer(kind), "an integer"
    elif name == "timestamp":
        fits, expected = types.is_timestamp(kind) or types.is_int64(kind), "a timestamp, or milliseconds as int64"
    elif name == "headers":
        fits, expected = _is_headers(kind), "array<struct<key: string, value: binary>>"
    else:
        return
    if not fits:
        raise TypeError(f"column {name!r} must be {expected}, not {kind}; cast it")


def _is_binary(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def _is_string(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_headers(kind: pa.DataType) -> bool:
    from pyarrow import types

    if types.is_map(kind):
        pair = [kind.key_type, kind.item_type]
    elif (types.is_list(kind) or types.is_large_list(kind)) and types.is_struct(kind.value_type):
        fields = kind.value_type
        if {fields.field(i).name for i in range(fields.num_fields)} != {"key", "value"}:
            return False
        pair = [fields.field(name).type for name in ("key", "value")]
    else:
        return False
    return all(_is_binary(each) or _is_string(each) or types.is_null(each) for each in pair)


class RowSplitter:
    """Distributes rows among topic-partitions; the rows of each topic-partition keep their order.

    Parameters
    ----------
    options : RowOptions
    turn : int
        First partition for null keys, so that tasks do not all begin with the same one.
    """

    def __init__(self, options: RowOptions, turn: int = 0) -> None:
        self._options = options
        self._turn = turn
        self._checked: set[str] = set()
        self._schema: pa.Schema | None = None

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        """Yield each topic and partition with its rows.

        Raises
        ------
        ValueError, TypeError
            As for `check_columns`; also if a topic is null or invalid, or a partition is negative.
        """
        if self._schema is None or batch.schema != self._schema:
            check_columns(batch.schema, self._options)
            self._schema = batch.schema
        if not batch.num_rows:
            return
        import pyarrow as pa

        batch = _movable(batch)
        names, codes = self._topics(batch)
        partitions = self._partitions(batch)
        targets = codes << 31 | partitions
        chosen, groups = np.unique(targets, return_inverse=True)
        if len(chosen) > 1 and (groups[1:] < groups[:-1]).any():
            order = np.argsort(groups, kind="stable")
            batch, groups = batch.take(pa.array(order, pa.int64())), groups[order]
        edges = np.searchsorted(groups, np.arange(len(chosen) + 1))
        for i, target in enumerate(chosen.tolist()):
            start, stop = int(edges[i]), int(edges[i + 1])
            yield names[target >> 31], target & INT32_MAX, batch.slice(start, stop - start)

    def _topics(self, batch: pa.RecordBatch) -> tuple[list[str], npt.NDArray[np.int64]]:
        if self._options.topic is not None:
            return [self._options.topic], np.zeros(batch.num_rows, np.int64)
        column = batch.column("topic")
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise OptionError("row {0} of a batch: the topic is null; set it, or give {topic}", row)
        encoded = column.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        for name in set(names) - self._checked:
            try:
                _check_topic(name)
            except ValueError as error:
                raise ValueError(f"topic {error}") from None
            self._checked.add(name)
        return names, encoded.indices.to_numpy().astype(np.int64)

    def _partitions(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        count, num_partitions = batch.num_rows, self._options.num_partitions
        missing = np.ones(count, np.bool_)
        partitions = np.zeros(count, np.int64)
        if "partition" in batch.schema.names:
            column = batch.column("partition")
            missing = column.is_null().to_numpy(zero_copy_only=False)
            partitions = _integers(column, 0)
            wrong = ((partitions < 0) | (partitions > INT32_MAX)) & ~missing
            if wrong.any():
                row = int(np.argmax(wrong))
                raise ValueError(f"row {row} of a batch: partition {partitions[row]} must be 0 to {INT32_MAX}")
        if not missing.any():
            return partitions
        keyless = missing
        if "key" in batch.schema.names:
            keys = batch.column("key")
            keyless = missing & keys.is_null().to_numpy(zero_copy_only=False)
            hashed = missing & ~keyless
            if hashed.any():
                partitions = np.where(hashed, key_partitions(keys, num_partitions), partitions)
        turns = int(np.count_nonzero(keyless))
        partitions = partitions.copy()
        partitions[keyless] = (self._turn + np.arange(turns)) % num_partitions
        self._turn = (self._turn + turns) % num_partitions
        return partitions


def _movable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with view columns cast to other types, because pyarrow can't take rows from views."""
    import pyarrow as pa
    from pyarrow import types

    columns = []
    for column in batch.columns:
        if types.is_dictionary(column.type):
            dictionary = column.dictionary.cast(_unviewed(column.dictionary.type))
            column = dictionary.take(column.indices)
        kind = _unviewed(column.type)
        columns.append(column if kind == column.type else column.cast(kind))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _unviewed(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa
    from pyarrow import types

    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_list(kind) or types.is_large_list(kind):
        inner = kind.value_type
        if types.is_struct(inner):
            fields = [inner.field(i) for i in range(inner.num_fields)]
            inner = pa.struct([each.with_type(_unviewed(each.type)) for each in fields])
        if inner != kind.value_type:
            return (pa.list_ if types.is_list(kind) else pa.large_list)(kind.value_field.with_type(inner))
    return kind


def _integers(column: pa.Array, null: int) -> npt.NDArray[np.int64]:
    import pyarrow as pa

    column = column.cast(pa.int64())
    return np.asarray((column.fill_null(null) if column.null_count else column).to_numpy(zero_copy_only=False))
