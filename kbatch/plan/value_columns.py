"""The parsers of keys and values, and their columns in the output of the data source and of exports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa

from kbatch.log.sampling import sample_logs, topics_of
from kbatch.options import Crc, On
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.spark_types import SparkParser, spark_type
from kbatch.records.kafka_columns import spark_schema
from kbatch.value_options import SIDES, ValueOptions
from kbatch.values.json import MAX_FIELDS, infer_fields
from kbatch.values.merged_types import with_new_fields
from kbatch.values.parsed import Parser
from kbatch.values.typed_columns import DOC, ValueColumns, taken_names

__all__ = ["Sampler", "parsers_of", "value_columns"]

# Returns keys or values of logs, with the arguments of `kbatch.log.sampling.sample_logs`.
Sampler: TypeAlias = Callable[[Sequence[Any], On, Crc, Sequence[int | None] | None], list[bytes]]


def parsers_of(
    values: ValueOptions,
    logs: Sequence[Any],
    options: ReadOptions,
    known: Mapping[On, pa.DataType] | None = None,
    sampled: Sampler = sample_logs,
) -> dict[On, Parser]:
    """Return the parsers that the options select, which return Spark's types.

    If no JSON schema is given, its type comes from `known`, or is inferred from a sample of the logs.
    """
    made = values.parsers(lambda on: sampled(logs, on, options.crc, None), known, lambda: topics_of(logs))
    return {on: SparkParser(parser) for on, parser in made.items()}


def _earlier_types(values: ValueOptions, earlier: pa.Schema, flatten: bool) -> dict[On, pa.DataType]:
    """Return the inferred types of an earlier export from its columns `earlier`, if the columns show them."""
    found: dict[On, pa.DataType] = {}
    for on in values.parsed:
        if not getattr(values, on).inferred:
            continue
        if on in earlier.names:
            found[on] = spark_type(earlier.field(on).type)
        elif flatten:
            found[on] = spark_type(pa.struct(_fields_of(on, earlier, only=len(values.parsed) == 1)))
    return found


def _fields_of(on: On, earlier: pa.Schema, *, only: bool) -> list[pa.Field]:
    """Return the fields of a struct from the columns that were made from it.

    Columns without metadata, from an earlier release or another program, belong to the side if it is the only one.
    """
    documents = [((each.metadata or {}).get(DOC) or b"").decode() for each in earlier]
    if any(documents):
        start = f"{on}."
        pairs = zip(earlier, documents, strict=True)
        return [each.with_name(text.removeprefix(start)) for each, text in pairs if text.startswith(start)]
    taken = taken_names([on])
    fields = [each for each in earlier if each.name.lower() not in taken]
    return [each.with_name(_without_prefix(each.name, on, taken)) for each in fields if only]


def _without_prefix(name: str, on: On, taken: set[str]) -> str:
    rest = name.removeprefix(f"{on}_")
    return rest if rest.lower() in taken else name


def _has_sides(columns: ValueColumns, earlier: pa.Schema, sides: Iterable[On]) -> bool:
    """Whether the columns of these sides have the names and types of the existing data."""
    for on in sides:
        of_side = replace(columns, parsers={on: columns.parsers[on]})
        for made in of_side.schema(spark_schema((on,))):
            number = earlier.get_field_index(made.name)
            if number < 0 or not spark_type(earlier.field(number).type).equals(spark_type(made.type)):
                return False
    return True


def _flat_columns(earlier: pa.Schema) -> dict[str, str]:
    """Return the columns that were made from fields, by field."""
    documents = {((each.metadata or {}).get(DOC) or b"").decode(): each.name for each in earlier}
    return {text: name for text, name in documents.items() if text.partition(".")[0] in SIDES}


def value_columns(
    values: ValueOptions,
    logs: Sequence[Any],
    options: ReadOptions,
    *,
    flatten: bool = False,
    earlier: pa.Schema | None = None,
    starts: Sequence[int | None] | None = None,
    sampled: Sampler = sample_logs,
) -> ValueColumns | None:
    """Return the transform of an export; None if neither keys nor values are parsed.

    If no schema is given, it is that of `earlier` exports, or inferred if there is none. With `starts`, an offset or
    None for each log, it is extended by the fields that only the records after these offsets have.
    """
    known = {} if earlier is None else _earlier_types(values, earlier, flatten)
    flat = _flat_columns(earlier) if flatten and earlier is not None else {}
    if earlier is not None and known:
        columns = ValueColumns(parsers_of(values, logs, options, known, sampled), flatten=flatten, flat=flat)
        if _has_sides(columns, earlier, known):
            if starts is not None:
                new = {on: _with_new_fields(kind, on, logs, options, starts, sampled) for on, kind in known.items()}
                columns = replace(columns, parsers=parsers_of(values, logs, options, new, sampled))
            return columns
    parsers = parsers_of(values, logs, options, sampled=sampled)
    return ValueColumns(parsers, flatten=flatten, flat=flat) if parsers else None


def _with_new_fields(
    known: pa.DataType,
    on: On,
    logs: Sequence[Any],
    options: ReadOptions,
    starts: Sequence[int | None],
    sampled: Sampler,
) -> pa.DataType:
    """Return the type of an earlier export, extended by the fields in a sample of the new records."""
    new = [(log, start) for log, start in zip(logs, starts, strict=True) if start is None or start < log.end_offset]
    sample = sampled([log for log, _ in new], on, options.crc, [start for _, start in new])
    return with_new_fields(known, infer_fields(sample), MAX_FIELDS)
