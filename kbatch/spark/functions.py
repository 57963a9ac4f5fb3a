"""Raw batch bytes in a DataFrame's column or an RDD -> records, for `mapInArrow` and `mapPartitions`.

A value of such a column is what a fetch response or a segment file holds: whole batches, one after the other. Memory
is bounded by the largest value and the table decoded from a part of it, whatever the partition's size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, BinaryType, IntegralType, StructField, StructType

from kbatch.batches.framing import byte_array
from kbatch.errors import KbatchError, TruncatedBatchError
from kbatch.format import Limits
from kbatch.plan.losses import LOSS_SCHEMA, LossLog
from kbatch.read.committed import Aborted, decide
from kbatch.read.decode_options import Crc, DecodeOptions, Isolation, OnError
from kbatch.read.reader import decode_tables
from kbatch.records.data import Loss, decoded_columns
from kbatch.records.kafka_columns import spark_batches
from kbatch.spark.schema import LOSS_COLUMNS, RECORD_COLUMNS, table_schema
from kbatch.table import RecordTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["MapInArrow", "decode_batches", "decode_frame", "decode_in_arrow"]

_log = logging.getLogger(__name__)
_WHERE_ALL = "table='losses' gives all of them as rows"

# What the rows are; the transactions of a log can't be told from a part of it.
Table = Literal["records", "losses"]
# The names of the two fields in a list of aborted transactions: Kafka's, and as they are written in SQL.
_ABORTED_FIELDS = (("producer_id", "first_offset"), ("producerId", "firstOffset"))

# Larger Arrow batches slow Spark down, and smaller ones too (see `kbatch.records.kafka_columns.spark_batches`).
_MAX_ROWS = 16_000
_MAX_BYTES = 4 << 20
_TABLE_BYTES = 16 << 20

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


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
class _Decoder:
    """What is done with the bytes of one row; a plain object, so that it reaches the workers."""

    column: str
    columns: tuple[str, ...]
    options: DecodeOptions
    partial: str
    table: Table
    aborted_column: str | None
    table_bytes: int = _TABLE_BYTES

    @property
    def schema(self) -> StructType:
        return table_schema(self.table, self.columns)

    def tables(self, data: Any, aborted: Aborted | None, row: int) -> Iterator[RecordTable]:
        where = f"row {row} of the partition, column {self.column!r}"
        array = byte_array(data)
        try:
            # A marker may stand in a later table than what it decides: all of the row's bytes are looked at first.
            options, _ = decide(array, self.options, aborted)
        except (TypeError, ValueError) as error:
            if aborted is None:
                raise
            raise type(error)(f"row {row} of the partition, column {self.aborted_column!r}: {error}") from None
        reader = yield from decode_tables(array, options, source=where, max_bytes=self.table_bytes)
        position, stopped = reader.position, reader.stopped
        left = len(array) - position
        if not left or stopped or self.partial == "drop":
            return
        if self.options.on_error == "raise":
            raise TruncatedBatchError(
                f"{where}, byte {position}: the last {left} bytes are no whole batch; partial='drop' "
                "leaves them out, as the end of a fetch response may be cut",
                source=where,
                position=position,
            )
        loss = Loss(position, left, "the last bytes are no whole batch")
        yield RecordTable._empty(source=where, losses=[loss])

    def batches(self, data: Any, aborted: Aborted | None, row: int, log: LossLog) -> Iterator[pa.RecordBatch]:
        for table in self.tables(data, aborted, row):
            if self.table == "losses":
                yield from self._losses(table.losses)
                continue
            log.add(table.source or "", table.losses)
            yield from spark_batches(table, self.columns, _MAX_ROWS, _MAX_BYTES)

    def _losses(self, losses: list[Loss]) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([LOSS_SCHEMA.field(name) for name in self.columns])
        for i in range(0, len(losses), _MAX_ROWS):
            columns = zip(*losses[i : i + _MAX_ROWS], strict=True)
            arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass
class _Gatherer:
    """Puts small Arrow batches together, so that a row of few records doesn't cost a batch of its own."""

    schema: pa.Schema
    held: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    size: int = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if self.held and (self.rows + batch.num_rows > _MAX_ROWS or self.size + batch.nbytes > _MAX_BYTES):
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
    table: Table = "records",
    isolation: Isolation = "read_uncommitted",
    aborted_column: str | None = None,
) -> MapInArrow:
    """Return the function and the schema for `mapInArrow` over a DataFrame with a column of raw batch bytes.

    Parameters
    ----------
    column : str
        The binary column that holds whole batches; null is no batches.
    keep : StructType, optional
        Columns of the DataFrame to pass through: each record gets those of the row that its batch was in.
    include_headers : bool
        Whether to add the column of headers.
    include_control, crc, limits
        As for `kbatch.decode`.
    on_error : {"raise", "stop", "skip"}, optional
        As for `kbatch.decode`: raise by default, skip for a table of losses. With ``"stop"`` and ``"skip"`` each task
        warns in its log of what is lost; ``table="losses"`` gives it as rows.
    partial : {"raise", "drop"}
        What to do with bytes at the end of a row that are no whole batch: an error (where `on_error` is another, a
        loss), or nothing. A fetch response may end so.
    table : {"records", "losses"}
        What the rows are: records, or a row for each range of bytes that gives no records.
    isolation : {"read_uncommitted", "read_committed"}
        As for `kbatch.decode`. Under read_committed each row is by itself, like a fetch response.
    aborted_column : str, optional
        The column with the row's aborted transactions as a fetch response lists them, an array of structs of two
        integers: producer_id and first_offset (also producerId and firstOffset) in any order, or of other names in this
        one. An empty list says that nothing is aborted. Where it is null, and without such a column, the markers in the
        row's own bytes decide, and nothing is handed out from the first transaction on that none of them decides: a
        transaction that goes on in another row is not put together.

    Returns
    -------
    MapInArrow
        ``(function, schema)``: the kept columns, then key, value, offset, timestamp, timestampType and, if asked for,
        headers. Records are in the order of rows, and within a row in that of its batches. For losses the columns
        after the kept ones are position and length (bytes in the value), reason, and base_offset, which is null where
        no header could be framed; keep what tells the rows apart.

    Raises
    ------
    ValueError
        For a value of an option that isn't one, a kept column whose name is that of a record's column, or an
        `aborted_column` that read_uncommitted would not look at.
    KbatchError
        In the tasks, for damage; Spark shows the text, which names the row of the partition.

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
    options = _options(include_control, crc, on_error, limits, table, isolation)
    decoder = _decoder(column, include_headers, options, partial, table, aborted_column)
    kept = keep.fieldNames() if keep is not None else []
    clash = sorted(set(kept) & set(decoder.columns))
    if clash:
        raise ValueError(f"keep: {', '.join(map(repr, clash))} is a column of the {table} too; rename it first")
    schema = StructType([*(StructField(f.name, f.dataType, True) for f in (keep or [])), *decoder.schema.fields])

    def function(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first_row = 0
        log = LossLog(_log, _WHERE_ALL)
        for batch in batches:
            raw = _column(batch, column)
            lists = None if aborted_column is None else _aborted_lists(_column(batch, aborted_column), aborted_column)
            passed = [_column(batch, name) for name in kept]
            fields = [pa.field(name, array.type) for name, array in zip(kept, passed, strict=True)]
            gatherer: _Gatherer | None = None
            for i in range(len(raw)):
                value = raw[i].as_buffer()
                if value is None:
                    continue
                aborted = None if lists is None else lists(i)
                for decoded in decoder.batches(value, aborted, first_row + i, log):
                    n = decoded.num_rows
                    repeated = [_repeat(array[i], n) for array in passed]
                    whole = pa.schema([*fields, *decoded.schema])
                    if gatherer is None:
                        gatherer = _Gatherer(whole)
                    yield from gatherer.add(pa.RecordBatch.from_arrays([*repeated, *decoded.columns], schema=whole))
            if gatherer is not None:
                yield from gatherer.flush()
            first_row += len(raw)
        log.close()

    return MapInArrow(function, schema)


def decode_frame(frame: DataFrame, column: str = "value", *, keep: Sequence[str] = (), **options: Any) -> DataFrame:
    """Decode a DataFrame's column of raw batch bytes: `decode_in_arrow`, applied.

    Parameters
    ----------
    frame : DataFrame
    column : str
        The binary column.
    keep : sequence of str
        Columns to pass through.
    **options
        Those of `decode_in_arrow`.

    Returns
    -------
    DataFrame
        A row a record; with ``table="losses"`` a row a loss.

    Raises
    ------
    ValueError
        If a column isn't there, `column` isn't binary, or `aborted_column` no array of structs of two integers; and as
        `decode_in_arrow`.

    Examples
    --------
    >>> import kbatch.spark
    >>> records = kbatch.spark.decode_frame(raw, "value", keep=["topic"])  # doctest: +SKIP
    """
    present = frame.schema.fieldNames()
    aborted = options.get("aborted_column")
    looked_at = [column] if aborted is None else [column, aborted]
    missing = [name for name in (*looked_at, *keep) if name not in present]
    if missing:
        raise ValueError(f"no column {', '.join(map(repr, missing))}; there are {', '.join(present)}")
    if not isinstance(frame.schema[column].dataType, BinaryType):
        raise ValueError(f"column {column!r} is {frame.schema[column].dataType.simpleString()}, not binary")
    if aborted is not None and not _lists_pairs(frame.schema[aborted]):
        raise ValueError(
            f"column {aborted!r} is {frame.schema[aborted].dataType.simpleString()}, not "
            "array<struct<producer_id:bigint,first_offset:bigint>>"
        )
    kept = StructType([frame.schema[name] for name in keep])
    function, schema = decode_in_arrow(column, keep=kept, **options)
    needed = [*looked_at, *(name for name in keep if name not in looked_at)]
    return frame.select(*needed).mapInArrow(function, schema)


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
    table: Table = "records",
    isolation: Isolation = "read_uncommitted",
    aborted_column: str | None = None,
) -> Callable[[Iterable[Any]], Iterator[Row]]:
    """Return the function for `RDD.mapPartitions` over bytes, or over Rows with a column of raw batch bytes.

    A Python object for each field of each record is what RDDs cost: `decode_in_arrow` is about ten times faster.

    Parameters
    ----------
    column : str
        The field that holds whole batches, where elements are Rows. Null elements are left out.
    keep : sequence of str
        Fields of the Rows to pass through.
    include_headers, include_control, crc, on_error, partial, limits, table, isolation
        As in `decode_in_arrow`.
    aborted_column : str, optional
        The field of the Rows with the list of aborted transactions: Rows or pairs of two integers, else as there.

    Returns
    -------
    function
        From an iterable of elements to an iterator of Rows: the kept fields, then key, value, offset, timestamp (a
        datetime in UTC), timestampType and, if asked for, headers (a list of Rows of key and value, or None);
        of losses position, length, reason, base_offset.

    Examples
    --------
    >>> import kbatch.spark
    >>> decode = kbatch.spark.decode_batches()
    >>> list(decode([b"", None]))
    []
    >>> sc.parallelize(segments).mapPartitions(decode)  # doctest: +SKIP
    """
    options = _options(include_control, crc, on_error, limits, table, isolation)
    decoder = _decoder(column, include_headers, options, partial, table, aborted_column)
    make = Row(*keep, *decoder.columns)

    def function(elements: Iterable[Any]) -> Iterator[Row]:
        log = LossLog(_log, _WHERE_ALL)
        for i, element in enumerate(elements):
            is_row = isinstance(element, Row)
            value = element[column] if is_row else element
            if (keep or aborted_column is not None) and not is_row:
                raise TypeError(f"element {i} of the partition is {type(element).__name__}, not a Row: nothing to keep")
            if value is None:
                continue
            kept = [element[name] for name in keep]
            aborted = None if aborted_column is None else element[aborted_column]
            pairs = None if aborted is None else [_pair(entry) for entry in aborted]
            for batch in decoder.batches(value, pairs, i, log):
                columns = [
                    map(_header_rows, array.to_pylist()) if name == "headers" else array.to_pylist()
                    for name, array in zip(batch.schema.names, batch.columns, strict=True)
                ]
                for values in zip(*columns, strict=True):
                    yield make(*kept, *values)
        log.close()

    return function


def _options(
    include_control: bool,
    crc: Crc,
    on_error: OnError | None,
    limits: Limits | None,
    table: Table,
    isolation: Isolation,
) -> DecodeOptions:
    if table not in get_args(Table):
        raise ValueError(f"table must be one of {', '.join(map(repr, get_args(Table)))}, got {table!r}")
    if on_error is None:
        on_error = "skip" if table == "losses" else "raise"
    if table == "losses" and on_error == "raise":
        raise ValueError("table='losses' is for on_error='skip' or 'stop': with 'raise' damage is an error")
    return DecodeOptions(
        isolation=isolation, include_control=include_control, crc=crc, on_error=on_error, limits=limits or Limits()
    )


def _decoder(
    column: str, include_headers: bool, options: DecodeOptions, partial: str, table: Table, aborted_column: str | None
) -> _Decoder:
    if partial not in ("raise", "drop"):
        raise ValueError(f"partial must be 'raise' or 'drop', got {partial!r}")
    if aborted_column is not None and options.isolation == "read_uncommitted":
        raise ValueError(f"aborted_column={aborted_column!r} is for isolation='read_committed'")
    columns: tuple[str, ...] = LOSS_COLUMNS
    if table == "records":
        columns = (*RECORD_COLUMNS, "headers") if include_headers else RECORD_COLUMNS
    # Of a table of losses everything is checked, and no record is kept.
    options = replace(options, columns=decoded_columns(columns) if table == "records" else ())
    return _Decoder(column, columns, options, partial, table, aborted_column)


def _lists_pairs(field: StructField) -> bool:
    kind = field.dataType
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    types = [each.dataType for each in kind.elementType.fields]
    return len(types) == 2 and all(isinstance(each, IntegralType) for each in types)


def _aborted_lists(array: pa.Array, name: str) -> Callable[[int], Aborted | None]:
    """Return how to get the aborted transactions of a row; null is None."""
    kind = array.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not lists or not pa.types.is_struct(kind.value_type) or kind.value_type.num_fields != 2:
        raise KbatchError(f"column {name!r} is {kind}, not a list of structs of two integers")
    fields = [kind.value_type.field(i).name for i in range(2)]
    first, second = next((names for names in _ABORTED_FIELDS if set(names) == set(fields)), fields)

    def of_row(i: int) -> Aborted | None:
        entries = array[i].as_py()
        # A null entry has no fields: it is refused with the others that are no pairs.
        return None if entries is None else [entry and (entry[first], entry[second]) for entry in entries]

    return of_row


def _pair(entry: Any) -> Any:
    if isinstance(entry, Row):
        for names in _ABORTED_FIELDS:
            if all(name in entry for name in names):
                return tuple(entry[name] for name in names)
    return entry


def _header_rows(headers: list[dict[str, Any]] | None) -> list[Row] | None:
    return None if headers is None else [Row(key=header["key"], value=header["value"]) for header in headers]


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    index = batch.schema.get_field_index(name)
    if index < 0:
        raise KbatchError(f"no column {name!r} in the DataFrame; there are {', '.join(batch.schema.names)}")
    return batch.column(index)


def _repeat(scalar: pa.Scalar, n: int) -> pa.Array:
    return pa.nulls(n, scalar.type) if not scalar.is_valid else pa.repeat(scalar, n)
