"""Typed columns of keys and values in place of their bytes, in batches of records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from kbatch.extras import require
from kbatch.options import On
from kbatch.records.kafka_columns import SPARK_COLUMNS
from kbatch.values.deviations import DeviationTable
from kbatch.values.memory import MAX_PARSED_BYTES
from kbatch.values.parsed import ParsedColumn, Parser, bad_columns, bad_types, one_array, parse_column
from kbatch.values.projection import field_path, projected, pruned_type

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DOC", "CountsValues", "ValueColumns", "ValueCounts", "flat_field", "flat_names", "taken_names"]

# The key of metadata under which pyiceberg expects the comment of a column.
DOC = b"doc"


@dataclass
class ValueCounts:
    """The keys and values of batches that their columns do not represent.

    Attributes
    ----------
    unparsed, incomplete : Counter
        By side, "key" or "value": the number of nulls in the output with bad bytes, and of values without all fields.
    deviations : DeviationTable
        By side, kind, field and reason, with the offset of the first record.
    """

    unparsed: Counter[On] = field(default_factory=Counter)
    incomplete: Counter[On] = field(default_factory=Counter)
    deviations: DeviationTable = field(default_factory=DeviationTable)

    def add(self, on: On, column: ParsedColumn, offsets: pa.Array | None) -> None:
        """Count a column of a batch."""
        if len(column.bad):
            readable = int(np.count_nonzero(np.asarray(column.values.is_valid())[column.bad]))
            self.incomplete[on] += readable
            self.unparsed[on] += len(column.bad) - readable
        for each in column.deviations:
            offset = None if offsets is None else offsets[each.row].as_py()
            self.deviations.add((on, each.kind, each.field, each.reason), each.occurrences, (offset,))


class CountsValues(Protocol):
    """What counts the values of batches, such as `ValueCounts`."""

    def add(self, on: On, column: ParsedColumn, offsets: pa.Array | None) -> None:
        """Count a column of a batch."""


class _Part(NamedTuple):
    """A column of the result that is made of keys or values: a field of them, or what is known about bad ones."""

    on: On
    path: tuple[str, ...] = ()
    about: str | None = None


@dataclass(frozen=True)
class ValueColumns:
    """Parses the columns ``key`` and ``value`` of batches; it can be pickled.

    Attributes
    ----------
    parsers : mapping of {"key", "value"} to Parser
    columns : tuple of str or None
        The columns of the result, in this order; None is all of them. ``value.id`` is a field of values: only the
        fields that are named are parsed, and if no column of a side is named, nothing of it.
    flatten : bool
        Whether the fields of structs become columns. A name that another column has, in any case, gets the prefix
        ``value_`` (``key_``). The column ``value_is_null`` then states which values are null.
    flat : mapping of str to str
        By field, such as ``value.id``, the names of columns that data already has for fields.
    """

    parsers: Mapping[On, Parser]
    columns: tuple[str, ...] | None = None
    flatten: bool = False
    flat: Mapping[str, str] = field(default_factory=dict)

    def select(self, columns: Sequence[str]) -> ValueColumns:
        """Return the transform to these columns.

        Raises
        ------
        ValueError
            For a field that values do not have.
        """
        made = replace(self, columns=tuple(columns))
        _ = made._named
        return made

    def inputs(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return which of the columns `names` of records `apply` needs, in their order of first use."""
        if self.columns is None:
            return tuple(names)
        return tuple(dict.fromkeys(name if part is None else part.on for name, part in self._named.items()))

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the result of `apply`: values in place of bytes, then the columns about bad ones."""
        pa = require("pyarrow", "arrow", "parsing values")
        if self.columns is not None and not self.flatten:
            return pa.schema([self._field(schema, name, part) for name, part in self._named.items()])
        flat = self._flat
        parts = {each.name: [each] for each in schema}
        more: list[Any] = []
        for on, parser in self.parsers.items():
            if on not in parts:
                continue
            parts[on] = [pa.field(on, parser.type)]
            if on in flat:
                parts[on] = [flat_field(on, below, name) for name, below in zip(flat[on], parser.type, strict=True)]
                more.append(pa.field(f"{on}_is_null", pa.bool_()))
            more += [pa.field(f"{on}_{name}", below) for name, below in bad_types().items()]
        whole = pa.schema([field for name in schema.names for field in parts[name]] + more)
        return whole if self.columns is None else pa.schema([whole.field(name) for name in self.columns])

    def apply(
        self,
        batch: pa.RecordBatch,
        counts: CountsValues | None = None,
        max_bytes: int = MAX_PARSED_BYTES,
        advice: str = "parse fewer at a time",
    ) -> pa.RecordBatch:
        """Parse a batch, and add to `counts`; LimitExceededError if the values of a side take more than `max_bytes`."""
        pa = require("pyarrow", "arrow", "parsing values")
        schema = self.schema(batch.schema)
        columns = {name: batch.column(name) for name in batch.schema.names}
        offsets = columns.get("offset")
        for on, parser in self._parts.items():
            raw = columns.pop(on, None)
            if raw is None:
                continue
            column = parse_column(parser, [raw], max_bytes, advice)
            parsed = column._replace(values=one_array(column.values), schema_ids=one_array(column.schema_ids))
            if counts is not None:
                counts.add(on, parsed, offsets)
            columns |= self._columns_of(on, raw, parsed)
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _columns_of(self, on: On, raw: pa.Array, parsed: ParsedColumn) -> dict[str, pa.Array]:
        """Return the columns that are made of the keys or values of a batch."""
        import pyarrow.compute as pc

        made: dict[str, Any] = {}
        if on in self._flat:
            made |= dict(zip(self._flat[on], parsed.values.flatten(), strict=True))
            made[f"{on}_is_null"] = parsed.values.is_null()
        else:
            made[on] = parsed.values
        if self.columns is not None and not self.flatten:
            for name, part in self._named.items():
                if part is not None and part.on == on and part.path:
                    made[name] = pc.struct_field(parsed.values, list(part.path))
        bad, errors = bad_columns(raw, parsed.bad, parsed.errors)
        about = (bad, errors, parsed.schema_ids)
        return made | dict(zip((f"{on}_{name}" for name in bad_types()), about, strict=True))

    @cached_property
    def _named(self) -> dict[str, _Part | None]:
        """What each of the columns is made of; None is a column of records."""
        return {name: self._part(name) for name in self.columns or ()}

    def _part(self, name: str) -> _Part | None:
        for on, parser in self.parsers.items():
            if name == on:
                return _Part(on)
            if (about := name.removeprefix(f"{on}_")) != name and about in bad_types():
                return _Part(on, about=about)
            if name.startswith(f"{on}."):
                try:
                    return _Part(on, field_path(parser.type, name[len(on) + 1 :]))
                except ValueError as error:
                    raise ValueError(f"column {name!r}: {error}") from None
        return None

    def _field(self, schema: pa.Schema, name: str, part: _Part | None) -> pa.Field:
        pa = require("pyarrow", "arrow", "parsing values")
        if part is None:
            return schema.field(name)
        if part.about is not None:
            return pa.field(name, bad_types()[part.about])
        kind = self.parsers[part.on].type
        for each in part.path:
            kind = kind.field(each).type
        return pa.field(name, kind)

    @cached_property
    def _parts(self) -> dict[On, Parser]:
        """The parsers of what the columns need."""
        if self.columns is None or self.flatten:
            return dict(self.parsers)
        found: dict[On, Parser] = {}
        for on, parser in self.parsers.items():
            parts = [part for part in self._named.values() if part is not None and part.on == on]
            if parts:
                paths = [part.path for part in parts if part.about is None]
                found[on] = projected(parser, pruned_type(parser.type, paths))
        return found

    @property
    def _flat(self) -> dict[On, list[str]]:
        return flat_names(self.parsers, self.flat) if self.flatten else {}


def flat_names(parsers: Mapping[On, Parser], known: Mapping[str, str] | None = None) -> dict[On, list[str]]:
    """Return the names of the columns for the fields of structs, which are unique in any case of letters.

    Fields that are in `known`, such as ``value.id``, keep the names that they have there.
    """
    types: Any = require("pyarrow", "arrow", "parsing values").types
    known = known or {}
    taken = taken_names(parsers) | {name.lower() for name in known.values()}
    found: dict[On, list[str]] = {}
    # Values first, because keys often have some of their fields.
    for on in sorted(parsers, reverse=True):
        kind = parsers[on].type
        if types.is_struct(kind) and kind.num_fields:
            found[on] = [known.get(f"{on}.{each.name}") or _unused(each.name, on, taken) for each in kind]
    return found


def taken_names(sides: Iterable[On]) -> set[str]:
    """Return the names, in lower case, of the columns next to the fields of structs on these sides."""
    about = {f"{on}_{name}" for on in sides for name in (*bad_types(), "is_null")}
    return about | {name.lower() for name in (*SPARK_COLUMNS, "date")}


def _unused(name: str, on: On, taken: set[str]) -> str:
    while not name or name.lower() in taken:
        name = f"{on}_{name}"
    taken.add(name.lower())
    return name


def flat_field(on: On, field: pa.Field, name: str) -> pa.Field:
    """Return the column of a struct's field. Its metadata name the field; Iceberg shows them as the column's doc."""
    return field.with_name(name).with_metadata({DOC: f"{on}.{field.name}"})
