"""The common shape: a parser turns a column of bytes into a column of values, and names what it couldn't."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeVar

from kbatch.extras import require
from kbatch.records.arrow import to_arrow
from kbatch.records.data import TableData

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "On",
    "Parsed",
    "ParsedValues",
    "Parser",
    "Slices",
    "TextParser",
    "expand",
    "parse_column",
    "sample",
    "slices_of",
]

On = Literal["key", "value"]
# `RecordTable`, which is above this module. `ParsedValues` without an argument leaves the type of its table open.
TableT = TypeVar("TableT", bound=TableData, default=Any)

# Bytes that are parsed at once: what a parser makes of them fits int32 offsets, and memory stays in bounds.
_PART_BYTES = 16 << 20
_PART_ROWS = 1 << 20
# What a schema is inferred from.
_SAMPLE_ROWS = 2000
_SAMPLE_BYTES = 1 << 20


class Parsed(NamedTuple):
    """What a parser makes of a column of bytes.

    Attributes
    ----------
    values : pyarrow.Array
        As long as the column; null where the bytes are null or bad.
    bad : ndarray of int64
        Rows whose bytes are no value, ascending.
    errors : list of str
        Why, for each of them.

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


class Parser(Protocol):
    """What every format offers; parsers are picklable, for tasks of Spark.

    Examples
    --------
    >>> from kbatch.values import FixedParser, Parser, TextParser
    >>> parsers: list[Parser] = [TextParser(), FixedParser(">i8")]
    >>> [parser.type for parser in parsers]
    [DataType(string), DataType(int64)]
    """

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the values."""

    def parse(self, column: pa.Array) -> Parsed:
        """Parse a binary array; what is in it never raises."""


class Slices(NamedTuple):
    """A binary array's memory: row ``i`` is ``content[offsets[i]:offsets[i + 1]]``, unless it isn't ``valid``."""

    offsets: npt.NDArray[np.int32]
    content: npt.NDArray[np.uint8]
    valid: npt.NDArray[np.bool_]

    def row(self, i: int) -> bytes:
        """Return the bytes of a row."""
        return self.content[self.offsets[i] : self.offsets[i + 1]].tobytes()


def slices_of(column: pa.Array) -> Slices:
    """Return the memory of an Arrow array of type binary, without a copy."""
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
    return Slices(starts if n else np.zeros(1, np.int32), data, valid)


def expand(values: pa.Array, rows: npt.NDArray[np.int64], n: int) -> pa.Array:
    """Return `n` values: those given in their `rows`, which ascend, and null elsewhere."""
    if len(rows) == n:
        return values
    pa = require("pyarrow", "arrow", "parsing values")
    places = np.zeros(n, np.int64)
    places[rows] = np.arange(len(rows))
    missing = np.ones(n, np.bool_)
    missing[rows] = False
    return values.take(pa.array(places, mask=missing))


def _parts(column: pa.Array) -> Iterator[pa.Array]:
    """Cut a column in parts of bounded size; a row of more is one by itself."""
    n = len(column)
    if not n:
        return
    offsets = slices_of(column).offsets.astype(np.int64)
    start = 0
    while start < n:
        stop = int(np.searchsorted(offsets, offsets[start] + _PART_BYTES, "right")) - 1
        stop = min(n, start + _PART_ROWS, max(start + 1, stop))
        yield column.slice(start, stop - start)
        start = stop


def parse_column(
    parser: Parser, chunks: Sequence[pa.Array]
) -> tuple[pa.ChunkedArray, npt.NDArray[np.int64], list[str]]:
    """Parse the chunks of a column of any size; rows of the bad ones are those of the whole column."""
    pa = require("pyarrow", "arrow", "parsing values")
    values, bad, errors = [], [np.empty(0, np.int64)], []
    row = 0
    for chunk in chunks:
        for part in _parts(chunk):
            parsed = parser.parse(part)
            assert len(parsed.values) == len(part)
            values.append(parsed.values)
            bad.append(parsed.bad + row)
            errors += parsed.errors
            row += len(part)
    return pa.chunked_array(values, parser.type), np.concatenate(bad), errors


@dataclass(frozen=True)
class ParsedValues(Generic[TableT]):
    """The values (or keys) of a table's records as a column, and the bytes of those that are bad.

    Attributes
    ----------
    table : RecordTable
    on : {"value", "key"}
        Which of the two were parsed.
    values : pyarrow.ChunkedArray
        One a record; null where the bytes are null or bad.
    bad : ndarray of int64
        Records whose bytes are no value of the format and the schema, ascending.
    errors : list of str
        Why, for each of them.

    Examples
    --------
    >>> import kbatch
    >>> parsed = kbatch.decode(b"").values_text()
    >>> parsed.values.type, parsed.bad, parsed.to_arrow(["offset"]).column_names
    (DataType(string), array([], dtype=int64), ['value', 'offset', 'value_bad'])
    """

    table: TableT
    on: On
    values: pa.ChunkedArray
    bad: npt.NDArray[np.int64]
    errors: list[str]

    @property
    def bad_values(self) -> list[bytes]:
        """The bytes of the bad ones, as they are stored."""
        get = self.table.key if self.on == "key" else self.table.value
        return [value for row in self.bad.tolist() if (value := get(row)) is not None]

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the records with what was parsed in place of the bytes, and a column of what is bad.

        Parameters
        ----------
        columns : sequence of str, optional
            Other columns, as for `RecordTable.to_arrow`, in the order wanted. Default is all of them, with the parsed
            one in its place. One that isn't named comes first.

        Returns
        -------
        pyarrow.Table
            ``value`` (or ``key``) and, as the last column, ``value_bad`` (``key_bad``): the bytes of a bad one, null
            for the others.
        """
        pa = require("pyarrow", "arrow", "to_arrow()")
        import pyarrow.compute

        if columns is None:
            base = to_arrow(self.table)
        else:
            base = to_arrow(self.table, columns=columns if self.on in columns else [self.on, *columns])
        place = base.schema.get_field_index(self.on)
        raw = base.column(place)
        mask = np.zeros(len(self.table), np.bool_)
        mask[self.bad] = True
        bad = pyarrow.compute.if_else(pa.array(mask), raw, pa.scalar(None, raw.type))
        return base.set_column(place, self.on, self.values).append_column(f"{self.on}_bad", bad)

    @classmethod
    def of(cls, table: TableT, on: On, parser: Parser) -> ParsedValues[TableT]:
        """Parse a table's values or keys."""
        values, bad, errors = parse_column(parser, raw_column(table, on).chunks)
        return cls(table, on, values, bad, errors)


def raw_column(table: TableData, on: On) -> pa.ChunkedArray:
    """Return the bytes of a table's keys or values."""
    if on not in ("key", "value"):
        raise ValueError(f"on must be 'value' or 'key', got {on!r}")
    return to_arrow(table, columns=[on]).column(0)


def sample(table: TableData, on: On, rows: int = _SAMPLE_ROWS, size: int = _SAMPLE_BYTES) -> list[bytes]:
    """Return some of a table's keys or values, from all over it: so many at most, and so many bytes."""
    lengths = table.records[f"{on}_len"]
    present = np.flatnonzero(lengths >= 0)
    chosen = present[:: max(1, -(-len(present) // rows))]
    # The first of them always, however long.
    few = int(np.searchsorted(np.cumsum(lengths[chosen], dtype=np.int64), size, "right")) + 1
    get = table.key if on == "key" else table.value
    return [text for row in chosen[:few].tolist() if (text := get(row)) is not None]


@dataclass(frozen=True)
class TextParser:
    """UTF-8 text.

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

    def parse(self, column: pa.Array) -> Parsed:
        """Parse a binary array."""
        pa = require("pyarrow", "arrow", "parsing values")
        try:
            return Parsed(column.cast(pa.string()), np.empty(0, np.int64), [])
        except pa.ArrowInvalid:
            values: list[Any] = column.to_pylist()
        bad, errors = [], []
        for i, value in enumerate(values):
            try:
                values[i] = None if value is None else value.decode()
            except UnicodeDecodeError as error:
                values[i] = None
                bad.append(i)
                errors.append(f"byte {error.start}: not UTF-8")
        return Parsed(pa.array(values, pa.string()), np.array(bad, np.int64), errors)
