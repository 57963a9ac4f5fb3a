"""Converts values of a writer's Avro schema to the reader's.

Source: the Avro specification 1.12 (schema resolution; default values of fields: in bytes and fixed, the code points 0
to 255 of the text are the bytes).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np

from kbatch.values.avro_schema import AvroNode, NodeKind
from kbatch.values.memory import MemoryBudget, memory_of_type
from kbatch.values.schema_limits import MAX_DEFAULT_VALUES, SchemaTooLargeError, path_below, shortened_name

__all__ = ["SchemaResolver"]

# The types of defaults in JSON.
_JSON_TYPES: dict[NodeKind, type] = {
    NodeKind.BOOLEAN: bool,
    NodeKind.STRING: str,
    NodeKind.BYTES: str,
    NodeKind.FIXED: str,
    NodeKind.DECIMAL: str,
    NodeKind.DECIMAL_FIXED: str,
    NodeKind.ENUM: str,
    NodeKind.ARRAY: list,
    NodeKind.MAP: dict,
    NodeKind.RECORD: dict,
}
_JSON_NAMES: dict[type, str] = {bool: "a boolean", str: "a string", list: "an array", dict: "an object"}
# The characters of a text that count as one value of a default.
_CHARACTERS_PER_VALUE = 64
# The numbers that are read as wider ones, and texts as bytes or bytes as texts.
_WIDER = {
    NodeKind.INT: (NodeKind.LONG, NodeKind.FLOAT, NodeKind.DOUBLE),
    NodeKind.LONG: (NodeKind.FLOAT, NodeKind.DOUBLE),
    NodeKind.FLOAT: (NodeKind.DOUBLE,),
    NodeKind.STRING: (NodeKind.BYTES,),
    NodeKind.BYTES: (NodeKind.STRING,),
}


class SchemaResolver:
    """Converts values of writers' schemas to one reader's (the specification's schema resolution).

    What depends on the schemas alone is computed once for each pair of their types, however often values are converted.
    """

    def __init__(self, pa: Any) -> None:
        self.pa = pa
        self._same: dict[tuple[AvroNode, AvroNode], bool] = {}
        # For each field of a reader's record, its place in the writer's record; -1 if the writer lacks it.
        self._places: dict[tuple[AvroNode, AvroNode], list[int]] = {}
        # The default of a field of a reader's record, as an array of one row.
        self._defaults: dict[tuple[AvroNode, int], Any] = {}
        self._values = _DefaultValues()

    def array(self, array: Any, writer: AvroNode, reader: AvroNode, budget: MemoryBudget, path: str = "") -> Any:
        """Convert values of the writer's schema to the reader's; `path` is their place, for errors."""
        pa = self.pa
        while writer.kind == NodeKind.NULLABLE:
            writer = writer.children[0]
        while reader.kind == NodeKind.NULLABLE:
            reader = reader.children[0]
        if self._is_same(array, writer, reader):
            return array
        kinds = (writer.kind, reader.kind)
        if kinds == (NodeKind.RECORD, NodeKind.RECORD):
            return self._record(array, writer, reader, budget, path)
        if kinds == (NodeKind.ARRAY, NodeKind.ARRAY) or kinds == (NodeKind.MAP, NodeKind.MAP):
            if kinds[0] == NodeKind.ARRAY:
                inner = self.array(array.values, writer.children[0], reader.children[0], budget, path)
            else:
                items = self.array(array.items, writer.children[1], reader.children[1], budget, path)
                fields = [reader.type.key_field, reader.type.item_field]
                inner = pa.StructArray.from_arrays([array.keys, items], fields=fields)
            return pa.Array.from_buffers(
                reader.type, len(array), array.buffers()[:2], array.null_count, array.offset, children=[inner]
            )
        if reader.kind in _WIDER.get(writer.kind, ()):
            budget.take(2 * len(array) * memory_of_type(reader.type).row)
            return array.cast(reader.type, safe=writer.kind == NodeKind.BYTES)
        if writer.kind == NodeKind.NULL:
            budget.take(len(array) * memory_of_type(reader.type).row)
            return pa.nulls(len(array), reader.type)
        types = [shortened_name(str(kind)) for kind in (array.type, reader.type)]
        raise ValueError(f"field {shortened_name(path) or '(top level)'}: {types[0]} can't be read as {types[1]}")

    def _is_same(self, array: Any, writer: AvroNode, reader: AvroNode) -> bool:
        """Whether the writer's values are values of the reader's type."""
        pair = (writer, reader)
        if pair not in self._same:
            fits = writer.kind == reader.kind and array.type.equals(reader.type)
            self._same[pair] = fits and (writer.kind != NodeKind.ENUM or writer.names.keys() <= reader.names.keys())
        return self._same[pair]

    def _record(self, array: Any, writer: AvroNode, reader: AvroNode, budget: MemoryBudget, path: str) -> Any:
        pair = (writer, reader)
        if pair not in self._places:
            names = writer.names
            self._places[pair] = [
                next((names[k] for k in (name, *aliases) if k in names), -1)
                for name, aliases in zip(reader.names, reader.aliases, strict=True)
            ]
        children = []
        for i, (name, node, place) in enumerate(zip(reader.names, reader.children, self._places[pair], strict=True)):
            below = path_below(path, name)
            if place >= 0:
                children.append(self.array(array.field(place), writer.children[place], node, budget, below))
            elif "default" in reader.defaults[i]:
                one = self._default(reader, i, below)
                budget.take(len(array) * one.nbytes)
                children.append(one.take(self.pa.array(np.zeros(len(array), np.int64))))
            else:
                raise ValueError(
                    f"field {shortened_name(below)}: missing in the writer's schema, and without a default"
                )
        mask = array.is_null() if array.null_count else None
        return self.pa.StructArray.from_arrays(children, fields=list(reader.type), mask=mask)

    def _default(self, reader: AvroNode, i: int, path: str) -> Any:
        """Return the default of a record's field as an array of one row."""
        if (reader, i) not in self._defaults:
            node, value = reader.children[i], reader.defaults[i]["default"]
            try:
                self._defaults[reader, i] = self.pa.array([self._values.of(value, node)], node.type)
            except SchemaTooLargeError as error:
                raise SchemaTooLargeError(f"field {shortened_name(path)}: {error}") from None
            except (ValueError, TypeError, OverflowError) as error:
                reason = shortened_name(str(error))
                raise ValueError(
                    f"field {shortened_name(path)}: the default does not match the type: {reason}"
                ) from None
        return self._defaults[reader, i]


class _DefaultValues:
    """Converts defaults as `pyarrow.array` takes them: JSON has no bytes, decimals and unions."""

    def __init__(self) -> None:
        self.rest = MAX_DEFAULT_VALUES

    def take(self, count: int) -> None:
        """Add to the number of values in all defaults; raise SchemaTooLargeError if it exceeds `MAX_DEFAULT_VALUES`."""
        self.rest -= count
        if self.rest < 0:
            raise SchemaTooLargeError(
                f"the defaults of the schema have more than {MAX_DEFAULT_VALUES} values; every item counts with all "
                "fields and branches of its type"
            )

    def of(self, value: Any, node: AvroNode) -> Any:
        """Return the value of a default; ValueError if it is not of the type."""
        self.take(1)
        kind = node.kind
        expected = _JSON_TYPES.get(kind)
        if expected is not None and not isinstance(value, expected):
            raise ValueError(f"{_short_default(value)} is not {_JSON_NAMES[expected]}")
        if expected is str:
            self.take(len(value) // _CHARACTERS_PER_VALUE)
        if kind == NodeKind.NULLABLE:
            return None if value is None else self.of(value, node.children[0])
        if kind == NodeKind.UNION:
            return self._union(value, node)
        if kind == NodeKind.RECORD:
            fields = zip(node.names, node.children, node.defaults, strict=True)
            return {name: self.of(_field_value(value, name, own), child) for name, child, own in fields}
        if kind == NodeKind.ARRAY:
            self.take(len(value) * node.children[0].total.nodes)
            return [self.of(item, node.children[0]) for item in value]
        if kind == NodeKind.MAP:
            self.take(len(value) * node.children[1].total.nodes)
            return [(key, self.of(item, node.children[1])) for key, item in value.items()]
        if kind in (NodeKind.BYTES, NodeKind.FIXED, NodeKind.DECIMAL, NodeKind.DECIMAL_FIXED):
            return _bytes_value(value, node)
        if kind == NodeKind.ENUM and value not in node.names:
            raise ValueError(f"{_short_default(value)} is not a symbol of the enum")
        if kind in (NodeKind.INT, NodeKind.LONG) and type(value) is not int:
            raise ValueError(f"{_short_default(value)} is not a whole number")
        if kind in (NodeKind.FLOAT, NodeKind.DOUBLE) and type(value) not in (int, float):
            raise ValueError(f"{_short_default(value)} is not a number")
        if kind == NodeKind.NULL and value is not None:
            raise ValueError(f"{_short_default(value)} is not null")
        return value

    def _union(self, value: Any, node: AvroNode) -> Any:
        """Return the default of a union: the value of its first branch that has such values."""
        if value is None and node.null_branch >= 0:
            return None
        for name, child in zip(node.names, node.children, strict=True):
            try:
                return {name: self.of(value, child)}
            except SchemaTooLargeError:
                raise
            except (ValueError, TypeError):
                continue
        raise ValueError(f"{_short_default(value)} is not a value of a branch of the union")


def _bytes_value(text: str, node: AvroNode) -> bytes | Decimal:
    content = text.encode("latin-1")
    if node.kind in (NodeKind.FIXED, NodeKind.DECIMAL_FIXED) and len(content) != node.size:
        raise ValueError(f"{len(content)} bytes for a fixed of {node.size}")
    if node.kind in (NodeKind.BYTES, NodeKind.FIXED):
        return content
    unscaled = int.from_bytes(content, "big", signed=True)
    # Built from its digits, because arithmetic would round to the precision of the context.
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -node.type.scale))


def _field_value(value: dict[str, Any], name: str, own: dict[str, Any]) -> Any:
    if name in value:
        return value[name]
    if "default" not in own:
        raise ValueError(f"field {_short_default(name)} is missing")
    return own["default"]


def _short_default(value: Any) -> str:
    """Return a value of JSON for an error, in a time that does not depend on its size."""
    if isinstance(value, list | dict):
        return _JSON_NAMES[type(value)]
    return repr(value[:_CHARACTERS_PER_VALUE] if isinstance(value, str) else value)
