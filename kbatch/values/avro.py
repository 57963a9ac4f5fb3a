"""Parses Avro datums into an Arrow column.

A schema is compiled for the decoder in `kbatch.kernels.avro`; the columns that it fills become an Arrow array. A named
type is compiled once, and its nodes are copied to every reference, because each reference has separate columns.
`kbatch.values.schema_limits` bounds the size of the result.

Source: the Avro specification 1.11 (schemas, binary encoding, logical types, schema resolution). As in Spark's
``from_avro``, a union of null and one type is nullable; any other is a struct of its branches, ``member0`` and so on.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kbatch.extras import require
from kbatch.kernels.avro import Columns
from kbatch.options import Framing
from kbatch.records.display import short_repr
from kbatch.values.framing import PREFIX_BYTES, check_framing, read_prefixes
from kbatch.values.parsed import ByteSlices, Parsed, expand, slices_of
from kbatch.values.schema_limits import MAX_NESTING, TypeSize, at, check_text_size, read_file

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AvroParser", "Schema", "read_schema", "read_schemas"]

# A schema: its JSON text, or the parsed JSON.
Schema = str | dict[str, Any] | list[Any]


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


# Error texts, indexed by `AvroVerdict` in kernels/avro.pyx.
_AVRO_ERRORS = (
    "",
    "ends within the datum",
    "a number of more than 10 bytes",
    "a number that exceeds int32, or that is not a time of day",
    "a boolean that is neither 0 nor 1",
    "a length that is negative, or more than the bytes that remain",
    "a string that is not UTF-8",
    "an enum index without a symbol",
    "a union index without a branch",
    "a count of items that exceeds the bytes that remain",
    "a decimal with more digits than its precision",
    "bytes remain after the datum",
)
_PRIMITIVES = {kind.name.lower(): kind for kind in NodeKind if kind <= NodeKind.STRING}
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


@dataclass
class _Node:
    """A node of a schema, with the Arrow type of its column. All references to a named type share one node."""

    kind: NodeKind
    type: Any = None
    size: int = 0
    null_branch: int = -1
    limit: int = 0
    least: int = 0
    children: list[_Node] = field(default_factory=list)
    # The fields of a record or the branches of a union, with their places among the children.
    names: dict[str, int] = field(default_factory=dict)
    symbols: list[str] = field(default_factory=list)
    # The aliases of each field of a record, and its default (empty if it has none).
    aliases: list[list[str]] = field(default_factory=list)
    defaults: list[dict[str, Any]] = field(default_factory=list)
    # With all nodes below.
    total: TypeSize = field(default_factory=TypeSize)


class _Compiler:
    """Compiles a schema to nodes. `path` is the place in the schema, for errors."""

    def __init__(self, pa: Any) -> None:
        self.pa = pa
        self.named: dict[str, _Node] = {}
        self.open: list[str] = []

    def node(self, schema: Any, space: str, path: str = "", depth: int = 0) -> _Node:
        # The definitions themselves are nested too, also where they add nothing to the type.
        TypeSize(depth=depth).check(_SCHEMA, path)
        name, logical = schema, None
        if isinstance(schema, dict):
            name, logical = schema.get("type"), schema.get("logicalType")
            if isinstance(name, dict | list):
                return self.node(name, space, path, depth + 1)
        if isinstance(schema, list):
            return self._union(schema, space, path, depth)
        if not isinstance(name, str):
            raise ValueError(f"not an Avro schema, {at(path)}: {_short(schema)}")
        if name in _PRIMITIVES:
            node = _Node(_PRIMITIVES[name])
            node.type = self._primitive(node, schema, logical)
            node.least = _MIN_DATUM_SIZES.get(node.kind, 1)
        elif name == "array":
            item = self.node(_part(schema, "items", path), space, f"{path}[]", depth + 1)
            node = _Node(NodeKind.ARRAY, self.pa.list_(self.pa.field("item", item.type)), least=1, children=[item])
            node.total = TypeSize.around((item.total,), _SCHEMA, path)
        elif name == "map":
            key = self.node("string", space, path, depth + 1)
            item = self.node(_part(schema, "values", path), space, f"{path}{{}}", depth + 1)
            node = _Node(NodeKind.MAP, self.pa.map_(self.pa.string(), item.type), least=1, children=[key, item])
            node.total = TypeSize.around((key.total, item.total), _SCHEMA, path)
        elif name in ("record", "error", "enum", "fixed"):
            node = self._named(schema, name, space, logical, path, depth)
        else:
            node = self._reference(name, space, path)
        return node

    def _reference(self, name: str, space: str, path: str) -> _Node:
        full = name if "." in name or not space else f"{space}.{name}"
        for known in (full, name):
            if known in self.open:
                raise ValueError(
                    f"{_SCHEMA}, {at(path)}: Avro type {known!r} contains itself; recursive types are not supported"
                )
            if known in self.named:
                return self.named[known]
        raise ValueError(f"{_SCHEMA}, {at(path)}: unknown Avro type {name!r}")

    def _primitive(self, node: _Node, schema: Any, logical: Any) -> Any:
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

    def _decimal(self, node: _Node, schema: Any) -> Any:
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        # The specification requires that an invalid logical type is ignored.
        if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= 38 and precision):
            return None
        node.limit = 10**precision
        return self.pa.decimal128(precision, scale)

    def _union(self, schema: list[Any], space: str, path: str, depth: int) -> _Node:
        node = _Node(NodeKind.UNION, size=len(schema), least=1)
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
                self._add(node, self.node(branch, space, f"{path}.{name}", depth + 1), path)
            node.type = self._struct(node)
        node.total = TypeSize.around((child.total for child in node.children), _SCHEMA, path)
        return node

    def _add(self, node: _Node, child: _Node, path: str) -> None:
        """Add a child to a struct, and stop as soon as the struct is too large."""
        node.children.append(child)
        node.total = TypeSize(node.total.nodes + child.total.nodes, max(node.total.depth, 1 + child.total.depth))
        node.total.check(_SCHEMA, path)

    def _struct(self, node: _Node) -> Any:
        return self.pa.struct(list(zip(node.names, (child.type for child in node.children), strict=True)))

    def _named(self, schema: Any, kind: str, space: str, logical: Any, path: str, depth: int) -> _Node:
        given = _part(schema, "name", path)
        if not isinstance(given, str):
            raise ValueError(f"not an Avro schema, {at(path)}: the name {_short(given)}")
        if "." in given:
            space = given.rpartition(".")[0]
        elif isinstance(schema.get("namespace"), str):
            space = schema["namespace"]
        full = given if "." in given or not space else f"{space}.{given}"
        if kind == "enum":
            symbols = [str(symbol) for symbol in _part(schema, "symbols", path)]
            node = _Node(NodeKind.ENUM, self.pa.string(), size=len(symbols), least=1, symbols=symbols)
        elif kind == "fixed":
            node = self._fixed(schema, logical, path)
        else:
            self.open.append(full)
            node = self._record(schema, full, space, path, depth)
            self.open.pop()
        self.named[full] = node
        return node

    def _fixed(self, schema: Any, logical: Any, path: str) -> _Node:
        size = _part(schema, "size", path)
        if not isinstance(size, int) or not 0 <= size < 1 << 24:
            raise ValueError(f"not an Avro schema, {at(path)}: a fixed of size {_short(size)}")
        node = _Node(NodeKind.FIXED, self.pa.binary(), size=size, least=size)
        found = self._decimal(node, schema) if logical == "decimal" and size else None
        if found is not None:
            node.kind, node.type = NodeKind.DECIMAL_FIXED, found
        return node

    def _record(self, schema: Any, full: str, space: str, path: str, depth: int) -> _Node:
        node = _Node(NodeKind.RECORD)
        for part in _part(schema, "fields", path):
            name = str(_part(part, "name", path))
            below = f"{path}.{name}".removeprefix(".")
            if name in node.names:
                raise ValueError(f"not an Avro schema, {at(below)}: record {full} has two fields of the same name")
            node.names[name] = len(node.children)
            child = self.node(_part(part, "type", below), space, below, depth + 1)
            self._add(node, child, path)
            node.aliases.append([str(alias) for alias in part.get("aliases", [])])
            node.defaults.append({"default": part["default"]} if "default" in part else {})
            node.least += child.least
        node.type = self._struct(node)
        return node


_SCHEMA = "Avro schema"


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


class _SchemaDecoder:
    """A decoder for the data of one writer's schema."""

    def __init__(self, schema: Schema) -> None:
        self.pa = require("pyarrow", "arrow", "values_avro()")
        self.root = _Compiler(self.pa).node(_loaded(schema), "")
        # One row per node of the type. Each reference has separate nodes.
        rows: list[tuple[int, ...]] = []
        limits: list[tuple[int, int]] = []
        children: list[int] = []
        self.below: list[list[int]] = []

        def add(node: _Node) -> int:
            number = len(rows)
            rows.append(())
            limits.append((node.limit & (2**64 - 1), node.limit >> 64))
            self.below.append([])
            self.below[number] = numbers = [add(child) for child in node.children]
            least = min(node.least, 1 << 30)
            rows[number] = (node.kind, node.size, len(children), len(numbers), least, node.null_branch)
            children.extend(numbers)
            return number

        add(self.root)
        self.table = (np.array(rows, np.int32), np.array(limits, np.uint64), np.array(children, np.int32))

    def decode(self, slices: ByteSlices, chosen: npt.NDArray[np.bool_], skip: int) -> tuple[Any, dict[int, str]]:
        n = len(chosen)
        columns = Columns(*self.table)
        verdicts, places = np.zeros(n, np.uint8), np.zeros(n, np.int32)
        columns.decode(slices.offsets, slices.content, chosen.view(np.uint8), skip, verdicts, places)
        errors = {
            int(row): f"byte {skip + int(places[row])}: {_AVRO_ERRORS[verdicts[row]]}"
            for row in np.flatnonzero(verdicts)
        }
        return self._array(columns, self.root, 0), errors

    def _array(self, columns: Columns, node: _Node, number: int) -> Any:
        pa = self.pa
        if node.kind == NodeKind.NULLABLE:
            return self._array(columns, node.children[0], self.below[number][0])
        rows, valid, data, offsets = columns.column(number)
        nulls = rows - int(np.count_nonzero(valid))
        bits = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
        below = zip(node.children, self.below[number], strict=True)
        children = [self._array(columns, child, its_number) for child, its_number in below]
        kind = node.type
        if node.kind == NodeKind.NULL:
            return pa.nulls(rows)
        if node.kind in (NodeKind.RECORD, NodeKind.UNION):
            return pa.Array.from_buffers(kind, rows, [bits], nulls, children=children)
        if node.kind == NodeKind.ARRAY:
            return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(offsets)], nulls, children=children)
        if node.kind == NodeKind.MAP:
            pairs = pa.StructArray.from_arrays(children, fields=[kind.key_field, kind.item_field])
            return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(offsets)], nulls, children=[pairs])
        if node.kind in (NodeKind.BYTES, NodeKind.STRING, NodeKind.FIXED):
            return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(offsets), pa.py_buffer(data)], nulls)
        if node.kind == NodeKind.BOOLEAN:
            data = np.packbits(data, bitorder="little")
        if node.kind == NodeKind.ENUM:
            numbers = pa.Array.from_buffers(pa.int32(), rows, [bits, pa.py_buffer(data)], nulls)
            return pa.array(node.symbols, pa.string()).take(numbers)
        return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(data)], nulls)


def _loaded(schema: Schema) -> Any:
    if not isinstance(schema, str):
        return schema
    check_text_size(len(schema), "the Avro schema")
    if schema.strip() in _PRIMITIVES:
        return schema.strip()
    try:
        return json.loads(schema)
    except RecursionError:
        raise ValueError(f"{_SCHEMA}: the JSON is nested deeper than {MAX_NESTING} definitions") from None
    except ValueError as error:
        raise ValueError(f"not an Avro schema: invalid JSON: {error}") from None


def read_schemas(source: Schema | Mapping[int, Schema] | os.PathLike[str]) -> Schema | dict[int, Schema]:
    """Read one schema, or schemas by id.

    Parameters
    ----------
    source : str, path, dict, list or mapping
        A schema (its JSON text, or the parsed JSON); the path of an ``.avsc`` file; the path of a directory with files
        ``<id>.avsc``; or a mapping of id to a schema or a file.

    Returns
    -------
    str, dict or list; or dict of int to one of these

    Raises
    ------
    ValueError
        If the file does not exist, or the directory contains no schema.
    """
    if isinstance(source, Mapping) and source and all(isinstance(key, int) for key in source):
        return {int(key): read_schema(each) for key, each in source.items()}
    if not isinstance(source, str | os.PathLike) or _is_schema(source):
        return source  # type: ignore[return-value]
    path = os.fspath(source)
    if not os.path.isdir(path):
        return _text_of(path)
    names = [name for name in os.listdir(path) if name.endswith(".avsc") and name[:-5].isdecimal()]
    if not names:
        raise ValueError(f"{path}: contains no file named <id>.avsc")
    by_id: dict[int, Schema] = {int(name[:-5]): _text_of(os.path.join(path, name)) for name in names}
    return by_id


def read_schema(source: Schema | os.PathLike[str]) -> Schema:
    """Return a schema, given directly or as the path of an ``.avsc`` file.

    Raises
    ------
    ValueError
        If the file does not exist.
    """
    if not isinstance(source, str | os.PathLike) or _is_schema(source):
        return source  # type: ignore[return-value]
    return _text_of(os.fspath(source))


def _is_schema(source: object) -> bool:
    return isinstance(source, str) and (source.lstrip()[:1] in ("{", "[", '"') or source.strip() in _PRIMITIVES)


def _text_of(path: str) -> str:
    try:
        return read_file(path, "an Avro schema").decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: can't read an Avro schema: {error}") from None


def _resolved(pa: Any, array: Any, writer: _Node, reader: _Node, where: str = "") -> Any:
    """Convert values of the writer's schema to the reader's (the specification's schema resolution)."""
    while writer.kind == NodeKind.NULLABLE:
        writer = writer.children[0]
    while reader.kind == NodeKind.NULLABLE:
        reader = reader.children[0]
    if array.type.equals(reader.type) and writer.kind == reader.kind and set(writer.symbols) <= set(reader.symbols):
        return array
    kinds = (writer.kind, reader.kind)
    if kinds == (NodeKind.RECORD, NodeKind.RECORD):
        children = []
        for i, (name, node) in enumerate(zip(reader.names, reader.children, strict=True)):
            found = next((k for k in (name, *reader.aliases[i]) if k in writer.names), None)
            if found is not None:
                place = writer.names[found]
                child = array.field(place)
                children.append(_resolved(pa, child, writer.children[place], node, f"{where}.{name}"))
            elif "default" in reader.defaults[i]:
                children.append(_default(pa, reader.defaults[i]["default"], node, len(array), f"{where}.{name}"))
            else:
                missing = f"{where}.{name}"[1:]
                raise ValueError(f"field {missing}: missing in the writer's schema, and without a default")
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(reader.type), mask=mask)
    if kinds == (NodeKind.ARRAY, NodeKind.ARRAY) or kinds == (NodeKind.MAP, NodeKind.MAP):
        if kinds[0] == NodeKind.ARRAY:
            inner = _resolved(pa, array.values, writer.children[0], reader.children[0], where)
        else:
            items = _resolved(pa, array.items, writer.children[1], reader.children[1], where)
            fields = [reader.type.key_field, reader.type.item_field]
            inner = pa.StructArray.from_arrays([array.keys, items], fields=fields)
        return pa.Array.from_buffers(
            reader.type, len(array), array.buffers()[:2], array.null_count, array.offset, children=[inner]
        )
    wider = {
        NodeKind.INT: (NodeKind.LONG, NodeKind.FLOAT, NodeKind.DOUBLE),
        NodeKind.LONG: (NodeKind.FLOAT, NodeKind.DOUBLE),
        NodeKind.FLOAT: (NodeKind.DOUBLE,),
        NodeKind.STRING: (NodeKind.BYTES,),
        NodeKind.BYTES: (NodeKind.STRING,),
    }
    if reader.kind in wider.get(writer.kind, ()):
        return array.cast(reader.type, safe=writer.kind == NodeKind.BYTES)
    if writer.kind == NodeKind.NULL:
        return pa.nulls(len(array), reader.type)
    raise ValueError(f"field {where[1:] or '(top level)'}: {array.type} can't be read as {reader.type}")


def _default(pa: Any, value: Any, node: _Node, n: int, where: str) -> Any:
    if value is None:
        return pa.nulls(n, node.type)
    try:
        if isinstance(value, str) and pa.types.is_binary(node.type):
            value = value.encode("latin-1")
        one = pa.array([value], node.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError) as error:
        raise ValueError(f"field {where[1:]}: the default does not match the type: {error}") from None
    return one.take(pa.array(np.zeros(n, np.int64)))


@dataclass(frozen=True)
class AvroParser:
    """Parser of Avro's binary encoding.

    Attributes
    ----------
    schema : str, dict or list; or mapping of int to one of these
        The writer's schema, or with ``framing="confluent"`` the schema of each id; values with other ids are bad.
    framing : {"none", "confluent"}
        Whether byte 0 and the schema id precede the datum. A single schema is used for all ids.
    reader_schema : str, dict or list, optional
        The schema that values are resolved to: fields by name or alias, defaults for fields that the writer lacks, and
        wider numbers. Default is the schema itself, or the schema with the highest id.

    Raises
    ------
    ValueError
        If a schema is invalid, contains itself, can't be resolved to the reader's, or is too large: 16 MiB of text, 64
        levels, or 20,000 fields and other parts. Each reference to a named type counts with all of its fields.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from kbatch.values import AvroParser
    >>> schema = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
    >>> parsed = AvroParser(schema).parse(pa.array([bytes([2]), b""]))
    >>> parsed.values.to_pylist(), parsed.bad.tolist()
    ([{'id': 1}, None], [1])
    """

    schema: Schema | Mapping[int, Schema]
    framing: Framing = "none"
    reader_schema: Schema | None = None

    def __repr__(self) -> str:
        return short_repr(self, self.__dataclass_fields__)

    def __post_init__(self) -> None:
        check_framing(self.framing)
        schemas = self._schemas()
        if not schemas:
            raise ValueError("schema must not be empty")
        if None not in schemas and self.framing == "none":
            raise ValueError("schemas by id need framing='confluent', which contains the id")
        pa = require("pyarrow", "arrow", "values_avro()")
        decoders = {key: _SchemaDecoder(schema) for key, schema in schemas.items()}
        last = max(decoders, key=lambda key: -1 if key is None else key)
        reader = decoders[last] if self.reader_schema is None else _SchemaDecoder(self.reader_schema)
        object.__setattr__(self, "_decoders", decoders)
        object.__setattr__(self, "_reader", reader)
        for key, decoder in decoders.items():
            try:
                _resolved(pa, pa.nulls(0, decoder.root.type), decoder.root, reader.root)
            except ValueError as error:
                raise ValueError(f"schema{'' if key is None else f' {key}'}: {error}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroParser, (self.schema, self.framing, self.reader_schema)

    def _schemas(self) -> dict[int | None, Schema]:
        if isinstance(self.schema, Mapping) and all(isinstance(key, int) for key in self.schema):
            return {int(key): schema for key, schema in self.schema.items()}
        return {None: self.schema}  # type: ignore[dict-item]

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the reader's schema."""
        return self._reader.root.type  # type: ignore[attr-defined]

    def parse(self, column: pa.Array) -> Parsed:
        """Parse a binary array."""
        pa = require("pyarrow", "arrow", "values_avro()")
        decoders: dict[int | None, _SchemaDecoder] = self._decoders  # type: ignore[attr-defined]
        root: _Node = self._reader.root  # type: ignore[attr-defined]
        slices = slices_of(column)
        n = len(column)
        errors: dict[int, str] = {}
        skip = 0
        ids = np.full(n, -1, np.int64)
        chosen = slices.valid
        if self.framing == "confluent":
            skip = PREFIX_BYTES
            ids, errors = read_prefixes(slices)
            chosen = ids >= 0
        if None in decoders:
            made, found = decoders[None].decode(slices, chosen, skip)
            values = _resolved(pa, made, decoders[None].root, root)
            errors |= found
        else:
            parts, order = [], [np.empty(0, np.int64)]
            for number in np.unique(ids[chosen]).tolist():
                rows = np.flatnonzero(chosen & (ids == number)).astype(np.int64, copy=False)
                if number not in decoders:
                    known = ", ".join(str(key) for key in sorted(key for key in decoders if key is not None)[:10])
                    errors |= dict.fromkeys(rows.tolist(), f"unknown schema id {number}; expected one of {known}")
                    continue
                made, found = decoders[number].decode(slices, chosen & (ids == number), skip)
                errors |= found
                parts.append(_resolved(pa, made.take(pa.array(rows)), decoders[number].root, root))
                order.append(rows)
            values = pa.concat_arrays(parts) if parts else pa.nulls(0, root.type)
            values = expand(values, np.concatenate(order), n)
        bad = sorted(errors)
        return Parsed(values, np.array(bad, np.int64), [errors[row] for row in bad])
