"""Parses the keys and values of Arrow batches, between decoding and the output of data source and export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import BinaryType, StructField, StructType

from kbatch.log import Log, Segment
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.value_options import ValueOptions
from kbatch.read.decode_options import DecodeOptions
from kbatch.spark.schema import columns_of, kafka_schema
from kbatch.values.parsed import On, Parser, parse_column, sample

__all__ = ["ValueColumns", "columns_for", "parsers_of", "spark_type", "value_columns", "value_schema"]

# A schema is inferred from at most this number of places in the logs, and of values; a place has about these bytes.
_SAMPLED_PLACES = 64
_SAMPLED_ROWS = 6400
_SAMPLED_BYTES = 256 << 10


def spark_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that Spark has for an Arrow type: without unsigned integers, and times as microseconds.

    Unsigned integers become the next wider type, uint64 decimal(20, 0), times of day their integers, and null types
    strings.
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
class ValueColumns:
    """Parses the columns ``key`` and ``value`` of batches; a `kbatch.plan.rows.Transform`.

    Attributes
    ----------
    parsers : mapping of {"key", "value"} to Parser
    columns : tuple of str or None
        The columns of the result, in this order; None is all of them.
    """

    parsers: Mapping[On, Parser]
    columns: tuple[str, ...] | None = None

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the result of `apply`: values in place of bytes, then ``key_bad`` and ``value_bad``."""
        for on, parser in self.parsers.items():
            at = schema.get_field_index(on)
            if at >= 0:
                schema = schema.set(at, pa.field(on, spark_type(parser.type))).append(
                    pa.field(f"{on}_bad", pa.binary())
                )
        return schema if self.columns is None else pa.schema([schema.field(name) for name in self.columns])

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Parse a batch; ``key_bad`` and ``value_bad`` get the bytes that cannot be parsed, and are otherwise null."""
        schema = self.schema(batch.schema)
        columns = {name: batch.column(name) for name in batch.schema.names}
        for on, parser in self.parsers.items():
            raw = columns.get(on)
            if raw is None:
                continue
            values, bad = _spark_values(parser, raw)
            columns[on] = values
            mask = np.zeros(len(raw), np.bool_)
            mask[bad] = True
            columns[f"{on}_bad"] = pyarrow.compute.if_else(pa.array(mask), raw, pa.scalar(None, pa.binary()))
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _spark_values(parser: Parser, raw: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Parse values and cast them to Spark's types; a value that does not fit is bad."""
    kind = spark_type(parser.type)
    chunked, bad, _ = parse_column(parser, [raw])
    values = chunked.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.nulls(0, parser.type)
    if values.type.equals(kind):
        return values, bad
    parts: list[pa.Array] = [pa.nulls(0, kind)]
    unfit: list[int] = []
    _cast_by_halves(values, 0, kind, parts, unfit)
    return pa.concat_arrays(parts), np.union1d(bad, np.array(unfit, np.int64))


def _cast_by_halves(values: pa.Array, first: int, kind: pa.DataType, parts: list[pa.Array], unfit: list[int]) -> None:
    """Cast an array; collect the rows, counted from `first`, that do not fit: timestamps beyond microseconds."""
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


def sample_logs(logs: Sequence[Log], options: ReadOptions, on: On) -> list[bytes]:
    """Return keys or values from places spread evenly over all bytes of the logs, to infer a schema; skip damage."""
    ends = np.cumsum([segment.size for log in logs for segment in log.segments])
    segments = [(log, segment) for log in logs for segment in log.segments]
    if not len(ends) or not ends[-1]:
        return []
    found: list[bytes] = []
    seen: set[tuple[str, int | None]] = set()
    for place in np.linspace(0, ends[-1] - 1, _SAMPLED_PLACES).astype(np.int64).tolist():
        number = int(np.searchsorted(ends, place, "right"))
        log, segment = segments[number]
        start = _offset_near(segment, place - (int(ends[number]) - segment.size))
        if (segment.path, start) in seen:
            continue
        seen.add((segment.path, start))
        decoding = DecodeOptions(crc=options.crc, on_error="skip")
        for table in log._small_tables(decoding, _SAMPLED_BYTES, start):
            if len(table):
                found += sample(table, on, _SAMPLED_ROWS // _SAMPLED_PLACES)
                break
    return found


def _offset_near(segment: Segment, position: int) -> int | None:
    """Return an offset of a batch near a byte of a segment, from its index; without one, where the segment begins."""
    if segment.base_offset is None:
        return None
    index = segment.offset_index()
    entry = int(np.searchsorted(index["position"], position, "right")) - 1
    return segment.base_offset if entry < 0 else int(index["offset"][entry])


def parsers_of(values: ValueOptions, logs: Sequence[Log], options: ReadOptions) -> dict[On, Parser]:
    """Return the parsers of the options; a schema of json that is not given is inferred from a sample of the logs."""
    parsers: dict[On, Parser] = {}
    for on in values.parsed:
        made = getattr(values, on).parser(lambda on=on: sample_logs(logs, options, on))
        if made is not None:
            parsers[on] = made
    return parsers


def value_columns(values: ValueOptions, logs: Sequence[Log], options: ReadOptions) -> ValueColumns | None:
    """Return the transform of the export; None if neither keys nor values are parsed."""
    parsers = parsers_of(values, logs, options)
    return ValueColumns(parsers) if parsers else None


def value_schema(schema: StructType, parsers: Mapping[On, Parser]) -> StructType:
    """Return a schema of records with values in place of bytes, and then the columns of bad bytes."""
    parsed = {str(on): StructField(on, from_arrow_type(spark_type(parser.type))) for on, parser in parsers.items()}
    fields = [parsed.get(field.name, field) for field in schema]
    return StructType([*fields, *(StructField(f"{on}_bad", BinaryType()) for on in parsers)])


def columns_for(
    schema: StructType, options: ReadOptions, logs: Callable[[], Sequence[Log]]
) -> tuple[tuple[str, ...], ValueColumns]:
    """Return the columns to decode for a schema, the default or a user's, and the parsers of their values.

    Parameters
    ----------
    schema : StructType
        With json, the types of its ``key`` and ``value`` are used, so that they are not inferred again.
    options : ReadOptions
    logs : callable
        Returns the logs to take a sample of, if one is needed.

    Raises
    ------
    ValueError
        If a column does not exist, or has another type.
    """
    requested = {field.name: field for field in schema}
    parsers: dict[On, Parser] = {}
    for on in options.values.parsed:
        if on not in requested and f"{on}_bad" not in requested:
            continue
        of_side = getattr(options.values, on)
        if of_side.format == "json" and on in requested:
            parsers[on] = of_side.json_parser(to_arrow_type(requested[on].dataType, timezone="UTC"))
        else:
            parsers |= parsers_of(ValueOptions(**{on: of_side}), logs(), options)
    whole = {field.name: field.dataType for field in value_schema(kafka_schema(headers=True), parsers)}
    columns: list[str] = []
    plain = []
    for field in schema:
        of = field.name.removesuffix("_bad")
        if of not in parsers:
            plain.append(field)
            columns.append(field.name)
            continue
        kind = whole[field.name]
        if field.dataType != kind or not field.nullable:
            raise ValueError(
                f"schema: column {field.name!r} is {kind.simpleString()} and nullable, not "
                f"{field.dataType.simpleString()}{'' if field.nullable else ' not null'}"
            )
        if of not in columns:
            columns.append(of)
    if plain:
        columns_of(StructType(plain), "records")
    if len(requested) != len(schema.fields):
        raise ValueError(f"schema: must have columns, each once, got {', '.join(schema.names)}")
    return tuple(columns), ValueColumns(parsers, tuple(schema.names))
