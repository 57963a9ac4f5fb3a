"""Parsers of some fields of values.

A projection returns what a parse of all fields returns for the requested ones, and the same values are bad, for the
same reasons. Fields that are not requested are checked, but have no columns. Only the limit on the memory of values
depends on the columns that are made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from kbatch.extras import require
from kbatch.options import did_you_mean
from kbatch.quantities import SizeLike
from kbatch.values.avro import AvroParser
from kbatch.values.fixed import FixedParser, pruned_dtype
from kbatch.values.json import JsonParser
from kbatch.values.json_projection import JsonProjection
from kbatch.values.memory import MAX_PARSED_BYTES
from kbatch.values.parsed import Parsed, Parser, selected_fields
from kbatch.values.protobuf import ProtobufParser
from kbatch.values.registry_parser import RegistryParser
from kbatch.values.schema_limits import shortened_name

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["field_path", "projected", "pruned_type"]

# The fields that a message about an unknown field lists.
_LISTED_FIELDS = 10


def field_path(kind: pa.DataType, name: str) -> tuple[str, ...]:
    """Return the fields that a name such as ``user.id`` refers to, from the outermost on.

    A field whose own name has dots takes precedence.

    Raises
    ------
    ValueError
        If the type has no such field.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from kbatch.values.projection import field_path
    >>> field_path(pa.struct([("user", pa.struct([("id", pa.int64())]))]), "user.id")
    ('user', 'id')
    """
    types = require("pyarrow", "arrow", "parsing values").types
    path: list[str] = []
    rest = name
    while rest:
        fields = [each.name for each in kind] if types.is_struct(kind) else []
        found = max((each for each in fields if rest == each or rest.startswith(f"{each}.")), key=len, default=None)
        if found is None:
            where = f"{shortened_name('.'.join(path))!r} has" if path else "there is"
            if not fields:
                raise ValueError(f"{where} no field {rest!r}: the type is {shortened_name(str(kind))}")
            listed = ", ".join(map(shortened_name, fields[:_LISTED_FIELDS]))
            more = ", ..." if len(fields) > _LISTED_FIELDS else ""
            hint = did_you_mean(rest, fields)
            raise ValueError(f"{where} no field {shortened_name(rest)!r}{hint}; the fields are {listed}{more}")
        path.append(found)
        kind = kind.field(found).type
        rest = rest[len(found) + 1 :]
    return tuple(path)


def pruned_type(kind: pa.DataType, paths: Iterable[tuple[str, ...]]) -> pa.DataType:
    """Return a struct type with only the fields at `paths`; an empty path is the whole type.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from kbatch.values.projection import pruned_type
    >>> pruned_type(pa.struct([("a", pa.int64()), ("b", pa.string())]), [("b",)])
    StructType(struct<b: string>)
    """
    pa = require("pyarrow", "arrow", "parsing values")
    paths = list(paths)
    if () in paths or not pa.types.is_struct(kind):
        return kind
    below = {each.name: [path[1:] for path in paths if path[0] == each.name] for each in kind}
    return pa.struct([each.with_type(pruned_type(each.type, below[each.name])) for each in kind if below[each.name]])


def projected(parser: Parser, kind: pa.DataType) -> Parser:
    """Return a parser of `kind`, a part of the type of `parser` (`pruned_type`).

    A parser that does not belong to `kbatch.values` parses all fields.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from kbatch.values import JsonParser
    >>> from kbatch.values.projection import projected
    >>> parser = JsonParser(pa.struct({"id": pa.int64(), "name": pa.string()}))
    >>> part = projected(parser, pa.struct({"id": pa.int64()}))
    >>> part.parse(pa.array([b'{"id": 1, "name": "a"}', b'{"id": 2, "name": 5}'])).values.to_pylist()
    [{'id': 1}, None]
    """
    if parser.type.equals(kind):
        return parser
    part: Parser = parser
    if isinstance(parser, JsonParser):
        part = JsonProjection(parser, kind)
    elif isinstance(parser, AvroParser | ProtobufParser):
        part = parser._projected(kind)
    elif isinstance(parser, RegistryParser):
        part = replace(parser, narrow=partial(projected, kind=kind))
    elif isinstance(parser, FixedParser):
        part = FixedParser(pruned_dtype(parser.dtype, kind))
    return part if part.type.equals(kind) else _Selected(part, kind)


@dataclass(frozen=True)
class _Selected:
    """Some fields of the values of a parser."""

    parser: Parser
    type: pa.DataType

    def parse(self, column: pa.Array, max_bytes: SizeLike = MAX_PARSED_BYTES) -> Parsed:
        parsed = self.parser.parse(column, max_bytes)
        return parsed._replace(values=selected_fields(parsed.values, self.type))
