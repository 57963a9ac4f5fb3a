"""Avro datums -> an Arrow column: a schema compiled for `kbatch.kernels.avro`, and its columns put together.

Source: the Avro specification 1.11 (schemas, binary encoding, logical types, schema resolution). As in Spark's
``from_avro`` a union with null is what may be null, any other a struct of its branches (``member0``, ``member1``, ...).
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
from kbatch.values.framing import PREFIX_BYTES, Framing, check_framing, read_prefixes
from kbatch.values.parsed import Parsed, Slices, slices_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AvroParser", "Schema", "read_schema", "read_schemas"]

# What may be given as a schema: its JSON text, or what that is in Python.
Schema = str | dict[str, Any] | list[Any]

_MAX_DEPTH = 64


class Kind(enum.IntEnum):
    """The kinds of nodes; the twin of ``Kind`` in ``kernels/avro.pyx``."""

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


# By the numbers of `Verdict` in kernels/avro.pyx.
_VERDICTS = (
    "",
    "ends within the datum",
    "a number of more than 10 bytes",
    "a number that int32 doesn't hold, or that is no time of day",
    "a boolean that is neither 0 nor 1",
    "a length that is negative, or more than the bytes that remain",
    "a string that isn't UTF-8",
    "an enum's number that has no symbol",
    "a union's branch that isn't there",
    "a count of items that the bytes that remain can't hold",
    "a decimal of more digits than its precision",
    "bytes remain after the datum",
)
_PRIMITIVES = {
    "null": Kind.NULL,
    "boolean": Kind.BOOLEAN,
    "int": Kind.INT,
    "long": Kind.LONG,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "bytes": Kind.BYTES,
    "string": Kind.STRING,
}
# Times of day, and how many there are.
_TIMES = {(Kind.INT, "time-millis"): 86_400_000, (Kind.LONG, "time-micros"): 86_400_000_000}
_LEAST = {Kind.NULL: 0, Kind.FLOAT: 4, Kind.DOUBLE: 8, Kind.RECORD: 0, Kind.FIXED: 0, Kind.DECIMAL_FIXED: 0}


@dataclass
class _Node:
    """A schema's node with the Arrow type of its column."""

    number: int
    kind: Kind
    type: Any = None
    size: int = 0
    null_branch: int = -1
    limit: int = 0
    least: int = 0
    children: list[_Node] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    # Of each field of a record: other names, and the default (absent if it has none).
    aliases: list[list[str]] = field(default_factory=list)
    defaults: list[dict[str, Any]] = field(default_factory=list)


class _Compiler:
    """A schema -> nodes, each before its children."""

    def __init__(self, pa: Any) -> None:
        self.pa = pa
        self.nodes: list[_Node] = []
        self.named: dict[str, Any] = {}
        self.open: list[str] = []

    def node(self, schema: Any, space: str, depth: int = 0) -> _Node:
        if depth > _MAX_DEPTH:
            raise ValueError(f"an Avro schema nested deeper than {_MAX_DEPTH} can't be columns")
        pa = self.pa
        logical = None
        if isinstance(schema, dict):
            logical = schema.get("logicalType")
            name = schema.get("type")
            if isinstance(name, dict | list):
                return self.node(name, space, depth + 1)
        else:
            name = schema
        if isinstance(schema, list):
            return self._union(schema, space, depth)
        if not isinstance(name, str):
            raise ValueError(f"no Avro schema: {_short(schema)}")
        node = _Node(len(self.nodes), Kind.NULL)
        if name in _PRIMITIVES:
            node.kind = _PRIMITIVES[name]
            node.type = self._primitive(node, schema, logical)
        elif name == "array":
            self._add(node, Kind.ARRAY)
            item = self.node(_part(schema, "items"), space, depth + 1)
            node.children, node.type = [item], pa.list_(pa.field("item", item.type))
        elif name == "map":
            self._add(node, Kind.MAP)
            key, item = self.node("string", space, depth + 1), self.node(_part(schema, "values"), space, depth + 1)
            node.children, node.type = [key, item], pa.map_(pa.string(), item.type)
        elif name in ("record", "error", "enum", "fixed"):
            return self._named(node, schema, name, space, logical, depth)
        else:
            full = name if "." in name or not space else f"{space}.{name}"
            full = full if full in self.named else name
            if full not in self.named:
                raise ValueError(f"no Avro type {name!r}")
            if full in self.open:
                raise ValueError(f"Avro type {full!r} contains itself, which columns can't")
            definition, its_space = self.named[full]
            return self.node({**definition, "name": full}, its_space, depth + 1)
        if node.number == len(self.nodes):
            self.nodes.append(node)
        node.least = _LEAST.get(node.kind, 1)
        return node

    def _add(self, node: _Node, kind: Kind) -> None:
        node.kind = kind
        self.nodes.append(node)

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
        if kind == Kind.INT and logical in of_int:
            return of_int[logical]
        if kind == Kind.LONG and logical in of_long:
            return of_long[logical]
        if kind == Kind.BYTES and logical == "decimal":
            found = self._decimal(node, schema)
            if found is not None:
                node.kind = Kind.DECIMAL
                return found
        return {
            Kind.NULL: pa.null(),
            Kind.BOOLEAN: pa.bool_(),
            Kind.INT: pa.int32(),
            Kind.LONG: pa.int64(),
            Kind.FLOAT: pa.float32(),
            Kind.DOUBLE: pa.float64(),
            Kind.BYTES: pa.binary(),
            Kind.STRING: pa.string(),
        }[kind]

    def _decimal(self, node: _Node, schema: Any) -> Any:
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        # A logical type that isn't valid is passed over, as the specification wants it.
        if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= 38 and precision):
            return None
        node.limit = 10**precision
        return self.pa.decimal128(precision, scale)

    def _union(self, schema: list[Any], space: str, depth: int) -> _Node:
        pa = self.pa
        node = _Node(len(self.nodes), Kind.UNION, size=len(schema), least=1)
        self.nodes.append(node)
        branches = []
        for i, branch in enumerate(schema):
            if isinstance(branch, list):
                raise ValueError("no Avro schema: a union within a union")
            if branch == "null" or (isinstance(branch, dict) and branch.get("type") == "null"):
                node.null_branch = i
            else:
                branches.append(branch)
        node.children = [self.node(branch, space, depth + 1) for branch in branches]
        if len(branches) == 1:
            node.kind, node.type = Kind.NULLABLE, node.children[0].type
            return node
        node.names = [f"member{i}" for i in range(len(branches))]
        node.type = pa.struct(list(zip(node.names, (child.type for child in node.children), strict=True)))
        return node

    def _named(self, node: _Node, schema: Any, name: str, space: str, logical: Any, depth: int) -> _Node:
        pa = self.pa
        given = _part(schema, "name")
        if not isinstance(given, str):
            raise ValueError(f"no Avro schema: a name that is {_short(given)}")
        if "." in given:
            space = given.rpartition(".")[0]
        elif isinstance(schema.get("namespace"), str):
            space = schema["namespace"]
        full = given if "." in given or not space else f"{space}.{given}"
        self.named[full] = (schema, space)
        if name == "enum":
            self._add(node, Kind.ENUM)
            node.symbols = [str(symbol) for symbol in _part(schema, "symbols")]
            node.size, node.type, node.least = len(node.symbols), pa.string(), 1
            return node
        if name == "fixed":
            self._add(node, Kind.FIXED)
            size = _part(schema, "size")
            if not isinstance(size, int) or not 0 <= size < 1 << 24:
                raise ValueError(f"no Avro schema: a fixed of size {_short(size)}")
            node.size, node.type, node.least = size, pa.binary(), size
            found = self._decimal(node, schema) if logical == "decimal" and size else None
            if found is not None:
                node.kind, node.type = Kind.DECIMAL_FIXED, found
            return node
        self._add(node, Kind.RECORD)
        self.open.append(full)
        for part in _part(schema, "fields"):
            child = self.node(_part(part, "type"), space, depth + 1)
            node.children.append(child)
            node.names.append(str(_part(part, "name")))
            node.aliases.append([str(alias) for alias in part.get("aliases", [])])
            node.defaults.append({"default": part["default"]} if "default" in part else {})
            node.least += child.least
        self.open.pop()
        if len(set(node.names)) != len(node.names):
            raise ValueError(f"no Avro schema: record {full} has a field twice")
        node.type = pa.struct(list(zip(node.names, (child.type for child in node.children), strict=True)))
        return node


def _part(schema: Any, name: str) -> Any:
    if not isinstance(schema, dict) or name not in schema:
        raise ValueError(f"no Avro schema: {_short(schema)} has no {name!r}")
    return schema[name]


def _short(schema: Any) -> str:
    text = json.dumps(schema, default=str)
    return text if len(text) < 80 else text[:77] + "..."


class _Decoder:
    """One writer's schema, ready to decode."""

    def __init__(self, schema: Schema) -> None:
        self.pa = require("pyarrow", "arrow", "values_avro()")
        compiler = _Compiler(self.pa)
        self.root = compiler.node(_loaded(schema), "")
        self.nodes = compiler.nodes
        children: list[int] = []
        rows, limits = [], []
        for node in self.nodes:
            rows.append(
                (node.kind, node.size, len(children), len(node.children), min(node.least, 1 << 30), node.null_branch)
            )
            limits.append((node.limit & (2**64 - 1), node.limit >> 64))
            children += [child.number for child in node.children]
        self.table = (np.array(rows, np.int32), np.array(limits, np.uint64), np.array(children, np.int32))

    def decode(self, slices: Slices, wanted: npt.NDArray[np.bool_], skip: int) -> tuple[Any, dict[int, str]]:
        n = len(wanted)
        columns = Columns(*self.table)
        verdicts, places = np.zeros(n, np.uint8), np.zeros(n, np.int32)
        columns.decode(slices.offsets, slices.content, wanted.view(np.uint8), skip, verdicts, places)
        errors = {
            int(row): f"byte {skip + int(places[row])}: {_VERDICTS[verdicts[row]]}" for row in np.flatnonzero(verdicts)
        }
        return self._array(columns, self.root), errors

    def _array(self, columns: Columns, node: _Node) -> Any:
        pa = self.pa
        if node.kind == Kind.NULLABLE:
            return self._array(columns, node.children[0])
        rows, valid, data, offsets = columns.column(node.number)
        nulls = rows - int(np.count_nonzero(valid))
        bits = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
        children = [self._array(columns, child) for child in node.children]
        kind = node.type
        if node.kind == Kind.NULL:
            return pa.nulls(rows)
        if node.kind in (Kind.RECORD, Kind.UNION):
            return pa.Array.from_buffers(kind, rows, [bits], nulls, children=children)
        if node.kind == Kind.ARRAY:
            return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(offsets)], nulls, children=children)
        if node.kind == Kind.MAP:
            pairs = pa.StructArray.from_arrays(children, fields=[kind.key_field, kind.item_field])
            return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(offsets)], nulls, children=[pairs])
        if node.kind == Kind.FIXED:
            offsets = np.arange(rows + 1, dtype=np.int32) * node.size
        if node.kind in (Kind.BYTES, Kind.STRING, Kind.FIXED):
            return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(offsets), pa.py_buffer(data)], nulls)
        if node.kind == Kind.BOOLEAN:
            data = np.packbits(data, bitorder="little")
        if node.kind == Kind.ENUM:
            numbers = pa.Array.from_buffers(pa.int32(), rows, [bits, pa.py_buffer(data)], nulls)
            return pa.array(node.symbols, pa.string()).take(numbers)
        return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(data)], nulls)


def _loaded(schema: Schema) -> Any:
    if not isinstance(schema, str):
        return schema
    if schema.strip() in _PRIMITIVES:
        return schema.strip()
    try:
        return json.loads(schema)
    except ValueError as error:
        raise ValueError(f"no Avro schema: not JSON: {error}") from None


def read_schemas(source: Schema | Mapping[int, Schema] | os.PathLike[str]) -> Schema | dict[int, Schema]:
    """Read a schema from where it is.

    Parameters
    ----------
    source : str, path, dict, list or mapping
        A schema as it is (its JSON text, or what that is in Python); the path of an ``.avsc`` file; that of a directory
        with files ``<id>.avsc``; or a mapping of id to one of the former.

    Returns
    -------
    str, dict or list; or dict of int to one of these

    Raises
    ------
    ValueError
        If there is no such file, or none in the directory.
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
        raise ValueError(f"{path}: no file in it is named <id>.avsc")
    by_id: dict[int, Schema] = {int(name[:-5]): _text_of(os.path.join(path, name)) for name in names}
    return by_id


def read_schema(source: Schema | os.PathLike[str]) -> Schema:
    """Read one schema, as it is or from an ``.avsc`` file.

    Raises
    ------
    ValueError
        If there is no such file.
    """
    if not isinstance(source, str | os.PathLike) or _is_schema(source):
        return source  # type: ignore[return-value]
    return _text_of(os.fspath(source))


def _is_schema(source: object) -> bool:
    return isinstance(source, str) and (source.lstrip()[:1] in ("{", "[", '"') or source.strip() in _PRIMITIVES)


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: no Avro schema can be read from it: {error}") from None


def _resolved(pa: Any, array: Any, writer: _Node, reader: _Node, where: str = "") -> Any:
    """Return what one schema wrote as another reads it (the specification's schema resolution)."""
    while writer.kind == Kind.NULLABLE:
        writer = writer.children[0]
    while reader.kind == Kind.NULLABLE:
        reader = reader.children[0]
    if array.type.equals(reader.type) and writer.kind == reader.kind and set(writer.symbols) <= set(reader.symbols):
        return array
    kinds = (writer.kind, reader.kind)
    if kinds == (Kind.RECORD, Kind.RECORD):
        children = []
        for i, (name, node) in enumerate(zip(reader.names, reader.children, strict=True)):
            found = next((k for k in (name, *reader.aliases[i]) if k in writer.names), None)
            if found is not None:
                at = writer.names.index(found)
                child = array.field(at)
                children.append(_resolved(pa, child, writer.children[at], node, f"{where}.{name}"))
            elif "default" in reader.defaults[i]:
                children.append(_default(pa, reader.defaults[i]["default"], node, len(array), f"{where}.{name}"))
            else:
                raise ValueError(
                    f"field {where[1:]}.{name}".replace(" .", " ") + ": the writer has none, and no default"
                )
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(reader.type), mask=mask)
    if kinds == (Kind.ARRAY, Kind.ARRAY) or kinds == (Kind.MAP, Kind.MAP):
        if kinds[0] == Kind.ARRAY:
            below = _resolved(pa, array.values, writer.children[0], reader.children[0], where)
        else:
            items = _resolved(pa, array.items, writer.children[1], reader.children[1], where)
            fields = [reader.type.key_field, reader.type.item_field]
            below = pa.StructArray.from_arrays([array.keys, items], fields=fields)
        return pa.Array.from_buffers(
            reader.type, len(array), array.buffers()[:2], array.null_count, array.offset, children=[below]
        )
    wider = {
        Kind.INT: (Kind.LONG, Kind.FLOAT, Kind.DOUBLE),
        Kind.LONG: (Kind.FLOAT, Kind.DOUBLE),
        Kind.FLOAT: (Kind.DOUBLE,),
        Kind.STRING: (Kind.BYTES,),
        Kind.BYTES: (Kind.STRING,),
    }
    if reader.kind in wider.get(writer.kind, ()):
        return array.cast(reader.type, safe=writer.kind == Kind.BYTES)
    if writer.kind == Kind.NULL:
        return pa.nulls(len(array), reader.type)
    raise ValueError(f"field {where[1:] or 'at the top'}: {array.type} can't be read as {reader.type}")


def _default(pa: Any, value: Any, node: _Node, n: int, where: str) -> Any:
    if value is None:
        return pa.nulls(n, node.type)
    try:
        if isinstance(value, str) and pa.types.is_binary(node.type):
            value = value.encode("latin-1")
        one = pa.array([value], node.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError) as error:
        raise ValueError(f"field {where[1:]}: no default of its type: {error}") from None
    return one.take(pa.array(np.zeros(n, np.int64)))


@dataclass(frozen=True)
class AvroParser:
    """Avro's binary encoding.

    Attributes
    ----------
    schema : str, dict or list; or mapping of int to one of these
        The writer's schema, or with ``framing="confluent"`` the schema of each id; values of other ids are bad.
    framing : {"none", "confluent"}
        Whether byte 0 and the schema's id stand before the datum. With one schema every id is read by it.
    reader_schema : str, dict or list, optional
        What values are to look like: fields by name or alias, defaults for those that the writer doesn't have, numbers
        made wider. Default is the schema itself; of several that of the highest id.

    Raises
    ------
    ValueError
        If a schema is none, contains itself, or can't be read as the reader's.

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

    def __post_init__(self) -> None:
        check_framing(self.framing)
        schemas = self._schemas()
        if not schemas:
            raise ValueError("no Avro schema is given")
        if None not in schemas and self.framing == "none":
            raise ValueError("schemas by id are for framing='confluent', which tells the id")
        pa = require("pyarrow", "arrow", "values_avro()")
        decoders = {key: _Decoder(schema) for key, schema in schemas.items()}
        last = max(decoders, key=lambda key: -1 if key is None else key)
        reader = decoders[last] if self.reader_schema is None else _Decoder(self.reader_schema)
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
        """Of the reader's schema."""
        return self._reader.root.type  # type: ignore[attr-defined]

    def parse(self, column: pa.Array) -> Parsed:
        """Parse a binary array."""
        pa = require("pyarrow", "arrow", "values_avro()")
        decoders: dict[int | None, _Decoder] = self._decoders  # type: ignore[attr-defined]
        root: _Node = self._reader.root  # type: ignore[attr-defined]
        slices = slices_of(column)
        n = len(column)
        errors: dict[int, str] = {}
        skip = 0
        ids = np.full(n, -1, np.int64)
        wanted = slices.valid
        if self.framing == "confluent":
            skip = PREFIX_BYTES
            ids, errors = read_prefixes(slices)
            wanted = ids >= 0
        if None in decoders:
            made, found = decoders[None].decode(slices, wanted, skip)
            values = _resolved(pa, made, decoders[None].root, root)
            errors |= found
        else:
            parts, order = [], []
            for number in np.unique(ids[wanted]).tolist():
                rows = np.flatnonzero(wanted & (ids == number))
                if number not in decoders:
                    known = ", ".join(str(key) for key in sorted(key for key in decoders if key is not None)[:10])
                    errors |= dict.fromkeys(rows.tolist(), f"schema id {number} isn't among those given ({known})")
                    continue
                made, found = decoders[number].decode(slices, wanted & (ids == number), skip)
                errors |= found
                parts.append(_resolved(pa, made.take(pa.array(rows)), decoders[number].root, root))
                order.append(rows)
            places = np.zeros(n, np.int64)
            missing = np.ones(n, np.bool_)
            if order:
                rows = np.concatenate(order)
                places[rows] = np.arange(len(rows))
                missing[rows] = False
            values = pa.concat_arrays(parts) if parts else pa.nulls(0, root.type)
            values = values.take(pa.array(places, mask=missing))
        bad = sorted(errors)
        return Parsed(values, np.array(bad, np.int64), [errors[row] for row in bad])
