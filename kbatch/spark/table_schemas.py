"""The schemas of the tables, records as Spark's own Kafka source has them, and a user's projections of them."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kbatch.plan.read_options import TableName
from kbatch.records.kafka_columns import SPARK_COLUMNS

__all__ = ["LOSS_COLUMNS", "RECORD_COLUMNS", "columns_of", "kafka_schema", "table_schema"]

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
# The columns of each table of the data source, all of them nullable.
_RECORDS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
}
_RECORD_COUNTS: dict[str, DataType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "records": LongType(),
}
_LOSSES: dict[str, DataType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "file": StringType(),
    "position": LongType(),
    "length": LongType(),
    "reason": StringType(),
    "base_offset": LongType(),
}
_TRANSACTIONS: dict[str, DataType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "producer_id": LongType(),
    "first_offset": LongType(),
    "last_offset": LongType(),
    "state": StringType(),
    "first_timestamp": TimestampType(),
    "last_stable_offset": LongType(),
}
_TABLES: dict[TableName, dict[str, DataType]] = {
    "records": _RECORDS,
    "counts": _RECORD_COUNTS,
    "losses": _LOSSES,
    "transactions": _TRANSACTIONS,
}
# The columns of records that are decoded without their log.
RECORD_COLUMNS = ("key", "value", "offset", "timestamp", "timestampType")
# Likewise of losses.
LOSS_COLUMNS = ("position", "length", "reason", "base_offset")


def kafka_schema(columns: tuple[str, ...] | None = None, *, headers: bool = False) -> StructType:
    """Return the schema of Spark's Kafka source, or of some of its columns, all of them nullable."""
    if columns is None:
        columns = SPARK_COLUMNS if headers else SPARK_COLUMNS[:-1]
    return table_schema("records", columns)


def table_schema(table: TableName, columns: tuple[str, ...] | None = None) -> StructType:
    """Return the schema of a table of the data source, or of some of its columns, all of them nullable."""
    types = _TABLES[table]
    return StructType([StructField(name, types[name]) for name in (types if columns is None else columns)])


def columns_of(schema: StructType, table: TableName = "records") -> tuple[str, ...]:
    """Return the columns of a table that a user's schema names, in its order.

    Raises
    ------
    ValueError
        If the table does not have such a column, or has another type for it.
    """
    types = _TABLES[table]
    for field in schema.fields:
        expected = types.get(field.name)
        if expected is None:
            raise ValueError(f"schema: no column {field.name!r}; the columns are {', '.join(types)}")
        if field.dataType != expected:
            raise ValueError(
                f"schema: column {field.name!r} is {expected.simpleString()}, not {field.dataType.simpleString()}"
            )
        if not field.nullable:
            raise ValueError(f"schema: column {field.name!r} is nullable, so the schema must allow null")
    names = tuple(field.name for field in schema.fields)
    if not names or len(set(names)) != len(names):
        raise ValueError(f"schema: must have columns, each once, got {', '.join(names) or 'none'}")
    return names
