"""The schema of parsed keys and values, and the columns that a user's schema requests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import StructField, StructType

from kbatch.options import On
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.spark_types import SparkParser
from kbatch.spark.table_schemas import columns_of, kafka_schema
from kbatch.value_options import SIDES, ValueOptions
from kbatch.values.parsed import Parser, bad_types
from kbatch.values.typed_columns import ValueColumns

__all__ = ["columns_for", "value_schema"]

# Older versions of PySpark have no such parameter, and UTC is their default.
_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}


def value_schema(schema: StructType, parsers: Mapping[On, Parser]) -> StructType:
    """Return a schema of records with values in place of bytes, and then the columns about bad ones."""
    parsed = {str(on): StructField(on, from_arrow_type(parser.type)) for on, parser in parsers.items()}
    fields = [parsed.get(field.name, field) for field in schema]
    more = [(f"{on}_{name}", kind) for on in parsers for name, kind in bad_types().items()]
    return StructType([*fields, *(StructField(name, from_arrow_type(kind)) for name, kind in more)])


def columns_for(
    schema: StructType, options: ReadOptions, parsers_for: Callable[[ValueOptions], Mapping[On, Parser]]
) -> tuple[tuple[str, ...], ValueColumns]:
    """Return the columns to decode for a schema, the default or a user's, and the parsers of their values.

    Parameters
    ----------
    schema : StructType
        With json, the types of its ``key`` and ``value`` are used, so that they are not inferred again.
    options : ReadOptions
    parsers_for : callable
        Returns the parsers of options; it may take a sample of the records.

    Raises
    ------
    ValueError
        If a column does not exist, or has another type.
    """
    requested = {field.name: field for field in schema}
    parsers: dict[On, Parser] = {}
    for on in options.values.parsed:
        if not any(_side_of(name) == on for name in requested):
            continue
        of_side = getattr(options.values, on)
        if of_side.format == "json" and on in requested:
            parsers[on] = SparkParser(of_side.json_parser(to_arrow_type(requested[on].dataType, **_UTC)))
        else:
            parsers |= parsers_for(ValueOptions(**{on: of_side}))
    whole = {field.name: field.dataType for field in value_schema(kafka_schema(headers=True), parsers)}
    columns: list[str] = []
    plain = []
    for field in schema:
        of = _side_of(field.name)
        if of is None or of not in parsers:
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


def _side_of(column: str) -> On | None:
    """Return the side that a column belongs to: ``value`` for value, value_bad, value_error and value_schema_id."""
    for on in SIDES:
        if column == on or column in {f"{on}_{name}" for name in bad_types()}:
            return on
    return None
