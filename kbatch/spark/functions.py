"""Raw batch bytes in a DataFrame's column or an RDD -> records, for `mapInArrow` and `mapPartitions`.

A value of such a column has complete batches, one after the other, like a fetch response or a segment file. The memory
depends on the largest value and the table decoded from a part of it, not on the partition's size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, BinaryType, IntegralType, StructField, StructType

from kbatch.arguments import check_types
from kbatch.batches.framing import byte_array
from kbatch.errors import KbatchError, TruncatedBatchError
from kbatch.format import Limits
from kbatch.plan.loss_rows import LOSS_SCHEMA, LossLog
from kbatch.public_names import public_in
from kbatch.read.committed import Aborted, decide
from kbatch.read.decode_options import Crc, DecodeOptions, Isolation, OnError
from kbatch.read.in_memory import decode_tables
from kbatch.records.data import decoded_columns
from kbatch.records.kafka_columns import spark_batches
from kbatch.records.loss_list import Loss
from kbatch.spark.driver.shipping import shipped
from kbatch.spark.table_schemas import LOSS_COLUMNS, RECORD_COLUMNS, table_schema
from kbatch.table import RecordTable
from kbatch.tuning import SMALL_TABLE_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["MapInArrow", "decode_batches", "decode_frame", "decode_in_arrow"]

# Larger Arrow batches slow Spark down, and smaller ones too (see `kbatch.records.kafka_columns.spark_batches`).
ARROW_ROWS = 16_000
ARROW_BYTES = 4 << 20

# The rows to return. A table of transactions needs a whole log.
RowTable = Literal["records", "losses"]
# The names of the two fields in a list of aborted transactions: in SQL, and in Kafka.
_ABORTED_FIELDS = (("producer_id", "first_offset"), ("producerId", "firstOffset"))


ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@public_in("kbatch.spark")
class MapInArrow(NamedTuple):
    """The two arguments of `DataFrame.mapInArrow`: ``df.mapInArrow(*kbatch.spark.decode_in_arrow(...))``.

    Examples
    --------
    >>> import kbatch.spark
    >>> arguments = kbatch.spark.decode_in_arrow("raw")
    >>> arguments.schema.fieldNames()[:2]
    ['key', 'value']
    >>> raw.mapInArrow(*arguments).show()  # doctest: +SKIP
    """

    function: ArrowFunction
    schema: StructType


@dataclass(frozen=True)
class _RowDecoder:
    """Decodes the bytes of one row. It is pickled for the workers."""

    column: str
    columns: tuple[str, ...]
    options: DecodeOptions
    partial: str
    table: RowTable
    aborted_column: str | None
    table_bytes: int = SMALL_TABLE_BYTES

    @property
    def schema(self) -> StructType:
        return table_schema(self.table, self.columns)

    def tables(self, data: Any, aborted: Aborted | None, row: int) -> Iterator[RecordTable]:
        where = f"row {row} of the partition, column {self.column!r}"
        array = byte_array(data)
        try:
            # A marker may be in a later table than its transaction: follow the transactions of the whole row first.
            options, _ = decide(array, self.options, aborted)
        except (TypeError, ValueError) as error:
            if aborted is None:
                raise
            raise type(error)(f"row {row} of the partition, column {self.aborted_column!r}: {error}") from None
        reader = yield from decode_tables(array, options, source=where, max_bytes=self.table_bytes)
        position, stopped = reader.position, reader.stopped
        remaining = len(array) - position
        if not remaining or stopped or self.partial == "drop":
            return
        if self.options.on_error == "raise":
            raise TruncatedBatchError(
                f"{where}, byte {position}: the last {remaining} bytes are an incomplete batch, as at the end of a "
                "fetch response; partial='drop' drops it",
                source=where,
                position=position,
            )
        loss = Loss(position, remaining, "the last batch is incomplete")
        yield RecordTable._empty(source=where, losses=[loss])

    def batches(self, data: Any, aborted: Aborted | None, row: int, log: LossLog) -> Iterator[pa.RecordBatch]:
        for table in self.tables(data, aborted, row):
            if self.table == "losses":
                yield from self._losses(table.losses)
                continue
            log.add(table.source or "", table.losses)
            yield from spark_batches(table, self.columns, ARROW_ROWS, ARROW_BYTES)

    def _losses(self, losses: Sequence[Loss]) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([LOSS_SCHEMA.field(name) for name in self.columns])
        for i in range(0, len(losses), ARROW_ROWS):
            part = losses[i : i + ARROW_ROWS]
            arrays = [pa.array([getattr(loss, field.name) for loss in part], field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass
class _Gatherer:
    """Combines small Arrow batches, so that a row with few records does not cost a batch."""

    schema: pa.Schema
    held: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    size: int = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if self.held and (self.rows + batch.num_rows > ARROW_ROWS or self.size + batch.nbytes > ARROW_BYTES):
            yield from self.flush()
        self.held.append(batch)
        self.rows += batch.num_rows
        self.size += batch.nbytes

    def flush(self) -> Iterator[pa.RecordBatch]:
        if len(self.held) == 1:
            yield self.held[0]
        elif self.held:
            yield from pa.Table.from_batches(self.held, self.schema).combine_chunks().to_batches()
        self.held, self.rows, self.size = [], 0, 0


@public_in("kbatch.spark")
def decode_in_arrow(
    column: str = "value",
    *,
    keep: StructType | None = None,
    include_headers: bool = False,
    include_control: bool = False,
    crc: Crc = "verify",
    on_error: OnError | None = None,
    partial: str = "raise",
    limits: Limits | None = None,
    table: RowTable = "records",
    isolation: Isolation = "read_uncommitted",
    aborted_column: str | None = None,
) -> MapInArrow:
    """Return the function and the schema for `mapInArrow` over a DataFrame with a column of raw batch bytes.

    Parameters
    ----------
    column : str
        The binary column that has complete batches, or null.
    keep : StructType, optional
        Columns of the DataFrame to pass through: each record gets the values of the row of its batch.
    include_headers : bool
        Whether to add the column of headers.
    include_control, crc, limits
        As for `kbatch.decode`.
    on_error : {"raise", "stop", "skip"}, optional
        As for `kbatch.decode`: raise by default, skip for a table of losses. With ``"stop"`` and ``"skip"`` each task
        logs warnings about losses; ``table="losses"`` returns them as rows.
    partial : {"raise", "drop"}
        What to do with an incomplete batch at the end of a row, as a fetch response may have: raise an error (or, if
        `on_error` is not ``"raise"``, return a loss), or drop it.
    table : {"records", "losses"}
        The rows to return: records, or losses, which are ranges of bytes without records.
    isolation : {"read_uncommitted", "read_committed"}
        As for `kbatch.decode`. Under read_committed each row is independent, like a fetch response.
    aborted_column : str, optional
        The column with the row's aborted transactions as a fetch response lists them, an array of structs of two
        integers: producer_id and first_offset (also producerId and firstOffset) in any order, or with other names in
        this order. An empty list means that nothing is aborted. If it is null, and without such a column, the markers
        in the row's own bytes decide, and records from the first transaction without a marker on are withheld:
        transactions are not followed from row to row.

    Returns
    -------
    MapInArrow
        ``(function, schema)``: the kept columns, then key, value, offset, timestamp, timestampType and, if requested,
        headers. Records are in the order of rows, and within a row in the order of its batches. For losses the columns
        after the kept ones are position and length (bytes in the value), reason, and base_offset, which is null if
        the header cannot be framed. Keep columns that identify the rows.

    Raises
    ------
    ValueError
        For an invalid value of an option, a kept column with the name of a record's column, or an `aborted_column`
        with read_uncommitted.
    KbatchError
        In the tasks, for damage; Spark shows the message, which names the row of the partition.

    Examples
    --------
    >>> import kbatch.spark
    >>> function, schema = kbatch.spark.decode_in_arrow("raw")
    >>> schema.fieldNames()
    ['key', 'value', 'offset', 'timestamp', 'timestampType']
    >>> raw.mapInArrow(function, schema).show()  # doctest: +SKIP
    >>> kbatch.spark.decode_in_arrow("raw", table="losses").schema.fieldNames()
    ['position', 'length', 'reason', 'base_offset']
    """
    check_types(decode_in_arrow, locals())
    options = _options(include_control, crc, on_error, limits, table, isolation)
    decoder = _decoder(column, include_headers, options, partial, table, aborted_column)
    kept = keep.fieldNames() if keep is not None else []
    clash = sorted(set(kept) & set(decoder.columns))
    if clash:
        raise ValueError(f"keep: {', '.join(map(repr, clash))} is also a column of the {table}; rename it first")
    schema = StructType([*(StructField(f.name, f.dataType, True) for f in (keep or [])), *decoder.schema.fields])

    def function(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first_row = 0
        log = _loss_log()
        for batch in batches:
            yield from _decode_rows(decoder, batch, kept, first_row, log)
            first_row += batch.num_rows
        log.close()

    return MapInArrow(shipped(function), schema)


def _loss_log() -> LossLog:
    return LossLog(logging.getLogger(__name__), "table='losses' returns all of them as rows")


def _decode_rows(
    decoder: _RowDecoder, batch: pa.RecordBatch, kept: Sequence[str], first_row: int, log: LossLog
) -> Iterator[pa.RecordBatch]:
    """Decode the rows of an Arrow batch; `first_row` is the number of its first row in the partition."""
    raw = _batch_column(batch, decoder.column)
    name = decoder.aborted_column
    lists = None if name is None else _aborted_lists(_batch_column(batch, name), name)
    passed = [_batch_column(batch, name) for name in kept]
    fields = [pa.field(name, array.type) for name, array in zip(kept, passed, strict=True)]
    gatherer: _Gatherer | None = None
    for i in range(len(raw)):
        value = raw[i].as_buffer()
        if value is None:
            continue
        aborted = None if lists is None else lists(i)
        for decoded in decoder.batches(value, aborted, first_row + i, log):
            repeated = [_repeat(array[i], decoded.num_rows) for array in passed]
            schema = pa.schema([*fields, *decoded.schema])
            if gatherer is None:
                gatherer = _Gatherer(schema)
            yield from gatherer.add(pa.RecordBatch.from_arrays([*repeated, *decoded.columns], schema=schema))
    if gatherer is not None:
        yield from gatherer.flush()


@public_in("kbatch.spark")
def decode_frame(
    frame: DataFrame,
    column: str = "value",
    *,
    keep: Sequence[str] = (),
    include_headers: bool = False,
    include_control: bool = False,
    crc: Crc = "verify",
    on_error: OnError | None = None,
    partial: str = "raise",
    limits: Limits | None = None,
    table: RowTable = "records",
    isolation: Isolation = "read_uncommitted",
    aborted_column: str | None = None,
) -> DataFrame:
    """Decode a DataFrame's column of raw batch bytes with `decode_in_arrow`.

    Parameters
    ----------
    frame : DataFrame
    column : str
        The binary column.
    keep : sequence of str
        Columns to pass through.
    include_headers, include_control, crc, on_error, partial, limits, table, isolation, aborted_column
        As for `decode_in_arrow`.

    Returns
    -------
    DataFrame
        One row per record, or with ``table="losses"`` one row per loss.

    Raises
    ------
    ValueError
        If a column does not exist, `column` is not binary, or `aborted_column` is not an array of structs of two
        integers; and as `decode_in_arrow`.

    Examples
    --------
    >>> import kbatch.spark
    >>> records = kbatch.spark.decode_frame(raw, "value", keep=["topic"])  # doctest: +SKIP
    """
    present = frame.schema.fieldNames()
    check_types(decode_frame, locals())
    aborted = aborted_column
    inputs = [column] if aborted is None else [column, aborted]
    missing = [name for name in (*inputs, *keep) if name not in present]
    if missing:
        raise ValueError(f"no column {', '.join(map(repr, missing))}; the columns are {', '.join(present)}")
    if not isinstance(frame.schema[column].dataType, BinaryType):
        raise ValueError(f"column {column!r} is {frame.schema[column].dataType.simpleString()}, not binary")
    if aborted is not None and not _lists_pairs(frame.schema[aborted]):
        raise ValueError(
            f"column {aborted!r} is {frame.schema[aborted].dataType.simpleString()}, not "
            "array<struct<producer_id:bigint,first_offset:bigint>>"
        )
    kept = StructType([frame.schema[name] for name in keep])
    function, schema = decode_in_arrow(
        column,
        keep=kept,
        include_headers=include_headers,
        include_control=include_control,
        crc=crc,
        on_error=on_error,
        partial=partial,
        limits=limits,
        table=table,
        isolation=isolation,
        aborted_column=aborted_column,
    )
    needed = [*inputs, *(name for name in keep if name not in inputs)]
    return frame.select(*needed).mapInArrow(function, schema)


@public_in("kbatch.spark")
def decode_batches(
    column: str = "value",
    *,
    keep: Sequence[str] = (),
    include_headers: bool = False,
    include_control: bool = False,
    crc: Crc = "verify",
    on_error: OnError | None = None,
    partial: str = "raise",
    limits: Limits | None = None,
    table: RowTable = "records",
    isolation: Isolation = "read_uncommitted",
    aborted_column: str | None = None,
) -> Callable[[Iterable[Any]], Iterator[Row]]:
    """Return the function for `RDD.mapPartitions` over bytes, or over Rows with a column of raw batch bytes.

    An RDD has a Python object for each field of each record: `decode_in_arrow` with `DataFrame.mapInArrow` is the fast
    way: it gives about ten times as many records per second.

    Parameters
    ----------
    column : str
        The field that has complete batches, if the elements are Rows. Null elements are skipped.
    keep : sequence of str
        Fields of the Rows to pass through.
    include_headers, include_control, crc, on_error, partial, limits, table, isolation
        As in `decode_in_arrow`.
    aborted_column : str, optional
        The field of the Rows with the list of aborted transactions: Rows or pairs of two integers, otherwise as in
        `decode_in_arrow`.

    Returns
    -------
    function
        From an iterable of elements to an iterator of Rows: the kept fields, then key, value, offset, timestamp (a
        datetime in UTC), timestampType and, if requested, headers (a list of Rows of key and value, or None);
        for losses position, length, reason, base_offset.

    Examples
    --------
    >>> import kbatch.spark
    >>> decode = kbatch.spark.decode_batches()
    >>> list(decode([b"", None]))
    []
    >>> sc.parallelize(segments).mapPartitions(decode)  # doctest: +SKIP
    """
    check_types(decode_batches, locals())
    options = _options(include_control, crc, on_error, limits, table, isolation)
    decoder = _decoder(column, include_headers, options, partial, table, aborted_column)
    make = _row_maker((*keep, *decoder.columns))

    def function(elements: Iterable[Any]) -> Iterator[Row]:
        log = _loss_log()
        for i, element in enumerate(elements):
            is_row = isinstance(element, Row)
            value = element[column] if is_row else element
            if (keep or aborted_column is not None) and not is_row:
                raise TypeError(
                    f"element {i} of the partition is {type(element).__name__}, not a Row, so it has no fields to keep"
                )
            if value is None:
                continue
            kept = [element[name] for name in keep]
            aborted = None if aborted_column is None else element[aborted_column]
            pairs = None if aborted is None else [_pair(entry) for entry in aborted]
            for batch in decoder.batches(value, pairs, i, log):
                columns = [*(repeat(each, batch.num_rows) for each in kept), *map(_python_values, batch.columns)]
                yield from map(make, zip(*columns, strict=True))
        log.close()

    return shipped(function)


def _options(
    include_control: bool,
    crc: Crc,
    on_error: OnError | None,
    limits: Limits | None,
    table: RowTable,
    isolation: Isolation,
) -> DecodeOptions:
    if table not in get_args(RowTable):
        raise ValueError(f"table must be one of {', '.join(map(repr, get_args(RowTable)))}, got {table!r}")
    if on_error is None:
        on_error = "skip" if table == "losses" else "raise"
    if table == "losses" and on_error == "raise":
        raise ValueError("table='losses' requires on_error='skip' or 'stop'; with 'raise', damage is an error")
    return DecodeOptions(
        isolation=isolation, include_control=include_control, crc=crc, on_error=on_error, limits=limits or Limits()
    )


def _decoder(
    column: str,
    include_headers: bool,
    options: DecodeOptions,
    partial: str,
    table: RowTable,
    aborted_column: str | None,
) -> _RowDecoder:
    if partial not in ("raise", "drop"):
        raise ValueError(f"partial must be 'raise' or 'drop', got {partial!r}")
    if aborted_column is not None and options.isolation == "read_uncommitted":
        raise ValueError(f"aborted_column={aborted_column!r} requires isolation='read_committed'")
    columns: tuple[str, ...] = LOSS_COLUMNS
    if table == "records":
        columns = (*RECORD_COLUMNS, "headers") if include_headers else RECORD_COLUMNS
    # For a table of losses everything is decoded, and no record is kept.
    options = replace(options, columns=decoded_columns(columns) if table == "records" else ())
    return _RowDecoder(column, columns, options, partial, table, aborted_column)


def _lists_pairs(field: StructField) -> bool:
    kind = field.dataType
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    types = [each.dataType for each in kind.elementType.fields]
    return len(types) == 2 and all(isinstance(each, IntegralType) for each in types)


def _aborted_lists(array: pa.Array, name: str) -> Callable[[int], Aborted | None]:
    """Return a function that returns the aborted transactions of a row, or None for null."""
    kind = array.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not lists or not pa.types.is_struct(kind.value_type) or kind.value_type.num_fields != 2:
        raise KbatchError(f"column {name!r} is {kind}, not a list of structs of two integers")
    fields = [kind.value_type.field(i).name for i in range(2)]
    first, second = next((names for names in _ABORTED_FIELDS if set(names) == set(fields)), fields)

    def of_row(i: int) -> Aborted | None:
        entries = array[i].as_py()
        # A null entry has no fields: it is refused like other entries that are not pairs.
        return None if entries is None else [entry and (entry[first], entry[second]) for entry in entries]

    return of_row


def _pair(entry: Any) -> Any:
    if isinstance(entry, Row):
        for names in _ABORTED_FIELDS:
            if all(name in entry for name in names):
                return tuple(entry[name] for name in names)
    return entry


def _row_maker(fields: Sequence[str]) -> Callable[[Iterable[Any]], Row]:
    """Return a function from values to a Row: much faster than the call of a Row with the names."""
    names = list(fields)
    new = tuple.__new__

    def make(values: Iterable[Any]) -> Row:
        row = new(Row, values)
        row.__dict__["__fields__"] = names
        return row

    return make


_header_row = _row_maker(("key", "value"))


def _python_values(array: pa.Array) -> list[Any]:
    """Return the values of a column as `Array.to_pylist` does, but several times faster; headers are lists of Rows."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        naive = array.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False).tolist()
        try:
            return [None if each is None else each.replace(tzinfo=UTC) for each in naive]
        except (AttributeError, TypeError):
            # NumPy returns integers for years after 9999. The error of Arrow names the value.
            return cast("list[Any]", array.to_pylist())
    if pa.types.is_integer(kind) and not array.null_count:
        return cast("list[Any]", array.to_numpy().tolist())
    if pa.types.is_binary(kind) and not array.null_count:
        return _binary_values(array)
    if pa.types.is_binary(kind):
        values = _binary_values(array)
        return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_list(kind):
        names, contents = (_python_values(array.values.field(i)) for i in range(2))
        rows = list(map(_header_row, zip(names, contents, strict=True)))
        ends = array.offsets.to_numpy().tolist()
        valid = array.is_valid().to_numpy(zero_copy_only=False).tolist()
        return [rows[i:j] if holds else None for i, j, holds in zip(ends, ends[1:], valid, strict=False)]
    return cast("list[Any]", array.to_pylist())


def _binary_values(array: pa.Array) -> list[bytes]:
    _, offsets, content = array.buffers()
    if content is None or not len(array):
        return [b""] * len(array)
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    first = int(ends[0])
    data = content.slice(first, int(ends[-1]) - first).to_pybytes()
    bounds = (ends - first).tolist()
    return [data[i:j] for i, j in pairwise(bounds)]


def _batch_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    index = batch.schema.get_field_index(name)
    if index < 0:
        raise KbatchError(f"no column {name!r} in the DataFrame; the columns are {', '.join(batch.schema.names)}")
    return batch.column(index)


def _repeat(scalar: pa.Scalar, n: int) -> pa.Array:
    return pa.nulls(n, scalar.type) if not scalar.is_valid else pa.repeat(scalar, n)
