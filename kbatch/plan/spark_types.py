"""Spark's types for parsed keys and values, without importing PySpark."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute

from kbatch.quantities import SizeLike
from kbatch.values.memory import MAX_PARSED_BYTES
from kbatch.values.parsed import Parsed, Parser

__all__ = ["SparkParser", "spark_type"]

_UNFIT = "a value that Spark has no type for, such as a timestamp beyond microseconds"


def spark_type(kind: pa.DataType) -> pa.DataType:
    """Return the Spark-compatible type for an Arrow type: no unsigned integers, and times in microseconds.

    Unsigned integers become the next wider type, uint64 becomes decimal(20, 0), times of day become integers, and null
    types become strings.
    """
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, spark_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(spark_type(kind.key_type), spark_type(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", spark_type(kind.value_type)))
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_time32(kind):
        return pa.int32()
    if types.is_time64(kind):
        return pa.int64()
    if types.is_null(kind) or types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    wider = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
    }
    return wider.get(kind, kind)


@dataclass(frozen=True)
class SparkParser:
    """A parser whose values have Spark's types; a value that does not fit is bad."""

    parser: Parser
    type: pa.DataType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", spark_type(self.parser.type))

    def parse(self, column: pa.Array, max_bytes: SizeLike = MAX_PARSED_BYTES) -> Parsed:
        """Parse a binary array; LimitExceededError if the values take more than `max_bytes` of memory."""
        parsed = self.parser.parse(column, max_bytes)
        if parsed.values.type.equals(self.type):
            return parsed
        parts: list[pa.Array] = [pa.nulls(0, self.type)]
        unfit: list[int] = []
        _cast_by_halves(parsed.values, 0, self.type, parts, unfit)
        errors = dict.fromkeys(unfit, _UNFIT) | dict(zip(parsed.bad.tolist(), parsed.errors, strict=True))
        bad = sorted(errors)
        return parsed._replace(
            values=pa.concat_arrays(parts), bad=np.array(bad, np.int64), errors=[errors[row] for row in bad]
        )


def _cast_by_halves(values: pa.Array, first: int, kind: pa.DataType, parts: list[pa.Array], unfit: list[int]) -> None:
    """Cast an array; collect the rows that do not fit, counted from `first`: timestamps beyond microseconds."""
    try:
        parts.append(_cast_to_spark(values, kind))
    except pa.ArrowInvalid:
        if len(values) == 1:
            parts.append(pa.nulls(1, kind))
            unfit.append(first)
            return
        half = len(values) // 2
        _cast_by_halves(values.slice(0, half), first, kind, parts, unfit)
        _cast_by_halves(values.slice(half), first + half, kind, parts, unfit)


def _cast_to_spark(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast an array. Arrow's own cast does not support maps, and treats the loss of nanoseconds as an error."""
    types = pa.types
    if values.type.equals(kind):
        return values
    if types.is_struct(kind):
        children = [_cast_to_spark(values.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if types.is_map(kind):
        pairs = [_cast_to_spark(values.keys, kind.key_type), _cast_to_spark(values.items, kind.item_type)]
        below = pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(
            kind, len(values), values.buffers()[:2], values.null_count, values.offset, children=[below]
        )
    if types.is_list(values.type) and types.is_list(kind):
        below = _cast_to_spark(values.values, kind.value_type)
        return pa.Array.from_buffers(
            kind, len(values), values.buffers()[:2], values.null_count, values.offset, children=[below]
        )
    if types.is_timestamp(values.type) and values.type.unit == "ns":
        values = pyarrow.compute.floor_temporal(values, unit="microsecond")
    return values.cast(kind)
