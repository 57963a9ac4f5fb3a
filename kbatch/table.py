"""`RecordTable`, the result of decoding: three tables and one buffer, and the views of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_types, numpy_dtype
from kbatch.format import HEADER_DTYPE
from kbatch.kernels.slices import gather_fixed, header_keys, header_values
from kbatch.options import Binary, Framing, On, Unknown
from kbatch.public_names import public_in
from kbatch.records.data import Rows, TableData
from kbatch.records.display import table_html, table_repr
from kbatch.records.trimming import compacted

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from kbatch.values.avro import Schema
    from kbatch.values.parsed import ParsedValues

__all__ = ["RecordTable", "TableViews"]

_NO_OBJECTS = (
    "it has no Python object per record; use to_arrow(), to_polars() or to_pandas() for columns, records for a NumPy "
    "array, or key(i), value(i) and headers_of(i) for one record"
)


class TableViews(TableData):
    """The records of a table as Arrow, pandas and Polars."""

    def to_arrow(self, *, columns: Sequence[str] | None = None, binary: Binary = "binary") -> pyarrow.Table:
        """Return the records as an Arrow table.

        Parameters
        ----------
        columns : sequence of str, optional
            Some of offset, timestamp, timestampType, key, value, headers, topic and partition, in the order of the
            result. Default is the columns of the table. A requested topic or partition is null if it is unknown.
        binary : {"binary", "large_binary", "binary_view"}
            The type of keys and values, also in headers. ``"binary"`` (int32 offsets) and ``"large_binary"`` (int64)
            copy the bytes; ``"binary_view"`` copies only values of up to 12 bytes, and keeps all of ``data`` alive,
            unless the records refer to a small part of it: then that part is copied.

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

        Examples
        --------
        >>> import kbatch
        >>> kbatch.decode(b"").to_arrow(columns=["offset", "value"]).schema
        offset: int64
        value: binary
        """
        check_types(TableViews.to_arrow, locals())
        from kbatch.records import arrow

        return arrow.to_arrow(self, columns=columns, binary=binary)

    def to_pandas(
        self, *, columns: Sequence[str] | None = None, dtype_backend: Literal["numpy", "pyarrow"] = "numpy"
    ) -> pandas.DataFrame:
        """Return the records as a pandas DataFrame.

        Parameters
        ----------
        columns : sequence of str, optional
            As for `to_arrow`.
        dtype_backend : {"numpy", "pyarrow"}
            ``"numpy"``: keys and values are `bytes` or None, timestamps ``datetime64[ms, UTC]``, and headers a tuple
            of (key, value) tuples, empty where a record has none. ``"pyarrow"``: every column is a
            ``pandas.ArrowDtype``, no Python objects are created, and headers are lists of structs.

        Returns
        -------
        pandas.DataFrame
            One row per record, with a ``RangeIndex``.

        Raises
        ------
        MissingDependencyError
            Without pandas or pyarrow.
        ValueError
            For an unknown column or `dtype_backend`.
        """
        check_types(TableViews.to_pandas, locals())
        from kbatch.records import arrow

        return arrow.to_pandas(self, columns=columns, dtype_backend=dtype_backend)

    def to_polars(self, *, columns: Sequence[str] | None = None) -> polars.DataFrame:
        """Return the records as a Polars DataFrame; keys and values are not copied.

        Parameters
        ----------
        columns : sequence of str, optional
            As for `to_arrow`.

        Returns
        -------
        polars.DataFrame

        Raises
        ------
        MissingDependencyError
            Without Polars or pyarrow.
        ValueError
            For an unknown column.
        """
        check_types(TableViews.to_polars, locals())
        from kbatch.records import arrow

        return arrow.to_polars(self, columns=columns)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the records to any reader of the Arrow C stream interface (Polars, DuckDB, pyarrow, ...).

        The schema is that of `to_arrow`, unless the reader requests another.
        """
        from kbatch.records import arrow

        return arrow.c_stream(self, requested_schema)


@public_in("kbatch")
class RecordTable(TableViews):
    """Decoded records as columns: `records`, `batches` and `headers`, with positions into `data`.

    `kbatch.decode` and `kbatch.Log.tables` return tables. A table owns its buffers or holds the buffer that it was
    decoded from; every array and view taken from it keeps that memory alive.

    A table is immutable: its attributes cannot be set.

    References
    ----------
    Rules such as HDR-R5 are listed in ``docs/format-rules.md``.

    Examples
    --------
    >>> import kbatch
    >>> table = kbatch.decode(b"")
    >>> len(table), table.consumed
    (0, 0)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return table_repr(self)

    def _repr_html_(self) -> str:
        """Return the counts, the time range, the columns and the first rows for a notebook."""
        return table_html(self)

    @overload
    def __getitem__(self, rows: str) -> pyarrow.ChunkedArray: ...

    @overload
    def __getitem__(self, rows: Rows) -> RecordTable: ...

    def __getitem__(self, rows: str | Rows) -> RecordTable | pyarrow.ChunkedArray:
        """Select records by a slice, a boolean mask or row numbers, or return a column by its name.

        Masks and row numbers are lists or arrays of NumPy, Arrow, Polars or pandas; null in a mask selects no record.
        Row numbers must ascend, because `batches` relies on the order of records. Batches and bytes are shared:
        `compact` drops those that no selected record refers to.

        A column is the Arrow column of `to_arrow`. ``table.records`` has the NumPy arrays.
        """
        if isinstance(rows, str):
            return self.to_arrow(columns=[rows]).column(0)
        return self._select_rows(rows)

    def __iter__(self) -> NoReturn:
        raise TypeError(f"a RecordTable cannot be iterated: {_NO_OBJECTS}")

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        raise TypeError(f"a RecordTable is not an array: {_NO_OBJECTS}")

    @property
    def num_rows(self) -> int:
        """The number of records: ``len(table)``."""
        return len(self)

    @property
    def schema(self) -> pyarrow.Schema:
        """The Arrow schema of `to_arrow`, of the Arrow C stream and of the same columns of a log.

        Raises
        ------
        MissingDependencyError
            Without pyarrow.
        """
        from kbatch.records import arrow

        return arrow.view_schema(self.columns)

    def head(self, n: int = 5) -> RecordTable:
        """Return the first `n` records; with a negative `n`, all records except the last ``-n``."""
        check_types(RecordTable.head, locals())
        return self[:n]

    def compact(self) -> RecordTable:
        """Return a copy with only the bytes and batches that the records refer to.

        A selection, such as ``table[mask]``, keeps the bytes of the whole table in memory; its copy does not.

        Examples
        --------
        >>> import kbatch
        >>> table = kbatch.decode(kbatch.encode([b"v" * 100] * 1000, timestamps=0))
        >>> len(table[:2].data), len(table[:2].compact().data)
        (109997, 200)
        """
        return compacted(self)

    def headers_of(self, row: int) -> list[tuple[bytes, bytes | None]]:
        """Return the headers of one record as (key, value) pairs, in their order; None is a null value.

        Examples
        --------
        >>> import kbatch
        >>> table = kbatch.decode(kbatch.encode([b"v"], headers=[[("trace", b"7"), ("trace", None)]], timestamps=0))
        >>> table.headers_of(0)
        [(b'trace', b'7'), (b'trace', None)]
        """
        self.require("headers")
        row = self._checked_row(row)
        one = self[row : row + 1]
        self._check_memory_of(int(one.records["header_count"][0]) * HEADER_DTYPE.itemsize, "header rows", 1)
        # Header rows that the table already has stay in memory, in addition to those of this record.
        one._check_objects("headers", size=0 if self._headers is None else self._headers.nbytes)
        return list(zip(header_keys(one.headers, one.data), header_values(one.headers, one.data), strict=True))

    def equals(self, other: RecordTable) -> bool:
        """Return whether `other` has the same columns and records; batches and positions may differ.

        Raises
        ------
        MissingDependencyError
            Without pyarrow.
        TypeError
            If `other` is not a RecordTable.

        Examples
        --------
        >>> import kbatch
        >>> data = kbatch.encode([b"v"] * 9, timestamps=0)
        >>> kbatch.decode(data).equals(kbatch.decode(kbatch.recompress(data, "zstd")))
        True
        """
        if not isinstance(other, RecordTable):
            raise TypeError(f"equals() compares RecordTables, got {type(other).__name__}; see also table.to_arrow()")
        if len(self) != len(other) or self.columns != other.columns:
            return False
        return bool(self.to_arrow().equals(other.to_arrow()))

    def values_as(self, dtype: npt.DTypeLike, *, fill: Any = None) -> npt.NDArray[Any]:
        """Return values of a fixed width as an array.

        Parameters
        ----------
        dtype : dtype
            The type of a value, with the byte order of the stored bytes: Java's ``LongSerializer`` writes ``">i8"``.
            Structured dtypes and subarrays are allowed.
        fill : scalar, optional
            The replacement for a null value (a tombstone). Without it a null is an error.

        Returns
        -------
        ndarray of dtype, shape (records,)
            A copy.

        Raises
        ------
        TypeError
            If `dtype` holds Python objects or has no size.
        ValueError
            If a value is null or does not have the dtype's size; the message names the first such offset.

        Examples
        --------
        >>> import kbatch
        >>> kbatch.decode(b"").values_as(">i8")
        array([], dtype='>i8')
        """
        dtype = numpy_dtype(dtype)
        if dtype.hasobject or dtype.itemsize == 0:
            raise TypeError(f"dtype must have a fixed size and no Python objects, got {dtype}")
        self.require("value")
        rows = self._records
        # In a structured dtype a subarray is one element, and any dtype can be viewed as bytes.
        self._check_memory_of(len(rows) * dtype.itemsize, "values")
        out = np.empty(len(rows), [("value", dtype)])
        pattern = None
        if fill is not None:
            pattern = np.zeros(1, out.dtype)
            try:
                pattern["value"] = fill
            except (TypeError, ValueError) as error:
                raise type(error)(f"fill must be a value of dtype {dtype}, got {fill!r}") from None
            pattern = pattern.view(np.uint8)
        bad = gather_fixed(rows, self.data, dtype.itemsize, out.view(np.uint8), pattern)
        if bad >= 0:
            length = int(rows["value_len"][bad])
            found = "null; fill= gives a value to replace it" if length < 0 else f"{length} bytes"
            where = self._where(bad)
            raise ValueError(f"{where}: dtype {dtype} needs values of {dtype.itemsize} bytes, found {found}")
        return out["value"]

    def values_json(
        self,
        schema: str | os.PathLike[str] | Mapping[str, Any] | pyarrow.Schema | pyarrow.DataType | None = None,
        *,
        on: On = "value",
        unknown: Unknown | None = None,
    ) -> ParsedValues[RecordTable]:
        """Parse values, or keys, as JSON to an Arrow column; bad values are reported and kept.

        Parameters
        ----------
        schema : pyarrow.Schema or DataType, str, path or mapping, optional
            Fields of the objects, or the type of any JSON value; `kbatch.values.JsonParser` lists the types. Also
            Spark's DDL such as ``"id bigint, tags array<string>"``, a file of it, or types by field such as
            ``{"id": "bigint"}``. Default is inferred from a sample of the table (`kbatch.values.infer_json`).
        on : {"value", "key"}
        unknown : {"ignore", "bad", "keep"}, optional
            How to treat a field that the schema does not have: leave it out, parse nothing of the value, or parse the
            other fields and keep the bytes. With "bad" and "keep", the value is reported as bad. Default is "ignore"
            with a given schema, and "keep" with an inferred one. With "keep", strings take the JSON text of values of
            other types.

        Returns
        -------
        ParsedValues

        Raises
        ------
        MissingDependencyError
            Without pyarrow.
        TypeError
            If the schema has a type that JSON cannot be parsed to.

        Examples
        --------
        >>> import kbatch
        >>> kbatch.decode(b"").values_json().values.to_pylist()
        []
        """
        check_types(RecordTable.values_json, locals())
        from kbatch.values.json import JsonParser, infer_json
        from kbatch.values.parsed import ParsedValues, sample
        from kbatch.values.schemas import json_type

        if schema is None:
            parser = JsonParser(infer_json(sample(self, on)), unknown or "keep")
        else:
            parser = JsonParser(json_type(schema), unknown or "ignore")
        return ParsedValues.of(self, on, parser)

    def values_avro(
        self,
        schema: Schema | Mapping[int, Schema] | os.PathLike[str],
        *,
        framing: Framing = "none",
        reader_schema: Schema | os.PathLike[str] | None = None,
        on: On = "value",
    ) -> ParsedValues[RecordTable]:
        """Parse values, or keys, as Avro datums to an Arrow column; bad values are reported and kept.

        Parameters
        ----------
        schema : str, path, dict, list or mapping of int
            The writer's schema, as JSON text, as the parsed JSON or as the path of an ``.avsc`` file. With
            ``"confluent"`` also the schema of each id: a mapping, or a directory with files ``<id>.avsc``. Schemas are
            not fetched from a registry.
        framing : {"none", "confluent"}
            Whether each datum has Confluent's prefix of five bytes.
        reader_schema : str, path, dict or list, optional
            The schema of the result, by Avro's schema resolution. Default is `schema`, or the one with the highest id.
        on : {"value", "key"}

        Returns
        -------
        ParsedValues

        Raises
        ------
        MissingDependencyError
            Without pyarrow.
        ValueError
            If a schema is invalid, contains itself, or cannot be resolved to the reader's schema.
        """
        check_types(RecordTable.values_avro, locals())
        from kbatch.values.avro import AvroParser, read_schema, read_schemas
        from kbatch.values.parsed import ParsedValues

        reader = None if reader_schema is None else read_schema(reader_schema)
        return ParsedValues.of(self, on, AvroParser(read_schemas(schema), framing, reader))

    def values_protobuf(
        self,
        descriptors: bytes | str | os.PathLike[str],
        message: str | None = None,
        *,
        framing: Framing = "none",
        on: On = "value",
    ) -> ParsedValues[RecordTable]:
        """Parse values, or keys, as Protobuf messages to an Arrow column; bad values are reported and kept.

        Parameters
        ----------
        descriptors : bytes or path
            The output of ``protoc --include_imports --descriptor_set_out=FILE``, as bytes or a path; or a ``.proto``
            file, if grpcio-tools is installed.
        message : str, optional
            Full name of the message. Default is the first one of the file.
        framing : {"none", "confluent"}
            Whether each message has Confluent's prefix with the path of its type.
        on : {"value", "key"}

        Returns
        -------
        ParsedValues

        Raises
        ------
        MissingDependencyError
            Without pyarrow or protobuf.
        ValueError
            If the message is unknown, or contains itself.
        """
        check_types(RecordTable.values_protobuf, locals())
        from kbatch.values.parsed import ParsedValues
        from kbatch.values.protobuf import ProtobufParser, read_descriptors

        return ParsedValues.of(self, on, ProtobufParser(read_descriptors(descriptors), message, framing))

    def values_struct(self, dtype: npt.DTypeLike, *, on: On = "value") -> ParsedValues[RecordTable]:
        """Return values, or keys, of a fixed width as an Arrow column; values of another length are bad, and kept.

        Parameters
        ----------
        dtype : dtype or str
            As for `values_as`, which returns a NumPy array and rejects bad values; also ``"id:>i8,price:>f8"``.
        on : {"value", "key"}

        Returns
        -------
        ParsedValues

        Raises
        ------
        MissingDependencyError
            Without pyarrow.
        TypeError, ValueError
            If `dtype` is invalid, or has no fixed size.

        Examples
        --------
        >>> import kbatch
        >>> kbatch.decode(b"").values_struct("id:>i8,price:>f8").values.type
        StructType(struct<id: int64, price: double>)
        """
        check_types(RecordTable.values_struct, locals())
        from kbatch.values.fixed import FixedParser
        from kbatch.values.parsed import ParsedValues

        return ParsedValues.of(self, on, FixedParser(dtype))

    def values_text(self, *, on: On = "value") -> ParsedValues[RecordTable]:
        """Return values, or keys, as strings; values that are not UTF-8 are bad, and kept.

        Parameters
        ----------
        on : {"value", "key"}

        Returns
        -------
        ParsedValues
        """
        check_types(RecordTable.values_text, locals())
        from kbatch.values.parsed import ParsedValues, TextParser

        return ParsedValues.of(self, on, TextParser())
