"""Schemas of JSON and of structs in the forms in which callers have them: text, files, dictionaries and Arrow's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from kbatch.extras import require
from kbatch.values.ddl import parse_ddl
from kbatch.values.fixed import parse_dtype
from kbatch.values.schema_limits import MAX_NESTING, SchemaTooLargeError, read_file, shortened_name

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["json_type", "struct_dtype"]

# A text of at least this length is not the name of a file.
_MAX_PATH_LENGTH = 4096


def json_type(schema: Any) -> pa.DataType:
    """Return the Arrow type that a schema of JSON describes.

    Parameters
    ----------
    schema : str, path, mapping, pyarrow.Schema or DataType
        Spark's DDL, or the path of a file that has it; the type of each field by its name, in any of these forms; or
        the type itself.

    Raises
    ------
    ValueError, TypeError

    Examples
    --------
    >>> from kbatch.values.schemas import json_type
    >>> json_type({"id": "bigint", "user": {"name": "string"}})
    StructType(struct<id: int64, user: struct<name: string>>)
    """
    pa = require("pyarrow", "arrow", "a schema of JSON")
    if isinstance(schema, str | os.PathLike):
        return parse_ddl(_text_of_schema(schema))
    if isinstance(schema, Mapping):
        return _struct_of(pa, schema, "", 1)
    if isinstance(schema, pa.Schema):
        return pa.struct(list(schema))
    if isinstance(schema, pa.DataType):
        return schema
    raise TypeError(
        "schema must be DDL such as 'id bigint', a file of it, a dictionary such as {'id': 'bigint'}, or a "
        f"pyarrow.Schema or DataType, got {type(schema).__name__}"
    )


def _struct_of(pa: Any, fields: Mapping[Any, Any], path: str, depth: int) -> Any:
    """Return a struct with the types that a dictionary has by name; `path` is its place, for errors."""
    if depth > MAX_NESTING:
        raise SchemaTooLargeError(f"schema: dictionaries are nested deeper than {MAX_NESTING} levels")
    if isinstance(fields.get("fields"), list) and isinstance(fields.get("type"), str):
        raise ValueError(
            "schema: a schema of Avro, as it seems; the format 'avro' reads Avro's encoding, and a schema of JSON is a "
            "dictionary of field names and types such as {'id': 'bigint'}"
        )
    found = []
    for name, kind in fields.items():
        place = f"{path}.{name}" if path else f"{name}"
        if not isinstance(name, str):
            raise TypeError(f"schema: field names must be str, got {type(name).__name__} {shortened_name(repr(name))}")
        try:
            made = _struct_of(pa, kind, place, depth + 1) if isinstance(kind, Mapping) else _field_type(pa, kind)
        except SchemaTooLargeError:
            raise
        except (ValueError, TypeError) as error:
            # An error below has the path already.
            if isinstance(kind, Mapping):
                raise
            raise type(error)(f"schema, field {shortened_name(place)}: {error}") from None
        found.append((name, made))
    return pa.struct(found)


def _field_type(pa: Any, kind: Any) -> Any:
    if isinstance(kind, str):
        return parse_ddl(kind)
    if isinstance(kind, pa.DataType):
        return kind
    raise TypeError(f"a type must be DDL such as 'bigint', a dictionary or a pyarrow.DataType, got {kind!r}")


def struct_dtype(schema: Any) -> np.dtype[Any]:
    """Return the dtype that a schema of structs describes.

    Parameters
    ----------
    schema : str, path, mapping, dtype, pyarrow.Schema or DataType
        NumPy's codes such as ``"id:>i8,price:>f8"``, or the path of a file that has them; the code of each field by its
        name; a dtype; or a type of Arrow. Arrow's types have no byte order: their numbers are big-endian, as Java's
        serializers write them.

    Raises
    ------
    ValueError, TypeError

    Examples
    --------
    >>> import pyarrow as pa
    >>> from kbatch.values.schemas import struct_dtype
    >>> struct_dtype({"id": ">i8", "flag": "u1"}), struct_dtype(pa.schema({"id": pa.int64()}))
    (dtype([('id', '>i8'), ('flag', 'u1')]), dtype([('id', '>i8')]))
    """
    if isinstance(schema, np.dtype):
        return schema
    if isinstance(schema, str | os.PathLike):
        return parse_dtype(_text_of_schema(schema))
    if isinstance(schema, Mapping):
        try:
            return np.dtype([(name, _code_of(code)) for name, code in schema.items()])
        except (TypeError, ValueError, SyntaxError) as error:
            raise ValueError(
                f"schema: {shortened_name(repr(dict(schema)))} is not a struct: expected NumPy codes by name, such as "
                f"{{'id': '>i8'}}: {error}"
            ) from None
    pa = require("pyarrow", "arrow", "a schema of structs")
    if isinstance(schema, pa.Schema):
        schema = pa.struct(list(schema))
    found: np.dtype[Any]
    try:
        if schema is not None:
            # Also the other forms of NumPy, such as a list of pairs.
            found = np.dtype(_fixed_type(pa, schema, "") if isinstance(schema, pa.DataType) else schema)
            return found
    except (TypeError, ValueError):
        if isinstance(schema, pa.DataType):
            raise
    raise TypeError(
        "schema must be NumPy's codes such as 'id:>i8', a file of them, a dictionary such as {'id': '>i8'}, a dtype, "
        f"or a pyarrow.Schema or DataType, got {type(schema).__name__}"
    )


def _code_of(code: Any) -> np.dtype[Any]:
    """Return the dtype of a field; NumPy would take None for a double."""
    if code is None:
        raise TypeError("a code must be text such as '>i8', got None")
    return struct_dtype(code) if isinstance(code, Mapping) else np.dtype(code)


def _fixed_type(pa: Any, kind: Any, path: str) -> Any:
    """Return NumPy's form of an Arrow type of a fixed width."""
    types = pa.types
    if types.is_struct(kind) and kind.num_fields:
        below = [(each.name, _fixed_type(pa, each.type, f"{path}.{each.name}".lstrip("."))) for each in kind]
        return np.dtype(below)
    if types.is_fixed_size_list(kind):
        return np.dtype((_fixed_type(pa, kind.value_type, f"{path}[]"), (kind.list_size,)))
    if types.is_fixed_size_binary(kind):
        return np.dtype(f"V{kind.byte_width}")
    if types.is_boolean(kind):
        return np.dtype("?")
    if types.is_integer(kind) or types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype()).newbyteorder(">")
    where = f", field {shortened_name(path)}" if path else ""
    raise TypeError(
        f"schema{where}: {shortened_name(str(kind))} has no fixed width; structs have integers, floats, booleans, "
        "binary of a fixed size, lists of a fixed size and structs"
    )


def _text_of_schema(schema: str | os.PathLike[str]) -> str:
    """Return a schema's text. A str is the name of a file if such a file exists, else the text itself."""
    if isinstance(schema, str) and (len(schema) >= _MAX_PATH_LENGTH or not os.path.isfile(schema)):
        return schema
    path = os.fspath(schema)
    try:
        return read_file(path, "the schema").decode().strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: can't read the schema: {error}") from None
