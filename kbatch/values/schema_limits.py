"""Limits on the schemas of keys and values, for Avro, Protobuf and JSON alike.

A short schema can describe a large type: if each of 30 records refers twice to the next one, the type has 2**30 fields,
and every field of every reference is a separate column. `TypeSize` computes the size of a type from the sizes of its
parts, before memory of that size is allocated.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from kbatch.batches.regular_files import open_regular
from kbatch.escaping import printable
from kbatch.extras import require

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "MAX_DEFAULT_VALUES",
    "MAX_FULL_NAMES",
    "MAX_NESTING",
    "MAX_NODES",
    "MAX_SCHEMA_BYTES",
    "FullNames",
    "SchemaTooLargeError",
    "TypeSize",
    "at",
    "check_text_size",
    "check_type",
    "path_below",
    "read_file",
    "shortened_name",
]

# A schema as text or as a descriptor set. Schema registries limit a schema to the size of a message, 1 MiB by default;
# a descriptor set holds many files.
MAX_SCHEMA_BYTES = 16 << 20
# Types, definitions and message paths may be nested this deep. Protobuf's own parsers stop at 100.
MAX_NESTING = 64
# The nodes of a type: its leaves, structs, lists and maps. Each one costs memory for every value, and about 10 us for
# every part of a column. The widest schemas in use have some thousand fields.
MAX_NODES = 20_000
# The characters of all full names of a schema. Every definition repeats its namespace (in Protobuf, every field repeats
# its package and messages), and so does the search for a reference. Full names are rarely longer than the definitions,
# so that a schema of the largest size has about 16 MiB of them.
MAX_FULL_NAMES = 32 << 20
# The values in the defaults of a reader's schema. An item of a default counts with all fields and branches of its type,
# and with each branch of a union that it is compared with: each takes about 1 us.
MAX_DEFAULT_VALUES = 10 * MAX_NODES
_MAX_PATH_TEXT = 200


class SchemaTooLargeError(ValueError):
    """A schema exceeds a limit."""


class FullNames:
    """Counts the characters of a schema's full names, before they are made."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.size = 0

    def add(self, size: int, path: str) -> None:
        """Count names of `size` characters at `path`; SchemaTooLargeError if all names exceed the limit."""
        self.size += size
        if self.size > MAX_FULL_NAMES:
            raise SchemaTooLargeError(
                f"{self.schema}, {at(path)}: the full names have more than {MAX_FULL_NAMES} characters in total; every "
                "definition and reference counts with its namespace or package: shorten it"
            )


class TypeSize(NamedTuple):
    """The number of nodes of a type, with all fields of every reference, and its depth."""

    nodes: int = 1
    depth: int = 1

    @classmethod
    def around(cls, parts: Iterable[TypeSize], schema: str, path: str) -> TypeSize:
        """Return the size of a type with these parts; SchemaTooLargeError if it exceeds a limit.

        `schema` and `path` are for the error: a name for the schema, and the place of the type in it.
        """
        nodes, depth = 1, 0
        for part in parts:
            nodes += part.nodes
            depth = max(depth, part.depth)
        size = cls(nodes, depth + 1)
        size.check(schema, path)
        return size

    def check(self, schema: str, path: str) -> None:
        """Raise SchemaTooLargeError if the size exceeds a limit."""
        if self.depth > MAX_NESTING:
            raise SchemaTooLargeError(f"{schema}, {at(path)}: types are nested deeper than {MAX_NESTING} levels")
        if self.nodes > MAX_NODES:
            raise SchemaTooLargeError(
                f"{schema}, {at(path)}: the type has more than {MAX_NODES} fields and other parts; every reference to "
                "a named type counts with all of its fields"
            )


def at(path: str) -> str:
    """Return a place in a schema, for an error's text."""
    if not path:
        return "at the top level"
    return f"at {shortened_name(path)}"


def path_below(path: str, name: str) -> str:
    """Return the path of a field for errors, without the characters that `at` leaves out.

    Long names would otherwise be copied to the path of every field below.
    """
    return f"{path}.{name[: _MAX_PATH_TEXT + 1]}".removeprefix(".")[: _MAX_PATH_TEXT + 1]


def shortened_name(text: str) -> str:
    """Return a name, a path or a type for an error's text: escaped, and without the end of a long one."""
    return printable(text if len(text) <= _MAX_PATH_TEXT else f"{text[:_MAX_PATH_TEXT]}...")


def check_text_size(size: int, schema: str) -> None:
    """Raise SchemaTooLargeError if a schema, as text or as a descriptor set, is too large."""
    if size > MAX_SCHEMA_BYTES:
        raise SchemaTooLargeError(f"{schema} has {size} bytes; the limit is {MAX_SCHEMA_BYTES}")


def check_type(kind: pa.DataType, schema: str) -> None:
    """Raise SchemaTooLargeError if an Arrow type exceeds a limit."""
    types = require("pyarrow", "arrow", "parsing values").types
    nodes = 0
    stack: list[tuple[Any, str, int]] = [(kind, "", 1)]
    while stack:
        each, path, depth = stack.pop()
        nodes += 1
        TypeSize(nodes, depth).check(schema, path)
        if types.is_struct(each):
            parts = [(field.type, path_below(path, field.name), depth + 1) for field in each]
            stack += reversed(parts)
        elif types.is_list(each) or types.is_large_list(each):
            stack.append((each.value_type, f"{path}[]", depth + 1))


def read_file(path: str, schema: str) -> bytes:
    """Read the file of a schema.

    Raises
    ------
    ValueError
        If the file can't be read, is not a regular file, or is larger than a schema may be.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            check_text_size(size, f"{printable(path)}: {schema}")
            return file.read()
    except OSError as error:
        raise ValueError(f"{printable(path)}: can't read {schema}: {error.strerror}") from None
