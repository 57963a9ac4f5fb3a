"""A table's rows -> the columns of Spark's own Kafka source, as Arrow batches. This module does not need PySpark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kbatch.extras import require
from kbatch.options import Overflow
from kbatch.records.columns import checked_schema, view_batches, view_columns
from kbatch.records.data import TableData

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SPARK_COLUMNS", "spark_batches", "spark_schema"]

# The columns of Spark's own Kafka source, in its order; headers only on request (`includeHeaders`).
SPARK_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def spark_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the Arrow schema of the columns of Spark's Kafka source.

    Parameters
    ----------
    columns : sequence of str, optional
        Some of `SPARK_COLUMNS`, in the order of the result. Default is all of them except headers.

    Returns
    -------
    pyarrow.Schema
        Every field can be null; timestamps in microseconds, header keys as strings.

    Raises
    ------
    ValueError
        If a column is not in `SPARK_COLUMNS`, or is repeated.
    """
    pa = require("pyarrow", "arrow", "Spark")
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
    }
    return checked_schema(pa, SPARK_COLUMNS[:-1] if columns is None else columns, types)


def spark_batches(
    table: TableData,
    columns: Sequence[str] | None = None,
    max_rows: int = 16_000,
    max_bytes: int = 4 << 20,
    *,
    overflow: Overflow = "raise",
) -> Iterator[pa.RecordBatch]:
    """Yield a table's records as the Arrow batches that a Spark data source must return.

    Parameters
    ----------
    table : RecordTable
    columns : sequence of str, optional
        Some of `SPARK_COLUMNS`, in the order of the result. Default is all that the table has, except headers. Topic
        and partition are null if the table has none.
    max_rows : int
        Maximum rows of a batch. Spark is slower with more than 16,000, and with fewer than 8,000.
    max_bytes : int
        Maximum bytes of the requested keys, values and headers of a batch; a single record may have more.
    overflow : {"raise", "null"}
        How to treat a timestamp that exceeds int64 in microseconds (about the year 294247, which a producer reaches
        that sends nanoseconds). Spark's own source fails on it.

    Yields
    ------
    pyarrow.RecordBatch
        Batches of `spark_schema`, in the order of the records. The headers of a record without any are null, and bytes
        of a header key that are not UTF-8 become U+FFFD as in Java.

    Raises
    ------
    MissingDependencyError
        Without pyarrow.
    ValueError
        For an unknown column or `overflow`, or a bound below 1.
    MissingColumnError
        For a column that the table was decoded without.
    OverflowError
        Under ``overflow="raise"``, for a timestamp that exceeds int64 in microseconds.
    IndexError
        As `to_arrow`.

    Examples
    --------
    >>> import kbatch
    >>> from kbatch.records.kafka_columns import spark_batches
    >>> list(spark_batches(kbatch.decode(b""), ["offset", "value"]))
    []
    """
    if max_rows < 1 or max_bytes < 1:
        raise ValueError(f"max_rows and max_bytes must be at least 1, got {max_rows} and {max_bytes}")
    if overflow not in ("raise", "null"):
        raise ValueError(f"overflow must be 'raise' or 'null', got {overflow!r}")
    pa = require("pyarrow", "arrow", "Spark")
    return view_batches(
        pa,
        table,
        spark_schema(view_columns(table, columns, SPARK_COLUMNS[:-1])),
        max_rows=max_rows,
        max_bytes=max_bytes,
        null_headers=True,
        raise_overflow=overflow == "raise",
    )
