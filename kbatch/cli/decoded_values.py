"""Parsed keys and values as JSON, for the lines of records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from kbatch.cli.shown import json_bytes, quoted
from kbatch.extras import require
from kbatch.json_text import check_json
from kbatch.options import On
from kbatch.records.arrow import to_arrow
from kbatch.table import RecordTable
from kbatch.value_options import ValueOptions, subjects_of
from kbatch.values.parsed import Parser, one_array, parse_column

__all__ = ["DecodedValues"]

# The times of the years 1 to 9999, in seconds since the epoch.
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_LINE_BREAKS = str.maketrans("\n\r\t", "   ")


@dataclass(frozen=True)
class DecodedValues:
    """The formats of keys and values of a listing.

    Attributes
    ----------
    parsers : mapping of {"key", "value"} to Parser
    texts : set of {"key", "value"}
        The sides that are JSON without a schema: their text is printed unchanged.
    """

    parsers: Mapping[On, Parser] = field(default_factory=dict)
    texts: frozenset[On] = frozenset()

    @classmethod
    def of(cls, values: ValueOptions, topics: Callable[[], Iterable[str]] = tuple) -> DecodedValues:
        """Return the formats that options request; `topics` returns the topics, for subjects of a schema registry.

        Raises
        ------
        ValueError
            If a schema is invalid.
        """
        texts = frozenset(on for on in values.parsed if getattr(values, on).inferred)
        parsers = {}
        for on in values.parsed:
            try:
                parser = None if on in texts else getattr(values, on).parser(list, partial(subjects_of, topics, on))
            except TypeError as error:
                raise ValueError(str(error)) from None
            if parser is not None:
                parsers[on] = parser
        return cls(parsers, texts)

    @property
    def any(self) -> bool:
        """Whether a side is decoded."""
        return bool(self.parsers or self.texts)

    def fields(self, table: RecordTable, on: On, max_bytes: int | None) -> list[str] | None:
        """Return for each record the JSON of its key or value, then further fields; None if the side is not decoded.

        The bytes of a bad value are in the field ``value_bad``, cut to `max_bytes`, and the reason is in
        ``value_error``.
        """
        found = self._parsed(table, on)
        if found is None:
            return None
        values, schema_ids, errors = found
        for row, number in enumerate(schema_ids):
            if number is not None:
                values[row] += f', "{on}_schema_id": {number}'
        for row, error in errors:
            values[row] += _bad_fields(table, on, row, error, max_bytes)
        return values

    def values(self, table: RecordTable, on: On) -> list[str] | None:
        """Return for each record the JSON of its key or value; None if the side is not decoded."""
        found = self._parsed(table, on)
        return None if found is None else found[0]

    def _parsed(self, table: RecordTable, on: On) -> tuple[list[str], list[int | None], list[tuple[int, str]]] | None:
        """Return the JSON and the schema id of each record, and the records that are bad, with the reasons."""
        if on in self.texts:
            return _json_texts(table, on)
        if on not in self.parsers:
            return None
        raw = to_arrow(table, columns=[on]).column(0)
        parsed = parse_column(self.parsers[on], raw.chunks)
        bad = list(zip(parsed.bad.tolist(), parsed.errors, strict=True))
        return _json_values(one_array(parsed.values)), parsed.schema_ids.to_pylist(), bad


def _bad_fields(table: RecordTable, on: On, row: int, error: str, max_bytes: int | None) -> str:
    data = (table.key if on == "key" else table.value)(row) or b""
    shown = json_bytes(data) if max_bytes is None else json_bytes(data[:max_bytes], len(data))
    return f', "{on}_bad": {shown}, "{on}_error": {quoted(error)}'


def _json_texts(table: RecordTable, on: On) -> tuple[list[str], list[int | None], list[tuple[int, str]]]:
    """Return JSON values on one line each, with all their digits, and those that are bad."""
    get = table.key if on == "key" else table.value
    found: list[str] = []
    bad: list[tuple[int, str]] = []
    for row in range(len(table)):
        data = get(row)
        text = "null"
        if data is not None:
            try:
                text = data.decode()
                check_json(text)
            except ValueError as error:
                text = "null"
                bad.append((row, str(error)))
        # These characters are only between tokens.
        found.append(text.strip(" \n\r\t").translate(_LINE_BREAKS))
    return found, [], bad


def _json_values(array: Any) -> list[str]:
    """Return the values of an Arrow array as JSON."""
    pa = require("pyarrow", "arrow", "decoded values")
    types, kind = pa.types, array.type
    if types.is_struct(kind):
        names = [quoted(each.name) for each in kind]
        columns = [_json_values(array.field(number)) for number in range(kind.num_fields)]
        rows = zip(*columns, strict=True) if columns else [()] * len(array)
        made = ["{" + ", ".join(map("{}: {}".format, names, row)) + "}" for row in rows]
    elif types.is_map(kind):
        keys, items = _json_values(array.keys), _json_values(array.items)
        # The names of JSON are strings.
        names = [key if key.startswith('"') else quoted(key) for key in keys]
        pairs = list(map("{}: {}".format, names, items))
        made = [f"{{{', '.join(pairs[start:end])}}}" for start, end in _item_ranges(array)]
    elif types.is_list(kind) or types.is_large_list(kind):
        items = _json_values(array.values)
        made = [f"[{', '.join(items[start:end])}]" for start, end in _item_ranges(array)]
    elif types.is_temporal(kind):
        return _time_texts(pa, array)
    else:
        write = _writer(types, kind)
        return ["null" if value is None else write(value) for value in array.to_pylist()]
    return [text if is_valid else "null" for text, is_valid in zip(made, array.is_valid().to_pylist(), strict=True)]


def _item_ranges(array: Any) -> list[tuple[int, int]]:
    """Return the items of each list; the items of an array begin with its first one."""
    return list(pairwise(array.offsets.to_pylist()))


def _writer(types: Any, kind: Any) -> Callable[[Any], str]:
    if types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if types.is_float32(kind):
        return lambda value: _number_text(value, str(np.float32(value)))
    if types.is_floating(kind):
        return lambda value: _number_text(value, repr(value))
    if types.is_string(kind) or types.is_large_string(kind):
        return quoted
    if types.is_decimal(kind):
        return _decimal_text
    return str if types.is_integer(kind) else json_bytes


def _decimal_text(value: Decimal) -> str:
    return format(value, "f")


def _number_text(value: float, text: str) -> str:
    """Return a number, or a string for one that JSON does not have."""
    if math.isfinite(value):
        return text
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _time_texts(pa: Any, array: Any) -> list[str]:
    """Return times in ISO 8601, and as integers if their year does not have four digits."""
    kind = array.type
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    numbers = array.cast(width).to_pylist()
    if pa.types.is_date32(kind):
        least, most = _FIRST_SECOND // 86400, _LAST_SECOND // 86400
    elif pa.types.is_timestamp(kind):
        factor = _PER_SECOND[kind.unit]
        least, most = _FIRST_SECOND * factor, _LAST_SECOND * factor + factor - 1
    else:
        least, most = 0, 2**63 - 1
    known = [number is not None and least <= number <= most for number in numbers]
    kept = (
        array if all(known) else array.take(pa.array([row if ok else None for row, ok in enumerate(known)], pa.int64()))
    )
    texts = kept.cast(pa.string()).to_pylist()
    return [
        "null" if number is None else str(number) if text is None else quoted(text.replace(" ", "T"))
        for number, text in zip(numbers, texts, strict=True)
    ]
