"""The parser interface: a column of bytes becomes a column of values, with an error for each bad row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeVar

from kbatch.arguments import check_types
from kbatch.errors import LimitExceededError
from kbatch.escaping import counted, printable
from kbatch.extras import require
from kbatch.options import On
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike
from kbatch.records.arrow import to_arrow
from kbatch.records.data import TableData
from kbatch.records.display import HTML_ROWS, html_of, short_repr, short_value
from kbatch.values.deviations import DeviationTable, FieldDeviation
from kbatch.values.memory import ERROR_BYTES, MAX_PARSED_BYTES, MemoryBudget, ValuesTooLargeError, memory_of_type

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ByteSlices",
    "On",
    "Parsed",
    "ParsedColumn",
    "ParsedValues",
    "Parser",
    "TextParser",
    "bad_columns",
    "bad_types",
    "empty_structs",
    "expand",
    "one_array",
    "parse_column",
    "sample",
    "selected_fields",
    "slices_of",
]

# A column is parsed in parts of this size, so that values fit int32 offsets and memory is bounded.
VALUES_PART_BYTES = 16 << 20
VALUES_PART_ROWS = 1 << 20
# The memory that the values of a part may take, in bytes, or this multiple of their own bytes if that is more. A part
# that needs more is halved. A single value that needs more is bad.
VALUES_PART_MEMORY = 128 << 20
VALUES_MEMORY_RATIO = 64

# `RecordTable`, which is in a higher layer. Without an argument, `ParsedValues` does not fix the type of its table.
TableT = TypeVar("TableT", bound=TableData, default=Any)

# The size of the sample from which a schema is inferred.
_SAMPLE_ROWS = 2000
_SAMPLE_BYTES = 1 << 20
# The memory of a text as bytes and str, without its content.
_TEXT_BYTES = 112
# The characters of the type in a representation.
_SHOWN_TYPE = 300
# The first values are shown in a notebook if they have at most this number of bytes.
_HTML_BYTES = 64 << 10


@public_in("kbatch.values")
class Parsed(NamedTuple):
    """A parsed column of bytes.

    Attributes
    ----------
    values : pyarrow.Array
        One value per row; null where the bytes are null or can't be parsed.
    bad : ndarray of int64
        Rows whose bytes the value does not represent completely, ascending.
    errors : list of str
        The reason for each bad row.
    schema_ids : ndarray of int64, optional
        The schema id in the prefix of each row, or -1. None without framing.
    deviations : sequence of FieldDeviation
        The fields of JSON that do not fit an inferred schema.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from kbatch.values import TextParser
    >>> parsed = TextParser().parse(pa.array([b"text", bytes([255]), None]))
    >>> parsed.values.to_pylist(), parsed.bad.tolist(), len(parsed.errors)
    (['text', None, None], [1], 1)
    """

    values: pa.Array
    bad: npt.NDArray[np.int64]
    errors: list[str]
    schema_ids: npt.NDArray[np.int64] | None = None
    deviations: Sequence[FieldDeviation] = ()

    def __repr__(self) -> str:
        return short_repr(self, self._fields)


@public_in("kbatch.values")
class Parser(Protocol):
    """The interface of all parsers. Parsers can be pickled, for Spark tasks.

    Examples
    --------
    >>> from kbatch.values import FixedParser, Parser, TextParser
    >>> parsers: list[Parser] = [TextParser(), FixedParser(">i8")]
    >>> [parser.type for parser in parsers]
    [DataType(string), DataType(int64)]
    """

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the values."""

    def parse(self, column: pa.Array, max_bytes: SizeLike = MAX_PARSED_BYTES) -> Parsed:
        """Parse a binary array; LimitExceededError if the values take more than `max_bytes` of memory."""


class ByteSlices(NamedTuple):
    """The memory of a binary array: row ``i`` is ``content[offsets[i]:offsets[i + 1]]`` if it is ``valid``."""

    offsets: npt.NDArray[np.int32]
    content: npt.NDArray[np.uint8]
    valid: npt.NDArray[np.bool_]

    def row(self, i: int) -> bytes:
        """Return the bytes of a row."""
        return self.content[self.offsets[i] : self.offsets[i + 1]].tobytes()


def slices_of(column: pa.Array) -> ByteSlices:
    """Return the memory of a binary Arrow array, without a copy."""
    pa = require("pyarrow", "arrow", "parsing values")
    if column.type != pa.binary():
        column = column.cast(pa.binary())
    _, offsets, content = column.buffers()
    n = len(column)
    starts = (
        np.frombuffer(offsets, np.int32)[column.offset : column.offset + n + 1] if offsets else np.zeros(1, np.int32)
    )
    data = np.frombuffer(content, np.uint8) if content is not None and content.size else np.zeros(0, np.uint8)
    valid = np.asarray(column.is_valid()) if column.null_count else np.ones(n, np.bool_)
    return ByteSlices(starts if n else np.zeros(1, np.int32), data, valid)


def expand(values: pa.Array, rows: npt.NDArray[np.int64], n: int) -> pa.Array:
    """Return `n` values: the given ones in `rows`, in any order, and null elsewhere."""
    if np.array_equal(rows, np.arange(n)):
        return values
    pa = require("pyarrow", "arrow", "parsing values")
    places = np.zeros(n, np.int64)
    places[rows] = np.arange(len(rows))
    missing = np.ones(n, np.bool_)
    missing[rows] = False
    return values.take(pa.array(places, mask=missing))


def _parts(column: pa.Array) -> Iterator[pa.Array]:
    """Split a column into parts of bounded size; a larger row is a part by itself."""
    n = len(column)
    if not n:
        return
    offsets = slices_of(column).offsets.astype(np.int64)
    start = 0
    while start < n:
        stop = int(np.searchsorted(offsets, offsets[start] + VALUES_PART_BYTES, "right")) - 1
        stop = min(n, start + VALUES_PART_ROWS, max(start + 1, stop))
        yield column.slice(start, stop - start)
        start = stop


class ParsedColumn(NamedTuple):
    """A parsed column of any size, as `Parsed`; the schema ids are an Arrow column, with null for -1."""

    values: pa.ChunkedArray
    bad: npt.NDArray[np.int64]
    errors: list[str]
    schema_ids: pa.ChunkedArray
    deviations: list[FieldDeviation]


def _parse_part(parser: Parser, part: pa.Array, rest: int) -> Iterator[tuple[Parsed, int]]:
    """Parse a part of a column, and halves of it if it takes too much memory; yield the values with their memory.

    `rest` is the memory that the whole column may still take.
    """
    offsets = slices_of(part).offsets
    most = max(VALUES_PART_MEMORY, VALUES_MEMORY_RATIO * int(offsets[-1] - offsets[0]))
    try:
        parsed = parser.parse(part, min(most, rest))
    except ValuesTooLargeError as error:
        n = len(part)
        if n > 1:
            for half in (part.slice(0, n // 2), part.slice(n // 2)):
                for parsed, size in _parse_part(parser, half, rest):
                    yield parsed, size
                    rest -= size
            return
        # Such a value counts as the maximum: many of them reach the limit of the table soon, and take little time.
        nothing = require("pyarrow", "arrow", "parsing values").nulls(1, parser.type)
        yield Parsed(nothing, np.zeros(1, np.int64), [str(error)]), most
    else:
        assert len(parsed.values) == len(part)
        size = parsed.values.nbytes + memory_of_type(parser.type).of_columns
        yield parsed, size + len(parsed.errors) * ERROR_BYTES


def parse_column(
    parser: Parser, chunks: Sequence[pa.Array], max_bytes: int = MAX_PARSED_BYTES, advice: str = "parse fewer at a time"
) -> ParsedColumn:
    """Parse the chunks of a column of any size; bad rows are numbered over the whole column.

    Raises
    ------
    LimitExceededError
        If the values take more than `max_bytes`; the message ends with `advice`.
    """
    pa = require("pyarrow", "arrow", "parsing values")
    values, bad, errors, ids = [], [np.empty(0, np.int64)], [], []
    deviations = DeviationTable()
    row, rest = 0, max_bytes
    for part in (part for chunk in chunks for part in _parts(chunk)):
        for parsed, size in _parse_part(parser, part, rest):
            rest -= size
            if rest < 0:
                raise LimitExceededError(f"the parsed values take more than {max_bytes} bytes of memory; {advice}")
            values.append(parsed.values)
            bad.append(parsed.bad + row)
            errors += parsed.errors
            ids.append(_ids_array(pa, parsed.schema_ids, len(parsed.values)))
            for each in parsed.deviations:
                deviations.add((each.kind, each.field, each.reason), each.occurrences, (each.row + row,))
            row += len(parsed.values)
    return ParsedColumn(
        pa.chunked_array(values, parser.type),
        np.concatenate(bad),
        errors,
        pa.chunked_array(ids, pa.int64()),
        [FieldDeviation._make((*key, count, *place)) for key, (count, place) in deviations.found.items()],
    )


def _ids_array(pa: Any, ids: npt.NDArray[np.int64] | None, n: int) -> Any:
    return pa.nulls(n, pa.int64()) if ids is None else pa.array(ids, mask=ids < 0)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a chunked array as one array, also if it has no chunk."""
    pa = require("pyarrow", "arrow", "parsing values")
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.nulls(0, column.type)
    return array


def empty_structs(valid: npt.NDArray[np.bool_]) -> pa.Array:
    """Return structs without fields, null where they are not valid."""
    pa = require("pyarrow", "arrow", "parsing values")
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.struct([]), len(valid), [bits], len(valid) - np.count_nonzero(valid), children=[])


def selected_fields(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a struct array with only the fields that a type has."""
    pa = require("pyarrow", "arrow", "parsing values")
    if not pa.types.is_struct(kind) or values.type.equals(kind):
        return values
    mask = values.is_null() if values.null_count else None
    if not kind.num_fields:
        return empty_structs(np.asarray(values.is_valid()))
    children = [selected_fields(values.field(each.name), each.type) for each in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def bad_types() -> dict[str, pa.DataType]:
    """Return the types of the columns about bad values, by the end of their names, such as ``value_bad``."""
    pa = require("pyarrow", "arrow", "parsing values")
    return {"bad": pa.binary(), "error": pa.string(), "schema_id": pa.int64()}


def bad_columns(raw: Any, bad: npt.NDArray[np.int64], errors: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """Return the bytes of bad rows and the reasons, null for other rows."""
    pa = require("pyarrow", "arrow", "parsing values")
    if not len(bad):
        return pa.nulls(len(raw), raw.type), pa.nulls(len(raw), pa.string())
    places, missing = np.zeros(len(raw), np.int64), np.ones(len(raw), np.bool_)
    places[bad] = np.arange(len(bad))
    missing[bad] = False
    chosen = pa.array(places, mask=missing)
    rows = pa.array(np.where(missing, 0, np.arange(len(raw))), mask=missing)
    return raw.take(rows), pa.array(errors, pa.string()).take(chosen)


@public_in("kbatch.values")
@dataclass(frozen=True)
class ParsedValues(Generic[TableT]):
    """The parsed values (or keys) of a table's records, and the bytes of bad ones.

    Attributes
    ----------
    table : RecordTable
    on : {"value", "key"}
        Whether values or keys were parsed.
    values : pyarrow.ChunkedArray
        One value per record; null where the bytes are null or can't be parsed.
    bad : ndarray of int64
        Records whose bytes the value does not represent completely, ascending. Their values are null, or lack the
        fields that do not fit an inferred schema of JSON.
    errors : list of str
        The reason for each bad record.
    schema_ids : pyarrow.ChunkedArray
        The registry's schema id of each record, as int64, with ``framing="confluent"``; otherwise null.
    deviations : list of FieldDeviation
        The fields of JSON that do not fit an inferred schema, the first hundred of them.

    Examples
    --------
    >>> import kbatch
    >>> parsed = kbatch.decode(b"").values_text()
    >>> parsed.values.type, parsed.bad, parsed.to_arrow(["offset"]).column_names
    (DataType(string), array([], dtype=int64), ['value', 'offset', 'value_bad', 'value_error', 'value_schema_id'])
    """

    table: TableT
    on: On
    values: pa.ChunkedArray
    bad: npt.NDArray[np.int64]
    errors: list[str]
    schema_ids: pa.ChunkedArray
    deviations: list[FieldDeviation]

    def __repr__(self) -> str:
        kind = printable(" ".join(str(self.values.type).split()))
        kind = kind if len(kind) <= _SHOWN_TYPE else f"{kind[:_SHOWN_TYPE]}..."
        records = counted(len(self.values), "record")
        first = f", first: {printable(self.errors[0])}" if self.errors else ""
        return f"<ParsedValues of {self.on}: {records} of type {kind}, {len(self.bad):,} bad{first}>"

    def _repr_html_(self) -> str:
        """Return counts, the type and the first values for a notebook."""
        facts = [("", f"{counted(len(self.values), 'record')}, {len(self.bad):,} bad")]
        kind = " ".join(str(self.values.type).split())
        facts.append((f"type of {self.on}", kind if len(kind) <= _SHOWN_TYPE else f"{kind[:_SHOWN_TYPE]}..."))
        if self.errors:
            facts.append(("first error", self.errors[0]))
        head = self.values.slice(0, HTML_ROWS)
        # Large values would become objects only to be shortened.
        shown = head.to_pylist() if head.nbytes <= _HTML_BYTES else ["..."] * len(head)
        rows = [[str(row), "null" if value is None else short_value(value)] for row, value in enumerate(shown)]
        return html_of(type(self).__name__, facts, ["row", self.on], rows)

    @property
    def bad_values(self) -> list[bytes]:
        """The stored bytes of the bad records."""
        get = self.table.key if self.on == "key" else self.table.value
        return [value for row in self.bad.tolist() if (value := get(row)) is not None]

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the records with the parsed column in place of the bytes, and columns about bad values.

        Parameters
        ----------
        columns : sequence of str, optional
            Columns and their order, as for `RecordTable.to_arrow`. The parsed column comes first if it is not named.
            Default is all columns.

        Returns
        -------
        pyarrow.Table
            The columns, and as the last ones ``value_bad`` and ``value_error`` (the bytes of bad records and the
            reason, null for other records) and ``value_schema_id``. For keys they are ``key_bad``, ``key_error`` and
            ``key_schema_id``.
        """
        check_types(ParsedValues.to_arrow, locals())
        table, memory = self.table, self.table._memory
        if memory is not None:
            # The parsed column takes memory in addition to the other columns.
            table = table._with(memory=memory._replace(rest=memory.rest - self.values.nbytes))
        if columns is None:
            base = to_arrow(table)
        else:
            base = to_arrow(table, columns=columns if self.on in columns else [self.on, *columns])
        place = base.schema.get_field_index(self.on)
        bad, errors = bad_columns(base.column(place), self.bad, self.errors)
        base = base.set_column(place, self.on, self.values)
        for name, column in zip(bad_types(), (bad, errors, self.schema_ids), strict=True):
            base = base.append_column(f"{self.on}_{name}", column)
        return base

    @classmethod
    def of(cls, table: TableT, on: On, parser: Parser) -> ParsedValues[TableT]:
        """Parse a table's values or keys; LimitExceededError if they exceed the memory of the table."""
        check_types(ParsedValues.of, locals())
        if not isinstance(table, TableData):
            raise TypeError(f"table must be a RecordTable, got {type(table).__name__}")
        if not callable(getattr(parser, "parse", None)):
            raise TypeError(
                f"parser must have a method parse, as kbatch.values.JsonParser has, got {type(parser).__name__}"
            )
        column = raw_column(table, on)
        rest = max(table._view_memory() - column.nbytes, 0)
        advice = "raise limits=kbatch.Limits(max_table_bytes=...), or take a slice of the table"
        return cls(table, on, *parse_column(parser, column.chunks, rest, advice))


def raw_column(table: TableData, on: On) -> pa.ChunkedArray:
    """Return the bytes of a table's keys or values."""
    _check_on(on)
    return to_arrow(table, columns=[on]).column(0)


def _check_on(on: str) -> None:
    if on not in ("key", "value"):
        raise ValueError(f"on must be 'value' or 'key', got {on!r}")


def sample(table: TableData, on: On, rows: int = _SAMPLE_ROWS, size: int = _SAMPLE_BYTES) -> list[bytes]:
    """Return at most `rows` of a table's keys or values, spread over the table, with about `size` bytes."""
    _check_on(on)
    lengths = table.records[f"{on}_len"]
    present = np.flatnonzero(lengths >= 0)
    chosen = present[:: max(1, -(-len(present) // rows))]
    # Always at least one, however long.
    count = int(np.searchsorted(np.cumsum(lengths[chosen], dtype=np.int64), size, "right")) + 1
    get = table.key if on == "key" else table.value
    return [text for row in chosen[:count].tolist() if (text := get(row)) is not None]


@public_in("kbatch.values")
@dataclass(frozen=True)
class TextParser:
    """Parser of UTF-8 text.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from kbatch.values import TextParser
    >>> TextParser().parse(pa.array(["café".encode()])).values.to_pylist()
    ['café']
    """

    @property
    def type(self) -> pa.DataType:
        """``string``."""
        return require("pyarrow", "arrow", "parsing values").string()

    def parse(self, column: pa.Array, max_bytes: SizeLike = MAX_PARSED_BYTES) -> Parsed:
        """Parse a binary array; LimitExceededError if the values take more than `max_bytes` of memory."""
        check_types(TextParser.parse, locals())
        pa = require("pyarrow", "arrow", "parsing values")
        budget = MemoryBudget(max_bytes)
        budget.take(column.nbytes)
        try:
            return Parsed(column.cast(pa.string()), np.empty(0, np.int64), [])
        except pa.ArrowInvalid:
            budget.take(2 * column.nbytes + len(column) * _TEXT_BYTES)
            values: list[Any] = column.to_pylist()
        bad, errors = [], []
        for i, value in enumerate(values):
            try:
                values[i] = None if value is None else value.decode()
            except UnicodeDecodeError as error:
                budget.take_errors(1)
                values[i] = None
                bad.append(i)
                errors.append(f"byte {error.start}: not UTF-8")
        return Parsed(pa.array(values, pa.string()), np.array(bad, np.int64), errors)
