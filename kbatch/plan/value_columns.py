"""The parsers of keys and values, and their columns, between decoding and the output of data source and export.

Tasks use this module, so it does not import pyspark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute

from kbatch.log import Log
from kbatch.log.reading import read_tables
from kbatch.options import On
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.sampling import places_at
from kbatch.read.decode_options import DecodeOptions
from kbatch.records.kafka_columns import SPARK_COLUMNS, spark_schema
from kbatch.value_options import FormatOptions, ValueOptions
from kbatch.values.deviations import DeviationTable
from kbatch.values.parsed import ParsedColumn, Parser, bad_columns, bad_types, one_array, parse_column, sample

__all__ = ["ValueColumns", "ValueCounts", "parsers_of", "spark_type", "value_columns"]

# A schema is inferred from at most this number of places in the logs, and of values; a place has about these bytes.
_SAMPLED_PLACES = 64
_SAMPLED_ROWS = 6400
_SAMPLED_BYTES = 256 << 10
# Without an index, a batch is searched for in this number of bytes.
_SEARCHED_BYTES = 4 << 20

# The key of metadata under which pyiceberg expects the comment of a column.
_DOC = b"doc"

_UNFIT = "a value that Spark has no type for, such as a timestamp beyond microseconds"


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


@dataclass
class ValueCounts:
    """The keys and values of batches that their columns do not represent.

    Attributes
    ----------
    unparsed, incomplete : Counter
        By side, "key" or "value": the number of nulls in the output with bad bytes, and of values without all fields.
    deviations : DeviationTable
        By side, kind, field and reason, with the offset of the first record.
    """

    unparsed: Counter[On] = field(default_factory=Counter)
    incomplete: Counter[On] = field(default_factory=Counter)
    deviations: DeviationTable = field(default_factory=DeviationTable)

    def add(self, on: On, column: ParsedColumn, offsets: pa.Array | None) -> None:
        """Count a column of a batch."""
        if len(column.bad):
            readable = int(np.count_nonzero(np.asarray(column.values.is_valid())[column.bad]))
            self.incomplete[on] += readable
            self.unparsed[on] += len(column.bad) - readable
        for each in column.deviations:
            offset = None if offsets is None else offsets[each.row].as_py()
            self.deviations.add((on, each.kind, each.field, each.reason), each.occurrences, (offset,))


@dataclass(frozen=True)
class ValueColumns:
    """Parses the columns ``key`` and ``value`` of batches; a `kbatch.plan.arrow_batches.Transform`.

    Attributes
    ----------
    parsers : mapping of {"key", "value"} to Parser
    columns : tuple of str or None
        The columns of the result, in this order; None is all of them.
    flatten : bool
        Whether the fields of structs become columns. A name that another column has, in any case, gets the prefix
        ``value_`` (``key_``). The column ``value_is_null`` then states which values are null.
    """

    parsers: Mapping[On, Parser]
    columns: tuple[str, ...] | None = None
    flatten: bool = False

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the result of `apply`: values in place of bytes, then the columns about bad ones."""
        flat = self._flat_names()
        parts = {each.name: [each] for each in schema}
        more: list[pa.Field] = []
        for on, parser in self.parsers.items():
            if on not in parts:
                continue
            kind = spark_type(parser.type)
            parts[on] = [pa.field(on, kind)]
            if on in flat:
                parts[on] = [_flat_field(on, below, name) for name, below in zip(flat[on], kind, strict=True)]
                more.append(pa.field(f"{on}_is_null", pa.bool_()))
            more += [pa.field(f"{on}_{name}", below) for name, below in bad_types().items()]
        whole = pa.schema([field for name in schema.names for field in parts[name]] + more)
        return whole if self.columns is None else pa.schema([whole.field(name) for name in self.columns])

    def apply(self, batch: pa.RecordBatch, counts: ValueCounts | None = None) -> pa.RecordBatch:
        """Parse a batch, and add to `counts`."""
        schema = self.schema(batch.schema)
        columns = {name: batch.column(name) for name in batch.schema.names}
        offsets = columns.get("offset")
        flat = self._flat_names()
        for on, parser in self.parsers.items():
            raw = columns.pop(on, None)
            if raw is None:
                continue
            parsed = _spark_values(parser, raw)
            if counts is not None:
                counts.add(on, parsed, offsets)
            if on in flat:
                columns |= dict(zip(flat[on], parsed.values.flatten(), strict=True))
                columns[f"{on}_is_null"] = parsed.values.is_null()
            else:
                columns[on] = parsed.values
            bad, errors = bad_columns(raw, parsed.bad, parsed.errors)
            columns |= dict(
                zip((f"{on}_{name}" for name in bad_types()), (bad, errors, parsed.schema_ids), strict=True)
            )
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _flat_names(self) -> dict[On, list[str]]:
        """Return the names of the columns for the fields of structs, which are unique in any case of letters."""
        if not self.flatten:
            return {}
        taken = _other_names(self.parsers)
        found: dict[On, list[str]] = {}
        # Values first, because keys often have some of their fields.
        for on in sorted(self.parsers, reverse=True):
            kind = spark_type(self.parsers[on].type)
            if pa.types.is_struct(kind) and kind.num_fields:
                found[on] = [_unused(each.name, on, taken) for each in kind]
        return found


def _other_names(sides: Iterable[On]) -> set[str]:
    """Return the names, in lower case, of the columns next to the fields of structs on these sides."""
    about = {f"{on}_{name}" for on in sides for name in (*bad_types(), "is_null")}
    return about | {name.lower() for name in (*SPARK_COLUMNS, "date")}


def _unused(name: str, on: On, taken: set[str]) -> str:
    while not name or name.lower() in taken:
        name = f"{on}_{name}"
    taken.add(name.lower())
    return name


def _spark_values(parser: Parser, raw: pa.Array) -> ParsedColumn:
    """Parse values and cast them to Spark's types, as arrays in one piece; a value that does not fit is bad."""
    kind = spark_type(parser.type)
    parsed = parse_column(parser, [raw])
    values, ids = one_array(parsed.values), one_array(parsed.schema_ids)
    if values.type.equals(kind):
        return parsed._replace(values=values, schema_ids=ids)
    parts: list[pa.Array] = [pa.nulls(0, kind)]
    unfit: list[int] = []
    _cast_by_halves(values, 0, kind, parts, unfit)
    errors = dict.fromkeys(unfit, _UNFIT) | dict(zip(parsed.bad.tolist(), parsed.errors, strict=True))
    bad = sorted(errors)
    return ParsedColumn(
        pa.concat_arrays(parts), np.array(bad, np.int64), [errors[row] for row in bad], ids, parsed.deviations
    )


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
    size = sum(log.size for log in logs)
    if not size:
        return []
    found: list[bytes] = []
    seen: set[tuple[str, int]] = set()
    targets = np.linspace(0, size - 1, _SAMPLED_PLACES).astype(np.int64).tolist()
    decoding = DecodeOptions(crc=options.crc, on_error="skip")
    for _, segment, start, is_batch in places_at(logs, targets):
        # The last batch of a segment may begin before a place without a batch.
        for position in (start,) if is_batch else (start, 0):
            # A search for the next batch must not read a damaged segment to its end.
            end = segment.size if is_batch or not position else min(segment.size, position + _SEARCHED_BYTES)
            tables = read_tables(segment, position, end, decoding, _SAMPLED_BYTES)
            table = next((each for each in tables if len(each)), None)
            if table is not None:
                first = (segment.path, int(table.batches["position"][0]))
                if first not in seen:
                    found += sample(table, on, _SAMPLED_ROWS // _SAMPLED_PLACES)
                    seen.add(first)
                break
    return found


def parsers_of(
    values: ValueOptions, logs: Sequence[Log], options: ReadOptions, known: Mapping[On, pa.DataType] | None = None
) -> dict[On, Parser]:
    """Return the parsers of the options.

    A schema of json that is not given has a type in `known`, or is inferred from a sample of the logs.
    """
    parsers: dict[On, Parser] = {}
    for on in values.parsed:
        given: FormatOptions = getattr(values, on)
        if known is not None and on in known:
            parsers[on] = given.json_parser(known[on])
            continue
        made = given.parser(lambda on=on: sample_logs(logs, options, on))  # type: ignore[misc]
        if made is not None:
            parsers[on] = made
    return parsers


def _earlier_types(values: ValueOptions, earlier: pa.Schema, flatten: bool) -> dict[On, pa.DataType]:
    """Return the types that inferred schemas had in an export with the columns `earlier`, as far as these show."""
    found: dict[On, pa.DataType] = {}
    for on in values.parsed:
        if not getattr(values, on).inferred:
            continue
        if on in earlier.names:
            found[on] = spark_type(earlier.field(on).type)
        elif flatten:
            found[on] = spark_type(pa.struct(_fields_of(on, earlier, only=len(values.parsed) == 1)))
    return found


def _flat_field(on: On, field: pa.Field, name: str) -> pa.Field:
    """Return the column of a struct's field. Its metadata name the field; Iceberg shows them as the column's doc."""
    return field.with_name(name).with_metadata({_DOC: f"{on}.{field.name}"})


def _fields_of(on: On, earlier: pa.Schema, *, only: bool) -> list[pa.Field]:
    """Return the fields of a struct from the columns that were made of it.

    Columns without metadata, of an earlier release or another program, belong to the side if it is the only one.
    """
    documents = [((each.metadata or {}).get(_DOC) or b"").decode() for each in earlier]
    if any(documents):
        start = f"{on}."
        pairs = zip(earlier, documents, strict=True)
        return [each.with_name(text.removeprefix(start)) for each, text in pairs if text.startswith(start)]
    taken = _other_names([on])
    fields = [each for each in earlier if each.name.lower() not in taken]
    return [each.with_name(_without_prefix(each.name, on, taken)) for each in fields if only]


def _without_prefix(name: str, on: On, taken: set[str]) -> str:
    rest = name.removeprefix(f"{on}_")
    return rest if rest.lower() in taken else name


def _writes(columns: ValueColumns, earlier: pa.Schema) -> bool:
    """Whether the parsed columns have the names and types of data that was written before."""
    made = {each.name: spark_type(each.type) for each in columns.schema(spark_schema(("key", "value")))}
    own = {*made} - {"key", "value"}
    others = {*earlier.names} - {*SPARK_COLUMNS, "date"}
    present = {name: spark_type(earlier.field(name).type) for name in made if name in earlier.names}
    return own == others and all(made[name].equals(kind) for name, kind in present.items())


def value_columns(
    values: ValueOptions,
    logs: Sequence[Log],
    options: ReadOptions,
    *,
    flatten: bool = False,
    earlier: pa.Schema | None = None,
) -> ValueColumns | None:
    """Return the transform of the export; None if neither keys nor values are parsed.

    A schema that is not given is the one of `earlier` exports, or is inferred if these have none.
    """
    known = {} if earlier is None else _earlier_types(values, earlier, flatten)
    if earlier is not None and known:
        columns = ValueColumns(parsers_of(values, logs, options, known), flatten=flatten)
        if _writes(columns, earlier):
            return columns
    parsers = parsers_of(values, logs, options)
    return ValueColumns(parsers, flatten=flatten) if parsers else None
