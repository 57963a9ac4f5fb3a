"""Parquet files: the choice of dictionaries, statistics and Bloom filters for columns."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from kbatch.records.kafka_columns import SPARK_COLUMNS, spark_schema
from kbatch.sinks.write_options import WriteOptions, parse_compression
from kbatch.values.parsed import one_array

__all__ = ["ParquetFile"]

# The number of sampled values that determine the encoding of a column: 0.1 ms for each column of a file.
DICTIONARY_SAMPLE = 8192
# The sampled values have at most about this size, unless there are only a few.
DICTIONARY_SAMPLE_BYTES = 4 << 20
# The size at which the Parquet writer abandons a dictionary, after it has encoded a part of the column.
DICTIONARY_BYTES = 1 << 20
# The rate of false positives of Bloom filters. A rate of 1 % takes 9.6 bits per key, 5 % takes 6.2.
FALSE_POSITIVE_RATE = 0.05
# Limits of a Parquet page.
PAGE_BYTES = 1 << 20
PAGE_ROWS = 16_384


class ParquetFile:
    """Writes a Parquet file, with the encoding of columns determined by a sample of the first row group.

    Parameters
    ----------
    stream : pyarrow.NativeFile
    schema : pyarrow.Schema
    options : WriteOptions
    ascending : bool
        Whether the rows are in the order of their offsets.
    """

    def __init__(self, stream: pa.NativeFile, schema: pa.Schema, options: WriteOptions, ascending: bool) -> None:
        self._stream = stream
        self._schema = schema
        self._options = options
        self._ascending = ascending
        self._writer: pyarrow.parquet.ParquetWriter | None = None

    def write(self, batches: list[pa.RecordBatch]) -> None:
        """Write a row group."""
        table = pa.Table.from_batches(batches, self._schema)
        if self._writer is None:
            settings = _settings(table, self._options, self._ascending)
            self._writer = pyarrow.parquet.ParquetWriter(self._stream, self._schema, **settings)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> None:
        """Write the footer."""
        if self._writer is None:
            self.write([])
        assert self._writer is not None
        self._writer.close()


class _Leaf(NamedTuple):
    """A column of a Parquet file: its path, the name of the column of rows, its type, and a sample of its values."""

    path: str
    column: str
    type: pa.DataType
    values: pa.Array


def _settings(table: pa.Table, options: WriteOptions, ascending: bool) -> dict[str, Any]:
    """Return the arguments of the writer for a file that begins with these rows."""
    schema, names = table.schema, table.schema.names
    codec, level = parse_compression(options.compression)
    # Deltas of steadily increasing offsets and timestamps are small, and faster to write than compressed plain values.
    deltas = [name for name in ("offset", "timestamp") if name in names and name not in options.dictionary]
    leaves = list(_leaves(table, options))
    settings: dict[str, Any] = {
        "compression": codec,
        "use_dictionary": [
            leaf.path
            for leaf in leaves
            if _may_have_dictionary(leaf, options) and _repeats(leaf.values, table.num_rows)
        ],
        "column_encoding": dict.fromkeys(deltas, "DELTA_BINARY_PACKED"),
        # None for bytes, because their minimum and maximum may have any size and would be in every footer.
        "write_statistics": [leaf.path for leaf in leaves if _is_small(leaf.type) and leaf.column != "headers"],
        "write_page_index": True,
        # How many rows to write before checking whether a page is full: few calls for small rows, no huge pages.
        "write_batch_size": min(max(PAGE_BYTES // max(1, table.nbytes // max(1, table.num_rows)), 1), PAGE_ROWS),
    }
    if level is not None:
        settings["compression_level"] = level
    if ascending and "offset" in names:
        settings["sorting_columns"] = pyarrow.parquet.SortingColumn.from_ordering(schema, [("offset", "ascending")])
    blooms = {
        leaf.path: {"ndv": max(1, min(table.num_rows, _distinct(leaf.values))), "fpp": FALSE_POSITIVE_RATE}
        for leaf in leaves
        if leaf.path == "key" and len(leaf.values) and not pa.types.is_boolean(leaf.type)
    }
    if blooms and _has_bloom_filters():
        settings["bloom_filter_options"] = blooms
    return settings


@functools.cache
def _has_bloom_filters() -> bool:
    return "bloom_filter_options" in inspect.signature(pyarrow.parquet.ParquetWriter.__init__).parameters


def _leaves(table: pa.Table, options: WriteOptions) -> Iterator[_Leaf]:
    """Yield the leaf columns of Parquet with non-null values from places spread over the rows."""
    for name, column in zip(table.schema.names, table.columns, strict=True):
        rows = np.empty(0, np.int64)
        if name in ("key", *options.dictionary) or (options.dictionary and _is_parsed(name, column.type)):
            count = min(DICTIONARY_SAMPLE, max(64, DICTIONARY_SAMPLE_BYTES * len(column) // max(1, column.nbytes)))
            rows = np.arange(0, len(column), max(1, len(column) // count))[:count]
        # Unlike pa.array, this does not import pandas.
        indices = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])
        yield from _leaves_of(name, name, one_array(column.take(indices)))


def _leaves_of(path: str, column: str, values: pa.Array) -> Iterator[_Leaf]:
    kind = values.type
    if pa.types.is_struct(kind):
        for field, below in zip(kind, values.flatten(), strict=True):
            yield from _leaves_of(f"{path}.{field.name}", column, below)
    elif pa.types.is_map(kind):
        # The values are a copy without an offset.
        yield from _leaves_of(f"{path}.key_value.key", column, values.keys)
        yield from _leaves_of(f"{path}.key_value.value", column, values.items)
    elif pa.types.is_list(kind):
        # The writer gives the items of all lists this name.
        yield from _leaves_of(f"{path}.list.element", column, values.flatten())
    else:
        yield _Leaf(path, column, kind, values.drop_null())


def _may_have_dictionary(leaf: _Leaf, options: WriteOptions) -> bool:
    """Whether the options allow a dictionary: chosen columns, parsed fields, and the constant topic and partition."""
    if pa.types.is_boolean(leaf.type):
        return False
    if leaf.column in ("topic", "partition"):
        return True
    if leaf.column == "headers":
        return "headers" in options.dictionary and leaf.path.endswith(".key")
    if leaf.column in options.dictionary:
        return True
    return bool(options.dictionary) and (leaf.path != leaf.column or _is_parsed(leaf.column, leaf.type))


def _is_parsed(column: str, kind: pa.DataType) -> bool:
    """Whether a column contains parsed keys or values: it is not one of Kafka's, or has another type."""
    return column not in SPARK_COLUMNS or kind != spark_schema([column]).field(0).type


def _repeats(values: pa.Array, rows: int) -> bool:
    """Whether a dictionary makes a column smaller: its values repeat, and they fit into a dictionary page."""
    if not len(values):
        return False
    distinct = _distinct(values)
    return 2 * distinct <= max(rows, 2) and distinct * (values.nbytes / len(values)) <= DICTIONARY_BYTES


def _distinct(values: pa.Array) -> int:
    """Estimate the number of distinct values of a column from a sample of it.

    In a sample of n values from d equally frequent ones, about n**2 / 2d pairs are equal.
    """
    n = len(values)
    found = int(pc.count_distinct(values).as_py())
    if 2 * found <= n:
        return found
    return math.ceil(n * n / (2 * (n - found))) if found < n else 1 << 62


def _is_small(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_string(kind) or pa.types.is_decimal(kind))
