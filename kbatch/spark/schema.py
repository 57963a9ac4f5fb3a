"""The schema of Spark's own Kafka source, and the projections that a user's schema asks for."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kbatch.arrow import SPARK_COLUMNS

__all__ = ["RECORD_COLUMNS", "columns_of", "kafka_schema"]

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_TYPES = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
}
# What a record knows of itself, without the log it was in.
RECORD_COLUMNS = ("key", "value", "offset", "timestamp", "timestampType")


def kafka_schema(columns: tuple[str, ...] | None = None, *, headers: bool = False) -> StructType:
    """Return the schema of Spark's Kafka source, or of some of its columns, all of them nullable."""
    if columns is None:
        columns = SPARK_COLUMNS if headers else SPARK_COLUMNS[:-1]
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def columns_of(schema: StructType) -> tuple[str, ...]:
    """Return the columns that a user's schema asks for, in its order.

    Raises
    ------
    ValueError
        If a column isn't one of the Kafka source's, or has another type there.
    """
    for field in schema.fields:
        wanted = _TYPES.get(field.name)
        if wanted is None:
            raise ValueError(f"schema: no column {field.name!r}; there are {', '.join(SPARK_COLUMNS)}")
        if field.dataType != wanted:
            raise ValueError(
                f"schema: column {field.name!r} is {wanted.simpleString()}, not {field.dataType.simpleString()}"
            )
        if not field.nullable:
            raise ValueError(f"schema: column {field.name!r} can be null, so the schema must allow it")
    names = tuple(field.name for field in schema.fields)
    if not names or len(set(names)) != len(names):
        raise ValueError(f"schema: must have columns, each once, got {', '.join(names) or 'none'}")
    return names
