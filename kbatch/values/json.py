"""Parses JSON texts into an Arrow column, with Arrow's parser.

Texts become lines ``{"v":TEXT}`` of one buffer, which Arrow parses at once. `kbatch.kernels.jsontext` first checks that
no text extends beyond its line. Rows that Arrow refuses are parsed in smaller and smaller parts, until each bad row is
found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_fields, check_types
from kbatch.extras import require
from kbatch.kernels.jsontext import check_texts, join
from kbatch.options import Unknown
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike
from kbatch.records.display import short_repr
from kbatch.values.deviations import FieldDeviation
from kbatch.values.json_fields import fit_texts
from kbatch.values.memory import MAX_PARSED_BYTES, MemoryBudget, TypeMemory, memory_of_type
from kbatch.values.parsed import ByteSlices, Parsed, empty_structs, expand, one_array, slices_of
from kbatch.values.schema_limits import MAX_NESTING, check_type, shortened_name

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MAX_DEPTH", "MAX_FIELDS", "CheckedTexts", "JsonParser", "checked_texts", "infer_fields", "infer_json"]

# Rows that Arrow refuses are parsed again in this number of parts. Arrow takes 50 us for a few rows, Python 10 us per
# row.
JSON_PARTS = 16
# Arrow parses blocks of a buffer in parallel.
JSON_BLOCK_BYTES = 2 << 20

# The depth of nested brackets. Arrow's parser crashes on 100,000 levels if it has to infer their type.
MAX_DEPTH = 256

_PREFIX, _SUFFIX = b'{"v":', b"}\n"

# The maximum number of fields of an inferred schema: every field takes memory for every value.
MAX_FIELDS = 1000
# The different paths in samples that are considered; each takes about 500 bytes.
_MAX_PATHS = 100_000
_NO_NAME = re.compile("[\0\ud800-\udfff]")
# The maximum precision of decimal128.
_DECIMAL_DIGITS = 38

# The name of a field of `{"v":...}` in Arrow's messages.
_FIELD = re.compile(r"Column\(/v/?([^)]*)\)")

# Error texts, indexed by `JsonVerdict` in kernels/jsontext.pyx.
_JSON_ERRORS = (
    "",
    "empty, not a JSON value",
    "a control character",
    "a string that is not UTF-8",
    "a character that JSON does not allow outside of strings",
    f"brackets nested deeper than {MAX_DEPTH}",
    "more than one value",
    "a string or bracket that is not closed",
)


# The memory of the number, the place, the length and the verdict of a row, and of Arrow's row.
_JSON_ROW_BYTES = 64
# The most memory of a text as Python objects, for each of its bytes: ``[0,0]``.
_OBJECT_RATIO = 80


class CheckedTexts(NamedTuple):
    """A column of texts: its memory, the rows that may be valid, and the errors of the others that are not null."""

    slices: ByteSlices
    rows: npt.NDArray[np.int64]
    bad: dict[int, str]


def checked_texts(column: pa.Array, budget: MemoryBudget) -> CheckedTexts:
    """Check that no text of a column extends beyond its line."""
    slices = slices_of(column)
    rows = np.flatnonzero(slices.valid).astype(np.int64, copy=False)
    verdicts = np.zeros(len(rows), np.uint8)
    check_texts(slices.offsets, slices.content, rows, verdicts, MAX_DEPTH)
    budget.take(_JSON_ROW_BYTES * len(column))
    budget.take_errors(int(np.count_nonzero(verdicts)))
    found = zip(rows[verdicts != 0].tolist(), verdicts[verdicts != 0].tolist(), strict=True)
    return CheckedTexts(slices, rows[verdicts == 0], {row: _JSON_ERRORS[verdict] for row, verdict in found})


@public_in("kbatch.values")
@dataclass(frozen=True)
class JsonParser:
    """Parser of JSON: objects, arrays, strings or numbers at the top level.

    Attributes
    ----------
    type : pyarrow.DataType
        Type of the values. Fields that a value lacks are null. JSON strings are read as string, binary, or in ISO 8601
        as date32 and timestamp. Integers must be written without a fraction or exponent. Maps are not supported.
    unknown : {"ignore", "bad", "keep"}
        A field that the type lacks is ignored, or makes the whole value bad. With "keep", the value keeps the fields
        that fit, and is bad too, so that its bytes are kept (`Parsed.deviations` lists the others). A field of another
        type is then null, but a column of strings takes all values: the JSON text of each that is not a string.

    An object that repeats a field of the type is bad. ``NaN`` and ``Infinity`` are numbers, as in Python's json module.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from kbatch.values import JsonParser
    >>> parsed = JsonParser(pa.struct({"id": pa.int64()})).parse(pa.array([b'{"id": 1, "more": 2}', b"no"]))
    >>> parsed.values.to_pylist(), parsed.bad.tolist()
    ([{'id': 1}, None], [1])
    """

    type: pa.DataType
    unknown: Unknown = "ignore"

    def __repr__(self) -> str:
        return short_repr(self, self.__dataclass_fields__)

    def __post_init__(self) -> None:
        check_fields(self)
        pa = require("pyarrow", "arrow", "values_json()")
        if self.unknown not in get_args(Unknown):
            raise ValueError(f"unknown must be 'ignore', 'bad' or 'keep', got {self.unknown!r}")
        check_type(self.type, "the JSON schema")
        object.__setattr__(self, "_memory", memory_of_type(self.type))
        try:
            self._parse_lines(b'{"v":null}\n', _wire_type(pa, self.type))
        except pa.ArrowNotImplementedError as error:
            kind, reason = shortened_name(str(self.type)), shortened_name(str(error))
            raise TypeError(f"JSON can't be read as {kind}: {reason}") from None

    def parse(self, column: pa.Array, max_bytes: SizeLike = MAX_PARSED_BYTES) -> Parsed:
        """Parse a binary array; LimitExceededError if the values take more than `max_bytes` of memory."""
        check_types(JsonParser.parse, locals())
        pa = require("pyarrow", "arrow", "values_json()")
        budget = MemoryBudget(max_bytes)
        slices, rows, bad = checked_texts(column, budget)
        deviations: list[FieldDeviation] = []
        incomplete: dict[int, str] = {}
        if self.unknown == "keep":
            slices, incomplete, deviations, _ = fit_texts(self.type, slices, rows)
        budget.take_errors(len(incomplete))
        self._check_memory(slices, budget)
        good: list[tuple[npt.NDArray[np.int64], Any]] = []
        self._parse(pa, slices, rows, good, bad, budget)
        bad = incomplete | bad
        places = np.concatenate([np.empty(0, np.int64), *(part for part, _ in good)])
        values = pa.concat_arrays([part for _, part in good]) if good else pa.nulls(0, self.type)
        order = sorted(bad)
        values = expand(values, places, len(column))
        return Parsed(values, np.array(order, np.int64), [bad[row] for row in order], None, deviations)

    def _check_memory(self, slices: ByteSlices, budget: MemoryBudget) -> None:
        """Raise ValuesTooLargeError if the columns may need more memory than allowed."""
        memory: TypeMemory = self._memory  # type: ignore[attr-defined]
        n = len(slices.valid)
        content = slices.content[slices.offsets[0] : slices.offsets[n]]
        # The text is copied, and Arrow keeps its parts before it makes the columns. A number in a list has as few as
        # two bytes of text, for which 60 to 80 bytes were measured.
        rows = (32 if memory.item else 8) * len(content) + 2 * n * memory.row
        if rows + len(content) * memory.item > budget.rest and memory.item:
            # An item that takes more memory than its text is an object, an array or null.
            rows += 2 * _most_items(content) * memory.item
        budget.take(rows)

    def _parse(
        self,
        pa: Any,
        slices: ByteSlices,
        rows: npt.NDArray[np.int64],
        good: list[tuple[npt.NDArray[np.int64], Any]],
        bad: dict[int, str],
        budget: MemoryBudget,
    ) -> None:
        """Add the values that Arrow returns for rows to `good`, in order, and the rows that it refuses to `bad`."""
        if not len(rows):
            return
        # Each part that Arrow parses has its own columns.
        of_columns = self._memory.of_columns  # type: ignore[attr-defined]
        budget.take(of_columns)
        lengths = slices.offsets[rows + 1].astype(np.int64) - slices.offsets[rows]
        out = np.empty(int(lengths.sum()) + len(rows) * (len(_PREFIX) + len(_SUFFIX)), np.uint8)
        written = join(slices.offsets, slices.content, rows, _PREFIX, _SUFFIX, out)
        try:
            table = self._parse_lines(out[:written], _wire_type(pa, self.type))
            if table.num_rows != len(rows):
                # `check` excludes this; it must never assign a value to another record.
                raise pa.ArrowInvalid(f"{len(rows)} texts gave {table.num_rows} values")
            good.append((rows, _fitted(pa, table.column(0), self.type)))
            return
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
            text = str(error).removeprefix("JSON parse error: ").removesuffix(" in row 0")
            budget.give_back(of_columns)
        # Rows that Python refuses get its error, so that the text does not depend on the rows around them. A text whose
        # objects might exceed the limit gets Arrow's.
        found = {}
        if len(rows) <= JSON_PARTS:
            most = budget.rest // _OBJECT_RATIO
            found = {
                row: reason
                for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)
                if length <= most and (reason := self._screen(pa, slices.row(row)))
            }
            if len(rows) == 1 and not found:
                found[int(rows[0])] = shortened_name(_FIELD.sub(r"field '\1'", text))
            budget.take_errors(len(found))
            bad.update(found)
        if found:
            self._parse(pa, slices, rows[[row not in found for row in rows.tolist()]], good, bad, budget)
            return
        for part in np.array_split(rows, min(JSON_PARTS, len(rows))):
            self._parse(pa, slices, part, good, bad, budget)

    def _parse_lines(self, lines: Any, wire: pa.DataType) -> pa.Table:
        import pyarrow as pa
        import pyarrow.json

        buffer = pa.py_buffer(lines)
        # A line must fit into a block. Threads do not pay off for small buffers, nor where the columns of each block
        # take more memory than its text.
        small = buffer.size <= max(JSON_BLOCK_BYTES, self._memory.of_columns)  # type: ignore[attr-defined]
        block = max(1, buffer.size) if small else JSON_BLOCK_BYTES
        options = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([("v", wire)]),
            unexpected_field_behavior="error" if self.unknown == "bad" else "ignore",
        )
        while True:
            try:
                return pyarrow.json.read_json(
                    pa.BufferReader(buffer),
                    read_options=pyarrow.json.ReadOptions(use_threads=not small, block_size=block),
                    parse_options=options,
                )
            except pa.ArrowInvalid as error:
                if block >= buffer.size or "straddling" not in str(error):
                    raise
                block = min(buffer.size, 8 * block)

    def _screen(self, pa: Any, text: bytes) -> str | None:
        """Return the error in a text if Arrow certainly refuses the text too, else None."""
        try:
            value = json.loads(text, parse_int=_Digits)
        except ValueError as error:
            return str(error)
        return _misfit(pa, value, self.type, self.unknown == "bad")


def _most_items(content: npt.NDArray[np.uint8]) -> int:
    """Return a bound on the objects, arrays and nulls that are items of lists: bytes in strings may look like them."""
    text = content[content > ord(" ")]
    before, first, second = text[:-2], text[1:-1], text[2:]
    nested = (first == ord("{")) | (first == ord("[")) | ((first == ord("n")) & (second == ord("u")))
    return int(np.count_nonzero(nested & ((before == ord("[")) | (before == ord(",")))))


class _Digits(str):
    """The digits of an integer; converting long ones is slow."""


def _wire_type(pa: Any, kind: Any) -> Any:
    """Return the type for Arrow's parser, which reads dates only as timestamps."""
    if pa.types.is_date32(kind):
        return pa.timestamp("s")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_wire_type(pa, field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_wire_type(pa, kind.value_type)))
    return kind


def _fitted(pa: Any, values: Any, kind: Any) -> Any:
    """Return a chunked array as one array of exactly the type."""
    array = one_array(values)
    return array if array.type.equals(kind) else _cast_fields(pa, array, kind)


def _cast_fields(pa: Any, array: Any, kind: Any) -> Any:
    """Cast an array, without the fields that the type lacks."""
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        children = [_cast_fields(pa, array.field(field.name), field.type) for field in kind]
        mask = array.is_null() if array.null_count else None
        if not children:
            return empty_structs(np.asarray(array.is_valid()))
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        items = _cast_fields(pa, array.values, kind.value_type)
        return pa.Array.from_buffers(
            kind, len(array), array.buffers()[:2], array.null_count, array.offset, children=[items]
        )
    return array if array.type.equals(kind) else array.cast(kind)


def _misfit(pa: Any, value: Any, kind: Any, whole: bool) -> str | None:
    """Return the reason why Arrow can't read a value as a type, or None if that is not certain."""
    if value is None:
        return None
    types = pa.types
    if types.is_struct(kind):
        if not isinstance(value, dict):
            return f"expected an object, found {_kind(value)}"
        for field in kind:
            found = _misfit(pa, value.get(field.name), field.type, whole)
            if found:
                return f"{shortened_name(field.name)}: {found}"
        more = value.keys() - {field.name for field in kind} if whole else ()
        return f"field {shortened_name(repr(min(more)))} is not in the schema" if more else None
    if types.is_list(kind):
        if not isinstance(value, list):
            return f"expected an array, found {_kind(value)}"
        return next((found for item in value if (found := _misfit(pa, item, kind.value_type, whole))), None)
    if types.is_boolean(kind):
        fits = isinstance(value, bool)
    elif types.is_integer(kind) or types.is_floating(kind):
        fits = isinstance(value, _Digits | float) and not (types.is_integer(kind) and isinstance(value, float))
    elif types.is_string(kind) or types.is_large_string(kind) or types.is_timestamp(kind) or types.is_date32(kind):
        fits = isinstance(value, str) and not isinstance(value, _Digits)
    else:
        return None
    return None if fits else f"expected {kind}, found {_kind(value)}"


def _kind(value: Any) -> str:
    if isinstance(value, _Digits | float):
        return "a number"
    return {bool: "a boolean", str: "a string", list: "an array", dict: "an object"}.get(type(value), "null")


class _Paths:
    """Counts the different paths of values in samples."""

    def __init__(self) -> None:
        self.rest = _MAX_PATHS

    def take(self) -> bool:
        """Count a path; False if there are too many."""
        self.rest -= 1
        return self.rest >= 0


class _Seen:
    """The kinds of values that samples contain at one path."""

    __slots__ = ("counts", "fields", "float", "huge", "inexact", "items", "times", "wide")

    def __init__(self) -> None:
        self.times = 0
        self.counts: dict[str, int] = {}
        self.fields: dict[str, _Seen] = {}
        self.items: _Seen | None = None
        self.float = False
        # Whether there are integers that exceed int64, that exceed decimal128, and without an exact double.
        self.wide = False
        self.huge = False
        self.inexact = False

    def add(self, value: Any, paths: _Paths) -> None:
        """Add a value, without fields and items for which there are too many other paths."""
        self.times += 1
        if value is None:
            return
        kind = _kind(value)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if isinstance(value, dict):
            for name, item in value.items():
                field = self.fields.get(name)
                if field is None:
                    if not paths.take():
                        continue
                    field = self.fields[name] = _Seen()
                field.add(item, paths)
        elif isinstance(value, list):
            if self.items is None:
                if not paths.take():
                    return
                self.items = _Seen()
            for item in value:
                self.items.add(item, paths)
        elif isinstance(value, float):
            self.float = True
        elif isinstance(value, _Digits):
            digits = len(value.lstrip("-"))
            self.huge |= digits > _DECIMAL_DIGITS
            number = int(value[:_DECIMAL_DIGITS])
            self.wide |= not -(2**63) <= number < 2**63
            self.inexact |= digits > 20 or abs(number) >= 2**64 or float(number) != number

    def all_times(self) -> Iterator[int]:
        """Yield the number of occurrences of each nested field."""
        for seen in (*self.fields.values(), *([self.items] if self.items else [])):
            yield seen.times
            yield from seen.all_times()

    def type(self, pa: Any, more_than: int, of_nulls: Any, depth: int = 1) -> Any:
        """Return the common type, without fields that occur at most `more_than` times; `of_nulls` if all are null."""
        if not self.counts:
            return of_nulls
        kind = max(self.counts, key=lambda name: self.counts[name])
        # A column of text instead of columns for the fields would be a high price for a few other values.
        mixed = len(self.counts) > 1 and not (depth == 1 and kind == "an object")
        if mixed or (depth == MAX_NESTING and kind in ("an object", "an array")):
            return pa.string()
        if kind == "an object":
            # Arrow has no names with lone surrogates, and its C interface none with NUL; JSON writes both as escapes.
            fields = [
                (name, seen)
                for name, seen in self.fields.items()
                if seen.times > more_than and not _NO_NAME.search(name)
            ]
            return pa.struct([(name, seen.type(pa, more_than, of_nulls, depth + 1)) for name, seen in fields])
        if kind == "an array":
            items = self.items or _Seen()
            return pa.list_(items.type(pa, more_than, of_nulls, depth + 1) if items.counts else pa.string())
        if kind == "a number":
            return self._number(pa)
        return pa.bool_() if kind == "a boolean" else pa.string()

    def _number(self, pa: Any) -> Any:
        if self.huge or (self.float and self.inexact):
            return pa.string()
        return pa.float64() if self.float else pa.decimal128(_DECIMAL_DIGITS, 0) if self.wide else pa.int64()


@public_in("kbatch.values")
def infer_json(samples: Iterable[bytes | None]) -> pa.DataType:
    """Return a common type of JSON texts.

    Parameters
    ----------
    samples : iterable of bytes or None
        Texts; None and invalid JSON are ignored.

    Returns
    -------
    pyarrow.DataType
        Integers are int64, or decimal128(38, 0) if one exceeds it, or float64 if other numbers occur too. Fields with
        values of several kinds are strings, and so are numbers that neither type represents exactly, fields that are
        always null, arrays and objects beyond 64 levels, and texts that look like times. If most texts are objects, the
        type is a struct. It has at most 1000 fields, the most frequent ones of the first 100,000.

    Notes
    -----
    ``JsonParser(infer_json(samples), "keep")`` parses all values with the type, as ``values_json()`` does: strings
    take the JSON text of other values.

    Examples
    --------
    >>> from kbatch.values import infer_json
    >>> infer_json([b'{"a": 1}', b'{"a": 2.5, "b": ["x"]}'])
    StructType(struct<a: double, b: list<item: string>>)
    """
    check_types(infer_json, locals())
    return _common_type(samples, require("pyarrow", "arrow", "values_json()").string())


def infer_fields(samples: Iterable[bytes | None]) -> pa.DataType:
    """Return a common type of JSON texts as `infer_json` does, but the null type for fields that are always null."""
    return _common_type(samples, require("pyarrow", "arrow", "values_json()").null())


def _common_type(samples: Iterable[bytes | None], of_nulls: pa.DataType) -> pa.DataType:
    pa = require("pyarrow", "arrow", "values_json()")
    seen, paths = _Seen(), _Paths()
    for text in samples:
        if text is None:
            continue
        if not isinstance(text, bytes):
            raise TypeError(f"samples must contain bytes or None, got {type(text).__name__}")
        verdict = np.zeros(1, np.uint8)
        content = np.frombuffer(text, np.uint8)
        check_texts(np.array([0, len(text)], np.int32), content, np.zeros(1, np.int64), verdict, MAX_DEPTH)
        if verdict[0]:
            continue
        try:
            seen.add(json.loads(text, parse_int=_Digits), paths)
        except ValueError:
            continue
    times = sorted(seen.all_times(), reverse=True)
    return seen.type(pa, times[MAX_FIELDS] if len(times) > MAX_FIELDS else 0, of_nulls)
