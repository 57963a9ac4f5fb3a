"""Parses Avro datums into an Arrow column.

A schema is compiled (`kbatch.values.avro_schema`) for the decoder in `kbatch.kernels.avro`; the columns that it fills
become an Arrow array.

Source: the Avro specification 1.11 (binary encoding).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kbatch.arguments import check_fields, check_types
from kbatch.escaping import printable
from kbatch.extras import require
from kbatch.json_text import JsonDepthError, parse_json
from kbatch.kernels.avro import Columns
from kbatch.options import Framing
from kbatch.public_names import public_in
from kbatch.quantities import SizeLike
from kbatch.records.display import short_repr
from kbatch.values.avro_projection import KeptFields, kept_fields, pruned_node
from kbatch.values.avro_resolution import SchemaResolver
from kbatch.values.avro_schema import AVRO_PRIMITIVES, AVRO_SCHEMA, AvroCompiler, AvroNode, NodeKind
from kbatch.values.memory import MAX_PARSED_BYTES, MemoryBudget, memory_of_type
from kbatch.values.parsed import ByteSlices, Parsed, expand, slices_of
from kbatch.values.schema_framing import PREFIX_BYTES, check_framing, read_prefixes, with_hints
from kbatch.values.schema_limits import MAX_NESTING, check_text_size, read_file

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AvroParser", "Schema", "read_schema", "read_schemas"]

# A schema: its JSON text, or the parsed JSON.
Schema = str | dict[str, Any] | list[Any]


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


# The memory of the verdict and the position of a row; with framing also of its schema id, number and place.
_AVRO_ROW_BYTES = 8
_FRAMED_ROW_BYTES = 48


class _SchemaDecoder:
    """A decoder for the data of one writer's schema."""

    def __init__(self, schema: Schema) -> None:
        self.pa = require("pyarrow", "arrow", "values_avro()")
        try:
            self.root = AvroCompiler(self.pa).node(_loaded(schema), "")
        except UnicodeEncodeError as error:
            raise ValueError(f"not an Avro schema: a name that is not text: {error}") from None
        self._build(None)

    def _build(self, kept: KeptFields | None) -> None:
        """Make the table of nodes. Fields of records that are not kept are decoded, but get no columns."""
        # One row per node of the type. Each reference has separate nodes.
        rows: list[tuple[int, ...]] = []
        limits: list[tuple[int, int]] = []
        children: list[int] = []
        self.below: list[list[int]] = []

        def add(node: AvroNode, kept: KeptFields | None, hidden: bool) -> int:
            number = len(rows)
            rows.append(())
            limits.append((node.limit & (2**64 - 1), node.limit >> 64))
            self.below.append([])
            numbers = []
            for place, child in enumerate(node.children):
                # Null and another type have one column.
                of_child = kept if node.kind == NodeKind.NULLABLE else None if kept is None else kept.get(place)
                is_hidden = hidden or (node.kind == NodeKind.RECORD and kept is not None and place not in kept)
                numbers.append(add(child, of_child, is_hidden))
                if not is_hidden:
                    self.below[number].append(numbers[-1])
            least = min(node.least, 1 << 30)
            rows[number] = (node.kind, node.size, len(children), len(numbers), least, node.null_branch, hidden)
            children.extend(numbers)
            return number

        add(self.root, kept, False)
        self.root = pruned_node(self.pa, self.root, kept)
        self.row_bytes = memory_of_type(self.root.type).row
        self.table = (np.array(rows, np.int32), np.array(limits, np.uint64), np.array(children, np.int32))

    def projected(self, kept: KeptFields | None) -> _SchemaDecoder:
        """Return a decoder of some fields."""
        made = object.__new__(_SchemaDecoder)
        made.pa, made.root = self.pa, self.root
        made._build(kept)
        return made

    def decode(
        self, slices: ByteSlices, chosen: npt.NDArray[np.bool_], skip: int, budget: MemoryBudget
    ) -> tuple[Any, dict[int, str]]:
        n = len(chosen)
        # Fails early if there are too many rows.
        MemoryBudget(budget.rest).take(n * self.row_bytes)
        # The columns are copied to the array, and their memory has gaps where they grew.
        columns = Columns(*self.table, budget.rest * 2 // 5)
        verdicts, places = np.zeros(n, np.uint8), np.zeros(n, np.int32)
        if not columns.decode(slices.offsets, slices.content, chosen.view(np.uint8), skip, verdicts, places):
            budget.take(budget.rest + 1)
        budget.take_errors(int(np.count_nonzero(verdicts)))
        errors = {
            int(row): f"byte {skip + int(places[row])}: {_AVRO_ERRORS[verdicts[row]]}"
            for row in np.flatnonzero(verdicts)
        }
        return self._array(columns, self.root, 0, budget), errors

    def _array(self, columns: Columns, node: AvroNode, number: int, budget: MemoryBudget) -> Any:
        pa = self.pa
        if node.kind == NodeKind.NULLABLE:
            return self._array(columns, node.children[0], self.below[number][0], budget)
        rows, valid, data, offsets = columns.column(number)
        nulls = rows - int(np.count_nonzero(valid))
        bits = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
        below = zip(node.children, self.below[number], strict=True)
        children = [self._array(columns, child, its_number, budget) for child, its_number in below]
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
            # The numbers, the offsets, and the lengths of the symbols.
            budget.take(16 * rows)
            budget.take(int(node.symbol_bytes[data.view(np.int32)].sum(dtype=np.int64)))
            return node.symbols.take(numbers)
        return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(data)], nulls)


def _loaded(schema: Schema) -> Any:
    if not isinstance(schema, str):
        return schema
    check_text_size(len(schema), "the Avro schema")
    if schema.strip() in AVRO_PRIMITIVES:
        return schema.strip()
    try:
        return parse_json(schema)
    except JsonDepthError:
        raise ValueError(f"{AVRO_SCHEMA}: the JSON is nested deeper than {MAX_NESTING} definitions") from None
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
        raise ValueError(f"{printable(path)}: contains no file named <id>.avsc")
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
    return isinstance(source, str) and (source.lstrip()[:1] in ("{", "[", '"') or source.strip() in AVRO_PRIMITIVES)


def _text_of(path: str) -> str:
    try:
        text = read_file(path, "an Avro schema").decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{printable(path)}: can't read an Avro schema: {error}") from None
    if not _is_schema(text):
        raise ValueError(f"{printable(path)}: not an Avro schema: expected JSON or the name of a primitive type")
    return text


def _restored_avro(cls: type[AvroParser], arguments: tuple[Any, ...], kept: pa.DataType) -> AvroParser:
    return cls(*arguments)._projected(kept)


@public_in("kbatch.values")
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
        levels, 20,000 fields and other parts, 32 Mi characters of full names, or defaults with 200,000 values. Each
        reference to a named type counts with all of its fields.

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
        check_fields(self)
        check_framing(self.framing)
        schemas = self._schemas()
        if not schemas:
            raise ValueError("schema must not be empty")
        if None not in schemas and self.framing == "none":
            raise ValueError("schemas by id need framing='confluent', which contains the id")
        pa = require("pyarrow", "arrow", "values_avro()")
        decoders = {key: _SchemaDecoder(schema) for key, schema in schemas.items()}
        last = max(decoders, key=lambda key: -1 if key is None else key)
        reader = decoders[last] if self.reader_schema is None else self._reader_decoder(self.reader_schema)
        object.__setattr__(self, "_decoders", decoders)
        object.__setattr__(self, "_reader", reader)
        resolver = SchemaResolver(pa)
        object.__setattr__(self, "_resolver", resolver)
        for key, decoder in decoders.items():
            empty, budget = pa.nulls(0, decoder.root.type), MemoryBudget(MAX_PARSED_BYTES)
            try:
                resolver.array(empty, decoder.root, reader.root, budget)
            except ValueError as error:
                raise type(error)(f"schema{'' if key is None else f' {key}'}: {error}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        made = AvroParser, (self.schema, self.framing, self.reader_schema)
        kept = getattr(self, "_kept", None)
        return made if kept is None else (_restored_avro, (*made, kept))

    def _projected(self, kind: pa.DataType) -> AvroParser:
        """Return a parser of the fields of `kind`; below lists, maps and unions it has all fields."""
        made = object.__new__(AvroParser)
        made.__dict__.update(self.__dict__)
        reader: _SchemaDecoder = self._reader  # type: ignore[attr-defined]
        decoders: dict[int | None, _SchemaDecoder] = self._decoders  # type: ignore[attr-defined]
        parts = {key: each.projected(kept_fields(each.root, reader.root, kind)) for key, each in decoders.items()}
        made.__dict__.update(
            _kept=kind,
            _decoders=parts,
            _reader=reader.projected(kept_fields(reader.root, reader.root, kind)),
            _resolver=SchemaResolver(reader.pa),
        )
        return made

    def _reader_decoder(self, schema: Schema) -> _SchemaDecoder:
        try:
            return _SchemaDecoder(schema)
        except ValueError as error:
            raise type(error)(f"reader_schema: {error}") from None

    def _schemas(self) -> dict[int | None, Schema]:
        if isinstance(self.schema, Mapping) and all(isinstance(key, int) for key in self.schema):
            return {int(key): schema for key, schema in self.schema.items()}
        return {None: self.schema}  # type: ignore[dict-item]

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the reader's schema."""
        return self._reader.root.type  # type: ignore[attr-defined]

    def parse(self, column: pa.Array, max_bytes: SizeLike = MAX_PARSED_BYTES) -> Parsed:
        """Parse a binary array; LimitExceededError if the values take more than `max_bytes` of memory."""
        check_types(AvroParser.parse, locals())
        budget = MemoryBudget(max_bytes)
        pa = require("pyarrow", "arrow", "values_avro()")
        decoders: dict[int | None, _SchemaDecoder] = self._decoders  # type: ignore[attr-defined]
        root: AvroNode = self._reader.root  # type: ignore[attr-defined]
        resolver: SchemaResolver = self._resolver  # type: ignore[attr-defined]
        slices = slices_of(column)
        n = len(column)
        budget.take(n * (_AVRO_ROW_BYTES if self.framing == "none" else _FRAMED_ROW_BYTES))
        errors: dict[int, str] = {}
        skip = 0
        ids = np.full(n, -1, np.int64)
        chosen = slices.valid
        if self.framing == "confluent":
            skip = PREFIX_BYTES
            ids, errors = read_prefixes(slices, budget)
            chosen = ids >= 0
        if None in decoders:
            made, found = decoders[None].decode(slices, chosen, skip, budget)
            if self.framing == "none":
                found = with_hints(found, slices)
            values = resolver.array(made, decoders[None].root, root, budget)
            errors |= found
        else:
            parts, order = [], [np.empty(0, np.int64)]
            for number in np.unique(ids[chosen]).tolist():
                rows = np.flatnonzero(chosen & (ids == number)).astype(np.int64, copy=False)
                if number not in decoders:
                    known = ", ".join(str(key) for key in sorted(key for key in decoders if key is not None)[:10])
                    budget.take_errors(len(rows))
                    errors |= dict.fromkeys(rows.tolist(), f"unknown schema id {number}; expected one of {known}")
                    continue
                made, found = decoders[number].decode(slices, chosen & (ids == number), skip, budget)
                errors |= found
                parts.append(resolver.array(made.take(pa.array(rows)), decoders[number].root, root, budget))
                # The parts are joined, and then brought into the order of the rows.
                budget.take(3 * parts[-1].nbytes)
                order.append(rows)
            values = pa.concat_arrays(parts) if parts else pa.nulls(0, root.type)
            values = expand(values, np.concatenate(order), n)
        bad = sorted(errors)
        framed = None if self.framing == "none" else ids
        return Parsed(values, np.array(bad, np.int64), [errors[row] for row in bad], framed)
