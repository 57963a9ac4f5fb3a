"""JSON Schema to Arrow types.

Source: JSON Schema, drafts 4 to 2020-12, of which registries have the first keywords: type, properties, items, enum,
const, oneOf, anyOf, allOf and ``$ref``. Keywords that only restrict values, such as ``minimum``, have no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from kbatch.extras import require
from kbatch.json_text import parse_json
from kbatch.values.schema_limits import (
    MAX_NESTING,
    SchemaTooLargeError,
    at,
    check_text_size,
    path_below,
    shortened_name,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["json_schema_type"]

_SCHEMA_ADVICE = "give the schema of the result, such as value_schema='id bigint'"


def json_schema_type(text: str, referenced: Callable[[str], str] | None = None) -> pa.DataType:
    """Return the Arrow type of the values that a JSON Schema describes.

    Objects are structs of their properties, ``integer`` is int64 and ``number`` float64. A value may be null and a
    property missing, whatever the schema states. A string stays one whatever its format.

    Parameters
    ----------
    text : str
    referenced : callable, optional
        Returns the text of another schema by the name that ``$ref`` has; KeyError if there is none.

    Raises
    ------
    ValueError
        If it is not a JSON Schema, or describes values of several types, maps, or types that contain themselves.

    Examples
    --------
    >>> from kbatch.values.json_schema import json_schema_type
    >>> json_schema_type('{"type": "object", "properties": {"id": {"type": "integer"}, "tag": {"enum": ["a"]}}}')
    StructType(struct<id: int64, tag: string>)
    """
    return _SchemaTypes(referenced).of_document("", text)


class _SchemaTypes:
    """Makes the types of schemas. Each place that references lead to is made once."""

    def __init__(self, referenced: Callable[[str], str] | None) -> None:
        self._pa = require("pyarrow", "arrow", "a JSON Schema")
        self._referenced = referenced
        self._documents: dict[str, Any] = {}
        self._made: dict[tuple[str, str], Any] = {}
        self._open: set[tuple[str, str]] = set()

    def of_document(self, name: str, text: str) -> Any:
        self._documents[name] = _json_document(text)
        return self._at(name, "", "", 0)

    def _at(self, name: str, pointer: str, path: str, depth: int) -> Any:
        """Return the type at a place of a document, such as ``/definitions/user``."""
        key = (name, pointer)
        if key in self._open:
            raise ValueError(
                f"the JSON Schema, {at(path)}: the type contains itself, which is not supported; {_SCHEMA_ADVICE}"
            )
        if key not in self._made:
            if name not in self._documents:
                self._documents[name] = _json_document(self._text(name, path))
            self._open.add(key)
            self._made[key] = self._type(_found(self._documents[name], pointer, path), name, path, depth)
            self._open.remove(key)
        return self._made[key]

    def _text(self, name: str, path: str) -> str:
        try:
            if self._referenced is not None:
                return self._referenced(name)
        except KeyError:
            pass
        raise ValueError(f"the JSON Schema, {at(path)}: there is no reference {shortened_name(name)!r}")

    def _type(self, schema: Any, name: str, path: str, depth: int) -> Any:
        if depth > MAX_NESTING:
            raise SchemaTooLargeError(f"the JSON Schema, {at(path)}: nested deeper than {MAX_NESTING} levels")
        if not isinstance(schema, dict):
            raise _unmapped(path, "any value is allowed")
        if isinstance(schema.get("$ref"), str):
            other, _, pointer = schema["$ref"].partition("#")
            return self._at(other or name, unquote(pointer), path, depth + 1)
        for word in ("oneOf", "anyOf", "allOf"):
            if isinstance(schema.get(word), list):
                return self._one_of(schema[word], word, name, path, depth)
        kind = _kind_of_schema(schema, path)
        pa = self._pa
        if kind == "object":
            return self._struct(schema, name, path, depth)
        if kind == "array":
            items = schema.get("items")
            if not isinstance(items, dict):
                raise _unmapped(path, "an array whose items have no single schema")
            return pa.list_(self._type(items, name, f"{path}[]", depth + 1))
        scalar = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
        if kind not in scalar:
            raise _unmapped(path, f"the type {shortened_name(kind)!r}")
        return scalar[kind]

    def _struct(self, schema: dict[str, Any], name: str, path: str, depth: int) -> Any:
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            raise _unmapped(path, "an object without properties")
        fields = [
            (each, self._type(part, name, path_below(path, each), depth + 1)) for each, part in properties.items()
        ]
        return self._pa.struct(fields)

    def _one_of(self, parts: list[Any], word: str, name: str, path: str, depth: int) -> Any:
        given = [part for part in parts if not (isinstance(part, dict) and part.get("type") == "null")]
        types = [self._type(part, name, path, depth + 1) for part in given]
        if not types or any(not each.equals(types[0]) for each in types) or (word == "allOf" and len(types) > 1):
            raise _unmapped(path, f"{word} of {len(types)} schemas")
        return types[0]


def _json_document(text: str) -> Any:
    check_text_size(len(text), "the JSON Schema")
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"not a JSON Schema: {error}") from None


def _found(document: Any, pointer: str, path: str) -> Any:
    """Return what a JSON pointer leads to (RFC 6901)."""
    found = document
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or part not in found:
            raise ValueError(f"the JSON Schema, {at(path)}: $ref leads nowhere: #{shortened_name(pointer)}")
        found = found[part]
    return found


def _kind_of_schema(schema: dict[str, Any], path: str) -> str:
    """Return the one type of a schema; null does not count."""
    given = schema.get("type")
    words = {given} if isinstance(given, str) else {each for each in given or () if isinstance(each, str)}
    if not words and ("enum" in schema or "const" in schema):
        values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
        words = {_JSON_KINDS.get(type(value), "object") for value in values}
    if not words and "properties" in schema:
        words = {"object"}
    words.discard("null")
    if words == {"integer", "number"}:
        words = {"number"}
    if len(words) != 1:
        raise _unmapped(path, f"values of several types ({', '.join(sorted(words))})" if words else "any value")
    return words.pop()


_JSON_KINDS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", list: "array"}


def _unmapped(path: str, what: str) -> ValueError:
    return ValueError(f"the JSON Schema, {at(path)}: {what}, for which there is no column; {_SCHEMA_ADVICE}")
