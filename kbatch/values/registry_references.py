"""Registered schemas with the schemas that they refer to: one schema of Avro, or one descriptor set of Protobuf."""

from __future__ import annotations

import base64
import binascii
import importlib
import os
import re
from collections.abc import Iterator
from typing import Any

from kbatch.escaping import printable
from kbatch.extras import require
from kbatch.json_text import parse_json
from kbatch.values.avro_schema import AVRO_PRIMITIVES
from kbatch.values.protobuf import compiled_descriptors
from kbatch.values.schema_limits import MAX_NESTING, SchemaTooLargeError, check_text_size, shortened_name
from kbatch.values.schema_registry import RegisteredSchema, SchemaRegistry

__all__ = ["avro_schema_of", "descriptors_of", "referenced_schemas"]

# The schemas that one schema may refer to, directly or not.
_MAX_REFERENCES = 1000
_ROOT = "kbatch-root.proto"
_IMPORT = re.compile(r"(?:[\w\-.]+/)*[\w\-.]+\.proto", re.ASCII)
_WELL_KNOWN = re.compile(r"google/protobuf/(\w+)\.proto", re.ASCII)
# Options of Confluent, which columns do not need. `protobuf` keeps options that it does not know.
_OPTIONS_ONLY = "confluent/meta.proto"


def referenced_schemas(
    registry: SchemaRegistry, schema: RegisteredSchema, *, serialized: bool = False
) -> dict[str, RegisteredSchema]:
    """Return all schemas that a schema refers to by their names; each follows those that it refers to.

    Raises
    ------
    UnknownSchemaError, RegistryError
    ValueError
        If they refer to each other, or are too many.
    """
    found: dict[str, RegisteredSchema] = {}
    size = 0

    def add(parent: RegisteredSchema, above: tuple[str, ...]) -> None:
        nonlocal size
        for name, subject, version in parent.references:
            if name in above or len(above) > MAX_NESTING:
                raise ValueError(f"the reference {shortened_name(name)!r} refers to itself, or is nested too deeply")
            if name in found:
                continue
            made = registry.version(subject, version, serialized=serialized)
            size += len(made.text)
            check_text_size(size, "a schema with its references")
            if len(found) >= _MAX_REFERENCES:
                raise SchemaTooLargeError(f"a schema with more than {_MAX_REFERENCES} references")
            add(made, (*above, name))
            found[name] = made

    add(schema, ())
    return found


# -- Avro


def avro_schema_of(registry: SchemaRegistry, schema: RegisteredSchema) -> Any:
    """Return a schema of Avro as JSON, with the definition of each type that it refers to at the first reference.

    Raises
    ------
    UnknownSchemaError, RegistryError, ValueError
    """
    if not schema.references:
        return _json_of(schema.text)
    known: dict[str, Any] = {}
    for each in referenced_schemas(registry, schema).values():
        for name, definition in _definitions(_json_of(each.text), "", 0):
            known.setdefault(name, definition)
    return _Inlined(known).of(_json_of(schema.text), "", 0)


def _json_of(text: str) -> Any:
    check_text_size(len(text), "the Avro schema")
    try:
        return text.strip() if text.strip() in AVRO_PRIMITIVES else parse_json(text)
    except ValueError as error:
        raise ValueError(f"not an Avro schema: invalid JSON: {error}") from None


def _space_of(schema: dict[str, Any], space: str) -> tuple[str, str]:
    """Return the full name of a named type, and the namespace of the types in it."""
    name = str(schema.get("name"))
    if "." in name:
        return name, name.rpartition(".")[0]
    if isinstance(schema.get("namespace"), str):
        space = schema["namespace"]
    return f"{space}.{name}" if space else name, space


def _check_depth(depth: int) -> None:
    if depth > 2 * MAX_NESTING:
        raise SchemaTooLargeError(f"the Avro schema: definitions are nested deeper than {MAX_NESTING} levels")


def _schemas_below(schema: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Return the objects with the schemas below a schema, and the name that they have there."""
    fields = schema.get("fields")
    of_fields = [(each, "type") for each in fields if isinstance(each, dict)] if isinstance(fields, list) else []
    return [*((schema, word) for word in ("items", "values") if word in schema), *of_fields]


def _definitions(schema: Any, space: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the named types in a schema by full name, with a definition that does not depend on its place."""
    _check_depth(depth)
    if isinstance(schema, list):
        for each in schema:
            yield from _definitions(each, space, depth + 1)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("type"), dict | list):
        yield from _definitions(schema["type"], space, depth + 1)
    if schema.get("type") in ("record", "error", "enum", "fixed"):
        full, space = _space_of(schema, space)
        yield full, {**schema, "name": full, "namespace": space}
    for holder, word in _schemas_below(schema):
        yield from _definitions(holder.get(word), space, depth + 1)


class _Inlined:
    """Replaces the first reference to each type that a schema does not define by its definition."""

    def __init__(self, known: dict[str, Any]) -> None:
        self._known = known
        self._defined: set[str] = set()

    def of(self, schema: Any, space: str, depth: int) -> Any:
        _check_depth(depth)
        if isinstance(schema, list):
            return [self.of(each, space, depth + 1) for each in schema]
        if isinstance(schema, str):
            return self._reference(schema, space, depth)
        if not isinstance(schema, dict):
            return schema
        kind = schema.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            full, space = _space_of(schema, space)
            self._defined.add(full)
        made = dict(schema)
        if isinstance(kind, dict | list):
            made["type"] = self.of(kind, space, depth + 1)
        elif isinstance(kind, str) and kind not in ("record", "error", "enum", "fixed", "array", "map"):
            made["type"] = self._reference(kind, space, depth)
        for word in ("items", "values"):
            if word in made:
                made[word] = self.of(made[word], space, depth + 1)
        if isinstance(made.get("fields"), list):
            made["fields"] = [
                {**each, "type": self.of(each["type"], space, depth + 1)}
                if isinstance(each, dict) and "type" in each
                else each
                for each in made["fields"]
            ]
        return made

    def _reference(self, name: str, space: str, depth: int) -> Any:
        if name in AVRO_PRIMITIVES:
            return name
        for full in (f"{space}.{name}" if space and "." not in name else name, name):
            if full in self._defined:
                return name
            if full in self._known:
                return self.of(self._known[full], "", depth + 1)
        return name


# -- Protobuf


def descriptors_of(registry: SchemaRegistry, number: int) -> bytes:
    """Return the descriptor set of the schema of Protobuf with an id; its last file is the schema.

    Raises
    ------
    UnknownSchemaError, RegistryError
    ValueError
    MissingDependencyError
        If the registry returns the text of a file, and grpcio-tools is not installed.
    """
    require("google.protobuf", "protobuf", "a schema of Protobuf")
    from google.protobuf import descriptor_pb2

    texts = _protobuf_texts(registry, number, serialized=True)
    files = [_descriptor(name, text) for name, text in texts.items()]
    if any(file is None for file in files):
        # Some registries have descriptors of schemas by id, but not of references.
        return _of_texts(_protobuf_texts(registry, number, serialized=False))
    made = descriptor_pb2.FileDescriptorSet()
    done: set[str] = {*texts}
    for file in files:
        for name in [name for name in file.dependency if name not in done]:
            _add_common(made, name, file, done)
        made.file.append(file)
    data: bytes = made.SerializeToString()
    return data


def _protobuf_texts(registry: SchemaRegistry, number: int, *, serialized: bool) -> dict[str, str]:
    """Return the files of a schema by name, each after those that it imports."""
    schema = registry.schema(number, serialized=serialized)
    texts = {name: each.text for name, each in referenced_schemas(registry, schema, serialized=serialized).items()}
    if not all(map(_IMPORT.fullmatch, texts)) or any(".." in name for name in texts):
        raise ValueError("a reference of a schema of Protobuf must be the path of an import, such as shop/user.proto")
    return {**texts, _ROOT: schema.text}


def _descriptor(name: str, text: str) -> Any:
    """Return a file of a registry in binary form; None if it is not one, but the text of a .proto file."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    check_text_size(len(text), "the schema of Protobuf")
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    file.name = name
    return file


def _add_common(made: Any, name: str, file: Any, done: set[str]) -> None:
    """Add an import that registries do not have as a reference: of Google, or of Confluent."""
    if name == _OPTIONS_ONLY:
        _drop_import(file, name)
        return
    match = _WELL_KNOWN.fullmatch(name)
    try:
        if match is None:
            raise ImportError
        found = importlib.import_module(f"google.protobuf.{match[1]}_pb2").DESCRIPTOR
    except ImportError:
        raise ValueError(f"it imports {shortened_name(name)}, to which it has no reference") from None
    done.add(name)
    for each in found.dependencies:
        if each.name not in done:
            _add_common(made, each.name, file, done)
    found.CopyToProto(made.file.add())


def _drop_import(file: Any, name: str) -> None:
    place = list(file.dependency).index(name)
    del file.dependency[place]
    for numbers in (file.public_dependency, file.weak_dependency):
        kept = [number - (number > place) for number in numbers if number != place]
        del numbers[:]
        numbers.extend(kept)


def _of_texts(texts: dict[str, str]) -> bytes:
    """Compile .proto files."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        for name, text in texts.items():
            path = os.path.join(directory, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
        try:
            return compiled_descriptors(os.path.join(directory, _ROOT))
        except ValueError as error:
            raise ValueError(printable(str(error).rpartition(": ")[2])) from None
