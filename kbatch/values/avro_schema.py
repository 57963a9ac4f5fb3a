"""Compiles an Avro schema to the nodes that `kbatch.kernels.avro` decodes.

A named type is compiled once, and its nodes are copied to every reference, because each reference has separate columns.
`kbatch.values.schema_limits` bounds the size of the result.

Source: the Avro specification 1.11 (schemas, logical types). As in Spark's ``from_avro``, a union of null and one type
is nullable; any other is a struct of its branches, ``member0`` and so on.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kbatch.values.schema_limits import FullNames, TypeSize, at, path_below, shortened_name

__all__ = ["AVRO_PRIMITIVES", "AVRO_SCHEMA", "AvroCompiler", "AvroNode", "NodeKind"]

# The name of a schema in messages.
AVRO_SCHEMA = "Avro schema"


class NodeKind(enum.IntEnum):
    """The kinds of nodes; the twin of ``AvroKind`` in ``kernels/avro.pyx``."""

    NULL = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    STRING = 7
    FIXED = 8
    ENUM = 9
    DECIMAL = 10
    DECIMAL_FIXED = 11
    ARRAY = 12
    MAP = 13
    RECORD = 14
    UNION = 15
    NULLABLE = 16


AVRO_PRIMITIVES = {kind.name.lower(): kind for kind in NodeKind if kind <= NodeKind.STRING}
# The logical types for times of day, with the number of different values of each.
_TIMES = {(NodeKind.INT, "time-millis"): 86_400_000, (NodeKind.LONG, "time-micros"): 86_400_000_000}
# The minimum size of a datum in bytes; 1 for other kinds.
_MIN_DATUM_SIZES = {
    NodeKind.NULL: 0,
    NodeKind.FLOAT: 4,
    NodeKind.DOUBLE: 8,
    NodeKind.RECORD: 0,
    NodeKind.FIXED: 0,
    NodeKind.DECIMAL_FIXED: 0,
}


@dataclass(eq=False)
class AvroNode:
    """A node of a schema, with the Arrow type of its column. All references to a named type share one node."""

    kind: NodeKind
    type: Any = None
    size: int = 0
    null_branch: int = -1
    limit: int = 0
    least: int = 0
    children: list[AvroNode] = field(default_factory=list)
    # The fields of a record or the branches of a union, with their places among the children; the symbols of an enum.
    names: dict[str, int] = field(default_factory=dict)
    # The symbols of an enum as an Arrow array, and their lengths in UTF-8.
    symbols: Any = None
    symbol_bytes: Any = None
    # The aliases of each field of a record, and its default (empty if it has none).
    aliases: list[list[str]] = field(default_factory=list)
    defaults: list[dict[str, Any]] = field(default_factory=list)
    # With all nodes below.
    total: TypeSize = field(default_factory=TypeSize)


class AvroCompiler:
    """Compiles a schema to nodes. `path` is the place in the schema, for errors."""

    def __init__(self, pa: Any) -> None:
        self.pa = pa
        self.named: dict[str, AvroNode] = {}
        self.open: list[str] = []
        self.full_names = FullNames(AVRO_SCHEMA)

    def node(self, schema: Any, space: str, path: str = "", depth: int = 0) -> AvroNode:
        """Compile a schema; `space` is the enclosing namespace."""
        # The definitions themselves are nested too, also where they add nothing to the type.
        TypeSize(depth=depth).check(AVRO_SCHEMA, path)
        name, logical = schema, None
        if isinstance(schema, dict):
            name, logical = schema.get("type"), schema.get("logicalType")
            if isinstance(name, dict | list):
                return self.node(name, space, path, depth + 1)
        if isinstance(schema, list):
            return self._union(schema, space, path, depth)
        if not isinstance(name, str):
            raise ValueError(f"not an Avro schema, {at(path)}: {_short(schema)}")
        if name in AVRO_PRIMITIVES:
            node = AvroNode(AVRO_PRIMITIVES[name])
            node.type = self._primitive(node, schema, logical)
            node.least = _MIN_DATUM_SIZES.get(node.kind, 1)
        elif name == "array":
            item = self.node(_part(schema, "items", path), space, f"{path}[]", depth + 1)
            node = AvroNode(NodeKind.ARRAY, self.pa.list_(self.pa.field("item", item.type)), least=1, children=[item])
            node.total = TypeSize.around((item.total,), AVRO_SCHEMA, path)
        elif name == "map":
            key = self.node("string", space, path, depth + 1)
            item = self.node(_part(schema, "values", path), space, f"{path}{{}}", depth + 1)
            node = AvroNode(NodeKind.MAP, self.pa.map_(self.pa.string(), item.type), least=1, children=[key, item])
            node.total = TypeSize.around((key.total, item.total), AVRO_SCHEMA, path)
        elif name in ("record", "error", "enum", "fixed"):
            node = self._named(schema, name, space, logical, path, depth)
        else:
            node = self._reference(name, space, path)
        return node

    def _reference(self, name: str, space: str, path: str) -> AvroNode:
        for known in (self._full_name(name, space, path), name):
            if known in self.open:
                raise ValueError(
                    f"{AVRO_SCHEMA}, {at(path)}: Avro type {shortened_name(repr(known))} contains itself; recursive "
                    "types are not supported"
                )
            if known in self.named:
                return self.named[known]
        raise ValueError(f"{AVRO_SCHEMA}, {at(path)}: unknown Avro type {shortened_name(repr(name))}")

    def _full_name(self, name: str, space: str, path: str) -> str:
        if "." in name or not space:
            return name
        self.full_names.add(len(space) + 1 + len(name), path)
        return f"{space}.{name}"

    def _primitive(self, node: AvroNode, schema: Any, logical: Any) -> Any:
        pa = self.pa
        kind = node.kind
        of_int = {"date": pa.date32(), "time-millis": pa.time32("ms")}
        of_long = {
            "time-micros": pa.time64("us"),
            "timestamp-millis": pa.timestamp("ms", "UTC"),
            "timestamp-micros": pa.timestamp("us", "UTC"),
            "timestamp-nanos": pa.timestamp("ns", "UTC"),
            "local-timestamp-millis": pa.timestamp("ms"),
            "local-timestamp-micros": pa.timestamp("us"),
            "local-timestamp-nanos": pa.timestamp("ns"),
        }
        if (kind, logical) in _TIMES:
            node.limit = _TIMES[kind, logical]
        if kind == NodeKind.INT and logical in of_int:
            return of_int[logical]
        if kind == NodeKind.LONG and logical in of_long:
            return of_long[logical]
        if kind == NodeKind.BYTES and logical == "decimal":
            found = self._decimal(node, schema)
            if found is not None:
                node.kind = NodeKind.DECIMAL
                return found
        return {
            NodeKind.NULL: pa.null(),
            NodeKind.BOOLEAN: pa.bool_(),
            NodeKind.INT: pa.int32(),
            NodeKind.LONG: pa.int64(),
            NodeKind.FLOAT: pa.float32(),
            NodeKind.DOUBLE: pa.float64(),
            NodeKind.BYTES: pa.binary(),
            NodeKind.STRING: pa.string(),
        }[kind]

    def _decimal(self, node: AvroNode, schema: Any) -> Any:
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        # The specification requires that an invalid logical type is ignored.
        if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= 38 and precision):
            return None
        node.limit = 10**precision
        return self.pa.decimal128(precision, scale)

    def _union(self, schema: list[Any], space: str, path: str, depth: int) -> AvroNode:
        node = AvroNode(NodeKind.UNION, size=len(schema), least=1)
        branches = []
        for i, branch in enumerate(schema):
            if isinstance(branch, list):
                raise ValueError(f"not an Avro schema, {at(path)}: a union within a union")
            if branch == "null" or (isinstance(branch, dict) and branch.get("type") == "null"):
                node.null_branch = i
            else:
                branches.append(branch)
        if len(branches) == 1:
            child = self.node(branches[0], space, path, depth + 1)
            node.kind, node.type, node.children = NodeKind.NULLABLE, child.type, [child]
        else:
            node.names = {f"member{i}": i for i in range(len(branches))}
            for name, branch in zip(node.names, branches, strict=True):
                self._add(node, self.node(branch, space, path_below(path, name), depth + 1), path)
            node.type = self._struct(node)
        node.total = TypeSize.around((child.total for child in node.children), AVRO_SCHEMA, path)
        return node

    def _add(self, node: AvroNode, child: AvroNode, path: str) -> None:
        """Add a child to a struct, and stop as soon as the struct is too large."""
        node.children.append(child)
        node.total = TypeSize(node.total.nodes + child.total.nodes, max(node.total.depth, 1 + child.total.depth))
        node.total.check(AVRO_SCHEMA, path)

    def _struct(self, node: AvroNode) -> Any:
        return self.pa.struct(list(zip(node.names, (child.type for child in node.children), strict=True)))

    def _named(self, schema: Any, kind: str, space: str, logical: Any, path: str, depth: int) -> AvroNode:
        given = _part(schema, "name", path)
        if not isinstance(given, str):
            raise ValueError(f"not an Avro schema, {at(path)}: the name {_short(given)}")
        if "." in given:
            space = given.rpartition(".")[0]
        elif isinstance(schema.get("namespace"), str):
            space = schema["namespace"]
        full = self._full_name(given, space, path)
        if kind == "enum":
            node = self._enum([str(symbol) for symbol in _part(schema, "symbols", path)])
        elif kind == "fixed":
            node = self._fixed(schema, logical, path)
        else:
            self.open.append(full)
            node = self._record(schema, full, space, path, depth)
            self.open.pop()
        self.named[full] = node
        return node

    def _enum(self, symbols: list[str]) -> AvroNode:
        node = AvroNode(NodeKind.ENUM, self.pa.string(), size=len(symbols), least=1)
        node.names = {symbol: i for i, symbol in enumerate(symbols)}
        # Null values have the index 0, also if there is no symbol.
        node.symbol_bytes = np.array([len(symbol.encode()) for symbol in symbols] or [0], np.int32)
        node.symbols = self.pa.array(symbols, self.pa.string())
        return node

    def _fixed(self, schema: Any, logical: Any, path: str) -> AvroNode:
        size = _part(schema, "size", path)
        if not isinstance(size, int) or not 0 <= size < 1 << 24:
            raise ValueError(f"not an Avro schema, {at(path)}: a fixed of size {_short(size)}")
        node = AvroNode(NodeKind.FIXED, self.pa.binary(), size=size, least=size)
        found = self._decimal(node, schema) if logical == "decimal" and size else None
        if found is not None:
            node.kind, node.type = NodeKind.DECIMAL_FIXED, found
        return node

    def _record(self, schema: Any, full: str, space: str, path: str, depth: int) -> AvroNode:
        node = AvroNode(NodeKind.RECORD)
        for part in _part(schema, "fields", path):
            name = str(_part(part, "name", path))
            below = path_below(path, name)
            if name in node.names:
                raise ValueError(
                    f"not an Avro schema, {at(below)}: record {shortened_name(full)} has two fields of the same name"
                )
            node.names[name] = len(node.children)
            child = self.node(_part(part, "type", below), space, below, depth + 1)
            self._add(node, child, path)
            node.aliases.append([str(alias) for alias in part.get("aliases", [])])
            node.defaults.append({"default": part["default"]} if "default" in part else {})
            node.least += child.least
        node.type = self._struct(node)
        return node


def _part(schema: Any, name: str, path: str) -> Any:
    if not isinstance(schema, dict) or name not in schema:
        raise ValueError(f"not an Avro schema, {at(path)}: {_short(schema)} without {name!r}")
    return schema[name]


def _short(schema: Any) -> str:
    try:
        text = json.dumps(schema, default=str)
    except RecursionError:
        text = "a deeply nested definition"
    return text if len(text) < 80 else text[:77] + "..."
