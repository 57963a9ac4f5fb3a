"""The parsers of keys and values, and their columns, between decoding and the output of data source and export.

Tasks use this module, so it does not import pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from kbatch.log import Log
from kbatch.log.sampling import sample_logs
from kbatch.options import On
from kbatch.plan.read_options import ReadOptions
from kbatch.plan.spark_types import SparkParser, spark_type
from kbatch.records.kafka_columns import SPARK_COLUMNS, spark_schema
from kbatch.value_options import ValueOptions
from kbatch.values.parsed import Parser
from kbatch.values.typed_columns import DOC, ValueColumns, taken_names

__all__ = ["parsers_of", "value_columns"]


def parsers_of(
    values: ValueOptions, logs: Sequence[Log], options: ReadOptions, known: Mapping[On, pa.DataType] | None = None
) -> dict[On, Parser]:
    """Return the parsers of the options, of values with Spark's types.

    A schema of json that is not given has a type in `known`, or is inferred from a sample of the logs.
    """
    made = values.parsers(lambda on: sample_logs(logs, on, options.crc), known)
    return {on: SparkParser(parser) for on, parser in made.items()}


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


def _fields_of(on: On, earlier: pa.Schema, *, only: bool) -> list[pa.Field]:
    """Return the fields of a struct from the columns that were made of it.

    Columns without metadata, of an earlier release or another program, belong to the side if it is the only one.
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
