"""RecordTable -> Arrow, pandas, Polars.

`kbatch.format.VIEW_COLUMNS` lists the columns. The rules of every view, including Spark's (`kafka_columns`):

- A null key, value or header value is null, an empty one is empty (COL-R1, REC-R1, HDR-R3).
- A timestamp of -1 is null, any other is not (COL-R2). Timestamps are ``timestamp("ms", UTC)``.
- The timestamp type is taken from the batch, even if a message and its wrapper differ in magic (LEG-R16), as in Kafka's
  consumer (``CompletedFetch.fetchRecords``) and therefore in Spark.
- Headers are a list of (key, value) pairs, in their order, with duplicates (HDR-R5); keys are bytes (HDR-R4).

An Arrow buffer over ``table.data`` keeps that memory alive, so a view may outlive its table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kbatch.extras import require
from kbatch.format import COLUMNS, VIEW_COLUMNS
from kbatch.kernels.extents import measure_extent
from kbatch.kernels.slices import header_keys, header_values
from kbatch.options import Binary
from kbatch.records.columns import INT32_REACH, Reach, checked_schema, slot_bytes, view_batches, view_columns
from kbatch.records.data import TableData
from kbatch.records.trimming import TRIM_MIN_BYTES, pays, trimmed_bytes

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

__all__ = [
    "c_stream",
    "requested_binary",
    "to_arrow",
    "to_pandas",
    "to_polars",
    "view_schema",
]


def view_schema(columns: Sequence[str] | None = None, *, binary: Binary = "binary", log: bool = False) -> pa.Schema:
    """Return the Arrow schema of a view.

    Parameters
    ----------
    columns : sequence of str, optional
        Some of `kbatch.format.VIEW_COLUMNS`, in this order. Default is all of them; topic and partition only with
        `log`.
    binary : {"binary", "large_binary", "binary_view"}
        The type of keys and values, also in headers.
    log : bool
        Whether the default has topic and partition.

    Returns
    -------
    pyarrow.Schema

    Raises
    ------
    ValueError
        If a column or `binary` is unknown, or a column is repeated.

    Examples
    --------
    >>> from kbatch.records.arrow import view_schema
    >>> view_schema(["timestamp", "value"])
    timestamp: timestamp[ms, tz=UTC]
    value: binary
    """
    pa = require("pyarrow", "arrow", "an Arrow view")
    if columns is None:
        columns = VIEW_COLUMNS if log else COLUMNS
    if binary not in ("binary", "large_binary", "binary_view"):
        raise ValueError(f"binary must be 'binary', 'large_binary' or 'binary_view', got {binary!r}")
    bytes_type = getattr(pa, binary)()
    types = {
        "offset": pa.int64(),
        "timestamp": pa.timestamp("ms", tz="UTC"),
        "timestampType": pa.int32(),
        "key": bytes_type,
        "value": bytes_type,
        "headers": pa.list_(pa.struct([pa.field("key", bytes_type), pa.field("value", bytes_type)])),
        "topic": pa.string(),
        "partition": pa.int32(),
    }
    return checked_schema(pa, columns, types)


def to_arrow(
    table: TableData,
    *,
    columns: Sequence[str] | None = None,
    binary: Binary = "binary",
    reach: Reach = INT32_REACH,
) -> pa.Table:
    """Return a table's records as an Arrow table.

    Parameters
    ----------
    table : RecordTable
    columns : sequence of str, optional
        Some of `kbatch.format.VIEW_COLUMNS`, in the order of the result. Default is ``table.columns``. A requested
        topic or partition is null if it is unknown.
    binary : {"binary", "large_binary", "binary_view"}
        The type of keys and values, also in headers. ``"binary"`` (int32 offsets) and ``"large_binary"`` (int64)
        copy the bytes one after the other; ``"binary_view"`` copies only values of up to 12 bytes, and keeps
        all of ``table.data`` alive, unless the records refer to a small part of it: then that part is copied.
    reach : Reach
        The maximum offsets in a column; tests set smaller bounds than int32.

    Returns
    -------
    pyarrow.Table
        One chunk, or several if keys or values exceed the range of int32 offsets (2 GiB).

    Raises
    ------
    MissingDependencyError
        Without pyarrow.
    ValueError
        For an unknown column or `binary`.
    MissingColumnError
        For a column that the table was decoded without.
    IndexError
        If a row points outside ``table.data``, which rows made by `kbatch.decode` never do.

    Examples
    --------
    >>> import kbatch
    >>> kbatch.decode(b"").to_arrow(columns=["offset", "value"]).schema
    offset: int64
    value: binary
    """
    pa = require("pyarrow", "arrow", "to_arrow()")
    schema = view_schema(view_columns(table, columns, table.columns), binary=binary)
    # Keys and values of all records are most of the data.
    is_part = table._derived or not {"key", "value"} <= set(schema.names)
    if binary == "binary_view" and is_part and len(table.data) >= TRIM_MIN_BYTES:
        used = table.select(schema.names)
        if pays(used):
            table = trimmed_bytes(used)
    return pa.Table.from_batches(view_batches(pa, table, schema, reach=reach, are_kept=True), schema=schema)


def c_stream(table: TableData, requested_schema: object | None = None) -> object:
    """Return a table's records as an Arrow C stream: ``RecordTable.__arrow_c_stream__``.

    Parameters
    ----------
    table : RecordTable
    requested_schema : PyCapsule, optional
        An ``arrow_schema``. Its names select the columns, which are cast to its types.
        Default is the schema of `to_arrow`; request ``binary_view`` for values that are not copied.

    Returns
    -------
    PyCapsule
        An ``arrow_array_stream``.

    Raises
    ------
    MissingDependencyError
        Without pyarrow.
    ValueError
        If the requested schema has a column that no view has, or a type that the column cannot be cast to.
    """
    pa = require("pyarrow", "arrow", "the Arrow C stream")
    if requested_schema is None:
        return to_arrow(table).__arrow_c_stream__()
    requested = pa.Schema._import_from_c_capsule(requested_schema)
    made = to_arrow(table, columns=requested.names, binary=requested_binary(requested))
    if not made.schema.equals(requested):
        # A cast has at most twice the width, or is text of 40 characters, next to the table that it is made from.
        different = [column for column, field in zip(made.columns, requested, strict=True) if column.type != field.type]
        table._check_memory_of(
            made.nbytes + sum(2 * each.nbytes + 40 * len(each) for each in different), "Arrow columns"
        )
        made = made.cast(requested)
    return made.__arrow_c_stream__()


def requested_binary(schema: pa.Schema) -> Binary:
    """Return the binary type for a view that is cast to `schema`: the one that needs the fewest copies."""
    pa = require("pyarrow", "arrow", "the Arrow C stream")
    kinds = [field.type for field in schema]
    if any(map(pa.types.is_large_binary, kinds)):
        return "large_binary"
    return "binary" if any(map(pa.types.is_binary, kinds)) else "binary_view"


def to_pandas(
    table: TableData,
    *,
    columns: Sequence[str] | None = None,
    dtype_backend: Literal["numpy", "pyarrow"] = "numpy",
) -> pd.DataFrame:
    """Return a table's records as a pandas DataFrame.

    Parameters
    ----------
    table : RecordTable
    columns : sequence of str, optional
        As in `to_arrow`.
    dtype_backend : {"numpy", "pyarrow"}
        ``"numpy"``: keys and values are `bytes` or None, timestamps ``datetime64[ms, UTC]``, and headers a tuple of
        (key, value) tuples, empty where a record has none. ``"pyarrow"``: every column is a ``pandas.ArrowDtype``,
        no Python objects are created, and headers are lists of structs.

    Returns
    -------
    pandas.DataFrame
        One row per record, with a ``RangeIndex``. In ``datetime64`` a timestamp of INT64_MIN ms, which a batch can
        hold, can't be distinguished from NaT; ``table.records`` and Arrow keep it (COL-R2).

    Raises
    ------
    MissingDependencyError
        Without pandas or pyarrow.
    ValueError
        For an unknown column or `dtype_backend`.
    IndexError
        As `to_arrow`.
    """
    if dtype_backend not in ("numpy", "pyarrow"):
        raise ValueError(f"dtype_backend must be 'numpy' or 'pyarrow', got {dtype_backend!r}")
    pandas = require("pandas", "pandas", "to_pandas()")
    require("pyarrow", "pandas", "to_pandas()")
    frame: pd.DataFrame
    if dtype_backend == "pyarrow":
        frame = to_arrow(table, columns=columns).to_pandas(types_mapper=pandas.ArrowDtype)
        return frame
    schema = view_schema(view_columns(table, columns, table.columns))
    names = schema.names
    objects: dict[str, Callable[[], list[Any]]] = {
        "key": table.keys,
        "value": table.values,
        "headers": lambda: _header_tuples(table),
    }
    others = [name for name in names if name not in objects]
    # The columns of a frame exist together, and those that are not objects also in Arrow, from which pandas copies.
    size = 2 * len(table) * sum(slot_bytes(schema.field(name).type, name, table.topic) for name in others)
    table._check_objects(*(name for name in names if name in objects), size=size)
    if others:
        frame = to_arrow(table, columns=others).to_pandas()
    else:
        frame = pandas.DataFrame(index=pandas.RangeIndex(len(table)))
    for place, name in enumerate(names):
        if name in objects:
            # By default pyarrow deduplicates the bytes objects that it creates, which takes four times as long.
            array = np.fromiter(objects[name](), np.object_, len(table))
            frame.insert(place, name, pandas.Series(array, frame.index, np.object_, copy=False))
    return frame


def _header_tuples(table: TableData) -> list[Any]:
    """Return each record's headers as a tuple of (key, value) tuples."""
    if not measure_extent(table.records).header_count:
        return [()] * len(table)
    headers, data = table.headers, table.data
    pairs = list(zip(header_keys(headers, data), header_values(headers, data), strict=True))
    return list(map(tuple, table._by_record(pairs)))


def to_polars(table: TableData, *, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Return a table's records as a Polars DataFrame, without copying values longer than 12 bytes.

    Parameters
    ----------
    table : RecordTable
    columns : sequence of str, optional
        As in `to_arrow`.

    Returns
    -------
    polars.DataFrame
        One row per record. It keeps all of ``table.data`` alive, unless the records refer to a small part of it.

    Raises
    ------
    MissingDependencyError
        Without polars or pyarrow.
    ValueError, IndexError
        As `to_arrow`.
    """
    polars = require("polars", "polars", "to_polars()")
    require("pyarrow", "polars", "to_polars()")
    schema = view_schema(view_columns(table, columns, table.columns), binary="binary_view")
    # Polars converts the topic to a view, and the int32 offsets of lists to int64.
    converted = 17 * ("topic" in schema.names) + 8 * ("headers" in schema.names)
    if converted:
        slots = sum(slot_bytes(field.type, field.name, table.topic) for field in schema)
        table._check_memory_of(len(table) * (slots + converted), "Polars columns")
    frame: pl.DataFrame = polars.from_arrow(to_arrow(table, columns=columns, binary="binary_view"))
    return frame
